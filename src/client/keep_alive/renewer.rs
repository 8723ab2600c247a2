//! The thread that waits for losses of a client's renewed locks. It exists while locks are renewed,
//! and for one to two seconds after the last. It calls nothing of the caller's: see `callbacks.rs`.
//!
//! The engine renews the locks, on whichever thread runs the loop; that is this one while no other
//! uses the client. If the thread that runs the loop is delayed, this one notices itself that a
//! lock was not renewed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::KeepAliveErrorKind;
use super::callbacks::Callbacks;
use super::renewed_lock::RenewedLock;
use crate::client::Shared;
use crate::client::leader_follower::Limit;
use crate::client::loop_work::{Order, Outcome, Watch};
use crate::moment::Moment;
use crate::proto::OPERATIONS_MAX;
use crate::sys::clock::Clock;

/// The most locks that one client renews: as many again can be acquired at the same time.
const LOCKS_MAX: usize = OPERATIONS_MAX / 2;
/// The longest sleep. After the last lock, the thread ends its present sleep, and then sleeps once.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Identifies a renewed lock; never reused.
pub(super) type Key = u64;

pub(in crate::client) struct Renewer {
    /// A thread that holds this mutex does not block.
    state: Mutex<RenewerState>,
    /// Notified when the first lock is renewed.
    changed: Condvar,
    callbacks: Arc<Callbacks>,
}

struct RenewerState {
    locks: BTreeMap<Key, Arc<RenewedLock>>,
    /// How many locks have been renewed so far.
    so_far: Key,
    /// The client, while it renews locks: without locks, the thread must not keep the client alive.
    shared: Option<Arc<Shared>>,
    has_thread: bool,
}

impl Renewer {
    pub(in crate::client) fn new(callbacks: Arc<Callbacks>) -> Renewer {
        let state =
            RenewerState { locks: BTreeMap::new(), so_far: 0, shared: None, has_thread: false };
        Renewer { state: Mutex::new(state), changed: Condvar::new(), callbacks }
    }

    /// Another lock will be renewed. [`remove`](Renewer::remove) must follow.
    pub(super) fn add(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        renewed: &Arc<RenewedLock>,
    ) -> Result<Key, KeepAliveErrorKind> {
        let mut state = self.lock();
        if state.locks.len() >= LOCKS_MAX {
            return Err(KeepAliveErrorKind::TooMany);
        }
        if !state.has_thread {
            let renewer = Arc::clone(self);
            let thread = thread::Builder::new().name("muxlock-keeper".into());
            let started = thread.spawn(move || renewer.run());
            started.map_err(|error| KeepAliveErrorKind::Thread(error.kind()))?;
            state.has_thread = true;
        }
        let key = state.so_far;
        state.so_far += 1;
        state.locks.insert(key, Arc::clone(renewed));
        if state.shared.is_none() {
            state.shared = Some(Arc::clone(shared));
            self.changed.notify_one();
        }
        Ok(key)
    }

    /// A lock is no longer renewed.
    pub(super) fn remove(&self, key: Key) {
        let mut state = self.lock();
        let renewed = state.locks.remove(&key);
        let shared = if state.locks.is_empty() { state.shared.take() } else { None };
        drop(state);
        // Dropped without the mutex: each may be the last reference.
        drop((renewed, shared));
    }

    fn run(&self) {
        Callbacks::mark_renewal_thread();
        // A panic ends one iteration only: other locks rely on the thread.
        let mut check_at = Moment::START;
        let mut turn = || catch_unwind(AssertUnwindSafe(|| self.turn(&mut check_at)));
        while !matches!(turn(), Ok(Turn::Last)) {}
    }

    fn turn(&self, check_at: &mut Moment) -> Turn {
        let shared = self.lock().shared.clone();
        let Some(shared) = shared else {
            return self.idle();
        };
        if Clock.now() >= *check_at {
            *check_at = self.report_overdue();
        }
        let watch = Order::Watch(Watch::Losses(*check_at));
        let losses: Vec<_> = match shared.threads.run(watch, Limit::At(*check_at)) {
            Some(Outcome::Losses(losses)) => {
                // Without a loss, the limit is reached, or a lock was added that is overdue
                // earlier.
                if losses.is_empty() {
                    *check_at = Moment::START;
                }
                losses
            }
            None => Vec::new(),
            Some(_) => unreachable!("the losses were asked for"),
        };
        self.report(losses);
        Turn::More
    }

    /// Reports losses that the loop has not reported: the thread that runs it may be delayed.
    /// Returns when to look again: when the next loss is overdue if nothing is renewed until then.
    /// Most locks are renewed long before.
    fn report_overdue(&self) -> Moment {
        let locks: Vec<Arc<RenewedLock>> = self.lock().locks.values().map(Arc::clone).collect();
        let (now, mut check_at) = (Clock.now(), Moment::END);
        let is_due = |renewed: &Arc<RenewedLock>| {
            let overdue_at = renewed.overdue_at();
            if let Some(at) = overdue_at.filter(|at| now < *at) {
                check_at = check_at.min(at);
            }
            overdue_at.is_some_and(|at| now >= at)
        };
        let (due, others): (Vec<_>, Vec<_>) = locks.into_iter().partition(is_due);
        drop(others);
        self.report(due);
        check_at.min(now.after(SLEEP_MAX))
    }

    /// Waits for a lock, and ends the thread if none comes.
    fn idle(&self) -> Turn {
        let is_idle = |state: &mut RenewerState| state.shared.is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), SLEEP_MAX, is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.shared.is_none() {
            state.has_thread = false;
            return Turn::Last;
        }
        Turn::More
    }

    /// Records the losses, and has the callbacks called.
    fn report(&self, losses: Vec<Arc<RenewedLock>>) {
        for renewed in losses {
            if renewed.begin_report() {
                self.callbacks.call_on_loss(renewed);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, RenewerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Turn {
    More,
    Last,
}

/// For the tests of the renewal.
#[cfg(test)]
mod tests {
    use super::*;

    impl Renewer {
        /// Acts like a thread that holds the mutex.
        pub(in super::super) fn hold(&self) -> impl Sized {
            self.lock()
        }
    }
}
