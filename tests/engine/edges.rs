//! The engine at the very moments at which something ends, and what it counts.

use std::time::Duration;

use muxlock::LockErrorKind;
use muxlock::error::ServerErrorKind;
use muxlock::node::NodeOutcome;
use muxlock::proto::{Cancelled, NodeEvent, OpId, Patience, ReleaseHow, Reply};
use testbed::memory::{Acted, CONNECT_TIMEOUT, NODE_TIMEOUT, Scenario, TTL, server_error};

const MS: Duration = Duration::from_millis(1);
const NANO: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);
const ALL: [usize; 3] = [0, 1, 2];

fn wait(scenario: &mut Scenario, patience: Duration) -> OpId {
    let until = scenario.now.after(patience);
    scenario.acquire(TTL, Patience::Until(until))
}

fn set(token: u32) -> Acted {
    Acted::Set(ALL.to_vec(), token)
}

fn release(token: u32) -> Acted {
    Acted::Release(ALL.to_vec(), token)
}

/// A round that is refused by all, and its release.
fn refused_round(scenario: &mut Scenario, token: u32) {
    assert_eq!(scenario.drain(), [set(token)]);
    scenario.replies(ALL, Reply::Nil);
    assert_eq!(scenario.drain(), [release(token)]);
    scenario.replies(ALL, Reply::Integer(0));
}

/// How long the first delay between two rounds takes; the jitter is always the same.
fn first_delay() -> Duration {
    let mut scenario = Scenario::ready(3);
    wait(&mut scenario, 60 * SECOND);
    refused_round(&mut scenario, 1);
    let start = scenario.now;
    let next = scenario.next_timeout().unwrap();
    let delay = next.since(start);
    scenario.pass(delay - NANO);
    assert_eq!(scenario.drain(), []);
    scenario.pass(NANO);
    assert_eq!(scenario.drain(), [set(2)]);
    delay
}

/// R9: a round that would begin when patience ends does not begin, and is not waited for.
#[test]
fn delay_that_ends_with_patience_is_not_waited_for() {
    let delay = first_delay();
    assert!(delay > Duration::ZERO);
    for (patience, is_over) in [(delay, true), (delay + NANO, false)] {
        let mut scenario = Scenario::ready(3);
        let op = wait(&mut scenario, patience);
        refused_round(&mut scenario, 1);
        assert_eq!(scenario.engine.operations().is_done(op), is_over, "{patience:?}");
        if is_over {
            let error = scenario.acquired().unwrap_err();
            assert_eq!((error.kind(), error.attempts()), (LockErrorKind::Contended, 1));
        } else {
            scenario.pass(delay);
            assert_eq!(scenario.drain(), [set(2)], "it is the last round");
        }
    }
}

#[test]
fn all_whose_patience_ends_at_the_same_moment_end_without_a_round_more() {
    let mut scenario = Scenario::ready(3);
    let ops = [(); 3].map(|()| wait(&mut scenario, NODE_TIMEOUT / 2));
    assert_eq!(scenario.drain(), [set(1)]);
    scenario.pass(NODE_TIMEOUT / 2);
    assert_eq!(scenario.drain(), [release(1)]);
    for op in ops {
        assert!(scenario.engine.operations().is_done(op));
    }
    assert_eq!(scenario.engine.stats().rounds, 1);
    assert_eq!(scenario.engine.stats().timed_out, 3);
}

#[test]
fn release_at_the_moment_at_which_patience_ends_starts_nothing() {
    for (early, asks) in [(NANO, true), (Duration::ZERO, false)] {
        let mut scenario = Scenario::ready(3);
        let holder = wait(&mut scenario, SECOND);
        assert_eq!(scenario.drain(), [set(1)]);
        scenario.replies(ALL, Reply::Ok);
        assert!(scenario.engine.operations().is_done(holder));
        let lease = scenario.acquired().unwrap();
        wait(&mut scenario, SECOND);
        assert_eq!(scenario.drain(), []);
        // The holder comes before the timeout is looked at.
        scenario.now = scenario.now.after(SECOND - early);
        scenario.engine.abandon(scenario.now, lease);
        let expected = if asks { vec![release(1), set(2)] } else { vec![release(1)] };
        assert_eq!(scenario.drain(), expected, "{early:?} early");
    }
}

