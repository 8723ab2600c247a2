//! W1 to W15: who waits on the masters, where, and what wakes it.

use std::io::ErrorKind;
use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::node::{NodeOutcome, QueueObstacle, QueueSupport as Ability};
use muxlock::proto::{
    Cancelled, Lease, NodeEvent, Notify, OpId, Patience, Push, ReleaseHow, Reply, Step,
};
use muxlock::resp;
use muxlock::settings::Waiting;
use muxlock::{LockErrorKind, Resource};
use testbed::memory::{Acted, NODE_TIMEOUT, Scenario, TTL, Waits, server_error};

const NODES: usize = 3;
const RESET: NodeOutcome = NodeOutcome::Disconnected(ErrorKind::ConnectionReset);
const PATIENCE: Duration = Duration::from_secs(100);
/// It ends before the first slow look.
const SHORT: Duration = Duration::from_millis(40);
/// More than an overtake delay where the masters answer at once.
const OVERTAKE_DELAY: Duration = Duration::from_millis(3);
/// What `PTTL` says of a key that is absent, and of one that lives for ten seconds.
const ABSENT: i64 = -2;
const HELD: i64 = 10_000;

fn position(position: i64, left: i64) -> Reply {
    Reply::Integer((position << 40) + left + 2)
}

fn queueing() -> Scenario {
    Scenario::with(NODES, |builder| builder.waiting(Waiting::Queue)).all_ready()
}

fn patient(s: &mut Scenario) -> OpId {
    let until = s.now.after(PATIENCE);
    s.acquire(TTL, Patience::Until(until))
}

/// All masters refuse the round in flight, and answer its release.
fn refuse(s: &mut Scenario) -> Vec<Acted> {
    s.replies(0..NODES, Reply::Nil);
    let acted = s.drain();
    assert!(matches!(&acted[0], Acted::Release(nodes, _) if nodes.len() == NODES), "{acted:?}");
    s.replies(0..NODES, Reply::Integer(0));
    acted[1..].to_vec()
}

/// An engine whose first acquisition was refused and stands at a queue node at this position.
/// Returns the queue node.
fn standing(s: &mut Scenario, at: i64, left: i64) -> usize {
    patient(s);
    s.drain();
    let acted = refuse(s);
    let [Acted::Wait(queue_node, Waits::Able)] = acted[..] else { panic!("{acted:?}") };
    s.allow_waits(queue_node);
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
    s.reply(queue_node, position(at, left));
    queue_node
}

/// At place 0 of a lock that is held, armed on both watched nodes: the queue node and another one.
fn watched(s: &mut Scenario) -> (usize, usize) {
    let queue_node = standing(s, 0, HELD);
    let acted = s.drain();
    let other = other_of(&acted, queue_node);
    s.replies([queue_node], Reply::Ok);
    s.reply(queue_node, Reply::Integer(HELD));
    s.allow_waits(other);
    assert_eq!(s.drain(), watch_of(other));
    s.reply(other, Reply::Ok);
    s.reply(other, Reply::Integer(HELD));
    assert_eq!(s.drain(), []);
    (queue_node, other)
}

/// Refuses the questions to a node before a client can wait there.
fn refuse_waits(s: &mut Scenario, node: usize) {
    s.replies([node; 2], server_error(ServerErrorKind::Other));
}

fn watch_of(node: usize) -> [Acted; 2] {
    [Acted::Wait(node, Waits::Cache), Acted::Wait(node, Waits::TimeToLive)]
}

/// The second watched node, which is asked first whether one can wait there.
fn other_of(acted: &[Acted], queue_node: usize) -> usize {
    let [
        Acted::Wait(at, Waits::Cache),
        Acted::Wait(_, Waits::TimeToLive),
        Acted::Wait(other, Waits::Able),
    ] = acted
    else {
        panic!("{acted:?}")
    };
    assert_eq!(*at, queue_node);
    *other
}

fn changed(s: &mut Scenario, node: usize) {
    s.engine.handle_push(s.now, node, Push::Changed(b"resource"));
}

fn sets(acted: &[Acted]) -> bool {
    matches!(acted, [Acted::Set(nodes, _)] if nodes.len() == NODES)
}

fn granted(s: &mut Scenario) -> Lease {
    s.replies(0..NODES, Reply::Ok);
    s.acquired().expect("all nodes granted")
}

#[test]
fn w1_one_round_never_queues() {
    let mut s = queueing();
    s.try_lock();
    s.drain();
    assert_eq!(refuse(&mut s), []);
    assert_eq!(s.acquired().unwrap_err().kind(), LockErrorKind::Contended);
}

#[test]
fn w1_uncontended_wait_sends_nothing_else() {
    let mut s = queueing();
    patient(&mut s);
    assert!(sets(&s.drain()));
    let lease = granted(&mut s);
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    assert!(matches!(&s.drain()[..], [Acted::Release(nodes, 1)] if nodes.len() == NODES));
}

/// W4.
#[test]
fn w4_what_a_node_refuses_makes_the_next_candidate_the_queue_node() {
    for is_subscribed in [false, true] {
        let mut s = queueing();
        patient(&mut s);
        s.drain();
        let [Acted::Wait(queue_node, Waits::Able)] = refuse(&mut s)[..] else {
            panic!("no queue node")
        };
        if is_subscribed {
            let channel = s.channel.clone();
            s.engine.handle_push(s.now, queue_node, Push::Subscribed(&channel));
            s.reply(queue_node, Reply::Integer(0));
        } else {
            s.reply(queue_node, server_error(ServerErrorKind::Other));
            s.reply(queue_node, Reply::Integer(1));
        }
        s.pass(Duration::ZERO);
        let acted = s.drain();
        let [Acted::Wait(next, Waits::Able)] = acted[..] else { panic!("{acted:?}") };
        assert_ne!(next, queue_node);
        let waits = s.engine.statuses().nth(queue_node).unwrap().queue;
        assert_eq!(waits, Ability::Unavailable(QueueObstacle::Channel));
        assert!(s.engine.poll_notice().is_some());
        assert!(s.engine.poll_notice().is_none());
        s.allow_waits(next);
        assert_eq!(s.drain(), [Acted::Wait(next, Waits::QueueUp)]);
    }
}

/// W4: the node says that it delivered the message, which something between has lost.
#[test]
fn w4_trial_that_never_arrives_is_no_yes() {
    let silent = |s: &mut Scenario, node: usize| {
        let channel = s.channel.clone();
        s.engine.handle_push(s.now, node, Push::Subscribed(&channel));
        s.reply(node, Reply::Integer(1));
        assert_eq!(s.drain(), []);
    };
    let cannot = Ability::Unavailable(QueueObstacle::Channel);

    let mut s = queueing();
    patient(&mut s);
    s.drain();
    let [Acted::Wait(queue_node, Waits::Able)] = refuse(&mut s)[..] else {
        panic!("no queue node")
    };
    silent(&mut s, queue_node);
    s.pass(Duration::from_millis(100));
    let acted = s.drain();
    let [Acted::Wait(next, Waits::Able)] = acted[..] else { panic!("{acted:?}") };
    assert!(next != queue_node && ability(&s, queue_node) == cannot);
    s.allow_waits(next);
    assert_eq!(s.drain(), [Acted::Wait(next, Waits::QueueUp)]);

    // The same at a node that is to be watched.
    let mut s = queueing();
    let queue_node = standing(&mut s, 0, HELD);
    let other = other_of(&s.drain(), queue_node);
    silent(&mut s, other);
    s.replies([queue_node], Reply::Ok);
    s.reply(queue_node, Reply::Integer(HELD));
    s.pass(Duration::from_millis(100));
    assert_eq!(ability(&s, other), cannot);
    let third = (0..NODES).find(|node| ![queue_node, other].contains(node)).unwrap();
    assert!(s.drain().contains(&Acted::Wait(third, Waits::Able)), "it is watched instead");
}

