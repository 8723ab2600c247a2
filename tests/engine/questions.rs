//! What an event loop asks the engine: whose turn it is, for how long to wait, and how much to do
//! before others have their turn.

use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::node::{NodeOutcome, NodeState, Phase, Unfit};
use muxlock::proto::{
    Done, Fencing, Grant, Node, NodeEvent, Notice, OpId, Patience, ReleaseHow, Reply,
};
use muxlock::{Moment, Resource};
use testbed::memory::{Acted, CONNECT_TIMEOUT, NODE_TIMEOUT, Scenario, TTL, server_error};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const ALL: [usize; 3] = [0, 1, 2];
const RESET: NodeOutcome = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
const REFUSED: NodeOutcome = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionRefused);
/// As in `proto/mod.rs`.
const WORK_PER_ITERATION_MAX: usize = 512;
/// As in `proto/nodes/node/pipeline.rs`.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// As in `proto/nodes/node/pipeline.rs`.
const QUEUED_COMMANDS_MAX: usize = 8_192;

/// Whether the first connection is lost then.
fn answer_beside(scenario: &mut Scenario, now: Moment, node: usize) -> bool {
    let is_lost = scenario.engine.node(node).is_lost_if_another_answers();
    scenario.engine.handle_node(now, node, NodeEvent::AnsweredBeside);
    is_lost
}

#[test]
fn results_are_taken_one_by_one_in_any_order() {
    let mut scenario = Scenario::ready(3);
    let lease = scenario.locked();
    assert!(!scenario.engine.operations().has_done());
    assert_eq!(scenario.engine.operations().is_release_next(), None);
    let release = scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
    let sets = [(); 3].map(|()| scenario.try_lock());
    assert!(
        scenario.engine.operations().is_release(release)
            && !scenario.engine.operations().is_release(sets[0])
    );
    assert!(scenario.engine.take_done(scenario.now, release).is_none(), "it runs");
    scenario.drain();
    scenario.replies(ALL, Reply::Integer(1));
    assert!(scenario.engine.operations().has_done());
    assert_eq!(scenario.engine.operations().is_release_next(), Some(true));
    for _ in sets {
        scenario.replies(ALL, Reply::Ok);
    }
    let (engine, now) = (&mut scenario.engine, scenario.now);
    assert_eq!(
        engine.operations().done().collect::<Vec<_>>(),
        [release, sets[0], sets[1], sets[2]]
    );
    // From the middle, from the front, and twice.
    assert!(matches!(engine.take_done(now, sets[1]), Some(Done::Acquired(Ok(_)))));
    assert!(engine.take_done(now, sets[1]).is_none());
    assert_eq!(engine.operations().done().collect::<Vec<_>>(), [release, sets[0], sets[2]]);
    assert!(matches!(engine.take_done(now, release), Some(Done::Released(Ok(_)))));
    assert_eq!(engine.operations().is_release_next(), Some(false));
    assert!(!engine.operations().is_release(release), "it is over");
    assert!(matches!(engine.take_done(now, sets[0]), Some(Done::Acquired(Ok(_)))));
    assert!(matches!(engine.take_done(now, sets[2]), Some(Done::Acquired(Ok(_)))));
    assert!(!engine.operations().has_done());
}

#[test]
fn time_is_told_without_anything_else() {
    let mut scenario = Scenario::ready(3);
    let later = scenario.now.after(MS);
    scenario.engine.advance(later);
    assert_eq!(scenario.engine.last_now(), later);
}

#[test]
fn node_is_open_while_it_is_ready_and_takes_more() {
    let mut scenario = Scenario::ready(3);
    let is_open = |scenario: &Scenario, node: usize| {
        scenario.engine.nodes().get(node).is_some_and(Node::is_open)
    };
    let open = |scenario: &Scenario| [0, 1, 2, 3].map(|node| is_open(scenario, node));
    assert_eq!(open(&scenario), [true, true, true, false]);
    scenario.engine.handle_node(scenario.now, 1, NodeEvent::Blocked);
    assert_eq!(open(&scenario), [true, false, true, false]);
    scenario.engine.handle_node(scenario.now, 1, NodeEvent::Writable);
    assert_eq!(open(&scenario), [true, true, true, false]);
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(RESET));
    assert_eq!(open(&scenario), [true, true, false, false]);
}

