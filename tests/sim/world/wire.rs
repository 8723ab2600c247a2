//! RESP as a server sees it: commands in, replies out.

/// Redis takes no more words in one command, by default.
const WORDS_MAX: usize = 1024 * 1024;
/// No command of a lock client is as long.
const COMMAND_BYTES_MAX: usize = 1024 * 1024;

/// A reply before it is bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Status(&'static str),
    /// Without the minus sign.
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
    /// Keys and values in turn.
    Map(Vec<Reply>),
    Verbatim(Vec<u8>),
    Push(Vec<Reply>),
}

/// The forms that a connection's server uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

impl Reply {
    pub const OK: Reply = Reply::Status("OK");

    pub fn error(text: &str) -> Reply {
        Reply::Error(text.into())
    }

    /// Appends its wire form.
    pub fn write(&self, out: &mut Vec<u8>, protocol: Protocol) {
        let list = |out: &mut Vec<u8>, kind: u8, count: usize, replies: &[Reply]| {
            line(out, kind, count.to_string().as_bytes());
            replies.iter().for_each(|reply| reply.write(out, protocol));
        };
        match self {
            Reply::Nil if protocol == Protocol::Resp3 => line(out, b'_', b""),
            Reply::Verbatim(text) if protocol == Protocol::Resp3 => {
                line(out, b'=', (text.len() + 4).to_string().as_bytes());
                out.extend_from_slice(b"txt:");
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Map(replies) if protocol == Protocol::Resp3 => {
                list(out, b'%', replies.len() / 2, replies);
            }
            Reply::Push(replies) if protocol == Protocol::Resp3 => {
                list(out, b'>', replies.len(), replies);
            }
            Reply::Status(text) => line(out, b'+', text.as_bytes()),
            Reply::Error(text) => line(out, b'-', text.as_bytes()),
            Reply::Integer(number) => line(out, b':', number.to_string().as_bytes()),
            Reply::Nil => line(out, b'$', b"-1"),
            Reply::Bulk(bytes) | Reply::Verbatim(bytes) => {
                line(out, b'$', bytes.len().to_string().as_bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Array(replies) | Reply::Map(replies) | Reply::Push(replies) => {
                list(out, b'*', replies.len(), replies);
            }
        }
    }
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Cuts the first command, an array of bulk strings, from `bytes`: how long it is, and its words
/// as ranges in `words`. `None` if it is not complete.
///
/// # Panics
/// If a client sent anything else: all that is sent here comes from the library.
pub fn command(bytes: &[u8], words: &mut Vec<std::ops::Range<usize>>) -> Option<usize> {
    words.clear();
    let (count, mut at) = header(bytes, 0, b'*')?;
    assert!(count <= WORDS_MAX, "a command of {count} words");
    for _ in 0..count {
        let (length, from) = header(bytes, at, b'$')?;
        at = from + length + 2;
        assert!(at <= COMMAND_BYTES_MAX, "a command of {at} bytes");
        if bytes.len() < at {
            return None;
        }
        assert_eq!(&bytes[at - 2..at], b"\r\n", "a bulk string ends with a line end");
        words.push(from..at - 2);
    }
    Some(at)
}

/// The number behind `kind` at `at`, and where its line ends.
fn header(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let rest = bytes.get(at..)?;
    assert_eq!(*rest.first()?, kind, "a command is an array of bulk strings");
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    rest.get(end + 1)?;
    let digits = std::str::from_utf8(&rest[1..end]).expect("a length is text");
    Some((digits.parse().expect("a length is a number"), at + end + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_cut_only_when_it_is_complete() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*1\r\n";
        let mut words = Vec::new();
        for length in 0..23 {
            assert_eq!(command(&bytes[..length], &mut words), None, "{length}");
        }
        assert_eq!(command(bytes, &mut words), Some(23));
        let cut: Vec<&[u8]> = words.iter().map(|word| &bytes[word.clone()]).collect();
        assert_eq!(cut, [b"GET".as_slice(), b"a\r\nb"]);
    }

    #[test]
    fn replies_have_their_wire_form() {
        let reply = Reply::Array(vec![
            Reply::OK,
            Reply::error("ERR no"),
            Reply::Integer(-2),
            Reply::Bulk(b"ab".to_vec()),
            Reply::Nil,
        ]);
        let mut out = Vec::new();
        reply.write(&mut out, Protocol::Resp2);
        assert_eq!(out, b"*5\r\n+OK\r\n-ERR no\r\n:-2\r\n$2\r\nab\r\n$-1\r\n");
    }
}
