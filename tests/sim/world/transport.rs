//! What becomes of messages and connections on their way.

use super::World;
use super::clock::MICRO;
use super::network::{ClientEnd, Connection, ServerEnd, Way};
use super::node::Door;
use super::queue::Event;
use super::rare::Rare;

impl World {
    /// When a message that is sent now arrives.
    pub fn arrival(&mut self) -> u64 {
        let wire = &self.plan.wire;
        let latency = match self.is_faulty {
            true => wire.latency,
            // In time, when all is well.
            false => {
                let patience = self.plan.node_timeout.min(self.plan.connect_timeout / 2);
                wire.latency.min(patience / 8)
            }
        };
        let mut delay = latency + latency / 64 * u64::from(self.choices.below(64));
        if self.is_faulty {
            if self.choices.chance(wire.late) {
                delay += self.choices.magnitude(100 * MICRO, wire.late_max);
            }
            if self.now < self.slow_until {
                delay *= 8;
            }
        }
        self.now + delay
    }

    /// Puts bytes on the wire, in one piece or in two.
    pub fn transmit(&mut self, id: usize, way: Way, bytes: &[u8]) {
        let cut = match bytes.len() {
            2.. if self.choices.chance(self.plan.wire.split) => {
                self.rare.hit(Rare::SplitReply);
                1 + self.choices.below(bytes.len() as u32 - 1) as usize
            }
            _ => bytes.len(),
        };
        let distance = self.distance(self.connections[id].client);
        for piece in [&bytes[..cut], &bytes[cut..]] {
            if !piece.is_empty() {
                let at = self.arrival() + distance;
                let at = self.connections[id].pipe(way).send(at, piece);
                self.queue.push(at, Event::Deliver(id, way));
            }
        }
    }

    /// Lets the other end of a connection know that it is over.
    pub fn end_pipe(&mut self, id: usize, way: Way) {
        let at = self.arrival();
        let at = self.connections[id].pipe(way).finish(at);
        self.queue.push(at, Event::Deliver(id, way));
    }

    pub fn new_connection(&mut self, client: usize, slot: usize) -> usize {
        let id = self.connections.len();
        let node = self.plan.routes[slot];
        let mut connection = Connection::new(client, slot, node);
        connection.elections = self.nodes[node].elections;
        self.connections.push(connection);
        let at = self.arrival();
        self.queue.push(at, Event::Knock(id));
        id
    }

    /// A connection request reaches the node's machine; its kernel answers, whatever the process
    /// is up to.
    pub fn knock(&mut self, id: usize) {
        let (client, node) = (self.connections[id].client, self.connections[id].node);
        if self.connections[id].client_end == ClientEnd::Closed {
            return;
        }
        let open_at = self.links[client][node].max(self.shut[client][node]);
        if self.now < open_at {
            return self.queue.push(open_at, Event::Knock(id));
        }
        let it = &self.nodes[node];
        let is_other = it.elections != self.connections[id].elections;
        self.rare.hit_if(is_other, Rare::ElectedMeanwhile);
        let door = match self.now < it.door_until {
            // The one before is no master now.
            _ if is_other || self.is_shut_out(client, node) => Door::Refusing,
            true => it.door,
            false => Door::Open,
        };
        match door {
            Door::Silent => return,
            Door::Open if it.is_up => {
                self.connections[id].server_end = ServerEnd::Backlog;
                self.nodes[node].connections.push(id);
                self.wake_node(node);
            }
            Door::Open | Door::Refusing => self.connections[id].server_end = ServerEnd::Gone,
        }
        let at = self.arrival();
        self.queue.push(at, Event::Answer(id));
    }

    /// The machine's answer reaches the client.
    pub fn answer(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        if connection.client_end == ClientEnd::Connecting {
            let is_refused = connection.server_end == ServerEnd::Gone && connection.session.id == 0;
            connection.client_end =
                if is_refused { ClientEnd::Refused } else { ClientEnd::Established };
            let client = connection.client;
            self.wake_client(client, self.now);
        }
    }

    /// A second connection is made beside this one, and the server answers there, once it runs.
    pub fn answer_beside(&mut self, id: usize) {
        let (client, node) = (self.connections[id].client, self.connections[id].node);
        let connection = &mut self.connections[id];
        let beside = connection.beside.take_if(|(_, at)| *at == self.now);
        let Some((opened_at, _)) =
            beside.filter(|_| connection.client_end == ClientEnd::Established)
        else {
            return;
        };
        let it = &self.nodes[node];
        let shut = self.links[client][node].max(self.shut[client][node]);
        let at = shut.max(it.frozen_until);
        if self.now < at {
            self.connections[id].beside = Some((opened_at, at));
            return self.queue.push(at, Event::Beside(id));
        }
        if !it.is_up || (self.now < it.door_until && it.door != Door::Open) {
            return;
        }
        let slot = self.connections[id].slot;
        self.clients[client].slots[slot].answered_beside = Some(id);
        self.wake_client(client, self.now);
    }

    /// The client closes its end: what it sent may still arrive, or a part of it.
    pub fn close_connection(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        connection.client_end = ClientEnd::Closed;
        connection.closed_at = self.now;
        connection.down.discard();
        self.note_lost_commands(id);
        match self.connections[id].server_end {
            ServerEnd::Absent | ServerEnd::Gone => {}
            // A reset takes a connection back that the process has not accepted yet.
            ServerEnd::Backlog if self.choices.chance(500) => {
                let node = self.connections[id].node;
                self.connections[id].server_end = ServerEnd::Gone;
                self.connections[id].up.discard();
                self.nodes[node].connections.retain(|other| *other != id);
            }
            ServerEnd::Backlog | ServerEnd::Accepted => {
                if self.choices.chance(300) {
                    let up = &self.connections[id].up;
                    let on_wire = (up.sent() - up.arrived) as u32;
                    let kept = self.choices.below(on_wire + 1) as usize;
                    self.connections[id].up.lose(kept);
                }
                self.end_pipe(id, Way::Up);
            }
        }
    }

    /// Something may arrive at an end of a connection.
    pub fn deliver(&mut self, id: usize, way: Way) {
        let connection = &mut self.connections[id];
        let (client, node) = (connection.client, connection.node);
        let open_at = self.links[client][node];
        if let Some(at) = connection.pipe(way).arrive(self.now, open_at) {
            return self.queue.push(at, Event::Deliver(id, way));
        }
        match way {
            Way::Up if connection.reaches_server() => self.wake_node(node),
            Way::Up if connection.up.readable() > 0 => {
                connection.up.discard();
                // A machine that knows of no such connection says so.
                let is_reset = connection.client_end == ClientEnd::Established;
                if is_reset && (self.nodes[node].is_up || self.now >= self.nodes[node].door_until) {
                    self.end_pipe(id, Way::Down);
                }
            }
            Way::Up => {}
            Way::Down if connection.client_end == ClientEnd::Established => {
                let late = u64::from(self.choices.below(40)) * 5 * MICRO;
                self.wake_client(client, self.now + late);
            }
            Way::Down => connection.down.discard(),
        }
    }
}
