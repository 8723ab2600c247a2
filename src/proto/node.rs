//! One master as the engine sees it: a connection's life, and a queue of commands without replies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::command::{ReleaseWith, Section, ServerError, ServerInfo};
use super::debt::Debts;
use super::fifo::Fifo;
use super::identity::Seen;
use super::round::Vote;
use super::server_clock::ServerClock;
use crate::Moment;
use crate::error::{NodeOutcome, Phase, Quarantine, QuarantineCause, ServerErrorKind};

/// A node that leaves so many commands unanswered past their timeout is far behind: it gets no new
/// SET or extension before none is late (R18).
const LATE_COMMANDS_MAX: usize = 512;
/// So is one that leaves a command unanswered for this long, or for twice its timeout. Packets that
/// are sent again and the fork of a large process take less.
const LATE_FOR_MAX: Duration = Duration::from_secs(1);
/// The most commands that wait for a connection to stand.
pub(super) const QUEUED_COMMANDS_MAX: usize = 8_192;
/// A connection that is silent for this long while it owes replies is dropped (R5 keeps it so far).
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Added to a TTL to be sure that a key is gone by itself.
pub(super) const SLACK: Duration = Duration::from_secs(1);
/// A release on a new connection is repeated after a round trip and this long.
pub(super) const DEBT_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// A release that a node refused is repeated after this long.
pub(super) const DEBT_REFUSED_AFTER: Duration = Duration::from_millis(500);

/// As many hexadecimal digits in a row may be a token.
pub(super) const HEX_RUN_MAX: usize = 16;
/// What is kept of a server's error.
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
    /// With what it can compare and delete, beside scripts.
    Deletes,
    /// The last one: when it is answered, so are all.
    Probe,
}

impl Step {
    /// The steps that every connection takes, in order.
    pub(super) const COMMON: [Step; 9] = [
        Step::SetName,
        Step::ClientId,
        Step::Info(Section::Server),
        Step::Info(Section::Replication),
        Step::Info(Section::Memory),
        Step::Info(Section::Persistence),
        Step::Time,
        Step::Deletes,
        Step::Probe,
    ];
}

/// What a reply will be the answer to: order is identity, since RESP has no request ids.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    Handshake(Step),
    Round(usize),
    /// Whether the flush marker stands behind the round's SET.
    Marker(usize),
    Time,
    /// Whether it still is a master, and of what.
    Role,
    /// Whether this user may release in another way than with the script.
    Probe(ReleaseWith),
    /// The end of an old connection, by what the server knew it.
    Kill(i64),
}

