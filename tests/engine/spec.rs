//! The algorithm, sentence by sentence: "Distributed Locks with Redis" in the Redis documentation.
//!
//! Each test quotes what it holds the engine to, and names the section.

use std::time::Duration;

use muxlock::LockErrorKind;
use muxlock::proto::{Patience, ReleaseHow, Reply};
use testbed::memory::{Acted, NODE_TIMEOUT, Scenario, TTL};

const MS: Duration = Duration::from_millis(1);

/// "It gets the current time in milliseconds." § The Redlock Algorithm, step 1; R1.
#[test]
fn step_1_validity_counts_from_before_the_first_byte() {
    let mut scenario = Scenario::ready(5);
    let start = scenario.now;
    scenario.try_lock();
    // Queued, connected or answered later: none of it moves the start.
    scenario.pass(20 * MS);
    scenario.drain();
    scenario.pass(20 * MS);
    scenario.replies(0..3, Reply::Ok);
    let lease = scenario.acquired().unwrap();
    assert_eq!(lease.valid_until(), start.after(TTL - 102 * MS));
    assert_eq!(lease.remaining(scenario.now), TTL - 102 * MS - 40 * MS);
}

/// "It tries to acquire the lock in all the N instances sequentially, using the same key name and
/// random value in all the instances." Step 2. (At once instead of sequentially: "ideally the
/// client should try to send the SET commands to the N instances at the same time using
/// multiplexing." § Retry on Failure.)
#[test]
fn step_2_one_command_with_one_value_goes_to_all_instances_at_once() {
    let mut scenario = Scenario::ready(5);
    scenario.try_lock();
    assert_eq!(scenario.drain(), [Acted::Set(vec![0, 1, 2, 3, 4], 1)]);
}

/// "When setting the lock in each instance, the client uses a timeout which is small compared to
/// the total lock auto-release time." Step 2; R5.
#[test]
fn step_2_a_silent_instance_is_waited_for_no_longer_than_its_timeout() {
    let mut scenario = Scenario::ready(5);
    scenario.try_lock();
    scenario.drain();
    scenario.replies(0..2, Reply::Ok);
    scenario.pass(NODE_TIMEOUT - Duration::from_nanos(1));
    scenario.nothing_done();
    scenario.pass(Duration::from_nanos(1));
    assert_eq!(scenario.acquired().unwrap_err().kind(), LockErrorKind::Unavailable);
}

/// "If an instance is not available, we should try to talk with the next instance ASAP." Step 2.
#[test]
fn step_2_an_unavailable_instance_delays_nobody() {
    let mut scenario = Scenario::new(5);
    scenario.try_lock();
    for node in 0..5 {
        assert!(scenario.drain().is_empty() || node == 0);
    }
    // Nodes 0 and 1 never come; the others decide without them and without time passing.
    for node in 2..5 {
        scenario.connect(node);
        assert_eq!(scenario.drain(), [Acted::Set(vec![node], 1)]);
        scenario.reply(node, Reply::Ok);
    }
    assert!(scenario.acquired().is_ok());
}

/// "The client computes how much time elapsed in order to acquire the lock, by subtracting from
/// the current time the timestamp obtained in step 1. If and only if the client was able to
/// acquire the lock in the majority of the instances (at least 3), and the total time elapsed to
/// acquire the lock is less than lock validity time, the lock is considered to be acquired." Step
/// 3; R2.
#[test]
fn step_3_a_majority_is_needed_for_every_number_of_instances() {
    for nodes in 1..=9 {
        let quorum = nodes / 2 + 1;
        let mut scenario = Scenario::ready(nodes);
        scenario.try_lock();
        scenario.drain();
        scenario.replies(0..quorum - 1, Reply::Ok);
        scenario.nothing_done();
        scenario.reply(quorum - 1, Reply::Ok);
        let lease = scenario.acquired().unwrap();
        assert_eq!(lease.granted_by().count(), quorum, "{nodes} nodes");
    }
}

#[test]
fn step_3_a_majority_one_nanosecond_too_late_is_no_lock() {
    // 100 ms minus 1 % minus 2 ms.
    let (ttl, validity) = (100 * MS, 97 * MS);
    for (late, valid) in [(1, true), (0, false)] {
        let mut scenario =
            Scenario::with(3, |builder| builder.node_timeout(1_000 * MS)).all_ready();
        scenario.acquire(ttl, Patience::OneRound);
        scenario.drain();
        scenario.pass(validity - Duration::from_nanos(late));
        scenario.replies(0..2, Reply::Ok);
        let result = scenario.acquired();
        assert_eq!(result.is_ok(), valid, "{result:?}");
        if let Err(error) = result {
            assert!(error.is_expired());
            assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
        }
    }
}

/// The validity is proved when the lock is handed out, not when the reply came in; R2.
#[test]
fn step_3_validity_is_proved_at_the_moment_of_handing_out() {
    let mut scenario = Scenario::ready(3);
    scenario.try_lock();
    scenario.drain();
    scenario.replies(0..3, Reply::Ok);
    // The process is paused between reading the last reply and asking for the result.
    scenario.now = scenario.now.after(TTL);
    assert!(scenario.acquired().unwrap_err().is_expired());
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
}

/// "If the lock was acquired, its validity time is considered to be the initial validity time
/// minus the time elapsed, as computed in step 3." Step 4. "[...] minus some time (just a few
/// milliseconds in order to compensate for clock drift between processes)." § Is the Algorithm
/// Asynchronous?
#[test]
fn step_4_validity_is_ttl_minus_elapsed_minus_drift() {
    let mut scenario = Scenario::ready(3);
    scenario.try_lock();
    scenario.drain();
    scenario.pass(7 * MS);
    scenario.replies(0..2, Reply::Ok);
    let lease = scenario.acquired().unwrap();
    assert_eq!(lease.remaining(scenario.now), TTL - 7 * MS - 102 * MS);
    assert!(lease.is_valid_at(scenario.now));
    assert!(!lease.is_valid_at(lease.valid_until()));
}

