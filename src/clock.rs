//! The one place that reads a clock (R20).

use crate::Moment;

/// The safety clock of this machine.
///
/// On Linux and Android it is `CLOCK_BOOTTIME`, which goes on counting during suspend (R20).
/// Elsewhere it is [`std::time::Instant`], which may stand still during suspend: there, a machine
/// that was suspended while it held a lock may believe in that lock for too long.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock;

impl Clock {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn now(self) -> Moment {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // The boot clock is never negative, and 2^64 ns are 584 years.
        Moment::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    #[expect(clippy::disallowed_methods, reason = "the one clock read")]
    pub(crate) fn now(self) -> Moment {
        use std::sync::OnceLock;
        use std::time::{Duration, Instant};

        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        let origin = *ORIGIN.get_or_init(Instant::now);
        // Never zero, so that "at the origin" stays distinguishable from a real moment.
        Moment::from_nanos(1).after(origin.elapsed() + Duration::from_nanos(1))
    }
}

/// How long it is until an instant of the standard library's clock.
#[expect(clippy::disallowed_methods, reason = "the one clock read")]
pub(crate) fn time_until(deadline: std::time::Instant) -> std::time::Duration {
    deadline.saturating_duration_since(std::time::Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_does_not_go_backwards() {
        let mut last = Clock.now();
        for _ in 0..1_000 {
            let now = Clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
