//! Fencing tokens: which number a lock has, and which nodes count for it.

use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::node::NodeOutcome;
use muxlock::proto::{Fencing, Lease, NodeEvent, Patience, Reply};
use muxlock::{LockErrorKind, Resource};
use testbed::memory::{Acted, NODE_TIMEOUT, Scenario, TTL, server_error};

/// The masters' time when a scenario begins, in microseconds.
const TIME: u64 = 1_000_001_000_000;
const SECOND: u64 = 1_000_000;

trait Fenced {
    fn lock_fenced(&mut self);
    fn fenced(nodes: usize) -> Scenario;
    fn numbers(&mut self, numbers: &[u64]);
}

impl Fenced for Scenario {
    fn lock_fenced(&mut self) {
        let resource = Resource::new("resource").expect("a valid name");
        let result = self.engine.acquire(self.now, resource, TTL, Patience::OneRound, Fencing::On);
        result.expect("the arguments are valid");
    }

    /// Ready nodes, which were sent the SET with the first token.
    fn fenced(nodes: usize) -> Scenario {
        let mut scenario = Scenario::ready(nodes);
        scenario.lock_fenced();
        assert_eq!(scenario.drain(), [Acted::Fenced((0..nodes).collect(), 1, TIME)]);
        scenario
    }

    /// The first nodes grant at these numbers.
    fn numbers(&mut self, numbers: &[u64]) {
        for (node, number) in numbers.iter().enumerate() {
            self.reply(node, Reply::Integer(*number as i64));
        }
    }
}

fn number(lease: &Lease) -> u64 {
    lease.fencing_token().expect("it is fenced").get()
}

fn outcomes(error: &muxlock::LockError) -> Vec<NodeOutcome> {
    error.nodes().iter().map(|report| report.outcome).collect()
}

/// F7, F8: all equal, so there is one round trip.
#[test]
fn lock_has_the_proposal_if_a_quorum_took_it() {
    let mut scenario = Scenario::fenced(5);
    scenario.numbers(&[1, 1]);
    scenario.nothing_done();
    scenario.reply(2, Reply::Integer(1));
    let lease = scenario.acquired().expect("a quorum granted");
    assert_eq!(number(&lease), TIME);
    assert_eq!(scenario.drain(), []);
    assert_eq!((scenario.engine.stats().fenced, scenario.engine.stats().tokens_confirmed), (1, 0));
}

/// F19.
#[test]
fn plain_lock_has_no_number() {
    let mut scenario = Scenario::ready(3);
    assert_eq!(scenario.locked().fencing_token(), None);
    assert_eq!(scenario.engine.stats().fenced, 0);
}

/// F6: the lower median of the masters' clocks, and more than before.
#[test]
fn proposal_is_the_masters_time_and_grows() {
    let mut scenario = Scenario::new(5);
    let ahead = [1, 5_000_000, 2_000_000, 3_000_000, 900_000_000].map(Duration::from_secs);
    scenario.ahead = ahead.to_vec();
    let mut scenario = scenario.all_ready();
    for more in 0..3 {
        scenario.lock_fenced();
        let expected = (3_000_000 + 1) * SECOND + more;
        let token = 1 + more as u32;
        assert_eq!(scenario.drain(), [Acted::Fenced(vec![0, 1, 2, 3, 4], token, expected)]);
        scenario.replies(0..5, Reply::Nil);
        assert!(scenario.acquired().unwrap_err().is_contended());
        scenario.drain();
        scenario.replies(0..5, Reply::Integer(0));
    }
}

/// F6: of the two clocks in the middle, the lower one.
#[test]
fn proposal_is_the_lower_median_of_an_even_number_of_clocks() {
    for (ahead, median) in [(vec![5_000, 1_000], 1_000), (vec![9_000, 1, 5_000, 1_000], 1_000)] {
        let nodes = ahead.len();
        let mut scenario = Scenario::new(nodes);
        scenario.ahead = ahead.into_iter().map(Duration::from_secs).collect();
        let mut scenario = scenario.all_ready();
        scenario.lock_fenced();
        let all: Vec<usize> = (0..nodes).collect();
        assert_eq!(scenario.drain(), [Acted::Fenced(all, 1, (median + 1) * SECOND)]);
    }
}

