//! Waiting without polling (W1 to W14): the first of a local queue whose round was refused queues
//! up on one of the masters, and sleeps until it is notified, or sees that the
//! lock is free.
//!
//! A position in a queue is a hint about when to send, and never a vote. All that follows from it
//! is when an ordinary round of acquisition starts.

use super::choice::may_pass_on;
use super::entry::{POSITION_NONE, Phase, QueueEntry, StartedBy};
use super::local_queue::WaitingOp;
use super::{Cx, LocalQueues, WaitOrder};
use crate::proto::command::Step;
use crate::proto::request::{Ability, WaitCommand};
use crate::proto::status::{QueueObstacle, QueueSupport};
use crate::quorum::NodeSet;
use crate::resource::Key;

/// The entry of a local queue's first.
impl LocalQueues {
    /// A round was refused by these nodes (W11), and some may have granted. Returns whether the
    /// acquisition waits in a queue. If not, it waits for a random delay (R9).
    pub(crate) fn refused(
        &mut self,
        cx: &mut Cx<'_>,
        key: &Key,
        who: WaitingOp,
        refused: (NodeSet, bool),
    ) -> bool {
        if !self.desk.is_on() {
            return false;
        }
        let (round_trip, random) = (cx.round_trip(), cx.entropy.next_u64());
        let number = self.entry_for(cx, key);
        let entry = self.entries.entry(number);
        if let Some(by) = entry.last_round.take() {
            entry.watch.change_is_ambiguous |= by == StartedBy::Invalidation;
            self.desk.stats.spurious_wakeups += 1;
        }
        (entry.held, entry.saw_held, entry.has_to_ask) = (None, true, false);
        entry.free_since = None;
        entry.watch.forget();
        entry.check_at = entry.backoff.note_refused(cx.now, round_trip, refused, random);
        self.queue_up(cx, who, number)
    }

    /// The next of a local queue waits in the place of the one before it, or behind others (W7,
    /// W12). Returns whether it waits in a queue.
    pub(super) fn queue_up_first(&mut self, cx: &mut Cx<'_>, who: WaitingOp, key: &Key) -> bool {
        if !self.desk.is_on() {
            return false;
        }
        let number = self.entry_for(cx, key);
        let entry = self.entries.entry(number);
        (entry.held, entry.check_at) = (None, None);
        entry.watch.forget();
        self.queue_up(cx, who, number)
    }

    /// Others wait on the masters: without a position, it lets those come first that are notified.
    pub(super) fn queue_up_behind(&mut self, cx: &mut Cx<'_>, who: WaitingOp, key: &Key) {
        if !self.queue_up_first(cx, who, key) {
            self.desk.sleep_until(who, cx.now.after(cx.overtake_delay()));
        }
    }

    /// The acquisition is now the first of its local queue, which has this entry (W12). If the one
    /// before it was waiting there, the position and the watches stay as they are. If that one was
    /// about to try, this one tries, because no second message says that the lock is free. Returns
    /// whether it goes on from there.
    pub(super) fn inherit(
        &mut self,
        cx: &mut Cx<'_>,
        who: WaitingOp,
        number: u32,
        was_waiting: bool,
    ) -> bool {
        let Some(entry) = self.entries.get(number).filter(|entry| entry.held.is_none()) else {
            return false;
        };
        let key = entry.key.clone();
        if entry.has_to_ask || !was_waiting {
            self.try_now(cx, who, number, entry.last_round.unwrap_or(StartedBy::KeySeenAbsent));
        } else if entry.seat.node.is_some() {
            self.set_entry_timer(number);
        } else {
            return self.queue_up_first(cx, who, &key);
        }
        true
    }

    /// The round of a local queue's first is cut off when its patience ends: the next one is to try
    /// in its place.
    pub(crate) fn cut_off(&mut self, key: &Key) {
        let number = self.queues.entry_of(key);
        if let Some(entry) = number.and_then(|number| self.entries.get_mut(number)) {
            entry.has_to_ask = true;
        }
    }

    pub(super) fn entry_for(&mut self, cx: &mut Cx<'_>, key: &Key) -> u32 {
        if let Some(number) = self.queues.entry_of(key) {
            return number;
        }
        let number = self.entries.insert(QueueEntry::new(key.clone(), cx.now));
        self.queues.set_entry(key, Some(number));
        number
    }

    /// Queues up at the queue node, or at another one if it is lost. Without any, the entry is
    /// given up: returns false.
    pub(super) fn queue_up(&mut self, cx: &mut Cx<'_>, who: WaitingOp, number: u32) -> bool {
        if !self.find_node(cx, number) {
            self.leave_entry(cx, number);
            return false;
        }
        let random = cx.entropy.next_u64();
        self.entries.entry(number).polls.begin_again(cx.now, random);
        self.ask_for_position(cx, number);
        self.desk.sleep_until(who, self.entries.entry(number).due());
        true
    }

