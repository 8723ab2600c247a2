//! Other kinds of lock: several resources at once, readers and writers, semaphores, and locks with
//! a value of the caller's.

use std::time::Duration;

use super::{LockGuard, Redlock};
use crate::config::Wait;
use crate::inspection::Owner;
use crate::lock_error::LockError;
use crate::proto::{Lease, Released};
use crate::resource::Resource;

/// # Other kinds of lock
/// An attempt takes one majority round, for a permit up to nine. Each guard is a [`LockGuard`]: it
/// can be extended, renewed, handed over and released like any other.
impl Redlock {
    /// Tries once to take all of these resources, or none. There can be up to
    /// [`RESOURCES_MAX`](crate::limits::RESOURCES_MAX) resources, with names of up to 64 KiB
    /// together. The order is irrelevant, and duplicates count once. A single resource is a plain
    /// lock.
    ///
    /// On success, the lock excludes every other lock on any of its resources, including locks of
    /// other Redlock clients. It holds nothing while it waits for the rest, so two such locks
    /// cannot deadlock. But two large locks that many clients want can keep each other out for
    /// long. An extension counts only on masters that still have all of the keys.
    ///
    /// # Errors
    /// The same as [`try_lock`](Redlock::try_lock); [`held_resource`](LockError::held_resource)
    /// returns the resource that another holder has. If the list is empty or too long, the call
    /// fails with [`InvalidSet`](crate::LockErrorKind::InvalidSet).
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
        wait: impl Into<Wait>,
    ) -> Result<LockGuard, LockError>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        self.acquire(Resource::all(resources)?, ttl, Some(wait.into()))
    }

    /// Tries once to take a read lock, which other readers can hold at the same time. Until its
    /// validity ends, no client holds the write lock or a plain lock on the resource, including
    /// other Redlock clients.
    ///
    /// A read lock cannot be upgraded, because two readers would wait for each other. Release the
    /// read lock first.
    ///
    /// # Errors
    /// The same as [`try_lock`](Redlock::try_lock). The call fails with
    /// [`Contended`](crate::LockErrorKind::Contended) while a writer waits, as well as while one
    /// holds the lock.
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
        wait: impl Into<Wait>,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::shared(resource)?, ttl, Some(wait.into()))
    }

    /// Tries once to take the write lock of a resource. It is the same lock as that of
    /// [`try_lock`](Redlock::try_lock), but it can also be taken after readers whose locks have
    /// expired without a release. [`LockGuard::downgrade`] turns it into a read lock.
    ///
    /// A read lock that the caller holds counts like any other: release it first.
    ///
    /// # Errors
    /// The same as [`try_lock`](Redlock::try_lock). The call fails with
    /// [`Contended`](crate::LockErrorKind::Contended) while any client has a read lock, including
    /// this one.
    pub fn try_write(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::exclusive(resource)?, ttl, None)
    }

    /// Same as [`try_write`](Redlock::try_write), in as many rounds as fit into `wait`, with random
    /// delays between them. While it waits, masters let no new readers in: each refusal leaves a
    /// write intent there, the key with `:intent` after its name. The intent lasts for half a
    /// second plus eight round trips, at most 5 s. So readers that come and go cannot keep a writer
    /// out.
    ///
    /// A read lock that the caller holds counts like any other: the call waits until that lock is
    /// released or expires. If it is renewed, or only the calling thread could release it, the call
    /// waits for all of `wait`, and new readers are kept out until then. There is no special error,
    /// because another thread might have the guard. To avoid this, release the read lock first and
    /// check again the data that was read. Or take the write lock from the start and
    /// [`downgrade`](LockGuard::downgrade) it.
    ///
    /// # Errors
    /// The same as [`try_write`](Redlock::try_write), and
    /// [`TimedOut`](crate::LockErrorKind::TimedOut).
    pub fn try_write_for(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: impl Into<Wait>,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::exclusive(resource)?, ttl, Some(wait.into()))
    }

    /// A semaphore with this number of permits: at most that many of its guards are valid at a
    /// time, even if a minority of masters fails. All clients must use the same number, because it
    /// is part of the keys' names.
    ///
    /// # Errors
    /// [`InvalidSlots`](crate::LockErrorKind::InvalidSlots) if `permits` is zero or more than
    /// [`SLOTS_MAX`](crate::limits::SLOTS_MAX);
    /// [`InvalidResource`](crate::LockErrorKind::InvalidResource) if the name is empty or longer
    /// than 1,013 bytes.
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
/// The key holds an owner value that the caller has chosen, 1 to
/// [`VALUE_BYTES_MAX`](crate::limits::VALUE_BYTES_MAX) bytes. Any client that knows the value can
/// recognise or release the lock, including other Redlock clients. The value is readable for every
/// user of the server, so it is no secret.
///
/// Beside it, the key with `:as` after its name has the attempt's [`LockToken`](crate::LockToken).
/// It tells two locks with the same value apart, so a command that arrives late never changes a
/// later lock of this crate.
impl Redlock {
    /// Tries once to take a resource with this value. It excludes every other lock of that name,
    /// even one with the same value.
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
    /// // Another process that knows the value releases the lock, and takes it.
    /// # drop(lock);
    /// let _ = redlock.release_as("invoice:42", "worker-7")?;
    /// let next = redlock.try_lock_as("invoice:42", "worker-7", ttl)?;
    /// assert!(next.unlock()?.was_held());
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
        wait: impl Into<Wait>,
    ) -> Result<LockGuard, LockError> {
        self.acquire(Resource::with_value(resource, value)?, ttl, Some(wait.into()))
    }

    /// Releases the lock that has this value, for any holder, even another Redlock client. It asks
    /// all masters for the lock, as [`owner`](Redlock::owner) does, and then deletes the lock that
    /// they have named. A late command spares a later lock of this crate with the same value.
    ///
    /// `confirmed` is the number of masters that deleted it. [`was_held`](Released::was_held) is
    /// always `false`, because this client does not know the lock's validity. The guard of the lock
    /// is not notified. Stop its work before: with [`Heal::On`](crate::settings::Heal::On), an
    /// extension sets the keys again. Acquisitions and extensions of that lock that this client has
    /// in flight fail.
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
        let lease = Lease::of_value(resource, token, self.shared.config.max_ttl());
        self.shared.release(lease)
    }

    /// Asks every master which value the resource is locked with. For a plain lock, that is its
    /// `LockToken`. It waits for the masters as [`inspect`](Redlock::inspect) does.
    ///
    /// The answer can be outdated when you read it. Do not rely on it: take the lock.
    ///
    /// # Errors
    /// The same as [`inspect`](Redlock::inspect). If masters did not answer, the owner can be
    /// [`Unknown`](Owner::Unknown), which is no error. While readers hold the resource, it is
    /// `Unknown` as well.
    pub fn owner(&self, resource: impl AsRef<[u8]>) -> Result<Owner, LockError> {
        let resource = Resource::new(resource)?;
        Ok(self.look_at(resource.to_look_at())?.owner())
    }
}

