//! Locks with a fencing token: their number is part of their type.

use std::fmt;
use std::ops::Deref;
use std::time::{Duration, Instant};

use super::{Error, KeepAliveError, KeptLock, LockGuard, LockParts, Redlock};
use crate::config::Wait;
use crate::fencing::{Fencing, FencingToken};
use crate::keep_alive::KeepAlive;
use crate::lock_error::LockError;
use crate::proto::Released;
use crate::resource::Resource;
use crate::sys::clock::time_until;

/// Takes locks with a fencing token. It comes from [`Redlock::fenced`], and is the same client.
///
/// A fenced lock has a fencing token, and each later holder gets a higher token. A resource that
/// remembers the highest token and rejects lower ones, by the rules below, is safe from holders
/// that were paused, cut off or misled by a clock. Only this protects against them.
///
/// # At the resource
/// **Every** writer needs a fenced lock, and the resource has to check every token:
///
/// 1. The resource stores the *highest token* that it has seen. It accepts a write if the token is
///    at least that high, and stores the token in the same atomic step. A holder can write often.
/// 2. The highest token is stored with the data, starts at 0 and never falls. Keep it when the data
///    goes: flag rows as deleted, because a recreated row would start at 0.
/// 3. A holder *claims* each row that it will read or write: it stores its token there, and only
///    then reads, computes and writes. Otherwise the resource might accept a late write of an
///    earlier holder between the read and the write, and that write would be lost.
/// 4. A rejected write means that the lock is lost. The holder stops and does not try again with
///    the same token.
///
/// ```sql
/// UPDATE account SET fence = ?1 WHERE id = ?2 AND fence <= ?1;                -- enter: 1 row
/// UPDATE account SET balance = ?3, fence = ?1 WHERE id = ?2 AND fence <= ?1;  -- each write
/// ```
///
/// A mail server or printer cannot check a token. Give each job an ID and make the job idempotent.
/// The token cannot be that ID, because two holders have different tokens.
///
/// # What the order depends on
/// While masters lose no counters, the order is certain: clocks, pauses and the network cannot
/// change it. If masters restart without their data, two conditions apply. The [restart
/// guard](crate::settings::RestartGuard) is on, and the clock of every master is within
/// ([`max_ttl`](crate::Builder::max_ttl) / 2 - 0.5 s) of the true time: 14.5 s by default. No
/// program may evict, expire or delete the counters, the hash `muxlock:fence`.
///
/// A fenced lock and a plain one exclude each other, but only the fenced one has a token.
///
/// ```no_run
/// use muxlock::Redlock;
/// use std::time::Duration;
///
/// # fn write(_: i64) -> bool { true }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let redlock = Redlock::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let lock = redlock.fenced().try_lock("account:7", Duration::from_secs(10))?;
/// if !write(lock.fencing_token().as_i64()) {
///     return Err("another holder has written since".into());
/// }
/// assert!(lock.unlock()?.was_held());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FencedRedlock {
    redlock: Redlock,
}

impl Redlock {
    /// The same client, for locks with a fencing token.
    pub fn fenced(&self) -> FencedRedlock {
        FencedRedlock { redlock: self.clone() }
    }
}

