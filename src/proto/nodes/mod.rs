//! All nodes, and what is known of several at once.

mod node;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use crate::proto::index::RoundId;
pub(crate) use node::{
    Effect, Identified, Process, Route, SILENCE_MAX, State, foreign, is_forbidden, passes,
};
pub use node::{ErrorCounts, Node};

use super::command::{ReleaseWith, Section, Trial};
use super::kind::Claim;
use super::limits::ROUNDS_USUAL;
use super::notices::{Notice, Notices};
use super::outgoing::Outgoing;
use super::request::{HandshakeStep, InFlight, Question, Request};
use super::status::NodeStatus;
use super::trial::{Known, Trials};
use crate::config::Config;
use crate::lock_error::{LockError, LockErrorKind};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, QuarantineCause, ServerErrorKind, Unfit};
use crate::quorum::{NODES_MAX, NodeSet};
use crate::validity::Ttl;

/// The most departed processes that are remembered by name.
const FORMER_PROCESSES_MAX: usize = 64;

/// So many commands at most are queued behind one `TIME`, so that they leave in one write with it;
/// those that follow have one of their own.
const BEHIND_ONE_LOOK_MAX: usize = 512;

/// What is asked to see whether a server is still what its handshake said.
const LOOKS: [Question; 3] = [
    Question::Look(Section::Replication),
    Question::Look(Section::Memory),
    Question::Look(Section::Stats),
];

/// Processes that have left a node's address. Each is kept while a vote that it gave there may
/// count, because it may reappear at another node's address.
#[derive(Default)]
struct FormerProcesses {
    known: VecDeque<(Arc<str>, Moment)>,
    /// Until then, any process may be a departed one whose name was dropped.
    unknown_until: Option<Moment>,
}

impl FormerProcesses {
    fn note(&mut self, now: Moment, run_id: Arc<str>, until: Moment) {
        self.known.retain(|(_, until)| !now.is_certainly_past(*until));
        if self.known.len() >= FORMER_PROCESSES_MAX {
            self.unknown_until = self.known.pop_front().map(|(_, until)| until);
        }
        self.known.push_back((run_id, until));
    }

    /// Until when the process must not vote at another address.
    fn until(&self, now: Moment, run_id: &str) -> Option<Moment> {
        let known = self.known.iter().rev().find(|(former, _)| **former == *run_id);
        let until = known.map(|(_, until)| *until).or(self.unknown_until);
        until.filter(|until| !now.is_certainly_past(*until))
    }
}

/// When checks of clocks and roles are due.
#[derive(Default)]
struct Checks {
    /// None is before this moment; `None` if that must be recomputed.
    next_at: Option<Moment>,
    /// The nodes whose `TIME` is not handed out yet. It precedes whatever is queued after it.
    time_queued: NodeSet,
}

/// All nodes, with the commands to send to them. A caller reads them through
/// [`Engine::nodes`](super::Engine::nodes).
pub struct Nodes {
    config: Arc<Config>,
    nodes: Vec<Node>,
    /// What is to be sent, in order.
    pub(super) outbox: VecDeque<Outgoing>,
    pub(super) notices: Notices,
    /// A lower bound on the next deadline. An answer may leave it too early; it is never too late.
    due: Option<Moment>,
    /// An unanswered command makes something due after this time.
    answer_due_nanos: u64,
    /// The shortest time to live by which a lock was extended.
    shortest_ttl: Option<Ttl>,
    /// The nodes that are ready and whose sockets accept more.
    open: NodeSet,
    /// The overloaded nodes: too far behind to be sent a SET or an extension (R18).
    overloaded: NodeSet,
    /// The nodes that may be in quarantine.
    maybe_quarantined: NodeSet,
    /// The nodes on which each native release command was seen to work; the others get the script
    /// (R19).
    native: [(NodeSet, ReleaseWith); 2],
    checks: Checks,
    /// No node need be asked for its time for fencing tokens before this moment.
    next_look_at: Moment,
    former: FormerProcesses,
    pub(super) trials: Trials,
    /// Times that a node was put into quarantine.
    pub(super) quarantines: u64,
}

impl Deref for Nodes {
    type Target = [Node];

    #[inline(always)]
    fn deref(&self) -> &[Node] {
        &self.nodes
    }
}

impl DerefMut for Nodes {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }
}

