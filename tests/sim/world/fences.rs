//! Fencing tokens: what each counter truly had, and what a lock's number must be.

use std::collections::BTreeMap;

use muxlock::LockToken;
use muxlock::proto::{Lease, NodeSet};

use super::World;
use super::check::{Failure, Heard};
use super::clock::{MICRO, MILLI};
use super::faults::Fault;
use super::plan::Class;
use super::rare::Rare;
use super::redis::{Change, ChangeKind, Key, Value};
use super::timeline::Short;
use super::wire::Reply;
use super::work::token_of;

/// The key of the counters.
pub const FENCE: &[u8] = b"muxlock:fence";
/// How far a counter may be from its server's clock, in microseconds (V).
const NEAR: u64 = 500_000;
/// How often what raises a counter comes late, in runs where connections stand still.
const LATE_RAISES: u32 = 150;
/// How often a clock jumps between a grant and its raise, in runs where clocks do.
const JUMPS: u32 = 100;

/// A command that asks for a number, or raises one.
pub enum Asks<'a> {
    Set { key: &'a [u8], token: &'a [u8], bucket: &'a [u8], proposal: &'a [u8] },
    Raise { token: &'a [u8], bucket: &'a [u8] },
}

/// What a command asks for, if it is about counters.
pub fn asks<'a>(words: &[&'a [u8]]) -> Option<Asks<'a>> {
    match *words {
        [b"EVAL", _, b"2", key, FENCE, token, _, bucket, proposal] => {
            Some(Asks::Set { key, token, bucket, proposal })
        }
        [b"EVAL", _, b"2", _, FENCE, token, bucket, _] => Some(Asks::Raise { token, bucket }),
        _ => None,
    }
}

/// An attempt that asked for a number.
struct Fenced {
    key: Key,
    bucket: Vec<u8>,
    /// When its SETs were first handed out, in true time.
    started: u64,
    /// For each node, what its counter had when it granted, and when.
    grants: Vec<Option<(u64, u64)>>,
    /// For each node, the most that its counter had while it held the token.
    highest: Vec<u64>,
    /// Slots that were told to raise.
    raised: u64,
    /// How many yeses the client had heard when it first raised.
    heard: usize,
    /// When it was handed out as a lock, with which number, counting on these nodes.
    returned: Option<(u64, u64, Vec<usize>)>,
    is_entered: bool,
}

/// All numbers of a run.
#[derive(Default)]
pub struct Fences {
    attempts: BTreeMap<[u8; 40], Fenced>,
    /// By how much the servers' clocks were ahead of true time, at the least and at the most, when
    /// they counted.
    skew: Option<(i64, i64)>,
    /// The greatest number that was written with, for each key.
    marks: BTreeMap<Key, u64>,
}

impl Fences {
    /// How far apart the clocks were, and twice what a counter may be from them, in nanoseconds.
    fn doubt(&self) -> u64 {
        let (low, high) = self.skew.unwrap_or_default();
        (high - low) as u64 + 2 * NEAR * MICRO + MILLI
    }

    /// These slots are told to raise: each once, and only if it has granted (F9).
    fn note_raise(&mut self, slots: u64, token: &LockToken, heard: &[Heard]) -> Option<Failure> {
        let short = Short(token.as_bytes());
        let Some(attempt) = self.attempts.get_mut(token.as_bytes()) else {
            return Some(("TWO-TRIPS", format!("{short} asked for no number")));
        };
        if attempt.raised == 0 {
            attempt.heard = heard.len();
        }
        if attempt.raised & slots != 0 {
            return Some(("TWO-TRIPS", format!("{short} raises a node twice")));
        }
        attempt.raised |= slots;
        let granted: u64 = heard.iter().filter(|it| !it.is_extension).map(|it| 1 << it.slot).sum();
        let is_early = slots & !granted != 0;
        is_early.then(|| ("TWO-TRIPS", format!("{short} raises a node that has not granted")))
    }
}

