//! What clients and nodes know, and what is on its way between them.

use super::protocol::NODES;

pub const CLIENTS: usize = 4;
/// The owner of a key that is not there.
pub const NO_OWNER: u8 = 0;
/// The owner of a key that no client of the model has set.
pub const STRANGER: u8 = CLIENTS as u8 + 1;
/// The place of a client that is not in the queue.
pub const OUTSIDE: u8 = CLIENTS as u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub clients: [Client; CLIENTS],
    /// Who owns the key on each node; clients count from 1.
    pub owners: [u8; NODES],
    /// The queue at each node: clients, from 1; 0 behind the last.
    pub queues: [[u8; CLIENTS]; NODES],
    /// How many clients have crashed, paused or given up, and how many pollers came.
    pub faults: u8,
    pub strangers: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client {
    pub phase: Phase,
    /// How many times it still wants the lock, after the present one.
    pub left: u8,
    /// The node at which it queues up.
    pub queue_node: usize,
    /// It knows of no queue.
    pub is_foreign: bool,
    /// Whether it has queued up at the queue node.
    pub stands: bool,
    /// What it was told last: 0 is the first.
    pub position: u8,
    /// It waits for the answer to its queueing up. Only the last one counts.
    pub is_asking: bool,
    pub timer: Timer,
    /// The watch that runs was begun to overtake.
    pub overtakes: bool,
    /// An invalidation caused the attempt that runs.
    pub is_caused: bool,
    /// An attempt that an invalidation caused was refused (W8).
    pub doubts: bool,
    pub votes: [Vote; NODES],
    /// Which nodes refused the last attempt, when that was decided.
    pub refusers: [bool; NODES],
    pub watches: [Watch; NODES],
    pub links: [Link; NODES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// It has not begun, or is between two locks. If it stood in the queue for the last one, it
    /// may still know that there is a crowd.
    Idle,
    Trying,
    /// It was refused, and waits for an answer, a push or a timer.
    Queued,
    Held,
    /// It has released its last lock, or given up.
    Done,
    /// Its process has ended.
    Crashed,
    /// Its process does nothing any more, and its connections stay.
    Paused,
}

/// All of these take as long as they like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    None,
    /// After a refused attempt (W11).
    BackOff,
    /// Who knows of no queue tries again.
    Retry,
    /// At the second place, an overtake delay until the watch.
    OvertakeDelay,
    /// At the second place, the lock was free; an overtake delay until the second look.
    SecondLook,
    /// Further behind, the key was absent; until the second look.
    LookAgain,
    /// The second look's answer is on its way: what place it was before.
    LooksAgain(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Vote {
    Pending,
    Granted,
    Refused,
}

/// What a client knows of its watch of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Watch {
    None,
    Asked,
    Watched,
}

/// A client's connection to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    pub requests: Channel,
    pub replies: Channel,
    /// The node tells the client when the key changes, once.
    pub is_tracked: bool,
    /// The connection of a process that has ended, and the node knows.
    pub is_closed: bool,
}

/// What is on its way in one direction, five bits each, the oldest in the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(u64);

const BITS: u32 = 5;
const CHANNEL_MAX: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Request {
    Set = 1,
    /// Nobody waits for its reply: its attempt is decided.
    StaleSet,
    /// The usual one, which deletes the client's key and nothing else (R10).
    Release,
    QueueUp,
    /// It has queued up again since.
    StaleQueueUp,
    /// `CLIENT CACHING YES` and `PTTL`. One that is not waited for any more is taken away: all
    /// that it does is to track for it.
    Watch,
    HandOn,
    /// `step_out.lua 1`.
    StepInFront,
    /// `step_out.lua 0`.
    StepOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    Granted = 1,
    Refused,
    /// To PTTL: there is no key, or there is one.
    Absent,
    Present,
    /// The pushes `g`, `p`, `n`, and the invalidation.
    Go,
    Passed,
    Next,
    Changed,
    /// To queueing up: the position, and that the key is absent or present.
    PlacedAbsent0,
    PlacedAbsent1,
    PlacedAbsent2,
    PlacedAbsent3,
    PlacedPresent0,
    PlacedPresent1,
    PlacedPresent2,
    PlacedPresent3,
}

/// What a client finds when it has queued up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub position: u8,
    pub is_absent: bool,
}

impl Request {
    const ALL: [Request; 9] = [
        Request::Set,
        Request::StaleSet,
        Request::Release,
        Request::QueueUp,
        Request::StaleQueueUp,
        Request::Watch,
        Request::HandOn,
        Request::StepInFront,
        Request::StepOut,
    ];

    fn of(code: u64) -> Request {
        Request::ALL[code as usize - 1]
    }
}

impl Reply {
    const ALL: [Reply; 16] = [
        Reply::Granted,
        Reply::Refused,
        Reply::Absent,
        Reply::Present,
        Reply::Go,
        Reply::Passed,
        Reply::Next,
        Reply::Changed,
        Reply::PlacedAbsent0,
        Reply::PlacedAbsent1,
        Reply::PlacedAbsent2,
        Reply::PlacedAbsent3,
        Reply::PlacedPresent0,
        Reply::PlacedPresent1,
        Reply::PlacedPresent2,
        Reply::PlacedPresent3,
    ];

