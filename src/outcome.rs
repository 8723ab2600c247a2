//! A node's answer in a round, or why there was none. It never contains a secret.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The result of one node in a round.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node's index in the configuration, from 0.
    pub node: usize,
    /// Its address, without credentials.
    pub address: Arc<str>,
    /// The node's answer, or the reason why it did not answer.
    pub outcome: NodeOutcome,
    /// The time from the start of the round to the outcome. `None` while the outcome is pending, or
    /// if the node was not asked.
    pub latency: Option<Duration>,
    /// The cause in words, where the outcome needs an explanation: an error of the server or of the
    /// system, the limit that was reached, the address that a Sentinel named, or a remedy.
    /// Passwords and texts like tokens are masked. For [`Unfit::Duplicate`], the address of the
    /// other node. For [`NodeOutcome::Quarantined`], the reason why the server did not store the
    /// time of first contact, if the quarantine counts from then.
    pub message: Option<Arc<str>>,
    /// The reason for its quarantine and the remaining time, if it is in quarantine.
    pub quarantine: Option<Quarantine>,
}

impl NodeReport {
    /// Its quarantine, if that is why its answer does not count.
    pub(crate) fn in_quarantine(&self) -> Option<Quarantine> {
        self.quarantine.filter(|_| self.outcome == NodeOutcome::Quarantined)
    }
}

/// Writes the nodes in brackets, if there are any.
pub(crate) fn write_nodes(nodes: &[impl fmt::Display], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, node) in nodes.iter().enumerate() {
        write!(f, "{}{node}", if i == 0 { " (" } else { "; " })?;
    }
    if nodes.is_empty() { Ok(()) } else { f.write_str(")") }
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} {}: {}", self.node, self.address, self.outcome)?;
        if let Some(Quarantine { cause, ready_in, counted_from }) = self.in_quarantine() {
            write!(f, " for another {ready_in:.1?}: ")?;
            match (cause, counted_from) {
                (QuarantineCause::Restarted, CountedFrom::FirstContact { .. }) => {
                    f.write_str("this client first connected to it a short time ago")?;
                }
                _ => cause.fmt(f)?,
            }
        }
        self.message.iter().try_for_each(|message| write!(f, ": {message}"))
    }
}

/// A node's answer in a round, or the reason why it did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// The node had not answered when the round was decided.
    Pending,
    /// The node granted the lock, extended it, or deleted the key.
    Granted,
    /// The key exists and does not hold this token: another holder has the lock, or the key has a
    /// value of another type.
    Held,
    /// The key does not hold this token: it is absent, has expired, or holds another token.
    Absent,
    /// The node did not finish this phase in time.
    TimedOut(Phase),
    /// The connection ended or could not be made.
    Disconnected(io::ErrorKind),
    /// This process or its machine has reached a limit of open files, threads or memory, so the
    /// client could not try. The client tries again. [`NodeReport::message`] names the limit.
    AtLimit,
    /// No address was found for the node's host name; see
    /// [`Builder::resolver`](crate::Builder::resolver). The client tries again.
    /// [`NodeReport::message`] has the resolver's error.
    Unresolved,
    /// No Sentinel has returned the master's address. The client tries again.
    /// [`NodeReport::message`] has the address of each Sentinel and the reason.
    NoSentinel,
    /// A password file or the function [`Builder::credentials`](crate::Builder::credentials) gave no
    /// credentials, so the client did not connect. The client tries again.
    /// [`NodeReport::message`] has the error.
    NoCredentials,
    /// The TLS handshake failed, or the encrypted connection was broken. The client closed the
    /// connection, and sent no command over one that was not verified.
    Tls(TlsErrorKind),
    /// The node answered with an error.
    Server(ServerErrorKind),
    /// The node broke the protocol. The client closed the connection.
    Protocol(ProtocolError),
    /// The node answered, but its answer does not count. It might have lost a lock that is still
    /// held, or its key of this lock might have been written after such a loss. See
    /// [`RestartGuard`](crate::settings::RestartGuard).
    Quarantined,
    /// The node granted the lock, but proposed a higher fencing token than the lock's.
    Outnumbered,
    /// The node cannot vote in its present state. The client closed the connection and tries again.
    Unfit(Unfit),
    /// The node gives no vote to locks of this kind: their scripts call this command, which is
    /// renamed or forbidden there. Other kinds of lock work. Nothing was sent for the lock.
    MissingCommand(ServerCommand),
    /// The node has too many unanswered commands or pending releases, or its socket accepts no more
    /// bytes. Until then, the client sends it no new SET or extension; releases are still sent.
    Backlogged,
    /// The client has not connected to the node yet.
    NotConnected,
    /// The node is connected and ready, and was not asked for a vote.
    Connected,
}

