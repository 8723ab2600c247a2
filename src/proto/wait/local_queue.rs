//! Queues of waiting acquisitions: those of one engine that wait for the same resource queue in the
//! order of their arrival, and only the first asks the nodes.
//!
//! While a previous member of the queue holds the lock, the first one does not ask either. It
//! starts right after the release, on the same connections, or when the lock's validity ends. So
//! passing a lock on within a client costs one acquisition and one release each. An acquisition of
//! exactly one round does not queue.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, DefaultHasher, Hasher};
use std::mem;
use std::time::Duration;

use super::consecutive_grants::ConsecutiveGrants;
use super::entry::QUOTA_MAX;
use super::{Cx, LocalQueues, WaitOrder};
use crate::lock_error::LockError;
use crate::moment::Moment;
use crate::proto::failure::Failure;
use crate::proto::op_id::OpId;
use crate::quorum::NodeSet;
use crate::resource::{AskPolicy, Key};
use crate::token::LockToken;

/// From this many queues on, empty ones are removed before another is added.
const QUEUES_TIDY: usize = 256;
/// A node that refuses a position by an error that passes is asked for one again after this time.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Clients that poll are believed to want a lock for so long after one of them had it.
const POLLERS_FOR: Duration = Duration::from_secs(1);

/// An acquisition that waits, and until when at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitingOp {
    pub(crate) id: OpId,
    pub(crate) give_up_at: Moment,
}

/// How an acquisition has left its queue.
#[derive(Default)]
pub(crate) struct Departure {
    /// The lock that it has got, and until when that is valid.
    pub(crate) got: Option<(LockToken, Moment)>,
    /// Reports of its last round, if later acquisitions need them.
    pub(crate) report: Option<(Failure, LockError)>,
    /// Whether it was waiting until now.
    pub(crate) was_waiting: bool,
}

/// The one of a queue that asks the nodes.
struct First {
    who: WaitingOp,
    /// Whether it waits: no round of it is in flight, and it has no result.
    is_waiting: bool,
    /// The rounds that it has made.
    attempts: u32,
}

impl First {
    fn new(who: WaitingOp, is_waiting: bool) -> First {
        First { who, is_waiting, attempts: 0 }
    }
}

pub(crate) struct Queues {
    by_key: HashMap<Key, Queue, Keyed>,
    /// The number of queues that triggers the next removal.
    tidy_at: usize,
}

#[derive(Default)]
struct Queue {
    /// The token of the current lock, and until when it is valid.
    holder: Option<(LockToken, Moment)>,
    first: Option<First>,
    others: VecDeque<WaitingOp>,
    /// Those that have ended since `others` was last tidied: they are skipped when their turn
    /// comes, or removed when they are many.
    gone: BTreeSet<OpId>,
    /// Reports of this queue's last complete round.
    report: Option<(Failure, LockError)>,
    /// The number of its entry in the queues on the masters, if it has one.
    entry: Option<u32>,
    /// Until then, others are believed to wait on the masters (W7); and the node that said so.
    contended: Option<(Moment, Option<usize>)>,
    /// Its locks since it last left the masters to others (W13).
    grants: ConsecutiveGrants,
    /// Until then, clients that poll are believed to want the lock; and until when the local queue
    /// leaves it to them.
    pollers_until: Option<Moment>,
    yields: Option<Moment>,
    excluded: Option<Box<ExcludedNodes>>,
}

/// The nodes that are no queue node of a key.
#[derive(Default)]
struct ExcludedNodes {
    /// The queue's key has another type there.
    for_good: NodeSet,
    /// They refused a position or a watch a short time ago, and may give one later.
    for_now: NodeSet,
    until: Option<Moment>,
}

/// For how long a node is no queue node of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exclusion {
    ForGood,
    ForNow,
}

impl Queues {
    pub(super) fn new(key: u64) -> Queues {
        Queues { by_key: HashMap::with_hasher(Keyed(key)), tidy_at: QUEUES_TIDY }
    }

    pub(super) fn has_any(&self) -> bool {
        !self.by_key.is_empty()
    }

    /// How many acquisitions the queues list. Those that have ended count until they are removed.
    pub(super) fn waiting(&self) -> usize {
        let waiting = |queue: &Queue| usize::from(queue.first.is_some()) + queue.others.len();
        self.by_key.values().map(waiting).sum()
    }

