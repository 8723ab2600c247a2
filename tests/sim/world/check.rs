//! What must be true: checked after every event, or where the rule has its natural place.

use std::collections::BTreeMap;

use muxlock::proto::NodeSet;
use muxlock::{Lease, LockToken};

use super::World;
use super::clock::MILLI;
use super::network::ClientEnd;
use super::plan::Class;
use super::rare::Rare;
use super::redis::{Change, ChangeKind, Key, Value};
use super::timeline::{Millis, Short};
use super::work::{Kind, Operation, RESOURCES, token_of};

/// A connection that answered more than this has its handshake behind it.
const HANDSHAKE_REPLIES_MAX: u64 = 10;

/// An invariant's name, and how it was broken.
pub type Failure = (&'static str, String);

/// A yes that a client has read.
#[derive(Debug, Clone, Copy)]
struct Heard {
    slot: usize,
    connection: usize,
    is_extension: bool,
    /// When it was said, in true time.
    at: u64,
    is_forgetful: bool,
    is_replica: bool,
}

/// A SET that a server executed.
#[derive(Debug, Clone, Copy)]
struct Executed {
    node: usize,
    at: u64,
    connection: usize,
}

/// The SET that put a token on a node.
pub struct LastSet {
    pub client: usize,
    pub connection: usize,
    /// In true time.
    pub at: u64,
    pub ttl: u64,
}

/// One token, and what became of it.
#[derive(Debug)]
struct Attempt {
    client: usize,
    /// By the client's clock: no lock with this token starts earlier or ends later than that
    /// allows.
    drawn: u64,
    sent: u64,
    /// Slots that were in quarantine when they were asked, for the SET or the last extension.
    uncountable: u64,
    ttl_ms: u32,
    heard: Vec<Heard>,
    executed: Vec<Executed>,
    is_decided: bool,
    /// Nobody will release it any more.
    is_disowned: bool,
}

/// A lock that somebody believes in.
struct Held {
    client: usize,
    key: Key,
    token: [u8; 40],
    deadline: u64,
}

/// All that is known for checks.
#[derive(Default)]
pub struct Checker {
    attempts: BTreeMap<[u8; 40], Attempt>,
    held: Vec<Held>,
}

/// A majority, by this file's own arithmetic.
fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// What is left of a time to live: it, less one percent and two milliseconds, rounded down.
fn validity(ttl_ms: u32) -> u64 {
    let drift = u64::from(ttl_ms).div_ceil(100) + 2;
    u64::from(ttl_ms).saturating_sub(drift) * MILLI
}

impl Checker {
    pub fn draw(&mut self, client: usize, token: [u8; 40], drawn: u64) {
        let attempt = Attempt {
            client,
            drawn,
            sent: 0,
            uncountable: 0,
            ttl_ms: 0,
            heard: Vec::new(),
            executed: Vec::new(),
            is_decided: false,
            is_disowned: false,
        };
        self.attempts.insert(token, attempt);
    }

    /// A SET is about to be written: once for each node (R6), and not when it is too late (R11).
    pub fn note_sets(
        &mut self,
        told: u64,
        nodes: NodeSet,
        token: &LockToken,
        ttl_ms: u32,
    ) -> Option<Failure> {
        let short = Short(token.as_bytes());
        let Some(attempt) = self.attempts.get_mut(token.as_bytes()) else {
            return Some(("TOKEN-UNIQUE", format!("nobody has drawn {short}")));
        };
        attempt.ttl_ms = ttl_ms;
        for slot in nodes.iter() {
            if attempt.sent & (1 << slot) != 0 {
                let text = format!("{short} is sent to node {slot} again");
                return Some(("TOKEN-UNIQUE", text));
            }
            attempt.sent |= 1 << slot;
        }
        let is_late = told >= attempt.drawn + validity(ttl_ms);
        is_late.then(|| ("STALE-SET", format!("{short} is sent when its validity is over")))
    }

    /// What these nodes are about to be asked does not count: they are in quarantine (section 3).
    pub fn note_uncountable(&mut self, token: &LockToken, slots: u64) {
        if let Some(attempt) = self.attempts.get_mut(token.as_bytes()) {
            attempt.uncountable |= slots;
        }
    }

    /// All nodes may count again, for an extension that starts now.
    pub fn start_extension(&mut self, token: &[u8; 40]) {
        if let Some(attempt) = self.attempts.get_mut(token) {
            attempt.uncountable = 0;
        }
    }

    /// Its owner does not believe in it any more.
    pub fn end(&mut self, token: &[u8; 40]) {
        self.held.retain(|held| held.token != *token);
    }

    /// Nobody is left who would release it.
    pub fn disown(&mut self, token: &[u8; 40]) {
        if let Some(attempt) = self.attempts.get_mut(token) {
            attempt.is_disowned = true;
        }
    }

    /// The SET that put this token on a node, if somebody was to release it.
    pub fn set_of(&self, token: &[u8], node: usize) -> Option<LastSet> {
        let attempt = self.attempts.get(token).filter(|attempt| !attempt.is_disowned)?;
        let executed = attempt.executed.iter().rfind(|executed| executed.node == node)?;
        Some(LastSet {
            client: attempt.client,
            connection: executed.connection,
            at: executed.at,
            ttl: u64::from(attempt.ttl_ms) * MILLI,
        })
    }

    /// The client is gone, with all that it owed and believed.
    pub fn forget_client(&mut self, client: usize) {
        self.held.retain(|held| held.client != client);
        let of_client = self.attempts.values_mut().filter(|attempt| attempt.client == client);
        of_client.for_each(|attempt| attempt.is_disowned = true);
    }
}

impl World {
    /// Notes that an invariant is broken; the run ends.
    pub fn fail(&mut self, rule: &'static str, text: impl FnOnce() -> String) {
        if self.violation.is_none() {
            let text = text();
            self.timeline.note(self.now, || format!("VIOLATION of {rule}: {text}"));
            self.violation = Some((rule, text));
        }
    }

    pub fn note_drawn(&mut self, client: usize, drawn: Vec<([u8; 40], u64)>) {
        for (token, drawn) in drawn {
            self.checker.draw(client, token, drawn);
        }
    }

    /// The key of a resource on a node.
    pub fn key_of(&self, resource: usize) -> Key {
        let key = [self.plan.key_prefix, RESOURCES[resource]].concat();
        (self.plan.db, key.into_bytes())
    }

    /// A client is about to hand a reply to its engine: what was it the answer to, in truth?
    pub fn note_reply(&mut self, client: usize, slot: usize, id: usize) {
        let connection = &mut self.connections[id];
        let index = connection.replies;
        connection.replies += 1;
        connection.sets.retain(|(place, ..)| *place != index);
        if index > HANDSHAKE_REPLIES_MAX {
            self.heard_at[client][connection.node] = Some((connection.incarnation, self.now));
        }
        let Some(yes) = connection.yeses.front().copied().filter(|yes| yes.index == index) else {
            return;
        };
        connection.yeses.pop_front();
        let Some(attempt) = self.checker.attempts.get_mut(&yes.token) else {
            return;
        };
        if attempt.is_decided && !yes.is_extension {
            self.rare.hit(Rare::Straggler);
        }
        if yes.is_forgetful && client >= self.plan.unguarded_clients {
            self.rare.hit(Rare::QuarantinedGrant);
        }
        let (is_forgetful, is_replica) = (yes.is_forgetful, yes.is_replica);
        let (is_extension, at) = (yes.is_extension, yes.at);
        let connection = id;
        let heard = Heard { slot, connection, is_extension, at, is_forgetful, is_replica };
        attempt.heard.push(heard);
    }

    /// After a server's command: nobody deletes or overwrites what is another's (invariant 6).
    pub fn check_changes(&mut self, node: usize, id: usize, words: &[&[u8]], changes: &[Change]) {
        for change in changes.iter().filter(|change| change.key.1 != b"marker") {
            let before = match &change.before {
                Some(Value::Text(text)) => text.as_slice(),
                Some(Value::Hash) => b"a hash",
                None => b"",
            };
            let is_wrong = match change.kind {
                ChangeKind::Set => change.before.is_some(),
                ChangeKind::Delete | ChangeKind::Expire => words.get(4) != Some(&before),
            };
            if is_wrong {
                self.fail("CAD-ONLY", || {
                    let (kind, key) = (change.kind, change.key.1.escape_ascii());
                    format!("node {node}: {kind:?} of {key}, which held {}", Short(before))
                });
            }
            if let (ChangeKind::Set, Some(token)) = (change.kind, words.get(2)) {
                self.note_executed(node, id, token);
            }
            if change.kind == ChangeKind::Delete {
                self.check_sound(&change.key);
            }
        }
    }

    fn note_executed(&mut self, node: usize, id: usize, token: &[u8]) {
        let connection = &self.connections[id];
        let closed_at = connection.closed_at;
        if closed_at < self.now {
            self.rare.hit(Rare::GhostSet);
            if self.nodes[node].frozen_until > closed_at {
                self.rare.hit(Rare::FrozenGhost);
            }
        }
        if let Some(attempt) = self.checker.attempts.get_mut(token) {
            attempt.executed.push(Executed { node, at: self.now, connection: id });
        }
    }

    pub fn check_acquired(
        &mut self,
        client: usize,
        resource: usize,
        operation: &Operation,
        lease: &Lease,
    ) {
        let token = token_of(lease);
        let (told, needed) = (self.clients[client].told, quorum(self.plan.nodes));
        let deadline = lease.valid_until().as_nanos();
        let granted: Vec<usize> = lease.granted_by().collect();
        self.timeline.note(self.now, || {
            let until = Millis(self.clients[client].clock.when(deadline));
            format!("client {client} HOLDS {} by {granted:?} until {until}", Short(&token))
        });
        let Some(attempt) = self.checker.attempts.get_mut(&token) else {
            return self.fail("TOKEN-UNIQUE", || format!("nobody has drawn {}", Short(&token)));
        };
        attempt.is_decided = true;
        let uncountable = attempt.uncountable;
        let start = attempt.drawn;
        let latest = start + validity(attempt.ttl_ms);
        let heard: Vec<Heard> =
            attempt.heard.iter().filter(|heard| !heard.is_extension).copied().collect();
        if granted.len() < self.plan.nodes {
            self.rare.hit(Rare::EarlyReturn);
        }
        if told >= deadline {
            self.fail("HAND-OUT", || "a lock was handed out whose validity is over".into());
        }
        if deadline > latest || start < operation.started {
            self.fail("DEADLINE", || format!("{} is believed for too long", Short(&token)));
        }
        self.check_countable(&granted, uncountable);
        self.check_votes(client, &granted, &heard, needed);
        let held = Held { client, key: self.key_of(resource), token, deadline };
        self.check_alone(&held);
        let key = held.key.clone();
        self.checker.held.push(held);
        self.check_sound(&key);
    }

    /// No node counts that was in quarantine when it was asked, whenever it answered (section 3).
    fn check_countable(&mut self, granted: &[usize], uncountable: u64) {
        if let Some(slot) = granted.iter().find(|slot| uncountable & (1 << **slot) != 0) {
            self.fail("GUARD", || format!("node {slot} counts, asked while in quarantine"));
        }
    }

    /// Every vote that was counted was given, by a server that knows all locks (invariant 4).
    fn check_votes(&mut self, client: usize, granted: &[usize], heard: &[Heard], needed: usize) {
        if granted.len() < needed {
            self.fail("NO-FALSE-VOTE", || format!("{granted:?} are fewer than {needed}"));
        }
        let is_guarding = self.mutex_promised && client >= self.plan.unguarded_clients;
        let mut nodes = Vec::new();
        for slot in granted {
            let mut said = heard.iter().filter(|heard| heard.slot == *slot).peekable();
            match said.peek() {
                Some(first) => {
                    let connection = &self.connections[first.connection];
                    if self.nodes[connection.node].was_forgetful {
                        self.rare.hit(Rare::QuarantineEnded);
                    }
                    // A server may move from one address to another (R34).
                    if connection.client_end == ClientEnd::Established {
                        nodes.push(connection.node);
                    }
                }
                None => self
                    .fail("NO-FALSE-VOTE", || format!("node {slot} was counted and said no yes")),
            }
            if said.clone().all(|heard| heard.is_replica) {
                self.fail("GUARD", || format!("node {slot} was counted and is a replica"));
            }
            let is_durable = self.plan.durable[*slot];
            if is_guarding && !is_durable && said.all(|heard| heard.is_forgetful) {
                self.fail("GUARD", || format!("node {slot} was counted and had forgotten a lock"));
            }
        }
        let connected = nodes.len();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() < connected && self.mutex_promised {
            self.fail("NO-FALSE-VOTE", || format!("{granted:?} have one node twice"));
        }
    }

    /// Nobody else believes to hold the key now (invariant 1).
    fn check_alone(&mut self, held: &Held) {
        if !self.mutex_promised {
            return;
        }
        let is_valid = |held: &Held| !self.clients[held.client].is_over(self.now, held.deadline);
        let other =
            self.checker.held.iter().find(|other| {
                other.key == held.key && other.token != held.token && is_valid(other)
            });
        if let (Some(other), true) = (other, is_valid(held)) {
            let text = format!(
                "client {} holds {} and client {} holds {}",
                other.client,
                Short(&other.token),
                held.client,
                Short(&held.token)
            );
            self.fail("MUTUAL-EXCLUSION", || text);
        }
    }

    /// A quorum of nodes has the key for as long as somebody believes in it (invariant 3).
    pub fn check_sound(&mut self, key: &Key) {
        if self.plan.class != Class::Durable {
            return;
        }
        for held in self.checker.held.iter().filter(|held| held.key == *key) {
            let client = &self.clients[held.client];
            if client.is_over(self.now, held.deadline) {
                continue;
            }
            let deadline = client.clock.when(held.deadline);
            let nodes = self.nodes.iter();
            let until = nodes.filter_map(|node| node.held_until(&held.key, &held.token));
            let count = until.filter(|until| *until >= deadline).count();
            if count < quorum(self.plan.nodes) {
                let token = Short(&held.token);
                let text = format!("{token} is believed in and only {count} nodes hold it so long");
                return self.fail("DEADLINE-SOUND", || text);
            }
        }
    }

    pub fn check_extended(
        &mut self,
        client: usize,
        operation: &Operation,
        lease: &Lease,
        is_extended: bool,
    ) {
        let Kind::Extend { token, deadline, ttl_ms } = operation.kind else {
            return self.fail("TERMINATION", || "an operation changed its kind".into());
        };
        let now_until = lease.valid_until().as_nanos();
        let heard = self.checker.attempts.get(&token).map_or(&[][..], |attempt| &attempt.heard);
        let since = operation.started_true;
        let heard: Vec<Heard> =
            heard.iter().filter(|heard| heard.is_extension && heard.at >= since).copied().collect();
        if !is_extended {
            if now_until != deadline {
                self.fail("EXTEND-KEPT", || "a failed extension changed the deadline".into());
            }
            if !heard.is_empty() {
                self.rare.hit(Rare::ExtensionMinority);
            }
            return;
        }
        self.timeline.note(self.now, || {
            let until = Millis(self.clients[client].clock.when(now_until));
            format!("client {client} HOLDS {} on, until {until}", Short(&token))
        });
        if self.clients[client].told >= deadline {
            self.fail("LATCH", || "a lock was extended after its validity was over".into());
        }
        let latest = (operation.started + validity(ttl_ms)).max(deadline);
        if now_until > latest || now_until < deadline {
            self.fail("EXTEND-DEADLINE", || format!("{} has a wrong deadline", Short(&token)));
        }
        let granted: Vec<usize> = lease.granted_by().collect();
        let uncountable = self.checker.attempts.get(&token).map_or(0, |it| it.uncountable);
        self.check_countable(&granted, uncountable);
        self.check_votes(client, &granted, &heard, quorum(self.plan.nodes));
        let Some(at) = self.checker.held.iter().position(|held| held.token == token) else {
            return self.fail("LATCH", || "a lock that was over came back".into());
        };
        let mut held = self.checker.held.swap_remove(at);
        held.deadline = now_until;
        self.check_alone(&held);
        let key = held.key.clone();
        self.checker.held.push(held);
        self.check_sound(&key);
    }
}
