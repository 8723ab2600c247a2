//! Locks with a value of the caller's, over real masters (K11 to K15).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use muxlock::inspection::Owner;
use muxlock::limits::VALUE_BYTES_MAX;
use muxlock::settings::{Heal, RestartGuard};
use muxlock::testing::{Master, Masters, Value};
use muxlock::{LockErrorKind, LockParts, Resource};
use testbed::{PATIENT, all_ready, patient, soon};

use crate::family::{ask, nothing_is_left, other, start};
use crate::scripts::FREE_AS;

const TTL: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(300);
const TTL_MS: i64 = 10_000;

fn ask_all(masters: &Masters, words: &[&str]) -> Vec<Value> {
    masters.iter().map(|master| ask(master, words)).collect()
}

/// What StackExchange.Redis does: a plain SET, and a compare-and-delete of the value.
fn take_plainly(master: &Master, value: &str) -> Value {
    ask(master, &["SET", "a", value, "NX", "PX", "10000"])
}

const RELEASE_PLAINLY: &str =
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0";

fn values(masters: &Masters) -> Vec<Option<Vec<u8>>> {
    masters.iter().map(|master| master.value_of(b"a").unwrap()).collect()
}

fn owned(value: &[u8]) -> Owner {
    Owner::Value(value.into())
}

/// K11: the key holds the value, and what other makes do is excluded by it, in both directions.
#[test]
fn value_is_in_the_key_and_excludes_other_makes() {
    let (masters, redlock) = start(3);
    let lock = redlock.try_lock_as("a", "mine", TTL).unwrap();
    assert_eq!(lock.resource(), &Resource::with_value("a", "mine").unwrap());
    assert_eq!(lock.resource().as_bytes(), b"a");
    // It is held when two have it.
    soon("all have it", || values(&masters) == vec![Some(b"mine".to_vec()); 3]);
    for master in masters.iter() {
        for value in ["mine", "theirs"] {
            assert_eq!(take_plainly(master, value), Value::Nil);
        }
        assert!(ask(master, &["SET", "a:as", "theirs", "NX"]) == Value::Nil);
    }
    let other = other(&masters);
    for value in ["mine", "theirs"] {
        assert!(other.try_lock_as("a", value, TTL).unwrap_err().is_contended());
        assert!(redlock.try_lock_as("a", value, TTL).unwrap_err().is_contended());
    }
    assert!(other.try_lock("a", TTL).unwrap_err().is_contended());
    assert!(other.try_read("a", TTL).unwrap_err().is_contended());
    assert!(other.try_lock("a:as", TTL).unwrap_err().is_contended());
    assert!(lock.unlock().unwrap().was_held());
    nothing_is_left(&masters);
    for value in ["mine", "theirs"] {
        masters.iter().for_each(|master| drop(take_plainly(master, value)));
        assert!(redlock.try_lock_as("a", "mine", TTL).unwrap_err().is_contended());
        soon("all have it", || values(&masters) == vec![Some(value.as_bytes().to_vec()); 3]);
        ask_all(&masters, &["DEL", "a"]);
        nothing_is_left(&masters);
    }
}

