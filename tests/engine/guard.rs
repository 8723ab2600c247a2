//! Which servers vote, and from when on: identity, restarts, promotions, clocks and flushes, on
//! virtual time. `max_ttl` is 30 s, so a quarantine lasts 30 s + 1 % + 2 ms + 1 s.

use std::time::Duration;

use muxlock::error::{ProtocolError, ServerErrorKind};
use muxlock::node::{CountedFrom, NodeOutcome, NodeState, QuarantineCause, Unfit};
use muxlock::proto::{
    Marker, NodeEvent, Notice, Patience, ReleaseHow, Replication, Reply, ServerError,
};
use muxlock::settings::{Heal, RestartGuard};
use muxlock::{Resource, quorum};
use testbed::memory::{Acted, CONNECT_TIMEOUT, MARKER, NODE_TIMEOUT, Scenario, TTL, server_error};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const QUARANTINE: Duration = Duration::from_millis(30_000 + 300 + 2 + 1_000);
/// `HELLO`, tracking, `INFO` in five sections, and time.
const STEPS_BEFORE_SIGHTING: usize = 8;
/// The same, the sighting, and the marker.
const STEPS_BEFORE_PROBE: usize = STEPS_BEFORE_SIGHTING + 2;
const RESET: NodeOutcome = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);

/// The connection to `node` is lost, and made again at once.
fn reconnect(scenario: &mut Scenario, node: usize) {
    scenario.engine.handle_node(scenario.now, node, NodeEvent::Disconnected(RESET));
    scenario.pass(CONNECT_TIMEOUT + SECOND);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(node);
    scenario.drain();
}

fn quarantine(scenario: &Scenario, node: usize) -> Option<(QuarantineCause, Duration)> {
    let status = scenario.engine.statuses().nth(node).unwrap();
    assert_eq!(status.state == NodeState::Quarantined, status.quarantine.is_some());
    status.quarantine.map(|quarantine| (quarantine.cause, quarantine.ready_in))
}

/// Whether the lock is granted if all nodes say OK to its SETs.
fn is_granted(scenario: &mut Scenario, nodes: usize) -> bool {
    scenario.try_lock();
    scenario.drain_looked();
    scenario.replies(0..nodes, Reply::Ok);
    let result = scenario.acquired();
    let is_granted = result.is_ok();
    if let Ok(lease) = result {
        scenario.engine.abandon(scenario.now, lease);
    }
    scenario.drain();
    scenario.replies(0..nodes, Reply::Integer(1));
    is_granted
}

fn young(uptime: Duration) -> Scenario {
    let mut scenario = Scenario::guarded(1);
    scenario.servers[0].uptime = Some(uptime);
    scenario.all_ready()
}

/// The rule for restarts: a server's age is truncated to seconds, so one more is waited for.
#[test]
fn young_server_votes_once_its_age_less_a_second_exceeds_every_ttl() {
    for (uptime, left) in [
        (Duration::ZERO, QUARANTINE),
        (SECOND, QUARANTINE - SECOND),
        (31 * SECOND, 302 * MS),
        (32 * SECOND, Duration::ZERO),
    ] {
        let mut scenario = young(uptime);
        let expected = (!left.is_zero()).then_some((QuarantineCause::Restarted, left));
        assert_eq!(quarantine(&scenario, 0), expected);
        if !left.is_zero() {
            scenario.pass(left - Duration::from_nanos(1));
            assert!(!is_granted(&mut scenario, 1), "{uptime:?}");
            scenario.pass(Duration::from_nanos(1));
        }
        assert!(is_granted(&mut scenario, 1), "{uptime:?}");
    }
}

/// Its quarantine does not count from a sighting, so a sighting that it does not tell is no reason.
#[test]
fn restarted_server_is_not_said_to_wait_for_a_sighting() {
    let mut scenario = Scenario::guarded(1);
    scenario.servers[0].uptime = Some(SECOND);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    for _ in 0..STEPS_BEFORE_SIGHTING {
        assert!(scenario.greet_once(0));
    }
    scenario.greet_with(0, server_error(ServerErrorKind::Permission));
    scenario.start_handshake(0);
    scenario.try_lock();
    scenario.drain_looked();
    scenario.reply(0, Reply::Ok);
    let text = scenario.acquired().unwrap_err().to_string();
    assert!(text.contains("started a short time ago"), "{text}");
    assert!(!text.contains("muxlock:promoted"), "{text}");
}

/// R3: what counts is when the command was sent, and when the answer came.
#[test]
fn quarantined_grant_does_not_count_even_if_quarantine_ends_before_the_answer() {
    let mut scenario = young(31 * SECOND);
    scenario.pass(301 * MS);
    scenario.try_lock();
    scenario.drain();
    scenario.pass(MS + MS);
    assert_eq!(quarantine(&scenario, 0), None);
    scenario.look([0]);
    scenario.reply(0, Reply::Ok);
    let error = scenario.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::Quarantined);
    assert_eq!(scenario.engine.stats().uncounted, 1);
    scenario.drain();
    scenario.reply(0, Reply::Integer(1));
    assert!(is_granted(&mut scenario, 1), "a new attempt counts");
}

/// R3: nor if a later command to the same node counts already.
#[test]
fn quarantined_grant_does_not_count_though_a_later_one_does() {
    let mut scenario = young(31 * SECOND);
    scenario.pass(301 * MS);
    scenario.try_lock();
    scenario.drain();
    scenario.look([0]);
    scenario.pass(2 * MS);
    let other = Resource::new("other").unwrap();
    scenario.acquire_of(other, TTL, Patience::OneRound);
    assert_eq!(scenario.drain(), [Acted::Set(vec![0], 2)]);
    scenario.reply(0, Reply::Ok);
    let error = scenario.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::Quarantined);
    scenario.reply(0, Reply::Ok);
    assert!(scenario.acquired().is_ok(), "it was sent after the quarantine");
}

/// R9: the error says who is in quarantine, why, for how long, and how to do without.
#[test]
fn quarantined_majority_is_reported_with_the_time_it_takes() {
    let mut scenario = Scenario::guarded(3);
    scenario.servers[0].uptime = Some(20 * SECOND);
    scenario.servers[1].uptime = Some(10 * SECOND);
    let mut scenario = scenario.all_ready();
    scenario.try_lock();
    scenario.drain();
    scenario.replies(0..3, Reply::Ok);
    let error = scenario.acquired().unwrap_err();
    assert!(error.is_unavailable());
    // With node 2, the one of the two that is older is enough.
    assert_eq!(error.ready_in(), Some(QUARANTINE - 20 * SECOND));
    let text = error.to_string();
    for part in [
        "node 0 127.0.0.1:1: quarantined for another 11.3s: started a short time ago",
        "node 1 127.0.0.1:2: quarantined for another 21.3s",
        "restart_guard(RestartGuard::Off)",
        "?restart_guard=off",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// R3: a SET that waited for the connection is sent to a process that has forgotten what the one
/// before knew.
#[test]
fn set_that_waited_for_a_restarted_server_does_not_count() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    scenario.pass(Duration::ZERO);
    scenario.drain();
    scenario.try_lock();
    assert_eq!(scenario.drain(), []);
    scenario.restart(0, Duration::ZERO);
    scenario.connect(0);
    assert_eq!(scenario.drain(), [Acted::Set(vec![0], 1)]);
    scenario.reply(0, Reply::Ok);
    let error = scenario.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::Quarantined);
}

#[test]
fn quarantined_minority_costs_its_vote_only() {
    let mut scenario = Scenario::guarded(3);
    scenario.servers[2].uptime = Some(Duration::ZERO);
    let mut scenario = scenario.all_ready();
    assert!(is_granted(&mut scenario, 3));
}

/// R25: nor does what a server in quarantine says of an extension count.
#[test]
fn quarantined_extension_does_not_count_but_is_sent() {
    let mut scenario = Scenario::guarded(3).all_ready();
    let lease = scenario.locked();
    let deadline = lease.valid_until();
    for node in [0, 1] {
        scenario.restart(node, Duration::ZERO);
        reconnect(&mut scenario, node);
    }
    scenario.engine.extend(scenario.now, lease, TTL);
    assert_eq!(scenario.drain_looked(), [Acted::Extend(vec![0, 1, 2], 1)]);
    scenario.replies(0..3, Reply::Integer(1));
    let (lease, result) = scenario.extended();
    let error = result.unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::Quarantined);
    assert_eq!(lease.valid_until(), deadline);
}

/// A spare that ran already is trusted, though it lacks the locks of the one before: the operator
/// hears of it once.
#[test]
fn server_that_was_moved_to_an_address_while_it_ran_is_reported_once() {
    let second = Duration::from_secs(1);
    // How long the address was without a server, the new one's uptime, and whether it was moved.
    for (away, uptime, is_moved) in
        [(0, 100, true), (10, 14, true), (10, 12, false), (10, 2, false), (0, 0, false)]
    {
        let mut scenario = Scenario::guarded(3).all_ready();
        for turn in 0..2 {
            scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(RESET));
            scenario.now = scenario.now.after(away * second);
            scenario.restart(2, uptime * second);
            scenario.pass(second);
            scenario.drain();
            scenario.connect(2);
            let notices = std::iter::from_fn(|| scenario.engine.poll_notice());
            let said = notices.filter(|it| *it == (2, Notice::Moved)).count();
            assert_eq!(said == 1, is_moved && turn == 0, "{away} {uptime} {turn}");
        }
    }
}

/// Sentinels name another running server at each failover, as they should.
#[test]
fn server_that_sentinels_name_instead_of_another_is_not_reported() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    let named = NodeEvent::Elected { master_for: Some((SECOND, scenario.now)) };
    scenario.engine.handle_node(scenario.now, 0, named);
    scenario.restart(0, 100 * SECOND);
    scenario.pass(SECOND);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(0);
    assert!(quarantine(&scenario, 0).is_some());
    let mut notices = std::iter::from_fn(|| scenario.engine.poll_notice());
    assert!(notices.all(|notice| notice != (0, Notice::Moved)));
}