/// The view of a caller.
impl Nodes {
    /// The number of nodes that are ready to vote.
    pub fn ready(&self) -> usize {
        self.nodes.iter().filter(|node| node.state() == State::Ready).count()
    }

    /// The number of nodes that do not wait for a reconnect after a failure: they are ready,
    /// connecting, or were never connected.
    pub fn hopeful(&self) -> usize {
        self.nodes.iter().filter(|node| !matches!(node.state(), State::BackOff { .. })).count()
    }

    /// Whether there are notices for the operator, for
    /// [`poll_notice`](super::Engine::poll_notice).
    #[inline]
    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// An `Unavailable` error with the state of each at `now`, for failures outside a round.
    pub fn unavailable(&self, now: Moment) -> LockError {
        let nodes = self.nodes.iter().map(|node| node.report_state(now));
        LockError::new(LockErrorKind::Unavailable, 0, nodes.collect())
    }

    /// Two nodes that are the same server, if any: the one that was connected first, and the other
    /// one.
    pub fn duplicates(&self) -> Option<(usize, usize)> {
        let duplicate = |(node, at): (usize, &Node)| {
            let is_duplicate = at.link.last_failure() == NodeOutcome::Unfit(Unfit::Duplicate);
            at.guard.duplicate_of().filter(|_| is_duplicate).map(|first| (first, node))
        };
        self.nodes.iter().enumerate().find_map(duplicate)
    }
}

impl Nodes {
    pub(super) fn new(config: Arc<Config>) -> Nodes {
        let nodes = (0..config.nodes()).map(|node| Node::new(Arc::clone(&config), node)).collect();
        let answer_due = config.node_timeout.min(SILENCE_MAX);
        Nodes {
            nodes,
            outbox: VecDeque::with_capacity(ROUNDS_USUAL),
            notices: Notices::new(config.nodes()),
            due: None,
            answer_due_nanos: u64::try_from(answer_due.as_nanos()).unwrap_or(u64::MAX),
            shortest_ttl: None,
            open: NodeSet::EMPTY,
            overloaded: NodeSet::EMPTY,
            maybe_quarantined: NodeSet::EMPTY,
            native: [ReleaseWith::Delex, ReleaseWith::Delifeq].map(|it| (NodeSet::EMPTY, it)),
            checks: Checks::default(),
            next_look_at: Moment::from_nanos(0),
            former: FormerProcesses::default(),
            trials: Trials::default(),
            quarantines: 0,
            config,
        }
    }

    #[inline]
    pub(super) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Lowers the bound, if a deadline is sooner.
    #[inline]
    pub(super) fn note_due(&mut self, at: Option<Moment>) {
        if let Some(at) = at.filter(|at| self.due.is_none_or(|due| *at < due)) {
            self.due = Some(at);
        }
    }

    /// The first deadline of a node.
    pub(super) fn first_due(&self) -> Option<Moment> {
        self.nodes.iter().filter_map(Node::poll_timeout).min()
    }

    /// Every deadline that was reached was handled: the bound is exact again. `others` is when the
    /// first of what other parts have noted is due.
    #[inline]
    pub(super) fn settle_due(&mut self, others: Option<Moment>) {
        self.due = self.first_due();
        self.note_due(others);
    }

    /// A lock is extended by `ttl`: no node's silence is to be believed for too much of it.
    #[inline]
    pub(super) fn hold(&mut self, ttl: Ttl) {
        if self.shortest_ttl.is_none_or(|shortest| ttl < shortest) {
            self.shortest_ttl = Some(ttl);
            for node in &mut self.nodes {
                let after = node.hold(ttl.as_duration()).as_nanos();
                let after = u64::try_from(after).unwrap_or(u64::MAX);
                self.answer_due_nanos = self.answer_due_nanos.min(after);
            }
            self.note_due(self.first_due());
        }
    }

    /// Records which request the next reply of each of these nodes answers.
    #[inline(always)]
    pub(super) fn hand_out(&mut self, now: Moment, nodes: NodeSet, request: Request) -> NodeSet {
        nodes.iter().for_each(|node| self.nodes[node].pipeline.sent(request, now));
        self.note_due(Some(now.after_nanos(self.answer_due_nanos)));
        nodes
    }

