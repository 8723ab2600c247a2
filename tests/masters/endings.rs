//! A program that ends releases every lock of a client, without its guards.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use muxlock::settings::{Heal, RestartGuard};
use muxlock::testing::Masters;
use muxlock::{KeepAlive, LockErrorKind, LossCause, Redlock};
use testbed::{PATIENT, all_ready, heavy, is_child, patient, re_execute, soon};

use crate::family::nothing_is_left;

const TTL: Duration = Duration::from_secs(600);
const URLS_VARIABLE: &str = "MUXLOCK_TEST_URLS";

/// TTLs are so long that nothing but a release can be the reason if a key is gone.
fn client(urls: impl IntoIterator<Item = String>) -> Redlock {
    all_ready(&patient(urls).max_ttl(TTL))
}

fn start() -> (Masters, Redlock) {
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    let redlock = client(masters.urls());
    (masters, redlock)
}

fn keys(masters: &Masters) -> u64 {
    masters.iter().map(|master| master.dbsize().unwrap()).max().unwrap()
}

#[test]
fn locks_of_every_kind_are_released_and_no_guard_says_that_it_is_held() {
    let (masters, redlock) = start();
    redlock.track_locks();
    let fenced = redlock.fenced().try_lock("fenced", TTL).unwrap();
    let parts = redlock.try_lock("handed over", TTL).unwrap().into_parts();
    let swapped = redlock.try_lock("before the swap", TTL).unwrap();
    let read = redlock.try_lock("downgraded", TTL).unwrap().downgrade(TTL).unwrap();
    let reentrant = redlock.reentrant("reentrant").unwrap();
    let again = [reentrant.try_lock(TTL).unwrap(), reentrant.try_lock(TTL).unwrap()];
    let mut guards = vec![
        redlock.try_lock("plain", TTL).unwrap(),
        redlock.try_lock_all(["a", "b"], TTL).unwrap(),
        redlock.try_read("read", TTL).unwrap(),
        redlock.try_write("write", TTL).unwrap(),
        redlock.semaphore("permits", 2).unwrap().try_acquire(TTL).unwrap(),
        redlock.try_lock_as("own", "mine", TTL).unwrap(),
        redlock.swap(swapped, "after the swap", TTL).unwrap(),
        redlock.adopt(parts).unwrap(),
        read,
    ];
    guards.push(fenced.into_inner());
    drop(redlock.try_lock("dropped", TTL).unwrap());
    let stays = redlock.try_lock("with another client", TTL).unwrap().into_parts();
    guards[0].extend(TTL).unwrap();
    assert!(keys(&masters) > 12);
    assert_eq!(redlock.release_all(PATIENT), 0);
    // The counters of fencing tokens, and the lock that is another client's.
    soon("they are gone", || keys(&masters) == 2);
    assert!(redlock.is_closed());
    for guard in &mut guards {
        assert!(!guard.is_valid() && guard.remaining().is_zero(), "{guard:?}");
        assert_eq!(guard.extend(TTL).unwrap_err().kind(), LockErrorKind::Expired);
        assert_eq!(guard.ensure(TTL / 2).unwrap_err().kind(), LockErrorKind::Expired);
    }
    assert!(again.iter().all(|again| !again.is_valid()));
    assert_eq!(reentrant.try_lock(TTL).unwrap_err().kind(), LockErrorKind::Expired);
    // Another client takes one; what is left of the guards does not release it.
    let next = client(masters.urls());
    let taken = next.try_lock("plain", TTL).unwrap();
    let parts = guards.pop().unwrap().into_parts();
    assert_eq!(next.adopt(parts).unwrap_err().kind(), LockErrorKind::Expired);
    for guard in guards {
        assert!(!guard.unlock().unwrap().was_held());
    }
    drop(again);
    assert!(taken.unlock().unwrap().was_held());
    assert!(next.adopt(stays).unwrap().unlock().unwrap().was_held());
    assert_eq!(redlock.try_lock("any", TTL).unwrap_err().kind(), LockErrorKind::Closed);
    assert_eq!(redlock.release_all(PATIENT), 0);
    assert_eq!(redlock.stats().held, 0);
}

