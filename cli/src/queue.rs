//! The queue of clients that wait for a lock, as a master has it.

use std::time::Duration;

use muxlock::Config;
use muxlock::testing::Value;

use super::holder::Tag;
use super::wire::{Failure, Wire};

/// The suffix of a queue's key, behind the lock's key.
pub const TAIL: &[u8] = b":muxlock:queue";
/// The prefix of an entry, which is the channel that the client listens to.
const CHANNEL: &[u8] = b"muxlock:";
/// The length of the rest, in hexadecimal digits.
const ID_LENGTH: usize = 20;
/// The most entries that are read.
const ENTRIES_MAX: usize = 10;

/// A queue on one master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    pub length: u64,
    /// The first ones, in order.
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its channel. `None` if it is something else, which is not shown.
    pub channel: Option<String>,
    /// Whether a connection listens to it. Without one, the next release drops the entry.
    pub listens: bool,
}

/// The key of the queue for a lock's key.
pub fn key_of(key: &[u8]) -> Vec<u8> {
    [key, TAIL].concat()
}

/// Asks a master for the queue for a lock's key. This changes nothing.
pub fn ask(config: &Config, node: usize, key: &[u8], within: Duration) -> Result<Queue, Failure> {
    let mut wire = Wire::connect(config, node, within)?;
    let key = key_of(key);
    let Value::Integer(length) = wire.ask(&[b"LLEN", &key])? else {
        return Err(Failure::Strange);
    };
    let length = u64::try_from(length).map_err(|_| Failure::Strange)?;
    if length == 0 {
        return Ok(Queue { length, entries: Vec::new() });
    }
    let last = (ENTRIES_MAX - 1).to_string();
    let entries = bulks(wire.ask(&[b"LRANGE", &key, b"0", last.as_bytes()])?)?;
    let mut words = vec![b"PUBSUB".as_slice(), b"NUMSUB"];
    words.extend(entries.iter().map(Vec::as_slice));
    let Value::Array(heard) = wire.ask(&words)? else {
        return Err(Failure::Strange);
    };
    let heard = heard.into_iter().skip(1).step_by(2);
    let entry = |(entry, heard): (Vec<u8>, Value)| Entry {
        channel: channel(&entry),
        listens: matches!(heard, Value::Integer(1..)),
    };
    Ok(Queue { length, entries: entries.into_iter().zip(heard).map(entry).collect() })
}

fn bulks(reply: Value) -> Result<Vec<Vec<u8>>, Failure> {
    let Value::Array(parts) = reply else {
        return Err(Failure::Strange);
    };
    let bytes = |part| match part {
        Value::Bulk(bytes) => Ok(bytes),
        _ => Err(Failure::Strange),
    };
    parts.into_iter().take(ENTRIES_MAX).map(bytes).collect()
}

/// An entry that is a channel. Others may be anything, and a secret too.
fn channel(entry: &[u8]) -> Option<String> {
    let id = entry.strip_prefix(CHANNEL)?;
    let is_id = id.len() == ID_LENGTH && id.iter().all(u8::is_ascii_hexdigit);
    is_id.then(|| String::from_utf8_lossy(entry).into_owned())
}

impl Entry {
    /// The tag of the client.
    pub fn tag(&self) -> Option<Tag> {
        Tag::at_end_of(self.channel.as_ref()?.as_bytes())
    }
}

impl Queue {
    /// How many stand behind those that were read.
    pub fn more(&self) -> u64 {
        self.length.saturating_sub(self.entries.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_that_is_no_channel_is_not_shown() {
        let id = "0123456789abcdef0123";
        assert_eq!(channel(format!("muxlock:{id}").as_bytes()), Some(format!("muxlock:{id}")));
        for entry in [format!("muxlock:{id}4"), format!("muxlock:{}", &id[1..]), id.repeat(2)] {
            assert_eq!(channel(entry.as_bytes()), None, "{entry}");
        }
        assert_eq!(channel(b"muxlock:0123456789abcdef012\n"), None);
    }
}
