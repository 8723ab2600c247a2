//! Lists, as far as the scripts of waits use them.

use std::collections::VecDeque;

use super::redis::{ChangeKind, Entry, Redis, Value, integer, wrong_type};
use super::wire::Reply;

impl Redis {
    /// Runs a command of a list.
    pub fn run_on_list(&mut self, db: u64, name: &str, words: &[&[u8]], wall: u64) -> Reply {
        let now = (wall / super::clock::MILLI) as i64;
        let known = match self.read(db, words[1], now) {
            None => VecDeque::new(),
            Some(Entry { value: Value::List(list), .. }) => list.clone(),
            Some(_) => return wrong_type(),
        };
        let mut list = known.clone();
        let reply = match name {
            "llen" => Reply::Integer(list.len() as i64),
            "lpos" => list
                .iter()
                .position(|it| it == words[2])
                .map_or(Reply::Nil, |at| Reply::Integer(at as i64)),
            "lindex" => match integer(words[2]) {
                None => return Reply::error("ERR value is not an integer or out of range"),
                Some(at) => {
                    let at = if at < 0 { at + list.len() as i64 } else { at };
                    let found = usize::try_from(at).ok().and_then(|at| list.get(at));
                    found.map_or(Reply::Nil, |it| Reply::Bulk(it.clone()))
                }
            },
            "rpush" | "lpush" => {
                for word in &words[2..] {
                    match name {
                        "rpush" => list.push_back(word.to_vec()),
                        _ => list.push_front(word.to_vec()),
                    }
                }
                Reply::Integer(list.len() as i64)
            }
            "lrem" => match integer(words[2]) {
                Some(1) => {
                    let at = list.iter().position(|it| it == words[3]);
                    at.and_then(|at| list.remove(at));
                    Reply::Integer(i64::from(at.is_some()))
                }
                _ => return Reply::error("ERR value is not an integer or out of range"),
            },
            name => unreachable!("{name} is no command of a list"),
        };
        if list != known {
            self.note(ChangeKind::List, db, words[1]);
            let key = (db, words[1].to_vec());
            if list.is_empty() {
                self.data.remove(&key);
            } else {
                let value = Value::List(list);
                match self.data.get_mut(&key) {
                    Some(entry) => entry.value = value,
                    None => {
                        let entry = Entry { value, expires: None, written: wall, extended: wall };
                        self.data.insert(key, entry);
                    }
                }
            }
        }
        reply
    }
}
