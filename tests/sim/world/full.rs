//! Masters that run out of memory while locks are held: what is there is kept, released, and
//! undone, and each command of these may come when no memory is left.

use muxlock::Resource;
use muxlock::proto::Lease;

use super::World;
use super::clock::{MILLI, SECOND};
use super::forms::{Step, form};
use super::plan::Class;
use super::queue::Event;
use super::rare::Rare;
use super::server::Refusal;
use super::wire::Reply;

/// How many locks are held so.
const LOCKS: u32 = 3;
/// Below it, a lock may be over before the masters are full.
const TTL_MIN: u64 = 300 * MILLI;
const TTL_MAX: u64 = SECOND;
const PATIENCE: u64 = 30 * SECOND;
/// For how long there is no memory, besides what a round takes.
const SPELL: u64 = 2 * SECOND;

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Plain,
    Read,
    Write,
    Set,
    As,
    Slot,
    Downgraded,
}

const KINDS: [Held; 8] = [
    Held::Plain,
    Held::Read,
    Held::Set,
    Held::Write,
    Held::As,
    Held::Slot,
    Held::Downgraded,
    Held::Read,
];

/// What becomes of it when nothing is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Extend,
    Release,
    /// The engine renews it for a while.
    Keep,
}

const THENS: [Then; 3] = [Then::Extend, Then::Release, Then::Keep];

/// A lock while the masters are full.
pub struct Full {
    held: Held,
    then: Then,
}

impl World {
    /// Locks are held while the masters are full, a few times.
    pub fn run_out_of_memory(&mut self) {
        let is_odd = self.plan.class != Class::Durable || self.plan.nodes < 3;
        if is_odd || self.plan.max_ttl < TTL_MIN {
            return;
        }
        for _ in 0..LOCKS {
            if self.violation.is_some() {
                return;
            }
            let client = self.choices.below(self.clients.len() as u32) as usize;
            let mut then = self.choices.pick(&THENS);
            let held = self.choices.pick(&KINDS);
            if then == Then::Keep && held == Held::Downgraded {
                then = Then::Extend;
            }
            let name = self.name_of(client, 0);
            let made = match held {
                Held::Plain => Resource::new(&name),
                Held::Read => Resource::shared(&name),
                Held::Write | Held::Downgraded => Resource::exclusive(&name),
                Held::Set => Resource::all([name.as_str(), "full:2", "full:3"]),
                Held::As => Resource::with_value(&name, "one"),
                Held::Slot => Resource::slot(&name, 2),
            };
            let now = self.now;
            self.timeline.note(now, || format!("client {client} has {held:?}, then {then:?}"));
            self.full = Some(Full { held, then });
            for it in &mut self.nodes {
                it.refuses_until = 0;
            }
            let ttl = self.plan.max_ttl.min(TTL_MAX);
            self.lock_as(client, made.expect("a valid name"), ttl, PATIENCE);
            self.wake_client(client, self.now);
            while self.violation.is_none() && self.step() {}
            self.full = None;
        }
        // The next scene has memory.
        for it in &mut self.nodes {
            it.refuses_until = 0;
        }
    }

    /// Nodes that have not answered yet do so before the masters are full.
    pub fn full_granted(&mut self, client: usize, lease: Lease) {
        self.clients[client].leases.push(lease);
        self.queue.push(self.now + 4 * self.way(), Event::Full(client, false));
    }

    /// It is time to fill the masters, and to do something with the lock; or to give it back.
    pub fn full_turn(&mut self, client: usize, is_last: bool) {
        let Some(full) = &self.full else {
            return;
        };
        let (held, then) = (full.held, full.then);
        if is_last {
            self.fill_up();
            if let Some(lease) = self.clients[client].leases.pop() {
                self.release(client, lease);
            } else if let Some(lease) = self.take_from_engine(client) {
                self.release(client, lease);
            }
            return self.wake_client(client, self.now);
        }
        let Some(lease) = self.clients[client].leases.pop() else {
            return;
        };
        match then {
            Then::Release => {
                self.fill_up();
                self.release(client, lease);
            }
            Then::Extend => {
                self.fill_up();
                let lease = if held == Held::Downgraded { self.downgrade(lease) } else { lease };
                self.extend(client, lease, self.plan.max_ttl.min(TTL_MAX));
            }
            Then::Keep => {
                self.fill_up();
                self.keep_in_engine(client, lease);
                let length = self.plan.max_ttl.min(TTL_MAX) / 5 * 4;
                self.queue.push(self.now + length, Event::Full(client, true));
            }
        }
        self.wake_client(client, self.now);
    }

    /// The masters have no memory left: all of them, or all but one.
    fn fill_up(&mut self) {
        let spared = self.choices.below(2 * self.plan.nodes as u32) as usize;
        let until = self.now + SPELL + 2 * self.plan.node_timeout;
        self.timeline.note(self.now, || format!("all nodes but {spared} are full"));
        for (_, it) in self.nodes.iter_mut().enumerate().filter(|(node, _)| *node != spared) {
            it.redis.server.refusals = vec![Refusal::Memory];
            it.refuses_until = until;
        }
    }

    /// Counts what full masters do.
    pub fn count_full(&mut self, node: usize, words: &[&[u8]], reply: &Reply) {
        if !self.nodes[node].redis.server.refuses(Refusal::Memory) || *reply != Reply::Integer(1) {
            return;
        }
        let rare = match form(words) {
            Some(form) if form.step == Step::Keep => Rare::FullKept,
            Some(form) if form.step == Step::Free => Rare::FullFreed,
            _ => return,
        };
        self.rare.hit(rare);
    }
}
