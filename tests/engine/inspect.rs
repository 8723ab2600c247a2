//! Who holds a resource: every node is asked, and no answer is a vote.

use std::time::Duration;

use muxlock::error::{ProtocolError, ServerErrorKind};
use muxlock::inspection::{Holding, Inspection};
use muxlock::node::{NodeOutcome, NodeState, Phase, ServerCommand, Unfit};
use muxlock::proto::{Cancelled, Done, NodeEvent, OpId, Reply};
use muxlock::{Fingerprint, Resource};
use testbed::memory::{Acted, CONNECT_TIMEOUT, NODE_TIMEOUT, Scenario, server_error};

const ALL: [usize; 3] = [0, 1, 2];
/// The steps of a handshake before the last one.
const STEPS: usize = 8;

fn has(holder: &str, left_ms: i64) -> Reply {
    Reply::Holding(Holding::new(Fingerprint::new(holder.as_bytes()), left_ms))
}

fn inspect(scenario: &mut Scenario) -> OpId {
    let resource = Resource::new("invoice:42").unwrap();
    scenario.engine.inspect(scenario.now, resource).unwrap()
}

#[track_caller]
fn inspected(scenario: &mut Scenario) -> Inspection {
    match scenario.done() {
        Some(Done::Inspected(inspection)) => inspection,
        other => panic!("{other:?}"),
    }
}

fn outcomes(inspection: &Inspection) -> Vec<NodeOutcome> {
    inspection.nodes().iter().map(|node| node.outcome).collect()
}

/// Nothing is left of it.
fn is_over(scenario: &Scenario) {
    let shown = format!("{:?}", scenario.engine);
    assert!(shown.contains("operations: 0, rounds: 0"), "{shown}");
}

#[test]
fn every_node_is_waited_for() {
    let mut scenario = Scenario::ready(3);
    inspect(&mut scenario);
    assert_eq!(scenario.drain(), [Acted::Inspect(ALL.to_vec())]);
    scenario.reply(0, has("aa", 500));
    scenario.reply(2, has("aa", 700));
    scenario.nothing_done();
    scenario.reply(1, Reply::Integer(0));
    let inspection = inspected(&mut scenario);
    assert_eq!(outcomes(&inspection), [NodeOutcome::Held, NodeOutcome::Absent, NodeOutcome::Held]);
    assert_eq!(inspection.holder().unwrap().as_bytes(), b"aa");
    assert_eq!(inspection.free_in(), Some(Duration::from_millis(500)));
    let left = inspection.nodes()[2].holding.unwrap().expires_in();
    assert_eq!(left, Some(Duration::from_millis(700)));
    assert!(inspection.nodes()[1].holding.is_none());
    assert_eq!(scenario.drain(), [], "there is nothing to release");
    let mut nodes = scenario.engine.statuses();
    assert!(nodes.all(|node| node.last_outcome.is_none()), "it was no vote");
    drop(nodes);
    is_over(&scenario);
}

#[test]
fn node_that_says_nothing_is_waited_for_until_its_timeout() {
    let mut scenario = Scenario::ready(3);
    inspect(&mut scenario);
    scenario.drain();
    scenario.reply(0, Reply::Integer(0));
    scenario.reply(1, server_error(ServerErrorKind::WrongType));
    scenario.pass(NODE_TIMEOUT);
    let inspection = inspected(&mut scenario);
    let expected = [NodeOutcome::Absent, NodeOutcome::Held, NodeOutcome::TimedOut(Phase::Reply)];
    assert_eq!(outcomes(&inspection), expected);
    assert!(inspection.nodes()[1].holding.is_none() && inspection.holder().is_none());
    // The late answer is for no operation.
    scenario.reply(2, has("aa", 500));
    scenario.nothing_done();
    is_over(&scenario);
}

