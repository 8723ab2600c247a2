//! Waiting without polling (W1 to W14): the first of a line whose round was refused queues up on
//! one of the masters, and sleeps until it is told that its turn has come, or sees that the lock is
//! free.
//!
//! A place in a queue is a hint about when to send, and never a vote. All that follows from it is
//! when an ordinary round of acquisition starts.

use std::time::Duration;

use super::Free;
use super::entry::{PLACE_NONE, Stand, stagger};
use super::local_queue::Bar;
use crate::config::Waiting;
use crate::moment::Moment;
use crate::outcome::NodeOutcome;
use crate::proto::command::{Channel, Command, Step, Wait};
use crate::proto::node::Effect;
use crate::proto::notices::Notice;
use crate::proto::op_id::OpId;
use crate::proto::operation::Progress;
use crate::proto::outgoing::Outgoing;
use crate::proto::request::{Ability, Request, WaitCommand};
use crate::proto::status::{Obstacle, Waits};
use crate::proto::{Action, Engine};
use crate::quorum::NodeSet;
use crate::resource::Resource;
/// The stand of a line's first.
impl Engine {
    /// A round was refused (W11). Returns whether the acquisition waits in a queue; if not, it
    /// waits for a random delay, as ever (R9).
    pub(in crate::proto) fn queue_up_refused(
        &mut self,
        now: Moment,
        op: usize,
        round: usize,
    ) -> bool {
        if self.config.waiting != Waiting::Queue {
            return false;
        }
        let key = self.rounds.claim(round).key.clone();
        let was_split = !self.rounds[round].granted.is_empty();
        let mut refused = NodeSet::EMPTY;
        for (node, vote) in self.rounds.votes(round).enumerate() {
            if vote.outcome == NodeOutcome::Held {
                refused.insert(node);
            }
        }
        let (round_trip, random) = (self.round_trip(), self.entropy.next_u64());
        let number = self.stand_for(now, &key);
        let stand = self.stand(number);
        if stand.was_woken {
            stand.doubts |= stand.was_changed;
            self.stats.woken_in_vain += 1;
        }
        let stand = self.stand(number);
        (stand.was_woken, stand.was_changed, stand.was_told) = (false, false, false);
        (stand.held, stand.saw_held, stand.is_owed) = (None, true, false);
        stand.refused = refused;
        stand.free_since = None;
        stand.forget_watch();
        stand.back_off(now, round_trip, was_split, random);
        self.take_place(now, op, number)
    }

    /// The next of a line waits in the place of the one before it, or behind a crowd (W7, W12).
    /// Returns whether it waits in a queue.
    pub(super) fn queue_up_first(&mut self, now: Moment, op: usize, key: &Resource) -> bool {
        if self.config.waiting != Waiting::Queue {
            return false;
        }
        let number = self.stand_for(now, key);
        let stand = self.stand(number);
        (stand.held, stand.check_at) = (None, None);
        stand.forget_watch();
        self.take_place(now, op, number)
    }

    /// Others wait on the masters: without a place, it lets those come first that are told to go.
    pub(super) fn queue_up_behind(&mut self, now: Moment, op: usize, key: &Resource) {
        if self.queue_up_first(now, op, key) {
            return;
        }
        if let Some((op, give_up_at)) = self.operations.patience_of(self.operations.id_of(op)) {
            let at = now.after(self.stagger());
            self.operations.set_timer(op, give_up_at.min(at));
        }
    }

    /// The acquisition is now the first of its line, which has this stand (W12). If the one before
    /// it was waiting there, the place and the watches stay as they are. If that one was about to
    /// try, this one tries: nobody says again that the lock is free. Returns whether it goes on
    /// from there.
    pub(super) fn inherit(
        &mut self,
        now: Moment,
        op: usize,
        number: u32,
        was_waiting: bool,
    ) -> bool {
        let Some(stand) = self.stands.get(number).filter(|stand| stand.held.is_none()) else {
            return false;
        };
        let key = stand.key.clone();
        if stand.is_owed || !was_waiting {
            self.try_now(now, op, number);
        } else if stand.gate.is_some() {
            self.set_stand_timer(number);
        } else {
            return self.queue_up_first(now, op, &key);
        }
        true
    }

