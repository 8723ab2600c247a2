//! The setters, and what is set if they are not used.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::Config;
use super::error::ConfigError;
use super::options::{Heal, RestartGuard, Retry};
use super::resolver::Resolver;

const NODE_TIMEOUT_DEFAULT: Duration = Duration::from_millis(50);
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_millis(500);
const MAX_TTL_DEFAULT: Duration = Duration::from_secs(30);
/// "A 1 % drift" is the customary figure; it covers what NTP slewing does (R23).
const DRIFT_FACTOR_DEFAULT: f64 = 0.01;

/// Settings of a lock client. Start from [`Redlock::builder`](crate::Redlock::builder).
///
/// ```no_run
/// use muxlock::Redlock;
/// use std::time::Duration;
///
/// let redlock = Redlock::builder()
///     .nodes(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .node_timeout(Duration::from_millis(20))
///     .build()?;
/// # Ok::<(), muxlock::ConfigError>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    pub(super) nodes: Vec<String>,
    pub(super) node_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) retry: Retry,
    pub(super) drift_factor: f64,
    pub(super) key_prefix: Vec<u8>,
    pub(super) max_ttl: Duration,
    pub(super) restart_guard: RestartGuard,
    pub(super) flush_marker: Option<Vec<u8>>,
    pub(super) heal: Heal,
    pub(super) busy_poll: Duration,
    pub(super) resolver: Resolver,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            nodes: Vec::new(),
            node_timeout: NODE_TIMEOUT_DEFAULT,
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            retry: Retry::default(),
            drift_factor: DRIFT_FACTOR_DEFAULT,
            key_prefix: Vec::new(),
            max_ttl: MAX_TTL_DEFAULT,
            restart_guard: RestartGuard::default(),
            flush_marker: None,
            heal: Heal::default(),
            busy_poll: Duration::ZERO,
            resolver: Resolver::default(),
        }
    }
}

impl Builder {
    /// Adds a master: `redis://[user[:password]@]host[:port][/db]` or `unix:///path[?db=n]`.
    ///
    /// User, password, host and path may be percent-encoded. An IPv6 address must be in brackets.
    /// `?restart_guard=uptime|own_observation|off` sets the [`RestartGuard`] of this master alone.
    /// `?durable=yes` declares that a restart loses no confirmed write, and skips the quarantine
    /// after a restart. It requires `appendonly yes`, `appendfsync always` and
    /// `no-appendfsync-on-rewrite no`, nothing less. The client never detects this by itself,
    /// because the current settings prove nothing about the moment of a crash.
    ///
    /// The client connects to a numeric host as it is. It looks a name up before each connection,
    /// so a master may return under another address: see [`resolver`](Builder::resolver).
    ///
    /// All clients of a resource must list the same masters (R35). The masters must be independent:
    /// no replicas, no cluster, no failover behind an address.
    pub fn node(mut self, url: impl Into<String>) -> Builder {
        self.nodes.push(url.into());
        self
    }

