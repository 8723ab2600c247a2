//! What servers say about themselves, and their errors.

use std::sync::Arc;
use std::time::Duration;

use memchr::{memchr, memchr_iter};

use super::line::number;
use crate::outcome::ServerErrorKind;
use crate::proto::{History, Replication, Reply, ServerError, ServerInfo};

/// The lines of the form `name:value` whose name may be one of those below.
fn fields(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut begin = 0;
    memchr_iter(b'\n', text).chain([text.len()]).filter_map(move |end| {
        let line = &text[begin..end];
        begin = end + 1;
        let line = match line.first_chunk()? {
            b"as" | b"ev" | b"lo" | b"ma" | b"re" | b"ro" | b"ru" | b"se" | b"up" | b"va" => line,
            _ => return None,
        };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = memchr(b':', line)?;
        Some((&line[..colon], &line[colon + 1..]))
    })
}

/// Parsed often, so it reads nothing else.
pub(super) fn replication(text: &[u8]) -> Replication {
    let mut reported = Replication::default();
    fields(text).for_each(|(name, value)| note_replication(&mut reported, name, value));
    reported
}

fn note_replication(reported: &mut Replication, name: &[u8], value: &[u8]) {
    match name {
        b"role" => reported.master = Some(value == b"master"),
        b"master_replid" => reported.history = history(value),
        b"second_repl_offset" => reported.promoted = promoted(value),
        _ => {}
    }
}

pub(super) fn memory(text: &[u8]) -> Reply {
    let (mut max, mut evicts_nothing) = (None, None);
    fields(text).for_each(|(name, value)| match name {
        b"maxmemory" => max = number(value),
        b"maxmemory_policy" => evicts_nothing = Some(value == b"noeviction"),
        _ => {}
    });
    Reply::Memory(max, evicts_nothing)
}

pub(super) fn stats(text: &[u8]) -> Reply {
    let evicted = fields(text).find(|(name, _)| *name == b"evicted_keys");
    Reply::Stats(evicted.and_then(|(_, value)| number(value)))
}

/// What is no number says nothing: Garnet, which has no such offset, writes `N/A`.
fn promoted(offset: &[u8]) -> Option<bool> {
    let offset: i64 = std::str::from_utf8(offset).ok()?.parse().ok()?;
    Some(offset != -1)
}

/// The first 32 of 40 hexadecimal digits.
fn history(value: &[u8]) -> Option<History> {
    let digits = std::str::from_utf8(value.get(..32)?).ok()?;
    u128::from_str_radix(digits, 16).ok().map(History::from)
}

/// Parses a section of `INFO`. Unknown fields and invalid values are skipped.
pub(super) fn server_info(text: &[u8]) -> ServerInfo {
    let mut info = ServerInfo::default();
    let mut make = "redis";
    for (name, value) in fields(text) {
        match name {
            b"server_name" if value == b"valkey" => make = "valkey",
            // A fork of Redis reports the version it is compatible with before its own version.
            b"redis_version" => info.version = Some(word(value)),
            b"valkey_version" => info.version = Some(word(value)),
            b"run_id" if !value.is_empty() => info.run_id = Some(word(value)),
            b"uptime_in_seconds" => info.uptime = Some(uptime(value)),
            b"redis_mode" | b"server_mode" => info.standalone = Some(value == b"standalone"),
            b"evicted_keys" => info.evicted = number(value),
            b"maxmemory" => info.memory_max = number(value),
            b"maxmemory_policy" => info.evicts_nothing = Some(value == b"noeviction"),
            b"loading" | b"async_loading" => {
                info.loading = Some(info.loading == Some(true) || value != b"0");
            }
            _ => note_replication(&mut info.replication, name, value),
        }
    }
    info.version = info.version.map(|version| format!("{make} {version}").into());
    info
}

/// A server whose clock was stepped back may report a negative age, which counts as zero.
fn uptime(value: &[u8]) -> Duration {
    Duration::from_secs(number(value).unwrap_or(0))
}

/// The printable characters, up to the length of any name of this kind.
fn word(value: &[u8]) -> Arc<str> {
    const CHARS_MAX: usize = 64;
    let start = String::from_utf8_lossy(&value[..value.len().min(CHARS_MAX)]);
    start.replace(|char: char| !char.is_ascii_graphic(), "").into()
}

/// Error codes and their meaning. Old servers put the code of a script's error after other text, so
/// a code counts anywhere as a whole word.
const CODES: [(&str, ServerErrorKind); 25] = [
    ("LOADING", ServerErrorKind::Loading),
    ("MISCONF", ServerErrorKind::Misconfigured),
    ("OOM", ServerErrorKind::OutOfMemory),
    ("NOAUTH", ServerErrorKind::Auth),
    ("WRONGPASS", ServerErrorKind::Auth),
    ("NOPERM", ServerErrorKind::Permission),
    ("ACL failure", ServerErrorKind::Permission),
    ("READONLY", ServerErrorKind::ReadOnly),
    ("MOVED", ServerErrorKind::Cluster),
    ("ASK", ServerErrorKind::Cluster),
    ("CLUSTERDOWN", ServerErrorKind::Cluster),
    ("CROSSSLOT", ServerErrorKind::Cluster),
    ("TRYAGAIN", ServerErrorKind::Cluster),
    ("MASTERDOWN", ServerErrorKind::ReadOnly),
    ("NOREPLICAS", ServerErrorKind::NoReplicas),
    ("BUSY", ServerErrorKind::Busy),
    ("NOSCRIPT", ServerErrorKind::NoScript),
    ("WRONGTYPE", ServerErrorKind::WrongType),
    // The same error from DELEX.
    ("Key should be of string type", ServerErrorKind::WrongType),
    ("unknown command", ServerErrorKind::UnknownCommand),
    // The same error from a script.
    ("Unknown Redis command", ServerErrorKind::UnknownCommand),
    ("max number of clients", ServerErrorKind::MaxClients),
    ("invalid password", ServerErrorKind::Auth),
    ("DENIED", ServerErrorKind::Auth),
    ("without any password configured", ServerErrorKind::Auth),
];

