//! The guard of a held lock: dropping it releases the lock.

use std::time::Duration;

use super::{KeepAlive, KeepAliveError, KeptLock, Redlock};
use crate::error::LockError;
use crate::moment::Moment;
use crate::proto::{Lease, Released};
use crate::resource::Resource;
use crate::sys::clock::Clock;
use crate::token::LockToken;

/// A lock that is held until its validity ends.
///
/// Dropping it sends the release to every master without waiting for an answer. That never blocks,
/// and panics only if a logger does. What it cannot send ends with the TTL.
/// [`unlock`](LockGuard::unlock) waits and reports.
///
/// # Differences from `std::sync::MutexGuard`
/// This lock ends by itself. A holder that is paused, swapped out or cut off for longer than
/// [`remaining`](LockGuard::remaining) no longer holds the lock, and is not notified. The guard
/// contains no data. The lock is not reentrant, and not fair.
#[must_use = "if unused, the lock is released immediately"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct LockGuard {
    redlock: Redlock,
    /// `None` only inside the calls that extend, take apart or release it.
    lease: Option<Lease>,
}

impl LockGuard {
    pub(super) fn new(redlock: Redlock, lease: Lease) -> LockGuard {
        LockGuard { redlock, lease: Some(lease) }
    }

    fn lease(&self) -> &Lease {
        self.lease
            .as_ref()
            .expect("the lease is only taken by calls that end the guard or put it back")
    }

    /// The locked resource.
    pub fn resource(&self) -> &Resource {
        self.lease().resource()
    }

    /// The value that proves ownership: what the key holds on the masters.
    pub fn token(&self) -> &LockToken {
        self.lease().token()
    }

    /// The last requested TTL.
    pub fn ttl(&self) -> Duration {
        self.lease().ttl()
    }

    /// The remaining validity; zero when it has ended.
    ///
    /// It is zero in a process that was forked from the one that holds the lock.
    pub fn remaining(&self) -> Duration {
        match self.redlock.is_home() {
            true => self.lease().remaining(Clock.now()),
            false => Duration::ZERO,
        }
    }

    /// Whether the lock is valid right now.
    ///
    /// This is a hint (R21): a thread may be paused right after the check. Once it is `false`, it
    /// stays `false`.
    pub fn is_valid(&self) -> bool {
        self.redlock.is_home() && self.lease().is_valid_at(Clock.now())
    }

    /// The nodes, by index, that had granted the lock when it was decided: at least a quorum. The
    /// client did not wait for the others; they may have granted it since.
    pub fn granted_by(&self) -> impl Iterator<Item = usize> + use<> {
        self.lease().granted_by()
    }

