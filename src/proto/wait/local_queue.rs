//! Queues of waiting acquisitions: those of one engine that wait for the same resource queue in the
//! order of their arrival, and only the first asks the nodes.
//!
//! While a previous member of the queue holds the lock, the first one does not ask either. It
//! starts right after the release, on the same connections, or when the lock's validity ends. So
//! passing a lock on within a client costs one acquisition and one release each. An acquisition of
//! exactly one round does not queue.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, DefaultHasher, Hasher};
use std::mem;
use std::time::Duration;

use super::entry::TURN_MAX;
use super::row::Row;
use crate::error::LockError;
use crate::moment::Moment;
use crate::proto::Engine;
use crate::proto::failure::Failure;
use crate::proto::op_id::OpId;
use crate::proto::operation::{Last, Progress, Task};
use crate::quorum::NodeSet;
use crate::resource::Resource;
use crate::token::LockToken;

/// From this many queues on, empty ones are removed before another is added.
const QUEUES_TIDY: usize = 256;
/// A node that refuses a place by an error that passes is asked for one again after this time.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Clients that stand in no queue are believed to want a lock for so long after one had it.
const STRANGERS_FOR: Duration = Duration::from_secs(1);

pub(in crate::proto) struct Queues {
    by_key: HashMap<Resource, Queue, Keyed>,
    /// The number of queues that triggers the next removal.
    tidy_at: usize,
}

#[derive(Default)]
struct Queue {
    /// The token of the current lock, and until when it is valid.
    holder: Option<(LockToken, Moment)>,
    first: Option<OpId>,
    others: VecDeque<OpId>,
    /// How many of `others` have ended: they are skipped when their turn comes, or removed when
    /// they are many.
    gone: usize,
    /// What the nodes said to the acquisition that asks for the others, or to one before it, in the
    /// last round that was not cut off.
    report: Option<(Failure, LockError)>,
    /// The number of its stand in the queues on the masters, if it has one.
    stand: Option<u32>,
    /// Until then, others are believed to wait on the masters (W7); and the node that said so.
    crowd: Option<(Moment, Option<usize>)>,
    /// Its locks since it last left the masters to others (W13).
    row: Row,
    /// Until then, clients that stand in no queue are believed to want the lock; and until when the
    /// line leaves it to them.
    strangers: Option<Moment>,
    yields: Option<Moment>,
    barred: Option<Box<Barred>>,
}

/// The nodes that are no gate of a key.
struct Barred {
    /// Something else stands in the place of its queue there.
    for_good: NodeSet,
    /// They refused a place or a watch a short time ago, and may give one later.
    for_now: NodeSet,
    until: Moment,
}

/// For how long a node is no gate of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bar {
    ForGood,
    ForNow,
}

impl Queues {
    pub(in crate::proto) fn new(key: u64) -> Queues {
        Queues { by_key: HashMap::with_hasher(Keyed(key)), tidy_at: QUEUES_TIDY }
    }

    pub(in crate::proto) fn has_any(&self) -> bool {
        !self.by_key.is_empty()
    }

    /// How many acquisitions the queues list. Those that have ended count until they are removed.
    pub(in crate::proto) fn waiting(&self) -> usize {
        let waiting = |queue: &Queue| usize::from(queue.first.is_some()) + queue.others.len();
        self.by_key.values().map(waiting).sum()
    }

    /// Locks that were handed on, dropped or not released leave empty queues. Returns the stands
    /// that nothing needs.
    fn tidy(&mut self, now: Moment) -> Vec<u32> {
        let mut stands = Vec::new();
        if self.by_key.len() >= self.tidy_at {
            self.by_key.retain(|_, queue| {
                let is_kept = queue.is_needed(now);
                stands.extend(queue.stand.filter(|_| !is_kept));
                is_kept
            });
            self.tidy_at = (2 * self.by_key.len()).max(QUEUES_TIDY);
        }
        stands
    }

    /// Forgets a queue without a member, a lock or a crowd.
    fn drop_idle(&mut self, now: Moment, key: &Resource) {
        // Few are kept for the row's sake alone, so that many keys need no more memory.
        if self.by_key.len() > QUEUES_TIDY {
            if let Some(queue) = self.by_key.get_mut(key) {
                queue.row.forget_pause();
            }
        }
        let is_idle = |queue: &&Queue| !queue.is_needed(now) && queue.stand.is_none();
        if self.by_key.get(key).filter(is_idle).is_some() {
            self.by_key.remove(key);
        }
    }

