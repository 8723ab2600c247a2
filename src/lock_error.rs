//! Errors of operations.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use crate::outcome::{CountedFrom, NodeOutcome, NodeReport, Quarantine, write_nodes};
use crate::quorum::quorum;
use crate::resource::{
    InvalidResource, LISTED_MAX, LockKind, RESOURCE_BYTES_MAX, RESOURCES_MAX, Resource, SLOTS_MAX,
    SLOTS_NAME_MAX, VALUE_BYTES_MAX,
};

/// The kind of a [`LockError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockErrorKind {
    /// Another holder has the lock, perhaps another thread of this client, or competing attempts
    /// split the masters so that none has a quorum. Try again later. If the error lists no node,
    /// this client holds the lock or is acquiring it, and asked no master. `muxlock inspect` shows
    /// the holder's host, process and program.
    Contended,
    /// Too few masters gave a vote for a quorum. The others were down, slow, refused or in
    /// quarantine; check the masters that the error lists, and [`ready_in`](LockError::ready_in).
    /// If it lists none, another thread of this client was delayed while it ran the client's event
    /// loop.
    Unavailable,
    /// The wait ended before enough masters had answered. The masters can be healthy: wait longer.
    TimedOut,
    /// For an acquisition: the quorum came too late, and no validity was left. For an extension:
    /// the old validity had ended, or too few masters still hold the key with this token. The lock
    /// is not held.
    Expired,
    /// The TTL is not longer than the clock drift it must allow for, or is longer than
    /// [`max_ttl`](crate::Builder::max_ttl). Nothing was sent.
    InvalidTtl {
        /// The requested TTL.
        ttl: Duration,
        /// The shortest TTL allowed.
        min: Duration,
        /// The longest TTL allowed.
        max: Duration,
    },
    /// The resource name is empty or longer than [`RESOURCE_BYTES_MAX`], or than the 1,013 bytes of
    /// a semaphore. Nothing was sent.
    InvalidResource {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The resource's key is `muxlock:fence`, which has the counters for fencing tokens. Or its
    /// name ends in `muxlock:promoted`, where clients store when they first saw a promoted master,
    /// or in `muxlock:marker`, by which they notice a flush. Or a fencing token was requested for a resource that is not one plain name. Nothing was
    /// sent.
    ReservedResource,
    /// A lock of several resources has none, or more than [`RESOURCES_MAX`], or their names have
    /// more than 64 KiB together. Nothing was sent.
    InvalidSet {
        /// The number of resources, without duplicates; 1,025 if more than 1,024 names were listed.
        resources: usize,
        /// The length of their names in bytes.
        bytes: usize,
    },
    /// A semaphore has no permit, or more than [`SLOTS_MAX`]. Nothing was sent.
    InvalidSlots {
        /// The number of permits.
        slots: u32,
    },
    /// The owner value is empty or longer than [`VALUE_BYTES_MAX`]. Nothing was sent.
    InvalidValue {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The adopted lock was not acquired with a fencing token. The client has released it. Acquire
    /// it with [`Redlock::fenced`](crate::Redlock::fenced).
    Unfenced,
    /// 131,072 operations of this client are in flight. Nothing was sent. Wait until some have
    /// completed.
    Overloaded,
    /// The operating system returned no random bytes for a token. Nothing was sent.
    NoEntropy,
    /// The [`Waiter`](crate::Waiter) was cancelled. It acquires no more locks.
    Cancelled,
    /// [`Redlock::close`](crate::Redlock::close) was called. The client acquires no more locks.
    Closed,
    /// The client was created before this process was forked, and belongs to the parent process.
    /// Nothing was sent. Create a client in this process.
    Forked,
}

/// An operation that did not succeed, with the outcome on each node.
///
/// After a failed attempt to lock, the client itself releases the keys that the attempt left on the
/// masters. The caller has nothing to clean up.
///
/// ```no_run
/// # use muxlock::{LockGuard, Redlock};
/// # use std::time::Duration;
/// /// Waits until a quorum can vote again, if quarantine is the reason.
/// fn lock_after_restart(redlock: &Redlock) -> Result<LockGuard, muxlock::LockError> {
///     let ttl = Duration::from_secs(10);
///     redlock.try_lock("invoice:42", ttl).or_else(|error| {
///         for node in error.nodes() {
///             eprintln!("{node}");
///         }
///         match error.ready_in() {
///             Some(wait) => redlock.try_lock_for("invoice:42", ttl, 2 * wait),
///             None => Err(error),
///         }
///     })
/// }
/// ```
#[derive(Clone)]
pub struct LockError(Box<LockErrorInner>);

/// Why no lock can have a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// It is that of the fencing counters.
    Counters,
    /// It is that of a sighting.
    Sighting,
    /// It is that of a marker.
    Marker,
    /// It is not one plain name, which a fencing token needs.
    NotPlain,
}

