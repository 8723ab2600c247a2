//! Locks with a fencing token over real masters.

use std::time::Duration;

use muxlock::settings::RestartGuard;
use muxlock::testing::{Masters, Value};
use muxlock::{Fenced, FencingToken, KeepAlive, LockErrorKind, LockGuard, Redlock};
use testbed::{Stopwatch, TTL, all_ready, patient};

const KEY: &str = "invoice:42";
const COUNTERS: &[u8] = b"muxlock:fence";
/// That of the key.
const BUCKET: &[u8] = b"10308";

fn start(n: usize) -> (Masters, Redlock) {
    let masters = Masters::start(n).unwrap_or_else(|error| panic!("{error}"));
    let builder = patient(masters.urls()).restart_guard(RestartGuard::Off);
    let redlock = all_ready(&builder);
    (masters, redlock)
}

fn counter(masters: &Masters, master: usize) -> Option<u64> {
    let words = [b"HGET".as_slice(), COUNTERS, BUCKET];
    match masters[master].query(&words).expect("the master answers") {
        Value::Bulk(text) => Some(String::from_utf8_lossy(&text).parse().expect("a number")),
        _ => None,
    }
}

fn count(masters: &Masters, master: usize, value: &str) {
    let words = [b"HSET".as_slice(), COUNTERS, BUCKET, value.as_bytes()];
    masters[master].query(&words).expect("the master answers");
}

/// Gives it back on all masters before the next one is asked for.
fn number_of(redlock: &Redlock) -> FencingToken {
    let lock = redlock.fenced().try_lock_for(KEY, TTL, TTL).expect("nobody else has it");
    let number = lock.fencing_token();
    assert!(lock.unlock().unwrap().was_held());
    number
}

/// F6, F8: masters with one clock take what is proposed.
#[test]
fn numbers_grow_and_take_one_round_trip() {
    let (masters, redlock) = start(3);
    let mut last = None;
    for _ in 0..100 {
        let number = number_of(&redlock);
        assert!(Some(number) > last);
        last = Some(number);
    }
    let stats = redlock.stats();
    assert_eq!((stats.fenced, stats.tokens_confirmed), (100, 0));
    // Also of another client, with a prefix of its own for the same key (F2).
    let builder = patient(masters.urls()).restart_guard(RestartGuard::Off);
    let other = all_ready(&builder.key_prefix("invoice:"));
    let lock = other.fenced().try_lock("42", TTL).unwrap();
    assert!(Some(lock.fencing_token()) > last);
    assert_eq!(redlock.try_lock(KEY, TTL).unwrap_err().kind(), LockErrorKind::Contended);
}

/// F7: who gave less is raised before the lock is handed out.
#[test]
fn master_that_gave_less_is_raised() {
    let (masters, redlock) = start(3);
    let number = number_of(&redlock).get();
    count(&masters, 1, &(number + 40_000_000).to_string());
    let lock = redlock.fenced().try_lock(KEY, TTL).unwrap();
    let quorum = |number| (0..3).filter(|it| counter(&masters, *it) >= Some(number)).count();
    assert!(quorum(lock.fencing_token().get()) >= 2);
    drop(lock);
    let mut last = number_of(&redlock);
    for _ in 0..20 {
        let next = number_of(&redlock);
        assert!(next > last);
        last = next;
    }
    assert!(last.get() > number + 40_000_000 || redlock.stats().tokens_confirmed == 0);
}

/// F15: it is named, and no key is left.
#[test]
fn bad_counter_costs_the_vote() {
    let (masters, redlock) = start(3);
    (0..2).for_each(|master| count(&masters, master, "x"));
    let error = redlock.fenced().try_lock(KEY, TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable);
    assert!(error.to_string().contains("bad fencing counter"), "{error}");
    assert!(redlock.try_lock(KEY, TTL).is_ok(), "no key was left");
}

/// F17: through all that may happen to a lock.
#[test]
fn number_stays_with_the_lock() {
    let (_masters, redlock) = start(3);
    let fenced = redlock.fenced();
    let mut lock = fenced.try_lock_until(KEY, TTL, Stopwatch::start().instant_after(TTL)).unwrap();
    let number = lock.fencing_token();
    lock.extend(TTL).unwrap();
    lock.ensure(Duration::from_millis(1)).unwrap();
    assert_eq!((lock.fencing_token(), (*lock).fencing_token()), (number, Some(number)));
    let kept = lock.keep_alive(KeepAlive::default()).unwrap();
    assert_eq!((kept.fencing_token(), (*kept).fencing_token()), (number, Some(number)));
    let lock = kept.stop();
    assert_eq!((lock.fencing_token(), (*lock).fencing_token()), (number, Some(number)));
    let parts = lock.into_parts();
    assert_eq!((parts.fencing_token(), (*parts).fencing_token()), (number, Some(number)));
    let lock = fenced.adopt(parts.into_inner()).unwrap();
    assert_eq!(lock.fencing_token(), number);
    let guard: LockGuard = lock.into_inner();
    let lock = Fenced::try_from(guard).unwrap();
    assert_eq!(lock.fencing_token(), number);
    assert!(lock.unlock().unwrap().was_held());
}

#[cfg(target_os = "linux")]
#[test]
fn number_stays_with_a_lock_that_goes_as_text() {
    let (_masters, redlock) = start(3);
    let lock = redlock.fenced().try_lock(KEY, TTL).unwrap();
    let number = lock.fencing_token();
    let text = lock.into_parts().to_secret_text().unwrap();
    assert!(text.contains(&format!(".{number}.")));
    let lock = redlock.fenced().adopt(text.parse().unwrap()).unwrap();
    assert_eq!(lock.fencing_token(), number);
    assert!(lock.unlock().unwrap().was_held());
    let text = redlock.try_lock(KEY, TTL).unwrap().into_parts().to_secret_text().unwrap();
    let error = redlock.fenced().adopt(text.parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unfenced);
}

