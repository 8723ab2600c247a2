//! The protocol as a transition system: what may happen next, and what comes of it.

use stateright::{Model, Property};

use crate::state::{
    ATTEMPTS, Attempt, Extend, Link, NOBODY, NODES, Node, Phase, Set, State, UNKNOWN,
};

/// At most one attempt is valid.
pub const EXCLUSION: &str = "mutual exclusion";
/// No lock is valid if another one was between its acquisition and now.
pub const CONTINUITY: &str = "continuity";
/// An attempt that is over, and all of whose commands were executed, has left no key.
pub const NO_GHOST: &str = "no ghost";
/// A node grants a lock that is held already by the votes of the others.
pub const STRAGGLER: &str = "a straggler";
/// There is a quorum, but too late.
pub const LATE_QUORUM: &str = "a late quorum";
/// An attempt that can still win has a grant that does not count.
pub const UNCOUNTED: &str = "an uncounted grant";
/// A lock is extended.
pub const EXTENSION: &str = "an extension";

/// The environment, and the bounds within which every schedule is tried.
#[derive(Clone, Copy, Debug)]
pub struct Redlock {
    pub attempts: usize,
    /// Whether the second attempt is the first one's client that tries again, rather than another
    /// client.
    pub retries: bool,
    /// The time to live that each attempt asks for, in ticks.
    pub ttl: [u8; ATTEMPTS],
    /// What is taken off each validity, for clocks that disagree.
    pub drift: u8,
    /// The last tick.
    pub horizon: u8,
    pub order: Order,
    /// How many of the attempts, the first ones, may extend their lock, once.
    pub extenders: usize,
    /// The time to live that an extension asks for.
    pub extension_ttl: u8,
    /// Whether an extension sets the key anew where there is none (R29).
    pub heals: bool,
    /// How many times a node may restart without its data.
    pub crashes: u8,
    pub restart: Restart,
    /// For how long after a restart what the node says does not count.
    pub guard: u8,
    /// How many times a node's clock may step forward by a tick.
    pub steps: u8,
    /// How many times a connection of the first attempt may be lost.
    pub losses: u8,
    pub reconnect: Reconnect,
    pub mistake: Option<Mistake>,
}

/// In which order a node executes what one client sends. What is never executed is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As sent: one TCP connection for each client and node.
    Fifo,
    /// As sent within one attempt: the next one has new connections.
    FifoPerAttempt,
    /// Any: as many connections as commands.
    Unordered,
}

/// What becomes of commands that a node had not executed when it went down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// They die with their connection.
    KillsCommands,
    /// They were waiting for a connection, and come after the restart.
    KeepsCommands,
}

/// How a client makes sure that a SET whose connection was lost leaves no key behind (R12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconnect {
    /// It ends the SET's connection, with all that the node has not read of it, and releases.
    Barrier,
    /// It releases, and once more later, because the SET may run in between.
    ReleaseTwice,
}

/// A rule that is broken, so that the checker has something to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Validity counts from the first reply, not from before the first SET (R1).
    StartAtFirstReply,
    /// The time that the votes took is not taken off the validity (R2).
    StartAtQuorum,
    /// Half of the nodes, rounded down, make a quorum.
    HalfQuorum,
    /// The reply to a dead attempt's SET is taken for one to the next attempt's (R3, R17).
    ShiftedReply,
    /// The second attempt has the token of the first (R6).
    ReusedToken,
    /// A release deletes the key, whoever owns it (R10).
    ReleaseOfAnyKey,
    /// A lock is believed in while its release is under way (R14).
    DeadAfterRelease,
    /// An extension counts even if it is complete after the old deadline (R22, R25).
    LenientExtension,
    /// An extension's validity counts from its last reply (R25).
    ExtensionFromReply,
    /// An extension may shorten what is left of a key's life (R27).
    ShorteningExtension,
    /// An extension counts on nodes in quarantine.
    QuarantinedExtension,
    /// An extension counts on a node that a release of the same key is still owed to (R12).
    ReleasingExtension,
    /// An extension counts where such a release was lost in its turn, and may still run.
    StrayRelease,
    /// An extension that heals sets the key whoever owns it (R29).
    HealingOverAnother,
    /// An extension that heals may run after the release on the next connection (R12).
    HealingOutlivesConnection,
}

