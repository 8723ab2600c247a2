//! Several waiters of one client for one lock: when its holder leaves, the one who is told may have
//! run out of patience, and another one goes on.
//!
//! The holder is another client or the same one, and may have the lock as any kind. PROMPT: while
//! the lock is free, and a waiter has patience, one of them gets it within a few round trips.

use std::time::Duration;

use muxlock::proto::{Fencing, Lease, OpId, Patience};
use muxlock::{Moment, Resource};

use super::World;
use super::clock::{MICRO, MILLI, SECOND};
use super::plan::Class;
use super::queue::Event;
use super::rare::Rare;
use super::timeline::Millis;
use super::work::Kind;

/// How many locks are waited for in this way.
const TURNS: u32 = 3;
/// What a free lock may take until a waiter has it, and how many times a message's way besides.
/// Nobody looks at it unasked for a second (W10).
const PROMPT_BASE: u64 = 150 * MILLI;
const PROMPT_WAYS: u64 = 20;
/// Below it, a lock's time to live is over before a waiter has asked about it.
const TTL_MIN: u64 = 2 * SECOND;
/// By then, who waits looks unasked after more than half a second only (W10).
const HOLD: u64 = SECOND;
const HOLD_MAX: u64 = 20 * MILLI;
const PATIENCE: u64 = 20 * SECOND;
const WAITERS_MAX: u32 = 3;
/// How often the waiters' process stands still while the lock is given back.
const PAUSES: u32 = 250;
/// How often the first waiter does not run out of patience, but is cancelled.
const CANCELS: u32 = 250;
/// How often the holder is the client that waits.
const OWN: u32 = 600;
/// Two different names in a set.
const OTHER: &str = "line:2";

/// What the holder has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Plain,
    Read,
    Write,
    Set,
    As,
    /// A write lock that was turned into a share.
    Downgraded,
}

const KINDS: [Held; 6] =
    [Held::Plain, Held::Read, Held::Write, Held::Set, Held::As, Held::Downgraded];

/// What is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Waiter(u64),
    Cancel,
    Pause(u64),
    /// The client of this number gives back what it has.
    GiveBack(usize),
}

/// Waiters of one client.
pub struct Line {
    held: Held,
    holder: usize,
    waiter: usize,
    /// Whether the holder has given the lock back.
    is_left: bool,
    /// From when on the lock is free; `None` while somebody has it.
    free_at: Option<u64>,
    /// What is to happen, by number.
    plan: Vec<Next>,
    ops: Vec<OpId>,
    /// When the client last had no quorum of nodes that vote.
    lacked_at: Option<u64>,
    /// Whether one has got it, in whose place another had waited.
    has_heir: bool,
}

impl World {
    /// Several waiters of one client wait for a lock, a few times.
    pub fn wait_in_line(&mut self) {
        let is_odd = self.plan.class != Class::Durable || self.plan.nodes < 3;
        if !self.plan.waits || is_odd || self.plan.max_ttl < TTL_MIN {
            return;
        }
        for _ in 0..TURNS {
            if self.violation.is_some() {
                return;
            }
            self.wait_in_one_line();
        }
    }

    fn wait_in_one_line(&mut self) {
        let clients = self.clients.len() as u32;
        let holder = self.choices.below(clients) as usize;
        let is_own = self.choices.chance(OWN);
        let other = (holder + 1 + self.choices.below(clients - 1) as usize) % clients as usize;
        let waiter = if is_own { holder } else { other };
        let held = self.choices.pick(&KINDS);
        self.timeline.note(self.now, || {
            format!("client {holder} holds {held:?}, and waiters of client {waiter} come")
        });
        self.line = Some(Line {
            held,
            holder,
            waiter,
            is_left: false,
            free_at: None,
            plan: Vec::new(),
            ops: Vec::new(),
            lacked_at: None,
            has_heir: false,
        });
        let name = self.name_of(holder, 0);
        let made = match held {
            Held::Plain => Resource::new(&name),
            Held::Read => Resource::shared(&name),
            Held::Write | Held::Downgraded => Resource::exclusive(&name),
            Held::Set => Resource::all([name.as_str(), OTHER]),
            Held::As => Resource::with_value(&name, "one"),
        };
        self.lock_as(holder, made.expect("a valid name"), self.plan.max_ttl, PATIENCE);
        self.wake_client(holder, self.now);
        while self.violation.is_none() && self.step() {
            self.check_line();
        }
        self.line = None;
    }

