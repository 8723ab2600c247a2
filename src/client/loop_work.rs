//! The event loop as the work of `leader_follower`.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::connect::ConnectError;
use super::keep_alive::{Callbacks, RenewedLock};
use super::leader_follower::{Begun, Poll, Work};
use super::poller::{Poller, Precision};
use super::readiness::{self, ReadyVerdict, Voter};
use super::signals::{Cancel, Signals};
use crate::config::ConfigError;
use crate::fencing::Fencing;
use crate::keep_alive::{KeepAlive, Loss, LossCause};
use crate::lock_error::{LockError, LockErrorKind};
use crate::moment::Moment;
use crate::mux::{Driver, Records, UNREAD_MAX};
use crate::outcome::{NodeOutcome, NodeReport};
use crate::proto::{Cancelled, Done, Lease, NodeStatus, OpId, Patience, ReleaseHow, Stats};
use crate::resource::Resource;
use crate::sys::clock::Clock;
use crate::sys::process::OwnerProcess;
use crate::times::Times;

/// An order that a thread can give.
pub(super) enum Order {
    Acquire {
        resource: Resource,
        ttl: Duration,
        patience: Patience,
        fencing: Fencing,
        cancel: Option<Arc<Cancel>>,
    },
    Extend(Lease, Duration),
    Release(Lease, ReleaseHow),
    Inspect(Resource),
    /// A release that is not waited for.
    Abandon(Lease),
    /// The lease goes to another client.
    LetGo(Lease),
    Stats,
    Times,
    Watch(Watch),
    /// The lock is renewed from now on.
    Renew(Box<(Lease, KeepAlive, Arc<RenewedLock>)>),
    /// The lock is no longer renewed.
    Stop(OpId),
}

/// A condition of the masters that a thread waits for. Each turn of the loop checks it, after
/// polling the sockets.
#[derive(Clone, Copy)]
pub(super) enum Watch {
    Nodes,
    /// A quorum is connected, or this moment has come.
    Connected(Moment),
    /// A quorum can vote, or this moment has come.
    Ready(Moment),
    /// Everything is answered, or this moment has come.
    Quiet(Moment),
    /// A renewed lock was lost, or this moment has come.
    Losses(Moment),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Id {
    Op(OpId),
    Watch(u64),
}

pub(super) enum Outcome {
    Done(Done),
    /// The lock expired before its thread woke up.
    ExpiredBeforeWake(Lease),
    LetGo(Lease),
    /// Nothing was asked.
    Refused(LockError),
    Stats(Stats),
    Times(Box<Times>),
    Nodes(Vec<NodeStatus>),
    Connected(Result<(), ConnectError>),
    Ready(Result<(), LockError>),
    /// The number of unanswered commands.
    Quiet(usize),
    Renewing(OpId),
    /// The lease of a lock that is no longer renewed, unless it was lost before.
    Stopped(Option<Lease>),
    Losses(Vec<Arc<RenewedLock>>),
}

/// Why no quorum can vote. If enough masters may still answer, the wait was too short.
fn not_ready(error: LockError, quorum: usize) -> LockError {
    match error.count(|outcome| !outcome.is_failure()) >= quorum {
        true => LockError::new(LockErrorKind::TimedOut, 0, error.nodes().to_vec()),
        false => error,
    }
}

struct Watching {
    watch: Watch,
    /// The sockets were not polled yet for this watch.
    is_new: bool,
    /// When to look again, if nothing happens before.
    look_at: Option<Moment>,
    outcome: Option<Outcome>,
}

pub(super) struct LoopWork {
    driver: Driver,
    /// In any other process, nothing of the driver may be touched (R24).
    owner: OwnerProcess,
    signals: Arc<Signals>,
    callbacks: Arc<Callbacks>,
    /// The acquisitions in flight that can be cancelled.
    cancellable: HashMap<OpId, Arc<Cancel>>,
    /// The acquisitions that a signal has ended, with the reason, until their threads know it.
    stopped: Vec<(OpId, LockErrorKind)>,
    watches: BTreeMap<u64, Watching>,
    watches_so_far: u64,
    renewed: HashMap<OpId, Arc<RenewedLock>>,
    /// Locks that were lost, for the thread that reports them.
    losses: Vec<Arc<RenewedLock>>,
    /// The latest reading of the clock.
    now: Moment,
    /// When the sockets were last polled.
    last_turn: Moment,
    /// A turn has begun. If this is still set when the next turn begins, the turn panicked, and the
    /// events it was given are not announced again.
    is_turning: bool,
}

impl LoopWork {
    pub(super) fn new(
        driver: Driver,
        owner: OwnerProcess,
        signals: Arc<Signals>,
        callbacks: Arc<Callbacks>,
    ) -> LoopWork {
        let now = Clock.now();
        LoopWork {
            driver,
            owner,
            signals,
            callbacks,
            cancellable: HashMap::new(),
            stopped: Vec::new(),
            watches: BTreeMap::new(),
            watches_so_far: 0,
            renewed: HashMap::new(),
            losses: Vec::new(),
            now,
            last_turn: now,
            is_turning: false,
        }
    }

