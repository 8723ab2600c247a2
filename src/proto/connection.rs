//! A node's connection: connecting, handshake, loss and reconnect; and the replies on it.

use std::collections::VecDeque;

use super::command::{
    Command, Credentials, Grant, ReleaseWith, Reply, Section, ServerError, ServerInfo,
};
use super::identity::Notice;
use super::node::{HEX_RUN_MAX, InFlight, MESSAGE_CHARS_MAX, Request, State, Step};
use super::round::{Answer, Lost, Vote};
use super::{Engine, NodeSet, Outgoing, smooth};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase, ProtocolError, QuarantineCause, ServerErrorKind, Unfit};
use crate::quorum::Verdict;

/// Why the fast path stopped.
enum FastPath {
    Drained,
    /// This round may be decided now.
    Decided(usize),
    /// This reply needs the general path.
    Unusual(Grant),
}

impl Engine {
    /// Starts to connect to every node that is not connected and not backing off.
    pub fn connect(&mut self, now: Moment) {
        let now = self.clamp(now);
        for node in 0..self.nodes.len() {
            self.wake(now, node);
        }
    }

    /// Reports progress of the requested connection: the host name is being looked up
    /// ([`Phase::Lookup`]), or the socket is being connected ([`Phase::Connect`]).
    pub fn handle_connecting(&mut self, now: Moment, node: usize, phase: Phase) {
        let now = self.clamp(now);
        if let State::Connecting { deadline, .. } = self.nodes[node].state {
            let deadline = self.not_over(now, deadline);
            self.nodes[node].state = State::Connecting { deadline, phase };
        }
    }

    /// The deadline of a connection that made progress. If it has passed, the caller has not called
    /// since; the connection then gets a new deadline.
    fn not_over(&mut self, now: Moment, deadline: Moment) -> Moment {
        let deadline =
            if now < deadline { deadline } else { now.after(self.config.connect_timeout) };
        self.note_due(deadline);
        deadline
    }

    /// The requested connection is established.
    pub fn handle_connected(&mut self, now: Moment, node: usize) {
        let now = self.clamp(now);
        let State::Connecting { deadline, .. } = self.nodes[node].state else {
            return;
        };
        // One deadline covers connection and handshake: a peer that accepts and stays silent costs
        // no more than one that does not accept.
        let deadline = self.not_over(now, deadline);
        self.nodes[node].state = State::Handshaking { deadline };
        let config = &self.config.nodes[node];
        if config.password.is_some() {
            self.outgoing.push_back(Outgoing::Handshake(node, Step::Authenticate));
        }
        if config.db != 0 {
            self.outgoing.push_back(Outgoing::Handshake(node, Step::Select));
        }
        for step in Step::COMMON {
            self.outgoing.push_back(Outgoing::Handshake(node, step));
        }
        self.nodes[node].reconnect(now);
        self.next_check_at = None;
    }

    /// The connection ended, or could not be established.
    pub fn handle_disconnected(&mut self, now: Moment, node: usize, outcome: NodeOutcome) {
        let now = self.clamp(now);
        self.fail_node(now, node, outcome);
    }

    /// The node's name resolved to the address of the node `of`.
    pub fn handle_duplicate(&mut self, now: Moment, node: usize, of: usize) {
        let now = self.clamp(now);
        self.nodes[node].duplicate_of = Some(of);
        self.notice(node, Notice::Unfit(Unfit::Duplicate));
        self.fail_node(now, node, NodeOutcome::Unfit(Unfit::Duplicate));
    }

    /// Call this before you pass in replies that may have waited in the socket: their delay is not
    /// used as latency. `since` is when the first of them had arrived, if that is known. It lasts
    /// until [`reading_in_time`](Engine::reading_in_time).
    pub fn reading_late(&mut self, node: usize, since: Option<Moment>) {
        let at = &mut self.nodes[node];
        if let (Some(since), Some(first)) = (since, at.in_flight.first()) {
            let sample = since.nanos_since(first.sent_at);
            if since >= first.sent_at && sample <= self.node_timeout_nanos {
                at.note_latency(sample);
            }
        }
        at.is_read_late = true;
    }

