//! Where the engine stands, and whether the lock is free: the answers to a wait's commands, and
//! which nodes are watched (W5, W8 to W11).

use std::mem;
use std::time::Duration;

use super::entry::{Stand, StartedBy};
use super::local_queue::{Bar, WaitingOp};
use super::{Cx, LocalQueues};
use crate::moment::Moment;
use crate::proto::command::Expiry;
use crate::proto::request::WaitCommand;
use crate::proto::status::QueueSupport;
use crate::proto::timer::between;
use crate::quorum::NodeSet;

/// How many nodes tell of a change (W8).
const WATCHED_NODES: usize = 2;

/// Where the engine stands, and whether the lock is free.
impl LocalQueues {
    /// This key has no gate there, and is not watched there.
    pub(super) fn bar(&mut self, cx: &mut Cx<'_>, node: usize, number: u32, how: Bar) {
        let is_there = |stand: &&mut Stand| stand.seat.gate == Some(node) || stand.watch.has(node);
        let Some(stand) = self.stands.get_mut(number).filter(is_there) else {
            return;
        };
        stand.watch.remove(node);
        if stand.seat.gate == Some(node) {
            if how == Bar::ForGood || stand.seat.position().is_none() {
                stand.seat.gates.remove(node);
            }
            stand.seat.change(None);
        }
        stand.check_by(cx.now);
        self.queues.bar(cx.now, &stand.key, node, how);
        self.set_stand_timer(number);
    }

    /// The gate of a line has told the place, and how long the lock lives there (W5).
    pub(super) fn handle_place(
        &mut self,
        cx: &mut Cx<'_>,
        node: usize,
        number: u32,
        (place, expiry): (u32, Expiry),
    ) {
        let wait = cx.stagger();
        let stand = self.stands.stand(number);
        self.desk.stats.queued += u64::from(stand.seat.position().is_none());
        stand.stand_at(cx.now, place);
        stand.saw_held |= expiry != Expiry::Absent;
        let Some(who) = self.waiting_at(number) else {
            return;
        };
        let stand = self.stands.stand(number);
        let heeds = self.desk.heeded(cx, stand.backoff.refused).contains(node);
        // Those far back ask the nodes that they heed: if all before them sleep, nothing else does.
        let is_free = expiry == Expiry::Absent && (heeds || place > 1);
        let yields = self.queues.yields_until(cx.now, &stand.key, who).filter(|_| is_free);
        let stand = self.stands.stand(number);
        match place {
            // Strangers find it free only by chance.
            0 if yields.is_some() => yields.into_iter().for_each(|until| stand.check_by(until)),
            // After a refused round, the look is put off, but not until others overtake.
            0 if stand.backoff.is_on(cx.now) && is_free => stand.hasten(cx.now.after(wait / 2)),
            0 if stand.backoff.is_on(cx.now) => {}
            0 if is_free => return self.try_now(cx, who, number, StartedBy::KeySeenAbsent),
            0 => self.watch(cx, number),
            _ if is_free => {
                let at = stand.overtakes_at(cx.now, wait);
                match place {
                    2.. if cx.now >= at && heeds => {
                        return self.try_now(cx, who, number, StartedBy::KeySeenAbsent);
                    }
                    2.. if cx.now >= at => self.watch(cx, number),
                    _ => stand.check_by(at.max(cx.now)),
                }
            }
            1 => stand.check_by(cx.now.after(wait)),
            _ => (stand.free_since, stand.check_at, stand.blind_until) = (None, None, None),
        }
        self.set_stand_timer(number);
    }

    /// Looks at the lock, and asks to be told of its next change (W8, W9).
    pub(super) fn watch(&mut self, cx: &mut Cx<'_>, number: u32) {
        let wait = cx.stagger();
        let stand = self.stands.stand(number);
        if let Some(until) = stand.watch.must_pause_until(cx.now) {
            stand.check_by(until);
            return self.set_stand_timer(number);
        }
        stand.watch.begin(cx.now, wait);
        let nodes = self.nodes_to_watch(cx, number);
        self.watch_nodes(number, nodes);
        for node in self.stands.stand(number).watch.wanted.iter() {
            self.ask_ability(cx, node);
        }
        self.mind_blindness(cx, number, nodes);
    }

    /// If too few nodes can be watched, rounds are repeated after random delays, as without a gate:
    /// the one that is watched may have a key that stays (W9).
    pub(super) fn mind_blindness(&mut self, cx: &mut Cx<'_>, number: u32, watched: NodeSet) {
        let refused = self.stands.stand(number).backoff.refused;
        // Else it may be free although none of these has lost its key.
        let deny_quorum = cx.nodes.len() - refused.len() < self.desk.config.quorum();
        let sees_all = deny_quorum && refused.without(watched).is_empty();
        let is_blind = watched.len() < WATCHED_NODES.min(cx.nodes.len()) && !sees_all;
        let first = self.waiting_at(number);
        let retry_at = first.filter(|_| is_blind).and_then(|who| self.retry_at(cx, who, number));
        let stand = self.stands.stand(number);
        stand.blind_until = retry_at.map(|at| stand.blind_until.unwrap_or(at));
        self.set_stand_timer(number);
    }

