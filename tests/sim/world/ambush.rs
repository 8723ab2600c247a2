//! Connections that are lost when it hurts: while a lock's commands are under way on them.

use muxlock::Lease;

use super::World;
use super::clock::MILLI;
use super::faults::Fault;
use super::network::Way;
use super::timeline::Millis;
use super::work::token_of;

/// How often, in runs with cuts, a connection is lost on which a lock that was just granted is not
/// answered.
const STRAGGLERS: u32 = 150;
/// How often, in runs with partitions, who is given a lock does not reach one of its nodes.
const PARTINGS: u32 = 300;

/// The next connections of a client to a slot are cut as soon as a lock's command is under way.
pub struct Ambush {
    client: usize,
    slot: usize,
    cuts: u32,
}

impl World {
    pub fn lie_in_wait(&mut self, client: usize, slot: usize, cuts: u32) {
        self.ambushes.push(Ambush { client, slot, cuts });
    }

    /// A lock's command is on its way on a connection.
    pub fn may_cut_again(&mut self, client: usize, slot: usize, id: usize) {
        let is_it = |it: &Ambush| (it.client, it.slot) == (client, slot);
        let Some(at) = self.ambushes.iter().position(is_it) else {
            return;
        };
        self.ambushes[at].cuts -= 1;
        if self.ambushes[at].cuts == 0 {
            self.ambushes.swap_remove(at);
        }
        self.cut_under_way(id);
    }

    /// Ends a connection; what was sent arrives, but later than anybody expects.
    pub fn cut_late(&mut self, id: usize, until: u64) {
        self.connections[id].up.held_until = until;
        self.end_pipe(id, Way::Down);
    }

    fn cut_under_way(&mut self, id: usize) {
        let until = self.now + self.choices.magnitude(MILLI / 10, self.plan.max_ttl);
        self.timeline.note(self.now, || {
            format!("connection {id} is cut; what was sent arrives from {} on", Millis(until))
        });
        self.cut_late(id, until);
    }

    /// A lock was just granted: a connection may be lost whose node has not answered yet, and not
    /// come back for a while.
    pub fn may_cut_stragglers(&mut self, client: usize, lease: &Lease) {
        if !self.plan.has(Fault::Cut) || !self.choices.chance(STRAGGLERS) {
            return;
        }
        let token = token_of(lease);
        for slot in 0..self.plan.nodes {
            let id = self.clients[client].slots[slot].connection;
            let is_open =
                |id: &usize| self.connections[*id].asked.iter().any(|asked| asked.token == token);
            if let Some(id) = id.filter(is_open) {
                self.cut_under_way(id);
                let node = self.connections[id].node;
                let length = self.choices.magnitude(MILLI, self.plan.max_ttl);
                self.shut[client][node] = self.now + length;
            }
        }
    }

    /// A lock was just handed over: its new owner may not reach a node that granted it.
    pub fn may_part_taker(&mut self, taker: usize, lease: &Lease) {
        if !self.plan.has(Fault::Partition) || !self.choices.chance(PARTINGS) {
            return;
        }
        let granted: Vec<usize> = lease.granted_by().collect();
        let slot = granted[self.choices.below(granted.len() as u32) as usize];
        let node = self.plan.routes[slot];
        let length = self.choices.magnitude(MILLI, self.plan.max_ttl);
        self.timeline.note(self.now, || {
            format!("client {taker} does not reach node {node} for {}", Millis(length))
        });
        self.links[taker][node] = self.now + length;
    }
}
