//! Masters that do not let a client wait: its user may not do all that it takes. The client queues
//! up at another master; without any, it asks again later, as clients do that know no queue.

use std::time::Duration;

use muxlock::settings::Waiting;
use muxlock::testing::{Master, Masters, Value};
use testbed::{heavy, is_older_than, pause, soon};

use crate::contender::{Part, now};
use crate::scene::scene;
use crate::servers::{ask, queue_node_order, queued, queued_anywhere, start, tell};

const PROCESSES: usize = 4;
const RUN: Duration = Duration::from_millis(600);
/// In a crowd that holds for a millisecond each, the lock is free no longer, whether its members
/// queue up or not.
const GAP_MAX: Duration = Duration::from_millis(500);
/// How often one connection may be refused before it asks no more, and how often a client may
/// connect again, together.
const REFUSALS_MAX: i64 = 8;
/// A client that stands in no queue tries to hand the lock on at the end of each of its rows (W13),
/// because others may stand there. The shortest row has so many locks.
const ROW_MIN: usize = 4;

/// What a user may not do, of all that waiting takes.
const LACKS: [(&str, &[&str]); 5] = [
    ("no channel", &["resetchannels"]),
    ("no tracking", &["-client|tracking"]),
    ("no LPOS", &["-lpos"]),
    ("no key but the lock's own", &["resetkeys", "~invoice:42"]),
    ("what a client needs that does not queue up", &RIGHTS_WITHOUT_QUEUE),
];
const RIGHTS_WITHOUT_QUEUE: [&str; 13] = [
    "resetchannels",
    "-@all",
    "+select",
    "+client|tracking",
    "+client|kill",
    "+info",
    "+time",
    "+set",
    "+eval",
    "+get",
    "+del",
    "+pttl",
    "+pexpire",
];

/// A user with all rights but these.
fn set_user(master: &Master, name: &str, rights: &[&str]) {
    let words = ["ACL", "SETUSER", name, "on", ">sesame", "~*", "&*", "+@all"];
    tell(master, &[&words[..], rights].concat());
}

fn part_of(masters: &Masters, user: &str) -> Part {
    let login = format!("redis://{user}:sesame@");
    let urls = masters.iter().map(|master| format!("{login}{}", master.addr()));
    Part::new(urls.collect(), Waiting::Queue)
}

/// How often the master has refused something to a user since the log was reset.
fn refusals(master: &Master) -> i64 {
    let Value::Array(entries) = ask(master, &["ACL", "LOG"]) else {
        panic!("the log is a list");
    };
    let count = |entry: &Value| {
        let Value::Array(fields) = entry else { panic!("an entry is a list: {entry:?}") };
        let is_count = |name: &Value| *name == Value::Bulk(b"count".to_vec());
        let count = fields.iter().skip_while(|name| !is_count(name)).nth(1);
        match count {
            Some(Value::Integer(count)) => *count,
            other => panic!("no count: {other:?}"),
        }
    };
    entries.iter().map(count).sum()
}

#[test]
fn slow_alone_users_that_may_not_wait_ask_again_later() {
    let test = "slow_alone_users_that_may_not_wait_ask_again_later";
    scene(test, |scene| {
        if is_older_than([7, 0, 0], test, "-client|tracking in ACL SETUSER") {
            return;
        }
        let _alone = heavy();
        let masters = start(3);
        for (number, (lack, rights)) in LACKS.into_iter().enumerate() {
            let user = format!("user-{number}");
            for master in &masters {
                set_user(master, &user, rights);
                tell(master, &["ACL", "LOG", "RESET"]);
            }
            let crowd = scene.crowd(vec![part_of(&masters, &user); PROCESSES]);
            pause(RUN);
            let report = crowd.end(lack);
            let gap = report.longest_gap();
            assert!(gap < GAP_MAX, "{lack}: nobody held the lock for {gap:?}");
            assert_eq!(queued_anywhere(&masters), 0, "{lack}");
            // Each was tried, and not again and again.
            let refused: Vec<_> = masters.iter().map(refusals).collect();
            println!("measured: {lack}: the masters refused {refused:?} commands");
            assert!(refused.iter().any(|refused| *refused > 0), "{lack}: nobody queued up");
            let rows = report.grants().iter().sum::<usize>().div_ceil(ROW_MIN);
            let most = REFUSALS_MAX * PROCESSES as i64 + rows as i64;
            assert!(refused.iter().all(|refused| *refused <= most), "{lack}: {refused:?}");
        }
    });
}

#[test]
fn slow_alone_user_that_may_not_wait_at_the_first_master_waits_at_the_second() {
    let test = "slow_alone_user_that_may_not_wait_at_the_first_master_waits_at_the_second";
    scene(test, |scene| {
        if is_older_than([6, 2, 0], test, "channels in ACL SETUSER") {
            return;
        }
        let _alone = heavy();
        let masters = start(5);
        let order = queue_node_order(&masters);
        for (number, master) in masters.iter().enumerate() {
            let is_first = number == order[0];
            set_user(master, "locker", if is_first { &["resetchannels"] } else { &[] });
        }
        let crowd = scene.crowd(vec![part_of(&masters, "locker"); PROCESSES]);
        let second = &masters[order[1]];
        soon("they queue up at the second", || queued(second) >= PROCESSES as i64 / 2);
        pause(RUN);
        let report = crowd.end("Queue");
        assert_eq!(queued(&masters[order[0]]), 0);
        let grants = report.grants();
        assert!(grants.iter().all(|grants| *grants > 0), "{grants:?}");
        let gap = report.longest_gap();
        assert!(gap < GAP_MAX, "nobody held the lock for {gap:?}");
    });
}

/// The server ends connections that listen to a channel which their user may no longer use.
#[test]
fn slow_alone_rights_that_are_taken_away_meanwhile_do_not_stop_the_crowd() {
    let test = "slow_alone_rights_that_are_taken_away_meanwhile_do_not_stop_the_crowd";
    scene(test, |scene| {
        if is_older_than([7, 0, 0], test, "-client|caching in ACL SETUSER") {
            return;
        }
        let _alone = heavy();
        let masters = start(5);
        masters.iter().for_each(|master| set_user(master, "locker", &[]));
        let crowd = scene.crowd(vec![part_of(&masters, "locker"); PROCESSES]);
        let mut left: Vec<_> = masters.iter().collect();
        for right in ["resetchannels", "-lpos", "-client|caching"] {
            let mut holder = None;
            soon("they queue up where they may", || {
                holder = left.iter().position(|master| queued(master) > 0);
                holder.is_some()
            });
            pause(RUN / 2);
            let master = left.remove(holder.expect("it was found"));
            tell(master, &["ACL", "SETUSER", "locker", right]);
        }
        pause(RUN / 2);
        // In the middle of the script of a release.
        for master in left {
            tell(master, &["ACL", "SETUSER", "locker", "-publish"]);
        }
        let taken = now();
        pause(RUN);
        let report = crowd.end("Queue");
        let gap = report.longest_gap();
        assert!(gap < GAP_MAX, "nobody held the lock for {gap:?}");
        // Without a queue, nobody is sure to get it.
        let grants = report.grants_since(taken);
        assert!(grants.iter().sum::<usize>() > 0, "{grants:?}");
    });
}
