//! The entries of an engine in the queues on the masters, one for each key that it waits for, or
//! holds after it has waited.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::moment::Moment;
use crate::proto::timer::between;
use crate::quorum::NodeSet;
use crate::resource::Key;
use crate::token::LockToken;

/// The first slow look at the queue; each later one comes after twice the time (W10).
const SLOW_MIN: Duration = Duration::from_millis(50);
const SLOW_MAX: Duration = Duration::from_millis(3_200);
/// No sooner than this for each engine before it: of many that wait, some look soon.
const SLOW_EACH: Duration = Duration::from_millis(5);
/// The longest pause between two watches, and before the watch after a refused round (W11, W14).
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// The most doublings of such pauses.
const DOUBLINGS_MAX: u32 = 16;
/// After so many refused rounds in a row no pause is cut short: the lock seems to be free, and no
/// quorum can be had of it.
const HASTENED_MAX: u32 = 8;
/// The longest wait of an engine far back before it takes a free lock, in overtake delays.
pub(super) const OVERTAKE_DELAYS_MAX: u32 = 64;
/// The most consecutive grants of one engine while others wait in the queue (W13).
pub(super) const QUOTA_MAX: u32 = 16;
/// The position that a full queue says.
pub(super) const POSITION_NONE: u32 = 1_023;
/// How long after a release to the next client an engine queues up before it tries (W7).
pub(super) const CONTENDED_FOR: Duration = Duration::from_secs(1);

/// How many times in a row a local queue may take the lock that it has (W13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quota {
    /// It has not got the lock yet.
    NotYet,
    /// No other client is known to wait.
    Unlimited,
    Left(u32),
}

/// Why a local queue has started a round (W11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartedBy {
    /// The client before it in the queue has released the lock.
    Notification,
    /// A node says that its key is absent.
    KeySeenAbsent,
    /// A node says that its key has changed.
    Invalidation,
    /// The time of the keys is over.
    Expiry,
    /// Nothing is known, because too few nodes can be watched.
    Blindness,
}

pub(crate) struct QueueEntry {
    pub(super) key: Key,
    pub(super) seat: Seat,
    /// Nodes where other clients queue for this key.
    pub(super) other_queues: NodeSet,
    /// The lock that its engine holds.
    pub(super) held: Option<LockToken>,
    pub(super) quota: Quota,
    /// When to look at the lock.
    pub(super) check_at: Option<Moment>,
    /// When to try although nothing is heard: too few nodes can be watched (W9).
    pub(super) blind_until: Option<Moment>,
    pub(super) polls: SlowPolls,
    pub(super) backoff: Backoff,
    /// Since when the lock is free.
    pub(super) free_since: Option<FreeSince>,
    pub(super) watch: Watch,
    /// Why the last round was started, until its end.
    pub(super) last_round: Option<StartedBy>,
    /// Whether its local queue has a round to make: the first was notified, and its patience ended.
    pub(super) has_to_ask: bool,
    /// Whether the lock was seen to be held since its local queue had it.
    pub(super) saw_held: bool,
}

impl QueueEntry {
    pub(super) fn new(key: Key, now: Moment) -> QueueEntry {
        QueueEntry {
            key,
            seat: Seat::default(),
            other_queues: NodeSet::EMPTY,
            held: None,
            quota: Quota::NotYet,
            check_at: None,
            blind_until: None,
            polls: SlowPolls { at: now, looks: 0, is_new: true },
            backoff: Backoff::default(),
            free_since: None,
            watch: Watch::default(),
            last_round: None,
            has_to_ask: false,
            saw_held: false,
        }
    }

    /// When something is to be done if nothing is heard.
    pub(super) fn due(&self) -> Moment {
        let others = self.check_at.into_iter().chain(self.watch.free_at).chain(self.blind_until);
        others.fold(self.polls.at, Moment::min)
    }

    /// Looks at the lock at this moment, or before it.
    pub(super) fn check_by(&mut self, at: Moment) {
        self.check_at = Some(self.check_at.map_or(at, |before| before.min(at)));
    }

    /// The queue node has reported its position: entries far back need not look soon.
    pub(super) fn note_position(&mut self, now: Moment, position: u32) {
        self.seat.phase = Phase::Queued(position);
        if position < POSITION_NONE {
            let pause = SLOW_EACH.saturating_mul(position).min(SLOW_MAX);
            self.polls.at = self.polls.at.max(now.after(pause));
        }
    }

