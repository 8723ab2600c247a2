//! The engine's position, and whether the lock is free: the answers to a wait's commands, and which
//! nodes are watched (W5, W8 to W11).

use std::mem;
use std::time::Duration;

use super::entry::{QueueEntry, StartedBy};
use super::local_queue::{Exclusion, WaitingOp};
use super::{Cx, LocalQueues};
use crate::moment::Moment;
use crate::proto::command::Expiry;
use crate::proto::request::WaitCommand;
use crate::proto::status::QueueSupport;
use crate::proto::timer::between;
use crate::quorum::NodeSet;

/// How many nodes report a change (W8).
const WATCHED_NODES: usize = 2;

/// The engine's position, and whether the lock is free.
impl LocalQueues {
    /// This key has no queue node there, and is not watched there.
    pub(super) fn exclude(&mut self, cx: &mut Cx<'_>, node: usize, number: u32, how: Exclusion) {
        let is_there =
            |entry: &&mut QueueEntry| entry.seat.node == Some(node) || entry.watch.has(node);
        let Some(entry) = self.entries.get_mut(number).filter(is_there) else {
            return;
        };
        entry.watch.remove(node);
        if entry.seat.node == Some(node) {
            if how == Exclusion::ForGood || entry.seat.position().is_none() {
                entry.seat.nodes.remove(node);
            }
            entry.seat.change(None);
        }
        entry.check_by(cx.now);
        self.queues.exclude(cx.now, &entry.key, node, how);
        self.set_entry_timer(number);
    }

    /// The queue node has reported the local queue's position, and how long the lock lives there
    /// (W5).
    pub(super) fn handle_position(
        &mut self,
        cx: &mut Cx<'_>,
        node: usize,
        number: u32,
        (position, expiry): (u32, Expiry),
    ) {
        let wait = cx.overtake_delay();
        let entry = self.entries.entry(number);
        self.desk.stats.queued += u64::from(entry.seat.position().is_none());
        entry.note_position(cx.now, position);
        entry.saw_held |= expiry != Expiry::Absent;
        let Some(who) = self.waiting_at(number) else {
            return;
        };
        let entry = self.entries.entry(number);
        let is_relevant = self.desk.relevant_nodes(cx, entry.backoff.refused).contains(node);
        // Waiters far back check the key themselves, in case all before them are asleep.
        let is_free = expiry == Expiry::Absent && (is_relevant || position > 1);
        let yields = self.queues.yields_until(cx.now, &entry.key, who).filter(|_| is_free);
        let entry = self.entries.entry(number);
        match position {
            // Pollers find it free only by chance.
            0 if yields.is_some() => yields.into_iter().for_each(|until| entry.check_by(until)),
            // After a refused round, the look is put off, but not until others overtake.
            0 if entry.backoff.is_on(cx.now) && is_free => entry.hasten(cx.now.after(wait / 2)),
            0 if entry.backoff.is_on(cx.now) => {}
            0 if is_free => return self.try_now(cx, who, number, StartedBy::KeySeenAbsent),
            0 => self.watch(cx, number),
            _ if is_free => {
                let at = entry.overtakes_at(cx.now, wait);
                match position {
                    2.. if cx.now >= at && is_relevant => {
                        return self.try_now(cx, who, number, StartedBy::KeySeenAbsent);
                    }
                    2.. if cx.now >= at => self.watch(cx, number),
                    _ => entry.check_by(at.max(cx.now)),
                }
            }
            1 => entry.check_by(cx.now.after(wait)),
            _ => (entry.free_since, entry.check_at, entry.blind_until) = (None, None, None),
        }
        self.set_entry_timer(number);
    }

    /// Looks at the lock, and asks for a notification of its next change (W8, W9).
    pub(super) fn watch(&mut self, cx: &mut Cx<'_>, number: u32) {
        let wait = cx.overtake_delay();
        let entry = self.entries.entry(number);
        if let Some(until) = entry.watch.must_pause_until(cx.now) {
            entry.check_by(until);
            return self.set_entry_timer(number);
        }
        entry.watch.begin(cx.now, wait);
        let nodes = self.nodes_to_watch(cx, number);
        self.watch_nodes(number, nodes);
        for node in self.entries.entry(number).watch.planned.iter() {
            self.ask_ability(cx, node);
        }
        self.mind_blindness(cx, number, nodes);
    }

    /// If too few nodes can be watched, rounds are repeated after random delays, as without a queue
    /// node: the one that is watched may have a key that stays (W9).
    pub(super) fn mind_blindness(&mut self, cx: &mut Cx<'_>, number: u32, watched: NodeSet) {
        let refused = self.entries.entry(number).backoff.refused;
        // Else it may be free although none of these has lost its key.
        let deny_quorum = cx.nodes.len() - refused.len() < self.desk.config.quorum();
        let sees_all = deny_quorum && refused.without(watched).is_empty();
        let is_blind = watched.len() < WATCHED_NODES.min(cx.nodes.len()) && !sees_all;
        let first = self.waiting_at(number);
        let retry_at = first.filter(|_| is_blind).and_then(|who| self.retry_at(cx, who, number));
        let entry = self.entries.entry(number);
        entry.blind_until = retry_at.map(|at| entry.blind_until.unwrap_or(at));
        self.set_entry_timer(number);
    }

