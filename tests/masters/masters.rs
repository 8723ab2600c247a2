//! The library over real `redis-server` processes: taken, frozen, killed, restarted, misconfigured.
//!
//! Each test starts masters of its own. Without `redis-server` every one fails, and says why:
//! none is skipped, but for what an older server lacks.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, io, thread};

use muxlock::error::{ConnectError, ServerErrorKind};
use muxlock::node::{NodeOutcome, Phase, Unfit};
use muxlock::settings::{RestartGuard, Retry, Waiting};
use muxlock::testing::{Master, Masters, Value};
use muxlock::{LockError, LockErrorKind, LockGuard, Redlock, quorum};
use testbed::proxy::DelayProxy;
use testbed::scripted::{Peer, Scripted};
use testbed::{
    Again, Folder, PATIENT, SOON, Stopwatch, TTL, all_ready, count, deleting_server,
    documented_rights, end_connection, heavy, is_child, is_older_than, outcomes, patient, pause,
    re_execute, report_to_parent, scripts_write_anyway, soon, timed, within,
};

/// No other time to live comes near it, and no test runs as long.
const LONG_MS: i64 = 20_000;
const KEY: &str = "invoice:42";

#[track_caller]
fn start(n: usize) -> Masters {
    start_with(n, &[])
}

#[track_caller]
fn start_with(n: usize, args: &[&str]) -> Masters {
    Masters::start_with(n, args).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn start_one(args: &[&str]) -> Master {
    Master::start_with(args).unwrap_or_else(|error| panic!("{error}"))
}

fn owner(master: &Master, key: &str) -> Option<Vec<u8>> {
    master.value_of(key.as_bytes()).expect("the master answers")
}

fn pttl(master: &Master, key: &str) -> i64 {
    master.pttl(key.as_bytes()).expect("the master answers")
}

fn calls(master: &Master, command: &str) -> u64 {
    master.command_calls(command).expect("the master answers")
}

fn owns(master: &Master, lock: &LockGuard, key: &str) -> bool {
    owner(master, key).as_deref() == Some(lock.token().as_bytes())
}

fn ask(master: &Master, words: &[&str]) -> Value {
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    master.query(&words).expect("the master answers")
}

#[track_caller]
fn tell(master: &Master, words: &[&str]) {
    assert_eq!(ask(master, words), Value::Status("OK".into()), "{words:?}");
}

#[track_caller]
fn gone_soon<'a>(masters: impl IntoIterator<Item = &'a Master>, key: &str) {
    for (i, master) in masters.into_iter().enumerate() {
        soon(&format!("the key is gone from master {i}"), || pttl(master, key) == -2);
    }
}

/// Somebody else's lock, taken by hand.
#[track_caller]
fn occupy<'a>(masters: impl IntoIterator<Item = &'a Master>, key: &str) {
    for master in masters {
        tell(master, &["SET", key, "stranger", "NX", "PX", "60000"]);
    }
}

#[track_caller]
fn refused(result: Result<LockGuard, LockError>) -> LockError {
    match result {
        Ok(lock) => panic!("granted: {lock:?}"),
        Err(error) => error,
    }
}

// ---- Acquire, extend, release ----

#[test]
fn free_resource_taken_and_unlocked_is_on_a_quorum_then_on_none() {
    for n in 1..=5 {
        let masters = start(n);
        let redlock = all_ready(&patient(masters.urls()));
        assert_eq!(redlock.quorum(), quorum(n));

        let lock = redlock.try_lock(KEY, TTL).unwrap();
        // Probed after the grant: what was counted must be there already (R3).
        let granted: BTreeSet<usize> = lock.granted_by().collect();
        assert!(granted.len() >= quorum(n), "{n} masters: {granted:?}");
        for node in granted {
            assert!(owns(&masters[node], &lock, KEY), "{n} masters: {node}");
        }
        // The others are not waited for, but asked all the same.
        for master in &masters {
            soon("every master has it", || owns(master, &lock, KEY));
            let pttl = pttl(master, KEY);
            assert!((LONG_MS..=30_000).contains(&pttl), "{pttl}");
        }

        // On every master the release runs behind the SET, so nowhere is it absent (R10).
        let released = lock.unlock().unwrap();
        assert!(released.confirmed >= quorum(n), "{released:?}");
        assert_eq!(released.absent, 0, "{released:?}");
        assert_eq!(released.confirmed + released.unknown, n, "{released:?}");
        assert!(released.was_held());
        gone_soon(&masters, KEY);
        assert_eq!(redlock.shutdown(PATIENT), 0);
        let stats = redlock.stats();
        assert_eq!((stats.rounds, stats.acquired, stats.released), (1, 1, 1));
    }
}

#[test]
fn held_lock_extended_lives_longer_on_a_quorum() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    let mut lock = redlock.try_lock(KEY, Duration::from_secs(5)).unwrap();
    assert!(lock.remaining() <= Duration::from_secs(5));

    lock.extend(TTL).unwrap();
    let extended = masters.iter().filter(|master| pttl(master, KEY) >= LONG_MS).count();
    assert!(extended >= 3, "{extended}");
    assert_eq!(lock.ttl(), TTL);
    assert!(lock.remaining() > Duration::from_millis(LONG_MS as u64));
    for master in &masters {
        soon("every master extends", || pttl(master, KEY) >= LONG_MS);
        assert!(owns(master, &lock, KEY));
    }
    assert!(lock.unlock().unwrap().was_held());
    gone_soon(&masters, KEY);
}

#[test]
fn granted_lock_never_claims_more_than_its_granters_have_left() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    for i in 0..300_u64 {
        let ttl = Duration::from_millis([15, 40, 250, 1_000, 30_000][i as usize % 5]);
        // D(ttl) = ceil(ttl / 100) + 2 ms, and a round trip is more than nothing (R2, R23).
        let drift = Duration::from_millis((ttl.as_millis() as u64).div_ceil(100) + 2);
        let (took, result) = timed(|| redlock.try_lock(KEY, ttl));
        let lock = match result {
            Ok(lock) => lock,
            // A busy machine may take longer than a short lock is valid; nothing else is excused.
            Err(error) => {
                assert_eq!(error.kind(), LockErrorKind::Expired, "{ttl:?}: {error}");
                assert!(took >= ttl - drift && ttl < TTL, "{ttl:?}: {error} after {took:?}");
                continue;
            }
        };
        assert!(lock.remaining() < ttl - drift, "{ttl:?}");
        for node in lock.granted_by() {
            // The key is asked first: what it has left by the time of the claim is less.
            let pttl = pttl(&masters[node], KEY);
            let remaining = lock.remaining();
            let left = Duration::from_millis(u64::try_from(pttl).unwrap_or(0));
            assert!(remaining <= left, "{remaining:?} claimed, {pttl} ms left on {node}");
        }
        drop(lock);
    }
}

#[test]
fn late_round_trips_are_taken_off_the_validity() {
    let masters = start(3);
    let round_trip = Duration::from_millis(100);
    let proxies: Vec<_> = masters
        .iter()
        .map(|master| DelayProxy::start(master.addr().parse().unwrap(), round_trip).unwrap())
        .collect();
    let redlock = all_ready(&patient(proxies.iter().map(DelayProxy::url)));
    let ttl = Duration::from_secs(2);

    // The validity counts from before the first byte of the SET, not from the reply (R1).
    let mut lock = redlock.try_lock(KEY, ttl).unwrap();
    let drift = Duration::from_millis(22);
    assert!(lock.remaining() <= ttl - drift - round_trip, "{:?}", lock.remaining());
    // So does that of an extension (R25).
    let ttl = Duration::from_secs(10);
    lock.extend(ttl).unwrap();
    let drift = Duration::from_millis(102);
    assert!(lock.remaining() <= ttl - drift - round_trip, "{:?}", lock.remaining());
}

#[test]
fn binary_name_and_prefix_make_the_key() {
    let masters = start(1);
    let plain = patient(masters.urls());
    let name = b"\x00\r\n*1\r\n$-1\xff";
    let lock = plain.connect().unwrap().try_lock(name, TTL).unwrap();
    assert_eq!(lock.resource().as_bytes(), name);
    let token = Some(lock.token().as_bytes().to_vec());
    assert_eq!(masters[0].value_of(name).unwrap(), token);

    let prefixed = plain.clone().key_prefix("app:").connect().unwrap();
    let lock = prefixed.try_lock(KEY, TTL).unwrap();
    assert!(owns(&masters[0], &lock, "app:invoice:42"));
    assert_eq!(lock.resource().as_bytes(), KEY.as_bytes());
    // Another prefix is another key.
    let unprefixed = plain.connect().unwrap().try_lock(KEY, TTL).unwrap();
    assert!(owns(&masters[0], &unprefixed, KEY));
    let _ = lock.unlock().unwrap();
    assert_eq!(pttl(&masters[0], "app:invoice:42"), -2);
    assert!(owns(&masters[0], &unprefixed, KEY));
}

#[test]
fn parts_adopted_by_another_client_are_its_lock() {
    let masters = start(3);
    let giver = patient(masters.urls()).connect().unwrap();
    let taker = all_ready(&patient(masters.urls()));
    let lock = giver.try_lock(KEY, TTL).unwrap();
    let before = lock.remaining();
    let parts = lock.into_parts();
    drop(giver);

    let mut lock = taker.adopt(parts).unwrap();
    assert!(lock.remaining() <= before);
    lock.extend(TTL).unwrap();
    assert!(lock.unlock().unwrap().was_held());
    gone_soon(&masters, KEY);
}

