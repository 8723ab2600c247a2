//! Blocking connections to the masters of a configuration, for the command-line tool.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::config::{Config, NodeConfig, RestartGuard, Target};
use crate::moment::Moment;
use crate::mux::{Failover, ask_sentinels};
use crate::sys::clock::Clock;

/// A connected stream.
#[doc(hidden)]
pub trait Dialled: Read + Write + Send {}

impl<T: Read + Write + Send> Dialled for T {}

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
}

impl Config {
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    pub fn master(&self, node: usize) -> MasterSettings<'_> {
        let NodeConfig { address, target, user, password, db, restart_guard, durable, .. } =
            &self.nodes[node];
        MasterSettings {
            address,
            place: match target {
                Target::Address(address) => {
                    Place::Tcp { host: address.ip().to_string(), port: address.port() }
                }
                Target::Name { host, port } => Place::Tcp { host: host.clone(), port: *port },
                Target::Unix(path) => Place::Unix(path.clone()),
                Target::Sentinel(sentinels) => {
                    let ((host, port), service) = (&sentinels.hosts[0], &sentinels.service);
                    Place::Sentinel { host: host.clone(), port: *port, service: service.clone() }
                }
            },
            user: user.as_deref(),
            password: password.as_deref(),
            db: *db,
            restart_guard: *restart_guard,
            durable: *durable,
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
        }
    }

    /// What the Sentinels of a master say about a failover, if it has some. It may take a little
    /// longer than `within`.
    ///
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    pub fn failover(&self, node: usize, within: Duration) -> Option<io::Result<Failover>> {
        let Target::Sentinel(sentinels) = &self.nodes[node].target else {
            return None;
        };
        let asked = ask_sentinels(sentinels.clone(), self.resolver.clone(), within);
        Some(asked.map(|(failover, _)| failover))
    }

    /// Connects to a master, as locks do, and sends nothing. The lookup of its name, and whatever
    /// happens on the connection, fail with [`TimedOut`](ErrorKind::TimedOut) once `within` is
    /// over.
    ///
    /// # Panics
    /// If there is no such master.
    #[doc(hidden)]
    pub fn dial(&self, node: usize, within: Duration) -> io::Result<Box<dyn Dialled>> {
        let deadline = Clock.now().after(within);
        let (target, resolver) = (self.nodes[node].target.clone(), self.resolver.clone());
        // On a thread of its own: a lookup, and connecting to a Unix socket, may block for long.
        let (sender, connected) = sync_channel(1);
        let connect = move || {
            let stream = match target {
                Target::Address(address) => tcp(&[address], deadline),
                Target::Name { host, port } => {
                    let found = resolver.look_up(&host, port);
                    found.map_err(unresolved).and_then(|found| tcp(&found, deadline))
                }
                Target::Unix(path) => unix(path, deadline),
                Target::Sentinel(sentinels) => {
                    let master = ask_sentinels(sentinels, resolver, within);
                    master.and_then(|(_, found)| tcp(&found, deadline))
                }
            };
            // After the deadline, no caller waits for it.
            let _ = sender.send(stream);
        };
        std::thread::Builder::new().name("muxlock-dial".into()).spawn(connect)?;
        connected.recv_timeout(within).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    }
}

fn unresolved(_: io::Error) -> io::Error {
    io::Error::new(ErrorKind::NotFound, "the host name does not resolve")
}

/// The first address that accepts a connection.
fn tcp(addresses: &[SocketAddr], deadline: Moment) -> io::Result<Box<dyn Dialled>> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in addresses {
        let connected =
            left(deadline).and_then(|within| TcpStream::connect_timeout(address, within));
        match connected {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(Box::new(Timed { socket, deadline }));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(unix)]
fn unix(path: PathBuf, deadline: Moment) -> io::Result<Box<dyn Dialled>> {
    let socket = std::os::unix::net::UnixStream::connect(path)?;
    Ok(Box::new(Timed { socket, deadline }))
}

#[cfg(not(unix))]
fn unix(_: PathBuf, _: Moment) -> io::Result<Box<dyn Dialled>> {
    Err(ErrorKind::Unsupported.into())
}

fn left(deadline: Moment) -> io::Result<Duration> {
    let left = deadline.since(Clock.now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A blocking socket with one deadline for all that it does.
struct Timed<S> {
    socket: S,
    deadline: Moment,
}

trait Socket: Read + Write {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

#[cfg(unix)]
impl Socket for std::os::unix::net::UnixStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl<S: Socket> Timed<S> {
    fn in_time<T>(&mut self, act: impl FnOnce(&mut S) -> io::Result<T>) -> io::Result<T> {
        self.socket.set_timeout(left(self.deadline)?)?;
        act(&mut self.socket).map_err(|error| match error.kind() {
            // What sockets say when their timeout is over.
            ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

impl<S: Socket> Read for Timed<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.in_time(|socket| socket.read(bytes))
    }
}

impl<S: Socket> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.in_time(|socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
