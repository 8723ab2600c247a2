//! A machine with a Redis process on it: it freezes, crashes, forgets, and comes back.

use super::clock::{Clock, MILLI};
use super::network::Trust;
use super::redis::{Data, Entry, Key, Redis, Value};
use super::server::Server;

/// What a process finds on its disk when it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// All that was ever answered.
    Everything,
    /// Nothing.
    Nothing,
    /// What was there when it was last saved.
    Snapshot,
    /// All but what was set in the last so many nanoseconds.
    AllButLast(u64),
}

/// What a machine answers to who wants to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Open,
    Refusing,
    /// Nothing comes back.
    Silent,
}

/// A key that the server has forgotten too early.
#[derive(Debug, Clone)]
pub struct Forgotten {
    key: Key,
    value: Value,
    /// In true time.
    until: u64,
    cause: Cause,
    /// Whether the server's clock was set forward since: what it says of its age is not true.
    is_masked: bool,
    /// The connections that were told.
    told: Vec<usize>,
}

/// Why a key was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// What a client is told when it next connects, or with its SET.
    Lost,
    /// A replica that was a master took over another one's data; it has been a replica since then,
    /// in true time.
    Resynced(u64),
    /// The wall clock was set forward: what was seen of it before says so.
    Stepped,
    /// It evicted the key, at this time.
    Evicted(u64),
    /// It was flushed. Those that look at the age of a marker see it, and those that were told.
    Flushed,
}

/// Who asks a node for a vote.
#[derive(Clone, Copy)]
pub struct Who {
    pub connection: usize,
    /// When it was told the role on it.
    pub role_told_at: u64,
    /// When it was first told, and last, how many keys were evicted.
    pub evictions_told_at: Option<(u64, u64)>,
    /// Whether it looks at the age of the marker.
    pub is_marking: bool,
}

/// A node.
pub struct Node {
    pub clock: Clock,
    /// For how long a lock may be held after it was taken or extended.
    ttl_max: u64,
    pub redis: Redis,
    pub is_up: bool,
    /// In true time; it runs again from this moment on.
    pub frozen_until: u64,
    pub door: Door,
    pub door_until: u64,
    /// Counts its processes.
    pub incarnation: u64,
    /// Connections that its kernel has, in the order in which they came.
    pub connections: Vec<usize>,
    pub next_session: u64,
    pub turn_at: Option<u64>,
    /// When it next tells of watched keys that have ended.
    pub ends_at: Option<u64>,
    pub forgotten: Vec<Forgotten>,
    /// Whether it ever forgot a lock that may have been held.
    pub was_forgetful: bool,
    /// Whether its next reply is followed by what no client should accept.
    pub is_poisonous: bool,
    /// Whether the next process will claim to be older than it is.
    pub lies: bool,
    pub refuses_until: u64,
    pub replica_until: u64,
    /// When it last became a replica, in true time.
    demoted_at: u64,
    /// When its process became the master that it is, in true time, if it may lack locks since
    /// then and says so.
    pub promoted_at: Option<u64>,
    /// Whether the next process starts from the file of a master that had a replica.
    pub had_replica: bool,
    pub loading_until: u64,
    /// When Sentinels elected this server, in true time, if they did.
    pub elected_at: Option<u64>,
    pub elections: u64,
    saved: Data,
}

impl Node {
    pub fn new(clock: Clock, server: Server, ttl_max: u64) -> Node {
        Node {
            clock,
            ttl_max,
            redis: Redis::new(server, Data::new()),
            is_up: true,
            frozen_until: 0,
            door: Door::Open,
            door_until: 0,
            incarnation: 0,
            connections: Vec::new(),
            next_session: 1,
            turn_at: None,
            ends_at: None,
            forgotten: Vec::new(),
            was_forgetful: false,
            is_poisonous: false,
            lies: false,
            refuses_until: 0,
            replica_until: 0,
            demoted_at: 0,
            promoted_at: None,
            had_replica: false,
            loading_until: 0,
            elected_at: None,
            elections: 0,
            saved: Data::new(),
        }
    }

    pub fn is_running(&self, now: u64) -> bool {
        self.is_up && now >= self.frozen_until
    }

