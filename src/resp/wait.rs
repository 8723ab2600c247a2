//! Encodes the commands of waiting clients, and decodes their notifications.

use std::sync::LazyLock;

use bytes::{BufMut, BytesMut};

use super::scripts::{HAND_ON, QUEUE_UP, STEP_OUT};
use super::words::{append, append_word, decimal, eval_head};
use crate::proto::{Notify, Push, Step, WaitMessage, Wakeup};

static QUEUE_RELEASE_HEAD: LazyLock<Box<[u8]>> = LazyLock::new(|| eval_head(8, HAND_ON, 2));
const PUBLISH: &[u8] = b"return redis.call('PUBLISH',ARGV[1],'t')";

/// The suffix of a queue's key, behind the lock's key (W5).
const QUEUE_TAIL: &[u8] = b":muxlock:queue";
/// How long a queue lives after the last engine has queued up, asked for its position, or stepped
/// in front of one that slept (W14).
const LEASE_MS: &[u8] = b"20000";
/// The most engines in a queue (W14). The script says this position to one that is not in it.
const LENGTH_MAX: &[u8] = b"1023";

/// A message on a channel: a letter, and a key behind it. `g`: take the lock now; `p`: you are the
/// first, look; `n`: you are the second; `o`: you were overtaken; `a`: do you still wait? A lone
/// `t` is a trial.
pub fn message<'a>(channel: &'a [u8], message: &'a [u8]) -> Push<'a> {
    let what = match message.first() {
        Some(b't') if message.len() == 1 => return Push::Trial(channel),
        Some(b'g') => Wakeup::TakeNow,
        Some(b'p') => Wakeup::First,
        Some(b'n') => Wakeup::Second,
        Some(b'o') => Wakeup::Overtaken,
        Some(b'a') => Wakeup::Asked,
        _ => return Push::Other,
    };
    match &message[1..] {
        [] => Push::Other,
        key => Push::Notified { channel, what, key },
    }
}

pub(super) fn encode(wait: WaitMessage<'_>, out: &mut BytesMut) {
    match wait {
        WaitMessage::Subscribe { channel } => append(out, &[b"SUBSCRIBE", channel.as_bytes()]),
        WaitMessage::Publish { channel } => {
            append(out, &[b"EVAL", PUBLISH, b"0", channel.as_bytes()])
        }
        WaitMessage::Cache => append(out, &[b"CLIENT", b"CACHING", b"YES"]),
        WaitMessage::TimeToLive { key } => append(out, &[b"PTTL", key]),
        WaitMessage::QueueUp { key, channel } => {
            let (script, queue) = (QUEUE_UP.as_bytes(), queue_of(key));
            let words =
                [b"EVAL", script, b"2", key, &queue, channel.as_bytes(), LEASE_MS, LENGTH_MAX];
            append(out, &words);
        }
        WaitMessage::ReleaseAtQueue { key, channel, token, notify } => {
            let notify: &[u8] = match notify {
                Notify::Next => b"1",
                Notify::CountOnly => b"0",
            };
            // Sent often, and by some that meet no other client: it allocates nothing.
            out.put_slice(&QUEUE_RELEASE_HEAD);
            append_word(out, key);
            append_queue(out, key);
            for word in [channel.as_bytes(), token.as_bytes(), notify] {
                out.put_slice(b"\r\n$");
                append_word(out, word);
            }
            out.put_slice(b"\r\n");
        }
        WaitMessage::StepOut { key, channel, to } => {
            let front: &[u8] = match to {
                Step::Out => b"0",
                Step::ToFront => b"1",
            };
            let (script, queue) = (STEP_OUT.as_bytes(), queue_of(key));
            let words = [b"EVAL", script, b"2", key, &queue, channel.as_bytes(), front, LEASE_MS];
            append(out, &words);
        }
    }
}

/// Appends the queue's key, from the line end of the word before it.
fn append_queue(out: &mut BytesMut, key: &[u8]) {
    let mut digits = [0; 20];
    let length = (key.len() + QUEUE_TAIL.len()) as u64;
    for part in [b"\r\n$", decimal(length, &mut digits), b"\r\n", key, QUEUE_TAIL] {
        out.put_slice(part);
    }
}

/// The key of the queue for a lock's key.
fn queue_of(key: &[u8]) -> Vec<u8> {
    [key, QUEUE_TAIL].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;
    use crate::proto::Command;
    use crate::resp::encode;
    use crate::token::LockToken;

    fn words_of(command: WaitMessage<'_>) -> Vec<String> {
        let mut out = BytesMut::new();
        encode(&Command::Wait(command), &mut out);
        let text = String::from_utf8(out.to_vec()).unwrap();
        let mut rest = text.strip_prefix('*').unwrap();
        let mut number = |kind: &str| {
            let (digits, after) = rest.strip_prefix(kind).unwrap().split_once("\r\n").unwrap();
            let number: usize = digits.parse().unwrap();
            rest = after;
            if kind.is_empty() {
                return (number, String::new());
            }
            let (word, after) = rest.split_at(number);
            rest = after.strip_prefix("\r\n").unwrap();
            (number, word.to_owned())
        };
        let (count, _) = number("");
        let words = (0..count).map(|_| number("$").1).collect();
        assert_eq!(rest, "");
        words
    }

    #[test]
    fn commands_of_waits_have_their_words() {
        let channel = &Channel::new([0xab; 10]);
        let token = &LockToken::from_random([0x5a; 20]);
        let (name, text) = ("muxlock:abababababababababab", "5a".repeat(20));
        for key in ["k", "invoice:42", &"x".repeat(1_280)] {
            let (bytes, queue) = (key.as_bytes(), format!("{key}:muxlock:queue"));
            let about =
                |script| ["EVAL", script, "2", key, &queue, name].map(String::from).to_vec();
            let release_at_queue = |notify, word: &str| {
                let words = [about(HAND_ON), vec![text.clone(), word.to_owned()]].concat();
                assert_eq!(
                    words_of(WaitMessage::ReleaseAtQueue { key: bytes, channel, token, notify }),
                    words
                );
            };
            release_at_queue(Notify::Next, "1");
            release_at_queue(Notify::CountOnly, "0");
            let words = [about(QUEUE_UP), vec!["20000".into(), "1023".into()]].concat();
            assert_eq!(words_of(WaitMessage::QueueUp { key: bytes, channel }), words);
            for (to, word) in [(Step::Out, "0"), (Step::ToFront, "1")] {
                let words = [about(STEP_OUT), vec![word.to_owned(), "20000".into()]].concat();
                assert_eq!(words_of(WaitMessage::StepOut { key: bytes, channel, to }), words);
            }
            assert_eq!(words_of(WaitMessage::TimeToLive { key: bytes }), ["PTTL", key]);
        }
        let trial = std::str::from_utf8(PUBLISH).unwrap();
        assert_eq!(words_of(WaitMessage::Publish { channel }), ["EVAL", trial, "0", name]);
        assert_eq!(words_of(WaitMessage::Subscribe { channel }), ["SUBSCRIBE", name]);
        assert_eq!(words_of(WaitMessage::Cache), ["CLIENT", "CACHING", "YES"]);
    }
}
