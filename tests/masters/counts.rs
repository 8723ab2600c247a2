//! What a client counts for monitoring, on real masters.

use std::thread;
use std::time::Duration;

use muxlock::settings::RestartGuard;
use muxlock::testing::Masters;
use muxlock::{KeepAlive, Redlock};
use testbed::{TTL, all_ready, patient, soon};

const WAIT: Duration = Duration::from_secs(60);

fn start() -> (Masters, Redlock) {
    let masters = Masters::start(3).unwrap();
    let redlock = all_ready(&patient(masters.urls()).restart_guard(RestartGuard::Off));
    (masters, redlock)
}

/// However a guard ends, it counts as held for as long as it is there, and never after it.
#[test]
fn guards_are_held_until_they_end() {
    let (_masters, redlock) = start();
    let held = |redlock: &Redlock| redlock.stats().held;
    let lock = redlock.try_lock("a", TTL).unwrap();
    let second = redlock.try_lock("b", TTL).unwrap();
    assert_eq!(held(&redlock), 2);
    assert!(second.unlock().unwrap().was_held());
    drop(redlock.try_lock("b", TTL).unwrap());
    assert_eq!(held(&redlock), 1);

    let other = redlock.clone();
    let parts = lock.into_parts();
    assert_eq!(held(&redlock), 0, "it belongs to no client");
    let mut lock = other.adopt(parts).unwrap();
    lock.extend(TTL).unwrap();
    assert_eq!(held(&redlock), 1);
    let kept = lock.keep_alive(KeepAlive::default()).unwrap();
    assert_eq!(held(&redlock), 1);
    assert!(kept.unlock().unwrap().was_held());
    assert_eq!(held(&redlock), 0);

    redlock
        .with_lock("c", TTL, WAIT, |_| {
            assert_eq!(held(&redlock), 1);
            Ok::<(), muxlock::Error>(())
        })
        .unwrap();
    let (stats, times) = (redlock.stats(), redlock.times());
    assert_eq!((stats.held, stats.waiting, stats.lost), (0, 0, 0));
    // The one that was let go is not among those whose hold was seen from end to end.
    assert_eq!((times.acquire.count(), times.hold.count()), (4, 3));
}

#[test]
fn guard_says_what_its_acquisition_took() {
    let (_masters, redlock) = start();
    let lock = redlock.try_lock("a", TTL).unwrap();
    assert_eq!(lock.rounds(), 1);
    assert!(lock.waited() > Duration::ZERO && lock.waited() < WAIT);
    assert_eq!(redlock.times().acquire.sum(), lock.waited());
    let holder = redlock.inspect("a").unwrap().holder();
    assert_eq!(holder, Some(lock.fingerprint()));

    // The second waits in its client's queue: it asks in the first round that can succeed.
    let waiting = redlock.clone();
    let waiting = thread::spawn(move || waiting.try_lock_for("a", TTL, WAIT).unwrap());
    soon("it waits", || redlock.stats().waiting == 1);
    let pause = Duration::from_millis(20);
    testbed::pause(pause);
    assert!(lock.unlock().unwrap().was_held());
    let next = waiting.join().unwrap();
    assert!(next.waited() >= pause, "{:?}", next.waited());
    assert_eq!(redlock.stats().waiting, 0);
    assert!(redlock.times().hold.sum() >= pause);
}

/// A master that is frozen times out; one that is gone refuses connections.
#[test]
fn masters_that_do_not_answer_are_counted() {
    let mut masters = Masters::start(3).unwrap();
    let builder = patient(masters.urls()).restart_guard(RestartGuard::Off);
    let redlock = all_ready(&builder.node_timeout(Duration::from_millis(200)));
    let count = |node: usize| {
        let nodes = redlock.nodes();
        (nodes[node].timeouts, nodes[node].refused)
    };
    masters[2].freeze().unwrap();
    drop(redlock.try_lock("a", TTL).unwrap());
    soon("its commands time out", || count(2).0 >= 1);
    masters[2].kill().unwrap();
    soon("its connection is refused", || {
        drop(redlock.try_lock("a", TTL));
        count(2).1 >= 1
    });
    // A busy machine may let others time out, too; nobody refused them.
    assert_eq!((count(0).1, count(1).1), (0, 0));
}
