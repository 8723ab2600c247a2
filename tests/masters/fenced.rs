//! Fencing tokens across clients, processes and restarts, and what is said when a master cannot
//! count.

use std::env;
use std::time::Duration;

use muxlock::node::NodeOutcome;
use muxlock::proto::{Cancelled, Done, OpId};
use muxlock::settings::{Heal, RestartGuard};
use muxlock::testing::{Master, Masters, Value};
use muxlock::{Error, FencingToken, KeepAlive, LockErrorKind, LossCause, Redlock, Standalone};
use testbed::{
    PATIENT, SOON, TTL, all_ready, documented_rights, is_child, patient, pause, re_execute,
    report_to_parent, run_child, soon,
};

const KEY: &str = "invoice:42";
const COUNTERS: &str = "muxlock:fence";
/// The counter of the key.
const BUCKET: &str = "10308";
const URLS_VARIABLE: &str = "MUXLOCK_TEST_URLS";

fn start(n: usize) -> (Masters, Redlock) {
    let masters = Masters::start(n).unwrap_or_else(|error| panic!("{error}"));
    let redlock = all_ready(&patient(masters.urls()));
    (masters, redlock)
}

fn tell(master: &Master, words: &[&str]) {
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    let reply = master.query(&words).expect("the master answers");
    assert!(!matches!(reply, Value::Error(_)), "{reply:?}");
}

fn number_of(redlock: &Redlock) -> FencingToken {
    let lock = redlock.fenced().try_lock_for(KEY, TTL, PATIENT).expect("it becomes free");
    let number = lock.fencing_token();
    assert!(lock.unlock().unwrap().was_held());
    number
}

#[track_caller]
fn no_lock_is_left(masters: &Masters, key: &str) {
    for master in masters.iter() {
        soon("no key is left", || master.value_of(key.as_bytes()).unwrap().is_none());
    }
}