    /// It moves to another queue node, of whose queue nothing is known: slow looks begin again.
    pub(super) fn move_on(&mut self, now: Moment, random: u64) {
        let is_new = self.polls.is_new;
        self.polls.begin_again(now, random);
        self.polls.is_new = is_new;
        (self.check_at, self.blind_until) = (None, None);
        self.watch.forget();
    }

    /// Looks at the lock by this moment, whatever put the look off, but for many rounds in vain.
    pub(super) fn hasten(&mut self, by: Moment) {
        let by = self.backoff.hasten(by);
        self.check_by(by);
        self.watch.again_at = self.watch.again_at.map(|pause| pause.min(by));
    }

    /// Whether it has been free for so long that those before it must be asleep. If not, the moment
    /// when that will be so; from now on if nothing was known.
    pub(super) fn overtakes_at(&mut self, now: Moment, overtake_delay: Duration) -> Moment {
        let position = self.seat.position().unwrap_or(1);
        let since = match self.free_since {
            Some(free) if free.position == position => free.at,
            _ => self.free_since.insert(FreeSince { at: now, position }).at,
        };
        let delays = match position {
            0 | 1 => 1,
            position => (position + 1).min(OVERTAKE_DELAYS_MAX),
        };
        let at = since.after(overtake_delay.saturating_mul(delays));
        // The first in the queue pauses as well, and is to be the first that sees a quorum.
        let in_vain = self.backoff.until.filter(|_| self.backoff.is_in_vain());
        in_vain.map_or(at, |until| at.max(until.after(PAUSE_MAX)))
    }
}

#[cfg(feature = "testing")]
impl QueueEntry {
    /// A contradiction between its parts.
    pub(super) fn broken(&self) -> Option<&'static str> {
        let Seat { node, nodes, phase } = &self.seat;
        let Watch { pending, watched, planned, .. } = self.watch;
        let is_listed = node.is_some_and(|node| nodes.contains(node));
        let is_watched_twice = |one: NodeSet, other| !one.and(other).is_empty();
        let rules = [
            (*phase == Phase::Asked && !is_listed, "it has asked for a position at no queue node"),
            (self.held.is_some() && self.last_round.is_some(), "a round is about what it holds"),
            (matches!(self.quota, Quota::Left(left) if left > QUOTA_MAX), "its quota is too large"),
            (is_watched_twice(pending, watched), "a node has answered and not answered"),
            (is_watched_twice(planned, watched), "a watched node is to be watched"),
        ];
        rules.iter().find(|(is_broken, _)| *is_broken).map(|(_, what)| *what)
    }
}

/// Where its engine waits in the queues on the masters.
#[derive(Default)]
pub(super) struct Seat {
    /// The node whose queue it uses. `None` if that node was lost.
    pub(super) node: Option<usize>,
    /// All nodes whose queue may list it.
    pub(super) nodes: NodeSet,
    pub(super) phase: Phase,
}

/// How far it is in the queue of its queue node.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The queue node was not asked for a position.
    #[default]
    Unqueued,
    Asked,
    /// The number of entries before it, as last reported.
    Queued(u32),
}

impl Seat {
    /// Another queue node, or none, is not asked yet.
    pub(super) fn change(&mut self, queue_node: Option<usize>) {
        (self.node, self.phase) = (queue_node, Phase::Unqueued);
    }

    /// The queue node is asked for a position, or for its position again.
    pub(super) fn ask(&mut self, queue_node: usize) {
        self.nodes.insert(queue_node);
        if self.phase == Phase::Unqueued {
            self.phase = Phase::Asked;
        }
    }

    /// The number of entries before it, as last reported.
    pub(super) fn position(&self) -> Option<u32> {
        let Phase::Queued(position) = self.phase else { return None };
        Some(position)
    }
}

/// The slow looks at the queue, which come ever more rarely (W10).
pub(super) struct SlowPolls {
    pub(super) at: Moment,
    looks: u32,
    /// Whether a node that is being connected may be its queue node: clients that start together
    /// should not choose by which node was the first to be ready.
    pub(super) is_new: bool,
}

impl SlowPolls {
    /// The next one.
    pub(super) fn next(&mut self, now: Moment, random: u64) {
        let pause = SLOW_MIN.saturating_mul(1 << self.looks.min(16)).min(SLOW_MAX);
        self.is_new = self.looks == 0;
        self.looks = self.looks.saturating_add(1);
        self.at = now.after(between(pause, pause.mul_f64(1.3), random));
    }

