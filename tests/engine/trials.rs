//! What is tried with the first lock of a kind (R32). Virtual time, scripted nodes.

use std::time::Duration;

use muxlock::error::{ProtocolError, ServerErrorKind};
use muxlock::node::{NodeOutcome, Phase, ServerCommand, Unfit};
use muxlock::proto::{Done, Fencing, NodeEvent, Patience, ReleaseHow, Reply, ServerError, Trial};
use muxlock::{LockErrorKind, Resource};
use testbed::memory::{Acted, NODE_TIMEOUT, Scenario, TTL, server_error};

const ALL: [usize; 3] = [0, 1, 2];
const YES: Reply = Reply::Integer(1);
const NO: Reply = Reply::Integer(0);
const RESET: NodeOutcome = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);

/// Nodes that are connected, and of which it is not known what they have for other kinds.
fn untried() -> Scenario {
    let mut s = Scenario::new(3);
    s.is_tried = false;
    s.all_ready()
}

fn share() -> Resource {
    Resource::shared("r").unwrap()
}

fn take(s: &mut Scenario, resource: Resource) {
    s.acquire_of(resource, TTL, Patience::OneRound);
}

fn first(trial: Trial, nodes: impl Into<Vec<usize>>, number: u32) -> Acted {
    Acted::First(trial, nodes.into(), number)
}

#[test]
fn first_lock_of_a_kind_is_taken_in_one_round_trip_with_its_trial() {
    let kinds = [
        (share(), Trial::Shares),
        (Resource::exclusive("r").unwrap(), Trial::Shares),
        (Resource::all(["a", "b"]).unwrap(), Trial::Several),
        (Resource::slot("s", 3).unwrap(), Trial::Permits),
        (Resource::with_value("r", "mine").unwrap(), Trial::Owned),
    ];
    for (resource, trial) in kinds {
        let mut s = untried();
        take(&mut s, resource.clone());
        assert_eq!(s.drain(), [first(trial, ALL, 1)], "{resource:?}");
        s.replies(0..2, YES);
        let lease = s.acquired().unwrap();
        assert!(lease.is_valid_at(s.now));
        s.reply(2, YES);
        assert_eq!(s.drain(), [], "the third has the lock without another call");
        s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
        assert_eq!(s.drain(), [Acted::Release(ALL.to_vec(), 1)]);
        s.replies(ALL, YES);
        assert!(s.released().is_ok());
        take(&mut s, resource);
        let (nodes, is_plain) = (ALL.to_vec(), trial == Trial::Permits);
        let next = if is_plain { Acted::Set(nodes, 2) } else { Acted::Take(nodes, 2) };
        assert_eq!(s.drain(), [next]);
    }
}

#[test]
fn first_fenced_lock_is_taken_with_its_trial() {
    let mut s = untried();
    let fenced = |s: &mut Scenario| {
        let resource = Resource::new("r").unwrap();
        s.engine.acquire(s.now, resource, TTL, Patience::OneRound, Fencing::On).unwrap();
    };
    fenced(&mut s);
    assert_eq!(s.drain(), [first(Trial::Fenced, ALL, 1)]);
    s.replies(ALL, YES);
    let lease = s.acquired().unwrap();
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    s.drain();
    s.replies(ALL, YES);
    assert!(s.released().is_ok());
    fenced(&mut s);
    assert!(matches!(s.drain()[..], [Acted::Fenced(..)]));
}

/// A node on which the commands are still to be tried gets the locks in the same order as others.
#[test]
fn trial_on_one_node_keeps_the_order_of_locks_there() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.replies(0..2, YES);
    assert!(s.acquired().is_ok());
    take(&mut s, Resource::shared("other").unwrap());
    s.try_lock();
    let expected =
        [Acted::Take(vec![0, 1], 2), first(Trial::Shares, [2], 2), Acted::Set(ALL.to_vec(), 3)];
    assert_eq!(s.drain(), expected);
}

