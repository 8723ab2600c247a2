//! Series of consecutive grants: locks that one engine takes again and again, each soon after the
//! release of the one before (W13, K9).
//!
//! A client that sends its next command right behind its release comes before all others that wait.
//! So each series ends after a bounded number of locks, and the clients in the queue go first.

use std::time::Duration;

use crate::moment::Moment;
use crate::resource::Key;
use crate::token::LockToken;

/// The first series ends after so many locks; then each after twice as many, up to a maximum.
const GRANTS_FIRST: u32 = 4;
/// The most locks of a series of another kind.
const GRANTS_MAX: u32 = 8;
/// A lock that is taken again within this time after its release continues a series.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The most names whose grants are counted. A new name takes the place of the shortest series.
const NAMES_MAX: usize = 64;

/// The locks that were taken in a row, without a position on the masters.
#[derive(Default)]
pub(crate) struct ConsecutiveGrants {
    count: u32,
    /// Until when another lock continues the series.
    until: Option<Moment>,
    /// How many series have ended since other clients were last seen on the masters.
    ended: u32,
    /// How often others were looked for at one node.
    looks: u32,
}

impl ConsecutiveGrants {
    /// Returns how many looks there were before.
    pub(super) fn note_look(&mut self) -> usize {
        let before = self.looks;
        self.looks = before.wrapping_add(1);
        before as usize
    }

    #[inline]
    pub(super) fn note_got(&mut self, now: Moment) {
        self.count = if self.is_going_on(now) { self.count.saturating_add(1) } else { 1 };
    }

    #[inline]
    pub(super) fn note_given_up(&mut self, now: Moment) {
        self.until = Some(now.after(PAUSE_MAX));
    }

    #[inline]
    pub(super) fn is_going_on(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// The next lock begins a series.
    pub(super) fn forget_pause(&mut self) {
        self.until = None;
    }

    /// Other clients wait on the masters: the next series is as short as the first.
    pub(super) fn note_others(&mut self) {
        self.ended = 0;
    }

    /// Whether it is time to let others come first, in series of at most so many locks. Then a new
    /// series begins. An engine that knows of no others looks sooner.
    #[inline]
    pub(super) fn end_if_many(&mut self, most: u32) -> bool {
        if self.count < most.min(GRANTS_FIRST << self.ended.min(most)) {
            return false;
        }
        (self.count, self.ended) = (0, self.ended.saturating_add(1));
        true
    }
}

/// The series of locks of other kinds, by the first name that they lock.
#[derive(Default)]
pub(crate) struct GrantsByName {
    open: Vec<Named>,
}

struct Named {
    key: Key,
    /// The last lock of the series.
    last: LockToken,
    grants: ConsecutiveGrants,
}

impl GrantsByName {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn of(&mut self, key: &Key) -> Option<&mut Named> {
        let name = key.resource().names().next()?;
        self.open.iter_mut().find(|named| named.key.resource().as_bytes() == name)
    }

    /// A lock of another kind was taken, and is valid until then.
    pub(super) fn note_got(&mut self, now: Moment, key: &Key, got: (LockToken, Moment)) {
        let (token, until) = got;
        if self.of(key).is_none() {
            self.open.retain(|named| named.grants.is_going_on(now));
            let (key, grants) = (key.of_first_name(), ConsecutiveGrants::default());
            if self.open.len() >= NAMES_MAX {
                let lengths =
                    self.open.iter().map(|named| (named.grants.ended, named.grants.count));
                let shortest = lengths.enumerate().min_by_key(|(_, length)| *length);
                shortest.map(|(at, _)| at).map(|at| self.open.remove(at));
            }
            self.open.push(Named { key, last: token, grants });
        }
        if let Some(named) = self.of(key) {
            named.grants.note_got(now);
            // Others may be taken while it is held.
            named.grants.note_given_up(until);
            named.last = token;
        }
    }

    /// A lock is given up.
    pub(super) fn note_given_up(&mut self, now: Moment, token: LockToken) {
        if let Some(named) = self.open.iter_mut().find(|named| named.last == token) {
            named.grants.note_given_up(now);
        }
    }

    /// Whether the series for this lock is so long that others come first (W13); then, how many
    /// series have ended since others were seen, with this one.
    pub(super) fn end_if_many(&mut self, now: Moment, key: &Key) -> Option<u32> {
        let grants = &mut self.of(key)?.grants;
        (grants.is_going_on(now) && grants.end_if_many(GRANTS_MAX)).then_some(grants.ended)
    }

    /// Others wait for the lock: a series begins behind them.
    pub(super) fn note_others(&mut self, key: &Key) {
        if let Some(named) = self.of(key) {
            named.grants.note_others();
            named.grants.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resource;

    const KEPT: Moment = Moment::from_nanos(1);

    fn at(secs: u64) -> Moment {
        Moment::from_nanos(1 + secs * 1_000_000_000)
    }

    fn token(number: usize) -> LockToken {
        let mut random = [0; 20];
        random[..8].copy_from_slice(&(number as u64).to_le_bytes());
        LockToken::from_random(random)
    }

    fn named(name: &str) -> Key {
        Key::new(Resource::exclusive(name).unwrap(), b"")
    }

    /// How many locks each series has that is taken without a pause.
    fn lengths(grants: &mut GrantsByName, key: &Key, count: usize) -> Vec<usize> {
        let mut lengths = Vec::new();
        for _ in 0..count {
            let mut length = 0;
            while grants.end_if_many(KEPT, key).is_none() {
                grants.note_got(KEPT, key, (token(length), at(10)));
                grants.note_given_up(KEPT, token(length));
                length += 1;
            }
            lengths.push(length);
        }
        lengths
    }

    #[test]
    fn series_become_longer_while_no_others_wait() {
        let (mut grants, key) = (GrantsByName::default(), named("r"));
        assert_eq!(lengths(&mut grants, &key, 5), [4, 8, 8, 8, 8]);
        grants.note_others(&key);
        assert_eq!(lengths(&mut grants, &key, 2), [4, 8]);
    }

    #[test]
    fn lock_after_a_pause_begins_a_series() {
        let (mut grants, key) = (GrantsByName::default(), named("r"));
        for second in 0..20 {
            let now = at(2 * second);
            grants.note_got(now, &key, (token(0), now.after(PAUSE_MAX / 2)));
            grants.note_given_up(now, token(0));
            assert_eq!(grants.end_if_many(at(2 * second + 1), &key), None);
        }
        assert!(GrantsByName::default().is_empty() && !grants.is_empty());
    }

    #[test]
    fn many_names_do_not_displace_a_long_series() {
        let (mut grants, key) = (GrantsByName::default(), named("r"));
        for number in 0..3 * NAMES_MAX {
            grants.note_got(KEPT, &key, (token(0), at(10)));
            grants.note_got(KEPT, &named(&number.to_string()), (token(number), at(10)));
            assert!(grants.open.len() <= NAMES_MAX);
        }
        assert_eq!(grants.end_if_many(KEPT, &key), Some(1));
    }
}
