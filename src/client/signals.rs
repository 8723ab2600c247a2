//! Signals that end waits from outside of the loop: a waiter that is cancelled, or a client that is
//! closed. Raising a signal stores two flags and wakes the loop. It takes no mutex and allocates
//! nothing, so a signal handler may do it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::leader_follower::Wake;
use crate::lock_error::LockErrorKind;
use crate::sys::process::OwnerProcess;

/// Whether the waits that share this were cancelled. It never becomes `false` again.
#[derive(Debug, Default)]
pub(super) struct Cancel(AtomicBool);

impl Cancel {
    pub(super) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

pub(super) struct Signals {
    is_closed: AtomicBool,
    /// Every lock of the client was released.
    pub(super) is_released: AtomicBool,
    /// Raised since the loop last looked.
    is_raised: AtomicBool,
    waker: mio::Waker,
}

impl Signals {
    pub(super) fn new(waker: mio::Waker) -> Signals {
        let [is_closed, is_released, is_raised] = [(); 3].map(|()| AtomicBool::new(false));
        Signals { is_closed, is_released, is_raised, waker }
    }

    /// Ends the waits that share this. The loop is woken only in the process that it belongs to
    /// (R24).
    pub(super) fn cancel(&self, cancel: &Cancel, owner: OwnerProcess) {
        cancel.0.store(true, Ordering::Release);
        if owner.is_current() {
            self.raise();
        }
    }

    /// Ends all waits.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.raise();
    }

    /// The loop checks once; the flags must be stored before.
    fn raise(&self) {
        self.is_raised.store(true, Ordering::Release);
        self.wake();
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether to look for waits that have to end.
    #[inline]
    pub(super) fn take_raised(&self) -> bool {
        self.is_raised.load(Ordering::Relaxed) && self.is_raised.swap(false, Ordering::AcqRel)
    }

    /// Why an acquisition must end, or must not begin.
    #[inline]
    pub(super) fn verdict(&self, cancel: Option<&Cancel>) -> Option<LockErrorKind> {
        if self.is_closed() {
            return Some(LockErrorKind::Closed);
        }
        cancel.is_some_and(Cancel::is_cancelled).then_some(LockErrorKind::Cancelled)
    }

    fn wake(&self) {
        // It fails only if the kernel's counter is full, and then the waiting thread is awake
        // already.
        let _ = self.waker.wake();
    }
}

impl Wake for Arc<Signals> {
    fn wake(&self) {
        Signals::wake(self);
    }
}
