//! Distributed locks over independent Redis masters, with the Redlock algorithm.

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
pub mod proto;
mod quorum;
mod resource;
#[doc(hidden)]
pub mod resp;
mod token;
mod validity;

pub use client::{LockGuard, LockParts, Redlock};
pub use config::{Builder, Config, Retry};
pub use error::{
    ConfigError, ConnectError, LockError, LockErrorKind, NodeOutcome, NodeReport, Phase,
    ProtocolError, ServerErrorKind,
};
pub use moment::Moment;
pub use mux::Multiplexer;
pub use proto::{Done, Lease, NodeState, NodeStatus, OpId, Released, Stats};
pub use quorum::{NODES_MAX, quorum};
pub use resource::{RESOURCE_BYTES_MAX, Resource};
pub use token::LockToken;