    /// The round of a line's first is cut off when its patience ends: the next one is to try in
    /// its place.
    pub(in crate::proto) fn note_cut_off(&mut self, round: usize) {
        let number = self.queues.stand_of(&self.rounds.claim(round).key);
        if let Some(stand) = number.and_then(|number| self.stands.get_mut(number)) {
            stand.is_owed = true;
        }
    }

    pub(super) fn stand_for(&mut self, now: Moment, key: &Resource) -> u32 {
        if let Some(number) = self.queues.stand_of(key) {
            return number;
        }
        let number = self.stands.insert(Stand::new(key.clone(), now));
        self.queues.set_stand(key, Some(number));
        number
    }

    pub(super) fn stand(&mut self, number: u32) -> &mut Stand {
        self.stands.get_mut(number).expect("the stand was just looked up")
    }

    /// Queues up at the gate, or at another one if it is lost. Without any, the stand is given up:
    /// returns false.
    pub(super) fn take_place(&mut self, now: Moment, op: usize, number: u32) -> bool {
        if !self.find_gate(now, number) {
            self.leave_stand(number);
            return false;
        }
        let random = self.entropy.next_u64();
        self.stand(number).wait_anew(now, random);
        self.ask_for_place(now, number);
        if let Some((op, give_up_at)) = self.operations.patience_of(self.operations.id_of(op)) {
            let due = self.stand(number).due();
            self.operations.set_timer(op, give_up_at.min(due));
        }
        true
    }

    /// The time of a round, as far as it is known. An engine that waits has few rounds, and of a
    /// new one's first, which waits for connections, nobody knows what it takes: what its nodes
    /// have answered since tells more.
    pub(in crate::proto) fn round_trip(&self) -> Duration {
        let latencies =
            self.nodes.open().iter().filter_map(|node| self.nodes[node].latency_nanos());
        let slowest = latencies.max().map(Duration::from_nanos);
        let known = self.rounds.round_trip().into_iter().chain(slowest);
        known.min().unwrap_or_default()
    }

    /// The time after which a head that was told to go is believed to sleep.
    pub(in crate::proto) fn stagger(&self) -> Duration {
        stagger(self.round_trip())
    }

    /// Makes sure that the stand has a gate (W2, W3). Returns whether it has one.
    pub(super) fn find_gate(&mut self, now: Moment, number: u32) -> bool {
        let stand = self.stands.get(number).expect("the caller has looked it up");
        let (before, is_new) = (stand.gate, stand.is_new);
        let barred = self.queues.barred(now, &stand.key);
        let is_candidate = |node: usize| {
            let may_be = self.nodes.is_candidate(now, node);
            !barred.contains(node) && (may_be || is_new && self.nodes.is_awaited(node))
        };
        if before.is_some_and(is_candidate) {
            return true;
        }
        let gate = self.nodes.gate_among(&stand.key, is_candidate);
        let stand = self.stand(number);
        let is_moved = stand.is_queued() && gate.is_some();
        (stand.gate, stand.is_sent, stand.place) = (gate, false, None);
        self.stats.requeued += u64::from(is_moved);
        gate.is_some()
    }

    /// Asks the gate for a place, as soon as it is known that one can wait there (W4, W5).
    pub(super) fn ask_for_place(&mut self, now: Moment, number: u32) {
        let Some(gate) = self.stand(number).gate.filter(|gate| self.nodes.may_wait_at(*gate))
        else {
            return;
        };
        match self.nodes[gate].waits() {
            Waits::Able => {
                let stand = self.stand(number);
                stand.gates.insert(gate);
                stand.is_sent = true;
                self.nodes.push(Outgoing::Wait(gate, WaitCommand::QueueUp(number)));
            }
            _ => self.ask_ability(now, gate),
        }
    }

