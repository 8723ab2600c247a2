//! How a stand goes on when its line has the lock, or gives it up (W7, W11, W13).

use super::Hand;
use super::entry::{CROWD_FOR, Stand, TURN_MAX, Turn};
use super::local_queue::Bar;
use crate::config::Waiting;
use crate::moment::Moment;
use crate::proto::Engine;
use crate::proto::command::{Command, Reply, Step, Tell, Wait};
use crate::proto::node::is_forbidden;
use crate::proto::operation::Progress;
use crate::proto::status::Obstacle;
use crate::quorum::NodeSet;
use crate::resource::Resource;
use crate::token::LockToken;

/// A hand-on's answer if the key was deleted, and its queue could not be looked at.
const RELEASED_ALONE: i64 = -1;

/// How a stand goes on when its line has the lock, or no longer wants it.
impl Engine {
    /// The line has the lock (W11): whoever stood before it slept, and is dropped.
    pub(super) fn hold_through_queue(&mut self, now: Moment, key: &Resource, token: LockToken) {
        let Some(number) = self.queues.stand_of(key) else {
            return;
        };
        let others = self.queues.others_of(key);
        let Some(stand) = self.stands.get_mut(number) else {
            return;
        };
        // Who overtakes comes behind one that sleeps, and behind no stranger.
        let saw_held = std::mem::take(&mut stand.saw_held);
        if stand.was_woken && !stand.was_told && saw_held && stand.place == Some(0) {
            self.queues.note_strangers(now, key);
        }
        stand.held = Some(token);
        (stand.refused_in_row, stand.free_since, stand.doubts) = (0, None, false);
        stand.is_owed = false;
        stand.refused = NodeSet::EMPTY;
        (stand.was_woken, stand.was_changed, stand.was_told) = (false, false, false);
        stand.check_at = None;
        stand.forget_watch();
        stand.end_pauses();
        if stand.turn == Turn::NotYet {
            let others = u32::try_from(others).unwrap_or(TURN_MAX);
            stand.turn = Turn::Left(others.min(TURN_MAX));
        }
        // At a gate that it does not stand at yet, nobody is known to sleep.
        let stands_at = stand.gate.filter(|gate| stand.gates.contains(*gate));
        if let Some(gate) = stands_at.filter(|_| stand.place != Some(0)) {
            stand.place = Some(0);
            self.stats.overtaken += 1;
            self.step_aside(gate, key.clone(), Step::ToFront);
        }
    }

    /// How to release a lock that is about to be given up (W7, W13).
    #[inline(never)]
    pub(in crate::proto) fn hand_for(
        &mut self,
        now: Moment,
        key: &Resource,
        token: LockToken,
    ) -> Hand {
        if self.config.waiting != Waiting::Queue || self.queues.holder_of(key) != Some(token) {
            return Hand::NONE;
        }
        let is_awaited = self.queues.first_of(key).is_some();
        let number = self.queues.stand_of(key);
        // A row without a place on the masters ends at all nodes, so that it is not much longer
        // than the turns of those who wait.
        let is_counted = is_awaited || number.is_none() && self.queues.ends_row(key);
        let Some(stand) = number.and_then(|number| self.stands.get_mut(number)) else {
            // Nobody else is known to wait: count, if this line is about to take it again, or has
            // taken it many times.
            return match is_counted && self.has_channel(now) {
                true if is_awaited => {
                    Hand { gates: self.counted_gate(now, key), tell: Tell::Nobody }
                }
                true => {
                    // A node that has refused this engine for now may be the gate of others.
                    let gates = self.nodes.open().without(self.queues.barred_for_good(key));
                    Hand { gates, tell: Tell::Next }
                }
                false => Hand::NONE,
            };
        };
        let gate = stand.gate.map_or(NodeSet::EMPTY, NodeSet::one);
        match stand.turn {
            // Nobody else stands in its queue: maybe in another.
            Turn::Unlimited if is_awaited => {
                Hand { gates: self.counted_gate(now, key), tell: Tell::Nobody }
            }
            Turn::Left(left @ 1..) if is_awaited => {
                stand.turn = Turn::Left(left - 1);
                Hand { gates: gate, tell: Tell::Nobody }
            }
            Turn::NotYet | Turn::Unlimited | Turn::Left(_) => {
                let mut gates = stand.gates;
                gates.extend(gate);
                gates.extend(stand.foreign);
                self.stats.handed_on += 1;
                // Those who wait have left a gate that stands still, as a new wait would.
                if !gate.iter().any(|gate| self.nodes.may_pass_on(gate)) && self.has_channel(now) {
                    let next = self.nodes.likeliest_gate(now, key);
                    gates.extend(next.map_or(NodeSet::EMPTY, NodeSet::one));
                }
                Hand { gates, tell: Tell::Next }
            }
        }
    }

    /// The node to count at next: in turn each that other clients may see as the gate.
    pub(super) fn counted_gate(&mut self, now: Moment, key: &Resource) -> NodeSet {
        let (looks, barred) = (self.queues.note_look(key), self.queues.barred(now, key));
        let may_be = |node: usize| self.nodes.may_hand_on(node) && !barred.contains(node);
        let gate = self.nodes.gate_in_turn(now, key, looks, may_be);
        gate.map_or(NodeSet::EMPTY, NodeSet::one)
    }

