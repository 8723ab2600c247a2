//! A held lock that is renewed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::renewed_lock::{LeaseAt, RenewedLock};
use super::renewer::Key;
use super::{KeepAliveError, KeepAliveErrorKind};
use crate::client::leader_follower::Limit;
use crate::client::loop_work::{Order, Outcome};
use crate::client::{Error, LockGuard, Shared};
use crate::fencing::FencingToken;
use crate::keep_alive::{KeepAlive, Loss, LossCause};
use crate::lock_error::{LockError, LockErrorKind};
use crate::moment::Moment;
use crate::proto::{Lease, Released, Terms};
use crate::resource::Resource;
use crate::sys::clock::Clock;
use crate::sys::process::OwnerProcess;
use crate::token::LockToken;
use crate::validity::Ttl;

/// A renewed lock: the client renews it until you call `unlock` or `stop`, drop it, or the lock is
/// lost.
///
/// It comes from [`LockGuard::keep_alive`]. Dropping it sends the release without waiting for the
/// masters, as dropping a [`LockGuard`] does. To extend it yourself or to hand it over, first
/// [`stop`](KeptLock::stop) the renewals. `examples/long_job.rs` is a whole program.
///
/// A loss is reported before the lock's validity ends: through [`on_loss`](KeepAlive::on_loss), and
/// through [`is_lost`](KeptLock::is_lost), which reads the clock itself. As with every lock with a
/// TTL, a process that is paused for longer than [`remaining`](KeptLock::remaining) notices the
/// loss only afterwards.
#[must_use = "if unused, the lock is released immediately"]
#[clippy::has_significant_drop]
pub struct KeptLock {
    shared: Arc<Shared>,
    renewed: Arc<RenewedLock>,
    key: Key,
}

impl LockGuard {
    /// Renews the lock from now on, until it is unlocked, stopped, dropped or lost. The
    /// client's event loop renews it; one thread runs the loop while no other does, and reports
    /// losses. Each renewal requests the lock's own TTL.
    ///
    /// A renewal starts at the latest when a third of the validity has passed, the first one at the
    /// earliest after a sixth, so that many locks do not renew at the same moment. A failed renewal
    /// is repeated until the [`notice`](KeepAlive::notice). A renewal tolerates as many failed
    /// masters as the acquisition. If a majority does not answer, a renewal waits for
    /// [`node_timeout`](crate::Builder::node_timeout), which should be far below a third of the
    /// TTL. A loss is reported before the lock's validity ends. If a limit of [`KeepAlive`] is
    /// reached, that is reported as a loss too.
    ///
    /// The thread starts with the first lock, and exits one to two seconds after the last one.
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
    ///         return Err(loss.into()); // dropping `kept` releases the lock
    ///     }
    /// }
    /// assert!(kept.unlock()?.was_held());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// In every case the [`KeepAliveError`] contains the unchanged guard.
    /// - [`Lock`](crate::error::KeepAliveErrorKind::Lock): the lock cannot be extended. It has
    ///   expired, its TTL exceeds this client's `max_ttl`, or this process was forked. Stop the
    ///   work.
    /// - [`Thread`](crate::error::KeepAliveErrorKind::Thread): the thread could not be started. Use
    ///   [`ensure`](LockGuard::ensure) instead.
    /// - [`TooMany`](crate::error::KeepAliveErrorKind::TooMany): this client already renews 65,536
    ///   locks. Create another client.
    pub fn keep_alive(self, how: KeepAlive) -> Result<KeptLock, KeepAliveError> {
        let (shared, lease) = self.apart();
        let now = Clock.now();
        let checked = check(&shared, &lease, now);
        let checked = checked.map_err(|error| KeepAliveErrorKind::Lock(error.kind()));
        let added = checked.and_then(|(ttl, validity)| {
            let terms = Terms::new(now, validity, &how, shared.config.node_timeout);
            let renewed = RenewedLock::new(now, &lease, ttl, terms, how.on_loss.clone());
            let renewed = Arc::new(renewed);
            Ok((shared.renewer.add(&shared, &renewed)?, renewed))
        });
        let (key, renewed) = match added {
            Ok(added) => added,
            Err(kind) => return Err(KeepAliveError::new(kind, LockGuard::new(shared, lease))),
        };
        let until = lease.valid_until();
        let order = Order::Renew(Box::new((lease, how, Arc::clone(&renewed))));
        // From here on it cleans up when it is dropped, as when a logger panics.
        let lock = KeptLock { shared: Arc::clone(&shared), renewed, key };
        match shared.threads.run(order, Limit::At(until)) {
            Some(Outcome::Renewing(_)) if shared.none_held().is_none() => Ok(lock),
            // The thread that runs the loop is delayed, and the lock has expired; or all locks were
            // released.
            _ => {
                let kind = KeepAliveErrorKind::Lock(LockErrorKind::Expired);
                Err(KeepAliveError::new(kind, LockGuard::new(shared, lock.renewed.lease.over())))
            }
        }
    }

