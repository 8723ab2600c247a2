//! What the times of contenders say.

use crate::job::Sample;
use crate::stats;

/// One acquisition, in nanoseconds of the clock that all processes of a machine share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    pub granted: u64,
    /// When the contender began to want the lock.
    pub begun: u64,
    /// The moment before the release was called.
    pub let_go: u64,
    /// Until when the client was told that it holds the lock.
    pub valid_until: u64,
}

impl Record {
    pub fn parse(line: &str) -> Option<Record> {
        let mut words = line.split(' ').map(|word| word.parse().ok());
        let mut next = || words.next().flatten();
        let (begun, granted, let_go) = (next()?, next()?, next()?);
        Some(Record { begun, granted, let_go, valid_until: next()? })
    }
}

/// What one contender did.
#[derive(Debug, Default)]
pub struct Share {
    pub records: Vec<Record>,
    /// Waits that ended without the lock.
    pub in_vain: Vec<u64>,
}

/// What the contenders and the masters spent on all of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    pub client_cpu: f64,
    pub server_cpu: f64,
    pub sets: f64,
}

/// While one contender was stopped, in nanoseconds of the same clock.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    pub from: u64,
    pub until: u64,
}

/// What the others did while one was stopped: how often they took the lock in a second, and for how
/// long it was free at the longest, the median over all stops. `least` is the number of stops in
/// which it was not taken, `most` that of all.
pub fn stopped(shares: &[Share], stops: &[Stop], sample: Sample) -> Sample {
    let mut all: Vec<Record> = shares.iter().flat_map(|share| share.records.clone()).collect();
    all.sort_unstable();
    let granted_in =
        |stop: &Stop| all.iter().filter(|it| (stop.from..stop.until).contains(&it.granted)).count();
    let longest_free = |stop: &Stop| {
        let free = all.windows(2).map(|pair| {
            let (from, until) = (pair[0].let_go.max(stop.from), pair[1].granted.min(stop.until));
            until.saturating_sub(from)
        });
        free.max().unwrap_or(0)
    };
    let mut free: Vec<u64> = stops.iter().map(longest_free).collect();
    free.sort_unstable();
    let grants: usize = stops.iter().map(granted_in).sum();
    let length: u64 = stops.iter().map(|stop| stop.until - stop.from).sum();
    Sample {
        p50: stats::percentile(&free, 50),
        rate: grants as f64 / length as f64 * 1e9,
        least: stops.iter().filter(|stop| granted_in(stop) == 0).count() as f64,
        most: stops.len() as f64,
        ..sample
    }
}

/// The figures of one turn, of which grants count until `end`.
pub fn sample(shares: &[Share], spent: Spent, start: u64, end: u64) -> Sample {
    let mut all: Vec<Record> = shares.iter().flat_map(|share| share.records.clone()).collect();
    all.sort_unstable();
    let in_time =
        |share: &Share| share.records.iter().filter(|record| record.granted < end).count() as f64;
    let counts: Vec<f64> = shares.iter().map(in_time).collect();
    let (mut hand_offs, mut gaps) = (Vec::new(), Vec::new());
    let mut two_holders = 0;
    for pair in all.windows(2) {
        let [last, next] = [pair[0], pair[1]];
        if next.granted < last.let_go.min(last.valid_until) {
            two_holders += 1;
        }
        let gap = next.granted.saturating_sub(last.let_go);
        if last.let_go < end {
            gaps.push(gap);
            // Who began later found the lock free.
            if next.begun < last.let_go {
                hand_offs.push(gap);
            }
        }
    }
    // Who is alone waits for nobody: what an acquisition takes stands beside the hand-offs.
    if let [alone] = shares {
        let took = |record: &Record| record.granted - record.begun;
        if hand_offs.is_empty() {
            hand_offs.extend(alone.records.iter().map(took));
        }
    }
    hand_offs.sort_unstable();
    gaps.sort_unstable();
    let waits = all.iter().map(|record| record.granted.saturating_sub(record.begun));
    let in_vain = shares.iter().flat_map(|share| share.in_vain.iter().copied());
    let done: f64 = counts.iter().sum();
    let least = counts.iter().copied().fold(f64::INFINITY, f64::min);
    let most = counts.iter().copied().fold(0.0, f64::max);
    let each = |figure: f64| figure / all.len() as f64;
    Sample {
        done,
        failed: f64::from(two_holders),
        p50: stats::percentile(&hand_offs, 50),
        p99: stats::percentile(&hand_offs, 99),
        rate: done / (end - start) as f64 * 1e9,
        cpu: each(spent.client_cpu),
        least,
        most,
        gap_p99: stats::percentile(&gaps, 99),
        longest_gap: gaps.last().map_or(f64::NAN, |gap| *gap as f64),
        longest_wait: waits.chain(in_vain).max().map_or(f64::NAN, |wait| wait as f64),
        sets: each(spent.sets),
        server_cpu: each(spent.server_cpu),
        ..Sample::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(begun: u64, granted: u64, let_go: u64) -> Record {
        Record { begun, granted, let_go, valid_until: u64::MAX }
    }

    #[test]
    fn hand_off_counts_only_for_a_contender_that_waited() {
        let one = Share { records: vec![record(0, 10, 20), record(45, 50, 60)], in_vain: vec![] };
        let other = Share { records: vec![record(5, 23, 40)], in_vain: vec![70] };
        let spent = Spent { client_cpu: 30.0, server_cpu: 6.0, sets: 15.0 };
        let sample = sample(&[one, other], spent, 0, 100);
        assert_eq!((sample.p50, sample.p99), (3.0, 3.0));
        assert_eq!((sample.gap_p99, sample.longest_gap, sample.longest_wait), (10.0, 10.0, 70.0));
        assert_eq!((sample.most, sample.least, sample.failed), (2.0, 1.0, 0.0));
        assert_eq!((sample.sets, sample.cpu, sample.server_cpu), (5.0, 10.0, 2.0));
    }

    #[test]
    fn longest_free_time_of_each_stop_is_found() {
        let records =
            vec![record(0, 10, 20), record(0, 26, 40), record(0, 43, 60), record(0, 95, 99)];
        let shares = [Share { records, in_vain: vec![] }];
        let stops = [(15, 30), (39, 45), (70, 90)].map(|(from, until)| Stop { from, until });
        let sample = stopped(&shares, &stops, Sample::default());
        // 6 before 26, 3 before 43, and all of the last.
        assert_eq!((sample.p50, sample.least, sample.most), (6.0, 1.0, 3.0));
        assert_eq!(sample.rate, 2.0 / 41.0 * 1e9);
    }

    #[test]
    fn two_holders_at_once_are_counted_unless_validity_has_ended() {
        let overlapping = |valid_until| {
            let first = Record { valid_until, ..record(0, 10, 30) };
            let shares = [first, record(0, 20, 40)];
            let shares = shares.map(|record| Share { records: vec![record], in_vain: vec![] });
            sample(&shares, Spent::default(), 0, 100).failed
        };
        assert_eq!((overlapping(30), overlapping(20)), (1.0, 0.0));
    }
}
