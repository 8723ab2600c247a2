//! What muxlock's scripts do that take, keep and free what is not one plain key (K1 to K8,
//! K11 to K13).

use std::mem;
use std::time::Instant;

use super::super::query::Value;
use super::clock::Now;
use super::keys::{Entry, Held, Keys, LACKING, NO_INTEGER, OUT_OF_MEMORY, expiry, integer};
use crate::resource::VALUE_BYTES_MAX;
use crate::resp::{
    FREE_ALL, FREE_AS, FREE_SHARED, KEEP_ALL, KEEP_AS, KEEP_SHARED, TAKE_ALL, TAKE_AS,
    TAKE_EXCLUSIVE, TAKE_SHARED, TAKE_SLOT,
};
use crate::token::LockToken;

/// Most shares of one resource.
const SHARES_MAX: usize = 20_000;
/// The value of the sign that a waiting writer leaves.
const INTENT: &[u8] = b"";

/// The arguments that all of these scripts have.
#[derive(Clone, Copy)]
struct Words<'a> {
    token: &'a [u8],
    ttl: &'a [u8],
    /// Which slot; whether to heal; for how long a writer's sign stands.
    last: &'a [u8],
    /// The caller's value.
    value: &'a [u8],
}

/// What stands under a key with a caller's value, and beside it.
pub(super) struct Own {
    held: Result<Option<Vec<u8>>, &'static str>,
    end: Option<Instant>,
    /// What the companion says, unless it is another client's.
    seen: Option<Vec<u8>>,
    /// Whose the key is: nobody's if the two ends differ.
    token: Vec<u8>,
    has_companion: bool,
}

impl Own {
    fn is(&self, value: &[u8], token: &[u8]) -> bool {
        matches!(&self.held, Ok(Some(held)) if held == value) && self.token == token
    }

    /// Whether the place beside the key is free, or has what a lock of muxlock left.
    fn has_room(&self) -> bool {
        self.seen.is_some() || !self.has_companion
    }

    /// The token and the value.
    pub(super) fn shown(self) -> Result<Value, &'static str> {
        Ok(self.held?.map_or(Value::Integer(0), |mut held| {
            held.truncate(VALUE_BYTES_MAX + 1);
            Value::Bulk([b"=", self.token.as_slice(), &held].concat())
        }))
    }
}

