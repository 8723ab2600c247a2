//! The rounds that are open, with what they are about and the votes on them.

use std::ops::{Index, IndexMut};
use std::time::Duration;

use super::Voting;
use crate::moment::Moment;
use crate::outcome::NodeOutcome;
use crate::proto::command::Grant;
use crate::proto::failure::Failure;
use crate::proto::index::{OpIndex, RoundId};
use crate::proto::kind::{Claim, RoundKind, Vote};
use crate::proto::smooth::smooth;
use crate::quorum::{NodeSet, Tally, Verdict};
use crate::token::LockToken;

/// The state of a round. It owns no heap memory, so removing it is cheap.
///
/// Invariant: it lives as long as an operation owns it, or a node has its command queued or
/// unanswered, so that a late reply finds it.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    pub(crate) kind: RoundKind,
    /// See [`RoundKind::plain_grant`].
    pub(crate) grant: Option<Grant>,
    pub(crate) started: Moment,
    /// From this moment on, the granted or extended validity has ended.
    pub(crate) deadline: Moment,
    /// For the release of a debt: when the key has certainly expired. `None` if unknown, because
    /// the SET may still precede this command on the same connection.
    pub(crate) expires: Option<Moment>,
    pub(crate) tally: Tally,
    /// The nodes that have not voted. A node votes once (R3).
    pub(crate) undecided: NodeSet,
    pub(crate) granted: NodeSet,
    /// The nodes that were sent the command, or will be once they are connected.
    pub(crate) sent: NodeSet,
    /// The nodes that were in quarantine when they were sent the command: their answers do not
    /// count.
    pub(crate) uncounted: NodeSet,
    /// The operation that waits for the votes, if any.
    pub(crate) owner: Option<OpIndex>,
    pub(crate) decided: bool,
    /// Whether its attempt failed, or its lock moved to another engine: unsent commands are
    /// discarded.
    pub(crate) is_abandoned: bool,
    /// Whether a command had to wait for a connection, or the time to a quorum of answers was
    /// already taken: it is then no sample of the round trip.
    pub(crate) waited: bool,
    /// One for the owner, and one for each node that has the command queued or unanswered.
    pub(crate) references: u32,
}

impl Index<RoundId> for Voting {
    type Output = Round;

    #[inline(always)]
    fn index(&self, round: RoundId) -> &Round {
        &self.open[round.0]
    }
}

impl IndexMut<RoundId> for Voting {
    #[inline(always)]
    fn index_mut(&mut self, round: RoundId) -> &mut Round {
        &mut self.open[round.0]
    }
}

impl Voting {
    #[inline(always)]
    pub(crate) fn start(
        &mut self,
        now: Moment,
        kind: RoundKind,
        claim: Claim,
        owner: Option<OpIndex>,
    ) -> RoundId {
        let count = self.config.nodes();
        let deadline = match kind.is_release() {
            true => Moment::END,
            false => claim.ttl.deadline(now),
        };
        let round = self.open.insert(Round {
            kind,
            grant: kind.plain_grant(),
            started: now,
            deadline,
            expires: None,
            tally: Tally::new(count),
            undecided: NodeSet::all(count),
            granted: NodeSet::EMPTY,
            sent: NodeSet::EMPTY,
            uncounted: NodeSet::EMPTY,
            owner,
            decided: false,
            is_abandoned: false,
            waited: false,
            references: u32::from(owner.is_some()),
        });
        match self.claims.get_mut(round) {
            Some(before) => *before = claim,
            None => {
                self.claims.push(claim);
                self.votes.extend((0..count).map(|_| Vote::PENDING));
            }
        }
        RoundId(round)
    }

    /// The rounds about this token that an operation waits for.
    pub(crate) fn undecided_about(&self, token: LockToken) -> Vec<RoundId> {
        let is_it = |(number, round): &(usize, &Round)| {
            let is_waited_for = round.owner.is_some() && !round.decided;
            let is_about = round.kind.is_about_holding() && self.claims[*number].token == token;
            is_waited_for && is_about
        };
        self.open.iter().filter(is_it).map(|(number, _)| RoundId(number)).collect()
    }

    /// The operation that waits for the vote of this node, if one does.
    pub(crate) fn awaits(&self, round: RoundId, node: usize) -> Option<OpIndex> {
        self.open[round.0].owner.filter(|_| self.open[round.0].undecided.contains(node))
    }

    /// How many rounds are open.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    #[inline]
    pub(crate) fn claim(&self, round: RoundId) -> &Claim {
        &self.claims[round.0]
    }

