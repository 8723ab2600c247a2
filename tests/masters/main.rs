//! The library over real `redis-server` processes.
//!
//! The harness runs one file after the other, by name, and several tests at a time. Tests that load
//! the machine, or judge how evenly it serves them, take turns: see `testbed::heavy`.

#![allow(missing_docs)]

mod counts;
mod credentials;
mod deletes;
mod endings;
mod examples;
mod fakes;
mod family;
mod fenced;
mod fencing;
mod fencing_scripts;
#[cfg(target_os = "linux")]
mod fork;
mod form_scripts;
mod guest;
#[cfg(target_os = "linux")]
mod hand_over;
mod inspect;
#[cfg(target_os = "linux")]
mod keep_alive;
mod masters;
mod messages;
mod names;
mod own_value;
mod queue_scripts;
mod readers;
mod readiness;
mod reentrant;
mod renamed;
mod secrets;
mod swap;
mod testing;
#[cfg(target_os = "linux")]
mod threads;
mod turns;
mod waiters;
mod waiting;

/// The scripts, as they are sent.
#[allow(dead_code, reason = "not all of them are sent by hand")]
mod scripts {
    include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
}
