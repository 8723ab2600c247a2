//! The multiplexer: a driver for guests of a foreign event loop. It reads the clock, and works only
//! in the process that made it.

mod beside;
mod blocking;
mod dialling;
mod driver;
mod failure;
mod lookup;
mod reading;
mod records;
mod resolving;
mod sentinel;
mod socket;
mod standalone;
mod stream;
#[cfg(feature = "tls-no-provider")]
mod tls;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mio::event::Event;
use mio::{Registry, Token};

use crate::config::{Config, Wait};
use crate::fencing::Fencing;
use crate::keep_alive::KeepAlive;
use crate::lock_error::LockError;
use crate::moment::Moment;
use crate::proto::{Cancelled, Done, Engine, Lease, NodeStatus, OpId, Patience, ReleaseHow, Stats};
use crate::resource::Resource;
use crate::sys::clock::Clock;
#[cfg(feature = "unstable-tool")]
pub(crate) use crate::sys::name::of_process;
use crate::sys::process::OwnerProcess;
use crate::times::Times;
#[cfg(feature = "unstable-tool")]
pub use blocking::Dialled;
#[cfg(feature = "unstable-tool")]
pub(crate) use blocking::{dial, dial_unix};
pub(crate) use driver::Driver;
pub(crate) use reading::UNREAD_MAX;
pub(crate) use records::Records;
#[cfg(feature = "unstable-tool")]
pub(crate) use sentinel::ask_sentinels;
pub use standalone::Standalone;

/// Runs locks inside your own event loop, with up to 131,072 operations in flight. No call blocks.
///
/// It registers its sockets with your [`mio::Poll`], usually one for each node, with the tokens
/// from `first` to `first + nodes - 1`. (For other event loops, see [`Standalone`].) It looks up a
/// node's host name before each connection, on a short-lived thread. In an event loop:
///
/// 1. start operations: [`try_lock`](Multiplexer::try_lock), [`extend`](Multiplexer::extend),
///    [`unlock`](Multiplexer::unlock); then [`flush`](Multiplexer::flush);
/// 2. take results: [`poll_done`](Multiplexer::poll_done) until it returns `None`, or
///    [`take_all_done`](Multiplexer::take_all_done);
/// 3. wait, for at most [`next_timeout`](Multiplexer::next_timeout);
/// 4. call [`handle_events`](Multiplexer::handle_events) with the events, even if there are none
///    (or [`handle_event`](Multiplexer::handle_event) for each, and then
///    [`handle_timeout`](Multiplexer::handle_timeout)); continue with 2.
///
/// Every operation ends on its own, except with
/// [`Wait::forever`](crate::settings::Wait::forever). Use [`cancel`](Multiplexer::cancel) to end
/// one earlier. An [`OpId`] of another multiplexer has no effect here.
///
/// To find your data for a result, keep them in a map by [`OpId`], or in a `Vec` by
/// [`OpId::index`]. To start an operation from another thread, send it to the thread of your loop,
/// and wake that with your own [`mio::Waker`].
///
/// In a forked child, a multiplexer does no I/O and returns no results.
/// [`try_lock`](Multiplexer::try_lock) fails, and other operations that are started there never
/// end. A [`Lease`] that is passed to it is dropped; the parent still has its own.
///
/// Dropping a multiplexer writes unsent commands as far as the sockets accept them, and waits for
/// nothing. It does not release leases that the caller has.
///
/// Log records are written at the end of [`flush`](Multiplexer::flush) and of the calls that handle
/// events or timeouts, so that a panic in the logger leaves no work half done.
///
/// A stale or unrelated event does no harm: the multiplexer then only tries to read the node's
/// current socket.
///
/// If a node sends bytes while no command is open, the multiplexer closes the connection. To detect
/// this, it reads the socket before it sends a command, unless it read it within the last
/// millisecond.
///
/// No call blocks or sleeps, and each does a bounded amount of work. It reads at most 16 times 33
/// KiB from each node. It handles 3,072 replies, 512 timeouts and 512 commands lost with a
/// connection, divided among the nodes, but at least 8 of each per node. A call of `handle_events`
/// handles up to twice as many replies: those announced by events, and those left over from the
/// previous call. It sends 2,048 commands, each to all its nodes. If anything is left,
/// `next_timeout` is zero, and the loop can do its other work first.
///
/// ```no_run
/// use mio::{Events, Poll, Token};
/// use muxlock::proto::Done;
/// use muxlock::{Multiplexer, Redlock};
/// use std::time::Duration;
///
/// let config = Redlock::builder().node("redis://127.0.0.1").config()?;
/// let mut poll = Poll::new()?;
/// let mut events = Events::with_capacity(64);
/// let mut mux = Multiplexer::new(config, poll.registry(), Token(1000))?;
///
/// let op = mux.try_lock("invoice:42", Duration::from_secs(10))?;
/// mux.flush();
/// loop {
///     while let Some((id, done)) = mux.poll_done() {
///         if let (true, Done::Acquired(result)) = (id == op, done) {
///             println!("held until {:?}", result?.valid_until());
///             return Ok(());
///         }
///     }
///     poll.poll(&mut events, mux.next_timeout())?;
///     mux.handle_events(&events);
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Multiplexer {
    driver: Driver,
    /// In any other process, nothing of the driver may be touched (R24).
    owner: OwnerProcess,
    /// When the first acquisition since the last flush was started: the start of all of them.
    burst: Option<Moment>,
    /// When events were last handled.
    handled_at: Moment,
    /// When the caller asked last for how long it may wait, and so began to.
    /// In nanoseconds; zero if it does not wait.
    waits_since: AtomicU64,
}

