//! A crowd for one lock, after all faults have ended: what those who wait in a queue may expect.
//!
//! Each run draws one trouble for its crowd, or none. What is checked depends on it:
//!
//! - WAKE: when the lock is free and somebody waits who is awake, somebody gets it soon, whatever
//!   was lost;
//! - HAND-OFF: without a trouble, the next one gets it in a few message times, nearly always;
//! - FAIR: without a trouble, and after one that is over by itself, nobody gets it many times while
//!   another one waits;
//! - CALM: without a trouble, nearly every round is a grant;
//! - TIDY: without a trouble, no queue is left.

use muxlock::node::{NodeState, NodeStatus, QueueSupport};
use muxlock::proto::Lease;

use super::World;
use super::clock::{MICRO, MILLI, SECOND};
use super::network::ServerEnd;
use super::node::Memory;
use super::plan::Class;
use super::queue::Event;
use super::rare::Rare;
use super::redis::{Entry, Value, is_queue};
use super::server::Refusal;

/// How many locks a crowd takes for each client, in all.
const GRANTS: u32 = 20;
/// The first ones, in which clients learn of each other.
const GRANTS_EARLY: u32 = 5;
/// More locks are not taken before all have come.
const EARLY_MAX: u32 = 100;
const TTL_MAX: u64 = 500 * MILLI;
const SPELL_MAX: u64 = 300 * MILLI;
const PATIENCE: u64 = 90 * SECOND;
/// When something was lost, the slow timers of those who wait help.
const WAKE_MAX: u64 = 5 * SECOND;
/// How many locks another client may get while one waits: a long row of one that knows of nobody,
/// and what it takes until it does.
const ROW_MAX: u32 = 48;
/// Each client gets so many of what would be its share, in percent.
const SHARE_MIN_PERCENT: u32 = 30;
/// Of a hundred hand-offs, so many may take longer.
const SLOW_HAND_OFFS_MAX: usize = 34;
/// Who has tried so often in one wait looks at the lock after pauses, unless it is told.
const ROUNDS_IN_VAIN: u64 = 2;
/// More rounds than grants, in percent, and in any case for each client.
const ROUNDS_MAX_PERCENT: u64 = 125;
const ROUNDS_SPARE: u64 = 8;

/// What goes wrong in a crowd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Nothing,
    /// A client's process stands still, for long or for good.
    Pause,
    /// Two of them.
    PauseTwo,
    /// A client's process ends, and another takes its place.
    Restart,
    /// A client tries again and again without waiting.
    Barge,
    /// A node's process stands still for a while.
    Freeze,
    /// A node's process dies and comes back with all it knew.
    Crash,
    /// Somebody else's key is on a node.
    Stray,
    /// The queues of a node are deleted.
    Flush,
    /// A node forgets what it should tell.
    Forget,
    /// A node does not allow something that waits need.
    Rights,
    /// A node has no memory left for a while.
    Full,
}

const TROUBLES: [Trouble; 15] = [
    Trouble::Nothing,
    Trouble::Nothing,
    Trouble::Nothing,
    Trouble::Nothing,
    Trouble::Pause,
    Trouble::PauseTwo,
    Trouble::Restart,
    Trouble::Barge,
    Trouble::Freeze,
    Trouble::Crash,
    Trouble::Stray,
    Trouble::Flush,
    Trouble::Forget,
    Trouble::Rights,
    Trouble::Full,
];

/// What waits need, by name.
const RIGHTS: [&str; 4] = ["client|caching", "subscribe", "publish", "lpos"];

/// A member's wait for the lock.
#[derive(Clone)]
struct Wait {
    began: u64,
    /// How many locks each had got then.
    grants: Vec<u32>,
    /// How many rounds its engine had started before, and in how many queues it had stood.
    rounds: u64,
    queued: u64,
    /// How many locks each has got since it stood in one.
    rows: Vec<u32>,
}

