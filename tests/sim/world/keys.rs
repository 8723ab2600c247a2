//! The commands of the model that read and write keys.

use std::collections::BTreeMap;

use super::clock::MILLI;
use super::redis::{
    Change, ChangeKind, Entry, Redis, Value, WRONG_TYPE, expiry, integer, lower, wrong_arity,
    wrong_type,
};
use super::wire::Reply;

impl Redis {
    pub fn run(&mut self, db: u64, name: &str, words: &[&[u8]], wall: u64) -> Reply {
        let now = (wall / MILLI) as i64;
        match name {
            "get" => match self.read(db, words[1], now) {
                Some(Entry { value: Value::Text(text), .. }) => Reply::Bulk(text.clone()),
                Some(_) => wrong_type(),
                None => Reply::Nil,
            },
            "set" => self.set(db, words, wall),
            "del" => self.delete(db, &words[1..], now),
            "delex" => match *words {
                [_, key] => self.delete(db, &[key], now),
                [_, key, condition, value] => {
                    let wrong = "ERR Key should be of string type if conditions are specified";
                    match lower(condition).as_str() {
                        "ifeq" => self.delete_if(db, key, now, wrong, |text| text == value),
                        "ifne" => self.delete_if(db, key, now, wrong, |text| text != value),
                        _ => Reply::error("ERR syntax error"),
                    }
                }
                _ => wrong_arity(name),
            },
            "delifeq" => self.delete_if(db, words[1], now, WRONG_TYPE, |text| text == words[2]),
            "pexpire" | "pexpireat" => self.pexpire(db, name, words, wall),
            "type" => self.type_of(db, words[1], now),
            "zscore" | "zcard" | "zrange" | "zadd" | "zrem" | "zremrangebyscore" => {
                self.run_on_sorted(db, name, words, wall)
            }
            "pttl" => Reply::Integer(match self.read(db, words[1], now) {
                Some(entry) => entry.expires.map_or(-1, |at| (at - now).max(0)),
                None => -2,
            }),
            "exists" => {
                let there = words[1..].iter().filter(|key| self.read(db, key, now).is_some());
                Reply::Integer(there.count() as i64)
            }
            "time" => {
                let part = |number: u64| Reply::Bulk(number.to_string().into_bytes());
                Reply::Array(vec![part(wall / 1_000_000_000), part(wall % 1_000_000_000 / 1_000)])
            }
            "lpos" | "llen" | "lindex" | "rpush" | "lpush" | "lrem" => {
                self.run_on_list(db, name, words, wall)
            }
            "publish" => self.publish(words[1], words[2]),
            "info" => Reply::Verbatim(self.server.info(&words[1..], self.open.len(), wall)),
            "ping" => Reply::Status("PONG"),
            "dbsize" => Reply::Integer(self.data.keys().filter(|(at, _)| *at == db).count() as i64),
            "flushall" => {
                self.data.clear();
                Reply::OK
            }
            "hset" => self.set_hash(db, words, wall),
            "hget" => match self.read(db, words[1], now) {
                Some(Entry { value: Value::Hash(fields), .. }) => {
                    fields.get(words[2]).map_or(Reply::Nil, |value| Reply::Bulk(value.clone()))
                }
                Some(_) => wrong_type(),
                None => Reply::Nil,
            },
            name => unreachable!("{name} is run elsewhere"),
        }
    }

    /// A key that is past its end is deleted when somebody looks at it.
    pub fn read(&mut self, db: u64, key: &[u8], now: i64) -> Option<&Entry> {
        let key = (db, key.to_vec());
        if self.data.get(&key)?.expires.is_some_and(|at| now > at) {
            self.data.remove(&key);
            self.listeners.ended.push(key.clone());
        }
        self.data.get(&key)
    }

    pub fn note(&mut self, kind: ChangeKind, db: u64, key: &[u8]) {
        let key = (db, key.to_vec());
        let entry = self.data.get(&key);
        let (before, ended) =
            (entry.map(|entry| entry.value.clone()), entry.and_then(|it| it.expires));
        self.changes.push(Change { kind, key, before, ended });
    }

