//! The protocol in a few hundred lines, tried on every schedule within small bounds.
//!
//! This is not the crate's engine but the rules that it follows, so that the rules themselves are
//! checked: two or three attempts by different clients, three nodes, time in ticks. Commands and
//! replies are delayed at will, or for ever, which is how they are lost. Commands on one
//! connection keep their order, except where a test says so. Between any two steps of one client,
//! all others may do whatever they can. Clients and nodes share one clock, except where a test has
//! a node's clock step.
//!
//! A test that says that something holds has visited every state that can be reached, and asserts
//! that there were many, lest a model that does nothing pass. Beside it are the tests that break
//! one rule within the same bounds, and must find two holders.
//!
//! A lock lives for two ticks, and most tests end with the second: enough for each broken rule to
//! show. Wider bounds are in tests that are ignored by default;
//! `cargo test --release --test model -- --ignored --nocapture` tells how much they visit.

#![allow(missing_docs)]

mod protocol;
mod state;

use protocol::{
    Action, CONTINUITY, Command, EXCLUSION, EXTENSION, LATE_QUORUM, Mistake, NO_GHOST, Order,
    Reconnect, Redlock, Restart, STRAGGLER, UNCOUNTED,
};
use stateright::{Checker, HasDiscoveries, Model};

/// Two clients, one try each, and early return at the majority.
const EARLY_RETURN: Redlock = Redlock {
    attempts: 2,
    retries: false,
    ttl: [2; 3],
    drift: 0,
    horizon: 2,
    order: Order::Fifo,
    extenders: 0,
    extension_ttl: 2,
    heals: false,
    crashes: 0,
    restart: Restart::KeepsCommands,
    guard: 2,
    steps: 0,
    losses: 0,
    reconnect: Reconnect::Barrier,
    mistake: None,
};

const UNORDERED: Redlock = Redlock { order: Order::Unordered, ..EARLY_RETURN };
/// No time passes.
const THREE: Redlock = Redlock { attempts: 3, horizon: 0, ..EARLY_RETURN };
/// A client that tries twice, and another one.
const RETRY: Redlock = Redlock { retries: true, ..THREE };
const RETRY_ON_NEW_CONNECTIONS: Redlock = Redlock { order: Order::FifoPerAttempt, ..RETRY };
const RESTART: Redlock = Redlock { crashes: 1, ..EARLY_RETURN };
const EXTEND: Redlock = Redlock { extenders: 1, ..EARLY_RETURN };
const EXTEND_AND_RESTART: Redlock = Redlock { crashes: 1, ..EXTEND };
const EXTEND_AND_LOSE: Redlock = Redlock { losses: 1, ..EXTEND };
const EXTEND_AND_LOSE_WITHOUT_BARRIER: Redlock =
    Redlock { reconnect: Reconnect::ReleaseTwice, ..EXTEND_AND_LOSE };
/// The validity is a tick shorter than the key's life, and a node's clock steps by a tick.
const CLOCK_STEP: Redlock = Redlock { steps: 1, drift: 1, ..EARLY_RETURN };

/// Visits all that can be reached. There must be at least `floor` states, `seen` among them and
/// none that breaks a property, but for `broken`.
fn visits(model: Redlock, floor: usize, seen: &[&'static str], broken: &[&'static str]) -> usize {
    let checker = model.checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    assert!(states >= floor, "only {states} states");
    let discoveries = checker.discoveries();
    for property in [EXCLUSION, CONTINUITY, NO_GHOST] {
        let found = discoveries.get(property).cloned().map(|path| path.into_actions());
        assert_eq!(found.is_some(), broken.contains(&property), "{property}: {found:?}");
    }
    for property in seen {
        assert!(discoveries.contains_key(property), "never seen: {property}");
    }
    states
}