impl Request {
    /// The round that it belongs to.
    pub(super) fn round(self) -> Option<usize> {
        match self {
            Request::Round(round) | Request::Marker(round) => Some(round),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct InFlight {
    pub(super) request: Request,
    pub(super) sent_at: Moment,
}

/// What was lost of a round with a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lost {
    /// The answer.
    Sent,
    /// The command, which was not handed out.
    Unsent,
    /// The look at its flush marker.
    Marker,
}

/// Where a node's connection stands. A deadline lives in the state that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody has needed it yet.
    Idle,
    Connecting {
        deadline: Moment,
        /// How far that has got.
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

/// What becomes of a command for a node that cannot take it at once.
pub(super) enum Route {
    /// It waits for the connection to stand.
    Queue,
    Fail(NodeOutcome),
}

pub(super) struct Node {
    pub(super) state: State,
    /// Commands handed out and not answered, oldest first.
    pub(super) in_flight: Fifo<InFlight>,
    /// How many at the front of `in_flight` are past their timeout: never more than there are.
    pub(super) late: usize,
    /// Rounds whose command waits for the connection to stand, or for room in the socket.
    pub(super) queue: VecDeque<usize>,
    /// What the connection that ended has left undone, as far as nothing was done about it yet. It
    /// is not connected again before.
    pub(super) lost: VecDeque<(usize, Lost)>,
    /// Whether not all was sent that was owed when it became ready: new commands wait (R12).
    pub(super) is_behind: bool,
    /// Whether the socket takes no more for now.
    pub(super) blocked: bool,
    pub(super) debts: Debts,
    /// Connections that failed since a SET or an extension was last answered as it should be, or a
    /// connection lasted.
    pub(super) failures: u32,
    /// When the last connection that was ready became so.
    pub(super) ready_at: Moment,
    /// When it ended.
    pub(super) lost_at: Option<Moment>,
    pub(super) last_reply_at: Moment,
    /// Whether what is read now may have been there for long.
    pub(super) is_read_late: bool,
    pub(super) last_failure: NodeOutcome,
    pub(super) last_error: Option<ServerError>,
    pub(super) last_vote: Vote,
    /// One for each round's slot; an old one, if the round waits for it.
    pub(super) votes: Vec<Vote>,
    /// Smoothed time from command to reply.
    pub(super) latency_nanos: Option<u64>,
    /// By what the server knows the connection, or the last one.
    pub(super) client_id: Option<i64>,
    /// What the server said of itself on this connection.
    pub(super) server: ServerInfo,
    pub(super) runs_no_scripts: bool,
    /// How it could release, by the commands that it says to have.
    pub(super) offer: ReleaseWith,
    pub(super) duplicate_of: Option<usize>,
    /// The process that was last connected to.
    pub(super) seen: Option<Seen>,
    /// Until when what it says does not count, and why.
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
            is_behind: false,
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
            offer: ReleaseWith::Script,
            duplicate_of: None,
            seen: None,
            quarantine: None,
            clock: ServerClock::default(),
            errors: ErrorCounts::default(),
        }
    }

    /// A new connection stands: nothing is known of who is at its other end.
    pub(super) fn reconnect(&mut self, now: Moment) {
        self.client_id = None;
        self.server = ServerInfo::default();
        self.runs_no_scripts = false;
        self.offer = ReleaseWith::Script;
        self.duplicate_of = None;
        self.clock.reconnect(now);
        self.debts.reconnect();
    }

    /// The connection ends: when did the process last answer that was there before? If the one that
    /// answered did not say who it was, it may have been that one.
    pub(super) fn note_last_reply(&mut self) {
        if let Some(seen) = &mut self.seen {
            let run_id = self.server.run_id.as_ref();
            if run_id.is_none_or(|run_id| seen.is(run_id)) {
                seen.last = seen.last.max(self.last_reply_at);
            }
        }
    }

    /// A connection that was ready ends. If it lasted for the longest back-off, the next one cannot
    /// be one of many in a row.
    pub(super) fn note_end(&mut self, now: Moment) {
        self.lost_at = Some(now);
        if now.steadily_since(self.ready_at) >= BACK_OFF_MAX {
            self.failures = 0;
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.state, State::Handshaking { .. } | State::Ready)
    }

    /// What becomes of a command that cannot be sent at once.
    pub(super) fn route(&self) -> Route {
        match self.state {
            State::Ready if !self.is_behind => Route::Fail(NodeOutcome::Backlogged),
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

    /// Whether this node, which is not ready now, was so at `started` or later: only then can it
    /// have been sent anything.
    pub(super) fn was_ready_since(&self, started: Moment) -> bool {
        // Nothing is known of the time before an adopted lock.
        started.as_nanos() == 0 || self.lost_at.is_some_and(|lost_at| lost_at >= started)
    }

    /// The moment at which something is due if nothing comes in.
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

    /// The next round whose reply is past its timeout at `now`.
    pub(super) fn next_late(&mut self, now: Moment, node_timeout: Duration) -> Option<Request> {
        let next = self.in_flight.get(self.late)?;
        (now >= next.sent_at.after(node_timeout)).then(|| {
            self.late += 1;
            next.request
        })
    }

    /// Whether what it is sent now would be answered too late for long, as far as is known. To be
    /// asked when what it has answered was read.
    pub(super) fn is_far_behind(&self, now: Moment, node_timeout: Duration) -> bool {
        if self.late == 0 {
            return false;
        }
        let late_for_max = LATE_FOR_MAX.max(node_timeout.saturating_mul(2));
        let is_old = |oldest: InFlight| now.steadily_since(oldest.sent_at) >= late_for_max;
        self.late >= LATE_COMMANDS_MAX || self.in_flight.first().is_some_and(is_old)
    }

    /// Takes the command that a reply at `now` answers.
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

    /// The time of an answer that may have been there for long says when somebody looked, not when
    /// the node answered; and so does one that is beyond the node's timeout, which is for the
    /// caller to know.
    #[inline]
    pub(super) fn note_latency(&mut self, nanos: u64) {
        if !self.is_read_late {
            super::smooth(&mut self.latency_nanos, nanos);
        }
    }

    /// How far the node has got, for a timeout's report.
    pub(super) fn phase(&self) -> Phase {
        match self.state {
            State::Connecting { phase, .. } => phase,
            State::Handshaking { .. } => Phase::Handshake,
            State::Idle | State::Ready | State::BackOff { .. } => Phase::Reply,
        }
    }

    /// Enters the back-off after one more failure: the delay doubles up to a cap, and is jittered
    /// by `random` so that clients that lost a master together do not return together. Returns when
    /// it ends.
    pub(super) fn back_off(&mut self, now: Moment, random: u64) -> Moment {
        // The first try after a connection that worked is made at once: a server may close idle
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

/// How often a server answered with an error of each kind, handshakes included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrorCounts([u64; ServerErrorKind::ALL.len()]);

impl ErrorCounts {
    pub(super) fn count(&mut self, kind: ServerErrorKind) {
        self.0[kind as usize] += 1;
    }

    /// How often it was this kind.
    pub fn of(&self, kind: ServerErrorKind) -> u64 {
        self.0[kind as usize]
    }

    /// How often it was any kind.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The kinds that occurred, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (ServerErrorKind, u64)> {
        ServerErrorKind::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }
}

/// A node's state, for people.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The node's place in the configuration, from 0.
    pub node: usize,
    /// Its address, without credentials.
    pub address: Arc<str>,
    /// Where its connection stands.
    pub state: NodeState,
    /// What it last contributed to a round, and how long after the round's start; `None` for the
    /// time if it was not asked.
    pub last_outcome: Option<(NodeOutcome, Option<Duration>)>,
    /// Why its last connection ended or failed, if one did.
    pub last_failure: Option<NodeOutcome>,
    /// The last error it answered with, without anything that was sent to it.
    pub last_message: Option<Arc<str>>,
    /// Smoothed time from command to reply, of replies within the node's timeout, as far as this
    /// client was waiting at the time or had noted that they came.
    pub latency: Option<Duration>,
    /// Commands sent and not answered.
    pub in_flight: usize,
    /// Keys of dead attempts that are to be deleted on it as soon as it can be reached.
    pub debts: usize,
    /// Why its votes do not count for now, and for how long, if so.
    pub quarantine: Option<Quarantine>,
    /// The make and version of the server, if it told.
    pub server_version: Option<Arc<str>>,
    /// The random name of the server's process, if it told.
    pub run_id: Option<Arc<str>>,
    /// How releases are put to it on this connection: with the script, until another way was seen
    /// to work.
    pub release_with: ReleaseWith,
    /// The errors that it has answered with.
    pub errors: ErrorCounts,
}

/// Where a node's connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// Nobody has needed it yet.
    Idle,
    /// The connection is being established, or the name looked up.
    Connecting,
    /// The connection stands; the handshake is under way.
    Handshaking,
    /// It votes.
    Ready,
    /// It is connected, but may have forgotten a lock that is still held: what it says does not
    /// count for now.
    Quarantined,
    /// It could not be reached; its vote is missing until the next try.
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
