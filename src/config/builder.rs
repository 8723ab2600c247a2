//! The setters and their defaults.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::Config;
use super::credentials::{Credentials, Login};
use super::error::ConfigError;
use super::options::{Heal, RestartGuard, Retry, Waiting};
use super::resolver::Resolver;
#[cfg(feature = "tls-no-provider")]
use super::tls::Tls;

const NODE_TIMEOUT_DEFAULT: Duration = Duration::from_millis(50);
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_millis(500);
const MAX_TTL_DEFAULT: Duration = Duration::from_secs(30);

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
/// # Ok::<(), muxlock::error::ConfigError>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    pub(super) nodes: Vec<String>,
    pub(super) node_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) retry: Retry,
    pub(super) key_prefix: Vec<u8>,
    pub(super) max_ttl: Duration,
    pub(super) restart_guard: RestartGuard,
    pub(super) flush_marker: Option<Vec<u8>>,
    pub(super) waiting: Waiting,
    pub(super) heal: Heal,
    pub(super) resolver: Resolver,
    pub(super) login: Login,
    pub(super) client_name: Option<String>,
    #[cfg(feature = "tls-no-provider")]
    pub(super) tls: Option<Tls>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            nodes: Vec::new(),
            node_timeout: NODE_TIMEOUT_DEFAULT,
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            retry: Retry::default(),
            key_prefix: Vec::new(),
            max_ttl: MAX_TTL_DEFAULT,
            restart_guard: RestartGuard::default(),
            flush_marker: None,
            waiting: Waiting::default(),
            heal: Heal::default(),
            resolver: Resolver::default(),
            login: Login::default(),
            client_name: None,
            #[cfg(feature = "tls-no-provider")]
            tls: None,
        }
    }
}

impl Builder {
    /// Adds a master: `redis://[[user]:password@]host[:port][/db]` or
    /// `unix://[[user]:password@]/path[?db=n]`. A client has 1 to
    /// [`NODES_MAX`](crate::limits::NODES_MAX) of them. `valkey://` is the same as `redis://`, and
    /// `redis+unix://`, `redis+socket://` and `redis-socket://` are the same as `unix://`.
    ///
    /// The port is 6379 if not given. `redis://:password@host` authenticates the default user.
    /// User, password, host and path may be percent-encoded. An IPv6 address must be in brackets.
    /// An address has at most 4,096 bytes.
    ///
    /// The last `@` ends the password. In a password, write `%25` for `%`. If it is not clear where
    /// the password ends, the address is refused: then percent-encode `@`, `/`, `?` and `#` as
    /// well. In the path of a Unix socket, `@ : , ; & =` and white space must be percent-encoded.
    /// An error shows only the scheme, host, port and path of the refused address, because the rest
    /// could be a password.
    ///
    /// With the feature `tls`, `rediss://` (or `valkeys://`) is the same as `redis://` over TLS 1.2
    /// or 1.3. The client sends nothing before it has verified the server, and never falls back to
    /// a connection without TLS. The default port is 6379 as well. More parameters, whose values
    /// can be percent-encoded:
    ///
    /// - `ca=FILE` names a file with the trusted roots, as PEM. They replace those of the system.
    /// - `cert=FILE` and `key=FILE` name the client's certificate and its key, as PEM.
    /// - `server_name=NAME` is the certificate name to expect, instead of the host. An IP address
    ///   must be in the certificate as an IP address.
    /// - `verify=no` trusts every server, so the connection is not protected against an attacker in
    ///   the network. The client logs a warning.
    ///
    /// The files are checked when the client is built, and read again before each connection.
    ///
    /// `?restart_guard=uptime|own_observation|off` sets the [`RestartGuard`] of only this master.
    /// `?notices=no` accepts a master that refuses `CLIENT TRACKING`: a flush of it goes unnoticed.
    ///
    /// The client uses a numeric IP address directly. It looks up a host name before each
    /// connection, so a master can return under another address: see
    /// [`resolver`](Builder::resolver).
    ///
    /// `redis+sentinel://[[user]:password@]host[:port][,host[:port]..]/name[?db=n]` is one master
    /// with replicas that Sentinels monitor under this name. List up to 16 Sentinels. The client
    /// asks them for the master's address before each connection, and once a second while it is
    /// connected. A failover can lose locks; the client waits until those locks have expired. That
    /// needs server settings: see "Sentinel" in the guide. The parameters `sentinel_user` and
    /// `sentinel_password` are for the Sentinels themselves.
    ///
    /// All clients of a resource must list the same masters, in the same order if locks are handed
    /// over. The masters must be independent: no replicas, no cluster, no failover behind an
    /// address.
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

