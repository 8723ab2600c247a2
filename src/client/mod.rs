//! The blocking handle, shared by threads.

mod connect;
mod error;
mod family;
mod fenced;
mod guard;
mod hand_over;
mod keep_alive;
mod leader_follower;
mod loop_work;
mod poller;
mod readiness;
mod reentrant;
mod signals;
mod swap;
mod sync;
#[cfg(all(test, repository))]
mod tests;
mod waiter;

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mio::{Token, Waker};

pub use connect::ConnectError;
pub use error::{Error, ErrorKind};
pub use family::Semaphore;
pub use fenced::{Fenced, FencedRedlock};
pub use guard::{LockGuard, LockParts};
pub use hand_over::HandOverError;
pub use keep_alive::{KeepAliveError, KeepAliveErrorKind, KeptLock, LossWatch};
pub use reentrant::{Reentrant, ReentrantGuard};
pub use waiter::Waiter;

use crate::config::{Builder, Config, ConfigError, Wait};
use crate::fencing::Fencing;
use crate::inspection::Inspection;
use crate::lock_error::LockError;
use crate::moment::Moment;
use crate::mux::Driver;
use crate::outcome::{NodeOutcome, NodeReport, Phase};
use crate::proto::{
    Done, Lease, NodeStatus, Patience, ReleaseHow, Released, Stats, rounds_at_once,
};
use crate::quorum::NODES_MAX;
use crate::resource::Resource;
use crate::sys::clock::{Clock, time_until};
use crate::sys::process::OwnerProcess;
use crate::times::Times;
use crate::token::LockToken;
use keep_alive::{Callbacks, Renewer};
use leader_follower::{LeaderFollower, Limit};
use loop_work::{LoopWork, Order, Outcome, Watch};
use poller::Poller;
use signals::{Cancel, Signals};

/// The waker's token: above the tokens of the nodes.
const WAKER: Token = Token(NODES_MAX);
/// A sleeping thread waits this much longer than its operation's limit. So the thread that runs the
/// event loop can end the operation first, with the masters' answers.
const SLACK: Duration = Duration::from_millis(10);

/// A client for distributed locks over several Redis masters.
///
/// Cloning is cheap: all clones and threads share one connection to each master. A client has no
/// thread of its own, except to renew locks ([`LockGuard::keep_alive`]), to repeat a release that
/// masters refused, to look up host names ([`Builder::resolver`]) and credentials
/// ([`Builder::credentials`]), and to watch Sentinels. A calling thread sends its own commands and,
/// while it waits, runs the event loop for all threads. So the client connects, notices a lost
/// connection and reconnects only during calls and renewals.
///
/// A logger may block or panic; that affects only the thread that logs. A thread calls the logger
/// only when it holds nothing that others wait for. At most 256 records are kept at a time; further
/// ones are counted, and the count is logged. A logger should not use this client, because the
/// client might then log again.
///
/// # How long a call takes
/// While another thread runs the event loop, a call sleeps. But it sleeps no longer than its own
/// limit, even if the operating system does not schedule that other thread for a long time. The
/// call returns at the latest:
///
/// - `try_lock`, [`swap`](Redlock::swap) and [`unlock`](LockGuard::unlock): after
///   [`connect_timeout`](crate::Builder::connect_timeout) +
///   [`node_timeout`](crate::Builder::node_timeout); twice that for a `swap` to a resource of the
///   released lock, and for [`release_as`](Redlock::release_as), which asks the masters first; nine
///   times that for [`Semaphore::try_acquire`], if other clients take the slots first;
/// - `try_lock_for` and [`swap_for`](Redlock::swap_for): after their `wait`;
/// - [`extend`](LockGuard::extend): when the old validity ends;
/// - [`connect`](crate::Builder::connect), [`ready`](Redlock::ready) and
///   [`shutdown`](Redlock::shutdown): after their timeouts.
///
/// Each may be up to about 10 ms late. If another thread does not end the operation by then, the
/// call fails with [`Unavailable`](crate::LockErrorKind::Unavailable) and lists no master; an
/// extension fails with [`Expired`](crate::LockErrorKind::Expired). The client releases everything
/// that the call has acquired, or might still acquire, as soon as a thread runs the event loop
/// again.
///
/// Three delays have no bound. The operating system might not schedule the calling thread, or the
/// logger might block it. The system might not schedule another thread while it holds the mutex
/// through which threads exchange their requests. And [`nodes`](Redlock::nodes),
/// [`stats`](Redlock::stats) and [`times`](Redlock::times) wait for a thread that runs the event
/// loop without a limit.
///
/// After `fork`, the client belongs to the parent: in the child every operation fails with
/// [`Forked`](crate::LockErrorKind::Forked), and dropping a guard does nothing. A server that forks
/// workers creates a client in each worker.
///
/// ```no_run
/// use muxlock::Redlock;
/// use std::time::Duration;
///
/// let redlock = Redlock::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let lock = redlock.try_lock("invoice:42", Duration::from_secs(10))?;
/// // ... finish the work well before `lock.remaining()` reaches zero ...
/// let released = lock.unlock()?;
/// assert!(released.was_held(), "another holder might have had the lock");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Redlock {
    shared: Arc<Shared>,
    /// Ends the acquisitions of this handle: see [`Waiter`].
    cancel: Option<Arc<Cancel>>,
}

