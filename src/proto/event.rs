//! What can happen to the connection of a node.

use std::time::Duration;

use super::command::Foreign;
use crate::config::Credentials;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase};

/// An event on the connection of a node, for [`Engine::handle_node`](super::Engine::handle_node).
/// Replies have inputs of their own.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum NodeEvent<'a> {
    /// The requested connection makes progress: the host name is being looked up
    /// ([`Phase::Lookup`]), the socket is being connected ([`Phase::Connect`]), or the TLS
    /// handshake is in progress ([`Phase::Tls`]).
    Connecting(Phase),
    /// The credentials for the requested connection, if they are not those of an address: see
    /// [`Builder::credentials`](crate::Builder::credentials). They stay until the next ones.
    Credentials(&'a Credentials),
    /// Sentinels have named the server to which the requested connection leads.
    Elected {
        /// How long it had been the master at a moment, if they reported it: the engine trusts no
        /// longer time.
        master_for: Option<(Duration, Moment)>,
    },
    /// Sentinels have named this address, to which the requested connection leads. It is shown in
    /// reports.
    Located(&'a str),
    /// The name of the node has several addresses, and the requested connection is now tried to
    /// this one as well. If it fails, reports show which were tried.
    Trying(&'a str),
    /// The first bytes of a connection are not from a Redis server: if it fails for that reason,
    /// reports show the start of them, masked.
    Foreign(Foreign<'a>),
    /// The requested connection is established. With TLS, the TLS handshake is complete, and the
    /// server was verified.
    Connected,
    /// The connection ended, or could not be established.
    Disconnected(NodeOutcome),
    /// As [`Disconnected`](NodeEvent::Disconnected), with a text for reports, in which possible
    /// secrets are masked.
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
    /// The next replies might have waited in the socket: their delay is neither used as latency nor
    /// shown with the last outcome. It lasts until [`ReadingInTime`](NodeEvent::ReadingInTime).
    ReadingLate {
        /// The arrival of the first of them, if known.
        since: Option<Moment>,
    },
    /// Replies are read as they arrive.
    ReadingInTime,
    /// The server reported its time: the same as this reply for
    /// [`handle_reply`](super::Engine::handle_reply), at less cost.
    Told(Duration),
    /// The socket accepts no more bytes, and the caller's buffer is full. The engine sends nothing
    /// to this node until it is [`Writable`](NodeEvent::Writable).
    Blocked,
    /// The socket accepts bytes again.
    Writable,
}
