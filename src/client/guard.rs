//! The guard of a held lock: dropping it releases the lock.

use std::sync::Arc;
use std::time::Duration;

use super::{Redlock, Shared};
use crate::fencing::FencingToken;
use crate::lock_error::LockError;
use crate::moment::Moment;
use crate::proto::{Lease, Released};
use crate::resource::Resource;
use crate::sys::clock::Clock;
use crate::token::{Fingerprint, LockToken};

/// A held lock. Dropping it releases the lock.
///
/// Dropping it sends the release to every master without waiting for an answer, even while a thread
/// panics. This never blocks. It panics only if a logger panics. If the release cannot be sent, or
/// the process exits without dropping the guard, the key remains until it expires.
/// [`unlock`](LockGuard::unlock) waits, and reports whether the lock was held to the end.
///
/// A guard is `Send` and `Sync`: another thread or task may extend or drop it.
///
/// # Differences from `std::sync::MutexGuard`
/// This lock expires on its own. A holder that is paused or disconnected for longer than
/// [`remaining`](LockGuard::remaining) loses the lock without notice. The guard contains no data.
/// The lock is not reentrant. Clients in the queue usually take turns, but a `try_lock` or the
/// first attempt of a wait can come first; see [`Waiting`](crate::settings::Waiting).
#[must_use = "if unused, the lock is released immediately"]
#[clippy::has_significant_drop]
#[derive(Debug)]
pub struct LockGuard {
    shared: Arc<Shared>,
    /// `None` only inside the calls that extend, take apart or release it.
    lease: Option<Lease>,
}

impl LockGuard {
    pub(super) fn new(shared: Arc<Shared>, lease: Lease) -> LockGuard {
        shared.held(|held| {
            let (name, token) = (lease.resource().clone(), *lease.token());
            held.insert(token, Lease::of_value(name, token, shared.config.max_ttl()))
        });
        LockGuard::unlisted(shared, lease)
    }

    pub(super) fn unlisted(shared: Arc<Shared>, lease: Lease) -> LockGuard {
        LockGuard { shared, lease: Some(lease) }
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

    /// The random value of the lock, which is enough to release or extend it. A plain lock has it
    /// as the value of its key, and a read lock as a member of the key's sorted set. A lock with an
    /// [owner value](Redlock::try_lock_as) has it in the key with `:as` after its name.
    pub fn token(&self) -> &LockToken {
        self.lease().token()
    }

    /// The fencing token, if the lock was acquired with one; see [`Redlock::fenced`].
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.lease().fencing_token()
    }

    /// The first characters of the [`token`](LockGuard::token), for logs. They identify the holder,
    /// but are not enough to release the lock. [`Redlock::inspect`] shows the same for a plain lock
    /// and for a permit. For a lock with an [owner value](Redlock::try_lock_as), it shows the
    /// fingerprint of that value.
    pub fn fingerprint(&self) -> Fingerprint {
        self.token().fingerprint()
    }

    /// How long the acquisition took: from the call that started it until the lock was granted,
    /// with all rounds and waits. Zero for a lock that was handed over as
    /// [text](LockParts#as-text).
    pub fn waited(&self) -> Duration {
        self.lease().waited()
    }

    /// How many rounds the acquisition took. Zero for a lock that was handed over as
    /// [text](LockParts#as-text). If several threads of this client wait for the lock, only the
    /// first of them asks the masters, so a long wait can end after one round.
    pub fn rounds(&self) -> u32 {
        self.lease().rounds()
    }

    /// The TTL of the acquisition, or of the last extension that lengthened the lock.
    pub fn ttl(&self) -> Duration {
        self.lease().ttl()
    }

    /// The remaining validity; zero when it has ended. The clock drift is already subtracted.
    ///
    /// It is zero in a process that was forked from the one that holds the lock, and after
    /// [`Redlock::release_all`].
    pub fn remaining(&self) -> Duration {
        let left = || self.lease().remaining(Clock.now());
        self.shared.none_held().map_or_else(left, |_| Duration::ZERO)
    }

    /// Whether the lock is valid right now.
    ///
    /// This is a hint, because a thread can be paused right after the check. Once it is `false`, it
    /// stays `false`.
    pub fn is_valid(&self) -> bool {
        self.shared.none_held().is_none() && self.lease().is_valid_at(Clock.now())
    }

    /// The indices of the nodes that had granted the lock, or its last extension, when the quorum
    /// was complete. Other nodes might have granted it later.
    pub fn granted_by(&self) -> impl Iterator<Item = usize> + use<> {
        self.lease().granted_by()
    }

