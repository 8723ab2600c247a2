//! Masters that answer at once, and the engine that asks them: only one thing is left to measure,
//! the engine.
//!
//! The engine is driven as the event loop drives it: timeouts first, then commands, replies and
//! results, and the next deadline is asked for before each wait.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use muxlock::node::ReleaseWith;
use muxlock::proto::{
    Action, Command, Done, Engine, Fencing, Lease, NodeEvent, NodeSet, Patience, ReleaseHow, Reply,
    ServerInfo, Ttl,
};
use muxlock::{LockToken, Moment, Redlock, Resource};

use super::{About, Asked, Counted, MARKER, aged_master};

const TTL: Duration = Duration::from_secs(10);
/// How much later each event happens than the one before: about the time of a loopback.
const TICK: Duration = Duration::from_micros(10);
/// A silent node answers once it owes this many replies, as one that was frozen and goes on: they
/// stay bounded, and all of them are paid for. By then most are past the node's timeout.
const SILENT_COMMANDS_MAX: usize = 4096;

/// The replies of the masters to a SET and to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Free,
    /// Another client holds it.
    Held,
}

/// An engine, and the masters that it believes in.
pub struct Group {
    engine: Engine,
    now: Moment,
    key: Key,
    masters: Vec<ServerInfo>,
    /// The node that answers nothing for a while, if there is one, and its missing replies.
    silent: Option<usize>,
    unsaid: Vec<Reply>,
    /// Replies on their way, in the order of their commands.
    on_the_way: Vec<(NodeSet, Reply)>,
}

impl Group {
    /// With so many nodes, which are connected; each lock is free. The restart guard is on, and
    /// the nodes say that they are old.
    pub fn new(nodes: usize) -> Group {
        // Never connected to: the engine opens no sockets.
        let urls = (0..nodes).map(|node| format!("redis://127.0.0.1:{}", 10_000 + node));
        let config = Redlock::builder().nodes(urls).config().expect("settings within their bounds");
        let mut group = Group {
            engine: Engine::new(Arc::new(config), Box::new(Counted::new(u32::MAX, 0))),
            now: Moment::from_nanos(1),
            key: Key::Free,
            masters: (0..nodes).map(alike).collect(),
            silent: None,
            unsaid: Vec::new(),
            on_the_way: Vec::new(),
        };
        group.engine.connect(group.now);
        group.exchange();
        assert_eq!(group.engine.nodes().ready(), nodes, "every node is connected");
        group
    }

    /// As [`new`](Group::new); all masters say this of each lock.
    pub fn with_key(nodes: usize, key: Key) -> Group {
        let mut group = Group::new(nodes);
        group.key = key;
        group
    }

    /// As [`new`](Group::new); the last node is silent for long.
    pub fn with_one_silent(nodes: usize) -> Group {
        let mut group = Group::new(nodes);
        group.silent = Some(nodes - 1);
        group
    }

    /// An acquisition and its release.
    pub fn pair(&mut self, resource: &Resource) {
        self.start_acquire(resource);
        self.exchange();
        let lease = self.take_lease();
        self.start_release(lease);
        self.exchange();
        self.take_released();
    }

    /// An acquisition that is refused, and the deletions that follow it.
    pub fn contended(&mut self, resource: &Resource) {
        self.start_acquire(resource);
        self.exchange();
        match self.take_done() {
            Some(Done::Acquired(Err(error))) if error.is_contended() => drop(black_box(error)),
            other => unreachable!("another client holds the lock: {other:?}"),
        }
    }

    /// A pair for each of these resources, all acquired before any is released.
    pub fn pairs_at_once(&mut self, resources: &[Resource], leases: &mut Vec<Lease>) {
        for resource in resources {
            self.start_acquire(resource);
        }
        self.exchange();
        for _ in resources {
            let lease = self.take_lease();
            leases.push(lease);
        }
        for lease in leases.drain(..) {
            self.start_release(lease);
        }
        self.exchange();
        for _ in resources {
            self.take_released();
        }
    }

