//! Moments at which operations are due, and delays.

use std::collections::BTreeSet;
use std::time::Duration;

use super::OpId;
use crate::Moment;

/// What operations wait for, soonest first. Invariant: at most one entry for each operation, and
/// none for one that has ended.
#[derive(Default)]
pub(super) struct Timers(BTreeSet<(Moment, OpId)>);

impl Timers {
    pub(super) fn set(&mut self, at: Moment, op: OpId) {
        self.0.insert((at, op));
    }

    pub(super) fn clear(&mut self, at: Moment, op: OpId) {
        self.0.remove(&(at, op));
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(super) fn take_due(&mut self, now: Moment) -> Option<OpId> {
        if now < self.next()? {
            return None;
        }
        self.0.pop_first().map(|(_, op)| op)
    }
}

/// A duration in `[low, high]`, picked by `random`.
pub(super) fn between(low: Duration, high: Duration, random: u64) -> Duration {
    let range = high.saturating_sub(low).as_nanos();
    let picked = range.saturating_mul(u128::from(random)) >> 64;
    low + Duration::from_nanos(picked as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_reaches_both_ends_and_takes_an_empty_range() {
        let (low, high) = (Duration::from_millis(2), Duration::from_millis(4));
        assert_eq!(between(low, high, 0), low);
        assert!(between(low, high, u64::MAX) > high - Duration::from_nanos(2));
        assert_eq!(between(low, low, u64::MAX), low);
        assert_eq!(between(Duration::ZERO, Duration::ZERO, 7), Duration::ZERO);
    }
}
