//! One master as the engine sees it. Its parts are in the files beside this one; here is what takes
//! several of them.

mod clock;
mod debts;
mod errors;
mod handshake;
mod identity;
mod link;
mod pipeline;

use std::sync::Arc;
use std::time::Duration;

use clock::ServerClock;
pub(crate) use debts::{CONNECTIONS_MAX, Debt, Due, Origin, Origins};
use debts::{Debts, Here};
pub use errors::ErrorCounts;
use errors::Errors;
pub(super) use errors::is_forbidden;
pub(crate) use handshake::Step;
use identity::Identity;
pub use identity::Notice;
pub(crate) use identity::{Process, Recognised};
use link::Link;
pub(crate) use link::State;
use pipeline::{InFlight, Pipeline};
pub(crate) use pipeline::{Request, SILENCE_MAX};

use super::command::{ReleaseWith, Reply, ServerError};
use super::lease::Doubt;
use super::round::{Claim, Kind, Vote};
use crate::config::{Config, Heal, NodeConfig, RestartGuard};
use crate::moment::Moment;
use crate::outcome::{
    NodeOutcome, NodeReport, Phase, ProtocolError, Quarantine, QuarantineCause, Unfit,
};
use crate::token::LockToken;
use crate::validity::Ttl;

/// What happens to a command for a node that cannot take it at once.
pub(super) enum Route {
    /// It waits for the connection.
    Queue,
    Fail(NodeOutcome),
}

/// What an input leaves to the engine.
pub(super) enum Effect {
    Nothing,
    /// This is the answer to a round's command, and whether some were past their timeout.
    Answered(usize, Reply, bool),
    /// The last step of the handshake was answered.
    Greeted,
    /// The connection must end.
    Fail(NodeOutcome),
    /// An old connection has ended.
    Killed,
    /// The node is to be sent this release command from now on.
    ReleasesWith(ReleaseWith),
    /// What was lost with the connection is to be handled, and the node may be connected again.
    Retry,
    /// Debts are due.
    DebtsDue,
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
    link: Link,
    pipeline: Pipeline,
    debts: Debts,
    identity: Identity,
    clock: ServerClock,
    errors: Errors,
    last_vote: Vote,
}

impl Node {
    pub(super) fn new(config: Arc<Config>, index: usize) -> Node {
        Node {
            link: Link::new(config.connect_timeout),
            pipeline: Pipeline::new(config.node_timeout),
            config,
            index,
            debts: Debts::default(),
            identity: Identity::default(),
            clock: ServerClock::default(),
            errors: Errors::default(),
            last_vote: Vote::PENDING,
        }
    }

    pub(super) fn state(&self) -> State {
        self.link.state()
    }

    /// Whether it is ready, and nothing has spoken against it since its last answers.
    #[inline(always)]
    pub(super) fn is_usual(&self) -> bool {
        self.link.is_well() && !self.has_late()
    }

    /// Whether it can be sent commands now.
    pub(super) fn is_open(&self) -> bool {
        self.link.is_open() && !self.debts.has_unsent()
    }

    /// Starts to connect, unless a connection exists or must wait. Returns the deadline if so.
    pub(super) fn connect(&mut self, now: Moment) -> Option<Moment> {
        if self.has_lost() { None } else { self.link.connect(now) }
    }

    /// The requested connection makes progress. Returns its deadline.
    pub(super) fn handle_connecting(&mut self, now: Moment, phase: Phase) -> Option<Moment> {
        self.link.connecting(now, phase)
    }

    /// The requested connection is established: the server behind it is not known yet. Returns the
    /// deadline of the handshake.
    pub(super) fn handle_connected(&mut self, now: Moment) -> Option<Moment> {
        let deadline = self.link.connected(now)?;
        self.identity.reconnect();
        self.clock.reconnect(now);
        self.debts.reconnect();
        Some(deadline)
    }

    /// The handshake is complete, and the server may vote.
    pub(super) fn become_ready(&mut self, now: Moment) -> Recognised {
        self.link.become_ready(now);
        // Debts of a lost connection are settled before any new command (R12).
        self.debts.start();
        let config = &self.config.nodes[self.index];
        let recognised = self.identity.recognise(now, config, self.config.quarantine);
        if let Process::Other(process) = &recognised.process {
            self.debts.other_processes_gone(process, now.after(self.config.quarantine));
        }
        recognised
    }