    /// How long a message takes at most, and a little more.
    pub fn way(&self) -> u64 {
        2 * self.plan.wire.latency + 100 * MICRO
    }

    /// A client has got a lock.
    fn line_granted(&mut self, client: usize, lease: Lease) {
        self.clients[client].leases.push(lease);
        let Some(line) = &mut self.line else {
            return;
        };
        line.free_at = None;
        if !line.is_left && line.plan.is_empty() {
            return self.come_in_line(client);
        }
        self.rare.hit_if(std::mem::take(&mut line.has_heir), Rare::LineHeir);
        let is_own = line.holder == line.waiter && line.held != Held::Plain;
        self.rare.hit_if(is_own, Rare::LineOwn);
        let hold = self.choices.magnitude(10 * MICRO, HOLD_MAX);
        self.line_event(self.now + hold, Next::GiveBack(client));
    }

    /// The lock is held: now the waiters come, and the lock is given back when they sleep.
    fn come_in_line(&mut self, holder: usize) {
        let way = self.way();
        let left_at = self.now + HOLD;
        let waiters = 1 + self.choices.below(WAITERS_MAX);
        let patience = self.choices.between(0, 10 * way);
        // Of those who give up, the first does so while it is told.
        let ends_at = left_at - way + patience;
        let is_cancelled = self.choices.chance(CANCELS);
        for number in 0..=waiters {
            let at = self.now + 1 + u64::from(number) * (1 + way / 8);
            let ends_at = match number {
                0 if !is_cancelled => ends_at,
                1 if waiters > 1 => ends_at + self.choices.between(0, 4 * way),
                _ => self.now + PATIENCE,
            };
            self.line_event(at, Next::Waiter(ends_at));
        }
        if is_cancelled {
            self.line_event(ends_at, Next::Cancel);
        }
        if self.choices.chance(PAUSES) {
            let until = ends_at + self.choices.between(0, 4 * way);
            self.line_event(left_at.saturating_sub(way / 2), Next::Pause(until));
        }
        self.line_event(left_at, Next::GiveBack(holder));
        if let Some(line) = &mut self.line
            && line.held == Held::Downgraded
            && let Some(lease) = self.clients[holder].leases.pop()
        {
            let lease = self.downgrade(lease);
            self.extend(holder, lease, self.plan.max_ttl);
            self.wake_client(holder, self.now);
        }
    }

    fn line_event(&mut self, at: u64, next: Next) {
        if let Some(line) = &mut self.line {
            line.plan.push(next);
            self.queue.push(at.max(self.now), Event::Line(line.plan.len() - 1));
        }
    }

    pub fn line_turn(&mut self, number: usize) {
        let Some(line) = &mut self.line else {
            return;
        };
        let (next, waiter) = (line.plan[number], line.waiter);
        let client = if let Next::GiveBack(client) = next { client } else { waiter };
        let paused_until = self.clients[client].paused_until;
        if self.now < paused_until {
            return self.queue.push(paused_until, Event::Line(number));
        }
        match next {
            Next::Waiter(ends_at) => {
                let name = self.name_of(waiter, 0);
                let made = Resource::new(name).expect("a valid name");
                let patience = ends_at.saturating_sub(self.now).max(1);
                let id = self.lock_as(waiter, made, self.plan.max_ttl, patience);
                if let Some(line) = &mut self.line {
                    line.ops.extend(id);
                }
            }
            Next::Cancel => {
                let first = line.ops[0];
                if self.clients[waiter].operations.contains_key(&first) {
                    self.cancel(waiter, first);
                    self.line_missed();
                }
            }
            Next::Pause(until) => return self.pause_client(waiter, until.saturating_sub(self.now)),
            Next::GiveBack(client) => {
                if let Some(lease) = self.clients[client].leases.pop() {
                    (line.is_left, line.free_at) = (true, Some(self.now));
                    self.release(client, lease);
                }
            }
        }
        self.wake_client(client, self.now);
    }

