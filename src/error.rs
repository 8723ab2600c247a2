//! What can go wrong, with what each node said.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::quorum::NODES_MAX;
use crate::resource::RESOURCE_BYTES_MAX;

/// Why a configuration was refused. Every variant names the value and its bound, if any.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// No node was given.
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
    /// Two nodes are one and the same server: its vote would count twice (R34).
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
    /// [`Heal`](crate::Heal) is on and the [`RestartGuard`](crate::RestartGuard) of a node is off.
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
    /// Fewer nodes than a quorum could be reached; the error says why for each.
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

/// What kind of failure a [`LockError`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockErrorKind {
    /// Somebody else holds the resource, or enough of it that nobody has a quorum. Try later.
    Contended,
    /// Too few masters answered: failures alone made a quorum impossible. Look at the masters. If
    /// none is named, another thread of the client was held up while it worked for all.
    Unavailable,
    /// The quorum came too late: nothing of the validity was left; or, for an extension, the lock
    /// was no longer ours on a quorum. The lock is not held.
    Expired,
    /// The TTL is shorter than the clock drift it must allow for, or longer than
    /// [`max_ttl`](crate::Builder::max_ttl). Nothing was sent.
    InvalidTtl {
        /// The TTL that was asked for.
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
    /// Too many operations are in flight. Nothing was sent; let some finish first.
    Overloaded,
    /// The operating system gave no random bytes for a token. Nothing was sent.
    NoEntropy,
    /// The client was made before this process was forked off, and belongs to its parent. Nothing
    /// was sent: make a client of this process' own.
    Forked,
}

/// An operation that did not succeed, with what each node said.
///
/// After any failed attempt to lock, the release of whatever it left on the masters is already on
/// its way: there is nothing to clean up.
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

    pub(crate) fn invalid_resource(bytes: usize) -> LockError {
        LockError::new(LockErrorKind::InvalidResource { bytes }, 0, Vec::new())
    }

    pub(crate) fn forked() -> LockError {
        LockError::new(LockErrorKind::Forked, 0, Vec::new())
    }

    pub(crate) fn expired() -> LockError {
        LockError::new(LockErrorKind::Expired, 0, Vec::new())
    }

    /// Another thread of the client was held up while it worked for all.
    pub(crate) fn unserved() -> LockError {
        LockError::new(LockErrorKind::Unavailable, 0, Vec::new())
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> LockErrorKind {
        self.0.kind
    }

    /// What each node said in the last round, in the order of configuration. Empty if nothing was
    /// sent, or if another thread, which worked for all of this client's, was held up for so long
    /// that nobody knows.
    pub fn nodes(&self) -> &[NodeReport] {
        &self.0.nodes
    }

    /// How many rounds were tried.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// How long it will be until enough nodes have left quarantine for a quorum, if all of them and
    /// those that had not answered would grant; `None` if quarantine was not what was missing.
    pub fn ready_in(&self) -> Option<Duration> {
        let is_free = |report: &&NodeReport| {
            matches!(report.outcome, NodeOutcome::Granted | NodeOutcome::Pending)
        };
        let granted = self.nodes().iter().filter(is_free).count();
        let missing = crate::quorum(self.nodes().len()).checked_sub(granted + 1)?;
        let mut waits: Vec<_> = self
            .nodes()
            .iter()
            .filter(|report| report.outcome == NodeOutcome::Quarantined)
            .filter_map(|report| report.quarantine.map(|quarantine| quarantine.ready_in))
            .collect();
        waits.sort_unstable();
        waits.get(missing).copied()
    }

    /// Whether somebody else holds the resource.
    pub fn is_contended(&self) -> bool {
        self.kind() == LockErrorKind::Contended
    }

    /// Whether too few masters answered.
    pub fn is_unavailable(&self) -> bool {
        self.kind() == LockErrorKind::Unavailable
    }

    /// Whether the lock's validity was over before the answer was complete.
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
                f.write_str("contended: this client has it, or asks for it already")?;
            }
            LockErrorKind::Contended => {
                let held = count(|outcome| matches!(outcome, NodeOutcome::Held));
                write!(f, "contended: {held} of {total} nodes hold another token")?;
            }
            LockErrorKind::Unavailable if total == 0 => {
                f.write_str("unavailable: another thread of this client was held up meanwhile")?;
            }
            LockErrorKind::Unavailable => {
                let failed = count(NodeOutcome::is_failure);
                write!(f, "unavailable: {failed} of {total} nodes gave no vote")?;
            }
            LockErrorKind::Expired => {
                let absent = count(|outcome| matches!(outcome, NodeOutcome::Absent));
                match absent {
                    0 => f.write_str("expired: no validity was left")?,
                    _ => {
                        write!(f, "expired: on {absent} of {total} nodes it is not ours any more")?
                    }
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
                f.write_str("the operating system gave no random bytes for a token")?;
            }
            LockErrorKind::Forked => {
                f.write_str("this client belongs to the process that this one was forked from")?;
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

/// What to do about a quarantine.
const QUARANTINE_HINT: &str = "; a master that may have forgotten a lock does not vote until that \
     lock is over: wait, or in development switch it off with restart_guard(RestartGuard::Off) \
     or ?restart_guard=off";

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
    /// The node's place in the configuration, from 0.
    pub node: usize,
    /// Its address, without credentials.
    pub address: Arc<str>,
    /// What it said, or why it said nothing.
    pub outcome: NodeOutcome,
    /// The time from the start of the round to the outcome; `None` while it is pending or when
    /// the node was not asked.
    pub latency: Option<Duration>,
    /// The server's words behind [`NodeOutcome::Server`], without anything that was sent to it;
    /// or the address of the other node behind [`Unfit::Duplicate`].
    pub message: Option<Arc<str>>,
    /// Why the node's votes do not count for now, and for how long, if so.
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

/// What a node said in a round, or why it said nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// It had not answered when the round was decided without it.
    Pending,
    /// It granted the lock, extended it, or deleted the key.
    Granted,
    /// Another token holds the key.
    Held,
    /// The key is not ours there: absent, expired, or taken by somebody else.
    Absent,
    /// It did not get this far in time.
    TimedOut(Phase),
    /// The connection ended or could not be made.
    Disconnected(io::ErrorKind),
    /// No address was found for its host name; see [`Builder::resolver`](crate::Builder::resolver).
    /// It is tried again. A log record of level `debug` says what the resolver said.
    Unresolved,
    /// It answered with an error.
    Server(ServerErrorKind),
    /// It broke the protocol; the connection was closed.
    Protocol(ProtocolError),
    /// It answered, but may have forgotten a lock that is still held, or may have done so when it
    /// took this one: what it says does not count for now. See
    /// [`RestartGuard`](crate::RestartGuard).
    Quarantined,
    /// It cannot vote as it is; the connection was closed, and is tried again.
    Unfit(Unfit),
    /// It has left so much unanswered that nothing more is sent to it for now.
    Backlogged,
    /// It has not been connected to yet.
    NotConnected,
    /// It is connected and ready; it was not asked for a vote.
    Connected,
}

impl NodeOutcome {
    /// Whether the node's vote is missing rather than a yes or a no.
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
            NodeOutcome::Absent => f.write_str("not ours"),
            NodeOutcome::TimedOut(phase) => write!(f, "timed out ({phase})"),
            NodeOutcome::Disconnected(kind) => write!(f, "disconnected ({kind})"),
            NodeOutcome::Unresolved => f.write_str("its name does not resolve"),
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

/// Why a server cannot vote, as it said itself when it was connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// It is a replica: a writable one grants what its master knows nothing of (R33).
    Replica,
    /// It is loading its data, and may not have read all of its locks yet (R33).
    Loading,
    /// It is part of a Redis Cluster or a sentinel, which independent masters are not (R33).
    Cluster,
    /// Its `maxmemory-policy` lets it evict locks that are still held: set it to `noeviction`, or
    /// `maxmemory` to 0.
    Evicts,
    /// It is the same server as another node that is connected: its vote would count twice (R34).
    Duplicate,
    /// It is a master, but of another history of data than when it was connected to: it was a
    /// replica in between.
    Changed,
    /// It does not run the script that a release needs: `EVAL` is renamed or forbidden.
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
            Unfit::Changed => "unfit (its data is not what it was)",
            Unfit::NoScripts => "unfit (does not run the release script)",
        })
    }
}

