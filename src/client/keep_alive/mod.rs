//! Locks that are renewed while they are held.

mod callbacks;
mod error;
mod lock;
#[cfg(unix)]
mod loss_event;
mod renewed_lock;
mod renewer;

pub(super) use callbacks::Callbacks;
pub use error::{KeepAliveError, KeepAliveErrorKind};
pub use lock::{KeptLock, LossWatch};
pub(super) use renewed_lock::RenewedLock;
pub(super) use renewer::Renewer;
