//! Positions of other kinds of lock in the queues for plain ones (K9): a *visit* for each plain key
//! that refuses such acquisitions.
//!
//! A visit decides when to try, and nothing else: an acquisition that waits there also asks again
//! after random delays.
//!
//! An acquisition that is always granted has no visit. After a series of such locks, the next one
//! takes a position before it asks, so that the clients in the queue come first (W13).

use std::collections::BTreeMap;

use super::consecutive_grants::GrantsByName;
use super::entry::{CONTENDED_FOR, OVERTAKE_DELAYS_MAX, POSITION_NONE, QUOTA_MAX, Quota};
use super::local_queue::WaitingOp;
use super::{AfterRelease, Cx, WaitOrder, WaitQueues};
use crate::moment::Moment;
use crate::proto::command::{Expiry, Step, Wakeup};
use crate::proto::op_id::OpId;
use crate::proto::request::WaitCommand;
use crate::proto::status::QueueSupport;
use crate::proto::timer::between;
use crate::quorum::NodeSet;
use crate::resource::{AskPolicy, Key, QueueOf};
use crate::token::LockToken;

/// The most visits of an engine, and the most acquisitions of one. More ask after delays alone.
const VISITS_MAX: usize = 64;
const MEMBERS_MAX: usize = 128;
/// An acquisition that was notified so often in a row, and was refused, queues up again after a
/// delay.
const IN_VAIN_MAX: u32 = 4;
/// An acquisition that is refused more often than this, although it is the first of its queue
/// node's queue, looks for a position at another node: clients that see other candidates wait
/// there.
const ALONE_MAX: u32 = 1;

/// An acquisition that queues up before it asks, or that has left the queue, asks after this many
/// overtake delays at the latest.
const ASK_DELAYS: u32 = 8;
/// With less patience than so many overtake delays, it asks at once.
const SHORT_DELAYS: u32 = 2;
/// Of a set, positions are asked for in the queues of so many keys at most: at the end of a series,
/// and while it is alone in each.
const LOOKS_MAX: usize = 4;

/// One place in the queue for a plain key.
struct QueueVisit {
    key: Key,
    /// The acquisitions that wait for it, and which of them may share the lock.
    members: Vec<(OpId, AskPolicy)>,
    node: Option<usize>,
    /// Its position, as last reported.
    position: Option<u32>,
    /// Whether the queue node's queue lists it, or is about to.
    is_listed: bool,
    /// Whether it was notified, and no round has ended since.
    is_notified: bool,
    /// How often in a row it was notified in vain.
    in_vain: u32,
    /// The lock that it got after a notification, and until when it is valid: it keeps the
    /// position.
    held: Option<(LockToken, Moment)>,
    /// AfterRefusal rounds in a row since its queue node said that its position is the first.
    alone: u32,
    /// Why its position is asked for, if a series has ended.
    look: Option<(OpId, Look)>,
    left_out: LeftOut,
    /// Until then, others are believed to wait on the masters.
    contended_until: Option<Moment>,
    /// Plain locks that this engine's local queue has released since one of these was last let in.
    passed_by: u32,
    /// Whether its position was that of the local queue, whose turn was over.
    is_inherited: bool,
}

/// The nodes where it takes no position. With all of them left out, it begins again.
#[derive(Default)]
struct LeftOut {
    /// Those that gave none.
    excluded: NodeSet,
    /// Those where other clients do not seem to wait.
    alone_at: NodeSet,
    /// The latter when its position is not at the first candidate: it returns there after each
    /// other node.
    passed: NodeSet,
}

/// At the end of a series: whether other clients wait for one of the keys. If not, the acquisition
/// asks.
#[derive(Clone, Copy)]
struct Look {
    /// How many series have ended.
    ended: usize,
    /// The key to look at, and how many come after it.
    key: usize,
    left: usize,
    /// Whether it stays where it finds others: any of the keys will do.
    is_any: bool,
    /// Whether others wait for a key that it has looked at.
    has_found: bool,
}

/// An acquisition that waits, at most until then, and how often it has asked.
struct Waiting {
    give_up_at: Moment,
    attempts: u32,
}

