//! What one engine knows of a node, and the next one cannot find out.

use std::sync::Arc;
use std::time::Duration;

/// The most connections that one debt names; the others are treated as unknown.
pub(crate) const CONNECTIONS_MAX: usize = 4;

/// A connection as its server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    /// The `run_id` of the server's process. The connection ends when the process does.
    pub(crate) process: Arc<str>,
    /// The connection's `CLIENT ID`.
    pub(crate) connection: i64,
}

/// The connections on which a command that may set the key may still arrive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ConnectionIds {
    pub(crate) known: Vec<ConnectionId>,
    /// Whether there is a connection that cannot be identified, and so cannot be killed.
    pub(crate) has_unknown: bool,
}

impl ConnectionIds {
    pub(crate) fn insert(&mut self, id: ConnectionId) {
        if self.known.contains(&id) {
            return;
        }
        match self.known.len() < CONNECTIONS_MAX {
            true => self.known.push(id),
            false => self.has_unknown = true,
        }
    }

    /// Adds other connections. Each of the two sets comes with a flag: all it may bring is one SET.
    /// Returns the flag for the union.
    pub(crate) fn add(&mut self, (others, is_one_set): (Self, bool), was_one_set: bool) -> bool {
        let is_one_set = match (self.is_empty(), others.is_empty()) {
            (true, _) => is_one_set,
            (_, true) => was_one_set,
            // The same connections, reported twice.
            _ => *self == others && is_one_set && was_one_set,
        };
        self.extend(others);
        is_one_set
    }

    pub(super) fn extend(&mut self, others: ConnectionIds) {
        self.has_unknown |= others.has_unknown;
        others.known.into_iter().for_each(|id| self.insert(id));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty() && !self.has_unknown
    }
}

/// What the engine that let a lease go knows about a node, and the next engine cannot find out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub(crate) node: usize,
    /// The connections on which a command that may set the key may still arrive.
    pub(crate) connections: ConnectionIds,
    /// Whether one SET is all that may still arrive.
    pub(crate) is_one_set: bool,
    /// For how long the node's copy must not be counted.
    pub(crate) uncounted: Duration,
}

impl Doubt {
    pub(super) fn is_known(&self) -> bool {
        !self.connections.is_empty() || !self.uncounted.is_zero()
    }

    /// Merges what two engines know about one node.
    pub(super) fn extend(&mut self, other: Doubt) {
        let others = (other.connections, other.is_one_set);
        self.is_one_set = self.connections.add(others, self.is_one_set);
        self.uncounted = self.uncounted.max(other.uncounted);
    }
}