/// A crowd.
pub struct Crowd {
    trouble: Trouble,
    /// How many locks are still taken.
    left: u32,
    /// Whether all others were there when one got the lock, and how many were taken before.
    is_complete: bool,
    early: u32,
    waits: Vec<Option<Wait>>,
    grants: Vec<u32>,
    hold_max: u64,
    think_max: u64,
    /// From when on somebody should get the lock.
    free_at: u64,
    holder: Option<usize>,
    /// When the lock was given back while another one waited in the queue.
    handed_at: Option<u64>,
    hand_offs: Vec<u64>,
    rounds_before: u64,
    queued_before: Vec<u64>,
    /// When each client last had no quorum of nodes that vote.
    lacked_at: Vec<u64>,
    /// Whether clients saw different nodes as the queue node: they know different things of the
    /// nodes.
    is_split: bool,
    /// Nodes on which something was left before: whoever was lost then stands there for a while.
    untidy_before: Vec<bool>,
    /// How often clients had waited in vain for each node: a place there is left without a word.
    timeouts_before: Vec<u64>,
    /// From when on nobody gets a row of locks while another one stands in a queue.
    is_fair_from: Option<u64>,
    /// After how many grants the trouble begins, if it has not.
    trouble_at: Option<u32>,
}

impl World {
    /// A crowd gathers, if clients wait in queues at all. Returns whether nothing went wrong there.
    pub fn gather_crowd(&mut self) -> bool {
        if !self.plan.waits || !self.choices.chance(700) {
            return true;
        }
        let mut trouble = self.choices.pick(&TROUBLES);
        let needs_others = matches!(
            trouble,
            Trouble::Freeze
                | Trouble::Crash
                | Trouble::Stray
                | Trouble::Rights
                | Trouble::Flush
                | Trouble::Full
        );
        let is_odd = self.plan.class != Class::Durable || self.plan.nodes < 3;
        // A client that starts has not heard of the process before one that lies about its age.
        let is_fooled = trouble == Trouble::Restart && self.nodes.iter().any(|node| node.lies);
        if needs_others && is_odd || is_fooled {
            trouble = Trouble::Nothing;
        }
        let ttl = self.crowd_ttl();
        let clients = self.clients.len();
        let now = self.now;
        self.timeline.note(now, || format!("a crowd gathers: {trouble:?}"));
        self.crowd = Some(Crowd {
            trouble,
            left: GRANTS * clients as u32,
            is_complete: trouble == Trouble::Barge,
            early: 0,
            waits: vec![None; clients],
            grants: vec![0; clients],
            hold_max: self.choices.pick(&[20 * MILLI, MILLI, 50 * MICRO]).min(ttl / 10),
            think_max: self.choices.pick(&[0, 0, 5 * MILLI]),
            free_at: self.is_free_from(),
            holder: None,
            handed_at: None,
            hand_offs: Vec::new(),
            rounds_before: self.rounds_of_all(),
            queued_before: self.clients.iter().map(|it| it.engine.stats().queued).collect(),
            lacked_at: vec![0; clients],
            is_split: false,
            untidy_before: (0..self.nodes.len()).map(|node| self.is_untidy(node)).collect(),
            timeouts_before: self.timeouts(),
            is_fair_from: (trouble == Trouble::Nothing).then_some(now),
            trouble_at: Some(1 + self.choices.below(2 * GRANTS)),
        });
        self.rare.hit(Rare::Crowd);
        for client in 0..clients {
            let at = now + self.choices.magnitude(MICRO, MILLI);
            self.queue.push(at, Event::Crowd(client));
        }
        while self.violation.is_none() && self.step() {
            self.check_wake();
        }
        if self.violation.is_none() {
            self.disperse();
        }
        trouble == Trouble::Nothing
    }

    /// Short, so that what a member leaves that is lost in a round soon ends.
    fn crowd_ttl(&self) -> u64 {
        self.plan.max_ttl.min(TTL_MAX)
    }

    /// When a quorum of nodes will have lost the key that was left there: a client that has
    /// forgotten a lock does not release it.
    fn is_free_from(&self) -> u64 {
        let key = self.key_of(0);
        let mut ends: Vec<u64> = self
            .nodes
            .iter()
            .map(|node| {
                let wall = (node.wall(self.now) / MILLI) as i64;
                let entry = node.redis.data.get(&key);
                let expires = entry.map_or(wall, |entry| entry.expires.unwrap_or(wall));
                self.now + u64::try_from(expires - wall).unwrap_or(0) * MILLI
            })
            .collect();
        ends.sort_unstable();
        ends[ends.len() / 2]
    }

