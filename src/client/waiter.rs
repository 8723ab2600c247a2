//! Waits that another thread can end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::signals::Cancel;
use super::{Error, FencedRedlock, KeptLock, LockGuard, Redlock};
use crate::config::Wait;
use crate::fencing::Fencing;
use crate::lock_error::LockError;
use crate::resource::Resource;
use crate::sys::clock::time_until;

/// Waits for locks until it is cancelled. It comes from [`Redlock::waiter`].
///
/// All clones share one signal: [`cancel`](Waiter::cancel) on any of them, from any thread, ends
/// every wait of all of them. After that, none of them acquires another lock; take a new waiter
/// from the client. Locks that are held stay as they are.
///
/// ```no_run
/// use muxlock::{LockErrorKind, Redlock};
/// use std::time::Duration;
///
/// let redlock = Redlock::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let waiter = redlock.waiter();
/// let stop = waiter.clone();
/// // For example when the service shuts down.
/// std::thread::spawn(move || stop.cancel());
///
/// let (ttl, wait) = (Duration::from_secs(10), Duration::from_secs(3600));
/// match waiter.try_lock_for("invoice:42", ttl, wait) {
///     Ok(lock) => println!("held for {:?}", lock.remaining()),
///     Err(error) if error.kind() == LockErrorKind::Cancelled => println!("stopped"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Waiter {
    redlock: Redlock,
    cancel: Arc<Cancel>,
}

impl Waiter {
    pub(super) fn new(redlock: Redlock) -> Waiter {
        Waiter { redlock, cancel: Arc::default() }
    }

    /// Same as [`Redlock::try_lock_for`], until it is cancelled.
    ///
    /// # Errors
    /// The same as `try_lock_for`; and [`Cancelled`](crate::LockErrorKind::Cancelled) if the waiter
    /// was cancelled, before or during this call. The client releases everything that the attempt
    /// has acquired.
    pub fn try_lock_for(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: impl Into<Wait>,
    ) -> Result<LockGuard, LockError> {
        let (resource, cancel) = (Resource::new(resource)?, Some(&self.cancel));
        self.redlock.acquire_with(resource, ttl, Some(wait.into()), Fencing::Off, cancel)
    }

    /// Same as [`Redlock::try_lock_until`], until it is cancelled.
    ///
    /// # Errors
    /// The same as [`try_lock_for`](Waiter::try_lock_for).
    pub fn try_lock_until(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        deadline: Instant,
    ) -> Result<LockGuard, LockError> {
        self.try_lock_for(resource, ttl, time_until(deadline))
    }

    /// Same as [`Redlock::with_lock`], but the wait ends when the waiter is cancelled. `work` is
    /// not interrupted: let it check [`is_cancelled`](Waiter::is_cancelled).
    ///
    /// # Errors
    /// The same as `with_lock`, and [`Cancelled`](crate::LockErrorKind::Cancelled); `work` was then
    /// not called.
    pub fn with_lock<T, E>(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: impl Into<Wait>,
        work: impl FnOnce(&KeptLock) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error>,
    {
        self.try_lock_for(resource, ttl, wait).map_err(Error::from)?.work(work)
    }

    /// For locks with a fencing token. Once this waiter is cancelled, every call of the returned
    /// handle that acquires a lock fails with [`Cancelled`](crate::LockErrorKind::Cancelled).
    pub fn fenced(&self) -> FencedRedlock {
        FencedRedlock::new(self.redlock.clone(), Some(Arc::clone(&self.cancel)))
    }

    /// Ends every wait of this waiter and its clones with
    /// [`Cancelled`](crate::LockErrorKind::Cancelled), including waits that start later. A lock
    /// that was granted, but not returned yet, is either released or returned.
    ///
    /// It waits for nothing. It takes no mutex and allocates nothing, so a signal handler may call
    /// it. The waits end as soon as a thread runs the event loop. In a forked process it ends only
    /// waits of that process.
    pub fn cancel(&self) {
        let shared = &self.redlock.shared;
        shared.signals.cancel(&self.cancel, shared.owner);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }
}
