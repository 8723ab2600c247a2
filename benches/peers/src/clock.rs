//! Time that passed, time that this process computed, and waiting.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Now.
#[expect(clippy::disallowed_methods, reason = "measures clients from outside")]
pub fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds of the clock that all processes of this machine share.
pub fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// What the machine's clock says.
pub fn since_1970() -> Duration {
    let time = clock_gettime(ClockId::Realtime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What this process has computed so far, with all its threads, in user space and in the kernel.
pub fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Neither is negative: the clock begins at zero with the process.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "waits for other processes, not for locks")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