    /// Locks that went to other clients, were dropped or not released leave empty queues. Returns
    /// the entries that nothing needs.
    fn tidy(&mut self, now: Moment) -> Vec<u32> {
        let mut entries = Vec::new();
        if self.by_key.len() >= self.tidy_at {
            self.by_key.retain(|_, queue| {
                let is_kept = queue.is_needed(now);
                entries.extend(queue.entry.filter(|_| !is_kept));
                is_kept
            });
            self.tidy_at = (2 * self.by_key.len()).max(QUEUES_TIDY);
        }
        entries
    }

    /// Forgets a queue without a member, a lock or known contention.
    fn drop_idle(&mut self, now: Moment, key: &Key) {
        // Few are kept for the series's sake alone, so that many keys need no more memory.
        if self.by_key.len() > QUEUES_TIDY {
            if let Some(queue) = self.by_key.get_mut(key) {
                queue.grants.forget_pause();
            }
        }
        let is_idle = |queue: &&Queue| !queue.is_needed(now) && queue.entry.is_none();
        if self.by_key.get(key).filter(is_idle).is_some() {
            self.by_key.remove(key);
        }
    }

    /// A lock was extended: no acquisition needs to ask before the new deadline.
    pub(crate) fn hold_longer(&mut self, key: &Key, token: LockToken, deadline: Moment) {
        let holder = self.by_key.get_mut(key).and_then(|queue| queue.holder.as_mut());
        if let Some((_, until)) = holder.filter(|(holder, _)| *holder == token) {
            *until = deadline;
        }
    }

    pub(crate) fn asks_for_others(&self, id: OpId, key: &Key) -> bool {
        let asks = |queue: &Queue| queue.is_first(id) && !queue.others.is_empty();
        self.by_key.get(key).is_some_and(asks)
    }

    /// A round of the acquisition that asks has failed, and another follows.
    pub(crate) fn note_report(&mut self, key: &Key, report: (Failure, LockError)) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.report = Some(report);
        }
    }

    /// Those that wait behind the first.
    pub(crate) fn others_mut(&mut self, key: &Key) -> impl Iterator<Item = &mut WaitingOp> {
        self.by_key.get_mut(key).into_iter().flat_map(|queue| &mut queue.others)
    }

    /// Reports of this queue's last complete round.
    pub(crate) fn report_of(&self, key: &Key) -> Option<&(Failure, LockError)> {
        self.by_key.get(key)?.report.as_ref()
    }
}

/// Positions in the queues on the masters.
impl Queues {
    pub(super) fn entry_of(&self, key: &Key) -> Option<u32> {
        self.by_key.get(key)?.entry
    }

