//! The floor's bytes: two commands whose tokens are put in place, and the replies to them.

use std::io::{self, ErrorKind};
use std::net::TcpStream;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::scripts::sent;

/// As many characters as a token has.
pub const TOKEN: usize = 40;
/// The most tokens that are drawn together: 240 bytes, as muxlock does.
const DRAWN_MAX: usize = 12;
/// As many digits as the number of a key has.
pub const DIGITS: usize = 8;
/// As many digits as a proposed fencing token has, in microseconds since 1970.
const NUMBER: usize = 16;
/// More than what is ever on its way to a client with one lock.
const BUFFER: usize = 64 * 1024;

/// A command without its token.
#[derive(Clone)]
pub struct Template {
    bytes: Box<[u8]>,
    token_at: usize,
    /// Where the key ends.
    key_end: usize,
}

impl Template {
    /// `SET key token NX PX ttl`.
    pub fn set(key: &str, ttl_ms: u64) -> Template {
        let ttl = ttl_ms.to_string();
        Template::new(&["SET", key], &["NX", "PX", &ttl])
    }

    /// The script that sets the key and says whether it took the proposed fencing token; the
    /// proposal comes last.
    pub fn fenced(key: &str, ttl_ms: u64) -> Template {
        let fenced = sent("ACQUIRE_FENCED");
        let (ttl, number) = (ttl_ms.to_string(), "0".repeat(NUMBER));
        Template::new(&["EVAL", &fenced, "2", key, "muxlock:fence"], &[&ttl, "7", &number])
    }

    /// The compare-and-delete script.
    pub fn release(key: &str) -> Template {
        Template::new(&["EVAL", &sent("RELEASE"), "1", key], &[])
    }

    /// A script that takes or frees a lock of several keys or of another kind, by its text. What
    /// comes last is a number that not all of them need.
    pub fn script(name: &str, keys: &[&str], ttl_ms: u64) -> Template {
        Template::scripted(["EVAL", &sent(name)], keys, ttl_ms)
    }

    /// The same by the digest of its text, which the masters have told.
    pub fn hashed(digest: &str, keys: &[&str], ttl_ms: u64) -> Template {
        Template::scripted(["EVALSHA", digest], keys, ttl_ms)
    }

    fn scripted(script: [&str; 2], keys: &[&str], ttl_ms: u64) -> Template {
        let (count, ttl) = (keys.len().to_string(), ttl_ms.to_string());
        Template::new(&[&script[..], &[&count], keys].concat(), &[&ttl, "0"])
    }

    fn new(before: &[&str], after: &[&str]) -> Template {
        let mut text = format!("*{}\r\n", before.len() + 1 + after.len());
        let append = |text: &mut String, words: &[&str]| {
            for word in words {
                text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
            }
        };
        append(&mut text, before);
        let key_end = text.len() - "\r\n".len();
        let token = "0".repeat(TOKEN);
        let token_at = text.len() + format!("${TOKEN}\r\n").len();
        append(&mut text, &[&token]);
        append(&mut text, after);
        Template { bytes: text.into_bytes().into(), token_at, key_end }
    }

    /// Puts a token in its place.
    pub fn put(&mut self, token: &[u8; TOKEN]) {
        self.bytes[self.token_at..][..TOKEN].copy_from_slice(token);
    }

    /// Puts a number at the end.
    pub fn propose(&mut self, mut number: u64) {
        let end = self.bytes.len() - "\r\n".len();
        for digit in self.bytes[end - NUMBER..end].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }

    /// Replaces the last digits of the key.
    pub fn put_digits(&mut self, digits: &[u8; DIGITS]) {
        self.bytes[self.key_end - DIGITS..self.key_end].copy_from_slice(digits);
    }

