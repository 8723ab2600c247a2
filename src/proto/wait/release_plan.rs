//! How an entry goes on when its local queue has the lock, or gives it up (W7, W11, W13).

use super::choice::may_pass_on;
use super::entry::{CONTENDED_FOR, Phase, QUOTA_MAX, QueueEntry, Quota, StartedBy};
use super::local_queue::Exclusion;
use super::{Cx, LocalQueues, ReleasePlan};
use crate::proto::command::{Notify, Reply, Step};
use crate::proto::nodes::is_forbidden;
use crate::proto::status::QueueObstacle;
use crate::quorum::NodeSet;
use crate::resource::Key;
use crate::token::LockToken;

/// How an entry goes on when its local queue has the lock, or no longer wants it.
impl LocalQueues {
    /// The local queue has the lock (W11). The entries before ours did not react and are removed.
    pub(super) fn hold_through_queue(&mut self, cx: &mut Cx<'_>, key: &Key, token: LockToken) {
        let Some(number) = self.queues.entry_of(key) else {
            return;
        };
        let others = self.queues.others_of(key);
        let Some(entry) = self.entries.get_mut(number) else {
            return;
        };
        // Taking over from a sleeping waiter is no sign of a client that polls.
        let saw_held = std::mem::take(&mut entry.saw_held);
        let found_free = entry.last_round.is_some_and(|by| by != StartedBy::Notification);
        if found_free && saw_held && entry.seat.phase == Phase::Queued(0) {
            self.queues.note_pollers(cx.now, key);
        }
        (entry.held, entry.check_at) = (Some(token), None);
        (entry.backoff.refused_rounds, entry.free_since, entry.watch.change_is_ambiguous) =
            (0, None, false);
        entry.backoff.refused = NodeSet::EMPTY;
        (entry.last_round, entry.has_to_ask) = (None, false);
        entry.watch.forget();
        entry.watch.end_pauses();
        if entry.quota == Quota::NotYet {
            let others = u32::try_from(others).unwrap_or(QUOTA_MAX);
            entry.quota = Quota::Left(others.min(QUOTA_MAX));
        }
        // At a queue node that does not list the local queue yet, no client is known to sleep.
        let listed_at = entry.seat.node.filter(|node| entry.seat.nodes.contains(*node));
        if let Some(queue_node) = listed_at.filter(|_| entry.seat.phase != Phase::Queued(0)) {
            entry.seat.phase = Phase::Queued(0);
            self.desk.stats.skipped += 1;
            self.step_out(cx, queue_node, key.clone(), Step::ToFront);
        }
    }

    /// The local queue has lost its position to a visit, and waits behind the others.
    pub(crate) fn requeue(&mut self, cx: &mut Cx<'_>, key: &Key, token: LockToken) {
        if !self.requeue_behind(cx, key) {
            self.call_first(cx, key, token);
        }
    }

    /// How to release it if no visit asks for it.
    #[inline(never)]
    pub(super) fn plan_for(&mut self, cx: &mut Cx<'_>, key: &Key, token: LockToken) -> ReleasePlan {
        if !self.desk.is_on() || self.queues.holder_of(key) != Some(token) {
            return ReleasePlan::USUAL;
        }
        let is_awaited = self.queues.first_of(key).is_some();
        let number = self.queues.entry_of(key);
        // After `QUOTA_MAX` locks without having queued, notify waiters on every node.
        let is_counted = is_awaited || number.is_none() && self.queues.end_grants_if_many(key);
        let Some(entry) = number.and_then(|number| self.entries.get_mut(number)) else {
            // No other client is known to wait: count, if this local queue is about to take it
            // again or has taken it many times.
            return match is_counted && self.desk.has_channel(cx) {
                true if is_awaited => {
                    ReleasePlan { nodes: self.counted_node(cx, key), ..ReleasePlan::USUAL }
                }
                true => {
                    // A node that has refused this engine for now may be the queue node of others.
                    let queue_nodes = cx.nodes.open().without(self.queues.excluded_for_good(key));
                    ReleasePlan { nodes: queue_nodes, notify: Notify::Next, ..ReleasePlan::USUAL }
                }
                false => ReleasePlan::USUAL,
            };
        };
        let queue_node = entry.seat.node.map_or(NodeSet::EMPTY, NodeSet::one);
        match entry.quota {
            // No other client waits in its queue, but one might wait in another.
            Quota::Unlimited if is_awaited => {
                ReleasePlan { nodes: self.counted_node(cx, key), ..ReleasePlan::USUAL }
            }
            Quota::Left(left @ 1..) if is_awaited => {
                entry.quota = Quota::Left(left - 1);
                ReleasePlan { nodes: queue_node, ..ReleasePlan::USUAL }
            }
            Quota::NotYet | Quota::Unlimited | Quota::Left(_) => {
                let mut queue_nodes = entry.seat.nodes;
                queue_nodes.extend(queue_node);
                queue_nodes.extend(entry.other_queues);
                self.desk.stats.notifications_sent += 1;
                // Waiters have moved away from an overloaded node: notify the next candidate as
                // well.
                if !queue_node.iter().any(|node| may_pass_on(cx.nodes, node))
                    && self.desk.has_channel(cx)
                {
                    let next = self.desk.choice(cx).likeliest(cx.now, key);
                    queue_nodes.extend(next.map_or(NodeSet::EMPTY, NodeSet::one));
                }
                ReleasePlan { nodes: queue_nodes, notify: Notify::Next, ..ReleasePlan::USUAL }
            }
        }
    }

