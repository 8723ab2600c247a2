//! What there is at one moment: attempts, nodes, and what is on its way between them.

/// Nodes that a lock is spread over.
pub const NODES: usize = 3;
/// The most attempts; a model may use fewer.
pub const ATTEMPTS: usize = 3;

/// The owner of no key.
pub const NO_OWNER: u8 = u8::MAX;
/// A deadline that is not fixed yet.
pub const UNKNOWN: u8 = u8::MAX;

/// Nodes are sorted: which is which makes no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub now: u8,
    pub crashes: u8,
    pub steps: u8,
    pub attempts: [Attempt; ATTEMPTS],
    pub nodes: [Node; NODES],
}

/// A client's view of one round of acquisition, and of the lock that it gave. When the lock is
/// handed over, it is the other client's view from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub phase: Phase,
    /// The lock, once held, is valid while the time is less.
    pub deadline: u8,
    /// The deadline that the extension under way will give; 0 without one.
    pub extension: u8,
    /// How many extensions the present holder has begun.
    pub extensions: u8,
    pub is_handed_over: bool,
    /// How many connections its client has lost.
    pub losses: u8,
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
    /// Until when what it says does not count, for clients that have connected since its restart;
    /// 0 if it does. A restart ends all connections, so each command that it executes since then
    /// comes from such a client.
    pub restarted: u8,
    /// Until when what it says does not count, for clients that were connected when its clock
    /// stepped; 0 if it does.
    pub stepped: u8,
    pub links: [Link; ATTEMPTS],
}

/// What is between one attempt and one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// The SET on the current connection.
    pub set: Set,
    /// The latest extension on the current connection.
    pub extend: Extend,
    /// How many releases are on their way on the current connection.
    pub releases: u8,
    /// What was sent on connections that were lost, or that were the giver's, and may still run.
    pub old: Pending,
    /// The same on connections that nobody ends.
    pub forgotten: Pending,
    /// Until when the client that acquired the lock knows not to count the node.
    pub doubt: u8,
    /// Whether the client connected after the node's clock had stepped, and does not know.
    pub is_blind: bool,
}

/// Commands of one attempt that may still run, in any order, and whose replies nobody hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pending {
    pub set: bool,
    pub extends: u8,
    pub releases: u8,
}

/// A SET, or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Set {
    Unsent,
    Sent,
    /// Granted, and the reply is on its way.
    Granted,
    FastPath,
    /// Granted by a node in quarantine.
    Uncounted,
    /// Granted when the lock was held already.
    Straggler,
    /// Lost, refused, or of no interest any more.
    Done,
}

/// An extension, or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extend {
    Unsent,
    Sent,
    Granted,
    FastPath,
    Done,
}

impl State {
    pub const EMPTY: State = State {
        now: 0,
        crashes: 0,
        steps: 0,
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

    /// The locks that are valid, and whose present holder's extension was successful.
    pub fn extended(&self) -> impl Iterator<Item = &Attempt> {
        let attempts = self.attempts.iter().enumerate().filter(|(a, attempt)| {
            let was_sent = self.nodes.iter().any(|node| node.links[*a].extend != Extend::Unsent);
            attempt.is_valid(self.now) && attempt.extension == 0 && was_sent
        });
        attempts.map(|(_, attempt)| attempt)
    }

    /// Whether the attempt is over, and all that it sent has been executed.
    pub fn is_quiet(&self, attempt: usize) -> bool {
        let is_over = self.attempts[attempt].is_over();
        is_over && self.nodes.iter().all(|node| node.links[attempt].is_quiet())
    }
}

impl Attempt {
    pub const IDLE: Attempt = Attempt {
        phase: Phase::Idle,
        deadline: 0,
        extension: 0,
        extensions: 0,
        is_handed_over: false,
        losses: 0,
        overlapped: false,
    };

    pub fn is_valid(&self, now: u8) -> bool {
        self.phase == Phase::Held && now < self.deadline
    }

    /// Whether the lock was given up.
    pub fn is_over(&self) -> bool {
        self.phase >= Phase::Late
    }
}

impl Node {
    const EMPTY: Node = Node {
        owner: NO_OWNER,
        expiry: 0,
        restarted: 0,
        stepped: 0,
        links: [Link::UNUSED; ATTEMPTS],
    };

    pub fn take_key(&mut self, owner: u8, expiry: u8) {
        (self.owner, self.expiry) = (owner, expiry);
    }

    pub fn drop_key(&mut self) {
        (self.owner, self.expiry) = (NO_OWNER, 0);
    }
}

impl Link {
    const UNUSED: Link = Link {
        set: Set::Unsent,
        extend: Extend::Unsent,
        releases: 0,
        old: Pending::NOTHING,
        forgotten: Pending::NOTHING,
        doubt: 0,
        is_blind: false,
    };

    /// Whether anything that may still run was sent on the current connection.
    pub fn is_awaited(&self) -> bool {
        self.set == Set::Sent || self.extend == Extend::Sent || self.releases > 0
    }

    /// Whether nothing is on its way to the node.
    pub fn is_quiet(&self) -> bool {
        let of_old = [self.old, self.forgotten];
        !self.is_awaited() && of_old.iter().all(|pending| *pending == Pending::NOTHING)
    }

    /// Whether a SET is on its way to the node.
    pub fn may_set(&self) -> bool {
        self.set == Set::Sent || self.old.set || self.forgotten.set
    }

    /// Whether an extension is on its way to the node.
    pub fn may_extend(&self) -> bool {
        self.extend == Extend::Sent || self.old.extends > 0 || self.forgotten.extends > 0
    }

    /// What was sent on the current connection may still run, but nobody will hear of it.
    pub fn lose_connection(&mut self) {
        self.old.add(Pending {
            set: self.set == Set::Sent,
            extends: u8::from(self.extend == Extend::Sent),
            releases: u8::from(self.releases > 0),
        });
        if matches!(self.set, Set::Sent | Set::Granted) {
            self.set = Set::Done;
        }
        if matches!(self.extend, Extend::Sent | Extend::Granted) {
            self.extend = Extend::Done;
        }
        self.releases = 0;
    }

    /// The current connection ended with all that the node had not executed of it.
    pub fn end_connection(&mut self) {
        if self.set == Set::Sent {
            self.set = Set::Done;
        }
        if self.extend == Extend::Sent {
            self.extend = Extend::Done;
        }
        self.releases = 0;
    }

    pub fn forget_old_connections(&mut self) {
        self.forgotten.add(self.old);
        self.old = Pending::NOTHING;
    }
}

impl Pending {
    pub const NOTHING: Pending = Pending { set: false, extends: 0, releases: 0 };

    pub fn add(&mut self, more: Pending) {
        self.set |= more.set;
        self.extends += more.extends;
        self.releases += more.releases;
    }
}