/// With healing, a renewal or an extension that comes later would set the keys again.
#[test]
fn slow_renewed_locks_are_lost_at_once_and_not_renewed_again() {
    for is_tracked in [true, false] {
        let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
        let builder = patient(masters.urls()).max_ttl(Duration::from_secs(1)).heal(Heal::On);
        let redlock = builder.restart_guard(RestartGuard::Uptime).connect().unwrap();
        if is_tracked {
            redlock.track_locks();
        }
        redlock.ready(PATIENT).unwrap();
        let (said, losses) = std::sync::mpsc::channel();
        let how = KeepAlive::default().on_loss(move |loss| said.send(loss.cause).unwrap());
        let lock = redlock.try_lock_for("renewed", Duration::from_secs(1), PATIENT).unwrap();
        let kept = lock.keep_alive(how).unwrap();
        soon("it is renewed", || kept.renewals() > 0);
        assert_eq!(redlock.release_all(PATIENT), 0);
        assert!(kept.is_lost() && !kept.is_valid() && kept.remaining().is_zero());
        assert_eq!(kept.loss().unwrap().cause, LossCause::Gone);
        assert!(kept.check().is_err());
        assert_eq!(losses.recv_timeout(PATIENT).unwrap(), LossCause::Gone);
        let loss = kept.watch().wait_for_loss(Duration::ZERO).unwrap();
        assert_eq!(
            loss.to_string(),
            "lost \"renewed\", 0ns left: too few masters still hold this lock's token"
        );
        nothing_is_left(&masters);
        let renewals = kept.renewals();
        let guard = kept.stop();
        assert!(!guard.is_valid());
        assert!(guard.keep_alive(KeepAlive::default()).is_err());
        assert_eq!(redlock.shutdown(PATIENT), 0);
        assert!(renewals > 0);
        nothing_is_left(&masters);
    }
}

/// What was renewed, extended, shared or handed over before is a lock like any other.
#[test]
fn lock_that_is_no_longer_renewed_is_still_tracked() {
    let (masters, redlock) = start();
    redlock.track_locks();
    let renewed = |name: &str| {
        let lock = redlock.try_lock(name, TTL).unwrap();
        lock.keep_alive(KeepAlive::default()).unwrap().stop()
    };
    let (handed, stays) = (renewed("handed over"), renewed("stays"));
    let next = client(masters.urls());
    let handed = next.adopt(handed.into_parts()).unwrap();
    assert_eq!(redlock.release_all(PATIENT), 0);
    assert!(!stays.is_valid());
    assert!(handed.unlock().unwrap().was_held());
    // As in a process that ends, the guard is not dropped.
    std::mem::forget(stays);
    nothing_is_left(&masters);
}

/// The list begins late: locks that it lacks are handed over as before, until all are given up.
#[test]
fn lock_that_was_taken_before_tracking_can_be_handed_over() {
    for is_tracked in [true, false] {
        let (masters, redlock) = start();
        let guards = ["first", "second"].map(|name| redlock.try_lock(name, TTL).unwrap());
        if is_tracked {
            redlock.track_locks();
        }
        let [first, second] = guards;
        let next = client(masters.urls());
        let first = next.adopt(first.into_parts()).unwrap();
        assert_eq!(redlock.release_all(PATIENT), 0);
        let error = next.adopt(second.into_parts()).unwrap_err();
        assert_eq!(error.kind(), LockErrorKind::Expired, "no guard of this client has a lock");
        assert!(first.unlock().unwrap().was_held());
        nothing_is_left(&masters);
    }
}

/// The masters confirm an extension when all locks have been given up, listed or not.
#[test]
fn extension_under_way_reports_no_lock_after_the_release() {
    for is_tracked in [true, false] {
        let (masters, redlock) = start();
        if is_tracked {
            redlock.track_locks();
        }
        let mut guard = redlock.try_lock("extended", TTL).unwrap();
        assert_eq!(redlock.shutdown(PATIENT), 0, "everything before it is answered");
        masters.iter().for_each(|master| master.freeze().unwrap());
        std::thread::scope(|scope| {
            let extending = scope.spawn(|| guard.extend(TTL));
            soon("it was asked for", || redlock.nodes().iter().all(|node| node.in_flight > 0));
            assert!(redlock.release_all(Duration::ZERO) > 0);
            masters.iter().for_each(|master| master.thaw().unwrap());
            let error = extending.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), LockErrorKind::Expired, "{error}");
        });
        assert!(!guard.is_valid());
        drop(guard);
        assert_eq!(redlock.shutdown(PATIENT), 0);
        nothing_is_left(&masters);
    }
}

