//! The types that `leader_follower` imports from `sync`, on shuttle. References are counted by std:
//! their count orders nothing here.

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

/// Enough for each thread of a scene to have its own slot.
const SLOTS: usize = 8;

/// The slots to notify.
#[derive(Default)]
pub struct WakeSet([bool; SLOTS]);

impl WakeSet {
    pub fn insert(&mut self, slot: u8) {
        self.0[usize::from(slot) % SLOTS] = true;
    }
}

/// Like the one of the library, it counts the notifications of each slot.
pub struct EventCount([(sync::Mutex<u32>, sync::Condvar); SLOTS]);

impl EventCount {
    pub fn new() -> EventCount {
        EventCount(std::array::from_fn(|_| (sync::Mutex::new(0), sync::Condvar::new())))
    }

    pub fn prepare(&self, slot: u8) -> u32 {
        *self.0[usize::from(slot) % SLOTS].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A wait with a limit waits for no notification: the scheduler decides how much happens before
    /// this thread continues.
    pub fn wait(&self, slot: u8, seen: u32, limit: Option<Duration>) {
        if limit.is_some() {
            TICKS.with(|ticks| ticks.set(ticks.get() + 1));
            return shuttle::thread::yield_now();
        }
        let (count, changed) = &self.0[usize::from(slot) % SLOTS];
        let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count == seen {
            count = changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn notify(&self, wake: WakeSet) {
        for (at, _) in wake.0.iter().enumerate().filter(|(_, is_in)| **is_in) {
            let (count, changed) = &self.0[at];
            *count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            changed.notify_all();
        }
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

    pub fn notify_one(&self) {
        self.0.notify_one();
    }
}
