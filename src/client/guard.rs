//! A lock that is held, and released when it is dropped.

use std::time::Duration;

use super::{KeepAlive, KeepAliveError, KeptLock, Redlock};
use crate::clock::Clock;
use crate::error::LockError;
use crate::proto::{Lease, Released};
use crate::{LockToken, Moment, Resource};

/// A lock that is held, until its validity is over.
///
/// Dropping it sends the release to every master without waiting for an answer: it never blocks,
/// nor panics unless a logger does, and what it cannot send ends with the TTL.
/// [`unlock`](LockGuard::unlock) waits and reports.
///
/// # Differences from `std::sync::MutexGuard`
/// A lock like this ends by itself. A holder that is paused, swapped out or cut off for longer
/// than [`remaining`](LockGuard::remaining) is a holder no more, and is not told. It protects no
/// data of its own, is not reentrant, and is not fair.
#[must_use = "if unused, the lock is released immediately"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct LockGuard {
    redlock: Redlock,
    /// `None` only on the way out: when it is extended, taken apart, or released.
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

    /// What is locked.
    pub fn resource(&self) -> &Resource {
        self.lease().resource()
    }

    /// The value that proves the ownership; it is what the key holds on the masters.
    pub fn token(&self) -> &LockToken {
        self.lease().token()
    }

    /// The time to live that was asked for last.
    pub fn ttl(&self) -> Duration {
        self.lease().ttl()
    }

    /// What is left of the validity; zero when it is over.
    ///
    /// It is zero in a process that was forked from the one that holds the lock.
    pub fn remaining(&self) -> Duration {
        match self.redlock.is_home() {
            true => self.lease().remaining(Clock.now()),
            false => Duration::ZERO,
        }
    }

    /// Whether the lock may be believed in right now.
    ///
    /// It is a hint (R21): a thread may be paused right after it asked. Once it is `false` it
    /// stays so.
    pub fn is_valid(&self) -> bool {
        self.redlock.is_home() && self.lease().is_valid_at(Clock.now())
    }

    /// The nodes, by index, that had granted the lock when it was decided: at least a quorum.
    /// Nobody waited for the others; they may have granted it since.
    pub fn granted_by(&self) -> impl Iterator<Item = usize> + use<> {
        self.lease().granted_by()
    }

    /// Extends the lock so that it lives for `ttl` from now on.
    ///
    /// It succeeds if a quorum extended it before the old validity was over; `remaining()` then
    /// counts from the start of the extension. It never shortens a lock, and never takes one anew
    /// but on masters that have forgotten it, with [`Heal`](crate::Heal).
    ///
    /// # Errors
    /// In every case the guard stays as it was, with its old deadline (R26). Only if another thread
    /// was held up with the event loop until that was over, the lock is given up.
    /// - [`Expired`](crate::LockErrorKind::Expired): the validity was over, or the lock is not
    ///   ours any more on a quorum. Stop the work.
    /// - [`Unavailable`](crate::LockErrorKind::Unavailable): too few masters answered. Try again
    ///   while [`remaining`](LockGuard::remaining) lasts.
    /// - [`InvalidTtl`](crate::LockErrorKind::InvalidTtl): mend the argument.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), LockError> {
        // This is what is left if a logger panics, or if it takes too long: a lock that is over.
        let over = self.lease().over();
        let lease = self.lease.replace(over).expect("it was there a moment ago");
        let (lease, result) = self.redlock.extend(lease, ttl);
        self.lease = lease.or(self.lease.take());
        result
    }

    /// Extends the lock by its own TTL only if less than `min` remains: for work made of small
    /// steps, before each.
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

    /// Renews the lock from now on, on a thread that all kept locks of the client share, until it
    /// is unlocked, stopped, dropped or lost. Each renewal asks for the lock's own TTL.
    ///
    /// A renewal starts when a third of the validity is over, or a little sooner, so that many
    /// locks do not renew at one moment. One that fails is tried again while a round still fits. It
    /// survives as many masters that are down as the lock itself. A majority that does not answer
    /// is waited for as long as [`node_timeout`](crate::Builder::node_timeout), which should be
    /// far below a third of the TTL. The holder is told of a loss before the lock's validity ends;
    /// the caps in [`KeepAlive`] are told in the same way.
    ///
    /// The thread is started with the first lock, and ends within a second after the last.
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
    /// In every case the guard is in the [`KeepAliveError`], as it was.
    /// - [`Lock`](crate::KeepAliveErrorKind::Lock): it cannot be extended, because it is over, or
    ///   its TTL is more than this client's `max_ttl`, or this process was forked off. Stop the
    ///   work.
    /// - [`Thread`](crate::KeepAliveErrorKind::Thread): the system gave no thread. Use
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

    /// Releases the lock and waits until a quorum has confirmed it, or cannot.
    ///
    /// # Errors
    /// [`Unavailable`](crate::LockErrorKind::Unavailable) if fewer masters than a quorum answered.
    /// The lock is given up all the same: the release is repeated on masters that can be reached
    /// again while this client is in use, and ends with the TTL on the others.
    pub fn unlock(mut self) -> Result<Released, LockError> {
        let lease = self.lease.take().expect("the guard ends here");
        self.redlock.release(lease)
    }

    /// Lets go of the lock without releasing it, for [`Redlock::adopt`] to take it up again.
    ///
    /// From now on this client sends nothing for the lock. What only it knows goes with the parts:
    /// masters that have not answered yet, and masters in quarantine. Extensions do not count those
    /// for as long as they may have forgotten a lock, at least `max_ttl`. It does not wait for
    /// masters, but for the moment at which no other thread has the event loop, at most until the
    /// lock is over.
    ///
    /// In a process that was forked from the one that holds the lock, the parts are of no lock: it
    /// stays the parent's, and the refused adoption does not release it.
    pub fn into_parts(mut self) -> LockParts {
        let lease = self.lease.take().expect("the guard ends here");
        if !self.redlock.is_home() {
            return LockParts(of_no_lock(&lease));
        }
        LockParts(self.redlock.let_go(lease))
    }
}

/// Its resource and times to live, but over, and by a token that no key holds.
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

/// A lock without its guard: nothing releases it but [`Redlock::adopt`] and what follows, or the
/// end of its TTL.
///
/// It can be handed to another thread or client as it is, and to another process of the same
/// machine as text.
#[must_use = "a lock in parts is not released; it only expires"]
#[derive(Debug)]
pub struct LockParts(Lease);

impl LockParts {
    /// What is locked.
    pub fn resource(&self) -> &Resource {
        self.0.resource()
    }

    /// The value that proves the ownership.
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