    /// How often clients have waited for each node in vain.
    fn timeouts(&self) -> Vec<u64> {
        let of = |slot: usize| {
            let seen = self.clients.iter().filter_map(|it| it.engine.statuses().nth(slot));
            seen.map(|node| node.timeouts).sum()
        };
        (0..self.nodes.len()).map(of).collect()
    }

    fn rounds_of_all(&self) -> u64 {
        self.clients.iter().map(|it| it.engine.stats().rounds).sum()
    }

    /// A member of the crowd wants the lock, or gives it back.
    pub fn crowd_turn(&mut self, client: usize) {
        let paused_until = self.clients[client].paused_until;
        if self.now < paused_until {
            return self.queue.push(paused_until, Event::Crowd(client));
        }
        let Some(crowd) = &mut self.crowd else {
            return;
        };
        if let Some(lease) = self.clients[client].leases.pop() {
            crowd.holder = None;
            crowd.free_at = self.now;
            let is_early = crowd.grants.iter().any(|grants| *grants < GRANTS_EARLY);
            let think = crowd.think_max;
            let handed_on = self.clients[client].engine.stats().notifications_sent;
            self.release(client, lease);
            let is_told = self.clients[client].engine.stats().notifications_sent > handed_on;
            let is_awaited = !is_early && self.is_awaited(is_told);
            if let Some(crowd) = &mut self.crowd {
                crowd.handed_at = is_awaited.then_some(self.now);
            }
            let pause = if think > 0 { self.choices.between(0, think) } else { 0 };
            self.queue.push(self.now + pause, Event::Crowd(client));
        } else if crowd.left > 0 && crowd.waits[client].is_none() {
            let stats = self.clients[client].engine.stats();
            let (rounds, queued) = (stats.rounds, stats.queued);
            let (began, grants, rows) =
                (self.now, crowd.grants.clone(), vec![0; crowd.grants.len()]);
            crowd.waits[client] = Some(Wait { began, grants, rounds, queued, rows });
            let barges = crowd.trouble == Trouble::Barge && client == 0;
            let patience = (!barges).then_some(PATIENCE);
            self.acquire(client, 0, self.crowd_ttl(), patience);
        }
        self.wake_client(client, self.now);
    }

    /// Whether a lock that is given back now should soon be taken: somebody waits for it, and is
    /// told, or is not kept from looking by rounds that it has lost (W11).
    fn is_awaited(&self, is_told: bool) -> bool {
        let Some(crowd) = &self.crowd else {
            return false;
        };
        let mut is_awaited = false;
        for (client, wait) in crowd.waits.iter().enumerate() {
            // It may leave the lock to others for a stagger first (W7).
            let latencies = self.clients[client].engine.statuses().filter_map(|node| node.latency);
            let slowest = latencies.max().unwrap_or_default().as_nanos() as u64;
            let settling = 8 * self.plan.wire.latency + 2 * MILLI + 4 * slowest;
            let settled = self.now.saturating_sub(settling);
            let Some(wait) = wait.as_ref().filter(|it| it.began < settled) else {
                continue;
            };
            let rounds = self.clients[client].engine.stats().rounds - wait.rounds;
            if rounds >= ROUNDS_IN_VAIN && !is_told {
                return false;
            }
            is_awaited = true;
        }
        is_awaited
    }