    pub fn wall(&self, now: u64) -> u64 {
        self.clock.read(now)
    }

    /// Saves all there is, for [`Memory::Snapshot`].
    pub fn save(&mut self) {
        self.saved = self.redis.data.clone();
    }

    /// What it last saved.
    pub fn saved(&self) -> Data {
        self.saved.clone()
    }

    /// Ends the process; what the next one will find is decided now. Returns whether a lock was
    /// forgotten that may be held.
    pub fn crash(&mut self, now: u64, memory: Memory) -> bool {
        let wall = self.wall(now);
        let kept = match memory {
            Memory::Everything => self.redis.data.clone(),
            Memory::Nothing => Data::new(),
            Memory::Snapshot => self.saved.clone(),
            Memory::AllButLast(time) => {
                let since = wall.saturating_sub(time);
                let is_kept = |(_, entry): &(&Key, &Entry)| entry.written < since;
                let kept = self.redis.data.iter().filter(is_kept);
                kept.map(|(key, entry)| (key.clone(), entry.clone())).collect()
            }
        };
        self.is_up = false;
        self.replace(now, kept, Cause::Lost, Vec::new())
    }

    /// Sets the wall clock forward: keys end early, and the process seems older than it is.
    pub fn step_forward(&mut self, now: u64, length: u64, ttl_max: u64) {
        self.forgotten.iter_mut().for_each(|forgotten| forgotten.is_masked = true);
        // What it says of its time is not true.
        self.promoted_at = None;
        for (key, entry) in &self.redis.data {
            let expires = entry.expires.and_then(|at| u64::try_from(at).ok());
            // Nobody believes in it for longer, even if the clock was set back before.
            let until = expires.map(|at| self.clock.when((at + 1) * MILLI).min(now + ttl_max));
            if let Some(until) = until.filter(|until| *until > now) {
                let (key, value, cause) = (key.clone(), entry.value.clone(), Cause::Stepped);
                let (is_masked, told) = (false, Vec::new());
                self.forgotten.push(Forgotten { key, value, until, cause, is_masked, told });
            }
        }
        self.clock.step(now, length as i64);
    }

    /// Becomes a replica, which may lose its own data to its master's.
    pub fn demote(&mut self, now: u64, is_writable: bool, until: u64) {
        if !self.redis.server.is_replica {
            self.demoted_at = now;
        }
        (self.redis.server.is_replica, self.redis.server.is_writable) = (true, is_writable);
        self.replica_until = until;
    }

    /// Puts other data in the place of what is there, and notes what is missing then.
    pub fn replace(&mut self, now: u64, data: Data, cause: Cause, told: Vec<usize>) -> bool {
        let old = std::mem::replace(&mut self.redis.data, data);
        self.forgotten.retain(|forgotten| forgotten.until > now);
        let before = self.forgotten.len();
        for (key, entry) in old {
            let kept = self.redis.data.get(&key);
            let is_kept =
                kept.is_some_and(|kept| kept.value == entry.value && kept.expires >= entry.expires);
            if let (false, Some(until)) = (is_kept, self.believed_until(now, &entry)) {
                if until > now {
                    let (value, is_masked, told) = (entry.value, false, told.clone());
                    self.forgotten.push(Forgotten { key, value, until, cause, is_masked, told });
                }
            }
        }
        self.was_forgetful |= self.forgotten.len() > before;
        self.forgotten.len() > before
    }

    /// Until when somebody may believe that this entry locks, in true time.
    fn believed_until(&self, now: u64, entry: &Entry) -> Option<u64> {
        let expires = u64::try_from(entry.expires?).ok()? * MILLI;
        let ttl = expires.saturating_sub(entry.extended);
        // Who owns it takes off the drift; one percent, as everywhere here. A clock that was set
        // back in the meantime keeps the key for longer than anybody believes in it, and so does
        // one that is behind that of the server which the key was copied from.
        let drift = ttl / 100 + 2 * MILLI;
        let longest = ttl.saturating_sub(drift).min(self.ttl_max);
        Some(self.clock.when(expires - drift).min(now + longest))
    }

    /// Whether the key holds this token.
    pub fn has(&self, key: &Key, token: &[u8]) -> bool {
        let entry = self.redis.data.get(key);
        entry.is_some_and(|entry| holds(&entry.value, token)) || self.owns(key, token).is_some()
    }

