//! The inputs about one node: its connection and the replies on it, and what follows from them for
//! rounds and operations.

use super::cleanup::Due;
use super::command::{Grant, Push, Reply, ServerError};
use super::event::NodeEvent;
use super::kind::{Answer, Lost, RoundKind};
use super::nodes::{Effect, State};
use super::notices::Notice;
use super::outgoing::Outgoing;
use super::request::{InFlight, Question, Request, WaitCommand};
use super::{Engine, NodeSet};
use crate::inspection::FoundKey;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase, ProtocolError, QuarantineCause, ServerErrorKind, Unfit};
use crate::proto::index::RoundId;

/// Why the fast path stopped.
enum FastPath {
    Drained,
    /// This round may be decided now.
    Decided(RoundId),
    /// This reply needs the general path.
    Unusual(Grant),
}

impl Engine {
    /// Starts to connect to every node that is not connected and not backing off.
    pub fn connect(&mut self, now: Moment) {
        let now = self.clamp(now);
        for node in 0..self.nodes.len() {
            self.end_limited(now, node);
            self.nodes.wake(now, node);
        }
    }

    /// Asks every connected node for its time: one that has frozen shows by leaving it unanswered.
    pub fn ask_time(&mut self, now: Moment) {
        let now = self.clamp(now);
        self.nodes.check_again(now, self.nodes.open());
        self.nodes.look_at_clocks(now);
    }

    /// Reports an event on the node's connection.
    #[inline(always)]
    pub fn handle_node(&mut self, now: Moment, node: usize, event: NodeEvent<'_>) {
        let now = self.clamp(now);
        let at = &mut self.nodes[node];
        match event {
            NodeEvent::Credentials(credentials) => at.credentials = Some(credentials.clone()),
            NodeEvent::Elected { master_for } => at.guard.elected(master_for),
            NodeEvent::Located(endpoint) => at.link.endpoint = Some(endpoint.into()),
            NodeEvent::Trying(address) => at.link.tried.push(address.into()),
            NodeEvent::Foreign(peer) => at.keep_foreign(peer),
            NodeEvent::ReadingLate { since } => at.pipeline.reading_late(since),
            NodeEvent::ReadingInTime => at.pipeline.reading_in_time(),
            NodeEvent::Told(time) => match at.handle_told(now, time) {
                Some(effect) => self.follow(now, node, effect),
                None => self.handle_any_reply(now, node, Reply::Time(time)),
            },
            NodeEvent::Connecting(phase) => {
                let deadline = at.connecting(now, phase);
                self.nodes.note_due(deadline);
            }
            NodeEvent::Connected => {
                let deadline = at.connected(now, self.entropy.next_u64());
                if deadline.is_some() {
                    self.waits.local.desk.connected(node);
                    self.cleanup.reconnect(node);
                    self.nodes.note_due(deadline);
                    self.nodes.start_handshake(node);
                }
            }
            NodeEvent::Disconnected(outcome) => self.fail_node(now, node, outcome),
            NodeEvent::Failed(outcome, words) => {
                at.keep_failure(outcome, words);
                self.fail_node(now, node, outcome);
            }
            NodeEvent::Duplicate { of } => {
                at.guard.set_duplicate(Some(of));
                self.fail_node(now, node, NodeOutcome::Unfit(Unfit::Duplicate));
            }
            NodeEvent::AnsweredBeside if !at.is_lost_if_another_answers() => {}
            NodeEvent::AnsweredBeside => {
                self.fail_node(now, node, NodeOutcome::TimedOut(Phase::Reply));
            }
            NodeEvent::Blocked => {
                at.link.block();
                self.nodes.note_open(node);
            }
            NodeEvent::Writable => {
                let was_blocked = at.link.unblock();
                self.nodes.note_open(node);
                if was_blocked && self.nodes.open().contains(node) {
                    self.flush_queue(now, node);
                }
            }
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
        if self.handle_grants(node, 1, || grant.take()) > 0 {
            self.handle_any_reply(now, node, reply);
        }
    }

    /// Same as [`handle_reply`](Engine::handle_reply), for many of the most common replies: takes
    /// them from `next` until it returns `None`, at most `replies_max`, at the engine's [latest
    /// time](Engine::last_now). It takes none that answers something else than a lock. Returns how
    /// many more it could have taken.
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
        let is_usual = self.nodes.is_usual(node, self.cleanup.nodes_with_debts());
        let at = &mut self.nodes[node];
        let mut latest = None;
        let counted = loop {
            // After a decision there is hardly ever another one.
            let awaited = if *left == 0 { None } else { at.pipeline.next_round() };
            let Some(((round, sent_at), grant)) = awaited.and_then(|it| Some((it, next()?))) else {
                break FastPath::Drained;
            };
            *left -= 1;
            let sample = now.nanos_since(sent_at);
            if !is_usual || !at.pipeline.is_in_time(sample) {
                break FastPath::Unusual(grant);
            }
            let Some((vote, is_decided)) = self.rounds.grant(now, round, node, grant) else {
                break FastPath::Unusual(grant);
            };
            at.pipeline.drop_next();
            latest = Some((vote, sample));
            if is_decided {
                break FastPath::Decided(round);
            }
        };
        if let Some((vote, sample)) = latest {
            at.note_in_time(now, vote, sample);
        }
        counted
    }