/// F19: both kinds exclude each other, and only one has a number.
#[test]
fn plain_lock_excludes_a_fenced_one_and_has_no_number() {
    let (_masters, redlock) = start(3);
    let plain = redlock.try_lock(KEY, TTL).unwrap();
    assert_eq!(plain.fencing_token(), None);
    let error = redlock.fenced().try_lock(KEY, TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Contended);
    let plain = Fenced::try_from(plain).expect_err("it has no number");
    assert!(plain.unlock().unwrap().was_held());
    let fenced = redlock.fenced().try_lock_for(KEY, TTL, TTL).unwrap();
    assert_eq!(redlock.try_lock(KEY, TTL).unwrap_err().kind(), LockErrorKind::Contended);
    drop(fenced);
}

/// F1, F3: one hash without an end, whatever the number of resources.
#[test]
fn counters_are_one_key_that_stays() {
    let (masters, redlock) = start(1);
    for i in 0..50 {
        drop(redlock.fenced().try_lock(format!("resource:{i}"), TTL).unwrap());
    }
    redlock.shutdown(TTL);
    assert_eq!(masters[0].dbsize().unwrap(), 1);
    let ttl = masters[0].query(&[b"PTTL", COUNTERS]).unwrap();
    assert_eq!(ttl, Value::Integer(-1));
    let error = redlock.fenced().try_lock("muxlock:fence", TTL).unwrap_err();
    assert!(matches!(error.kind(), LockErrorKind::ReservedResource), "{error}");
}

/// F18: only an acquisition counts.
#[test]
fn extension_and_release_leave_the_counters_alone() {
    let (masters, redlock) = start(3);
    let mut lock = redlock.fenced().try_lock(KEY, TTL).unwrap();
    redlock.shutdown(TTL);
    let counters = || (0..3).map(|master| counter(&masters, master)).collect::<Vec<_>>();
    let before = counters();
    assert_eq!(before, [Some(lock.fencing_token().get()); 3]);
    lock.extend(TTL).unwrap();
    assert!(lock.unlock().unwrap().was_held());
    redlock.shutdown(TTL);
    assert_eq!(counters(), before);
}

/// What a lock protects, on a master of its own: a value with its mark.
struct Protected(Masters);

impl Protected {
    const WRITE: &str = "local mark=redis.call('HGET',KEYS[1],'fence') \
        if mark and tonumber(mark)>tonumber(ARGV[1]) then return 0 end \
        redis.call('HSET',KEYS[1],'fence',ARGV[1]) \
        if ARGV[2] then redis.call('HSET',KEYS[1],'value',ARGV[2]) end return 1";

    fn start() -> Protected {
        Protected(Masters::start(1).unwrap_or_else(|error| panic!("{error}")))
    }

    fn run(&self, number: FencingToken, value: Option<&str>) -> bool {
        let number = number.to_string();
        let mut words = vec!["EVAL", Protected::WRITE, "1", "account", &number];
        words.extend(value);
        let words: Vec<&[u8]> = words.into_iter().map(str::as_bytes).collect();
        self.0[0].query(&words).expect("the master answers") == Value::Integer(1)
    }

    fn enter(&self, number: FencingToken) -> bool {
        self.run(number, None)
    }

    fn write(&self, number: FencingToken, value: i32) -> bool {
        self.run(number, Some(&value.to_string()))
    }

    fn read(&self) -> i32 {
        match self.0[0].query(&[b"HGET", b"account", b"value"]).expect("the master answers") {
            Value::Bulk(text) => String::from_utf8_lossy(&text).parse().expect("a number"),
            _ => 0,
        }
    }
}

/// Two holders of one lock: the earlier one still believes that it holds it.
fn two_holders() -> (FencingToken, FencingToken) {
    let (_masters, redlock) = start(3);
    (number_of(&redlock), number_of(&redlock))
}

/// F20, F21, F23.
#[test]
fn resource_refuses_a_holder_that_another_has_followed() {
    let (earlier, later) = two_holders();
    let account = Protected::start();
    assert!(account.write(earlier, 100));
    assert!(account.write(earlier, 90), "a holder writes often");
    assert!(account.write(later, 80));
    assert!(!account.write(earlier, 70), "it stops");
    assert!(!account.enter(earlier), "and does not come back");
    assert_eq!(account.read(), 80);
}

/// F22, with a control that shows the harm.
#[test]
fn late_write_is_lost_unless_its_successor_has_entered() {
    let (earlier, later) = two_holders();
    for enters in [false, true] {
        let account = Protected::start();
        assert!(account.write(earlier, 100));
        if enters {
            assert!(account.enter(later));
        }
        let read = account.read();
        let is_accepted = account.write(earlier, 90);
        assert!(account.write(later, read - 5));
        assert_eq!(is_accepted, !enters);
        // Whoever was accepted expects that it counts.
        let expected = if is_accepted { 85 } else { 95 };
        assert_eq!(account.read() == expected, enters);
    }
}

/// Tests of programs need no Redis for it.
#[test]
fn fake_masters_give_numbers_too() {
    let masters = muxlock::testing::FakeMasters::start(3).unwrap();
    let redlock = all_ready(&patient(masters.urls()));
    let mut last = number_of(&redlock);
    for _ in 0..20 {
        let number = number_of(&redlock);
        assert!(number > last);
        last = number;
    }
}
