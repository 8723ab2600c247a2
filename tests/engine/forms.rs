//! Locks that are not one plain key (K1 to K9, K11 to K15): several resources, shares, slots, and
//! those with a caller's value. Virtual time, scripted nodes.

use std::time::Duration;

use muxlock::error::{ProtocolError, ServerErrorKind};
use muxlock::limits::SLOTS_MAX;
use muxlock::node::NodeOutcome;
use muxlock::proto::{
    Cancelled, Done, Fencing, Lease, NodeEvent, OpId, Patience, ReleaseHow, Reply, Step,
};
use muxlock::settings::{Heal, RestartGuard};
use muxlock::{
    Builder, FencingToken, KeepAlive, LockError, LockErrorKind, LockToken, LossCause, Moment,
    Resource,
};
use testbed::memory::{Acted, CONNECT_TIMEOUT, Scenario, TTL, Waits, server_error};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const ALL: [usize; 3] = [0, 1, 2];
const RESET: NodeOutcome = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
const YES: Reply = Reply::Integer(1);
const NO: Reply = Reply::Integer(0);
/// How many slots are tried without a pause (K8).
const SLOTS_TRIED_MAX: u32 = 9;
/// Eight overtake delays where the masters answer at once.
const ASKED_AFTER: Duration = Duration::from_millis(16);

fn set() -> Resource {
    Resource::all(["b", "a"]).unwrap()
}

fn share() -> Resource {
    Resource::shared("r").unwrap()
}

fn alone() -> Resource {
    Resource::exclusive("r").unwrap()
}

fn slots(count: u32) -> Resource {
    Resource::slot("s", count).unwrap()
}

/// With a caller's value.
fn own() -> Resource {
    Resource::with_value("r", "mine").unwrap()
}

fn plain(name: &str) -> Resource {
    Resource::new(name).unwrap()
}

/// Each form, what takes it, and what frees it.
fn forms() -> [(Resource, &'static str, &'static str); 5] {
    [
        (set(), "take a b", "free a b"),
        (share(), "take share r r:intent", "free share r r:intent"),
        (alone(), "take r r:intent", "RELEASE r"),
        // The first that is asked for is a random one.
        (slots(3), "take s{permit}:0 s{permit}:1 s{permit}:2 at 0", "RELEASE s{permit}:0"),
        (own(), "take r r:as", "free r r:as"),
    ]
}

/// A holder is waited for, and masters that do not answer are not, whatever the kind.
#[test]
fn round_without_a_quorum_ends_a_wait_for_a_holder_of_any_kind() {
    for (form, take, _) in forms() {
        let mut scenario = Scenario::ready(3);
        let until = scenario.now.after(60 * SECOND);
        scenario.acquire_of(form, TTL, Patience::WhileHeld(until));
        scenario.drain();
        assert!(scenario.take_said()[0].starts_with(take));
        let refusal = if take.contains(" at ") { free(&[]) } else { NO };
        scenario.replies(ALL, refusal);
        scenario.drain();
        scenario.replies(ALL, NO);
        scenario.nothing_done();
        for node in [1, 2] {
            scenario.engine.handle_node(scenario.now, node, NodeEvent::Disconnected(RESET));
        }
        scenario.pass(SECOND);
        scenario.drain();
        for node in [1, 2] {
            lost(&mut scenario, node);
        }
        assert_eq!(scenario.acquired().unwrap_err().kind(), LockErrorKind::Unavailable, "{take}");
    }
}

/// The same, as what is held, with what extends it, and what heals it.
fn held_forms() -> [(Resource, Resource, &'static str, &'static str); 5] {
    [
        (set(), set(), "keep a b", "heal a b"),
        (share(), share(), "keep share r r:intent", "heal share r r:intent"),
        (alone(), alone(), "EXTEND r", "HEAL r"),
        (slots(3), plain("s{permit}:0"), "EXTEND s{permit}:0", "HEAL s{permit}:0"),
        (own(), own(), "keep r r:as", "heal r r:as"),
    ]
}

fn ready_with(configure: impl FnOnce(Builder) -> Builder) -> Scenario {
    Scenario::with(3, configure).all_ready()
}

fn healing(builder: Builder) -> Builder {
    builder.restart_guard(RestartGuard::Uptime).heal(Heal::On)
}

fn once(scenario: &mut Scenario, resource: Resource) -> OpId {
    scenario.acquire_of(resource, TTL, Patience::OneRound)
}

fn wait(scenario: &mut Scenario, resource: Resource, wait: Duration) -> OpId {
    let until = scenario.now.after(wait);
    scenario.acquire_of(resource, TTL, Patience::Until(until))
}

/// A lock that all nodes granted.
fn locked(scenario: &mut Scenario, resource: Resource) -> Lease {
    once(scenario, resource);
    let acted = scenario.drain();
    scenario.looked(acted);
    scenario.replies(ALL, YES);
    scenario.take_said();
    scenario.acquired().expect("all nodes granted")
}

/// What is sent next, in words.
fn said(scenario: &mut Scenario) -> Vec<String> {
    scenario.drain();
    scenario.take_said()
}

fn lost(scenario: &mut Scenario, node: usize) {
    scenario.engine.handle_node(scenario.now, node, NodeEvent::Disconnected(RESET));
    scenario.drain();
}

fn reconnect(scenario: &mut Scenario, node: usize) -> Vec<Acted> {
    scenario.pass(CONNECT_TIMEOUT);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.take_said();
    scenario.connect(node);
    scenario.drain()
}

fn outcome(error: &LockError, node: usize) -> NodeOutcome {
    error.nodes()[node].outcome
}

fn at_rest(scenario: &mut Scenario) {
    assert_eq!(scenario.drain(), []);
    assert_eq!(scenario.engine.unanswered(), 0);
    assert_eq!(scenario.engine.operations().count(), 0);
    assert!(scenario.engine.statuses().all(|node| node.pending_releases == 0));
    assert_eq!(scenario.next_timeout(), None);
}

/// What a node says to an attempt at a slot: these are free.
fn free(slots: &[u32]) -> Reply {
    Reply::Integer(2 + slots.iter().map(|slot| 1_i64 << slot).sum::<i64>())
}

/// Which slot is asked for now.
fn asked_slot(scenario: &mut Scenario) -> Option<u32> {
    let said = said(scenario);
    let is_asked = |said: &&String| said.contains(" at ") || said.starts_with("SET ");
    let (_, slot) = said.iter().find(is_asked)?.rsplit_once([' ', ':']).unwrap();
    Some(slot.parse().unwrap())
}

// Verdicts.

/// R4, R10: on every node, whatever it said, behind what was to take the lock.
#[test]
fn each_form_is_undone_behind_its_command() {
    for (resource, take, release) in forms() {
        let mut scenario = Scenario::ready(3);
        once(&mut scenario, resource);
        scenario.drain();
        scenario.reply(0, YES);
        scenario.replies([1, 2], NO);
        assert_eq!(scenario.acquired().unwrap_err().kind(), LockErrorKind::Contended);
        assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
        assert_eq!(scenario.take_said(), [take, release]);
        scenario.reply(0, YES);
        scenario.replies([1, 2], NO);
        at_rest(&mut scenario);
    }
}

/// R2: a quorum that came too late is undone, in the same words.
#[test]
fn each_form_that_is_granted_too_late_is_undone() {
    for (resource, _, release) in forms() {
        let mut scenario = ready_with(|builder| builder.node_timeout(60 * SECOND));
        once(&mut scenario, resource);
        said(&mut scenario);
        scenario.now = scenario.now.after(TTL);
        scenario.replies(ALL, YES);
        assert_eq!(scenario.acquired().unwrap_err().kind(), LockErrorKind::Expired);
        assert_eq!(said(&mut scenario), [release]);
    }
}

/// R11: what was not handed out in time is not sent at all.
#[test]
fn form_that_was_not_handed_out_in_time_is_taken_back() {
    for (resource, ..) in forms() {
        let mut scenario = Scenario::ready(3);
        once(&mut scenario, resource);
        scenario.pass(TTL);
        assert!(!said(&mut scenario).iter().any(|said| said.starts_with("take")));
        assert!(scenario.acquired().is_err());
    }
}

#[test]
fn cancelled_form_is_undone() {
    for (resource, _, release) in forms() {
        let mut scenario = Scenario::ready(3);
        let op = wait(&mut scenario, resource, SECOND);
        scenario.drain();
        scenario.take_said();
        assert!(matches!(scenario.engine.cancel(scenario.now, op), Cancelled::Acquisition));
        assert_eq!(said(&mut scenario), [release]);
        scenario.replies(ALL, YES);
        scenario.replies(ALL, YES);
        at_rest(&mut scenario);
    }
}

/// F4: no key of a form may be that of the counters.
#[test]
fn key_of_the_counters_is_refused_in_every_form() {
    let refused = |resource: Resource, prefix: &str| {
        let mut scenario = ready_with(|builder| builder.key_prefix(prefix));
        let result =
            scenario.engine.acquire(scenario.now, resource, TTL, Patience::OneRound, Fencing::Off);
        assert!(result.is_ok() || scenario.drain().is_empty());
        let kind = result.err().map(|error| error.kind());
        kind == Some(LockErrorKind::ReservedResource)
    };
    for prefix in ["", "muxlock:"] {
        let name = "muxlock:fence".strip_prefix(prefix).unwrap();
        assert!(refused(plain(name), prefix));
        assert!(refused(Resource::all(["a", name, "z"]).unwrap(), prefix));
        assert!(refused(Resource::shared(name).unwrap(), prefix));
        assert!(refused(Resource::exclusive(name).unwrap(), prefix));
        assert!(!refused(Resource::all(["a", name]).unwrap(), "x:"));
    }
}

/// F3: only a plain lock has a number. The caller is told so.
#[test]
fn fencing_token_of_another_form_is_refused() {
    for (resource, ..) in forms() {
        for patience in [Patience::OneRound, Patience::Until(Moment::from_nanos(u64::MAX))] {
            let mut scenario = Scenario::ready(3);
            let now = scenario.now;
            let started =
                scenario.engine.acquire(now, resource.clone(), TTL, patience, Fencing::On);
            let error = started.unwrap_err();
            assert!(matches!(error.kind(), LockErrorKind::ReservedResource), "{error}");
            let text = "only a lock of one plain name can have a fencing token: this lock is of \
                        another kind";
            assert_eq!(error.to_string(), text);
            at_rest(&mut scenario);
        }
    }
}

