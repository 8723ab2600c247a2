//! Waiting for a lock that is held (W1 to W15), apart from all that decides about locks.

mod choice;
mod entry;
mod hand_on;
mod local_queue;
mod place;
mod push;
mod row;
mod visit;
mod watch;

pub(super) use choice::score;
pub(super) use entry::Stands;
pub(super) use local_queue::Queues;
pub(super) use visit::Visits;

use super::command::Tell;
use crate::quorum::NodeSet;

/// How a lock that is given up is released at the gates.
#[derive(Clone, Copy)]
pub(super) struct Hand {
    pub(super) gates: NodeSet,
    pub(super) tell: Tell,
}

impl Hand {
    /// The usual release on all nodes.
    pub(super) const NONE: Hand = Hand { gates: NodeSet::EMPTY, tell: Tell::Nobody };
}

/// Why the lock seems to be free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Free {
    /// A node says that its key is absent.
    Seen,
    /// A node says that its key has changed.
    Changed,
    /// Its time is over.
    Expired,
}
