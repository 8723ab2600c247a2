//! How locks are renewed while they are held, and how their loss is reported.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::lock_error::LockError;
use crate::outcome::NodeOutcome;
use crate::resource::Resource;

const RENEWALS_MAX_DEFAULT: u32 = 10_000;
const LIFETIME_MAX_DEFAULT: Duration = Duration::from_secs(60 * 60);
/// The default notice of a loss: this fraction of the validity, or a node's timeout if that is
/// longer, but at most [`NOTICE_PART_MAX`].
const NOTICE_PART: u32 = 16;
const NOTICE_PART_MAX: u32 = 4;

pub(crate) type OnLoss = Arc<dyn Fn(&Loss) + Send + Sync>;

/// Settings for [`LockGuard::keep_alive`](crate::LockGuard::keep_alive).
///
/// Both the number of renewals and their total time are limited: otherwise, a process that is alive
/// but makes no progress would lock out all others forever. The algorithm's own page ([Distributed
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
/// [Distributed Locks with Redis]:
/// https://redis.io/docs/latest/develop/use/patterns/distributed-locks/
#[derive(Clone)]
#[must_use = "these are settings; pass them to `LockGuard::keep_alive`"]
pub struct KeepAlive {
    pub(crate) renewals_max: u32,
    pub(crate) lifetime_max: Duration,
    notice: Option<Duration>,
    pub(crate) on_loss: Option<OnLoss>,
}

impl KeepAlive {
    /// The maximum number of renewals; 10,000 if not set.
    ///
    /// When one more renewal would be due, the client reports a loss ([`LossCause::RenewalsMax`])
    /// instead. At least about two thirds of the validity are left then.
    pub fn renewals_max(self, renewals_max: u32) -> KeepAlive {
        KeepAlive { renewals_max, ..self }
    }

    /// The longest time for which the lock is renewed; one hour if not set.
    ///
    /// No renewal starts later than this after
    /// [`LockGuard::keep_alive`](crate::LockGuard::keep_alive). So the lock is held for
    /// at most this time plus one TTL. When the next renewal would be due, the client reports a
    /// loss ([`LossCause::LifetimeMax`]) instead. At least about two thirds of the validity are
    /// left then.
    pub fn lifetime_max(self, lifetime_max: Duration) -> KeepAlive {
        KeepAlive { lifetime_max, ..self }
    }

    /// If the lock could not be renewed, the client reports a loss this long before the validity
    /// ends.
    ///
    /// Use this time to stop the work, so it should be longer than a step of the work. During it,
    /// failed renewals are not repeated. If not set, it is a sixteenth of the validity, or
    /// [`node_timeout`](crate::Builder::node_timeout) if that is longer, but at most a quarter of
    /// the validity. A value that you set is capped at half of the remaining validity. With zero, a
    /// loss is reported only when the validity has ended.
    pub fn notice(self, notice: Duration) -> KeepAlive {
        KeepAlive { notice: Some(notice), ..self }
    }

    /// Calls `on_loss` once if the lock is lost.
    ///
    /// The callback runs on a thread that starts for it, so a slow one delays neither renewals nor
    /// other callbacks. Of one client, 16 run at the same time; further ones wait. A panic in it ends
    /// that thread only. After `unlock`, `stop` or the drop of the lock, it is no longer called; a
    /// call that already runs continues. [`KeptLock::is_lost`](crate::KeptLock::is_lost) does not
    /// depend on any thread.
    pub fn on_loss(self, on_loss: impl Fn(&Loss) + Send + Sync + 'static) -> KeepAlive {
        KeepAlive { on_loss: Some(Arc::new(on_loss)), ..self }
    }

    /// How long before the end of the validity a loss is reported.
    pub(crate) fn notice_of(&self, validity: Duration, node_timeout: Duration) -> Duration {
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

/// The client no longer renews this lock. Stop the work that it protects.
#[derive(Clone)]
#[non_exhaustive]
pub struct Loss {
    /// The locked resource.
    pub resource: Resource,
    /// The reason.
    pub cause: LossCause,
    /// The validity that remained when this value was created: the time in which you can stop. Zero
    /// if another client might already hold the lock.
    pub remaining: Duration,
    /// The error of the last failed renewal, if no renewal has succeeded since.
    pub error: Option<LockError>,
}

impl Loss {
    /// The cause, in words that fit its error.
    pub(crate) fn reason(&self) -> String {
        let count = |wanted| self.error.as_ref().map_or(0, |error| error.count(wanted));
        let refused = count(|outcome| matches!(outcome, NodeOutcome::Server(_)));
        // Those that are asked in vain are as many as the ones that refuse.
        let is_refused = refused > 0 && refused == count(NodeOutcome::is_failure);
        match self.cause {
            LossCause::Unavailable if is_refused => {
                format!("{refused} of {} masters answered with an error", count(|_| true))
            }
            cause => cause.to_string(),
        }
    }

    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lost \"{}\", {:?} left: {}", self.resource, self.remaining, self.reason())
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary(f)?;
        self.error.iter().try_for_each(|error| write!(f, ": {error}"))
    }
}

/// The same as [`Display`](fmt::Display), with each node on a line of its own.
impl fmt::Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary(f)?;
        self.error.iter().try_for_each(|error| write!(f, ": {error:?}"))
    }
}

// Without a source: the text contains it.
impl std::error::Error for Loss {}

/// `TimedOut`, or the kind of the last renewal's error.
impl From<Loss> for io::Error {
    fn from(loss: Loss) -> io::Error {
        let kind = match &loss.error {
            Some(error) => io::Error::from(error.clone()).kind(),
            None => io::ErrorKind::TimedOut,
        };
        io::Error::new(kind, loss)
    }
}

/// Why a lock is no longer renewed. In every case, stop the work. The client still releases the
/// lock when you unlock or drop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// Too few masters gave a vote in time: no renewal had succeeded by the
    /// [notice](KeepAlive::notice).
    Unavailable,
    /// Too few masters still hold the key with this token, because it was deleted, or masters lost
    /// their data. Another client might hold the lock.
    Gone,
    /// This process did not renew the lock in time, because it was paused or not scheduled, or its
    /// clock jumped forward.
    Late,
    /// [`KeepAlive::renewals_max`] is reached.
    RenewalsMax,
    /// [`KeepAlive::lifetime_max`] is reached.
    LifetimeMax,
    /// This process was forked from the one that holds the lock. Never passed to the callback: no
    /// thread renews in the child.
    Forked,
    /// Its TTL exceeds this client's [`max_ttl`](crate::Builder::max_ttl): it is not renewed.
    Refused,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossCause::Unavailable => "too few masters answered in time",
            LossCause::Gone => "too few masters still hold this lock's token",
            LossCause::Late => "this process was too late to renew it",
            LossCause::RenewalsMax => "renewals_max is reached",
            LossCause::LifetimeMax => "lifetime_max is reached",
            LossCause::Forked => "the lock belongs to the parent process",
            LossCause::Refused => "its ttl is longer than max_ttl of this client",
        })
    }
}