/// The next step after a refused round.
#[derive(Debug, PartialEq, Eq)]
enum AfterRefusal {
    /// Its position is asked for.
    Queue,
    /// It was notified: it leaves the position to others, and then queues up behind them.
    PassOn,
    /// As before, but it queues up after its next refused round.
    PassOnAndPause,
}

/// The visits, by a number that is none of an entry.
#[derive(Default)]
pub(crate) struct QueueVisits {
    open: BTreeMap<u32, QueueVisit>,
    /// The acquisitions of other kinds that wait now.
    waiting: BTreeMap<OpId, Waiting>,
    grants: GrantsByName,
    /// How often others waited for a key of a set.
    contended_count: usize,
    /// The next look of an acquisition that has looked at a key of its set.
    next_look: Option<(OpId, Look)>,
}

impl QueueVisits {
    /// Whether there are neither visits nor series.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.grants.is_empty()
    }

    /// The acquisition waits: no round of it is in flight, and it has no result.
    pub(super) fn note_waiting(&mut self, WaitingOp { id, give_up_at }: WaitingOp, attempts: u32) {
        self.waiting.insert(id, Waiting { give_up_at, attempts });
    }

    /// It waits no longer.
    pub(super) fn note_awake(&mut self, id: OpId) {
        self.waiting.remove(&id);
    }

    /// The acquisition, if it waits and may still ask.
    fn waiter(&self, now: Moment, id: OpId) -> Option<WaitingOp> {
        let waiting = self.waiting.get(&id).filter(|waiting| now < waiting.give_up_at);
        waiting.map(|waiting| WaitingOp { id, give_up_at: waiting.give_up_at })
    }

    fn number_of(&self, key: &Key) -> Option<u32> {
        self.open.iter().find(|(_, visit)| visit.key == *key).map(|(number, _)| *number)
    }

    pub(super) fn key_of(&self, number: u32) -> Option<&Key> {
        self.open.get(&number).map(|visit| &visit.key)
    }

    fn visit_of(&self, id: OpId) -> Option<u32> {
        let is_member = |visit: &QueueVisit| visit.members.iter().any(|(other, _)| *other == id);
        self.open.iter().find(|(_, visit)| is_member(visit)).map(|(number, _)| *number)
    }

    /// The acquisition waits for this key from now on, behind the others that wait here. Returns
    /// whether it has a position.
    fn join(&mut self, now: Moment, number: u32, key: &Key, who: (OpId, AskPolicy)) -> bool {
        self.open.retain(|other, visit| *other == number || visit.is_needed(now));
        if !self.open.contains_key(&number) && self.open.len() >= VISITS_MAX {
            return false;
        }
        let visit = self.open.entry(number).or_insert_with(|| QueueVisit {
            key: key.clone(),
            members: Vec::new(),
            node: None,
            position: None,
            is_listed: false,
            is_notified: false,
            in_vain: 0,
            held: None,
            alone: 0,
            look: None,
            left_out: LeftOut::default(),
            contended_until: None,
            passed_by: 0,
            is_inherited: false,
        });
        visit.members.retain(|other| *other != who);
        let has_room = visit.members.len() < MEMBERS_MAX;
        visit.members.extend(has_room.then_some(who));
        has_room
    }

    /// A round for it was refused.
    fn note_refused(&mut self, now: Moment, number: u32) -> AfterRefusal {
        let Some(visit) = self.open.get_mut(&number) else {
            return AfterRefusal::Queue;
        };
        visit.contended_until = Some(now.after(CONTENDED_FOR));
        if !visit.is_notified {
            visit.alone += u32::from(visit.position == Some(0));
            if visit.alone > ALONE_MAX {
                visit.alone = 0;
                visit.left_out.alone_at.extend(visit.node.map_or(NodeSet::EMPTY, NodeSet::one));
                visit.left_out.passed = match visit.left_out.passed.is_empty() {
                    true => visit.left_out.alone_at,
                    false => NodeSet::EMPTY,
                };
            }
            return AfterRefusal::Queue;
        }
        visit.is_notified = false;
        visit.in_vain += 1;
        if visit.in_vain > IN_VAIN_MAX {
            visit.in_vain = 0;
            return AfterRefusal::PassOnAndPause;
        }
        AfterRefusal::PassOn
    }

    /// The acquisitions to try now. Only the first may take a lock that cannot be shared.
    fn to_try(&self, number: u32) -> Vec<OpId> {
        let members = self.open.get(&number).map_or(&[][..], |visit| &visit.members);
        let first = members.first().map(|(_, asks)| *asks);
        let most = if first == Some(AskPolicy::All) { MEMBERS_MAX } else { 1 };
        let alike = members.iter().filter(|(_, asks)| Some(*asks) == first);
        alike.take(most).map(|(id, _)| *id).collect()
    }

    /// Those that wait there and have not asked.
    fn yet_to_ask(&self, number: u32) -> Vec<WaitingOp> {
        let members = self.open.get(&number).map_or(&[][..], |visit| &visit.members);
        let waiting = members.iter().filter_map(|(id, _)| Some((*id, self.waiting.get(id)?)));
        let yet_to_ask = waiting.filter(|(_, waiting)| waiting.attempts == 0);
        yet_to_ask.map(|(id, it)| WaitingOp { id, give_up_at: it.give_up_at }).collect()
    }

    /// The queue has moved on: its position is where this says, if any. Returns the queue node to
    /// leave, and whether the position was the local queue's.
    fn leave_node(&mut self, number: u32) -> Option<(usize, bool)> {
        let visit = self.open.get_mut(&number).filter(|visit| visit.is_listed)?;
        (visit.is_listed, visit.is_notified, visit.position) = (false, false, None);
        visit.node.map(|node| (node, std::mem::take(&mut visit.is_inherited)))
    }

    /// The acquisition waits no longer. Returns whether the position is of no use now.
    fn leave(&mut self, number: u32, who: (OpId, &Key), got: Option<(LockToken, Moment)>) -> bool {
        let Some(visit) = self.open.get_mut(&number) else {
            return false;
        };
        visit.members.retain(|(other, _)| *other != who.0);
        if got.is_some() {
            visit.in_vain = 0;
            let (asks, is_notified_slot) = (who.1.row().asks, visit.key == who.1.undone());
            // Others may share it, or take the slot of the notification: they need not wait until
            // it is released.
            if visit.is_notified
                && (asks == AskPolicy::One || asks == AskPolicy::Each && is_notified_slot)
            {
                (visit.held, visit.is_notified) = (got, false);
                return false;
            }
        }
        got.is_some() || visit.members.is_empty() && visit.held.is_none()
    }

    /// The lock is given up. Returns the position that was kept for so long.
    #[inline(never)]
    fn give_up(&mut self, now: Moment, token: LockToken) -> Option<u32> {
        self.grants.note_given_up(now, token);
        let is_held = |visit: &QueueVisit| visit.held.is_some_and(|(held, _)| held == token);
        let (number, visit) = self.open.iter_mut().find(|(_, visit)| is_held(visit))?;
        visit.held = None;
        Some(*number)
    }

    /// A local queue of this many plain locks releases one. Returns the visit that comes before the
    /// next: of so many that wait in this engine, each gets its turn.
    fn note_passed_by(&mut self, key: &Key, waiting_here: usize) -> Option<u32> {
        let number = self.number_of(key)?;
        let visit = self.open.get_mut(&number).filter(|visit| !visit.members.is_empty())?;
        visit.passed_by = visit.passed_by.saturating_add(1);
        let most = waiting_here.min(QUOTA_MAX as usize).div_ceil(visit.members.len());
        (visit.passed_by as usize >= most).then_some(number)
    }

    /// Where a set waits: at the first of its keys that is held, or at one of the next where this
    /// engine has not been alone. Who holds several keys may have come from the queue of any.
    fn set_waits_for(&self, now: Moment, key: &Key, held: usize) -> Option<Key> {
        let is_alone = |visit: &QueueVisit| visit.alone >= ALONE_MAX && visit.is_needed(now);
        let is_left = |key: &Key| self.number_of(key).is_some_and(|it| is_alone(&self.open[&it]));
        let mut keys = (held..).take(LOOKS_MAX).map_while(|index| key.plain_at(index));
        keys.find(|key| !is_left(key)).or_else(|| key.plain_at(held))
    }

    fn is_contended(&self, now: Moment, key: &Key) -> bool {
        let number = self.number_of(key);
        number.is_some_and(|number| self.open[&number].is_contended(now))
    }

    /// The plain key whose queue a new acquisition of this lock joins before it asks, if any; and
    /// the look, if that is why.
    fn before(&mut self, now: Moment, id: OpId, key: &Key) -> Option<(Key, Option<Look>)> {
        let plain = key.to_queue_for();
        let mut contended_keys: Vec<_> =
            plain.iter().filter(|it| self.is_contended(now, it)).collect();
        let look = self.next_look.take_if(|(other, _)| *other == id);
        // In turn: those in one of the queues might keep out those in another.
        self.contended_count = self.contended_count.wrapping_add(1);
        let count = contended_keys.len().max(1);
        let mut contended = (!contended_keys.is_empty())
            .then(|| contended_keys.swap_remove(self.contended_count % count).clone());
        // Others that wait for one key of a set say nothing of those that wait for another. Any
        // slot will do, and each time another one: else some are fought for, and others free.
        let is_any = key.row().queue == QueueOf::OfSlot;
        if contended.is_some() && is_any {
            contended = Some(plain[self.contended_count % plain.len()].clone());
        }
        if let (Some(_), None, true) = (&contended, look, is_any || plain.len() == 1) {
            self.grants.note_others(key);
            return contended.map(|contended| (contended, None));
        }
        let ended = self.grants.end_if_many(now, key).filter(|_| look.is_none());
        let look = match (look, ended) {
            (Some((_, look)), _) => look,
            (None, None) => return Some((contended?, None)),
            (None, Some(ended)) => {
                let ended = ended as usize - 1;
                // Clients may wait for any key of a set, and for any slot.
                let left = plain.len().min(LOOKS_MAX) - 1;
                let key = ended * LOOKS_MAX % plain.len();
                Look { ended, key, left, is_any, has_found: false }
            }
        };
        Some((plain[look.key % plain.len()].clone(), Some(look)))
    }

    /// The key that the acquisition asks for: of slots, the one in whose queue it waits.
    pub(crate) fn asked_by(&self, id: OpId, key: Key) -> Key {
        if key.row().queue != QueueOf::OfSlot {
            return key;
        }
        let plain = self.visit_of(id).and_then(|number| self.key_of(number));
        let slot = key.to_queue_for().iter().position(|slot| Some(slot) == plain);
        slot.map_or_else(|| key.clone(), |slot| key.with_slot(Some(slot as u32)))
    }

    /// The visit, unless it has a position, asks for one at this queue node.
    fn look(&mut self, number: u32, look: (OpId, Look), queue_node: Option<usize>) {
        if let Some(visit) = self.open.get_mut(&number).filter(|visit| !visit.is_listed) {
            (visit.node, visit.look) = (queue_node, Some(look));
        }
    }

    /// The acquisition looks at the next key of its set, if any. Behind the last one it joins
    /// others that it has found, or else may ask.
    fn look_on(&mut self, number: u32, (id, look): (OpId, Look)) {
        self.next_look = None;
        let goes_on = look.left > 0 || look.has_found;
        if let Some(visit) = self.open.get_mut(&number).filter(|_| goes_on) {
            visit.members.retain(|(other, _)| *other != id);
            let next = |left| (id, Look { key: look.key + 1, left, ..look });
            self.next_look = look.left.checked_sub(1).map(next);
        }
    }

    /// The acquisition has asked: a late answer is about the position alone.
    fn forget_look(&mut self, id: OpId) {
        for visit in self.open.values_mut() {
            visit.look.take_if(|(other, _)| *other == id);
        }
    }

    /// Its next position is at the first candidate: a look, or its being alone, has led it
    /// elsewhere.
    fn forget_node(&mut self, number: u32) {
        if let Some(visit) = self.open.get_mut(&number).filter(|visit| !visit.is_listed) {
            (visit.node, visit.left_out.passed) = (None, NodeSet::EMPTY);
        }
    }

    /// The node is of no use for this visit, or has lost its data.
    pub(super) fn exclude(&mut self, number: u32, node: usize) {
        if let Some(visit) = self.open.get_mut(&number) {
            visit.left_out.excluded.insert(node);
            visit.lose(node);
        }
    }

    pub(crate) fn lose_node(&mut self, node: usize) {
        self.open.values_mut().for_each(|visit| visit.lose(node));
    }

    /// Those whose queue node is this node, and which it does not list yet.
    fn to_open(&self, node: usize) -> Vec<u32> {
        let is_due = |visit: &QueueVisit| {
            visit.node == Some(node) && !visit.is_listed && !visit.members.is_empty()
        };
        self.open.iter().filter(|(_, visit)| is_due(visit)).map(|(number, _)| *number).collect()
    }
}