/// A step. Nodes are numbered as in the state before it, attempts as they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Start(usize),
    GiveUp(usize),
    Unlock(usize),
    Extend(usize),
    /// A node executes an attempt's command.
    Execute(usize, usize, Command),
    /// A node's reply reaches the attempt's client.
    Reply(usize, usize, Command),
    Crash(usize),
    StepClock(usize),
    LoseConnection(usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Set,
    Extend,
    Release,
    /// The release of what a lost connection may have left behind.
    Owed,
    /// Such a release on a connection that was lost in its turn.
    Stray,
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    /// The first attempt starts at once: whatever was before makes no difference.
    fn init_states(&self) -> Vec<State> {
        self.next_state(&State::EMPTY, Action::Start(0)).into_iter().collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.horizon {
            actions.push(Action::Tick);
        }
        let started = state.attempts.iter().take_while(|at| at.phase != Phase::Idle).count();
        let is_free = !self.is_retry(started) || state.attempts[0].phase >= Phase::Late;
        if started < self.attempts && is_free {
            actions.push(Action::Start(started));
        }
        for attempt in 0..started {
            self.client_actions(state, attempt, actions);
            for node in 0..NODES {
                self.link_actions(state, node, attempt, actions);
            }
        }
        // Without a key, a node has nothing to forget.
        for node in (0..NODES).filter(|node| state.nodes[*node].owner != NOBODY) {
            if state.crashes < self.crashes {
                actions.push(Action::Crash(node));
            }
            if state.steps < self.steps {
                actions.push(Action::StepClock(node));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = forget(*last);
        match action {
            Action::Tick => state.now += 1,
            Action::Start(attempt) => self.start(&mut state, attempt),
            Action::GiveUp(attempt) => self.release(&mut state, attempt, Phase::Over),
            Action::Unlock(attempt) => {
                let believed = self.makes(Mistake::DeadAfterRelease);
                let phase = if believed { state.attempts[attempt].phase } else { Phase::Over };
                self.release(&mut state, attempt, phase);
            }
            Action::Extend(attempt) => {
                state.attempts[attempt].extension = self.extension(state.now);
                let links = state.nodes.iter_mut().map(|node| &mut node.links[attempt]);
                links.for_each(|link| link.extend = Extend::Sent);
            }
            Action::Execute(node, attempt, command) => {
                self.execute(&mut state, node, attempt, command);
            }
            Action::Reply(node, attempt, Command::Extend) => {
                self.extension_reply(&mut state, node, attempt);
            }
            Action::Reply(node, attempt, _) => self.vote(&mut state, node, attempt),
            Action::Crash(node) => self.crash(&mut state, node),
            Action::StepClock(node) => {
                state.steps += 1;
                state.nodes[node].expiry -= 1;
            }
            Action::LoseConnection(node, attempt) => {
                state.losses += 1;
                self.lose_connection(&mut state.nodes[node].links[attempt]);
            }
        }
        Some(self.canonical(state))
    }

    fn properties(&self) -> Vec<Property<Redlock>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| state.valid().count() <= 1),
            Property::always(CONTINUITY, |_, state: &State| state.valid().all(|at| !at.overlapped)),
            Property::always(NO_GHOST, |model: &Redlock, state: &State| !model.has_ghost(state)),
            Property::sometimes(STRAGGLER, |_, state: &State| {
                state.has(Phase::Held, Set::Straggler)
            }),
            Property::sometimes(LATE_QUORUM, |_, state: &State| {
                state.attempts.iter().any(|at| at.phase == Phase::Late)
            }),
            Property::sometimes(UNCOUNTED, |_, state: &State| {
                state.has(Phase::Voting, Set::Uncounted)
            }),
            Property::sometimes(EXTENSION, |_, state: &State| state.has_extended()),
        ]
    }
}

/// What is told apart for one state only, to be seen.
fn forget(mut state: State) -> State {
    for attempt in state.attempts.iter_mut().filter(|attempt| attempt.phase == Phase::Late) {
        attempt.phase = Phase::Over;
    }
    for link in state.nodes.iter_mut().flat_map(|node| &mut node.links) {
        if matches!(link.set, Set::Straggler | Set::Uncounted) {
            link.set = Set::Done;
        }
    }
    state
}

/// What may happen.
impl Redlock {
    fn client_actions(&self, state: &State, a: usize, actions: &mut Vec<Action>) {
        let attempt = &state.attempts[a];
        match attempt.phase {
            Phase::Voting => actions.push(Action::GiveUp(a)),
            Phase::Held => actions.push(Action::Unlock(a)),
            Phase::Idle | Phase::Late | Phase::Over => {}
        }
        let is_first = state.nodes.iter().all(|node| node.links[a].extend == Extend::Unsent);
        if a < self.extenders && attempt.is_valid(state.now) && is_first {
            actions.push(Action::Extend(a));
        }
    }

