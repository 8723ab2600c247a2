//! One type for the errors of all calls.

use std::fmt;
use std::io;
use std::time::Duration;

use super::{ConnectError, HandOverError, KeepAliveError, KeepAliveErrorKind};
use crate::config::ConfigError;
use crate::keep_alive::Loss;
use crate::lock_error::{LockError, LockErrorKind};
use crate::outcome::NodeReport;

/// Any error of this crate. Every other error converts into it, so a function that makes several
/// calls can return it with the operator `?`. [`kind`](Error::kind) is the next step for the
/// caller.
///
/// For an error type of yours, implement `From<muxlock::Error>`. Then [`Redlock::with_lock`] and
/// [`KeptLock::check`] work without conversion. After other calls, write
/// `.map_err(muxlock::Error::from)?`.
///
/// [`Redlock::with_lock`]: crate::Redlock::with_lock
/// [`KeptLock::check`]: crate::KeptLock::check
///
/// ```no_run
/// use muxlock::{Error, ErrorKind, Redlock};
/// use std::time::Duration;
///
/// fn write_report() -> Result<(), Error> {
///     let redlock = Redlock::connect(["redis://10.0.0.1"])?;
///     let (ttl, wait) = (Duration::from_secs(10), Duration::from_secs(5));
///     redlock.with_lock("report:daily", ttl, wait, |held| {
///         held.check()?;
///         Ok(())
///     })
/// }
///
/// match write_report() {
///     Err(error) if error.kind() == ErrorKind::Contended => println!("another process writes it"),
///     result => result?,
/// }
/// # Ok::<(), Error>(())
/// ```
#[non_exhaustive]
pub enum Error {
    /// The client could not be created.
    Config(ConfigError),
    /// A lock could not be acquired, extended or released, or no quorum was reached.
    Lock(LockError),
    /// The renewal of a lock could not be started. The guard was dropped, which released the lock.
    KeepAlive(KeepAliveErrorKind),
    /// A renewed lock is lost.
    Lost(Loss),
    /// A lock could not be handed over.
    HandOver(HandOverError),
    /// A call to the operating system failed.
    Os(io::Error),
}

/// The next step for the caller after an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another holder has the lock: try again later, or wait longer.
    Contended,
    /// Too few masters gave a vote: check the masters.
    Unavailable,
    /// The wait ended before enough masters had answered: wait longer.
    TimedOut,
    /// The lock is not held, or will expire soon. If it was held, stop the work. If it was being
    /// acquired, the quorum came too late: use a longer TTL.
    NotHeld,
    /// The wait was cancelled, or the client was closed.
    Cancelled,
    /// A setting or an argument is wrong: correct it. The error text names it.
    InvalidInput,
    /// A limit of the client or of the system is reached, or this process was forked from the one
    /// that created the client.
    Other,
}

impl Error {
    /// The next step for the caller.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Config(ConfigError::Os(_)) | Error::Os(_) => ErrorKind::Other,
            Error::HandOver(HandOverError::NoClock) => ErrorKind::Other,
            Error::Config(_) | Error::HandOver(_) => ErrorKind::InvalidInput,
            Error::Lost(_) => ErrorKind::NotHeld,
            Error::Lock(error) => kind_of(error.kind()),
            Error::KeepAlive(KeepAliveErrorKind::Lock(kind)) => kind_of(*kind),
            Error::KeepAlive(KeepAliveErrorKind::Thread(_) | KeepAliveErrorKind::TooMany) => {
                ErrorKind::Other
            }
        }
    }

    /// The outcome on each node, as in [`LockError::nodes`]. Empty if no master was asked.
    pub fn nodes(&self) -> &[NodeReport] {
        match self {
            Error::Lock(error) | Error::Lost(Loss { error: Some(error), .. }) => error.nodes(),
            _ => &[],
        }
    }

    /// The time until enough nodes have left quarantine, as in [`LockError::ready_in`].
    pub fn ready_in(&self) -> Option<Duration> {
        match self {
            Error::Lock(error) => error.ready_in(),
            _ => None,
        }
    }
}

/// Short, and without an address: for the users of a service.
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Contended => "another holder has the lock",
            ErrorKind::Unavailable => "too few masters gave a vote",
            ErrorKind::TimedOut => "the wait ended before enough masters had answered",
            ErrorKind::NotHeld => "the lock is not held",
            ErrorKind::Cancelled => "the wait was cancelled",
            ErrorKind::InvalidInput => "a setting or an argument is wrong",
            ErrorKind::Other => "a limit is reached",
        })
    }
}

