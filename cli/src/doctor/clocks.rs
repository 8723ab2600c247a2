//! The answers to `TIME` show how far a master is away and how its clock runs.

use std::time::Duration;

use crate::histogram::Latencies;

/// One answer to `TIME`. Clocks are in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub round_trip: Duration,
    pub master: i64,
    /// The clock of this machine, in the middle of the round trip.
    pub here: i64,
    /// Since the first question, by a steady clock.
    pub since_first: Duration,
}

/// By how much a clock is ahead of the one of this machine, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    pub ahead: i64,
    /// By how much it may be more or less: half a round trip.
    pub doubt: i64,
}

/// The rate of a clock, compared with this machine's.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// 0.01 gains 1 %.
    pub gain: f64,
    pub doubt: f64,
}

/// The result of the samples of one master.
#[derive(Debug, Clone, Default)]
pub struct Times {
    pub first: Vec<Sample>,
    /// Asked later, if so.
    pub later: Vec<Sample>,
}

/// A clock must have advanced after this time.
pub const ADVANCES_WITHIN: Duration = Duration::from_millis(50);

/// Over a shorter time, the round trips are all that a rate shows.
pub const RATE_OVER_MIN: Duration = Duration::from_secs(1);

impl Times {
    pub fn last(&self) -> Option<&Sample> {
        self.later.last().or(self.first.last())
    }

    pub fn latencies(&self) -> Latencies {
        Latencies::new(self.first.iter().map(|sample| sample.round_trip).collect())
    }

    /// By the answer that took the shortest time.
    pub fn offset(&self) -> Option<Offset> {
        best(&self.first).map(offset)
    }

    /// By the best of the first answers, and the best of the later ones.
    pub fn rate(&self) -> Option<Rate> {
        let (first, later) = (best(&self.first)?, best(&self.later)?);
        let (before, after) = (offset(first), offset(later));
        let time = later.since_first.checked_sub(first.since_first)?;
        if time < RATE_OVER_MIN {
            return None;
        }
        let time = time.as_micros() as f64;
        // Against the steady clock: the wall clock of this machine may be stepped.
        let here = (later.here - first.here) as f64 - time;
        let gain = ((after.ahead - before.ahead) as f64 + here) / time;
        Some(Rate { gain, doubt: (before.doubt + after.doubt) as f64 / time })
    }

    /// Whether the clock stood still for long enough to notice it.
    pub fn is_frozen(&self) -> bool {
        let all = || self.first.iter().chain(&self.later);
        let (Some(first), Some(last)) = (all().next(), all().next_back()) else {
            return false;
        };
        last.since_first - first.since_first >= ADVANCES_WITHIN
            && all().all(|sample| sample.master == first.master)
    }
}

fn best(samples: &[Sample]) -> Option<&Sample> {
    samples.iter().min_by_key(|sample| sample.round_trip)
}

fn offset(sample: &Sample) -> Offset {
    let doubt = i64::try_from(sample.round_trip.as_micros() / 2).unwrap_or(i64::MAX);
    Offset { ahead: sample.master.saturating_sub(sample.here), doubt }
}

/// The time that most clocks agree on, against this machine's; of two clocks this machine's.
pub fn agreed(offsets: &[Offset]) -> i64 {
    let mut ahead: Vec<i64> = offsets.iter().map(|offset| offset.ahead).collect();
    ahead.sort_unstable();
    match ahead.len() {
        0..=2 => 0,
        // This machine's own clock has a voice too if they are even.
        len if len % 2 == 1 => ahead[len / 2],
        len => 0.clamp(ahead[len / 2 - 1], ahead[len / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000;

    fn sample(since_ms: i64, round_trip_ms: u64, ahead_ms: i64) -> Sample {
        let here = 1_700_000_000_000 * MS + since_ms * MS;
        Sample {
            round_trip: Duration::from_millis(round_trip_ms),
            master: here + ahead_ms * MS,
            here,
            since_first: Duration::from_millis(since_ms.unsigned_abs()),
        }
    }

    #[test]
    fn shortest_round_trip_tells_the_offset() {
        let first = vec![sample(0, 9, 40), sample(10, 2, 30), sample(20, 5, 50)];
        let times = Times { first, later: Vec::new() };
        assert_eq!(times.offset(), Some(Offset { ahead: 30 * MS, doubt: MS }));
        assert_eq!(times.latencies().median(), Duration::from_millis(5));
        assert!(times.rate().is_none() && !times.is_frozen());
        assert!(Times::default().offset().is_none() && !Times::default().is_frozen());
    }

    #[test]
    fn rate_is_what_a_clock_gains_over_time_however_here_was_stepped() {
        let first = vec![sample(0, 2, 30)];
        let times = Times { first: first.clone(), later: vec![sample(10_000, 2, 130)] };
        let rate = times.rate().unwrap();
        assert!((rate.gain - 0.01).abs() < 1e-9 && (rate.doubt - 0.000_2).abs() < 1e-9, "{rate:?}");
        // This machine was stepped by an hour: the master seems to be behind by as much.
        let mut stepped = sample(10_000, 2, 130 - 3_600_000);
        stepped.here += 3_600_000 * MS;
        stepped.master += 3_600_000 * MS;
        let rate = Times { first, later: vec![stepped] }.rate().unwrap();
        assert!((rate.gain - 0.01).abs() < 1e-9, "{rate:?}");
    }

    #[test]
    fn clock_that_stands_still_is_noticed_after_a_while() {
        let still = |since_ms| Sample { master: 7, ..sample(since_ms, 1, 0) };
        let times = |first| Times { first, later: Vec::new() };
        assert!(times(vec![still(0), still(50)]).is_frozen());
        assert!(!times(vec![still(0), still(49)]).is_frozen());
        assert!(!times(vec![still(0), sample(10, 1, 0), still(60)]).is_frozen());
    }

    #[test]
    fn most_clocks_agree_on_a_time() {
        let agreed = |ahead: &[i64]| {
            let offsets: Vec<_> = ahead.iter().map(|it| Offset { ahead: *it, doubt: 0 }).collect();
            super::agreed(&offsets)
        };
        let table: [(&[i64], i64); 7] = [
            (&[], 0),
            (&[900], 0),
            (&[900, 1], 0),
            (&[900, 3, 1], 3),
            (&[900, 901, 902], 901),
            (&[900, -900, 1, 2], 1),
            (&[900, 901, 902, 903], 901),
        ];
        for (ahead, expected) in table {
            assert_eq!(agreed(ahead), expected, "{ahead:?}");
        }
    }
}
