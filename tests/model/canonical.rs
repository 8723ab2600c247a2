//! What makes no difference any more is forgotten, so that fewer states are different.

use crate::protocol::{Mistake, Redlock};
use crate::state::{ATTEMPTS, Attempt, Extend, Node, Phase, Set, State};

impl Redlock {
    pub fn canonical(&self, mut state: State) -> State {
        let now = state.now;
        for node in &mut state.nodes {
            if node.expiry <= now {
                node.drop_key();
            }
            for until in [&mut node.restarted, &mut node.stepped] {
                if *until <= now {
                    *until = 0;
                }
            }
        }
        let valid: [bool; ATTEMPTS] = std::array::from_fn(|a| state.attempts[a].is_valid(now));
        for a in 0..ATTEMPTS {
            let others = (0..ATTEMPTS).filter(|other| *other != a);
            let is_overlapped = others.into_iter().any(|other| valid[other]);
            self.settle(&mut state, a, is_overlapped);
            self.count_early(&mut state, a);
            let attempt = state.attempts[a];
            state.nodes.iter_mut().for_each(|node| self.tidy(node, a, &attempt));
            self.tidy_doubts(&mut state, a);
            if state.is_quiet(a) && !self.retries {
                state.attempts[a].losses = 0;
            }
        }
        state.nodes.sort_unstable();
        state
    }

    fn settle(&self, state: &mut State, a: usize, is_overlapped: bool) {
        let now = state.now;
        let attempt = &mut state.attempts[a];
        attempt.overlapped |= is_overlapped && attempt.phase == Phase::Held;
        let may_revive = attempt.extension > 0 && self.makes(Mistake::LenientExtension);
        let is_lost = match attempt.phase {
            Phase::Voting => !self.can_win(state, a),
            Phase::Held => !attempt.is_valid(now) && !may_revive,
            Phase::Idle | Phase::Late | Phase::Over => false,
        };
        if is_lost {
            // All that it can do is to release; the releases may be as late as they like.
            self.release(state, a, Phase::Over);
        }
        let attempt = &mut state.attempts[a];
        if !matches!(attempt.phase, Phase::Voting | Phase::Held) {
            let (phase, losses) = (attempt.phase, attempt.losses);
            *attempt = Attempt { phase, losses, ..Attempt::IDLE };
        }
    }

    /// A reply that does not complete a quorum is as good as in: nobody acts on it. If it is lost
    /// with its connection, the SET might as well have run after that.
    fn count_early(&self, state: &mut State, a: usize) {
        let acted_on = [Some(Mistake::StartAtFirstReply), Some(Mistake::ShiftedReply)];
        if acted_on.contains(&self.mistake) || self.quorum() < 2 {
            return;
        }
        if state.count(a, &[Set::FastPath]) == 0 {
            let mut sets = state.nodes.iter_mut().map(|node| &mut node.links[a].set);
            if let Some(set) = sets.find(|set| **set == Set::Granted) {
                *set = Set::FastPath;
            }
        }
        let is_first = state.nodes.iter().all(|node| node.links[a].extend != Extend::FastPath);
        if is_first {
            let mut extends = state.nodes.iter_mut().map(|node| &mut node.links[a].extend);
            if let Some(extend) = extends.find(|extend| **extend == Extend::Granted) {
                *extend = Extend::FastPath;
            }
        }
    }

    fn tidy(&self, node: &mut Node, a: usize, attempt: &Attempt) {
        let (voting, held) = (attempt.phase == Phase::Voting, attempt.phase == Phase::Held);
        let (owner, link) = (node.owner, &mut node.links[a]);
        let is_told = held && self.makes(Mistake::GiverStillReleases);
        link.set = match link.set {
            Set::Granted if self.makes(Mistake::ShiftedReply) => Set::Granted,
            Set::FastPath if is_told => Set::FastPath,
            Set::Granted | Set::FastPath | Set::Uncounted if !voting => Set::Done,
            Set::Straggler if !held => Set::Done,
            set => set,
        };
        link.extend = match link.extend {
            Extend::Granted | Extend::FastPath if attempt.extension == 0 => Extend::Done,
            Extend::Unsent if attempt.phase > Phase::Held => Extend::Done,
            extend => extend,
        };
        // Nothing can be extended or released where there is no key and none will be.
        let may_own = owner == self.token(a) || link.may_set();
        if !may_own && !self.heals {
            link.old.extends = 0;
            link.forgotten.extends = 0;
            if link.extend == Extend::Sent {
                link.extend = Extend::Done;
            }
        }
        let may_own = may_own || link.may_extend();
        let of_others = [Some(Mistake::ReleaseOfAnyKey), Some(Mistake::ReusedToken)];
        if !may_own && !of_others.contains(&self.mistake) {
            link.releases = 0;
            link.old.releases = 0;
            link.forgotten.releases = 0;
        }
    }

    /// Who counts a node is of interest only for as long as an extension may.
    fn tidy_doubts(&self, state: &mut State, a: usize) {
        let now = state.now;
        let giver = self.may_hand_over(state, a);
        let taker = state.attempts[a].is_handed_over && self.may_be_extended(state, a);
        for node in &mut state.nodes {
            let link = &mut node.links[a];
            if link.doubt <= now || !(giver || taker) {
                link.doubt = 0;
            }
            link.is_blind &= taker && now < node.stepped;
        }
    }
}
