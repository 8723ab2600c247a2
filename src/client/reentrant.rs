//! Locks that the thread that holds them may take again.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::{LockGuard, Redlock};
use crate::config::Wait;
use crate::lock_error::LockError;
use crate::proto::Released;
use crate::resource::Resource;

impl Redlock {
    /// A lock on this resource that a thread can take again while it holds it: see [`Reentrant`].
    ///
    /// # Errors
    /// [`InvalidResource`](crate::LockErrorKind::InvalidResource): use another name.
    ///
    /// ```no_run
    /// # use muxlock::Redlock;
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = Redlock::connect(["redis://10.0.0.1"])?;
    /// let ledger = redlock.reentrant("ledger")?;
    /// let outer = ledger.try_lock(Duration::from_secs(10))?;
    /// // Asks no master, because more than 5 s are left.
    /// let inner = ledger.try_lock(Duration::from_secs(5))?;
    /// drop(outer);
    /// assert!(inner.is_valid());
    /// inner.unlock()?; // the last guard releases the lock
    /// # Ok(())
    /// # }
    /// ```
    pub fn reentrant(&self, resource: impl AsRef<[u8]>) -> Result<Reentrant, LockError> {
        let resource = Resource::new(resource)?;
        let shared = Shared { redlock: self.clone(), resource, holds: Mutex::default() };
        Ok(Reentrant(Arc::new(shared)))
    }
}

/// A lock that its thread can take again through the same handle, or a clone of it. It is released
/// when the last of its guards is dropped, in any order.
///
/// The masters see one plain lock. The guards are counted in this process, by thread, because a
/// count on a master would be wrong as soon as that master missed one step.
#[derive(Clone)]
pub struct Reentrant(Arc<Shared>);

struct Shared {
    redlock: Redlock,
    resource: Resource,
    /// The locks of each thread. More than one thread may, if the lock of one of them is over.
    holds: Mutex<HashMap<ThreadId, Hold>>,
}

struct Hold {
    lock: LockGuard,
    guards: usize,
}

impl Shared {
    fn holds(&self) -> MutexGuard<'_, HashMap<ThreadId, Hold>> {
        // No code of a caller runs under the mutex, and each change is one step.
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls this with the locks of the current thread. Other threads are not kept waiting.
    fn with_own<T>(&self, change: impl FnOnce(&mut Hold) -> T) -> Option<T> {
        let thread = thread::current().id();
        let mut hold = self.holds().remove(&thread)?;
        let changed = change(&mut hold);
        self.holds().insert(thread, hold);
        Some(changed)
    }
}

impl Reentrant {
    /// Takes the lock as [`Redlock::try_lock`] does. If this thread already holds it, the call
    /// takes it once more without asking a master. Exception: if less than `ttl` is left of its
    /// validity, it is extended to `ttl` first. This includes the `ttl` of the first call, because
    /// the validity is shorter than the TTL.
    ///
    /// # Errors
    /// The same as [`Redlock::try_lock`]. If this thread holds the lock, the same as
    /// [`LockGuard::extend`]: its guards keep their validity.
    pub fn try_lock(&self, ttl: Duration) -> Result<ReentrantGuard, LockError> {
        self.try_lock_for(ttl, Duration::ZERO)
    }

    /// Same as [`try_lock`](Reentrant::try_lock), but waits for at most `wait` as
    /// [`Redlock::try_lock_for`] does, unless this thread holds the lock.
    ///
    /// # Errors
    /// The same as [`try_lock`](Reentrant::try_lock), and
    /// [`TimedOut`](crate::LockErrorKind::TimedOut).
    pub fn try_lock_for(
        &self,
        ttl: Duration,
        wait: impl Into<Wait>,
    ) -> Result<ReentrantGuard, LockError> {
        let again = self.0.with_own(|hold| -> Result<(), LockError> {
            hold.lock.ensure_again(ttl)?;
            hold.guards += 1;
            Ok(())
        });
        match again {
            Some(result) => result?,
            None => {
                let lock =
                    self.0.redlock.acquire(self.0.resource.clone(), ttl, Some(wait.into()))?;
                self.0.holds().insert(thread::current().id(), Hold { lock, guards: 1 });
            }
        }
        Ok(ReentrantGuard { lock: self.clone(), is_given_up: false, of_thread: PhantomData })
    }
}

impl std::fmt::Debug for Reentrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reentrant").field("resource", &self.0.resource).finish_non_exhaustive()
    }
}

/// One of the guards of a [`Reentrant`] lock. It belongs to its thread: it is neither `Send` nor
/// `Sync`.
#[must_use = "if unused, the lock is given up immediately"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct ReentrantGuard {
    lock: Reentrant,
    is_given_up: bool,
    of_thread: PhantomData<*const ()>,
}

impl ReentrantGuard {
    /// The locked resource.
    pub fn resource(&self) -> &Resource {
        &self.lock.0.resource
    }

    /// The remaining validity, the same for all guards of the thread; zero when it has ended.
    pub fn remaining(&self) -> Duration {
        self.lock.0.with_own(|hold| hold.lock.remaining()).unwrap_or_default()
    }

    /// Whether the lock is valid right now. This is a hint, as for [`LockGuard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.lock.0.with_own(|hold| hold.lock.is_valid()).unwrap_or_default()
    }

    /// Extends the lock, for all guards of the thread: see [`LockGuard::extend`].
    ///
    /// # Errors
    /// The same as [`LockGuard::extend`].
    pub fn extend(&mut self, ttl: Duration) -> Result<(), LockError> {
        let extended = self.lock.0.with_own(|hold| hold.lock.extend(ttl));
        extended.unwrap_or_else(|| Err(LockError::expired()))
    }

    /// Gives this guard up. The last one releases the lock, and returns the result of
    /// [`LockGuard::unlock`]: **check [`was_held`](Released::was_held)**. The others return `None`.
    ///
    /// # Errors
    /// The same as [`LockGuard::unlock`].
    pub fn unlock(mut self) -> Result<Option<Released>, LockError> {
        self.give_up().map(LockGuard::unlock).transpose()
    }

    /// The lock, if this was its last guard.
    fn give_up(&mut self) -> Option<LockGuard> {
        if std::mem::replace(&mut self.is_given_up, true) {
            return None;
        }
        let (thread, mut holds) = (thread::current().id(), self.lock.0.holds());
        let hold = holds.get_mut(&thread)?;
        hold.guards -= 1;
        match hold.guards {
            0 => holds.remove(&thread).map(|hold| hold.lock),
            _ => None,
        }
    }
}

impl Drop for ReentrantGuard {
    fn drop(&mut self) {
        drop(self.give_up());
    }
}
