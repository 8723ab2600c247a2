//! One master as the engine sees it. Its parts are in the files beside this one; here is what takes
//! several of them.

mod errors;
mod guard;
mod handshake;
mod link;
mod pipeline;
mod suspicion;

use std::sync::Arc;
use std::time::Duration;

use crate::proto::index::RoundId;
pub use errors::ErrorCounts;
pub(crate) use errors::foreign;
use errors::{Errors, LastError};
pub(crate) use errors::{is_forbidden, passes};
use guard::Found;
use guard::Guard;
pub(crate) use guard::{Identified, Process};
use handshake::is_value;
use link::Link;
pub(crate) use link::State;
use pipeline::Pipeline;
pub(crate) use pipeline::SILENCE_MAX;
use suspicion::Suspicion;

use crate::config::{Config, Credentials, Login};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, NodeReport, Phase, ProtocolError, QuarantineCause, Unfit};
use crate::proto::command::{Foreign, ReleaseWith, Replication, Reply, Section, ServerError};
use crate::proto::kind::Vote;
use crate::proto::notices::Notice;
use crate::proto::request::Question;
use crate::proto::status::{NodeState, NodeStatus};

/// What to try if a server ended the connection without a word.
const MAYBE_TLS: &str = "it closed the connection without an answer: check that a server listens \
                         behind the port (of a proxy or a container), or write rediss:// if this \
                         port speaks TLS";
const NOTHING_BEHIND: &str = "it closed the connection without an answer: check that a server \
                              listens behind the port (of a proxy or a container) and speaks TLS";

/// What happens to a command for a node that cannot take it at once.
pub(crate) enum Route {
    /// It waits for the connection.
    Queue,
    Fail(NodeOutcome),
}

/// What an input leaves to the engine.
#[derive(Clone, Copy)]
pub(crate) enum Effect {
    Nothing,
    /// The last step of the handshake was answered.
    HandshakeDone,
    /// The same, so late that what the server said of itself is of no use.
    RepeatHandshake,
    /// The connection must end.
    Fail(NodeOutcome),
    /// An old connection has ended.
    Killed,
    /// The node is to be sent this release command from now on.
    ReleasesWith(ReleaseWith),
    /// What was lost with the connection is to be handled, and the node may be connected again.
    Retry,
    /// A second connection is to be opened beside the silent one.
    Suspect,
    /// The server's wall clock has jumped forward.
    ClockJumped,
    /// The server did not tell its time. The notice is for the operator.
    TimeRefused(Option<Notice>),
    /// The server is to be asked for the marker again.
    AskMarker,
    /// The server may have lost locks, for this reason.
    Lost(QuarantineCause),
}

impl Effect {
    pub(crate) const UNEXPECTED: Effect =
        Effect::Fail(NodeOutcome::Protocol(ProtocolError::Unexpected));
}

/// One master as the engine sees it. A caller reads it through
/// [`Engine::node`](crate::proto::Engine::node).
pub struct Node {
    config: Arc<Config>,
    pub(crate) index: usize,
    pub(crate) link: Link,
    pub(crate) pipeline: Pipeline,
    suspicion: Suspicion,
    pub(crate) guard: Guard,
    errors: Errors,
    last_vote: Vote,
    /// For the next handshake.
    pub(crate) credentials: Option<Credentials>,
}

impl Node {
    pub(crate) fn new(config: Arc<Config>, index: usize) -> Node {
        let credentials = match &config.nodes[index].login {
            Login::Fixed(credentials) => Some(credentials.clone()),
            Login::None | Login::Asked { .. } => None,
        };
        Node {
            link: Link::new(config.connect_timeout),
            pipeline: Pipeline::new(config.node_timeout),
            suspicion: Suspicion::new(config.node_timeout, config.connect_timeout),
            guard: Guard::new(Arc::clone(&config), index),
            config,
            index,
            errors: Errors::default(),
            last_vote: Vote::PENDING,
            credentials,
        }
    }

    fn password(&self) -> Option<&str> {
        self.credentials.as_ref().map(|it| &*it.password)
    }

