//! Masters that forget: killed and restarted without their data, or flushed.

use std::thread;
use std::time::Duration;

use muxlock::node::{NodeOutcome, NodeState, NodeStatus, QuarantineCause, Unfit};
use muxlock::settings::RestartGuard;
use muxlock::{Builder, LockErrorKind, Redlock};

use crate::scene::{
    First, KEY, LASTING, LONG, MAX_TTL, QUARANTINE, all_vote, calls, clean_again, guarded,
    node_soon, owner, owns, pttl, quarantine_of, refused, start, start_one, start_with, tell,
    trusting, until_vote, works,
};
use muxlock::testing::{Master, Masters, Value};
use testbed::scripted::refused_addr;
use testbed::{SOON, TTL, ask, count, outcomes, pause, soon, timed, within};

/// What an operator has to set before a restart forgets nothing.
const PERSISTENT: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Killed with SIGKILL and started again within milliseconds.
fn restart(master: &mut Master) {
    let (took, result) = timed(|| master.restart());
    result.unwrap_or_else(|error| panic!("{error}"));
    println!("measured: restarted in {took:?}");
}

fn restart_majority(masters: &mut Masters) {
    masters.iter_mut().take(2).for_each(restart);
}

#[test]
fn slow_core_majority_restarted_empty_second_client_waits_for_the_firsts_deadline() {
    let mut masters = start(3);
    let builder = guarded(masters.urls());
    let (holder, second) = (all_vote(&builder), all_vote(&builder));
    let first = First::take(&holder, MAX_TTL);
    restart_majority(&mut masters);

    // It knew the processes that are gone.
    for node in 0..2 {
        node_soon(&second, node, "it is back", |node| node.state == NodeState::Quarantined);
    }
    assert!(second.try_lock(KEY, MAX_TTL).is_err());
    let error = refused(second.try_lock("other", MAX_TTL));
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    assert_eq!(outcomes(&error)[..2], [NodeOutcome::Quarantined; 2], "{error}");
    let ready_in = error.ready_in().expect("quarantine is what is missing");
    assert!(ready_in <= QUARANTINE, "{ready_in:?}");
    let text = error.to_string();
    let (here, there) = (masters[0].addr(), masters[1].addr());
    for part in [
        here.as_str(),
        &there,
        "for another ",
        "started a short time ago",
        "restart_guard(RestartGuard::Off)",
        "?restart_guard=off",
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let status = &second.nodes()[0];
    assert_eq!(status.state, NodeState::Quarantined);
    let cause = status.quarantine.map(|quarantine| quarantine.cause);
    assert_eq!(cause, Some(QuarantineCause::Restarted));
    // Another one has never seen them before.
    let fresh = builder.connect().unwrap();
    let error = refused(fresh.try_lock("other", MAX_TTL));
    assert_eq!(count(&error, NodeOutcome::Quarantined), 2, "{error}");

    let (took, lock) = timed(|| first.is_never_joined_by(&second));
    assert!(took < QUARANTINE + SOON, "{took:?}");
    drop(lock);
    until_vote(&second, 3);
    assert_eq!(quarantine_of(&second, 0), None);
    works(&second);
}

#[test]
fn majority_restarted_empty_without_the_guard_there_are_two_holders() {
    let mut masters = start(3);
    let builder = trusting(masters.urls());
    let (holder, second) = (all_vote(&builder), all_vote(&builder));
    let first = First::take(&holder, TTL);
    restart_majority(&mut masters);
    first.is_joined_by(&second);
}

/// Waits for the part of a second that lets a server's age, told in whole seconds, run ahead most.
fn until_late_in_a_second(master: &Master) {
    within(SOON, "it is late in a second", || {
        let Value::Array(time) = ask(master, &["TIME"]) else { panic!("TIME is a list") };
        let Value::Bulk(micros) = &time[1] else { panic!("TIME is text") };
        let micros: u32 = String::from_utf8_lossy(micros).parse().expect("TIME is a number");
        (800_000..900_000).contains(&micros)
    });
}

#[test]
fn slow_core_majority_restarted_empty_no_new_client_gets_in_before_the_firsts_deadline() {
    let mut masters = start(3);
    let builder = guarded(masters.urls());
    let holder = all_vote(&builder);
    until_late_in_a_second(&masters[0]);
    let first = First::take(&holder, MAX_TTL);
    restart_majority(&mut masters);
    // None has known the masters before, so that each has only their word for their age.
    let mut clients = 0;
    drop(first.is_never_joined(|| {
        loop {
            clients += 1;
            let client = builder.connect().unwrap_or_else(|error| panic!("{error}"));
            if let Ok(lock) = client.try_lock(KEY, MAX_TTL) {
                break lock;
            }
            pause(Duration::from_millis(5));
        }
    }));
    println!("measured: the {clients}th new client got in");
}

#[test]
fn guard_of_one_node_switched_off_in_its_address_leaves_the_others() {
    let masters = start(3);
    let mut urls = masters.urls();
    urls[0] += "?restart_guard=off";
    let redlock = guarded(urls).connect().unwrap();
    soon("all are connected", || {
        redlock.nodes().iter().filter(|node| node.state == NodeState::Quarantined).count() == 2
    });
    node_soon(&redlock, 0, "its guard is off", |node| node.state == NodeState::Ready);
    let error = refused(redlock.try_lock(KEY, MAX_TTL));
    assert_eq!(outcomes(&error)[1..], [NodeOutcome::Quarantined; 2], "{error}");
    // It need not have answered before the others had.
    assert!(!outcomes(&error)[0].is_failure(), "{error}");
    assert!(error.ready_in().is_some(), "{error}");
}

/// The algorithm's own example: a lock is on two masters of three, and one of them forgets it. The
/// holder cannot reach the third, but the second client can.
fn one_of_two_copies_forgotten(
    client: impl Fn(Vec<String>) -> Builder,
    ttl: Duration,
) -> (Masters, First, Redlock) {
    let mut masters = start(3);
    let nowhere = format!("redis://{}", refused_addr());
    let holder = client(vec![masters[0].url(), masters[1].url(), nowhere]).connect().unwrap();
    let second = all_vote(&client(masters.urls()));
    until_vote(&holder, 2);
    let first = First::take(&holder, ttl);
    restart(&mut masters[1]);
    (masters, first, second)
}

#[test]
fn slow_core_one_of_two_copies_forgotten_second_client_waits_for_the_firsts_deadline() {
    let (_masters, first, second) = one_of_two_copies_forgotten(guarded, MAX_TTL);
    let lock = first.is_never_joined_by(&second);
    assert!(second.stats().uncounted > 0, "the restarted one had granted it");
    drop(lock);
}

#[test]
fn one_of_two_copies_forgotten_without_the_guard_there_are_two_holders() {
    let (_masters, first, second) = one_of_two_copies_forgotten(trusting, TTL);
    first.is_joined_by(&second);
}

#[test]
fn slow_core_master_back_at_once_is_asked_but_its_word_does_not_count() {
    let mut masters = start(3);
    let redlock = all_vote(&guarded(masters.urls()));
    let mut old = redlock.try_lock(KEY, MAX_TTL).unwrap();
    // Nobody looks at the connections while it is away.
    restart(&mut masters[0]);
    old.extend(MAX_TTL).unwrap();
    node_soon(&redlock, 0, "it is back", |node| node.state == NodeState::Quarantined);

    let mut new = redlock.try_lock("new", MAX_TTL).unwrap();
    assert_eq!(new.granted_by().collect::<Vec<_>>(), [1, 2]);
    // Its copy blocks others once it votes again.
    soon("it was asked all the same", || owns(&masters[0], &new, "new"));
    masters[1].kill().unwrap();
    let error = new.extend(MAX_TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    assert_eq!(outcomes(&error)[0], NodeOutcome::Quarantined, "{error}");
    assert!(new.is_valid());
    let error = refused(redlock.try_lock("other", MAX_TTL));
    assert_eq!(outcomes(&error)[0], NodeOutcome::Quarantined, "{error}");
    assert!(error.ready_in().is_some_and(|ready_in| ready_in <= QUARANTINE));
    drop((old, new));

    until_vote(&redlock, 2);
    let lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn killed_masters_that_keep_their_data_are_cleaned_up_within_a_second() {
    let mut masters = start_with(3, &PERSISTENT);
    let redlock = all_vote(&trusting(masters.urls()));
    let lock = redlock.try_lock(KEY, LONG).unwrap();
    masters.iter().for_each(|master| soon("it has it", || owns(master, &lock, KEY)));
    masters.iter_mut().take(2).for_each(|master| master.kill().unwrap());
    let token = lock.token().as_bytes().to_vec();
    let error = lock.unlock().unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    for master in masters.iter_mut().take(2) {
        restart(master);
        // Nobody has called the client since.
        assert_eq!(owner(master, KEY).as_deref(), Some(token.as_slice()));
    }
    let in_use = || drop(redlock.nodes());
    clean_again("SIGKILL and a restart with its data", &masters, 0, in_use);
    soon("nothing is owed", || redlock.nodes().iter().all(|node| node.pending_releases == 0));
    works(&redlock);
}

#[test]
fn slow_core_guard_by_own_observation_trusts_no_masters_word_for_its_age() {
    let masters = start(3);
    let builder = guarded(masters.urls());
    let client = all_vote(&builder);
    works(&client);
    let (took, wary) =
        timed(|| all_vote(&builder.clone().restart_guard(RestartGuard::OwnObservation)));
    println!("measured: by its own observation a client voted after {took:?}");
    assert!((QUARANTINE..QUARANTINE + SOON).contains(&took), "{took:?}");
    works(&wary);
    // By the masters' own word a new client may vote at once.
    let (took, fresh) = timed(|| all_vote(&builder));
    assert!(took < MAX_TTL, "{took:?}");
    works(&fresh);
}

#[test]
fn slow_core_master_that_loads_its_data_does_not_vote_until_it_has_it() {
    // Each key takes a while to load, as a larger database would.
    let args = [PERSISTENT.as_slice(), &["--key-load-delay", "200"]].concat();
    let mut master = start_one(&args);
    let redlock = all_vote(&trusting([master.url()]));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    let script = "for i = 1, 8192 do redis.call('SET', 'filler:' .. i, i) end return 8192";
    assert_eq!(ask(&master, &["EVAL", script, "0"]), Value::Integer(8192));
    thread::scope(|scope| {
        let restarting = scope.spawn(|| restart(&mut master));
        let unfit = NodeOutcome::Unfit(Unfit::Loading);
        node_soon(&redlock, 0, "it loads", |node| node.last_failure == Some(unfit));
        let error = refused(redlock.try_lock("other", TTL));
        assert_eq!(outcomes(&error), [unfit], "{error}");
        assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
        restarting.join().unwrap();
    });
    within(SOON, "it votes again", || refused(redlock.try_lock(KEY, TTL)).is_contended());
    assert!(lock.unlock().unwrap().was_held());
    works(&redlock);
}

// ---- Flushed ----

fn flush_majority(masters: &Masters) {
    masters.iter().take(2).for_each(|master| master.flush().unwrap());
}

/// A holder and a second client, connected, with the lock on each master.
fn held_beside_a_second(masters: &Masters, builder: &Builder) -> (Redlock, Redlock, First) {
    let (holder, second) = (all_vote(builder), all_vote(builder));
    let first = First::take(&holder, LASTING);
    masters.iter().for_each(|master| soon("it has it", || owns(master, &first.lock, KEY)));
    (holder, second, first)
}

#[test]
fn slow_core_majority_flushed_second_client_waits_for_the_firsts_deadline() {
    let masters = start(3);
    let builder = guarded(masters.urls()).max_ttl(LASTING);
    let (_holder, second, first) = held_beside_a_second(&masters, &builder);
    flush_majority(&masters);
    drop(refused(second.try_lock(KEY, MAX_TTL)));
    for node in 0..2 {
        node_soon(&second, node, "it knows why", |node| {
            node.quarantine.is_some_and(|it| it.cause == QuarantineCause::Flushed)
        });
    }
    let error = refused(second.try_lock("other", MAX_TTL));
    assert!(error.ready_in().is_some_and(|ready_in| ready_in <= LASTING + SOON), "{error}");
    assert!(error.to_string().contains("its data was flushed or replaced"), "{error}");
    drop(first.is_never_joined_by(&second));
}

#[test]
fn majority_flushed_without_the_guard_there_are_two_holders() {
    let masters = start(3);
    let (_holder, second, first) = held_beside_a_second(&masters, &trusting(masters.urls()));
    flush_majority(&masters);
    first.is_joined_by(&second);
}

#[test]
fn another_database_flushed_everywhere_locks_go_on() {
    let masters = start(3);
    let redlock = all_vote(&guarded(masters.urls()));
    works(&redlock);
    let flush = "redis.call('SELECT', 1) redis.call('SET', 'cached', 1) redis.call('FLUSHDB')";
    let before = redlock.stats().quarantines;
    for _ in 0..3 {
        masters.iter().for_each(|master| drop(ask(master, &["EVAL", flush, "0"])));
        // So long after its last reading, a client reads before it sends.
        pause(Duration::from_millis(2));
        let lock = redlock.try_lock(KEY, MAX_TTL).unwrap_or_else(|error| panic!("{error}"));
        assert!(lock.unlock().unwrap().was_held());
    }
    assert_eq!(redlock.stats().quarantines, before);
}

/// A client that connects after a flush has had no notice of it.
fn flushed_before_it_connects(builder: &Builder) -> (Masters, First, Redlock) {
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    let builder = builder.clone().nodes(masters.urls());
    let holder = all_vote(&builder);
    let first = First::take(&holder, LASTING);
    masters.iter().for_each(|master| soon("it has it", || owns(master, &first.lock, KEY)));
    masters.iter().for_each(|master| master.flush().unwrap());
    (masters, first, builder.connect().unwrap())
}

#[test]
fn slow_core_client_that_connects_after_a_flush_waits_with_a_marker() {
    const MARKER: &str = "muxlock:alive";
    let none: [String; 0] = [];
    let builder = guarded(none).max_ttl(LASTING).flush_marker(MARKER);
    let (masters, first, late) = flushed_before_it_connects(&builder);
    let error = refused(late.try_lock(KEY, LASTING));
    assert!(count(&error, NodeOutcome::Quarantined) >= 2, "{error}");
    let flushed = |node: &NodeStatus| {
        node.quarantine.is_some_and(|quarantine| quarantine.cause == QuarantineCause::Flushed)
    };
    (0..3).for_each(|node| node_soon(&late, node, "it knows why", flushed));
    drop(first.is_never_joined_by(&late));
    // The marker has no TTL, and is all that is left.
    let left = |master: &Master| (pttl(master, MARKER), master.dbsize().unwrap());
    masters.iter().for_each(|master| soon("only the marker is left", || left(master) == (-1, 1)));
    // What takes the locks away takes the marker away, whatever it is called.
    masters.iter().for_each(|master| tell(master, &["SWAPDB", "0", "1"]));
    let error = refused(builder.nodes(masters.urls()).connect().unwrap().try_lock(KEY, MAX_TTL));
    assert!(count(&error, NodeOutcome::Quarantined) >= 2, "{error}");
}

#[test]
fn slow_client_that_connects_after_a_flush_makes_two_holders_without_a_marker() {
    let none: [String; 0] = [];
    let (masters, first, late) = flushed_before_it_connects(&guarded(none).max_ttl(LASTING));
    first.is_joined_by(&late);
    assert!(calls(&masters[0], "flushall") == 1);
}
