//! Settings. They are checked once, before anything is sent.

mod builder;
mod credentials;
#[cfg(feature = "env")]
pub(crate) mod env;
mod error;
pub(crate) mod mark;
mod options;
mod resolver;
#[cfg(feature = "tls-no-provider")]
mod tls;
mod url;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
#[cfg(any(feature = "env", feature = "tls-no-provider"))]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::fencing;
use crate::lock_error::{LockError, LockErrorKind, Reserved};
use crate::quorum::{self, NODES_MAX};
use crate::resource::{Key, Resource};
use crate::validity::{self, TTL_MIN, TTL_MS_MAX, Ttl};
pub use builder::Builder;
pub use credentials::Credentials;
pub(crate) use credentials::Login;
pub use error::ConfigError;
use mark::Marked;
pub(crate) use options::Notices;
pub use options::{Heal, RestartGuard, Retry, Wait, Waiting};
pub(crate) use resolver::Resolver;
#[cfg(feature = "tls-no-provider")]
pub(crate) use tls::NodeTls;
#[cfg(feature = "tls-no-provider")]
pub use tls::Tls;
pub(crate) use url::Sentinels;
use url::{Endpoint, NodeUrl};

const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(1);
const NODE_TIMEOUT_MIN: Duration = Duration::from_micros(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
const FLUSH_MARKER_BYTES_MAX: usize = 256;
/// The longest key prefix, in bytes.
const KEY_PREFIX_BYTES_MAX: usize = 256;
/// The longest text in the name of a connection, in bytes.
const CLIENT_NAME_BYTES_MAX: usize = 100;
/// Where a shell's own files are.
#[cfg(any(feature = "env", feature = "tls-no-provider"))]
const OF_SHELL: [&str; 3] = ["/dev/fd", "/proc/self/fd", "/dev/stdin"];
/// The name of a key that is never written.
const PROBE_NAME: &[u8] = b"muxlock:probe";
/// The name of the key that says when clients first saw a promoted server (R33).
const SIGHTING_NAME: &[u8; 16] = b"muxlock:promoted";
/// The name of the key that a flush deletes, unless the settings name another.
const MARKER_NAME: &[u8; 14] = b"muxlock:marker";

/// Checked settings. Create them with [`Builder::config`], and pass them to
/// [`Multiplexer::new`](crate::Multiplexer::new) or [`Standalone::new`](crate::Standalone::new).
#[derive(Clone)]
pub struct Config {
    pub(crate) nodes: Vec<NodeConfig>,
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) retry: Retry,
    pub(crate) key_prefix: Vec<u8>,
    pub(crate) max_ttl: Duration,
    /// How long the votes of a node that may have forgotten a lock do not count.
    pub(crate) quarantine: Duration,
    pub(crate) flush_marker: Option<Key>,
    pub(crate) waiting: Waiting,
    pub(crate) heal: Heal,
    pub(crate) resolver: Resolver,
    /// What follows the tag in the name of a connection; empty for a description of the
    /// process. In a driver, the whole name.
    pub(crate) client_name: Arc<str>,
    /// A mark over the settings that must be equal in all clients.
    pub(crate) mark: Arc<str>,
    /// A key that is never set, for testing whether the release script runs.
    pub(crate) probe_key: Key,
    /// The key that says when clients first saw a promoted server.
    pub(crate) sighting_key: Key,
    /// The key that a flush deletes.
    pub(crate) marker_key: Key,
}

/// One master. Not `Debug`: it may contain a password.
#[derive(Clone)]
pub(crate) struct NodeConfig {
    pub(crate) address: Arc<str>,
    pub(crate) target: Target,
    pub(crate) login: Login,
    pub(crate) db: u32,
    pub(crate) restart_guard: RestartGuard,
    pub(crate) notices: Notices,
    /// Of an address with `rediss://`.
    #[cfg(feature = "tls-no-provider")]
    pub(crate) tls: Option<NodeTls>,
}

impl NodeConfig {
    /// Whether credentials or TLS files are asked for before each connection.
    pub(crate) fn is_asked_for(&self) -> bool {
        #[cfg(feature = "tls-no-provider")]
        if self.tls.as_ref().is_some_and(NodeTls::has_files) {
            return true;
        }
        matches!(self.login, Login::Asked { .. })
    }

