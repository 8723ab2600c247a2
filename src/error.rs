//! Errors: what an operation came to, and what each node contributed.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::quorum::{NODES_MAX, quorum};
use crate::resource::{InvalidResource, RESOURCE_BYTES_MAX, Resource};
use crate::validity::InvalidFactor;

/// Why a configuration was refused. Every variant names the value and its bound, if any.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// No node is configured.
    NoNodes,
    /// More nodes were given than [`NODES_MAX`].
    TooManyNodes {
        /// How many were given.
        nodes: usize,
    },
    /// An address does not parse.
    Url {
        /// The address, without its password.
        url: String,
        /// What is wrong with it, and where.
        reason: String,
    },
    /// Two nodes are the same server: its vote would count twice (R34).
    Duplicate {
        /// The node listed first.
        first: String,
        /// The node listed later.
        second: String,
    },
    /// A time is zero or beyond its bound.
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
    /// The drift factor is not a number from 0 up to, but not including, 1.
    DriftFactor {
        /// The value that was given.
        factor: f64,
    },
    /// The key prefix is too long.
    KeyPrefix {
        /// Its length in bytes.
        bytes: usize,
        /// The greatest length allowed.
        max: usize,
    },
    /// The flush marker is empty or too long.
    FlushMarker {
        /// Its length in bytes.
        bytes: usize,
        /// The greatest length allowed.
        max: usize,
    },
    /// [`Heal`](crate::Heal) is on, but the [`RestartGuard`](crate::RestartGuard) of a node is off.
    HealUnguarded {
        /// The node's address.
        node: String,
    },
    /// The operating system refused a resource that the event loop needs.
    Os(io::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::NoNodes => f.write_str("no node given: a lock needs at least one master"),
            ConfigError::TooManyNodes { nodes } => {
                write!(f, "{nodes} nodes given: at most {NODES_MAX} are allowed")
            }
            ConfigError::Url { url, reason } => write!(f, "cannot use the address {url}: {reason}"),
            ConfigError::Duplicate { first, second } => {
                write!(f, "{first} and {second} are the same server: its vote would count twice")
            }
            ConfigError::Time { setting, value, min, max } => {
                write!(f, "{setting} is {value:?}: it must be from {min:?} to {max:?}")
            }
            ConfigError::DriftFactor { factor } => {
                write!(f, "drift_factor is {factor}: it must be at least 0 and less than 1")
            }
            ConfigError::KeyPrefix { bytes, max } => {
                write!(f, "key_prefix has {bytes} bytes: at most {max} are allowed")
            }
            ConfigError::FlushMarker { bytes, max } => {
                write!(f, "flush_marker has {bytes} bytes: it must have 1 to {max}")
            }
            ConfigError::HealUnguarded { node } => {
                write!(f, "heal is on and the restart guard of {node} is off: it must be on")
            }
            ConfigError::Os(error) => write!(f, "cannot set up the event loop: {error}"),
        }
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ConfigError::Os(source) => Some(source),
            _ => None,
        }
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

impl From<InvalidFactor> for ConfigError {
    fn from(error: InvalidFactor) -> ConfigError {
        ConfigError::DriftFactor { factor: error.0 }
    }
}

impl From<ConfigError> for ConnectError {
    fn from(error: ConfigError) -> ConnectError {
        ConnectError::Config(error)
    }
}

/// What kind of failure a [`LockError`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockErrorKind {
    /// Another client holds the resource, or contending clients hold so many masters that no client
    /// has a quorum. Try again later.
    Contended,
    /// Too few masters answered: the failures alone made a quorum impossible. Check the masters
    /// that the error lists. If it lists none, another thread of this client was delayed while it
    /// ran the client's event loop.
    Unavailable,
    /// The quorum came too late: no validity was left. For an extension: the lock no longer had
    /// this token on a quorum. The lock is not held.
    Expired,
    /// The TTL is shorter than the clock drift it must allow for, or longer than
    /// [`max_ttl`](crate::Builder::max_ttl). Nothing was sent.
    InvalidTtl {
        /// The requested TTL.
        ttl: Duration,
        /// The shortest TTL allowed.
        min: Duration,
        /// The longest TTL allowed.
        max: Duration,
    },
    /// The resource name is empty or longer than [`RESOURCE_BYTES_MAX`]. Nothing was sent.
    InvalidResource {
        /// Its length in bytes.
        bytes: usize,
    },
    /// Too many operations are in flight. Nothing was sent. Wait until some have finished.
    Overloaded,
    /// The operating system returned no random bytes for a token. Nothing was sent.
    NoEntropy,
    /// The client was made before this process was forked, and belongs to the parent process.
    /// Nothing was sent. Make a new client in this process.
    Forked,
}