    #[cold]
    fn handle_any_reply(&mut self, now: Moment, node: usize, reply: Reply) {
        let (State::Handshaking { .. } | State::Ready | State::Limited) = self.nodes[node].state()
        else {
            return;
        };
        let has_timed_out = self.nodes[node].pipeline.has_timed_out();
        let Some(InFlight { request, sent_at }) = self.nodes.take_answered(now, node) else {
            let effect = self.nodes[node].handle_unasked(reply);
            return self.follow(now, node, effect);
        };
        self.stats.late_replies += u64::from(has_timed_out && request.lost().is_some());
        let effect = match request {
            Request::Round(round, _) => {
                if self.lacks_script(node, round, &reply) {
                    // It was not run, and its caller waits.
                    self.send(NodeSet::one(node), round);
                    return self.rounds.dereference(round);
                }
                return self.handle_answer(now, node, round, reply);
            }
            Request::Confirm(round) => return self.confirmed(now, node, round, reply),
            Request::Trialled(round, _) | Request::Text(round, _) => {
                if !matches!(reply, Reply::Missing(_) | Reply::Error(_)) {
                    let (kind, claim) = (self.rounds[round].kind, self.rounds.claim(round));
                    self.nodes.trials.note(node, request, kind, claim);
                }
                return self.handle_answer(now, node, round, reply);
            }
            Request::ReleaseAtQueue(round) => {
                let key = self.rounds.claim(round).key.clone();
                let answer = self.with_waits(now, |waits, cx| {
                    waits.local.handle_queue_release(cx, node, &key, reply)
                });
                return match answer {
                    Some(answer) => self.handle_answer(now, node, round, answer),
                    None => self.nodes.outbox.push_back(Outgoing::Round(NodeSet::one(node), round)),
                };
            }
            Request::Wait(command) => {
                let handled =
                    self.with_waits(now, |waits, cx| waits.handle_reply(cx, node, command, reply));
                handled.map_or_else(Effect::Fail, |()| Effect::Nothing)
            }
            Request::Kill(connection) => {
                self.cleanup.handle_killed(now, &mut self.nodes[node], connection, reply)
            }
            Request::About(question) => {
                self.nodes[node].handle_reply(now, question, sent_at, reply)
            }
        };
        if !matches!(effect, Effect::Nothing) {
            self.follow(now, node, effect);
        }
    }

    /// Whether this says that the script of a round was not run because it was sent by its hash,
    /// and it is to be sent by its text: its caller still waits, so the release comes later, and
    /// the node takes commands of this kind.
    #[cold]
    fn lacks_script(&mut self, node: usize, round: RoundId, reply: &Reply) -> bool {
        let (Reply::Error(error), kind @ RoundKind::Take) = (reply, self.rounds[round].kind) else {
            return false;
        };
        let may_be_sent = self.cleanup.allowed(self.nodes.in_time(), kind).contains(node);
        self.nodes.trials.lacks(node, error, self.rounds.claim(round))
            && may_be_sent
            && self.rounds.is_vote_missing(round, node)
    }

