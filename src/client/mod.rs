//! The blocking handle, shared by threads.

mod connect;
mod crew;
mod errands;
mod guard;
mod hand_over;
mod keep_alive;
mod loop_work;
mod poller;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Token, Waker};

pub use connect::ConnectError;
pub use guard::{LockGuard, LockParts};
pub use hand_over::HandOverError;
pub use keep_alive::{KeepAlive, KeepAliveError, KeepAliveErrorKind, KeptLock, Loss, LossCause};

use crate::config::{Builder, Config, ConfigError};
use crate::error::LockError;
use crate::moment::Moment;
use crate::mux::Driver;
use crate::proto::{Done, Lease, NodeStatus, Patience, Released, Stats};
use crate::quorum::NODES_MAX;
use crate::resource::Resource;
use crate::sys::clock::{Clock, time_until};
use crate::sys::process::Home;
use crew::{Crew, Limit};
use keep_alive::Keeper;
use loop_work::{LoopWork, Order, Outcome, Watch};
use poller::Poller;

/// The waker's token: above the tokens of the nodes.
const WAKER: Token = Token(NODES_MAX);
/// A sleeping thread gives up this much later than its operation should end. So the thread that
/// runs the event loop acts first, and knows what the masters answered.
const SLACK: Duration = Duration::from_millis(10);

/// A client for distributed locks over several Redis masters.
///
/// It is a handle: cloning it is cheap, and all clones and threads share one connection to each
/// master. It has no thread of its own, except to keep locks alive ([`LockGuard::keep_alive`]) and
/// to look up host names ([`Builder::resolver`]). A calling thread sends its own commands and,
/// while it waits, runs the event loop for all threads. So connections are made, lost and made
/// again only during calls.
///
/// A logger may block or panic; that affects only the thread that logs. A thread writes records
/// when it holds nothing that others wait for. At most 256 records are kept at a time; further ones
/// are counted, and the count is logged. A logger should not call the client that it logs for,
/// because that client may log again.
///
/// # How long a call takes
/// While another thread runs the event loop, a call sleeps. But it sleeps no longer than its own
/// limit, even if that other thread gets no processor for a long time. `try_lock` and
/// [`unlock`](LockGuard::unlock) return after [`connect_timeout`](crate::Builder::connect_timeout)
/// and [`node_timeout`](crate::Builder::node_timeout) together. `try_lock_for` returns after its
/// wait. [`extend`](LockGuard::extend) returns when the old validity ends.
/// [`connect`](crate::Builder::connect) and [`shutdown`](Redlock::shutdown) return after their
/// timeouts. Each may be some 10 ms late, not more. Such a call fails with
/// [`Unavailable`](crate::LockErrorKind::Unavailable) and lists no master; an extension fails with
/// [`Expired`](crate::LockErrorKind::Expired). Whatever the call has taken, or may yet take, is
/// given up as soon as a thread runs the event loop again. [`nodes`](Redlock::nodes) and
/// [`stats`](Redlock::stats) wait for the other thread without a limit.
///
/// Two delays have no bound. The calling thread itself may get no processor, or be blocked by the
/// logger. And another thread may get none while it holds the mutex through which threads exchange
/// their requests.
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
/// // ... work that ends well before `lock.remaining()` is ...
/// lock.unlock()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Redlock {
    shared: Arc<Shared>,
}

