//! Distributed locks over independent Redis masters, with the Redlock algorithm. One non-blocking
//! event loop does the I/O, without an async runtime. Background threads run only to renew locks,
//! to look up host names and to watch Sentinels.
//!
//! # Quick start
//! ```no_run
//! use muxlock::Redlock;
//! use std::time::Duration;
//!
//! let redlock = Redlock::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
//!
//! // One attempt: a lock, or an error that lists the answer of every master.
//! let lock = redlock.try_lock("invoice:42", Duration::from_secs(10))?;
//! println!("held for another {:?}", lock.remaining());
//! // ... finish the work well before `lock.remaining()` reaches zero ...
//! let released = lock.unlock()?;
//! assert!(released.was_held(), "another client might have held the lock");
//!
//! // Or wait until the holder releases it, for at most five seconds.
//! let ttl = Duration::from_secs(10);
//! match redlock.try_lock_for("invoice:42", ttl, Duration::from_secs(5)) {
//!     Ok(lock) => drop(lock), // releases without waiting
//!     Err(error) if error.is_contended() => println!("another holder has it"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Servers in development have often just been started.** A client ignores their votes for about
//! 31 s (see [below](#restarted-masters)). To avoid this wait there, write
//! `redis://127.0.0.1?restart_guard=off`.
//!
//! # Guarantees
//! [`Redlock::try_lock`] sends `SET key token NX PX ttl` to all masters at the same time and
//! returns as soon as the result is certain. On success, a majority of the masters has the key.
//! Until [`LockGuard::remaining`] is zero, only one client can hold the lock if these conditions
//! are met:
//!
//! - Clock rates of clients and masters differ by at most 1 %.
//! - No wall clock of a master steps forward unnoticed.
//! - The holder stops when [`remaining`](LockGuard::remaining) is zero, even after a pause.
//! - No master loses a lock that is still held, or the restart guard detects the loss.
//! - All clients of a resource list the same independent masters and have the same
//!   [`max_ttl`](Builder::max_ttl).
//!
//! **Only a fencing token that the resource checks protects beyond these conditions.**
//! [`Redlock::fenced`] takes locks with such a token.
//!
//! # Restarted masters
//! A master that restarts without its data would grant a lock a second time. So the client
//! identifies each master when it connects. A master that might have forgotten a lock is in
//! *quarantine* until every such lock has expired: the client still sends it every command, but
//! ignores its answers. [`RestartGuard`](settings::RestartGuard) has the details; the guard is on
//! by default. The client refuses replicas, cluster nodes, masters that are loading their data or
//! can evict locks, and duplicates. [`Unfit`](node::Unfit) gives the reason.
//!
//! # Kinds of lock
//! An attempt takes one majority round, for a permit up to nine. Each guard is a [`LockGuard`],
//! except for [`reentrant`](Redlock::reentrant), whose [`ReentrantGuard`] stays on its thread.
//!
//! | kind | call |
//! |---|---|
//! | plain | [`try_lock`](Redlock::try_lock), [`try_lock_for`](Redlock::try_lock_for) |
//! | with a fencing token | [`fenced`](Redlock::fenced) |
//! | several resources, all or none | [`try_lock_all`](Redlock::try_lock_all) |
//! | read lock, write lock | [`try_read`](Redlock::try_read), [`try_write`](Redlock::try_write) |
//! | a limited number of holders | [`semaphore`](Redlock::semaphore) |
//! | with an owner value in the key | [`try_lock_as`](Redlock::try_lock_as) |
//! | reentrant, through one [`Reentrant`] | [`reentrant`](Redlock::reentrant) |
//!
//! # Longer work, threads and event loops
//! [`LockGuard::ensure`] extends a lock between small steps. [`LockGuard::keep_alive`] renews it
//! automatically; see [`KeptLock`]. If a renewal fails, the holder is notified before the lock
//! expires.
//!
//! A [`Redlock`] is cheap to clone, and all threads share one connection per master. For a loop of
//! [`mio`] 1, use a [`Multiplexer`]. For another event loop, [`Standalone`] provides a file
//! descriptor and a timeout. Or drive the engine in [`proto`] yourself. For async
//! code, see [`guide::async_code`]. A [`LockGuard`] is `Send` and `Sync`, and dropping it never
//! blocks.
//!
//! [`Redlock::waiter`] gives waits that another thread or a signal handler can cancel, and
//! [`Redlock::close`] ends all waits of a client. Every error of a call converts into [`Error`].
//! Its [`kind`](Error::kind) shows the caller which step comes next. [`Redlock::inspect`] shows the
//! holder of a lock.
//!
//! # Monitoring
//! [`Redlock::stats`] returns counters since the client was created, and [`Redlock::nodes`] the
//! status of each master. Sample both from your metrics library:
//!
//! ```no_run
//! use muxlock::Redlock;
//! use muxlock::node::NodeState;
//!
//! /// `counter` and `gauge` stand for your metrics library: a name, a label and a value. The value
//! /// of a counter is its total.
//! fn sample(
//!     redlock: &Redlock,
//!     counter: impl Fn(&'static str, &str, u64),
//!     gauge: impl Fn(&'static str, &str, f64),
//! ) {
//!     let stats = redlock.stats();
//!     counter("lock_acquired_total", "", stats.acquired);
//!     // Alert on these two separately: another holder, or too few masters that vote.
//!     counter("lock_contended_total", "", stats.contended);
//!     counter("lock_unavailable_total", "", stats.unavailable);
//!     for node in redlock.nodes() {
//!         gauge("master_votes", &node.address, f64::from(node.state == NodeState::Ready));
//!         gauge("master_pending_releases", &node.address, node.pending_releases as f64);
//!         if let Some(latency) = node.latency {
//!             gauge("master_latency_seconds", &node.address, latency.as_secs_f64());
//!         }
//!     }
//! }
//! ```
//!
//! Records of the `log` crate have the target `muxlock`. Level `warn` is for the operator: a master
//! stops voting, or lacks a permission or a queue. Level `info`: a master votes again. Level
//! `debug`: connections that end, and names that do not resolve. Level `error`: a system call
//! failed. No record contains a token or a password.
//!
//! # Limits
//! - A paused process notices only afterwards that its lock has expired.
//! - If a master's wall clock steps forward, its keys expire early. A client detects the step when
//!   it next reads that clock: before a lock, if the last reading is older than 10 ms. It cannot
//!   detect a step before its first reading.
//! - A client that connects after a flush of a master detects it only with
//!   [`Builder::flush_marker`]. The deletion of a single key stays undetected.
//! - Waiting clients usually get the lock in the order of their arrival, without a guarantee.
//! - Redis Cluster is not supported. Replicas need Sentinel and extra settings: see
//!   [`Builder::node`].
//!
//! # The guide
//! The pages of [`guide`] have the rest: how to choose settings, to deploy and replace masters, and
//! to fence a resource; the errors by their messages; and the guarantees in full.
//!
//! # Versions
//! Semantic versioning covers the root of the crate, its modules, and [`Done`](proto::Done),
//! [`Lease`](proto::Lease), [`OpId`](proto::OpId) and [`Cancelled`](proto::Cancelled). Until
//! version 1.0, other items of [`proto`] can change in any release.
//!
//! # Features
//! - `env`: [`Builder::from_env`], for settings from environment variables, as of the tool.
//! - `testing`: fake masters inside the test process, and real `redis-server` processes that a test
//!   can kill, freeze and restart. It adds no dependency.
//! - `tls`: encrypted connections, `rediss://`, with `rustls`; see [`Builder::node`]. It uses the
//!   crypto provider that your program installed, or `ring` if it installed none.
//! - `tls-no-provider`: the same without `ring`. Your program installs a crypto provider.
//! - `unstable-tool`, `unstable-resp`: parts for the command-line tool (the package `muxlock-cli`)
//!   and for the tests of the repository. Semantic versioning does not cover them.