    /// The node to count at next: in turn each that other clients may see as the queue node.
    pub(super) fn counted_node(&mut self, cx: &mut Cx<'_>, key: &Key) -> NodeSet {
        let (looks, excluded) = (self.queues.note_look(key), self.queues.excluded(cx.now, key));
        let may_be =
            |node: usize| self.desk.choice(cx).may_release_at(node) && !excluded.contains(node);
        let queue_node = self.desk.choice(cx).rotated(cx.now, key, looks, may_be);
        queue_node.map_or(NodeSet::EMPTY, NodeSet::one)
    }

    /// The lock was released to the next client: the local queue queues up behind it, or leaves
    /// (W13). Returns whether its first waits there.
    pub(super) fn queue_after_release(&mut self, cx: &mut Cx<'_>, key: &Key) -> bool {
        // A series has ended: the answers say whether others wait.
        let Some(number) = self.queues.entry_of(key) else {
            return false;
        };
        self.entries.remove(number);
        self.queues.set_entry(key, None);
        self.requeue_behind(cx, key)
    }

    /// The local queue, which has no position, waits behind the others. Returns whether its first
    /// does.
    pub(super) fn requeue_behind(&mut self, cx: &mut Cx<'_>, key: &Key) -> bool {
        self.queues.set_contended(key, cx.now.after(CONTENDED_FOR), None);
        let first = self.queues.waiting_first(key).filter(|first| cx.now < first.give_up_at);
        if let Some(who) = first {
            self.queue_up_behind(cx, who, key);
        }
        first.is_some()
    }

    /// A queue node has reported the length of its queue (W7, W13).
    fn note_left(&mut self, cx: &mut Cx<'_>, node: usize, key: &Key, left: u64) {
        let number = self.queues.entry_of(key);
        if let Some(entry) = number.and_then(|number| self.entries.get_mut(number)) {
            let others = left - left.min(u64::from(entry.seat.nodes.contains(node)));
            match others > 0 && entry.seat.node != Some(node) {
                true => entry.other_queues.insert(node),
                false => entry.other_queues.remove(node),
            }
            entry.quota = match (entry.quota, others) {
                (Quota::NotYet, _) => Quota::NotYet,
                // Others wait elsewhere.
                (quota, 0) if !entry.other_queues.is_empty() => quota,
                (_, 0) => Quota::Unlimited,
                (Quota::Left(left), _) => Quota::Left(left),
                (Quota::Unlimited, _) => Quota::Left(QUOTA_MAX),
            };
            return;
        }
        let is_local_queue =
            self.queues.first_of(key).is_some() || self.queues.holder_of(key).is_some();
        if left > 0 && is_local_queue {
            let mut entry = QueueEntry::new(key.clone(), cx.now);
            let left = if self.queues.others_of(key) > 0 { QUOTA_MAX } else { 0 };
            (entry.seat.node, entry.quota) = (Some(node), Quota::Left(left));
            entry.held = self.queues.holder_of(key);
            let number = self.entries.insert(entry);
            self.queues.set_entry(key, Some(number));
        } else {
            match left > 0 {
                true => self.queues.set_contended(key, cx.now.after(CONTENDED_FOR), Some(node)),
                false => self.queues.clear_contended(cx.now, key, node),
            }
        }
    }

    /// The release at a queue node was answered. Returns the answer to the release itself; `None`
    /// if the queue node gets the usual release at once, because it has refused this one.
    pub(crate) fn handle_queue_release(
        &mut self,
        cx: &mut Cx<'_>,
        node: usize,
        key: &Key,
        reply: Reply,
    ) -> Option<Reply> {
        Some(match reply {
            Reply::ReleasedAtQueue { released, waiting } => {
                match waiting {
                    Some(waiting) => self.note_left(cx, node, key, waiting),
                    None => {
                        self.queues.exclude(cx.now, key, node, Exclusion::ForNow);
                        if let Some(number) = self.queues.entry_of(key) {
                            self.exclude(cx, node, number, Exclusion::ForNow);
                        }
                    }
                }
                Reply::Integer(released.into())
            }
            Reply::Error(error) if cx.nodes.open().contains(node) => {
                self.desk.stats.server_errors += 1;
                let lasts = is_forbidden(error.kind);
                cx.nodes[node].keep_error(error);
                if lasts {
                    self.cannot_wait(cx, node, QueueObstacle::Queue);
                }
                return None;
            }
            reply => reply,
        })
    }
}