    /// Its engine waits anew: they begin again.
    pub(super) fn begin_again(&mut self, now: Moment, random: u64) {
        self.looks = 0;
        self.next(now, random);
    }
}

/// The delay after refused rounds (W11).
#[derive(Default)]
pub(super) struct Backoff {
    /// The nodes that refused the last round.
    pub(super) refused: NodeSet,
    /// Refused rounds since the last grant, or since it was notified.
    pub(super) refused_rounds: u32,
    /// When the lock may be looked at after that.
    until: Option<Moment>,
}

impl Backoff {
    /// A round was refused, and some nodes may have granted it. Returns when to look at the lock,
    /// unless the answers say enough.
    pub(super) fn note_refused(
        &mut self,
        now: Moment,
        round_trip: Duration,
        (refused, was_split): (NodeSet, bool),
        random: u64,
    ) -> Option<Moment> {
        self.refused = refused;
        self.refused_rounds = self.refused_rounds.saturating_add(1);
        let doubled = round_trip.saturating_mul(2 << self.refused_rounds.min(DOUBLINGS_MAX));
        let pause = between(Duration::ZERO, doubled.min(PAUSE_MAX), random);
        self.until = (self.refused_rounds > 1 || was_split).then(|| now.after(pause));
        self.until
    }

    /// Whether the lock is not to be looked at yet.
    pub(super) fn is_on(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// It ends by this moment, but not if many rounds were in vain. Returns when the lock may be
    /// looked at.
    fn hasten(&mut self, by: Moment) -> Moment {
        let by = self.until.filter(|_| self.is_in_vain()).map_or(by, |until| by.max(until));
        self.until = self.until.map(|until| until.min(by));
        by
    }

    /// Whether the lock seems to be free, and gives no quorum.
    fn is_in_vain(&self) -> bool {
        self.refused_rounds > HASTENED_MAX
    }
}

/// Since when the lock is free, as far as this is known.
#[derive(Clone, Copy)]
pub(super) struct FreeSince {
    pub(super) at: Moment,
    /// The position at that time.
    pub(super) position: u32,
}

/// The nodes where the lock's key is watched, and their reports (W8, W14).
#[derive(Default)]
pub(super) struct Watch {
    /// The number of the last watch: answers to others say nothing.
    pub(super) number: u32,
    /// The nodes whose answer to it is missing; those that will report a change; and those to be
    /// watched as soon as this is possible.
    pub(super) pending: NodeSet,
    pub(super) watched: NodeSet,
    pub(super) planned: NodeSet,
    /// When the lock's keys have expired, as far as the watches know.
    pub(super) free_at: Option<Moment>,
    /// When the next watch may begin.
    again_at: Option<Moment>,
    /// Watches in a row that found the lock held.
    fruitless: u32,
    /// Moves the watched pair on (W10).
    pub(super) rotation: usize,
    /// Whether a round that an invalidation started, without a look at the key, was refused: the
    /// next change may leave the lock held as well.
    pub(super) change_is_ambiguous: bool,
}

impl Watch {
    /// Begins anew: its nodes are not known yet.
    pub(super) fn begin(&mut self, now: Moment, overtake_delay: Duration) {
        self.forget();
        let pause =
            overtake_delay.saturating_mul(1 << self.fruitless).min(PAUSE_MAX.max(overtake_delay));
        self.again_at = Some(now.after(pause));
        self.fruitless = (self.fruitless + 1).min(DOUBLINGS_MAX);
    }

    /// When the next watch may begin, if that is not now (W14).
    pub(super) fn must_pause_until(&self, now: Moment) -> Option<Moment> {
        self.again_at.filter(|at| now < *at)
    }

    /// Answers to the last watch, and reports of its nodes, are ignored from now on.
    pub(super) fn forget(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.free_at = None;
        self.nodes().into_iter().for_each(|nodes| *nodes = NodeSet::EMPTY);
    }

    fn nodes(&mut self) -> [&mut NodeSet; 3] {
        [&mut self.pending, &mut self.watched, &mut self.planned]
    }

    /// Whether the node is one of those that it watches, or is about to.
    pub(super) fn has(&self, node: usize) -> bool {
        [self.pending, self.watched, self.planned].iter().any(|nodes| nodes.contains(node))
    }