struct Shared {
    threads: LeaderFollower<LoopWork>,
    signals: Arc<Signals>,
    config: Config,
    /// Checked first: in a forked process, a mutex held by another thread of the parent is never
    /// released.
    owner: OwnerProcess,
    /// The thread that reports losses of renewed locks.
    renewer: Arc<Renewer>,
    /// From [`Redlock::track_locks`] on: what releases each lock that a guard holds, by its token.
    /// A thread that holds the mutex does not block.
    held: OnceLock<Mutex<HashMap<LockToken, Lease>>>,
    /// How long a thread sleeps for one round, or for a release.
    round_limit: Duration,
    /// Whether a thread repeats refused releases.
    repeats: AtomicBool,
}

impl Redlock {
    /// Starts to configure a client.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects with default settings and waits until a quorum of the masters is connected; see
    /// [`Builder::connect`].
    ///
    /// # Errors
    /// The same as [`Builder::connect`].
    pub fn connect<I>(urls: I) -> Result<Redlock, ConnectError>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Redlock::builder().nodes(urls).connect()
    }

    pub(crate) fn with_config(config: Config) -> Result<Redlock, ConfigError> {
        let poller = Poller::new().map_err(ConfigError::Os)?;
        let waker = Waker::new(poller.registry(), WAKER).map_err(ConfigError::Os)?;
        let driver = Driver::new(config.clone(), poller.registry(), Token(0));
        let driver = driver.map_err(ConfigError::Os)?;
        let owner = OwnerProcess::current();
        let signals = Arc::new(Signals::new(waker));
        let callbacks = Arc::<Callbacks>::default();
        let work = LoopWork::new(driver, owner, Arc::clone(&signals), Arc::clone(&callbacks));
        let threads = LeaderFollower::new(work, poller, Arc::clone(&signals));
        let renewer = Arc::new(Renewer::new(callbacks));
        let round_limit = config.connect_timeout + config.node_timeout + SLACK;
        let held = OnceLock::new();
        let repeats = AtomicBool::new(false);
        let shared =
            Shared { threads, signals, config, owner, renewer, held, round_limit, repeats };
        Ok(Redlock { shared: Arc::new(shared), cancel: None })
    }

    /// Tries once to take a lock for `ttl`. The call returns as soon as a quorum has granted the
    /// lock, or can no longer grant it.
    ///
    /// On success, a quorum of the masters has the key. A master that loses no data keeps it until
    /// [`LockGuard::remaining`] is zero. That is the TTL, minus the duration of the round, minus
    /// the clock drift allowed for. Only a fencing token that the resource checks protects against
    /// a holder that continues after that moment.
    ///
    /// The TTL is rounded down to milliseconds. The shortest is 4 ms, the longest is
    /// [`max_ttl`](Builder::max_ttl). The call connects to masters that are not connected. It does
    /// not queue behind threads that wait in [`try_lock_for`](Redlock::try_lock_for).
    ///
    /// # Errors
    /// - [`Contended`](crate::LockErrorKind::Contended): another holder has the lock, perhaps in
    ///   this client; try again later.
    /// - [`Unavailable`](crate::LockErrorKind::Unavailable): too few masters gave a vote. They were
    ///   down, slow, refused or in quarantine; the error gives the reason for each. With
    ///   quarantine, [`ready_in`](LockError::ready_in) returns how long to wait.
    /// - [`Expired`](crate::LockErrorKind::Expired): the quorum took longer than the validity; use
    ///   a longer TTL.
    /// - [`InvalidTtl`](crate::LockErrorKind::InvalidTtl),
    ///   [`InvalidResource`](crate::LockErrorKind::InvalidResource): correct the argument.
    /// - [`ReservedResource`](crate::LockErrorKind::ReservedResource): the key belongs to the
    ///   counters for fencing tokens; use another name.
    /// - [`Overloaded`](crate::LockErrorKind::Overloaded): this client has 131,072 operations in
    ///   flight; wait until some have completed.
    /// - [`NoEntropy`](crate::LockErrorKind::NoEntropy): the operating system returned no random
    ///   bytes.
    /// - [`Closed`](crate::LockErrorKind::Closed): [`close`](Redlock::close) was called.
    /// - [`Forked`](crate::LockErrorKind::Forked): this process was forked from the one that
    ///   created the client; create a client in this process.
    ///
    /// After any error, the client itself deletes the keys that the attempt left on the masters.
    ///
    /// ```no_run
    /// # use muxlock::Redlock;
    /// use muxlock::LockErrorKind;
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = Redlock::connect(["redis://10.0.0.1"])?;
    /// match redlock.try_lock("invoice:42", Duration::from_secs(10)) {
    ///     Ok(lock) => println!("held for {:?}", lock.remaining()),
    ///     Err(error) => match error.kind() {
    ///         LockErrorKind::Contended => println!("another holder has it"),
    ///         LockErrorKind::Unavailable => println!("quorum in {:?}: {error}", error.ready_in()),
    ///         _ => return Err(error.into()),
    ///     },
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::new(resource)?, ttl, None)
    }

    /// Tries for at most `wait` to take a lock for `ttl`: a [`Duration`], or another
    /// [`Wait`](crate::settings::Wait). If another client holds the lock, this one
    /// waits in a queue on the masters, and a release notifies it; see
    /// [`Waiting`](crate::settings::Waiting). If no queue is available, it retries after random
    /// delays.
    ///
    /// `wait` is a hard limit. It includes connecting, all rounds and delays, and waiting for other
    /// threads of this client ([How long a call takes](Redlock#how-long-a-call-takes)). A wait
    /// shorter than a round trip cannot succeed; it fails with
    /// [`TimedOut`](crate::LockErrorKind::TimedOut). A wait of zero is no wait, and the same as
    /// [`try_lock`](Redlock::try_lock). The call also continues after rounds that fail
    /// with `Unavailable` or `Expired`. Locks are not reentrant: if the calling thread already
    /// holds the lock, the call waits until that lock expires or `wait` has passed. With
    /// [`Wait::for_holder`](crate::settings::Wait::for_holder), the call fails as soon as no quorum
    /// answers; with [`Wait::forever`](crate::settings::Wait::forever), it has no limit.
    ///
    /// Threads of one client that wait for the same resource get it in the order in which they
    /// called. Only the first of them asks the masters; while one of them holds the lock, none
    /// asks. Clients in the queue take turns, usually in the order of their arrival. But
    /// [`try_lock`](Redlock::try_lock), other Redlock clients and the first attempt of each call
    /// can come first, and a lost master can change the order.
    ///
    /// # Errors
    /// The same as [`try_lock`](Redlock::try_lock), with the node reports of the last round; and
    /// [`TimedOut`](crate::LockErrorKind::TimedOut) if the wait ended in the first round, before
    /// enough masters had answered: wait longer.
    pub fn try_lock_for(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: impl Into<Wait>,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::new(resource)?, ttl, Some(wait.into()))
    }

    /// Same as [`try_lock_for`](Redlock::try_lock_for), but waits until `deadline`. The time from
    /// now until then becomes the `wait`, zero if `deadline` has passed. So on Linux, time in
    /// suspend counts, although an [`Instant`] does not count it.
    ///
    /// # Errors
    /// The same as [`try_lock_for`](Redlock::try_lock_for).
    pub fn try_lock_until(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        deadline: Instant,
    ) -> Result<LockGuard, LockError> {
        self.try_lock_for(resource, ttl, time_until(deadline))
    }

    /// Takes a lock as [`try_lock_for`](Redlock::try_lock_for) does, renews it while `work` runs,
    /// and releases it, even if `work` panics.
    ///
    /// `work` should call [`KeptLock::check`] between its steps, and stop if that fails. The lock
    /// is renewed with the [default settings](crate::KeepAlive), for at most an hour; for others,
    /// use [`LockGuard::keep_alive`].
    ///
    /// `Ok` means that `work` succeeded, and that the lock was neither known to be lost when it
    /// ended nor found absent by a quorum when it was released.
    ///
    /// # Errors
    /// - The errors of `try_lock_for`, and of [`LockGuard::keep_alive`]: `work` was not called.
    /// - The error of `work`. It can be [`Error`], [`std::io::Error`], a box, or your own type that
    ///   is `From<muxlock::Error>`.
    /// - [`Error::Lost`], if the lock was lost before `work` ended, although `work` succeeded, or
    ///   if the release found no lock: another holder might have worked at the same time.
    ///
    /// ```no_run
    /// # use muxlock::Redlock;
    /// # use std::time::Duration;
    /// # fn step(_: u32) {}
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = Redlock::connect(["redis://10.0.0.1"])?;
    /// let (ttl, wait) = (Duration::from_secs(10), Duration::from_secs(5));
    /// redlock.with_lock("report:yearly", ttl, wait, |held| {
    ///     for i in 0..100 {
    ///         held.check()?;
    ///         step(i);
    ///     }
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_lock<T, E>(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: impl Into<Wait>,
        work: impl FnOnce(&KeptLock) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error>,
    {
        self.try_lock_for(resource, ttl, wait).map_err(Error::from)?.work(work)
    }

    /// Waits that another thread, or a signal handler, can end: see [`Waiter`].
    pub fn waiter(&self) -> Waiter {
        Waiter::new(Arc::clone(&self.shared))
    }

    /// Ends all waits for locks, of all clones and threads, with
    /// [`Closed`](crate::LockErrorKind::Closed). From then on, this client begins no acquisition. A
    /// lock that was granted, but not returned yet, is either released or returned. Locks that are
    /// held stay: they can be extended, renewed, handed over and released.
    ///
    /// Call it when a service shuts down, then finish the work that holds locks, then call
    /// [`shutdown`](Redlock::shutdown). It waits for nothing, closes no connection and can be
    /// called in a signal handler, like [`Waiter::cancel`]. In a forked process it does nothing.
    pub fn close(&self) {
        if self.shared.is_owner_process() {
            self.shared.signals.close();
        }
    }

    /// Whether [`close`](Redlock::close) was called.
    pub fn is_closed(&self) -> bool {
        self.shared.signals.is_closed()
    }

    /// Takes over a lock from [`LockGuard::into_parts`], of this client or another one. Both
    /// clients must list the same masters in the same order, with the same key prefix; this is not
    /// checked.
    ///
    /// This sends nothing and does not change the validity, because the parts contain their
    /// deadline. The parts may come from another process of this machine, as
    /// [text](LockParts#as-text). Adopt them only once.
    ///
    /// # Errors
    /// [`Expired`](crate::LockErrorKind::Expired) if that deadline has passed; the client then
    /// releases any keys that are left. [`Forked`](crate::LockErrorKind::Forked) if this client
    /// belongs to the parent process; create a new client.
    pub fn adopt(&self, parts: LockParts) -> Result<LockGuard, LockError> {
        self.shared.check_owner_process()?;
        let lease = parts.0.adopted(self.shared.config.nodes());
        let guard = LockGuard::new(Arc::clone(&self.shared), lease);
        if guard.is_valid() { Ok(guard) } else { Err(LockError::expired()) }
    }

    /// Asks every master for the holder of the resource, without taking the lock: for operators and
    /// monitoring. It waits until each has answered or failed, at most
    /// [`connect_timeout`](crate::Builder::connect_timeout) +
    /// [`node_timeout`](crate::Builder::node_timeout), even if most have already answered.
    ///
    /// The answer can be outdated when you read it. Do not rely on it: take the lock. It shows a
    /// [fingerprint](crate::LockToken::fingerprint) of the key's value, never the value, which is
    /// the holder's token or an [owner value](Redlock::try_lock_as). For a permit, pass the slot's
    /// name, which is the guard's [`resource`](LockGuard::resource). For a resource with readers,
    /// it reports that the key has another type and names no holder. Masters in quarantine also
    /// answer. Each master reads the key's whole value, so avoid keys of other programs with large
    /// values.
    ///
    /// ```no_run
    /// # let redlock = muxlock::Redlock::connect(["redis://10.0.0.1"])?;
    /// let inspection = redlock.inspect("invoice:42")?;
    /// println!("{inspection}");
    /// if let Some(holder) = inspection.holder() {
    ///     println!("{holder} has it for at most {:?} more", inspection.free_in());
    /// }
    /// # Ok::<(), muxlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidResource`](crate::LockErrorKind::InvalidResource),
    /// [`Overloaded`](crate::LockErrorKind::Overloaded), [`Forked`](crate::LockErrorKind::Forked);
    /// and [`Unavailable`](crate::LockErrorKind::Unavailable) if another thread of this client was
    /// delayed. Missing answers are no error: the inspection lists them.
    pub fn inspect(&self, resource: impl AsRef<[u8]>) -> Result<Inspection, LockError> {
        self.look_at(Resource::new(resource)?)
    }

    fn look_at(&self, resource: Resource) -> Result<Inspection, LockError> {
        self.shared.check_owner_process()?;
        match self.shared.threads.run(Order::Inspect(resource), self.shared.round_limit()) {
            Some(Outcome::Done(Done::Inspected(inspection))) => Ok(inspection),
            Some(Outcome::Refused(error)) => Err(error),
            None => Err(LockError::unserved()),
            _ => unreachable!("an inspection was ordered"),
        }
    }

    /// Connects to the masters that are not connected, and returns as soon as a quorum of them can
    /// vote, after at most `timeout`. It asks for no lock. It does not wait for a master that is
    /// slow or frozen while others are a quorum.
    ///
    /// Call it in a readiness probe: a client connects only during calls, and
    /// [`nodes`](Redlock::nodes) does not connect. A connected client answers without a round trip:
    /// a frozen master counts until it owes an answer for longer than
    /// [`node_timeout`](Builder::node_timeout). So each call also asks the connected masters for
    /// their time, and the next call sees which of them answered. With
    /// [`RestartGuard::Off`](crate::settings::RestartGuard::Off), it asks every 10 s at most.
    ///
    /// A good timeout for a probe is [`connect_timeout`](Builder::connect_timeout) plus one round
    /// trip. While masters refuse the connection, the client tries again until the timeout, so
    /// a program that starts together with its masters can call it with a long timeout.
    ///
    /// ```no_run
    /// # use muxlock::Redlock;
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = Redlock::builder().node("redis://10.0.0.1").build()?;
    /// let (status, text) = match redlock.ready(Duration::from_millis(600)) {
    ///     Ok(()) => (200, String::new()),
    ///     Err(error) => (503, error.to_string()),
    /// };
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Each error lists the reason for each master that gives no vote.
    ///
    /// - [`Unavailable`](crate::LockErrorKind::Unavailable): too few masters can vote. If they are
    ///   in quarantine for longer than `timeout`, the call returns at once, and
    ///   [`ready_in`](LockError::ready_in) returns how long to wait.
    /// - [`TimedOut`](crate::LockErrorKind::TimedOut): the timeout ended while enough masters for a
    ///   quorum were still connecting; use a longer timeout.
    /// - [`Closed`](crate::LockErrorKind::Closed): [`close`](Redlock::close) was called.
    /// - [`Forked`](crate::LockErrorKind::Forked): create a client in this process.
    pub fn ready(&self, timeout: Duration) -> Result<(), LockError> {
        self.shared.check_owner_process()?;
        match self.watch(timeout, Watch::Ready) {
            Some(Outcome::Ready(result)) => result,
            None => Err(LockError::unserved()),
            _ => unreachable!("a quorum was asked for"),
        }
    }

    /// The status of each master, in the order of configuration. The client first handles the
    /// replies that have already arrived, and waits for no others. It may wait without a limit for
    /// a thread that runs the event loop.
    ///
    /// It connects to no master: before the first lock each one is
    /// [`Idle`](crate::node::NodeState::Idle). For a readiness probe, use
    /// [`ready`](Redlock::ready).
    ///
    /// Empty in a process that was forked from the one that created this client.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.look(Order::Watch(Watch::Nodes), |outcome| match outcome {
            Outcome::Nodes(nodes) => nodes,
            _ => unreachable!("the nodes were asked for"),
        })
    }

    /// Counters since this client was created; all zero in a process that was forked. It may wait
    /// without a limit for a thread that runs the event loop.
    pub fn stats(&self) -> Stats {
        self.look(Order::Stats, |outcome| match outcome {
            Outcome::Stats(stats) => stats,
            _ => unreachable!("the counters were asked for"),
        })
    }

    /// How long acquisitions took and locks were held since this client was created; empty in a
    /// process that was forked. It may wait without a limit for a thread that runs the event loop.
    pub fn times(&self) -> Times {
        self.look(Order::Times, |outcome| match outcome {
            Outcome::Times(times) => *times,
            _ => unreachable!("the times were asked for"),
        })
    }

    /// The number of masters in a quorum: more than half of the list.
    pub fn quorum(&self) -> usize {
        self.shared.config.quorum()
    }

    /// Waits, for at most `timeout`, until the masters have answered every command that was sent.
    /// Call it before a process ends, so that the releases of dropped guards are not lost: dropping
    /// the last clone of a client waits for nothing. Releases that wait for an unreachable master
    /// count as unanswered until their keys have expired.
    ///
    /// Returns the number of commands that are still unanswered. Masters that are down or frozen
    /// leave some; keys that were not released expire. If the thread that ran the event loop was
    /// delayed, the number is unknown, and the call returns 1.
    ///
    /// It closes no connection, and the client can be used afterwards.
    pub fn shutdown(&self, timeout: Duration) -> usize {
        if !self.shared.is_owner_process() {
            return 0;
        }
        match self.watch(timeout, Watch::Quiet) {
            Some(Outcome::Quiet(unanswered)) => unanswered,
            None => 1,
            _ => unreachable!("the commands were asked for"),
        }
    }

    /// Lists the locks that the guards of this client hold, from now on, for
    /// [`release_all`](Redlock::release_all). Call it before the first lock. Each lock is then
    /// entered under a mutex when it is taken, and removed when it is released.
    pub fn track_locks(&self) {
        self.shared.held.get_or_init(Mutex::default);
    }

    /// Releases every lock that guards of this client hold, and then does what
    /// [`shutdown`](Redlock::shutdown) does: for programs that end without dropping their guards,
    /// as with [`std::process::exit`]. It knows the locks that were taken after
    /// [`track_locks`](Redlock::track_locks); all others stay until they expire.
    ///
    /// From then on, this client is [closed](Redlock::close), and no guard says that its lock is
    /// held, whether the lock was listed or not: [`is_valid`](LockGuard::is_valid) is `false`,
    /// [`extend`](LockGuard::extend) fails with [`Expired`](crate::LockErrorKind::Expired), and
    /// renewed locks are lost with [`Gone`](crate::LossCause::Gone). Dropping or unlocking a guard
    /// is harmless; its [`was_held`](Released::was_held) is `false`. An acquisition that another
    /// thread has under way fails, or returns a guard that is not valid. Locks that were handed
    /// over belong to another client and stay.
    ///
    /// Other threads do not stop: **a thread in the middle of its work loses its lock there**. So
    /// stop the work first, or end the process right after this call. The call takes mutexes and
    /// waits: do not call it in a signal handler, but from a thread that the handler wakes. In a
    /// forked process it does nothing and returns 0.
    ///
    /// Returns the number of unanswered commands, as `shutdown` does.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn wait_for_sigterm() {}
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = muxlock::Redlock::connect(["redis://10.0.0.1"])?;
    /// redlock.track_locks();
    /// let ending = redlock.clone();
    /// std::thread::spawn(move || {
    ///     wait_for_sigterm();
    ///     ending.release_all(Duration::from_secs(1));
    ///     std::process::exit(143);
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn release_all(&self, timeout: Duration) -> usize {
        let is_owner = self.shared.is_owner_process();
        self.shared.signals.is_released.fetch_or(is_owner, Ordering::Release);
        self.close();
        for lease in self.shared.held(mem::take).into_iter().flat_map(HashMap::into_values) {
            self.shared.threads.submit(Order::Abandon(lease));
        }
        self.shutdown(timeout)
    }

    /// The outcome of an order, without a limit; the default in a forked process.
    fn look<T: Default>(&self, order: Order, read: impl FnOnce(Outcome) -> T) -> T {
        if !self.shared.is_owner_process() {
            return T::default();
        }
        read(self.shared.threads.run(order, Limit::None).expect("it has no limit"))
    }

    /// Waits for at most `timeout`; `None` if no thread has run the event loop until then.
    fn watch(&self, timeout: Duration, watch: fn(Moment) -> Watch) -> Option<Outcome> {
        let until = Clock.now().after(timeout);
        self.shared.threads.run(Order::Watch(watch(until)), Limit::At(until.after(SLACK)))
    }

    pub(crate) fn wait_until_connected(&self) -> Result<(), ConnectError> {
        match self.watch(self.shared.config.connect_timeout, Watch::Connected) {
            Some(Outcome::Connected(result)) => result,
            None => Err(ConnectError::Unavailable(LockError::unserved())),
            _ => unreachable!("a quorum was asked for"),
        }
    }

    /// Acquires a lock of any form, without a fencing token.
    fn acquire(
        &self,
        resource: Resource,
        ttl: Duration,
        wait: Option<Wait>,
    ) -> Result<LockGuard, LockError> {
        self.acquire_with(resource, ttl, wait, Fencing::Off)
    }

    fn acquire_with(
        &self,
        resource: Resource,
        ttl: Duration,
        wait: Option<Wait>,
        fencing: Fencing,
    ) -> Result<LockGuard, LockError> {
        let (patience, limit) = self.patience(&resource, wait)?;
        let cancel = self.cancel.clone();
        let order = Order::Acquire { resource, ttl, patience, fencing, cancel };
        self.acquired(self.shared.threads.run(order, limit))
    }

    /// How long an acquisition with this wait keeps trying, and how long its thread waits for it.
    #[inline(always)]
    fn patience(
        &self,
        resource: &Resource,
        wait: Option<Wait>,
    ) -> Result<(Patience, Limit<Moment>), LockError> {
        // Checked before anything else: a forked process must not even read the clock, whose mutex
        // another thread of the parent may have held.
        if !self.shared.is_owner_process() {
            return Err(LockError::forked());
        }
        let patience = match wait {
            None => Patience::OneRound,
            Some(wait) => Patience::of_wait(Clock.now(), wait),
        };
        let limit = match patience.until() {
            None => Limit::After(self.shared.round_limit * rounds_at_once(resource.row())),
            Some(until) => Limit::At(until.after(SLACK)),
        };
        Ok((patience, limit))
    }

    fn acquired(&self, outcome: Option<Outcome>) -> Result<LockGuard, LockError> {
        match outcome {
            Some(Outcome::Done(Done::Acquired(result))) if self.shared.held.get().is_some() => {
                self.listed(result?)
            }
            Some(Outcome::Done(Done::Acquired(result))) => {
                Ok(LockGuard::unlisted(Arc::clone(&self.shared), result?))
            }
            Some(Outcome::ExpiredBeforeWake(lease)) => {
                self.shared.abandon(lease);
                Err(LockError::expired())
            }
            None => Err(LockError::unserved()),
            _ => unreachable!("an acquisition was ordered"),
        }
    }

    #[cold]
    fn listed(&self, lease: Lease) -> Result<LockGuard, LockError> {
        let guard = LockGuard::new(Arc::clone(&self.shared), lease);
        // If it came too late to be listed, this guard, which is dropped, releases it.
        self.shared.none_held().map_or(Ok(guard), Err)
    }
}

