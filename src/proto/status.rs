//! What an engine shows for monitoring: its counters, and the state of each node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::command::ReleaseWith;
use super::failure::Failure;
pub use super::nodes::ErrorCounts;
#[cfg(feature = "unstable-tool")]
use super::{Engine, OpId};
#[cfg(feature = "unstable-tool")]
use crate::lock_error::LockError;
use crate::outcome::{NodeOutcome, Quarantine};

/// Why an acquisition that waits has no lock yet: the result of its last round.
#[cfg(feature = "unstable-tool")]
pub(crate) fn last_refusal(engine: &Engine, id: OpId) -> Option<&LockError> {
    let last = engine.operations.last_of(engine.operations.patience_of(id)?.0)?;
    let shared = || Some(&engine.waits.local.queues.report_of(&last.key)?.1);
    last.report.as_ref().or_else(shared)
}

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
    /// The reason why its last connection ended or failed.
    pub last_failure: Option<NodeOutcome>,
    /// The last error message of the server, or the text of its last failure, whichever was later.
    /// Passwords and texts like tokens are masked.
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
    /// The node is connected, but might have forgotten a lock that is still held: its answers do
    /// not count.
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
            QueueObstacle::Tracking => "CLIENT TRACKING or CLIENT CACHING was refused",
            QueueObstacle::Channel => "SUBSCRIBE or PUBLISH was refused",
            QueueObstacle::Queue => "the scripts of the queue were refused",
            QueueObstacle::Connection => "its connections ended while the client tried",
        })
    }
}

/// Counters since the engine was created. Two fields, `waiting` and `held`, are gauges: they count
/// the present. Each acquisition is counted once, by its result, after any number of rounds.
/// Acquisitions that fail for other reasons are not counted. Renewals count as extensions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Rounds of acquisition that were started.
    pub rounds: u64,
    /// Locks granted.
    pub acquired: u64,
    /// Acquisitions that ended because another holder has the lock.
    pub contended: u64,
    /// Acquisitions that ended because too few masters gave a vote.
    pub unavailable: u64,
    /// Acquisitions that ended because the quorum came too late.
    pub expired: u64,
    /// Acquisitions whose wait ended in their first round, before enough masters had answered.
    pub timed_out: u64,
    /// Operations that were cancelled before their result was taken.
    pub cancelled: u64,
    /// Extensions that succeeded.
    pub extended: u64,
    /// Missing keys that extensions set again; see [`Heal`](crate::settings::Heal).
    pub healed: u64,
    /// Extensions that failed.
    pub extensions_failed: u64,
    /// Renewed locks that were lost, for any [cause](crate::LossCause).
    pub lost: u64,
    /// Releases by the owner of a lock, dropped guards included.
    pub released: u64,
    /// Replies that arrived after their timeout.
    pub late_replies: u64,
    /// Connections that became ready.
    pub connected: u64,
    /// Connections that ended or failed.
    pub disconnected: u64,
    /// Error replies outside of handshakes. An attempt to take a lock that readers hold adds one
    /// `WRONGTYPE` per master, because its release finds a key of another type.
    pub server_errors: u64,
    /// Answers that did not count, because the node was in quarantine or its key was unconfirmed.
    pub uncounted: u64,
    /// Times that a node was put into quarantine.
    pub quarantines: u64,
    /// Times that a node's wall clock was seen to jump forward.
    pub clock_jumps: u64,
    /// Old connections whose `CLIENT KILL` the server confirmed. A command that was sent on such a
    /// connection can no longer run.
    pub connections_killed: u64,
    /// Locks granted with a fencing token.
    pub fenced: u64,
    /// Commands that raised a master's counter to the lock's fencing token, because the master had
    /// proposed a lower one.
    pub tokens_confirmed: u64,
    /// Positions taken in the queues on the masters; see [`Waiting`](crate::settings::Waiting).
    pub queued: u64,
    /// Notifications received that it is this client's turn to take a lock.
    pub notifications_received: u64,
    /// Locks whose release notified the next client in the queue.
    pub notifications_sent: u64,
    /// Locks taken ahead of a client that was next in the queue and did not react.
    pub skipped: u64,
    /// Rounds that were refused, although the lock had seemed to be free.
    pub spurious_wakeups: u64,
    /// Waits that moved to another queue node, because the previous one was lost or slow.
    pub requeued: u64,
    /// Acquisitions in flight now: their callers have no result yet.
    pub waiting: u64,
    /// Locks that are held now: granted, and neither released nor let go. Every such lock counts
    /// until it is released, even while an operation on it is in flight or after it has expired. An
    /// adopted lock counts from its first extension on.
    ///
    /// A [`Lease`](super::Lease) that is dropped counts forever. So does one that another engine
    /// takes without [`let_go`](super::Engine::let_go). Dropping a [`LockGuard`] releases it, and
    /// [`into_parts`](crate::LockGuard::into_parts) lets go.
    ///
    /// [`LockGuard`]: crate::LockGuard
    pub held: u64,
}

impl Stats {
    /// An acquisition has failed.
    pub(super) fn count_failure(&mut self, failure: Failure) {
        match failure {
            Failure::Contended => self.contended += 1,
            Failure::Unavailable => self.unavailable += 1,
            Failure::Expired => self.expired += 1,
            Failure::TimedOut => self.timed_out += 1,
            Failure::NoEntropy => {}
        }
    }
}
