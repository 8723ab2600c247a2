//! Extensions that set the key on nodes that have forgotten it (R29), on virtual time.

use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::node::NodeOutcome;
use muxlock::proto::{Cancelled, Lease, NodeEvent, Reply};
use muxlock::settings::{Heal, RestartGuard};
use muxlock::{Builder, LockError};
use testbed::memory::{Acted, CONNECT_TIMEOUT, NODE_TIMEOUT, Scenario, TTL, server_error};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// That of `max_ttl`, which is 30 s, and a second for the server's truncated age.
const QUARANTINE: Duration = Duration::from_millis(30_000 + 300 + 2 + 1_000);
const RESET: NodeOutcome = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
/// The script's answer where the key was absent.
const SET: Reply = Reply::Integer(2);

fn healing_with(configure: impl FnOnce(Builder) -> Builder) -> Scenario {
    let guarded = |builder: Builder| builder.restart_guard(RestartGuard::Uptime).heal(Heal::On);
    Scenario::with(3, |builder| configure(guarded(builder))).all_ready()
}

fn healing() -> Scenario {
    healing_with(|builder| builder)
}

fn extend(scenario: &mut Scenario, lease: Lease) -> Vec<Acted> {
    scenario.engine.extend(scenario.now, lease, TTL);
    scenario.drain()
}

fn lose(scenario: &mut Scenario, node: usize) {
    scenario.engine.handle_node(scenario.now, node, NodeEvent::Disconnected(RESET));
    scenario.drain();
}

fn connect(scenario: &mut Scenario, node: usize) -> Vec<Acted> {
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(node);
    scenario.drain()
}

fn outcome(error: &LockError, node: usize) -> NodeOutcome {
    error.nodes()[node].outcome
}

fn debts(scenario: &Scenario) -> Vec<usize> {
    scenario.engine.statuses().map(|node| node.pending_releases).collect()
}