    /// Ends the effect of [`reading_late`](Engine::reading_late): replies are read as they arrive.
    pub fn reading_in_time(&mut self, node: usize) {
        self.nodes[node].is_read_late = false;
    }

    /// The socket accepts no more bytes, and the caller's buffer is full. The engine sends nothing
    /// to this node until [`handle_writable`](Engine::handle_writable).
    pub fn handle_blocked(&mut self, node: usize) {
        self.nodes[node].blocked = true;
        self.note_open(node);
    }

    /// The socket accepts bytes again.
    pub fn handle_writable(&mut self, now: Moment, node: usize) {
        let now = self.clamp(now);
        let was_blocked = std::mem::take(&mut self.nodes[node].blocked);
        self.note_open(node);
        if was_blocked && self.open.contains(node) {
            self.flush_queue(now, node);
        }
    }

    /// A reply arrived on the node's connection.
    pub fn handle_reply(&mut self, now: Moment, node: usize, reply: Reply) {
        let now = self.clamp(now);
        let mut grant = match reply {
            Reply::Ok => Some(Grant::Ok),
            Reply::Integer(1) => Some(Grant::One),
            reply => return self.handle_any_reply(now, node, reply),
        };
        self.handle_grants(node, 1, || grant.take());
    }

    /// Same as [`handle_reply`](Engine::handle_reply), for many of the most common replies: takes
    /// them from `next` until it returns `None`, at most `replies_max`, at the engine's [latest
    /// time](Engine::last_now). Returns how many more it could have taken.
    #[inline(always)]
    pub fn handle_grants(
        &mut self,
        node: usize,
        replies_max: usize,
        mut next: impl FnMut() -> Option<Grant>,
    ) -> usize {
        let mut left = replies_max;
        loop {
            match self.count_grants(node, &mut left, &mut next) {
                FastPath::Drained => return left,
                FastPath::Decided(round) => self.judge(self.last_now, round),
                FastPath::Unusual(grant) => {
                    self.handle_any_reply(self.last_now, node, grant.into())
                }
            }
        }
    }

    /// The fast path: counts consecutive grants that arrive in time while nothing speaks against
    /// the node. It does what [`handle_any_reply`](Engine::handle_any_reply) would do with each;
    /// but only the last one is a latency sample.
    #[inline(always)]
    fn count_grants(
        &mut self,
        node: usize,
        left: &mut usize,
        mut next: impl FnMut() -> Option<Grant>,
    ) -> FastPath {
        let now = self.last_now;
        let at = &mut self.nodes[node];
        let is_usual = at.state == State::Ready
            && at.late == 0
            && at.failures == 0
            && !self.maybe_quarantined.contains(node)
            && !self.indebted.contains(node);
        let mut latest = None;
        let counted = loop {
            if *left == 0 {
                break FastPath::Drained;
            }
            let Some(grant) = next() else {
                break FastPath::Drained;
            };
            *left -= 1;
            let Some(InFlight { request: Request::Round(round), sent_at }) = at.in_flight.first()
            else {
                break FastPath::Unusual(grant);
            };
            let voted = &mut self.rounds[round];
            let sample = now.nanos_since(sent_at);
            let is_usual = is_usual
                && sample <= self.node_timeout_nanos
                && Grant::is_same(voted.grant, Some(grant))
                && voted.undecided.without(voted.uncounted).contains(node);
            if !is_usual {
                break FastPath::Unusual(grant);
            }
            at.in_flight.drop_first();
            let since_start = now.nanos_since(voted.started);
            let vote = Vote::new(NodeOutcome::Granted, Some(since_start));
            latest = Some((vote, sample));
            voted.undecided.remove(node);
            voted.references -= 1;
            if voted.owner.is_none() {
                if voted.references == 0 {
                    self.rounds.remove(round);
                }
                continue;
            }
            at.votes[round] = vote;
            voted.granted.insert(node);
            voted.tally.grant();
            let is_answered = voted.tally.is_quorum_answered_just_now();
            if is_answered && voted.kind.is_acquisition() && !voted.waited {
                smooth(&mut self.quorum_round_trip_nanos, since_start);
            }
            if voted.tally.verdict() != Verdict::Pending && !voted.decided {
                break FastPath::Decided(round);
            }
        };
        if let Some((vote, sample)) = latest {
            at.last_reply_at = now;
            at.last_vote = vote;
            at.note_latency(sample);
        }
        counted
    }