    /// Nothing is heard of the node.
    pub(super) fn remove(&mut self, node: usize) {
        self.nodes().into_iter().for_each(|nodes| nodes.remove(node));
    }

    /// The lock was seen to be free, others said so, or its local queue has it: watches may follow
    /// each other again.
    pub(super) fn end_pauses(&mut self) {
        self.fruitless = 0;
    }
}

/// The entries, by number. A number is not used again within 2^32 entries, so that late answers
/// find none.
#[derive(Default)]
pub(crate) struct QueueEntries {
    open: BTreeMap<u32, QueueEntry>,
    last: u32,
    /// The keys of positions that are left, until the command for that is handed out or withdrawn.
    left: BTreeMap<u32, Key>,
    /// The key of the last such command, which the caller is still to send.
    handed_out: Option<Key>,
}

impl QueueEntries {
    pub(super) fn insert(&mut self, entry: QueueEntry) -> u32 {
        let number = self.number();
        self.open.insert(number, entry);
        number
    }

    /// A number that no entry has.
    pub(super) fn number(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.last
    }

    pub(super) fn get(&self, number: u32) -> Option<&QueueEntry> {
        self.open.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut QueueEntry> {
        self.open.get_mut(&number)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<QueueEntry> {
        self.open.remove(&number)
    }

    /// A position is left, or its front is taken. Returns the number of its command.
    pub(super) fn leave(&mut self, key: Key) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.left.insert(self.last, key);
        self.last
    }

    /// The command with this number is handed out.
    pub(super) fn hand_out(&mut self, number: u32) {
        self.handed_out = self.left.remove(&number);
    }

    /// The key of the command that was handed out last.
    pub(super) fn handed_out(&self) -> &[u8] {
        self.handed_out.as_ref().map_or(&[], Key::as_bytes)
    }

    /// The command with this number will not be sent.
    pub(super) fn withdraw(&mut self, number: u32) {
        self.left.remove(&number);
    }

    #[cfg(feature = "testing")]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &QueueEntry)> {
        self.open.iter().map(|(number, entry)| (*number, entry))
    }

    /// How many entries there are, and commands that are not handed out for places that are left.
    pub(super) fn len(&self) -> usize {
        self.open.len() + self.left.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The numbers of those that this is true of, in their order.
    pub(super) fn numbers_where(&self, is_it: impl Fn(&QueueEntry) -> bool) -> Vec<u32> {
        let found = self.open.iter().filter(|(_, entry)| is_it(entry));
        found.map(|(number, _)| *number).collect()
    }

    pub(crate) fn entry(&mut self, number: u32) -> &mut QueueEntry {
        self.get_mut(number).expect("the stand was just looked up")
    }

    /// The entries that watch a key at this node: if any key may have changed, each may have.
    pub(crate) fn watched_at(&self, node: usize) -> Vec<u32> {
        self.numbers_where(|entry| entry.watch.watched.contains(node))
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::resource::Resource;

    fn broken(change: impl FnOnce(&mut QueueEntry)) -> Option<&'static str> {
        let now = Moment::from_nanos(1);
        let mut entry = QueueEntry::new(Key::new(Resource::new("r").unwrap(), b""), now);
        entry.seat.change(Some(1));
        entry.seat.ask(1);
        change(&mut entry);
        entry.broken()
    }

    #[test]
    fn entry_whose_parts_do_not_agree_is_found() {
        assert_eq!(broken(|_| ()), None);
        type Change = fn(&mut QueueEntry);
        let table: [(&str, Change); 4] = [
            ("it has asked for a position at no queue node", |it| it.seat.node = Some(2)),
            ("its quota is too large", |it| it.quota = Quota::Left(QUOTA_MAX + 1)),
            ("a node has answered and not answered", |it| {
                (it.watch.pending, it.watch.watched) = (NodeSet::all(2), NodeSet::one(1));
            }),
            ("a watched node is to be watched", |it| {
                (it.watch.planned, it.watch.watched) = (NodeSet::one(1), NodeSet::one(1));
            }),
        ];
        for (what, change) in table {
            assert_eq!(broken(change), Some(what));
        }
        assert_eq!(broken(|it| it.last_round = Some(StartedBy::Expiry)), None);
        let of_a_holder = broken(|it| {
            it.held = Some(LockToken::from_random([1; 20]));
            it.last_round = Some(StartedBy::Expiry);
        });
        assert_eq!(of_a_holder, Some("a round is about what it holds"));
    }
}