fn number_of(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl World {
    /// A client hands out a SET that asks for a number.
    pub fn note_fenced(&mut self, token: &LockToken, proposal: u64) {
        self.rare.hit_if(proposal == 0, Rare::NoProposal);
        let (nodes, now) = (self.plan.nodes, self.now);
        self.fences.attempts.entry(*token_digits(token)).or_insert_with(|| Fenced {
            key: (0, Vec::new()),
            bucket: Vec::new(),
            started: now,
            grants: vec![None; nodes],
            highest: vec![0; nodes],
            raised: 0,
            heard: 0,
            returned: None,
            is_entered: false,
        });
    }

    /// A client has nodes raise their counters.
    pub fn check_raise(&mut self, client: usize, nodes: NodeSet, token: &LockToken) {
        let slots = nodes.iter().map(|slot| 1 << slot).sum();
        let Some(attempt) = self.checker.attempts.get(token.as_bytes()) else {
            return;
        };
        if let Some((rule, text)) = self.fences.note_raise(slots, token, &attempt.heard) {
            return self.fail(rule, || text);
        }
        if self.plan.has(Fault::Stall) && self.is_faulty && self.choices.chance(LATE_RAISES) {
            for slot in nodes.iter() {
                if let Some(id) = self.clients[client].slots[slot].connection {
                    let length = self.choices.magnitude(MILLI, 2 * self.plan.max_ttl);
                    self.connections[id].up.held_until = self.now + length;
                }
            }
        }
    }

    /// A client reads that a node has granted, with a number. Its clock may jump before it is
    /// raised, and a look for another lock may show that.
    pub fn may_jump_before_raise(&mut self, client: usize, node: usize, token: &[u8; 40]) {
        let is_wanted = self.plan.has(Fault::StepForward) && self.is_faulty;
        let is_fenced = self.fences.attempts.get(token).is_some_and(|it| it.returned.is_none());
        if is_wanted && is_fenced && self.choices.chance(JUMPS) {
            let length = self.choices.magnitude(20 * MILLI, 1_000 * MILLI);
            self.nodes[node].step_forward(self.now, length, 2 * self.plan.max_ttl);
            let resource = self.choices.below(self.plan.resources as u32) as usize;
            self.acquire(client, resource, self.plan.max_ttl, None);
        }
    }

    /// A server has run a command: what became of its counters?
    pub fn note_counted(&mut self, node: usize, words: &[&[u8]], reply: &Reply, all: &[Change]) {
        let wall = self.nodes[node].wall(self.now);
        for change in all.iter().filter(|it| it.kind == ChangeKind::Field && it.key.1 == FENCE) {
            self.check_grows(node, change);
        }
        let db = self.plan.db;
        match asks(words) {
            Some(Asks::Set { key, token, bucket, proposal }) => {
                let is_set = all.iter().any(|change| change.kind == ChangeKind::Set);
                let counter = self.counter(node, db, bucket);
                if let (true, Some(counter)) = (is_set, counter) {
                    let ahead = wall as i64 - self.now as i64;
                    let (low, high) = self.fences.skew.unwrap_or((ahead, ahead));
                    self.fences.skew = Some((low.min(ahead), high.max(ahead)));
                    let (now, proposal) = (self.now, number_of(proposal));
                    let time = wall / MICRO;
                    self.rare.hit_if(counter + NEAR == time && counter > proposal, Rare::ClampUp);
                    let is_cut = counter == time + NEAR && counter < proposal;
                    self.rare.hit_if(is_cut, Rare::ClampDown);
                    if let Some(attempt) = self.fences.attempts.get_mut(token) {
                        (attempt.key, attempt.bucket) = ((db, key.to_vec()), bucket.to_vec());
                        attempt.grants[node] = Some((counter, now));
                    }
                }
            }
            Some(Asks::Raise { token, bucket }) => {
                self.rare.hit_if(*reply == Reply::Integer(0), Rare::RaiseRefused);
                let attempt = self.fences.attempts.get(token);
                let own = attempt.and_then(|attempt| attempt.grants[node]);
                let before = all.iter().find_map(|change| field_of(change.before.as_ref(), bucket));
                let is_between = own.zip(before).is_some_and(|((own, _), before)| before > own);
                self.rare.hit_if(is_between, Rare::NeighbourBetween);
            }
            None => {}
        }
        if all.is_empty() && asks(words).is_none() {
            return;
        }
        // What has not granted there has no number of it.
        let granted = self.fences.attempts.iter_mut().filter(|(_, it)| it.grants[node].is_some());
        for (token, attempt) in granted {
            if self.nodes[node].has(&attempt.key, token) {
                let entry = self.nodes[node].redis.data.get(&(db, FENCE.to_vec()));
                let counter = field_of(entry.map(|entry| &entry.value), &attempt.bucket);
                attempt.highest[node] = attempt.highest[node].max(counter.unwrap_or(0));
            }
        }
    }

    fn counter(&self, node: usize, db: u64, bucket: &[u8]) -> Option<u64> {
        let entry = self.nodes[node].redis.data.get(&(db, FENCE.to_vec()))?;
        field_of(Some(&entry.value), bucket)
    }

    /// No command makes a counter smaller.
    fn check_grows(&mut self, node: usize, change: &Change) {
        let now = self.nodes[node].redis.data.get(&change.key).map(|entry| &entry.value);
        let (Some(Value::Hash(before)), Some(Value::Hash(now))) = (&change.before, now) else {
            return;
        };
        let is_less = |(bucket, value): (&Vec<u8>, &Vec<u8>)| {
            let now = now.get(bucket).map_or(0, |value| number_of(value));
            now < number_of(value)
        };
        if before.iter().any(is_less) {
            self.fail("COUNTER-GROWS", || format!("a counter of node {node} is set back"));
        }
    }

    /// The lock that a client is given has a number if it asked for one (F19), and which.
    pub fn check_fence(&mut self, is_fenced: bool, lease: &Lease, nodes: &[usize]) {
        let token = token_of(lease);
        let number = lease.fencing_token().map(|number| number.get());
        if number.is_some() != is_fenced {
            return self.fail("FENCE-KEPT", || format!("{} has {number:?}", Short(&token)));
        }
        let Some(number) = number else {
            return;
        };
        self.digest.add(number);
        self.check_stamped(&token, number, nodes);
        self.check_order(&token, number, nodes);
        self.note_second_phase(&token, number, nodes);
        if let Some(attempt) = self.fences.attempts.get_mut(&token) {
            attempt.returned = Some((self.now, number, nodes.to_vec()));
        }
    }

    fn check_stamped(&mut self, token: &[u8; 40], number: u64, nodes: &[usize]) {
        let Some(attempt) = self.fences.attempts.get(token) else {
            return self.fail("STAMPED", || format!("{} asked for no number", Short(token)));
        };
        let is_stamped = |node: &&usize| {
            let own = attempt.grants[**node].map_or(u64::MAX, |(own, _)| own);
            own <= number && attempt.highest[**node] >= number
        };
        if let Some(node) = nodes.iter().find(|node| !is_stamped(node)) {
            let (own, highest) = (attempt.grants[*node], attempt.highest[*node]);
            let short = Short(token);
            let text = format!("node {node} counts for {number} of {short}: {own:?}, {highest}");
            self.fail("STAMPED", || text);
        }
    }

    /// Whether the order of all numbers is promised, and not only of those that are far apart.
    fn is_order_promised(&self) -> bool {
        match self.plan.class {
            Class::Durable | Class::ForHolders => true,
            Class::Guarded => {
                let is_waited_out = self.fences.doubt() < self.plan.max_ttl / 100 * 97;
                self.plan.is_guarded() && self.mutex_promised && is_waited_out
            }
            Class::Stepped | Class::Unguarded | Class::Promoted => false,
        }
    }

    fn check_order(&mut self, token: &[u8; 40], number: u64, nodes: &[usize]) {
        let is_promised = self.is_order_promised();
        let margin = if is_promised { 0 } else { self.fences.doubt() };
        let own = &self.fences.attempts[token];
        let others =
            self.fences.attempts.iter().filter(|(other, it)| {
                **other != *token && it.key == own.key && it.returned.is_some()
            });
        let is_owner = nodes.iter().all(|node| self.nodes[*node].has(&own.key, token));
        let mut failure = None;
        for (other, earlier) in others {
            let Some((at, before, counted)) = &earlier.returned else {
                continue;
            };
            let text = |rule, what: &str| {
                let (short, other) = (Short(token), Short(other));
                Some((rule, format!("{short} has {number}, {other} had {before}: {what}")))
            };
            if own.started > at + margin && number <= *before {
                failure = text("FENCE-ORDER", "the later one");
            }
            if is_promised && number == *before {
                failure = text("FENCE-UNIQUE", "both");
            }
            if is_promised && is_owner && number <= *before {
                failure = text("FENCE-OWNER", "the owner");
            }
            let common = nodes.iter().filter(|node| counted.contains(node));
            let grants = common.filter_map(|node| own.grants[*node].zip(earlier.grants[*node]));
            for ((_, mine), (_, theirs)) in grants {
                let is_known = self.plan.class == Class::Durable && mine != theirs;
                if is_known && (mine > theirs) != (number > *before) {
                    failure = text("FENCE-ORDER", "as a node has granted them");
                }
            }
        }
        if let Some((rule, text)) = failure {
            self.fail(rule, || text);
        }
    }

    fn note_second_phase(&mut self, token: &[u8; 40], number: u64, nodes: &[usize]) {
        let (fenced, attempt) = (&self.fences.attempts[token], &self.checker.attempts[token]);
        self.rare.hit(Rare::Fenced);
        if fenced.raised == 0 {
            return;
        }
        self.rare.hit(Rare::FencedBySecond);
        for heard in attempt.heard.iter().skip(fenced.heard).filter(|it| !it.is_extension) {
            let node = self.connections[heard.connection].node;
            let own = fenced.grants[node].map_or(0, |(own, _)| own);
            self.rare.hit_if(own == number && nodes.contains(&node), Rare::LateEqualGrant);
            self.rare.hit_if(own > number, Rare::LateGreaterGrant);
            let is_raised = own < number && nodes.contains(&node);
            self.rare.hit_if(is_raised, Rare::LateSmallerGrant);
        }
    }

    pub fn is_fenced(&self, token: &[u8; 40]) -> bool {
        self.fences.attempts.contains_key(token)
    }

    /// The number of a lock never changes (F17).
    pub fn check_fence_kept(&mut self, lease: &Lease, rare: Option<Rare>) {
        let token = token_of(lease);
        let returned = self.fences.attempts.get(&token).and_then(|it| it.returned.as_ref());
        let number = returned.map(|(_, number, _)| *number);
        let is_fenced = number.is_some();
        if lease.fencing_token().map(|number| number.get()) != number {
            let short = Short(&token);
            self.fail("FENCE-KEPT", || format!("{short} had {number:?} and has another number"));
        }
        rare.into_iter().for_each(|rare| self.rare.hit_if(is_fenced, rare));
    }

    /// An application writes with the number of one of its locks, held or lost, to what the lock
    /// protects, which refuses smaller numbers than it has seen (F20).
    pub fn write_something(&mut self, client: usize) {
        let leases = &self.clients[client].leases;
        let fenced: Vec<[u8; 40]> =
            leases.iter().filter(|it| it.fencing_token().is_some()).map(token_of).collect();
        if fenced.is_empty() {
            return;
        }
        let token = fenced[self.choices.below(fenced.len() as u32) as usize];
        let margin = if self.is_order_promised() { 0 } else { self.fences.doubt() };
        let attempt = &self.fences.attempts[&token];
        let Some((at, number, _)) = attempt.returned.clone() else {
            return;
        };
        let mark = self.fences.marks.entry(attempt.key.clone()).or_default();
        if number < *mark {
            return self.rare.hit(Rare::StaleWriteRefused);
        }
        *mark = number;
        let is_newer =
            |it: &&Fenced| it.is_entered && it.key == attempt.key && it.started > at + margin;
        if let Some(newer) = self.fences.attempts.values().find(is_newer) {
            let newer = newer.returned.as_ref().map(|(_, number, _)| *number);
            let short = Short(&token);
            return self.fail("REGISTER", || format!("{short} writes after {newer:?}"));
        }
        self.fences.attempts.entry(token).and_modify(|it| it.is_entered = true);
    }

    /// A node's counters are lost alone, or somebody puts text in their place.
    pub fn spoil_counters(&mut self, node: usize, is_text: bool) {
        let key = (self.plan.db, FENCE.to_vec());
        let data = &mut self.nodes[node].redis.data;
        match data.get_mut(&key).map(|entry| &mut entry.value) {
            Some(Value::Hash(fields)) if is_text => {
                fields.values_mut().for_each(|value| *value = b"x".to_vec());
                self.rare.hit(Rare::CounterText);
            }
            Some(_) => {
                data.remove(&key);
                self.rare.hit(Rare::CounterLost);
            }
            None => {}
        }
    }

    /// Somebody mends what is no counter.
    pub fn mend_counters(&mut self, node: usize) {
        let key = (self.plan.db, FENCE.to_vec());
        let entry = self.nodes[node].redis.data.get_mut(&key);
        if let Some(Value::Hash(fields)) = entry.map(|entry| &mut entry.value) {
            fields.retain(|_, value| number_of(value) > 0);
        }
    }

    /// The sum of a node's counters, to see whether it was set back.
    pub fn sum_of_counters(&self, node: usize) -> Option<u128> {
        let key = (self.plan.db, FENCE.to_vec());
        match &self.nodes[node].redis.data.get(&key)?.value {
            Value::Hash(fields) => {
                Some(fields.values().map(|value| u128::from(number_of(value))).sum())
            }
            Value::Text(_) | Value::List(_) | Value::Sorted(_) => None,
        }
    }
}

fn field_of(value: Option<&Value>, bucket: &[u8]) -> Option<u64> {
    match value {
        Some(Value::Hash(fields)) => fields.get(bucket).map(|value| number_of(value)),
        Some(Value::Text(_) | Value::List(_) | Value::Sorted(_)) | None => None,
    }
}

fn token_digits(token: &LockToken) -> &[u8; 40] {
    token.as_bytes().try_into().expect("a token has 40 digits")
}
