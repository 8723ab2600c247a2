//! Builds a client from its settings.

use std::fmt;

use super::Redlock;
use crate::config::{Builder, ConfigError};
use crate::lock_error::LockError;

// This impl is here because the module `config` must not depend on `client`.
impl Builder {
    /// Creates a client without connecting. The first operation connects, or
    /// [`Redlock::ready`].
    ///
    /// # Errors
    /// The same errors as [`config`](Builder::config), and [`ConfigError::Os`] if the event loop
    /// cannot be set up.
    pub fn build(&self) -> Result<Redlock, ConfigError> {
        Redlock::with_config(self.config()?)
    }

    /// Creates a client and waits until a quorum of the masters is connected, for at most
    /// [`connect_timeout`](Builder::connect_timeout). It returns earlier if no quorum can be
    /// reached: at once if a majority refuses the connection. If the masters start together with
    /// this program, use [`build`](Builder::build), and wait with [`ready`](Redlock::ready) or
    /// [`try_lock_for`](Redlock::try_lock_for).
    ///
    /// A master in quarantine counts as connected. So the first lock might still fail: see
    /// [`Redlock::ready`], [`RestartGuard`](crate::settings::RestartGuard) and
    /// [`LockError::ready_in`].
    ///
    /// # Errors
    /// - [`ConnectError::Config`] for the same reasons as [`build`](Builder::build), or if two
    ///   connected masters turn out to be the same server ([`ConfigError::Duplicate`]). If the
    ///   client finds a duplicate later, it reports
    ///   [`Unfit::Duplicate`](crate::node::Unfit::Duplicate) and ignores its vote.
    /// - [`ConnectError::Unavailable`] if no quorum could be reached, with the reason for each
    ///   node. Check the masters, or try again later.
    pub fn connect(&self) -> Result<Redlock, ConnectError> {
        let redlock = self.build()?;
        redlock.wait_until_connected()?;
        Ok(redlock)
    }
}

/// Why [`connect`](crate::Builder::connect) failed.
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is wrong, or the event loop could not be set up. The client sent no
    /// command, except to find out that two addresses lead to the same server
    /// ([`ConfigError::Duplicate`]).
    Config(ConfigError),
    /// Fewer nodes than a quorum could be reached. The error gives the reason for each node.
    Unavailable(LockError),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Config(error) => error.fmt(f),
            ConnectError::Unavailable(error) => error.fmt(f),
        }
    }
}

/// The same as [`Display`](fmt::Display), with each node on a line of its own.
impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Config(error) => fmt::Debug::fmt(error, f),
            ConnectError::Unavailable(error) => fmt::Debug::fmt(error, f),
        }
    }
}

// Without a source: the text contains it.
impl std::error::Error for ConnectError {}

impl From<ConfigError> for ConnectError {
    fn from(error: ConfigError) -> ConnectError {
        ConnectError::Config(error)
    }
}
