//! The protocol of fencing tokens, tried on every schedule within small bounds.
//!
//! A node has a key and a counter. A grant gives the greater of the counter plus one and the
//! proposal; the q-th grant fixes the lock's number, and nodes that granted less are raised to it.
//! Keys vanish at any moment, and time matters nowhere but where counters are lost. Messages take
//! any time and come in any order, also on one connection; what never comes is lost, and a refusal
//! is as good as that. A proposal is less than any counter, just above them, or ahead of them.
//!
//! Four properties are checked, and two more: `protocol::PROPERTIES`. P3 and P4 are checked not
//! only when a lock is returned, but for as long as it owns its keys. A test that something holds
//! visits every state and asserts that it saw locks of one and of two round trips, and late grants
//! of all kinds. A test that breaks a rule says which properties are broken, and that no others
//! are.
//!
//! Where counters are lost, a tick is what clocks and the script's limit are off together, and
//! a grant is within a tick of the true time. How many states there are is in `wide.rs`.

mod canonical;
mod protocol;
mod state;
mod steps;
mod wide;

use protocol::{
    BOTH, Beginning, Clocks, FIRST_PHASE, Fencing, GROWTH, LATE_EQUAL, LATE_GREATER, LATE_SMALLER,
    MAJORITY, Mistake, Numbers, ORDER, OWNER, OWNER_OF_OTHERS, PROPERTIES, Proposal, Replies,
    SECOND_PHASE, UNCOUNTED, UNIQUE,
};
use stateright::{Checker, HasDiscoveries, Model};

/// Two attempts; all counters are equal at first.
const TWO: Fencing<3> = Fencing {
    attempts: 2,
    counters: 0,
    proposals: &[Proposal::Stale, Proposal::Fresh, Proposal::Ahead],
    neighbours: 0,
    heals: false,
    stragglers: true,
    numbers: Numbers::Free,
    clocks: Clocks::Steady,
    horizon: 0,
    beginning: Beginning::Uneventful,
    losses: 0,
    rests: &[0],
    guard: 0,
    replies: Replies::DieWithTheCounter,
    mistake: None,
};
/// A node loses its counter, and does not count for longer than two clocks are apart.
const LOSS: Fencing<3> = Fencing {
    stragglers: false,
    proposals: &[Proposal::Stale],
    numbers: Numbers::Clamped,
    horizon: 3,
    losses: 1,
    guard: 3,
    replies: Replies::Survive,
    ..TWO
};

const SEEN: &[&str] =
    &[BOTH, FIRST_PHASE, SECOND_PHASE, LATE_EQUAL, LATE_SMALLER, LATE_GREATER, OWNER_OF_OTHERS];

/// Visits all that can be reached. Just these properties are broken. How many states there are.
fn visits<const N: usize>(model: Fencing<N>, seen: &[&str], broken: &[&str]) -> usize {
    let checker = model.checker().spawn_bfs().join();
    let discoveries = checker.discoveries();
    for property in PROPERTIES {
        let found = discoveries.get(property).cloned().map(|path| path.into_actions());
        assert_eq!(found.is_some(), broken.contains(&property), "{property}: {found:?}");
    }
    for property in seen {
        assert!(discoveries.contains_key(property), "never seen: {property}");
    }
    checker.unique_state_count()
}

fn holds(model: Fencing<3>, floor: usize, seen: &[&str]) {
    let states = visits(model, seen, &[]);
    assert!(states >= floor, "only {states} states");
}

/// Breaks just these properties.
fn breaks(mistake: Mistake, broken: &[&str]) {
    visits(Fencing { mistake: Some(mistake), ..TWO }, &[], broken);
}

