//! Any order of public calls on two engines that pass leases to each other: no panic, and nothing
//! is left over.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::inspection::Holding;
use muxlock::node::{NodeOutcome, Phase, ReleaseWith};
use muxlock::proto::{
    Action, Cancelled, Done, Engine, Entropy, Fencing, Lease, NodeEvent, OpId, Patience,
    ReleaseHow, Reply, ServerError,
};
use muxlock::resp;
use muxlock::settings::{Heal, RestartGuard};
use muxlock::{Fingerprint, KeepAlive, LockToken, Moment, Redlock, Resource};
use testbed::memory::{About, Asked, Counted, aged_master};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// By token, the side whose engine knows the lease as its own.
type Owners = Rc<RefCell<HashMap<Vec<u8>, usize>>>;

struct Side {
    engine: Engine,
    asked: Vec<VecDeque<Asked>>,
    ops: Vec<OpId>,
    leases: Vec<Lease>,
    connections: i64,
    which: usize,
    /// How many locks its engine is to count as held.
    held: u64,
    owners: Owners,
}

/// Tokens that the other side does not draw.
struct Own {
    counted: Counted,
    which: usize,
}

impl Entropy for Own {
    fn token(&mut self, now: Moment) -> Option<[u8; 20]> {
        let mut token = self.counted.token(now)?;
        token[19] = self.which as u8;
        Some(token)
    }

    fn next_u64(&mut self) -> u64 {
        self.counted.next_u64()
    }
}

const NODES: usize = 3;

fn side(random: &mut Random, is_marked: bool, which: usize, owners: Owners) -> Side {
    let urls = (1..=NODES).map(|port| format!("redis://127.0.0.1:{port}"));
    let guard = match random.below(3) {
        0 => RestartGuard::Off,
        1 => RestartGuard::Uptime,
        _ => RestartGuard::OwnObservation,
    };
    let heal =
        if guard != RestartGuard::Off && random.below(2) == 0 { Heal::On } else { Heal::Off };
    let builder = Redlock::builder()
        .nodes(urls)
        .node_timeout(Duration::from_millis([5, 50, 20_000][random.below(3)]))
        .max_ttl(Duration::from_millis([100, 5_000, 2_147_483_647][random.below(3)]))
        .restart_guard(guard)
        .heal(heal);
    let builder = if is_marked { builder.flush_marker("m") } else { builder };
    let dry = [3, u32::MAX][usize::from(random.below(8) > 0)];
    let entropy = Own { counted: Counted::new(dry, random.next() << 11), which };
    Side {
        engine: Engine::new(Arc::new(builder.config().unwrap()), Box::new(entropy)),
        asked: vec![VecDeque::new(); NODES],
        ops: vec![],
        leases: vec![],
        connections: 0,
        which,
        held: 0,
        owners,
    }
}

impl Side {
    fn drain(&mut self, now: Moment) {
        loop {
            match self.engine.poll_action() {
                None => {}
                Some(Action::Connect { .. } | Action::ConnectBeside { .. }) => continue,
                Some(Action::Close { node }) => {
                    self.asked[node].clear();
                    continue;
                }
                Some(Action::Send { nodes, command }) => {
                    let asked = Asked::from(&command);
                    for node in nodes.iter() {
                        self.asked[node].push_back(asked);
                    }
                    continue;
                }
            }
            if self.engine.has_actions() {
                continue;
            }
            let Some((_, done)) = self.engine.poll_done(now) else { break };
            self.take(done);
        }
    }

    fn take(&mut self, done: Done) {
        let now = self.engine.last_now();
        match done {
            Done::Acquired(Ok(lease)) => {
                assert!(lease.is_valid_at(now));
                self.adopts(&lease);
                self.leases.push(lease);
            }
            Done::Extended(lease, result) => {
                assert!(result.is_err() || lease.is_valid_at(now));
                self.leases.push(lease);
            }
            Done::Renewed(until) => assert!(now < until),
            Done::Lost(lease, loss) => {
                assert_eq!(lease.remaining(now), loss.remaining);
                self.leases.push(lease);
            }
            _ => {}
        }
    }

    /// The token of something that the node was asked for and has not answered.
    fn asked_about(&self, node: usize, random: &mut Random) -> Option<LockToken> {
        let tokens = self.asked[node].iter().filter_map(|asked| match asked {
            Asked::Set(token) | Asked::Extend(token) | Asked::Heal(token) => Some(*token),
            _ => None,
        });
        let tokens: Vec<_> = tokens.collect();
        tokens.get(random.below(tokens.len().max(1))).copied()
    }

