//! Counting votes: which round is decided, and how.
//!
//! [`Voting`] owns the rounds with the votes on them, the numbers of those that ask for one, and
//! what refusals say. It sees nodes and no operation: the engine acts on each [`Decision`].

mod commands;
mod fence;
mod lock_kinds;
mod refusals;
mod rounds;

use std::sync::Arc;

use crate::proto::index::{OpIndex, RoundId};
use fence::Fences;
pub(crate) use lock_kinds::rounds_at_once;
use refusals::Refusals;
use rounds::Round;
use slab::Slab;

use super::kind::{Claim, RoundKind, Vote};
use super::lease::{Lease, Released};
use super::limits::ROUNDS_USUAL;
use super::nodes::Nodes;
use crate::config::Config;
use crate::lock_error::{LockError, LockErrorKind};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, NodeReport};
use crate::quorum::Verdict;

/// A round is decided, and this operation waits for that.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(super) op: OpIndex,
    pub(super) round: RoundId,
    pub(super) verdict: Verdict,
}

/// Counters of votes, as in [`Stats`](super::Stats).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct VotingStats {
    pub(super) tokens_confirmed: u64,
}

/// All rounds that are open.
pub(crate) struct Voting {
    config: Arc<Config>,
    open: Slab<Round>,
    /// One for each slot of `open`. An entry of an ended round is overwritten by the slot's next
    /// round.
    claims: Vec<Claim>,
    /// One of each node for each slot, those of one slot in a row; stale where the round is still
    /// undecided.
    votes: Vec<Vote>,
    /// Smoothed time from the start of a round to a quorum of answers. What takes longer than the
    /// node timeout is left out: a process that stood still measures that, and not its masters.
    round_trip_nanos: Option<u64>,
    timeout_nanos: u64,
    pub(super) fences: Box<Fences>,
    pub(super) refusals: Box<Refusals>,
    pub(super) stats: VotingStats,
}

impl Voting {
    /// No round is open.
    pub(super) fn new(config: Arc<Config>) -> Voting {
        Voting {
            votes: Vec::with_capacity(ROUNDS_USUAL * config.nodes()),
            timeout_nanos: u64::try_from(config.node_timeout.as_nanos()).unwrap_or(u64::MAX),
            config,
            open: Slab::with_capacity(ROUNDS_USUAL),
            claims: Vec::with_capacity(ROUNDS_USUAL),
            round_trip_nanos: None,
            fences: Box::default(),
            refusals: Box::default(),
            stats: VotingStats::default(),
        }
    }

    /// Records a node's vote, once (R3).
    pub(super) fn record(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        round: RoundId,
        node: usize,
        outcome: NodeOutcome,
    ) {
        let is_vote = !self[round].kind.is_inspection();
        if let Some(vote) = self.count_vote(now, round, node, outcome).filter(|_| is_vote) {
            nodes[node].note_vote(vote);
        }
    }

    /// Records a vote. Returns what it decides, if it decides the round.
    #[inline]
    pub(super) fn vote(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        round: RoundId,
        node: usize,
        outcome: NodeOutcome,
    ) -> Option<Decision> {
        self.record(now, nodes, round, node, outcome);
        self.judge(now, nodes, round)
    }

    /// Decides as soon as the outcome is inevitable, either way (R4).
    pub(super) fn judge(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        round: RoundId,
    ) -> Option<Decision> {
        let voted = &mut self[round];
        let (Some(op), false) = (voted.owner, voted.decided) else {
            return None;
        };
        let (kind, tally) = (voted.kind, voted.tally);
        let verdict = match kind.is_inspection() {
            true if voted.undecided.is_empty() => Verdict::Won,
            true => Verdict::Pending,
            false => tally.verdict(),
        };
        let decision = Decision { op, round, verdict };
        match (verdict, kind) {
            (Verdict::Pending, _) => None,
            (Verdict::Lost, RoundKind::Release)
                if !tally.failures_deny_quorum() && !tally.is_quorum_answered() =>
            {
                // A quorum can no longer confirm the release; whether a quorum answers is still
                // open.
                None
            }
            (Verdict::Won, RoundKind::AcquireFenced) => {
                voted.decided = true;
                self.choose_or_win(now, nodes, decision)
            }
            _ => {
                voted.decided = true;
                Some(decision)
            }
        }
    }

