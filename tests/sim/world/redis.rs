//! A Redis 7.0 process: the commands that a lock client sends, and how it answers them; and those
//! of later servers that compare and delete.
//!
//! It is compared with a real server, reply by reply, in `validation.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::forms::form;
use super::listeners::Listeners;
use super::script;
use super::server::{Refusal, Server};
use super::wire::{Protocol, Reply};

const DATABASES: u64 = 16;

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Text(Vec<u8>),
    /// A type that no lock has: its fields.
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    List(VecDeque<Vec<u8>>),
    /// Members and their scores, which are whole numbers here.
    Sorted(BTreeMap<Vec<u8>, i64>),
}

/// A key's value and its end.
#[derive(Debug, Clone)]
pub struct Entry {
    pub value: Value,
    /// By the server's wall clock, in Unix milliseconds; the key is there up to the end of this
    /// very millisecond.
    pub expires: Option<i64>,
    /// When it was set, by the same clock, in nanoseconds.
    pub written: u64,
    /// When its end was last set.
    pub extended: u64,
}

/// A database's number and a key.
pub type Key = (u64, Vec<u8>);
/// All that a server knows.
pub type Data = BTreeMap<Key, Entry>;

/// What a command did to a key.
#[derive(Debug, Clone)]
pub struct Change {
    pub kind: ChangeKind,
    pub key: Key,
    /// What the key held before.
    pub before: Option<Value>,
    /// When it would have ended then.
    pub ended: Option<i64>,
}

/// How a key was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Set,
    Delete,
    Expire,
    /// A field of a hash was set.
    Field,
    /// A list has changed.
    List,
    /// A sorted set has changed.
    Member,
}

/// What the server keeps for one connection.
#[derive(Debug, Clone, Default)]
pub struct Session {
    pub id: u64,
    pub db: u64,
    pub is_authenticated: bool,
    pub protocol: Protocol,
    pub channels: BTreeSet<Vec<u8>>,
    pub is_tracking: bool,
    /// Whether changes of what the next command reads are told.
    pub is_caching: bool,
    /// Whether its user may not subscribe to its channel.
    pub is_barred: bool,
}

/// A process.
pub struct Redis {
    pub server: Server,
    pub data: Data,
    /// What the last command changed.
    pub changes: Vec<Change>,
    /// Whether its script has called a command that writes, even if that changed nothing.
    has_written: bool,
    /// The connection that the last command asked to end.
    pub killed: Option<u64>,
    /// The connections that are open, for `CLIENT KILL`.
    pub open: Vec<u64>,
    pub listeners: Listeners,
}

/// A command's name, how many words it has (at least, if negative), and what matters of its flags.
struct Spec {
    name: &'static str,
    arity: i32,
    writes: bool,
    /// Refused when there is no memory left.
    grows: bool,
    while_loading: bool,
}

const fn spec(name: &'static str, arity: i32, flags: &str) -> Spec {
    let flags = flags.as_bytes();
    let (mut at, mut writes, mut grows, mut while_loading) = (0, false, false, false);
    while at < flags.len() {
        writes |= flags[at] == b'w';
        grows |= flags[at] == b'm';
        while_loading |= flags[at] == b'l';
        at += 1;
    }
    Spec { name, arity, writes, grows, while_loading }
}

/// Flags: `w`rites, takes `m`emory, runs while `l`oading.
const COMMANDS: [Spec; 36] = [
    spec("get", 2, ""),
    spec("set", -3, "wm"),
    spec("eval", -3, ""),
    spec("del", -2, "w"),
    spec("pexpire", -3, "w"),
    spec("pttl", 2, ""),
    spec("exists", -2, ""),
    spec("time", 1, "l"),
    spec("info", -1, "l"),
    spec("client", -2, "l"),
    spec("auth", -2, "l"),
    spec("select", 2, "l"),
    spec("ping", -1, ""),
    spec("flushall", -1, "w"),
    spec("hset", -4, "wm"),
    spec("hget", 3, ""),
    spec("dbsize", 1, ""),
    spec("delex", -2, "w"),
    spec("delifeq", 3, "w"),
    spec("hello", -1, "l"),
    spec("subscribe", -2, "l"),
    spec("publish", 3, "l"),
    spec("lpos", -3, ""),
    spec("llen", 2, ""),
    spec("lindex", 3, ""),
    spec("rpush", -3, "wm"),
    spec("lpush", -3, "wm"),
    spec("lrem", 4, "w"),
    spec("type", 2, ""),
    spec("zscore", 3, ""),
    spec("zcard", 2, ""),
    spec("zrange", -4, ""),
    spec("zadd", -4, "wm"),
    spec("zrem", -3, "w"),
    spec("zremrangebyscore", 4, "w"),
    spec("pexpireat", -3, "w"),
];