/// R14: a release is sent to a server in quarantine, whose answer proves nothing.
#[test]
fn quarantined_release_is_sent_and_unknown() {
    let mut scenario = Scenario::guarded(3).all_ready();
    let lease = scenario.locked();
    scenario.restart(2, Duration::ZERO);
    reconnect(&mut scenario, 2);
    scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    scenario.replies([2, 1, 0], Reply::Integer(1));
    let released = scenario.released().unwrap();
    assert_eq!((released.confirmed, released.unknown), (2, 1));
}

/// A server whose clock was wrong when it started looks old; it was not there when the process
/// before it last answered.
#[test]
fn restarted_server_that_claims_to_be_old_is_as_old_as_its_forerunner_is_gone() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.pass(5 * SECOND);
    assert!(is_granted(&mut scenario, 1), "it answers for the last time");
    scenario.restart(0, 1_000_000 * SECOND);
    reconnect(&mut scenario, 0);
    let gone = CONNECT_TIMEOUT + SECOND;
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Restarted, QUARANTINE - gone)));
}

/// As above, where the forerunner's last words were in a handshake that was cut off.
#[test]
fn forerunner_that_answered_in_a_handshake_was_still_there() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    scenario.pass(20 * SECOND);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    scenario.greet_once(0);
    scenario.greet_once(0);
    scenario.restart(0, 1_000_000 * SECOND);
    reconnect(&mut scenario, 0);
    let gone = CONNECT_TIMEOUT + SECOND;
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Restarted, QUARANTINE - gone)));
}

#[test]
fn same_process_is_not_quarantined_anew_after_a_reconnect_whatever_its_uptime_says() {
    let mut scenario = young(10 * SECOND);
    let left = quarantine(&scenario, 0).unwrap().1;
    for uptime in [Duration::ZERO, 1_000_000 * SECOND] {
        scenario.servers[0].uptime = Some(uptime);
        let before = scenario.now;
        reconnect(&mut scenario, 0);
        let passed = scenario.now.since(before);
        let (cause, still) = quarantine(&scenario, 0).expect("it is not over yet");
        assert_eq!(cause, QuarantineCause::Restarted);
        assert!(still + passed <= left);
        assert!(still + passed + passed >= left, "nor was it cut short");
    }
}

#[test]
fn own_observation_trusts_no_uptime() {
    let configure = |builder: muxlock::Builder| builder.restart_guard(RestartGuard::OwnObservation);
    let mut scenario = Scenario::with(1, configure).all_ready();
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Restarted, QUARANTINE)));
    scenario.pass(20 * SECOND);
    reconnect(&mut scenario, 0);
    let left = QUARANTINE - 20 * SECOND - CONNECT_TIMEOUT - SECOND;
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Restarted, left)));
}

/// The status says whether a client that connects later waits for the rest or for the whole time.
#[test]
fn own_observation_counts_from_the_first_contact_of_each_client() {
    for (guard, counted_from) in [
        (RestartGuard::Uptime, CountedFrom::Event),
        (RestartGuard::OwnObservation, CountedFrom::FirstContact { lasts: QUARANTINE }),
    ] {
        let mut scenario = Scenario::with(1, |builder| builder.restart_guard(guard));
        scenario.servers[0].uptime = Some(SECOND);
        let scenario = scenario.all_ready();
        let quarantine = scenario.engine.statuses().next().unwrap().quarantine.unwrap();
        assert_eq!(quarantine.cause, QuarantineCause::Restarted);
        assert_eq!(quarantine.counted_from, counted_from);
    }
}

#[test]
fn guard_that_is_off_quarantines_nobody() {
    let mut scenario = Scenario::new(1);
    scenario.servers[0].uptime = Some(Duration::ZERO);
    scenario.servers[0].replication.promoted = Some(true);
    let mut scenario = scenario.all_ready();
    scenario.restart(0, Duration::ZERO);
    reconnect(&mut scenario, 0);
    scenario.servers[0].run_id = None;
    reconnect(&mut scenario, 0);
    assert_eq!(quarantine(&scenario, 0), None);
    assert!(is_granted(&mut scenario, 1));
}

/// R33: a replica need not have had all that its master had.
#[test]
fn promoted_server_is_quarantined_in_full_from_first_sight() {
    let mut scenario = Scenario::guarded(1);
    scenario.servers[0].replication.promoted = Some(true);
    let mut scenario = scenario.all_ready();
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Promoted, QUARANTINE)));
    scenario.pass(QUARANTINE);
    reconnect(&mut scenario, 0);
    assert_eq!(quarantine(&scenario, 0), None, "it has been seen for long enough");
}

/// R33: the Sentinels know since when it is the master.
#[test]
fn promoted_server_is_quarantined_from_its_election_on() {
    let age = Duration::from_secs(1);
    let table = [(Some(age), Some(QUARANTINE - age)), (Some(QUARANTINE), None)];
    for (elected, expected) in table {
        let mut scenario = Scenario::guarded(1);
        scenario.servers[0].replication.promoted = Some(true);
        scenario.engine.handle_node(
            scenario.now,
            0,
            NodeEvent::Elected { master_for: elected.map(|age| (age, scenario.now)) },
        );
        let scenario = scenario.all_ready();
        let expected = expected.map(|rest| (QuarantineCause::Promoted, rest));
        assert_eq!(quarantine(&scenario, 0), expected, "{elected:?}");
    }
    // What was said of the server before does not count.
    let mut scenario = Scenario::guarded(1);
    scenario.servers[0].replication.promoted = Some(true);
    scenario.engine.handle_node(
        scenario.now,
        0,
        NodeEvent::Elected { master_for: Some((QUARANTINE, scenario.now)) },
    );
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Elected { master_for: None });
    let scenario = scenario.all_ready();
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Promoted, QUARANTINE)));
    // It was started later than it was elected.
    let mut scenario = Scenario::guarded(1);
    scenario.servers[0].replication.promoted = Some(true);
    scenario.servers[0].uptime = Some(age);
    scenario.engine.handle_node(
        scenario.now,
        0,
        NodeEvent::Elected { master_for: Some((QUARANTINE, scenario.now)) },
    );
    let scenario = scenario.all_ready();
    let rest = QUARANTINE - age;
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Promoted, rest)));
    // It does not say that it was a replica, and reconnecting proves nothing.
    let mut scenario = Scenario::guarded(1);
    scenario.engine.handle_node(
        scenario.now,
        0,
        NodeEvent::Elected { master_for: Some((age, scenario.now)) },
    );
    let mut scenario = scenario.all_ready();
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Promoted, rest)));
    scenario.pass(QUARANTINE);
    scenario.engine.handle_node(
        scenario.now,
        0,
        NodeEvent::Elected { master_for: Some((age, scenario.now)) },
    );
    reconnect(&mut scenario, 0);
    let (cause, left) = quarantine(&scenario, 0).expect("another may have been the master");
    assert!(cause == QuarantineCause::Promoted && left <= rest, "{left:?}");
    // It was promoted while this client knew it.
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.servers[0].replication.promoted = Some(true);
    scenario.servers[0].replication.history = Some(0xdead.into());
    scenario.engine.handle_node(
        scenario.now,
        0,
        NodeEvent::Elected { master_for: Some((QUARANTINE, scenario.now)) },
    );
    reconnect(&mut scenario, 0);
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Promoted, QUARANTINE)));
}

/// R33: the Sentinels' answer ages like everything else, also before the connection is there.
#[test]
fn time_since_the_sentinels_answered_counts() {
    let passed = 4 * SECOND;
    let mut scenario = Scenario::guarded(1);
    scenario.engine.handle_node(
        scenario.now,
        0,
        NodeEvent::Elected { master_for: Some((SECOND, scenario.now)) },
    );
    scenario.pass(passed);
    let scenario = scenario.all_ready();
    let rest = QUARANTINE - SECOND - passed;
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Promoted, rest)));
}

/// R33: who trusts its own observation alone trusts no Sentinel either.
#[test]
fn own_observation_trusts_no_sentinel() {
    for promoted in [Some(true), Some(false), None] {
        let configure =
            |builder: muxlock::Builder| builder.restart_guard(RestartGuard::OwnObservation);
        let mut scenario = Scenario::with(1, configure);
        scenario.servers[0].replication.promoted = promoted;
        scenario.engine.handle_node(
            scenario.now,
            0,
            NodeEvent::Elected { master_for: Some((QUARANTINE, scenario.now)) },
        );
        let scenario = scenario.all_ready();
        let left = quarantine(&scenario, 0).map(|(_, left)| left);
        assert_eq!(left, Some(QUARANTINE), "{promoted:?}");
    }
}

/// R33: the process is the same, its data is not.
#[test]
fn server_with_another_history_is_quarantined() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.servers[0].replication.promoted = Some(true);
    scenario.servers[0].replication.history = Some(0xdead.into());
    reconnect(&mut scenario, 0);
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Promoted, QUARANTINE)));
}

/// R32, R33: who cannot vote is refused by the handshake, for a reason that has a name.
#[test]
fn unfit_server_is_refused_and_asked_again_later() {
    type Change = fn(&mut muxlock::proto::ServerInfo);
    let table: [(Change, Unfit); 5] = [
        (|server| server.replication.master = Some(false), Unfit::Replica),
        (|server| server.loading = Some(true), Unfit::Loading),
        (|server| server.standalone = Some(false), Unfit::Cluster),
        (
            |server| {
                (server.memory_max, server.evicts_nothing) = (Some(1), Some(false));
            },
            Unfit::Evicts,
        ),
        (|server| server.run_id = Some("process 1".into()), Unfit::Duplicate),
    ];
    for (change, reason) in table {
        let mut scenario = Scenario::guarded(3);
        let fit = scenario.servers[0].clone();
        change(&mut scenario.servers[0]);
        scenario.engine.connect(scenario.now);
        scenario.drain();
        for node in [1, 0] {
            scenario.engine.handle_node(scenario.now, node, NodeEvent::Connected);
            scenario.drain();
            scenario.start_handshake(node);
        }
        let status = scenario.engine.statuses().next().unwrap();
        assert_eq!(status.state, NodeState::BackOff, "{reason}");
        assert_eq!(status.last_failure, Some(NodeOutcome::Unfit(reason)));
        scenario.drain();
        scenario.try_lock();
        scenario.drain();
        scenario.connect(0);
        scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(RESET));
        let error = scenario.acquired().unwrap_err();
        assert_eq!(error.nodes()[0].outcome, NodeOutcome::Unfit(reason));
        assert!(error.to_string().contains(&reason.to_string()), "{error}");
        // It is looked at again, and taken once it is fit.
        scenario.servers[0] = fit;
        scenario.pass(SECOND);
        scenario.engine.connect(scenario.now);
        scenario.drain();
        scenario.connect(0);
        assert_eq!(scenario.state(0), NodeState::Ready, "{reason}");
    }
}