    /// Extends the lock: on success it is valid for `ttl` minus the clock drift, counted from the
    /// start of this call, or as long as before if that is longer.
    ///
    /// It succeeds if a quorum extended the lock before the old validity ended. It never shortens a
    /// lock. It creates a missing key only with [`Heal::On`](crate::settings::Heal::On).
    ///
    /// # Errors
    /// After an error, the guard keeps its old deadline. There is one exception: if another thread
    /// ran the event loop and was delayed beyond that deadline, the client releases the lock.
    /// - [`Expired`](crate::LockErrorKind::Expired): the validity had ended, or too few masters
    ///   still hold the key with this token. Stop the work.
    /// - [`Unavailable`](crate::LockErrorKind::Unavailable): too few masters gave a vote. The lock
    ///   is still held: try again while [`remaining`](LockGuard::remaining) is not zero.
    /// - [`InvalidTtl`](crate::LockErrorKind::InvalidTtl): correct the argument. It has the same
    ///   bounds as in [`Redlock::try_lock`].
    /// - [`Forked`](crate::LockErrorKind::Forked): the lock belongs to the parent process.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), LockError> {
        // If a logger panics, or the call takes too long, the guard is left with an expired lease.
        let over = self.lease().over();
        let lease = self.lease.replace(over).expect("it was there a moment ago");
        let (lease, result) = self.shared.extend(lease, ttl);
        self.lease = lease.or(self.lease.take());
        result
    }

    /// Extends the lock to its own TTL from now on, but only if less than `min` remains. Call it
    /// before each step of a job with many small steps. If it extends, it waits for a quorum, as
    /// [`extend`](LockGuard::extend) does.
    ///
    /// If the masters might be slow, check [`remaining`](LockGuard::remaining) afterwards, because
    /// the validity counts from the start of the extension.
    ///
    /// # Errors
    /// The same errors as [`extend`](LockGuard::extend), and
    /// [`InvalidTtl`](crate::LockErrorKind::InvalidTtl) if even a new extension to the lock's own
    /// TTL would leave less than `min`: acquire the lock with a longer TTL. This is checked even if
    /// enough is left.
    pub fn ensure(&mut self, min: Duration) -> Result<(), LockError> {
        self.shared.config.ensured(self.ttl(), min)?;
        if self.remaining() >= min && self.is_valid() {
            return Ok(());
        }
        self.extend(self.ttl())
    }

    /// Extends the lock to `ttl` if less than that is left; an error if it is not valid.
    pub(super) fn ensure_again(&mut self, ttl: Duration) -> Result<(), LockError> {
        if self.remaining() >= ttl && self.is_valid() { Ok(()) } else { self.extend(ttl) }
    }

    /// The lease, to be released by this client. The guard of another client is dropped.
    pub(super) fn given_up(mut self, by: &Redlock) -> Option<Lease> {
        if Arc::ptr_eq(&self.shared, &by.shared) { self.lease.take() } else { None }
    }

    pub(super) fn apart(mut self) -> (Arc<Shared>, Lease) {
        let lease = self.lease.take().expect("the guard ends here");
        (Arc::clone(&self.shared), lease)
    }

    /// Releases the lock and waits until a quorum has confirmed it, or can no longer confirm it.
    ///
    /// `Ok` means that a quorum has answered, not that the lock was held until now: **check
    /// [`was_held`](Released::was_held)**. If it is `false`, another client might have held the
    /// lock before the release.
    ///
    /// # Errors
    /// - [`Unavailable`](crate::LockErrorKind::Unavailable): fewer masters than a quorum gave an
    ///   answer that counts. The lock is given up anyway. If masters refused the release, a thread
    ///   repeats it until they accept it or the key has expired. While this client is in use, it
    ///   also repeats the release on masters that can be reached again. On the others, the key
    ///   remains until it expires.
    /// - [`Forked`](crate::LockErrorKind::Forked): the lock belongs to the parent process.
    pub fn unlock(mut self) -> Result<Released, LockError> {
        self.shared.held(|held| held.remove(self.token()));
        let lease = self.lease.take().expect("the guard ends here");
        self.shared.release(lease)
    }

    /// Turns the guard into a value that another thread, client or process can
    /// [adopt](Redlock::adopt). The lock is not released.
    ///
    /// After this call, this client sends no command for the lock. The value records masters that
    /// have not answered, and masters in quarantine. In extensions, the adopting client ignores
    /// those masters for as long as they might have forgotten a lock.
    ///
    /// The call waits for no master. If another thread runs the event loop, the call waits for that
    /// thread. If the lock's validity ends during this wait, the call returns the parts of an
    /// expired lock.
    ///
    /// In a process that was forked from the one that holds the lock, the returned value refers to
    /// no lock. The lock stays with the parent; adopting the parts fails and releases nothing. The
    /// same holds after [`Redlock::release_all`].
    pub fn into_parts(mut self) -> LockParts {
        let lease = self.lease.take().expect("the guard ends here");
        // Before the look: from here on, it is released either here or with all others.
        self.shared.held(|held| held.remove(lease.token()));
        if self.shared.none_held().is_some() {
            let parts = LockParts(of_no_lock(&lease));
            self.shared.abandon(lease);
            return parts;
        }
        LockParts(self.shared.let_go(lease))
    }
}

/// A lease with the same resource and TTL, but expired, and with a token that no key holds.
fn of_no_lock(lease: &Lease) -> Lease {
    let (token, over) = (LockToken::from_random([0; 20]), Moment::from_nanos(0));
    let ttl = lease.past().0;
    Lease::elsewhere(lease.resource().clone(), token, ttl, over).fenced(lease.fencing_token())
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.shared.abandon(lease);
        }
    }
}

/// A held lock without a guard. Dropping this value does **not** release the lock:
/// [adopt](Redlock::adopt) it, or the keys remain until they expire. That can be useful: a job that
/// must not run twice within the TTL drops `lock.into_parts()` when it is done.
///
/// Pass this value to another thread or client, or its text to another process of the same machine.
#[must_use = "a lock in parts is not released; it only expires"]
#[derive(Debug)]
pub struct LockParts(pub(crate) Lease);

impl LockParts {
    /// The locked resource.
    pub fn resource(&self) -> &Resource {
        self.0.resource()
    }

    /// The random value of the lock. It is enough to release or extend the lock.
    pub fn token(&self) -> &LockToken {
        self.0.token()
    }

    /// The fencing token, if the lock was acquired with one; see [`Redlock::fenced`].
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.0.fencing_token()
    }
}