#[test]
fn what_is_missing_is_named_and_other_kinds_go_on() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.replies(0..2, Reply::Missing(ServerCommand::Zadd));
    let error = s.acquired().unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable);
    let missing = NodeOutcome::MissingCommand(ServerCommand::Zadd);
    assert_eq!(error.nodes()[0].outcome, missing);
    let text = error.to_string();
    assert!(
        text.contains("ZADD is renamed or forbidden, and this kind of lock needs it"),
        "{text}"
    );
    // It is released where it may be, and nowhere else.
    assert_eq!(s.drain(), [Acted::Release(vec![2], 1)]);
    s.reply(2, YES);
    s.reply(2, YES);
    // The next one tries again: the right may have been granted.
    take(&mut s, share());
    assert_eq!(s.drain(), [Acted::Take(vec![2], 2), first(Trial::Shares, [0, 1], 2)]);
    s.replies(0..2, Reply::Missing(ServerCommand::Zadd));
    assert_eq!(s.acquired().unwrap_err().nodes()[1].outcome, missing);
    s.reply(2, YES);
    s.drain();
    s.reply(2, YES);
    // Plain locks need none of it.
    s.try_lock();
    s.drain();
    s.replies(ALL, Reply::Ok);
    assert!(s.acquired().is_ok());
    // Another kind has its own trial, and so has another connection.
    take(&mut s, Resource::all(["a", "b"]).unwrap());
    assert_eq!(s.drain(), [first(Trial::Several, ALL, 4)]);
    s.replies(ALL, YES);
    assert!(s.acquired().is_ok());
    s.engine.handle_node(s.now, 0, NodeEvent::Disconnected(RESET));
    s.pass(Duration::from_secs(60));
    s.engine.connect(s.now);
    s.drain();
    s.connect(0);
    s.drain();
    take(&mut s, Resource::all(["c", "d"]).unwrap());
    assert!(s.drain().contains(&first(Trial::Several, [0], 5)));
}

/// Nothing was set there. So a connection that ends then leaves nothing to release.
#[test]
fn node_that_lacks_a_command_owes_nothing() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.replies(ALL, Reply::Missing(ServerCommand::Zadd));
    assert!(s.acquired().is_err());
    // The third had not answered when the attempt failed.
    assert_eq!(s.drain(), [Acted::Release(vec![2], 1)]);
    s.reply(2, NO);
    assert_eq!(s.engine.unanswered(), 0);
}

/// A refusal shows the same as a grant: all commands were tried before.
#[test]
fn every_answer_that_is_no_error_ends_the_trials_of_a_kind() {
    for reply in [NO, Reply::Integer(7)] {
        let mut s = untried();
        take(&mut s, share());
        s.drain();
        s.replies(ALL, reply.clone());
        assert_eq!(s.acquired().unwrap_err().kind(), LockErrorKind::Contended);
        assert_eq!(s.drain(), [Acted::Release(ALL.to_vec(), 1)]);
        s.replies(ALL, NO);
        take(&mut s, Resource::exclusive("other").unwrap());
        assert_eq!(s.drain(), [Acted::Take(ALL.to_vec(), 2)], "{reply:?}");
    }
}

/// Both are sent before the first answer.
#[test]
fn two_first_locks_of_a_kind_are_both_tried() {
    let mut s = untried();
    take(&mut s, share());
    take(&mut s, Resource::shared("other").unwrap());
    assert_eq!(s.drain(), [first(Trial::Shares, ALL, 1), first(Trial::Shares, ALL, 2)]);
    s.replies(ALL, YES);
    s.replies(ALL, YES);
    let ended = [s.done(), s.done()];
    assert!(ended.iter().all(|done| matches!(done, Some(Done::Acquired(Ok(_))))));
}

#[test]
fn late_answer_is_as_good_and_its_lock_is_released() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.pass(NODE_TIMEOUT);
    let error = s.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::TimedOut(Phase::Reply));
    assert_eq!(s.drain(), [Acted::Release(ALL.to_vec(), 1)]);
    s.replies(ALL, YES);
    s.replies(ALL, YES);
    take(&mut s, share());
    assert_eq!(s.drain(), [Acted::Take(ALL.to_vec(), 2)]);
}

