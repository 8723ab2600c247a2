//! What must be true: checked after every event, or where the rule has its natural place.

use std::collections::BTreeMap;

use muxlock::LockToken;
use muxlock::proto::NodeSet;

use super::World;
use super::clock::MILLI;
use super::fences::{Asks, asks};
use super::forms::{form, is_intent};
use super::network::Trust;
use super::newcomers::is_sighting;
use super::own::ByValue;
use super::rare::Rare;
use super::redis::{Change, ChangeKind, Key, Value, compared, is_marker, is_queue};
use super::timeline::Short;

/// A connection that answered more than this has its handshake behind it.
const HANDSHAKE_REPLIES_MAX: u64 = 11;

/// An invariant's name, and how it was broken.
pub type Failure = (&'static str, String);

/// A yes that a client has read.
#[derive(Debug, Clone, Copy)]
pub struct Heard {
    pub slot: usize,
    pub connection: usize,
    pub is_extension: bool,
    /// Whether the key was absent.
    pub is_healed: bool,
    /// When it was said, in true time.
    pub at: u64,
    pub memory: Trust,
    pub role: Trust,
    /// Whether it was read after the node's clock was seen to jump.
    pub is_after_jump: bool,
}

/// A SET that a server executed.
#[derive(Debug, Clone, Copy)]
struct Executed {
    node: usize,
    at: u64,
    connection: usize,
    ttl_ms: u32,
}

/// The SET that put a token on a node.
pub struct LastSet {
    pub connection: usize,
    /// In true time.
    pub at: u64,
    pub ttl: u64,
}

impl From<Executed> for LastSet {
    fn from(set: Executed) -> LastSet {
        let ttl = u64::from(set.ttl_ms) * MILLI;
        LastSet { connection: set.connection, at: set.at, ttl }
    }
}

/// One token, and what became of it.
#[derive(Debug)]
pub struct Attempt {
    pub client: usize,
    /// The clients that have had it, as bits.
    owners: u64,
    /// By the client's clock: no lock with this token starts earlier or ends later than that
    /// allows.
    pub drawn: u64,
    /// The same, or when its last extension started.
    asked_at: u64,
    /// Slots that its SET was written to.
    pub sent: u64,
    /// The slots whose servers have said that they did not run it.
    not_run: u64,
    /// Slots that were in quarantine when they were asked, for the SET or the last extension.
    pub uncountable: u64,
    pub ttl_ms: u32,
    pub heard: Vec<Heard>,
    executed: Vec<Executed>,
    /// Nodes that executed its release, and when last, in true time.
    cleared: Vec<(usize, u64)>,
    pub is_decided: bool,
    /// Slots to which its release was handed out.
    released: u64,
    /// When that was first so, by the client's clock.
    released_at: u64,
    /// Slots and connections that were lost with a command of it unanswered.
    lost: Vec<(usize, usize)>,
    /// Slots on which a command of it was unanswered when it was handed over.
    unanswered: u64,
    is_handed_over: bool,
    /// Slots that a client that had it before did not count, and until when, in true time.
    barred: Vec<(usize, u64)>,
    /// Nobody will release it any more.
    pub is_disowned: bool,
    /// What others have made of it who know its value.
    pub by_value: ByValue,
}

/// A lock that somebody believes in.
pub struct Held {
    pub client: usize,
    pub keys: Vec<Key>,
    /// Whether others may share it.
    pub is_shared: bool,
    /// Whether its holder had stopped, because another client was about to end the lock.
    pub is_stopped: bool,
    pub token: [u8; 40],
    pub deadline: u64,
    /// The nodes whose votes it counts on.
    pub nodes: Vec<usize>,
}

/// All that is known for checks.
#[derive(Default)]
pub struct Checker {
    pub attempts: BTreeMap<[u8; 40], Attempt>,
    pub held: Vec<Held>,
}

/// A majority, by this file's own arithmetic.
pub fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// What is left of a time to live: it, less one percent and two milliseconds, rounded down.
pub fn validity(ttl_ms: u32) -> u64 {
    let drift = u64::from(ttl_ms).div_ceil(100) + 2;
    u64::from(ttl_ms).saturating_sub(drift) * MILLI
}

impl Attempt {
    /// Whether a release was handed out before `drawn`, by the client's clock.
    pub fn was_given_up(&self, drawn: u64) -> bool {
        self.released != 0 && self.released_at < drawn
    }

    /// Whether somebody was to release what this SET has left.
    fn is_owned(&self, set: &Executed) -> bool {
        !self.is_disowned || self.by_value.is_owned(set.at)
    }

    /// A connection was lost with a command of it unanswered.
    pub fn note_lost(&mut self, slot: usize, connection: usize) {
        if self.lost.last() != Some(&(slot, connection)) {
            self.lost.push((slot, connection));
        }
    }

    /// The clients that have had it.
    pub fn owners(&self) -> impl Iterator<Item = usize> {
        let owners = self.owners;
        (0..u64::BITS as usize).filter(move |client| owners & (1 << client) != 0)
    }

    /// Whether the slot must not be counted for what a client knew that had the lock before.
    pub fn is_barred(&self, slot: usize, now: u64) -> bool {
        self.barred.iter().any(|(barred, until)| *barred == slot && now < *until)
    }

    /// When the node last executed its SET, in true time.
    pub fn set_at(&self, node: usize) -> Option<u64> {
        self.executed.iter().rfind(|set| set.node == node).map(|set| set.at)
    }

    /// How many connections to this slot were lost so.
    pub fn losses(&self, slot: usize) -> usize {
        self.lost.iter().filter(|(other, _)| *other == slot).count()
    }

    /// What it means that it was extended now.
    pub fn situations(&self) -> [(bool, Rare); 3] {
        let is_in_doubt = self.unanswered != 0 || !self.lost.is_empty();
        [
            (self.is_handed_over, Rare::AdoptedExtended),
            (self.is_handed_over && is_in_doubt, Rare::AdoptedInDoubt),
            (!self.lost.is_empty(), Rare::ExtendedAfterLoss),
        ]
    }
}

impl Checker {
    pub fn draw(&mut self, client: usize, token: [u8; 40], drawn: u64) {
        let attempt = Attempt {
            client,
            owners: 1 << client,
            drawn,
            asked_at: drawn,
            sent: 0,
            not_run: 0,
            uncountable: 0,
            ttl_ms: 0,
            heard: Vec::new(),
            executed: Vec::new(),
            cleared: Vec::new(),
            is_decided: false,
            released: 0,
            released_at: 0,
            lost: Vec::new(),
            unanswered: 0,
            is_handed_over: false,
            barred: Vec::new(),
            is_disowned: false,
            by_value: ByValue::default(),
        };
        self.attempts.insert(token, attempt);
    }

    /// A server did not run an attempt's script, which was sent by its hash (K16).
    pub fn note_not_run(&mut self, token: &[u8], slot: usize) {
        if let Some(attempt) = self.attempts.get_mut(token) {
            attempt.not_run |= 1 << slot;
        }
    }

    /// A SET is about to be written: once for each node (R6), unless the first one was not run, and
    /// not when it is too late (R11).
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
            if attempt.sent & !attempt.not_run & (1 << slot) != 0 {
                let text = format!("{short} is sent to node {slot} again");
                return Some(("TOKEN-UNIQUE", text));
            }
            attempt.sent |= 1 << slot;
            attempt.not_run &= !(1 << slot);
        }
        let is_late = told >= attempt.drawn + validity(ttl_ms);
        is_late.then(|| ("STALE-SET", format!("{short} is sent when its validity is over")))
    }

    /// A client is about to write a command of a lock: who has handed it over is silent.
    pub fn note_sent(&mut self, client: usize, token: &LockToken) -> Option<Failure> {
        let attempt = self.attempts.get(token.as_bytes())?;
        (attempt.client != client && !attempt.by_value.is_named).then(|| {
            let text = format!("client {client} has handed {} over", Short(token.as_bytes()));
            ("GIVER-SILENT", text)
        })
    }

    /// A release is about to be written: its lock must have been given up.
    pub fn note_release(
        &mut self,
        client: usize,
        told: u64,
        nodes: NodeSet,
        token: &LockToken,
    ) -> Option<Failure> {
        let attempt = self.attempts.get_mut(token.as_bytes());
        if let Some(attempt) = attempt.filter(|attempt| attempt.client == client) {
            if attempt.released == 0 {
                attempt.released_at = told;
            }
            attempt.released |= nodes.iter().map(|slot| 1 << slot).sum::<u64>();
        }
        let is_it = |held: &&Held| held.token[..] == *token.as_bytes() && !held.is_stopped;
        let held = self.held.iter().find(is_it);
        held.map(|held| {
            let text = format!("client {} has {}", held.client, Short(token.as_bytes()));
            ("EARLY-RELEASE", text)
        })
    }

    /// The lock is another client's from now on. These slots have a command of it unanswered. Says
    /// whether others were lost before they answered one.
    pub fn hand_over(
        &mut self,
        token: &[u8; 40],
        taker: usize,
        unanswered: u64,
        quarantines: Vec<(usize, u64)>,
    ) -> bool {
        for held in self.held.iter_mut().filter(|held| held.token == *token) {
            held.client = taker;
        }
        self.attempts.get_mut(token).is_some_and(|attempt| {
            (attempt.client, attempt.is_handed_over) = (taker, true);
            attempt.owners |= 1 << taker;
            attempt.unanswered |= unanswered;
            attempt.barred.extend(quarantines);
            !attempt.lost.is_empty()
        })
    }

    /// A yes whose lock is to be over, and which no release has followed on a connection that
    /// stands.
    pub fn unreleased(&self, stands: impl Fn(usize) -> bool) -> Option<([u8; 40], usize)> {
        let owned = self.attempts.iter().filter(|(_, attempt)| !attempt.is_disowned);
        let heard = owned.flat_map(|(token, attempt)| {
            attempt.heard.iter().map(move |heard| (*token, attempt.released, *heard))
        });
        let is_unreleased = |released: u64, heard: &Heard| {
            released & (1 << heard.slot) == 0 && stands(heard.connection)
        };
        heard
            .filter(|(_, released, heard)| is_unreleased(*released, heard))
            .map(|(token, _, heard)| (token, heard.slot))
            .next()
    }

    /// An extension that may set the key is about to be written: its lock must be held (R29).
    pub fn note_heal(&self, told: u64, token: &LockToken) -> Option<Failure> {
        let held = self.held.iter().find(|held| held.token[..] == *token.as_bytes());
        let is_late = held.is_none_or(|held| told >= held.deadline);
        is_late.then(|| {
            ("STALE-HEAL", format!("{} is healed when it is over", Short(token.as_bytes())))
        })
    }

    /// What these nodes are about to be asked does not count: they are in quarantine.
    pub fn note_uncountable(&mut self, token: &LockToken, slots: u64) {
        if let Some(attempt) = self.attempts.get_mut(token.as_bytes()) {
            attempt.uncountable |= slots;
        }
    }

    /// All nodes may count again, for an extension that starts now, by the client's clock.
    pub fn start_extension(&mut self, told: u64, token: &[u8; 40]) {
        if let Some(attempt) = self.attempts.get_mut(token) {
            (attempt.uncountable, attempt.asked_at) = (0, told);
        }
    }

    /// When the token was drawn, or its extension started, by the client's clock.
    pub fn asked_at(&self, token: &LockToken) -> u64 {
        self.attempts.get(token.as_bytes()).map_or(0, |attempt| attempt.asked_at)
    }

    /// Its owner does not believe in it any more.
    pub fn end(&mut self, token: &[u8; 40]) {
        self.held.retain(|held| held.token != *token);
    }

    /// Whether this client was handed a lock and has given it up, on this slot, too.
    pub fn has_given_up_anothers(&self, client: usize, slot: usize) -> bool {
        let mut handed = self.attempts.values().filter(|it| it.is_handed_over);
        handed.any(|it| {
            let is_released = it.client == client && it.released & (1 << slot) != 0;
            // It had the lock for a time, and releases it by its value now.
            is_released || it.by_value.is_freed_by(client)
        })
    }

    /// Nobody is left who would release it.
    pub fn disown(&mut self, token: &[u8; 40]) {
        if let Some(attempt) = self.attempts.get_mut(token) {
            attempt.is_disowned = true;
        }
    }

    /// The SET that put this token on a node, if somebody was to release it.
    pub fn set_of(&self, token: &[u8], node: usize) -> Option<LastSet> {
        let attempt = self.attempts.get(token)?;
        let executed = attempt.executed.iter().rfind(|executed| executed.node == node)?;
        attempt.is_owned(executed).then(|| LastSet::from(*executed))
    }

    /// A node has executed the token's release, or refused to: what is refused for good ends with
    /// its time to live.
    pub fn note_cleared(&mut self, now: u64, node: usize, token: &[u8]) {
        if let Some(attempt) = self.attempts.get_mut(token) {
            attempt.cleared.retain(|(other, _)| *other != node);
            attempt.cleared.push((node, now));
        }
    }

    /// The SETs that no release has followed on their node, though somebody was to release them:
    /// the node, the token, and the SET.
    pub fn uncleared(&self) -> impl Iterator<Item = (usize, &[u8; 40], LastSet)> {
        let owned = self.attempts.iter().filter(|(_, attempt)| !attempt.is_disowned);
        owned.flat_map(|(token, attempt)| {
            let is_cleared = |set: &&Executed| {
                attempt.cleared.iter().any(|(node, at)| *node == set.node && *at >= set.at)
            };
            let uncleared = attempt.executed.iter().filter(move |set| !is_cleared(set));
            uncleared.map(move |set| (set.node, token, LastSet::from(*set)))
        })
    }

    /// The client is gone, with all that it owed and believed.
    pub fn forget_client(&mut self, client: usize) {
        self.held.retain(|held| held.client != client);
        let of_client = self.attempts.values_mut().filter(|attempt| attempt.client == client);
        of_client.for_each(|attempt| attempt.is_disowned = true);
        self.attempts.values_mut().for_each(|attempt| attempt.by_value.forget_client(client));
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

    /// The key of a resource on a node.
    pub fn key_of(&self, resource: usize) -> Key {
        let key = [self.plan.key_prefix, self.plan.names[resource]].concat();
        (self.plan.db, key.into_bytes())
    }

    /// A client is about to hand a reply to its engine: what was it the answer to, in truth?
    pub fn note_reply(&mut self, client: usize, slot: usize, id: usize) {
        let connection = &mut self.connections[id];
        let index = connection.replies;
        connection.replies += 1;
        connection.read_at = self.now;
        while connection.asked.front().is_some_and(|asked| asked.place <= index) {
            connection.asked.pop_front();
        }
        let raise = connection.raises.front().copied().filter(|(place, _)| *place == index);
        if let Some((_, sent)) = raise {
            connection.raises.pop_front();
            let is_late = self.now > sent + self.plan.node_timeout;
            self.rare.hit_if(is_late, Rare::RaiseTimedOut);
            let in_quarantine = self.clients[client].slots_in_quarantine(self.plan.node_timeout);
            self.rare.hit_if(in_quarantine & (1 << slot) != 0, Rare::RaiseQuarantined);
        }
        let connection = &mut self.connections[id];
        if index > HANDSHAKE_REPLIES_MAX {
            self.heard_at[client][connection.node] = Some((connection.incarnation, self.now));
        }
        self.hear_said(client, slot, id, index);
        let connection = &mut self.connections[id];
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
        if yes.memory == Trust::No && client >= self.plan.unguarded_clients {
            self.rare.hit(Rare::QuarantinedGrant);
        }
        let is_after_jump = self.clients[client].looks[slot].is_after_jump(self.now);
        self.rare.hit_if(is_after_jump, Rare::GrantAfterJump);
        let (memory, role) = (yes.memory, yes.role);
        let (is_extension, is_healed, at) = (yes.is_extension, yes.is_healed, yes.at);
        let connection = id;
        let node = self.connections[id].node;
        attempt.heard.push(Heard {
            slot,
            connection,
            is_extension,
            is_healed,
            at,
            memory,
            role,
            is_after_jump,
        });
        if !is_extension {
            self.may_jump_before_raise(client, node, &yes.token);
        }
    }

    /// After a server's command: nobody deletes or overwrites what is another's (invariant 6).
    pub fn check_changes(&mut self, node: usize, id: usize, words: &[&[u8]], changes: &[Change]) {
        if let Some(form) = form(words) {
            return self.check_form(node, id, &form, changes);
        }
        let is_of_locks = |change: &&Change| {
            !is_marker(&change.key.1)
                && !is_sighting(&change.key.1)
                && !is_queue(&change.key.1)
                && !is_intent(&change.key.1)
        };
        for change in changes.iter().filter(is_of_locks) {
            let before = match &change.before {
                Some(Value::Text(text)) => text.as_slice(),
                Some(Value::Hash(_)) => b"a hash",
                Some(Value::List(_)) => b"a list",
                Some(Value::Sorted(_)) => b"a sorted set",
                None => b"",
            };
            let is_wrong = match change.kind {
                ChangeKind::Set => change.before.is_some(),
                ChangeKind::Field | ChangeKind::List | ChangeKind::Member => false,
                ChangeKind::Delete | ChangeKind::Expire => compared(words) != Some(before),
            };
            if is_wrong {
                self.fail("CAD-ONLY", || {
                    let (kind, key) = (change.kind, change.key.1.escape_ascii());
                    format!("node {node}: {kind:?} of {key}, which held {}", Short(before))
                });
            }
            if let (ChangeKind::Set, Some(Asks::Set { token, .. })) = (change.kind, asks(words)) {
                self.note_executed(node, id, token, None);
            } else if change.kind == ChangeKind::Set {
                match words {
                    [b"SET", _, token, ..] => self.note_executed(node, id, token, None),
                    [b"EVAL", _, _, _, token, ttl, ..] => {
                        self.note_executed(node, id, token, Some(ttl));
                    }
                    _ => {}
                }
            }
            if change.kind == ChangeKind::Delete {
                self.check_not_counted_on(node, id, before);
                self.check_sound(&change.key);
            }
        }
    }

    /// No copy is deleted that somebody counts on and believes in (R26).
    pub fn check_not_counted_on(&mut self, node: usize, id: usize, token: &[u8]) {
        let is_counted =
            |held: &&Held| held.token == token && held.nodes.contains(&node) && !held.is_stopped;
        let held = self.checker.held.iter().find(is_counted);
        let valid = held.filter(|it| !self.clients[it.client].is_over(self.now, it.deadline));
        if let Some(holder) = valid.map(|held| held.client) {
            let client = self.connections[id].client;
            self.fail("COUNTED-COPY", || {
                let token = Short(token);
                format!("node {node} deletes {token} of client {holder} for client {client}")
            });
        }
    }

    /// A key was set: by an extension, if a time to live is given.
    pub fn note_executed(&mut self, node: usize, id: usize, token: &[u8], healed: Option<&[u8]>) {
        let connection = &self.connections[id];
        let (client, closed_at) = (connection.client, connection.closed_at);
        self.rare.hit_if(healed.is_some(), Rare::Healed);
        if closed_at < self.now {
            self.rare.hit(Rare::GhostSet);
            self.rare.hit_if(healed.is_some(), Rare::GhostHeal);
            if self.nodes[node].frozen_until > closed_at {
                self.rare.hit(Rare::FrozenGhost);
            }
        }
        if let Some(attempt) = self.checker.attempts.get_mut(token) {
            self.rare.hit_if(attempt.client != client, Rare::GiverSet);
            let asked = healed.and_then(|ttl| std::str::from_utf8(ttl).ok()?.parse().ok());
            let ttl_ms = asked.unwrap_or(attempt.ttl_ms);
            attempt.executed.push(Executed { node, at: self.now, connection: id, ttl_ms });
        }
    }
}