    #[cold]
    fn handle_any_reply(&mut self, now: Moment, node: usize, reply: Reply) {
        if !self.nodes[node].is_connected() {
            return;
        }
        let late = self.nodes[node].late > 0;
        let Some(answered) = self.nodes[node].take_answered(now, self.node_timeout_nanos) else {
            return self.handle_unasked(now, node, reply);
        };
        // Not before every late command is answered: with a lower bar the node would stay just
        // below it forever.
        if self.nodes[node].late == 0 {
            self.overloaded.remove(node);
        }
        match answered.request {
            Request::Handshake(step) => {
                self.handle_greeting(now, node, step, answered.sent_at, reply);
            }
            Request::Round(round) => {
                self.stats.late_replies += u64::from(late);
                self.handle_answer(now, node, round, reply);
            }
            Request::Time => self.handle_time(now, node, answered.sent_at, reply),
            Request::Role => self.handle_role(now, node, reply),
            Request::Kill(connection) => self.handle_killed(now, node, connection, reply),
            Request::Probe(with) => self.handle_probed(now, node, with, reply),
        }
    }

    /// A server with too many clients sends an error before it is asked anything. Any other
    /// unrequested reply would be taken for the answer to a later command.
    fn handle_unasked(&mut self, now: Moment, node: usize, reply: Reply) {
        let outcome = match (self.nodes[node].state, reply) {
            (State::Handshaking { .. }, Reply::Error(error)) => {
                let kind = error.kind;
                self.keep_error(node, error);
                NodeOutcome::Server(kind)
            }
            _ => NodeOutcome::Protocol(ProtocolError::Surplus),
        };
        self.fail_node(now, node, outcome);
    }

    /// Keeps an error's message for reports, without secrets: some servers repeat what they were
    /// sent.
    pub(super) fn keep_error(&mut self, node: usize, error: ServerError) {
        let message = match &self.config.nodes[node].password {
            Some(password) => error.message.replace(password.as_str(), "***"),
            None => error.message.to_string(),
        };
        let message = without_tokens(&message).into();
        self.nodes[node].errors.count(error.kind);
        self.nodes[node].last_error = Some(ServerError { message, ..error });
    }

    fn handle_greeting(
        &mut self,
        now: Moment,
        node: usize,
        step: Step,
        sent_at: Moment,
        reply: Reply,
    ) {
        if let Reply::Error(error) = reply {
            return self.handle_greeting_refused(now, node, step, sent_at, error);
        }
        match (step, reply) {
            (Step::Authenticate | Step::Select | Step::SetName, Reply::Ok) => {}
            (Step::ClientId, Reply::Integer(id)) => self.nodes[node].client_id = Some(id),
            (Step::Info(_), Reply::Info(info)) => self.nodes[node].server.add(*info),
            (Step::Info(Section::Replication), Reply::Replication(said)) => {
                self.nodes[node].server.replication = said;
            }
            (Step::Time, time) => self.handle_time(now, node, sent_at, time),
            (Step::Probe, Reply::Integer(0)) => self.finish_handshake(now, node),
            _ => self.fail_node(now, node, NodeOutcome::Protocol(ProtocolError::Unexpected)),
        }
    }