    /// Adds the masters of a list such as `"redis://10.0.0.1, redis://10.0.0.2"`, for example from
    /// an environment variable. Commas, semicolons or white space separate the addresses. Every
    /// address starts with its scheme. Text without a scheme counts as part of the previous
    /// address, because a password can contain a separator. See [`node`](Builder::node).
    ///
    /// ```
    /// use muxlock::Redlock;
    ///
    /// let redlock = Redlock::builder().nodes_from("redis://10.0.0.1,redis://10.0.0.2").build()?;
    /// assert_eq!(redlock.quorum(), 2);
    /// # Ok::<(), muxlock::error::ConfigError>(())
    /// ```
    pub fn nodes_from(self, list: &str) -> Builder {
        self.nodes(super::url::addresses(list))
    }

    /// How long to wait for the answer of a node before its vote counts as missing; 50 ms if not
    /// set.
    ///
    /// Choose it far below any TTL in use: it limits how long an attempt waits if a majority of the
    /// nodes is slow. Choose it above the round trip to each master that should vote. From 100 µs
    /// to one minute. On Linux, timeouts below 10 ms are accurate to a few tens of microseconds;
    /// elsewhere they are rounded up to a millisecond.
    pub fn node_timeout(self, node_timeout: Duration) -> Builder {
        Builder { node_timeout, ..self }
    }

    /// The limit for one connection attempt: lookup of the host name, connection, TLS handshake and
    /// the first commands together; 500 ms if not set. From 1 ms to one minute.
    pub fn connect_timeout(self, connect_timeout: Duration) -> Builder {
        Builder { connect_timeout, ..self }
    }

    /// The delays between rounds; see [`Retry`].
    pub fn retry(self, retry: Retry) -> Builder {
        Builder { retry, ..self }
    }

    /// How to wait for a lock that another client holds; [`Waiting::Queue`] if not set.
    pub fn waiting(self, waiting: Waiting) -> Builder {
        Builder { waiting, ..self }
    }

    /// A prefix for every key, before the resource name; at most 256 bytes. Empty if not set: then
    /// the keys are the same as in other Redlock clients, and both exclude each other.
    pub fn key_prefix(self, key_prefix: impl Into<Vec<u8>>) -> Builder {
        Builder { key_prefix: key_prefix.into(), ..self }
    }

    /// The longest TTL of a lock; 30 s if not set. A longer one fails with
    /// [`InvalidTtl`](crate::LockErrorKind::InvalidTtl). At most 2^31 - 1 ms.
    ///
    /// The client also assumes that no lock of another client has a longer TTL: it ignores a
    /// restarted master for this time, plus the clock drift on it, plus one second
    /// ([`RestartGuard`]). So **all clients of a resource must have the same value**. To raise it
    /// in a running system, first give all clients the new value, and then use longer TTLs. To
    /// lower it, first use shorter TTLs, wait until all longer locks have expired, and then give
    /// all clients the new value.
    pub fn max_ttl(self, max_ttl: Duration) -> Builder {
        Builder { max_ttl, ..self }
    }

    /// How the client treats masters that might have forgotten a lock; see [`RestartGuard`].
    ///
    /// The guard is on if this is not set. A master that was just started then does not vote for
    /// [`max_ttl`](Builder::max_ttl) plus about 1.3 s (with the default settings). Switch the guard
    /// off in development, and for tests that start their own masters.
    pub fn restart_guard(self, restart_guard: RestartGuard) -> Builder {
        Builder { restart_guard, ..self }
    }

    /// The name of a permanent key on each master that shows a flush to clients that connect later.
    /// None if not set; 1 to 256 bytes. The [`key_prefix`](Builder::key_prefix) is not added.
    ///
    /// A master notifies its connected clients of a flush, even if this is not set. With it, a
    /// client that connects also quarantines a master until this key is older than a quarantine. A
    /// flush deletes the key, and clients write it again. With [`RestartGuard::Off`], a client with
    /// this setting still heeds flushes.
    ///
    /// Use the key that clients write without this setting: the prefix, then `muxlock:marker`. With
    /// any other key, all masters are in quarantine at its first use. The client's user needs
    /// `TIME` and the right to the key.
    pub fn flush_marker(self, key: impl Into<Vec<u8>>) -> Builder {
        Builder { flush_marker: Some(key.into()), ..self }
    }

    /// Whether extensions, including automatic renewals, recreate a missing key on masters that
    /// have lost it. Off if not set. See [`Heal`] for the requirements.
    pub fn heal(self, heal: Heal) -> Builder {
        Builder { heal, ..self }
    }

