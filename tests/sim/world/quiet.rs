//! What must be true when a turn is over, and when all is quiet.

use std::collections::BTreeSet;

use super::World;
use super::check::LastSet;
use super::clock::{MILLI, SECOND};
use super::network::{Connection, ServerEnd};
use super::plan::Class;
use super::rare::Rare;
use super::redis::Value;
use super::timeline::{Millis, Short};
use muxlock::node::{NodeOutcome, NodeState, QuarantineCause, Unfit};

/// Longer than a node may owe an answer.
const IDLE: u64 = 11 * SECOND;
/// How often the answers of a node that was idle for so long are late when it is asked.
const LATE_ANSWERS: u32 = 250;
/// A connection is doubted after so many node timeouts of silence, but no sooner and no later than
/// this (R5).
const DOUBT_TIMEOUTS: u64 = 4;
const DOUBT_MIN: u64 = 100 * MILLI;
const DOUBT_MAX: u64 = SECOND;

impl World {
    /// At the end of a turn: requests and replies are paired, and nothing is overdue
    /// (invariants 10 and 11).
    pub fn check_turn(&mut self, client: usize) {
        let it = &self.clients[client];
        let mut failure = None;
        let (mut in_flight, mut debts) = (0, 0);
        for (slot, status) in it.engine.statuses().enumerate() {
            in_flight += status.in_flight;
            debts += status.pending_releases;
            let moved = status.quarantine.is_some_and(|it| it.cause == QuarantineCause::Moved);
            self.rare.hit_if(moved, Rare::Moved);
            let is_unfit = |why| status.last_failure == Some(NodeOutcome::Unfit(why));
            self.rare.hit_if(is_unfit(Unfit::Duplicate), Rare::Duplicate);
            self.rare.hit_if(is_unfit(Unfit::Evicts), Rare::Evicting);
            let connection = it.slots[slot].connection.map(|id| &self.connections[id]);
            let owed = connection.map_or(0, |at| at.commands.saturating_sub(at.replies)) as usize;
            if owed != status.in_flight {
                let known = status.in_flight;
                failure = Some(("PAIRING", format!("node {slot}: {owed} owed, {known} known")));
            }
            if let Some((_, read)) = connection
                .and_then(|at| Some((at.poisoned?, at.down.read)))
                .filter(|(at, read)| read >= at)
            {
                failure = Some(("DESYNC", format!("node {slot} is trusted after {read} bytes")));
            }
        }
        // Commands that wait for a connection are not owed; this is a lower bound.
        if debts + in_flight > it.engine.unanswered() {
            self.rare.hit(Rare::DebtExpired);
        }
        let now = it.clock.read(self.now);
        if let Some((id, operation)) = it.operations.iter().find(|(_, op)| now > op.limit) {
            failure = Some(("TERMINATION", format!("{id:?} does not end: {operation:?}")));
        }
        if let Some((rule, text)) = failure {
            self.fail(rule, || format!("client {client}: {text}"));
        }
    }

    /// A client gives up this connection. A server is refused as another node's only if that one
    /// is connected to it (R34).
    pub fn check_duplicate(&mut self, client: usize, slot: usize, id: usize) {
        let status = self.clients[client].engine.statuses().nth(slot);
        let failure = status.and_then(|status| status.last_failure);
        let node = self.connections[id].node;
        // It may have lost the other one, and have been paused, since it decided.
        let decided_at = self.connections[id].read_at;
        let is_twin = |at: &&Connection| {
            let is_other = at.client == client && at.slot != slot && at.node == node;
            is_other && at.closed_at >= decided_at
        };
        let is_refused = failure == Some(NodeOutcome::Unfit(Unfit::Duplicate));
        if is_refused && self.connections.iter().rfind(is_twin).is_none() {
            self.fail("DUPLICATE", || format!("client {client}: node {slot} is no other's twin"));
        }
    }

    /// A node that is ready when all is quiet is asked with the others, however long it was not,
    /// and keeps its connection, unless its role has changed.
    pub fn check_all_are_asked(&mut self) {
        for client in 0..self.clients.len() {
            self.check_is_asked(client, None);
            // From here on, the client knows the roles.
            if self.choices.chance(LATE_ANSWERS) {
                let ready = self.ready(client);
                let late = (!ready.is_empty()).then(|| self.choices.below(ready.len() as u32));
                self.check_is_asked(client, late.map(|late| ready[late as usize]));
            }
        }
    }

    fn check_is_asked(&mut self, client: usize, late: Option<(usize, usize)>) {
        self.now += IDLE;
        let ready = self.ready(client);
        if let Some((slot, id)) = late.filter(|late| ready.contains(late)) {
            self.answer_late(client, slot, id);
        }
        let known: BTreeSet<_> = self.checker.attempts.keys().copied().collect();
        self.acquire(client, 0, self.plan.max_ttl, None);
        self.wake_client(client, self.now);
        while self.violation.is_none() && self.step() {}
        let attempts = self.checker.attempts.iter();
        let new = attempts.filter(|(token, it)| it.client == client && !known.contains(*token));
        let sent = new.map(|(_, attempt)| attempt.sent).next().unwrap_or_default();
        let still = self.ready(client);
        let is_unfit = |slot| {
            let status = self.clients[client].engine.statuses().nth(slot);
            let failure = status.and_then(|status| status.last_failure);
            matches!(failure, Some(NodeOutcome::Unfit(_)))
        };
        let is_asked = |slot: usize| sent & (1 << slot) != 0;
        let is_lost =
            |it: &&(usize, usize)| !is_asked(it.0) || !still.contains(it) && !is_unfit(it.0);
        if let Some((slot, _)) = ready.iter().find(is_lost) {
            self.fail("ASKED", || format!("client {client} does not ask node {slot}"));
        }
    }

