//! The locks that the keys of all masters make up.

use std::collections::BTreeMap;
use std::time::Duration;

use muxlock::limits::{RESOURCE_BYTES_MAX, SLOTS_MAX};
use muxlock::quorum;

use super::master::{Ends, Holder, Key};
use crate::holder::{Answers as Named, Client, READERS_MAX, Tag};
use crate::queue;

/// The suffix of the key beside one with an owner value.
const COMPANION: &[u8] = b":as";

/// A lock, or keys that look like one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// The resource, without the key prefix.
    pub name: Vec<u8>,
    pub kind: Kind,
    pub state: State,
    /// If the keys have one.
    pub holder: Option<Holder>,
    /// The read locks that a quorum of masters has.
    pub readers: u64,
    /// The time until a quorum is free of the key; `None` without a TTL.
    pub left: Option<Duration>,
    /// How many masters have it.
    pub on: usize,
    /// The most waiting clients in a queue on one master.
    pub waiting: u64,
    /// The client of the holder, or those of read locks, as far as masters list them.
    pub clients: Vec<Client>,
    /// The owner value and the first client, in a few words.
    pub client_words: String,
    /// The owner value, if it has one.
    pub value: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Lock,
    Permit,
    Owner,
    Read,
    /// A value that may be of another client library, or other data.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A quorum of masters has the same holder, or read locks.
    Held,
    /// A quorum of masters has the value of `muxlock revoke`.
    Revoked,
    /// A quorum of masters has keys, of several holders.
    Split,
    /// Less than a quorum of masters has a key.
    Leftover,
}

/// The permits of a semaphore that are held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Semaphore {
    pub name: Vec<u8>,
    pub permits: Vec<Lock>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Lock(Lock),
    Semaphore(Semaphore),
}

/// The answer of each master about each key; `None` if it is missing.
pub type Answers = [Option<Vec<Option<Key>>>];

/// The locks of all masters.
#[derive(Debug, Default)]
pub struct Locks {
    pub locks: Vec<Lock>,
    /// How many others can be held, on masters whose answer is missing.
    pub perhaps: usize,
    /// How many keys have answers of too few masters.
    pub unknown: usize,
}

/// Which keys are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those of locks that are held.
    Held,
    /// All that are or were locks, or might be.
    All,
}

/// Judges the keys, which are sorted and have the key prefix.
pub fn locks(
    keys: &[Vec<u8>],
    prefix_bytes: usize,
    answers: &Answers,
    now: Duration,
    which: Which,
) -> Locks {
    let mut locks = Locks::default();
    let look = Look { keys, answers, now };
    for at in 0..keys.len() {
        if look.answered(at) < quorum(answers.len()) {
            locks.unknown += 1;
            continue;
        }
        let Some(lock) = look.lock(at, prefix_bytes) else { continue };
        let is_held = matches!(lock.state, State::Held | State::Revoked);
        let unanswered = answers.len() - look.answered(at);
        if !is_held && lock.on + unanswered >= quorum(answers.len()) && unanswered > 0 {
            locks.perhaps += usize::from(lock.kind != Kind::Other);
        }
        if which == Which::All || is_held && lock.kind != Kind::Other {
            locks.locks.push(lock);
        }
    }
    locks
}

struct Look<'a> {
    keys: &'a [Vec<u8>],
    answers: &'a Answers,
    now: Duration,
}