impl QueueVisit {
    fn is_needed(&self, now: Moment) -> bool {
        let is_held = self.held.is_some_and(|(_, until)| now < until);
        !self.members.is_empty() || is_held || self.is_contended(now)
    }

    fn is_contended(&self, now: Moment) -> bool {
        self.contended_until.is_some_and(|until| now < until)
    }

    fn lose(&mut self, node: usize) {
        if self.node == Some(node) {
            (self.node, self.is_listed, self.position) = (None, false, None);
        }
    }
}

/// The engine's part of visits.
impl WaitQueues {
    /// A round of another kind of lock was refused, by those that hold this one of its resources if
    /// that is known. It is repeated, until then at the latest if this returns a moment.
    pub(crate) fn visit_refused(
        &mut self,
        cx: &mut Cx<'_>,
        key: &Key,
        id: OpId,
        (held, attempts): (Option<usize>, u32),
    ) -> Option<Moment> {
        if !self.local.desk.is_on() {
            return None;
        }
        let (asks, queue) = (key.row().asks, key.row().queue);
        let before = self.visits.visit_of(id);
        self.visits.forget_look(id);
        let plain = match (before, queue) {
            (Some(before), QueueOf::OfSlot) => self.visits.key_of(before).cloned(),
            (_, QueueOf::OfHeldName) => self.visits.set_waits_for(cx.now, key, held?),
            _ => plain_key_of(key),
        }?;
        let number = self.visits.number_of(&plain);
        if let Some(before) = before.filter(|before| Some(*before) != number) {
            self.leave_to_others(cx, before, (id, key), None);
        }
        let number = number.unwrap_or_else(|| self.local.entries.number());
        if !self.visits.join(cx.now, number, &plain, (id, asks)) {
            return None;
        }
        let refused = self.visits.note_refused(cx.now, number);
        if refused != AfterRefusal::Queue {
            self.leave_queue(cx, number);
            self.visits.forget_node(number);
        }
        if refused == AfterRefusal::PassOnAndPause {
            return Some(cx.now.after(cx.overtake_delay().saturating_mul(ASK_DELAYS)));
        }
        self.queue_visit(cx, number);
        // Holders of one key of a set may wait in the queue of another key, and notify no waiter of
        // this one.
        (queue == QueueOf::OfHeldName).then(|| set_asks_at(cx, attempts))
    }