    /// A member of the crowd has got the lock.
    pub fn crowd_granted(&mut self, client: usize, lease: Lease) {
        let end = self.clients[client].clock.when(lease.valid_until().as_nanos());
        self.clients[client].leases.push(lease);
        let (is_split, rounds) = (self.is_split(), self.rounds_of_all());
        let lacking: Vec<_> = (0..self.clients.len()).filter(|it| !self.sees_quorum(*it)).collect();
        let Some(crowd) = &mut self.crowd else {
            return;
        };
        // Whom too few nodes may give a vote stands nowhere for long, and asks again later (R9).
        let waits = crowd.waits.iter_mut().enumerate().filter(|(other, _)| lacking.contains(other));
        waits.flat_map(|(_, wait)| wait).for_each(|wait| wait.rows.fill(0));
        crowd.is_split |= is_split;
        let (now, calm) = (self.now, crowd.trouble == Trouble::Nothing && !crowd.is_split);
        // Who found no quorum meanwhile stands nowhere, and asks again later (R9).
        let is_over = calm || crowd.trouble == Trouble::Full;
        let fair_from = crowd.is_fair_from.filter(|_| is_over);
        let began = crowd.waits[client].take();
        if let (Some(handed_at), None) = (crowd.handed_at.take(), crowd.holder) {
            crowd.hand_offs.push(now - handed_at);
        }
        // Nobody's share counts before everybody has come, and stands in a queue.
        let is_there = |(other, wait): (usize, &Option<_>)| {
            let queued = self.clients[other].engine.stats().queued;
            queued > crowd.queued_before[other] && (other == client || wait.is_some())
        };
        let is_complete = crowd.waits.iter().enumerate().all(is_there);
        crowd.is_complete |= is_complete;
        crowd.early += u32::from(!crowd.is_complete);
        if crowd.early >= EARLY_MAX {
            // They come and go, and never meet.
            (crowd.is_complete, crowd.is_split) = (true, true);
        }
        // What was left on the nodes, or a quarantine, may have kept all of them out until now.
        let is_first = crowd.grants.iter().all(|grants| *grants == 0);
        if !crowd.is_complete || is_first {
            crowd.rounds_before = rounds;
        }
        if !crowd.is_complete {
            crowd.grants[client] = 0;
        }
        crowd.left = crowd.left.saturating_sub(u32::from(crowd.is_complete));
        crowd.grants[client] += 1;
        (crowd.holder, crowd.free_at) = (Some(client), end);
        let hold_max = crowd.hold_max;
        let mut failure = None;
        if let Some(wait) = began.filter(|_| calm) {
            let others = crowd.grants.iter().zip(&wait.grants).enumerate();
            let most = others
                .filter(|(other, _)| *other != client)
                .map(|(_, (now, before))| now - before)
                .max()
                .unwrap_or(0);
            if most > ROW_MAX {
                failure = Some(format!("client {client} waits while another gets it {most} times"));
            }
        }
        // Also before all have come: who has met nobody looks for others after a few (W13).
        for (other, wait) in crowd.waits.iter_mut().enumerate() {
            let stands = |wait: &&mut Wait| self.clients[other].engine.stats().queued > wait.queued;
            let is_fair = |wait: &&mut Wait| fair_from.is_some_and(|from| from <= wait.began);
            let Some(wait) = wait.as_mut().filter(stands).filter(is_fair) else {
                continue;
            };
            wait.rows[client] += 1;
            let row = wait.rows[client];
            if row > ROW_MAX {
                failure = Some(format!("client {other} stands while {client} gets it {row} times"));
            }
        }
        if let Some(text) = failure {
            return self.fail("FAIR", || text);
        }
        let hold = self.choices.magnitude(MICRO, hold_max.max(2 * MICRO));
        self.queue.push(now + hold, Event::Crowd(client));
        self.may_trouble();
    }

    /// A member of the crowd has given up.
    pub fn crowd_missed(&mut self, client: usize) {
        let Some(crowd) = &mut self.crowd else {
            return;
        };
        let waited = crowd.waits[client].take().map_or(0, |wait| self.now - wait.began);
        if crowd.trouble == Trouble::Barge && client == 0 {
            let pause = self.choices.magnitude(50 * MICRO, 5 * MILLI);
            return self.queue.push(self.now + pause, Event::Crowd(client));
        }
        if waited >= PATIENCE / 2 {
            return self.fail("WAKE", || format!("client {client} waits in vain"));
        }
        self.queue.push(self.now + 10 * MILLI, Event::Crowd(client));
    }

