//! What clients do.

use crate::protocol::{Mistake, Reconnect, Redlock};
use crate::state::{Attempt, Extend, Link, NODES, Pending, Phase, Set, State, UNKNOWN};

/// Acquisition and release.
impl Redlock {
    pub fn start(&self, state: &mut State, a: usize) {
        let guesses = [Some(Mistake::StartAtFirstReply), Some(Mistake::StartAtQuorum)];
        let deadline = match guesses.contains(&self.mistake) {
            true => UNKNOWN,
            false => self.deadline(state.now, a),
        };
        state.attempts[a] = Attempt { phase: Phase::Voting, deadline, ..Attempt::IDLE };
        state.nodes.iter_mut().for_each(|node| node.links[a].set = Set::Sent);
    }

    /// A grant comes in: the lock is acquired with the quorum's last one, if it is not too late.
    pub fn vote(&self, state: &mut State, n: usize, a: usize) {
        let credited = self.credited(state, a);
        state.nodes[n].links[a].set = Set::Done;
        state.nodes[n].links[credited].set = Set::FastPath;
        let is_won = state.count(credited, &[Set::FastPath]) >= self.quorum();
        let (now, attempt) = (state.now, &mut state.attempts[credited]);
        if attempt.deadline == UNKNOWN && (is_won || self.makes(Mistake::StartAtFirstReply)) {
            attempt.deadline = self.deadline(now, credited);
        }
        match (is_won, now < attempt.deadline) {
            (true, true) => attempt.phase = Phase::Held,
            (true, false) => self.release(state, credited, Phase::Late),
            (false, _) => {}
        }
    }

    pub fn unlock(&self, state: &mut State, a: usize) {
        let believed = self.makes(Mistake::DeadAfterRelease);
        let phase = if believed { state.attempts[a].phase } else { Phase::Over };
        self.release(state, a, phase);
    }

    /// The lock is dead before the first release is sent, and a release goes to every node.
    pub fn release(&self, state: &mut State, a: usize, phase: Phase) {
        state.attempts[a].phase = phase;
        for node in &mut state.nodes {
            node.links[a].releases = self.releases(&node.links[a]);
        }
    }

    /// How many are sent, one after the other.
    fn releases(&self, link: &Link) -> u8 {
        let may_be_late = link.old.set || (self.heals && link.old.extends > 0);
        match self.reconnect {
            Reconnect::ReleaseTwice if may_be_late => 2,
            Reconnect::ReleaseTwice | Reconnect::Barrier => 1,
        }
    }
}

/// Extension, hand-over, and connections.
impl Redlock {
    /// An extension before it, if it is not complete, is given up.
    pub fn extend(&self, state: &mut State, a: usize) {
        let attempt = &mut state.attempts[a];
        attempt.extension = self.extended_deadline(state.now);
        attempt.extensions += 1;
        for link in state.nodes.iter_mut().map(|node| &mut node.links[a]) {
            // On the same connection; but what comes at any time comes also in its order.
            link.old.extends += u8::from(link.extend == Extend::Sent);
            link.extend = Extend::Sent;
        }
    }

    pub fn extension_reply(&self, state: &mut State, n: usize, a: usize) {
        state.nodes[n].links[a].extend = Extend::FastPath;
        let votes = state.nodes.iter().filter(|node| node.links[a].extend == Extend::FastPath);
        let is_won = votes.count() >= self.quorum();
        let (now, attempt) = (state.now, &mut state.attempts[a]);
        if is_won && (now < attempt.deadline || self.makes(Mistake::LenientExtension)) {
            let from_reply = self.makes(Mistake::ExtensionFromReply);
            let deadline = if from_reply { self.extended_deadline(now) } else { attempt.extension };
            attempt.deadline = attempt.deadline.max(deadline);
            attempt.extension = 0;
        }
    }

    /// The giver says which of its commands may still run and which nodes it would not count, and
    /// from then on it sends nothing. The taker has connections of its own.
    pub fn hand_over(&self, state: &mut State, a: usize) {
        let now = state.now;
        let attempt = &mut state.attempts[a];
        (attempt.is_handed_over, attempt.extensions, attempt.losses) = (true, 0, 0);
        attempt.extension = 0;
        for node in &mut state.nodes {
            let is_stepped = now < node.stepped;
            let link = &mut node.links[a];
            let is_unanswered = link.may_set();
            let stays = self.said_later(link);
            link.lose_connection();
            if self.makes(Mistake::TakerForgetsTheDoubt) {
                link.forget_old_connections();
            }
            link.forgotten.add(stays);
            link.extend = Extend::Unsent;
            link.is_blind = is_stepped;
            if self.makes(Mistake::TakerCountsQuarantined) {
                link.doubt = 0;
            }
            if is_unanswered && !self.makes(Mistake::TakerCountsUnanswered) {
                link.doubt = now + self.guard;
            }
        }
    }

    /// What a giver sends that should be silent.
    fn said_later(&self, link: &Link) -> Pending {
        let (extends, releases) = match self.mistake {
            Some(Mistake::GiverStillSends) => (1, 0),
            Some(Mistake::GiverStillReleases) => (0, u8::from(link.set != Set::FastPath)),
            _ => (0, 0),
        };
        Pending { extends, releases, ..Pending::NOTHING }
    }

    /// Nothing is known of what was sent on the connection. If the lock was given up, it is
    /// released on the next one; before that, nothing is.
    pub fn lose_connection(&self, state: &mut State, n: usize, a: usize) {
        let client = self.client(a);
        state.attempts[client].losses += 1;
        for a in (0..self.attempts).filter(|a| self.client(*a) == client) {
            let is_over = state.attempts[a].is_over();
            self.lose_link(&mut state.nodes[n].links[a], is_over);
        }
    }

    fn lose_link(&self, link: &mut Link, is_over: bool) {
        let is_released = is_over && link.is_awaited();
        let is_unresolved = link.set == Set::Sent || link.releases > 0;
        let is_released_early = self.makes(Mistake::ReleaseWhileHeld) && is_unresolved;
        if self.makes(Mistake::NewReleaseForgetsOldConnection) {
            link.forget_old_connections();
        }
        if is_released_early {
            link.forgotten.releases += std::mem::take(&mut link.releases).min(1);
        }
        link.lose_connection();
        if is_released || is_released_early {
            link.releases = self.releases(link);
        }
    }
}

/// What a client knows.
impl Redlock {
    pub fn can_win(&self, state: &State, a: usize) -> bool {
        let hopes: &[Set] = match state.now < state.attempts[a].deadline {
            true => &[Set::Sent, Set::Granted, Set::FastPath],
            // It will be refused, but let it come so far.
            false => &[Set::Granted, Set::FastPath],
        };
        state.count(a, hopes) >= self.quorum() || self.makes(Mistake::ShiftedReply)
    }

    pub fn may_hand_over(&self, state: &State, a: usize) -> bool {
        let attempt = &state.attempts[a];
        a < self.hand_overs && !attempt.is_handed_over && !attempt.is_over()
    }

    /// Whether an extension of this attempt may still count.
    pub fn may_be_extended(&self, state: &State, a: usize) -> bool {
        let attempt = &state.attempts[a];
        let may_begin = a < self.extenders && attempt.extensions < self.extensions;
        let is_begun = (0..NODES).any(|n| state.nodes[n].links[a].extend == Extend::Sent);
        attempt.phase == Phase::Held && (may_begin || is_begun)
    }
}
