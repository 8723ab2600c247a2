//! The SQL for fencing tokens, in SQLite: what a database accepts and refuses, with locks of real
//! masters, and what is lost without each part of it.

#![cfg(test)]

use std::env;
use std::io::{self, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use muxlock::testing::Masters;
use muxlock::{FencingToken, Redlock};
use rusqlite::Connection;
use testbed::{
    Again, Folder, PATIENT, TTL, all_ready, is_child, patient, re_execute, report_to_parent,
};

const TABLE: &str = "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT)";
/// As in `docs/fencing.md`, word by word; each has the token first.
const COLUMN: &str = "ALTER TABLE account ADD COLUMN fence BIGINT NOT NULL DEFAULT 0";
const ENTER: &str = "UPDATE account SET fence = ?1 WHERE id = ?2 AND fence <= ?1";
const WRITE: &str = "UPDATE account SET balance = ?3, fence = ?1 WHERE id = ?2 AND fence <= ?1";
const ENTER_NEW: &str = "INSERT INTO account (id, fence) VALUES (?2, ?1) \
    ON CONFLICT (id) DO UPDATE SET fence = ?1 WHERE account.fence <= ?1";
/// The controls: without the condition, and without the mark.
const UNCHECKED: &str = "UPDATE account SET balance = ?2 WHERE id = ?1";

/// How many holders are stopped with the check, and how many without it.
const RUNS_VARIABLE: &str = "MUXLOCK_FENCING_RUNS";
const URLS_VARIABLE: &str = "MUXLOCK_TEST_URLS";
const FILE_VARIABLE: &str = "MUXLOCK_TEST_FILE";
const ID: i64 = 7;
const KEY: &str = "account:7";
/// The lock of the holder that is stopped.
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

    /// The same, if there may be no account yet.
    fn enter_new(&self, number: FencingToken) -> bool {
        self.0.execute(ENTER_NEW, (number.as_i64(), ID)).unwrap() == 1
    }

    fn create(&self, number: FencingToken, balance: i64) -> bool {
        self.enter_new(number) && self.write(number, balance)
    }

    fn write_unchecked(&self, balance: i64) -> bool {
        self.0.execute(UNCHECKED, (ID, balance)).unwrap() == 1
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

fn open(file: impl AsRef<Path>) -> Account {
    let connection = Connection::open(file).unwrap();
    connection.busy_timeout(PATIENT).unwrap();
    Account(connection)
}

struct Scene {
    masters: Masters,
    redlock: Redlock,
    folder: Folder,
}

impl Scene {
    fn start(test: &str) -> Scene {
        let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
        let redlock = all_ready(&patient(masters.urls()));
        let scene = Scene { redlock, masters, folder: Folder::create(test) };
        let account = scene.open();
        account.0.execute(TABLE, ()).unwrap();
        account.0.execute(COLUMN, ()).unwrap();
        scene
    }

    fn open(&self) -> Account {
        open(self.folder.0.join("database"))
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
    // Without the comments at the ends of lines.
    let page = include_str!("../../../docs/fencing.md").lines();
    let page = words(
        &page.map(|line| line.split(" -- ").next().unwrap_or("")).collect::<Vec<_>>().join("\n"),
    );
    for statement in [COLUMN, ENTER, WRITE, ENTER_NEW] {
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
    assert!(account.create(older, 100), "it is made");
    assert!(account.enter(older) && account.write(older, 90) && account.create(older, 80));
    assert_eq!((other.balance(), other.mark()), (80, older.as_i64()));
    assert!(other.write(newer, 70) && other.enter(newer) && other.create(newer, 60));
    assert!(!account.enter(older) && !account.write(older, 1) && !account.create(older, 1));
    assert_eq!((account.balance(), account.mark()), (60, newer.as_i64()));
    // The greatest number that there can be is exact.
    let last = FencingToken::try_from(8_999_999_999_999_999).unwrap();
    assert!(account.enter(last));
    assert_eq!(account.mark(), 8_999_999_999_999_999);
}

/// Each line of its input is an order: takes the lock and reads the balance, or writes what follows
/// from that, whatever has happened since.
fn hold_and_write() {
    let urls = env::var(URLS_VARIABLE).expect("the parent names the masters");
    let account = open(env::var(FILE_VARIABLE).expect("the parent names the database"));
    let fenced = all_ready(&patient(urls.split(' '))).fenced();
    let mut held = None;
    for order in io::stdin().lines() {
        let order = order.unwrap();
        if order == "lock" {
            let lock = fenced.try_lock_for(KEY, SHORT, PATIENT).unwrap();
            assert!(account.create(lock.fencing_token(), 100));
            // It is stopped as soon as it has told.
            let seen = account.balance();
            report_to_parent(lock.fencing_token());
            held = Some((lock, seen));
            continue;
        }
        let (lock, seen) = held.take().expect("it was ordered before");
        let is_written = match order.as_str() {
            "checked" => account.write(lock.fencing_token(), seen - 10),
            _ => account.write_unchecked(seen - 10),
        };
        report_to_parent(is_written);
    }
}

/// F20: a holder is stopped past its TTL, and does not notice. Another one writes meanwhile.
#[test]
fn stopped_holder_is_refused_and_without_the_check_harms() {
    const TEST: &str = "stopped_holder_is_refused_and_without_the_check_harms";
    if is_child(TEST) {
        return hold_and_write();
    }
    let runs = env::var(RUNS_VARIABLE).map_or(1, |runs| runs.parse().expect("a count"));
    let scene = Scene::start(TEST);
    let other = scene.open();
    let mut child = Again::start(
        re_execute(TEST)
            .env(URLS_VARIABLE, scene.masters.urls().join(" "))
            .env(FILE_VARIABLE, scene.folder.0.join("database"))
            .stdin(Stdio::piped()),
    );
    let mut orders = child.take_input().expect("it is piped");
    let mut told = child.lines();
    for order in ["checked", "unchecked"].into_iter().cycle().take(2 * runs) {
        writeln!(orders, "lock").unwrap();
        let older: FencingToken = told.next().expect("it has the lock").parse().unwrap();
        child.signal("STOP");
        let newer = scene.redlock.fenced().try_lock_for(KEY, TTL, PATIENT).unwrap();
        assert!(newer.fencing_token() > older);
        assert!(other.enter(newer.fencing_token()));
        assert!(other.write(newer.fencing_token(), other.balance() + 5));
        writeln!(orders, "{order}").unwrap();
        child.signal("CONT");
        let is_written = told.next().expect("it has gone on");
        // The control shows the harm: 5 are gone.
        let expected = if order == "checked" { ("false", 105) } else { ("true", 90) };
        assert_eq!((is_written.as_str(), other.balance()), expected);
        assert!(newer.unlock().unwrap().was_held());
    }
    drop(orders);
    assert!(child.status().success());
    println!("measured: {runs} of {runs} refused; without the check, {runs} writes were lost");
}

/// F22: a check at the write alone does not save what was read.
#[test]
fn holder_that_enters_before_it_reads_loses_nothing() {
    let scene = Scene::start("holder_that_enters_before_it_reads_loses_nothing");
    let [one, two] = [scene.open(), scene.open()];
    for enters in [true, false] {
        assert!(one.create(scene.number(), 100));
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

/// F22 for an account that is not there yet: it is entered before it is found missing.
#[test]
fn account_that_is_missing_is_entered_too() {
    let scene = Scene::start("account_that_is_missing_is_entered_too");
    let [one, two] = [scene.open(), scene.open()];
    for enters in [true, false] {
        one.0.execute("DELETE FROM account", ()).unwrap();
        let (older, newer) = (scene.number(), scene.number());
        assert!(!enters || two.enter_new(newer));
        let is_created = one.create(older, 100);
        assert!(two.create(newer, 5));
        assert_eq!(two.balance(), 5);
        // The control: an account with 100 was made, and is gone.
        assert_eq!(is_created, !enters);
    }
}

/// F21: with the row, its mark is gone, and a stale holder is taken for the first one.
#[test]
fn account_that_is_deleted_forgets_its_mark() {
    let scene = Scene::start("account_that_is_deleted_forgets_its_mark");
    let account = scene.open();
    let (older, newer) = (scene.number(), scene.number());
    assert!(account.create(newer, 0) && !account.create(older, 90));
    account.0.execute("DELETE FROM account", ()).unwrap();
    assert!(account.create(older, 90), "the control shows the harm");
}