/// A millisecond more or less matters where an operation ends, and where the node timeout is short.
#[test]
fn timer_of_an_operation_is_precise_and_a_long_node_timeout_is_not() {
    let mut scenario = Scenario::ready(3);
    scenario.try_lock();
    scenario.drain();
    scenario.next_timeout();
    assert!(!scenario.engine.is_precise(), "the node timeout comes first");
    let mut scenario = Scenario::ready(3);
    let patience = scenario.now.after(NODE_TIMEOUT / 2);
    scenario.acquire(TTL, Patience::Until(patience));
    scenario.drain();
    assert_eq!(scenario.next_timeout(), Some(patience));
    assert!(scenario.engine.is_precise());
    for (timeout, is_precise) in [(10 * MS - MS / 1_000, true), (10 * MS, false), (11 * MS, false)]
    {
        let scenario = Scenario::with(3, |builder| builder.node_timeout(timeout));
        assert_eq!(scenario.engine.is_precise(), is_precise, "{timeout:?}");
    }
}

#[test]
fn nodes_share_the_replies_of_a_turn() {
    for (nodes, replies) in [(1, 3_072), (3, 1_024), (5, 614)] {
        assert_eq!(Scenario::new(nodes).engine.replies_per_iteration(), replies);
    }
}

#[test]
fn nodes_that_are_ready_or_may_soon_be_are_counted() {
    let mut scenario = Scenario::new(3);
    let counts =
        |scenario: &Scenario| (scenario.engine.nodes().ready(), scenario.engine.nodes().hopeful());
    assert_eq!(counts(&scenario), (0, 3));
    scenario.engine.connect(scenario.now);
    scenario.drain();
    for node in ALL {
        scenario.connect(node);
    }
    assert_eq!(counts(&scenario), (3, 3));
    for node in [1, 2] {
        scenario.engine.handle_node(scenario.now, node, NodeEvent::Disconnected(RESET));
        assert_eq!(counts(&scenario), (3 - node, 3 - node));
    }
}

#[test]
fn node_that_never_voted_or_failed_says_so() {
    let mut scenario = Scenario::ready(3);
    let said = |scenario: &Scenario| {
        let status = scenario.engine.statuses().next().unwrap();
        (status.last_outcome.map(|(outcome, _)| outcome), status.last_failure)
    };
    assert_eq!(said(&scenario), (None, None));
    let _ = scenario.locked();
    assert_eq!(said(&scenario), (Some(NodeOutcome::Granted), None));
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    assert_eq!(said(&scenario), (Some(NodeOutcome::Granted), Some(RESET)));
}

/// A server that is full may say so before it was asked anything.
#[test]
fn error_before_the_first_command_is_the_servers_word() {
    let mut scenario = Scenario::new(1);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    let full = ServerErrorKind::MaxClients;
    scenario.engine.handle_reply(scenario.now, 0, server_error(full));
    let status = scenario.engine.statuses().next().unwrap();
    assert_eq!(status.last_failure, Some(NodeOutcome::Server(full)));
    assert!(status.last_message.is_some());
}

#[test]
fn latency_is_that_of_replies_that_are_read_in_time() {
    let mut scenario = Scenario::ready(1);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::ReadingLate { since: None });
    for (is_in_time, latency) in [(false, Duration::ZERO), (true, MS), (true, MS + MS * 7 / 8)] {
        if is_in_time {
            scenario.engine.handle_node(scenario.now, 0, NodeEvent::ReadingInTime);
        }
        scenario.try_lock();
        scenario.drain();
        scenario.now = scenario.now.after(8 * MS);
        scenario.reply(0, Reply::Ok);
        drop(scenario.acquired().unwrap());
        assert_eq!(scenario.engine.statuses().next().unwrap().latency, Some(latency));
    }
}