    /// Which of these gates can be handed on at. The others get the usual release: a gate that
    /// stands still would tell of the turn when it is long over.
    pub(in crate::proto) fn gates_to_hand_on(&self, hand: Hand, ready: NodeSet) -> NodeSet {
        let mut gates = NodeSet::EMPTY;
        let able = hand.gates.and(ready).iter().filter(|node| self.nodes.may_hand_on(*node));
        able.for_each(|node| gates.insert(node));
        gates
    }

    /// The lock was handed on: the line stands behind those who are told, or leaves (W13). Returns
    /// whether its first waits there.
    pub(in crate::proto) fn stand_behind(&mut self, now: Moment, key: &Resource) -> bool {
        // A row has ended: the answers say whether others wait.
        let Some(number) = self.queues.stand_of(key) else {
            return false;
        };
        self.stands.remove(number);
        self.queues.set_stand(key, None);
        self.line_up_behind(now, key)
    }

    /// The line, which has no place, waits behind the others. Returns whether its first does.
    pub(super) fn line_up_behind(&mut self, now: Moment, key: &Resource) -> bool {
        self.queues.set_crowd(key, now.after(CROWD_FOR), None);
        let first = self.queues.first_of(key);
        let Some((op, give_up_at)) = first.and_then(|first| self.operations.patience_of(first))
        else {
            return false;
        };
        let waits = matches!(self.operations[op].progress, Progress::Waiting) && now < give_up_at;
        if waits {
            self.queue_up_behind(now, op, key);
        }
        waits
    }

    /// A gate has said how many stand in its queue (W7, W13).
    pub(super) fn note_left(&mut self, now: Moment, node: usize, round: usize, left: u64) {
        let key = self.rounds.claim(round).key.clone();
        let number = self.queues.stand_of(&key);
        if let Some(stand) = number.and_then(|number| self.stands.get_mut(number)) {
            let others = left - left.min(u64::from(stand.gates.contains(node)));
            match others > 0 && stand.gate != Some(node) {
                true => stand.foreign.insert(node),
                false => stand.foreign.remove(node),
            }
            stand.turn = match (stand.turn, others) {
                (Turn::NotYet, _) => Turn::NotYet,
                // Others wait elsewhere.
                (turn, 0) if !stand.foreign.is_empty() => turn,
                (_, 0) => Turn::Unlimited,
                (Turn::Left(left), _) => Turn::Left(left),
                (Turn::Unlimited, _) => Turn::Left(TURN_MAX),
            };
            return;
        }
        let is_line = self.queues.first_of(&key).is_some() || self.queues.holder_of(&key).is_some();
        if left > 0 && is_line {
            let mut stand = Stand::new(key.clone(), now);
            let left = if self.queues.others_of(&key) > 0 { TURN_MAX } else { 0 };
            (stand.gate, stand.turn) = (Some(node), Turn::Left(left));
            stand.held = self.queues.holder_of(&key);
            let number = self.stands.insert(stand);
            self.queues.set_stand(&key, Some(number));
        } else {
            match left > 0 {
                true => self.queues.set_crowd(&key, now.after(CROWD_FOR), Some(node)),
                false => self.queues.clear_crowd(now, &key, node),
            }
        }
    }

    pub(in crate::proto) fn hand_on_command(&self, round: usize, tell: Tell) -> Command<'_> {
        let claim = self.rounds.claim(round);
        let channel = self.channel.as_deref().expect("a gate is chosen with a channel");
        let (key, token) = (claim.key.as_bytes(), &claim.token);
        Command::Wait(Wait::HandOn { key, channel, token, tell })
    }

    /// The release at a gate was answered. A gate that refuses it gets the usual release at once.
    pub(in crate::proto) fn handle_handed_on(
        &mut self,
        now: Moment,
        node: usize,
        round: usize,
        reply: Reply,
    ) {
        match reply {
            Reply::Integer(said @ 0..) => {
                self.note_left(now, node, round, said.unsigned_abs() >> 1);
                self.handle_answer(now, node, round, Reply::Integer(said & 1));
            }
            Reply::Integer(RELEASED_ALONE) => {
                let key = self.rounds.claim(round).key.clone();
                self.queues.bar(now, &key, node, Bar::ForNow);
                if let Some(number) = self.queues.stand_of(&key) {
                    self.bar(now, node, number, Bar::ForNow);
                }
                self.handle_answer(now, node, round, Reply::Integer(1));
            }
            Reply::Error(error) if self.nodes.open().contains(node) => {
                self.stats.server_errors += 1;
                let lasts = is_forbidden(error.kind);
                self.nodes[node].keep_error(error);
                if lasts {
                    self.cannot_wait(now, node, Obstacle::Queue);
                }
                self.nodes.send(NodeSet::one(node), round);
            }
            reply => self.handle_answer(now, node, round, reply),
        }
    }
}
