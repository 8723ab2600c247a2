//! The blocking handle, shared by threads.

mod guard;
mod poller;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Token, Waker};

pub use guard::{LockGuard, LockParts};

use crate::clock::{Clock, time_until};
use crate::config::{Builder, Config};
use crate::error::{ConfigError, ConnectError, LockError};
use crate::mux::Multiplexer;
use crate::process::Home;
use crate::proto::{Done, Lease, NodeStatus, OpId, Patience, Released, Stats};
use crate::quorum::NODES_MAX;
use crate::{Moment, Resource};
use poller::{Poller, Precision};

/// Above the tokens of the nodes.
const WAKER: Token = Token(NODES_MAX);
/// A client that was not used for this long looks at its connections before it uses them.
const IDLE_MIN: Duration = Duration::from_secs(1);

/// A client for distributed locks over several Redis masters.
///
/// It is a handle: cloning it is cheap, and all clones and threads share one connection to each
/// master. It has no thread of its own. A thread that calls in sends its own commands and, while it
/// waits, works the event loop for all; so connections are made, lost and made again only while
/// somebody is calling.
///
/// After `fork`, it belongs to the parent: in the child every operation fails with
/// [`Forked`](crate::LockErrorKind::Forked), and dropping a guard does nothing.
///
/// ```no_run
/// use muxlock::Redlock;
/// use std::time::Duration;
///
/// let redlock = Redlock::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let lock = redlock.try_lock("invoice:42", Duration::from_secs(10))?;
/// // ... work that is over well before `lock.remaining()` is ...
/// lock.unlock()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Redlock {
    shared: Arc<Shared>,
}

struct Shared {
    core: Mutex<Core>,
    /// Rings for those who wait for no operation of their own, after every turn.
    turn: Condvar,
    /// Wakes the thread that polls.
    waker: Waker,
    config: Config,
    /// In a process that was forked from this one, another thread's lock is never given back.
    home: Home,
}

struct Core {
    mux: Multiplexer,
    /// Taken by the thread that polls for all.
    poller: Option<Poller>,
    /// Those who wait for their operations, while somebody else polls.
    waiters: HashMap<OpId, Waiter>,
    /// Bells that nobody uses for now.
    bells: Vec<Arc<Condvar>>,
    /// How many others wait.
    visitors: usize,
    /// When somebody last polled, or came back from waiting for somebody who does.
    last_turn: Moment,
}

/// A thread that waits for an operation. Each has a bell of its own, so that nobody is woken for
/// somebody else's sake.
struct Waiter {
    bell: Arc<Condvar>,
    /// It was rung for, and will be back for the lock.
    is_rung: bool,
}

impl Waiter {
    fn ring(&mut self) {
        if !std::mem::replace(&mut self.is_rung, true) {
            self.bell.notify_one();
        }
    }
}

