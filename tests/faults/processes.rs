//! Holders that end in other ways than by giving the lock back: nothing hangs, and the TTL does it.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Stdio;
use std::time::Duration;
use std::{env, mem, process, thread};

use crate::scene::{
    First, HEALED_WITHIN, KEY, LONG, all_vote, clean_again, hasty, owns, pttl, refused, start,
    trusting,
};
use muxlock::testing::Masters;
use testbed::{
    Again, PATIENT, SOON, Stopwatch, is_child, re_execute, report_to_parent, soon, timed, within,
};

const URLS_VARIABLE: &str = "MUXLOCK_TEST_URLS";
const ENDING_VARIABLE: &str = "MUXLOCK_TEST_ENDING";
const TTL: Duration = Duration::from_secs(1);

/// How a process ends while it holds a lock, and whether that releases it.
const ENDINGS: [(&str, bool); 5] =
    [("exit", false), ("abort", false), ("SIGKILL", false), ("forget", false), ("panic", true)];

/// The resource is named after the ending.
fn end_while_holding() {
    let urls = env::var(URLS_VARIABLE).expect("the parent names the masters");
    let ending = env::var(ENDING_VARIABLE).expect("the parent says how to end");
    let redlock = all_vote(&trusting(urls.split(' ')));
    // Only what is released at once is gone before the parent looks.
    let ttl = if ending == "panic" { LONG } else { TTL };
    let lock = redlock.try_lock(&ending, ttl).unwrap();
    redlock.shutdown(SOON);
    report_to_parent("held");
    match ending.as_str() {
        "exit" => process::exit(0),
        "abort" => process::abort(),
        "SIGKILL" => thread::park(),
        "forget" => mem::forget(lock),
        _ => panic!("on purpose, while holding {lock:?}"),
    }
}

fn watch_the_end(test: &str, masters: &Masters, ending: &str, releases: bool) {
    let mut command = re_execute(test);
    command.env(URLS_VARIABLE, masters.urls().join(" ")).env(ENDING_VARIABLE, ending);
    let mut child = Again::start(command.stderr(Stdio::null()));
    let mut told = child.lines();
    assert_eq!(told.next().as_deref(), Some("held"), "{ending}");
    if ending == "SIGKILL" {
        child.kill();
    }
    let held_since = Stopwatch::start();
    let status = child.status();
    let took = held_since.elapsed();
    println!("measured: {ending}: the process took {took:?} to end: {status}");
    assert!(took < SOON, "{ending}: {took:?}");
    assert_eq!(status.success(), ["exit", "forget"].contains(&ending), "{ending}: {status}");

    let gone = || masters.iter().all(|master| pttl(master, ending) == -2);
    soon(&format!("{ending}: the keys are gone"), gone);
    println!("measured: {ending}: the keys were gone after {:?}", held_since.elapsed());
    if !releases {
        // The child told of it after it had it, and a key lives for its whole TTL.
        let lived = held_since.elapsed();
        assert!(lived > TTL / 2, "{ending}: nothing but the TTL ends it: {lived:?}");
    }
}

#[test]
fn slow_process_that_ends_while_holding_does_not_hang_and_its_keys_end() {
    let test = "processes::slow_process_that_ends_while_holding_does_not_hang_and_its_keys_end";
    if is_child(test) {
        return end_while_holding();
    }
    let masters = start(3);
    thread::scope(|scope| {
        for (ending, releases) in ENDINGS {
            let masters = &masters;
            scope.spawn(move || watch_the_end(test, masters, ending, releases));
        }
    });
}

