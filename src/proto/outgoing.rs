//! What is to be sent, or done with a connection.

use super::command::{ReleaseWith, Tell};
use super::request::{Step, WaitCommand};
use crate::quorum::NodeSet;

/// What is to be sent, or done with a connection.
pub(crate) enum Outgoing {
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
    /// The release of this round at a gate, and what becomes of the queue.
    HandOn(usize, usize, Tell),
    Wait(usize, WaitCommand),
}

// Each command to all nodes is one.
const _: () = assert!(size_of::<Outgoing>() <= 24);
