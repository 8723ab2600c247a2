//! Acquisitions of one client that wait for the same resource: who asks the nodes, and when.

use std::time::Duration;

use muxlock::node::NodeOutcome;
use muxlock::proto::{Cancelled, Done, Lease, NodeEvent, OpId, Patience, ReleaseHow, Reply};
use muxlock::{
    LockErrorKind,
    LockErrorKind::{Contended, TimedOut},
};
use testbed::memory::{Acted, NODE_TIMEOUT, Scenario, TTL};

const MS: Duration = Duration::from_millis(1);
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

/// The one acquisition that has ended, and its lock.
fn won(scenario: &mut Scenario, op: OpId) -> Lease {
    assert!(scenario.engine.operations().is_done(op));
    scenario.acquired().unwrap()
}

fn lost(scenario: &mut Scenario, op: OpId) -> muxlock::LockError {
    assert!(scenario.engine.operations().is_done(op));
    scenario.acquired().unwrap_err()
}

/// One waits, gets the lock, and others wait behind it.
fn held(patiences: [Duration; 2]) -> (Scenario, Lease, [OpId; 2]) {
    let mut scenario = Scenario::ready(3);
    let first = wait(&mut scenario, SECOND);
    assert_eq!(scenario.drain(), [set(1)]);
    scenario.replies(ALL, Reply::Ok);
    let lease = won(&mut scenario, first);
    let others = patiences.map(|patience| wait(&mut scenario, patience));
    assert_eq!(scenario.drain(), [], "nobody asks for what is held");
    (scenario, lease, others)
}

/// K7: those who wait for a lock wait for the share that it became.
#[test]
fn share_that_was_a_lock_goes_to_the_next() {
    let (mut scenario, lease, [second, _]) = held([60 * SECOND; 2]);
    scenario.engine.abandon(scenario.now, lease.into_shared());
    assert_eq!(scenario.drain(), [release(1), set(2)]);
    scenario.replies(ALL, Reply::Integer(1));
    scenario.replies(ALL, Reply::Ok);
    let mut lease = won(&mut scenario, second).into_shared();
    scenario.engine.let_go(scenario.now, &mut lease);
    assert_eq!(scenario.drain(), [set(3)], "it is another client's now");
}

#[test]
fn lock_goes_from_hand_to_hand_in_the_order_of_arrival() {
    let (mut scenario, lease, [second, third]) = held([60 * SECOND; 2]);
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [release(1), set(2)], "behind the release, on the same way");
    scenario.replies(ALL, Reply::Integer(1));
    scenario.replies(ALL, Reply::Ok);
    let lease = won(&mut scenario, second);
    let fourth = wait(&mut scenario, 60 * SECOND);
    assert_eq!(scenario.drain(), []);
    scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
    assert_eq!(scenario.drain(), [release(2), set(3)]);
    scenario.replies(ALL, Reply::Integer(1));
    assert!(scenario.released().unwrap().was_held());
    scenario.replies(ALL, Reply::Ok);
    let lease = won(&mut scenario, third);
    assert!(!scenario.engine.operations().is_done(fourth));
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [release(3), set(4)]);
    assert_eq!(scenario.engine.stats().rounds, 4, "nobody asked in vain");
}

#[test]
fn lock_that_goes_elsewhere_is_asked_for() {
    let (mut scenario, mut lease, [second, _third]) = held([60 * SECOND; 2]);
    scenario.engine.let_go(scenario.now, &mut lease);
    assert_eq!(scenario.drain(), [set(2)]);
    scenario.replies(ALL, Reply::Nil);
    assert_eq!(scenario.drain(), [release(2)]);
    scenario.replies(ALL, Reply::Integer(0));
    // Somebody else releases it; nothing tells of that here.
    scenario.pass(SECOND);
    assert_eq!(scenario.drain(), [set(3)]);
    scenario.replies(ALL, Reply::Ok);
    let _ = won(&mut scenario, second);
}

/// It may have been forgotten.
#[test]
fn first_in_the_local_queue_asks_when_the_validity_is_over() {
    let (mut scenario, lease, [second, _third]) = held([60 * SECOND; 2]);
    let left = lease.remaining(scenario.now);
    scenario.pass(left - MS);
    assert_eq!(scenario.drain(), []);
    scenario.pass(MS);
    assert_eq!(scenario.drain(), [set(2)]);
    scenario.replies(ALL, Reply::Ok);
    let _ = won(&mut scenario, second);
}