    /// Renews the lock while `work` runs, and releases it: see [`Redlock::with_lock`].
    pub(in crate::client) fn work<T, E>(
        self,
        work: impl FnOnce(&KeptLock) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error>,
    {
        let held = self.keep_alive(KeepAlive::default()).map_err(Error::from)?;
        let done = work(&held)?;
        held.end_work()?;
        Ok(done)
    }
}

impl KeptLock {
    /// The locked resource.
    pub fn resource(&self) -> &Resource {
        self.renewed.lease.resource()
    }

    /// The random value of the lock: see [`LockGuard::token`]. It is enough to release or extend
    /// the lock.
    pub fn token(&self) -> &LockToken {
        self.renewed.lease.token()
    }

    /// The fencing token, if the lock was acquired [with one](crate::Redlock::fenced).
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.renewed.lease.fencing_token()
    }

    /// The TTL that each renewal requests.
    pub fn ttl(&self) -> Duration {
        self.renewed.lease.ttl()
    }

    /// How often the lock was renewed; failed renewals do not count.
    pub fn renewals(&self) -> u32 {
        if self.shared.is_owner_process() { self.renewed.renewals() } else { 0 }
    }

    /// The remaining validity; zero when it has ended.
    ///
    /// Each renewal raises it. Once it has been zero, it stays zero. It is zero in a process that
    /// was forked from the one that holds the lock.
    pub fn remaining(&self) -> Duration {
        self.shared.none_held().map_or_else(|| self.renewed.remaining(), |_| Duration::ZERO)
    }

    /// Whether the lock is valid right now.
    ///
    /// This is a hint, because a thread can be paused right after the check. Once it is `false`, it
    /// stays `false`. A lost lock usually remains valid for a short time, in which its holder can
    /// stop.
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Whether the client no longer renews the lock. If so, stop the work before
    /// [`remaining`](KeptLock::remaining) is zero. Once it is `true`, it stays `true`.
    ///
    /// If no renewal has succeeded by then, it becomes `true` at the [notice](KeepAlive::notice)
    /// before the validity ends, even if no thread of the client is scheduled.
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Same as [`is_lost`](KeptLock::is_lost), but returns the reason.
    ///
    /// Between the notice and the client's own report, which follows at once, the cause is
    /// [`Unavailable`](crate::LossCause::Unavailable), without the masters' answers.
    pub fn loss(&self) -> Option<Loss> {
        let cause =
            if self.shared.is_owner_process() { LossCause::Gone } else { LossCause::Forked };
        let lost = self.shared.none_held().map(|_| self.renewed.lost_by(cause));
        lost.or_else(|| self.renewed.loss())
    }

    /// Same as [`loss`](KeptLock::loss), for the operator `?` between two steps of the work.
    ///
    /// # Errors
    /// [`Error::Lost`], if the client no longer renews the lock: stop the work.
    pub fn check(&self) -> Result<(), Error> {
        self.loss().map_or(Ok(()), |loss| Err(Error::Lost(loss)))
    }

    /// Waits until the lock is lost, for at most `timeout`. Returns the loss, or `None` if the lock
    /// is still renewed.
    ///
    /// It returns at the latest when an eighth of the [notice](KeepAlive::notice) has passed; after
    /// the machine was suspended, up to a second later. For a thread that guards the work of
    /// another one, see [`watch`](KeptLock::watch).
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<Loss> {
        self.watch().wait_for_loss(timeout)
    }

