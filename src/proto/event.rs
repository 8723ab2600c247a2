//! What can happen to the connection of a node.

use std::time::Duration;

use super::command::Foreign;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase};

/// What has happened to the connection of a node, for
/// [`Engine::handle_node`](super::Engine::handle_node). Replies have inputs of their own.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum NodeEvent<'a> {
    /// The requested connection makes progress: the host name is being looked up
    /// ([`Phase::Lookup`]), the socket is being connected ([`Phase::Connect`]), or the TLS
    /// handshake is in progress ([`Phase::Tls`]).
    Connecting(Phase),
    /// Sentinels have named the server that the requested connection leads to.
    Elected {
        /// They may have said for how long it has been the master at a moment: no longer is it
        /// trusted.
        master_for: Option<(Duration, Moment)>,
    },
    /// Sentinels have named this address, to which the requested connection leads. It is shown in
    /// reports.
    Located(&'a str),
    /// The name of the node has several addresses, and the requested connection is now tried to
    /// this one as well. If it fails, reports show which were tried.
    Trying(&'a str),
    /// The first bytes of a connection are none of a Redis server: if it fails for that, reports
    /// show a little of them, masked.
    Foreign(Foreign<'a>),
    /// The requested connection is established. If it has TLS, its handshake is over, and the
    /// server was verified.
    Connected,
    /// The connection ended, or could not be established.
    Disconnected(NodeOutcome),
    /// As [`Disconnected`](NodeEvent::Disconnected), with words for reports, in which what may be
    /// secret is masked.
    Failed(NodeOutcome, &'a str),
    /// The name of the node resolved to the address of another one.
    Duplicate {
        /// That node.
        of: usize,
    },
    /// The server has answered on a second connection
    /// ([`Action::ConnectBeside`](super::Action::ConnectBeside)). If the first one is still silent,
    /// it is lost:
    /// [`Node::is_lost_if_another_answers`](super::Node::is_lost_if_another_answers).
    AnsweredBeside,
    /// Replies are about to be passed in that may have waited in the socket: their delay is not
    /// used as latency, nor shown with the last outcome. It lasts until
    /// [`ReadingInTime`](NodeEvent::ReadingInTime).
    ReadingLate {
        /// When the first of them had arrived, if that is known.
        since: Option<Moment>,
    },
    /// Replies are read as they arrive.
    ReadingInTime,
    /// The socket accepts no more bytes, and the caller's buffer is full. The engine sends nothing
    /// to this node until it is [`Writable`](NodeEvent::Writable).
    Blocked,
    /// The socket accepts bytes again.
    Writable,
}
