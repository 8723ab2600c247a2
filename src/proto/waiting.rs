//! Waiting without polling (W1 to W14): the first of a line whose round was refused queues up on
//! one of the masters, and sleeps until it is told that its turn has come, or sees that the lock is
//! free.
//!
//! A place in a queue is a hint about when to send, and never a vote. All that follows from it is
//! when an ordinary round of acquisition starts.

use std::time::Duration;

use super::command::{Channel, Command, Reply, ServerError, Step, Tell, Wait};
use super::node::{Effect, is_forbidden};
use super::notices::Notice;
use super::op_id::OpId;
use super::operation::Progress;
use super::outgoing::Outgoing;
use super::queue::Bar;
use super::request::{Ability, Request};
use super::stand::{CROWD_FOR, PLACE_NONE, Stand, TURN_MAX, Turn, stagger};
use super::status::{Obstacle, Waits};
use super::{Action, Engine, NodeSet};
use crate::config::Waiting;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, ProtocolError, ServerErrorKind};
use crate::resource::Resource;
use crate::token::LockToken;

/// Where a queue's answer has the place.
const PLACE_SHIFT: u32 = 40;
/// What a queue's answer has added to the key's `PTTL`.
const TTL_OFFSET: i64 = 2;
/// A hand-on's answer if the key was deleted, and its queue could not be looked at.
const RELEASED_ALONE: i64 = -1;
/// What `PTTL` says of a key that is absent.
const ABSENT: i64 = -2;
/// How many nodes tell of a change (W8).
const WATCHED_NODES: usize = 2;

/// How a lock that is given up is released at the gates.
#[derive(Clone, Copy)]
pub(super) struct Hand {
    pub(super) gates: NodeSet,
    pub(super) tell: Tell,
}

impl Hand {
    /// The usual release on all nodes.
    pub(super) const NONE: Hand = Hand { gates: NodeSet::EMPTY, tell: Tell::Nobody };
}

/// Why the lock seems to be free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Free {
    /// A node says that its key is absent.
    Seen,
    /// A node says that its key has changed.
    Changed,
    /// Its time is over.
    Expired,
}