/// R33: memory that may be evicted is no lock's place; memory without a bound is never evicted.
#[test]
fn eviction_policy_matters_only_with_a_memory_limit() {
    for (max, evicts_nothing, fit) in [
        (Some(0), Some(false), true),
        (Some(1), Some(true), true),
        (Some(1), Some(false), false),
        (None, None, true),
    ] {
        let mut scenario = Scenario::guarded(1);
        scenario.servers[0].memory_max = max;
        scenario.servers[0].evicts_nothing = evicts_nothing;
        scenario.engine.connect(scenario.now);
        scenario.drain();
        scenario.connect(0);
        assert_eq!(scenario.state(0) == NodeState::Ready, fit, "{max:?} {evicts_nothing:?}");
    }
}

/// Two nodes that are one server, and a lock that is asked for.
fn duplicates() -> Scenario {
    let mut scenario = Scenario::guarded(2);
    scenario.servers[1] = scenario.servers[0].clone();
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(0);
    scenario.connect(1);
    assert_eq!(scenario.engine.nodes().duplicates(), Some((0, 1)));
    scenario.drain();
    scenario.try_lock();
    scenario.drain();
    scenario
}

/// R34: the error names both; and a process may move to an address whose own is gone.
#[test]
fn duplicate_is_named_and_a_process_that_moved_is_none() {
    let mut scenario = duplicates();
    scenario.connect(1);
    let error = scenario.acquired().unwrap_err().to_string();
    let named =
        "node 1 127.0.0.1:2: unusable (the same server as another node; list it once): 127.0.0.1:1";
    assert!(error.contains(named), "{error}");
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    scenario.drain();
    scenario.pass(SECOND);
    scenario.drain();
    scenario.connect(1);
    // It may have voted in this very round, under its old address.
    assert_eq!(quarantine(&scenario, 1), Some((QuarantineCause::Moved, QUARANTINE)));
    scenario.pass(QUARANTINE);
    assert_eq!(scenario.state(1), NodeState::Ready);
}

/// Who answers at its address is not known any more.
#[test]
fn duplicate_that_is_no_longer_reached_is_none() {
    let mut scenario = duplicates();
    scenario.engine.handle_node(scenario.now, 1, NodeEvent::Disconnected(RESET));
    assert_eq!(scenario.engine.nodes().duplicates(), None);
}

/// R32: without INFO every connection may be to another process.
#[test]
fn server_that_does_not_tell_who_it_is_is_quarantined_at_each_connection() {
    let mut scenario = Scenario::guarded(1);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    for _ in 0..2 {
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
        scenario.drain();
        scenario.greet_once(0);
        scenario.greet_once(0);
        for _ in 0..5 {
            scenario.greet_with(0, server_error(ServerErrorKind::Permission));
        }
        scenario.start_handshake(0);
        assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Unidentified, QUARANTINE)));
        scenario.pass(QUARANTINE);
        assert!(is_granted(&mut scenario, 1));
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
        scenario.pass(Duration::ZERO);
        scenario.drain();
    }
}

/// R32: a server that does not run the release script cannot be cleaned up.
#[test]
fn probe_that_is_refused_is_told_apart_by_its_reason() {
    let table = [
        (ServerErrorKind::UnknownCommand, NodeOutcome::Unfit(Unfit::NoScripts)),
        (ServerErrorKind::Permission, NodeOutcome::Unfit(Unfit::NoScripts)),
        (ServerErrorKind::ReadOnly, NodeOutcome::Unfit(Unfit::Replica)),
        (ServerErrorKind::Loading, NodeOutcome::Unfit(Unfit::Loading)),
        (ServerErrorKind::Cluster, NodeOutcome::Unfit(Unfit::Cluster)),
        (ServerErrorKind::Busy, NodeOutcome::Server(ServerErrorKind::Busy)),
        (ServerErrorKind::Other, NodeOutcome::Server(ServerErrorKind::Other)),
    ];
    for (kind, expected) in table {
        let mut scenario = Scenario::guarded(1);
        scenario.engine.connect(scenario.now);
        scenario.drain();
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
        scenario.drain();
        for _ in 0..STEPS_BEFORE_PROBE {
            scenario.greet_once(0);
        }
        scenario.greet_with(0, server_error(kind));
        let status = scenario.engine.statuses().next().unwrap();
        assert_eq!(status.last_failure, Some(expected));
        assert_eq!(status.errors.of(kind), 1);
        assert_eq!(status.last_message.as_deref(), Some("ERR in the scenario"));
    }
}

/// R17: an answer of another kind than was asked for ends the connection, in a handshake as well.
#[test]
fn handshake_answered_out_of_kind_ends_the_connection() {
    for step in 0..=STEPS_BEFORE_PROBE {
        let mut scenario = Scenario::guarded(1);
        scenario.engine.connect(scenario.now);
        scenario.drain();
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
        scenario.drain();
        for _ in 0..step {
            scenario.greet_once(0);
        }
        scenario.greet_with(0, Reply::Status);
        assert_eq!(scenario.state(0), NodeState::BackOff, "step {step}");
    }
}

/// R33: a master that was demoted says so when it is written to.
#[test]
fn demoted_master_is_looked_at_again_and_refused() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.try_lock();
    scenario.drain();
    scenario.servers[0].replication.master = Some(false);
    scenario.reply(0, server_error(ServerErrorKind::ReadOnly));
    assert!(scenario.acquired().unwrap_err().is_unavailable());
    scenario.drain();
    scenario.pass(Duration::ZERO);
    assert_eq!(scenario.drain(), [Acted::Connect(0)]);
    scenario.connect(0);
    let status = scenario.engine.statuses().next().unwrap();
    assert_eq!(status.last_failure, Some(NodeOutcome::Unfit(Unfit::Replica)));
}

/// Nothing would come of it.
#[test]
fn server_that_does_not_tell_its_role_is_not_asked_for_it_again() {
    let mut scenario = Scenario::guarded(2);
    scenario.servers[1].replication.master = None;
    let mut scenario = scenario.all_ready();
    scenario.pass(SECOND);
    scenario.try_lock();
    let all = vec![0, 1];
    let expected = [Acted::Time(all.clone()), Acted::Role(vec![0]), Acted::Set(all, 1)];
    assert_eq!(scenario.drain(), expected);
}

/// R33: demoted, emptied by its new master, and promoted again, while this client was idle and its
/// connection stood.
#[test]
fn master_that_was_a_replica_in_between_does_not_count() {
    for (master, reason) in [(true, Unfit::Changed), (false, Unfit::Replica)] {
        let mut scenario = Scenario::guarded(1).all_ready();
        scenario.pass(SECOND);
        scenario.servers[0].replication.master = Some(master);
        scenario.servers[0].replication.history = Some(0xdead.into());
        scenario.servers[0].replication.promoted = Some(true);
        scenario.try_lock();
        scenario.drain_looked();
        scenario.reply(0, Reply::Ok);
        let error = scenario.acquired().unwrap_err();
        assert_eq!(error.nodes()[0].outcome, NodeOutcome::Unfit(reason));
        scenario.drain();
        scenario.pass(Duration::ZERO);
        scenario.drain();
        scenario.connect(0);
        if master {
            let expected = Some((QuarantineCause::Promoted, QUARANTINE));
            assert_eq!(quarantine(&scenario, 0), expected);
        } else {
            assert_eq!(scenario.state(0), NodeState::BackOff);
        }
    }
}

/// R33: a master that is given its first replica gives its data a new name, and has lost nothing.
#[test]
fn master_that_is_given_a_replica_votes_on() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.pass(SECOND);
    scenario.servers[0].replication.history = Some(0xbeef.into());
    assert!(is_granted(&mut scenario, 1));
    reconnect(&mut scenario, 0);
    assert_eq!(quarantine(&scenario, 0), None);
    scenario.pass(SECOND);
    assert!(is_granted(&mut scenario, 1));
}

/// R33: the name that its data had before that is an older one from then on.
#[test]
fn promoted_server_with_the_first_of_two_names_is_quarantined() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.pass(SECOND);
    let first = scenario.servers[0].replication.history;
    scenario.servers[0].replication.history = Some(0xbeef.into());
    assert!(is_granted(&mut scenario, 1));
    scenario.servers[0].replication.history = first;
    scenario.servers[0].replication.promoted = Some(true);
    reconnect(&mut scenario, 0);
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Promoted, QUARANTINE)));
}

// The clocks of the masters.

/// A client that has just looked at the clock of its only node.
fn sampled() -> Scenario {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.pass(20 * MS);
    assert!(is_granted(&mut scenario, 1));
    scenario
}

#[test]
fn set_is_preceded_by_a_look_at_the_clock_that_is_not_fresh() {
    let mut scenario = sampled();
    scenario.try_lock();
    assert_eq!(scenario.drain(), [Acted::Set(vec![0], 2)], "it is fresh");
    // Whoever was refused looks again at once.
    scenario.reply(0, Reply::Nil);
    assert!(scenario.acquired().unwrap_err().is_contended());
    assert_eq!(scenario.drain(), [Acted::Release(vec![0], 2)]);
    scenario.reply(0, Reply::Integer(0));
    scenario.try_lock();
    // At its clock alone: its role was looked at a moment ago.
    assert_eq!(scenario.drain(), [Acted::Time(vec![0]), Acted::Set(vec![0], 3)]);
}

/// A server that was made a replica has the history of before until it has copied its master's.
#[test]
fn replica_with_the_history_of_before_is_refused() {
    let mut scenario = sampled();
    scenario.pass(SECOND);
    scenario.try_lock();
    scenario.servers[0].replication.master = Some(false);
    scenario.drain_looked();
    let status = scenario.engine.statuses().next().unwrap();
    assert_eq!(status.last_failure, Some(NodeOutcome::Unfit(Unfit::Replica)));
}

