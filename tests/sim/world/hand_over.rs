//! Locks that go from one client to another on the same machine, which has the same clock.

use std::time::Duration;

use muxlock::Moment;
use muxlock::proto::{Engine, Lease};

use super::World;
use super::clock::MILLI;
use super::faults::Fault;
use super::queue::Event;
use super::rare::Rare;
use super::timeline::Short;
use super::work::token_of;

/// How often a client's process ends when it has handed a lock over, where processes end at all.
const ENDINGS: u32 = 100;
/// How often the next process starts with it.
const STARTS: u32 = 150;

impl World {
    /// The clients of this client's machine, itself among them.
    pub fn of_machine(&self, client: usize) -> Vec<usize> {
        let machines = &self.plan.machines;
        (0..machines.len()).filter(|other| machines[*other] == machines[client]).collect()
    }

    pub fn hand_over_something(&mut self, client: usize) {
        if let Some(lease) = self.take_lease(client) {
            self.hand_over(client, lease);
            if self.plan.has(Fault::ClientRestart) && self.choices.chance(ENDINGS) {
                self.rare.hit(Rare::GiverRestarted);
                self.restart_client(client);
            }
        }
    }

    /// Hands a lock to another client, which does something with it soon, or late.
    pub fn hand_over(&mut self, client: usize, mut lease: Lease) {
        let mut others = self.of_machine(client);
        others.retain(|other| *other != client);
        if others.is_empty() {
            self.come_back(client, &lease);
            return self.clients[client].leases.push(lease);
        }
        let taker = others[self.choices.below(others.len() as u32) as usize];
        if self.plan.has(Fault::ClientRestart) && self.choices.chance(STARTS) {
            self.rare.hit(Rare::TakerStarted);
            self.restart_client(taker);
        }
        let token = token_of(&lease);
        self.timeline.note(self.now, || {
            format!("client {client} hands {} to client {taker}", Short(&token))
        });
        let now = self.client_now(client);
        let_go(&mut self.clients[client].engine, now, &mut lease);
        self.check_fence_kept(&lease, Some(Rare::FencedAdopted));
        self.note_handed_over(client, taker, &token);
        self.may_part(taker, &lease);
        if self.plan.keeps && self.choices.chance(400) {
            self.keep_on(taker, &lease);
        } else {
            // What the giver would have done.
            self.clients[taker].work_left += 1;
            if self.choices.chance(500) {
                let soon = self.choices.magnitude(MILLI / 100, 20 * MILLI);
                self.queue.push(self.now + soon, Event::Work(taker));
            } else {
                self.come_back(taker, &lease);
            }
        }
        self.clients[taker].leases.push(lease);
        self.wake_client(client, self.now);
    }

    /// The nodes that the client does not count for now, and until when, in true time.
    fn quarantines(&self, client: usize) -> Vec<(usize, u64)> {
        let nodes = self.clients[client].engine.statuses().enumerate();
        let left = nodes.filter_map(|(slot, it)| Some((slot, it.quarantine?.ready_in)));
        // Less what its clock may be fast.
        let until = |left: Duration| self.now + left.as_nanos() as u64 / 100 * 99;
        left.map(|(slot, left)| (slot, until(left))).collect()
    }

    fn note_handed_over(&mut self, client: usize, taker: usize, token: &[u8; 40]) {
        self.rare.hit(Rare::HandedOver);
        let unanswered = self.clients[client].slots.iter().filter_map(|slot| slot.connection);
        let unanswered = unanswered.filter(|id| self.connections[*id].asks(token));
        let slots: u64 = unanswered.map(|id| 1 << self.connections[id].slot).sum();
        self.rare.hit_if(slots != 0, Rare::HandedOverUnanswered);
        let quarantines = self.quarantines(client);
        let is_lost = self.checker.hand_over(token, taker, slots, quarantines);
        self.rare.hit_if(is_lost, Rare::HandedOverLost);
        for owed in self.clients.iter_mut().flat_map(|client| &mut client.owed) {
            owed.retain(|owed| owed.token != *token);
        }
    }
}

/// From here on, the giver sends nothing for the lock.
fn let_go(engine: &mut Engine, now: Moment, lease: &mut Lease) {
    engine.let_go(now, lease);
}
