//! The locks and the event count of `leader_follower`. Its model, in tests/handover, replaces them.

pub(super) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
pub(super) use std::thread::yield_now;

pub(super) use crate::sys::event_count::{EventCount, WakeSet};
