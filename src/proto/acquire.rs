//! Acquisition: rounds of SET until a quorum grants, or patience ends.

use super::release::Held;
use super::round::Kind;
use super::timer::between;
use super::{Engine, Lease, OPERATIONS_MAX, OpId, Patience, Progress, Task};
use crate::error::{LockError, LockErrorKind, NodeOutcome};
use crate::quorum::Tally;
use crate::token::LockToken;
use crate::{Moment, Resource, validity};

impl Engine {
    /// Starts to acquire a lock. `now` becomes the start of its validity: it must be read before
    /// this call (R1).
    ///
    /// # Errors
    /// [`LockErrorKind::InvalidTtl`] or [`LockErrorKind::Overloaded`]; nothing was sent.
    pub fn acquire(
        &mut self,
        now: Moment,
        resource: Resource,
        ttl: std::time::Duration,
        patience: Patience,
    ) -> Result<OpId, LockError> {
        let now = self.clamp(now);
        let ttl = self.config.ttl(ttl)?;
        if self.operations.len() >= OPERATIONS_MAX {
            return Err(LockError::new(LockErrorKind::Overloaded, 0, Vec::new()));
        }
        let task = Task::Acquire { resource, ttl, patience, attempts: 0, last: None };
        let op = self.start_operation(task, Progress::Waiting);
        self.start_attempt(now, op);
        Ok(self.id_of(op))
    }

    /// One round: a fresh token (R6), one SET to every node.
    pub(super) fn start_attempt(&mut self, now: Moment, op: usize) {
        let Some(random) = self.entropy.token() else {
            return self.conclude(op, Progress::Failed(LockErrorKind::NoEntropy, None));
        };
        let token = LockToken::from_random(random);
        let Task::Acquire { resource, ttl, patience, attempts, .. } = &mut self.operations[op].task
        else {
            unreachable!("only acquisitions have attempts");
        };
        *attempts += 1;
        let (ttl, patience) = (*ttl, *patience);
        let key = resource.prefixed(&self.config.key_prefix);
        self.stats.rounds += 1;
        let round = self.start_round(now, Kind::Acquire, (key, token, ttl), Some(op));
        self.operations[op].progress = Progress::Voting(round);
        if let Patience::Until(give_up_at) = patience {
            self.set_timer(op, Some(give_up_at));
        }
        self.send_to_all(now, round);
    }

    /// Undoes a round that failed, on every node (R4, R10); says whether another one will follow.
    pub(super) fn attempt_failed(
        &mut self,
        now: Moment,
        op: usize,
        round: usize,
        kind: LockErrorKind,
    ) -> bool {
        let failed = &mut self.rounds[round];
        failed.is_abandoned = true;
        let held = Held {
            key: failed.key.clone(),
            token: failed.token,
            ttl: failed.ttl,
            started: failed.started,
            sent: failed.sent,
        };
        self.release_everywhere(now, held, None);
        let Some(retry_at) = self.retry_at(now, op) else {
            match kind {
                LockErrorKind::Contended => self.stats.contended += 1,
                LockErrorKind::Unavailable => self.stats.unavailable += 1,
                _ => self.stats.expired += 1,
            }
            return false;
        };
        let nodes = self.reports(round);
        if let Task::Acquire { last, attempts, .. } = &mut self.operations[op].task {
            *last = Some(LockError::new(kind, *attempts, nodes));
        }
        self.disown(round);
        self.operations[op].progress = Progress::Waiting;
        self.set_timer(op, Some(retry_at));
        true
    }

    /// When the next round starts; `None` if it would start after the end of patience (R9).
    fn retry_at(&mut self, now: Moment, op: usize) -> Option<Moment> {
        let Task::Acquire { patience: Patience::Until(give_up_at), attempts, .. } =
            self.operations[op].task
        else {
            return None;
        };
        let round_trip = std::time::Duration::from_nanos(self.quorum_round_trip_nanos.unwrap_or(0));
        let base = self.config.retry.base(attempts, round_trip);
        let delay = between(base, base.saturating_mul(2), self.entropy.next_u64());
        let retry_at = now.after(delay);
        (retry_at < give_up_at).then_some(retry_at)
    }

    /// Patience ended in the middle of a round: who has not answered by now has not voted. What a
    /// round before said to its end says more than that, and is reported instead.
    pub(super) fn give_up(&mut self, now: Moment, op: usize, round: usize) {
        self.rounds[round].decided = true;
        for node in self.rounds[round].undecided.iter() {
            let phase = self.nodes[node].phase();
            self.record(now, round, node, NodeOutcome::TimedOut(phase));
        }
        let cut_off = failure_kind(self.rounds[round].tally);
        let Task::Acquire { last, .. } = &self.operations[op].task else {
            unreachable!("only acquisitions have patience");
        };
        let before = last.as_ref().map(LockError::kind);
        let kind = before.unwrap_or(cut_off);
        if self.attempt_failed(now, op, round, kind) {
            return;
        }
        if before.is_some() {
            self.disown(round);
            self.conclude(op, Progress::Failed(kind, None));
        } else {
            self.conclude(op, Progress::Failed(kind, Some(round)));
        }
    }

    /// Hands out the lock if, at `now`, something of its validity is left (R2). `None` if the
    /// quorum came too late and another round follows.
    #[inline]
    pub(super) fn finish_acquire(
        &mut self,
        now: Moment,
        op: usize,
    ) -> Option<Result<Lease, LockError>> {
        let Task::Acquire { resource, attempts, last, .. } = &mut self.operations[op].task else {
            unreachable!("called for acquisitions only");
        };
        let (resource, attempts, last) = (resource.clone(), *attempts, last.take());
        match self.operations[op].progress {
            Progress::Won(round) => {
                let won = &self.rounds[round];
                let deadline = self.config.drift.deadline(won.started, won.ttl);
                if validity::is_valid(deadline, now) {
                    self.stats.acquired += 1;
                    return Some(Ok(Lease {
                        resource,
                        token: won.token,
                        ttl: won.ttl,
                        longest: won.ttl,
                        started: won.started,
                        deadline,
                        granted: won.granted,
                        sent: won.sent,
                    }));
                }
                if self.attempt_failed(now, op, round, LockErrorKind::Expired) {
                    return None;
                }
                Some(Err(LockError::new(LockErrorKind::Expired, attempts, self.reports(round))))
            }
            Progress::Failed(kind, round) => {
                let nodes = match round {
                    Some(round) => self.reports(round),
                    None => last.map_or_else(Vec::new, |last| last.nodes().to_vec()),
                };
                Some(Err(LockError::new(kind, attempts, nodes)))
            }
            Progress::Waiting | Progress::Voting(_) => {
                unreachable!("only concluded operations are in the queue")
            }
        }
    }
}

/// Why a round was lost: to masters that gave no vote, or to somebody else's lock.
pub(super) fn failure_kind(tally: Tally) -> LockErrorKind {
    if tally.failures_deny_quorum() { LockErrorKind::Unavailable } else { LockErrorKind::Contended }
}
