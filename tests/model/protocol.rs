//! The protocol as a transition system: its bounds, its rules, and what may happen next.

use stateright::{Model, Property};

use crate::state::{ATTEMPTS, Extend, Link, NO_OWNER, NODES, Node, Pending, Phase, Set, State};

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
/// A lock is extended by a client that has lost connections twice since it got it.
pub const TWO_LOSSES: &str = "an extension after two losses";
/// A lock is extended by the client that it was handed over to.
pub const TAKEN_OVER: &str = "an extension by a taker";

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
    /// How many of the attempts, the first ones, may extend their lock.
    pub extenders: usize,
    /// How many extensions each holder of such a lock may begin.
    pub extensions: u8,
    /// The time to live that an extension asks for.
    pub extension_ttl: u8,
    /// Whether an extension sets the key anew where there is none (R29).
    pub heals: bool,
    /// How many of the attempts, the first ones, may hand their lock over to another client, once.
    pub hand_overs: usize,
    /// How many times a node may restart without its data.
    pub crashes: u8,
    pub restart: Restart,
    /// For how long after a restart what the node says does not count.
    pub guard: u8,
    /// How many times a node's clock may step forward by a tick.
    pub steps: u8,
    pub clocks: Clocks,
    /// How many connections each attempt's client may lose; one that takes a lock over, as many
    /// again.
    pub losses: [u8; ATTEMPTS],
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

/// What becomes of commands that a node had not executed when it went down. Those on connections
/// that were lost before die in any case, as every connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// They die with their connection.
    KillsCommands,
    /// They were waiting for a connection, and come after the restart.
    KeepsCommands,
}

/// Whether clients look at a node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    Unwatched,
    /// With every command. A client that was connected when the clock stepped notices it, and does
    /// not count the node for as long as after a restart. One that takes a lock over is connected
    /// from then on, and does not know of what was before.
    Watched,
}

/// How a client makes sure that what was sent on old connections leaves no key behind (R12). Old
/// are those that were lost, and for a client that took a lock over, the giver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconnect {
    /// In front of its release, it ends them with all that the node has not read of them.
    Barrier,
    /// It cannot end them. It releases, and once more later, because a SET may run in between.
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
    /// One client does not notice on its new connection that the node was restarted.
    UnnoticedRestart,
    /// An extension that heals sets the key whoever owns it (R29).
    HealingOverAnother,
    /// An extension that heals may run after the release on the next connection (R12).
    HealingOutlivesConnection,
    /// What a lost SET may leave behind is released on the next connection, although the lock may
    /// be held. An extension does not count while that release is on its way; but if it is lost in
    /// its turn, nobody remembers its connection (R12).
    ReleaseWhileHeld,
    /// A release ends the connection that was lost last, and none before it (R12).
    NewReleaseForgetsOldConnection,
    /// The client that handed a lock over releases what it was not answered.
    GiverStillReleases,
    /// An extension of the client that handed a lock over is sent later.
    GiverStillSends,
    /// The client that took a lock over does not end the giver's connections.
    TakerForgetsTheDoubt,
    /// The client that took a lock over counts nodes on which a SET was unanswered.
    TakerCountsUnanswered,
    /// The client that took a lock over counts nodes that the giver did not.
    TakerCountsQuarantined,
}

/// A step. Nodes are numbered as in the state before it, attempts as they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Start(usize),
    GiveUp(usize),
    Unlock(usize),
    Extend(usize),
    HandOver(usize),
    /// A node executes an attempt's command.
    Execute(usize, usize, Connection, Command),
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
}

