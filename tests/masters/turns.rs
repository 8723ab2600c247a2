//! A lock that is free is soon somebody's: whoever waits, and whatever kind of lock was released
//! (W8, W12).

use std::thread;
use std::time::Duration;

use muxlock::Redlock;
use muxlock::testing::Masters;
use testbed::proxy::DelayProxy;
use testbed::{PATIENT, Stopwatch, TTL, all_ready, heavy, patient, pause};

/// From a client to the masters and back.
const FAR: Duration = Duration::from_millis(200);

fn masters() -> Masters {
    Masters::start(3).unwrap_or_else(|error| panic!("{error}"))
}

/// A client that is so far away from all masters.
fn far(masters: &Masters, round_trip: Duration) -> (Vec<DelayProxy>, Redlock) {
    let way = |addr: String| {
        DelayProxy::start(addr.parse().expect("an address"), round_trip).expect("a free port")
    };
    let ways: Vec<_> = masters.iter().map(|master| way(master.addr())).collect();
    let redlock = all_ready(&patient(ways.iter().map(DelayProxy::url)));
    (ways, redlock)
}

/// W12: the first of a line is told to go, and its patience ends while its round is under way. The
/// next one goes on at once: it does not wait for a slow look.
#[test]
fn who_inherits_a_place_goes_on_with_what_was_told() {
    let _alone = heavy();
    let masters = masters();
    let near = all_ready(&patient(masters.urls()));
    let (_ways, redlock) = far(&masters, FAR);
    let mut took = Vec::new();
    for _ in 0..3 {
        let held = near.try_lock_for("heir", TTL, PATIENT).unwrap();
        let waited = Stopwatch::start();
        // It is told 100 ms after the release, and its round takes 200 ms.
        let release_at = Duration::from_millis(1_500);
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                let ends = release_at + FAR + FAR / 8;
                redlock.try_lock_for("heir", TTL, ends).map(drop)
            });
            pause(Duration::from_millis(50));
            let second = scope.spawn(|| {
                let lock = redlock.try_lock_for("heir", TTL, PATIENT).unwrap();
                (waited.elapsed(), lock)
            });
            pause(release_at.saturating_sub(waited.elapsed()));
            let released = waited.elapsed();
            assert!(held.unlock().unwrap().was_held());
            let is_missed = first.join().unwrap().is_err();
            let (got, _lock) = second.join().unwrap();
            if is_missed {
                took.push(got.saturating_sub(released));
            }
        });
    }
    println!("an heir has the lock so long after its release: {took:?}");
    assert!(took.iter().all(|took| *took < 4 * FAR), "{took:?}");
}