    fn set(&mut self, db: u64, words: &[&[u8]], wall: u64) -> Reply {
        let now = (wall / MILLI) as i64;
        let (mut if_absent, mut if_there, mut expires) = (false, false, None);
        let mut options = words[3..].iter();
        while let Some(option) = options.next() {
            match lower(option).as_str() {
                "nx" if !if_there => if_absent = true,
                "xx" if !if_absent => if_there = true,
                unit @ ("px" | "ex") if expires.is_none() => {
                    let Some(word) = options.next() else {
                        return Reply::error("ERR syntax error");
                    };
                    let factor = if unit == "px" { 1 } else { 1_000 };
                    match expiry("set", integer(word), factor, now) {
                        Ok(at) => expires = Some(at),
                        Err(error) => return error,
                    }
                }
                _ => return Reply::error("ERR syntax error"),
            }
        }
        let is_there = self.read(db, words[1], now).is_some();
        if if_absent && is_there || if_there && !is_there {
            return Reply::Nil;
        }
        self.note(ChangeKind::Set, db, words[1]);
        let value = Value::Text(words[2].to_vec());
        self.data.insert(
            (db, words[1].to_vec()),
            Entry { value, expires, written: wall, extended: wall },
        );
        Reply::OK
    }

    fn set_hash(&mut self, db: u64, words: &[&[u8]], wall: u64) -> Reply {
        let pairs = &words[2..];
        if pairs.len() % 2 != 0 {
            return wrong_arity("hset");
        }
        match self.read(db, words[1], (wall / MILLI) as i64).map(|entry| &entry.value) {
            Some(Value::Hash(_)) | None => {}
            Some(Value::Text(_) | Value::List(_) | Value::Sorted(_)) => return wrong_type(),
        }
        self.note(ChangeKind::Field, db, words[1]);
        let value = Value::Hash(BTreeMap::new());
        let new = Entry { value, expires: None, written: wall, extended: wall };
        let entry = self.data.entry((db, words[1].to_vec())).or_insert(new);
        entry.written = wall;
        let Value::Hash(fields) = &mut entry.value else {
            unreachable!("it is no text");
        };
        let set = pairs.chunks(2).map(|it| fields.insert(it[0].to_vec(), it[1].to_vec()));
        Reply::Integer(set.filter(Option::is_none).count() as i64)
    }

    fn delete(&mut self, db: u64, keys: &[&[u8]], now: i64) -> Reply {
        let mut deleted = 0;
        for key in keys {
            if self.read(db, key, now).is_some() {
                self.note(ChangeKind::Delete, db, key);
                self.data.remove(&(db, key.to_vec()));
                deleted += 1;
            }
        }
        Reply::Integer(deleted)
    }

    /// Deletes a text that `is_it`; what is no text is `wrong`.
    fn delete_if(
        &mut self,
        db: u64,
        key: &[u8],
        now: i64,
        wrong: &str,
        is_it: impl Fn(&[u8]) -> bool,
    ) -> Reply {
        match self.read(db, key, now).map(|entry| &entry.value) {
            Some(Value::Text(text)) if is_it(text) => self.delete(db, &[key], now),
            Some(Value::Text(_)) | None => Reply::Integer(0),
            Some(Value::Hash(_) | Value::List(_) | Value::Sorted(_)) => Reply::error(wrong),
        }
    }

    /// An end that is not in the future deletes the key at once.
    fn pexpire(&mut self, db: u64, name: &str, words: &[&[u8]], wall: u64) -> Reply {
        let now = (wall / MILLI) as i64;
        let Some(ttl) = integer(words[2]) else {
            return Reply::error("ERR value is not an integer or out of range");
        };
        let base = if name == "pexpire" { now } else { 0 };
        let Some(at) = base.checked_add(ttl) else {
            return Reply::Error(format!("ERR invalid expire time in '{name}' command"));
        };
        if self.read(db, words[1], now).is_none() {
            return Reply::Integer(0);
        }
        let key = (db, words[1].to_vec());
        if at <= now {
            self.note(ChangeKind::Delete, db, words[1]);
            self.data.remove(&key);
        } else {
            self.note(ChangeKind::Expire, db, words[1]);
            self.data
                .entry(key)
                .and_modify(|entry| (entry.expires, entry.extended) = (Some(at), wall));
        }
        Reply::Integer(1)
    }
}