/// F6: without the time of a quorum there is no proposal; 1 is a number then.
#[test]
fn without_the_masters_time_the_greatest_number_is_taken() {
    let mut scenario = Scenario::new(3);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    for node in 0..3 {
        scenario.engine.handle_node(scenario.now, node, NodeEvent::Connected);
        scenario.drain();
        for step in 0..9 {
            match step {
                7 => {
                    scenario.greet_with(node, server_error(ServerErrorKind::Permission));
                }
                _ => assert!(scenario.greet_once(node)),
            }
        }
    }
    scenario.lock_fenced();
    assert_eq!(scenario.drain(), [Acted::Fenced(vec![0, 1, 2], 1, 0)]);
    scenario.numbers(&[1, 7]);
    assert_eq!(scenario.drain(), [Acted::Confirm(vec![0], 1, 7)]);
    scenario.reply(0, Reply::Integer(1));
    assert_eq!(number(&scenario.acquired().unwrap()), 7);
}

/// F8, F9: the nodes that granted less are raised, and no others.
#[test]
fn nodes_that_gave_less_are_raised_to_the_greatest_number() {
    let mut scenario = Scenario::fenced(5);
    scenario.numbers(&[1, TIME + 9, TIME + 4]);
    scenario.nothing_done();
    assert_eq!(scenario.drain(), [Acted::Confirm(vec![0, 2], 1, TIME + 9)]);
    scenario.reply(0, Reply::Integer(1));
    scenario.nothing_done();
    scenario.reply(2, Reply::Integer(1));
    let lease = scenario.acquired().expect("a quorum is stamped");
    assert_eq!(number(&lease), TIME + 9);
    assert_eq!(lease.granted_by().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(scenario.engine.stats().tokens_confirmed, 2);
}

/// F8: numbers that differ from the proposal, but not from each other.
#[test]
fn equal_numbers_need_no_raise() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[TIME + 5, TIME + 5]);
    assert_eq!(number(&scenario.acquired().unwrap()), TIME + 5);
    assert_eq!(scenario.drain(), []);
}

/// F10: a late grant that is equal is a stamp, a smaller one is raised, a greater one is of no use.
#[test]
fn late_grant_counts_as_its_number_allows() {
    let mut scenario = Scenario::fenced(5);
    scenario.numbers(&[1, 1, TIME + 9]);
    assert_eq!(scenario.drain(), [Acted::Confirm(vec![0, 1], 1, TIME + 9)]);
    scenario.reply(3, Reply::Integer(TIME as i64 + 10));
    scenario.reply(0, Reply::Integer(0));
    scenario.nothing_done();
    scenario.reply(1, Reply::Integer(1));
    scenario.nothing_done();
    scenario.reply(4, Reply::Integer(TIME as i64 + 9));
    let lease = scenario.acquired().unwrap();
    assert_eq!(number(&lease), TIME + 9);
    assert_eq!(lease.granted_by().collect::<Vec<_>>(), [1, 2, 4]);

    let mut scenario = Scenario::fenced(5);
    scenario.numbers(&[1, 1, TIME + 9]);
    scenario.drain();
    scenario.reply(4, Reply::Integer(1));
    assert_eq!(scenario.drain(), [Acted::Confirm(vec![4], 1, TIME + 9)]);
    scenario.replies([4, 0], Reply::Integer(1));
    assert_eq!(number(&scenario.acquired().unwrap()), TIME + 9);
}

/// F10: also if the number was fixed by grants at the proposal, and the result is not taken yet.
#[test]
fn greater_grant_after_the_quorum_is_of_no_use() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, 1]);
    scenario.reply(2, Reply::Integer(TIME as i64 + 9));
    let lease = scenario.acquired().unwrap();
    assert_eq!(number(&lease), TIME);
    assert_eq!(lease.granted_by().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn greater_late_grant_may_lose_the_attempt() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, TIME + 9]);
    assert_eq!(scenario.drain(), [Acted::Confirm(vec![0], 1, TIME + 9)]);
    scenario.reply(2, Reply::Integer(TIME as i64 + 10));
    scenario.reply(0, Reply::Integer(0));
    let error = scenario.acquired().unwrap_err();
    assert!(error.is_contended(), "{error}");
    let expected = [NodeOutcome::Absent, NodeOutcome::Granted, NodeOutcome::Outnumbered];
    assert_eq!(outcomes(&error), expected);
    // F14: behind the raise.
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
}

/// F13.
#[test]
fn validity_is_proved_after_the_last_stamp() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, TIME + 9]);
    scenario.drain();
    scenario.reply(0, Reply::Integer(1));
    scenario.now = scenario.now.after(TTL);
    let error = scenario.acquired().unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Expired);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
}

