//! The Redlock algorithm as a sans-I/O engine: it uses no sockets, reads no clock, and sees no
//! bytes. Its randomness comes from the caller ([`Entropy`]).
//!
//! The caller reports events to an [`Engine`] (`handle_*`, with the time) and asks it what to do
//! (`poll_*`). **After every command and every `handle_*`, call `poll_action` and `poll_done` until
//! they return `None`**:
//!
//! 1. give it commands: [`acquire`](Engine::acquire), [`extend`](Engine::extend),
//!    [`release`](Engine::release);
//! 2. carry out each [`poll_action`](Engine::poll_action) until there is none;
//! 3. take each [`poll_done`](Engine::poll_done), or one operation's
//!    [`take_done`](Engine::take_done), with the clock read just before that call. Only these two
//!    return a lock, and they check its validity at that moment;
//! 4. wait for a connection, a reply, or the moment that [`poll_timeout`](Engine::poll_timeout)
//!    returns, call the matching `handle_*`, and continue with 2.
//!
//! The same engine runs under mio in the [`Multiplexer`](crate::Multiplexer), under a simulation on
//! virtual time, and under a fuzzer.
//!
//! This module is public for programs with their own event loop, and for tests of the algorithm.
//! Until version 1.0 of the crate, it may change incompatibly in any release, except for [`Done`],
//! [`Lease`], [`OpId`] and [`Cancelled`]. Most methods with a `node` panic if there is no such
//! node.

mod acquire;
mod cleanup;
pub(crate) mod command;
mod connection;
mod doubt;
mod event;
mod extend;
mod failure;
mod fifo;
mod index;
mod inspect;
#[cfg(feature = "testing")]
mod invariants;
mod keep;
mod kind;
pub(crate) mod lease;
mod limits;
mod nodes;
mod notices;
mod op_id;
mod operation;
mod outgoing;
mod patience;
mod release;
mod request;
mod smooth;
pub(crate) mod status;
mod terms;
mod timer;
mod trial;
mod voting;
mod wait;

use std::sync::Arc;
use std::time::Duration;

pub use crate::channel::Channel;
pub use crate::fencing::Fencing;
use crate::proto::index::{OpIndex, RoundId};
pub use crate::quorum::NodeSet;
pub use crate::resource::Key;
pub use crate::slots::Slots;
pub use crate::token::Entropy;
pub use crate::validity::Ttl;
pub(crate) use command::ReleaseWith;
pub use command::{
    Command, Counter, Credentials, Expiry, Foreign, Grant, History, KindCommand, KindStep, Marker,
    Notify, Push, Reason, Replication, Reply, Section, SentAs, ServerError, ServerInfo, Shape,
    Sighting, Step, Trial, TrialFirst, WaitMessage, Wakeup,
};
pub(crate) use doubt::{CONNECTIONS_MAX, ConnectionId, ConnectionIds, Doubt};
pub use event::NodeEvent;
pub use lease::Lease;
pub(crate) use lease::Released;
pub use limits::OPERATIONS_MAX;
pub(crate) use nodes::foreign;
pub use nodes::{Node, Nodes};
pub use notices::Notice;
pub use op_id::OpId;
pub use operation::Operations;
pub use patience::Patience;
pub use release::ReleaseHow;
pub(crate) use status::{NodeStatus, Stats};
pub(crate) use terms::Terms;
pub(crate) use voting::rounds_at_once;

use crate::config::Config;
use crate::inspection::Inspection;
use crate::keep_alive::Loss;
use crate::lock_error::LockError;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase};
use crate::quorum::Verdict;
use crate::times::Times;
use cleanup::Cleanup;
use failure::Failure;
use kind::RoundKind;
use nodes::Route;
use operation::{Progress, Task};
use outgoing::Outgoing;
use request::Request;
use voting::{Decision, Voting};
use wait::{Cx, WaitOrder, WaitQueues};

