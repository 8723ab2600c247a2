//! Distributed locks over independent Redis masters, with the Redlock algorithm, from one
//! non-blocking event loop. There is no async runtime. There is no background thread either, except
//! one that renews locks, if the program asks for it. A lookup of a host name has its own thread,
//! which ends with the lookup.
//!
//! ```no_run
//! use muxlock::Redlock;
//! use std::time::Duration;
//!
//! let redlock = Redlock::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
//!
//! // One round: granted, or an error with the answer of every master.
//! let lock = redlock.try_lock("invoice:42", Duration::from_secs(10))?;
//! println!("held for another {:?}", lock.remaining());
//! // ... do the work, well within `lock.remaining()` ...
//! lock.unlock()?;
//!
//! // Or wait until the holder releases it, for at most five seconds.
//! let ttl = Duration::from_secs(10);
//! match redlock.try_lock_for("invoice:42", ttl, Duration::from_secs(5)) {
//!     Ok(lock) => drop(lock), // releases without waiting
//!     Err(error) if error.is_contended() => println!("another client has it"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a lock guarantees
//! [`Redlock::try_lock`] writes `SET key token NX PX ttl` to every master at once. It decides as
//! soon as the outcome is inevitable. A [`LockGuard`] means: a majority of the masters held the key
//! with this guard's token, and will hold it until [`LockGuard::remaining`] is zero.
//!
//! Redlock gives mutual exclusion under four assumptions. Clock rates differ by a bounded amount.
//! Clocks make only bounded steps. Pauses are bounded. No master forgets a live lock within
//! [`max_ttl`](Builder::max_ttl). **Only a fencing token that the resource checks protects without
//! timing assumptions.**
//!
//! # Masters that may have forgotten a lock
//! A master that was restarted without its data would grant a lock a second time. So the client
//! identifies each master when it connects. A master that may have forgotten a lock is in
//! *quarantine* until every such lock has expired. It is sent every command, but none of its
//! answers counts. See [`RestartGuard`]; it is on by default. **In development, where masters were
//! started a moment ago, switch it off**: `redis://127.0.0.1?restart_guard=off`, or
//! [`Builder::restart_guard`].
//!
//! A master that cannot vote in its present state is refused: a replica, a cluster node, a master
//! that is loading its data or may evict locks, the same server twice. [`Unfit`] gives the reason.
//!
//! # Observability
//! [`Redlock::stats`] counts since the client was made. [`Redlock::nodes`] reports what is known of
//! each master, including its latency. Sample both from your metrics library:
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
//!     // Another client holds it, or too few masters answer: two different alarms.
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
//! Records of the `log` crate have the target `muxlock`. Level `warn`: a master that may not vote,
//! with the reason, and a command that its user may not run. Level `debug`: connections that end.
//! Level `error`: failures of the operating system. No record contains a token or a password.
//!
//! # Limits
//! - A paused process (a debugger, a swapped-out or suspended virtual machine) does not notice that
//!   its lock has expired until it checks again.
//! - A master's wall clock that is stepped forward lets keys expire early. A client notices this if
//!   it has read that master's time before the step and not within the last 10 ms. A client that
//!   starts afterwards cannot notice it.
//! - A flush of a master is noticed only with [`Builder::flush_marker`]. The loss of a single key
//!   is never noticed.
//! - Locks are not reentrant and not fair. Redis Cluster, replicas and Sentinel addresses are not
//!   supported.
//!
//! # Names
//! The handle uses the verbs of `std::sync` and `parking_lot`; the engine uses those of the
//! algorithm.
//!
//! | here | in the algorithm |
//! |---|---|
//! | [`try_lock`](Redlock::try_lock), [`try_lock_for`](Redlock::try_lock_for) | acquire |
//! | [`extend`](LockGuard::extend), [`ensure`](LockGuard::ensure) | extend |
//! | [`keep_alive`](LockGuard::keep_alive) | extend, again and again |
//! | [`unlock`](LockGuard::unlock), dropping the guard | release |
//! | resource | key; *resource name* |
//! | [`LockToken`] | random value: identifies the holder, and is *not* a fencing token |
//! | node | instance, master |
//!
//! # Several threads, or an event loop
//! A [`Redlock`] is cheap to clone. Any number of threads share it over one connection per master.
//! A program with its own [`mio`] loop uses a [`Multiplexer`] as a guest in it. For any other loop,
//! a [`Standalone`] multiplexer is a file descriptor and a timeout. If you want neither, drive the
//! engine in [`proto`] yourself.
//!
//! # Work that outlasts the TTL
//! [`LockGuard::ensure`] extends a lock between small steps. [`LockGuard::keep_alive`] renews it on
//! a thread that all such locks of a client share. It reports a loss to the holder before the lock
//! ends; see [`KeepAlive`] and [`KeptLock`].
//!
//! # Rules
//! The rules that the code follows, `R1` to `R37`, are in `docs/rules.md`, each with its tests.
//!
//! # Features
//! - `testing`: real `redis-server` processes for your tests. It brings no dependency.
//! - `cli`: the command-line tool. The library needs none of its dependencies.

mod client;
mod config;
mod error;
mod moment;
mod mux;
mod outcome;
pub mod proto;
mod quorum;
mod resource;
#[doc(hidden)]
pub mod resp;
mod sys;
#[cfg(feature = "testing")]
pub mod testing;
mod token;
mod validity;

pub use client::{
    ConnectError, HandOverError, KeepAlive, KeepAliveError, KeepAliveErrorKind, KeptLock,
    LockGuard, LockParts, Loss, LossCause, Redlock,
};
pub use config::{Builder, Config, ConfigError, Heal, RestartGuard, Retry};
pub use error::{LockError, LockErrorKind};
pub use moment::Moment;
pub use mux::{Multiplexer, Standalone};
pub use outcome::{
    NodeOutcome, NodeReport, Phase, ProtocolError, Quarantine, QuarantineCause, ServerErrorKind,
    Unfit,
};
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
