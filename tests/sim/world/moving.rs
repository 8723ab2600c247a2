//! A process that changes its place while a lock is extended that it has: it answers at one
//! address, and then at another one, where a client has seen nobody for long.
//!
//! NO-FALSE-VOTE: it counts once, also if a quarantine that it had before is over (R34).

use muxlock::Resource;
use muxlock::node::NodeState;
use muxlock::proto::Lease;
use muxlock::settings::RestartGuard;

use super::World;
use super::check::quorum;
use super::clock::{MILLI, SECOND};
use super::network::ClientEnd;
use super::node::Memory;
use super::plan::Class;
use super::queue::Event;
use super::rare::Rare;
use super::work::token_of;

/// How often this is played, in runs where it can be.
const PLAYS: u32 = 300;
/// Below it, a lock is over before a client tries to connect again.
const TTL_MIN: u64 = 2 * SECOND;
/// How long the lock is asked for.
const PATIENCE: u64 = SECOND;
/// How many message times the other address is out of reach: for longer than it takes to hear of
/// the extension at the first one, and to lose that connection.
const WAYS: u64 = 5;

impl World {
    /// A node is restarted, and its quarantine ends. A client locks what nobody wants, and extends
    /// that when the process is about to move.
    pub fn move_in_extension(&mut self) {
        let is_odd = self.plan.class != Class::Durable || self.plan.nodes < 3;
        let is_trusting = self.plan.guard == RestartGuard::Uptime && self.plan.max_ttl >= TTL_MIN;
        if is_odd || !is_trusting || !self.choices.chance(PLAYS) {
            return;
        }
        let client = self.choices.below(self.clients.len() as u32) as usize;
        let is_whole =
            self.clients[client].engine.statuses().all(|it| it.state == NodeState::Ready);
        if !is_whole {
            return;
        }
        let nodes = self.plan.nodes;
        let first = self.choices.below(nodes as u32) as usize;
        let second = (first + 1 + self.choices.below(nodes as u32 - 1) as usize) % nodes;
        let (mover, stayer) = (self.plan.routes[first], self.plan.routes[second]);
        self.timeline.note(self.now, || {
            format!("node {mover} will move from {first} to {second} of client {client}")
        });
        self.is_moving = true;
        self.nodes[mover].crash(self.now, Memory::Everything);
        self.end_all(mover, false);
        self.queue.push(self.now + MILLI, Event::Restart(mover));
        let over_at = self.now + self.plan.quarantine() / 20 * 21 + SECOND;
        self.shut[client][stayer] = over_at + 4 * self.plan.max_ttl;
        self.drop_connection(client, second);
        self.wait_until(over_at);
        let made = Resource::new(self.name_of(client, 0)).expect("a valid name");
        self.lock_as(client, made, self.plan.max_ttl, PATIENCE);
        self.wake_client(client, self.now);
        self.step_until(self.now + PATIENCE, |world| !world.clients[client].leases.is_empty());
        if let Some(lease) = self.clients[client].leases.pop() {
            self.extend_while_moving(client, lease, (first, second));
        }
        // Who is connected to the process at its first address cannot be so at the second.
        for client in 0..self.clients.len() {
            self.drop_connection(client, first);
            self.drop_connection(client, second);
        }
        (self.shut[client][mover], self.shut[client][stayer]) = (0, 0);
        while self.violation.is_none() && self.step() {}
        self.is_moving = false;
    }

    /// The client extends the lock when the second address leads to the process of the first.
    fn extend_while_moving(&mut self, client: usize, lease: Lease, places: (usize, usize)) {
        let (first, second) = places;
        let mover = self.plan.routes[first];
        let end = self.clients[client].clock.when(lease.valid_until().as_nanos());
        if !lease.granted_by().any(|slot| slot == first) {
            return self.release(client, lease);
        }
        self.plan.routes.swap(first, second);
        self.has_swapped = true;
        let far = self.now + 4 * self.plan.max_ttl;
        self.shut[client][mover] = far;
        // It is on its way to the process, and to no other.
        let connects = |world: &World| {
            let id = world.clients[client].slots[second].connection;
            let connection = id.map(|id| &world.connections[id]);
            connection.is_some_and(|it| it.node == mover && it.client_end == ClientEnd::Connecting)
        };
        let early = 2 * self.plan.node_timeout + self.plan.connect_timeout;
        self.step_until(end.saturating_sub(early), connects);
        if self.violation.is_some() || !connects(self) {
            return self.release(client, lease);
        }
        self.shut[client][mover] = self.now + WAYS * self.way();
        let spared = quorum(self.plan.nodes) - 2;
        let others = (0..self.plan.nodes).filter(|slot| ![first, second].contains(slot));
        for slot in others.skip(spared) {
            if let Some(id) = self.clients[client].slots[slot].connection {
                self.connections[id].down.held_until = end;
            }
        }
        let token = token_of(&lease);
        let known = self.checker.attempts.get(&token).map_or(0, |it| it.heard.len());
        self.extend(client, lease, self.plan.max_ttl);
        self.wake_client(client, self.now);
        let hears = |world: &World| {
            let heard = world.checker.attempts.get(&token).map_or(&[][..], |it| &it.heard);
            heard[known.min(heard.len())..].iter().any(|it| it.is_extension && it.slot == first)
        };
        self.step_until(end, hears);
        self.rare.hit_if(hears(self), Rare::MovedInExtension);
        self.drop_connection(client, first);
        self.step_until(end, |world| !world.clients[client].leases.is_empty());
        if let Some(lease) = self.clients[client].leases.pop() {
            self.release(client, lease);
        }
    }

    /// The server ends its connection with the client.
    pub fn drop_connection(&mut self, client: usize, slot: usize) {
        if let Some(id) = self.clients[client].slots[slot].connection {
            let node = self.connections[id].node;
            self.nodes[node].connections.retain(|connection| *connection != id);
            self.end_server(id);
        }
    }

    /// Lets all happen that does before this moment.
    fn wait_until(&mut self, at: u64) {
        self.queue.push(at, Event::Nothing);
        while self.violation.is_none() && self.now < at && self.step() {}
    }

    /// Lets happen what does until this is true, but not after that moment.
    fn step_until(&mut self, at: u64, is_it: impl Fn(&World) -> bool) {
        self.queue.push(at.max(self.now), Event::Nothing);
        while self.violation.is_none() && self.now < at && !is_it(self) && self.step() {}
    }
}