/// What guards need of their client.
impl Shared {
    /// Whether this process may touch the connections (R24).
    pub(crate) fn is_owner_process(&self) -> bool {
        self.owner.is_current()
    }

    fn check_owner_process(&self) -> Result<(), LockError> {
        if self.is_owner_process() { Ok(()) } else { Err(LockError::forked()) }
    }

    /// Changes the list of locks, if there is one.
    #[inline]
    fn held<T>(&self, change: impl FnOnce(&mut HashMap<LockToken, Lease>) -> T) -> Option<T> {
        self.held.get().and_then(|held| self.change(held, change))
    }

    /// In a forked process there is no list, because no thread of it may ever unlock the mutex.
    #[cold]
    fn change<T, L>(&self, held: &Mutex<L>, change: impl FnOnce(&mut L) -> T) -> Option<T> {
        let held = self.is_owner_process().then(|| held.lock())?;
        Some(change(&mut held.unwrap_or_else(PoisonError::into_inner)))
    }

    /// Why no guard of this client holds a lock, if none does.
    #[inline]
    fn none_held(&self) -> Option<LockError> {
        let forked = (!self.is_owner_process()).then(LockError::forked);
        forked.or_else(|| self.signals.is_released.load(Ordering::Acquire).then(LockError::expired))
    }