#[derive(Clone)]
struct LockErrorInner {
    kind: LockErrorKind,
    attempts: u32,
    nodes: Vec<NodeReport>,
    queue_position: Option<u32>,
    held: Option<Resource>,
    /// Why the resource is reserved, if it is.
    reserved: Reserved,
    /// What [`LockGuard::ensure`](crate::LockGuard::ensure) was asked for.
    ensured: Option<Duration>,
}

impl LockError {
    pub(crate) fn new(kind: LockErrorKind, attempts: u32, nodes: Vec<NodeReport>) -> LockError {
        LockError(Box::new(LockErrorInner {
            kind,
            attempts,
            nodes,
            queue_position: None,
            held: None,
            reserved: Reserved::NotPlain,
            ensured: None,
        }))
    }

    /// As it is, for a lock of which so much was to be ensured.
    pub(crate) fn of_ensuring(mut self, min: Duration) -> LockError {
        self.0.ensured = Some(min);
        self
    }

    /// As it is, with the resource that was held.
    pub(crate) fn for_held(mut self, held: Option<Resource>) -> LockError {
        self.0.held = held;
        self
    }

    /// As it is, with the position in the queue when the wait ended.
    pub(crate) fn at_queue_position(mut self, position: Option<u32>) -> LockError {
        self.0.queue_position = position;
        self
    }

    pub(crate) fn forked() -> LockError {
        LockError::new(LockErrorKind::Forked, 0, Vec::new())
    }

    pub(crate) fn unfenced() -> LockError {
        LockError::new(LockErrorKind::Unfenced, 0, Vec::new())
    }

    pub(crate) fn expired() -> LockError {
        LockError::new(LockErrorKind::Expired, 0, Vec::new())
    }

    /// No lock, or none with a fencing token, can have this key.
    pub(crate) fn reserved(reserved: Reserved) -> LockError {
        let mut error = LockError::new(LockErrorKind::ReservedResource, 0, Vec::new());
        error.0.reserved = reserved;
        error
    }

    /// Another thread of the client was delayed while it ran the event loop for all threads.
    pub(crate) fn unserved() -> LockError {
        LockError::new(LockErrorKind::Unavailable, 0, Vec::new())
    }

    /// The kind of failure.
    pub fn kind(&self) -> LockErrorKind {
        self.0.kind
    }

    /// The outcome on each node in the last round, in the order of configuration. Empty if no
    /// master was asked, the wait was cancelled, or the client was closed. Also empty if the thread
    /// that ran the client's event loop was delayed for so long that the outcome is unknown.
    pub fn nodes(&self) -> &[NodeReport] {
        &self.0.nodes
    }

    /// How many clients were ahead in the queue for the lock when this one gave up, as last
    /// reported by the queue node. `None` if it did not wait in a queue. See
    /// [`Waiting`](crate::settings::Waiting).
    pub fn queue_position(&self) -> Option<u32> {
        self.0.queue_position
    }

