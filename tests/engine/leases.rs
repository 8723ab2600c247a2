//! Leases that go from one engine to another: what the giver must not do any more, and what the
//! taker must not count, and leaves nothing of. Virtual time, scripted nodes.

use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::node::NodeOutcome;
use muxlock::proto::{Lease, NodeEvent, Patience, ReleaseHow, Reply};
use muxlock::settings::{Heal, RestartGuard};
use testbed::memory::{Acted, Scenario, TTL, server_error};

const MS: Duration = Duration::from_millis(1);
const RESET: NodeOutcome = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
/// `max_ttl`, drift, and the second that servers truncate.
const QUARANTINE: Duration = Duration::from_millis(30_000 + 300 + 2 + 1_000);

/// A lock of nodes 0 and 1; node 2 was sent the SET and has not answered.
fn locked_by_two(giver: &mut Scenario) -> Lease {
    giver.try_lock();
    giver.drain();
    giver.replies([0, 1], Reply::Ok);
    giver.acquired().unwrap()
}

fn let_go(giver: &mut Scenario, mut lease: Lease) -> Lease {
    giver.engine.let_go(giver.now, &mut lease);
    lease
}

/// Another engine's scenario, with other numbers for its connections.
fn taker() -> Scenario {
    let mut taker = Scenario::ready(3);
    for node in 0..3 {
        assert_eq!(lose(&mut taker, node), []);
    }
    taker
}

