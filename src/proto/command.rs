//! Commands to a node and its replies, without their encoding.

use std::sync::Arc;
use std::time::Duration;

use crate::channel::Channel;
use crate::inspection::{Holding, Owned};
use crate::outcome::{ServerCommand, ServerErrorKind};
pub use crate::resource::Trial;
use crate::resource::{Key, LockKind};
use crate::slots::Slots;
use crate::token::LockToken;
use crate::validity::Ttl;

/// A command to a node. Every one has exactly one reply.
#[derive(Debug, Clone, Copy)]
pub enum Command<'a> {
    /// `HELLO 3`, with credentials if there are any, and the name for `CLIENT LIST`.
    Hello {
        /// Who logs in.
        credentials: Option<Credentials<'a>>,
        /// The client's name.
        name: &'a [u8],
    },
    /// `SELECT db`.
    Select {
        /// The database's number.
        db: u32,
    },
    /// `CLIENT TRACKING ON OPTIN`: the server tells this connection when its data is flushed or
    /// replaced, and when a key is changed that [`WaitMessage::Cache`] marks.
    Track,
    /// Reads the marker of the database, which a flush deletes, and writes it where it is absent.
    /// Answers [`Reply::Marker`].
    Marker {
        /// The key.
        key: &'a [u8],
        /// A random number.
        id: u64,
    },
    /// `CLIENT KILL ID`: ends another connection. Commands that the server has not read from it are
    /// lost.
    Kill {
        /// The connection's `CLIENT ID`.
        connection: i64,
    },
    /// `INFO section`: the server's identity and state.
    Info(Section),
    /// `TIME`: the server's wall clock.
    Time,
    /// A trial release of a key that never exists. The server must execute it and answer 0.
    Probe {
        /// The key.
        key: &'a [u8],
        /// The release command to use.
        with: ReleaseWith,
    },
    /// `GET key`: the time when a client first saw this server after a promotion.
    Sighting {
        /// The key.
        key: &'a [u8],
    },
    /// `SET key sighting`: stores that time.
    Sight {
        /// The key.
        key: &'a [u8],
        /// The stored value.
        sighting: &'a Sighting,
    },
    /// A trial of the commands that scripts call, on a key that no client uses. It changes nothing.
    /// Answers 0 if the server has all of them, otherwise the number of a missing one.
    Try {
        /// The key.
        key: &'a [u8],
        /// Which commands.
        trial: Trial,
    },
    /// `SET key token NX PX ttl`.
    Acquire {
        /// The key.
        key: &'a [u8],
        /// The value that identifies the owner.
        token: &'a LockToken,
        /// The key's time to live.
        ttl: Ttl,
    },
    /// Same as [`Acquire`](Command::Acquire), in a script that also raises a counter to `proposal`,
    /// or to more. It answers 1 if the counter now has the proposal, the counter's value if that is
    /// another, and null if the key exists.
    AcquireFenced {
        /// The key.
        key: &'a [u8],
        /// The value that identifies the owner.
        token: &'a LockToken,
        /// The key's time to live.
        ttl: Ttl,
        /// The counter.
        counter: Counter<'a>,
        /// The lowest value that the counter should have: not 1.
        proposal: u64,
        /// The trial that comes first, in the same step.
        trial: Option<TrialFirst<'a>>,
    },
    /// Raises a counter to `number` if the key holds `token`; never lowers it. Answers 1 if the key
    /// holds the token, else 0.
    Confirm {
        /// The key.
        key: &'a [u8],
        /// The value that the key must hold.
        token: &'a LockToken,
        /// The counter.
        counter: Counter<'a>,
        /// The lowest value that the counter must have.
        number: u64,
    },
    /// Raises the key's time to live to `ttl` if it holds `token`; never lowers it.
    Extend {
        /// The key.
        key: &'a [u8],
        /// The value that the key must hold.
        token: &'a LockToken,
        /// The key's new time to live.
        ttl: Ttl,
    },
    /// Same as [`Extend`](Command::Extend), but sets the key if it is absent.
    Heal {
        /// The key.
        key: &'a [u8],
        /// The value that the key must hold, or is given.
        token: &'a LockToken,
        /// The key's new time to live.
        ttl: Ttl,
    },
    /// Asks for the beginning of the key's value, and its remaining time to live.
    Inspect {
        /// The key.
        key: &'a [u8],
    },
    /// Deletes the key if it holds `token`.
    Release {
        /// The key.
        key: &'a [u8],
        /// The value that the key must hold.
        token: &'a LockToken,
        /// The release command to use.
        with: ReleaseWith,
    },
    /// For locks with their own scripts, such as several resources or a read lock.
    OfKind(KindCommand<'a>),
    /// For waiting in a queue on the masters.
    Wait(WaitMessage<'a>),
}

/// One step in the life of a lock that is not one plain key.
#[derive(Debug, Clone, Copy)]
pub struct KindCommand<'a> {
    /// The step.
    pub step: KindStep,
    /// The keys, and how they are locked.
    pub key: &'a Key,
    /// The value that identifies the owner.
    pub token: &'a LockToken,
    /// The time to live from now on.
    pub ttl: Ttl,
    /// How its script is sent.
    pub sent_as: SentAs<'a>,
}

