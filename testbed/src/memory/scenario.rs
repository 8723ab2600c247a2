//! The engine on virtual time, with nodes whose answers the test sets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::node::{NodeState, ReleaseWith};
use muxlock::proto::{
    Action, Command, Done, Engine, Fencing, Grant, KindCommand, KindStep, Lease, Marker, NodeEvent,
    Notify, OpId, Patience, Push, Reply, Section, SentAs, ServerError, ServerInfo, Sighting, Trial,
    WaitMessage,
};
use muxlock::resp;
use muxlock::settings::{RestartGuard, Waiting};
use muxlock::{Builder, LockError, LockToken, Moment, Redlock, Released, Resource};

use super::{About, Asked, Counted, MARKER, Waits, aged_master};

pub const TTL: Duration = Duration::from_secs(10);
pub const NODE_TIMEOUT: Duration = Duration::from_millis(50);
pub const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// The requests of the engine, with tokens counted in the order in which they were drawn, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acted {
    Connect(usize),
    Close(usize),
    /// The handshake's first command; those that follow it are not told apart.
    Hello(usize),
    /// The handshake's last command.
    Probe(usize),
    /// The first lock of a kind, with the trial before it.
    First(Trial, Vec<usize>, u32),
    /// A look at the clocks.
    Time(Vec<usize>),
    /// A look at what the handshakes said, the roles among it.
    Role(Vec<usize>),
    /// After a flush: the role and the marker.
    Marker(usize),
    /// The end of an old connection.
    Kill(usize, i64),
    Inspect(Vec<usize>),
    Set(Vec<usize>, u32),
    /// With the proposal.
    Fenced(Vec<usize>, u32, u64),
    /// Several resources, a share, or a slot.
    Take(Vec<usize>, u32),
    /// With the number.
    Confirm(Vec<usize>, u32, u64),
    Extend(Vec<usize>, u32),
    Heal(Vec<usize>, u32),
    /// With the script.
    Release(Vec<usize>, u32),
    /// With a command of the server's own.
    ReleaseWith(ReleaseWith, Vec<usize>, u32),
    /// Such a command is tried on a key that is absent.
    TryOut(ReleaseWith, usize),
    /// A command for waiting.
    Wait(usize, Waits),
    /// The release at a queue node, with its token.
    ReleaseAtQueue(usize, u32, Notify),
}

/// No scenario needs more tokens; after them the source is dry.
pub const TOKENS_MAX: u32 = 20_000;

/// So many times in a row, the invariants are checked; from then on, at each of so many: a check
/// walks through everything that the engine remembers, and some tests let it remember thousands.
const CHECKED_DRAINS: u32 = 500;
const CHECKED_AGAIN: u32 = 100;

pub struct Scenario {
    pub engine: Engine,
    pub now: Moment,
    /// Each node's answer about itself.
    pub servers: Vec<ServerInfo>,
    /// By how much each node's wall clock is ahead of the safety clock.
    pub ahead: Vec<Duration>,
    /// The commands that each node's server has to release with; all run scripts.
    pub offers: Vec<ReleaseWith>,
    /// When clients first saw each node's server after a promotion, as it keeps it itself.
    pub sightings: Vec<Option<Sighting>>,
    /// What stands under the marker's key of each node, if it can be written there.
    pub markers: Vec<Option<Marker>>,
    /// A server's answer to the request to store that.
    pub sight_answer: Reply,
    nodes: usize,
    /// How often all actions were taken.
    drains: u32,
    /// How many connections there have been: a server tells each by its number.
    connections: i64,
    /// The questions of handshakes that nodes have not answered.
    handshakes: Vec<VecDeque<Asked>>,
    /// Whether nodes are taken to have the commands of every kind of lock, so that nothing stands
    /// before the first lock of a kind.
    pub is_tried: bool,
    /// The channel that the engine listens to, once it has said so.
    pub channel: Vec<u8>,
    /// The commands about keys; see [`take_said`](Scenario::take_said).
    said: Vec<String>,
    /// The nodes that were sent a script by its hash.
    pub sent_hashes: Vec<usize>,
    /// See [`take_doubts`](Scenario::take_doubts).
    doubts: Vec<(usize, Option<Moment>)>,
}