/// From 10 ms up, rounding a timeout by a millisecond does not matter.
const PRECISE_MAX: Duration = Duration::from_millis(10);
/// Most timeouts and losses handled in one call, all nodes together. The rest is due immediately,
/// after the caller's other work.
const WORK_PER_ITERATION_MAX: usize = 512;
/// The same limit for replies, which are cheaper. Replies handled in one call are answered
/// together.
const REPLIES_PER_ITERATION_MAX: usize = 3_072;
/// Every node gets at least this many per call.
const SHARE_MIN: usize = 8;
/// The result of an operation. Only operations that you start have one.
#[must_use = "a lease that is dropped is not released; it only expires"]
#[derive(Debug)]
#[non_exhaustive]
pub enum Done {
    /// An acquisition ended.
    Acquired(Result<Lease, LockError>),
    /// An extension ended. If it failed, the lease keeps its old deadline.
    Extended(Lease, Result<(), LockError>),
    /// A release ended. An error means that fewer nodes than a quorum gave an answer that counts.
    /// Without one, check [`Released::was_held`].
    Released(Result<Released, LockError>),
    /// An inspection ended.
    Inspected(Inspection),
    /// A lock was renewed and is valid until this moment. The renewals continue.
    Renewed(Moment),
    /// A lock is no longer renewed. The lease can still be valid for a while: release it when the
    /// work has stopped.
    Lost(Lease, Box<Loss>),
}

/// The cancelled operation, and the next step for the caller.
#[must_use = "a lease that is dropped is not released; it only expires"]
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation")]
#[non_exhaustive]
pub enum Cancelled {
    /// An acquisition. It holds no lock: the engine releases everything that it acquired, or might
    /// still acquire, on every node.
    Acquisition,
    /// An extension, or a renewed lock. The lock is still held, and the caller can extend or
    /// release it. Its deadline is the old one, or the new one if the extension had succeeded. The
    /// keys on the nodes can live longer.
    Extension(Lease),
    /// A release. It continues, and its result is not reported.
    Release,
    /// An inspection. Its result is not reported.
    Inspection,
    /// Nothing: the operation's result had been taken, or it was cancelled before, or it belongs to
    /// another engine.
    Nothing,
}

/// A request to the event loop.
#[derive(Debug)]
pub enum Action<'a> {
    /// Connect to the node. Then report [`NodeEvent::Connected`], [`Disconnected`] or
    /// [`Duplicate`], optionally after [`Connecting`].
    ///
    /// [`Disconnected`]: NodeEvent::Disconnected
    /// [`Duplicate`]: NodeEvent::Duplicate
    /// [`Connecting`]: NodeEvent::Connecting
    Connect {
        /// The node.
        node: usize,
    },
    /// Open a second connection beside the present one, unless there is one that was opened since
    /// `silent_since` and can still answer. Close an older one, because its answer is no proof
    /// about this silence.
    ///
    /// If the present one is not established yet, the second one goes to the next address of the
    /// name, if there is one. The first of the two to be established is the connection.
    ///
    /// Otherwise the present one is silent. When the server answers on the second one, pass in the
    /// replies on the first one, and report [`NodeEvent::AnsweredBeside`]. Then close the second
    /// one. Close it whenever the first one is closed.
    ConnectBeside {
        /// The node.
        node: usize,
        /// The moment since which the present one has been silent, if it is.
        silent_since: Option<Moment>,
    },
    /// Close the connection, if there is one.
    Close {
        /// The node.
        node: usize,
    },
    /// Send the same command to each of these nodes, after everything sent before.
    Send {
        /// The nodes: never empty.
        nodes: NodeSet,
        /// The command.
        command: Command<'a>,
    },
}

/// The algorithm over all nodes, for any number of operations at once.
///
/// Most methods are of four kinds: commands are plain verbs; inputs are `handle_*`; outputs are
/// `poll_*`; getters change nothing. Time is an argument. If it is earlier than the time of the
/// call before, the engine uses that one.
pub struct Engine {
    config: Arc<Config>,
    entropy: Box<dyn Entropy>,
    last_now: Moment,
    nodes: Nodes,
    cleanup: Cleanup,
    rounds: Voting,
    operations: Operations,
    share: usize,
    replies_share: usize,
    waits: WaitQueues,
    stats: Stats,
    /// In a box: what is used most stays close together.
    times: Box<Times>,
    /// Leases of other engines that became this one's.
    adopted: u64,
    /// Leases of this engine that were let go.
    let_go: u64,
}