/// A semaphore: see [`Redlock::semaphore`]. Each permit is a plain lock on one of its slots, the
/// resource `name{permits}:i`, with `i` from 0.
#[derive(Debug, Clone)]
pub struct Semaphore {
    redlock: Redlock,
    slots: Resource,
}

impl Semaphore {
    /// Tries to take a permit, in one round if most permits are free. If the first slot is taken,
    /// it tries up to eight others. The masters report which ones are free.
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
    pub fn try_acquire_for(
        &self,
        ttl: Duration,
        wait: impl Into<Wait>,
    ) -> Result<LockGuard, LockError> {
        self.redlock.acquire(self.slots.clone(), ttl, Some(wait.into()))
    }
}

impl LockGuard {
    /// Turns the lock into a read lock, valid for `ttl` from now, or as long as before if that is
    /// longer. Other readers can then take the resource. It counts like an
    /// [extension](LockGuard::extend).
    ///
    /// A lock on several resources, or with an owner value, has no read lock; it is only extended.
    ///
    /// # Errors
    /// The same as [`extend`](LockGuard::extend). The lock was released, because some masters might
    /// already let readers in.
    pub fn downgrade(self, ttl: Duration) -> Result<LockGuard, LockError> {
        let (shared, lease) = self.apart();
        let mut share = LockGuard::new(shared, lease.into_shared());
        share.extend(ttl)?;
        Ok(share)
    }
}