    /// When rounds are repeated that no queue and no change starts (R9).
    fn retry_at(&self, cx: &mut Cx<'_>, who: WaitingOp, number: u32) -> Option<Moment> {
        let attempts = self.queues.attempts_of(&self.stands.get(number)?.key);
        let round_trip = cx.rounds_take.unwrap_or_default();
        let base = self.desk.config.retry.base(attempts, round_trip);
        let delay = between(base, base.saturating_mul(2), cx.entropy.next_u64());
        Some(cx.now.after(delay)).filter(|retry_at| *retry_at < who.give_up_at)
    }

    /// Two nodes that refused, in the order of gates; or else the gate and the one behind it.
    pub(super) fn nodes_to_watch(&self, cx: &Cx<'_>, number: u32) -> NodeSet {
        let Some(stand) = self.stands.get(number) else {
            return NodeSet::EMPTY;
        };
        let mut order = self.desk.choice(cx).gate_order(&stand.key);
        let barred = self.queues.barred_for_now(cx.now, &stand.key);
        order.retain(|node| self.desk.choice(cx).may_wait_at(*node) && !barred.contains(*node));
        let heeded = self.desk.heeded(cx, stand.backoff.refused);
        if order.iter().filter(|node| heeded.contains(**node)).count() >= WATCHED_NODES {
            order.retain(|node| heeded.contains(*node));
        }
        // Stable, so the order of gates stays within both parts.
        order.sort_by_key(|node| !stand.backoff.refused.contains(*node));
        let moved = (stand.watch.rotation * WATCHED_NODES).checked_rem(order.len()).unwrap_or(0);
        order.rotate_left(moved);
        order.into_iter().take(WATCHED_NODES).collect()
    }

    pub(super) fn watch_nodes(&mut self, number: u32, nodes: NodeSet) {
        for node in nodes.iter() {
            let is_able = self.desk.able[node].state() == QueueSupport::Available;
            let stand = self.stands.stand(number);
            let watch = stand.watch.number;
            match is_able {
                true => {
                    stand.watch.unheard.insert(node);
                    let command = WaitCommand::Watch { stand: number, watch };
                    self.desk.send(node, command);
                }
                false => stand.watch.wanted.insert(node),
            }
        }
    }

    /// A watched node has told how long the key lives there (W8).
    pub(super) fn handle_expiry(
        &mut self,
        cx: &mut Cx<'_>,
        node: usize,
        (number, watch): (u32, u32),
        expiry: Expiry,
    ) {
        let is_asked =
            |stand: &&mut Stand| stand.watch.number == watch && stand.watch.unheard.contains(node);
        let Some(stand) = self.stands.get_mut(number).filter(is_asked) else {
            return;
        };
        stand.watch.unheard.remove(node);
        let refused = stand.backoff.refused;
        if expiry == Expiry::Absent && self.desk.heeded(cx, refused).contains(node) {
            self.stands.stand(number).watch.is_ambiguous = false;
            if let Some(who) = self.waiting_at(number) {
                self.handle_free(cx, who, number, StartedBy::KeySeenAbsent);
            }
            return self.set_stand_timer(number);
        }
        let stand = self.stands.stand(number);
        if expiry != Expiry::Absent {
            stand.saw_held = true;
            stand.watch.armed.insert(node);
        }
        if let Expiry::In(left) = expiry {
            let at = cx.now.after(left.saturating_add(Duration::from_millis(1)));
            stand.watch.free_at = Some(stand.watch.free_at.map_or(at, |before| before.min(at)));
        }
        if stand.watch.unheard.is_empty() && stand.watch.wanted.is_empty() {
            stand.free_since = None;
        }
        self.set_stand_timer(number);
    }

    /// The lock is free, or seems to be.
    pub(super) fn handle_free(
        &mut self,
        cx: &mut Cx<'_>,
        who: WaitingOp,
        number: u32,
        by: StartedBy,
    ) {
        let wait = cx.stagger();
        let stand = self.stands.stand(number);
        if by == StartedBy::KeySeenAbsent {
            stand.watch.end_pauses();
        }
        stand.watch.free_at = None;
        match stand.seat.position() {
            // Once: a client that takes the lock again and again would always come first.
            Some(0)
                if by == StartedBy::Invalidation && mem::take(&mut stand.watch.is_ambiguous) =>
            {
                self.watch(cx, number);
            }
            Some(0) => self.try_now(cx, who, number, by),
            Some(2..) if by != StartedBy::KeySeenAbsent => {}
            None | Some(_) => {
                let at = stand.overtakes_at(cx.now, wait);
                match by == StartedBy::KeySeenAbsent && cx.now >= at {
                    true => self.try_now(cx, who, number, by),
                    false => stand.check_by(at.max(cx.now)),
                }
            }
        }
    }

    /// A round, because the lock is believed to be free (W11).
    pub(super) fn try_now(&mut self, cx: &mut Cx<'_>, who: WaitingOp, number: u32, by: StartedBy) {
        let stand = self.stands.stand(number);
        // No round starts after its patience has ended (R9): the timer, which is due, ends it.
        (stand.last_round, stand.has_to_ask) = (Some(by), cx.now >= who.give_up_at);
        if stand.has_to_ask {
            return;
        }
        (stand.check_at, stand.blind_until) = (None, None);
        stand.watch.forget();
        let key = stand.key.clone();
        self.start(&key, who);
    }
}