#[test]
fn first_who_leaves_is_not_followed_by_one_whose_patience_has_just_ended() {
    for (early, follows) in [(NANO, true), (Duration::ZERO, false)] {
        let mut scenario = Scenario::ready(3);
        let first = wait(&mut scenario, 60 * SECOND);
        assert_eq!(scenario.drain(), [set(1)]);
        wait(&mut scenario, MS);
        // The first leaves before the timeout is looked at.
        scenario.now = scenario.now.after(MS - early);
        assert!(matches!(scenario.engine.cancel(scenario.now, first), Cancelled::Acquisition));
        let expected = if follows { vec![release(1), set(2)] } else { vec![release(1)] };
        assert_eq!(scenario.drain(), expected, "{early:?} early");
    }
}

#[test]
fn release_while_the_first_in_line_asks_does_not_make_it_ask_twice() {
    let mut scenario = Scenario::ready(3);
    let lease = scenario.locked();
    let first = wait(&mut scenario, SECOND);
    assert_eq!(scenario.drain(), [set(2)]);
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [release(1)]);
    assert!(!scenario.engine.operations().is_done(first));
    assert_eq!(scenario.engine.stats().rounds, 2);
}

/// A single round stands in no line, and so those who do go on asking while it has the lock.
#[test]
fn lock_of_a_single_round_is_not_waited_for_in_the_line() {
    let mut scenario = Scenario::ready(3);
    wait(&mut scenario, 60 * SECOND);
    refused_round(&mut scenario, 1);
    let left = scenario.next_timeout().unwrap().since(scenario.now);
    scenario.try_lock();
    assert_eq!(scenario.drain(), [set(2)]);
    scenario.replies(ALL, Reply::Ok);
    let lease = scenario.acquired().unwrap();
    scenario.pass(left);
    assert_eq!(scenario.drain(), [set(3)]);
    drop(lease);
}

/// Also of one that stands behind many who have left.
#[test]
fn one_who_leaves_the_line_is_passed_over() {
    let mut scenario = Scenario::ready(3);
    let holder = wait(&mut scenario, SECOND);
    scenario.drain();
    scenario.replies(ALL, Reply::Ok);
    assert!(scenario.engine.operations().is_done(holder));
    let lease = scenario.acquired().unwrap();
    let ops = [(); 9].map(|()| wait(&mut scenario, 60 * SECOND));
    let leave = [1, 3, 4, 5, 7];
    for at in leave {
        assert!(matches!(scenario.engine.cancel(scenario.now, ops[at]), Cancelled::Acquisition));
        // A line that was left by one is joined by another.
        if at == 5 {
            wait(&mut scenario, MS);
        }
    }
    scenario.pass(MS);
    assert!(matches!(scenario.acquired(), Err(error) if error.attempts() == 0));
    let mut lease = Some(lease);
    for (at, token) in [0, 2, 6, 8].into_iter().zip(2..) {
        scenario.engine.abandon(scenario.now, lease.take().unwrap());
        assert_eq!(scenario.drain(), [release(token - 1), set(token)], "{at}");
        scenario.replies(ALL, Reply::Integer(1));
        scenario.replies(ALL, Reply::Ok);
        assert!(scenario.engine.operations().is_done(ops[at]), "{at}");
        lease = Some(scenario.acquired().unwrap());
    }
}

#[test]
fn each_end_is_counted_once_and_by_its_kind() {
    let mut scenario = Scenario::ready(3);
    for said in [Reply::Nil, Reply::Nil] {
        scenario.try_lock();
        scenario.drain();
        scenario.replies(ALL, said);
        assert!(scenario.acquired().unwrap_err().is_contended());
        scenario.drain();
        scenario.replies(ALL, Reply::Integer(0));
    }
    for _ in 0..2 {
        scenario.try_lock();
        scenario.drain();
        scenario.pass(NODE_TIMEOUT);
        assert!(scenario.acquired().unwrap_err().is_unavailable());
        scenario.drain();
        scenario.replies(ALL, Reply::Ok);
        scenario.replies(ALL, Reply::Integer(1));
    }
    for _ in 0..2 {
        scenario.try_lock();
        scenario.drain();
        scenario.replies(ALL, Reply::Ok);
        // The quorum is there, and is taken too late (R2).
        scenario.now = scenario.now.after(TTL);
        assert!(scenario.acquired().unwrap_err().is_expired());
        scenario.drain();
        scenario.replies(ALL, Reply::Integer(1));
    }
    let mut lease = scenario.locked();
    for (said, is_extended) in [(1, true), (0, false), (1, true), (0, false)] {
        scenario.engine.extend(scenario.now, lease, TTL);
        scenario.drain();
        scenario.replies(ALL, Reply::Integer(said));
        let (given_back, result) = scenario.extended();
        assert_eq!(result.is_ok(), is_extended);
        lease = given_back;
    }
    let stats = scenario.engine.stats();
    assert_eq!((stats.rounds, stats.acquired), (7, 1));
    assert_eq!((stats.contended, stats.unavailable, stats.expired), (2, 2, 2));
    assert_eq!((stats.extended, stats.extensions_failed), (2, 2));
}

