//! The engine, and arbitrary steps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::node::{NodeOutcome, NodeState, ReleaseWith, ServerCommand};
use muxlock::proto::{
    Action, Cancelled, Command, Done, Engine, Fencing, KindStep, Lease, NodeEvent, OpId, Patience,
    ReleaseHow, Replication, Reply, Section, ServerError, ServerInfo,
};
use muxlock::resp;
use muxlock::settings::{Heal, RestartGuard};
use muxlock::{KeepAlive, LockToken, Moment, Redlock, Resource};

use crate::memory::{About, Asked, Counted, MARKER};

/// Any sequence of commands, connections, replies and timeouts: the engine never panics. It never
/// hands out a lock without a quorum or without validity, and it leaves no key behind once the
/// nodes heal.
pub fn engine(data: &[u8]) {
    let Some((&shape, bytes)) = data.split_first() else {
        return;
    };
    let guard = if shape & 0x40 == 0 { RestartGuard::Off } else { RestartGuard::Uptime };
    let heal = if shape & 0x60 == 0x60 { Heal::On } else { Heal::Off };
    let (nodes, ttl) = (usize::from(shape % 5) + 1, TTLS[usize::from(shape >> 7)]);
    let mut world = World::new(nodes, ttl, guard, heal);
    for step in bytes.chunks_exact(2).take(STEPS_MAX) {
        world.step(step[0], step[1]);
    }
    world.heal();
}

const STEPS_MAX: usize = 1_024;
/// A lock that is renewed until then is lost, however it goes.
const RENEWALS_MAX: u32 = 8;
/// Turns that healing may take: each answers all commands, or advances to the next timer.
const HEALING_TURNS_MAX: usize = 10_000;
/// With the short TTL, time runs out often; with the long one, keys that were left behind stay.
const TTLS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Nodes with different release commands are part of one round.
const OFFERS: [ReleaseWith; 3] = [ReleaseWith::Script, ReleaseWith::Delex, ReleaseWith::Delifeq];

/// From this kind of acquisition on, it is of a lock with a value.
const OWN: u8 = 18;
/// How many permits there are.
const SLOTS: u32 = 2;

/// Which keys a command is about, and how they are locked.
enum What {
    Plain(Vec<u8>),
    All(Vec<Vec<u8>>),
    Shared(Vec<u8>),
    /// For how long its refusal holds readers off.
    Exclusive(Vec<u8>, Duration),
    /// One of these.
    Slot(Vec<Vec<u8>>, usize),
    /// With a value, the same for all.
    As(Vec<u8>),
}

impl What {
    fn of(command: &Command<'_>) -> Option<What> {
        let form = match command {
            Command::Acquire { key, .. }
            | Command::Extend { key, .. }
            | Command::Heal { key, .. }
            | Command::Release { key, .. } => return Some(What::Plain(key.to_vec())),
            Command::OfKind(form) => form,
            _ => return None,
        };
        let mut keys = form.keys();
        Some(match (form.slot(), form.value(), form.step) {
            (Some(slot), ..) => What::Slot(keys, slot),
            (_, Some(_), _) => What::As(keys.swap_remove(0)),
            _ if form.is_share() => What::Shared(keys.swap_remove(0)),
            (.., KindStep::Take { intent }) if keys[1].ends_with(b":intent") => {
                What::Exclusive(keys.swap_remove(0), intent)
            }
            _ => What::All(keys),
        })
    }

    /// Those that are locked.
    fn keys(&self) -> &[Vec<u8>] {
        match self {
            What::Plain(key) | What::Shared(key) | What::Exclusive(key, _) | What::As(key) => {
                std::slice::from_ref(key)
            }
            What::All(keys) => keys,
            What::Slot(keys, slot) => &keys[*slot..=*slot],
        }
    }
}

/// The value of a key on a node. Late commands may leave it with more than a node can have.
#[derive(Default)]
struct Key {
    /// Those that hold it alone, with the moment at which that ends.
    alone: BTreeMap<LockToken, Moment>,
    shares: BTreeMap<LockToken, Moment>,
    /// Until when no new reader is let in.
    sign: Option<Moment>,
}

impl Key {
    fn is_absent(&self) -> bool {
        self.alone.is_empty() && self.shares.is_empty()
    }

    fn expire(&mut self, now: Moment) {
        self.alone.retain(|_, until| now < *until);
        self.shares.retain(|_, until| now < *until);
        self.sign = self.sign.filter(|until| now < *until);
    }