    /// Makes sure that the entry has a queue node (W2, W3). Returns whether it has one.
    pub(super) fn find_node(&mut self, cx: &mut Cx<'_>, number: u32) -> bool {
        let entry = self.entries.get(number).expect("the caller has looked it up");
        let (before, is_new) = (entry.seat.node, entry.polls.is_new);
        let excluded = self.queues.excluded(cx.now, &entry.key);
        let is_candidate = |node: usize| {
            let may_be = self.desk.choice(cx).is_candidate(cx.now, node);
            !excluded.contains(node) && (may_be || is_new && self.desk.choice(cx).is_awaited(node))
        };
        if before.is_some_and(is_candidate) {
            return true;
        }
        let queue_node = self.desk.choice(cx).first_among(&entry.key, is_candidate);
        let entry = self.entries.entry(number);
        let is_moved = !entry.seat.nodes.is_empty() && queue_node.is_some();
        entry.seat.change(queue_node);
        self.desk.stats.requeued += u64::from(is_moved);
        queue_node.is_some()
    }

    /// Asks the queue node for a position, as soon as it is known that one can wait there (W4, W5).
    pub(super) fn ask_for_position(&mut self, cx: &mut Cx<'_>, number: u32) {
        let queue_node = self.entries.entry(number).seat.node;
        let may_wait = |node: &usize| self.desk.choice(cx).may_wait_at(*node);
        let Some(queue_node) = queue_node.filter(may_wait) else {
            return;
        };
        match self.desk.able[queue_node].state() {
            QueueSupport::Available => {
                self.entries.entry(number).seat.ask(queue_node);
                self.desk.send(queue_node, WaitCommand::QueueUp(number));
            }
            _ => self.ask_ability(cx, queue_node),
        }
    }

    /// Asks the node whether one can wait there, once for each connection (W4).
    pub(super) fn ask_ability(&mut self, cx: &mut Cx<'_>, node: usize) {
        if self.desk.able[node].state() != QueueSupport::Untried {
            return;
        }
        if !cx.nodes[node].guard.is_told() {
            return self.cannot_wait(cx, node, QueueObstacle::Tracking);
        }
        if !self.desk.has_channel(cx) {
            return self.cannot_wait(cx, node, QueueObstacle::Channel);
        }
        self.desk.able[node].ask();
        for ability in Ability::ALL {
            self.desk.send(node, WaitCommand::Able(ability));
        }
    }

    /// The connection is of no use for waiting. A local queue that waits there looks for another
    /// queue node.
    pub(super) fn cannot_wait(&mut self, cx: &mut Cx<'_>, node: usize, obstacle: QueueObstacle) {
        self.desk.set_unable(cx, node, obstacle);
        self.node_lost(cx, node);
        self.desk.orders.push_back(WaitOrder::LeaveNode(node));
    }

    /// A node is ready: it may be the queue node of some.
    pub(super) fn open_node(&mut self, cx: &mut Cx<'_>, node: usize) {
        let is_here = |entry: &QueueEntry| {
            entry.seat.node == Some(node) && entry.seat.phase == Phase::Unqueued
        };
        for number in self.entries.numbers_where(is_here) {
            self.ask_for_position(cx, number);
        }
    }

    /// The node's connection has ended, or it did not answer in time (W3).
    pub(crate) fn node_lost(&mut self, cx: &mut Cx<'_>, node: usize) {
        if self.entries.is_empty() {
            return;
        }
        let is_lost = !cx.nodes.open().contains(node);
        let is_there = |entry: &QueueEntry| {
            let is_listed = entry.seat.node == Some(node) || entry.seat.nodes.contains(node);
            is_listed || entry.watch.has(node)
        };
        for number in self.entries.numbers_where(is_there) {
            let entry = self.entries.entry(number);
            if is_lost {
                entry.seat.nodes.remove(node);
            }
            let was_watched = entry.watch.has(node);
            entry.watch.remove(node);
            if entry.seat.node == Some(node) {
                entry.seat.change(None);
                entry.check_by(cx.now);
            } else if was_watched {
                entry.check_by(cx.now);
            }
            self.set_entry_timer(number);
        }
    }

    /// The first of the local queue wakes up when something is due for its entry.
    pub(super) fn set_entry_timer(&mut self, number: u32) {
        if let Some(who) = self.waiting_at(number) {
            self.desk.sleep_until(who, self.entries.entry(number).due());
        }
    }

    /// The timer of a local queue's first has fired. Returns whether it waits in a queue; then
    /// everything that was due is done.
    pub(super) fn handle_entry_due(&mut self, cx: &mut Cx<'_>, key: &Key, who: WaitingOp) -> bool {
        let Some(number) = self.queues.entry_of(key) else {
            return false;
        };
        let Some(entry) = self.entries.get(number).filter(|entry| entry.held.is_none()) else {
            return false;
        };
        if self.queues.first_of(&entry.key) != Some(who.id) {
            return false;
        }
        let before = entry.seat.node;
        let random = cx.entropy.next_u64();
        let entry = self.entries.entry(number);
        if cx.now >= entry.polls.at {
            self.look_slowly(cx, number, random);
        }
        if !self.find_node(cx, number) {
            self.leave_entry(cx, number);
            return false;
        }
        let entry = self.entries.entry(number);
        if entry.seat.node == before {
            self.do_what_is_due(cx, who, number);
        } else {
            entry.move_on(cx.now, random);
            self.ask_for_position(cx, number);
        }
        self.set_entry_timer(number);
        true
    }

