//! Time for display, and names by chance. Locks have a clock and random numbers of their own.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::time::{Duration, Instant, SystemTime};

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

/// The wall clock of this machine, in microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "compares it with others; no lock depends on it")]
pub fn wall_micros() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A number that nothing else has by chance. It is no secret.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
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