    /// Adds several masters; see [`node`](Builder::node).
    pub fn nodes<I>(mut self, urls: I) -> Builder
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.nodes.extend(urls.into_iter().map(Into::into));
        self
    }

    /// How long one node may take to answer before its vote counts as missing; 50 ms if not set.
    ///
    /// Choose it far below any TTL in use: it bounds how long an attempt waits when more than a
    /// minority of the nodes is slow. From 100 µs to one minute. On Linux, short timeouts are
    /// accurate to some ten microseconds; elsewhere they end on the next millisecond.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Builder {
        self.node_timeout = node_timeout;
        self
    }

    /// How long a connection may take, including its handshake and the lookup of the host name, if
    /// it has one; 500 ms if not set.
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Builder {
        self.connect_timeout = connect_timeout;
        self
    }

    /// How long a call polls for answers in a busy loop before it sleeps. Off if not set; at most
    /// 100 ms.
    ///
    /// Busy polling saves the wake-up latency, and occupies a processor meanwhile. It pays off
    /// where the masters are near and there are more processors than busy threads; elsewhere it
    /// makes everything slower. It applies to [`Redlock`](crate::Redlock) only: a program with its
    /// own event loop decides how it polls.
    pub fn busy_poll(mut self, busy_poll: Duration) -> Builder {
        self.busy_poll = busy_poll;
        self
    }

    /// The delays between rounds; see [`Retry`].
    pub fn retry(mut self, retry: Retry) -> Builder {
        self.retry = retry;
        self
    }

    /// The fraction of a TTL by which clocks may disagree; 0.01 if not set.
    ///
    /// 1 % covers what NTP does to a clock's rate. Chrony may slew faster unless it is configured
    /// not to; then use 0.1.
    pub fn drift_factor(mut self, drift_factor: f64) -> Builder {
        self.drift_factor = drift_factor;
        self
    }

    /// A prefix for every key, before the resource name. Empty if not set: then the keys are the
    /// same as those of other Redlock clients, and exclude them.
    pub fn key_prefix(mut self, key_prefix: impl Into<Vec<u8>>) -> Builder {
        self.key_prefix = key_prefix.into();
        self
    }

    /// The longest TTL that a lock may have; 30 s if not set.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Builder {
        self.max_ttl = max_ttl;
        self
    }

    /// How the client treats masters that may have forgotten a lock; see [`RestartGuard`].
    ///
    /// The guard is on if this is not set. A master that was just started then does not vote for
    /// [`max_ttl`](Builder::max_ttl) and a little more. Switch the guard off in development, and
    /// for tests that start their own masters.
    pub fn restart_guard(mut self, restart_guard: RestartGuard) -> Builder {
        self.restart_guard = restart_guard;
        self
    }

    /// A key by which each master shows that its data was not flushed; none if not set.
    ///
    /// With a marker, a new lock is set by a script that checks this key in the same step. If the
    /// key is gone, the data was flushed, by `FLUSHALL` for example, which nothing else shows. The
    /// script then writes the key anew, and the client puts the master into quarantine as after a
    /// restart. All clients with the same marker wait together; they must have the same
    /// [`max_ttl`](Builder::max_ttl). The cost is a script instead of a plain `SET`, and one key
    /// without a time to live on each master. The marker does not reveal that a single lock was
    /// deleted.
    pub fn flush_marker(mut self, key: impl Into<Vec<u8>>) -> Builder {
        self.flush_marker = Some(key.into());
        self
    }

    /// Whether extensions set the lock on masters that have forgotten it, including those of locks
    /// that are kept alive. Off if not set. See [`Heal`] for the requirements.
    pub fn heal(mut self, heal: Heal) -> Builder {
        self.heal = heal;
        self
    }

    /// Replaces the lookup of host names; the system's lookup if not set. The function gets the
    /// name and the configured port, and may return other ports. For service discovery and for
    /// tests.
    ///
    /// The client calls it before each connection to a node whose address is a name, never for a
    /// numeric address or a Unix socket. The function may block: each lookup runs on its own
    /// thread, which ends with it. A node has at most one lookup at a time. If a lookup has not
    /// ended by the [`connect_timeout`](Builder::connect_timeout), the node gives no vote
    /// ([`Phase::Lookup`](crate::Phase::Lookup)), and the next try uses what the lookup finds
    /// later. If a lookup fails, panics or finds no address, the node gives no vote either
    /// ([`NodeOutcome::Unresolved`](crate::NodeOutcome::Unresolved)). The client tries the node
    /// again with growing delays. A lookup that never ends keeps its thread, even after the client
    /// is dropped.
    ///
    /// The first 16 addresses are used. To the [`RestartGuard`], a server at a new address is a new
    /// server, unless it reports the same process. A name that resolves to the address of another
    /// node has no vote of its own ([`Unfit::Duplicate`](crate::Unfit::Duplicate)).
    ///
    /// ```
    /// use muxlock::Redlock;
    /// use std::net::SocketAddr;
    ///
    /// let config = Redlock::builder()
    ///     .nodes(["redis://lock-0", "redis://lock-1", "redis://lock-2"])
    ///     .resolver(|name, port| match name.strip_prefix("lock-") {
    ///         Some("0") => Ok(vec![SocketAddr::from(([10, 0, 0, 10], port))]),
    ///         _ => Err(std::io::ErrorKind::NotFound.into()),
    ///     })
    ///     .config()?;
    /// # drop(config);
    /// # Ok::<(), muxlock::ConfigError>(())
    /// ```
    pub fn resolver<F>(mut self, resolver: F) -> Builder
    where
        F: Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    {
        self.resolver = Resolver::new(resolver);
        self
    }

    /// Checks the settings. No host name is looked up.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the wrong value. Nothing is sent to any master.
    pub fn config(&self) -> Result<Config, ConfigError> {
        Config::check(self)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses may contain passwords, and are not parsed yet.
        f.debug_struct("Builder")
            .field("nodes", &self.nodes.len())
            .field("node_timeout", &self.node_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("retry", &self.retry)
            .field("drift_factor", &self.drift_factor)
            .field("key_prefix", &self.key_prefix.escape_ascii().to_string())
            .field("max_ttl", &self.max_ttl)
            .field("restart_guard", &self.restart_guard)
            .field("flush_marker", &self.flush_marker.as_ref().map(|key| key.escape_ascii()))
            .field("heal", &self.heal)
            .field("busy_poll", &self.busy_poll)
            .finish()
    }
}