    /// For an attempt to lock [several resources](crate::Redlock::try_lock_all): a resource that
    /// another holder has. Each master names the held resource that lives longest, and this is the
    /// one that most masters named.
    pub fn held_resource(&self) -> Option<&Resource> {
        self.0.held.as_ref()
    }

    /// How many rounds were started: 0 if nothing was sent, and at most 1 for extensions and
    /// releases. Also 0 if the wait was cancelled, or the client closed.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// The time until enough nodes have left quarantine to form a quorum. This assumes that these
    /// nodes, and nodes that had not answered, then grant. `None` if the round did not fail because
    /// of quarantine.
    pub fn ready_in(&self) -> Option<Duration> {
        // The nodes that vote are a quorum: the holder is in the way.
        if self.is_contended() {
            return None;
        }
        let granted = self.count(|outcome| {
            matches!(outcome, NodeOutcome::Granted | NodeOutcome::Pending | NodeOutcome::Connected)
        });
        let missing = quorum(self.nodes().len()).checked_sub(granted + 1)?;
        let quarantines = self.nodes().iter().filter_map(NodeReport::in_quarantine);
        let mut waits: Vec<_> = quarantines.map(|quarantine| quarantine.ready_in).collect();
        waits.sort_unstable();
        waits.get(missing).copied()
    }

    /// Whether the kind is [`Contended`](LockErrorKind::Contended): another holder has the lock.
    pub fn is_contended(&self) -> bool {
        self.kind() == LockErrorKind::Contended
    }

    /// Whether the kind is [`Unavailable`](LockErrorKind::Unavailable): too few masters gave a
    /// vote.
    pub fn is_unavailable(&self) -> bool {
        self.kind() == LockErrorKind::Unavailable
    }

    /// Whether the kind is [`TimedOut`](LockErrorKind::TimedOut): the wait ended before enough
    /// masters had answered.
    pub fn is_timed_out(&self) -> bool {
        self.kind() == LockErrorKind::TimedOut
    }

    /// Whether the kind is [`Expired`](LockErrorKind::Expired): no validity is left.
    pub fn is_expired(&self) -> bool {
        self.kind() == LockErrorKind::Expired
    }
}