    /// This node will answer when the client doubts its connection, and before it answers on a
    /// second one.
    fn answer_late(&mut self, client: usize, slot: usize, id: usize) {
        let timeout = self.plan.node_timeout;
        let doubted = (DOUBT_TIMEOUTS * timeout).clamp(DOUBT_MIN, DOUBT_MAX.max(timeout));
        let until = self.now + doubted + self.choices.between(doubted / 8, doubted);
        let text = format!("node {slot} answers client {client} from {} on", Millis(until));
        self.timeline.note(self.now, || text);
        self.rare.hit(Rare::LateAfterIdle);
        self.connections[id].down.held_until = until;
        self.shut[client][self.plan.routes[slot]] = until + IDLE;
    }

    /// The slots of the nodes that vote, with their connections.
    fn ready(&self, client: usize) -> Vec<(usize, usize)> {
        let it = &self.clients[client];
        let votes = |state| matches!(state, NodeState::Ready | NodeState::Quarantined);
        let nodes = it.engine.statuses().enumerate().filter(|(_, node)| votes(node.state));
        // A process may have ended without a sign: its connections are found dead when used.
        let stands = |id: &usize| self.connections[*id].server_end == ServerEnd::Accepted;
        let connected = |slot: usize| it.slots[slot].connection.filter(stands);
        nodes.filter_map(|(slot, _)| Some((slot, connected(slot)?))).collect()
    }

    /// When all is quiet: nothing is under way, nothing is owed, nothing is left (invariant 12).
    pub fn check_quiet(&mut self) {
        for client in 0..self.clients.len() {
            let engine = &self.clients[client].engine;
            let debts: usize = engine.statuses().map(|node| node.pending_releases).sum();
            let (operations, unanswered) = (engine.operations().count(), engine.unanswered());
            let timeout = engine.poll_timeout();
            if operations + unanswered + debts > 0 || timeout.is_some() {
                self.fail("QUIESCENCE", || {
                    format!(
                        "client {client}: {operations} operations, {unanswered} unanswered, \
                         {debts} debts, next {timeout:?}"
                    )
                });
            }
        }
        // Whatever became of it: given back, cancelled, or failed (R4, R10).
        let stands = |id: usize| self.connections[id].closed_at == u64::MAX;
        if let Some((token, slot)) = self.checker.unreleased(stands) {
            self.fail("RELEASED", || format!("{} is not released on {slot}", Short(&token)));
        }
        // What is owed to a process that is gone from an address is not owed to the next one.
        if self.plan.class == Class::Durable && !self.has_swapped {
            self.check_left_behind();
            self.check_cleared();
        }
    }

    /// A release has followed each SET, even if the key was gone by itself before: somebody knew
    /// that it may come. The same are excused.
    fn check_cleared(&mut self) {
        let is_excused = |set: &LastSet| {
            let connection = &self.connections[set.connection];
            let is_unheard_of = set.at > connection.closed_at.saturating_add(set.ttl);
            is_unheard_of || connection.outlived_kill
        };
        let uncleared = self.checker.uncleared().find(|(.., set)| !is_excused(set));
        if let Some((node, token, _)) = uncleared {
            let text = format!("nobody has released {} on node {node}", Short(token));
            self.fail("GHOST", || text);
        }
    }

    /// A key whose attempt is dead was deleted, unless nobody could know that it would ever be set:
    /// its connection was given up for longer than the key was to live. What is left ends by itself
    /// within the longest time to live.
    fn check_left_behind(&mut self) {
        let mut failure = (0..self.nodes.len()).find_map(|node| {
            self.check_forms_left(node, |set| {
                let connection = &self.connections[set.connection];
                let is_unheard_of = set.at > connection.closed_at.saturating_add(set.ttl);
                is_unheard_of || connection.outlived_kill
            })
        });
        for (node, it) in self.nodes.iter().enumerate() {
            let wall = (it.wall(self.now) / MILLI) as i64;
            for (key, entry) in &it.redis.data {
                let Value::Text(value) = &entry.value else {
                    continue;
                };
                let Some(set) = self.checker.set_of(value, node) else {
                    continue;
                };
                let expires = entry.expires.unwrap_or(i64::MAX);
                let latest = wall + (self.plan.max_ttl / MILLI) as i64;
                let connection = &self.connections[set.connection];
                let is_excused = wall > expires
                    || set.at > connection.closed_at.saturating_add(set.ttl)
                    || connection.outlived_kill;
                if !is_excused || expires > latest {
                    let name = key.1.escape_ascii();
                    failure = Some(format!("node {node} still holds {name}: {}", Short(value)));
                }
            }
        }
        if let Some(text) = failure {
            self.fail("QUIESCENCE", || text);
        }
    }
}
