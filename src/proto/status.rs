//! What is shown of waiting at a node.

use std::fmt;

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
