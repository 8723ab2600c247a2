//! Acquisition: rounds of SET until a quorum grants, or the time to wait is over.

use super::failure::Failure;
use super::kind::{Claim, RoundKind};
use super::op_id::OpId;
use super::operation::{Last, Progress, Task};
use super::release::Held;
use super::timer::between;
use super::wait::{Departure, ReleasePlan, WaitingOp};
use super::{Engine, OPERATIONS_MAX, Patience};
use crate::fencing::Fencing;
use crate::lock_error::{LockError, LockErrorKind, Reserved};
use crate::moment::Moment;
use crate::proto::index::{OpIndex, RoundId};
use crate::quorum::Tally;
use crate::resource::{AskPolicy, Key, Refusal, Resource};
use crate::token::LockToken;
use crate::validity;

impl Engine {
    /// Starts to acquire a lock. `now` becomes the start of its validity in the first round: read
    /// the clock just before this call.
    ///
    /// # Errors
    /// Nothing was sent.
    /// - [`LockErrorKind::InvalidTtl`]: correct the TTL.
    /// - [`LockErrorKind::ReservedResource`]: the resource's key belongs to the fencing counters,
    ///   or a fencing token was requested for a resource that is not one plain name; choose another
    ///   name.
    /// - [`LockErrorKind::Overloaded`]: [`OPERATIONS_MAX`] operations of all kinds are in flight;
    ///   wait until some have completed.
    #[inline]
    pub fn acquire(
        &mut self,
        now: Moment,
        resource: Resource,
        ttl: std::time::Duration,
        patience: Patience,
        fencing: Fencing,
    ) -> Result<OpId, LockError> {
        let now = self.clamp(now);
        let kind = match (fencing, resource.is_plain()) {
            (Fencing::Off, true) => RoundKind::Acquire,
            (Fencing::On, true) => RoundKind::AcquireFenced,
            (Fencing::Off, false) => RoundKind::Take,
            (Fencing::On, false) => return Err(LockError::reserved(Reserved::NotPlain)),
        };
        let ttl = self.config.ttl(ttl)?;
        if self.operations.count() >= OPERATIONS_MAX {
            return Err(LockError::new(LockErrorKind::Overloaded, 0, Vec::new()));
        }
        let key = self.config.key_of(resource);
        if let Some(reserved) = self.config.reserved_for(&key) {
            return Err(LockError::reserved(reserved));
        }
        let task = Task::Acquire { ttl, patience, attempts: 0, kind, started: now, last: None };
        let op = self.operations.start(task, Progress::Waiting);
        let may_start = match patience.until() {
            Some(give_up_at) if key.row().asks == AskPolicy::One => {
                let who = WaitingOp { id: self.operations.id_of(op), give_up_at };
                let may_start = self.with_waits(now, |waits, cx| waits.local.join(cx, &key, who));
                if !may_start {
                    self.operations.remember(op, &key);
                }
                may_start
            }
            _ => true,
        };
        if may_start {
            self.start_attempt(now, op, key);
        }
        Ok(self.operations.id_of(op))
    }

    /// A timer of a waiting acquisition fired: its retry delay, its wait in the queue, or its
    /// patience has ended.
    pub(super) fn stop_waiting(&mut self, now: Moment, op: OpIndex) {
        let id = self.operations.id_of(op);
        let Some((_, patience, give_up_at)) = self.operations.patience_of(id) else {
            unreachable!("only acquisitions wait, and with patience");
        };
        let last = self.operations.last_of(op).expect("a waiting acquisition remembers its key");
        let (key, quorum) = (last.key.clone(), self.config.quorum());
        if now >= give_up_at {
            let failure = self.failure_in_queue(op);
            self.stats.count_failure(failure);
            self.operations.conclude(op, Progress::Failed(failure, None));
            self.waits.stop(&key, id);
        } else if patience == Patience::WhileHeld(give_up_at) && self.nodes.ready() < quorum {
            // No message may say that the holder is gone: a round finds out.
            self.start_again(now, op);
        } else {
            self.with_waits(now, |waits, cx| {
                waits.local.due(cx, &key, WaitingOp { id, give_up_at })
            });
        }
    }

    /// Why an acquisition failed whose patience is over: what the nodes said last to its queue. It
    /// is kept for the result.
    fn failure_in_queue(&mut self, op: OpIndex) -> Failure {
        let Some(Last { key, report }) = self.operations.last_of(op) else {
            return Failure::Contended;
        };
        if let Some(report) = report {
            return Failure::of(report);
        }
        let report =
            self.waits.local.queues.report_of(key).cloned().or_else(|| self.report_so_far(key));
        let (failure, error) = report.unzip();
        if let Task::Acquire { last: Some(last), .. } = &mut self.operations[op].task {
            last.report = error;
        }
        failure.unwrap_or(Failure::Contended)
    }

