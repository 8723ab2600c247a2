//! Commands as clients send them: arrays of bulk strings. And replies as servers send them.

use super::super::query::Value;
use crate::resource::RESOURCES_MAX;

/// The longest command: a resource name, a token and a script are far shorter.
pub(super) const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// Most words of a command: a script for a large set, with all that stands around its keys.
const ARGS_MAX: usize = RESOURCES_MAX + 16;
/// Most bytes of a length, including its prefix and line end.
const NUMBER_BYTES_MAX: usize = 16;
/// The longest text of an error or a status.
const LINE_BYTES_MAX: usize = 1024;

/// No command begins like this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// The words of a command, of which there is at least one, and its length in bytes.
pub(super) type Request<'a> = (Vec<&'a [u8]>, usize);

/// The first command; `None` if it is not complete.
pub(super) fn first_request(bytes: &[u8]) -> Result<Option<Request<'_>>, Malformed> {
    let Some((count, mut at)) = length(bytes, b'*', ARGS_MAX)? else {
        return Ok(None);
    };
    if count == 0 {
        return Err(Malformed);
    }
    let mut args = Vec::with_capacity(count);
    for _ in 0..count {
        let Some((size, head)) = length(&bytes[at..], b'$', REQUEST_BYTES_MAX)? else {
            return Ok(None);
        };
        let (from, to) = (at + head, at + head + size);
        if to + 2 > REQUEST_BYTES_MAX {
            return Err(Malformed);
        }
        match bytes.get(to..to + 2) {
            Some(b"\r\n") => args.push(&bytes[from..to]),
            Some(_) => return Err(Malformed),
            None => return Ok(None),
        }
        at = to + 2;
    }
    Ok(Some((args, at)))
}

/// A number after this prefix, and the length of its line; `None` if the line is not complete.
fn length(bytes: &[u8], prefix: u8, most: usize) -> Result<Option<(usize, usize)>, Malformed> {
    if bytes.first().is_some_and(|byte| *byte != prefix) {
        return Err(Malformed);
    }
    let window = &bytes[..bytes.len().min(NUMBER_BYTES_MAX)];
    let Some(end) = window.iter().position(|byte| *byte == b'\n') else {
        return if bytes.len() < NUMBER_BYTES_MAX { Ok(None) } else { Err(Malformed) };
    };
    let digits = window[1..end].strip_suffix(b"\r").ok_or(Malformed)?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(Malformed);
    }
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    match number.filter(|number| *number <= most) {
        Some(number) => Ok(Some((number, end + 1))),
        None => Err(Malformed),
    }
}

/// Appends a reply.
pub(super) fn append(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Status(text) => append_line(b'+', text, out),
        Value::Error(text) => append_line(b'-', text, out),
        Value::Integer(number) => append_line(b':', &number.to_string(), out),
        Value::Bulk(bytes) => {
            append_line(b'$', &bytes.len().to_string(), out);
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
        Value::Nil => append_line(b'$', "-1", out),
        Value::Array(values) => {
            append_line(b'*', &values.len().to_string(), out);
            values.iter().for_each(|value| append(value, out));
        }
    }
}

/// A text may repeat what a client or a test gave, so line ends in it become spaces.
fn append_line(prefix: u8, text: &str, out: &mut Vec<u8>) {
    let is_end = |byte: u8| matches!(byte, b'\r' | b'\n');
    let bytes = text.bytes().take(LINE_BYTES_MAX);
    out.push(prefix);
    out.extend(bytes.map(|byte| if is_end(byte) { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_when_it_is_complete() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*1\r\n$4\r\nTIME\r\n";
        let length = bytes.len() - b"*1\r\n$4\r\nTIME\r\n".len();
        for end in 0..length {
            assert_eq!(first_request(&bytes[..end]), Ok(None), "{end}");
        }
        let expected: Vec<&[u8]> = vec![b"GET", b"a\r\nb"];
        assert_eq!(first_request(bytes), Ok(Some((expected, length))));
    }

    #[test]
    fn what_is_no_command_is_refused() {
        let table: [&[u8]; 12] = [
            b"PING\r\n",
            b"*0\r\n",
            b"*-1\r\n",
            b"*145\r\n",
            b"*1\n",
            b"*\r\n",
            b"*1\r\n+",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$4\r\nTIMEX\r\n",
            b"*1\r\n$65537\r\n",
            b"*00000000000000001",
            b"*99999999999999999999999999\r\n",
        ];
        for bytes in table {
            assert_eq!(first_request(bytes), Err(Malformed), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_command_has_a_longest_length() {
        let head = b"*2\r\n$3\r\nGET\r\n$65510\r\n".as_slice();
        let request = |extra: usize| {
            let size = REQUEST_BYTES_MAX - head.len() - 2 + extra;
            let head = format!("*2\r\n$3\r\nGET\r\n${size}\r\n").into_bytes();
            [head, vec![b'x'; size], b"\r\n".to_vec()].concat()
        };
        assert_eq!(first_request(&request(0)).unwrap().unwrap().1, REQUEST_BYTES_MAX);
        assert_eq!(first_request(&request(1)), Err(Malformed));
    }

    #[test]
    fn no_text_ends_its_line_early() {
        let mut out = Vec::new();
        append(&Value::Error("ERR a\r\n+OK".into()), &mut out);
        append(&Value::Array(vec![Value::Nil, Value::Bulk(b"x\n".to_vec())]), &mut out);
        assert_eq!(out, b"-ERR a  +OK\r\n*2\r\n$-1\r\n$2\r\nx\n\r\n");
    }
}