impl NodeOutcome {
    /// Whether the node failed to vote. `false` for a granted vote, a refusal, and a vote that was
    /// not needed.
    pub fn is_failure(&self) -> bool {
        !matches!(
            self,
            NodeOutcome::Pending
                | NodeOutcome::Granted
                | NodeOutcome::Held
                | NodeOutcome::Absent
                | NodeOutcome::Connected
        )
    }
}

impl fmt::Display for NodeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeOutcome::Pending => f.write_str("no answer yet"),
            NodeOutcome::Granted => f.write_str("granted"),
            NodeOutcome::Held => f.write_str("held by another holder"),
            NodeOutcome::Absent => f.write_str("does not hold this lock's token"),
            NodeOutcome::TimedOut(phase) => write!(f, "timed out ({phase})"),
            // Only a Unix socket's file is not found.
            NodeOutcome::Disconnected(io::ErrorKind::NotFound) => {
                f.write_str("disconnected (there is no such socket file)")
            }
            // The message has the system's words.
            NodeOutcome::Disconnected(kind) if is_unnamed(*kind) => f.write_str("disconnected"),
            NodeOutcome::Disconnected(kind) => write!(f, "disconnected ({kind})"),
            NodeOutcome::AtLimit => f.write_str("not tried: this process is at a limit"),
            NodeOutcome::Unresolved => f.write_str("host name does not resolve"),
            NodeOutcome::NoSentinel => f.write_str("no Sentinel reported where the master is"),
            NodeOutcome::NoCredentials => f.write_str("no credentials for a connection"),
            NodeOutcome::Tls(kind) => write!(f, "TLS failed ({kind})"),
            NodeOutcome::Server(kind) => write!(f, "server error ({kind})"),
            NodeOutcome::Protocol(error) => write!(f, "protocol error ({error})"),
            NodeOutcome::Quarantined => f.write_str("quarantined"),
            NodeOutcome::Outnumbered => {
                f.write_str("granted, but its fencing token is too high to count")
            }
            NodeOutcome::Unfit(reason) => reason.fmt(f),
            NodeOutcome::MissingCommand(command) => {
                write!(f, "{command} is renamed or forbidden, and this kind of lock needs it")
            }
            NodeOutcome::Backlogged => f.write_str("backlogged (earlier commands are unanswered)"),
            NodeOutcome::NotConnected => f.write_str("not connected yet"),
            NodeOutcome::Connected => f.write_str("connected"),
        }
    }
}

const TOO_MANY_OPEN_FILES: i32 = if cfg!(windows) { 10_024 } else { 24 };
/// On the whole machine.
const FILE_TABLE_FULL: i32 = 23;

/// What to do if the system has refused a descriptor or memory; nothing for other errors.
fn remedy(error: &io::Error) -> Option<&'static str> {
    match (error.raw_os_error(), error.kind()) {
        (Some(TOO_MANY_OPEN_FILES), _) => Some("raise the limit of open files (ulimit -n)"),
        (Some(FILE_TABLE_FULL), _) if cfg!(unix) => {
            Some("the whole machine has none left (fs.file-max)")
        }
        (_, io::ErrorKind::OutOfMemory) => Some("give it more memory"),
        _ => None,
    }
}

/// Whether the system has refused a descriptor or memory.
pub(crate) fn is_limit(error: &io::Error) -> bool {
    remedy(error).is_some()
}

/// The text of an error of the system, and what to do if a limit was reached.
pub fn explained(error: &io::Error) -> String {
    match remedy(error) {
        Some(remedy) => format!("{error}: {remedy}"),
        None => error.to_string(),
    }
}

/// The text of an error of the lookup of a name, and its usual causes.
pub(crate) fn explained_lookup(error: &io::Error, host: &str) -> String {
    let text = explained(error);
    // The others are limits, or of the application's resolver.
    if !text.starts_with("failed to lookup address information") {
        return text;
    }
    let cause = match (host.contains('%'), text.contains("Temporary failure")) {
        (true, _) => "is there a network interface with the name behind the %?",
        (false, true) => "no DNS server of this machine answers (/etc/resolv.conf)",
        (false, false) => "check the spelling of the name, /etc/hosts and DNS",
    };
    format!("{text}: {cause}")
}

