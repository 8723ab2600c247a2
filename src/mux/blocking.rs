//! Blocking connections, for helper threads and the command-line tool.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::config::NodeConfig;
use crate::moment::Moment;
use crate::sys::clock::Clock;

/// A connected stream. All that happens on it has one deadline.
pub trait Dialled: Read + Write + Send {}

impl<T: Read + Write + Send> Dialled for T {}

/// The time on such a thread.
pub(super) fn now() -> Moment {
    Clock.now()
}

/// Connects to the first address that accepts a connection, with TLS if the node has it. An address
/// that says nothing leaves half of the time to those after it. Reads and writes on the connection
/// also end `within` this time.
pub(crate) fn dial(
    #[cfg_attr(not(feature = "tls-no-provider"), expect(unused_variables))] node: &NodeConfig,
    addresses: &[SocketAddr],
    within: Duration,
) -> io::Result<Box<dyn Dialled>> {
    let deadline = Clock.now().after(within);
    let stream = connect(addresses, deadline)?;
    #[cfg(feature = "tls-no-provider")]
    if let Some(tls) = &node.tls {
        let tls = tls.fresh().map_err(io::Error::other)?;
        return Ok(Box::new(super::tls::blocking(&tls, stream)?));
    }
    Ok(Box::new(stream))
}

/// Connects to a Unix socket, which may take longer.
#[cfg(all(unix, feature = "unstable-tool"))]
pub(crate) fn dial_unix(path: &std::path::Path, within: Duration) -> io::Result<Box<dyn Dialled>> {
    let deadline = Clock.now().after(within);
    let socket = std::os::unix::net::UnixStream::connect(path)?;
    Ok(Box::new(Timed { socket, deadline }))
}

#[cfg(all(not(unix), feature = "unstable-tool"))]
pub(crate) fn dial_unix(_: &std::path::Path, _: Duration) -> io::Result<Box<dyn Dialled>> {
    Err(ErrorKind::Unsupported.into())
}

fn connect(addresses: &[SocketAddr], deadline: Moment) -> io::Result<Timed<TcpStream>> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for (index, address) in addresses.iter().enumerate() {
        let is_last = index + 1 == addresses.len();
        let part = |left: Duration| if is_last { left } else { left / 2 };
        match left(deadline).and_then(|left| TcpStream::connect_timeout(address, part(left))) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                return Ok(Timed { socket, deadline });
            }
            Err(error) => last = error,
        }
    }
    Err(last)
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

trait ReadWrite: Read + Write {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
}

impl ReadWrite for TcpStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

#[cfg(all(unix, feature = "unstable-tool"))]
impl ReadWrite for std::os::unix::net::UnixStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl<S: ReadWrite> Timed<S> {
    fn in_time<T>(&mut self, mut act: impl FnMut(&mut S) -> io::Result<T>) -> io::Result<T> {
        // A signal interrupts sockets that have a timeout. It ends at the deadline.
        loop {
            self.socket.set_timeout(left(self.deadline)?)?;
            match act(&mut self.socket) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The errors of sockets whose timeout is over.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(ErrorKind::TimedOut.into());
                }
                done => return done,
            }
        }
    }
}

impl<S: ReadWrite> Read for Timed<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.in_time(|socket| socket.read(bytes))
    }
}

impl<S: ReadWrite> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.in_time(|socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    #[test]
    fn slow_an_address_that_says_nothing_leaves_time_to_the_next() {
        let silent = crate::mux::socket::narrow_listener();
        let address = silent.local_addr().unwrap();
        // Once its backlog is full, the system drops requests for a connection.
        let soon = Duration::from_millis(50);
        let full: Vec<_> =
            std::iter::from_fn(|| TcpStream::connect_timeout(&address, soon).ok()).collect();
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let next = listening.local_addr().unwrap();
        let stream = connect(&[address, address, next], Clock.now().after(LIMIT)).unwrap();
        assert_eq!(stream.socket.peer_addr().unwrap(), next);
        drop(full);
    }
}