#[test]
fn parts_adopted_by_a_client_that_never_connected_are_released_by_it() {
    let masters = start(3);
    let giver = all_ready(&patient(masters.urls()));
    let taker = patient(masters.urls()).build().unwrap();
    let lock = giver.try_lock(KEY, TTL).unwrap();
    masters.iter().for_each(|master| soon("all have it", || owns(master, &lock, KEY)));
    let released = taker.adopt(lock.into_parts()).unwrap().unlock().unwrap();
    assert!(released.was_held(), "{released:?}");
    assert_eq!(taker.shutdown(Duration::from_secs(5)), 0);
    gone_soon(&masters, KEY);
}

#[test]
fn ensure_extends_only_a_lock_that_runs_low() {
    let masters = start(1);
    let redlock = patient(masters.urls()).connect().unwrap();
    let mut lock = redlock.try_lock(KEY, TTL).unwrap();
    lock.ensure(Duration::from_secs(1)).unwrap();
    assert_eq!(redlock.stats().extended, 0);
    // More than is left of it, but not more than its TTL can give.
    let most = TTL - Duration::from_millis(302);
    lock.ensure(most).unwrap();
    assert_eq!(redlock.stats().extended, 1);
    // What its TTL cannot give is refused rather than pretended.
    let error = lock.ensure(TTL).unwrap_err();
    let expected =
        "ensure(30s) needs a ttl of at least 30.004s; this lock has 30s, and max_ttl is 30s";
    assert_eq!(error.to_string(), expected);
    assert!(lock.is_valid());
}

// ---- Contention ----

/// A wait of nothing is no wait: one round, with the time that a round gets.
#[test]
fn wait_of_nothing_is_try_lock() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    let watch = Stopwatch::start();
    let before = watch.instant_after(Duration::ZERO);
    for i in 0..20 {
        let key = format!("{KEY}:{i}");
        let waited = match i % 2 {
            0 => redlock.try_lock_for(&key, TTL, Duration::ZERO),
            _ => redlock.try_lock_until(&key, TTL, before),
        };
        let lock = waited.unwrap_or_else(|error| panic!("{error}"));
        assert!(refused(redlock.try_lock_for(&key, TTL, Duration::ZERO)).is_contended());
        drop(lock);
    }
    let stats = redlock.stats();
    assert_eq!((stats.acquired, stats.contended, stats.rounds), (20, 20, 40));

    // Too short for an answer: nothing is said against masters that had no time.
    let Err(error) = redlock.try_lock_for(KEY, TTL, Duration::from_nanos(1)) else {
        // The answers were there before the client looked at the time.
        return;
    };
    assert!(error.is_timed_out() || error.is_expired(), "{error}");
    assert!(!outcomes(&error).iter().any(NodeOutcome::is_failure), "{error}");
}

#[test]
fn held_resource_second_client_is_contended() {
    let masters = start(5);
    let holder = all_ready(&patient(masters.urls()));
    let lock = holder.try_lock(KEY, TTL).unwrap();
    masters.iter().for_each(|master| soon("all have it", || owns(master, &lock, KEY)));

    let loser = all_ready(&patient(masters.urls()));
    let error = refused(loser.try_lock(KEY, TTL));
    assert_eq!(error.kind(), LockErrorKind::Contended);
    assert!(error.is_contended() && !error.is_unavailable() && !error.is_expired());
    assert_eq!(error.attempts(), 1);
    // Three of five that hold it deny a quorum; who had not answered by then is not waited for.
    assert!(count(&error, NodeOutcome::Held) >= 3, "{error}");
    let known = [NodeOutcome::Held, NodeOutcome::Pending];
    assert!(outcomes(&error).iter().all(|said| known.contains(said)), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("contended: "), "{text}");
    for (i, report) in error.nodes().iter().enumerate() {
        assert_eq!(report.node, i);
        assert_eq!(*report.address, masters[i].addr());
        assert!(text.contains(&masters[i].addr()), "{text}");
    }
    let error = io::Error::from(error);
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    assert!(error.get_ref().is_some_and(|inner| inner.is::<LockError>()));

    // The loser's release is compared with its own token.
    assert_eq!(loser.shutdown(PATIENT), 0);
    assert!(masters.iter().all(|master| owns(master, &lock, KEY)));
    assert_eq!((loser.stats().contended, loser.stats().unavailable), (1, 0));
    drop(lock);
    gone_soon(&masters, KEY);
    drop(loser.try_lock(KEY, TTL).unwrap());
}

#[test]
fn majority_held_by_a_stranger_loser_leaves_no_key() {
    let masters = start(5);
    occupy(masters.iter().take(3), KEY);
    let redlock = all_ready(&patient(masters.urls()));
    let error = refused(redlock.try_lock(KEY, TTL));
    assert!(error.is_contended(), "{error}");

    for (i, master) in masters.iter().enumerate() {
        soon("it was asked", || calls(master, "set") == if i < 3 { 2 } else { 1 });
    }
    gone_soon(masters.iter().skip(3), KEY);
    for master in masters.iter().take(3) {
        assert_eq!(owner(master, KEY).as_deref(), Some(b"stranger".as_slice()));
    }
}

#[test]
fn minority_held_by_a_stranger_is_outvoted() {
    let masters = start(5);
    occupy(masters.iter().take(2), KEY);
    let redlock = all_ready(&patient(masters.urls()));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [2, 3, 4]);
    let released = lock.unlock().unwrap();
    assert_eq!(released.confirmed, 3);
    assert!(released.was_held());
    for master in masters.iter().take(2) {
        assert_eq!(owner(master, KEY).as_deref(), Some(b"stranger".as_slice()));
    }
}

#[test]
fn held_resource_waiter_gets_it_after_the_release() {
    let masters = start(5);
    let holder = all_ready(&patient(masters.urls()));
    let waiter = all_ready(&patient(masters.urls()));
    let lock = holder.try_lock(KEY, TTL).unwrap();
    let released = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            soon("the waiter is waiting", || waiter.stats().queued > 0);
            released.store(true, Ordering::SeqCst);
            let _ = lock.unlock().unwrap();
        });
        let lock = waiter.try_lock_for(KEY, TTL, PATIENT).unwrap();
        assert!(released.load(Ordering::SeqCst));
        assert!(lock.is_valid());
    });
}

#[test]
fn slow_held_resource_waiter_gets_it_after_the_ttl_and_not_before() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    let ttl = Duration::from_secs(1);
    let watch = Stopwatch::start();
    let parts = redlock.try_lock(KEY, ttl).unwrap().into_parts();

    let lock = redlock.try_lock_for(KEY, TTL, PATIENT).unwrap();
    // The server's clock has whole milliseconds, so that a TTL may be up to one shorter.
    let waited = watch.elapsed();
    assert!(waited >= ttl - Duration::from_millis(1), "{waited:?}");
    assert!(waited < SOON, "{waited:?}");
    assert!(redlock.adopt(parts).unwrap_err().is_expired());
    assert!(lock.unlock().unwrap().was_held());
}

#[test]
fn slow_held_resource_waiter_gives_up_within_its_wait() {
    let masters = start(5);
    let holder = all_ready(&patient(masters.urls()));
    let lock = holder.try_lock(KEY, TTL).unwrap();
    let waiter = all_ready(&patient(masters.urls()));
    let wait = Duration::from_secs(1);
    let (took, result) = timed(|| waiter.try_lock_for(KEY, TTL, wait));
    let error = refused(result);
    assert!(error.is_contended(), "{error}");
    assert_eq!(error.queue_position(), Some(0));
    assert!(took >= wait && took < wait + SOON, "{took:?}");

    let waiter = all_ready(&patient(masters.urls()).waiting(Waiting::Retry));
    let (took, result) = timed(|| waiter.try_lock_for(KEY, TTL, wait));
    let error = refused(result);
    assert!(error.is_contended(), "{error}");
    assert!(error.attempts() >= 2, "{error}");
    assert_eq!(error.queue_position(), None);
    // The longest delay between two rounds is twice 64 ms, so the last round was late enough.
    assert!(took >= wait - Duration::from_millis(128), "{took:?}");
    assert!(took < wait + SOON, "{took:?}");

    // The same with an instant instead of a time.
    let watch = Stopwatch::start();
    let error = refused(waiter.try_lock_until(KEY, TTL, watch.instant_after(wait)));
    assert!(error.is_contended(), "{error}");
    assert!(watch.elapsed() < wait + SOON);
    let error = refused(waiter.try_lock_until(KEY, TTL, watch.instant_after(Duration::ZERO)));
    assert_eq!(error.attempts(), 1);
    assert!(lock.is_valid());
}

