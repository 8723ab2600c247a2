//! Bytes to replies, as they arrive.

use std::iter;
use std::time::Duration;

use super::frame::{decode, frame_length};
use super::limits::REPLY_BYTES_MAX;
use super::line::number;
use super::resp3;
use crate::outcome::ProtocolError;
use crate::proto::{Grant, Push, Reply};

/// More than the longest reply, so that there is always room to read into.
const BUFFER_BYTES: usize = 2 * REPLY_BYTES_MAX;
/// Enough for the replies of a handshake, and for those of a batch of usual size.
const BUFFER_BYTES_AT_FIRST: usize = 8 * 1024;

/// Collects bytes from a connection and cuts complete replies from them.
pub struct ReplyReader {
    buffer: Vec<u8>,
    /// Invariant: `start <= end <= buffer.len()`. The bytes between them are not cut yet.
    start: usize,
    end: usize,
}

impl ReplyReader {
    /// An empty reader.
    pub fn new() -> ReplyReader {
        ReplyReader { buffer: vec![0; BUFFER_BYTES_AT_FIRST], start: 0, end: 0 }
    }

    /// Drops the collected bytes, for a new connection.
    #[cfg(feature = "unstable-resp")]
    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Whether a push comes next, which is no reply: take it with
    /// [`next_push`](ReplyReader::next_push).
    #[inline]
    pub fn is_at_push(&self) -> bool {
        self.pending().first() == Some(&b'>')
    }

    /// The push that comes next; `None` if it is not complete.
    ///
    /// # Errors
    /// The peer broke the protocol: the connection must be closed (R17).
    pub fn next_push(&mut self) -> Result<Option<Push<'_>>, ProtocolError> {
        let pending = &self.buffer[self.start..self.end];
        Ok(resp3::push(pending)?.map(|(push, length)| {
            self.start += length;
            push
        }))
    }

    /// Room to read into; never empty once [`next`](ReplyReader::next) has returned `None`.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        if self.start == self.end && self.end < self.buffer.len() {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < REPLY_BYTES_MAX {
            self.make_room();
        }
        &mut self.buffer[self.end..]
    }

    /// What is left moves to the front; a buffer that was filled is too small.
    #[cold]
    fn make_room(&mut self) {
        let is_full = self.end == self.buffer.len();
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if is_full {
            self.buffer.resize(BUFFER_BYTES, 0);
        }
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

    /// The replies that come next, as far as they are complete and grants;
    /// [`next`](ReplyReader::next) returns any reply.
    #[inline(always)]
    pub fn grants(&mut self) -> impl Iterator<Item = Grant> {
        let (mut pending, start) = (&self.buffer[self.start..self.end], &mut self.start);
        iter::from_fn(move || {
            // Arrays are compared as one number; a slice pattern, byte by byte.
            let (head, rest) = pending.split_first_chunk()?;
            let (grant, length) = match rest {
                _ if *head == *b":1\r\n" => (Grant::One, 4),
                [b'\n', ..] if *head == *b"+OK\r" => (Grant::Ok, 5),
                _ => return None,
            };
            *start += length;
            pending = &pending[length..];
            Some(grant)
        })
    }

    /// A time in its usual form, if it comes next.
    #[inline]
    pub fn time(&mut self) -> Option<Duration> {
        let (time, length) = usual_time(self.pending())?;
        self.start += length;
        Some(time)
    }

    /// The next reply; `None` if it is not complete.
    ///
    /// # Errors
    /// The peer broke the protocol: the connection must be closed (R17).
    #[cfg_attr(
        feature = "unstable-resp",
        expect(clippy::should_implement_trait, reason = "an iterator would end at the first None")
    )]
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
        let Some(length) = frame_length(pending)? else {
            return Ok(None);
        };
        let reply = decode(&pending[..length])?;
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
        _ => usual_time(bytes).map(|(time, length)| (Reply::Time(time), length)),
    }
}

