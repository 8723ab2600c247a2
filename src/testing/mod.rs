//! Real Redis masters for tests: feature `testing`.
//!
//! [`Masters`] starts `redis-server` processes on free loopback ports. A test kills, freezes, thaws
//! and restarts them, to see what its program does when masters fail. Each process has a temporary
//! folder of its own and keeps nothing on disk. Dropping a [`Master`] ends its process, by its id,
//! and removes its folder. If the test's process is killed first, a small `sh` that waits beside
//! each folder does both.
//!
//! ```no_run
//! use muxlock::testing::Masters;
//! use muxlock::{Redlock, RestartGuard};
//! use std::time::Duration;
//!
//! let mut masters = Masters::start(3)?;
//! // The restart guard would wait: these masters were started a moment ago.
//! let builder = Redlock::builder().nodes(masters.urls()).restart_guard(RestartGuard::Off);
//! let redlock = builder.connect()?;
//!
//! // One master down: the other two are a quorum.
//! masters[0].kill()?;
//! let lock = redlock.try_lock("invoice:42", Duration::from_secs(10))?;
//! lock.unlock()?;
//!
//! // Two masters down: no quorum, and no lock.
//! masters[1].freeze()?;
//! let error = redlock.try_lock("invoice:42", Duration::from_secs(10)).unwrap_err();
//! assert!(error.is_unavailable());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/integration_test.rs` is a whole test. Put the feature under `[dev-dependencies]`, so
//! that your program is built without it:
//!
//! ```toml
//! [dev-dependencies]
//! muxlock = { version = "0.1", features = ["testing"] }
//! ```
//!
//! `redis-server` has to be on `PATH`, or be named by the environment variable
//! [`SERVER_VARIABLE`]. The module sends signals with `sh`, so it needs Unix. Its methods block,
//! for some seconds at most. It adds no dependency.

mod masters;
mod process;
mod query;

pub use masters::{Master, Masters};
pub use process::SERVER_VARIABLE;
pub use query::Value;