impl Engine {
    /// An engine that has not connected to anything yet.
    pub fn new(config: Arc<Config>, mut entropy: Box<dyn Entropy>) -> Engine {
        let count = config.nodes();
        let waits = WaitQueues::new(Arc::clone(&config), entropy.next_u64());
        let nodes = Nodes::new(Arc::clone(&config));
        let cleanup = Cleanup::new(Arc::clone(&config));
        let rounds = Voting::new(Arc::clone(&config));
        Engine {
            config,
            entropy,
            last_now: Moment::from_nanos(0),
            nodes,
            cleanup,
            rounds,
            operations: Operations::new(),
            share: (WORK_PER_ITERATION_MAX / count).max(SHARE_MIN),
            replies_share: (REPLIES_PER_ITERATION_MAX / count).max(SHARE_MIN),
            waits,
            stats: Stats::default(),
            times: Box::default(),
            adopted: 0,
            let_go: 0,
        }
    }

    /// Call this when the moment of [`poll_timeout`](Engine::poll_timeout) has come. It handles
    /// what is due, in bounded portions.
    pub fn handle_timeout(&mut self, now: Moment) {
        self.handle_timeout_of_others(now, NodeSet::EMPTY);
    }

    /// Same as [`handle_timeout`](Engine::handle_timeout), but skips the nodes in `unread`: the
    /// caller has read replies from them that it has not passed in yet, and that may contain the
    /// missing answers.
    pub fn handle_timeout_of_others(&mut self, now: Moment, unread: NodeSet) {
        let now = self.clamp(now);
        let is_noted = |first, noted: Option<Moment>| noted.is_some_and(|due| due <= first);
        debug_assert!(
            self.nodes.first_due().is_none_or(|first| is_noted(first, self.nodes.due()))
                && self
                    .cleanup
                    .first_due(&self.nodes)
                    .is_none_or(|first| is_noted(first, self.nodes.due())),
            "every deadline was noted"
        );
        // Before the first deadline, no node has anything to do.
        if is_noted(now, self.nodes.due()) {
            for node in NodeSet::all(self.nodes.len()).without(unread).iter() {
                self.node_timeout(now, node);
            }
        }
        let mut left = WORK_PER_ITERATION_MAX;
        while let Some(op) = self.operations.take_due(now) {
            match (self.operations[op].progress, &self.operations[op].task) {
                (Progress::Waiting | Progress::Voting(_), Task::Keep { .. }) => {
                    self.handle_kept_due(now, op);
                }
                (Progress::Waiting, _) => self.stop_waiting(now, op),
                (Progress::Voting(round), Task::Acquire { .. }) => self.give_up(now, op, round),
                (Progress::Voting(round), Task::Extend { .. } | Task::Release { .. }) => {
                    self.rounds[round].decided = true;
                    self.operations.conclude(op, Progress::Failed(Failure::Expired, Some(round)));
                }
                (Progress::Voting(round), Task::Inspect { .. }) => {
                    self.rounds[round].decided = true;
                    self.operations.conclude(op, Progress::Won(round));
                }
                (
                    Progress::Won(_)
                    | Progress::Failed(..)
                    | Progress::Refused
                    | Progress::Lost(..),
                    _,
                ) => {}
            }
            left -= 1;
            if left == 0 {
                break;
            }
        }
        self.nodes.settle_due(self.cleanup.first_due(&self.nodes));
        self.operations.settle_due();
    }

    /// Updates the time and returns whether work might be due. If not,
    /// [`handle_timeout`](Engine::handle_timeout) has nothing to do.
    pub fn advance(&mut self, now: Moment) -> bool {
        let now = self.clamp(now);
        self.due().is_some_and(|due| now >= due)
    }

    /// A lower bound on the next deadline.
    #[inline]
    fn due(&self) -> Option<Moment> {
        match (self.nodes.due(), self.operations.due()) {
            (Some(node), Some(timer)) => Some(node.min(timer)),
            (node, timer) => node.or(timer),
        }
    }