    /// A lock was extended: no acquisition needs to ask before the new deadline.
    pub(in crate::proto) fn hold_longer(
        &mut self,
        key: &Resource,
        token: LockToken,
        deadline: Moment,
    ) {
        let queue = self.by_key.get_mut(key);
        if let Some((holder, until)) = queue.and_then(|queue| queue.holder.as_mut()) {
            if *holder == token {
                *until = deadline;
            }
        }
    }

    fn asks_for_others(&self, id: OpId, key: &Resource) -> bool {
        let asks = |queue: &Queue| queue.first == Some(id) && !queue.others.is_empty();
        self.by_key.get(key).is_some_and(asks)
    }

    /// A round of the acquisition that asks has failed, and another follows.
    pub(in crate::proto) fn note_report(&mut self, key: &Resource, report: (Failure, LockError)) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.report = Some(report);
        }
    }

    /// What the nodes have said to this queue in the last whole round.
    pub(in crate::proto) fn report_of(&self, key: &Resource) -> Option<&(Failure, LockError)> {
        self.by_key.get(key)?.report.as_ref()
    }
}

/// Places in the queues on the masters.
impl Queues {
    pub(super) fn stand_of(&self, key: &Resource) -> Option<u32> {
        self.by_key.get(key)?.stand
    }

    pub(super) fn set_stand(&mut self, key: &Resource, stand: Option<u32>) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.stand = stand;
        }
    }

    /// The nodes that are no gate of this key now.
    pub(super) fn barred(&self, now: Moment, key: &Resource) -> NodeSet {
        let mut nodes = self.barred_for_now(now, key);
        nodes.extend(self.barred_for_good(key));
        nodes
    }

    /// The nodes that never are one.
    pub(super) fn barred_for_good(&self, key: &Resource) -> NodeSet {
        let barred = self.by_key.get(key).and_then(|queue| queue.barred.as_ref());
        barred.map_or(NodeSet::EMPTY, |barred| barred.for_good)
    }

    /// The nodes that have refused a wait for this key a short time ago.
    pub(super) fn barred_for_now(&self, now: Moment, key: &Resource) -> NodeSet {
        let barred = self.by_key.get(key).and_then(|queue| queue.barred.as_ref());
        let barred = barred.filter(|barred| now < barred.until);
        barred.map_or(NodeSet::EMPTY, |barred| barred.for_now)
    }

    pub(super) fn bar(&mut self, now: Moment, key: &Resource, node: usize, how: Bar) {
        let Some(queue) = self.by_key.get_mut(key) else {
            return;
        };
        let barred = queue.barred.get_or_insert_with(|| {
            let [for_good, for_now] = [NodeSet::EMPTY; 2];
            Box::new(Barred { for_good, for_now, until: now })
        });
        match how {
            Bar::ForGood => barred.for_good.insert(node),
            Bar::ForNow => {
                if now >= barred.until {
                    barred.for_now = NodeSet::EMPTY;
                }
                barred.for_now.insert(node);
                barred.until = now.after(REFUSED_FOR);
            }
        }
    }

    /// Others are believed to wait on the masters until then, because this node has said so.
    pub(super) fn set_crowd(&mut self, key: &Resource, until: Moment, node: Option<usize>) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.crowd = Some((until, node));
            queue.row.note_others();
        }
    }

    /// Nobody waits on this node: no news if it was another one that had said so.
    pub(super) fn clear_crowd(&mut self, now: Moment, key: &Resource, node: usize) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.crowd.take_if(|(_, by)| by.is_none_or(|by| by == node));
        }
        self.drop_idle(now, key);
    }

    pub(in crate::proto) fn first_of(&self, key: &Resource) -> Option<OpId> {
        self.by_key.get(key)?.first
    }

    /// How many wait behind the first, those included that have ended.
    pub(super) fn others_of(&self, key: &Resource) -> usize {
        self.by_key.get(key).map_or(0, |queue| queue.others.len())
    }

    pub(in crate::proto) fn holder_of(&self, key: &Resource) -> Option<LockToken> {
        self.by_key.get(key)?.holder.map(|(holder, _)| holder)
    }

    /// The lock is given up. Returns whether strangers are believed to want it.
    pub(in crate::proto) fn note_given_up(
        &mut self,
        now: Moment,
        key: &Resource,
        token: LockToken,
    ) -> bool {
        let Some(queue) = self.by_key.get_mut(key) else {
            return false;
        };
        queue.holder.take_if(|(holder, _)| *holder == token);
        queue.row.note_given_up(now);
        queue.strangers.is_some_and(|until| now < until)
    }

    /// The line leaves the lock to others until then.
    pub(in crate::proto) fn yield_until(&mut self, key: &Resource, until: Moment) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.yields = Some(until);
        }
    }

    /// The line got the lock when one gave it up that told nobody.
    pub(super) fn note_strangers(&mut self, now: Moment, key: &Resource) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.strangers = Some(now.after(STRANGERS_FOR));
        }
    }

    /// Until when the line leaves the lock to others, after it has had it (W7). Whose patience ends
    /// before that does not.
    pub(super) fn yields_until(
        &self,
        now: Moment,
        key: &Resource,
        give_up_at: Moment,
    ) -> Option<Moment> {
        self.by_key.get(key)?.yields_until(now, give_up_at)
    }

    /// The line looks for others. Returns how often it did before.
    pub(super) fn note_look(&mut self, key: &Resource) -> usize {
        self.by_key.get_mut(key).map_or(0, |queue| queue.row.note_look())
    }

    /// Whether the line has taken the lock so often in a row that it is time to look whether others
    /// wait for it (W13). Then a new row begins.
    pub(super) fn ends_row(&mut self, key: &Resource) -> bool {
        self.by_key.get_mut(key).is_some_and(|queue| queue.row.end_if_long(TURN_MAX))
    }
}

