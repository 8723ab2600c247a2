//! Time that passes for all processes of a test.

use std::time::{Duration, Instant};

/// How often it is asked whether something has happened.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Now.
#[expect(clippy::disallowed_methods, reason = "measures clients from outside")]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "servers and other processes have real clocks")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until this moment, if it is still to come.
pub fn pause_until(moment: Instant) {
    pause(moment.saturating_duration_since(now()));
}

/// Whether the condition becomes true in time.
pub fn becomes_true(cap: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = now() + cap;
    loop {
        if condition() {
            return true;
        }
        if now() >= deadline {
            return false;
        }
        pause(POLL_INTERVAL);
    }
}
