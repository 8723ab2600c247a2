//! How long acquisitions took and locks were held, counted in buckets.

use std::fmt;
use std::time::Duration;

/// The upper bound of the first bucket is 2 to the power of this, in nanoseconds.
const FIRST_EXPONENT: u32 = 10;
const NANOS_PER_SEC: u128 = 1_000_000_000;

/// Durations on one client since it was created. The counts only grow, so sample them as often as
/// you like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// From the start of an acquisition until its lock was granted, with all its rounds and waits;
    /// see [`LockGuard::waited`](crate::LockGuard::waited). Acquisitions that failed are not in it.
    pub acquire: Histogram,
    /// From the start of the round that granted a lock until its release began, even if the lock
    /// had expired by then. Locks that were let go or adopted are left out, because this client saw
    /// only one end of them.
    pub hold: Histogram,
}

/// Counted durations. The buckets are fixed: 1,024 ns and its doubles, up to six and a half days.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let redlock = muxlock::Redlock::builder().node("redis://127.0.0.1").build()?;
/// let acquire = redlock.times().acquire;
/// // As OpenMetrics writes a histogram:
/// for (upper, count) in acquire.buckets() {
///     println!("muxlock_acquire_seconds_bucket{{le=\"{}\"}} {count}", upper.as_secs_f64());
/// }
/// println!("muxlock_acquire_seconds_bucket{{le=\"+Inf\"}} {}", acquire.count());
/// println!("muxlock_acquire_seconds_sum {}", acquire.sum().as_secs_f64());
/// println!("muxlock_acquire_seconds_count {}", acquire.count());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    /// By the binary logarithm of the duration in nanoseconds, less one: no bound is checked, and
    /// nothing is divided.
    counts: [u64; u64::BITS as usize],
    sum_nanos: u128,
}

impl Histogram {
    /// The number of buckets.
    pub const BUCKETS: usize = 40;

    /// The number of durations, including those above the last bucket.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all durations.
    pub fn sum(&self) -> Duration {
        let secs = u64::try_from(self.sum_nanos / NANOS_PER_SEC).unwrap_or(u64::MAX);
        Duration::new(secs, (self.sum_nanos % NANOS_PER_SEC) as u32)
    }

    /// The upper bound of each bucket, and the number of durations up to that bound: counts are
    /// cumulative. Longer durations than the last bound are only in [`count`](Histogram::count).
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + use<> {
        let mut so_far = 0;
        let counts = self.counts.into_iter().skip(FIRST_EXPONENT as usize - 1);
        counts.take(Histogram::BUCKETS).zip(FIRST_EXPONENT..).map(move |(count, exponent)| {
            so_far += count;
            (Duration::from_nanos(1 << exponent), so_far)
        })
    }

    #[inline(always)]
    pub(crate) fn record(&mut self, nanos: u64) {
        // A bound belongs to its bucket: 1,024 ns are in the first one.
        let least = (1 << FIRST_EXPONENT) - 1;
        self.counts[(nanos.saturating_sub(1) | least).ilog2() as usize] += 1;
        self.sum_nanos += u128::from(nanos);
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; u64::BITS as usize], sum_nanos: 0 }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("sum", &self.sum())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound of the bucket that has this duration; `None` if it is above all buckets.
    fn first_bucket(nanos: u64) -> Option<Duration> {
        let mut histogram = Histogram::default();
        histogram.record(nanos);
        assert_eq!((histogram.count(), histogram.sum()), (1, Duration::from_nanos(nanos)));
        let found = histogram.buckets().find(|(_, count)| *count == 1);
        found.map(|(upper, _)| upper)
    }

    #[test]
    fn bound_belongs_to_its_bucket() {
        for bucket in 0..Histogram::BUCKETS as u32 {
            let upper = Duration::from_nanos(1_024 << bucket);
            let nanos = u64::try_from(upper.as_nanos()).unwrap();
            assert_eq!(first_bucket(nanos), Some(upper));
            let next = (bucket + 1 < Histogram::BUCKETS as u32).then_some(2 * upper);
            assert_eq!(first_bucket(nanos + 1), next);
        }
        assert_eq!(first_bucket(0), Some(Duration::from_nanos(1_024)));
        assert_eq!(first_bucket(u64::MAX), None);
    }

    #[test]
    fn counts_are_cumulative_and_bounds_double() {
        let mut histogram = Histogram::default();
        [1, 1_024, 1_025, 5_000_000, u64::MAX]
            .into_iter()
            .for_each(|nanos| histogram.record(nanos));
        let buckets: Vec<(Duration, u64)> = histogram.buckets().collect();
        assert_eq!(buckets.len(), Histogram::BUCKETS);
        assert!(buckets.is_sorted_by(|one, next| 2 * one.0 == next.0 && one.1 <= next.1));
        let nanos = |exponent: u32| Duration::from_nanos(1 << exponent);
        assert_eq!(buckets[..2], [(nanos(10), 2), (nanos(11), 3)]);
        assert_eq!(buckets[12..14], [(nanos(22), 3), (nanos(23), 4)]);
        assert_eq!(buckets[39], (nanos(49), 4));
        assert_eq!(histogram.count(), 5, "one is above all buckets");
    }

    /// Many locks that are held all the time do not make the sum wrap.
    #[test]
    fn sum_has_room() {
        let mut histogram = Histogram::default();
        (0..3).for_each(|_| histogram.record(u64::MAX));
        assert_eq!(histogram.sum(), 3 * Duration::from_nanos(u64::MAX));
    }
}
