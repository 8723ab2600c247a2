//! Questions to single masters, at the addresses of the locks.
//!
//! A server may repeat bytes that it was sent, including passwords. So errors have fixed texts, and
//! of a server's error at most its code.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use muxlock::Config;
use muxlock::error::TlsErrorKind;
use muxlock::testing::Value;
use muxlock::unstable_tool::{ConfigExt, Connection, Dialled, explained_connection};

/// The most bytes of a reply. The longest is a list of clients, with 400 bytes for each.
const REPLY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A connection to a master, for one question at a time.
pub struct Wire(Connection);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// There is no connection, or it ended.
    Lost(ErrorKind),
    /// There is no connection, for this reason.
    Unmade(String),
    /// The master is another server than expected, or refuses this client.
    Tls(TlsErrorKind),
    /// The server does not speak the protocol.
    Strange,
    /// The server refused.
    Refused(Refusal),
}

/// An error that a server returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub kind: RefusalKind,
    /// Its code, such as `NOPERM`.
    code: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The password is missing or wrong.
    Auth,
    /// The server has no password, and was given one.
    NoPassword,
    /// The server has no password, and answers its own machine only.
    Protected,
    /// The user may not run the command.
    Command,
    /// The user may not use the key.
    Key,
    /// The server does not know the command.
    Unknown,
    /// The server accepts no more clients.
    MaxClients,
    Other,
}

impl Wire {
    /// Connects to a master, and sends nothing. Everything on the connection ends `within` this
    /// time.
    pub fn open(config: &Config, node: usize, within: Duration) -> Result<Wire, Failure> {
        Wire::over(config.dial(node, within))
    }

    fn over(dialled: io::Result<Box<dyn Dialled>>) -> Result<Wire, Failure> {
        match dialled {
            Ok(stream) => Ok(Wire(Connection::over(stream, REPLY_BYTES_MAX))),
            Err(error) => Err(match (tls(&error), error.get_ref()) {
                (Some(failure), _) => failure,
                (None, Some(why)) => Failure::Unmade(why.to_string()),
                (None, None) => explained_connection(&error)
                    .map_or(Failure::Lost(error.kind()), Failure::Unmade),
            }),
        }
    }

    /// Connects as the locks do: authenticated, and to their database.
    pub fn connect(config: &Config, node: usize, within: Duration) -> Result<Wire, Failure> {
        Wire::open(config, node, within)?.handshake(config, node)
    }

    /// As [`connect`](Wire::connect), at one of the addresses of its name.
    pub fn connect_at(
        config: &Config,
        node: usize,
        address: SocketAddr,
        within: Duration,
    ) -> Result<Wire, Failure> {
        Wire::over(config.dial_at(node, address, within))?.handshake(config, node)
    }

    fn handshake(mut self, config: &Config, node: usize) -> Result<Wire, Failure> {
        let wire = &mut self;
        let master = config.master(node);
        let login = config.login(node).map_err(|error| Failure::Unmade(error.to_string()))?;
        if let Some((user, password)) = &login {
            let words = [Some("AUTH"), user.as_deref(), Some(password)];
            let words: Vec<_> = words.into_iter().flatten().map(str::as_bytes).collect();
            wire.ask_for_ok(&words)?;
        }
        if master.db != 0 {
            wire.ask_for_ok(&[b"SELECT", master.db.to_string().as_bytes()])?;
        }
        Ok(self)
    }

    /// Sends a command and waits for its reply, which is no error.
    pub fn ask(&mut self, words: &[&[u8]]) -> Result<Value, Failure> {
        match self.0.ask(words).map_err(failure)? {
            Value::Error(text) => Err(Failure::Refused(Refusal::of(&text))),
            reply => Ok(reply),
        }
    }

    fn ask_for_ok(&mut self, words: &[&[u8]]) -> Result<(), Failure> {
        match self.ask(words)? {
            Value::Status(_) => Ok(()),
            _ => Err(Failure::Strange),
        }
    }
}

fn failure(error: io::Error) -> Failure {
    match (tls(&error), error.kind()) {
        (Some(failure), _) => failure,
        (None, ErrorKind::InvalidData) => Failure::Strange,
        (None, kind) => Failure::Lost(kind),
    }
}