/// Somebody's lock may have the name of this one's queue. Other locks have their queues there.
#[test]
fn w5_what_is_no_queue_is_no_queue_node_of_this_lock_alone() {
    let mut s = queueing();
    patient(&mut s);
    s.drain();
    let mut acted = refuse(&mut s);
    for _ in 0..NODES {
        let [Acted::Wait(queue_node, Waits::Able)] = acted[..] else { panic!("{acted:?}") };
        s.allow_waits(queue_node);
        assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
        s.reply(queue_node, server_error(ServerErrorKind::WrongType));
        s.pass(Duration::ZERO);
        acted = s.drain();
    }
    for _ in 0..3 {
        assert!(matches!(acted[..], [Acted::Set(..)]), "{acted:?}");
        assert_eq!(refuse(&mut s), []);
        assert_eq!(s.drain(), []);
        s.pass(Duration::from_secs(1));
        acted = s.drain();
    }
    assert!(s.engine.statuses().all(|node| node.queue == Ability::Available));
    assert!(s.engine.poll_notice().is_none());
}

fn ability(s: &Scenario, node: usize) -> Ability {
    s.engine.statuses().nth(node).expect("there is such a node").queue
}

/// The node tells of no change then.
#[test]
fn w8_node_that_cannot_watch_for_now_is_replaced_by_another() {
    for is_permission in [true, false] {
        let mut s = queueing();
        let queue_node = standing(&mut s, 0, HELD);
        let other = other_of(&s.drain(), queue_node);
        s.reply(queue_node, Reply::Ok);
        s.reply(queue_node, Reply::Integer(HELD));
        s.allow_waits(other);
        assert_eq!(s.drain(), watch_of(other));
        let busy = || server_error(ServerErrorKind::Busy);
        s.reply(other, if is_permission { busy() } else { Reply::Ok });
        s.reply(other, if is_permission { Reply::Integer(HELD) } else { busy() });
        changed(&mut s, other);
        s.pass(OVERTAKE_DELAY);
        let acted = s.drain();
        let third = other_of(&acted, queue_node);
        assert!(third != queue_node && third != other, "{is_permission}: {acted:?}");
        assert_eq!(ability(&s, other), Ability::Available);
    }
}

/// It is another server now, or another user.
#[test]
fn w5_refusal_of_a_replica_or_a_stranger_ends_the_connection() {
    for kind in [ServerErrorKind::ReadOnly, ServerErrorKind::Auth] {
        let mut s = queueing();
        patient(&mut s);
        s.drain();
        let [Acted::Wait(queue_node, Waits::Able)] = refuse(&mut s)[..] else {
            panic!("no queue node")
        };
        s.allow_waits(queue_node);
        s.drain();
        s.reply(queue_node, server_error(kind));
        assert_eq!(s.drain(), [Acted::Close(queue_node)], "{kind:?}");
    }
}

/// An acquisition was refused, and no master lets it wait: its next round has begun.
fn ask_where_none_can_wait(s: &mut Scenario) {
    patient(s);
    s.drain();
    let mut acted = refuse(s);
    for _ in 0..NODES {
        let [Acted::Wait(node, Waits::Able)] = acted[..] else { panic!("{acted:?}") };
        refuse_waits(s, node);
        s.pass(Duration::ZERO);
        acted = s.drain();
    }
    assert!(sets(&acted), "{acted:?}");
}

/// Where no master has a queue, waits go on as they would without one.
#[test]
fn w2_without_a_candidate_rounds_are_repeated_after_random_delays() {
    let mut s = queueing();
    ask_where_none_can_wait(&mut s);
    for _ in 0..5 {
        assert_eq!(refuse(&mut s), []);
        s.pass(Duration::from_millis(200));
        assert!(sets(&s.drain()));
    }
    let _ = granted(&mut s);
}

#[test]
fn w5_first_that_finds_the_lock_free_takes_it() {
    let mut s = queueing();
    standing(&mut s, 0, ABSENT);
    assert!(sets(&s.drain()));
    let _ = granted(&mut s);
    assert_eq!(s.drain(), []);
}

#[test]
fn w5_second_looks_after_an_overtake_delay_and_then_takes_it() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 1, HELD);
    assert_eq!(s.drain(), []);
    s.pass(OVERTAKE_DELAY);
    let acted = s.drain();
    refuse_waits(&mut s, other_of(&acted, queue_node));
    s.reply(queue_node, Reply::Ok);
    s.reply(queue_node, Reply::Integer(ABSENT));
    assert_eq!(s.drain(), [], "the first has a stagger to take it");
    s.pass(OVERTAKE_DELAY);
    let acted = s.drain();
    assert_eq!(acted[..2], watch_of(queue_node));
    s.reply(queue_node, Reply::Ok);
    s.reply(queue_node, Reply::Integer(ABSENT));
    let acted = [&acted[2..], &s.drain()].concat();
    let [Acted::Wait(third, Waits::Able), Acted::Set(..)] = acted[..] else {
        panic!("it sleeps: {acted:?}")
    };
    refuse_waits(&mut s, third);
    let _ = granted(&mut s);
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::StepOut(Step::ToFront))], "W11");
    assert_eq!(s.engine.stats().skipped, 1);
}

#[test]
fn w5_third_looks_at_a_free_lock_only_after_several_overtake_delays() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 2, ABSENT);
    assert_eq!(s.drain(), []);
    s.pass(Duration::from_millis(5));
    assert_eq!(s.drain(), []);
    s.pass(Duration::from_millis(1));
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
    s.reply(queue_node, position(2, ABSENT));
    assert!(sets(&s.drain()), "both before it sleep");
    let _ = granted(&mut s);
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::StepOut(Step::ToFront))]);
}

#[test]
fn w6_notified_it_takes_the_lock_at_once() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 5, HELD);
    assert_eq!(s.drain(), []);
    s.notify(queue_node, "gresource");
    assert!(sets(&s.drain()));
    let _ = granted(&mut s);
    assert_eq!(s.drain(), [], "it is in front already");
    assert_eq!((s.engine.stats().notifications_received, s.engine.stats().queued), (1, 1));
}

/// R9: a process that was paused reads what it was told before it sees that its wait is over.
#[test]
fn w6_notified_after_its_patience_it_starts_no_round() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 5, HELD);
    let rounds = s.engine.stats().rounds;
    s.now = s.now.after(PATIENCE);
    s.notify(queue_node, "gresource");
    assert_eq!(s.drain(), []);
    s.pass(Duration::ZERO);
    assert!(
        matches!(s.done(), Some(muxlock::proto::Done::Acquired(Err(error))) if error.is_contended())
    );
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::StepOut(Step::Out))]);
    assert_eq!(s.engine.stats().rounds, rounds);
}