impl Redlock {
    /// Starts to configure a client.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects with default settings and waits until a quorum of the masters is ready.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub fn connect<I>(urls: I) -> Result<Redlock, ConnectError>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Redlock::builder().nodes(urls).connect()
    }

    pub(crate) fn with_config(config: Config) -> Result<Redlock, ConfigError> {
        let poller = Poller::new(config.busy_poll).map_err(ConfigError::Os)?;
        let waker = Waker::new(poller.registry(), WAKER).map_err(ConfigError::Os)?;
        let settings = config.clone();
        let mux = Multiplexer::new(config, poller.registry(), Token(0)).map_err(ConfigError::Os)?;
        let home = mux.home();
        let core = Core {
            mux,
            poller: Some(poller),
            waiters: HashMap::new(),
            bells: Vec::new(),
            visitors: 0,
            last_turn: Clock.now(),
        };
        Ok(Redlock {
            shared: Arc::new(Shared {
                core: Mutex::new(core),
                turn: Condvar::new(),
                waker,
                config: settings,
                home,
            }),
        })
    }

    /// Tries once to take a lock that lives for `ttl`: one round, decided as soon as a quorum has
    /// granted it or cannot any more.
    ///
    /// The guard is held by a quorum of the masters until [`LockGuard::remaining`] is zero; that
    /// is the TTL minus the time that the round took and minus the clock drift allowed for.
    /// Nothing but a fencing token that the resource checks protects against a holder that goes
    /// on after that moment.
    ///
    /// # Errors
    /// - [`Contended`](crate::LockErrorKind::Contended): somebody else holds it; try again later.
    /// - [`Unavailable`](crate::LockErrorKind::Unavailable): too few masters answered; the error
    ///   says why for each.
    /// - [`Expired`](crate::LockErrorKind::Expired): the quorum took longer than the validity;
    ///   use a longer TTL.
    /// - [`InvalidTtl`](crate::LockErrorKind::InvalidTtl),
    ///   [`InvalidResource`](crate::LockErrorKind::InvalidResource): mend the argument.
    /// - [`Overloaded`](crate::LockErrorKind::Overloaded),
    ///   [`NoEntropy`](crate::LockErrorKind::NoEntropy): this process does too much at once, or the
    ///   operating system has no random bytes.
    /// - [`Forked`](crate::LockErrorKind::Forked): this process was forked from the one that made
    ///   the client; make one of its own.
    ///
    /// After any error, whatever the attempt left on the masters is already being deleted.
    pub fn try_lock(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(resource.as_ref(), ttl, |_| Patience::OneRound)
    }

    /// Tries to take a lock for at most `wait`, in as many rounds as fit, with random delays
    /// between them.
    ///
    /// The bound is hard: it covers connecting, every round and every delay. A wait that is
    /// shorter than a round trip cannot succeed.
    ///
    /// # Errors
    /// As [`try_lock`](Redlock::try_lock), with what the nodes said in the last round.
    pub fn try_lock_for(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(resource.as_ref(), ttl, |now| Patience::Until(now.after(wait)))
    }

    /// As [`try_lock_for`](Redlock::try_lock_for), until an instant.
    ///
    /// # Errors
    /// As [`try_lock`](Redlock::try_lock), with what the nodes said in the last round.
    pub fn try_lock_until(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        deadline: Instant,
    ) -> Result<LockGuard, LockError> {
        self.try_lock_for(resource, ttl, time_until(deadline))
    }

    /// Takes up a lock that [`LockGuard::into_parts`] let go of, from this client or from another
    /// one with the same masters and the same key prefix.
    ///
    /// Nothing is sent, and the validity is what it was: the parts remember their deadline.
    ///
    /// # Errors
    /// [`Expired`](crate::LockErrorKind::Expired) if that deadline is over; the release of what may
    /// be left is then on its way. [`Forked`](crate::LockErrorKind::Forked) if this client belongs
    /// to the parent process.
    pub fn adopt(&self, parts: LockParts) -> Result<LockGuard, LockError> {
        if !self.is_home() {
            return Err(LockError::forked());
        }
        let guard = LockGuard::new(self.clone(), parts.into_lease(self.shared.config.nodes()));
        if guard.is_valid() { Ok(guard) } else { Err(LockError::expired()) }
    }

    /// What is known of each master, in the order of configuration. What has arrived by now is
    /// taken note of first; nothing is waited for.
    ///
    /// Empty in a process that was forked from the one that made this client.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        if !self.is_home() {
            return Vec::new();
        }
        let core = self.look_in(self.lock_core(), Clock.now_by_one_clock(), Duration::ZERO);
        core.mux.nodes().collect()
    }

    /// Counters since this client was made; all zero in a process that was forked.
    pub fn stats(&self) -> Stats {
        if !self.is_home() {
            return Stats::default();
        }
        self.lock_core().mux.stats()
    }

    /// How many masters make a quorum.
    pub fn quorum(&self) -> usize {
        self.shared.config.quorum()
    }

    /// Waits until every command is answered, at most for `timeout`: before a process ends, so
    /// that the releases of dropped guards are not lost with it. Releases that are owed to masters
    /// which cannot be reached count until their keys have expired.
    ///
    /// Returns how many are still unanswered; masters that are down or frozen leave some.
    pub fn shutdown(&self, timeout: Duration) -> usize {
        if !self.is_home() {
            return 0;
        }
        let give_up_at = Clock.now().after(timeout);
        let mut core = self.lock_core();
        core.mux.catch_up(Clock.now_by_one_clock());
        core.mux.flush_at_home();
        self.ring(&mut core, None);
        loop {
            let now = Clock.now_by_one_clock();
            let left = give_up_at.since(now);
            let unanswered = core.mux.engine().unanswered();
            if unanswered == 0 || left.is_zero() {
                return unanswered;
            }
            core = self.look_in(core, now, left);
        }
    }

    /// Whether this process may touch the connections (R24).
    pub(crate) fn is_home(&self) -> bool {
        self.shared.home.is_here()
    }

    pub(crate) fn wait_until_ready(&self) -> Result<(), ConnectError> {
        let mut core = self.lock_core();
        let quorum = self.quorum();
        let give_up_at = Clock.now().after(self.shared.config.connect_timeout);
        core.mux.connect();
        loop {
            if let Some((first, second)) = core.mux.engine().duplicates() {
                let address = |node: usize| self.shared.config.nodes[node].address.to_string();
                let (first, second) = (address(first), address(second));
                return Err(ConfigError::Duplicate { first, second }.into());
            }
            if core.mux.engine().ready() >= quorum {
                return Ok(());
            }
            let now = Clock.now_by_one_clock();
            let left = give_up_at.since(now);
            if core.mux.engine().hopeful() < quorum || left.is_zero() {
                return Err(ConnectError::Unavailable(core.mux.engine().unavailable()));
            }
            core = self.look_in(core, now, left);
        }
    }

    fn acquire(
        &self,
        resource: &[u8],
        ttl: Duration,
        patience: impl FnOnce(Moment) -> Patience,
    ) -> Result<LockGuard, LockError> {
        let resource = Resource::new(resource)?;
        if !self.is_home() {
            return Err(LockError::forked());
        }
        let start = |mux: &mut Multiplexer, now| mux.lock_until(now, resource, ttl, patience(now));
        let done = self.run(start)?;
        match done {
            Done::Acquired(result) => Ok(LockGuard::new(self.clone(), result?)),
            Done::Extended(..) | Done::Released(_) => unreachable!("an acquisition was started"),
        }
    }

    pub(crate) fn check_ensured(&self, ttl: Duration, min: Duration) -> Result<(), LockError> {
        self.shared.config.ensured(ttl, min)
    }

    pub(crate) fn extend(&self, lease: Lease, ttl: Duration) -> (Lease, Result<(), LockError>) {
        if !self.is_home() {
            return (lease, Err(LockError::forked()));
        }
        let Ok(done) = self.run(|mux, now| Ok::<_, Infallible>(mux.extend_at(now, lease, ttl)));
        match done {
            Done::Extended(lease, result) => (lease, result),
            Done::Acquired(_) | Done::Released(_) => unreachable!("an extension was started"),
        }
    }

    pub(crate) fn release(&self, lease: Lease) -> Result<Released, LockError> {
        if !self.is_home() {
            return Err(LockError::forked());
        }
        let Ok(done) = self.run(|mux, now| Ok::<_, Infallible>(mux.unlock_at(now, lease)));
        match done {
            Done::Released(result) => result,
            Done::Acquired(_) | Done::Extended(..) => unreachable!("a release was started"),
        }
    }

    pub(crate) fn abandon(&self, lease: Lease) {
        if !self.is_home() {
            return;
        }
        let mut core = self.lock_core();
        core.mux.abandon(lease);
        core.mux.flush_at_home();
        self.ring(&mut core, None);
    }

    /// Starts an operation and works, or waits for somebody else to work, until it has ended.
    /// It ends by itself: every operation has a deadline in the engine.
    fn run<E>(
        &self,
        start: impl FnOnce(&mut Multiplexer, Moment) -> Result<OpId, E>,
    ) -> Result<Done, E> {
        // Dropped after the lock on the core, which a panic gives back first.
        let mut started = Started { redlock: self, op: None };
        let mut core = self.lock_core();
        // With a look at the wall clock: that it was set since the last one is no reason to take it
        // off the validity.
        let mut now = Clock.now();
        if now.since(core.last_turn) > IDLE_MIN {
            // Connections may have ended while nobody looked: better to know before using them.
            core = self.look_in(core, now, Duration::ZERO);
            now = Clock.now();
        }
        let op = start(&mut core.mux, now)?;
        started.op = Some(op);
        core.mux.flush_at_home();
        self.ring(&mut core, Some(op));
        loop {
            if let Some(done) = core.mux.take_done(op) {
                started.op = None;
                self.ring(&mut core, None);
                self.hand_on(&mut core);
                return Ok(done);
            }
            let timeout = core.mux.next_deadline(now);
            core = match core.poller.take() {
                Some(poller) => self.lead(core, poller, now, timeout, Some(op)),
                None => self.follow(core, timeout, op),
            };
            now = core.last_turn;
        }
    }

    /// One turn of the event loop for somebody who waits for no operation: at most for `limit` from
    /// `now` on.
    fn look_in<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        now: Moment,
        limit: Duration,
    ) -> MutexGuard<'a, Core> {
        let timeout = core.mux.next_deadline(now).map_or(limit, |next| next.min(limit));
        if let Some(poller) = core.poller.take() {
            core = self.lead(core, poller, now, Some(timeout), None);
            self.hand_on(&mut core);
            return core;
        }
        if !timeout.is_zero() {
            core.visitors += 1;
            let waited = self.shared.turn.wait_timeout(core, timeout);
            core = waited.unwrap_or_else(PoisonError::into_inner).0;
            core.visitors -= 1;
        }
        self.after_waiting(core, None)
    }

    /// Polls for all, once, from `now` on.
    fn lead<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        poller: Poller,
        now: Moment,
        timeout: Option<Duration>,
        op: Option<OpId>,
    ) -> MutexGuard<'a, Core> {
        let precision = match core.mux.engine().is_precise() {
            true => Precision::Fine,
            false => Precision::Millisecond,
        };
        drop(core);
        let mut lead = Lead { shared: &self.shared, poller: Some(poller) };
        let mut events = lead.wait(now, timeout, precision);
        let mut core = self.lock_core();
        let now = Clock.now_by_one_clock();
        for event in events.by_ref() {
            core.mux.handle_event_at(now, event);
            // Nobody else waits for anything, so the rest can wait, too.
            let is_alone = core.waiters.is_empty() && core.visitors == 0;
            if is_alone && op.is_some_and(|op| core.mux.engine().is_done(op)) {
                break;
            }
        }
        events.for_each(|event| core.mux.defer(now, event));
        if op.is_none() {
            core.mux.catch_up(now);
        }
        core.mux.handle_timeout_at(now);
        core.last_turn = now;
        core.poller = lead.poller.take();
        self.ring(&mut core, op);
        if core.visitors > 0 {
            self.shared.turn.notify_all();
        }
        core
    }

    /// Waits for whoever polls.
    fn follow<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        timeout: Option<Duration>,
        op: OpId,
    ) -> MutexGuard<'a, Core> {
        if timeout == Some(Duration::ZERO) {
            return self.after_waiting(core, Some(op));
        }
        let bell = core.bells.pop().unwrap_or_default();
        core.waiters.insert(op, Waiter { bell: Arc::clone(&bell), is_rung: false });
        core = match timeout {
            None => bell.wait(core).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                bell.wait_timeout(core, timeout).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        core.waiters.remove(&op);
        core.bells.push(bell);
        if core.mux.engine().is_done(op) || core.poller.is_some() {
            return core;
        }
        self.after_waiting(core, Some(op))
    }

    /// Whoever polls may sleep past a deadline that is nearer than his.
    fn after_waiting<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        op: Option<OpId>,
    ) -> MutexGuard<'a, Core> {
        let now = Clock.now_by_one_clock();
        core.last_turn = now;
        core.mux.handle_timeout_at(now);
        self.ring(&mut core, op);
        core
    }

    /// Wakes those whose operations have ended, except for whoever calls this and has `own`; the
    /// one that polls, too, if it may be his.
    fn ring(&self, core: &mut Core, own: Option<OpId>) {
        let Core { mux, waiters, poller, .. } = core;
        if waiters.is_empty() && poller.is_some() {
            return;
        }
        for op in mux.engine().done().filter(|op| Some(*op) != own) {
            match waiters.get_mut(&op) {
                Some(waiter) => waiter.ring(),
                None if poller.is_none() => {
                    // It fails only if the kernel's counter is full, and then it is awake already.
                    let _ = self.shared.waker.wake();
                }
                None => {}
            }
        }
    }

    /// If nobody polls any more, one of those who wait has to.
    fn hand_on(&self, core: &mut Core) {
        if core.poller.is_none() {
            return;
        }
        match core.waiters.values_mut().next() {
            Some(waiter) => waiter.ring(),
            None if core.visitors > 0 => self.shared.turn.notify_all(),
            None => {}
        }
    }

    fn lock_core(&self) -> MutexGuard<'_, Core> {
        self.shared.lock_core()
    }
}

