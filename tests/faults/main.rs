//! Real faults of real `redis-server` processes: frozen, cut off, killed, restarted empty, demoted,
//! flushed, out of memory, unable to save, with clocks that jump.
//!
//! Each protection has a control beside it: the same scenario with the protection switched off, or
//! by hand without it, must show the violation. A control that shows none is as much a failure as
//! a protection that does not protect.
//!
//! After a fault has healed, what dead attempts left must be gone within a second: their keys have
//! a TTL of ten minutes, so nothing but their release can be the reason. The measured times are
//! printed; `cargo test --test faults -- --nocapture` shows them.

mod clocks;
#[cfg(target_os = "linux")]
mod fencing;
mod fencing_load;
mod fencing_order;
mod fencing_rounds;
mod forgotten;
mod frozen;
mod gate;
#[cfg(target_os = "linux")]
mod handed_over;
mod healing;
mod processes;
mod promoted;
mod refusals;
mod restarts;
mod roles;
mod scene;
mod sentinel;
#[cfg(feature = "env")]
mod service;
mod wire;

/// The scripts, as they are sent.
#[allow(dead_code, reason = "not all of them are sent by hand")]
mod scripts {
    include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
}