    /// Asks the node whether one can wait there, once for each connection (W4).
    pub(in crate::proto) fn ask_ability(&mut self, now: Moment, node: usize) {
        if self.nodes[node].waits() != Waits::Untried {
            return;
        }
        if !self.has_channel(now) {
            return self.cannot_wait(now, node, Obstacle::Channel);
        }
        self.nodes[node].ask_ability();
        self.nodes.push(Outgoing::Wait(node, WaitCommand::Able(Ability::Hello)));
    }

    /// Draws the engine's channel if it has none. Returns whether it has one.
    pub(super) fn has_channel(&mut self, now: Moment) -> bool {
        if self.channel.is_none() {
            let random = self.entropy.token(now);
            let half = random.and_then(|random| random.first_chunk().copied());
            self.channel = half.map(|half| Box::new(Channel::new(half)));
        }
        self.channel.is_some()
    }

    /// A node is ready: it may be the gate of some.
    pub(in crate::proto) fn open_gate(&mut self, now: Moment, node: usize) {
        let is_here = |stand: &Stand| stand.gate == Some(node) && !stand.is_sent;
        for number in self.stands.numbers_where(is_here) {
            self.ask_for_place(now, number);
        }
        self.open_visits(now, node);
    }

    /// The server has answered a question of W4.
    pub(in crate::proto) fn follow_ability(&mut self, now: Moment, node: usize, effect: Effect) {
        match effect {
            Effect::SpeaksResp3 => {
                for ability in Ability::AFTER_HELLO {
                    self.nodes.push(Outgoing::Wait(node, WaitCommand::Able(ability)));
                }
            }
            Effect::MayWait => {
                self.open_gate(now, node);
                for number in self.stands.numbers_where(|stand| stand.wanted.contains(node)) {
                    self.stand(number).wanted.remove(node);
                    self.watch_nodes(number, NodeSet::one(node));
                }
            }
            Effect::CannotWait(obstacle) => self.cannot_wait(now, node, obstacle),
            Effect::CannotWaitNow => {
                let needs = |stand: &Stand| stand.gate == Some(node) || stand.watches(node);
                for number in self.stands.numbers_where(needs) {
                    self.bar(now, node, number, Bar::ForNow);
                }
            }
            _ => {}
        }
    }

    /// The connection is of no use for waiting: who stands there looks for another gate.
    pub(super) fn cannot_wait(&mut self, now: Moment, node: usize, obstacle: Obstacle) {
        if self.nodes[node].set_unable(obstacle) && self.nodes[node].is_inability_news() {
            self.nodes.notice(node, Notice::CannotQueue(obstacle));
        }
        self.lose_gate(now, node);
    }

    /// The node's connection has ended, or it did not answer in time (W3).
    pub(in crate::proto) fn lose_gate(&mut self, now: Moment, node: usize) {
        self.visits.lose_gate(node);
        if self.stands.is_empty() {
            return;
        }
        let is_lost = !self.nodes.open().contains(node);
        let is_there = |stand: &Stand| {
            let is_listed = stand.gate == Some(node) || stand.gates.contains(node);
            is_listed || stand.watches(node)
        };
        for number in self.stands.numbers_where(is_there) {
            let stand = self.stand(number);
            if is_lost {
                stand.gates.remove(node);
            }
            let was_watched = stand.watches(node);
            stand.watch_no_more(node);
            if stand.gate == Some(node) {
                (stand.gate, stand.is_sent, stand.place) = (None, false, None);
                stand.check_by(now);
            } else if was_watched {
                stand.check_by(now);
            }
            self.set_stand_timer(number);
        }
    }

    /// The first of the line wakes up when something is due for its stand.
    pub(super) fn set_stand_timer(&mut self, number: u32) {
        let Some(stand) = self.stands.get(number) else {
            return;
        };
        if let Some((op, give_up_at)) = self.waiting_first(stand) {
            self.operations.set_timer(op, give_up_at.min(stand.due()));
        }
    }