    fn forget(&mut self, token: &LockToken) -> bool {
        let was_alone = self.alone.remove(token).is_some();
        self.shares.remove(token).is_some() || was_alone
    }
}

#[derive(Default)]
struct Keys(BTreeMap<Vec<u8>, Key>);

impl Keys {
    fn of(&mut self, key: &[u8]) -> &mut Key {
        self.0.entry(key.to_vec()).or_default()
    }

    fn take(&mut self, what: &What, token: LockToken, now: Moment, until: Moment) -> i64 {
        match what {
            What::Shared(key) => {
                let key = self.of(key);
                let is_free = key.alone.is_empty() && key.sign.is_none();
                let is_granted = is_free && !key.shares.contains_key(&token);
                if is_granted {
                    key.shares.insert(token, until);
                }
                return is_granted.into();
            }
            What::Exclusive(key, intent) if !self.of(key).is_absent() => {
                if !intent.is_zero() {
                    self.of(key).sign = Some(now.after(*intent));
                }
                return 0;
            }
            What::Exclusive(key, _) => self.of(key).sign = None,
            What::Slot(keys, slot) if !self.of(&keys[*slot]).is_absent() => {
                let free = keys.iter().zip(0..).filter(|(key, _)| self.of(key).is_absent());
                return 2 + free.map(|(_, bit)| 1_i64 << bit).sum::<i64>();
            }
            What::Plain(_) | What::Slot(..) | What::As(..) => {}
            What::All(keys) => {
                if let Some((_, held)) =
                    keys.iter().zip(2..).find(|(key, _)| !self.of(key).is_absent())
                {
                    return held;
                }
            }
        }
        if what.keys().iter().any(|key| !self.of(key).is_absent()) {
            return 0;
        }
        self.put(what, token, until);
        1
    }

    /// Any value.
    fn put(&mut self, what: &What, token: LockToken, until: Moment) {
        for key in what.keys() {
            let key = self.of(key);
            match what {
                What::Shared(_) => {
                    key.alone.remove(&token);
                    key.shares.insert(token, until);
                }
                _ => drop(key.alone.insert(token, until)),
            }
        }
    }

    /// `None` if a key has another type.
    fn keep(&mut self, what: &What, token: LockToken, heals: bool, until: Moment) -> Option<i64> {
        let mut vote = 1;
        for key in what.keys() {
            let key = self.of(key);
            let (is_held, may_heal) = match what {
                What::Shared(_) => {
                    let is_held = key.alone.contains_key(&token) || key.shares.contains_key(&token);
                    (is_held, key.alone.is_empty() && key.sign.is_none())
                }
                What::Plain(_) if key.alone.is_empty() && !key.shares.is_empty() => return None,
                _ => (key.alone.contains_key(&token), key.is_absent()),
            };
            match is_held {
                true => {}
                false if heals && may_heal => vote = 2,
                false => return Some(0),
            }
        }
        self.put(what, token, until);
        Some(vote)
    }

    /// `None` if the key has another type.
    fn free(&mut self, what: &What, token: LockToken) -> Option<i64> {
        let mut vote = 1;
        for key in what.keys() {
            let key = self.of(key);
            let was_held = match what {
                What::Shared(_) => key.forget(&token),
                What::Plain(_) if key.alone.is_empty() && !key.shares.is_empty() => return None,
                _ => key.alone.remove(&token).is_some(),
            };
            vote = vote.min(was_held.into());
        }
        Some(vote)
    }
}

/// A command that a node has not answered.
#[derive(Clone)]
struct Sent {
    asked: Asked,
    /// `None` if it is about no key.
    what: Option<Rc<What>>,
}

#[derive(Default)]
struct Peer {
    asked: VecDeque<Sent>,
    keys: Keys,
    /// How often it was restarted, and when last. A restart keeps the data: lost data is left to
    /// the simulation, which knows whether a lock may suffer from it.
    restarts: u64,
    started: Option<Moment>,
}