type Vote = Result<i64, &'static str>;
type Step = fn(&mut Keys, Now, &[&[u8]], Words<'_>) -> Vote;

/// Each script.
const STEPS: [(&str, Step); 11] = [
    (TAKE_ALL, Keys::take_all),
    (KEEP_ALL, Keys::keep_all),
    (FREE_ALL, Keys::free_all),
    (TAKE_SHARED, Keys::take_shared),
    (KEEP_SHARED, Keys::keep_shared),
    (FREE_SHARED, Keys::free_shared),
    (TAKE_EXCLUSIVE, Keys::take_exclusive),
    (TAKE_SLOT, Keys::take_slot),
    (TAKE_AS, Keys::take_as),
    (KEEP_AS, Keys::keep_as),
    (FREE_AS, Keys::free_as),
];

impl Keys {
    /// `None` if it is another script.
    pub(super) fn eval_form(
        &mut self,
        now: Now,
        script: &[u8],
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Option<i64>, &'static str> {
        let Some((_, step)) = STEPS.iter().find(|(text, _)| text.as_bytes() == script) else {
            return Ok(None);
        };
        let ([token, ttl, last, rest @ ..], [_, ..]) = (args, keys) else {
            return Err(LACKING);
        };
        let value = rest.first().copied().unwrap_or_default();
        step(self, now, keys, Words { token, ttl, last, value }).map(Some)
    }

    fn is_text(&mut self, now: Now, key: &[u8], text: &[u8]) -> bool {
        matches!(self.get(now, key), Ok(Some(value)) if value == text)
    }

    fn take_all(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let mut worst = None;
        for (key, index) in keys.iter().zip(2..) {
            let left = match self.pttl(now, key) {
                -2 => continue,
                -1 => i64::MAX,
                left => left,
            };
            if worst.is_none_or(|(most, _)| left > most) {
                worst = Some((left, index));
            }
        }
        if let Some((_, index)) = worst {
            return Ok(index);
        }
        for key in keys {
            self.set_with(now, key, words.token, &[b"PX", words.ttl])?;
        }
        Ok(1)
    }

    fn keep_all(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let mut vote = 1;
        for key in keys {
            match self.get(now, key) {
                Ok(None) if words.last == b"1" => vote = 2,
                Ok(Some(value)) if value == words.token => {}
                _ => return Ok(0),
            }
        }
        let ttl = integer(words.ttl).ok_or(NO_INTEGER)?;
        for key in keys {
            if self.pttl(now, key) < ttl {
                self.set_with(now, key, words.token, &[b"PX", words.ttl])?;
            }
        }
        Ok(vote)
    }

    fn free_all(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let mut all = 1;
        for key in keys {
            if !(self.is_text(now, key, words.token) && self.delete(now, key)) {
                all = 0;
            }
        }
        Ok(all)
    }

    /// Forgets the shares that have ended. One is left if the key is.
    fn purge(&mut self, now: Now, key: &[u8]) {
        if let Some(Entry { value: Held::Shares(ends), .. }) = self.live(now, key) {
            ends.retain(|_, end| *end > now.steady);
        }
    }

    fn share(
        &mut self,
        now: Now,
        key: &[u8],
        token: &[u8],
        end: Instant,
    ) -> Result<(), &'static str> {
        let mut ends = match self.live(now, key) {
            Some(Entry { value: Held::Shares(ends), .. }) => mem::take(ends),
            _ => Default::default(),
        };
        let is_full = ends.len() >= SHARES_MAX && !ends.contains_key(token);
        if !is_full {
            ends.insert(token.to_vec(), end);
        }
        let last = ends.values().max().copied();
        self.set(now, key, Held::Shares(ends), last)?;
        if is_full { Err(OUT_OF_MEMORY) } else { Ok(()) }
    }

    fn take_shared(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let [key, intent, ..] = keys else { return Err(LACKING) };
        if self.is_text(now, intent, INTENT) {
            return Ok(0);
        }
        self.purge(now, key);
        let is_free = match self.live(now, key).map(|entry| &entry.value) {
            Some(Held::Text(_) | Held::Companion(_)) => false,
            Some(Held::Shares(ends)) => !ends.contains_key(words.token),
            None => !self.exists(now, key),
        };
        if is_free {
            self.share(now, key, words.token, expiry(now, words.ttl)?)?;
        }
        Ok(i64::from(is_free))
    }

    fn keep_shared(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let [key, intent, ..] = keys else { return Err(LACKING) };
        let end = expiry(now, words.ttl)?;
        let may_heal = words.last == b"1" && !self.is_text(now, intent, INTENT);
        let is_free = !self.exists(now, key);
        let before = match self.live(now, key) {
            Some(Entry { value: Held::Text(text), expires }) if text == words.token => {
                Some(expires.unwrap_or(now.steady))
            }
            Some(Entry { value: Held::Text(_) | Held::Companion(_), .. }) => return Ok(0),
            Some(Entry { value: Held::Shares(ends), .. }) => {
                ends.get(words.token).copied().filter(|end| *end > now.steady)
            }
            None if is_free => None,
            None => return Ok(0),
        };
        if before.is_none() && !may_heal {
            return Ok(0);
        }
        self.share(now, key, words.token, before.map_or(end, |before| before.max(end)))?;
        Ok(if before.is_some() { 1 } else { 2 })
    }

    fn free_shared(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let [key, ..] = keys else { return Err(LACKING) };
        match self.live(now, key) {
            Some(Entry { value: Held::Text(text), .. }) if text == words.token => {
                return Ok(i64::from(self.delete(now, key)));
            }
            Some(Entry { value: Held::Shares(ends), expires }) => {
                if ends.remove(words.token).is_none() {
                    return Ok(0);
                }
                *expires = ends.values().max().copied().or(Some(now.steady));
            }
            _ => return Ok(0),
        }
        Ok(1)
    }

    fn take_exclusive(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let [key, intent, ..] = keys else { return Err(LACKING) };
        self.purge(now, key);
        let is_sign = self.is_text(now, intent, INTENT);
        if self.set_with(now, key, words.token, &[b"NX", b"PX", words.ttl])? != Value::Nil {
            if is_sign {
                self.delete(now, intent);
            }
            return Ok(1);
        }
        if words.last != b"0" && (is_sign || !self.exists(now, intent)) {
            self.set_with(now, intent, INTENT, &[b"PX", words.last])?;
        }
        Ok(0)
    }

    fn take_slot(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let slot = integer(words.last).and_then(|slot| usize::try_from(slot).ok());
        let key = slot.and_then(|slot| keys.get(slot)).ok_or(LACKING)?;
        if self.set_with(now, key, words.token, &[b"NX", b"PX", words.ttl])? != Value::Nil {
            return Ok(1);
        }
        let free = keys.iter().zip(0..62).filter(|(key, _)| !self.exists(now, key));
        Ok(2 + free.fold(0, |free, (_, slot)| free | 1_i64 << slot))
    }
    pub(super) fn own(&mut self, now: Now, keys: &[&[u8]]) -> Result<Own, &'static str> {
        let [key, beside, ..] = keys else { return Err(LACKING) };
        let (held, has_companion) = (self.get(now, key), self.exists(now, beside));
        let end = self.live(now, key).map(|entry| entry.expires);
        let (seen, ends) = match self.live(now, beside) {
            Some(Entry { value: Held::Companion(token), expires })
                if token.len() == LockToken::NONE.as_bytes().len() =>
            {
                (Some(token.clone()), Some(*expires))
            }
            _ => (None, None),
        };
        let token = seen.clone().filter(|_| end == ends);
        let token = token.unwrap_or_else(|| LockToken::NONE.as_bytes().to_vec());
        Ok(Own { held, end: end.flatten(), seen, token, has_companion })
    }

    /// Both keys, with the same end.
    fn put_as(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>, own: &Own) -> Vote {
        let end = expiry(now, words.ttl)?;
        let end = Some(own.end.map_or(end, |before| before.max(end)));
        self.set(now, keys[1], Held::Companion(words.token.to_vec()), end)?;
        self.set(now, keys[0], Held::Text(words.value.to_vec()), end)?;
        Ok(1)
    }

    fn take_as(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let own = self.own(now, keys)?;
        let may = own.held == Ok(None) && own.has_room();
        if may { self.put_as(now, keys, words, &own) } else { Ok(0) }
    }

    fn keep_as(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let own = self.own(now, keys)?;
        let may_heal = words.last == b"1" && own.held == Ok(None) && !own.has_companion;
        match own.is(words.value, words.token) {
            true => self.put_as(now, keys, words, &own),
            false if may_heal => self.put_as(now, keys, words, &own).map(|_| 2),
            false => Ok(0),
        }
    }

    fn free_as(&mut self, now: Now, keys: &[&[u8]], words: Words<'_>) -> Vote {
        let own = self.own(now, keys)?;
        let is_its = own.is(words.value, words.token) && self.delete(now, keys[0]);
        if own.seen.is_some_and(|seen| is_its || seen == words.token) {
            self.delete(now, keys[1]);
        }
        Ok(is_its.into())
    }
}