    /// A waiter was cancelled, or the client closed, and maybe gave all of its locks up.
    #[cold]
    fn stop_waits(&mut self) {
        let is_released = self.signals.is_released.load(Ordering::Acquire);
        for op in self.renewed.keys().filter(|_| is_released).copied().collect::<Vec<_>>() {
            let loss = Some(Box::new(self.renewed[&op].lost_by(LossCause::Gone)));
            let lease = self.take_from_engine(op);
            self.lose(op, lease.map(|it| it.valid_at_most_until(self.now)), loss);
        }
        let mut ops: Vec<(OpId, LockErrorKind)> = match self.signals.is_closed() {
            true => {
                let ops = self.driver.engine().operations().acquisitions();
                ops.map(|op| (op, LockErrorKind::Closed)).collect()
            }
            false => {
                let cancelled = self.cancellable.iter().filter(|(_, cancel)| cancel.is_cancelled());
                cancelled.map(|(op, _)| (*op, LockErrorKind::Cancelled)).collect()
            }
        };
        // The youngest first: so none of them is called to ask in place of one before it.
        ops.sort_unstable_by_key(|(op, _)| std::cmp::Reverse(op.number()));
        for (op, kind) in ops {
            self.driver.forsake(self.now, op);
            self.cancellable.remove(&op);
            self.stopped.push((op, kind));
        }
    }

    /// The same as [`take`](Work::take), while some acquisition can be cancelled or a signal has
    /// ended one.
    #[inline(never)]
    fn take_noted(&mut self, op: OpId) -> Option<Outcome> {
        if let Some(done) = self.driver.take_done(|| Clock.now(), op) {
            self.cancellable.remove(&op);
            return Some(Outcome::Done(done));
        }
        let at = self.stopped.iter().position(|(stopped, _)| *stopped == op)?;
        let (_, kind) = self.stopped.swap_remove(at);
        Some(Outcome::Done(Done::Acquired(Err(LockError::new(kind, 0, Vec::new())))))
    }

    /// The outcome of a watch, as far as it is known now.
    fn see(&mut self, watching: &mut Watching) -> Option<Outcome> {
        let engine = self.driver.engine();
        watching.look_at = None;
        match watching.watch {
            Watch::Losses(until) => {
                let is_over = self.now >= until || !self.losses.is_empty();
                is_over.then(|| Outcome::Losses(mem::take(&mut self.losses)))
            }
            Watch::Nodes => Some(Outcome::Nodes(engine.statuses().collect())),
            Watch::Quiet(until) => {
                let unanswered = engine.unanswered();
                (unanswered == 0 || self.now >= until).then_some(Outcome::Quiet(unanswered))
            }
            Watch::Ready(_) if self.signals.is_closed() => {
                let closed = LockError::new(LockErrorKind::Closed, 0, Vec::new());
                Some(Outcome::Ready(Err(closed)))
            }
            Watch::Ready(until) => {
                let quorum = engine.config().quorum();
                let error = engine.nodes().unavailable(engine.last_now());
                let voter = |report: &NodeReport| Voter {
                    votes: report.outcome == NodeOutcome::Connected,
                    counts_in: report.quarantine.map(|quarantine| quarantine.ready_in),
                };
                let voters: Vec<_> = error.nodes().iter().map(voter).collect();
                match readiness::judge(self.now, until, quorum, &voters) {
                    ReadyVerdict::Ready => Some(Outcome::Ready(Ok(()))),
                    ReadyVerdict::NotYet(look_at) => {
                        watching.look_at = Some(look_at);
                        None
                    }
                    ReadyVerdict::TimedOut | ReadyVerdict::Never => {
                        Some(Outcome::Ready(Err(not_ready(error, quorum))))
                    }
                }
            }
            Watch::Connected(until) => {
                let config = engine.config();
                let quorum = config.quorum();
                if let Some((first, second)) = engine.nodes().duplicates() {
                    let address = |node: usize| config.nodes[node].address.to_string();
                    let (first, second) = (address(first), address(second));
                    let error = ConfigError::Duplicate { first, second };
                    return Some(Outcome::Connected(Err(error.into())));
                }
                if engine.nodes().ready() >= quorum {
                    return Some(Outcome::Connected(Ok(())));
                }
                let is_hopeless = engine.nodes().hopeful() < quorum || self.now >= until;
                let refused =
                    || ConnectError::Unavailable(engine.nodes().unavailable(engine.last_now()));
                is_hopeless.then(|| Outcome::Connected(Err(refused())))
            }
        }
    }