    fn handle_greeting_refused(
        &mut self,
        now: Moment,
        node: usize,
        step: Step,
        sent_at: Moment,
        mut error: ServerError,
    ) {
        let kind = error.kind;
        // The probe's key prefix may be outside the user's permissions; errors of the locks' own
        // keys will show that. The server's message names the command, and maybe the user, or what
        // may not be accessed.
        let is_foreign_key =
            kind == ServerErrorKind::Permission && error.message.contains(" access ");
        if step == Step::Authenticate {
            // The code is enough, and the rest may contain the password in another form.
            error.message = error.message.split(' ').next().unwrap_or_default().into();
        }
        if step == Step::Time && !denies_service(kind) {
            return self.handle_time(now, node, sent_at, Reply::Error(error));
        }
        self.keep_error(node, error);
        match step {
            // Name and id are optional, and some servers have neither.
            Step::SetName | Step::ClientId if !denies_service(kind) => {}
            // What the server does not report cannot be relied on.
            Step::Info(_) if is_forbidden(kind) => {
                let version = self.nodes[node].server.version.take();
                self.nodes[node].server = ServerInfo { version, ..ServerInfo::default() };
            }
            Step::Probe => {
                self.nodes[node].runs_no_scripts = is_forbidden(kind) && !is_foreign_key;
                // A replica and a loading server refuse the script as well.
                let reason = match kind {
                    ServerErrorKind::ReadOnly => Some(Unfit::Replica),
                    ServerErrorKind::Loading => Some(Unfit::Loading),
                    ServerErrorKind::Cluster => Some(Unfit::Cluster),
                    _ => None,
                };
                match reason {
                    Some(reason) => self.fail_node(now, node, NodeOutcome::Unfit(reason)),
                    None if is_forbidden(kind) => self.finish_handshake(now, node),
                    None => self.fail_node(now, node, NodeOutcome::Server(kind)),
                }
            }
            _ => self.fail_node(now, node, NodeOutcome::Server(kind)),
        }
    }

    fn handle_answer(&mut self, now: Moment, node: usize, round: usize, reply: Reply) {
        let kind = self.rounds[round].kind;
        let Some(outcome) = self.outcome(now, node, round, reply) else {
            return;
        };
        // Not for a release: the client itself sends owed releases after each reconnect, and a node
        // that answers nothing else is of no use.
        if !kind.is_release() {
            self.nodes[node].failures = 0;
        }
        if outcome == NodeOutcome::Held {
            self.refused(now, node);
        }
        self.count(now, round, node, outcome);
        self.dereference(round);
    }

    /// The meaning of an answer. `None` if it was an error or makes no sense; it is then fully
    /// handled.
    fn outcome(
        &mut self,
        now: Moment,
        node: usize,
        round: usize,
        reply: Reply,
    ) -> Option<NodeOutcome> {
        let kind = self.rounds[round].kind;
        if let Reply::Error(error) = reply {
            self.handle_error(now, node, round, error);
            return None;
        }
        let Some(answer) = kind.answer(&reply, self.config.flush_marker.is_some()) else {
            let outcome = NodeOutcome::Protocol(ProtocolError::Unexpected);
            // Before the vote, so that commands that follow from it are not sent on this
            // connection.
            self.fail_node(now, node, outcome);
            self.owe(now, node, round, Lost::Sent);
            self.vote(now, round, node, outcome);
            self.dereference(round);
            return None;
        };
        Some(match answer {
            Answer::Set => NodeOutcome::Granted,
            Answer::Healed => {
                self.stats.healed += 1;
                NodeOutcome::Granted
            }
            Answer::Present => {
                if self.indebted.contains(node) {
                    self.observe_key(now, node, round);
                }
                NodeOutcome::Granted
            }
            Answer::Refused => kind.refusal(),
            // A flush deletes the marker with the locks. A copy that this command has set is
            // younger than what was deleted.
            Answer::Flushed(left) => {
                let until = now.after(left).after(self.config.drift.over(left));
                self.quarantine(node, QuarantineCause::Flushed, until);
                NodeOutcome::Quarantined
            }
        })
    }

    /// Counts a node's answer, unless the node is or was in quarantine, or its copy is in doubt.
    fn count(&mut self, now: Moment, round: usize, node: usize, outcome: NodeOutcome) {
        let is_counted = !self.rounds[round].uncounted.contains(node)
            && !self.is_quarantined(now, node)
            && !self.is_doubted(now, node, round);
        if is_counted || outcome.is_failure() {
            return self.vote(now, round, node, outcome);
        }
        self.stats.uncounted += 1;
        self.vote(now, round, node, NodeOutcome::Quarantined);
    }

