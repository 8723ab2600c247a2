//! Commands to bytes.

use std::sync::LazyLock;

use bytes::{BufMut, BytesMut};

use super::scripts::{ACQUIRE_FENCED, EXTEND, EXTEND_OR_SET, INSPECT, MARKER, RAISE, RELEASE};
use super::words::{append, append_word, decimal, eval_head};
use super::{lock_kinds, sighting, trial, wait};
use crate::proto::{Command, Counter, Credentials, ReleaseWith, Section, Sighting};
use crate::token::{LockToken, TOKEN_BYTES};

/// The beginning of the commands that every lock uses, up to the key's length.
const SET_HEAD: &[u8] = b"*6\r\n$3\r\nSET\r\n$";
const DELEX_HEAD: &[u8] = b"*4\r\n$5\r\nDELEX\r\n$";
const DELIFEQ_HEAD: &[u8] = b"*3\r\n$7\r\nDELIFEQ\r\n$";
static RELEASE_HEAD: LazyLock<Box<[u8]>> = LazyLock::new(|| eval_head(5, RELEASE, 1));
static EXTEND_HEAD: LazyLock<Box<[u8]>> = LazyLock::new(|| eval_head(6, EXTEND, 1));
static EXTEND_OR_SET_HEAD: LazyLock<Box<[u8]>> = LazyLock::new(|| eval_head(6, EXTEND_OR_SET, 1));
static ACQUIRE_FENCED_HEAD: LazyLock<Box<[u8]>> = LazyLock::new(|| eval_head(9, ACQUIRE_FENCED, 2));
static CONFIRM_HEAD: LazyLock<Box<[u8]>> = LazyLock::new(|| eval_head(8, RAISE, 2));

/// Most bytes after a token.
const TAIL_BYTES_MAX: usize = 32;