#[test]
fn clock_that_jumps_forward_costs_the_vote_that_it_stands_before() {
    for (jump, is_jump) in [(4 * MS, false), (60 * SECOND, true)] {
        let mut scenario = sampled();
        scenario.pass(50 * MS);
        scenario.ahead[0] += jump;
        assert_eq!(is_granted(&mut scenario, 1), !is_jump);
        let expected = is_jump.then_some((QuarantineCause::ClockStepped, QUARANTINE));
        assert_eq!(quarantine(&scenario, 0), expected);
        assert_eq!(scenario.engine.stats().clock_jumps, u64::from(is_jump));
        scenario.pass(QUARANTINE);
        assert!(is_granted(&mut scenario, 1));
    }
}

#[test]
fn time_that_is_told_as_an_event_is_the_same_as_one_in_a_reply() {
    type Change = fn(&mut Scenario);
    let changes: [Change; 7] = [
        |_| {},
        |scenario| scenario.ahead[0] += 60 * SECOND,
        |scenario| scenario.ahead[0] -= 60 * SECOND,
        // In doubt, and read late.
        |scenario| scenario.tell_flush(0),
        |scenario| {
            scenario.engine.handle_node(scenario.now, 0, NodeEvent::ReadingLate { since: None });
        },
        // Late.
        |scenario| scenario.pass(2 * NODE_TIMEOUT),
        // Not asked for.
        |scenario| {
            scenario.look([0]);
            scenario.reply(0, Reply::Ok);
        },
    ];
    for (which, change) in changes.into_iter().enumerate() {
        let told: [fn(&mut Scenario); 2] =
            [|scenario| scenario.look([0]), |scenario| scenario.look_at_once(0)];
        let [in_a_reply, as_an_event] = told.map(|tell| {
            let mut scenario = sampled();
            scenario.pass(20 * MS);
            scenario.try_lock();
            scenario.drain();
            scenario.pass(MS);
            change(&mut scenario);
            tell(&mut scenario);
            let acted = scenario.drain();
            // Once the SET is answered as well, nothing is late, and the next answer is in time.
            scenario.reply(0, Reply::Ok);
            scenario.try_lock();
            scenario.drain();
            scenario.reply(0, Reply::Ok);
            let (then, engine) = (scenario.drain(), &scenario.engine);
            let statuses: Vec<_> = engine.statuses().collect();
            format!("{:?}", (acted, then, engine.stats(), statuses, engine.poll_timeout()))
        });
        assert_eq!(as_an_event, in_a_reply, "{which}");
    }
}

#[test]
fn clock_that_jumps_during_an_outage_is_noticed_by_the_next_handshake() {
    let mut scenario = sampled();
    scenario.ahead[0] += 60 * SECOND;
    reconnect(&mut scenario, 0);
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::ClockStepped, QUARANTINE)));
}

#[test]
fn clock_that_jumps_back_costs_nothing() {
    let mut scenario = sampled();
    scenario.pass(50 * MS);
    scenario.ahead[0] -= 3_600 * SECOND;
    assert!(is_granted(&mut scenario, 1));
}

/// R20: what this machine's own clock jumps is time that has passed for a lock, not for a wait.
#[test]
fn jump_of_our_own_clock_shortens_no_quarantine_and_hides_no_jump() {
    let minute = 60 * SECOND;
    let jump = |scenario: &mut Scenario| {
        let nanos = scenario.now.after(minute).as_nanos();
        scenario.now = muxlock::Moment::with_jumps(nanos, minute.as_nanos() as u64);
        scenario.engine.handle_timeout(scenario.now);
    };
    let mut scenario = young(SECOND);
    let left = quarantine(&scenario, 0);
    jump(&mut scenario);
    assert_eq!(quarantine(&scenario, 0), left);
    // Both are on one machine, or were set by one: the server's jump is seen all the same.
    let mut scenario = sampled();
    jump(&mut scenario);
    assert!(!is_granted(&mut scenario, 1), "the server's clock, too, is a minute ahead");
    assert_eq!(scenario.engine.stats().clock_jumps, 1);
    // And the age of a restarted server is no greater for it.
    let mut scenario = sampled();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    jump(&mut scenario);
    scenario.restart(0, 1_000_000 * SECOND);
    reconnect(&mut scenario, 0);
    assert!(quarantine(&scenario, 0).is_some());
}

#[test]
fn waiter_looks_at_the_clock_whatever_others_have_asked_since() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.pass(20 * MS);
    scenario.acquire(TTL, Patience::Until(scenario.now.after(5 * SECOND)));
    scenario.drain();
    scenario.look([0]);
    scenario.reply(0, Reply::Nil);
    scenario.drain();
    scenario.reply(0, Reply::Integer(0));
    // Less than a sample may be old, and more than the delays between the first rounds.
    for pause in [4 * MS, 8 * MS] {
        scenario.pass(pause);
        let acted = scenario.drain();
        assert_eq!(acted[0], Acted::Time(vec![0]), "{acted:?}");
        scenario.looked(acted);
        scenario.reply(0, Reply::Nil);
        scenario.drain();
        scenario.reply(0, Reply::Integer(0));
    }
}

/// A client of so many nodes, of which the first ones have just refused a SET; all were just looked
/// at.
fn refused(nodes: usize, refusing: usize) -> Scenario {
    let mut scenario = Scenario::guarded(nodes).all_ready();
    scenario.pass(20 * MS);
    assert!(is_granted(&mut scenario, nodes));
    scenario.try_lock();
    scenario.drain();
    scenario.replies(0..refusing, Reply::Nil);
    scenario.replies(refusing..nodes, Reply::Ok);
    if let Ok(lease) = scenario.acquired() {
        scenario.engine.abandon(scenario.now, lease);
    }
    scenario.drain();
    scenario.replies(0..nodes, Reply::Integer(0));
    scenario
}

/// The node that has refused may be one of several; its role and the others' clocks are fresh.
#[test]
fn every_set_soon_after_a_refusal_looks_at_the_clock() {
    for nodes in [1, 3] {
        let mut scenario = refused(nodes, 1);
        for token in 3..6 {
            scenario.pass(MS);
            scenario.try_lock();
            let acted = scenario.drain();
            let all: Vec<usize> = (0..nodes).collect();
            assert_eq!(acted, [Acted::Time(all.clone()), Acted::Set(all, token)]);
            scenario.looked(acted);
            scenario.replies(0..nodes, Reply::Ok);
            let lease = scenario.acquired().unwrap();
            scenario.engine.abandon(scenario.now, lease);
            scenario.drain();
            scenario.replies(0..nodes, Reply::Integer(1));
        }
    }
}

/// One look precedes all of them in their write. What is queued after that has one of its own, even
/// if our clock, which may be coarse, shows the same.
#[test]
fn sets_that_leave_together_share_a_look_at_the_clock() {
    let mut scenario = refused(1, 1);
    for tokens in [[3, 4], [5, 6]] {
        tokens.iter().for_each(|_| _ = scenario.try_lock());
        let sets = tokens.map(|token| Acted::Set(vec![0], token));
        let mut acted = scenario.drain();
        assert_eq!(acted.remove(0), Acted::Time(vec![0]));
        assert_eq!(acted, sets);
    }
    // Later, before the commands were handed out, the look is still ahead of them.
    scenario.try_lock();
    scenario.pass(9 * MS);
    scenario.try_lock();
    let expected = [Acted::Time(vec![0]), Acted::Set(vec![0], 7), Acted::Set(vec![0], 8)];
    assert_eq!(scenario.drain(), expected);
}

/// The look that is queued is at the clock alone; all were connected a second before.
#[test]
fn role_is_looked_at_while_a_look_at_the_clock_is_queued() {
    let mut scenario = refused(1, 1);
    scenario.pass(SECOND - 21 * MS);
    scenario.try_lock();
    scenario.pass(MS);
    scenario.try_lock();
    let expected = [
        Acted::Time(vec![0]),
        Acted::Set(vec![0], 3),
        Acted::Role(vec![0]),
        Acted::Set(vec![0], 4),
    ];
    assert_eq!(scenario.drain(), expected);
}

#[test]
fn look_that_is_queued_for_other_nodes_or_was_lost_is_no_look() {
    let mut scenario = refused(3, 3);
    // Every node that is sent a SET is looked at before, also one whose socket was full.
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Blocked);
    scenario.try_lock();
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Writable);
    scenario.try_lock();
    let mut looked = Vec::new();
    for acted in scenario.drain() {
        match acted {
            Acted::Time(nodes) => looked.extend(nodes),
            Acted::Set(nodes, _) => assert!(nodes.iter().all(|node| looked.contains(node))),
            other => panic!("{other:?}"),
        }
    }
    looked.sort_unstable();
    assert_eq!(looked, [0, 1, 2], "once");
    // The connection is lost with the look.
    let mut scenario = refused(1, 1);
    scenario.try_lock();
    reconnect_without_a_pause(&mut scenario, 0);
    scenario.try_lock();
    let acted = scenario.drain();
    assert_eq!(acted[0], Acted::Time(vec![0]), "{acted:?}");
}

/// What leaves in a later write than the look is not preceded by it at once.
#[test]
fn look_at_the_clock_is_shared_by_no_more_sets_than_one_write_takes() {
    let mut scenario = refused(1, 1);
    (0..2_000).for_each(|_| _ = scenario.try_lock());
    let acted = scenario.drain();
    let looks = acted.iter().filter(|acted| matches!(acted, Acted::Time(_))).count();
    assert!(looks > 1 && acted.len() == looks + 2_000, "{looks} looks");
    let since = |at: usize| acted[..at].iter().rev().take_while(|it| !matches!(it, Acted::Time(_)));
    assert!((0..acted.len()).all(|at| since(at).count() <= 512));
}