/// F14: a raise that times out or is lost is a vote that is missing, and nothing is owed for it.
#[test]
fn raise_without_an_answer_is_a_missing_vote() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, TIME + 9]);
    scenario.drain();
    scenario.reply(2, Reply::Nil);
    scenario.pass(NODE_TIMEOUT);
    let error = scenario.acquired().unwrap_err();
    assert_eq!(outcomes(&error)[1..], [NodeOutcome::Granted, NodeOutcome::Held]);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    scenario.replies([0, 0, 1, 2], Reply::Integer(1));
    assert_eq!(scenario.engine.unanswered(), 0);

    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, TIME + 9]);
    scenario.drain();
    let lost = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(lost));
    assert_eq!(
        scenario.engine.statuses().next().unwrap().pending_releases,
        0,
        "the SET was answered"
    );
    scenario.reply(2, Reply::Integer(TIME as i64 + 9));
    assert_eq!(number(&scenario.acquired().unwrap()), TIME + 9);
}

/// F9: on the same connection.
#[test]
fn node_that_was_reconnected_since_it_granted_is_not_raised() {
    let mut scenario = Scenario::fenced(3);
    scenario.pass(Duration::from_millis(1));
    scenario.numbers(&[1]);
    let lost = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(lost));
    scenario.drain();
    scenario.pass(Duration::from_millis(1));
    scenario.drain();
    scenario.connect(0);
    scenario.drain();
    scenario.reply(1, Reply::Integer(TIME as i64 + 9));
    assert_eq!(scenario.drain(), []);
    scenario.reply(2, Reply::Integer(TIME as i64 + 9));
    let lease = scenario.acquired().unwrap();
    assert_eq!(lease.granted_by().collect::<Vec<_>>(), [1, 2]);
}

/// F14: what was not handed out before the attempt ended is not sent.
#[test]
fn raise_that_nobody_waits_for_is_not_sent() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, TIME + 9, TIME + 9]);
    assert_eq!(number(&scenario.acquired().unwrap()), TIME + 9);
    assert_eq!(scenario.drain(), [], "the third made it a quorum");
    assert_eq!(scenario.engine.unanswered(), 0);
}

/// F14: nor is one that could be answered only after the validity has ended.
#[test]
fn raise_that_was_not_handed_out_in_time_is_not_sent() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, TIME + 9]);
    scenario.reply(2, Reply::Nil);
    scenario.now = scenario.now.after(TTL);
    scenario.nothing_done();
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    assert!(scenario.acquired().is_err());
    scenario.replies(0..3, Reply::Integer(1));
    assert_eq!(scenario.engine.unanswered(), 0);
}

/// F14: the node has granted, and is not said to have been silent.
#[test]
fn raise_that_is_not_sent_is_no_silence_of_its_node() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, TIME + 9, TIME + 9]);
    assert_eq!(scenario.drain(), []);
    let last = scenario.engine.statuses().next().unwrap().last_outcome;
    assert_eq!(last.map(|(outcome, _)| outcome), Some(NodeOutcome::Granted));
    assert_eq!(number(&scenario.acquired().unwrap()), TIME + 9);
}

/// F15.
#[test]
fn what_is_no_number_is_no_grant() {
    for reply in [Reply::Integer(0), Reply::Integer(-3), Reply::Ok] {
        let mut scenario = Scenario::fenced(1);
        scenario.reply(0, reply.clone());
        let error = scenario.acquired().unwrap_err();
        assert!(matches!(outcomes(&error)[0], NodeOutcome::Protocol(_)), "{reply:?}");
    }
    let mut scenario = Scenario::fenced(1);
    scenario.reply(0, server_error(ServerErrorKind::WrongType));
    let error = scenario.acquired().unwrap_err();
    assert!(error.is_unavailable());
    assert_eq!(outcomes(&error), [NodeOutcome::Server(ServerErrorKind::WrongType)]);
    // F5: too great for a number.
    let mut scenario = Scenario::fenced(1);
    scenario.reply(0, Reply::Integer(9_000_000_000_000_000));
    assert_eq!(outcomes(&scenario.acquired().unwrap_err()), [NodeOutcome::Outnumbered]);
}

/// F17: extension does not change it.
#[test]
fn number_stays_with_the_lease() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, 1, 1]);
    let mut lease = scenario.acquired().unwrap();
    for _ in 0..2 {
        scenario.engine.extend(scenario.now, lease, TTL);
        scenario.drain();
        scenario.replies(0..3, Reply::Integer(1));
        let (extended, result) = scenario.extended();
        result.expect("all nodes extended");
        lease = extended;
        assert_eq!(number(&lease), TIME);
    }
    scenario.engine.let_go(scenario.now, &mut lease);
    let mut other = Scenario::ready(3);
    other.engine.extend(other.now, lease, TTL);
    other.drain();
    other.replies(0..3, Reply::Integer(1));
    assert_eq!(number(&other.extended().0), TIME);
}

