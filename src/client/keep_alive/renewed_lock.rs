//! The state of a renewed lock: its holder shares it with the loop and with the threads that report
//! losses.

use std::mem::replace;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::keep_alive::{Loss, LossCause, OnLoss};
use crate::lock_error::LockError;
use crate::moment::Moment;
use crate::proto::{Lease, OpId, Terms};
use crate::sys::clock::Clock;
use crate::validity::Ttl;

/// The thread that reports losses checks the lock itself when this part of the notice has passed.
const OVERDUE_PART: u32 = 8;

/// A lock that the loop renews. Its holder, the loop and the thread that reports losses share
/// this.
pub(in crate::client) struct RenewedLock {
    /// Expired; it names the resource and the token.
    pub(super) lease: Lease,
    terms: Terms,
    /// A thread that holds this mutex does not block.
    state: Mutex<RenewedLockState>,
    /// Notified when a loss is recorded.
    lost: Condvar,
}

struct RenewedLockState {
    lease_at: LeaseAt,
    /// Its captured values are dropped by the holder or by a thread that calls it, not in the
    /// loop: the holder takes it when it gives the lock up.
    on_loss: Option<OnLoss>,
    /// The validity that the holder sees. A renewal raises it only before this deadline, never
    /// after (R22).
    deadline: Moment,
    report_at: Moment,
    loss: Option<LossCause>,
    #[cfg(unix)]
    loss_event: Option<super::loss_event::LossEvent>,
    /// Whether the loss was passed on to `on_loss`.
    was_reported: bool,
    error: Option<LockError>,
    renewals: u32,
    /// A renewal has failed, and none has succeeded since: the loop was in time.
    has_failed: bool,
}

/// Where the lease is.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation")]
pub(super) enum LeaseAt {
    /// The engine gave it back: the lock is lost.
    Here(Lease),
    /// The engine renews it.
    Engine(OpId),
    /// The holder has it, or gave it up.
    Gone,
}

impl RenewedLockState {
    /// When the loop should have reported a loss: it knows the cause better.
    fn overdue_at(&self) -> Moment {
        self.report_at.after(self.deadline.since(self.report_at) / OVERDUE_PART)
    }

    /// Records a loss, if it is due and was not recorded. Until it is overdue, or the deadline if
    /// the last renewal has failed, it is the masters that have not answered. After that, the loop
    /// is overdue. A later report of the loop replaces the cause.
    fn record_if_due(&mut self, now: Moment) {
        let overdue_from = match self.has_failed {
            true => self.deadline,
            false => self.overdue_at(),
        };
        if now >= self.report_at && self.loss.is_none() {
            self.record(match now < overdue_from {
                true => LossCause::Unavailable,
                false => LossCause::Late,
            });
        }
    }

    fn record(&mut self, cause: LossCause) {
        if self.loss.replace(cause).is_none() {
            #[cfg(unix)]
            if let Some(loss_event) = &self.loss_event {
                loss_event.notify();
            }
        }
    }
}