struct Shared {
    crew: Crew<LoopWork>,
    config: Config,
    /// Checked first: in a forked process, a mutex held by another thread of the parent is never
    /// released.
    home: Home,
    /// Renews the locks that are kept alive.
    keeper: Arc<Keeper>,
    /// How long a thread sleeps for one round, or for a release.
    round_limit: Duration,
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
        let driver = Driver::new(config, poller.registry(), Token(0)).map_err(ConfigError::Os)?;
        let home = Home::here();
        let crew = Crew::new(LoopWork::new(driver, home), poller, waker);
        let keeper = Arc::new(Keeper::new());
        let round_limit = settings.connect_timeout + settings.node_timeout + SLACK;
        let shared = Shared { crew, config: settings, home, keeper, round_limit };
        Ok(Redlock { shared: Arc::new(shared) })
    }

    /// Tries once to take a lock that lives for `ttl`: one round, decided as soon as a quorum has
    /// granted it or no longer can.
    ///
    /// A quorum of the masters holds the lock until [`LockGuard::remaining`] is zero. That is the
    /// TTL, minus the duration of the round, minus the clock drift allowed for. Only a fencing
    /// token that the resource checks protects against a holder that continues after that moment.
    ///
    /// # Errors
    /// - [`Contended`](crate::LockErrorKind::Contended): another client holds it; try again later.
    /// - [`Unavailable`](crate::LockErrorKind::Unavailable): too few masters answered. The error
    ///   gives the reason for each; check the masters.
    /// - [`Expired`](crate::LockErrorKind::Expired): the quorum took longer than the validity; use
    ///   a longer TTL.
    /// - [`InvalidTtl`](crate::LockErrorKind::InvalidTtl),
    ///   [`InvalidResource`](crate::LockErrorKind::InvalidResource): correct the argument.
    /// - [`Overloaded`](crate::LockErrorKind::Overloaded): this client has too many operations in
    ///   flight; wait until some have ended.
    /// - [`NoEntropy`](crate::LockErrorKind::NoEntropy): the operating system returned no random
    ///   bytes.
    /// - [`Forked`](crate::LockErrorKind::Forked): this process was forked from the one that made
    ///   the client; make a new client in this process.
    ///
    /// After any error, the client already deletes whatever the attempt left on the masters.
    pub fn try_lock(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(resource.as_ref(), ttl, None)
    }

    /// Tries to take a lock for at most `wait`, in as many rounds as fit, with random delays
    /// between them.
    ///
    /// The limit is hard: it covers connecting, every round and delay, and the work of other
    /// threads of this client ([How long a call takes](Redlock#how-long-a-call-takes)). A wait
    /// shorter than a round trip cannot succeed.
    ///
    /// Threads that wait for the same resource on one client get it in the order of their arrival.
    /// Only the first of them asks the masters; while one of them holds the lock, none asks.
    /// Between clients there is no order: a client whose threads always want the lock may keep it
    /// to itself.
    ///
    /// # Errors
    /// As [`try_lock`](Redlock::try_lock), with the node reports of the last round.
    pub fn try_lock_for(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(resource.as_ref(), ttl, Some(wait))
    }

    /// As [`try_lock_for`](Redlock::try_lock_for), until an instant.
    ///
    /// # Errors
    /// As [`try_lock`](Redlock::try_lock), with the node reports of the last round.
    pub fn try_lock_until(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        deadline: Instant,
    ) -> Result<LockGuard, LockError> {
        self.try_lock_for(resource, ttl, time_until(deadline))
    }

    /// Adopts a lock that [`LockGuard::into_parts`] let go of, from this client or from another one
    /// with the same masters and the same key prefix.
    ///
    /// Nothing is sent, and the validity is unchanged: the parts contain their deadline. They may
    /// come from another process of this machine, as [text](LockParts#as-text).
    ///
    /// # Errors
    /// [`Expired`](crate::LockErrorKind::Expired) if that deadline has passed; the release of
    /// whatever may be left is then on its way. [`Forked`](crate::LockErrorKind::Forked) if this
    /// client belongs to the parent process; make a new client.
    pub fn adopt(&self, parts: LockParts) -> Result<LockGuard, LockError> {
        if !self.is_home() {
            return Err(LockError::forked());
        }
        let guard = LockGuard::new(self.clone(), parts.into_lease(self.shared.config.nodes()));
        if guard.is_valid() { Ok(guard) } else { Err(LockError::expired()) }
    }

    /// The status of each master, in the order of configuration. The client first handles the
    /// replies that have arrived by now; it waits for none.
    ///
    /// Empty in a process that was forked from the one that made this client.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        if !self.is_home() {
            return Vec::new();
        }
        match self.shared.crew.run(Order::Watch(Watch::Nodes), Limit::None) {
            Some(Outcome::Nodes(nodes)) => nodes,
            _ => unreachable!("the nodes were asked for"),
        }
    }

    /// Counters since this client was made; all zero in a process that was forked.
    pub fn stats(&self) -> Stats {
        if !self.is_home() {
            return Stats::default();
        }
        match self.shared.crew.run(Order::Stats, Limit::None) {
            Some(Outcome::Stats(stats)) => stats,
            _ => unreachable!("the counters were asked for"),
        }
    }

    /// How many masters make a quorum.
    pub fn quorum(&self) -> usize {
        self.shared.config.quorum()
    }

    /// Waits until every command is answered, for at most `timeout`. Call it before a process ends,
    /// so that the releases of dropped guards are not lost. Releases owed to masters that cannot be
    /// reached count until their keys have expired.
    ///
    /// Returns the number of unanswered commands; masters that are down or frozen leave some.
    /// Returns 1 if another thread that ran the event loop was delayed, so that the number is
    /// unknown.
    pub fn shutdown(&self, timeout: Duration) -> usize {
        if !self.is_home() {
            return 0;
        }
        let until = Clock.now().after(timeout);
        let limit = Limit::At(until.after(SLACK));
        match self.shared.crew.run(Order::Watch(Watch::Quiet(until)), limit) {
            Some(Outcome::Quiet(unanswered)) => unanswered,
            None => 1,
            _ => unreachable!("the commands were asked for"),
        }
    }

    /// Whether this process may touch the connections (R24).
    pub(crate) fn is_home(&self) -> bool {
        self.shared.home.is_here()
    }

    pub(crate) fn wait_until_ready(&self) -> Result<(), ConnectError> {
        let until = Clock.now().after(self.shared.config.connect_timeout);
        let limit = Limit::At(until.after(SLACK));
        match self.shared.crew.run(Order::Watch(Watch::Ready(until)), limit) {
            Some(Outcome::Ready(result)) => result,
            None => Err(ConnectError::Unavailable(LockError::unserved())),
            _ => unreachable!("a quorum was asked for"),
        }
    }

    fn acquire(
        &self,
        resource: &[u8],
        ttl: Duration,
        wait: Option<Duration>,
    ) -> Result<LockGuard, LockError> {
        let resource = Resource::new(resource)?;
        // Checked before anything else: a forked process must not even read the clock, whose mutex
        // another thread of the parent may have held.
        if !self.is_home() {
            return Err(LockError::forked());
        }
        let (patience, limit) = match wait {
            None => (Patience::OneRound, self.round_limit()),
            Some(wait) => {
                let until = Clock.now().after(wait);
                (Patience::Until(until), Limit::At(until.after(SLACK)))
            }
        };
        let order = Order::Acquire { resource, ttl, patience };
        self.acquired(self.shared.crew.run(order, limit))
    }

    fn acquired(&self, outcome: Option<Outcome>) -> Result<LockGuard, LockError> {
        match outcome {
            Some(Outcome::Done(Done::Acquired(result))) => {
                Ok(LockGuard::new(self.clone(), result?))
            }
            Some(Outcome::ExpiredBeforeWake(lease)) => {
                self.abandon(lease);
                Err(LockError::expired())
            }
            None => Err(LockError::unserved()),
            _ => unreachable!("an acquisition was ordered"),
        }
    }

    /// The limit for operations that end by themselves after one round.
    #[inline]
    fn round_limit(&self) -> Limit<Moment> {
        Limit::After(self.shared.round_limit)
    }

    pub(crate) fn check_ensured(&self, ttl: Duration, min: Duration) -> Result<(), LockError> {
        self.shared.config.ensured(ttl, min)
    }

    /// Returns no lease if it slept past the deadline: the lock was then given up.
    pub(crate) fn extend(
        &self,
        lease: Lease,
        ttl: Duration,
    ) -> (Option<Lease>, Result<(), LockError>) {
        if !self.is_home() {
            return (Some(lease), Err(LockError::forked()));
        }
        let limit = Limit::At(lease.valid_until().after(SLACK));
        match self.shared.crew.run(Order::Extend(lease, ttl), limit) {
            Some(Outcome::Done(Done::Extended(lease, result))) => (Some(lease), result),
            None => (None, Err(LockError::expired())),
            _ => unreachable!("an extension was ordered"),
        }
    }

    pub(crate) fn release(&self, lease: Lease) -> Result<Released, LockError> {
        if !self.is_home() {
            return Err(LockError::forked());
        }
        self.release_at_home(lease, self.round_limit())
    }

    /// Only in the process that made it.
    fn release_until(&self, lease: Lease, until: Moment) -> Result<Released, LockError> {
        self.release_at_home(lease, Limit::At(until))
    }

    /// The limit of a thread that starts to wait now for a round or a release.
    fn round_ends(&self) -> Moment {
        Clock.now().after(self.shared.round_limit)
    }

    #[inline]
    fn release_at_home(&self, lease: Lease, limit: Limit<Moment>) -> Result<Released, LockError> {
        match self.shared.crew.run(Order::Release(lease), limit) {
            Some(Outcome::Done(Done::Released(result))) => result,
            None => Err(LockError::unserved()),
            _ => unreachable!("a release was ordered"),
        }
    }

    /// Only in the process that made it. Returns an expired lease if it slept past the deadline:
    /// the lock was then given up.
    pub(crate) fn let_go(&self, lease: Lease) -> Lease {
        let (over, limit) = (lease.over(), Limit::At(lease.valid_until().after(SLACK)));
        match self.shared.crew.run(Order::LetGo(lease), limit) {
            Some(Outcome::LetGo(lease)) => lease,
            None => over,
            _ => unreachable!("a lease was let go"),
        }
    }

    pub(crate) fn abandon(&self, lease: Lease) {
        if self.is_home() {
            self.shared.crew.leave(Order::Abandon(lease));
        }
    }
}

impl std::fmt::Debug for Redlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes = self.shared.config.nodes();
        f.debug_struct("Redlock").field("nodes", &nodes).finish_non_exhaustive()
    }
}