#[test]
fn healed_keys_count() {
    let mut scenario = healing();
    let lease = scenario.locked();
    assert_eq!(extend(&mut scenario, lease), [Acted::Heal(vec![0, 1, 2], 1)]);
    scenario.reply(0, SET);
    scenario.reply(1, SET);
    let (lease, result) = scenario.extended();
    assert!(result.is_ok());
    assert_eq!(lease.granted_by().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(scenario.engine.stats().healed, 2);
}

#[test]
fn switched_off_nothing_is_set() {
    let mut scenario = Scenario::ready(3);
    let lease = scenario.locked();
    assert_eq!(extend(&mut scenario, lease), [Acted::Extend(vec![0, 1, 2], 1)]);
    scenario.replies([0, 1], Reply::Integer(0));
    assert!(scenario.extended().1.unwrap_err().is_expired());
}

#[test]
fn script_without_healing_that_says_two_ends_the_connection() {
    let mut scenario = Scenario::ready(3);
    let lease = scenario.locked();
    extend(&mut scenario, lease);
    scenario.reply(0, SET);
    assert_eq!(scenario.drain(), [Acted::Close(0)]);
}

#[test]
fn key_of_another_is_no_vote() {
    let mut scenario = healing();
    let lease = scenario.locked();
    let deadline = lease.valid_until();
    extend(&mut scenario, lease);
    scenario.reply(0, Reply::Integer(0));
    scenario.reply(1, server_error(ServerErrorKind::WrongType));
    let (lease, result) = scenario.extended();
    let error = result.unwrap_err();
    assert!(error.is_expired());
    assert_eq!(
        (outcome(&error, 0), outcome(&error, 1)),
        (NodeOutcome::Absent, NodeOutcome::Absent)
    );
    assert_eq!(lease.valid_until(), deadline);
}

/// Somebody else's vote from before the restart may be under way (R25).
#[test]
fn quarantined_node_is_healed_and_does_not_count_before_its_time() {
    let mut scenario = healing();
    let lease = scenario.locked();
    let deadline = lease.valid_until();
    for node in [0, 1] {
        lose(&mut scenario, node);
        scenario.pass(CONNECT_TIMEOUT);
        scenario.drain();
        scenario.restart(node, Duration::ZERO);
        connect(&mut scenario, node);
    }
    let acted = extend(&mut scenario, lease);
    assert_eq!(scenario.looked(acted), [Acted::Heal(vec![0, 1, 2], 1)]);
    scenario.replies([0, 1], SET);
    scenario.reply(2, Reply::Integer(1));
    let (lease, result) = scenario.extended();
    assert_eq!(outcome(&result.unwrap_err(), 0), NodeOutcome::Quarantined);
    assert_eq!(lease.valid_until(), deadline);
}

/// A master is restarted, and the next one when the first one votes again, until all have been.
#[test]
fn lock_that_is_extended_outlives_all_its_masters_in_turn() {
    let mut scenario = healing();
    let mut lease = scenario.locked();
    for node in 0..3 {
        lose(&mut scenario, node);
        scenario.pass(CONNECT_TIMEOUT);
        scenario.drain();
        scenario.restart(node, Duration::ZERO);
        connect(&mut scenario, node);
        let began = scenario.now;
        let mut is_absent = true;
        while scenario.now.since(began) <= QUARANTINE {
            scenario.pass(TTL / 2);
            let acted = extend(&mut scenario, lease);
            assert_eq!(scenario.looked(acted), [Acted::Heal(vec![0, 1, 2], 1)]);
            for at in 0..3 {
                let is_new = at == node && std::mem::take(&mut is_absent);
                scenario.reply(at, if is_new { SET } else { Reply::Integer(1) });
            }
            let (extended, result) = scenario.extended();
            assert!(result.is_ok(), "{result:?}");
            lease = extended;
        }
    }
    assert!(lease.is_valid_at(scenario.now));
}

/// R22, R25: what is healed after the old deadline is nobody's any more.
#[test]
fn healed_after_the_old_deadline_is_too_late() {
    let mut scenario = healing_with(|builder| builder.node_timeout(20_000 * MS));
    let lease = scenario.locked();
    let deadline = lease.valid_until();
    extend(&mut scenario, lease);
    scenario.now = deadline;
    scenario.replies([0, 1], SET);
    let (lease, result) = scenario.extended();
    assert!(result.unwrap_err().is_expired());
    assert_eq!(lease.valid_until(), deadline);
}

/// R11, R29: nor is it sent then, wherever it waited.
#[test]
fn unsent_at_the_old_deadline_it_is_not_sent() {
    let mut scenario = healing();
    let lease = scenario.locked();
    let deadline = lease.valid_until();
    scenario.engine.extend(scenario.now, lease, TTL);
    scenario.now = deadline;
    scenario.engine.handle_timeout(scenario.now);
    assert_eq!(scenario.drain(), []);
    let (lease, result) = scenario.extended();
    assert!(result.is_err());
    drop(lease);

    for (early, expected) in [(MS, vec![Acted::Heal(vec![0, 1, 2], 1)]), (Duration::ZERO, vec![])] {
        let mut scenario = healing();
        let lease = scenario.locked();
        let left = lease.remaining(scenario.now) - early;
        scenario.engine.extend(scenario.now, lease, TTL);
        // Time passes, and nobody has looked at what is due.
        scenario.engine.advance(scenario.now.after(left));
        assert_eq!(scenario.drain(), expected, "{early:?} before");
    }
}

/// A connection that is being made while the lock is extended.
fn extending_while_connecting() -> Scenario {
    let mut scenario = healing();
    let lease = scenario.locked();
    lose(&mut scenario, 2);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    assert_eq!(extend(&mut scenario, lease), [Acted::Heal(vec![0, 1], 1)]);
    scenario
}

#[test]
fn connecting_node_is_healed_if_the_extension_still_waits() {
    let mut scenario = extending_while_connecting();
    scenario.connect(2);
    assert_eq!(scenario.drain(), [Acted::Heal(vec![2], 1)]);
}

/// R11, R29: what has ended may have been handed over, or released.
#[test]
fn connecting_node_is_not_healed_once_the_extension_has_ended() {
    let mut scenario = extending_while_connecting();
    scenario.replies([0, 1], Reply::Integer(1));
    let (lease, result) = scenario.extended();
    assert!(result.is_ok());
    scenario.connect(2);
    assert_eq!(scenario.drain(), []);
    drop(lease);

    let mut scenario = healing();
    let lease = scenario.locked();
    let id = scenario.engine.extend(scenario.now, lease, TTL);
    let Cancelled::Extension(lease) = scenario.engine.cancel(scenario.now, id) else {
        panic!("the lock is still held");
    };
    assert_eq!(scenario.drain(), []);
    drop(lease);
}

/// R10: an extension that still waits would run behind the release of its lock elsewhere.
#[test]
fn connecting_node_is_not_sent_the_extension_of_a_lock_that_was_released() {
    let mut scenario = Scenario::with(3, |builder| builder).all_ready();
    let lease = scenario.locked();
    lose(&mut scenario, 2);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    assert_eq!(extend(&mut scenario, lease), [Acted::Extend(vec![0, 1], 1)]);
    scenario.replies([0, 1], Reply::Integer(1));
    let (lease, result) = scenario.extended();
    assert!(result.is_ok());
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1], 1)]);
    scenario.connect(2);
    assert_eq!(scenario.drain(), [Acted::Release(vec![2], 1)]);

    // Nor is it if its SET waits there as well, and then there is nothing to release.
    let mut scenario = Scenario::with(3, |builder| builder).all_ready();
    lose(&mut scenario, 2);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.try_lock();
    assert_eq!(scenario.drain(), [Acted::Set(vec![0, 1], 1)]);
    scenario.replies([0, 1], Reply::Ok);
    let lease = scenario.acquired().unwrap();
    extend(&mut scenario, lease);
    scenario.replies([0, 1], Reply::Integer(1));
    let (lease, _) = scenario.extended();
    scenario.engine.abandon(scenario.now, lease);
    scenario.drain();
    scenario.connect(2);
    assert_eq!(scenario.drain(), []);
}