// Odd replies.

/// Whatever a node says, the engine goes on; what makes no sense ends the connection, and may have
/// taken the lock (R12, R17).
#[test]
fn odd_replies_are_refusals_or_end_the_connection() {
    let wild = [2, 3, 4, 1 << 50, (1 << 50) + 2, i64::MAX, i64::MAX - 1].map(Reply::Integer);
    let senseless = [
        Reply::Integer(-1),
        Reply::Integer(i64::MIN),
        Reply::Ok,
        Reply::Status,
        Reply::Nil,
        Reply::Time(SECOND),
    ];
    for (resource, ..) in forms() {
        for reply in &wild {
            let mut scenario = Scenario::ready(3);
            once(&mut scenario, resource.clone());
            scenario.drain();
            // A slot may be followed by others.
            for _ in 0..SLOTS_TRIED_MAX {
                scenario.replies(ALL, reply.clone());
                let acted = scenario.drain();
                scenario.replies(ALL, NO);
                if acted.len() == 1 {
                    break;
                }
            }
            assert!(scenario.acquired().unwrap_err().is_contended(), "{reply:?}");
            assert_eq!(scenario.engine.stats().disconnected, 0, "{reply:?}");
        }
        for reply in &senseless {
            let mut scenario = Scenario::ready(3);
            once(&mut scenario, resource.clone());
            scenario.drain();
            scenario.reply(2, reply.clone());
            assert!(scenario.drain().contains(&Acted::Close(2)), "{reply:?}");
            scenario.replies([0, 1], NO);
            let error = scenario.acquired().unwrap_err();
            assert_eq!(outcome(&error, 2), NodeOutcome::Protocol(ProtocolError::Unexpected));
            assert_eq!(scenario.engine.statuses().nth(2).unwrap().pending_releases, 1);
        }
    }
}

/// An error is no vote. A key of another type is one: somebody holds it.
#[test]
fn error_of_a_script_is_no_vote() {
    for (resource, ..) in forms() {
        for (kind, expected) in [
            (ServerErrorKind::Other, NodeOutcome::Server(ServerErrorKind::Other)),
            (ServerErrorKind::Permission, NodeOutcome::Server(ServerErrorKind::Permission)),
            (ServerErrorKind::OutOfMemory, NodeOutcome::Server(ServerErrorKind::OutOfMemory)),
            (ServerErrorKind::WrongType, NodeOutcome::Held),
        ] {
            let mut scenario = Scenario::ready(3);
            once(&mut scenario, resource.clone());
            scenario.drain();
            scenario.replies([0, 1], server_error(kind));
            let error = scenario.acquired().unwrap_err();
            assert_eq!(outcome(&error, 0), expected);
            assert_eq!(error.is_unavailable(), kind != ServerErrorKind::WrongType);
        }
    }
}

// Several resources.

/// K2: the one that most nodes have named; the name has no prefix. What makes no sense names none.
#[test]
fn error_names_the_resource_that_most_nodes_named() {
    let resources = Resource::all(["a", "b", "c"]).unwrap();
    let named = |index: i64| Reply::Integer(1 + index);
    let table: [(&[Reply], Option<&str>); 7] = [
        (&[named(1), named(3), named(3)], Some("c")),
        (&[named(2), named(2), named(1)], Some("b")),
        (&[named(1), NO, NO], Some("a")),
        (&[NO, NO, NO], None),
        (&[named(4), named(4), named(4)], None),
        (&[named(1), Reply::Integer(i64::MAX), Reply::Integer(i64::MAX)], None),
        (&[named(3), YES, named(3)], Some("c")),
    ];
    for prefix in ["", "p:"] {
        for (replies, expected) in table {
            let mut scenario = Scenario::with(5, |builder| builder.key_prefix(prefix)).all_ready();
            once(&mut scenario, resources.clone());
            scenario.drain();
            for (node, reply) in replies.iter().enumerate() {
                scenario.reply(node, reply.clone());
            }
            scenario.replies([3, 4], NO);
            let error = scenario.acquired().unwrap_err();
            let expected = expected.map(plain);
            assert_eq!(error.held_resource(), expected.as_ref(), "{replies:?}");
        }
    }
}

/// Between two rounds, too, and for those who stood behind it in the local queue and never asked.
#[test]
fn held_resource_is_in_the_error_of_everyone_who_waited() {
    let mut scenario = Scenario::ready(3);
    let first = wait(&mut scenario, set(), 10 * MS);
    let second = wait(&mut scenario, set(), 11 * MS);
    assert_eq!(said(&mut scenario), ["take a b"], "one asks for both");
    scenario.replies(ALL, Reply::Integer(3));
    assert_eq!(said(&mut scenario), ["free a b"]);
    scenario.replies(ALL, NO);
    let mut ended = Vec::new();
    for _ in 0..20 {
        scenario.pass(MS);
        // A round that is cut off says nothing.
        scenario.drain();
        while let Some((op, Done::Acquired(result))) = scenario.engine.poll_done(scenario.now) {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), LockErrorKind::Contended);
            assert_eq!(error.held_resource(), Some(&plain("b")));
            ended.push(op);
        }
    }
    assert_eq!(ended, [first, second]);
}

/// K9: those of one engine that wait for the same set stand in a local queue, as for a plain lock;
/// the order of the names does not matter.
#[test]
fn next_in_the_local_queue_for_a_set_asks_behind_the_release() {
    for (resource, release, take) in
        [(set(), "free a b", "take a b"), (alone(), "RELEASE r", "take r r:intent sign 500")]
    {
        let mut scenario = Scenario::ready(3);
        wait(&mut scenario, resource.clone(), SECOND);
        scenario.drain();
        scenario.replies(ALL, YES);
        let lease = scenario.acquired().unwrap();
        scenario.take_said();
        wait(&mut scenario, resource.clone(), SECOND);
        assert_eq!(said(&mut scenario), [""; 0], "it waits");
        scenario.engine.abandon(scenario.now, lease);
        assert_eq!(said(&mut scenario), [release, take]);
        scenario.replies(ALL, YES);
        scenario.replies(ALL, YES);
        assert!(scenario.acquired().is_ok());
    }
}

/// K9: shares and permits do not. Each asks again after a random delay, whatever a queue says.
#[test]
fn shares_and_slots_of_one_engine_ask_at_the_same_time() {
    let shares = (share(), ["take share r r:intent"; 2]);
    for (resource, takes) in [shares, (slots(1), ["take s{permit}:0 at 0", "SET s{permit}:0"])] {
        let mut scenario =
            Scenario::with(3, |builder| builder.waiting(muxlock::settings::Waiting::Queue));
        scenario = scenario.all_ready();
        wait(&mut scenario, resource.clone(), SECOND);
        wait(&mut scenario, resource.clone(), SECOND);
        assert_eq!(said(&mut scenario), takes);
        scenario.replies(ALL, NO);
        scenario.replies(ALL, if takes[0] == takes[1] { NO } else { Reply::Nil });
        let is_release = |acted: &&Acted| matches!(acted, Acted::Release(..));
        assert_eq!(scenario.drain().iter().filter(is_release).count(), 2);
    }
    for resource in [set(), alone()] {
        let mut scenario =
            Scenario::with(3, |builder| builder.waiting(muxlock::settings::Waiting::Queue));
        scenario = scenario.all_ready();
        wait(&mut scenario, resource, SECOND);
        scenario.drain();
        scenario.replies(ALL, NO);
        assert_eq!(scenario.drain()[0], Acted::Release(vec![0, 1, 2], 1));
        scenario.replies(ALL, NO);
        scenario.pass(SECOND / 2);
        let acted = scenario.drain();
        let is_take = |acted: &Acted| matches!(acted, Acted::Take(..));
        assert!(acted.iter().any(is_take), "after a random delay: {acted:?}");
    }
}

/// One that was refused and stands in the queue for a plain lock. Returns its queue node.
fn standing(scenario: &mut Scenario, resource: Resource) -> usize {
    standing_after(scenario, resource, NO)
}