    /// The acquisition that waits in this stand, and its patience. `None` while a round of it is in
    /// flight, and while its engine holds the lock.
    pub(super) fn waiting_first(&self, stand: &Stand) -> Option<(usize, Moment)> {
        let first = self.queues.first_of(&stand.key)?;
        let (op, give_up_at) = self.operations.patience_of(first)?;
        let is_waiting = matches!(self.operations[op].progress, Progress::Waiting);
        (is_waiting && stand.held.is_none()).then_some((op, give_up_at))
    }

    /// The timer of a line's first has fired. Returns whether it stands in a queue; then what was
    /// due is done.
    pub(in crate::proto) fn handle_stand_due(&mut self, now: Moment, op: usize) -> bool {
        let key = self.operations.last_of(op).map(|last| &last.key);
        let Some(number) = key.and_then(|key| self.queues.stand_of(key)) else {
            return false;
        };
        let Some(stand) = self.stands.get(number).filter(|stand| stand.held.is_none()) else {
            return false;
        };
        if self.queues.first_of(&stand.key) != Some(self.operations.id_of(op)) {
            return false;
        }
        let before = stand.gate;
        let random = self.entropy.next_u64();
        let stand = self.stand(number);
        if now >= stand.slow_at {
            self.look_slowly(now, number, random);
        }
        if !self.find_gate(now, number) {
            self.leave_stand(number);
            return false;
        }
        let stand = self.stand(number);
        if stand.gate == before {
            self.do_what_is_due(now, op, number);
        } else {
            stand.move_on(now, random);
            self.ask_for_place(now, number);
        }
        self.set_stand_timer(number);
        true
    }

    /// Asks for the place again; the first in the queue looks at other nodes, too (W10).
    pub(super) fn look_slowly(&mut self, now: Moment, number: u32, random: u64) {
        let stand = self.stand(number);
        stand.look_slowly(now, random);
        let mut asked = stand.wanted;
        stand.gate.into_iter().for_each(|gate| asked.insert(gate));
        for node in asked.iter() {
            if self.nodes[node].is_trial_missing() {
                self.cannot_wait(now, node, Obstacle::Channel);
            }
        }
        let stand = self.stand(number);
        if stand.place == Some(0) {
            stand.rotation = stand.rotation.wrapping_add(1);
            stand.check_by(now);
        }
        self.ask_for_place(now, number);
    }

    pub(super) fn do_what_is_due(&mut self, now: Moment, op: usize, number: u32) {
        let stand = self.stand(number);
        if stand.free_at.is_some_and(|at| now >= at) {
            self.handle_free(now, op, number, Free::Expired);
        }
        // It may have started a round.
        let Some(stand) = self.stands.get_mut(number) else {
            return;
        };
        let is_waiting = matches!(self.operations[op].progress, Progress::Waiting);
        if is_waiting && stand.blind_until.take_if(|at| now >= *at).is_some() {
            return self.try_now(now, op, number);
        }
        if is_waiting && stand.check_at.is_some_and(|at| now >= at) {
            stand.check_at = None;
            match stand.place {
                None | Some(0 | 1) => self.watch(now, number),
                Some(_) => self.ask_for_place(now, number),
            }
        }
    }
}