/// The stand of a line's first.
impl Engine {
    /// A round was refused (W11). Returns whether the acquisition waits in a queue; if not, it
    /// waits for a random delay, as ever (R9).
    pub(super) fn queue_up_refused(&mut self, now: Moment, op: usize, round: usize) -> bool {
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
    pub(super) fn note_cut_off(&mut self, round: usize) {
        let number = self.queues.stand_of(&self.rounds.claim(round).key);
        if let Some(stand) = number.and_then(|number| self.stands.get_mut(number)) {
            stand.is_owed = true;
        }
    }

    fn stand_for(&mut self, now: Moment, key: &Resource) -> u32 {
        if let Some(number) = self.queues.stand_of(key) {
            return number;
        }
        let number = self.stands.insert(Stand::new(key.clone(), now));
        self.queues.set_stand(key, Some(number));
        number
    }

    fn stand(&mut self, number: u32) -> &mut Stand {
        self.stands.get_mut(number).expect("the stand was just looked up")
    }

    /// Queues up at the gate, or at another one if it is lost. Without any, the stand is given up:
    /// returns false.
    fn take_place(&mut self, now: Moment, op: usize, number: u32) -> bool {
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
    pub(super) fn round_trip(&self) -> Duration {
        let latencies =
            self.nodes.open().iter().filter_map(|node| self.nodes[node].latency_nanos());
        let slowest = latencies.max().map(Duration::from_nanos);
        let known = self.rounds.round_trip().into_iter().chain(slowest);
        known.min().unwrap_or_default()
    }

    /// The time after which a head that was told to go is believed to sleep.
    pub(super) fn stagger(&self) -> Duration {
        stagger(self.round_trip())
    }

    /// Makes sure that the stand has a gate (W2, W3). Returns whether it has one.
    fn find_gate(&mut self, now: Moment, number: u32) -> bool {
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
    fn ask_for_place(&mut self, now: Moment, number: u32) {
        let Some(gate) = self.stand(number).gate.filter(|gate| self.nodes.may_wait_at(*gate))
        else {
            return;
        };
        match self.nodes[gate].waits() {
            Waits::Able => {
                let stand = self.stand(number);
                stand.gates.insert(gate);
                stand.is_sent = true;
                self.nodes.push(Outgoing::QueueUp(gate, number));
            }
            _ => self.ask_ability(now, gate),
        }
    }

    /// Asks the node whether one can wait there, once for each connection (W4).
    pub(super) fn ask_ability(&mut self, now: Moment, node: usize) {
        if self.nodes[node].waits() != Waits::Untried {
            return;
        }
        if !self.has_channel(now) {
            return self.cannot_wait(now, node, Obstacle::Channel);
        }
        self.nodes[node].ask_ability();
        self.nodes.push(Outgoing::Able(node, Ability::Hello));
    }

    /// Draws the engine's channel if it has none. Returns whether it has one.
    fn has_channel(&mut self, now: Moment) -> bool {
        if self.channel.is_none() {
            let random = self.entropy.token(now);
            let half = random.and_then(|random| random.first_chunk().copied());
            self.channel = half.map(|half| Box::new(Channel::new(half)));
        }
        self.channel.is_some()
    }

    /// A node is ready: it may be the gate of some.
    pub(super) fn open_gate(&mut self, now: Moment, node: usize) {
        let is_here = |stand: &Stand| stand.gate == Some(node) && !stand.is_sent;
        for number in self.stands.numbers_where(is_here) {
            self.ask_for_place(now, number);
        }
        self.open_visits(now, node);
    }

    /// The server has answered a question of W4.
    pub(super) fn follow_ability(&mut self, now: Moment, node: usize, effect: Effect) {
        match effect {
            Effect::SpeaksResp3 => {
                let asked = Ability::AFTER_HELLO.map(|ability| Outgoing::Able(node, ability));
                asked.into_iter().for_each(|outgoing| self.nodes.push(outgoing));
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
    fn cannot_wait(&mut self, now: Moment, node: usize, obstacle: Obstacle) {
        if self.nodes[node].set_unable(obstacle) && self.nodes[node].is_inability_news() {
            self.nodes.notice(node, Notice::CannotQueue(obstacle));
        }
        self.lose_gate(now, node);
    }

    /// The node's connection has ended, or it did not answer in time (W3).
    pub(super) fn lose_gate(&mut self, now: Moment, node: usize) {
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
    fn set_stand_timer(&mut self, number: u32) {
        let Some(stand) = self.stands.get(number) else {
            return;
        };
        if let Some((op, give_up_at)) = self.waiting_first(stand) {
            self.operations.set_timer(op, give_up_at.min(stand.due()));
        }
    }

    /// The acquisition that waits in this stand, and its patience. `None` while a round of it is in
    /// flight, and while its engine holds the lock.
    fn waiting_first(&self, stand: &Stand) -> Option<(usize, Moment)> {
        let first = self.queues.first_of(&stand.key)?;
        let (op, give_up_at) = self.operations.patience_of(first)?;
        let is_waiting = matches!(self.operations[op].progress, Progress::Waiting);
        (is_waiting && stand.held.is_none()).then_some((op, give_up_at))
    }

    /// The timer of a line's first has fired. Returns whether it stands in a queue; then what was
    /// due is done.
    pub(super) fn handle_stand_due(&mut self, now: Moment, op: usize) -> bool {
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
    fn look_slowly(&mut self, now: Moment, number: u32, random: u64) {
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

    fn do_what_is_due(&mut self, now: Moment, op: usize, number: u32) {
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

/// Where the engine stands, and whether the lock is free.
impl Engine {
    /// The answer to a wait's command that is no round's.
    pub(super) fn handle_wait_reply(
        &mut self,
        now: Moment,
        node: usize,
        request: Request,
        reply: Reply,
    ) {
        match (request, reply) {
            (_, Reply::Error(error)) => self.handle_wait_error(now, node, request, error),
            (Request::Cached, Reply::Ok) | (Request::StepOut, Reply::Integer(0)) => {}
            (Request::QueueUp(number), Reply::Integer(said @ 0..)) => {
                let place = u32::try_from(said >> PLACE_SHIFT).unwrap_or(PLACE_NONE);
                let left = (said & ((1 << PLACE_SHIFT) - 1)) - TTL_OFFSET;
                self.handle_place(now, node, number, (place, left));
            }
            (Request::TimeToLive { stand, watch }, Reply::Integer(left @ ABSENT..)) => {
                self.handle_time_to_live(now, node, (stand, watch), left);
            }
            _ => self.fail_node(now, node, NodeOutcome::Protocol(ProtocolError::Unexpected)),
        }
    }

    /// An error that lasts makes the connection useless for all waits; any other one, for the wait
    /// that it answers.
    fn handle_wait_error(
        &mut self,
        now: Moment,
        node: usize,
        request: Request,
        error: ServerError,
    ) {
        self.stats.server_errors += 1;
        let kind = error.kind;
        self.nodes[node].keep_error(error);
        let number = match request {
            Request::QueueUp(number) => Some(number),
            Request::TimeToLive { stand, watch } => self.watched_by(stand, watch),
            // It is next to it on the wire.
            Request::Cached => match self.nodes[node].next_request() {
                Some(Request::TimeToLive { stand, watch }) => self.watched_by(stand, watch),
                _ => None,
            },
            _ => None,
        };
        match (kind, request) {
            (ServerErrorKind::ReadOnly | ServerErrorKind::Auth, _) => {
                self.fail_node(now, node, NodeOutcome::Server(kind));
            }
            (kind, Request::QueueUp(_) | Request::StepOut) if is_forbidden(kind) => {
                self.cannot_wait(now, node, Obstacle::Queue);
            }
            (kind, _) if is_forbidden(kind) => self.cannot_wait(now, node, Obstacle::Tracking),
            (kind, request) => {
                let how = match (kind, request) {
                    (ServerErrorKind::WrongType, Request::QueueUp(_)) => Bar::ForGood,
                    _ => Bar::ForNow,
                };
                number.into_iter().for_each(|number| self.bar(now, node, number, how));
                number.into_iter().for_each(|number| self.visits.bar(number, node));
            }
        }
    }

    /// The stand whose watch has this number now.
    fn watched_by(&self, number: u32, watch: u32) -> Option<u32> {
        self.stands.get(number).filter(|stand| stand.watch == watch).map(|_| number)
    }

    /// This key has no gate there, and is not watched there.
    fn bar(&mut self, now: Moment, node: usize, number: u32, how: Bar) {
        let is_there = |stand: &&mut Stand| stand.gate == Some(node) || stand.watches(node);
        let Some(stand) = self.stands.get_mut(number).filter(is_there) else {
            return;
        };
        stand.watch_no_more(node);
        if stand.gate == Some(node) {
            if how == Bar::ForGood || stand.place.is_none() {
                stand.gates.remove(node);
            }
            (stand.gate, stand.is_sent, stand.place) = (None, false, None);
        }
        stand.check_by(now);
        self.queues.bar(now, &stand.key, node, how);
        self.set_stand_timer(number);
    }

    /// The gate has told the place, and how long the lock lives there (W5).
    fn handle_place(&mut self, now: Moment, node: usize, number: u32, (place, left): (u32, i64)) {
        let wait = self.stagger();
        let Some(stand) = self.stands.get_mut(number).filter(|it| it.gate == Some(node)) else {
            return self.handle_visit_place(now, number, place, left == ABSENT);
        };
        self.stats.queued += u64::from(stand.place.is_none());
        stand.stand_at(now, place);
        stand.saw_held |= left != ABSENT;
        let Some(stand) = self.stands.get(number) else {
            return;
        };
        let Some((op, give_up_at)) = self.waiting_first(stand) else {
            return;
        };
        let heeds = self.heeded(stand.refused).contains(node);
        // Those far back ask the nodes that they heed: if all before them sleep, nothing else does.
        let is_free = left == ABSENT && (heeds || place > 1);
        let yields = self.queues.yields_until(now, &stand.key, give_up_at).filter(|_| is_free);
        let stand = self.stand(number);
        match place {
            // Strangers find it free only by chance.
            0 if yields.is_some() => yields.into_iter().for_each(|until| stand.check_by(until)),
            // After a refused round, the look is put off, but not until others overtake.
            0 if now < stand.backs_off_until && is_free => stand.hasten(now.after(wait / 2)),
            0 if now < stand.backs_off_until => {}
            0 if is_free => return self.try_now(now, op, number),
            0 => self.watch(now, number),
            _ if is_free => {
                let at = stand.overtakes_at(now, wait);
                match place {
                    2.. if now >= at && heeds => return self.try_now(now, op, number),
                    2.. if now >= at => self.watch(now, number),
                    _ => stand.check_by(at.max(now)),
                }
            }
            1 => stand.check_by(now.after(wait)),
            _ => (stand.free_since, stand.check_at, stand.blind_until) = (None, None, None),
        }
        self.set_stand_timer(number);
    }

    /// Looks at the lock, and asks to be told of its next change (W8, W9).
    fn watch(&mut self, now: Moment, number: u32) {
        let wait = self.stagger();
        let stand = self.stand(number);
        if let Some(until) = stand.must_pause_until(now) {
            stand.check_by(until);
            return self.set_stand_timer(number);
        }
        stand.begin_watch(now, NodeSet::EMPTY, wait);
        let nodes = self.nodes_to_watch(now, number);
        self.watch_nodes(number, nodes);
        for node in self.stand(number).wanted.iter() {
            self.ask_ability(now, node);
        }
        self.mind_blindness(now, number, nodes);
    }

    /// If too few nodes can be watched, rounds are repeated after random delays, as without a gate:
    /// the one that is watched may have a key that stays (W9).
    fn mind_blindness(&mut self, now: Moment, number: u32, watched: NodeSet) {
        let refused = self.stand(number).refused;
        let sees_all = !refused.is_empty() && refused.without(watched).is_empty();
        let is_blind = watched.len() < WATCHED_NODES.min(self.nodes.len()) && !sees_all;
        let first = self.stands.get(number).and_then(|stand| self.waiting_first(stand));
        let retry_at = first.filter(|_| is_blind).and_then(|(op, _)| self.retry_at(now, op));
        let stand = self.stand(number);
        stand.blind_until = retry_at.map(|at| stand.blind_until.unwrap_or(at));
        self.set_stand_timer(number);
    }

    /// Two nodes that refused, in the order of gates; or else the gate and the one behind it.
    fn nodes_to_watch(&self, now: Moment, number: u32) -> NodeSet {
        let mut nodes = NodeSet::EMPTY;
        let Some(stand) = self.stands.get(number) else {
            return nodes;
        };
        let mut order = self.nodes.gate_order(&stand.key);
        let barred = self.queues.barred_for_now(now, &stand.key);
        order.retain(|node| self.nodes.may_wait_at(*node) && !barred.contains(*node));
        let heeded = self.heeded(stand.refused);
        if order.iter().filter(|node| heeded.contains(**node)).count() >= WATCHED_NODES {
            order.retain(|node| heeded.contains(*node));
        }
        // Stable, so the order of gates stays within both parts.
        order.sort_by_key(|node| !stand.refused.contains(*node));
        let moved = (stand.rotation * WATCHED_NODES).checked_rem(order.len()).unwrap_or(0);
        order.rotate_left(moved);
        order.into_iter().take(WATCHED_NODES).for_each(|node| nodes.insert(node));
        nodes
    }

    /// The nodes whose absent keys may mean that the lock is free. If those that refused the last
    /// round deny a quorum, it is not free before one of them has lost its key.
    fn heeded(&self, refused: NodeSet) -> NodeSet {
        let mut watched = NodeSet::EMPTY;
        let may_wait = refused.iter().filter(|node| self.nodes.may_wait_at(*node));
        may_wait.for_each(|node| watched.insert(node));
        match self.nodes.len() - watched.len() < self.config.quorum() {
            true => watched,
            false => NodeSet::all(self.nodes.len()),
        }
    }

    fn watch_nodes(&mut self, number: u32, nodes: NodeSet) {
        for node in nodes.iter() {
            let is_able = self.nodes[node].waits() == Waits::Able;
            let stand = self.stand(number);
            let watch = stand.watch;
            match is_able {
                true => {
                    stand.unheard.insert(node);
                    self.nodes.push(Outgoing::Watch(node, number, watch));
                }
                false => stand.wanted.insert(node),
            }
        }
    }

    /// A watched node has told how long the key lives there (W8).
    fn handle_time_to_live(
        &mut self,
        now: Moment,
        node: usize,
        (number, watch): (u32, u32),
        left: i64,
    ) {
        let Some(stand) = self.stands.get_mut(number).filter(|it| it.watch == watch) else {
            return;
        };
        if !stand.unheard.contains(node) {
            return;
        }
        stand.unheard.remove(node);
        let refused = stand.refused;
        if left == ABSENT && self.heeded(refused).contains(node) {
            let stand = self.stand(number);
            stand.doubts = false;
            let Some(stand) = self.stands.get(number) else {
                return;
            };
            if let Some((op, _)) = self.waiting_first(stand) {
                self.handle_free(now, op, number, Free::Seen);
            }
            return self.set_stand_timer(number);
        }
        let stand = self.stand(number);
        if left != ABSENT {
            stand.saw_held = true;
            stand.armed.insert(node);
        }
        if let Ok(left @ 0..) = u64::try_from(left) {
            let at = now.after(Duration::from_millis(left.saturating_add(1)));
            stand.free_at = Some(stand.free_at.map_or(at, |before| before.min(at)));
        }
        if stand.unheard.is_empty() && stand.wanted.is_empty() {
            stand.free_since = None;
        }
        self.set_stand_timer(number);
    }

    /// The lock is free, or seems to be.
    fn handle_free(&mut self, now: Moment, op: usize, number: u32, how: Free) {
        let wait = self.stagger();
        let stand = self.stand(number);
        if how == Free::Seen {
            stand.end_pauses();
        }
        stand.free_at = None;
        match stand.place {
            // Once: whoever takes the lock again and again would always come first.
            Some(0) if how == Free::Changed && std::mem::take(&mut stand.doubts) => {
                self.watch(now, number);
            }
            Some(0) => {
                stand.was_changed = how == Free::Changed;
                self.try_now(now, op, number);
            }
            Some(2..) if how != Free::Seen => {}
            None | Some(_) => {
                let at = stand.overtakes_at(now, wait);
                match how == Free::Seen && now >= at {
                    true => self.try_now(now, op, number),
                    false => stand.check_by(at.max(now)),
                }
            }
        }
    }

    /// A round, because the lock is believed to be free (W11).
    fn try_now(&mut self, now: Moment, op: usize, number: u32) {
        let patience = self.operations.patience_of(self.operations.id_of(op));
        if patience.is_some_and(|(_, give_up_at)| now >= give_up_at) {
            // No round starts after that (R9): the timer, which is due, ends it.
            self.stand(number).is_owed = true;
            return;
        }
        let stand = self.stand(number);
        (stand.was_woken, stand.is_owed) = (true, false);
        (stand.check_at, stand.blind_until) = (None, None);
        stand.forget_watch();
        self.start_again(now, op);
    }
}

/// What is pushed.
impl Engine {
    /// A node's message on the engine's channel: a letter and a key (W6). Returns whether it makes
    /// sense.
    pub(super) fn handle_told(&mut self, now: Moment, node: usize, message: &[u8]) -> bool {
        let Some((letter, key)) = message.split_first() else {
            return false;
        };
        match letter {
            b't' if key.is_empty() => {
                let effect = self.nodes[node].hear_trial();
                self.follow_ability(now, node, effect);
                return true;
            }
            b'g' | b'p' | b'n' | b'o' | b'a' if !key.is_empty() => {}
            _ => return false,
        }
        let Some(key) = Resource::of_key(key) else {
            return false;
        };
        let stand = self.queues.stand_of(&key).and_then(|it| self.stands.get(it).map(|_| it));
        match stand {
            Some(number) => self.tell_stand(now, node, number, *letter),
            None if self.tell_visit(now, node, &key, *letter) => {}
            // It is passed on to those behind.
            None if matches!(letter, b'g' | b'p' | b'a') => {
                self.step_aside(node, key, Step::Out);
            }
            None => {}
        }
        true
    }

    fn tell_stand(&mut self, now: Moment, node: usize, number: u32, letter: u8) {
        let wait = self.stagger();
        let stand = self.stand(number);
        let is_elsewhere = stand.gate.is_some_and(|gate| gate != node);
        if letter == b'a' {
            // It waits, but looks after the lock at another gate.
            if is_elsewhere {
                let key = stand.key.clone();
                self.step_aside(node, key, Step::Out);
            }
            return;
        }
        if stand.held.is_some() || is_elsewhere && letter != b'g' {
            return;
        }
        stand.end_pauses();
        if letter == b'o' {
            stand.place = None;
            return self.ask_for_place(now, number);
        }
        stand.place = Some(if letter == b'n' { 1 } else { 0 });
        if letter == b'g' {
            stand.refused_in_row = 0;
            self.stats.told += 1;
        }
        let Some(stand) = self.stands.get(number) else {
            return;
        };
        let Some((op, _)) = self.waiting_first(stand) else {
            // Whoever comes after one that has ended, and is not yet gone, is told by this.
            self.stand(number).is_owed |= letter == b'g';
            return;
        };
        let stand = self.stand(number);
        match letter {
            b'g' => {
                stand.was_told = true;
                self.try_now(now, op, number);
            }
            b'p' if stand.unheard.is_empty() && stand.armed.is_empty() => self.watch(now, number),
            b'p' => {}
            _ => {
                stand.free_since = Some((now, 1));
                stand.check_by(now.after(wait));
                self.set_stand_timer(number);
            }
        }
    }

    /// A watched key has changed.
    pub(super) fn handle_changed(&mut self, now: Moment, node: usize, key: &[u8]) {
        let key = Resource::of_key(key);
        if let Some(number) = key.and_then(|key| self.queues.stand_of(&key)) {
            self.tell_change(now, node, number);
        }
    }

    /// Any key may have changed.
    pub(super) fn handle_all_changed(&mut self, now: Moment, node: usize) {
        for number in self.stands.numbers_where(|stand| stand.armed.contains(node)) {
            self.tell_change(now, node, number);
        }
    }

    fn tell_change(&mut self, now: Moment, node: usize, number: u32) {
        let Some(stand) = self.stands.get_mut(number) else {
            return;
        };
        if !stand.armed.contains(node) {
            return;
        }
        stand.armed.remove(node);
        let Some(stand) = self.stands.get(number) else {
            return;
        };
        if let Some((op, _)) = self.waiting_first(stand) {
            self.handle_free(now, op, number, Free::Changed);
            self.set_stand_timer(number);
        } else {
            self.stand(number).check_by(now);
        }
    }
}

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
    pub(super) fn hand_for(&mut self, now: Moment, key: &Resource, token: LockToken) -> Hand {
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
    fn counted_gate(&mut self, now: Moment, key: &Resource) -> NodeSet {
        let (looks, barred) = (self.queues.note_look(key), self.queues.barred(now, key));
        let may_be = |node: usize| self.nodes.may_hand_on(node) && !barred.contains(node);
        let gate = self.nodes.gate_in_turn(now, key, looks, may_be);
        gate.map_or(NodeSet::EMPTY, NodeSet::one)
    }

    /// Which of these gates can be handed on at. The others get the usual release: a gate that
    /// stands still would tell of the turn when it is long over.
    pub(super) fn gates_to_hand_on(&self, hand: Hand, ready: NodeSet) -> NodeSet {
        let mut gates = NodeSet::EMPTY;
        let able = hand.gates.and(ready).iter().filter(|node| self.nodes.may_hand_on(*node));
        able.for_each(|node| gates.insert(node));
        gates
    }

    /// The lock was handed on: the line stands behind those who are told, or leaves (W13). Returns
    /// whether its first waits there.
    pub(super) fn stand_behind(&mut self, now: Moment, key: &Resource) -> bool {
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

    pub(super) fn hand_on_command(&self, round: usize, tell: Tell) -> Command<'_> {
        let claim = self.rounds.claim(round);
        let channel = self.channel.as_deref().expect("a gate is chosen with a channel");
        let (key, token) = (claim.key.as_bytes(), &claim.token);
        Command::Wait(Wait::HandOn { key, channel, token, tell })
    }

    /// The release at a gate was answered. A gate that refuses it gets the usual release at once.
    pub(super) fn handle_handed_on(
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

    /// Hands out a command of a wait. The stands that it is for are still there.
    pub(super) fn wait_action(&mut self, now: Moment, outgoing: Outgoing) -> Action<'_> {
        let (node, request) = match &outgoing {
            Outgoing::Able(node, ability) => (*node, Request::Able(*ability)),
            Outgoing::QueueUp(node, stand) => (*node, Request::QueueUp(*stand)),
            Outgoing::Watch(node, stand, watch) => {
                // Next to it on the wire: the permission is for one command.
                self.nodes.push_first(Outgoing::TimeToLive(*node, *stand, *watch));
                (*node, Request::Cached)
            }
            Outgoing::TimeToLive(node, stand, watch) => {
                (*node, Request::TimeToLive { stand: *stand, watch: *watch })
            }
            Outgoing::StepOut(node, place, _) => {
                self.stands.hand_out(*place);
                (*node, Request::StepOut)
            }
            _ => unreachable!("the caller sends the others"),
        };
        let nodes = self.nodes.hand_out(now, NodeSet::one(node), request);
        let channel = self.channel.as_deref().expect("waits have a channel");
        let key_of = |number| {
            let key = self.stands.get(number).map(|stand| &stand.key);
            key.or_else(|| self.visits.key_of(number)).map_or(&[][..], Resource::as_bytes)
        };
        let wait = match outgoing {
            Outgoing::Able(_, ability) => {
                return Action::Send { nodes, command: ability.command(channel) };
            }
            Outgoing::QueueUp(_, stand) => Wait::QueueUp { key: key_of(stand), channel },
            Outgoing::Watch(..) => Wait::Cache,
            Outgoing::TimeToLive(_, stand, _) => Wait::TimeToLive { key: key_of(stand) },
            Outgoing::StepOut(_, _, to) => {
                Wait::StepOut { key: self.stands.handed_out(), channel, to }
            }
            _ => unreachable!("the caller sends the others"),
        };
        Action::Send { nodes, command: Command::Wait(wait) }
    }

    /// The key's line has no use for its places (W12).
    pub(super) fn leave_stand_of(&mut self, key: &Resource) {
        if let Some(number) = self.queues.stand_of(key) {
            self.leave_stand(number);
        }
    }

    fn leave_stand(&mut self, number: u32) {
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
        self.nodes.push(Outgoing::StepOut(gate, place, to));
    }

    /// The commands to this node that were not handed out will not be sent.
    pub(super) fn forget_places_left(&mut self, node: usize) {
        for outgoing in self.nodes.outgoing() {
            match outgoing {
                Outgoing::StepOut(at, place, _) if *at == node => self.stands.withdraw(*place),
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