    /// These settings with the TLS files as they are now, or why those cannot be used.
    pub(crate) fn fresh(self) -> Result<NodeConfig, String> {
        #[cfg(feature = "tls-no-provider")]
        if let Some(tls) = &self.tls {
            return Ok(NodeConfig { tls: Some(tls.fresh()?), ..self });
        }
        Ok(self)
    }

    pub(crate) fn is_unix(&self) -> bool {
        matches!(self.target, Target::Unix(_))
    }

    /// Whether it has an address without TLS.
    pub(crate) fn is_plain_tcp(&self) -> bool {
        #[cfg(feature = "tls-no-provider")]
        if self.tls.is_some() {
            return false;
        }
        !matches!(self.target, Target::Unix(_))
    }
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
    /// The Sentinels are asked before each connection.
    Sentinel(Arc<Sentinels>),
}

impl Target {
    fn new(endpoint: Endpoint) -> Target {
        match endpoint {
            Endpoint::Unix(path) => Target::Unix(path),
            Endpoint::Sentinel(sentinels) => Target::Sentinel(sentinels.into()),
            Endpoint::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(number) => Target::Address((number, port).into()),
                Err(_) => Target::Name { host, port },
            },
        }
    }

    /// Whether both are the same server, as far as this is known without a lookup.
    fn is_same_server(&self, other: &Target) -> bool {
        match (self, other) {
            (
                Target::Name { host: mine, port },
                Target::Name { host: theirs, port: their_port },
            ) => port == their_port && mine.eq_ignore_ascii_case(theirs),
            (Target::Sentinel(mine), Target::Sentinel(theirs)) => {
                let is_shared = |host| theirs.hosts.contains(host);
                mine.service == theirs.service && mine.hosts.iter().any(is_shared)
            }
            _ => self == other,
        }
    }
}

impl Config {
    /// Whether a flush of a master is noticed.
    #[inline]
    pub(crate) fn notices_flushes(&self) -> bool {
        self.flush_marker.is_some()
    }

    fn check(builder: &Builder) -> Result<Config, ConfigError> {
        match builder.nodes.len() {
            0 => return Err(ConfigError::NoNodes),
            1..=NODES_MAX => {}
            nodes => return Err(ConfigError::TooManyNodes { nodes }),
        }
        check_time("node_timeout", builder.node_timeout, NODE_TIMEOUT_MIN, TIMEOUT_MAX)?;
        let connect_timeout = builder.connect_timeout;
        check_time("connect_timeout", connect_timeout, CONNECT_TIMEOUT_MIN, TIMEOUT_MAX)?;
        check_time("retry.first", builder.retry.first, Duration::from_micros(1), TIMEOUT_MAX)?;
        check_time("retry.most", builder.retry.most, builder.retry.first, TIMEOUT_MAX)?;
        let ttl_max = Duration::from_millis(u64::from(TTL_MS_MAX));
        check_time("max_ttl", builder.max_ttl, TTL_MIN, ttl_max)?;
        let bytes = builder.key_prefix.len();
        if bytes > KEY_PREFIX_BYTES_MAX {
            return Err(ConfigError::KeyPrefix { bytes, max: KEY_PREFIX_BYTES_MAX });
        }
        let name = builder.client_name.as_deref().unwrap_or_default();
        if name.len() > CLIENT_NAME_BYTES_MAX || !name.bytes().all(|it| it.is_ascii_graphic()) {
            return Err(ConfigError::ClientName { name: name.into() });
        }
        let client_name: String =
            builder.client_name.iter().map(|it| format!(":name={it}")).collect();
        let flush_marker = builder.flush_marker.as_deref().map(checked_marker).transpose()?;
        let nodes = node_configs(builder, parse_all(&builder.nodes)?)?;
        check_distinct(&nodes)?;
        check_guarded(&nodes, builder.heal)?;
        let marked = Marked {
            nodes: &nodes,
            key_prefix: &builder.key_prefix,
            max_ttl_ms: builder.max_ttl.as_millis(),
            flush_marker: flush_marker.as_ref(),
        };
        Ok(Config {
            mark: marked.mark().into(),
            nodes,
            node_timeout: builder.node_timeout,
            connect_timeout: builder.connect_timeout,
            retry: builder.retry,
            key_prefix: builder.key_prefix.clone(),
            max_ttl: builder.max_ttl,
            quarantine: validity::quarantine(builder.max_ttl),
            marker_key: flush_marker
                .clone()
                .unwrap_or_else(|| own_key(MARKER_NAME, &builder.key_prefix)),
            flush_marker,
            waiting: builder.waiting,
            heal: builder.heal,
            resolver: builder.resolver.clone(),
            client_name: client_name.into(),
            probe_key: own_key(PROBE_NAME, &builder.key_prefix),
            sighting_key: own_key(SIGHTING_NAME, &builder.key_prefix),
        })
    }

