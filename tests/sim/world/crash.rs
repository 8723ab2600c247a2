//! Processes that end, what they forget, and how all comes back.

use std::time::Duration;

use muxlock::proto::NodeEvent;
use muxlock::settings::RestartGuard;

use super::World;
use super::clock::{MILLI, SECOND};
use super::faults::Fault;
use super::fences::FENCE;
use super::network::{ServerEnd, Way};
use super::node::{Cause, Door, Memory};
use super::queue::Event;
use super::rare::Rare;
use super::redis::{Entry, Key, Value};
use super::server::{Refusal, Server, random_name};

/// A client whose last word from a process is no older than this is not taken in by the next
/// one's lying uptime: the guard waits for a second more than any lock lives.
const FRESH_MAX: u64 = 900 * MILLI;
/// For how long the first masters were masters when a run begins.
const LONG_AGO: u64 = 86_400 * SECOND;

impl World {
    pub fn restart_client(&mut self, client: usize) {
        self.rare.hit(Rare::ClientRestart);
        for slot in 0..self.plan.nodes {
            self.close(client, slot);
        }
        self.checker.forget_client(client);
        self.forget_late(client);
        self.heard_at[client].fill(None);
        self.engines += 1;
        let mut new = self.new_client(client, self.clients[client].clock.clone());
        (new.work_left, new.jumped) = (self.clients[client].work_left, self.clients[client].jumped);
        // It starts on the same machine, when that runs.
        new.paused_until = new.clock.stands_until();
        self.clients[client] = new;
    }

    /// Ends a node's process; another one starts later.
    pub fn crash(&mut self, node: usize, downtime: u64, memory: Memory) {
        if !self.nodes[node].is_up {
            return;
        }
        let before = self.sum_of_counters(node);
        let forgotten = self.nodes[node].crash(self.now, memory);
        let after = self.sum_of_counters(node);
        self.rare.hit_if(after.is_none() && before.is_some(), Rare::CounterLost);
        self.rare.hit_if(after.is_some() && after < before, Rare::CounterSetBack);
        self.timeline.note(self.now, || format!("node {node} dies: {memory:?} is kept"));
        match memory {
            Memory::Everything => self.rare.hit(Rare::CrashDurable),
            _ if forgotten => self.rare.hit(Rare::CrashWithLoss),
            _ => {}
        }
        // The whole machine: nobody tells the clients.
        let is_silent = self.choices.chance(300);
        self.end_all(node, is_silent);
        if is_silent {
            let it = &mut self.nodes[node];
            (it.door, it.door_until) = (Door::Silent, self.now + downtime);
        }
        (self.nodes[node].lies, self.nodes[node].had_replica) = (false, false);
        self.queue.push(self.now + downtime, Event::Restart(node));
    }

    pub fn end_all(&mut self, node: usize, is_silent: bool) {
        for id in std::mem::take(&mut self.nodes[node].connections) {
            self.connections[id].server_end = ServerEnd::Gone;
            self.connections[id].up.discard();
            if !is_silent {
                self.end_pipe(id, Way::Down);
            }
        }
    }

    pub fn lose(&mut self, node: usize, downtime: u64) {
        let memory = match self.choices.below(4) {
            0 => Memory::Nothing,
            1 => Memory::Snapshot,
            2 => Memory::AllButLast(self.choices.magnitude(MILLI, 2 * SECOND)),
            _ => Memory::AllButLast(50 * MILLI),
        };
        self.crash(node, downtime / 4, memory);
    }

    /// The new process' clock was behind when it started, and was set right then: it seems to be
    /// up for hours. Who has heard of the old one just now knows better.
    pub fn lose_and_lie(&mut self, node: usize, downtime: u64) {
        let is_up = self.nodes[node].is_up;
        self.lose(node, downtime);
        let knows = |client: usize| {
            let heard = self.heard_at[client][node];
            heard.is_some_and(|(incarnation, at)| {
                incarnation == self.nodes[node].incarnation && self.now - at <= FRESH_MAX
            })
        };
        let is_caught =
            self.plan.guard == RestartGuard::Uptime && (0..self.clients.len()).all(knows);
        if is_up && is_caught {
            self.rare.hit(Rare::BootStep);
            self.nodes[node].lies = true;
            // A client that starts later has heard of nothing.
            self.plan.faults.retain(|(fault, _)| *fault != Fault::ClientRestart);
        }
    }

