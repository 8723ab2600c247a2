//! Encodes [`Command`] and decodes [`Reply`]: the only importer of `redis-protocol`, which encodes
//! the rare commands and decodes single frames.
//!
//! Everything that a peer can make large is limited here, before the decoder sees it. The decoder
//! itself has no limit on depth or length, does not check the line end of bulk strings, and accepts
//! malformed numbers. A lock client asks for scalars, for sections of `INFO`, for the time, and for
//! the description of two commands. Only these pass.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use redis_protocol::resp2::decode::decode_range;
use redis_protocol::resp2::encode::extend_encode_borrowed;
use redis_protocol::resp2::types::BorrowedFrame::{self, Array, BulkString};
use redis_protocol::resp2::types::RangeFrame;

use crate::outcome::{ProtocolError, ServerErrorKind};
use crate::proto::{
    Command, Grant, History, ReleaseWith, Replication, Reply, Section, ServerError, ServerInfo,
};
use crate::token::{LockToken, TOKEN_BYTES};

/// The longest line of a reply: error messages are the longest lines that are expected.
pub const LINE_BYTES_MAX: usize = 4 * 1024;
/// The longest bulk string. The requested sections of `INFO` have one to two thousand bytes, plus
/// one line for each replica.
pub const TEXT_BYTES_MAX: usize = 16 * 1024;
/// The longest reply.
pub const REPLY_BYTES_MAX: usize = TEXT_BYTES_MAX + NUMBER_BYTES_MAX + 2;
/// Most bytes of an integer or a length, including its prefix and line end.
const NUMBER_BYTES_MAX: usize = 24;
/// More than the longest reply, so that there is always room to read into.
const BUFFER_BYTES: usize = 2 * REPLY_BYTES_MAX;

const RELEASE: &str = include_str!("scripts/release.lua").trim_ascii_end();
const EXTEND: &str = include_str!("scripts/extend.lua").trim_ascii_end();
const EXTEND_OR_SET: &str = include_str!("scripts/extend_or_set.lua").trim_ascii_end();
const MARKER: &str = include_str!("scripts/marker.lua").trim_ascii_end();
const CLIENT_NAME: &str = concat!("muxlock/", env!("CARGO_PKG_VERSION"));

/// The beginning of the commands that every lock uses, up to the key's length.
const SET_HEAD: &[u8] = b"*6\r\n$3\r\nSET\r\n$";
const DELEX_HEAD: &[u8] = b"*4\r\n$5\r\nDELEX\r\n$";
const DELIFEQ_HEAD: &[u8] = b"*3\r\n$7\r\nDELIFEQ\r\n$";
static RELEASE_HEAD: LazyLock<Box<[u8]>> = LazyLock::new(|| eval_head(5, RELEASE));
static EXTEND_HEAD: LazyLock<Box<[u8]>> = LazyLock::new(|| eval_head(6, EXTEND));
static EXTEND_OR_SET_HEAD: LazyLock<Box<[u8]>> = LazyLock::new(|| eval_head(6, EXTEND_OR_SET));

/// Most bytes after a token.
const TAIL_BYTES_MAX: usize = 32;

fn eval_head(words: usize, script: &str) -> Box<[u8]> {
    let length = script.len();
    let head = format!("*{words}\r\n$4\r\nEVAL\r\n${length}\r\n{script}\r\n$1\r\n1\r\n$");
    head.into_bytes().into()
}