/// The control: without the list, plain locks stay until their guards are dropped.
#[test]
fn locks_that_are_not_tracked_stay() {
    let (masters, redlock) = start();
    let guards = [1, 2, 3].map(|i| redlock.try_lock(format!("{i}"), TTL).unwrap());
    assert_eq!(redlock.release_all(PATIENT), 0);
    assert!(guards.iter().all(|guard| !guard.is_valid()));
    assert_eq!(keys(&masters), 3);
    drop(guards);
    nothing_is_left(&masters);
}

/// Threads take, extend, renew and release locks all the while: afterwards no key is left, and no
/// guard is valid.
#[test]
fn slow_alone_release_all_leaves_nothing_of_threads_that_go_on() {
    const THREADS: usize = 8;
    let _turn = heavy();
    for round in 0..5 {
        let (masters, redlock) = start();
        redlock.track_locks();
        let (is_over, taken) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (redlock, is_over, taken) = (redlock.clone(), &is_over, &taken);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for i in 0.. {
                        let name = format!("{thread}:{i}");
                        let result = match i % 4 {
                            0 => redlock.try_lock_for("common", TTL, Duration::from_millis(1)),
                            _ => redlock.try_lock(name, TTL),
                        };
                        if is_over.load(Ordering::SeqCst) {
                            held.extend(result);
                            break;
                        }
                        let Ok(mut lock) = result else { continue };
                        taken.fetch_add(1, Ordering::SeqCst);
                        let was_extended = lock.extend(TTL).is_ok();
                        assert!(
                            !(was_extended && is_over.load(Ordering::SeqCst) && lock.is_valid())
                        );
                        match i % 4 {
                            1 => held.push(lock),
                            2 => _ = lock.unlock(),
                            _ => drop(lock),
                        }
                    }
                    assert!(held.iter().all(|lock| !lock.is_valid()));
                    // As in a process that ends, no guard is dropped.
                    std::mem::forget(held);
                });
            }
            soon("locks are taken", || taken.load(Ordering::SeqCst) > 200 * (round + 1));
            assert_eq!(redlock.release_all(PATIENT), 0);
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!(redlock.shutdown(PATIENT), 0);
        nothing_is_left(&masters);
    }
}

/// As a signal handler's thread does, while the main thread works; and the control without it.
#[test]
fn process_that_exits_leaves_no_key() {
    let test = "process_that_exits_leaves_no_key";
    if is_child(test) {
        let urls = std::env::var(URLS_VARIABLE).expect("the parent names the masters");
        let redlock = client(urls.split(' ').map(str::to_owned));
        redlock.track_locks();
        let guards = [1, 2, 3].map(|i| redlock.try_lock(format!("{i}"), TTL).unwrap());
        let kept = redlock.try_lock("kept", TTL).unwrap().keep_alive(KeepAlive::default());
        if std::env::var_os("MUXLOCK_TEST_CONTROL").is_none() {
            let ending = redlock.clone();
            std::thread::spawn(move || {
                assert_eq!(ending.release_all(PATIENT), 0);
                std::process::exit(7);
            });
            loop {
                std::thread::park();
            }
        }
        let _held = (&guards, &kept);
        std::process::exit(7);
    }
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    let run = |control: bool| {
        let mut command = re_execute(test);
        command.env(URLS_VARIABLE, masters.urls().join(" "));
        if control {
            command.env("MUXLOCK_TEST_CONTROL", "1");
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        masters.iter().map(|master| master.dbsize().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(run(false), [0; 3]);
    assert_eq!(run(true), [4; 3], "control: exit drops no guard");
}