    /// The limit for operations that take one round.
    #[inline]
    fn round_limit(&self) -> Limit<Moment> {
        Limit::After(self.round_limit)
    }

    /// Returns no lease if the call slept past the deadline: the lock was then given up.
    pub(crate) fn extend(
        &self,
        lease: Lease,
        ttl: Duration,
    ) -> (Option<Lease>, Result<(), LockError>) {
        if let Some(error) = self.none_held() {
            return (Some(lease), Err(error));
        }
        let limit = Limit::At(lease.valid_until().after(SLACK));
        match self.threads.run(Order::Extend(lease, ttl), limit) {
            Some(Outcome::Done(Done::Extended(lease, result))) => {
                (Some(lease), self.none_held().map_or(result, Err))
            }
            None => (None, Err(LockError::expired())),
            _ => unreachable!("an extension was ordered"),
        }
    }

    /// The limit of a thread that starts to wait now for a round or a release.
    fn round_ends(&self) -> Moment {
        Clock.now().after(self.round_limit)
    }

    #[inline]
    fn release(self: &Arc<Self>, lease: Lease) -> Result<Released, LockError> {
        if !self.is_owner_process() {
            return Err(LockError::forked());
        }
        self.release_owned(lease, self.round_limit())
    }

    /// Call this only in the process that created the client.
    #[inline]
    fn release_owned(
        self: &Arc<Self>,
        lease: Lease,
        limit: Limit<Moment>,
    ) -> Result<Released, LockError> {
        let ttl = lease.ttl();
        match self.threads.run(Order::Release(lease, ReleaseHow::ToTheEnd), limit) {
            Some(Outcome::Done(Done::Released(Ok(released)))) => Ok(released),
            Some(Outcome::Done(Done::Released(Err(error)))) => {
                self.repeat_release(&error, ttl);
                Err(error)
            }
            None => Err(LockError::unserved()),
            _ => unreachable!("a release was ordered"),
        }
    }