    /// Does what a node's input leaves to be done.
    fn follow(&mut self, now: Moment, node: usize, effect: Effect) {
        match effect {
            Effect::Nothing => {}
            Effect::Retry => {
                self.give_up_lost(now, node);
                self.nodes.wake(now, node);
            }
            Effect::Suspect => self.nodes.outbox.push_back(Outgoing::Beside(node)),
            // The server votes from now on, if it may vote at all.
            Effect::HandshakeDone => match self.nodes.admit(now, node) {
                Err(reason) => self.refuse(now, node, reason),
                Ok(identified) => {
                    self.stats.connected += 1;
                    let kills = self.cleanup.node_ready(now, &self.nodes[node], &identified);
                    self.nodes.kill(node, kills);
                    if identified.is_news {
                        let sight = Outgoing::Ask(NodeSet::one(node), Question::Sight);
                        self.nodes.outbox.push_back(sight);
                    }
                    self.settle_debts(now, node);
                    // After the commands that waited.
                    self.nodes.probe(node);
                    self.with_waits(now, |waits, cx| waits.node_ready(cx, node));
                }
            },
            Effect::Fail(outcome) => self.fail_node(now, node, outcome),
            Effect::Killed => self.stats.connections_killed += 1,
            Effect::ReleasesWith(with) => self.nodes.release_with(node, with),
            Effect::ClockJumped => {
                self.stats.clock_jumps += 1;
                self.nodes.quarantine_anew(now, node, QuarantineCause::ClockStepped);
            }
            Effect::RepeatHandshake => self.nodes.repeat_handshake(now, node),
            Effect::AskMarker => self.nodes.ask_marker(node),
            Effect::Lost(cause) => self.nodes.quarantine_anew(now, node, cause),
            Effect::TimeRefused(notice) => {
                self.nodes.check_anew();
                notice.into_iter().for_each(|notice| self.nodes.notices.note(node, notice));
            }
        }
    }

    /// The server has sent a push. It sends pushes only on request, so an unexpected one ends the
    /// connection.
    pub fn handle_push(&mut self, now: Moment, node: usize, push: Push<'_>) {
        let now = self.clamp(now);
        let (state, is_told) = (self.nodes[node].state(), self.nodes[node].guard.is_told());
        match state {
            State::Ready | State::Handshaking { .. } => {}
            State::Idle | State::Connecting { .. } | State::BackOff { .. } | State::Limited => {
                return;
            }
        }
        let makes_sense = match push {
            // What follows was done after it. What it says of keys is for those that wait.
            Push::Flushed if is_told => {
                self.nodes.note_flush(node);
                self.note_all_changed(now, node);
                true
            }
            _ if state != State::Ready => false,
            Push::Subscribed(channel) if self.waits.local.desk.is_own_channel(channel) => {
                let asked = self.nodes[node].pipeline.next_request();
                let is_answer = matches!(asked, Some(Request::Wait(WaitCommand::SUBSCRIBE)));
                is_answer && self.nodes.take_answered(now, node).is_some()
            }
            Push::AllChanged => {
                self.note_all_changed(now, node);
                true
            }
            push => self.with_waits(now, |waits, cx| waits.pushed(cx, node, push)),
        };
        if !makes_sense {
            self.fail_node(now, node, NodeOutcome::Protocol(ProtocolError::Unexpected));
        }
    }

    /// Any key that is watched there may have changed.
    fn note_all_changed(&mut self, now: Moment, node: usize) {
        for entry in self.waits.local.entries.watched_at(node) {
            self.with_waits(now, |waits, cx| waits.local.note_change(cx, node, entry));
        }
    }

    /// The next notice for the operator of a node, with the node's index.
    pub fn poll_notice(&mut self) -> Option<(usize, Notice)> {
        self.nodes.notices.take()
    }

    pub(super) fn handle_answer(&mut self, now: Moment, node: usize, round: RoundId, reply: Reply) {
        let kind = self.rounds[round].kind;
        let Some(outcome) = self.outcome(now, node, round, reply) else {
            return;
        };
        // Not for a release: the client itself sends owed releases after each reconnect, and a node
        // that answers nothing else is of no use.
        if !kind.is_release() {
            self.nodes[node].link.note_answer();
        }
        if kind.is_acquisition() && outcome == NodeOutcome::Held {
            self.nodes[node].guard.set_refused(now);
            self.nodes.check_anew();
        }
        self.count(now, round, node, outcome);
        self.rounds.dereference(round);
    }

