//! Waiters of one client that come for a lock again and again, and another client that waits for it
//! in the same queue, at another queue node, or where the first one cannot wait.
//!
//! FAIR: a series of locks ends, and then the other client gets it (W13).

use muxlock::Resource;
use muxlock::proto::Lease;

use super::World;
use super::clock::{MICRO, MILLI, SECOND};
use super::plan::Class;
use super::queue::Event;
use super::rare::Rare;
use super::redis::{Key, Value, is_queue};

/// Below it, a lock may end while it is waited for; and a key that lives longer is of no lock here.
const TTL: u64 = 500 * MILLI;
const WAITERS_MIN: u32 = 2;
const WAITERS_MAX: u32 = 4;
/// How often the other client gets the lock before all is over.
const TURNS: u32 = 3;
const HOLD_MAX: u64 = MILLI;
const PATIENCE: u64 = 100 * SECOND;
/// How many locks the local queue may get while the other one waits in a queue: what it takes to
/// see the other one, and a whole series.
const ROW_MAX: u32 = 36;
/// The same if that one waits elsewhere: when it is told, the local queue asks at its own queue
/// node, and may come first a few times.
const ROWS_MAX: u32 = 120;
/// The same if the local queue may not wait where the other one does. It sees it by counting at
/// each node in turn: three series.
const BARRED_MAX: u32 = 64;
/// All is over after so many locks of the local queue, whoever has lacked votes meanwhile.
const LOCKS_MAX: u32 = 400;

/// Where the other client waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the local queue's queue.
    Behind,
    /// At another queue node: that of the local queue refuses its connections.
    Elsewhere,
    /// At a queue node that the local queue may not use: there, it may not subscribe to its
    /// channel.
    Barred,
}

const PLACES: [Place; 3] = [Place::Behind, Place::Elsewhere, Place::Barred];

/// A local queue and another client.
pub struct Rows {
    line: usize,
    other: usize,
    /// How many waiters the local queue is to have.
    waiters: u32,
    /// Where the other client is to wait, and the local queue's first queue node.
    place: Place,
    queue_node: Option<usize>,
    /// The node that refuses the other client, or the local queue's channel, and until when.
    shut: Option<(usize, u64)>,
    /// How many locks the other client has got, and how many the local queue since that one waits.
    turns: u32,
    row: u32,
    /// In how many queues the other client had stood before it came.
    queued: u64,
    /// Whether the local queue has met it.
    has_begun: bool,
    /// How many locks the local queue may still get.
    left: u32,
}

impl World {
    /// A local queue takes a lock again and again, and another client wants it.
    pub fn wait_behind_rows(&mut self) {
        let is_odd = self.plan.class != Class::Durable || self.plan.nodes < 3;
        let is_wanted = self.plan.waits && !is_odd && self.plan.max_ttl >= TTL;
        if self.violation.is_some() || !is_wanted {
            return;
        }
        let clients = self.clients.len() as u32;
        let line = self.choices.below(clients) as usize;
        let other = (line + 1 + self.choices.below(clients - 1) as usize) % clients as usize;
        let waiters = WAITERS_MIN + self.choices.below(WAITERS_MAX - WAITERS_MIN + 1);
        let place = self.choices.pick(&PLACES);
        self.timeline.note(self.now, || {
            format!("client {line} comes again and again, and client {other} waits: {place:?}")
        });
        self.rows = Some(Rows {
            line,
            other,
            waiters,
            place,
            queue_node: None,
            shut: None,
            turns: 0,
            row: 0,
            queued: 0,
            has_begun: false,
            left: LOCKS_MAX,
        });
        self.rows_turn(other);
        while self.violation.is_none() && self.step() {}
        self.rows = None;
    }

    /// A client gives back what it has, and comes again unless all is over.
    pub fn rows_turn(&mut self, client: usize) {
        if let Some(lease) = self.clients[client].leases.pop() {
            let queue_node = self.rows.as_ref().and_then(|rows| self.queue_node_of(rows.line));
            self.release(client, lease);
            self.wake_client(client, self.now);
            let Some(rows) = &mut self.rows else {
                return;
            };
            rows.queue_node = rows.queue_node.or(queue_node);
            // It comes again when the local queue has the lock.
            if client == rows.other && rows.turns == 1 {
                return;
            }
        }
        let Some(rows) = &mut self.rows else {
            return;
        };
        if rows.turns > TURNS || rows.left == 0 {
            rows.shut = None;
            return;
        }
        if client == rows.other {
            (rows.row, rows.queued) = (0, self.clients[client].engine.stats().queued);
        }
        let made = Resource::new(self.name_of(client, 0)).expect("a valid name");
        self.lock_as(client, made, TTL, PATIENCE);
        self.wake_client(client, self.now);
    }

