//! A lock that is held, as plain data.

use std::time::Duration;

use super::debt::Origins;
use crate::quorum::NodeSet;
use crate::token::LockToken;
use crate::validity::{self, Ttl};
use crate::{Moment, Resource};

/// A lock that was granted: what it is on, who owns it, and until when it may be believed in.
///
/// It is given out by an acquisition and taken back by value by an extension or a release, so
/// that one lock has one operation in flight at most (R30) and is dead, for its owner, before the
/// first byte of its release is sent (R14). Its deadline is never raised but by an extension that
/// was complete before the old deadline (R22, R25).
///
/// Dropping it releases nothing: the keys then live until their TTL ends. Another engine, or
/// multiplexer, with the same nodes in the same order and the same key prefix may extend or release
/// it.
///
/// It is plain data, which `fork` copies: after one, two processes believe that they hold the lock,
/// and one of them must drop its copy. The multiplexer that gave it out belongs to the parent.
#[must_use = "a lease that is dropped is not released; it only expires"]
#[derive(Debug)]
pub struct Lease {
    pub(super) resource: Resource,
    pub(super) token: LockToken,
    pub(super) ttl: Ttl,
    /// The longest time to live that a node may have been asked for.
    pub(super) longest: Ttl,
    pub(super) started: Moment,
    pub(super) deadline: Moment,
    pub(super) granted: NodeSet,
    /// The nodes that may hold the key: a release goes to each.
    pub(super) sent: NodeSet,
    /// The engine that gave it out, which knows more of it than others do.
    pub(super) engine: u64,
    /// What the engine that let it go knows of the nodes.
    pub(super) doubts: Box<[Doubt]>,
}

/// What the engine that let a lease go knows of a node, and the next one cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub(crate) node: usize,
    /// Where a command that may set the key may still come from.
    pub(crate) origins: Origins,
    /// Whether that is one SET and nothing else.
    pub(crate) is_one_set: bool,
    /// For how long the node's copy must not be counted.
    pub(crate) uncounted: Duration,
}

impl Doubt {
    pub(super) fn says_anything(&self) -> bool {
        !self.origins.is_empty() || !self.uncounted.is_zero()
    }

    /// What two engines know of one node.
    pub(super) fn extend(&mut self, other: Doubt) {
        let others = (other.origins, other.is_one_set);
        self.is_one_set = self.origins.add(others, self.is_one_set);
        self.uncounted = self.uncounted.max(other.uncounted);
    }
}

/// No engine has this number.
pub(super) const NO_ENGINE: u64 = u64::MAX;

impl Lease {
    /// What is locked.
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The value that proves the ownership.
    pub fn token(&self) -> &LockToken {
        &self.token
    }

    /// The time to live that was asked for last.
    pub fn ttl(&self) -> Duration {
        self.ttl.as_duration()
    }

    /// When the validity ends: start of the round that granted it, plus the TTL, minus the drift.
    pub fn valid_until(&self) -> Moment {
        self.deadline
    }

    /// Makes it a lease of an engine with `nodes` nodes that did not acquire it, and so does not
    /// know which of them may hold the key.
    pub(crate) fn adopted(self, nodes: usize) -> Lease {
        let (started, all) = (Moment::from_nanos(0), NodeSet::all(nodes));
        Lease { started, granted: self.granted.and(all), sent: all, ..self }
    }

    /// A lease of a lock that was acquired elsewhere, which nobody knows more of.
    pub(crate) fn restored(
        resource: Resource,
        token: LockToken,
        ttl: Ttl,
        deadline: Moment,
    ) -> Lease {
        let (started, longest) = (Moment::from_nanos(0), ttl);
        let (granted, sent) = (NodeSet::EMPTY, NodeSet::EMPTY);
        let (engine, doubts) = (NO_ENGINE, Box::default());
        Lease { resource, token, ttl, longest, started, deadline, granted, sent, engine, doubts }
    }

    /// What stands in for a lease that is in somebody else's hands: a lock that is over.
    pub(crate) fn over(&self) -> Lease {
        let over = Moment::from_nanos(0);
        Lease::restored(self.resource.clone(), self.token, self.ttl, over)
    }

    /// The same, with the longest time to live that was ever asked for, the nodes that granted, and
    /// what is not known of nodes.
    pub(crate) fn with_past(self, longest: Ttl, granted: NodeSet, doubts: Vec<Doubt>) -> Lease {
        Lease { longest, granted, doubts: doubts.into(), ..self }
    }

    /// What [`with_past`](Lease::with_past) takes.
    pub(crate) fn past(&self) -> (Ttl, NodeSet, &[Doubt]) {
        (self.longest, self.granted, &self.doubts)
    }

    /// The same, valid no longer than until `deadline`.
    pub(crate) fn valid_at_most_until(self, deadline: Moment) -> Lease {
        Lease { deadline: self.deadline.min(deadline), ..self }
    }

    /// What is left of the validity at `now`; zero when it is over.
    pub fn remaining(&self, now: Moment) -> Duration {
        validity::remaining(self.deadline, now)
    }

    /// Whether the lock may be believed in at `now`.
    ///
    /// It is a hint (R21): a process may be paused right after it asked.
    pub fn is_valid_at(&self, now: Moment) -> bool {
        validity::is_valid(self.deadline, now)
    }

    /// The nodes, by index, that had granted it, or extended it last, when that was decided: at
    /// least a quorum.
    pub fn granted_by(&self) -> impl Iterator<Item = usize> + use<> {
        self.granted.iter()
    }
}

/// What a release did, as far as it was known when a quorum had answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Released {
    /// Nodes that held the lock and deleted it.
    pub confirmed: usize,
    /// Nodes on which the lock was not, or no longer, ours.
    pub absent: usize,
    /// Nodes that had not answered, or could not. The release is on its way to each that can be
    /// reached; on the others the key ends with its TTL.
    pub unknown: usize,
    pub(super) was_valid: bool,
}

impl Released {
    /// Whether the lock was valid when its release began and a quorum still held it then: nobody
    /// else can have had it.
    ///
    /// If it is `false`, it may have expired or have been deleted before. What a quorum confirms
    /// after the validity is no proof: a SET that was on its way for long may have come after
    /// somebody else's lock.
    pub fn was_held(&self) -> bool {
        self.was_valid
            && self.confirmed >= crate::quorum(self.confirmed + self.absent + self.unknown)
    }
}