    pub(super) fn set_entry(&mut self, key: &Key, entry: Option<u32>) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.entry = entry;
        }
    }

    /// The nodes that are no queue node of this key now.
    pub(super) fn excluded(&self, now: Moment, key: &Key) -> NodeSet {
        let mut nodes = self.excluded_for_now(now, key);
        nodes.extend(self.excluded_for_good(key));
        nodes
    }

    /// The nodes that never are one.
    pub(super) fn excluded_for_good(&self, key: &Key) -> NodeSet {
        let excluded = self.by_key.get(key).and_then(|queue| queue.excluded.as_ref());
        excluded.map_or(NodeSet::EMPTY, |excluded| excluded.for_good)
    }

    /// The nodes that have refused a wait for this key a short time ago.
    pub(super) fn excluded_for_now(&self, now: Moment, key: &Key) -> NodeSet {
        let excluded = self.by_key.get(key).and_then(|queue| queue.excluded.as_ref());
        let excluded = excluded.filter(|excluded| excluded.until.is_some_and(|until| now < until));
        excluded.map_or(NodeSet::EMPTY, |excluded| excluded.for_now)
    }

    pub(super) fn exclude(&mut self, now: Moment, key: &Key, node: usize, how: Exclusion) {
        let Some(queue) = self.by_key.get_mut(key) else {
            return;
        };
        let excluded = queue.excluded.get_or_insert_default();
        match how {
            Exclusion::ForGood => excluded.for_good.insert(node),
            Exclusion::ForNow => {
                if excluded.until.is_none_or(|until| now >= until) {
                    excluded.for_now = NodeSet::EMPTY;
                }
                excluded.for_now.insert(node);
                excluded.until = Some(now.after(REFUSED_FOR));
            }
        }
    }

    /// Others are believed to wait on the masters until then, because this node has said so.
    pub(super) fn set_contended(&mut self, key: &Key, until: Moment, node: Option<usize>) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.contended = Some((until, node));
            queue.grants.note_others();
        }
    }

    /// This node's queue is empty. A mark that another node has set stays.
    pub(super) fn clear_contended(&mut self, now: Moment, key: &Key, node: usize) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.contended.take_if(|(_, by)| by.is_none_or(|by| by == node));
        }
        self.drop_idle(now, key);
    }

    pub(crate) fn first_of(&self, key: &Key) -> Option<OpId> {
        self.by_key.get(key)?.first.as_ref().map(|first| first.who.id)
    }

    /// The first, unless a round of it is in flight or it has a result.
    pub(super) fn waiting_first(&self, key: &Key) -> Option<WaitingOp> {
        let first = self.by_key.get(key)?.first.as_ref();
        first.filter(|first| first.is_waiting).map(|first| first.who)
    }

    /// How many rounds the first has made.
    pub(super) fn attempts_of(&self, key: &Key) -> u32 {
        let first = self.by_key.get(key).and_then(|queue| queue.first.as_ref());
        first.map_or(0, |first| first.attempts)
    }

    /// The first has made so many rounds, and waits from now on.
    pub(super) fn pause(&mut self, key: &Key, id: OpId, attempts: u32) {
        if let Some(first) = self.first_mut(key, id) {
            (first.is_waiting, first.attempts) = (true, attempts);
        }
    }

    /// The first waits no longer.
    pub(super) fn stop(&mut self, key: &Key, id: OpId) {
        if let Some(first) = self.first_mut(key, id) {
            first.is_waiting = false;
        }
    }

    fn first_mut(&mut self, key: &Key, id: OpId) -> Option<&mut First> {
        let first = self.by_key.get_mut(key)?.first.as_mut();
        first.filter(|first| first.who.id == id)
    }

    /// How many wait behind the first, those included that have ended.
    pub(super) fn others_of(&self, key: &Key) -> usize {
        self.by_key.get(key).map_or(0, |queue| queue.others.len())
    }

    pub(super) fn holder_of(&self, key: &Key) -> Option<LockToken> {
        self.by_key.get(key)?.holder.map(|(holder, _)| holder)
    }

    /// The lock is given up. If pollers are believed to want it, the local queue leaves it to them
    /// for an overtake delay.
    pub(super) fn note_given_up(&mut self, cx: &Cx<'_>, key: &Key, token: LockToken) {
        let Some(queue) = self.by_key.get_mut(key) else {
            return;
        };
        queue.holder.take_if(|(holder, _)| *holder == token);
        queue.grants.note_given_up(cx.now);
        if queue.pollers_until.is_some_and(|until| cx.now < until) {
            queue.yields = Some(cx.now.after(cx.overtake_delay()));
        }
    }

    /// The lock was released without a notification: a client that polls may want it.
    pub(super) fn note_pollers(&mut self, now: Moment, key: &Key) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.pollers_until = Some(now.after(POLLERS_FOR));
        }
    }

    /// Until when the local queue leaves the lock to others, after it has had it (W7). An
    /// acquisition whose patience ends before that asks at once.
    pub(super) fn yields_until(&self, now: Moment, key: &Key, who: WaitingOp) -> Option<Moment> {
        self.by_key.get(key)?.yields_until(now, who)
    }

    /// The local queue looks for others. Returns how often it did before.
    pub(super) fn note_look(&mut self, key: &Key) -> usize {
        self.by_key.get_mut(key).map_or(0, |queue| queue.grants.note_look())
    }

    /// Whether the local queue has taken the lock so often in a row that it is time to look whether
    /// others wait for it (W13). Then a new series begins.
    pub(super) fn end_grants_if_many(&mut self, key: &Key) -> bool {
        self.by_key.get_mut(key).is_some_and(|queue| queue.grants.end_if_many(QUOTA_MAX))
    }
}

