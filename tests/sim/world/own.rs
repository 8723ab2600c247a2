//! Locks that are known by a caller's value: any client may ask for it, and release by it (K13,
//! K15).

use std::time::Duration;

use muxlock::inspection::{Inspection, Owner};
use muxlock::node::NodeOutcome;
use muxlock::proto::{Lease, ReleaseHow};
use muxlock::{LockToken, Released, Resource};

use super::World;
use super::check::{Checker, Heard, quorum};
use super::forms::{Step, VALUES, What, form};
use super::node::{companion, companion_token};
use super::rare::Rare;
use super::redis::{Key, Value};
use super::timeline::Short;
use super::wire::Reply;
use super::work::{Kind, Operation, digits};
use crate::scripts::LOOK_AS;

/// The token of a lock that has none.
pub const NOBODY: [u8; 40] = [b'0'; 40];
/// No lock has this value.
const NOBODYS: &str = "three";

/// What a client does with a lock that it knows by its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Owner,
    Release,
}

/// All nodes are asked what a name is locked with.
#[derive(Debug, Clone)]
pub struct Look {
    call: Call,
    key: Key,
    resource: Resource,
    value: Vec<u8>,
    seen: Vec<Seen>,
}

/// A lock is released by who knows its value.
#[derive(Debug, Clone)]
pub struct Freeing {
    key: Key,
    /// What was named, and what its holder has.
    named: [u8; 40],
    target: Vec<u8>,
    /// The slots of which the client has read that they deleted it.
    freed: u64,
}

/// What a client has read, and what was true when the node said it.
#[derive(Debug, Clone)]
struct Seen {
    slot: usize,
    at: u64,
    had: Option<Had>,
}

/// The value under a key, and the token beside it; nothing of a key of another type.
type Had = Option<(Vec<u8>, Vec<u8>)>;

/// What a node has said, in truth.
#[derive(Debug, Clone)]
pub enum Said {
    /// What a name is locked with, if it is locked.
    Holds { key: Key, at: u64, had: Option<Had> },
    /// That it has deleted the lock with this token.
    Freed { key: Key, named: Vec<u8> },
}

/// What others have made of a lock, because they know its value.
#[derive(Debug, Default)]
pub struct ByValue {
    /// Whether one of them was about to end it: it was to be stopped before.
    pub is_named: bool,
    /// Who was to release what was there at that time.
    freed_by: Option<(usize, u64)>,
    /// A quorum had no copy of it from then on.
    gone_at: Option<u64>,
}

impl ByValue {
    pub fn forget_client(&mut self, client: usize) {
        self.freed_by = self.freed_by.filter(|(by, _)| *by != client);
    }

    pub fn is_freed_by(&self, client: usize) -> bool {
        self.freed_by.is_some_and(|(by, _)| by == client)
    }

    /// Whether a SET of that time is to be released by who knew the value.
    pub fn is_owned(&self, set_at: u64) -> bool {
        self.freed_by.is_some_and(|(_, since)| set_at < since)
    }
}

impl Checker {
    /// Whoever holds this lock has stopped: another client is about to end it. Says whether
    /// somebody was to release it, if there is such a lock.
    fn name(&mut self, token: &[u8]) -> Option<bool> {
        self.stop(token);
        let attempt = self.attempts.get_mut(token)?;
        attempt.by_value.is_named = true;
        Some(!attempt.is_disowned)
    }

    /// What is there of it is this client's to release.
    fn free(&mut self, token: &[u8], client: usize, now: u64) {
        if let Some(attempt) = self.attempts.get_mut(token) {
            attempt.by_value.freed_by.get_or_insert((client, now));
        }
    }

    /// Since when no quorum has had it, because another client has ended it.
    pub fn gone_at(&self, token: &[u8; 40]) -> Option<u64> {
        self.attempts.get(token).and_then(|attempt| attempt.by_value.gone_at)
    }

    /// Says whether its holder believed in it.
    fn stop(&mut self, token: &[u8]) -> bool {
        let mut of_it = self.held.iter_mut().filter(|held| held.token == token);
        of_it.next().is_some_and(|held| !std::mem::replace(&mut held.is_stopped, true))
    }
}

impl World {
    /// An application does something with a lock that it knows by its value: that of a holder, of
    /// a former one, or of nobody.
    pub fn call_by_value(&mut self, client: usize) {
        let call = self.choices.pick(&[Call::Owner, Call::Release]);
        let resource = self.choices.below(self.plan.resources as u32) as usize;
        let key = self.key_of(resource);
        let value = match self.choices.below(8) {
            0..=3 => self.choices.pick(&VALUES).into(),
            4 => NOBODYS.into(),
            // A plain lock has its token for a value.
            at => self.token_of_some(&key, at == 5),
        };
        let name = [self.plan.split(client).1, self.plan.names[resource]].concat();
        let resource = Resource::with_value(name, &value).expect("a valid name and value");
        let now = self.client_now(client);
        self.timeline
            .note(self.now, || format!("client {client} looks for {}: {call:?}", Short(&value)));
        if let Ok(id) = self.clients[client].engine.inspect(now, resource.clone()) {
            let limit = self.clients[client].told + self.plan.round_max();
            let seen = Vec::new();
            self.start(client, id, Kind::Look(Look { call, key, resource, value, seen }), limit);
        }
    }