/// What a command comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// The one that the lock's present client uses.
    Current,
    /// One that was lost, or that was the giver's.
    Old,
    /// One of those that nobody ends.
    Forgotten,
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
        let is_free = !self.is_retry(started) || state.attempts[0].is_over();
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
        for node in (0..NODES).filter(|node| state.nodes[*node].owner != NO_OWNER) {
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
            Action::Unlock(attempt) => self.unlock(&mut state, attempt),
            Action::Extend(attempt) => self.extend(&mut state, attempt),
            Action::HandOver(attempt) => self.hand_over(&mut state, attempt),
            Action::Execute(node, attempt, connection, command) => {
                self.execute(&mut state, node, attempt, connection, command);
            }
            Action::Reply(node, attempt, Command::Extend) => {
                self.extension_reply(&mut state, node, attempt);
            }
            Action::Reply(node, attempt, _) => self.vote(&mut state, node, attempt),
            Action::Crash(node) => self.crash(&mut state, node),
            Action::StepClock(node) => self.step_clock(&mut state, node),
            Action::LoseConnection(node, attempt) => {
                self.lose_connection(&mut state, node, attempt);
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
            Property::sometimes(EXTENSION, |_, state: &State| state.extended().next().is_some()),
            Property::sometimes(TWO_LOSSES, |_, state: &State| {
                state.extended().any(|attempt| attempt.losses == 2)
            }),
            Property::sometimes(TAKEN_OVER, |_, state: &State| {
                state.extended().any(|attempt| attempt.is_handed_over)
            }),
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
        if !attempt.is_valid(state.now) {
            return;
        }
        if a < self.extenders && attempt.extensions < self.extensions {
            actions.push(Action::Extend(a));
        }
        if a < self.hand_overs && !attempt.is_handed_over {
            actions.push(Action::HandOver(a));
        }
    }

    fn link_actions(&self, state: &State, n: usize, a: usize, actions: &mut Vec<Action>) {
        let link = &state.nodes[n].links[a];
        let phase = state.attempts[a].phase;
        let current = [
            (Command::Set, self.may_run_set(&state.nodes[n], a)),
            (Command::Extend, self.may_run_extension(link, phase)),
            (Command::Release, self.may_run_release(link, phase)),
        ];
        for (command, _) in current.into_iter().filter(|(_, may_run)| *may_run) {
            actions.push(Action::Execute(n, a, Connection::Current, command));
        }
        let others = [(Connection::Old, link.old), (Connection::Forgotten, link.forgotten)];
        for (connection, Pending { set, extends, releases }) in others {
            let pending = [
                (Command::Set, set),
                (Command::Extend, extends > 0),
                (Command::Release, releases > 0),
            ];
            for (command, _) in pending.into_iter().filter(|(_, may_run)| *may_run) {
                actions.push(Action::Execute(n, a, connection, command));
            }
        }
        let is_voting = |a: usize| state.attempts[a].phase == Phase::Voting;
        if link.set == Set::Granted && is_voting(self.credited(state, a)) {
            actions.push(Action::Reply(n, a, Command::Set));
        }
        if link.extend == Extend::Granted {
            actions.push(Action::Reply(n, a, Command::Extend));
        }
        // Where only a reply is lost, the connection may as well have been lost before the node
        // executed the command.
        let client = self.client(a);
        if state.attempts[client].losses < self.losses[client] && link.is_awaited() {
            actions.push(Action::LoseConnection(n, a));
        }
    }

    fn may_run_set(&self, node: &Node, a: usize) -> bool {
        let before = &node.links[0];
        let has_unsent_debts = self.order == Order::Fifo && self.is_retry(a);
        let is_next = !has_unsent_debts || (before.set != Set::Sent && before.releases == 0);
        node.links[a].set == Set::Sent && is_next
    }

    fn may_run_extension(&self, link: &Link, phase: Phase) -> bool {
        // What is released of a lock that is held was sent with the new connection's first bytes,
        // but for a repetition.
        let later = u8::from(self.reconnect == Reconnect::ReleaseTwice);
        let has_unsent_debts =
            link.set == Set::Sent || (phase == Phase::Held && link.releases > later);
        link.extend == Extend::Sent && (self.order == Order::Unordered || !has_unsent_debts)
    }

    fn may_run_release(&self, link: &Link, phase: Phase) -> bool {
        let has_unsent_debts =
            link.set == Set::Sent || (phase != Phase::Held && link.extend == Extend::Sent);
        link.releases > 0 && (self.order == Order::Unordered || !has_unsent_debts)
    }
}

/// Terms.
impl Redlock {
    pub fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    pub fn is_retry(&self, a: usize) -> bool {
        self.retries && a == 1
    }

    /// The attempt whose client this one's is, too.
    pub fn client(&self, a: usize) -> usize {
        if self.is_retry(a) { 0 } else { a }
    }

    pub fn quorum(&self) -> usize {
        if self.makes(Mistake::HalfQuorum) { NODES / 2 } else { NODES / 2 + 1 }
    }

    pub fn token(&self, a: usize) -> u8 {
        if self.makes(Mistake::ReusedToken) && a == 1 { 0 } else { a as u8 }
    }

    /// When a lock ends that was asked for at `now`.
    pub fn deadline(&self, now: u8, a: usize) -> u8 {
        now + self.ttl[a] - self.drift
    }

    /// When a lock ends that an extension was asked for at `now`.
    pub fn extended_deadline(&self, now: u8) -> u8 {
        now + self.extension_ttl - self.drift
    }

    /// The attempt that the reply to this one's SET is taken for.
    pub fn credited(&self, state: &State, a: usize) -> usize {
        let is_shifted = self.makes(Mistake::ShiftedReply);
        if is_shifted && a == 0 && state.attempts[0].is_over() { 1 } else { a }
    }

    fn has_ghost(&self, state: &State) -> bool {
        state.nodes.iter().filter(|node| node.owner != NO_OWNER).any(|node| {
            let mut owners = (0..self.attempts).filter(|a| self.token(*a) == node.owner);
            owners.all(|a| state.is_quiet(a))
        })
    }
}