    /// Takes the results of renewals, for which no thread waits.
    fn collect_renewals(&mut self) {
        let ended = self.driver.engine().operations().done();
        let ended: Vec<OpId> = ended.filter(|op| self.renewed.contains_key(op)).collect();
        for op in ended {
            match self.driver.take_done(|| Clock.now(), op) {
                // A renewal failed, and another follows.
                None => self.renewed[&op].failed(),
                Some(Done::Renewed(until)) if self.renewed[&op].note_renewal(until) => {}
                // The holder has seen its end.
                Some(Done::Renewed(_)) => {
                    let lease = self.take_from_engine(op);
                    self.lose(op, lease, None);
                }
                Some(Done::Lost(lease, loss)) => self.lose(op, Some(lease), Some(loss)),
                Some(_) => unreachable!("it is a renewed lock"),
            }
        }
    }

    fn take_from_engine(&mut self, op: OpId) -> Option<Lease> {
        // A renewal that has succeeded is judged here (R2): replies may be younger than the turn.
        match self.driver.engine_mut().cancel(Clock.now(), op) {
            Cancelled::Extension(lease) => Some(lease),
            _ => None,
        }
    }

    /// The lock is no longer renewed, and its holder has not asked for that.
    fn lose(&mut self, op: OpId, lease: Option<Lease>, loss: Option<Box<Loss>>) {
        let Some(renewed) = self.renewed.remove(&op) else {
            return;
        };
        if let Some(unwanted) = lease.and_then(|lease| renewed.lost(lease, loss.map(|it| *it))) {
            self.driver.engine_mut().abandon(self.now, unwanted);
        }
        self.losses.push(renewed);
    }

    /// The lock is no longer renewed: takes its lease back, unless it is lost.
    fn stop(&mut self, op: OpId) -> Option<Lease> {
        self.renewed.remove(&op)?;
        self.take_from_engine(op)
    }

    /// Updates the watches, after the sockets were polled.
    fn check_watches(&mut self) {
        let mut watches = mem::take(&mut self.watches);
        for watching in watches.values_mut().filter(|watching| watching.outcome.is_none()) {
            watching.is_new = false;
            watching.outcome = self.see(watching);
        }
        self.watches = watches;
    }

    /// A lock is renewed whose loss is overdue then. Ends the watch for losses, without any, if it
    /// would end later: the thread that reports them has to look in time.
    fn hasten_losses(&mut self, overdue_at: Option<Moment>) {
        let Some(overdue_at) = overdue_at else {
            return;
        };
        for watching in self.watches.values_mut() {
            let is_too_long = matches!(watching.watch, Watch::Losses(until) if overdue_at < until);
            if is_too_long && watching.outcome.is_none() {
                watching.outcome = Some(Outcome::Losses(Vec::new()));
            }
        }
    }

    /// Updates the watch for losses without a poll. Here its deadline does not end it: with always
    /// something to begin, the sockets would otherwise never be polled.
    fn check_losses(&mut self) {
        if self.losses.is_empty() {
            return;
        }
        let mut watches = self.watches.values_mut();
        let is_waiting = |watching: &&mut Watching| {
            matches!(watching.watch, Watch::Losses(_)) && watching.outcome.is_none()
        };
        if let Some(watching) = watches.find(is_waiting) {
            watching.outcome = Some(Outcome::Losses(mem::take(&mut self.losses)));
        }
    }
}

impl Work for LoopWork {
    type Order = Order;
    type Id = Id;
    type Outcome = Outcome;
    type Time = Moment;
    type Poller = Poller;
    type Report = Records;