    /// The command.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The number of a key, which is as long as any other.
pub fn digits(mut number: usize) -> [u8; DIGITS] {
    let mut digits = [b'0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    digits
}

/// A fresh token from the kernel, in hexadecimal digits.
pub fn token() -> io::Result<[u8; TOKEN]> {
    let mut random = [0_u8; TOKEN / 2];
    // So few bytes come at once, or not at all.
    getrandom(&mut random, GetRandomFlags::empty())?;
    Ok(hexadecimal(&random))
}

fn hexadecimal(random: &[u8; TOKEN / 2]) -> [u8; TOKEN] {
    let mut digits = [0; TOKEN];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(random) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    digits
}

/// Tokens of commands that leave together, which are drawn together, as muxlock draws them: at most
/// so many, as many as were needed last time, and what is left is thrown away.
#[derive(Default)]
pub struct Tokens {
    drawn: [[u8; TOKEN / 2]; DRAWN_MAX],
    left: usize,
    had: usize,
    had_before: usize,
}

impl Tokens {
    /// A fresh token.
    pub fn next(&mut self) -> io::Result<[u8; TOKEN]> {
        if self.left == 0 {
            self.left = self.had.max(self.had_before).clamp(1, DRAWN_MAX);
            // So few bytes come at once, or not at all.
            getrandom(self.drawn[..self.left].as_flattened_mut(), GetRandomFlags::empty())?;
        }
        self.left -= 1;
        self.had += 1;
        Ok(hexadecimal(&self.drawn[self.left]))
    }

    /// What is drawn is not used any more.
    pub fn forget(&mut self) {
        self.left = 0;
        self.had_before = std::mem::take(&mut self.had);
    }
}

/// What a master says, as far as the floor can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`: the key was set.
    Ok,
    /// `:1`: the key was deleted, or it was set and the proposed number taken.
    One,
    /// Neither.
    Other,
}

/// Bytes of one connection that are cut into replies.
pub struct Replies {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Replies {
    pub fn new() -> Replies {
        Replies { buffer: vec![0; BUFFER].into(), start: 0, end: 0 }
    }

    /// Reads once; whether nothing is left in the socket.
    pub fn receive(&mut self, stream: &TcpStream) -> io::Result<bool> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.buffer[self.end..];
        let size = room.len();
        match recv(stream, room, RecvFlags::empty()) {
            Ok((0, _)) => Err(ErrorKind::UnexpectedEof.into()),
            Ok((count, _)) => {
                self.end += count;
                Ok(count < size)
            }
            Err(Errno::AGAIN) => Ok(true),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The next reply; `None` if it is not complete.
    pub fn next(&mut self) -> io::Result<Option<Reply>> {
        let pending = &self.buffer[self.start..self.end];
        let (reply, length) = match *pending {
            [] => return Ok(None),
            [b'+', b'O', b'K', b'\r', b'\n', ..] => (Reply::Ok, 5),
            [b':', b'1', b'\r', b'\n', ..] => (Reply::One, 4),
            [b'+' | b'-' | b':' | b'$', ..] => {
                match pending.iter().position(|byte| *byte == b'\n') {
                    Some(end) => (Reply::Other, end + 1),
                    None if pending.len() < BUFFER => return Ok(None),
                    None => return Err(ErrorKind::InvalidData.into()),
                }
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        };
        self.start += length;
        Ok(Some(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies(bytes: &[u8]) -> Replies {
        let mut replies = Replies::new();
        replies.buffer[..bytes.len()].copy_from_slice(bytes);
        replies.end = bytes.len();
        replies
    }

    #[test]
    fn template_has_the_token_in_its_place() {
        let mut set = Template::set("key", 2_000);
        set.put(&[b'a'; TOKEN]);
        let token = "a".repeat(TOKEN);
        let expected = format!(
            "*6\r\n$3\r\nSET\r\n$3\r\nkey\r\n$40\r\n{token}\r\n\
             $2\r\nNX\r\n$2\r\nPX\r\n$4\r\n2000\r\n"
        );
        assert_eq!(set.bytes(), expected.as_bytes());
        let mut release = Template::release("key");
        release.put(&[b'b'; TOKEN]);
        let end = format!("$1\r\n1\r\n$3\r\nkey\r\n$40\r\n{}\r\n", "b".repeat(TOKEN));
        assert!(release.bytes().starts_with(b"*5\r\n$4\r\nEVAL\r\n"));
        assert!(release.bytes().ends_with(end.as_bytes()));
    }

    #[test]
    fn tokens_of_one_batch_are_drawn_together() {
        let mut tokens = Tokens::default();
        let mut seen = std::collections::HashSet::new();
        // (how many leave together, how many that were drawn are left over)
        for (together, left) in [(1, 0), (2, 0), (5, 3), (100, 4), (1, 11), (1, 0)] {
            (0..together).for_each(|_| assert!(seen.insert(tokens.next().unwrap())));
            assert_eq!(tokens.left, left, "{together}");
            tokens.forget();
            assert_eq!(tokens.left, 0);
        }
    }

    #[test]
    fn replies_are_cut_and_the_rest_is_kept() {
        let mut replies = replies(b"+OK\r\n:1\r\n:0\r\n$-1\r\n-ERR no\r\n+O");
        let expected = [Reply::Ok, Reply::One, Reply::Other, Reply::Other, Reply::Other];
        for reply in expected {
            assert_eq!(replies.next().unwrap(), Some(reply));
        }
        assert_eq!(replies.next().unwrap(), None);
        assert_eq!(replies.end - replies.start, 2);
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert!(replies(b"HTTP/1.1").next().is_err());
    }
}
