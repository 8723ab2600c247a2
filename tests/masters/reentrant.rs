//! The same thread again, over real masters (K10).

use std::thread;
use std::time::Duration;

use muxlock::testing::Masters;
use muxlock::{LockErrorKind, Redlock};
use testbed::{PATIENT, all_ready, patient, soon};

const TTL: Duration = Duration::from_secs(10);
const NAME: &str = "ledger";

fn start() -> (Masters, Redlock) {
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    let redlock = all_ready(&patient(masters.urls()));
    (masters, redlock)
}

/// K10: the thread takes it again without a master, others wait, and the last guard releases it.
#[test]
fn same_thread_takes_it_again() {
    let (masters, redlock) = start();
    let lock = redlock.reentrant(NAME).unwrap();
    let outer = lock.try_lock(TTL).unwrap();
    let sent = || masters.iter().map(|it| it.command_calls("set").unwrap()).sum::<u64>();
    let before = sent();
    let inner = lock.clone().try_lock(TTL / 2).unwrap();
    assert_eq!(sent(), before, "no master was asked");
    let left = outer.remaining();
    assert!(inner.remaining() <= left);
    let refused = thread::scope(|scope| scope.spawn(|| lock.try_lock(TTL).err()).join().unwrap());
    assert!(refused.is_some_and(|error| error.is_contended()));
    assert!(redlock.try_lock(NAME, TTL).unwrap_err().is_contended());
    assert!(outer.unlock().unwrap().is_none(), "it is still held");
    assert!(redlock.try_lock(NAME, TTL).unwrap_err().is_contended());
    assert!(inner.unlock().unwrap().unwrap().was_held());
    soon("no key is left", || masters.iter().all(|master| master.dbsize().unwrap() == 0));
}

/// K10: more than is left extends the lock, for all guards; what fails changes nothing.
#[test]
fn longer_time_extends_it() {
    let (masters, redlock) = start();
    let lock = redlock.reentrant(NAME).unwrap();
    let outer = lock.try_lock(TTL / 2).unwrap();
    let inner = lock.try_lock(TTL).unwrap();
    assert!(outer.remaining() > TTL / 2 && inner.is_valid());
    let error = lock.try_lock(10 * TTL).unwrap_err();
    assert!(matches!(error.kind(), LockErrorKind::InvalidTtl { .. }));
    masters.iter().for_each(|master| master.flush().unwrap());
    assert_eq!(lock.try_lock(2 * TTL).unwrap_err().kind(), LockErrorKind::Expired);
    drop(outer);
    assert!(!inner.unlock().unwrap().unwrap().was_held());
}

/// A lock that is over is not taken again, and another thread may have it.
#[test]
fn slow_lock_that_is_over_is_no_ones() {
    let (masters, redlock) = start();
    let lock = redlock.reentrant(NAME).unwrap();
    let outer = lock.try_lock(Duration::from_secs(1)).unwrap();
    soon("it is over", || !outer.is_valid());
    assert_eq!(lock.try_lock(TTL).unwrap_err().kind(), LockErrorKind::Expired);
    thread::scope(|scope| {
        let others = scope.spawn(|| {
            let guard = lock.try_lock_for(TTL, PATIENT).unwrap();
            guard.unlock().unwrap().unwrap().was_held()
        });
        assert!(others.join().unwrap());
    });
    assert!(!outer.is_valid());
    drop(outer);
    drop(lock.try_lock_for(TTL, PATIENT).unwrap());
    soon("no key is left", || masters.iter().all(|master| master.dbsize().unwrap() == 0));
}