    /// Runs the event loop until refused releases have been repeated with success, for as long as
    /// their keys can live: nobody else might use the client in that time.
    #[cold]
    fn repeat_release(self: &Arc<Self>, error: &LockError, ttl: Duration) {
        // What timed out may still be refused: a busy server is silent first.
        let is_refusal = |node: &NodeReport| {
            matches!(node.outcome, NodeOutcome::Server(_) | NodeOutcome::TimedOut(Phase::Reply))
        };
        if !error.nodes().iter().any(is_refusal) || self.repeats.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::clone(self);
        let until = Clock.now().after(ttl);
        let run = move || {
            shared.threads.run(Order::Watch(Watch::Quiet(until)), Limit::At(until.after(SLACK)));
            shared.repeats.store(false, Ordering::Release);
        };
        let thread = thread::Builder::new().name("muxlock-release".into());
        if thread.spawn(run).is_err() {
            self.repeats.store(false, Ordering::Release);
        }
    }

    /// Call this only in the process that created the client. Returns an expired lease if the call
    /// slept past the deadline: the lock was then given up.
    pub(crate) fn let_go(&self, lease: Lease) -> Lease {
        let (over, limit) = (lease.over(), Limit::At(lease.valid_until().after(SLACK)));
        match self.threads.run(Order::LetGo(lease), limit) {
            Some(Outcome::LetGo(lease)) => lease,
            None => over,
            _ => unreachable!("a lease was let go"),
        }
    }

    pub(crate) fn abandon(&self, lease: Lease) {
        if self.is_owner_process() {
            self.held(|held| held.remove(lease.token()));
            self.threads.submit(Order::Abandon(lease));
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redlock").field("nodes", &self.config.nodes()).finish_non_exhaustive()
    }
}