#[test]
fn w6_told_to_be_next_it_takes_the_lock_an_overtake_delay_later_if_it_is_still_free() {
    for is_free in [true, false] {
        let mut s = queueing();
        let queue_node = standing(&mut s, 5, HELD);
        s.notify(queue_node, "nresource");
        assert_eq!(s.drain(), []);
        s.pass(OVERTAKE_DELAY);
        assert_eq!(s.drain()[..2], watch_of(queue_node));
        s.reply(queue_node, Reply::Ok);
        s.reply(queue_node, Reply::Integer(if is_free { ABSENT } else { HELD }));
        assert_eq!(sets(&s.drain()), is_free);
    }
}

#[test]
fn w6_told_to_be_out_it_queues_up_anew() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 0, HELD);
    s.drain();
    s.notify(queue_node, "oresource");
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
    s.notify(queue_node, "oother");
    assert_eq!(s.drain(), []);
}

#[test]
fn w6_notification_of_one_that_does_not_wait_is_passed_on() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 5, HELD);
    for word in ["gother", "pother", "nother", "aother"] {
        s.notify(queue_node, word);
        assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::StepOut(Step::Out))], "{word}");
    }
    s.notify(queue_node, "oother");
    assert_eq!(s.drain(), []);
}

/// It stands far back: what is asked of it says nothing of its position.
#[test]
fn w6_who_is_asked_and_waits_goes_on_waiting() {
    let mut s = queueing();
    let id = patient(&mut s);
    s.drain();
    let [Acted::Wait(queue_node, Waits::Able)] = refuse(&mut s)[..] else {
        panic!("no queue node")
    };
    s.allow_waits(queue_node);
    s.drain();
    s.reply(queue_node, position(5, HELD));
    s.notify(queue_node, "aresource");
    assert_eq!(s.drain(), []);
    assert_eq!(s.engine.queue_position(id), Some(5));
}

#[test]
fn w6_pushes_that_make_no_sense_end_the_connection() {
    for message in [Some("xresource"), Some("g"), Some(""), Some("tt"), None] {
        let mut s = queueing();
        let queue_node = standing(&mut s, 5, HELD);
        let channel = s.channel.clone();
        let push = message.map(|message| resp::message(&channel, message.as_bytes()));
        s.engine.handle_push(s.now, queue_node, push.unwrap_or(Push::Other));
        assert!(s.drain().contains(&Acted::Close(queue_node)), "{message:?}");
    }
    let mut s = queueing();
    let queue_node = standing(&mut s, 5, HELD);
    let push = resp::message(b"muxlock:another", b"gresource");
    s.engine.handle_push(s.now, queue_node, push);
    assert!(s.drain().contains(&Acted::Close(queue_node)));
}

/// A push before anything was asked for, as from a server that is confused.
#[test]
fn w6_pushes_without_a_channel_end_the_connection() {
    let mut s = queueing();
    s.engine.handle_push(s.now, 0, Push::Subscribed(b""));
    assert!(s.drain().contains(&Acted::Close(0)));
}

/// Grants a lock to the first in the queue.
fn held_through_queue(s: &mut Scenario) -> (usize, Lease) {
    let queue_node = standing(s, 0, ABSENT);
    s.drain();
    let lease = granted(s);
    assert_eq!(s.drain(), []);
    (queue_node, lease)
}

/// W7.
#[test]
fn w7_lock_is_released_at_the_queue_node_after_the_other_nodes() {
    let mut s = queueing();
    let (queue_node, lease) = held_through_queue(&mut s);
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    let acted = s.drain();
    let others: Vec<usize> = (0..NODES).filter(|node| *node != queue_node).collect();
    let [Acted::Release(released, token), Acted::ReleaseAtQueue(at, handed, Notify::Next)] =
        &acted[..]
    else {
        panic!("{acted:?}")
    };
    assert_eq!((released, at, token), (&others, &queue_node, handed));
    s.reply(others[0], Reply::Integer(1));
    s.nothing_done();
    s.reply(queue_node, Reply::Integer(1 + 2 * 3));
    let released = s.released().unwrap();
    assert_eq!((released.confirmed, s.engine.stats().notifications_sent), (2, 1));
}

#[test]
fn w7_queue_node_that_refuses_the_script_gets_the_usual_release_at_once() {
    let mut s = queueing();
    let (queue_node, lease) = held_through_queue(&mut s);
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    s.drain();
    s.reply(queue_node, server_error(ServerErrorKind::Permission));
    let acted = s.drain();
    assert!(
        matches!(&acted[..], [Acted::Release(nodes, _)] if *nodes == [queue_node]),
        "{acted:?}"
    );
    s.replies(0..NODES, Reply::Integer(1));
    assert_eq!(s.released().unwrap().absent, 0);
}

/// R12: it was not handed out yet, and the lock's key is still there.
#[test]
fn w7_release_at_a_queue_node_is_owed_when_its_connection_is_lost_before() {
    let mut s = queueing();
    let (queue_node, lease) = held_through_queue(&mut s);
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    s.engine.handle_node(s.now, queue_node, NodeEvent::Disconnected(RESET));
    let acted = s.drain();
    let Some(Acted::Release(others, token)) = acted.first().cloned() else { panic!("{acted:?}") };
    assert!(!others.contains(&queue_node));
    s.replies(others, Reply::Integer(1));
    assert_eq!(s.released().unwrap().confirmed, 2);
    assert_eq!(s.engine.statuses().nth(queue_node).unwrap().pending_releases, 1);
    s.pass(Duration::from_secs(1));
    s.engine.connect(s.now);
    s.drain();
    s.connect(queue_node);
    assert!(s.drain().contains(&Acted::Release(vec![queue_node], token)));
}

/// The queue node has deleted the key, and could tell nobody.
#[test]
fn w7_release_without_a_word_is_a_release_and_costs_the_lock_its_queue_node() {
    let mut s = queueing();
    let (queue_node, lease) = held_through_queue(&mut s);
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    s.drain();
    s.reply(queue_node, Reply::Integer(-1));
    s.replies((0..NODES).filter(|node| *node != queue_node), Reply::Integer(1));
    let released = s.released().unwrap();
    assert!(released.was_held() && released.absent == 0, "{released:?}");
    assert_eq!(s.drain(), [], "nothing else is sent");
    assert_eq!(ability(&s, queue_node), Ability::Available);
    patient(&mut s);
    let acted = s.drain();
    let [Acted::Wait(next, Waits::Able)] = acted[..] else { panic!("{acted:?}") };
    assert_ne!(next, queue_node);
    s.reply(queue_node, Reply::Integer(-2));
    assert!(s.drain().contains(&Acted::Close(queue_node)), "there is no such answer");
}

/// It has handed the lock on to three others, and wants it again. Returns its queue node.
fn again_before_others(s: &mut Scenario) -> usize {
    let (queue_node, lease) = held_through_queue(s);
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    s.drain();
    for node in 0..NODES {
        s.reply(node, Reply::Integer(if node == queue_node { 1 + 2 * 3 } else { 1 }));
    }
    assert!(s.done().is_some());
    patient(s);
    queue_node
}