#[test]
fn server_without_a_guard_is_not_asked_for_its_time_nor_are_others_more_often() {
    let urls =
        ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3?restart_guard=off"];
    let mut scenario = Scenario::of_nodes(urls).all_ready();
    scenario.pass(SECOND);
    for looks in [vec![Acted::Time(vec![0, 1]), Acted::Role(vec![0, 1])], vec![]] {
        scenario.try_lock();
        let acted = scenario.drain();
        assert_eq!(acted[..acted.len() - 1], looks);
        scenario.looked(acted);
        scenario.replies(0..3, Reply::Ok);
        let lease = scenario.acquired().unwrap();
        scenario.engine.abandon(scenario.now, lease);
        scenario.drain();
        scenario.replies(0..3, Reply::Integer(1));
    }
}

#[test]
fn clock_that_is_not_told_for_the_moment_is_asked_for_again() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.pass(20 * MS);
    for _ in 0..2 {
        scenario.try_lock();
        let acted = scenario.drain();
        assert_eq!(acted[0], Acted::Time(vec![0]), "{acted:?}");
        assert!(scenario.engine.node(0).is_telling_time());
        scenario.replies([0, 0], server_error(ServerErrorKind::Busy));
        assert!(!scenario.engine.node(0).is_telling_time());
        assert!(scenario.acquired().is_err());
        scenario.drain();
        scenario.reply(0, Reply::Integer(0));
    }
}

#[test]
fn clock_that_is_kept_secret_costs_nothing() {
    let mut scenario = Scenario::guarded(1);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    for _ in 0..7 {
        scenario.greet_once(0);
    }
    scenario.greet_with(0, server_error(ServerErrorKind::Permission));
    scenario.start_handshake(0);
    scenario.pass(SECOND);
    // Its role is looked at all the same, each time that it is due.
    for token in [1, 3] {
        scenario.try_lock();
        let acted = scenario.drain();
        assert_eq!(acted, [Acted::Role(vec![0]), Acted::Set(vec![0], token)]);
        scenario.looked(acted);
        scenario.reply(0, Reply::Nil);
        assert!(scenario.acquired().is_err());
        scenario.drain();
        scenario.reply(0, Reply::Integer(0));
        // Nothing is due yet.
        scenario.pass(SECOND - MS);
        scenario.try_lock();
        assert_eq!(scenario.drain(), [Acted::Set(vec![0], token + 1)]);
        scenario.reply(0, Reply::Ok);
        let lease = scenario.acquired().unwrap();
        scenario.pass(MS);
        scenario.engine.abandon(scenario.now, lease);
        scenario.drain();
        scenario.reply(0, Reply::Integer(1));
    }
}

/// A look that fails is none, however soon the next lock follows.
#[test]
fn clock_that_was_not_told_is_asked_for_before_the_next_set() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.pass(20 * MS);
    scenario.try_lock();
    let acted = scenario.drain();
    assert!(matches!(acted[..], [Acted::Time(_), Acted::Set(..)]), "{acted:?}");
    // The next one is sent, and finds when something is due, before the answer.
    scenario.try_lock();
    assert!(matches!(scenario.drain()[..], [Acted::Set(..)]));
    scenario.reply(0, server_error(ServerErrorKind::Busy));
    scenario.try_lock();
    let acted = scenario.drain();
    assert!(matches!(acted[..], [Acted::Time(_), Acted::Set(..)]), "{acted:?}");
}

/// What is sent to one node finds when something is due at the others.
#[test]
fn clocks_are_looked_at_when_they_are_due_after_one_node_was_sent_a_set() {
    let mut scenario = Scenario::guarded(3).all_ready();
    scenario.pass(5 * MS);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    scenario.engine.connect(scenario.now);
    scenario.try_lock();
    scenario.drain();
    scenario.connect(0);
    assert_eq!(scenario.drain(), [Acted::Set(vec![0], 1)], "it has waited for the connection");
    scenario.pass(5 * MS);
    scenario.try_lock();
    let acted = scenario.drain();
    assert!(matches!(acted[..], [Acted::Time(_), Acted::Set(..)]), "{acted:?}");
}

/// R34: a process that moves to another node's address brings its quarantine along.
#[test]
fn quarantined_process_that_moves_does_not_vote_at_its_new_address() {
    let mut scenario = Scenario::guarded(2);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(0);
    scenario.drain();
    scenario.ahead[0] += 60 * SECOND;
    reconnect_without_a_pause(&mut scenario, 0);
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::ClockStepped, QUARANTINE)));
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    scenario.drain();
    scenario.servers[1] = scenario.servers[0].clone();
    scenario.ahead[1] = scenario.ahead[0];
    scenario.connect(1);
    assert_eq!(quarantine(&scenario, 1), Some((QuarantineCause::Moved, QUARANTINE)));
}

/// R34: a process that was counted at one address is not counted at another in the same round, also
/// if the first has come to a third process since.
#[test]
fn process_that_left_its_address_to_another_does_not_vote_at_a_third() {
    let mut scenario = guarded_and_connected();
    let moving = scenario.servers[1].clone();
    scenario.servers[1].run_id = Some("another".into());
    reconnect_without_a_pause(&mut scenario, 1);
    scenario.pass(SECOND);
    scenario.servers[2] = moving;
    reconnect_without_a_pause(&mut scenario, 2);
    let left = QUARANTINE - SECOND;
    assert_eq!(quarantine(&scenario, 2), Some((QuarantineCause::Moved, left)));
    scenario.pass(left);
    assert_eq!(scenario.state(2), NodeState::Ready);
}

/// R34: a process that moves twice was counted at the second address until its second move, however
/// long ago it left the first one.
#[test]
fn process_that_moves_twice_waits_from_the_second_move() {
    let mut scenario = guarded_and_connected();
    let moving = scenario.servers[0].clone();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    scenario.drain();
    scenario.servers[1] = moving.clone();
    reconnect_without_a_pause(&mut scenario, 1);
    scenario.pass(SECOND);
    // Only now it is known that the process has left its first address.
    scenario.servers[0].run_id = Some("another".into());
    while !scenario.drain().contains(&Acted::Connect(0)) {
        scenario.pass(MS);
    }
    scenario.connect(0);
    scenario.drain();
    scenario.pass(QUARANTINE - SECOND / 2);
    assert_eq!(quarantine(&scenario, 1), None);
    scenario.engine.handle_node(scenario.now, 1, NodeEvent::Disconnected(RESET));
    scenario.drain();
    scenario.servers[2] = moving;
    reconnect_without_a_pause(&mut scenario, 2);
    assert_eq!(quarantine(&scenario, 2), Some((QuarantineCause::Moved, QUARANTINE)));
}

/// R34: its old address has come to a server that does not tell who it is.
#[test]
fn process_that_left_its_address_to_a_nameless_one_does_not_vote_at_another() {
    let mut scenario = guarded_and_connected();
    let moving = scenario.servers[0].clone();
    scenario.servers[0].run_id = None;
    reconnect_without_a_pause(&mut scenario, 0);
    scenario.pass(SECOND);
    scenario.servers[1] = moving;
    reconnect_without_a_pause(&mut scenario, 1);
    let left = QUARANTINE - SECOND;
    assert_eq!(quarantine(&scenario, 1), Some((QuarantineCause::Moved, left)));
}

/// Three nodes that were connected one after the other.
fn guarded_and_connected() -> Scenario {
    let mut scenario = Scenario::guarded(3);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    for node in 0..3 {
        scenario.connect(node);
        scenario.drain();
    }
    scenario
}

/// R12, R34: nothing is released of a lock that is held. What nobody holds is released anywhere.
#[test]
fn process_that_moved_keeps_the_copy_that_counts() {
    for (moves, wins) in [(true, true), (false, true), (true, false)] {
        let mut scenario = guarded_and_connected();
        scenario.try_lock();
        assert_eq!(scenario.drain(), [Acted::Set(vec![0, 1, 2], 1)]);
        scenario.replies(0..2, if wins { Reply::Ok } else { Reply::Nil });
        assert_eq!(scenario.acquired().is_ok(), wins);
        // The answer of node 2 is lost, and then node 1's process is at its address.
        for node in [2, 1] {
            scenario.engine.handle_node(scenario.now, node, NodeEvent::Disconnected(RESET));
        }
        if moves {
            scenario.servers[2] = scenario.servers[1].clone();
        }
        scenario.engine.connect(scenario.now);
        scenario.drain();
        scenario.connect(2);
        let released = scenario.drain().contains(&Acted::Release(vec![2], 1));
        assert_eq!(released, !wins);
    }
}

/// R12: also if its release was lost once more.
#[test]
fn what_nobody_holds_is_released_at_a_process_that_moved() {
    let mut scenario = guarded_and_connected();
    scenario.try_lock();
    scenario.drain();
    scenario.replies(0..2, Reply::Nil);
    assert!(scenario.acquired().is_err());
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(RESET));
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(2);
    assert!(scenario.drain().contains(&Acted::Release(vec![2], 1)));
    scenario.engine.handle_node(scenario.now, 1, NodeEvent::Disconnected(RESET));
    scenario.servers[2] = scenario.servers[1].clone();
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(RESET));
    scenario.pass(SECOND);
    scenario.drain();
    scenario.connect(2);
    assert!(scenario.drain().contains(&Acted::Release(vec![2], 1)));
}

fn reconnect_without_a_pause(scenario: &mut Scenario, node: usize) {
    scenario.engine.handle_node(scenario.now, node, NodeEvent::Disconnected(RESET));
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(node);
    scenario.drain();
}

/// R3: what a server in quarantine says does not count, whatever it is.
#[test]
fn quarantined_refusals_do_not_count_either() {
    for said in [Reply::Nil, server_error(ServerErrorKind::WrongType)] {
        let mut scenario = young(Duration::ZERO);
        scenario.try_lock();
        scenario.drain();
        scenario.reply(0, said);
        let error = scenario.acquired().unwrap_err();
        assert!(error.is_unavailable());
        assert_eq!(error.nodes()[0].outcome, NodeOutcome::Quarantined);
    }
}