/// With TLS 1.3, a server refuses a client's certificate after the handshake.
fn tls(error: &io::Error) -> Option<Failure> {
    error.get_ref()?.source()?.downcast_ref().copied().map(Failure::Tls)
}

impl Refusal {
    fn of(text: &str) -> Refusal {
        let code = text.split([' ', '\r', '\n']).next().unwrap_or_default();
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let kind = match code {
            "NOAUTH" | "WRONGPASS" => RefusalKind::Auth,
            "DENIED" => RefusalKind::Protected,
            "NOPERM" if has(&[" access "]) => RefusalKind::Key,
            "NOPERM" => RefusalKind::Command,
            "ERR" if has(&["unknown command", "nknown subcommand"]) => RefusalKind::Unknown,
            "ERR" if has(&["max number of clients"]) => RefusalKind::MaxClients,
            "ERR" if has(&["without any password", "no password is set"]) => {
                RefusalKind::NoPassword
            }
            "ERR" if has(&["invalid password"]) => RefusalKind::Auth,
            _ => RefusalKind::Other,
        };
        let is_code =
            (2..=24).contains(&code.len()) && code.bytes().all(|byte| byte.is_ascii_uppercase());
        let code = if is_code { code } else { "an error without a code" };
        Refusal { kind, code: code.to_owned() }
    }
}

impl Failure {
    /// The reply of `ACL DRYRUN` if a user lacks the right for a command.
    pub fn refused_by(text: &str) -> Failure {
        Failure::Refused(Refusal::of(&format!("NOPERM {text}")))
    }

    #[cfg(test)]
    pub fn refused_by_kind(kind: RefusalKind) -> Failure {
        Failure::Refused(Refusal { kind, code: "CODE".to_owned() })
    }

    /// The kind of refusal, if it is one.
    pub fn refusal(&self) -> Option<RefusalKind> {
        match self {
            Failure::Refused(refusal) => Some(refusal.kind),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Lost(ErrorKind::TimedOut) => f.write_str("it did not answer in time"),
            Failure::Lost(ErrorKind::NotFound) => f.write_str("there is no such socket file"),
            Failure::Lost(ErrorKind::UnexpectedEof) => f.write_str("it closed the connection"),
            Failure::Lost(kind) => kind.fmt(f),
            Failure::Unmade(why) => f.write_str(why),
            Failure::Tls(kind) => write!(f, "TLS failed: {kind}"),
            Failure::Strange => f.write_str("the answering server is not Redis"),
            Failure::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it refused: {}", self.code)
    }
}

/// Asks several masters at the same time, each on a thread; one after the other if the system has
/// no thread left. The answers have the order of `nodes`.
pub fn ask_each<T: Send>(nodes: &[usize], ask: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let ask = &ask;
    thread::scope(|scope| {
        let start = |node: &usize| {
            let node = *node;
            let started = thread::Builder::new().spawn_scoped(scope, move || ask(node));
            started.map_err(|_| node)
        };
        let asked: Vec<_> = nodes.iter().map(start).collect();
        let answer = |asked: Result<ScopedJoinHandle<'_, T>, usize>| match asked {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(node) => ask(node),
        };
        asked.into_iter().map(answer).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_at_most_a_code() {
        let table = [
            ("NOPERM this user has no permissions to run the 'set' command", RefusalKind::Command),
            ("NOPERM No permissions to access a key", RefusalKind::Key),
            ("ERR ACL failure in script: No permissions to access the 'k' key", RefusalKind::Other),
            ("ERR max number of clients reached", RefusalKind::MaxClients),
            ("DENIED Redis is running in protected mode because", RefusalKind::Protected),
            ("WRONGPASS invalid username-password pair", RefusalKind::Auth),
            (
                "ERR unknown command 'EVAL', with args beginning with: 'sesame'",
                RefusalKind::Unknown,
            ),
            ("ERR Client sent AUTH, but no password is set sesame", RefusalKind::NoPassword),
            ("sesame", RefusalKind::Other),
            ("", RefusalKind::Other),
        ];
        for (text, kind) in table {
            let refusal = Refusal::of(text);
            assert_eq!(refusal.kind, kind, "{text}");
            assert!(!refusal.to_string().contains("sesame"), "{refusal}");
        }
        assert_eq!(Refusal::of("LOADING Redis is").to_string(), "it refused: LOADING");
    }
}