#[test]
fn w7_after_a_release_it_stands_behind_the_others() {
    let mut s = queueing();
    let queue_node = again_before_others(&mut s);
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::QueueUp)], "others wait there");
}

/// A node that reads nothing, or has stood still for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Still {
    Blocked,
    Late,
}

fn stands_still(s: &mut Scenario, node: usize, still: Still) {
    match still {
        Still::Blocked => s.engine.handle_node(s.now, node, NodeEvent::Blocked),
        Still::Late => {
            s.try_lock();
            s.drain();
            (0..NODES).filter(|it| *it != node).for_each(|it| s.reply(it, Reply::Nil));
            assert_eq!(s.acquired().unwrap_err().kind(), LockErrorKind::Contended);
            s.drain();
            s.pass(NODE_TIMEOUT);
            (0..NODES).filter(|it| *it != node).for_each(|it| s.reply(it, Reply::Integer(0)));
            s.drain();
        }
    }
}

/// Those who wait have left such a queue node.
#[test]
fn w7_queue_node_that_stands_still_notifies_no_client() {
    for still in [Still::Blocked, Still::Late] {
        let mut s = queueing();
        let (queue_node, lease) = held_through_queue(&mut s);
        stands_still(&mut s, queue_node, still);
        s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
        let acted = s.drain();
        let is_there = |nodes: &[usize]| nodes.contains(&queue_node);
        let is_release =
            |acted: &Acted| matches!(acted, Acted::Release(nodes, _) if is_there(nodes));
        let [Acted::Release(..), Acted::ReleaseAtQueue(next, _, Notify::Next)] = acted[..] else {
            panic!("{still:?}: {acted:?}")
        };
        assert_ne!(next, queue_node);
        assert_eq!(acted.iter().any(is_release), still == Still::Late);
        s.engine.handle_node(s.now, queue_node, NodeEvent::Writable);
        assert_eq!(s.drain().iter().any(is_release), still == Still::Blocked);
    }
}

#[test]
fn w6_nothing_is_passed_on_at_a_node_that_stands_still() {
    for still in [Still::Blocked, Still::Late] {
        let mut s = queueing();
        let queue_node = standing(&mut s, 5, HELD);
        stands_still(&mut s, queue_node, still);
        s.notify(queue_node, "gother");
        assert_eq!(s.drain(), [], "{still:?}");
        for id in s.engine.operations().acquisitions().collect::<Vec<_>>() {
            let _ = s.engine.cancel(s.now, id);
        }
        let is_told = |acted: &Acted| *acted == Acted::Wait(queue_node, Waits::StepOut(Step::Out));
        assert!(!s.drain().iter().any(is_told), "{still:?}");
    }
}

/// A node that tells much and answers nothing is not sent more and more.
#[test]
fn w14_words_that_are_passed_on_do_not_pile_up() {
    const MOST: usize = 8_192;
    let mut s = queueing();
    let queue_node = standing(&mut s, 5, HELD);
    let mut passed_on = 0;
    for _ in 0..MOST + 100 {
        s.notify(queue_node, "gother");
        passed_on += s.drain().len();
    }
    assert_eq!(passed_on, MOST);
}

/// It gives the lock back, and all nodes confirm that.
fn given_back(s: &mut Scenario, lease: Lease) {
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    s.drain();
    s.replies(0..NODES, Reply::Integer(1));
    assert!(s.done().is_some());
}

/// Releases the lock, and wants it again once that is answered: nobody waits on the masters.
fn again(s: &mut Scenario, lease: Lease) {
    given_back(s, lease);
    patient(s);
}

#[test]
fn w7_without_others_it_tries_at_once() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 1, HELD);
    s.drain();
    s.notify(queue_node, "gresource");
    assert!(sets(&s.drain()));
    let lease = granted(&mut s);
    assert!(matches!(s.drain()[..], [Acted::Wait(_, Waits::StepOut(Step::ToFront)), ..] | []));
    again(&mut s, lease);
    assert!(sets(&s.drain()));
}

/// It queues up, so that others see it, and finds the lock free: it looks no sooner than `after`,
/// and takes it then.
fn yields(s: &mut Scenario, queue_node: usize, after: Duration) -> Lease {
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
    s.reply(queue_node, position(0, ABSENT));
    assert_eq!(s.drain(), []);
    s.pass(after - Duration::from_nanos(1));
    assert_eq!(s.drain(), []);
    s.pass(Duration::from_nanos(1));
    let acted = s.drain();
    assert_eq!(acted[..2], watch_of(queue_node));
    s.reply(queue_node, Reply::Ok);
    s.reply(queue_node, Reply::Integer(ABSENT));
    assert!(sets(&s.drain()));
    if let Some(Acted::Wait(other, Waits::Able)) = acted.get(2) {
        refuse_waits(s, *other);
    }
    granted(s)
}

/// Clients of another make stand in no queue, and ask again after random delays.
#[test]
fn w7_beside_pollers_it_leaves_the_lock_for_an_overtake_delay() {
    const AT_ONCE: Duration = Duration::from_millis(2);
    let mut s = queueing();
    let (queue_node, lease) = held_through_queue(&mut s);
    again(&mut s, lease);
    let lease = yields(&mut s, queue_node, AT_ONCE);
    again(&mut s, lease);
    let lease = yields(&mut s, queue_node, AT_ONCE);
    // Also if the queue node has not answered the release, and so may have others in its queue.
    s.engine.release(s.now, lease, ReleaseHow::ToTheEnd);
    s.drain();
    (0..NODES).filter(|node| *node != queue_node).for_each(|node| s.reply(node, Reply::Integer(1)));
    assert!(s.done().is_some());
    patient(&mut s);
    s.reply(queue_node, Reply::Integer(1));
    let lease = yields(&mut s, queue_node, AT_ONCE);
    // Later than an overtake delay after its release, and when nobody else was seen for a second.
    given_back(&mut s, lease);
    s.pass(OVERTAKE_DELAY);
    patient(&mut s);
    assert!(sets(&s.drain()));
}

/// Who finds the lock free, and has seen no holder, takes it from no poller: alone, a local queue
/// that takes it again and again does not yield for ever.
#[test]
fn w7_who_is_alone_is_no_poller_to_itself() {
    let mut s = queueing();
    let (queue_node, mut lease) = held_through_queue(&mut s);
    let over = s.now.after(Duration::from_secs(1));
    while s.now < over {
        again(&mut s, lease);
        lease = yields(&mut s, queue_node, Duration::from_millis(2));
        s.pass(Duration::from_millis(50));
    }
    again(&mut s, lease);
    assert!(sets(&s.drain()));
}

/// Whose patience ends before that tries at once.
#[test]
fn w7_beside_pollers_short_patience_is_not_spent_unasked() {
    let mut s = queueing();
    let (_, lease) = held_through_queue(&mut s);
    given_back(&mut s, lease);
    let until = s.now.after(Duration::from_millis(1));
    s.acquire(TTL, Patience::Until(until));
    assert!(sets(&s.drain()));
}