    /// Replaces the lookup of host names; the system's lookup if not set. The function gets the
    /// name and the configured port. It can return addresses with other ports. It is for service
    /// discovery and for tests.
    ///
    /// The client calls it before each connection to a node whose address is a name, never for a
    /// numeric address or a Unix socket. The function can block: each lookup runs on its own
    /// thread, which ends with it. A node has at most one lookup at a time. If a lookup takes
    /// longer than the [`connect_timeout`](Builder::connect_timeout), the node gives no vote
    /// ([`Phase::Lookup`](crate::node::Phase::Lookup)). The lookup continues, and the next
    /// connection attempt uses its result. If a lookup fails, panics or finds no address, the node
    /// gives no vote either ([`NodeOutcome::Unresolved`](crate::node::NodeOutcome::Unresolved)).
    /// The client tries the node again with growing delays. If a lookup never returns, its thread
    /// stays, even after the client is dropped.
    ///
    /// The client uses the first 16 addresses. The [`RestartGuard`] treats a server at a new
    /// address as new, unless its `run_id` is unchanged. If a name resolves to another node's
    /// address, the node gives no vote ([`Unfit::Duplicate`](crate::node::Unfit::Duplicate)).
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
    /// # Ok::<(), muxlock::error::ConfigError>(())
    /// ```
    pub fn resolver<F>(self, resolver: F) -> Builder
    where
        F: Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    {
        Builder { resolver: Resolver::new(resolver), ..self }
    }

    /// Credentials that change, such as the tokens of a cloud service: for each node whose address
    /// has none. The function gets the node's address as reports show it, such as `10.0.0.1:6379`.
    ///
    /// The client calls it before each connection, even to a numeric address, on the thread of the
    /// lookup: see [`resolver`](Builder::resolver) for a function that blocks, is slow or never
    /// returns. Calls for several nodes can overlap. If a call fails or panics, the node gives no
    /// vote ([`NodeOutcome::NoCredentials`](crate::node::NodeOutcome::NoCredentials)), and the
    /// client asks again with growing delays. Reports and log records show the error, so leave
    /// secrets out of it. An established connection stays as it is when its token expires.
    ///
    /// ```no_run
    /// use muxlock::Redlock;
    /// use muxlock::settings::Credentials;
    ///
    /// # fn token(_: &str) -> std::io::Result<String> { Ok(String::new()) }
    /// let redlock = Redlock::builder()
    ///     .nodes(["rediss://redis-1", "rediss://redis-2", "rediss://redis-3"])
    ///     .credentials(|node| Ok(Credentials::new(token(node)?).user("locker")))
    ///     .build()?;
    /// # Ok::<(), muxlock::error::ConfigError>(())
    /// ```
    pub fn credentials<F>(self, credentials: F) -> Builder
    where
        F: Fn(&str) -> io::Result<Credentials> + Send + Sync + 'static,
    {
        Builder { login: Login::asked(None, credentials), ..self }
    }

    /// TLS settings for all nodes with `rediss://`. If not set, the client trusts the roots of the
    /// system and has no certificate. Feature `tls`.
    ///
    /// [`config`](Builder::config) fails if no node uses them.
    #[cfg(feature = "tls-no-provider")]
    pub fn tls(self, tls: Tls) -> Builder {
        Builder { tls: Some(tls), ..self }
    }

    /// Text that describes this client in `CLIENT LIST`, instead of its host, process id, program
    /// and start; at most 100 characters from `!` to `~`.
    ///
    /// Each connection has a name like
    /// `muxlock/0.1.0:tag=1a2b3c4d:mark=5f0bc61e93:pid=4711:host=web-3:cmd=orders:start=1764230000`,
    /// by which `muxlock inspect` shows who holds a lock. The tag is drawn for each client and ends
    /// all its tokens. The mark is equal in clients whose settings fit together. Arguments of the
    /// program are left out. With `client_name("orders/eu")`, the part after the mark is
    /// `:name=orders/eu`. With an empty text, it is `:name=`: choose that if other
    /// users of the servers must not learn host and program.
    pub fn client_name(self, name: impl Into<String>) -> Builder {
        Builder { client_name: Some(name.into()), ..self }
    }

    /// Checks the settings and reads the files that addresses name. It looks up no host name.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the wrong value. The client sends nothing to any master.
    pub fn config(&self) -> Result<Config, ConfigError> {
        Config::check(self)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses may contain passwords, and are not parsed yet.
        let mut shown = f.debug_struct("Builder");
        #[cfg(feature = "tls-no-provider")]
        shown.field("tls", &self.tls);
        shown
            .field("nodes", &self.nodes.len())
            .field("node_timeout", &self.node_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("retry", &self.retry)
            .field("key_prefix", &self.key_prefix.escape_ascii().to_string())
            .field("max_ttl", &self.max_ttl)
            .field("restart_guard", &self.restart_guard)
            .field("flush_marker", &self.flush_marker.as_ref().map(|key| key.escape_ascii()))
            .field("waiting", &self.waiting)
            .field("heal", &self.heal)
            .finish()
    }
}