    /// For another thread that waits for the loss: its wait also ends when the lock is given up.
    ///
    /// ```no_run
    /// # use muxlock::{Error, KeepAlive, Redlock};
    /// # use std::time::Duration;
    /// # fn stop_the_work() {}
    /// # fn work() {}
    /// # fn main() -> Result<(), Error> {
    /// # let redlock = Redlock::connect(["redis://10.0.0.1"])?;
    /// let lock = redlock.try_lock("report:7", Duration::from_secs(10))?;
    /// let kept = lock.keep_alive(KeepAlive::default())?;
    /// let watch = kept.watch();
    /// let watchdog = std::thread::spawn(move || {
    ///     if let Some(loss) = watch.wait_for_loss(Duration::MAX) {
    ///         eprintln!("{loss}");
    ///         stop_the_work();
    ///     }
    /// });
    /// work();
    /// kept.unlock()?; // the watchdog ends, too
    /// # drop(watchdog);
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self) -> LossWatch {
        LossWatch { renewed: Arc::clone(&self.renewed), owner: self.shared.owner }
    }

    /// A file descriptor for your event loop: it becomes readable when the lock is lost, stopped or
    /// given up, and stays readable. Do not read from it; ask [`loss`](KeptLock::loss). Each call
    /// returns another descriptor of the same socket.
    ///
    /// # Errors
    /// The operating system has no more descriptors, or the lock belongs to the parent process.
    #[cfg(unix)]
    pub fn loss_fd(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        self.shared.check_owner_process()?;
        self.renewed.loss_fd()
    }

    /// Releases the lock and waits until a quorum has confirmed it, or no longer can. It does not
    /// wait for a renewal in flight, and ignores its result.
    ///
    /// `Ok` means that a quorum has answered, not that the lock was held until now: **check
    /// [`was_held`](Released::was_held)**.
    ///
    /// # Errors
    /// The same errors as [`LockGuard::unlock`]. The lock is given up in any case.
    pub fn unlock(self) -> Result<Released, LockError> {
        let shared = Arc::clone(&self.shared);
        shared.check_owner_process()?;
        let until = shared.round_ends();
        shared.held(|held| held.remove(self.token()));
        shared.release_owned(self.take_until(until), Limit::At(until))
    }

    /// Releases the lock after the work. It succeeds if the lock was held to the end of the work.
    pub(in crate::client) fn end_work(self) -> Result<(), Error> {
        self.check()?;
        let resource = self.resource().clone();
        // If no quorum confirms the release, the lock was held all the same.
        match self.unlock().ok().and_then(|released| released.loss()) {
            Some(cause) => {
                Err(Error::Lost(Loss { resource, cause, remaining: Duration::ZERO, error: None }))
            }
            None => Ok(()),
        }
    }

    /// Turns this back into a lock that is not renewed. It does not wait for a renewal in flight,
    /// and ignores its result.
    ///
    /// If the thread that runs the event loop is delayed and does not return the lock within
    /// [`connect_timeout`](crate::Builder::connect_timeout) +
    /// [`node_timeout`](crate::Builder::node_timeout), the client releases the lock and returns an
    /// expired guard.
    pub fn stop(self) -> LockGuard {
        let shared = Arc::clone(&self.shared);
        if !shared.is_owner_process() {
            // Another thread of the parent may have been using the lease.
            return LockGuard::new(shared, self.renewed.lease.over());
        }
        let until = shared.round_ends();
        let lease = self.take_until(until);
        // It would remove the guard's entry from the list of locks.
        drop(self);
        LockGuard::new(shared, lease)
    }

    /// Takes the lease for good, without waiting for a renewal under way. If the thread that runs
    /// the loop is delayed beyond `until`, the lock is given up, and this returns an expired lease.
    fn take_until(&self, until: Moment) -> Lease {
        let stopped = self.renewed.renewed_by().and_then(|op| {
            match self.shared.threads.run(Order::Stop(op), Limit::At(until))? {
                Outcome::Stopped(lease) => lease,
                _ => unreachable!("a lease was asked for"),
            }
        });
        self.renewed.take(stopped)
    }
}

