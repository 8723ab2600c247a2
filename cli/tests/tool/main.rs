//! The command-line tool over real `redis-server` processes: what it prints, its exit codes, and
//! what faults do to what it runs.
//!
//! The harness runs one file after the other, by name, and several tests at a time. Tests that load
//! the machine, or judge how evenly it serves them, take turns: see `testbed::heavy`.

#![allow(missing_docs)]

mod cli;
mod demo;
mod doctor;
#[cfg(feature = "tls")]
mod doctor_tls;
#[cfg(target_os = "linux")]
mod holders;
mod inspect;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod list;
#[cfg(target_os = "linux")]
mod manual;
mod renamed;
#[cfg(target_os = "linux")]
mod revoke;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod run_descendants;
#[cfg(target_os = "linux")]
mod run_faults;
#[cfg(target_os = "linux")]
mod run_processes;
#[cfg(target_os = "linux")]
mod run_terminal;
#[cfg(target_os = "linux")]
mod run_waiting;
mod secrets;
mod sentinel;
#[cfg(target_os = "linux")]
mod settings;
#[cfg(target_os = "linux")]
mod step;
mod strangers;
