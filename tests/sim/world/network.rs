//! Connections: two pipes of bytes, each with a kernel at both ends and a wire between them.
//!
//! Bytes of one direction stay in order; all else is up to the wire. What a kernel has received is
//! there for its process to read, whatever became of the other end since.

use std::collections::VecDeque;

use muxlock::Moment;

use super::own::Said;
use super::redis::Session;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From the client to the server.
    Up,
    Down,
}

/// One direction of a connection. Positions count all bytes since its beginning.
#[derive(Default)]
pub struct Pipe {
    /// What was sent and not read yet.
    bytes: VecDeque<u8>,
    pub read: usize,
    /// How far the receiving kernel has got.
    pub arrived: usize,
    /// When which position arrives.
    wire: VecDeque<(u64, usize)>,
    /// When the end arrives, if there is one.
    end: Option<u64>,
    /// Whether the receiving kernel knows of the end.
    pub has_ended: bool,
    latest: u64,
    /// Nothing arrives before this moment.
    pub held_until: u64,
}

impl Pipe {
    pub fn sent(&self) -> usize {
        self.read + self.bytes.len()
    }

    /// What the receiving process could read now.
    pub fn readable(&self) -> usize {
        self.arrived - self.read
    }

    /// Puts bytes on the wire, to arrive at `at`, or when what is before them has arrived.
    /// Returns the moment. What comes behind the end is lost.
    pub fn send(&mut self, at: u64, bytes: &[u8]) -> u64 {
        self.latest = self.latest.max(at);
        if self.end.is_some() {
            return self.latest;
        }
        self.bytes.extend(bytes);
        self.wire.push_back((self.latest, self.sent()));
        self.latest
    }

    /// Ends it at `at`, or when all has arrived. Returns the moment.
    pub fn finish(&mut self, at: u64) -> u64 {
        self.latest = self.latest.max(at);
        self.end.get_or_insert(self.latest);
        self.latest
    }

    /// Loses what has not arrived, but for `kept` bytes of it.
    pub fn lose(&mut self, kept: usize) {
        let keep = (self.arrived + kept).min(self.sent());
        self.bytes.truncate(keep - self.read);
        // Segments behind the loss are empty now: they arrive without effect.
        self.wire.iter_mut().for_each(|(_, upto)| *upto = (*upto).min(keep));
    }

    /// Loses all that was not read.
    pub fn discard(&mut self) {
        self.wire.clear();
        self.read = self.sent();
        self.arrived = self.read;
        self.bytes.clear();
    }

    /// Lets what is due arrive, unless the wire is held up until `held_until`. Returns when to look
    /// again, if not all that was due could.
    pub fn arrive(&mut self, now: u64, held_until: u64) -> Option<u64> {
        let held_until = held_until.max(self.held_until);
        if now < held_until {
            let waits = !self.wire.is_empty() || self.end.is_some() && !self.has_ended;
            return waits.then_some(held_until);
        }
        while self.wire.front().is_some_and(|(at, _)| *at <= now) {
            self.arrived = self.wire.pop_front().map_or(self.arrived, |(_, upto)| upto);
        }
        self.has_ended |= self.wire.is_empty() && self.end.is_some_and(|at| at <= now);
        None
    }

    /// What the receiving process could read now, in one piece.
    pub fn peek(&mut self) -> &[u8] {
        let readable = self.readable();
        &self.bytes.make_contiguous()[..readable]
    }

    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.readable(), "only what has arrived is read");
        self.bytes.drain(..count);
        self.read += count;
    }
}

/// How far the server's end has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerEnd {
    /// The handshake of the kernels is not over.
    Absent,
    /// The kernel has accepted it, and the process has not looked yet.
    Backlog,
    Accepted,
    /// Closed, or gone with the process.
    Gone,
}

/// How far the client's end has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientEnd {
    Connecting,
    Refused,
    Established,
    Closed,
}

/// A yes that a server has said, to check what is made of it.
#[derive(Debug, Clone, Copy)]
pub struct Yes {
    /// The reply's place on this connection.
    pub index: u64,
    pub token: [u8; 40],
    /// Whether it is an answer to an extension, and not to a SET.
    pub is_extension: bool,
    pub is_healed: bool,
    /// When it was said, in true time.
    pub at: u64,
    /// Whether the server had forgotten a lock on this key that may have been held.
    pub memory: Trust,
    /// Whether the server was a replica.
    pub role: Trust,
}

/// Whether a vote may count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    Full,
    /// What speaks against it could not be noticed.
    Blind,
    No,
}

/// A command of a lock.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Its place among the commands on this connection.
    pub place: u64,
    pub token: [u8; 40],
    /// The time to live in milliseconds, if it is a SET.
    pub set: Option<u32>,
}

