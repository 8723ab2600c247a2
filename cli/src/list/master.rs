//! The questions to one master: the names of its keys, and the state of each.

use std::time::Duration;

use muxlock::limits::RESOURCE_BYTES_MAX;
use muxlock::testing::Value;
use muxlock::unstable_tool::{ConfigExt, printable};
use muxlock::{Config, Fingerprint};

use crate::holder::Tag;
use crate::queue;
use crate::stopwatch::{Stopwatch, pause};
use crate::wire::{Failure, RefusalKind, Wire};

/// The `COUNT` of a step of `SCAN`, in which the server does nothing else.
const STEP: u64 = 1_000;
/// Other clients get as much time of the server between two steps, or more.
const PAUSE: Duration = Duration::from_millis(1);
/// The keys of one call of the script.
const LOOK_KEYS_MAX: usize = 50;
/// The bytes of a value that a server may show: each end of a token.
const SHOWN_BYTES_MAX: usize = 8;
const LOOK: &str = include_str!("look.lua");

/// When to stop, on each master.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How many keys are scanned, whatever their names.
    pub keys: u64,
    /// How long scanning may take, and then looking at the keys.
    pub time: Duration,
    /// How many names are kept.
    pub names: usize,
    /// How many bytes these names have.
    pub bytes: usize,
}

/// Why a scan has ended before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Keys,
    Time,
    Names,
}

/// The keys of a master.
#[derive(Debug)]
pub struct Scan {
    /// With the key prefix. A key can occur twice.
    pub keys: Vec<Vec<u8>>,
    pub cut: Option<Cut>,
}

/// A key on one master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// Absent, or other data.
    None,
    /// 40 hexadecimal digits.
    Token { holder: Holder, ends: Ends },
    /// The value of `muxlock revoke`.
    Revoked { holder: Holder, ends: Ends },
    /// Any other text.
    Value { holder: Holder, ends: Ends },
    /// A sorted set: how many members have time left.
    ReadLocks { count: u64, ends: Ends },
    /// A list: how long it is.
    Queue(u64),
    /// A hash.
    Companion,
}

/// The time on the stopwatch at which a key expires; `None` for a key without a TTL.
pub type Ends = Option<Duration>;

/// As much of a holder's value as may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub fingerprint: Fingerprint,
    /// The end of a token; `None` for any other value.
    pub tag: Option<Tag>,
}

/// The names on a master that begin with these bytes. Its error is in words.
pub fn scan(config: &Config, node: usize, prefix: &[u8], limits: &Limits) -> Result<Scan, String> {
    let mut scan = Scan { keys: Vec::new(), cut: None };
    let why = |failure| why(config, node, "scan", failure);
    let mut wire = Wire::connect(config, node, within(config, limits)).map_err(why)?;
    let watch = Stopwatch::start();
    let (pattern, count) = ([&literal(prefix), &b"*"[..]].concat(), STEP.to_string());
    let (mut cursor, mut scanned, mut bytes) = (b"0".to_vec(), 0, 0);
    loop {
        let words = [b"SCAN", &cursor[..], b"MATCH", &pattern, b"COUNT", count.as_bytes()];
        let (next, found) = page(wire.ask(&words).map_err(why)?).map_err(why)?;
        let is_name = |key: &Vec<u8>| {
            let longest = prefix_bytes(config) + RESOURCE_BYTES_MAX + queue::TAIL.len();
            key.starts_with(prefix) && key.len() > prefix_bytes(config) && key.len() <= longest
        };
        for key in found.into_iter().filter(is_name) {
            bytes += key.len();
            if scan.keys.len() >= limits.names || bytes > limits.bytes {
                return Ok(Scan { cut: Some(Cut::Names), ..scan });
            }
            scan.keys.push(key);
        }
        if next == b"0" {
            return Ok(scan);
        }
        scanned += STEP;
        let is_late = watch.elapsed() >= limits.time;
        scan.cut = if is_late { Some(Cut::Time) } else { None };
        if scanned >= limits.keys {
            scan.cut = Some(Cut::Keys);
        }
        if scan.cut.is_some() {
            return Ok(scan);
        }
        cursor = next;
        pause(PAUSE);
    }
}

/// The state of these keys on a master, in their order; `None` for those behind the time limit. Its
/// error is in words.
pub fn look(
    config: &Config,
    node: usize,
    keys: &[&[u8]],
    limits: &Limits,
    clock: Stopwatch,
) -> Result<Vec<Option<Key>>, String> {
    let why = |failure| why(config, node, "eval", failure);
    let mut found = Vec::with_capacity(keys.len());
    let mut wire = Wire::connect(config, node, within(config, limits)).map_err(why)?;
    let watch = Stopwatch::start();
    for batch in keys.chunks(LOOK_KEYS_MAX) {
        if watch.elapsed() >= limits.time {
            break;
        }
        let count = batch.len().to_string();
        let words: Vec<&[u8]> = [b"EVAL", LOOK.as_bytes(), count.as_bytes()]
            .into_iter()
            .chain(batch.iter().copied())
            .collect();
        let Value::Array(parts) = wire.ask(&words).map_err(why)? else {
            return Err(why(Failure::Strange));
        };
        let now = clock.elapsed();
        match &parts[..] {
            [Value::Integer(how @ (-1 | -2)), Value::Bulk(command)] => {
                let command = String::from_utf8_lossy(command);
                let kind = if *how == -1 { RefusalKind::Command } else { RefusalKind::Unknown };
                return Err(refused(config, node, &command, kind).unwrap_or_default());
            }
            parts if parts.len() == batch.len() => {
                for part in parts {
                    found.push(Some(key(part, now).ok_or_else(|| why(Failure::Strange))?));
                }
            }
            _ => return Err(why(Failure::Strange)),
        }
    }
    found.resize(keys.len(), None);
    Ok(found)
}

