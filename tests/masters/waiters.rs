//! A waiter ends the waits for every kind of lock.

use std::time::Duration;

use muxlock::settings::Wait;
use muxlock::{Error, LockError, LockErrorKind, LockGuard, Redlock, Waiter};
use testbed::{PATIENT, soon, timed};

use crate::family::{nothing_is_left, other, start};

const TTL: Duration = Duration::from_secs(10);

/// A kind of lock, and how one is waited for.
type Kind = (&'static str, fn(&Waiter, LockGuard, Wait) -> Result<(), Error>);

/// Each waits for something that another client has; the guard is of another lock of this client.
const KINDS: [Kind; 10] = [
    ("plain", |waiter, _, wait| over(waiter.redlock().try_lock_for("page", TTL, wait))),
    ("set", |waiter, _, wait| over(waiter.redlock().try_lock_all_for(["a", "page"], TTL, wait))),
    ("read", |waiter, _, wait| over(waiter.redlock().try_read_for("page", TTL, wait))),
    ("write", |waiter, _, wait| over(waiter.redlock().try_write_for("page", TTL, wait))),
    ("as", |waiter, _, wait| over(waiter.redlock().try_lock_as_for("page", "mine", TTL, wait))),
    ("permit", |waiter, _, wait| {
        over(waiter.redlock().semaphore("page", 1)?.try_acquire_for(TTL, wait))
    }),
    ("fenced", |waiter, _, wait| over(waiter.redlock().fenced().try_lock_for("page", TTL, wait))),
    ("reentrant", |waiter, _, wait| {
        over(waiter.redlock().reentrant("page")?.try_lock_for(TTL, wait))
    }),
    ("swap", |waiter, held, wait| over(waiter.redlock().swap_for(held, "page", TTL, wait))),
    ("with_lock", |waiter, _, wait| {
        waiter
            .redlock()
            .with_lock("page", TTL, wait, |_| -> Result<(), Error> { panic!("it has no lock") })
    }),
];

/// No lock is to be taken.
fn over<T>(result: Result<T, LockError>) -> Result<(), Error> {
    result.map(drop).map_err(Error::from)
}

fn kind(error: &Error) -> Option<LockErrorKind> {
    match error {
        Error::Lock(error) => Some(error.kind()),
        _ => None,
    }
}

#[test]
fn cancel_ends_the_wait_for_each_kind_of_lock_and_no_held_one() {
    let (masters, redlock) = start(3);
    let holder = other(&masters);
    let held = [holder.try_lock("page", TTL * 2), holder.try_lock("page{permit}:0", TTL * 2)];
    let held = held.map(Result::unwrap);
    for (name, wait) in KINDS {
        let waiter = redlock.waiter();
        let mut before = waiter.redlock().try_lock("own", TTL).unwrap();
        let swapped = redlock.try_lock("swapped", TTL).unwrap();
        let waiting = std::thread::spawn({
            let waiter = waiter.clone();
            move || wait(&waiter, swapped, Wait::forever())
        });
        soon("it waits", || redlock.stats().waiting == 1);
        assert!(!waiting.is_finished(), "{name}");
        waiter.cancel();
        let (took, result) = timed(|| waiting.join().unwrap());
        assert_eq!(kind(&result.unwrap_err()), Some(LockErrorKind::Cancelled), "{name}");
        assert!(took < PATIENT, "{name}: {took:?}");
        // What is held goes on, also if it was taken through the waiter.
        before.extend(TTL).unwrap();
        assert!(before.is_valid() && before.unlock().unwrap().was_held(), "{name}");
        // Neither it nor another one through it is taken any more, even if it is free.
        let swapped = redlock.try_lock("swapped", TTL).unwrap();
        let result = wait(&waiter, swapped, PATIENT.into());
        assert_eq!(kind(&result.unwrap_err()), Some(LockErrorKind::Cancelled), "{name}");
        assert_eq!(
            waiter.redlock().try_lock("free", TTL).unwrap_err().kind(),
            LockErrorKind::Cancelled
        );
        // The client and other waiters of it are as before.
        drop(redlock.waiter().redlock().try_lock("free", TTL).unwrap());
    }
    assert!(held.into_iter().all(|held| held.unlock().unwrap().was_held()));
    assert_eq!(redlock.shutdown(PATIENT), 0);
    nothing_is_left(&masters);
}

/// A cancelled waiter keeps nothing of a lock that it was about to get.
#[test]
fn guards_do_not_know_the_waiter_that_they_came_from() {
    let (masters, redlock) = start(3);
    let waiter = redlock.waiter();
    let take: fn(&Redlock) -> Result<LockGuard, LockError> = |client| client.try_lock("a", TTL);
    let kept = take(waiter.redlock()).unwrap().keep_alive(Default::default()).unwrap();
    waiter.cancel();
    kept.check().unwrap();
    let lock = kept.stop();
    // It is a lock of the client: swapped in one write, and handed to it.
    let lock = redlock.swap(lock, "b", TTL).unwrap();
    let lock = redlock.adopt(lock.into_parts()).unwrap();
    assert!(lock.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}