impl Redis {
    /// A process that starts with `data`.
    pub fn new(server: Server, data: Data) -> Redis {
        Redis {
            server,
            data,
            changes: Vec::new(),
            has_written: false,
            killed: None,
            open: Vec::new(),
            listeners: Listeners::default(),
        }
    }

    /// Runs one command of a connection at `wall`, its clock in nanoseconds since the Unix epoch.
    pub fn execute(&mut self, session: &mut Session, words: &[&[u8]], wall: u64) -> Reply {
        self.changes.clear();
        self.has_written = false;
        self.listeners.pushes.clear();
        self.killed = None;
        let is_caching = std::mem::take(&mut session.is_caching);
        let reply = self.execute_now(session, words, wall, is_caching);
        if !words[0].eq_ignore_ascii_case(b"flushall") {
            self.tell_changes(Some(session.id), wall);
        } else if reply == Reply::OK {
            self.tell_flush();
        }
        reply
    }

    fn execute_now(
        &mut self,
        session: &mut Session,
        words: &[&[u8]],
        wall: u64,
        is_caching: bool,
    ) -> Reply {
        let Some(spec) = self.find(words[0]) else {
            return unknown(words);
        };
        if !has_arity(spec, words.len()) {
            return wrong_arity(spec.name);
        }
        let has_subcommands = spec.name == "client" && words.len() > 1;
        let wrong = has_subcommands.then(|| wrong_subcommand(spec.name, words)).flatten();
        if let Some(error) = wrong {
            return error;
        }
        if let Some(error) = self.refusal(session, spec, words) {
            return Reply::Error(error);
        }
        let is_read = matches!(spec.name, "get" | "pttl" | "exists" | "hget" | "llen");
        if is_caching && is_read {
            self.note_read(session, words[1]);
        }
        if !session.channels.is_empty() && session.protocol == Protocol::Resp2 {
            let name = spec.name;
            return Reply::Error(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT \
                 / RESET are allowed in this context"
            ));
        }
        match spec.name {
            "hello" => self.hello(session, words),
            "subscribe" => self.subscribe(session, words),
            "eval" => self.eval(session, words, wall),
            "auth" => self.authenticate(session, &words[1..]),
            "select" => select(session, words[1]),
            "client" => self.client(session, words),
            name => self.run(session.db, name, words, wall),
        }
    }

    /// Why the process does not run a command, in the order in which a real one looks.
    fn refusal(&self, session: &Session, spec: &Spec, words: &[&[u8]]) -> Option<String> {
        let server = &self.server;
        let needs_password = server.password.is_some() && !session.is_authenticated;
        if needs_password && !matches!(spec.name, "auth" | "hello") {
            return Some("NOAUTH Authentication required.".into());
        }
        if session.is_barred && spec.name == "subscribe" {
            return Some("NOPERM No permissions to access a channel".into());
        }
        if server.is_forbidden(spec.name, words) {
            let name = match spec.name {
                name @ "client" => format!("{name}|{}", lower(words[1])),
                name => name.into(),
            };
            return Some(format!(
                "NOPERM this user has no permissions to run the '{name}' command"
            ));
        }
        let has_key =
            spec.writes || matches!(spec.name, "eval" | "get" | "hget" | "pttl" | "exists");
        if server.refuses(Refusal::Cluster) && has_key {
            return Some(server.cluster_error());
        }
        self.state_refusal(spec)
    }

    /// What the state of the server speaks against, for commands of connections and of scripts.
    fn state_refusal(&self, spec: &Spec) -> Option<String> {
        let server = &self.server;
        // A script that has written something may go on.
        let text = if spec.grows && !self.has_written && server.refuses(Refusal::Memory) {
            "OOM command not allowed when used memory > 'maxmemory'."
        } else if spec.writes && server.refuses(Refusal::Disk) {
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to \
             persist to disk. Commands that may modify the data set are disabled, because this \
             instance is configured to report errors during writes if RDB snapshotting fails \
             (stop-writes-on-bgsave-error option). Please check the Redis logs for details about \
             the RDB error."
        } else if spec.writes && server.refuses(Refusal::Replicas) {
            "NOREPLICAS Not enough good replicas to write."
        } else if spec.writes && server.is_replica && !server.is_writable {
            "READONLY You can't write against a read only replica."
        } else if !spec.while_loading && server.is_loading {
            "LOADING Redis is loading the dataset in memory"
        } else if !matches!(spec.name, "auth" | "hello") && server.refuses(Refusal::Busy) {
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
        } else {
            return None;
        };
        Some(text.into())
    }

    pub fn authenticate(&self, session: &mut Session, words: &[&[u8]]) -> Reply {
        let Some(expected) = &self.server.password else {
            return Reply::error(
                "ERR AUTH <password> called without any password configured for the default \
                 user. Are you sure your configuration is correct?",
            );
        };
        let (user, password): (&[u8], _) = match words {
            [password] => (b"default", *password),
            [user, password] => (*user, *password),
            _ => return Reply::error("ERR syntax error"),
        };
        if user == b"default" && password == expected.as_bytes() {
            session.is_authenticated = true;
            return Reply::OK;
        }
        Reply::error("WRONGPASS invalid username-password pair or user is disabled.")
    }

    fn client(&mut self, session: &mut Session, words: &[&[u8]]) -> Reply {
        match (lower(words[1]).as_str(), &words[2..]) {
            ("tracking" | "caching", _) => self.track(session, words),
            ("id", []) => Reply::Integer(session.id as i64),
            ("setname", [name]) if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) => {
                Reply::OK
            }
            ("setname", [_]) => Reply::error(
                "ERR Client names cannot contain spaces, newlines or special characters.",
            ),
            ("kill", [filter, id]) if filter.eq_ignore_ascii_case(b"id") => match integer(id) {
                Some(id) if id > 0 => {
                    // Nobody ends himself that way.
                    let (id, own) = (id as u64, session.id);
                    let found = id != own && self.open.contains(&id);
                    self.killed = found.then_some(id);
                    Reply::Integer(i64::from(found))
                }
                Some(_) | None => Reply::error("ERR client-id should be greater than 0"),
            },
            _ => Reply::error("ERR syntax error"),
        }
    }

    fn find(&self, name: &[u8]) -> Option<&'static Spec> {
        let is_there = |spec: &&Spec| match spec.name {
            name @ ("delex" | "delifeq") => self.server.make.has.contains(&name),
            name => !self.server.lacks.contains(&name),
        };
        COMMANDS
            .iter()
            .find(|spec| name.eq_ignore_ascii_case(spec.name.as_bytes()))
            .filter(is_there)
    }

    fn eval(&mut self, session: &Session, words: &[&[u8]], wall: u64) -> Reply {
        let rest = &words[3..];
        let count = match integer(words[2]) {
            None => return Reply::error("ERR value is not an integer or out of range"),
            Some(count) if count > rest.len() as i64 => {
                return Reply::error("ERR Number of keys can't be greater than number of args");
            }
            Some(count) if count < 0 => {
                return Reply::error("ERR Number of keys can't be negative");
            }
            Some(count) => count as usize,
        };
        if self.server.refuses(Refusal::Scripts) {
            return unknown(words);
        }
        let (keys, args) = rest.split_at(count);
        let mut call = |words: &[Vec<u8>]| {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            self.call_of_script(session.db, &words, wall)
        };
        let returned = script::run(words[1], keys, args, &mut call);
        returned.unwrap_or_else(|error| {
            // The real one adds the script's hash.
            Reply::Error(format!("{error} script: f, on @user_script:1."))
        })
    }

    fn call_of_script(&mut self, db: u64, words: &[&[u8]], wall: u64) -> Reply {
        let Some(spec) = self.find(words[0]) else {
            return Reply::error("ERR Unknown Redis command called from script");
        };
        if !has_arity(spec, words.len()) {
            return Reply::error("ERR Wrong number of args calling Redis command from script");
        }
        let server = &self.server;
        if server.is_forbidden(spec.name, words) {
            return Reply::error(
                "ERR The user executing the script can't run this command or subcommand",
            );
        }
        if let Some(error) = self.state_refusal(spec) {
            return Reply::Error(error);
        }
        self.has_written |= spec.writes;
        self.run(db, spec.name, words, wall)
    }
}