#[test]
fn slow_held_resource_waiter_cut_off_within_a_round_is_contended() {
    let masters = start(3);
    occupy(&masters, KEY);
    let round_trip = Duration::from_secs(1);
    let proxies: Vec<_> = masters
        .iter()
        .map(|master| DelayProxy::start(master.addr().parse().unwrap(), round_trip).unwrap())
        .collect();
    let millisecond = Duration::from_millis(1);
    let retry = Retry::default().first(millisecond).most(millisecond);
    let redlock = all_ready(&patient(proxies.iter().map(DelayProxy::url)).retry(retry));
    // One round is over after a second and says who holds it; the next is cut off.
    let error = refused(redlock.try_lock_for(KEY, TTL, Duration::from_millis(1_600)));
    assert!(error.is_contended(), "{} attempts: {error}", error.attempts());
    assert_eq!((redlock.stats().contended, redlock.stats().unavailable), (1, 0));
}

#[test]
fn last_round_lost_nobody_sleeps_before_the_answer() {
    let masters = start(3);
    occupy(&masters, KEY);
    // The next round would begin past the end of the wait: the delay is random in [60 s, 120 s].
    let minute = Duration::from_secs(60);
    let retry = Retry::default().first(minute).most(minute);
    let delayed = patient(masters.urls()).waiting(Waiting::Retry).retry(retry);
    let redlock = all_ready(&delayed);
    let (took, result) = timed(|| redlock.try_lock_for(KEY, TTL, PATIENT));
    let error = refused(result);
    assert_eq!((error.kind(), error.attempts()), (LockErrorKind::Contended, 1));
    assert!(took < SOON, "{took:?}");
}

#[test]
fn value_of_another_type_is_somebody_elses() {
    let masters = start(5);
    for master in &masters {
        assert_eq!(ask(master, &["HSET", KEY, "field", "value"]), Value::Integer(1));
    }
    let redlock = all_ready(&patient(masters.urls()));
    let error = refused(redlock.try_lock(KEY, TTL));
    assert!(error.is_contended(), "{error}");
    assert!(count(&error, NodeOutcome::Held) >= 3, "{error}");
    // The release found another type: WRONGTYPE, and left it alone.
    assert_eq!(redlock.shutdown(PATIENT), 0);
    for master in &masters {
        assert_eq!(ask(master, &["HGET", KEY, "field"]), Value::Bulk(b"value".into()));
    }
}

#[test]
fn plain_set_of_another_client_and_ours_exclude_each_other() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    occupy(&masters, KEY);
    assert!(refused(redlock.try_lock(KEY, TTL)).is_contended());

    masters.iter().for_each(|master| master.flush().unwrap());
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    let token = lock.token().as_bytes();
    assert_eq!(token.len(), 40);
    assert!(token.iter().all(u8::is_ascii_hexdigit));
    for master in &masters {
        soon("all have it", || owns(master, &lock, KEY));
        assert_eq!(ask(master, &["SET", KEY, "stranger", "NX", "PX", "60000"]), Value::Nil);
        assert_eq!(ask(master, &["TYPE", KEY]), Value::Status("string".into()));
    }
}

#[test]
fn every_attempt_has_a_token_of_its_own() {
    let masters = start(1);
    let redlock = patient(masters.urls()).connect().unwrap();
    let tokens: BTreeSet<_> =
        (0..500).map(|_| *redlock.try_lock(KEY, TTL).unwrap().token()).collect();
    assert_eq!(tokens.len(), 500, "R6");
}

/// R6: the digits after the tag's are random, and the tag is that of the connections' names.
#[test]
fn clients_have_tags_and_names_of_their_own() {
    let masters = start(1);
    let own = || patient(masters.urls()).connect().unwrap();
    let named = |name: &str| patient(masters.urls()).client_name(name).connect().unwrap();
    let clients = [own(), own(), named("orders/eu:1"), named("")];
    let tags = clients.each_ref().map(|client| {
        let lock = client.try_lock(KEY, TTL).unwrap();
        let tag = str::from_utf8(&lock.token().as_bytes()[32..]).unwrap().to_owned();
        let second = client.try_lock("other", TTL).unwrap();
        assert_eq!(&second.token().as_bytes()[32..], tag.as_bytes());
        assert_ne!(second.token().as_bytes()[..32], lock.token().as_bytes()[..32]);
        tag
    });
    assert_eq!(tags.iter().collect::<BTreeSet<_>>().len(), 4, "{tags:?}");

    let Value::Bulk(list) = masters[0].query(&[b"CLIENT", b"LIST"]).unwrap() else {
        panic!("a text")
    };
    let list = String::from_utf8(list).unwrap();
    let names: Vec<_> =
        list.split([' ', '\n']).filter_map(|field| field.strip_prefix("name=muxlock/")).collect();
    let of = |tag: &String| {
        let head = format!("{}:tag={tag}:mark=", env!("CARGO_PKG_VERSION"));
        // A mark has ten digits.
        let mut rest = names.iter().filter_map(|name| name.strip_prefix(&head)?.get(10..));
        (rest.next().unwrap_or_else(|| panic!("{tag} in {list}")), rest.next())
    };
    for tag in &tags[..2] {
        let (name, other) = of(tag);
        let process = format!(":pid={}:host=", std::process::id());
        assert!(name.starts_with(&process) && name.contains(":cmd="), "{name}");
        let start = name.rsplit_once(":start=").unwrap().1.parse::<u64>().unwrap();
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!((now - 3_600..=now).contains(&start), "{start} and {now}");
        assert_eq!(other, None);
    }
    assert_eq!(of(&tags[2]), (":name=orders/eu:1", None));
    assert_eq!(of(&tags[3]), (":name=", None), "it says nothing");
}

// ---- Masters that are down, frozen or restarted ----

#[test]
fn minority_killed_lock_is_taken_at_once() {
    let mut masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    for i in 0..2 {
        masters[i].kill().unwrap();
        for _ in 0..20 {
            let (took, released) = timed(|| redlock.try_lock(KEY, TTL).unwrap().unlock());
            assert!(released.unwrap().was_held());
            assert!(took < SOON, "{took:?} with master {i} down");
        }
    }
    gone_soon(masters.iter().skip(2), KEY);
}

#[test]
fn minority_frozen_lock_is_taken_without_waiting_for_it() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    for i in 0..2 {
        masters[i].freeze().unwrap();
        for _ in 0..20 {
            let (took, released) = timed(|| redlock.try_lock(KEY, TTL).unwrap().unlock());
            assert!(released.unwrap().was_held());
            assert!(took < SOON, "{took:?} with master {i} frozen: R4, R5");
        }
    }
    gone_soon(masters.iter().skip(2), KEY);
    // The commands of every round are in the frozen masters' sockets, each release behind its SET.
    for master in masters.iter().take(2) {
        master.thaw().unwrap();
        soon("it has caught up", || calls(master, "set") >= 20 && pttl(master, KEY) == -2);
    }
}

#[test]
fn minority_frozen_first_call_connects_without_it() {
    let masters = start(3);
    masters[0].freeze().unwrap();
    let (took, redlock) = timed(|| patient(masters.urls()).connect().unwrap());
    assert!(took < SOON, "{took:?}");
    let (took, released) = timed(|| redlock.try_lock(KEY, TTL).unwrap().unlock());
    assert!(released.unwrap().was_held());
    assert!(took < SOON, "{took:?}");
}

