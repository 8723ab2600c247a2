//! The engine and the codec by themselves: no sockets, and the same time and randomness each run.
//!
//! The engine is driven as the event loop drives it: timeouts first, then commands, replies and
//! results, and the next deadline is asked for before each wait.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use muxlock::proto::{
    Action, Command, Engine, Entropy, NodeSet, Patience, ReleaseWith, Replication, Reply, Section,
    ServerInfo, Ttl,
};
use muxlock::resp::{ReplyReader, encode};
use muxlock::{Done, Lease, LockToken, Moment, Redlock, Resource};

const TTL: Duration = Duration::from_secs(10);
pub const KEY: &str = "invoice:42";
/// How much later each thing happens than the one before: about what a loopback takes.
const TICK: Duration = Duration::from_micros(10);
/// More than what is encoded at once.
const ENCODED_BYTES_MAX: usize = 4096;

/// The same numbers in every run.
struct Counter(u64);

impl Entropy for Counter {
    fn token(&mut self) -> Option<[u8; 20]> {
        let mut token = [0; 20];
        token[..8].copy_from_slice(&self.next_u64().to_le_bytes());
        Some(token)
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0
    }
}

/// An engine, and the masters that it believes in: all of them answer, and each lock is free.
pub struct Cluster {
    engine: Engine,
    now: Moment,
    resource: Resource,
    /// Replies on their way, in the order of their commands.
    on_the_way: Vec<(NodeSet, Reply)>,
}

impl Cluster {
    /// With so many nodes, which are connected. The restart guard is on.
    pub fn new(nodes: usize) -> Cluster {
        // Never connected to: the engine opens no sockets.
        let urls = (0..nodes).map(|node| format!("redis://127.0.0.1:{}", 10_000 + node));
        let config = Redlock::builder().nodes(urls).config().expect("settings within their bounds");
        let mut cluster = Cluster {
            engine: Engine::new(Arc::new(config), Box::new(Counter(1))),
            now: Moment::from_nanos(1),
            resource: Resource::new(KEY).expect("a short name"),
            on_the_way: Vec::new(),
        };
        cluster.engine.connect(cluster.now);
        cluster.exchange();
        assert_eq!(cluster.engine.ready(), nodes, "every node is connected");
        cluster
    }

    /// An acquisition and its release.
    pub fn pair(&mut self) {
        let now = self.turn();
        let resource = self.resource.clone();
        let started = self.engine.acquire(now, resource, TTL, Patience::OneRound);
        started.expect("room for one more operation");
        self.exchange();
        let lease = self.take_lease();
        let now = self.turn();
        self.engine.release(now, lease);
        self.exchange();
        match self.take_done() {
            Some(Done::Released(Ok(released))) => drop(black_box(released)),
            other => unreachable!("a quorum confirmed the release: {other:?}"),
        }
    }

    /// So much later, for what is done from time to time.
    pub fn idle(&mut self, time: Duration) {
        self.now = self.now.after(time);
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
                for node in nodes.iter() {
                    self.engine.handle_reply(now, node, reply.clone());
                }
            }
            self.engine.handle_timeout(now);
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
                    let reply = answer(self.now, first, black_box(&command));
                    self.on_the_way.push((nodes, reply));
                }
            }
        }
        busy
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

    /// What a SET consists of, which only an engine makes.
    fn token_and_ttl(mut self) -> (LockToken, Ttl) {
        let now = self.turn();
        let started = self.engine.acquire(now, self.resource.clone(), TTL, Patience::OneRound);
        started.expect("room for one more operation");
        while let Some(action) = self.engine.poll_action() {
            if let Action::Send { command: Command::Acquire { token, ttl, .. }, .. } = action {
                return (*token, ttl);
            }
        }
        unreachable!("the nodes are sent a SET")
    }
}

/// What these nodes say, of which this is the first: a handshake is with one alone.
fn answer(now: Moment, node: usize, command: &Command<'_>) -> Reply {
    match command {
        Command::Acquire { .. }
        | Command::Authenticate(_)
        | Command::Select { .. }
        | Command::SetName => Reply::Ok,
        Command::Extend { .. }
        | Command::Heal { .. }
        | Command::Release { .. }
        | Command::ClientId => Reply::Integer(1),
        Command::Probe { .. } => Reply::Integer(0),
        Command::Info(Section::Replication) => Reply::Replication(Replication {
            master: Some(true),
            history: Some(7.into()),
            promoted: Some(false),
        }),
        Command::Info(_) => Reply::Info(Box::new(ServerInfo {
            run_id: Some(format!("process {node}").into()),
            uptime: Some(Duration::from_secs(86_400)),
            ..ServerInfo::default()
        })),
        Command::Time => Reply::Time(Duration::from_nanos(now.as_nanos())),
        Command::Kill { .. } | Command::Marker { .. } => {
            unreachable!("no connection is lost, and no marker configured")
        }
    }
}

/// What is to be encoded.
#[derive(Clone, Copy)]
pub enum Encoded {
    Set,
    Release,
}

/// Encodes one command again and again, into the same buffer.
pub fn encoding(what: Encoded) -> impl FnMut() {
    let (token, ttl) = Cluster::new(1).token_and_ttl();
    let mut out = BytesMut::with_capacity(ENCODED_BYTES_MAX);
    move || {
        let (token, key) = (&token, KEY.as_bytes());
        let command = match what {
            Encoded::Set => Command::Acquire { key, token, ttl },
            Encoded::Release => Command::Release { key, token, with: ReleaseWith::Script },
        };
        out.clear();
        encode(black_box(&command), &mut out);
        black_box(&out);
    }
}

/// Reads what one master says to a SET and to a release, as they come: one by one.
pub fn decoding() -> impl FnMut() {
    let mut reader = ReplyReader::new();
    move || {
        for bytes in [b"+OK\r\n".as_slice(), b":1\r\n"] {
            let bytes = black_box(bytes);
            reader.room()[..bytes.len()].copy_from_slice(bytes);
            reader.filled(bytes.len());
            while let Some(reply) = reader.next().expect("well-formed replies") {
                black_box(reply);
            }
        }
    }
}
