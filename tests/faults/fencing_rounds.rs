//! How many fenced locks need a second round, because masters gave different numbers; and flushes
//! under load.

use std::env;

use muxlock::{Builder, LockErrorKind};
use testbed::{SOON, TTL, heavy, pause};

use crate::fencing_load::{Load, assert_in_order};
use crate::scene::{KEY, LASTING, all_vote, guarded, hasty, refused, start, tell, trusting};

/// How many locks are counted in each case.
const LOCKS_VARIABLE: &str = "MUXLOCK_FENCING_LOCKS";
const LOCKS: usize = 1_000;
const CLIENTS: usize = 8;
const RESOURCES: usize = 1_000;

/// Counts, and allows one raise for a hundred locks: on a machine at rest there is none for a
/// thousand, but clients that get no processor propose old numbers.
#[track_caller]
fn count(case: &str, builder: &Builder, clients: usize, resources: usize, locks: usize) {
    let load = Load::new(builder, clients, resources);
    let all = load.run(|| load.goes_on(case, locks));
    let (fenced, raised) = load.counted();
    println!("{case}: {raised} raises for {fenced} locks");
    assert_in_order(&all);
    assert!(100 * raised <= fenced, "{case}: {raised} raises for {fenced} locks");
}

fn locks() -> usize {
    env::var(LOCKS_VARIABLE).map_or(LOCKS, |locks| locks.parse().expect("a number"))
}

#[test]
fn slow_alone_few_locks_need_a_second_round() {
    let _alone = heavy();
    let mut masters = start(5);
    let builder = hasty(masters.urls());
    for resources in [1, RESOURCES] {
        count(&format!("1 client, {resources} resources"), &builder, 1, resources, locks());
    }
    count("8 clients", &builder, CLIENTS, RESOURCES, locks());
    masters[0].kill().unwrap();
    masters[0].restart().unwrap();
    count("8 clients, one restarted without data", &builder, CLIENTS, RESOURCES, locks());
    let load = Load::new(&builder, CLIENTS, RESOURCES);
    let all = load.run(|| {
        masters[1].freeze().unwrap();
        load.goes_on("one is frozen", locks());
        masters[1].thaw().unwrap();
        load.goes_on("it goes on", locks());
    });
    let (fenced, raised) = load.counted();
    println!("8 clients, one frozen and thawed: {raised} raises for {fenced} locks");
    assert_in_order(&all);
    assert!(100 * raised <= fenced, "{raised} raises for {fenced} locks");
}

/// Everything is gone, and a second holder gets in beside the first: its number is greater, so that
/// the resource refuses the first. With the guard, there is no second holder.
#[test]
fn slow_flushed_masters_give_greater_numbers_and_with_the_guard_none() {
    let masters = start(3);
    let flush = || (0..3).for_each(|node| tell(&masters[node], &["FLUSHALL"]));
    let builder = trusting(masters.urls());
    let (first, second) = (builder.connect().unwrap(), builder.connect().unwrap());
    let lock = first.fenced().try_lock_for(KEY, TTL, TTL).unwrap();
    drop(refused(second.try_lock(KEY, TTL)));
    flush();
    // A client knows the masters' time no better than its handshake was fast.
    pause(SOON / 5);
    let other = second.fenced().try_lock_for(KEY, TTL, TTL).unwrap();
    assert!(other.fencing_token() > lock.fencing_token() && lock.is_valid());
    drop((lock, other));

    let builder = guarded(masters.urls()).max_ttl(LASTING);
    let (first, second) = (all_vote(&builder), all_vote(&builder));
    let lock = first.fenced().try_lock_for(KEY, LASTING, TTL).unwrap();
    flush();
    let error = second.fenced().try_lock(KEY, LASTING).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    assert!(lock.is_valid());
}

/// A server that forgot its scripts is told them with every command.
#[test]
fn slow_alone_script_flush_costs_no_lock() {
    let _alone = heavy();
    let masters = start(3);
    let load = Load::new(&trusting(masters.urls()), 2, 3);
    let all = load.run(|| {
        for _ in 0..20 {
            (0..3).for_each(|node| tell(&masters[node], &["SCRIPT", "FLUSH"]));
            load.goes_on("after the flush", 10);
        }
    });
    assert_in_order(&all);
}