    /// The token of a holder of the key, or any.
    fn token_of_some(&mut self, key: &Key, is_any: bool) -> Vec<u8> {
        let mut tokens: Vec<[u8; 40]> = match is_any {
            true => self.checker.attempts.keys().copied().collect(),
            false => {
                let of_key = self.checker.held.iter().filter(|held| held.keys.contains(key));
                of_key.map(|held| held.token).collect()
            }
        };
        tokens.push(NOBODY);
        self.choices.pick(&tokens).to_vec()
    }

    /// What a node has under a key, and beside it.
    fn had(&self, node: usize, key: &Key) -> Option<Had> {
        let data = &self.nodes[node].redis.data;
        let entry = data.get(key)?;
        let Value::Text(value) = &entry.value else {
            return Some(None);
        };
        let beside = data.get(&companion(key)).filter(|beside| beside.expires == entry.expires);
        let token = beside.and_then(|beside| companion_token(&beside.value)).unwrap_or(&NOBODY);
        Some(Some((value.clone(), token.to_vec())))
    }

    /// Keeps what a server says of such a lock, to compare it with what a client makes of it.
    pub fn note_said(&mut self, node: usize, id: usize, words: &[&[u8]], reply: &Reply) {
        let db = self.connections[id].session.db;
        let said = match (words, reply) {
            ([b"EVAL", script, _, key, ..], _) if script.ends_with(LOOK_AS.as_bytes()) => {
                let key = (db, key.to_vec());
                let is_error = matches!(reply, Reply::Error(_));
                let had = if is_error { Some(None) } else { self.had(node, &key) };
                Said::Holds { key, at: self.now, had }
            }
            (_, Reply::Integer(1)) => match form(words) {
                Some(form) if form.what == What::As && form.step == Step::Free => {
                    let key = (db, form.keys[0].to_vec());
                    Said::Freed { key, named: form.token.to_vec() }
                }
                _ => return,
            },
            _ => return,
        };
        let connection = &mut self.connections[id];
        connection.said.push_back((connection.answered, said));
    }

    /// A client has read the reply with this index.
    pub fn hear_said(&mut self, client: usize, slot: usize, id: usize, index: u64) {
        let said = &mut self.connections[id].said;
        if said.front().is_none_or(|(at, _)| *at != index) {
            return;
        }
        let Some((_, said)) = said.pop_front() else {
            return;
        };
        for operation in self.clients[client].operations.values_mut() {
            match (&mut operation.kind, &said) {
                (Kind::Look(look), Said::Holds { key, at, had }) if look.key == *key => {
                    look.seen.push(Seen { slot, at: *at, had: had.clone() });
                }
                (Kind::ReleaseAs(it), Said::Freed { key, named })
                    if it.key == *key && it.named == **named =>
                {
                    it.freed |= 1 << slot;
                }
                _ => {}
            }
        }
    }