/// The same, after this refusal by each node.
fn standing_after(scenario: &mut Scenario, resource: Resource, refusal: Reply) -> usize {
    wait(scenario, resource, 100 * SECOND);
    scenario.drain();
    scenario.replies(ALL, refusal);
    let acted = scenario.drain();
    let [Acted::Release(..), Acted::Wait(queue_node, Waits::Able)] = acted[..] else {
        panic!("{acted:?}")
    };
    scenario.replies(ALL, NO);
    scenario.allow_waits(queue_node);
    assert_eq!(scenario.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
    scenario.reply(queue_node, Reply::Integer((1 << 40) + 10_002));
    queue_node
}

/// All nodes grant the acquisition, and its release ends.
fn take_and_give_up(scenario: &mut Scenario) {
    let said = said(scenario);
    let is_plain = said.last().is_some_and(|said| said.starts_with("SET "));
    scenario.replies(ALL, if is_plain { Reply::Ok } else { YES });
    let lease = scenario.acquired().unwrap();
    scenario.engine.abandon(scenario.now, lease);
    scenario.drain();
    scenario.replies(ALL, YES);
}

fn queueing() -> Scenario {
    ready_with(|builder| builder.waiting(muxlock::settings::Waiting::Queue))
}

/// The same, with long delays of its own.
fn slow_to_ask() -> Scenario {
    let retry = muxlock::settings::Retry::default().first(SECOND).most(SECOND);
    ready_with(|builder| builder.waiting(muxlock::settings::Waiting::Queue).retry(retry))
}

/// K9: it is told when a plain lock is released, and tells the next when it releases its own.
#[test]
fn k9_who_is_notified_takes_the_lock_and_passes_it_on() {
    for (resource, is_kept) in [(alone(), true), (own(), true), (share(), false)] {
        let mut scenario = queueing();
        let queue_node = standing(&mut scenario, resource.clone());
        assert_eq!(scenario.drain(), []);
        scenario.notify(queue_node, "gr");
        assert!(matches!(scenario.drain()[..], [Acted::Take(..)]), "{resource:?}");
        scenario.replies(ALL, YES);
        let lease = scenario.acquired().unwrap();
        let leaves = Acted::Wait(queue_node, Waits::StepOut(Step::Out));
        // Others may share it at once.
        let early: Vec<_> = (!is_kept).then(|| leaves.clone()).into_iter().collect();
        assert_eq!(scenario.drain(), early, "{resource:?}");
        scenario.replies(early.iter().map(|_| queue_node), NO);
        scenario.engine.abandon(scenario.now, lease);
        let acted = scenario.drain();
        let behind = Vec::from_iter(is_kept.then_some(leaves));
        assert_eq!(acted[1..], behind, "behind the release: {acted:?}");
        scenario.replies(ALL, YES);
        scenario.replies(is_kept.then_some(queue_node), NO);
        // The next one comes behind those who stand there, and does not wait for ever.
        wait(&mut scenario, resource, 100 * SECOND);
        assert_eq!(scenario.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
        scenario.pass(SECOND / 2);
        assert!(matches!(scenario.drain()[..], [Acted::Take(..)]), "it asks in any case");
    }
}

/// K9: who is notified in vain leaves the lock to those behind it, and so does one that gives up.
#[test]
fn k9_who_is_notified_in_vain_or_gives_up_leaves_its_position() {
    let mut scenario = queueing();
    let queue_node = standing(&mut scenario, alone());
    let leaves = Acted::Wait(queue_node, Waits::StepOut(Step::Out));
    let mut queued = 0;
    for _ in 0..5 {
        scenario.notify(queue_node, "gr");
        assert!(matches!(scenario.drain()[..], [Acted::Take(..)]));
        scenario.replies(ALL, NO);
        let acted = scenario.drain();
        assert_eq!(acted[1], leaves, "{acted:?}");
        scenario.replies(ALL, NO);
        scenario.replies([queue_node], NO);
        if let [_, _, Acted::Wait(_, Waits::QueueUp)] = acted[..] {
            queued += 1;
            scenario.reply(queue_node, Reply::Integer((1 << 40) + 10_002));
        }
    }
    assert_eq!(queued, 4, "the word does not go round for ever");
    scenario.pass(ASKED_AFTER);
    assert!(matches!(scenario.drain()[..], [Acted::Take(..)]), "the others may go on for ever");
    scenario.replies(ALL, NO);
    let acted = scenario.drain();
    assert!(acted.contains(&Acted::Wait(queue_node, Waits::QueueUp)), "{acted:?}");
    scenario.replies(ALL, NO);
    scenario.reply(queue_node, Reply::Integer((1 << 40) + 10_002));
    scenario.pass(100 * SECOND);
    assert!(scenario.acquired().is_err());
    assert!(scenario.drain().contains(&leaves));
}

/// K9: a lock that has expired takes no message for itself.
#[test]
fn k9_message_after_a_lock_has_expired_is_for_the_next() {
    let mut scenario = queueing();
    let queue_node = standing(&mut scenario, alone());
    scenario.notify(queue_node, "gr");
    scenario.drain();
    scenario.replies(ALL, YES);
    let _forgotten = scenario.acquired().unwrap();
    wait(&mut scenario, alone(), 1_000 * SECOND);
    scenario.pass(2 * TTL);
    scenario.drain();
    scenario.replies(ALL, NO);
    scenario.drain();
    scenario.replies(ALL, NO);
    scenario.notify(queue_node, "gr");
    assert!(scenario.drain().iter().any(|acted| matches!(acted, Acted::Take(..))));
}

/// K9: of a set, the lock that was named is waited for, and messages about others are passed on.
#[test]
fn k9_set_waits_for_the_lock_that_was_named() {
    for (index, waits_for, other) in [(1, "ga", "gb"), (2, "gb", "ga")] {
        let mut scenario = queueing();
        let queue_node = standing_after(&mut scenario, set(), Reply::Integer(1 + index));
        scenario.notify(queue_node, other);
        assert_eq!(scenario.drain(), [Acted::Wait(queue_node, Waits::StepOut(Step::Out))]);
        scenario.notify(queue_node, waits_for);
        assert!(matches!(scenario.drain()[..], [Acted::Take(..)]), "{waits_for}");
    }
}

/// K9: a local queue of plain locks of the same client lets another kind in after as many turns as
/// the local queue is long.
#[test]
fn k9_local_queue_of_the_same_client_lets_others_in() {
    for resource in [alone(), own(), share()] {
        let mut scenario = queueing();
        wait(&mut scenario, plain("r"), 100 * SECOND);
        scenario.drain();
        scenario.replies(ALL, Reply::Ok);
        let mut lease = scenario.acquired().unwrap();
        (0..3).for_each(|_| {
            wait(&mut scenario, plain("r"), 100 * SECOND);
        });
        standing(&mut scenario, resource.clone());
        for turn in 1..=4 {
            scenario.engine.abandon(scenario.now, lease);
            let acted = scenario.drain();
            let is_let_in = acted.iter().position(|acted| matches!(acted, Acted::Take(..)));
            let goes_on = acted.iter().position(|acted| matches!(acted, Acted::Set(..)));
            assert!(goes_on.is_some() && is_let_in < goes_on, "{resource:?}: {acted:?}");
            assert_eq!(is_let_in.is_some(), turn == 4, "{resource:?}, {turn}: {acted:?}");
            scenario.replies(ALL, YES);
            if turn == 4 {
                break;
            }
            scenario.replies(ALL, Reply::Ok);
            lease = scenario.acquired().unwrap();
            wait(&mut scenario, plain("r"), 100 * SECOND);
        }
    }
}

/// A local queue passes its position, at the returned node, on to another kind of lock, which has
/// asked for it.
fn passed_on(scenario: &mut Scenario) -> usize {
    wait(scenario, plain("r"), 100 * SECOND);
    scenario.drain();
    scenario.replies(ALL, Reply::Nil);
    let acted = scenario.drain();
    let [Acted::Release(..), Acted::Wait(queue_node, Waits::Able)] = acted[..] else {
        panic!("{acted:?}")
    };
    scenario.replies(ALL, NO);
    scenario.allow_waits(queue_node);
    assert_eq!(scenario.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
    scenario.reply(queue_node, Reply::Integer((1 << 40) + 10_002));
    scenario.notify(queue_node, "gr");
    scenario.drain();
    scenario.replies(ALL, Reply::Ok);
    let lease = scenario.acquired().unwrap();
    wait(scenario, alone(), 100 * SECOND);
    scenario.drain();
    scenario.replies(ALL, NO);
    scenario.drain();
    scenario.replies(ALL, NO);
    scenario.engine.abandon(scenario.now, lease);
    let acted = scenario.drain();
    assert!(matches!(acted[..], [Acted::Release(..), Acted::Take(..)]), "{acted:?}");
    scenario.replies(ALL, YES);
    queue_node
}

/// K9: if the turn of that line is over, the other kind has its position, and the next client is
/// told when that lock is released. The local queue queues up behind it.
#[test]
fn k9_position_of_a_local_queue_goes_to_another_kind_and_then_to_the_next() {
    let mut scenario = queueing();
    let queue_node = passed_on(&mut scenario);
    scenario.replies(ALL, YES);
    let lease = scenario.acquired().unwrap();
    wait(&mut scenario, plain("r"), 100 * SECOND);
    assert_eq!(
        scenario.drain(),
        [Acted::Wait(queue_node, Waits::QueueUp)],
        "it does not come first"
    );
    scenario.reply(queue_node, Reply::Integer(10_002));
    scenario.drain();
    scenario.engine.abandon(scenario.now, lease);
    let acted = scenario.drain();
    let behind =
        [Waits::StepOut(Step::Out), Waits::QueueUp].map(|waits| Acted::Wait(queue_node, waits));
    assert_eq!(acted[1..], behind, "{acted:?}");
}

/// Takes locks without a pause until the engine asks for a position before it asks for another.
/// Returns how many it took, and where the engine looks.
fn row(scenario: &mut Scenario, resource: &Resource) -> (usize, usize) {
    for count in 0..100 {
        wait(scenario, resource.clone(), 100 * SECOND);
        if let Some(queue_node) = looks(scenario) {
            return (count, queue_node);
        }
        take_and_give_up(scenario);
    }
    panic!("it takes locks for ever");
}

/// Where the engine asks for a position, unless it asks for the lock. It leaves a position before
/// that.
fn looks(scenario: &mut Scenario) -> Option<usize> {
    let mut queue_node = None;
    for acted in scenario.drain() {
        match acted {
            Acted::Wait(node, Waits::Able) => {
                scenario.allow_waits(node);
                assert_eq!(scenario.drain(), [Acted::Wait(node, Waits::QueueUp)]);
                queue_node = Some(node);
            }
            Acted::Wait(node, Waits::QueueUp) => queue_node = Some(node),
            Acted::Wait(node, Waits::StepOut(Step::Out)) => scenario.reply(node, NO),
            Acted::Take(..) | Acted::Set(..) => return None,
            other => panic!("{other:?}"),
        }
    }
    queue_node
}

/// K9: rows of locks end with a look at the queue. Without others there, the engine goes on.
#[test]
fn k9_series_of_locks_lets_those_in_the_queue_come_first() {
    for resource in [alone(), own(), share()] {
        let mut scenario = queueing();
        let mut queue_nodes = Vec::new();
        for length in [4, 7, 7] {
            let (count, queue_node) = row(&mut scenario, &resource);
            assert_eq!(count, length, "{resource:?}");
            queue_nodes.push(queue_node);
            scenario.reply(queue_node, Reply::Integer(0));
            assert_eq!(looks(&mut scenario), None, "no others are there");
            take_and_give_up(&mut scenario);
        }
        assert!(
            queue_nodes[0] == queue_nodes[2] && queue_nodes[0] != queue_nodes[1],
            "{queue_nodes:?}"
        );
        let (count, queue_node) = row(&mut scenario, &resource);
        assert_eq!(count, 7, "{resource:?}");
        assert!(!queue_nodes.contains(&queue_node), "{queue_nodes:?}");
        scenario.reply(queue_node, Reply::Integer(1 << 40));
        assert_eq!(scenario.drain(), [], "others are before it");
        scenario.notify(queue_node, "gr");
        assert!(matches!(scenario.drain()[..], [Acted::Take(..)]));
    }
}

/// K9: those that hold a key of a set may stand in the queue of another, and tell no others.
#[test]
fn k9_refused_set_asks_again_after_overtake_delays_whatever_the_delays_are() {
    let mut scenario = slow_to_ask();
    standing_after(&mut scenario, set(), Reply::Integer(2));
    // Chance is in the middle here: it asks after one and a half times as many.
    for delays in [1, 2, 4] {
        scenario.pass(3 * MS * delays - MS);
        assert_eq!(scenario.drain(), []);
        scenario.pass(MS);
        assert!(matches!(scenario.drain()[..], [Acted::Take(..)]), "{delays}");
        scenario.replies(ALL, Reply::Integer(2));
        scenario.drain();
        scenario.replies(ALL, NO);
    }
}

/// K9: a lock after a pause begins a series, however long the one before could have lived.
#[test]
fn k9_series_ends_with_a_pause_after_the_release() {
    let mut scenario = queueing();
    for _ in 0..4 {
        wait(&mut scenario, alone(), 100 * SECOND);
        assert_eq!(looks(&mut scenario), None);
        take_and_give_up(&mut scenario);
    }
    scenario.pass(2 * SECOND);
    scenario.drain_looked();
    wait(&mut scenario, alone(), 100 * SECOND);
    assert_eq!(looks(&mut scenario), None);
}

/// K9: a queue node that lists nobody else, although the lock is held, is left for another.
#[test]
fn k9_who_stands_alone_looks_for_others_at_another_node() {
    let mut scenario = queueing();
    let queue_node = standing(&mut scenario, alone());
    let mut queue_nodes = vec![queue_node];
    for _ in 0..4 {
        scenario.pass(SECOND);
        scenario.drain();
        scenario.replies(ALL, NO);
        let acted = scenario.drain();
        scenario.replies(ALL, NO);
        for acted in acted {
            match acted {
                Acted::Wait(node, Waits::Able) => {
                    queue_nodes.push(node);
                    scenario.allow_waits(node);
                    assert_eq!(scenario.drain(), [Acted::Wait(node, Waits::QueueUp)]);
                    scenario.reply(node, Reply::Integer(10_002));
                }
                Acted::Wait(node, Waits::QueueUp) => {
                    scenario.reply(node, Reply::Integer(10_002));
                }
                Acted::Wait(node, Waits::StepOut(_)) => scenario.reply(node, NO),
                _ => {}
            }
        }
    }
    queue_nodes.dedup();
    assert!(queue_nodes.len() > 1, "{queue_nodes:?}");
}

/// Its next round is refused. Says which queues it then leaves, and where it asks for a position:
/// it is told that it is at this one, and that the lock is held.
fn refused_once_more(scenario: &mut Scenario, position: i64) -> (Vec<usize>, Vec<usize>) {
    let mut acted = scenario.drain();
    if !acted.iter().any(|acted| matches!(acted, Acted::Take(..))) {
        scenario.pass(SECOND);
        acted = scenario.drain();
    }
    assert!(matches!(acted[..], [Acted::Take(..)]), "{acted:?}");
    scenario.replies(ALL, NO);
    let acted = scenario.drain();
    assert!(matches!(acted[0], Acted::Release(..)), "{acted:?}");
    scenario.replies(ALL, NO);
    follow(scenario, acted, Reply::Integer((position << 40) + 10_002))
}

/// Answers what is asked about places in queues.
fn follow(scenario: &mut Scenario, acted: Vec<Acted>, position: Reply) -> (Vec<usize>, Vec<usize>) {
    let (mut left, mut joined) = (Vec::new(), Vec::new());
    for acted in acted {
        match acted {
            Acted::Wait(node, Waits::Able) => {
                scenario.allow_waits(node);
                assert_eq!(scenario.drain(), [Acted::Wait(node, Waits::QueueUp)]);
                joined.push(node);
                scenario.reply(node, position.clone());
            }
            Acted::Wait(node, Waits::QueueUp) => {
                joined.push(node);
                scenario.reply(node, position.clone());
            }
            Acted::Wait(node, Waits::StepOut(Step::Out)) => {
                left.push(node);
                scenario.reply(node, NO);
            }
            _ => {}
        }
    }
    (left, joined)
}

/// K9: the pause of one that was notified in vain does not go beyond its patience.
#[test]
fn k9_pause_does_not_go_beyond_the_patience() {
    let mut scenario = queueing();
    let queue_node = standing(&mut scenario, alone());
    for _ in 0..4 {
        scenario.notify(queue_node, "gr");
        refused_once_more(&mut scenario, 1);
    }
    scenario.pass(100 * SECOND - 5 * MS);
    // It comes while a round is under way.
    scenario.notify(queue_node, "gr");
    assert!(matches!(scenario.drain()[..], [Acted::Take(..)]));
    scenario.replies(ALL, NO);
    assert_eq!(scenario.acquired().unwrap_err().kind(), LockErrorKind::Contended);
}

// Signs.

/// K6: whoever waits leaves a sign where it is refused, in each round; a single round leaves none.
#[test]
fn only_a_writer_that_waits_leaves_a_sign() {
    let mut scenario = Scenario::ready(3);
    once(&mut scenario, alone());
    assert_eq!(said(&mut scenario), ["take r r:intent"]);
    let mut scenario = Scenario::ready(3);
    wait(&mut scenario, alone(), SECOND);
    for _ in 0..3 {
        assert_eq!(said(&mut scenario), ["take r r:intent sign 500"]);
        scenario.replies(ALL, NO);
        assert_eq!(said(&mut scenario), ["RELEASE r"]);
        scenario.replies(ALL, NO);
        scenario.pass(60 * MS);
    }
    for (resource, ..) in [&forms()[0], &forms()[1], &forms()[3]] {
        let mut scenario = Scenario::ready(3);
        wait(&mut scenario, resource.clone(), SECOND);
        assert!(!said(&mut scenario)[0].contains("sign"), "{resource:?}");
    }
}

/// K6: masters that are very far away, or slow, do not make a sign last for longer than 5 s.
#[test]
fn sign_lasts_no_longer_than_five_seconds() {
    let mut scenario = ready_with(|builder| builder.node_timeout(2 * SECOND));
    let round_trip = 1_900 * MS;
    wait(&mut scenario, alone(), 100 * SECOND);
    for _ in 0..3 {
        assert!(said(&mut scenario)[0].starts_with("take r r:intent sign"));
        for _ in 0..2 {
            scenario.pass(round_trip);
            scenario.replies(ALL, NO);
            said(&mut scenario);
        }
        // The next round starts after one round trip to two.
        scenario.pass(2 * round_trip);
    }
    assert_eq!(said(&mut scenario), ["take r r:intent sign 5000"]);
}

// Slots.

/// K8: of the nodes that refused, most must say that the next one is free.
#[test]
fn next_slot_is_one_that_most_of_those_that_refused_call_free() {
    let table: [(u32, &[Reply], Option<u32>); 8] = [
        (3, &[free(&[1]), free(&[1])], Some(1)),
        (3, &[free(&[2]), free(&[2])], Some(2)),
        (3, &[free(&[1]), free(&[2])], None),
        (3, &[free(&[1, 2]), free(&[2])], Some(2)),
        (3, &[free(&[]), free(&[])], None),
        // Bits beyond the slots, and all that there are.
        (3, &[free(&[3, 49]), free(&[3, 49])], None),
        (1, &[Reply::Integer(i64::MAX), Reply::Integer(i64::MAX)], Some(0)),
        (SLOTS_MAX, &[free(&[49]), free(&[49])], Some(49)),
    ];
    for (count, replies, expected) in table {
        let mut scenario = Scenario::ready(3);
        once(&mut scenario, slots(count));
        let first = asked_slot(&mut scenario).unwrap();
        for (node, reply) in replies.iter().enumerate() {
            scenario.reply(node, reply.clone());
        }
        let said = said(&mut scenario);
        assert_eq!(said[0], format!("RELEASE s{{permit}}:{first}"), "what failed is undone first");
        let next = said.get(1).map(|said| said.split_once(" at ").unwrap().1.parse().unwrap());
        assert_eq!(next, expected, "{replies:?}");
        match expected {
            None => assert!(scenario.acquired().unwrap_err().is_contended()),
            Some(slot) => {
                scenario.nothing_done();
                scenario.replies(0..replies.len(), NO); // the release
                scenario.replies(0..replies.len(), YES);
                let lease = scenario.acquired().unwrap();
                assert_eq!(lease.resource(), &plain(&format!("s{{permit}}:{slot}")));
                assert_eq!((lease.rounds(), lease.waited()), (2, Duration::ZERO));
            }
        }
    }
}

/// A node that granted the slot, or gave no reason, says nothing of the others.
#[test]
fn only_those_that_gave_a_reason_say_what_is_free() {
    let mut scenario = Scenario::ready(5);
    once(&mut scenario, slots(3));
    assert_eq!(asked_slot(&mut scenario), Some(0));
    scenario.replies([0, 1], YES);
    scenario.replies([2, 3], NO);
    scenario.reply(4, free(&[2]));
    assert_eq!(asked_slot(&mut scenario), Some(2), "one of one");
    // A late answer to the first attempt is nothing to the second.
    scenario.replies([0, 1, 2, 3, 4], NO);
    scenario.replies([0, 1], free(&[0]));
    scenario.replies([2], free(&[1]));
    assert_eq!(asked_slot(&mut scenario), Some(0));
}

/// Lets all nodes refuse a slot and call these free, and answers the undoing. Returns whether
/// another one is asked for at once.
fn refuse(scenario: &mut Scenario, slots: &[u32]) -> bool {
    scenario.replies(ALL, free(slots));
    let acted = scenario.drain();
    assert!(matches!(acted[0], Acted::Release(..)), "{acted:?}");
    scenario.replies(ALL, NO);
    acted.len() > 1
}

/// K8: nine at most, and each is undone.
#[test]
fn at_most_nine_slots_are_tried_without_a_pause() {
    let mut scenario = Scenario::ready(3);
    once(&mut scenario, slots(20));
    scenario.drain();
    let tried = 1 + (1..20).take_while(|slot| refuse(&mut scenario, &[*slot])).count() as u32;
    assert_eq!(tried, SLOTS_TRIED_MAX);
    let error = scenario.acquired().unwrap_err();
    assert_eq!((error.kind(), error.attempts()), (LockErrorKind::Contended, SLOTS_TRIED_MAX));
    at_rest(&mut scenario);

    let mut scenario = Scenario::ready(3);
    let op = wait(&mut scenario, slots(20), 60 * SECOND);
    for _ in 0..3 {
        assert_eq!(scenario.drain().len(), 1);
        let tried = 1 + (1..20).take_while(|slot| refuse(&mut scenario, &[*slot])).count() as u32;
        assert_eq!(tried, SLOTS_TRIED_MAX);
        scenario.nothing_done();
        assert_eq!(scenario.drain(), [], "a pause");
        scenario.take_said();
        scenario.pass(SECOND);
    }
    assert_eq!(asked_slot(&mut scenario), Some(9), "the last one that was called free");
    assert!(matches!(scenario.engine.cancel(scenario.now, op), Cancelled::Acquisition));
}

/// No permit was refused so far, and one was got: the next one is asked for by a plain SET.
fn got_one(resource: &Resource) -> Scenario {
    let mut scenario = Scenario::ready(3);
    once(&mut scenario, resource.clone());
    scenario.drain();
    take_and_give_up(&mut scenario);
    said(&mut scenario);
    scenario
}

/// K8: it is a plain lock from its first command on.
#[test]
fn k8_next_permit_is_asked_for_by_a_plain_set() {
    let mut scenario = got_one(&slots(3));
    for _ in 0..3 {
        once(&mut scenario, slots(3));
        let said = said(&mut scenario);
        let slot = said[0].strip_prefix("SET ").unwrap();
        scenario.replies([0, 2], Reply::Ok);
        let lease = scenario.acquired().unwrap();
        assert_eq!((lease.resource(), lease.rounds()), (&plain(slot), 1));
        scenario.reply(1, Reply::Ok);
        scenario.engine.abandon(scenario.now, lease);
        assert_eq!(self::said(&mut scenario), [format!("RELEASE {slot}")]);
        scenario.replies(ALL, YES);
        at_rest(&mut scenario);
    }
}

/// K8: whether the caller waits or not. The script that follows says which slots are free.
#[test]
fn k8_slot_that_refuses_a_plain_set_is_followed_by_another_at_once() {
    for patience in [Duration::ZERO, SECOND] {
        let mut scenario = got_one(&slots(5));
        let ask = |scenario: &mut Scenario| match patience {
            Duration::ZERO => once(scenario, slots(5)),
            _ => wait(scenario, slots(5), patience),
        };
        ask(&mut scenario);
        let first = asked_slot(&mut scenario).unwrap();
        scenario.reply(0, Reply::Ok);
        scenario.replies([1, 2], Reply::Nil);
        let acted = said(&mut scenario);
        assert_eq!(acted[0], format!("RELEASE s{{permit}}:{first}"));
        let (take, second) = acted[1].split_once(" at ").unwrap();
        assert_eq!(take, "take s{permit}:0 s{permit}:1 s{permit}:2 s{permit}:3 s{permit}:4");
        let second: u32 = second.parse().unwrap();
        assert_ne!(second, first);
        scenario.replies(ALL, YES); // the release
        let free_one = (0..5).find(|slot| ![first, second].contains(slot)).unwrap();
        scenario.replies(ALL, free(&[free_one]));
        assert_eq!(asked_slot(&mut scenario), Some(free_one));
        scenario.replies(ALL, YES);
        scenario.replies(ALL, YES);
        assert_eq!(scenario.acquired().unwrap().rounds(), 3);
        // The next one begins with the script, and the one after it does not.
        for verb in ["take ", "SET "] {
            ask(&mut scenario);
            assert!(said(&mut scenario)[0].starts_with(verb));
            scenario.replies(ALL, if verb == "SET " { Reply::Ok } else { YES });
            assert!(scenario.acquired().is_ok());
        }
    }
    // There is no other.
    let mut scenario = got_one(&slots(1));
    once(&mut scenario, slots(1));
    assert_eq!(said(&mut scenario), ["SET s{permit}:0"]);
    scenario.replies(ALL, Reply::Nil);
    assert_eq!(said(&mut scenario), ["RELEASE s{permit}:0", "take s{permit}:0 at 0"]);
    scenario.replies(ALL, NO);
    scenario.replies(ALL, free(&[]));
    let error = scenario.acquired().unwrap_err();
    assert_eq!((error.kind(), error.attempts()), (LockErrorKind::Contended, 2));
    assert_eq!(outcome(&error, 0), NodeOutcome::Held);
    once(&mut scenario, slots(1));
    assert_eq!(said(&mut scenario)[1], "take s{permit}:0 at 0", "behind the release");
}

/// K8, R9: nodes that fail say nothing of a slot, so that the next one is asked for as before.
#[test]
fn k8_plain_set_without_a_quorum_is_not_followed_at_once() {
    let mut scenario = got_one(&slots(3));
    once(&mut scenario, slots(3));
    scenario.drain();
    scenario.replies([1, 2], server_error(ServerErrorKind::Busy));
    assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 2)]);
    assert!(scenario.acquired().unwrap_err().is_unavailable());
    scenario.reply(0, Reply::Nil);
    scenario.replies(ALL, NO);
    said(&mut scenario);
    once(&mut scenario, slots(3));
    assert!(said(&mut scenario)[0].starts_with("SET "));
}

