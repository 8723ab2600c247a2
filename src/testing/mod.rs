//! Fake and real masters for tests: feature `testing`.
//!
//! # Fake masters
//! [`FakeMasters`] are servers inside the test process, on free loopback ports. They need no
//! `redis-server` and run on every system. A test can make them fail: they
//! [refuse](FakeMaster::refuse) commands, [freeze](FakeMaster::freeze),
//! [forget](FakeMaster::forget) their data, [stop](FakeMaster::stop), [answer
//! late](FakeMaster::answer_after), or give a lock to [another holder](FakeMasters::hold). All of
//! that takes milliseconds, with the production settings of your program: they report a long
//! uptime, so the [restart guard](crate::settings::RestartGuard) can stay on.
//!
//! ```
//! use muxlock::Redlock;
//! use muxlock::testing::FakeMasters;
//! use std::time::Duration;
//!
//! const TTL: Duration = Duration::from_secs(10);
//!
//! let mut masters = FakeMasters::start(3)?;
//! let redlock = Redlock::connect(masters.urls())?;
//!
//! // One master down: the other two are a quorum.
//! masters[0].stop();
//! let lock = redlock.try_lock("invoice:42", TTL)?;
//! assert!(lock.unlock()?.was_held());
//!
//! // Another holder has the lock.
//! masters.hold("invoice:43", TTL);
//! let error = redlock.try_lock("invoice:43", TTL).unwrap_err();
//! assert!(error.is_contended());
//!
//! // No quorum, and no lock; and then there is one again.
//! masters[1].refuse("MISCONF Errors writing to the AOF file: No space left on device");
//! let error = redlock.try_lock("invoice:44", TTL).unwrap_err();
//! assert!(error.is_unavailable());
//! masters[1].obey();
//! drop(redlock.try_lock("invoice:44", TTL)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! They show the paths that *your program* takes, but not the behaviour of Redis: they know only
//! the commands that this library sends, without persistence, replication or eviction. So keep a
//! test with real masters. With [`flush_marker`](crate::Builder::flush_marker), a new fake master
//! has no marker, as a new real one has none: before the client connects, set it to a time long
//! ago, with `master.query(&[b"SET", b"the marker's key", b"!00000000000000000"])`.
//!
//! A fault meets the client at its next call, as with real masters: right after
//! [`forget`](FakeMaster::forget), a call can still fail because the connection has ended. Before
//! you look for keys on the masters, call [`Redlock::shutdown`](crate::Redlock::shutdown): a
//! release returns when a quorum has confirmed it.
//!
//! For a function that only gets an error, no server is needed: [`LockError::for_test`] and
//! [`Loss::for_test`] return what an operation returns.
//!
//! [`LockError::for_test`]: crate::LockError::for_test
//! [`Loss::for_test`]: crate::Loss::for_test
//!
//! # Real masters
//! [`Masters`] starts `redis-server` processes on free loopback ports. A test kills, freezes, thaws
//! and restarts them, to see how the program under test behaves when masters fail. Each process has
//! its own temporary folder and no persistence. Dropping a [`Master`] kills its process, by its id,
//! and removes its folder. If the test process is killed first, a helper process (`sh`) kills the
//! server and removes the folder.
//!
//! ```no_run
//! use muxlock::testing::Masters;
//! use muxlock::Redlock;
//! use muxlock::settings::RestartGuard;
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
//! For real masters, `redis-server` must be on `PATH`; otherwise the environment variable
//! `MUXLOCK_REDIS_SERVER` ([`SERVER_VARIABLE`]) must name it. They are sent signals with `sh`, so
//! they need Unix. Their methods block: starting a server takes up to 10 s for each of up to 5
//! ports that are tried, and the others up to 10 s. The module adds no dependency.

/// What a list of masters is beside its start.
macro_rules! list_of_masters {
    ($list:ident, $master:ident) => {
        impl $list {
            /// The URL of each master, in order.
            pub fn urls(&self) -> Vec<String> {
                self.all.iter().map($master::url).collect()
            }

            /// The number of masters, running or not.
            pub fn len(&self) -> usize {
                self.all.len()
            }

            /// Whether there are no masters.
            pub fn is_empty(&self) -> bool {
                self.all.is_empty()
            }

            /// Each master, in order.
            pub fn iter(&self) -> std::slice::Iter<'_, $master> {
                self.all.iter()
            }

            /// Each master, in order, for ending it or starting it again.
            pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, $master> {
                self.all.iter_mut()
            }
        }

        impl std::ops::Index<usize> for $list {
            type Output = $master;

            /// # Panics
            ///
            /// Panics if `index` is out of range.
            fn index(&self, index: usize) -> &$master {
                &self.all[index]
            }
        }

        impl std::ops::IndexMut<usize> for $list {
            /// # Panics
            ///
            /// Panics if `index` is out of range.
            fn index_mut(&mut self, index: usize) -> &mut $master {
                &mut self.all[index]
            }
        }

        impl<'a> IntoIterator for &'a $list {
            type Item = &'a $master;
            type IntoIter = std::slice::Iter<'a, $master>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter()
            }
        }

        impl<'a> IntoIterator for &'a mut $list {
            type Item = &'a mut $master;
            type IntoIter = std::slice::IterMut<'a, $master>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter_mut()
            }
        }
    };
}

mod errors;
mod fake;
mod masters;
pub(crate) mod process;
pub(crate) mod query;

pub use fake::{FakeMaster, FakeMasters};
pub use masters::{Master, Masters};
pub use process::{SERVER_VARIABLE, TLS_VARIABLE, TlsFiles};
pub use query::Value;