/// How the script of a [`KindCommand`] is sent.
#[derive(Debug, Clone, Copy)]
pub enum SentAs<'a> {
    /// Its text, behind a trial.
    Tried(TrialFirst<'a>),
    /// Its text, which the server keeps.
    Text,
    /// The hash of its text. A server that does not keep it answers with an error, and runs
    /// nothing.
    Hash,
}

/// A trial before a script's own work, in the same script. If a command is missing, the script ends
/// there: the answer is [`Reply::Missing`], and nothing was written.
#[derive(Debug, Clone, Copy)]
pub struct TrialFirst<'a> {
    /// A key that no client uses.
    pub key: &'a Key,
    /// Which commands.
    pub trial: Trial,
}

impl<'a> Command<'a> {
    /// The same command, with its script sent in this way, if it is one that has a choice.
    #[cold]
    pub(super) fn sent_as(mut self, how: SentAs<'a>) -> Command<'a> {
        match (&mut self, how) {
            (Command::OfKind(KindCommand { sent_as, .. }), how) => *sent_as = how,
            (Command::AcquireFenced { trial, .. }, SentAs::Tried(first)) => *trial = Some(first),
            _ => {}
        }
        self
    }
}

impl KindCommand<'_> {
    /// The keys that its script is given, in their order. For read and write locks, the second one
    /// is the write intent. For a lock with an owner value, it is the key of the token.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.key.keys()
    }

    /// Which of the keys is asked for, from 0, if it is one of several.
    pub fn slot(&self) -> Option<usize> {
        self.key.slot().and_then(|(_, slot)| slot).map(|slot| slot as usize)
    }

    /// The owner value, if there is one.
    pub fn value(&self) -> Option<&[u8]> {
        self.key.value()
    }

    /// Whether it is about a read lock.
    pub fn is_share(&self) -> bool {
        *self.key.kind() == LockKind::Shared
    }
}

/// A step of a [`KindCommand`]. Each but the last answers 1 on success and 0 otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KindStep {
    /// Takes the lock. A refusal can contain its reason, as a number from 2 on. It can leave a
    /// write intent that keeps new readers out for this long.
    Take {
        /// How long the write intent lasts.
        intent: Duration,
    },
    /// Raises the time to live; never lowers it. A read lock on a key whose write lock the owner
    /// holds turns that lock into a read lock.
    Keep,
    /// Same as `Keep`, but sets a missing key and then answers 2.
    Heal,
    /// Gives the lock up.
    Free,
    /// Reads the value of the key. Answers [`Reply::Owned`].
    Look,
}

