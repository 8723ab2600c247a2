//! The locks of the crew. Its model, in tests/handover, replaces them.

pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
pub(super) use std::thread::yield_now;