impl Look<'_> {
    /// The answers about a key.
    fn of(&self, at: usize) -> impl Iterator<Item = &Key> {
        self.answers.iter().filter_map(move |answers| answers.as_ref()?[at].as_ref())
    }

    fn answered(&self, at: usize) -> usize {
        self.of(at).count()
    }

    /// The answers about the key whose name has this suffix.
    fn beside(&self, at: usize, suffix: &[u8]) -> impl Iterator<Item = &Key> {
        let key = [&self.keys[at], suffix].concat();
        let at = self.keys.binary_search(&key).ok();
        at.into_iter().flat_map(|at| self.of(at))
    }

    fn is_over(&self, ends: Ends) -> bool {
        ends.is_some_and(|ends| ends <= self.now)
    }

    fn lock(&self, at: usize, prefix_bytes: usize) -> Option<Lock> {
        let quorum = quorum(self.answers.len());
        let is_owned = self.beside(at, COMPANION).any(|key| *key == Key::Companion);
        // The end of each key that counts, and its holder, if it has one.
        let mut found: Vec<(Ends, Option<&Holder>)> = Vec::new();
        let (mut readers, mut tokens, mut revoked) = (Vec::new(), 0, 0);
        for key in self.of(at) {
            let (ends, holder) = match key {
                Key::Token { holder, ends } => (*ends, Some(holder)),
                Key::Revoked { holder, ends } => (*ends, Some(holder)),
                // Without an end, it is other data.
                Key::Value { holder, ends: Some(ends) } => (Some(*ends), Some(holder)),
                Key::ReadLocks { count: 1.., ends: Some(ends) } => (Some(*ends), None),
                _ => continue,
            };
            if self.is_over(ends) {
                continue;
            }
            found.push((ends, holder));
            match key {
                Key::Token { .. } => tokens += 1,
                Key::Revoked { .. } => revoked += 1,
                Key::ReadLocks { count, .. } => readers.push(*count),
                _ => {}
            }
        }
        let name = &self.keys[at][prefix_bytes..];
        if found.is_empty() || name.len() > RESOURCE_BYTES_MAX {
            return None;
        }
        let with = |holder: &Holder| found.iter().filter(|it| it.1 == Some(holder)).count();
        let holder = found.iter().filter_map(|it| it.1).max_by_key(|holder| with(holder));
        let (on, holder) = match holder.map(|holder| (with(holder), holder)) {
            Some((on, holder)) if on >= readers.len() => (on, Some(holder)),
            _ => (readers.len(), None),
        };
        readers.sort_unstable_by(|a, b| b.cmp(a));
        let state = match on >= quorum {
            true if revoked >= quorum => State::Revoked,
            true => State::Held,
            false if found.len() >= quorum => State::Split,
            false => State::Leftover,
        };
        Some(Lock {
            kind: match holder {
                None => Kind::Read,
                Some(_) if is_owned => Kind::Owner,
                Some(_) if tokens + revoked == 0 => Kind::Other,
                Some(_) if permit(name).is_some() => Kind::Permit,
                Some(_) => Kind::Lock,
            },
            readers: match holder {
                None => readers[on.min(quorum) - 1],
                Some(_) => 0,
            },
            // Several have it.
            holder: holder.filter(|_| state != State::Split).cloned(),
            left: self.left(state, self.answered(at), found.iter().map(|it| it.0).collect()),
            on: if state == State::Split { found.len() } else { on },
            waiting: self.waiting(at),
            clients: Vec::new(),
            client_words: String::new(),
            value: None,
            name: name.to_vec(),
            state,
        })
    }

    /// The time until a quorum is free; for a leftover, until all keys are gone.
    fn left(&self, state: State, answered: usize, ends: Vec<Ends>) -> Option<Duration> {
        let quorum = quorum(self.answers.len());
        let mut free = vec![Duration::ZERO; answered - ends.len()];
        free.extend(ends.iter().flatten().map(|ends| ends.saturating_sub(self.now)));
        free.sort_unstable();
        match state {
            State::Leftover if ends.iter().any(Option::is_none) => None,
            State::Leftover => free.last().copied(),
            _ => free.get(quorum - 1).copied(),
        }
    }

    fn waiting(&self, at: usize) -> u64 {
        let length = |key: &Key| match key {
            Key::Queue(length) => *length,
            _ => 0,
        };
        self.beside(at, queue::TAIL).map(length).max().unwrap_or(0)
    }
}

/// What a semaphore's name is followed by in the name of its first permit, but for the number.
pub const PERMIT: &[u8] = b"{permit}:";

/// The name of a semaphore and the number of the permit, if it is the name of a permit.
pub fn permit(name: &[u8]) -> Option<(&[u8], u32)> {
    let colon = name.iter().rposition(|byte| *byte == b':')?;
    let semaphore = name[..=colon].strip_suffix(PERMIT).filter(|name| !name.is_empty())?;
    let digits = std::str::from_utf8(&name[colon + 1..]).ok()?;
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits && number < SLOTS_MAX).then_some((semaphore, number))
}