    fn link_actions(&self, state: &State, n: usize, a: usize, actions: &mut Vec<Action>) {
        let link = &state.nodes[n].links[a];
        let may_run = [
            (Command::Set, self.may_run_set(&state.nodes[n], a)),
            (Command::Extend, self.may_run_extension(link)),
            (Command::Release, self.may_run_release(link)),
            (Command::Owed, link.owed > 0),
            (Command::Stray, link.strays > 0),
        ];
        for (command, _) in may_run.into_iter().filter(|(_, may_run)| *may_run) {
            actions.push(Action::Execute(n, a, command));
        }
        let is_awaited = |a: usize| state.attempts[a].phase == Phase::Voting;
        if link.set == Set::Granted && is_awaited(self.credited(state, a)) {
            actions.push(Action::Reply(n, a, Command::Set));
        }
        if link.extend == Extend::Granted {
            actions.push(Action::Reply(n, a, Command::Extend));
        }
        let is_unanswered = !link.is_quiet() || link.set == Set::Granted;
        if a == 0 && state.losses < self.losses && is_unanswered {
            actions.push(Action::LoseConnection(n, a));
        }
    }

    fn may_run_set(&self, node: &Node, a: usize) -> bool {
        let before = &node.links[0];
        let is_behind = self.order == Order::Fifo && self.is_retry(a);
        let is_next = !is_behind || (before.set != Set::Sent && !before.release);
        match node.links[a].set {
            Set::Sent => is_next,
            Set::Orphan => true,
            _ => false,
        }
    }

    fn may_run_extension(&self, link: &Link) -> bool {
        // What is owed was sent with the new connection's first bytes, but for a repetition.
        let later = u8::from(self.reconnect == Reconnect::ReleaseTwice);
        let is_next =
            self.order == Order::Unordered || (link.set != Set::Sent && link.owed <= later);
        match link.extend {
            Extend::Sent => is_next,
            Extend::Orphan => true,
            _ => false,
        }
    }

    fn may_run_release(&self, link: &Link) -> bool {
        let is_next = link.set != Set::Sent && link.extend != Extend::Sent;
        link.release && (self.order == Order::Unordered || is_next)
    }
}

/// What clients do.
impl Redlock {
    fn start(&self, state: &mut State, a: usize) {
        let guesses = [Some(Mistake::StartAtFirstReply), Some(Mistake::StartAtQuorum)];
        let deadline = match guesses.contains(&self.mistake) {
            true => UNKNOWN,
            false => self.deadline(state.now, a),
        };
        state.attempts[a] = Attempt { phase: Phase::Voting, deadline, ..Attempt::IDLE };
        state.nodes.iter_mut().for_each(|node| node.links[a].set = Set::Sent);
    }

    /// The lock is dead before the first release is sent, and a release goes to every node.
    fn release(&self, state: &mut State, a: usize, phase: Phase) {
        state.attempts[a].phase = phase;
        state.nodes.iter_mut().for_each(|node| node.links[a].release = true);
    }