/// What a node says after its timeout is of another moment than what the others have said.
#[test]
fn answer_after_the_timeout_is_not_reported() {
    let mut scenario = Scenario::new(3);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(0);
    scenario.connect(1);
    inspect(&mut scenario);
    scenario.drain();
    scenario.pass(NODE_TIMEOUT);
    scenario.reply(0, has("aa", 500));
    scenario.nothing_done();
    scenario.connect(2);
    scenario.drain();
    scenario.reply(2, Reply::Integer(0));
    let inspection = inspected(&mut scenario);
    let late = NodeOutcome::TimedOut(Phase::Reply);
    assert_eq!(outcomes(&inspection), [late, late, NodeOutcome::Absent]);
    assert_eq!(inspection.nodes()[0].holding, None);
}

#[test]
fn lost_connection_leaves_nothing_to_undo() {
    let mut scenario = Scenario::ready(3);
    inspect(&mut scenario);
    scenario.drain();
    let reset = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(reset));
    scenario.reply(0, has("aa", -1));
    scenario.reply(1, has("aa", -1));
    let inspection = inspected(&mut scenario);
    assert_eq!(outcomes(&inspection)[2], reset);
    assert!(inspection.holder().is_some() && inspection.free_in().is_none());
    assert!(scenario.engine.statuses().all(|node| node.pending_releases == 0));
    is_over(&scenario);
}

#[test]
fn node_in_quarantine_says_what_it_has() {
    let mut scenario = Scenario::guarded(3);
    scenario.servers.iter_mut().for_each(|server| server.uptime = Some(Duration::ZERO));
    let mut scenario = scenario.all_ready();
    assert!(ALL.into_iter().all(|node| scenario.state(node) == NodeState::Quarantined));
    inspect(&mut scenario);
    assert_eq!(scenario.drain(), [Acted::Inspect(ALL.to_vec())]);
    let uncounted = scenario.engine.stats().uncounted;
    scenario.replies(ALL, has("aa", 500));
    assert!(inspected(&mut scenario).holder().is_some());
    assert_eq!(scenario.engine.stats().uncounted, uncounted);
    is_over(&scenario);
}

#[test]
fn answer_to_another_question_ends_the_connection() {
    let mut scenario = Scenario::ready(3);
    inspect(&mut scenario);
    scenario.drain();
    scenario.replies([0, 1], Reply::Integer(0));
    scenario.reply(2, Reply::Ok);
    let inspection = inspected(&mut scenario);
    let unexpected = NodeOutcome::Protocol(ProtocolError::Unexpected);
    assert_eq!(outcomes(&inspection)[2], unexpected);
    assert_eq!(scenario.drain(), [Acted::Close(2)]);
    is_over(&scenario);
    // A lock's command is not answered with what a node has.
    scenario.try_lock();
    scenario.drain();
    scenario.reply(0, has("aa", 1));
    assert_eq!(scenario.state(0), NodeState::BackOff);
}

#[test]
fn nodes_that_are_not_connected_are_waited_for_within_limits() {
    let mut scenario = Scenario::new(3);
    inspect(&mut scenario);
    let acted = scenario.drain();
    assert_eq!(acted, ALL.map(Acted::Connect));
    scenario.connect(0);
    scenario.start_handshake(0);
    assert_eq!(scenario.drain(), [Acted::Inspect(vec![0])]);
    scenario.reply(0, Reply::Integer(0));
    scenario.nothing_done();
    scenario.pass(CONNECT_TIMEOUT + NODE_TIMEOUT);
    let inspection = inspected(&mut scenario);
    assert_eq!(outcomes(&inspection)[0], NodeOutcome::Absent);
    assert!(outcomes(&inspection)[1..].iter().all(NodeOutcome::is_failure), "{inspection}");
    scenario.drain();
    is_over(&scenario);
}