#[test]
fn majority_killed_is_unavailable_at_once() {
    let mut masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    masters.iter_mut().take(3).for_each(|master| master.kill().unwrap());
    // First over connections that have just been lost, then without any.
    for _ in 0..3 {
        let (took, result) = timed(|| redlock.try_lock(KEY, TTL));
        let error = refused(result);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(error.kind(), LockErrorKind::Unavailable);
        for report in &error.nodes()[..3] {
            assert!(matches!(report.outcome, NodeOutcome::Disconnected(_)), "{error}");
        }
        for report in &error.nodes()[3..] {
            let fine = [NodeOutcome::Granted, NodeOutcome::Pending];
            assert!(fine.contains(&report.outcome), "{error}");
        }
        assert!(
            error.to_string().starts_with("unavailable: 3 of 5 nodes gave no vote ("),
            "{error}"
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotConnected);
    }
    // No SET leaves for the others if the refusals are known before (R11).
    gone_soon(masters.iter().skip(3), KEY);

    // A client that never was connected.
    let fresh = patient(masters.urls()).build().unwrap();
    let (took, result) = timed(|| fresh.try_lock(KEY, TTL));
    let error = refused(result);
    assert!(took < Duration::from_secs(1), "{took:?}");
    let nobody = NodeOutcome::Disconnected(io::ErrorKind::ConnectionRefused);
    assert_eq!(outcomes(&error)[..3], [nobody; 3], "{error}");
    let (took, result) = timed(|| patient(masters.urls()).connect());
    assert!(took < Duration::from_secs(1), "{took:?}");
    match result {
        Err(ConnectError::Unavailable(error)) => {
            assert_eq!(outcomes(&error)[..3], [nobody; 3], "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn majority_frozen_is_unavailable_after_the_node_timeout() {
    let masters = start(5);
    let node_timeout = Duration::from_millis(200);
    let redlock = all_ready(&patient(masters.urls()).node_timeout(node_timeout));
    masters.iter().take(3).for_each(|master| master.freeze().unwrap());

    let (took, result) = timed(|| redlock.try_lock(KEY, TTL));
    let error = refused(result);
    assert_eq!(error.kind(), LockErrorKind::Unavailable);
    assert!(took >= node_timeout, "{took:?}");
    assert!(took < node_timeout + Duration::from_secs(2), "{took:?}");
    let silent = NodeOutcome::TimedOut(Phase::Reply);
    let expected = [silent, silent, silent, NodeOutcome::Granted, NodeOutcome::Granted];
    assert_eq!(outcomes(&error), expected, "{error}");
    assert!(error.nodes()[0].latency.is_some_and(|latency| latency >= node_timeout));
    gone_soon(masters.iter().skip(3), KEY);

    // Nobody calls the client now: the release is in the sockets already, behind the SET (R10).
    for master in masters.iter().take(3) {
        master.thaw().unwrap();
        soon("the dead attempt's SET ran", || calls(master, "set") == 1);
        soon("and was undone", || pttl(master, KEY) == -2);
    }
    assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
}

#[test]
fn majority_frozen_waiter_gives_up_within_its_wait() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    masters.iter().take(3).for_each(|master| master.freeze().unwrap());
    let wait = Duration::from_millis(300);
    let (took, result) = timed(|| redlock.try_lock_for(KEY, TTL, wait));
    let error = refused(result);
    assert!(error.is_timed_out(), "{error}");
    assert!(took >= wait, "{took:?}");
    assert!(took < wait + Duration::from_secs(2), "{took:?}");
    gone_soon(masters.iter().skip(3), KEY);
    // They had less time than a node gets.
    assert_eq!(count(&error, NodeOutcome::Pending), 3, "{error}");
    assert!(error.to_string().starts_with("timed out: the wait ended before enough"), "{error}");
}

#[test]
fn even_numbers_tolerate_less_than_half() {
    // (masters, frozen, whether a quorum is left)
    for (n, frozen, left) in
        [(1, 1, false), (2, 1, false), (3, 1, true), (3, 2, false), (4, 1, true), (4, 2, false)]
    {
        let masters = start(n);
        let builder = patient(masters.urls());
        let timeout = if left { PATIENT } else { Duration::from_millis(150) };
        let redlock = all_ready(&builder.node_timeout(timeout));
        masters.iter().take(frozen).for_each(|master| master.freeze().unwrap());
        let (took, result) = timed(|| redlock.try_lock(KEY, TTL));
        assert!(took < SOON, "{took:?}");
        match result {
            Ok(lock) => assert!(left, "{frozen} of {n} frozen: {lock:?}"),
            Err(error) => {
                assert!(!left, "{frozen} of {n} frozen: {error}");
                assert!(error.is_unavailable(), "{error}");
                assert_eq!(count(&error, NodeOutcome::TimedOut(Phase::Reply)), frozen, "{error}");
            }
        }
        gone_soon(masters.iter().skip(frozen), KEY);
    }
}

#[test]
fn half_of_four_killed_is_unavailable() {
    let mut masters = start(4);
    let redlock = all_ready(&patient(masters.urls()));
    masters.iter_mut().take(2).for_each(|master| master.kill().unwrap());
    let error = refused(redlock.try_lock(KEY, TTL));
    assert!(error.is_unavailable(), "R36: the quorum of 4 is 3: {error}");
}

#[test]
fn restarted_master_votes_again() {
    let mut masters = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    masters[0].kill().unwrap();
    masters[2].kill().unwrap();
    // Some failures, so that it is not the first back-off that ends.
    for _ in 0..3 {
        assert!(refused(redlock.try_lock(KEY, TTL)).is_unavailable());
    }
    masters[0].restart().unwrap();
    // Of three with one down, the restarted one's vote is needed. The back-off is at most 1 s.
    let (took, result) = timed(|| redlock.try_lock_for(KEY, TTL, PATIENT));
    let lock = result.unwrap();
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [0, 1]);
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(owns(&masters[0], &lock, KEY));
}

#[test]
fn idle_connections_lost_are_made_again() {
    let mut masters = start(1);
    let redlock = all_ready(&patient(masters.urls()));
    for _ in 0..3 {
        drop(redlock.try_lock(KEY, TTL).unwrap());
        masters[0].restart().unwrap();
        // The first round may find the connection gone; the next has a new one.
        drop(redlock.try_lock_for(KEY, TTL, SOON).unwrap());
    }
}

// ---- Expiry and extension ----

/// R21, R22: whoever was paused finds out when he looks, and what is over stays so.
#[test]
fn slow_expired_lock_stays_dead_and_cannot_be_extended() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    let mut lock = redlock.try_lock(KEY, Duration::from_secs(1)).unwrap();
    soon("it expires", || !lock.is_valid());
    assert_eq!(lock.remaining(), Duration::ZERO);

    let error = lock.extend(TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Expired, "R22, R25");
    assert!(error.nodes().is_empty(), "nothing was sent: {error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
    assert!(lock.ensure(Duration::ZERO).unwrap_err().is_expired());
    gone_soon(&masters, KEY);
    assert!(lock.extend(TTL).unwrap_err().is_expired());
    for _ in 0..100 {
        assert!(!lock.is_valid());
        assert_eq!(lock.remaining(), Duration::ZERO);
    }
    assert!(masters.iter().all(|master| pttl(master, KEY) == -2));
}

#[test]
fn slow_expired_lock_unlocked_leaves_its_successors_key() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    let expired = redlock.try_lock(KEY, Duration::from_secs(1)).unwrap();
    // On all of them, or the successor may be refused by the last.
    soon("it expires", || masters.iter().all(|master| pttl(master, KEY) == -2));
    let successor = all_ready(&patient(masters.urls())).try_lock_for(KEY, TTL, PATIENT).unwrap();
    assert!(!expired.is_valid());
    masters.iter().for_each(|master| soon("all have it", || owns(master, &successor, KEY)));

    let released = expired.unlock().unwrap();
    assert_eq!(released.confirmed, 0, "{released:?}");
    assert!(released.absent >= 3, "{released:?}");
    assert!(!released.was_held());
    assert_eq!(redlock.shutdown(PATIENT), 0);
    assert!(masters.iter().all(|master| owns(master, &successor, KEY)));
    assert!(successor.unlock().unwrap().was_held());
}

#[test]
fn held_lock_extended_by_less_is_not_shortened() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    let mut lock = redlock.try_lock(KEY, TTL).unwrap();
    masters.iter().for_each(|master| soon("all have it", || owns(master, &lock, KEY)));
    lock.extend(Duration::from_secs(5)).unwrap();
    assert_eq!(redlock.shutdown(PATIENT), 0);
    for master in &masters {
        assert!(pttl(master, KEY) >= LONG_MS, "R27: {}", pttl(master, KEY));
    }
    assert!(lock.remaining() > Duration::from_millis(LONG_MS as u64));
    assert_eq!(lock.ttl(), TTL, "what extends it again must not shorten it either");
}

#[test]
fn keys_lost_on_a_majority_extension_fails_and_creates_none() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    let mut lock = redlock.try_lock(KEY, TTL).unwrap();
    masters.iter().for_each(|master| soon("all have it", || owns(master, &lock, KEY)));
    for master in masters.iter().take(3) {
        assert_eq!(ask(master, &["DEL", KEY]), Value::Integer(1));
    }

    let outer = Stopwatch::start();
    let before = lock.remaining();
    let error = lock.extend(TTL).unwrap_err();
    let after = lock.remaining();
    let passed = outer.elapsed();
    assert_eq!(error.kind(), LockErrorKind::Expired, "{error}");
    assert_eq!(outcomes(&error)[..3], [NodeOutcome::Absent; 3], "{error}");
    // The old deadline stands: what went off the remaining time is the time that passed (R26).
    assert!(after <= before && before - after <= passed, "{before:?} {after:?} {passed:?}");
    assert_eq!(redlock.shutdown(PATIENT), 0);
    for master in masters.iter().take(3) {
        assert_eq!(pttl(master, KEY), -2, "R29");
    }
    let released = lock.unlock().unwrap();
    assert!(released.confirmed <= 2 && !released.was_held(), "{released:?}");
    gone_soon(&masters, KEY);
}

#[test]
fn keys_lost_on_a_minority_extension_succeeds_and_creates_none() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    let mut lock = redlock.try_lock(KEY, Duration::from_secs(10)).unwrap();
    masters.iter().for_each(|master| soon("all have it", || owns(master, &lock, KEY)));
    for master in masters.iter().take(2) {
        assert_eq!(ask(master, &["DEL", KEY]), Value::Integer(1));
    }
    lock.extend(TTL).unwrap();
    assert_eq!(redlock.shutdown(PATIENT), 0);
    for (i, master) in masters.iter().enumerate() {
        assert_eq!(pttl(master, KEY) >= LONG_MS, i >= 2, "R29: master {i}");
    }
}

#[test]
fn majority_frozen_extension_is_unavailable_and_keeps_the_deadline() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()).node_timeout(Duration::from_millis(100)));
    let mut lock = redlock.try_lock(KEY, TTL).unwrap();
    masters.iter().take(2).for_each(|master| master.freeze().unwrap());
    let error = lock.extend(TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    assert!(lock.is_valid());
    assert!(lock.remaining() > Duration::from_millis(LONG_MS as u64));
    masters.iter().for_each(|master| master.thaw().unwrap());
    // The guard is as it was: the extension can be tried again.
    within(SOON, "an extension succeeds", || lock.extend(TTL).is_ok());
    assert!(lock.unlock().unwrap().was_held());
}