/// R10, R12: what is cancelled or lost is released as the plain lock that it would have been.
#[test]
fn k8_plain_set_is_undone_as_a_plain_lock() {
    let mut scenario = got_one(&slots(1));
    let id = once(&mut scenario, slots(1));
    scenario.drain();
    lost(&mut scenario, 2);
    assert!(matches!(scenario.engine.cancel(scenario.now, id), Cancelled::Acquisition));
    assert_eq!(said(&mut scenario), ["SET s{permit}:0", "RELEASE s{permit}:0"]);
    let acted = reconnect(&mut scenario, 2);
    assert_eq!(acted, [Acted::Kill(2, 3), Acted::Release(vec![2], 2)]);
    assert_eq!(scenario.take_said(), ["RELEASE s{permit}:0"]);
}

/// K9: a slot is waited for in its own queue, however it was asked for.
#[test]
fn k9_slot_that_refused_a_plain_set_is_waited_for_in_its_queue() {
    let mut scenario = queueing();
    once(&mut scenario, slots(1));
    scenario.drain();
    take_and_give_up(&mut scenario);
    said(&mut scenario);
    wait(&mut scenario, slots(1), 100 * SECOND);
    assert_eq!(said(&mut scenario), ["SET s{permit}:0"]);
    scenario.replies(ALL, Reply::Nil);
    assert_eq!(said(&mut scenario), ["RELEASE s{permit}:0", "take s{permit}:0 at 0"]);
    scenario.replies(ALL, NO);
    scenario.replies(ALL, free(&[]));
    let acted = scenario.drain();
    scenario.replies(ALL, NO);
    let joined = follow(&mut scenario, acted, Reply::Integer((1 << 40) + 10_002)).1;
    said(&mut scenario);
    scenario.notify(joined[0], "gs{permit}:0");
    assert_eq!(said(&mut scenario), ["take s{permit}:0 at 0"]);
}