    /// The handshake is complete, and the server may vote.
    pub(crate) fn become_ready(&mut self, now: Moment) -> Identified {
        self.link.become_ready(now);
        let config = &self.config.nodes[self.index];
        let quarantine = self.config.quarantine;
        let mut identified =
            self.guard.identity.identify(now, config, quarantine, &self.guard.sightings);
        if let (Some((QuarantineCause::Promoted, _)), true) =
            (identified.quarantine, self.guard.asks_for_sighting())
        {
            let server = &self.guard.identity.server;
            if let (Some(run_id), Some(history)) = (&server.run_id, server.replication.history) {
                identified.is_news = self.guard.sightings.is_news(run_id, history);
            }
        }
        let is_same = matches!(identified.process, Process::Same);
        identified.flushed_until = self.guard.flushed_until(now, is_same);
        identified
    }

    /// The connection ends or fails, if there is one. `unsent` are the rounds whose commands were
    /// not handed out. Returns the end of the back-off.
    pub(crate) fn fail(
        &mut self,
        now: Moment,
        outcome: NodeOutcome,
        unsent: Vec<RoundId>,
        random: u64,
    ) -> Moment {
        if let (Some(words), true) = (self.link.foreign.take(), is_of_peer(outcome)) {
            self.errors.keep_text(outcome, words);
        }
        self.errors.note_failure(outcome);
        self.guard.identity.note_last_reply(self.pipeline.last_reply_at);
        self.pipeline.lose(unsent);
        self.link.fail(now, outcome, random)
    }

    /// The reply to a question about the server.
    #[inline]
    pub(crate) fn handle_reply(
        &mut self,
        now: Moment,
        asked: Question,
        sent_at: Moment,
        reply: Reply,
    ) -> Effect {
        match asked {
            Question::Handshake(step) => self.handle_handshake_reply(now, step, sent_at, reply),
            Question::Time => self.handle_time(now, sent_at, reply),
            Question::Look(section) => self.handle_look(section, reply),
            Question::Marker => self.handle_marker(reply),
            Question::Probe(with) => self.handle_probed(with, reply),
            Question::Sight => self.handle_sighted(reply),
        }
    }

    /// A server with too many clients sends an error before it is asked anything. Any other
    /// unrequested reply would be taken for the answer to a later command.
    pub(crate) fn handle_unasked(&mut self, reply: Reply) -> Effect {
        Effect::Fail(match (self.state(), reply) {
            (State::Handshaking { .. }, Reply::Error(error)) => {
                let kind = error.kind;
                self.keep_error(error);
                NodeOutcome::Server(kind)
            }
            _ => NodeOutcome::Protocol(ProtocolError::Surplus),
        })
    }

    /// What a deadline that was reached leaves to be done. Ask after the late commands.
    #[inline]
    pub(crate) fn handle_timeout(&mut self, now: Moment) -> Effect {
        match self.state() {
            State::Connecting { deadline, .. } | State::Handshaking { deadline }
                if now >= deadline =>
            {
                Effect::Fail(NodeOutcome::TimedOut(self.link.phase()))
            }
            State::Connecting { .. } if self.suspicion.next_at().is_some_and(|at| now >= at) => {
                self.suspicion.choose(now);
                Effect::Suspect
            }
            State::Idle | State::Connecting { .. } | State::Handshaking { .. } => Effect::Nothing,
            State::BackOff { .. } => Effect::Retry,
            State::Ready => {
                if self.is_lost(now) {
                    return Effect::Fail(NodeOutcome::TimedOut(Phase::Reply));
                }
                let is_silent = self.silence_due().is_some_and(|due| now >= due);
                let since = self.pipeline.silent_since().filter(|_| is_silent);
                match since.is_some_and(|since| self.suspicion.look(now, since)) {
                    true => Effect::Suspect,
                    false => Effect::Nothing,
                }
            }
            State::Limited if self.pipeline.is_lost(now) => {
                Effect::Fail(NodeOutcome::TimedOut(Phase::Reply))
            }
            State::Limited => Effect::Nothing,
        }
    }

    /// Whether [`handle_timeout`](crate::proto::Engine::handle_timeout) at `now` would close the
    /// connection, or ask for a second one beside it, because the node has been silent for too
    /// long. Pass in its replies first.
    pub fn is_overdue(&self, now: Moment) -> bool {
        match self.state() {
            State::Ready => self.silence_due().is_some_and(|due| now >= due),
            State::Limited => self.pipeline.is_lost(now),
            _ => false,
        }
    }

