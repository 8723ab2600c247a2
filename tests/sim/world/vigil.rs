//! A lock that a stranger holds for long, and clients that wait for it all the time: by then they
//! look for themselves every few seconds only.
//!
//! The stranger deletes its keys, or lets them end, and tells nobody. Each client takes the lock
//! once and leaves. Meanwhile something goes wrong that costs next to nothing by the design (W3,
//! W6, W9, W10). PROMPT: whenever the lock is free, and a client waits whose process runs, one gets
//! it long before those looks.

use muxlock::node::{NodeState, NodeStatus};
use muxlock::proto::Lease;

use super::World;
use super::clock::{MICRO, MILLI, SECOND};
use super::node::Memory;
use super::plan::Class;
use super::queue::Event;
use super::rare::Rare;
use super::redis::{Change, ChangeKind, Entry, Value, is_queue};

/// What a lock may lie free for. A look that is not asked for comes up to 4.2 s later (W10).
const PROMPT_MAX: u64 = SECOND;
const TTL_MAX: u64 = 500 * MILLI;
const HOLDS: [u64; 3] = [10 * SECOND, 3 * SECOND, 20 * SECOND];
const HOLD_MAX: u64 = 20 * MILLI;
/// When those come that are not the first.
const SECOND_AT: u64 = 500 * MILLI;
const ALL_AT: u64 = SECOND;
const STRANGER: &[u8] = b"stranger";
/// What the stranger asks for; and what it leaves on a node lives as long.
const STRANGER_TTL: u64 = 90 * SECOND;
const PATIENCE: u64 = 200 * SECOND;
/// How long the stranger holds where nobody is kept from trying.
const HOLD_SHORT: u64 = 3 * SECOND;
/// How long before the lock is free the second gives up, at most.
const LEAVES_BEFORE: u64 = 400 * MILLI;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upset {
    Nothing,
    /// A node's process ends, and its clients are told.
    End,
    /// The stranger's key stays on a node.
    Stray,
    /// A client's process stands still.
    Pause,
    /// A client gives up when the lock becomes free.
    Leave,
    /// Clients that want no lock have places that a late node kept (W12).
    Places,
    /// The first client stands still, and one that has ended has the place behind it.
    Ended,
    /// The first client stands still, and one that wants no lock has the place behind it (W6).
    Away,
    /// The first client stands still, and the second waits at another queue node, and has kept its
    /// place (W6).
    Elsewhere,
    /// The first client stands still, and the second gives up a while before the lock becomes free
    /// (W12).
    Second,
    /// The stranger's keys end, and nobody is told; one of them lives on (W8).
    Long,
    /// Nobody can wait at the nodes where the stranger's key goes; one lives on elsewhere (W8).
    Mute,
}

const UPSETS: [Upset; 17] = [
    Upset::Nothing,
    Upset::End,
    Upset::Stray,
    Upset::Pause,
    Upset::Leave,
    Upset::Places,
    Upset::Ended,
    Upset::Away,
    Upset::Elsewhere,
    Upset::Elsewhere,
    Upset::Elsewhere,
    Upset::Second,
    Upset::Second,
    Upset::Long,
    Upset::Long,
    Upset::Mute,
    Upset::Mute,
];

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// It has not come, or has left.
    Away,
    WaitsSince(u64),
    Holds,
}

/// Those who wait.
pub struct Vigil {
    upset: Upset,
    /// The client or the node that it is about.
    who: usize,
    /// Whether the stranger deletes its keys.
    deletes: bool,
    parts: Vec<Part>,
    /// Whether a client has had the lock since the stranger gave it up.
    was_taken: bool,
    /// Who gives up, and when.
    leaves: Option<(usize, u64)>,
    /// From when on the lock is free.
    free_at: u64,
    /// When each client last had no quorum of nodes that vote.
    lacked_at: Vec<u64>,
}

