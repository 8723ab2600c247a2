//! Clients that queue for plain locks beside clients with one other kind of lock, all of one name
//! and without a pause, on a quiet network.
//!
//! One of them may have had the lock to itself before the others come.
//!
//! - FAIR: each client gets a named part of an even share, and no other client gets too many locks
//!   while it waits;
//! - WAKE: no client waits in vain;
//! - TIDY: no queue is left, even if the last ones run out of patience.

use muxlock::Resource;
use muxlock::node::{NodeState, NodeStatus, QueueSupport};
use muxlock::proto::Lease;

use super::World;
use super::clock::{MICRO, MILLI, SECOND};
use super::plan::Class;
use super::queue::Event;
use super::rare::Rare;

/// Below it, a lock's time to live is no longer than the rounds of a wait.
const TTL_MIN: u64 = 2 * SECOND;
/// What holds the longest script.
pub const BUFFER_MIN: usize = 1_400;
/// How many locks are counted for each client.
const GRANTS: u32 = 40;
/// How many locks the first client takes before the others come.
const EARLY_MAX: u32 = 24;
const HOLD_MAX: u64 = 5 * MILLI;
/// In which the last waits end.
const LAST_HOLD: u64 = SECOND;
const PATIENCE: u64 = 90 * SECOND;
/// The most locks of a client before each has had one.
const FIRST_MAX: u32 = 200;
/// The most locks of each other client while one waits in the same queue.
const TURNS_MAX: u32 = 32;
/// The same for one that waits in another queue, for another of its names or at another node. Those
/// who take turns there do not see it, and it asks after delays that grow. A set joins them after
/// its third refusal, within six overtake delays of its first (K9).
const TURNS_APART_MAX: u32 = 48;
/// Each client gets so much of an even share, in percent. One that cannot queue where the others do
/// only sometimes asks in time.
const SHARE_MIN_PERCENT: u32 = 20;

/// What the other clients have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Read,
    Write,
    Set,
    As,
}

const OTHERS: [Other; 4] = [Other::Read, Other::Write, Other::Set, Other::As];

/// Which part of the scene it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// One client takes so many more locks alone.
    Early(u32),
    /// So many more locks are counted.
    Counted(u32),
    /// Those who wait still get it.
    Over,
    /// A client with a plain lock keeps it, and the others run out of patience.
    Last,
}

/// Clients with plain locks, and those with one other kind.
pub struct Mixed {
    other: Other,
    /// The clients with plain locks.
    plain: Vec<usize>,
    first: usize,
    part: Part,
    grants: Vec<u32>,
    /// How many locks each had got when a client began to wait.
    waits: Vec<Option<Vec<u32>>>,
    /// Whether another one that stands in another queue has got a lock since then.
    is_apart: Vec<bool>,
    untidy_before: Vec<bool>,
    hold_max: u64,
    /// Whether each client could wait at each node, and all nodes voted.
    is_quiet: bool,
}

impl World {
    /// Clients with two kinds of lock take turns.
    pub fn mix_kinds(&mut self) {
        let is_odd = self.plan.class != Class::Durable || self.plan.nodes < 3;
        let is_slow = self.plan.max_ttl < TTL_MIN || self.plan.wire.buffer < BUFFER_MIN;
        if self.violation.is_some() || !self.plan.waits || is_odd || is_slow {
            return;
        }
        let clients = self.clients.len();
        let begin = self.choices.below(clients as u32) as usize;
        let count = 1 + self.choices.below(clients as u32 - 1) as usize;
        let plain: Vec<usize> = (begin..begin + count).map(|client| client % clients).collect();
        let other = self.choices.pick(&OTHERS);
        let first = self.choices.below(clients as u32) as usize;
        let early = self.choices.below(EARLY_MAX);
        let hold_max = self.choices.pick(&[MILLI, HOLD_MAX, 50 * MICRO]);
        let now = self.now;
        self.timeline.note(now, || {
            format!("plain locks of {plain:?} beside {other:?}, {first} takes {early} first")
        });
        self.mixed = Some(Mixed {
            other,
            plain,
            first,
            part: Part::Early(early),
            grants: vec![0; clients],
            waits: vec![None; clients],
            is_apart: vec![false; clients],
            untidy_before: (0..self.nodes.len()).map(|node| self.is_untidy(node)).collect(),
            hold_max,
            is_quiet: true,
        });
        self.mixed_turn(first);
        if early == 0 {
            self.others_come();
        }
        while self.violation.is_none() && self.step() {}
        self.end_mixed();
        self.mixed = None;
    }

    fn others_come(&mut self) {
        let clients = self.clients.len();
        let Some(mixed) = &mut self.mixed else {
            return;
        };
        mixed.part = Part::Counted(GRANTS * clients as u32);
        for client in (0..clients).filter(|client| *client != mixed.first) {
            let at = self.now + self.choices.magnitude(MICRO, MILLI);
            self.queue.push(at, Event::Mixed(client));
        }
    }

    /// A client gives back what it has, and asks again unless all is over.
    pub fn mixed_turn(&mut self, client: usize) {
        if let Some(lease) = self.clients[client].leases.pop() {
            self.release(client, lease);
        }
        let Some(mixed) = &mut self.mixed else {
            return;
        };
        let is_plain = mixed.plain.contains(&client);
        let patience = match mixed.part {
            Part::Early(_) | Part::Counted(_) => PATIENCE,
            Part::Last if !is_plain => LAST_HOLD / 2,
            Part::Over | Part::Last => return self.wake_client(client, self.now),
        };
        mixed.waits[client] = Some(mixed.grants.clone());
        mixed.is_apart[client] = false;
        let other = mixed.other;
        self.mixed_lock(client, is_plain, other, patience);
    }