struct World {
    engine: Engine,
    now: Moment,
    ttl: Duration,
    peers: Vec<Peer>,
    leases: Vec<Lease>,
    /// Locks that the engine renews.
    renewed: Vec<OpId>,
    /// Operations in flight; for extensions, with the old deadline.
    started: BTreeMap<OpId, Option<Moment>>,
    /// When the first SET with this token was sent, and which nodes granted it.
    sets: BTreeMap<LockToken, (Moment, BTreeSet<usize>)>,
    /// The locks that are held, with the nodes that were last counted for them.
    live: BTreeMap<LockToken, BTreeSet<usize>>,
    /// The nodes that granted the extension in flight with this token.
    extensions: BTreeMap<LockToken, BTreeSet<usize>>,
}

impl World {
    fn new(nodes: usize, ttl: Duration, guard: RestartGuard, heal: Heal) -> World {
        let urls = (1..=nodes).map(|port| format!("redis://127.0.0.1:{port}"));
        // As long as the short TTL, so that answers may come too late for the validity only.
        let builder = Redlock::builder().nodes(urls).node_timeout(TTLS[0]).restart_guard(guard);
        let config = builder.heal(heal).config().expect("valid settings");
        World {
            engine: Engine::new(Arc::new(config), Box::new(Counted::new(u32::MAX, 0))),
            // Long after the nodes were started.
            now: Moment::from_nanos(1).after(Duration::from_secs(1_000)),
            ttl,
            peers: (0..nodes).map(|_| Peer::default()).collect(),
            leases: Vec::new(),
            renewed: Vec::new(),
            started: BTreeMap::new(),
            sets: BTreeMap::new(),
            live: BTreeMap::new(),
            extensions: BTreeMap::new(),
        }
    }

    fn quorum(&self) -> usize {
        muxlock::quorum(self.peers.len())
    }

    /// The TTL minus 1 % and 2 ms.
    fn validity(&self) -> Duration {
        self.ttl - self.ttl / 100 - Duration::from_millis(2)
    }

    fn step(&mut self, what: u8, how: u8) {
        let node = usize::from(how) % self.peers.len();
        if let 9 | 12 = what % 13 {
            // No time passes between a connection's end and its closing.
            self.drain();
        }
        let kind = what / 13;
        let wait = Duration::from_millis(how.into());
        match what % 13 {
            0 => self.acquire(kind, Patience::OneRound),
            1 => self.acquire(kind, Patience::Until(self.now.after(wait))),
            2 if how & 0x80 != 0 => self.keep(how),
            2 => self.extend(how),
            3 => self.release(how),
            4 => self.abandon(how),
            5 => self.engine.handle_node(self.now, node, NodeEvent::Connected),
            6 => self.disconnect(node),
            7 => self.answer(node, how >> 4),
            8 => self.answer(node, 0),
            9 => self.pass(Duration::from_millis(how.into())),
            10 => self.engine.handle_node(self.now, node, NodeEvent::Blocked),
            11 => self.engine.handle_node(self.now, node, NodeEvent::Writable),
            // The process is paused: nothing handles due timers.
            _ => self.now = self.now.after(Duration::from_millis(8 * u64::from(how))),
        }
        // It must make no difference whether the caller drains at once or later.
        if what & 0x80 == 0 {
            self.drain();
        }
    }

    fn acquire(&mut self, kind: u8, patience: Patience) {
        let resource = match if kind < OWN { kind % 6 } else { kind } {
            OWN.. => Resource::with_value("r", "v"),
            0 => Resource::new("r"),
            1 => Resource::all(["r", "s"]),
            2 => Resource::shared("r"),
            3 => Resource::exclusive("r"),
            4 => Resource::slot("r", SLOTS),
            _ => Resource::new("s"),
        };
        let resource = resource.expect("a valid name");
        let op = self
            .engine
            .acquire(self.now, resource, self.ttl, patience, Fencing::Off)
            .expect("valid arguments");
        self.started.insert(op, None);
    }

    fn extend(&mut self, how: u8) {
        let Some(lease) = self.take_lease(how) else {
            return;
        };
        let (token, deadline) = (*lease.token(), lease.valid_until());
        self.extensions.insert(token, BTreeSet::new());
        // A downgrade, unless it is a set.
        let lease = if how & 0x70 == 0x10 { lease.into_shared() } else { lease };
        let op = self.engine.extend(self.now, lease, self.ttl);
        self.started.insert(op, Some(deadline));
    }

    fn release(&mut self, how: u8) {
        let Some(lease) = self.take_lease(how) else {
            return;
        };
        self.live.remove(lease.token());
        let op = self.engine.release(self.now, lease, ReleaseHow::ToTheEnd);
        self.started.insert(op, None);
    }

