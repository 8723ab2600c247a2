//! Why settings are refused.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::outcome::explained;
use crate::quorum::NODES_MAX;

/// Why a configuration was refused. Every variant names the value and its bound, if any.
#[non_exhaustive]
pub enum ConfigError {
    /// No node is configured.
    NoNodes,
    /// More nodes were given than [`NODES_MAX`].
    TooManyNodes {
        /// The number of nodes.
        nodes: usize,
    },
    /// An address does not parse.
    Url {
        /// The part of the address that parsed: its scheme, and its host and port, or its path. The
        /// rest is left out, because it could be a password. Empty if no part parsed.
        url: String,
        /// The error in the address, and its position in a list of several.
        reason: String,
    },
    /// Two nodes are the same server, so its vote would count twice.
    Duplicate {
        /// The node listed first.
        first: String,
        /// The node listed later.
        second: String,
    },
    /// A time is below or above its bounds.
    Time {
        /// The setting's name.
        setting: &'static str,
        /// The value that was given.
        value: Duration,
        /// The smallest value allowed.
        min: Duration,
        /// The greatest value allowed.
        max: Duration,
    },
    /// The key prefix is too long.
    KeyPrefix {
        /// Its length in bytes.
        bytes: usize,
        /// The greatest length allowed.
        max: usize,
    },
    /// The flush marker is empty or too long, or a key that muxlock uses itself.
    FlushMarker {
        /// Its length in bytes.
        bytes: usize,
        /// The greatest length allowed.
        max: usize,
    },
    /// The client name is too long, or has a character that a server refuses, such as a space.
    ClientName {
        /// The value that was given.
        name: String,
    },
    /// [`Heal`](crate::settings::Heal) is on, but the
    /// [`RestartGuard`](crate::settings::RestartGuard) of a node is off.
    HealUnguarded {
        /// The node's address.
        node: String,
    },
    /// TLS cannot be set up: a file or a setting for it is wrong.
    Tls {
        /// The node, the file or setting, and the error in it.
        reason: String,
    },
    /// A variable of [`Builder::from_env`](crate::Builder::from_env) is wrong. Feature `env`.
    #[cfg(feature = "env")]
    Env {
        /// The variable, and the error there.
        reason: String,
    },
    /// The operating system did not provide a resource that the event loop needs, such as a file
    /// descriptor.
    Os(io::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::NoNodes => f.write_str("no node given: a lock needs at least one master"),
            ConfigError::TooManyNodes { nodes } => {
                write!(f, "{nodes} nodes given: at most {NODES_MAX} are allowed")
            }
            ConfigError::Url { url, reason } => {
                let space = if url.is_empty() { "" } else { " " };
                write!(f, "cannot use the address{space}{url}: {reason}")
            }
            ConfigError::Duplicate { first, second } if first == second => {
                write!(f, "{first} is listed twice: its vote would count twice")
            }
            ConfigError::Duplicate { first, second } => {
                write!(f, "{first} and {second} are the same server: its vote would count twice")
            }
            ConfigError::Time { setting, value, min, max } => {
                write!(f, "{setting} is {value:?}: it must be from {min:?} to {max:?}")
            }
            ConfigError::KeyPrefix { bytes, max } => {
                write!(f, "key_prefix has {bytes} bytes: at most {max} are allowed")
            }
            ConfigError::FlushMarker { bytes, max } => {
                write!(
                    f,
                    "flush_marker has {bytes} bytes: it must have 1 to {max}, and differ from \
                     muxlock:fence and muxlock:promoted"
                )
            }
            ConfigError::ClientName { name } => {
                write!(f, "client_name is {name:?}: it can have 100 characters from ! to ~")
            }
            ConfigError::HealUnguarded { node } => {
                write!(
                    f,
                    "heal needs the restart guard, which is off for {node}: switch it on, or heal \
                     off"
                )
            }
            ConfigError::Tls { reason } => write!(f, "cannot set up TLS: {reason}"),
            #[cfg(feature = "env")]
            ConfigError::Env { reason } => f.write_str(reason),
            ConfigError::Os(error) => {
                write!(f, "cannot set up the event loop: {}", explained(error))
            }
        }
    }
}

/// The same as [`Display`](fmt::Display): a `main` that returns the error shows this.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// Without a source: the text contains it.
impl std::error::Error for ConfigError {}

/// `Os` becomes its own error, and the others become `InvalidInput`.
impl From<ConfigError> for io::Error {
    fn from(error: ConfigError) -> io::Error {
        match error {
            ConfigError::Os(error) => error,
            error => io::Error::new(io::ErrorKind::InvalidInput, error),
        }
    }
}