#[test]
fn first_in_the_local_queue_waits_longer_for_a_lock_that_was_extended() {
    let (mut scenario, lease, [second, _third]) = held([60 * SECOND; 2]);
    let left = lease.remaining(scenario.now);
    scenario.pass(SECOND);
    scenario.engine.extend(scenario.now, lease, TTL);
    scenario.drain();
    scenario.replies(ALL, Reply::Integer(1));
    let (lease, result) = scenario.extended();
    result.unwrap();
    scenario.pass(left - SECOND);
    assert_eq!(scenario.drain(), []);
    scenario.pass(lease.remaining(scenario.now));
    assert_eq!(scenario.drain(), [set(2)]);
    assert!(!scenario.engine.operations().is_done(second));
}

#[test]
fn patience_ends_in_the_local_queue_as_anywhere() {
    let (mut scenario, lease, [second, third]) = held([SECOND, 60 * SECOND]);
    scenario.pass(SECOND - MS);
    assert!(!scenario.engine.operations().is_done(second));
    scenario.pass(MS);
    let error = lost(&mut scenario, second);
    assert_eq!((error.kind(), error.nodes().len()), (LockErrorKind::Contended, 0));
    assert_eq!(error.attempts(), 0);
    assert_eq!(scenario.engine.stats().contended, 1);
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [release(1), set(2)]);
    scenario.replies(ALL, Reply::Integer(1));
    scenario.replies(ALL, Reply::Ok);
    let _ = won(&mut scenario, third);
}

/// Somebody else holds it: one asks for all, and tells why when it gives up.
#[test]
fn first_in_the_local_queue_asks_for_all_and_is_followed_by_the_next() {
    let mut scenario = Scenario::ready(3);
    let first = wait(&mut scenario, 20 * MS);
    let second = wait(&mut scenario, SECOND);
    let third = wait(&mut scenario, 10 * MS);
    assert_eq!(scenario.drain(), [set(1)]);
    scenario.replies(ALL, Reply::Nil);
    assert_eq!(scenario.drain(), [release(1)]);
    scenario.replies(ALL, Reply::Integer(0));
    scenario.pass(10 * MS);
    let error = lost(&mut scenario, third);
    assert_eq!(error.kind(), LockErrorKind::Contended);
    assert!(error.nodes().iter().any(|report| report.outcome == NodeOutcome::Held));
    let mut asked = scenario.drain();
    scenario.pass(10 * MS);
    lost(&mut scenario, first);
    asked.extend(scenario.drain());
    assert_eq!(asked.last(), Some(&set(3)), "the second is next: {asked:?}");
    assert!(!scenario.engine.operations().is_done(second));
}

#[test]
fn who_never_asked_fails_for_the_reason_of_who_did() {
    let mut scenario = Scenario::ready(3);
    let first = wait(&mut scenario, SECOND);
    let second = wait(&mut scenario, 2 * NODE_TIMEOUT);
    assert_eq!(scenario.drain(), [set(1)]);
    scenario.pass(NODE_TIMEOUT);
    scenario.drain();
    scenario.pass(NODE_TIMEOUT);
    let error = lost(&mut scenario, second);
    assert_eq!((error.kind(), error.nodes().len()), (LockErrorKind::Unavailable, 3));
    assert!(!scenario.engine.operations().is_done(first));
}

/// Waits as long as another holder has the lock.
fn wait_for_holder(scenario: &mut Scenario, patience: Duration) -> OpId {
    let until = scenario.now.after(patience);
    scenario.acquire(TTL, Patience::WhileHeld(until))
}