    /// A grant comes in: the lock is acquired with the quorum's last one, if it is not too late.
    fn vote(&self, state: &mut State, n: usize, a: usize) {
        let credited = self.credited(state, a);
        state.nodes[n].links[a].set = Set::Done;
        state.nodes[n].links[credited].set = Set::Counted;
        let is_won = state.count(credited, &[Set::Counted]) >= self.quorum();
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

    fn extension_reply(&self, state: &mut State, n: usize, a: usize) {
        state.nodes[n].links[a].extend = Extend::Counted;
        let votes = state.nodes.iter().filter(|node| node.links[a].extend == Extend::Counted);
        let is_won = votes.count() >= self.quorum();
        let (now, attempt) = (state.now, &mut state.attempts[a]);
        if is_won && (now < attempt.deadline || self.makes(Mistake::LenientExtension)) {
            let from_reply = self.makes(Mistake::ExtensionFromReply);
            let deadline = if from_reply { self.extension(now) } else { attempt.extension };
            attempt.deadline = attempt.deadline.max(deadline);
            attempt.extension = 0;
        }
    }

    /// Of what was sent on the connection nothing is known; a SET among it is to be released.
    fn lose_connection(&self, link: &mut Link) {
        let is_unresolved = matches!(link.set, Set::Sent | Set::Granted);
        link.strays += u8::from(link.owed > 0);
        link.owed = match self.reconnect {
            Reconnect::ReleaseTwice if is_unresolved => 2,
            Reconnect::Barrier if is_unresolved => 1,
            Reconnect::ReleaseTwice | Reconnect::Barrier => link.owed.min(1),
        };
        link.set = match link.set {
            Set::Sent => Set::Orphan,
            Set::Granted => Set::Done,
            set => set,
        };
        link.extend = match link.extend {
            Extend::Sent => Extend::Orphan,
            Extend::Granted => Extend::Done,
            extend => extend,
        };
    }
}

/// What nodes do.
impl Redlock {
    fn execute(&self, state: &mut State, n: usize, a: usize, command: Command) {
        let (now, phase) = (state.now, state.attempts[a].phase);
        let node = &mut state.nodes[n];
        match command {
            Command::Set => self.execute_set(node, a, now, phase),
            Command::Extend => self.execute_extension(node, a, now),
            Command::Release => node.links[a].release = false,
            Command::Stray => node.links[a].strays -= 1,
            Command::Owed => {
                let link = &mut node.links[a];
                link.owed -= 1;
                if self.reconnect == Reconnect::Barrier && link.set == Set::Orphan {
                    // Its connection was ended before.
                    link.set = Set::Done;
                }
            }
        }
        let is_behind_barrier =
            matches!(command, Command::Release | Command::Owed) && self.ends_lost_healing();
        if is_behind_barrier && node.links[a].extend == Extend::Orphan {
            node.links[a].extend = Extend::Done;
        }
        let is_release = !matches!(command, Command::Set | Command::Extend);
        let is_owner = node.owner == self.token(a) || self.makes(Mistake::ReleaseOfAnyKey);
        if is_release && is_owner {
            node.drop_key();
        }
    }

    /// Whether a connection is ended, too, when nothing but an extension was lost with it: it may
    /// set the key after its release, if it heals.
    fn ends_lost_healing(&self) -> bool {
        self.heals
            && self.reconnect == Reconnect::Barrier
            && !self.makes(Mistake::HealingOutlivesConnection)
    }

    fn execute_set(&self, node: &mut Node, a: usize, now: u8, phase: Phase) {
        let is_orphan = node.links[a].set == Set::Orphan;
        let is_free = node.owner == NOBODY;
        if is_free {
            node.take_key(self.token(a), now + self.ttl[a]);
        }
        node.links[a].set = match phase {
            _ if is_orphan || !is_free => Set::Done,
            Phase::Held => Set::Straggler,
            _ if now < node.quarantine => Set::Uncounted,
            _ => Set::Granted,
        };
    }

    fn execute_extension(&self, node: &mut Node, a: usize, now: u8) {
        let is_orphan = node.links[a].extend == Extend::Orphan;
        let is_owner = node.owner == self.token(a);
        let is_free = node.owner == NOBODY || self.makes(Mistake::HealingOverAnother);
        let is_there = is_owner || (self.heals && is_free);
        if is_there {
            let shortens = self.makes(Mistake::ShorteningExtension);
            let at_least = if shortens { 0 } else { node.expiry };
            node.take_key(self.token(a), at_least.max(now + self.extension_ttl));
        }
        let link = &mut node.links[a];
        let is_quarantined = now < node.quarantine && !self.makes(Mistake::QuarantinedExtension);
        let is_releasing = link.owed > 0 && !self.makes(Mistake::ReleasingExtension);
        // Behind a barrier there is no key that a stray release could delete.
        let may_be_deleted = link.strays > 0
            && self.reconnect == Reconnect::ReleaseTwice
            && !self.makes(Mistake::StrayRelease);
        let counts = !is_quarantined && !is_releasing && !may_be_deleted;
        let is_granted = is_there && counts && !is_orphan;
        link.extend = if is_granted { Extend::Granted } else { Extend::Done };
    }

