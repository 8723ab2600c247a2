//! Rare schedules: two clients, masters that forget, and what one connection hides from the next.

use std::time::Duration;

use muxlock::proto::{Done, Fencing, NodeEvent, Patience, Reply};
use muxlock::settings::RestartGuard;
use muxlock::{Builder, KeepAlive};
use testbed::memory::{Acted, Scenario, TTL};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// These nodes answer what is asked about their clocks and roles.
fn looks(scenario: &mut Scenario, nodes: &[usize]) {
    let acted = scenario.drain();
    scenario.looked_by(nodes, acted);
}

/// Nothing else in the repository fails if `Engine::keep` forgets to adopt: a guest that keeps a
/// lock of another engine counts no copy that the giver was in doubt about.
#[test]
fn kept_lock_of_another_engine_brings_its_doubts() {
    let (mut giver, mut taker) =
        (Scenario::guarded(3).all_ready(), Scenario::guarded(3).all_ready());
    giver.acquire(TTL, Patience::OneRound);
    looks(&mut giver, &[0, 1]);
    giver.replies([0, 1], Reply::Ok); // node 2 has not answered
    let mut lease = giver.acquired().unwrap();
    giver.engine.let_go(giver.now, &mut lease);
    let id = taker.engine.keep(taker.now, lease, &KeepAlive::default().notice(SECOND));
    let acted = loop {
        let acted = taker.drain_looked();
        if !acted.is_empty() {
            break acted;
        }
        let due = taker.next_timeout().expect("a renewal is due");
        taker.pass(due.since(taker.now));
    };
    assert_eq!(acted, [Acted::Extend(vec![0, 1, 2], 1)]);
    taker.replies([0, 2], Reply::Integer(1));
    taker.nothing_done();
    taker.reply(1, Reply::Integer(1));
    assert!(matches!(taker.done(), Some(Done::Renewed(_))));
    assert_eq!(
        taker.engine.operations().kept(id).unwrap().granted_by().collect::<Vec<_>>(),
        [0, 1]
    );
}

/// A loss has the error of the last failed renewal, "if no renewal has succeeded since".
#[test]
fn error_of_a_renewal_is_forgotten_when_another_succeeds() {
    let mut scenario = Scenario::ready(3);
    let lease = scenario.locked();
    scenario.engine.keep(scenario.now, lease, &KeepAlive::default().notice(SECOND).renewals_max(1));
    let wait = |scenario: &mut Scenario| loop {
        let acted = scenario.drain();
        if !acted.is_empty() || scenario.engine.operations().has_done() {
            return acted;
        }
        let due = scenario.next_timeout().expect("a renewal is due");
        scenario.pass(due.since(scenario.now));
    };
    assert_eq!(wait(&mut scenario), [Acted::Extend(vec![0, 1, 2], 1)]);
    let busy = muxlock::error::ServerErrorKind::Busy;
    scenario.replies([0, 1, 2], testbed::memory::server_error(busy));
    scenario.nothing_done();
    assert_eq!(wait(&mut scenario), [Acted::Extend(vec![0, 1, 2], 1)]);
    scenario.replies([0, 1, 2], Reply::Integer(1));
    assert!(matches!(scenario.done(), Some(Done::Renewed(_))));
    assert_eq!(wait(&mut scenario), []);
    let Some(Done::Lost(_, loss)) = scenario.done() else { panic!("it is lost") };
    assert!(loss.error.is_none(), "{:?}", loss.error);
}

/// The votes of an ended round are overwritten by the next in its slot; until then they are stale.
#[test]
fn vote_of_an_earlier_round_is_not_reported_for_a_node_that_has_not_voted() {
    let mut scenario = Scenario::ready(3);
    let lease = scenario.locked(); // all granted
    scenario.engine.abandon(scenario.now, lease);
    scenario.drain();
    scenario.replies([0, 1, 2], Reply::Integer(1));
    scenario.try_lock();
    scenario.drain();
    scenario.replies([0, 1], Reply::Nil); // decided: node 2 has not answered
    let error = scenario.acquired().unwrap_err();
    assert_eq!(error.nodes()[2].outcome, muxlock::node::NodeOutcome::Pending);
}