#[test]
fn w8_change_of_a_watched_key_wakes_the_first() {
    for by_other in [false, true] {
        let mut s = queueing();
        let (queue_node, other) = watched(&mut s);
        changed(&mut s, if by_other { other } else { queue_node });
        assert!(sets(&s.drain()));
    }
    let mut s = queueing();
    let (queue_node, _) = watched(&mut s);
    s.engine.handle_push(s.now, queue_node, Push::AllChanged);
    assert!(sets(&s.drain()));
}

#[test]
fn w8_end_of_the_key_wakes_the_first() {
    let mut s = queueing();
    watched(&mut s);
    s.pass(Duration::from_millis(9_000));
    let slow = s.drain();
    assert!(!slow.is_empty(), "W10");
    let mut s = queueing();
    let queue_node = standing(&mut s, 0, HELD);
    s.drain();
    s.reply(queue_node, Reply::Ok);
    s.reply(queue_node, Reply::Integer(20));
    s.pass(Duration::from_millis(20));
    assert_eq!(s.drain(), []);
    s.pass(Duration::from_millis(1));
    assert!(sets(&s.drain()));
}

#[test]
fn w8_after_a_change_in_vain_it_looks_before_it_tries() {
    let mut s = queueing();
    let (queue_node, _) = watched(&mut s);
    changed(&mut s, queue_node);
    assert!(sets(&s.drain()));
    let acted = refuse(&mut s);
    assert_eq!(acted[0], Acted::Wait(queue_node, Waits::QueueUp));
    assert_eq!(s.engine.stats().spurious_wakeups, 1);
    s.reply(queue_node, position(0, HELD));
    s.pass(OVERTAKE_DELAY);
    let looks = |acted: Vec<Acted>| watch_of(queue_node).iter().all(|it| acted.contains(it));
    assert!(looks(s.drain()));
    s.reply(queue_node, Reply::Ok);
    s.reply(queue_node, Reply::Integer(HELD));
    s.pass(2 * OVERTAKE_DELAY);
    changed(&mut s, queue_node);
    s.pass(4 * OVERTAKE_DELAY);
    assert!(looks(s.drain()));
    s.reply(queue_node, Reply::Ok);
    s.reply(queue_node, Reply::Integer(ABSENT));
    assert!(sets(&s.drain()));
}

/// One watched node is not enough, whatever becomes of the other one before it tells of changes.
#[test]
fn w9_watched_node_that_is_lost_is_replaced_by_another() {
    for told in 0..4 {
        let mut s = queueing();
        let queue_node = standing(&mut s, 0, HELD);
        let other = other_of(&s.drain(), queue_node);
        s.reply(queue_node, Reply::Ok);
        s.reply(queue_node, Reply::Integer(HELD));
        if told == 0 {
            s.reply(other, server_error(ServerErrorKind::UnknownCommand));
        } else {
            if told > 1 {
                s.allow_waits(other);
                assert_eq!(s.drain(), watch_of(other));
            }
            if told > 2 {
                s.reply(other, Reply::Ok);
                s.reply(other, Reply::Integer(HELD));
            }
            let error = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
            s.engine.handle_node(s.now, other, NodeEvent::Disconnected(error));
            assert_eq!(s.drain(), [Acted::Close(other)]);
        }
        s.pass(OVERTAKE_DELAY);
        let mut acted = s.drain();
        acted.retain(|acted| *acted != Acted::Connect(other));
        let third = other_of(&acted, queue_node);
        assert!(third != queue_node && third != other, "{told}: {acted:?}");
        s.allow_waits(third);
        assert_eq!(s.drain(), watch_of(third));
    }
}

/// Whether another round begins, although the lock stays held at the queue node, at this position,
/// and no other node can be watched.
fn asks_again(s: &mut Scenario, queue_node: usize, at: i64) -> bool {
    for _ in 0..200 {
        s.pass(5 * OVERTAKE_DELAY);
        let acted = s.drain();
        for sent in &acted {
            match sent {
                Acted::Wait(node, Waits::Able) => {
                    refuse_waits(s, *node);
                }
                Acted::Wait(node, Waits::Cache) if *node == queue_node => {
                    s.reply(queue_node, Reply::Ok)
                }
                Acted::Wait(node, Waits::TimeToLive) if *node == queue_node => {
                    s.reply(queue_node, Reply::Integer(HELD));
                }
                Acted::Wait(node, Waits::QueueUp) if *node == queue_node => {
                    s.reply(queue_node, position(at, HELD));
                }
                _ => {}
            }
        }
        if acted.iter().any(|sent| matches!(sent, Acted::Set(..))) {
            return true;
        }
    }
    false
}

/// A stray key where alone it can watch: the lock is free elsewhere, and nobody says so.
#[test]
fn w9_without_a_second_watched_node_rounds_are_repeated() {
    for at in [0, 1, 2] {
        let mut s = queueing();
        let queue_node = standing(&mut s, at, HELD);
        assert_eq!(asks_again(&mut s, queue_node, at), at < 2, "position {at}");
    }
}

/// The same if nothing but the stray key refused: another node was lost, and the third one granted.
#[test]
fn w9_one_refusal_of_three_does_not_say_that_it_is_held() {
    let queue_node = standing(&mut queueing(), 0, HELD);
    let (granted, lost) = ((queue_node + 1) % NODES, (queue_node + 2) % NODES);
    let mut s = queueing();
    patient(&mut s);
    s.drain();
    s.engine.handle_node(s.now, lost, NodeEvent::Disconnected(RESET));
    s.reply(granted, Reply::Ok);
    s.reply(queue_node, Reply::Nil);
    let acted = s.drain();
    assert!(acted.contains(&Acted::Wait(queue_node, Waits::Able)), "{acted:?}");
    s.reply(granted, Reply::Integer(1));
    s.reply(queue_node, Reply::Integer(0));
    s.allow_waits(queue_node);
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
    s.reply(queue_node, position(0, HELD));
    assert!(asks_again(&mut s, queue_node, 0));
}

/// The pauses between the rounds of one who stands at this position of its queue node. One node has
/// a key, and another one's vote does not count: the others say that the lock is free. The last
/// round stays in flight if it is one too many.
fn pauses_at(
    s: &mut Scenario,
    (queue_node, at): (usize, i64),
    time: Duration,
    rounds: usize,
) -> Vec<Duration> {
    let others: Vec<_> = (0..NODES).filter(|node| *node != queue_node).collect();
    let [held, failing] = [&others[..1], &others[1..]];
    let (end, mut last, mut pauses) = (s.now.after(time), None, Vec::new());
    while s.now < end {
        let acted = s.drain();
        s.pass(Duration::from_micros(100));
        for acted in acted {
            match acted {
                Acted::Set(nodes, _) => {
                    let before = last.replace(s.now);
                    pauses.extend(before.map(|before| s.now.since(before)));
                    if pauses.len() == rounds {
                        return pauses;
                    }
                    nodes.into_iter().for_each(|node| match node {
                        node if held.contains(&node) => s.reply(node, Reply::Nil),
                        node if failing.contains(&node) => {
                            s.reply(node, server_error(ServerErrorKind::OutOfMemory));
                        }
                        node => s.reply(node, Reply::Ok),
                    });
                }
                Acted::Release(nodes, _) => s.replies(nodes, Reply::Integer(1)),
                Acted::Wait(node, Waits::QueueUp) => s.reply(node, position(at, ABSENT)),
                Acted::Wait(node, Waits::Cache) => s.reply(node, Reply::Ok),
                Acted::Wait(node, Waits::TimeToLive) => s.reply(node, Reply::Integer(ABSENT)),
                Acted::Wait(node, Waits::Able) => refuse_waits(s, node),
                Acted::Wait(node, _) => s.reply(node, server_error(ServerErrorKind::Other)),
                acted => panic!("{acted:?}"),
            }
        }
    }
    pauses
}