    fn adopts(&mut self, lease: &Lease) {
        let token = lease.token().as_bytes().to_vec();
        let owner = self.owners.borrow_mut().insert(token, self.which);
        self.held += u64::from(owner != Some(self.which));
    }

    fn gives_up(&mut self, lease: &Lease) {
        let owner = self.owners.borrow_mut().remove(lease.token().as_bytes());
        self.held -= u64::from(owner == Some(self.which));
    }

    /// The numbers of this moment are exact: they do not drift, whatever was done before.
    fn check_numbers(&self, seed: u64) {
        let stats = self.engine.stats();
        assert_eq!(stats.held, self.held, "{seed}");
        assert_eq!(stats.waiting, self.engine.operations().acquisitions().count() as u64, "{seed}");
        let times = self.engine.times();
        assert_eq!(times.acquire.count(), stats.acquired, "{seed}");
        assert!(times.hold.count() <= stats.released.min(stats.acquired), "{seed}");
    }

    fn answer(
        &mut self,
        random: &mut Random,
        now: Moment,
        node: usize,
        chaos: usize,
        marked: bool,
    ) {
        let asked = self.asked[node].pop_front();
        let mut info = aged_master(node);
        if random.below(40) < chaos {
            info.run_id = [None, Some("p".into()), Some("q".into())][random.below(3)].clone();
            info.uptime = [None, Some(Duration::ZERO), Some(Duration::MAX)][random.below(3)];
        }
        if asked == Some(Asked::ClientId) {
            self.connections += 1;
        }
        let offers = [ReleaseWith::Script, ReleaseWith::Delex, ReleaseWith::Delifeq][node];
        let time = Duration::from_nanos(now.steady_nanos());
        let about = About { info: &info, offers, time, connection: self.connections };
        let usual = |asked: Asked, random: &mut Random| {
            about.answer(asked).unwrap_or_else(|| match asked {
                Asked::Set(_) if marked => {
                    [Reply::Integer(1), Reply::Integer(0), Reply::Integer(-5)][random.below(3)]
                        .clone()
                }
                Asked::Set(_) => [Reply::Ok, Reply::Nil][usize::from(random.below(4) == 0)].clone(),
                Asked::Inspect => match random.below(3) {
                    0 => Reply::Integer(0),
                    left => {
                        let holder = Fingerprint::new([b"one", b"two"][left - 1]);
                        Reply::Holding(Holding::new(holder, [-1, 700][random.below(2)]))
                    }
                },
                Asked::Heal(_) => [Reply::Integer(1), Reply::Integer(2)][random.below(2)].clone(),
                _ => Reply::Integer(i64::from(random.below(4) > 0)),
            })
        };
        let kinds = [
            ServerErrorKind::Loading,
            ServerErrorKind::Misconfigured,
            ServerErrorKind::OutOfMemory,
            ServerErrorKind::Auth,
            ServerErrorKind::Permission,
            ServerErrorKind::ReadOnly,
            ServerErrorKind::Cluster,
            ServerErrorKind::NoReplicas,
            ServerErrorKind::Busy,
            ServerErrorKind::WrongType,
            ServerErrorKind::UnknownCommand,
            ServerErrorKind::MaxClients,
        ];
        let reply = match (asked, random.below(60) < chaos) {
            (Some(asked), false) => usual(asked, random),
            (None, false) => return,
            (_, true) => match random.below(10) {
                0 => Reply::Ok,
                1 => Reply::Nil,
                2 => Reply::Status,
                3 => Reply::Integer([0, 1, 2, -1, i64::MIN, i64::MAX][random.below(6)]),
                4 => Reply::Time([Duration::ZERO, Duration::MAX, time][random.below(3)]),
                5 => Reply::Info(Box::new(info.clone())),
                6 => Reply::Replication(info.replication),
                _ => Reply::Error(ServerError {
                    kind: kinds[random.below(kinds.len())],
                    message: "ERR access denied".into(),
                }),
            },
        };
        let reply = resp::meaning(reply, || self.engine.node(node).awaits());
        self.engine.handle_reply(now, node, reply);
    }
}

