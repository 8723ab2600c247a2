//! The errors of a server, as they are counted and shown.

use std::io;
use std::sync::Arc;

use crate::outcome::{NodeOutcome, Phase, ServerErrorKind};
use crate::proto::command::{Foreign, ServerError};

/// A run of this many hexadecimal digits could be a token and is redacted.
const HEX_RUN_MAX: usize = 16;
const MASK: &str = "***";
/// A password of so many bytes is no part of a word by chance.
const PASSWORD_LONG: usize = 8;
/// The longest error message that is kept.
const MESSAGE_CHARS_MAX: usize = 400;
/// The most that is shown of what answers in place of a Redis server.
const FOREIGN_CHARS_MAX: usize = 40;
/// So many characters of a password give it away.
const PASSWORD_PART: usize = 4;

/// The errors of a server.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    pub(super) counts: ErrorCounts,
    pub(super) last: Option<LastError>,
    pub(super) timeouts: u64,
    pub(super) refused: u64,
}

/// The last of the errors that came with words.
#[derive(Debug)]
pub(crate) enum LastError {
    Server(ServerError),
    /// Why the connection ended or could not be made.
    Failure(NodeOutcome, Arc<str>),
}

impl LastError {
    pub(super) fn message(&self) -> &Arc<str> {
        match self {
            LastError::Server(error) => &error.message,
            LastError::Failure(_, message) => message,
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
        // The words of an earlier failure are not those of this one.
        if matches!(self.last, Some(LastError::Failure(of, _)) if of != failure) {
            self.last = None;
        }
    }

    /// Keeps an error's message for reports, without secrets: some servers repeat what they were
    /// sent.
    pub(super) fn keep(&mut self, error: ServerError, password: Option<&str>) {
        let message = without_tokens(&without_password(&error.message, password)).into();
        self.counts.0[error.kind as usize] += 1;
        self.last = Some(LastError::Server(ServerError { message, ..error }));
    }

    /// Keeps the words for a failure. They may quote the server.
    pub(super) fn keep_failure(
        &mut self,
        outcome: NodeOutcome,
        words: &str,
        password: Option<&str>,
    ) {
        self.keep_text(outcome, without_tokens(&without_password(words, password)).into());
    }

    /// As above, for words that have no secret.
    pub(super) fn keep_text(&mut self, outcome: NodeOutcome, words: Arc<str>) {
        self.last = Some(LastError::Failure(outcome, words));
    }
}

/// The number of error replies of a server by kind, including those to handshakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrorCounts([u64; ServerErrorKind::ALL.len()]);

impl ErrorCounts {
    /// The number of errors of this kind.
    pub fn of(&self, kind: ServerErrorKind) -> u64 {
        self.0[kind as usize]
    }

    /// The number of errors of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The kinds that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (ServerErrorKind, u64)> {
        let kinds = ServerErrorKind::ALL.into_iter().map(|row| row.0);
        kinds.zip(self.0).filter(|(_, count)| *count > 0)
    }
}

/// Whether the server would give the same answer again.
pub(crate) fn is_forbidden(kind: ServerErrorKind) -> bool {
    matches!(kind, ServerErrorKind::Permission | ServerErrorKind::UnknownCommand)
}

/// Whether the server may give another answer soon: it has no room, or no time.
pub(crate) fn passes(kind: ServerErrorKind) -> bool {
    matches!(
        kind,
        ServerErrorKind::Loading
            | ServerErrorKind::Misconfigured
            | ServerErrorKind::OutOfMemory
            | ServerErrorKind::NoReplicas
            | ServerErrorKind::Busy
            | ServerErrorKind::MaxClients
            | ServerErrorKind::Cluster
    )
}