    /// What the nodes have said so far to the acquisition that asks for this queue.
    fn report_so_far(&self, key: &Key) -> Option<(Failure, LockError)> {
        let op = self.operations.lookup(self.waits.local.queues.first_of(key)?)?;
        match self.operations[op].progress {
            Progress::Failed(failure, Some(round)) => Some(self.report_in(op, round, failure)),
            Progress::Voting(round) => {
                let failure = self.rounds.cut_off(round);
                Some(self.report_in(op, round, failure))
            }
            _ => None,
        }
    }

    fn report_in(&self, op: OpIndex, round: RoundId, failure: Failure) -> (Failure, LockError) {
        let Task::Acquire { attempts, .. } = self.operations[op].task else {
            unreachable!("only acquisitions queue");
        };
        let reports = self.rounds.reports(self.last_now, &self.nodes, round);
        let error = LockError::new(failure.into(), attempts, reports);
        (failure, self.rounds.with_held(error, round))
    }

    pub(super) fn start_again(&mut self, now: Moment, op: OpIndex) {
        let last = self.operations.last_of(op).expect("a waiting acquisition remembers its key");
        let key = last.key.clone();
        self.waits.stop(&key, self.operations.id_of(op));
        self.start_attempt(now, op, key);
    }

    /// The acquisition is about to end: the next one in its queue may start.
    pub(super) fn step_out(&mut self, now: Moment, op: OpIndex, got: Option<(LockToken, Moment)>) {
        let id = self.operations.id_of(op);
        let task = &self.operations[op].task;
        if matches!(task, Task::Acquire { kind: RoundKind::Take, .. }) {
            if let Some(key) = self.key_of(op).cloned() {
                self.with_waits(now, |waits, cx| waits.leave_visit(cx, &key, id, got));
            }
        }
        if !self.waits.local.has_any() || self.operations.patience_of(id).is_none() {
            return;
        }
        let Some(key) = self.key_of(op).cloned() else {
            return;
        };
        let progress = self.operations[op].progress;
        let report = match (got, progress) {
            (None, Progress::Failed(failure, Some(round)))
                if self.waits.local.queues.asks_for_others(id, &key) =>
            {
                Some(self.report_in(op, round, failure))
            }
            _ => None,
        };
        let was_waiting = match progress {
            Progress::Waiting => true,
            Progress::Failed(failure, None) => failure != Failure::NoEntropy,
            _ => false,
        };
        let left = Departure { got, report, was_waiting };
        self.with_waits(now, |waits, cx| waits.local.leave(cx, &key, id, left));
    }

    /// The key of an acquisition, unless it has not begun.
    pub(super) fn key_of(&self, op: OpIndex) -> Option<&Key> {
        match self.operations[op].progress {
            Progress::Voting(round) | Progress::Won(round) | Progress::Failed(_, Some(round))
                if !self.operations.asks_as_plain(op, self.rounds[round].kind) =>
            {
                Some(&self.rounds.claim(round).key)
            }
            _ => self.operations.last_of(op).map(|last| &last.key),
        }
    }

    /// Starts one round: a fresh token (R6), one SET to every node.
    #[inline]
    fn start_attempt(&mut self, now: Moment, op: OpIndex, mut key: Key) {
        if !key.is_plain() && !self.waits.visits.is_idle() && self.waits_first(now, op, &mut key) {
            return;
        }
        let Some(random) = self.entropy.token(now) else {
            // The next in the queue starts when this result is taken. Starting it here would
            // recurse, once for each operation in the queue.
            self.operations.remember(op, &key);
            return self.operations.conclude(op, Progress::Failed(Failure::NoEntropy, None));
        };
        let token = LockToken::from_random(random);
        let Task::Acquire { ttl, patience, attempts, kind, .. } = &mut self.operations[op].task
        else {
            unreachable!("only acquisitions have attempts");
        };
        *attempts += 1;
        let (ttl, patience, kind, attempts) = (*ttl, *patience, *kind, *attempts);
        self.stats.rounds += 1;
        let claim = Claim { key, token, ttl };
        let round = match kind {
            RoundKind::AcquireFenced => self.rounds.start_fenced(now, &mut self.nodes, claim, op),
            RoundKind::Take => {
                let asker = (op, attempts);
                let (round, key) = self.rounds.start_of_kind(now, claim, asker, &mut *self.entropy);
                key.iter().for_each(|key| self.operations.remember(op, key));
                round
            }
            _ => self.rounds.start(now, kind, claim, Some(op)),
        };
        self.operations[op].progress = Progress::Voting(round);
        if let Some(give_up_at) = patience.until() {
            self.operations.set_timer(op, give_up_at);
        }
        self.send_to_all(now, round);
    }

