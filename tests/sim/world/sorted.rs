//! Sorted sets, and the type of a key, as far as the scripts of shares use them.

use std::collections::BTreeMap;

use super::clock::MILLI;
use super::redis::{ChangeKind, Entry, Redis, Value, integer, wrong_type};
use super::wire::Reply;

impl Redis {
    /// What type the key has.
    pub fn type_of(&mut self, db: u64, key: &[u8], now: i64) -> Reply {
        Reply::Status(match self.read(db, key, now).map(|entry| &entry.value) {
            None => "none",
            Some(Value::Text(_)) => "string",
            Some(Value::Hash(_)) => "hash",
            Some(Value::List(_)) => "list",
            Some(Value::Sorted(_)) => "zset",
        })
    }

    /// Runs a command of a sorted set.
    pub fn run_on_sorted(&mut self, db: u64, name: &str, words: &[&[u8]], wall: u64) -> Reply {
        let now = (wall / MILLI) as i64;
        let known = match self.read(db, words[1], now) {
            None => BTreeMap::new(),
            Some(Entry { value: Value::Sorted(members), .. }) => members.clone(),
            Some(_) => return wrong_type(),
        };
        let mut members = known.clone();
        let reply = match (name, words) {
            ("zscore", [_, _, member]) => score(members.get(*member).copied()),
            ("zcard", _) => Reply::Integer(members.len() as i64),
            ("zrange", [_, _, b"-1", b"-1", b"WITHSCORES"]) => {
                let last = members.iter().max_by_key(|(member, score)| (**score, *member));
                let words = last
                    .map(|(member, last)| vec![Reply::Bulk(member.clone()), score(Some(*last))]);
                Reply::Array(words.unwrap_or_default())
            }
            ("zadd", [_, _, b"NX", _, member]) if known.contains_key(*member) => Reply::Integer(0),
            ("zadd", [_, _, score, member] | [_, _, b"NX", score, member]) => {
                match integer(score) {
                    Some(score) => {
                        let before = members.insert(member.to_vec(), score);
                        Reply::Integer(i64::from(before.is_none()))
                    }
                    None => return Reply::error("ERR value is not a valid float"),
                }
            }
            ("zrem", [_, _, member]) => {
                Reply::Integer(i64::from(members.remove(*member).is_some()))
            }
            ("zremrangebyscore", [_, _, b"-inf", most]) => match integer(most) {
                Some(most) => {
                    members.retain(|_, score| *score > most);
                    Reply::Integer((known.len() - members.len()) as i64)
                }
                None => return Reply::error("ERR min or max is not a float"),
            },
            _ => panic!("this form of {name} is not known"),
        };
        if members != known {
            self.note(ChangeKind::Member, db, words[1]);
            let key = (db, words[1].to_vec());
            match self.data.get_mut(&key) {
                _ if members.is_empty() => {
                    self.data.remove(&key);
                }
                Some(entry) => (entry.value, entry.written) = (Value::Sorted(members), wall),
                None => {
                    let value = Value::Sorted(members);
                    let entry = Entry { value, expires: None, written: wall, extended: wall };
                    self.data.insert(key, entry);
                }
            }
        }
        reply
    }
}

fn score(score: Option<i64>) -> Reply {
    score.map_or(Reply::Nil, |score| Reply::Bulk(score.to_string().into_bytes()))
}