/// K8: where none is free, the next one is asked for after a random delay, and is any.
#[test]
fn slots_that_are_all_held_are_asked_for_after_a_delay() {
    let mut scenario = Scenario::ready(3);
    wait(&mut scenario, slots(3), SECOND);
    scenario.drain();
    assert!(refuse(&mut scenario, &[1]));
    assert!(!refuse(&mut scenario, &[]));
    scenario.take_said();
    scenario.pass(SECOND / 2);
    assert_eq!(asked_slot(&mut scenario), Some(0), "not the last one again");
    scenario.replies(ALL, YES);
    assert_eq!(scenario.acquired().unwrap().rounds(), 3);
}

/// R9: nodes that fail say nothing of other slots.
#[test]
fn no_other_slot_is_asked_for_where_no_quorum_answers() {
    for patience in [Patience::OneRound, Patience::Until(Moment::from_nanos(u64::MAX))] {
        let mut scenario = Scenario::ready(3);
        scenario.acquire_of(slots(3), TTL, patience);
        scenario.drain();
        scenario.replies([1, 2], server_error(ServerErrorKind::Busy));
        scenario.reply(0, free(&[1, 2]));
        assert_eq!(scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
        match patience {
            Patience::OneRound => assert!(scenario.acquired().unwrap_err().is_unavailable()),
            _ => scenario.nothing_done(),
        }
    }
}

// Lost commands.

/// R12: what was lost with its connection is released on the next one, in the words of the form;
/// of a slot, the key of this slot and no other.
#[test]
fn lost_command_of_each_form_is_released_where_it_may_have_run() {
    for (resource, take, release) in forms() {
        let mut scenario = Scenario::ready(3);
        once(&mut scenario, resource);
        assert_eq!(said(&mut scenario), [take]);
        lost(&mut scenario, 2);
        scenario.replies([0, 1], NO);
        assert!(scenario.acquired().is_err());
        assert_eq!(said(&mut scenario), [release]);
        scenario.replies([0, 1], NO);
        let acted = reconnect(&mut scenario, 2);
        assert_eq!(acted, [Acted::Kill(2, 3), Acted::Release(vec![2], 1)]);
        assert_eq!(scenario.take_said(), [release]);
        scenario.reply(2, YES);
        scenario.reply(2, YES);
        at_rest(&mut scenario);
    }
}

/// R12: of a slot that is held, it is the plain lock; of the slots that were not got, each its own.
#[test]
fn each_lost_slot_is_owed_by_its_own_key() {
    let mut scenario = Scenario::ready(3);
    once(&mut scenario, slots(3));
    scenario.drain();
    scenario.replies([0, 1], free(&[2]));
    assert_eq!(scenario.drain().len(), 3, "the undo, and the script by its hash and by its text");
    lost(&mut scenario, 2);
    scenario.replies([0, 1], NO);
    scenario.replies([0, 1], YES);
    let lease = scenario.acquired().unwrap();
    assert_eq!(lease.resource(), &plain("s{permit}:2"));
    let acted = reconnect(&mut scenario, 2);
    assert_eq!(acted, [Acted::Kill(2, 3), Acted::Release(vec![2], 1)]);
    assert_eq!(scenario.take_said(), ["RELEASE s{permit}:0"], "the other one is held");
    scenario.reply(2, YES);
    scenario.reply(2, NO);
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(said(&mut scenario), ["RELEASE s{permit}:2"]);
    scenario.replies(ALL, YES);
    at_rest(&mut scenario);
}

/// R12: a release that was lost is sent again, in the same words.
#[test]
fn lost_release_of_each_form_is_sent_again() {
    for (resource, _, release) in forms() {
        let mut scenario = Scenario::ready(3);
        let lease = locked(&mut scenario, resource);
        scenario.engine.abandon(scenario.now, lease);
        assert_eq!(said(&mut scenario), [release]);
        scenario.replies([0, 1], YES);
        lost(&mut scenario, 2);
        let acted = reconnect(&mut scenario, 2);
        assert_eq!(acted, [Acted::Release(vec![2], 1)]);
        assert_eq!(scenario.take_said(), [release]);
        scenario.reply(2, YES);
        at_rest(&mut scenario);
    }
}

/// K13: nobody says for how long the lock lives that is released by its value.
#[test]
fn refused_release_by_value_is_owed_for_as_long_as_any_lock_lives() {
    let mut scenario = Scenario::ready(3);
    let token = *locked(&mut scenario, own()).token();
    scenario.engine.release(scenario.now, Lease::of_value(own(), token, TTL), ReleaseHow::ToTheEnd);
    assert_eq!(said(&mut scenario), ["free r r:as"]);
    scenario.replies([0, 1], YES);
    for _ in 0..4 {
        scenario.reply(2, server_error(ServerErrorKind::Busy));
        scenario.pass(SECOND);
        assert_eq!(said(&mut scenario), ["free r r:as"]);
    }
    scenario.reply(2, YES);
    assert!(scenario.engine.statuses().all(|node| node.pending_releases == 0));
}

/// The token of the first attempt of an engine.
fn first_token() -> LockToken {
    *locked(&mut Scenario::ready(3), own()).token()
}

/// K13: its own engine still asks for it, one node of three is not connected yet, and two do not
/// agree.
#[test]
fn attempt_that_is_released_by_its_value_fails() {
    let mut scenario = Scenario::ready(3);
    lost(&mut scenario, 2);
    scenario.pass(CONNECT_TIMEOUT);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    once(&mut scenario, own());
    scenario.drain();
    scenario.reply(0, YES);
    scenario.reply(1, NO);
    scenario.nothing_done();
    scenario.engine.release(
        scenario.now,
        Lease::of_value(own(), first_token(), TTL),
        ReleaseHow::ToTheEnd,
    );
    let error = scenario.acquired().unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Contended);
    assert_eq!(outcome(&error, 2), NodeOutcome::Absent);
    scenario.drain();
    scenario.replies([0, 0, 1, 1], YES);
    assert_eq!(scenario.released().expect("two of three answered").confirmed, 2);
    assert_eq!(scenario.engine.operations().count(), 0);
}