    #[inline]
    fn get_ready(&mut self) -> bool {
        // Reads the wall clock too: a jump since the last reading must not be subtracted from the
        // validity that begins now.
        self.now = Clock.now();
        // Connections may have ended since the last poll, or unrequested bytes have come. Both must
        // be known before a connection is used.
        self.now.since(self.last_turn) > UNREAD_MAX
    }

    #[inline]
    fn begin(&mut self, order: Order) -> Begun<LoopWork> {
        let op = match order {
            Order::Acquire { resource, ttl, patience, fencing, cancel } => {
                let begun = match self.signals.verdict(cancel.as_deref()) {
                    None => {
                        self.driver.engine_mut().acquire(self.now, resource, ttl, patience, fencing)
                    }
                    Some(kind) => Err(LockError::new(kind, 0, Vec::new())),
                };
                match begun {
                    Ok(op) => {
                        if let Some(cancel) = cancel {
                            self.cancellable.insert(op, cancel);
                        }
                        op
                    }
                    Err(error) => return Begun::Now(Outcome::Done(Done::Acquired(Err(error)))),
                }
            }
            Order::Extend(lease, _) if self.signals.is_released.load(Ordering::Acquire) => {
                let done = Done::Extended(lease, Err(LockError::expired()));
                return Begun::Now(Outcome::Done(done));
            }
            Order::Extend(lease, ttl) => self.driver.engine_mut().extend(self.now, lease, ttl),
            Order::Release(lease, how) => self.driver.engine_mut().release(self.now, lease, how),
            Order::Inspect(resource) => {
                match self.driver.engine_mut().inspect(self.now, resource) {
                    Ok(op) => op,
                    Err(error) => return Begun::Now(Outcome::Refused(error)),
                }
            }
            Order::Abandon(lease) => {
                self.driver.engine_mut().abandon(self.now, lease);
                return Begun::Unattended;
            }
            Order::LetGo(mut lease) => {
                self.driver.let_go(self.now, &mut lease);
                // Others may be waiting behind it, and no caller's turn may follow soon.
                self.driver.flush();
                return Begun::Now(Outcome::LetGo(lease));
            }
            Order::Renew(new) => {
                let (lease, how, renewed) = *new;
                let op = self.driver.engine_mut().keep(self.now, lease, &how);
                renewed.set_engine_op(op);
                self.hasten_losses(renewed.overdue_at());
                self.renewed.insert(op, renewed);
                return Begun::Now(Outcome::Renewing(op));
            }
            Order::Stop(op) => return Begun::Now(Outcome::Stopped(self.stop(op))),
            Order::Stats => return Begun::Now(Outcome::Stats(self.driver.engine().stats())),
            Order::Times => {
                let times = self.driver.engine().times().clone();
                return Begun::Now(Outcome::Times(Box::new(times)));
            }
            Order::Watch(watch) => {
                if let Watch::Connected(_) | Watch::Ready(_) = watch {
                    self.driver.engine_mut().connect(self.now);
                    self.driver.engine_mut().ask_time(self.now);
                }
                let watching = Watching { watch, is_new: true, look_at: None, outcome: None };
                self.watches_so_far += 1;
                self.watches.insert(self.watches_so_far, watching);
                if let Watch::Losses(_) = watch {
                    self.check_losses();
                }
                return Begun::Later(Id::Watch(self.watches_so_far));
            }
        };
        Begun::Later(Id::Op(op))
    }

    #[inline]
    fn send(&mut self) {
        self.driver.flush();
    }