/// One round without a quorum ends all of them that wait for a holder only, and no others, whoever
/// asked, with what the nodes said in that round.
#[test]
fn round_without_a_quorum_ends_the_waits_for_a_holder() {
    for first_waits_on in [false, true] {
        let mut scenario = Scenario::ready(3);
        let start = if first_waits_on { wait } else { wait_for_holder };
        let first = start(&mut scenario, SECOND);
        let second = wait_for_holder(&mut scenario, SECOND);
        let patient = wait(&mut scenario, SECOND);
        let fourth = wait_for_holder(&mut scenario, 60 * SECOND);
        assert_eq!(scenario.drain(), [set(1)]);
        // Another holder ends none of them.
        scenario.replies(ALL, Reply::Nil);
        scenario.drain();
        scenario.replies(ALL, Reply::Integer(0));
        scenario.pass(4 * MS);
        assert_eq!(scenario.drain(), [set(2)]);
        scenario.nothing_done();
        scenario.pass(NODE_TIMEOUT / 2);
        scenario.nothing_done();
        scenario.pass(NODE_TIMEOUT / 2);
        scenario.pass(Duration::ZERO);
        let mut ended = Vec::new();
        while let Some((op, done)) = scenario.engine.poll_done(scenario.now) {
            let Done::Acquired(Err(error)) = done else { panic!("{done:?}") };
            assert_eq!((error.kind(), error.nodes().len()), (LockErrorKind::Unavailable, 3));
            assert!(error.nodes().iter().all(|it| it.outcome != NodeOutcome::Held), "{error}");
            ended.push(op);
        }
        let expected = &[first, second, fourth][usize::from(first_waits_on)..];
        assert!(ended.len() == expected.len() && expected.iter().all(|op| ended.contains(op)));
        assert!(!scenario.engine.operations().is_done(patient));
        assert_eq!(scenario.engine.stats().unavailable, ended.len() as u64);
        // The one that waits on asks, and nobody in place of those that have ended.
        let asks = |acted: &Acted| matches!(acted, Acted::Set(..));
        let mut sets = 0;
        for _ in 0..10 {
            sets += scenario.drain().iter().filter(|acted| asks(acted)).count();
            scenario.pass(NODE_TIMEOUT);
            scenario.nothing_done();
        }
        assert!(sets > 0, "the patient one goes on");
        scenario.pass(SECOND);
        assert!(scenario.engine.operations().is_done(patient));
        assert_eq!(scenario.engine.operations().done().count(), 1 + usize::from(first_waits_on));
    }
}

/// What is held by this client is waited for without a question to any node.
#[test]
fn wait_for_a_holder_in_the_same_client_ends_with_the_round_after_it() {
    let mut scenario = Scenario::ready(3);
    let first = wait(&mut scenario, SECOND);
    scenario.drain();
    scenario.replies(ALL, Reply::Ok);
    let lease = won(&mut scenario, first);
    let second = wait_for_holder(&mut scenario, 60 * SECOND);
    let reset = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    for node in ALL {
        scenario.engine.handle_node(scenario.now, node, NodeEvent::Disconnected(reset));
    }
    scenario.pass(Duration::ZERO);
    scenario.nothing_done();
    scenario.engine.abandon(scenario.now, lease);
    scenario.drain();
    for node in ALL {
        let refused = NodeEvent::Disconnected(NodeOutcome::NotConnected);
        scenario.engine.handle_node(scenario.now, node, refused);
    }
    scenario.pass(Duration::ZERO);
    assert_eq!(lost(&mut scenario, second).kind(), LockErrorKind::Unavailable);
}

/// What ended the wait of the first is known to all behind it, in whatever order their results are
/// taken, also after the queue of those that still wait is empty.
#[test]
fn waits_that_end_together_end_for_the_same_reason() {
    for start in [wait, wait_for_holder] {
        let mut scenario = Scenario::ready(3);
        let patience = 10 * NODE_TIMEOUT;
        let waits = [MS, MS, MS, Duration::ZERO, Duration::ZERO, MS].map(|later| {
            scenario.pass(later);
            start(&mut scenario, patience)
        });
        let reset = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
        scenario.drain();
        for node in ALL {
            scenario.engine.handle_node(scenario.now, node, NodeEvent::Disconnected(reset));
        }
        let mut ended = 0;
        for _ in 0..patience.as_millis() {
            for acted in scenario.drain() {
                if let Acted::Connect(node) = acted {
                    let refused = NodeEvent::Disconnected(NodeOutcome::NotConnected);
                    scenario.engine.handle_node(scenario.now, node, refused);
                }
            }
            while let Some((_, done)) = scenario.engine.poll_done(scenario.now) {
                let Done::Acquired(Err(error)) = done else { panic!("{done:?}") };
                assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
                assert_eq!(error.nodes().len(), 3);
                ended += 1;
            }
            scenario.pass(MS);
        }
        assert_eq!(ended, waits.len());
    }
}