/// What was there before its command, or only after the node's timeout, says nothing.
#[test]
fn announcement_that_cannot_be_that_of_an_answer_is_no_latency() {
    let late = NODE_TIMEOUT + MS;
    for (after, latency) in [(8 * MS, MS), (NODE_TIMEOUT, NODE_TIMEOUT / 8), (late, Duration::ZERO)]
    {
        let mut scenario = Scenario::ready(1);
        scenario.try_lock();
        scenario.drain();
        let announced = scenario.now.after(after);
        scenario.engine.handle_node(
            scenario.now,
            0,
            NodeEvent::ReadingLate { since: Some(announced) },
        );
        assert_eq!(scenario.engine.statuses().next().unwrap().latency, Some(latency));
    }
    let mut scenario = Scenario::ready(1);
    scenario.try_lock();
    scenario.drain();
    scenario.now = scenario.now.after(8 * MS);
    scenario.reply(0, Reply::Ok);
    drop(scenario.acquired().unwrap());
    let before = scenario.now;
    scenario.now = scenario.now.after(MS);
    scenario.try_lock();
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::ReadingLate { since: Some(before) });
    assert_eq!(scenario.engine.statuses().next().unwrap().latency, Some(MS));
}

/// R34.
#[test]
fn node_at_the_address_of_another_says_of_which() {
    let mut scenario = Scenario::ready(2);
    assert_eq!(scenario.engine.nodes().duplicates(), None);
    scenario.engine.handle_node(scenario.now, 1, NodeEvent::Duplicate { of: 0 });
    let status = scenario.engine.statuses().nth(1).unwrap();
    assert_eq!(status.last_failure, Some(NodeOutcome::Unfit(Unfit::Duplicate)));
    assert_eq!(status.state, NodeState::BackOff);
    let silent = Notice::Silent(NodeOutcome::Unfit(Unfit::Duplicate));
    assert_eq!(scenario.engine.poll_notice(), Some((1, silent)));
    (0..99)
        .for_each(|_| scenario.engine.handle_node(scenario.now, 1, NodeEvent::Duplicate { of: 0 }));
    assert!(!scenario.engine.nodes().has_notices() && scenario.engine.poll_notice().is_none());
    let nodes: Vec<_> = scenario.engine.statuses().map(|node| node.address).collect();
    let error = scenario.engine.nodes().unavailable(scenario.engine.last_now());
    assert_eq!(error.nodes()[1].message, Some(nodes[0].clone()));

    let mut scenario = Scenario::ready(3);
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Duplicate { of: 1 });
    assert_eq!(scenario.engine.nodes().duplicates(), Some((1, 2)));
}

/// The operator hears when a node stops voting and when it votes again, and nothing in between.
#[test]
fn node_that_stops_voting_is_reported_once() {
    let mut scenario = Scenario::guarded(3).all_ready();
    let notices = |scenario: &mut Scenario| -> Vec<(usize, Notice)> {
        std::iter::from_fn(|| scenario.engine.poll_notice()).collect()
    };
    assert_eq!(notices(&mut scenario), [], "all is well from the start");
    // A connection that is closed while nothing is asked is no news; that it cannot be made is.
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(RESET));
    assert_eq!(notices(&mut scenario), []);
    let refused = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionRefused);
    for _ in 0..9 {
        while !scenario.drain().contains(&Acted::Connect(2)) {
            scenario.pass(MS);
        }
        scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(refused));
    }
    assert_eq!(notices(&mut scenario), [(2, Notice::Silent(refused))]);
    // It comes back, without what it knew: its votes do not count yet.
    scenario.restart(2, Duration::ZERO);
    while !scenario.drain().contains(&Acted::Connect(2)) {
        scenario.pass(MS);
    }
    scenario.connect(2);
    scenario.drain();
    assert_eq!(scenario.state(2), NodeState::Quarantined);
    assert_eq!(notices(&mut scenario), []);
    let left = scenario.engine.statuses().nth(2).unwrap().quarantine.unwrap().ready_in;
    scenario.pass(left);
    scenario.pass(MS);
    scenario.try_lock();
    scenario.drain_looked();
    assert_eq!(notices(&mut scenario), [(2, Notice::Votes)]);
}

