//! Who holds a resource: every node is asked, and no answer is a vote.

use std::time::Duration;

use muxlock::proto::Reply;
use muxlock::{
    Cancelled, Done, Fingerprint, Holding, Inspection, NodeOutcome, NodeState, OpId, Phase,
    ProtocolError, Resource, ServerErrorKind,
};
use testbed::memory::{Acted, CONNECT_TIMEOUT, NODE_TIMEOUT, Scenario, server_error};

const ALL: [usize; 3] = [0, 1, 2];

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
    let mut nodes = scenario.engine.nodes();
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

#[test]
fn lost_connection_leaves_nothing_to_undo() {
    let mut scenario = Scenario::ready(3);
    inspect(&mut scenario);
    scenario.drain();
    let reset = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.handle_disconnected(scenario.now, 2, reset);
    scenario.reply(0, has("aa", -1));
    scenario.reply(1, has("aa", -1));
    let inspection = inspected(&mut scenario);
    assert_eq!(outcomes(&inspection)[2], reset);
    assert!(inspection.holder().is_some() && inspection.free_in().is_none());
    assert!(scenario.engine.nodes().all(|node| node.debts == 0));
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
    scenario.greet(0);
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
