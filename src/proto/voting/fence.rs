//! Fencing tokens: a lock's number is the greatest that a quorum of nodes has given it, and each
//! node of that quorum has a counter that is not below it (F7).
//!
//! Nearly always all nodes can take the number that the attempt proposes, and an acquisition takes
//! one round trip. If not, the nodes that gave less raise their counters: a second round trip.

use super::{Decision, Voting};
use crate::fencing::{self, FencingToken};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase};
use crate::proto::command::{Command, Counter, Grant};
use crate::proto::index::{OpIndex, RoundId};
use crate::proto::kind::{Claim, RoundKind};
use crate::proto::nodes::{Nodes, State};
use crate::proto::outgoing::Outgoing;
use crate::quorum::NodeSet;
use crate::resource::Key;

/// A master takes no proposal that is further from its own clock.
const NEAR_MICROS: u64 = 500_000;
/// Proposals are not less: a smaller time is that of a clock that was never set.
const PROPOSAL_MIN: u64 = 2;
/// A script says so if the counter now has the proposal.
const AT_PROPOSAL: u64 = 1;

/// What is known of the rounds that ask for a fencing token, apart from all other rounds.
#[derive(Default)]
pub(crate) struct Fences {
    /// By the round's slot. An entry of an ended round is overwritten by the slot's next one.
    slots: Vec<Fence>,
    /// The last proposal.
    proposal: u64,
}

#[derive(Default)]
struct Fence {
    bucket: u16,
    /// Zero if there is none.
    proposal: u64,
    /// Whether no node was ready when the round started, and none has been since.
    is_unsent: bool,
    /// Since a node has given another number than the proposal.
    agreement: Option<Box<Agreement>>,
}

/// The numbers of a round whose nodes do not agree.
struct Agreement {
    /// Of each node, if it granted.
    numbers: Box<[u64]>,
    /// The lock's number, as soon as it is chosen. It never changes (F10).
    chosen: Option<u64>,
}

impl Fences {
    /// A fenced round has started.
    fn start(&mut self, round: RoundId, key: &Key, is_unsent: bool) {
        if self.slots.len() <= round.0 {
            self.slots.resize_with(round.0 + 1, Fence::default);
        }
        let bucket = fencing::bucket(key.as_bytes());
        self.slots[round.0] = Fence { bucket, proposal: 0, is_unsent, agreement: None };
    }

    /// Draws the round's proposal (F6): the masters' time, and more than before, so that the next
    /// counter need not grow beyond it. If the masters would cut what is more than before, their
    /// clocks were set back, and it is their time.
    fn propose(&mut self, round: RoundId, time: u64) -> u64 {
        let next = self.proposal + 1;
        let is_near = next < time.saturating_add(NEAR_MICROS);
        let proposal = if is_near { next.max(time) } else { time };
        let is_number = FencingToken::checked(proposal).is_some();
        let proposal = if time >= PROPOSAL_MIN && is_number { proposal } else { 0 };
        self.proposal = proposal;
        self.slots[round.0].proposal = proposal;
        proposal
    }

    fn chosen(&self, round: RoundId) -> Option<u64> {
        self.slots[round.0].agreement.as_ref()?.chosen
    }

    /// The node has raised its counter to the round's number: that is not below it, and the node's
    /// own grant was not above.
    pub(crate) fn note_confirmed(&mut self, round: RoundId, node: usize) {
        if let (Some(chosen), Some(agreement)) =
            (self.chosen(round), &mut self.slots[round.0].agreement)
        {
            agreement.numbers[node] = chosen;
        }
    }

    /// The number that the node has given.
    fn number_of(&self, round: RoundId, node: usize) -> u64 {
        let fence = &self.slots[round.0];
        fence.agreement.as_ref().map_or(fence.proposal, |agreement| agreement.numbers[node])
    }

    /// The number of a round that was won.
    pub(crate) fn token(&self, round: RoundId) -> FencingToken {
        let number = self.chosen(round).unwrap_or(self.slots[round.0].proposal);
        FencingToken::checked(number).expect("no other number is counted")
    }

    /// The counter, and the proposal.
    pub(crate) fn asked(&self, round: RoundId) -> (Counter<'static>, u64) {
        let Fence { bucket, proposal, .. } = self.slots[round.0];
        (Counter { key: fencing::COUNTERS, bucket }, proposal)
    }
}

/// The numbers of fenced rounds.
impl Voting {
    /// Starts a round that asks for a fencing token.
    #[inline(never)]
    pub(crate) fn start_fenced(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        claim: Claim,
        op: OpIndex,
    ) -> RoundId {
        nodes.look_at_clocks(now);
        let round = self.start(now, RoundKind::AcquireFenced, claim, Some(op));
        let is_unsent = nodes.open().is_empty();
        self.fences.start(round, &self.claims[round.0].key, is_unsent);
        self.propose(now, nodes, round);
        round
    }

    /// A fenced round waited for a connection, which is ready now. All nodes of a round are sent
    /// the same proposal, so it is drawn once more if this is the first node.
    #[cold]
    pub(crate) fn propose_when_ready(&mut self, now: Moment, nodes: &Nodes, round: RoundId) {
        if std::mem::take(&mut self.fences.slots[round.0].is_unsent) {
            self.propose(now, nodes, round);
        }
    }

    fn propose(&mut self, now: Moment, nodes: &Nodes, round: RoundId) {
        let time = nodes.time(now);
        let proposal = time.map_or(0, |time| self.fences.propose(round, time));
        // Without one, 1 is a number like any other.
        self[round].grant = Some(Grant::One).filter(|_| proposal != 0);
    }

