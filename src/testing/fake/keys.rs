//! Keys that expire, and what muxlock's scripts do with them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::time::{Duration, Instant};

use super::super::query::{Value, is_marker_key};
use super::clock::Now;
pub(super) use crate::resp::HASHES;
use crate::resp::{
    ACQUIRE_FENCED, EXTEND, EXTEND_OR_SET, INSPECT, LOOK_AS, MARKER, RAISE, RELEASE, TRIAL,
    without_trial,
};
use crate::token::FINGERPRINT_BYTES_MAX;

/// Most keys of a database. More are refused like those of a server that is out of memory.
const KEYS_MAX: usize = 20_000;
/// Most keys of a database with counters for fencing tokens.
const COUNTERS_MAX: usize = 16;
/// Most counters of such a key: the client has no other buckets.
const BUCKETS: u32 = 16_384;
/// How far a counter may be from the server's clock, in microseconds, unless it has to grow.
const NEAR_MICROS: i64 = 500_000;

pub(super) const SYNTAX: &str = "ERR syntax error";
pub(super) const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(super) const LACKING: &str = "ERR the script lacks keys or arguments";
pub(super) const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// What a key holds.
#[derive(Debug)]
pub(super) enum Held {
    Text(Vec<u8>),
    /// Shares of a resource, by their tokens, with their ends.
    Shares(HashMap<Vec<u8>, Instant>),
    /// The token beside a caller's value.
    Companion(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) value: Held,
    /// `None` if it stays.
    pub(super) expires: Option<Instant>,
}

impl Entry {
    fn is_over(&self, now: Now) -> bool {
        self.expires.is_some_and(|expires| now.steady >= expires)
    }
}

fn hash(value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(value);
    hasher.finish()
}

/// The keys of one database.
#[derive(Debug, Default)]
pub(super) struct Keys {
    entries: HashMap<Vec<u8>, Entry>,
    /// Keys with counters for fencing tokens, which stay: no entry has such a key.
    counters: HashMap<Vec<u8>, Counters>,
}

/// By their buckets.
type Counters = HashMap<u32, i64>;

impl Keys {
    /// How many there are.
    pub(super) fn count(&self, now: Now) -> usize {
        let entries = self.entries.values().filter(|entry| !entry.is_over(now));
        entries.count() + self.counters.len()
    }

    /// How many there are beside the marker.
    pub(super) fn count_without_marker(&self, now: Now) -> usize {
        let markers =
            self.entries.iter().filter(|(key, it)| is_marker_key(key) && !it.is_over(now));
        self.count(now) - markers.count()
    }

    /// Whether there is such a key, of any kind.
    pub(super) fn exists(&mut self, now: Now, key: &[u8]) -> bool {
        self.counters.contains_key(key) || self.live(now, key).is_some()
    }

    /// The value of a key, unless it is of another kind.
    pub(super) fn get(&mut self, now: Now, key: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
        if self.counters.contains_key(key) {
            return Err(WRONG_TYPE);
        }
        match self.live(now, key).map(|entry| &entry.value) {
            Some(Held::Text(value)) => Ok(Some(value.clone())),
            Some(Held::Shares(_) | Held::Companion(_)) => Err(WRONG_TYPE),
            None => Ok(None),
        }
    }

    /// Sets a key, whatever it holds.
    pub(super) fn put(&mut self, now: Now, key: &[u8], value: &[u8], ttl: Duration) {
        let expires = now.steady.checked_add(ttl);
        self.counters.remove(key);
        self.entries.insert(key.to_vec(), Entry { value: Held::Text(value.to_vec()), expires });
    }

    /// A key that has not expired.
    pub(super) fn live(&mut self, now: Now, key: &[u8]) -> Option<&mut Entry> {
        let database = &mut self.entries;
        if database.get(key).is_some_and(|entry| entry.is_over(now)) {
            database.remove(key);
        }
        database.get_mut(key)
    }