/// A connection that is being made is bad only when its time is over.
#[test]
fn connection_in_the_making_has_time() {
    let mut scenario = Scenario::new(2);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 1, NodeEvent::Connected);
    let asked_at = scenario.now;
    let outcomes = |scenario: &Scenario| {
        let error = scenario.engine.nodes().unavailable(scenario.engine.last_now());
        [error.nodes()[0].outcome, error.nodes()[1].outcome]
    };
    scenario.engine.advance(asked_at.after(CONNECT_TIMEOUT - MS));
    assert_eq!(outcomes(&scenario), [NodeOutcome::Pending; 2]);
    let text = scenario.engine.nodes().unavailable(scenario.engine.last_now()).to_string();
    assert!(text.starts_with("unavailable: 2 of 2 nodes gave no vote ("), "{text}");
    scenario.engine.advance(asked_at.after(CONNECT_TIMEOUT));
    let timed_out = [Phase::Connect, Phase::Handshake].map(NodeOutcome::TimedOut);
    assert_eq!(outcomes(&scenario), timed_out);
}

/// R5: the connection of a silent node is closed only after a while.
#[test]
fn node_is_overdue_when_it_has_been_silent_for_long() {
    let mut scenario = Scenario::ready(3);
    assert!(!scenario.engine.node(0).is_overdue(scenario.now), "nothing was asked");
    scenario.try_lock();
    scenario.drain();
    let asked_at = scenario.now;
    for node in ALL {
        assert!(!scenario.engine.node(node).is_overdue(asked_at.after(4 * NODE_TIMEOUT - MS)));
        assert!(scenario.engine.node(node).is_overdue(asked_at.after(4 * NODE_TIMEOUT)));
        assert!(scenario.engine.node(node).is_overdue(asked_at.after(SILENCE_MAX)));
    }
    scenario.reply(0, Reply::Ok);
    assert!(!scenario.engine.node(0).is_overdue(asked_at.after(SILENCE_MAX)));
}

/// R5: a gateway may have forgotten the connection. The server's answer beside it shows that, if it
/// stays silent.
#[test]
fn silent_connection_is_lost_when_the_server_answers_beside_it() {
    let mut scenario = Scenario::ready(3);
    scenario.try_lock();
    scenario.drain();
    let asked_at = scenario.now;
    scenario.reply(2, Reply::Ok);
    scenario.pass(4 * NODE_TIMEOUT - MS);
    scenario.drain();
    assert!(scenario.take_beside().is_empty());
    let now = scenario.now;
    assert!(!answer_beside(&mut scenario, now, 0), "nothing was asked there");
    scenario.pass(MS);
    scenario.drain();
    assert_eq!(scenario.take_beside(), [0, 1], "node 2 has answered its SET");
    // Node 0 answers on both, node 1 beside only.
    scenario.reply(0, Reply::Ok);
    let now = scenario.now;
    let lost = ALL.map(|node| answer_beside(&mut scenario, now, node));
    assert_eq!(lost, [false, true, false]);
    let acted = scenario.drain();
    assert!(acted.contains(&Acted::Close(1)), "{acted:?}");
    assert_eq!(ALL.map(|node| scenario.state(node) == NodeState::Ready), [true, false, true]);
    let owed: Vec<usize> = scenario.engine.statuses().map(|node| node.pending_releases).collect();
    assert_eq!(owed, [0, 1, 0], "the SET may still run");
    assert!(now < asked_at.after(SILENCE_MAX));
}

/// R5: a second connection of an earlier silence is old: the first one has spoken since.
#[test]
fn each_doubt_names_the_silence_that_it_is_about() {
    let mut scenario = Scenario::ready(1);
    for _ in 0..2 {
        scenario.try_lock();
        scenario.drain();
        let since = scenario.now;
        scenario.pass(4 * NODE_TIMEOUT);
        scenario.drain();
        assert_eq!(scenario.take_doubts(), [(0, Some(since))]);
        scenario.pass(CONNECT_TIMEOUT);
        scenario.drain();
        assert_eq!(scenario.take_doubts(), [(0, Some(since))], "the same silence");
        // The SET, and the release of what it may have taken.
        scenario.reply(0, Reply::Nil);
        scenario.reply(0, Reply::Integer(1));
        scenario.pass(MS);
        scenario.drain();
        assert_eq!(scenario.take_doubts(), []);
    }
}