impl World {
    /// Clients wait for a lock that is held for long.
    pub fn wait_for_long(&mut self) {
        let is_odd = self.plan.class != Class::Durable || self.plan.nodes < 3;
        if !self.plan.waits || is_odd {
            return;
        }
        let (clients, now) = (self.clients.len(), self.now);
        let mut upset = self.choices.pick(&UPSETS);
        // With one more node that does not vote, nobody gets the lock.
        let votes = |seen: NodeStatus| seen.state == NodeState::Ready;
        let is_whole = self.clients.iter().all(|it| it.engine.statuses().all(votes));
        if !is_whole && upset.is_of_node() || clients < 3 && upset.needs_three() {
            upset = Upset::Nothing;
        }
        let held = match self.choices.pick(&HOLDS) {
            // Everybody tries all the time.
            _ if upset == Upset::Mute => HOLD_SHORT,
            held => held,
        };
        let of = if upset.is_of_node() { self.plan.nodes } else { clients };
        let who = self.choices.below(of as u32) as usize;
        let free_at = now + held;
        self.timeline.note(now, || format!("a stranger holds for long: {upset:?} of {who}"));
        self.rare.hit(Rare::Vigil);
        let deletes = match upset {
            Upset::Stray | Upset::Mute => true,
            Upset::Long => false,
            _ => self.choices.chance(700),
        };
        for node in self.prepare_upset(upset, who) {
            let lives_on = deletes || upset == Upset::Long && node == who;
            let ttl = if lives_on { STRANGER_TTL } else { held };
            let wall = self.nodes[node].wall(now);
            let (value, expires) = (Value::Text(STRANGER.to_vec()), wall + ttl);
            let expires = Some((expires / MILLI) as i64);
            let entry = Entry { value, expires, written: wall, extended: wall };
            self.change_key(node, Some(entry));
        }
        let first = self.choices.below(clients as u32) as usize;
        for turn in 0..clients {
            let client = (first + turn) % clients;
            let is_placed = match upset {
                Upset::Places => matches!(turn, 1 | 2),
                Upset::Away => turn == 1,
                _ => false,
            };
            let from = match turn {
                0 => 0,
                2.. if upset.needs_three() => ALL_AT,
                _ => SECOND_AT,
            };
            let at = now + from + self.choices.magnitude(MICRO, ALL_AT - SECOND_AT - MILLI);
            if !is_placed {
                self.queue.push(at, Event::Vigil(client));
            }
        }
        let upset_at = match upset {
            Upset::Places | Upset::Ended | Upset::Away => now + SECOND_AT - MILLI,
            Upset::Elsewhere | Upset::Second => now + 2 * ALL_AT,
            _ => now + self.choices.between(ALL_AT, held),
        };
        let leaves = match upset {
            Upset::Leave => {
                Some((who, free_at - 5 * MILLI + self.choices.magnitude(MICRO, 10 * MILLI)))
            }
            Upset::Second => {
                let before = self.choices.between(LEAVES_BEFORE / 4, LEAVES_BEFORE);
                Some(((first + 1) % clients, free_at - before))
            }
            _ => None,
        };
        self.vigil = Some(Vigil {
            upset,
            who: if upset.is_of_first() { first } else { who },
            deletes,
            parts: vec![Part::Away; clients],
            was_taken: false,
            leaves,
            free_at,
            lacked_at: vec![0; clients],
        });
        self.queue.push(upset_at, Event::Vigil(clients));
        self.queue.push(free_at, Event::Vigil(clients + 1));
        while self.violation.is_none() && self.step() {
            self.check_prompt();
        }
        self.vigil = None;
    }

    /// A client comes, or gives the lock back; or it is time for what goes wrong, and for the
    /// stranger to leave.
    pub fn vigil_turn(&mut self, number: usize) {
        let clients = self.clients.len();
        let Some(vigil) = &mut self.vigil else {
            return;
        };
        if number == clients {
            return self.upset();
        }
        if number > clients {
            let stray = matches!(vigil.upset, Upset::Stray | Upset::Mute);
            let (deletes, who) = (vigil.deletes, vigil.who);
            let key = self.key_of(0);
            let has_it = |node: &usize| {
                let entry = self.nodes[*node].redis.data.get(&key);
                entry.is_some_and(|entry| entry.value == Value::Text(STRANGER.to_vec()))
            };
            let nodes = (0..self.plan.nodes).filter(|node| deletes && !(stray && *node == who));
            let nodes = nodes.filter(has_it);
            for node in nodes.collect::<Vec<_>>() {
                self.change_key(node, None);
            }
            return;
        }
        let paused_until = self.clients[number].paused_until;
        if self.now < paused_until {
            return self.queue.push(paused_until, Event::Vigil(number));
        }
        if let Some(lease) = self.clients[number].leases.pop() {
            (vigil.parts[number], vigil.free_at) = (Part::Away, self.now);
            self.release(number, lease);
        } else {
            vigil.parts[number] = Part::WaitsSince(self.now);
            let leaves = vigil.leaves.filter(|(who, _)| *who == number);
            let patience = leaves.map_or(PATIENCE, |(_, at)| at - self.now);
            self.acquire(number, 0, self.plan.max_ttl.min(TTL_MAX), Some(patience));
        }
        self.wake_client(number, self.now);
    }