    /// An error is no vote, and means that the command was not executed.
    fn handle_error(&mut self, now: Moment, node: usize, round: usize, error: ServerError) {
        let kind = error.kind;
        self.stats.server_errors += 1;
        self.keep_error(node, error);
        let asked = self.rounds[round].kind;
        let outcome = match kind {
            // The key holds a value of another type, which is not ours.
            ServerErrorKind::WrongType => asked.refusal(),
            _ => NodeOutcome::Server(kind),
        };
        if asked.is_release() && outcome.is_failure() {
            self.note_refusal(node, kind);
            self.owe_refused(now, node, round);
        }
        self.count(now, round, node, outcome);
        self.dereference(round);
        // The connection's state has changed since its handshake: reconnect.
        if matches!(kind, ServerErrorKind::ReadOnly | ServerErrorKind::Auth) {
            self.fail_node(now, node, NodeOutcome::Server(kind));
        }
    }

    /// Starts to connect, unless a connection exists or must wait.
    pub(super) fn wake(&mut self, now: Moment, node: usize) {
        match self.nodes[node].state {
            State::Idle => {}
            State::BackOff { retry_at } if now >= retry_at && self.nodes[node].lost.is_empty() => {}
            State::BackOff { .. }
            | State::Connecting { .. }
            | State::Handshaking { .. }
            | State::Ready => return,
        }
        let deadline = now.after(self.config.connect_timeout);
        self.nodes[node].state = State::Connecting { deadline, phase: Phase::Connect };
        self.note_due(deadline);
        self.outgoing.push_back(Outgoing::Connect(node));
    }

    /// Whether [`handle_timeout`](Engine::handle_timeout) at `now` would close this connection
    /// because the node has been silent for too long. Pass in its replies first.
    pub fn is_overdue(&self, now: Moment, node: usize) -> bool {
        let node = &self.nodes[node];
        node.state == State::Ready && node.silent_until().is_some_and(|until| now >= until)
    }

    pub(super) fn node_timeout(&mut self, now: Moment, node: usize) {
        match self.nodes[node].state {
            State::Idle => {}
            State::Connecting { deadline, phase } if now >= deadline => {
                self.fail_node(now, node, NodeOutcome::TimedOut(phase));
            }
            State::Handshaking { deadline } if now >= deadline => {
                self.fail_node(now, node, NodeOutcome::TimedOut(Phase::Handshake));
            }
            State::Connecting { .. } | State::Handshaking { .. } => {}
            State::BackOff { .. } => {
                self.give_up_lost(now, node);
                self.wake(now, node);
            }
            State::Ready => {
                // The vote is missing; the command keeps its place in the order of replies (R5).
                let mut left = self.share;
                while let Some(request) = self.nodes[node].next_late(now, self.config.node_timeout)
                {
                    if let Request::Round(round) = request {
                        self.vote(now, round, node, NodeOutcome::TimedOut(Phase::Reply));
                    }
                    left -= 1;
                    if left == 0 {
                        break;
                    }
                }
                if self.nodes[node].is_far_behind(now, self.config.node_timeout) {
                    self.overloaded.insert(node);
                }
                if self.is_overdue(now, node) {
                    self.fail_node(now, node, NodeOutcome::TimedOut(Phase::Reply));
                } else if self.nodes[node].debts.due().is_some_and(|due| now >= due) {
                    self.settle_debts(now, node);
                }
            }
        }
    }

    /// Ends a connection. Unanswered commands have failed, and what an unanswered SET or release
    /// may leave behind is recorded as a debt (R12).
    #[cold]
    pub(super) fn fail_node(&mut self, now: Moment, node: usize, outcome: NodeOutcome) {
        let failed = &mut self.nodes[node];
        match failed.state {
            State::Idle | State::BackOff { .. } => return,
            State::Ready => failed.note_end(now),
            State::Connecting { .. } | State::Handshaking { .. } => {}
        }
        failed.note_last_reply();
        failed.last_failure = outcome;
        let retry_at = failed.back_off(now, self.entropy.next_u64());
        failed.blocked = false;
        failed.late = 0;
        failed.has_unsent_debts = false;
        self.overloaded.remove(node);
        self.open.remove(node);
        let in_flight = failed.in_flight.take_all();
        let queue = std::mem::take(&mut failed.queue);
        self.release_with(node, ReleaseWith::Script);
        self.stats.disconnected += 1;
        self.note_due(retry_at);
        let mut lost: VecDeque<(usize, Lost)> = VecDeque::with_capacity(in_flight.len());
        for sent in &in_flight {
            match sent.request {
                Request::Round(round) => lost.push_back((round, Lost::Sent)),
                Request::Handshake(_)
                | Request::Time
                | Request::Role
                | Request::Kill(_)
                | Request::Probe(_) => {}
            }
        }
        self.outgoing.retain_mut(|outgoing| match outgoing {
            Outgoing::Connect(other)
            | Outgoing::Handshake(other, _)
            | Outgoing::Kill(other, _)
            | Outgoing::Probe(other, _) => *other != node,
            Outgoing::Close(_) => true,
            Outgoing::Time(nodes) | Outgoing::Role(nodes) => {
                nodes.remove(node);
                !nodes.is_empty()
            }
            Outgoing::Round(nodes, round) => {
                if nodes.contains(node) {
                    nodes.remove(node);
                    lost.push_back((*round, Lost::Unsent));
                }
                !nodes.is_empty()
            }
        });
        lost.extend(queue.iter().map(|round| (*round, Lost::Unsent)));
        self.outgoing.push_back(Outgoing::Close(node));
        self.nodes[node].lost = lost;
        self.give_up_lost(now, node);
    }