    fn of(code: u64) -> Reply {
        Reply::ALL[code as usize - 1]
    }

    pub fn placed(placed: Placed) -> Reply {
        let first = if placed.is_absent { Reply::PlacedAbsent0 } else { Reply::PlacedPresent0 };
        Reply::of(u64::from(first as u8 + placed.position))
    }

    pub fn as_placed(self) -> Option<Placed> {
        let above = |first: Reply| {
            let position = (self as u8).checked_sub(first as u8)?;
            (position < CLIENTS as u8).then_some(position)
        };
        let absent = above(Reply::PlacedAbsent0);
        let position = absent.or_else(|| above(Reply::PlacedPresent0))?;
        Some(Placed { position, is_absent: absent.is_some() })
    }
}

impl Channel {
    pub const EMPTY: Channel = Channel(0);

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn len(self) -> usize {
        (u64::BITS - self.0.leading_zeros()).div_ceil(BITS) as usize
    }

    fn push(&mut self, code: u8) {
        let len = self.len();
        assert!(len < CHANNEL_MAX, "a channel grows and grows");
        self.0 |= u64::from(code) << (BITS as usize * len);
    }

    fn first(self) -> Option<u64> {
        (self.0 != 0).then_some(self.0 & ((1 << BITS) - 1))
    }

    pub fn send(&mut self, request: Request) {
        self.push(request as u8);
    }

    pub fn answer(&mut self, reply: Reply) {
        self.push(reply as u8);
    }

    pub fn first_request(self) -> Option<Request> {
        self.first().map(Request::of)
    }

    pub fn first_reply(self) -> Option<Reply> {
        self.first().map(Reply::of)
    }

    pub fn remove_first(&mut self) {
        self.0 >>= BITS;
    }

    /// What was asked in this way is not waited for any more.
    pub fn make_stale(&mut self, request: Request, stale: Request) {
        *self = self.rebuilt(|code| Some(if code == request as u64 { stale as u64 } else { code }));
    }

    pub fn withdraw(&mut self, request: Request) {
        *self = self.rebuilt(|code| Some(code).filter(|code| *code != request as u64));
    }

    /// What the client would drop is not sent.
    pub fn keep_replies(&mut self, keeps: impl Fn(Reply) -> bool) {
        *self = self.rebuilt(|code| Some(code).filter(|code| keeps(Reply::of(*code))));
    }

    fn rebuilt(mut self, change: impl Fn(u64) -> Option<u64>) -> Channel {
        let mut rebuilt = Channel::EMPTY;
        while let Some(code) = self.first() {
            self.remove_first();
            if let Some(code) = change(code) {
                rebuilt.push(code as u8);
            }
        }
        rebuilt
    }
}

impl Link {
    pub const EMPTY: Link = Link {
        requests: Channel::EMPTY,
        replies: Channel::EMPTY,
        is_tracked: false,
        is_closed: false,
    };
}

impl Client {
    pub const IDLE: Client = Client::ended(Phase::Idle);

    /// What is left of a client that remembers nothing.
    pub const fn ended(phase: Phase) -> Client {
        Client {
            phase,
            left: 0,
            queue_node: 0,
            is_foreign: false,
            stands: false,
            position: OUTSIDE,
            is_asking: false,
            timer: Timer::None,
            overtakes: false,
            is_caused: false,
            doubts: false,
            votes: [Vote::Pending; NODES],
            refusers: [false; NODES],
            watches: [Watch::None; NODES],
            links: [Link::EMPTY; NODES],
        }
    }

    pub fn is_alive(&self) -> bool {
        !matches!(self.phase, Phase::Crashed | Phase::Paused)
    }

    pub fn count(&self, vote: Vote) -> usize {
        self.votes.iter().filter(|it| **it == vote).count()
    }
}

impl State {
    pub const EMPTY: State = State {
        clients: [Client::ended(Phase::Done); CLIENTS],
        owners: [NO_OWNER; NODES],
        queues: [[0; CLIENTS]; NODES],
        faults: 0,
        strangers: 0,
    };

    pub fn queued(&self, n: usize) -> usize {
        self.queues[n].iter().take_while(|it| **it != 0).count()
    }

    /// `LPOS`.
    pub fn position_of(&self, n: usize, c: usize) -> Option<usize> {
        self.queues[n].iter().position(|it| *it == number(c))
    }

    pub fn stands(&self, c: usize) -> bool {
        self.position_of(self.clients[c].queue_node, c).is_some()
    }

    pub fn leave_queue(&mut self, n: usize, c: usize) {
        if let Some(position) = self.position_of(n, c) {
            self.queues[n].copy_within(position + 1.., position);
            self.queues[n][CLIENTS - 1] = 0;
        }
    }

    pub fn put_in_front(&mut self, n: usize, c: usize) {
        self.queues[n].copy_within(..CLIENTS - 1, 1);
        self.queues[n][0] = number(c);
    }
}

/// How a client is written in queues and keys.
pub fn number(c: usize) -> u8 {
    c as u8 + 1
}
