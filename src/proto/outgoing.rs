//! What is to be sent, or done with a connection.

use super::command::Notify;
use super::request::{Question, WaitCommand};
use crate::proto::index::RoundId;
use crate::quorum::NodeSet;

/// What is to be sent, or done with a connection.
pub(crate) enum Outgoing {
    Connect(usize),
    /// A second connection, to see whether the server answers there.
    Beside(usize),
    Close(usize),
    Ask(NodeSet, Question),
    Kill(usize, i64),
    Round(NodeSet, RoundId),
    Confirm(NodeSet, RoundId),
    /// The release of this round at a queue node, and what becomes of the queue.
    ReleaseAtQueue(usize, RoundId, Notify),
    Wait(usize, WaitCommand),
}

// Each command to all nodes is one.
const _: () = assert!(size_of::<Outgoing>() <= 24);

impl Outgoing {
    /// Withdraws what it has for this node. Returns whether anything is left, and the round that
    /// has lost a command.
    pub(super) fn withdraw(&mut self, node: usize) -> (bool, Option<RoundId>) {
        match self {
            Outgoing::Connect(other)
            | Outgoing::Beside(other)
            | Outgoing::Kill(other, _)
            | Outgoing::Wait(other, _) => (*other != node, None),
            Outgoing::ReleaseAtQueue(other, round, _) => {
                (*other != node, (*other == node).then_some(*round))
            }
            Outgoing::Close(_) => (true, None),
            Outgoing::Ask(nodes, _) => {
                nodes.remove(node);
                (!nodes.is_empty(), None)
            }
            Outgoing::Round(nodes, round) | Outgoing::Confirm(nodes, round) => {
                let lost = nodes.contains(node).then_some(*round);
                nodes.remove(node);
                (!nodes.is_empty(), lost)
            }
        }
    }

    /// How many commands it is, without those of handshakes.
    pub(super) fn commands(&self) -> usize {
        match self {
            Outgoing::Connect(_)
            | Outgoing::Beside(_)
            | Outgoing::Close(_)
            | Outgoing::Ask(_, Question::Handshake(_)) => 0,
            Outgoing::Ask(nodes, _) | Outgoing::Round(nodes, _) | Outgoing::Confirm(nodes, _) => {
                nodes.len()
            }
            Outgoing::Kill(..) | Outgoing::ReleaseAtQueue(..) | Outgoing::Wait(..) => 1,
        }
    }
}
