//! What a fake master answers to each command.

use std::ops::RangeInclusive;

use super::super::query::Value;
use super::clock::Now;
use super::info::Process;
use super::keys::{HASHES, Keys, NO_INTEGER, SYNTAX, integer};

/// As many as a `redis-server` has that is not configured.
const DATABASES: usize = 16;
const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";
/// How much of an unknown command an error repeats.
const QUOTED_BYTES_MAX: usize = 64;

/// The commands, and how many arguments they may have.
const COMMANDS: [(&[u8], RangeInclusive<usize>); 16] = [
    (b"AUTH", 1..=usize::MAX),
    (b"CLIENT", 1..=usize::MAX),
    (b"DBSIZE", 0..=0),
    (b"DEL", 1..=usize::MAX),
    (b"EVAL", 2..=usize::MAX),
    (b"EVALSHA", 2..=usize::MAX),
    (b"EXISTS", 1..=usize::MAX),
    (b"FLUSHALL", 0..=0),
    (b"GET", 1..=1),
    (b"HELLO", 0..=usize::MAX),
    (b"INFO", 0..=usize::MAX),
    (b"PING", 0..=1),
    (b"PTTL", 1..=1),
    (b"SELECT", 1..=1),
    (b"SET", 2..=usize::MAX),
    (b"TIME", 0..=0),
];

/// What a connection has chosen.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) is_authenticated: bool,
    /// Whether it is told of flushes.
    is_tracking: bool,
    db: usize,
}

impl Session {
    pub(super) fn is_tracking(&self) -> bool {
        self.is_tracking
    }

    pub(super) fn new(id: u64) -> Session {
        Session { id, is_authenticated: false, is_tracking: false, db: 0 }
    }
}

/// What a command leads to.
pub(super) enum Outcome {
    Reply(Value),
    /// A reply that [`Value`] has no form for.
    Frame(Vec<u8>),
    /// The connections that track keys are told of a flush.
    Flushed,
    /// The connection with this id is to end.
    Kill(u64),
}

/// A server's process and its data.
#[derive(Debug)]
pub(super) struct Data {
    process: Process,
    password: Option<String>,
    databases: [Keys; DATABASES],
    /// The scripts that it runs by their hash: those that it has run.
    kept: Vec<&'static str>,
}

impl Data {
    pub(super) fn new(now: Now, port: u16, password: Option<String>) -> Data {
        Data {
            process: Process::new(now, port),
            password,
            databases: Default::default(),
            kept: Vec::new(),
        }
    }

    /// Becomes another process, without data.
    pub(super) fn restart(&mut self, now: Now) {
        self.process = self.process.restarted(now);
        self.databases = Default::default();
        self.kept.clear();
    }

    /// The keys of a connection that has selected no other database.
    pub(super) fn first(&mut self) -> &mut Keys {
        &mut self.databases[0]
    }

    /// Executes one command, of at least one word.
    pub(super) fn execute(&mut self, now: Now, session: &mut Session, args: &[&[u8]]) -> Outcome {
        let (name, rest) = (args[0].to_ascii_uppercase(), &args[1..]);
        // A server says this before it asks for a password.
        match COMMANDS.iter().find(|(known, _)| *known == name.as_slice()) {
            None => return Outcome::Reply(unknown("command", args[0])),
            Some((_, counts)) if !counts.contains(&rest.len()) => {
                return Outcome::Reply(wrong_arity(&name));
            }
            Some(_) => {}
        }
        let must_authenticate = self.password.is_some() && !session.is_authenticated;
        let keys = &mut self.databases[session.db];
        Outcome::Reply(match (name.as_slice(), rest) {
            (b"AUTH", [password]) => self.authenticate(session, None, password),
            (b"AUTH", [user, password]) => self.authenticate(session, Some(user), password),
            (b"AUTH", _) => error(SYNTAX),
            (b"HELLO", words) => return self.hello(session, words),
            _ if must_authenticate => error("NOAUTH Authentication required."),
            (b"CLIENT", [subcommand, rest @ ..]) => return client(session, subcommand, rest),
            (b"SELECT", [db]) => select(session, db),
            (b"PING", []) => Value::Status("PONG".into()),
            (b"PING", [text]) => Value::Bulk(text.to_vec()),
            (b"TIME", []) => time(now),
            (b"INFO", sections) => Value::Bulk(self.process.info(now, sections).into_bytes()),
            (b"GET", [key]) => match keys.get(now, key) {
                Ok(value) => value.map_or(Value::Nil, Value::Bulk),
                Err(text) => error(text),
            },
            (b"PTTL", [key]) => Value::Integer(keys.pttl(now, key)),
            (b"EXISTS", _) => number(rest.iter().filter(|key| keys.exists(now, key)).count()),
            (b"DEL", _) => number(rest.iter().filter(|key| keys.delete(now, key)).count()),
            (b"DBSIZE", _) => number(keys.count(now)),
            (b"FLUSHALL", _) => {
                self.databases = Default::default();
                return Outcome::Flushed;
            }
            (b"SET", [key, value, options @ ..]) => {
                keys.set_with(now, key, value, options).unwrap_or_else(error)
            }
            (b"EVAL", [script, count, words @ ..]) => {
                let known = HASHES.iter().find(|(text, _)| text.as_bytes() == *script);
                self.kept.extend(known.map(|(text, _)| *text).filter(|it| !self.kept.contains(it)));
                keys.eval(now, script, count, words).unwrap_or_else(error)
            }
            (b"EVALSHA", [hash, count, words @ ..]) => {
                let known = HASHES.iter().find(|(_, known)| known.as_bytes() == *hash);
                match known.filter(|(text, _)| self.kept.contains(text)) {
                    Some((script, _)) => {
                        keys.eval(now, script.as_bytes(), count, words).unwrap_or_else(error)
                    }
                    None => error(NO_SCRIPT),
                }
            }
            // The table above has it with other numbers of arguments.
            _ => wrong_arity(&name),
        })
    }