/// A command that lets a client wait for a lock without polling.
#[derive(Debug, Clone, Copy)]
pub enum WaitMessage<'a> {
    /// `SUBSCRIBE channel`. A push answers it.
    Subscribe {
        /// The engine's channel.
        channel: &'a Channel,
    },
    /// Publishes a message on the own channel, to check that it arrives.
    Publish {
        /// The engine's channel.
        channel: &'a Channel,
    },
    /// `CLIENT CACHING YES`: the next command's key is watched.
    Cache,
    /// `PTTL key`.
    TimeToLive {
        /// The key.
        key: &'a [u8],
    },
    /// Takes a position in the queue for a key, or keeps it. Answers the position, times 2^40, plus
    /// the key's `PTTL` plus 2.
    QueueUp {
        /// The key.
        key: &'a [u8],
        /// The engine's channel.
        channel: &'a Channel,
    },
    /// Deletes the key if it holds `token`. Answers 0 or 1, plus twice the length of the queue; -1
    /// if it has deleted the key and cannot read the queue.
    ReleaseAtQueue {
        /// The key.
        key: &'a [u8],
        /// The engine's channel.
        channel: &'a Channel,
        /// The value that the key must hold.
        token: &'a LockToken,
        /// Whether the queue moves on.
        notify: Notify,
    },
    /// Leaves the queue for a key, or takes its first position. The first two clients in the queue
    /// are notified.
    StepOut {
        /// The key.
        key: &'a [u8],
        /// The engine's channel.
        channel: &'a Channel,
        /// The new position.
        to: Step,
    },
}

/// The effect of a release on the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// The engine leaves the queue, and the first two of the others are notified.
    Next,
    /// The queue stays as it is: its length is only counted.
    CountOnly,
}

/// The new position of an engine in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Out of the queue.
    Out,
    /// To its front, instead of the first one there.
    ToFront,
}

/// A notification about a client's position in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// The lock was released: take it now.
    TakeNow,
    /// The position is the first one now: check the lock.
    First,
    /// The position is the second one now: check the lock if the first client does not take it.
    Second,
    /// Another client has overtaken it: queue up again.
    Overtaken,
    /// A question whether it still waits. If not, it leaves the queue.
    Asked,
}

/// A message of a server that is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push<'a> {
    /// The connection listens to this channel. It answers `SUBSCRIBE`, in its place.
    Subscribed(&'a [u8]),
    /// The trial of this channel, which its client asked for.
    Trial(&'a [u8]),
    /// A message about a position in a queue.
    Notified {
        /// The channel of the client at that position.
        channel: &'a [u8],
        /// The notification.
        what: Wakeup,
        /// The key of the lock.
        key: &'a [u8],
    },
    /// A watched key was changed, has expired, or is no longer watched.
    Changed(&'a [u8]),
    /// Any watched key might have been changed.
    AllChanged,
    /// The server has flushed or replaced the data of a database: what it answers from here on, it
    /// has done afterwards.
    Flushed,
    /// Anything else.
    Other,
}

/// The kind of server at a port, if it is no Redis server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign<'a> {
    /// A server that expects TLS.
    Tls,
    /// Anything else.
    Line {
        /// Its first line, as far as that has arrived.
        text: &'a [u8],
        /// Whether all of the line has.
        is_whole: bool,
    },
}

/// A counter for fencing tokens: a field of a hash, which has one for each bucket of keys.
#[derive(Debug, Clone, Copy)]
pub struct Counter<'a> {
    /// The hash.
    pub key: &'a [u8],
    /// The field, in decimal.
    pub bucket: u16,
}

/// The command for compare-and-delete. All have the same effect, and each is atomic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseWith {
    /// The release script with `EVAL`, which a server must be able to run in order to vote.
    #[default]
    Script,
    /// `DELEX key IFEQ token`: Redis from 8.4 on.
    Delex,
    /// `DELIFEQ key token`: Valkey from 9 on.
    Delifeq,
}

