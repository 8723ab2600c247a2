//! A blocking client of one server, just enough for queries.

use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The longest line of a reply: an error message, a number, a length.
const MAX_LINE: usize = 64 * 1024;
/// The longest bulk string of a reply.
const MAX_BULK: usize = 64 * 1024 * 1024;
/// The most bytes of a whole reply, with what it consists of.
const MAX_REPLY: usize = 128 * 1024 * 1024;
/// The longest array of a reply.
const MAX_ARRAY: usize = 1024 * 1024;
/// How deep the arrays of a reply may nest.
const MAX_DEPTH: usize = 8;

/// A reply of a server, in its protocol RESP2.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A short text such as `OK`.
    Status(String),
    /// The server refused the command. The text includes the code, as in `ERR unknown command`.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// A null reply, for example for a missing key or a failed `SET NX`.
    Nil,
    /// A list of replies.
    Array(Vec<Value>),
}

/// Whether clients notice a flush by this key.
pub fn is_marker_key(key: &[u8]) -> bool {
    key.ends_with(b"muxlock:marker")
}

/// A connection to one server, for one query at a time.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    max_reply: usize,
}

trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection that was made already. A reply with more bytes than `max_reply` is refused as
    /// malformed.
    pub fn over(stream: impl Read + Write + Send + 'static, max_reply: usize) -> Connection {
        Connection { stream: BufReader::new(Box::new(stream)), max_reply }
    }

    /// Connects to a server, and authenticates if there is a password. Connecting, each write and
    /// each read may take as long as `timeout`.
    pub(super) fn open(
        addr: SocketAddr,
        password: Option<&str>,
        timeout: Duration,
    ) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        let mut connection = Connection::over(stream, MAX_REPLY);
        if let Some(password) = password {
            match connection.ask(&[b"AUTH", password.as_bytes()])? {
                Value::Status(_) => {}
                other => return Err(unexpected(&other)),
            }
        }
        Ok(connection)
    }

    /// Sends one command and waits for its reply. A reply such as `-ERR` is a [`Value::Error`].
    pub fn ask(&mut self, args: &[&[u8]]) -> io::Result<Value> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        let stream = self.stream.get_mut();
        stream.write_all(&request)?;
        stream.flush()?;
        let mut left = self.max_reply;
        self.read_value(MAX_DEPTH, &mut left)
    }

    /// `left` is how many more bytes the reply may have.
    fn read_value(&mut self, depth: usize, left: &mut usize) -> io::Result<Value> {
        let line = self.read_line(left)?;
        let rest = line.get(1..).unwrap_or_default();
        match line.as_bytes().first() {
            Some(b'+') => Ok(Value::Status(rest.to_owned())),
            Some(b'-') => Ok(Value::Error(rest.to_owned())),
            Some(b':') => rest.parse().map(Value::Integer).map_err(|_| malformed(&line)),
            Some(b'$') => {
                let cap = MAX_BULK.min(*left);
                let Some(length) = length(rest, cap).ok_or_else(|| malformed(&line))? else {
                    return Ok(Value::Nil);
                };
                *left -= length;
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(Value::Bulk(bytes))
            }
            Some(b'*') if depth > 0 => {
                let Some(length) = length(rest, MAX_ARRAY).ok_or_else(|| malformed(&line))? else {
                    return Ok(Value::Nil);
                };
                (0..length)
                    .map(|_| self.read_value(depth - 1, left))
                    .collect::<io::Result<_>>()
                    .map(Value::Array)
            }
            _ => Err(malformed(&line)),
        }
    }

    fn read_line(&mut self, left: &mut usize) -> io::Result<String> {
        if *left == 0 {
            return Err(malformed("too long"));
        }
        let mut line = Vec::new();
        let cap = MAX_LINE.min(*left) as u64;
        (&mut self.stream).take(cap).read_until(b'\n', &mut line)?;
        *left -= line.len();
        if line.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&line);
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(malformed(&line)),
        }
    }
}

/// The length in a header; the inner `None` stands for a null bulk string or array.
fn length(text: &str, cap: usize) -> Option<Option<usize>> {
    match text.parse::<i64>() {
        Ok(-1) => Some(None),
        Ok(length) => usize::try_from(length).ok().filter(|length| *length <= cap).map(Some),
        Err(_) => None,
    }
}

/// One line of an `INFO` reply.
pub(super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// The number that a reply consists of.
pub(super) fn integer(value: Value) -> io::Result<i64> {
    match value {
        Value::Integer(number) => Ok(number),
        other => Err(unexpected(&other)),
    }
}

/// The text that a reply consists of.
pub(super) fn text(value: Value) -> io::Result<String> {
    match value {
        Value::Bulk(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        other => Err(unexpected(&other)),
    }
}

/// The error for a reply of another kind than the command has.
pub(super) fn unexpected(value: &Value) -> io::Error {
    match value {
        Value::Error(message) => io::Error::other(format!("redis-server refused: {message}")),
        other => io::Error::other(format!("redis-server gave an unexpected reply: {other:?}")),
    }
}

fn malformed(line: &str) -> io::Error {
    let message = format!("this is no reply of a redis-server: {line:?}");
    io::Error::new(ErrorKind::InvalidData, message)
}

/// Whether the server has closed the connection.
pub(super) fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
    )
}
