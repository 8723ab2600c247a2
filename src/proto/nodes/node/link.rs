//! A node's connection: its state with its deadline, and the back-off after it was lost.

use std::sync::Arc;
use std::time::Duration;

use super::Node;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase};
use crate::proto::status::NodeState;
use crate::proto::timer::between;

const BACK_OFF_MIN: Duration = Duration::from_millis(20);
/// Of a server that says nothing, the delay before the next connection grows to this at once,
const BACK_OFF_SOON: Duration = Duration::from_millis(100);
/// and then with the time since the first failure in a row: to this share of it,
const BACK_OFF_SHARE: u32 = 40;
/// and no further than this. Of a server that answers, and is of no use, it grows to this at once.
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// The state of a node's connection, with its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
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
    /// The server lacks a command that every lock needs (R32). It is asked for the holder of a
    /// lock, and is sent nothing else.
    Limited,
    BackOff {
        retry_at: Moment,
    },
}

impl From<State> for NodeState {
    fn from(state: State) -> NodeState {
        match state {
            State::Idle => NodeState::Idle,
            State::Connecting { .. } => NodeState::Connecting,
            // Its handshake has not succeeded.
            State::Handshaking { .. } | State::Limited => NodeState::Handshaking,
            State::Ready => NodeState::Ready,
            State::BackOff { .. } => NodeState::BackOff,
        }
    }
}

pub(crate) struct Link {
    state: State,
    /// Whether the socket accepts no more bytes for now.
    is_blocked: bool,
    /// Whether what is owed is still to be sent: new commands wait for it (R12).
    is_settling: bool,
    /// Failed connections in a row. A regular answer to a SET or an extension ends the row, and so
    /// does a connection that lasted.
    failures: u32,
    /// When the first of them failed.
    failing_since: Moment,
    /// When the last ready connection became ready.
    ready_at: Moment,
    /// When the last ready connection ended.
    lost_at: Option<Moment>,
    /// Whether the server has said something on the present connection, or on the last one.
    is_heard: bool,
    /// Whether the handshake was repeated on the present connection.
    is_repeated: bool,
    /// Whether the last connection was established, and ended before the server said something.
    ended_unheard: bool,
    /// What the first bytes of the last connection say, if no Redis server has sent them.
    pub(super) foreign: Option<Arc<str>>,
    /// The address that Sentinels have named.
    pub(crate) endpoint: Option<Arc<str>>,
    /// The addresses of its name that were tried for the present connection, or for the last one.
    pub(crate) tried: Vec<Arc<str>>,
    last_failure: NodeOutcome,
    connect_timeout: Duration,
}

#[cfg(feature = "testing")]
impl Link {
    /// A contradiction between its parts.
    pub(crate) fn broken(&self) -> Option<&'static str> {
        let is_astray = self.is_settling && self.state != State::Ready;
        is_astray.then_some("what is owed is to be sent on no connection")
    }
}

impl Link {
    pub(super) fn new(connect_timeout: Duration) -> Link {
        Link {
            state: State::Idle,
            is_blocked: false,
            is_settling: false,
            failures: 0,
            failing_since: Moment::START,
            ready_at: Moment::START,
            lost_at: None,
            is_heard: false,
            is_repeated: false,
            ended_unheard: false,
            foreign: None,
            endpoint: None,
            tried: Vec::new(),
            last_failure: NodeOutcome::NotConnected,
            connect_timeout,
        }
    }

    /// The deadline of a connection that made progress. If it has passed, the caller has not called
    /// since; the connection then gets a new deadline.
    fn not_over(&self, now: Moment) -> Option<Moment> {
        let State::Connecting { deadline, .. } = self.state else {
            return None;
        };
        Some(if now < deadline { deadline } else { now.after(self.connect_timeout) })
    }

    /// Whether the handshake may be repeated: once on each connection.
    pub(super) fn repeat_handshake(&mut self) -> bool {
        !std::mem::replace(&mut self.is_repeated, true)
    }

    /// The handshake gets another deadline.
    pub(crate) fn extend(&mut self, now: Moment) -> Moment {
        let deadline = now.after(self.connect_timeout);
        self.state = State::Handshaking { deadline };
        deadline
    }

    pub(super) fn note_heard(&mut self) {
        self.is_heard = true;
    }

    pub(super) fn become_ready(&mut self, now: Moment) {
        self.tried.clear();
        self.foreign = None;
        (self.state, self.is_settling) = (State::Ready, true);
        self.ready_at = now;
    }

    /// The handshake is complete, and the server lacks a command: from now on, it is only asked
    /// which client holds a lock.
    pub(crate) fn limit(&mut self, now: Moment, outcome: NodeOutcome) {
        self.foreign = None;
        self.state = State::Limited;
        self.ready_at = now;
        self.last_failure = outcome;
    }

