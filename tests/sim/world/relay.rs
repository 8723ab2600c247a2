//! A lock whose SET is lost on its way to one node, and arrives when the lock is another client's,
//! which extends it then: nobody knows how old that copy is (R12, R29).

use super::World;
use super::clock::MILLI;
use super::faults::Fault;
use super::network::Connection;
use super::queue::Event;
use super::rare::Rare;
use super::work::token_of;
use muxlock::proto::Lease;

/// How often a lock is asked for that will go this way, in runs where it can.
const RELAYS: u32 = 300;
/// How often its new owner does not reach one of the nodes that granted it.
const PARTINGS: u32 = 600;

/// A lock on this way.
pub struct Relay {
    /// Who asks for it, and then who has it.
    client: usize,
    slot: usize,
    token: Option<[u8; 40]>,
    /// When its SET arrives.
    at: u64,
}

impl World {
    /// A client is about to ask for a lock.
    pub fn may_relay(&mut self, client: usize) {
        self.relays.retain(|relay| relay.client != client);
        let is_usual = self.plan.hands_over && self.plan.has(Fault::Cut) && !self.plan.heals;
        let has_taker = self.of_machine(client).len() > 1;
        if is_usual && has_taker && self.plan.nodes >= 3 && self.choices.chance(RELAYS) {
            let slot = self.choices.below(self.plan.nodes as u32) as usize;
            self.relays.push(Relay { client, slot, token: None, at: 0 });
        }
    }

    /// Whether a lock that the client asks for will go this way.
    pub fn is_relaying(&self, client: usize) -> bool {
        self.relays.iter().any(|relay| relay.client == client)
    }

    /// A SET is on its way on a connection.
    pub fn may_lose_set(&mut self, id: usize, token: [u8; 40]) {
        let Connection { client, slot, node, .. } = self.connections[id];
        let is_it = |it: &Relay| (it.client, it.slot, it.token) == (client, slot, None);
        let found = self.relays.iter().position(is_it);
        let Some(place) = found.filter(|_| self.is_faulty) else {
            return;
        };
        let at = self.now + self.choices.magnitude(MILLI / 10, self.plan.max_ttl / 4);
        let relay = &mut self.relays[place];
        (relay.token, relay.at) = (Some(token), at);
        self.cut_late(id, at);
        self.shut[client][node] = at + self.plan.max_ttl;
    }

    /// A lock was granted: if it is one of these, it is handed over at once. Returns it if not.
    pub fn relay(&mut self, client: usize, lease: Lease) -> Option<Lease> {
        let token = token_of(&lease);
        let is_it = |it: &Relay| it.client == client && it.token == Some(token);
        let Some(place) = self.relays.iter().position(is_it) else {
            return Some(lease);
        };
        let mut relay = self.relays.swap_remove(place);
        let end = self.clients[client].clock.when(lease.valid_until().as_nanos());
        let granted: Vec<usize> = lease.granted_by().collect();
        self.hand_over(client, lease);
        let has_it = |client: &usize| {
            self.clients[*client].leases.iter().any(|lease| token_of(lease) == token)
        };
        let taker = (0..self.clients.len()).find(has_it)?;
        if self.choices.chance(PARTINGS) {
            let slot = granted[self.choices.below(granted.len() as u32) as usize];
            self.links[taker][self.plan.routes[slot]] = end.max(self.now);
        }
        let after = self.choices.magnitude(MILLI / 10, 20 * MILLI);
        (relay.client, relay.at) = (taker, relay.at.max(self.now) + after);
        self.queue.push(relay.at, Event::Relay(taker));
        self.relays.push(relay);
        None
    }

    /// Who was handed such a lock extends it, if it has it still.
    pub fn extend_relayed(&mut self, client: usize) {
        let is_it = |it: &Relay| it.client == client && it.at == self.now;
        let Some(place) = self.relays.iter().position(is_it) else {
            return;
        };
        let Relay { slot, token, .. } = self.relays.swap_remove(place);
        let it = &self.clients[client];
        let is_its = |lease: &Lease| Some(token_of(lease)) == token && !it.keeps(lease);
        let found = it.leases.iter().position(is_its);
        let Some(place) = found.filter(|_| self.is_faulty && self.now >= it.paused_until) else {
            return;
        };
        let lease = self.clients[client].leases.swap_remove(place);
        let node = self.plan.routes[slot];
        let attempt = token.and_then(|token| self.checker.attempts.get(&token));
        let has_run = attempt.is_some_and(|attempt| attempt.set_at(node).is_some());
        self.rare.hit_if(has_run, Rare::RelayedExtension);
        let ttl = self.plan.max_ttl;
        self.extend(client, lease, ttl);
        self.wake_client(client, self.now);
    }
}