/// K13: the release finds what is to be released. An undo in front of it would delete it.
#[test]
fn release_by_value_is_sent_before_the_undo_of_the_attempt_that_it_ends() {
    let mut scenario = Scenario::ready(3);
    once(&mut scenario, own());
    scenario.drain();
    scenario.take_said();
    scenario.reply(0, YES);
    scenario.engine.release(
        scenario.now,
        Lease::of_value(own(), first_token(), TTL),
        ReleaseHow::ToTheEnd,
    );
    assert_eq!(scenario.acquired().unwrap_err().kind(), LockErrorKind::Contended);
    assert_eq!(said(&mut scenario), ["free r r:as"; 2]);
    scenario.replies([1, 2], NO);
    scenario.replies(ALL, YES);
    assert_eq!(scenario.released().expect("all answered").confirmed, 3);
    scenario.replies(ALL, NO);
    at_rest(&mut scenario);
}

/// K13: what it might still be granted is deleted behind that.
#[test]
fn extension_that_is_under_way_fails_when_its_lock_is_released_by_value() {
    let mut scenario = Scenario::ready(3);
    let lease = locked(&mut scenario, own());
    let token = *lease.token();
    scenario.engine.extend(scenario.now, lease, TTL);
    scenario.drain();
    scenario.reply(0, YES);
    scenario.engine.release(scenario.now, Lease::of_value(own(), token, TTL), ReleaseHow::ToTheEnd);
    let (_, result) = scenario.extended();
    result.unwrap_err();
    scenario.drain();
    scenario.replies([1, 2, 0, 1, 2], YES);
    assert_eq!(scenario.released().expect("all answered").confirmed, 3);
}

/// K13: what is asked for other tokens goes on, and so does another release of this one.
#[test]
fn release_by_value_ends_nothing_but_what_asks_for_its_token() {
    let mut scenario = Scenario::ready(3);
    let lease = locked(&mut scenario, own());
    once(&mut scenario, plain("other"));
    scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
    scenario.engine.release(
        scenario.now,
        Lease::of_value(own(), first_token(), TTL),
        ReleaseHow::ToTheEnd,
    );
    scenario.drain();
    scenario.nothing_done();
    scenario.replies([0, 1], Reply::Ok);
    assert_eq!(scenario.acquired().unwrap().resource(), &plain("other"));
    scenario.replies([0, 1], YES);
    assert_eq!(scenario.released().unwrap().confirmed, 2);
    scenario.replies([0, 1], NO);
    assert_eq!(scenario.released().unwrap().absent, 2);
}

/// K13: an acquisition with patience tries again, with another token.
#[test]
fn attempt_with_patience_that_is_released_by_its_value_is_followed_by_another() {
    for (resource, _, _) in forms() {
        let mut scenario = Scenario::ready(3);
        wait(&mut scenario, resource.clone(), SECOND);
        scenario.drain();
        scenario.reply(0, YES);
        scenario.engine.abandon(scenario.now, Lease::of_value(own(), first_token(), TTL));
        scenario.nothing_done();
        scenario.drain();
        // One node answers late; all of them, the release and the undo.
        scenario.replies([1, 2], YES);
        scenario.replies([0, 1, 2, 0, 1, 2], NO);
        let due = scenario.next_timeout().expect("it tries again");
        scenario.pass(due.since(scenario.now));
        let acted = scenario.drain();
        assert!(matches!(&acted[..], [Acted::Take(nodes, 2)] if *nodes == ALL), "{acted:?}");
        take_and_give_up(&mut scenario);
        at_rest(&mut scenario);
    }
}

/// K13: its counters are being raised.
#[test]
fn fenced_attempt_that_is_released_by_its_token_fails() {
    let mut scenario = Scenario::ready(3);
    let (now, key) = (scenario.now, plain("r"));
    scenario.engine.acquire(now, key.clone(), TTL, Patience::OneRound, Fencing::On).unwrap();
    let Some(Acted::Fenced(_, 1, time)) = scenario.drain().pop() else { panic!("no attempt") };
    scenario.reply(0, YES);
    scenario.reply(1, Reply::Integer(time as i64 + 9));
    assert_eq!(scenario.drain(), [Acted::Confirm(vec![0], 1, time + 9)]);
    scenario.engine.abandon(now, Lease::of_value(key, first_token(), TTL));
    assert_eq!(scenario.acquired().unwrap_err().kind(), LockErrorKind::Contended);
    assert_eq!(said(&mut scenario), ["RELEASE r", "RELEASE r"]);
    scenario.reply(0, YES);
    scenario.reply(2, YES);
    scenario.replies([0, 1, 2, 0, 1, 2], NO);
    at_rest(&mut scenario);
}

/// K13: the engine renews it.
#[test]
fn renewal_that_is_under_way_ends_when_its_lock_is_released_by_value() {
    for heal in [Heal::Off, Heal::On] {
        let mut scenario = ready_with(|builder| healing(builder).heal(heal));
        let lease = locked(&mut scenario, own());
        scenario.engine.keep(scenario.now, lease, &KeepAlive::default());
        let mut acted = Vec::new();
        while !acted.iter().any(|it| matches!(it, Acted::Extend(..) | Acted::Heal(..))) {
            let due = scenario.next_timeout().expect("a renewal is due");
            scenario.pass(due.since(scenario.now));
            acted = scenario.drain_looked();
        }
        scenario.reply(0, YES);
        let by_value = Lease::of_value(own(), first_token(), TTL);
        scenario.engine.abandon(scenario.now, by_value);
        let Some(Done::Lost(lease, loss)) = scenario.done() else { panic!("it is kept") };
        assert_eq!((loss.cause, loss.remaining), (LossCause::Gone, Duration::ZERO));
        scenario.engine.abandon(scenario.now, lease);
        let acted = scenario.drain();
        scenario.looked(acted);
        scenario.replies([1, 2, 0, 1, 2, 0, 1, 2], NO);
        assert_eq!(scenario.engine.unanswered(), 0);
    }
}

// Extensions.

/// R31: a lock of each form is kept alive, and lost if it is gone.
#[test]
fn each_form_is_kept_alive() {
    for (resource, _, keep, _) in held_forms() {
        let resource = if keep.starts_with("EXTEND s") { slots(3) } else { resource };
        let mut scenario = Scenario::ready(3);
        let lease = locked(&mut scenario, resource);
        let op = scenario.engine.keep(scenario.now, lease, &KeepAlive::default());
        for replies in [YES, NO] {
            scenario.pass(TTL / 3);
            assert_eq!(said(&mut scenario), [keep]);
            scenario.replies(ALL, replies.clone());
            match (replies, scenario.done()) {
                (YES, Some(Done::Renewed(until))) => {
                    assert_eq!(until, scenario.engine.operations().kept(op).unwrap().valid_until());
                }
                (NO, Some(Done::Lost(_, loss))) => assert_eq!(loss.cause, LossCause::Gone),
                (_, other) => panic!("{other:?}"),
            }
        }
    }
}

