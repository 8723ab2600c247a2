//! What the package `muxlock-cli`, the command-line tool, needs of the library beyond its public
//! interface: feature `unstable-tool`.
//!
//! **Semantic versioning does not cover this module.** Any release may change it.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::client::{ConnectError, LockParts, Redlock};
#[cfg(feature = "env")]
pub use crate::config::env::{
    Setting, Variables, duration, not_known, read as read_small, setting_keys, shown, warn_if_open,
    with_credentials, with_settings,
};
pub use crate::config::mark::MARKED;
use crate::config::{
    Config, Credentials, Login, NodeConfig, Notices, RestartGuard, Sentinels, Target,
};
use crate::keep_alive::Loss;
use crate::lock_error::LockError;
pub use crate::mux::Dialled;
use crate::mux::{Multiplexer, ask_sentinels, dial, dial_unix, of_process};
#[cfg(feature = "tls-no-provider")]
use crate::outcome::TlsErrorKind;
use crate::outcome::{NodeOutcome, NodeReport, explained_lookup};
pub use crate::outcome::{explained, explained_connection, explained_start, printable};
use crate::proto::status::{self, NodeState};
use crate::proto::{Lease, NodeStatus, OpId};
pub use crate::resp::Failover;
pub use crate::testing::process::Folder;
pub use crate::testing::query::Connection;
pub use crate::validity::DRIFT_DIVISOR;

/// The script that releases a plain lock, as it is sent.
pub const RELEASE: &str = crate::resp::RELEASE;

/// The text of an error, with the options of the tool in place of settings of the library.
pub fn in_the_tool(error: &LockError) -> impl fmt::Display {
    error.in_the_tool()
}

/// Why a lock was lost, in words that fit the error of the renewal.
pub fn reason(loss: &Loss) -> String {
    loss.reason()
}

/// Why an acquisition that waits has no lock yet: the result of its last round, if there was one.
pub fn last_refusal(mux: &Multiplexer, id: OpId) -> Option<&LockError> {
    status::last_refusal(mux.engine(), id)
}

/// Why a master gives no vote, by its status; `None` if it can vote, or is still connecting.
pub fn obstacle(status: &NodeStatus) -> Option<NodeReport> {
    let NodeStatus { node, quarantine, .. } = *status;
    let last = status.last_outcome.map(|(outcome, _)| outcome).filter(NodeOutcome::is_failure);
    let (outcome, message) = match status.state {
        NodeState::Ready => (last?, &status.last_message),
        NodeState::Quarantined => (NodeOutcome::Quarantined, &None),
        _ => (status.last_failure?, &status.last_message),
    };
    let (address, message) = (status.address.clone(), message.clone());
    Some(NodeReport { node, address, outcome, latency: None, message, quarantine })
}

/// The lock of a lease that its multiplexer has [let go](crate::Multiplexer::let_go).
pub fn parts(lease: Lease) -> LockParts {
    LockParts(lease)
}

/// Where a master listens.
pub enum MasterEndpoint {
    /// At a port of a host.
    Tcp {
        /// A name or an address.
        host: String,
        /// Its port.
        port: u16,
    },
    /// At a Unix socket.
    Unix(PathBuf),
    /// Where the first of its Sentinels is, and the name that they have for it.
    Sentinel {
        /// The host of that Sentinel.
        host: String,
        /// Its port.
        port: u16,
        /// The name of the master.
        service: String,
        /// The user for the Sentinels, if they have a password.
        user: Option<String>,
        /// Whether the Sentinels have a password.
        has_password: bool,
    },
}

/// The settings of a master.
pub struct MasterSettings<'a> {
    /// Without credentials.
    pub address: &'a str,
    /// Where it listens.
    pub endpoint: MasterEndpoint,
    /// The user to log in as, if it is not the default one.
    pub user: Option<&'a str>,
    /// Whether it has a password.
    pub has_password: bool,
    /// The number of its database.
    pub db: u32,
    /// Its restart guard.
    pub restart_guard: RestartGuard,
    /// Whether its clients refuse it if it tells of no flush.
    pub needs_notices: bool,
    /// For TLS.
    pub tls: Option<TlsSettings<'a>>,
}

/// The TLS settings of an address, with the paths of its files.
#[derive(Default)]
pub struct TlsSettings<'a> {
    /// The file of the roots that are trusted.
    pub ca: Option<&'a str>,
    /// The file of the client's certificate.
    pub cert: Option<&'a str>,
    /// The file of the client's key.
    pub key: Option<&'a str>,
    /// The name that the server's certificate must have.
    pub server_name: Option<&'a str>,
    /// Whether every server is trusted: `verify=no`.
    pub is_unverified: bool,
}