/// Waits for the loss of a [`KeptLock`] from another thread: see [`KeptLock::watch`]. Dropping it
/// does not end the renewal.
#[derive(Clone)]
pub struct LossWatch {
    renewed: Arc<RenewedLock>,
    owner: OwnerProcess,
}

impl LossWatch {
    /// Waits until the lock is lost, for at most `timeout`. Returns the loss, or `None` if the lock
    /// is still renewed, or was unlocked, stopped or dropped.
    pub fn wait_for_loss(&self, timeout: Duration) -> Option<Loss> {
        if !self.owner.is_current() {
            return Some(self.renewed.lost_by(LossCause::Forked));
        }
        self.renewed.wait_for_loss(Clock.now().after(timeout))
    }
}

impl fmt::Debug for LossWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossWatch")
            .field("resource", self.renewed.lease.resource())
            .finish_non_exhaustive()
    }
}

/// Checks that the lock can be kept alive. Returns its TTL, and the validity that a renewal gives.
fn check(shared: &Shared, lease: &Lease, now: Moment) -> Result<(Ttl, Duration), LockError> {
    if let Some(error) = shared.none_held() {
        return Err(error);
    }
    let config = &shared.config;
    let ttl = config.ttl(lease.ttl())?;
    let validity = ttl.validity().filter(|_| lease.is_valid_at(now));
    validity.map(|validity| (ttl, validity)).ok_or_else(LockError::expired)
}

impl Drop for KeptLock {
    fn drop(&mut self) {
        if !self.shared.is_owner_process() {
            return;
        }
        let (lease_at, on_loss) = self.renewed.give_up();
        // Before calls that may panic: the thread would otherwise still wait for this lock.
        self.shared.renewer.remove(self.key);
        self.shared.held(|held| held.remove(self.token()));
        match lease_at {
            LeaseAt::Here(lease) => self.shared.abandon(lease),
            LeaseAt::Engine(op) => self.shared.threads.submit(Order::Stop(op)),
            LeaseAt::Gone => {}
        }
        drop(on_loss);
    }
}

