//! How long a lock is valid: the only arithmetic on TTLs and deadlines.
//!
//! A deadline `d` has passed when `now >= d`; a lock is valid while `now < d`. Every rounding
//! shortens validity (R2).

use std::time::Duration;

use crate::moment::Moment;

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

/// The fraction of a TTL by which clocks may disagree, in parts per million, rounded up (R23).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drift {
    ppm: u32,
}

impl Drift {
    /// `None` if the factor is not a number from 0 up to, but not including, 1.
    pub(crate) fn new(factor: f64) -> Option<Drift> {
        // NaN is outside as well.
        (0.0..1.0).contains(&factor).then(|| Drift { ppm: (factor * 1e6).ceil() as u32 })
    }

    /// `ceil(ttl * factor) + 2 ms`.
    fn of(self, ttl: Ttl) -> u64 {
        let proportional = (u64::from(ttl.0) * u64::from(self.ppm)).div_ceil(1_000_000);
        proportional + u64::from(DRIFT_CONSTANT_MS)
    }

    /// The longest possible validity of a lock with this `ttl`; `None` if the drift uses up all of
    /// it.
    pub(crate) fn validity(self, ttl: Ttl) -> Option<Duration> {
        let validity = self.validity_millis(ttl);
        (validity > 0).then(|| Duration::from_millis(validity))
    }

    fn validity_millis(self, ttl: Ttl) -> u64 {
        u64::from(ttl.0).saturating_sub(self.of(ttl))
    }

    /// The shortest TTL that leaves any validity.
    pub(crate) fn ttl_min(self) -> Duration {
        // The drift grows by at most 1 ms per millisecond of TTL, so validity is monotonic and a
        // binary search is correct.
        let (mut low, mut high) = (1, TTL_MS_MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.validity(Ttl(middle)) {
                Some(_) => high = middle,
                None => low = middle + 1,
            }
        }
        Duration::from_millis(u64::from(low))
    }

    /// How long a node that may have forgotten locks of up to `max_ttl` must not vote. The extra
    /// second covers the server's age, which it rounds to whole seconds and may overstate by that
    /// much.
    pub(crate) fn quarantine(self, max_ttl: Duration) -> Duration {
        let ms = u32::try_from(max_ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(TTL_MS_MAX);
        let ttl = Ttl(ms.min(TTL_MS_MAX));
        ttl.as_duration() + Duration::from_millis(self.of(ttl)) + UPTIME_PRECISION
    }

    /// How far two clocks that keep within the drift may diverge in `time`.
    pub(crate) fn over(self, time: Duration) -> Duration {
        let nanos = time.as_nanos() * u128::from(self.ppm) / 1_000_000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The moment from which a lock requested at `start` is no longer valid.
    pub(crate) fn deadline(self, start: Moment, ttl: Ttl) -> Moment {
        // A TTL has 31 bits, so this does not overflow.
        start.after_nanos(self.validity_millis(ttl) * NANOS_PER_MILLI)
    }
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
    fn factor_outside_zero_to_one_is_refused() {
        for factor in [f64::NAN, -0.01, 1.0, 2.0, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(Drift::new(factor).is_none(), "{factor}");
        }
        for factor in [0.0, 0.01, 0.999_999_9] {
            assert!(Drift::new(factor).is_some(), "{factor}");
        }
    }

    #[test]
    fn drift_is_a_share_rounded_up_plus_two() {
        let table = [(0.01, 10_000, 102), (0.01, 10_001, 103), (0.01, 1, 3), (0.0, 5_000, 2)];
        for (factor, ms, expected) in table {
            assert_eq!(Drift::new(factor).unwrap().of(ttl(ms)), expected, "{factor} {ms}");
        }
    }

    #[test]
    fn quarantine_outlasts_the_longest_ttl_its_drift_and_a_truncated_second() {
        let drift = Drift::new(0.01).unwrap();
        let millis = Duration::from_millis;
        assert_eq!(drift.quarantine(millis(30_000)), millis(30_000 + 300 + 2 + 1_000));
        assert_eq!(drift.quarantine(Duration::from_nanos(1)), millis(1 + 1 + 2 + 1_000));
        assert_eq!(drift.over(millis(1_000)), millis(10));
    }

    #[test]
    fn validity_needs_more_than_the_drift() {
        let drift = Drift::new(0.01).unwrap();
        assert_eq!(drift.validity(ttl(3)), None);
        assert_eq!(drift.validity(ttl(4)), Some(Duration::from_millis(1)));
        assert_eq!(drift.ttl_min(), Duration::from_millis(4));
        assert_eq!(Drift::new(0.0).unwrap().ttl_min(), Duration::from_millis(3));
        // Also where most of a TTL is drift, and where short TTLs are drift entirely.
        for (factor, least) in [(0.5, 6), (0.9, 30), (0.999_999, 3_000_000)] {
            let drift = Drift::new(factor).unwrap();
            assert_eq!(drift.validity(ttl(least - 1)), None, "{factor}");
            assert_eq!(drift.validity(ttl(least)), Some(Duration::from_millis(1)), "{factor}");
            assert_eq!(drift.ttl_min(), Duration::from_millis(least), "{factor}");
        }
    }

    #[test]
    fn valid_until_just_before_the_deadline() {
        let drift = Drift::new(0.01).unwrap();
        let start = Moment::from_nanos(1_000);
        let deadline = drift.deadline(start, ttl(1_000));
        assert_eq!(deadline, start.after(Duration::from_millis(988)));
        assert!(is_valid(deadline, Moment::from_nanos(deadline.as_nanos() - 1)));
        assert!(!is_valid(deadline, deadline));
        assert_eq!(deadline.since(start), Duration::from_millis(988));
        assert_eq!(deadline.since(deadline.after(Duration::from_secs(1))), Duration::ZERO);
    }
}
