//! Other kinds of lock: several resources at once, readers and writers, semaphores, and locks with
//! a value of the caller's.

use std::time::Duration;

use super::{LockGuard, Redlock};
use crate::inspection::Owner;
use crate::lock_error::LockError;
use crate::proto::{Lease, Released};
use crate::resource::Resource;

/// # Other kinds of lock
/// Each is taken by one script for each master in one majority round, and each guard is a
/// [`LockGuard`]: it can be extended, kept alive, handed over and released like any other.
impl Redlock {
    /// Tries once to take all of these resources, or none. There are at most
    /// [`RESOURCES_MAX`](crate::limits::RESOURCES_MAX), with names of at most 64 KiB together; one
    /// that is named twice counts once, and the order does not matter. One alone is a plain lock.
    ///
    /// On success the lock excludes every lock of one of its resources, plain ones and those of
    /// other makes, too. Nothing is held while it waits for the rest, so two such locks cannot wait
    /// for each other. But two large ones that many clients ask for can keep each other out for
    /// long. An extension succeeds only where all of its keys are still there.
    ///
    /// # Errors
    /// The same as [`try_lock`](Redlock::try_lock);
    /// [`held_resource`](LockError::held_resource) says which resource another holder has. And
    /// [`InvalidSet`](crate::LockErrorKind::InvalidSet) if there is no resource, or too many.
    ///
    /// ```no_run
    /// # use muxlock::Redlock;
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = Redlock::connect(["redis://10.0.0.1"])?;
    /// let both = redlock.try_lock_all(["account:7", "account:9"], Duration::from_secs(10))?;
    /// // ... move money from one to the other ...
    /// assert!(both.unlock()?.was_held());
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock_all<I>(&self, resources: I, ttl: Duration) -> Result<LockGuard, LockError>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        self.acquire(Resource::all(resources)?, ttl, None)
    }

    /// Same as [`try_lock_all`](Redlock::try_lock_all), in as many rounds as fit into `wait`, with
    /// random delays between them. Threads of this client that wait for the same resources get them
    /// in the order of their calls.
    ///
    /// # Errors
    /// The same as [`try_lock_all`](Redlock::try_lock_all), and
    /// [`TimedOut`](crate::LockErrorKind::TimedOut).
    pub fn try_lock_all_for<I>(
        &self,
        resources: I,
        ttl: Duration,
        wait: Duration,
    ) -> Result<LockGuard, LockError>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        self.acquire(Resource::all(resources)?, ttl, Some(wait))
    }

    /// Tries once to share a resource with other readers. On success nobody holds it alone, with
    /// [`try_write`](Redlock::try_write), [`try_lock`](Redlock::try_lock) or a client of another
    /// make, until this lock's validity ends.
    ///
    /// A reader cannot become the writer: two of them would wait for each other. Release the share
    /// first.
    ///
    /// # Errors
    /// The same as [`try_lock`](Redlock::try_lock). It is
    /// [`Contended`](crate::LockErrorKind::Contended) also while a writer waits.
    ///
    /// ```no_run
    /// # use muxlock::Redlock;
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = Redlock::connect(["redis://10.0.0.1"])?;
    /// let (ttl, wait) = (Duration::from_secs(10), Duration::from_secs(5));
    /// let share = redlock.try_read("catalogue", ttl)?;
    /// drop(share);
    /// let alone = redlock.try_write_for("catalogue", ttl, wait)?;
    /// // ... change the catalogue, then let readers in, and read on ...
    /// let share = alone.downgrade(ttl)?;
    /// # drop(share);
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_read(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::shared(resource)?, ttl, None)
    }

    /// Same as [`try_read`](Redlock::try_read), in as many rounds as fit into `wait`, with random
    /// delays between them.
    ///
    /// # Errors
    /// The same as [`try_read`](Redlock::try_read), and
    /// [`TimedOut`](crate::LockErrorKind::TimedOut).
    pub fn try_read_for(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::shared(resource)?, ttl, Some(wait))
    }

    /// Tries once to take a resource that others share. Once taken, it is a plain lock, the same as
    /// that of [`try_lock`](Redlock::try_lock), which cannot be taken where readers were and have
    /// not released it. [`LockGuard::downgrade`] turns it into a share.
    ///
    /// A share that the caller holds counts as any other: release it first.
    ///
    /// # Errors
    /// The same as [`try_lock`](Redlock::try_lock). It is
    /// [`Contended`](crate::LockErrorKind::Contended) also while this client has a share.
    pub fn try_write(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::exclusive(resource)?, ttl, None)
    }

    /// Same as [`try_write`](Redlock::try_write), in as many rounds as fit into `wait`, with random
    /// delays between them. While it waits, masters let no new readers in: each refusal leaves a
    /// sign there, the key with `:intent` after its name, for half a second and eight round trips,
    /// at most 5 s. So readers who come and go cannot keep a writer out.
    ///
    /// A share that the caller holds counts as any other: this waits until it is released or ends,
    /// and for all of `wait` if it is kept alive, or lives for longer and only the calling thread
    /// could release it. That is no error of its own, because another thread may have the guard.
    /// The share stays as it is, and no reader is let in meanwhile. To avoid it, release the share
    /// first, and look again at what was read; or take the lock alone from the start, and
    /// [`downgrade`](LockGuard::downgrade) it.
    ///
    /// # Errors
    /// The same as [`try_write`](Redlock::try_write), and
    /// [`TimedOut`](crate::LockErrorKind::TimedOut).
    pub fn try_write_for(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::exclusive(resource)?, ttl, Some(wait))
    }

    /// A semaphore with so many permits: at most so many of its guards are valid at a time, with
    /// any minority of masters lost. All clients must name the same number, which is a part of the
    /// keys' names.
    ///
    /// # Errors
    /// [`InvalidSlots`](crate::LockErrorKind::InvalidSlots) if there is no permit, or more than
    /// [`SLOTS_MAX`](crate::limits::SLOTS_MAX);
    /// [`InvalidResource`](crate::LockErrorKind::InvalidResource) if the name is empty or longer
    /// than 1,016 bytes.
    ///
    /// ```no_run
    /// # use muxlock::Redlock;
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = Redlock::connect(["redis://10.0.0.1"])?;
    /// let smtp = redlock.semaphore("smtp", 5)?;
    /// let permit = smtp.try_acquire(Duration::from_secs(10))?;
    /// // ... one of at most five connections ...
    /// assert!(permit.unlock()?.was_held());
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: u32) -> Result<Semaphore, LockError> {
        let slots = Resource::slot(name, permits)?;
        Ok(Semaphore { redlock: self.clone(), slots })
    }
}