/// The text of an error of the system on a connection, and its usual causes; nothing if the name of
/// its kind says what happened.
pub fn explained_connection(error: &io::Error) -> Option<String> {
    error.raw_os_error()?;
    let cause = match error.kind() {
        _ if is_limit(error) => return Some(explained(error)),
        io::ErrorKind::AddrNotAvailable => {
            "all local ports for this address are in use (net.ipv4.ip_local_port_range), or this \
             machine has no address in its network"
        }
        io::ErrorKind::PermissionDenied => {
            "a firewall or route of this machine forbids the address, or the permissions of the \
             socket file exclude this user (unixsocketperm)"
        }
        kind if is_unnamed(kind) => return Some(error.to_string()),
        io::ErrorKind::InvalidInput => return Some(error.to_string()),
        _ => return None,
    };
    Some(format!("{error}: {cause}"))
}

/// As [`explained`], for a thread or process that could not be started.
pub fn explained_start(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => format!(
            "{error}: raise the limit of processes and threads (ulimit -u, or that of the container)"
        ),
        _ => explained(error),
    }
}

/// A text for a terminal or a log: what could control either, or hide in it, is escaped.
pub fn printable(text: &str) -> String {
    let is_harmful = |char: char| {
        let directs = '\u{202a}'..='\u{202e}';
        let isolates = '\u{2066}'..='\u{2069}';
        let ends_line = '\u{2028}'..='\u{2029}';
        let is_hidden = ('\u{200b}'..='\u{200f}').contains(&char) || char == '\u{feff}';
        let is_moved = [directs, isolates, ends_line].iter().any(|range| range.contains(&char));
        char.is_control() || is_hidden || is_moved
    };
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match is_harmful(char) {
            true => shown.extend(char.escape_default()),
            false => shown.push(char),
        }
    }
    shown
}

/// Whether the kind says nothing of the error.
pub(crate) fn is_unnamed(kind: io::ErrorKind) -> bool {
    // The second kind has no name that programs could use.
    kind == io::ErrorKind::Other || kind.to_string() == "uncategorized error"
}

/// Why a server cannot vote. The client closes the connection and tries again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// The server is a replica. A writable replica grants locks that its master does not know.
    Replica,
    /// The server is loading its data, so it might not have read all of its locks yet.
    Loading,
    /// The server is a Redis Cluster node or a Sentinel, not an independent master.
    Cluster,
    /// The server's `maxmemory-policy` allows it to evict locks that are still held. Set it to
    /// `noeviction`, or set `maxmemory` to 0.
    Evicts,
    /// This is the same server as another connected node, so its vote would count twice.
    Duplicate,
    /// The server is a master, but its replication id shows that it was a replica since the client
    /// connected.
    Changed,
    /// The server refuses `CLIENT TRACKING`, by which it would notify the client of a flush. Allow
    /// it (`+client|tracking`, on Redis 6 `+client`), or write `?notices=no` behind the address.
    /// Then a flush goes unnoticed.
    NoNotices,
    /// The server does not run the script that a release needs: `EVAL` is renamed or forbidden.
    NoScripts,
    /// The server runs scripts, but this command is renamed or forbidden, and every lock needs it.
    MissingCommand(ServerCommand),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unfit::MissingCommand(command) => {
                return write!(f, "unusable ({command} is renamed or forbidden; allow it)");
            }
            Unfit::Replica => "unusable (a replica; list independent masters only)",
            Unfit::Loading => "unusable (loading its data; wait)",
            Unfit::Cluster => {
                "unusable (a Cluster node or a Sentinel; list independent masters only)"
            }
            Unfit::Evicts => "unusable (maxmemory-policy evicts locks; set noeviction)",
            Unfit::Duplicate => "unusable (the same server as another node; list it once)",
            Unfit::Changed => {
                "unusable (it became a replica and a master again; wait, and do not fail over)"
            }
            Unfit::NoNotices => {
                "unusable (refuses CLIENT TRACKING, so that a flush would not be noticed; allow \
                 +client|tracking (on Redis 6: +client), or add ?notices=no to its address)"
            }
            Unfit::NoScripts => "unusable (does not run the release script; allow EVAL)",
        })
    }
}

/// A command that the scripts of locks call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerCommand {
    /// `DEL`.
    Del,
    /// `EXISTS`.
    Exists,
    /// `GET`.
    Get,
    /// `HGET`.
    Hget,
    /// `HSET`.
    Hset,
    /// `PEXPIRE`.
    Pexpire,
    /// `PEXPIREAT`.
    Pexpireat,
    /// `PTTL`.
    Pttl,
    /// `SET`.
    Set,
    /// `TIME`.
    Time,
    /// `TYPE`.
    Type,
    /// `ZADD`.
    Zadd,
    /// `ZRANGE`.
    Zrange,
    /// `ZREM`.
    Zrem,
    /// `ZREMRANGEBYSCORE`.
    Zremrangebyscore,
    /// `ZSCORE`.
    Zscore,
}