/// A server that is slow or stopped answers nowhere. It keeps the connection.
#[test]
fn silence_that_lasts_is_doubted_again_after_each_connect_timeout_and_no_sooner() {
    let mut scenario = Scenario::ready(3);
    scenario.try_lock();
    scenario.drain();
    scenario.pass(4 * NODE_TIMEOUT);
    scenario.drain();
    for _ in 0..3 {
        assert_eq!(scenario.take_beside(), ALL);
        scenario.pass(CONNECT_TIMEOUT - MS);
        scenario.drain();
        assert!(scenario.take_beside().is_empty());
        scenario.pass(MS);
        scenario.drain();
    }
    assert_eq!(ALL.map(|node| scenario.state(node)), [NodeState::Ready; 3]);
}

/// RFC 8305: the next address of a name begins before the first has failed.
#[test]
fn next_address_of_a_name_is_due_while_the_first_one_is_silent() {
    let mut scenario = Scenario::new(1);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    let now = scenario.now;
    scenario.engine.handle_node(now, 0, NodeEvent::Connecting(Phase::Lookup));
    scenario.engine.handle_node(now, 0, NodeEvent::Connecting(Phase::Connect));
    for _ in 0..3 {
        scenario.pass(CONNECT_TIMEOUT / 4 - MS);
        scenario.drain();
        assert!(scenario.take_beside().is_empty());
        scenario.pass(MS);
        scenario.drain();
        assert_eq!(scenario.take_beside(), [0]);
    }
    scenario.pass(CONNECT_TIMEOUT / 4);
    assert_eq!(scenario.state(0), NodeState::BackOff, "all of them share one connect timeout");
}

/// What is not sent after all is taken back in portions, so that others have their turn.
#[test]
fn useless_commands_are_discarded_in_portions() {
    let mut scenario = Scenario::ready(3);
    let mut ops = Vec::new();
    for i in 0..WORK_PER_ITERATION_MAX + 1 {
        let name = Resource::new(i.to_string()).unwrap();
        ops.push(
            scenario
                .engine
                .acquire(scenario.now, name, TTL, Patience::OneRound, Fencing::Off)
                .unwrap(),
        );
    }
    for op in ops {
        let _ = scenario.engine.cancel(scenario.now, op);
    }
    assert!(scenario.engine.poll_action().is_none(), "so many are looked at");
    assert!(scenario.engine.has_actions(), "and more are left");
    while scenario.engine.has_actions() {
        scenario.drain();
    }
}

/// What the status of a node says last, and what a report says of a node's answer.
#[test]
fn votes_are_shown_with_their_time() {
    let mut scenario = Scenario::ready(3);
    let at = |scenario: &Scenario| scenario.engine.statuses().next().unwrap().last_outcome;
    scenario.try_lock();
    scenario.drain();
    scenario.pass(2 * MS);
    scenario.reply(0, Reply::Nil);
    assert_eq!(at(&scenario), Some((NodeOutcome::Held, Some(2 * MS))));
    scenario.reply(1, Reply::Nil);
    let error = scenario.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].latency, Some(2 * MS));
    assert_eq!(error.nodes()[2].latency, None, "it has not answered");
}

/// A node is not slow because its answer was read late.
#[test]
fn vote_that_is_read_late_is_shown_without_its_time() {
    let mut scenario = Scenario::ready(3);
    let at = |scenario: &Scenario| scenario.engine.statuses().next().unwrap().last_outcome;
    for (reply, outcome) in [(Reply::Ok, NodeOutcome::Granted), (Reply::Nil, NodeOutcome::Held)] {
        assert_eq!(scenario.engine.node(0).awaited_since(), None);
        scenario.try_lock();
        scenario.drain();
        assert_eq!(scenario.engine.node(0).awaited_since(), Some(scenario.now));
        scenario.now = scenario.now.after(8 * MS);
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::ReadingLate { since: None });
        scenario.reply(0, reply);
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::ReadingInTime);
        assert_eq!(at(&scenario), Some((outcome, None)));
    }
}