fn kind_of(kind: LockErrorKind) -> ErrorKind {
    match kind {
        LockErrorKind::Contended => ErrorKind::Contended,
        LockErrorKind::Unavailable => ErrorKind::Unavailable,
        LockErrorKind::TimedOut => ErrorKind::TimedOut,
        LockErrorKind::Expired => ErrorKind::NotHeld,
        LockErrorKind::Cancelled | LockErrorKind::Closed => ErrorKind::Cancelled,
        LockErrorKind::InvalidTtl { .. }
        | LockErrorKind::InvalidResource { .. }
        | LockErrorKind::ReservedResource
        | LockErrorKind::InvalidSet { .. }
        | LockErrorKind::InvalidSlots { .. }
        | LockErrorKind::InvalidValue { .. }
        | LockErrorKind::Unfenced => ErrorKind::InvalidInput,
        LockErrorKind::Overloaded | LockErrorKind::NoEntropy | LockErrorKind::Forked => {
            ErrorKind::Other
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(error) => error.fmt(f),
            Error::Lock(error) => error.fmt(f),
            Error::KeepAlive(kind) => kind.fmt(f),
            Error::Lost(loss) => loss.fmt(f),
            Error::HandOver(error) => error.fmt(f),
            Error::Os(error) => error.fmt(f),
        }
    }
}

/// The same as [`Display`](fmt::Display), with each node on a line of its own: a `main` that
/// returns the error shows this.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(error) => fmt::Debug::fmt(error, f),
            Error::Lock(error) => fmt::Debug::fmt(error, f),
            Error::Lost(loss) => fmt::Debug::fmt(loss, f),
            Error::KeepAlive(_) | Error::HandOver(_) | Error::Os(_) => fmt::Display::fmt(self, f),
        }
    }
}

// Without a source: the text contains it.
impl std::error::Error for Error {}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Config(error)
    }
}

impl From<LockError> for Error {
    fn from(error: LockError) -> Error {
        Error::Lock(error)
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Error {
        match error {
            ConnectError::Config(error) => Error::Config(error),
            ConnectError::Unavailable(error) => Error::Lock(error),
        }
    }
}

/// Drops the guard, which releases the lock.
impl From<KeepAliveError> for Error {
    fn from(error: KeepAliveError) -> Error {
        Error::KeepAlive(error.kind())
    }
}

impl From<Loss> for Error {
    fn from(loss: Loss) -> Error {
        Error::Lost(loss)
    }
}

impl From<HandOverError> for Error {
    fn from(error: HandOverError) -> Error {
        Error::HandOver(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Os(error)
    }
}

/// As the error that it contains.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        match error {
            Error::Config(error) => error.into(),
            Error::Lock(error) => error.into(),
            Error::KeepAlive(kind) => kind.into(),
            Error::Lost(loss) => loss.into(),
            Error::HandOver(error) => error.into(),
            Error::Os(error) => error,
        }
    }
}

/// As the error that it contains.
impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> io::Error {
        Error::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keep_alive::LossCause;
    use crate::resource::Resource;

    #[test]
    fn kinds_of_inner_errors_are_seen() {
        let os = || io::Error::from(io::ErrorKind::OutOfMemory);
        assert_eq!(Error::Config(ConfigError::Os(os())).kind(), ErrorKind::Other);
        assert_eq!(Error::from(os()).kind(), ErrorKind::Other);
        assert_eq!(io::Error::from(Error::from(os())).kind(), io::ErrorKind::OutOfMemory);
        let table = [
            (LockErrorKind::Contended, ErrorKind::Contended),
            (LockErrorKind::Unavailable, ErrorKind::Unavailable),
            (LockErrorKind::TimedOut, ErrorKind::TimedOut),
            (LockErrorKind::Expired, ErrorKind::NotHeld),
            (LockErrorKind::Closed, ErrorKind::Cancelled),
            (LockErrorKind::Overloaded, ErrorKind::Other),
        ];
        for (inner, kind) in table {
            assert_eq!(Error::KeepAlive(KeepAliveErrorKind::Lock(inner)).kind(), kind);
            assert_eq!(Error::from(LockError::new(inner, 0, Vec::new())).kind(), kind);
            assert!(!kind.to_string().is_empty());
        }
        assert_eq!(Error::from(HandOverError::NoClock).kind(), ErrorKind::Other);
    }

    #[test]
    fn loss_says_that_the_lock_is_lost_whatever_the_last_renewal_met() {
        let unavailable = LockError::new(LockErrorKind::Unavailable, 1, Vec::new());
        for error in [None, Some(unavailable)] {
            let resource = Resource::new("report").unwrap();
            let (cause, remaining) = (LossCause::Gone, Duration::from_secs(1));
            let error = Error::from(Loss { resource, cause, remaining, error });
            assert_eq!(error.kind(), ErrorKind::NotHeld);
            let text = "lost \"report\", 1s left: too few masters still hold this lock's token";
            assert!(error.to_string().starts_with(text), "{error}");
        }
    }
}