    /// Others come first, or a row of this lock has ended: the acquisition waits before its first
    /// round. Returns whether it does. If it has waited, the key is what it has waited for.
    fn waits_first(&mut self, now: Moment, op: OpIndex, key: &mut Key) -> bool {
        let Task::Acquire { patience, attempts: 0, .. } = self.operations[op].task else {
            return false;
        };
        let Some(give_up_at) = patience.until() else {
            return false;
        };
        let who = WaitingOp { id: self.operations.id_of(op), give_up_at };
        let waits = self.with_waits(now, |waits, cx| waits.queue_up_before(cx, key, who));
        if waits {
            self.operations.remember(op, key);
            self.operations[op].progress = Progress::Waiting;
        } else {
            *key = self.waits.visits.asked_by(who.id, key.clone());
        }
        waits
    }

    /// Undoes a failed round on every node (R4, R10). Returns whether another round will follow.
    pub(super) fn attempt_failed(
        &mut self,
        now: Moment,
        op: OpIndex,
        round: RoundId,
        failure: Failure,
    ) -> bool {
        self.undo(now, round);
        let key = self.key_of(op).expect("its round has one").clone();
        let tries = self.operations.tries_of(op, now).filter(|_| failure == Failure::Contended);
        let slot = self.rounds.next_slot(round, &key, tries, &mut *self.entropy);
        let is_at_once = slot.as_ref().is_some_and(|(_, is_at_once)| *is_at_once);
        if !is_at_once && !self.wait_for_next(now, op, &key, round, failure) {
            self.stats.count_failure(failure);
            return false;
        }
        let next = slot.map_or(key, |(next, _)| next);
        let id = self.operations.id_of(op);
        // At once, it asks for what is free, wherever it waits.
        let next = if is_at_once { next } else { self.waits.visits.asked_by(id, next) };
        let (failure, report) = self.report_in(op, round, failure);
        let kept = match next.row().asks == AskPolicy::One {
            true => {
                self.waits.local.queues.note_report(&next, (failure, report));
                None
            }
            false => Some(report),
        };
        if let Task::Acquire { last, patience, attempts, .. } = &mut self.operations[op].task {
            if let Some(give_up_at) = patience.until() {
                self.waits.pause(&next, WaitingOp { id, give_up_at }, *attempts);
            }
            *last = Some(Box::new(Last { key: next, report: kept }));
        }
        self.rounds.disown(round);
        self.operations[op].progress = Progress::Waiting;
        if is_at_once {
            self.start_again(now, op);
        }
        true
    }

    /// Decides when the next round starts: when a queue on the masters says so (W1, W11), or after
    /// a random delay (R9). Returns whether there will be one.
    fn wait_for_next(
        &mut self,
        now: Moment,
        op: OpIndex,
        key: &Key,
        round: RoundId,
        failure: Failure,
    ) -> bool {
        let id = self.operations.id_of(op);
        let Some((_, _, give_up_at)) = self.operations.patience_of(id) else {
            return false;
        };
        let Task::Acquire { attempts, .. } = self.operations[op].task else {
            unreachable!("only acquisitions have patience");
        };
        let mut ask_at = None;
        if failure != Failure::Contended {
            if self.waits.local.has_any() {
                // It leaves its position, so that no client waits behind it (W12).
                self.with_waits(now, |waits, cx| waits.local.leave_entry_of(cx, key));
            }
            if failure == Failure::Unavailable && now < give_up_at {
                // Those that wait behind it for a holder only know no more than it does.
                let (_, report) = self.report_in(op, round, failure);
                let others = self.waits.local.queues.others_mut(key);
                let ended = others.filter(|other| self.operations.end_wait(now, other.id, &report));
                ended.for_each(|other| other.give_up_at = now);
                if self.operations.end_wait(now, id, &report) {
                    return false;
                }
            }
        } else if now < give_up_at && key.is_plain() {
            let (who, refused) = (WaitingOp { id, give_up_at }, self.rounds.refused_by(round));
            if self.with_waits(now, |waits, cx| waits.local.refused(cx, key, who, refused)) {
                return true;
            }
        } else if now < give_up_at {
            // Another kind of lock may have a place there as well (K9).
            let refused = (self.rounds.held_of(round), attempts);
            ask_at = self.with_waits(now, |waits, cx| waits.visit_refused(cx, key, id, refused));
        }
        let round_trip = self.rounds.round_trip().unwrap_or_default();
        let base = match key.row().refusal {
            Refusal::Sign => self.config.retry.base_behind_sign(attempts, round_trip),
            _ => self.config.retry.base(attempts, round_trip),
        };
        let delay = between(base, base.saturating_mul(2), self.entropy.next_u64());
        let next = [Some(now.after(delay)), ask_at].into_iter().flatten();
        let Some(retry_at) = next.filter(|at| *at < give_up_at).min() else {
            return false;
        };
        self.operations.set_timer(op, retry_at);
        true
    }