    /// The next action. Even after `None`, [`has_actions`](Engine::has_actions) may be true,
    /// because each call discards only a bounded number of useless commands.
    #[inline]
    pub fn poll_action(&mut self) -> Option<Action<'_>> {
        let (now, mut taken_back) = (self.last_now, 0);
        let outgoing = loop {
            match self.nodes.outbox.pop_front()? {
                Outgoing::Round(nodes, round) if self.is_useless(round) => {
                    self.take_back(nodes, round);
                    taken_back += 1;
                    if taken_back == WORK_PER_ITERATION_MAX {
                        return None;
                    }
                }
                Outgoing::Confirm(nodes, round) if self.rounds.is_confirm_useless(now, round) => {
                    let decision =
                        self.rounds.take_back_confirm(now, &mut self.nodes, nodes, round);
                    self.follow_decision(now, decision);
                }
                Outgoing::Wait(_, command) if self.waits.is_wait_over(command) => {}
                outgoing => break outgoing,
            }
        };
        match outgoing {
            Outgoing::Connect(node) => Some(Action::Connect { node }),
            Outgoing::Beside(node) => {
                let silent_since = self.nodes[node].pipeline.silent_since();
                Some(Action::ConnectBeside { node, silent_since })
            }
            Outgoing::Close(node) => Some(Action::Close { node }),
            Outgoing::Kill(node, connection) => {
                let nodes = self.nodes.hand_out(now, NodeSet::one(node), Request::Kill(connection));
                Some(Action::Send { nodes, command: Command::Kill { connection } })
            }
            Outgoing::Ask(nodes, question) => {
                let nodes = self.nodes.ask(now, nodes, question);
                let node = nodes.iter().next().expect("it is for a node");
                Some(Action::Send { nodes, command: self.nodes[node].question_command(question) })
            }
            Outgoing::Round(nodes, round) => {
                let kind = self.rounds[round].kind;
                let (nodes, with) = match kind.is_release() {
                    true => self.nodes.release_alike(nodes, round),
                    false => (nodes, ReleaseWith::Script),
                };
                let claim = self.rounds.claim(round);
                let (nodes, script) = match Trial::before(kind, claim) {
                    Some(trial) => {
                        let (nodes, known) = self.nodes.tried_alike(nodes, round, trial, claim);
                        (nodes, Some((trial, known)))
                    }
                    None => (nodes, None),
                };
                let quarantined = self.nodes.quarantined_of(now, nodes);
                if !quarantined.is_empty() {
                    self.rounds[round].uncounted.extend(quarantined);
                }
                let is_plain = kind != RoundKind::Take;
                let shape = if is_plain { Shape::Vote } else { self.rounds.claim(round).shape() };
                let request = match script {
                    Some((_, known)) => known.request(round, shape),
                    None => Request::Round(round, shape),
                };
                let nodes = self.nodes.hand_out(now, nodes, request);
                let claim = self.rounds.claim(round);
                let fence = || self.rounds.fences.asked(round);
                let command = match claim.key.is_plain() {
                    true => claim.command(kind, with, fence),
                    false => {
                        let owner = self.rounds[round].owner;
                        let is_patient = owner.is_some_and(|op| self.operations.is_patient(op));
                        let intent = is_patient.then(|| self.rounds.intent(&self.nodes, round));
                        claim.lock_kind_command(kind, with, intent.unwrap_or_default())
                    }
                };
                let command = match script {
                    Some((trial, known)) => {
                        command.sent_as(known.sent_as(&self.config.probe_key, trial))
                    }
                    None => command,
                };
                Some(Action::Send { nodes, command })
            }
            Outgoing::ReleaseAtQueue(node, round, notify) => {
                let nodes =
                    self.nodes.hand_out(now, NodeSet::one(node), Request::ReleaseAtQueue(round));
                let claim = self.rounds.claim(round);
                let command = self.waits.local.desk.release_command(claim, notify);
                Some(Action::Send { nodes, command })
            }
            Outgoing::Wait(node, command) => {
                Some(self.waits.hand_out(now, &mut self.nodes, node, command))
            }
            Outgoing::Confirm(nodes, round) => {
                let quarantined = self.nodes.quarantined_of(now, nodes);
                self.rounds[round].uncounted.extend(quarantined);
                let nodes = self.nodes.hand_out(now, nodes, Request::Confirm(round));
                Some(Action::Send { nodes, command: self.rounds.confirm_command(round) })
            }
        }
    }

    /// Discards tokens that were drawn in advance. Call it after a batch of commands was sent, and
    /// after every wait.
    #[inline]
    pub fn forget_randomness(&mut self) {
        self.entropy.forget();
    }

    /// Whether to discard an unsent command. A SET is not sent after its attempt has failed or its
    /// validity has ended (R11), nor an extension that would set a key (R29).
    #[inline]
    fn is_useless(&self, round: RoundId) -> bool {
        let unsent = &self.rounds[round];
        match unsent.kind {
            RoundKind::Acquire | RoundKind::AcquireFenced | RoundKind::Take => {
                unsent.is_abandoned || self.last_now >= unsent.deadline
            }
            // A key that it sets would not be released any more.
            RoundKind::Heal => {
                let lease = unsent.owner.and_then(|op| self.operations.lease_of(op));
                unsent.decided || lease.is_none_or(|lease| !lease.is_valid_at(self.last_now))
            }
            RoundKind::Extend => unsent.is_abandoned,
            RoundKind::Inspect => unsent.owner.is_none(),
            RoundKind::Release => false,
        }
    }

    #[cold]
    fn take_back(&mut self, nodes: NodeSet, round: RoundId) {
        let is_abandoned = self.rounds[round].is_abandoned;
        for node in nodes.iter() {
            if !is_abandoned {
                self.vote(self.last_now, round, node, NodeOutcome::TimedOut(Phase::Reply));
            }
            self.rounds.dereference(round);
        }
    }

    /// The next result. Read `now` just before this call, because the validity of a lock is checked
    /// here.
    #[inline]
    pub fn poll_done(&mut self, now: Moment) -> Option<(OpId, Done)> {
        self.pass_done(now, |id, done| (id, done))
    }

    /// Same as [`poll_done`](Engine::poll_done), but the result is made where `pass` puts it:
    /// moving it costs as much as making it.
    #[inline(always)]
    pub(crate) fn pass_done<T>(
        &mut self,
        now: Moment,
        mut pass: impl FnMut(OpId, Done) -> T,
    ) -> Option<T> {
        // Each iteration takes one operation out of the queue, and none is put back.
        let now = self.clamp(now);
        while let Some(op) = self.operations.pop_ended() {
            let id = self.operations.id_of(op);
            if let Some(passed) = self.finish(now, op, |done| pass(id, done)) {
                return Some(passed);
            }
        }
        None
    }

    /// Same as [`poll_done`](Engine::poll_done), for one operation; `None` if it has not ended or
    /// is unknown.
    #[inline(never)]
    pub fn take_done(&mut self, now: Moment, id: OpId) -> Option<Done> {
        let now = self.clamp(now);
        let op = self.operations.take_ended(id)?;
        let mut taken = None;
        self.finish(now, op, |done| taken = Some(done));
        taken
    }

    /// Passes on the result of an operation that has ended and was taken out of the queue; `None`
    /// if it continues after all.
    #[inline(always)]
    fn finish<T>(&mut self, now: Moment, op: OpIndex, pass: impl FnOnce(Done) -> T) -> Option<T> {
        let passed = match self.operations[op].task {
            Task::Acquire { patience, attempts, started, .. } => {
                let result = self.finish_acquire(now, op, attempts)?;
                if patience.until().is_some() {
                    let won = result.as_ref().ok().copied();
                    let got = won.map(|it| (self.rounds.claim(it).token, self.rounds[it].deadline));
                    self.step_out(now, op, got);
                }
                match result {
                    Ok(won) => {
                        let took = (attempts, now.nanos_since(started));
                        self.times.acquire.record(took.1);
                        let engine = self.operations.instance();
                        pass(Done::Acquired(Ok(self.rounds.lease(won, took, engine))))
                    }
                    Err(error) => pass(Done::Acquired(Err(error))),
                }
            }
            Task::Extend { .. } => {
                let (lease, result) = self.finish_extend(now, op);
                pass(Done::Extended(lease, result))
            }
            Task::Release { was_valid } => {
                let round = self.operations[op].progress.round().expect("it has a round");
                pass(Done::Released(self.rounds.released(now, &self.nodes, round, was_valid)))
            }
            Task::Inspect { ref found } => {
                let round = self.operations[op].progress.round().expect("it has a round");
                let reports = self.rounds.reports(now, &self.nodes, round);
                pass(Done::Inspected(inspect::inspection(reports, found)))
            }
            Task::Keep { .. } => match self.finish_kept(now, op)? {
                // It continues.
                renewed @ Done::Renewed(_) => return Some(pass(renewed)),
                lost => pass(lost),
            },
        };
        let ended = self.operations.end(op);
        debug_assert!(!matches!(ended.progress, Progress::Waiting | Progress::Voting(_)));
        if let Some(round) = ended.progress.round() {
            self.rounds.disown(round);
        }
        Some(passed)
    }

    /// Cancels an operation immediately, and returns what the caller must handle.
    /// [`poll_done`](Engine::poll_done) no longer returns it.
    pub fn cancel(&mut self, now: Moment, id: OpId) -> Cancelled {
        let now = self.clamp(now);
        let Some(op) = self.operations.lookup(id) else {
            return Cancelled::Nothing;
        };
        self.stats.cancelled += 1;
        let progress = self.operations[op].progress;
        let cancelled = match self.operations[op].task {
            Task::Acquire { .. } => {
                if let Progress::Voting(round) | Progress::Won(round) = progress {
                    self.undo(now, round);
                }
                self.step_out(now, op, None);
                Cancelled::Acquisition
            }
            Task::Extend { lease, .. } => match progress {
                Progress::Won(_) | Progress::Failed(..) | Progress::Refused => {
                    Cancelled::Extension(self.finish_extend(now, op).0)
                }
                Progress::Waiting | Progress::Voting(_) | Progress::Lost(..) => {
                    Cancelled::Extension(self.operations.leases.remove(lease))
                }
            },
            Task::Keep { lease, .. } => {
                if let Progress::Won(round) = progress {
                    self.extended(now, lease, round);
                }
                let mut lease = self.operations.leases.remove(lease);
                if let Progress::Failed(Failure::Expired, _) = progress {
                    // A quorum has said that it is over, whatever the clock says.
                    lease.deadline = lease.deadline.min(now);
                }
                Cancelled::Extension(lease)
            }
            Task::Release { .. } => Cancelled::Release,
            Task::Inspect { .. } => Cancelled::Inspection,
        };
        self.operations.cancel(op);
        if let Some(round) = progress.round() {
            self.rounds.disown(round);
        }
        cancelled
    }

    /// When to call [`handle_timeout`](Engine::handle_timeout) if nothing else happens; a past
    /// moment if there are actions to carry out now. It is never too late, and exact right after
    /// `handle_timeout`. Between calls it can be too early, because answers do not update it.
    pub fn poll_timeout(&self) -> Option<Moment> {
        if self.has_actions() { Some(self.last_now) } else { self.due() }
    }

    /// Whether to wait with a precision below a millisecond until
    /// [`poll_timeout`](Engine::poll_timeout): it is the timer of an operation, or the node timeout
    /// is below 10 ms.
    pub fn is_precise(&self) -> bool {
        let is_timer = self.operations.due().is_some_and(|timer| self.due() == Some(timer));
        is_timer || self.config.node_timeout < PRECISE_MAX
    }

    /// The maximum number of replies of one node to pass in before the other nodes have their turn.
    pub fn replies_per_iteration(&self) -> usize {
        self.replies_share
    }

    /// Whether there are actions to carry out.
    pub fn has_actions(&self) -> bool {
        !self.nodes.outbox.is_empty()
    }

    /// The latest time that the engine was given.
    pub fn last_now(&self) -> Moment {
        self.last_now
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        let came = self.stats.acquired + self.adopted;
        let (waits, votes) = (self.waits.local.desk.stats, self.rounds.stats);
        Stats {
            quarantines: self.nodes.quarantines,
            queued: waits.queued,
            notifications_received: waits.notifications_received,
            notifications_sent: waits.notifications_sent,
            skipped: waits.skipped,
            spurious_wakeups: waits.spurious_wakeups,
            requeued: waits.requeued,
            tokens_confirmed: votes.tokens_confirmed,
            server_errors: self.stats.server_errors + waits.server_errors,
            waiting: self.operations.acquisitions().count() as u64,
            held: came - self.stats.released - self.let_go,
            ..self.stats
        }
    }

    /// How long acquisitions took, and locks were held.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// The engine's view of a node.
    ///
    /// # Panics
    /// If there is no such node. For an index from outside, use `nodes().get(node)`.
    #[inline]
    pub fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }

    /// The engine's view of all nodes.
    #[inline]
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The status of each node.
    pub fn statuses(&self) -> impl Iterator<Item = NodeStatus> + '_ {
        self.nodes.statuses(self.last_now).enumerate().map(|(node, status)| NodeStatus {
            pending_releases: self.cleanup.debts_of(node).awake(),
            queue: self.waits.local.desk.at(node),
            ..status
        })
    }

    /// The operations in flight.
    pub fn operations(&self) -> &Operations {
        &self.operations
    }

    /// The number of unanswered commands, including releases that wait for unreachable nodes.
    pub fn unanswered(&self) -> usize {
        let due_releases = |node| self.cleanup.debts_of(node).awake_at(self.last_now);
        let waiting = |node: &Node| node.pipeline.unanswered() + due_releases(node.index);
        let sending = self.nodes.outbox.iter().map(Outgoing::commands);
        self.nodes.iter().map(waiting).chain(sending).sum()
    }

    fn clamp(&mut self, now: Moment) -> Moment {
        if self.last_now < now {
            self.last_now = now;
        }
        self.last_now
    }

    /// Tells what waits of something, and carries out what follows from it.
    #[inline]
    fn with_waits<T>(
        &mut self,
        now: Moment,
        act: impl FnOnce(&mut WaitQueues, &mut Cx<'_>) -> T,
    ) -> T {
        let (nodes, entropy) = (&mut self.nodes, &mut *self.entropy);
        let rounds_take = self.rounds.round_trip();
        let answer = act(&mut self.waits, &mut Cx { now, nodes, entropy, rounds_take });
        if self.waits.local.desk.has_orders() {
            self.follow_waits(now);
        }
        answer
    }

    /// Carries out what waits have left to do.
    #[inline(never)]
    fn follow_waits(&mut self, now: Moment) {
        let mut orders = self.waits.local.desk.take_orders();
        for order in orders.drain(..) {
            match order {
                WaitOrder::Start(id) => {
                    if let Some(op) = self.operations.lookup(id) {
                        self.start_again(now, op);
                    }
                }
                WaitOrder::SleepUntil(id, at) => {
                    if let Some(op) = self.operations.lookup(id) {
                        self.operations.set_timer(op, at);
                    }
                }
                WaitOrder::WakeBy(id, at) => {
                    if let Some(op) = self.operations.lookup(id) {
                        self.operations.hasten(op, at);
                    }
                }
                WaitOrder::LeaveNode(node) => self.waits.visits.lose_node(node),
                WaitOrder::Send(node, command) => {
                    self.nodes.outbox.push_back(Outgoing::Wait(node, command))
                }
            }
        }
        self.waits.local.desk.reuse(orders);
        // Most waits end early: their timers must not wake the thread later.
        self.operations.settle_due();
    }

    /// How many engines are ahead in the queue for this acquisition's lock, as last reported by the
    /// queue node; `None` if it does not wait in a queue.
    pub fn queue_position(&self, id: OpId) -> Option<u32> {
        let (op, ..) = self.operations.patience_of(id)?;
        self.waits.local.position_of(self.key_of(op)?)
    }

    /// Sends the round's command to every node that can take it. A node that cannot has failed.
    fn send_to_all(&mut self, now: Moment, round: RoundId) {
        let kind = self.rounds[round].kind;
        let mut ready = self.cleanup.allowed(self.nodes.in_time(), kind);
        let others = NodeSet::all(self.nodes.len()).without(ready);
        for node in others.iter() {
            if kind.is_inspection() && self.nodes[node].can_only_be_asked() {
                ready.insert(node);
                continue;
            }
            if !kind.is_inspection() {
                self.end_limited(now, node);
            }
            self.nodes.wake(now, node);
            match self.nodes[node].route() {
                Route::Queue if self.cleanup.debts_of(node).is_full() => {
                    self.record(now, round, node, NodeOutcome::Backlogged);
                }
                Route::Queue => self.rounds.wait(&mut self.nodes, round, node),
                Route::Fail(outcome) => self.record(now, round, node, outcome),
            }
        }
        self.send(ready, round);
        if !others.is_empty() {
            self.judge(now, round);
        }
    }

    /// Queues the round's command for these nodes to be sent next.
    #[inline(always)]
    fn send(&mut self, nodes: NodeSet, round: RoundId) {
        if nodes.is_empty() {
            return;
        }
        // A replica that was promoted may have a key that it refused to set (R33).
        if self.rounds[round].kind.is_about_holding() {
            self.nodes.check_again(self.last_now, nodes);
        }
        let count = self.nodes.len();
        let how_many = if nodes == NodeSet::all(count) { count } else { nodes.len() };
        self.rounds.note_sent(round, nodes, how_many);
        self.nodes.outbox.push_back(Outgoing::Round(nodes, round));
    }

    /// Records a node's vote, once (R3).
    fn record(&mut self, now: Moment, round: RoundId, node: usize, outcome: NodeOutcome) {
        self.rounds.record(now, &mut self.nodes, round, node, outcome);
    }

    /// Records a vote and acts if it decides the round.
    #[inline]
    fn vote(&mut self, now: Moment, round: RoundId, node: usize, outcome: NodeOutcome) {
        let decision = self.rounds.vote(now, &mut self.nodes, round, node, outcome);
        self.follow_decision(now, decision);
    }

    /// Acts as soon as the outcome is inevitable, either way (R4).
    fn judge(&mut self, now: Moment, round: RoundId) {
        let decision = self.rounds.judge(now, &mut self.nodes, round);
        self.follow_decision(now, decision);
    }

    /// Acts on what is decided.
    #[inline(always)]
    fn follow_decision(&mut self, now: Moment, decision: Option<Decision>) {
        match decision {
            None => {}
            Some(Decision { op, round, verdict: Verdict::Won }) => {
                self.operations.conclude(op, Progress::Won(round));
            }
            Some(lost) => self.follow_loss(now, lost),
        }
    }

    #[inline(never)]
    fn follow_loss(&mut self, now: Moment, Decision { op, round, verdict }: Decision) {
        debug_assert_eq!(verdict, Verdict::Lost, "nothing else is left to decide");
        let (kind, tally) = (self.rounds[round].kind, self.rounds[round].tally);
        match kind {
            RoundKind::Acquire | RoundKind::AcquireFenced | RoundKind::Take => {
                let failure = acquire::failure(tally);
                if !self.attempt_failed(now, op, round, failure) {
                    self.operations.conclude(op, Progress::Failed(failure, Some(round)));
                }
            }
            RoundKind::Inspect => unreachable!("it waits for all nodes"),
            RoundKind::Extend | RoundKind::Heal | RoundKind::Release => {
                let failure = match tally.refusals_deny_quorum() {
                    true => Failure::Expired,
                    false => Failure::Unavailable,
                };
                self.operations.conclude(op, Progress::Failed(failure, Some(round)));
            }
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (queued, entries) = self.waits.local.sizes();
        f.debug_struct("Engine")
            .field("nodes", &self.nodes.len())
            .field("ready", &self.nodes.ready())
            .field("operations", &self.operations.count())
            .field("rounds", &self.rounds.len())
            .field("queued", &queued)
            .field("places", &entries)
            .finish_non_exhaustive()
    }
}
