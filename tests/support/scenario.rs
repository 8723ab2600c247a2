//! The engine on virtual time, with nodes that answer what the test tells them to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muxlock::proto::{
    Action, Command, Engine, Entropy, Grant, Patience, ReleaseWith, Replication, Reply, Section,
    ServerError, ServerInfo,
};
use muxlock::{
    Builder, Done, Lease, LockError, Moment, NodeState, OpId, Redlock, Released, Resource,
    RestartGuard, ServerErrorKind,
};

pub const TTL: Duration = Duration::from_secs(10);
pub const NODE_TIMEOUT: Duration = Duration::from_millis(50);
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// What the engine asked for, with tokens counted in the order in which they were drawn, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acted {
    Connect(usize),
    Close(usize),
    /// The handshake's first command; those that follow it are not told apart.
    Hello(usize),
    /// The handshake's last command.
    Probe(usize),
    /// A look at the clocks.
    Time(Vec<usize>),
    /// A look at the roles.
    Role(Vec<usize>),
    /// A look at the flush marker.
    Marker(Vec<usize>),
    /// The end of an old connection.
    Kill(usize, i64),
    Set(Vec<usize>, u32),
    Extend(Vec<usize>, u32),
    Heal(Vec<usize>, u32),
    /// With the script.
    Release(Vec<usize>, u32),
    /// With a command of the server's own.
    ReleaseWith(ReleaseWith, Vec<usize>, u32),
    /// Such a command is tried on a key that is absent.
    TryOut(ReleaseWith, usize),
}

/// No scenario needs more tokens; after them the source is dry.
pub const TOKENS_MAX: u32 = 20_000;

/// Tokens are counted from 1; jitter is always the same.
struct FastPath {
    tokens: u32,
    random: u64,
}

impl Entropy for FastPath {
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
    /// What each node says of itself.
    pub servers: Vec<ServerInfo>,
    /// By how much each node's wall clock is ahead of the safety clock.
    pub ahead: Vec<Duration>,
    /// What each node's server has to release with; everyone runs scripts.
    pub offers: Vec<ReleaseWith>,
    nodes: usize,
    /// How many connections there have been: a server tells each by its number.
    connections: i64,
    /// What nodes were asked in their handshakes and have not answered.
    greetings: Vec<VecDeque<Greeting>>,
}

#[derive(Debug, Clone, Copy)]
enum Greeting {
    Name,
    Id,
    Info(Section),
    Time,
    Probe,
}

impl Scenario {
    /// `nodes` nodes, none of them connected; without a restart guard, whose looks at the clocks
    /// would stand between the commands that a test is about.
    pub fn new(nodes: usize) -> Scenario {
        Scenario::with(nodes, |builder| builder)
    }

    /// As [`new`](Scenario::new), with the restart guard on.
    pub fn guarded(nodes: usize) -> Scenario {
        Scenario::with(nodes, |builder| builder.restart_guard(RestartGuard::Uptime))
    }

    /// Nodes with these addresses, with the restart guard on.
    pub fn of_nodes<const N: usize>(urls: [&str; N]) -> Scenario {
        let builder = Redlock::builder().nodes(urls);
        Scenario::start(N, builder.node_timeout(NODE_TIMEOUT).connect_timeout(CONNECT_TIMEOUT))
    }