    /// A question is handed out. What is queued from now on is not behind it in the same write.
    pub(super) fn ask(&mut self, now: Moment, nodes: NodeSet, question: Question) -> NodeSet {
        if let Question::Time = question {
            self.checks.time_queued = self.checks.time_queued.without(nodes);
            self.checks.next_at = None;
        }
        self.hand_out(now, nodes, Request::About(question))
    }

    /// Whether a round's command for the node was not handed out yet.
    pub(super) fn is_to_be_sent(&self, node: usize) -> bool {
        self.outbox
            .iter()
            .any(|outgoing| matches!(outgoing, Outgoing::Round(nodes, _) if nodes.contains(node)))
    }

    /// Withdraws the commands for a node that were not handed out. Returns the rounds among them.
    fn withdraw(&mut self, node: usize) -> Vec<RoundId> {
        let mut unsent = Vec::new();
        self.outbox.retain_mut(|outgoing| {
            let (is_left, lost) = outgoing.withdraw(node);
            unsent.extend(lost);
            is_left
        });
        unsent
    }

    #[inline(always)]
    pub(super) fn open(&self) -> NodeSet {
        self.open
    }

    /// The nodes that a round's command can be sent to now.
    #[inline(always)]
    pub(super) fn in_time(&self) -> NodeSet {
        self.open.without(self.overloaded)
    }

    /// Whether nothing speaks against a grant of this node in time: it is none of `others` either.
    #[inline(always)]
    pub(super) fn is_usual(&self, node: usize, mut others: NodeSet) -> bool {
        others.extend(self.maybe_quarantined);
        self.nodes[node].is_usual() && !others.contains(node)
    }
}

/// Connections, and the replies on them.
impl Nodes {
    /// Starts to connect, unless a connection exists or must wait.
    pub(super) fn wake(&mut self, now: Moment, node: usize) {
        if let Some(deadline) = self.nodes[node].connect(now) {
            self.note_due(Some(deadline));
            self.outbox.push_back(Outgoing::Connect(node));
        }
    }

    /// The node is connected: the handshake begins.
    pub(super) fn start_handshake(&mut self, node: usize) {
        let steps: Vec<_> = self.nodes[node].steps().collect();
        self.take_steps(node, steps);
    }

    /// What the server said of itself was read late: it is asked again.
    pub(super) fn repeat_handshake(&mut self, now: Moment, node: usize) {
        let deadline = self.nodes[node].link.extend(now);
        self.note_due(Some(deadline));
        let steps: Vec<_> = self.nodes[node].steps().filter(|step| step.is_repeatable()).collect();
        self.take_steps(node, steps);
    }

    fn take_steps(&mut self, node: usize, steps: Vec<HandshakeStep>) {
        let steps = steps.into_iter();
        self.outbox
            .extend(steps.map(|step| Outgoing::Ask(NodeSet::one(node), Question::Handshake(step))));
        self.checks.next_at = None;
    }

    /// To be called when a node's state changes, or when its socket stops or resumes accepting
    /// bytes.
    pub(super) fn note_open(&mut self, node: usize) {
        match self.nodes[node].is_open() {
            true => self.open.insert(node),
            false => self.open.remove(node),
        }
    }

    /// Takes the request that a reply of the node answers.
    #[inline]
    pub(super) fn take_answered(&mut self, now: Moment, node: usize) -> Option<InFlight> {
        let answered = self.nodes[node].pipeline.take_answered(now);
        // Not before every late command is answered: with a lower bar the node would stay just
        // below it forever.
        if !self.nodes[node].pipeline.has_timed_out() {
            self.overloaded.remove(node);
        }
        answered
    }

    /// A deadline of the node may have come. Call after its late commands.
    #[inline]
    pub(super) fn note_far_behind(&mut self, now: Moment, node: usize) {
        if self.nodes[node].pipeline.is_far_behind(now) {
            self.overloaded.insert(node);
        }
    }

    /// The node's connection ends or fails.
    pub(super) fn fail(&mut self, now: Moment, node: usize, outcome: NodeOutcome, random: u64) {
        // A server may close what has nothing to do. It is reported when it cannot be reached.
        if !(self.nodes[node].is_idle() && matches!(outcome, NodeOutcome::Disconnected(_))) {
            self.notices.stops(now, node, Notice::Silent(outcome));
        }
        let unsent = self.withdraw(node);
        self.checks.time_queued.remove(node);
        let retry_at = self.nodes[node].fail(now, outcome, unsent, random);
        self.note_due(Some(retry_at));
        self.overloaded.remove(node);
        self.open.remove(node);
        self.trials.forget(node);
        self.release_with(node, ReleaseWith::Script);
        self.outbox.push_back(Outgoing::Close(node));
    }

