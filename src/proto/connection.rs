//! A node's connection: connecting, handshake, loss and reconnect; and the replies on it.

use super::command::{Grant, ReleaseWith, Reply, ServerError};
use super::lease::Doubt;
use super::node::{Debt, Due, Effect, Notice, Request, State};
use super::round::{Answer, Claim, Kind, Left, Lost, Vote};
use super::{Engine, Lease, NodeSet, Outgoing, smooth};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase, ProtocolError, QuarantineCause, ServerErrorKind, Unfit};
use crate::quorum::Verdict;
use crate::token::LockToken;
use crate::validity::Ttl;

/// The most pending notices; further ones are dropped.
const NOTICES_MAX: usize = 64;

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

    /// Reports progress of the requested connection: its name is being looked up, or was resolved.
    pub fn handle_connecting(&mut self, now: Moment, node: usize, phase: Phase) {
        let now = self.clamp(now);
        if let Some(deadline) = self.nodes[node].handle_connecting(now, phase) {
            self.note_due(deadline);
        }
    }

    /// The requested connection is established.
    pub fn handle_connected(&mut self, now: Moment, node: usize) {
        let now = self.clamp(now);
        if let Some(deadline) = self.nodes[node].handle_connected(now) {
            self.note_due(deadline);
            let steps = self.nodes[node].steps();
            self.outgoing.extend(steps.map(|step| Outgoing::Handshake(node, step)));
            self.nodes.check_anew();
        }
    }

    /// The connection ended, or could not be established.
    pub fn handle_disconnected(&mut self, now: Moment, node: usize, outcome: NodeOutcome) {
        let now = self.clamp(now);
        self.fail_node(now, node, outcome);
    }

    /// The node's address is the same as that of another node.
    pub fn handle_duplicate(&mut self, now: Moment, node: usize, of: usize) {
        let now = self.clamp(now);
        self.nodes[node].set_duplicate(Some(of));
        self.notice(node, Notice::Unfit(Unfit::Duplicate));
        self.fail_node(now, node, NodeOutcome::Unfit(Unfit::Duplicate));
    }

    /// Until [`reading_in_time`](Engine::reading_in_time), replies may have waited in the socket:
    /// their age is no latency sample. The first of them was there at `since`, if that is known.
    pub fn reading_late(&mut self, node: usize, since: Option<Moment>) {
        self.nodes[node].reading_late(since);
    }

    /// From now on, replies are read as they arrive.
    pub fn reading_in_time(&mut self, node: usize) {
        self.nodes[node].reading_in_time();
    }

    /// The socket accepts no more, and the event loop has buffered as much as it may.
    pub fn handle_blocked(&mut self, node: usize) {
        self.nodes[node].handle_blocked();
        self.note_open(node);
    }

    /// The socket accepts bytes again.
    pub fn handle_writable(&mut self, now: Moment, node: usize) {
        let now = self.clamp(now);
        let was_blocked = self.nodes[node].handle_writable();
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

    /// As [`handle_reply`](Engine::handle_reply), for the most common replies: takes them from
    /// `next` until it returns `None`, at most `replies_max`, at the engine's [latest
    /// time](Engine::last_now). Returns how many of `replies_max` are left.
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
        let is_usual = at.is_usual()
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
            let Some((round, sent_at)) = at.next_round() else {
                break FastPath::Unusual(grant);
            };
            let voted = &mut self.rounds[round];
            let sample = now.nanos_since(sent_at);
            let is_usual = is_usual
                && at.is_in_time(sample)
                && Grant::is_same(voted.grant, Some(grant))
                && voted.undecided.without(voted.uncounted).contains(node);
            if !is_usual {
                break FastPath::Unusual(grant);
            }
            at.drop_next();
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
            at.note_in_time(now, vote, sample);
        }
        counted
    }

    #[cold]
    fn handle_any_reply(&mut self, now: Moment, node: usize, reply: Reply) {
        let at = &mut self.nodes[node];
        if !matches!(at.state(), State::Handshaking { .. } | State::Ready) {
            return;
        }
        let effect = at.handle_reply(now, reply);
        // Not before every late command is answered: with a lower bar the node would stay just
        // below it forever.
        if !at.has_late() {
            self.overloaded.remove(node);
        }
        self.follow(now, node, effect);
    }

    /// Does what a node's input leaves to be done.
    fn follow(&mut self, now: Moment, node: usize, effect: Effect) {
        match effect {
            Effect::Nothing => {}
            Effect::Answered(round, reply, was_late) => {
                self.stats.late_replies += u64::from(was_late);
                self.handle_answer(now, node, round, reply);
            }
            Effect::Retry => {
                self.give_up_lost(now, node);
                self.wake(now, node);
            }
            Effect::DebtsDue => self.settle_debts(now, node),
            Effect::Greeted => self.finish_handshake(now, node),
            Effect::Fail(outcome) => self.fail_node(now, node, outcome),
            Effect::Killed => self.stats.connections_killed += 1,
            Effect::ReleasesWith(with) => self.release_with(node, with),
            Effect::ClockJumped => {
                self.stats.clock_jumps += 1;
                let until = now.after(self.config.quarantine);
                self.quarantine(node, QuarantineCause::ClockStepped, until);
            }
            Effect::TimeRefused(notice) => {
                self.nodes.check_anew();
                notice.into_iter().for_each(|notice| self.notice(node, notice));
            }
        }
    }

    /// The handshake is complete: the server votes from now on, if it may vote at all.
    fn finish_handshake(&mut self, now: Moment, node: usize) {
        let welcome = match self.nodes.welcome(now, node) {
            Ok(welcome) => welcome,
            Err(reason) => {
                self.notice(node, Notice::Unfit(reason));
                return self.fail_node(now, node, NodeOutcome::Unfit(reason));
            }
        };
        self.stats.connected += 1;
        welcome.notice.into_iter().for_each(|notice| self.notice(node, notice));
        for (cause, until) in welcome.quarantines.into_iter().flatten() {
            self.quarantine(node, cause, until);
        }
        self.kill(node, welcome.kills);
        self.settle_debts(now, node);
        // After the commands that waited.
        let native = self.nodes[node].native_release();
        if native != ReleaseWith::Script {
            self.outgoing.push_back(Outgoing::Probe(node, native));
        }
    }

    /// Stops counting the node's votes until then.
    fn quarantine(&mut self, node: usize, cause: QuarantineCause, until: Moment) {
        if self.nodes[node].quarantine(cause, until) {
            self.notice(node, Notice::Quarantined(cause));
            self.stats.quarantines += 1;
            self.maybe_quarantined.insert(node);
        }
    }

    pub(super) fn quarantined_of(&mut self, now: Moment, nodes: NodeSet) -> NodeSet {
        let mut quarantined = NodeSet::EMPTY;
        for node in nodes.and(self.maybe_quarantined).iter() {
            match self.nodes[node].is_quarantined(now) {
                true => quarantined.insert(node),
                false => self.maybe_quarantined.remove(node),
            }
        }
        quarantined
    }

    fn notice(&mut self, node: usize, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back((node, notice));
        }
    }

    /// Whether there are notices for the operator of a node.
    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// The next notice for the operator of a node, with the node's index.
    pub fn poll_notice(&mut self) -> Option<(usize, Notice)> {
        self.notices.pop_front()
    }

    /// Two nodes that are the same server, if any: the one that was connected first, and the other
    /// one.
    pub fn duplicates(&self) -> Option<(usize, usize)> {
        self.nodes.duplicates()
    }

    /// Whether one of the node's next replies is its time. Then read our own clock again before
    /// reading that reply.
    pub fn is_telling_time(&self, node: usize) -> bool {
        self.nodes[node].is_telling_time()
    }

    fn handle_answer(&mut self, now: Moment, node: usize, round: usize, reply: Reply) {
        let kind = self.rounds[round].kind;
        let Some(outcome) = self.outcome(now, node, round, reply) else {
            return;
        };
        // Not for a release: the client itself sends owed releases after each reconnect, and a node
        // that answers nothing else is of no use.
        if !kind.is_release() {
            self.nodes[node].note_answer();
        }
        if outcome == NodeOutcome::Held {
            self.nodes[node].set_refused(now);
            self.nodes.check_anew();
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
                    self.nodes[node].observe_key(now, self.claims[round].token);
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
            && !self.nodes[node].is_quarantined(now)
            && !self.is_doubted(now, node, round);
        if is_counted || outcome.is_failure() {
            return self.vote(now, round, node, outcome);
        }
        self.stats.uncounted += 1;
        self.vote(now, round, node, NodeOutcome::Quarantined);
    }

    /// Whether the node's copy of this round's lock must not be counted.
    fn is_doubted(&self, now: Moment, node: usize, round: usize) -> bool {
        let (token, kind) = (self.claims[round].token, self.rounds[round].kind);
        self.indebted.contains(node) && self.nodes[node].is_doubted(now, token, kind)
    }

    /// An error is no vote, and means that the command was not executed.
    fn handle_error(&mut self, now: Moment, node: usize, round: usize, error: ServerError) {
        let kind = error.kind;
        self.stats.server_errors += 1;
        self.nodes[node].keep_error(error);
        let asked = self.rounds[round].kind;
        let outcome = match kind {
            // The key holds a value of another type, which is not ours.
            ServerErrorKind::WrongType => asked.refusal(),
            _ => NodeOutcome::Server(kind),
        };
        if asked.is_release() && outcome.is_failure() {
            self.note_refusal(node, kind);
            let (claim, expires) = (&self.claims[round], self.rounds[round].expires);
            if let Some(debt) = Debt::of_refused(now, claim, expires) {
                self.add_debt(now, node, claim.token, debt);
            }
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
        if let Some(deadline) = self.nodes[node].connect(now) {
            self.note_due(deadline);
            self.outgoing.push_back(Outgoing::Connect(node));
        }
    }

    /// Whether the node will be failed for its silence at `now`. Read its replies first.
    pub fn is_overdue(&self, now: Moment, node: usize) -> bool {
        self.nodes[node].is_overdue(now)
    }

    pub(super) fn node_timeout(&mut self, now: Moment, node: usize) {
        // The vote is missing; the command keeps its place in the order of replies (R5).
        for _ in 0..self.share {
            match self.nodes[node].next_late(now) {
                Some(Request::Round(round)) => {
                    self.vote(now, round, node, NodeOutcome::TimedOut(Phase::Reply));
                }
                Some(_) => {}
                None => break,
            }
        }
        if self.nodes[node].is_far_behind(now) {
            self.overloaded.insert(node);
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
        let unsent = self.withdraw(node);
        let random = self.entropy.next_u64();
        let retry_at = self.nodes[node].fail(now, outcome, unsent, random);
        self.note_due(retry_at);
        self.overloaded.remove(node);
        self.open.remove(node);
        self.release_with(node, ReleaseWith::Script);
        self.outgoing.push_back(Outgoing::Close(node));
        self.give_up_lost(now, node);
    }

    /// Withdraws the commands for a node that were not handed out. Returns the rounds among them.
    fn withdraw(&mut self, node: usize) -> Vec<usize> {
        let mut unsent = Vec::new();
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
                    unsent.push(*round);
                }
                !nodes.is_empty()
            }
        });
        unsent
    }

    /// Handles some of the commands that were lost with the connection.
    #[cold]
    fn give_up_lost(&mut self, now: Moment, node: usize) {
        for _ in 0..self.share {
            let Some((round, lost, outcome)) = self.nodes[node].next_lost() else {
                return;
            };
            self.owe(now, node, round, lost);
            self.vote(now, round, node, outcome);
            self.dereference(round);
        }
        if self.nodes[node].has_lost() {
            self.note_due(Moment::START);
        }
    }

    /// Sends the commands that waited for the connection, or for the socket to accept more.
    pub(super) fn flush_queue(&mut self, now: Moment, node: usize) {
        for round in self.nodes[node].take_waiting() {
            if self.is_useless(round) {
                // The key it would set is of no use to anyone now, so it is not sent (R11).
                self.vote(now, round, node, NodeOutcome::TimedOut(Phase::Connect));
            } else {
                self.send(NodeSet::one(node), round);
            }
            self.dereference(round);
        }
    }

    /// A command was lost with its connection, or its answer makes no sense.
    pub(super) fn owe(&mut self, now: Moment, node: usize, round: usize, lost: Lost) {
        let (claim, expires) = (&self.claims[round], self.rounds[round].expires);
        let debt = match self.rounds[round].kind.left(lost) {
            Left::Nothing => return,
            Left::Key => self.nodes[node].debt_of_set(now, claim, expires),
            Left::Release => Debt::of_release(now, claim, expires),
        };
        self.add_debt(now, node, claim.token, debt);
    }

    pub(super) fn add_debt(&mut self, now: Moment, node: usize, token: LockToken, debt: Debt) {
        self.indebted.insert(node);
        if !self.nodes[node].owe(now, token, debt) {
            // It is no longer known which copies do not count.
            let until = now.after(self.config.quarantine);
            self.quarantine(node, QuarantineCause::Flushed, until);
        }
        self.note_debts(node);
    }

    fn note_debts(&mut self, node: usize) {
        if let Some(due) = self.nodes[node].debts_due() {
            self.note_due(due);
        }
    }

    /// The lock is given up, and its release is about to be sent to those of these nodes that can
    /// take it. What lost commands may have left there is released, too.
    #[cold]
    pub(super) fn wake_debts(&mut self, now: Moment, nodes: NodeSet, token: LockToken) {
        for node in nodes.and(self.indebted).iter() {
            if !self.nodes[node].has_debts() {
                self.indebted.remove(node);
            }
            if let Some(kills) = self.nodes[node].wake_debt(now, token) {
                self.kill(node, kills);
                self.note_debts(node);
            }
        }
    }

    /// The lock was extended: debts that wait for its end are kept as long.
    #[cold]
    pub(super) fn keep_debts(&mut self, now: Moment, token: LockToken, ttl: Ttl) {
        for node in self.indebted.iter() {
            self.nodes[node].keep_debt(now, token, ttl);
        }
    }

    /// The nodes with so many debts that they get no new SET.
    #[cold]
    pub(super) fn overdrawn(&self) -> NodeSet {
        let mut overdrawn = NodeSet::EMPTY;
        let nodes = self.indebted.iter().filter(|node| self.nodes[*node].owes_too_much());
        nodes.for_each(|node| overdrawn.insert(node));
        overdrawn
    }

    pub(super) fn kill(&mut self, node: usize, connections: Vec<i64>) {
        let kills = connections.into_iter().map(|connection| Outgoing::Kill(node, connection));
        self.outgoing.extend(kills);
    }

    /// Takes the next step of some of the debts that are due. When none is due, the commands that
    /// waited for them follow.
    #[cold]
    pub(super) fn settle_debts(&mut self, now: Moment, node: usize) {
        for Due { claim, expires, kills } in self.nodes[node].take_due_debts(now, self.share) {
            let round = self.start_round(now, Kind::Release, claim, None);
            self.rounds[round].expires = Some(expires);
            self.kill(node, kills);
            self.send(NodeSet::one(node), round);
        }
        self.note_debts(node);
        if self.nodes[node].finish_debts(now) {
            self.note_open(node);
            self.flush_queue(now, node);
        }
    }

    /// What this engine knows of the nodes, which an engine that adopts the lease cannot know.
    pub(super) fn doubts(&self, now: Moment, token: LockToken) -> Vec<Doubt> {
        let is_its = |round: usize| self.claims[round].token == token;
        let may_set = |round: usize| is_its(round) && self.rounds[round].kind.may_create();
        self.nodes.iter().filter_map(|node| node.doubt(now, token, may_set)).collect()
    }

    /// A lease arrives from another engine, with that engine's doubts.
    #[cold]
    pub(super) fn take_doubts(&mut self, now: Moment, lease: &Lease) {
        let nodes = self.nodes.len();
        for doubt in lease.doubts.iter().filter(|doubt| doubt.node < nodes) {
            let key = lease.resource.clone().prefixed(&self.config.key_prefix);
            let claim = Claim { key, token: lease.token, ttl: lease.longest };
            let debt = self.nodes[doubt.node].debt_of_doubt(now, &claim, doubt);
            self.add_debt(now, doubt.node, lease.token, debt);
        }
    }
}