    /// Extends the lock so that it lives for `ttl` from now on.
    ///
    /// It succeeds if a quorum extended the lock before the old validity ended. `remaining()` then
    /// counts from the start of the extension. It never shortens a lock. It sets a key anew only on
    /// masters that have forgotten it, and only with [`Heal`](crate::Heal).
    ///
    /// # Errors
    /// In every case the guard is unchanged, with its old deadline (R26). There is one exception:
    /// if another thread that ran the event loop was delayed past that deadline, the lock is given
    /// up.
    /// - [`Expired`](crate::LockErrorKind::Expired): the validity had ended, or the lock no longer
    ///   had this token on a quorum. Stop the work.
    /// - [`Unavailable`](crate::LockErrorKind::Unavailable): too few masters answered. Try again
    ///   while [`remaining`](LockGuard::remaining) is not zero.
    /// - [`InvalidTtl`](crate::LockErrorKind::InvalidTtl): correct the argument.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), LockError> {
        // If a logger panics, or the call takes too long, the guard is left with an expired lease.
        let over = self.lease().over();
        let lease = self.lease.replace(over).expect("it was there a moment ago");
        let (lease, result) = self.redlock.extend(lease, ttl);
        self.lease = lease.or(self.lease.take());
        result
    }

    /// Extends the lock by its own TTL, but only if less than `min` remains. Call it before each
    /// step of a work that consists of small steps.
    ///
    /// # Errors
    /// As [`extend`](LockGuard::extend); and [`InvalidTtl`](crate::LockErrorKind::InvalidTtl) if
    /// the lock's own TTL is too short to leave `min`: lock with a longer one.
    pub fn ensure(&mut self, min: Duration) -> Result<(), LockError> {
        self.redlock.check_ensured(self.ttl(), min)?;
        if self.remaining() >= min && self.is_valid() {
            return Ok(());
        }
        self.extend(self.ttl())
    }

    /// Renews the lock from now on, until it is unlocked, stopped, dropped or lost. All kept locks
    /// of a client share one thread for that. Each renewal requests the lock's own TTL.
    ///
    /// A renewal starts when a third of the validity has passed, or a little sooner, so that many
    /// locks do not renew at the same moment. A failed renewal is repeated while a round still
    /// fits. A renewal tolerates as many failed masters as the lock itself. If a majority does not
    /// answer, a renewal waits for [`node_timeout`](crate::Builder::node_timeout), which should be
    /// far below a third of the TTL. A loss is reported before the lock's validity ends. Reaching a
    /// cap of [`KeepAlive`] is reported the same way.
    ///
    /// The thread starts with the first lock, and ends within a second after the last.
    ///
    /// ```no_run
    /// use muxlock::{KeepAlive, Redlock};
    /// use std::time::Duration;
    ///
    /// # fn next_step() -> bool { false }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let redlock = Redlock::connect(["redis://10.0.0.1"])?;
    /// let lock = redlock.try_lock("report:7", Duration::from_secs(10))?;
    /// let kept = lock.keep_alive(KeepAlive::default())?;
    /// while next_step() {
    ///     if let Some(loss) = kept.loss() {
    ///         return Err(loss.into()); // and release what is left of it
    ///     }
    /// }
    /// kept.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// In every case the [`KeepAliveError`] contains the unchanged guard.
    /// - [`Lock`](crate::KeepAliveErrorKind::Lock): the lock cannot be extended. It has expired,
    ///   its TTL exceeds this client's `max_ttl`, or this process was forked. Stop the work.
    /// - [`Thread`](crate::KeepAliveErrorKind::Thread): the thread could not be started. Use
    ///   [`ensure`](LockGuard::ensure) instead.
    /// - [`TooMany`](crate::KeepAliveErrorKind::TooMany): 65,536 locks are kept alive already. Make
    ///   another client.
    pub fn keep_alive(self, how: KeepAlive) -> Result<KeptLock, KeepAliveError> {
        KeptLock::start(self, how)
    }

    pub(super) fn apart(mut self) -> (Redlock, Lease) {
        let lease = self.lease.take().expect("the guard ends here");
        (self.redlock.clone(), lease)
    }

    /// Releases the lock and waits until a quorum has confirmed it, or no longer can.
    ///
    /// # Errors
    /// [`Unavailable`](crate::LockErrorKind::Unavailable) if fewer masters than a quorum answered.
    /// The lock is given up anyway. While this client is in use, it repeats the release on masters
    /// that can be reached again; on the others the key ends with its TTL.
    pub fn unlock(mut self) -> Result<Released, LockError> {
        let lease = self.lease.take().expect("the guard ends here");
        self.redlock.release(lease)
    }

    /// Gives the lock up without releasing it, so that [`Redlock::adopt`] can take it.
    ///
    /// From now on this client sends nothing for the lock. What only this client knows is part of
    /// the returned value: masters that have not answered yet, and masters in quarantine.
    /// Extensions do not count those masters for as long as they may have forgotten a lock, at
    /// least `max_ttl`. The call does not wait for masters. It waits until no other thread runs the
    /// event loop, at most until the lock's validity ends.
    ///
    /// In a process that was forked from the one that holds the lock, the parts belong to no lock.
    /// The lock stays with the parent; adopting the parts fails and releases nothing.
    pub fn into_parts(mut self) -> LockParts {
        let lease = self.lease.take().expect("the guard ends here");
        if !self.redlock.is_home() {
            return LockParts(of_no_lock(&lease));
        }
        LockParts(self.redlock.let_go(lease))
    }
}

/// A lease with the same resource and TTL, but expired, and with a token that no key holds.
fn of_no_lock(lease: &Lease) -> Lease {
    let (token, over) = (LockToken::from_random([0; 20]), Moment::from_nanos(0));
    Lease::restored(lease.resource().clone(), token, lease.past().0, over)
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.redlock.abandon(lease);
        }
    }
}

/// A lock without its guard. Only [`Redlock::adopt`] and its guard, or the end of its TTL, release
/// it.
///
/// Another thread or client can use it as it is; another process of the same machine can use its
/// text.
#[must_use = "a lock in parts is not released; it only expires"]
#[derive(Debug)]
pub struct LockParts(Lease);

impl LockParts {
    /// The locked resource.
    pub fn resource(&self) -> &Resource {
        self.0.resource()
    }

    /// The value that proves ownership.
    pub fn token(&self) -> &LockToken {
        self.0.token()
    }

    pub(super) fn new(lease: Lease) -> LockParts {
        LockParts(lease)
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.0
    }

    pub(super) fn into_lease(self, nodes: usize) -> Lease {
        self.0.adopted(nodes)
    }
}
