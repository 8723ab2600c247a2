//! Settings. They are checked once, before anything is sent.

mod resolver;
mod url;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Resource;
use crate::client::Redlock;
use crate::error::{ConfigError, ConnectError, LockError, LockErrorKind};
use crate::quorum::{self, NODES_MAX};
use crate::validity::{Drift, TTL_MS_MAX, Ttl};
pub(crate) use resolver::Resolver;
use url::{Endpoint, NodeUrl};

const NODE_TIMEOUT_DEFAULT: Duration = Duration::from_millis(50);
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_millis(500);
const MAX_TTL_DEFAULT: Duration = Duration::from_secs(30);
/// "A 1 % drift" is the customary figure; it covers what NTP slewing does (R23).
const DRIFT_FACTOR_DEFAULT: f64 = 0.01;

const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(1);
const NODE_TIMEOUT_MIN: Duration = Duration::from_micros(100);
const BUSY_POLL_MAX: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
const KEY_PREFIX_BYTES_MAX: usize = 256;
const FLUSH_MARKER_BYTES_MAX: usize = 256;
/// The name of a key that is never written.
const PROBE_NAME: &str = "muxlock:probe";

/// The delay between the rounds of [`try_lock_for`](crate::Redlock::try_lock_for).
///
/// The delay after round `k` is random in `[d, 2d]`. `d` starts at `first`, doubles with every
/// round up to `most`, and is at least three times the last observed round trip to a quorum (R9).
/// So clients that collided are unlikely to collide again.
///
/// ```
/// use muxlock::Retry;
/// use std::time::Duration;
///
/// let patient = Retry::default().most(Duration::from_millis(250));
/// # let _ = patient;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    first: Duration,
    most: Duration,
}

impl Retry {
    /// The base of the first delay; 2 ms if not set.
    #[must_use]
    pub fn first(self, first: Duration) -> Retry {
        Retry { first, ..self }
    }

    /// The greatest base of a delay; 64 ms if not set.
    #[must_use]
    pub fn most(self, most: Duration) -> Retry {
        Retry { most, ..self }
    }

    /// The base `d` after `rounds` rounds failed.
    pub(crate) fn base(&self, rounds: u32, quorum_round_trip: Duration) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1u32.checked_shl(rounds.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.most).max(quorum_round_trip.saturating_mul(3))
    }
}

impl Default for Retry {
    fn default() -> Retry {
        Retry { first: Duration::from_millis(2), most: Duration::from_millis(64) }
    }
}

/// How the client treats a master that may have forgotten a lock that is still held.
///
/// A master that was restarted without its data would grant such a lock a second time. The guard
/// puts it into quarantine: its votes do not count until every lock it can have forgotten has
/// expired. That takes [`max_ttl`](Builder::max_ttl), plus the clock drift on it, plus one second
/// because servers report their age in whole seconds. The algorithm calls this "delayed restarts";
/// here the client does the waiting. The guard also covers a replica that was promoted, a master
/// whose wall clock was seen to jump forward, and a master whose
/// [`flush_marker`](Builder::flush_marker) is gone.
///
/// The client still sends everything to a node in quarantine, so that its copies of keys block
/// other clients when it votes again. But none of its answers counts, not even for an extension:
/// another client that is about to win a lock may still count a vote from before the restart.
///
/// The guard protects a resource only if every client of it uses the guard, with a `max_ttl` that
/// no lock of any of them exceeds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestartGuard {
    /// The client relies on the age that the server reports (`uptime_in_seconds`), unless this
    /// client has seen the previous process more recently than that. The default.
    #[default]
    Uptime,
    /// Only this client's own observation counts: a master votes after this client has known its
    /// process for that long. No clock of a server is trusted. The cost is that wait after each
    /// start of this client.
    OwnObservation,
    /// No quarantine, whatever happened to a master. For development, where masters are started and
    /// used at once, and for masters that the operator knows to be safe.
    Off,
}