    /// An acquisition is about to ask for the first time. If others are believed to wait for the
    /// same lock, or a series of it has ended, it queues up before. Returns whether it waits.
    pub(crate) fn queue_up_before(&mut self, cx: &mut Cx<'_>, key: &Key, who: WaitingOp) -> bool {
        let (WaitingOp { id, give_up_at }, overtake_delay) = (who, cx.overtake_delay());
        if self.visits.visit_of(id).is_some() {
            return false;
        }
        let Some((plain, look)) = self.visits.before(cx.now, id, key) else {
            return false;
        };
        let mut ask_at = cx.now.after(overtake_delay.saturating_mul(ASK_DELAYS));
        if give_up_at <= ask_at {
            if give_up_at <= cx.now.after(overtake_delay.saturating_mul(SHORT_DELAYS)) {
                return false;
            }
            ask_at = cx.now.after(overtake_delay);
        }
        let number = self.visits.number_of(&plain).unwrap_or_else(|| self.local.entries.number());
        if !self.visits.join(cx.now, number, &plain, (id, key.row().asks)) {
            return false;
        }
        if let Some(look) = look {
            // Not all clients see the same candidates.
            let looks = if look.ended % 2 == 0 { 0 } else { 1 + look.ended / 2 };
            let may_be = |node: usize| self.local.desk.choice(cx).may_wait_at(node);
            let queue_node = self.local.desk.choice(cx).rotated(cx.now, &plain, looks, may_be);
            self.visits.look(number, (id, look), queue_node);
        }
        self.queue_visit(cx, number);
        // Without a position, others get an overtake delay to come first.
        let visit = self.visits.open.get(&number);
        if look.is_some() && visit.is_none_or(|visit| visit.node.is_none()) {
            ask_at = cx.now.after(overtake_delay);
        }
        self.pause(key, who, 0);
        self.local.desk.sleep_until(who, ask_at);
        true
    }