#[test]
fn errors_are_counted_by_kind() {
    let mut scenario = Scenario::ready(3);
    for _ in 0..2 {
        scenario.try_lock();
        scenario.drain();
        scenario.replies(ALL, server_error(ServerErrorKind::Busy));
        assert!(scenario.acquired().is_err());
        scenario.drain();
        scenario.replies(ALL, Reply::Integer(0));
    }
    let errors = scenario.engine.statuses().next().unwrap().errors;
    assert_eq!((errors.of(ServerErrorKind::Busy), errors.of(ServerErrorKind::Auth)), (2, 0));
}

/// R11: what a node was never sent need not be released there.
#[test]
fn node_that_was_never_connected_owes_nothing() {
    let mut scenario = Scenario::new(3);
    scenario.try_lock();
    scenario.drain();
    for node in [0, 1] {
        scenario.connect(node);
        scenario.drain();
        scenario.reply(node, Reply::Ok);
    }
    let lease = scenario.acquired().unwrap();
    scenario.engine.handle_node(scenario.now, 2, NodeEvent::Disconnected(RESET));
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(
        scenario.engine.statuses().map(|node| node.pending_releases).collect::<Vec<_>>(),
        [0, 0, 0]
    );
}

/// A node that is being connected has so much room for commands.
#[test]
fn commands_wait_for_a_connection_up_to_a_bound() {
    let mut scenario = Scenario::new(1);
    let name = |i: usize| Resource::new(i.to_string()).unwrap();
    for i in 0..QUEUED_COMMANDS_MAX {
        scenario
            .engine
            .acquire(scenario.now, name(i), TTL, Patience::OneRound, Fencing::Off)
            .unwrap();
    }
    scenario.nothing_done();
    let beyond = name(QUEUED_COMMANDS_MAX);
    scenario.engine.acquire(scenario.now, beyond, TTL, Patience::OneRound, Fencing::Off).unwrap();
    let error = scenario.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::Backlogged);
    scenario.nothing_done();
}

#[test]
fn so_many_replies_are_taken_and_no_more() {
    let mut scenario = Scenario::ready(1);
    let ops = [(); 3].map(|()| scenario.try_lock());
    scenario.drain();
    assert_eq!(scenario.engine.handle_grants(0, 2, || Some(Grant::Ok)), 0);
    assert_eq!(ops.map(|op| scenario.engine.operations().is_done(op)), [true, true, false]);
    let mut grants = [Grant::Ok].into_iter();
    assert_eq!(scenario.engine.handle_grants(0, 4, || grants.next()), 3);
    assert!(scenario.engine.operations().is_done(ops[2]));
}

/// R3: what answers something else is not looked at as a vote.
#[test]
fn answers_to_questions_are_no_grants() {
    let mut scenario = Scenario::new(1);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    let left = scenario.engine.handle_grants(0, 8, || unreachable!("the handshake is answered"));
    assert_eq!(left, 8);
}

/// R9: the pause before the next round depends on how long rounds take, and on nothing else.
#[test]
fn rounds_that_take_long_make_pauses_longer_and_other_commands_do_not() {
    let pause = |slow_sets: Duration, slow_others: Duration| {
        let mut scenario = Scenario::ready(3);
        for _ in 0..20 {
            scenario.try_lock();
            scenario.drain();
            scenario.now = scenario.now.after(slow_sets);
            scenario.replies(ALL, Reply::Ok);
            let lease = scenario.acquired().unwrap();
            scenario.engine.extend(scenario.now, lease, TTL);
            scenario.drain();
            scenario.now = scenario.now.after(slow_others);
            scenario.replies(ALL, Reply::Integer(1));
            let (lease, result) = scenario.extended();
            result.unwrap();
            scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
            scenario.drain();
            scenario.now = scenario.now.after(slow_others);
            scenario.replies(ALL, Reply::Integer(1));
            let _ = scenario.released().unwrap();
        }
        let patience = scenario.now.after(TTL);
        scenario.acquire(TTL, Patience::Until(patience));
        scenario.drain();
        scenario.replies(ALL, Reply::Nil);
        scenario.drain();
        scenario.replies(ALL, Reply::Integer(0));
        scenario.next_timeout().unwrap().since(scenario.now)
    };
    let slow = NODE_TIMEOUT - MS;
    assert_eq!(pause(Duration::ZERO, slow), pause(Duration::ZERO, Duration::ZERO));
    assert!(pause(slow, Duration::ZERO) > pause(Duration::ZERO, Duration::ZERO));
}

