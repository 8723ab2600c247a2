//! What is counted for monitoring: who waits, what is held, how long both took, and what nodes do
//! not answer.

use std::io::ErrorKind;
use std::time::Duration;

use muxlock::node::{NodeOutcome, Phase};
use muxlock::proto::{Cancelled, Done, NodeEvent, Patience, ReleaseHow, Reply};
use muxlock::{Histogram, KeepAlive, Stats};
use testbed::memory::{CONNECT_TIMEOUT, NODE_TIMEOUT, Scenario, TTL};

const MS: Duration = Duration::from_millis(1);
const ALL: [usize; 3] = [0, 1, 2];

fn held(scenario: &Scenario) -> u64 {
    scenario.engine.stats().held
}

/// The only duration in a histogram, and the bound of its bucket.
fn only(histogram: &Histogram) -> (Duration, Duration) {
    assert_eq!(histogram.count(), 1);
    let (upper, _) = histogram.buckets().find(|(_, count)| *count == 1).unwrap();
    (histogram.sum(), upper)
}

#[test]
fn acquisition_waits_until_its_result_is_taken() {
    let mut scenario = Scenario::ready(3);
    let numbers = |scenario: &Scenario| {
        let Stats { waiting, held, .. } = scenario.engine.stats();
        (waiting, held)
    };
    scenario.try_lock();
    let until = scenario.now.after(60 * TTL);
    let second = scenario.acquire(TTL, Patience::Until(until));
    assert_eq!(numbers(&scenario), (2, 0));
    scenario.drain();
    scenario.replies(ALL, Reply::Ok);
    assert_eq!(numbers(&scenario), (2, 0), "the result is there, and nobody has it");
    let lease = scenario.acquired().unwrap();
    assert_eq!(numbers(&scenario), (1, 1));
    assert!(matches!(scenario.engine.cancel(scenario.now, second), Cancelled::Acquisition));
    assert_eq!(numbers(&scenario), (0, 1));
    let release = scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
    assert_eq!(numbers(&scenario), (0, 0), "a release waits for no lock");
    assert!(matches!(scenario.engine.cancel(scenario.now, release), Cancelled::Release));
    assert_eq!(numbers(&scenario), (0, 0));
}

/// Whatever is done with a lease, it counts until it is given up, and only once.
#[test]
fn lease_is_held_until_it_is_released_or_let_go() {
    let mut scenario = Scenario::ready(3);
    let lease = scenario.locked();
    let op = scenario.engine.extend(scenario.now, lease, TTL);
    assert_eq!(held(&scenario), 1);
    let Cancelled::Extension(lease) = scenario.engine.cancel(scenario.now, op) else { panic!() };
    let op = scenario.engine.keep(scenario.now, lease, &KeepAlive::default());
    assert_eq!(held(&scenario), 1);
    let Cancelled::Extension(lease) = scenario.engine.cancel(scenario.now, op) else { panic!() };
    scenario.now = scenario.now.after(2 * TTL);
    assert!(!lease.is_valid_at(scenario.now));
    assert_eq!(held(&scenario), 1, "an expired lock is still to be released");
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(held(&scenario), 0);

    let (mut scenario, mut other) = (Scenario::ready(3), Scenario::ready(3));
    let mut lease = scenario.locked();
    for _ in 0..2 {
        scenario.engine.let_go(scenario.now, &mut lease);
        assert_eq!((held(&scenario), held(&other)), (0, 0));
    }
    let op = other.engine.extend(other.now, lease, TTL);
    assert_eq!((held(&scenario), held(&other)), (0, 1), "it counts where it was extended");
    let Cancelled::Extension(mut lease) = other.engine.cancel(other.now, op) else { panic!() };
    other.engine.let_go(other.now, &mut lease);
    assert_eq!(held(&other), 0);
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!((held(&scenario), held(&other)), (0, 0));
}

/// What is dropped is not known to the engine. That is so by design, and the documentation says it.
#[test]
fn lease_that_is_dropped_stays_counted() {
    let mut scenario = Scenario::ready(3);
    drop(scenario.locked());
    scenario.pass(5 * TTL);
    assert_eq!(held(&scenario), 1);
}

#[test]
fn lock_that_is_kept_and_lost_is_counted() {
    let mut scenario = Scenario::ready(3);
    let lease = scenario.locked();
    let how = KeepAlive::default().renewals_max(0);
    scenario.engine.keep(scenario.now, lease, &how);
    assert_eq!(scenario.engine.stats().lost, 0);
    scenario.pass(TTL);
    scenario.drain();
    let Some(Done::Lost(lost, _)) = scenario.done() else { panic!("it is not renewed") };
    assert_eq!((scenario.engine.stats().lost, held(&scenario)), (1, 1));
    scenario.engine.abandon(scenario.now, lost);
    assert_eq!((scenario.engine.stats().lost, held(&scenario)), (1, 0));
}