/// What an extension does on a master that does not have the lock.
///
/// A master that is restarted without its data forgets the locks it has granted, and extensions no
/// longer count there. Once a majority has been restarted, one after the other, no lock that was
/// held throughout can be extended, however often its holder renews it. Healing is for long-lived
/// locks on masters that are restarted in turn.
///
/// Healing requires the [`RestartGuard`] on every master. A copy that was set anew proves nothing
/// while another client may still count a vote from before the master forgot. So a healed copy
/// counts only after the master's quarantine. If so many masters restart within that time that no
/// quorum remembers the lock, it is lost, as without healing. Make sure that an extension runs
/// between the end of one master's quarantine and the restart of the next.
///
/// With a [`flush_marker`](Builder::flush_marker), an extension checks it as a new lock does. Of
/// all processes that a lock is handed to, either all should heal or none.
///
/// With healing, deleting the keys no longer takes a kept-alive lock away from its holder, unless
/// another client takes the lock before the next extension.
///
/// ```
/// use muxlock::{Heal, Redlock};
///
/// let config = Redlock::builder()
///     .nodes(["redis://127.0.0.1:7000", "redis://127.0.0.1:7001", "redis://127.0.0.1:7002"])
///     .heal(Heal::On)
///     .config()?;
/// # drop(config);
/// # Ok::<(), muxlock::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Heal {
    /// The extension leaves such a master without the lock. The default.
    #[default]
    Off,
    /// The extension sets the lock there with the same token and the requested TTL, unless another
    /// token is there. So masters that could not be reached, or refused, when the lock was taken
    /// get it too.
    On,
}

/// Settings of a lock client. Start from [`Redlock::builder`].
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
    nodes: Vec<String>,
    node_timeout: Duration,
    connect_timeout: Duration,
    retry: Retry,
    drift_factor: f64,
    key_prefix: Vec<u8>,
    max_ttl: Duration,
    restart_guard: RestartGuard,
    flush_marker: Option<Vec<u8>>,
    heal: Heal,
    busy_poll: Duration,
    resolver: Resolver,
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
    /// makes everything slower. It applies to [`Redlock`] only: a program with its own event loop
    /// decides how it polls.
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
    /// With a marker, each vote for a new lock is followed by a check of this key on the same
    /// master. If the key is gone, the data was flushed, by `FLUSHALL` for example, which nothing
    /// else shows. The client then puts the master into quarantine as after a restart, and writes
    /// the key anew. So all clients with the same marker wait together; they must have the same
    /// [`max_ttl`](Builder::max_ttl). The cost is one more small command per master and attempt,
    /// and one key without a time to live on each master. The marker does not reveal that a single
    /// lock was deleted.
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

    /// Makes a client. It connects when it is first used.
    ///
    /// # Errors
    /// As [`config`](Builder::config); and [`ConfigError::Os`] if the event loop cannot be set up.
    pub fn build(&self) -> Result<Redlock, ConfigError> {
        Redlock::with_config(self.config()?)
    }

    /// Makes a client and waits until a quorum of the masters is connected, for at most
    /// [`connect_timeout`](Builder::connect_timeout). A master in quarantine counts as connected:
    /// see [`RestartGuard`].
    ///
    /// # Errors
    /// - [`ConnectError::Config`] as [`build`](Builder::build), and if two of the masters connected
    ///   by then are the same server ([`ConfigError::Duplicate`]). A duplicate that shows later is
    ///   [`Unfit::Duplicate`](crate::Unfit::Duplicate), and its vote does not count.
    /// - [`ConnectError::Unavailable`] if no quorum could be reached, with the reason for each
    ///   node. Check the masters, or try again later.
    pub fn connect(&self) -> Result<Redlock, ConnectError> {
        let redlock = self.build()?;
        redlock.wait_until_ready()?;
        Ok(redlock)
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

/// Checked settings, from which a [`Multiplexer`](crate::Multiplexer) is made.
#[derive(Clone)]
pub struct Config {
    pub(crate) nodes: Vec<NodeConfig>,
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) retry: Retry,
    pub(crate) drift: Drift,
    pub(crate) key_prefix: Vec<u8>,
    pub(crate) max_ttl: Duration,
    /// How long the votes of a node that may have forgotten a lock do not count.
    pub(crate) quarantine: Duration,
    pub(crate) flush_marker: Option<Resource>,
    pub(crate) heal: Heal,
    pub(crate) busy_poll: Duration,
    pub(crate) resolver: Resolver,
    /// A key that is never set, for testing whether the release script runs.
    pub(crate) probe_key: Resource,
}