impl LockError {
    /// What happened, without the outcomes of the nodes.
    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.nodes().len();
        match self.kind() {
            LockErrorKind::Contended if total == 0 => f.write_str(
                "contended: another thread or call of this client holds the lock or is acquiring it",
            ),
            LockErrorKind::Contended => {
                let held = self.count(|outcome| matches!(outcome, NodeOutcome::Held));
                write!(
                    f,
                    "contended: held on {held} of {total} nodes (by another client or another thread)"
                )
            }
            LockErrorKind::Unavailable if total == 0 => f.write_str(
                "unavailable: the thread that runs this client's event loop was delayed; try \
                     again",
            ),
            LockErrorKind::Unavailable => {
                let failed = match self.count(NodeOutcome::is_failure) {
                    0 => self.count(|outcome| matches!(outcome, NodeOutcome::Pending)),
                    failed => failed,
                };
                write!(f, "unavailable: {failed} of {total} nodes gave no vote")
            }
            LockErrorKind::TimedOut => {
                f.write_str("timed out: the wait ended before enough nodes had answered")
            }
            LockErrorKind::Expired => {
                let gone = |outcome: &NodeOutcome| {
                    matches!(outcome, NodeOutcome::Absent | NodeOutcome::Held)
                };
                match self.count(gone) {
                    // Otherwise it was the time, and not those nodes.
                    gone if gone + quorum(total) > total && total > 0 => {
                        write!(
                            f,
                            "expired: {gone} of {total} nodes no longer hold this lock's token"
                        )
                    }
                    _ => f.write_str("expired: no validity was left"),
                }
            }
            LockErrorKind::InvalidTtl { ttl, min, max } => match self.0.ensured {
                Some(ensured) => write!(
                    f,
                    "ensure({ensured:?}) needs a ttl of at least {min:?}; this lock has {ttl:?}, \
                     and max_ttl is {max:?}"
                ),
                None => write!(
                    f,
                    "the ttl is {ttl:?}: it must be from {min:?} to {max:?}, which max_ttl sets"
                ),
            },
            LockErrorKind::ReservedResource => f.write_str(match self.0.reserved {
                Reserved::Counters => {
                    "the fencing counters use this key: use another name for the resource"
                }
                Reserved::Sighting => {
                    "keys that end in muxlock:promoted are for notes about promoted masters: use \
                     another name for the resource"
                }
                Reserved::Marker => {
                    "keys that end in muxlock:marker are for noticing flushes: use another name \
                     for the resource"
                }
                Reserved::NotPlain => {
                    "only a lock of one plain name can have a fencing token: this lock is of \
                     another kind"
                }
            }),
            LockErrorKind::Unfenced => f.write_str(
                "the adopted lock has no fencing token: acquire it with Redlock::fenced",
            ),
            LockErrorKind::InvalidResource { bytes } => {
                // A shorter name is refused for its slots alone.
                let (whose, max) = match (1..=RESOURCE_BYTES_MAX).contains(&bytes) {
                    true => ("semaphore's", SLOTS_NAME_MAX),
                    false => ("resource", RESOURCE_BYTES_MAX),
                };
                write!(f, "the {whose} name has {bytes} bytes: it must have 1 to {max}")
            }
            LockErrorKind::InvalidSet { resources, bytes } => write!(
                f,
                "{resources} resources with names of {bytes} bytes: one lock has 1 to \
                 {RESOURCES_MAX} resources, with names of at most 65536 bytes together"
            ),
            LockErrorKind::InvalidSlots { slots } => {
                write!(f, "the semaphore has {slots} permits: it must have 1 to {SLOTS_MAX}")
            }
            LockErrorKind::InvalidValue { bytes } => {
                write!(f, "the value has {bytes} bytes: it must have 1 to {VALUE_BYTES_MAX}")
            }
            LockErrorKind::Overloaded => {
                f.write_str("too many operations are in flight: wait until some have completed")
            }
            LockErrorKind::NoEntropy => {
                f.write_str("the operating system returned no random bytes for a token")
            }
            LockErrorKind::Cancelled => f.write_str("cancelled: the waiter acquires no more locks"),
            LockErrorKind::Closed => f.write_str("closed: this client acquires no more locks"),
            LockErrorKind::Forked => {
                f.write_str("this client belongs to the parent process: make a new one")
            }
        }
    }

    /// How many nodes have such an outcome.
    pub(crate) fn count(&self, wanted: fn(&NodeOutcome) -> bool) -> usize {
        self.nodes().iter().filter(|report| wanted(&report.outcome)).count()
    }

    /// For how long the masters that count from the first contact with a client keep each new
    /// client waiting.
    fn lasts_for_each(&self) -> Option<Duration> {
        let lasts = |report: &NodeReport| match report.in_quarantine()?.counted_from {
            CountedFrom::FirstContact { lasts } => Some(lasts),
            CountedFrom::Event => None,
        };
        self.nodes().iter().filter_map(lasts).max()
    }

    /// What to do about a quarantine, if there is one.
    fn hint(&self, f: &mut fmt::Formatter<'_>, names: &Names) -> fmt::Result {
        let is_quarantined = |outcome: &NodeOutcome| *outcome == NodeOutcome::Quarantined;
        if self.is_contended() || self.count(is_quarantined) == 0 {
            return Ok(());
        }
        f.write_str(
            "; a master that may have forgotten a lock does not vote until that lock has expired: ",
        )?;
        match (self.lasts_for_each(), self.ready_in()) {
            (Some(lasts), _) => {
                let seconds = lasts.saturating_add(CONNECTING).as_secs_f64().ceil();
                write!(f, "each new client waits for {lasts:.1?}, so {} {seconds}s", names.wait)?;
                f.write_str(names.wait_end)?;
            }
            (None, Some(ready_in)) => write!(f, "try again in {ready_in:.1?}")?,
            (None, None) => f.write_str("wait")?,
        }
        let mut quarantines = self.nodes().iter().filter_map(|report| report.quarantine);
        // Elsewhere, whoever follows this advice once is never told again.
        let is_development = self.nodes().iter().all(|report| is_local(&report.address));
        if is_development && quarantines.any(Quarantine::is_by_guard) {
            write!(f, ", or in development switch the guard off with {}", names.guard_off)?;
        }
        Ok(())
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, names: &Names) -> fmt::Result {
        self.summary(f)?;
        write_nodes(self.nodes(), f)?;
        self.hint(f, names)
    }

    /// As [`Display`](fmt::Display), with the options of the command-line tool in place of what the
    /// library calls them.
    #[cfg(feature = "unstable-tool")]
    pub(crate) fn in_the_tool(&self) -> impl fmt::Display {
        ToolError(self)
    }
}