/// A time as servers send it until the year 2286.
fn usual_time(bytes: &[u8]) -> Option<(Duration, usize)> {
    let (seconds, rest) = bytes.strip_prefix(b"*2\r\n$10\r\n")?.split_at_checked(10)?;
    let (digit, rest) = rest.strip_prefix(b"\r\n$")?.split_first()?;
    let digits = match *digit {
        b'1'..=b'6' => usize::from(digit - b'0'),
        _ => return None,
    };
    let (micros, rest) = rest.strip_prefix(b"\r\n")?.split_at_checked(digits)?;
    let rest = rest.strip_prefix(b"\r\n")?;
    let time = Duration::from_micros(number(seconds)? * 1_000_000 + number(micros)?);
    Some((time, bytes.len() - rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspection::Holding;
    use crate::proto::{Replication, ServerInfo};
    use crate::resp::limits::{LINE_BYTES_MAX, TEXT_BYTES_MAX};
    use crate::token::Fingerprint;

    /// Reads so many of the bytes, or as many as there is room for. Returns the others.
    fn feed<'a>(reader: &mut ReplyReader, bytes: &'a [u8], most: usize) -> &'a [u8] {
        let room = reader.room();
        let (read, rest) = bytes.split_at(bytes.len().min(room.len()).min(most));
        room[..read.len()].copy_from_slice(read);
        reader.filled(read.len());
        rest
    }

    fn replies(bytes: &[u8]) -> Result<Vec<Reply>, ProtocolError> {
        let mut reader = ReplyReader::new();
        let mut replies = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = feed(&mut reader, rest, 1_000);
            while let Some(reply) = reader.next()? {
                replies.push(reply);
            }
        }
        Ok(replies)
    }

    /// What fills the first buffer is read on in a larger one, of any length.
    #[test]
    fn room_grows_when_it_was_filled_and_at_no_other_time() {
        let mut reader = ReplyReader::new();
        assert_eq!(reader.room().len(), BUFFER_BYTES_AT_FIRST);
        let text = format!("+{}\r\n", "x".repeat(1_000));
        let stream = text.repeat(40).into_bytes();
        let (mut rest, mut read) = (&stream[..], 0);
        while !rest.is_empty() {
            rest = feed(&mut reader, rest, usize::MAX);
            while let Some(reply) = reader.next().unwrap() {
                assert!(matches!(reply, Reply::Status), "{reply:?}");
                read += 1;
            }
        }
        assert_eq!((read, reader.room().len()), (40, BUFFER_BYTES));
        let mut little = ReplyReader::new();
        assert!(feed(&mut little, b"+x\r", usize::MAX).is_empty());
        assert!(little.next().unwrap().is_none());
        assert_eq!(little.room().len(), BUFFER_BYTES_AT_FIRST - 3);
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

    /// Everything that is read, and how many times were read the short way.
    fn read_on(bytes: &[u8], most: usize, is_short: bool) -> (usize, Vec<Reply>) {
        let mut reader = ReplyReader::new();
        let (mut rest, mut replies, mut short) = (bytes, Vec::new(), 0);
        while !rest.is_empty() {
            rest = feed(&mut reader, rest, most);
            loop {
                if let Some(time) = is_short.then(|| reader.time()).flatten() {
                    replies.push(Reply::Time(time));
                    short += 1;
                } else if let Ok(Some(reply)) = reader.next() {
                    replies.push(reply);
                } else {
                    break;
                }
            }
        }
        (short, replies)
    }

    #[test]
    fn a_check_is_the_same_the_short_and_the_long_way() {
        let time = "*2\r\n$10\r\n1700000000\r\n$6\r\n000042\r\n";
        let table = [
            (time.to_owned(), 1),
            ("*2\r\n$10\r\n1700000000\r\n$1\r\n7\r\n".into(), 1),
            (format!("{time}+OK\r\n{time}:1\r\n"), 2),
            // None of these has the usual form.
            (":1\r\n".into(), 0),
            ("-NOPERM no\r\n".into(), 0),
            ("*2\r\n$9\r\n170000000\r\n$6\r\n000042\r\n".into(), 0),
            ("*2\r\n$11\r\n17000000000\r\n$6\r\n000042\r\n".into(), 0),
            ("*2\r\n$10\r\n1700000000\r\n$7\r\n1000042\r\n".into(), 0),
            ("*2\r\n$10\r\n1700000000\r\n$0\r\n\r\n".into(), 0),
            ("*2\r\n$10\r\n-170000000\r\n$6\r\n000042\r\n".into(), 0),
            ("*2\r\n$10\r\n1700000000\r\n$6\r\n-00042\r\n".into(), 0),
            ("*2\r\n$10\r\n1700000000\r\n$6\r\n00042\r\n".into(), 0),
            ("*2\r\n$99999999999999999999\r\n1700000000\r\n".into(), 0),
            ("*2\r\n$10\r\n1700000000\r\n:42\r\n".into(), 0),
            ("*3\r\n$10\r\n1700000000\r\n$6\r\n000042\r\n".into(), 0),
        ];
        for (stream, short) in table {
            let whole = stream.as_bytes();
            assert_eq!(read_on(whole, usize::MAX, true).0, short, "{stream}");
            // However the bytes are cut.
            for most in 1..=whole.len() {
                let replies = |is_short| read_on(whole, most, is_short).1;
                assert_eq!(replies(true), replies(false), "{most}: {stream}");
            }
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
        let table: [(&[u8], ProtocolError); 25] = [
            (b"*1", ProtocolError::Unexpected),
            (b"*-1\r\n", ProtocolError::Unexpected),
            (b"*2\r\n:", ProtocolError::Unexpected),
            (b"*2\r\n+", ProtocolError::Unexpected),
            (b"*3\r\n*", ProtocolError::Unexpected),
            (b"*2\r\n$1\r\nx\r\n+", ProtocolError::Unexpected),
            (b"*2\r\n$1\r\nx\r\n:x\r\n", ProtocolError::Malformed),
            (b"*2\r\n$1\r\nx\r\n:99999999999999999999\r\n", ProtocolError::Malformed),
            (b"*2\r\n$25\r\n", ProtocolError::TooLarge),
            (b"*2\r\n$1\r\n1\r\n$1\r\nx\r\n", ProtocolError::Malformed),
            (b"*2\r\n$1\r\n1\r\n$7\r\n1000000\r\n", ProtocolError::Malformed),
            (b"$3\r\nfooXY", ProtocolError::Malformed),
            (b"H", ProtocolError::Malformed),
            (b">2\r\n", ProtocolError::Unexpected),
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
            evicted: None,
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
    fn a_server_says_what_it_has() {
        let table: [(&[u8], &[u8], i64); 4] = [
            (b"*2\r\n$8\r\n3f9a1c02\r\n:8412\r\n", b"3f9a1c02", 8_412),
            (b"*2\r\n$0\r\n\r\n:-1\r\n", b"", -1),
            (b"*2\r\n$4\r\n\r\n\r\n\r\n:0\r\n", b"\r\n\r\n", 0),
            (b"*2\r\n$9\r\n123456789\r\n:1\r\n", b"12345678", 1),
        ];
        for (frame, holder, left_ms) in table {
            for end in 0..frame.len() {
                assert_eq!(replies(&frame[..end]), Ok(vec![]), "{end}");
            }
            let holding = Holding::new(Fingerprint::new(holder), left_ms);
            assert_eq!(replies(frame), Ok(vec![Reply::Holding(holding)]));
        }
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
                assert_eq!(reader.grants().next(), None, "{frame:?}");
            }
            let bytes = [&frame[frame.len() - 1..], rest].concat();
            reader.room()[..bytes.len()].copy_from_slice(&bytes);
            reader.filled(bytes.len());
            match grant {
                Some(grant) => assert_eq!(reader.grants().next(), Some(grant)),
                None => {
                    assert_eq!(reader.grants().next(), None, "{frame:?}");
                    assert!(reader.next().unwrap().is_some(), "{frame:?}");
                }
            }
            assert_eq!(reader.grants().next(), Some(Grant::Ok));
            assert_eq!(reader.pending().len(), 4);
            assert_eq!(reader.grants().next(), Some(Grant::One));
            assert!(reader.is_empty());
            assert_eq!(reader.grants().next(), None);
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
        assert_eq!(replies(&line(LINE_BYTES_MAX - 3)), Ok(vec![Reply::Status]));
        assert_eq!(replies(&line(LINE_BYTES_MAX - 2)), Err(ProtocolError::TooLarge));
        assert_eq!(replies(&vec![b'+'; 1 << 20]), Err(ProtocolError::TooLarge));
    }
}