    /// So much later, for work that is done from time to time.
    pub fn idle(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    /// The parts of a SET, which only an engine makes.
    pub fn token_and_ttl(mut self) -> (LockToken, Ttl) {
        self.start_acquire(&Resource::new("invoice:42").expect("a short name"));
        while let Some(action) = self.engine.poll_action() {
            if let Action::Send { command: Command::Acquire { token, ttl, .. }, .. } = action {
                return (*token, ttl);
            }
        }
        unreachable!("the nodes are sent a SET")
    }

    fn tick(&mut self) -> Moment {
        self.now = self.now.after(TICK);
        self.now
    }

    fn turn(&mut self) -> Moment {
        let now = self.tick();
        self.engine.handle_timeout(now);
        now
    }

    /// Takes the engine's commands, and gives it the replies, until there are none.
    fn exchange(&mut self) {
        // It ends: a reply leads to no command of which the reply leads to another one.
        while self.carry_out() {
            let now = self.tick();
            for (nodes, reply) in self.on_the_way.drain(..) {
                let silent = self.silent.filter(|node| nodes.contains(*node));
                if let Some(silent) = silent {
                    self.unsaid.push(reply.clone());
                    for node in nodes.iter().filter(|node| *node != silent) {
                        hand_over(&mut self.engine, now, node, &reply);
                    }
                    continue;
                }
                for node in nodes.iter() {
                    hand_over(&mut self.engine, now, node, &reply);
                }
            }
            self.engine.handle_timeout(now);
        }
        if self.unsaid.len() >= SILENT_COMMANDS_MAX {
            self.speak();
        }
        black_box(self.engine.poll_timeout());
    }

    /// Whether there was anything to do.
    fn carry_out(&mut self) -> bool {
        let mut busy = false;
        while let Some(action) = self.engine.poll_action() {
            busy = true;
            match action {
                Action::Connect { node } => {
                    let now = self.now;
                    self.engine.handle_node(now, node, NodeEvent::Connected);
                }
                Action::ConnectBeside { .. } => {}
                Action::Close { node } => unreachable!("node {node} gave no reason to be closed"),
                Action::Send { nodes, command } => {
                    // A handshake is with one node alone.
                    let first = nodes.iter().next().unwrap_or_default();
                    let master = &self.masters[first];
                    let reply = answer(self.key, self.now, master, black_box(&command));
                    self.on_the_way.push((nodes, reply));
                }
            }
        }
        busy
    }

    /// The silent node says all that it has not said.
    fn speak(&mut self) {
        let Some(node) = self.silent else { return };
        let now = self.tick();
        for reply in self.unsaid.drain(..) {
            self.engine.handle_reply(now, node, reply);
        }
    }

    fn start_acquire(&mut self, resource: &Resource) {
        let now = self.turn();
        let started =
            self.engine.acquire(now, resource.clone(), TTL, Patience::OneRound, Fencing::Off);
        started.expect("room for one more operation");
    }

    fn start_release(&mut self, lease: Lease) {
        let now = self.turn();
        self.engine.release(now, lease, ReleaseHow::ToTheEnd);
    }

    fn take_done(&mut self) -> Option<Done> {
        let now = self.tick();
        self.engine.poll_done(now).map(|(_, done)| done)
    }

    fn take_lease(&mut self) -> Lease {
        match self.take_done() {
            Some(Done::Acquired(Ok(lease))) => lease,
            other => unreachable!("a quorum granted the lock: {other:?}"),
        }
    }

    fn take_released(&mut self) {
        match self.take_done() {
            Some(Done::Released(Ok(released))) => drop(black_box(released)),
            other => unreachable!("a quorum confirmed the release: {other:?}"),
        }
    }
}

/// One answer may stand for all nodes, so they have the same history.
fn alike(node: usize) -> ServerInfo {
    let mut master = aged_master(node);
    master.replication.history = Some(7.into());
    master
}

fn answer(key: Key, now: Moment, master: &ServerInfo, command: &Command<'_>) -> Reply {
    match (command, key) {
        (Command::Acquire { .. }, Key::Free) => Reply::Ok,
        (Command::Acquire { .. }, Key::Held) => Reply::Nil,
        (Command::Release { .. }, Key::Held) => Reply::Integer(0),
        (Command::Extend { .. } | Command::Heal { .. } | Command::Release { .. }, _) => {
            Reply::Integer(1)
        }
        _ => {
            let time = Duration::from_nanos(now.as_nanos());
            let offers = ReleaseWith::Script;
            let about = About { info: master, offers, time, connection: 1, marker: MARKER };
            about.answer(Asked::from(command)).expect("it is not about a key")
        }
    }
}

/// As the event loop does: a time has a way of its own.
fn hand_over(engine: &mut Engine, now: Moment, node: usize, reply: &Reply) {
    match reply {
        Reply::Time(time) => engine.handle_node(now, node, NodeEvent::Told(*time)),
        reply => engine.handle_reply(now, node, same(reply)),
    }
}

/// The usual ones are copied by hand: to clone any reply takes longer than to handle it.
fn same(reply: &Reply) -> Reply {
    match reply {
        Reply::Ok => Reply::Ok,
        Reply::Integer(number) => Reply::Integer(*number),
        Reply::Time(time) => Reply::Time(*time),
        Reply::Replication(said) => Reply::Replication(*said),
        reply => reply.clone(),
    }
}