/// Longer than the limit, so that the last answer can still come.
fn within(config: &Config, limits: &Limits) -> Duration {
    let common = config.common();
    limits.time.saturating_add(common.connect_timeout).saturating_add(common.node_timeout)
}

fn prefix_bytes(config: &Config) -> usize {
    config.common().key_prefix.len()
}

/// The pattern that matches these bytes alone.
fn literal(bytes: &[u8]) -> Vec<u8> {
    let escaped = |byte: &u8| match byte {
        b'*' | b'?' | b'[' | b']' | b'\\' => vec![b'\\', *byte],
        byte => vec![*byte],
    };
    bytes.iter().flat_map(escaped).collect()
}

/// The next cursor and the keys of a step.
fn page(reply: Value) -> Result<(Vec<u8>, Vec<Vec<u8>>), Failure> {
    let Value::Array(parts) = reply else { return Err(Failure::Strange) };
    let Ok([Value::Bulk(cursor), Value::Array(keys)]) = <[Value; 2]>::try_from(parts) else {
        return Err(Failure::Strange);
    };
    let bytes = |key| match key {
        Value::Bulk(bytes) => Ok(bytes),
        _ => Err(Failure::Strange),
    };
    Ok((cursor, keys.into_iter().map(bytes).collect::<Result<_, _>>()?))
}

/// The answer of the script about one key.
fn key(answer: &Value, now: Duration) -> Option<Key> {
    let parts = match answer {
        Value::Integer(0) => return Some(Key::None),
        Value::Array(parts) => parts,
        _ => return None,
    };
    let [Value::Bulk(letter), Value::Integer(left), rest @ ..] = &parts[..] else { return None };
    let ends = u64::try_from(*left).ok().map(|left| now + Duration::from_millis(left));
    let count = |count: &i64| u64::try_from(*count).ok();
    match (&letter[..], rest) {
        (b"h", []) => Some(Key::Companion),
        (b"l", [Value::Integer(length)]) => count(length).map(Key::Queue),
        (b"z", [Value::Integer(members)]) => {
            count(members).map(|count| Key::ReadLocks { count, ends })
        }
        (letter, [Value::Bulk(print), Value::Bulk(tag)])
            if print.len() <= SHOWN_BYTES_MAX && tag.len() <= SHOWN_BYTES_MAX =>
        {
            let holder = Holder { fingerprint: Fingerprint::new(print), tag: Tag::at_end_of(tag) };
            match letter {
                b"t" => Some(Key::Token { holder, ends }),
                b"r" => Some(Key::Revoked { holder, ends }),
                b"v" => Some(Key::Value { holder, ends }),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Why a master refused a command, in words that name a missing right.
fn why(config: &Config, node: usize, command: &str, failure: Failure) -> String {
    let refused = failure.refusal().and_then(|kind| refused(config, node, command, kind));
    refused.unwrap_or_else(|| failure.to_string())
}

fn refused(config: &Config, node: usize, command: &str, kind: RefusalKind) -> Option<String> {
    let user = config.master(node).user.unwrap_or("default");
    match kind {
        RefusalKind::Command => Some(format!("the user {user:?} lacks +{command}")),
        RefusalKind::Unknown => Some(format!("the server does not know {command}")),
        RefusalKind::Key => {
            let prefix = String::from_utf8_lossy(config.common().key_prefix);
            Some(format!("the user {user:?} lacks ~{}*", printable(&prefix)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use muxlock::Redlock;
    use muxlock::testing::Master;

    use super::*;

    const ENOUGH: Limits = Limits {
        keys: u64::MAX,
        time: Duration::from_secs(20),
        names: usize::MAX,
        bytes: usize::MAX,
    };

    #[test]
    fn each_limit_ends_a_scan() {
        let master = Master::start().unwrap();
        let config = Redlock::builder().nodes([master.url()]).config().unwrap();
        let names: Vec<String> = (0..3_000).map(|i| format!("name-{i:04}")).collect();
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        words.extend(names.iter().flat_map(|name| [name.as_bytes(), b"1"]));
        master.query(&words).unwrap();
        let scan = |limits| scan(&config, 0, b"name-", &limits).unwrap();

        let mut all = scan(ENOUGH);
        assert_eq!(all.cut, None);
        all.keys.sort_unstable();
        all.keys.dedup();
        assert!(all.keys.iter().eq(names.iter().map(|name| name.as_bytes())));
        let table = [
            (Limits { keys: 1_000, ..ENOUGH }, Cut::Keys),
            (Limits { time: Duration::ZERO, ..ENOUGH }, Cut::Time),
            (Limits { names: 7, ..ENOUGH }, Cut::Names),
            (Limits { bytes: 70, ..ENOUGH }, Cut::Names),
        ];
        for (limits, cut) in table {
            let seen = scan(limits);
            assert_eq!(seen.cut, Some(cut), "{limits:?}");
            assert!(seen.keys.len() < 3_000, "{limits:?}: {}", seen.keys.len());
            assert!(cut != Cut::Names || seen.keys.len() == 7, "{}", seen.keys.len());
        }
        let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let look = |limits: &Limits| look(&config, 0, &keys, limits, Stopwatch::start()).unwrap();
        assert!(look(&ENOUGH).iter().all(Option::is_some));
        let late = look(&Limits { time: Duration::ZERO, ..ENOUGH });
        assert!(late.len() == 3_000 && late.iter().all(Option::is_none));
    }

    #[test]
    fn characters_of_a_pattern_stand_for_themselves() {
        assert_eq!(literal(b"a*b[c]?\\\xff"), b"a\\*b\\[c\\]\\?\\\\\xff");
    }
}