    /// `HELLO 3 [AUTH user password] [SETNAME name]`.
    fn hello(&self, session: &mut Session, words: &[&[u8]]) -> Outcome {
        let (auth, rest) = match words {
            [b"3", b"AUTH", user, password, rest @ ..] => (Some((user, password)), rest),
            [b"3", rest @ ..] => (None, rest),
            [_, ..] => return Outcome::Reply(error("NOPROTO unsupported protocol version")),
            [] => return Outcome::Reply(error("ERR this server speaks RESP3 only after HELLO 3")),
        };
        if !matches!(rest, [] | [b"SETNAME", _]) {
            return Outcome::Reply(error("ERR Syntax error in HELLO option"));
        }
        if let Some((user, password)) = auth {
            let answer = self.authenticate(session, Some(user), password);
            if matches!(answer, Value::Error(_)) {
                return Outcome::Reply(answer);
            }
        }
        if self.password.is_some() && !session.is_authenticated {
            return Outcome::Reply(error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                 HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
                 and select the RESP protocol version at the same time",
            ));
        }
        let id = session.id;
        Outcome::Frame(format!("%2\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:{id}\r\n").into())
    }

    fn authenticate(&self, session: &mut Session, user: Option<&[u8]>, password: &[u8]) -> Value {
        let is_default = user.is_none_or(|user| user == b"default");
        let is_right = match (&self.password, user) {
            (None, None) => {
                return error(
                    "ERR AUTH <password> called without any password configured for the default \
                     user. Are you sure your configuration is correct?",
                );
            }
            // The default user of a server without a password has any password.
            (None, Some(_)) => is_default,
            (Some(right), _) => is_default && right.as_bytes() == password,
        };
        if !is_right {
            return error("WRONGPASS invalid username-password pair or user is disabled.");
        }
        session.is_authenticated = true;
        ok()
    }
}

/// Whether it is a command that takes, extends or releases a lock, or tries whether that works.
pub(super) fn is_of_locks(args: &[&[u8]]) -> bool {
    let is = |name: &[u8]| args.first().is_some_and(|arg| arg.eq_ignore_ascii_case(name));
    is(b"SET") || is(b"EVAL") || is(b"EVALSHA")
}

fn client(session: &mut Session, subcommand: &[u8], rest: &[&[u8]]) -> Outcome {
    Outcome::Reply(match (subcommand.to_ascii_uppercase().as_slice(), rest) {
        (b"SETNAME", [_]) => ok(),
        (b"ID", []) => Value::Integer(i64::try_from(session.id).unwrap_or(i64::MAX)),
        (b"KILL", [kind, id]) if kind.eq_ignore_ascii_case(b"ID") => {
            match integer(id).and_then(|id| u64::try_from(id).ok()) {
                // A connection is not its own victim, unless it asks for that.
                Some(id) if id > 0 && id == session.id => Value::Integer(0),
                Some(id) if id > 0 => return Outcome::Kill(id),
                _ => error("ERR client-id should be greater than 0"),
            }
        }
        (b"TRACKING", [b"ON", b"OPTIN"]) => {
            session.is_tracking = true;
            ok()
        }
        (b"TRACKING", _) => error(SYNTAX),
        (b"SETNAME", _) => wrong_arity(b"client|setname"),
        (b"ID", _) => wrong_arity(b"client|id"),
        (b"KILL", []) => wrong_arity(b"client|kill"),
        (b"KILL", _) => error(SYNTAX),
        _ => unknown("subcommand", subcommand),
    })
}

fn select(session: &mut Session, db: &[u8]) -> Value {
    match integer(db).map(usize::try_from) {
        None => error(NO_INTEGER),
        Some(Ok(db)) if db < DATABASES => {
            session.db = db;
            ok()
        }
        Some(_) => error("ERR DB index is out of range"),
    }
}

fn time(now: Now) -> Value {
    let text = |number: u64| Value::Bulk(number.to_string().into_bytes());
    Value::Array(vec![text(now.wall.as_secs()), text(now.wall.subsec_micros().into())])
}

fn number(count: usize) -> Value {
    Value::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

fn ok() -> Value {
    Value::Status("OK".into())
}

fn error(text: &str) -> Value {
    Value::Error(text.into())
}

fn wrong_arity(name: &[u8]) -> Value {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    Value::Error(format!("ERR wrong number of arguments for '{name}' command"))
}

fn unknown(kind: &str, name: &[u8]) -> Value {
    let name = String::from_utf8_lossy(&name[..name.len().min(QUOTED_BYTES_MAX)]);
    Value::Error(format!("ERR unknown {kind} '{name}'"))
}