    /// The number of masters.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The number of masters in a quorum: more than half of them.
    pub fn quorum(&self) -> usize {
        quorum::quorum(self.nodes.len())
    }

    /// How long to wait for the answer of a node; see [`Builder::node_timeout`].
    pub fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    /// The longest TTL of any client; see [`Builder::max_ttl`].
    pub fn max_ttl(&self) -> Duration {
        self.max_ttl
    }

    /// Checks that an extension to `ttl` can leave a validity of `min`.
    pub(crate) fn ensured(&self, ttl: Duration, min: Duration) -> Result<(), LockError> {
        let validity = Ttl::new(ttl).and_then(Ttl::validity);
        if validity.is_some_and(|validity| validity >= min) {
            return Ok(());
        }
        let shortest = min.saturating_add(TTL_MIN);
        let kind = LockErrorKind::InvalidTtl { ttl, min: shortest, max: self.max_ttl };
        Err(LockError::new(kind, 0, Vec::new()).of_ensuring(min))
    }

    /// Checks a TTL that a caller requests (R7).
    pub(crate) fn ttl(&self, ttl: Duration) -> Result<Ttl, LockError> {
        Ttl::new(ttl)
            .filter(|checked| ttl <= self.max_ttl && checked.validity().is_some())
            .ok_or_else(|| {
                let (min, max) = (TTL_MIN, self.max_ttl);
                LockError::new(LockErrorKind::InvalidTtl { ttl, min, max }, 0, Vec::new())
            })
    }

    /// The key of a resource on the masters.
    #[inline(always)]
    pub(crate) fn key_of(&self, resource: Resource) -> Key {
        Key::new(resource, &self.key_prefix)
    }

    /// The plain lock's key that a master has named.
    pub(crate) fn key_of_bytes(&self, key: &[u8]) -> Option<Key> {
        Key::of_bytes(key, &self.key_prefix)
    }