/// R32: what is forbidden is a key, or the script itself; who is refused may have any name.
#[test]
fn probe_that_may_not_touch_its_key_passes_and_a_user_named_key_does_not() {
    let refused = "NOPERM User keycloak has no permissions to run the 'eval' command";
    let foreign = "NOPERM this user has no permissions to access one of the keys used as arguments";
    for (text, state) in [(refused, NodeState::BackOff), (foreign, NodeState::Ready)] {
        let mut scenario = Scenario::guarded(1);
        scenario.engine.connect(scenario.now);
        scenario.drain();
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
        scenario.drain();
        for _ in 0..STEPS_BEFORE_PROBE {
            scenario.greet_once(0);
        }
        let error = ServerError { kind: ServerErrorKind::Permission, message: text.into() };
        scenario.greet_with(0, Reply::Error(error));
        assert_eq!(scenario.state(0), state, "{text}");
    }
}

// Flushes, of which the servers tell.

const OTHER: Marker = Marker { id: 2, micros: 2 };

/// One node with these settings, by whether a flush of it matters.
fn flushable() -> [(&'static str, Scenario, bool); 3] {
    let marked = |builder: muxlock::Builder| builder.flush_marker("alive");
    [
        ("guarded", Scenario::guarded(1).all_ready(), true),
        ("marked", Scenario::with(1, marked).all_ready(), true),
        ("neither", Scenario::ready(1), false),
    ]
}

/// R3: the notice stands in the stream where the flush was.
#[test]
fn grant_that_is_read_behind_the_notice_of_a_flush_does_not_count() {
    // Whether the SET was sent and whether it was answered before the notice.
    for (is_sent, is_answered) in [(true, true), (true, false), (false, false)] {
        for (settings, mut scenario, matters) in flushable() {
            scenario.try_lock();
            if is_sent {
                assert_eq!(scenario.drain(), [Acted::Set(vec![0], 1)]);
            }
            if is_answered {
                scenario.reply(0, Reply::Ok);
            }
            scenario.tell_flush(0);
            assert_eq!(scenario.state(0) == NodeState::Quarantined, matters);
            assert_eq!(scenario.drain().contains(&Acted::Marker(0)), matters);
            if !is_answered {
                scenario.reply(0, Reply::Ok);
            }
            let result = scenario.acquired();
            assert_eq!(result.is_ok(), is_answered || !matters, "{settings} {result:?}");
            if let Err(error) = result {
                assert_eq!(error.nodes()[0].outcome, NodeOutcome::Quarantined);
            }
        }
    }
}

/// What a young server said is of no use a minute later: it is asked again, once.
#[test]
fn handshake_that_is_read_late_is_repeated_for_a_server_that_was_young() {
    let table = [
        (SECOND, 60 * SECOND, true),
        (SECOND, NODE_TIMEOUT, false),
        (QUARANTINE, 60 * SECOND, false),
    ];
    for (uptime, idle, is_repeated) in table {
        let mut scenario = Scenario::guarded(1);
        scenario.servers[0].uptime = Some(uptime);
        scenario.engine.connect(scenario.now);
        scenario.drain();
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
        scenario.drain();
        scenario.now = scenario.now.after(idle);
        scenario.start_handshake(0);
        assert_eq!(!scenario.drain().is_empty(), is_repeated, "{uptime:?} {idle:?}");
        if is_repeated {
            assert_eq!(scenario.state(0), NodeState::Handshaking);
            scenario.servers[0].uptime = Some(uptime + idle);
            // Nobody reads those either.
            scenario.now = scenario.now.after(idle);
            scenario.start_handshake(0);
            assert_eq!(scenario.drain(), []);
        }
        let expected = (idle == NODE_TIMEOUT).then_some(QUARANTINE - uptime);
        assert_eq!(quarantine(&scenario, 0).map(|(_, left)| left), expected);
    }
}

/// R33: a handshake is a look from when it was asked for.
#[test]
fn server_whose_handshake_is_read_late_is_looked_at_before_the_first_set() {
    for (idle, is_looked_at) in [(SECOND - MS, false), (SECOND, true)] {
        let mut scenario = Scenario::guarded(1);
        scenario.engine.connect(scenario.now);
        scenario.drain();
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
        scenario.drain();
        scenario.now = scenario.now.after(idle);
        scenario.start_handshake(0);
        scenario.drain();
        scenario.try_lock();
        let acted = scenario.drain();
        let has_looked = acted.iter().any(|acted| matches!(acted, Acted::Role(_)));
        assert_eq!(has_looked, is_looked_at, "{acted:?}");
    }
}

/// R33: a server that does not say its role is not asked for it after a flush either.
#[test]
fn server_without_a_role_is_asked_for_the_marker_alone() {
    let mut scenario = Scenario::guarded(1);
    scenario.servers[0].replication = Replication::default();
    let mut scenario = scenario.all_ready();
    scenario.pass(QUARANTINE + SECOND);
    scenario.tell_flush(0);
    assert_eq!(scenario.drain(), [Acted::Marker(0)]);
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Flushed, NODE_TIMEOUT)));
    scenario.reply(0, Reply::Marker(MARKER));
    assert_eq!(scenario.state(0), NodeState::Ready);
}

/// R3: the flush of another database costs no more than the answers in between.
#[test]
fn node_votes_on_once_its_marker_is_found() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.tell_flush(0);
    assert_eq!(scenario.drain(), [Acted::Marker(0)]);
    scenario.try_lock();
    assert_eq!(scenario.drain(), [Acted::Set(vec![0], 1)], "it was sent in doubt");
    scenario.reply(0, Reply::Replication(scenario.servers[0].replication));
    assert_eq!(scenario.state(0), NodeState::Quarantined, "its role alone proves nothing");
    scenario.reply(0, Reply::Marker(MARKER));
    assert_eq!((scenario.state(0), quarantine(&scenario, 0)), (NodeState::Ready, None));
    scenario.reply(0, Reply::Ok);
    assert!(scenario.acquired().is_ok(), "it was executed behind the look at the marker");
    assert_eq!(scenario.engine.stats().quarantines, 0);
}

/// R3: nor does one that does not say who it is by now.
#[test]
fn marker_of_a_server_that_does_not_say_its_role_is_no_proof() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.tell_flush(0);
    scenario.drain();
    scenario.reply(0, server_error(ServerErrorKind::Busy));
    scenario.reply(0, Reply::Marker(MARKER));
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Flushed, QUARANTINE)));
}

/// R3, R33: nor does one that became a replica, or another one's copy.
#[test]
fn node_whose_role_has_changed_with_the_flush_is_connected_anew() {
    for (master, reason) in [(true, Unfit::Changed), (false, Unfit::Replica)] {
        let mut scenario = Scenario::guarded(1).all_ready();
        scenario.tell_flush(0);
        scenario.drain();
        scenario.servers[0].replication =
            Replication { master: Some(master), history: Some(7.into()), promoted: Some(true) };
        scenario.answer_marker(0);
        let status = scenario.engine.statuses().next().unwrap();
        assert_eq!(status.last_failure, Some(NodeOutcome::Unfit(reason)));
    }
}

/// R3: as long as any lock lives that it may have forgotten.
#[test]
fn node_whose_marker_is_not_found_is_quarantined_in_full() {
    let error = || server_error(ServerErrorKind::Permission);
    let table = [
        (Some(MARKER), Reply::Marker(OTHER)),
        (Some(MARKER), Reply::Nil),
        (Some(MARKER), error()),
        // Nobody knows which database it was.
        (None, Reply::Nil),
        (None, Reply::Marker(OTHER)),
    ];
    for (marker, reply) in table {
        let mut scenario = Scenario::guarded(1);
        scenario.markers[0] = marker;
        let mut scenario = scenario.all_ready();
        assert_eq!(quarantine(&scenario, 0), None);
        scenario.tell_flush(0);
        scenario.drain();
        scenario.reply(0, Reply::Replication(scenario.servers[0].replication));
        scenario.reply(0, reply.clone());
        let expected = Some((QuarantineCause::Flushed, QUARANTINE));
        assert_eq!(quarantine(&scenario, 0), expected, "{reply:?}");
        let mut notices = std::iter::from_fn(|| scenario.engine.poll_notice());
        let notice = Notice::Quarantined(QuarantineCause::Flushed);
        assert!(notices.any(|notice_of| notice_of == (0, notice)));
        scenario.pass(QUARANTINE - Duration::from_nanos(1));
        assert!(!is_granted(&mut scenario, 1), "{reply:?}");
        scenario.pass(Duration::from_nanos(1));
        assert!(is_granted(&mut scenario, 1), "{reply:?}");
        // The next one is compared with what was found.
        scenario.tell_flush(0);
        scenario.drain();
        scenario.reply(0, Reply::Replication(scenario.servers[0].replication));
        scenario.reply(0, reply.clone());
        let is_known = matches!(reply, Reply::Marker(_));
        assert_eq!(quarantine(&scenario, 0), expected.filter(|_| !is_known), "{reply:?}");
    }
}

/// R17: a plain SET is answered neither by a number nor by a marker, and a marker by neither.
#[test]
fn answer_to_another_command_ends_the_connection() {
    let unexpected = NodeOutcome::Protocol(ProtocolError::Unexpected);
    for reply in [Reply::Integer(1), Reply::Integer(0), Reply::Marker(MARKER)] {
        let mut scenario = Scenario::guarded(1).all_ready();
        scenario.try_lock();
        scenario.drain();
        scenario.reply(0, reply);
        let error = scenario.acquired().unwrap_err();
        assert_eq!(error.nodes()[0].outcome, unexpected);
    }
    for reply in [Reply::Integer(1), Reply::Ok, Reply::Status] {
        let mut scenario = Scenario::guarded(1).all_ready();
        scenario.tell_flush(0);
        scenario.drain();
        scenario.reply(0, Reply::Replication(scenario.servers[0].replication));
        scenario.reply(0, reply);
        let status = scenario.engine.statuses().next().unwrap();
        assert_eq!(status.last_failure, Some(unexpected));
    }
}