/// "If the client failed to acquire the lock for some reason (either it was not able to lock N/2+1
/// instances or the validity time is negative), it will try to unlock all the instances (even the
/// instances it believed it was not able to lock)." Step 5; R4, R10.
#[test]
fn step_5_a_failed_attempt_is_undone_on_all_instances() {
    let mut scenario = Scenario::ready(5);
    scenario.try_lock();
    scenario.drain();
    scenario.reply(0, Reply::Ok);
    scenario.replies(1..4, Reply::Nil);
    assert!(scenario.acquired().unwrap_err().is_contended());
    // The granter, the refusers, and the one that has not answered.
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2, 3, 4], 1)]);
}

/// "When a client is unable to acquire the lock, it should try again after a random delay in order
/// to try to desynchronize multiple clients." § Retry on Failure; R9.
#[test]
fn retry_comes_after_a_delay_and_with_a_fresh_value() {
    let mut scenario = Scenario::ready(3);
    let give_up_at = scenario.now.after(Duration::from_secs(1));
    scenario.acquire(TTL, Patience::Until(give_up_at));
    scenario.drain();
    scenario.replies(0..3, Reply::Nil);
    scenario.nothing_done();
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    // The first delay is between 2 and 4 ms; the scenario's jitter is in the middle.
    scenario.pass(2 * MS);
    assert_eq!(scenario.drain(), []);
    scenario.pass(2 * MS);
    assert_eq!(scenario.drain(), [Acted::Set(vec![0, 1, 2], 2)]);
}

/// "[...] the faster a client tries to acquire the lock in the majority of Redis instances, the
/// smaller the window for a split brain condition." § Retry on Failure. Deciding as early as
/// possible is part of it; R4.
#[test]
fn a_split_vote_is_decided_by_the_reply_that_makes_a_majority_impossible() {
    let mut scenario = Scenario::ready(5);
    scenario.try_lock();
    scenario.drain();
    scenario.replies([0, 1], Reply::Ok);
    scenario.replies([2, 3], Reply::Nil);
    scenario.nothing_done();
    scenario.reply(4, Reply::Nil);
    assert!(scenario.acquired().unwrap_err().is_contended());
}

/// "It is worth stressing how important it is for clients that fail to acquire the majority of
/// locks, to release the (partially) acquired locks ASAP." § Retry on Failure; R4.
#[test]
fn release_of_a_lost_attempt_leaves_with_the_reply_that_lost_it() {
    let mut scenario = Scenario::ready(5);
    scenario.try_lock();
    scenario.drain();
    scenario.replies([0, 1], Reply::Ok);
    scenario.replies([2, 3], Reply::Nil);
    assert_eq!(scenario.drain(), []);
    scenario.reply(4, Reply::Nil);
    // Before anybody has asked for the result.
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2, 3, 4], 1)]);
}

/// "Releasing the lock is simple, and can be performed whether or not the client believes it was
/// able to successfully lock a given instance." § Releasing the Lock; R10, R15.
#[test]
fn release_goes_to_all_instances_even_after_expiry() {
    let mut scenario = Scenario::ready(5);
    scenario.try_lock();
    scenario.drain();
    scenario.replies(0..3, Reply::Ok);
    let lease = scenario.acquired().unwrap();
    scenario.now = lease.valid_until().after(TTL);
    scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2, 3, 4], 1)]);
}

/// "[...] The client should only consider the lock re-acquired if it was able to extend the lock
/// into the majority of instances, and within the validity time." § Making the algorithm more
/// reliable: Extending the lock; R25.
#[test]
fn extension_needs_a_majority() {
    for (yes, no, kind) in [(3, 0, None), (2, 3, Some(LockErrorKind::Expired))] {
        let mut scenario = Scenario::ready(5);
        let lease = scenario.locked();
        scenario.pass(1_000 * MS);
        let (start, old) = (scenario.now, lease.valid_until());
        scenario.engine.extend(scenario.now, lease, TTL);
        assert_eq!(scenario.drain(), [Acted::Extend(vec![0, 1, 2, 3, 4], 1)]);
        scenario.replies(0..yes, Reply::Integer(1));
        scenario.replies(yes..yes + no, Reply::Integer(0));
        let (lease, result) = scenario.extended();
        assert_eq!(result.err().map(|error| error.kind()), kind);
        let expected = if kind.is_none() { start.after(TTL - 102 * MS) } else { old };
        assert_eq!(lease.valid_until(), expected);
    }
}

#[test]
fn extension_that_completes_at_the_old_deadline_is_discarded() {
    for (early, extended) in [(1, true), (0, false)] {
        let mut scenario =
            Scenario::with(3, |builder| builder.node_timeout(1_000 * MS)).all_ready();
        let lease = scenario.locked();
        let old = lease.valid_until();
        scenario.now = old.after(Duration::ZERO);
        scenario.now = muxlock::Moment::from_nanos(old.as_nanos() - 500 * 1_000_000);
        scenario.engine.extend(scenario.now, lease, TTL);
        scenario.drain();
        scenario.now = muxlock::Moment::from_nanos(old.as_nanos() - early);
        scenario.replies(0..3, Reply::Integer(1));
        let (lease, result) = scenario.extended();
        assert_eq!(result.is_ok(), extended, "R22, R25");
        assert_eq!(lease.valid_until() > old, extended, "R26");
    }
}