    /// The connection ends or fails, if there is one. `unsent` are the rounds whose commands were
    /// not handed out. Returns the end of the back-off.
    pub(super) fn fail(
        &mut self,
        now: Moment,
        outcome: NodeOutcome,
        unsent: Vec<usize>,
        random: u64,
    ) -> Moment {
        self.identity.note_last_reply(self.pipeline.last_reply_at);
        self.pipeline.lose(unsent);
        self.debts.stop();
        self.link.fail(now, outcome, random)
    }

    pub(super) fn handle_blocked(&mut self) {
        self.link.block();
    }

    /// Returns whether the socket accepted no bytes before.
    pub(super) fn handle_writable(&mut self) -> bool {
        self.link.unblock()
    }

    /// A reply arrived.
    pub(super) fn handle_reply(&mut self, now: Moment, reply: Reply) -> Effect {
        let was_late = self.has_late();
        let Some(InFlight { request, sent_at }) = self.pipeline.take_answered(now) else {
            return self.handle_unasked(reply);
        };
        match request {
            Request::Handshake(step) => self.handle_greeting(now, step, sent_at, reply),
            Request::Round(round) => Effect::Answered(round, reply, was_late),
            Request::Time => self.handle_time(now, sent_at, reply),
            Request::Role => self.handle_role(reply),
            Request::Kill(connection) => self.handle_killed(now, connection, reply),
            Request::Probe(with) => self.handle_probed(with, reply),
        }
    }

    /// A server with too many clients sends an error before it is asked anything. Any other
    /// unrequested reply would be taken for the answer to a later command.
    fn handle_unasked(&mut self, reply: Reply) -> Effect {
        Effect::Fail(match (self.state(), reply) {
            (State::Handshaking { .. }, Reply::Error(error)) => {
                let kind = error.kind;
                self.keep_error(error);
                NodeOutcome::Server(kind)
            }
            _ => NodeOutcome::Protocol(ProtocolError::Surplus),
        })
    }

    /// A regular answer to a SET or an extension came.
    pub(super) fn note_answer(&mut self) {
        self.link.note_answer();
    }

    /// What a deadline that was reached leaves to be done. Ask after the late commands.
    pub(super) fn handle_timeout(&mut self, now: Moment) -> Effect {
        match self.state() {
            State::Connecting { deadline, .. } | State::Handshaking { deadline }
                if now >= deadline =>
            {
                Effect::Fail(NodeOutcome::TimedOut(self.phase()))
            }
            State::Idle | State::Connecting { .. } | State::Handshaking { .. } => Effect::Nothing,
            State::BackOff { .. } => Effect::Retry,
            State::Ready if self.is_overdue(now) => {
                Effect::Fail(NodeOutcome::TimedOut(Phase::Reply))
            }
            State::Ready if self.debts.due().is_some_and(|due| now >= due) => Effect::DebtsDue,
            State::Ready => Effect::Nothing,
        }
    }

    /// Whether the node has been silent for too long.
    pub(super) fn is_overdue(&self, now: Moment) -> bool {
        let is_ready = self.state() == State::Ready;
        is_ready && self.pipeline.silent_until().is_some_and(|until| now >= until)
    }

    /// When something is due for this node if no input arrives.
    pub(super) fn poll_timeout(&self) -> Option<Moment> {
        match self.state() {
            State::Idle => None,
            State::Connecting { deadline, .. } | State::Handshaking { deadline } => Some(deadline),
            State::BackOff { .. } if self.has_lost() => Some(Moment::START),
            State::BackOff { retry_at } => Some(retry_at),
            State::Ready => self.pipeline.due().into_iter().chain(self.debts.due()).min(),
        }
    }

