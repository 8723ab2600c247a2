//! A held lock, as plain data.

use std::time::Duration;

use super::doubt::Doubt;
use super::kind::Claim;
use crate::config::Config;
use crate::fencing::FencingToken;
use crate::keep_alive::LossCause;
use crate::moment::Moment;
use crate::quorum::{NodeSet, quorum};
use crate::resource::{Key, Resource};
use crate::token::LockToken;
use crate::validity::{self, Ttl};

/// A lock that was granted: its resource, its token, and its validity.
///
/// An acquisition returns it; an extension or a release takes it by value. So a lock has at most
/// one operation in flight, and its owner cannot use it once its release begins. A lease is not
/// `Clone`. Only an extension that completed before the old deadline raises the deadline.
///
/// Dropping a lease does not release the lock: the keys remain until they expire. Another engine or
/// multiplexer can extend or release it, if it has the same nodes in the same order and the same
/// key prefix. Call [`Multiplexer::let_go`](crate::Multiplexer::let_go) before that.
///
/// A lease is plain data, which `fork` copies. After a fork, both processes have the lease, and one
/// of them must drop its copy. The multiplexer that returned it belongs to the parent.
#[must_use = "a lease that is dropped is not released; it only expires"]
#[derive(Debug)]
pub struct Lease {
    pub(super) claim: Claim,
    /// How many rounds its acquisition took; zero if that is not known.
    pub(super) rounds: u32,
    /// How long its acquisition took.
    pub(super) waited_nanos: u64,
    /// The longest TTL that any node may have been sent.
    pub(super) longest: Ttl,
    pub(super) started: Moment,
    pub(super) deadline: Moment,
    pub(super) granted: NodeSet,
    /// The nodes that may hold the key: the release goes to each of them.
    pub(super) sent: NodeSet,
    /// The engine that handed it out, which knows more about it than others do.
    pub(super) engine: u64,
    /// Its number, if it is fenced. It never changes (F17).
    pub(super) fencing: Option<FencingToken>,
    /// Doubts about nodes, from the engine that let it go.
    pub(super) doubts: Box<[Doubt]>,
}

/// A number that no engine has.
pub(super) const NO_ENGINE: u64 = u64::MAX;

impl Lease {
    /// The locked resource.
    pub fn resource(&self) -> &Resource {
        self.claim.key.resource()
    }

    /// The random value of the lock. It is enough to release or extend the lock.
    pub fn token(&self) -> &LockToken {
        &self.claim.token
    }

    /// Its fencing token, if it was acquired with one: see [`Fencing::On`](super::Fencing::On).
    /// Extensions and hand-overs do not change it.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing
    }

    /// The TTL of the acquisition, or of the last extension that lengthened the lock.
    pub fn ttl(&self) -> Duration {
        self.claim.ttl.as_duration()
    }

    /// How long its acquisition took: from the call that started it until the lock was granted,
    /// with all rounds and waits. Zero for a lock that came as text.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_nanos)
    }

    /// How many rounds its acquisition took. Zero for a lock that came as text.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// When the validity ends: the start of the round that granted it, or last extended it, plus
    /// the TTL, minus the drift.
    pub fn valid_until(&self) -> Moment {
        self.deadline
    }

    /// Makes it a lease of an engine with `nodes` nodes that did not acquire it, and so does not
    /// know which of them may hold the key.
    pub(crate) fn adopted(self, nodes: usize) -> Lease {
        let (started, all) = (Moment::from_nanos(0), NodeSet::all(nodes));
        Lease { started, granted: self.granted.and(all), sent: all, ..self }
    }

    /// Makes it a lease of this engine.
    #[cold]
    pub(super) fn move_to(&mut self, engine: u64, config: &Config) {
        let all = NodeSet::all(config.nodes());
        (self.started, self.sent, self.engine) = (Moment::START, all, engine);
        self.granted = self.granted.and(all);
        self.claim.key = config.key_of(self.claim.key.resource().clone());
    }

    /// A lease of a lock that was acquired elsewhere, without further knowledge.
    pub(super) fn restored(claim: Claim, deadline: Moment) -> Lease {
        Lease {
            longest: claim.ttl,
            claim,
            rounds: 0,
            waited_nanos: 0,
            started: Moment::START,
            deadline,
            granted: NodeSet::EMPTY,
            sent: NodeSet::EMPTY,
            engine: NO_ENGINE,
            fencing: None,
            doubts: Box::default(),
        }
    }

    /// A lease of a lock of this resource that was acquired elsewhere. The engine that takes it
    /// puts its key prefix on.
    pub(crate) fn elsewhere(
        resource: Resource,
        token: LockToken,
        ttl: Ttl,
        deadline: Moment,
    ) -> Lease {
        Lease::restored(Claim { key: Key::new(resource, &[]), token, ttl }, deadline)
    }

    /// A lease that releases the lock with a caller's value that has this token, held by any client
    /// (K13).
    #[doc(hidden)]
    pub fn of_value(resource: Resource, token: LockToken, max_ttl: Duration) -> Lease {
        let longest = Ttl::new(max_ttl).unwrap_or(Ttl::LONGEST);
        Lease::elsewhere(resource, token, longest, Moment::from_nanos(0))
    }

    /// An expired lease, in place of one that another thread has.
    pub(crate) fn over(&self) -> Lease {
        self.over_after(self.claim.ttl)
    }

    /// The same, with this TTL.
    pub(crate) fn over_after(&self, ttl: Ttl) -> Lease {
        let claim = Claim { ttl, ..self.claim.clone() };
        Lease::restored(claim, Moment::from_nanos(0)).fenced(self.fencing)
    }

    /// The same lease, with this number.
    pub(crate) fn fenced(self, fencing: Option<FencingToken>) -> Lease {
        Lease { fencing, ..self }
    }

    /// The same lease, with the longest TTL that was ever requested, the nodes that granted, and
    /// doubts about nodes.
    pub(crate) fn with_past(self, longest: Ttl, granted: NodeSet, doubts: Vec<Doubt>) -> Lease {
        Lease { longest, granted, doubts: doubts.into(), ..self }
    }

    /// The arguments of [`with_past`](Lease::with_past).
    pub(crate) fn past(&self) -> (Ttl, NodeSet, &[Doubt]) {
        (self.longest, self.granted, &self.doubts)
    }

    /// The same lease, valid at most until `deadline`.
    pub(crate) fn valid_at_most_until(self, deadline: Moment) -> Lease {
        Lease { deadline: self.deadline.min(deadline), ..self }
    }

    /// The same lock, to be [extended](super::Engine::extend) into a read lock: from that extension
    /// on, other readers can take the resource. If the extension fails, release the lock, because
    /// some nodes might already let readers in.
    ///
    /// A lock on several resources, or with an owner value, stays as it is. A read lock has no
    /// fencing token.
    pub fn into_shared(mut self) -> Lease {
        if let Some(key) = self.claim.key.shared() {
            (self.claim.key, self.fencing) = (key, None);
        }
        self
    }

    /// The remaining validity at `now`; zero when it has ended.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.deadline.since(now)
    }

    /// Whether the lock is valid at `now`.
    ///
    /// This is a hint, because a process can be paused right after the check.
    pub fn is_valid_at(&self, now: Moment) -> bool {
        validity::is_valid(self.deadline, now)
    }

    /// The indices of the nodes that had granted it, or its last extension, when the quorum was
    /// complete.
    pub fn granted_by(&self) -> impl Iterator<Item = usize> + use<> {
        self.granted.iter()
    }
}

