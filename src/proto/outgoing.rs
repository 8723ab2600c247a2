//! What is to be sent, or done with a connection.

use super::command::{ReleaseWith, Step as Stride, Tell};
use super::request::{Ability, Step};
use crate::quorum::NodeSet;

/// What is to be sent, or done with a connection.
pub(super) enum Outgoing {
    Connect(usize),
    /// A second connection, to see whether the server answers there.
    Beside(usize),
    Close(usize),
    Handshake(usize, Step),
    Kill(usize, i64),
    Probe(usize, ReleaseWith),
    /// That this client has seen the node's promoted server.
    Sight(usize),
    Time(NodeSet),
    Role(NodeSet),
    Round(NodeSet, usize),
    Raise(NodeSet, usize),
    Able(usize, Ability),
    /// The release of this round at a gate, and what becomes of the queue.
    HandOn(usize, usize, Tell),
    /// For the stand with this number.
    QueueUp(usize, u32),
    /// The key of this stand, for one of its watches.
    Watch(usize, u32, u32),
    TimeToLive(usize, u32, u32),
    /// For a place that is left, by its number.
    StepOut(usize, u32, Stride),
}

// Each command to all nodes is one.
const _: () = assert!(size_of::<Outgoing>() <= 24);
