//! The library in a simulated world: many seeds, every kind of fault, and what must hold.
//!
//! `scripts/simulate` runs the long versions, which are ignored here.

#![allow(missing_docs)]

mod bugs;
mod campaign;
mod shrink;
mod validation;
mod world;

/// The scripts, as they are sent.
#[allow(dead_code, reason = "not all of them are sent by hand")]
mod scripts {
    include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
}

use std::env;

use world::choices::Choices;
use world::plan::Class;
use world::rare::Rare;

/// Seeds for each class in a plain test run, which has no optimisation: a look at each class. The
/// campaign of `scripts/simulate` runs thousands, and looks for rare situations.
const SEEDS: u64 = 30;
const SHRINKING_RUNS: usize = 60;

#[track_caller]
fn holds(class: Class) {
    let report = campaign::run(0, SEEDS, Some(class), 1, |_, _| {});
    if let Some((seed, violation)) = report.violations.first() {
        campaign::explain(*seed, Some(class), violation);
        panic!("seed {seed} of {class:?}: {}: {}", violation.rule, violation.text);
    }
}

#[test]
fn slow_core_durable_masters_keep_every_promise() {
    holds(Class::Durable);
}

#[test]
fn slow_core_guarded_clients_survive_masters_that_forget() {
    holds(Class::Guarded);
}

#[test]
fn slow_core_steps_promotions_and_flushes_leave_no_mess() {
    holds(Class::Stepped);
}

#[test]
fn slow_core_unguarded_clients_leak_nothing_and_count_no_false_vote() {
    holds(Class::Unguarded);
}

#[test]
fn slow_core_promoted_servers_wait_for_what_they_may_lack_and_once() {
    holds(Class::Promoted);
}

#[test]
fn slow_core_waits_for_a_holder_end_early_for_want_of_a_quorum_only() {
    holds(Class::ForHolders);
}

#[test]
fn slow_same_seed_is_the_same_run() {
    for seed in 1_000..1_004 {
        let first = world::run(Choices::from_seed(seed), None, false);
        let second = world::run(Choices::from_seed(seed), None, true);
        assert_eq!(first.digest, second.digest, "seed {seed}");
        let third = world::run(Choices::from_record(first.drawn), None, false);
        assert_eq!((first.digest, first.events), (third.digest, third.events), "seed {seed}");
    }
}

#[test]
fn arbitrary_bytes_make_a_run() {
    let bytes: Vec<u8> = (0..4_000_u32).map(|i| (i * i % 251) as u8).collect();
    for length in [0, 1, 40, 400, 4_000] {
        let outcome = world::run(Choices::from_bytes(&bytes[..length]), None, false);
        assert_eq!(outcome.violation, None, "{length} bytes");
    }
}

/// The most choices of a run that is made smaller for a test.
const CHOICES_MAX: usize = 4_000;

/// The first seed that is tried: its run is short, so the search ends at once.
const SHRINKING_SEED: u64 = 163;

/// A situation that is no failure stands in for one.
#[test]
fn slow_shrunk_run_still_fails_and_has_less_to_it() {
    let fails = |drawn: &[u32]| {
        let outcome = world::run(Choices::from_record(drawn.to_vec()), None, false);
        outcome.rare.of(Rare::LateQuorum) > 0
    };
    let seeds =
        (SHRINKING_SEED..).map(|seed| world::run(Choices::from_seed(seed), None, false).drawn);
    // Of a long run, few parts can be tried in so many runs.
    let mut short = seeds.take(1_000).filter(|drawn| drawn.len() < CHOICES_MAX);
    let drawn = short.find(|drawn| fails(drawn)).expect("it is not that rare");
    let loud = |drawn: &[u32]| drawn.iter().filter(|choice| **choice != 0).count();
    let before = loud(&drawn);
    let shrunk = shrink::shrink(drawn, SHRINKING_RUNS, fails);
    assert!(fails(&shrunk));
    assert!(loud(&shrunk) < before / 2, "{} of {before}", loud(&shrunk));
}

fn number(variable: &str, default: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is {text}: no number")),
        Err(_) => default,
    }
}

/// The class that the environment asks for; all of them if none.
fn class() -> Option<Class> {
    env::var_os("MUXLOCK_SIM_CLASS")?;
    let number = number("MUXLOCK_SIM_CLASS", 0) as usize;
    Some(Class::ALL.get(number).copied().unwrap_or(Class::ForHolders))
}

#[test]
#[ignore = "scripts/simulate runs it"]
fn campaign() {
    let count = number("MUXLOCK_SIM_SEEDS", 10_000);
    let is_well = campaign::run_and_tell(number("MUXLOCK_SIM_FIRST", 0), count, class());
    assert!(is_well, "see above");
}

/// Says what all runs did, in one number for each thousand seeds: a change that is to change no
/// behaviour changes none of them.
#[test]
#[ignore = "scripts/simulate --digest runs it"]
fn digest() {
    let (first, count) = (number("MUXLOCK_SIM_FIRST", 0), number("MUXLOCK_SIM_SEEDS", 20_000));
    for from in (first..first + count).step_by(1_000) {
        let block = (first + count - from).min(1_000);
        let report = campaign::run(from, block, class(), usize::MAX, |_, _| {});
        println!("{from:>9} {:016x} {}", report.digest, report.events);
    }
}

/// Runs seeds until one fails, and says which: for a tree with a bug in it.
#[test]
#[ignore = "scripts/simulate --bugs runs it"]
fn hunt() {
    let count = number("MUXLOCK_SIM_SEEDS", 10_000);
    let report = campaign::run(0, count, class(), 1, |_, _| {});
    match report.violations.first() {
        Some((seed, violation)) => {
            println!("caught {} {} {}", seed + 1, violation.rule, violation.text)
        }
        None => println!("missed {}", report.seeds),
    }
}

#[test]
#[ignore = "scripts/simulate --bugs runs it"]
fn planted_bugs_are_found() {
    let filter = env::var("MUXLOCK_SIM_BUG").unwrap_or_default();
    let seeds = number("MUXLOCK_SIM_SEEDS", 200_000);
    assert!(bugs::plant_all(&filter, seeds), "see above");
}
