//! What is said to a node and what it answers, without a byte of how.

use std::sync::Arc;

use crate::error::ServerErrorKind;
use crate::token::LockToken;
use crate::validity::Ttl;

/// A command to a node. Every one has exactly one reply.
#[derive(Debug, Clone, Copy)]
pub enum Command<'a> {
    /// `AUTH [user] password`.
    Authenticate(Credentials<'a>),
    /// `SELECT db`.
    Select {
        /// The database's number.
        db: u32,
    },
    /// `CLIENT SETNAME`, for the operators' sake.
    SetName,
    /// `SET key token NX PX ttl`: "to acquire the lock".
    Acquire {
        /// The key.
        key: &'a [u8],
        /// The value that says who owns it.
        token: &'a LockToken,
        /// How long the key shall live.
        ttl: Ttl,
    },
    /// Raises the key's time to live to `ttl` if it holds `token`; never lowers it (R27).
    Extend {
        /// The key.
        key: &'a [u8],
        /// The value that the key must hold.
        token: &'a LockToken,
        /// How long the key shall live from now on.
        ttl: Ttl,
    },
    /// Deletes the key if it holds `token`.
    Release {
        /// The key.
        key: &'a [u8],
        /// The value that the key must hold.
        token: &'a LockToken,
    },
}

/// A user and a password.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The user; the default user if `None`.
    pub user: Option<&'a str>,
    /// The password.
    pub password: &'a str,
}

impl std::fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// A reply from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`.
    Ok,
    /// Any other status, such as `+QUEUED`.
    Status,
    /// Null.
    Nil,
    /// An integer.
    Integer(i64),
    /// An error.
    Error(ServerError),
}

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// What it means for a lock.
    pub kind: ServerErrorKind,
    /// The server's words, without anything that was sent to it.
    pub message: Arc<str>,
}