/// One master. Not `Debug`: it may contain a password.
#[derive(Clone)]
pub(crate) struct NodeConfig {
    pub(crate) address: Arc<str>,
    pub(crate) target: Target,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: u32,
    pub(crate) restart_guard: RestartGuard,
    pub(crate) durable: bool,
}

/// Where to connect to.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Address(SocketAddr),
    /// Looked up before each connection.
    Name {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

impl Target {
    fn new(endpoint: Endpoint) -> Target {
        match endpoint {
            Endpoint::Unix(path) => Target::Unix(path),
            Endpoint::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(number) => Target::Address((number, port).into()),
                Err(_) => Target::Name { host, port },
            },
        }
    }

    /// As far as this is known without looking up names.
    fn is_same_server(&self, other: &Target) -> bool {
        match (self, other) {
            (
                Target::Name { host: mine, port },
                Target::Name { host: theirs, port: their_port },
            ) => port == their_port && mine.eq_ignore_ascii_case(theirs),
            _ => self == other,
        }
    }
}

impl Config {
    fn check(builder: &Builder) -> Result<Config, ConfigError> {
        match builder.nodes.len() {
            0 => return Err(ConfigError::NoNodes),
            1..=NODES_MAX => {}
            nodes => return Err(ConfigError::TooManyNodes { nodes }),
        }
        check_time("node_timeout", builder.node_timeout, NODE_TIMEOUT_MIN, TIMEOUT_MAX)?;
        let connect_timeout = builder.connect_timeout;
        check_time("connect_timeout", connect_timeout, CONNECT_TIMEOUT_MIN, TIMEOUT_MAX)?;
        check_time("busy_poll", builder.busy_poll, Duration::ZERO, BUSY_POLL_MAX)?;
        check_time("retry.first", builder.retry.first, Duration::from_micros(1), TIMEOUT_MAX)?;
        check_time("retry.most", builder.retry.most, builder.retry.first, TIMEOUT_MAX)?;
        let drift = Drift::new(builder.drift_factor)?;
        let ttl_max = Duration::from_millis(u64::from(TTL_MS_MAX));
        check_time("max_ttl", builder.max_ttl, drift.ttl_min(), ttl_max)?;
        let bytes = builder.key_prefix.len();
        if bytes > KEY_PREFIX_BYTES_MAX {
            return Err(ConfigError::KeyPrefix { bytes, max: KEY_PREFIX_BYTES_MAX });
        }
        let flush_marker = builder.flush_marker.as_deref().map(checked_marker).transpose()?;
        let urls: Vec<_> =
            builder.nodes.iter().map(|url| NodeUrl::parse(url)).collect::<Result<_, _>>()?;
        let node = |url| node_config(url, builder.restart_guard);
        let nodes: Vec<_> = urls.into_iter().map(node).collect();
        check_distinct(&nodes)?;
        check_guarded(&nodes, builder.heal)?;
        Ok(Config {
            nodes,
            node_timeout: builder.node_timeout,
            connect_timeout: builder.connect_timeout,
            retry: builder.retry,
            drift,
            key_prefix: builder.key_prefix.clone(),
            max_ttl: builder.max_ttl,
            quarantine: drift.quarantine(builder.max_ttl),
            flush_marker,
            heal: builder.heal,
            busy_poll: builder.busy_poll,
            resolver: builder.resolver.clone(),
            probe_key: probe_key(&builder.key_prefix),
        })
    }

    /// How many masters there are.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// How many of them make a quorum.
    pub fn quorum(&self) -> usize {
        quorum::quorum(self.nodes.len())
    }

