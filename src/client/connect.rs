//! How settings become a client.

use std::fmt;

use super::Redlock;
use crate::config::{Builder, ConfigError};
use crate::error::LockError;

// Here, since settings do not know the client.
impl Builder {
    /// Makes a client. It connects when it is first used.
    ///
    /// # Errors
    /// As [`config`](Builder::config); and [`ConfigError::Os`] if the event loop cannot be set up.
    pub fn build(&self) -> Result<Redlock, ConfigError> {
        Redlock::with_config(self.config()?)
    }

    /// Makes a client and waits until a quorum of the masters is connected, for at most
    /// [`connect_timeout`](Builder::connect_timeout). A master in quarantine counts as connected:
    /// see [`RestartGuard`](crate::RestartGuard).
    ///
    /// # Errors
    /// - [`ConnectError::Config`] as [`build`](Builder::build), and if two of the masters connected
    ///   by then are the same server ([`ConfigError::Duplicate`]). A duplicate that shows later is
    ///   [`Unfit::Duplicate`](crate::Unfit::Duplicate), and its vote does not count.
    /// - [`ConnectError::Unavailable`] if no quorum could be reached, with the reason for each
    ///   node. Check the masters, or try again later.
    pub fn connect(&self) -> Result<Redlock, ConnectError> {
        let redlock = self.build()?;
        redlock.wait_until_ready()?;
        Ok(redlock)
    }
}

/// Why [`connect`](crate::Builder::connect) failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The configuration is wrong; nothing was sent.
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

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ConnectError::Config(error) => error.source(),
            ConnectError::Unavailable(_) => None,
        }
    }
}

impl From<ConfigError> for ConnectError {
    fn from(error: ConfigError) -> ConnectError {
        ConnectError::Config(error)
    }
}
