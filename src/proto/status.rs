//! What is shown of a node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::command::ReleaseWith;
use super::nodes::ErrorCounts;
use crate::outcome::{NodeOutcome, Quarantine};

/// The state of a node, for monitoring.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The node's index in the configuration, from 0.
    pub node: usize,
    /// Its address, without credentials.
    pub address: Arc<str>,
    /// The state of its connection.
    pub state: NodeState,
    /// Its result in the last round, and how long that took from the round's start. The time is
    /// `None` if the node was not asked, or if its answer came when no call read it: it was read
    /// later, and nothing says when it came.
    pub last_outcome: Option<(NodeOutcome, Option<Duration>)>,
    /// Why its last connection ended or failed, if one did.
    pub last_failure: Option<NodeOutcome>,
    /// The last error message of the server, or the words for its last failure, whichever was
    /// later. Passwords and anything like a token are masked.
    pub last_message: Option<Arc<str>>,
    /// Smoothed time from command to reply. Replies after the `node_timeout` are left out, and
    /// replies that the client read late, without knowing when they arrived.
    pub latency: Option<Duration>,
    /// Commands sent and not answered.
    pub in_flight: usize,
    /// Releases that are still to be sent to this node: of failed attempts and of locks that were
    /// released or dropped.
    pub debts: usize,
    /// Why and for how long its votes do not count, if it is in quarantine.
    pub quarantine: Option<Quarantine>,
    /// Product and version of the server, if it reports them.
    pub server_version: Option<Arc<str>>,
    /// The random id of the server process, if it reports one.
    pub run_id: Option<Arc<str>>,
    /// The command used for releases on this connection: the script, until a trial has shown that a
    /// native command works.
    pub release_with: ReleaseWith,
    /// The errors of this server, by kind.
    pub errors: ErrorCounts,
    /// Commands that it did not answer in time, and connections that were not made in time.
    pub timeouts: u64,
    /// Connections that its machine refused: no server listens at the address.
    pub refused: u64,
    /// Whether this client can wait in a queue on this node.
    pub waits: Waits,
}

/// The state of a node's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// No call has needed the node yet, so the client has not connected.
    Idle,
    /// The host name is being looked up, or the connection is being established.
    Connecting,
    /// The connection is established; the handshake is in progress.
    Handshaking,
    /// The node votes.
    Ready,
    /// The node is connected, but may have forgotten a lock that is still held: its answers do not
    /// count.
    Quarantined,
    /// The last connection failed or was lost, or the client refused the server. Until the next
    /// connection, the node gives no vote.
    BackOff,
}

/// Whether this client can wait in a queue on a node: see [`Waiting`](crate::Waiting).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waits {
    /// No wait has needed the node yet on this connection.
    #[default]
    Untried,
    /// The node was asked and has not answered.
    Asked,
    /// It can.
    Able,
    /// It cannot, for this reason.
    Unable(Obstacle),
}

/// Why a client cannot wait in a queue on a node. The server's words are in
/// [`NodeStatus::last_message`](crate::NodeStatus::last_message).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// The server refused `HELLO 3`.
    Resp3,
    /// It refused `CLIENT TRACKING`, `CLIENT CACHING`, or a question about the key.
    Tracking,
    /// It refused `SUBSCRIBE` or `PUBLISH`, or delivered no message.
    Channel,
    /// It refused the scripts of the queue.
    Queue,
    /// Connections ended while the server was asked.
    Connection,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Resp3 => "HELLO 3 was refused",
            Obstacle::Tracking => "CLIENT TRACKING or CLIENT CACHING was refused",
            Obstacle::Channel => "SUBSCRIBE or PUBLISH was refused",
            Obstacle::Queue => "the scripts of the queue were refused",
            Obstacle::Connection => "its connections ended when it was asked",
        })
    }
}
