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

/// So many places are enough for the threads of a scene to have one each.
const PLACES: usize = 8;

/// Where to ring.
#[derive(Default)]
pub struct Places([bool; PLACES]);

impl Places {
    pub fn insert(&mut self, place: u8) {
        self.0[usize::from(place) % PLACES] = true;
    }
}

/// As the one of the library: it counts the rings at each place.
pub struct Bell([(sync::Mutex<u32>, sync::Condvar); PLACES]);

impl Bell {
    pub fn new() -> Bell {
        Bell(std::array::from_fn(|_| (sync::Mutex::new(0), sync::Condvar::new())))
    }

    pub fn listen(&self, place: u8) -> u32 {
        *self.0[usize::from(place) % PLACES].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A wait with a limit does not wait for the bell: how much happens before this thread goes on,
    /// and whether the bell would have rung by then, is up to the scheduler.
    pub fn wait(&self, place: u8, heard: u32, limit: Option<Duration>) {
        if limit.is_some() {
            TICKS.with(|ticks| ticks.set(ticks.get() + 1));
            return shuttle::thread::yield_now();
        }
        let (rings, rung) = &self.0[usize::from(place) % PLACES];
        let mut rings = rings.lock().unwrap_or_else(PoisonError::into_inner);
        while *rings == heard {
            rings = rung.wait(rings).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn ring(&self, places: Places) {
        for (at, _) in places.0.iter().enumerate().filter(|(_, is_in)| **is_in) {
            let (rings, rung) = &self.0[at];
            *rings.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            rung.notify_all();
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