/// K11: whatever another client has under the companion's name is neither overwritten nor deleted.
#[test]
fn foreign_companion_refuses_the_lock_and_is_left_alone() {
    let (masters, redlock) = start(1);
    let foreign: [&[&str]; 4] = [
        &["SET", "a:as", "theirs"],
        &["HSET", "a:as", "owner:1", "1"],
        &["ZADD", "a:as", "1", "theirs"],
        &["RPUSH", "a:as", "theirs"],
    ];
    for words in foreign {
        ask(&masters[0], words);
        let dump = ask(&masters[0], &["DUMP", "a:as"]);
        assert!(redlock.try_lock_as("a", "mine", TTL).unwrap_err().is_contended(), "{words:?}");
        take_plainly(&masters[0], "mine");
        assert_eq!(redlock.release_as("a", "mine").unwrap().confirmed, 1, "{words:?}");
        assert_eq!(ask(&masters[0], &["DUMP", "a:as"]), dump, "{words:?}");
        assert_eq!(masters[0].pttl(b"a:as").unwrap(), -1);
        ask(&masters[0], &["DEL", "a:as"]);
    }
    let plain = redlock.try_lock("a:as", TTL).unwrap();
    assert!(redlock.try_lock_as("a", "mine", TTL).unwrap_err().is_contended());
    assert!(plain.unlock().unwrap().was_held());
    // One whose key is gone is what a lock of ours has left.
    ask(&masters[0], &["HSET", "a:as", "muxlock", &"a".repeat(40)]);
    let lock = redlock.try_lock_as("a", "mine", TTL).unwrap();
    assert!(masters[0].pttl(b"a:as").unwrap() > 0);
    assert!(lock.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}

fn ends_at(master: &Master, key: &str) -> i64 {
    match ask(master, &["PEXPIRETIME", key]) {
        Value::Integer(millis) => millis,
        other => panic!("{key}: {other:?}"),
    }
}

/// K11: both keys end at the same time, and the next one gets the lock.
#[test]
fn value_and_companion_end_together() {
    let (masters, redlock) = start(3);
    let mut lock = redlock.try_lock_as("a", "mine", SHORT).unwrap();
    for _ in 0..3 {
        lock.extend(TTL).unwrap();
        assert_eq!(redlock.shutdown(PATIENT), 0, "all have answered");
        for master in masters.iter() {
            let [one, other] = ["a", "a:as"].map(|key| ends_at(master, key));
            // Before Redis 7.2, the clock goes on while a script runs.
            assert!(one > 0 && one.abs_diff(other) <= 100, "{one} {other}");
        }
    }
    lock.extend(SHORT).unwrap();
    assert!(masters.iter().all(|it| it.pttl(b"a").unwrap() > TTL_MS / 2), "never shorter");
    assert!(lock.unlock().unwrap().was_held());
    let short = redlock.try_lock_as("a", "mine", SHORT).unwrap();
    let _parts = short.into_parts();
    let next = redlock.try_lock_as_for("a", "mine", TTL, PATIENT).unwrap();
    assert!(next.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}

/// K12: what belongs to an earlier attempt with the same value changes nothing of the next one.
#[test]
fn late_release_of_the_same_value_deletes_nothing_of_the_next_lock() {
    let (masters, redlock) = start(3);
    let other = other(&masters);
    let old = redlock.try_lock_as("a", "mine", TTL).unwrap().into_parts();
    ask_all(&masters, &["DEL", "a", "a:as"]);
    let mut next = other.try_lock_as("a", "mine", TTL).unwrap();
    let mut old = redlock.adopt(old).unwrap();
    assert_eq!(old.extend(2 * TTL).unwrap_err().kind(), LockErrorKind::Expired);
    assert!(
        masters.iter().all(|it| it.pttl(b"a").unwrap() < 3 * TTL_MS / 2),
        "nothing was extended"
    );
    let released = old.unlock().unwrap();
    assert!(released.confirmed == 0 && released.absent >= 2);
    next.extend(TTL).unwrap();
    assert!(next.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}

/// K12: a release of an earlier lock with the same value stands in the socket of a stopped master,
/// all but its last byte, and is run when the next lock is in place. That of a guard spares it; the
/// control, which compares the value alone, deletes it.
#[test]
fn release_in_the_socket_of_a_stopped_master_spares_the_next_lock() {
    for is_control in [false, true] {
        let (masters, redlock) = start(3);
        let other = other(&masters);
        let old = redlock.try_lock_as("a", "mine", SHORT).unwrap();
        let token = std::str::from_utf8(old.token().as_bytes()).unwrap().to_owned();
        let words = match is_control {
            true => vec!["EVAL", RELEASE_PLAINLY, "1", "a", "mine"],
            false => vec!["EVAL", FREE_AS, "2", "a", "a:as", &token, "300", "0", "mine", ""],
        };
        let parts: String =
            words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let text = format!("*{}\r\n{parts}", words.len()).into_bytes();
        masters.iter().take(2).for_each(|master| master.freeze().unwrap());
        let mut late: Vec<TcpStream> = masters
            .iter()
            .take(2)
            .map(|master| {
                let mut wire = TcpStream::connect(("127.0.0.1", master.port())).unwrap();
                wire.write_all(&text[..text.len() - 1]).unwrap();
                wire
            })
            .collect();
        let _parts = old.into_parts();
        masters.iter().take(2).for_each(|master| master.thaw().unwrap());
        soon("the first lock is over", || values(&masters) == vec![None; 3]);
        let next = other.try_lock_as_for("a", "mine", TTL, PATIENT).unwrap();
        soon("all have it", || values(&masters) == vec![Some(b"mine".to_vec()); 3]);
        let mut deleted = Vec::new();
        for wire in &mut late {
            wire.write_all(b"\n").unwrap();
            let mut reply = [0; 4];
            wire.read_exact(&mut reply).unwrap();
            deleted.push(reply == *b":1\r\n");
        }
        assert_eq!(deleted, [is_control; 2]);
        // With the control, a third client gets the lock while the second one believes in it.
        let third = redlock.try_lock_as("a", "mine", TTL);
        assert_eq!(third.is_ok(), is_control);
        assert!(next.is_valid());
        if !is_control {
            assert!(next.unlock().unwrap().was_held());
        }
    }
}

/// K13: whoever knows the value releases the lock, also one of another make; nobody else does.
#[test]
fn value_is_enough_to_release() {
    let (masters, redlock) = start(3);
    let other = other(&masters);
    let lock = redlock.try_lock_as("a", "mine", TTL).unwrap();
    let released = other.release_as("a", "theirs").unwrap();
    assert!(released.confirmed == 0 && released.absent >= 2);
    soon("all have it", || values(&masters) == vec![Some(b"mine".to_vec()); 3]);
    let released = other.release_as("a", "mine").unwrap();
    assert!(released.confirmed >= 2 && !released.was_held());
    nothing_is_left(&masters);
    let mut lock = lock;
    assert_eq!(lock.extend(TTL).unwrap_err().kind(), LockErrorKind::Expired);
    assert!(!lock.unlock().unwrap().was_held());
    masters.iter().for_each(|master| drop(take_plainly(master, "mine")));
    assert!(other.release_as("a", "mine").unwrap().confirmed >= 2);
    nothing_is_left(&masters);
    assert!(other.release_as("a", "mine").unwrap().absent >= 2);
}

/// K13: a release by value that is late finds another attempt's token.
#[test]
fn late_release_by_value_spares_the_next_lock() {
    let (masters, redlock) = start(3);
    let other = all_ready(&patient(masters.urls()).node_timeout(SHORT));
    let lock = redlock.try_lock_as("a", "mine", TTL).unwrap();
    // One that is stopped says nothing, and is sent the release all the same.
    masters[0].freeze().unwrap();
    assert_eq!(other.release_as("a", "mine").unwrap().confirmed, 2);
    masters[0].thaw().unwrap();
    drop(lock);
    nothing_is_left(&masters);
    let next = redlock.try_lock_as("a", "mine", TTL).unwrap();
    other.nodes();
    soon("all have it", || values(&masters) == vec![Some(b"mine".to_vec()); 3]);
    assert!(next.unlock().unwrap().was_held());
}

/// K12: a lock that another make has set or prolonged is that make's.
#[test]
fn copy_that_another_make_set_or_prolonged_is_not_counted() {
    let (masters, redlock) = start(1);
    let change: [&[&[&str]]; 4] = [
        &[&["DEL", "a"], &["SET", "a", "mine", "NX", "PX", "20000"]],
        &[&["DEL", "a"], &["SET", "a", "mine", "NX", "PX", "5000"]],
        &[&["PEXPIRE", "a", "20000"]],
        &[&["PEXPIRE", "a", "5000"]],
    ];
    for commands in change {
        let mut lock = redlock.try_lock_as("a", "mine", TTL).unwrap();
        commands.iter().for_each(|words| drop(ask(&masters[0], words)));
        assert_eq!(lock.extend(3 * TTL).unwrap_err().kind(), LockErrorKind::Expired);
        assert_eq!(lock.unlock().unwrap().confirmed, 0);
        assert!(masters[0].pttl(b"a").unwrap() <= 2 * TTL_MS, "it stands as they left it");
        assert_eq!(redlock.release_as("a", "mine").unwrap().confirmed, 1);
        nothing_is_left(&masters);
    }
}

/// K11: no end is rounded down.
#[test]
fn value_lives_no_shorter_than_asked() {
    let (masters, redlock) = start(1);
    let number = |value: &Value| match value {
        Value::Bulk(digits) => std::str::from_utf8(digits).unwrap().parse::<i64>().unwrap(),
        Value::Integer(number) => *number,
        other => panic!("{other:?}"),
    };
    for _ in 0..20 {
        let Value::Array(before) = ask(&masters[0], &["TIME"]) else { panic!("no time") };
        let before_us = number(&before[0]) * 1_000_000 + number(&before[1]);
        let lock = redlock.try_lock_as("a", "mine", TTL).unwrap();
        let end_ms = number(&ask(&masters[0], &["PEXPIRETIME", "a"]));
        assert!(end_ms * 1_000 >= before_us + TTL_MS * 1_000, "{end_ms} {before_us}");
        assert!(lock.unlock().unwrap().was_held());
    }
}

/// K11: a user without one of the rights gets no vote, and leaves no key.
#[test]
fn value_without_a_right_gets_no_vote_and_leaves_nothing() {
    for right in ["-set", "-hset", "-hget", "-exists", "-pexpireat"] {
        let (masters, _redlock) = start(1);
        let user = ["ACL", "SETUSER", "limited", "on", ">pass", "~*", "&*", "+@all", right];
        ask(&masters[0], &user);
        let url = masters.urls()[0].replace("://", "://limited:pass@");
        let limited = all_ready(&patient([url]));
        let error = limited.try_lock_as("a", "mine", TTL).unwrap_err();
        assert_eq!(error.kind(), LockErrorKind::Unavailable, "{right}: {error}");
        nothing_is_left(&masters);
    }
}

/// K15: what a quorum says, and nothing else.
#[test]
fn slow_owner_is_what_a_quorum_says() {
    let (masters, redlock) = start(3);
    assert_eq!(redlock.owner("a").unwrap(), Owner::Free);
    let lock = redlock.try_lock_as("a", "mine", TTL).unwrap();
    assert_eq!(redlock.owner("a").unwrap(), owned(b"mine"));
    ask(&masters[0], &["DEL", "a"]);
    assert_eq!(redlock.owner("a").unwrap(), owned(b"mine"));
    ask(&masters[1], &["SET", "a", "theirs"]);
    assert_eq!(redlock.owner("a").unwrap(), Owner::Unknown, "absent, theirs, mine");
    ask(&masters[0], &["SET", "a", "theirs"]);
    assert_eq!(redlock.owner("a").unwrap(), owned(b"theirs"));
    assert!(!lock.unlock().unwrap().was_held());
    ask_all(&masters, &["DEL", "a"]);
    ask_all(&masters, &["HSET", "a", "field", "1"]);
    assert_eq!(redlock.owner("a").unwrap(), Owner::Unknown, "another type");
    ask_all(&masters, &["DEL", "a"]);
    let long = "x".repeat(5_000);
    ask_all(&masters, &["SET", "a", &long]);
    let Owner::Value(value) = redlock.owner("a").unwrap() else { panic!("it has one") };
    assert_eq!(value.len(), VALUE_BYTES_MAX + 1);
    ask_all(&masters, &["DEL", "a"]);
    let plain = redlock.try_lock("a", TTL).unwrap();
    assert_eq!(redlock.owner("a").unwrap(), owned(plain.token().as_bytes()));
    masters.iter().take(2).for_each(|master| master.freeze().unwrap());
    assert_eq!(redlock.owner("a").unwrap(), Owner::Unknown, "too few answer");
    masters.iter().take(2).for_each(|master| master.thaw().unwrap());
}

/// K11: any bytes, 1 to 512 of them, which nothing prints.
#[test]
fn value_has_any_bytes_and_is_not_printed() {
    let (masters, redlock) = start(1);
    for value in [b"\0\r\n*=$ \xff".to_vec(), vec![b'v'; VALUE_BYTES_MAX], b"=".to_vec()] {
        let lock = redlock.try_lock_as("a", &value, TTL).unwrap();
        assert_eq!(redlock.owner("a").unwrap(), owned(&value));
        let printed = format!("{lock:?} {:?} {}", redlock.owner("a"), lock.resource());
        assert!(!printed.contains("vvv"), "{printed}");
        assert!(lock.unlock().unwrap().was_held());
    }
    for value in [vec![], vec![b'v'; VALUE_BYTES_MAX + 1]] {
        let bytes = value.len();
        let errors = [
            redlock.try_lock_as("a", &value, TTL).unwrap_err(),
            redlock.try_lock_as_for("a", &value, TTL, TTL).unwrap_err(),
            redlock.release_as("a", &value).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), LockErrorKind::InvalidValue { bytes });
            let text = format!("the value has {bytes} bytes: it must have 1 to 512");
            assert_eq!((error.to_string(), error.attempts()), (text, 0));
        }
    }
    nothing_is_left(&masters);
}

#[test]
fn value_goes_with_the_lock_to_another_process() {
    let (masters, redlock) = start(3);
    let other = other(&masters);
    let lock = redlock.try_lock_as("a", "mine", TTL).unwrap();
    let text = lock.into_parts().to_secret_text().unwrap();
    let parts: LockParts = text.parse().unwrap();
    let mut lock = other.adopt(parts).unwrap();
    lock.extend(2 * TTL).unwrap();
    // It cannot be shared.
    let lock = lock.downgrade(TTL).unwrap();
    soon("all have it", || values(&masters) == vec![Some(b"mine".to_vec()); 3]);
    assert!(lock.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}

/// K12, R29: with healing, what is gone is set again; what another make has
/// released, whose companion stands, is not.
#[test]
fn slow_value_is_healed_where_both_keys_are_gone() {
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    let ttl = Duration::from_secs(2);
    let builder =
        patient(masters.urls()).restart_guard(RestartGuard::Uptime).heal(Heal::On).max_ttl(ttl);
    let redlock = all_ready(&builder);
    let mut lock = redlock.try_lock_as_for("a", "mine", ttl, PATIENT).unwrap();
    ask(&masters[0], &["DEL", "a", "a:as"]);
    ask(&masters[1], &["DEL", "a"]);
    lock.extend(ttl).unwrap();
    soon("it is set again", || masters[0].pttl(b"a").unwrap() > 0);
    assert!(masters[0].pttl(b"a:as").unwrap() > 0);
    assert_eq!(masters[1].value_of(b"a").unwrap(), None);
    assert!(lock.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}
