//! Calls of the caller's code that no deadline may depend on: `on_loss`, and the logger where the
//! thread that watches the renewals would have to call it. They run on threads that exist for as
//! long as there are calls.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::renewed_lock::RenewedLock;
use crate::mux::Records;

/// How many calls of one client run at the same time; further ones wait for them.
const THREADS_MAX: usize = 16;

thread_local! {
    static IS_RENEWAL_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// The calls of one client.
#[derive(Default)]
pub(in crate::client) struct Callbacks {
    /// A thread that holds this mutex does not block.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// At most each renewed lock of the client, once.
    lost: VecDeque<Arc<RenewedLock>>,
    records: Records,
    /// Records are written in their order, so by one thread at a time.
    is_writing: bool,
    threads: usize,
}

enum Call {
    OnLoss(Arc<RenewedLock>),
    Logger(Records),
}

impl State {
    fn next(&mut self) -> Option<Call> {
        if !self.is_writing {
            if let Some(records) = self.records.take() {
                self.is_writing = true;
                return Some(Call::Logger(records));
            }
        }
        self.lost.pop_front().map(Call::OnLoss)
    }
}

impl Callbacks {
    /// This thread must not wait for the caller's code.
    pub(super) fn mark_renewal_thread() {
        IS_RENEWAL_THREAD.set(true);
    }

    /// Calls `on_loss` of a lost lock.
    pub(super) fn call_on_loss(self: &Arc<Self>, renewed: Arc<RenewedLock>) {
        let mut state = self.lock();
        state.lost.push_back(renewed);
        self.start(state);
    }

    /// The records that this thread may write itself: on the thread that watches renewals none,
    /// because another one writes them.
    pub(in crate::client) fn write_elsewhere(
        self: &Arc<Self>,
        records: Records,
    ) -> Option<Records> {
        if !IS_RENEWAL_THREAD.get() {
            return Some(records);
        }
        let mut state = self.lock();
        state.records.append(records);
        self.start(state);
        None
    }

    /// Starts a thread for the last call, unless there are enough. If none can be started, this one
    /// makes the calls.
    fn start(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.threads >= THREADS_MAX {
            return;
        }
        state.threads += 1;
        drop(state);
        let callbacks = Arc::clone(self);
        let thread = thread::Builder::new().name("muxlock-callback".into());
        if thread.spawn(move || callbacks.run()).is_err() {
            self.run();
        }
    }

    /// Makes calls until none is left.
    fn run(&self) {
        loop {
            let mut state = self.lock();
            let Some(call) = state.next() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            let is_record = matches!(call, Call::Logger(_));
            // A panic of the caller's code, or of a captured value as it is dropped, ends one call
            // only; the panic hook has reported it.
            let _ = catch_unwind(AssertUnwindSafe(|| match call {
                Call::OnLoss(renewed) => renewed.call_on_loss(),
                Call::Logger(records) => records.write(),
            }));
            if is_record {
                self.lock().is_writing = false;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