impl RenewedLock {
    pub(in crate::client) fn new(
        now: Moment,
        lease: &Lease,
        ttl: Ttl,
        terms: Terms,
        on_loss: Option<OnLoss>,
    ) -> RenewedLock {
        let deadline = lease.valid_until();
        RenewedLock {
            lease: lease.over_after(ttl),
            terms,
            state: Mutex::new(RenewedLockState {
                lease_at: LeaseAt::Gone,
                on_loss,
                deadline,
                report_at: terms.report_at(now, deadline),
                loss: None,
                #[cfg(unix)]
                loss_event: None,
                was_reported: false,
                error: None,
                renewals: 0,
                has_failed: false,
            }),
            lost: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RenewedLockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, state: &RenewedLockState, cause: LossCause, now: Moment) -> Loss {
        let (resource, error) = (self.lease.resource().clone(), state.error.clone());
        Loss { resource, cause, remaining: state.deadline.since(now), error }
    }

    /// Its loss with all other locks of the client.
    pub(in crate::client) fn lost_by(&self, cause: LossCause) -> Loss {
        let resource = self.lease.resource().clone();
        Loss { resource, cause, remaining: Duration::ZERO, error: None }
    }

    /// The loss of the lock, if it is recorded or due.
    pub(super) fn loss(&self) -> Option<Loss> {
        let mut state = self.lock();
        let now = Clock.now();
        state.record_if_due(now);
        state.loss.map(|cause| self.report(&state, cause, now))
    }

    /// Waits for the loss, at most until then, or until the holder gives the lock up. The loop
    /// knows the cause, so it has until the loss is overdue to report it. Each iteration but the
    /// last waits for one of these moments, or until it is notified.
    pub(super) fn wait_for_loss(&self, until: Moment) -> Option<Loss> {
        let mut state = self.lock();
        loop {
            let now = Clock.now();
            let overdue_at = state.overdue_at();
            let is_gone = matches!(state.lease_at, LeaseAt::Gone);
            if !is_gone && (now >= overdue_at || now >= until) {
                state.record_if_due(now);
            }
            if let Some(cause) = state.loss {
                return Some(self.report(&state, cause, now));
            }
            if now >= until || is_gone {
                return None;
            }
            let wait = overdue_at.min(until).since(now);
            let waited = self.lost.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A socket that can be read once the lock is lost or given up.
    #[cfg(unix)]
    pub(super) fn loss_fd(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        let mut state = self.lock();
        if state.loss_event.is_none() {
            let loss_event = super::loss_event::LossEvent::new()?;
            state.record_if_due(Clock.now());
            if state.loss.is_some() {
                loss_event.notify();
            }
            state.loss_event = Some(loss_event);
        }
        state.loss_event.as_ref().expect("it was set").receiver()
    }

    /// The remaining validity. The clock is read under the mutex, here as in all that follows: a
    /// deadline that was seen to have passed is not raised (R22).
    pub(super) fn remaining(&self) -> Duration {
        self.lock().deadline.since(Clock.now())
    }

    pub(super) fn renewals(&self) -> u32 {
        self.lock().renewals
    }

    pub(super) fn renewed_by(&self) -> Option<OpId> {
        match self.lock().lease_at {
            LeaseAt::Engine(op) => Some(op),
            LeaseAt::Here(_) | LeaseAt::Gone => None,
        }
    }

    /// The holder gives the lock up, wherever it is. The callback is the holder's to drop.
    pub(super) fn give_up(&self) -> (LeaseAt, Option<OnLoss>) {
        let mut state = self.lock();
        self.let_go(&mut state);
        (replace(&mut state.lease_at, LeaseAt::Gone), state.on_loss.take())
    }

    /// Ends the waits for a loss. A forked process may have the socket's other end, so closing it
    /// here would not be noticed.
    #[cfg_attr(not(unix), allow(unused_variables))]
    fn let_go(&self, state: &mut RenewedLockState) {
        #[cfg(unix)]
        if let Some(loss_event) = state.loss_event.take() {
            loss_event.notify();
        }
        self.lost.notify_all();
    }

    /// The holder takes the lease for good: this one, which the engine has returned, or the one of
    /// a lost lock. An expired one, if there is none.
    pub(super) fn take(&self, stopped: Option<Lease>) -> Lease {
        let mut state = self.lock();
        self.let_go(&mut state);
        let lease = match (stopped, replace(&mut state.lease_at, LeaseAt::Gone)) {
            (Some(lease), _) | (None, LeaseAt::Here(lease)) => lease,
            (None, LeaseAt::Engine(_) | LeaseAt::Gone) => return self.lease.over(),
        };
        state.record_if_due(Clock.now());
        if state.loss.is_none() {
            state.deadline = lease.valid_until();
        }
        lease.valid_at_most_until(state.deadline)
    }

    /// The engine renews the lock.
    pub(in crate::client) fn set_engine_op(&self, op: OpId) {
        self.lock().lease_at = LeaseAt::Engine(op);
    }

    /// The engine has renewed the lock. Returns whether that counts: the holder may have seen its
    /// end since the renewal was judged (R22).
    pub(in crate::client) fn note_renewal(&self, until: Moment) -> bool {
        let mut state = self.lock();
        let now = Clock.now();
        state.record_if_due(now);
        if state.loss.is_some() {
            return false;
        }
        state.deadline = until;
        state.report_at = self.terms.report_at(now, until);
        state.renewals = state.renewals.saturating_add(1);
        state.has_failed = false;
        true
    }

    /// A renewal has failed, and another follows.
    pub(in crate::client) fn failed(&self) {
        self.lock().has_failed = true;
    }

    /// The lock is no longer renewed. Returns the lease if its holder has given it up.
    pub(in crate::client) fn lost(&self, lease: Lease, loss: Option<Loss>) -> Option<Lease> {
        let mut state = self.lock();
        if let Some(loss) = loss {
            state.error = loss.error;
            state.record(loss.cause);
        }
        state.record_if_due(Clock.now());
        self.lost.notify_all();
        // The masters may have answered that it has expired, even if the clock shows time left.
        state.deadline = state.deadline.min(lease.valid_until());
        match state.lease_at {
            LeaseAt::Engine(_) => {
                state.lease_at = LeaseAt::Here(lease);
                None
            }
            LeaseAt::Here(_) | LeaseAt::Gone => Some(lease),
        }
    }

    /// When a loss is overdue, if none was reported.
    pub(in crate::client) fn overdue_at(&self) -> Option<Moment> {
        let state = self.lock();
        let is_over = state.was_reported || matches!(state.lease_at, LeaseAt::Gone);
        (!is_over).then(|| state.overdue_at())
    }

    /// Records a loss that is overdue. Returns whether `on_loss` is to be called: once, if the lock
    /// is lost and its holder has not given it up.
    pub(super) fn begin_report(&self) -> bool {
        let mut state = self.lock();
        let now = Clock.now();
        if now >= state.overdue_at() {
            state.record_if_due(now);
            self.lost.notify_all();
        }
        let is_lost = state.loss.is_some() && !matches!(state.lease_at, LeaseAt::Gone);
        is_lost && !replace(&mut state.was_reported, true) && state.on_loss.is_some()
    }

    /// Calls `on_loss`, after [`begin_report`](RenewedLock::begin_report), unless the holder has
    /// given the lock up.
    pub(super) fn call_on_loss(&self) {
        let state = self.lock();
        let (Some(cause), Some(on_loss)) = (state.loss, state.on_loss.clone()) else {
            return;
        };
        let loss = self.report(&state, cause, Clock.now());
        drop(state);
        // The callback is the caller's; the panic hook has reported the panic.
        let _ = catch_unwind(AssertUnwindSafe(|| on_loss(&loss)));
    }
}

/// For the tests of the renewal.
#[cfg(test)]
mod tests {
    use super::*;

    impl RenewedLock {
        /// When its validity ends.
        pub(in super::super) fn end(&self) -> Moment {
            self.lock().deadline
        }

        /// Sets the moment of the notice.
        pub(in super::super) fn report_at(&self, at: Moment) {
            self.lock().report_at = at;
        }

        /// Acts like a thread that holds the mutex.
        pub(in super::super) fn hold(&self) -> impl Sized {
            self.lock()
        }
    }
}