    /// Whether what it owes has been missing for too long.
    fn is_lost(&self, now: Moment) -> bool {
        self.silence_due().is_some_and(|due| now >= due) && self.pipeline.is_lost(now)
    }

    /// Whether it is ready, and its connection is not about to be ended.
    pub(crate) fn is_kept_ready(&self, now: Moment) -> bool {
        self.state() == State::Ready && !self.is_lost(now)
    }

    /// Whether a command that is queued now is sent on its connection, after what was owed.
    pub(crate) fn takes_what_follows(&self) -> bool {
        self.state() == State::Ready && !self.link.is_settling()
    }

    /// The first of both, if the node stays silent.
    #[inline(always)]
    fn silence_due(&self) -> Option<Moment> {
        Some(self.suspicion.first_due(self.pipeline.silent_since()?))
    }

    /// A lock is extended by `ttl`, the shortest so far. Returns after which silence the connection
    /// is doubted from now on.
    pub(crate) fn hold(&mut self, ttl: Duration) -> Duration {
        self.suspicion.hold(ttl)
    }

    /// Whether an answer on a second connection shows that the first one is lost: it owes replies,
    /// and has been silent since the second one was requested.
    pub fn is_lost_if_another_answers(&self) -> bool {
        let since = self.pipeline.silent_since();
        self.state() == State::Ready
            && since.is_some_and(|since| self.suspicion.has_asked_in(since))
    }

    /// When something is due for this node if no input arrives.
    pub(crate) fn poll_timeout(&self) -> Option<Moment> {
        match self.state() {
            State::Idle => None,
            State::Connecting { deadline, .. } => {
                Some(self.suspicion.next_at().map_or(deadline, |at| at.min(deadline)))
            }
            State::Handshaking { deadline } => Some(deadline),
            State::Limited => {
                self.pipeline.due().into_iter().chain(self.pipeline.silent_until()).min()
            }
            State::BackOff { .. } if self.pipeline.has_lost() => Some(Moment::START),
            State::BackOff { retry_at } => Some(retry_at),
            State::Ready => self.pipeline.due().into_iter().chain(self.silence_due()).min(),
        }
    }

    /// What happens to a command that cannot be sent at once.
    pub(crate) fn route(&self) -> Route {
        match self.state() {
            State::Ready if !self.link.is_settling() => Route::Fail(NodeOutcome::Backlogged),
            State::Ready | State::Connecting { .. } | State::Handshaking { .. } => {
                match self.pipeline.has_room() {
                    true => Route::Queue,
                    false => Route::Fail(NodeOutcome::Backlogged),
                }
            }
            // No queue for a node that is down: its vote is missing at once.
            State::Idle | State::Limited | State::BackOff { .. } => {
                Route::Fail(self.link.last_failure())
            }
        }
    }

    pub(crate) fn report(&self, now: Moment, vote: Vote) -> NodeReport {
        let message = self.words(vote.outcome);
        NodeReport {
            node: self.index,
            address: Arc::clone(&self.guard.settings().address),
            outcome: vote.outcome,
            latency: vote.latency(),
            message,
            quarantine: self.guard.quarantine_at(now),
        }
    }

    /// Its state as a report, for failures without a round.
    pub(crate) fn report_state(&self, now: Moment) -> NodeReport {
        let outcome = match self.state() {
            State::Ready if self.guard.is_quarantined(now) => NodeOutcome::Quarantined,
            // A command is past its timeout, and the next one would probably be as well.
            State::Ready if self.pipeline.has_timed_out() => NodeOutcome::TimedOut(Phase::Reply),
            State::Ready => NodeOutcome::Connected,
            // Its own deadline has not come yet.
            State::Connecting { deadline, .. } | State::Handshaking { deadline }
                if now < deadline =>
            {
                match self.link.last_failure() {
                    NodeOutcome::NotConnected => NodeOutcome::Pending,
                    // It is tried again, for this reason.
                    failure => failure,
                }
            }
            State::Connecting { .. } | State::Handshaking { .. } => {
                NodeOutcome::TimedOut(self.link.phase())
            }
            State::Idle | State::Limited | State::BackOff { .. } => self.link.last_failure(),
        };
        self.report(now, Vote::new(outcome, None))
    }