/// It may have been taken, so it is released on the next connection.
#[test]
fn first_lock_that_is_lost_with_its_connection_is_owed() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.engine.handle_node(s.now, 0, NodeEvent::Disconnected(RESET));
    s.replies(1..3, NO);
    assert!(s.acquired().is_err());
    s.drain();
    s.replies(1..3, NO);
    s.pass(Duration::from_secs(1));
    s.engine.connect(s.now);
    s.drain();
    s.connect(0);
    assert!(s.drain().contains(&Acted::Release(vec![0], 1)));
}

#[test]
fn error_of_a_first_lock_is_the_vote_and_the_next_one_tries_again() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.replies(0..2, server_error(ServerErrorKind::Busy));
    let error = s.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::Server(ServerErrorKind::Busy));
    s.reply(2, NO);
    s.drain();
    s.replies(ALL, NO);
    take(&mut s, share());
    assert_eq!(s.drain(), [Acted::Take(vec![2], 2), first(Trial::Shares, [0, 1], 2)]);
}

/// Only what takes a lock has a trial.
#[test]
fn release_that_is_answered_with_a_missing_command_ends_the_connection() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.replies(ALL, YES);
    let lease = s.acquired().unwrap();
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    s.drain();
    s.reply(0, Reply::Missing(ServerCommand::Zrem));
    assert_eq!(s.drain(), [Acted::Close(0)]);
    let status = s.engine.statuses().next().unwrap();
    let unexpected = NodeOutcome::Protocol(ProtocolError::Unexpected);
    assert_eq!(status.last_failure, Some(unexpected));
}

/// What every lock needs is tried by the handshake, and named.
#[test]
fn server_without_a_command_of_every_lock_is_unfit() {
    for command in [ServerCommand::Pexpire, ServerCommand::Del] {
        let mut s = Scenario::new(1);
        s.engine.connect(s.now);
        s.drain();
        s.engine.handle_node(s.now, 0, NodeEvent::Connected);
        s.drain();
        (0..8).for_each(|_| assert!(s.greet_once(0)));
        s.greet_with(0, Reply::Integer(command as i64 + 1));
        let status = s.engine.statuses().next().unwrap();
        let unfit = NodeOutcome::Unfit(Unfit::MissingCommand(command));
        assert_eq!(status.last_failure, Some(unfit));
        let text = unfit.to_string();
        assert_eq!(text, format!("unusable ({command} is renamed or forbidden; allow it)"));
    }
}

/// Takes a share and gives it up, with all answers.
fn share_once(s: &mut Scenario, name: &str) {
    take(s, Resource::shared(name).unwrap());
    s.drain();
    s.replies(ALL, YES);
    let lease = s.acquired().unwrap();
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    s.drain();
    s.replies(ALL, YES);
    assert!(s.released().is_ok());
}

/// Nodes whose servers keep the script of a share.
fn keeping() -> Scenario {
    let mut s = untried();
    share_once(&mut s, "r");
    assert_eq!(s.sent_hashes, []);
    share_once(&mut s, "r");
    assert_eq!(s.sent_hashes, [], "the server keeps a script that was sent without its trial");
    s
}

fn hashes(s: &mut Scenario) -> Vec<usize> {
    std::mem::take(&mut s.sent_hashes)
}

/// The user may not send hashes.
fn forbidden(kind: ServerErrorKind) -> Reply {
    let message = "NOPERM this user has no permissions to run the 'evalsha' command".into();
    Reply::Error(ServerError { kind, message })
}

