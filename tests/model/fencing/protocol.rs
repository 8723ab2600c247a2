//! The protocol of fencing tokens as a transition system: its bounds, its rules, and what may
//! happen next.

use stateright::{Model, Property};

use super::state::{Grant, Mark, NO_OWNER, Node, Phase, Raise, State};

/// P1: no two locks have the same number.
pub const UNIQUE: &str = "P1: unique numbers";
/// P2: a lock has a greater number than one that was returned before it started.
pub const ORDER: &str = "P2: real-time order";
/// P3: a lock that still owns the keys of the quorum that stamped it has the greatest number.
pub const OWNER: &str = "P3: the owner's number is the greatest";
/// P4: the same of a lock that owns any majority of keys, each granted at no more than its number,
/// or among the q grants that fixed it.
pub const MAJORITY: &str = "P4: the number of a majority's owner is the greatest";
/// P2, for locks that are further apart than the clocks.
pub const FAR_ORDER: &str = "P2 of locks far apart";
/// A RAISE lowers no counter.
pub const GROWTH: &str = "counters grow";
pub const PROPERTIES: [&str; 6] = [UNIQUE, ORDER, OWNER, MAJORITY, FAR_ORDER, GROWTH];

/// The number was the proposal, or whatever q nodes agree on: one round trip.
pub const FIRST_PHASE: &str = "a lock of one round trip";
pub const SECOND_PHASE: &str = "a lock of two round trips";
pub const LATE_EQUAL: &str = "a late grant that is equal";
pub const LATE_SMALLER: &str = "a late grant that is smaller";
pub const LATE_GREATER: &str = "a late grant that is greater";
pub const UNCOUNTED: &str = "a node in quarantine";
/// Two locks were returned, and the first owns no key of its quorum.
pub const BOTH: &str = "two locks";
/// What the promise does not cover: a lock owns a majority of the keys, some of them granted at
/// more than its number, and another lock has a greater number.
pub const OWNER_OF_OTHERS: &str = "an owner with the smaller number";

/// How many numbers the clock passes in a tick: more than there are grants.
pub const TICK: u8 = 8;

/// The environment, and the bounds within which every schedule is tried.
#[derive(Clone, Copy, Debug)]
pub struct Fencing<const N: usize> {
    pub attempts: usize,
    /// The greatest counter that a node has at the beginning.
    pub counters: u8,
    pub proposals: &'static [Proposal],
    /// How many locks on another resource raise one of the counters (F2).
    pub neighbours: u8,
    /// Whether a lock that was returned sets its key anew where it is gone (F18).
    pub heals: bool,
    /// Whether what an attempt sent may run when the attempt is over.
    pub stragglers: bool,
    /// Whether numbers follow the clocks, which they must where counters are lost.
    pub numbers: Numbers,
    pub clocks: Clocks,
    /// The last tick.
    pub horizon: u8,
    pub beginning: Beginning,
    /// How many times a node may lose its counter.
    pub losses: u8,
    /// What is left of a counter that is lost.
    pub rests: &'static [u8],
    /// For how long after that what the node says does not count.
    pub guard: u8,
    /// Whether a reply that was under way when the counter was lost counts.
    pub replies: Replies,
    pub mistake: Option<Mistake>,
}

/// What a client may propose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// Less than any counter.
    Stale,
    /// One more than the greatest counter.
    Fresh,
    Ahead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// A proposal is taken as it comes.
    Free,
    /// A grant is no less than the true time minus a tick, and no more than the true time plus a
    /// tick, but for increments: so much are the clock and what the script allows for off together.
    Clamped,
}

/// What happens before the first lock is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// No time passes, and no counter is lost.
    Uneventful,
    Eventful,
}

/// How clocks are off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Each always by a tick, in one direction.
    Steady,
    /// By a tick in any direction, at each reading.
    Wandering,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    DieWithTheCounter,
    Survive,
}

/// A rule that is broken, so that the checker has something to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The greatest number is returned, and nothing is raised to it: smaller grants count (F7).
    NoRaise,
    /// RAISE does not compare the token (F9).
    RaiseOfAnyKey,
    /// RAISE goes to all nodes that were sent the first script (F9).
    RaiseBeforeGrant,
    /// RAISE lowers a counter that is greater.
    LoweringRaise,
    /// A late grant counts although it is greater than the number (F10).
    LateGreaterCounts,
    /// The number is the smallest of the q (F8).
    Smallest,
    /// The number is that of the q-th grant (F8).
    Last,
    /// A grant leaves the counter as it is, unless the proposal is greater.
    NoIncrement,
    /// A grant is at the proposal, even if the counter is greater.
    ProposalOverrides,
    /// Half of the nodes, rounded down, make a quorum.
    HalfQuorum,
    /// The first script is sent again, with the same token (R6).
    SentAgain,
    /// A key is healed before its lock's number is fixed, with the command that heals (F18).
    EarlyHeal,
    /// The clock is looked at once, by the first grant of a process.
    SeededOnce,
    /// The clock is looked at where there is no counter, and not where it was rolled back.
    SeededIfAbsent,
    /// An acknowledgement of RAISE counts in quarantine (F12).
    QuarantinedRaise,
}

