//! One master as the engine sees it: the life of its connection, and its unanswered commands.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::command::{ReleaseWith, Section, ServerError, ServerInfo};
use super::debt::Debts;
use super::fifo::Fifo;
use super::identity::Seen;
use super::round::{Lost, Vote};
use super::server_clock::ServerClock;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase, Quarantine, QuarantineCause, ServerErrorKind};

/// A node with this many commands past their timeout is overloaded: it gets no new SET or extension
/// until none is late (R18).
const LATE_COMMANDS_MAX: usize = 512;
/// So is a node that leaves a command unanswered for this long, or for twice its timeout if that is
/// longer. TCP retransmissions and the fork of a large process take less.
const LATE_FOR_MAX: Duration = Duration::from_secs(1);
/// The most commands that wait for a connection.
pub(super) const QUEUED_COMMANDS_MAX: usize = 8_192;
/// A connection that owes replies and is silent for this long is dropped (R5 keeps it so far).
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Added to a TTL for the moment at which a key has certainly expired.
pub(super) const SLACK: Duration = Duration::from_secs(1);
/// A release on a new connection is repeated after a round trip and this long.
pub(super) const DEBT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// A release that a node refused is repeated after this long.
pub(super) const DEBT_REFUSED_AFTER: Duration = Duration::from_millis(500);

/// A run of this many hexadecimal digits could be a token and is redacted.
pub(super) const HEX_RUN_MAX: usize = 16;
/// The longest error message that is kept.
pub(super) const MESSAGE_CHARS_MAX: usize = 160;

const BACK_OFF_MIN: Duration = Duration::from_millis(20);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// A step of the handshake. All of them are sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Authenticate,
    Select,
    SetName,
    ClientId,
    Info(Section),
    Time,
    /// The last step: when it is answered, all are.
    Probe,
}

impl Step {
    /// The steps that every connection takes, in order.
    pub(super) const COMMON: [Step; 8] = [
        Step::SetName,
        Step::ClientId,
        Step::Info(Section::Server),
        Step::Info(Section::Replication),
        Step::Info(Section::Memory),
        Step::Info(Section::Persistence),
        Step::Time,
        Step::Probe,
    ];
}

/// What a reply answers. The order of the replies decides this, since RESP has no request ids.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    Handshake(Step),
    Round(usize),
    Time,
    /// Whether the server is still a master, and of which history.
    Role,
    /// Whether this user may run the native release command.
    Probe(ReleaseWith),
    /// The `CLIENT KILL` of an old connection, with its `CLIENT ID`.
    Kill(i64),
}