/// Whether it is an address of this machine alone.
fn is_local(address: &str) -> bool {
    let (host, _) = address.rsplit_once(':').unwrap_or_default();
    let number = host.trim_matches(['[', ']']).parse::<IpAddr>();
    address.starts_with("unix:") || host == "localhost" || number.is_ok_and(|it| it.is_loopback())
}

/// What to call the settings that an error names.
struct Names {
    /// How to wait longer, up to the time.
    wait: &'static str,
    wait_end: &'static str,
    guard_off: &'static str,
}

const OF_THE_LIBRARY: Names = Names {
    wait: "wait in one call, as try_lock_for does, for",
    wait_end: "",
    guard_off: "restart_guard(RestartGuard::Off) or ?restart_guard=off",
};
#[cfg(feature = "unstable-tool")]
const OF_THE_TOOL: Names = Names {
    wait: "run with --wait-masters",
    wait_end: " or longer, every time",
    guard_off: "--restart-guard off",
};
/// What a new client may need before its first contact.
const CONNECTING: Duration = Duration::from_millis(500);

#[cfg(feature = "unstable-tool")]
struct ToolError<'a>(&'a LockError);

#[cfg(feature = "unstable-tool")]
impl fmt::Display for ToolError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.line(f, &OF_THE_TOOL)
    }
}

/// On one line: the failure, the outcome of each node, and what to do about a quarantine.
impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line(f, &OF_THE_LIBRARY)
    }
}

/// The same as [`Display`](fmt::Display), with each node on a line of its own: a `main` that
/// returns the error shows this.
impl fmt::Debug for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary(f)?;
        self.hint(f, &OF_THE_LIBRARY)?;
        self.nodes().iter().try_for_each(|report| write!(f, "\n  {report}"))
    }
}

impl std::error::Error for LockError {}

impl From<InvalidResource> for LockError {
    fn from(error: InvalidResource) -> LockError {
        let kind = match error {
            InvalidResource::Name { bytes } => LockErrorKind::InvalidResource { bytes },
            InvalidResource::Set { resources, bytes } => {
                LockErrorKind::InvalidSet { resources, bytes }
            }
            InvalidResource::Slots { slots } => LockErrorKind::InvalidSlots { slots },
            InvalidResource::Value { bytes } => LockErrorKind::InvalidValue { bytes },
        };
        LockError::new(kind, 0, Vec::new())
    }
}

// This impl is here because `resource` must not depend on `error`.
impl Resource {
    /// Checks and stores a name.
    ///
    /// # Errors
    /// [`LockErrorKind::InvalidResource`] if the name is empty or longer than
    /// [`RESOURCE_BYTES_MAX`]; use another name.
    pub fn new(name: impl AsRef<[u8]>) -> Result<Resource, LockError> {
        Ok(Resource::checked(name.as_ref())?)
    }