/// A step. Nodes are numbered as in the state before it, attempts as they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Start(usize, Proposal),
    /// A node grants the attempt at the clock's number, if numbers follow clocks.
    Grant(usize, usize, u8),
    /// The attempt's client reads a node's grant.
    Read(usize, usize),
    /// A node executes the attempt's RAISE.
    Raise(usize, usize),
    /// The attempt's client reads a node's acknowledgement.
    Acknowledge(usize, usize),
    /// A node's key expires, or is released, or lost.
    Vanish(usize),
    Heal(usize, usize),
    /// A node grants a lock on another resource of the same bucket.
    Neighbour(usize),
    /// A node loses its counter; this is left.
    Lose(usize, u8),
}

impl<const N: usize> Model for Fencing<N> {
    type State = State<N>;
    type Action = Action;

    /// The first attempt starts at once, with counters and clocks that differ in all ways.
    fn init_states(&self) -> Vec<State<N>> {
        let clocks: &[bool] = match (self.numbers, self.clocks) {
            (Numbers::Clamped, Clocks::Steady) => &[false, true],
            (Numbers::Free, _) | (_, Clocks::Wandering) => &[false],
        };
        let counters = 0..=self.counters;
        let nodes = counters.flat_map(|it| clocks.iter().map(move |ahead| Node::new(it, *ahead)));
        let nodes: Vec<_> = nodes.collect();
        let mut states = vec![State::new(self.losses, self.neighbours, nodes[0])];
        for n in 0..N {
            let with = |state: State<N>| {
                nodes.iter().map(move |node| {
                    let mut next = state;
                    next.nodes[n] = *node;
                    next
                })
            };
            states = states.into_iter().flat_map(with).collect();
        }
        states.retain(|state| state.nodes.is_sorted());
        let starts = self.proposals.iter().map(|proposal| Action::Start(0, *proposal));
        let pairs = states.iter().flat_map(|state| starts.clone().map(move |it| (state, it)));
        pairs.filter_map(|(state, start)| self.next_state(state, start)).collect()
    }

    fn actions(&self, state: &State<N>, actions: &mut Vec<Action>) {
        let hopes = state.attempts[..self.attempts].iter();
        if hopes.filter(|attempt| attempt.phase != Phase::Lost).count() < 2 {
            // There is nothing to compare a number with.
            return;
        }
        if state.now < self.horizon && self.is_eventful(state) {
            actions.push(Action::Tick);
        }
        let next = (0..self.attempts).find(|a| state.attempts[*a].phase == Phase::Idle);
        if let Some(a) = next {
            actions.extend(self.proposals.iter().map(|proposal| Action::Start(a, *proposal)));
        }
        for n in 0..N {
            self.node_actions(state, n, actions);
            for a in 0..self.attempts {
                self.link_actions(state, n, a, actions);
            }
        }
    }

    fn next_state(&self, last: &State<N>, action: Action) -> Option<State<N>> {
        let mut state = State { mark: None, ..*last };
        match action {
            Action::Tick => state.now += 1,
            Action::Start(a, proposal) => self.start(&mut state, a, proposal),
            Action::Grant(n, a, clock) => self.grant(&mut state, n, a, clock),
            Action::Read(n, a) => self.read(&mut state, n, a),
            Action::Raise(n, a) => self.raise(&mut state, n, a),
            Action::Acknowledge(n, a) => self.acknowledge(&mut state, n, a),
            Action::Vanish(n) => state.nodes[n].owner = NO_OWNER,
            Action::Heal(n, a) => state.nodes[n].owner = a as u8,
            Action::Neighbour(n) => {
                state.neighbours -= 1;
                let least = self.least(state.now);
                let node = &mut state.nodes[n];
                let seed = if node.is_seeded { 0 } else { least };
                (node.counter, node.is_seeded) = ((node.counter + 1).max(seed), true);
            }
            Action::Lose(n, rest) => self.lose(&mut state, n, rest),
        }
        let state = self.canonical(state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(UNIQUE, |_, state: &State<N>| {
                state.returned().all(|(a, one)| {
                    state.returned().all(|(b, other)| a == b || one.number != other.number)
                })
            }),
            Property::always(ORDER, |_, state: &State<N>| !state.is_disordered),
            Property::always(OWNER, |model: &Self, state: &State<N>| {
                state.returned().all(|(a, _)| {
                    let owned = state.count(a, |node, link| node.is_owned_by(a) && link.is_stamped);
                    owned < model.quorum() || state.is_greatest(a)
                })
            }),
            Property::always(MAJORITY, |_, state: &State<N>| {
                state.returned().all(|(a, _)| {
                    let owned = state.count(a, |node, link| node.is_owned_by(a) && link.is_first);
                    owned <= N / 2 || state.is_greatest(a)
                })
            }),
            Property::always(FAR_ORDER, |_, state: &State<N>| !state.is_disordered_far),
            Property::always(GROWTH, |_, state: &State<N>| !state.is_lowered),
            Property::sometimes(BOTH, |_, state: &State<N>| state.returned().count() > 1),
            Property::sometimes(OWNER_OF_OTHERS, |_, state: &State<N>| {
                state.returned().any(|(a, _)| {
                    let owned = state.count(a, |node, _| node.is_owned_by(a));
                    owned > N / 2 && !state.is_greatest(a)
                })
            }),
        ];
        properties.extend([
            Property::sometimes(FIRST_PHASE, |_, state| saw(state, Mark::FirstPhase)),
            Property::sometimes(SECOND_PHASE, |_, state| saw(state, Mark::SecondPhase)),
            Property::sometimes(LATE_EQUAL, |_, state| saw(state, Mark::LateEqual)),
            Property::sometimes(LATE_SMALLER, |_, state| saw(state, Mark::LateSmaller)),
            Property::sometimes(LATE_GREATER, |_, state| saw(state, Mark::LateGreater)),
            Property::sometimes(UNCOUNTED, |_, state| saw(state, Mark::Uncounted)),
        ]);
        properties
    }
}

