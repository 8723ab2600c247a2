//! Masters that were promoted, or started from the file of a master that had a replica: the first
//! process that sees one waits, and those that come later do not (R33).

use std::time::Duration;

use muxlock::LockError;
use muxlock::node::{CountedFrom, NodeOutcome, QuarantineCause};
use muxlock::testing::{Master, Value};

use crate::roles::{PROMPT, demote, promote};
use crate::scene::{
    First, KEY, MAX_TTL, QUARANTINE, all_vote, guarded, owner, start_one, tell, trusting,
};
use testbed::{SOON, Stopwatch, TTL, ask, info, is_older_than, pause, soon, within};

const OFFSET: &str = "the offset of a master with a replica in its file";
/// A restarted server reports its age in whole seconds.
const UPTIME_ROUNDED: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `REPLICAOF` to an empty master, and `REPLICAOF NO ONE`.
    Promoted,
    /// Killed, and started from what it had saved while a replica was connected.
    FromRdb,
}

/// A lock that its master has lost.
struct Lost {
    master: Master,
    _other: Master,
    first: First,
    promoted: Stopwatch,
}

fn lost(way: Way, ttl: Duration) -> Lost {
    let (mut master, other) = (start_one(&PROMPT), start_one(&PROMPT));
    if way == Way::FromRdb {
        demote(&other, &master);
        // What the replica got may still be being saved.
        soon("it is saved", || ask(&master, &["SAVE"]) == Value::Status("OK".into()));
    }
    let first = First::take(&all_vote(&trusting([master.url()])), ttl);
    match way {
        Way::Promoted => {
            demote(&master, &other);
            promote(&master);
        }
        Way::FromRdb => master.restart().unwrap(),
    }
    let promoted = Stopwatch::start();
    assert_eq!(owner(&master, KEY), None, "the lock is lost");
    assert_ne!(info(&master, "replication", "second_repl_offset"), "-1");
    Lost { master, _other: other, first, promoted }
}

/// A process that takes a lock, does its work, and ends.
fn process(master: &Master) -> Result<(), LockError> {
    let client = guarded([master.url()]).connect().unwrap_or_else(|error| panic!("{error}"));
    client.try_lock(KEY, MAX_TTL).map(drop)
}

/// What the first process is told. Returns how it counts.
fn refused_as_promoted(master: &Master, error: &LockError) -> CountedFrom {
    let report = &error.nodes()[0];
    assert_eq!(report.outcome, NodeOutcome::Quarantined, "{error}");
    let quarantine = report.quarantine.expect("it is quarantined");
    assert_eq!(quarantine.cause, QuarantineCause::Promoted, "{}: {error}", master.addr());
    quarantine.counted_from
}

fn one_process_waits_and_no_other(way: Way) {
    let Lost { master, first, promoted, .. } = lost(way, MAX_TTL);
    let contact = Stopwatch::start();
    let error = process(&master).expect_err("the first one waits");
    assert_eq!(refused_as_promoted(&master, &error), CountedFrom::Event);
    assert!(error.to_string().contains("try again in "), "{error}");
    let mut processes = 1;
    while process(&master).is_err() {
        processes += 1;
        assert!(contact.elapsed() < QUARANTINE + UPTIME_ROUNDED + SOON, "{processes} have waited");
        pause(Duration::from_millis(20));
    }
    assert!(!first.lock.is_valid(), "two holders");
    assert!(promoted.elapsed() >= MAX_TTL, "it may lack a lock");
    println!("measured: the {processes}th process got in {:?} later", contact.elapsed());
    for _ in 0..3 {
        process(&master).expect("those that come later do not wait");
    }
    // A promotion begins it again, whatever is stored.
    if way == Way::Promoted {
        demote(&master, &start_one(&PROMPT));
        promote(&master);
        let error = process(&master).expect_err("it was promoted again");
        assert_eq!(refused_as_promoted(&master, &error), CountedFrom::Event);
    }
}

#[test]
fn slow_core_master_promoted_by_hand_makes_the_first_process_wait_and_no_other() {
    one_process_waits_and_no_other(Way::Promoted);
}