#[test]
fn slow_majority_frozen_extension_ends_with_the_old_validity() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    let mut lock = redlock.try_lock(KEY, Duration::from_secs(2)).unwrap();
    masters.iter().take(2).for_each(|master| master.freeze().unwrap());
    let (took, result) = timed(|| lock.extend(TTL));
    assert_eq!(result.unwrap_err().kind(), LockErrorKind::Expired, "R25");
    assert!(took < SOON, "{took:?}");
    assert!(!lock.is_valid());
    masters.iter().for_each(|master| master.thaw().unwrap());
    // The extensions run now; their answers must not revive the lock (R22).
    assert_eq!(redlock.shutdown(PATIENT), 0);
    assert!(!lock.is_valid());
    assert_eq!(lock.remaining(), Duration::ZERO);
    drop(lock);
    gone_soon(&masters, KEY);
}

// ---- Release ----

/// R16: nothing waits, nothing panics; before a process ends, `shutdown` flushes.
#[test]
fn dropped_guard_releases_without_waiting() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    drop(redlock.try_lock(KEY, TTL).unwrap());
    gone_soon(&masters, KEY);

    masters[0].freeze().unwrap();
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    let (took, ()) = timed(|| drop(lock));
    assert!(took < SOON, "{took:?}");
    gone_soon(masters.iter().skip(1), KEY);
    masters[0].thaw().unwrap();
    gone_soon(&masters, KEY);
    assert_eq!(redlock.stats().released, 2);
}

#[test]
fn dropped_guard_with_every_master_frozen_does_not_wait() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    masters.iter().for_each(|master| master.freeze().unwrap());
    let (took, ()) = timed(|| drop(lock));
    assert!(took < SOON, "{took:?}");
    masters.iter().for_each(|master| master.thaw().unwrap());
    gone_soon(&masters, KEY);
}

#[test]
fn guard_and_client_dropped_together_release() {
    let masters = start(5);
    for _ in 0..20 {
        let redlock = all_ready(&patient(masters.urls()));
        let lock = redlock.try_lock(KEY, TTL).unwrap();
        // The guard keeps its client; with it go the sockets, right behind the release.
        drop(redlock);
        drop(lock);
        gone_soon(&masters, KEY);
    }
}

#[test]
fn panicking_thread_releases() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _lock = redlock.try_lock(KEY, TTL).unwrap();
        // As a panic does, without its message.
        resume_unwind(Box::new("unwinding"));
    }));
    assert!(panicked.is_err());
    gone_soon(&masters, KEY);
    drop(redlock.try_lock(KEY, TTL).unwrap());
}

#[test]
fn unanswered_set_is_followed_by_its_release() {
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    masters[0].freeze().unwrap();
    let released = redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap();
    assert!(released.was_held());
    assert!(released.unknown >= 1, "{released:?}");
    drop(redlock);
    // Its SET and its release wait in the socket of a client that is gone (R10).
    masters[0].thaw().unwrap();
    soon("the SET ran", || calls(&masters[0], "set") == 1);
    soon("the release ran", || pttl(&masters[0], KEY) == -2);
}

#[test]
fn majority_frozen_unlock_is_unavailable_and_released_after_all() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()).node_timeout(Duration::from_millis(100)));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    masters.iter().take(2).for_each(|master| master.freeze().unwrap());
    let error = lock.unlock().unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    assert_eq!(count(&error, NodeOutcome::TimedOut(Phase::Reply)), 2, "{error}");
    masters.iter().for_each(|master| master.thaw().unwrap());
    gone_soon(&masters, KEY);
}

#[test]
fn unanswered_commands_shutdown_counts_them() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    masters[0].freeze().unwrap();
    drop(redlock.try_lock(KEY, TTL).unwrap());
    let wait = Duration::from_millis(200);
    let (took, left) = timed(|| redlock.shutdown(wait));
    assert_eq!(left, 2, "the SET and its release on the frozen master");
    assert!(took >= wait && took < wait + SOON, "{took:?}");
    masters[0].thaw().unwrap();
    assert_eq!(redlock.shutdown(PATIENT), 0);
    gone_soon(&masters, KEY);
}

/// What the master is sent over one connection of ours to it.
struct Upstream(std::net::TcpStream);

impl Upstream {
    fn connect(addr: &str) -> io::Result<Upstream> {
        let stream = std::net::TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        Ok(Upstream(stream))
    }

    fn send(&mut self, command: &[Vec<u8>]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        io::Write::write_all(&mut self.0, &bytes)
    }

    /// A reply, byte for byte.
    fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut reply = self.line()?;
        let length =
            std::str::from_utf8(&reply[1..]).map_or(0, |line| line.trim().parse().unwrap_or(0));
        match reply[0] {
            b'$' | b'=' if reply != b"$-1\r\n" => {
                let mut text = vec![0; length + 2];
                io::Read::read_exact(&mut self.0, &mut text)?;
                reply.extend(text);
            }
            b'*' => {
                for _ in 0..length {
                    reply.extend(self.reply()?);
                }
            }
            b'%' => {
                for _ in 0..2 * length {
                    reply.extend(self.reply()?);
                }
            }
            _ => {}
        }
        Ok(reply)
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            io::Read::read_exact(&mut self.0, &mut byte)?;
            line.push(byte[0]);
        }
        Ok(line)
    }
}

fn pass_on(peer: &mut Peer, upstream: &mut Upstream) -> io::Result<()> {
    while let Some(command) = peer.read_command()? {
        upstream.send(&command)?;
        let reply = upstream.reply()?;
        peer.reply(&reply)?;
    }
    Ok(())
}

/// A way to the master on which the first connection is cut once a SET has passed.
fn cut_after_the_first_set(master: &Master) -> Scripted {
    let addr = master.addr();
    Scripted::start(move |peer| {
        let mut upstream = Upstream::connect(&addr)?;
        peer.upstream(&upstream.0)?;
        if peer.index() > 0 {
            return pass_on(peer, &mut upstream);
        }
        while let Some(command) = peer.read_command()? {
            upstream.send(&command)?;
            if command[0] == b"SET" {
                peer.reset()?;
                // The master keeps its end of the connection, and what it has been sent.
                return peer.hold();
            }
            let reply = upstream.reply()?;
            peer.reply(&reply)?;
        }
        Ok(())
    })
}

#[test]
fn connection_lost_before_the_reply_key_is_deleted_over_the_next() {
    let masters = start(2);
    let way = cut_after_the_first_set(&masters[0]);
    let redlock = all_ready(&patient([way.url(), masters[1].url()]));
    let error = refused(redlock.try_lock(KEY, TTL));
    assert!(error.is_unavailable(), "{error}");
    assert!(matches!(outcomes(&error)[0], NodeOutcome::Disconnected(_)), "{error}");
    gone_soon(masters.iter().skip(1), KEY);
    // While the client is in use, it pays what it owes (R12). Any call will do.
    soon("the SET ran", || calls(&masters[0], "set") == 1);
    soon("the key is deleted", || {
        redlock.nodes();
        pttl(&masters[0], KEY) == -2
    });
    soon("nothing is owed any more", || redlock.nodes()[0].pending_releases == 0);
    assert_eq!(way.accepted(), 2);
    assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
}

#[test]
fn connection_to_a_frozen_master_lost_key_is_deleted_after_the_thaw() {
    let masters = start(2);
    let way = cut_after_the_first_set(&masters[0]);
    let redlock = all_ready(&patient([way.url(), masters[1].url()]));
    masters[0].freeze().unwrap();
    // The SET is in the socket of a process that does not run: losing the connection does not
    // cancel it.
    assert!(refused(redlock.try_lock(KEY, TTL)).is_unavailable());
    soon("the client comes back", || {
        redlock.nodes();
        way.accepted() == 2
    });
    masters[0].thaw().unwrap();
    soon("the SET ran", || calls(&masters[0], "set") == 1);
    soon("the key is deleted", || {
        redlock.nodes();
        pttl(&masters[0], KEY) == -2 && redlock.nodes()[0].pending_releases == 0
    });
}

#[test]
fn paused_master_kills_the_connection_and_no_key_is_left() {
    let test = "paused_master_kills_the_connection_and_no_key_is_left";
    if is_older_than([6, 2, 0], test, "CLIENT PAUSE with a mode") {
        return;
    }
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    // SETs are not answered from now on, but other commands are.
    tell(&masters[0], &["CLIENT", "PAUSE", "60000", "WRITE"]);
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [1, 2]);
    drop(lock);
    end_connection(&masters[0]);
    tell(&masters[0], &["CLIENT", "UNPAUSE"]);
    soon("nothing is owed any more", || {
        let nodes = redlock.nodes();
        nodes[0].pending_releases == 0 && nodes[0].state == muxlock::node::NodeState::Ready
    });
    assert_eq!(redlock.stats().disconnected, 1);
    gone_soon(&masters, KEY);
    assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
}

