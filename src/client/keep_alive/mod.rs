//! Locks that are renewed while they are held.

mod keeper;
mod kept;
mod schedule;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub(super) use keeper::Keeper;
pub use kept::KeptLock;

use super::LockGuard;
use crate::Resource;
use crate::error::{LockError, LockErrorKind};

const RENEWALS_MAX_DEFAULT: u32 = 10_000;
const LIFETIME_MAX_DEFAULT: Duration = Duration::from_secs(60 * 60);
/// The notice of a loss, if nothing else was asked for: this part of the validity, or a node's
/// timeout if that is longer, but no more than [`NOTICE_PART_MAX`].
const NOTICE_PART: u32 = 16;
const NOTICE_PART_MAX: u32 = 4;

type OnLoss = Arc<dyn Fn(&Loss) + Send + Sync>;

/// How a lock is kept alive by [`LockGuard::keep_alive`].
///
/// The number of renewals is capped, and so is the time over which there are any: a process that
/// lives but does not get on would otherwise keep everybody else out for ever. The algorithm's own
/// page ([Distributed Locks with Redis], "Making the algorithm more reliable") says so of clients
/// that extend their locks: "the maximum number of lock reacquisition attempts should be limited,
/// otherwise one of the liveness properties is violated".
///
/// ```
/// use muxlock::KeepAlive;
/// use std::time::Duration;
///
/// let keep_alive = KeepAlive::default()
///     .lifetime_max(Duration::from_secs(600))
///     .on_loss(|loss| eprintln!("stop: {loss}"));
/// # let _ = keep_alive;
/// ```
///
/// [Distributed Locks with Redis]: https://redis.io/docs/latest/develop/use/patterns/distributed-locks/
#[derive(Clone)]
#[must_use = "it says how to keep a lock alive, and keeps none"]
pub struct KeepAlive {
    renewals_max: u32,
    lifetime_max: Duration,
    notice: Option<Duration>,
    on_loss: Option<OnLoss>,
}

impl KeepAlive {
    /// How many times the lock is renewed at most; 10,000 if not set.
    ///
    /// When the next renewal would be due, the holder is told ([`LossCause::RenewalsMax`]), with
    /// about two thirds of the validity left.
    pub fn renewals_max(self, renewals_max: u32) -> KeepAlive {
        KeepAlive { renewals_max, ..self }
    }

    /// For how long the lock is renewed at most; an hour if not set.
    ///
    /// No renewal starts later than this after [`LockGuard::keep_alive`]; so the lock is held for
    /// one TTL more at most. When the next renewal would be due, the holder is told
    /// ([`LossCause::LifetimeMax`]), with about two thirds of the validity left.
    pub fn lifetime_max(self, lifetime_max: Duration) -> KeepAlive {
        KeepAlive { lifetime_max, ..self }
    }

    /// How long before the lock's validity ends its holder is told that it could not be renewed.
    ///
    /// It is the time to stop the work in, and it is taken off the time in which a renewal that
    /// failed is tried again. If not set, it is a sixteenth of the validity, or
    /// [`node_timeout`](crate::Builder::node_timeout) if that is longer, but not more than a
    /// quarter. What is set is used up to half of the validity that is left.
    pub fn notice(self, notice: Duration) -> KeepAlive {
        KeepAlive { notice: Some(notice), ..self }
    }

    /// Calls `on_loss` once if the lock is lost.
    ///
    /// It is called on the thread that renews all locks of the client, so it must be short: what
    /// takes longer delays the renewals of the others. It may panic; the thread goes on. It is not
    /// called once the lock was unlocked, stopped or dropped, unless it is being called at that
    /// moment. A logger that blocks this thread delays it;
    /// [`KeptLock::is_lost`](crate::KeptLock::is_lost) does not depend on it.
    pub fn on_loss(self, on_loss: impl Fn(&Loss) + Send + Sync + 'static) -> KeepAlive {
        KeepAlive { on_loss: Some(Arc::new(on_loss)), ..self }
    }