#[test]
fn slow_core_master_started_from_its_file_makes_the_first_process_wait_and_no_other() {
    let test = "slow_core_master_started_from_its_file_makes_the_first_process_wait_and_no_other";
    if is_older_than([7, 0, 0], test, OFFSET) {
        return;
    }
    one_process_waits_and_no_other(Way::FromRdb);
}

#[test]
fn promoted_masters_without_the_guard_make_two_holders() {
    for way in [Way::Promoted, Way::FromRdb] {
        let test = "promoted_masters_without_the_guard_make_two_holders, started from its file";
        if way == Way::FromRdb && is_older_than([7, 0, 0], test, OFFSET) {
            continue;
        }
        let Lost { master, first, .. } = lost(way, TTL);
        first.is_joined_by(&all_vote(&trusting([master.url()])));
    }
}

/// Without the right to store the sighting, each process waits, and is told what is missing.
#[test]
fn slow_core_process_that_may_not_store_the_sighting_says_so() {
    let master = start_one(&PROMPT);
    let test = "slow_core_process_that_may_not_store_the_sighting_says_so";
    if is_older_than([7, 0, 0], test, "users whose keys are limited") {
        return;
    }
    let other = start_one(&PROMPT);
    demote(&master, &other);
    promote(&master);
    let user = ["ACL", "SETUSER", "locks", "on", ">secret", "+@all", "~invoice:*"];
    assert_eq!(ask(&master, &user), Value::Status("OK".into()));
    let url = format!("redis://locks:secret@{}", master.addr());
    let refused = |url: &str| {
        let client = guarded([url]).connect().unwrap_or_else(|error| panic!("{error}"));
        client.try_lock(KEY, MAX_TTL).map(drop).expect_err("it waits")
    };
    let error = refused(&url);
    let lasts = CountedFrom::FirstContact { lasts: QUARANTINE };
    assert_eq!(refused_as_promoted(&master, &error), lasts);
    let text = error.to_string();
    for part in ["the key muxlock:promoted: NOPERM", "each new client waits for 2.5s", "for 4s"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    pause(QUARANTINE);
    assert_eq!(refused_as_promoted(&master, &refused(&url)), lasts);
    tell(&master, &["ACL", "SETUSER", "locks", "~muxlock:promoted"]);
    assert_eq!(refused_as_promoted(&master, &refused(&url)), CountedFrom::Event);
}

/// A value of somebody else stays, and is named.
#[test]
fn key_with_another_value_is_not_overwritten() {
    let master = start_one(&PROMPT);
    let other = start_one(&PROMPT);
    demote(&master, &other);
    promote(&master);
    for value in ["a text", "@0123456789abcdef", ""] {
        assert_eq!(ask(&master, &["SET", "muxlock:promoted", value]), Value::Status("OK".into()));
        let error = process(&master).expect_err("it waits");
        let lasts = CountedFrom::FirstContact { lasts: QUARANTINE };
        assert_eq!(refused_as_promoted(&master, &error), lasts);
        assert!(error.to_string().contains("it holds another value"), "{error}");
        assert_eq!(owner(&master, "muxlock:promoted").as_deref(), Some(value.as_bytes()));
    }
    assert_eq!(ask(&master, &["DEL", "muxlock:promoted"]), Value::Integer(1));
    assert_eq!(ask(&master, &["LPUSH", "muxlock:promoted", "x"]), Value::Integer(1));
    let error = process(&master).expect_err("it waits");
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    assert_eq!(ask(&master, &["LLEN", "muxlock:promoted"]), Value::Integer(1));
}

/// How the operator ends it where no sighting can.
#[test]
fn slow_core_server_forgets_its_past_when_its_backlog_is_dropped() {
    let master = start_one(&PROMPT);
    let test = "slow_core_server_forgets_its_past_when_its_backlog_is_dropped";
    if is_older_than([7, 0, 0], test, OFFSET) {
        return;
    }
    let other = start_one(&PROMPT);
    demote(&master, &other);
    promote(&master);
    assert_eq!(info(&master, "replication", "repl_backlog_active"), "1");
    tell(&master, &["CONFIG", "SET", "repl-backlog-ttl", "1"]);
    within(SOON + SOON, "it has forgotten", || {
        info(&master, "replication", "second_repl_offset") == "-1"
    });
}
