//! Percentiles, and a histogram with logarithmic buckets.

use std::time::Duration;

/// The lower ends of the buckets of one decade, in tenths: even steps on a log scale.
const STEPS: [u32; 6] = [10, 15, 20, 30, 50, 70];
/// From 1 µs to 100 s; samples beyond either end count in the last bucket there.
const DECADES: u32 = 8;
const BUCKETS: u32 = DECADES * STEPS.len() as u32;

/// Measured times, in order of size.
pub struct Latencies {
    sorted: Vec<Duration>,
}

/// How many samples are at least `from` and less than `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    pub from: Duration,
    pub to: Duration,
    pub count: usize,
}

impl Latencies {
    pub fn new(mut samples: Vec<Duration>) -> Latencies {
        samples.sort_unstable();
        Latencies { sorted: samples }
    }

    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The smallest sample that at least `percent` % of the samples do not exceed; zero if there is
    /// none.
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.len() * percent).div_ceil(100).max(1);
        self.sorted.get(rank - 1).copied().unwrap_or_default()
    }

    pub fn median(&self) -> Duration {
        self.percentile(50)
    }

    pub fn max(&self) -> Duration {
        self.percentile(100)
    }

    /// From the first bucket that is not empty to the last.
    pub fn buckets(&self) -> Vec<Bucket> {
        let mut buckets: Vec<Bucket> =
            (0..BUCKETS).map(|i| Bucket { from: bound(i), to: bound(i + 1), count: 0 }).collect();
        for sample in &self.sorted {
            let at = buckets.partition_point(|bucket| bucket.from <= *sample);
            buckets[at.saturating_sub(1)].count += 1;
        }
        let is_used = |bucket: &Bucket| bucket.count > 0;
        let first = buckets.iter().position(is_used).unwrap_or(0);
        let end = buckets.iter().rposition(is_used).map_or(0, |last| last + 1);
        buckets[first..end].to_vec()
    }
}

fn bound(i: u32) -> Duration {
    let steps = STEPS.len() as u32;
    let tenth_of_a_micro = Duration::from_nanos(100);
    tenth_of_a_micro * STEPS[(i % steps) as usize] * 10u32.pow(i / steps)
}

/// A bar whose length is to `width` as `count` is to `most`; never empty unless `count` is zero.
pub fn bar(count: usize, most: usize, width: usize) -> String {
    let length = (count * width).checked_div(most).unwrap_or(0);
    match (count, length) {
        (0, _) => String::new(),
        (_, 0) => "▏".to_owned(),
        (_, length) => "█".repeat(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(samples: &[u64]) -> Latencies {
        Latencies::new(samples.iter().copied().map(Duration::from_micros).collect())
    }

    #[test]
    fn percentile_is_the_nearest_rank() {
        let hundred = micros(&(1..=100).rev().collect::<Vec<_>>());
        assert_eq!(hundred.percentile(50), Duration::from_micros(50));
        assert_eq!(hundred.percentile(99), Duration::from_micros(99));
        assert_eq!(hundred.max(), Duration::from_micros(100));
        let three = micros(&[30, 10, 20]);
        assert_eq!(three.median(), Duration::from_micros(20));
        assert_eq!(three.percentile(0), Duration::from_micros(10));
        assert_eq!(three.percentile(99), Duration::from_micros(30));
        assert_eq!(micros(&[]).max(), Duration::ZERO);
    }

    #[test]
    fn bounds_rise_over_all_decades() {
        assert_eq!(bound(0), Duration::from_micros(1));
        assert_eq!(bound(7), Duration::from_micros(15));
        assert_eq!(bound(BUCKETS), Duration::from_secs(100));
        assert!((0..BUCKETS).all(|i| bound(i) < bound(i + 1)));
    }

    #[test]
    fn buckets_hold_their_lower_end_and_not_their_upper_one() {
        let buckets = micros(&[100, 149, 150, 299]).buckets();
        let found: Vec<_> =
            buckets.iter().map(|bucket| (bucket.from.as_micros(), bucket.count)).collect();
        assert_eq!(found, [(100, 2), (150, 1), (200, 1)]);
    }

    #[test]
    fn buckets_cover_every_sample_however_extreme() {
        let buckets = Latencies::new(vec![Duration::ZERO, Duration::MAX]).buckets();
        assert_eq!(buckets.len(), BUCKETS as usize);
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<usize>(), 2);
        assert!(micros(&[]).buckets().is_empty());
    }

    #[test]
    fn bars_are_in_proportion_and_show_even_a_single_sample() {
        assert_eq!(bar(10, 10, 4), "████");
        assert_eq!(bar(5, 10, 4), "██");
        assert_eq!(bar(1, 1_000, 4), "▏");
        assert_eq!(bar(0, 10, 4), "");
        assert_eq!(bar(0, 0, 4), "");
    }
}