    /// Whether it is the counters' key, or that of a sighting or a marker, or needs one of them.
    #[inline]
    pub(crate) fn reserved_for(&self, key: &Key) -> Option<Reserved> {
        let reserved = |key: &[u8]| {
            if key == fencing::COUNTERS {
                Some(Reserved::Counters)
            } else if is_sighting_key(key) {
                Some(Reserved::Sighting)
            } else if is_marker_key(key) {
                Some(Reserved::Marker)
            } else {
                None
            }
        };
        match key.is_plain() {
            true => reserved(key.as_bytes()),
            false => key.keys().iter().find_map(|key| reserved(key)),
        }
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

fn parse_all(urls: &[String]) -> Result<Vec<NodeUrl>, ConfigError> {
    let parse = |(at, url): (usize, &String)| {
        NodeUrl::parse(url).map_err(|error| match error {
            // The error may show little of it.
            ConfigError::Url { url, reason } if urls.len() > 1 => {
                let reason = format!("{reason} (address {} of {})", at + 1, urls.len());
                ConfigError::Url { url, reason }
            }
            error => error,
        })
    };
    urls.iter().enumerate().map(parse).collect()
}

fn check_time(
    setting: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
) -> Result<(), ConfigError> {
    let refused = ConfigError::Time { setting, value, min, max };
    if (min..=max).contains(&value) { Ok(()) } else { Err(refused) }
}

/// Whether a file's text is gone once it was read: a pipe, such as that of `<(..)` in a shell.
#[cfg(any(feature = "env", feature = "tls-no-provider"))]
fn is_read_once(path: &Path) -> bool {
    OF_SHELL.iter().any(|folder| path.starts_with(folder))
        || path.metadata().is_ok_and(|meta| !meta.is_file())
}

fn own_key(name: &[u8], prefix: &[u8]) -> Key {
    Key::new(Resource::new(name).expect("a short name that is not empty"), prefix)
}

/// Whether clients with some prefix keep there when they saw a promoted server. Looked at for each
/// lock.
#[inline]
fn is_sighting_key(key: &[u8]) -> bool {
    key.last_chunk() == Some(SIGHTING_NAME)
}

/// Whether a flush shows there, for clients with some prefix that name no other key.
#[inline]
fn is_marker_key(key: &[u8]) -> bool {
    key.last_chunk() == Some(MARKER_NAME)
}

/// The same key for clients with any prefix.
fn checked_marker(key: &[u8]) -> Result<Key, ConfigError> {
    let (bytes, max) = (key.len(), FLUSH_MARKER_BYTES_MAX);
    let can_be = bytes <= max && !is_sighting_key(key) && key != fencing::COUNTERS;
    let resource = Resource::new(key).ok().filter(|_| can_be);
    resource.map(|it| Key::new(it, b"")).ok_or(ConfigError::FlushMarker { bytes, max })
}

#[cfg(not(feature = "tls-no-provider"))]
fn node_configs(builder: &Builder, urls: Vec<NodeUrl>) -> Result<Vec<NodeConfig>, ConfigError> {
    Ok(urls.into_iter().map(|url| node_config(url, builder)).collect())
}

#[cfg(feature = "tls-no-provider")]
fn node_configs(builder: &Builder, urls: Vec<NodeUrl>) -> Result<Vec<NodeConfig>, ConfigError> {
    let mut maker = tls::Maker::new(builder.tls.as_ref());
    let nodes = urls.into_iter().map(|url| {
        let tls = maker.node(&url)?;
        Ok(NodeConfig { tls, ..node_config(url, builder) })
    });
    let nodes = nodes.collect::<Result<_, ConfigError>>()?;
    maker.finish()?;
    Ok(nodes)
}

fn node_config(url: NodeUrl, builder: &Builder) -> NodeConfig {
    let parameters = url.parameters;
    NodeConfig {
        address: url.endpoint.to_string().into(),
        target: Target::new(url.endpoint),
        login: url.login.map_or_else(|| builder.login.clone(), Login::Fixed),
        db: parameters.db,
        restart_guard: parameters.restart_guard.unwrap_or(builder.restart_guard),
        notices: parameters.notices,
        #[cfg(feature = "tls-no-provider")]
        tls: None,
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
    let is_refused =
        |node: &&NodeConfig| heal == Heal::On && node.restart_guard == RestartGuard::Off;
    match nodes.iter().find(is_refused) {
        Some(node) => Err(ConfigError::HealUnguarded { node: node.address.to_string() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(urls: &[&str]) -> Builder {
        Builder::default().nodes(urls.iter().copied())
    }

    #[test]
    fn one_server_under_two_names_is_refused() {
        let same = [
            ["redis://127.0.0.1:7000", "redis://127.0.0.1:7000"],
            ["redis://127.0.0.1:7000/1", "redis://user:pass@127.0.0.1:7000/2"],
            ["unix:///run/a", "unix:///run/a?db=1"],
            ["redis+sentinel://a,b/m", "redis+sentinel://b:26379,c/m"],
        ];
        for urls in same {
            let error = with(&urls).config().unwrap_err();
            assert!(matches!(error, ConfigError::Duplicate { .. }), "{error}");
            assert!(!error.to_string().contains("pass"));
        }
        assert!(with(&["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"]).config().is_ok());
        assert!(with(&["redis+sentinel://a/m", "redis+sentinel://a/n"]).config().is_ok());
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
        assert!(base().key_prefix(vec![b'x'; 257]).config().is_err());
        assert!(base().key_prefix(vec![b'x'; 256]).config().is_ok());
        for name in ["orders eu", "a\n", "caf\u{e9}", &"n".repeat(101)] {
            let error = base().client_name(name).config().unwrap_err().to_string();
            assert!(error.starts_with(&format!("client_name is {name:?}: ")), "{error}");
        }
        assert!(base().client_name("n".repeat(100)).config().is_ok());
        assert!(base().flush_marker("").config().is_err());
        assert!(base().flush_marker(vec![b'x'; 257]).config().is_err());
        assert!(base().flush_marker(vec![b'x'; 256]).config().is_ok());
        assert!(base().flush_marker(fencing::COUNTERS).config().is_err());
        assert!(base().flush_marker("app:muxlock:promoted").config().is_err());
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
        assert_eq!(error, "the ttl is 30.001s: it must be from 4ms to 30s, which max_ttl sets");
    }

    #[test]
    fn debug_shows_no_password() {
        let builder = with(&["redis://user:sesame@127.0.0.1"]);
        let config = builder.config().unwrap();
        assert!(!format!("{builder:?} {config:?}").contains("sesame"));
    }
}