impl Shared {
    /// The engine's state is consistent between calls, so a panic in a caller does not spoil it.
    fn lock_core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation that a thread waits for. If the thread panics, as a logger may make it, nobody
/// would ever take the result, and a lock would be held by nobody.
struct Started<'a> {
    redlock: &'a Redlock,
    op: Option<OpId>,
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        if let Some(op) = self.op {
            let mut core = self.redlock.lock_core();
            core.waiters.remove(&op);
            core.mux.cancel(op);
            self.redlock.ring(&mut core, None);
            self.redlock.hand_on(&mut core);
        }
    }
}

/// The part of the thread that polls for all. A thread that panics hands it back, too.
struct Lead<'a> {
    shared: &'a Shared,
    poller: Option<Poller>,
}

impl Lead<'_> {
    fn wait(
        &mut self,
        now: Moment,
        timeout: Option<Duration>,
        precision: Precision,
    ) -> impl Iterator<Item = &Event> {
        self.poller.as_mut().expect("it is handed back once").wait(now, timeout, precision)
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if let Some(poller) = self.poller.take() {
            let mut core = self.shared.lock_core();
            core.poller = Some(poller);
            core.waiters.values_mut().for_each(Waiter::ring);
            self.shared.turn.notify_all();
        }
    }
}

impl std::fmt::Debug for Redlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.is_home() {
            return f.debug_struct("Redlock").finish_non_exhaustive();
        }
        let core = self.lock_core();
        f.debug_struct("Redlock").field("mux", &core.mux).finish_non_exhaustive()
    }
}