impl Queue {
    fn yields_until(&self, now: Moment, give_up_at: Moment) -> Option<Moment> {
        self.yields.filter(|until| now < *until && *until < give_up_at)
    }

    fn is_crowded(&self, now: Moment) -> bool {
        self.crowd.is_some_and(|(until, _)| now < until)
    }

    /// Whether it says something that a later acquisition has to know.
    fn is_needed(&self, now: Moment) -> bool {
        let is_crowded = self.is_crowded(now);
        let has_row = self.row.is_going_on(now);
        self.first.is_some() || is_crowded || has_row || self.held_until(now).is_some()
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

impl Engine {
    /// A new acquisition joins the queue for its key. Returns whether it may start now.
    pub(in crate::proto) fn join_line(
        &mut self,
        now: Moment,
        op: usize,
        key: &Resource,
        give_up_at: Moment,
    ) -> bool {
        let id = self.operations.id_of(op);
        for stand in self.queues.tidy(now) {
            self.stands.remove(stand);
        }
        let Some(queue) = self.queues.by_key.get_mut(key) else {
            let queue = Queue { first: Some(id), ..Queue::default() };
            self.queues.by_key.insert(key.clone(), queue);
            return true;
        };
        let held_until = queue.held_until(now);
        let start_at = match queue.first {
            Some(_) => {
                queue.others.push_back(id);
                give_up_at
            }
            None => {
                queue.first = Some(id);
                let yields = queue.yields_until(now, give_up_at).is_some();
                let is_crowded = queue.is_crowded(now);
                match held_until {
                    None if is_crowded || yields => {
                        self.join_crowd(now, op, key);
                        return false;
                    }
                    None => return true,
                    Some(held_until) => held_until.min(give_up_at),
                }
            }
        };
        if let Task::Acquire { last, .. } = &mut self.operations[op].task {
            *last = Some(Box::new(Last { key: key.clone(), report: None }));
        }
        self.operations.set_timer(op, start_at);
        false
    }

    /// Others wait on the masters, and an acquisition that tried at once would always come before
    /// those that are told (W7).
    pub(super) fn join_crowd(&mut self, now: Moment, op: usize, key: &Resource) {
        if let Task::Acquire { last, .. } = &mut self.operations[op].task {
            *last = Some(Box::new(Last { key: key.clone(), report: None }));
        }
        self.queue_up_behind(now, op, key);
    }

    /// The first in the queue is due to start. If the lock was extended meanwhile, it waits longer;
    /// returns whether it does.
    pub(in crate::proto) fn waits_longer(
        &mut self,
        now: Moment,
        op: usize,
        give_up_at: Moment,
    ) -> bool {
        let Task::Acquire { last: Some(last), .. } = &self.operations[op].task else {
            return false;
        };
        let queue = self.queues.by_key.get(&last.key);
        let Some(held_until) = queue.and_then(|queue| queue.held_until(now)) else {
            return false;
        };
        self.operations.set_timer(op, held_until.min(give_up_at));
        true
    }

    /// The acquisition has ended. The next one waits until the lock that was taken has expired, or
    /// starts if none was taken.
    pub(in crate::proto) fn leave_line(
        &mut self,
        now: Moment,
        op: usize,
        key: &Resource,
        got: Option<(LockToken, Moment)>,
    ) {
        let id = self.operations.id_of(op);
        let report = match (got, self.operations[op].progress) {
            (None, Progress::Failed(failure, Some(round)))
                if self.queues.asks_for_others(id, key) =>
            {
                Some(self.report_in(op, round, failure))
            }
            _ => None,
        };
        let Some(queue) = self.queues.by_key.get_mut(key) else {
            return;
        };
        if got.is_some() {
            (queue.holder, queue.report) = (got, None);
            queue.row.note_got(now);
        }
        let was_waiting = match self.operations[op].progress {
            Progress::Waiting => true,
            Progress::Failed(failure, None) => failure != Failure::NoEntropy,
            _ => false,
        };
        if queue.first == Some(id) {
            queue.first = None;
            queue.report = report.or(queue.report.take());
            if let (Some((token, _)), Some(_)) = (got, queue.stand) {
                self.hold_through_queue(now, key, token);
            }
            return self.call_next(now, key, was_waiting);
        }
        queue.gone += 1;
        if 2 * queue.gone > queue.others.len() {
            queue.gone = 0;
            let mut others = mem::take(&mut queue.others);
            others.retain(|other| *other != id && self.operations.lookup(*other).is_some());
            if let Some(queue) = self.queues.by_key.get_mut(key) {
                queue.others = others;
            }
        }
    }

    /// Promotes the next waiter if there is no first. It inherits the place of the one before it;
    /// if that one was waiting there, nothing else changes (W12).
    pub(super) fn call_next(&mut self, now: Moment, key: &Resource, was_waiting: bool) {
        let Some(queue) = self.queues.by_key.get_mut(key) else {
            return;
        };
        let held_until = queue.held_until(now);
        let mut others = mem::take(&mut queue.others);
        let next = std::iter::from_fn(|| others.pop_front()).find_map(|id| {
            let (op, give_up_at) = self.operations.patience_of(id)?;
            // An operation whose patience has ended will get its result without asking.
            (now < give_up_at).then_some((id, op, give_up_at))
        });
        let Some((id, op, give_up_at)) = next else {
            if held_until.is_none() {
                self.leave_stand_of(key);
                self.queues.drop_idle(now, key);
            }
            return;
        };
        let mut stand = None;
        if let Some(queue) = self.queues.by_key.get_mut(key) {
            (queue.first, queue.others) = (Some(id), others);
            stand = queue.stand;
        }
        match (held_until, stand) {
            (Some(held_until), _) => self.operations.set_timer(op, held_until.min(give_up_at)),
            (None, Some(stand)) if self.inherit(now, op, stand, was_waiting) => {}
            (None, _) => self.start_again(now, op),
        }
    }

    /// A lock was given up, and its release is queued to be sent: the first in the queue starts
    /// after it.
    pub(in crate::proto) fn call_first(&mut self, now: Moment, key: &Resource, token: LockToken) {
        let Some(queue) = self.queues.by_key.get_mut(key) else {
            return;
        };
        if queue.holder.is_some_and(|(holder, _)| holder == token) {
            queue.holder = None;
        }
        let held_until = queue.held_until(now);
        let Some(first) = queue.first else {
            return self.queues.drop_idle(now, key);
        };
        if let (None, Some((op, give_up_at))) = (held_until, self.operations.patience_of(first)) {
            let is_waiting = matches!(self.operations[op].progress, Progress::Waiting);
            if is_waiting && now < give_up_at {
                self.start_again(now, op);
            }
        }
    }

    /// What the nodes have said so far to the acquisition that asks for this queue.
    pub(in crate::proto) fn report_so_far(&self, key: &Resource) -> Option<(Failure, LockError)> {
        let op = self.operations.lookup(self.queues.by_key.get(key)?.first?)?;
        match self.operations[op].progress {
            Progress::Failed(failure, Some(round)) => Some(self.report_in(op, round, failure)),
            Progress::Voting(round) => {
                let failure = self.rounds.cut_off(round);
                Some(self.report_in(op, round, failure))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_stands_in_are_not_kept_for_ever() {
        let mut queues = Queues::new(7);
        let (deadline, token) = (Moment::from_nanos(10), LockToken::from_random([1; 20]));
        for i in 0..2 * QUEUES_TIDY {
            let key = Resource::new(i.to_string()).unwrap();
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

    /// Who does not know the seed does not know which names collide.
    #[test]
    fn hash_depends_on_the_seed() {
        let hash = |seed| Keyed(seed).hash_one("invoice:42");
        assert!(hash(1) == hash(1) && hash(1) != hash(2));
    }
}