    /// Checks that an extension to `ttl` can leave a validity of `min`.
    pub(crate) fn ensured(&self, ttl: Duration, min: Duration) -> Result<(), LockError> {
        let validity = Ttl::new(ttl).and_then(|ttl| self.drift.validity(ttl));
        if validity.is_some_and(|validity| validity >= min) {
            return Ok(());
        }
        let shortest = min.saturating_add(self.drift.ttl_min());
        Err(LockError::new(
            LockErrorKind::InvalidTtl { ttl, min: shortest, max: self.max_ttl },
            0,
            Vec::new(),
        ))
    }

    /// Checks a TTL that a caller requests (R7).
    pub(crate) fn ttl(&self, ttl: Duration) -> Result<Ttl, LockError> {
        Ttl::new(ttl)
            .filter(|checked| ttl <= self.max_ttl && self.drift.validity(*checked).is_some())
            .ok_or_else(|| {
                let (min, max) = (self.drift.ttl_min(), self.max_ttl);
                LockError::new(LockErrorKind::InvalidTtl { ttl, min, max }, 0, Vec::new())
            })
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.nodes.iter().map(|node| &node.address).collect();
        f.debug_struct("Config")
            .field("nodes", &addresses)
            .field("node_timeout", &self.node_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("max_ttl", &self.max_ttl)
            .finish_non_exhaustive()
    }
}

fn check_time(
    setting: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::Time { setting, value, min, max })
    }
}

fn probe_key(prefix: &[u8]) -> Resource {
    let name = Resource::new(PROBE_NAME).expect("a short name that is not empty");
    name.prefixed(prefix)
}

fn checked_marker(key: &[u8]) -> Result<Resource, ConfigError> {
    let bytes = key.len();
    let refused = ConfigError::FlushMarker { bytes, max: FLUSH_MARKER_BYTES_MAX };
    match Resource::new(key) {
        Ok(key) if bytes <= FLUSH_MARKER_BYTES_MAX => Ok(key),
        _ => Err(refused),
    }
}

fn node_config(url: NodeUrl, default: RestartGuard) -> NodeConfig {
    let parameters = url.parameters;
    NodeConfig {
        address: url.endpoint.to_string().into(),
        target: Target::new(url.endpoint),
        user: url.user,
        password: url.password,
        db: parameters.db,
        restart_guard: parameters.restart_guard.unwrap_or(default),
        durable: parameters.durable,
    }
}

fn check_distinct(nodes: &[NodeConfig]) -> Result<(), ConfigError> {
    for (i, second) in nodes.iter().enumerate() {
        if let Some(first) =
            nodes[..i].iter().find(|node| node.target.is_same_server(&second.target))
        {
            return Err(ConfigError::Duplicate {
                first: first.address.to_string(),
                second: second.address.to_string(),
            });
        }
    }
    Ok(())
}