    /// All nodes have said what the name is locked with: what is made of it was true of a quorum
    /// within the call.
    pub fn looked(&mut self, client: usize, operation: Operation, inspection: &Inspection) {
        let Kind::Look(look) = operation.kind else {
            return self.fail("TERMINATION", || "an operation changed its kind".into());
        };
        self.timeline.note(self.now, || format!("client {client} is told: {inspection}"));
        let has_said = |seen: &&Seen| {
            let outcome = inspection.nodes()[seen.slot].outcome;
            let is_answer = matches!(outcome, NodeOutcome::Held | NodeOutcome::Absent);
            is_answer && seen.at >= operation.started_true
        };
        let seen: Vec<&Seen> = look.seen.iter().filter(has_said).collect();
        let slots = |is_it: &dyn Fn(&Option<Had>) -> bool| {
            let slots = seen.iter().filter(|seen| is_it(&seen.had)).map(|seen| 1_u64 << seen.slot);
            slots.fold(0, |all, slot| all | slot).count_ones() as usize
        };
        let value_of = |had: &Option<Had>| had.clone().flatten().map(|(value, _)| value);
        let (owner, token) = (inspection.owner(), inspection.token_beside(&look.value));
        let count = match &owner {
            Owner::Value(value) => slots(&|had| value_of(had).as_deref() == Some(value)),
            Owner::Free => slots(&Option::is_none),
            Owner::Unknown => usize::MAX,
        };
        if count < quorum(self.plan.nodes) {
            self.fail("OWNER", || format!("{owner:?} is true of {count} nodes"));
        }
        let with = |token: &[u8]| {
            slots(&|had| matches!(had, Some(Some((it, of))) if *it == look.value && of == token))
        };
        let is_same = |one: &Option<Had>, other: &Option<Had>| {
            one.is_none() == other.is_none() && value_of(one) == value_of(other)
        };
        let alike = seen.iter().filter(|seen| seen.had != Some(None));
        let alike = alike.map(|seen| slots(&|had| is_same(had, &seen.had))).max().unwrap_or(0);
        let most = seen.iter().filter_map(|seen| seen.had.as_ref()?.as_ref());
        let most = most.map(|(_, token)| with(token)).max().unwrap_or(0);
        let named = digits(&token);
        // A client that looks twice at a time knows which answer is which.
        let is_clear = seen.len() == slots(&|_| true);
        if with(&named) == 0 && named != NOBODY || is_clear && with(&named) < most {
            self.fail("OWNER", || format!("{} is named, and not by most nodes", Short(&named)));
        }
        if is_clear && owner == Owner::Unknown && alike >= quorum(self.plan.nodes) {
            self.fail("OWNER", || format!("{alike} nodes agree, and the owner is unknown"));
        }
        let with_value = slots(&|had| value_of(had).as_ref() == Some(&look.value));
        self.rare.hit_if(matches!(owner, Owner::Value(_)), Rare::OwnerNamed);
        self.rare.hit_if(owner == Owner::Unknown, Rare::OwnerUnknown);
        let is_minority = (1..quorum(self.plan.nodes)).contains(&with_value);
        self.rare.hit_if(is_minority && look.call != Call::Owner, Rare::NamedMinority);
        // Without faults, each client gets its locks undisturbed.
        if look.call != Call::Owner && self.is_faulty {
            self.act_by_value(client, look, &token);
        }
    }

    /// Releases what was named.
    fn act_by_value(&mut self, client: usize, look: Look, token: &LockToken) {
        let Look { key, resource, value, .. } = look;
        let (named, now) = (digits(token), self.client_now(client));
        let is_plain = named == NOBODY;
        let target = if is_plain { value } else { named.to_vec() };
        let is_live = self.checker.name(&target);
        let limit = self.clients[client].told + self.plan.round_max();
        // One without a token is not sent again (K13).
        self.checker.free(&named, client, self.now);
        let lease = Lease::of_value(resource, *token, Duration::from_nanos(self.plan.max_ttl));
        let id = self.clients[client].engine.release(now, lease, ReleaseHow::ToTheEnd);
        let freeing = Freeing { key, named, target, freed: 0 };
        self.rare.hit_if(is_live == Some(true) && !is_plain, Rare::FreedLive);
        self.rare.hit_if(is_live == Some(false) && !is_plain, Rare::FreedLeft);
        self.start(client, id, Kind::ReleaseAs(freeing), limit);
    }

    /// A release by value has ended: a quorum has answered, and each node that counts as one that
    /// has deleted it has done so.
    pub fn released_as(&mut self, operation: &Operation, released: Option<&Released>) {
        let Kind::ReleaseAs(it) = &operation.kind else {
            return self.fail("TERMINATION", || "an operation changed its kind".into());
        };
        let Some(released) = released else {
            return self.rare.hit(Rare::ReleaseUnconfirmed);
        };
        let (needed, freed) = (quorum(self.plan.nodes), it.freed.count_ones() as usize);
        if released.confirmed + released.absent < needed || released.confirmed > freed {
            self.fail("BY-VALUE", || format!("{released:?}, of {freed} nodes"));
        }
        if released.was_held() {
            self.fail("BY-VALUE", || "a lock of which nothing was known was held".into());
        }
        let is_freed = released.confirmed >= needed;
        self.rare.hit_if(is_freed && it.named == NOBODY, Rare::FreedPlain);
        self.rare.hit_if(released.confirmed == 0 && it.named != NOBODY, Rare::FreedGone);
        if let (Some(attempt), true) = (self.checker.attempts.get_mut(&it.target[..]), is_freed) {
            attempt.by_value.gone_at.get_or_insert(self.now);
        }
    }

    /// No quorum extends a lock that one has deleted: each of these votes came after that.
    pub fn check_not_ended(&mut self, token: &[u8; 40], granted: &[usize], heard: &[Heard]) {
        let Some(gone_at) = self.checker.gone_at(token) else {
            return;
        };
        let is_late = |slot: &usize| {
            heard.iter().filter(|heard| heard.slot == *slot).all(|heard| heard.at >= gone_at)
        };
        // Who heals may set the keys again.
        if self.mutex_promised && !self.plan.heals && granted.iter().all(is_late) {
            self.fail("BY-VALUE", || format!("{} is extended, and gone", Short(token)));
        }
    }
}