/// Holds the lock until it is told something, and then says whether it still does.
fn hold_until_told() {
    let urls = env::var(URLS_VARIABLE).expect("the parent names the masters");
    let redlock = all_vote(&trusting(urls.split(' ')));
    let mut lock = redlock.try_lock(KEY, TTL).unwrap();
    report_to_parent("held");
    let mut line = String::new();
    io::stdin().read_line(&mut line).unwrap();
    let is_valid = lock.is_valid();
    let extended = lock.extend(TTL);
    let is_expired = extended.is_err_and(|error| error.is_expired());
    let was_held = lock.unlock().is_ok_and(|released| released.was_held());
    report_to_parent(format!("valid: {is_valid}, expired: {is_expired}, was held: {was_held}"));
}

#[test]
fn slow_holder_stopped_past_its_deadline_knows_it_when_it_goes_on() {
    let test = "processes::slow_holder_stopped_past_its_deadline_knows_it_when_it_goes_on";
    if is_child(test) {
        return hold_until_told();
    }
    let masters = start(3);
    let second = all_vote(&trusting(masters.urls()));
    let mut command = re_execute(test);
    command.env(URLS_VARIABLE, masters.urls().join(" "));
    let mut child = Again::start(command.stdin(Stdio::piped()));
    let mut told = child.lines();
    assert_eq!(told.next().as_deref(), Some("held"));
    child.signal("STOP");
    // On each: the last one that it reached frees the lock last.
    within(PATIENT, "the lock is over", || masters.iter().all(|it| pttl(it, KEY) == -2));
    let lock = second.try_lock_for(KEY, LONG, PATIENT).unwrap();
    masters.iter().for_each(|master| soon("it has it", || owns(master, &lock, KEY)));
    child.signal("CONT");
    child.take_input().expect("it is piped").write_all(b"go on\n").unwrap();
    // R22: it was over when it woke up, and what it then sends is compared with the new owner.
    let expected = "valid: false, expired: true, was held: false";
    assert_eq!(told.next().as_deref(), Some(expected));
    assert!(child.status().success());
    assert!(masters.iter().all(|master| owns(master, &lock, KEY)));
    assert!(lock.unlock().unwrap().was_held());
}

#[test]
fn panic_while_holding_with_frozen_masters_does_not_wait_and_releases() {
    let masters = start(3);
    let redlock = all_vote(&trusting(masters.urls()));
    let lock = redlock.try_lock(KEY, LONG).unwrap();
    masters.iter().for_each(|master| soon("it has it", || owns(master, &lock, KEY)));
    masters.iter().for_each(|master| master.freeze().unwrap());
    let (took, panicked) = timed(|| {
        catch_unwind(AssertUnwindSafe(move || {
            let _lock = lock;
            // As a panic does, without its message.
            resume_unwind(Box::new("unwinding"));
        }))
    });
    assert!(panicked.is_err());
    assert!(took < HEALED_WITHIN, "{took:?}");
    masters.iter().for_each(|master| master.thaw().unwrap());
    clean_again("a panic with every master frozen", &masters, 1, || {});
}

#[test]
fn slow_forgotten_guard_costs_its_ttl_and_nothing_else() {
    let masters = start(3);
    let builder = hasty(masters.urls());
    let (holder, second) = (all_vote(&builder), all_vote(&builder));
    let first = First::take(&holder, TTL);
    let watch = Stopwatch::start();
    masters.iter().for_each(|master| soon("it has it", || owns(master, &first.lock, KEY)));
    assert!(refused(second.try_lock(KEY, TTL)).is_contended());
    let token = *first.lock.token();
    mem::forget(first.lock);
    // The client does not notice.
    drop(holder.try_lock("other", TTL).unwrap());
    assert_eq!(holder.shutdown(SOON), 0);
    let (took, ()) = timed(|| drop(holder));
    assert!(took < HEALED_WITHIN, "{took:?}");
    let lock = second.try_lock_for(KEY, TTL, PATIENT).unwrap();
    let waited = watch.elapsed();
    println!("measured: a forgotten lock was free again after {waited:?}");
    assert!(waited > TTL / 2 && waited < TTL + SOON, "{waited:?}");
    assert_ne!(*lock.token(), token, "R6");
}