    fn holds(&mut self, now: Now, key: &[u8], value: &[u8]) -> Result<bool, &'static str> {
        Ok(self.get(now, key)?.is_some_and(|held| held == value))
    }

    /// Whether there was such a key.
    pub(super) fn delete(&mut self, now: Now, key: &[u8]) -> bool {
        let has_counted = self.counters.remove(key).is_some();
        has_counted || self.live(now, key).is_some() && self.entries.remove(key).is_some()
    }

    /// In milliseconds; -1 for a key that stays, -2 for none.
    pub(super) fn pttl(&mut self, now: Now, key: &[u8]) -> i64 {
        match self.live(now, key).map(|entry| entry.expires) {
            Some(Some(expires)) => {
                i64::try_from((expires - now.steady).as_millis()).unwrap_or(i64::MAX)
            }
            Some(None) => -1,
            None if self.counters.contains_key(key) => -1,
            None => -2,
        }
    }

    pub(super) fn set(
        &mut self,
        now: Now,
        key: &[u8],
        value: Held,
        expires: Option<Instant>,
    ) -> Result<(), &'static str> {
        self.counters.remove(key);
        let database = &mut self.entries;
        if database.len() >= KEYS_MAX && !database.contains_key(key) {
            database.retain(|_, entry| !entry.is_over(now));
            if database.len() >= KEYS_MAX {
                return Err(OUT_OF_MEMORY);
            }
        }
        database.insert(key.to_vec(), Entry { value, expires });
        Ok(())
    }

    /// `SET key value [NX] [PX ttl]`.
    pub(super) fn set_with(
        &mut self,
        now: Now,
        key: &[u8],
        value: &[u8],
        options: &[&[u8]],
    ) -> Result<Value, &'static str> {
        let (mut only_if_absent, mut ttl) = (false, None);
        let mut options = options.iter().map(|option| option.to_ascii_uppercase());
        while let Some(option) = options.next() {
            match option.as_slice() {
                b"NX" => only_if_absent = true,
                b"PX" => ttl = Some(options.next().ok_or(SYNTAX)?),
                _ => return Err(SYNTAX),
            }
        }
        let expires = ttl.map(|ttl| expiry(now, &ttl)).transpose()?;
        if only_if_absent && self.exists(now, key) {
            return Ok(Value::Nil);
        }
        self.set(now, key, Held::Text(value.to_vec()), expires)?;
        Ok(Value::Status("OK".into()))
    }

    /// `EVAL script numkeys key... arg...`, of a script that muxlock sends.
    pub(super) fn eval(
        &mut self,
        now: Now,
        script: &[u8],
        keys: &[u8],
        words: &[&[u8]],
    ) -> Result<Value, &'static str> {
        let keys = integer(keys).ok_or(NO_INTEGER)?;
        let keys = usize::try_from(keys).map_err(|_| "ERR Number of keys can't be negative")?;
        let (keys, args) = words
            .split_at_checked(keys)
            .ok_or("ERR Number of keys can't be greater than number of args")?;
        // A fake master has every command.
        let script = without_trial(script);
        if let Some(vote) = self.eval_form(now, script, keys, args)? {
            return Ok(Value::Integer(vote));
        }
        let vote = match (std::str::from_utf8(script), keys, args) {
            (Ok(TRIAL), ..) => 0,
            (Ok(INSPECT), [key, ..], _) => return self.inspect(now, key),
            (Ok(LOOK_AS), ..) => return self.own(now, keys)?.shown(),
            (Ok(RELEASE), [key, ..], [token, ..]) => {
                i64::from(self.holds(now, key, token)? && self.delete(now, key))
            }
            (Ok(EXTEND), [key, ..], [token, ttl, ..]) => self.extend(now, key, token, ttl)?,
            (Ok(EXTEND_OR_SET), [key, ..], [token, ttl, ..]) => {
                self.extend_or_set(now, key, token, ttl)?
            }
            (Ok(MARKER), [key, ..], [id, ..]) => {
                let micros = now.wall.as_micros().to_string();
                // Without room it is not there.
                let value = [b"!", *id, micros.as_bytes()].concat();
                let _ = self.set_with(now, key, &value, &[b"NX"]);
                return Ok(self.get(now, key)?.map_or(Value::Nil, Value::Bulk));
            }
            (Ok(ACQUIRE_FENCED), [key, counters, ..], [token, ttl, bucket, proposal, ..]) => {
                self.check_counters(now, counters)?;
                if self.set_with(now, key, token, &[b"NX", b"PX", ttl])? == Value::Nil {
                    return Ok(Value::Nil);
                }
                self.grow(now, counters, bucket, proposal)?
            }
            (Ok(RAISE), [key, counters, ..], [token, bucket, number, ..]) => {
                if !self.holds(now, key, token)? {
                    return Ok(Value::Integer(0));
                }
                let number = integer(number).ok_or(NO_INTEGER)?;
                let counter = self.counter(now, counters, bucket)?;
                *counter = number.max(*counter);
                1
            }
            (
                Ok(INSPECT | RELEASE | EXTEND | EXTEND_OR_SET | ACQUIRE_FENCED | MARKER | RAISE),
                ..,
            ) => {
                return Err(LACKING);
            }
            _ => return Err("ERR unknown command: a fake master runs only scripts of muxlock"),
        };
        Ok(Value::Integer(vote))
    }

    fn check_counters(&mut self, now: Now, counters: &[u8]) -> Result<(), &'static str> {
        if self.live(now, counters).is_some() { Err(WRONG_TYPE) } else { Ok(()) }
    }

    /// A resource's counter, which is zero if there was none.
    fn counter(
        &mut self,
        now: Now,
        counters: &[u8],
        bucket: &[u8],
    ) -> Result<&mut i64, &'static str> {
        self.check_counters(now, counters)?;
        let bucket = integer(bucket).and_then(|bucket| u32::try_from(bucket).ok());
        let bucket = bucket.filter(|bucket| *bucket < BUCKETS).ok_or(NO_INTEGER)?;
        if self.counters.len() >= COUNTERS_MAX && !self.counters.contains_key(counters) {
            return Err(OUT_OF_MEMORY);
        }
        Ok(self.counters.entry(counters.to_vec()).or_default().entry(bucket).or_default())
    }

    /// Raises the counter for a lock that was granted. Returns 1 if it is the proposal now.
    fn grow(
        &mut self,
        now: Now,
        counters: &[u8],
        bucket: &[u8],
        proposal: &[u8],
    ) -> Result<i64, &'static str> {
        let time = i64::try_from(now.wall.as_micros()).unwrap_or(i64::MAX);
        let proposal = integer(proposal).ok_or(NO_INTEGER)?;
        let counter = self.counter(now, counters, bucket)?;
        let near = proposal.max(time - NEAR_MICROS).min(time + NEAR_MICROS);
        *counter = near.max(*counter + 1);
        Ok(if *counter == proposal { 1 } else { *counter })
    }

    /// The beginning of a value, and its time to live.
    fn inspect(&mut self, now: Now, key: &[u8]) -> Result<Value, &'static str> {
        let Some(value) = self.get(now, key)? else {
            return Ok(Value::Integer(0));
        };
        // A real server hashes a short value with SHA-1.
        let value = match value.len() {
            ..24 => format!("{:016x}", hash(&value)).into_bytes(),
            _ => value,
        };
        let head = value[..FINGERPRINT_BYTES_MAX].to_vec();
        Ok(Value::Array(vec![Value::Bulk(head), Value::Integer(self.pttl(now, key))]))
    }

    /// Raises a time to live, and never lowers it.
    fn extend(
        &mut self,
        now: Now,
        key: &[u8],
        token: &[u8],
        ttl: &[u8],
    ) -> Result<i64, &'static str> {
        if !self.holds(now, key, token)? {
            return Ok(0);
        }
        let expires = expiry(now, ttl)?;
        let Some(entry) = self.live(now, key) else {
            return Ok(0);
        };
        entry.expires = Some(entry.expires.map_or(expires, |before| before.max(expires)));
        Ok(1)
    }

    fn extend_or_set(
        &mut self,
        now: Now,
        key: &[u8],
        token: &[u8],
        ttl: &[u8],
    ) -> Result<i64, &'static str> {
        if self.get(now, key)?.is_some() {
            return self.extend(now, key, token, ttl);
        }
        self.set(now, key, Held::Text(token.to_vec()), Some(expiry(now, ttl)?))?;
        Ok(2)
    }
}