    /// This slot's address leads to another's process from now on, and that one's to its. What is
    /// connected may stay so.
    pub fn swap(&mut self, slot: usize) {
        let other = self.choices.below(self.plan.nodes as u32) as usize;
        // One that has died must come back with its data where it was: by another name, elsewhere,
        // nobody could know it again.
        let has_died = self.nodes.iter().any(|node| node.incarnation > 0 || !node.is_up);
        if slot == other || has_died {
            return;
        }
        self.plan.routes.swap(slot, other);
        self.has_swapped = true;
        self.forget_owed(slot);
        self.forget_owed(other);
        let ends_process =
            |fault: &Fault| matches!(fault, Fault::Crash | Fault::Loss | Fault::BootStep);
        self.plan.faults.retain(|(fault, _)| !ends_process(fault));
        for id in 0..self.connections.len() {
            let is_there = [slot, other].contains(&self.connections[id].slot);
            if is_there && self.choices.chance(700) {
                self.leave(id);
            }
        }
    }

    /// The server does not know this connection any more.
    fn leave(&mut self, id: usize) {
        let node = self.connections[id].node;
        if self.nodes[node].connections.contains(&id) {
            self.nodes[node].connections.retain(|other| *other != id);
            self.end_server(id);
        }
    }

    pub fn evict(&mut self, node: usize) {
        let server = &mut self.nodes[node].redis.server;
        (server.max_memory, server.policy) = (1 << 20, "allkeys-lru");
        let mut data = self.nodes[node].redis.data.clone();
        let keys: Vec<_> = data.keys().cloned().collect();
        if !keys.is_empty() {
            data.remove(&keys[self.choices.below(keys.len() as u32) as usize]);
            let server = &mut self.nodes[node].redis.server;
            server.evicted += 1;
            // Its operator has noticed.
            if self.choices.chance(500) {
                server.policy = "noeviction";
            }
            self.nodes[node].replace(self.now, data, Cause::Evicted(self.now), Vec::new());
        }
    }

    /// A replica that had not everything yet answers at the node's address from now on.
    pub fn fail_over(&mut self, node: usize) {
        if !self.nodes[node].is_up {
            return;
        }
        let lag = self.choices.magnitude(MILLI, SECOND);
        self.nodes[node].crash(self.now, Memory::AllButLast(lag));
        self.end_all(node, false);
        let mut server = self.new_server(node);
        // It was up for long, as a replica.
        server.started = server.started.saturating_sub(self.choices.between(0, 100_000));
        server.second_offset = 1 + i64::from(self.choices.below(1_000));
        self.nodes[node].restart(server);
        self.nodes[node].promoted_at = Some(self.now);
        self.wake_node(node);
    }

    /// Sentinels elect a replica, which need not say that it was one. The old master has stopped to
    /// write before.
    pub fn elect(&mut self, node: usize) {
        self.restart(node);
        self.fail_over(node);
        let it = &mut self.nodes[node];
        (it.elected_at, it.elections) = (Some(self.now), it.elections + 1);
        if self.choices.chance(500) {
            self.nodes[node].redis.server.second_offset = -1;
        }
    }

    /// Sentinels say where the master is, and for how long it has been there: not for too long.
    pub fn ask_sentinels(&mut self, client: usize, slot: usize) {
        let it = &self.nodes[self.plan.routes[slot]];
        let age = it.elected_at.map_or(LONG_AGO + self.now, |at| self.now - at);
        self.rare.hit_if(age < self.plan.quarantine(), Rare::Elected);
        let said = match self.choices.below(8) {
            0 => None,
            1 => Some(age / 2),
            _ => Some(age),
        };
        let now = self.client_now(client);
        let said = said.map(|age| (Duration::from_nanos(age), now));
        self.clients[client].engine.handle_node(now, slot, NodeEvent::Elected { master_for: said });
    }

    pub fn demote(&mut self, node: usize, until: u64) {
        let is_writable = self.choices.chance(500);
        self.nodes[node].demote(self.now, is_writable, until);
        self.may_resync(node);
    }

    /// A replica may take over its master's data, in part or as a whole. In part, its master ends
    /// one of its keys, and nobody is told. The whole knows of no lock, is another node's, or of an
    /// earlier time.
    pub fn may_resync(&mut self, node: usize) {
        if self.choices.chance(300) {
            let cause = Cause::Resynced(self.nodes[node].demoted_at());
            if self.choices.chance(300) {
                let mut data = self.nodes[node].redis.data.clone();
                let keys: Vec<_> = data.keys().cloned().collect();
                if !keys.is_empty() {
                    data.remove(&keys[self.choices.below(keys.len() as u32) as usize]);
                    self.rare.hit(Rare::PartlyResynced);
                    self.nodes[node].replace(self.now, data, cause, Vec::new());
                }
                return;
            }
            let of = self.choices.chance(500).then(|| self.choices.below(self.nodes.len() as u32));
            // Keys end at a moment of the master's clock. With a replica's that is years behind, a
            // key that nobody believes in would stay for years.
            let of = of.filter(|_| self.plan.mad.iter().all(|off| *off == 0));
            // Its master's may be of an earlier time, with the marker that it had itself.
            let own = self.choices.chance(500).then(|| self.nodes[node].saved());
            let other = of.map(|of| self.nodes[of as usize].redis.data.clone());
            let data = other.or(own).unwrap_or_default();
            self.timeline.note(self.now, || {
                format!("node {node} loses its data to its master's: node {of:?}")
            });
            // It has parted with its data: those are told that hear of it.
            let told = self.tell_flush(node);
            self.nodes[node].replace(self.now, data, cause, told);
        }
    }