    /// Old connections are to be ended.
    pub(super) fn kill(&mut self, node: usize, connections: Vec<i64>) {
        let kills = connections.into_iter().map(|connection| Outgoing::Kill(node, connection));
        self.outbox.extend(kills);
    }

    /// Something has happened that may make a check of a clock or role due earlier.
    pub(super) fn check_anew(&mut self) {
        self.checks.next_at = None;
    }

    /// Checks the clocks and roles of these nodes again, where due, before they are sent a SET.
    #[inline]
    pub(super) fn check_again(&mut self, now: Moment, nodes: NodeSet) {
        if self.outbox.len() >= BEHIND_ONE_LOOK_MAX && !self.checks.time_queued.is_empty() {
            (self.checks.time_queued, self.checks.next_at) = (NodeSet::EMPTY, None);
        }
        if self.checks.next_at.is_none_or(|due| now >= due) {
            self.check(now, nodes);
        }
    }

    fn check(&mut self, now: Moment, nodes: NodeSet) {
        let unasked = nodes.without(self.checks.time_queued);
        self.checks.next_at = None;
        let queued = self.outbox.len();
        for (among, question) in [(unasked, Question::Time), (nodes, LOOKS[0])] {
            let due = |node: usize| self.nodes[node].guard.check_due(now, question);
            if !among.iter().any(|node| due(node).is_some_and(|due| now >= due)) {
                continue;
            }
            // If one is due, all nodes at once, so that these commands share one write with what
            // follows.
            let is_asked = |node: &usize| self.nodes[*node].guard.check(now, question);
            let asked = among.iter().filter(is_asked).collect();
            match question {
                Question::Time => {
                    self.checks.time_queued.extend(asked);
                    self.outbox.push_back(Outgoing::Ask(asked, question));
                }
                _ => self.outbox.extend(LOOKS.map(|look| Outgoing::Ask(asked, look))),
            }
        }
        if self.outbox.len() == queued {
            // Handing a `TIME` out recomputes this.
            let dues = self.nodes.iter().flat_map(|Node { index, guard, .. }| {
                let is_queued = self.checks.time_queued.contains(*index);
                let clock_due = guard.check_due(now, Question::Time).filter(|_| !is_queued);
                [clock_due, guard.check_due(now, LOOKS[0])]
            });
            self.checks.next_at = Some(dues.flatten().min().unwrap_or(Moment::END));
        }
    }
}

/// What the masters' clocks say, for fencing tokens, and how far away the masters are.
impl Nodes {
    /// Asks nodes for their time that were not asked for long. Where the guard is on, they are
    /// asked more often anyway.
    pub(super) fn look_at_clocks(&mut self, now: Moment) {
        if now < self.next_look_at {
            return;
        }
        let is_asked = |node: &usize| self.nodes[*node].guard.ask_time_rarely(now);
        let clocks: NodeSet = self.open.iter().filter(is_asked).collect();
        if !clocks.is_empty() {
            self.outbox.push_back(Outgoing::Ask(clocks, Question::Time));
        }
        // A node that is connected later is asked then.
        let due = self.open.iter().map(|node| self.nodes[node].guard.look_due(now)).min();
        self.next_look_at = due.unwrap_or(now);
    }

    /// The masters' time in microseconds: the lower median of those clocks that are known.
    /// `None` if none is (F6).
    pub(super) fn time(&self, now: Moment) -> Option<u64> {
        let mut ahead = [0; NODES_MAX];
        let mut known = 0;
        for reported in self.nodes.iter().filter_map(|node| node.guard.ahead()) {
            ahead[known] = reported;
            known += 1;
        }
        let ahead = &mut ahead[..known];
        ahead.sort_unstable();
        let median = ahead.get(known.saturating_sub(1) / 2)?;
        let nanos = median.checked_add_unsigned(now.steady_nanos())?;
        u64::try_from(nanos).ok().map(|nanos| nanos / 1_000)
    }

