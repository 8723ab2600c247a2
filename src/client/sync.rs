//! The locks of the crew. Its model, in tests/handover, puts its own in their place.

pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
pub(super) use std::thread::yield_now;