    /// Asks for the position again. The first in the queue also looks at other nodes (W10).
    pub(super) fn look_slowly(&mut self, cx: &mut Cx<'_>, number: u32, random: u64) {
        let entry = self.entries.entry(number);
        entry.polls.next(cx.now, random);
        let mut asked = entry.watch.planned;
        entry.seat.node.into_iter().for_each(|node| asked.insert(node));
        for node in asked.iter() {
            if self.desk.able[node].is_trial_missing() {
                self.cannot_wait(cx, node, QueueObstacle::Channel);
            }
        }
        let entry = self.entries.entry(number);
        if entry.seat.phase == Phase::Queued(0) {
            entry.watch.rotation = entry.watch.rotation.wrapping_add(1);
            entry.check_by(cx.now);
        }
        self.ask_for_position(cx, number);
    }

    pub(super) fn do_what_is_due(&mut self, cx: &mut Cx<'_>, who: WaitingOp, number: u32) {
        let entry = self.entries.entry(number);
        if entry.watch.free_at.is_some_and(|at| cx.now >= at) {
            self.handle_free(cx, who, number, StartedBy::Expiry);
        }
        // It may have started a round.
        let Some(entry) = self.entries.get_mut(number) else {
            return;
        };
        let is_waiting = self.queues.waiting_first(&entry.key).is_some();
        if is_waiting && entry.blind_until.take_if(|at| cx.now >= *at).is_some() {
            return self.try_now(cx, who, number, StartedBy::Blindness);
        }
        if is_waiting && entry.check_at.is_some_and(|at| cx.now >= at) {
            entry.check_at = None;
            match entry.seat.position() {
                None | Some(0 | 1) => self.watch(cx, number),
                Some(_) => self.ask_for_position(cx, number),
            }
        }
    }
}

/// How a position is left.
impl LocalQueues {
    /// The key's local queue has no use for its positions (W12).
    pub(crate) fn leave_entry_of(&mut self, cx: &Cx<'_>, key: &Key) {
        if let Some(number) = self.queues.entry_of(key) {
            self.leave_entry(cx, number);
        }
    }

    pub(super) fn leave_entry(&mut self, cx: &Cx<'_>, number: u32) {
        let Some(QueueEntry { key, seat, .. }) = self.entries.remove(number) else {
            return;
        };
        self.queues.set_entry(&key, None);
        for queue_node in seat.nodes.iter() {
            self.step_out(cx, queue_node, key.clone(), Step::Out);
        }
    }

    /// The local queue's position at its queue node goes to a visit. Returns the queue node.
    pub(super) fn give_position(&mut self, cx: &Cx<'_>, number: u32) -> Option<usize> {
        let QueueEntry { key, seat, .. } = self.entries.remove(number)?;
        self.queues.set_entry(&key, None);
        for other in seat.nodes.iter().filter(|other| Some(*other) != seat.node) {
            self.step_out(cx, other, key.clone(), Step::Out);
        }
        seat.node
    }

    /// A visit leaves the position that was the local queue's: the local queue has its next turn
    /// behind the others.
    pub(super) fn queue_up_again(&mut self, cx: &mut Cx<'_>, number: u32, queue_node: usize) {
        let entry = self.entries.entry(number);
        let (key, is_there) = (entry.key.clone(), entry.seat.node == Some(queue_node));
        if is_there {
            (entry.seat.phase, entry.check_at) = (Phase::Unqueued, None);
            entry.watch.forget();
        }
        self.step_out(cx, queue_node, key, Step::Out);
        if is_there {
            self.ask_for_position(cx, number);
            self.set_entry_timer(number);
        }
    }

    /// Sends nothing to an overloaded node; its queue skips this entry when it is next.
    pub(super) fn step_out(&mut self, cx: &Cx<'_>, queue_node: usize, key: Key, to: Step) {
        if !may_pass_on(cx.nodes, queue_node) {
            return;
        }
        let number = self.entries.leave(key);
        self.desk.send(queue_node, WaitCommand::StepOut(number, to));
    }

    /// The acquisition that waits in this entry, and its patience. `None` while a round of it is in
    /// flight, and while its engine holds the lock.
    pub(super) fn waiting_at(&self, number: u32) -> Option<WaitingOp> {
        let entry = self.entries.get(number).filter(|entry| entry.held.is_none())?;
        self.queues.waiting_first(&entry.key)
    }

    /// How many engines wait before this one in the queue for this lock, as last reported.
    pub(crate) fn position_of(&self, key: &Key) -> Option<u32> {
        let number = self.queues.entry_of(key)?;
        self.entries.get(number)?.seat.position().filter(|position| *position != POSITION_NONE)
    }
}
