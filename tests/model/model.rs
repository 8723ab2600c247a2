//! The protocol in a few hundred lines, tried on every schedule within small bounds.
//!
//! This is not the crate's engine but the rules that it follows, so that the rules themselves are
//! checked: two or three attempts by different clients, three nodes, time in ticks. Commands and
//! replies are delayed at will, or for ever, which is how they are lost. Commands on one
//! connection keep their order, except where a test says so. Between any two steps of one client,
//! all others may do whatever they can. Clients and nodes share one clock, except where a test has
//! a node's clock step.
//!
//! Connections may be lost: what was sent on them may still run, at any time, and nobody hears of
//! it. A lock may be handed over to a client with connections of its own, which knows the giver's
//! because the giver names them. A client ends old connections in front of its release and not
//! before, although it could as soon as it connects: what holds here does not depend on that.
//!
//! A restart ends all connections, and each new one tells its client of it. A client learns of it
//! late, therefore, but before the new process executes anything that the client sent.
//!
//! A test that says that something holds has visited every state that can be reached, and asserts
//! that there were many, lest a model that does nothing pass. Beside it are the tests that break
//! one rule within the same bounds, and must find two holders, or a key that is left behind.
//!
//! A lock lives for two ticks, and most tests end with the second: enough for each broken rule to
//! show. Wider bounds are in `wide.rs` and `forms.rs`, in tests that are ignored by default;
//! `cargo test -p model -- --ignored --nocapture` tells how much they visit.

#![allow(missing_docs)]

mod canonical;
mod clients;
mod fencing;
mod forms;
mod nodes;
mod protocol;
mod state;
mod waiting;
mod wide;

use protocol::{
    Action, CONTINUITY, Clocks, Command, EXCLUSION, EXTENSION, LATE_QUORUM, Mistake, NO_GHOST,
    Order, Reconnect, Redlock, Restart, STRAGGLER, TAKEN_OVER, TWO_LOSSES, UNCOUNTED,
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
    extensions: 1,
    extension_ttl: 2,
    heals: false,
    hand_overs: 0,
    crashes: 0,
    restart: Restart::KeepsCommands,
    guard: 2,
    steps: 0,
    clocks: Clocks::Unwatched,
    losses: [0; 3],
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
const EXTEND_AND_LOSE: Redlock = Redlock { losses: [1, 0, 0], ..EXTEND };
const HAND_OVER: Redlock = Redlock { hand_overs: 1, ..EXTEND };
/// The second attempt's vote lives on when its key has ended with a step of the clock.
const HAND_OVER_AND_STEP: Redlock = Redlock {
    ttl: [2, 3, 2],
    guard: 3,
    horizon: 3,
    steps: 2,
    clocks: Clocks::Watched,
    ..HAND_OVER
};
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

fn losses(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::LoseConnection(..))).count()
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
    let is_release = |action: &Action| matches!(action, Action::Execute(.., Command::Release));
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