#[test]
fn refused_release_is_repeated_until_it_is_done() {
    let masters = start(1);
    let redlock = all_ready(&patient(masters.urls()));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    tell(&masters[0], &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    if scripts_write_anyway(&masters[0], "refused_release_is_repeated_until_it_is_done") {
        return;
    }
    let error = lock.unlock().unwrap_err();
    assert_eq!(outcomes(&error), [NodeOutcome::Server(ServerErrorKind::NoReplicas)], "{error}");
    assert!(error.is_unavailable());
    assert!(pttl(&masters[0], KEY) >= LONG_MS);
    assert_eq!(redlock.nodes()[0].pending_releases, 1);
    let error = refused(redlock.try_lock("other", TTL));
    assert_eq!(outcomes(&error), [NodeOutcome::Server(ServerErrorKind::NoReplicas)], "{error}");

    tell(&masters[0], &["CONFIG", "SET", "min-replicas-to-write", "0"]);
    soon("the key is deleted", || {
        redlock.nodes();
        pttl(&masters[0], KEY) == -2
    });
}

// ---- How masters are set up ----

#[test]
fn password_in_the_address_opens_the_master() {
    let password = "p@ss:w/rd %#?ä";
    let encoded = "p%40ss%3Aw%2Frd%20%25%23%3F%C3%A4";
    let masters: Vec<_> = (0..3).map(|_| start_one(&["--requirepass", password])).collect();
    let url = |master: &Master| format!("redis://:{encoded}@{}", master.addr());
    let redlock = all_ready(&patient(masters.iter().map(url)));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    assert!(masters.iter().filter(|master| owns(master, &lock, KEY)).count() >= 2);
    assert!(lock.unlock().unwrap().was_held());
    gone_soon(&masters, KEY);
}

#[test]
fn wrong_password_is_unavailable_and_never_shown() {
    let secret = "sesame-sesame";
    let masters: Vec<_> = (0..3).map(|_| start_one(&["--requirepass", "right"])).collect();
    let auth = NodeOutcome::Server(ServerErrorKind::Auth);
    let check = |error: &LockError| {
        assert!(error.is_unavailable(), "{error}");
        assert!(count(error, auth) >= 2, "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(secret), "{shown}");
        assert!(shown.contains("WRONGPASS"), "{shown}");
    };
    let url = |master: &Master| format!("redis://:{secret}@{}", master.addr());
    let builder = patient(masters.iter().map(url));
    match builder.connect() {
        Err(ConnectError::Unavailable(error)) => check(&error),
        other => panic!("{other:?}"),
    }
    let redlock = builder.build().unwrap();
    for _ in 0..3 {
        check(&refused(redlock.try_lock(KEY, TTL)));
    }
    let config = builder.config().unwrap();
    let shown = format!("{builder:?} {config:?} {redlock:?} {:?}", redlock.nodes());
    assert!(!shown.contains(secret), "{shown}");

    // No password at all: found out at the handshake, not at the first lock.
    match patient(masters.iter().map(Master::url)).connect() {
        Err(ConnectError::Unavailable(error)) => assert!(count(&error, auth) >= 2, "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn database_in_the_address_is_where_the_key_is() {
    let masters = start(3);
    let urls: Vec<_> = masters.iter().map(|master| format!("{}/3", master.url())).collect();
    let redlock = all_ready(&patient(urls));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    for master in &masters {
        assert_eq!(pttl(master, KEY), -2);
        // Over the connection that is kept for queries.
        tell(master, &["SELECT", "3"]);
        soon("the key is there", || owns(master, &lock, KEY));
    }
    // Database 0 is another place.
    drop(all_ready(&patient(masters.urls())).try_lock(KEY, TTL).unwrap());
    assert!(lock.unlock().unwrap().was_held());
    gone_soon(&masters, KEY);

    let missing: Vec<_> = masters.iter().map(|master| format!("{}/16", master.url())).collect();
    match patient(missing).connect() {
        Err(ConnectError::Unavailable(error)) => {
            assert!(count(&error, NodeOutcome::Server(ServerErrorKind::Other)) >= 2, "{error}");
            assert!(error.to_string().contains("DB index is out of range"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn unix_sockets_serve_like_tcp() {
    let start = || Master::start_with_socket().unwrap_or_else(|error| panic!("{error}"));
    let mut masters = [start(), start(), start()];
    let url =
        |master: &Master, db| format!("unix://{}?db={db}", master.socket_path().unwrap().display());
    let redlock = all_ready(&patient(masters.iter().map(|master| url(master, 0))));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    assert!(masters.iter().filter(|master| owns(master, &lock, KEY)).count() >= 2);
    let elsewhere = all_ready(&patient(masters.iter().map(|master| url(master, 1))));
    assert!(elsewhere.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
    assert!(lock.unlock().unwrap().was_held());
    gone_soon(&masters, KEY);

    // Frozen and killed ones cost their own vote.
    masters[0].freeze().unwrap();
    assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
    masters[0].kill().unwrap();
    assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
    masters[1].kill().unwrap();
    let error = refused(redlock.try_lock(KEY, TTL));
    for outcome in &outcomes(&error)[..2] {
        assert!(matches!(outcome, NodeOutcome::Disconnected(_)), "{error}");
    }
    masters[1].restart().unwrap();
    drop(redlock.try_lock_for(KEY, TTL, SOON).unwrap());
}

#[test]
fn user_with_few_rights_can_lock_and_no_more() {
    let masters = start(3);
    for master in &masters {
        let rights = "on >se:cret ~app:* +set +eval +get +del +pexpire +pttl";
        let mut command = vec!["ACL", "SETUSER", "locker"];
        command.extend(rights.split(' '));
        tell(master, &command);
    }
    let url = |master: &Master| format!("redis://locker:se%3Acret@{}", master.addr());
    let builder = patient(masters.iter().map(url)).key_prefix("app:");
    let redlock = all_ready(&builder);
    let mut lock = redlock.try_lock(KEY, TTL).unwrap();
    lock.extend(TTL).unwrap();
    assert!(lock.unlock().unwrap().was_held());
    gone_soon(&masters, "app:invoice:42");

    // Another key is not the user's.
    let redlock = all_ready(&builder.key_prefix("other:"));
    let error = refused(redlock.try_lock(KEY, TTL));
    assert!(error.is_unavailable(), "{error}");
    assert!(count(&error, NodeOutcome::Server(ServerErrorKind::Permission)) >= 2, "{error}");
    assert!(!format!("{error} {error:?}").contains("se:cret"), "{error}");
}

/// The user of docs/masters.md can do all that the client does: the servers log no denial.
#[test]
fn slow_documented_user_is_denied_nothing() {
    let uses =
        ["create the user of the locks", "# Waiting", "# Several resources", "# Read and write"];
    let rights = uses.map(|text| documented_rights("locker", text)).concat();
    let masters = start(3);
    for master in &masters {
        let mut command = vec!["ACL", "SETUSER", "locker", "on", ">se:cret", "~app:*"];
        command.extend(rights.iter().map(String::as_str));
        tell(master, &command);
        // Servers before 6.2 know no channels in rules.
        ask(master, &["ACL", "SETUSER", "locker", "&muxlock:*"]);
        // What the page adds for some servers; the others refuse the name.
        for right in ["+delex", "+delifeq"] {
            ask(master, &["ACL", "SETUSER", "locker", right]);
        }
    }
    let url = |master: &Master| format!("redis://locker:se%3Acret@{}/1", master.addr());
    let redlock = all_ready(&patient(masters.iter().map(url)).key_prefix("app:"));
    let mut lock = redlock.try_lock(KEY, TTL).unwrap();
    lock.extend(TTL).unwrap();
    assert!(redlock.inspect(KEY).unwrap().holder().is_some());
    assert!(lock.unlock().unwrap().was_held());
    // Other kinds of lock.
    let share = redlock.try_write("shared", TTL).unwrap().downgrade(TTL).unwrap();
    assert!(redlock.try_write_for("shared", TTL, SOON / 5).unwrap_err().is_contended());
    let permit = redlock.semaphore("some", 2).unwrap().try_acquire(TTL).unwrap();
    let set = redlock.try_lock_all(["one", "two"], TTL).unwrap();
    soon("the sign of the writer is gone", || redlock.try_read("shared", TTL).is_ok());
    for mut lock in [share, permit, set] {
        lock.extend(TTL).unwrap();
        assert!(lock.unlock().unwrap().was_held());
    }
    // One waits, steps out, and one waits and is told.
    let waiter = all_ready(&patient(masters.iter().map(url)).key_prefix("app:"));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    let error = refused(waiter.try_lock_for(KEY, TTL, SOON / 5));
    assert_eq!(error.queue_position(), Some(0), "{error}");
    thread::scope(|scope| {
        let waits = || waiter.try_lock_for(KEY, TTL, PATIENT).unwrap().unlock().unwrap();
        let granted = scope.spawn(waits);
        soon("it waits", || waiter.stats().queued == 2);
        assert!(lock.unlock().unwrap().was_held());
        assert!(granted.join().unwrap().was_held());
    });
    assert_eq!(waiter.shutdown(SOON), 0);
    drop(waiter);
    // The connections are killed and made again, and clock and role are looked at.
    for master in &masters {
        let killed = master.query(&[b"CLIENT", b"KILL", b"USER", b"locker"]).unwrap();
        // A busy server may not have read yet that the waiter closed its connection.
        assert!(matches!(killed, Value::Integer(1 | 2)), "{killed:?}");
    }
    drop(redlock.try_lock_for(KEY, TTL, SOON).unwrap());
    assert_eq!(redlock.shutdown(SOON), 0);
    for master in &masters {
        let denied = master.query(&[b"ACL", b"LOG"]).unwrap();
        assert_eq!(denied, Value::Array(Vec::new()), "{denied:?}");
    }
}

/// The commands that are tried in front of the first lock of a kind do not make room for it.
#[test]
fn masters_out_of_memory_refuse_the_first_lock_of_a_kind_as_the_next() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    let owner = all_ready(&patient(masters.urls()));
    let held = owner.try_lock_as("own", "mine", TTL).unwrap();
    let permits = redlock.semaphore("permit", 2).unwrap();
    for master in masters.iter() {
        tell(master, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        tell(master, &["CONFIG", "SET", "maxmemory", "1"]);
    }
    let is_full = |error: &LockError| {
        let oom = NodeOutcome::Server(ServerErrorKind::OutOfMemory);
        assert!(error.is_unavailable() && outcomes(error).contains(&oom), "{error}");
    };
    for _ in 0..3 {
        is_full(&redlock.try_read(KEY, TTL).unwrap_err());
        is_full(&redlock.try_write(KEY, TTL).unwrap_err());
        is_full(&redlock.try_lock_all(["one", "two"], TTL).unwrap_err());
        is_full(&redlock.fenced().try_lock("fenced", TTL).unwrap_err());
        is_full(&permits.try_acquire(TTL).unwrap_err());
    }
    // Its script may write.
    let other = all_ready(&patient(masters.urls()));
    for _ in 0..3 {
        assert!(other.try_lock_as("free", "mine", TTL).unwrap().unlock().unwrap().was_held());
    }
    assert!(held.unlock().unwrap().was_held());
}

#[test]
fn replica_gives_no_vote_until_it_is_a_master_again() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    let elsewhere = masters[2].port().to_string();
    for replica in masters.iter().take(2) {
        tell(replica, &["REPLICAOF", "127.0.0.1", &elsewhere]);
    }
    // It says so when it is written to, and from then on in its handshakes (R33).
    let demoted = [
        NodeOutcome::Server(ServerErrorKind::ReadOnly),
        NodeOutcome::Unfit(Unfit::Replica),
        NodeOutcome::Unfit(Unfit::Replica),
    ];
    for outcome in demoted {
        let error = refused(redlock.try_lock(KEY, TTL));
        assert!(error.is_unavailable(), "{error}");
        assert_eq!(outcomes(&error)[..2], [outcome; 2], "{error}");
    }
    for replica in masters.iter().take(2) {
        tell(replica, &["REPLICAOF", "NO", "ONE"]);
    }
    let lock = redlock.try_lock_for(KEY, TTL, SOON).unwrap();
    assert!(lock.unlock().unwrap().was_held());
}

#[test]
fn master_with_too_many_clients_costs_its_vote_only() {
    let masters = start(3);
    // The connection that is kept for queries is the one client.
    tell(&masters[0], &["CONFIG", "SET", "maxclients", "1"]);
    let redlock = patient(masters.urls()).build().unwrap();
    assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());

    tell(&masters[1], &["CONFIG", "SET", "maxclients", "1"]);
    let redlock = patient(masters.urls()).build().unwrap();
    let error = refused(redlock.try_lock(KEY, TTL));
    assert!(error.is_unavailable(), "{error}");
    let full = NodeOutcome::Server(ServerErrorKind::MaxClients);
    assert_eq!(outcomes(&error)[..2], [full; 2], "{error}");
    for master in masters.iter().take(2) {
        tell(master, &["CONFIG", "SET", "maxclients", "100"]);
    }
    drop(redlock.try_lock_for(KEY, TTL, SOON).unwrap());
}

#[test]
fn missing_server_tests_fail_with_a_sentence() {
    let test = "even_numbers_tolerate_less_than_half";
    let output = re_execute(test)
        .env("PATH", "/nonexistent")
        .env_remove(muxlock::testing::SERVER_VARIABLE)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("redis-server is not installed or not on PATH"), "{said}");
}

/// What holds for the usual server holds for one that compares and deletes by itself.
#[test]
fn deleting_servers_pass_the_same_tests() {
    let test = "deleting_servers_pass_the_same_tests";
    let Some(server) = deleting_server(test) else { return };
    let usual =
        env::var_os(muxlock::testing::SERVER_VARIABLE).unwrap_or_else(|| "redis-server".into());
    if server == usual {
        // All the others run on it.
        return;
    }
    let output = std::process::Command::new(env::current_exe().unwrap())
        .args(["masters::", "--skip", test])
        .env(muxlock::testing::SERVER_VARIABLE, server)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
}

// ---- Threads ----

#[test]
fn slow_alone_core_one_resource_shared_by_threads_has_one_holder_at_a_time() {
    let _turn = heavy();
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    let inside = AtomicBool::new(false);
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut sections = 0;
                // Each thread gets there at least once, however unlucky it is.
                while sections == 0 || watch.elapsed() < Duration::from_secs(2) {
                    let Ok(lock) = redlock.try_lock_for(KEY, TTL, PATIENT) else {
                        panic!("a thread got no turn");
                    };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
                    thread::yield_now();
                    assert!(inside.swap(false, Ordering::SeqCst));
                    let _ = lock.unlock().unwrap();
                    sections += 1;
                }
            });
        }
    });
    assert!(watch.elapsed() < PATIENT, "{:?}", watch.elapsed());
    gone_soon(&masters, KEY);
}

#[test]
fn slow_alone_resources_of_different_threads_do_not_disturb_each_other() {
    let _turn = heavy();
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        for thread in 0..16 {
            let redlock = redlock.clone();
            scope.spawn(move || {
                let key = format!("{KEY}:{thread}");
                let mut rounds = 0;
                while rounds < 10 || watch.elapsed() < Duration::from_secs(2) {
                    let mut lock = redlock.try_lock(&key, TTL).unwrap();
                    assert_eq!(lock.resource().as_bytes(), key.as_bytes());
                    lock.extend(TTL).unwrap();
                    assert!(refused(redlock.try_lock(&key, TTL)).is_contended());
                    assert!(lock.unlock().unwrap().was_held());
                    rounds += 1;
                }
            });
        }
    });
    assert!(watch.elapsed() < PATIENT, "{:?}", watch.elapsed());
    assert_eq!(redlock.shutdown(PATIENT), 0);
    assert!(masters.iter().all(|master| master.dbsize().unwrap() == 0));
}