    pub fn refuse(&mut self, node: usize, until: u64) {
        let refusal = self.choices.pick(&Refusal::ALL);
        let forbids_kill = self.choices.chance(500);
        let errors = ["CLUSTERDOWN Hash slot not served", "MOVED 3999 127.0.0.1:6381"];
        let it = &mut self.nodes[node];
        it.redis.server.refusals = vec![refusal];
        it.redis.server.forbids_kill = forbids_kill;
        it.redis.server.cluster_error = self.choices.pick(&errors);
        it.refuses_until = until;
    }

    /// Starts a node's process again.
    pub fn restart(&mut self, node: usize) {
        if self.nodes[node].is_up {
            return;
        }
        let mut server = self.new_server(node);
        if self.nodes[node].lies {
            server.started = server.started.saturating_sub(3_600);
        }
        let loading =
            if self.choices.chance(300) { self.choices.magnitude(MILLI, 500 * MILLI) } else { 0 };
        let (had_replica, now) = (std::mem::take(&mut self.nodes[node].had_replica), self.now);
        if had_replica {
            server.second_offset = 1 + i64::from(self.choices.below(1_000));
            // Real servers draw a new one. Whoever believes in one must know the process as well.
            if self.choices.chance(500) {
                server.replication_id.clone_from(&self.nodes[node].redis.server.replication_id);
            }
            self.rare.hit(Rare::FromRdb);
        }
        let it = &mut self.nodes[node];
        it.restart(server);
        it.promoted_at = had_replica.then_some(now);
        it.loading_until = self.now + loading;
        it.redis.server.is_loading = loading > 0;
        it.door = Door::Open;
        self.timeline.note(self.now, || format!("node {node} starts"));
    }

    pub fn new_server(&mut self, node: usize) -> Server {
        self.servers += 1;
        let wall = self.nodes[node].wall(self.now);
        let name = |kind| random_name(kind, self.servers);
        let mut server = Server::new(name(1), name(2), wall);
        server.password.clone_from(&self.plan.password);
        server.make = self.choices.pick(self.plan.makes);
        server.staleness = u64::from(self.choices.below(100)) * MILLI;
        server
    }

    /// Ends all that is wrong.
    pub fn heal(&mut self) {
        self.is_faulty = false;
        self.healed_at = self.now;
        self.slow_until = 0;
        self.surprises.clear();
        self.ambushes.clear();
        self.end_late();
        self.links.iter_mut().for_each(|links| links.fill(0));
        self.shut.iter_mut().for_each(|shut| shut.fill(0));
        for node in 0..self.nodes.len() {
            let it = &mut self.nodes[node];
            (it.door, it.frozen_until, it.is_poisonous) = (Door::Open, 0, false);
            (it.refuses_until, it.replica_until, it.loading_until) = (0, 0, 0);
            (it.redis.server.max_memory, it.redis.server.policy) = (0, "noeviction");
            let is_foreign = |(_, key): &Key, entry: &Entry| {
                let is_companion = super::node::companion_token(&entry.value).is_some();
                matches!(entry.value, Value::Hash(_)) && key != FENCE && !is_companion
            };
            it.redis.data.retain(|key, entry| !is_foreign(key, entry));
            self.mend_counters(node);
            self.restart(node);
            self.mend_counters(node);
            self.nodes[node].loading_until = 0;
            self.wake_node(node);
        }
        // An address that led to another node's server leads to its own from now on.
        for slot in 0..self.plan.nodes {
            if self.plan.routes[slot] != slot {
                self.plan.routes[slot] = slot;
                self.forget_owed(slot);
            }
        }
        for id in 0..self.connections.len() {
            if self.connections[id].node != self.connections[id].slot {
                self.end_server(id);
            }
            for way in [Way::Up, Way::Down] {
                self.connections[id].pipe(way).held_until = 0;
                self.queue.push(self.now, Event::Deliver(id, way));
            }
        }
        for client in 0..self.clients.len() {
            // A machine that its hypervisor has stopped goes on when it is let.
            let it = &mut self.clients[client];
            it.paused_until = self.now.max(it.clock.stands_until());
        }
    }
}