impl Multiplexer {
    /// A multiplexer that uses the tokens of `registry` from `first` on, one for each node.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if `first` leaves no room for a token of each
    /// node. The operating system's error if the registry cannot be cloned.
    pub fn new(config: Config, registry: &Registry, first: Token) -> io::Result<Multiplexer> {
        let driver = Driver::new(config, registry, first)?;
        let (handled_at, waits_since) = (Moment::START, AtomicU64::new(0));
        Ok(Multiplexer {
            driver,
            owner: OwnerProcess::current(),
            burst: None,
            handled_at,
            waits_since,
        })
    }

    /// The current time of the safety clock (see [`Moment`]), to compare with
    /// [`Lease::valid_until`].
    pub fn now(&self) -> Moment {
        Clock.now()
    }

    /// The start of an acquisition. An earlier one than now only shortens the validity.
    fn start(&mut self) -> Moment {
        *self.burst.get_or_insert_with(|| Clock.now())
    }

    /// Starts one attempt to acquire a lock. [`poll_done`](Multiplexer::poll_done) later returns
    /// its result as [`Done::Acquired`].
    ///
    /// Acquisitions that are started before the next [`flush`](Multiplexer::flush) leave together,
    /// and all start at the time of the first one: their validity and their `wait` count from then.
    /// So the clock is read once for all of them. Before long work between two of them, call
    /// `flush`.
    ///
    /// # Errors
    /// `InvalidResource`, `InvalidTtl`, `Overloaded` or `Forked`. Nothing was started: correct the
    /// arguments, or wait until some operations have ended. All other errors come with
    /// [`Done::Acquired`].
    pub fn try_lock(
        &mut self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<OpId, LockError> {
        self.acquire(Resource::new(resource)?, ttl, Duration::ZERO, Fencing::Off)
    }

    /// Starts attempts to acquire a lock, which continue until `wait` has passed. The result is
    /// [`Done::Acquired`]. A wait of zero is the same as [`try_lock`](Multiplexer::try_lock).
    ///
    /// Acquisitions of this multiplexer that wait for the same resource get it in the order of
    /// their start, and only the first of them asks the nodes.
    ///
    /// # Errors
    /// The same as [`try_lock`](Multiplexer::try_lock).
    pub fn try_lock_for(
        &mut self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: impl Into<Wait>,
    ) -> Result<OpId, LockError> {
        self.acquire(Resource::new(resource)?, ttl, wait, Fencing::Off)
    }

    /// Starts attempts to acquire a lock of any kind: on [several resources](Resource::all), a
    /// [read lock](Resource::shared), a [write lock](Resource::exclusive), a
    /// [permit](Resource::slot), or a lock with an [owner value](Resource::with_value). They
    /// continue until `wait` has passed; a wait of zero is one attempt. The result is
    /// [`Done::Acquired`].
    ///
    /// # Errors
    /// The same as [`try_lock`](Multiplexer::try_lock).
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use muxlock::proto::OpId;
    /// use muxlock::{LockError, Multiplexer, Resource};
    ///
    /// fn start(mux: &mut Multiplexer) -> Result<[OpId; 2], LockError> {
    ///     let (ttl, wait) = (Duration::from_secs(10), Duration::from_secs(1));
    ///     let both = Resource::all(["account:7", "account:9"])?;
    ///     // Others recognise the lock by this value.
    ///     let own = Resource::with_value("invoice:42", "worker-7")?;
    ///     Ok([mux.try_lock_of(both, ttl, wait)?, mux.try_lock_of(own, ttl, wait)?])
    /// }
    /// ```
    pub fn try_lock_of(
        &mut self,
        resource: Resource,
        ttl: Duration,
        wait: impl Into<Wait>,
    ) -> Result<OpId, LockError> {
        self.acquire(resource, ttl, wait, Fencing::Off)
    }

    /// Same as [`try_lock`](Multiplexer::try_lock), with a fencing token: see
    /// [`FencedRedlock`](crate::FencedRedlock) and [`Lease::fencing_token`].
    ///
    /// # Errors
    /// The same as [`try_lock`](Multiplexer::try_lock).
    pub fn try_lock_fenced(
        &mut self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<OpId, LockError> {
        self.try_lock_fenced_for(resource, ttl, Duration::ZERO)
    }

    /// Same as [`try_lock_for`](Multiplexer::try_lock_for), with a fencing token.
    ///
    /// # Errors
    /// The same as [`try_lock_fenced`](Multiplexer::try_lock_fenced).
    pub fn try_lock_fenced_for(
        &mut self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: impl Into<Wait>,
    ) -> Result<OpId, LockError> {
        self.acquire(Resource::new(resource)?, ttl, wait, Fencing::On)
    }

    #[inline]
    fn acquire(
        &mut self,
        resource: Resource,
        ttl: Duration,
        wait: impl Into<Wait>,
        fencing: Fencing,
    ) -> Result<OpId, LockError> {
        self.check_owner_process()?;
        let wait = wait.into();
        let now = self.start();
        self.driver.engine_mut().acquire(now, resource, ttl, Patience::of_wait(now, wait), fencing)
    }

    /// Starts an extension to `ttl` from now. The result is [`Done::Extended`], at the latest at
    /// the old deadline. It returns the lease, even if the TTL is wrong or the lease has expired
    /// and nothing was sent.
    pub fn extend(&mut self, lease: Lease, ttl: Duration) -> OpId {
        self.own_mut().map_or(OpId::NONE, |engine| engine.extend(Clock.now(), lease, ttl))
    }

    /// Starts a release. The result is [`Done::Released`], when a quorum has confirmed it or no
    /// longer can. [`Released::was_held`](crate::Released::was_held) compares the validity with the
    /// time of this call.
    pub fn unlock(&mut self, lease: Lease) -> OpId {
        self.own_mut()
            .map_or(OpId::NONE, |engine| engine.release(Clock.now(), lease, ReleaseHow::ToTheEnd))
    }

    /// Starts to ask all nodes for the holder of the resource, without taking the lock. The result
    /// is [`Done::Inspected`], when each node has answered or failed; see
    /// [`Redlock::inspect`](crate::Redlock::inspect).
    ///
    /// # Errors
    /// `InvalidResource`, `Overloaded` or `Forked`. Nothing was started.
    pub fn inspect(&mut self, resource: impl AsRef<[u8]>) -> Result<OpId, LockError> {
        let resource = Resource::new(resource)?;
        self.check_owner_process()?;
        self.driver.engine_mut().inspect(Clock.now(), resource)
    }

    /// Renews a lock to its TTL, each time before a third of its validity has passed.
    ///
    /// Each renewal is reported as [`Done::Renewed`], with the end of the new validity. The last
    /// result is [`Done::Lost`], which returns the lease. If too few masters answer, or `how`
    /// allows no more renewals, it comes while some validity is left. Stop the work, then release
    /// the lease. The lock is lost at once if it has expired, or if its TTL exceeds
    /// [`max_ttl`](crate::Builder::max_ttl).
    ///
    /// [`cancel`](Multiplexer::cancel) stops it and returns the lease, to be released or extended.
    /// Until then, [`kept`](Multiplexer::kept) returns the lease. Call
    /// [`handle_events`](Multiplexer::handle_events) and [`poll_done`](Multiplexer::poll_done) at
    /// the time of [`next_timeout`](Multiplexer::next_timeout): only these calls renew the lock. If
    /// they come too late, it is lost ([`LossCause::Late`](crate::LossCause::Late)). The callback
    /// of [`KeepAlive::on_loss`] is not called.
    ///
    /// ```no_run
    /// use mio::{Events, Poll};
    /// use muxlock::proto::{Cancelled, Done, Lease};
    /// use muxlock::{KeepAlive, Multiplexer};
    ///
    /// /// Works until `step` returns `false`, or the lock is lost.
    /// fn work(
    ///     poll: &mut Poll,
    ///     mux: &mut Multiplexer,
    ///     lease: Lease,
    ///     step: fn() -> bool,
    /// ) -> std::io::Result<()> {
    ///     let kept = mux.keep_alive(lease, &KeepAlive::default());
    ///     let mut events = Events::with_capacity(64);
    ///     while step() {
    ///         while let Some((id, done)) = mux.poll_done() {
    ///             if let (true, Done::Lost(lease, loss)) = (id == kept, done) {
    ///                 eprintln!("stopped: {loss}");
    ///                 mux.abandon(lease);
    ///                 mux.flush();
    ///                 return Ok(());
    ///             }
    ///         }
    ///         poll.poll(&mut events, mux.next_timeout())?;
    ///         mux.handle_events(&events);
    ///         mux.flush(); // what is due is sent before the next step
    ///     }
    ///     if let Cancelled::Extension(lease) = mux.cancel(kept) {
    ///         mux.abandon(lease);
    ///         mux.flush();
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn keep_alive(&mut self, lease: Lease, how: &KeepAlive) -> OpId {
        self.own_mut().map_or(OpId::NONE, |engine| engine.keep(Clock.now(), lease, how))
    }

    /// The lease of a renewed lock, as of its last renewal; `None` in a forked process.
    pub fn kept(&self, id: OpId) -> Option<&Lease> {
        self.own()?.operations().kept(id)
    }

    /// How many clients are ahead in the queue for the lock that an acquisition waits for. `None`
    /// if it does not wait in a queue, or its position is not known yet; see
    /// [`Waiting`](crate::settings::Waiting). A holder that has waited in the queue counts as the
    /// first.
    ///
    /// Several acquisitions of this multiplexer that wait for the same resource share the position
    /// of the first one, and follow it in their order. The position is the last one that a master
    /// reported. A waiting client asks for it at least every few seconds, and it can change in both
    /// directions. If the acquisition fails,
    /// [`LockError::queue_position`](crate::LockError::queue_position) returns the last one.
    ///
    /// ```no_run
    /// use muxlock::Multiplexer;
    /// use muxlock::proto::OpId;
    ///
    /// fn show(mux: &Multiplexer, id: OpId) {
    ///     match mux.queue_position(id) {
    ///         Some(0) => println!("this one is the first"),
    ///         Some(before) => println!("{before} clients are before this one"),
    ///         None => println!("waiting"),
    ///     }
    /// }
    /// ```
    pub fn queue_position(&self, id: OpId) -> Option<u32> {
        self.own()?.queue_position(id)
    }

    #[cfg(feature = "unstable-tool")]
    pub(crate) fn engine(&self) -> &Engine {
        self.driver.engine()
    }

    /// Releases the lock without a result: [`poll_done`](Multiplexer::poll_done) returns nothing
    /// for it. The commands leave with the next [`flush`](Multiplexer::flush).
    pub fn abandon(&mut self, lease: Lease) {
        if let Some(engine) = self.own_mut() {
            engine.abandon(Clock.now(), lease);
        }
    }

    /// Stops using the lease here. Call this before you give the lease to another multiplexer, or
    /// drop it without a release.
    ///
    /// After this call, this multiplexer sends nothing for the lease. The lease records masters
    /// that have not answered, and masters in quarantine. In extensions, the next multiplexer
    /// ignores these masters for as long as they might have forgotten a lock. When it releases the
    /// lock, it might have to kill this multiplexer's connection to a master that has not answered.
    /// So call this after all masters have answered, if you can.
    ///
    /// Acquisitions that wait here for the resource can now ask the masters. Without this call,
    /// they wait until the lock expires. Call [`flush`](Multiplexer::flush) to send their commands,
    /// and those that leave the lock's queue to other clients; see
    /// [`Waiting`](crate::settings::Waiting).
    pub fn let_go(&mut self, lease: &mut Lease) {
        if self.owner.is_current() {
            self.driver.let_go(Clock.now(), lease);
        }
    }

    /// Starts to connect to every node that is neither connected nor backing off. A readiness probe
    /// calls it once and then checks [`nodes`](Multiplexer::nodes): a quorum must be
    /// [`Ready`](crate::node::NodeState::Ready).
    pub fn connect(&mut self) {
        if self.owner.is_current() {
            self.driver.engine_mut().connect(Clock.now());
            self.send();
        }
    }

    /// Sends the commands of the operations that were started. Operations started together leave in
    /// one write per node. After 2,048 commands, the rest is sent in the next turn.
    ///
    /// If you omit this call, [`next_timeout`](Multiplexer::next_timeout) is zero, and the next
    /// turn sends the commands.
    pub fn flush(&mut self) {
        if self.owner.is_current() {
            if self.driver.engine().has_actions() {
                // The operations may have been started long ago.
                self.driver.engine_mut().advance(Clock.now_coarse());
            }
            self.send();
            self.write_records();
        }
    }

    /// Ends the burst.
    fn send(&mut self) {
        self.burst = None;
        self.driver.flush();
    }

    /// Writes the log records. A logger that panics leaves no work half done.
    fn write_records(&mut self) {
        if let Some(records) = self.driver.records.take() {
            records.write();
        }
    }

    /// Handles a readiness event, and sends the resulting commands. Returns whether its token
    /// belongs to this multiplexer. For several events,
    /// [`handle_events`](Multiplexer::handle_events) is cheaper.
    pub fn handle_event(&mut self, event: &Event) -> bool {
        if !self.owner.is_current() {
            return false;
        }
        match self.waits_since.get_mut() {
            // Not the first event of this turn.
            0 => self.driver.after_wait(Clock.now_coarse()),
            _ => self.begin_turn(Clock.now_coarse()),
        }
        let ours = self.driver.handle_event(event);
        self.flush();
        ours
    }

    /// Handles all events of one poll and all that is due, like
    /// [`handle_event`](Multiplexer::handle_event) for each and then
    /// [`handle_timeout`](Multiplexer::handle_timeout). But it reads the clock once, and sends
    /// everything together. It ignores events with other tokens.
    ///
    /// If nothing was left to send or to take before, and now there are results, it sends nothing:
    /// your next [`flush`](Multiplexer::flush), or the next turn, which is due immediately, sends
    /// all in one write with what you start.
    pub fn handle_events<'a>(&mut self, events: impl IntoIterator<Item = &'a Event>) {
        if self.owner.is_current() {
            self.burst = None;
            let was_idle = !self.driver.engine().has_actions()
                && !self.driver.engine().operations().has_done();
            let now = Clock.now_coarse();
            self.begin_turn(now);
            for event in events {
                self.driver.handle_event(event);
            }
            self.driver.handle_timeout(now);
            // What the caller starts when it takes the first results leaves in the same write.
            if !was_idle || !self.driver.engine().operations().has_done() {
                self.driver.flush();
            }
            self.write_records();
        }
    }

    /// The caller has waited. If it had not looked at the sockets for long before that, answers to
    /// earlier commands may have been there when it began to wait.
    fn begin_turn(&mut self, now: Moment) {
        let waits_since = Moment::from_nanos(std::mem::take(self.waits_since.get_mut()));
        let handled_at = std::mem::replace(&mut self.handled_at, now);
        let was_away = waits_since.since(handled_at) > UNREAD_MAX;
        self.driver.after_absence(now, was_away.then_some(waits_since));
    }

    /// Handles due timers: timeouts, retries, reconnects. Call it after each wait, unless you use
    /// [`handle_events`](Multiplexer::handle_events). Commands are sent as there.
    pub fn handle_timeout(&mut self) {
        self.handle_events([]);
    }

    /// The longest time that your event loop may wait; `None` means without limit.
    pub fn next_timeout(&self) -> Option<Duration> {
        if !self.owner.is_current() {
            return None;
        }
        let now = Clock.now_coarse();
        let wait = match self.driver.engine().operations().has_done() {
            true => Duration::ZERO,
            false => self.driver.due()?.since(now),
        };
        self.waits_since.store(now.as_nanos(), Ordering::Relaxed);
        Some(wait)
    }

    /// Returns the next result; `None` if there is none.
    ///
    /// It reads the clock for each acquired lock, so a returned lock is valid at that moment; for
    /// many at once, see [`take_all_done`](Multiplexer::take_all_done). If the quorum came too
    /// late, it starts the release here; the next [`flush`](Multiplexer::flush) or turn, which is
    /// due immediately, sends it.
    #[inline]
    pub fn poll_done(&mut self) -> Option<(OpId, Done)> {
        // A lock that was granted before a fork is handed out once, to the parent (R24).
        match self.owner.is_current() {
            true => self.driver.poll_done(|| Clock.now()),
            false => None,
        }
    }

    /// Appends all results that [`poll_done`](Multiplexer::poll_done) would return. But it reads
    /// the clock once, at the beginning, so every returned lock is valid at that moment. Use it
    /// with many operations in flight, and reuse the `Vec`.
    ///
    /// ```no_run
    /// use muxlock::Multiplexer;
    /// use muxlock::proto::{Done, OpId};
    ///
    /// fn release_all(mux: &mut Multiplexer, results: &mut Vec<(OpId, Done)>) {
    ///     mux.take_all_done(results);
    ///     for (_, done) in results.drain(..) {
    ///         if let Done::Acquired(Ok(lease)) = done {
    ///             mux.unlock(lease);
    ///         }
    ///     }
    ///     mux.flush();
    /// }
    /// ```
    pub fn take_all_done(&mut self, to: &mut Vec<(OpId, Done)>) {
        if self.owner.is_current() {
            self.driver.take_all_done(|| Clock.now(), to);
        }
    }

    /// Cancels an operation immediately. [`poll_done`](Multiplexer::poll_done) no longer returns
    /// it, even if it had ended before.
    ///
    /// - An acquisition: the client releases everything that it acquired, or might still acquire,
    ///   on every node. It holds no lock afterwards.
    /// - An extension: its lease is returned, with the old deadline, or the new one if the
    ///   extension had already succeeded. Commands that were sent still run, so the keys can live
    ///   longer; a release deletes them anyway.
    /// - A renewed lock is no longer renewed; its lease is returned as for an extension.
    /// - A release: it continues, and its result is not reported.
    /// - An inspection ends.
    ///
    /// If the operation is not in flight in this multiplexer, nothing happens, and it returns
    /// [`Nothing`](Cancelled::Nothing). The same holds in a forked process.
    ///
    /// The resulting commands leave with the next [`flush`](Multiplexer::flush).
    pub fn cancel(&mut self, id: OpId) -> Cancelled {
        self.own_mut().map_or(Cancelled::Nothing, |engine| engine.cancel(Clock.now(), id))
    }

    /// The number of unanswered commands, including releases that wait for unreachable nodes.
    /// Before the process ends, run the loop until it is zero, or for as long as you like: keys
    /// that were not released expire.
    pub fn unanswered(&self) -> usize {
        self.own().map_or(0, Engine::unanswered)
    }

    /// The status of each node; empty in a forked process.
    pub fn nodes(&self) -> impl Iterator<Item = NodeStatus> + '_ {
        self.own().into_iter().flat_map(Engine::statuses)
    }

    /// The counters; all zero in a forked process.
    pub fn stats(&self) -> Stats {
        self.own().map(Engine::stats).unwrap_or_default()
    }

    /// How long acquisitions took, and locks were held; empty in a forked process.
    pub fn times(&self) -> Times {
        self.own().map(|engine| engine.times().clone()).unwrap_or_default()
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        self.driver.engine().config()
    }

    /// The engine, if this process may use it.
    fn own(&self) -> Option<&Engine> {
        self.owner.is_current().then(|| self.driver.engine())
    }

    fn own_mut(&mut self) -> Option<&mut Engine> {
        self.owner.is_current().then(|| self.driver.engine_mut())
    }

    fn check_owner_process(&self) -> Result<(), LockError> {
        if self.owner.is_current() { Ok(()) } else { Err(LockError::forked()) }
    }
}

impl Drop for Multiplexer {
    fn drop(&mut self) {
        self.driver.finish(self.owner.is_current());
    }
}

impl std::fmt::Debug for Multiplexer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Multiplexer").field("engine", self.driver.engine()).finish_non_exhaustive()
    }
}
