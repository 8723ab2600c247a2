//! Blocking connections to the masters of a configuration, for the command-line tool.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::{ConnectError, Redlock};
use crate::config::{Config, NodeConfig, RestartGuard, Sentinels, Target};
use crate::mux::{Dialled, Failover, ask_sentinels, dial, dial_unix};
#[cfg(feature = "tls-no-provider")]
use crate::outcome::TlsErrorKind;
use crate::outcome::{NodeOutcome, NodeReport, explained, explained_start, printable};

/// Where a master listens.
#[doc(hidden)]
pub enum Place {
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
    /// Where the first of its Sentinels is, and the name that they have for it.
    Sentinel {
        host: String,
        port: u16,
        service: String,
        /// The user whom the Sentinels know, if they have a password.
        user: Option<String>,
        has_password: bool,
    },
}

/// The settings of a master. Not `Debug`: it may have a password.
#[doc(hidden)]
pub struct MasterSettings<'a> {
    /// Without credentials.
    pub address: &'a str,
    pub place: Place,
    pub user: Option<&'a str>,
    pub password: Option<&'a str>,
    pub db: u32,
    pub restart_guard: RestartGuard,
    pub durable: bool,
    /// For TLS.
    pub tls: Option<TlsSettings<'a>>,
}

/// What an address says of TLS, with the paths of its files.
#[doc(hidden)]
#[derive(Default)]
pub struct TlsSettings<'a> {
    pub ca: Option<&'a str>,
    pub cert: Option<&'a str>,
    pub key: Option<&'a str>,
    pub server_name: Option<&'a str>,
    /// Whether every server is trusted: `verify=no`.
    pub is_unverified: bool,
}

/// The settings that all masters of a client have in common.
#[doc(hidden)]
pub struct CommonSettings<'a> {
    pub node_timeout: Duration,
    pub connect_timeout: Duration,
    /// The shortest TTL that leaves any validity, and the longest.
    pub min_ttl: Duration,
    pub max_ttl: Duration,
    /// How long the votes of a master that may have forgotten a lock do not count.
    pub quarantine: Duration,
    pub drift_factor: f64,
    pub key_prefix: &'a [u8],
    pub flush_marker: Option<&'a [u8]>,
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

impl Config {
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    pub fn master(&self, node: usize) -> MasterSettings<'_> {
        let of = &self.nodes[node];
        let NodeConfig { address, target, user, password, db, restart_guard, durable, .. } = of;
        MasterSettings {
            address,
            place: match target {
                Target::Address(address) => {
                    Place::Tcp { host: address.ip().to_string(), port: address.port() }
                }
                Target::Name { host, port } => Place::Tcp { host: host.clone(), port: *port },
                Target::Unix(path) => Place::Unix(path.clone()),
                Target::Sentinel(sentinels) => {
                    let (host, port) = sentinels.hosts[0].clone();
                    let Sentinels { service, user, password, .. } = &**sentinels;
                    let (service, user) = (service.clone(), user.clone());
                    let has_password = password.is_some();
                    Place::Sentinel { host, port, service, user, has_password }
                }
            },
            user: user.as_deref(),
            password: password.as_deref(),
            db: *db,
            restart_guard: *restart_guard,
            durable: *durable,
            tls: of.tls_settings(),
        }
    }

    #[doc(hidden)]
    pub fn common(&self) -> CommonSettings<'_> {
        CommonSettings {
            node_timeout: self.node_timeout,
            connect_timeout: self.connect_timeout,
            min_ttl: self.drift.ttl_min(),
            max_ttl: self.max_ttl,
            quarantine: self.quarantine,
            drift_factor: self.drift.over(Duration::from_secs(1)).as_secs_f64(),
            key_prefix: &self.key_prefix,
            flush_marker: self.flush_marker.as_ref().map(|key| key.as_bytes()),
            sighting_key: self.sighting_key.as_bytes(),
        }
    }

    /// What the Sentinels of a master say about a failover, if it has some. It may take a little
    /// longer than `within`.
    ///
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    pub fn failover(&self, node: usize, within: Duration) -> Option<io::Result<Failover>> {
        let Target::Sentinel(_) = &self.nodes[node].target else {
            return None;
        };
        let asked = ask_sentinels(&self.nodes[node], &self.resolver, within);
        Some(asked.map(|(failover, _)| failover))
    }

    /// Connects to a master, as locks do, and sends nothing. The lookup of its name, and whatever
    /// happens on the connection, fail with [`TimedOut`](ErrorKind::TimedOut) once `within` is
    /// over. An error with a text of its own says why.
    ///
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    pub fn dial(&self, node: usize, within: Duration) -> io::Result<Box<dyn Dialled>> {
        self.dial_as(self.nodes[node].clone(), within)
    }

    /// As [`dial`](Config::dial), to one of the addresses of its name.
    ///
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    pub fn dial_at(
        &self,
        node: usize,
        address: SocketAddr,
        within: Duration,
    ) -> io::Result<Box<dyn Dialled>> {
        let mut of = self.nodes[node].clone();
        of.target = Target::Address(address);
        self.dial_as(of, within)
    }

    /// All addresses that a master's name has now; none if it has no name, or if they are not found
    /// within this time.
    ///
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    pub fn look_up(&self, node: usize, within: Duration) -> Vec<SocketAddr> {
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

    /// Whether the client would trust a master's certificate so much later; `None` if its address
    /// is one without TLS, or trusts every server.
    ///
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    #[cfg(feature = "tls-no-provider")]
    pub fn trusts_later(
        &self,
        node: usize,
        by: Duration,
        within: Duration,
    ) -> Option<io::Result<bool>> {
        let mut of = self.nodes[node].clone();
        of.tls = Some(of.tls.filter(|tls| !tls.url.is_unverified)?.later(by));
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

    /// As above; the client knows no TLS.
    #[doc(hidden)]
    #[cfg(not(feature = "tls-no-provider"))]
    pub fn trusts_later(&self, _: usize, _: Duration, _: Duration) -> Option<io::Result<bool>> {
        None
    }

    /// What a client reports of a master that it cannot reach or use; `None` if it can, or if a
    /// client cannot be made. It may take a little longer than the `connect_timeout`.
    ///
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    pub fn unreachable(&self, node: usize) -> Option<NodeReport> {
        let mut alone = self.clone();
        alone.nodes = vec![self.nodes[node].clone()];
        let client = Redlock::with_config(alone).ok()?;
        match client.wait_until_connected() {
            Err(ConnectError::Unavailable(error)) => error.nodes().first().cloned(),
            Ok(()) | Err(ConnectError::Config(_)) => None,
        }
    }

    fn dial_as(&self, of: NodeConfig, within: Duration) -> io::Result<Box<dyn Dialled>> {
        let resolver = self.resolver.clone();
        // On a thread of its own: a lookup, and connecting to a Unix socket, may block for long.
        let (sender, connected) = sync_channel(1);
        let connect = move || {
            let stream = match &of.target {
                Target::Address(address) => dial(&of, &[*address], within),
                Target::Name { host, port } => {
                    let found = resolver.look_up(host, *port);
                    found.map_err(unresolved).and_then(|found| dial(&of, &found, within))
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
    without_address(NodeOutcome::NoSentinel, &error)
}

fn unresolved(error: io::Error) -> io::Error {
    without_address(NodeOutcome::Unresolved, &error)
}

fn without_address(outcome: NodeOutcome, error: &io::Error) -> io::Error {
    let why = printable(&explained(error));
    io::Error::new(ErrorKind::NotFound, format!("{outcome}: {why}"))
}
