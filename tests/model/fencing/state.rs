//! What there is at one moment: attempts, nodes, and what is on its way between them.

/// The most attempts; a model may use fewer.
pub const ATTEMPTS: usize = 3;
/// The owner of no key.
pub const NO_OWNER: u8 = u8::MAX;

/// Nodes are sorted: which is which makes no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize> {
    pub now: u8,
    /// How many nodes may still lose their counter.
    pub losses: u8,
    /// How many grants of the neighbour are left.
    pub neighbours: u8,
    /// Something that was seen in the last step; forgotten with the next one.
    pub mark: Option<Mark>,
    /// A lock was returned whose number was not greater than one that was returned before it
    /// started.
    pub is_disordered: bool,
    /// The same, and the other had been returned long before.
    pub is_disordered_far: bool,
    /// A RAISE lowered a counter.
    pub is_lowered: bool,
    pub attempts: [Attempt; ATTEMPTS],
    pub nodes: [Node<ATTEMPTS>; N],
}

/// What must be seen, lest a model that does nothing pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// The first q grants were equal, and won.
    FirstPhase,
    /// The acknowledgement of a RAISE won.
    SecondPhase,
    /// A late grant was equal to the number.
    LateEqual,
    /// A late grant was less than the number, and is raised.
    LateSmaller,
    /// A late grant was greater than the number.
    LateGreater,
    /// A grant, or the acknowledgement of a RAISE, came from a node in quarantine.
    Uncounted,
}

/// A client's view of one acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub phase: Phase,
    pub proposal: u8,
    /// The lock's number; 0 before it is fixed.
    pub number: u8,
    /// The attempts that had returned when this one started, a bit for each.
    pub before: u8,
    /// Those of them that had returned long before.
    pub long_before: u8,
    pub returned_at: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Idle,
    /// Fewer than q grants are in hand.
    Voting,
    /// The number is fixed.
    Stamping,
    Returned,
    Lost,
}

/// A master: its key and its counter, and what it has to do with each attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node<const A: usize> {
    /// The attempt whose token the key holds.
    pub owner: u8,
    pub counter: u8,
    /// Whether its clock is ahead of the true time, if clocks are steady; else it is behind.
    pub is_ahead: bool,
    /// Until when what it says does not count, because it lost its counter; 0 if it does.
    pub quarantine: u8,
    /// Whether a grant looked at the clock since the process started, if only one does.
    pub is_seeded: bool,
    pub links: [Link; A],
}

/// What is between one attempt and one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    pub grant: Grant,
    /// The number that the node granted; 0 without one.
    pub number: u8,
    pub raise: Raise,
    /// Whether the node is stamped: it granted the lock's number, or acknowledged it.
    pub is_stamped: bool,
    /// Whether the node's grant is one of the q that fixed the number. When the lock has been
    /// returned, also whether the grant is not above the number.
    pub is_first: bool,
}

/// The first script, or its reply. One that is refused or lost is as one that never runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grant {
    Unsent,
    Sent,
    /// The reply is on its way.
    Granted,
    Read,
    /// Of no interest.
    Done,
}

/// The second script, or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Raise {
    Unsent,
    Sent,
    /// The reply is on its way.
    Acknowledged,
}

impl<const N: usize> State<N> {
    pub const fn new(losses: u8, neighbours: u8, node: Node<ATTEMPTS>) -> State<N> {
        State {
            now: 0,
            losses,
            neighbours,
            mark: None,
            is_disordered: false,
            is_disordered_far: false,
            is_lowered: false,
            attempts: [Attempt::IDLE; ATTEMPTS],
            nodes: [node; N],
        }
    }

    pub fn returned(&self) -> impl Iterator<Item = (usize, &Attempt)> {
        let attempts = self.attempts.iter().enumerate();
        attempts.filter(|(_, attempt)| attempt.phase == Phase::Returned)
    }

    /// How many nodes have this to do with the attempt.
    pub fn count(&self, a: usize, is_such: impl Fn(&Node<ATTEMPTS>, &Link) -> bool) -> usize {
        self.nodes.iter().filter(|node| is_such(node, &node.links[a])).count()
    }

    /// Whether the attempt's number is greater than all others that were returned.
    pub fn is_greatest(&self, a: usize) -> bool {
        let number = self.attempts[a].number;
        self.returned().all(|(other, attempt)| other == a || attempt.number < number)
    }

    pub fn greatest_counter(&self) -> u8 {
        self.nodes.iter().map(|node| node.counter).max().unwrap_or_default()
    }
}

impl Attempt {
    pub const IDLE: Attempt = Attempt {
        phase: Phase::Idle,
        proposal: 0,
        number: 0,
        before: 0,
        long_before: 0,
        returned_at: 0,
    };

    pub fn is_under_way(&self) -> bool {
        matches!(self.phase, Phase::Voting | Phase::Stamping)
    }
}

impl<const A: usize> Node<A> {
    pub const fn new(counter: u8, is_ahead: bool) -> Node<A> {
        Node {
            owner: NO_OWNER,
            counter,
            is_ahead,
            quarantine: 0,
            is_seeded: false,
            links: [Link::UNUSED; A],
        }
    }

    pub fn is_owned_by(&self, a: usize) -> bool {
        usize::from(self.owner) == a
    }
}

impl Link {
    pub const UNUSED: Link = Link {
        grant: Grant::Unsent,
        number: 0,
        raise: Raise::Unsent,
        is_stamped: false,
        is_first: false,
    };
}
