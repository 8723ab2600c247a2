//! The SQL for fencing tokens, in SQLite: what a database accepts and refuses, with locks of real
//! masters, and what is lost without each part of it.

#![cfg(test)]

use std::time::Duration;

use muxlock::testing::Masters;
use muxlock::{FencingToken, Redlock};
use rusqlite::Connection;
use testbed::{Folder, PATIENT, TTL, all_ready, patient};

/// As in `docs/guarantees.md`, word by word; each has the number first.
const TABLE: &str =
    "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT, fence BIGINT NOT NULL DEFAULT 0)";
const ENTER: &str = "UPDATE account SET fence = ?1 WHERE id = ?2 AND fence <= ?1";
const WRITE: &str = "UPDATE account SET balance = ?3, fence = ?1 WHERE id = ?2 AND fence <= ?1";
const UPSERT: &str = "INSERT INTO account (id, balance, fence) VALUES (?2, ?3, ?1) \
    ON CONFLICT (id) DO UPDATE SET balance = ?3, fence = ?1 WHERE account.fence <= ?1";
/// The controls: without the condition, and without the mark.
const UNCHECKED: &str = "UPDATE account SET balance = ?2 WHERE id = ?1";

const ID: i64 = 7;
const KEY: &str = "account:7";
/// The lock of a holder that is paused for longer.
const SHORT: Duration = Duration::from_millis(200);

/// One of several connections to one database, as several processes have them.
struct Account(Connection);

impl Account {
    /// Whether the holder of this number may go on (F22, F23).
    fn enter(&self, number: FencingToken) -> bool {
        self.0.execute(ENTER, (number.as_i64(), ID)).unwrap() == 1
    }

    fn write(&self, number: FencingToken, balance: i64) -> bool {
        self.0.execute(WRITE, (number.as_i64(), ID, balance)).unwrap() == 1
    }

    fn upsert(&self, number: FencingToken, balance: i64) -> bool {
        self.0.execute(UPSERT, (number.as_i64(), ID, balance)).unwrap() == 1
    }

    fn write_unchecked(&self, balance: i64) {
        assert_eq!(self.0.execute(UNCHECKED, (ID, balance)).unwrap(), 1);
    }

    fn balance(&self) -> i64 {
        self.number("SELECT balance FROM account WHERE id = ?1")
    }

    fn mark(&self) -> i64 {
        self.number("SELECT fence FROM account WHERE id = ?1")
    }

    fn number(&self, query: &str) -> i64 {
        self.0.query_row(query, [ID], |row| row.get(0)).unwrap()
    }
}

struct Scene {
    _masters: Masters,
    redlock: Redlock,
    folder: Folder,
}

impl Scene {
    fn start(test: &str) -> Scene {
        let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
        let redlock = all_ready(&patient(masters.urls()));
        let scene = Scene { redlock, _masters: masters, folder: Folder::create(test) };
        scene.open().0.execute(TABLE, ()).unwrap();
        scene
    }

    fn open(&self) -> Account {
        let connection = Connection::open(self.folder.0.join("database")).unwrap();
        connection.busy_timeout(PATIENT).unwrap();
        Account(connection)
    }

    /// The number of a lock that is given back.
    fn number(&self) -> FencingToken {
        let lock = self.redlock.fenced().try_lock_for(KEY, TTL, PATIENT).unwrap();
        let number = lock.fencing_token();
        assert!(lock.unlock().unwrap().was_held());
        number
    }
}

/// The page that users follow has exactly these statements.
#[test]
fn documented_statements_are_those_that_are_tested() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = words(include_str!("../../../docs/guarantees.md"));
    for statement in [TABLE, ENTER, WRITE, UPSERT] {
        assert!(page.contains(&words(statement)), "{statement}");
    }
}

/// F20, F23: a holder may write often; one with a smaller number may not.
#[test]
fn account_takes_what_is_not_below_its_mark() {
    let scene = Scene::start("account_takes_what_is_not_below_its_mark");
    let [account, other] = [scene.open(), scene.open()];
    let (older, newer) = (scene.number(), scene.number());
    assert!(!account.enter(older) && !account.write(older, 1), "there is no account");
    assert!(account.upsert(older, 100), "it is made");
    assert!(account.enter(older) && account.write(older, 90) && account.upsert(older, 80));
    assert_eq!((other.balance(), other.mark()), (80, older.as_i64()));
    assert!(other.write(newer, 70) && other.enter(newer) && other.upsert(newer, 60));
    assert!(!account.enter(older) && !account.write(older, 1) && !account.upsert(older, 1));
    assert_eq!((account.balance(), account.mark()), (60, newer.as_i64()));
    // The greatest number that there can be is exact.
    let last = FencingToken::try_from(8_999_999_999_999_999).unwrap();
    assert!(account.enter(last));
    assert_eq!(account.mark(), 8_999_999_999_999_999);
}

/// A holder does not notice that its lock is over, and another one writes.
#[test]
fn paused_holder_is_refused_and_without_the_check_harms() {
    let scene = Scene::start("paused_holder_is_refused_and_without_the_check_harms");
    let [paused, other] = [scene.open(), scene.open()];
    for is_checked in [true, false] {
        let fenced = scene.redlock.fenced();
        let older = fenced.try_lock_for(KEY, SHORT, PATIENT).unwrap();
        assert!(paused.upsert(older.fencing_token(), 100));
        let seen = paused.balance();
        // Here it is paused. The other one waits until its lock is over.
        let newer = fenced.try_lock_for(KEY, TTL, PATIENT).unwrap();
        assert!(other.enter(newer.fencing_token()));
        assert!(other.write(newer.fencing_token(), other.balance() + 5));
        let balance = seen - 10;
        if is_checked {
            assert!(!paused.write(older.fencing_token(), balance));
            assert_eq!(other.balance(), 105);
        } else {
            paused.write_unchecked(balance);
            assert_eq!(other.balance(), 90, "the control shows the harm: 5 are gone");
        }
        assert!(newer.unlock().unwrap().was_held());
    }
}

/// F22: a check at the write alone does not save what was read.
#[test]
fn holder_that_enters_before_it_reads_loses_nothing() {
    let scene = Scene::start("holder_that_enters_before_it_reads_loses_nothing");
    let [one, two] = [scene.open(), scene.open()];
    for enters in [true, false] {
        assert!(one.upsert(scene.number(), 100));
        let (older, newer) = (scene.number(), scene.number());
        assert!(!enters || two.enter(newer));
        let seen = two.balance();
        let is_withdrawn = one.write(older, one.balance() - 10);
        assert!(two.write(newer, seen + 5));
        assert_eq!(two.balance(), 105);
        // The control: the withdrawal of 10 was accepted, and is gone.
        assert_eq!(is_withdrawn, !enters);
    }
}