/// Gives the lock up where node 2 does not have its key; what follows.
fn ended(taker: &mut Scenario, lease: Lease) -> Vec<Acted> {
    taker.engine.abandon(taker.now, lease);
    assert_eq!(taker.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    taker.replies([0, 1], Reply::Integer(1));
    taker.reply(2, Reply::Integer(0));
    taker.pass(200 * MS);
    taker.drain()
}

fn lose(scenario: &mut Scenario, node: usize) -> Vec<Acted> {
    scenario.engine.handle_node(scenario.now, node, NodeEvent::Disconnected(RESET));
    scenario.pass(50 * MS);
    assert_eq!(scenario.drain(), [Acted::Close(node), Acted::Connect(node)]);
    scenario.connect(node);
    scenario.drain()
}

/// The giver's SET is lost before or after the hand-over: no release follows, now or later.
#[test]
fn giver_sends_nothing_for_a_lock_that_it_let_go() {
    for is_lost_before in [true, false] {
        let mut giver = Scenario::ready(3);
        let lease = locked_by_two(&mut giver);
        if is_lost_before {
            assert_eq!(lose(&mut giver, 2), [Acted::Kill(2, 3)]);
        }
        let lease = let_go(&mut giver, lease);
        if !is_lost_before {
            assert_eq!(lose(&mut giver, 2), [Acted::Kill(2, 3)], "its own connection");
        }
        giver.reply(2, Reply::Integer(1));
        giver.pass(5 * TTL);
        assert_eq!((giver.drain(), giver.next_timeout()), (vec![], None));
        assert_eq!(giver.engine.unanswered(), 0);
        drop(lease);
    }
}

/// The giver has lost its SET with the connection, and does not know whether that has ended.
#[test]
fn lost_connection_of_the_giver_is_named_to_the_taker() {
    let mut giver = Scenario::ready(3);
    let lease = locked_by_two(&mut giver);
    assert_eq!(lose(&mut giver, 2), [Acted::Kill(2, 3)]);
    let lease = let_go(&mut giver, lease);
    let end = [Acted::Kill(2, 3), Acted::Release(vec![2], 1)];
    assert_eq!(ended(&mut taker(), lease), end);
}

/// A list with fewer nodes than the giver's is a mistake (R35), and no reason to panic.
#[test]
fn doubt_of_a_node_that_the_taker_does_not_have_is_passed_over() {
    let mut giver = Scenario::ready(4);
    giver.try_lock();
    giver.drain();
    giver.replies([0, 1, 2], Reply::Ok);
    let lease = giver.acquired().unwrap();
    let lease = let_go(&mut giver, lease);
    let mut taker = taker();
    taker.engine.abandon(taker.now, lease);
    assert_eq!(taker.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
}

/// What waits for a node to be connected, or to be handed out.
#[test]
fn giver_takes_back_what_it_has_not_sent() {
    let mut giver = Scenario::ready(3);
    giver.engine.handle_node(giver.now, 2, NodeEvent::Disconnected(RESET));
    giver.pass(Duration::ZERO);
    giver.drain();
    let lease = locked_by_two(&mut giver);
    let _lease = let_go(&mut giver, lease);
    giver.connect(2);
    assert_eq!(giver.drain(), [], "the SET is not sent");

    let mut giver = Scenario::ready(3);
    let lease = locked_by_two(&mut giver);
    giver.reply(2, Reply::Ok);
    giver.engine.extend(giver.now, lease, TTL);
    giver.drain();
    giver.replies([0, 1], Reply::Integer(1));
    let (lease, result) = giver.extended();
    result.unwrap();
    let id = giver.engine.extend(giver.now, lease, TTL);
    let muxlock::proto::Cancelled::Extension(lease) = giver.engine.cancel(giver.now, id) else {
        panic!("it is an extension");
    };
    let _lease = let_go(&mut giver, lease);
    assert_eq!(giver.drain(), [], "nor is the extension");
}

/// The giver's SET may run after the taker's release, which then has found no key there: the taker
/// ends the giver's connection, and releases again.
#[test]
fn taker_ends_the_connection_that_the_givers_set_is_on_if_its_release_finds_no_key() {
    let mut giver = Scenario::ready(3);
    let lease = locked_by_two(&mut giver);
    let lease = let_go(&mut giver, lease);
    let mut taker = taker();
    taker.engine.extend(taker.now, lease, TTL);
    assert_eq!(taker.drain(), [Acted::Extend(vec![0, 1, 2], 1)], "nothing is ended before");
    taker.replies([0, 1], Reply::Integer(1));
    let (lease, result) = taker.extended();
    result.unwrap();
    taker.reply(2, Reply::Integer(0));
    taker.engine.release(taker.now, lease, ReleaseHow::ToTheEnd);
    assert_eq!(taker.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    taker.replies([0, 1], Reply::Integer(1));
    taker.reply(2, Reply::Integer(0));
    assert!(taker.released().unwrap().was_held());
    taker.pass(200 * MS);
    assert_eq!(taker.drain(), [Acted::Kill(2, 3), Acted::Release(vec![2], 1)]);
    taker.replies([2, 2], Reply::Integer(1));
    taker.pass(5 * TTL);
    assert_eq!((taker.drain(), taker.next_timeout()), (vec![], None));
}

/// The usual: the SET had run by then, and nobody's connection is ended.
#[test]
fn taker_ends_no_connection_if_its_release_finds_the_key() {
    let mut giver = Scenario::ready(3);
    let lease = locked_by_two(&mut giver);
    let lease = let_go(&mut giver, lease);
    let mut taker = taker();
    taker.engine.abandon(taker.now, lease);
    assert_eq!(taker.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    taker.replies(0..3, Reply::Integer(1));
    taker.pass(5 * TTL);
    assert_eq!(taker.drain(), []);
}

#[test]
fn taker_that_may_not_end_the_connection_releases_twice() {
    let mut giver = Scenario::ready(3);
    let lease = locked_by_two(&mut giver);
    let lease = let_go(&mut giver, lease);
    let mut taker = taker();
    taker.engine.abandon(taker.now, lease);
    assert_eq!(taker.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    taker.replies([0, 1], Reply::Integer(1));
    taker.reply(2, Reply::Integer(0));
    taker.pass(150 * MS);
    assert_eq!(taker.drain(), [Acted::Kill(2, 3), Acted::Release(vec![2], 1)]);
    taker.reply(2, server_error(ServerErrorKind::Permission));
    taker.reply(2, Reply::Integer(0));
    taker.pass(150 * MS);
    assert_eq!(taker.drain(), [Acted::Release(vec![2], 1)]);
}

/// Another process has numbered its connections anew: one with that number is somebody else's.
#[test]
fn taker_ends_no_connection_of_another_process() {
    let mut giver = Scenario::ready(3);
    let lease = locked_by_two(&mut giver);
    let lease = let_go(&mut giver, lease);
    let mut taker = taker();
    taker.restart(2, Duration::ZERO);
    lose(&mut taker, 2);
    taker.engine.abandon(taker.now, lease);
    assert_eq!(taker.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
}

/// The taker is not connected when it gives the lock up.
#[test]
fn taker_makes_up_for_it_when_it_is_connected() {
    let mut giver = Scenario::ready(3);
    let lease = locked_by_two(&mut giver);
    let lease = let_go(&mut giver, lease);
    let mut taker = taker();
    taker.engine.handle_node(taker.now, 2, NodeEvent::Disconnected(RESET));
    taker.pass(50 * MS);
    taker.drain();
    taker.engine.abandon(taker.now, lease);
    assert_eq!(taker.drain(), [Acted::Release(vec![0, 1], 1)]);
    taker.connect(2);
    assert_eq!(taker.drain(), [Acted::Release(vec![2], 1)]);
    taker.reply(2, Reply::Integer(0));
    taker.pass(200 * MS);
    assert_eq!(taker.drain(), [Acted::Kill(2, 3), Acted::Release(vec![2], 1)]);
}

fn guarded() -> Scenario {
    let mut scenario = Scenario::guarded(3).all_ready();
    scenario.drain();
    scenario
}

/// Only the giver's next look could have told that the master was not to be trusted when it took
/// the SET; and that may be later than any time that the giver could name.
#[test]
fn taker_does_not_count_a_node_before_max_ttl_is_over_since_it_was_seen_to_have_the_key() {
    let mut giver = guarded();
    let lease = locked_by_two(&mut giver);
    let mut lease = let_go(&mut giver, lease);
    let mut taker = guarded();
    let mut seen_at = None;
    let mut was_counted = false;
    for round in 0.. {
        taker.pass(TTL / 3);
        taker.engine.extend(taker.now, lease, TTL);
        taker.drain_looked();
        let has_key = round >= 30;
        taker.reply(2, Reply::Integer(has_key.into()));
        taker.replies([0, 1], Reply::Integer(1));
        let (extended, result) = taker.extended();
        result.unwrap();
        if has_key {
            let since = *seen_at.get_or_insert(taker.now);
            was_counted = extended.granted_by().any(|node| node == 2);
            assert_eq!(was_counted, taker.now >= since.after(QUARANTINE));
        }
        lease = extended;
        if was_counted {
            return;
        }
    }
}

/// The same for a node that the giver knows to be in quarantine, and the taker does not.
#[test]
fn taker_does_not_count_a_node_that_the_giver_has_in_quarantine() {
    let mut giver = guarded();
    let lease = locked_by_two(&mut giver);
    giver.reply(2, Reply::Ok);
    giver.ahead[2] += Duration::from_secs(60);
    assert_eq!(lose(&mut giver, 2), []);
    assert!(giver.engine.statuses().nth(2).unwrap().quarantine.is_some(), "its clock jumped");
    let lease = let_go(&mut giver, lease);
    let mut taker = guarded();
    taker.engine.extend(taker.now, lease, TTL);
    taker.drain();
    taker.replies([2, 0], Reply::Integer(1));
    taker.nothing_done();
    taker.reply(1, Reply::Integer(1));
    let (lease, result) = taker.extended();
    result.unwrap();
    assert!(lease.granted_by().eq([0, 1]));
}

/// Handed on, what is not known goes on with it.
#[test]
fn doubts_are_handed_on() {
    let mut giver = Scenario::ready(3);
    let lease = locked_by_two(&mut giver);
    let lease = let_go(&mut giver, lease);
    let mut second = taker();
    second.engine.extend(second.now, lease, TTL);
    second.drain();
    second.replies([0, 1], Reply::Integer(1));
    let (lease, result) = second.extended();
    result.unwrap();
    second.reply(2, Reply::Integer(0));
    let lease = let_go(&mut second, lease);
    let mut third = taker();
    assert_eq!(ended(&mut third, lease), [Acted::Kill(2, 3), Acted::Release(vec![2], 1)]);
}

/// Back at its giver, whose connection is as it was: what was sent on it comes before.
#[test]
fn giver_that_takes_it_back_ends_no_connection_of_its_own() {
    let mut giver = Scenario::ready(3);
    let lease = locked_by_two(&mut giver);
    let lease = let_go(&mut giver, lease);
    giver.engine.abandon(giver.now, lease);
    assert_eq!(giver.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    giver.reply(2, Reply::Ok);
    giver.replies(0..3, Reply::Integer(1));
    giver.pass(5 * TTL);
    assert_eq!((giver.drain(), giver.next_timeout()), (vec![], None));
}

/// A key that the taker's own extension has set does not show that the giver's SET has run.
#[test]
fn key_that_was_healed_does_not_show_that_the_givers_set_has_run() {
    let configure = |builder: muxlock::Builder| {
        builder.restart_guard(RestartGuard::Uptime).heal(Heal::On).max_ttl(TTL)
    };
    let mut giver = Scenario::ready(3);
    let lease = locked_by_two(&mut giver);
    let lease = let_go(&mut giver, lease);
    let mut taker = Scenario::with(3, configure).all_ready();
    // Another connection than the giver's has by number.
    taker.engine.handle_node(taker.now, 2, NodeEvent::Disconnected(RESET));
    taker.pass(Duration::ZERO);
    taker.drain();
    taker.connect(2);
    taker.drain();
    taker.engine.extend(taker.now, lease, TTL);
    taker.drain();
    taker.replies([0, 1], Reply::Integer(1));
    taker.reply(2, Reply::Integer(2));
    let (lease, result) = taker.extended();
    result.unwrap();
    taker.engine.abandon(taker.now, lease);
    assert_eq!(taker.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    taker.replies(0..3, Reply::Integer(1));
    taker.pass(Duration::ZERO);
    assert_eq!(taker.drain(), [Acted::Kill(2, 3), Acted::Release(vec![2], 1)]);
}

/// What the giver's healing extension may yet set is the taker's to release.
#[test]
fn extension_that_may_heal_is_in_doubt_like_a_set() {
    let configure = |builder: muxlock::Builder| {
        builder.restart_guard(RestartGuard::Uptime).heal(Heal::On).max_ttl(TTL)
    };
    let mut giver = Scenario::with(3, configure).all_ready();
    giver.acquire(TTL, Patience::OneRound);
    giver.drain();
    giver.replies(0..3, Reply::Ok);
    let lease = giver.acquired().unwrap();
    giver.engine.extend(giver.now, lease, TTL);
    giver.drain();
    giver.replies([0, 1], Reply::Integer(1));
    let (lease, result) = giver.extended();
    result.unwrap();
    let lease = let_go(&mut giver, lease);
    let mut taker = taker();
    taker.engine.abandon(taker.now, lease);
    assert_eq!(taker.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    // That the key is there shows nothing of it.
    taker.replies(0..3, Reply::Integer(1));
    taker.pass(Duration::ZERO);
    assert_eq!(taker.drain(), [Acted::Kill(2, 3), Acted::Release(vec![2], 1)]);
}

#[test]
fn two_locks_that_are_let_go_are_both_extended_no_more() {
    let mut giver =
        Scenario::with(3, |builder| builder.heal(Heal::Off).restart_guard(RestartGuard::Off))
            .all_ready();
    let leases = [(); 2].map(|()| giver.locked());
    let ids = leases.map(|lease| giver.engine.extend(giver.now, lease, 2 * TTL));
    // The commands were not taken yet.
    for id in ids {
        match giver.engine.cancel(giver.now, id) {
            muxlock::proto::Cancelled::Extension(lease) => drop(let_go(&mut giver, lease)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(giver.drain(), []);
}

#[test]
fn failed_set_is_not_sent_after_another_lock_was_let_go() {
    let mut giver = Scenario::ready(3);
    let lease = giver.locked();
    giver.try_lock();
    for node in [0, 1] {
        giver.engine.handle_node(giver.now, node, NodeEvent::Disconnected(RESET));
    }
    drop(let_go(&mut giver, lease));
    assert_eq!(giver.drain(), [Acted::Close(0), Acted::Close(1), Acted::Release(vec![2], 2)]);
}
