//! Real Redis masters for tests: feature `testing`.
//!
//! [`Masters`] starts `redis-server` processes on free loopback ports. A test kills, freezes, thaws
//! and restarts them, to see how the program under test behaves when masters fail. Each process has
//! its own temporary folder and no persistence. Dropping a [`Master`] kills its process, by its id,
//! and removes its folder. If the test process is killed first, a helper process (`sh`) cleans up:
//! it kills the server and removes the folder.
//!
//! ```no_run
//! use muxlock::testing::Masters;
//! use muxlock::{Redlock, RestartGuard};
//! use std::time::Duration;
//!
//! let mut masters = Masters::start(3)?;
//! // With the restart guard, these new masters would not vote for about 31 s.
//! let builder = Redlock::builder().nodes(masters.urls()).restart_guard(RestartGuard::Off);
//! let redlock = builder.connect()?;
//!
//! // One master down: the other two are a quorum.
//! masters[0].kill()?;
//! let lock = redlock.try_lock("invoice:42", Duration::from_secs(10))?;
//! assert!(lock.unlock()?.was_held());
//!
//! // Two masters down, one killed and one frozen: no quorum, and no lock.
//! masters[1].freeze()?;
//! let error = redlock.try_lock("invoice:42", Duration::from_secs(10)).unwrap_err();
//! assert!(error.is_unavailable());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/testing.rs` is a whole test. Put the feature under `[dev-dependencies]`, so
//! that your program is built without it:
//!
//! ```toml
//! [dev-dependencies]
//! muxlock = { version = "0.1", features = ["testing"] }
//! ```
//!
//! `redis-server` must be on `PATH`; otherwise the environment variable `MUXLOCK_REDIS_SERVER`
//! ([`SERVER_VARIABLE`]) must name it. The module sends signals with `sh`, so it needs Unix. Its
//! methods block: starting a server takes up to 10 s for each of up to 5 ports that are tried, and
//! the others up to 10 s. It adds no dependency.

mod errors;
mod masters;
mod process;
mod query;

pub use masters::{Master, Masters};
pub use process::SERVER_VARIABLE;
pub use query::Value;
