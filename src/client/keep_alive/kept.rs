//! A held lock that is renewed.

use std::fmt;
use std::mem::replace;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::keeper::{Errands, Keeper};
use super::schedule::Key;
use super::{KeepAliveError, KeepAliveErrorKind};
use crate::client::errands::{Ended, Errand, ErrandId};
use crate::client::{LockGuard, Redlock};
use crate::error::LockError;
use crate::keep_alive::{KeepAlive, Loss, LossCause, OnLoss};
use crate::moment::Moment;
use crate::proto::{Lease, Released, Terms};
use crate::resource::Resource;
use crate::sys::clock::Clock;
use crate::token::LockToken;
use crate::validity::Ttl;

/// A held lock that the client renews until you call `unlock` or `stop`, drop it, or the lock is
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
    kept: Arc<Kept>,
    key: Key,
}

impl KeptLock {
    pub(in crate::client) fn start(
        guard: LockGuard,
        how: KeepAlive,
    ) -> Result<KeptLock, KeepAliveError> {
        let (redlock, lease) = guard.apart();
        let now = Clock.now();
        let (ttl, validity) = match check(&redlock, &lease, now) {
            Ok(checked) => checked,
            Err(error) => {
                let kind = KeepAliveErrorKind::Lock(error.kind());
                return Err(KeepAliveError::new(kind, LockGuard::new(redlock, lease)));
            }
        };
        let config = &redlock.shared.config;
        let terms = Terms::new(now, validity, &how, config.node_timeout);
        let keeper = Arc::clone(&redlock.shared.keeper);
        let deadline = lease.valid_until();
        let kept = Arc::new(Kept::new(now, redlock, lease, ttl, terms, how.on_loss));
        match keeper.add(now, Arc::clone(&kept), terms, deadline) {
            Ok(key) => Ok(KeptLock { kept, key }),
            Err(kind) => {
                let lease = kept.take_or_wait(now);
                Err(KeepAliveError::new(kind, LockGuard::new(kept.redlock.clone(), lease)))
            }
        }
    }

    /// The locked resource.
    pub fn resource(&self) -> &Resource {
        &self.kept.resource
    }

    /// The lock's token, which is the key's value on the masters. It is enough to release or extend
    /// the lock.
    pub fn token(&self) -> &LockToken {
        &self.kept.token
    }

    /// The TTL that each renewal requests.
    pub fn ttl(&self) -> Duration {
        self.kept.ttl.as_duration()
    }

    /// How often the lock was renewed; failed renewals do not count.
    pub fn renewals(&self) -> u32 {
        if !self.kept.redlock.is_home() {
            return 0;
        }
        self.kept.lock().renewals
    }

    /// The remaining validity; zero when it has ended.
    ///
    /// Each renewal raises it. Once it has been zero, it stays zero. It is zero in a process that
    /// was forked from the one that holds the lock.
    pub fn remaining(&self) -> Duration {
        if !self.kept.redlock.is_home() {
            return Duration::ZERO;
        }
        let state = self.kept.lock();
        state.deadline.since(Clock.now())
    }

    /// Whether the lock is valid right now.
    ///
    /// This is a hint (R21): a thread may be paused right after the check. Once it is `false`, it
    /// stays `false`. A lost lock usually remains valid for a short time, in which its holder can
    /// stop.
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Whether the client no longer renews the lock. If so, stop the work before
    /// [`remaining`](KeptLock::remaining) is zero. Once it is `true`, it stays `true`.
    ///
    /// If no renewal has succeeded by then, it becomes `true` at the [notice](KeepAlive::notice)
    /// before the validity ends, even if the renewal thread is not scheduled.
    pub fn is_lost(&self) -> bool {
        if !self.kept.redlock.is_home() {
            return true;
        }
        let mut state = self.kept.lock();
        state.look(Clock.now());
        state.loss.is_some()
    }

    /// Same as [`is_lost`](KeptLock::is_lost), but returns the reason.
    pub fn loss(&self) -> Option<Loss> {
        let kept = &self.kept;
        if !kept.redlock.is_home() {
            let (resource, cause) = (kept.resource.clone(), LossCause::Forked);
            return Some(Loss { resource, cause, remaining: Duration::ZERO, error: None });
        }
        let mut state = kept.lock();
        let now = Clock.now();
        state.look(now);
        state.loss.map(|cause| kept.loss(&state, cause, now))
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
        let redlock = self.kept.redlock.clone();
        if !redlock.is_home() {
            return Err(LockError::forked());
        }
        let until = redlock.round_ends();
        redlock.release_until(self.take_until(until), until)
    }