    fn mixed_lock(&mut self, client: usize, is_plain: bool, other: Other, patience: u64) {
        let name = self.name_of(client, 0);
        let made = match other {
            _ if is_plain => Resource::new(&name),
            Other::Read => Resource::shared(&name),
            Other::Write => Resource::exclusive(&name),
            Other::Set => Resource::all([name.as_str(), "mixed:2"]),
            Other::As => Resource::with_value(&name, "one"),
        };
        self.lock_as(client, made.expect("a valid name"), self.plan.max_ttl, patience);
        self.wake_client(client, self.now);
    }

    pub fn mixed_granted(&mut self, client: usize, lease: Lease) {
        self.clients[client].leases.push(lease);
        let is_well = |node: NodeStatus| {
            node.state == NodeState::Ready && !matches!(node.queue, QueueSupport::Unavailable(_))
        };
        let is_quiet = self.clients.iter().all(|it| it.engine.statuses().all(is_well));
        let apart: Vec<bool> =
            (0..self.clients.len()).map(|other| self.are_apart(client, other)).collect();
        let Some(mixed) = &mut self.mixed else {
            return;
        };
        mixed.is_apart.iter_mut().zip(apart).for_each(|(is_apart, now)| *is_apart |= now);
        mixed.is_quiet &= is_quiet;
        let is_quiet = mixed.is_quiet;
        let mut hold = self.choices.magnitude(MICRO, mixed.hold_max);
        let waited = mixed.waits[client].take();
        match &mut mixed.part {
            Part::Early(0) => self.others_come(),
            Part::Early(left) => *left -= 1,
            Part::Counted(left) => {
                mixed.grants[client] += 1;
                // Shares count from when each client has had a lock.
                if mixed.grants.contains(&0) {
                    let grants = &mixed.grants;
                    if is_quiet && grants[client] > FIRST_MAX {
                        let text =
                            format!("a client never gets it: {grants:?} ({:?})", mixed.other);
                        return self.fail("FAIR", || text);
                    }
                    if grants[client] > FIRST_MAX {
                        mixed.part = Part::Over;
                    }
                    return self.queue.push(self.now + hold, Event::Mixed(client));
                }
                *left -= 1;
                let (grants, other) = (&mixed.grants, mixed.other);
                let passed = waited.as_ref().map(|before| {
                    let others = grants.iter().zip(before).enumerate();
                    let others = others.filter(|(number, _)| *number != client);
                    others.map(|(_, (now, before))| now - before).max().unwrap_or(0)
                });
                let most = if mixed.is_apart[client] { TURNS_APART_MAX } else { TURNS_MAX };
                if is_quiet && passed > Some(most) {
                    let text = format!("client {client} waits while {grants:?} ({other:?})");
                    return self.fail("FAIR", || text);
                }
                if *left == 0 {
                    mixed.part = Part::Over;
                    let clients = grants.len() as u32;
                    let even = GRANTS * SHARE_MIN_PERCENT / 100;
                    self.rare.hit_if(is_quiet, Rare::MixedKinds);
                    let least = grants.iter().position(|grants| *grants < even);
                    if let Some(least) = least.filter(|_| is_quiet) {
                        let text = format!("client {least} of {clients}: {grants:?} ({other:?})");
                        return self.fail("FAIR", || text);
                    }
                }
            }
            Part::Over => {}
            Part::Last => {
                hold = LAST_HOLD;
                let others = (0..mixed.grants.len()).filter(|client| !mixed.plain.contains(client));
                others.for_each(|client| self.queue.push(self.now + 1, Event::Mixed(client)));
            }
        }
        self.queue.push(self.now + hold, Event::Mixed(client));
    }

    /// Whether each stands in a queue, and both in none.
    fn are_apart(&self, client: usize, other: usize) -> bool {
        let stand = [client, other].map(|it| self.queues_of(it).next().is_some());
        stand == [true; 2]
            && !self.queues_of(client).any(|queue| self.queues_of(other).any(|it| it == queue))
    }

    /// A client has run out of patience.
    pub fn mixed_missed(&mut self, client: usize) {
        if self.mixed.as_ref().is_some_and(|mixed| mixed.part != Part::Last) {
            self.fail("WAKE", || format!("client {client} waits in vain beside another kind"));
        }
    }

    /// The last waits end without the lock, and nothing is left.
    fn end_mixed(&mut self) {
        let Some(mixed) = self.mixed.as_mut().filter(|_| self.violation.is_none()) else {
            return;
        };
        let (plain, other) = (mixed.plain[0], mixed.other);
        mixed.part = Part::Last;
        self.mixed_lock(plain, true, other, PATIENCE);
        while self.violation.is_none() && self.step() {}
        let Some(mixed) = self.mixed.as_ref().filter(|_| self.violation.is_none()) else {
            return;
        };
        let mut nodes = (0..self.nodes.len()).filter(|node| !mixed.untidy_before[*node]);
        if let Some(node) = nodes.find(|node| self.is_untidy(*node)) {
            self.fail("TIDY", || format!("a queue is left on node {node} ({other:?})"));
        }
    }
}