/// What a fenced lock on these masters fails with on each, if all fail alike. None keeps a key.
#[track_caller]
fn refused(masters: &Masters, redlock: &Redlock, key: &str) -> String {
    let error = redlock.fenced().try_lock(KEY, TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    let failed = |outcome: &NodeOutcome| {
        matches!(outcome, NodeOutcome::Server(_) | NodeOutcome::MissingCommand(_))
    };
    let text = error.nodes().iter().find(|report| failed(&report.outcome)).expect("one says why");
    let text = text.to_string();
    assert_eq!(redlock.shutdown(TTL), 0);
    no_lock_is_left(masters, key);
    text.split_once(": ").expect("the node, and its outcome").1.to_owned()
}

/// T1: whatever was counted before, a new client and a new process get more.
#[test]
fn numbers_grow_from_process_to_process() {
    const TEST: &str = "numbers_grow_from_process_to_process";
    if is_child(TEST) {
        let urls = env::var(URLS_VARIABLE).expect("the parent names the masters");
        let redlock = all_ready(&patient(urls.split(' ')));
        (0..3).for_each(|_| report_to_parent(number_of(&redlock)));
        return;
    }
    let (masters, redlock) = start(3);
    let mut last = number_of(&redlock);
    for _ in 0..2 {
        let told = run_child(re_execute(TEST).env(URLS_VARIABLE, masters.urls().join(" ")));
        assert_eq!(told.len(), 3);
        for number in told {
            let number = number.parse().expect("a fencing token");
            assert!(number > last, "{number} after {last}");
            last = number;
        }
        let number = number_of(&redlock);
        assert!(number > last, "{number} after {last}");
        last = number;
    }
}

/// One master after the other forgets its counters. The others have them, or the clocks are right.
#[test]
fn numbers_grow_over_restarts_without_data() {
    let (mut masters, redlock) = start(3);
    let mut last = number_of(&redlock);
    for node in [0, 1, 2, 0] {
        masters[node].restart().unwrap();
        let redlock = all_ready(&patient(masters.urls()));
        for _ in 0..3 {
            let number = number_of(&redlock);
            assert!(number > last, "{number} after {last}");
            last = number;
        }
    }
    drop(redlock);
}

/// F17, F18: a master that has lost the key gets it again; the number stays, and so do counters.
#[test]
fn number_stays_when_a_master_is_healed() {
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    let ttl = Duration::from_secs(5);
    let builder = patient(masters.urls()).restart_guard(RestartGuard::Uptime).heal(Heal::On);
    // Until the quarantine of new masters is over, which is somewhat longer.
    pause(ttl + Duration::from_millis(2_200));
    let redlock = all_ready(&builder.max_ttl(ttl));
    let mut lock = redlock.fenced().try_lock(KEY, ttl).unwrap();
    let number = lock.fencing_token();
    assert_eq!(redlock.shutdown(TTL), 0);
    tell(&masters[1], &["DEL", KEY]);
    tell(&masters[1], &["DEL", COUNTERS]);
    lock.extend(ttl).unwrap();
    assert_eq!(redlock.shutdown(TTL), 0);
    assert_eq!(redlock.stats().healed, 1);
    assert!(masters[1].value_of(KEY.as_bytes()).unwrap().is_some());
    assert_eq!(masters[1].dbsize().unwrap(), 1, "nothing is counted there");
    assert_eq!((lock.fencing_token(), lock.token().as_bytes().len()), (number, 40));
    let kept = lock.keep_alive(KeepAlive::default()).unwrap();
    assert_eq!(kept.fencing_token(), number);
    assert!(kept.unlock().unwrap().was_held());
    let next = redlock.fenced().try_lock_for(KEY, ttl, PATIENT).unwrap();
    assert!(next.fencing_token() > number);
}

#[test]
fn work_with_a_fenced_lock_has_its_number() {
    let (masters, redlock) = start(3);
    let before = number_of(&redlock);
    let work = redlock.fenced().with_lock(KEY, TTL, TTL, |held| {
        held.check()?;
        Ok::<_, Error>(held.fencing_token())
    });
    assert!(work.unwrap() > before);
    no_lock_is_left(&masters, KEY);
    // What was lost before the work ended is no success.
    let work = redlock.fenced().with_lock(KEY, TTL, TTL, |held| {
        assert!(held.is_valid());
        masters.iter().for_each(|master| tell(master, &["DEL", KEY]));
        Ok::<_, Error>(())
    });
    assert!(matches!(work.unwrap_err(), Error::Lost(loss) if loss.cause == LossCause::Gone));
    // The error of the work is the error.
    let work = redlock.fenced().with_lock(KEY, TTL, TTL, |_| {
        Err::<(), _>(Error::from(std::io::Error::other("refused by the account")))
    });
    assert_eq!(work.unwrap_err().to_string(), "refused by the account");
    no_lock_is_left(&masters, KEY);
}

/// Waits for the result of an operation.
fn done(guest: &mut Standalone, op: OpId) -> Done {
    guest.mux_mut().flush();
    loop {
        while let Some((id, done)) = guest.mux_mut().poll_done() {
            if id == op {
                return done;
            }
        }
        guest.wait(SOON).unwrap();
    }
}

/// F17: also through an extension that is cancelled.
#[test]
fn guest_has_the_number_in_its_lease() {
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    let mut guest = Standalone::new(patient(masters.urls()).config().unwrap()).unwrap();
    let mut last = None;
    for wait in [Some(PATIENT), None] {
        let mux = guest.mux_mut();
        let op = match wait {
            Some(wait) => mux.try_lock_fenced_for(KEY, TTL, wait),
            None => mux.try_lock_fenced(KEY, TTL),
        };
        let Done::Acquired(Ok(lease)) = done(&mut guest, op.unwrap()) else {
            panic!("nobody else has it");
        };
        let number = lease.fencing_token();
        assert!(number > last, "{number:?} after {last:?}");
        last = number;
        let op = guest.mux_mut().extend(lease, TTL);
        let Cancelled::Extension(lease) = guest.mux_mut().cancel(op) else {
            panic!("it was not over");
        };
        assert_eq!(lease.fencing_token(), number);
        let op = guest.mux_mut().extend(lease, TTL);
        let Done::Extended(lease, Ok(())) = done(&mut guest, op) else {
            panic!("it is held");
        };
        assert_eq!(lease.fencing_token(), number);
        let op = guest.mux_mut().keep_alive(lease, &KeepAlive::default());
        assert_eq!(guest.mux().kept(op).unwrap().fencing_token(), number);
        let Cancelled::Extension(lease) = guest.mux_mut().cancel(op) else {
            panic!("it is kept");
        };
        assert_eq!(lease.fencing_token(), number);
        let op = guest.mux_mut().unlock(lease);
        assert!(
            matches!(done(&mut guest, op), Done::Released(Ok(released)) if released.was_held())
        );
    }
    let op = guest.mux_mut().try_lock(KEY, TTL).unwrap();
    let Done::Acquired(Ok(plain)) = done(&mut guest, op) else {
        panic!("nobody else has it");
    };
    assert_eq!(plain.fencing_token(), None);
    guest.mux_mut().abandon(plain);
}

#[test]
fn waiter_ends_the_waits_for_fenced_locks() {
    let (_masters, redlock) = start(3);
    let waiter = redlock.waiter();
    let fenced = waiter.redlock().fenced();
    let lock = fenced.try_lock_for(KEY, TTL, TTL).unwrap();
    let waiting = std::thread::spawn({
        let fenced = fenced.clone();
        move || fenced.try_lock_for(KEY, TTL, PATIENT).map(drop)
    });
    soon("it waits", || redlock.stats().waiting > 0);
    waiter.cancel();
    assert_eq!(waiting.join().unwrap().unwrap_err().kind(), LockErrorKind::Cancelled);
    assert!(lock.unlock().unwrap().was_held(), "what is held stays");
    assert_eq!(fenced.try_lock(KEY, TTL).unwrap_err().kind(), LockErrorKind::Cancelled);
    assert!(redlock.fenced().try_lock(KEY, TTL).is_ok());
}

/// Each counter that is none costs the vote of its master, is named, and leaves no key.
#[test]
fn counters_that_are_no_numbers_are_named() {
    let (masters, redlock) = start(3);
    let bad = "server error (other): ERR muxlock: bad fencing counter";
    for value in ["x", "", "-1", "nan", "inf", "9000000000000000", "9007199254740992"] {
        masters.iter().for_each(|master| tell(master, &["HSET", COUNTERS, BUCKET, value]));
        assert_eq!(refused(&masters, &redlock, KEY), bad, "{value:?}");
    }
    for master in masters.iter() {
        tell(master, &["DEL", COUNTERS]);
        tell(master, &["SET", COUNTERS, "7"]);
    }
    let text = refused(&masters, &redlock, KEY);
    assert!(text.starts_with("server error (wrong type): "), "{text}");
    // Before Redis 7.0 it follows the name of the script.
    assert!(text.contains("WRONGTYPE Operation against"), "{text}");
    // A plain lock does not look at them.
    assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
    // One bad master is outvoted.
    for master in masters.iter().skip(1) {
        tell(master, &["DEL", COUNTERS]);
    }
    number_of(&redlock);
}

/// A user without a right is told which; the lock's key is deleted where it was set.
#[test]
fn missing_rights_are_named_and_leave_no_key() {
    let (masters, _) = start(3);
    let locker = |name: &str, rights: &str| {
        for master in masters.iter() {
            let mut command = vec!["ACL", "SETUSER", name, "on", ">secret"];
            command.extend(rights.split(' '));
            tell(master, &command);
        }
        let url = |master: &Master| format!("redis://{name}:secret@{}", master.addr());
        all_ready(&patient(masters.iter().map(url)).key_prefix("app:"))
    };
    let plain = "~app:* +set +eval +get +del +pexpire +pttl +client|tracking";
    let all = format!("{plain} ~muxlock:fence +hget +hset +time");
    let key = "app:invoice:42";

    number_of(&locker("all", &all));
    let table = [
        ("counters", format!("{plain} +hget +hset +time"), ["NOPERM", "permissions", "keys"]),
        (
            "reader",
            format!("{plain} ~muxlock:fence +hget +time"),
            ["HSET is renamed or forbidden"; 3],
        ),
        (
            "writer",
            format!("{plain} ~muxlock:fence +hset +time"),
            ["HGET is renamed or forbidden"; 3],
        ),
        (
            "timeless",
            format!("{plain} ~muxlock:fence +hget +hset"),
            ["TIME is renamed or forbidden"; 3],
        ),
    ];
    for (name, rights, texts) in table {
        let redlock = locker(name, &rights);
        let said = refused(&masters, &redlock, key);
        let is_named = texts.iter().any(|text| said.contains(text));
        assert!(is_named, "{name}: {said}");
        assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
    }
}

/// The user of docs/masters.md can do all that fenced locks need: the servers log no denial.
#[test]
fn documented_user_of_fenced_locks_is_denied_nothing() {
    let uses = ["create the user of the locks", "# Fencing tokens"];
    let rights = uses.map(|text| documented_rights("locker", text)).concat();
    let (masters, _) = start(3);
    for master in masters.iter() {
        let mut command = vec!["ACL", "SETUSER", "locker", "on", ">secret", "~app:*"];
        command.extend(rights.iter().map(String::as_str).chain(["~muxlock:fence"]));
        tell(master, &command);
        // Some servers have these, and have their own row.
        for right in ["+delex", "+delifeq"] {
            let _ = master.query(&[b"ACL", b"SETUSER", b"locker", right.as_bytes()]);
        }
    }
    let url = |master: &Master| format!("redis://locker:secret@{}", master.addr());
    let redlock = all_ready(&patient(masters.iter().map(url)).key_prefix("app:"));
    let before = number_of(&redlock);
    // The counter of `app:invoice:42`: others are raised.
    let fields = masters[0].query(&[b"HKEYS", COUNTERS.as_bytes()]).unwrap();
    let Value::Array(fields) = fields else { panic!("{fields:?}") };
    let [Value::Bulk(bucket)] = &fields[..] else { panic!("{fields:?}") };
    for (master, ahead) in masters.iter().zip([20_000_000, 25_000_000]) {
        let ahead = (before.get() + ahead).to_string();
        master.query(&[b"HSET", COUNTERS.as_bytes(), bucket, ahead.as_bytes()]).unwrap();
    }
    assert!(number_of(&redlock).get() > before.get() + 20_000_000);
    assert!(redlock.stats().tokens_confirmed >= 1, "no two of them gave the same number");
    assert_eq!(redlock.shutdown(TTL), 0);
    for master in masters.iter() {
        let denied = master.query(&[b"ACL", b"LOG"]).unwrap();
        assert_eq!(denied, Value::Array(Vec::new()), "{denied:?}");
    }
}

/// F4: nothing is sent.
#[test]
fn key_of_the_counters_is_refused_by_name() {
    let (masters, redlock) = start(1);
    let error = redlock.fenced().try_lock(COUNTERS, TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::ReservedResource);
    let text = "the fencing counters use this key: use another name for the resource";
    assert_eq!(error.to_string(), text);
    assert_eq!(masters[0].dbsize().unwrap(), 0);
    // By the whole key, whatever the prefix is.
    let redlock = all_ready(&patient(masters.urls()).key_prefix("muxlock:"));
    assert_eq!(redlock.fenced().try_lock("fence", TTL).unwrap_err().to_string(), text);
    drop(redlock.fenced().try_lock(COUNTERS, TTL).unwrap());
}