    fn notice_of(&self, validity: Duration, node_timeout: Duration) -> Duration {
        let usual = || node_timeout.max(validity / NOTICE_PART).min(validity / NOTICE_PART_MAX);
        self.notice.unwrap_or_else(usual)
    }
}

impl Default for KeepAlive {
    fn default() -> KeepAlive {
        KeepAlive {
            renewals_max: RENEWALS_MAX_DEFAULT,
            lifetime_max: LIFETIME_MAX_DEFAULT,
            notice: None,
            on_loss: None,
        }
    }
}

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAlive")
            .field("renewals_max", &self.renewals_max)
            .field("lifetime_max", &self.lifetime_max)
            .field("notice", &self.notice)
            .field("has_on_loss", &self.on_loss.is_some())
            .finish()
    }
}

/// A lock that is not renewed any more: stop the work on what it protects.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Loss {
    /// What was locked.
    pub resource: Resource,
    /// Why.
    pub cause: LossCause,
    /// What was left of the validity when this was made: the time to stop in. Zero if somebody else
    /// may have the lock already.
    pub remaining: Duration,
    /// What the masters said in the last renewal that failed, if it was not followed by one that
    /// succeeded.
    pub error: Option<LockError>,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lost {:?}, {:?} left: {}", self.resource, self.remaining, self.cause)?;
        match &self.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Loss {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.as_ref().map(|error| error as _)
    }
}

/// Why a lock is not renewed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// Too few masters answered in time: by now no renewal could be complete before the validity
    /// ends.
    Unavailable,
    /// A quorum of the masters does not hold it for us any more: it was deleted, or they lost their
    /// data. Somebody else may have it.
    Gone,
    /// This process came too late to renew it: it was paused, had no processor, or its clock jumped
    /// forward.
    Late,
    /// [`KeepAlive::renewals_max`] is reached.
    RenewalsMax,
    /// [`KeepAlive::lifetime_max`] is reached.
    LifetimeMax,
    /// This process was forked from the one that holds it. Never told by a callback.
    Forked,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossCause::Unavailable => "too few masters answered in time",
            LossCause::Gone => "it is not ours any more on a quorum",
            LossCause::Late => "this process came too late to renew it",
            LossCause::RenewalsMax => "it was renewed as often as it may be",
            LossCause::LifetimeMax => "it was renewed for as long as it may be",
            LossCause::Forked => "it belongs to the process that this one was forked from",
        })
    }
}

/// A lock that could not be kept alive: it is as it was, and in here.
///
/// Dropping this drops its guard, which releases the lock.
pub struct KeepAliveError(Box<Refused>);

struct Refused {
    kind: KeepAliveErrorKind,
    guard: LockGuard,
}

/// Why a lock could not be kept alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepAliveErrorKind {
    /// The thread that renews could not be started.
    Thread(io::ErrorKind),
    /// As many locks as there may be are kept alive already.
    TooMany,
    /// The lock can not be extended: it is over, this process was forked off, or its TTL is more
    /// than this client's [`max_ttl`](crate::Builder::max_ttl).
    Lock(LockErrorKind),
}

impl KeepAliveError {
    fn new(kind: KeepAliveErrorKind, guard: LockGuard) -> KeepAliveError {
        KeepAliveError(Box::new(Refused { kind, guard }))
    }

    /// Why.
    pub fn kind(&self) -> KeepAliveErrorKind {
        self.0.kind
    }

    /// The lock, as it was.
    pub fn into_guard(self) -> LockGuard {
        self.0.guard
    }
}

impl fmt::Display for KeepAliveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot keep the lock alive: ")?;
        match self.kind() {
            KeepAliveErrorKind::Thread(kind) => write!(f, "no thread could be started ({kind})"),
            KeepAliveErrorKind::TooMany => f.write_str("too many locks are kept alive"),
            KeepAliveErrorKind::Lock(kind) => LockError::new(kind, 0, Vec::new()).fmt(f),
        }
    }
}

impl fmt::Debug for KeepAliveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAliveError").field("kind", &self.0.kind).finish_non_exhaustive()
    }
}

impl std::error::Error for KeepAliveError {}
