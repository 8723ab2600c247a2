//! Whether a quorum can vote, asked without a lock.

use std::thread;
use std::time::Duration;

use muxlock::node::{NodeOutcome, NodeState, Phase};
use muxlock::settings::RestartGuard;
use muxlock::testing::Masters;
use muxlock::{LockErrorKind, Redlock};
use testbed::{PATIENT, SOON, TTL, count, outcomes, patient, pause, soon, timed};

const SHORT: Duration = Duration::from_millis(50);

fn states(redlock: &Redlock) -> Vec<NodeState> {
    redlock.nodes().iter().map(|node| node.state).collect()
}

#[test]
fn idle_client_connects_when_asked_whether_it_is_ready() {
    let masters = Masters::start(3).unwrap();
    let redlock = patient(masters.urls()).build().unwrap();
    for _ in 0..3 {
        assert_eq!(states(&redlock), [NodeState::Idle; 3], "a look connects to none");
    }
    redlock.ready(PATIENT).unwrap_or_else(|error| panic!("{error}"));
    let ready = states(&redlock).into_iter().filter(|state| *state == NodeState::Ready);
    assert!(ready.count() >= 2);
    redlock.ready(PATIENT).unwrap_or_else(|error| panic!("{error}"));
    for master in masters.iter() {
        assert_eq!(master.command_calls("set").unwrap(), 0, "no lock was asked for");
    }
    redlock.close();
    let error = redlock.ready(PATIENT).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Closed, "{error}");
}

/// Whether it froze before the first call or after it.
#[test]
fn frozen_minority_is_not_waited_for() {
    let masters = Masters::start(3).unwrap();
    masters[0].freeze().unwrap();
    let redlock = patient(masters.urls()).build().unwrap();
    let (took, ()) = timed(|| {
        for _ in 0..20 {
            redlock.ready(PATIENT).unwrap_or_else(|error| panic!("{error}"));
        }
    });
    assert!(took < PATIENT, "{took:?}");
    assert_ne!(states(&redlock)[0], NodeState::Ready);
    masters[0].thaw().unwrap();
}

#[test]
fn slow_frozen_majority_is_reported_node_by_node() {
    let masters = Masters::start(3).unwrap();
    (0..2).for_each(|at| masters[at].freeze().unwrap());
    let redlock = patient(masters.urls()).build().unwrap();
    let (took, result) = timed(|| redlock.ready(4 * SHORT));
    let error = result.unwrap_err();
    assert!(took >= 4 * SHORT, "{took:?}");
    assert_eq!(error.kind(), LockErrorKind::TimedOut, "{error}");
    assert_eq!(error.nodes().len(), 3);
    assert_eq!(outcomes(&error)[..2], [NodeOutcome::Pending; 2], "{error}");

    let redlock = patient(masters.urls()).connect_timeout(SHORT).build().unwrap();
    let error = redlock.ready(20 * SHORT).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    let silent = NodeOutcome::TimedOut(Phase::Handshake);
    assert_eq!(outcomes(&error)[..2], [silent; 2], "{error}");
    (0..2).for_each(|at| masters[at].thaw().unwrap());
    redlock.ready(PATIENT).unwrap_or_else(|error| panic!("{error}"));
}

/// A connection of a frozen master stays: only the commands that it does not answer show it.
#[test]
fn connected_master_that_owes_an_answer_does_not_count() {
    let masters = Masters::start(3).unwrap();
    let redlock = patient(masters.urls()).node_timeout(SHORT).connect().unwrap();
    soon("all vote", || states(&redlock) == [NodeState::Ready; 3]);
    masters[0].freeze().unwrap();
    drop(redlock.try_lock_for("a", TTL, PATIENT).unwrap());
    let (took, ()) = timed(|| redlock.ready(PATIENT).unwrap_or_else(|error| panic!("{error}")));
    assert!(took < PATIENT, "{took:?}");

    masters[1].freeze().unwrap();
    assert!(redlock.try_lock("a", TTL).unwrap_err().is_unavailable());
    let error = redlock.ready(2 * SHORT).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    let silent = NodeOutcome::TimedOut(Phase::Reply);
    assert_eq!(outcomes(&error)[..2], [silent; 2], "{error}");
    let answers = thread::spawn({
        let redlock = redlock.clone();
        move || redlock.ready(PATIENT)
    });
    masters[1].thaw().unwrap();
    answers.join().unwrap().unwrap_or_else(|error| panic!("{error}"));
    masters[0].thaw().unwrap();
}

