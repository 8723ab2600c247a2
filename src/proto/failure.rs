//! Why an operation did not succeed.

use crate::lock_error::{LockError, LockErrorKind};

/// Why an operation did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Contended,
    Unavailable,
    Expired,
    /// The patience ended before enough nodes had answered.
    TimedOut,
    NoEntropy,
}

impl Failure {
    /// The one that this error tells of.
    pub(super) fn of(error: &LockError) -> Failure {
        match error.kind() {
            LockErrorKind::Unavailable => Failure::Unavailable,
            LockErrorKind::Expired => Failure::Expired,
            LockErrorKind::TimedOut => Failure::TimedOut,
            _ => Failure::Contended,
        }
    }
}

impl From<Failure> for LockErrorKind {
    fn from(failure: Failure) -> LockErrorKind {
        match failure {
            Failure::Contended => LockErrorKind::Contended,
            Failure::Unavailable => LockErrorKind::Unavailable,
            Failure::Expired => LockErrorKind::Expired,
            Failure::TimedOut => LockErrorKind::TimedOut,
            Failure::NoEntropy => LockErrorKind::NoEntropy,
        }
    }
}