    /// Asks the queue node for a position, or whether one can wait there. A local queue of plain
    /// locks of this engine needs the position itself.
    pub(super) fn queue_visit(&mut self, cx: &mut Cx<'_>, number: u32) {
        let Some(visit) = self.visits.open.get(&number) else {
            return;
        };
        if self.local.queues.entry_of(&visit.key).is_some() {
            return;
        }
        let is_able = |node: usize| {
            !visit.left_out.excluded.contains(node)
                && self.local.desk.choice(cx).is_candidate(cx.now, node)
        };
        let is_candidate = |node: usize| is_able(node) && !visit.left_out.passed.contains(node);
        let is_at_home =
            |node: usize| is_candidate(node) && !visit.left_out.alone_at.contains(node);
        // A look may be at a node that is a candidate for others alone.
        let is_looked_at =
            |node: usize| visit.look.is_some() && self.local.desk.choice(cx).may_wait_at(node);
        let queue_node = match visit.node.filter(|node| is_at_home(*node) || is_looked_at(*node)) {
            Some(queue_node) => Some(queue_node),
            None => self.local.desk.choice(cx).first_among(&visit.key, is_candidate),
        };
        // It has looked at all of them. If its position is at the first one, it keeps it.
        let begins_again = queue_node.is_none() && !visit.left_out.passed.is_empty();
        let queue_node = match begins_again {
            true => self.local.desk.choice(cx).first_among(&visit.key, is_able),
            false => queue_node,
        };
        if visit.node != queue_node {
            self.leave_queue(cx, number);
        }
        let Some(visit) = self.visits.open.get_mut(&number) else {
            return;
        };
        visit.node = queue_node;
        if begins_again {
            (visit.left_out.alone_at, visit.left_out.passed) = (NodeSet::EMPTY, NodeSet::EMPTY);
        }
        match queue_node {
            Some(queue_node)
                if self.local.desk.able[queue_node].state() == QueueSupport::Available =>
            {
                visit.is_listed = true;
                self.local.desk.send(queue_node, WaitCommand::QueueUp(number));
            }
            Some(queue_node) => self.local.ask_ability(cx, queue_node),
            None => visit.left_out = LeftOut::default(),
        }
    }

