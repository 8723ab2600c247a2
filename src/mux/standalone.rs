//! A multiplexer with its own poll, for event loops other than mio's.

use std::io::{self, ErrorKind};
#[cfg(unix)]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use mio::{Events, Poll, Token};

use super::Multiplexer;
use crate::config::Config;
use crate::quorum::NODES_MAX;

/// A [`Multiplexer`] with its own poll: for event loops other than mio's, and for programs without
/// an event loop.
///
/// On Unix it exposes one file descriptor, that of its epoll or kqueue. Any event loop can wait for
/// it: `poll(2)`, another epoll, GLib, libuv, a runtime's reactor. It is readable when a socket has
/// an event. Elsewhere only [`wait`](Standalone::wait) and [`turn`](Standalone::turn) are
/// available. In an event loop:
///
/// 1. start operations, then [`flush`](Multiplexer::flush);
/// 2. take results: [`poll_done`](Multiplexer::poll_done) until it returns `None`;
/// 3. wait until the descriptor is readable, for at most
///    [`next_timeout`](Multiplexer::next_timeout);
/// 4. call [`turn`](Standalone::turn), even after a timeout, and continue with 2.
///
/// The timeout matters as much as the descriptor. Only `next_timeout` announces reconnects,
/// retries and timeouts, and it is zero if a turn ended before everything was read. The outer loop
/// may be level-triggered or edge-triggered, because a turn handles all pending events.
///
/// Without another event loop, [`wait`](Standalone::wait) does steps 3 and 4.
///
/// It is `Send` and `Sync`, so the tasks of an async runtime can own or share it. Two examples are
/// `examples/loops/async_fd.rs`, for tokio, and `examples/loops/calloop.rs`, for calloop.
///
/// ```no_run
/// # #[cfg(unix)] {
/// # fn wait_until_readable(_: std::os::fd::BorrowedFd<'_>, _: Option<std::time::Duration>) {}
/// use muxlock::proto::Done;
/// use muxlock::{Redlock, Standalone};
/// use std::os::fd::AsFd;
/// use std::time::Duration;
///
/// let config = Redlock::builder().node("redis://127.0.0.1").config()?;
/// let mut locks = Standalone::new(config)?;
/// let op = locks.mux_mut().try_lock("invoice:42", Duration::from_secs(10))?;
/// locks.mux_mut().flush();
/// let lease = loop {
///     if let Some((id, Done::Acquired(result))) = locks.mux_mut().poll_done() {
///         assert_eq!(id, op);
///         break result?;
///     }
///     // The event loop's own wait, for this descriptor among others.
///     wait_until_readable(locks.as_fd(), locks.mux().next_timeout());
///     locks.turn()?;
/// };
/// # locks.mux_mut().abandon(lease);
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
    /// A multiplexer with its own poll. It connects to no master before the first operation or
    /// [`connect`](Multiplexer::connect).
    ///
    /// # Errors
    /// The operating system's error, if it has no descriptors left.
    pub fn new(config: Config) -> io::Result<Standalone> {
        let poll = Poll::new()?;
        let mux = Multiplexer::new(config, poll.registry(), Token(0))?;
        // There is room for one event per node, so that one poll leaves none behind.
        Ok(Standalone { mux, poll, events: Events::with_capacity(NODES_MAX) })
    }

    /// Borrows the multiplexer, to read its state.
    pub fn mux(&self) -> &Multiplexer {
        &self.mux
    }

    /// Borrows the multiplexer, to start operations and to take their results.
    pub fn mux_mut(&mut self) -> &mut Multiplexer {
        &mut self.mux
    }

    /// Does all pending work without waiting: polls the sockets once, then handles the events like
    /// [`handle_events`](Multiplexer::handle_events), within the same bounds.
    ///
    /// # Errors
    /// The same errors as [`wait`](Standalone::wait).
    pub fn turn(&mut self) -> io::Result<()> {
        self.wait(Duration::ZERO)
    }

    /// Waits until there is something to do, for at most `limit`, and does it.
    ///
    /// It can return early without having done anything. It does not wait while
    /// [`poll_done`](Multiplexer::poll_done) has results.
    ///
    /// # Errors
    /// The operating system's error. In a process forked from the one that created this, it touches
    /// nothing and fails: create a new one in that process.
    pub fn wait(&mut self, limit: Duration) -> io::Result<()> {
        // Polling would consume events of the parent.
        self.mux.check_owner_process()?;
        let timeout = self.mux.next_timeout().map_or(limit, |next| next.min(limit));
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => other?,
        }
        self.mux.handle_events(&self.events);
        Ok(())
    }
}

/// Only for waiting: reading from the descriptor or closing it does harm.
#[cfg(unix)]
impl AsFd for Standalone {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.registry().as_fd()
    }
}

/// Only for waiting: reading from the descriptor or closing it does harm.
#[cfg(unix)]
impl AsRawFd for Standalone {
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}