    /// The trouble begins, if it is time.
    fn may_trouble(&mut self) {
        let Some(crowd) = &mut self.crowd else {
            return;
        };
        let granted: u32 = crowd.grants.iter().sum();
        // Once: what is granted before all have come is counted anew each time.
        if crowd.trouble_at.take_if(|at| *at == granted).is_none() {
            return;
        }
        let trouble = crowd.trouble;
        let (clients, nodes) = (self.clients.len() as u32, self.plan.nodes as u32);
        let client = self.choices.below(clients) as usize;
        let node = self.choices.below(nodes) as usize;
        let long = self.choices.pick(&[20 * MILLI, 300 * MILLI, 3 * SECOND, 20 * SECOND]);
        self.timeline.note(self.now, || format!("trouble {trouble:?}: {client} or {node}"));
        if let Some(crowd) = &mut self.crowd {
            // A round that is lost may have taken the lock.
            crowd.free_at = crowd.free_at.max(self.now + self.plan.max_ttl.min(TTL_MAX));
        }
        match trouble {
            Trouble::Nothing | Trouble::Barge => {}
            Trouble::Pause => self.pause_client(client, long),
            Trouble::PauseTwo => {
                self.pause_client(client, long);
                self.pause_client((client + 1) % clients as usize, long);
            }
            Trouble::Restart => self.end_member(client),
            Trouble::Freeze => {
                self.nodes[node].frozen_until = self.now + long;
                self.wake_node(node);
            }
            Trouble::Crash => self.crash(node, long.min(SECOND), Memory::Everything),
            Trouble::Stray => {
                let wall = self.nodes[node].wall(self.now);
                let value = Value::Text(b"stray".to_vec());
                let expires = Some((wall / MILLI) as i64 + 30_000);
                let entry = Entry { value, expires, written: wall, extended: wall };
                let key = self.key_of(0);
                self.nodes[node].redis.data.entry(key).or_insert(entry);
            }
            Trouble::Flush => {
                self.nodes[node].redis.data.retain(|key, _| !is_queue(&key.1));
            }
            Trouble::Forget => self.nodes[node].redis.listeners.tracked_max = Some(0),
            Trouble::Full => {
                let it = &mut self.nodes[node];
                it.redis.server.refusals = vec![Refusal::Memory];
                it.refuses_until = self.now + long.min(SPELL_MAX);
                if let Some(crowd) = &mut self.crowd {
                    crowd.is_fair_from = Some(it.refuses_until);
                }
            }
            Trouble::Rights => {
                let right = self.choices.pick(&RIGHTS);
                self.nodes[node].redis.server.forbids.push(right);
            }
        }
    }

    fn end_member(&mut self, client: usize) {
        self.restart_client(client);
        if let Some(crowd) = &mut self.crowd {
            crowd.waits[client] = None;
            // The new process counts from the beginning.
            crowd.queued_before[client] = 0;
            crowd.handed_at = None;
            if crowd.holder == Some(client) {
                crowd.holder = None;
            }
        }
        self.queue.push(self.now + MILLI, Event::Crowd(client));
    }

    /// The lock is free for long, and somebody waits who is awake.
    fn check_wake(&mut self) {
        for client in 0..self.clients.len() {
            if let (false, Some(crowd)) = (self.sees_quorum(client), &mut self.crowd) {
                crowd.lacked_at[client] = self.now;
            }
        }
        let Some(crowd) = &self.crowd else {
            return;
        };
        let frozen = self.nodes.iter().filter(|it| !it.is_running(self.now)).count();
        let has_quorum = 2 * (self.nodes.len() - frozen) > self.nodes.len();
        // What a lease's validity leaves out of the time to live of its keys.
        let drift = self.plan.max_ttl / 20 + 2 * SECOND;
        let is_free = self.now > crowd.free_at + drift + WAKE_MAX;
        if !is_free || !has_quorum {
            return;
        }
        let waits = |client: &usize| {
            let began = crowd.waits[*client].as_ref().map(|wait| wait.began);
            // Who sees no quorum of nodes that vote waits for them.
            let it = &self.clients[*client];
            let resumed = it.paused_until.max(it.forgotten_until).max(crowd.lacked_at[*client]);
            began.is_some_and(|began| began.max(resumed) + drift + WAKE_MAX < self.now)
        };
        if let Some(client) = (0..self.clients.len()).find(waits) {
            let trouble = crowd.trouble;
            self.fail("WAKE", || format!("client {client} sleeps ({trouble:?})"));
        }
    }

    /// Whether nodes that vote, by what the client knows of them, are a quorum. A client takes a
    /// while to see that a node is frozen, or that a machine has gone without a sign and come back.
    /// What is left on a node from before keeps everybody out there.
    pub fn sees_quorum(&self, client: usize) -> bool {
        let it = &self.clients[client];
        let votes = |seen: &NodeStatus| {
            let connection = it.slots[seen.node].connection.map(|id| &self.connections[id]);
            let stands = connection.is_some_and(|at| at.server_end == ServerEnd::Accepted);
            let is_running = self.nodes[seen.node].is_running(self.now);
            let can = seen.state == NodeState::Ready && stands && is_running;
            can && !self.has_left_over(seen.node)
        };
        2 * it.engine.statuses().filter(votes).count() > self.plan.nodes
    }