    /// One can wait at this node.
    pub(super) fn open_visits(&mut self, cx: &mut Cx<'_>, node: usize) {
        for number in self.visits.to_open(node) {
            self.queue_visit(cx, number);
        }
    }

    /// The queue node has reported the position.
    pub(super) fn handle_visit_position(
        &mut self,
        cx: &mut Cx<'_>,
        number: u32,
        position: u32,
        expiry: Expiry,
    ) {
        let ask_at = cx.now.after(cx.overtake_delay());
        let Some(visit) = self.visits.open.get_mut(&number) else {
            return;
        };
        visit.position = Some(position);
        let look = visit.look.take();
        if position > 0 {
            (visit.alone, visit.contended_until) = (0, Some(cx.now.after(CONTENDED_FOR)));
        }
        // Others that wait for one key of a set say nothing of those that wait for another.
        if let Some(mut look) =
            look.filter(|(_, look)| position == 0 || look.left > 0 && !look.is_any)
        {
            look.1.has_found |= position > 0;
            let is_alone = visit.members.len() == 1;
            if let Some(who) = self.visits.waiter(cx.now, look.0) {
                if is_alone {
                    self.leave_queue(cx, number);
                    // Where others are, it may join them later.
                    if position == 0 {
                        self.visits.forget_node(number);
                    }
                }
                self.visits.look_on(number, look);
                self.start_visiting(who);
            }
        } else if position == 0 && expiry == Expiry::Absent {
            // Others may wait elsewhere, and were notified.
            for id in self.visits.to_try(number) {
                if self.visits.waiting.contains_key(&id) {
                    self.local.desk.orders.push_back(WaitOrder::WakeBy(id, ask_at));
                }
            }
        } else if (ASK_DELAYS..POSITION_NONE).contains(&position) {
            let ask_at =
                cx.now.after(cx.overtake_delay().saturating_mul(position.min(OVERTAKE_DELAYS_MAX)));
            for who in self.visits.yet_to_ask(number) {
                self.local.desk.sleep_until(who, ask_at);
            }
        }
    }

