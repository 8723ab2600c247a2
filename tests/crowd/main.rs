//! Crowds of processes that wait for one lock, on real masters, with real faults: processes and
//! masters that are stopped or killed, keys and rights that are taken away, clients of other makes.
//!
//! Each contender is a process of this binary, with a client of its own. In every scene, no two
//! hold the lock at the same time. What a wait in the queue is better at has a control beside it:
//! the same scene with `Waiting::Retry` must show the harm.
//!
//! The bounds tell harm from no harm on a busy machine with two cores. They are far from what is
//! measured, which is printed: `cargo test --test crowd -- --nocapture` shows it.

#![cfg(target_os = "linux")]

mod contender;
mod ends;
mod fair;
mod far;
mod foreign;
mod pollers;
mod queue_nodes;
mod report;
mod rights;
mod scene;
mod servers;
mod stopped;

/// The scripts, as they are sent.
#[allow(dead_code, reason = "not all of them are sent by hand")]
mod scripts {
    include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
}
