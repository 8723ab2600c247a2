//! One non-blocking socket to a node: it moves bytes and knows nothing about locks.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use mio::net::TcpStream;
#[cfg(unix)]
use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use socket2::{SockRef, TcpKeepalive};

use super::stream::{Received, Stream};
#[cfg(feature = "tls-no-provider")]
use super::tls::{Session, TlsFailure, TlsProgress};
use crate::config::NodeConfig;
use crate::resp::ReplyReader;

/// Unsent bytes of a socket beyond which the engine treats the node as blocked.
pub(super) const UNSENT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How often a socket is read before it is closed.
#[cfg(feature = "tls-no-provider")]
const DRAIN_READS_MAX: usize = 16;
/// Idle connections are probed after this time, and at this interval.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Bytes that stay unacknowledged for this long end the connection: a dead peer must not swallow
/// writes.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

/// How far a connection is.
pub(super) enum Stage {
    Connecting,
    /// The TLS handshake is in progress, and the poll will report further bytes.
    #[cfg(feature = "tls-no-provider")]
    Shaking,
    /// As above, and there may be further bytes already.
    #[cfg(feature = "tls-no-provider")]
    ShakingUnread,
    Connected,
}

pub(super) struct Socket {
    stream: Stream,
    registry: Arc<Registry>,
    #[cfg(feature = "tls-no-provider")]
    tls: Option<Box<Session>>,
    /// Whether it has a peer.
    pub(super) is_open: bool,
    /// Whether commands may be sent: with TLS, after its handshake.
    pub(super) connected: bool,
    pub(super) reader: ReplyReader,
    unsent: BytesMut,
}

impl Socket {
    pub(super) fn tcp(
        registry: &Arc<Registry>,
        token: Token,
        to: SocketAddr,
        #[cfg_attr(not(feature = "tls-no-provider"), expect(unused_variables))] node: &NodeConfig,
    ) -> io::Result<Socket> {
        #[cfg(feature = "tls-no-provider")]
        let tls = node.tls.as_ref().map(Session::new).transpose()?.map(Box::new);
        let socket = Socket::register(registry, token, Stream::Tcp(TcpStream::connect(to)?))?;
        #[cfg(feature = "tls-no-provider")]
        let socket = socket.encrypted(tls);
        Ok(socket)
    }

    #[cfg(feature = "tls-no-provider")]
    fn encrypted(mut self, tls: Option<Box<Session>>) -> Socket {
        self.tls = tls;
        self
    }

    #[cfg(unix)]
    pub(super) fn unix(registry: &Arc<Registry>, token: Token, to: &Path) -> io::Result<Socket> {
        // A full backlog is reported here as WouldBlock, and never by an event.
        Socket::register(registry, token, Stream::Unix(UnixStream::connect(to)?))
    }

    #[cfg(not(unix))]
    pub(super) fn unix(_: &Arc<Registry>, _: Token, _: &Path) -> io::Result<Socket> {
        Err(io::Error::new(ErrorKind::Unsupported, "no Unix sockets on this system"))
    }

    fn register(registry: &Arc<Registry>, token: Token, mut stream: Stream) -> io::Result<Socket> {
        let registry = Arc::clone(registry);
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(stream.source(), token, interest)?;
        let (reader, unsent) = (ReplyReader::new(), BytesMut::new());
        Ok(Socket {
            stream,
            registry,
            #[cfg(feature = "tls-no-provider")]
            tls: None,
            is_open: false,
            connected: false,
            reader,
            unsent,
        })
    }

    /// Whether the socket needs nothing but reading.
    pub(super) fn is_flowing(&self) -> bool {
        self.connected && self.unsent.is_empty()
    }

    /// Whether the connection has a peer: with TLS, its handshake may follow. Fails with the error
    /// of a socket that has none; of another one, reading finds the error.
    pub(super) fn has_peer(&self) -> io::Result<bool> {
        let socket = match &self.stream {
            Stream::Tcp(stream) => SockRef::from(stream),
            #[cfg(unix)]
            Stream::Unix(stream) => SockRef::from(stream),
        };
        let Err(error) = socket.peer_addr() else { return Ok(true) };
        match socket.take_error()? {
            Some(error) => Err(error),
            None if error.kind() == ErrorKind::NotConnected => Ok(false),
            None => Err(error),
        }
    }

