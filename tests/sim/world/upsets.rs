//! What goes wrong while clients wait for a stranger's lock: how some of it comes about.

use super::World;
use super::check::quorum;
use super::clock::SECOND;
use super::rare::Rare;
use super::redis::{Value, is_queue};
use super::vigil::Upset;

/// Longer than anybody waits for a lock that is free.
const ENDS_LATE: u64 = 100 * SECOND;
/// What a client needs to be told of a change.
const RIGHT: &str = "client|caching";

impl Upset {
    /// Whether it is about a node, and the others must vote.
    pub fn is_of_node(self) -> bool {
        matches!(self, Upset::End | Upset::Stray | Upset::Long | Upset::Mute)
    }

    /// Whether it is about the client that comes first.
    pub fn is_of_first(self) -> bool {
        matches!(self, Upset::Places | Upset::Ended) || self.needs_three()
    }

    /// Whether it is about the one behind the second.
    pub fn needs_three(self) -> bool {
        matches!(self, Upset::Away | Upset::Elsewhere | Upset::Second)
    }
}

impl World {
    /// What must be so before the first one comes. Returns the nodes that the stranger locks.
    pub fn prepare_upset(&mut self, upset: Upset, who: usize) -> Vec<usize> {
        let nodes = self.plan.nodes;
        match upset {
            Upset::Long => {
                // Servers tell of an end when they come across it.
                self.plan.ends_late = ENDS_LATE;
                self.rare.hit(Rare::LongerKey);
                (0..nodes).collect()
            }
            Upset::Mute => {
                self.rare.hit(Rare::MuteMajority);
                let locked = (0..quorum(nodes)).map(|turn| (who + turn) % nodes);
                let locked: Vec<usize> = locked.collect();
                locked[1..].iter().for_each(|node| self.mute(*node));
                locked
            }
            _ => (0..nodes).collect(),
        }
    }

    /// Nobody can wait at the node from now on: those that are connected have to ask again.
    fn mute(&mut self, node: usize) {
        self.nodes[node].redis.server.forbids.push(RIGHT);
        for id in std::mem::take(&mut self.nodes[node].connections) {
            self.end_server(id);
        }
    }

    /// The second client loses its connection to the queue node, and waits at another one; where it
    /// is connected again, its place is still listed.
    pub fn send_second_elsewhere(&mut self, first: usize) {
        let second = (first + 1) % self.clients.len();
        for node in 0..self.plan.nodes {
            let channel = |client: usize| {
                let id = self.clients[client].slots[node].connection?;
                Some((id, self.connections[id].session.channels.first()?.clone()))
            };
            let (Some((_, own)), Some((id, other))) = (channel(first), channel(second)) else {
                continue;
            };
            let is_queue_node = self.nodes[node].redis.data.iter().any(|(key, entry)| {
                let Value::List(places) = &entry.value else {
                    return false;
                };
                is_queue(&key.1) && places.contains(&own) && places.contains(&other)
            });
            if is_queue_node {
                self.rare.hit(Rare::SecondElsewhere);
                self.nodes[node].connections.retain(|connection| *connection != id);
                self.end_server(id);
            }
        }
    }
}
