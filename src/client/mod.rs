//! The blocking handle, shared by threads.

mod crew;
mod errands;
mod guard;
mod hand_over;
mod keep_alive;
mod poller;
mod station;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Token, Waker};

pub use guard::{LockGuard, LockParts};
pub use hand_over::HandOverError;
pub use keep_alive::{KeepAlive, KeepAliveError, KeepAliveErrorKind, KeptLock, Loss, LossCause};

use crate::clock::{Clock, time_until};
use crate::config::{Builder, Config};
use crate::error::{ConfigError, ConnectError, LockError};
use crate::mux::Multiplexer;
use crate::process::Home;
use crate::proto::{Done, Lease, NodeStatus, Patience, Released, Stats};
use crate::quorum::NODES_MAX;
use crate::{Moment, Resource};
use crew::{Crew, Limit};
use keep_alive::Keeper;
use poller::Poller;
use station::{Order, Outcome, Station, Watch};

/// Above the tokens of the nodes.
const WAKER: Token = Token(NODES_MAX);
/// A thread that sleeps for its result is called this much later than it would have ended its wait
/// itself: the one that works for all comes first, and knows what the masters said.
const SLACK: Duration = Duration::from_millis(10);

/// A client for distributed locks over several Redis masters.
///
/// It is a handle: cloning it is cheap, and all clones and threads share one connection to each
/// master. It has no thread of its own, unless it keeps locks alive
/// ([`LockGuard::keep_alive`]) or looks up a host name ([`Builder::resolver`]). A thread that calls
/// in sends its own commands and, while it waits, works the event loop for all; so connections are
/// made, lost and made again only while somebody is calling.
///
/// A logger may block or panic, which is then the affair of the thread that logs: records are
/// written when that thread holds nothing that others wait for, 256 at the most at a time; what
/// comes beyond is counted, and the count is logged. A logger should not call the client that it
/// logs for, which may log in turn.
///
/// # How long a call takes
/// While another thread works the event loop, a call sleeps, but no longer than it may take itself,
/// whatever has become of that thread: it may get no processor for long. `try_lock` and
/// [`unlock`](LockGuard::unlock) return after
/// [`connect_timeout`](crate::Builder::connect_timeout) and
/// [`node_timeout`](crate::Builder::node_timeout) together, `try_lock_for` after its wait,
/// [`extend`](LockGuard::extend) when the old validity is over,
/// [`connect`](crate::Builder::connect) and [`shutdown`](Redlock::shutdown) after their timeouts;
/// each some 10 ms later at the most. Such a call fails with
/// [`Unavailable`](crate::LockErrorKind::Unavailable) and names no master, an extension with
/// [`Expired`](crate::LockErrorKind::Expired). What it has taken, or may yet take, is given up as
/// soon as a thread works again. [`nodes`](Redlock::nodes) and [`stats`](Redlock::stats) wait for
/// the other thread.
///
/// Two things have no bound: how long the calling thread itself gets no processor, or is kept by
/// the logger; and how long another one gets none in the moment in which it holds the mutex
/// through which threads leave and fetch their orders.
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
    crew: Crew<Station>,
    config: Config,
    /// In a process that was forked from this one, another thread's lock is never given back.
    home: Home,
    /// What renews the locks that are kept alive.
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
        let mux = Multiplexer::new(config, poller.registry(), Token(0)).map_err(ConfigError::Os)?;
        let home = mux.home();
        let crew = Crew::new(Station::new(mux), poller, waker);
        let keeper = Arc::new(Keeper::new());
        let round_limit = settings.connect_timeout + settings.node_timeout + SLACK;
        let shared = Shared { crew, config: settings, home, keeper, round_limit };
        Ok(Redlock { shared: Arc::new(shared) })
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
        self.acquire(resource.as_ref(), ttl, None)
    }

    /// Tries to take a lock for at most `wait`, in as many rounds as fit, with random delays
    /// between them.
    ///
    /// The bound is hard: it covers connecting, every round and every delay, and other threads of
    /// this client ([How long a call takes](Redlock#how-long-a-call-takes)). A wait that is shorter
    /// than a round trip cannot succeed.
    ///
    /// Those who wait for the same resource on one client get it in the order of their arrival,
    /// and only the first of them asks the masters; while one of them holds it, nobody does.
    /// Between clients there is no order, and one whose threads always want the lock may keep it
    /// to itself.
    ///
    /// # Errors
    /// As [`try_lock`](Redlock::try_lock), with what the nodes said in the last round.
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
    /// Nothing is sent, and the validity is what it was: the parts remember their deadline. They
    /// may come from another process of this machine, as [text](LockParts#as-text).
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

    /// Waits until every command is answered, at most for `timeout`: before a process ends, so
    /// that the releases of dropped guards are not lost with it. Releases that are owed to masters
    /// which cannot be reached count until their keys have expired.
    ///
    /// Returns how many are still unanswered; masters that are down or frozen leave some. One, if
    /// another thread was held up with the event loop, so that nobody knows.
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
        // A child must not even look at the clock: another thread of the parent's may have had its
        // lock.
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
            Some(Outcome::Overslept(lease)) => {
                self.abandon(lease);
                Err(LockError::expired())
            }
            None => Err(LockError::unserved()),
            _ => unreachable!("an acquisition was ordered"),
        }
    }

    /// For what ends by itself after one round.
    #[inline]
    fn round_limit(&self) -> Limit<Moment> {
        Limit::After(self.shared.round_limit)
    }

    pub(crate) fn check_ensured(&self, ttl: Duration, min: Duration) -> Result<(), LockError> {
        self.shared.config.ensured(ttl, min)
    }

    /// Without a lease if it slept until the lock was over: then it was given up.
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

    /// For this process only.
    fn release_until(&self, lease: Lease, until: Moment) -> Result<Released, LockError> {
        self.release_at_home(lease, Limit::At(until))
    }

    /// When a thread that waits for a round or a release from now on stops.
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

    /// For this process only. A lock that is over if it slept until it was: then it was given up.
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
