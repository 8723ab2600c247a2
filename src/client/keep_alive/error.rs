//! The reason why the renewal of a lock could not be started.

use std::fmt;
use std::io;

use crate::client::LockGuard;
use crate::lock_error::{LockError, LockErrorKind};

/// The error of [`LockGuard::keep_alive`]. It contains the unchanged guard: see
/// [`into_guard`](KeepAliveError::into_guard).
///
/// Dropping this drops the guard, which releases the lock.
///
/// ```no_run
/// # use muxlock::{KeepAlive, LockGuard};
/// # use std::time::Duration;
/// fn start(lock: LockGuard) {
///     match lock.keep_alive(KeepAlive::default()) {
///         Ok(kept) => println!("renewed until it is dropped: {kept:?}"),
///         Err(error) => {
///             eprintln!("{error}");
///             let mut lock = error.into_guard();
///             // The lock is still held: extend it before each step instead.
///             let _ = lock.ensure(Duration::from_secs(2));
///         }
///     }
/// }
/// ```
pub struct KeepAliveError(Box<Refused>);

struct Refused {
    kind: KeepAliveErrorKind,
    guard: LockGuard,
}

/// The reason why the renewal of a lock could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepAliveErrorKind {
    /// The renewal thread could not be started.
    Thread(io::ErrorKind),
    /// The client already renews 65,536 locks, which is its limit.
    TooMany,
    /// The lock cannot be extended: it has expired, this process was forked, or its TTL exceeds
    /// this client's [`max_ttl`](crate::Builder::max_ttl).
    Lock(LockErrorKind),
}

impl fmt::Display for KeepAliveErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot keep the lock alive: ")?;
        match self {
            KeepAliveErrorKind::Thread(kind) => write!(f, "no thread could be started ({kind})"),
            KeepAliveErrorKind::TooMany => f.write_str("this client keeps too many locks alive"),
            KeepAliveErrorKind::Lock(kind) => LockError::new(*kind, 0, Vec::new()).fmt(f),
        }
    }
}

impl KeepAliveError {
    pub(super) fn new(kind: KeepAliveErrorKind, guard: LockGuard) -> KeepAliveError {
        KeepAliveError(Box::new(Refused { kind, guard }))
    }

    /// The reason.
    pub fn kind(&self) -> KeepAliveErrorKind {
        self.0.kind
    }

    /// The unchanged guard.
    pub fn into_guard(self) -> LockGuard {
        self.0.guard
    }
}

impl fmt::Display for KeepAliveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

impl fmt::Debug for KeepAliveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for KeepAliveError {}

/// With the kind of the thread's error, or as the [`LockError`] of that kind; otherwise `Other`.
/// The guard is dropped, which releases the lock.
impl From<KeepAliveError> for io::Error {
    fn from(error: KeepAliveError) -> io::Error {
        error.kind().into()
    }
}

/// With the kind of the thread's error, or as the [`LockError`] of that kind; otherwise `Other`.
impl From<KeepAliveErrorKind> for io::Error {
    fn from(kind: KeepAliveErrorKind) -> io::Error {
        match kind {
            KeepAliveErrorKind::Lock(kind) => LockError::new(kind, 0, Vec::new()).into(),
            KeepAliveErrorKind::Thread(thread) => io::Error::new(thread, kind.to_string()),
            KeepAliveErrorKind::TooMany => io::Error::other(kind.to_string()),
        }
    }
}