/// A section of `INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// The process, its uptime and its mode.
    Server,
    /// Whether it is a master.
    Replication,
    /// Whether it can evict keys.
    Memory,
    /// Whether it is loading its data.
    Persistence,
    /// Whether it has evicted keys.
    Stats,
}

/// The first 128 bits of a master's replication id, which identifies the history of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History([u8; 16]);

impl From<u128> for History {
    fn from(name: u128) -> History {
        // As bytes, so that the alignment of a u128 does not enlarge a reply.
        History(name.to_ne_bytes())
    }
}

impl From<History> for u128 {
    fn from(history: History) -> u128 {
        u128::from_ne_bytes(history.0)
    }
}

/// A record that a server process was a master with this history at a time of its own clock. The
/// server itself stores it. It is valid only for this process and this history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// The random id of the process.
    pub run_id: Arc<str>,
    /// The history of which it was the master.
    pub history: History,
    /// The server's wall clock, since the Unix epoch, in whole microseconds.
    pub time: Duration,
}

/// What stands under the marker's key. A flush deletes it, and it is never written twice alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    /// The random number of the client that has written it.
    pub id: u64,
    /// The server's wall clock at that time, since the Unix epoch, in microseconds.
    pub micros: u64,
}

/// A server's role and replication id. Checked often, so it is small.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replication {
    /// Whether the server is a master.
    pub master: Option<bool>,
    /// The replication id of its data.
    pub history: Option<History>,
    /// Whether the server reports that it was a replica before.
    pub promoted: Option<bool>,
}

impl Replication {
    /// Whether it was a replica since its history had the name `known`. A master also takes a new
    /// replication id when the first replica connects, or when the last one has been gone for long.
    /// Only a former replica keeps the old id as its second one.
    pub(super) fn is_of_another_past(self, known: Option<History>) -> bool {
        self.promoted == Some(true) && self.history != known
    }
}

/// The part of a server's `INFO` that matters for locks. Each section fills some of the fields.
/// `None` means not reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerInfo {
    /// Product and version.
    pub version: Option<Arc<str>>,
    /// The random id of the process.
    pub run_id: Option<Arc<str>>,
    /// Its uptime, by its wall clock.
    pub uptime: Option<Duration>,
    /// Whether it is a standalone server: no cluster node, no sentinel.
    pub standalone: Option<bool>,
    /// Whether it is a master, and its history.
    pub replication: Replication,
    /// Its memory limit in bytes; 0 for none.
    pub memory_max: Option<u64>,
    /// Whether it refuses writes at that limit instead of evicting keys.
    pub evicts_nothing: Option<bool>,
    /// Whether it is still loading its data.
    pub loading: Option<bool>,
    /// How many keys it has evicted since its start.
    pub evicted: Option<u64>,
}

impl ServerInfo {
    /// The native compare-and-delete command of this version: Redis has `DELEX` from 8.4 on, Valkey
    /// `DELIFEQ` from 9. It is a hint: forks report versions of Redis, and the user may lack the
    /// right.
    pub(super) fn native_release(&self) -> ReleaseWith {
        let (make, number) =
            self.version.as_deref().and_then(|it| it.split_once(' ')).unwrap_or_default();
        let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        match make {
            "redis" if version >= (8, 4) => ReleaseWith::Delex,
            "valkey" if version >= (9, 0) => ReleaseWith::Delifeq,
            _ => ReleaseWith::Script,
        }
    }

    /// What the memory section says.
    pub(super) fn note_memory(&mut self, max: Option<u64>, evicts_nothing: Option<bool>) {
        self.memory_max = max.or(self.memory_max);
        self.evicts_nothing = evicts_nothing.or(self.evicts_nothing);
    }

