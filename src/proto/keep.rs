//! Keeping locks: the engine renews them until they are stopped or lost (R31).

use super::failure::Failure;
use super::op_id::OpId;
use super::operation::{Progress, Task};
use super::terms::{Keep, Terms};
use super::{Done, Engine, Lease};
use crate::keep_alive::{KeepAlive, Loss, LossCause};
use crate::lock_error::LockError;
use crate::moment::Moment;
use crate::proto::index::OpIndex;

impl Engine {
    /// Starts to renew a lock, to its last TTL each time. Every renewal is reported as
    /// [`Done::Renewed`]. It ends as [`Done::Lost`], which returns the lease, or is
    /// [cancelled](Engine::cancel).
    pub fn keep(&mut self, now: Moment, mut lease: Lease, how: &KeepAlive) -> OpId {
        let now = self.clamp(now);
        self.adopt(now, &mut lease);
        let deadline = lease.deadline;
        let ttl = self.config.ttl(lease.ttl());
        let validity = ttl.as_ref().ok().and_then(|ttl| ttl.validity());
        let terms = Terms::new(now, validity.unwrap_or_default(), how, self.config.node_timeout);
        let report_at = terms.report_at(now, deadline);
        let keep = Box::new(Keep { terms, report_at, renewals: 0, error: ttl.err() });
        let cause = match keep.error {
            Some(_) => Some(LossCause::Refused),
            None if lease.is_valid_at(now) => None,
            None => Some(LossCause::Late),
        };
        let lease = self.operations.leases.insert(lease);
        let op = self.operations.start(Task::Keep { lease, keep }, Progress::Waiting);
        match cause {
            Some(cause) => self.operations.conclude(op, Progress::Lost(cause, None)),
            None => {
                let random = self.entropy.next_u64();
                let at = terms.first_renewal(now, deadline, random);
                self.operations.set_timer(op, at.min(report_at));
            }
        }
        self.operations.id_of(op)
    }

    /// A renewal is due, or a loss is to be reported.
    pub(super) fn handle_kept_due(&mut self, now: Moment, op: OpIndex) {
        let Task::Keep { lease, keep } = &self.operations[op].task else {
            unreachable!("called for kept locks only");
        };
        let (lease, report_at, terms) = (*lease, keep.report_at, &keep.terms);
        let held = &self.operations.leases[lease];
        let cause = match self.operations[op].progress {
            // Whatever the notice is: the masters had their time.
            Progress::Voting(_) if now >= report_at => Some(LossCause::Unavailable),
            _ if !held.is_valid_at(now) => Some(LossCause::Late),
            Progress::Waiting if now >= report_at && keep.error.is_none() => Some(LossCause::Late),
            _ if now >= report_at => Some(LossCause::Unavailable),
            _ if keep.renewals >= terms.renewals_max => Some(LossCause::RenewalsMax),
            _ if now >= terms.ends => Some(LossCause::LifetimeMax),
            _ => None,
        };
        match (cause, self.operations[op].progress) {
            (None, _) => self.start_extension(now, op, lease, held.claim.ttl, report_at),
            (Some(cause), Progress::Voting(round)) => {
                self.rounds[round].decided = true;
                self.operations.conclude(op, Progress::Lost(cause, Some(round)));
            }
            (Some(cause), _) => self.operations.conclude(op, Progress::Lost(cause, None)),
        }
    }

    /// A renewal has ended, or the lock is lost. `None` if a renewal failed and another follows.
    pub(super) fn finish_kept(&mut self, now: Moment, op: OpIndex) -> Option<Done> {
        let (progress, report_at) =
            (self.operations[op].progress, self.operations.keep_of(op).1.report_at);
        let lease = self.operations.keep_of(op).0;
        let cause = match progress {
            // A renewal raises the deadline only before the old one (R22).
            Progress::Won(round) if self.extended(now, lease, round) => {
                let deadline = self.operations.leases[lease].deadline;
                let random = self.entropy.next_u64();
                let (_, keep) = self.operations.keep_of(op);
                (keep.renewals, keep.error) = (keep.renewals.saturating_add(1), None);
                keep.report_at = keep.terms.report_at(now, deadline);
                let at = keep.terms.next_renewal(now, deadline, random).min(keep.report_at);
                self.rounds.disown(round);
                self.operations.wait_until(op, at);
                return Some(Done::Renewed(deadline));
            }
            Progress::Won(_) => LossCause::Late,
            Progress::Failed(Failure::Expired, _) => LossCause::Gone,
            Progress::Failed(failure, Some(round)) if now < report_at => {
                let reports = self.rounds.reports(self.last_now, &self.nodes, round);
                self.stats.extensions_failed += 1;
                let random = self.entropy.next_u64();
                let (_, keep) = self.operations.keep_of(op);
                keep.error = Some(LockError::new(failure.into(), 1, reports));
                let at = keep.terms.retry_at(now, random).min(report_at);
                self.rounds.disown(round);
                self.operations.wait_until(op, at);
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
    fn lose(&mut self, now: Moment, op: OpIndex, cause: LossCause) -> Done {
        let (lease, keep) = self.operations.keep_of(op);
        let mut error = keep.error.take();
        let ended = match self.operations[op].progress {
            Progress::Failed(failure, Some(round)) => Some((failure, round)),
            Progress::Lost(_, Some(round)) => Some((Failure::Unavailable, round)),
            Progress::Won(round) => Some((Failure::Expired, round)),
            _ => None,
        };
        if let Some((failure, round)) = ended {
            self.stats.extensions_failed += 1;
            let reports = self.rounds.reports(self.last_now, &self.nodes, round);
            error = Some(LockError::new(failure.into(), 1, reports));
        }
        self.stats.lost += 1;
        let mut lease = self.operations.leases.remove(lease);
        if cause == LossCause::Gone {
            // The lock is over, whatever the clock says.
            lease.deadline = lease.deadline.min(now);
        }
        let (resource, remaining) = (lease.resource().clone(), lease.remaining(now));
        Done::Lost(lease, Box::new(Loss { resource, cause, remaining, error }))
    }
}