    /// Smoothed time from the start of a round to a quorum of answers, if any is known.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip_nanos.map(Duration::from_nanos)
    }

    /// The round's command is sent to so many nodes.
    #[inline(always)]
    pub(crate) fn note_sent(&mut self, round: RoundId, nodes: NodeSet, how_many: usize) {
        let sent = &mut self.open[round.0];
        sent.references += how_many as u32;
        sent.sent.extend(nodes);
    }

    /// The round's command has to wait for the node.
    pub(crate) fn note_waiting(&mut self, round: RoundId, node: usize) {
        self.note_sent(round, NodeSet::one(node), 1);
        self.open[round.0].waited = true;
    }

    pub(crate) fn dereference(&mut self, round: RoundId) {
        let references = &mut self.open[round.0].references;
        *references -= 1;
        if *references == 0 {
            self.open.remove(round.0);
        }
    }

    /// Whether an operation waits for the round, and the node's vote could count.
    pub(crate) fn is_vote_missing(&self, round: RoundId, node: usize) -> bool {
        let Round { owner, decided, is_abandoned, undecided, .. } = self.open[round.0];
        owner.is_some() && !decided && !is_abandoned && undecided.contains(node)
    }

    /// Ends the owner's part. The round lives until the last late reply is in.
    pub(crate) fn disown(&mut self, round: RoundId) {
        if self.open[round.0].owner.take().is_some() {
            self.dereference(round);
        }
    }

    /// Counts a node's grant and ends its part in the round, if this reply is a plain grant that
    /// counts. Returns the vote, and whether the round may be decided now.
    #[inline(always)]
    pub(crate) fn grant(
        &mut self,
        now: Moment,
        round: RoundId,
        node: usize,
        grant: Grant,
    ) -> Option<(Vote, bool)> {
        let voted = &mut self.open[round.0];
        let is_usual = Grant::is_same(voted.grant, Some(grant))
            && voted.undecided.without(voted.uncounted).contains(node);
        if !is_usual {
            return None;
        }
        let since_start = now.nanos_since(voted.started);
        let vote = Vote::new(NodeOutcome::Granted, Some(since_start));
        voted.undecided.remove(node);
        voted.references -= 1;
        if voted.owner.is_none() {
            if voted.references == 0 {
                self.open.remove(round.0);
            }
            return Some((vote, false));
        }
        voted.granted.insert(node);
        voted.tally.grant();
        let is_answered = voted.tally.is_quorum_answered_just_now();
        let is_prompt = since_start <= self.timeout_nanos && !voted.waited;
        if is_answered && voted.kind.is_acquisition() && is_prompt {
            smooth(&mut self.round_trip_nanos, since_start);
        }
        let is_decided = voted.tally.verdict() != Verdict::Pending && !voted.decided;
        self.votes[round.0 * self.config.nodes() + node] = vote;
        Some((vote, is_decided))
    }

    /// Records a node's vote, once (R3), and counts it if the round has an owner. Returns the vote
    /// if it is the first.
    pub(super) fn count_vote(
        &mut self,
        now: Moment,
        round: RoundId,
        node: usize,
        outcome: NodeOutcome,
    ) -> Option<Vote> {
        let voted = &mut self.open[round.0];
        if !voted.undecided.contains(node) {
            return None;
        }
        voted.undecided.remove(node);
        let since_start = now.nanos_since(voted.started);
        let vote = Vote::new(outcome, voted.sent.contains(node).then_some(since_start));
        if voted.owner.is_none() {
            return Some(vote);
        }
        match outcome {
            NodeOutcome::Granted => {
                voted.granted.insert(node);
                voted.tally.grant();
            }
            NodeOutcome::Held | NodeOutcome::Absent => voted.tally.refuse(),
            _ => voted.tally.fail(),
        }
        let is_in_time = since_start <= self.timeout_nanos && !outcome.is_failure();
        let is_prompt = voted.kind.is_acquisition() && !voted.waited && is_in_time;
        if is_prompt && voted.tally.is_quorum_answered_just_now() {
            smooth(&mut self.round_trip_nanos, since_start);
        }
        self.votes[round.0 * self.config.nodes() + node] = vote;
        Some(vote)
    }

    /// These nodes have voted yes, and vote once more (F8). So the round takes more than one round
    /// trip.
    pub(super) fn take_back(&mut self, round: RoundId, nodes: NodeSet) {
        let voted = &mut self.open[round.0];
        voted.tally.take_back_grants(nodes.len());
        voted.granted = voted.granted.without(nodes);
        voted.undecided.extend(nodes);
        (voted.decided, voted.waited) = (false, true);
    }

    /// The nodes where the lock is held, and whether others have granted it.
    pub(crate) fn refused_by(&self, round: RoundId) -> (NodeSet, bool) {
        let mut refused = NodeSet::EMPTY;
        let votes = self.votes(round).enumerate();
        let held = votes.filter(|(_, vote)| vote.outcome == NodeOutcome::Held);
        held.for_each(|(node, _)| refused.insert(node));
        (refused, !self.open[round.0].granted.is_empty())
    }

    /// Why an acquisition fails whose patience ends during this round.
    pub(crate) fn cut_off(&self, round: RoundId) -> Failure {
        match self.open[round.0].tally.refused() {
            0 => Failure::TimedOut,
            _ => Failure::Contended,
        }
    }

    /// The votes of all nodes in a round.
    pub(crate) fn votes(&self, round: RoundId) -> impl Iterator<Item = Vote> + '_ {
        let (count, undecided) = (self.config.nodes(), self.open[round.0].undecided);
        let votes = self.votes[round.0 * count..].iter().take(count).enumerate();
        votes.map(move |(node, vote)| if undecided.contains(node) { Vote::PENDING } else { *vote })
    }
}
