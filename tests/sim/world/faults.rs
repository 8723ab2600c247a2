//! What goes wrong, and how it ends.

use std::collections::BTreeMap;

use super::World;
use super::clock::MILLI;
use super::network::{ClientEnd, Way};
use super::node::{Cause, Door, Memory};
use super::plan::Class;
use super::queue::Event;
use super::rare::Rare;
use super::redis::{Data, Entry, Value};
use super::timeline::Millis;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// One direction of a connection stands still.
    Stall,
    /// Nothing passes between a client and a node.
    Partition,
    /// A connection ends, at one end or at both.
    Cut,
    /// A connection ends, and the next one of the same client to the same node; what was sent on
    /// them arrives late.
    CutTwice,
    /// Nobody can connect to a node.
    Door,
    /// All messages are late.
    Slow,
    /// A node's process stands still.
    Freeze,
    /// A client's process stands still.
    Pause,
    /// A client's process ends, and another takes its place.
    ClientRestart,
    /// A node's process dies and comes back with all it knew.
    Crash,
    /// A node refuses commands for a while.
    Refuse,
    /// A node sends what no client should accept.
    Poison,
    /// A node sends a reply too many.
    Surplus,
    /// Somebody puts a value of another type where a lock would be.
    ForeignKey,
    /// A node saves its data, for a crash to come back to.
    Save,
    /// A node's process dies and comes back without all it knew.
    Loss,
    /// As `Loss`, and the new process claims to be older than it is.
    BootStep,
    /// A node's wall clock is set forward.
    StepForward,
    /// A node's wall clock is set back.
    StepBack,
    /// A node's data is flushed.
    Flush,
    /// The data of another database is flushed.
    FlushElsewhere,
    /// A node evicts a key.
    Evict,
    /// A replica takes a node's place.
    Failover,
    /// A node that had a replica is started again, from what it has saved.
    Rdb,
    /// A node becomes a replica for a while.
    Demote,
    /// A client's machine stands still, its clock included.
    Hypervisor,
    /// A client's wall clock is set forward, which its safety clock takes for time.
    Jump,
    /// Two nodes' processes change places: each address leads to the other's from now on.
    Swap,
    /// Sentinels elect a replica.
    Election,
    /// A node loses its counters, and nothing else.
    CounterLoss,
    /// Somebody puts text in the place of a node's counters.
    CounterText,
}

impl Fault {
    pub const ALL: [Fault; 31] = [
        Fault::Stall,
        Fault::Partition,
        Fault::Cut,
        Fault::CutTwice,
        Fault::Door,
        Fault::Slow,
        Fault::Freeze,
        Fault::Pause,
        Fault::ClientRestart,
        Fault::Crash,
        Fault::Refuse,
        Fault::Poison,
        Fault::Surplus,
        Fault::ForeignKey,
        Fault::Save,
        Fault::Loss,
        Fault::BootStep,
        Fault::StepForward,
        Fault::StepBack,
        Fault::Flush,
        Fault::FlushElsewhere,
        Fault::Evict,
        Fault::Failover,
        Fault::Rdb,
        Fault::Demote,
        Fault::Hypervisor,
        Fault::Jump,
        Fault::Swap,
        Fault::Election,
        Fault::CounterLoss,
        Fault::CounterText,
    ];

    pub fn is_allowed(self, class: Class) -> bool {
        match self {
            Fault::Stall
            | Fault::Partition
            | Fault::Cut
            | Fault::CutTwice
            | Fault::Door
            | Fault::Slow
            | Fault::Freeze
            | Fault::Pause
            | Fault::ClientRestart
            | Fault::Crash
            | Fault::Refuse
            | Fault::Poison
            | Fault::Surplus
            | Fault::ForeignKey
            | Fault::FlushElsewhere
            | Fault::Jump => true,
            Fault::Save | Fault::Loss => class != Class::Durable,
            // Whoever guards nothing may count a process twice.
            Fault::Swap => matches!(class, Class::Durable | Class::Guarded),
            Fault::BootStep | Fault::Election => class == Class::Guarded,
            Fault::Flush | Fault::Evict | Fault::CounterLoss | Fault::CounterText => {
                matches!(class, Class::Stepped | Class::Unguarded)
            }
            Fault::StepForward | Fault::Hypervisor => class == Class::Stepped,
            Fault::StepBack | Fault::Failover | Fault::Rdb | Fault::Demote => {
                matches!(class, Class::Stepped | Class::Promoted)
            }
        }
    }
}

