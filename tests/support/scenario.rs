//! The engine on virtual time, with nodes that answer what the test tells them to.

use std::sync::Arc;
use std::time::Duration;

use muxlock::proto::{Action, Command, Engine, Entropy, NodeSet, Patience, Reply, ServerError};
use muxlock::{
    Builder, Done, Lease, LockError, Moment, NodeState, OpId, Redlock, Released, Resource,
    ServerErrorKind,
};

pub const TTL: Duration = Duration::from_secs(10);
pub const NODE_TIMEOUT: Duration = Duration::from_millis(50);
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// What the engine asked for, with tokens counted in the order in which they were drawn, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acted {
    Connect(usize),
    Close(usize),
    Hello(usize),
    Set(Vec<usize>, u32),
    Extend(Vec<usize>, u32),
    Release(Vec<usize>, u32),
}

/// No scenario needs more tokens; after them the source is dry.
pub const TOKENS_MAX: u32 = 20_000;

/// Tokens are counted from 1; jitter is always the same.
struct Counted {
    tokens: u32,
    random: u64,
}

impl Entropy for Counted {
    fn token(&mut self) -> Option<[u8; 20]> {
        if self.tokens == TOKENS_MAX {
            return None;
        }
        self.tokens += 1;
        let mut token = [0; 20];
        token[..4].copy_from_slice(&self.tokens.to_be_bytes());
        Some(token)
    }

    fn next_u64(&mut self) -> u64 {
        self.random
    }
}

pub struct Scenario {
    pub engine: Engine,
    pub now: Moment,
    nodes: usize,
}

impl Scenario {
    /// `nodes` nodes, none of them connected.
    pub fn new(nodes: usize) -> Scenario {
        Scenario::with(nodes, |builder| builder)
    }

    pub fn with(nodes: usize, configure: impl FnOnce(Builder) -> Builder) -> Scenario {
        let urls = (1..=nodes).map(|port| format!("redis://127.0.0.1:{port}"));
        let builder = Redlock::builder()
            .nodes(urls)
            .node_timeout(NODE_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT);
        let config = configure(builder).config().expect("the scenario's settings are valid");
        let entropy = Counted { tokens: 0, random: u64::MAX / 2 };
        let engine = Engine::new(Arc::new(config), Box::new(entropy));
        let now = Moment::from_nanos(1_000_000_000);
        Scenario { engine, now, nodes }
    }

    /// `nodes` nodes, all of them ready.
    pub fn ready(nodes: usize) -> Scenario {
        Scenario::new(nodes).all_ready()
    }

    pub fn all_ready(mut self) -> Scenario {
        self.engine.connect(self.now);
        for node in 0..self.nodes {
            assert_eq!(self.acted(), [Acted::Connect(node)]);
        }
        for node in 0..self.nodes {
            self.connect(node);
        }
        assert_eq!(self.drain(), []);
        self
    }

    /// Lets a connection that is being made stand, handshake included.
    pub fn connect(&mut self, node: usize) {
        self.engine.handle_connected(self.now, node);
        assert_eq!(self.acted(), [Acted::Hello(node)]);
        self.reply(node, Reply::Ok);
    }

    pub fn state(&self, node: usize) -> NodeState {
        self.engine.nodes().nth(node).expect("the node exists").state
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.engine.handle_timeout(self.now);
    }

    pub fn reply(&mut self, node: usize, reply: Reply) {
        self.engine.handle_reply(self.now, node, reply);
    }

    pub fn replies(&mut self, nodes: impl IntoIterator<Item = usize>, reply: Reply) {
        for node in nodes {
            self.reply(node, reply.clone());
        }
    }

    pub fn try_lock(&mut self) -> OpId {
        self.acquire(TTL, Patience::OneRound)
    }

    pub fn acquire(&mut self, ttl: Duration, patience: Patience) -> OpId {
        let resource = Resource::new("resource").expect("a valid name");
        self.engine.acquire(self.now, resource, ttl, patience).expect("the arguments are valid")
    }

    /// A lock that all nodes granted.
    pub fn locked(&mut self) -> Lease {
        self.try_lock();
        self.drain();
        self.replies(0..self.nodes, Reply::Ok);
        self.acquired().expect("all nodes granted")
    }

    /// At most one action.
    fn acted(&mut self) -> Vec<Acted> {
        self.take_action().into_iter().collect()
    }

    /// All actions, in order.
    pub fn drain(&mut self) -> Vec<Acted> {
        std::iter::from_fn(|| self.take_action()).collect()
    }

    fn take_action(&mut self) -> Option<Acted> {
        Some(match self.engine.poll_action()? {
            Action::Connect { node } => Acted::Connect(node),
            Action::Close { node } => Acted::Close(node),
            Action::Send { nodes, command } => sent(nodes, command),
        })
    }

    pub fn done(&mut self) -> Option<Done> {
        self.engine.poll_done(self.now).map(|(_, done)| done)
    }

    /// The end of an acquisition, and of nothing else.
    pub fn acquired(&mut self) -> Result<Lease, LockError> {
        match self.only_done() {
            Done::Acquired(result) => result,
            other => panic!("expected the end of an acquisition, got {other:?}"),
        }
    }

    pub fn extended(&mut self) -> (Lease, Result<(), LockError>) {
        match self.only_done() {
            Done::Extended(lease, result) => (lease, result),
            other => panic!("expected the end of an extension, got {other:?}"),
        }
    }

    pub fn released(&mut self) -> Result<Released, LockError> {
        match self.only_done() {
            Done::Released(result) => result,
            other => panic!("expected the end of a release, got {other:?}"),
        }
    }

    fn only_done(&mut self) -> Done {
        let done = self.done().expect("an operation ended");
        assert!(self.done().is_none(), "only one operation ended");
        done
    }

    pub fn nothing_done(&mut self) {
        if let Some(done) = self.done() {
            panic!("nothing should have ended, but {done:?} did");
        }
    }
}

fn sent(nodes: NodeSet, command: Command<'_>) -> Acted {
    let number = |token: &muxlock::LockToken| {
        let hex = std::str::from_utf8(&token.as_bytes()[..8]).expect("tokens are text");
        u32::from_str_radix(hex, 16).expect("tokens are hexadecimal")
    };
    let nodes: Vec<usize> = nodes.iter().collect();
    match command {
        Command::Authenticate(_) | Command::Select { .. } | Command::SetName => {
            Acted::Hello(nodes[0])
        }
        Command::Acquire { token, .. } => Acted::Set(nodes, number(token)),
        Command::Extend { token, .. } => Acted::Extend(nodes, number(token)),
        Command::Release { token, .. } => Acted::Release(nodes, number(token)),
    }
}

pub fn server_error(kind: ServerErrorKind) -> Reply {
    Reply::Error(ServerError { kind, message: "ERR in the scenario".into() })
}