fn has_arity(spec: &Spec, words: usize) -> bool {
    let words = words as i32;
    if spec.arity < 0 { words >= -spec.arity } else { words == spec.arity }
}

/// What is wrong with a command that has subcommands, before anybody looks at who sent it.
fn wrong_subcommand(command: &str, words: &[&[u8]]) -> Option<Reply> {
    let name = lower(words[1]);
    let fits = match (command, name.as_str()) {
        ("client", "id") => words.len() == 2,
        ("client", "setname") => words.len() == 3,
        ("client", "kill" | "tracking") => words.len() >= 3,
        ("client", "caching") => words.len() == 3,
        _ => {
            let (name, command) = (String::from_utf8_lossy(words[1]), command.to_uppercase());
            let text = format!("ERR unknown subcommand '{name}'. Try {command} HELP.");
            return Some(Reply::Error(text));
        }
    };
    (!fits).then(|| wrong_arity(&format!("{command}|{name}")))
}

fn select(session: &mut Session, word: &[u8]) -> Reply {
    match integer(word) {
        None => Reply::error("ERR value is not an integer or out of range"),
        Some(db) if (0..DATABASES as i64).contains(&db) => {
            session.db = db as u64;
            Reply::OK
        }
        Some(_) => Reply::error("ERR DB index is out of range"),
    }
}

