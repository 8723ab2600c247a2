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
use crate::error::{LockError, LockErrorKind};
use crate::resource::Resource;

const RENEWALS_MAX_DEFAULT: u32 = 10_000;
const LIFETIME_MAX_DEFAULT: Duration = Duration::from_secs(60 * 60);
/// The default notice of a loss: this fraction of the validity, or a node's timeout if that is
/// longer, but at most [`NOTICE_PART_MAX`].
const NOTICE_PART: u32 = 16;
const NOTICE_PART_MAX: u32 = 4;

type OnLoss = Arc<dyn Fn(&Loss) + Send + Sync>;

/// How [`LockGuard::keep_alive`] keeps a lock alive.
///
/// Both the number of renewals and their total time are capped: a process that is alive but makes
/// no progress would otherwise lock all others out forever. The algorithm's own page ([Distributed
/// Locks with Redis], "Making the algorithm more reliable") says about clients that extend their
/// locks: "the maximum number of lock reacquisition attempts should be limited, otherwise one of
/// the liveness properties is violated".
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
#[must_use = "these are settings; pass them to `LockGuard::keep_alive`"]
pub struct KeepAlive {
    renewals_max: u32,
    lifetime_max: Duration,
    notice: Option<Duration>,
    on_loss: Option<OnLoss>,
}

impl KeepAlive {
    /// The most renewals of the lock; 10,000 if not set.
    ///
    /// When the next renewal would be due, a loss is reported ([`LossCause::RenewalsMax`]), with
    /// about two thirds of the validity left.
    pub fn renewals_max(self, renewals_max: u32) -> KeepAlive {
        KeepAlive { renewals_max, ..self }
    }

    /// The longest time for which the lock is renewed; one hour if not set.
    ///
    /// No renewal starts later than this after [`LockGuard::keep_alive`], so the lock is held for
    /// at most one TTL more. When the next renewal would be due, a loss is reported
    /// ([`LossCause::LifetimeMax`]), with about two thirds of the validity left.
    pub fn lifetime_max(self, lifetime_max: Duration) -> KeepAlive {
        KeepAlive { lifetime_max, ..self }
    }

    /// How long before the end of the lock's validity a failure to renew it is reported as a loss.
    ///
    /// This is the time in which to stop the work; failed renewals are no longer repeated in it. If
    /// not set, it is a sixteenth of the validity, or
    /// [`node_timeout`](crate::Builder::node_timeout) if that is longer, but at most a quarter of
    /// the validity. A set value is used up to half of the remaining validity.
    pub fn notice(self, notice: Duration) -> KeepAlive {
        KeepAlive { notice: Some(notice), ..self }
    }

    /// Calls `on_loss` once if the lock is lost.
    ///
    /// The callback runs on the thread that renews all locks of the client. So it must be short:
    /// otherwise it delays the other renewals. It may panic; the thread continues. It is not called
    /// after the lock was unlocked, stopped or dropped, unless it is running at that moment. A
    /// logger that blocks this thread delays it; [`KeptLock::is_lost`](crate::KeptLock::is_lost)
    /// does not depend on this thread.
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

/// A lock that is no longer renewed: stop the work on what it protects.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Loss {
    /// The locked resource.
    pub resource: Resource,
    /// The reason.
    pub cause: LossCause,
    /// The validity that was left when this value was made: the time in which to stop. Zero if
    /// another client may hold the lock already.
    pub remaining: Duration,
    /// The error of the last failed renewal, if no renewal has succeeded since.
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

/// Why a lock is no longer renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// Too few masters answered in time: no renewal can complete before the validity ends.
    Unavailable,
    /// A quorum of the masters no longer holds the lock for this token: it was deleted, or they
    /// lost their data. Another client may hold it.
    Gone,
    /// This process was too late to renew it: it was paused, got no processor, or its clock jumped
    /// forward.
    Late,
    /// [`KeepAlive::renewals_max`] is reached.
    RenewalsMax,
    /// [`KeepAlive::lifetime_max`] is reached.
    LifetimeMax,
    /// This process was forked from the one that holds the lock. Never passed to the callback.
    Forked,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossCause::Unavailable => "too few masters answered in time",
            LossCause::Gone => "a quorum of masters no longer holds our token",
            LossCause::Late => "this process was too late to renew it",
            LossCause::RenewalsMax => "renewals_max is reached",
            LossCause::LifetimeMax => "lifetime_max is reached",
            LossCause::Forked => "the lock belongs to the parent process",
        })
    }
}

/// A lock that could not be kept alive. It contains the unchanged lock.
///
/// Dropping this drops the guard, which releases the lock.
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
    /// The most locks that one client may keep alive are kept alive already.
    TooMany,
    /// The lock cannot be extended: it has expired, this process was forked, or its TTL exceeds
    /// this client's [`max_ttl`](crate::Builder::max_ttl).
    Lock(LockErrorKind),
}

impl KeepAliveError {
    fn new(kind: KeepAliveErrorKind, guard: LockGuard) -> KeepAliveError {
        KeepAliveError(Box::new(Refused { kind, guard }))
    }

    /// The reason.
    pub fn kind(&self) -> KeepAliveErrorKind {
        self.0.kind
    }

    /// The unchanged lock.
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
