//! When to renew locks, and when to report a loss: without threads, clocks or randomness.

use std::collections::{BTreeSet, HashMap};

use crate::keep_alive::LossCause;
use crate::moment::Moment;
use crate::proto::Terms;

/// Identifies a lock; never reused.
pub(super) type Key = u64;

/// What to do about a lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Renew it, and then report the result.
    Renew(Key),
    /// Report the loss. The schedule has dropped the lock.
    Lost(Key, LossCause),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waiting,
    Renewing,
}

struct Item {
    terms: Terms,
    deadline: Moment,
    tell_at: Moment,
    phase: Phase,
    /// When to check it next. Invariant: equal to the moment of its entry in the queue.
    at: Moment,
    renewals: u32,
    has_failed: bool,
}

/// The locks that are kept alive. Each operation takes time logarithmic in their number. Each lock
/// has one entry in each of two collections.
#[derive(Default)]
pub(super) struct Schedule {
    items: HashMap<Key, Item>,
    queue: BTreeSet<(Moment, Key)>,
    next_key: Key,
}

impl Schedule {
    /// Adds a lock that is valid until `deadline`.
    pub(super) fn add(&mut self, now: Moment, terms: Terms, deadline: Moment, random: u64) -> Key {
        let key = self.next_key;
        self.next_key += 1;
        let tell_at = terms.tell_at(now, deadline);
        let at = terms.first_renewal(now, deadline, random).min(tell_at);
        let phase = Phase::Waiting;
        let item = Item { terms, deadline, tell_at, phase, at, renewals: 0, has_failed: false };
        self.items.insert(key, item);
        self.queue.insert((at, key));
        key
    }

    /// Drops a lock: it is no longer renewed, and no loss is reported.
    pub(super) fn remove(&mut self, key: Key) {
        if let Some(item) = self.items.remove(&key) {
            self.queue.remove(&(item.at, key));
        }
    }

    /// The next lock with something due.
    pub(super) fn poll_due(&mut self, now: Moment) -> Option<Due> {
        let (at, key) = self.queue.first().copied()?;
        if now < at {
            return None;
        }
        let item = &self.items[&key];
        let cause = match item.phase {
            _ if now >= item.deadline => LossCause::Late,
            Phase::Waiting if now >= item.tell_at && !item.has_failed => LossCause::Late,
            _ if now >= item.tell_at => LossCause::Unavailable,
            Phase::Waiting if item.renewals >= item.terms.renewals_max => LossCause::RenewalsMax,
            Phase::Waiting if now >= item.terms.ends => LossCause::LifetimeMax,
            Phase::Waiting => {
                let tell_at = item.tell_at;
                self.move_to(key, Phase::Renewing, tell_at);
                return Some(Due::Renew(key));
            }
            Phase::Renewing => unreachable!("a lock being renewed is due only for a loss"),
        };
        self.remove(key);
        Some(Due::Lost(key, cause))
    }

    /// A renewal succeeded: the lock is now valid until `deadline`.
    pub(super) fn handle_renewed(&mut self, now: Moment, key: Key, deadline: Moment, random: u64) {
        let Some(item) = self.items.get_mut(&key) else {
            return;
        };
        item.renewals = item.renewals.saturating_add(1);
        item.has_failed = false;
        item.deadline = deadline;
        item.tell_at = item.terms.tell_at(now, deadline);
        let at = item.terms.next_renewal(now, deadline, random).min(item.tell_at);
        self.move_to(key, Phase::Waiting, at);
    }

    /// A renewal failed, and may succeed if it is repeated.
    pub(super) fn handle_failed(&mut self, now: Moment, key: Key, random: u64) {
        let Some(item) = self.items.get_mut(&key) else {
            return;
        };
        item.has_failed = true;
        let at = item.terms.retry_at(now, random).min(item.tell_at);
        self.move_to(key, Phase::Waiting, at);
    }

    /// When something is due next.
    pub(super) fn poll_timeout(&self) -> Option<Moment> {
        self.queue.first().map(|(at, _)| *at)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.items.len()
    }