#[test]
fn w11_lock_that_seems_free_and_gives_no_quorum_is_tried_ever_more_rarely() {
    for (at, expected) in [(0, 40..120), (1, 15..60), (2, 15..60), (10, 10..60)] {
        let mut s = queueing();
        let queue_node = standing(&mut s, at, ABSENT);
        // Some at once, and then each after half of the longest pause, or all of it and that half.
        let time = Duration::from_secs(2);
        let rounds = pauses_at(&mut s, (queue_node, at), time, usize::MAX).len() + 1;
        assert!(expected.contains(&rounds), "at position {at}: {rounds}");
    }
}

/// W3.
#[test]
fn w3_queue_node_that_is_gone_or_late_is_left_for_the_next() {
    for is_gone in [true, false] {
        let mut s = queueing();
        patient(&mut s);
        s.drain();
        let [Acted::Wait(queue_node, Waits::Able)] = refuse(&mut s)[..] else {
            panic!("no queue node")
        };
        s.allow_waits(queue_node);
        s.drain();
        if is_gone {
            let error = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
            s.engine.handle_node(s.now, queue_node, NodeEvent::Disconnected(error));
            s.pass(Duration::ZERO);
        } else {
            s.pass(NODE_TIMEOUT);
        }
        let acted = s.drain();
        let next = acted.iter().find_map(|acted| match acted {
            Acted::Wait(node, Waits::Able) => Some(*node),
            _ => None,
        });
        assert!(next.is_some_and(|next| next != queue_node), "{acted:?}");
        s.allow_waits(next.unwrap());
        assert!(s.drain().contains(&Acted::Wait(next.unwrap(), Waits::QueueUp)));
    }
}

/// As [`patient`], but it waits for a holder only.
fn patient_of_holders(s: &mut Scenario) -> OpId {
    let until = s.now.after(PATIENCE);
    s.acquire(TTL, Patience::WhileHeld(until))
}

/// Its first round ends like that of `try_lock`: with nodes that connect, that are in quarantine,
/// or that do not answer.
#[test]
fn first_round_without_a_quorum_ends_a_wait_for_a_holder() {
    let unavailable = |s: &mut Scenario| {
        let error = s.acquired().unwrap_err();
        assert_eq!(error.kind(), LockErrorKind::Unavailable);
        error
    };
    let mut s = Scenario::with(NODES, |builder| builder.waiting(Waiting::Queue));
    patient_of_holders(&mut s);
    s.drain();
    s.nothing_done();
    for node in 0..2 {
        let refused = NodeOutcome::NotConnected;
        s.engine.handle_node(s.now, node, NodeEvent::Disconnected(refused));
    }
    unavailable(&mut s);

    let mut s = queueing();
    patient_of_holders(&mut s);
    assert!(sets(&s.drain()));
    s.reply(0, Reply::Ok);
    s.pass(NODE_TIMEOUT);
    unavailable(&mut s);
    assert!(matches!(&s.drain()[..], [Acted::Release(..)]), "it keeps nothing");
    s.replies(0..NODES, Reply::Nil);

    let mut s = Scenario::guarded(NODES);
    (0..NODES).for_each(|node| s.restart(node, Duration::from_secs(1)));
    let mut s = s.all_ready();
    patient_of_holders(&mut s);
    s.drain_looked();
    s.replies(0..NODES, Reply::Ok);
    assert!(unavailable(&mut s).ready_in().is_some(), "and says when it is worth to ask again");
}

/// R2: the quorum was there, only too late.
#[test]
fn late_quorum_does_not_end_a_wait_for_a_holder() {
    let mut s = queueing();
    let op = patient_of_holders(&mut s);
    assert!(sets(&s.drain()));
    s.replies(0..NODES, Reply::Ok);
    s.now = s.now.after(TTL);
    assert!(s.done().is_none());
    assert!(!s.engine.operations().is_done(op));
    s.drain();
    s.replies(0..NODES, Reply::Integer(1));
    s.pass(Duration::from_secs(1));
    assert!(sets(&s.drain()));
    drop(granted(&mut s));
}

/// Whoever waits for a holder in the queue asks at its next timer once no quorum is connected, and
/// others sleep on: the queue node is there, and says that the lock is held.
#[test]
fn wait_for_a_holder_in_the_queue_ends_when_the_masters_do() {
    for (place, waits_for_holder) in [(0, true), (7, true), (0, false), (7, false)] {
        let mut s = queueing();
        let start = if waits_for_holder { patient_of_holders } else { patient };
        start(&mut s);
        s.drain();
        let [Acted::Wait(queue_node, Waits::Able)] = refuse(&mut s)[..] else {
            panic!("no queue node")
        };
        s.allow_waits(queue_node);
        assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
        s.reply(queue_node, position(place, HELD));
        s.drain();
        let others: Vec<usize> = (0..NODES).filter(|node| *node != queue_node).collect();
        s.engine.handle_node(s.now, others[0], NodeEvent::Disconnected(RESET));
        s.pass(Duration::ZERO);
        s.nothing_done();
        s.engine.handle_node(s.now, others[1], NodeEvent::Disconnected(RESET));
        // The first slow look comes after 65 ms at the latest.
        let mut asked = Vec::new();
        for _ in 0..66 {
            s.pass(Duration::from_millis(1));
            let acted = s.drain();
            for lost in acted.iter().filter(|acted| matches!(acted, Acted::Connect(_))) {
                let Acted::Connect(node) = lost else { unreachable!() };
                let refused = NodeEvent::Disconnected(NodeOutcome::NotConnected);
                s.engine.handle_node(s.now, *node, refused);
            }
            asked.extend(acted);
            if s.engine.operations().has_done() {
                break;
            }
        }
        assert!(!asked.iter().any(|acted| matches!(acted, Acted::Set(..))), "none could succeed");
        match waits_for_holder {
            true => {
                let error = s.acquired().unwrap_err();
                assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
            }
            false => s.nothing_done(),
        }
    }
}

#[test]
fn w10_late_looks_come_ever_more_rarely() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 7, HELD);
    s.drain();
    let start = s.now;
    let mut looks = Vec::new();
    while s.now.since(start) < Duration::from_secs(20) {
        s.pass(Duration::from_millis(5));
        for acted in s.drain() {
            assert_eq!(acted, Acted::Wait(queue_node, Waits::QueueUp));
            looks.push(s.now.since(start));
            s.reply(queue_node, position(7, HELD));
        }
    }
    let pauses: Vec<u128> = looks.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    assert!((50..=70).contains(&looks[0].as_millis()), "{looks:?}");
    assert!((100..=135).contains(&pauses[0]), "{pauses:?}");
    let last = pauses[pauses.len() - 1];
    assert!((3_200..=4_165).contains(&last), "{pauses:?}");
}