/// How a place is left.
impl Engine {
    /// Hands out a command of a wait. The stand that it is for is still there.
    pub(in crate::proto) fn wait_action(
        &mut self,
        now: Moment,
        node: usize,
        command: WaitCommand,
    ) -> Action<'_> {
        match command {
            WaitCommand::Watch { stand, watch } => {
                // Next to it on the wire: the permission is for one command.
                let next = WaitCommand::TimeToLive { stand, watch };
                self.nodes.push_first(Outgoing::Wait(node, next));
            }
            WaitCommand::StepOut(place, _) => self.stands.hand_out(place),
            WaitCommand::Able(_) | WaitCommand::QueueUp(_) | WaitCommand::TimeToLive { .. } => {}
        }
        let nodes = self.nodes.hand_out(now, NodeSet::one(node), Request::Wait(command));
        let channel = self.channel.as_deref().expect("waits have a channel");
        let key_of = |number| {
            let key = self.stands.get(number).map(|stand| &stand.key);
            key.or_else(|| self.visits.key_of(number)).map_or(&[][..], Resource::as_bytes)
        };
        let command = match command {
            WaitCommand::Able(ability) => ability.command(channel),
            WaitCommand::QueueUp(stand) => {
                Command::Wait(Wait::QueueUp { key: key_of(stand), channel })
            }
            WaitCommand::Watch { .. } => Command::Wait(Wait::Cache),
            WaitCommand::TimeToLive { stand, .. } => {
                Command::Wait(Wait::TimeToLive { key: key_of(stand) })
            }
            WaitCommand::StepOut(_, to) => {
                Command::Wait(Wait::StepOut { key: self.stands.handed_out(), channel, to })
            }
        };
        Action::Send { nodes, command }
    }

    /// The key's line has no use for its places (W12).
    pub(in crate::proto) fn leave_stand_of(&mut self, key: &Resource) {
        if let Some(number) = self.queues.stand_of(key) {
            self.leave_stand(number);
        }
    }

    pub(super) fn leave_stand(&mut self, number: u32) {
        let Some(Stand { key, gates, .. }) = self.stands.remove(number) else {
            return;
        };
        self.queues.set_stand(&key, None);
        for gate in gates.iter() {
            self.step_aside(gate, key.clone(), Step::Out);
        }
    }

    /// The line's place at its gate goes to a visit. Returns the gate.
    pub(super) fn give_place(&mut self, number: u32) -> Option<usize> {
        let Stand { key, gate, gates, .. } = self.stands.remove(number)?;
        self.queues.set_stand(&key, None);
        for other in gates.iter().filter(|other| Some(*other) != gate) {
            self.step_aside(other, key.clone(), Step::Out);
        }
        gate
    }

    /// A visit leaves the place that was the line's: the line has its next turn behind the others.
    pub(super) fn queue_up_again(&mut self, now: Moment, number: u32, gate: usize) {
        let Some(stand) = self.stands.get_mut(number).filter(|stand| stand.held.is_none()) else {
            return;
        };
        let (key, is_there) = (stand.key.clone(), stand.gate == Some(gate));
        if is_there {
            (stand.place, stand.check_at) = (None, None);
            stand.forget_watch();
        }
        self.step_aside(gate, key, Step::Out);
        if is_there {
            self.ask_for_place(now, number);
            self.set_stand_timer(number);
        }
    }

    /// A gate that stands still is not told: the place there is passed over, or passed on when it
    /// is told to go.
    pub(super) fn step_aside(&mut self, gate: usize, key: Resource, to: Step) {
        if !self.nodes.may_pass_on(gate) {
            return;
        }
        let place = self.stands.leave(key);
        self.nodes.push(Outgoing::Wait(gate, WaitCommand::StepOut(place, to)));
    }

    /// The commands to this node that were not handed out will not be sent.
    pub(in crate::proto) fn forget_places_left(&mut self, node: usize) {
        for outgoing in self.nodes.outgoing() {
            match outgoing {
                Outgoing::Wait(at, WaitCommand::StepOut(place, _)) if *at == node => {
                    self.stands.withdraw(*place);
                }
                _ => {}
            }
        }
    }

    /// How many engines stand before this acquisition's in the queue for its lock, as far as its
    /// own was told; `None` if it does not wait in a queue.
    pub fn place(&self, id: OpId) -> Option<u32> {
        let (op, _) = self.operations.patience_of(id)?;
        let number = self.queues.stand_of(self.key_of(op)?)?;
        self.stands.get(number)?.place.filter(|place| *place != PLACE_NONE)
    }
}