impl Fault {
    /// Whether it is what [`Class::Promoted`] is about.
    pub fn is_of_promotions(self) -> bool {
        matches!(
            self,
            Fault::Failover | Fault::Rdb | Fault::Demote | Fault::ClientRestart | Fault::StepBack
        )
    }
}

impl World {
    /// Something goes wrong, and something else later.
    pub fn strike(&mut self) {
        if self.faults_left == 0 || self.plan.faults.is_empty() {
            self.faults_left = 0;
            return;
        }
        self.faults_left -= 1;
        let pause = self.choices.magnitude(MILLI / 10, 2 * self.plan.fault_interval);
        self.queue.push(self.now + pause, Event::Fault);
        let total: u32 = self.plan.faults.iter().map(|(_, weight)| weight).sum();
        let mut picked = self.choices.below(total);
        let mut faults = self.plan.faults.iter();
        let fault = faults.find_map(|(fault, weight)| {
            let is_it = picked < *weight;
            picked = picked.saturating_sub(*weight);
            is_it.then_some(*fault)
        });
        let Some(fault) = fault else {
            return;
        };
        let node = self.choices.below(self.nodes.len() as u32) as usize;
        let client = self.choices.below(self.clients.len() as u32) as usize;
        let length = self.choices.magnitude(MILLI / 10, self.plan.fault_length_max);
        self.timeline.note(self.now, || {
            format!("FAULT {fault:?}: node {node}, client {client}, {}", Millis(length))
        });
        self.inflict(fault, node, client, length);
    }

    fn inflict(&mut self, fault: Fault, node: usize, client: usize, length: u64) {
        let until = self.now + length;
        match fault {
            Fault::Stall | Fault::Cut | Fault::CutTwice | Fault::Surplus => {
                self.disturb_connection(fault, until);
            }
            Fault::Partition => self.links[client][node] = until,
            Fault::Door => {
                let door = if self.choices.chance(500) { Door::Silent } else { Door::Refusing };
                (self.nodes[node].door, self.nodes[node].door_until) = (door, until);
            }
            Fault::Slow => self.slow_until = until,
            Fault::Freeze => self.nodes[node].frozen_until = until,
            Fault::Pause => self.pause_client(client, length),
            Fault::ClientRestart => self.restart_client(client),
            Fault::Crash => self.crash(node, length, Memory::Everything),
            Fault::Refuse => self.refuse(node, until),
            Fault::Poison => self.nodes[node].is_poisonous = true,
            Fault::ForeignKey => {
                let expires = Some((self.nodes[node].wall(until) / MILLI) as i64);
                let value = Value::Hash(BTreeMap::new());
                let entry = Entry { value, expires, written: 0, extended: 0 };
                let resource = self.choices.below(self.plan.resources as u32) as usize;
                let key = self.key_of(resource);
                self.nodes[node].redis.data.entry(key).or_insert(entry);
            }
            Fault::Save => self.nodes[node].save(),
            Fault::Loss => self.lose(node, length),
            Fault::BootStep => self.lose_and_lie(node, length),
            Fault::StepForward => {
                self.nodes[node].step_forward(self.now, length, 2 * self.plan.max_ttl);
            }
            Fault::StepBack => self.nodes[node].clock.step(self.now, -(length as i64)),
            Fault::Flush => self.wipe(node),
            Fault::FlushElsewhere => self.wipe_another(node),
            Fault::Evict => self.evict(node),
            Fault::Failover => self.fail_over(node),
            Fault::Rdb => {
                self.lose(node, length);
                self.nodes[node].had_replica = true;
            }
            Fault::Demote => self.demote(node, until),
            Fault::Hypervisor => {
                // Who stands still with the clock believes in a lock for longer than it lasts.
                for client in self.of_machine(client) {
                    let it = &self.clients[client];
                    let is_idle = it.leases.is_empty() && it.operations.is_empty();
                    self.mutex_promised &= is_idle;
                    self.clients[client].clock.freeze(self.now, length);
                    self.pause_client(client, length);
                }
            }
            Fault::Jump => self.leap(client, length),
            Fault::Swap => self.swap(node),
            Fault::Election => self.elect(node),
            Fault::CounterLoss => self.spoil_counters(node, false),
            Fault::CounterText => self.spoil_counters(node, true),
        }
    }