/// Appends a command to `out`. Integers are sent as bulk strings, because the encoder's own
/// integers contain a stray zero byte near powers of ten. The encoder also counts digits by
/// logarithms, for every word. So the commands that every lock uses are assembled here from
/// prepared parts.
pub fn encode(command: &Command<'_>, out: &mut BytesMut) {
    let mut digits = [0; 20];
    match *command {
        Command::Authenticate(credentials) => match credentials.user {
            Some(user) => append(out, &[b"AUTH", user.as_bytes(), credentials.password.as_bytes()]),
            None => append(out, &[b"AUTH", credentials.password.as_bytes()]),
        },
        Command::Select { db } => append(out, &[b"SELECT", decimal(db.into(), &mut digits)]),
        Command::SetName => append(out, &[b"CLIENT", b"SETNAME", CLIENT_NAME.as_bytes()]),
        Command::ClientId => append(out, &[b"CLIENT", b"ID"]),
        Command::Kill { connection } => {
            let id = decimal(connection.unsigned_abs(), &mut digits);
            append(out, &[b"CLIENT", b"KILL", b"ID", id]);
        }
        // These two are sent often.
        Command::Info(Section::Replication) => {
            out.put_slice(b"*2\r\n$4\r\nINFO\r\n$11\r\nreplication\r\n");
        }
        Command::Time => out.put_slice(b"*1\r\n$4\r\nTIME\r\n"),
        Command::Info(section) => append(out, &[b"INFO", section_name(section)]),
        // No lock has this token.
        Command::Probe { key, with } => {
            let token = &LockToken::from_random([0; 20]);
            encode(&Command::Release { key, token, with }, out);
        }
        Command::Marker { key, quarantine } => {
            let millis = quarantine.as_nanos().div_ceil(1_000_000);
            let millis = u64::try_from(millis).unwrap_or(u64::MAX);
            let millis = decimal(millis, &mut digits);
            append(out, &[b"EVAL", MARKER.as_bytes(), b"1", key, millis]);
        }
        Command::Acquire { key, token, ttl } => {
            append_owned(out, SET_HEAD, key, token, b"\r\n$2\r\nNX\r\n$2\r\nPX\r\n$");
            append_word(out, decimal(ttl.as_millis().into(), &mut digits));
            out.put_slice(b"\r\n");
        }
        Command::Extend { key, token, ttl } => {
            append_owned(out, &EXTEND_HEAD, key, token, b"\r\n$");
            append_word(out, decimal(ttl.as_millis().into(), &mut digits));
            out.put_slice(b"\r\n");
        }
        Command::Heal { key, token, ttl } => {
            append_owned(out, &EXTEND_OR_SET_HEAD, key, token, b"\r\n$");
            append_word(out, decimal(ttl.as_millis().into(), &mut digits));
            out.put_slice(b"\r\n");
        }
        // EVAL, not EVALSHA: a NOSCRIPT error would put the release behind later commands (R19).
        Command::Release { key, token, with: ReleaseWith::Script } => {
            append_owned(out, &RELEASE_HEAD, key, token, b"\r\n");
        }
        Command::Release { key, token, with: ReleaseWith::Delifeq } => {
            append_owned(out, DELIFEQ_HEAD, key, token, b"\r\n");
        }
        Command::Release { key, token, with: ReleaseWith::Delex } => {
            out.put_slice(DELEX_HEAD);
            append_word(out, key);
            // Without a condition, DELEX would delete any value.
            out.put_slice(b"\r\n$4\r\nIFEQ");
            append_token(out, token, b"\r\n");
        }
    }
}

/// Appends a head, the key, its token, and a tail.
fn append_owned<const N: usize>(
    out: &mut BytesMut,
    head: &[u8],
    key: &[u8],
    token: &LockToken,
    tail: &[u8; N],
) {
    out.put_slice(head);
    append_word(out, key);
    append_token(out, token, tail);
}

/// Appends the token, from the line end of the word before it. The token has a fixed length, so
/// this compiles to one copy.
#[inline]
fn append_token<const N: usize>(out: &mut BytesMut, token: &LockToken, tail: &[u8; N]) {
    const HEAD: &[u8; 7] = b"\r\n$40\r\n";
    const TAIL: usize = HEAD.len() + TOKEN_BYTES;
    let mut piece = [0; TAIL + TAIL_BYTES_MAX];
    piece[..HEAD.len()].copy_from_slice(HEAD);
    piece[HEAD.len()..TAIL].copy_from_slice(token.as_array());
    piece[TAIL..TAIL + N].copy_from_slice(tail);
    out.put_slice(&piece[..TAIL + N]);
}

/// Appends a word's length and the word itself: the part after the dollar and before the line end.
fn append_word(out: &mut BytesMut, word: &[u8]) {
    let length = word.len();
    match length {
        // Nearly every word.
        10..=99 => {
            let (tens, ones) = ((length / 10) as u8, (length % 10) as u8);
            out.put_slice(&[b'0' + tens, b'0' + ones, b'\r', b'\n']);
        }
        0..=9 => out.put_slice(&[b'0' + length as u8, b'\r', b'\n']),
        _ => {
            out.put_slice(decimal(length as u64, &mut [0; 20]));
            out.put_slice(b"\r\n");
        }
    }
    out.put_slice(word);
}

