//! From one lock to the next: the release of the one and the SET of the other leave together.

use std::time::Duration;

use super::leader_follower::Limit;
use super::loop_work::Order;
use super::{LockGuard, Redlock};
use crate::config::Wait;
use crate::fencing::Fencing;
use crate::lock_error::{LockError, LockErrorKind};
use crate::moment::Moment;
use crate::proto::ReleaseHow;
use crate::resource::Resource;
use crate::sys::clock::Clock;

impl Redlock {
    /// Releases `held` and tries once to take a lock on `next` for `ttl`, as
    /// [`try_lock`](Redlock::try_lock) does. Both commands leave in one write to each master, the
    /// release first. So a client that moves from one lock to the next needs half the round trips
    /// of [`unlock`](LockGuard::unlock) and `try_lock`.
    ///
    /// As with a dropped guard, the release is sent in any case, and the call does not wait for its
    /// result. To learn whether `held` was held to the end, use `unlock` instead. The two locks are
    /// never held together: if `next` is refused, you hold neither.
    ///
    /// On success `next` is held as after `try_lock`. Its validity counts from before the first
    /// byte of either command.
    ///
    /// - `held` can be any kind of lock, with or without a fencing token. Get it from a
    ///   [`Fenced`](crate::Fenced) guard with [`into_inner`](crate::Fenced::into_inner), and from a
    ///   renewed lock with [`stop`](crate::KeptLock::stop). `next` is one plain lock without a
    ///   fencing token; for other kinds, drop the guard and take the next lock.
    /// - If `held` belongs to another client, it is dropped there, and the next lock is taken
    ///   without waiting for that release: the same name can still be refused.
    /// - If `next` is one of the resources of `held`, the call first waits for the result of the
    ///   release, so that waiting clients get a turn.
    /// - If `held` was acquired through a queue ([`Waiting`](crate::settings::Waiting)), one master
    ///   gets a separate command that notifies the next client, which can take a second write. The
    ///   order is the same.
    ///
    /// In your own event loop, a [`Multiplexer`](crate::Multiplexer) does the same: call
    /// [`abandon`](crate::Multiplexer::abandon), then [`try_lock`](crate::Multiplexer::try_lock),
    /// and then [`flush`](crate::Multiplexer::flush) once.
    ///
    /// ```no_run
    /// use muxlock::Redlock;
    /// use std::time::Duration;
    ///
    /// # fn handle(_: &str) {}
    /// # fn main() -> Result<(), muxlock::LockError> {
    /// # let redlock = Redlock::connect(["redis://10.0.0.1"]).unwrap();
    /// let ttl = Duration::from_secs(10);
    /// let mut lock = redlock.try_lock("page:1", ttl)?;
    /// for page in ["page:2", "page:3"] {
    ///     handle("the page whose lock is held");
    ///     lock = redlock.swap(lock, page, ttl)?;
    /// }
    /// handle("the last page");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as [`try_lock`](Redlock::try_lock), all of them for the next lock. `held` is
    /// released after each of them, except after [`Forked`](crate::LockErrorKind::Forked): it then
    /// belongs to the parent process.
    pub fn swap(
        &self,
        held: LockGuard,
        next: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<LockGuard, LockError> {
        self.swap_within(held, Resource::new(next)?, ttl, None)
    }

    /// Same as [`swap`](Redlock::swap), but tries for at most `wait` to take the next lock, as
    /// [`try_lock_for`](Redlock::try_lock_for) does. `held` is released at once, not after the
    /// wait. If `next` is one of its resources, the wait for the result of the release is part of
    /// `wait`.
    ///
    /// # Errors
    /// The same as [`try_lock_for`](Redlock::try_lock_for), all of them for the next lock. `held`
    /// is released as in [`swap`](Redlock::swap).
    pub fn swap_for(
        &self,
        held: LockGuard,
        next: impl AsRef<[u8]>,
        ttl: Duration,
        wait: impl Into<Wait>,
    ) -> Result<LockGuard, LockError> {
        self.swap_within(held, Resource::new(next)?, ttl, Some(wait.into()))
    }

    fn swap_within(
        &self,
        held: LockGuard,
        next: Resource,
        ttl: Duration,
        wait: Option<Wait>,
    ) -> Result<LockGuard, LockError> {
        let (patience, limit) = self.patience(&next, wait)?;
        let is_again = held.resource().names().any(|name| name == next.as_bytes());
        let (fencing, cancel) = (Fencing::Off, self.cancel.clone());
        let order = Order::Acquire { resource: next, ttl, patience, fencing, cancel };
        self.shared.held(|locks| locks.remove(held.token()));
        let outcome = match held.given_up(self) {
            None => self.shared.threads.run(order, limit),
            Some(lease) if !is_again => {
                self.shared.threads.run_behind(Order::Abandon(lease), order, limit)
            }
            // A waiting client is notified of the release before this client asks again (W7, W13).
            Some(lease) => {
                let until =
                    patience.until().into_iter().fold(self.shared.round_ends(), Moment::min);
                // The next lock does not depend on the result.
                let _ = self
                    .shared
                    .threads
                    .run(Order::Release(lease, ReleaseHow::Until(until)), Limit::At(until));
                if patience.until().is_some_and(|until| until <= Clock.now()) {
                    return Err(LockError::new(LockErrorKind::TimedOut, 0, Vec::new()));
                }
                self.shared.threads.run(order, limit)
            }
        };
        self.acquired(outcome)
    }
}