/// R12, R29: a healing extension that was lost is owed in the words of the form.
#[test]
fn lost_extension_that_heals_is_owed() {
    for (i, (resource, _, keep, heal)) in held_forms().into_iter().enumerate() {
        let resource = if keep.starts_with("EXTEND s") { slots(3) } else { resource };
        let mut scenario = ready_with(healing);
        let lease = locked(&mut scenario, resource);
        scenario.engine.extend(scenario.now, lease, TTL);
        scenario.drain_looked();
        assert_eq!(scenario.take_said(), [heal]);
        lost(&mut scenario, 2);
        scenario.replies([0, 1], YES);
        let (lease, result) = scenario.extended();
        result.unwrap();
        let acted = reconnect(&mut scenario, 2);
        assert_eq!(scenario.looked(acted), [Acted::Kill(2, 3)], "it may count: nothing is freed");
        scenario.engine.abandon(scenario.now, lease);
        scenario.drain_looked();
        assert_eq!(scenario.take_said(), [forms()[i].2]);
    }
}

// Downgrade.

/// A lock of its own, which was had in each of the ways.
fn alone_in_each_way() -> [Resource; 2] {
    [plain("r"), alone()]
}

fn yes_to(resource: &Resource) -> Reply {
    if *resource == plain("r") { Reply::Ok } else { YES }
}

/// A lock of `r` alone, granted by all nodes.
fn held_alone(scenario: &mut Scenario, resource: &Resource) -> Lease {
    once(scenario, resource.clone());
    scenario.drain_looked();
    scenario.replies(ALL, yes_to(resource));
    scenario.take_said();
    scenario.acquired().unwrap()
}

/// K7: it counts like an extension, and then it is a share.
#[test]
fn downgrade_is_an_extension_to_a_share() {
    for resource in alone_in_each_way() {
        let mut scenario = Scenario::ready(3);
        let lease = held_alone(&mut scenario, &resource);
        let deadline = lease.valid_until();
        scenario.pass(SECOND);
        scenario.engine.extend(scenario.now, lease.into_shared(), TTL);
        assert_eq!(said(&mut scenario), ["keep share r r:intent"]);
        scenario.reply(2, YES);
        scenario.nothing_done();
        scenario.reply(0, YES);
        let (lease, result) = scenario.extended();
        result.unwrap();
        assert_eq!((lease.resource(), lease.valid_until()), (&share(), deadline.after(SECOND)));
        scenario.engine.extend(scenario.now, lease, TTL);
        assert_eq!(said(&mut scenario), ["keep share r r:intent"]);
        scenario.replies([1, 0, 1, 2], YES);
        let (lease, result) = scenario.extended();
        result.unwrap();
        scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
        assert_eq!(said(&mut scenario), ["free share r r:intent"]);
        scenario.replies(ALL, YES);
        assert!(scenario.released().unwrap().was_held());
        at_rest(&mut scenario);
    }
}

/// K7: answers at the old deadline are too late, as those of an extension are (R22, R25).
#[test]
fn downgrade_that_is_confirmed_at_the_old_deadline_is_too_late() {
    for resource in alone_in_each_way() {
        for (early, is_share) in [(Duration::from_nanos(1), true), (Duration::ZERO, false)] {
            let mut scenario = ready_with(|builder| builder.node_timeout(60 * SECOND));
            let lease = held_alone(&mut scenario, &resource);
            let deadline = lease.valid_until();
            scenario.engine.extend(scenario.now, lease.into_shared(), TTL * 2);
            scenario.drain();
            scenario.take_said();
            scenario.now = Moment::from_nanos(deadline.as_nanos() - early.as_nanos() as u64);
            scenario.replies([0, 1], YES);
            let (lease, result) = scenario.extended();
            assert_eq!(result.is_ok(), is_share);
            assert_eq!(lease.valid_until() > deadline, is_share);
            scenario.engine.release(scenario.now, lease, ReleaseHow::ToTheEnd);
            assert_eq!(said(&mut scenario), ["free share r r:intent"], "whatever it is there");
        }
        // After it, nothing is sent.
        let mut scenario = Scenario::ready(3);
        let lease = held_alone(&mut scenario, &resource);
        scenario.now = lease.valid_until();
        scenario.engine.extend(scenario.now, lease.into_shared(), TTL);
        assert_eq!(said(&mut scenario), [""; 0]);
        let (lease, result) = scenario.extended();
        assert!(result.unwrap_err().is_expired());
        scenario.engine.abandon(scenario.now, lease);
        assert_eq!(said(&mut scenario), ["free share r r:intent"]);
    }
}

/// R12, K7: what took the lock was lost before the downgrade, and may run after the release.
#[test]
fn lost_command_of_a_lock_that_was_downgraded_is_owed_as_a_share() {
    for resource in alone_in_each_way() {
        for is_back_before in [false, true] {
            let mut scenario = Scenario::ready(3);
            once(&mut scenario, resource.clone());
            scenario.drain();
            scenario.replies([0, 1], yes_to(&resource));
            let lease = scenario.acquired().unwrap();
            lost(&mut scenario, 2);
            if is_back_before {
                assert_eq!(reconnect(&mut scenario, 2), [Acted::Kill(2, 3)]);
                scenario.reply(2, server_error(ServerErrorKind::Permission));
            }
            scenario.engine.extend(scenario.now, lease.into_shared(), TTL);
            scenario.drain();
            scenario.replies([0, 1], YES);
            let (lease, result) = scenario.extended();
            result.unwrap();
            if is_back_before {
                scenario.reply(2, NO);
            }
            scenario.take_said();
            scenario.engine.abandon(scenario.now, lease);
            let mut freed = said(&mut scenario);
            scenario.replies([0, 1], YES);
            if !is_back_before {
                // It was asked for when the lock was extended.
                scenario.connect(2);
                freed.extend(said(&mut scenario));
                scenario.reply(2, server_error(ServerErrorKind::Permission)); // the kill
            }
            scenario.reply(2, NO);
            // And again, because the old connection may not have ended (R12).
            scenario.pass(SECOND);
            freed.extend(said(&mut scenario));
            let expected = vec!["free share r r:intent"; if is_back_before { 2 } else { 4 }];
            assert_eq!(freed, expected, "back before: {is_back_before}");
        }
    }
}

/// W1: from the downgrade on, those of the same client that wait for the lock alone ask the masters
/// themselves: its release is that of a share, and nobody tells them.
#[test]
fn downgrade_lets_the_next_in_the_local_queue_ask_for_itself() {
    for (resource, take) in [(plain("r"), "SET r"), (alone(), "take r r:intent sign 500")] {
        let mut scenario = Scenario::ready(3);
        wait(&mut scenario, resource.clone(), 60 * SECOND);
        scenario.drain();
        scenario.replies(ALL, yes_to(&resource));
        let lease = scenario.acquired().unwrap();
        wait(&mut scenario, resource.clone(), 60 * SECOND);
        scenario.take_said();
        assert_eq!(said(&mut scenario), [""; 0], "its lock is in the way");
        scenario.engine.extend(scenario.now, lease.into_shared(), TTL);
        assert_eq!(said(&mut scenario), ["keep share r r:intent", take]);
        scenario.replies(ALL, YES);
        let (share, result) = scenario.extended();
        result.unwrap();
        scenario.replies(ALL, if resource == plain("r") { Reply::Nil } else { NO });
        scenario.engine.abandon(scenario.now, share);
        scenario.drain();
        scenario.replies(ALL, NO);
        scenario.replies(ALL, YES);
        scenario.pass(SECOND);
        assert_eq!(said(&mut scenario).last().unwrap(), take, "long before the old deadline");
    }
}

// Hand-over.

/// K7: it is handed over while it is held alone, and shared by who takes it.
#[test]
fn lock_that_is_downgraded_after_a_hand_over_is_owed_as_a_share() {
    for resource in alone_in_each_way() {
        let (mut giver, mut taker) = (Scenario::ready(3), Scenario::ready(3));
        once(&mut giver, resource.clone());
        giver.drain();
        giver.replies([0, 1], yes_to(&resource));
        let mut lease = giver.acquired().unwrap();
        giver.engine.let_go(giver.now, &mut lease);
        taker.engine.extend(taker.now, lease, TTL);
        taker.drain();
        taker.replies([0, 1], YES);
        let (lease, result) = taker.extended();
        result.unwrap();
        taker.reply(2, NO);
        taker.engine.extend(taker.now, lease.into_shared(), TTL);
        taker.drain();
        taker.replies([0, 1], YES);
        let (lease, result) = taker.extended();
        result.unwrap();
        taker.reply(2, NO);
        taker.take_said();
        taker.engine.abandon(taker.now, lease);
        let mut freed = said(&mut taker);
        taker.replies([0, 1], YES);
        taker.reply(2, NO);
        taker.pass(SECOND);
        freed.extend(said(&mut taker));
        assert_eq!(freed, ["free share r r:intent"; 2]);
    }
}

/// A share of several resources is nothing; the lock stays what it is. A fenced lock's number goes.
#[test]
fn only_one_resource_can_be_shared() {
    let mut scenario = Scenario::ready(3);
    let lease = locked(&mut scenario, set()).into_shared();
    assert_eq!(lease.resource(), &set());
    scenario.engine.abandon(scenario.now, lease);
    assert_eq!(said(&mut scenario), ["free a b"]);
    let mut scenario = Scenario::ready(3);
    let lease = locked(&mut scenario, slots(3)).into_shared();
    assert_eq!(lease.resource(), &Resource::shared("s{permit}:0").unwrap());
    let number: Option<FencingToken> = lease.fencing_token();
    assert_eq!(number, None);
}

// A caller's value.

/// K11: it cannot be shared.
#[test]
fn lock_with_a_value_does_not_become_a_share() {
    let mut scenario = Scenario::ready(3);
    let lease = locked(&mut scenario, own()).into_shared();
    assert_eq!(lease.resource(), &own());
}

