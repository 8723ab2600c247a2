//! What there is at one moment: attempts, nodes, and what is on its way between them.

/// Nodes that a lock is spread over.
pub const NODES: usize = 3;
/// The most attempts; a model may use fewer.
pub const ATTEMPTS: usize = 3;

/// The owner of no key.
pub const NOBODY: u8 = u8::MAX;
/// A deadline that is not fixed yet.
pub const UNKNOWN: u8 = u8::MAX;

/// Nodes are sorted: which is which makes no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub now: u8,
    pub crashes: u8,
    pub steps: u8,
    pub losses: u8,
    pub attempts: [Attempt; ATTEMPTS],
    pub nodes: [Node; NODES],
}

/// A client's view of one round of acquisition, and of the lock that it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub phase: Phase,
    /// The lock, once held, is valid while the time is less.
    pub deadline: u8,
    /// The deadline that the extension under way will give; 0 without one.
    pub extension: u8,
    /// Whether another attempt was valid since this one acquired the lock.
    pub overlapped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Idle,
    Voting,
    Held,
    /// Over, because its quorum came too late; told apart from `Over` for one state only.
    Late,
    /// Failed, expired or released.
    Over,
}

/// A master: its key, and what it has to do with each attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// The token that the key holds.
    pub owner: u8,
    /// When the key ends; 0 without one.
    pub expiry: u8,
    /// Until when what it says does not count; 0 if it does.
    pub quarantine: u8,
    pub links: [Link; ATTEMPTS],
}

/// What is between one attempt and one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    pub set: Set,
    pub extend: Extend,
    /// Whether a release is on its way.
    pub release: bool,
    /// How many releases are still to run because a connection was lost.
    pub owed: u8,
    /// How many of them were sent on connections that were lost in their turn, and may still run.
    pub strays: u8,
}

/// A SET, or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    Unsent,
    Sent,
    /// Sent on a connection that was lost: it may run, but nobody will hear of it.
    Orphan,
    /// Granted, and the reply is on its way.
    Granted,
    Counted,
    /// Granted by a node in quarantine.
    Uncounted,
    /// Granted when the lock was held already.
    Straggler,
    /// Refused, or of no interest any more.
    Done,
}

/// An extension, or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extend {
    Unsent,
    Sent,
    Orphan,
    Granted,
    Counted,
    Done,
}

impl State {
    pub const EMPTY: State = State {
        now: 0,
        crashes: 0,
        steps: 0,
        losses: 0,
        attempts: [Attempt::IDLE; ATTEMPTS],
        nodes: [Node::EMPTY; NODES],
    };

    pub fn valid(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.is_valid(self.now))
    }

    /// How many nodes have come this far with an attempt's SET.
    pub fn count(&self, attempt: usize, sets: &[Set]) -> usize {
        self.nodes.iter().filter(|node| sets.contains(&node.links[attempt].set)).count()
    }

    /// Whether an attempt in this phase has a SET that has come this far.
    pub fn has(&self, phase: Phase, set: Set) -> bool {
        let mut attempts = self.attempts.iter().enumerate();
        attempts.any(|(a, attempt)| attempt.phase == phase && self.count(a, &[set]) > 0)
    }

    /// Whether a lock is valid whose extension was successful.
    pub fn has_extended(&self) -> bool {
        let mut attempts = self.attempts.iter().enumerate();
        attempts.any(|(a, attempt)| {
            let was_sent = self.nodes.iter().any(|node| node.links[a].extend != Extend::Unsent);
            attempt.is_valid(self.now) && attempt.extension == 0 && was_sent
        })
    }

    /// Whether the attempt is over, and all that it sent has been executed.
    pub fn is_quiet(&self, attempt: usize) -> bool {
        let is_over = self.attempts[attempt].phase >= Phase::Late;
        is_over && self.nodes.iter().all(|node| node.links[attempt].is_quiet())
    }
}

impl Attempt {
    pub const IDLE: Attempt =
        Attempt { phase: Phase::Idle, deadline: 0, extension: 0, overlapped: false };

    pub fn is_valid(&self, now: u8) -> bool {
        self.phase == Phase::Held && now < self.deadline
    }
}

impl Node {
    const EMPTY: Node =
        Node { owner: NOBODY, expiry: 0, quarantine: 0, links: [Link::UNUSED; ATTEMPTS] };

    pub fn take_key(&mut self, owner: u8, expiry: u8) {
        (self.owner, self.expiry) = (owner, expiry);
    }

    pub fn drop_key(&mut self) {
        (self.owner, self.expiry) = (NOBODY, 0);
    }
}

impl Link {
    const UNUSED: Link =
        Link { set: Set::Unsent, extend: Extend::Unsent, release: false, owed: 0, strays: 0 };

    /// Whether nothing is on its way to the node.
    pub fn is_quiet(&self) -> bool {
        !matches!(self.set, Set::Sent | Set::Orphan)
            && !matches!(self.extend, Extend::Sent | Extend::Orphan)
            && !self.release
            && self.owed == 0
            && self.strays == 0
    }
}