    /// A node has granted, and has said which number its counter has.
    #[cold]
    pub(crate) fn note_number(&mut self, round: RoundId, node: usize, answered: u64) {
        let (count, is_decided) = (self.config.nodes(), self[round].decided);
        let is_usual = self[round].grant.is_some();
        let Fence { proposal, agreement, .. } = &mut self.fences.slots[round.0];
        let number = if answered == AT_PROPOSAL && *proposal != 0 { *proposal } else { answered };
        if agreement.is_none() && number == *proposal && is_usual {
            return;
        }
        // Without one, all grants so far were at the proposal.
        let agreement = agreement.get_or_insert_with(|| {
            Box::new(Agreement {
                numbers: vec![*proposal; count].into(),
                chosen: is_decided.then_some(*proposal),
            })
        });
        agreement.numbers[node] = number;
        self[round].grant = None;
    }

    /// Counts a grant that counts, as far as its number allows (F7).
    #[cold]
    pub(crate) fn count_number(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        round: RoundId,
        node: usize,
    ) -> Option<Decision> {
        let voted = &self[round];
        // A node that has voted otherwise, such as by its silence, votes once.
        let is_over = voted.decided || voted.owner.is_none() || !voted.undecided.contains(node);
        let number = self.fences.number_of(round, node);
        match self.fences.chosen(round) {
            None if FencingToken::checked(number).is_none() => {
                self.vote(now, nodes, round, node, NodeOutcome::Outnumbered)
            }
            None => self.vote(now, nodes, round, node, NodeOutcome::Granted),
            Some(chosen) if number == chosen => {
                self.vote(now, nodes, round, node, NodeOutcome::Granted)
            }
            Some(chosen) if number < chosen && !is_over => {
                self.confirm(now, nodes, round, NodeSet::one(node));
                self.judge(now, nodes, round)
            }
            // Its own grant is beyond the number, or no acquisition waits for it (F10).
            Some(_) => self.vote(now, nodes, round, node, NodeOutcome::Outnumbered),
        }
    }

    /// A quorum has granted. The greatest of its numbers is the lock's (F8). If all of them have
    /// it, the round is won; if not, the others are raised.
    #[inline]
    pub(super) fn choose_or_win(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        won: Decision,
    ) -> Option<Decision> {
        match &self.fences.slots[won.round.0].agreement {
            None => Some(won),
            Some(agreement) if agreement.chosen.is_some() => Some(won),
            Some(_) => self.choose(now, nodes, won),
        }
    }

    #[cold]
    fn choose(&mut self, now: Moment, nodes: &mut Nodes, won: Decision) -> Option<Decision> {
        let round = won.round;
        let granted = self[round].granted;
        let Some(agreement) = &mut self.fences.slots[round.0].agreement else {
            return Some(won);
        };
        let numbers = &agreement.numbers;
        let greatest = granted.iter().map(|node| numbers[node]).max().unwrap_or_default();
        let mut lower = NodeSet::EMPTY;
        granted.iter().filter(|it| numbers[*it] < greatest).for_each(|node| lower.insert(node));
        agreement.chosen = Some(greatest);
        if lower.is_empty() {
            return Some(won);
        }
        self.take_back(round, lower);
        self.confirm(now, nodes, round, lower);
        self.judge(now, nodes, round)
    }

    /// Has these nodes raise their counters to the lock's number. Each of them has granted less, on
    /// the connection that it still has (F9).
    fn confirm(&mut self, now: Moment, nodes: &mut Nodes, round: RoundId, those: NodeSet) {
        let started = self[round].started;
        let mut raised = those;
        for node in those.iter() {
            let failure = match nodes[node].state() {
                _ if nodes[node].link.was_lost_since(started) => nodes[node].link.last_failure(),
                State::Ready if !nodes.open().contains(node) => NodeOutcome::Backlogged,
                State::Ready => continue,
                _ => nodes[node].link.last_failure(),
            };
            raised.remove(node);
            self.record(now, nodes, round, node, failure);
        }
        if !raised.is_empty() {
            self.stats.tokens_confirmed += raised.len() as u64;
            self[round].references += raised.len() as u32;
            nodes.outbox.push_back(Outgoing::Confirm(raised, round));
        }
    }

    /// Whether a raise that was not handed out is of no use: no acquisition waits for it (F14).
    pub(crate) fn is_confirm_useless(&self, now: Moment, round: RoundId) -> bool {
        let voted = &self[round];
        let is_over = voted.is_abandoned || voted.decided || voted.owner.is_none();
        is_over || now >= voted.deadline
    }

    /// The raise is not sent to these nodes.
    #[cold]
    pub(crate) fn take_back_confirm(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        those: NodeSet,
        round: RoundId,
    ) -> Option<Decision> {
        let mut decision = None;
        for node in those.iter() {
            if !self[round].decided {
                let outcome = NodeOutcome::TimedOut(Phase::Reply);
                decision = decision.or(self.vote(now, nodes, round, node, outcome));
            }
            self.dereference(round);
        }
        decision
    }

    /// The command that raises the counters to the lock's number.
    pub(crate) fn confirm_command(&self, round: RoundId) -> Command<'_> {
        let (counter, _) = self.fences.asked(round);
        let number = self.fences.chosen(round).unwrap_or_default();
        let Claim { key, token, .. } = self.claim(round);
        Command::Confirm { key: key.as_bytes(), token, counter, number }
    }
}