impl Queue {
    fn is_first(&self, id: OpId) -> bool {
        self.first.as_ref().is_some_and(|first| first.who.id == id)
    }

    fn yields_until(&self, now: Moment, who: WaitingOp) -> Option<Moment> {
        self.yields.filter(|until| now < *until && *until < who.give_up_at)
    }

    fn is_contended(&self, now: Moment) -> bool {
        self.contended.is_some_and(|(until, _)| now < until)
    }

    /// Whether it says something that a later acquisition has to know.
    fn is_needed(&self, now: Moment) -> bool {
        let is_contended = self.is_contended(now);
        let has_grants = self.grants.is_going_on(now);
        let has_members = self.first.is_some() || !self.others.is_empty();
        has_members || is_contended || has_grants || self.held_until(now).is_some()
    }

    /// The end of the current lock's validity: until then no acquisition needs to ask.
    fn held_until(&self, now: Moment) -> Option<Moment> {
        self.holder.map(|(_, deadline)| deadline).filter(|deadline| now < *deadline)
    }
}

/// Names may come from outside: a secret seed keeps attackers from choosing names that collide.
struct Keyed(u64);

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

/// The acquisitions of one key.
impl LocalQueues {
    /// Whether anything is known of any key.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.queues.has_any()
    }

    /// A new acquisition joins the queue for its key. Returns whether its first round may start
    /// now; if not, an order will say when.
    pub(crate) fn join(&mut self, cx: &mut Cx<'_>, key: &Key, who: WaitingOp) -> bool {
        for entry in self.queues.tidy(cx.now) {
            self.entries.remove(entry);
        }
        let Some(queue) = self.queues.by_key.get_mut(key) else {
            let queue = Queue { first: Some(First::new(who, false)), ..Queue::default() };
            self.queues.by_key.insert(key.clone(), queue);
            return true;
        };
        if queue.first.is_some() {
            queue.others.push_back(who);
            self.desk.sleep_until(who, who.give_up_at);
            return false;
        }
        let held_until = queue.held_until(cx.now);
        let lets_others = queue.is_contended(cx.now) || queue.yields_until(cx.now, who).is_some();
        queue.first = Some(First::new(who, held_until.is_some() || lets_others));
        match held_until {
            Some(held_until) => self.desk.sleep_until(who, held_until),
            // Others wait on the masters, and an acquisition that tried at once would always come
            // before those that are notified (W7).
            None if lets_others => self.queue_up_behind(cx, who, key),
            None => return true,
        }
        false
    }

    /// The moment has come that was ordered last for this acquisition, which waits: it starts, or
    /// sleeps on.
    pub(crate) fn due(&mut self, cx: &mut Cx<'_>, key: &Key, who: WaitingOp) {
        if self.handle_entry_due(cx, key, who) {
            return;
        }
        let queue = self.queues.by_key.get(key);
        match queue.and_then(|queue| queue.held_until(cx.now)) {
            // The lock was extended meanwhile.
            Some(held_until) => self.desk.sleep_until(who, held_until),
            None => self.start(key, who),
        }
    }

    pub(super) fn start(&mut self, key: &Key, who: WaitingOp) {
        self.queues.stop(key, who.id);
        self.desk.orders.push_back(WaitOrder::Start(who.id));
    }

    /// The acquisition has ended. The next one waits until the lock that was taken has expired, or
    /// starts if none was taken.
    pub(crate) fn leave(
        &mut self,
        cx: &mut Cx<'_>,
        key: &Key,
        id: OpId,
        Departure { got, report, was_waiting }: Departure,
    ) {
        let Some(queue) = self.queues.by_key.get_mut(key) else {
            return;
        };
        if got.is_some() {
            (queue.holder, queue.report) = (got, None);
            queue.grants.note_got(cx.now);
        }
        if queue.is_first(id) {
            queue.first = None;
            queue.report = report.or(queue.report.take());
            if let (Some((token, _)), Some(_)) = (got, queue.entry) {
                self.hold_through_queue(cx, key, token);
            }
            return self.call_next(cx, key, was_waiting);
        }
        queue.gone.insert(id);
        if 2 * queue.gone.len() > queue.others.len() {
            let gone = mem::take(&mut queue.gone);
            queue.others.retain(|other| !gone.contains(&other.id));
        }
    }

    /// Promotes the next waiter if there is no first. It inherits the position of the one before
    /// it; if that one was waiting there, nothing else changes (W12).
    fn call_next(&mut self, cx: &mut Cx<'_>, key: &Key, was_waiting: bool) {
        let Some(queue) = self.queues.by_key.get_mut(key) else {
            return;
        };
        let held_until = queue.held_until(cx.now);
        let Queue { others, gone, .. } = queue;
        while others.front().is_some_and(|other| gone.remove(&other.id)) {
            others.pop_front();
        }
        // One whose patience has ended will get its result without asking, and leaves then.
        let next = |other: &WaitingOp| !gone.contains(&other.id) && cx.now < other.give_up_at;
        let next = others.iter().position(next).and_then(|at| others.remove(at));
        let Some(who) = next else {
            if held_until.is_none() {
                self.leave_entry_of(cx, key);
                self.queues.drop_idle(cx.now, key);
            }
            return;
        };
        queue.first = Some(First::new(who, true));
        match (held_until, queue.entry) {
            (Some(held_until), _) => self.desk.sleep_until(who, held_until),
            (None, Some(entry)) if self.inherit(cx, who, entry, was_waiting) => {}
            (None, _) => self.start(key, who),
        }
    }

    /// A lock was given up, and its release is queued to be sent: the first in the queue starts
    /// after it.
    pub(super) fn call_first(&mut self, cx: &mut Cx<'_>, key: &Key, token: LockToken) {
        let Some(queue) = self.queues.by_key.get_mut(key) else {
            return;
        };
        queue.holder.take_if(|(holder, _)| *holder == token);
        let held_until = queue.held_until(cx.now);
        if queue.first.is_none() {
            return self.queues.drop_idle(cx.now, key);
        }
        let first = self.queues.waiting_first(key).filter(|first| cx.now < first.give_up_at);
        if let (None, Some(who)) = (held_until, first) {
            self.start(key, who);
        }
    }
}