/// Finds a schedule that breaks each of these properties.
fn finds(model: Fencing<3>, broken: &[&'static str]) {
    let until = HasDiscoveries::AllOf(broken.iter().copied().collect());
    let checker = model.checker().finish_when(until).spawn_bfs().join();
    for property in broken {
        let path = checker.discovery(property).expect("a broken rule shows");
        println!("{:?}: {property}: {} steps", model.mistake, path.into_actions().len());
    }
}

// The two phases.

/// F7, F8, F9, F10. What the promise does not cover is seen: an owner of a majority whose number
/// is not the greatest, because some of its keys were granted at more.
#[test]
fn numbers_are_unique_and_in_order() {
    holds(TWO, 80_000, SEEN);
}

/// F18.
#[test]
fn heals_of_a_returned_lock_need_no_number() {
    holds(Fencing { heals: true, ..TWO }, 100_000, SEEN);
}

/// F2: the neighbour's grants only make gaps.
#[test]
fn a_neighbour_in_the_bucket_disturbs_no_order() {
    let proposals = &[Proposal::Stale, Proposal::Fresh];
    holds(Fencing { neighbours: 1, proposals, ..TWO }, 100_000, SEEN);
}

/// F7. It is the same to count smaller grants.
#[test]
fn the_greatest_number_without_raise_is_not_unique() {
    breaks(Mistake::NoRaise, &[UNIQUE, OWNER, MAJORITY]);
}

/// F9.
#[test]
fn raise_that_does_not_compare_the_token_is_worthless() {
    breaks(Mistake::RaiseOfAnyKey, &[UNIQUE, OWNER, MAJORITY]);
}

/// F9: the node may have granted more than the number.
#[test]
fn raise_before_the_grant_is_read_stamps_nodes_that_granted_more() {
    breaks(Mistake::RaiseBeforeGrant, &[UNIQUE, OWNER]);
}

/// F2. The order of the locks in one bucket does not show it, but the counters do.
#[test]
fn raise_that_lowers_a_counter_takes_the_neighbours_number_back() {
    let proposals = &[Proposal::Stale];
    let mistake = Some(Mistake::LoweringRaise);
    visits(Fencing { neighbours: 2, proposals, mistake, ..TWO }, &[], &[GROWTH]);
}

/// F10.
#[test]
fn a_late_greater_grant_that_counts_breaks_uniqueness() {
    breaks(Mistake::LateGreaterCounts, &[UNIQUE, OWNER]);
}

/// F8: the owner of the q keys that fixed the number is overtaken.
#[test]
fn a_number_that_is_not_the_greatest_is_less_than_an_earlier_one() {
    breaks(Mistake::Smallest, &[MAJORITY]);
    breaks(Mistake::Last, &[MAJORITY]);
}

/// F7: a grant is greater than all numbers that were stamped before it.
#[test]
fn a_counter_that_is_not_counted_up_breaks_everything() {
    breaks(Mistake::NoIncrement, &[UNIQUE, ORDER, OWNER, MAJORITY]);
}

/// F6: nothing depends on the proposal, because the counter overrides it.
#[test]
fn a_proposal_that_overrides_the_counter_breaks_uniqueness() {
    breaks(Mistake::ProposalOverrides, &[UNIQUE, OWNER, MAJORITY]);
}

/// F7.
#[test]
fn half_of_the_nodes_stamp_nothing() {
    breaks(Mistake::HalfQuorum, &[UNIQUE, ORDER, OWNER, MAJORITY]);
}

// Lost counters.

/// F12.
#[test]
fn a_guard_longer_than_two_clocks_are_apart_makes_up_for_a_loss() {
    let seen = [SEEN, &[UNCOUNTED]].concat();
    holds(LOSS, 1_000_000, &seen);
}

/// F12.
#[test]
fn a_guard_as_long_as_two_clocks_are_apart_is_too_short() {
    finds(Fencing { guard: 2, horizon: 2, ..LOSS }, &[UNIQUE, ORDER, OWNER, MAJORITY]);
}

/// F12: in `wide.rs`, locks that are further apart than the clocks keep their order.
#[test]
fn without_a_guard_locks_are_out_of_order() {
    finds(Fencing { guard: 0, horizon: 2, ..LOSS }, &[UNIQUE, ORDER, OWNER, MAJORITY]);
}

/// F6, F12: a counter may be rolled back.
#[test]
fn a_clock_that_is_looked_at_where_no_counter_is_is_too_little() {
    let mistake = Some(Mistake::SeededIfAbsent);
    finds(Fencing { rests: &[1], mistake, ..LOSS }, &[ORDER, OWNER]);
}