    pub fn with(nodes: usize, configure: impl FnOnce(Builder) -> Builder) -> Scenario {
        let urls = (1..=nodes).map(|port| format!("redis://127.0.0.1:{port}"));
        let builder = Redlock::builder()
            .nodes(urls)
            .node_timeout(NODE_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .restart_guard(RestartGuard::Off);
        Scenario::start(nodes, configure(builder))
    }

    fn start(nodes: usize, builder: Builder) -> Scenario {
        let config = builder.config().expect("the scenario's settings are valid");
        let entropy = FastPath { tokens: 0, random: u64::MAX / 2 };
        let engine = Engine::new(Arc::new(config), Box::new(entropy));
        let now = Moment::from_nanos(1_000_000_000);
        Scenario {
            engine,
            now,
            servers: (0..nodes).map(aged_master).collect(),
            ahead: vec![Duration::from_secs(1_000_000); nodes],
            offers: vec![ReleaseWith::Script; nodes],
            nodes,
            connections: 0,
            greetings: vec![VecDeque::new(); nodes],
        }
    }

    /// `nodes` nodes, all of them ready.
    pub fn ready(nodes: usize) -> Scenario {
        Scenario::new(nodes).all_ready()
    }

    /// Nodes whose servers have these to release with, all of them ready and seen to run them.
    pub fn offering<const N: usize>(offers: [ReleaseWith; N]) -> Scenario {
        let mut scenario = Scenario::new(N);
        scenario.offers = offers.to_vec();
        scenario.engine.connect(scenario.now);
        scenario.drain();
        for (node, offer) in offers.into_iter().enumerate() {
            scenario.connect(node);
            if offer != ReleaseWith::Script {
                assert_eq!(scenario.drain(), [Acted::TryOut(offer, node)]);
                scenario.reply(node, Reply::Integer(0));
            }
        }
        assert_eq!(scenario.drain(), []);
        scenario
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
        assert_eq!(self.drain_to_probe(node), [Acted::Hello(node), Acted::Probe(node)]);
        self.greet(node);
    }

    /// All actions up to the last of the handshake.
    fn drain_to_probe(&mut self, node: usize) -> Vec<Acted> {
        let mut acted = Vec::new();
        while acted.last() != Some(&Acted::Probe(node)) {
            acted.push(self.take_action().expect("a handshake ends with a probe"));
        }
        acted
    }

    /// Answers the handshake that the node was sent, to its end.
    pub fn greet(&mut self, node: usize) {
        while self.greet_once(node) {}
    }

    /// Answers one step of the handshake; `false` if there is none left.
    pub fn greet_once(&mut self, node: usize) -> bool {
        let Some(greeting) = self.greetings[node].pop_front() else {
            return false;
        };
        let reply = match greeting {
            Greeting::Name => Reply::Ok,
            Greeting::Id => {
                self.connections += 1;
                Reply::Integer(self.connections)
            }
            Greeting::Info(section) => self.section(node, section),
            Greeting::Time => self.time(node),
            Greeting::Probe => Reply::Integer(0),
        };
        self.reply(node, reply);
        true
    }

    /// Answers the next step of the handshake in another way.
    pub fn greet_with(&mut self, node: usize, reply: Reply) {
        self.greetings[node].pop_front().expect("a step of the handshake is open");
        self.reply(node, reply);
    }

    fn section(&self, node: usize, section: Section) -> Reply {
        let said = self.servers[node].clone();
        let none = ServerInfo::default();
        Reply::Info(Box::new(match section {
            Section::Server => ServerInfo {
                version: match self.offers[node] {
                    ReleaseWith::Delex => Some("redis 8.4.0".into()),
                    ReleaseWith::Delifeq => Some("valkey 9.0.0".into()),
                    _ => said.version,
                },
                run_id: said.run_id,
                uptime: said.uptime,
                standalone: said.standalone,
                ..none
            },
            Section::Replication => return Reply::Replication(said.replication),
            Section::Memory => ServerInfo {
                memory_max: said.memory_max,
                evicts_nothing: said.evicts_nothing,
                ..none
            },
            Section::Persistence => ServerInfo { loading: said.loading, ..none },
        }))
    }

    /// What the node's wall clock says.
    pub fn time(&self, node: usize) -> Reply {
        Reply::Time(Duration::from_nanos(self.now.as_nanos()) + self.ahead[node])
    }

    /// Says what these nodes are asked when a client looks at them again: the time, and the role.
    pub fn look(&mut self, nodes: impl IntoIterator<Item = usize>) {
        for node in nodes {
            let time = self.time(node);
            self.reply(node, time);
            self.reply(node, Reply::Replication(self.servers[node].replication));
        }
    }

    /// The node is restarted without its data: another process.
    pub fn restart(&mut self, node: usize, uptime: Duration) {
        let run_id = format!("{} again", self.servers[node].run_id.as_deref().unwrap_or_default());
        self.servers[node].run_id = Some(run_id.into());
        self.servers[node].uptime = Some(uptime);
    }

    pub fn state(&self, node: usize) -> NodeState {
        self.engine.nodes().nth(node).expect("the node exists").state
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.engine.handle_timeout(self.now);
    }

    /// As the event loop hands replies over; the simulation hands over all alike.
    pub fn reply(&mut self, node: usize, reply: Reply) {
        let mut grant = match reply {
            Reply::Ok => Some(Grant::Ok),
            Reply::Integer(1) => Some(Grant::One),
            _ => return self.engine.handle_reply(self.now, node, reply),
        };
        self.engine.advance(self.now);
        self.engine.handle_grants(node, usize::MAX, || grant.take());
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
            Action::Close { node } => {
                self.greetings[node].clear();
                Acted::Close(node)
            }
            Action::Send { nodes, command } => {
                let nodes: Vec<usize> = nodes.iter().collect();
                let Some(greeting) = greeting(&command) else {
                    return Some(sent(nodes, command));
                };
                // Outside a handshake, which it is never without, it is a look at the clocks.
                match greeting {
                    _ if !self.greetings[nodes[0]].is_empty() => {}
                    Greeting::Time => return Some(Acted::Time(nodes)),
                    Greeting::Info(_) => return Some(Acted::Role(nodes)),
                    Greeting::Name | Greeting::Id | Greeting::Probe => {}
                }
                self.greetings[nodes[0]].push_back(greeting);
                match (greeting, self.greetings[nodes[0]].len()) {
                    (Greeting::Probe, _) => Acted::Probe(nodes[0]),
                    (_, 1) => Acted::Hello(nodes[0]),
                    _ => return self.take_action(),
                }
            }
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

    /// When something is due next, without what was answered in time.
    pub fn next_timeout(&mut self) -> Option<Moment> {
        self.engine.handle_timeout(self.now);
        self.engine.poll_timeout()
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

/// A master that has been up for long, each with a name of its own.
fn aged_master(node: usize) -> ServerInfo {
    ServerInfo {
        version: Some("redis 7.0.15".into()),
        run_id: Some(format!("process {node}").into()),
        uptime: Some(Duration::from_secs(1_000_000)),
        standalone: Some(true),
        replication: Replication {
            master: Some(true),
            history: Some((node as u128).into()),
            promoted: Some(false),
        },
        memory_max: Some(0),
        evicts_nothing: Some(true),
        loading: Some(false),
    }
}

fn greeting(command: &Command<'_>) -> Option<Greeting> {
    match command {
        Command::Authenticate(_) | Command::Select { .. } | Command::SetName => {
            Some(Greeting::Name)
        }
        Command::ClientId => Some(Greeting::Id),
        Command::Info(section) => Some(Greeting::Info(*section)),
        Command::Time => Some(Greeting::Time),
        Command::Probe { with: ReleaseWith::Script, .. } => Some(Greeting::Probe),
        Command::Probe { .. }
        | Command::Kill { .. }
        | Command::Marker { .. }
        | Command::Acquire { .. }
        | Command::Extend { .. }
        | Command::Heal { .. }
        | Command::Release { .. } => None,
    }
}

fn sent(nodes: Vec<usize>, command: Command<'_>) -> Acted {
    let number = |token: &muxlock::LockToken| {
        let hex = std::str::from_utf8(&token.as_bytes()[..8]).expect("tokens are text");
        u32::from_str_radix(hex, 16).expect("tokens are hexadecimal")
    };
    match command {
        Command::Acquire { token, .. } => Acted::Set(nodes, number(token)),
        Command::Extend { token, .. } => Acted::Extend(nodes, number(token)),
        Command::Heal { token, .. } => Acted::Heal(nodes, number(token)),
        Command::Release { token, with: ReleaseWith::Script, .. } => {
            Acted::Release(nodes, number(token))
        }
        Command::Release { token, with, .. } => Acted::ReleaseWith(with, nodes, number(token)),
        Command::Probe { with, .. } => Acted::TryOut(with, nodes[0]),
        Command::Kill { connection } => Acted::Kill(nodes[0], connection),
        Command::Marker { .. } => Acted::Marker(nodes),
        other => unreachable!("{other:?} belongs to a handshake"),
    }
}

pub fn server_error(kind: ServerErrorKind) -> Reply {
    Reply::Error(ServerError { kind, message: "ERR in the scenario".into() })
}