/// The outcome of a release, as known when a quorum had answered. Check
/// [`was_held`](Released::was_held).
#[must_use = "`was_held` says whether the lock was held to the end"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Released {
    /// Nodes that held the lock and deleted it.
    pub confirmed: usize,
    /// Nodes whose key did not hold this token, or to which no command to set it was sent.
    pub absent: usize,
    /// Nodes that had not answered, or whose answer does not count. The client continues to release
    /// on nodes that it can reach; on the others, the key remains until it expires.
    pub unknown: usize,
    pub(super) was_valid: bool,
}

impl Released {
    /// Whether the lock was certainly held until its release began: its validity had not ended, and
    /// a quorum of masters still had the key.
    ///
    /// If it is `false`, another client might have held the lock before the release: treat the work
    /// as unprotected. The lock had expired or was deleted, or too few masters confirmed it. After
    /// the end of the validity, even a quorum of confirmations is no proof, because a delayed SET
    /// might have run after another client's lock.
    pub fn was_held(&self) -> bool {
        self.was_valid && self.confirmed >= self.quorum()
    }

    /// The loss that this proves of a lock whose validity had not ended when the work did: the
    /// release came after its end, or a quorum had no key. Nodes that did not answer prove nothing.
    pub(crate) fn loss(&self) -> Option<LossCause> {
        match (self.absent >= self.quorum(), self.was_valid) {
            (true, _) => Some(LossCause::Gone),
            (false, false) => Some(LossCause::Late),
            (false, true) => None,
        }
    }

    fn quorum(&self) -> usize {
        quorum(self.confirmed + self.absent + self.unknown)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_release_proves_a_loss_by_a_quorum_of_absences_or_by_its_time() {
        let table = [
            ((3, 0, 0, true), None),
            ((1, 1, 1, true), None),
            ((1, 0, 2, true), None),
            ((1, 2, 0, true), Some(LossCause::Gone)),
            ((0, 3, 2, false), Some(LossCause::Gone)),
            ((3, 0, 0, false), Some(LossCause::Late)),
            ((0, 1, 2, false), Some(LossCause::Late)),
        ];
        for ((confirmed, absent, unknown, was_valid), loss) in table {
            let released = Released { confirmed, absent, unknown, was_valid };
            assert_eq!(released.loss(), loss, "{released:?}");
        }
    }

    /// F17: the number stays with what stands in for a lease.
    #[test]
    fn expired_lease_in_its_place_has_its_number() {
        let resource = Resource::new("account:7").unwrap();
        let (token, ttl) = (LockToken::from_random([7; 20]), Duration::from_secs(1));
        let until = Moment::from_nanos(u64::MAX);
        let lease = Lease::elsewhere(resource, token, Ttl::new(ttl).unwrap(), until);
        let lease = lease.fenced(FencingToken::checked(42));
        let over = lease.over();
        assert_eq!(over.fencing_token(), FencingToken::checked(42));
        assert!(lease.is_valid_at(Moment::from_nanos(1)) && !over.is_valid_at(Moment::START));
    }
}
