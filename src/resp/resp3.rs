//! What RESP3 adds, as far as a client that waits needs it: other nulls and texts, the map that
//! answers `HELLO`, and pushes, which answer nothing.
//!
//! The map may have elements of every type but two: no command asks for attributes, and a push has
//! its place between replies. Frames are walked here without recursion and within named caps, and
//! borrowed from the buffer. Each part is compared with the caps, and with what its type allows, as
//! soon as it has been read: so the verdict does not depend on how the bytes were cut.

use super::limits::{LINE_BYTES_MAX, NUMBER_BYTES_MAX, TEXT_BYTES_MAX};
use super::line::{line, number, text_length};
use super::wait;
use crate::outcome::ProtocolError;
use crate::proto::Push;

/// The longest push. It has two keys at most, or a channel and a key.
const PUSH_BYTES_MAX: usize = 4 * 1024;
/// The most elements of an aggregate, with those within it.
const ELEMENTS_MAX: u64 = 1_024;
/// The least bytes of an element: a null.
const ELEMENT_BYTES_MIN: usize = 3;
/// The deepest aggregate of a reply. The answer to `HELLO` has a list of modules, each of them a
/// map that has a list.
const REPLY_DEPTH_MAX: usize = 4;
/// The deepest aggregate of a push. An invalidation has a list of keys.
const PUSH_DEPTH_MAX: usize = 2;
/// The type of a verbatim text stands in front of it.
const TEXT_TYPE: &[u8; 4] = b"txt:";

/// The length of the first element of at most `longest` bytes, and 0; of an aggregate, the length
/// of its header, and how many elements follow. `None` if it is not complete.
fn element(bytes: &[u8], longest: usize) -> Result<Option<(usize, u64)>, ProtocolError> {
    let Some(kind) = bytes.first() else {
        return Ok(None);
    };
    let longest_line = match kind {
        b'+' | b'-' | b',' | b'(' => LINE_BYTES_MAX,
        b'_' | b':' | b'#' | b'$' | b'=' | b'!' | b'*' | b'%' | b'~' | b'>' => NUMBER_BYTES_MAX,
        b'|' => return Err(ProtocolError::Unexpected),
        _ => return Err(ProtocolError::Malformed),
    };
    let Some(text) = line(bytes, longest_line.min(longest))? else {
        return Ok(None);
    };
    let end = text.len() + 3;
    Ok(match kind {
        b'$' | b'*' if text == b"-1" => Some((end, 0)),
        b'$' | b'=' | b'!' => {
            let longest = longest.checked_sub(end + 2).ok_or(ProtocolError::TooLarge)?;
            let length = if *kind == b'=' { verbatim_length } else { text_length };
            length(bytes, longest)?.map(|length| (length, 0))
        }
        b'*' | b'%' | b'~' | b'>' => {
            let count = number(text).ok_or(ProtocolError::TooLarge)?;
            Some((end, if *kind == b'%' { 2 * count } else { count }))
        }
        _ => Some((end, 0)),
    })
}

/// The length of the first frame, whatever it is; `None` if it is not complete.
fn any_length(
    bytes: &[u8],
    longest: usize,
    deepest: usize,
) -> Result<Option<usize>, ProtocolError> {
    let mut left = [0; REPLY_DEPTH_MAX];
    let (mut depth, mut at, mut elements, mut behind) = (0, 0, 0, 0);
    loop {
        if at > 0 && bytes.get(at) == Some(&b'>') {
            return Err(ProtocolError::Unexpected);
        }
        let room = longest.saturating_sub(at + behind * ELEMENT_BYTES_MIN);
        let Some((length, count)) = element(&bytes[at..], room)? else {
            return Ok(None);
        };
        at += length;
        if count > 0 {
            elements += count;
            if elements > ELEMENTS_MAX || depth == deepest {
                return Err(ProtocolError::TooLarge);
            }
            behind += count as usize;
            if at + behind * ELEMENT_BYTES_MIN > longest {
                return Err(ProtocolError::TooLarge);
            }
            left[depth] = count;
            depth += 1;
        }
        // Whatever has ended may end what it is in.
        let mut is_over = count == 0;
        while is_over {
            let Some(inner) = depth.checked_sub(1) else {
                return Ok(Some(at));
            };
            left[inner] -= 1;
            is_over = left[inner] == 0;
            depth -= usize::from(is_over);
        }
        behind -= 1;
    }
}

