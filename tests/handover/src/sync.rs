//! What the crew takes from its parent, on shuttle. References are counted by std: their count
//! orders nothing here.

use std::cell::Cell;
pub use std::sync::{Arc, PoisonError};

pub use shuttle::sync::{Condvar, Mutex, MutexGuard};

shuttle::thread_local! {
    static STEPS: Cell<usize> = Cell::new(0);
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