/// R3: a marker that was read before the second flush says nothing of it.
#[test]
fn marker_is_asked_for_again_if_another_flush_came_before_its_answer() {
    for is_changed in [false, true] {
        let mut scenario = Scenario::guarded(1).all_ready();
        scenario.tell_flush(0);
        assert_eq!(scenario.drain(), [Acted::Marker(0)]);
        scenario.tell_flush(0);
        scenario.tell_flush(0);
        assert_eq!(scenario.drain(), [], "it is asked");
        scenario.answer_marker(0);
        assert_eq!(scenario.state(0), NodeState::Quarantined);
        scenario.try_lock();
        assert_eq!(scenario.drain(), [Acted::Marker(0), Acted::Set(vec![0], 1)]);
        if is_changed {
            scenario.markers[0] = Some(OTHER);
        }
        scenario.answer_marker(0);
        let expected = is_changed.then_some((QuarantineCause::Flushed, QUARANTINE));
        assert_eq!(quarantine(&scenario, 0), expected);
        scenario.reply(0, Reply::Ok);
        assert_eq!(scenario.acquired().is_ok(), !is_changed, "it was sent behind the question");
        let asked = scenario.drain();
        assert!(!asked.contains(&Acted::Marker(0)), "it is not asked once more: {asked:?}");
    }
}

/// The connection ends in the middle of a handshake, of which so many steps were answered.
fn cut_short(scenario: &mut Scenario, steps: usize) {
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    scenario.pass(CONNECT_TIMEOUT + SECOND);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    (0..steps).for_each(|_| assert!(scenario.greet_once(0)));
}

/// R3: what was flushed while there was no connection, the marker shows.
#[test]
fn marker_of_the_same_process_is_compared_with_the_one_of_the_connection_before() {
    let flushed = Some((QuarantineCause::Flushed, QUARANTINE));
    let table = [
        (Some(MARKER), Some(MARKER), None),
        (Some(MARKER), Some(OTHER), flushed),
        (Some(MARKER), None, flushed),
        (None, None, None),
        (None, Some(OTHER), None),
    ];
    for (before, after, expected) in table {
        // Whether there is a connection in between whose handshake is not answered in full.
        for cut in [None, Some(1), Some(STEPS_BEFORE_PROBE)] {
            let mut scenario = Scenario::guarded(1);
            scenario.markers[0] = before;
            let mut scenario = scenario.all_ready();
            scenario.markers[0] = after;
            if let Some(steps) = cut {
                cut_short(&mut scenario, steps);
            }
            reconnect(&mut scenario, 0);
            let found = quarantine(&scenario, 0);
            assert_eq!(found, expected, "{before:?} {after:?} {cut:?}");
            // It is news once.
            scenario.pass(QUARANTINE);
            reconnect(&mut scenario, 0);
            assert_eq!(quarantine(&scenario, 0), None, "{before:?} {after:?} {cut:?}");
        }
    }
    // Another process has another marker, and its age.
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.restart(0, 1_000_000 * SECOND);
    scenario.markers[0] = Some(OTHER);
    reconnect(&mut scenario, 0);
    let left = QUARANTINE - CONNECT_TIMEOUT - SECOND;
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Restarted, left)));
}

/// R3: the end of a connection answers no question.
#[test]
fn node_that_was_in_doubt_when_its_connection_ended_is_judged_by_the_next() {
    let flushed = Some((QuarantineCause::Flushed, QUARANTINE));
    let table = [
        (Some(MARKER), Some(MARKER), None),
        (Some(MARKER), Some(OTHER), flushed),
        (None, None, flushed),
        (None, Some(OTHER), flushed),
    ];
    for (before, after, expected) in table {
        for cut in [None, Some(1), Some(STEPS_BEFORE_PROBE)] {
            let mut scenario = Scenario::guarded(1);
            scenario.markers[0] = before;
            let mut scenario = scenario.all_ready();
            scenario.tell_flush(0);
            scenario.markers[0] = after;
            if let Some(steps) = cut {
                cut_short(&mut scenario, steps);
            }
            reconnect(&mut scenario, 0);
            let found = quarantine(&scenario, 0);
            assert_eq!(found, expected, "{before:?} {after:?} {cut:?}");
        }
    }
}

fn marked(builder: muxlock::Builder) -> muxlock::Builder {
    builder.restart_guard(RestartGuard::Uptime).flush_marker("alive")
}

/// A marker that was written so long ago by the clock of the node.
fn written_before(scenario: &Scenario, age: Duration) -> Option<Marker> {
    let Reply::Time(time) = scenario.time(0) else { unreachable!("it is the time") };
    Some(Marker { id: 1, micros: (time - age).as_micros() as u64 })
}

/// R3: a client that connects later has heard of no flush; the setting is for it.
#[test]
fn young_marker_of_the_setting_is_waited_for() {
    let table = [
        (Some(Duration::ZERO), Some(QUARANTINE)),
        (Some(SECOND), Some(QUARANTINE - SECOND)),
        (Some(QUARANTINE - MS), Some(MS)),
        (Some(QUARANTINE), None),
        (Some(1_000 * QUARANTINE), None),
        // It could not be read or written.
        (None, Some(QUARANTINE)),
    ];
    for (age, left) in table {
        for guard in [RestartGuard::Uptime, RestartGuard::Off] {
            let configure = |builder| marked(builder).restart_guard(guard);
            let mut scenario = Scenario::with(1, configure);
            scenario.markers[0] = age.and_then(|age| written_before(&scenario, age));
            let scenario = scenario.all_ready();
            let expected = left.map(|left| (QuarantineCause::Flushed, left));
            assert_eq!(quarantine(&scenario, 0), expected, "{age:?} {guard:?}");
        }
        // Without the setting, nobody waits.
        let mut scenario = Scenario::guarded(1);
        scenario.markers[0] = age.and_then(|age| written_before(&scenario, age));
        assert_eq!(quarantine(&scenario.all_ready(), 0), None);
    }
}

/// R3: nobody knows the age of a marker at a server without a time, or of one that is to come.
#[test]
fn marker_of_unknown_age_is_waited_for_in_full() {
    let flushed = Some((QuarantineCause::Flushed, QUARANTINE));
    let mut scenario = Scenario::with(1, marked);
    let later = written_before(&scenario, Duration::ZERO);
    scenario.markers[0] = later.map(|it| Marker { micros: it.micros + 1_000_000, ..it });
    assert_eq!(quarantine(&scenario.all_ready(), 0), flushed);

    let mut scenario = Scenario::with(1, marked);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    (1..STEPS_BEFORE_SIGHTING).for_each(|_| assert!(scenario.greet_once(0)));
    scenario.greet_with(0, server_error(ServerErrorKind::Permission));
    scenario.start_handshake(0);
    assert_eq!(quarantine(&scenario, 0), flushed);
}

/// R20: what the latest reason asks for is no measure of what an earlier one does, whatever this
/// machine's own clock does in between.
#[test]
fn shorter_reason_cuts_no_longer_quarantine_short() {
    let mut scenario = Scenario::with(1, marked);
    scenario.servers[0].uptime = Some(Duration::ZERO);
    scenario.markers[0] = written_before(&scenario, QUARANTINE - 10 * SECOND);
    let mut scenario = scenario.all_ready();
    let mut left = QUARANTINE;
    let hour = 3_600 * SECOND;
    for jump in [Duration::ZERO, hour] {
        assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Restarted, left)), "{jump:?}");
        // The master's clock goes on as before.
        let nanos = scenario.now.after(jump).as_nanos();
        scenario.now = muxlock::Moment::with_jumps(nanos, jump.as_nanos() as u64);
        scenario.ahead[0] -= jump;
        reconnect(&mut scenario, 0);
        left -= CONNECT_TIMEOUT + SECOND;
    }
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Restarted, left)));
    assert_eq!(scenario.engine.stats().quarantines, 1, "what changes nothing is not counted");
    // What is longer is waited for.
    scenario.markers[0] = Some(OTHER);
    reconnect(&mut scenario, 0);
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Flushed, QUARANTINE)));
}

/// R32: what was flushed is asked for as soon as the server has promised to tell of flushes.
#[test]
fn notice_in_the_handshake_is_as_one_after_it() {
    for steps in 0..=STEPS_BEFORE_PROBE {
        for is_ours in [false, true] {
            let mut scenario = Scenario::guarded(1);
            scenario.try_lock();
            scenario.drain();
            scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
            scenario.drain();
            (0..steps).for_each(|_| assert!(scenario.greet_once(0)));
            scenario.tell_flush(0);
            if steps < 2 {
                let expected = NodeOutcome::Protocol(ProtocolError::Unexpected);
                let status = scenario.engine.statuses().next().unwrap();
                assert_eq!(status.last_failure, Some(expected), "nothing was promised yet");
                continue;
            }
            assert_eq!(scenario.drain(), []);
            if is_ours {
                scenario.markers[0] = Some(OTHER);
            }
            (steps..=STEPS_BEFORE_PROBE).for_each(|_| assert!(scenario.greet_once(0)));
            assert_eq!(scenario.state(0), NodeState::Quarantined, "{steps}");
            assert_eq!(scenario.drain(), [Acted::Set(vec![0], 1)], "it has waited");
            scenario.start_handshake(0);
            // What this client has not read before the flush may be younger than that.
            let is_seen = is_ours || steps < STEPS_BEFORE_PROBE;
            let expected = is_seen.then_some((QuarantineCause::Flushed, QUARANTINE));
            assert_eq!(quarantine(&scenario, 0), expected, "{steps}");
            scenario.reply(0, Reply::Ok);
            assert_eq!(scenario.acquired().is_ok(), !is_seen, "{steps}");
        }
    }
}

/// R3: a marker that stands there after the first of two flushes says nothing of that one.
#[test]
fn marker_that_is_read_between_two_notices_in_the_handshake_is_no_proof() {
    let mut scenario = Scenario::guarded(1);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    (1..STEPS_BEFORE_PROBE).for_each(|_| assert!(scenario.greet_once(0)));
    scenario.tell_flush(0);
    scenario.drain();
    assert!(scenario.greet_once(0), "its marker");
    scenario.tell_flush(0);
    for _ in 0..2 {
        scenario.drain();
        scenario.start_handshake(0);
    }
    assert_eq!(quarantine(&scenario, 0), Some((QuarantineCause::Flushed, QUARANTINE)));
}

/// R32: what a server has promised to one connection it has not promised to the next.
#[test]
fn server_that_tells_of_flushes_no_more_is_unfit_from_its_next_connection_on() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    scenario.pass(CONNECT_TIMEOUT);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    assert!(scenario.greet_once(0), "HELLO");
    scenario.greet_with(0, server_error(ServerErrorKind::Permission));
    scenario.start_handshake(0);
    let status = scenario.engine.statuses().next().unwrap();
    assert_eq!(status.last_failure, Some(NodeOutcome::Unfit(Unfit::NoNotices)));
}