    /// Turns this back into a lock that is not renewed. It does not wait for a renewal in flight,
    /// and ignores its result.
    ///
    /// If the renewal thread has the lock and does not return it within
    /// [`connect_timeout`](crate::Builder::connect_timeout) +
    /// [`node_timeout`](crate::Builder::node_timeout), the client releases the lock and returns an
    /// expired guard.
    pub fn stop(self) -> LockGuard {
        let redlock = self.kept.redlock.clone();
        if !redlock.is_home() {
            // Another thread of the parent may have been using the lease.
            return LockGuard::new(redlock, self.kept.over());
        }
        let until = redlock.round_ends();
        let lease = self.take_until(until);
        LockGuard::new(redlock, lease)
    }

    fn take_until(&self, until: Moment) -> Lease {
        self.keeper().remove(self.key);
        self.kept.take_or_wait(until)
    }

    fn keeper(&self) -> &Keeper {
        &self.kept.redlock.shared.keeper
    }
}

/// Checks that the lock can be kept alive. Returns its TTL, and the validity that a renewal gives.
fn check(redlock: &Redlock, lease: &Lease, now: Moment) -> Result<(Ttl, Duration), LockError> {
    if !redlock.is_home() {
        return Err(LockError::forked());
    }
    let config = &redlock.shared.config;
    let ttl = config.ttl(lease.ttl())?;
    let validity = config.drift.validity(ttl).filter(|_| lease.is_valid_at(now));
    validity.map(|validity| (ttl, validity)).ok_or_else(LockError::expired)
}