#[test]
fn cancelled_inspection_is_not_reported() {
    let mut scenario = Scenario::ready(3);
    let op = inspect(&mut scenario);
    scenario.drain();
    scenario.reply(0, Reply::Integer(0));
    assert!(matches!(scenario.engine.cancel(scenario.now, op), Cancelled::Inspection));
    scenario.replies([1, 2], has("aa", 500));
    scenario.nothing_done();
    is_over(&scenario);
}

/// Connects, answers the handshake but for its last step, and names what is missing there.
fn greet_without(scenario: &mut Scenario, node: usize, command: ServerCommand) {
    scenario.engine.handle_node(scenario.now, node, NodeEvent::Connected);
    scenario.drain();
    (0..STEPS).for_each(|_| assert!(scenario.greet_once(node)));
    scenario.greet_with(node, Reply::Integer(command as i64 + 1));
}

/// R32. A user that may only look is refused every lock, and told who holds one.
#[test]
fn server_that_lacks_a_command_is_only_asked_who_holds_a_lock() {
    let mut scenario = Scenario::new(3);
    inspect(&mut scenario);
    scenario.drain();
    let missing = NodeOutcome::Unfit(Unfit::MissingCommand(ServerCommand::Pexpire));
    for node in ALL {
        greet_without(&mut scenario, node, ServerCommand::Pexpire);
        assert_eq!(scenario.drain(), [Acted::Inspect(vec![node])]);
        scenario.reply(node, has("aa", 500));
    }
    assert_eq!(outcomes(&inspected(&mut scenario)), [NodeOutcome::Held; 3]);
    assert_eq!(scenario.engine.nodes().ready(), 0);
    assert!(scenario.engine.statuses().all(|node| node.last_failure == Some(missing)));
    // The connection is kept for the next one.
    inspect(&mut scenario);
    assert_eq!(scenario.drain(), [Acted::Inspect(ALL.to_vec())]);
    scenario.replies(ALL, Reply::Integer(0));
    assert_eq!(outcomes(&inspected(&mut scenario)), [NodeOutcome::Absent; 3]);
    // A lock is not sent there: the server is asked again what it has.
    scenario.try_lock();
    let acted = scenario.drain();
    assert!(acted.contains(&Acted::Close(0)) && acted.contains(&Acted::Connect(0)), "{acted:?}");
    assert!(!acted.iter().any(|acted| matches!(acted, Acted::Set(..))), "{acted:?}");
    for node in 0..2 {
        greet_without(&mut scenario, node, ServerCommand::Pexpire);
    }
    let error = scenario.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, missing, "{error}");
    is_over(&scenario);
}

/// What waits beside the question fails, and the question is asked.
#[test]
fn lock_that_waits_beside_a_question_is_refused() {
    let mut scenario = Scenario::new(1);
    scenario.try_lock();
    inspect(&mut scenario);
    scenario.drain();
    greet_without(&mut scenario, 0, ServerCommand::Del);
    assert_eq!(scenario.drain(), [Acted::Inspect(vec![0])]);
    let error = scenario.acquired().unwrap_err();
    let missing = NodeOutcome::Unfit(Unfit::MissingCommand(ServerCommand::Del));
    assert_eq!(error.nodes()[0].outcome, missing, "{error}");
    // While an answer is owed, a lock does not take it away.
    scenario.try_lock();
    assert!(scenario.acquired().is_err());
    assert_eq!(scenario.drain(), []);
    scenario.reply(0, has("aa", 500));
    assert_eq!(outcomes(&inspected(&mut scenario)), [NodeOutcome::Held]);
    // A silent one is no better than another.
    inspect(&mut scenario);
    assert_eq!(scenario.drain(), [Acted::Inspect(vec![0])]);
    scenario.pass(NODE_TIMEOUT);
    assert_eq!(outcomes(&inspected(&mut scenario)), [NodeOutcome::TimedOut(Phase::Reply)]);
    scenario.pass(Duration::from_secs(10));
    assert_eq!(scenario.drain()[0], Acted::Close(0));
}
