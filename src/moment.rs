//! A point in time on the safety clock, as plain data.

use std::fmt;
use std::time::Duration;

/// A point on the safety clock: nanoseconds since an origin that is fixed while the machine is up.
///
/// It is a type of its own because [`std::time::Instant`] stands still while a Linux machine is
/// suspended, during which keys on the masters go on expiring. It holds no clock: whoever needs
/// the current moment is given it. All arithmetic saturates.
///
/// ```
/// use muxlock::Moment;
/// use std::time::Duration;
///
/// let start = Moment::from_nanos(5);
/// let later = start.after(Duration::from_nanos(7));
/// assert_eq!(later.since(start), Duration::from_nanos(7));
/// assert_eq!(start.since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The moment `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `duration` later; the end of time if that does not fit.
    #[must_use]
    pub fn after(self, duration: Duration) -> Moment {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Moment(self.0.saturating_add(nanos))
    }

    /// The time from `earlier` to this moment; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Moment({:?})", Duration::from_nanos(self.0))
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
    }
}
