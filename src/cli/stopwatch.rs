//! Time for display. Locks use a clock of their own.

use std::io;
use std::time::{Duration, Instant};

/// The polling interval for conditions without an event.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Measures the time since its start.
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

/// Sleeps.
#[expect(clippy::disallowed_methods, reason = "plays work, and waits for other processes")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Polls until the condition holds, for at most `cap`. Returns how long that took, or `None` if it
/// never held.
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