#[test]
fn slow_waiting_thread_is_not_held_up_by_anothers_frozen_masters() {
    let masters = start(3);
    let redlock = all_ready(&patient(masters.urls()).node_timeout(Duration::from_secs(2)));
    let held = redlock.try_lock("held", TTL).unwrap();
    // One thread leads the loop with a long wait; the short one of another ends on time.
    thread::scope(|scope| {
        scope.spawn(|| {
            let error = refused(redlock.try_lock_for("held", TTL, SOON));
            assert!(error.is_contended(), "{error}");
        });
        soon("it leads", || redlock.stats().queued > 0);
        let wait = Duration::from_millis(500);
        let (took, result) = timed(|| redlock.try_lock_for("held", TTL, wait));
        assert!(refused(result).is_contended());
        assert!(took < SOON - SOON / 5, "{took:?}");
        let (took, result) = timed(|| redlock.try_lock(KEY, TTL));
        drop(result.unwrap());
        assert!(took < SOON - SOON / 5, "{took:?}");
    });
    drop(held);
}

// ---- Processes ----

const URLS_VARIABLE: &str = "MUXLOCK_TEST_URLS";
const DIARY_VARIABLE: &str = "MUXLOCK_TEST_DIARY";
/// How long a fault of one master may hold up contenders, on a machine that is not busy.
const STALL_MAX: Duration = Duration::from_secs(1);
/// How long a fault lasts: longer than a node may take.
const FAULT: Duration = Duration::from_millis(300);

fn urls_from_parent() -> Vec<String> {
    let urls = env::var(URLS_VARIABLE).expect("the parent names the masters");
    urls.split(' ').map(str::to_owned).collect()
}

/// Threads, descriptors and memory after many operations are as before the first.
#[cfg(target_os = "linux")]
#[test]
fn slow_alone_ten_thousand_operations_leave_no_thread_descriptor_or_memory() {
    let _turn = heavy();
    use testbed::{descriptors, status_figure};

    let test = "slow_alone_ten_thousand_operations_leave_no_thread_descriptor_or_memory";
    if is_child(test) {
        let redlock = all_ready(&patient(urls_from_parent()));
        let before = (status_figure("Threads"), descriptors());
        report_to_parent("ready");
        // Otherwise a master that lags behind might be needed for what it was never sent.
        io::stdin().read_line(&mut String::new()).unwrap();
        for _ in 0..3_333 {
            let mut lock = redlock.try_lock(KEY, TTL).unwrap();
            lock.extend(TTL).unwrap();
            let _ = lock.unlock().unwrap();
        }
        drop(redlock.try_lock(KEY, TTL).unwrap());
        assert_eq!(status_figure("Threads"), before.0);
        // A silent connection has at most one beside it.
        assert!(descriptors() <= before.1 + redlock.nodes().len(), "{} descriptors", descriptors());
        report_to_parent(status_figure("VmHWM"));
        return;
    }
    let masters = start(5);
    // Also with as many frozen masters as leave a quorum: what is unanswered is bounded (R18).
    for frozen in [0, 2] {
        let urls = masters.urls().join(" ");
        let mut command = re_execute(test);
        let command = command.env(URLS_VARIABLE, urls).stdin(Stdio::piped());
        let mut child = Again::start(command);
        let mut told = child.lines();
        assert_eq!(told.next().as_deref(), Some("ready"));
        masters.iter().take(frozen).for_each(|master| master.freeze().unwrap());
        drop(child.take_input());
        let peak: Vec<_> = told.collect();
        assert!(child.status().success(), "{frozen} frozen");
        let peak: u64 = peak[0].parse().unwrap();
        println!("peak resident memory with {frozen} of 5 frozen: {peak} KiB");
        assert!(peak < 64 * 1024, "{peak} KiB with {frozen} frozen");
    }
}

