//! What the crew takes from its parent, on shuttle. References are counted by std: their count
//! orders nothing here.

pub use std::sync::{Arc, PoisonError};

pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
pub use shuttle::thread::yield_now;
