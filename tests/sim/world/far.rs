//! A writer that is far away, and readers that are near and never all gone at a time.
//!
//! FAIR: its sign holds them off until it asks again, so it gets in before long (K6).

use muxlock::Resource;
use muxlock::proto::Lease;

use super::World;
use super::clock::{MILLI, SECOND};
use super::plan::{COMMAND_BYTES_MAX, Class};
use super::queue::Event;
use super::rare::Rare;

/// Answers of the writer's nodes come in time, also in a handshake, and its locks outlive its
/// rounds.
const TIMEOUT_MIN: u64 = SECOND;
const TTL_MIN: u64 = 2 * SECOND;
/// A message takes this part of what a node may take to answer.
const WAYS_PER_TIMEOUT: u64 = 6;
const READERS: u64 = 6;
const HOLD: u64 = 200 * MILLI;
/// How many locks the writer takes alone: it learns how far away it is.
const ALONE: u32 = 3;
/// A few of its round trips, the longest hold, and what its retries are spread over.
const WRITER_MAX: u64 = 6 * SECOND;
const PATIENCE: u64 = 30 * SECOND;

/// A writer that is far away.
pub struct Far {
    writer: usize,
    /// What a message to or from it takes longer.
    pub way: u64,
    /// How many locks it still takes alone.
    alone: u32,
    since: u64,
    /// Its connections then.
    connections: Vec<Option<usize>>,
    is_in: bool,
}

impl World {
    /// Readers come and go, and a writer wants to get in.
    pub fn write_from_far(&mut self) {
        let is_odd = self.plan.class != Class::Durable || self.plan.nodes < 3;
        // A connection and its handshake are two round trips of those.
        let timeout = self.plan.node_timeout.min(2 * self.plan.connect_timeout);
        let is_slow = timeout < TIMEOUT_MIN || self.plan.max_ttl < TTL_MIN;
        if is_odd || is_slow {
            return;
        }
        let writer = self.choices.below(self.clients.len() as u32) as usize;
        let way = timeout / WAYS_PER_TIMEOUT;
        self.plan.wire.buffer = self.plan.wire.buffer.max(COMMAND_BYTES_MAX);
        self.timeline.note(self.now, || format!("client {writer} is far away"));
        self.far = Some(Far {
            writer,
            way,
            alone: ALONE,
            since: 0,
            connections: Vec::new(),
            is_in: false,
        });
        self.far_turn(writer);
        while self.violation.is_none() && self.step() {}
        self.far = None;
    }

    /// What a message between this client and a node takes longer than others.
    pub fn distance(&self, client: usize) -> u64 {
        self.far.as_ref().filter(|far| far.writer == client).map_or(0, |far| far.way)
    }

    /// A client gives back what it has had the longest, and asks again unless all is over.
    pub fn far_turn(&mut self, client: usize) {
        if !self.clients[client].leases.is_empty() {
            let lease = self.clients[client].leases.remove(0);
            self.release(client, lease);
        }
        let Some(far) = &mut self.far else {
            return;
        };
        let is_writer = far.writer == client;
        if !far.is_in {
            if is_writer {
                let slots = self.clients[client].slots.iter();
                far.connections = slots.map(|slot| slot.connection).collect();
                far.since = self.now;
            }
            let name = self.name_of(client, 0);
            let made = if is_writer { Resource::exclusive(name) } else { Resource::shared(name) };
            self.lock_as(client, made.expect("a valid name"), self.plan.max_ttl, PATIENCE);
        }
        self.wake_client(client, self.now);
    }

    pub fn far_granted(&mut self, client: usize, lease: Lease) {
        self.clients[client].leases.push(lease);
        let Some(far) = &mut self.far else {
            return;
        };
        if far.writer != client {
            return self.queue.push(self.now + HOLD, Event::Far(client));
        }
        if far.alone > 0 {
            far.alone -= 1;
            // The readers come first when it comes for the last time.
            let later = if far.alone == 0 { HOLD + 2 * far.way } else { 0 };
            let clients = self.clients.len();
            for reader in (0..READERS).filter(|_| later > 0) {
                let near = (client + 1 + reader as usize % (clients - 1)) % clients;
                let at = self.now + 2 * self.distance(client) + (reader + 1) * HOLD / READERS;
                self.queue.push(at, Event::Far(near));
            }
            if later > 0 {
                let lease = self.clients[client].leases.pop();
                lease.into_iter().for_each(|lease| self.release(client, lease));
                self.wake_client(client, self.now);
            }
            return self.queue.push(self.now + 2 * later, Event::Far(client));
        }
        far.is_in = true;
        let took = self.now - far.since;
        self.rare.hit(Rare::FarWriter);
        // A client that has extended a short lock takes a connection for dead before an answer from
        // so far can come, and makes another one.
        let slots = self.clients[client].slots.iter();
        let has_reconnected =
            !slots.map(|slot| slot.connection).eq(far.connections.iter().copied());
        if took > WRITER_MAX && !has_reconnected {
            let text = format!("client {client} gets in after {} ms", took / MILLI);
            return self.fail("FAIR", || text);
        }
        self.queue.push(self.now, Event::Far(client));
    }

    pub fn far_missed(&mut self, client: usize) {
        if self.far.as_ref().is_some_and(|far| far.writer == client) {
            self.fail("FAIR", || format!("client {client} never gets in: it is far away"));
        }
    }
}