    /// The connection ends or fails: enters the back-off. Returns the end of its delay, which
    /// grows up to a cap: a server is seen soon after it is back, and one that is away for long is
    /// asked rarely. `random` spreads it, so that clients that lost a master together do not
    /// return together.
    pub(super) fn fail(&mut self, now: Moment, outcome: NodeOutcome, random: u64) -> Moment {
        if self.state == State::Ready {
            self.lost_at = Some(now);
        }
        // If it lasted for the longest back-off, it ends the row of failures.
        if let State::Ready | State::Limited = self.state {
            if now.steadily_since(self.ready_at) >= BACK_OFF_MAX {
                self.failures = 0;
            }
        }
        let is_silent = match self.state {
            State::Connecting { .. } => true,
            State::Handshaking { .. } => !self.is_heard,
            _ => false,
        };
        self.ended_unheard = match self.state {
            State::Handshaking { .. } => !self.is_heard,
            State::Connecting { phase, .. } => phase == Phase::Tls,
            State::Idle | State::Ready | State::Limited | State::BackOff { .. } => false,
        };
        self.last_failure = outcome;
        (self.is_blocked, self.is_settling) = (false, false);
        // The first reconnect after a working connection is immediate: a server may close idle
        // connections, or be restarted.
        let delay = match self.failures {
            0 => {
                self.failing_since = now;
                Duration::ZERO
            }
            failures => {
                let share = now.steadily_since(self.failing_since) / BACK_OFF_SHARE;
                let most = match is_silent {
                    true => share.clamp(BACK_OFF_SOON, BACK_OFF_MAX),
                    false => BACK_OFF_MAX,
                };
                let delay = BACK_OFF_MIN.saturating_mul(1 << (failures - 1).min(16)).min(most);
                between(delay / 2, delay, random)
            }
        };
        self.failures = self.failures.saturating_add(1);
        let retry_at = now.after(delay);
        self.state = State::BackOff { retry_at };
        retry_at
    }

    pub(crate) fn last_failure(&self) -> NodeOutcome {
        self.last_failure
    }

    pub(crate) fn block(&mut self) {
        self.is_blocked = true;
    }

    /// The socket accepts bytes. Returns whether it did not before.
    pub(crate) fn unblock(&mut self) -> bool {
        std::mem::take(&mut self.is_blocked)
    }

    pub(crate) fn is_settling(&self) -> bool {
        self.is_settling
    }

    /// All that was owed was sent. Returns whether commands have waited for it.
    pub(crate) fn take_settling(&mut self) -> bool {
        std::mem::take(&mut self.is_settling)
    }

    /// A regular answer to a SET or an extension ends the row of failures.
    pub(crate) fn note_answer(&mut self) {
        self.failures = 0;
    }

    /// Whether the node was ready at any time since `started`, while it is not ready now. Only then
    /// can it have been sent anything.
    pub(crate) fn was_ready_since(&self, started: Moment) -> bool {
        // For an adopted lock nothing is known about the time before, so the answer is yes.
        started.as_nanos() == 0 || self.lost_at.is_some_and(|lost_at| lost_at >= started)
    }

    /// Whether a connection that was ready has ended since `started`.
    pub(crate) fn was_lost_since(&self, started: Moment) -> bool {
        self.lost_at.is_some_and(|lost_at| lost_at >= started)
    }

    /// How far the node has got, for the report of a timeout.
    pub(crate) fn phase(&self) -> Phase {
        match self.state {
            State::Connecting { phase, .. } => phase,
            State::Handshaking { .. } => Phase::Handshake,
            State::Idle | State::Ready | State::Limited | State::BackOff { .. } => Phase::Reply,
        }
    }
}

impl Node {
    #[inline]
    pub(crate) fn state(&self) -> State {
        self.link.state
    }

    /// Whether the last connection was established, and ended before the server said something.
    pub fn ended_unheard(&self) -> bool {
        self.link.ended_unheard
    }

    /// Whether the server has not sent a byte yet on an established connection: first bytes that
    /// are not from a Redis server are to be reported as
    /// [`NodeEvent::Foreign`](crate::proto::NodeEvent::Foreign).
    pub fn is_unheard(&self) -> bool {
        matches!(self.link.state, State::Handshaking { .. }) && !self.link.is_heard
    }

    /// Whether it is ready, and nothing has spoken against it since its last answers.
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        self.link.state == State::Ready && self.link.failures == 0 && !self.pipeline.has_timed_out()
    }

    /// Whether commands can be sent to it now: it is ready, and its socket accepts more bytes.
    pub fn is_open(&self) -> bool {
        self.link.state == State::Ready && !self.link.is_blocked && !self.link.is_settling
    }

    /// Starts to connect, unless a connection exists or must wait. Returns the deadline if so.
    pub(crate) fn connect(&mut self, now: Moment) -> Option<Moment> {
        match self.link.state {
            State::Idle => {}
            State::BackOff { retry_at } if now >= retry_at && !self.pipeline.has_lost() => {}
            State::BackOff { .. }
            | State::Connecting { .. }
            | State::Handshaking { .. }
            | State::Limited
            | State::Ready => return None,
        }
        let deadline = now.after(self.link.connect_timeout);
        self.link.state = State::Connecting { deadline, phase: Phase::Connect };
        self.link.tried.clear();
        self.suspicion.reconnect();
        Some(deadline)
    }

    /// The requested connection makes progress. Returns its deadline.
    pub(crate) fn connecting(&mut self, now: Moment, phase: Phase) -> Option<Moment> {
        let deadline = self.link.not_over(now)?;
        self.link.state = State::Connecting { deadline, phase };
        self.suspicion.reconnect();
        if phase == Phase::Connect {
            self.suspicion.choose(now);
        }
        self.poll_timeout()
    }

    /// The requested connection is established: the server behind it is not known yet. Returns the
    /// deadline of the handshake.
    pub(crate) fn connected(&mut self, now: Moment, random: u64) -> Option<Moment> {
        // One deadline covers connection and handshake: a peer that accepts and stays silent costs
        // no more than one that does not accept.
        let deadline = self.link.not_over(now)?;
        self.link.state = State::Handshaking { deadline };
        (self.link.is_heard, self.link.is_repeated, self.link.foreign) = (false, false, None);
        self.guard.reconnect(now, random);
        self.suspicion.reconnect();
        self.pipeline.forget_least_latency();
        Some(deadline)
    }

    /// Whether it can only be asked now for the holder of a lock.
    pub(crate) fn can_only_be_asked(&self) -> bool {
        self.link.state == State::Limited && !self.link.is_blocked && !self.pipeline.has_timed_out()
    }
}