/// The length of the map that answers `HELLO`.
pub(super) fn map_length(bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
    any_length(bytes, TEXT_BYTES_MAX, REPLY_DEPTH_MAX)
}

/// The number of the connection, which a complete map that answers `HELLO` names.
pub(super) fn client_id(map: &[u8]) -> Option<i64> {
    let mut elements = elements(map);
    while let (Some(name), Some(value)) = (elements.next(), elements.next()) {
        if bulk(name) == Some(b"id") {
            let number = value.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
            return std::str::from_utf8(number).ok()?.parse().ok();
        }
    }
    None
}

/// The length of a verbatim text of at most `longest` bytes, including its header and line end.
pub(super) fn verbatim_length(
    bytes: &[u8],
    longest: usize,
) -> Result<Option<usize>, ProtocolError> {
    let length = text_length(bytes, longest)?;
    let begin = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
    let (header, text) = bytes.split_at(begin);
    let is_short = matches!(header, [_, b'0'..=b'3', b'\r', b'\n']);
    match !is_short && text.iter().zip(TEXT_TYPE).all(|(byte, expected)| byte == expected) {
        true => Ok(length),
        false => Err(ProtocolError::Malformed),
    }
}

/// The text of a complete verbatim frame.
pub(super) fn verbatim(frame: &[u8]) -> Result<&[u8], ProtocolError> {
    let text = content(frame).and_then(|text| text.strip_prefix(TEXT_TYPE));
    text.ok_or(ProtocolError::Malformed)
}

/// The first push, and its length; `None` if it is not complete.
pub(super) fn push(bytes: &[u8]) -> Result<Option<(Push<'_>, usize)>, ProtocolError> {
    let Some(length) = any_length(bytes, PUSH_BYTES_MAX, PUSH_DEPTH_MAX)? else {
        return Ok(None);
    };
    let mut words = elements(&bytes[..length]);
    let kind = words.next().and_then(bulk);
    let push = match (kind, words.next(), words.next(), words.next()) {
        (Some(b"invalidate"), Some(keys), None, None) => changed(keys)?,
        (Some(b"invalidate"), ..) => return Err(ProtocolError::Malformed),
        (Some(b"subscribe"), Some(channel), Some([b':', ..]), None) => {
            bulk(channel).map_or(Push::Other, Push::Subscribed)
        }
        (Some(b"message"), Some(channel), Some(message), None) => {
            match (bulk(channel), bulk(message)) {
                (Some(channel), Some(message)) => wait::message(channel, message),
                _ => Push::Other,
            }
        }
        _ => Push::Other,
    };
    Ok(Some((push, length)))
}

/// The elements of a complete aggregate.
fn elements(frame: &[u8]) -> impl Iterator<Item = &[u8]> {
    let begin = frame.iter().position(|byte| *byte == b'\n').map_or(frame.len(), |at| at + 1);
    let mut rest = &frame[begin..];
    std::iter::from_fn(move || {
        let length = any_length(rest, rest.len(), PUSH_DEPTH_MAX).ok()??;
        let (first, others) = rest.split_at(length);
        rest = others;
        Some(first)
    })
}

/// The keys that an invalidation names: a null stands for a flush. Of several, none is told apart:
/// any key may have changed.
fn changed(keys: &[u8]) -> Result<Push<'_>, ProtocolError> {
    if matches!(keys, b"_\r\n" | b"$-1\r\n" | b"*-1\r\n") {
        return Ok(Push::Flushed);
    }
    if keys.first() != Some(&b'*') || !elements(keys).all(|key| bulk(key).is_some()) {
        return Err(ProtocolError::Malformed);
    }
    let mut keys = elements(keys).filter_map(bulk);
    match (keys.next(), keys.next()) {
        (Some(key), None) => Ok(Push::Changed(key)),
        _ => Ok(Push::AllChanged),
    }
}