impl Scenario {
    /// `nodes` nodes, none of them connected; without a restart guard and without queues, whose
    /// commands would stand between those that a test is about.
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
            .restart_guard(RestartGuard::Off)
            .waiting(Waiting::Retry);
        Scenario::start(nodes, configure(builder))
    }

    fn start(nodes: usize, builder: Builder) -> Scenario {
        let config = builder.config().expect("the scenario's settings are valid");
        let entropy = Counted::new(TOKENS_MAX, u64::MAX / 2);
        let engine = Engine::new(Arc::new(config), Box::new(entropy));
        let now = Moment::from_nanos(1_000_000_000);
        Scenario {
            engine,
            now,
            servers: (0..nodes).map(aged_master).collect(),
            ahead: vec![Duration::from_secs(1_000_000); nodes],
            offers: vec![ReleaseWith::Script; nodes],
            sightings: vec![None; nodes],
            markers: vec![Some(MARKER); nodes],
            sight_answer: Reply::Ok,
            nodes,
            drains: 0,
            connections: 0,
            handshakes: vec![VecDeque::new(); nodes],
            is_tried: true,
            channel: Vec::new(),
            said: Vec::new(),
            sent_hashes: Vec::new(),
            doubts: Vec::new(),
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
        self.engine.handle_node(self.now, node, NodeEvent::Connected);
        assert_eq!(self.drain_to_probe(node), [Acted::Hello(node), Acted::Probe(node)]);
        self.start_handshake(node);
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
    pub fn start_handshake(&mut self, node: usize) {
        while self.greet_once(node) {}
    }

    /// Answers one step of the handshake; `false` if there is none left.
    pub fn greet_once(&mut self, node: usize) -> bool {
        let Some(asked) = self.handshakes[node].pop_front() else {
            return false;
        };
        self.connections += i64::from(asked == Asked::Hello);
        let about = self.about(node);
        let sighting = self.sightings[node].clone().filter(|_| asked == Asked::Sighting);
        let reply = match sighting {
            Some(sighting) => Reply::Sighting(Box::new(sighting)),
            None if asked == Asked::Marker => self.marker(node),
            None => about.answer(asked).expect("it is part of a handshake"),
        };
        self.reply(node, reply);
        if let (Asked::Try(_), true) = (asked, self.is_tried) {
            self.engine.assume_tried(node);
        }
        true
    }

    fn about(&self, node: usize) -> About<'_> {
        About {
            info: &self.servers[node],
            offers: self.offers[node],
            time: self.clock(node),
            connection: self.connections,
            marker: self.markers[node].unwrap_or(MARKER),
        }
    }

    /// The first command after a handshake: nothing else is unanswered.
    fn sight(&mut self, node: usize) {
        if self.sight_answer != Reply::Ok {
            self.sightings[node] = None;
        }
        self.reply(node, self.sight_answer.clone());
    }

    /// Answers the next step of the handshake in another way.
    pub fn greet_with(&mut self, node: usize, reply: Reply) {
        self.handshakes[node].pop_front().expect("a step of the handshake is open");
        self.reply(node, reply);
    }

    /// The node's wall clock.
    pub fn time(&self, node: usize) -> Reply {
        Reply::Time(self.clock(node))
    }

    fn clock(&self, node: usize) -> Duration {
        Duration::from_nanos(self.now.as_nanos()) + self.ahead[node]
    }

    /// Names the time of these nodes when a client looks at their clocks.
    pub fn look(&mut self, nodes: impl IntoIterator<Item = usize>) {
        for node in nodes {
            let time = self.time(node);
            self.reply(node, time);
        }
    }

    /// As [`look`](Scenario::look), as the event loop hands a usual time over.
    pub fn look_at_once(&mut self, node: usize) {
        let event = NodeEvent::Told(self.clock(node));
        self.engine.handle_node(self.now, node, event);
    }

    /// Answers a look at what the node's handshake said.
    pub fn look_whole(&mut self, node: usize) {
        for section in [Section::Replication, Section::Memory, Section::Stats] {
            let about = self.about(node);
            let said = about.answer(Asked::Info(section)).expect("it is about the server");
            self.reply(node, said);
        }
    }

    fn marker(&self, node: usize) -> Reply {
        self.markers[node].map_or(Reply::Nil, Reply::Marker)
    }

    /// The node's server tells of a flush.
    pub fn tell_flush(&mut self, node: usize) {
        self.engine.handle_push(self.now, node, Push::Flushed);
    }

    /// Answers who the node's server is and its marker, after a flush.
    pub fn answer_marker(&mut self, node: usize) {
        self.reply(node, Reply::Replication(self.servers[node].replication));
        self.reply(node, self.marker(node));
    }

    /// Names the questions among these about clocks and roles; returns the rest.
    pub fn looked(&mut self, acted: Vec<Acted>) -> Vec<Acted> {
        self.looked_by(&(0..self.nodes).collect::<Vec<_>>(), acted)
    }

    /// As [`looked`](Scenario::looked), but only some nodes answer.
    pub fn looked_by(&mut self, answering: &[usize], acted: Vec<Acted>) -> Vec<Acted> {
        let (looks, others) = acted
            .into_iter()
            .partition::<Vec<_>, _>(|acted| matches!(acted, Acted::Time(_) | Acted::Role(_)));
        for look in looks {
            let (Acted::Time(nodes) | Acted::Role(nodes)) = &look else { continue };
            for node in nodes.iter().copied().filter(|node| answering.contains(node)) {
                match look {
                    Acted::Time(_) => self.look([node]),
                    _ => self.look_whole(node),
                }
            }
        }
        others
    }

    /// Carries out the actions, and answers questions about clocks and roles; returns the rest.
    pub fn drain_looked(&mut self) -> Vec<Acted> {
        let acted = self.drain();
        self.looked(acted)
    }

    /// The node is restarted without its data: another process.
    pub fn restart(&mut self, node: usize, uptime: Duration) {
        let run_id = format!("{} again", self.servers[node].run_id.as_deref().unwrap_or_default());
        self.servers[node].run_id = Some(run_id.into());
        self.servers[node].uptime = Some(uptime);
    }

    pub fn state(&self, node: usize) -> NodeState {
        self.engine.statuses().nth(node).expect("the node exists").state
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.engine.handle_timeout(self.now);
    }

    /// As the event loop hands replies over; the simulation hands over all alike.
    pub fn reply(&mut self, node: usize, reply: Reply) {
        let reply = resp::meaning(reply, || self.engine.node(node).awaits());
        let mut grant = match reply {
            Reply::Ok => Some(Grant::Ok),
            Reply::Integer(1) => Some(Grant::One),
            _ => return self.engine.handle_reply(self.now, node, reply),
        };
        self.engine.advance(self.now);
        self.engine.handle_grants(node, usize::MAX, || grant.take());
        if grant.is_some() {
            self.engine.handle_reply(self.now, node, reply);
        }
    }

    /// Says this on the engine's channel.
    pub fn notify(&mut self, node: usize, message: &str) {
        let channel = self.channel.clone();
        let push = resp::message(&channel, message.as_bytes());
        self.engine.handle_push(self.now, node, push);
    }

    /// Answers the questions to a node before a client can wait there.
    pub fn allow_waits(&mut self, node: usize) {
        let channel = self.channel.clone();
        self.engine.handle_push(self.now, node, Push::Subscribed(&channel));
        self.notify(node, "t");
        self.reply(node, Reply::Integer(1));
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
        self.acquire_of(Resource::new("resource").expect("a valid name"), ttl, patience)
    }

    pub fn acquire_of(&mut self, resource: Resource, ttl: Duration, patience: Patience) -> OpId {
        self.engine
            .acquire(self.now, resource, ttl, patience, Fencing::Off)
            .expect("the arguments are valid")
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
        let acted = std::iter::from_fn(|| self.take_action()).collect();
        self.drains += 1;
        if self.drains <= CHECKED_DRAINS || self.drains % CHECKED_AGAIN == 0 {
            assert_eq!(self.engine.broken_invariant(), None);
        }
        acted
    }

    fn take_action(&mut self) -> Option<Acted> {
        Some(match self.engine.poll_action()? {
            Action::Connect { node } => Acted::Connect(node),
            Action::ConnectBeside { node, silent_since } => {
                self.doubts.push((node, silent_since));
                return self.take_action();
            }
            Action::Close { node } => {
                self.handshakes[node].clear();
                Acted::Close(node)
            }
            Action::Send { nodes, command } => {
                let nodes: Vec<usize> = nodes.iter().collect();
                let asked = Asked::from(&command);
                self.said.extend(words(&command));
                if let Command::Sight { sighting, .. } = &command {
                    self.sightings[nodes[0]] = Some((*sighting).clone());
                    self.sight(nodes[0]);
                    return self.take_action();
                }
                if let Command::Wait(WaitMessage::Subscribe { channel }) = &command {
                    self.channel = channel.as_bytes().to_vec();
                    return self.take_action();
                }
                if let Command::OfKind(KindCommand { sent_as: SentAs::Hash, .. }) = &command {
                    self.sent_hashes.extend(&nodes);
                }
                if let Some(trial) = trial_before(&command) {
                    let (Asked::Take(token) | Asked::Fenced(token, _)) = asked else {
                        unreachable!("{asked:?} has no trial");
                    };
                    return Some(Acted::First(trial, nodes, number(token)));
                }
                if !is_of_a_handshake(asked) {
                    return Some(sent(nodes, asked));
                }
                // Outside a handshake, which it is never without, it is a look at the clocks.
                match asked {
                    _ if !self.handshakes[nodes[0]].is_empty() => {}
                    // A handshake that is repeated begins with it.
                    Asked::Info(Section::Server) => {}
                    Asked::Time => return Some(Acted::Time(nodes)),
                    Asked::Info(Section::Stats) => return Some(Acted::Role(nodes)),
                    // They are answered with what follows.
                    Asked::Info(_) => return self.take_action(),
                    Asked::Marker => return Some(Acted::Marker(nodes[0])),
                    _ => {}
                }
                self.handshakes[nodes[0]].push_back(asked);
                match (asked, self.handshakes[nodes[0]].len()) {
                    (Asked::Try(_), _) => Acted::Probe(nodes[0]),
                    (_, 1) => Acted::Hello(nodes[0]),
                    _ => return self.take_action(),
                }
            }
        })
    }

    /// The nodes that a second connection was requested to since this was last asked.
    pub fn take_beside(&mut self) -> Vec<usize> {
        self.take_doubts().into_iter().map(|(node, _)| node).collect()
    }

    /// The same, and since when the first one is silent.
    pub fn take_doubts(&mut self) -> Vec<(usize, Option<Moment>)> {
        std::mem::take(&mut self.doubts)
    }

    /// The commands about keys since the last call, each command in the words of [`words`].
    pub fn take_said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
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

    /// When something is due next, without timers of requests that were answered in time.
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

/// A command about keys: its action, and the keys. In small letters if it is one of a lock that is
/// not one plain key; then with the slot that is asked for, or with the sign that it leaves.
fn words(command: &Command<'_>) -> Option<String> {
    let (verb, key) = match command {
        Command::Acquire { key, .. } => ("SET", key),
        Command::Extend { key, .. } => ("EXTEND", key),
        Command::Heal { key, .. } => ("HEAL", key),
        Command::Release { key, .. } => ("RELEASE", key),
        Command::OfKind(form) => return Some(form_words(form)),
        _ => return None,
    };
    Some(format!("{verb} {}", key.escape_ascii()))
}

fn form_words(form: &KindCommand<'_>) -> String {
    let keys = form.keys();
    let keys: Vec<String> = keys.iter().map(|key| key.escape_ascii().to_string()).collect();
    let verb = match form.step {
        KindStep::Take { .. } => "take",
        KindStep::Keep => "keep",
        KindStep::Heal => "heal",
        KindStep::Free => "free",
        KindStep::Look => "look",
    };
    let share = if form.is_share() { " share" } else { "" };
    let rest = match (form.step, form.slot()) {
        (_, Some(slot)) => format!(" at {slot}"),
        (KindStep::Take { intent }, None) if !intent.is_zero() => {
            format!(" sign {}", intent.as_millis())
        }
        _ => String::new(),
    };
    format!("{verb}{share} {}{rest}", keys.join(" "))
}

fn is_of_a_handshake(asked: Asked) -> bool {
    match asked {
        Asked::Hello
        | Asked::Handshake
        | Asked::Marker
        | Asked::Info(_)
        | Asked::Time
        | Asked::Sighting
        | Asked::Try(_) => true,
        Asked::Probe(_)
        | Asked::Sight
        | Asked::Kill(_)
        | Asked::Set(_)
        | Asked::Fenced(..)
        | Asked::Take(_)
        | Asked::Confirm(..)
        | Asked::Extend(_)
        | Asked::Heal(_)
        | Asked::Release(..)
        | Asked::Inspect
        | Asked::Wait(_) => false,
    }
}

/// The trial before a command's own work.
fn trial_before(command: &Command<'_>) -> Option<Trial> {
    match command {
        Command::AcquireFenced { trial, .. } => trial.map(|first| first.trial),
        Command::OfKind(KindCommand { sent_as: SentAs::Tried(first), .. }) => Some(first.trial),
        _ => None,
    }
}

/// Tokens are counted in the order in which they were drawn.
fn number(token: LockToken) -> u32 {
    let hex = std::str::from_utf8(&token.as_bytes()[..8]).expect("tokens are text");
    u32::from_str_radix(hex, 16).expect("tokens are hexadecimal")
}

fn sent(nodes: Vec<usize>, asked: Asked) -> Acted {
    match asked {
        Asked::Set(token) => Acted::Set(nodes, number(token)),
        Asked::Fenced(token, proposal) => Acted::Fenced(nodes, number(token), proposal),
        Asked::Take(token) => Acted::Take(nodes, number(token)),
        Asked::Confirm(token, raised) => Acted::Confirm(nodes, number(token), raised),
        Asked::Extend(token) => Acted::Extend(nodes, number(token)),
        Asked::Heal(token) => Acted::Heal(nodes, number(token)),
        Asked::Release(token, ReleaseWith::Script) => Acted::Release(nodes, number(token)),
        Asked::Release(token, with) => Acted::ReleaseWith(with, nodes, number(token)),
        Asked::Probe(with) => Acted::TryOut(with, nodes[0]),
        Asked::Kill(connection) => Acted::Kill(nodes[0], connection),
        Asked::Inspect => Acted::Inspect(nodes),
        Asked::Wait(Waits::ReleaseAtQueue(token, notify)) => {
            Acted::ReleaseAtQueue(nodes[0], number(token), notify)
        }
        Asked::Wait(waits) => Acted::Wait(nodes[0], waits),
        other => unreachable!("{other:?} belongs to a handshake"),
    }
}

pub fn server_error(kind: ServerErrorKind) -> Reply {
    Reply::Error(ServerError { kind, message: "ERR in the scenario".into() })
}
