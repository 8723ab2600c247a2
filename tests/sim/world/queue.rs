//! What is to happen, in the order of true time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::network::Way;

/// Something that happens at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A connection request reaches the server's machine.
    Knock(usize),
    /// Its answer reaches the client.
    Answer(usize),
    /// A second connection beside this one is to be made, and answered.
    Beside(usize),
    /// Something may arrive on a connection.
    Deliver(usize, Way),
    NodeTurn(usize),
    ClientTurn(usize),
    /// A client's application does something.
    Work(usize),
    /// It is time to renew what an application keeps alive.
    Renew(usize),
    /// A client extends a lock that it was handed.
    Relay(usize),
    /// A lock goes on of which a command is late.
    Late,
    Fault,
    /// A node's process starts again, if it is still down.
    Restart(usize),
    /// A member of a crowd does something.
    Crowd(usize),
    /// The same of one that waits for long, or what happens to them.
    Vigil(usize),
    /// A waiter of a line does something, or what happens to them.
    Line(usize),
    /// A client gives back a lock that it takes again and again, or comes for it.
    Rows(usize),
    /// A reader, or a writer that is far away, does something.
    Far(usize),
    /// A client of those with two kinds of lock does something.
    Mixed(usize),
    /// The same of a client that has a lock when the masters are full; whether it is the last.
    Full(usize, bool),
    /// Somebody waits until then.
    Nothing,
    /// A watched key may have ended on a node.
    Ends(usize),
}

/// A queue of events. Two of one moment happen in the order in which they were put in.
#[derive(Default)]
pub struct Queue {
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    /// When the last one happened.
    now: u64,
}

impl Queue {
    /// Adds an event.
    ///
    /// # Panics
    /// If it is in the past: true time does not run backwards.
    pub fn push(&mut self, at: u64, event: Event) {
        assert!(at >= self.now, "{event:?} at {at} is before {}", self.now);
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    pub fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((at, _, event)) = self.events.pop()?;
        self.now = at;
        Some((at, event))
    }
}