/// R12: "If the old connection might still exist, the client repeats the release." The server did
/// not say who it was on the first connection, so that one may be to the process of the second.
#[test]
fn connection_to_a_process_that_was_not_named_may_still_exist_when_a_process_is_named() {
    let releases = |says_who_on_the_second: bool| {
        let mut scenario = Scenario::new(1);
        let run_id = scenario.servers[0].run_id.take();
        let mut scenario = scenario.all_ready();
        scenario.try_lock();
        assert_eq!(scenario.drain(), [Acted::Set(vec![0], 1)]);
        let reset = muxlock::node::NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(reset));
        assert!(scenario.acquired().is_err());
        if says_who_on_the_second {
            scenario.servers[0].run_id = run_id;
        }
        scenario.pass(MS);
        assert_eq!(scenario.drain(), [Acted::Close(0), Acted::Connect(0)]);
        scenario.connect(0);
        let mut releases = 0;
        for _ in 0..20 {
            for acted in scenario.drain() {
                assert_eq!(acted, Acted::Release(vec![0], 1));
                releases += 1;
                scenario.reply(0, Reply::Integer(0));
            }
            scenario.pass(50 * MS);
        }
        releases
    };
    assert_eq!(releases(false), 2);
    assert_eq!(releases(true), 2, "the SET may run after the only release");
}

/// R34: more processes have left an address than are remembered by name.
#[test]
fn process_whose_departure_was_forgotten_does_not_vote_at_another_address() {
    let slow = |builder: Builder| {
        let builder = builder.restart_guard(RestartGuard::Uptime).max_ttl(600 * SECOND);
        builder.connect_timeout(60 * SECOND)
    };
    let mut scenario = Scenario::with(3, slow);
    let reset = muxlock::node::NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(0);
    let first = scenario.servers[0].run_id.clone();
    for i in 0..66 {
        scenario.servers[0].run_id = Some(format!("{i}").into());
        scenario.pass(SECOND / 2);
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(reset));
        while !scenario.drain().contains(&Acted::Connect(0)) {
            scenario.pass(MS);
        }
        scenario.connect(0);
    }
    scenario.servers[1].run_id = first;
    scenario.connect(1);
    assert_eq!(scenario.state(1), muxlock::node::NodeState::Quarantined);
}

/// What one connection hides is looked at again on the next.
#[test]
fn clock_and_role_that_were_hidden_are_looked_at_when_another_connection_shows_them() {
    let mut scenario = Scenario::guarded(1);
    let forbidden = || testbed::memory::server_error(muxlock::error::ServerErrorKind::Permission);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    scenario.greet_once(0); // `HELLO`
    scenario.greet_once(0); // tracking
    (0..6).for_each(|_| scenario.greet_with(0, forbidden())); // five sections, and the time
    scenario.start_handshake(0);
    scenario.pass(MS);
    scenario.try_lock();
    assert_eq!(scenario.drain(), [Acted::Set(vec![0], 1)]);
    scenario.reply(0, Reply::Ok);
    assert!(scenario.acquired().is_err(), "it is in quarantine");
    scenario.drain();
    scenario.reply(0, Reply::Integer(1));
    let reset = muxlock::node::NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(reset));
    scenario.pass(MS);
    assert_eq!(scenario.drain(), [Acted::Close(0), Acted::Connect(0)]);
    scenario.connect(0);
    scenario.pass(SECOND);
    scenario.try_lock();
    let looks = [Acted::Time(vec![0]), Acted::Role(vec![0]), Acted::Set(vec![0], 2)];
    assert_eq!(scenario.drain(), looks);
}

/// R12: "On the next connection to the same process, the client first kills the old connection."
/// One connection on which the server did not name its process makes no difference.
#[test]
fn old_connection_is_killed_although_the_process_was_not_named_in_between() {
    for is_named_in_between in [true, false] {
        let mut scenario = Scenario::ready(3);
        let run_id = scenario.servers[2].run_id.clone();
        scenario.try_lock();
        scenario.drain();
        scenario.replies([0, 1], Reply::Ok); // node 2 has not answered
        let lease = scenario.acquired().unwrap();
        let reset = muxlock::node::NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
        let mut killed = false;
        for is_named in [is_named_in_between, true] {
            scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(reset));
            while !scenario.drain().contains(&Acted::Connect(2)) {
                scenario.pass(MS);
            }
            scenario.servers[2].run_id = run_id.clone().filter(|_| is_named);
            scenario.connect(2);
            // The answer to the kill is lost with the connection.
            killed = scenario.drain().contains(&Acted::Kill(2, 3));
        }
        assert!(killed, "{is_named_in_between}");
        scenario.engine.abandon(scenario.now, lease);
    }
}

