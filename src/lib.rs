//! Distributed locks over independent Redis masters, with the Redlock algorithm, from one
//! non-blocking event loop: no async runtime, and no background thread unless it is asked for, but
//! for one that looks up the host name of a master, and ends with that.
//!
//! ```no_run
//! use muxlock::Redlock;
//! use std::time::Duration;
//!
//! let redlock = Redlock::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
//!
//! // One round: granted, or an error that says what every master said.
//! let lock = redlock.try_lock("invoice:42", Duration::from_secs(10))?;
//! println!("held for another {:?}", lock.remaining());
//! // ... do the work, well within `lock.remaining()` ...
//! lock.unlock()?;
//!
//! // Or wait for somebody else to finish, for at most five seconds.
//! let ttl = Duration::from_secs(10);
//! match redlock.try_lock_for("invoice:42", ttl, Duration::from_secs(5)) {
//!     Ok(lock) => drop(lock), // releases without waiting
//!     Err(error) if error.is_contended() => println!("somebody else has it"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a lock guarantees
//! [`Redlock::try_lock`] writes `SET key token NX PX ttl` to every master at once and decides at
//! the first moment at which the outcome is inevitable. A [`LockGuard`] means: a majority of the
//! masters held the key with this guard's token, and will until [`LockGuard::remaining`] is zero.
//!
//! Redlock gives mutual exclusion under bounded clock-rate error, bounded clock steps, bounded
//! pauses, and no master forgetting a live lock within
//! [`max_ttl`](Builder::max_ttl). **Only a fencing token checked by the resource protects without
//! timing assumptions.**
//!
//! # Masters that may have forgotten a lock
//! A master that was restarted without its data would grant a second time what is still held. So
//! each master is asked who it is when it is connected to, and one that may have forgotten a lock
//! is in *quarantine* until every such lock is over: it is sent everything, and nothing that it
//! says counts. See [`RestartGuard`]; it is on by default. **In development, where masters were
//! started a moment ago, switch it off**: `redis://127.0.0.1?restart_guard=off`, or
//! [`Builder::restart_guard`].
//!
//! A master that cannot vote as it is (a replica, a cluster node, one that is loading its data or
//! may evict locks, the same server twice) is refused; [`Unfit`] says why.
//!
//! # Watching it
//! [`Redlock::stats`] counts since the client was made, and [`Redlock::nodes`] tells what is known
//! of each master, its latency included. Both are to be sampled; for whatever collects metrics:
//!
//! ```no_run
//! use muxlock::{NodeState, Redlock};
//!
//! /// `counter` and `gauge` are those of the metrics library, with a name, a label and a value.
//! fn sample(
//!     redlock: &Redlock,
//!     counter: impl Fn(&'static str, &str, u64),
//!     gauge: impl Fn(&'static str, &str, f64),
//! ) {
//!     let stats = redlock.stats();
//!     // Somebody else has it, or too few masters answer: two different alarms.
//!     counter("lock_acquired_total", "", stats.acquired);
//!     counter("lock_contended_total", "", stats.contended);
//!     counter("lock_unavailable_total", "", stats.unavailable);
//!     counter("lock_late_total", "", stats.expired);
//!     for node in redlock.nodes() {
//!         gauge("master_votes", &node.address, f64::from(node.state == NodeState::Ready));
//!         gauge("master_debts", &node.address, node.debts as f64);
//!         if let Some(latency) = node.latency {
//!             gauge("master_latency_seconds", &node.address, latency.as_secs_f64());
//!         }
//!     }
//! }
//! ```
//!
//! Records of the `log` crate have the target `muxlock`: `warn` for a master that may not vote,
//! with the reason, and for what its user may not do; `debug` for connections that end; `error` if
//! the operating system fails. A token or a password is in none.
//!
//! # What it does not
//! - A paused process (a debugger, a swapped-out or suspended virtual machine) does not know that
//!   its lock is over until it looks again.
//! - A wall clock of a master that is stepped forward lets keys expire early. A client notices if
//!   it has asked for that master's time before, and not within the last 10 ms; one that starts
//!   afterwards cannot.
//! - A master that is flushed is noticed only with [`Builder::flush_marker`], and one that loses a
//!   single key never.
//! - It is not reentrant, not fair, and not for Redis Cluster, replicas or Sentinel addresses.
//!
//! # Names
//! The handle speaks like `std::sync` and `parking_lot`; the engine speaks like the algorithm.
//!
//! | here | in the algorithm |
//! |---|---|
//! | [`try_lock`](Redlock::try_lock), [`try_lock_for`](Redlock::try_lock_for) | acquire |
//! | [`extend`](LockGuard::extend), [`ensure`](LockGuard::ensure) | extend |
//! | [`keep_alive`](LockGuard::keep_alive) | extend, again and again |
//! | [`unlock`](LockGuard::unlock), dropping the guard | release |
//! | resource | key; *resource name* |
//! | [`LockToken`] | random value: says who holds a lock, and is *not* a fencing token |
//! | node | instance, master |
//!
//! # Several threads, or an event loop
//! A [`Redlock`] is cheap to clone and shared by any number of threads over one connection per
//! master. A program with a [`mio`] loop of its own takes a [`Multiplexer`] as a guest into it; to
//! any other loop, a [`Standalone`] one is a file descriptor and a timeout. Whoever wants neither
//! drives the engine in [`proto`] himself.
//!
//! # Work that outlasts the TTL
//! [`LockGuard::ensure`] extends a lock between small steps. [`LockGuard::keep_alive`] has it
//! renewed by a thread that all such locks of a client share, and tells the holder of a loss before
//! the lock ends; see [`KeepAlive`] and [`KeptLock`].
//!
//! # Rules
//! The rules that the code follows, `R1` to `R37`, are in `docs/rules.md`, each with its tests.
//!
//! # Features
//! - `cli`: the command-line tool. The library has none of its dependencies.

mod client;
mod clock;
mod config;
mod entropy;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
#[allow(missing_docs)]
pub mod fuzzing;
#[cfg(all(test, not(fuzzing)))]
mod fuzzing;
mod moment;
mod mux;
mod process;
pub mod proto;
mod quorum;
mod resource;
#[doc(hidden)]
pub mod resp;
mod token;
mod validity;

pub use client::{
    HandOverError, KeepAlive, KeepAliveError, KeepAliveErrorKind, KeptLock, LockGuard, LockParts,
    Loss, LossCause, Redlock,
};
pub use config::{Builder, Config, Heal, RestartGuard, Retry};
pub use error::{
    ConfigError, ConnectError, LockError, LockErrorKind, NodeOutcome, NodeReport, Phase,
    ProtocolError, Quarantine, QuarantineCause, ServerErrorKind, Unfit,
};
pub use moment::Moment;
pub use mux::{Multiplexer, Standalone};
pub use proto::{
    Cancelled, Done, Lease, NodeState, NodeStatus, OpId, ReleaseWith, Released, Stats,
};
pub use quorum::{NODES_MAX, quorum};
pub use resource::{RESOURCE_BYTES_MAX, Resource};
pub use token::LockToken;

/// The examples of the README and of `docs` compile.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/guarantees.md")]
    struct Guarantees;
    #[doc = include_str!("../docs/operating.md")]
    struct Operating;
}
