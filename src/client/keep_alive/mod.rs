//! Locks that are renewed while they are held.

#[cfg(unix)]
mod alarm;
mod error;
mod keeper;
mod kept;
mod lock;

pub use error::{KeepAliveError, KeepAliveErrorKind};
pub(super) use keeper::Keeper;
pub(super) use kept::Kept;
pub use lock::{KeptLock, LossWatch};
