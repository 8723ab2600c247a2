//! From one lock to the next: what is given up is released, whatever happens to the next one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use muxlock::testing::Masters;
use muxlock::{KeepAlive, LockError, LockErrorKind, LockGuard, Redlock};
use testbed::{SOON, TTL, all_ready, patient, soon, timed, within};

const NODES: usize = 5;
const WAIT: Duration = Duration::from_millis(100);

fn start() -> (Masters, Redlock) {
    let masters = Masters::start(NODES).unwrap_or_else(|error| panic!("{error}"));
    let redlock = all_ready(&patient(masters.urls()));
    (masters, redlock)
}

fn holders(masters: &Masters, lock: &LockGuard) -> usize {
    let key = lock.resource().as_bytes();
    let holds = |value: Option<Vec<u8>>| value.as_deref() == Some(lock.token().as_bytes());
    masters.iter().filter(|master| holds(master.value_of(key).unwrap())).count()
}

#[track_caller]
fn gone_soon(masters: &Masters, key: &str) {
    soon(&format!("{key} is gone"), || {
        masters.iter().all(|master| master.value_of(key.as_bytes()).unwrap().is_none())
    });
}

#[test]
fn one_lock_is_released_and_the_next_is_held() {
    let (masters, redlock) = start();
    let mut lock = redlock.try_lock("page:0", TTL).unwrap();
    for page in 1..100 {
        let name = format!("page:{page}");
        lock = match page % 2 {
            0 => redlock.swap(lock, &name, TTL).unwrap(),
            _ => redlock.swap_for(lock, &name, TTL, SOON).unwrap(),
        };
        assert!(lock.is_valid() && lock.remaining() <= TTL && lock.rounds() == 1);
        assert_eq!(lock.resource().as_bytes(), name.as_bytes());
        assert!(holders(&masters, &lock) > NODES / 2);
    }
    assert_eq!(redlock.shutdown(SOON), 0);
    assert!(masters.iter().all(|master| master.dbsize().unwrap() == 1), "the last one alone");
    assert!(lock.unlock().unwrap().was_held());
    let stats = redlock.stats();
    assert_eq!((stats.acquired, stats.released, stats.held), (100, 100, 0));
}

/// R16: it fails, and what was given up is gone all the same.
#[test]
fn slow_guard_is_released_whatever_happens_to_the_next() {
    let (mut masters, redlock) = start();
    let other = all_ready(&patient(masters.urls()));
    let _foreign = other.try_lock("taken", TTL).unwrap();
    let held = || redlock.try_lock("held", TTL).unwrap();
    let long = "x".repeat(2_000);
    let is_name = |kind| matches!(kind, LockErrorKind::InvalidResource { .. });
    let is_ttl = |kind| matches!(kind, LockErrorKind::InvalidTtl { .. });
    type IsIt = fn(LockErrorKind) -> bool;
    let cases: [(&str, Duration, IsIt); 7] = [
        ("", TTL, is_name),
        (&long, TTL, is_name),
        ("next", Duration::ZERO, is_ttl),
        ("next", Duration::MAX, is_ttl),
        ("muxlock:fence", TTL, |kind| kind == LockErrorKind::ReservedResource),
        ("taken", TTL, |kind| kind == LockErrorKind::Contended),
        ("held", Duration::ZERO, is_ttl),
    ];
    for (next, ttl, is_it) in cases {
        let error = redlock.swap(held(), next, ttl).unwrap_err();
        assert!(is_it(error.kind()), "{next}: {error}");
        gone_soon(&masters, "held");
        let error = redlock.swap_for(held(), next, ttl, SOON / 5).unwrap_err();
        assert!(is_it(error.kind()), "{next}: {error}");
        gone_soon(&masters, "held");
    }

    struct Panics;
    impl AsRef<[u8]> for Panics {
        fn as_ref(&self) -> &[u8] {
            panic!("planned")
        }
    }
    let lock = held();
    assert!(catch_unwind(AssertUnwindSafe(|| redlock.swap(lock, Panics, TTL))).is_err());
    gone_soon(&masters, "held");

    let lock = held();
    masters.iter_mut().take(3).for_each(|master| master.kill().unwrap());
    let error = redlock.swap(lock, "next", TTL).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let left = || masters.iter().skip(3).all(|master| master.dbsize().unwrap() == 1);
    soon("what is left is the other's", left);
}

#[test]
fn guard_is_released_if_the_client_was_closed() {
    let (masters, redlock) = start();
    let lock = redlock.try_lock("held", TTL).unwrap();
    redlock.close();
    let error = redlock.swap(lock, "next", TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Closed);
    gone_soon(&masters, "held");
}

#[test]
fn guard_of_another_client_is_dropped_there() {
    let (masters, redlock) = start();
    let others = Masters::start(1).unwrap();
    let other = all_ready(&patient(others.urls()));
    let lock = other.try_lock("held", TTL).unwrap();
    let next = redlock.swap(lock, "next", TTL).unwrap();
    gone_soon(&others, "held");
    assert_eq!(holders(&masters, &next), NODES);
    let error = redlock.swap(other.try_lock("held", TTL).unwrap(), "next", TTL).unwrap_err();
    assert!(error.is_contended(), "{error}");
    gone_soon(&others, "held");
    assert!(next.unlock().unwrap().was_held());
}

