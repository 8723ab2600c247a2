//! A multiplexer with a poll of its own, for event loops that are not mio's.

use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
#[cfg(unix)]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use mio::{Events, Poll, Token};

use super::Multiplexer;
use crate::config::Config;
use crate::error::LockError;
use crate::quorum::NODES_MAX;

/// A [`Multiplexer`] with a poll of its own: for event loops other than mio's, and for programs
/// that have none.
///
/// On Unix it is one file descriptor, that of its epoll or kqueue. Whatever waits for descriptors
/// can wait for it: `poll(2)`, another epoll, GLib, libuv, a runtime's reactor. It is readable
/// when there is something to do. For an event loop:
///
/// 1. start operations, and [`flush`](Multiplexer::flush);
/// 2. take what has ended: [`poll_done`](Multiplexer::poll_done) until it returns `None`;
/// 3. wait until the descriptor is readable, at most for
///    [`next_timeout`](Multiplexer::next_timeout);
/// 4. [`turn`](Standalone::turn), whatever ended the wait, and go on with 2.
///
/// Both matter: connections, retries and timeouts are announced by nothing but `next_timeout`, and
/// it is zero if a turn ended before everything was read. It makes no difference whether the
/// outer loop is told of levels or of edges: a turn leaves nothing announced.
///
/// Without another event loop, [`wait`](Standalone::wait) does steps 3 and 4.
///
/// ```no_run
/// # #[cfg(unix)] {
/// # fn wait_until_readable(_: std::os::fd::BorrowedFd<'_>, _: Option<std::time::Duration>) {}
/// use muxlock::{Done, Redlock, Standalone};
/// use std::os::fd::AsFd;
/// use std::time::Duration;
///
/// let config = Redlock::builder().node("redis://127.0.0.1").config()?;
/// let mut locks = Standalone::new(config)?;
/// let op = locks.lock("invoice:42", Duration::from_secs(10))?;
/// locks.flush();
/// let lease = loop {
///     if let Some((id, Done::Acquired(result))) = locks.poll_done() {
///         assert_eq!(id, op);
///         break result?;
///     }
///     // The event loop's own wait, for this descriptor among others.
///     wait_until_readable(locks.as_fd(), locks.next_timeout());
///     locks.turn()?;
/// };
/// # locks.abandon(lease);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Standalone {
    // Dropped first: its sockets are registered with the poll.
    mux: Multiplexer,
    poll: Poll,
    events: Events,
}

impl Standalone {
    /// A multiplexer with a poll of its own. Nothing is connected to before the first operation or
    /// [`connect`](Multiplexer::connect).
    ///
    /// # Errors
    /// The operating system's, if it has no descriptors left.
    pub fn new(config: Config) -> io::Result<Standalone> {
        let poll = Poll::new()?;
        let mux = Multiplexer::new(config, poll.registry(), Token(0))?;
        // There is room for an event of each node, so that one look leaves none behind.
        Ok(Standalone { mux, poll, events: Events::with_capacity(NODES_MAX) })
    }

    /// Does what there is to do, and waits for nothing: one look at the sockets, and what
    /// [`handle_events`](Multiplexer::handle_events) does, within the same bounds.
    ///
    /// # Errors
    /// As [`wait`](Standalone::wait).
    pub fn turn(&mut self) -> io::Result<()> {
        self.wait(Duration::ZERO)
    }

    /// Waits until there is something to do, at most for `limit`, and does it.
    ///
    /// It may return earlier, with nothing done. Results that nobody has taken are something to
    /// do: it does not wait for more of them.
    ///
    /// # Errors
    /// The operating system's. In a process that was forked from the one that made this, nothing is
    /// touched, and it fails: make one of its own there.
    pub fn wait(&mut self, limit: Duration) -> io::Result<()> {
        // To look would take away what is announced to the parent.
        if !self.mux.home.is_here() {
            return Err(LockError::forked().into());
        }
        let timeout = self.mux.next_timeout().map_or(limit, |next| next.min(limit));
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => other?,
        }
        self.mux.handle_events(&self.events);
        Ok(())
    }
}

impl Deref for Standalone {
    type Target = Multiplexer;

    fn deref(&self) -> &Multiplexer {
        &self.mux
    }
}

impl DerefMut for Standalone {
    fn deref_mut(&mut self) -> &mut Multiplexer {
        &mut self.mux
    }
}

/// To wait for, and for nothing else: reading from it or closing it does harm.
#[cfg(unix)]
impl AsFd for Standalone {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.registry().as_fd()
    }
}

/// To wait for, and for nothing else: reading from it or closing it does harm.
#[cfg(unix)]
impl AsRawFd for Standalone {
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}