    /// A message about a key that no local queue of plain locks waits for. Returns whether a visit
    /// does.
    pub(super) fn notify_visit(
        &mut self,
        cx: &mut Cx<'_>,
        node: usize,
        key: &Key,
        wakeup: Wakeup,
    ) -> bool {
        let Some(number) = self.visits.number_of(key) else {
            return false;
        };
        let Some(visit) = self.visits.open.get_mut(&number) else {
            return false;
        };
        if visit.is_listed && visit.node != Some(node) {
            // A position that could not be left when it moved: others come next there.
            if wakeup != Wakeup::Overtaken {
                self.local.step_out(cx, node, key.clone(), Step::Out);
            }
            return true;
        }
        if visit.held.is_some_and(|(_, until)| cx.now < until) {
            return true;
        }
        if visit.members.is_empty() {
            return false;
        }
        // Other clients wait in the same queue.
        visit.alone = 0;
        match wakeup {
            Wakeup::TakeNow => {
                visit.is_notified = true;
                visit.contended_until = Some(cx.now.after(CONTENDED_FOR));
                self.local.desk.stats.notifications_received += 1;
                self.try_visit(cx, number);
            }
            Wakeup::First => self.try_visit(cx, number),
            Wakeup::Overtaken => {
                visit.is_listed = false;
                self.queue_visit(cx, number);
            }
            Wakeup::Second | Wakeup::Asked => {}
        }
        true
    }

    /// The acquisitions that wait there and are not asking ask now.
    pub(super) fn try_visit(&mut self, cx: &mut Cx<'_>, number: u32) {
        for id in self.visits.to_try(number) {
            if let Some(who) = self.visits.waiter(cx.now, id) {
                self.start_visiting(who);
            }
        }
    }

    fn start_visiting(&mut self, who: WaitingOp) {
        self.visits.note_awake(who.id);
        self.local.desk.orders.push_back(WaitOrder::Start(who.id));
    }

    /// This engine's local queue releases a plain lock. Returns the visit that asks before the
    /// local queue does: the local queue has the engine's position on the masters, and nothing else
    /// would let the visit in.
    pub(super) fn visit_due(&mut self, key: &Key) -> Option<u32> {
        if self.visits.open.is_empty() {
            return None;
        }
        // The acquisition that releases it might come back.
        let waiting = usize::from(self.local.queues.first_of(key).is_some());
        let waiting_here = 1 + waiting + self.local.queues.others_of(key);
        let number = self.visits.note_passed_by(key, waiting_here)?;
        let waits = |id: &OpId| self.visits.waiting.contains_key(id);
        self.visits.to_try(number).iter().any(waits).then_some(number)
    }