/// F4.
#[test]
fn counters_are_no_resource() {
    let mut scenario = Scenario::with(3, |builder| builder.key_prefix("mux")).all_ready();
    let (now, resource) = (scenario.now, Resource::new("lock:fence").unwrap());
    let fenced =
        scenario.engine.acquire(now, resource.clone(), TTL, Patience::OneRound, Fencing::On);
    let plain = scenario.engine.acquire(now, resource, TTL, Patience::OneRound, Fencing::Off);
    for result in [fenced, plain] {
        assert!(matches!(result.unwrap_err().kind(), LockErrorKind::ReservedResource));
    }
    assert_eq!(scenario.drain(), []);
}

/// F6: where the guard does not look at the clocks, they are looked at now and then.
#[test]
fn clocks_are_looked_at_after_ten_seconds() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, 1, 1]);
    let _lease = scenario.acquired().unwrap();
    scenario.pass(Duration::from_secs(9));
    scenario.lock_fenced();
    let sent = TIME + 9 * SECOND;
    assert_eq!(scenario.drain(), [Acted::Fenced(vec![0, 1, 2], 2, sent)]);
    scenario.replies(0..3, Reply::Nil);
    assert!(scenario.acquired().is_err());
    scenario.drain();
    scenario.replies(0..3, Reply::Integer(0));
    scenario.pass(Duration::from_secs(2));
    scenario.lock_fenced();
    let sent = TIME + 11 * SECOND;
    let expected = [Acted::Time(vec![0, 1, 2]), Acted::Fenced(vec![0, 1, 2], 3, sent)];
    assert_eq!(scenario.drain(), expected);
}

/// F6: each clock by itself, however lately another node was connected.
#[test]
fn clock_of_a_node_that_was_connected_lately_puts_off_no_other() {
    let mut scenario = Scenario::ready(3);
    scenario.pass(Duration::from_secs(8));
    let lost = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.handle_node(scenario.now, 1, NodeEvent::Disconnected(lost));
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(1);
    scenario.lock_fenced();
    let acted = scenario.drain();
    assert!(matches!(acted[..], [Acted::Fenced(..)]), "all are fresh: {acted:?}");
    scenario.replies(0..3, Reply::Nil);
    assert!(scenario.acquired().is_err());
    scenario.drain();
    scenario.replies(0..3, Reply::Integer(0));
    scenario.pass(Duration::from_secs(3));
    scenario.lock_fenced();
    let acted = scenario.drain();
    assert_eq!(acted[0], Acted::Time(vec![0, 2]), "{acted:?}");
}

/// F12.
#[test]
fn raise_of_a_node_in_quarantine_does_not_count() {
    let mut scenario = Scenario::guarded(3).all_ready();
    scenario.lock_fenced();
    scenario.drain_looked();
    scenario.numbers(&[1]);
    // Before it is raised, its clock jumps, which a look for another lock shows.
    scenario.pass(Duration::from_millis(20));
    scenario.ahead[0] += Duration::from_secs(60);
    scenario.lock_fenced();
    let acted = scenario.drain();
    assert!(matches!(&acted[0], Acted::Time(_)), "{acted:?}");
    let time = scenario.time(0);
    scenario.reply(0, time);
    scenario.reply(1, Reply::Integer(TIME as i64 + 9));
    assert_eq!(scenario.drain(), [Acted::Confirm(vec![0], 1, TIME + 9)]);
    scenario.reply(0, Reply::Nil);
    assert_eq!(scenario.engine.stats().uncounted, 1, "the other lock's answer");
    scenario.reply(0, Reply::Integer(1));
    scenario.nothing_done();
    assert_eq!(scenario.engine.stats().uncounted, 2);
}

/// F9: its vote is missing, whatever it says now, so a raise is of no use.
#[test]
fn node_whose_grant_came_too_late_is_not_raised() {
    let mut scenario = Scenario::fenced(5);
    scenario.pass(NODE_TIMEOUT - Duration::from_millis(1));
    scenario.numbers(&[1, 1, TIME + 9]);
    assert_eq!(scenario.drain(), [Acted::Confirm(vec![0, 1], 1, TIME + 9)]);
    scenario.pass(Duration::from_millis(2));
    scenario.reply(3, Reply::Integer(1));
    assert_eq!(scenario.drain(), []);
    scenario.replies([0, 1], Reply::Integer(1));
    let lease = scenario.acquired().unwrap();
    assert_eq!(lease.granted_by().collect::<Vec<_>>(), [0, 1, 2]);
}