fn append<const N: usize>(out: &mut BytesMut, words: &[&[u8]; N]) {
    let frames: [BorrowedFrame<'_>; N] = words.map(BulkString);
    // Encoding fails only for frames without a RESP2 form; bulk strings have one.
    extend_encode_borrowed(out, &Array(&frames), false).expect("bulk strings always encode");
}

fn section_name(section: Section) -> &'static [u8] {
    match section {
        Section::Server => b"server",
        Section::Replication => b"replication",
        Section::Memory => b"memory",
        Section::Persistence => b"persistence",
    }
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// Collects bytes from a connection and cuts complete replies from them.
pub struct ReplyReader {
    buffer: Box<[u8]>,
    /// Invariant: `start <= end <= buffer.len()`. The bytes between them are not cut yet.
    start: usize,
    end: usize,
    /// The bytes of the last replication section, and their meaning: it is requested often and
    /// hardly ever changes.
    replication: (Vec<u8>, Replication),
}

impl ReplyReader {
    /// An empty reader.
    pub fn new() -> ReplyReader {
        ReplyReader {
            buffer: vec![0; BUFFER_BYTES].into(),
            start: 0,
            end: 0,
            replication: (Vec::new(), Replication::default()),
        }
    }

    /// Drops the collected bytes, for a new connection.
    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Room to read into; never empty once [`next`](ReplyReader::next) has returned `None`.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            self.clear();
        } else if self.buffer.len() - self.end < REPLY_BYTES_MAX {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// Notes that `count` bytes were read into the room.
    ///
    /// # Panics
    /// If there was less room.
    pub fn filled(&mut self, count: usize) {
        assert!(count <= self.buffer.len() - self.end, "more was read than there is room for");
        self.end += count;
    }

    /// The bytes that are not cut yet.
    #[inline]
    pub fn pending(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Whether there are no such bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The next reply, if it is complete and a grant; [`next`](ReplyReader::next) returns any
    /// reply.
    #[inline]
    pub fn next_grant(&mut self) -> Option<Grant> {
        // `starts_with` compiles to one comparison of several bytes; a slice pattern compares byte
        // by byte.
        let pending = self.pending();
        let (grant, length) = if pending.starts_with(b":1\r\n") {
            (Grant::One, 4)
        } else if pending.starts_with(b"+OK\r\n") {
            (Grant::Ok, 5)
        } else {
            return None;
        };
        self.start += length;
        Some(grant)
    }

    /// The next reply; `None` if it is not complete.
    ///
    /// # Errors
    /// The peer broke the protocol: the connection must be closed (R17).
    #[expect(clippy::should_implement_trait, reason = "an iterator would end at the first None")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Reply>, ProtocolError> {
        let pending = &self.buffer[self.start..self.end];
        if let Some((reply, length)) = usual(pending) {
            self.start += length;
            return Ok(Some(reply));
        }
        self.next_unusual()
    }

    fn next_unusual(&mut self) -> Result<Option<Reply>, ProtocolError> {
        let pending = &self.buffer[self.start..self.end];
        if let Some((reply, length)) = usual_time(pending) {
            self.start += length;
            return Ok(Some(reply));
        }
        let (known, replication) = &self.replication;
        if !known.is_empty() && pending.starts_with(known) {
            self.start += known.len();
            return Ok(Some(Reply::Replication(*replication)));
        }
        let Some(length) = frame_length(pending)? else {
            return Ok(None);
        };
        let reply = decode(&pending[..length])?;
        if let Reply::Replication(said) = reply {
            self.replication.0.clear();
            self.replication.0.extend_from_slice(&pending[..length]);
            self.replication.1 = said;
        }
        self.start += length;
        Ok(Some(reply))
    }
}

impl Default for ReplyReader {
    fn default() -> ReplyReader {
        ReplyReader::new()
    }
}

impl std::fmt::Debug for ReplyReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyReader").field("pending", &self.pending().len()).finish()
    }
}

/// The most common replies, recognised with few comparisons.
#[inline]
fn usual(bytes: &[u8]) -> Option<(Reply, usize)> {
    match *bytes {
        [b'+', b'O', b'K', b'\r', b'\n', ..] => Some((Reply::Ok, 5)),
        [b':', digit @ b'0'..=b'9', b'\r', b'\n', ..] => {
            Some((Reply::Integer((digit - b'0').into()), 4))
        }
        [b'$', b'-', b'1', b'\r', b'\n', ..] => Some((Reply::Nil, 5)),
        _ => None,
    }
}