    /// Several resources, for one lock on all of them; see
    /// [`Redlock::try_lock_all`](crate::Redlock::try_lock_all). The order is irrelevant, and
    /// duplicates count once. The list has at most 1,024 names, duplicates included. A single name
    /// is the same as [`new`](Resource::new).
    ///
    /// # Errors
    /// [`LockErrorKind::InvalidSet`] or [`LockErrorKind::InvalidResource`]: use fewer resources, or
    /// other names.
    pub fn all<I>(names: I) -> Result<Resource, LockError>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let mut names = names.into_iter();
        let listed = names.by_ref().take(LISTED_MAX).map(|name| name.as_ref().to_vec()).collect();
        // What is left of a list must not be missing in the lock, and a list may be endless.
        match names.next() {
            None => Ok(Resource::checked_all(listed)?),
            Some(_) => Err(InvalidResource::listed(&listed).into()),
        }
    }

    /// For the read lock of a resource; see [`Redlock::try_read`](crate::Redlock::try_read).
    ///
    /// # Errors
    /// The same as [`new`](Resource::new).
    pub fn shared(name: impl AsRef<[u8]>) -> Result<Resource, LockError> {
        Ok(Resource::checked_of(name.as_ref(), LockKind::Shared)?)
    }

    /// For the write lock of a resource; see [`Redlock::try_write`](crate::Redlock::try_write).
    ///
    /// # Errors
    /// The same as [`new`](Resource::new).
    pub fn exclusive(name: impl AsRef<[u8]>) -> Result<Resource, LockError> {
        Ok(Resource::checked_of(name.as_ref(), LockKind::Exclusive)?)
    }

    /// One of `slots` permits; see [`Redlock::semaphore`](crate::Redlock::semaphore).
    ///
    /// # Errors
    /// [`LockErrorKind::InvalidSlots`] if there are no permits, or more than [`SLOTS_MAX`];
    /// [`LockErrorKind::InvalidResource`] if the name is empty or longer than 1,013 bytes.
    pub fn slot(name: impl AsRef<[u8]>, slots: u32) -> Result<Resource, LockError> {
        Ok(Resource::checked_slot(name.as_ref(), slots)?)
    }

    /// A resource that is locked with an owner value; see
    /// [`Redlock::try_lock_as`](crate::Redlock::try_lock_as).
    ///
    /// # Errors
    /// The same as [`new`](Resource::new); [`LockErrorKind::InvalidValue`] if the value is empty or
    /// longer than [`VALUE_BYTES_MAX`].
    pub fn with_value(
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Resource, LockError> {
        Ok(Resource::checked_as(name.as_ref(), value.as_ref())?)
    }
}

