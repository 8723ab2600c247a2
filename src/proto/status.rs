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
    /// Its result in the last round, and the time from the start of the round to that result. The
    /// time is `None` if the node was not asked. It is also `None` if no call was reading when the
    /// answer came, because its time of arrival is then unknown.
    pub last_outcome: Option<(NodeOutcome, Option<Duration>)>,
    /// Why its last connection ended or failed, if one did.
    pub last_failure: Option<NodeOutcome>,
    /// The last error message of the server, or the words for its last failure, whichever was
    /// later. Passwords and anything like a token are masked.
    pub last_message: Option<Arc<str>>,
    /// Smoothed time from command to reply. Replies that took longer than `node_timeout` are left
    /// out, and so are replies that the client read late.
    pub latency: Option<Duration>,
    /// Commands that were sent and are still unanswered.
    pub in_flight: usize,
    /// Releases that are still to be sent to this node, after failed attempts and after locks were
    /// released or dropped.
    pub pending_releases: usize,
    /// The reason for its quarantine and the remaining time, if it is in quarantine.
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
    /// Commands and connection attempts that timed out.
    pub timeouts: u64,
    /// Connections that were refused, because no server listens at the address.
    pub refused: u64,
    /// Whether this client can use this node as a queue node.
    pub queue: QueueSupport,
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

/// Whether this client can use a node as a queue node: see [`Waiting`](crate::settings::Waiting).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueSupport {
    /// No wait has needed a queue on this node yet, on the present connection.
    #[default]
    Untried,
    /// The client is checking this, and the node has not answered yet.
    Checking,
    /// The client can wait in a queue on this node.
    Available,
    /// The client cannot wait in a queue on this node, for this reason.
    Unavailable(QueueObstacle),
}

/// The reason why a client cannot use a node as a queue node. The error text of the server is in
/// [`NodeStatus::last_message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueObstacle {
    /// The server refused `HELLO 3`.
    Resp3,
    /// The server refused `CLIENT TRACKING`, `CLIENT CACHING`, or a command that reads the key.
    Tracking,
    /// The server refused `SUBSCRIBE` or `PUBLISH`, or it delivered no message.
    Channel,
    /// The server refused the scripts of the queue.
    Queue,
    /// Connections ended during the check.
    Connection,
}

impl fmt::Display for QueueObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueObstacle::Resp3 => "HELLO 3 was refused",
            QueueObstacle::Tracking => "CLIENT TRACKING or CLIENT CACHING was refused",
            QueueObstacle::Channel => "SUBSCRIBE or PUBLISH was refused",
            QueueObstacle::Queue => "the scripts of the queue were refused",
            QueueObstacle::Connection => "its connections ended while the client tried",
        })
    }
}