impl fmt::Debug for KeptLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptLock")
            .field("resource", self.resource())
            .field("remaining", &self.remaining())
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Redlock;
    use crate::config::RestartGuard;
    use crate::keep_alive::LossCause;
    use crate::lock_error::LockErrorKind;
    use crate::proto::OpId;

    const SECOND: Duration = Duration::from_secs(1);

    /// A lock that is valid for `left`, of a client that has not connected. Its engine, which is
    /// another one, has renewed it, and has not reported that yet.
    fn kept(left: Duration, notice: Duration) -> KeptLock {
        let builder = Redlock::builder().node("redis://127.0.0.1:1");
        let redlock = builder.restart_guard(RestartGuard::Off).build().unwrap();
        let now = Clock.now();
        let how = KeepAlive::default().notice(notice);
        let terms = Terms::new(now, 30 * SECOND, &how, SECOND);
        let (lease, ttl) = (lease(now.after(left)), Ttl::new(30 * SECOND).unwrap());
        let renewed = Arc::new(RenewedLock::new(now, &lease, ttl, terms, None));
        renewed.set_engine_op(OpId::NONE);
        let key = redlock.shared.renewer.add(&redlock.shared, &renewed).unwrap();
        KeptLock { shared: redlock.shared, renewed, key }
    }

    fn lease(deadline: Moment) -> Lease {
        let ttl = Ttl::new(30 * SECOND).unwrap();
        let resource = Resource::new("resource").unwrap();
        Lease::elsewhere(resource, LockToken::from_random([7; 20]), ttl, deadline)
    }

    /// The engine reports that the lock is valid for a minute.
    fn succeed(kept: &KeptLock) -> bool {
        kept.renewed.note_renewal(Clock.now().after(60 * SECOND))
    }

    /// The engine gives back a lock that it has renewed.
    fn give_back(renewed: &RenewedLock) -> Option<Lease> {
        renewed.lost(lease(Clock.now().after(60 * SECOND)), None)
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn renewal_that_is_reported_in_time_raises_the_deadline() {
        let kept = kept(20 * SECOND, SECOND);
        assert!(succeed(&kept));
        assert!(kept.remaining() > 50 * SECOND && !kept.is_lost());
        assert_eq!(kept.renewals(), 1);
    }

    /// R22: the renewal was judged in time, but the holder has seen the end since.
    #[test]
    fn renewal_that_is_reported_after_the_deadline_revives_nothing() {
        let kept = kept(Duration::from_millis(20), Duration::ZERO);
        wait_until(|| !kept.is_valid());
        assert!(!succeed(&kept));
        assert!(give_back(&kept.renewed).is_none());
        assert!(kept.remaining().is_zero() && kept.is_lost());
        assert_eq!(kept.loss().unwrap().cause, LossCause::Late);
        assert!(!kept.stop().is_valid());
    }

    /// R31: a loss that was reported is final.
    #[test]
    fn renewal_that_is_reported_after_the_notice_takes_no_loss_back() {
        let kept = kept(20 * SECOND, 10 * SECOND);
        kept.renewed.report_at(Moment::START);
        assert_eq!(kept.loss().unwrap().cause, LossCause::Late);
        assert!(!succeed(&kept));
        assert!(give_back(&kept.renewed).is_none());
        assert!(kept.is_lost() && kept.is_valid() && kept.renewals() == 0);
        assert!(kept.remaining() <= 20 * SECOND);
        let left = kept.stop().remaining();
        assert!(!left.is_zero() && left <= 20 * SECOND);
    }

    /// R24: a mutex that a thread of the parent has locked would never be released.
    #[test]
    fn lock_of_a_parent_process_is_not_waited_for() {
        let now = Clock.now();
        let builder = Redlock::builder().node("redis://127.0.0.1:1");
        let mut redlock = builder.restart_guard(RestartGuard::Off).build().unwrap();
        Arc::get_mut(&mut redlock.shared).unwrap().owner = OwnerProcess::Id(0);
        let terms = Terms::new(now, 30 * SECOND, &KeepAlive::default(), SECOND);
        let ttl = Ttl::new(30 * SECOND).unwrap();
        let inner = Arc::new(RenewedLock::new(now, &lease(now.after(SECOND)), ttl, terms, None));
        let kept =
            KeptLock { shared: Arc::clone(&redlock.shared), renewed: Arc::clone(&inner), key: 0 };
        let (_state, _renewer) = (inner.hold(), redlock.shared.renewer.hold());
        assert_eq!(kept.wait_for_loss(SECOND).unwrap().cause, LossCause::Forked);
        assert!(kept.is_lost() && !kept.is_valid() && kept.remaining().is_zero());
        assert_eq!(kept.loss().unwrap().cause, LossCause::Forked);
        assert!(kept.renewals() == 0 && format!("{kept:?}").contains("resource"));
        let guard = kept.stop();
        assert!(!guard.is_valid());
        let error = guard.keep_alive(KeepAlive::default()).unwrap_err();
        let forked = KeepAliveErrorKind::Lock(LockErrorKind::Forked);
        assert_eq!(error.kind(), forked);
    }

    #[test]
    fn given_up_before_the_engine_gives_it_back_it_is_released() {
        let kept = kept(20 * SECOND, SECOND);
        let inner = Arc::clone(&kept.renewed);
        drop(kept);
        assert!(give_back(&inner).is_some(), "the engine must release it");
    }

    #[test]
    fn stopped_after_the_engine_has_given_it_back_it_is_there() {
        let kept = kept(20 * SECOND, SECOND);
        assert!(give_back(&kept.renewed).is_none());
        assert!(kept.stop().remaining() > 50 * SECOND);
    }

    #[test]
    fn loss_is_waited_for_until_the_notice_or_the_timeout() {
        let kept = kept(20 * SECOND, Duration::ZERO);
        assert!(kept.wait_for_loss(Duration::ZERO).is_none());
        assert!(kept.wait_for_loss(Duration::from_millis(5)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| kept.wait_for_loss(Duration::MAX));
            assert!(give_back(&kept.renewed).is_none());
            kept.renewed.report_at(Moment::START);
            kept.renewed.begin_report();
            assert_eq!(waiting.join().unwrap().unwrap().cause, LossCause::Late);
        });
        let overdue = self::kept(SECOND / 20, SECOND / 100);
        let loss = overdue.wait_for_loss(60 * SECOND).expect("it is not renewed");
        assert_eq!(loss.cause, LossCause::Late);
    }

    /// A report of the loop and a finding of the renewer's thread both end a wait at once.
    #[test]
    fn report_of_a_loss_ends_the_wait() {
        let of_the_loop = |renewed: &RenewedLock| {
            let (resource, cause) = (renewed.lease.resource().clone(), LossCause::Gone);
            let loss = Loss { resource, cause, remaining: Duration::ZERO, error: None };
            renewed.lost(lease(Clock.now()), Some(loss));
        };
        let of_the_renewer = |renewed: &RenewedLock| {
            renewed.report_at(Moment::START);
            renewed.begin_report();
        };
        type Report<'a> = &'a dyn Fn(&RenewedLock);
        let table: [(Report<'_>, _); 2] =
            [(&of_the_loop, LossCause::Gone), (&of_the_renewer, LossCause::Late)];
        for (report, cause) in table {
            let kept = kept(60 * SECOND, SECOND);
            let watch = kept.watch();
            let waiting = std::thread::spawn(move || watch.wait_for_loss(Duration::MAX));
            std::thread::yield_now();
            let start = Clock.now();
            report(&kept.renewed);
            assert_eq!(waiting.join().unwrap().unwrap().cause, cause);
            assert!(Clock.now().since(start) < 20 * SECOND);
        }
    }

    /// Until the loop is overdue, it is the masters that have not answered.
    #[test]
    fn cause_depends_on_whether_the_loop_is_overdue() {
        let due = kept(60 * SECOND, SECOND);
        due.renewed.report_at(Clock.now());
        assert_eq!(due.loss().unwrap().cause, LossCause::Unavailable);
        let expired = LockError::expired();
        let resource = due.renewed.lease.resource().clone();
        let gone = Loss {
            resource,
            cause: LossCause::Gone,
            remaining: Duration::ZERO,
            error: Some(expired),
        };
        assert!(due.renewed.lost(lease(Clock.now()), Some(gone)).is_none());
        let loss = due.loss().unwrap();
        assert_eq!(loss.cause, LossCause::Gone, "what the loop says counts more");
        assert!(loss.error.is_some());

        let overdue = kept(SECOND / 20, SECOND / 20);
        wait_until(|| Clock.now() >= overdue.renewed.overdue_at().unwrap_or(Moment::START));
        assert_eq!(overdue.loss().unwrap().cause, LossCause::Late);
    }

    /// Masters that did not answer a renewal are the cause, however long the loop is overdue. After
    /// the deadline no answer would have been in time.
    #[test]
    fn cause_of_an_overdue_loss_depends_on_whether_the_last_renewal_has_failed() {
        let failing = kept(60 * SECOND, SECOND);
        failing.renewed.failed();
        failing.renewed.report_at(Moment::START);
        assert_eq!(failing.loss().unwrap().cause, LossCause::Unavailable);

        let renewed = kept(60 * SECOND, SECOND);
        renewed.renewed.failed();
        assert!(succeed(&renewed));
        renewed.renewed.report_at(Moment::START);
        assert_eq!(renewed.loss().unwrap().cause, LossCause::Late);

        let over = kept(SECOND / 20, Duration::ZERO);
        over.renewed.failed();
        wait_until(|| Clock.now() >= over.renewed.end());
        assert_eq!(over.loss().unwrap().cause, LossCause::Late);
    }

    /// The only master is not there.
    #[test]
    fn loop_notes_a_renewal_that_has_failed() {
        let builder = Redlock::builder().node("redis://127.0.0.1:1");
        let redlock = builder.restart_guard(RestartGuard::Off).build().unwrap();
        let (now, how) = (Clock.now(), KeepAlive::default());
        let ttl = Ttl::new(30 * SECOND).unwrap();
        let (resource, token) = (Resource::new("resource").unwrap(), [7; 20]);
        let token = LockToken::from_random(token);
        let lease = Lease::elsewhere(resource, token, ttl, now.after(15 * SECOND));
        let terms = Terms::new(now, 30 * SECOND, &how, SECOND);
        let inner = Arc::new(RenewedLock::new(now, &lease, ttl, terms, None));
        let order = Order::Renew(Box::new((lease, how, Arc::clone(&inner))));
        assert!(matches!(
            redlock.shared.threads.run(order, Limit::None),
            Some(Outcome::Renewing(_))
        ));
        wait_until(|| !redlock.nodes().is_empty() && redlock.stats().extensions_failed > 0);
        inner.report_at(Moment::START);
        assert_eq!(inner.loss().unwrap().cause, LossCause::Unavailable);
        assert_eq!(inner.renewals(), 0);
    }

    /// A watchdog does not hold up the holder, and ends with the lock.
    #[test]
    fn slow_wait_for_a_loss_ends_when_the_lock_is_given_up() {
        let give_up: [fn(KeptLock); 2] = [drop, |kept| drop(kept.stop())];
        for give_up in give_up {
            let kept = kept(SECOND / 2, SECOND / 100);
            let watch = kept.watch();
            assert!(format!("{watch:?}").contains("resource"));
            let waiting = std::thread::spawn(move || watch.wait_for_loss(Duration::MAX));
            std::thread::yield_now();
            let again = kept.watch();
            kept.renewed.report_at(Clock.now().after(SECOND / 20));
            give_up(kept);
            assert!(waiting.join().unwrap().is_none());
            wait_until(|| Clock.now() >= again.renewed.end());
            assert!(again.wait_for_loss(Duration::ZERO).is_none(), "it was not lost");
        }
    }

    #[cfg(unix)]
    #[test]
    fn descriptor_is_readable_from_the_loss_on() {
        use std::io::Read;
        use std::os::unix::net::UnixStream;

        let read = |fd| {
            let mut socket = UnixStream::from(fd);
            socket.set_nonblocking(true).unwrap();
            socket.read(&mut [0; 1]).map_err(|error| error.kind())
        };
        let lost = kept(20 * SECOND, SECOND);
        let [before, closed] = [(); 2].map(|()| lost.loss_fd().unwrap());
        drop(closed);
        let again = before.try_clone().unwrap();
        assert_eq!(read(again), Err(std::io::ErrorKind::WouldBlock));
        lost.renewed.report_at(Moment::START);
        assert!(lost.is_lost());
        assert_eq!(read(before), Ok(1));
        let overdue = kept(Duration::ZERO, Duration::ZERO);
        assert!(overdue.is_lost());
        assert_eq!(read(overdue.loss_fd().unwrap()), Ok(1));

        let given_up = kept(20 * SECOND, SECOND);
        let listener = given_up.loss_fd().unwrap();
        drop(given_up);
        assert_eq!(read(listener), Ok(1), "also while a forked process has the other end");
        let stopped = kept(20 * SECOND, SECOND);
        let listener = stopped.loss_fd().unwrap();
        drop(stopped.stop());
        assert_eq!(read(listener), Ok(1));
    }

    /// The captured values of a callback are dropped with its lock, and so is the client.
    #[test]
    fn callback_that_has_captured_the_client_does_not_keep_it() {
        let until = Clock.now().after(30 * SECOND);
        for _ in 0..20 {
            let redlock = Redlock::builder().node("redis://127.0.0.1:1").build().unwrap();
            let shared = Arc::downgrade(&redlock.shared);
            let again = redlock.clone();
            let how = KeepAlive::default().on_loss(move |_| _ = &again);
            let two = [(); 2].map(|()| {
                let guard = LockGuard::new(Arc::clone(&redlock.shared), lease(until));
                guard.keep_alive(how.clone()).unwrap()
            });
            drop((how, two, redlock));
            wait_until(|| shared.upgrade().is_none() || Clock.now() > until);
            assert!(shared.upgrade().is_none());
        }
    }

    /// The thread that waits for losses is not woken for a lock that was given up.
    #[test]
    fn lock_that_was_given_up_is_never_overdue() {
        let kept = kept(20 * SECOND, SECOND);
        assert!(kept.renewed.overdue_at().is_some());
        let _ = kept.renewed.give_up();
        assert!(kept.renewed.overdue_at().is_none());
    }
}