/// An operation that did not succeed, with the outcome on each node.
///
/// After a failed attempt to lock, the client already sends the release of whatever the attempt
/// left on the masters. The caller has nothing to clean up.
#[derive(Clone)]
pub struct LockError(Box<LockErrorInner>);

#[derive(Clone)]
struct LockErrorInner {
    kind: LockErrorKind,
    attempts: u32,
    nodes: Vec<NodeReport>,
}

impl LockError {
    pub(crate) fn new(kind: LockErrorKind, attempts: u32, nodes: Vec<NodeReport>) -> LockError {
        LockError(Box::new(LockErrorInner { kind, attempts, nodes }))
    }

    pub(crate) fn forked() -> LockError {
        LockError::new(LockErrorKind::Forked, 0, Vec::new())
    }

    pub(crate) fn expired() -> LockError {
        LockError::new(LockErrorKind::Expired, 0, Vec::new())
    }

    /// Another thread of the client was delayed while it ran the event loop for all threads.
    pub(crate) fn unserved() -> LockError {
        LockError::new(LockErrorKind::Unavailable, 0, Vec::new())
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> LockErrorKind {
        self.0.kind
    }

    /// The outcome on each node in the last round, in the order of configuration. Empty if nothing
    /// was sent. Also empty if the thread that ran the client's event loop was delayed for so long
    /// that the outcome is unknown.
    pub fn nodes(&self) -> &[NodeReport] {
        &self.0.nodes
    }

    /// How many rounds were attempted.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// How long it takes until enough nodes have left quarantine for a quorum. This assumes that
    /// these nodes, and those that had not answered, then grant. `None` if the round did not fail
    /// because of quarantine.
    pub fn ready_in(&self) -> Option<Duration> {
        let is_free = |report: &&NodeReport| {
            matches!(report.outcome, NodeOutcome::Granted | NodeOutcome::Pending)
        };
        let granted = self.nodes().iter().filter(is_free).count();
        let missing = quorum(self.nodes().len()).checked_sub(granted + 1)?;
        let mut waits: Vec<_> = self
            .nodes()
            .iter()
            .filter(|report| report.outcome == NodeOutcome::Quarantined)
            .filter_map(|report| report.quarantine.map(|quarantine| quarantine.ready_in))
            .collect();
        waits.sort_unstable();
        waits.get(missing).copied()
    }

    /// Whether another client holds the resource.
    pub fn is_contended(&self) -> bool {
        self.kind() == LockErrorKind::Contended
    }

    /// Whether too few masters answered.
    pub fn is_unavailable(&self) -> bool {
        self.kind() == LockErrorKind::Unavailable
    }

    /// Whether the lock's validity had ended before the answer was complete.
    pub fn is_expired(&self) -> bool {
        self.kind() == LockErrorKind::Expired
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.nodes().len();
        let count = |wanted: fn(&NodeOutcome) -> bool| {
            self.nodes().iter().filter(|report| wanted(&report.outcome)).count()
        };
        match self.kind() {
            LockErrorKind::Contended if total == 0 => {
                f.write_str("contended: this client already holds the lock or is acquiring it")?;
            }
            LockErrorKind::Contended => {
                let held = count(|outcome| matches!(outcome, NodeOutcome::Held));
                write!(f, "contended: {held} of {total} nodes hold another token")?;
            }
            LockErrorKind::Unavailable if total == 0 => {
                f.write_str("unavailable: another thread of this client was delayed")?;
            }
            LockErrorKind::Unavailable => {
                let failed = count(NodeOutcome::is_failure);
                write!(f, "unavailable: {failed} of {total} nodes gave no vote")?;
            }
            LockErrorKind::Expired => {
                let absent = count(|outcome| matches!(outcome, NodeOutcome::Absent));
                match absent {
                    0 => f.write_str("expired: no validity was left")?,
                    _ => write!(f, "expired: {absent} of {total} nodes no longer hold our token")?,
                }
            }
            LockErrorKind::InvalidTtl { ttl, min, max } => {
                write!(f, "the ttl is {ttl:?}: it must be from {min:?} to {max:?} (max_ttl)")?;
            }
            LockErrorKind::InvalidResource { bytes } => write!(
                f,
                "the resource name has {bytes} bytes: it must have 1 to {RESOURCE_BYTES_MAX}"
            )?,
            LockErrorKind::Overloaded => f.write_str("too many operations are in flight")?,
            LockErrorKind::NoEntropy => {
                f.write_str("the operating system returned no random bytes for a token")?;
            }
            LockErrorKind::Forked => {
                f.write_str("this client belongs to the parent process: make a new one")?;
            }
        }
        for (i, report) in self.nodes().iter().enumerate() {
            f.write_str(if i == 0 { " (" } else { "; " })?;
            report.fmt(f)?;
        }
        if total > 0 {
            f.write_str(")")?;
        }
        if count(|outcome| matches!(outcome, NodeOutcome::Quarantined)) > 0 {
            f.write_str(QUARANTINE_HINT)?;
        }
        Ok(())
    }
}

/// Tells the user what to do about a quarantine.
const QUARANTINE_HINT: &str = "; a master that may have forgotten a lock does not vote until that \
     lock has expired: wait, or in development switch the guard off with \
     restart_guard(RestartGuard::Off) or ?restart_guard=off";

impl fmt::Debug for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockError")
            .field("kind", &self.0.kind)
            .field("attempts", &self.0.attempts)
            .field("nodes", &self.0.nodes)
            .finish()
    }
}

