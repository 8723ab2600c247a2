//! A lock that is handed to another process as text, over real masters.

use std::env;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use muxlock::error::HandOverError;
use muxlock::testing::Masters;
use muxlock::{KeepAlive, LockErrorKind, LockParts, Redlock};
use testbed::{
    TTL, all_ready, is_child, patient, re_execute, report_to_parent, run_child, soon, within,
};

const KEY: &str = "invoice:42";
const URLS_VARIABLE: &str = "MUXLOCK_TEST_URLS";
const LOCK_VARIABLE: &str = "MUXLOCK_TEST_LOCK";

fn start() -> (Masters, Redlock) {
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    let redlock = all_ready(&patient(masters.urls()));
    (masters, redlock)
}

/// Runs this test again, as a child that is handed a lock.
fn child(command: &mut Command, masters: &Masters, text: &str) -> Vec<String> {
    run_child(command.env(URLS_VARIABLE, masters.urls().join(" ")).env(LOCK_VARIABLE, text))
}

/// The child's own client, and what it was handed.
fn handed_over() -> (Redlock, Result<LockParts, HandOverError>) {
    let urls = env::var(URLS_VARIABLE).expect("the parent names the masters");
    let redlock = all_ready(&patient(urls.split(' ')));
    (redlock, env::var(LOCK_VARIABLE).expect("the parent hands a lock over").parse())
}

#[track_caller]
fn no_key_is_left(masters: &Masters) {
    soon("no key is left", || masters.iter().all(|master| master.dbsize().unwrap() == 0));
}

#[test]
fn other_process_adopts_extends_and_unlocks() {
    const TEST: &str = "other_process_adopts_extends_and_unlocks";
    if is_child(TEST) {
        let (redlock, parts) = handed_over();
        let mut lock = redlock.adopt(parts.unwrap()).unwrap();
        report_to_parent(lock.remaining().as_nanos());
        assert!(redlock.try_lock(KEY, TTL).unwrap_err().is_contended());
        lock.extend(TTL).unwrap();
        let kept = lock.keep_alive(KeepAlive::default()).unwrap();
        assert!(kept.unlock().unwrap().was_held());
        return;
    }
    let (masters, redlock) = start();
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    let before = lock.remaining();
    let text = lock.into_parts().to_secret_text().unwrap();
    let told = child(&mut re_execute(TEST), &masters, &text);
    let remaining = Duration::from_nanos(told[0].parse().unwrap());
    assert!(remaining < before && remaining > before / 2, "{before:?}, then {remaining:?}");
    no_key_is_left(&masters);
    assert!(redlock.try_lock(KEY, TTL).is_ok());
}

#[test]
fn slow_other_process_is_told_of_a_lock_that_is_over_and_releases_what_is_left() {
    const TEST: &str =
        "slow_other_process_is_told_of_a_lock_that_is_over_and_releases_what_is_left";
    if is_child(TEST) {
        let (redlock, parts) = handed_over();
        let error = redlock.adopt(parts.unwrap()).unwrap_err();
        assert_eq!(error.kind(), LockErrorKind::Expired);
        assert_eq!(redlock.shutdown(TTL), 0);
        return;
    }
    let (masters, redlock) = start();
    let lock = redlock.try_lock(KEY, Duration::from_secs(1)).unwrap();
    let parts = lock.into_parts();
    let text = parts.to_secret_text().unwrap();
    // As a copy that came late.
    for master in masters.iter() {
        master.query(&[b"SET", KEY.as_bytes(), parts.token().as_bytes()]).unwrap();
    }
    within(TTL, "it is over", || redlock.adopt(text.parse().unwrap()).is_err());
    for master in masters.iter() {
        soon("it is released", || master.dbsize().unwrap() == 0);
        master.query(&[b"SET", KEY.as_bytes(), parts.token().as_bytes()]).unwrap();
    }
    child(&mut re_execute(TEST), &masters, &text);
    no_key_is_left(&masters);
}

/// In another time namespace the same clock shows another time: what has passed cannot be told.
#[test]
fn process_in_another_time_namespace_is_refused() {
    const TEST: &str = "process_in_another_time_namespace_is_refused";
    if is_child(TEST) {
        let (_, parts) = handed_over();
        assert_eq!(parts.unwrap_err(), HandOverError::OtherClock);
        return;
    }
    let mut other = Command::new("unshare");
    other.args(["--time", "--boottime", "3600", "--fork"]);
    if !other.arg("true").status().is_ok_and(|status| status.success()) {
        // Not by a macro, of which the harness would keep to itself what it prints.
        let text = format!("SKIPPED {TEST}: this user may not make a time namespace\n");
        std::io::stderr().write_all(text.as_bytes()).expect("somebody may read it");
        return;
    }
    let (masters, redlock) = start();
    let text = redlock.try_lock(KEY, TTL).unwrap().into_parts().to_secret_text().unwrap();
    let again = re_execute(TEST);
    let mut other = Command::new("unshare");
    other.args(["--time", "--boottime", "3600", "--fork"]).arg(again.get_program());
    other.args(again.get_args());
    other.envs(again.get_envs().filter_map(|(name, value)| Some((name, value?))));
    child(&mut other, &masters, &text);
}