/// R33: "the client quarantines a promoted replica for the full time, even if the promotion came
/// while it was connected". Node 2 becomes a replica of node 0, gets its data, and is promoted
/// again, all on the same connections. So it forgets one client's vote, and has the other's token,
/// which it has refused before.
#[test]
fn copy_that_a_promoted_replica_brought_does_not_count_for_an_extension() {
    let make = || {
        let make =
            |builder: Builder| builder.restart_guard(RestartGuard::Uptime).node_timeout(5 * SECOND);
        Scenario::with(3, make).all_ready()
    };
    let (mut ours, mut other) = (make(), make());
    // The other client: node 2 grants, and what is sent to node 1 is on its way.
    other.acquire(10 * SECOND, Patience::OneRound);
    looks(&mut other, &[0, 1, 2]);
    other.reply(2, Reply::Ok);
    // Ours: nodes 0 and 1 grant, node 2 refuses. The other's command to node 0 comes later.
    ours.acquire(2 * SECOND, Patience::OneRound);
    looks(&mut ours, &[0, 1, 2]);
    ours.reply(2, Reply::Nil);
    ours.replies([0, 1], Reply::Ok);
    let lease = ours.acquired().unwrap();
    other.reply(0, Reply::Nil);
    // Node 2 has the data of node 0 now.
    let synced = muxlock::proto::Replication {
        master: Some(true),
        history: Some(7.into()),
        promoted: Some(true),
    };
    (ours.servers[2].replication, other.servers[2].replication) = (synced, synced);
    let _ = [&mut ours, &mut other].map(|client| client.pass(1_900 * MS));
    ours.engine.extend(ours.now, lease, 2 * SECOND);
    looks(&mut ours, &[0, 1, 2]);
    ours.replies([0, 2], Reply::Integer(1)); // what is sent to node 1 is late
    let extended = ours.done();
    // The key on node 1 ends, and the other client's SET arrives there.
    let _ = [&mut ours, &mut other].map(|client| client.pass(150 * MS));
    other.reply(1, Reply::Ok);
    let others = other.acquired().unwrap();
    assert!(others.is_valid_at(other.now));
    if let Some(Done::Extended(lease, Ok(()))) = extended {
        assert!(!lease.is_valid_at(ours.now), "two holders at one moment");
    }
}

/// R34: it must not be counted for a lock that it was counted for at its old address, even if the
/// quarantine that it had there is nearly over.
#[test]
fn process_that_moves_waits_in_full_though_it_waited_at_its_old_address() {
    let mut scenario = Scenario::guarded(3);
    scenario.servers[0].uptime = Some(30 * SECOND); // of 31.3 s
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(0);
    assert_eq!(scenario.state(0), muxlock::node::NodeState::Quarantined);
    let reset = muxlock::node::NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(reset));
    scenario.drain();
    scenario.servers[1].run_id = scenario.servers[0].run_id.clone();
    scenario.connect(1);
    let quarantine = scenario.engine.statuses().nth(1).unwrap().quarantine.unwrap();
    assert!(quarantine.ready_in > 31 * SECOND, "{quarantine:?}");
}

/// What is under way for another lock puts no node in doubt for the one that is handed over.
#[test]
fn lock_that_is_handed_over_is_doubted_for_its_own_commands_only() {
    let (mut giver, mut taker) =
        (Scenario::guarded(3).all_ready(), Scenario::guarded(3).all_ready());
    giver.acquire(TTL, Patience::OneRound);
    looks(&mut giver, &[0, 1, 2]);
    giver.replies([0, 1, 2], Reply::Ok);
    let mut lease = giver.acquired().unwrap();
    let other = muxlock::Resource::new("other").unwrap();
    giver.engine.acquire(giver.now, other, TTL, Patience::OneRound, Fencing::Off).unwrap();
    giver.drain();
    giver.engine.let_go(giver.now, &mut lease);
    taker.engine.extend(taker.now, lease, TTL);
    looks(&mut taker, &[0, 1, 2]);
    taker.replies([0, 1], Reply::Integer(1));
    let (lease, result) = taker.extended();
    result.unwrap();
    assert_eq!(lease.granted_by().count(), 2);
}