impl std::error::Error for LockError {}

impl From<InvalidResource> for LockError {
    fn from(error: InvalidResource) -> LockError {
        LockError::new(LockErrorKind::InvalidResource { bytes: error.bytes }, 0, Vec::new())
    }
}

/// Here, since a resource knows no error of an operation.
impl Resource {
    /// Checks and stores a name.
    ///
    /// # Errors
    /// [`LockErrorKind::InvalidResource`] if the name is empty or longer than
    /// [`RESOURCE_BYTES_MAX`]; use another name.
    pub fn new(name: impl AsRef<[u8]>) -> Result<Resource, LockError> {
        Ok(Resource::checked(name.as_ref())?)
    }
}

/// `Contended` becomes `WouldBlock`, `Unavailable` becomes `NotConnected`, `Expired` becomes
/// `TimedOut` and bad input becomes `InvalidInput`.
impl From<LockError> for io::Error {
    fn from(error: LockError) -> io::Error {
        let kind = match error.kind() {
            LockErrorKind::Contended => io::ErrorKind::WouldBlock,
            LockErrorKind::Unavailable => io::ErrorKind::NotConnected,
            LockErrorKind::Expired => io::ErrorKind::TimedOut,
            LockErrorKind::InvalidTtl { .. } | LockErrorKind::InvalidResource { .. } => {
                io::ErrorKind::InvalidInput
            }
            LockErrorKind::Overloaded | LockErrorKind::NoEntropy | LockErrorKind::Forked => {
                io::ErrorKind::Other
            }
        };
        io::Error::new(kind, error)
    }
}

/// What one node contributed to a round.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node's index in the configuration, from 0.
    pub node: usize,
    /// Its address, without credentials.
    pub address: Arc<str>,
    /// What the node answered, or why it did not answer.
    pub outcome: NodeOutcome,
    /// The time from the start of the round to the outcome. `None` while the outcome is pending, or
    /// if the node was not asked.
    pub latency: Option<Duration>,
    /// The server's error message for [`NodeOutcome::Server`], without anything that was sent to
    /// the server. For [`Unfit::Duplicate`], the address of the other node.
    pub message: Option<Arc<str>>,
    /// Why and for how long the node's votes do not count, if it is in quarantine.
    pub quarantine: Option<Quarantine>,
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} {}: {}", self.node, self.address, self.outcome)?;
        if let Some(message) = &self.message {
            write!(f, ": {message}")?;
        }
        match &self.quarantine {
            Some(quarantine) if self.outcome == NodeOutcome::Quarantined => {
                write!(f, " for another {:.1?}: {}", quarantine.ready_in, quarantine.cause)
            }
            _ => Ok(()),
        }
    }
}

