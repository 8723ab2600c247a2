//! How long a lock is valid: the only arithmetic on TTLs and deadlines.
//!
//! A deadline `d` has passed when `now >= d`; a lock is valid while `now < d`. Every rounding
//! shortens validity (R2).

use std::time::Duration;

use crate::moment::Moment;

/// Clock rates may differ by one part in so many: 1 % is the customary figure, and covers the
/// slewing of NTP (R23).
pub const DRIFT_DIVISOR: u32 = 100;

/// Added to the proportional drift: one millisecond for the precision of Redis' expiry and one for
/// its truncation (R23).
const DRIFT_CONSTANT_MS: u32 = 2;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// Servers report their age in whole seconds.
const UPTIME_PRECISION: Duration = Duration::from_secs(1);

/// The upper bound of a TTL, and so of `max_ttl`. Redis handles far longer ones, but the quarantine
/// of a restarted master lasts for at least `max_ttl` (R7).
pub(crate) const TTL_MS_MAX: u32 = i32::MAX as u32;

/// A TTL to request from a master: whole milliseconds, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(u32);

impl Ttl {
    /// Rounds down to whole milliseconds; `None` for less than one or more than [`TTL_MS_MAX`].
    pub(crate) fn new(ttl: Duration) -> Option<Ttl> {
        // Longer TTLs are refused below, and their milliseconds may not fit.
        let seconds = ttl.as_secs().min(u32::MAX.into());
        let ms = u32::try_from(seconds * 1_000 + u64::from(ttl.subsec_millis())).ok()?;
        (1..=TTL_MS_MAX).contains(&ms).then_some(Ttl(ms))
    }

    pub(crate) const LONGEST: Ttl = Ttl(TTL_MS_MAX);

    /// In milliseconds.
    pub fn as_millis(self) -> u32 {
        self.0
    }

    /// As a duration.
    pub fn as_duration(self) -> Duration {
        Duration::from_millis(u64::from(self.0))
    }
}

/// The shortest TTL that leaves any validity.
pub(crate) const TTL_MIN: Duration = Duration::from_millis(4);

impl Ttl {
    /// `ceil(ttl / 100) + 2 ms`.
    fn drift_millis(self) -> u32 {
        self.0.div_ceil(DRIFT_DIVISOR) + DRIFT_CONSTANT_MS
    }

    fn validity_millis(self) -> u32 {
        self.0.saturating_sub(self.drift_millis())
    }

    /// The longest possible validity of a lock with this TTL; `None` if the drift uses up all of
    /// it.
    pub(crate) fn validity(self) -> Option<Duration> {
        let validity = self.validity_millis();
        (validity > 0).then(|| Duration::from_millis(validity.into()))
    }

    /// The moment from which a lock requested at `start` is no longer valid.
    pub(crate) fn deadline(self, start: Moment) -> Moment {
        // A TTL has 31 bits, so this does not overflow.
        start.after_nanos(u64::from(self.validity_millis()) * NANOS_PER_MILLI)
    }
}

/// How long a node that may have forgotten locks of up to `max_ttl` must not vote. The extra second
/// covers the server's age, which it rounds to whole seconds and may overstate by that much.
pub(crate) fn quarantine(max_ttl: Duration) -> Duration {
    let ms = u32::try_from(max_ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(TTL_MS_MAX);
    let ttl = Ttl(ms.min(TTL_MS_MAX));
    ttl.as_duration() + Duration::from_millis(ttl.drift_millis().into()) + UPTIME_PRECISION
}

/// How far two clocks that keep within the drift may diverge in `time`.
pub(crate) fn drift_over(time: Duration) -> Duration {
    time / DRIFT_DIVISOR
}

/// Whether a lock with this `deadline` is valid at `now`.
pub(crate) fn is_valid(deadline: Moment, now: Moment) -> bool {
    now < deadline
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ttl(ms: u64) -> Ttl {
        Ttl::new(Duration::from_millis(ms)).unwrap()
    }

    #[test]
    fn ttl_is_whole_milliseconds_within_bounds() {
        assert_eq!(Ttl::new(Duration::ZERO), None);
        assert_eq!(Ttl::new(Duration::from_nanos(999_999)), None);
        assert_eq!(Ttl::new(Duration::from_nanos(1_999_999)), Some(Ttl(1)));
        assert_eq!(Ttl::new(Duration::from_millis(u64::from(TTL_MS_MAX))), Some(Ttl(TTL_MS_MAX)));
        assert_eq!(Ttl::new(Duration::from_millis(u64::from(TTL_MS_MAX) + 1)), None);
        assert_eq!(Ttl::new(Duration::MAX), None);
    }

    #[test]
    fn ttl_is_told_as_it_was_asked_for() {
        let told = ttl(2_500);
        assert_eq!((told.as_millis(), told.as_duration()), (2_500, Duration::from_millis(2_500)));
    }

    #[test]
    fn drift_is_a_share_rounded_up_plus_two() {
        for (ms, expected) in [(10_000, 102), (10_001, 103), (1, 3)] {
            assert_eq!(ttl(ms).drift_millis(), expected, "{ms}");
        }
    }

    #[test]
    fn quarantine_outlasts_the_longest_ttl_its_drift_and_a_truncated_second() {
        let millis = Duration::from_millis;
        assert_eq!(quarantine(millis(30_000)), millis(30_000 + 300 + 2 + 1_000));
        assert_eq!(quarantine(Duration::from_nanos(1)), millis(1 + 1 + 2 + 1_000));
        assert_eq!(drift_over(millis(1_000)), millis(10));
    }

    #[test]
    fn validity_needs_more_than_the_drift() {
        let least = Ttl::new(TTL_MIN).unwrap();
        assert_eq!(Ttl(least.0 - 1).validity(), None);
        assert_eq!(least.validity(), Some(Duration::from_millis(1)));
    }

    #[test]
    fn valid_until_just_before_the_deadline() {
        let start = Moment::from_nanos(1_000);
        let deadline = ttl(1_000).deadline(start);
        assert_eq!(deadline, start.after(Duration::from_millis(988)));
        assert!(is_valid(deadline, Moment::from_nanos(deadline.as_nanos() - 1)));
        assert!(!is_valid(deadline, deadline));
        assert_eq!(deadline.since(start), Duration::from_millis(988));
        assert_eq!(deadline.since(deadline.after(Duration::from_secs(1))), Duration::ZERO);
    }
}