impl Drop for KeptLock {
    fn drop(&mut self) {
        if !self.kept.redlock.is_home() {
            return;
        }
        self.keeper().remove(self.key);
        self.kept.give_up();
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

/// Shared by the holder and the thread that renews.
pub(super) struct Kept {
    pub(super) redlock: Redlock,
    resource: Resource,
    token: LockToken,
    ttl: Ttl,
    terms: Terms,
    on_loss: Option<OnLoss>,
    /// A thread that holds this mutex does not block.
    state: Mutex<State>,
    /// Notified when the lease that the holder waits for was returned.
    returned: Condvar,
}

struct State {
    place: Place,
    /// The validity that the holder sees. A renewal raises it only if it is handed back before this
    /// deadline, never after (R22).
    deadline: Moment,
    tell_at: Moment,
    loss: Option<LossCause>,
    error: Option<LockError>,
    renewals: u32,
}

/// Where the lease is.
enum Place {
    Here(Lease),
    /// This renewal has it.
    Away(ErrandId),
    /// The renewal has ended and its result is about to be handed back; the holder waits for it.
    Awaited,
    /// The holder has it, or gave it up.
    Gone,
}

/// The result of a renewal, for the schedule.
pub(super) enum Renewal {
    Succeeded(Moment),
    Failed,
    /// The masters no longer hold the lock for this token.
    Lost,
    /// The lock is no longer kept alive.
    Over,
    /// The lock is no longer held by the caller: it must be released.
    Unwanted(Lease),
}

impl State {
    /// Records a loss, if it is due and was not recorded.
    fn look(&mut self, now: Moment) {
        if now >= self.tell_at {
            let is_tried = self.error.is_some() || matches!(self.place, Place::Away(_));
            let cause = match is_tried && now < self.deadline {
                true => LossCause::Unavailable,
                false => LossCause::Late,
            };
            self.loss.get_or_insert(cause);
        }
    }
}

impl Kept {
    fn new(
        now: Moment,
        redlock: Redlock,
        lease: Lease,
        ttl: Ttl,
        terms: Terms,
        on_loss: Option<OnLoss>,
    ) -> Kept {
        let deadline = lease.valid_until();
        Kept {
            resource: lease.resource().clone(),
            token: *lease.token(),
            ttl,
            terms,
            on_loss,
            state: Mutex::new(State {
                place: Place::Here(lease),
                deadline,
                tell_at: terms.tell_at(now, deadline),
                loss: None,
                error: None,
                renewals: 0,
            }),
            returned: Condvar::new(),
            redlock,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loss(&self, state: &State, cause: LossCause, now: Moment) -> Loss {
        let (resource, error) = (self.resource.clone(), state.error.clone());
        Loss { resource, cause, remaining: state.deadline.since(now), error }
    }

    /// Starts a renewal, unless the holder has taken the lease.
    pub(super) fn renew(self: &Arc<Self>, errands: &Errands, key: Key) {
        let mut state = self.lock();
        match replace(&mut state.place, Place::Gone) {
            Place::Here(lease) => {
                let ttl = self.ttl.as_duration();
                let op = errands.start(lease, ttl, (key, Arc::clone(self)));
                state.place = Place::Away(op);
            }
            other => state.place = other,
        }
    }

    /// Takes the lease back from a renewal that has ended. It must not call code that may panic,
    /// because the results of other locks are still to be processed.
    pub(super) fn hand_back(&self, errand: Errand<(Key, Arc<Kept>)>) -> Renewal {
        let Ended::Done(lease, result) = errand.ended else {
            return Renewal::Over;
        };
        let mut state = self.lock();
        if matches!(state.place, Place::Gone) {
            return Renewal::Unwanted(lease);
        }
        let is_awaited = matches!(state.place, Place::Awaited);
        let deadline = lease.valid_until();
        state.place = Place::Here(lease);
        // The holder may have seen the lock expire after the renewal was judged.
        let now = Clock.now();
        state.look(now);
        let renewal = match result {
            _ if state.loss.is_some() => Renewal::Over,
            Ok(()) => {
                state.deadline = deadline;
                state.tell_at = self.terms.tell_at(now, deadline);
                state.error = None;
                state.renewals = state.renewals.saturating_add(1);
                Renewal::Succeeded(deadline)
            }
            Err(error) if error.is_expired() => {
                // The lock is over, whatever the clock says.
                state.deadline = state.deadline.min(now);
                state.error = Some(error);
                state.loss = Some(LossCause::Gone);
                Renewal::Lost
            }
            Err(error) => {
                state.error = Some(error);
                Renewal::Failed
            }
        };
        if is_awaited {
            self.returned.notify_one();
        }
        renewal
    }

    /// Records a loss. All losses are recorded before any is reported.
    pub(super) fn lose(&self, cause: LossCause) {
        self.lock().loss.get_or_insert(cause);
    }

    /// Calls `on_loss` unless the holder has given the lock up.
    pub(super) fn tell(&self) {
        let Some(on_loss) = &self.on_loss else {
            return;
        };
        let state = self.lock();
        let (Some(cause), false) = (state.loss, matches!(state.place, Place::Gone)) else {
            return;
        };
        let loss = self.loss(&state, cause, Clock.now());
        drop(state);
        // The callback is the caller's; the panic hook has reported the panic.
        let _ = catch_unwind(AssertUnwindSafe(|| on_loss(&loss)));
    }

    /// Gives the lease up, wherever it is, without waiting. If it is about to be handed back, it is
    /// released then.
    fn give_up(&self) {
        let place = replace(&mut self.lock().place, Place::Gone);
        match place {
            Place::Here(lease) => self.redlock.abandon(lease),
            Place::Away(id) => self.errands().discard(&self.redlock, id),
            Place::Awaited | Place::Gone => {}
        }
    }

    /// Takes the lease for good. A renewal that has ended is handed back without waiting, but the
    /// thread in between may be delayed. If the lease has not come by `until`, it is given up, and
    /// this returns an expired one.
    fn take_or_wait(&self, until: Moment) -> Lease {
        let mut state = self.lock();
        if let Place::Away(id) = state.place {
            state.place = Place::Awaited;
            drop(state);
            let recalled = self.errands().recall(&self.redlock, id, until);
            state = self.lock();
            if let Some(lease) = recalled {
                state.place = Place::Gone;
                state.look(Clock.now());
                if state.loss.is_none() {
                    state.deadline = lease.valid_until();
                }
                return lease.valid_at_most_until(state.deadline);
            }
        }
        loop {
            if let Place::Here(lease) = replace(&mut state.place, Place::Gone) {
                return lease.valid_at_most_until(state.deadline);
            }
            let left = until.since(Clock.now());
            if left.is_zero() {
                return self.over();
            }
            state.place = Place::Awaited;
            let waited = self.returned.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// An expired lease, in place of one that is not available.
    fn over(&self) -> Lease {
        let over = Moment::from_nanos(0);
        Lease::restored(self.resource.clone(), self.token, self.ttl, over)
    }

    fn errands(&self) -> &Errands {
        self.redlock.shared.keeper.errands()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::errands;
    use crate::config::RestartGuard;
    use crate::error::LockErrorKind;
    use crate::sys::process::Home;

    const SECOND: Duration = Duration::from_secs(1);

    /// A lock that is valid for `left`, of a client that has not connected. A renewal has ended,
    /// and its result is about to be handed back; no thread starts another.
    fn kept(left: Duration, notice: Duration) -> KeptLock {
        let builder = Redlock::builder().node("redis://127.0.0.1:1");
        let redlock = builder.restart_guard(RestartGuard::Off).build().unwrap();
        let now = Clock.now();
        let (renewals_max, ends) = (u32::MAX, Moment::END);
        let terms = Terms { validity: 30 * SECOND, notice, renewals_max, ends };
        // Errands of their own, which the client's keeper does not know.
        let op = errands::Errands::new().start(lease(Moment::END), SECOND, ());
        let (lease, ttl) = (lease(now.after(left)), Ttl::new(30 * SECOND).unwrap());
        let kept = Arc::new(Kept::new(now, redlock, lease, ttl, terms, None));
        kept.lock().place = Place::Away(op);
        KeptLock { kept, key: Key::MAX }
    }

    fn lease(deadline: Moment) -> Lease {
        let ttl = Ttl::new(30 * SECOND).unwrap();
        let resource = Resource::new("resource").unwrap();
        Lease::restored(resource, LockToken::from_random([7; 20]), ttl, deadline)
    }

    /// A renewal succeeded, and made the lock valid for a minute.
    fn succeed(kept: &KeptLock) -> Renewal {
        let lease = lease(Clock.now().after(60 * SECOND));
        let of = (kept.key, Arc::clone(&kept.kept));
        kept.kept.hand_back(Errand { of, ended: Ended::Done(lease, Ok(())) })
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn renewal_that_is_handed_back_in_time_raises_the_deadline() {
        let kept = kept(20 * SECOND, SECOND);
        assert!(matches!(succeed(&kept), Renewal::Succeeded(_)));
        assert!(kept.remaining() > 50 * SECOND && !kept.is_lost());
        assert_eq!(kept.renewals(), 1);
        assert!(kept.stop().remaining() > 50 * SECOND);
    }

    /// R22: the renewal was judged in time, but the holder has seen the end since.
    #[test]
    fn renewal_that_is_handed_back_after_the_deadline_revives_nothing() {
        let kept = kept(Duration::from_millis(20), Duration::ZERO);
        wait_until(|| !kept.is_valid());
        assert!(matches!(succeed(&kept), Renewal::Over));
        assert!(kept.remaining().is_zero() && kept.is_lost());
        assert_eq!(kept.loss().unwrap().cause, LossCause::Late);
        assert!(!kept.stop().is_valid());
    }

    /// R31: a loss that was reported is final.
    #[test]
    fn renewal_that_is_handed_back_after_the_notice_takes_no_loss_back() {
        let kept = kept(20 * SECOND, 10 * SECOND);
        kept.kept.lock().tell_at = Clock.now();
        assert_eq!(kept.loss().unwrap().cause, LossCause::Unavailable);
        assert!(matches!(succeed(&kept), Renewal::Over));
        assert!(kept.is_lost() && kept.is_valid());
        assert!(kept.remaining() <= 20 * SECOND);
        assert!(kept.stop().remaining() <= 20 * SECOND);
    }

    /// R24: a mutex that a thread of the parent has locked would never be released.
    #[test]
    fn lock_of_a_parent_process_is_not_waited_for() {
        let mut kept = kept(20 * SECOND, SECOND);
        let inner = Arc::get_mut(&mut kept.kept).unwrap();
        Arc::get_mut(&mut inner.redlock.shared).unwrap().home = Home::Id(0);
        let inner = Arc::clone(&kept.kept);
        let (_state, _keeper) = (inner.lock(), inner.redlock.shared.keeper.hold());
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
    fn given_up_between_the_end_of_a_renewal_and_its_return_it_is_released() {
        let kept = kept(20 * SECOND, SECOND);
        let (inner, key) = (Arc::clone(&kept.kept), kept.key);
        drop(kept);
        let ended = Ended::Done(lease(Moment::END), Ok(()));
        let errand = Errand { of: (key, Arc::clone(&inner)), ended };
        assert!(matches!(inner.hand_back(errand), Renewal::Unwanted(_)));
    }

    #[test]
    fn stopped_between_the_end_of_a_renewal_and_its_return_it_is_waited_for() {
        let kept = kept(20 * SECOND, SECOND);
        let (inner, key) = (Arc::clone(&kept.kept), kept.key);
        let stopped = std::thread::spawn(move || kept.stop());
        wait_until(|| matches!(inner.lock().place, Place::Awaited));
        let lease = lease(Clock.now().after(60 * SECOND));
        let ended = Ended::Done(lease, Ok(()));
        inner.hand_back(Errand { of: (key, Arc::clone(&inner)), ended });
        assert!(stopped.join().unwrap().remaining() > 50 * SECOND);
    }
}