fn saw<const N: usize>(state: &State<N>, mark: Mark) -> bool {
    state.mark == Some(mark)
}

/// What may happen.
impl<const N: usize> Fencing<N> {
    fn node_actions(&self, state: &State<N>, n: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[n];
        if node.owner != NO_OWNER {
            actions.push(Action::Vanish(n));
        }
        if state.neighbours > 0 {
            actions.push(Action::Neighbour(n));
        }
        if state.losses > 0 && self.is_eventful(state) {
            // The loss of a counter that the clock has passed makes no difference.
            let always = self.looks_at_the_clock_always();
            let is_felt = !always || node.counter >= self.least(state.now);
            let less = self.rests.iter().filter(|rest| is_felt && **rest < node.counter);
            actions.extend(less.map(|rest| Action::Lose(n, *rest)));
        }
    }

    fn link_actions(&self, state: &State<N>, n: usize, a: usize, actions: &mut Vec<Action>) {
        let (node, attempt) = (&state.nodes[n], &state.attempts[a]);
        let link = &node.links[a];
        let is_free = node.owner == NO_OWNER;
        let again = self.makes(Mistake::SentAgain) && attempt.is_under_way();
        if is_free && (link.grant == Grant::Sent || (again && link.grant != Grant::Unsent)) {
            match self.numbers {
                Numbers::Free => actions.push(Action::Grant(n, a, 0)),
                Numbers::Clamped => {
                    let least = self.least(state.now);
                    let wanders = self.clocks == Clocks::Wandering;
                    let ahead = [false, true].into_iter();
                    let ahead = ahead.filter(|ahead| wanders || node.is_ahead == *ahead);
                    let clocks = ahead.map(|ahead| least + 2 * TICK * u8::from(ahead));
                    actions.extend(clocks.map(|clock| Action::Grant(n, a, clock)));
                }
            }
        }
        if attempt.is_under_way() && link.grant == Grant::Granted {
            actions.push(Action::Read(n, a));
        }
        let may_raise = node.is_owned_by(a) || self.makes(Mistake::RaiseOfAnyKey);
        if link.raise == Raise::Sent && may_raise {
            actions.push(Action::Raise(n, a));
        }
        if link.raise == Raise::Acknowledged {
            actions.push(Action::Acknowledge(n, a));
        }
        let early = self.makes(Mistake::EarlyHeal) && attempt.is_under_way();
        if is_free && (early || (self.heals && attempt.phase == Phase::Returned)) {
            actions.push(Action::Heal(n, a));
        }
    }

    /// Whether time may pass and counters may be lost.
    fn is_eventful(&self, state: &State<N>) -> bool {
        self.beginning == Beginning::Eventful || state.returned().next().is_some()
    }

    pub fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    pub fn quorum(&self) -> usize {
        if self.makes(Mistake::HalfQuorum) { N / 2 } else { N / 2 + 1 }
    }

    /// The least number that a clock gives. All are greater by a tick, so that none is less than 0.
    pub fn least(&self, now: u8) -> u8 {
        match self.numbers {
            Numbers::Free => 0,
            Numbers::Clamped => now * TICK,
        }
    }

    pub fn looks_at_the_clock_always(&self) -> bool {
        !self.makes(Mistake::SeededOnce) && !self.makes(Mistake::SeededIfAbsent)
    }

    /// How far apart clocks may be: two locks that are further apart are in order, whatever is
    /// lost.
    pub const APART: u8 = 2;
}