    /// What happens to a command that cannot be sent at once.
    pub(super) fn route(&self) -> Route {
        match self.state() {
            State::Ready if !self.debts.has_unsent() => Route::Fail(NodeOutcome::Backlogged),
            State::Ready | State::Connecting { .. } | State::Handshaking { .. } => {
                match self.pipeline.has_room() && !self.debts.are_too_many() {
                    true => Route::Queue,
                    false => Route::Fail(NodeOutcome::Backlogged),
                }
            }
            // No queue for a node that is down: its vote is missing at once.
            State::Idle | State::BackOff { .. } => Route::Fail(self.last_failure()),
        }
    }

    pub(super) fn last_failure(&self) -> NodeOutcome {
        self.link.last_failure()
    }

    /// See [`Link::was_ready_since`].
    pub(super) fn was_ready_since(&self, started: Moment) -> bool {
        self.link.was_ready_since(started)
    }

    /// How far the node has got, for the report of a timeout.
    pub(super) fn phase(&self) -> Phase {
        self.link.phase()
    }

    pub(super) fn note_vote(&mut self, vote: Vote) {
        self.last_vote = vote;
    }

    /// How many commands have not been answered, including releases that are owed.
    pub(super) fn unanswered(&self, now: Moment) -> usize {
        self.pipeline.unanswered() + self.debts.awake_at(now)
    }

    pub(super) fn report(&self, now: Moment, vote: Vote) -> NodeReport {
        let message = match (vote.outcome, &self.errors.last, self.duplicate_of()) {
            (NodeOutcome::Server(kind), Some(error), _) if error.kind == kind => {
                Some(Arc::clone(&error.message))
            }
            (NodeOutcome::Unfit(Unfit::Duplicate), _, Some(first)) => {
                Some(Arc::clone(&self.config.nodes[first].address))
            }
            _ => None,
        };
        NodeReport {
            node: self.index,
            address: Arc::clone(&self.settings().address),
            outcome: vote.outcome,
            latency: vote.latency(),
            message,
            quarantine: self.identity.quarantine_at(now),
        }
    }

    /// Its state as a report, for failures without a round.
    pub(super) fn report_state(&self, now: Moment) -> NodeReport {
        let outcome = match self.state() {
            State::Ready => NodeOutcome::Connected,
            State::Connecting { .. } | State::Handshaking { .. } => {
                NodeOutcome::TimedOut(self.phase())
            }
            State::Idle | State::BackOff { .. } => self.last_failure(),
        };
        self.report(now, Vote::new(outcome, None))
    }

    pub(super) fn status(&self, now: Moment, release_with: ReleaseWith) -> NodeStatus {
        let (vote, server) = (self.last_vote, &self.identity.server);
        let failure = self.last_failure();
        NodeStatus {
            node: self.index,
            address: Arc::clone(&self.settings().address),
            state: match self.is_quarantined(now) {
                true if self.state() == State::Ready => NodeState::Quarantined,
                _ => self.state().into(),
            },
            last_outcome: (vote.outcome != NodeOutcome::Pending)
                .then(|| (vote.outcome, vote.latency())),
            last_failure: (failure != NodeOutcome::NotConnected).then_some(failure),
            last_message: self.errors.last.as_ref().map(|error| Arc::clone(&error.message)),
            latency: self.pipeline.latency(),
            in_flight: self.pipeline.in_flight(),
            debts: self.debts.awake(),
            quarantine: self.identity.quarantine_at(now),
            server_version: server.version.clone(),
            run_id: server.run_id.clone(),
            release_with,
            errors: self.errors.counts,
        }
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
            round_trip: self.pipeline.latency().unwrap_or_default(),
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
        self.debts.wake(now, &here, token, self.state() == State::Ready)
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
    fn handle_killed(&mut self, now: Moment, connection: i64, reply: Reply) -> Effect {
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
    fn handle_probed(&mut self, with: ReleaseWith, reply: Reply) -> Effect {
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
        let is_open = self.pipeline.sent().any(may_set);
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
}

/// Who the server is, and whether its votes count.
impl Node {
    pub(super) fn run_id(&self) -> Option<&Arc<str>> {
        self.identity.server.run_id.as_ref()
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
    fn handle_time(&mut self, now: Moment, sent_at: Moment, reply: Reply) -> Effect {
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
    fn handle_role(&mut self, reply: Reply) -> Effect {
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
