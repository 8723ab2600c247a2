//! Extension: a new time to live on a quorum, before the old validity ends.

use std::time::Duration;

use super::round::{Claim, Kind};
use super::{Engine, Failure, Lease, OpId, Progress, Task};
use crate::config::Heal;
use crate::error::LockError;
use crate::moment::Moment;
use crate::validity;

impl Engine {
    /// Starts to extend a lock so that it lives for `ttl` from now on. It never shortens the lock
    /// (R27). With [`Heal::On`] it also sets the key on nodes where it is absent (R29). Its result
    /// is [`Done::Extended`](super::Done::Extended), which returns the lease.
    pub fn extend(&mut self, now: Moment, mut lease: Lease, ttl: Duration) -> OpId {
        let now = self.clamp(now);
        lease = self.adopt(now, lease);
        let (ttl, refused) = match self.config.ttl(ttl) {
            Ok(ttl) if lease.is_valid_at(now) => (ttl, None),
            Ok(_) => (lease.ttl, Some(LockError::expired())),
            Err(error) => (lease.ttl, Some(error)),
        };
        let is_refused = refused.is_some();
        lease.longest = lease.longest.max(ttl);
        let key = lease.resource.clone().prefixed(&self.config.key_prefix);
        let (token, deadline) = (lease.token, lease.deadline);
        let lease = self.leases.insert(lease);
        let task = Task::Extend { lease, ttl, refused };
        let op = self.start_operation(task, Progress::Waiting);
        if is_refused {
            self.conclude(op, Progress::Refused);
            return self.id_of(op);
        }
        let kind = match self.config.heal {
            Heal::Off => Kind::Extend,
            Heal::On => Kind::Heal,
        };
        if !self.indebted.is_empty() {
            self.keep_debts(now, token, ttl);
        }
        let round = self.start_round(now, kind, Claim { key, token, ttl }, Some(op));
        self.operations[op].progress = Progress::Voting(round);
        // After the old deadline, an answer is of no use.
        self.set_timer(op, deadline);
        self.send_to_all(now, round);
        // However it ends, its nodes get the release too (R29): it may set copies there. And a
        // process with a copy may have moved to a node that was not sent the SET.
        self.leases[lease].sent.extend(self.rounds[round].sent);
        self.id_of(op)
    }

    /// Whether this healing extension has ended, or its lock. From then on, a key that it sets
    /// would not be released (R29).
    #[cold]
    pub(super) fn is_healing_over(&self, round: usize) -> bool {
        let healing = &self.rounds[round];
        let lease = healing.owner.map(|op| &self.operations[op].task).and_then(|task| match task {
            Task::Extend { lease, .. } => Some(&self.leases[*lease]),
            Task::Acquire { .. } | Task::Release { .. } => None,
        });
        healing.decided || lease.is_none_or(|lease| !lease.is_valid_at(self.last_now))
    }

    /// Raises the deadline if a quorum extended and the old deadline is not reached at `now` (R25).
    /// Otherwise the lease is unchanged (R26).
    pub(super) fn finish_extend(
        &mut self,
        now: Moment,
        op: usize,
    ) -> (Lease, Result<(), LockError>) {
        let progress = self.operations[op].progress;
        let Task::Extend { lease, ttl, refused } = &mut self.operations[op].task else {
            unreachable!("called for extensions only");
        };
        let (ttl, refused) = (*ttl, refused.take());
        let mut lease = self.leases.remove(*lease);
        let (failure, round) = match progress {
            Progress::Won(round) if lease.is_valid_at(now) => {
                let won = &self.rounds[round];
                lease.granted = won.granted;
                lease.deadline = lease.deadline.max(won.deadline);
                lease.ttl = ttl;
                debug_assert!(validity::is_valid(lease.deadline, now));
                self.stats.extended += 1;
                if self.has_queues() {
                    let key = lease.resource.clone().prefixed(&self.config.key_prefix);
                    self.hold_longer(&key, lease.token, lease.deadline);
                }
                return (lease, Ok(()));
            }
            Progress::Won(round) => (Failure::Expired, Some(round)),
            Progress::Failed(failure, round) => (failure, round),
            Progress::Refused => (Failure::Expired, None),
            Progress::Waiting | Progress::Voting(_) => {
                unreachable!("only concluded operations are in the queue")
            }
        };
        self.stats.extensions_failed += 1;
        let error = refused.unwrap_or_else(|| {
            let nodes = round.map_or_else(Vec::new, |round| self.reports(round));
            LockError::new(failure.into(), u32::from(round.is_some()), nodes)
        });
        (lease, Err(error))
    }
}