/// When it looks again, having been told this position.
fn look_at(at: i64) -> u128 {
    let mut s = queueing();
    let queue_node = standing(&mut s, at, HELD);
    s.drain();
    let start = s.now;
    loop {
        s.pass(Duration::from_millis(1));
        if s.drain() == [Acted::Wait(queue_node, Waits::QueueUp)] {
            return s.now.since(start).as_millis();
        }
    }
}

/// Others that stand before it look in its place.
#[test]
fn w10_far_back_it_looks_later() {
    assert_eq!(look_at(100), 500);
    assert_eq!(look_at(1_022), 3_200);
    assert!((50..=66).contains(&look_at(9)));
    // It has no position: it asks for one soon.
    assert!((50..=66).contains(&look_at(1_023)));
}

/// W12.
#[test]
fn w12_patience_over_it_leaves_its_position() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 3, HELD);
    for _ in 0..200 {
        s.pass(Duration::from_secs(1));
        for acted in s.drain() {
            if acted == Acted::Wait(queue_node, Waits::QueueUp) {
                s.reply(queue_node, position(3, HELD));
            } else {
                assert_eq!(acted, Acted::Wait(queue_node, Waits::StepOut(Step::Out)));
            }
        }
        if let Some(done) = s.done() {
            let muxlock::proto::Done::Acquired(Err(error)) = done else { panic!("{done:?}") };
            assert_eq!((error.kind(), error.queue_position()), (LockErrorKind::Contended, Some(3)));
            assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::StepOut(Step::Out))]);
            return;
        }
    }
    panic!("it waits for ever");
}

#[test]
fn w12_cancelled_it_leaves_its_position_to_the_next_of_its_local_queue() {
    let mut s = queueing();
    let first = patient(&mut s);
    s.drain();
    let second = patient(&mut s);
    let [Acted::Wait(queue_node, Waits::Able)] = refuse(&mut s)[..] else {
        panic!("no queue node")
    };
    s.allow_waits(queue_node);
    s.drain();
    s.reply(queue_node, position(4, HELD));
    assert_eq!(s.engine.queue_position(first), Some(4));
    let _ = s.engine.cancel(s.now, first);
    assert_eq!(s.drain(), [], "the next inherits it");
    assert_eq!(s.engine.queue_position(second), Some(4));
    let _ = s.engine.cancel(s.now, second);
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::StepOut(Step::Out))]);
}

/// Two of a local queue, of which the first has so little patience; the queue node; and both.
fn short_and_patient(s: &mut Scenario) -> (usize, OpId, OpId) {
    let until = s.now.after(SHORT);
    let first = s.acquire(TTL, Patience::Until(until));
    s.drain();
    let second = patient(s);
    let [Acted::Wait(queue_node, Waits::Able)] = refuse(s)[..] else { panic!("no queue node") };
    s.allow_waits(queue_node);
    s.drain();
    s.reply(queue_node, position(4, HELD));
    (queue_node, first, second)
}

/// Its round is cut off: what it was told is for the next of its local queue, which tries at once.
#[test]
fn w12_next_of_a_local_queue_tries_when_the_round_of_the_first_is_cut_off() {
    for is_cancelled in [false, true] {
        let mut s = queueing();
        let (queue_node, first, second) = short_and_patient(&mut s);
        s.notify(queue_node, "gresource");
        assert!(sets(&s.drain()));
        if is_cancelled {
            let _ = s.engine.cancel(s.now, first);
        } else {
            s.pass(SHORT);
            assert!(s.acquired().is_err());
        }
        let acted = s.drain();
        let is_undone = matches!(&acted[0], Acted::Release(nodes, _) if nodes.len() == NODES);
        assert!(is_undone && sets(&acted[1..]), "{acted:?}");
        assert_eq!(s.engine.queue_position(second), Some(0));
        s.replies(0..NODES, Reply::Nil);
        s.replies(0..NODES, Reply::Integer(0));
        assert!(granted(&mut s).is_valid_at(s.now));
    }
}

/// The first has ended, or is about to end, and is not gone yet, when its turn comes.
#[test]
fn w12_word_for_one_that_has_ended_is_for_the_next_of_its_local_queue() {
    for is_noticed in [true, false] {
        let mut s = queueing();
        let (queue_node, ..) = short_and_patient(&mut s);
        s.now = s.now.after(SHORT);
        if is_noticed {
            s.engine.handle_timeout(s.now);
        }
        s.notify(queue_node, "gresource");
        assert_eq!(s.drain(), []);
        s.engine.handle_timeout(s.now);
        assert!(s.acquired().is_err());
        assert!(sets(&s.drain()), "{is_noticed}");
    }
}

#[test]
fn w12_without_a_quorum_nobody_waits_behind_it() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 0, ABSENT);
    s.drain();
    s.replies(0..NODES, server_error(ServerErrorKind::Loading));
    let acted = s.drain();
    assert!(acted.contains(&Acted::Wait(queue_node, Waits::StepOut(Step::Out))), "{acted:?}");
}

#[test]
fn w12_lock_that_is_let_go_leaves_the_front() {
    let mut s = queueing();
    let (queue_node, mut lease) = held_through_queue(&mut s);
    s.engine.let_go(s.now, &mut lease);
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::StepOut(Step::Out))]);
}

/// How many times in a row a local queue takes a lock that others wait for.
fn turns(others: i64) -> usize {
    let mut s = queueing();
    let (queue_node, mut lease) = {
        patient(&mut s);
        s.drain();
        (0..40).for_each(|_| {
            patient(&mut s);
        });
        let [Acted::Wait(queue_node, Waits::Able)] = refuse(&mut s)[..] else {
            panic!("no queue node")
        };
        s.allow_waits(queue_node);
        s.drain();
        s.reply(queue_node, position(0, ABSENT));
        assert!(sets(&s.drain()));
        (queue_node, granted(&mut s))
    };
    for turns in 1..40 {
        s.engine.abandon(s.now, lease);
        let acted = s.drain();
        let [Acted::Release(..), Acted::ReleaseAtQueue(at, _, notify), then] = &acted[..] else {
            panic!("{acted:?}")
        };
        // One that is alone in its queue looks at others, too.
        assert!(*at == queue_node || others == 0);
        let counted = *at;
        if *notify == Notify::Next {
            assert_eq!(*then, Acted::Wait(queue_node, Waits::QueueUp));
            return turns;
        }
        assert!(sets(&acted[2..]));
        for node in (0..NODES).filter(|node| *node != counted) {
            s.reply(node, Reply::Integer(1));
        }
        let own = i64::from(counted == queue_node);
        s.reply(counted, Reply::Integer(1 + 2 * (own + others)));
        lease = granted(&mut s);
    }
    40
}

#[test]
fn w13_local_queue_notifies_the_next_after_its_turn_if_others_wait() {
    assert_eq!(turns(1), 17);
    assert_eq!(turns(0), 40, "without others its turn has no end");
}

