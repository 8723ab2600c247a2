//! What is tried before the first lock of a kind (R32). Virtual time, scripted nodes.

use std::time::Duration;

use muxlock::proto::{Patience, Reply, Trial};
use muxlock::{
    LockErrorKind, NodeOutcome, Phase, ProtocolError, Resource, ServerCommand, ServerErrorKind,
    Unfit,
};
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

/// The number by which a server names a command, as the scripts of shares call it.
fn number_of(command: ServerCommand) -> Reply {
    Reply::Integer(command as i64 + 1)
}

#[test]
fn first_lock_of_a_kind_waits_for_the_trial_of_its_commands() {
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
        assert_eq!(s.drain(), [Acted::Try(trial, ALL.to_vec())], "{resource:?}");
        s.replies(0..2, NO);
        assert_eq!(s.drain(), [Acted::Take(vec![0], 1), Acted::Take(vec![1], 1)]);
        s.replies(0..2, YES);
        let lease = s.acquired().unwrap();
        assert!(lease.is_valid_at(s.now));
        // The third is sent it as soon as it has answered, and the next lock asks two at once.
        s.reply(2, NO);
        assert_eq!(s.drain(), [Acted::Take(vec![2], 1)], "{resource:?}");
        s.reply(2, YES);
        s.engine.release(s.now, lease);
        s.drain();
        s.replies(ALL, YES);
        assert!(s.released().is_ok());
        take(&mut s, resource);
        assert_eq!(s.drain(), [Acted::Take(ALL.to_vec(), 2)]);
    }
}

#[test]
fn what_is_missing_is_named_and_other_kinds_go_on() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.replies(0..2, number_of(ServerCommand::Zadd));
    let error = s.acquired().unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable);
    let missing = NodeOutcome::MissingCommand(ServerCommand::Zadd);
    assert_eq!(error.nodes()[0].outcome, missing);
    let text = error.to_string();
    assert!(
        text.contains("ZADD is renamed or forbidden, and this kind of lock needs it"),
        "{text}"
    );
    // Nothing was sent for it, so nothing is released.
    s.reply(2, NO);
    assert_eq!(s.drain(), []);
    // The next one asks again: the right may have been granted.
    take(&mut s, share());
    assert_eq!(s.drain(), [Acted::Try(Trial::Shares, vec![0, 1]), Acted::Take(vec![2], 2)]);
    s.replies(0..2, number_of(ServerCommand::Zadd));
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
    assert_eq!(s.drain(), [Acted::Try(Trial::Several, ALL.to_vec())]);
    s.replies(ALL, NO);
    s.drain();
    s.replies(ALL, YES);
    assert!(s.acquired().is_ok());
    s.engine.handle_disconnected(s.now, 0, RESET);
    s.pass(Duration::from_secs(60));
    s.engine.connect(s.now);
    s.drain();
    s.connect(0);
    s.drain();
    take(&mut s, Resource::all(["c", "d"]).unwrap());
    assert!(s.drain().contains(&Acted::Try(Trial::Several, vec![0])));
}

#[test]
fn lock_is_released_before_its_trial_is_answered_and_not_taken_after_that() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.replies(0..2, NO);
    s.drain();
    s.replies(0..2, YES);
    let lease = s.acquired().unwrap();
    s.engine.release(s.now, lease);
    assert_eq!(s.drain(), [Acted::Release(ALL.to_vec(), 1)]);
    s.reply(2, NO);
    assert_eq!(s.drain(), [], "it would be taken behind its release");
    s.replies(0..2, YES);
    s.reply(2, NO);
    assert!(s.released().is_ok());
}

