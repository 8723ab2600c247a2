//! The masters of a scene, and what they say of the queue.

use std::time::Duration;

use muxlock::testing::{Master, Masters, Value};
use testbed::within;

use crate::contender::KEY;

/// What a queue's key has behind the lock's key.
const QUEUE_TAIL: &str = ":muxlock:queue";

#[track_caller]
pub fn start(n: usize) -> Masters {
    Masters::start(n).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
pub fn ask(master: &Master, words: &[&str]) -> Value {
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    master.query(&words).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
pub fn tell(master: &Master, words: &[&str]) {
    assert_eq!(ask(master, words), Value::Status("OK".into()), "{words:?}");
}

#[track_caller]
fn number(master: &Master, words: &[&str]) -> i64 {
    match ask(master, words) {
        Value::Integer(number) => number,
        other => panic!("{words:?}: {other:?}"),
    }
}

pub fn queue_of(key: &str) -> String {
    format!("{key}{QUEUE_TAIL}")
}

/// How many engines stand in the queue for the key on this master.
pub fn queued(master: &Master) -> i64 {
    number(master, &["LLEN", &queue_of(KEY)])
}

/// The same on all masters together.
pub fn queued_anywhere(masters: &Masters) -> i64 {
    masters.iter().map(queued).sum()
}

/// How many SETs the masters have run, all together.
pub fn sets(masters: &Masters) -> u64 {
    let calls = |master: &Master| master.command_calls("set").expect("the master answers");
    masters.iter().map(calls).sum()
}

/// Looks for so long for the master that has the longest queue for the key. There may be others:
/// a client that has just connected may take a near master for a far one.
pub fn queue_holder(masters: &Masters, limit: Duration) -> usize {
    let mut longest = (0, 0);
    within(limit, "a master has the queue", || {
        let queues = masters.iter().map(queued).zip(0..);
        longest = queues.max_by_key(|(queued, _)| *queued).expect("there are masters");
        longest.0 > 0
    });
    longest.1
}

/// The masters in queue node order for the key: the one where the queue is to be, then those where
/// it is to be if that one is lost (W2).
pub fn queue_node_order(masters: &Masters) -> Vec<usize> {
    let mut order: Vec<_> = (0..masters.len()).collect();
    order.sort_by_key(|master| std::cmp::Reverse(score(&run_id(&masters[*master]), KEY)));
    order
}

/// Where the queue is to be.
pub fn queue_node(masters: &Masters) -> usize {
    queue_node_order(masters)[0]
}

#[track_caller]
pub fn info(master: &Master, section: &str, field: &str) -> String {
    let Value::Bulk(text) = ask(master, &["INFO", section]) else {
        panic!("INFO is a text");
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{section} has {field}")).to_owned()
}

fn run_id(master: &Master) -> String {
    info(master, "server", "run_id")
}

/// The FNV-1a hash of the name, a zero byte and the key, mixed as MurmurHash3 ends.
fn score(name: &str, key: &str) -> u64 {
    let bytes = name.bytes().chain([0]).chain(key.bytes());
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325, step);
    for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

#[test]
fn scores_are_those_that_all_clients_agree_on() {
    let scores = |key| ["a", "b"].map(|name| score(&name.repeat(40), key));
    assert_eq!(scores("invoice:42"), [0x991f_20b2_acff_7cf3, 0x9609_12ef_6803_9a8c]);
    assert_eq!(scores("k"), [0x1ff2_e0a1_35d4_bcfc, 0xc6c4_ed14_332b_a373]);
}
