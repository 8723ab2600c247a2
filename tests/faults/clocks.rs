//! Masters whose wall clock is set while they run, by a library that is loaded into them.

use std::thread;
use std::time::Duration;

use muxlock::node::{NodeOutcome, NodeState, QuarantineCause};
use muxlock::settings::{RestartGuard, Retry, Waiting};
use muxlock::{Builder, LockErrorKind, Redlock};

use crate::scene::{
    First, KEY, MAX_TTL, QUARANTINE, SAMPLE_AGE_MAX, all_vote, guarded, node_soon, owns, pttl,
    quarantine_of, refused, tell, trusting, urls, works,
};
use muxlock::testing::{Master, Value};
use testbed::{Clocks, SOON, TTL, ask, count, info, outcomes, pause, skip, soon, timed};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;

/// Three masters whose clocks can be set.
fn start(test: &str) -> Option<Clocks> {
    Clocks::start(3).map_err(|reason| skip(test, reason)).ok()
}

/// Sets the clocks of a majority, by so much against the true time.
fn set(clocks: &Clocks, seconds: i64) {
    for (node, master) in clocks.masters.iter().enumerate().take(2) {
        let before = wall_seconds(master);
        clocks.set(node, seconds);
        println!("the clock of master {node} went by {} s", wall_seconds(master) - before);
    }
    let ahead = wall_seconds(&clocks.masters[0]) - wall_seconds(&clocks.masters[2]);
    assert!((seconds - 1..=seconds + 1).contains(&ahead), "the clock was set by {ahead} s");
}

fn wall_seconds(master: &Master) -> i64 {
    let Value::Array(time) = ask(master, &["TIME"]) else { panic!("TIME is a list") };
    let Value::Bulk(seconds) = &time[0] else { panic!("TIME is text") };
    String::from_utf8_lossy(seconds).parse().expect("TIME is a number")
}

/// A lock on all masters, and a second client that has seen their clocks.
fn held(clocks: &Clocks, builder: &Builder, ttl: Duration) -> (First, Redlock) {
    let (holder, second) = (all_vote(builder), all_vote(builder));
    works(&second);
    let first = First::take(&holder, ttl);
    let all_have_it = || clocks.masters.iter().all(|master| owns(master, &first.lock, KEY));
    soon("every master has it", all_have_it);
    pause(SAMPLE_AGE_MAX);
    (first, second)
}

#[test]
fn slow_core_clocks_stepped_forward_second_client_waits_for_the_firsts_deadline() {
    let test = "slow_core_clocks_stepped_forward_second_client_waits_for_the_firsts_deadline";
    let Some(clocks) = start(test) else { return };
    let (first, second) = held(&clocks, &guarded(urls(&clocks.masters)), MAX_TTL);
    set(&clocks, MINUTE);
    drop(refused(second.try_lock(KEY, MAX_TTL)));
    // Two of three do not vote, and nobody holds this one.
    let error = refused(second.try_lock("other", MAX_TTL));
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    assert_eq!(outcomes(&error)[..2], [NodeOutcome::Quarantined; 2], "{error}");
    assert!(error.to_string().contains("its wall clock jumped forward"), "{error}");
    let quarantine = quarantine_of(&second, 0).expect("it is quarantined");
    assert_eq!(quarantine.cause, QuarantineCause::ClockStepped);
    assert!(quarantine.ready_in <= QUARANTINE, "{quarantine:?}");
    drop(first.is_never_joined_by(&second));
    assert_eq!(second.stats().clock_jumps, 2);
}

#[test]
fn slow_core_clocks_stepped_forward_under_a_waiting_client_it_waits_for_the_firsts_deadline() {
    let test =
        "slow_core_clocks_stepped_forward_under_a_waiting_client_it_waits_for_the_firsts_deadline";
    let Some(clocks) = start(test) else { return };
    let retry = Retry::default().most(Duration::from_millis(2));
    let retrying = guarded(urls(&clocks.masters)).waiting(Waiting::Retry).retry(retry);
    let (first, second) = held(&clocks, &retrying, MAX_TTL);
    // It tries every few milliseconds, and so it does right before and after the step.
    let rounds = second.stats().rounds;
    step_while_it_waits(&clocks, &first, &second, || second.stats().rounds > rounds + 20);
}

/// The masters say that the lock has expired, and the first in the queue is woken.
#[test]
fn slow_core_clocks_stepped_forward_under_a_client_in_the_queue_it_waits_for_the_firsts_deadline() {
    let test = "slow_core_clocks_stepped_forward_under_a_client_in_the_queue_it_waits_for_the_firsts_deadline";
    let Some(clocks) = start(test) else { return };
    let (first, second) = held(&clocks, &guarded(urls(&clocks.masters)), MAX_TTL);
    step_while_it_waits(&clocks, &first, &second, || second.stats().queued > 0);
}