/// Nobody holds it: also those who stood behind one that was just told, or is just asking.
#[test]
fn locks_that_frozen_masters_keep_are_not_reported_as_held() {
    let mut scenario = Scenario::ready(3);
    for pass in [MS, Duration::ZERO, Duration::ZERO] {
        wait(&mut scenario, 2 * NODE_TIMEOUT);
        scenario.pass(pass);
    }
    let mut kinds = Vec::new();
    for pass in [NODE_TIMEOUT, NODE_TIMEOUT - MS, MS] {
        scenario.pass(pass);
        scenario.drain();
        while let Some(done) = scenario.done() {
            let Done::Acquired(Err(error)) = done else { panic!("{done:?}") };
            kinds.push(error.kind());
        }
    }
    assert_eq!(kinds, [TimedOut; 3]);
}

/// What the nodes have said by then is all that is known.
#[test]
fn patience_that_ends_before_any_round_does_gets_the_reports_so_far() {
    for (said, kind) in [(None, TimedOut), (Some(Reply::Nil), Contended)] {
        let mut scenario = Scenario::ready(3);
        wait(&mut scenario, SECOND);
        scenario.drain();
        let second = wait(&mut scenario, MS);
        if let Some(said) = said {
            scenario.reply(2, said);
        }
        scenario.pass(MS);
        let error = lost(&mut scenario, second);
        assert_eq!((error.kind(), error.nodes().len()), (kind, 3));
    }
}

/// It costs them no more that they are many, and the first is followed by who is still there.
#[test]
fn many_whose_patience_ends_leave_the_local_queue() {
    let (mut scenario, lease, [second, third]) = held([60 * SECOND; 2]);
    let many: Vec<OpId> = (0..10_000).map(|_| wait(&mut scenario, SECOND)).collect();
    let last = wait(&mut scenario, 60 * SECOND);
    scenario.now = scenario.now.after(SECOND);
    let mut lost = 0;
    while lost < many.len() {
        scenario.engine.handle_timeout(scenario.now);
        while let Some(done) = scenario.done() {
            assert!(matches!(done, Done::Acquired(Err(_))));
            lost += 1;
        }
    }
    assert_eq!((scenario.engine.operations().count(), scenario.drain()), (3, vec![]));
    let mut lease = Some(lease);
    for (op, token) in [second, third, last].into_iter().zip(2..) {
        scenario.engine.abandon(scenario.now, lease.take().unwrap());
        assert_eq!(scenario.drain(), [release(token - 1), set(token)]);
        scenario.replies(ALL, Reply::Integer(1));
        scenario.replies(ALL, Reply::Ok);
        lease = Some(won(&mut scenario, op));
    }
}

#[test]
fn cancelled_one_leaves_the_local_queue() {
    let (mut scenario, lease, [second, third]) = held([60 * SECOND; 2]);
    assert!(matches!(scenario.engine.cancel(scenario.now, second), Cancelled::Acquisition));
    assert_eq!(scenario.drain(), []);
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [release(1), set(2)]);
    let fourth = wait(&mut scenario, 60 * SECOND);
    assert!(matches!(scenario.engine.cancel(scenario.now, third), Cancelled::Acquisition));
    assert_eq!(scenario.drain(), [release(2), set(3)], "its round is undone, and the next begins");
    scenario.replies(ALL, Reply::Integer(1));
    scenario.replies(ALL, Reply::Ok);
    scenario.replies(ALL, Reply::Integer(1));
    scenario.replies(ALL, Reply::Ok);
    let _ = won(&mut scenario, fourth);
}

/// Who holds it did not stand in the local queue; its release is known all the same.
#[test]
fn release_of_a_lock_of_a_single_round_starts_the_first_in_the_local_queue() {
    let mut scenario = Scenario::ready(3);
    let lease = scenario.locked();
    let first = wait(&mut scenario, 60 * SECOND);
    assert_eq!(scenario.drain(), [set(2)]);
    scenario.replies(ALL, Reply::Nil);
    assert_eq!(scenario.drain(), [release(2)]);
    scenario.replies(ALL, Reply::Integer(0));
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(scenario.drain(), [release(1), set(3)], "without the delay");
    scenario.replies(ALL, Reply::Integer(1));
    scenario.replies(ALL, Reply::Ok);
    let _ = won(&mut scenario, first);
}

