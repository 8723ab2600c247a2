//! What the crew takes from its parent, on shuttle. References are counted by std: their count
//! orders nothing here.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::LockResult;
pub use std::sync::{Arc, PoisonError};
use std::time::Duration;

use shuttle::sync;

shuttle::thread_local! {
    static STEPS: Cell<usize> = Cell::new(0);
    static TICKS: Cell<u32> = Cell::new(0);
    static NUMBER: Cell<usize> = Cell::new(usize::MAX);
}

/// How often this thread has done something that takes time.
pub fn steps() -> usize {
    STEPS.with(Cell::get)
}

pub fn take_step() {
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

pub fn yield_now() {
    take_step();
    shuttle::thread::yield_now();
}

/// This thread's, if it was given one.
pub fn number() -> usize {
    NUMBER.with(Cell::get)
}

pub fn set_number(number: usize) {
    NUMBER.with(|cell| cell.set(number));
}

/// This thread's clock: it is one later after each wait that is limited.
pub fn ticks() -> u32 {
    TICKS.with(Cell::get)
}

pub struct Mutex<T>(sync::Mutex<T>);

pub struct MutexGuard<'a, T> {
    guard: sync::MutexGuard<'a, T>,
    mutex: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let guard = |guard| MutexGuard { guard, mutex: self };
        self.0.lock().map(guard).map_err(|error| PoisonError::new(guard(error.into_inner())))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

pub struct Condvar(sync::Condvar);

impl Condvar {
    pub fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let MutexGuard { guard, mutex } = guard;
        let wrap = |guard| MutexGuard { guard, mutex };
        self.0.wait(guard).map(wrap).map_err(|error| PoisonError::new(wrap(error.into_inner())))
    }

    /// It does not wait for the bell: how much happens before this thread goes on, and whether the
    /// bell would have rung by then, is up to the scheduler.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        let mutex = guard.mutex;
        drop(guard);
        TICKS.with(|ticks| ticks.set(ticks.get() + 1));
        let wrap = |guard| (guard, ());
        mutex.lock().map(wrap).map_err(|error| PoisonError::new(wrap(error.into_inner())))
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }
}
