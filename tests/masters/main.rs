//! The library over real `redis-server` processes.
//!
//! The harness runs one file after the other, by name, and several tests at a time. Tests that load
//! the machine, or judge how evenly it serves them, take turns: see `testbed::heavy`.

#![allow(missing_docs)]

#[cfg(feature = "cli")]
mod bench;
#[cfg(feature = "cli")]
mod cli;
mod counts;
mod deletes;
#[cfg(feature = "cli")]
mod demo;
#[cfg(feature = "cli")]
mod doctor;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod evict;
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
#[cfg(all(feature = "cli", target_os = "linux"))]
mod limits;
mod masters;
mod messages;
mod names;
mod own_value;
mod queue_scripts;
mod readers;
mod readiness;
mod reentrant;
#[cfg(feature = "cli")]
mod renamed;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod run;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod run_descendants;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod run_faults;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod run_processes;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod run_terminal;
mod secrets;
mod swap;
mod testing;
#[cfg(target_os = "linux")]
mod threads;
mod turns;
mod waiting;

/// The scripts, as they are sent.
#[allow(dead_code, reason = "not all of them are sent by hand")]
mod scripts {
    include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
}