/// The settings that all masters of a client have in common.
pub struct CommonSettings<'a> {
    /// How long to wait for a reply.
    pub node_timeout: Duration,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// The longest TTL.
    pub max_ttl: Duration,
    /// How long the votes of a master that may have forgotten a lock do not count.
    pub quarantine: Duration,
    /// A mark over the settings that must be equal in all clients: two digits for each of
    /// [`MARKED`].
    pub mark: &'a str,
    /// The beginning of every key.
    pub key_prefix: &'a [u8],
    /// The key whose absence shows that a master was flushed, if the settings name one.
    pub flush_marker: Option<&'a [u8]>,
    /// The same, or the one that clients use of their own accord.
    pub marker_key: &'a [u8],
    /// The key that says when clients first saw a promoted master.
    pub sighting_key: &'a [u8],
}

impl NodeConfig {
    #[cfg(feature = "tls-no-provider")]
    fn tls_settings(&self) -> Option<TlsSettings<'_>> {
        let tls = &self.tls.as_ref()?.url;
        Some(TlsSettings {
            ca: tls.ca.as_deref(),
            cert: tls.client.as_ref().map(|(cert, _)| &**cert),
            key: tls.client.as_ref().map(|(_, key)| &**key),
            server_name: tls.server_name.as_deref(),
            is_unverified: tls.is_unverified,
        })
    }

    #[cfg(not(feature = "tls-no-provider"))]
    fn tls_settings(&self) -> Option<TlsSettings<'_>> {
        None
    }
}

/// Settings of a client, and connections to its masters.
///
/// # Panics
/// Each method that takes the number of a master panics if there is no such master.
pub trait ConfigExt {
    /// The settings of a master.
    fn master(&self, node: usize) -> MasterSettings<'_>;

    /// The user and the password to log in with now, if it has any.
    fn login(&self, node: usize) -> io::Result<Option<(Option<String>, String)>>;

    /// Its clients say that they run this program, unless they have another
    /// [`client_name`](crate::Builder::client_name).
    fn on_behalf_of(self, program: &OsStr) -> Self;

    /// The settings that all masters have in common.
    fn common(&self) -> CommonSettings<'_>;

    /// The answer of a master's Sentinels about a failover, if it has some. It may take a little
    /// longer than `within`.
    fn failover(&self, node: usize, within: Duration) -> Option<io::Result<Failover>>;

    /// Connects to a master, as locks do, and sends nothing. The lookup of its name, and everything
    /// that happens on the connection, fail with [`TimedOut`](ErrorKind::TimedOut) once `within` is
    /// over. An error with a text of its own says why.
    fn dial(&self, node: usize, within: Duration) -> io::Result<Box<dyn Dialled>>;

    /// As [`dial`](ConfigExt::dial), to one of the addresses of its name.
    fn dial_at(
        &self,
        node: usize,
        address: SocketAddr,
        within: Duration,
    ) -> io::Result<Box<dyn Dialled>>;

    /// All addresses that a master's name has now; none if it has no name, or if they are not found
    /// within this time.
    fn look_up(&self, node: usize, within: Duration) -> Vec<SocketAddr>;

    /// Whether the client would trust a master's certificate so much later; `None` if its address
    /// is one without TLS, or trusts every server.
    fn trusts_later(&self, node: usize, by: Duration, within: Duration)
    -> Option<io::Result<bool>>;

    /// The outcome that a client reports for a master that it cannot reach or use; `None` if it
    /// can, or if a client cannot be made. It may take a little longer than the `connect_timeout`.
    fn unreachable(&self, node: usize) -> Option<NodeReport>;
}