/// Changes of a lock that this engine holds.
impl LocalQueues {
    /// This engine will not say when the lock is free: the first that waits for it here looks for
    /// itself, and the queues on the masters move on.
    pub(crate) fn hold_no_longer(&mut self, cx: &mut Cx<'_>, key: &Key, token: LockToken) {
        self.call_first(cx, key, token);
        if self.queues.first_of(key).is_none() {
            self.leave_entry_of(cx, key);
        }
    }

    /// If this is a share, the lock may have been held alone, and waited for (K7): its release will
    /// be that of a share, and notify no waiter.
    pub(crate) fn leave_held(&mut self, cx: &mut Cx<'_>, key: &Key, token: LockToken) {
        if key.row().asks != AskPolicy::All {
            return;
        }
        for alone in key.alone() {
            if self.queues.holder_of(&alone) == Some(token) {
                self.hold_no_longer(cx, &alone, token);
            }
        }
    }
}

/// Figures of waiting acquisitions.
impl LocalQueues {
    /// How many acquisitions wait, and how many places and commands about them there are.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.queues.waiting(), self.entries.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resource;

    #[test]
    fn idle_queues_are_removed() {
        let mut queues = Queues::new(7);
        let (deadline, token) = (Moment::from_nanos(10), LockToken::from_random([1; 20]));
        for i in 0..2 * QUEUES_TIDY {
            let key = Key::new(Resource::new(i.to_string()).unwrap(), b"");
            let holder = (i % 2 == 0).then_some((token, deadline));
            assert!(queues.tidy(Moment::from_nanos(0)).is_empty());
            queues.by_key.insert(key, Queue { holder, ..Queue::default() });
        }
        let valid = queues.by_key.values().filter(|queue| queue.holder.is_some()).count();
        assert_eq!(valid, QUEUES_TIDY, "what is held is kept");
        assert!(queues.by_key.len() < 2 * QUEUES_TIDY);
        queues.tidy_at = queues.by_key.len();
        queues.tidy(deadline);
        assert!(queues.by_key.is_empty());
    }

    /// Without the seed, names that collide cannot be chosen.
    #[test]
    fn hash_depends_on_the_seed() {
        let hash = |seed| Keyed(seed).hash_one("invoice:42");
        assert!(hash(1) == hash(1) && hash(1) != hash(2));
    }
}