/// The answer to one kind's trial says nothing of another kind that waits on the same node.
#[test]
fn trial_that_fails_ends_no_wait_of_another_kind() {
    let mut s = untried();
    take(&mut s, share());
    assert_eq!(s.drain(), [Acted::Try(Trial::Shares, ALL.to_vec())]);
    take(&mut s, Resource::all(["a", "b"]).unwrap());
    assert_eq!(s.drain(), [Acted::Try(Trial::Several, ALL.to_vec())]);
    s.replies(ALL, number_of(ServerCommand::Zadd));
    let error = s.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::MissingCommand(ServerCommand::Zadd));
    assert_eq!(s.drain(), []);
    s.replies(ALL, NO);
    let takes = ALL.map(|node| Acted::Take(vec![node], 2));
    assert_eq!(s.drain(), takes);
    s.replies(ALL, YES);
    assert!(s.acquired().is_ok());
}

/// The take waited for the connection, and so its trial begins only when the release is due.
#[test]
fn take_that_was_not_tried_is_not_sent_behind_its_release() {
    let mut s = Scenario::new(3);
    s.is_tried = false;
    s.engine.connect(s.now);
    s.drain();
    (0..2).for_each(|node| s.connect(node));
    take(&mut s, share());
    s.drain();
    s.replies(0..2, NO);
    s.drain();
    s.replies(0..2, YES);
    let lease = s.acquired().unwrap();
    s.connect(2);
    s.engine.release(s.now, lease);
    let acted = s.drain();
    assert_eq!(acted, [Acted::Release(ALL.to_vec(), 1)]);
    s.replies(ALL, YES);
    assert!(s.released().is_ok());
    assert_eq!(s.drain(), []);
}

#[test]
fn trial_without_an_answer_is_asked_again() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.pass(NODE_TIMEOUT);
    let error = s.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::TimedOut(Phase::Reply));
    assert_eq!(s.drain(), []);
    take(&mut s, share());
    assert_eq!(s.drain(), [Acted::Try(Trial::Shares, ALL.to_vec())]);
    // The first answer is as good as the second.
    s.replies(ALL, NO);
    assert_eq!(s.drain().len(), 3);
    s.replies(ALL, NO);
    s.replies(ALL, YES);
    assert!(s.acquired().is_ok());
}

#[test]
fn error_of_a_trial_is_the_vote_and_says_nothing_for_later() {
    let mut s = untried();
    take(&mut s, share());
    s.drain();
    s.replies(0..2, server_error(ServerErrorKind::Busy));
    let error = s.acquired().unwrap_err();
    assert_eq!(error.nodes()[0].outcome, NodeOutcome::Server(ServerErrorKind::Busy));
    s.reply(2, NO);
    s.drain();
    take(&mut s, share());
    assert_eq!(s.drain()[0], Acted::Try(Trial::Shares, vec![0, 1]));
}

#[test]
fn answer_that_names_no_command_ends_the_connection() {
    for reply in [Reply::Integer(-1), Reply::Integer(17), Reply::Ok, Reply::Nil] {
        let mut s = untried();
        take(&mut s, share());
        s.drain();
        s.replies(0..2, reply.clone());
        let error = s.acquired().unwrap_err();
        let unexpected = NodeOutcome::Protocol(ProtocolError::Unexpected);
        assert_eq!(error.nodes()[0].outcome, unexpected, "{reply:?}");
    }
}

/// What every lock needs is tried by the handshake, and named.
#[test]
fn server_without_a_command_of_every_lock_is_unfit() {
    for command in [ServerCommand::Pexpire, ServerCommand::Del] {
        let mut s = Scenario::new(1);
        s.engine.connect(s.now);
        s.drain();
        s.engine.handle_connected(s.now, 0);
        s.drain();
        (0..7).for_each(|_| assert!(s.greet_once(0)));
        s.greet_with(0, number_of(command));
        let status = s.engine.nodes().next().unwrap();
        let unfit = NodeOutcome::Unfit(Unfit::MissingCommand(command));
        assert_eq!(status.last_failure, Some(unfit));
        let text = unfit.to_string();
        assert_eq!(text, format!("unfit ({command} is renamed or forbidden; allow it)"));
    }
}