/// A time as servers send it until the year 2286.
fn usual_time(bytes: &[u8]) -> Option<(Reply, usize)> {
    let (seconds, rest) = bytes.strip_prefix(b"*2\r\n$10\r\n")?.split_at_checked(10)?;
    let (digit, rest) = rest.strip_prefix(b"\r\n$")?.split_first()?;
    let digits = match *digit {
        b'1'..=b'6' => usize::from(digit - b'0'),
        _ => return None,
    };
    let (micros, rest) = rest.strip_prefix(b"\r\n")?.split_at_checked(digits)?;
    let rest = rest.strip_prefix(b"\r\n")?;
    let (seconds, micros) = (number(seconds)?, number(micros)?);
    let time = Duration::from_secs(seconds) + Duration::from_micros(micros);
    (micros < 1_000_000).then_some((Reply::Time(time), bytes.len() - rest.len()))
}

/// The length of the first frame; `None` if it is not complete. It fails at the first byte that
/// cannot belong to an expected reply.
fn frame_length(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    match bytes.first() {
        None => Ok(None),
        Some(b'+' | b'-') => Ok(line(bytes, LINE_BYTES_MAX)?.map(|line| line.len() + 3)),
        Some(b':') => match line(bytes, NUMBER_BYTES_MAX)? {
            Some(number) if !is_integer(number) => Err(ProtocolError::Malformed),
            number => Ok(number.map(|number| number.len() + 3)),
        },
        Some(b'$') => match line(bytes, NUMBER_BYTES_MAX)? {
            Some(b"-1") => Ok(Some(b"$-1\r\n".len())),
            _ => text_length(bytes, TEXT_BYTES_MAX),
        },
        Some(b'*') => time_length(bytes),
        Some(_) => Err(ProtocolError::Malformed),
    }
}

/// The text between the type byte and the line end; `None` if the line is not complete. The whole
/// line must not be longer than `longest`.
fn line(bytes: &[u8], longest: usize) -> Result<Option<&[u8]>, ProtocolError> {
    let window = &bytes[..bytes.len().min(longest)];
    let Some(at) = window.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return if bytes.len() < longest { Ok(None) } else { Err(ProtocolError::TooLarge) };
    };
    match (bytes[at], bytes.get(at + 1)) {
        (b'\r', Some(b'\n')) => Ok(Some(&bytes[1..at])),
        (b'\r', None) => Ok(None),
        _ => Err(ProtocolError::Malformed),
    }
}

/// The length of a bulk string of at most `longest` bytes, including its header and line end.
fn text_length(bytes: &[u8], longest: usize) -> Result<Option<usize>, ProtocolError> {
    let Some(header) = line(bytes, NUMBER_BYTES_MAX)? else {
        return Ok(None);
    };
    if header.is_empty() || !header.iter().all(u8::is_ascii_digit) {
        return Err(ProtocolError::Malformed);
    }
    // The number of digits is limited, so it fits.
    let length = header.iter().fold(0, |sum: u128, digit| sum * 10 + u128::from(digit - b'0'));
    if length > longest as u128 {
        return Err(ProtocolError::TooLarge);
    }
    let end = header.len() + 3 + length as usize;
    match (bytes.get(end), bytes.get(end + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some(end + 2)),
        (None | Some(b'\r'), None) => Ok(None),
        _ => Err(ProtocolError::Malformed),
    }
}

/// The length of the time reply: an array of two numbers as text.
fn time_length(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    const HEADER: &[u8] = b"*2\r\n";
    let common = bytes.len().min(HEADER.len());
    if bytes[..common] != HEADER[..common] {
        return Err(ProtocolError::Unexpected);
    }
    let mut length = HEADER.len();
    for _ in 0..2 {
        let rest = bytes.get(length..).unwrap_or_default();
        if !matches!(rest.first(), None | Some(b'$')) {
            return Err(ProtocolError::Unexpected);
        }
        let Some(text) = text_length(rest, NUMBER_BYTES_MAX)? else {
            return Ok(None);
        };
        length += text;
    }
    Ok(Some(length))
}

fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

