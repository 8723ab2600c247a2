//! Locks of which one command stands still on its way to a node: a SET, until what it asked for
//! is over and the lock is held on, or an extension that heals, until another client has had the
//! lock and given it back (R12, R29).

use muxlock::proto::Lease;

use super::World;
use super::check::quorum;
use super::clock::{MILLI, SECOND};
use super::faults::Fault;
use super::network::{Connection, Way};
use super::queue::Event;
use super::rare::Rare;
use super::work::token_of;

/// How often a lock goes this way, in runs where it can: one that is asked for, or was granted.
const LATE: u32 = 500;
/// What a client adds to a time to live before its key is certainly gone.
const SLACK: u64 = SECOND;
/// A SET asks for this part of the longest time to live.
const PART: u64 = 10;
/// The longest time to live must leave room behind the slack.
const TTL_MIN: u64 = 2 * SECOND;
/// What happens to the lock takes about as long.
const SOON: u64 = 20 * MILLI;

/// A lock on this way.
pub struct Late {
    stage: Stage,
    /// Who asks for it, and then who has it.
    client: usize,
    slot: usize,
    token: Option<[u8; 40]>,
    /// The connection that its late extension was sent on.
    lost: Option<usize>,
    /// The lock, between two steps.
    lease: Option<Lease>,
    /// When the next step is due.
    at: u64,
    since: u64,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its SET goes out; the one to the slot stands still.
    Set,
    /// It is extended for long meanwhile; then the connection is lost.
    Prolonged,
    /// It is held until what was lost is to be over.
    Overdue,
    /// The same, for an extension that heals: the lock is granted and at rest.
    Whole,
    /// The extension goes out; the one to the slot is lost.
    Healing,
    /// The next owner has it.
    Handed,
    /// Its extension is under way.
    Last,
    /// It is given back when all nodes have answered.
    Seen,
}

impl Late {
    fn new(stage: Stage, client: usize, slot: usize, since: u64) -> Late {
        Late { stage, client, slot, token: None, lost: None, lease: None, at: 0, since }
    }
}

impl World {
    /// A client is about to ask for a lock for `ttl`. Returns for how long it asks.
    pub fn may_be_late(&mut self, client: usize, ttl: u64) -> u64 {
        let is_usual = !self.plan.heals && self.plan.max_ttl >= TTL_MIN;
        if !is_usual || self.is_relaying(client) || !self.may_begin_late() {
            return ttl;
        }
        let slot = self.choices.below(self.plan.nodes as u32) as usize;
        self.late = Some(Late::new(Stage::Set, client, slot, self.now));
        self.plan.max_ttl / PART
    }

    /// Whether a lock may go this way from now on.
    fn may_begin_late(&mut self) -> bool {
        let is_over = |late: &Late| self.now > late.since + 2 * self.plan.max_ttl;
        let is_idle = |late: &Late| late.lease.is_none() && is_over(late);
        let is_free = self.late.as_ref().is_none_or(is_idle);
        let is_usual = self.plan.has(Fault::Cut) && self.plan.nodes >= 3;
        is_free && is_usual && self.choices.chance(LATE)
    }

    /// Whether a lock is on this way, beyond its first step.
    pub fn is_late(&self) -> bool {
        let is_over = |late: &Late| self.now > late.since + self.plan.max_ttl;
        self.late.as_ref().is_some_and(|late| late.stage != Stage::Set && !is_over(late))
    }

    /// A command of a lock is on its way on a connection.
    pub fn may_be_held_up(&mut self, id: usize, token: [u8; 40], is_set: bool) {
        let Connection { client, slot, node, .. } = self.connections[id];
        let max_ttl = self.plan.max_ttl;
        let Some(late) = self.late.as_mut().filter(|it| (it.client, it.slot) == (client, slot))
        else {
            return;
        };
        match late.stage {
            Stage::Set if is_set && late.token.is_none() => {
                late.token = Some(token);
                self.connections[id].up.held_until = self.now + max_ttl;
            }
            Stage::Healing if !is_set && late.token == Some(token) => {
                late.stage = Stage::Handed;
                late.lost = Some(id);
                let at = self.now + max_ttl / 2 + 10 * SOON;
                self.cut_late(id, at);
                self.shut[client][node] = at + max_ttl;
            }
            _ => {}
        }
    }

    /// A lock was granted. Returns it if it is none of these.
    pub fn late_granted(&mut self, client: usize, lease: Lease) -> Option<Lease> {
        let token = Some(token_of(&lease));
        if let Some(late) = self.late.as_mut().filter(|it| (it.client, it.token) == (client, token))
        {
            late.stage = Stage::Prolonged;
            let ttl = self.plan.max_ttl;
            self.extend(client, lease, ttl);
            return None;
        }
        let has_taker = self.plan.hands_over && self.of_machine(client).len() > 1;
        if !self.plan.heals || !has_taker || !self.may_begin_late() {
            return Some(lease);
        }
        let granted: Vec<usize> = lease.granted_by().collect();
        let late = Late::new(Stage::Whole, client, self.choices.pick(&granted), self.now);
        self.late = Some(Late { token, lease: Some(lease), ..late });
        for taker in self.of_machine(client) {
            let now = self.client_now(taker);
            self.clients[taker].engine.connect(now);
            self.wake_client(taker, self.now);
        }
        self.go_on_after(SOON);
        None
    }