    /// Its status, but for what other parts know.
    pub(crate) fn status(&self, now: Moment, release_with: ReleaseWith) -> NodeStatus {
        let (vote, server) = (self.last_vote, &self.guard.identity.server);
        let failure = self.link.last_failure();
        NodeStatus {
            node: self.index,
            address: Arc::clone(&self.guard.settings().address),
            state: match self.guard.is_quarantined(now) {
                true if self.state() == State::Ready => NodeState::Quarantined,
                _ => self.state().into(),
            },
            last_outcome: (vote.outcome != NodeOutcome::Pending)
                .then(|| (vote.outcome, vote.latency())),
            last_failure: (failure != NodeOutcome::NotConnected).then_some(failure),
            last_message: self.errors.last.as_ref().map(|error| Arc::clone(error.message())),
            latency: self.pipeline.latency(),
            in_flight: self.pipeline.in_flight(),
            pending_releases: 0,
            quarantine: self.guard.quarantine_at(now),
            server_version: server.version.clone(),
            run_id: server.run_id.clone(),
            release_with,
            errors: self.errors.counts,
            timeouts: self.errors.timeouts,
            refused: self.errors.refused,
            queue: Default::default(),
        }
    }
}

/// The words for an outcome.
impl Node {
    /// The words for an outcome, as reports have them.
    pub fn words(&self, outcome: NodeOutcome) -> Option<Arc<str>> {
        let words = match (outcome, &self.errors.last) {
            (NodeOutcome::Unfit(Unfit::Duplicate), _) => {
                let first = self.guard.duplicate_of()?;
                return Some(Arc::clone(&self.config.nodes[first].address));
            }
            (NodeOutcome::Quarantined, _) => {
                let why = self.guard.sighting_refusal()?;
                let key = self.config.sighting_key.as_bytes().escape_ascii();
                return Some(format!("the key {key}: {why}").into());
            }
            (NodeOutcome::Server(kind), Some(LastError::Server(error))) if error.kind == kind => {
                Some(Arc::clone(&error.message))
            }
            (_, Some(LastError::Failure(of, words))) if *of == outcome => Some(Arc::clone(words)),
            (NodeOutcome::Disconnected(_), _) if self.ended_unheard() => {
                match self.guard.settings().is_unix() {
                    true => None,
                    false if self.guard.settings().is_plain_tcp() => Some(MAYBE_TLS.into()),
                    false => Some(NOTHING_BEHIND.into()),
                }
            }
            (NodeOutcome::TimedOut(phase), _) => {
                let (name, limit) = match phase {
                    Phase::Reply => ("node_timeout", self.config.node_timeout),
                    _ => ("connect_timeout", self.config.connect_timeout),
                };
                let with = match (phase, &self.guard.settings().login) {
                    (Phase::Lookup, Login::Asked { .. }) => " with the question for credentials",
                    _ => "",
                };
                Some(format!("longer than {name} ({limit:?}){with}").into())
            }
            _ => None,
        };
        let endpoint = match &self.link.endpoint {
            _ if !is_of_endpoint(outcome) => return words,
            Some(endpoint) => format!("Sentinels named {endpoint}"),
            None if !self.link.tried.is_empty() => format!("tried {}", self.link.tried.join(", ")),
            None => return words,
        };
        Some(match words {
            Some(words) => format!("{words}; {endpoint}").into(),
            None => endpoint.into(),
        })
    }
}

/// Whether it may be the failure of a server of another kind.
fn is_of_peer(outcome: NodeOutcome) -> bool {
    matches!(
        outcome,
        NodeOutcome::Protocol(_)
            | NodeOutcome::Disconnected(_)
            | NodeOutcome::TimedOut(Phase::Handshake)
    )
}

