//! One command to all nodes, and their votes on it.

use std::time::Duration;

use super::command::{Command, FlushMarker, Grant, ReleaseWith};
use crate::moment::Moment;
use crate::outcome::NodeOutcome;
use crate::quorum::{NodeSet, Tally};
use crate::resource::Resource;
use crate::token::LockToken;
use crate::validity::Ttl;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Acquire,
    Extend,
    /// An extension that sets the key where it is absent (R29).
    Heal,
    Release,
}

/// What a round's command refers to.
#[derive(Clone)]
pub(super) struct Claim {
    pub(super) key: Resource,
    pub(super) token: LockToken,
    pub(super) ttl: Ttl,
}

impl Kind {
    /// Whether its command may create a key.
    #[inline]
    pub(super) fn may_create(self) -> bool {
        matches!(self, Kind::Acquire | Kind::Heal)
    }

    pub(super) fn is_extension(self) -> bool {
        matches!(self, Kind::Extend | Kind::Heal)
    }
}

impl Claim {
    /// The command for nodes with this release command and this flush marker.
    pub(super) fn command<'a>(
        &'a self,
        kind: Kind,
        with: ReleaseWith,
        marker: Option<FlushMarker<'a>>,
    ) -> Command<'a> {
        let (key, token, ttl) = (self.key.as_bytes(), &self.token, self.ttl);
        match kind {
            Kind::Acquire => Command::Acquire { key, token, ttl, marker },
            Kind::Extend => Command::Extend { key, token, ttl },
            Kind::Heal => Command::Heal { key, token, ttl, marker },
            Kind::Release => Command::Release { key, token, with },
        }
    }
}

/// The state of a round. It owns no heap memory, so removing it is cheap.
///
/// Invariant: it lives as long as an operation owns it, or a node has its command queued or
/// unanswered, so that a late reply finds it.
#[derive(Clone, Copy)]
pub(super) struct Round {
    pub(super) kind: Kind,
    /// The reply that is a plain grant; `None` if replies need more checks.
    pub(super) grant: Option<Grant>,
    pub(super) started: Moment,
    /// From this moment on, the granted or extended validity has ended.
    pub(super) deadline: Moment,
    /// For the release of a debt: when the key has certainly expired. `None` if unknown, because
    /// the SET may still precede this command on the same connection.
    pub(super) expires: Option<Moment>,
    pub(super) tally: Tally,
    /// The nodes that have not voted. A node votes once (R3).
    pub(super) undecided: NodeSet,
    pub(super) granted: NodeSet,
    /// The nodes that were sent the command, or will be once they are connected.
    pub(super) sent: NodeSet,
    /// The nodes that were in quarantine when they were sent the command: their answers do not
    /// count.
    pub(super) uncounted: NodeSet,
    /// The operation that waits for the votes, if any.
    pub(super) owner: Option<usize>,
    pub(super) decided: bool,
    /// Whether its attempt failed, or its lock moved to another engine: unsent commands are
    /// discarded.
    pub(super) is_abandoned: bool,
    /// Whether a command had to wait for a connection: the time to a quorum is then no sample of
    /// the round trip.
    pub(super) waited: bool,
    /// One for the owner, and one for each node that has the command queued or unanswered.
    pub(super) references: u32,
}

/// A node's contribution to a round.
#[derive(Clone, Copy)]
pub(super) struct Vote {
    pub(super) outcome: NodeOutcome,
    latency_nanos: Option<u64>,
}

impl Vote {
    pub(super) const PENDING: Vote = Vote { outcome: NodeOutcome::Pending, latency_nanos: None };

    #[inline]
    pub(super) fn new(outcome: NodeOutcome, latency_nanos: Option<u64>) -> Vote {
        Vote { outcome, latency_nanos }
    }

    pub(super) fn latency(self) -> Option<Duration> {
        self.latency_nanos.map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_set_and_what_heals_may_create() {
        let creating = [Kind::Acquire, Kind::Extend, Kind::Heal, Kind::Release];
        assert_eq!(creating.map(Kind::may_create), [true, false, true, false]);
    }
}
