//! The engine by itself: every node answers in memory, so that what is measured is the counting of
//! votes and nothing else. `K` operations in flight are one iteration: read their throughput.
//!
//! The engine is driven as the event loop drives it: timeouts first, then commands, replies and
//! results, and the next deadline is asked for before each wait.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use muxlock::proto::{
    Action, Command, Engine, Entropy, NodeSet, Patience, Replication, Reply, Section, ServerInfo,
};
use muxlock::{Done, Lease, Moment, Redlock, Resource};

const NODES: [usize; 6] = [1, 3, 5, 9, 33, 64];
const IN_FLIGHT: [usize; 3] = [1, 64, 4096];
const TTL: Duration = Duration::from_secs(10);
/// How much later each thing happens than the one before: about what a loopback takes.
const TICK: Duration = Duration::from_micros(10);
/// A silent node answers once it owes this many replies, as one that was frozen and goes on: they
/// stay bounded, and all of them are paid for. By then most are past the node's timeout.
const SILENT_COMMANDS_MAX: usize = 4096;
const SEED: u64 = 42;

/// The same numbers in every run (SplitMix64).
struct Seeded(u64);

impl Entropy for Seeded {
    fn token(&mut self) -> Option<[u8; 20]> {
        let mut token = [0; 20];
        for part in token.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
        Some(token)
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// What the masters say to a SET and to a release.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    Free,
    /// Somebody else holds it.
    Held,
}

/// An engine, and the masters that it believes in.
struct Cluster {
    engine: Engine,
    now: Moment,
    key: Key,
    /// The node that answers nothing for a while, if there is one, and what it has not said.
    silent: Option<usize>,
    unsaid: Vec<Reply>,
    /// Replies on their way, in the order of their commands.
    on_the_way: Vec<(NodeSet, Reply)>,
}

impl Cluster {
    fn new(nodes: usize) -> Cluster {
        // Never connected to: the engine opens no sockets. The restart guard is on, and the nodes
        // say that they are old.
        let urls = (0..nodes).map(|node| format!("redis://127.0.0.1:{}", 10_000 + node));
        let config = Redlock::builder().nodes(urls).config().expect("settings within their bounds");
        let mut cluster = Cluster {
            engine: Engine::new(Arc::new(config), Box::new(Seeded(SEED))),
            now: Moment::from_nanos(1),
            key: Key::Free,
            silent: None,
            unsaid: Vec::new(),
            on_the_way: Vec::new(),
        };
        cluster.engine.connect(cluster.now);
        cluster.exchange();
        assert_eq!(cluster.engine.ready(), nodes, "every node is connected");
        cluster
    }

    fn held(nodes: usize) -> Cluster {
        let mut cluster = Cluster::new(nodes);
        cluster.key = Key::Held;
        cluster
    }

    fn with_one_silent(nodes: usize) -> Cluster {
        let mut cluster = Cluster::new(nodes);
        cluster.silent = Some(nodes - 1);
        cluster
    }

    fn tick(&mut self) -> Moment {
        self.now = self.now.after(TICK);
        self.now
    }

    /// Takes the engine's commands, and gives it the replies, until there are none.
    fn exchange(&mut self) {
        // It ends: a reply leads to no command of which the reply leads to another one.
        while self.carry_out() {
            let now = self.tick();
            for (nodes, reply) in self.on_the_way.drain(..) {
                for node in nodes.iter() {
                    if self.silent == Some(node) {
                        self.unsaid.push(reply.clone());
                    } else {
                        self.engine.handle_reply(now, node, reply.clone());
                    }
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
                    self.engine.handle_connected(now, node);
                }
                Action::Close { node } => unreachable!("node {node} gave no reason to be closed"),
                Action::Send { nodes, command } => {
                    let first = nodes.iter().next().unwrap_or_default();
                    let reply = answer(self.key, self.now, first, black_box(&command));
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
        let now = self.tick();
        self.engine.handle_timeout(now);
        let started = self.engine.acquire(now, resource.clone(), TTL, Patience::OneRound);
        started.expect("room for one more operation");
    }

    fn start_release(&mut self, lease: Lease) {
        let now = self.tick();
        self.engine.handle_timeout(now);
        self.engine.release(now, lease);
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

    fn pair(&mut self, resource: &Resource) {
        self.start_acquire(resource);
        self.exchange();
        let lease = self.take_lease();
        self.start_release(lease);
        self.exchange();
        self.take_released();
    }

    /// An acquisition that is refused, and the deletions that follow it.
    fn contended(&mut self, resource: &Resource) {
        self.start_acquire(resource);
        self.exchange();
        match self.take_done() {
            Some(Done::Acquired(Err(error))) if error.is_contended() => drop(black_box(error)),
            other => unreachable!("somebody else holds the lock: {other:?}"),
        }
    }

    /// A pair for each of these resources, all acquired before any is released.
    fn pairs_at_once(&mut self, resources: &[Resource], leases: &mut Vec<Lease>) {
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
}

/// What these nodes say, of which this is the first: a handshake is with one alone.
fn answer(key: Key, now: Moment, node: usize, command: &Command<'_>) -> Reply {
    match (command, key) {
        (Command::Acquire { .. }, Key::Held) => Reply::Nil,
        (Command::Release { .. }, Key::Held) | (Command::Probe { .. }, _) => Reply::Integer(0),
        (Command::Acquire { .. }, _) => Reply::Ok,
        (
            Command::Extend { .. }
            | Command::Heal { .. }
            | Command::Release { .. }
            | Command::ClientId,
            _,
        ) => Reply::Integer(1),
        (Command::Info(Section::Replication), _) => Reply::Replication(Replication {
            master: Some(true),
            history: Some(7.into()),
            promoted: Some(false),
        }),
        (Command::Info(_), _) => Reply::Info(Box::new(ServerInfo {
            run_id: Some(format!("process {node}").into()),
            uptime: Some(Duration::from_secs(86_400)),
            ..ServerInfo::default()
        })),
        (Command::Time, _) => Reply::Time(Duration::from_nanos(now.as_nanos())),
        (Command::Authenticate(_) | Command::Select { .. } | Command::SetName, _) => Reply::Ok,
        (Command::Kill { .. } | Command::Marker { .. }, _) => {
            unreachable!("no connection is lost, and no marker configured")
        }
    }
}

fn resource(number: usize) -> Resource {
    Resource::new(format!("invoice:{number}")).expect("a short name")
}

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine");
    let invoice = resource(42);
    for nodes in NODES {
        let mut cluster = Cluster::new(nodes);
        group.bench_function(BenchmarkId::new("pair", nodes), |bencher| {
            bencher.iter(|| cluster.pair(&invoice));
        });
    }
    let mut cluster = Cluster::held(5);
    group.bench_function("contended/5", |bencher| {
        bencher.iter(|| cluster.contended(&invoice));
    });
    let mut cluster = Cluster::with_one_silent(5);
    group.bench_function("one_silent/5", |bencher| {
        bencher.iter(|| cluster.pair(&invoice));
    });
    group.finish();
}

fn in_flight(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine");
    for operations in IN_FLIGHT {
        let resources: Vec<Resource> = (0..operations).map(resource).collect();
        let mut leases = Vec::with_capacity(operations);
        let mut cluster = Cluster::new(5);
        group.throughput(Throughput::Elements(operations as u64));
        group.bench_function(BenchmarkId::new("in_flight", operations), |bencher| {
            bencher.iter(|| cluster.pairs_at_once(&resources, &mut leases));
        });
    }
    group.finish();
}

criterion_group!(benches, pairs, in_flight);
criterion_main!(benches);