/// A node's votes do not count for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantine {
    /// Why.
    pub cause: QuarantineCause,
    /// How much longer.
    pub ready_in: Duration,
}

impl Quarantine {
    pub(crate) fn new(cause: QuarantineCause, ready_in: Duration) -> Quarantine {
        Quarantine { cause, ready_in }
    }
}

/// How a node may have come to forget a lock that is still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuarantineCause {
    /// It was started a short time ago, maybe without its data.
    Restarted,
    /// It was a replica, and need not have known all that its master knew.
    Promoted,
    /// Its wall clock jumped forward, and keys expired too early.
    ClockStepped,
    /// Its [`flush_marker`](crate::Builder::flush_marker) was gone.
    Flushed,
    /// Its process was at another node's address before, and may have been counted there.
    Moved,
    /// It does not say which process it is (`INFO` is forbidden), so that it may have been
    /// restarted before each connection.
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
            QuarantineCause::Unidentified => "it does not tell its run_id",
        })
    }
}

/// How far a node had got when its time was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Its host name was being looked up, which goes on.
    Lookup,
    /// The connection was being established.
    Connect,
    /// The connection stood, but the handshake was not answered.
    Handshake,
    /// A command was sent and not answered.
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

/// How a node broke the protocol. Each ends its connection (R17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reply is malformed.
    Malformed,
    /// A reply is larger than any that was asked for.
    TooLarge,
    /// A reply is of a kind that was not asked for.
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

/// An error reply by its meaning for a lock. None of them is a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// The server is loading its data.
    Loading,
    /// The server refuses writes because it cannot save them.
    Misconfigured,
    /// The server is out of memory.
    OutOfMemory,
    /// It wants a password, or the password is wrong.
    Auth,
    /// The user may not do this.
    Permission,
    /// It is a replica.
    ReadOnly,
    /// It is part of a Redis Cluster, which independent masters are not.
    Cluster,
    /// Too few replicas are connected for it to accept writes.
    NoReplicas,
    /// A script is blocking it.
    Busy,
    /// It does not know the script.
    NoScript,
    /// The key holds something else than a lock.
    WrongType,
    /// It does not know the command.
    UnknownCommand,
    /// It has too many clients.
    MaxClients,
    /// Something else; see the message.
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