    pub fn rows_granted(&mut self, client: usize, lease: Lease) {
        self.clients[client].leases.push(lease);
        let way = self.way();
        let hold = self.choices.magnitude(10 * MICRO, HOLD_MAX);
        let Some(rows) = &mut self.rows else {
            return;
        };
        let (line, other) = (rows.line, rows.other);
        if client == other {
            rows.turns += 1;
            if rows.turns > 1 {
                return self.queue.push(self.now + hold, Event::Rows(client));
            }
            // The local queue comes, and stands in a queue before it is given back.
            for waiter in 0..u64::from(rows.waiters) {
                self.queue.push(self.now + (1 + waiter) * way / 4, Event::Rows(line));
            }
            return self.queue.push(self.now + 20 * way, Event::Rows(client));
        }
        self.queue.push(self.now + hold, Event::Rows(client));
        rows.left = rows.left.saturating_sub(1);
        if !std::mem::replace(&mut rows.has_begun, true) {
            match (rows.queue_node, rows.place) {
                (Some(queue_node), Place::Elsewhere) => self.shut_out(other, queue_node),
                (Some(queue_node), Place::Barred) => self.shut_out(line, queue_node),
                _ => {}
            }
            return self.queue.push(self.now + 4 * way, Event::Rows(other));
        }
        let stands = self.clients[other].engine.stats().queued > rows.queued;
        if !stands || !self.sees_quorum(other) {
            return;
        }
        let (queue_node, own) = (self.queue_node_of(other), self.queue_node_of(line));
        let Some(rows) = &mut self.rows else {
            return;
        };
        rows.row += 1;
        let row = rows.row;
        let (kind, most) = match rows.place {
            Place::Behind if queue_node == own => (Rare::RowBehind, ROW_MAX),
            Place::Barred if queue_node == rows.queue_node => (Rare::RowBarred, BARRED_MAX),
            _ => (Rare::RowElsewhere, ROWS_MAX),
        };
        self.rare.hit_if(row == 1, kind);
        if row > most {
            let text = format!("client {other} waits while client {line} gets it {row} times");
            self.fail("FAIR", || text);
        }
    }

    /// Where the client stands in a queue.
    fn queue_node_of(&self, client: usize) -> Option<usize> {
        self.queues_of(client).next().map(|(slot, _)| slot)
    }

    /// The queues that the client stands in: at which node, and for what.
    pub fn queues_of(&self, client: usize) -> impl Iterator<Item = (usize, &Key)> {
        (0..self.plan.nodes).flat_map(move |slot| {
            let id = self.clients[client].slots[slot].connection;
            let channel = id.and_then(|id| self.connections[id].session.channels.first());
            let lists = move |value: &Value| match (value, channel) {
                (Value::List(places), Some(channel)) => places.contains(channel),
                _ => false,
            };
            let entries = self.nodes[self.plan.routes[slot]].redis.data.iter();
            let queues = entries.filter(move |(key, it)| is_queue(&key.1) && lists(&it.value));
            queues.map(move |(key, _)| (slot, key))
        })
    }

    /// The client loses its connection to the node, which accepts no other, or not its channel.
    fn shut_out(&mut self, client: usize, slot: usize) {
        let node = self.plan.routes[slot];
        if let Some(rows) = &mut self.rows {
            rows.shut = Some((node, self.now + PATIENCE));
        }
        self.drop_connection(client, slot);
    }

    /// Whether the node refuses this client.
    pub fn is_shut_out(&self, client: usize, node: usize) -> bool {
        self.rows.as_ref().is_some_and(|rows| {
            rows.other == client && rows.place == Place::Elsewhere && rows.is_shut(node, self.now)
        })
    }

    /// Whether this client may not subscribe to its channel on the node.
    pub fn is_barred(&self, client: usize, node: usize) -> bool {
        self.rows.as_ref().is_some_and(|rows| {
            rows.line == client && rows.place == Place::Barred && rows.is_shut(node, self.now)
        })
    }
}

impl Rows {
    fn is_shut(&self, node: usize, now: u64) -> bool {
        self.shut.is_some_and(|(shut, until)| shut == node && now < until)
    }
}