    fn crash(&self, state: &mut State, n: usize) {
        state.crashes += 1;
        let node = &mut state.nodes[n];
        node.drop_key();
        node.quarantine = state.now + self.guard;
        if self.restart == Restart::KeepsCommands {
            return;
        }
        for link in &mut node.links {
            link.release = false;
            if link.set == Set::Sent {
                link.set = Set::Done;
            }
            if link.extend == Extend::Sent {
                link.extend = Extend::Done;
            }
        }
    }
}

/// What makes no difference any more is forgotten, so that fewer states are different.
impl Redlock {
    fn canonical(&self, mut state: State) -> State {
        let now = state.now;
        for node in &mut state.nodes {
            if node.expiry <= now {
                node.drop_key();
            }
            if node.quarantine <= now {
                node.quarantine = 0;
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
            *attempt = Attempt { phase: attempt.phase, ..Attempt::IDLE };
        }
    }

    /// A reply that does not complete a quorum is as good as in: nobody acts on it. If it is lost
    /// with its connection, the SET might as well have run after that.
    fn count_early(&self, state: &mut State, a: usize) {
        let acted_on = [Some(Mistake::StartAtFirstReply), Some(Mistake::ShiftedReply)];
        if acted_on.contains(&self.mistake) || self.quorum() < 2 {
            return;
        }
        if state.count(a, &[Set::Counted]) == 0 {
            let mut sets = state.nodes.iter_mut().map(|node| &mut node.links[a].set);
            if let Some(set) = sets.find(|set| **set == Set::Granted) {
                *set = Set::Counted;
            }
        }
        let is_first = state.nodes.iter().all(|node| node.links[a].extend != Extend::Counted);
        if is_first {
            let mut extends = state.nodes.iter_mut().map(|node| &mut node.links[a].extend);
            if let Some(extend) = extends.find(|extend| **extend == Extend::Granted) {
                *extend = Extend::Counted;
            }
        }
    }

    fn can_win(&self, state: &State, a: usize) -> bool {
        let hopes: &[Set] = match state.now < state.attempts[a].deadline {
            true => &[Set::Sent, Set::Granted, Set::Counted],
            // It will be refused, but let it come so far.
            false => &[Set::Granted, Set::Counted],
        };
        state.count(a, hopes) >= self.quorum() || self.makes(Mistake::ShiftedReply)
    }

    fn tidy(&self, node: &mut Node, a: usize, attempt: &Attempt) {
        let (voting, held) = (attempt.phase == Phase::Voting, attempt.phase == Phase::Held);
        let (owner, link) = (node.owner, &mut node.links[a]);
        link.set = match link.set {
            Set::Granted if self.makes(Mistake::ShiftedReply) => Set::Granted,
            Set::Granted | Set::Counted | Set::Uncounted if !voting => Set::Done,
            Set::Straggler if !held => Set::Done,
            set => set,
        };
        // Nothing can be extended or released where there is no key and none will be.
        let may_own = owner == self.token(a) || matches!(link.set, Set::Sent | Set::Orphan);
        link.extend = match link.extend {
            Extend::Granted | Extend::Counted if attempt.extension == 0 => Extend::Done,
            Extend::Sent | Extend::Orphan if !may_own && !self.heals => Extend::Done,
            Extend::Unsent if attempt.phase > Phase::Held => Extend::Done,
            extend => extend,
        };
        let may_own = may_own || matches!(link.extend, Extend::Sent | Extend::Orphan);
        let of_others = [Some(Mistake::ReleaseOfAnyKey), Some(Mistake::ReusedToken)];
        link.release &= may_own || of_others.contains(&self.mistake);
    }
}

/// Terms.
impl Redlock {
    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn is_retry(&self, a: usize) -> bool {
        self.retries && a == 1
    }

    fn quorum(&self) -> usize {
        if self.makes(Mistake::HalfQuorum) { NODES / 2 } else { NODES / 2 + 1 }
    }

    fn token(&self, a: usize) -> u8 {
        if self.makes(Mistake::ReusedToken) && a == 1 { 0 } else { a as u8 }
    }

    /// When a lock ends that was asked for at `now`.
    fn deadline(&self, now: u8, a: usize) -> u8 {
        now + self.ttl[a] - self.drift
    }

    fn extension(&self, now: u8) -> u8 {
        now + self.extension_ttl - self.drift
    }

    /// The attempt that the reply to this one's SET is taken for.
    fn credited(&self, state: &State, a: usize) -> usize {
        let is_shifted = self.makes(Mistake::ShiftedReply);
        if is_shifted && a == 0 && state.attempts[0].phase >= Phase::Late { 1 } else { a }
    }

    fn has_ghost(&self, state: &State) -> bool {
        state.nodes.iter().filter(|node| node.owner != NOBODY).any(|node| {
            let mut owners = (0..self.attempts).filter(|a| self.token(*a) == node.owner);
            owners.all(|a| state.is_quiet(a))
        })
    }
}
