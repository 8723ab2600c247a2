//! Errors as a client returns them, for tests of what an application does about them.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use crate::keep_alive::{Loss, LossCause};
use crate::lock_error::{LockError, LockErrorKind};
use crate::outcome::{CountedFrom, NodeOutcome, NodeReport, Quarantine, QuarantineCause};
use crate::resource::Resource;

/// When a node answered, of those that did.
const LATENCY: Duration = Duration::from_millis(1);
/// What is left of a lock whose renewals failed, with 10 s to live and the usual notice.
const NOTICE: Duration = Duration::from_millis(618);
/// What is left of one that is to be renewed no more.
const RENEWABLE: Duration = Duration::from_millis(6_598);

/// With the feature `testing`.
impl LockError {
    /// An error of this kind as an operation on three masters returns it, to test how a program
    /// handles it.
    ///
    /// The nodes are at `192.0.2.1` to `192.0.2.3`, addresses that lead nowhere. `Contended`: on
    /// two nodes, another holder has the lock. `Unavailable`: two refuse connections. `TimedOut`:
    /// one has granted, and the others have not answered. `Expired`: an extension, for which two no
    /// longer hold the key. For the other kinds, no node was asked.
    ///
    /// ```
    /// use muxlock::{LockError, LockErrorKind};
    ///
    /// /// What is tested: the status code of a service.
    /// fn status(error: &LockError) -> u16 {
    ///     if error.is_contended() { 409 } else { 503 }
    /// }
    ///
    /// assert_eq!(status(&LockError::for_test(LockErrorKind::Contended)), 409);
    /// assert_eq!(status(&LockError::for_test(LockErrorKind::Unavailable)), 503);
    /// ```
    pub fn for_test(kind: LockErrorKind) -> LockError {
        let refused = NodeOutcome::Disconnected(ErrorKind::ConnectionRefused);
        let outcomes = match kind {
            LockErrorKind::Contended => {
                [NodeOutcome::Held, NodeOutcome::Held, NodeOutcome::Pending]
            }
            LockErrorKind::Unavailable => [refused, refused, NodeOutcome::Granted],
            LockErrorKind::TimedOut => {
                [NodeOutcome::Granted, NodeOutcome::Pending, NodeOutcome::Pending]
            }
            LockErrorKind::Expired => {
                [NodeOutcome::Absent, NodeOutcome::Absent, NodeOutcome::Pending]
            }
            LockErrorKind::InvalidTtl { .. }
            | LockErrorKind::InvalidResource { .. }
            | LockErrorKind::ReservedResource
            | LockErrorKind::InvalidSet { .. }
            | LockErrorKind::InvalidSlots { .. }
            | LockErrorKind::InvalidValue { .. }
            | LockErrorKind::Unfenced
            | LockErrorKind::Overloaded
            | LockErrorKind::NoEntropy
            | LockErrorKind::Cancelled
            | LockErrorKind::Closed
            | LockErrorKind::Forked => return LockError::new(kind, 0, Vec::new()),
        };
        LockError::new(kind, 1, reports(outcomes))
    }

    /// An error of the kind [`Unavailable`](LockErrorKind::Unavailable), because two of three
    /// masters were restarted: [`ready_in`](LockError::ready_in) returns this time.
    pub fn quarantined_for_test(ready_in: Duration) -> LockError {
        let outcomes = [NodeOutcome::Quarantined, NodeOutcome::Quarantined, NodeOutcome::Pending];
        let mut nodes = reports(outcomes);
        for node in nodes.iter_mut().filter(|node| node.outcome == NodeOutcome::Quarantined) {
            node.quarantine =
                Some(Quarantine::new(QuarantineCause::Restarted, ready_in, CountedFrom::Event));
        }
        LockError::new(LockErrorKind::Unavailable, 1, nodes)
    }
}

/// With the feature `testing`.
impl Loss {
    /// A loss for this reason as the holder of a lock gets it, to test how a program handles it.
    /// Its fields can be changed.
    ///
    /// The resource is `for_test`, with a TTL of 10 s. The other fields fit the cause: an error if
    /// the masters were asked, and no remaining time for a lock that others might have.
    ///
    /// ```
    /// use muxlock::{Loss, LossCause};
    ///
    /// let loss = Loss::for_test(LossCause::Gone);
    /// assert!(loss.remaining.is_zero() && loss.error.is_some_and(|error| error.is_expired()));
    /// ```
    pub fn for_test(cause: LossCause) -> Loss {
        let failed = |kind| Some(LockError::for_test(kind));
        let too_long = LockErrorKind::InvalidTtl {
            ttl: Duration::from_secs(10),
            min: Duration::from_millis(4),
            max: Duration::from_secs(5),
        };
        let (remaining, error) = match cause {
            LossCause::Unavailable => (NOTICE, failed(LockErrorKind::Unavailable)),
            LossCause::Gone => (Duration::ZERO, failed(LockErrorKind::Expired)),
            LossCause::Late | LossCause::Forked => (Duration::ZERO, None),
            LossCause::RenewalsMax | LossCause::LifetimeMax => (RENEWABLE, None),
            LossCause::Refused => (RENEWABLE, failed(too_long)),
        };
        // It is neither empty nor too long.
        let resource = Resource::new("for_test").expect("this is a valid name");
        Loss { resource, cause, remaining, error }
    }
}

/// What three nodes said.
fn reports(outcomes: [NodeOutcome; 3]) -> Vec<NodeReport> {
    let report = |(node, outcome)| NodeReport {
        node,
        address: Arc::from(format!("192.0.2.{}:6379", node + 1)),
        outcome,
        latency: (outcome != NodeOutcome::Pending).then_some(LATENCY),
        message: None,
        quarantine: None,
    };
    outcomes.into_iter().enumerate().map(report).collect()
}