#[test]
fn each_round_is_an_attempt() {
    let mut scenario = Scenario::ready(3);
    let op = wait(&mut scenario, SECOND);
    for token in 1..=3 {
        refused_round(&mut scenario, token);
        let next = scenario.next_timeout().unwrap();
        let left = next.since(scenario.now);
        scenario.pass(left);
    }
    assert_eq!(scenario.drain(), [set(4)]);
    scenario.pass(SECOND);
    assert!(scenario.engine.operations().is_done(op));
    assert_eq!(scenario.acquired().unwrap_err().attempts(), 4);
}

/// A connection that stands at the last moment has time for its handshake: whoever was away until
/// then has not called before.
#[test]
fn connection_that_stands_at_its_deadline_is_not_given_up() {
    for (early, late) in [(NANO, false), (Duration::ZERO, true)] {
        let mut scenario = Scenario::new(1);
        scenario.engine.connect(scenario.now);
        assert_eq!(scenario.drain(), [Acted::Connect(0)]);
        let deadline = scenario.now.after(CONNECT_TIMEOUT);
        scenario.now = scenario.now.after(CONNECT_TIMEOUT - early);
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
        scenario.drain();
        let expected = if late { deadline.after(CONNECT_TIMEOUT) } else { deadline };
        assert_eq!(scenario.next_timeout(), Some(expected), "{early:?} early");
    }
}

#[test]
fn errors_and_lost_connections_are_counted() {
    let mut scenario = Scenario::ready(3);
    assert_eq!(scenario.engine.stats().connected, 3);
    for count in 1..=3 {
        scenario.try_lock();
        scenario.drain();
        scenario.reply(0, server_error(ServerErrorKind::Misconfigured));
        assert_eq!(scenario.engine.stats().server_errors, count);
        let errors = scenario.engine.statuses().next().unwrap().errors;
        assert_eq!(errors.total(), count);
        assert_eq!(errors.iter().collect::<Vec<_>>(), [(ServerErrorKind::Misconfigured, count)]);
        let reset = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
        scenario.engine.handle_node(
            scenario.now,
            count as usize - 1,
            NodeEvent::Disconnected(reset),
        );
        assert_eq!(scenario.engine.stats().disconnected, count);
        if count == 1 {
            scenario.pass(2 * SECOND);
            scenario.drain();
            scenario.connect(0);
        }
    }
}

/// The quorum is one of all nodes, whatever they answered.
#[test]
fn lock_was_held_if_a_quorum_of_all_nodes_still_had_it() {
    let (yes, no) = (Some(1), Some(0));
    let table = [
        ([no, no, yes, yes, yes], true),
        ([yes, yes, no, no, no], false),
        ([yes, yes, no, None, None], false),
    ];
    for (said, was_held) in table {
        let mut scenario = Scenario::ready(5);
        let lease = scenario.locked();
        scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
        scenario.drain();
        for (node, said) in said.into_iter().enumerate() {
            if let Some(said) = said {
                scenario.reply(node, Reply::Integer(said));
            }
        }
        scenario.pass(NODE_TIMEOUT);
        let released = scenario.released().unwrap();
        assert_eq!(released.was_held(), was_held, "{released:?}");
        assert_eq!(scenario.engine.stats().released, 1);
        let lease = scenario.locked();
        scenario.engine.abandon(scenario.now, lease);
        assert_eq!(scenario.engine.stats().released, 2);
    }
}
