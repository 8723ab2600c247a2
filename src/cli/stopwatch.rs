//! Time as the person at the terminal sees it. Locks have a clock of their own.

use std::io;
use std::time::{Duration, Instant};

/// How long to wait before looking again at something that sends no event.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Runs from its start on.
#[derive(Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "measures for display; no lock depends on it")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    #[expect(clippy::disallowed_methods, reason = "measures for display; no lock depends on it")]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Does nothing for a while.
#[expect(clippy::disallowed_methods, reason = "plays work, and waits for other processes")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Looks until it is so, at most for `cap`; says how long that took, and `None` if it never was.
pub fn wait_until(
    cap: Duration,
    mut is_so: impl FnMut() -> io::Result<bool>,
) -> io::Result<Option<Duration>> {
    let watch = Stopwatch::start();
    loop {
        if is_so()? {
            return Ok(Some(watch.elapsed()));
        }
        if watch.elapsed() >= cap {
            return Ok(None);
        }
        pause(LOOK_AGAIN);
    }
}