/// Without the guard, a vote of a master for a lock that it has forgotten would count (R29).
fn check_guarded(nodes: &[NodeConfig], heal: Heal) -> Result<(), ConfigError> {
    let unguarded = nodes.iter().find(|node| node.restart_guard == RestartGuard::Off);
    match unguarded {
        Some(node) if heal == Heal::On => {
            Err(ConfigError::HealUnguarded { node: node.address.to_string() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(urls: &[&str]) -> Builder {
        Builder::default().nodes(urls.iter().copied())
    }

    #[test]
    fn node_count_is_bounded() {
        assert!(matches!(with(&[]).config(), Err(ConfigError::NoNodes)));
        let urls: Vec<_> = (1..=65).map(|port| format!("redis://127.0.0.1:{port}")).collect();
        assert!(Builder::default().nodes(urls.clone()).config().is_err());
        let config = Builder::default().nodes(urls[..64].to_vec()).config().unwrap();
        assert_eq!((config.nodes(), config.quorum()), (64, 33));
    }

    #[test]
    fn one_server_under_two_names_is_refused() {
        let same = [
            ["redis://127.0.0.1:7000", "redis://127.0.0.1:7000"],
            ["redis://127.0.0.1:7000/1", "redis://user:pass@127.0.0.1:7000/2"],
            ["unix:///run/a", "unix:///run/a?db=1"],
        ];
        for urls in same {
            let error = with(&urls).config().unwrap_err();
            assert!(matches!(error, ConfigError::Duplicate { .. }), "{error}");
            assert!(!error.to_string().contains("pass"));
        }
        assert!(with(&["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"]).config().is_ok());
    }

    #[test]
    fn nothing_is_healed_without_the_guard_of_every_master() {
        let base = || with(&["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"]).heal(Heal::On);
        assert!(base().config().is_ok());
        assert!(base().restart_guard(RestartGuard::OwnObservation).config().is_ok());
        let one = "redis://user:pass@127.0.0.1:7002?restart_guard=off";
        for (builder, node) in [
            (base().restart_guard(RestartGuard::Off), "127.0.0.1:7000"),
            (base().node(one), "127.0.0.1:7002"),
        ] {
            let error = builder.clone().config().unwrap_err();
            assert!(matches!(&error, ConfigError::HealUnguarded { .. }), "{error}");
            assert!(error.to_string().contains(node), "{error}");
            assert!(builder.heal(Heal::Off).config().is_ok());
        }
    }

    #[test]
    fn times_are_bounded_on_both_sides() {
        let base = || with(&["redis://127.0.0.1"]);
        let bad = [
            base().node_timeout(Duration::ZERO),
            base().node_timeout(Duration::from_secs(61)),
            base().connect_timeout(Duration::ZERO),
            base().connect_timeout(Duration::MAX),
            base().max_ttl(Duration::ZERO),
            base().max_ttl(Duration::from_millis(u64::from(TTL_MS_MAX) + 1)),
            base().retry(Retry::default().first(Duration::ZERO)),
            base().retry(Retry::default().most(Duration::from_micros(1))),
            base().retry(Retry::default().most(Duration::MAX)),
        ];
        for builder in bad {
            let error = builder.config().unwrap_err();
            assert!(matches!(error, ConfigError::Time { .. }), "{builder:?}: {error}");
        }
        assert!(base().drift_factor(f64::NAN).config().is_err());
        assert!(base().key_prefix(vec![b'x'; 257]).config().is_err());
        assert!(base().key_prefix(vec![b'x'; 256]).config().is_ok());
        assert!(base().flush_marker("").config().is_err());
        assert!(base().flush_marker(vec![b'x'; 257]).config().is_err());
        assert!(base().flush_marker(vec![b'x'; 256]).config().is_ok());
    }

    #[test]
    fn ttl_bounds_are_named_in_the_error() {
        let config = with(&["redis://127.0.0.1"]).config().unwrap();
        let millis = Duration::from_millis;
        for (ttl, valid) in [
            (millis(0), false),
            (millis(3), false),
            (millis(4), true),
            (millis(30_000), true),
            (millis(30_001), false),
            (Duration::MAX, false),
        ] {
            assert_eq!(config.ttl(ttl).is_ok(), valid, "{ttl:?}");
        }
        let error = config.ttl(millis(30_001)).unwrap_err().to_string();
        assert_eq!(error, "the ttl is 30.001s: it must be from 4ms to 30s (max_ttl)");
    }

    #[test]
    fn retry_base_doubles_up_to_its_cap_and_respects_the_round_trip() {
        let retry = Retry::default();
        let millis = Duration::from_millis;
        for (rounds, expected) in
            [(1, 2), (2, 4), (5, 32), (6, 64), (7, 64), (40, 64), (u32::MAX, 64)]
        {
            assert_eq!(retry.base(rounds, Duration::ZERO), millis(expected), "{rounds}");
        }
        assert_eq!(retry.base(1, millis(100)), millis(300));
    }

    #[test]
    fn debug_shows_no_password() {
        let builder = with(&["redis://user:sesame@127.0.0.1"]);
        let config = builder.config().unwrap();
        assert!(!format!("{builder:?} {config:?}").contains("sesame"));
    }
}