    /// The meaning of an answer. `None` if it was an error or makes no sense; it is then fully
    /// handled.
    fn outcome(
        &mut self,
        now: Moment,
        node: usize,
        round: RoundId,
        reply: Reply,
    ) -> Option<NodeOutcome> {
        let kind = self.rounds[round].kind;
        if let Reply::Error(error) = reply {
            self.handle_error(now, node, round, error);
            return None;
        }
        if let (Reply::Missing(command), true) = (&reply, kind.is_acquisition()) {
            // Nothing was set, so there is nothing to release (R11).
            self.rounds[round].sent.remove(node);
            return Some(NodeOutcome::MissingCommand(*command));
        }
        if let (Reply::Owned(owned), true) = (&reply, kind.is_inspection()) {
            let asked = self.rounds.awaits(round, node);
            self.operations.note_found(asked, node, FoundKey::Owned(owned.clone()));
            return Some(NodeOutcome::Held);
        }
        let Some(answer) = kind.answer(&reply) else {
            let outcome = NodeOutcome::Protocol(ProtocolError::Unexpected);
            // Before the vote, so that commands that follow from it are not sent on this
            // connection.
            self.fail_node(now, node, outcome);
            self.cleanup.add_lost(now, &mut self.nodes, node, self.rounds.left(round, Lost::Sent));
            self.vote(now, round, node, outcome);
            self.rounds.dereference(round);
            return None;
        };
        Some(match answer {
            Answer::Set => NodeOutcome::Granted,
            Answer::Numbered(number) => {
                self.rounds.note_number(round, node, number);
                NodeOutcome::Granted
            }
            Answer::Healed => {
                self.stats.healed += 1;
                NodeOutcome::Granted
            }
            Answer::Present => {
                self.cleanup.observe(now, node, self.rounds.claim(round).token);
                NodeOutcome::Granted
            }
            Answer::Refused => kind.refusal(),
            Answer::RefusedFor(reason) => {
                self.rounds.refusals.note(round, reason);
                kind.refusal()
            }
            Answer::Holding(holding) => {
                let Some(holding) = holding else { return Some(NodeOutcome::Absent) };
                let asked = self.rounds.awaits(round, node);
                self.operations.note_found(asked, node, FoundKey::Holding(holding));
                NodeOutcome::Held
            }
        })
    }

    /// Counts a node's answer, unless the node is or was in quarantine, or its copy is in doubt.
    /// What it says of a key is no vote, and always counts.
    pub(super) fn count(&mut self, now: Moment, round: RoundId, node: usize, outcome: NodeOutcome) {
        let (claim, kind) = (self.rounds.claim(round), self.rounds[round].kind);
        let is_counted = !self.rounds[round].uncounted.contains(node)
            && !self.nodes[node].guard.is_quarantined(now)
            && !self.cleanup.debts_of(node).is_doubted(now, claim.token, kind);
        if !(is_counted || kind.is_inspection() || outcome.is_failure()) {
            self.stats.uncounted += 1;
            self.vote(now, round, node, NodeOutcome::Quarantined);
        } else if (kind, outcome) == (RoundKind::AcquireFenced, NodeOutcome::Granted) {
            let decision = self.rounds.count_number(now, &mut self.nodes, round, node);
            self.follow_decision(now, decision);
        } else {
            self.vote(now, round, node, outcome);
        }
    }

    /// An error is no vote, and means that the command was not executed.
    fn handle_error(&mut self, now: Moment, node: usize, round: RoundId, error: ServerError) {
        let kind = error.kind;
        self.stats.server_errors += 1;
        self.nodes[node].keep_error(error);
        let asked = self.rounds[round].kind;
        let outcome = match kind {
            // The key holds a value of another type, which is not ours. A script that counts looks
            // at its counter first, and sets the lock's key whatever its type is (F15).
            ServerErrorKind::WrongType if asked != RoundKind::AcquireFenced => asked.refusal(),
            _ => NodeOutcome::Server(kind),
        };
        if asked.is_release() && outcome.is_failure() {
            self.nodes.note_refusal(node, kind);
            let (claim, expires) = (self.rounds.claim(round), self.rounds[round].expires);
            self.cleanup.add_refused(now, &mut self.nodes, node, (claim, expires));
        }
        self.count(now, round, node, outcome);
        self.rounds.dereference(round);
        // The connection's state has changed since its handshake: reconnect.
        if matches!(kind, ServerErrorKind::ReadOnly | ServerErrorKind::Auth) {
            self.fail_node(now, node, NodeOutcome::Server(kind));
        }
    }