/// A lock that was not asked for on node 2, which is there now.
fn locked_without_node_2(scenario: &mut Scenario) -> Lease {
    lose(scenario, 2);
    scenario.engine.connect(scenario.now);
    lose(scenario, 2);
    scenario.try_lock();
    assert_eq!(scenario.drain(), [Acted::Set(vec![0, 1], 1)]);
    scenario.replies([0, 1], Reply::Ok);
    let lease = scenario.acquired().unwrap();
    scenario.pass(SECOND);
    connect(scenario, 2);
    lease
}

/// R10, R29: also where it was not taken, but may have been set; and without healing, where a
/// process may be by now that was elsewhere when it was taken.
#[test]
fn node_that_got_the_extension_and_never_the_set_is_released() {
    let released = |heal: Heal| {
        let guarded = |builder: Builder| builder.restart_guard(RestartGuard::Uptime).heal(heal);
        let mut scenario = Scenario::with(3, guarded).all_ready();
        let lease = locked_without_node_2(&mut scenario);
        let acted = extend(&mut scenario, lease);
        scenario.looked(acted);
        scenario.replies([0, 1], Reply::Integer(1));
        let (lease, result) = scenario.extended();
        assert!(result.is_ok());
        scenario.engine.abandon(scenario.now, lease);
        scenario.drain()
    };
    for heal in [Heal::On, Heal::Off] {
        assert_eq!(released(heal), [Acted::Release(vec![0, 1, 2], 1)], "{heal:?}");
    }
}

#[test]
fn cancelled_extension_may_have_healed() {
    let mut scenario = healing();
    let lease = locked_without_node_2(&mut scenario);
    let id = scenario.engine.extend(scenario.now, lease, TTL);
    scenario.drain();
    let Cancelled::Extension(lease) = scenario.engine.cancel(scenario.now, id) else {
        panic!("the lock is still held");
    };
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
}

/// A lock that was extended while the connection to node 2 was lost with the answer.
fn extended_with_an_answer_lost() -> (Scenario, Lease) {
    let mut scenario = healing();
    let lease = scenario.locked();
    extend(&mut scenario, lease);
    lose(&mut scenario, 2);
    scenario.replies([0, 1], Reply::Integer(1));
    let (lease, result) = scenario.extended();
    assert!(result.is_ok());
    (scenario, lease)
}

/// R12, R26: its copy there may be one that counts, so nothing but the old connection is ended.
#[test]
fn lost_answer_ends_the_old_connection_and_releases_nothing_while_the_lock_is_held() {
    let (mut scenario, lease) = extended_with_an_answer_lost();
    assert_eq!(debts(&scenario), [0; 3]);
    assert_eq!(scenario.engine.unanswered(), 0);
    assert_eq!(connect(&mut scenario, 2), [Acted::Kill(2, 3)]);
    assert_eq!(extend(&mut scenario, lease), [Acted::Heal(vec![0, 1, 2], 1)]);
    scenario.reply(2, Reply::Integer(1));
    scenario.replies([2, 1], Reply::Integer(1));
    let (lease, result) = scenario.extended();
    assert!(result.is_ok());
    assert_eq!(lease.granted_by().collect::<Vec<_>>(), [1, 2], "a copy that will stay counts");
    scenario.reply(0, Reply::Integer(1));
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    scenario.replies(0..3, Reply::Integer(1));
    scenario.pass(SECOND);
    assert_eq!(scenario.drain(), []);
}