fn step_while_it_waits(
    clocks: &Clocks,
    first: &First,
    second: &Redlock,
    does_it_wait: impl FnMut() -> bool,
) {
    thread::scope(|scope| {
        let waiting = scope.spawn(|| first.is_never_joined_by(second));
        soon("it waits", does_it_wait);
        set(clocks, MINUTE);
        drop(waiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
}

#[test]
fn clocks_stepped_forward_without_the_guard_there_are_two_holders() {
    let test = "clocks_stepped_forward_without_the_guard_there_are_two_holders";
    let Some(clocks) = start(test) else { return };
    let (first, second) = held(&clocks, &trusting(clocks.urls()), TTL);
    set(&clocks, MINUTE);
    first.is_joined_by(&second);
}

#[test]
fn slow_core_clocks_set_back_an_hour_locks_end_late_and_never_early() {
    let test = "slow_core_clocks_set_back_an_hour_locks_end_late_and_never_early";
    let Some(clocks) = start(test) else { return };
    let (first, second) = held(&clocks, &guarded(urls(&clocks.masters)), MAX_TTL);
    set(&clocks, -HOUR);
    let left = pttl(&clocks.masters[0], KEY);
    println!("measured: a key with a TTL of {MAX_TTL:?} lives for another {left} ms");
    assert!(left > 3_590_000, "{left}");
    // A holder that is alive gives it back as ever.
    assert!(first.lock.unlock().unwrap().was_held());
    works(&second);

    // One that is gone costs liveness until somebody sets the clock right, and no more. The clock
    // that goes forward by that is not trusted for a while, as with any other step.
    let gone = First::take(&second, MAX_TTL);
    soon("every master has it", || {
        clocks.masters.iter().all(|master| owns(master, &gone.lock, KEY))
    });
    set(&clocks, -2 * HOUR);
    let third = all_vote(&guarded(urls(&clocks.masters)));
    let error = refused(third.try_lock_for(KEY, MAX_TTL, MAX_TTL));
    assert!(error.is_contended(), "{error}");
    soon("the first one is over", || !gone.lock.is_valid());
    assert!(refused(third.try_lock(KEY, MAX_TTL)).is_contended());
    set(&clocks, -HOUR);
    let (took, lock) = timed(|| gone.is_never_joined_by(&third));
    println!("measured: a corrected clock cost {took:?}");
    assert!(took < QUARANTINE + SOON, "{took:?}");
    drop(lock);
}

/// A user that may not ask for the time: its clients see no clock jump.
fn add_timeless_user(master: &Master) {
    tell(master, &["ACL", "SETUSER", "timeless", "on", ">secret", "~*", "+@all", "-time"]);
}

#[test]
fn restarted_masters_that_claim_an_hour_of_age_are_not_believed_by_who_knew_them() {
    let test = "restarted_masters_that_claim_an_hour_of_age_are_not_believed_by_who_knew_them";
    let Some(mut clocks) = start(test) else { return };
    // A master whose clock is set before anybody looks seems as old as that. The third one has the
    // age that it has, so that only the guard of the others is on.
    set(&clocks, HOUR);
    clocks.masters.iter().for_each(add_timeless_user);
    let url = |master: &Master| format!("redis://timeless:secret@{}", master.addr());
    let mut urls: Vec<_> = clocks.masters.iter().map(url).collect();
    urls[2] += "?restart_guard=off";
    let builder = guarded(urls).max_ttl(TTL);
    let (first, second) = held(&clocks, &builder, TTL);
    for master in clocks.masters.iter_mut().take(2) {
        master.restart().unwrap_or_else(|error| panic!("{error}"));
        add_timeless_user(master);
    }
    set(&clocks, 2 * HOUR);
    let uptime: u64 = info(&clocks.masters[0], "server", "uptime_in_seconds").parse().unwrap();
    assert!(uptime > 3_590, "{uptime}");

    for node in 0..2 {
        node_soon(&second, node, "it is back", |node| node.state == NodeState::Quarantined);
        let cause = quarantine_of(&second, node).map(|quarantine| quarantine.cause);
        assert_eq!(cause, Some(QuarantineCause::Restarted));
    }
    drop(refused(second.try_lock(KEY, TTL)));
    let error = refused(second.try_lock("other", TTL));
    assert_eq!(count(&error, NodeOutcome::Quarantined), 2, "{error}");
    // A new client that trusts no clock waits as well.
    let wary = builder.clone().restart_guard(RestartGuard::OwnObservation).connect().unwrap();
    let error = refused(wary.try_lock("other", TTL));
    assert_eq!(count(&error, NodeOutcome::Quarantined), 2, "{error}");
    // The control, and the limit of the default: a new client has only the masters' word.
    first.is_joined_by(&builder.connect().unwrap());
}
