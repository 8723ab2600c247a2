//! Extension: a new time to live on a quorum, before the old validity ends.

use std::time::Duration;

use super::failure::Failure;
use super::kind::{Claim, RoundKind};
use super::op_id::OpId;
use super::operation::{Progress, Task};
use super::{Engine, Lease};
use crate::config::Heal;
use crate::lock_error::LockError;
use crate::moment::Moment;
use crate::proto::index::{OpIndex, RoundId};
use crate::resource::LockKind;
use crate::validity::Ttl;

impl Engine {
    /// Starts to extend a lock so that it lives for `ttl` from now on. It never shortens the lock.
    /// With [`Heal::On`] it also sets the key on nodes where it is absent. Its result is
    /// [`Done::Extended`](super::Done::Extended), which returns the lease.
    pub fn extend(&mut self, now: Moment, mut lease: Lease, ttl: Duration) -> OpId {
        let now = self.clamp(now);
        self.adopt(now, &mut lease);
        let (ttl, refused) = match self.config.ttl(ttl) {
            Ok(ttl) if lease.is_valid_at(now) => (ttl, None),
            Ok(_) => (lease.claim.ttl, Some(LockError::expired())),
            Err(error) => (lease.claim.ttl, Some(error)),
        };
        let is_refused = refused.is_some();
        let deadline = lease.deadline;
        let is_share = *lease.claim.key.kind() == LockKind::Shared;
        let shared = (self.waits.local.has_any() && is_share)
            .then(|| (lease.claim.key.clone(), lease.claim.token));
        let lease = self.operations.leases.insert(lease);
        let task = Task::Extend { lease, refused };
        let op = self.operations.start(task, Progress::Waiting);
        match is_refused {
            true => self.operations.conclude(op, Progress::Refused),
            // After the old deadline, an answer is of no use.
            false => self.start_extension(now, op, lease, ttl, deadline),
        }
        if let Some((key, token)) = shared {
            self.with_waits(now, |waits, cx| waits.local.leave_held(cx, &key, token));
        }
        self.operations.id_of(op)
    }

    /// Starts the round of an extension, or of a kept lock's renewal, which waits for answers until
    /// then.
    #[inline]
    pub(super) fn start_extension(
        &mut self,
        now: Moment,
        op: OpIndex,
        lease: usize,
        ttl: Ttl,
        until: Moment,
    ) {
        self.nodes.hold(ttl);
        let held = &mut self.operations.leases[lease];
        held.longest = held.longest.max(ttl);
        let claim = Claim { ttl, ..held.claim.clone() };
        let kind = match self.config.heal {
            Heal::Off => RoundKind::Extend,
            Heal::On => RoundKind::Heal,
        };
        self.cleanup.keep(now, claim.token, ttl);
        let round = self.rounds.start(now, kind, claim, Some(op));
        self.operations[op].progress = Progress::Voting(round);
        self.operations.set_timer(op, until);
        self.send_to_all(now, round);
        // However it ends, its nodes get the release too (R29): it may set copies there. And a
        // process with a copy may have moved to a node that was not sent the SET.
        self.operations.leases[lease].sent.extend(self.rounds[round].sent);
    }

    /// A quorum has extended the lock: raises its deadline if the old one is not reached at `now`
    /// (R25), and returns whether that is so. The one way to a later deadline.
    #[inline]
    pub(super) fn extended(&mut self, now: Moment, lease: usize, round: RoundId) -> bool {
        let won = &self.rounds[round];
        let held = &mut self.operations.leases[lease];
        if !held.is_valid_at(now) {
            return false;
        }
        held.granted = won.granted;
        // One that is shorter than what was left changes nothing, so later renewals are as before.
        if won.deadline > held.deadline {
            held.deadline = won.deadline;
            held.claim.ttl = self.rounds.claim(round).ttl;
        }
        self.stats.extended += 1;
        if self.waits.local.has_any() {
            let Claim { key, token, .. } = &held.claim;
            self.waits.local.queues.hold_longer(key, *token, held.deadline);
        }
        true
    }

    /// The lease, with a later deadline if a quorum extended in time. Otherwise it is unchanged
    /// (R26).
    pub(super) fn finish_extend(
        &mut self,
        now: Moment,
        op: OpIndex,
    ) -> (Lease, Result<(), LockError>) {
        let progress = self.operations[op].progress;
        let Task::Extend { lease, refused } = &mut self.operations[op].task else {
            unreachable!("called for extensions only");
        };
        let (lease, refused) = (*lease, refused.take());
        let (failure, round) = match progress {
            Progress::Won(round) if self.extended(now, lease, round) => {
                return (self.operations.leases.remove(lease), Ok(()));
            }
            Progress::Won(round) => (Failure::Expired, Some(round)),
            Progress::Failed(failure, round) => (failure, round),
            Progress::Refused => (Failure::Expired, None),
            Progress::Waiting | Progress::Voting(_) | Progress::Lost(..) => {
                unreachable!("only concluded extensions are in the queue")
            }
        };
        self.stats.extensions_failed += 1;
        let error = refused.unwrap_or_else(|| {
            let reports = |round| self.rounds.reports(self.last_now, &self.nodes, round);
            let nodes = round.map_or_else(Vec::new, reports);
            LockError::new(failure.into(), u32::from(round.is_some()), nodes)
        });
        (self.operations.leases.remove(lease), Err(error))
    }
}