/// F6: the nodes of an attempt get one proposal, whenever they are connected.
#[test]
fn proposal_is_drawn_once() {
    for ready in [0, 1] {
        let mut scenario = Scenario::new(3);
        scenario.engine.connect(scenario.now);
        scenario.drain();
        (0..ready).for_each(|node| scenario.connect(node));
        scenario.drain();
        scenario.lock_fenced();
        let mut sent: Vec<Acted> = scenario.drain();
        for node in ready..3 {
            scenario.pass(Duration::from_millis(1));
            scenario.connect(node);
            sent.extend(scenario.drain());
        }
        let proposals: Vec<u64> = sent
            .iter()
            .map(|acted| match acted {
                Acted::Fenced(_, 1, proposal) => *proposal,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(proposals, [proposals[0]; 3]);
        scenario.numbers(&[1, 1]);
        assert_eq!(number(&scenario.acquired().unwrap()), proposals[0]);
    }
}

/// F6: what is more than before, but further ahead than masters take, is no proposal.
#[test]
fn proposal_follows_clocks_that_were_set_back() {
    let mut scenario = Scenario::fenced(3);
    scenario.replies(0..3, Reply::Nil);
    assert!(scenario.acquired().is_err());
    scenario.drain();
    scenario.replies(0..3, Reply::Integer(0));
    scenario.ahead.iter_mut().for_each(|ahead| *ahead -= Duration::from_secs(100));
    scenario.pass(Duration::from_secs(11));
    for expected in [TIME + 11 * SECOND, TIME - 89 * SECOND] {
        scenario.lock_fenced();
        let acted = scenario.drain_looked();
        assert!(
            matches!(&acted[..], [Acted::Fenced(_, _, proposal)] if *proposal == expected),
            "{expected}: {acted:?}"
        );
        scenario.replies(0..3, Reply::Nil);
        assert!(scenario.acquired().is_err());
        scenario.drain();
        scenario.replies(0..3, Reply::Integer(0));
    }
}

/// R18: as with any command.
#[test]
fn node_whose_socket_is_full_is_not_raised() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1]);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Blocked);
    scenario.reply(1, Reply::Integer(TIME as i64 + 9));
    assert_eq!(scenario.drain(), []);
    scenario.reply(2, Reply::Nil);
    let error = scenario.acquired().unwrap_err();
    let expected = [NodeOutcome::Backlogged, NodeOutcome::Granted, NodeOutcome::Held];
    assert_eq!(outcomes(&error), expected);
}

/// A node that was made a replica between its grant and its raise is connected anew.
#[test]
fn node_that_refuses_its_raise_for_good_is_connected_anew() {
    for kind in [ServerErrorKind::ReadOnly, ServerErrorKind::Auth] {
        let mut scenario = Scenario::fenced(3);
        scenario.numbers(&[1, TIME + 9]);
        assert_eq!(scenario.drain(), [Acted::Confirm(vec![0], 1, TIME + 9)]);
        scenario.reply(0, server_error(kind));
        assert!(scenario.drain().contains(&Acted::Close(0)), "{kind:?}");
        scenario.reply(2, Reply::Integer(TIME as i64 + 9));
        assert_eq!(number(&scenario.acquired().unwrap()), TIME + 9);
    }
}

/// F14: a raise that was not handed out ends with its connection.
#[test]
fn raise_that_is_not_handed_out_ends_with_its_connection() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, TIME + 9]);
    let lost = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(lost));
    assert!(!scenario.drain().iter().any(|acted| matches!(acted, Acted::Confirm(..))));
    scenario.reply(2, Reply::Nil);
    let error = scenario.acquired().unwrap_err();
    assert_eq!(outcomes(&error), [lost, NodeOutcome::Granted, NodeOutcome::Held]);
}

/// F14: a raise that is lost with its connection is a vote that is missing, and the attempt ends.
#[test]
fn raise_that_is_lost_with_its_connection_ends_the_attempt() {
    let mut scenario = Scenario::fenced(3);
    scenario.numbers(&[1, TIME + 9]);
    scenario.drain();
    scenario.reply(2, Reply::Nil);
    let lost = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(lost));
    let error = scenario.acquired().unwrap_err();
    assert_eq!(outcomes(&error), [lost, NodeOutcome::Granted, NodeOutcome::Held]);
    scenario.drain();
    scenario.replies([1, 2], Reply::Integer(1));
    assert_eq!(scenario.engine.statuses().next().unwrap().pending_releases, 1, "the release");
}