    fn upset(&mut self) {
        let Some(Vigil { upset, who, .. }) = self.vigil else {
            return;
        };
        match upset {
            Upset::Nothing | Upset::Stray | Upset::Leave | Upset::Long | Upset::Mute => {}
            Upset::End => {
                if self.nodes[who].is_up {
                    self.nodes[who].crash(self.now, Memory::Everything);
                    self.end_all(who, false);
                    self.timeline.note(self.now, || format!("node {who} ends"));
                    self.queue.push(self.now + STRANGER_TTL, Event::Restart(who));
                }
            }
            Upset::Pause => self.pause_client(who, STRANGER_TTL),
            Upset::Places => self.keep_places(who),
            Upset::Ended | Upset::Away => {
                self.keep_places(who);
                self.pause_client(who, STRANGER_TTL);
            }
            Upset::Elsewhere => {
                self.send_second_elsewhere(who);
                self.pause_client(who, STRANGER_TTL);
            }
            Upset::Second => self.pause_client(who, STRANGER_TTL),
        }
    }

    /// The node where this client waits has places of the next two, or of one that has ended.
    fn keep_places(&mut self, first: usize) {
        let upset = self.vigil.as_ref().map(|vigil| vigil.upset);
        let clients = self.clients.len();
        for node in 0..self.plan.nodes {
            let channel = |client: usize| {
                let id = self.clients[client].slots[node].connection?;
                self.connections[id].session.channels.first().cloned()
            };
            let Some(own) = channel(first) else {
                continue;
            };
            let next = |turn: usize| channel((first + turn) % clients);
            let others: Vec<_> = match upset {
                Some(Upset::Ended) => vec![b"muxlock:ended".to_vec()],
                Some(Upset::Away) => next(1).into_iter().collect(),
                _ => (1..3).filter_map(next).collect(),
            };
            for (key, entry) in &mut self.nodes[node].redis.data {
                if let (true, Value::List(places)) = (is_queue(&key.1), &mut entry.value)
                    && places.contains(&own)
                {
                    let is_away = upset == Some(Upset::Away) && others.len() == 1;
                    self.rare.hit_if(is_away, Rare::PlaceBehindPause);
                    self.rare.hit_if(others.len() == 2, Rare::PlacesKept);
                    places.extend(others.iter().filter(|other| **other != own).cloned());
                }
            }
        }
    }

    /// The key is set by a stranger, or deleted.
    fn change_key(&mut self, node: usize, entry: Option<Entry>) {
        if !self.nodes[node].is_up {
            return;
        }
        let key = self.key_of(0);
        let data = &mut self.nodes[node].redis.data;
        let kind = if entry.is_some() { ChangeKind::Set } else { ChangeKind::Delete };
        let before = match entry {
            Some(entry) => data.insert(key.clone(), entry),
            None => data.remove(&key),
        };
        let ended = before.as_ref().and_then(|entry| entry.expires);
        let before = before.map(|entry| entry.value);
        self.tell_changes(node, vec![Change { kind, key, before, ended }]);
    }

    /// A client has got the lock.
    pub fn vigil_granted(&mut self, client: usize, lease: Lease) {
        let end = self.clients[client].clock.when(lease.valid_until().as_nanos());
        self.clients[client].leases.push(lease);
        let Some(vigil) = &mut self.vigil else {
            return;
        };
        (vigil.parts[client], vigil.free_at) = (Part::Holds, end);
        vigil.was_taken = true;
        let hold_max = HOLD_MAX.min(self.plan.max_ttl / 10);
        let hold = self.choices.magnitude(MICRO, hold_max);
        self.queue.push(self.now + hold, Event::Vigil(client));
    }

    /// A client has given up.
    pub fn vigil_missed(&mut self, client: usize) {
        if let Some(vigil) = &mut self.vigil {
            vigil.parts[client] = Part::Away;
        }
    }

    fn check_prompt(&mut self) {
        let lacking: Vec<_> = (0..self.clients.len()).filter(|it| !self.sees_quorum(*it)).collect();
        let Some(vigil) = &mut self.vigil else {
            return;
        };
        lacking.into_iter().for_each(|client| vigil.lacked_at[client] = self.now);
        if vigil.parts.contains(&Part::Holds) && self.now <= vigil.free_at {
            return;
        }
        let (mut late, free_at) = (None, vigil.free_at);
        for (client, part) in vigil.parts.iter().enumerate() {
            let it = &self.clients[client];
            let resumed = it.paused_until.max(it.forgotten_until).max(vigil.lacked_at[client]);
            if let Part::WaitsSince(since) = part
                && free_at.max(*since).max(resumed) + PROMPT_MAX < self.now
            {
                late = Some(client);
            }
        }
        if let Some(client) = late {
            let (upset, took) = (vigil.upset, (self.now - free_at) / MILLI);
            self.fail("PROMPT", || format!("client {client} waits: {upset:?}, free for {took} ms"));
        }
    }
}