/// W7, W12: whoever stands behind the others after a hand-on, and gives up, leaves its position.
#[test]
fn w7_who_stands_behind_and_gives_up_leaves() {
    let mut s = queueing();
    let queue_node = standing(&mut s, 1, HELD);
    s.notify(queue_node, "gresource");
    s.drain();
    let lease = granted(&mut s);
    let second = patient(&mut s);
    s.engine.abandon(s.now, lease);
    let acted = s.drain();
    assert_eq!(acted.last(), Some(&Acted::Wait(queue_node, Waits::QueueUp)), "{acted:?}");
    assert!(matches!(s.engine.cancel(s.now, second), Cancelled::Acquisition));
    assert_eq!(s.drain(), [Acted::Wait(queue_node, Waits::StepOut(Step::Out))]);
}

/// W8: if any key may have changed, whoever waits for one of them tries.
#[test]
fn w8_change_of_any_key_wakes_the_first_of_each() {
    let (mut s, queue_node) = (0..64)
        .find_map(|number| {
            let mut s = queueing();
            let (queue_node, _) = watched(&mut s);
            let until = s.now.after(PATIENCE);
            let another = Resource::new(format!("another {number}")).unwrap();
            s.acquire_of(another, TTL, Patience::Until(until));
            s.drain();
            let is_there = refuse(&mut s) == [Acted::Wait(queue_node, Waits::QueueUp)];
            is_there.then_some((s, queue_node))
        })
        .expect("a name with the same queue node");
    s.reply(queue_node, position(0, HELD));
    s.drain();
    s.reply(queue_node, Reply::Ok);
    s.reply(queue_node, Reply::Integer(HELD));
    s.engine.handle_push(s.now, queue_node, Push::AllChanged);
    let acted = s.drain();
    assert_eq!(acted.iter().filter(|acted| matches!(acted, Acted::Set(..))).count(), 2);
}

/// A local queue that never met another client learns of those that wait from the count at the
/// queue node.
#[test]
fn w13_local_queue_that_never_queued_counts_who_does() {
    let mut s = queueing();
    patient(&mut s);
    s.drain();
    (0..40).for_each(|_| {
        patient(&mut s);
    });
    let mut lease = granted(&mut s);
    for turns in 0..40 {
        s.engine.abandon(s.now, lease);
        let acted = s.drain();
        let Some(Acted::ReleaseAtQueue(queue_node, _, notify)) = acted.get(1) else {
            panic!("{acted:?}")
        };
        if *notify == Notify::Next {
            assert_eq!(turns, 17);
            assert!(matches!(acted[2], Acted::Wait(_, Waits::Able | Waits::QueueUp)));
            return;
        }
        for node in (0..NODES).filter(|node| node != queue_node) {
            s.reply(node, Reply::Integer(1));
        }
        s.reply(*queue_node, Reply::Integer(1 + 2 * 5));
        lease = granted(&mut s);
    }
    panic!("its turn never ends");
}

/// Releases that are handed on at all nodes, by how many locks stand in their row.
fn rows(s: &mut Scenario, locks: usize, others: i64) -> Vec<usize> {
    let (mut rows, mut row) = (Vec::new(), 0);
    for _ in 0..locks {
        patient(s);
        assert!(sets(&s.drain()));
        let lease = granted(s);
        row += 1;
        s.engine.abandon(s.now, lease);
        let hands =
            s.drain().iter().filter(|acted| matches!(acted, Acted::ReleaseAtQueue(..))).count();
        if hands == NODES {
            rows.push(row);
            row = 0;
        }
        let left = if hands == NODES { 2 * others } else { 0 };
        s.replies(0..NODES, Reply::Integer(1 + left));
        if others > 0 && hands == NODES {
            break;
        }
    }
    rows
}

/// Clients that start together should have alike shares soon.
#[test]
fn w13_series_ends_sooner_while_nothing_is_known_of_others() {
    let mut s = queueing();
    assert_eq!(rows(&mut s, 64, 0), [4, 8, 16, 16, 16]);
    assert_eq!(rows(&mut s, 64, 3), [12], "the fifth row goes on");
    // Those who waited have gone, and nothing is known again.
    s.pass(Duration::from_secs(2));
    assert_eq!(rows(&mut s, 12, 0), [4, 8]);
}

#[test]
fn w14_changes_without_end_cost_one_watch_each_pause() {
    let mut s = queueing();
    let (queue_node, _) = watched(&mut s);
    changed(&mut s, queue_node);
    s.drain();
    refuse(&mut s);
    s.reply(queue_node, position(0, HELD));
    let (start, mut watches, mut rounds) = (s.now, 0, 0);
    while s.now.since(start) < Duration::from_secs(2) {
        s.pass(Duration::from_millis(1));
        for acted in s.drain() {
            match acted {
                Acted::Wait(node, Waits::Cache) => s.reply(node, Reply::Ok),
                Acted::Wait(node, Waits::TimeToLive) => {
                    watches += 1;
                    s.reply(node, Reply::Integer(HELD));
                }
                Acted::Set(nodes, _) => {
                    rounds += 1;
                    s.replies(nodes, Reply::Nil);
                }
                Acted::Release(nodes, _) => s.replies(nodes, Reply::Integer(0)),
                Acted::Wait(node, Waits::QueueUp) => s.reply(node, position(0, HELD)),
                Acted::Wait(node, Waits::Able) => refuse_waits(&mut s, node),
                other => panic!("{other:?}"),
            }
        }
        (0..NODES).for_each(|node| changed(&mut s, node));
    }
    assert!((10..=100).contains(&watches) && rounds < 50, "{watches} {rounds}");
}

#[test]
fn w15_who_asks_for_delays_gets_delays_alone() {
    let mut s = Scenario::with(NODES, |builder| builder.waiting(Waiting::Retry)).all_ready();
    patient(&mut s);
    s.drain();
    for _ in 0..5 {
        assert_eq!(refuse(&mut s), []);
        s.pass(Duration::from_millis(200));
        assert!(sets(&s.drain()));
    }
}

/// W2: a node that is further away than the others is no queue node.
#[test]
fn w2_node_that_is_far_is_no_queue_node() {
    let queue_node = standing(&mut queueing(), 5, HELD);
    let near = || (0..NODES).filter(|node| *node != queue_node);
    for (far, is_queue_node) in
        [(Duration::from_micros(900), true), (Duration::from_millis(5), false)]
    {
        let mut s = Scenario::with(NODES, |builder| builder.waiting(Waiting::Queue));
        s.engine.connect(s.now);
        s.drain();
        near().for_each(|node| s.connect(node));
        s.engine.handle_node(s.now, queue_node, NodeEvent::Connected);
        loop {
            s.drain();
            s.pass(far);
            if !s.greet_once(queue_node) {
                break;
            }
        }
        // So often that chance does not decide.
        for _ in 0..32 {
            s.try_lock();
            s.drain();
            s.replies(near(), Reply::Nil);
            assert!(s.acquired().is_err());
            s.drain();
            s.replies(near(), Reply::Integer(0));
            s.pass(far);
            s.reply(queue_node, Reply::Nil);
            s.reply(queue_node, Reply::Integer(0));
        }
        patient(&mut s);
        s.drain();
        s.replies(near(), Reply::Nil);
        let acted = s.drain();
        let [Acted::Release(..), Acted::Wait(at, Waits::Able)] = acted[..] else {
            panic!("{acted:?}")
        };
        assert_eq!(at == queue_node, is_queue_node, "{far:?}");
    }
}