/// K16.
#[test]
fn script_is_sent_by_its_hash_once_its_server_has_run_its_text() {
    let mut s = keeping();
    share_once(&mut s, "other");
    assert_eq!(hashes(&mut s), ALL);
    // Another kind has its own script, though not its own trial.
    for expected in [&[][..], &ALL] {
        take(&mut s, Resource::exclusive("r").unwrap());
        s.drain();
        assert_eq!(hashes(&mut s), expected);
        s.replies(ALL, NO);
        assert!(s.acquired().is_err());
        s.drain();
        s.replies(ALL, NO);
    }
    // A release is never sent that way (R19), and another connection begins anew.
    assert_eq!(hashes(&mut s), []);
    s.engine.handle_node(s.now, 0, NodeEvent::Disconnected(RESET));
    s.pass(Duration::from_secs(60));
    s.engine.connect(s.now);
    s.drain();
    s.connect(0);
    s.drain();
    take(&mut s, share());
    assert!(s.drain().contains(&first(Trial::Shares, [0], 6)));
    assert_eq!(hashes(&mut s), [1, 2]);
}

#[test]
fn error_or_an_unanswered_text_shows_no_kept_script() {
    let mut s = untried();
    share_once(&mut s, "r");
    take(&mut s, share());
    take(&mut s, Resource::shared("other").unwrap());
    s.drain();
    assert_eq!(hashes(&mut s), [], "the first was not answered yet");
    s.replies(ALL, server_error(ServerErrorKind::Busy));
    assert!(s.acquired().is_err());
    take(&mut s, share());
    s.drain();
    assert_eq!(hashes(&mut s), []);
}

/// A server forgets its scripts by `SCRIPT FLUSH`, or because there are many of them. It has run
/// nothing, so its text follows at once, and the vote counts.
#[test]
fn script_that_a_server_has_forgotten_is_sent_as_a_text_at_once() {
    let mut s = keeping();
    take(&mut s, share());
    take(&mut s, Resource::shared("other").unwrap());
    s.drain();
    assert_eq!(hashes(&mut s).len(), 6);
    s.replies(ALL, server_error(ServerErrorKind::NoScript));
    assert_eq!(s.drain().len(), 3, "the text to each node");
    // The second one had been sent as a hash before.
    s.replies(ALL, server_error(ServerErrorKind::NoScript));
    s.drain();
    assert_eq!(hashes(&mut s), []);
    s.replies(ALL, YES);
    let first = s.acquired().unwrap();
    s.replies(ALL, YES);
    let second = s.acquired().unwrap();
    assert!(first.is_valid_at(s.now) && second.is_valid_at(s.now));
    assert_eq!(s.engine.unanswered(), 0);
    let shown = format!("{:?}", s.engine);
    assert!(shown.contains("rounds: 0"), "{shown}");
    share_once(&mut s, "r");
    assert_eq!(hashes(&mut s), ALL, "it is kept again");
}

/// The server may be another one, and the user's rights may have changed.
#[test]
fn another_connection_begins_anew_with_a_trial_and_a_text() {
    for may_send in [true, false] {
        let mut s = keeping();
        if !may_send {
            take(&mut s, share());
            s.drain();
            s.replies(ALL, forbidden(ServerErrorKind::Permission));
            s.drain();
            s.replies(ALL, YES);
            let lease = s.acquired().unwrap();
            s.engine.abandon(s.now, lease);
            s.drain();
            s.replies(ALL, YES);
        }
        s.engine.handle_node(s.now, 0, NodeEvent::Disconnected(RESET));
        s.engine.connect(s.now);
        s.drain();
        s.connect(0);
        s.drain();
        hashes(&mut s);
        let is_sent_a_hash = [(); 3].map(|()| {
            share_once(&mut s, "r");
            hashes(&mut s).contains(&0)
        });
        assert_eq!(is_sent_a_hash, [false, false, true], "{may_send}");
    }
}

/// R3: the node was late, and its vote is missing no more.
#[test]
fn forgotten_script_of_a_node_that_was_late_is_not_sent() {
    let mut s = keeping();
    for node in [1, 2] {
        s.engine.handle_node(s.now, node, NodeEvent::Disconnected(RESET));
    }
    s.engine.connect(s.now);
    take(&mut s, share());
    s.drain();
    assert_eq!(hashes(&mut s), [0]);
    s.pass(NODE_TIMEOUT);
    s.reply(0, server_error(ServerErrorKind::NoScript));
    assert_eq!(s.drain(), []);
    assert_eq!(s.engine.operations().count(), 1, "the others may still be connected");
}

