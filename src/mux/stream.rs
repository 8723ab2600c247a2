//! The bytes of a socket as they are on the wire, with TLS or without.

use std::io;
#[cfg(not(target_os = "linux"))]
use std::io::{Read, Write};

use mio::event::Source;
use mio::net::TcpStream;
#[cfg(unix)]
use mio::net::UnixStream;
#[cfg(target_os = "linux")]
use system_calls::SystemCalls;

/// A socket of either kind.
pub(super) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Stream {
    /// The socket, to be registered with the poll.
    pub(super) fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(stream) => stream,
            #[cfg(unix)]
            Stream::Unix(stream) => stream,
        }
    }

    /// Reads the available bytes.
    #[inline]
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            #[cfg(unix)]
            Stream::Unix(stream) => stream.read(into),
        }
    }

    /// Writes as much as the socket accepts.
    #[inline]
    pub(super) fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(from),
            #[cfg(unix)]
            Stream::Unix(stream) => stream.write(from),
        }
    }

    /// Writes as much of several pieces as the socket accepts.
    #[cfg(feature = "tls-no-provider")]
    pub(super) fn write_vectored(&mut self, from: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => io::Write::write_vectored(stream, from),
            #[cfg(unix)]
            Stream::Unix(stream) => io::Write::write_vectored(stream, from),
        }
    }

    /// The socket, if it has options of TCP.
    pub(super) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Tcp(stream) => Some(stream),
            #[cfg(unix)]
            Stream::Unix(_) => None,
        }
    }
}

/// Those of the C library are cancellation points, which takes them two calls and some atomic steps
/// more in a process with several threads.
#[cfg(target_os = "linux")]
mod system_calls {
    use std::io;
    use std::os::fd::AsFd;

    use rustix::net::{RecvFlags, SendFlags, recv, send};

    /// Of a socket.
    pub(super) trait SystemCalls: AsFd {
        #[inline]
        fn read(&self, into: &mut [u8]) -> io::Result<usize> {
            Ok(recv(self, into, RecvFlags::empty())?.1)
        }

        #[inline]
        fn write(&self, from: &[u8]) -> io::Result<usize> {
            Ok(send(self, from, SendFlags::NOSIGNAL)?)
        }
    }

    impl<S: AsFd> SystemCalls for S {}
}

/// The result of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// Some bytes; there may be more.
    Some,
    /// Some bytes; the poll will report further ones.
    Last,
    Nothing,
    Ended,
}

impl Received {
    /// The meaning of a read of so many bytes into so much room; there were some.
    #[inline(always)]
    pub(super) fn of(count: usize, room: usize) -> Received {
        // epoll reports a new edge after a short read; other systems do not.
        let short = cfg!(any(target_os = "linux", target_os = "android"));
        if short && count < room { Received::Last } else { Received::Some }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A program in another language may leave the signal as it is: it would end the process.
    #[test]
    fn write_to_a_peer_that_has_gone_is_an_error_and_no_signal() {
        let is_raised = Arc::new(AtomicBool::new(false));
        let signal = signal_hook::consts::SIGPIPE;
        let id = signal_hook::flag::register(signal, Arc::clone(&is_raised)).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let written = Stream::Unix(ours).write(b"PING\r\n");
        signal_hook::low_level::unregister(id);
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(!is_raised.load(Ordering::SeqCst));
    }
}