pub(super) fn server_error(text: &[u8]) -> ServerError {
    let text = String::from_utf8_lossy(text);
    let text = without_arguments(&text);
    let is_word = |at: usize, code: &str| {
        let outside = |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric());
        let bytes = text.as_bytes();
        outside(at.checked_sub(1).and_then(|before| bytes.get(before)))
            && outside(bytes.get(at + code.len()))
    };
    let kind = CODES
        .iter()
        .find(|(code, _)| text.match_indices(code).any(|(at, code)| is_word(at, code)))
        .map_or(ServerErrorKind::Other, |(_, kind)| *kind);
    ServerError { kind, message: text.into() }
}

/// Servers repeat the arguments of an unknown command, which may be a token or a password.
fn without_arguments(text: &str) -> &str {
    text.find("with args").map_or(text, |at| text[..at].trim_end_matches([' ', ',']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_kind(text: &str) -> ServerErrorKind {
        server_error(text.as_bytes()).kind
    }

    #[test]
    fn errors_are_classified_by_their_code() {
        let table = [
            ("LOADING Redis is loading the dataset in memory", ServerErrorKind::Loading),
            (
                "ERR Error running script (call to f_0): @user_script:1: OOM command not allowed",
                ServerErrorKind::OutOfMemory,
            ),
            ("NOPERM this user has no permissions", ServerErrorKind::Permission),
            ("WRONGPASS invalid username-password pair", ServerErrorKind::Auth),
            ("MOVED 3999 127.0.0.1:6381", ServerErrorKind::Cluster),
            (
                "ERR unknown command 'EVAL', with args beginning with: 'BUSY'",
                ServerErrorKind::UnknownCommand,
            ),
            (
                "ERR Error running script: 2: Unknown Redis command called from Lua script",
                ServerErrorKind::UnknownCommand,
            ),
            ("ERR max number of clients reached", ServerErrorKind::MaxClients),
            (
                "ERR Key should be of string type if conditions are specified",
                ServerErrorKind::WrongType,
            ),
            ("ERR BUSYBODY", ServerErrorKind::Other),
            ("", ServerErrorKind::Other),
        ];
        for (text, expected) in table {
            assert_eq!(error_kind(text), expected, "{text}");
        }
    }

    /// Of the servers of `scripts/matrix`, as they were just after their start.
    const SERVERS: [(&str, &str); 12] = [
        ("redis 6.0.16", include_str!("info/redis-6.0.16.txt")),
        ("redis 6.2.5", include_str!("info/redis-6.2.5.txt")),
        ("redis 6.2.14", include_str!("info/redis-6.2.14.txt")),
        ("redis 7.0.15", include_str!("info/redis-7.0.15.txt")),
        ("redis 7.4.1", include_str!("info/redis-7.4.1.txt")),
        ("redis 8.0.2", include_str!("info/redis-8.0.2.txt")),
        ("redis 8.0.6", include_str!("info/redis-8.0.6.txt")),
        ("redis 8.2.3", include_str!("info/redis-8.2.3.txt")),
        ("redis 8.6.3", include_str!("info/redis-8.6.3.txt")),
        ("valkey 8.0.1", include_str!("info/valkey-8.0.1.txt")),
        ("valkey 8.1.1", include_str!("info/valkey-8.1.1.txt")),
        ("valkey 9.1.2", include_str!("info/valkey-9.1.2.txt")),
    ];

    #[test]
    fn every_server_says_what_a_lock_needs_to_know() {
        for (version, text) in SERVERS {
            let info = server_info(text.as_bytes());
            assert_eq!(info.version.as_deref(), Some(version));
            assert_eq!(info.run_id.as_ref().map(|id| id.len()), Some(40), "{version}");
            let second = Duration::from_secs(1);
            assert!(info.uptime.is_some_and(|uptime| uptime <= second), "{version}");
            assert_eq!(info.standalone, Some(true), "{version}");
            assert_eq!(info.loading, Some(false), "{version}");
            assert_eq!((info.memory_max, info.evicts_nothing), (Some(0), Some(true)), "{version}");
            assert_eq!(info.replication.master, Some(true), "{version}");
            assert_eq!(info.replication.promoted, Some(false), "{version}");
            assert!(info.replication.history.is_some(), "{version}");
        }
    }

    #[test]
    fn second_offset_tells_of_a_promotion_if_it_is_a_number() {
        let table = [
            ("-1", Some(false)),
            ("1", Some(true)),
            ("9223372036854775807", Some(true)),
            ("N/A", None),
            ("", None),
        ];
        for (offset, expected) in table {
            let text = format!("role:master\r\nsecond_repl_offset:{offset}\r\n");
            assert_eq!(replication(text.as_bytes()).promoted, expected, "{offset}");
        }
    }

    #[test]
    fn errors_repeat_nothing_that_was_sent() {
        let hex = "0123456789abcdef0123456789abcdef01234567";
        let echo = format!("ERR unknown command 'EVAL', with args beginning with: 'k' '{hex}'");
        let message = server_error(echo.as_bytes()).message;
        assert_eq!(&*message, "ERR unknown command 'EVAL'");
    }
}