    /// The lease of the lock that the round has won for this engine, after so many rounds and
    /// nanoseconds.
    #[inline(always)]
    pub(super) fn lease(&mut self, won: RoundId, took: (u32, u64), engine: u64) -> Lease {
        let is_fenced = self[won].kind == RoundKind::AcquireFenced;
        let fencing = is_fenced.then(|| self.fences.token(won));
        let (round, claim) = (&self[won], self.claim(won));
        let claim = Claim { key: claim.key.held(), ..*claim };
        Lease {
            rounds: took.0,
            waited_nanos: took.1,
            started: round.started,
            granted: round.granted,
            sent: round.sent,
            engine,
            fencing,
            ..Lease::restored(claim, round.deadline)
        }
    }

    /// The result of a release.
    #[inline]
    pub(super) fn released(
        &self,
        now: Moment,
        nodes: &Nodes,
        round: RoundId,
        was_valid: bool,
    ) -> Result<Released, LockError> {
        let tally = self[round].tally;
        if !tally.is_quorum_answered() {
            let reports = self.reports(now, nodes, round);
            return Err(LockError::new(LockErrorKind::Unavailable, 1, reports));
        }
        Ok(Released {
            confirmed: tally.granted(),
            absent: tally.refused(),
            unknown: tally.failed() + tally.undecided(),
            was_valid,
        })
    }

    /// What each node has said.
    pub(super) fn reports(&self, now: Moment, nodes: &Nodes, round: RoundId) -> Vec<NodeReport> {
        let votes = nodes.iter().zip(self.votes(round));
        votes.map(|(node, vote)| node.report(now, vote)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Builder;
    use crate::resource::{Key, Resource};
    use crate::token::LockToken;
    use crate::validity::Ttl;

    const NOW: Moment = Moment::from_nanos(1_000_000_000);
    const OP: OpIndex = OpIndex(5);

    /// Five nodes, and a round of this kind for one operation.
    fn round(kind: RoundKind) -> (Voting, Nodes, RoundId) {
        let urls = (1..=5).map(|port| format!("redis://127.0.0.1:{port}"));
        let config = Arc::new(Builder::default().nodes(urls).config().unwrap());
        let (mut voting, nodes) = (Voting::new(Arc::clone(&config)), Nodes::new(config));
        let key = Key::new(Resource::new("r").unwrap(), b"");
        let ttl = Ttl::new(Duration::from_secs(10)).unwrap();
        let claim = Claim { key, token: LockToken::from_random([1; 20]), ttl };
        let round = voting.start(NOW, kind, claim, Some(OP));
        (voting, nodes, round)
    }

    /// What each of these votes decides, node by node.
    fn verdicts(kind: RoundKind, votes: &[NodeOutcome]) -> Vec<Option<Verdict>> {
        let (mut voting, mut nodes, round) = round(kind);
        let vote = |(node, outcome): (usize, &NodeOutcome)| {
            let decision = voting.vote(NOW, &mut nodes, round, node, *outcome)?;
            assert_eq!((decision.op, decision.round), (OP, round));
            Some(decision.verdict)
        };
        votes.iter().enumerate().map(vote).collect()
    }

    use NodeOutcome::{Absent, Granted, Held, NotConnected};
    use Verdict::Lost;

    /// Whether a quorum answers is open when no quorum can confirm it any more.
    #[test]
    fn release_that_no_quorum_confirms_is_lost_when_a_quorum_has_answered() {
        let votes = [Absent, NotConnected, Absent, Absent, Granted];
        assert_eq!(verdicts(RoundKind::Release, &votes), [None, None, None, Some(Lost), None]);
    }

    #[test]
    fn node_votes_once() {
        let (mut voting, mut nodes, round) = round(RoundKind::Acquire);
        for outcome in [Granted, Granted, Held, Granted] {
            assert_eq!(voting.vote(NOW, &mut nodes, round, 0, outcome), None);
        }
        assert_eq!(voting[round].tally.granted(), 1);
        assert_eq!(voting[round].granted, crate::quorum::NodeSet::one(0));
    }
}