    fn move_to(&mut self, key: Key, phase: Phase, at: Moment) {
        let item = self.items.get_mut(&key).expect("the caller has looked it up");
        self.queue.remove(&(item.at, key));
        (item.phase, item.at) = (phase, at);
        self.queue.insert((at, key));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Moment = Moment::from_nanos(1_000_000_000_000);
    const TERMS: Terms = Terms {
        validity: Duration::from_secs(24),
        notice: Duration::from_secs(2),
        renewals_max: u32::MAX,
        ends: Moment::END,
    };

    /// Numbers as an even generator would draw them, in another order.
    fn random(i: u64) -> u64 {
        i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn kept(terms: Terms) -> (Schedule, Key) {
        let mut schedule = Schedule::default();
        let key = schedule.add(START, terms, START.after(terms.validity), 0);
        (schedule, key)
    }

    /// Advances to what is due next.
    fn next(schedule: &mut Schedule, now: &mut Moment) -> Due {
        *now = schedule.poll_timeout().unwrap().max(*now);
        schedule.poll_due(*now).unwrap()
    }

    /// R31: no period is longer than a third of the validity.
    #[test]
    fn lock_is_renewed_at_a_third_of_its_validity_at_the_latest() {
        for i in 0..1_000 {
            let mut schedule = Schedule::default();
            let key = schedule.add(START, TERMS, START.after(TERMS.validity), random(i));
            let (mut now, mut started) = (START, START);
            for round in 0..5 {
                assert_eq!(next(&mut schedule, &mut now), Due::Renew(key));
                let period = now.since(started);
                let least = if round == 0 { 4 * SECOND } else { 7 * SECOND };
                assert!(period <= 8 * SECOND, "{period:?}");
                assert!(period + Duration::from_millis(9) >= least, "{period:?}");
                started = now;
                // The duration of the answer is not added to the period.
                now = now.after(SECOND);
                let deadline = started.after(TERMS.validity);
                schedule.handle_renewed(now, key, deadline, random(i + round));
            }
        }
    }

    #[test]
    fn locks_of_one_moment_spread_and_those_of_one_tick_are_due_together() {
        let mut schedule = Schedule::default();
        let count = 10_000;
        for i in 0..count {
            schedule.add(START, TERMS, START.after(TERMS.validity), random(i));
        }
        let (mut turns, mut most, mut renewed) = (0, 0, 0);
        while renewed < count {
            let now = schedule.poll_timeout().unwrap();
            let mut together = 0;
            while let Some(due) = schedule.poll_due(now) {
                let Due::Renew(key) = due else { panic!("{due:?}") };
                together += 1;
                schedule.handle_renewed(now, key, now.after(TERMS.validity), random(key + 7));
            }
            renewed += together;
            turns += 1;
            most = most.max(together);
        }
        // Four seconds are 477 ticks.
        assert!((400..=480).contains(&turns), "{turns}");
        assert!(most < 60, "{most}");
        assert_eq!(schedule.len(), count as usize);
    }

    #[test]
    fn failed_renewal_is_tried_again_until_no_round_fits() {
        let (mut schedule, key) = kept(TERMS);
        let (mut now, mut tries) = (START, 0);
        loop {
            match next(&mut schedule, &mut now) {
                Due::Renew(_) => schedule.handle_failed(now, key, random(tries)),
                due => {
                    assert_eq!(due, Due::Lost(key, LossCause::Unavailable));
                    break;
                }
            }
            tries += 1;
        }
        // From the fourth to the twenty-second second, one to two seconds apart.
        assert!((10..=18).contains(&tries), "{tries}");
        assert_eq!(now, START.after(22 * SECOND), "R31: reported while a round could still fit");
        assert_eq!((schedule.poll_due(now), schedule.poll_timeout()), (None, None));
    }

    #[test]
    fn renewal_that_does_not_end_is_told_in_time() {
        let (mut schedule, key) = kept(TERMS);
        let mut now = START;
        assert_eq!(next(&mut schedule, &mut now), Due::Renew(key));
        assert_eq!(schedule.poll_due(START.after(22 * SECOND).before(SECOND)), None);
        assert_eq!(next(&mut schedule, &mut now), Due::Lost(key, LossCause::Unavailable));
        assert_eq!(now, START.after(22 * SECOND));
        // Its result comes too late to matter (R22).
        schedule.handle_renewed(now, key, now.after(TERMS.validity), 0);
        assert_eq!((schedule.len(), schedule.poll_timeout()), (0, None));
    }

    #[test]
    fn renewal_that_succeeds_after_failures_starts_afresh() {
        let (mut schedule, key) = kept(TERMS);
        let mut now = START;
        for _ in 0..3 {
            assert_eq!(next(&mut schedule, &mut now), Due::Renew(key));
            schedule.handle_failed(now, key, u64::MAX);
        }
        assert_eq!(next(&mut schedule, &mut now), Due::Renew(key));
        let deadline = now.after(TERMS.validity);
        schedule.handle_renewed(now, key, deadline, 0);
        // No thread checks for a long time: that is not the masters' fault.
        now = deadline.before(SECOND);
        assert_eq!(schedule.poll_due(now), Some(Due::Lost(key, LossCause::Late)));
    }

    #[test]
    fn cap_on_renewals_is_told_when_the_next_would_start() {
        let (mut schedule, key) = kept(Terms { renewals_max: 2, ..TERMS });
        let mut now = START;
        for _ in 0..2 {
            assert_eq!(next(&mut schedule, &mut now), Due::Renew(key));
            schedule.handle_renewed(now, key, now.after(TERMS.validity), u64::MAX);
        }
        let last = now;
        assert_eq!(next(&mut schedule, &mut now), Due::Lost(key, LossCause::RenewalsMax));
        assert!(now.since(last) <= 8 * SECOND, "two thirds of the validity are left");
        // Zero renewals are a cap, too.
        let (mut schedule, key) = kept(Terms { renewals_max: 0, ..TERMS });
        now = START;
        assert_eq!(next(&mut schedule, &mut now), Due::Lost(key, LossCause::RenewalsMax));
    }

    #[test]
    fn cap_on_the_lifetime_is_told_when_the_next_renewal_would_start() {
        let ends = START.after(60 * SECOND);
        let (mut schedule, key) = kept(Terms { ends, ..TERMS });
        let (mut now, mut renewals) = (START, 0);
        while let Due::Renew(_) = next(&mut schedule, &mut now) {
            assert!(now < ends);
            schedule.handle_renewed(now, key, now.after(TERMS.validity), u64::MAX);
            renewals += 1;
        }
        assert_eq!(renewals, 8);
        assert!(now >= ends && now.since(ends) <= 8 * SECOND, "{:?}", now.since(ends));
        assert_eq!(schedule.len(), 0);
    }

    #[test]
    fn clock_that_jumps_forward_ends_what_it_has_passed_and_renews_the_rest() {
        let mut schedule = Schedule::default();
        let short = Terms { validity: 6 * SECOND, notice: SECOND, ..TERMS };
        let lost = schedule.add(START, short, START.after(short.validity), 0);
        let late = schedule.add(START, TERMS, START.after(TERMS.validity), 0);
        let now = START.after(20 * SECOND);
        let jumped = Moment::with_jumps(now.as_nanos(), 19_000_000_000);
        assert_eq!(schedule.poll_due(jumped), Some(Due::Lost(lost, LossCause::Late)));
        assert_eq!(schedule.poll_due(jumped), Some(Due::Renew(late)));
        assert_eq!(schedule.poll_due(jumped), None);
        // A time that runs backwards makes nothing due.
        assert_eq!(schedule.poll_due(START), None);
    }

    #[test]
    fn lock_with_little_left_is_renewed_at_once_and_told_before_it_ends() {
        let mut schedule = Schedule::default();
        let deadline = START.after(SECOND);
        let key = schedule.add(START, TERMS, deadline, u64::MAX);
        assert_eq!(schedule.poll_due(START), Some(Due::Renew(key)));
        schedule.handle_failed(START, key, 0);
        let mut now = START;
        // A retry would be due after a second at the earliest: the notice comes first.
        assert_eq!(next(&mut schedule, &mut now), Due::Lost(key, LossCause::Unavailable));
        assert_eq!(now, deadline.before(SECOND / 2));
        // An expired lock is reported at once.
        let key = schedule.add(deadline, TERMS, deadline, 0);
        assert_eq!(schedule.poll_due(deadline), Some(Due::Lost(key, LossCause::Late)));
    }

    /// Both sides of each boundary.
    #[test]
    fn due_at_its_moment_and_not_a_nanosecond_before() {
        let nano = Duration::from_nanos(1);
        let (mut schedule, key) = kept(TERMS);
        let at = schedule.poll_timeout().unwrap();
        assert_eq!(schedule.poll_due(at.before(nano)), None);
        assert_eq!(schedule.poll_due(at), Some(Due::Renew(key)));
        let tell_at = schedule.poll_timeout().unwrap();
        assert_eq!(tell_at, TERMS.tell_at(at, START.after(TERMS.validity)));
        assert_eq!(schedule.poll_due(tell_at.before(nano)), None);
        assert_eq!(schedule.poll_due(tell_at), Some(Due::Lost(key, LossCause::Unavailable)));
    }

    #[test]
    fn removed_lock_is_not_due_in_any_phase() {
        let (mut schedule, key) = kept(TERMS);
        schedule.remove(key);
        assert_eq!(schedule.poll_due(Moment::END), None);
        let (mut schedule, key) = kept(TERMS);
        let mut now = START;
        assert_eq!(next(&mut schedule, &mut now), Due::Renew(key));
        schedule.remove(key);
        schedule.handle_failed(now, key, 0);
        schedule.handle_renewed(now, key, Moment::END, 0);
        assert_eq!((schedule.len(), schedule.poll_timeout()), (0, None));
    }

    /// Extreme values cause no division by zero, no wait and no busy loop.
    #[test]
    fn shortest_validity_is_planned_too() {
        for validity in [2, 3_000, 1_000_000].map(Duration::from_nanos) {
            let terms = Terms { validity, notice: validity, ..TERMS };
            let (mut schedule, key) = kept(terms);
            let mut now = START;
            for _ in 0..100 {
                match next(&mut schedule, &mut now) {
                    Due::Renew(_) => schedule.handle_failed(now, key, 0),
                    Due::Lost(..) => break,
                }
            }
            assert_eq!(schedule.len(), 0, "{validity:?}");
            assert!(now < START.after(validity));
        }
    }
}