pub fn expiry(command: &str, ttl: Option<i64>, factor: i64, now: i64) -> Result<i64, Reply> {
    let ttl = ttl.ok_or_else(|| Reply::error("ERR value is not an integer or out of range"))?;
    let positive = Some(ttl).filter(|ttl| *ttl > 0);
    let at = positive.and_then(|ttl| ttl.checked_mul(factor)).and_then(|ttl| now.checked_add(ttl));
    at.ok_or_else(|| Reply::Error(format!("ERR invalid expire time in '{command}' command")))
}

/// As Redis reads a number: digits with no plus sign, no leading zeros and nothing around them.
pub fn integer(word: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(word).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

pub fn lower(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_lowercase()
}

/// The value that a command of a lock client, or its script, compares with the key's.
pub fn compared<'a>(words: &[&'a [u8]]) -> Option<&'a [u8]> {
    if let Some(form) = form(words) {
        return Some(form.token);
    }
    match *words {
        [b"EVAL", _, b"2", _, queue, _, token, b"0" | b"1"] if is_queue(queue) => Some(token),
        [b"EVAL", _, b"2", _, queue, ..] if is_queue(queue) => None,
        [b"EVAL", _, b"0", ..] => None,
        [b"EVAL", _, b"3", _, _, _, token, ..]
        | [b"EVAL", _, b"2", _, _, token, ..]
        | [b"EVAL", _, b"1", _, token, ..]
        | [b"DELEX", _, b"IFEQ", token]
        | [b"DELIFEQ", _, token] => Some(token),
        _ => None,
    }
}

/// Whether a key is that of a queue of those who wait.
pub fn is_queue(key: &[u8]) -> bool {
    key.ends_with(b":muxlock:queue")
}

/// Whether a key is that which a flush deletes.
pub fn is_marker(key: &[u8]) -> bool {
    key == b"marker" || key.ends_with(b"muxlock:marker")
}

pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

pub fn wrong_type() -> Reply {
    Reply::error(WRONG_TYPE)
}

pub fn wrong_arity(name: &str) -> Reply {
    Reply::Error(format!("ERR wrong number of arguments for '{name}' command"))
}

fn unknown(words: &[&[u8]]) -> Reply {
    let name = String::from_utf8_lossy(words[0]);
    let args: String =
        words[1..].iter().map(|word| format!("'{}' ", String::from_utf8_lossy(word))).collect();
    Reply::Error(format!("ERR unknown command '{name}', with args beginning with: {args}"))
}
