//! Real time: how long something took, and waiting for an event that comes soon.

use std::io::{self, ErrorKind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::SOON;
#[cfg(target_os = "linux")]
use crate::child::CHILD_VARIABLE;

/// How long to wait before looking again.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How long a heavy test waits for those of other processes, and how often it looks.
#[cfg(target_os = "linux")]
const TURN_MAX: Duration = Duration::from_secs(600);
#[cfg(target_os = "linux")]
const TURN_INTERVAL: Duration = Duration::from_millis(2);

/// Time since it was started.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "measures the library from outside")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// The time since the start.
    #[expect(clippy::disallowed_methods, reason = "measures the library from outside")]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// The instant that is `after` after the start.
    pub fn instant_after(self, after: Duration) -> Instant {
        self.0 + after
    }
}

/// Runs a function; returns its result and the time that it took.
pub fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let watch = Stopwatch::start();
    let result = run();
    (watch.elapsed(), result)
}

/// Waits for `time`.
#[expect(clippy::disallowed_methods, reason = "time itself is what is tested")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// The end of a wait for events. A wait that a signal has interrupted, as when this process was
/// stopped, has brought none.
///
/// # Panics
///
/// Panics if the wait failed.
#[track_caller]
pub fn waited(ended: io::Result<()>) {
    if let Err(error) = ended {
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    }
}

/// Looks until it is so; fails if it takes longer than [`SOON`].
#[track_caller]
pub fn soon(what: &str, is_so: impl FnMut() -> bool) {
    within(SOON, what, is_so);
}

/// Looks until it is so; fails if it takes longer than `limit`.
#[track_caller]
pub fn within(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let watch = Stopwatch::start();
    while !is_so() {
        assert!(watch.elapsed() < limit, "not within {limit:?}: {what}");
        pause(POLL_INTERVAL);
    }
}

/// A turn of [`heavy`].
#[must_use]
pub struct Heavy {
    _in_this_binary: MutexGuard<'static, ()>,
    #[cfg(target_os = "linux")]
    _on_this_machine: Option<std::os::unix::net::UnixListener>,
}

/// Held by a test that loads the machine for seconds, or that judges how evenly or how soon it is
/// served: one of them at a time, of all tests that run on this machine. The others of the binary
/// run beside it.
pub fn heavy() -> Heavy {
    static TURN: Mutex<()> = Mutex::new(());
    Heavy {
        _in_this_binary: TURN.lock().unwrap_or_else(PoisonError::into_inner),
        #[cfg(target_os = "linux")]
        _on_this_machine: turn_of_the_machine(),
    }
}

/// A name that one process can have, and loses when it ends. A test that does not get it in time
/// runs without it.
#[cfg(target_os = "linux")]
fn turn_of_the_machine() -> Option<std::os::unix::net::UnixListener> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    // A process that a heavy test has started belongs to its turn.
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        return None;
    }
    let name = SocketAddr::from_abstract_name("muxlock-heavy-test").ok()?;
    let waited = Stopwatch::start();
    while waited.elapsed() < TURN_MAX {
        match UnixListener::bind_addr(&name) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => pause(TURN_INTERVAL),
            turn => return turn.ok(),
        }
    }
    None
}