    /// Handles some of the commands that were lost with the connection.
    #[cold]
    fn give_up_lost(&mut self, now: Moment, node: usize) {
        let outcome = self.nodes[node].last_failure;
        for _ in 0..self.share {
            let Some((round, lost)) = self.nodes[node].lost.pop_front() else {
                return;
            };
            self.owe(now, node, round, lost);
            self.vote(now, round, node, outcome);
            self.dereference(round);
        }
        if !self.nodes[node].lost.is_empty() {
            self.note_due(Moment::START);
        }
    }

    /// Sends the commands that waited for the connection, or for the socket to accept more.
    pub(super) fn flush_queue(&mut self, now: Moment, node: usize) {
        for round in std::mem::take(&mut self.nodes[node].queue) {
            if self.is_useless(round) {
                // The key it would set is of no use to anyone now, so it is not sent (R11).
                self.vote(now, round, node, NodeOutcome::TimedOut(Phase::Connect));
            } else {
                self.send(NodeSet::one(node), round);
            }
            self.dereference(round);
        }
    }

    pub(super) fn handshake_command(&self, node: usize, step: Step) -> Command<'_> {
        let config = &self.config.nodes[node];
        match step {
            Step::Authenticate => Command::Authenticate(Credentials {
                user: config.user.as_deref(),
                password: config.password.as_deref().unwrap_or_default(),
            }),
            Step::Select => Command::Select { db: config.db },
            Step::SetName => Command::SetName,
            Step::ClientId => Command::ClientId,
            Step::Info(section) => Command::Info(section),
            Step::Time => Command::Time,
            Step::Probe => self.probe_command(ReleaseWith::Script),
        }
    }

    pub(super) fn probe_command(&self, with: ReleaseWith) -> Command<'_> {
        Command::Probe { key: self.config.probe_key.as_bytes(), with }
    }
}

/// Whether the server would give the same answer again.
pub(super) fn is_forbidden(kind: ServerErrorKind) -> bool {
    matches!(kind, ServerErrorKind::Permission | ServerErrorKind::UnknownCommand)
}

fn denies_service(kind: ServerErrorKind) -> bool {
    matches!(kind, ServerErrorKind::Auth | ServerErrorKind::MaxClients)
}

/// The text, printable, short, and without anything that looks like a token.
fn without_tokens(text: &str) -> String {
    let mut kept = String::new();
    let mut run = 0;
    for char in text.chars().filter(|char| !char.is_control()) {
        run = if char.is_ascii_hexdigit() { run + 1 } else { 0 };
        kept.push(char);
        if run == HEX_RUN_MAX {
            kept.truncate(kept.len() - HEX_RUN_MAX);
            kept.push('…');
        } else if run > HEX_RUN_MAX {
            kept.pop();
        }
    }
    kept.chars().take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_no_tokens_and_end_somewhere() {
        let hex = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(without_tokens(&format!("ERR bad {hex} there")), "ERR bad … there");
        assert_eq!(without_tokens("ERR \u{0}odd"), "ERR odd");
        assert_eq!(without_tokens(&"z".repeat(5_000)).len(), MESSAGE_CHARS_MAX);
    }
}
