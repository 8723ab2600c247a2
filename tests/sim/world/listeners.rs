//! Who is told what: channels, and keys whose changes are told.

use std::collections::{BTreeMap, BTreeSet};

use super::clock::MILLI;
use super::redis::{Key, Redis, Session, lower};
use super::wire::{Protocol, Reply};

/// What a process knows of those that listen.
#[derive(Debug, Default)]
pub struct Listeners {
    channels: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// The connections that are to be told of changes of a key.
    tracked: BTreeMap<Key, BTreeSet<u64>>,
    /// The connections for which tracking is on.
    trackers: BTreeSet<u64>,
    /// Those that are not told of what they change themselves (`NOLOOP`).
    deaf_to_own: BTreeSet<u64>,
    /// The most tracked keys; another one pushes one out, of which nothing is told.
    pub tracked_max: Option<usize>,
    /// What the last command has sent, to which connections, in order.
    pub pushes: Vec<(u64, Reply)>,
    /// Keys that the last command has found past their end.
    pub ended: Vec<Key>,
}

fn text(word: &[u8]) -> Reply {
    Reply::Bulk(word.to_vec())
}

fn name(word: &str) -> Reply {
    text(word.as_bytes())
}

impl Redis {
    /// `HELLO 3 [AUTH user password] [SETNAME name]`.
    pub fn hello(&self, session: &mut Session, words: &[&[u8]]) -> Reply {
        let (number, mut rest) = match words {
            [_, b"3", rest @ ..] => (3, rest),
            [_, b"2", rest @ ..] => (2, rest),
            _ => return Reply::error("NOPROTO unsupported protocol version"),
        };
        if let [b"AUTH", user, password, others @ ..] = rest {
            let is_free = self.server.password.is_none() && *user == b"default";
            let answer = self.authenticate(session, &[*user, *password]);
            if answer != Reply::OK && !is_free {
                return answer;
            }
            rest = others;
        }
        if self.server.password.is_some() && !session.is_authenticated {
            return Reply::error(
                "NOAUTH HELLO must be called with the client already authenticated",
            );
        }
        if !matches!(rest, [] | [b"SETNAME", _]) {
            return Reply::error("ERR Syntax error in HELLO option");
        }
        session.protocol = if number == 3 { Protocol::Resp3 } else { Protocol::Resp2 };
        let role = if self.server.is_replica { "replica" } else { "master" };
        Reply::Map(vec![
            name("server"),
            name("redis"),
            name("version"),
            name("7.0.15"),
            name("proto"),
            Reply::Integer(number),
            name("id"),
            Reply::Integer(session.id as i64),
            name("mode"),
            name("standalone"),
            name("role"),
            name(role),
            name("modules"),
            Reply::Array(Vec::new()),
        ])
    }

    pub fn subscribe(&mut self, session: &mut Session, words: &[&[u8]]) -> Reply {
        let [_, channel] = words else { panic!("one channel at a time") };
        self.listeners.channels.entry(channel.to_vec()).or_default().insert(session.id);
        session.channels.insert(channel.to_vec());
        let count = session.channels.len() as i64;
        Reply::Push(vec![name("subscribe"), text(channel), Reply::Integer(count)])
    }

    /// Tells those that listen and whose connections stand.
    pub fn publish(&mut self, channel: &[u8], message: &[u8]) -> Reply {
        let Listeners { channels, pushes, .. } = &mut self.listeners;
        let listening = channels.get_mut(channel).map(|ids| {
            ids.retain(|id| self.open.contains(id));
            &*ids
        });
        let mut count = 0;
        for id in listening.into_iter().flatten() {
            count += 1;
            pushes.push((*id, Reply::Push(vec![name("message"), text(channel), text(message)])));
        }
        Reply::Integer(count)
    }

    /// `CLIENT TRACKING` and `CLIENT CACHING`, as far as waits use them.
    pub fn track(&mut self, session: &mut Session, words: &[&[u8]]) -> Reply {
        let options: Vec<String> = words[1..].iter().map(|word| lower(word)).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        match options[..] {
            ["tracking", "on", "optin", ref more @ ..]
                if matches!(more, [] | ["noloop"]) && session.protocol == Protocol::Resp3 =>
            {
                session.is_tracking = true;
                if !more.is_empty() {
                    self.listeners.deaf_to_own.insert(session.id);
                }
                self.listeners.trackers.insert(session.id);
                Reply::OK
            }
            ["caching", "yes"] if session.is_tracking => {
                session.is_caching = true;
                Reply::OK
            }
            ["caching", _] => Reply::error(
                "ERR CLIENT CACHING can be called only when the client is in tracking mode with \
                 OPTIN or OPTOUT mode enabled",
            ),
            _ => Reply::error("ERR syntax error"),
        }
    }

    /// The connection is told of the next change of this key, once.
    pub fn note_read(&mut self, session: &Session, key: &[u8]) {
        let key = (session.db, key.to_vec());
        let most = self.listeners.tracked_max.unwrap_or(usize::MAX);
        let tracked = &mut self.listeners.tracked;
        tracked.entry(key.clone()).or_default().insert(session.id);
        while tracked.len() > most {
            let Some(gone) = tracked.keys().find(|other| **other != key).cloned() else { break };
            tracked.remove(&gone);
        }
    }

    /// Tells of the keys that the last command of `by` has changed, and of those that have ended.
    pub fn tell_changes(&mut self, by: Option<u64>, wall: u64) {
        let now = (wall / MILLI) as i64;
        let changed: BTreeSet<&Key> = self.changes.iter().map(|change| &change.key).collect();
        let ended = std::mem::take(&mut self.listeners.ended);
        let messages = std::mem::take(&mut self.listeners.pushes);
        let is_gone = |key: &Key| {
            let entry = self.data.get(key);
            entry.and_then(|entry| entry.expires).is_some_and(|at| now > at)
        };
        let tracked = self.listeners.tracked.keys();
        let told: Vec<Key> = tracked
            .filter(|key| changed.contains(key) || is_gone(key) || ended.contains(key))
            .cloned()
            .collect();
        for key in told {
            // Nobody's command ends a key that is past its end.
            let by = by.filter(|_| changed.contains(&key) && !ended.contains(&key));
            let by = by.filter(|id| self.listeners.deaf_to_own.contains(id));
            let ids = self.listeners.tracked.remove(&key).unwrap_or_default();
            for id in ids.into_iter().filter(|id| Some(*id) != by && self.open.contains(id)) {
                let keys = Reply::Array(vec![text(&key.1)]);
                self.listeners.pushes.push((id, Reply::Push(vec![name("invalidate"), keys])));
            }
        }
        // What a script publishes comes behind what it changes.
        self.listeners.pushes.extend(messages);
    }

    /// All keys are gone.
    pub fn tell_flush(&mut self) {
        self.listeners.tracked.clear();
        for id in self.listeners.trackers.iter().filter(|id| self.open.contains(id)) {
            let push = Reply::Push(vec![name("invalidate"), Reply::Nil]);
            self.listeners.pushes.push((*id, push));
        }
    }

    /// When the first tracked key ends that has an end, by the wall clock in milliseconds.
    pub fn first_end(&self) -> Option<i64> {
        let tracked = self.listeners.tracked.keys();
        tracked.filter_map(|key| self.data.get(key)?.expires).min()
    }
}