    #[inline]
    fn turn(&mut self, poller: &mut Poller, alone: Option<Id>) {
        let now = Clock.now_coarse();
        if mem::replace(&mut self.is_turning, true) {
            self.driver.leave_all_unread();
        }
        if let Some(error) = poller.take_failure() {
            let records = &mut self.driver.records;
            records.note(log::Level::Error, format_args!("cannot wait for the masters: {error}"));
        }
        let was_away = poller.has_polled_now() && now.since(self.last_turn) > UNREAD_MAX;
        self.driver.after_poll(now, was_away.then_some(now));
        let mut events = poller.events();
        for event in events.by_ref() {
            self.driver.handle_event(event);
            let engine = self.driver.engine();
            if engine.operations().has_done()
                && matches!(alone, Some(Id::Op(op)) if engine.operations().is_done(op))
            {
                break;
            }
        }
        events.for_each(|event| self.driver.defer(event));
        if was_away || !self.watches.is_empty() {
            self.driver.read_deferred();
        }
        if self.signals.take_raised() {
            self.now = now;
            self.stop_waits();
        }
        self.driver.handle_timeout(now);
        self.driver.flush();
        (self.now, self.last_turn) = (now, now);
        if !self.renewed.is_empty() {
            self.collect_renewals();
        }
        if !self.watches.is_empty() {
            self.check_watches();
        }
        self.is_turning = false;
    }

    fn tick(&mut self, id: Id) {
        let now = Clock.now_coarse();
        self.driver.after_wait(now);
        self.driver.handle_timeout(now);
        self.driver.flush();
        self.now = now;
        let Id::Watch(key) = id else {
            return;
        };
        if let Some(mut watching) = self.watches.remove(&key) {
            if watching.outcome.is_none() {
                watching.outcome = self.see(&mut watching);
            }
            self.watches.insert(key, watching);
        }
    }

    #[inline]
    fn poll_at(&self) -> Option<Moment> {
        let due = self.driver.due();
        let has_renewed = !self.renewed.is_empty() && self.driver.engine().operations().has_done();
        if self.is_turning || has_renewed {
            return Some(self.now);
        }
        if self.watches.is_empty() {
            return due;
        }
        let watches = self.watches.values().map(|watching| match watching.watch {
            _ if watching.is_new => self.now,
            Watch::Nodes => self.now,
            Watch::Connected(until)
            | Watch::Ready(until)
            | Watch::Quiet(until)
            | Watch::Losses(until) => watching.look_at.unwrap_or(until),
        });
        watches.chain(due).min()
    }

    #[inline]
    fn set_timeout(&self, poller: &mut Poller, due: Option<Moment>) {
        let precision = match self.driver.engine().is_precise() {
            true => Precision::Fine,
            false => Precision::Millisecond,
        };
        poller.set_timeout(self.now, due, precision);
    }

    #[inline]
    fn has_ended(&self) -> bool {
        let is_over = |watching: &Watching| watching.outcome.is_some();
        self.driver.engine().operations().has_done()
            || !self.stopped.is_empty()
            || !self.watches.is_empty() && self.watches.values().any(is_over)
    }

    fn ended(&mut self, to: &mut Vec<Id>) {
        self.collect_renewals();
        self.check_losses();
        to.extend(self.driver.engine().operations().done().map(Id::Op));
        to.extend(self.stopped.iter().map(|(op, _)| Id::Op(*op)));
        let over = self.watches.iter().filter(|(_, watching)| watching.outcome.is_some());
        to.extend(over.map(|(key, _)| Id::Watch(*key)));
    }

    #[inline]
    fn take(&mut self, id: Id) -> Option<Outcome> {
        match id {
            // Written so that the result is moved once.
            Id::Op(op) if self.cancellable.is_empty() && self.stopped.is_empty() => {
                self.driver.take_done(|| Clock.now(), op).map(Outcome::Done)
            }
            Id::Op(op) => self.take_noted(op),
            Id::Watch(key) => {
                let outcome = self.watches.get_mut(&key)?.outcome.take()?;
                self.watches.remove(&key);
                Some(outcome)
            }
        }
    }

    /// The thread that receives a lock proves its validity again (R2).
    fn receive(outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Done(Done::Acquired(Ok(lease))) if !lease.is_valid_at(Clock.now()) => {
                Outcome::ExpiredBeforeWake(lease)
            }
            Outcome::Done(Done::Extended(lease, Ok(()))) if !lease.is_valid_at(Clock.now()) => {
                Outcome::Done(Done::Extended(lease, Err(LockError::expired())))
            }
            other => other,
        }
    }