    /// Goes on with connecting. Readiness is only a hint.
    pub(super) fn finish_connecting(&mut self) -> io::Result<Stage> {
        if !self.is_open {
            if !self.has_peer()? {
                return Ok(Stage::Connecting);
            }
            self.is_open = true;
            if let Some(stream) = self.stream.tcp() {
                tune(stream);
            }
        }
        #[cfg(feature = "tls-no-provider")]
        if let Some(tls) = self.tls.as_mut().filter(|_| !self.connected) {
            if !self.unsent.is_empty() {
                send_rest(&mut self.stream, &mut self.unsent)?;
            }
            match tls.handshake(&mut self.stream, &mut self.unsent)? {
                TlsProgress::Waiting => return Ok(Stage::Shaking),
                TlsProgress::Unread => return Ok(Stage::ShakingUnread),
                TlsProgress::Over => {}
            }
        }
        self.connected = true;
        Ok(Stage::Connected)
    }

    /// Why TLS failed, if it did.
    #[cfg(feature = "tls-no-provider")]
    pub(super) fn tls_failure(&self) -> Option<&TlsFailure> {
        self.tls.as_ref()?.failure.as_ref()
    }

    /// Sends the bytes, and keeps those that the socket does not accept.
    #[inline(always)]
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        #[cfg(feature = "tls-no-provider")]
        if let Some(tls) = &mut self.tls {
            return tls.send(bytes, &mut self.stream, &mut self.unsent);
        }
        if !self.unsent.is_empty() {
            self.unsent.extend_from_slice(bytes);
            return Ok(());
        }
        match self.stream.write(bytes) {
            Ok(count) if count == bytes.len() => Ok(()),
            written => self.send_with(bytes, written),
        }
    }

    /// Sends the rest of the first write, or keeps it.
    #[cold]
    fn send_with(&mut self, bytes: &[u8], written: io::Result<usize>) -> io::Result<()> {
        let sent = match written {
            Ok(0) if !bytes.is_empty() => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        let rest = &bytes[sent..];
        let sent = write_some(&mut self.stream, rest)?;
        self.unsent.extend_from_slice(&rest[sent..]);
        Ok(())
    }

    /// Sends the bytes that were kept.
    pub(super) fn send_rest(&mut self) -> io::Result<()> {
        send_rest(&mut self.stream, &mut self.unsent)
    }

    pub(super) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Reads once into the reader's buffer.
    #[inline(always)]
    pub(super) fn receive(&mut self) -> io::Result<Received> {
        #[cfg(feature = "tls-no-provider")]
        if let Some(tls) = &mut self.tls {
            return tls.receive(&mut self.stream, &mut self.unsent, &mut self.reader);
        }
        loop {
            let room = self.reader.room();
            let size = room.len();
            match self.stream.read(room) {
                Ok(0) => return Ok(Received::Ended),
                Ok(count) => {
                    self.reader.filled(count);
                    return Ok(Received::of(count, size));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Received::Nothing);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the connection at once, so that the kernel does not retransmit unsent bytes for
    /// minutes.
    pub(super) fn abort(self) {
        if let Some(stream) = self.stream.tcp() {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        #[cfg(feature = "tls-no-provider")]
        if self.tls.is_some() {
            drain(&mut self.stream);
        }
        let _ = self.registry.deregister(self.stream.source());
    }
}

/// Writes until all is written or the socket accepts no more.
fn write_some(stream: &mut Stream, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Reads the available bytes, so that closing the socket does not reset the connection.
/// `redis-server` reads one record of TLS at a time, and drops those that are left when it finds a
/// reset: among them may be a release.
#[cfg(feature = "tls-no-provider")]
fn drain(stream: &mut Stream) {
    let mut bytes = [0; 4096];
    for _ in 0..DRAIN_READS_MAX {
        match stream.read(&mut bytes) {
            Ok(1..) => {}
            Ok(0) | Err(_) => break,
        }
    }
}

fn send_rest(stream: &mut Stream, unsent: &mut BytesMut) -> io::Result<()> {
    let sent = write_some(stream, unsent)?;
    unsent.advance(sent);
    Ok(())
}

/// Correctness needs none of these options, so none may fail a connection.
fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos", windows))]
    let keepalive = keepalive.with_interval(KEEPALIVE);
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&keepalive);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
}

/// A listener with the smallest backlog that there is; no thread accepts its connections.
#[cfg(all(test, target_os = "linux"))]
pub(super) fn narrow_listener() -> std::net::TcpListener {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).listen(0).unwrap();
    listener
}
