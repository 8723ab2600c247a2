//! The timers of operations, and random delays.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::op_id::OpId;
use crate::moment::Moment;

/// Stale entries are tolerated up to this number.
const STALE_MIN: usize = 64;

/// The timers of operations, soonest first.
///
/// Nearly every operation ends before its timer fires. So a stale entry stays until it reaches the
/// front, or until the stale entries exceed the live ones by more than [`STALE_MIN`].
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Moment, OpId)>>,
    /// How many entries are live. Invariant: at most `heap.len()`.
    live: usize,
    /// A lower bound on the soonest live timer.
    due: Option<Moment>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Moment, op: OpId) {
        self.heap.push(Reverse((at, op)));
        self.live += 1;
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    #[inline]
    pub(super) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Makes the bound exact.
    pub(super) fn settle_due(&mut self, is_live: impl Fn(Moment, OpId) -> bool) {
        self.due = self.next(is_live);
    }

    /// One entry has become stale. `is_live` distinguishes them.
    pub(super) fn clear_one(&mut self, is_live: impl Fn(Moment, OpId) -> bool) {
        self.live -= 1;
        if self.heap.len() > 2 * self.live + STALE_MIN {
            self.heap.retain(|Reverse((at, op))| is_live(*at, *op));
        }
    }

    /// The soonest live timer.
    pub(super) fn next(&mut self, is_live: impl Fn(Moment, OpId) -> bool) -> Option<Moment> {
        while let Some(Reverse((at, op))) = self.heap.peek().copied() {
            if is_live(at, op) {
                return Some(at);
            }
            self.heap.pop();
        }
        None
    }

    /// Takes the next operation whose timer has fired.
    #[inline]
    pub(super) fn take_due(
        &mut self,
        now: Moment,
        is_live: impl Fn(Moment, OpId) -> bool,
    ) -> Option<OpId> {
        if now < self.next(is_live)? {
            return None;
        }
        self.live -= 1;
        self.heap.pop().map(|Reverse((_, op))| op)
    }
}

/// A duration in `[low, high]`, chosen by `random`.
pub(crate) fn between(low: Duration, high: Duration, random: u64) -> Duration {
    let range = high.saturating_sub(low).as_nanos();
    let picked = range.saturating_mul(u128::from(random)) >> 64;
    low + Duration::from_nanos(picked as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(slot: u32) -> OpId {
        OpId { slot, generation: 0, instance: 0 }
    }

    #[test]
    fn moments_come_in_order_without_those_of_no_use() {
        let mut timers = Timers::default();
        for slot in [3, 1, 2] {
            timers.set(Moment::from_nanos(slot.into()), id(slot));
        }
        let is_live = |_, op| op != id(1);
        timers.clear_one(is_live);
        assert_eq!(timers.next(is_live), Some(Moment::from_nanos(2)));
        assert_eq!(timers.take_due(Moment::from_nanos(1), is_live), None);
        assert_eq!(timers.take_due(Moment::from_nanos(2), is_live), Some(id(2)));
        assert_eq!(timers.take_due(Moment::from_nanos(9), is_live), Some(id(3)));
        assert_eq!(timers.take_due(Moment::from_nanos(9), is_live), None);
    }

    #[test]
    fn entries_of_no_use_do_not_pile_up() {
        let mut timers = Timers::default();
        for slot in 0..10_000 {
            timers.set(Moment::from_nanos(u64::MAX - u64::from(slot)), id(slot));
            timers.clear_one(|_, _| false);
            assert!(timers.heap.len() <= STALE_MIN);
        }
    }

    #[test]
    fn between_reaches_both_ends_and_takes_an_empty_range() {
        let (low, high) = (Duration::from_millis(2), Duration::from_millis(4));
        assert_eq!(between(low, high, 0), low);
        assert_eq!(between(low, high, 1 << 63), Duration::from_millis(3));
        assert_eq!(between(low, high, 1 << 62), Duration::from_micros(2_500));
        assert!(between(low, high, u64::MAX) > high - Duration::from_nanos(2));
        assert_eq!(between(low, low, u64::MAX), low);
        assert_eq!(between(Duration::ZERO, Duration::ZERO, 7), Duration::ZERO);
    }
}