/// Appends a command to `out`. Integers are sent as bulk strings, as every word is. The commands
/// that every lock uses are assembled from prepared parts.
pub fn encode(command: &Command<'_>, out: &mut BytesMut) {
    let mut digits = [0; 20];
    match *command {
        Command::Hello { credentials, name } => append_hello(out, credentials, name),
        Command::Select { db } => append(out, &[b"SELECT", decimal(db.into(), &mut digits)]),
        Command::Track => append(out, &[b"CLIENT", b"TRACKING", b"ON", b"OPTIN"]),
        Command::Marker { key, id } => {
            append(out, &[b"EVAL", MARKER.as_bytes(), b"1", key, format!("{id:016x}").as_bytes()]);
        }
        Command::Kill { connection } => {
            let id = decimal(connection.unsigned_abs(), &mut digits);
            append(out, &[b"CLIENT", b"KILL", b"ID", id]);
        }
        // These two are sent often.
        Command::Info(section) => out.put_slice(match section {
            Section::Server => b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n",
            Section::Replication => b"*2\r\n$4\r\nINFO\r\n$11\r\nreplication\r\n",
            Section::Memory => b"*2\r\n$4\r\nINFO\r\n$6\r\nmemory\r\n",
            Section::Persistence => b"*2\r\n$4\r\nINFO\r\n$11\r\npersistence\r\n",
            Section::Stats => b"*2\r\n$4\r\nINFO\r\n$5\r\nstats\r\n",
        }),
        Command::Time => out.put_slice(b"*1\r\n$4\r\nTIME\r\n"),
        Command::Sighting { key } => append_sighting(out, key, None),
        Command::Sight { key, sighting } => append_sighting(out, key, Some(sighting)),
        // No lock has this token.
        Command::Probe { key, with } => {
            let token = &LockToken::from_random([0; 20]);
            encode(&Command::Release { key, token, with }, out);
        }
        Command::Try { key, trial } => trial::encode(key, trial, out),
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
        Command::AcquireFenced { key, token, ttl, counter, proposal, trial } => {
            let tried = trial.map(|trial| eval_head(9, &trial::before(trial, ACQUIRE_FENCED), 2));
            let head = tried.as_deref().unwrap_or(&ACQUIRE_FENCED_HEAD);
            append_counted(out, head, key, token, counter);
            append_word(out, decimal(ttl.as_millis().into(), &mut digits));
            append_bucket_and(out, counter, proposal);
        }
        Command::Confirm { key, token, counter, number } => {
            append_counted(out, &CONFIRM_HEAD, key, token, counter);
            append_word(out, decimal(counter.bucket.into(), &mut digits));
            append_last(out, number);
        }
        Command::Inspect { key } => append(out, &[b"EVAL", INSPECT.as_bytes(), b"1", key]),
        Command::Wait(wait) => wait::encode(wait, out),
        Command::OfKind(ref command) => lock_kinds::encode(command, out),
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

fn append_hello(out: &mut BytesMut, credentials: Option<Credentials<'_>>, name: &[u8]) {
    let hello: [&[u8]; 4] = [b"HELLO", b"3", b"SETNAME", name];
    match credentials {
        None => append(out, &hello),
        Some(Credentials { user, password }) => {
            let user = user.unwrap_or("default").as_bytes();
            let words: [&[u8]; 7] =
                [b"HELLO", b"3", b"AUTH", user, password.as_bytes(), b"SETNAME", name];
            append(out, &words);
        }
    }
}

/// What is asked for, or stored. Apart from the commands that every lock uses.
#[cold]
#[inline(never)]
fn append_sighting(out: &mut BytesMut, key: &[u8], sighting: Option<&Sighting>) {
    match sighting {
        None => append(out, &[b"GET", key]),
        Some(sighting) => append(out, &[b"SET", key, sighting::text(sighting).as_bytes()]),
    }
}

/// Appends a head, the key, the counters' key, the token, and the beginning of the next word.
fn append_counted(
    out: &mut BytesMut,
    head: &[u8],
    key: &[u8],
    token: &LockToken,
    counter: Counter<'_>,
) {
    out.put_slice(head);
    append_word(out, key);
    out.put_slice(b"\r\n$");
    append_word(out, counter.key);
    append_token(out, token, b"\r\n$");
}

/// Appends the bucket, from the line end of the word before it, and the last word.
fn append_bucket_and(out: &mut BytesMut, counter: Counter<'_>, number: u64) {
    out.put_slice(b"\r\n$");
    append_word(out, decimal(counter.bucket.into(), &mut [0; 20]));
    append_last(out, number);
}

/// Appends a number as the last word, from the line end of the word before it.
fn append_last(out: &mut BytesMut, number: u64) {
    out.put_slice(b"\r\n$");
    append_word(out, decimal(number, &mut [0; 20]));
    out.put_slice(b"\r\n");
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis_protocol::resp2::encode::extend_encode_borrowed;
    use redis_protocol::resp2::types::BorrowedFrame::{Array, BulkString};

    use super::*;
    use crate::proto::Ttl;

    fn encoded(command: &Command<'_>) -> String {
        let mut out = BytesMut::new();
        encode(command, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    /// R33: it replaces what is there, and has no end.
    #[test]
    fn sighting_is_stored_unconditionally() {
        let (run_id, history) = ("r".into(), 1.into());
        let sighting = Sighting { run_id, history, time: Duration::from_micros(7) };
        let stored = encoded(&Command::Sight { key: b"k", sighting: &sighting });
        let text = format!("@{:032x}:7:r", 1);
        let length = text.len();
        let expected = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\n{text}\r\n");
        assert_eq!(stored, expected);
        let asked = encoded(&Command::Sighting { key: b"k" });
        assert_eq!(asked, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
    }

    /// R19: a release is sent as EVAL, never as EVALSHA, which may have to be sent twice. F16: so
    /// are the scripts of fencing tokens.
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
                let counter = Counter { key: b"muxlock:fence", bucket: 10_308 };
                let proposal = 1_700_000_000_000_000;
                let (buckets, number) = (b"10308".as_slice(), b"1700000000000000".as_slice());
                let fenced: [&[u8]; 9] = [
                    b"EVAL",
                    ACQUIRE_FENCED.as_bytes(),
                    b"2",
                    key,
                    counter.key,
                    text,
                    digits,
                    buckets,
                    number,
                ];
                let raise: [&[u8]; 8] =
                    [b"EVAL", RAISE.as_bytes(), b"2", key, counter.key, text, buckets, number];
                let pairs: [(Command<'_>, &[&[u8]]); 8] = [
                    (
                        Command::AcquireFenced { key, token, ttl, counter, proposal, trial: None },
                        &fenced,
                    ),
                    (Command::Confirm { key, token, counter, number: proposal }, &raise),
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
}