    pub(super) fn node_timeout(&mut self, now: Moment, node: usize) {
        // The vote is missing; the command keeps its place in the order of replies (R5).
        let mut has_timed_out = false;
        for _ in 0..self.share {
            let Some(timed_out) = self.nodes[node].next_timed_out(now) else {
                break;
            };
            has_timed_out = true;
            if let Some((round, _)) = timed_out.lost() {
                self.vote(now, round, node, NodeOutcome::TimedOut(Phase::Reply));
            }
        }
        if has_timed_out {
            self.with_waits(now, |waits, cx| waits.node_lost(cx, node));
        }
        self.nodes.note_far_behind(now, node);
        let is_due = self.cleanup.debts_of(node).due().is_some_and(|due| now >= due);
        if is_due && self.nodes[node].is_kept_ready(now) {
            return self.settle_debts(now, node);
        }
        let effect = self.nodes[node].handle_timeout(now);
        self.follow(now, node, effect);
    }

    /// Ends a connection. Unanswered commands have failed, and what an unanswered SET or release
    /// may leave behind is recorded as a debt (R12).
    #[cold]
    pub(super) fn fail_node(&mut self, now: Moment, node: usize, outcome: NodeOutcome) {
        if let State::Idle | State::BackOff { .. } = self.nodes[node].state() {
            return;
        }
        self.stats.disconnected += 1;
        self.waits.forget_step_outs(&self.nodes, node);
        self.nodes.fail(now, node, outcome, self.entropy.next_u64());
        self.with_waits(now, |waits, cx| waits.node_lost(cx, node));
        self.give_up_lost(now, node);
    }

    /// Handles some of the commands that were lost with the connection.
    #[cold]
    fn give_up_lost(&mut self, now: Moment, node: usize) {
        for _ in 0..self.share {
            let Some((round, lost, outcome)) = self.nodes[node].next_lost() else {
                return;
            };
            self.cleanup.add_lost(now, &mut self.nodes, node, self.rounds.left(round, lost));
            self.vote(now, round, node, outcome);
            self.rounds.dereference(round);
        }
        if self.nodes[node].pipeline.has_lost() {
            self.nodes.note_due(Some(Moment::START));
        }
    }

    /// Sends the commands that waited for the connection, or for the socket to accept more.
    pub(super) fn flush_queue(&mut self, now: Moment, node: usize) {
        for round in self.nodes[node].pipeline.take_waiting() {
            if self.is_useless(round) {
                // The key it would set is of no use to anyone now, so it is not sent (R11).
                self.vote(now, round, node, NodeOutcome::TimedOut(Phase::Connect));
            } else {
                if self.rounds[round].kind == RoundKind::AcquireFenced {
                    self.rounds.propose_when_ready(now, &self.nodes, round);
                }
                self.send(NodeSet::one(node), round);
            }
            self.rounds.dereference(round);
        }
    }

    /// Takes the next step of some of the debts that are due. When none is due, the commands that
    /// waited for them follow.
    #[cold]
    pub(super) fn settle_debts(&mut self, now: Moment, node: usize) {
        for Due { claim, expires, kills } in
            self.cleanup.take_due(now, &self.nodes[node], self.share)
        {
            let round = self.rounds.start(now, RoundKind::Release, claim, None);
            self.rounds[round].expires = Some(expires);
            self.nodes.kill(node, kills);
            self.send(NodeSet::one(node), round);
        }
        if self.cleanup.finish(now, &mut self.nodes, node) {
            self.flush_queue(now, node);
        }
    }

    /// The reply to a raise. It can leave no key, so nothing is owed for it (F14).
    #[cold]
    pub(super) fn confirmed(&mut self, now: Moment, node: usize, round: RoundId, reply: Reply) {
        let outcome = match reply {
            Reply::Integer(1) => {
                self.rounds.fences.note_confirmed(round, node);
                NodeOutcome::Granted
            }
            Reply::Integer(0) => NodeOutcome::Absent,
            Reply::Error(error) => return self.handle_error(now, node, round, error),
            _ => {
                let outcome = NodeOutcome::Protocol(ProtocolError::Unexpected);
                self.fail_node(now, node, outcome);
                outcome
            }
        };
        self.count(now, round, node, outcome);
        self.rounds.dereference(round);
    }
}