mod channel;
mod client;
mod config;
mod fencing;
// The examples of some pages need these features.
#[cfg(any(not(doctest), all(feature = "env", feature = "testing")))]
pub mod guide;
pub mod inspection;
mod keep_alive;
mod lock_error;
mod moment;
mod mux;
mod outcome;
pub mod proto;
mod quorum;
mod resource;
#[cfg(feature = "unstable-resp")]
pub mod resp;
#[cfg(not(feature = "unstable-resp"))]
mod resp;
mod slots;
mod sys;
#[cfg(feature = "testing")]
pub mod testing;
mod times;
mod token;
#[cfg(feature = "unstable-tool")]
pub mod unstable_tool;
mod validity;

pub use client::{
    Error, ErrorKind, Fenced, FencedRedlock, KeptLock, LockGuard, LockParts, LossWatch, Redlock,
    Reentrant, ReentrantGuard, Semaphore, Waiter,
};
pub use config::{Builder, Config};
pub use fencing::FencingToken;
pub use keep_alive::{KeepAlive, Loss, LossCause};
pub use lock_error::{LockError, LockErrorKind};
/// The version of mio whose types [`Multiplexer`] takes.
pub use mio;
pub use moment::Moment;
pub use mux::{Multiplexer, Standalone};
pub use proto::{lease::Released, status::Stats};
pub use quorum::quorum;
pub use resource::Resource;
pub use times::{Histogram, Times};
pub use token::{Fingerprint, LockToken};

pub mod error {
    //! Errors of calls other than taking a lock, such as building a client, and the kinds of error
    //! that a node answers with. Taking a lock fails with [`LockError`](crate::LockError).
    //! [`Error`](crate::Error) is the one error that holds any of them.

    pub use crate::client::{ConnectError, HandOverError, KeepAliveError, KeepAliveErrorKind};
    pub use crate::config::ConfigError;
    pub use crate::fencing::InvalidFencingToken;
    pub use crate::outcome::{ProtocolError, ServerErrorKind, TlsErrorKind};
}

pub mod limits {
    //! The sizes that the client refuses to exceed.

    pub use crate::quorum::NODES_MAX;
    pub use crate::resource::{RESOURCE_BYTES_MAX, RESOURCES_MAX, SLOTS_MAX, VALUE_BYTES_MAX};
}

pub mod node {
    //! The client's view of a node: its answer in a round ([`NodeReport`]), its state for
    //! monitoring ([`NodeStatus`]), and the reason why it gives no vote ([`Unfit`],
    //! [`Quarantine`]).

    pub use crate::outcome::{
        CountedFrom, NodeOutcome, NodeReport, Phase, Quarantine, QuarantineCause, ServerCommand,
        Unfit,
    };
    pub use crate::proto::command::ReleaseWith;
    pub use crate::proto::status::{
        ErrorCounts, NodeState, NodeStatus, QueueObstacle, QueueSupport,
    };
}

pub mod settings {
    //! The types of settings, for [`Builder`](crate::Builder): how a client waits for locks and
    //! retries, which servers it trusts after a restart, whether extensions recreate missing keys,
    //! credentials and TLS. [`Wait`] is for single calls: how long one waits.

    #[cfg(feature = "tls-no-provider")]
    pub use crate::config::Tls;
    pub use crate::config::{Credentials, Heal, RestartGuard, Retry, Wait, Waiting};
}

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