/// What is in quarantine is so only as long as it would otherwise vote.
#[test]
fn node_in_quarantine_that_is_lost_is_shown_as_lost() {
    let mut scenario = Scenario::guarded(3).all_ready();
    scenario.restart(0, MS);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    let next = scenario.next_timeout().unwrap();
    let wait = next.since(scenario.now);
    scenario.pass(wait);
    scenario.drain();
    scenario.connect(0);
    assert_eq!(scenario.state(0), NodeState::Quarantined);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(RESET));
    assert_eq!(scenario.state(0), NodeState::BackOff);
}

/// A node's words are shown with the outcome that they belong to, and with no other.
#[test]
fn words_of_another_error_are_not_shown() {
    let mut scenario = Scenario::ready(3);
    scenario.try_lock();
    scenario.try_lock();
    scenario.drain();
    scenario.reply(0, server_error(ServerErrorKind::Misconfigured));
    let said = |scenario: &mut Scenario| {
        let done = scenario.done().unwrap();
        let Done::Acquired(Err(error)) = done else { panic!("{done:?}") };
        (error.nodes()[0].outcome, error.nodes()[0].message.is_some())
    };
    scenario.reply(0, server_error(ServerErrorKind::OutOfMemory));
    for node in [1, 2] {
        scenario.replies([node; 2], Reply::Nil);
    }
    let outcomes = [ServerErrorKind::Misconfigured, ServerErrorKind::OutOfMemory];
    let outcomes = outcomes.map(NodeOutcome::Server);
    assert_eq!(said(&mut scenario), (outcomes[0], false));
    assert_eq!(said(&mut scenario), (outcomes[1], true));
}

/// Whoever waits for it alone sleeps on.
#[test]
fn operation_that_has_ended_wakes_nobody() {
    let mut scenario = Scenario::ready(3);
    let until = scenario.now.after(MS);
    let op = scenario.acquire(TTL, Patience::Until(until));
    scenario.drain();
    scenario.replies(ALL, Reply::Ok);
    assert!(scenario.engine.operations().is_done(op));
    assert!(scenario.next_timeout().is_none_or(|next| next > until));
}

/// Others have their turn before the rest, which is due at once.
#[test]
fn so_many_operations_end_in_one_turn_and_no_more() {
    let mut scenario = Scenario::ready(3);
    let until = scenario.now.after(MS);
    let ops = [(); 2 * WORK_PER_ITERATION_MAX + 1].iter().zip(1..).map(|((), nth)| {
        let resource = Resource::new(format!("resource {nth}")).unwrap();
        scenario
            .engine
            .acquire(scenario.now, resource, TTL, Patience::Until(until), Fencing::Off)
            .unwrap()
    });
    let ops: Vec<OpId> = ops.collect();
    let ended = |scenario: &Scenario| {
        ops.iter().filter(|op| scenario.engine.operations().is_done(**op)).count()
    };
    scenario.drain();
    for turn in [WORK_PER_ITERATION_MAX, 2 * WORK_PER_ITERATION_MAX, 2 * WORK_PER_ITERATION_MAX + 1]
    {
        assert!(scenario.engine.advance(until));
        scenario.now = until;
        scenario.engine.handle_timeout(until);
        assert_eq!(ended(&scenario), turn);
    }
    assert!(!scenario.engine.advance(until));
}

