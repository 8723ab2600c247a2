//! Release: compare-and-delete on every node, behind the SET on the same connection (R10).

use super::kind::{Claim, Lost, RoundKind};
use super::lease::NO_ENGINE;
use super::nodes::State;
use super::op_id::OpId;
use super::operation::{Progress, Task};
use super::outgoing::Outgoing;
use super::wait::{AfterRelease, ReleasePlan};
use super::{Engine, Lease, NodeSet};
use crate::config::Heal;
use crate::moment::Moment;
use crate::outcome::NodeOutcome;
use crate::proto::index::{OpIndex, RoundId};
use crate::token::LockToken;

/// What an attempt may have left on the nodes.
pub(crate) struct Held {
    pub(super) claim: Claim,
    /// When its first SET may have been sent.
    pub(super) started: Moment,
    /// The nodes that the SET was meant for.
    pub(super) sent: NodeSet,
    /// Whether it was handed out as a lock, which may have been extended since.
    pub(super) was_granted: bool,
}

/// How long to wait for the result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseHow {
    /// The operation ends when a quorum has answered, or no longer can.
    ToTheEnd,
    /// As [`ToTheEnd`](ReleaseHow::ToTheEnd), but at this moment at the latest.
    Until(Moment),
}

impl Engine {
    /// Starts to release a lock. The operation ends when a quorum has confirmed the release, or no
    /// longer can. The lease is gone before the first byte is sent. An expired lease is released as
    /// well, because late SETs can still be on their way.
    pub fn release(&mut self, now: Moment, lease: Lease, how: ReleaseHow) -> OpId {
        let now = self.clamp(now);
        self.stats.released += 1;
        let was_valid = lease.is_valid_at(now);
        let op = self.operations.start(Task::Release { was_valid }, Progress::Waiting);
        let round = self.give_up_lease(now, lease, Some(op));
        // With every node down, the release may have ended already.
        if let Progress::Waiting = self.operations[op].progress {
            self.operations[op].progress = Progress::Voting(round);
            if self.rounds[round].waited {
                // Nothing else limits the wait for a node whose socket accepts no more.
                let longest = self.config.connect_timeout + self.config.node_timeout;
                self.operations.set_timer(op, now.after(longest));
            }
            if let ReleaseHow::Until(until) = how {
                self.operations.hasten(op, until);
            }
        }
        self.operations.id_of(op)
    }

    /// Releases a lock without a result.
    pub fn abandon(&mut self, now: Moment, lease: Lease) {
        let now = self.clamp(now);
        self.stats.released += 1;
        self.give_up_lease(now, lease, None);
    }

    /// Makes another engine's lease one of this engine: that lease does not list the nodes to ask
    /// here.
    #[inline]
    pub(super) fn adopt(&mut self, now: Moment, lease: &mut Lease) {
        let instance = self.operations.instance();
        if lease.engine != instance {
            self.adopted += 1;
            lease.move_to(instance, &self.config);
            self.cleanup.take_doubts(now, &mut self.nodes, lease);
        }
    }

    /// Prepares the lease for another engine, in this process or another. This engine sends nothing
    /// for it afterwards. The lease records which nodes are uncertain. So the next engine ignores
    /// unconfirmed keys and can clean up when it releases the lock. Operations that wait here for
    /// the resource can now ask for it.
    pub fn let_go(&mut self, now: Moment, lease: &mut Lease) {
        let now = self.clamp(now);
        let token = lease.claim.token;
        self.let_go += u64::from(lease.engine == self.operations.instance());
        self.with_waits(now, |waits, cx| waits.give_up_visit(cx, token));
        self.rounds.take_back_unsent(&mut self.nodes, token);
        let mut doubts = std::mem::take(&mut lease.doubts).into_vec();
        // What an engine that adopts the lease cannot know.
        let may_set = |round: RoundId| self.rounds.may_set(round, token);
        let known = |at| self.cleanup.doubt(now, at, token, may_set);
        for known in self.nodes.iter().filter_map(known) {
            match doubts.iter_mut().find(|doubt| doubt.node == known.node) {
                Some(doubt) => doubt.extend(known),
                None => doubts.push(known),
            }
        }
        if self.config.heal == Heal::On {
            // The key may also have been set by an extension here.
            doubts.iter_mut().for_each(|doubt| doubt.is_one_set = false);
        }
        lease.doubts = doubts.into();
        // Any engine that adopts it, even this one, adopts the doubts too.
        lease.engine = NO_ENGINE;
        if self.waits.local.has_any() {
            let key = &lease.claim.key;
            self.with_waits(now, |waits, cx| waits.local.leave_held(cx, key, token));
            self.with_waits(now, |waits, cx| waits.local.hold_no_longer(cx, key, token));
        }
    }