    fn go_on_after(&mut self, most: u64) {
        let at = self.now + self.choices.magnitude(MILLI / 10, most);
        if let Some(late) = &mut self.late {
            late.at = at;
            self.queue.push(at, Event::Late);
        }
    }

    /// A lock was extended, or not. Returns it if it is none of these.
    pub fn late_extended(
        &mut self,
        client: usize,
        lease: Lease,
        is_extended: bool,
    ) -> Option<Lease> {
        let token = token_of(&lease);
        let is_it = |late: &Late| (late.client, late.token) == (client, Some(token));
        let Some(mut late) = self.late.take_if(|late| is_it(late)) else {
            return Some(lease);
        };
        let node = self.plan.routes[late.slot];
        let connection = self.clients[client].slots[late.slot].connection;
        let waiting = connection.filter(|id| self.connections[*id].asks(&token));
        match (late.stage, waiting) {
            (Stage::Prolonged, Some(id)) if is_extended => {
                // The debt ends so long after the loss.
                let over = self.now + self.plan.max_ttl / PART + SLACK + SOON;
                let end = self.clients[client].clock.when(lease.valid_until().as_nanos());
                let back = over + self.plan.connect_timeout + 2 * self.plan.retry_most;
                if back >= end {
                    return Some(lease);
                }
                let at = self.choices.between(self.now, back);
                self.cut_late(id, at);
                self.shut[client][node] = over;
                late.stage = Stage::Overdue;
                late.lease = Some(lease);
                late.at = self.choices.between(back, end);
                self.queue.push(late.at, Event::Late);
                self.late = Some(late);
            }
            (Stage::Handed, _) if is_extended => {
                self.hand_over(client, lease);
                let has_it = |it: &super::Client| it.leases.iter().any(|it| token_of(it) == token);
                let taker = self.clients.iter().position(has_it)?;
                let it = &mut self.clients[taker];
                let place = it.leases.iter().position(|lease| token_of(lease) == token)?;
                if taker != client && !it.keeps(&it.leases[place]) {
                    (late.client, late.lease) = (taker, Some(it.leases.swap_remove(place)));
                    self.late = Some(late);
                    self.go_on_after(SOON / 2);
                }
            }
            (Stage::Last, _) if is_extended => {
                late.stage = Stage::Seen;
                late.lease = Some(lease);
                self.late = Some(late);
                self.go_on_after(SOON);
            }
            _ => return Some(lease),
        }
        None
    }

    /// It is time for what comes next.
    pub fn late_turn(&mut self) {
        let now = self.now;
        let Some(late) = self.late.as_mut().filter(|late| late.at == now) else {
            return;
        };
        let Some(lease) = late.lease.take() else {
            return;
        };
        let (client, stage, lost) = (late.client, late.stage, late.lost);
        late.stage = match stage {
            Stage::Whole => Stage::Healing,
            _ => Stage::Last,
        };
        if !self.is_faulty || now < self.clients[client].paused_until {
            self.late = None;
            return self.clients[client].leases.push(lease);
        }
        if stage == Stage::Seen {
            self.late = None;
            self.rare.hit(Rare::LateHeal);
            if let Some(id) = lost {
                let at = now + 4 * self.plan.wire.latency;
                let at = at + self.choices.magnitude(MILLI / 10, SOON);
                self.connections[id].up.held_until = at;
                self.queue.push(at, Event::Deliver(id, Way::Up));
            }
            self.release(client, lease);
            return self.wake_client(client, now);
        }
        if stage == Stage::Overdue {
            self.late = None;
            self.rare.hit(Rare::LateSet);
            self.part_from_others(client, &lease);
        }
        let ttl = self.plan.max_ttl;
        self.extend(client, lease, ttl);
        self.wake_client(client, now);
    }

    /// From now on the client reaches no quorum without the nodes that did not grant its lock.
    fn part_from_others(&mut self, client: usize, lease: &Lease) {
        let end = self.clients[client].clock.when(lease.valid_until().as_nanos());
        let nodes = self.plan.nodes;
        for slot in lease.granted_by().take(nodes - quorum(nodes)) {
            let node = self.plan.routes[slot];
            self.links[client][node] = end.max(self.now);
        }
    }

    /// All is well, or the client is gone: the lock is treated as any other.
    pub fn end_late(&mut self) {
        if let Some(Late { client, lease: Some(lease), .. }) = self.late.take() {
            self.clients[client].leases.push(lease);
        }
    }

    /// The client's process has ended.
    pub fn forget_late(&mut self, client: usize) {
        self.late.take_if(|late| late.client == client);
    }
}
