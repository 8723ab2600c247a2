//! The errors of a server, as they are counted and shown.

use std::io;
use std::sync::Arc;

use crate::outcome::{NodeOutcome, Phase, ServerErrorKind};
use crate::proto::command::ServerError;

/// A run of this many hexadecimal digits could be a token and is redacted.
const HEX_RUN_MAX: usize = 16;
const MASK: &str = "***";
/// A password of so many bytes is no part of a word by chance.
const PASSWORD_LONG: usize = 8;
/// The longest error message that is kept.
const MESSAGE_CHARS_MAX: usize = 160;

/// The errors of a server.
#[derive(Debug, Default)]
pub(super) struct Errors {
    pub(super) counts: ErrorCounts,
    pub(super) last: Option<LastError>,
    pub(super) timeouts: u64,
    pub(super) refused: u64,
}

/// The last of the errors that came with words.
#[derive(Debug)]
pub(super) enum LastError {
    Server(ServerError),
    Tls(Arc<str>),
}

impl LastError {
    pub(super) fn message(&self) -> &Arc<str> {
        match self {
            LastError::Server(error) => &error.message,
            LastError::Tls(message) => message,
        }
    }
}

impl Errors {
    /// The connection has ended, or could not be made.
    #[cold]
    pub(super) fn note_failure(&mut self, failure: NodeOutcome) {
        match failure {
            // The commands that a silent server did not answer were counted.
            NodeOutcome::TimedOut(Phase::Reply) => {}
            NodeOutcome::TimedOut(_) => self.timeouts += 1,
            NodeOutcome::Disconnected(io::ErrorKind::ConnectionRefused) => self.refused += 1,
            _ => {}
        }
    }

    /// Keeps an error's message for reports, without secrets: some servers repeat what they were
    /// sent.
    pub(super) fn keep(&mut self, error: ServerError, password: Option<&str>) {
        let message = match password {
            Some(password) => without_password(&error.message, password),
            None => error.message.to_string(),
        };
        let message = without_tokens(&message).into();
        self.counts.0[error.kind as usize] += 1;
        self.last = Some(LastError::Server(ServerError { message, ..error }));
    }

    /// Keeps the words of an error of TLS. They may quote the server's certificate.
    pub(super) fn keep_tls(&mut self, message: &str) {
        self.last = Some(LastError::Tls(without_tokens(message).into()));
    }
}

/// The number of error replies of a server by kind, including those to handshakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrorCounts([u64; ServerErrorKind::ALL.len()]);

impl ErrorCounts {
    /// How many errors of this kind.
    pub fn of(&self, kind: ServerErrorKind) -> u64 {
        self.0[kind as usize]
    }

    /// How many errors of any kind.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The kinds that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (ServerErrorKind, u64)> {
        ServerErrorKind::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }
}

/// Whether the server would give the same answer again.
pub(crate) fn is_forbidden(kind: ServerErrorKind) -> bool {
    matches!(kind, ServerErrorKind::Permission | ServerErrorKind::UnknownCommand)
}

/// Whether the server may give another answer soon: it has no room, or no time.
pub(crate) fn passes(kind: ServerErrorKind) -> bool {
    match kind {
        ServerErrorKind::Loading
        | ServerErrorKind::Misconfigured
        | ServerErrorKind::OutOfMemory
        | ServerErrorKind::NoReplicas
        | ServerErrorKind::Busy
        | ServerErrorKind::MaxClients
        | ServerErrorKind::Cluster => true,
        ServerErrorKind::Auth
        | ServerErrorKind::Permission
        | ServerErrorKind::ReadOnly
        | ServerErrorKind::NoScript
        | ServerErrorKind::WrongType
        | ServerErrorKind::UnknownCommand
        | ServerErrorKind::Other => false,
    }
}

/// The text with the password masked. A short password is masked only where it is a word: masked
/// inside other words, it would give itself away.
fn without_password(text: &str, password: &str) -> String {
    if password.len() >= PASSWORD_LONG {
        return text.replace(password, MASK);
    }
    let is_end = |char: Option<char>| char.is_none_or(|char| !char.is_alphanumeric());
    let (mut masked, mut done) = (String::new(), 0);
    for (at, _) in text.match_indices(password) {
        let end = at + password.len();
        if is_end(text[..at].chars().next_back()) && is_end(text[end..].chars().next()) {
            masked += &text[done..at];
            masked += MASK;
            done = end;
        }
    }
    masked + &text[done..]
}

/// The text, printable, short, and without anything that looks like a token.
fn without_tokens(text: &str) -> String {
    let mut kept = String::new();
    let mut run = 0;
    for char in text.chars().filter(|char| !char.is_control()) {
        run = if char.is_ascii_hexdigit() { run + 1 } else { 0 };
        kept.push(char);
        if run == HEX_RUN_MAX {
            kept.truncate(kept.len() - HEX_RUN_MAX);
            kept.push('…');
        } else if run > HEX_RUN_MAX {
            kept.pop();
        }
    }
    kept.chars().take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_password_does_not_give_itself_away() {
        let masked = |text, password| without_password(text, password);
        assert_eq!(masked("NOPERM no permissions", "p"), "NOPERM no permissions");
        assert_eq!(
            masked("ERR bad 'pass' and pass, passed", "pass"),
            "ERR bad '***' and ***, passed"
        );
        assert_eq!(masked("pass", "pass"), "***");
        assert_eq!(masked("xsesame-openx", "sesame-open"), "x***x");
        assert_eq!(masked("ERR äpä pä", "pä"), "ERR äpä ***");
    }

    #[test]
    fn messages_show_no_tokens_and_end_somewhere() {
        let hex = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(without_tokens(&format!("ERR bad {hex} there")), "ERR bad … there");
        assert_eq!(without_tokens("ERR \u{0}odd"), "ERR odd");
        assert_eq!(without_tokens(&"z".repeat(5_000)).len(), MESSAGE_CHARS_MAX);
    }
}
