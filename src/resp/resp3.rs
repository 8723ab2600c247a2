//! What RESP3 adds, as far as a client that waits needs it: other nulls and texts, the map that
//! answers `HELLO`, and pushes, which answer nothing.
//!
//! Frames are walked here without recursion and within named caps, and borrowed from the buffer.

use super::frame::{line, text_length};
use super::{LINE_BYTES_MAX, NUMBER_BYTES_MAX, TEXT_BYTES_MAX};
use crate::outcome::ProtocolError;
use crate::proto::Push;

/// The longest push. It has two keys at most, or a channel and a key.
const PUSH_BYTES_MAX: usize = 4 * 1024;
/// The most elements of an aggregate, with those within it.
const ELEMENTS_MAX: u64 = 1_024;
/// The deepest aggregate within another one. The answer to `HELLO` has a list of modules, each of
/// them a map that has a list.
const DEPTH_MAX: usize = 4;
/// The type of a verbatim text stands in front of it.
const TEXT_TYPE: &[u8; 4] = b"txt:";

/// Which protocol a server speaks on a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// What every connection begins with.
    #[default]
    Resp2,
    /// From `HELLO 3` on, which may be answered in either.
    Resp3,
}

/// What an element may be, and where it ends.
enum Element {
    /// It ends there.
    Leaf(usize),
    /// Its header ends there, and so many elements follow.
    Aggregate(usize, u64),
}

/// The element that begins at `from`, of which no part is longer than `longest`.
fn element(bytes: &[u8], from: usize, longest: usize) -> Result<Option<Element>, ProtocolError> {
    let rest = bytes.get(from..).unwrap_or_default();
    let leaf = |length: Option<usize>| length.map(|length| Element::Leaf(from + length));
    Ok(match rest.first() {
        None => None,
        Some(b'$' | b'=') => match line(rest, NUMBER_BYTES_MAX)? {
            Some(b"-1") => Some(Element::Leaf(from + b"$-1\r\n".len())),
            _ => leaf(text_length(rest, longest)?),
        },
        Some(b'+' | b'-') => leaf(line(rest, longest.min(LINE_BYTES_MAX))?.map(|it| it.len() + 3)),
        Some(b':' | b'#' | b',' | b'_' | b'(') => {
            leaf(line(rest, NUMBER_BYTES_MAX)?.map(|it| it.len() + 3))
        }
        Some(kind @ (b'*' | b'%' | b'~' | b'>')) => {
            let Some(header) = line(rest, NUMBER_BYTES_MAX)? else {
                return Ok(None);
            };
            let end = from + header.len() + 3;
            if header == b"-1" {
                return Ok(Some(Element::Leaf(end)));
            }
            let count = super::frame::number(header).ok_or(ProtocolError::Malformed)?;
            if count > ELEMENTS_MAX {
                return Err(ProtocolError::TooLarge);
            }
            Some(Element::Aggregate(end, if *kind == b'%' { 2 * count } else { count }))
        }
        Some(_) => return Err(ProtocolError::Malformed),
    })
}

/// The length of the first frame, whatever it is; `None` if it is not complete.
fn any_length(bytes: &[u8], longest: usize) -> Result<Option<usize>, ProtocolError> {
    let mut left = [0; DEPTH_MAX];
    let (mut depth, mut at, mut elements) = (0, 0, 0);
    loop {
        match element(bytes, at, longest)? {
            None if bytes.len() > longest => return Err(ProtocolError::TooLarge),
            None => return Ok(None),
            Some(Element::Leaf(end)) => at = end,
            Some(Element::Aggregate(end, count)) => {
                elements += count;
                if elements > ELEMENTS_MAX || depth == DEPTH_MAX {
                    return Err(ProtocolError::TooLarge);
                }
                // One more, because the aggregate itself is counted below.
                left[depth] = count + 1;
                depth += 1;
                at = end;
            }
        }
        if at > longest {
            return Err(ProtocolError::TooLarge);
        }
        // Whatever has ended may end what it is in.
        loop {
            let Some(inner) = depth.checked_sub(1) else {
                return Ok(Some(at));
            };
            left[inner] -= 1;
            if left[inner] > 0 {
                break;
            }
            depth = inner;
        }
    }
}

/// The length of the map that answers `HELLO`.
pub(super) fn map_length(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    any_length(bytes, TEXT_BYTES_MAX)
}

/// The length of a verbatim text.
pub(super) fn verbatim_length(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    text_length(bytes, TEXT_BYTES_MAX)
}

/// The text of a complete verbatim frame.
pub(super) fn verbatim(frame: &[u8]) -> Result<&[u8], ProtocolError> {
    let begin = frame.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let text = frame.get(begin..frame.len().saturating_sub(2)).unwrap_or_default();
    text.strip_prefix(TEXT_TYPE).ok_or(ProtocolError::Malformed)
}

/// The first push, and its length; `None` if it is not complete.
pub(super) fn push(bytes: &[u8]) -> Result<Option<(Push<'_>, usize)>, ProtocolError> {
    let Some(length) = any_length(bytes, PUSH_BYTES_MAX)? else {
        return Ok(None);
    };
    let frame = &bytes[..length];
    let Some(Element::Aggregate(mut at, count)) = element(frame, 0, PUSH_BYTES_MAX)? else {
        return Err(ProtocolError::Malformed);
    };
    let mut words = [frame; 3];
    let is_short = (1..=words.len() as u64).contains(&count);
    if !is_short {
        return Ok(Some((Push::Other, length)));
    }
    for word in words.iter_mut().take(count as usize) {
        let end = at + any_length(&frame[at..], PUSH_BYTES_MAX)?.ok_or(ProtocolError::Malformed)?;
        *word = &frame[at..end];
        at = end;
    }
    let push = match (count, bulk(words[0])) {
        (3, Some(b"subscribe")) => bulk(words[1]).map(Push::Subscribed),
        (3, Some(b"message")) => {
            let told = bulk(words[1]).zip(bulk(words[2]));
            told.map(|(channel, message)| Push::Told { channel, message })
        }
        (2, Some(b"invalidate")) => Some(changed(words[1])),
        _ => None,
    };
    Ok(Some((push.unwrap_or(Push::Other), length)))
}

/// The keys that an invalidation names. Of several, none is told apart: any key may have changed.
fn changed(keys: &[u8]) -> Push<'_> {
    match keys.strip_prefix(b"*1\r\n").and_then(bulk) {
        Some(key) => Push::Changed(key),
        None => Push::AllChanged,
    }
}

/// The content of a complete bulk string.
fn bulk(frame: &[u8]) -> Option<&[u8]> {
    let begin = frame.iter().position(|byte| *byte == b'\n')? + 1;
    let is_text = frame.first() == Some(&b'$');
    frame.get(begin..frame.len().checked_sub(2)?).filter(|_| is_text)
}
