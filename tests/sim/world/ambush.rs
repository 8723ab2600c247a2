//! Connections that are lost when it hurts: while a lock's commands are under way on them.

use muxlock::proto::Lease;

use super::World;
use super::clock::MILLI;
use super::faults::Fault;
use super::network::{Connection, Way};
use super::timeline::Millis;

/// How often somebody lies in wait for a lock that is asked for and may be healed.
const AMBUSHES: u32 = 400;
/// How often, in runs with cuts, a connection is lost or stands still on which a lock that was just
/// granted is not answered.
const STRAGGLERS: u32 = 300;
/// How often, in runs with partitions, who is given a lock does not reach one of its nodes.
const PARTINGS: u32 = 500;

/// The next connections of a client to a slot are cut as soon as a command of one lock is under
/// way: the first with its SET.
pub struct Ambush {
    client: usize,
    slot: usize,
    token: Option<[u8; 40]>,
    cuts: u32,
}

impl World {
    /// A client is about to ask for a lock.
    pub fn may_lie_in_wait(&mut self, client: usize) {
        let is_there = self.ambushes.iter().any(|ambush| ambush.client == client);
        let is_wanted = self.plan.heals && self.plan.has(Fault::CutTwice) && !is_there;
        if is_wanted && self.choices.chance(AMBUSHES) {
            let slot = self.choices.below(self.plan.nodes as u32) as usize;
            self.ambushes.push(Ambush { client, slot, token: None, cuts: 2 });
        }
    }

    /// Whether somebody lies in wait for this lock.
    pub fn is_hunted(&self, token: &[u8; 40]) -> bool {
        self.ambushes.iter().any(|ambush| ambush.token.as_ref() == Some(token))
    }

    /// A lock's command is on its way on a connection.
    pub fn may_cut(&mut self, id: usize, token: [u8; 40], is_set: bool) {
        let Connection { client, slot, .. } = self.connections[id];
        let is_it = |it: &Ambush| {
            let is_its = it.token.map_or(is_set, |other| other == token);
            (it.client, it.slot) == (client, slot) && is_its
        };
        let Some(at) = self.ambushes.iter().position(is_it) else {
            return;
        };
        let ambush = &mut self.ambushes[at];
        (ambush.token, ambush.cuts) = (Some(token), ambush.cuts - 1);
        if ambush.cuts == 0 {
            self.ambushes.swap_remove(at);
        }
        let until = self.late();
        self.cut_late(id, until);
    }

    /// Cuts a connection, and the next one, on which the same lock is asked about.
    pub fn cut_twice(&mut self, id: usize, until: u64) {
        let Connection { client, slot, .. } = self.connections[id];
        if let Some(asked) = self.connections[id].asked.back() {
            self.ambushes.push(Ambush { client, slot, token: Some(asked.token), cuts: 1 });
        }
        self.cut_late(id, until);
    }

    /// Ends a connection; what was sent arrives, but later than anybody expects.
    pub fn cut_late(&mut self, id: usize, until: u64) {
        self.timeline.note(self.now, || {
            format!("connection {id} is cut; what was sent arrives from {} on", Millis(until))
        });
        self.connections[id].up.held_until = until;
        self.end_pipe(id, Way::Down);
    }

    /// When what is held up arrives.
    fn late(&mut self) -> u64 {
        self.now + self.choices.magnitude(MILLI / 10, 2 * self.plan.max_ttl)
    }

    /// A lock was just granted: a connection may be lost whose node has not answered yet, and not
    /// come back for a while; or it stands still.
    pub fn may_disturb_stragglers(&mut self, client: usize, token: &[u8; 40]) {
        let is_twice = self.plan.heals && self.plan.has(Fault::CutTwice);
        let is_wanted = is_twice || self.plan.hands_over && self.plan.has(Fault::Cut);
        if !is_wanted || self.is_hunted(token) || !self.choices.chance(STRAGGLERS) {
            return;
        }
        for slot in 0..self.plan.nodes {
            let asks = |id: &usize| self.connections[*id].asks(token);
            let Some(id) = self.clients[client].slots[slot].connection.filter(asks) else {
                continue;
            };
            let until = self.late();
            if is_twice {
                self.cut_twice(id, until);
                continue;
            }
            if self.choices.chance(300) {
                self.connections[id].up.held_until = until;
                continue;
            }
            self.cut_late(id, until);
            let node = self.connections[id].node;
            self.shut[client][node] = self.late();
        }
    }

    /// A lock was just handed over: its new owner may not reach a node that granted it.
    pub fn may_part(&mut self, taker: usize, lease: &Lease) {
        if !self.plan.has(Fault::Partition) || !self.choices.chance(PARTINGS) {
            return;
        }
        let granted: Vec<usize> = lease.granted_by().collect();
        let slot = granted[self.choices.below(granted.len() as u32) as usize];
        let node = self.plan.routes[slot];
        let until = self.late();
        self.timeline.note(self.now, || {
            format!("client {taker} does not reach node {node} until {}", Millis(until))
        });
        self.links[taker][node] = until;
    }
}