    /// The key with a caller's value, if this token stands beside it, and both end together.
    fn owns(&self, key: &Key, token: &[u8]) -> Option<&Entry> {
        let entry = self.redis.data.get(key);
        let entry = entry.filter(|entry| matches!(entry.value, Value::Text(_)))?;
        let companion = self.redis.data.get(&companion(key))?;
        let is_its = companion_token(&companion.value) == Some(token);
        (is_its && entry.expires == companion.expires).then_some(entry)
    }

    /// Whether a lock on this key may be held that the process does not know of, asked by somebody
    /// with this token on this connection, who was told the role at `role_told_at`.
    pub fn memory(&self, now: u64, key: &Key, token: &[u8], who: Who) -> Trust {
        let Who { connection, role_told_at, evictions_told_at, is_marking } = who;
        // Whoever was told so waits for each lock that it may lack, lost or not.
        let is_new = |at: u64| role_told_at >= at && now < at + self.ttl_max;
        if self.promoted_at.is_some_and(is_new) {
            return Trust::No;
        }
        let is_of = |other: &Key| other == key || *other == companion(key);
        let forgotten = self.forgotten.iter().filter(|it| is_of(&it.key) && now < it.until);
        let trust = |it: &Forgotten| match it.cause {
            _ if it.told.contains(&connection) => Trust::No,
            Cause::Flushed if is_marking => Trust::No,
            Cause::Evicted(at) => match evictions_told_at {
                Some((first, last)) if first < at && at < last => Trust::No,
                _ => Trust::Blind,
            },
            Cause::Lost if it.is_masked => Trust::Blind,
            Cause::Lost => Trust::No,
            Cause::Resynced(since) if role_told_at >= since => Trust::No,
            // Who extends has it again.
            Cause::Stepped if holds(&it.value, token) => Trust::Full,
            Cause::Resynced(_) | Cause::Stepped | Cause::Flushed => Trust::Blind,
        };
        forgotten.map(trust).max().unwrap_or(Trust::Full)
    }

    /// When it last became a replica, in true time.
    pub fn demoted_at(&self) -> u64 {
        self.demoted_at
    }

    /// Whether it may vote as a master, to somebody who was told its role at `role_told_at`.
    pub fn role(&self, role_told_at: u64) -> Trust {
        match self.redis.server.is_replica {
            false => Trust::Full,
            true if role_told_at >= self.demoted_at => Trust::No,
            true => Trust::Blind,
        }
    }

    /// When the key is gone, in true time, if it holds this text.
    pub fn held_until(&self, key: &Key, text: &[u8]) -> Option<u64> {
        let entry = self.redis.data.get(key)?;
        let until = match &entry.value {
            Value::Text(_) if self.owns(key, text).is_some() => entry.expires,
            Value::Text(value) => entry.expires.filter(|_| value == text),
            Value::Sorted(members) => members.get(text).copied(),
            Value::Hash(_) | Value::List(_) => None,
        };
        let expires = u64::try_from(until?).ok()?;
        Some(self.clock.when((expires + 1) * MILLI))
    }

    /// Starts a process with what the last one left.
    pub fn restart(&mut self, server: Server) {
        let data = std::mem::take(&mut self.redis.data);
        self.redis = Redis::new(server, data);
        self.is_up = true;
        self.frozen_until = 0;
        self.incarnation += 1;
        self.next_session = 1;
        self.connections.clear();
    }
}

/// The key that stands beside one with a caller's value.
pub fn companion(key: &Key) -> Key {
    (key.0, [&key.1[..], b":as"].concat())
}

/// The token in such a key.
pub fn companion_token(value: &Value) -> Option<&[u8]> {
    match value {
        Value::Hash(fields) => fields.get(&b"muxlock"[..]).map(Vec::as_slice),
        _ => None,
    }
}

/// Whether it is this owner's, alone or with others.
fn holds(value: &Value, token: &[u8]) -> bool {
    match value {
        Value::Text(text) => text == token,
        Value::Sorted(members) => members.contains_key(token),
        Value::Hash(_) | Value::List(_) => false,
    }
}