    /// The lock is released, and this visit asks for it next. If the local queue's turn is over,
    /// its position is the visit's from now on.
    pub(super) fn let_in(&mut self, cx: &mut Cx<'_>, number: u32, key: &Key) -> AfterRelease {
        let entry = self.local.queues.entry_of(key);
        let is_quota_used =
            entry.and_then(|entry| self.local.entries.get(entry)).is_some_and(|entry| {
                matches!(entry.quota, Quota::NotYet | Quota::Left(0))
                    && !entry.seat.nodes.is_empty()
            });
        let position =
            entry.filter(|_| is_quota_used).and_then(|entry| self.local.give_position(cx, entry));
        if let Some(visit) = self.visits.open.get_mut(&number) {
            visit.passed_by = 0;
            if let Some(queue_node) = position {
                (visit.node, visit.position) = (Some(queue_node), Some(0));
                (visit.is_listed, visit.is_notified, visit.is_inherited) = (true, true, true);
            }
        }
        self.try_visit(cx, number);
        if is_quota_used {
            return AfterRelease::Requeue;
        }
        if self.local.queues.first_of(key).is_none() {
            self.local.leave_entry_of(cx, key);
        }
        AfterRelease::Nothing
    }

    /// The acquisition ends. If it was notified and got the lock, its position is left when the
    /// lock is given up.
    #[inline(never)]
    pub(crate) fn leave_visit(
        &mut self,
        cx: &mut Cx<'_>,
        key: &Key,
        id: OpId,
        got: Option<(LockToken, Moment)>,
    ) {
        self.visits.note_awake(id);
        if let Some(got) = got.filter(|_| self.local.desk.is_on()) {
            self.visits.grants.note_got(cx.now, key, got);
        }
        let Some(number) = self.visits.visit_of(id) else {
            return;
        };
        self.leave_to_others(cx, number, (id, key), got);
    }

    /// The acquisition leaves the visit. If it was notified in vain, the next one asks.
    fn leave_to_others(
        &mut self,
        cx: &mut Cx<'_>,
        number: u32,
        who: (OpId, &Key),
        got: Option<(LockToken, Moment)>,
    ) {
        if self.visits.leave(number, who, got) {
            self.move_on(cx, number);
        } else if self.visits.open.get(&number).is_some_and(|visit| visit.is_notified) {
            self.try_visit(cx, number);
        }
    }

    /// A lock of another kind was given up: the next in the queue is notified.
    pub(crate) fn give_up_visit(&mut self, cx: &mut Cx<'_>, token: LockToken) {
        if let Some(number) = self.visits.give_up(cx.now, token) {
            self.move_on(cx, number);
        }
    }

    /// The position goes to the next, and the acquisitions that wait here queue up behind it.
    pub(super) fn move_on(&mut self, cx: &mut Cx<'_>, number: u32) {
        self.leave_queue(cx, number);
        if self.visits.open.get(&number).is_some_and(|visit| !visit.members.is_empty()) {
            self.queue_visit(cx, number);
        }
    }

    /// The position goes to the next, but not if a local queue of plain locks of this engine waits
    /// there: it keeps the position, or queues up behind the others if its turn was over.
    pub(super) fn leave_queue(&mut self, cx: &mut Cx<'_>, number: u32) {
        let Some((queue_node, is_inherited)) = self.visits.leave_node(number) else {
            return;
        };
        let Some(key) = self.visits.key_of(number).cloned() else {
            return;
        };
        let entry = self.local.queues.entry_of(&key).map(|number| {
            let entry = self.local.entries.entry(number);
            (number, entry.held.is_some(), entry.seat.nodes.contains(queue_node))
        });
        match entry {
            Some((entry, false, _)) if is_inherited => {
                self.local.queue_up_again(cx, entry, queue_node);
            }
            Some((_, _, true)) => {}
            _ => self.local.step_out(cx, queue_node, key, Step::Out),
        }
    }
}

/// The plain key that refuses this acquisition.
fn plain_key_of(key: &Key) -> Option<Key> {
    let index = match key.row().queue {
        QueueOf::Own | QueueOf::OfHeldName => return None,
        QueueOf::OfSlot => key.slot()?.1? as usize,
        QueueOf::OfName => 0,
    };
    key.plain_at(index)
}

/// When a set that was refused after so many rounds asks again at the latest.
fn set_asks_at(cx: &mut Cx<'_>, attempts: u32) -> Moment {
    let doubled = 1u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
    let delay = cx.overtake_delay().saturating_mul(doubled);
    cx.now.after(between(delay, delay.saturating_mul(2), cx.entropy.next_u64()))
}