    /// Inlined, so that the lease is not moved again.
    #[inline(always)]
    fn give_up_lease(&mut self, now: Moment, mut lease: Lease, owner: Option<OpIndex>) -> RoundId {
        let by_value = (lease.engine == NO_ENGINE).then_some(lease.claim.token);
        self.adopt(now, &mut lease);
        if lease.started != Moment::START {
            self.times.hold.record(now.nanos_since(lease.started));
        }
        // A lock that is released late may have been forgotten meanwhile, so its doubts are needed
        // again.
        self.cleanup.take_doubts(now, &mut self.nodes, &lease);
        let Claim { key, token, .. } = lease.claim;
        let awaited = self.waits.local.has_any().then(|| (key.clone(), token));
        let claim = Claim { key, token, ttl: lease.longest };
        let (started, sent) = (lease.started, lease.sent);
        let held = Held { claim, started, sent, was_granted: true };
        let plan = match &awaited {
            Some((key, token)) if key.is_plain() => {
                self.with_waits(now, |waits, cx| waits.plan(cx, key, *token))
            }
            _ => ReleasePlan::USUAL,
        };
        let round = self.release_everywhere(now, held, plan, owner);
        if !self.waits.visits.is_idle() {
            self.with_waits(now, |waits, cx| waits.give_up_visit(cx, token));
        }
        if let Some((key, token)) = awaited {
            let after = self.with_waits(now, |waits, cx| waits.released(cx, &key, token, plan));
            if after == AfterRelease::Requeue {
                self.with_waits(now, |waits, cx| waits.local.requeue(cx, &key, token));
            }
            self.with_waits(now, |waits, cx| waits.local.leave_held(cx, &key, token));
        }
        if let Some(token) = by_value {
            self.end_attempts(now, token);
        }
        round
    }

    /// Attempts to take or to extend a lock that is released by its value meanwhile fail (K13).
    /// Their undo comes behind that release, which finds what it is for.
    #[cold]
    fn end_attempts(&mut self, now: Moment, token: LockToken) {
        for round in self.rounds.undecided_about(token) {
            for node in self.rounds[round].undecided.iter() {
                self.record(now, round, node, NodeOutcome::Absent);
            }
            self.judge(now, round);
        }
    }