    /// Adds the fields of another section.
    pub(super) fn add(&mut self, other: ServerInfo) {
        let is_about_roles = other.replication != Replication::default();
        *self = ServerInfo {
            version: other.version.or(self.version.take()),
            run_id: other.run_id.or(self.run_id.take()),
            uptime: other.uptime.or(self.uptime),
            standalone: other.standalone.or(self.standalone),
            replication: if is_about_roles { other.replication } else { self.replication },
            memory_max: other.memory_max.or(self.memory_max),
            evicts_nothing: other.evicts_nothing.or(self.evicts_nothing),
            loading: other.loading.or(self.loading),
            evicted: other.evicted.or(self.evicted),
        };
    }
}

/// A user and a password.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The user; the default user if `None`.
    pub user: Option<&'a str>,
    /// The password.
    pub password: &'a str,
}

impl std::fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// A reply from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`.
    Ok,
    /// Any other status, such as `+QUEUED`.
    Status,
    /// A null reply.
    Nil,
    /// An integer without a special meaning.
    Integer(i64),
    /// The reason why a lock on more than one plain key was refused.
    Refused(Reason),
    /// A position in a queue, and the expiry of the lock's key.
    Position {
        /// The number of clients ahead.
        position: u32,
        /// The expiry of the lock's key.
        expiry: Expiry,
    },
    /// The expiry of a key.
    Expiry(Expiry),
    /// A lock was released at a queue.
    ReleasedAtQueue {
        /// Whether the key had the token, and was deleted.
        released: bool,
        /// The length of the queue; `None` if it could not be read.
        waiting: Option<u64>,
    },
    /// A section of `INFO`.
    Info(Box<ServerInfo>),
    /// The replication section of `INFO`.
    Replication(Replication),
    /// The memory section: the limit in bytes, and whether it evicts nothing.
    Memory(Option<u64>, Option<bool>),
    /// The statistics: how many keys were evicted.
    Stats(Option<u64>),
    /// The server's wall clock, since the Unix epoch.
    Time(Duration),
    /// The time when a client first saw the server after a promotion.
    Sighting(Box<Sighting>),
    /// The marker of the database.
    Marker(Marker),
    /// The value and time to live of a key on the server.
    Holding(Holding),
    /// The owner value of a key on the server, and the token beside it.
    Owned(Box<Owned>),
    /// The answer to `HELLO`: the server speaks RESP3 from now on.
    Hello {
        /// The server's number for this connection.
        client_id: Option<i64>,
    },
    /// The server lacks a command that a script tried. The script has changed nothing.
    Missing(ServerCommand),
    /// An error.
    Error(ServerError),
}

// Each lock moves several, so the size matters.
const _: () = assert!(size_of::<Reply>() <= 32);

/// The meaning of an integer in the next reply, which depends on its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Itself.
    Number,
    /// A vote.
    Vote,
    /// The same, or the held resource of several.
    VoteOfSet,
    /// The same, or the free slots.
    VoteOfSlot,
    /// A position in a queue.
    Position,
    /// The expiry of a key.
    Expiry,
    /// The result of a release at a queue node.
    ReleasedAtQueue,
    /// A command that the server lacks.
    Missing,
}

/// The expiry of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// There is no such key.
    Absent,
    /// It does not.
    Never,
    /// After this time.
    In(Duration),
}

/// The reason why a lock on more than one plain key was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The index of the held resource, from 0.
    Held(usize),
    /// The free slots; the requested one is taken.
    Free(Slots),
}

/// The two most common replies, which mean success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// `+OK`, the grant of a SET.
    Ok,
    /// `:1`, the grant of a release.
    One,
}

impl Grant {
    /// Compares codes, because comparing two options compiles to more than one comparison.
    #[inline]
    pub(super) fn is_same(one: Option<Grant>, other: Option<Grant>) -> bool {
        let code = |grant| match grant {
            Some(Grant::Ok) => 0,
            Some(Grant::One) => 1,
            None => 2,
        };
        code(one) == code(other)
    }
}