/// From the call to the grant over two rounds; from the round that was granted to the release.
#[test]
fn times_begin_with_the_call_and_with_the_round() {
    let mut scenario = Scenario::ready(3);
    let start = scenario.now;
    scenario.acquire(TTL, Patience::Until(start.after(60 * TTL)));
    scenario.drain();
    scenario.replies(ALL, Reply::Nil);
    scenario.drain();
    scenario.replies(ALL, Reply::Integer(0));
    let next = scenario.next_timeout().unwrap();
    scenario.pass(next.since(scenario.now));
    let round = scenario.now;
    scenario.drain();
    scenario.now = scenario.now.after(3 * MS);
    scenario.replies(ALL, Reply::Ok);
    scenario.now = scenario.now.after(MS);
    let lease = scenario.acquired().unwrap();
    let waited = scenario.now.since(start);
    assert_eq!((lease.waited(), lease.rounds()), (waited, 2));
    let (sum, upper) = only(&scenario.engine.times().acquire);
    assert!(sum == waited && upper / 2 < waited && waited <= upper, "{waited:?} {upper:?}");
    assert_eq!(scenario.engine.times().hold.count(), 0);

    scenario.now = scenario.now.after(500 * MS);
    scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
    let (sum, upper) = only(&scenario.engine.times().hold);
    assert_eq!((sum, upper), (scenario.now.since(round), Duration::from_nanos(1 << 29)));
}

/// Neither client has seen both ends of such a hold. Failed acquisitions took no time to grant.
#[test]
fn times_of_which_an_end_is_unknown_are_left_out() {
    let (mut giver, mut taker) = (Scenario::ready(3), Scenario::ready(3));
    giver.try_lock();
    giver.drain();
    giver.replies(ALL, Reply::Nil);
    assert!(giver.acquired().is_err());
    assert_eq!(giver.engine.times().acquire.count(), 0);
    giver.drain();
    giver.replies(ALL, Reply::Integer(0));

    let mut lease = giver.locked();
    giver.engine.let_go(giver.now, &mut lease);
    taker.engine.extend(taker.now, lease, TTL);
    taker.drain();
    taker.replies(ALL, Reply::Integer(1));
    let (lease, _) = taker.extended();
    assert_eq!(lease.rounds(), 1, "of the acquisition");
    taker.engine.release(taker.now, lease, ReleaseHow::ToTheEnd);
    assert_eq!(giver.engine.times().hold.count() + taker.engine.times().hold.count(), 0);
}

#[test]
fn timeouts_and_refusals_of_a_node_are_counted_once_each() {
    let mut scenario = Scenario::ready(3);
    let counts = |scenario: &Scenario| {
        let nodes = scenario.engine.statuses();
        nodes.map(|node| (node.timeouts, node.refused)).collect::<Vec<_>>()
    };
    scenario.try_lock();
    scenario.drain();
    scenario.replies([0, 1], Reply::Ok);
    let lease = scenario.acquired().unwrap();
    scenario.pass(NODE_TIMEOUT);
    assert_eq!(counts(&scenario), [(0, 0), (0, 0), (1, 0)]);
    // A late answer is no second timeout, and neither is the end of the connection.
    scenario.reply(2, Reply::Ok);
    let over = NodeOutcome::Disconnected(ErrorKind::ConnectionReset);
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(over));
    assert_eq!(counts(&scenario), [(0, 0), (0, 0), (1, 0)]);
    // Two attempts to connect: nobody answers, then nobody listens.
    scenario.pass(CONNECT_TIMEOUT);
    scenario.drain();
    scenario.pass(CONNECT_TIMEOUT);
    assert_eq!(counts(&scenario), [(0, 0), (0, 0), (2, 0)]);
    scenario.drain();
    let refused = NodeOutcome::Disconnected(ErrorKind::ConnectionRefused);
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(refused));
    scenario.pass(CONNECT_TIMEOUT);
    scenario.drain();
    scenario.engine.connect(scenario.now);
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(refused));
    assert_eq!(counts(&scenario)[..2], [(0, 0), (0, 0)]);
    let (_, refused) = counts(&scenario)[2];
    assert_eq!(refused, 1);
    drop(lease);
}

/// Its command was counted when it was late, and is not counted again.
#[test]
fn connection_of_a_silent_node_that_ends_is_no_second_timeout() {
    let mut scenario = Scenario::ready(3);
    scenario.try_lock();
    scenario.drain();
    scenario.replies([0, 1], Reply::Ok);
    let _lease = scenario.acquired().unwrap();
    scenario.pass(NODE_TIMEOUT);
    let silent = |scenario: &Scenario| scenario.engine.statuses().nth(2).unwrap();
    assert_eq!((silent(&scenario).timeouts, silent(&scenario).last_failure), (1, None));
    scenario.pass(Duration::from_secs(10));
    let over = Some(NodeOutcome::TimedOut(Phase::Reply));
    assert_eq!((silent(&scenario).timeouts, silent(&scenario).last_failure), (1, over));
}