/// K9: the one that has the lock keeps the position until its release, whatever the others do.
#[test]
fn k9_position_is_kept_until_the_release_although_another_gives_up() {
    for is_told in [false, true] {
        let mut scenario = queueing();
        let queue_node = standing(&mut scenario, alone());
        let second = wait(&mut scenario, own(), 100 * SECOND);
        assert_eq!(scenario.drain(), [Acted::Wait(queue_node, Waits::QueueUp)]);
        scenario.reply(queue_node, Reply::Integer((1 << 40) + 10_002));
        scenario.notify(queue_node, "gr");
        assert!(matches!(scenario.drain()[..], [Acted::Take(..)]));
        scenario.replies(ALL, YES);
        let lease = scenario.acquired().unwrap();
        if is_told {
            scenario.notify(queue_node, "gr");
            assert_eq!(scenario.drain(), [], "it has the lock that this is about");
        }
        let _ = scenario.engine.cancel(scenario.now, second);
        assert_eq!(scenario.drain(), []);
        scenario.engine.abandon(scenario.now, lease);
        let acted = scenario.drain();
        assert_eq!(acted[1..], [Acted::Wait(queue_node, Waits::StepOut(Step::Out))], "{acted:?}");
    }
}

/// K9: if the first one is told and gives up while it asks, the next one asks in its place.
#[test]
fn k9_turn_of_one_that_gives_up_is_the_next_ones() {
    let behind = Reply::Integer((1 << 40) + 10_002);
    let mut scenario = slow_to_ask();
    let first = wait(&mut scenario, alone(), 100 * SECOND);
    scenario.drain();
    let mut queue_nodes = Vec::new();
    for second in [None, Some(own())] {
        if let Some(second) = second {
            wait(&mut scenario, second, 100 * SECOND);
            let acted = scenario.drain();
            follow(&mut scenario, acted, behind.clone());
            scenario.pass(ASKED_AFTER);
            scenario.drain();
        }
        scenario.replies(ALL, NO);
        let acted = scenario.drain();
        scenario.replies(ALL, NO);
        queue_nodes.extend(follow(&mut scenario, acted, behind.clone()).1);
    }
    scenario.notify(queue_nodes[0], "gr");
    assert!(matches!(scenario.drain()[..], [Acted::Take(..)]));
    let _ = scenario.engine.cancel(scenario.now, first);
    assert!(matches!(scenario.drain()[..], [Acted::Release(..), Acted::Take(..)]));
}

/// The turn of a local queue of this many plain locks at which the first of these is let in.
fn turns_before_others(line: usize, others: &[Resource]) -> usize {
    let mut scenario = queueing();
    wait(&mut scenario, plain("r"), 100 * SECOND);
    scenario.drain();
    scenario.replies(ALL, Reply::Ok);
    let mut lease = scenario.acquired().unwrap();
    (1..line).for_each(|_| {
        wait(&mut scenario, plain("r"), 100 * SECOND);
    });
    standing(&mut scenario, others[0].clone());
    for other in &others[1..] {
        wait(&mut scenario, other.clone(), 100 * SECOND);
        let acted = scenario.drain();
        follow(&mut scenario, acted, Reply::Integer((1 << 40) + 10_002));
    }
    for turn in 1..100 {
        scenario.engine.abandon(scenario.now, lease);
        if scenario.drain().iter().any(|acted| matches!(acted, Acted::Take(..))) {
            return turn;
        }
        scenario.replies(ALL, YES);
        scenario.replies(ALL, Reply::Ok);
        lease = scenario.acquired().unwrap();
        wait(&mut scenario, plain("r"), 100 * SECOND);
    }
    panic!("it is never let in")
}

/// K9: the turns of a local queue are shared by those that wait, and are 16 at most.
#[test]
fn k9_local_queue_lets_each_in_after_its_share_of_turns() {
    assert_eq!(turns_before_others(4, &[alone()]), 4);
    assert_eq!(turns_before_others(4, &[alone(), own()]), 2);
    assert_eq!(turns_before_others(5, &[alone(), own()]), 3);
    assert_eq!(turns_before_others(40, &[alone()]), 16);
}

/// K9: an engine with a local queue of plain locks in the queue has no second place there.
#[test]
fn k9_other_kind_takes_no_position_beside_a_local_queue() {
    let mut scenario = queueing();
    wait(&mut scenario, plain("r"), 100 * SECOND);
    scenario.drain();
    scenario.replies(ALL, Reply::Nil);
    let acted = scenario.drain();
    scenario.replies(ALL, NO);
    assert_eq!(follow(&mut scenario, acted, Reply::Integer((5 << 40) + 10_002)).1.len(), 1);
    wait(&mut scenario, alone(), 100 * SECOND);
    scenario.drain();
    scenario.replies(ALL, NO);
    let acted = scenario.drain();
    assert!(matches!(acted[..], [Acted::Release(..)]), "{acted:?}");
}

/// K9: a local queue that nobody waits in leaves the queue node to the visit that is let in.
#[test]
fn k9_local_queue_that_has_ended_leaves_its_position_when_another_kind_is_let_in() {
    let mut scenario = queueing();
    wait(&mut scenario, plain("r"), 100 * SECOND);
    let second = wait(&mut scenario, plain("r"), 100 * SECOND);
    scenario.drain();
    scenario.replies(ALL, Reply::Nil);
    let acted = scenario.drain();
    scenario.replies(ALL, NO);
    let queue_node = follow(&mut scenario, acted, Reply::Integer((1 << 40) + 10_002)).1[0];
    scenario.notify(queue_node, "gr");
    scenario.drain();
    scenario.replies(ALL, Reply::Ok);
    let lease = scenario.acquired().unwrap();
    scenario.drain();
    let _ = scenario.engine.cancel(scenario.now, second);
    wait(&mut scenario, alone(), 100 * SECOND);
    scenario.drain();
    scenario.replies(ALL, NO);
    scenario.drain();
    scenario.replies(ALL, NO);
    scenario.engine.abandon(scenario.now, lease);
    let acted = scenario.drain();
    assert!(acted.iter().any(|acted| matches!(acted, Acted::Take(..))), "{acted:?}");
    assert!(acted.contains(&Acted::Wait(queue_node, Waits::StepOut(Step::Out))), "{acted:?}");
}

/// K9: of several that wait in one engine, the one that was refused comes after the others.
#[test]
fn k9_members_ask_in_turn() {
    let mut scenario = queueing();
    let queue_node = standing(&mut scenario, alone());
    wait(&mut scenario, own(), 100 * SECOND);
    let acted = scenario.drain();
    follow(&mut scenario, acted, Reply::Integer((1 << 40) + 10_002));
    scenario.take_said();
    for take in ["take r r:intent", "take r r:as", "take r r:intent"] {
        scenario.notify(queue_node, "gr");
        let acted = scenario.drain();
        assert!(matches!(acted[..], [Acted::Take(..)]), "{acted:?}");
        assert!(scenario.take_said()[0].starts_with(take), "{take}");
        scenario.replies(ALL, NO);
        let acted = scenario.drain();
        scenario.replies(ALL, NO);
        follow(&mut scenario, acted, Reply::Integer((1 << 40) + 10_002));
        scenario.take_said();
    }
}

/// K9: a position that is kept for a lock is left with its release, although others wait meanwhile.
#[test]
fn k9_position_that_is_kept_is_not_forgotten_for_others() {
    let mut scenario = queueing();
    let queue_node = standing(&mut scenario, alone());
    scenario.notify(queue_node, "gr");
    scenario.drain();
    scenario.replies(ALL, YES);
    let lease = scenario.acquired().unwrap();
    scenario.pass(2 * SECOND);
    wait(&mut scenario, Resource::exclusive("q").unwrap(), 100 * SECOND);
    assert!(matches!(scenario.drain()[..], [Acted::Take(..)]));
    scenario.replies(ALL, NO);
    let acted = scenario.drain();
    scenario.replies(ALL, NO);
    follow(&mut scenario, acted, Reply::Integer((1 << 40) + 10_002));
    scenario.engine.abandon(scenario.now, lease);
    let acted = scenario.drain();
    assert_eq!(acted[1..], [Acted::Wait(queue_node, Waits::StepOut(Step::Out))], "{acted:?}");
}

/// K8, K9: one that waits for a slot takes another that is free. If it was told to take its own, it
/// leaves that queue to the next.
#[test]
fn k9_one_that_waits_for_a_slot_takes_another_that_is_free() {
    for is_told in [false, true] {
        let mut scenario = queueing();
        let queue_node = standing(&mut scenario, slots(3));
        match is_told {
            true => scenario.notify(queue_node, "gs{permit}:0"),
            false => scenario.pass(SECOND),
        }
        assert_eq!(asked_slot(&mut scenario), Some(0));
        scenario.replies(ALL, free(&[1]));
        assert_eq!(asked_slot(&mut scenario), Some(1));
        scenario.replies(ALL, NO);
        scenario.replies(ALL, YES);
        assert_eq!(scenario.acquired().unwrap().resource(), &plain("s{permit}:1"));
        assert_eq!(scenario.drain(), [Acted::Wait(queue_node, Waits::StepOut(Step::Out))]);
    }
}

/// K9: an engine has 64 such places at most, and 128 that wait at one; the others ask after delays.
#[test]
fn k9_positions_and_members_are_limited() {
    let mut scenario = queueing();
    let mut places = 0;
    for number in 0..70 {
        wait(&mut scenario, Resource::exclusive(format!("r{number}")).unwrap(), 100 * SECOND);
        scenario.drain();
        scenario.replies(ALL, NO);
        let acted = scenario.drain();
        scenario.replies(ALL, NO);
        places += follow(&mut scenario, acted, Reply::Integer((1 << 40) + 10_002)).1.len();
    }
    assert_eq!(places, 64);
    let mut scenario = queueing();
    let queue_node = standing(&mut scenario, share());
    for _ in 0..140 {
        wait(&mut scenario, share(), 100 * SECOND);
        let acted = scenario.drain();
        if let [Acted::Take(..)] = acted[..] {
            scenario.replies(ALL, NO);
            let acted = scenario.drain();
            scenario.replies(ALL, NO);
            follow(&mut scenario, acted, Reply::Integer((1 << 40) + 10_002));
        } else {
            follow(&mut scenario, acted, Reply::Integer((1 << 40) + 10_002));
        }
    }
    scenario.notify(queue_node, "gr");
    let acted = scenario.drain();
    assert!(acted.iter().all(|acted| matches!(acted, Acted::Take(..))), "{acted:?}");
    assert_eq!(acted.len(), 128);
}
