//! What clients and nodes do.

use super::protocol::{Fencing, Mistake, Numbers, Proposal, Replies};
use super::state::{Attempt, Grant, Link, Mark, Phase, Raise, State};

/// What clients do.
impl<const N: usize> Fencing<N> {
    pub fn start(&self, state: &mut State<N>, a: usize, proposal: Proposal) {
        let proposal = match proposal {
            Proposal::Stale => 0,
            Proposal::Fresh => state.greatest_counter() + 1,
            Proposal::Ahead => state.greatest_counter() + 3,
        };
        let mut attempt = Attempt { phase: Phase::Voting, proposal, ..Attempt::IDLE };
        for (other, earlier) in state.returned() {
            attempt.before |= 1 << other;
            if state.now > earlier.returned_at + Self::APART {
                attempt.long_before |= 1 << other;
            }
        }
        state.attempts[a] = attempt;
        state.nodes.iter_mut().for_each(|node| node.links[a].grant = Grant::Sent);
    }

    pub fn read(&self, state: &mut State<N>, n: usize, a: usize) {
        if state.attempts[a].phase == Phase::Voting {
            self.take(state, n, a);
            return;
        }
        let number = state.attempts[a].number;
        state.mark = Some(match state.nodes[n].links[a].number.cmp(&number) {
            std::cmp::Ordering::Less => Mark::LateSmaller,
            std::cmp::Ordering::Equal => Mark::LateEqual,
            std::cmp::Ordering::Greater => Mark::LateGreater,
        });
        state.nodes[n].links[a].grant = Grant::Read;
        self.stamp(&mut state.nodes[n].links[a], number);
        self.finish(state, a);
    }

    /// The grant is one of the q (F8).
    pub fn take(&self, state: &mut State<N>, n: usize, a: usize) {
        let link = &mut state.nodes[n].links[a];
        (link.grant, link.is_first) = (Grant::Read, true);
        let last = link.number;
        let numbers = state.nodes.iter().map(|node| &node.links[a]);
        let numbers = numbers.filter(|link| link.is_first).map(|link| link.number);
        if numbers.clone().count() < self.quorum() {
            return;
        }
        let number = match self.mistake {
            Some(Mistake::Smallest) => numbers.min(),
            Some(Mistake::Last) => Some(last),
            _ => numbers.max(),
        };
        let number = number.unwrap_or_default();
        (state.attempts[a].phase, state.attempts[a].number) = (Phase::Stamping, number);
        for link in state.nodes.iter_mut().map(|node| &mut node.links[a]) {
            match link.grant {
                Grant::Read => self.stamp(link, number),
                _ if self.makes(Mistake::RaiseBeforeGrant) => link.raise = Raise::Sent,
                _ => {}
            }
        }
        self.finish(state, a);
        if state.attempts[a].phase == Phase::Returned {
            state.mark = Some(Mark::FirstPhase);
        }
    }

    /// A grant was read, and the number is fixed (F7, F9, F10).
    fn stamp(&self, link: &mut Link, number: u8) {
        let is_smaller = link.number < number;
        let counts = match self.mistake {
            Some(Mistake::NoRaise) => link.is_first || !is_smaller,
            Some(Mistake::LateGreaterCounts) => !is_smaller,
            _ => link.number == number,
        };
        if counts {
            link.is_stamped = true;
        } else if is_smaller && link.raise == Raise::Unsent {
            link.raise = Raise::Sent;
        }
    }

    pub fn acknowledge(&self, state: &mut State<N>, n: usize, a: usize) {
        let link = &mut state.nodes[n].links[a];
        (link.raise, link.is_stamped) = (Raise::Unsent, true);
        self.finish(state, a);
        if state.attempts[a].phase == Phase::Returned {
            state.mark = Some(Mark::SecondPhase);
        }
    }

    /// The lock is returned with its last stamp.
    fn finish(&self, state: &mut State<N>, a: usize) {
        if state.count(a, |_, link| link.is_stamped) < self.quorum() {
            return;
        }
        let attempt = state.attempts[a];
        let breaks = |others: u8| {
            let mut others = state.returned().filter(|(other, _)| others & 1 << other != 0);
            others.any(|(_, other)| other.number >= attempt.number)
        };
        let (is_disordered, is_far) = (breaks(attempt.before), breaks(attempt.long_before));
        state.is_disordered |= is_disordered;
        state.is_disordered_far |= is_far;
        let now = state.now;
        let attempt = &mut state.attempts[a];
        (attempt.phase, attempt.returned_at) = (Phase::Returned, now);
    }
}

/// What nodes do, and what befalls them.
impl<const N: usize> Fencing<N> {
    pub fn grant(&self, state: &mut State<N>, n: usize, a: usize, clock: u8) {
        let (now, proposal) = (state.now, state.attempts[a].proposal);
        let is_under_way = state.attempts[a].is_under_way();
        let node = &mut state.nodes[n];
        let is_seeding = match self.mistake {
            Some(Mistake::SeededOnce) => !node.is_seeded,
            Some(Mistake::SeededIfAbsent) => node.counter == 0,
            _ => true,
        };
        let least = match self.numbers {
            Numbers::Free => proposal,
            Numbers::Clamped if is_seeding => clock,
            Numbers::Clamped => 0,
        };
        let next = match self.mistake {
            Some(Mistake::NoIncrement) => node.counter.max(1),
            Some(Mistake::ProposalOverrides) if least > 0 => 0,
            _ => node.counter + 1,
        };
        node.owner = a as u8;
        node.counter = next.max(least);
        node.is_seeded = true;
        let link = &mut node.links[a];
        if link.grant != Grant::Sent {
            return;
        }
        (link.grant, link.number) = (Grant::Granted, node.counter);
        if now < node.quarantine {
            (link.grant, link.number) = (Grant::Done, 0);
            state.mark = is_under_way.then_some(Mark::Uncounted);
        }
    }

    pub fn raise(&self, state: &mut State<N>, n: usize, a: usize) {
        let (now, number) = (state.now, state.attempts[a].number);
        let node = &mut state.nodes[n];
        node.links[a].raise = Raise::Acknowledged;
        if now < node.quarantine && !self.makes(Mistake::QuarantinedRaise) {
            node.links[a].raise = Raise::Unsent;
            node.links[a].grant = Grant::Done;
            state.mark = Some(Mark::Uncounted);
        }
        if self.makes(Mistake::LoweringRaise) {
            state.is_lowered |= number < node.counter;
            node.counter = number;
        }
        node.counter = node.counter.max(number);
    }

    /// The key need not be lost with it; but it may be, as at any moment.
    pub fn lose(&self, state: &mut State<N>, n: usize, rest: u8) {
        state.losses -= 1;
        let node = &mut state.nodes[n];
        (node.counter, node.quarantine, node.is_seeded) = (rest, state.now + self.guard, false);
        if self.replies == Replies::DieWithTheCounter {
            for link in &mut node.links {
                if link.grant == Grant::Granted {
                    link.grant = Grant::Done;
                }
                if link.raise == Raise::Acknowledged {
                    link.raise = Raise::Unsent;
                }
            }
        }
    }
}