    /// Releases what an attempt may have left, on every node that its SET was meant for: also on
    /// nodes that refused, failed or did not answer (R4, R10). A node that was not sent the SET has
    /// nothing to release (R11).
    pub(super) fn release_everywhere(
        &mut self,
        now: Moment,
        Held { claim, started, sent, was_granted }: Held,
        plan: ReleasePlan,
        owner: Option<OpIndex>,
    ) -> RoundId {
        let token = claim.token;
        if self.cleanup.has_debts() {
            self.cleanup.wake(now, &mut self.nodes, sent, (&claim.key, token));
        }
        let round = self.rounds.start(now, RoundKind::Release, claim, owner);
        // An extra reference, because without an owner the last node's vote might free the round.
        self.rounds[round].references += 1;
        let ready = sent.and(self.nodes.open());
        let others = NodeSet::all(self.nodes.len()).without(ready);
        for node in others.iter() {
            let may_hold = sent.contains(node);
            if may_hold && self.nodes[node].state() == State::Idle {
                // An adopted lease, and this client has not connected to the node yet.
                self.nodes.wake(now, node);
            }
            if may_hold && self.nodes[node].link.was_ready_since(started) {
                self.end_limited(now, node);
            }
            match self.nodes[node].state() {
                _ if !may_hold => self.record(now, round, node, NodeOutcome::Absent),
                State::Ready => self.rounds.wait(&mut self.nodes, round, node),
                State::Connecting { .. } | State::Handshaking { .. } => {
                    let was_unsent = self.rounds.retract(&mut self.nodes, node, token, was_granted);
                    if was_unsent || !self.nodes[node].link.was_ready_since(started) {
                        self.record(now, round, node, NodeOutcome::Absent);
                    } else {
                        self.rounds.wait(&mut self.nodes, round, node);
                    }
                }
                State::Idle | State::Limited | State::BackOff { .. } => {
                    if self.nodes[node].link.was_ready_since(started) {
                        let left = self.rounds.left(round, Lost::Unsent);
                        self.cleanup.add_lost(now, &mut self.nodes, node, left);
                        self.record(now, round, node, self.nodes[node].link.last_failure());
                    } else {
                        self.record(now, round, node, NodeOutcome::Absent);
                    }
                }
            }
        }
        let at_queue = self.waits.local.desk.nodes_for(&self.nodes, plan, ready);
        self.send(ready.without(at_queue), round);
        // Last: a client that is told there finds the other nodes free (W7).
        if !at_queue.is_empty() {
            self.rounds.note_sent(round, at_queue, at_queue.len());
            for node in at_queue.iter() {
                self.nodes.outbox.push_back(Outgoing::ReleaseAtQueue(node, round, plan.notify));
            }
        }
        if !others.is_empty() {
            self.judge(now, round);
        }
        self.rounds.dereference(round);
        round
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::config::Builder;
    use crate::lock_error::{LockError, LockErrorKind};
    use crate::proto::kind::Left;
    use crate::proto::{Done, NodeEvent, ReleaseHow};
    use crate::resource::{Key, Resource};
    use crate::token::Sevens;
    use crate::validity::Ttl;

    fn engine() -> Engine {
        let config = Builder::default().node("redis://127.0.0.1").config().unwrap();
        Engine::new(Arc::new(config), Box::new(Sevens))
    }

    /// With a caller's value, and for how long.
    fn own() -> (Resource, Ttl) {
        let own = Resource::with_value("own", "mine").unwrap();
        (own, Ttl::new(Duration::from_secs(10)).unwrap())
    }

    /// K13: such a release would find the next lock of another make just as well.
    #[test]
    fn release_without_a_token_is_not_owed() {
        let (mut engine, now, (key, ttl)) = (engine(), Moment::from_nanos(1_000), own());
        for (token, has_debt) in [(LockToken::NONE, false), (LockToken::from_random([1; 20]), true)]
        {
            let claim = Claim { key: Key::new(key.clone(), b""), token, ttl };
            let left = (&claim, None, Left::Release);
            engine.cleanup.add_lost(now, &mut engine.nodes, 0, left);
            assert_eq!(engine.cleanup.has_debts(), has_debt);
        }
    }

    /// K13: the release of another make's lock has no token, and an inspection has none.
    #[test]
    fn release_without_a_token_withdraws_no_inspection() {
        let (mut engine, now, (own, ttl)) = (engine(), Moment::from_nanos(1_000), own());
        let other = Resource::new("other").unwrap();
        let inspection = engine.inspect(now, other).unwrap();
        let lease = Lease::elsewhere(own, LockToken::NONE, ttl, Moment::from_nanos(0));
        let release = engine.release(now, lease, ReleaseHow::ToTheEnd);
        engine.handle_node(now, 0, NodeEvent::Disconnected(NodeOutcome::NotConnected));
        let is_unavailable = |error: &LockError| error.kind() == LockErrorKind::Unavailable;
        let released = engine.take_done(now, release);
        assert!(matches!(released, Some(Done::Released(Err(error))) if is_unavailable(&error)));
        let inspected = engine.take_done(now, inspection);
        assert!(matches!(inspected, Some(Done::Inspected(_))), "{inspected:?}");
    }
}