impl ConfigExt for Config {
    fn master(&self, node: usize) -> MasterSettings<'_> {
        let of = &self.nodes[node];
        let NodeConfig { address, target, login, db, restart_guard, notices, .. } = of;
        let is_guarded = *restart_guard != RestartGuard::Off;
        MasterSettings {
            address,
            endpoint: match target {
                Target::Address(address) => {
                    MasterEndpoint::Tcp { host: address.ip().to_string(), port: address.port() }
                }
                Target::Name { host, port } => {
                    MasterEndpoint::Tcp { host: host.clone(), port: *port }
                }
                Target::Unix(path) => MasterEndpoint::Unix(path.clone()),
                Target::Sentinel(sentinels) => {
                    let (host, port) = sentinels.hosts[0].clone();
                    let Sentinels { service, user, password, .. } = &**sentinels;
                    let (service, user) = (service.clone(), user.clone());
                    let has_password = password.is_some();
                    MasterEndpoint::Sentinel { host, port, service, user, has_password }
                }
            },
            user: match login {
                Login::None => None,
                Login::Fixed(Credentials { user, .. }) | Login::Asked { user, .. } => {
                    user.as_deref()
                }
            },
            has_password: !matches!(login, Login::None),
            db: *db,
            restart_guard: *restart_guard,
            needs_notices: is_guarded && *notices == Notices::Required,
            tls: of.tls_settings(),
        }
    }

    fn login(&self, node: usize) -> io::Result<Option<(Option<String>, String)>> {
        let NodeConfig { login, address, .. } = &self.nodes[node];
        Ok(login.ask(address)?.map(|Credentials { user, password }| (user, password)))
    }

    fn on_behalf_of(mut self, program: &OsStr) -> Self {
        if self.client_name.is_empty() {
            self.client_name = of_process(Some(program)).into();
        }
        self
    }

    fn common(&self) -> CommonSettings<'_> {
        CommonSettings {
            node_timeout: self.node_timeout,
            connect_timeout: self.connect_timeout,
            max_ttl: self.max_ttl,
            quarantine: self.quarantine,
            mark: &self.mark,
            key_prefix: &self.key_prefix,
            flush_marker: self.flush_marker.as_ref().map(|key| key.as_bytes()),
            marker_key: self.marker_key.as_bytes(),
            sighting_key: self.sighting_key.as_bytes(),
        }
    }

    fn failover(&self, node: usize, within: Duration) -> Option<io::Result<Failover>> {
        let Target::Sentinel(_) = &self.nodes[node].target else {
            return None;
        };
        let asked = ask_sentinels(&self.nodes[node], &self.resolver, within);
        Some(asked.map(|(failover, _)| failover))
    }

    fn dial(&self, node: usize, within: Duration) -> io::Result<Box<dyn Dialled>> {
        self.dial_as(self.nodes[node].clone(), within)
    }

    fn dial_at(
        &self,
        node: usize,
        address: SocketAddr,
        within: Duration,
    ) -> io::Result<Box<dyn Dialled>> {
        let mut of = self.nodes[node].clone();
        of.target = Target::Address(address);
        self.dial_as(of, within)
    }

    fn look_up(&self, node: usize, within: Duration) -> Vec<SocketAddr> {
        let Target::Name { host, port } = &self.nodes[node].target else {
            return Vec::new();
        };
        let (resolver, host, port) = (self.resolver.clone(), host.clone(), *port);
        let (sender, found) = sync_channel(1);
        let look_up = move || {
            // After the deadline, no caller waits for it.
            let _ = sender.send(resolver.look_up(&host, port).unwrap_or_default());
        };
        match std::thread::Builder::new().name("muxlock-lookup".into()).spawn(look_up) {
            Ok(_) => found.recv_timeout(within).unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    #[cfg(feature = "tls-no-provider")]
    fn trusts_later(
        &self,
        node: usize,
        by: Duration,
        within: Duration,
    ) -> Option<io::Result<bool>> {
        let mut of = self.nodes[node].clone();
        let tls = of.tls.filter(|tls| !tls.url.is_unverified)?;
        of.tls = Some(tls.fresh().unwrap_or(tls).later(by));
        let is_expired = |error: &io::Error| {
            let source = error.get_ref().and_then(|inner| inner.source());
            source.and_then(|kind| kind.downcast_ref()) == Some(&TlsErrorKind::Expired)
        };
        Some(match self.dial_as(of, within) {
            Ok(_) => Ok(true),
            Err(error) if is_expired(&error) => Ok(false),
            Err(error) => Err(error),
        })
    }

    #[cfg(not(feature = "tls-no-provider"))]
    fn trusts_later(&self, _: usize, _: Duration, _: Duration) -> Option<io::Result<bool>> {
        None
    }

    fn unreachable(&self, node: usize) -> Option<NodeReport> {
        let mut alone = self.clone();
        alone.nodes = vec![self.nodes[node].clone()];
        let client = Redlock::with_config(alone).ok()?;
        match client.wait_until_connected() {
            Err(ConnectError::Unavailable(error)) => error.nodes().first().cloned(),
            Ok(()) | Err(ConnectError::Config(_)) => None,
        }
    }
}

impl Config {
    fn dial_as(&self, of: NodeConfig, within: Duration) -> io::Result<Box<dyn Dialled>> {
        let resolver = self.resolver.clone();
        // On a thread of its own: a lookup, and connecting to a Unix socket, may block for long.
        let (sender, connected) = sync_channel(1);
        let connect = move || {
            let stream = match &of.target {
                Target::Address(address) => dial(&of, &[*address], within),
                Target::Name { host, port } => {
                    let found = resolver.look_up(host, *port);
                    let found = found.map_err(|error| unresolved(&error, host));
                    found.and_then(|found| dial(&of, &found, within))
                }
                Target::Unix(path) => dial_unix(path, within),
                Target::Sentinel(_) => {
                    let found = ask_sentinels(&of, &resolver, within).map_err(unnamed);
                    found.and_then(|(_, found)| dial(&of, &found, within))
                }
            };
            // After the deadline, no caller waits for it.
            let _ = sender.send(stream);
        };
        std::thread::Builder::new().name("muxlock-dial".into()).spawn(connect).map_err(
            |error| {
                io::Error::other(format!("no thread to connect with: {}", explained_start(&error)))
            },
        )?;
        connected.recv_timeout(within).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    }
}

fn unnamed(error: io::Error) -> io::Error {
    without_address(NodeOutcome::NoSentinel, &explained(&error))
}

fn unresolved(error: &io::Error, host: &str) -> io::Error {
    without_address(NodeOutcome::Unresolved, &explained_lookup(error, host))
}

fn without_address(outcome: NodeOutcome, why: &str) -> io::Error {
    io::Error::new(ErrorKind::NotFound, format!("{outcome}: {}", printable(why)))
}