    /// A node's data is flushed, its marker with it.
    pub fn wipe(&mut self, node: usize) {
        let told = self.tell_flush(node);
        self.nodes[node].replace(self.now, Data::new(), Cause::Flushed, told);
    }

    /// Another database of the node is flushed: nothing is lost that anybody locks.
    fn wipe_another(&mut self, node: usize) {
        let told = self.tell_flush(node);
        self.rare.hit_if(!told.is_empty(), Rare::FlushElsewhere);
    }

    /// Tells the connections that track keys of a flush. Returns those.
    pub fn tell_flush(&mut self, node: usize) -> Vec<usize> {
        if !self.nodes[node].is_up {
            return Vec::new();
        }
        let sessions: Vec<(usize, u64)> = self.nodes[node]
            .connections
            .iter()
            .map(|id| (*id, &self.connections[*id]))
            .filter(|(_, it)| it.session.is_tracking && it.reaches_server())
            .map(|(id, it)| (id, it.session.id))
            .collect();
        let open = sessions.iter().map(|(_, session)| *session).collect();
        let redis = &mut self.nodes[node].redis;
        redis.open = open;
        redis.listeners.pushes.clear();
        redis.tell_flush();
        for (session, push) in std::mem::take(&mut redis.listeners.pushes) {
            self.push_to(node, session, &push);
        }
        sessions.into_iter().map(|(id, _)| id).collect()
    }

    /// The wall clock of a client's machine is set forward.
    pub fn leap(&mut self, client: usize, length: u64) {
        for client in self.of_machine(client) {
            let it = &mut self.clients[client];
            it.clock.step(self.now, length as i64);
            it.jumped += length;
            self.start_anew(client);
            self.wake_client(client, self.now);
        }
    }

    fn disturb_connection(&mut self, fault: Fault, until: u64) {
        let is_open = |id: &usize| self.connections[*id].client_end == ClientEnd::Established;
        let mut open: Vec<usize> = (0..self.connections.len()).filter(is_open).collect();
        // Those that owe something are where it hurts.
        let owes = |id: &usize| match fault {
            Fault::CutTwice => !self.connections[*id].asked.is_empty(),
            _ => self.connections[*id].commands > self.connections[*id].replies,
        };
        let is_cut = matches!(fault, Fault::Cut | Fault::CutTwice);
        if is_cut && open.iter().any(owes) && self.choices.chance(700) {
            open.retain(owes);
        }
        if open.is_empty() {
            return;
        }
        let id = open[self.choices.below(open.len() as u32) as usize];
        match fault {
            Fault::Stall => {
                let way = if self.choices.chance(500) { Way::Down } else { Way::Up };
                self.connections[id].pipe(way).held_until = until;
            }
            Fault::Surplus => {
                self.surprises.push(id);
                let client = self.connections[id].client;
                self.wake_client(client, self.now);
            }
            Fault::CutTwice => self.cut_twice(id, until),
            _ if self.choices.chance(500) => self.cut_late(id, until),
            _ => self.cut(id),
        }
    }

    /// Something in between ends a connection: what is on the wire is lost from some byte on.
    fn cut(&mut self, id: usize) {
        for way in [Way::Up, Way::Down] {
            if self.choices.chance(300) {
                continue;
            }
            let pipe = self.connections[id].pipe(way);
            let on_wire = pipe.sent() - pipe.arrived;
            let kept = self.choices.below(on_wire as u32 + 1) as usize;
            self.connections[id].pipe(way).lose(kept);
            self.end_pipe(id, way);
        }
    }
}
