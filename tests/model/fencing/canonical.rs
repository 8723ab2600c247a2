//! What makes no difference any more is forgotten, so that fewer states are different.

use super::protocol::{Fencing, Mistake};
use super::state::{ATTEMPTS, Attempt, Grant, Link, NO_OWNER, Node, Phase, Raise, State};

impl<const N: usize> Fencing<N> {
    pub fn canonical(&self, mut state: State<N>) -> State<N> {
        for node in &mut state.nodes {
            if node.quarantine <= state.now {
                node.quarantine = 0;
            }
            if self.looks_at_the_clock_always() {
                node.is_seeded = true;
                node.counter = node.counter.max(self.least(state.now).saturating_sub(1));
            }
        }
        for a in 0..self.attempts {
            let attempt = state.attempts[a];
            for node in &mut state.nodes {
                self.tidy_raise(node, a);
            }
            if attempt.is_under_way() && !self.can_win(&state, a) {
                state.attempts[a].phase = Phase::Lost;
            }
            let attempt = state.attempts[a];
            if !attempt.is_under_way() {
                state.nodes.iter_mut().for_each(|node| self.tidy(node, a, &attempt));
                self.tidy_attempt(&mut state, a);
            }
        }
        state.nodes.sort_unstable();
        state
    }

    /// A RAISE that cannot find its key is as one that was lost.
    fn tidy_raise(&self, node: &mut Node<ATTEMPTS>, a: usize) {
        let outlives = [
            Mistake::RaiseOfAnyKey,
            Mistake::RaiseBeforeGrant,
            Mistake::SentAgain,
            Mistake::EarlyHeal,
        ];
        let may_find_it = node.is_owned_by(a)
            || self.heals
            || self.mistake.is_some_and(|mistake| outlives.contains(&mistake));
        let link = &mut node.links[a];
        if link.raise == Raise::Sent && !may_find_it {
            link.raise = Raise::Unsent;
        }
    }

    fn can_win(&self, state: &State<N>, a: usize) -> bool {
        let attempt = &state.attempts[a];
        let may_vote = |_: &Node<ATTEMPTS>, link: &Link| match (attempt.phase, link.grant) {
            (Phase::Voting, grant) => !matches!(grant, Grant::Unsent | Grant::Done),
            (_, Grant::Sent) => true,
            (_, Grant::Granted) if self.makes(Mistake::LateGreaterCounts) => true,
            (_, Grant::Granted) if link.number <= attempt.number => true,
            _ => link.is_stamped || link.raise != Raise::Unsent,
        };
        state.count(a, may_vote) >= self.quorum()
    }

    fn tidy_attempt(&self, state: &mut State<N>, a: usize) {
        let is_sent = state.count(a, |_, link| link.grant == Grant::Sent) > 0;
        let is_raising = state.count(a, |_, link| link.raise == Raise::Sent) > 0;
        let may_start = state.attempts[..self.attempts].iter().any(|it| it.phase == Phase::Idle);
        let attempt = &mut state.attempts[a];
        (attempt.before, attempt.long_before) = (0, 0);
        if !is_sent {
            attempt.proposal = 0;
        }
        if attempt.phase == Phase::Lost && !is_raising {
            attempt.number = 0;
        }
        if !may_start || state.now == self.horizon {
            // At the last tick, only what was returned long before matters.
            let is_long_ago = state.now > attempt.returned_at + 2;
            attempt.returned_at = if may_start && !is_long_ago { state.now } else { 0 };
        }
    }

    /// The attempt is over: what it sent may run, and what it owns may be owned. A key that nobody
    /// counts on may as well vanish at once: it keeps others off, who may also be late.
    fn tidy(&self, node: &mut Node<ATTEMPTS>, a: usize, attempt: &Attempt) {
        let is_owned = node.is_owned_by(a) && attempt.phase == Phase::Returned;
        let link = &mut node.links[a];
        let is_granted = link.number > 0 && link.number <= attempt.number;
        let may_run = self.stragglers;
        let (is_sent, is_raising) = (link.grant == Grant::Sent, link.raise == Raise::Sent);
        *link = Link {
            grant: if is_sent && may_run { Grant::Sent } else { Grant::Unsent },
            number: 0,
            raise: if is_raising && may_run { Raise::Sent } else { Raise::Unsent },
            is_stamped: is_owned && link.is_stamped,
            is_first: is_owned && (link.is_first || is_granted),
        };
        let is_needed = is_owned || link.raise == Raise::Sent;
        if node.is_owned_by(a) && !is_needed {
            node.owner = NO_OWNER;
        }
    }
}