/// What a node answered in a round, or why it did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// The node had not answered when the round was decided.
    Pending,
    /// The node granted the lock, extended it, or deleted the key.
    Granted,
    /// Another token holds the key.
    Held,
    /// The key does not hold this token: it is absent, has expired, or holds another token.
    Absent,
    /// The node did not finish this phase in time.
    TimedOut(Phase),
    /// The connection ended or could not be made.
    Disconnected(io::ErrorKind),
    /// No address was found for the node's host name; see
    /// [`Builder::resolver`](crate::Builder::resolver). The client tries again. A log record of
    /// level `debug` has the resolver's error.
    Unresolved,
    /// The node answered with an error.
    Server(ServerErrorKind),
    /// The node broke the protocol. The client closed the connection.
    Protocol(ProtocolError),
    /// The node answered, but it may have forgotten a lock that is still held, or may have done so
    /// when it took this one. Its answer does not count for now. See
    /// [`RestartGuard`](crate::RestartGuard).
    Quarantined,
    /// The node cannot vote in its present state. The client closed the connection and tries again.
    Unfit(Unfit),
    /// The node has left so many commands unanswered that the client sends it no more for now.
    Backlogged,
    /// The client has not connected to the node yet.
    NotConnected,
    /// The node is connected and ready, and was not asked for a vote.
    Connected,
}

impl NodeOutcome {
    /// Whether the node failed to vote. `false` for a yes, a no, and a vote that was not needed.
    pub fn is_failure(&self) -> bool {
        match self {
            NodeOutcome::Pending
            | NodeOutcome::Granted
            | NodeOutcome::Held
            | NodeOutcome::Absent
            | NodeOutcome::Connected => false,
            NodeOutcome::TimedOut(_)
            | NodeOutcome::Disconnected(_)
            | NodeOutcome::Unresolved
            | NodeOutcome::Server(_)
            | NodeOutcome::Protocol(_)
            | NodeOutcome::Quarantined
            | NodeOutcome::Unfit(_)
            | NodeOutcome::Backlogged
            | NodeOutcome::NotConnected => true,
        }
    }
}

impl fmt::Display for NodeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeOutcome::Pending => f.write_str("no answer yet"),
            NodeOutcome::Granted => f.write_str("granted"),
            NodeOutcome::Held => f.write_str("held by another token"),
            NodeOutcome::Absent => f.write_str("does not hold our token"),
            NodeOutcome::TimedOut(phase) => write!(f, "timed out ({phase})"),
            NodeOutcome::Disconnected(kind) => write!(f, "disconnected ({kind})"),
            NodeOutcome::Unresolved => f.write_str("host name does not resolve"),
            NodeOutcome::Server(kind) => write!(f, "server error ({kind})"),
            NodeOutcome::Protocol(error) => write!(f, "protocol error ({error})"),
            NodeOutcome::Quarantined => f.write_str("quarantined"),
            NodeOutcome::Unfit(reason) => reason.fmt(f),
            NodeOutcome::Backlogged => f.write_str("backlogged"),
            NodeOutcome::NotConnected => f.write_str("not connected yet"),
            NodeOutcome::Connected => f.write_str("connected"),
        }
    }
}

/// Why a server cannot vote, as it reported when the client connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// The server is a replica. A writable replica grants locks that its master does not know
    /// (R33).
    Replica,
    /// The server is loading its data and may not have read all of its locks yet (R33).
    Loading,
    /// The server is a Redis Cluster node or a sentinel, not an independent master (R33).
    Cluster,
    /// The server's `maxmemory-policy` lets it evict locks that are still held. Set it to
    /// `noeviction`, or set `maxmemory` to 0.
    Evicts,
    /// The server is the same as another connected node: its vote would count twice (R34).
    Duplicate,
    /// The server is a master, but its replication history is not the one it had when the client
    /// connected: it was a replica in between.
    Changed,
    /// The server does not run the script that a release needs: `EVAL` is renamed or forbidden.
    NoScripts,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unfit::Replica => "unfit (a replica)",
            Unfit::Loading => "unfit (loading its data)",
            Unfit::Cluster => "unfit (not a standalone master)",
            Unfit::Evicts => "unfit (maxmemory-policy evicts locks; set noeviction)",
            Unfit::Duplicate => "unfit (the same server as another node)",
            Unfit::Changed => "unfit (its replication history changed)",
            Unfit::NoScripts => "unfit (does not run the release script)",
        })
    }
}

/// Why a node's votes do not count, and for how much longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantine {
    /// The reason.
    pub cause: QuarantineCause,
    /// The remaining time.
    pub ready_in: Duration,
}

impl Quarantine {
    pub(crate) fn new(cause: QuarantineCause, ready_in: Duration) -> Quarantine {
        Quarantine { cause, ready_in }
    }
}