/// When a key expires that is given this many milliseconds.
pub(super) fn expiry(now: Now, millis: &[u8]) -> Result<Instant, &'static str> {
    let millis = integer(millis).ok_or(NO_INTEGER)?;
    // A server adds it to its wall clock, in a number of this size.
    let wall = i64::try_from(now.wall.as_millis()).unwrap_or(i64::MAX);
    let is_possible = millis > 0 && millis.checked_add(wall).is_some();
    let ttl = is_possible.then(|| Duration::from_millis(millis.unsigned_abs()));
    ttl.and_then(|ttl| now.steady.checked_add(ttl))
        .ok_or("ERR invalid expire time in 'set' command")
}

/// A number in its one usual form, as servers want it.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::super::clock::now;
    use super::*;

    fn filled(now: Now, ttl: Duration) -> Keys {
        let mut keys = Keys::default();
        (0..KEYS_MAX).for_each(|i| keys.put(now, &i.to_ne_bytes(), b"v", ttl));
        keys
    }

    #[test]
    fn a_database_that_is_full_takes_no_other_key() {
        let now = now();
        let mut keys = filled(now, Duration::from_secs(60));
        let is_set = |keys: &mut Keys, key: &[u8]| keys.set_with(now, key, b"v", &[]).is_ok();
        let known = 7_usize.to_ne_bytes();
        assert_eq!(keys.set_with(now, b"new", b"v", &[]), Err(OUT_OF_MEMORY));
        assert!(is_set(&mut keys, &known));
        assert!(keys.delete(now, &known) && is_set(&mut keys, b"new"));
        assert!(!is_set(&mut keys, &known));
        // What has expired takes no room.
        let mut keys = filled(now, Duration::ZERO);
        assert!(is_set(&mut keys, b"new"));
        assert_eq!((keys.count(now), keys.entries.len()), (1, 1));
    }
}