/// The text with the password masked. A short password is masked only where it is a word: masked
/// inside other words, it would give itself away.
fn without_password(text: &str, password: Option<&str>) -> String {
    let Some(password) = password else {
        return text.to_owned();
    };
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

/// What another kind of server has sent first, in words. It may repeat what it was sent.
pub(crate) fn foreign(peer: Foreign<'_>, password: Option<&str>) -> String {
    let Foreign::Line { text, is_whole } = peer else {
        return "this port speaks TLS: write rediss://".to_owned();
    };
    let line = String::from_utf8_lossy(text);
    let cut = match password {
        // The rest of a password may follow.
        Some(password) if !is_whole => without_beginning_of(password, &line),
        _ => &line,
    };
    // A part of a password is enough to give it away.
    let shows_password = password.is_some_and(|password| {
        let chars: Vec<char> = password.chars().collect();
        let parts = chars.windows(PASSWORD_PART.min(chars.len()).max(1));
        parts.map(String::from_iter).any(|part: String| line.contains(&part))
    });
    let shown = if shows_password { MASK.to_owned() } else { without_tokens(cut) };
    let is_printable = |char: &char| !char.is_control() && *char != char::REPLACEMENT_CHARACTER;
    let shown: String = shown.chars().filter(is_printable).take(FOREIGN_CHARS_MAX).collect();
    match shown.is_empty() {
        true => "this is not a Redis server: it answered with bytes that are no text".to_owned(),
        false => format!("this is not a Redis server: it answered {shown:?}"),
    }
}

/// The text without the beginning of the password with which it ends.
fn without_beginning_of<'a>(password: &str, text: &'a str) -> &'a str {
    let beginnings = password.char_indices().rev().map(|(at, char)| at + char.len_utf8());
    let mut ends = beginnings.filter_map(|length| text.strip_suffix(&password[..length]));
    ends.next().unwrap_or(text)
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
        let masked = |text, password| without_password(text, Some(password));
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
    fn errors_are_counted_by_kind() {
        let mut counts = ErrorCounts::default();
        for (index, (kind, _)) in ServerErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
            counts.0[index] = index as u64;
        }
        assert!(counts.iter().all(|(kind, count)| count == kind as u64));
    }

    fn peer(text: &[u8]) -> Foreign<'_> {
        Foreign::Line { text, is_whole: true }
    }

    #[test]
    fn other_servers_are_told_by_their_first_line() {
        let table = [
            (peer(b"HTTP/1.1 400 Bad Request"), "\"HTTP/1.1 400 Bad Request\""),
            (peer(b"SSH-2.0-OpenSSH_9.2"), "\"SSH-2.0-OpenSSH_9.2\""),
            (peer(b"+OK Dovecot \"ready\"\x1b[31m."), "\"+OK Dovecot \\\"ready\\\"[31m.\""),
            (peer(b"J\0\0\0"), "\"J\""),
            (peer(&[0, 0, 18, 4, 0]), "bytes that are no text"),
            (Foreign::Tls, "write rediss://"),
        ];
        for (peer, words) in table {
            assert!(foreign(peer, None).contains(words), "{peer:?}");
        }
        let long = foreign(peer(&[b'x'; 5_000]), None);
        assert!(long.ends_with(&format!("\"{}\"", "x".repeat(FOREIGN_CHARS_MAX))), "{long}");
    }

    /// It repeats what it was sent, whole, in part, or cut.
    #[test]
    fn words_of_other_servers_show_no_part_of_the_password() {
        let cut = |text| Foreign::Line { text, is_whole: false };
        for text in ["you said AUTH sesame", "bad: sesa", "'same'"] {
            let words = foreign(cut(text.as_bytes()), Some("sesame"));
            assert!(words.ends_with("\"***\""), "{words}");
        }
        for (text, shown) in
            [("s", None), ("HTTP se", Some("\"HTTP \"")), ("HTTP", Some("\"HTTP\""))]
        {
            let words = foreign(cut(text.as_bytes()), Some("sesame"));
            assert!(words.ends_with(shown.unwrap_or("bytes that are no text")), "{words}");
        }
        assert!(foreign(peer(b"HTTP se"), Some("sesame")).ends_with("\"HTTP se\""));
        let token = foreign(cut(b"SET 0123456789abcdef0123456789abcdef01234567 x"), None);
        assert!(!token.contains("0123456789abcdef"), "{token}");
    }

    #[test]
    fn messages_show_no_tokens_and_end_somewhere() {
        let hex = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(without_tokens(&format!("ERR bad {hex} there")), "ERR bad … there");
        assert_eq!(without_tokens("ERR \u{0}odd"), "ERR odd");
        assert_eq!(without_tokens(&"z".repeat(5_000)).len(), MESSAGE_CHARS_MAX);
    }
}