/// R12: the same as after a SET.
#[test]
fn lost_answer_of_a_lock_that_is_over_is_owed() {
    let (mut scenario, lease) = extended_with_an_answer_lost();
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1], 1)]);
    assert_eq!(debts(&scenario), [0, 0, 1]);
    assert_eq!(connect(&mut scenario, 2), [Acted::Kill(2, 3), Acted::Release(vec![2], 1)]);
}

/// R12: two connections of one process, each with something that may still arrive.
#[test]
fn end_of_one_old_connection_says_nothing_of_another() {
    let (mut scenario, lease) = extended_with_an_answer_lost();
    connect(&mut scenario, 2);
    extend(&mut scenario, lease);
    lose(&mut scenario, 2);
    scenario.replies([0, 1], Reply::Integer(1));
    let (lease, result) = scenario.extended();
    assert!(result.is_ok());
    scenario.pass(SECOND);
    assert_eq!(connect(&mut scenario, 2), [Acted::Kill(2, 3), Acted::Kill(2, 4)]);
    scenario.reply(2, Reply::Integer(1));
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    scenario.reply(2, server_error(ServerErrorKind::Permission));
    scenario.replies(0..3, Reply::Integer(1));
    scenario.pass(100 * MS);
    assert_eq!(scenario.drain(), [Acted::Release(vec![2], 1)]);
}

/// R12: without the permission to kill, a release may be overtaken by what was lost.
#[test]
fn connection_that_may_not_be_killed_is_followed_by_a_second_release() {
    let (mut scenario, lease) = extended_with_an_answer_lost();
    connect(&mut scenario, 2);
    scenario.reply(2, server_error(ServerErrorKind::Permission));
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    scenario.replies(0..3, Reply::Integer(1));
    scenario.pass(100 * MS);
    assert_eq!(scenario.drain(), [Acted::Release(vec![2], 1)]);
    scenario.reply(2, Reply::Integer(1));
    assert_eq!(scenario.next_timeout(), None);

    // As long as the lock is held, its copies are left alone.
    let (mut scenario, lease) = extended_with_an_answer_lost();
    connect(&mut scenario, 2);
    scenario.reply(2, server_error(ServerErrorKind::Permission));
    scenario.pass(100 * MS);
    assert_eq!(scenario.drain(), []);
    for _ in 0..2 {
        scenario.pass(TTL + 60 * SECOND);
        assert_eq!(scenario.drain(), []);
    }
    assert_eq!(scenario.next_timeout(), None);
    drop(lease);
}

#[test]
fn connection_of_another_process_is_not_killed() {
    let (mut scenario, lease) = extended_with_an_answer_lost();
    scenario.restart(2, Duration::ZERO);
    assert_eq!(connect(&mut scenario, 2), []);
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
}

/// A key that a master lost without a restart is as a new one: its clock is looked at first.
#[test]
fn clock_and_role_are_looked_at_before_a_key_may_be_set() {
    let mut scenario = healing();
    let lease = scenario.locked();
    scenario.pass(SECOND);
    scenario.ahead[0] += SECOND;
    let acted = extend(&mut scenario, lease);
    assert_eq!(acted[..2], [Acted::Time(vec![0, 1, 2]), Acted::Role(vec![0, 1, 2])]);
    assert_eq!(scenario.looked(acted), [Acted::Heal(vec![0, 1, 2], 1)]);
    scenario.reply(0, SET);
    scenario.reply(1, Reply::Integer(0));
    scenario.reply(2, Reply::Integer(1));
    let error = scenario.extended().1.unwrap_err();
    assert_eq!(outcome(&error, 0), NodeOutcome::Quarantined, "its clock has jumped");
}

/// A copy of a lock that is held is not deleted.
#[test]
fn heal_that_a_node_refuses_leaves_nothing_to_delete() {
    let mut scenario = healing();
    let lease = scenario.locked();
    extend(&mut scenario, lease);
    scenario.reply(0, server_error(ServerErrorKind::OutOfMemory));
    scenario.reply(1, Reply::Integer(1));
    scenario.nothing_done();
    scenario.pass(NODE_TIMEOUT);
    let error = scenario.extended().1.unwrap_err();
    assert_eq!(outcome(&error, 0), NodeOutcome::Server(ServerErrorKind::OutOfMemory));
    assert_eq!(debts(&scenario), [0; 3]);
    assert_eq!(scenario.drain(), []);
}