/// Whether it depends on the server that answers, and counts as its failure.
fn is_of_endpoint(outcome: NodeOutcome) -> bool {
    match outcome {
        NodeOutcome::TimedOut(phase) => phase != Phase::Lookup,
        NodeOutcome::Disconnected(_)
        | NodeOutcome::Tls(_)
        | NodeOutcome::Server(_)
        | NodeOutcome::Protocol(_)
        | NodeOutcome::Unfit(_) => true,
        _ => false,
    }
}

/// What the answers to questions about the server leave to be done.
impl Node {
    /// The reply to a look at what the handshake has judged.
    fn handle_look(&mut self, section: Section, reply: Reply) -> Effect {
        let effect = match (section, reply) {
            (Section::Replication, Reply::Info(info)) => self.judge_role(info.replication),
            (_, Reply::Replication(reported)) => self.judge_role(reported),
            (Section::Memory, Reply::Memory(max, evicts_nothing)) => {
                self.guard.identity.server.note_memory(max, evicts_nothing);
                Effect::Nothing
            }
            (Section::Stats, Reply::Stats(evicted)) => {
                self.guard.identity.server.evicted = evicted;
                self.judge_evictions()
            }
            (_, Reply::Info(info)) => {
                self.guard.identity.server.add(*info);
                self.judge_evictions()
            }
            (_, Reply::Error(error)) => {
                let kind = error.kind;
                self.keep_error(error);
                // A temporary error also keeps the SET from being granted.
                return match is_forbidden(kind) {
                    true => Effect::Fail(NodeOutcome::Server(kind)),
                    // The marker alone does not tell what was flushed.
                    false if section == Section::Replication && self.guard.is_in_doubt() => {
                        Effect::Lost(QuarantineCause::Flushed)
                    }
                    false => Effect::Nothing,
                };
            }
            _ => return Effect::UNEXPECTED,
        };
        // Its next handshake will show its new state.
        match self.guard.unfit() {
            Some(reason) => Effect::Fail(NodeOutcome::Unfit(reason)),
            None => effect,
        }
    }

    fn judge_evictions(&mut self) -> Effect {
        match self.guard.has_evicted() {
            true => Effect::Lost(QuarantineCause::Evicted),
            false => Effect::Nothing,
        }
    }

    fn judge_role(&mut self, reported: Replication) -> Effect {
        let fail = |reason| Effect::Fail(NodeOutcome::Unfit(reason));
        self.guard.identity.note_role(reported).map_or(Effect::Nothing, fail)
    }

    /// The marker after a flush.
    #[cold]
    fn handle_marker(&mut self, reply: Reply) -> Effect {
        match &reply {
            Reply::Error(error) => self.keep_error(error.clone()),
            reply if is_value(reply) => {}
            _ => return Effect::UNEXPECTED,
        }
        match self.guard.flushes.note_found(&reply) {
            Found::Unchanged => Effect::Nothing,
            Found::Unknown => Effect::AskMarker,
            Found::Flushed => Effect::Lost(QuarantineCause::Flushed),
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

    /// The server has stored when this client saw it first, or refused to. It votes all the same.
    #[cold]
    fn handle_sighted(&mut self, reply: Reply) -> Effect {
        match reply {
            Reply::Ok => self.guard.sightings.note_sent(),
            Reply::Error(error) => {
                self.keep_error(error);
                self.note_sighting_refused();
            }
            _ => return Effect::UNEXPECTED,
        }
        Effect::Nothing
    }

    /// The error that was kept last is about the sighting.
    fn note_sighting_refused(&mut self) {
        if let Some(error) = &self.errors.last {
            self.guard.sightings.note_refusal(Arc::clone(error.message()));
        }
    }

    /// Keeps an error's message for reports.
    pub(crate) fn keep_error(&mut self, error: ServerError) {
        self.errors.keep(error, self.credentials.as_ref().map(|it| &*it.password));
    }

    /// Keeps the words for a failure that follows.
    pub(crate) fn keep_failure(&mut self, outcome: NodeOutcome, words: &str) {
        let password = self.credentials.as_ref().map(|it| &*it.password);
        self.errors.keep_failure(outcome, words, password);
    }

    /// Keeps what another kind of server has sent first.
    pub(crate) fn keep_foreign(&mut self, peer: Foreign<'_>) {
        self.link.foreign = Some(errors::foreign(peer, self.password()).into());
    }
}