impl Request {
    /// The round that the request belongs to.
    pub(super) fn round(self) -> Option<usize> {
        match self {
            Request::Round(round) => Some(round),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct InFlight {
    pub(super) request: Request,
    pub(super) sent_at: Moment,
}

/// The state of a node's connection, with its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// No operation has needed the node yet.
    Idle,
    Connecting {
        deadline: Moment,
        /// The step of connecting.
        phase: Phase,
    },
    Handshaking {
        deadline: Moment,
    },
    Ready,
    BackOff {
        retry_at: Moment,
    },
}

/// What happens to a command for a node that cannot take it at once.
pub(super) enum Route {
    /// It waits for the connection.
    Queue,
    Fail(NodeOutcome),
}

pub(super) struct Node {
    pub(super) state: State,
    /// Commands handed out and not answered, oldest first.
    pub(super) in_flight: Fifo<InFlight>,
    /// How many at the front of `in_flight` are past their timeout: never more than there are.
    pub(super) late: usize,
    /// Rounds whose command waits for the connection, or for room in the socket.
    pub(super) queue: VecDeque<usize>,
    /// Commands lost with the last connection that were not handled yet. The node reconnects only
    /// after that.
    pub(super) lost: VecDeque<(usize, Lost)>,
    /// Whether debts that were due when the node became ready are still unsent: new commands wait
    /// for them (R12).
    pub(super) has_unsent_debts: bool,
    /// Whether the socket accepts no more bytes for now.
    pub(super) blocked: bool,
    pub(super) debts: Debts,
    /// Failed connections in a row. A regular answer to a SET or an extension ends the row, and so
    /// does a connection that lasted.
    pub(super) failures: u32,
    /// When the last ready connection became ready.
    pub(super) ready_at: Moment,
    /// When the last ready connection ended.
    pub(super) lost_at: Option<Moment>,
    pub(super) last_reply_at: Moment,
    /// Whether replies read now may have waited in the socket for a long time.
    pub(super) is_read_late: bool,
    pub(super) last_failure: NodeOutcome,
    pub(super) last_error: Option<ServerError>,
    pub(super) last_vote: Vote,
    /// One vote for each round slot; stale where the round is still undecided.
    pub(super) votes: Vec<Vote>,
    /// Smoothed time from command to reply.
    pub(super) latency_nanos: Option<u64>,
    /// `CLIENT ID` of this connection, or of the last one.
    pub(super) client_id: Option<i64>,
    /// What the server reported about itself on this connection.
    pub(super) server: ServerInfo,
    pub(super) runs_no_scripts: bool,
    pub(super) duplicate_of: Option<usize>,
    /// The server process of the last connection.
    pub(super) seen: Option<Seen>,
    /// Until when the node's votes do not count, and why.
    pub(super) quarantine: Option<(Moment, QuarantineCause)>,
    pub(super) clock: ServerClock,
    pub(super) errors: ErrorCounts,
}

impl Node {
    pub(super) fn new() -> Node {
        Node {
            state: State::Idle,
            in_flight: Fifo::with_room(super::ROUNDS_USUAL),
            late: 0,
            queue: VecDeque::new(),
            lost: VecDeque::new(),
            has_unsent_debts: false,
            blocked: false,
            debts: Debts::default(),
            failures: 0,
            ready_at: Moment::START,
            lost_at: None,
            last_reply_at: Moment::from_nanos(0),
            is_read_late: false,
            last_failure: NodeOutcome::NotConnected,
            last_error: None,
            last_vote: Vote::PENDING,
            votes: Vec::with_capacity(super::ROUNDS_USUAL),
            latency_nanos: None,
            client_id: None,
            server: ServerInfo::default(),
            runs_no_scripts: false,
            duplicate_of: None,
            seen: None,
            quarantine: None,
            clock: ServerClock::default(),
            errors: ErrorCounts::default(),
        }
    }

    /// A new connection is established: the server behind it is not known yet.
    pub(super) fn reconnect(&mut self, now: Moment) {
        self.client_id = None;
        self.server = ServerInfo::default();
        self.runs_no_scripts = false;
        self.duplicate_of = None;
        self.clock.reconnect(now);
        self.debts.reconnect();
    }

    /// The connection ends: records when the known process last answered. If the server did not
    /// report its run_id, it may have been that process.
    pub(super) fn note_last_reply(&mut self) {
        if let Some(seen) = &mut self.seen {
            let run_id = self.server.run_id.as_ref();
            if run_id.is_none_or(|run_id| seen.is(run_id)) {
                seen.last = seen.last.max(self.last_reply_at);
            }
        }
    }

    /// A ready connection ends. If it lasted for the longest back-off, it ends the row of failures.
    pub(super) fn note_end(&mut self, now: Moment) {
        self.lost_at = Some(now);
        if now.steadily_since(self.ready_at) >= BACK_OFF_MAX {
            self.failures = 0;
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.state, State::Handshaking { .. } | State::Ready)
    }

    /// What happens to a command that cannot be sent at once.
    pub(super) fn route(&self) -> Route {
        match self.state {
            State::Ready if !self.has_unsent_debts => Route::Fail(NodeOutcome::Backlogged),
            State::Ready | State::Connecting { .. } | State::Handshaking { .. } => {
                match self.queue.len() < QUEUED_COMMANDS_MAX && !self.owes_too_much() {
                    true => Route::Queue,
                    false => Route::Fail(NodeOutcome::Backlogged),
                }
            }
            // No queue for a node that is down: its vote is missing at once.
            State::Idle | State::BackOff { .. } => Route::Fail(self.last_failure),
        }
    }

    /// Whether the node was ready at any time since `started`, while it is not ready now. Only then
    /// can it have been sent anything.
    pub(super) fn was_ready_since(&self, started: Moment) -> bool {
        // For an adopted lock nothing is known about the time before, so the answer is yes.
        started.as_nanos() == 0 || self.lost_at.is_some_and(|lost_at| lost_at >= started)
    }

    /// When something is due for this node if no input arrives.
    pub(super) fn poll_timeout(&self, node_timeout: Duration) -> Option<Moment> {
        match self.state {
            State::Idle => None,
            State::Connecting { deadline, .. } | State::Handshaking { deadline } => Some(deadline),
            State::BackOff { .. } if !self.lost.is_empty() => Some(Moment::START),
            State::BackOff { retry_at } => Some(retry_at),
            State::Ready => {
                let next =
                    self.in_flight.get(self.late).map(|next| next.sent_at.after(node_timeout));
                [next, self.silent_until(), self.debts.due()].into_iter().flatten().min()
            }
        }
    }

    /// When the node will have been silent for too long.
    pub(super) fn silent_until(&self) -> Option<Moment> {
        let oldest = self.in_flight.first()?;
        Some(oldest.sent_at.max(self.last_reply_at).after(SILENCE_MAX))
    }

    /// The next request whose reply is past its timeout at `now`; counts it as late.
    pub(super) fn next_late(&mut self, now: Moment, node_timeout: Duration) -> Option<Request> {
        let next = self.in_flight.get(self.late)?;
        (now >= next.sent_at.after(node_timeout)).then(|| {
            self.late += 1;
            next.request
        })
    }

    /// Whether a command sent now would probably be answered much too late. Ask after the node's
    /// replies were read.
    pub(super) fn is_far_behind(&self, now: Moment, node_timeout: Duration) -> bool {
        if self.late == 0 {
            return false;
        }
        let late_for_max = LATE_FOR_MAX.max(node_timeout.saturating_mul(2));
        let is_old = |oldest: InFlight| now.steadily_since(oldest.sent_at) >= late_for_max;
        self.late >= LATE_COMMANDS_MAX || self.in_flight.first().is_some_and(is_old)
    }

    /// Takes the request that a reply at `now` answers.
    pub(super) fn take_answered(&mut self, now: Moment, limit_nanos: u64) -> Option<InFlight> {
        let answered = self.in_flight.take_first()?;
        self.late = self.late.saturating_sub(1);
        self.last_reply_at = now;
        let sample = now.nanos_since(answered.sent_at);
        if sample <= limit_nanos {
            self.note_latency(sample);
        }
        Some(answered)
    }

    /// Adds a latency sample. An answer that may have waited in the socket gives none: its time
    /// says when it was read, not when the node answered. Callers leave out answers that exceed the
    /// node timeout.
    #[inline]
    pub(super) fn note_latency(&mut self, nanos: u64) {
        if !self.is_read_late {
            super::smooth(&mut self.latency_nanos, nanos);
        }
    }

    /// How far the node has got, for the report of a timeout.
    pub(super) fn phase(&self) -> Phase {
        match self.state {
            State::Connecting { phase, .. } => phase,
            State::Handshaking { .. } => Phase::Handshake,
            State::Idle | State::Ready | State::BackOff { .. } => Phase::Reply,
        }
    }

    /// Enters the back-off after another failure. The delay doubles up to a cap. `random` spreads
    /// it, so that clients that lost a master together do not return together. Returns the end of
    /// the delay.
    pub(super) fn back_off(&mut self, now: Moment, random: u64) -> Moment {
        // The first reconnect after a working connection is immediate: a server may close idle
        // connections, or be restarted.
        let doubled = match self.failures {
            0 => Duration::ZERO,
            failures => BACK_OFF_MIN.saturating_mul(1 << (failures - 1).min(16)),
        };
        let delay =
            super::timer::between(doubled.min(BACK_OFF_MAX) / 2, doubled.min(BACK_OFF_MAX), random);
        self.failures = self.failures.saturating_add(1);
        let retry_at = now.after(delay);
        self.state = State::BackOff { retry_at };
        retry_at
    }
}

/// The number of error replies of a server by kind, including those to handshakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrorCounts([u64; ServerErrorKind::ALL.len()]);

impl ErrorCounts {
    pub(super) fn count(&mut self, kind: ServerErrorKind) {
        self.0[kind as usize] += 1;
    }

    /// How many errors of this kind.
    pub fn of(&self, kind: ServerErrorKind) -> u64 {
        self.0[kind as usize]
    }

    /// How many errors of any kind.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The kinds that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (ServerErrorKind, u64)> {
        ServerErrorKind::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }
}

/// The state of a node, for monitoring.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The node's index in the configuration, from 0.
    pub node: usize,
    /// Its address, without credentials.
    pub address: Arc<str>,
    /// The state of its connection.
    pub state: NodeState,
    /// Its result in the last round, and how long that took from the round's start. The time is
    /// `None` if the node was not asked.
    pub last_outcome: Option<(NodeOutcome, Option<Duration>)>,
    /// Why its last connection ended or failed, if one did.
    pub last_failure: Option<NodeOutcome>,
    /// The last error message of the server, with the password and anything like a token masked.
    pub last_message: Option<Arc<str>>,
    /// Smoothed time from command to reply. Replies after the `node_timeout` are left out, and
    /// replies that the client read late, without knowing when they arrived.
    pub latency: Option<Duration>,
    /// Commands sent and not answered.
    pub in_flight: usize,
    /// Releases that are still to be sent to this node: of failed attempts and of locks that were
    /// released or dropped.
    pub debts: usize,
    /// Why and for how long its votes do not count, if it is in quarantine.
    pub quarantine: Option<Quarantine>,
    /// Product and version of the server, if it reports them.
    pub server_version: Option<Arc<str>>,
    /// The random id of the server process, if it reports one.
    pub run_id: Option<Arc<str>>,
    /// The command used for releases on this connection: the script, until a trial has shown that a
    /// native command works.
    pub release_with: ReleaseWith,
    /// The errors of this server, by kind.
    pub errors: ErrorCounts,
}

/// The state of a node's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// The client has not tried to connect to the node yet.
    Idle,
    /// The host name is being looked up, or the connection is being established.
    Connecting,
    /// The connection is established; the handshake is in progress.
    Handshaking,
    /// The node votes.
    Ready,
    /// The node is connected, but may have forgotten a lock that is still held: its answers do not
    /// count.
    Quarantined,
    /// The last connection failed or was lost, or the client refused the server. Until the next
    /// connection, the node gives no vote.
    BackOff,
}

impl From<State> for NodeState {
    fn from(state: State) -> NodeState {
        match state {
            State::Idle => NodeState::Idle,
            State::Connecting { .. } => NodeState::Connecting,
            State::Handshaking { .. } => NodeState::Handshaking,
            State::Ready => NodeState::Ready,
            State::BackOff { .. } => NodeState::BackOff,
        }
    }
}