#[test]
fn every_kind_of_guard_is_accepted() {
    let (masters, redlock) = start();
    let gone = |next: LockGuard| {
        assert!(next.fencing_token().is_none());
        assert!(next.unlock().unwrap().was_held());
        assert_eq!(redlock.shutdown(SOON), 0);
        // What stays are counters.
        masters.iter().for_each(|master| {
            let counters = u64::from(master.pttl(b"muxlock:fence").unwrap() == -1);
            assert_eq!(master.dbsize().unwrap(), counters);
        });
    };
    gone(redlock.swap(redlock.try_lock_all(["a", "b"], TTL).unwrap(), "next", TTL).unwrap());
    gone(redlock.swap(redlock.try_lock_all(["a", "b"], TTL).unwrap(), "b", TTL).unwrap());
    gone(redlock.swap(redlock.try_read("a", TTL).unwrap(), "a", TTL).unwrap());
    gone(redlock.swap(redlock.try_write("a", TTL).unwrap(), "next", TTL).unwrap());
    let permit = redlock.semaphore("a", 3).unwrap().try_acquire(TTL).unwrap();
    gone(redlock.swap(permit, "next", TTL).unwrap());
    let kept = redlock.try_lock("a", TTL).unwrap().keep_alive(KeepAlive::default()).unwrap();
    gone(redlock.swap(kept.stop(), "next", TTL).unwrap());
    let adopted = redlock.adopt(redlock.try_lock("a", TTL).unwrap().into_parts()).unwrap();
    gone(redlock.swap(adopted, "next", TTL).unwrap());
    let fenced = redlock.fenced().try_lock("a", TTL).unwrap();
    gone(redlock.swap(fenced.into_inner(), "next", TTL).unwrap());
}

/// W7: to give a lock up for itself starves no client that waits for it.
#[test]
fn lock_that_is_swapped_for_itself_goes_to_those_who_wait() {
    type Again = fn(&Redlock, LockGuard) -> Result<LockGuard, LockError>;
    let patient: Again = |redlock, lock| redlock.swap_for(lock, "it", TTL, TTL);
    let once: Again = |redlock, lock| redlock.swap(lock, "it", TTL);
    for again in [patient, once] {
        let (masters, redlock) = start();
        let others: Vec<_> = (0..2).map(|_| all_ready(&testbed::patient(masters.urls()))).collect();
        let mut lock = redlock.try_lock_for("it", TTL, SOON).ok();
        thread::scope(|scope| {
            let wait = |other: &Redlock| {
                let lock = other.try_lock_for("it", TTL, TTL).unwrap();
                assert!(lock.unlock().unwrap().was_held());
            };
            let waiting: Vec<_> =
                others.iter().map(|other| scope.spawn(move || wait(other))).collect();
            within(SOON, "both have had it", || {
                lock = match lock.take() {
                    Some(lock) => again(&redlock, lock).ok(),
                    None => redlock.try_lock("it", TTL).ok(),
                };
                waiting.iter().all(|thread| thread.is_finished())
            });
        });
    }
}

/// W7, W13: what was not answered in time may still be held, so nothing asks for it again.
#[test]
fn lock_that_is_swapped_for_itself_is_not_asked_for_before_its_release_is_answered() {
    let (masters, redlock) = start();
    let sets = || masters.iter().map(|master| master.command_calls("set").unwrap()).sum::<u64>();
    type Take = fn(&Redlock) -> LockGuard;
    let plain: Take = |redlock| redlock.try_lock("b", TTL).unwrap();
    let several: Take = |redlock| redlock.try_lock_all(["a", "b"], TTL).unwrap();
    for take in [plain, several] {
        let lock = take(&redlock);
        soon("all have it", || masters.iter().all(|master| master.dbsize().unwrap() > 0));
        let sent = sets();
        masters.iter().for_each(|master| master.freeze().unwrap());
        let (took, result) = timed(|| redlock.swap_for(lock, "b", TTL, WAIT));
        masters.iter().for_each(|master| master.thaw().unwrap());
        assert_eq!(result.unwrap_err().kind(), LockErrorKind::TimedOut);
        assert!(took >= WAIT && took < SOON, "{took:?}");
        assert_eq!(redlock.shutdown(SOON), 0);
        assert!(masters.iter().all(|master| master.dbsize().unwrap() == 0));
        assert_eq!(sets(), sent);
    }
}

/// R16: the release does not wait for the next lock.
#[test]
fn guard_is_released_at_once_while_the_next_is_waited_for() {
    let (masters, redlock) = start();
    let other = all_ready(&testbed::patient(masters.urls()));
    let (held, taken) = (redlock.try_lock("held", TTL), other.try_lock("next", TTL));
    thread::scope(|scope| {
        let swaps = scope.spawn(|| redlock.swap_for(held.unwrap(), "next", TTL, TTL).unwrap());
        gone_soon(&masters, "held");
        assert!(taken.unwrap().unlock().unwrap().was_held());
        assert!(swaps.join().unwrap().unlock().unwrap().was_held());
    });
}

#[test]
fn threads_of_one_client_that_wait_get_what_another_swaps_away() {
    let (_masters, redlock) = start();
    let first = redlock.try_lock("it", TTL).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| redlock.try_lock_for("it", TTL, SOON).unwrap());
        soon("it waits", || redlock.stats().waiting == 1);
        let next = redlock.swap(first, "other", TTL).unwrap();
        let lock = waits.join().unwrap();
        assert!(lock.is_valid() && next.is_valid());
    });
}