/// A connection between a client's slot and a node.
pub struct Connection {
    pub client: usize,
    /// The node's place in the client's configuration.
    pub slot: usize,
    pub node: usize,
    pub up: Pipe,
    pub down: Pipe,
    pub client_end: ClientEnd,
    pub server_end: ServerEnd,
    pub session: Session,
    /// Which of the node's processes has accepted it.
    pub incarnation: u64,
    /// Commands that the client handed to its socket.
    pub commands: u64,
    /// Replies that the server wrote.
    pub answered: u64,
    /// Replies that the client read.
    pub replies: u64,
    pub yeses: VecDeque<Yes>,
    /// What was said of locks that are known by a caller's value: the reply's index, and what.
    pub said: VecDeque<(u64, Said)>,
    /// The commands of locks that the client has handed to its socket and not been answered.
    pub asked: VecDeque<Asked>,
    /// When a second connection was opened beside it, by the client's clock, and when the server
    /// may answer there.
    pub beside: Option<(Moment, u64)>,
    /// When it was first told, and last, how many keys the server has evicted, in true time.
    pub evictions_told_at: Option<(u64, u64)>,
    /// Where what no client should accept ends.
    pub poisoned: Option<usize>,
    /// When the client last read a reply.
    pub read_at: u64,
    /// When the client closed it.
    pub closed_at: u64,
    /// When the server last said whether it is a replica, in true time.
    pub role_told_at: u64,
    /// Whether the server has said that it evicts.
    pub said_evicts: bool,
    /// The server's answers to `TIME` that the client has not read: their places, and what they say
    /// if they are no errors.
    pub times: VecDeque<(u64, Option<u64>)>,
    /// When the client has asked for them, by its clock without its jumps.
    pub time_asked: VecDeque<u64>,
    /// The commands that raise a counter and were not answered: their places, and when they were
    /// sent, in true time.
    pub raises: VecDeque<(u64, u64)>,
    /// Whether the server refused to end it by `CLIENT KILL`, or to say by what name it could.
    pub outlived_kill: bool,
    /// How many elections there were when Sentinels named the server.
    pub elections: u64,
}

impl Connection {
    pub fn new(client: usize, slot: usize, node: usize) -> Connection {
        Connection {
            client,
            slot,
            node,
            up: Pipe::default(),
            down: Pipe::default(),
            client_end: ClientEnd::Connecting,
            server_end: ServerEnd::Absent,
            session: Session::default(),
            incarnation: 0,
            commands: 0,
            answered: 0,
            replies: 0,
            yeses: VecDeque::new(),
            said: VecDeque::new(),
            asked: VecDeque::new(),
            beside: None,
            evictions_told_at: None,
            poisoned: None,
            read_at: 0,
            closed_at: u64::MAX,
            role_told_at: 0,
            said_evicts: false,
            times: VecDeque::new(),
            time_asked: VecDeque::new(),
            raises: VecDeque::new(),
            outlived_kill: false,
            elections: 0,
        }
    }

    pub fn pipe(&mut self, way: Way) -> &mut Pipe {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }

    /// Whether a command of this lock is not answered.
    pub fn asks(&self, token: &[u8; 40]) -> bool {
        self.asked.iter().any(|asked| asked.token == *token)
    }

    /// Whether the server's end still takes bytes.
    pub fn reaches_server(&self) -> bool {
        matches!(self.server_end, ServerEnd::Backlog | ServerEnd::Accepted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_in_order_and_the_end_behind_them() {
        let mut pipe = Pipe::default();
        assert_eq!(pipe.send(50, b"abc"), 50);
        assert_eq!(pipe.send(20, b"de"), 50, "nothing overtakes");
        assert_eq!(pipe.finish(10), 50);
        assert_eq!((pipe.arrive(49, 0), pipe.readable()), (None, 0));
        assert_eq!((pipe.arrive(50, 60), pipe.readable()), (Some(60), 0));
        pipe.arrive(60, 60);
        assert_eq!(pipe.peek(), b"abcde");
        assert!(pipe.has_ended);
        pipe.consume(2);
        assert_eq!(pipe.peek(), b"cde");
    }

    #[test]
    fn loss_cuts_what_has_not_arrived() {
        let mut pipe = Pipe::default();
        pipe.send(10, b"abc");
        pipe.send(20, b"defg");
        pipe.arrive(10, 0);
        pipe.lose(2);
        pipe.arrive(20, 0);
        assert_eq!(pipe.peek(), b"abcde");
        pipe.discard();
        assert_eq!((pipe.readable(), pipe.sent()), (0, 5));
    }
}