fn run(seed: u64) {
    let random = &mut Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    // Neighbouring seeds begin alike.
    (0..8).for_each(|_| _ = random.next());
    let marked = random.below(3) == 0;
    let owners = Owners::default();
    let mut sides = [0, 1].map(|which| side(random, marked, which, Rc::clone(&owners)));
    let (mut nanos, mut jumped) = (1_000_000_000_u64, 0_u64);
    let chaos = random.below(12).saturating_sub(6);
    let pace = [1, 10, 1_000][random.below(3)];
    let ttls = [0, 1, 4, 50, 100, 4_000, 2_000_000_000];
    for _ in 0..400 {
        let now = Moment::with_jumps(nanos, jumped);
        let early = Moment::with_jumps(nanos.saturating_sub(random.next() % 1_000_000), jumped);
        let which = random.below(2);
        let (node, other) = (random.below(NODES), random.below(NODES));
        let ttl = Duration::from_millis(ttls[random.below(ttls.len())]);
        let stolen = if random.below(6) == 0 { sides[1 - which].leases.pop() } else { None };
        let foreign = sides[1 - which].ops.last().copied();
        let side = &mut sides[which];
        let lease = |side: &mut Side| stolen.or_else(|| side.leases.pop());
        let name = Resource::new(["a", "b"][random.below(2)]).unwrap();
        match random.below(31) {
            0..4 => {
                let patience = match random.below(4) {
                    0 => Patience::OneRound,
                    1 => Patience::Until(early),
                    2 => Patience::Until(Moment::from_nanos(u64::MAX)),
                    _ => Patience::Until(now.after(ttl)),
                };
                side.ops.extend(side.engine.acquire(early, name, ttl, patience, Fencing::Off).ok());
            }
            4..6 => {
                if let Some(lease) = lease(side) {
                    side.adopts(&lease);
                    let op = side.engine.extend(now, lease, ttl);
                    side.ops.push(op);
                }
            }
            6..9 => {
                if let Some(lease) = lease(side) {
                    let how = KeepAlive::default()
                        .notice(ttl)
                        .renewals_max([0, 1, u32::MAX][random.below(3)])
                        .lifetime_max([Duration::ZERO, Duration::MAX][random.below(2)]);
                    side.adopts(&lease);
                    let op = side.engine.keep(now, lease, &how);
                    side.ops.push(op);
                }
            }
            9 => {
                if let Some(lease) = lease(side) {
                    side.gives_up(&lease);
                    let op = side.engine.release(now, lease, ReleaseHow::ToTheEnd);
                    side.ops.push(op);
                }
            }
            10 => {
                if let Some(lease) = lease(side) {
                    side.gives_up(&lease);
                    side.engine.abandon(early, lease);
                }
            }
            11 => {
                if let Some(mut lease) = lease(side) {
                    side.gives_up(&lease);
                    side.engine.let_go(now, &mut lease);
                    if random.below(3) == 0 {
                        side.engine.let_go(now, &mut lease);
                    }
                    sides[1 - which].leases.push(lease);
                }
            }
            12..14 => {
                let at = random.below(side.ops.len().max(1));
                let op = side.ops.get(at).copied().or(foreign);
                if let Some(op) = op {
                    if let Cancelled::Extension(lease) = side.engine.cancel(early, op) {
                        side.leases.push(lease);
                    }
                    assert!(side.engine.take_done(now, op).is_none());
                }
            }
            14 => {
                for op in side.ops.clone().into_iter().chain(foreign) {
                    let _ = (
                        side.engine.operations().is_done(op),
                        side.engine.operations().is_release(op),
                    );
                    let _ = side.engine.operations().kept(op).map(|lease| lease.remaining(now));
                    if let Some(done) = side.engine.take_done(early, op) {
                        side.take(done);
                    }
                }
            }
            30 => side.ops.extend(side.engine.inspect(early, name).ok()),
            29 if random.below(2) == 0 => {
                if let Some(token) = side.asked_about(node, random) {
                    let lease = Lease::of_value(name, token, ttl);
                    match random.below(2) {
                        0 => side.engine.abandon(early, lease),
                        _ => side.ops.push(side.engine.release(early, lease, ReleaseHow::ToTheEnd)),
                    }
                }
            }
            15 => side.engine.handle_node(now, node, NodeEvent::Connecting(Phase::Lookup)),
            16..18 => {
                (0..NODES).for_each(|node| side.engine.handle_node(now, node, NodeEvent::Connected))
            }
            18 if random.below(4) == 0 => {
                side.engine.handle_node(now, node, NodeEvent::Duplicate { of: other })
            }
            19 if random.below(2) == 0 => {
                let outcome = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
                side.engine.handle_node(early, node, NodeEvent::Disconnected(outcome));
            }
            20 => side.engine.handle_node(side.engine.last_now(), node, NodeEvent::Blocked),
            21 => side.engine.handle_node(now, node, NodeEvent::Writable),
            22 => {
                side.engine.handle_node(
                    side.engine.last_now(),
                    node,
                    NodeEvent::ReadingLate { since: Some(early) },
                );
                let _ = (
                    side.engine.node(node).is_overdue(early),
                    side.engine.node(node).is_telling_time(),
                );
            }
            23 => {
                side.engine.handle_node(side.engine.last_now(), node, NodeEvent::ReadingInTime);
                nanos += random.next() % 3_000_000_000 / pace;
            }
            24 => {
                let jump = random.next() % 40_000_000_000 / pace * u64::from(random.below(4) == 0);
                (nanos, jumped) = (nanos + jump, jumped + jump);
            }
            25 => {
                nanos += random.next() % 20_000_000 / pace;
                side.engine.handle_timeout(Moment::with_jumps(nanos, jumped));
            }
            _ => {
                let nodes = if random.below(3) > 0 { 0..NODES } else { node..node + 1 };
                for node in nodes {
                    for _ in 0..random.below(24) {
                        side.answer(random, now, node, chaos, marked);
                        if random.below(2) == 0 {
                            side.drain(now);
                        }
                    }
                }
            }
        }
        for side in &mut sides {
            if random.below(3) > 0 {
                side.drain(Moment::with_jumps(nanos, jumped));
            }
            side.check_numbers(seed);
            let _ = (
                side.engine.statuses().count(),
                side.engine.nodes().unavailable(side.engine.last_now()),
                side.engine.unanswered(),
            );
        }
    }
    // From here on all is well: everything ends, and nothing is due then.
    for side in &mut sides {
        let mut is_quiet = false;
        for _ in 0..4_000 {
            let now = Moment::with_jumps(nanos, jumped);
            side.drain(now);
            for op in std::mem::take(&mut side.ops) {
                if let Cancelled::Extension(lease) = side.engine.cancel(now, op) {
                    side.leases.push(lease);
                }
            }
            for lease in std::mem::take(&mut side.leases) {
                side.gives_up(&lease);
                side.engine.abandon(now, lease);
            }
            side.engine.connect(now);
            for node in 0..NODES {
                side.drain(now);
                side.engine.handle_node(now, node, NodeEvent::Writable);
                side.engine.handle_node(now, node, NodeEvent::Connected);
                side.drain(now);
                while !side.asked[node].is_empty() {
                    side.answer(random, now, node, 0, marked);
                    side.drain(now);
                }
            }
            side.drain(now);
            // Exact only after this: the timers of what was cancelled are still known.
            side.engine.handle_timeout(now);
            match side.engine.poll_timeout() {
                None => {
                    is_quiet = true;
                    break;
                }
                Some(due) => {
                    assert!(
                        due.as_nanos() < u64::MAX / 2,
                        "{seed}: it is due in centuries: {due:?}"
                    );
                    nanos = nanos.max(due.as_nanos()).max(nanos + 1);
                    let now = Moment::with_jumps(nanos, jumped);
                    side.engine.handle_timeout(now);
                }
            }
        }
        assert!(is_quiet, "{seed}: something is due for ever: {:?}", side.engine.poll_timeout());
        side.check_numbers(seed);
        assert_eq!(side.engine.operations().count(), 0, "{seed}");
        assert_eq!(side.engine.unanswered(), 0, "{seed}");
        assert!(side.engine.statuses().all(|node| node.pending_releases == 0), "{seed}");
        // What is said last of an engine is how many rounds it knows, and who waits in its queues.
        let shown = format!("{:?}", side.engine);
        assert!(shown.contains("rounds: 0, queued: 0"), "{seed}: {shown}");
    }
}

/// How often all this is done, with other choices each time.
const RUNS: u64 = 300;

#[test]
fn slow_any_order_of_calls_leads_to_no_panic_and_leaves_nothing() {
    for seed in 0..RUNS {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}