impl FencedRedlock {
    /// Same as [`Redlock::try_lock`], with a fencing token. Rarely, the masters need a second round
    /// trip to agree on it, which shortens the validity.
    ///
    /// # Errors
    /// The same as [`Redlock::try_lock`]; and
    /// [`ReservedResource`](crate::LockErrorKind::ReservedResource) if the resource's key is that
    /// of the counters.
    pub fn try_lock(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<Fenced<LockGuard>, LockError> {
        self.acquire(resource.as_ref(), ttl, None)
    }

    /// Same as [`Redlock::try_lock_for`], with a fencing token.
    ///
    /// # Errors
    /// The same as [`Redlock::try_lock_for`] and [`try_lock`](FencedRedlock::try_lock).
    pub fn try_lock_for(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: impl Into<Wait>,
    ) -> Result<Fenced<LockGuard>, LockError> {
        self.acquire(resource.as_ref(), ttl, Some(wait.into()))
    }

    /// Same as [`Redlock::try_lock_until`], with a fencing token.
    ///
    /// # Errors
    /// The same as [`try_lock_for`](FencedRedlock::try_lock_for).
    pub fn try_lock_until(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        deadline: Instant,
    ) -> Result<Fenced<LockGuard>, LockError> {
        self.try_lock_for(resource, ttl, time_until(deadline))
    }

    fn acquire(
        &self,
        resource: &[u8],
        ttl: Duration,
        wait: Option<Wait>,
    ) -> Result<Fenced<LockGuard>, LockError> {
        let resource = Resource::new(resource)?;
        let guard = self.redlock.acquire_with(resource, ttl, wait, Fencing::On)?;
        Fenced::try_from(guard).map_err(|_| LockError::unfenced())
    }

    /// Same as [`Redlock::with_lock`], with a fencing token: `work` passes it to the resource with
    /// each write.
    ///
    /// After [`Error::Lost`], the resource might still have accepted a write. Check it before you
    /// repeat the work.
    ///
    /// # Errors
    /// The same as [`Redlock::with_lock`] and [`try_lock`](FencedRedlock::try_lock).
    pub fn with_lock<T, E>(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: impl Into<Wait>,
        work: impl FnOnce(&Fenced<KeptLock>) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error>,
    {
        let lock = self.try_lock_for(resource, ttl, wait).map_err(Error::from)?;
        let held = lock.keep_alive(KeepAlive::default()).map_err(Error::from)?;
        let done = work(&held)?;
        held.inner.end_work()?;
        Ok(done)
    }

    /// Same as [`Redlock::adopt`], for a lock that was acquired with a fencing token. The token
    /// stays the same, because it is still the same lock.
    ///
    /// # Errors
    /// The same as [`Redlock::adopt`]; and [`Unfenced`](crate::LockErrorKind::Unfenced) if the lock
    /// has no fencing token: the client then releases it.
    pub fn adopt(&self, parts: LockParts) -> Result<Fenced<LockGuard>, LockError> {
        let guard = self.redlock.adopt(parts)?;
        Fenced::try_from(guard).map_err(|_| LockError::unfenced())
    }
}

/// A held lock with its fencing token: a [`LockGuard`], a [`KeptLock`], or [`LockParts`].
///
/// Code that touches the resource takes `&Fenced<LockGuard>` or a [`FencingToken`], and does not
/// compile with a plain lock:
///
/// ```compile_fail,E0308
/// # use muxlock::{Fenced, LockGuard, Redlock};
/// fn withdraw(lock: &Fenced<LockGuard>) {}
///
/// fn wrong(redlock: &Redlock) -> Result<(), muxlock::LockError> {
///     let lock = redlock.try_lock("account:7", std::time::Duration::from_secs(10))?;
///     withdraw(&lock);
///     Ok(())
/// }
/// ```
///
/// It can be used like the lock in it, but that lock cannot be replaced: another lock would have
/// another token.
#[must_use = "if unused, the lock is released immediately; in parts, it only expires"]
#[clippy::has_significant_drop]
pub struct Fenced<T> {
    inner: T,
    token: FencingToken,
}

impl<T> Fenced<T> {
    /// The fencing token of the lock. Extensions, renewals and hand-overs keep it.
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// The lock alone. It keeps its fencing token: [`LockGuard::fencing_token`] returns it.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T> Deref for Fenced<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for Fenced<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced").field("token", &self.token).field("inner", &self.inner).finish()
    }
}

/// Fails with the unchanged guard if the lock has no fencing token.
impl TryFrom<LockGuard> for Fenced<LockGuard> {
    type Error = LockGuard;

    fn try_from(guard: LockGuard) -> Result<Fenced<LockGuard>, LockGuard> {
        match guard.fencing_token() {
            Some(token) => Ok(Fenced { inner: guard, token }),
            None => Err(guard),
        }
    }
}

impl Fenced<LockGuard> {
    /// Same as [`LockGuard::extend`].
    ///
    /// # Errors
    /// The same as [`LockGuard::extend`].
    pub fn extend(&mut self, ttl: Duration) -> Result<(), LockError> {
        self.inner.extend(ttl)
    }

    /// Same as [`LockGuard::ensure`].
    ///
    /// # Errors
    /// The same as [`LockGuard::ensure`].
    pub fn ensure(&mut self, min: Duration) -> Result<(), LockError> {
        self.inner.ensure(min)
    }

    /// Same as [`LockGuard::unlock`].
    ///
    /// # Errors
    /// The same as [`LockGuard::unlock`].
    pub fn unlock(self) -> Result<Released, LockError> {
        self.inner.unlock()
    }

    /// Same as [`LockGuard::keep_alive`].
    ///
    /// # Errors
    /// The same as [`LockGuard::keep_alive`]. The guard in the error keeps its fencing token.
    pub fn keep_alive(self, how: KeepAlive) -> Result<Fenced<KeptLock>, KeepAliveError> {
        let Fenced { inner, token } = self;
        Ok(Fenced { inner: inner.keep_alive(how)?, token })
    }

    /// Same as [`LockGuard::into_parts`].
    pub fn into_parts(self) -> Fenced<LockParts> {
        Fenced { inner: self.inner.into_parts(), token: self.token }
    }
}

impl Fenced<KeptLock> {
    /// Same as [`KeptLock::unlock`].
    ///
    /// # Errors
    /// The same as [`KeptLock::unlock`].
    pub fn unlock(self) -> Result<Released, LockError> {
        self.inner.unlock()
    }

    /// Same as [`KeptLock::stop`].
    pub fn stop(self) -> Fenced<LockGuard> {
        Fenced { inner: self.inner.stop(), token: self.token }
    }
}