/// R2: a quorum that is taken too late is undone, and its owner goes on, still the first.
#[test]
fn late_quorum_keeps_its_position() {
    let mut scenario = Scenario::ready(3);
    let first = wait(&mut scenario, 60 * SECOND);
    let second = wait(&mut scenario, 60 * SECOND);
    assert_eq!(scenario.drain(), [set(1)]);
    scenario.replies(ALL, Reply::Ok);
    scenario.now = scenario.now.after(TTL);
    assert!(scenario.done().is_none());
    assert_eq!(scenario.drain(), [release(1)]);
    scenario.replies(ALL, Reply::Integer(1));
    scenario.pass(SECOND);
    assert_eq!(scenario.drain(), [set(2)]);
    scenario.replies(ALL, Reply::Ok);
    let _ = won(&mut scenario, first);
    assert!(!scenario.engine.operations().is_done(second));
}

/// The first fails, and the next one's time is over before it has an answer of its own.
#[test]
fn others_hear_what_the_nodes_said_to_the_first() {
    let mut scenario = Scenario::ready(3);
    let [first, second] = [(); 2].map(|()| wait(&mut scenario, MS));
    assert_eq!(scenario.drain(), [set(1)]);
    scenario.replies(ALL, Reply::Nil);
    assert_eq!(lost(&mut scenario, first).kind(), Contended);
    assert_eq!(scenario.drain(), [release(1), set(2)]);
    scenario.pass(MS);
    let error = lost(&mut scenario, second);
    assert_eq!((error.kind(), error.attempts()), (Contended, 1));
    assert!(error.nodes().iter().all(|node| node.outcome == NodeOutcome::Held), "{error}");
}

/// Those who have left a queue are not kept in it, however many there are.
#[test]
fn queue_is_not_full_of_those_who_have_left() {
    let queued = |scenario: &Scenario| -> usize {
        let shown = format!("{:?}", scenario.engine);
        let (_, queued) = shown.split_once("queued: ").expect("it is shown");
        queued.split([',', ' ']).next().and_then(|count| count.parse().ok()).expect("a number")
    };
    let mut scenario = Scenario::ready(3);
    let ops: Vec<OpId> = (0..101).map(|_| wait(&mut scenario, SECOND)).collect();
    assert_eq!(queued(&scenario), 101);
    for (gone, op) in ops[1..].iter().enumerate() {
        let _ = scenario.engine.cancel(scenario.now, *op);
        let left = 99 - gone;
        assert!(queued(&scenario) <= 1 + 2 * left + 1, "{left} are left: {}", queued(&scenario));
    }
    let _ = scenario.engine.cancel(scenario.now, ops[0]);
    assert_eq!(queued(&scenario), 0);
}

/// An expired lock is released when the local queue has another one.
#[test]
fn late_release_of_an_expired_lock_starts_nobody() {
    let (mut scenario, expired, [second, _third]) = held([60 * SECOND; 2]);
    scenario.pass(expired.remaining(scenario.now));
    assert_eq!(scenario.drain(), [set(2)]);
    scenario.replies(ALL, Reply::Ok);
    let _lease = won(&mut scenario, second);
    scenario.engine.abandon(scenario.now, expired);
    assert_eq!(scenario.drain(), [release(1)], "the other one is held");
}

/// What was said before the local queue got the lock is no reason for those who wait for its
/// release.
#[test]
fn what_the_nodes_said_before_the_lock_was_got_is_forgotten() {
    let mut scenario = Scenario::ready(3);
    let first = wait(&mut scenario, 60 * SECOND);
    let second = wait(&mut scenario, 2 * SECOND);
    scenario.drain();
    scenario.replies(ALL, Reply::Nil);
    assert_eq!(scenario.drain(), [release(1)]);
    scenario.replies(ALL, Reply::Integer(0));
    scenario.pass(SECOND);
    assert_eq!(scenario.drain(), [set(2)]);
    scenario.replies(ALL, Reply::Ok);
    let _lease = won(&mut scenario, first);
    scenario.pass(SECOND);
    let error = lost(&mut scenario, second);
    assert_eq!((error.kind(), error.nodes().len()), (LockErrorKind::Contended, 0));
}