/// How long a node is not asked again that refuses each connection, since the first failure.
fn pauses_of_a_node_that_refuses(lasts: Duration) -> Vec<(Duration, Duration)> {
    let mut s = Scenario::ready(1);
    s.engine.handle_node(s.now, 0, NodeEvent::Disconnected(RESET));
    let began = s.now;
    let mut pauses = Vec::new();
    while s.now.since(began) < lasts {
        let failed = s.now;
        while !s.drain().contains(&Acted::Connect(0)) {
            let due = s.next_timeout().expect("it is tried again");
            s.pass(due.since(s.now.min(due)));
        }
        pauses.push((failed.since(began), s.now.since(failed)));
        s.engine.handle_node(s.now, 0, NodeEvent::Disconnected(REFUSED));
    }
    pauses
}

/// A master is seen again a tenth of a second after it is back, unless it was away for long: then
/// it is asked once a second at most.
#[test]
fn node_is_tried_again_soon_and_later_rarely() {
    let pauses = pauses_of_a_node_that_refuses(120 * SECOND);
    let (soon, most) = (SECOND / 10, SECOND);
    assert_eq!(pauses[0].1, Duration::ZERO, "at once");
    for (at, pause) in &pauses[1..] {
        assert!(*pause <= soon.max(*at / 40).min(most), "{pause:?} at {at:?}");
        assert!(*at < 80 * SECOND || *pause >= most / 2, "{pause:?} at {at:?}");
    }
    // No storm: while it is away for long, and in all.
    assert!(pauses.iter().filter(|(at, _)| *at < 4 * SECOND).count() <= 90);
    assert!(pauses.len() <= 400, "{}", pauses.len());
}

/// R5: with a long node timeout, the extension of a short lock still has time for another try.
#[test]
fn silence_is_doubted_before_the_shortest_lock_ends() {
    const SHORT: Duration = Duration::from_secs(3);
    let configure = |builder: muxlock::Builder| builder.node_timeout(SECOND);
    let mut s = Scenario::with(3, configure).all_ready();
    s.acquire(SHORT, Patience::OneRound);
    s.drain();
    s.replies(ALL, Reply::Ok);
    let lease = s.acquired().unwrap();
    s.pass(SECOND);
    s.engine.extend(s.now, lease, SHORT);
    assert_eq!(s.drain_looked(), [Acted::Extend(ALL.to_vec(), 1)]);
    let doubted_at = s.now.after(SHORT / 8);
    assert!(s.engine.poll_timeout().unwrap() <= doubted_at);
    s.pass(SHORT / 8 - MS);
    s.drain();
    assert!(s.take_beside().is_empty());
    s.pass(MS);
    s.drain();
    assert_eq!(s.take_beside(), ALL);
    let now = s.now;
    assert_eq!(ALL.map(|node| answer_beside(&mut s, now, node)), [true; 3]);
    let (lease, result) = s.extended();
    assert!(result.is_err() && lease.is_valid_at(now));
    s.pass(Duration::ZERO);
    s.drain();
    for node in ALL {
        s.engine.handle_node(s.now, node, NodeEvent::Connected);
        s.drain();
        s.start_handshake(node);
        s.drain();
        while s.engine.statuses().nth(node).unwrap().in_flight > 0 {
            s.reply(node, Reply::Integer(1));
        }
    }
    s.engine.extend(s.now, lease, SHORT);
    s.drain();
    s.replies(ALL, Reply::Integer(1));
    let (lease, result) = s.extended();
    assert!(result.is_ok() && lease.is_valid_at(s.now));
}

/// R5: whichever of the locks was extended last.
#[test]
fn silence_is_doubted_before_the_shorter_of_two_locks_ends() {
    const SHORT: Duration = Duration::from_secs(3);
    for times in [[SHORT, TTL], [TTL, SHORT]] {
        let configure = |builder: muxlock::Builder| builder.node_timeout(SECOND);
        let mut s = Scenario::with(3, configure).all_ready();
        for ttl in times {
            let lease = s.locked();
            s.engine.extend(s.now, lease, ttl);
            s.drain();
            s.replies(ALL, Reply::Integer(1));
            let (lease, result) = s.extended();
            assert!(result.is_ok());
            s.engine.abandon(s.now, lease);
            s.drain();
            s.replies(ALL, Reply::Integer(1));
        }
        s.try_lock();
        s.drain();
        s.pass(SHORT / 8);
        s.drain();
        assert_eq!(s.take_beside(), ALL, "{times:?}");
    }
}