    fn abandon(&mut self, how: u8) {
        let Some(lease) = self.take_lease(how) else {
            return;
        };
        self.live.remove(lease.token());
        self.engine.abandon(self.now, lease);
    }

    fn keep(&mut self, how: u8) {
        let Some(lease) = self.take_lease(how) else {
            return;
        };
        let (token, deadline) = (*lease.token(), lease.valid_until());
        self.extensions.insert(token, BTreeSet::new());
        let settings = KeepAlive::default().renewals_max(RENEWALS_MAX);
        let op = self.engine.keep(self.now, lease, &settings);
        self.started.insert(op, Some(deadline));
        self.renewed.push(op);
    }

    /// A lease, or else the lease of a renewed lock, which is stopped.
    fn take_lease(&mut self, how: u8) -> Option<Lease> {
        let count = self.leases.len();
        if count > 0 {
            return Some(self.leases.swap_remove(usize::from(how) % count));
        }
        let op = self.renewed.pop()?;
        let old = self.started.remove(&op).flatten().expect("a renewed lock has a deadline");
        match self.engine.cancel(self.now, op) {
            Cancelled::Extension(lease) => {
                if lease.valid_until() != old {
                    self.check_extended(&lease, old);
                }
                self.extensions.remove(lease.token());
                Some(lease)
            }
            other => panic!("a renewed lock has a lease: {other:?}"),
        }
    }

    /// A quorum has said yes, and before the old deadline.
    fn check_extended(&mut self, lease: &Lease, old: Moment) {
        let yes = self.extensions.get_mut(lease.token()).map(std::mem::take);
        let yes = yes.expect("it was started");
        assert!(yes.len() >= self.quorum());
        assert!(lease.granted_by().count() >= self.quorum());
        assert!(lease.granted_by().all(|node| yes.contains(&node)));
        self.live.insert(*lease.token(), lease.granted_by().collect());
        assert!(self.now < old && lease.valid_until() >= old);
        assert!(lease.valid_until() <= self.now.after(self.validity()));
    }

    /// Ends the connection. Unanswered commands that set keys take effect anyway.
    fn disconnect(&mut self, node: usize) {
        let outcome = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
        self.engine.handle_node(self.now, node, NodeEvent::Disconnected(outcome));
    }