/// Of a client that takes no lock, the probe itself asks the masters.
#[test]
fn slow_idle_client_notices_a_frozen_majority() {
    let masters = Masters::start(3).unwrap();
    let builder = patient(masters.urls()).restart_guard(RestartGuard::Uptime);
    let redlock = builder.max_ttl(20 * SHORT).node_timeout(SHORT).build().unwrap();
    redlock.ready(PATIENT).unwrap_or_else(|error| panic!("{error}"));
    soon("all vote", || states(&redlock) == [NodeState::Ready; 3]);
    (0..2).for_each(|at| masters[at].freeze().unwrap());
    let mut result = Ok(());
    soon("it is noticed", || {
        result = redlock.ready(2 * SHORT);
        result.is_err()
    });
    let error = result.unwrap_err();
    assert_eq!(outcomes(&error)[..2], [NodeOutcome::TimedOut(Phase::Reply); 2], "{error}");
    (0..2).for_each(|at| masters[at].thaw().unwrap());
    redlock.ready(PATIENT).unwrap_or_else(|error| panic!("{error}"));
    // The marker alone.
    assert!(masters.iter().all(|master| master.command_calls("set").unwrap() <= 1));
}

#[test]
fn masters_that_start_are_waited_for() {
    let mut masters = Masters::start(3).unwrap();
    let redlock = patient(masters.urls()).build().unwrap();
    masters.iter_mut().for_each(|master| master.kill().unwrap());
    let error = redlock.ready(10 * SHORT).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    assert_eq!(count(&error, NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionRefused)), 3);
    let waiting = thread::spawn(move || redlock.ready(PATIENT));
    pause(SHORT);
    masters.iter_mut().for_each(|master| master.restart().unwrap());
    waiting.join().unwrap().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn slow_quarantined_masters_do_not_count_until_they_vote() {
    let masters = Masters::start(3).unwrap();
    let guarded = |max_ttl: Duration, quarantined: usize| {
        let urls = masters.urls().into_iter().enumerate().map(|(at, url)| match at < quarantined {
            true => url,
            false => url + "?restart_guard=off",
        });
        let guard = RestartGuard::OwnObservation;
        patient(urls).restart_guard(guard).max_ttl(max_ttl).build().unwrap()
    };
    let redlock = guarded(TTL, 1);
    redlock.ready(PATIENT).unwrap_or_else(|error| panic!("{error}"));

    // Their quarantine outlasts the call: there is nothing to wait for.
    let redlock = guarded(20 * PATIENT, 2);
    let (took, result) = timed(|| redlock.ready(PATIENT));
    let error = result.unwrap_err();
    assert!(took < PATIENT, "{took:?}");
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    assert_eq!(outcomes(&error)[..2], [NodeOutcome::Quarantined; 2], "{error}");
    assert!(error.ready_in().expect("it is quarantine") > PATIENT, "{error}");

    let redlock = guarded(20 * SHORT, 3);
    let (took, result) = timed(|| redlock.ready(PATIENT));
    result.unwrap_or_else(|error| panic!("{error}"));
    // The quarantine is a second longer than the longest TTL.
    assert!((40 * SHORT..40 * SHORT + SOON).contains(&took), "{took:?}");
    let lock = redlock.try_lock("resource", 20 * SHORT).unwrap_or_else(|error| panic!("{error}"));
    drop(lock);
}
