//! Times of any number, in bounded memory.

use std::time::Duration;

use crate::histogram::{Bucket, buckets_of};

/// A bucket is narrower than this part of its time: 3 %.
const PARTS: u64 = 32;
/// Times from 2^36 ns, a minute, on share the last bucket.
const BUCKETS: usize = PARTS as usize * 33;

/// How many times are in each of the buckets.
#[derive(Debug, Clone)]
pub struct Spread {
    counts: Vec<u64>,
    max: Duration,
}

impl Spread {
    pub fn new() -> Spread {
        Spread { counts: vec![0; BUCKETS], max: Duration::ZERO }
    }

    pub fn add(&mut self, time: Duration) {
        self.counts[bucket_of(time)] += 1;
        self.max = self.max.max(time);
    }

    pub fn add_all(&mut self, other: &Spread) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.max = self.max.max(other.max);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn max(&self) -> Duration {
        self.max
    }

    /// The time that so many of a thousand do not exceed, up to the width of a bucket.
    pub fn per_mille(&self, part: u64) -> Duration {
        let rank = (self.count() * part).div_ceil(1_000).max(1);
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        at.map_or(Duration::ZERO, |at| upper_end(at).min(self.max))
    }

    /// For a picture.
    pub fn buckets(&self) -> Vec<Bucket> {
        let all = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        buckets_of(all.map(|(at, count)| {
            (upper_end(at).min(self.max), usize::try_from(*count).unwrap_or(usize::MAX))
        }))
    }
}

fn bucket_of(time: Duration) -> usize {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let Some(exponent) = nanos.checked_div(PARTS).and_then(u64::checked_ilog2) else {
        return nanos as usize;
    };
    let part = (nanos >> exponent) - PARTS;
    let at = (u64::from(exponent) + 1) * PARTS + part;
    usize::try_from(at).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

fn upper_end(at: usize) -> Duration {
    let at = at as u64;
    let Some(exponent) = (at / PARTS).checked_sub(1) else {
        return Duration::from_nanos(at);
    };
    Duration::from_nanos(((PARTS + at % PARTS + 1) << exponent) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_is_narrow_and_has_its_times() {
        for nanos in (0..200).chain([999, 1_000, 123_456, 7_654_321, 59_999_999_999]) {
            let time = Duration::from_nanos(nanos);
            let end = upper_end(bucket_of(time));
            assert!(end >= time && end.as_nanos() <= u128::from(nanos + nanos / 32), "{nanos}");
        }
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
        assert!((1..BUCKETS).all(|at| upper_end(at) > upper_end(at - 1)));
    }

    #[test]
    fn parts_are_those_of_all_times() {
        let mut spread = Spread::new();
        assert_eq!((spread.per_mille(500), spread.count()), (Duration::ZERO, 0));
        for micros in 1..=1_000 {
            spread.add(Duration::from_micros(micros));
        }
        let mut both = Spread::new();
        both.add_all(&spread);
        for (part, micros) in [(500, 500), (990, 990), (999, 999), (1_000, 1_000)] {
            let found = both.per_mille(part).as_micros();
            assert!((micros..=micros + micros / 32).contains(&found), "{part}: {found}");
        }
        assert_eq!((both.max(), both.count()), (Duration::from_millis(1), 1_000));
        assert_eq!(both.buckets().iter().map(|it| it.count).sum::<usize>(), 1_000);
    }
}