impl ServerCommand {
    /// All with their names, as servers know them, in the order of their numbers.
    pub(crate) const ALL: [(ServerCommand, &str); 16] = [
        (ServerCommand::Del, "DEL"),
        (ServerCommand::Exists, "EXISTS"),
        (ServerCommand::Get, "GET"),
        (ServerCommand::Hget, "HGET"),
        (ServerCommand::Hset, "HSET"),
        (ServerCommand::Pexpire, "PEXPIRE"),
        (ServerCommand::Pexpireat, "PEXPIREAT"),
        (ServerCommand::Pttl, "PTTL"),
        (ServerCommand::Set, "SET"),
        (ServerCommand::Time, "TIME"),
        (ServerCommand::Type, "TYPE"),
        (ServerCommand::Zadd, "ZADD"),
        (ServerCommand::Zrange, "ZRANGE"),
        (ServerCommand::Zrem, "ZREM"),
        (ServerCommand::Zremrangebyscore, "ZREMRANGEBYSCORE"),
        (ServerCommand::Zscore, "ZSCORE"),
    ];

    /// Its name, as servers know it.
    pub fn name(self) -> &'static str {
        ServerCommand::ALL[self as usize].1
    }

    pub(crate) fn named(name: &str) -> Option<ServerCommand> {
        ServerCommand::ALL.into_iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// By which a trial names it, from 1.
    pub(crate) fn number(self) -> usize {
        self as usize + 1
    }

    pub(crate) fn numbered(number: i64) -> Option<ServerCommand> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        ServerCommand::ALL.get(index).map(|row| row.0)
    }
}

impl fmt::Display for ServerCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
    /// The start of the quarantine, which decides when it ends for clients that connect later.
    pub counted_from: CountedFrom,
}

impl Quarantine {
    /// Whether it is the restart guard's: a flush may count without a guard as well.
    pub(crate) fn is_by_guard(self) -> bool {
        self.cause != QuarantineCause::Flushed
    }

    pub(crate) fn new(
        cause: QuarantineCause,
        ready_in: Duration,
        counted_from: CountedFrom,
    ) -> Quarantine {
        Quarantine { cause, ready_in, counted_from }
    }
}

/// The moment from which a quarantine counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CountedFrom {
    /// An event that every client can date, such as the start of the server. A client that connects
    /// later waits only for the remaining time.
    Event,
    /// The moment when this client first saw the server in its present state. Each new client waits
    /// for the whole time again, so a short-lived process must wait that long in one call.
    FirstContact {
        /// The whole time.
        lasts: Duration,
    },
}

/// The reason why a node might have forgotten a lock that is still held. In every case, wait; each
/// variant describes how to avoid it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuarantineCause {
    /// The server was started a short time ago, perhaps without its data.
    Restarted,
    /// The server was a replica, so it might not have received all of its master's locks. Or it was
    /// started from the RDB file of a master that had a replica, because the server reports the
    /// same for both. The first client that sees such a server stores that in a key, so that the
    /// quarantine ends for all clients at once. Use independent masters.
    Promoted,
    /// The server's wall clock jumped forward, so keys expired too early. Slew the clock instead of
    /// stepping it.
    ClockStepped,
    /// The server's data was flushed or replaced, or its
    /// [`flush_marker`](crate::Builder::flush_marker) is new. Forbid `FLUSHALL` and `FLUSHDB`. The
    /// client also reports this if it had no room to record an unconfirmed key.
    Flushed,
    /// The server has evicted keys, which may have been locks. Set its `maxmemory-policy` to
    /// `noeviction`.
    Evicted,
    /// The same server process was seen at another node's address, where its votes might have been
    /// counted.
    Moved,
    /// The server does not report its `run_id` (`INFO` is forbidden). So the client cannot tell
    /// whether it was restarted between two connections. Allow `INFO`.
    Unidentified,
}

impl fmt::Display for QuarantineCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuarantineCause::Restarted => "started a short time ago",
            QuarantineCause::Promoted => {
                "promoted, or started from the RDB file of a master with a replica"
            }
            QuarantineCause::ClockStepped => "its wall clock jumped forward",
            QuarantineCause::Flushed => "its data was flushed or replaced",
            QuarantineCause::Evicted => "it has evicted keys",
            QuarantineCause::Moved => "its process was at another address before",
            QuarantineCause::Unidentified => "it does not report its run_id (allow INFO)",
        })
    }
}

