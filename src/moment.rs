//! A point in time on the safety clock, as plain data.

use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

/// A point in time on the *safety clock*, in nanoseconds since an origin that does not change until
/// the next boot. Moments of different machines or boots must not be compared.
/// [`Multiplexer::now`](crate::Multiplexer::now) returns the current one.
///
/// This is not [`std::time::Instant`], which stops while a Linux machine is suspended, although the
/// keys on the masters continue to expire. A moment reads no clock: callers pass the current moment
/// in. All arithmetic saturates.
///
/// The safety clock counts forward jumps of the machine's wall clock as elapsed time, so that a
/// lock is not considered valid for too long. Waits that must not be too short are measured without
/// these jumps. So a moment also stores the sum of the jumps. Moments are ordered by the safety
/// clock. Two moments are equal only if their jumps are equal too.
///
/// ```
/// use muxlock::Moment;
/// use std::time::Duration;
///
/// let start = Moment::from_nanos(5);
/// let later = start.after(Duration::from_nanos(7));
/// assert_eq!(later.since(start), Duration::from_nanos(7));
/// assert_eq!(start.since(later), Duration::ZERO);
///
/// let jumped = Moment::with_jumps(112, 100);
/// assert_eq!(jumped.since(start), Duration::from_nanos(107));
/// assert_eq!(jumped.steadily_since(start), Duration::from_nanos(7));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moment {
    nanos: u64,
    /// Invariant: `jumped <= nanos`.
    jumped: u64,
}

impl Moment {
    /// Earlier than any other.
    pub(crate) const START: Moment = Moment { nanos: 0, jumped: 0 };
    /// Later than any other.
    pub(crate) const END: Moment = Moment { nanos: u64::MAX, jumped: 0 };

    /// The moment `nanos` nanoseconds after the origin, without a jump.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment { nanos, jumped: 0 }
    }

    /// The moment `nanos` nanoseconds after the origin, of which `jumped` were jumps of the wall
    /// clock. `jumped` is capped at `nanos`.
    pub const fn with_jumps(nanos: u64, jumped: u64) -> Moment {
        Moment { nanos, jumped: if jumped < nanos { jumped } else { nanos } }
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// Nanoseconds since the origin, without jumps.
    pub const fn steady_nanos(self) -> u64 {
        self.nanos - self.jumped
    }

    /// The moment `duration` later; the greatest moment if that does not fit.
    #[must_use]
    pub fn after(self, duration: Duration) -> Moment {
        self.after_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Same as [`after`](Moment::after), in nanoseconds.
    #[inline]
    pub(crate) const fn after_nanos(self, nanos: u64) -> Moment {
        Moment { nanos: self.nanos.saturating_add(nanos), ..self }
    }

    /// The moment `duration` earlier; the origin if there is no earlier one.
    pub(crate) fn before(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment::with_jumps(self.nanos.saturating_sub(nanos), self.jumped)
    }

    /// The time from `earlier` to this moment; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// Same as [`since`](Moment::since), in nanoseconds.
    pub(crate) const fn nanos_since(self, earlier: Moment) -> u64 {
        self.nanos.saturating_sub(earlier.nanos)
    }

    /// Whether this moment has certainly reached `other`: compared without jumps.
    pub const fn is_certainly_past(self, other: Moment) -> bool {
        self.steady_nanos() >= other.steady_nanos()
    }

    /// The time since `earlier` without jumps: at least this much has passed.
    pub fn steadily_since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.steady_nanos().saturating_sub(earlier.steady_nanos()))
    }
}

impl Ord for Moment {
    #[inline]
    fn cmp(&self, other: &Moment) -> Ordering {
        // A single u128 comparison for both fields: the engine compares moments very often.
        let key = |moment: &Moment| u128::from(moment.nanos) << 64 | u128::from(moment.jumped);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Moment {
    #[inline]
    fn partial_cmp(&self, other: &Moment) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Moment({:?})", Duration::from_nanos(self.nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let end = Moment::from_nanos(u64::MAX);
        assert_eq!(end.after(Duration::from_secs(1)), end);
        assert_eq!(Moment::from_nanos(1).after(Duration::MAX), end);
        assert_eq!(Moment::from_nanos(1).since(end), Duration::ZERO);
        assert_eq!(Moment::from_nanos(5).before(Duration::from_nanos(3)), Moment::from_nanos(2));
        assert_eq!(Moment::from_nanos(5).before(Duration::MAX), Moment::from_nanos(0));
    }

    #[test]
    fn jumps_are_time_that_has_not_certainly_passed() {
        let (start, jumped) = (Moment::with_jumps(10, 4), Moment::with_jumps(50, 20));
        assert_eq!((start.as_nanos(), start.steady_nanos()), (10, 6));
        assert_eq!((jumped.nanos_since(start), start.nanos_since(jumped)), (40, 0));
        assert_eq!(jumped.since(start), Duration::from_nanos(40));
        assert_eq!(jumped.steadily_since(start), Duration::from_nanos(24));
        assert_eq!(start.steadily_since(jumped), Duration::ZERO);
        // Jumps are capped at the whole.
        assert_eq!(Moment::with_jumps(10, 11), Moment::with_jumps(10, 10));
        assert_eq!(Moment::with_jumps(10, 11).steady_nanos(), 0);
        // The same time has certainly passed, though one is later by the safety clock.
        assert!(jumped.is_certainly_past(Moment::from_nanos(30)));
        assert!(Moment::from_nanos(30).is_certainly_past(jumped));
        assert!(!jumped.is_certainly_past(Moment::from_nanos(31)));
        // A later moment keeps the jumps.
        assert_eq!(jumped.after_nanos(5), Moment::with_jumps(55, 20));
    }

    #[test]
    fn order_is_that_of_the_safety_clock() {
        let moments = [(0, 0), (1, 0), (1, 1), (2, 0), (u64::MAX, 0), (u64::MAX, u64::MAX)];
        let moments = moments.map(|(nanos, jumped)| Moment::with_jumps(nanos, jumped));
        assert!(moments.is_sorted_by(|one, next| one < next));
        let both = |one: &Moment, next: &Moment| (one.partial_cmp(next), one.cmp(next));
        assert_eq!(both(&moments[1], &moments[3]), (Some(Ordering::Less), Ordering::Less));
        assert_eq!(both(&moments[3], &moments[2]), (Some(Ordering::Greater), Ordering::Greater));
        assert_eq!(both(&moments[2], &moments[2]), (Some(Ordering::Equal), Ordering::Equal));
    }
}