/// It ends all connections, and each new one asks.
#[test]
fn a_client_that_does_not_notice_a_restart_adds_a_holder() {
    let found = breaks_with(Mistake::UnnoticedRestart, RESTART);
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

#[test]
fn a_clock_step_that_is_noticed_needs_no_drift() {
    let model = Redlock { drift: 0, steps: 2, clocks: Clocks::Watched, ..CLOCK_STEP };
    holds(model, 6_000, &[STRAGGLER, UNCOUNTED]);
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
    holds(model, 59_000, &[STRAGGLER, EXTENSION]);
    let mistake = Some(Mistake::HealingOutlivesConnection);
    let found = breaks(Redlock { mistake, ..model }, NO_GHOST);
    assert!(found.iter().any(|it| matches!(it, Action::LoseConnection(..))), "{found:?}");
}

// Lost connections.

/// Nothing is released before its lock was given up, so nothing deletes a copy that an extension
/// counts. Nor is anything left: the old connections end in front of the release (R12).
#[test]
fn connections_that_any_client_loses_twice_are_harmless() {
    let model = Redlock { losses: [2, 2, 0], ..EXTEND };
    holds(model, 600_000, &[STRAGGLER, EXTENSION, TWO_LOSSES]);
}

#[test]
fn healing_after_two_losses_is_harmless() {
    let model = Redlock { heals: true, losses: [2, 0, 0], ..EXTEND };
    holds(model, 170_000, &[STRAGGLER, EXTENSION, TWO_LOSSES]);
}

#[test]
fn connections_that_cannot_be_ended_leave_ghosts_and_nothing_worse() {
    let model = Redlock { losses: [2, 0, 0], reconnect: Reconnect::ReleaseTwice, ..EXTEND };
    visits(model, 260_000, &[STRAGGLER, EXTENSION, TWO_LOSSES], &[NO_GHOST]);
}

/// The release of a second connection that is lost comes when the key was healed.
#[test]
fn a_lost_set_that_is_released_while_its_lock_is_held_adds_a_holder() {
    let model = Redlock { heals: true, losses: [2, 0, 0], ..EXTEND };
    let found = breaks_with(Mistake::ReleaseWhileHeld, model);
    assert_eq!(losses(&found), 2, "{found:?}");
    let mistake = Some(Mistake::ReleaseWhileHeld);
    holds(Redlock { mistake, losses: [1, 0, 0], ..model }, 60_000, &[EXTENSION]);
    // Without healing, and if nothing is in the way of the SET that was lost.
    let model = Redlock { heals: false, reconnect: Reconnect::ReleaseTwice, ..model };
    let found = breaks_with(Mistake::ReleaseWhileHeld, model);
    assert_eq!(losses(&found), 2, "{found:?}");
}

#[test]
fn a_release_that_ends_only_the_last_connection_leaves_a_ghost() {
    let mistake = Some(Mistake::NewReleaseForgetsOldConnection);
    let model = Redlock { mistake, losses: [2, 0, 0], ..EXTEND };
    visits(model, 120_000, &[EXTENSION, TWO_LOSSES], &[NO_GHOST]);
    holds(Redlock { losses: [1, 0, 0], ..model }, 35_000, &[EXTENSION]);
}

// Hand-over.

#[test]
fn a_lock_that_is_handed_over_stays_one_lock() {
    let seen = &[STRAGGLER, EXTENSION, TAKEN_OVER];
    holds(HAND_OVER, 60_000, seen);
    holds(Redlock { heals: true, losses: [1, 0, 0], ..HAND_OVER }, 450_000, seen);
    holds(Redlock { crashes: 1, ..HAND_OVER }, 220_000, seen);
}

/// The copy that the release deletes may count for the taker, who knows nothing of it.
#[test]
fn a_giver_that_still_releases_adds_a_holder() {
    let found = breaks_with(Mistake::GiverStillReleases, HAND_OVER);
    assert!(found.contains(&Action::HandOver(0)), "{found:?}");
    let found = breaks_with(Mistake::ReleaseWhileHeld, Redlock { losses: [1, 0, 0], ..HAND_OVER });
    assert!(found.contains(&Action::HandOver(0)), "{found:?}");
}

/// It sets the key when the taker has released it, and nobody releases it again.
#[test]
fn a_giver_that_still_heals_leaves_a_ghost() {
    let mistake = Some(Mistake::GiverStillSends);
    let found = breaks(Redlock { mistake, heals: true, ..HAND_OVER }, NO_GHOST);
    assert!(found.contains(&Action::HandOver(0)), "{found:?}");
}

#[test]
fn a_taker_that_does_not_end_the_givers_connections_leaves_a_ghost() {
    let mistake = Some(Mistake::TakerForgetsTheDoubt);
    let seen = &[STRAGGLER, EXTENSION, TAKEN_OVER];
    visits(Redlock { mistake, ..HAND_OVER }, 75_000, seen, &[NO_GHOST]);
}

/// A node's clock stepped, and only the giver could notice: the node has forgotten the vote of
/// another attempt that is under way, and granted the giver's lock.
#[test]
fn a_taker_that_counts_what_the_giver_would_not_adds_a_holder() {
    for mistake in [Mistake::TakerCountsUnanswered, Mistake::TakerCountsQuarantined] {
        let found = breaks_with(mistake, HAND_OVER_AND_STEP);
        assert!(found.contains(&Action::HandOver(0)), "{found:?}");
    }
}

/// A restart is told to each new connection, the taker's too.
#[test]
fn a_taker_notices_a_restart_by_itself() {
    let seen = &[EXTENSION, UNCOUNTED, TAKEN_OVER];
    let mistake = Some(Mistake::TakerCountsUnanswered);
    holds(Redlock { mistake, crashes: 1, ..HAND_OVER }, 180_000, seen);
}
