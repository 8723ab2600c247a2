//! Keeping locks: the engine renews them until they are stopped or lost (R31).

use std::time::Duration;

use super::operation::{Failure, OpId, Progress, Task};
use super::timer::between;
use super::{Done, Engine, Lease};
use crate::error::LockError;
use crate::keep_alive::{KeepAlive, Loss, LossCause};
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
    pub(crate) fn tell_at(&self, now: Moment, deadline: Moment) -> Moment {
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
pub(super) struct Keep {
    terms: Terms,
    /// When a loss is reported, unless a renewal succeeds before.
    tell_at: Moment,
    renewals: u32,
    /// Why the last renewal failed, if it did.
    error: Option<LockError>,
}

impl Engine {
    /// Starts to renew a lock, to its last TTL each time. Every renewal is reported as
    /// [`Done::Renewed`]. It ends as [`Done::Lost`], which returns the lease, or is
    /// [cancelled](Engine::cancel).
    pub fn keep(&mut self, now: Moment, lease: Lease, how: &KeepAlive) -> OpId {
        let now = self.clamp(now);
        let lease = self.adopt(now, lease);
        let deadline = lease.deadline;
        let ttl = self.config.ttl(lease.ttl());
        let validity = ttl.as_ref().ok().and_then(|ttl| self.config.drift.validity(*ttl));
        let terms = Terms::new(now, validity.unwrap_or_default(), how, self.config.node_timeout);
        let tell_at = terms.tell_at(now, deadline);
        let keep = Box::new(Keep { terms, tell_at, renewals: 0, error: ttl.err() });
        let cause = match keep.error {
            Some(_) => Some(LossCause::Refused),
            None if lease.is_valid_at(now) => None,
            None => Some(LossCause::Late),
        };
        let lease = self.leases.insert(lease);
        let op = self.operations.start(Task::Keep { lease, keep }, Progress::Waiting);
        match cause {
            Some(cause) => self.operations.conclude(op, Progress::Lost(cause, None)),
            None => {
                let random = self.entropy.next_u64();
                let at = terms.first_renewal(now, deadline, random);
                self.operations.set_timer(op, at.min(tell_at));
            }
        }
        self.operations.id_of(op)
    }

    /// The lease of a lock that is kept here, as of its last renewal.
    pub fn kept(&self, id: OpId) -> Option<&Lease> {
        match self.operations[self.operations.lookup(id)?].task {
            Task::Keep { lease, .. } => Some(&self.leases[lease]),
            Task::Acquire { .. }
            | Task::Extend { .. }
            | Task::Release { .. }
            | Task::Inspect { .. } => None,
        }
    }

    /// A renewal is due, or a loss is to be reported.
    pub(super) fn handle_kept_due(&mut self, now: Moment, op: usize) {
        let Task::Keep { lease, keep } = &self.operations[op].task else {
            unreachable!("called for kept locks only");
        };
        let (lease, tell_at, terms) = (*lease, keep.tell_at, &keep.terms);
        let held = &self.leases[lease];
        let cause = match self.operations[op].progress {
            // Whatever the notice is: the masters had their time.
            Progress::Voting(_) if now >= tell_at => Some(LossCause::Unavailable),
            _ if !held.is_valid_at(now) => Some(LossCause::Late),
            Progress::Waiting if now >= tell_at && keep.error.is_none() => Some(LossCause::Late),
            _ if now >= tell_at => Some(LossCause::Unavailable),
            _ if keep.renewals >= terms.renewals_max => Some(LossCause::RenewalsMax),
            _ if now >= terms.ends => Some(LossCause::LifetimeMax),
            _ => None,
        };
        match (cause, self.operations[op].progress) {
            (None, _) => self.start_extension(now, op, lease, held.ttl, tell_at),
            (Some(cause), Progress::Voting(round)) => {
                self.rounds[round].decided = true;
                self.operations.conclude(op, Progress::Lost(cause, Some(round)));
            }
            (Some(cause), _) => self.operations.conclude(op, Progress::Lost(cause, None)),
        }
    }

    /// A renewal has ended, or the lock is lost. `None` if a renewal failed and another follows.
    pub(super) fn finish_kept(&mut self, now: Moment, op: usize) -> Option<Done> {
        let (progress, tell_at) = (self.operations[op].progress, self.keep_of(op).1.tell_at);
        let lease = self.keep_of(op).0;
        let cause = match progress {
            // A renewal raises the deadline only before the old one (R22).
            Progress::Won(round) if self.extended(now, lease, round) => {
                let deadline = self.leases[lease].deadline;
                let random = self.entropy.next_u64();
                let (_, keep) = self.keep_of(op);
                (keep.renewals, keep.error) = (keep.renewals.saturating_add(1), None);
                keep.tell_at = keep.terms.tell_at(now, deadline);
                let at = keep.terms.next_renewal(now, deadline, random).min(keep.tell_at);
                self.wait_again(op, round, at);
                return Some(Done::Renewed(deadline));
            }
            Progress::Won(_) => LossCause::Late,
            Progress::Failed(Failure::Expired, _) => LossCause::Gone,
            Progress::Failed(failure, Some(round)) if now < tell_at => {
                let error = LockError::new(failure.into(), 1, self.reports(round));
                self.stats.extensions_failed += 1;
                let random = self.entropy.next_u64();
                let (_, keep) = self.keep_of(op);
                keep.error = Some(error);
                let at = keep.terms.retry_at(now, random).min(tell_at);
                self.wait_again(op, round, at);
                return None;
            }
            Progress::Failed(..) => LossCause::Unavailable,
            Progress::Lost(cause, _) => cause,
            Progress::Waiting | Progress::Voting(_) | Progress::Refused => {
                unreachable!("only concluded operations are in the queue")
            }
        };
        Some(self.lose(now, op, cause))
    }

    /// The lock is given back to its holder.
    fn lose(&mut self, now: Moment, op: usize, cause: LossCause) -> Done {
        let (lease, keep) = self.keep_of(op);
        let mut error = keep.error.take();
        let ended = match self.operations[op].progress {
            Progress::Failed(failure, Some(round)) => Some((failure, round)),
            Progress::Lost(_, Some(round)) => Some((Failure::Unavailable, round)),
            Progress::Won(round) => Some((Failure::Expired, round)),
            _ => None,
        };
        if let Some((failure, round)) = ended {
            self.stats.extensions_failed += 1;
            error = Some(LockError::new(failure.into(), 1, self.reports(round)));
        }
        self.stats.lost += 1;
        let mut lease = self.leases.remove(lease);
        if cause == LossCause::Gone {
            // The lock is over, whatever the clock says.
            lease.deadline = lease.deadline.min(now);
        }
        let (resource, remaining) = (lease.resource.clone(), lease.remaining(now));
        Done::Lost(lease, Box::new(Loss { resource, cause, remaining, error }))
    }

    fn keep_of(&mut self, op: usize) -> (usize, &mut Keep) {
        match &mut self.operations[op].task {
            Task::Keep { lease, keep } => (*lease, keep),
            _ => unreachable!("called for kept locks only"),
        }
    }

    /// The round is over, and the kept lock waits for its next renewal.
    fn wait_again(&mut self, op: usize, round: usize, at: Moment) {
        self.rounds.disown(round);
        self.operations[op].progress = Progress::Waiting;
        self.operations.set_timer(op, at);
    }
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
        assert_eq!(TERMS.tell_at(START, deadline), deadline.before(2 * SECOND));
        let late = deadline.before(SECOND);
        assert_eq!(TERMS.tell_at(late, deadline), deadline.before(SECOND / 2));
        assert_eq!(TERMS.tell_at(deadline, deadline), deadline);
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