/// The phase in which a node timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// The host name was being looked up, or the credentials were asked for
    /// ([`Builder::credentials`](crate::Builder::credentials)). Both continue.
    Lookup,
    /// The connection was being established.
    Connect,
    /// The connection was established, but the TLS handshake was not complete. The port might not
    /// speak TLS: a server without TLS waits silently for more bytes.
    Tls,
    /// The connection was established, with TLS if the node has it, but the handshake was not
    /// complete.
    Handshake,
    /// A command was sent but not answered.
    Reply,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Lookup => "lookup",
            Phase::Connect => "connect",
            Phase::Tls => "TLS handshake; does this port speak TLS?",
            Phase::Handshake => "handshake",
            Phase::Reply => "reply",
        })
    }
}

/// Why TLS failed. For all kinds, [`NodeReport::message`] has the details. The client tries again,
/// always with TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsErrorKind {
    /// No trusted root has signed the server's certificate. Check `ca=` in the address, or the
    /// roots of the system.
    Untrusted,
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate is not valid yet. Check the clock of this machine.
    NotYetValid,
    /// The server's certificate is for other names. Write one of those, or `server_name=`.
    WrongName,
    /// The server's certificate was revoked.
    Revoked,
    /// The server requires a client certificate and got none that it accepts. Check `cert=` and
    /// `key=`.
    ClientCertificate,
    /// Client and server have no TLS version or cipher in common.
    Version,
    /// Clients cannot use the server's certificate, regardless of its signature: for example, it is
    /// the certificate of an authority. The message describes how to make another.
    Certificate,
    /// The server does not speak TLS. Write `redis://`, or the server's TLS port.
    NotTls,
    /// Another error; see the message.
    Other,
}

impl fmt::Display for TlsErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsErrorKind::Untrusted => "the server's certificate is not trusted",
            TlsErrorKind::Expired => "the server's certificate has expired",
            TlsErrorKind::NotYetValid => "the server's certificate is not valid yet",
            TlsErrorKind::WrongName => "the server's certificate is for another name",
            TlsErrorKind::Revoked => "the server's certificate was revoked",
            TlsErrorKind::ClientCertificate => "the server requires another client certificate",
            TlsErrorKind::Version => "no TLS version or cipher in common",
            TlsErrorKind::Certificate => "the server's certificate cannot be used",
            TlsErrorKind::NotTls => "the server does not speak TLS",
            TlsErrorKind::Other => "other",
        })
    }
}

impl std::error::Error for TlsErrorKind {}

/// How a node broke the protocol. After each of these errors, the client closes the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reply is malformed.
    Malformed,
    /// A reply is larger than any reply that the client expects.
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

/// The kind of an error reply. An error reply is no vote, except that `WRONGTYPE` counts as a
/// refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// The server is loading its data.
    Loading,
    /// The server refuses writes because it cannot persist them (`MISCONF`).
    Misconfigured,
    /// The server is out of memory.
    OutOfMemory,
    /// The server requires a password, or the password is wrong (`NOAUTH`, `WRONGPASS`).
    Auth,
    /// The user does not have the permission (`NOPERM`).
    Permission,
    /// The server is a replica.
    ReadOnly,
    /// The server is a Redis Cluster node, not an independent master.
    Cluster,
    /// Too few replicas are connected for the server to accept writes (`NOREPLICAS`).
    NoReplicas,
    /// A long-running script blocks the server (`BUSY`).
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
    /// Every kind and its words, in the order of their numbers.
    pub(crate) const ALL: [(ServerErrorKind, &str); 14] = [
        (ServerErrorKind::Loading, "loading"),
        (ServerErrorKind::Misconfigured, "misconfigured"),
        (ServerErrorKind::OutOfMemory, "out of memory"),
        (ServerErrorKind::Auth, "not authenticated"),
        (ServerErrorKind::Permission, "not permitted"),
        (ServerErrorKind::ReadOnly, "read only"),
        (ServerErrorKind::Cluster, "cluster node"),
        (ServerErrorKind::NoReplicas, "too few replicas"),
        (ServerErrorKind::Busy, "busy"),
        (ServerErrorKind::NoScript, "no such script"),
        (ServerErrorKind::WrongType, "wrong type"),
        (ServerErrorKind::UnknownCommand, "unknown command"),
        (ServerErrorKind::MaxClients, "too many clients"),
        (ServerErrorKind::Other, "other"),
    ];
}

impl fmt::Display for ServerErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ServerErrorKind::ALL[*self as usize].1)
    }
}