fn decode(frame: &[u8]) -> Result<Reply, ProtocolError> {
    if frame[0] == b'*' {
        return decode_time(frame);
    }
    match decode_range(frame) {
        Ok(Some((_, length))) if length != frame.len() => Err(ProtocolError::Malformed),
        Ok(Some((RangeFrame::SimpleString((from, to)), _))) if frame[from..to] == *b"OK" => {
            Ok(Reply::Ok)
        }
        Ok(Some((RangeFrame::SimpleString(_), _))) => Ok(Reply::Status),
        Ok(Some((RangeFrame::Integer(number), _))) => Ok(Reply::Integer(number)),
        Ok(Some((RangeFrame::Null, _))) => Ok(Reply::Nil),
        Ok(Some((RangeFrame::BulkString((from, to)), _))) => {
            let text = &frame[from..to];
            Ok(match text.starts_with(b"# Replication") {
                true => Reply::Replication(replication(text)),
                false => Reply::Info(Box::new(server_info(text))),
            })
        }
        Ok(Some((RangeFrame::Array(_), _))) => Err(ProtocolError::Unexpected),
        Ok(Some((RangeFrame::Error((from, to)), _))) => {
            let error = &frame[from..to];
            // The client sends no transactions: this is a reply to another client.
            if error.starts_with(b"EXECABORT") {
                return Err(ProtocolError::Unexpected);
            }
            Ok(Reply::Error(server_error(error)))
        }
        Ok(None) | Err(_) => Err(ProtocolError::Malformed),
    }
}

/// Parses the frame's lines: the third is seconds and the fifth microseconds. The decoder would
/// allocate, and the time is requested often.
fn decode_time(frame: &[u8]) -> Result<Reply, ProtocolError> {
    let mut lines = frame.split(|byte| *byte == b'\n').map(|line| line.trim_ascii_end());
    match (lines.nth(2).and_then(number), lines.nth(1).and_then(number)) {
        (Some(seconds), Some(micros @ 0..1_000_000)) => {
            Ok(Reply::Time(Duration::from_secs(seconds) + Duration::from_micros(micros)))
        }
        _ => Err(ProtocolError::Malformed),
    }
}

/// An unsigned number of at most 18 digits, which always fits.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| text.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// The lines of the form `name:value`.
fn fields(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], &line[colon + 1..]))
    })
}

/// Parsed often, so it reads each line only once.
fn replication(text: &[u8]) -> Replication {
    let mut said = Replication::default();
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(role) = line.strip_prefix(b"role:") {
            said.master = Some(role.trim_ascii_end() == b"master");
        } else if let Some(name) = line.strip_prefix(b"master_replid:") {
            said.history = history(name);
        } else if let Some(offset) = line.strip_prefix(b"second_repl_offset:") {
            said.promoted = Some(offset.trim_ascii_end() != b"-1");
        }
    }
    said
}

/// The first 32 of 40 hexadecimal digits.
fn history(value: &[u8]) -> Option<History> {
    let digits = std::str::from_utf8(value.get(..32)?).ok()?;
    u128::from_str_radix(digits, 16).ok().map(History::from)
}

/// Parses a section of `INFO`. Unknown fields and invalid values are skipped.
fn server_info(text: &[u8]) -> ServerInfo {
    let mut info = ServerInfo { replication: replication(text), ..ServerInfo::default() };
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
            b"maxmemory" => info.memory_max = number(value),
            b"maxmemory_policy" => info.evicts_nothing = Some(value == b"noeviction"),
            b"loading" | b"async_loading" => {
                info.loading = Some(info.loading == Some(true) || value != b"0");
            }
            _ => {}
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
    let printable = value.iter().filter(|byte| byte.is_ascii_graphic());
    printable.take(CHARS_MAX).map(|byte| char::from(*byte)).collect::<String>().into()
}

/// Error codes and their meaning. Old servers put the code of a script's error after other text, so
/// a code counts anywhere as a whole word.
const CODES: [(&str, ServerErrorKind); 24] = [
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
    ("max number of clients", ServerErrorKind::MaxClients),
    ("invalid password", ServerErrorKind::Auth),
    ("DENIED", ServerErrorKind::Auth),
    ("without any password configured", ServerErrorKind::Auth),
];