/// `Contended` becomes `WouldBlock`, `Unavailable` becomes `NotConnected`, `TimedOut` and `Expired`
/// become `TimedOut`; `InvalidTtl`, `InvalidResource`, `ReservedResource`, `InvalidSet`,
/// `InvalidSlots`, `InvalidValue` and `Unfenced` become `InvalidInput`, and the others become
/// `Other`.
impl From<LockError> for io::Error {
    fn from(error: LockError) -> io::Error {
        let kind = match error.kind() {
            LockErrorKind::Contended => io::ErrorKind::WouldBlock,
            LockErrorKind::Unavailable => io::ErrorKind::NotConnected,
            LockErrorKind::TimedOut | LockErrorKind::Expired => io::ErrorKind::TimedOut,
            LockErrorKind::InvalidTtl { .. }
            | LockErrorKind::InvalidResource { .. }
            | LockErrorKind::ReservedResource
            | LockErrorKind::InvalidSet { .. }
            | LockErrorKind::InvalidSlots { .. }
            | LockErrorKind::InvalidValue { .. }
            | LockErrorKind::Unfenced => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::QuarantineCause;

    fn quarantined(counted_from: CountedFrom) -> LockError {
        let report = |node: usize| NodeReport {
            node,
            address: ["127.0.0.1:7000", "[::1]:7000"][node].into(),
            outcome: NodeOutcome::Quarantined,
            latency: None,
            message: None,
            quarantine: Some(Quarantine::new(
                QuarantineCause::Promoted,
                Duration::from_millis(20_500),
                counted_from,
            )),
        };
        LockError::new(LockErrorKind::Unavailable, 1, vec![report(0), report(1)])
    }

    /// A marker counts even if the guard is off.
    #[test]
    fn guard_is_no_advice_for_a_missing_marker() {
        let mut nodes = quarantined(CountedFrom::Event).nodes().to_vec();
        for report in &mut nodes {
            report.quarantine.as_mut().unwrap().cause = QuarantineCause::Flushed;
        }
        let error = LockError::new(LockErrorKind::Unavailable, 1, nodes).to_string();
        assert!(error.contains("try again in 20.5s"), "{error}");
        assert!(!error.contains("guard off"), "{error}");
    }

    /// Whoever follows it in production has two holders later, and no further advice.
    #[test]
    fn guard_is_switched_off_only_where_all_nodes_are_of_this_machine() {
        for (address, is_local) in [
            ("localhost:6379", true),
            ("unix:/run/redis.sock", true),
            ("10.0.0.1:6379", false),
            ("redis-1.internal:6379", false),
            ("127.0.0.1:26379,127.0.0.2:26379/master", false),
        ] {
            let mut nodes = quarantined(CountedFrom::Event).nodes().to_vec();
            nodes[1].address = address.into();
            let error = LockError::new(LockErrorKind::Unavailable, 1, nodes).to_string();
            assert!(error.contains("try again in 20.5s"), "{error}");
            assert_eq!(error.contains("guard off"), is_local, "{error}");
        }
    }

    /// The nodes that vote are a quorum: a wait for the others, or a guard that is off, is no help.
    #[test]
    fn quarantine_is_no_advice_if_the_lock_is_held() {
        let outcomes = [NodeOutcome::Held, NodeOutcome::Granted];
        let report = |(node, outcome): (usize, NodeOutcome)| NodeReport {
            outcome,
            quarantine: None,
            ..quarantined(CountedFrom::Event).nodes()[node].clone()
        };
        let mut nodes: Vec<_> = outcomes.into_iter().enumerate().map(report).collect();
        nodes.extend(quarantined(CountedFrom::Event).nodes().get(1).cloned());
        let error = LockError::new(LockErrorKind::Contended, 1, nodes);
        assert!(error.to_string().contains("quarantined for another 20.5s"), "{error}");
        assert!(!error.to_string().contains("guard off"), "{error}");
        assert_eq!(error.ready_in(), None);
    }

    /// What helps a caller that comes again depends on from when the quarantine counts.
    #[test]
    fn wait_is_named_where_it_helps_and_by_its_name_in_the_library_and_the_tool() {
        let lasts = Duration::from_millis(31_302);
        let table = [
            (CountedFrom::Event, "try again in 20.5s, or", "try again in 20.5s, or"),
            (
                CountedFrom::FirstContact { lasts },
                "each new client waits for 31.3s, so wait in one call, as try_lock_for does, for \
                 32s, or",
                "each new client waits for 31.3s, so run with --wait-masters 32s or longer, every \
                 time, or",
            ),
        ];
        for (counted_from, library, tool) in table {
            let error = quarantined(counted_from);
            for (text, part) in [(error.to_string(), library), (format!("{error:?}"), library)] {
                assert!(text.contains(part), "{part:?} is not in: {text}");
                assert!(text.contains("RestartGuard::Off"), "{text}");
            }
            #[cfg(feature = "unstable-tool")]
            {
                let text = error.in_the_tool().to_string();
                assert!(text.contains(tool), "{tool:?} is not in: {text}");
                assert!(text.ends_with("switch the guard off with --restart-guard off"), "{text}");
            }
            let _ = tool;
        }
    }
}