    /// When rounds are repeated that no queue and no change starts (R9).
    fn retry_at(&self, cx: &mut Cx<'_>, who: WaitingOp, number: u32) -> Option<Moment> {
        let attempts = self.queues.attempts_of(&self.entries.get(number)?.key);
        let round_trip = cx.rounds_take.unwrap_or_default();
        let base = self.desk.config.retry.base(attempts, round_trip);
        let delay = between(base, base.saturating_mul(2), cx.entropy.next_u64());
        Some(cx.now.after(delay)).filter(|retry_at| *retry_at < who.give_up_at)
    }

    /// Two nodes that refused, in the order of queue nodes; or else the queue node and the one
    /// behind it.
    pub(super) fn nodes_to_watch(&self, cx: &Cx<'_>, number: u32) -> NodeSet {
        let Some(entry) = self.entries.get(number) else {
            return NodeSet::EMPTY;
        };
        let mut order = self.desk.choice(cx).queue_node_order(&entry.key);
        let excluded = self.queues.excluded_for_now(cx.now, &entry.key);
        order.retain(|node| self.desk.choice(cx).may_wait_at(*node) && !excluded.contains(*node));
        let relevant_nodes = self.desk.relevant_nodes(cx, entry.backoff.refused);
        if order.iter().filter(|node| relevant_nodes.contains(**node)).count() >= WATCHED_NODES {
            order.retain(|node| relevant_nodes.contains(*node));
        }
        // Stable, so the order of queue nodes stays within both parts.
        order.sort_by_key(|node| !entry.backoff.refused.contains(*node));
        let moved = (entry.watch.rotation * WATCHED_NODES).checked_rem(order.len()).unwrap_or(0);
        order.rotate_left(moved);
        order.into_iter().take(WATCHED_NODES).collect()
    }

    pub(super) fn watch_nodes(&mut self, number: u32, nodes: NodeSet) {
        for node in nodes.iter() {
            let is_able = self.desk.able[node].state() == QueueSupport::Available;
            let entry = self.entries.entry(number);
            let watch = entry.watch.number;
            match is_able {
                true => {
                    entry.watch.pending.insert(node);
                    let command = WaitCommand::Watch { entry: number, watch };
                    self.desk.send(node, command);
                }
                false => entry.watch.planned.insert(node),
            }
        }
    }

    /// A watched node has reported how long the key lives there (W8).
    pub(super) fn handle_expiry(
        &mut self,
        cx: &mut Cx<'_>,
        node: usize,
        (number, watch): (u32, u32),
        expiry: Expiry,
    ) {
        let is_asked = |entry: &&mut QueueEntry| {
            entry.watch.number == watch && entry.watch.pending.contains(node)
        };
        let Some(entry) = self.entries.get_mut(number).filter(is_asked) else {
            return;
        };
        entry.watch.pending.remove(node);
        let refused = entry.backoff.refused;
        if expiry == Expiry::Absent && self.desk.relevant_nodes(cx, refused).contains(node) {
            self.entries.entry(number).watch.change_is_ambiguous = false;
            if let Some(who) = self.waiting_at(number) {
                self.handle_free(cx, who, number, StartedBy::KeySeenAbsent);
            }
            return self.set_entry_timer(number);
        }
        let entry = self.entries.entry(number);
        if expiry != Expiry::Absent {
            entry.saw_held = true;
            entry.watch.watched.insert(node);
        }
        if let Expiry::In(left) = expiry {
            let at = cx.now.after(left.saturating_add(Duration::from_millis(1)));
            entry.watch.free_at = Some(entry.watch.free_at.map_or(at, |before| before.min(at)));
        }
        if entry.watch.pending.is_empty() && entry.watch.planned.is_empty() {
            entry.free_since = None;
        }
        self.set_entry_timer(number);
    }

    /// The lock is free, or seems to be.
    pub(super) fn handle_free(
        &mut self,
        cx: &mut Cx<'_>,
        who: WaitingOp,
        number: u32,
        by: StartedBy,
    ) {
        let wait = cx.overtake_delay();
        let entry = self.entries.entry(number);
        if by == StartedBy::KeySeenAbsent {
            entry.watch.end_pauses();
        }
        entry.watch.free_at = None;
        match entry.seat.position() {
            // Once: a client that takes the lock again and again would always come first.
            Some(0)
                if by == StartedBy::Invalidation
                    && mem::take(&mut entry.watch.change_is_ambiguous) =>
            {
                self.watch(cx, number);
            }
            Some(0) => self.try_now(cx, who, number, by),
            Some(2..) if by != StartedBy::KeySeenAbsent => {}
            None | Some(_) => {
                let at = entry.overtakes_at(cx.now, wait);
                match by == StartedBy::KeySeenAbsent && cx.now >= at {
                    true => self.try_now(cx, who, number, by),
                    false => entry.check_by(at.max(cx.now)),
                }
            }
        }
    }

    /// A round, because the lock is believed to be free (W11).
    pub(super) fn try_now(&mut self, cx: &mut Cx<'_>, who: WaitingOp, number: u32, by: StartedBy) {
        let entry = self.entries.entry(number);
        // No round starts after its patience has ended (R9): the timer, which is due, ends it.
        (entry.last_round, entry.has_to_ask) = (Some(by), cx.now >= who.give_up_at);
        if entry.has_to_ask {
            return;
        }
        (entry.check_at, entry.blind_until) = (None, None);
        entry.watch.forget();
        let key = entry.key.clone();
        self.start(&key, who);
    }
}