/// The content of a complete bulk string.
fn bulk(frame: &[u8]) -> Option<&[u8]> {
    content(frame).filter(|_| frame[0] == b'$')
}

/// What stands between the header and the line end of a complete text; `None` for a null.
fn content(frame: &[u8]) -> Option<&[u8]> {
    let begin = frame.iter().position(|byte| *byte == b'\n')? + 1;
    frame.get(begin..frame.len().checked_sub(2)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Reply, Wakeup};
    use crate::resp::ReplyReader;
    use crate::resp::limits::REPLY_BYTES_MAX;

    type Read = (Vec<String>, Option<ProtocolError>);

    /// What is read from a stream that arrives in these parts.
    fn read<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Read {
        let (mut reader, mut items) = (ReplyReader::new(), Vec::new());
        for mut part in parts {
            while !part.is_empty() {
                let room = reader.room();
                let (now, later) = part.split_at(part.len().min(room.len()));
                room[..now.len()].copy_from_slice(now);
                reader.filled(now.len());
                part = later;
                loop {
                    let is_push = reader.is_at_push();
                    let item = match is_push {
                        true => reader.next_push().map(|push| push.map(|push| format!("{push:?}"))),
                        false => reader.next().map(|reply| reply.map(|reply| format!("{reply:?}"))),
                    };
                    match item {
                        Ok(Some(item)) => items.push(item),
                        Ok(None) => {
                            let longest = if is_push { PUSH_BYTES_MAX } else { REPLY_BYTES_MAX };
                            assert!(reader.pending().len() < longest, "more is kept than a frame");
                            break;
                        }
                        Err(error) => return (items, Some(error)),
                    }
                }
            }
        }
        (items, None)
    }

    /// What is read, which must not depend on how the stream is cut.
    fn read_any_way(stream: &[u8]) -> Read {
        let whole = read([stream]);
        let text = stream[..stream.len().min(60)].escape_ascii();
        assert_eq!(read(stream.chunks(1)), whole, "byte by byte: {text}");
        let is_near_an_end = |cut: &usize| *cut < 300 || stream.len() - cut < 300;
        for cut in (1..stream.len()).filter(is_near_an_end) {
            let (head, tail) = stream.split_at(cut);
            assert_eq!(read([head, tail]), whole, "cut at {cut}: {text}");
        }
        whole
    }

    /// The error of a stream, which must be found at its last byte and not before.
    fn error_at_the_end(stream: &[u8]) -> Option<ProtocolError> {
        assert_eq!(
            read([&stream[..stream.len() - 1]]),
            (vec![], None),
            "{}",
            stream.escape_ascii()
        );
        read_any_way(stream).1
    }

    fn text(kind: char, content: &str) -> String {
        format!("{kind}{}\r\n{content}\r\n", content.len())
    }

    const HELLO: &str = "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n8.0.6\r\n\
        $5\r\nproto\r\n:3\r\n$2\r\nid\r\n:9\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n\
        $6\r\nmaster\r\n$7\r\nmodules\r\n*1\r\n%2\r\n$4\r\nname\r\n$2\r\nbf\r\n$4\r\nargs\r\n\
        *1\r\n$1\r\nx\r\n";

    #[test]
    fn pushes_and_replies_are_the_same_however_they_are_cut() {
        let hello = |client_id| format!("{:?}", Reply::Hello { client_id });
        let told = Push::Notified { channel: b"c", what: Wakeup::TakeNow, key: b"k" };
        let items = [
            (HELLO.to_owned(), hello(Some(9))),
            ("%0\r\n".into(), hello(None)),
            ("%1\r\n$2\r\nid\r\n$1\r\n9\r\n".into(), hello(None)),
            ("_\r\n".into(), format!("{:?}", Reply::Nil)),
            ("$-1\r\n".into(), format!("{:?}", Reply::Nil)),
            ("+OK\r\n".into(), format!("{:?}", Reply::Ok)),
            (text('=', "txt:"), format!("{:?}", Reply::Info(Box::default()))),
            (">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n".into(), {
                format!("{:?}", Push::Subscribed(b"c"))
            }),
            (">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\ngk\r\n".into(), format!("{told:?}")),
            (":7\r\n".into(), format!("{:?}", Reply::Integer(7))),
            (">0\r\n".into(), format!("{:?}", Push::Other)),
            (">1\r\n#t\r\n".into(), format!("{:?}", Push::Other)),
            (">2\r\n$1\r\nx\r\n%1\r\n:1\r\n,-1.5e3\r\n".into(), format!("{:?}", Push::Other)),
        ];
        let stream = items.clone().map(|(bytes, _)| bytes).concat();
        let expected: Vec<String> = items.into_iter().map(|(_, item)| item).collect();
        assert_eq!(read_any_way(stream.as_bytes()), (expected, None));
    }

    #[test]
    fn elements_of_every_type_are_taken_if_they_are_well_formed() {
        let good = [
            "+\r\n",
            "-ERR x\r\n",
            ":-9223372036854775808\r\n",
            "$0\r\n\r\n",
            "$-1\r\n",
            "*0\r\n",
            "*-1\r\n",
            "_\r\n",
            "#t\r\n",
            "#f\r\n",
            ",1\r\n",
            ",-1.7976931348623157e+308\r\n",
            ",inf\r\n",
            ",-inf\r\n",
            ",nan\r\n",
            "(-123456789012345678901234567890\r\n",
            "!3\r\nERR\r\n",
            "=5\r\ntxt:x\r\n",
            "%1\r\n:1\r\n:2\r\n",
            "~2\r\n:1\r\n:2\r\n",
        ];
        for element in good {
            let stream = format!("%1\r\n:1\r\n{element}+OK\r\n");
            let hello = Reply::Hello { client_id: None };
            let expected = [hello, Reply::Ok].map(|reply| format!("{reply:?}")).to_vec();
            assert_eq!(read_any_way(stream.as_bytes()), (expected, None));
        }
        let bad = [
            "x",
            "_j",
            "_\rx",
            "#?",
            "#\r",
            "#tt",
            ":a",
            ":\r",
            ":-\r",
            ":1-",
            ":+",
            ":9223372036854775808\r",
            ",\r",
            ",1e\r",
            ",x\r",
            ",1_",
            "(\r",
            "(1.",
            "(x",
            "$-2",
            "$-1x",
            "$x",
            "$\r",
            "$3\r\nfooX",
            "!-",
            "=-",
            "=3\r\n",
            "=5\r\nm",
            "=5\r\nt\r",
            "*-2",
            "%-",
            "~-",
            "%x",
            "~\r",
            "%1\n",
        ];
        for element in bad {
            let stream = format!("%1\r\n:1\r\n{element}");
            let found = error_at_the_end(stream.as_bytes());
            assert_eq!(found, Some(ProtocolError::Malformed), "{element:?}");
        }
        for element in ["|", ">"] {
            let stream = format!("%1\r\n:1\r\n{element}");
            assert_eq!(error_at_the_end(stream.as_bytes()), Some(ProtocolError::Unexpected));
        }
    }

    #[test]
    fn replies_of_types_that_no_command_asks_for_are_refused_at_their_first_byte() {
        for kind in ["#", ",", "(", "!", "~", "|"] {
            assert_eq!(error_at_the_end(kind.as_bytes()), Some(ProtocolError::Unexpected));
        }
        for stream in ["x", "%-", "=-", "_j", "=2\r\n", ">-", ">x", "=15\r\nx"] {
            assert_eq!(error_at_the_end(stream.as_bytes()), Some(ProtocolError::Malformed));
        }
    }

    #[test]
    fn an_invalidation_names_its_keys_or_none_and_is_nothing_else() {
        let (all, flushed) = (format!("{:?}", Push::AllChanged), format!("{:?}", Push::Flushed));
        let good = [
            ("_\r\n", &flushed),
            ("$-1\r\n", &flushed),
            ("*-1\r\n", &flushed),
            ("*0\r\n", &all),
            ("*1\r\n$1\r\nk\r\n", &format!("{:?}", Push::Changed(b"k"))),
            ("*1\r\n$0\r\n\r\n", &format!("{:?}", Push::Changed(b""))),
            ("*2\r\n$1\r\nk\r\n$1\r\nl\r\n", &all),
        ];
        let head = ">2\r\n$10\r\ninvalidate\r\n";
        for (keys, expected) in good {
            let stream = format!("{head}{keys}");
            let expected = (vec![expected.clone()], None);
            assert_eq!(read_any_way(stream.as_bytes()), expected);
        }
        let keys = [
            ":1\r\n",
            "+k\r\n",
            "$1\r\nk\r\n",
            "~1\r\n$1\r\nk\r\n",
            "%0\r\n",
            "*1\r\n:1\r\n",
            "*1\r\n$-1\r\n",
            "*1\r\n*0\r\n",
            "*2\r\n$1\r\nk\r\n_\r\n",
            "#t\r\n",
            "=4\r\ntxt:\r\n",
        ];
        for stream in keys.map(|keys| format!("{head}{keys}")) {
            assert_eq!(error_at_the_end(stream.as_bytes()), Some(ProtocolError::Malformed));
        }
        for stream in [">1\r\n$10\r\ninvalidate\r\n", ">3\r\n$10\r\ninvalidate\r\n_\r\n_\r\n"] {
            assert_eq!(error_at_the_end(stream.as_bytes()), Some(ProtocolError::Malformed));
        }
    }

    /// The header that announces too much is refused, not what follows it.
    #[test]
    fn slow_frames_that_exceed_a_cap_are_refused_when_that_is_said() {
        let key = |length: usize| {
            let key = "k".repeat(length);
            format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n${length}\r\n{key}\r\n")
        };
        let longest = PUSH_BYTES_MAX - key(1_000).len() + 1_000;
        assert_eq!(read_any_way(key(longest).as_bytes()).0.len(), 1);
        let beyond = key(longest + 1);
        let header = beyond.split_at(beyond.find("kk").unwrap()).0;
        let value = |kind| [HELLO.replacen("%7", "%8", 1), ":1\r\n".into(), kind].concat();
        let room = TEXT_BYTES_MAX - value(String::new()).len();
        let streams = [
            header.to_owned(),
            ">1025\r\n".into(),
            ">1024\r\n*1\r\n".into(),
            ">999999999999999999\r\n".into(),
            "%9999999999999999999\r\n".into(),
            "%513\r\n".into(),
            ">1\r\n*1\r\n*1\r\n".into(),
            ">1\r\n%1\r\n:1\r\n~1\r\n".into(),
            "%1\r\n:1\r\n*1\r\n*1\r\n*1\r\n*1\r\n".into(),
            // The place of the second element is taken.
            format!(">2\r\n${}\r\n", PUSH_BYTES_MAX - 4 - 7 - 2 - 2),
            // Too many elements for what is left.
            format!(">2\r\n{}*300\r\n", text('$', &"x".repeat(3_300))),
            value(format!("${}\r\n", room - 9)),
            format!("={}\r\n", TEXT_BYTES_MAX + 1),
            ["%1\r\n:1\r\n+", &"x".repeat(LINE_BYTES_MAX - 2)].concat(),
            format!("${}\r\n", TEXT_BYTES_MAX + 1),
        ];
        for stream in streams {
            let whole = [&stream, "x"].concat();
            let found = error_at_the_end(whole.split_at(stream.len()).0.as_bytes());
            assert_eq!(found, Some(ProtocolError::TooLarge), "{stream}");
            assert_eq!(read_any_way(whole.as_bytes()).1, found);
        }
        let value = value(text('$', &"x".repeat(room - 10)));
        assert_eq!(read([value.as_bytes()]).0.len(), 1);
    }
}