/// # Locks with the caller's own value
/// The key holds the value that the caller has chosen, 1 to
/// [`VALUE_BYTES_MAX`](crate::limits::VALUE_BYTES_MAX) bytes: other clients, also those of other
/// makes, can recognise it, and whoever knows it can release or extend the lock. Everybody who can
/// read the master's keys can read it, so it is no secret.
///
/// Beside it, the key with `:as` after its name has the attempt's [token](crate::LockToken), by
/// which a guard knows its own lock: two locks with the same value are two locks. So a command that
/// arrives late never changes a later lock of this crate.
impl Redlock {
    /// Tries once to take a resource with this value. It excludes every other lock of that name,
    /// whatever its value is: the same value again is refused, too.
    ///
    /// # Errors
    /// The same as [`try_lock`](Redlock::try_lock); and
    /// [`InvalidValue`](crate::LockErrorKind::InvalidValue) if the value is empty or too long.
    ///
    /// ```no_run
    /// # use muxlock::Redlock;
    /// # use muxlock::inspection::Owner;
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redlock = Redlock::connect(["redis://10.0.0.1"])?;
    /// let ttl = Duration::from_secs(10);
    /// let lock = redlock.try_lock_as("invoice:42", "worker-7", ttl)?;
    /// assert_eq!(redlock.owner("invoice:42")?, Owner::Value(b"worker-7"[..].into()));
    /// // Another process that knows the value takes the lock over, and releases it.
    /// let taken_over = redlock.extend_as("invoice:42", "worker-7", ttl)?;
    /// assert!(taken_over.unlock()?.was_held());
    /// # drop(lock);
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock_as(
        &self,
        resource: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::with_value(resource, value)?, ttl, None)
    }

    /// Same as [`try_lock_as`](Redlock::try_lock_as), in as many rounds as fit into `wait`, with
    /// random delays between them. Threads of this client that wait with the same value get the
    /// lock in the order of their calls.
    ///
    /// # Errors
    /// The same as [`try_lock_as`](Redlock::try_lock_as), and
    /// [`TimedOut`](crate::LockErrorKind::TimedOut).
    pub fn try_lock_as_for(
        &self,
        resource: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::with_value(resource, value)?, ttl, Some(wait))
    }

    /// Releases the lock that has this value, whoever holds it: also one of another make. It asks
    /// all masters for the lock, as [`owner`](Redlock::owner) does, and then deletes what they have
    /// named. If a command is late, it deletes no later lock of this crate that has the same value.
    ///
    /// `confirmed` is the number of masters that deleted it. [`was_held`](Released::was_held) is
    /// always `false`: nothing is known here of the lock's validity. Its guard is not told. Stop
    /// its work before: with [`Heal::On`](crate::settings::Heal::On), an extension sets the keys
    /// again. What this client asks for that lock at the moment, the lock itself or more time,
    /// fails.
    ///
    /// # Errors
    /// The same as [`unlock`](LockGuard::unlock) and [`inspect`](Redlock::inspect), and
    /// [`InvalidValue`](crate::LockErrorKind::InvalidValue).
    pub fn release_as(
        &self,
        resource: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Released, LockError> {
        let resource = Resource::with_value(resource, &value)?;
        let token = self.look_at(resource.clone())?.token_beside(value.as_ref());
        self.release(Lease::of_value(resource, token, self.shared.config.max_ttl()))
    }

    /// Takes over the lock that has this value, also one of another make, and makes it live for at
    /// least `ttl` from now on. It asks all masters first, as [`owner`](Redlock::owner) does.
    ///
    /// From then on, a former guard with this value extends and releases nothing. It is not told,
    /// and believes in its lock until the end of its validity, at most: call this when its work has
    /// stopped. A plain lock, or one of another make, is known by its key alone: its former holder
    /// can still release it, or extend it and thereby end this one. If two take a lock over at a
    /// time, at most one of them gets it.
    ///
    /// # Errors
    /// The same as [`try_lock`](Redlock::try_lock), and
    /// [`InvalidValue`](crate::LockErrorKind::InvalidValue). It is
    /// [`Contended`](crate::LockErrorKind::Contended) if no quorum has this value, or has it from
    /// the same attempt. The lock is left to its former guard, whose extensions may have failed
    /// meanwhile; masters may have prolonged it. If that guard released it meanwhile, keys may be
    /// left until they expire.
    pub fn extend_as(
        &self,
        resource: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<LockGuard, LockError> {
        let resource = Resource::with_value(resource, &value)?;
        let token = self.look_at(resource.clone())?.token_beside(value.as_ref());
        self.acquire(resource.take_over(&token), ttl, None)
    }

    /// Asks every master which value the resource is locked with; of a plain lock, that is its
    /// token. It waits for the masters as [`inspect`](Redlock::inspect) does.
    ///
    /// The answer is past when you read it. Do not work because of it: take the lock.
    ///
    /// # Errors
    /// The same as [`inspect`](Redlock::inspect). If masters did not answer, the owner may be
    /// [`Unknown`](Owner::Unknown), and that is no error. It is `Unknown` also while readers share
    /// the resource.
    pub fn owner(&self, resource: impl AsRef<[u8]>) -> Result<Owner, LockError> {
        let resource = Resource::new(resource)?;
        Ok(self.look_at(resource.to_look_at())?.owner())
    }
}

/// A semaphore: see [`Redlock::semaphore`]. Each permit is a plain lock of one of its slots, the
/// resource `name{permits}:i`, with `i` from 0.
#[derive(Debug, Clone)]
pub struct Semaphore {
    redlock: Redlock,
    slots: Resource,
}

impl Semaphore {
    /// Tries to take a permit, in one round if most permits are free. If the first slot that it
    /// asks for is taken, it asks for those that the masters called free, eight at most.
    ///
    /// # Errors
    /// The same as [`Redlock::try_lock`]; [`Contended`](crate::LockErrorKind::Contended) if no slot
    /// was free.
    pub fn try_acquire(&self, ttl: Duration) -> Result<LockGuard, LockError> {
        self.redlock.acquire(self.slots.clone(), ttl, None)
    }

    /// Same as [`try_acquire`](Semaphore::try_acquire), in as many rounds as fit into `wait`, with
    /// random delays between them when no slot is free.
    ///
    /// # Errors
    /// The same as [`try_acquire`](Semaphore::try_acquire), and
    /// [`TimedOut`](crate::LockErrorKind::TimedOut).
    pub fn try_acquire_for(&self, ttl: Duration, wait: Duration) -> Result<LockGuard, LockError> {
        self.redlock.acquire(self.slots.clone(), ttl, Some(wait))
    }
}

impl LockGuard {
    /// Turns the lock into a share of its resource, which lives for `ttl` from now on, or as long
    /// as the lock if that is longer: others may share it from then on. It counts like an
    /// [extension](LockGuard::extend).
    ///
    /// A lock of several resources cannot be shared, nor one with a caller's value; it is extended.
    ///
    /// # Errors
    /// The same as [`extend`](LockGuard::extend). The lock was released, because some masters may
    /// let readers in already.
    pub fn downgrade(self, ttl: Duration) -> Result<LockGuard, LockError> {
        let (redlock, lease) = self.apart();
        let mut share = LockGuard::new(redlock, lease.into_shared());
        share.extend(ttl)?;
        Ok(share)
    }
}
