//! When to renew a lock that is kept, and when to report its loss (R31).

use std::time::Duration;

use super::timer::between;
use crate::keep_alive::KeepAlive;
use crate::lock_error::LockError;
use crate::moment::Moment;

/// The least number of renewals that start in one validity (R31).
const RENEWALS_PER_VALIDITY: u32 = 3;
/// The earliest start of the first renewal, in eighths of a period. Locks that were taken at the
/// same moment spread over the rest.
const FIRST_EIGHTHS_MIN: u32 = 4;
/// The same for every later renewal.
const EIGHTHS_MIN: u32 = 7;
/// A failed renewal is repeated after one to two eighths of a period.
const RETRY_EIGHTHS: u32 = 1;
/// But not sooner than this: a round that fails at once must not be repeated in a busy loop.
const RETRY_MIN: Duration = Duration::from_millis(1);
/// Renewals start on ticks, at least this many per period: those that are due at nearly the same
/// time leave together.
const TICKS_PER_PERIOD_MIN: u128 = 32;
/// The longest distance between two ticks.
const TICK_NANOS_MAX: u64 = 1 << 23;
/// The notice is at most this fraction of the remaining validity.
const NOTICE_PART_MAX: u32 = 2;

/// How to keep one lock alive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// How long the lock is valid, from the start of a renewal.
    pub(crate) validity: Duration,
    /// How long before the deadline a loss is reported.
    pub(crate) notice: Duration,
    pub(crate) renewals_max: u32,
    /// No renewal starts from this moment on.
    pub(crate) ends: Moment,
}

impl Terms {
    /// For a lock whose renewals each give it this validity.
    pub(crate) fn new(
        now: Moment,
        validity: Duration,
        how: &KeepAlive,
        node_timeout: Duration,
    ) -> Terms {
        Terms {
            validity,
            notice: how.notice_of(validity, node_timeout),
            renewals_max: how.renewals_max,
            ends: now.after(how.lifetime_max),
        }
    }

    /// When to report a loss: the notice before `deadline`, but at most half of the validity that
    /// is left at `now`.
    pub(crate) fn report_at(&self, now: Moment, deadline: Moment) -> Moment {
        let left = deadline.since(now);
        deadline.before(self.notice.min(left / NOTICE_PART_MAX))
    }

    fn period(&self) -> Duration {
        self.validity / RENEWALS_PER_VALIDITY
    }

    /// When to renew a lock for the first time.
    pub(crate) fn first_renewal(&self, now: Moment, deadline: Moment, random: u64) -> Moment {
        self.renew_at(now, deadline, FIRST_EIGHTHS_MIN, random)
    }

    /// When to renew a lock that was renewed, and is valid until `deadline`.
    pub(crate) fn next_renewal(&self, now: Moment, deadline: Moment, random: u64) -> Moment {
        self.renew_at(now, deadline, EIGHTHS_MIN, random)
    }

    fn renew_at(&self, now: Moment, deadline: Moment, eighths_min: u32, random: u64) -> Moment {
        let age = self.validity.saturating_sub(deadline.since(now));
        let wait = between(self.period() / 8 * eighths_min, self.period(), random);
        self.on_tick(now.after(wait.saturating_sub(age)))
    }

    /// When to repeat a renewal that failed.
    pub(crate) fn retry_at(&self, now: Moment, random: u64) -> Moment {
        let least = (self.period() / 8 * RETRY_EIGHTHS).max(RETRY_MIN);
        now.after(between(least, 2 * least, random))
    }

    /// The last tick that is not later than `at`.
    fn on_tick(&self, at: Moment) -> Moment {
        let most = self.period().as_nanos() / TICKS_PER_PERIOD_MIN;
        let most = u64::try_from(most).map_or(TICK_NANOS_MAX, |most| most.min(TICK_NANOS_MAX));
        let tick = most.checked_ilog2().map_or(1, |exponent| 1 << exponent);
        at.before(Duration::from_nanos(at.as_nanos() % tick))
    }
}

/// A lock that the engine keeps. Its lease is among those of the extensions.
pub(crate) struct Keep {
    pub(super) terms: Terms,
    /// When a loss is reported, unless a renewal succeeds before.
    pub(super) report_at: Moment,
    pub(super) renewals: u32,
    /// Why the last renewal failed, if it did.
    pub(super) error: Option<LockError>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    /// R31: no period is longer than a third of the validity. The duration of the answer is not
    /// added to it.
    #[test]
    fn lock_is_renewed_at_a_third_of_its_validity_at_the_latest() {
        for i in 0..1_000 {
            let deadline = START.after(TERMS.validity);
            let first = TERMS.first_renewal(START, deadline, random(i)).since(START);
            assert!(first <= 8 * SECOND && first + Duration::from_millis(9) >= 4 * SECOND);
            let answered = START.after(SECOND);
            let next = TERMS.next_renewal(answered, deadline, random(i)).since(START);
            assert!(next <= 8 * SECOND && next + Duration::from_millis(9) >= 7 * SECOND);
        }
    }

    #[test]
    fn locks_of_one_moment_spread_over_ticks() {
        let deadline = START.after(TERMS.validity);
        let at = |i| TERMS.first_renewal(START, deadline, random(i)).as_nanos();
        let ticks: BTreeSet<u64> = (0..10_000).map(at).collect();
        // Four seconds are 477 ticks.
        assert!((400..=480).contains(&ticks.len()), "{}", ticks.len());
        assert!(ticks.iter().all(|at| at % TICK_NANOS_MAX == 0));
    }

    #[test]
    fn failed_renewal_is_repeated_after_an_eighth_of_a_period_or_two() {
        for i in 0..1_000 {
            let pause = TERMS.retry_at(START, random(i)).since(START);
            assert!((SECOND..=2 * SECOND).contains(&pause), "{pause:?}");
        }
    }

    #[test]
    fn loss_is_reported_before_the_deadline_and_not_before_half_of_what_is_left() {
        let deadline = START.after(10 * SECOND);
        assert_eq!(TERMS.report_at(START, deadline), deadline.before(2 * SECOND));
        let late = deadline.before(SECOND);
        assert_eq!(TERMS.report_at(late, deadline), deadline.before(SECOND / 2));
        assert_eq!(TERMS.report_at(deadline, deadline), deadline);
    }

    /// A lock with little left is due at once.
    #[test]
    fn old_lock_is_due_at_once() {
        for left in [SECOND, Duration::ZERO] {
            assert!(TERMS.first_renewal(START, START.after(left), u64::MAX) <= START);
        }
    }

    /// Extreme values cause no division by zero and no busy loop.
    #[test]
    fn shortest_validity_is_planned_too() {
        for validity in [0, 2, 3_000, 1_000_000].map(Duration::from_nanos) {
            let terms = Terms { validity, notice: validity, ..TERMS };
            let deadline = START.after(validity);
            assert!(terms.next_renewal(START, deadline, u64::MAX) <= deadline);
            assert!(terms.retry_at(START, 0) >= START.after(RETRY_MIN));
        }
    }

    /// Ticks are so close that they do not bring a renewal forward by much.
    #[test]
    fn ticks_of_a_short_validity_are_close() {
        let terms = Terms { validity: Duration::from_millis(24), ..TERMS };
        for i in 0..1_000 {
            let next = terms.next_renewal(START, START.after(terms.validity), random(i));
            assert!(next.since(START) >= Duration::from_micros(7_000 - 250), "{next:?}");
        }
    }
}