    fn give_up(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Done(Done::Acquired(Ok(lease)) | Done::Extended(lease, _))
            | Outcome::ExpiredBeforeWake(lease)
            | Outcome::LetGo(lease) => self.driver.engine_mut().abandon(self.now, lease),
            Outcome::Stopped(Some(lease)) => self.driver.engine_mut().abandon(self.now, lease),
            Outcome::Renewing(op) => {
                let stopped = self.stop(op);
                self.give_up(Outcome::Stopped(stopped));
            }
            Outcome::Losses(mut losses) => {
                self.losses.append(&mut losses);
                self.check_losses();
            }
            _ => {}
        }
    }

    fn cancel(&mut self, id: Id) {
        match id {
            Id::Op(op) => {
                self.driver.forsake(Clock.now(), op);
                self.cancellable.remove(&op);
                self.stopped.retain(|(stopped, _)| *stopped != op);
            }
            Id::Watch(key) => {
                if let Some(Watching { outcome: Some(outcome), .. }) = self.watches.remove(&key) {
                    self.give_up(outcome);
                }
            }
        }
    }

    fn withdraw(order: Order) -> Option<Order> {
        match order {
            Order::Acquire { .. }
            | Order::Inspect(_)
            | Order::Stats
            | Order::Times
            | Order::Watch(_) => None,
            Order::Extend(lease, _) | Order::Release(lease, _) => Some(Order::Abandon(lease)),
            Order::Renew(new) => Some(Order::Abandon(new.0)),
            Order::Abandon(_) | Order::LetGo(_) | Order::Stop(_) => Some(order),
        }
    }

    #[inline]
    fn has_report(&self) -> bool {
        !self.driver.records.is_empty()
    }

    #[inline]
    fn report(&mut self) -> Option<Records> {
        self.driver.records.take().and_then(|records| self.callbacks.write_elsewhere(records))
    }

    fn deliver(report: Records) {
        report.write();
    }

    #[inline]
    fn now(&self) -> Moment {
        self.now
    }

    fn read_clock() -> Moment {
        Clock.now_coarse()
    }

    #[inline]
    fn after(time: Moment, duration: Duration) -> Moment {
        time.after(duration)
    }

    fn left(until: Moment) -> Duration {
        until.since(Clock.now_coarse())
    }
}

impl Drop for LoopWork {
    fn drop(&mut self) {
        self.driver.finish(self.owner.is_current());
    }
}

impl Poll for Poller {
    type Waker = Arc<Signals>;

    #[inline]
    fn wait(&mut self) {
        Poller::wait(self);
    }