    /// The time of a round, as far as it is known. A client that waits has few rounds, and the
    /// first of a new one waits for connections: how soon its nodes have answered since tells more.
    pub(super) fn round_trip(&self, rounds_take: Option<Duration>) -> Duration {
        let latencies = self.open.iter().filter_map(|node| self.nodes[node].pipeline.latency());
        rounds_take.into_iter().chain(latencies.max()).min().unwrap_or_default()
    }
}

/// Which commands work on a node: those of a kind of lock, and those that release.
impl Nodes {
    /// Splits `nodes` by what is known there of the script of a claim: returns one group, and puts
    /// the others back at the front of the queue.
    #[inline]
    pub(super) fn tried_alike(
        &mut self,
        nodes: NodeSet,
        round: RoundId,
        trial: Trial,
        claim: &Claim,
    ) -> (NodeSet, Known) {
        let (alike, known) = self.trials.alike(nodes, trial, claim);
        let others = nodes.without(alike);
        if !others.is_empty() {
            self.outbox.push_front(Outgoing::Round(others, round));
        }
        (alike, known)
    }

    /// Splits `nodes` by release command: returns one group and its command, and puts the others
    /// back at the front of the queue. So the release keeps its place on their connections (R10).
    pub(super) fn release_alike(
        &mut self,
        nodes: NodeSet,
        round: RoundId,
    ) -> (NodeSet, ReleaseWith) {
        let mut native = self.native.iter().map(|(able, with)| (nodes.and(*able), *with));
        let alike = native.find(|(alike, _)| !alike.is_empty());
        let (alike, with) = alike.unwrap_or((nodes, ReleaseWith::Script));
        let others = nodes.without(alike);
        if !others.is_empty() {
            self.outbox.push_front(Outgoing::Round(others, round));
        }
        (alike, with)
    }

    /// The release command for this node.
    fn releases_with(&self, node: usize) -> ReleaseWith {
        let native = self.native.iter().find(|(able, _)| able.contains(node));
        native.map_or(ReleaseWith::Script, |(_, with)| *with)
    }

    /// Sets the release command for this node.
    pub(super) fn release_with(&mut self, node: usize, with: ReleaseWith) {
        for (able, native) in &mut self.native {
            match *native == with {
                true => able.insert(node),
                false => able.remove(node),
            }
        }
    }

    /// A node refused a release. If it would refuse the same command again, the next try uses the
    /// script. A node that accepts no writes refuses to delete even an absent key; the script finds
    /// that the key is absent.
    pub(super) fn note_refusal(&mut self, node: usize, kind: ServerErrorKind) {
        let takes_no_writes =
            matches!(kind, ServerErrorKind::Misconfigured | ServerErrorKind::NoReplicas);
        if is_forbidden(kind) || takes_no_writes {
            self.release_with(node, ReleaseWith::Script);
        }
    }

    /// What is known of each node here.
    pub(super) fn statuses(&self, now: Moment) -> impl Iterator<Item = NodeStatus> + '_ {
        let nodes = self.nodes.iter().enumerate();
        nodes.map(move |(node, at)| at.status(now, self.releases_with(node)))
    }
}

/// The identity of the servers, and whether their votes count.
impl Nodes {
    /// The handshake is complete: decides whether the server may vote.
    pub(super) fn admit(&mut self, now: Moment, node: usize) -> Result<Identified, Unfit> {
        let duplicate = self.duplicate(node);
        self.nodes[node].guard.set_duplicate(duplicate);
        if let Some(reason) = self.nodes[node].guard.unfit() {
            return Err(reason);
        }
        let identified = self.nodes[node].become_ready(now);
        if identified.is_moved {
            self.notices.note(node, Notice::Moved);
        }
        if let Some(left) = &identified.left {
            self.former.note(now, Arc::clone(left), now.after(self.config.quarantine));
        }
        match &identified.process {
            Process::Unknown => self.notices.note(node, Notice::Unidentified),
            Process::Same => {}
            Process::Other(run_id) => {
                if let Some(until) = self.moved_until(now, node, run_id) {
                    self.quarantine(now, node, QuarantineCause::Moved, until);
                }
            }
        }
        if let Some((cause, until)) = identified.quarantine {
            self.quarantine(now, node, cause, until);
        }
        // What another process had evicted says nothing of locks.
        let has_evicted = self.nodes[node].guard.has_evicted();
        if has_evicted && matches!(identified.process, Process::Same) {
            self.quarantine_anew(now, node, QuarantineCause::Evicted);
        }
        if let Some(until) = identified.flushed_until {
            self.quarantine(now, node, QuarantineCause::Flushed, until);
        }
        if !self.nodes[node].guard.is_quarantined(now) {
            self.notices.votes(node);
        }
        Ok(identified)
    }