fn holds(model: Redlock, floor: usize, seen: &[&'static str]) {
    visits(model, floor, seen, &[]);
}

/// Finds a schedule that breaks the property.
fn breaks(model: Redlock, property: &'static str) -> Vec<Action> {
    let until = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().finish_when(until).spawn_bfs().join();
    assert!(checker.unique_state_count() >= 1_000, "too few states");
    let path = checker.discovery(property).expect("a broken rule shows");
    path.into_actions()
}

fn breaks_with(mistake: Mistake, model: Redlock) -> Vec<Action> {
    breaks(Redlock { mistake: Some(mistake), ..model }, EXCLUSION)
}

fn ticks(actions: &[Action]) -> usize {
    actions.iter().filter(|action| **action == Action::Tick).count()
}

// Acquisition and release.

#[test]
fn early_return_and_release_exclude_each_other() {
    let longer = Redlock { horizon: 4, ..EARLY_RETURN };
    holds(longer, 9_000, &[STRAGGLER, LATE_QUORUM]);
}

/// A release that overtakes its SET leaves a key that nobody owns; it blocks, and is no danger
/// (R10, R13).
#[test]
fn without_order_a_release_leaves_ghosts_and_nothing_worse() {
    visits(UNORDERED, 25_000, &[STRAGGLER, LATE_QUORUM], &[NO_GHOST]);
}

#[test]
fn three_clients_exclude_each_other() {
    holds(THREE, 8_000, &[STRAGGLER]);
}

/// R1.
#[test]
fn validity_from_the_first_reply_on_is_too_long() {
    let found = breaks_with(Mistake::StartAtFirstReply, EARLY_RETURN);
    assert!(ticks(&found) > 0, "{found:?}");
}

/// R2.
#[test]
fn validity_from_the_quorum_on_is_too_long() {
    let found = breaks_with(Mistake::StartAtQuorum, EARLY_RETURN);
    assert!(ticks(&found) > 0, "{found:?}");
}

#[test]
fn half_of_the_nodes_are_no_quorum() {
    let found = breaks_with(Mistake::HalfQuorum, EARLY_RETURN);
    let votes = found.iter().filter(|action| matches!(action, Action::Reply(..)));
    assert_eq!(votes.count(), 2, "one for each holder: {found:?}");
}

/// R14.
#[test]
fn a_lock_is_dead_before_its_release_is_sent() {
    let found = breaks_with(Mistake::DeadAfterRelease, EARLY_RETURN);
    assert!(found.iter().any(|action| matches!(action, Action::Unlock(_))), "{found:?}");
}

/// R10.
#[test]
fn a_release_deletes_nothing_but_its_own_key() {
    let found = breaks_with(Mistake::ReleaseOfAnyKey, RETRY);
    let is_release = |action: &Action| matches!(action, Action::Execute(_, _, Command::Release));
    assert!(found.iter().any(is_release), "{found:?}");
}

// Tokens and replies.

#[test]
fn a_fresh_token_for_each_attempt_needs_no_order_between_them() {
    holds(RETRY_ON_NEW_CONNECTIONS, 5_000, &[STRAGGLER]);
}

/// R6.
#[test]
fn a_token_that_is_used_again_is_released_by_its_past() {
    let found = breaks_with(Mistake::ReusedToken, RETRY_ON_NEW_CONNECTIONS);
    assert!(found.contains(&Action::Start(1)), "{found:?}");
}

/// Only an unbroken connection makes up for it.
#[test]
fn a_token_that_is_used_again_is_safe_on_one_connection() {
    let reused = Redlock { mistake: Some(Mistake::ReusedToken), horizon: 1, ..RETRY };
    holds(reused, 20_000, &[STRAGGLER]);
}

/// R3, R17.
#[test]
fn a_reply_belongs_to_the_command_that_it_answers() {
    let found = breaks_with(Mistake::ShiftedReply, RETRY);
    assert!(found.contains(&Action::Start(1)), "{found:?}");
}

// Restarts and clocks.

#[test]
fn a_restarted_node_waits_for_the_longest_ttl() {
    holds(RESTART, 20_000, &[STRAGGLER, LATE_QUORUM, UNCOUNTED]);
}

#[test]
fn a_restarted_node_that_votes_at_once_votes_twice() {
    let found = breaks(Redlock { guard: 0, ..RESTART }, EXCLUSION);
    assert!(found.iter().any(|action| matches!(action, Action::Crash(_))), "{found:?}");
}

#[test]
fn a_restarted_node_that_waits_a_tick_too_little_votes_twice() {
    let found = breaks(Redlock { guard: 1, ..RESTART }, EXCLUSION);
    assert!(found.iter().any(|action| matches!(action, Action::Crash(_))), "{found:?}");
}

#[test]
fn drift_covers_a_clock_step_of_its_size() {
    holds(CLOCK_STEP, 6_000, &[STRAGGLER]);
}

#[test]
fn a_clock_step_without_drift_ends_a_lock_early() {
    let found = breaks(Redlock { drift: 0, ..CLOCK_STEP }, EXCLUSION);
    assert!(found.iter().any(|action| matches!(action, Action::StepClock(_))), "{found:?}");
}

// Extension.

#[test]
fn extension_in_time_is_continuous() {
    holds(Redlock { extenders: 2, ..EXTEND }, 16_000, &[STRAGGLER, EXTENSION]);
}

/// Somebody else may have had the lock since: a straggling SET can make the round succeed (R22,
/// R25).
#[test]
fn extension_after_the_old_deadline_hides_another_holder() {
    let late = Some(Mistake::LenientExtension);
    for heals in [false, true] {
        let found = breaks(Redlock { heals, mistake: late, ..EXTEND }, CONTINUITY);
        assert!(found.contains(&Action::Extend(0)), "{found:?}");
    }
}

/// R25.
#[test]
fn extension_counts_from_before_its_first_command() {
    let found = breaks_with(Mistake::ExtensionFromReply, EXTEND);
    assert!(found.contains(&Action::Extend(0)), "{found:?}");
}

/// R27.
#[test]
fn extension_never_shortens() {
    let short = Redlock { extension_ttl: 1, ..EXTEND };
    holds(short, 8_000, &[EXTENSION]);
    let found = breaks_with(Mistake::ShorteningExtension, short);
    assert!(found.contains(&Action::Extend(0)), "{found:?}");
}

#[test]
fn extension_does_not_count_in_quarantine() {
    holds(EXTEND_AND_RESTART, 39_000, &[STRAGGLER, EXTENSION, UNCOUNTED]);
}

/// The vote that the node gave before it restarted is still counted for a pending attempt.
#[test]
fn extension_that_counts_in_quarantine_adds_a_holder() {
    let found = breaks_with(Mistake::QuarantinedExtension, EXTEND_AND_RESTART);
    assert!(found.iter().any(|action| matches!(action, Action::Crash(_))), "{found:?}");
}

#[test]
fn healing_that_counts_in_quarantine_adds_a_holder() {
    // With its commands dead, only healing gives a restarted node the key.
    let restart = Restart::KillsCommands;
    let model = Redlock { heals: true, restart, ..EXTEND_AND_RESTART };
    let found = breaks_with(Mistake::QuarantinedExtension, model);
    assert!(found.iter().any(|action| matches!(action, Action::Crash(_))), "{found:?}");
}

#[test]
fn healing_that_does_not_count_in_quarantine_is_harmless() {
    let seen = &[STRAGGLER, EXTENSION, UNCOUNTED];
    let model = Redlock { heals: true, ..EXTEND_AND_RESTART };
    holds(model, 60_000, seen);
    holds(Redlock { restart: Restart::KillsCommands, ..model }, 45_000, seen);
}

#[test]
fn healing_over_another_holders_key_adds_a_holder() {
    let model = Redlock { heals: true, ..EXTEND };
    let found = breaks_with(Mistake::HealingOverAnother, model);
    assert!(found.contains(&Action::Extend(0)), "{found:?}");
}

/// R12: nor is there a ghost of what an extension sets, because its connection ends before the
/// release on the next one.
#[test]
fn healing_on_a_lost_connection_leaves_no_ghost() {
    let model = Redlock { heals: true, ..EXTEND_AND_LOSE };
    holds(model, 60_000, &[STRAGGLER, EXTENSION]);
    let mistake = Some(Mistake::HealingOutlivesConnection);
    let found = breaks(Redlock { mistake, ..model }, NO_GHOST);
    assert!(found.iter().any(|it| matches!(it, Action::LoseConnection(..))), "{found:?}");
}

// Lost connections.

/// Nor does it leave ghosts: the SET that was on the old connection ends with it (R12).
#[test]
fn a_lost_connection_with_a_barrier_behind_it_is_harmless() {
    holds(EXTEND_AND_LOSE, 46_000, &[STRAGGLER, EXTENSION]);
}

#[test]
fn extension_that_counts_where_a_release_is_owed_adds_a_holder() {
    let found = breaks_with(Mistake::ReleasingExtension, EXTEND_AND_LOSE_WITHOUT_BARRIER);
    let is_owed = |action: &Action| matches!(action, Action::Execute(_, _, Command::Owed));
    assert!(found.iter().any(is_owed), "{found:?}");
}

// The same in wider bounds.

fn wide(name: &str, model: Redlock, floor: usize, broken: &[&'static str]) {
    let states = visits(model, floor, &[STRAGGLER], broken);
    println!("{name}: {states} states");
}

#[test]
#[ignore = "wider bounds"]
fn wide_acquisition() {
    let model = Redlock { horizon: 6, ..EARLY_RETURN };
    wide("6 ticks", model, 16_000, &[]);
    let model = Redlock { ttl: [3; 3], horizon: 8, ..EARLY_RETURN };
    wide("3 ticks to live, 8 ticks", model, 50_000, &[]);
    let model = Redlock { horizon: 6, ..UNORDERED };
    wide("unordered, 6 ticks", model, 80_000, &[NO_GHOST]);
    let model = Redlock { horizon: 4, ..THREE };
    wide("three attempts, 4 ticks", model, 400_000, &[]);
    let model = Redlock { order: Order::Unordered, horizon: 2, ..THREE };
    wide("three attempts, unordered, 2 ticks", model, 2_000_000, &[NO_GHOST]);
    let model = Redlock { order: Order::Unordered, ..RETRY };
    wide("a retry, unordered, no tick", model, 100_000, &[NO_GHOST]);
    breaks_with(Mistake::ReusedToken, model);
    let model = Redlock { steps: 2, drift: 2, ttl: [3; 3], horizon: 5, ..CLOCK_STEP };
    wide("two clock steps, 5 ticks", model, 50_000, &[]);
}

#[test]
#[ignore = "wider bounds"]
fn wide_restart() {
    let model = Redlock { horizon: 6, ..RESTART };
    wide("a restart, 6 ticks", model, 80_000, &[]);
    let model = Redlock { horizon: 4, crashes: 2, ..RESTART };
    wide("two restarts, 4 ticks", model, 100_000, &[]);
    let model = Redlock { order: Order::Unordered, ..model };
    wide("two restarts, unordered, 4 ticks", model, 400_000, &[NO_GHOST]);
    let model = Redlock { attempts: 3, horizon: 1, ..RESTART };
    wide("a restart, three attempts, 1 tick", model, 300_000, &[]);
}

#[test]
#[ignore = "wider bounds"]
fn wide_extension() {
    let both = Redlock { extenders: 2, horizon: 5, ..EXTEND };
    wide("two extensions, 5 ticks", both, 35_000, &[]);
    let model = Redlock { heals: true, ..both };
    wide("two healing extensions, 5 ticks", model, 70_000, &[]);
    let model = Redlock { order: Order::Unordered, ..both };
    wide("two extensions, unordered, 5 ticks", model, 150_000, &[NO_GHOST]);
    let model = Redlock { heals: true, horizon: 3, ..model };
    wide("two healing extensions, unordered, 3 ticks", model, 900_000, &[NO_GHOST]);
    let model = Redlock { attempts: 3, ..EXTEND };
    wide("an extension, three attempts, 2 ticks", model, 200_000, &[]);
}

#[test]
#[ignore = "wider bounds"]
fn wide_extension_and_restart() {
    let both = Redlock { extenders: 2, horizon: 4, ..EXTEND_AND_RESTART };
    wide("two extensions, a restart, 4 ticks", both, 150_000, &[]);
    let model = Redlock { crashes: 2, ..both };
    wide("two extensions, two restarts, 4 ticks", model, 300_000, &[]);
    let model = Redlock { ttl: [3; 3], extension_ttl: 3, guard: 3, horizon: 6, ..both };
    wide("two extensions, a restart, 3 ticks to live, 6 ticks", model, 700_000, &[]);
    let model = Redlock { heals: true, ..both };
    wide("two healing extensions, a restart, 4 ticks", model, 300_000, &[]);
    let model = Redlock { order: Order::Unordered, horizon: 3, ..both };
    wide("two extensions, a restart, unordered, 3 ticks", model, 500_000, &[NO_GHOST]);
    let model = Redlock { heals: true, ..model };
    wide("two healing extensions, a restart, unordered, 3 ticks", model, 6_000_000, &[NO_GHOST]);
    let model = Redlock { attempts: 3, ..EXTEND_AND_RESTART };
    wide("an extension, a restart, three attempts, 2 ticks", model, 1_000_000, &[]);
}

/// The guard lasts for the longest time to live that any client uses.
#[test]
#[ignore = "wider bounds"]
fn wide_extension_and_restart_with_two_lifetimes() {
    let both = Redlock { extenders: 2, guard: 3, horizon: 4, ..EXTEND_AND_RESTART };
    for ttl in [[3, 2, 2], [2, 3, 2]] {
        let model = Redlock { ttl, extension_ttl: 3, ..both };
        wide("two extensions, a restart, two lifetimes, 4 ticks", model, 250_000, &[]);
    }
    let found = breaks(Redlock { ttl: [3, 2, 2], guard: 2, ..both }, EXCLUSION);
    assert!(found.iter().any(|action| matches!(action, Action::Crash(_))), "{found:?}");
    // An extension must not count in quarantine even if nothing that was sent before the restart
    // comes after it, and nothing is healed: the attempt that lost a vote lives longer than the
    // holder's lock.
    let restart = Restart::KillsCommands;
    let model = Redlock { ttl: [3, 2, 2], restart, ..both };
    wide("two extensions, a restart that kills commands, two lifetimes", model, 100_000, &[]);
    let found = breaks_with(Mistake::QuarantinedExtension, model);
    assert!(found.iter().any(|action| matches!(action, Action::Extend(_))), "{found:?}");
    // With one lifetime, timing happens to exclude it.
    let mistake = Some(Mistake::QuarantinedExtension);
    let model = Redlock { ttl: [2; 3], guard: 2, restart, mistake, ..both };
    wide("counted in quarantine, a restart that kills commands, one lifetime", model, 50_000, &[]);
}

#[test]
#[ignore = "wider bounds"]
fn wide_connections() {
    let model = Redlock { extenders: 2, losses: 3, horizon: 3, ..EXTEND_AND_LOSE };
    wide("two extensions, three losses, 3 ticks", model, 800_000, &[]);
    let without = EXTEND_AND_LOSE_WITHOUT_BARRIER;
    let model = Redlock { extenders: 2, horizon: 3, ..without };
    wide("two extensions, a loss without barrier, 3 ticks", model, 200_000, &[NO_GHOST]);
    let model = Redlock { losses: 3, ..without };
    wide("an extension, three losses without barrier, 2 ticks", model, 900_000, &[NO_GHOST]);
    let found = breaks_with(Mistake::StrayRelease, Redlock { losses: 2, ..without });
    let is_stray = |action: &Action| matches!(action, Action::Execute(_, _, Command::Stray));
    assert!(found.iter().any(is_stray), "{found:?}");
}
