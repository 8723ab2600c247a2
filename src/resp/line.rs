//! The lines of replies, and the texts and numbers that they announce.

use super::limits::NUMBER_BYTES_MAX;
use crate::outcome::ProtocolError;

/// The text between the type byte and the line end; `None` if the line is not complete. The whole
/// line must not be longer than `longest`. It fails at the first byte that its type does not allow,
/// however the bytes are cut.
pub(super) fn line(bytes: &[u8], longest: usize) -> Result<Option<&[u8]>, ProtocolError> {
    let Some((&kind, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let window = &rest[..rest.len().min(longest.saturating_sub(2))];
    let mut window = window.iter().enumerate();
    let Some(at) = window.position(|(at, byte)| !may_follow(kind, &rest[..at], *byte)) else {
        return if bytes.len() + 1 < longest { Ok(None) } else { Err(ProtocolError::TooLarge) };
    };
    let (text, end) = rest.split_at(at);
    match end {
        [b'\r', ..] if !is_whole(kind, text) => Err(ProtocolError::Malformed),
        [b'\r', b'\n', ..] => Ok(Some(text)),
        [b'\r'] => Ok(None),
        _ => Err(ProtocolError::Malformed),
    }
}

/// Whether a line of this type may go on with this byte.
fn may_follow(kind: u8, before: &[u8], byte: u8) -> bool {
    match (kind, before) {
        (b'+' | b'-', _) => !matches!(byte, b'\r' | b'\n'),
        (b'_', _) | (b'#', [_, ..]) | (b'$' | b'*', b"-1") => false,
        (b'#', []) => matches!(byte, b't' | b'f'),
        (b',', _) => byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'),
        (b'$' | b'*', b"-") => byte == b'1',
        (b'$' | b'*' | b':' | b'(', []) => byte == b'-' || byte.is_ascii_digit(),
        _ => byte.is_ascii_digit(),
    }
}

/// Whether a line of this type, of bytes that it allows, says something.
fn is_whole(kind: u8, text: &[u8]) -> bool {
    let as_text = || std::str::from_utf8(text).ok();
    match kind {
        b'+' | b'-' | b'_' => true,
        b':' => as_text().is_some_and(|text| text.parse::<i64>().is_ok()),
        b',' => as_text().is_some_and(|text| text.parse::<f64>().is_ok()),
        _ => !matches!(text, b"" | b"-"),
    }
}

/// The length of a bulk string of at most `longest` bytes, including its header and line end.
pub(super) fn text_length(bytes: &[u8], longest: usize) -> Result<Option<usize>, ProtocolError> {
    let Some(header) = line(bytes, NUMBER_BYTES_MAX)? else {
        return Ok(None);
    };
    if header == b"-1" {
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

/// An unsigned number of at most 18 digits, which always fits.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let is_number = (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| text.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}