/// The locks and semaphores by name. Permits stay apart if the names that were asked for begin with
/// more than the semaphore's.
pub fn items(locks: Vec<Lock>, prefix: &[u8]) -> Vec<Item> {
    // A lock can have the name of a semaphore.
    let mut items: BTreeMap<(Vec<u8>, bool), Item> = BTreeMap::new();
    for lock in locks {
        let permit =
            permit(&lock.name).filter(|(name, _)| prefix.len() <= name.len() + PERMIT.len());
        let Some((name, _)) = permit.filter(|_| lock.kind == Kind::Permit) else {
            items.insert((lock.name.clone(), false), Item::Lock(lock));
            continue;
        };
        let name = name.to_vec();
        let none = Semaphore { name: name.clone(), permits: Vec::new() };
        let item = items.entry((name, true)).or_insert(Item::Semaphore(none));
        if let Item::Semaphore(semaphore) = item {
            semaphore.permits.push(lock);
        }
    }
    let mut items: Vec<Item> = items.into_values().collect();
    for item in &mut items {
        if let Item::Semaphore(semaphore) = item {
            semaphore.permits.sort_by_key(|lock| permit(&lock.name).map(|(_, number)| number));
        }
    }
    items
}

impl Lock {
    /// Whether a client has it that masters can name.
    pub fn has_client(&self) -> bool {
        let is_held = matches!(self.state, State::Held | State::Leftover);
        is_held && self.kind != Kind::Other
    }

    /// Whether another question is needed to find the client, because the value has no tag.
    pub fn is_untagged(&self) -> bool {
        matches!(self.kind, Kind::Owner | Kind::Read)
    }

    /// The age of its oldest client: it is at most as old.
    pub fn age(&self) -> Option<Duration> {
        self.clients.iter().filter_map(|client| client.age).max()
    }

    /// Takes its clients from the answers, in which an untagged lock has this number.
    pub fn name_clients(&mut self, named: &Named, number: usize) {
        let mut tags: Vec<Option<Tag>> = match (self.kind, &self.holder) {
            (Kind::Read, _) => named.readers(number),
            (Kind::Owner, Some(holder)) => {
                // Without a tag, the right to read it is missing, or the lock has changed hands.
                let found = named.holder(number, holder.fingerprint);
                let tag = found.as_ref().and_then(|it| it.tag);
                self.value = found.and_then(|it| it.value);
                tag.map(Some).into_iter().collect()
            }
            (_, Some(holder)) => vec![holder.tag],
            (_, None) => Vec::new(),
        };
        tags.sort_by_key(|tag| tag.and_then(|tag| named.clients.get(tag)).is_none());
        let words = tags.first().and_then(|tag| named.short(*tag)).unwrap_or_default();
        let more = match tags.len() {
            _ if words.is_empty() => String::new(),
            0 | 1 => String::new(),
            READERS_MAX => " and others".to_owned(),
            count => format!(" and {} more", count - 1),
        };
        let value = self.value.as_ref().map(|value| format!("value \"{value}\""));
        let client = (!words.is_empty()).then(|| format!("{words}{more}"));
        self.client_words = value.into_iter().chain(client).collect::<Vec<_>>().join(", ");
        let clients = tags.into_iter().filter_map(|tag| named.clients.get(tag?));
        self.clients = clients.cloned().collect();
    }
}

impl Item {
    /// The lock, or the permits.
    pub fn locks_mut(&mut self) -> &mut [Lock] {
        match self {
            Item::Lock(lock) => std::slice::from_mut(lock),
            Item::Semaphore(semaphore) => &mut semaphore.permits,
        }
    }

    /// How many clients wait for it.
    pub fn waiting(&self) -> u64 {
        match self {
            Item::Lock(lock) => lock.waiting,
            Item::Semaphore(semaphore) => semaphore.permits.iter().map(|it| it.waiting).sum(),
        }
    }
}

impl Semaphore {
    /// How many permits are held.
    pub fn taken(&self) -> usize {
        let is_held = |permit: &&Lock| matches!(permit.state, State::Held | State::Revoked);
        self.permits.iter().filter(is_held).count()
    }

    /// The time until one more permit is free.
    pub fn left(&self) -> Option<Duration> {
        self.permits.iter().filter_map(|permit| permit.left).min()
    }
}

#[cfg(test)]
mod tests {
    use muxlock::Fingerprint;

    use super::*;

    fn token(name: &str, ends: u64) -> Option<Key> {
        let holder = Holder { fingerprint: Fingerprint::new(name.as_bytes()), tag: None };
        Some(Key::Token { holder, ends: Some(Duration::from_secs(ends)) })
    }