    /// Whether the node has a key for longer than a lock of the crowd lives.
    fn has_left_over(&self, node: usize) -> bool {
        let wall = self.nodes[node].wall(self.now) / MILLI;
        let latest = (wall + TTL_MAX / MILLI) as i64;
        let entry = self.nodes[node].redis.data.get(&self.key_of(0));
        entry.is_some_and(|entry| entry.expires.is_none_or(|at| at > latest))
    }

    /// The crowd is gone.
    fn disperse(&mut self) {
        let Some(crowd) = self.crowd.take() else {
            return;
        };
        let granted: u32 = crowd.grants.iter().sum();
        let still = crowd.waits.iter().position(Option::is_some);
        if let Some(client) = still.filter(|client| crowd.trouble != Trouble::Barge || *client > 0)
        {
            return self.fail("WAKE", || format!("client {client} waits when all is quiet"));
        }
        // Who lacked a quorum of votes asked again and again, and was overtaken.
        let has_lacked = crowd.lacked_at.iter().any(|at| *at > 0);
        if crowd.trouble != Trouble::Nothing || crowd.is_split || has_lacked {
            return;
        }
        let rounds = self.rounds_of_all() - crowd.rounds_before;
        let clients = self.clients.len() as u64;
        let limit = u64::from(granted) * ROUNDS_MAX_PERCENT / 100 + ROUNDS_SPARE * clients;
        if rounds > limit {
            return self.fail("CALM", || format!("{rounds} rounds for {granted} grants"));
        }
        let share = GRANTS * SHARE_MIN_PERCENT / 100;
        if let Some(client) = crowd.grants.iter().position(|grants| *grants < share) {
            let grants = &crowd.grants;
            return self.fail("FAIR", || format!("client {client} gets too few of {grants:?}"));
        }
        self.check_hand_offs(&crowd);
        let timeouts = self.timeouts();
        let is_checked = |node: &usize| {
            !crowd.untidy_before[*node] && timeouts[*node] == crowd.timeouts_before[*node]
        };
        let mut nodes = (0..self.nodes.len()).filter(is_checked);
        if let Some(node) = nodes.find(|node| self.is_untidy(*node)) {
            self.fail("TIDY", || format!("somebody still stands in a queue on node {node}"));
        }
    }

    /// Whether there is more than one queue, or a client cannot wait at some node.
    fn is_split(&self) -> bool {
        let Some(crowd) = &self.crowd else {
            return false;
        };
        let nodes = 0..self.nodes.len();
        let queues = nodes.filter(|node| crowd.untidy_before[*node] || self.is_untidy(*node));
        let cannot = |it: NodeStatus| matches!(it.queue, QueueSupport::Unavailable(_));
        queues.count() > 1 || self.clients.iter().any(|it| it.engine.statuses().any(cannot))
    }

    pub fn is_untidy(&self, node: usize) -> bool {
        let wall = (self.nodes[node].wall(self.now) / MILLI) as i64;
        let mut entries = self.nodes[node].redis.data.iter();
        entries.any(|(key, entry)| is_queue(&key.1) && entry.expires.is_none_or(|at| at > wall))
    }

    /// A release and a message to the next one, and its round: four ways, with some lateness.
    fn check_hand_offs(&mut self, crowd: &Crowd) {
        let way = 2 * self.plan.wire.latency;
        let late = if self.plan.process.late_timer > 0 { 10 * MILLI } else { 0 };
        let limit = 6 * way + MILLI + late;
        let slow = crowd.hand_offs.iter().filter(|took| **took > limit).count();
        let all = crowd.hand_offs.len();
        self.rare.hit_if(all > 0, Rare::HandOff);
        if all >= 12 && slow * 100 > all * SLOW_HAND_OFFS_MAX {
            let (worst, limit) = (crowd.hand_offs.iter().max().copied(), limit / MICRO);
            self.fail("HAND-OFF", || {
                format!("{slow} of {all} took longer than {limit} us, the longest {worst:?} ns")
            });
        }
    }
}