fn server_error(text: &[u8]) -> ServerError {
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
    use crate::proto::Ttl;
    use crate::token::LockToken;
    use std::time::Duration;

    fn encoded(command: &Command<'_>) -> String {
        let mut out = BytesMut::new();
        encode(command, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    fn replies(bytes: &[u8]) -> Result<Vec<Reply>, ProtocolError> {
        let mut reader = ReplyReader::new();
        let mut replies = Vec::new();
        for chunk in bytes.chunks(1_000) {
            reader.room()[..chunk.len()].copy_from_slice(chunk);
            reader.filled(chunk.len());
            while let Some(reply) = reader.next()? {
                replies.push(reply);
            }
        }
        Ok(replies)
    }

    fn error_kind(text: &str) -> ServerErrorKind {
        server_error(text.as_bytes()).kind
    }

    /// R19: a release is sent as EVAL, never as EVALSHA, which may have to be sent twice.
    /// Hand-assembled commands must equal what the encoder writes.
    #[test]
    fn commands_of_every_lock_are_as_the_encoder_writes_them() {
        let token = LockToken::from_random([0xa5; 20]);
        let ttls = [1, 9, 10, 99, 100, 12_345, 2_147_483_647];
        for length in (1..130).chain([999, 1_000, 1_024, 9_999, 10_000]) {
            let key: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
            for ttl in ttls {
                let digits = ttl.to_string();
                let ttl = Ttl::new(Duration::from_millis(ttl)).unwrap();
                let (key, token) = (key.as_slice(), &token);
                let (text, digits) = (token.as_bytes(), digits.as_bytes());
                let set: [&[u8]; 6] = [b"SET", key, text, b"NX", b"PX", digits];
                let extend: [&[u8]; 6] = [b"EVAL", EXTEND.as_bytes(), b"1", key, text, digits];
                let script = EXTEND_OR_SET.as_bytes();
                let heal: [&[u8]; 6] = [b"EVAL", script, b"1", key, text, digits];
                let release: [&[u8]; 5] = [b"EVAL", RELEASE.as_bytes(), b"1", key, text];
                let delex: [&[u8]; 4] = [b"DELEX", key, b"IFEQ", text];
                let delifeq: [&[u8]; 3] = [b"DELIFEQ", key, text];
                let with = |with| Command::Release { key, token, with };
                let pairs: [(Command<'_>, &[&[u8]]); 6] = [
                    (Command::Acquire { key, token, ttl }, &set),
                    (Command::Extend { key, token, ttl }, &extend),
                    (Command::Heal { key, token, ttl }, &heal),
                    (with(ReleaseWith::Script), &release),
                    (with(ReleaseWith::Delex), &delex),
                    (with(ReleaseWith::Delifeq), &delifeq),
                ];
                for (command, words) in pairs {
                    let (mut ours, mut theirs) = (BytesMut::new(), BytesMut::new());
                    encode(&command, &mut ours);
                    let words: Vec<_> = words.iter().map(|word| BulkString(word)).collect();
                    extend_encode_borrowed(&mut theirs, &Array(&words), false).unwrap();
                    assert_eq!(ours, theirs);
                }
            }
        }
    }

    /// The last replication section is recognised by its bytes alone.
    #[test]
    fn a_section_that_changed_is_not_taken_for_the_one_before() {
        let frame = |history: char, offset: &str| {
            let history = history.to_string().repeat(40);
            let text = format!(
                "# Replication\r\nrole:master\r\nmaster_replid:{history}\r\n\
                 second_repl_offset:{offset}\r\n"
            );
            format!("${}\r\n{text}\r\n", text.len())
        };
        let stream = [frame('a', "-1"), frame('a', "-1"), frame('b', "-1"), frame('b', "77")];
        let said: Vec<_> = replies(stream.concat().as_bytes())
            .unwrap()
            .into_iter()
            .map(|reply| match reply {
                Reply::Replication(said) => said,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(said[0], said[1]);
        assert!(said[1].history != said[2].history && said[2].history == said[3].history);
        assert_eq!((said[2].promoted, said[3].promoted), (Some(false), Some(true)));
        let twice = [frame('a', "-1"), frame('a', "-1")].concat();
        for end in 0..twice.len() {
            let whole = end / (twice.len() / 2);
            assert_eq!(replies(&twice.as_bytes()[..end]).unwrap().len(), whole);
        }
    }

    #[test]
    fn a_time_of_any_length_is_the_same_the_short_and_the_long_way() {
        let odd = b"*2\r\n$10\r\n1700000000\r\n$:\r\n0000000001\r\n";
        assert_eq!(replies(odd), Err(ProtocolError::Malformed));
        for (seconds, micros) in [("1700000000", "0"), ("1700000000", "999999"), ("9", "42")] {
            let frame = format!(
                "*2\r\n${}\r\n{seconds}\r\n${}\r\n{micros}\r\n",
                seconds.len(),
                micros.len()
            );
            assert_eq!(replies(frame.as_bytes()), decode(frame.as_bytes()).map(|it| vec![it]));
            for end in 0..frame.len() {
                assert_eq!(replies(&frame.as_bytes()[..end]), Ok(vec![]), "{end}");
            }
        }
    }

    #[test]
    fn commands_have_their_wire_form() {
        let token = LockToken::from_random([0xab; 20]);
        let hex = "ab".repeat(20);
        let ttl = Ttl::new(Duration::from_millis(30_000)).unwrap();
        let set = Command::Acquire { key: b"k\r\n", token: &token, ttl };
        let expected = format!(
            "*6\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$40\r\n{hex}\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n30000\r\n"
        );
        assert_eq!(encoded(&set), expected);
        let with = ReleaseWith::Script;
        let release = encoded(&Command::Release { key: b"k", token: &token, with });
        assert!(release.starts_with("*5\r\n$4\r\nEVAL\r\n"));
        assert!(release.ends_with(&format!("$1\r\n1\r\n$1\r\nk\r\n$40\r\n{hex}\r\n")));
        assert_eq!(encoded(&Command::Select { db: 12 }), "*2\r\n$6\r\nSELECT\r\n$2\r\n12\r\n");
        let zeros = "0".repeat(40);
        let probe = encoded(&Command::Probe { key: b"k", with: ReleaseWith::Delex });
        let expected = format!("*4\r\n$5\r\nDELEX\r\n$1\r\nk\r\n$4\r\nIFEQ\r\n$40\r\n{zeros}\r\n");
        assert_eq!(probe, expected);
    }

    #[test]
    fn decimal_writes_both_ends() {
        for number in [0, 9, 10, 2_147_483_647, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }

    #[test]
    fn scalars_are_read() {
        let read = replies(b"+OK\r\n+QUEUED\r\n:1\r\n:-2\r\n$-1\r\n").unwrap();
        let expected =
            [Reply::Ok, Reply::Status, Reply::Integer(1), Reply::Integer(-2), Reply::Nil];
        assert_eq!(read, expected);
    }

    #[test]
    fn what_was_not_asked_for_is_refused_at_its_first_byte() {
        let table: [(&[u8], ProtocolError); 23] = [
            (b"*1", ProtocolError::Unexpected),
            (b"*-1\r\n", ProtocolError::Unexpected),
            (b"*2\r\n:", ProtocolError::Unexpected),
            (b"*2\r\n+", ProtocolError::Unexpected),
            (b"*3\r\n*", ProtocolError::Unexpected),
            (b"*2\r\n$25\r\n", ProtocolError::TooLarge),
            (b"*2\r\n$1\r\n1\r\n$1\r\nx\r\n", ProtocolError::Malformed),
            (b"*2\r\n$1\r\n1\r\n$7\r\n1000000\r\n", ProtocolError::Malformed),
            (b"$3\r\nfooXY", ProtocolError::Malformed),
            (b"H", ProtocolError::Malformed),
            (b"_\r\n", ProtocolError::Malformed),
            (b">2\r\n", ProtocolError::Malformed),
            (b"$-2\r\n", ProtocolError::Malformed),
            (b"$9223372036854775807\r\n", ProtocolError::TooLarge),
            (b"$+1\r\n", ProtocolError::Malformed),
            (b":+1\r\n", ProtocolError::Malformed),
            (b":\r\n", ProtocolError::Malformed),
            (b":1\n", ProtocolError::Malformed),
            (b"+OK\rX", ProtocolError::Malformed),
            (b"+OK\n", ProtocolError::Malformed),
            (b":99999999999999999999\r\n", ProtocolError::Malformed),
            (b":111111111111111111111111", ProtocolError::TooLarge),
            (b"-EXECABORT Transaction discarded\r\n", ProtocolError::Unexpected),
        ];
        for (bytes, expected) in table {
            assert_eq!(replies(bytes), Err(expected), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_server_says_who_it_is() {
        let text = b"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\n\
            valkey_version:8.0.1\r\nrun_id:abc\r\nuptime_in_seconds:-3\r\n\
            redis_mode:sentinel\r\nrole:slave\r\nmaster_replid:too short\r\n\
            second_repl_offset:1\r\nmaxmemory:1024\r\nmaxmemory_policy:allkeys-lru\r\n\
            loading:1\r\nasync_loading:0\r\nodd\r\n:\r\n";
        let frame = [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat();
        let expected = ServerInfo {
            version: Some("valkey 8.0.1".into()),
            run_id: Some("abc".into()),
            uptime: Some(Duration::ZERO),
            standalone: Some(false),
            replication: Replication { master: Some(false), history: None, promoted: Some(true) },
            memory_max: Some(1_024),
            evicts_nothing: Some(false),
            loading: Some(true),
        };
        for end in 0..frame.len() {
            assert_eq!(replies(&frame[..end]), Ok(vec![]), "{end}");
        }
        assert_eq!(replies(&frame), Ok(vec![Reply::Info(Box::new(expected))]));
        assert_eq!(replies(b"$0\r\n\r\n"), Ok(vec![Reply::Info(Box::default())]));
    }

    #[test]
    fn a_server_says_whether_it_is_a_master_and_of_what() {
        let text = b"# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\
            master_replid:00000000000000000000000000000abc12345678\r\nsecond_repl_offset:-1\r\n";
        let frame = [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat();
        let expected =
            Replication { master: Some(true), history: Some(0xabc.into()), promoted: Some(false) };
        assert_eq!(replies(&frame), Ok(vec![Reply::Replication(expected)]));
    }

    #[test]
    fn a_server_says_what_time_it_is() {
        let frame = b"*2\r\n$10\r\n1700000000\r\n$6\r\n000042\r\n";
        for end in 0..frame.len() {
            assert_eq!(replies(&frame[..end]), Ok(vec![]), "{end}");
        }
        let time = Duration::from_secs(1_700_000_000) + Duration::from_micros(42);
        assert_eq!(replies(frame), Ok(vec![Reply::Time(time)]));
    }

    #[test]
    fn grants_are_taken_when_they_are_complete_and_nothing_else_is() {
        let rest = b"+OK\r\n:1\r\n";
        let table: [(&[u8], Option<Grant>); 8] = [
            (b"+OK\r\n", Some(Grant::Ok)),
            (b":1\r\n", Some(Grant::One)),
            (b":0\r\n", None),
            (b":11\r\n", None),
            (b"+OKAY\r\n", None),
            (b"+QUEUED\r\n", None),
            (b"$-1\r\n", None),
            (b"-ERR\r\n", None),
        ];
        for (frame, grant) in table {
            let mut reader = ReplyReader::new();
            for byte in &frame[..frame.len() - 1] {
                reader.room()[0] = *byte;
                reader.filled(1);
                assert_eq!(reader.next_grant(), None, "{frame:?}");
            }
            let bytes = [&frame[frame.len() - 1..], rest].concat();
            reader.room()[..bytes.len()].copy_from_slice(&bytes);
            reader.filled(bytes.len());
            match grant {
                Some(grant) => assert_eq!(reader.next_grant(), Some(grant)),
                None => {
                    assert_eq!(reader.next_grant(), None, "{frame:?}");
                    assert!(reader.next().unwrap().is_some(), "{frame:?}");
                }
            }
            assert_eq!((reader.next_grant(), reader.pending().len()), (Some(Grant::Ok), 4));
            assert_eq!((reader.next_grant(), reader.is_empty()), (Some(Grant::One), true));
            assert_eq!(reader.next_grant(), None);
        }
    }

    #[test]
    fn a_text_is_read_up_to_its_cap_and_not_beyond() {
        let text = |length: usize| {
            let header = format!("${length}\r\n");
            [header.as_bytes(), vec![b'x'; length].as_slice(), b"\r\n"].concat()
        };
        let twice = [text(TEXT_BYTES_MAX), text(TEXT_BYTES_MAX)].concat();
        assert_eq!(replies(&twice).map(|replies| replies.len()), Ok(2));
        assert_eq!(replies(&text(TEXT_BYTES_MAX + 1)), Err(ProtocolError::TooLarge));
    }

    #[test]
    fn a_line_is_read_up_to_its_cap_and_not_beyond() {
        let line = |length: usize| [b"+", vec![b'x'; length].as_slice(), b"\r\n"].concat();
        assert_eq!(replies(&line(LINE_BYTES_MAX - 2)), Ok(vec![Reply::Status]));
        assert_eq!(replies(&line(LINE_BYTES_MAX)), Err(ProtocolError::TooLarge));
        assert_eq!(replies(&vec![b'+'; 1 << 20]), Err(ProtocolError::TooLarge));
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

    #[test]
    fn errors_repeat_nothing_that_was_sent() {
        let hex = "0123456789abcdef0123456789abcdef01234567";
        let echo = format!("ERR unknown command 'EVAL', with args beginning with: 'k' '{hex}'");
        let message = server_error(echo.as_bytes()).message;
        assert_eq!(&*message, "ERR unknown command 'EVAL'");
    }
}