/// Why a node may have forgotten a lock that is still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuarantineCause {
    /// The server was started a short time ago, maybe without its data.
    Restarted,
    /// The server was a replica, and may not have received all of its master's locks.
    Promoted,
    /// The server's wall clock jumped forward, so keys expired too early.
    ClockStepped,
    /// The server's [`flush_marker`](crate::Builder::flush_marker) was gone.
    Flushed,
    /// The same server process was seen at another node's address, and its votes may have been
    /// counted there.
    Moved,
    /// The server does not report its `run_id` (`INFO` is forbidden). It may have been restarted
    /// before each connection.
    Unidentified,
}

impl fmt::Display for QuarantineCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuarantineCause::Restarted => "started a short time ago",
            QuarantineCause::Promoted => "promoted from replica",
            QuarantineCause::ClockStepped => "its wall clock jumped forward",
            QuarantineCause::Flushed => "its data was flushed",
            QuarantineCause::Moved => "its process was at another address before",
            QuarantineCause::Unidentified => "it does not report its run_id",
        })
    }
}

/// How far a node had got when its time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// The host name was being looked up. The lookup continues.
    Lookup,
    /// The connection was being established.
    Connect,
    /// The connection was established, but the handshake was not complete.
    Handshake,
    /// A command was sent but not answered.
    Reply,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Lookup => "lookup",
            Phase::Connect => "connect",
            Phase::Handshake => "handshake",
            Phase::Reply => "reply",
        })
    }
}

/// How a node broke the protocol. Each of these ends the connection (R17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reply is malformed.
    Malformed,
    /// A reply is larger than any reply the client asks for.
    TooLarge,
    /// A reply is of a kind the client did not ask for.
    Unexpected,
    /// A reply came without a request.
    Surplus,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProtocolError::Malformed => "malformed reply",
            ProtocolError::TooLarge => "reply too large",
            ProtocolError::Unexpected => "reply of an unexpected kind",
            ProtocolError::Surplus => "reply without a request",
        })
    }
}

/// An error reply, by its meaning for a lock. None of them is a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// The server is loading its data.
    Loading,
    /// The server refuses writes because it cannot save them.
    Misconfigured,
    /// The server is out of memory.
    OutOfMemory,
    /// The server requires a password, or the password is wrong.
    Auth,
    /// The user does not have the permission.
    Permission,
    /// The server is a replica.
    ReadOnly,
    /// The server is a Redis Cluster node, not an independent master.
    Cluster,
    /// Too few replicas are connected for the server to accept writes.
    NoReplicas,
    /// A script blocks the server.
    Busy,
    /// The server does not know the script.
    NoScript,
    /// The key holds a value of another type.
    WrongType,
    /// The server does not know the command.
    UnknownCommand,
    /// The server has reached its client limit.
    MaxClients,
    /// Another error; see the message.
    Other,
}

impl ServerErrorKind {
    /// Every kind, in the order of their numbers.
    pub(crate) const ALL: [ServerErrorKind; 14] = [
        ServerErrorKind::Loading,
        ServerErrorKind::Misconfigured,
        ServerErrorKind::OutOfMemory,
        ServerErrorKind::Auth,
        ServerErrorKind::Permission,
        ServerErrorKind::ReadOnly,
        ServerErrorKind::Cluster,
        ServerErrorKind::NoReplicas,
        ServerErrorKind::Busy,
        ServerErrorKind::NoScript,
        ServerErrorKind::WrongType,
        ServerErrorKind::UnknownCommand,
        ServerErrorKind::MaxClients,
        ServerErrorKind::Other,
    ];
}

impl fmt::Display for ServerErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerErrorKind::Loading => "loading",
            ServerErrorKind::Misconfigured => "misconfigured",
            ServerErrorKind::OutOfMemory => "out of memory",
            ServerErrorKind::Auth => "not authenticated",
            ServerErrorKind::Permission => "not permitted",
            ServerErrorKind::ReadOnly => "read only",
            ServerErrorKind::Cluster => "cluster node",
            ServerErrorKind::NoReplicas => "too few replicas",
            ServerErrorKind::Busy => "busy",
            ServerErrorKind::NoScript => "no such script",
            ServerErrorKind::WrongType => "wrong type",
            ServerErrorKind::UnknownCommand => "unknown command",
            ServerErrorKind::MaxClients => "too many clients",
            ServerErrorKind::Other => "other",
        })
    }
}