/// R32: a server that tells of no flush does not vote, unless nobody wants to know of one.
#[test]
fn server_that_refuses_to_tell_of_flushes_is_unfit_where_they_matter() {
    let guarded = "redis://127.0.0.1:1";
    let forgone = "redis://127.0.0.1:1?notices=no";
    let off = "redis://127.0.0.1:1?restart_guard=off";
    let unfit = |reason| Some(NodeOutcome::Unfit(reason));
    let busy = ServerErrorKind::Busy;
    let table = [
        (guarded, ServerErrorKind::Permission, unfit(Unfit::NoNotices)),
        (guarded, ServerErrorKind::UnknownCommand, unfit(Unfit::NoNotices)),
        (forgone, ServerErrorKind::Permission, None),
        (forgone, ServerErrorKind::UnknownCommand, None),
        (off, ServerErrorKind::Permission, None),
        (off, ServerErrorKind::UnknownCommand, None),
        // It may tell of them later.
        (forgone, busy, Some(NodeOutcome::Server(busy))),
    ];
    for (url, kind, expected) in table {
        let mut scenario = Scenario::of_nodes([url]);
        scenario.engine.connect(scenario.now);
        scenario.drain();
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
        scenario.drain();
        scenario.greet_once(0);
        scenario.greet_with(0, server_error(kind));
        scenario.start_handshake(0);
        let status = scenario.engine.statuses().next().unwrap();
        let state = if expected.is_some() { NodeState::BackOff } else { NodeState::Ready };
        assert_eq!((status.state, status.last_failure), (state, expected), "{url} {kind}");
        if expected.is_none() {
            assert!(is_granted(&mut scenario, 1));
        }
    }
}

/// R33: what a handshake has judged may change while the connection stands.
#[test]
fn server_that_may_evict_from_now_on_gives_no_vote() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.servers[0].memory_max = Some(1);
    scenario.servers[0].evicts_nothing = Some(false);
    scenario.pass(SECOND - MS);
    assert!(is_granted(&mut scenario, 1), "nobody has looked");
    scenario.pass(20 * MS);
    scenario.try_lock();
    let acted = scenario.drain();
    assert!(matches!(acted[..], [Acted::Time(_), Acted::Role(_), Acted::Set(..)]), "{acted:?}");
    scenario.looked(acted);
    let evicts = NodeOutcome::Unfit(Unfit::Evicts);
    let status = scenario.engine.statuses().next().unwrap();
    assert_eq!((status.state, status.last_failure), (NodeState::BackOff, Some(evicts)));
    let error = scenario.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, evicts);
}

/// R33: nobody knows any more what a server is that forbids the question.
#[test]
fn server_that_forbids_the_look_is_connected_anew() {
    for (kind, is_kept) in [(ServerErrorKind::Permission, false), (ServerErrorKind::Busy, true)] {
        let mut scenario = Scenario::guarded(1).all_ready();
        scenario.pass(SECOND);
        scenario.try_lock();
        let acted = scenario.drain();
        assert!(matches!(acted[..], [Acted::Time(_), Acted::Role(_), Acted::Set(..)]), "{acted:?}");
        scenario.look([0]);
        scenario.reply(0, server_error(kind));
        assert_eq!(scenario.state(0) == NodeState::Ready, is_kept, "{kind:?}");
    }
}

/// R33: any of the keys that a server has evicted may have been a lock.
#[test]
fn server_that_has_evicted_keys_is_quarantined_in_full() {
    for (before, after, has_evicted) in [
        (Some(5), Some(6), true),
        (Some(5), Some(5), false),
        // It counts from zero again, since an operator has said so.
        (Some(5), Some(1), true),
        (Some(5), Some(0), false),
        (Some(5), None, false),
        (None, Some(6), false),
    ] {
        let looks: [fn(&mut Scenario); 2] = [
            |scenario| {
                scenario.pass(SECOND);
                assert_eq!(is_granted(scenario, 1), quarantine(scenario, 0).is_none());
            },
            |scenario| reconnect(scenario, 0),
        ];
        for look in looks {
            let mut scenario = Scenario::guarded(1);
            scenario.servers[0].evicted = before;
            let mut scenario = scenario.all_ready();
            assert_eq!(quarantine(&scenario, 0), None, "that was before");
            scenario.servers[0].evicted = after;
            look(&mut scenario);
            let expected = has_evicted.then_some((QuarantineCause::Evicted, QUARANTINE));
            assert_eq!(quarantine(&scenario, 0), expected, "{before:?} {after:?}");
            // It is looked at once a second, and news once.
            scenario.pass(QUARANTINE);
            assert!(is_granted(&mut scenario, 1), "{after:?}");
        }
    }
    // Another process has evicted its own keys.
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.restart(0, Duration::ZERO);
    scenario.servers[0].evicted = Some(9);
    reconnect(&mut scenario, 0);
    assert_eq!(quarantine(&scenario, 0).map(|(cause, _)| cause), Some(QuarantineCause::Restarted));
}

/// R3, R25: a copy that was extended in a time that does not count may be younger than what was
/// forgotten.
#[test]
fn extension_that_was_sent_in_quarantine_does_not_count_after_it() {
    for heal in [Heal::Off, Heal::On] {
        let mut scenario =
            Scenario::with(3, |it| it.restart_guard(RestartGuard::Uptime).heal(heal));
        scenario.servers[0].uptime = Some(30 * SECOND);
        let mut scenario = scenario.all_ready();
        let mut lease = scenario.locked();
        // It has long been in quarantine.
        let (_, left) = quarantine(&scenario, 0).unwrap();
        scenario.pass(left - MS);
        for counts in [false, true] {
            scenario.engine.extend(scenario.now, lease, TTL);
            let acted = scenario.drain();
            scenario.looked_by(&[1, 2], acted.clone());
            if !counts {
                scenario.pass(MS);
            }
            scenario.looked_by(&[0], acted);
            assert_eq!(scenario.state(0), NodeState::Ready);
            scenario.replies([0, 1], Reply::Integer(1));
            if !counts {
                scenario.nothing_done();
                scenario.reply(2, Reply::Integer(1));
            }
            let (extended, result) = scenario.extended();
            result.unwrap();
            lease = extended;
            let granted_by: Vec<_> = lease.granted_by().collect();
            assert_eq!(granted_by.contains(&0), counts, "{heal:?} {granted_by:?}");
            scenario.drain();
        }
    }
}

/// R3: a client that connects later hears of no flush, so it must hear of the doubt.
#[test]
fn lock_that_is_handed_over_in_doubt_brings_it_along() {
    for is_flushed in [false, true] {
        let (mut giver, mut taker) =
            (Scenario::guarded(3).all_ready(), Scenario::guarded(3).all_ready());
        let mut lease = giver.locked();
        if is_flushed {
            giver.tell_flush(0);
        }
        giver.engine.let_go(giver.now, &mut lease);
        taker.engine.extend(taker.now, lease, TTL);
        taker.drain_looked();
        taker.replies([0, 1], Reply::Integer(1));
        assert_eq!(taker.done().is_none(), is_flushed);
    }
}

/// R3: nor does the end of a connection answer the question for those that adopt the lock.
#[test]
fn lock_that_is_handed_over_before_the_next_handshake_ends_brings_the_doubt_along() {
    // How many steps of the next handshake are answered; none if it has not begun.
    for steps in [None, Some(0), Some(STEPS_BEFORE_PROBE)] {
        let (mut giver, mut taker) =
            (Scenario::guarded(3).all_ready(), Scenario::guarded(3).all_ready());
        let mut lease = giver.locked();
        giver.tell_flush(0);
        giver.engine.handle_node(giver.now, 0, NodeEvent::Disconnected(RESET));
        giver.drain();
        if let Some(steps) = steps {
            giver.pass(CONNECT_TIMEOUT);
            giver.engine.connect(giver.now);
            giver.drain();
            giver.engine.handle_node(giver.now, 0, NodeEvent::Connected);
            giver.drain();
            (0..steps).for_each(|_| assert!(giver.greet_once(0)));
        }
        giver.engine.let_go(giver.now, &mut lease);
        taker.engine.extend(taker.now, lease, TTL);
        taker.drain_looked();
        // It lasts for longer than the question.
        taker.now = taker.now.after(NODE_TIMEOUT);
        taker.replies([0, 1], Reply::Integer(1));
        assert!(taker.done().is_none(), "{steps:?}");
    }
}

/// R35: lists that differ by one node have no two quorums apart; lists that swap a node have.
#[test]
fn quorums_of_lists_that_differ_by_one_node_overlap() {
    for nodes in 1..64 {
        assert!(quorum(nodes) + quorum(nodes + 1) > nodes + 1, "{nodes}");
    }
    assert!(2 * quorum(3) <= 3 + 1, "one of three replaced: {{A,C}} and {{B,D}} are apart");
}

/// R37: behind a proxy that switches servers, each connection may be to another process.
#[test]
fn address_that_leads_to_another_process_each_time_does_not_vote_for_long() {
    let mut scenario = Scenario::guarded(1).all_ready();
    for _ in 0..3 {
        assert_eq!(scenario.state(0) == NodeState::Ready, scenario.now.as_nanos() == 1_000_000_000);
        scenario.restart(0, 1_000_000 * SECOND);
        reconnect(&mut scenario, 0);
        assert_eq!(
            quarantine(&scenario, 0).map(|(cause, _)| cause),
            Some(QuarantineCause::Restarted)
        );
    }
}

/// R31: nothing extends a lock by itself.
#[test]
fn lock_that_nobody_extends_ends() {
    let mut scenario = Scenario::guarded(1).all_ready();
    scenario.acquire(TTL, Patience::OneRound);
    scenario.drain();
    scenario.reply(0, Reply::Ok);
    let lease = scenario.acquired().unwrap();
    scenario.pass(TTL);
    assert_eq!(scenario.drain(), []);
    assert!(!lease.is_valid_at(scenario.now));
}