/// R18: the answer is a vote then, as any other error.
#[test]
fn forgotten_script_is_not_sent_to_a_socket_that_is_full() {
    let mut s = keeping();
    take(&mut s, share());
    s.drain();
    s.engine.handle_node(s.now, 0, NodeEvent::Blocked);
    s.replies([0, 1], server_error(ServerErrorKind::NoScript));
    assert_eq!(s.drain(), [Acted::Take(vec![1], 3)]);
    s.replies([1, 2], YES);
    assert!(s.acquired().is_ok());
}

/// A text is a SET like any other: a look at the clock comes before it.
#[test]
fn clock_is_looked_at_before_a_forgotten_script_is_sent() {
    let mut s = Scenario::guarded(3);
    s.is_tried = false;
    let mut s = s.all_ready();
    share_once(&mut s, "r");
    share_once(&mut s, "r");
    take(&mut s, share());
    s.drain();
    assert_eq!(hashes(&mut s), ALL);
    s.pass(NODE_TIMEOUT / 2);
    s.replies([0], server_error(ServerErrorKind::NoScript));
    assert_eq!(s.drain(), [Acted::Time(vec![0]), Acted::Take(vec![0], 3)]);
}

#[test]
fn text_that_is_answered_as_if_it_were_a_hash_is_not_sent_again() {
    let mut s = keeping();
    take(&mut s, share());
    s.drain();
    s.replies(ALL, server_error(ServerErrorKind::NoScript));
    s.drain();
    s.replies(0..2, server_error(ServerErrorKind::NoScript));
    let error = s.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::Server(ServerErrorKind::NoScript));
}

/// Behind the release, the text would take what nobody releases.
#[test]
fn forgotten_script_of_an_attempt_that_was_given_up_is_not_sent() {
    for gives_up in [true, false] {
        let mut s = keeping();
        take(&mut s, share());
        s.drain();
        if gives_up {
            s.pass(NODE_TIMEOUT);
            assert!(s.acquired().is_err());
        } else {
            s.replies(0..2, YES);
            let lease = s.acquired().unwrap();
            s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
        }
        assert_eq!(s.drain().len(), 1, "the release");
        s.reply(2, server_error(ServerErrorKind::NoScript));
        assert_eq!(s.drain(), [], "{gives_up}");
    }
}

/// The grant of the others is enough; the third may still be slow when it says so.
#[test]
fn forgotten_script_is_not_sent_for_a_lock_that_is_held() {
    let mut s = keeping();
    take(&mut s, share());
    s.drain();
    s.replies(0..2, YES);
    assert!(s.acquired().is_ok());
    s.reply(2, server_error(ServerErrorKind::NoScript));
    assert_eq!(s.drain(), []);
}

#[test]
fn user_who_may_not_send_hashes_is_sent_texts() {
    for kind in [ServerErrorKind::Permission, ServerErrorKind::UnknownCommand] {
        let mut s = keeping();
        take(&mut s, share());
        s.drain();
        assert_eq!(hashes(&mut s), ALL);
        s.replies(ALL, forbidden(kind));
        s.drain();
        assert_eq!(hashes(&mut s), []);
        s.replies(ALL, YES);
        assert!(s.acquired().is_ok(), "{kind:?}");
        share_once(&mut s, "other");
        share_once(&mut s, "other");
        assert_eq!(hashes(&mut s), [], "{kind:?}");
    }
}

/// Of a key, or of a command within the script.
#[test]
fn other_errors_are_votes_of_a_script_that_was_sent_by_its_hash() {
    for kind in [ServerErrorKind::Permission, ServerErrorKind::Busy] {
        let mut s = keeping();
        take(&mut s, share());
        s.drain();
        s.replies(0..2, server_error(kind));
        let error = s.acquired().unwrap_err();
        assert_eq!(error.nodes()[0].outcome, NodeOutcome::Server(kind));
        s.drain();
        assert_eq!(hashes(&mut s), ALL);
    }
}