/// What contenders do, in the order in which they did it: each line is appended to one file, by
/// whichever process, and so the file is a clock that all of them share.
///
/// `in` and `out` are where a section begins and ends. `sure` and `held` come after them, and say
/// that the lock is still valid: then it was valid there, too. On a busy machine a section may
/// outlive its lock; without `held` it says nothing of its end.
struct Diary(fs::File);

impl Diary {
    fn open(path: &str) -> Diary {
        Diary(fs::File::options().create(true).append(true).open(path).unwrap())
    }

    fn note(&self, what: &str, id: &str) {
        // In one piece, so that the lines of others come before or after it.
        io::Write::write_all(&mut &self.0, format!("{what} {id}\n").as_bytes()).unwrap();
    }
}

/// How many sections there were from a line of a [`Diary`] on, whole and held throughout.
///
/// # Panics
///
/// Panics if two of them were held at the same place.
fn sections(lines: &[&str], from: usize) -> usize {
    let events = || lines.iter().filter_map(|line| line.split_once(' '));
    let all = |word| events().filter(move |(what, _)| *what == word).map(|(_, id)| id).collect();
    let (sure, held): (BTreeSet<&str>, BTreeSet<&str>) = (all("sure"), all("held"));
    let mut inside = None;
    let mut whole = 0;
    for (at, (what, id)) in events().enumerate() {
        match what {
            "in" if sure.contains(id) => {
                assert_eq!(inside, None, "{id} is a second holder in line {at}");
                inside = held.contains(id).then_some((id, at));
            }
            "out" if held.contains(id) => {
                let (_, since) = inside.take().filter(|(inside, _)| *inside == id).unwrap();
                whole += usize::from(since >= from);
            }
            _ => {}
        }
    }
    whole
}

/// What each of the contending processes runs, until its input ends.
fn contend() {
    let urls = urls_from_parent();
    let diary = Diary::open(&env::var(DIARY_VARIABLE).expect("the parent names a file"));
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    thread::spawn(move || {
        let _ = io::stdin().lines().count();
        stopping.store(true, Ordering::SeqCst);
    });
    let builder = Redlock::builder()
        .nodes(urls)
        .node_timeout(Duration::from_millis(100))
        .connect_timeout(Duration::from_millis(300))
        .restart_guard(RestartGuard::Off);
    let count = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let redlock = builder.build().unwrap();
                report_to_parent("ready");
                while !stop.load(Ordering::SeqCst) {
                    let count = count.fetch_add(1, Ordering::SeqCst);
                    contend_once(&redlock, &diary, &format!("{}:{count}", std::process::id()));
                }
            });
        }
    });
}

fn contend_once(redlock: &Redlock, diary: &Diary, id: &str) {
    let ttl = Duration::from_secs(2);
    let Ok(lock) = redlock.try_lock_for(KEY, ttl, Duration::from_secs(1)) else {
        return;
    };
    diary.note("in", id);
    if !lock.is_valid() {
        return;
    }
    diary.note("sure", id);
    pause(Duration::from_millis(2));
    diary.note("out", id);
    if lock.is_valid() {
        diary.note("held", id);
    }
}

#[test]
fn slow_alone_core_contending_processes_under_faults_never_overlap_and_never_stall() {
    let _turn = heavy();
    let test = "slow_alone_core_contending_processes_under_faults_never_overlap_and_never_stall";
    if is_child(test) {
        return contend();
    }
    const PROCESSES: usize = 8;
    const HANDLES: usize = 4;
    const FAULTS: usize = 25;
    // What is counted in each fault, and before it.
    const SECTIONS: usize = 3;
    let folder = Folder::create(test);
    // They write before they answer, so that a killed master forgets nothing that it granted; to
    // memory if that is possible, so that the disk of a busy machine is not what is measured.
    let mut masters: Vec<_> = (0..5)
        .map(|i| {
            let data = folder.0.join(i.to_string());
            fs::create_dir(&data).unwrap();
            let dir = data.to_str().expect("a path that is UTF-8");
            start_one(&["--dir", dir, "--appendonly", "yes", "--appendfsync", "always"])
        })
        .collect();
    let urls: Vec<_> = masters.iter().map(Master::url).collect();
    let diary = folder.0.join("diary").to_str().expect("a path that is UTF-8").to_owned();
    let mut children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut command = re_execute(test);
            command.env(URLS_VARIABLE, urls.join(" ")).env(DIARY_VARIABLE, &diary);
            Again::start(command.stdin(Stdio::piped()))
        })
        .collect();
    // Kept until the end: a child that cannot write its output fails.
    let mut told: Vec<_> = children.iter_mut().map(Again::lines).collect();
    for told in &mut told {
        assert_eq!(told.take(HANDLES).collect::<Vec<_>>(), ["ready"; HANDLES]);
    }

    // From now on, so many sections take so long at most.
    let read = || fs::read_to_string(&diary).unwrap_or_default();
    let next_sections = |limit: Duration, what: &str| {
        let from = read().lines().count();
        let look = || {
            pause(Duration::from_millis(20));
            sections(&read().lines().collect::<Vec<_>>(), from) >= SECTIONS
        };
        timed(|| within(limit, what, look)).0
    };
    // One master after the other is frozen, or killed and restarted; one at a time.
    let mut took = Vec::new();
    for fault in 0..FAULTS {
        let usual = next_sections(PATIENT, "nothing is wrong");
        // A busy machine takes longer for all sections.
        let limit = STALL_MAX + 50 * usual;
        let master = &mut masters[fault % 5];
        if fault % 2 == 0 {
            master.freeze().unwrap();
            // Two contenders may have the votes of two masters each and wait for the frozen one's,
            // and others after them. So it is once it goes on that there must be progress.
            pause(FAULT);
            master.thaw().unwrap();
        } else {
            master.kill().unwrap();
            pause(FAULT);
            next_sections(limit, &format!("{usual:?} without fault {fault}, which lasts"));
            master.restart().unwrap();
        }
        let healed =
            next_sections(limit, &format!("{usual:?} before fault {fault}, which is over"));
        took.push((usual, healed));
    }
    children.iter_mut().for_each(|child| drop(child.take_input()));
    for mut child in children {
        let status = child.status();
        assert!(status.success(), "a contender failed: {status}; see above");
    }
    let whole = sections(&read().lines().collect::<Vec<_>>(), 0);
    println!("{whole} sections; {SECTIONS} of them before and after each fault took {took:?}");
}

/// One pair each 50 ms: what a call did not wait for is read with the next one, and says nothing of
/// the time that the master took.
#[test]
fn slow_alone_masters_of_a_client_that_does_little_are_not_shown_as_slow() {
    const PAUSE: Duration = Duration::from_millis(50);
    let _turn = heavy();
    let masters = start(5);
    let redlock = all_ready(&patient(masters.urls()));
    let config = patient(masters.urls()).config().unwrap();
    let mut guest = muxlock::Standalone::new(config).unwrap();
    let mut pair_of_guest = || {
        let until = |guest: &mut muxlock::Standalone| loop {
            if let Some((_, done)) = guest.mux_mut().poll_done() {
                return done;
            }
            guest.wait(PATIENT).unwrap();
        };
        guest.mux_mut().try_lock("guest", TTL).unwrap();
        guest.mux_mut().flush();
        let muxlock::proto::Done::Acquired(Ok(lease)) = until(&mut guest) else {
            panic!("it is free");
        };
        guest.mux_mut().unlock(lease);
        guest.mux_mut().flush();
        let _ = until(&mut guest);
        pause(PAUSE);
        // What has come meanwhile is read, too.
        guest.turn().unwrap();
        guest.mux().nodes().collect::<Vec<_>>()
    };
    let pair = || {
        let _ = redlock.try_lock("client", TTL).unwrap().unlock().unwrap();
        pause(PAUSE);
        redlock.nodes()
    };
    let (mut slow, mut seen) = (0, 0);
    for _ in 0..20 {
        for status in pair().into_iter().chain(pair_of_guest()) {
            let last = status.last_outcome.and_then(|(_, latency)| latency);
            let is_slow = |time: Duration| time >= PAUSE * 4 / 5;
            slow += usize::from(last.is_some_and(is_slow) || status.latency.is_some_and(is_slow));
            seen += 1;
        }
    }
    // A busy machine may hold one up now and then.
    assert!(slow * 20 <= seen, "{slow} of {seen}");
}
