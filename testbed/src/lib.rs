//! What the tests, benches and fuzz targets of muxlock and its tool stand on.
//!
//! Servers that misbehave ([`scripted`], [`proxy`]), masters in memory on virtual time
//! ([`memory`]), the bodies of the fuzz targets ([`fuzz`]), bugs to plant ([`bug`]), passwords in
//! addresses ([`secrets`]), certificates, bounds on real time, children and folders. Real masters
//! are in `muxlock::testing`.

#[cfg(feature = "tls")]
mod authority;
pub mod bug;
mod child;
#[cfg(feature = "locks")]
mod client;
#[cfg(all(feature = "locks", unix))]
mod clocks;
#[cfg(feature = "locks")]
pub mod fuzz;
#[cfg(feature = "locks")]
pub mod memory;
#[cfg(feature = "locks")]
mod mute;
pub mod proxy;
mod rights;
pub mod scripted;
pub mod secrets;
#[cfg(feature = "locks")]
mod sentinel;
#[cfg(feature = "locks")]
mod site;
#[cfg(feature = "locks")]
mod strangers;
mod system;
mod time;

use std::time::Duration;

#[cfg(feature = "locks")]
use time::POLL_INTERVAL;

#[cfg(feature = "tls")]
pub use authority::{Authority, start_with_tls, tls_addr};
pub use child::{Again, alone, built_example, is_child, re_execute, report_to_parent, run_child};
#[cfg(feature = "locks")]
pub use client::{
    DELETING_SERVER_VARIABLE, all_ready, ask, count, deleting_server, end_connection, info,
    is_older_than, outcomes, patient, ready, scripts_write_anyway, skip, with_login,
};
#[cfg(all(feature = "locks", unix))]
pub use clocks::Clocks;
#[cfg(feature = "locks")]
pub use mute::{Mute, commands_of_scripts};
pub use rights::documented_rights;
#[cfg(feature = "locks")]
pub use sentinel::Sentinel;
#[cfg(feature = "locks")]
pub use site::{FAILED_OVER, Site};
#[cfg(feature = "locks")]
pub use strangers::{Reticent, Stranger, strangers};
pub use system::Folder;
#[cfg(target_os = "linux")]
pub use system::{descriptors, status_figure};
pub use time::{Heavy, Stopwatch, heavy, pause, soon, timed, waited, within};

/// A time to live that no test waits for: a key that is gone earlier was deleted.
pub const TTL: Duration = Duration::from_secs(30);
/// A timeout that no test waits for: a call that returns earlier did not wait for it.
pub const PATIENT: Duration = Duration::from_secs(20);
/// The longest time of an event that usually takes milliseconds, on a busy machine.
pub const SOON: Duration = Duration::from_secs(5);
