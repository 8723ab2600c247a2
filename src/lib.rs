//! Distributed locks over independent Redis masters with the Redlock algorithm. One non-blocking
//! event loop does the I/O. There is no async runtime. There is no background thread either, unless
//! the program asks for automatic renewal. Each lookup of a host name runs on a short-lived thread.
//!
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
//! assert!(released.was_held(), "another holder may have had the lock");
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
//! # What a lock guarantees
//! [`Redlock::try_lock`] sends `SET key token NX PX ttl` to all masters at the same time (with a
//! [`flush_marker`](Builder::flush_marker), a script that does the same). It returns as soon as the
//! result is certain. When you get a [`LockGuard`], a majority of the masters held the key with its
//! token. They keep it until [`LockGuard::remaining`] is zero.
//!
//! Redlock gives mutual exclusion under four conditions. Clock rates differ by no more than
//! [`drift_factor`](Builder::drift_factor). No wall clock of a master steps forward unnoticed. The
//! holder stops when [`remaining`](LockGuard::remaining) is zero, even if its process was paused.
//! No master loses a lock that is still held; or if one does, the restart guard detects it. **Only
//! a fencing token that the resource checks protects beyond that**: [`Redlock::fenced`] takes locks
//! with one.
//!
//! # Masters that may have forgotten a lock
//! A master that was restarted without its data would grant a lock a second time. So the client
//! identifies each master when it connects. A master that may have forgotten a lock is in
//! *quarantine* until every such lock has expired. The client still sends it every command, but
//! ignores its answers. See [`RestartGuard`](settings::RestartGuard); it is on by default. **In
//! development, masters have often just been started; then switch it off**:
//! `redis://127.0.0.1?restart_guard=off`, or [`Builder::restart_guard`].
//!
//! The client refuses replicas, cluster nodes, masters that are loading their data or may evict
//! locks, and a server that is listed twice. [`Unfit`](node::Unfit) gives the reason.
//!
//! # Observability
//! [`Redlock::stats`] returns counters since the client was created. [`Redlock::nodes`] returns the
//! status of each master, including its latency. Sample both from your metrics library:
//!
//! ```no_run
//! use muxlock::{NodeState, Redlock};
//!
//! /// `counter` and `gauge` stand for your metrics library: a name, a label and a value. The value
//! /// of a counter is its total.
//! fn sample(
//!     redlock: &Redlock,
//!     counter: impl Fn(&'static str, &str, u64),
//!     gauge: impl Fn(&'static str, &str, f64),
//! ) {
//!     let stats = redlock.stats();
//!     // Another holder has it, or too few masters give a vote: two different alarms.
//!     counter("lock_acquired_total", "", stats.acquired);
//!     counter("lock_contended_total", "", stats.contended);
//!     counter("lock_unavailable_total", "", stats.unavailable);
//!     counter("lock_late_total", "", stats.expired);
//!     counter("lock_timed_out_total", "", stats.timed_out);
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
//! Records of the `log` crate have the target `muxlock`. Level `warn`: a master stops voting, with
//! the reason; a master does not allow `INFO` or `TIME`, has no queue to wait in, gives fencing
//! tokens that are far ahead, or is not verified (`verify=no`); there is one master, or an even
//! number of them; and how many records were dropped. Level `info`: a master votes again. Level
//! `debug`: connections that end, and names that do not resolve. Level `error`: a system call
//! failed. No record contains a token or a password.
//!
//! # Limits
//! - A paused process (a debugger, a swapped-out or suspended virtual machine) does not notice that
//!   its lock has expired until it checks again.
//! - If a master's wall clock steps forward, its keys expire early. A client detects the step only
//!   if it had read that clock before, and not within the last 10 ms.
//! - The client detects a flush of a master only with [`Builder::flush_marker`]. It never detects
//!   that a single key was deleted.
//! - Plain locks are not reentrant. Clients take turns, but no order is certain.
//! - Redis Cluster and replicas are not supported. A master that Sentinels fail over is one node,
//!   and needs settings of the servers: see [`Builder::node`].
//! - Without the feature `tls`, nothing is encrypted, and an address with `rediss://` is refused.
//!
//! # Names
//! [`Redlock`] uses the verbs of `std::sync` and `parking_lot`; [`proto::Engine`] uses those of the
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
//! A [`Redlock`] is cheap to clone. Any number of threads can share it; they use one connection per
//! master. If your program has a loop of [`mio`] 1, run a [`Multiplexer`] in it. For another event
//! loop, [`Standalone`] provides a file descriptor and a timeout. If you want neither, drive the
//! engine in [`proto`] yourself.
//!
//! From async code, make the calls that wait in a blocking task (`tokio::task::spawn_blocking`, for
//! example). [`LockGuard`] is `Send` and `Sync`, so it may move to another task; dropping it waits
//! for nothing.
//!
//! # Ending waits, and errors
//! [`Redlock::waiter`] waits until another thread, or a signal handler, cancels it;
//! [`Redlock::close`] ends all waits of a client. Every error converts into [`Error`], whose
//! [`kind`](Error::kind) says what to do. [`Redlock::inspect`] shows who holds a lock.
//!
//! # Work that outlasts the TTL
//! [`LockGuard::ensure`] extends a lock between small steps. [`LockGuard::keep_alive`] has it
//! renewed. One thread, which all such locks of a client share, notifies the holder before a lock
//! that cannot be renewed expires; see [`KeepAlive`] and [`KeptLock`]. In an event loop,
//! [`Multiplexer::keep_alive`] needs no thread.
//!
//! # Other kinds of lock
//! Each is a majority round like that of a plain lock. Its guard is a [`LockGuard`], except for
//! [`reentrant`](Redlock::reentrant), whose [`ReentrantGuard`] stays on its thread.
//!
//! | kind | call |
//! |---|---|
//! | several resources, all or none | [`try_lock_all`](Redlock::try_lock_all) |
//! | readers and writers | [`try_read`](Redlock::try_read), [`try_write`](Redlock::try_write) |
//! | from a writer to a reader | [`downgrade`](LockGuard::downgrade) |
//! | at most so many holders | [`semaphore`](Redlock::semaphore) |
//! | a value of your own in the key | [`try_lock_as`](Redlock::try_lock_as) |
//! | the same thread again, through one [`Reentrant`] | [`reentrant`](Redlock::reentrant) |
//!
//! # Rules
//! The rules that the code follows, `R1` to `R37` and others, are in `docs/rules.md` of the
//! repository, each with its tests. `docs/guarantees.md` lists the promises, and `docs/settings.md`
//! the settings.
//!
//! # Versions
//! Semantic versioning covers everything at the root of the crate, also what is defined in
//! [`proto`] and exported here, such as [`Stats`], and the module `testing`. Until
//! version 1.0, it does not cover the other items of [`proto`]: they may change in any release.
//!
//! # Features
//! - `testing`: fake masters for your tests, which need no Redis, and real `redis-server`
//!   processes. It adds no dependency.
//! - `tls`: encrypted connections, `rediss://`, by `rustls` with the cryptography of `ring`; see
//!   [`Builder::node`]. `tls-no-provider` is the same without `ring`: the program installs a
//!   provider for its whole process. If it has installed one, `tls` uses that, too.
//! - `unstable-tool`, `unstable-resp`: parts that the command-line tool (the package `muxlock-cli`)
//!   and the tests of the repository need. Semantic versioning does not cover them.

mod channel;
mod client;
mod config;
mod fencing;
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
    //! What is known of a node: its answer in a round ([`NodeReport`]), its state for monitoring
    //! ([`NodeStatus`]), and why it gives no vote ([`Unfit`], [`Quarantine`]).

    pub use crate::outcome::{
        CountedFrom, NodeOutcome, NodeReport, Phase, Quarantine, QuarantineCause, ServerCommand,
        Unfit,
    };
    pub use crate::proto::command::ReleaseWith;
    pub use crate::proto::status::{NodeState, NodeStatus, QueueObstacle, QueueSupport};
}

pub mod settings {
    //! The types of settings, for [`Builder`](crate::Builder): how a client waits for locks and
    //! retries, which servers it trusts after a restart, whether extensions recreate missing keys,
    //! and TLS.

    #[cfg(feature = "tls-no-provider")]
    pub use crate::config::Tls;
    pub use crate::config::{Heal, RestartGuard, Retry, Waiting};
}

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