    /// A waiter has given up, or was cancelled.
    fn line_missed(&mut self) {
        if let Some(line) = &mut self.line {
            line.has_heir |= line.is_left;
        }
    }

    /// A lock was granted or not, while nothing but lines and full nodes are there. Gives back a
    /// lock that is none of theirs.
    pub fn scene_acquired(&mut self, client: usize, lease: Option<Lease>) -> Option<Lease> {
        match lease {
            None => {
                self.line_missed();
                self.far_missed(client);
                self.mixed_missed(client);
            }
            Some(lease) if self.mixed.is_some() => self.mixed_granted(client, lease),
            Some(lease) if self.far.is_some() => self.far_granted(client, lease),
            Some(lease) if self.line.is_some() => self.line_granted(client, lease),
            Some(lease) if self.rows.is_some() => self.rows_granted(client, lease),
            Some(lease) if self.is_moving => self.clients[client].leases.push(lease),
            Some(lease) if self.full.is_some() => self.full_granted(client, lease),
            Some(lease) => return Some(lease),
        }
        None
    }

    /// A lock was extended, or not; gives it back if it is none of theirs.
    pub fn scene_extended(&mut self, client: usize, lease: Lease) -> Option<Lease> {
        if self.line.is_some() || self.is_moving {
            self.clients[client].leases.push(lease);
            return None;
        }
        Some(lease)
    }

    /// What a client calls a resource.
    pub fn name_of(&self, client: usize, resource: usize) -> String {
        [self.plan.split(client).1, self.plan.names[resource]].concat()
    }

    /// Starts an acquisition of this resource.
    pub fn lock_as(
        &mut self,
        client: usize,
        resource: Resource,
        ttl: u64,
        wait: u64,
    ) -> Option<OpId> {
        let now = self.client_now(client);
        let until = self.clients[client].told + wait;
        let patience = Patience::Until(Moment::with_jumps(until, self.clients[client].jumped));
        let text = format!("client {client} locks {resource:?} until {}", Millis(until));
        self.timeline.note(self.now, || text);
        let wanted = Duration::from_nanos(ttl);
        let id = self.clients[client]
            .engine
            .acquire(now, resource, wanted, patience, Fencing::Off)
            .ok()?;
        let (resource, patience) = (usize::MAX, Some(until));
        let (is_fenced, is_for_holder) = (false, false);
        let kind = Kind::Acquire { resource, patience, is_for_holder, is_fenced };
        self.start(client, id, kind, until);
        Some(id)
    }

    fn check_line(&mut self) {
        let Some(waiter) = self.line.as_ref().map(|line| line.waiter) else {
            return;
        };
        let lacks = !self.sees_quorum(waiter);
        let (now, way) = (self.now, self.way());
        let Some(line) = &mut self.line else {
            return;
        };
        if lacks {
            line.lacked_at = Some(now);
        }
        let it = &self.clients[waiter];
        let Some(free_at) = line.free_at else {
            return;
        };
        // Who found too few nodes that vote is in no queue, and asks again after a delay (W1, R9).
        let asks_at = line.lacked_at.map_or(0, |at| at + 2 * self.plan.retry_most);
        let from = free_at.max(it.paused_until).max(it.forgotten_until).max(asks_at);
        if now <= from + PROMPT_BASE + PROMPT_WAYS * way {
            return;
        }
        // Who waits until then is not about to give up.
        let waits = it.operations.values().any(|it| matches!(it.kind, Kind::Acquire { .. }));
        if waits {
            let (held, took) = (line.held, (now - free_at) / MILLI);
            let own = if line.holder == waiter { "its own" } else { "another's" };
            let text = format!("client {waiter} waits, {own} {held:?} is free for {took} ms");
            self.fail("PROMPT", || text);
        }
    }
}