    /// Releases what a round of acquisition has taken or may yet take.
    pub(super) fn undo(&mut self, now: Moment, round: RoundId) {
        let failed = &mut self.rounds[round];
        failed.is_abandoned = true;
        let (started, sent) = (failed.started, failed.sent);
        let mut claim = self.rounds.claim(round).clone();
        if !claim.key.is_plain() {
            claim.key = claim.key.undone();
        }
        let held = Held { claim, started, sent, was_granted: false };
        self.release_everywhere(now, held, ReleasePlan::USUAL, None);
    }

    /// The patience ended during a round. That says nothing about a node that has not answered: it
    /// had less time than a node gets. The report of an earlier, complete round has more answers,
    /// and is returned instead.
    pub(super) fn give_up(&mut self, now: Moment, op: OpIndex, round: RoundId) {
        self.rounds[round].decided = true;
        let key = self.key_of(op).expect("its round has one").clone();
        self.waits.local.cut_off(&key);
        let before = self.waits.local.queues.report_of(&key).cloned().or_else(|| {
            let report = self.operations.last_of(op)?.report.clone()?;
            Some((Failure::of(&report), report))
        });
        let Some((failure, report)) = before else {
            let failure = self.rounds.cut_off(round);
            if !self.attempt_failed(now, op, round, failure) {
                self.operations.conclude(op, Progress::Failed(failure, Some(round)));
            }
            return;
        };
        if !self.attempt_failed(now, op, round, failure) {
            self.rounds.disown(round);
            if let Task::Acquire { last, .. } = &mut self.operations[op].task {
                *last = Some(Box::new(Last { key, report: Some(report) }));
            }
            self.operations.conclude(op, Progress::Failed(failure, None));
        }
    }

    /// The round that has won the lock, if some of its validity is left at `now` (R2). `None` if
    /// the quorum came too late and another round follows.
    #[inline]
    pub(super) fn finish_acquire(
        &mut self,
        now: Moment,
        op: OpIndex,
        attempts: u32,
    ) -> Option<Result<RoundId, LockError>> {
        match self.operations[op].progress {
            Progress::Won(round) => {
                if validity::is_valid(self.rounds[round].deadline, now) {
                    self.stats.acquired += 1;
                    let is_fenced = self.rounds[round].kind == RoundKind::AcquireFenced;
                    self.stats.fenced += u64::from(is_fenced);
                    return Some(Ok(round));
                }
                if self.attempt_failed(now, op, round, Failure::Expired) {
                    return None;
                }
                let nodes = self.rounds.reports(self.last_now, &self.nodes, round);
                Some(Err(LockError::new(LockErrorKind::Expired, attempts, nodes)))
            }
            Progress::Failed(failure, round) => {
                let kept = || self.operations.last_of(op)?.report.as_ref();
                let nodes = match round {
                    Some(round) => self.rounds.reports(self.last_now, &self.nodes, round),
                    None => kept().map_or_else(Vec::new, |error| error.nodes().to_vec()),
                };
                let position = self.queue_position(self.operations.id_of(op));
                let error =
                    LockError::new(failure.into(), attempts, nodes).at_queue_position(position);
                Some(Err(match round {
                    Some(round) => self.rounds.with_held(error, round),
                    None => error.for_held(kept().and_then(LockError::held_resource).cloned()),
                }))
            }
            Progress::Waiting | Progress::Voting(_) | Progress::Refused | Progress::Lost(..) => {
                unreachable!("only concluded acquisitions are in the queue")
            }
        }
    }
}

/// Why a round was lost: to masters that gave no vote, or to another client's lock.
pub(super) fn failure(tally: Tally) -> Failure {
    if tally.failures_deny_quorum() { Failure::Unavailable } else { Failure::Contended }
}