impl From<Grant> for Reply {
    fn from(grant: Grant) -> Reply {
        match grant {
            Grant::Ok => Reply::Ok,
            Grant::One => Reply::Integer(1),
        }
    }
}

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// Its meaning for a lock.
    pub kind: ServerErrorKind,
    /// The server's message, without anything that was sent to the server.
    pub message: Arc<str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_that_was_a_replica_since_then_is_of_another_past() {
        let (known, other) = (Some(History::from(1)), Some(History::from(2)));
        // (whether it was a replica, its history, whether that is another past)
        let table = [
            (Some(true), other, true),
            (Some(true), None, true),
            (Some(true), known, false),
            (Some(false), other, false),
            (Some(false), known, false),
            (None, other, false),
        ];
        for (promoted, history, expected) in table {
            let said = Replication { master: Some(true), history, promoted };
            assert_eq!(said.is_of_another_past(known), expected, "{said:?}");
        }
    }

    #[test]
    fn version_names_the_native_release_command() {
        let table = [
            ("redis 8.4.0", ReleaseWith::Delex),
            ("redis 8.10", ReleaseWith::Delex),
            ("redis 9.0.0-rc1", ReleaseWith::Delex),
            ("redis 8.3.9", ReleaseWith::Script),
            ("redis 7.0.15", ReleaseWith::Script),
            ("redis 255.255.255", ReleaseWith::Delex),
            ("valkey 9.0.1", ReleaseWith::Delifeq),
            ("valkey 8.1.4", ReleaseWith::Script),
            ("keydb 9.0.0", ReleaseWith::Script),
            ("redis", ReleaseWith::Script),
            ("redis x.9", ReleaseWith::Script),
        ];
        for (version, expected) in table {
            let server = ServerInfo { version: Some(version.into()), ..ServerInfo::default() };
            assert_eq!(server.native_release(), expected, "{version}");
        }
        assert_eq!(ServerInfo::default().native_release(), ReleaseWith::Script);
    }

    #[test]
    fn sections_add_what_they_say_and_keep_what_others_said() {
        let server = ServerInfo {
            version: Some("redis 7".into()),
            run_id: Some("abc".into()),
            uptime: Some(Duration::from_secs(5)),
            standalone: Some(true),
            ..ServerInfo::default()
        };
        let replication = Replication { master: Some(true), ..Replication::default() };
        let others = [
            ServerInfo { replication, ..ServerInfo::default() },
            ServerInfo { memory_max: Some(7), ..ServerInfo::default() },
            ServerInfo { evicts_nothing: Some(false), ..ServerInfo::default() },
            ServerInfo { loading: Some(true), ..ServerInfo::default() },
        ];
        let all = ServerInfo {
            replication,
            memory_max: Some(7),
            evicts_nothing: Some(false),
            loading: Some(true),
            ..server.clone()
        };
        let mut info = server.clone();
        others.iter().for_each(|other| info.add(other.clone()));
        assert_eq!(info, all);
        info.add(ServerInfo::default());
        assert_eq!(info, all, "what says nothing changes nothing");
        let mut info = others[0].clone();
        info.add(server.clone());
        assert_eq!(info, ServerInfo { replication, ..server.clone() });
        // A later section replaces an earlier one.
        let again = Replication { master: Some(false), ..Replication::default() };
        let younger = ServerInfo { uptime: Some(Duration::ZERO), replication: again, ..server };
        info.add(younger.clone());
        assert_eq!(info, younger);
    }

    #[test]
    fn grants_are_the_same_as_their_options_are() {
        let all = [None, Some(Grant::Ok), Some(Grant::One)];
        for one in all {
            for other in all {
                assert_eq!(Grant::is_same(one, other), one == other, "{one:?} {other:?}");
            }
        }
    }
}
