//! One master as the engine sees it: the life of its connection, and its unanswered commands.

mod clock;
mod debts;
mod errors;
mod handshake;
mod identity;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::command::{ReleaseWith, Reply, ServerError};
use super::fifo::Fifo;
use super::lease::Doubt;
use super::round::{Claim, Kind, Lost, Vote};
use clock::ServerClock;
use debts::Debts;
use debts::Here;
pub(crate) use debts::{CONNECTIONS_MAX, Debt, Due, Origin, Origins};
pub use errors::ErrorCounts;
use errors::Errors;
pub(super) use errors::is_forbidden;
pub(crate) use handshake::Step;
use identity::Identity;
pub use identity::Notice;
pub(crate) use identity::{Process, Recognised};

use crate::config::{Config, Heal, NodeConfig, RestartGuard};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase, ProtocolError, Quarantine, QuarantineCause, Unfit};
use crate::token::LockToken;
use crate::validity::Ttl;

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

const BACK_OFF_MIN: Duration = Duration::from_millis(20);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

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

/// What an answer leaves to the engine.
pub(super) enum Effect {
    Nothing,
    /// The last step of the handshake was answered.
    Greeted,
    /// The connection must end.
    Fail(NodeOutcome),
    /// An old connection has ended.
    Killed,
    /// The node is to be sent this release command from now on.
    ReleasesWith(ReleaseWith),
    /// The server's wall clock has jumped forward.
    ClockJumped,
    /// The server did not tell its time. The notice is for the operator.
    TimeRefused(Option<Notice>),
}

impl Effect {
    pub(super) const UNEXPECTED: Effect =
        Effect::Fail(NodeOutcome::Protocol(ProtocolError::Unexpected));
}

pub(super) struct Node {
    config: Arc<Config>,
    index: usize,
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
    /// Whether the socket accepts no more bytes for now.
    pub(super) blocked: bool,
    debts: Debts,
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
    pub(super) last_vote: Vote,
    /// One vote for each round slot; stale where the round is still undecided.
    pub(super) votes: Vec<Vote>,
    /// Smoothed time from command to reply.
    pub(super) latency_nanos: Option<u64>,
    identity: Identity,
    clock: ServerClock,
    errors: Errors,
}

impl Node {
    pub(super) fn new(config: Arc<Config>, index: usize) -> Node {
        Node {
            config,
            index,
            state: State::Idle,
            in_flight: Fifo::with_room(super::ROUNDS_USUAL),
            late: 0,
            queue: VecDeque::new(),
            lost: VecDeque::new(),
            blocked: false,
            debts: Debts::default(),
            failures: 0,
            ready_at: Moment::START,
            lost_at: None,
            last_reply_at: Moment::from_nanos(0),
            is_read_late: false,
            last_failure: NodeOutcome::NotConnected,
            last_vote: Vote::PENDING,
            votes: Vec::with_capacity(super::ROUNDS_USUAL),
            latency_nanos: None,
            identity: Identity::default(),
            clock: ServerClock::default(),
            errors: Errors::default(),
        }
    }

    /// A new connection is established: the server behind it is not known yet.
    pub(super) fn reconnect(&mut self, now: Moment) {
        self.identity.reconnect();
        self.clock.reconnect(now);
        self.debts.reconnect();
    }