    fn readers(count: u64) -> Option<Key> {
        Some(Key::ReadLocks { count, ends: Some(Duration::from_secs(9)) })
    }

    /// The state, the masters, the seconds that are left, and the readers.
    type Judged = Option<(State, usize, Option<u64>, u64)>;

    #[test]
    fn keys_of_a_majority_are_a_lock() {
        let none = || Some(Key::None);
        let a = || token("aaaaaaaa", 8);
        let endless = || match token("aaaaaaaa", 0) {
            Some(Key::Token { holder, .. }) => Some(Key::Token { holder, ends: None }),
            other => other,
        };
        let held = |on, left| Some((State::Held, on, left, 0));
        let table: [([Option<Key>; 3], Judged); 14] = [
            ([a(), a(), a()], held(3, Some(6))),
            ([a(), token("aaaaaaaa", 5), none()], held(2, Some(3))),
            // One master more could be free sooner than the later of two keys.
            ([a(), token("aaaaaaaa", 5), None], held(2, Some(6))),
            ([a(), a(), token("bbbbbbbb", 30)], held(2, Some(6))),
            ([endless(), endless(), none()], held(2, None)),
            ([endless(), a(), none()], held(2, Some(6))),
            ([a(), none(), none()], Some((State::Leftover, 1, Some(6), 0))),
            ([a(), None, none()], Some((State::Leftover, 1, Some(6), 0))),
            ([a(), token("bbbbbbbb", 9), none()], Some((State::Split, 2, Some(6), 0))),
            // A key that is over, by the time of the output.
            ([a(), token("aaaaaaaa", 2), none()], Some((State::Leftover, 1, Some(6), 0))),
            ([token("aaaaaaaa", 2), none(), none()], None),
            ([readers(1), readers(3), readers(2)], Some((State::Held, 3, Some(7), 2))),
            ([readers(1), readers(0), none()], Some((State::Leftover, 1, Some(7), 1))),
            ([readers(0), Some(Key::Queue(2)), Some(Key::Companion)], None),
        ];
        for (keys, expected) in table {
            let text = format!("{keys:?}");
            let answers: Vec<_> = keys.map(|key| Some(vec![key])).into();
            let now = Duration::from_secs(2);
            let found = locks(&[b"r".to_vec()], 0, &answers, now, Which::All);
            let seen = found.locks.first();
            let seen = seen.map(|it| (it.state, it.on, it.left.map(|it| it.as_secs()), it.readers));
            assert_eq!(seen, expected, "{text}");
        }
        let answers = [Some(vec![a()]), Some(vec![None]), None];
        let found = locks(&[b"r".to_vec()], 0, &answers, Duration::ZERO, Which::All);
        assert_eq!((found.locks.len(), found.unknown), (0, 1));
    }

    #[test]
    fn lock_that_masters_without_an_answer_might_have_is_counted() {
        let count = |answers: &Answers, which| {
            let found = locks(&[b"r".to_vec()], 0, answers, Duration::ZERO, which);
            (found.locks.len(), found.perhaps)
        };
        let one = || Some(vec![token("aaaaaaaa", 8)]);
        let none = || Some(vec![Some(Key::None)]);
        assert_eq!(count(&[one(), none(), None], Which::Held), (0, 1));
        assert_eq!(count(&[one(), none(), None], Which::All), (1, 1));
        assert_eq!(count(&[one(), none(), none()], Which::Held), (0, 0));
        assert_eq!(count(&[one(), one(), None], Which::Held), (1, 0));
        assert_eq!(count(&[none(), none(), None], Which::Held), (0, 0));
    }

    #[test]
    fn names_of_permits_are_recognised() {
        type Permit = Option<(&'static [u8], u32)>;
        let table: [(&[u8], Permit); 9] = [
            (b"smtp{permit}:0", Some((b"smtp", 0))),
            (b"a{permit}:1{permit}:49", Some((b"a{permit}:1", 49))),
            (b"\xff{permit}:0", Some((b"\xff", 0))),
            (b"smtp{permit}:50", None),
            (b"smtp{permit}:+1", None),
            (b"smtp{permit}:00", None),
            (b"smtp{5}:0", None),
            (b"{permit}:0", None),
            (b"smtp:0", None),
        ];
        for (name, expected) in table {
            assert_eq!(permit(name), expected, "{}", name.escape_ascii());
        }
    }
}