    fn cut(&mut self, node: usize) {
        let (now, until) = (self.now, self.now.after(self.ttl));
        let peer = &mut self.peers[node];
        for Sent { asked, what } in std::mem::take(&mut peer.asked) {
            let Some(what) = what else { continue };
            match (asked, &*what) {
                (Asked::Set(token) | Asked::Heal(token) | Asked::Take(token), _) => {
                    peer.keys.put(&what, token, until);
                }
                // A lock that was held alone may be a share now.
                (Asked::Extend(token), What::Shared(_)) => {
                    peer.keys.0.values_mut().for_each(|key| key.expire(now));
                    let _ = peer.keys.keep(&what, token, false, until);
                }
                _ => {}
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.engine.handle_timeout(self.now);
    }

    /// Lets a node answer its oldest command: correctly, or as `how` demands.
    fn answer(&mut self, node: usize, how: u8) {
        let Some(Sent { asked, what }) = self.peers[node].asked.pop_front() else {
            if how == 15 {
                self.engine.handle_reply(self.now, node, Reply::Ok);
            }
            return;
        };
        let error = |kind| Reply::Error(ServerError { kind, message: "ERR".into() });
        if how == 7 && asked == Asked::Info(Section::Server) {
            self.peers[node].restarts += 1;
            self.peers[node].started = Some(self.now);
        }
        let reply = match how {
            0..=7 => self.obey(node, asked, what.as_deref()),
            8 => error(ServerErrorKind::OutOfMemory),
            9 => error(ServerErrorKind::Busy),
            10 => error(ServerErrorKind::Auth),
            11 => error(ServerErrorKind::WrongType),
            12 => Reply::Nil,
            13 if matches!(asked, Asked::Take(_) | Asked::Fenced(..)) => {
                Reply::Missing(ServerCommand::Time)
            }
            13 => Reply::Status,
            14 => Reply::Integer(2),
            _ => {
                self.obey(node, asked, what.as_deref());
                Reply::Status
            }
        };
        if let (Reply::Integer(1), Asked::Extend(token))
        | (Reply::Integer(1 | 2), Asked::Heal(token)) = (&reply, asked)
        {
            self.extensions.entry(token).or_default().insert(node);
        }
        if let (Reply::Ok, Asked::Set(token)) | (Reply::Integer(1), Asked::Take(token)) =
            (&reply, asked)
        {
            self.sets.get_mut(&token).expect("it was sent").1.insert(node);
        }
        if let (Reply::Error(error), Asked::Release(token, _)) = (&reply, asked) {
            // The engine relies on the node's answer that the key is not ours.
            if error.kind == ServerErrorKind::WrongType {
                for key in what.iter().flat_map(|what| what.keys()) {
                    self.peers[node].keys.of(key).forget(&token);
                }
            }
        }
        let reply = resp::meaning(reply, || self.engine.node(node).awaits());
        self.engine.handle_reply(self.now, node, reply);
    }

    fn obey(&mut self, node: usize, asked: Asked, what: Option<&What>) -> Reply {
        if let Some(reply) = self.say(node, asked) {
            return reply;
        }
        let (now, until) = (self.now, self.now.after(self.ttl));
        let what = what.expect("it is about a key");
        let keys = &mut self.peers[node].keys;
        keys.0.values_mut().for_each(|key| key.expire(now));
        let vote = match asked {
            Asked::Set(token) => {
                let is_granted = keys.take(what, token, now, until) == 1;
                return if is_granted { Reply::Ok } else { Reply::Nil };
            }
            Asked::Take(token) => Some(keys.take(what, token, now, until)),
            Asked::Extend(token) => keys.keep(what, token, false, until),
            Asked::Heal(token) => keys.keep(what, token, true, until),
            Asked::Release(token, _) => keys.free(what, token),
            other => unreachable!("it is not about a key: {other:?}"),
        };
        let kind = ServerErrorKind::WrongType;
        let wrong_type = || Reply::Error(ServerError { kind, message: "WRONGTYPE".into() });
        vote.map_or_else(wrong_type, Reply::Integer)
    }

    /// The answer of a node about itself, if it was asked for that.
    fn say(&self, node: usize, asked: Asked) -> Option<Reply> {
        let peer = &self.peers[node];
        let info = ServerInfo {
            run_id: Some(format!("{node} {}", peer.restarts).into()),
            uptime: Some(self.now.since(peer.started.unwrap_or(Moment::from_nanos(1)))),
            replication: Replication { master: Some(true), history: None, promoted: Some(false) },
            ..ServerInfo::default()
        };
        let time = Duration::from_nanos(self.now.as_nanos());
        let (offers, marker) = (OFFERS[node % 3], MARKER);
        About { info: &info, offers, time, connection: 7, marker }.answer(asked)
    }

    /// Carries out all actions and takes all that has ended.
    fn drain(&mut self) {
        loop {
            while self.act() {}
            let Some((id, done)) = self.engine.poll_done(self.now) else {
                break;
            };
            if let Done::Renewed(until) = done {
                self.check_renewed(id, until);
                continue;
            }
            let old = self.started.remove(&id).expect("an operation ends once");
            self.renewed.retain(|renewed| *renewed != id);
            self.check(done, old);
        }
        let unanswered: usize = self.peers.iter().map(|peer| peer.asked.len()).sum();
        let known: usize = self.engine.statuses().map(|node| node.in_flight).sum();
        assert_eq!(unanswered, known, "replies and requests are paired");
    }

    fn act(&mut self) -> bool {
        let (nodes, asked, what) = match self.engine.poll_action() {
            None => return false,
            Some(Action::Connect { .. }) => return true,
            Some(Action::ConnectBeside { node, .. }) => {
                // Some have forgotten the first connection, the others are slow.
                if node % 2 == 1 {
                    self.engine.handle_node(self.now, node, NodeEvent::AnsweredBeside);
                }
                return true;
            }
            Some(Action::Close { node }) => {
                self.cut(node);
                return true;
            }
            Some(Action::Send { nodes, command }) => {
                (nodes, Asked::from(&command), What::of(&command).map(Rc::new))
            }
        };
        assert!(!nodes.is_empty());
        if let Asked::Release(token, with) = asked {
            let is_had = |node: usize| with == ReleaseWith::Script || with == OFFERS[node % 3];
            assert!(nodes.iter().all(is_had), "a node is sent only commands that it has");
            let counted = self.live.get(&token).into_iter().flatten();
            let deleted = counted.filter(|node| nodes.contains(**node)).count();
            assert_eq!(deleted, 0, "a copy that a live lock counts on is deleted");
        }
        if let Asked::Set(token) | Asked::Take(token) = asked {
            self.sets.entry(token).or_insert((self.now, BTreeSet::new()));
        }
        for node in nodes.iter() {
            self.peers[node].asked.push_back(Sent { asked, what: what.clone() });
        }
        true
    }

    /// Every lock has a quorum of grants and some validity left, and is not valid for longer than
    /// its first SET allows.
    fn check(&mut self, done: Done, old: Option<Moment>) {
        match done {
            Done::Acquired(Ok(lease)) => {
                let (sent, granted) = &self.sets[lease.token()];
                assert!(granted.len() >= self.quorum());
                assert!(lease.granted_by().all(|node| granted.contains(&node)));
                assert!(lease.granted_by().count() >= self.quorum());
                assert!(self.now < lease.valid_until());
                assert!(lease.valid_until() <= sent.after(self.validity()));
                self.live.insert(*lease.token(), lease.granted_by().collect());
                self.leases.push(lease);
            }
            Done::Extended(lease, result) => {
                let old = old.expect("an extension has an old deadline");
                match result {
                    Ok(()) => self.check_extended(&lease, old),
                    Err(_) => assert_eq!(lease.valid_until(), old),
                }
                self.extensions.remove(lease.token());
                self.leases.push(lease);
            }
            Done::Lost(lease, loss) => {
                assert!(lease.valid_until() <= old.expect("a renewed lock has a deadline"));
                assert_eq!(loss.remaining, lease.remaining(self.now));
                self.extensions.remove(lease.token());
                self.leases.push(lease);
            }
            Done::Acquired(Err(_)) | Done::Released(_) | Done::Renewed(_) => {}
            other => unreachable!("no such operation was started: {other:?}"),
        }
    }

    fn check_renewed(&mut self, id: OpId, until: Moment) {
        let old = self.started.insert(id, Some(until)).flatten();
        let lease = self.engine.operations().kept(id).expect("it is renewed");
        assert_eq!(lease.valid_until(), until);
        let token = *lease.token();
        let granted: BTreeSet<usize> = lease.granted_by().collect();
        let yes = self.extensions.insert(token, BTreeSet::new()).expect("it was started");
        assert!(granted.len() >= self.quorum() && granted.is_subset(&yes));
        self.live.insert(token, granted);
        assert!(self.now < old.expect("a renewed lock has a deadline"));
        assert!(until <= self.now.after(self.validity()));
    }

    fn abandon_all(&mut self) {
        while !self.leases.is_empty() || !self.renewed.is_empty() {
            self.abandon(0);
        }
    }

    /// From now on nodes can be reached and answer correctly: every operation ends, and no key is
    /// left.
    fn heal(&mut self) {
        self.abandon_all();
        for _ in 0..HEALING_TURNS_MAX {
            self.drain();
            self.abandon_all();
            self.engine.connect(self.now);
            let mut quiet = true;
            for node in 0..self.peers.len() {
                self.drain();
                self.engine.handle_node(self.now, node, NodeEvent::Writable);
                self.engine.handle_node(self.now, node, NodeEvent::Connected);
                self.drain();
                while !self.peers[node].asked.is_empty() {
                    quiet = false;
                    self.answer(node, 0);
                }
            }
            self.drain();
            let ready = self
                .engine
                .statuses()
                .all(|node| matches!(node.state, NodeState::Ready | NodeState::Quarantined));
            match self.engine.poll_timeout() {
                None if quiet && ready && self.leases.is_empty() => break,
                None => {}
                Some(next) => {
                    self.now = self.now.max(next);
                    self.engine.handle_timeout(self.now);
                }
            }
        }
        assert!(self.started.is_empty(), "every operation ends");
        assert_eq!(self.engine.operations().count(), 0);
        assert_eq!(self.engine.unanswered(), 0);
        assert_eq!(self.engine.poll_timeout(), None, "nothing is due when nothing is under way");
        assert!(self.engine.statuses().all(|node| node.pending_releases == 0));
        for peer in &self.peers {
            for (name, key) in &peer.keys.0 {
                let left = key.alone.iter().chain(&key.shares);
                let left = left.filter(|(_, until)| self.now < **until).count();
                assert_eq!(left, 0, "{} is left behind", name.escape_ascii());
            }
        }
    }
}
