//! Rows: locks that one engine takes again and again, each soon after the release of the one
//! before (W13, K9).
//!
//! A client that sends its next command right behind its release comes before all others that wait.
//! So each row ends after a bounded number of locks, and the clients in the queue go first.

use std::time::Duration;

use crate::moment::Moment;
use crate::resource::Key;
use crate::token::LockToken;

/// The first row ends after so many locks; then each after twice as many, up to a maximum.
const ROW_FIRST: u32 = 4;
/// The most locks of a row of another kind.
const ROW_MAX: u32 = 8;
/// A lock that is taken again within this time after its release continues a row.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The most names whose rows are counted. A new name takes the place of the shortest row.
const ROWS_MAX: usize = 64;

/// The locks that were taken in a row, without a place on the masters.
#[derive(Default)]
pub(crate) struct Row {
    locks: u32,
    /// Until when another lock continues the row.
    until: Option<Moment>,
    /// How many rows have ended since other clients were last seen on the masters.
    alone: u32,
    /// How often others were looked for at one node.
    looks: u32,
}

impl Row {
    /// Returns how many looks there were before.
    pub(super) fn note_look(&mut self) -> usize {
        let before = self.looks;
        self.looks = before.wrapping_add(1);
        before as usize
    }

    #[inline]
    pub(super) fn note_got(&mut self, now: Moment) {
        self.locks = if self.is_going_on(now) { self.locks.saturating_add(1) } else { 1 };
    }

    #[inline]
    pub(super) fn note_given_up(&mut self, now: Moment) {
        self.until = Some(now.after(PAUSE_MAX));
    }

    #[inline]
    pub(super) fn is_going_on(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// The next lock begins a row.
    pub(super) fn forget_pause(&mut self) {
        self.until = None;
    }

    /// Other clients wait on the masters: the next row is as short as the first.
    pub(super) fn note_others(&mut self) {
        self.alone = 0;
    }

    /// Whether it is time to let others come first, in rows of at most so many locks. Then a new
    /// row begins. An engine that knows of no others looks sooner.
    #[inline]
    pub(super) fn end_if_long(&mut self, most: u32) -> bool {
        if self.locks < most.min(ROW_FIRST << self.alone.min(most)) {
            return false;
        }
        (self.locks, self.alone) = (0, self.alone.saturating_add(1));
        true
    }
}

/// The rows of locks of other kinds, by the first name that they lock.
#[derive(Default)]
pub(crate) struct Rows {
    open: Vec<Named>,
}

struct Named {
    key: Key,
    /// The last lock of the row.
    last: LockToken,
    row: Row,
}

impl Rows {
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
            self.open.retain(|named| named.row.is_going_on(now));
            let named = Some(key.of_first_name());
            let named = named.map(|key| Named { key, last: token, row: Row::default() });
            if self.open.len() >= ROWS_MAX {
                let length = |at: &usize| (self.open[*at].row.alone, self.open[*at].row.locks);
                (0..ROWS_MAX).min_by_key(length).map(|shortest| self.open.remove(shortest));
            }
            self.open.extend(named);
        }
        if let Some(named) = self.of(key) {
            named.row.note_got(now);
            // Others may be taken while it is held.
            named.row.note_given_up(until);
            named.last = token;
        }
    }

    /// A lock is given up.
    pub(super) fn note_given_up(&mut self, now: Moment, token: LockToken) {
        if let Some(named) = self.open.iter_mut().find(|named| named.last == token) {
            named.row.note_given_up(now);
        }
    }

    /// Whether the row for this lock is so long that others come first (W13); then, how many rows
    /// have ended since others were seen, with this one.
    pub(super) fn end_if_long(&mut self, now: Moment, key: &Key) -> Option<u32> {
        let row = &mut self.of(key)?.row;
        (row.is_going_on(now) && row.end_if_long(ROW_MAX)).then_some(row.alone)
    }

    /// Others wait for the lock: a row begins behind them.
    pub(super) fn note_others(&mut self, key: &Key) {
        if let Some(named) = self.of(key) {
            named.row.note_others();
            named.row.locks = 0;
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

    /// How many locks each row has that is taken without a pause.
    fn lengths(rows: &mut Rows, key: &Key, count: usize) -> Vec<usize> {
        let mut lengths = Vec::new();
        for _ in 0..count {
            let mut length = 0;
            while rows.end_if_long(KEPT, key).is_none() {
                rows.note_got(KEPT, key, (token(length), at(10)));
                rows.note_given_up(KEPT, token(length));
                length += 1;
            }
            lengths.push(length);
        }
        lengths
    }

    #[test]
    fn rows_become_longer_while_no_others_wait() {
        let (mut rows, key) = (Rows::default(), named("r"));
        assert_eq!(lengths(&mut rows, &key, 5), [4, 8, 8, 8, 8]);
        rows.note_others(&key);
        assert_eq!(lengths(&mut rows, &key, 2), [4, 8]);
    }

    #[test]
    fn lock_after_a_pause_begins_a_row() {
        let (mut rows, key) = (Rows::default(), named("r"));
        for second in 0..20 {
            let now = at(2 * second);
            rows.note_got(now, &key, (token(0), now.after(PAUSE_MAX / 2)));
            rows.note_given_up(now, token(0));
            assert_eq!(rows.end_if_long(at(2 * second + 1), &key), None);
        }
        assert!(Rows::default().is_empty() && !rows.is_empty());
    }

    #[test]
    fn many_names_do_not_displace_a_long_row() {
        let (mut rows, key) = (Rows::default(), named("r"));
        for number in 0..3 * ROWS_MAX {
            rows.note_got(KEPT, &key, (token(0), at(10)));
            rows.note_got(KEPT, &named(&number.to_string()), (token(number), at(10)));
            assert!(rows.open.len() <= ROWS_MAX);
        }
        assert_eq!(rows.end_if_long(KEPT, &key), Some(1));
    }
}