    fn poll_now(&mut self) {
        Poller::poll_now(self);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use mio::Token;

    use super::*;
    use crate::client::Redlock;
    use crate::proto::{Terms, Ttl};
    use crate::token::LockToken;

    const TTL: Duration = Duration::from_millis(500);

    impl LoopWork {
        /// How many operations there are, how many can be cancelled, and how many of the others
        /// their threads do not know yet.
        pub(in super::super) fn counts(&self) -> (usize, usize, usize) {
            let operations = self.driver.engine().operations().count();
            (operations, self.cancellable.len(), self.stopped.len())
        }
    }

    fn lease(deadline: Moment) -> Lease {
        let ttl = Ttl::new(TTL).unwrap();
        let resource = Resource::new("resource").unwrap();
        Lease::elsewhere(resource, LockToken::from_random([7; 20]), ttl, deadline)
    }

    /// R2: the lock was valid when it was posted, and no longer when its thread wakes up.
    #[test]
    fn lock_that_is_received_after_its_end_has_expired() {
        let (valid, expired) = (Clock.now().after(100 * TTL), Clock.now());
        let acquired = |until| Outcome::Done(Done::Acquired(Ok(lease(until))));
        let received = LoopWork::receive(acquired(expired));
        assert!(
            matches!(received, Outcome::ExpiredBeforeWake(lease) if lease.valid_until() == expired)
        );
        let received = LoopWork::receive(acquired(valid));
        assert!(matches!(received, Outcome::Done(Done::Acquired(Ok(_)))));
        let extended = |until| Outcome::Done(Done::Extended(lease(until), Ok(())));
        let Outcome::Done(Done::Extended(_, result)) = LoopWork::receive(extended(expired)) else {
            panic!("it is an extension");
        };
        assert!(result.is_err_and(|error| error.is_expired()));
        let received = LoopWork::receive(extended(valid));
        assert!(matches!(received, Outcome::Done(Done::Extended(_, Ok(())))));
    }

    /// `HELLO`, tracking, five empty sections, time, and probe.
    const HANDSHAKE_REPLIES: &[u8] =
        b"%0\r\n+OK\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n\
        *2\r\n$1\r\n1\r\n$1\r\n1\r\n:0\r\n";

    /// A master that grants one lock. Returns its connection, to be read by the test.
    fn granting_server() -> (String, std::thread::JoinHandle<std::net::TcpStream>) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}?restart_guard=off", server.local_addr().unwrap());
        let serve = std::thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            for answer in [HANDSHAKE_REPLIES, b"+OK\r\n"] {
                assert!(client.read(&mut [0; 4_096]).unwrap() > 0);
                client.write_all(answer).unwrap();
            }
            client
        });
        (url, serve)
    }

    /// The loop of a client to which the server has granted a lock that its thread did not receive
    /// yet.
    fn granted(url: String, cancel: Option<Arc<Cancel>>) -> (LoopWork, Poller, Id) {
        let mut poller = Poller::new().unwrap();
        let patient = Duration::from_secs(20);
        let builder = Redlock::builder().node(url).node_timeout(patient).connect_timeout(patient);
        let config = builder.config().unwrap();
        let driver = Driver::new(config, poller.registry(), Token(0)).unwrap();
        let waker = mio::Waker::new(poller.registry(), Token(1)).unwrap();
        let signals = Arc::new(Signals::new(waker));
        let mut loop_work = LoopWork::new(driver, OwnerProcess::current(), signals, Arc::default());
        loop_work.get_ready();
        let resource = Resource::new("resource").unwrap();
        let patience = Patience::OneRound;
        let fencing = Fencing::Off;
        let order = Order::Acquire { resource, ttl: TTL, patience, fencing, cancel };
        let Begun::Later(id) = loop_work.begin(order) else {
            panic!("it takes an answer");
        };
        loop_work.send();
        while !loop_work.has_ended() {
            let due = loop_work.poll_at();
            loop_work.set_timeout(&mut poller, due);
            poller.wait();
            loop_work.turn(&mut poller, Some(id));
        }
        (loop_work, poller, id)
    }

    /// R2: the turn in which it was granted is long past when its thread receives it.
    #[test]
    fn lock_is_judged_by_the_clock_and_not_by_the_last_turn() {
        let (url, serve) = granting_server();
        let (mut loop_work, _poller, id) = granted(url, None);
        let granted = Clock.now();
        while Clock.now().since(granted) < TTL {
            std::thread::yield_now();
        }
        let Some(Outcome::Done(Done::Acquired(result))) = loop_work.take(id) else {
            panic!("it has ended");
        };
        assert!(result.is_err_and(|error| error.is_expired()));
        drop(serve.join().unwrap());
    }

    /// The same, and then a signal has ended the order.
    fn granted_and_cancelled(url: String) -> (LoopWork, Poller, Id) {
        let cancel = Arc::new(Cancel::default());
        let (mut loop_work, mut poller, id) = granted(url, Some(Arc::clone(&cancel)));
        loop_work.signals.cancel(&cancel, OwnerProcess::current());
        poller.poll_now();
        loop_work.turn(&mut poller, None);
        (loop_work, poller, id)
    }

    #[test]
    fn lock_that_was_granted_to_a_cancelled_waiter_is_released() {
        let (url, serve) = granting_server();
        let (mut loop_work, _poller, id) = granted_and_cancelled(url);
        let mut ended = Vec::new();
        loop_work.ended(&mut ended);
        assert!(ended == [id] && loop_work.has_ended());
        let Some(Outcome::Done(Done::Acquired(Err(error)))) = loop_work.take(id) else {
            panic!("it was cancelled");
        };
        assert_eq!(error.kind(), LockErrorKind::Cancelled);
        assert!(!loop_work.has_ended() && loop_work.cancellable.is_empty());
        loop_work.send();
        let mut server = serve.join().unwrap();
        let mut sent = vec![0; 4_096];
        let length = server.read(&mut sent).unwrap();
        assert!(sent[..length].windows(4).any(|word| word == b"EVAL"), "it is released");
    }

    /// A signal has ended the order, and then its thread gives up.
    #[test]
    fn order_that_a_signal_has_ended_is_forgotten_when_it_is_given_up() {
        let (url, serve) = granting_server();
        let (mut loop_work, _poller, id) = granted_and_cancelled(url);
        assert_eq!(loop_work.counts(), (0, 0, 1));
        loop_work.cancel(id);
        assert_eq!(loop_work.counts(), (0, 0, 0));
        assert!(!loop_work.has_ended(), "the loop has nothing to distribute");
        drop(serve.join().unwrap());
    }

    /// R31: the thread that reports losses sleeps until one of those it knows may be overdue.
    #[test]
    fn kept_lock_whose_loss_may_be_told_sooner_ends_the_watch_for_losses() {
        let poller = Poller::new().unwrap();
        let config = Redlock::builder().node("redis://127.0.0.1:1").config().unwrap();
        let driver = Driver::new(config, poller.registry(), Token(0)).unwrap();
        let waker = mio::Waker::new(poller.registry(), Token(1)).unwrap();
        let signals = Arc::new(Signals::new(waker));
        let mut loop_work = LoopWork::new(driver, OwnerProcess::current(), signals, Arc::default());
        loop_work.get_ready();
        let now = Clock.now();
        let watch = Watch::Losses(now.after(Duration::from_secs(60)));
        let Begun::Later(id) = loop_work.begin(Order::Watch(watch)) else {
            panic!("nothing is lost");
        };
        for (seconds, is_ended) in [(3_600, false), (1, true)] {
            let validity = Duration::from_secs(seconds);
            let (lease, ttl) = (lease(now.after(validity)), Ttl::new(validity).unwrap());
            let (how, timeout) = (KeepAlive::default(), Duration::from_millis(50));
            let terms = Terms::new(now, validity, &how, timeout);
            let renewed = Arc::new(RenewedLock::new(now, &lease, ttl, terms, None));
            loop_work.begin(Order::Renew(Box::new((lease, how, renewed))));
            let mut ended = Vec::new();
            loop_work.ended(&mut ended);
            assert_eq!(ended.contains(&id), is_ended, "{seconds}");
        }
    }

    /// The thread that had ordered it does not wait any longer.
    #[test]
    fn lock_that_is_given_up_before_it_is_received_is_released() {
        let (url, serve) = granting_server();
        let (mut loop_work, _poller, id) = granted(url, None);
        let outcome = loop_work.take(id).expect("it has ended");
        loop_work.give_up(outcome);
        loop_work.send();
        let mut sent = vec![0; 4_096];
        let length = serve.join().unwrap().read(&mut sent).unwrap();
        assert!(sent[..length].windows(4).any(|word| word == b"EVAL"));
    }

    /// The order was on its way when all locks of the client were released: with healing, it would
    /// set the keys again.
    #[test]
    fn lock_that_was_released_with_all_others_is_not_extended() {
        let (url, serve) = granting_server();
        let (mut loop_work, _poller, id) = granted(url, None);
        let Some(Outcome::Done(Done::Acquired(Ok(held)))) = loop_work.take(id) else {
            panic!("it is granted");
        };
        loop_work.signals.is_released.store(true, Ordering::Release);
        let begun = loop_work.begin(Order::Extend(held, TTL));
        let Begun::Now(Outcome::Done(Done::Extended(held, Err(error)))) = begun else {
            panic!("nothing is sent");
        };
        assert!(error.is_expired());
        assert_eq!(loop_work.counts().0, 0);
        drop((held, serve.join().unwrap()));
    }

    /// The order was on its way when the client was closed.
    #[test]
    fn nothing_is_begun_after_the_end() {
        let (url, serve) = granting_server();
        let (mut loop_work, _poller, _) = granted(url, None);
        loop_work.signals.close();
        let resource = Resource::new("other").unwrap();
        let patience = Patience::OneRound;
        let (fencing, cancel) = (Fencing::Off, None);
        let order = Order::Acquire { resource, ttl: TTL, patience, fencing, cancel };
        let begun = loop_work.begin(order);
        let Begun::Now(Outcome::Done(Done::Acquired(Err(error)))) = begun else {
            panic!("it is closed");
        };
        assert_eq!(error.kind(), LockErrorKind::Closed);
        drop(serve.join().unwrap());
    }
}