    /// The connection ends.
    pub(super) fn note_last_reply(&mut self) {
        self.identity.note_last_reply(self.last_reply_at);
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
            State::Ready if !self.debts.has_unsent() => Route::Fail(NodeOutcome::Backlogged),
            State::Ready | State::Connecting { .. } | State::Handshaking { .. } => {
                match self.queue.len() < QUEUED_COMMANDS_MAX && !self.debts.are_too_many() {
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

/// What may be left on the node.
impl Node {
    fn settings(&self) -> &NodeConfig {
        &self.config.nodes[self.index]
    }

    fn here(&self) -> Here {
        Here {
            process: self.identity.server.run_id.clone(),
            connection: self.identity.client_id,
            round_trip: Duration::from_nanos(self.latency_nanos.unwrap_or(0)),
        }
    }

    /// Whether there may be times at which the node's votes do not count.
    fn is_distrusted(&self) -> bool {
        self.is_guarded() || self.config.flush_marker.is_some()
    }

    /// Whether all that can still arrive for a lock is one SET: extensions set no keys.
    fn has_one_set(&self) -> bool {
        self.config.heal == Heal::Off
    }

    /// A command that may set the key was lost with this connection, or its answer makes no sense.
    pub(super) fn debt_of_set(&self, now: Moment, claim: &Claim, expires: Option<Moment>) -> Debt {
        let left = (self.here().origins(), self.has_one_set());
        Debt::of_set(now, claim, expires, left, self.is_distrusted())
    }

    /// A lease arrives from another engine, with that engine's doubt about this node.
    pub(super) fn debt_of_doubt(&self, now: Moment, claim: &Claim, doubt: &Doubt) -> Debt {
        Debt::of_doubt(now, claim, doubt, doubt.is_one_set && self.has_one_set())
    }

    /// Adds a debt. Returns whether it is still known which copies do not count.
    pub(super) fn owe(&mut self, now: Moment, token: LockToken, debt: Debt) -> bool {
        let is_in_doubt = debt.is_in_doubt();
        self.debts.add(now, token, debt) || !is_in_doubt
    }

    pub(super) fn has_debts(&self) -> bool {
        !self.debts.is_empty()
    }

    /// Whether new commands wait for debts to be sent (R12).
    pub(super) fn has_unsent_debts(&self) -> bool {
        self.debts.has_unsent()
    }

    pub(super) fn owes_too_much(&self) -> bool {
        self.debts.are_too_many()
    }

    /// A lower bound on the moment at which the first debt is due.
    pub(super) fn debts_due(&self) -> Option<Moment> {
        self.debts.due()
    }

    /// The lock is given up, and its release is about to be sent if the node can take it. Returns
    /// the old connections to kill before that; `None` if nothing was owed.
    pub(super) fn wake_debt(&mut self, now: Moment, token: LockToken) -> Option<Vec<i64>> {
        let here = self.here();
        self.debts.wake(now, &here, token, self.state == State::Ready)
    }

    /// The lock was extended: its debt is kept as long.
    pub(super) fn keep_debt(&mut self, now: Moment, token: LockToken, ttl: Ttl) {
        self.debts.keep(now, token, ttl);
    }

    /// The node reported that it has the key of this lock.
    pub(super) fn observe_key(&mut self, now: Moment, token: LockToken) {
        self.debts.observe(token, now.after(self.config.quarantine));
    }

    /// Whether the node's copy of this lock must not be counted for a command of this kind.
    pub(super) fn is_doubted(&self, now: Moment, token: LockToken, kind: Kind) -> bool {
        kind.is_extension() && self.debts.is_doubted(now, token, kind.may_create())
    }

    /// The old connections to kill as soon as the node is ready.
    pub(super) fn kill_old_connections(&mut self) -> Vec<i64> {
        let here = self.here();
        self.debts.kill_old_connections(&here)
    }

    /// The reply to the `CLIENT KILL` of an old connection.
    pub(super) fn handle_killed(&mut self, now: Moment, connection: i64, reply: Reply) -> Effect {
        match reply {
            // 0: the connection had already ended.
            Reply::Integer(_) => {
                let countable_from = now.after(self.config.quarantine);
                let process = self.identity.server.run_id.as_deref();
                self.debts.connection_killed(process, connection, countable_from);
                Effect::Killed
            }
            // The releases will be repeated instead.
            Reply::Error(error) => {
                self.debts.kill_refused(connection);
                self.keep_error(error);
                Effect::Nothing
            }
            _ => Effect::UNEXPECTED,
        }
    }

    /// The server may have a command that this user must not run: only a command that was seen to
    /// work is used.
    pub(super) fn handle_probed(&mut self, with: ReleaseWith, reply: Reply) -> Effect {
        match reply {
            Reply::Integer(0) => return Effect::ReleasesWith(with),
            // It deleted something that was not there: the command means something else on this
            // server.
            Reply::Integer(_) => {}
            Reply::Error(error) => self.keep_error(error),
            _ => return Effect::UNEXPECTED,
        }
        Effect::Nothing
    }

    /// The connection was lost.
    pub(super) fn stop_debts(&mut self) {
        self.debts.stop();
    }

    /// Returns whether the last debt that new commands had to wait for was sent just now.
    pub(super) fn finish_debts(&mut self, now: Moment) -> bool {
        self.debts.finish_start(now)
    }

    /// Takes the next step of at most `share` debts that are due. Returns the releases to send.
    pub(super) fn take_due_debts(&mut self, now: Moment, share: usize) -> Vec<Due> {
        let here = self.here();
        self.debts.take_due(now, &here, self.config.quarantine, share)
    }

    /// What is known here of a lock's copy on this node, and an engine that adopts the lease cannot
    /// know. `may_set` says of a round whether its command may set the key.
    pub(super) fn doubt(
        &self,
        now: Moment,
        token: LockToken,
        may_set: impl Fn(usize) -> bool,
    ) -> Option<Doubt> {
        let mut rounds = self.in_flight.iter().filter_map(|sent| sent.request.round());
        let may_have_run = |lost: &&(usize, Lost)| matches!(lost, (_, Lost::Sent));
        let mut lost = self.lost.iter().filter(may_have_run).map(|(round, _)| *round);
        let is_open = rounds.any(&may_set) || lost.any(&may_set);
        let origins = if is_open { self.here().origins() } else { Origins::default() };
        let (is_one_set, uncounted) = (self.has_one_set(), Duration::ZERO);
        let mut doubt = Doubt { node: self.index, origins, is_one_set, uncounted };
        self.debts.add_doubt(now, token, &mut doubt);
        // The copy may date from a time when this node was not trusted, and only this engine can
        // find that out.
        if !doubt.origins.is_empty() && self.is_distrusted() {
            doubt.uncounted = doubt.uncounted.max(self.config.quarantine);
        }
        let quarantine = self.identity.quarantine_at(now).map(|quarantine| quarantine.ready_in);
        doubt.uncounted = doubt.uncounted.max(quarantine.unwrap_or_default());
        doubt.says_anything().then_some(doubt)
    }

    /// How many releases that are owed may still find a key at `now`.
    pub(super) fn debts_awake_at(&self, now: Moment) -> usize {
        self.debts.awake_at(now)
    }

    /// How many releases are owed.
    pub(super) fn debts_awake(&self) -> usize {
        self.debts.awake()
    }
}

/// Who the server is, and whether its votes count.
impl Node {
    pub(super) fn run_id(&self) -> Option<&Arc<str>> {
        self.identity.server.run_id.as_ref()
    }

    pub(super) fn server_version(&self) -> Option<Arc<str>> {
        self.identity.server.version.clone()
    }

    pub(super) fn has_seen(&self, run_id: &str) -> bool {
        self.identity.has_seen(run_id)
    }

    /// The node that is the same server, if one is.
    pub(super) fn duplicate_of(&self) -> Option<usize> {
        self.identity.duplicate_of
    }

    pub(super) fn set_duplicate(&mut self, of: Option<usize>) {
        self.identity.duplicate_of = of;
    }

    /// Why the server must not vote, if so.
    pub(super) fn unfit(&self) -> Option<Unfit> {
        self.identity.unfit()
    }

    /// The handshake is complete, and the server may vote.
    pub(super) fn become_ready(&mut self, now: Moment) -> Recognised {
        self.state = State::Ready;
        self.ready_at = now;
        // Debts of a lost connection are settled before any new command (R12).
        self.debts.start();
        let config = &self.config.nodes[self.index];
        let recognised = self.identity.recognise(now, config, self.config.quarantine);
        if let Process::Other(process) = &recognised.process {
            self.debts.other_processes_gone(process, now.after(self.config.quarantine));
        }
        recognised
    }

    /// The native release command to try.
    pub(super) fn native_release(&self) -> ReleaseWith {
        self.identity.server.native_release()
    }

    /// Stops counting the node's votes until then, if they are guarded. Returns whether they
    /// counted sooner before.
    pub(super) fn quarantine(&mut self, cause: QuarantineCause, until: Moment) -> bool {
        self.is_guarded() && self.identity.quarantine(cause, until)
    }

    pub(super) fn is_quarantined(&self, now: Moment) -> bool {
        self.identity.is_quarantined(now)
    }

    pub(super) fn quarantined_until(&self) -> Option<Moment> {
        self.identity.quarantined_until()
    }

    /// Why the node's votes do not count at `now`, and for how much longer.
    pub(super) fn quarantine_at(&self, now: Moment) -> Option<Quarantine> {
        self.identity.quarantine_at(now)
    }
}

/// Checks of the server's clock and role, if the restart guard is on.
impl Node {
    fn is_guarded(&self) -> bool {
        self.settings().restart_guard != RestartGuard::Off
    }

    /// Whether the server reports its role. A role that it does not report is not asked for again.
    fn tells_role(&self) -> bool {
        self.identity.server.replication.master.is_some()
    }

    pub(super) fn is_clock_due(&self, now: Moment) -> bool {
        self.is_guarded() && self.clock.is_due(now)
    }

    pub(super) fn is_role_due(&self, now: Moment) -> bool {
        self.is_guarded() && self.tells_role() && self.clock.is_role_due(now)
    }

    /// No check is due before this moment.
    pub(super) fn check_due(&self, now: Moment) -> Option<Moment> {
        let role = self.tells_role().then(|| self.clock.role_due());
        let due = [self.clock.due(now), role].into_iter().flatten().min();
        due.filter(|_| self.is_guarded())
    }

    /// Notes that the server is asked for its time. Returns whether it is to be asked.
    pub(super) fn ask_time(&mut self, now: Moment) -> bool {
        self.is_guarded() && self.clock.ask_time(now)
    }

    /// Notes that the server is asked for its role. Returns whether it is to be asked.
    pub(super) fn ask_role(&mut self, now: Moment) -> bool {
        let is_asked = self.is_guarded() && self.tells_role();
        if is_asked {
            self.clock.ask_role(now);
        }
        is_asked
    }

    /// The server refused a SET: a client waits for a lock there.
    pub(super) fn set_refused(&mut self, now: Moment) {
        self.clock.refused(now);
    }

    /// Whether one of the next replies is the server's time.
    pub(super) fn is_telling_time(&self) -> bool {
        self.clock.is_asked()
    }

    /// The reply to a `TIME` that was sent at `sent_at`.
    pub(super) fn handle_time(&mut self, now: Moment, sent_at: Moment, reply: Reply) -> Effect {
        self.clock.answered();
        match reply {
            Reply::Time(said) => {
                let drift = self.config.drift;
                match self.clock.has_jumped(sent_at, now, said, |time| drift.over(time)) {
                    true => Effect::ClockJumped,
                    false => Effect::Nothing,
                }
            }
            Reply::Error(error) => {
                let is_news = self.clock.time_refused(is_forbidden(error.kind));
                self.keep_error(error);
                // The node votes all the same.
                Effect::TimeRefused(is_news.then_some(Notice::SecretClock))
            }
            _ => Effect::UNEXPECTED,
        }
    }

    /// The reply to a repeated check of the role.
    pub(super) fn handle_role(&mut self, reply: Reply) -> Effect {
        let said = match reply {
            Reply::Info(info) => info.replication,
            Reply::Replication(said) => said,
            Reply::Error(error) => {
                let kind = error.kind;
                self.keep_error(error);
                // A temporary error keeps the SET from being granted, too.
                return match is_forbidden(kind) {
                    true => Effect::Fail(NodeOutcome::Server(kind)),
                    false => Effect::Nothing,
                };
            }
            _ => return Effect::UNEXPECTED,
        };
        // Its next handshake will show its new state.
        let fail = |reason| Effect::Fail(NodeOutcome::Unfit(reason));
        self.identity.role_said(said).map_or(Effect::Nothing, fail)
    }

    /// Keeps an error's message for reports.
    pub(super) fn keep_error(&mut self, error: ServerError) {
        self.errors.keep(error, self.config.nodes[self.index].password.as_deref());
    }

    pub(super) fn last_error(&self) -> Option<&ServerError> {
        self.errors.last.as_ref()
    }

    pub(super) fn error_counts(&self) -> ErrorCounts {
        self.errors.counts
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
    /// Its last contribution to a round, and the time since the round's start; `None` for the time
    /// if it was not asked.
    pub last_outcome: Option<(NodeOutcome, Option<Duration>)>,
    /// Why its last connection ended or failed, if one did.
    pub last_failure: Option<NodeOutcome>,
    /// The last error message of the server, without anything that was sent to the server.
    pub last_message: Option<Arc<str>>,
    /// Smoothed time from command to reply. It includes replies within the node's timeout that the
    /// client read when they came, or whose arrival it had noted.
    pub latency: Option<Duration>,
    /// Commands sent and not answered.
    pub in_flight: usize,
    /// Keys of failed attempts that will be deleted as soon as the node can be reached.
    pub debts: usize,
    /// Why and for how long its votes do not count, if it is in quarantine.
    pub quarantine: Option<Quarantine>,
    /// Product and version of the server, if it reports them.
    pub server_version: Option<Arc<str>>,
    /// The random id of the server process, if it reports one.
    pub run_id: Option<Arc<str>>,
    /// The command used for releases on this connection: the script, until a native command was
    /// seen to work.
    pub release_with: ReleaseWith,
    /// The errors of this server, by kind.
    pub errors: ErrorCounts,
}

/// The state of a node's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// No operation has needed the node yet.
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
    /// The node could not be reached; its vote is missing until the next try.
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
