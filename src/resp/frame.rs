//! How long a reply is, and what it says. What cannot be the answer is refused at its first byte.

use std::time::Duration;

use redis_protocol::resp2::decode::decode_range;
use redis_protocol::resp2::types::RangeFrame;

use super::info::{memory, replication, server_error, server_info, stats};
use super::limits::{LINE_BYTES_MAX, NUMBER_BYTES_MAX, TEXT_BYTES_MAX};
use super::line::{line, number, text_length};
use super::resp3::{client_id, map_length, verbatim, verbatim_length};
use super::sighting::sighting;
use super::trial::missing;
use crate::inspection::{Holding, Owned};
use crate::outcome::ProtocolError;
use crate::proto::{Marker, Reply};
use crate::token::{Fingerprint, LockToken};

/// The only array that is expected.
const PAIR: &[u8] = b"*2\r\n";

/// The length of the first frame; `None` if it is not complete. It fails at the first byte that
/// cannot belong to an expected reply.
#[inline]
pub(super) fn frame_length(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    match bytes.first() {
        None => Ok(None),
        Some(b'+' | b'-') => Ok(line(bytes, LINE_BYTES_MAX)?.map(|line| line.len() + 3)),
        Some(b':') => number_length(bytes),
        Some(b'$') => match line(bytes, NUMBER_BYTES_MAX)? {
            Some(b"-1") => Ok(Some(b"$-1\r\n".len())),
            _ => text_length(bytes, TEXT_BYTES_MAX),
        },
        Some(b'*') => pair_length(bytes),
        Some(b'_') => number_length(bytes),
        Some(b'=') => verbatim_length(bytes, TEXT_BYTES_MAX),
        Some(b'%') => map_length(bytes),
        // A push has its place before the next reply. No command asks for the others.
        Some(b'>' | b'#' | b',' | b'(' | b'!' | b'~' | b'|') => Err(ProtocolError::Unexpected),
        Some(_) => Err(ProtocolError::Malformed),
    }
}

/// The length of an array of a short text and a second one, as in a time reply, or a number, as in
/// what a server has for a key.
fn pair_length(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    let common = bytes.len().min(PAIR.len());
    if bytes[..common] != PAIR[..common] {
        return Err(ProtocolError::Unexpected);
    }
    let rest = bytes.get(PAIR.len()..).unwrap_or_default();
    if !matches!(rest.first(), None | Some(b'$')) {
        return Err(ProtocolError::Unexpected);
    }
    let Some(first) = text_length(rest, NUMBER_BYTES_MAX)? else {
        return Ok(None);
    };
    let rest = rest.get(first..).unwrap_or_default();
    let second = match rest.first() {
        Some(b'$') => text_length(rest, NUMBER_BYTES_MAX)?,
        Some(b':') => number_length(rest)?,
        None => None,
        Some(_) => return Err(ProtocolError::Unexpected),
    };
    Ok(second.map(|second| PAIR.len() + first + second))
}

/// The length of an integer or a null, including its type and line end.
fn number_length(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    Ok(line(bytes, NUMBER_BYTES_MAX)?.map(|number| number.len() + 3))
}

pub(super) fn decode(frame: &[u8]) -> Result<Reply, ProtocolError> {
    match frame[0] {
        b'*' => return decode_pair(frame),
        b'_' => return Ok(Reply::Nil),
        b'%' => return Ok(Reply::Hello { client_id: client_id(frame) }),
        b'=' => return verbatim(frame).map(section),
        _ => {}
    }
    match decode_range(frame) {
        Ok(Some((_, length))) if length != frame.len() => Err(ProtocolError::Malformed),
        Ok(Some((RangeFrame::SimpleString((from, to)), _))) if frame[from..to] == *b"OK" => {
            Ok(Reply::Ok)
        }
        Ok(Some((RangeFrame::SimpleString(_), _))) => Ok(Reply::Status),
        Ok(Some((RangeFrame::Integer(number), _))) => Ok(Reply::Integer(number)),
        Ok(Some((RangeFrame::Null, _))) => Ok(Reply::Nil),
        Ok(Some((RangeFrame::BulkString((from, to)), _))) => match &frame[from..to] {
            [b'=', text @ ..] => owned(text),
            [b'@', text @ ..] => Ok(sighting(text).unwrap_or_else(|| section(text))),
            [b'!', text @ ..] => Ok(marker(text).map_or_else(|| section(text), Reply::Marker)),
            text => Ok(section(text)),
        },
        Ok(Some((RangeFrame::Array(_), _))) => Err(ProtocolError::Unexpected),
        Ok(Some((RangeFrame::Error((from, to)), _))) => {
            let error = &frame[from..to];
            // The client sends no transactions: this is a reply to another client.
            if error.starts_with(b"EXECABORT") {
                return Err(ProtocolError::Unexpected);
            }
            Ok(missing(error).map_or_else(|| Reply::Error(server_error(error)), Reply::Missing))
        }
        Ok(None) | Err(_) => Err(ProtocolError::Malformed),
    }
}

/// Which value a key has, behind the token beside it.
fn owned(text: &[u8]) -> Result<Reply, ProtocolError> {
    let (token, value) = text.split_first_chunk().ok_or(ProtocolError::Malformed)?;
    // What no client of ours has written belongs to none of them.
    let token = LockToken::from_text(token).unwrap_or(LockToken::NONE);
    Ok(Reply::Owned(Box::new(Owned { token, value: value.into() })))
}

/// A marker: its random number in hexadecimal, and the time at which it was written.
fn marker(text: &[u8]) -> Option<Marker> {
    let (id, micros) = std::str::from_utf8(text).ok()?.split_at_checked(16)?;
    Some(Marker { id: u64::from_str_radix(id, 16).ok()?, micros: micros.parse().ok()? })
}

/// A section of `INFO`.
fn section(text: &[u8]) -> Reply {
    // Those that are asked for again and again take no memory.
    if text.starts_with(b"# Replication") {
        Reply::Replication(replication(text))
    } else if text.starts_with(b"# Memory") {
        memory(text)
    } else if text.starts_with(b"# Stats") {
        stats(text)
    } else {
        Reply::Info(Box::new(server_info(text)))
    }
}

fn decode_pair(frame: &[u8]) -> Result<Reply, ProtocolError> {
    let rest = &frame[PAIR.len()..];
    let Some(first) = text_length(rest, NUMBER_BYTES_MAX)? else {
        return Err(ProtocolError::Malformed);
    };
    let (holder, left) = rest.split_at(first);
    if left.first() != Some(&b':') {
        return decode_time(frame);
    }
    let left = std::str::from_utf8(&left[1..]).ok().and_then(|left| left.trim_end().parse().ok());
    let begin = holder.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let holder = Fingerprint::new(&holder[begin..first - 2]);
    let left_ms = left.ok_or(ProtocolError::Malformed)?;
    Ok(Reply::Holding(Holding::new(holder, left_ms)))
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