    /// The node can be asked whether its native release command works.
    pub(super) fn probe(&mut self, node: usize) {
        let native = self.nodes[node].guard.native_release();
        if native != ReleaseWith::Script {
            self.outbox.push_back(Outgoing::Ask(NodeSet::one(node), Question::Probe(native)));
        }
    }

    /// Another node with the same process. Only ready nodes are considered: a process may legally
    /// have moved here from an address that is dead (R34).
    fn duplicate(&self, node: usize) -> Option<usize> {
        let run_id = self.nodes[node].guard.run_id()?;
        (0..self.nodes.len()).find(|other| {
            let at = &self.nodes[*other];
            *other != node && at.state() == State::Ready && at.guard.run_id() == Some(run_id)
        })
    }

    /// Until when a process that was at another node's address before must not vote at this one. It
    /// must not be counted for both nodes in one round, nor for a lock that it was counted for
    /// there; and its quarantine continues. It need not be the last process at that address.
    fn moved_until(&self, now: Moment, node: usize, run_id: &str) -> Option<Moment> {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != node);
        let own = now.after(self.config.quarantine);
        others
            .filter(|(_, at)| at.guard.has_seen(run_id))
            .map(|(_, at)| at.guard.quarantined_until().unwrap_or(own))
            .map(|until| if own.is_certainly_past(until) { own } else { until })
            .chain(self.former.until(now, run_id))
            .max_by_key(|until| until.steady_nanos())
    }

    /// The server has told of a flush: its votes do not count from now on, until it is known what
    /// was flushed.
    #[cold]
    pub(super) fn note_flush(&mut self, node: usize) {
        if let Some(is_asked) = self.nodes[node].guard.note_flush() {
            self.maybe_quarantined.insert(node);
            if is_asked {
                self.ask_marker(node);
            }
        }
    }

    /// Asks what was flushed: who the server is now, if it says so, and the marker.
    pub(super) fn ask_marker(&mut self, node: usize) {
        let role = self.nodes[node].guard.reports_role().then_some(LOOKS[0]);
        for question in role.into_iter().chain([Question::Marker]) {
            self.outbox.push_back(Outgoing::Ask(NodeSet::one(node), question));
        }
    }

    /// Stops counting the node's votes until then.
    pub(super) fn quarantine(
        &mut self,
        now: Moment,
        node: usize,
        cause: QuarantineCause,
        until: Moment,
    ) {
        if self.nodes[node].guard.quarantine(cause, until) {
            self.notices.stops(now, node, Notice::Quarantined(cause));
            self.quarantines += 1;
            self.maybe_quarantined.insert(node);
        }
    }

    /// As [`quarantine`](Nodes::quarantine), for the whole time.
    pub(super) fn quarantine_anew(&mut self, now: Moment, node: usize, cause: QuarantineCause) {
        self.quarantine(now, node, cause, now.after(self.config.quarantine));
    }

    /// Whether the node's votes count.
    pub(super) fn is_trusted(&self, now: Moment, node: usize) -> bool {
        !self.nodes[node].guard.is_quarantined(now)
    }

    /// Those of these nodes whose answers to what is sent now do not count.
    #[inline]
    pub(super) fn quarantined_of(&mut self, now: Moment, nodes: NodeSet) -> NodeSet {
        let mut quarantined = NodeSet::EMPTY;
        for node in nodes.and(self.maybe_quarantined).iter() {
            let guard = &self.nodes[node].guard;
            if guard.is_sent_in_vain(now) {
                quarantined.insert(node);
            } else if !guard.is_in_doubt() {
                self.maybe_quarantined.remove(node);
                self.notices.votes(node);
            }
        }
        quarantined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_left_twice_counts_from_the_second_time() {
        let at = |millis: u64| Moment::from_nanos(millis * 1_000_000);
        let mut former = FormerProcesses::default();
        former.note(at(0), "a".into(), at(10_000));
        former.note(at(5_000), "a".into(), at(15_000));
        assert_eq!(former.until(at(6_000), "a"), Some(at(15_000)));
        assert_eq!(former.until(at(12_000), "a"), Some(at(15_000)));
    }
}
