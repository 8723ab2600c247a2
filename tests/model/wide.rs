//! The same in wider bounds. How many states there are is asserted: who changes the model sees what
//! that does to them.

use crate::protocol::STRAGGLER;
use crate::protocol::{Action, EXCLUSION, Mistake, NO_GHOST, Order, Reconnect, Redlock, Restart};
use crate::{
    CLOCK_STEP, EARLY_RETURN, EXTEND, EXTEND_AND_RESTART, HAND_OVER, HAND_OVER_AND_STEP, RESTART,
    RETRY, THREE, UNORDERED, breaks, breaks_with, visits,
};

/// Visits as many states as that.
fn wide(name: &str, model: Redlock, count: usize, broken: &[&'static str]) {
    let states = visits(model, 1, &[STRAGGLER], broken);
    let found = if broken.is_empty() { "holds" } else { "holds, but for ghosts" };
    println!("{name}: {states} states: {found}");
    assert_eq!(states, count, "{name}");
}

#[test]
#[ignore = "wider bounds"]
fn wide_acquisition() {
    let model = Redlock { horizon: 6, ..EARLY_RETURN };
    wide("6 ticks", model, 16_744, &[]);
    let model = Redlock { ttl: [3; 3], horizon: 8, ..EARLY_RETURN };
    wide("3 ticks to live, 8 ticks", model, 52_821, &[]);
    let model = Redlock { horizon: 6, ..UNORDERED };
    wide("unordered, 6 ticks", model, 87_098, &[NO_GHOST]);
    let model = Redlock { horizon: 4, ..THREE };
    wide("three attempts, 4 ticks", model, 432_999, &[]);
    let model = Redlock { order: Order::Unordered, horizon: 2, ..THREE };
    wide("three attempts, unordered, 2 ticks", model, 2_034_371, &[NO_GHOST]);
    let model = Redlock { order: Order::Unordered, ..RETRY };
    wide("a retry, unordered, no tick", model, 130_300, &[NO_GHOST]);
    breaks_with(Mistake::ReusedToken, model);
    let model = Redlock { steps: 2, drift: 2, ttl: [3; 3], horizon: 5, ..CLOCK_STEP };
    wide("two clock steps, 5 ticks", model, 51_958, &[]);
}

#[test]
#[ignore = "wider bounds"]
fn wide_restart() {
    let model = Redlock { horizon: 6, ..RESTART };
    wide("a restart, 6 ticks", model, 83_131, &[]);
    let model = Redlock { horizon: 4, crashes: 2, ..RESTART };
    wide("two restarts, 4 ticks", model, 121_871, &[]);
    let model = Redlock { order: Order::Unordered, ..model };
    wide("two restarts, unordered, 4 ticks", model, 465_140, &[NO_GHOST]);
    let model = Redlock { attempts: 3, horizon: 1, ..RESTART };
    wide("a restart, three attempts, 1 tick", model, 371_876, &[]);
}

#[test]
#[ignore = "wider bounds"]
fn wide_extension() {
    let both = Redlock { extenders: 2, horizon: 5, ..EXTEND };
    wide("two extensions, 5 ticks", both, 38_027, &[]);
    let model = Redlock { heals: true, ..both };
    wide("two healing extensions, 5 ticks", model, 77_563, &[]);
    let model = Redlock { order: Order::Unordered, ..both };
    wide("two extensions, unordered, 5 ticks", model, 188_704, &[NO_GHOST]);
    let model = Redlock { heals: true, horizon: 3, ..model };
    wide("two healing extensions, unordered, 3 ticks", model, 901_425, &[NO_GHOST]);
    let model = Redlock { attempts: 3, ..EXTEND };
    wide("an extension, three attempts, 2 ticks", model, 240_560, &[]);
}

#[test]
#[ignore = "wider bounds"]
fn wide_extension_and_restart() {
    let both = Redlock { extenders: 2, horizon: 4, ..EXTEND_AND_RESTART };
    wide("two extensions, a restart, 4 ticks", both, 150_735, &[]);
    let model = Redlock { crashes: 2, ..both };
    wide("two extensions, two restarts, 4 ticks", model, 360_358, &[]);
    let model = Redlock { ttl: [3; 3], extension_ttl: 3, guard: 3, horizon: 6, ..both };
    wide("two extensions, a restart, 3 ticks to live, 6 ticks", model, 741_744, &[]);
    let model = Redlock { heals: true, ..both };
    wide("two healing extensions, a restart, 4 ticks", model, 388_105, &[]);
    let model = Redlock { order: Order::Unordered, horizon: 3, ..both };
    wide("two extensions, a restart, unordered, 3 ticks", model, 503_889, &[NO_GHOST]);
    let model = Redlock { heals: true, ..model };
    wide("two healing extensions, a restart, unordered, 3 ticks", model, 6_013_665, &[NO_GHOST]);
    let model = Redlock { attempts: 3, ..EXTEND_AND_RESTART };
    wide("an extension, a restart, three attempts, 2 ticks", model, 1_564_753, &[]);
}

/// The guard lasts for the longest time to live that any client uses.
#[test]
#[ignore = "wider bounds"]
fn wide_extension_and_restart_with_two_lifetimes() {
    let both = Redlock { extenders: 2, guard: 3, horizon: 4, ..EXTEND_AND_RESTART };
    for (ttl, count) in [([3, 2, 2], 294_987), ([2, 3, 2], 345_110)] {
        let model = Redlock { ttl, extension_ttl: 3, ..both };
        wide("two extensions, a restart, two lifetimes, 4 ticks", model, count, &[]);
    }
    let found = breaks(Redlock { ttl: [3, 2, 2], guard: 2, ..both }, EXCLUSION);
    assert!(found.iter().any(|action| matches!(action, Action::Crash(_))), "{found:?}");
    // An extension must not count in quarantine even if nothing that was sent before the restart
    // comes after it, and nothing is healed: the attempt that lost a vote lives longer than the
    // holder's lock.
    let restart = Restart::KillsCommands;
    let model = Redlock { ttl: [3, 2, 2], restart, ..both };
    wide("two extensions, a restart that kills commands, two lifetimes", model, 175_475, &[]);
    let found = breaks_with(Mistake::QuarantinedExtension, model);
    assert!(found.iter().any(|action| matches!(action, Action::Extend(_))), "{found:?}");
    // With one lifetime, timing happens to exclude it.
    let mistake = Some(Mistake::QuarantinedExtension);
    let model = Redlock { ttl: [2; 3], guard: 2, restart, mistake, ..both };
    wide("counted in quarantine, a restart that kills commands, one lifetime", model, 103_712, &[]);
}

#[test]
#[ignore = "wider bounds"]
fn wide_connections() {
    let heal = Redlock { heals: true, losses: [2, 2, 0], ..EXTEND };
    wide("healing, two losses each, 2 ticks", heal, 1_166_824, &[]);
    let both = Redlock { extenders: 2, horizon: 3, ..heal };
    wide("two healing extensions, two losses each, 3 ticks", both, 9_255_306, &[]);
    let again = Redlock { extensions: 2, losses: [2, 0, 0], horizon: 3, ..heal };
    wide("healing twice, two losses, 3 ticks", again, 1_649_551, &[]);
    let restart = Redlock { crashes: 1, losses: [2, 1, 0], ..heal };
    wide("healing, two losses and one, a restart, 2 ticks", restart, 3_141_781, &[]);
    let three = Redlock { losses: [1, 1, 0], ..THREE };
    wide("three attempts, a loss for two, no tick", three, 116_191, &[]);
    let retry = Redlock { losses: [2, 0, 0], horizon: 1, attempts: 2, ..RETRY };
    wide("a retry, two losses, 1 tick", retry, 13_693, &[]);
    let never = Redlock { heals: false, reconnect: Reconnect::ReleaseTwice, ..heal };
    wide("two losses each without barrier, 2 ticks", never, 7_107_065, &[NO_GHOST]);
    let never = Redlock { heals: true, losses: [2, 0, 0], ..never };
    wide("healing, two losses without barrier, 2 ticks", never, 820_471, &[NO_GHOST]);
}

#[test]
#[ignore = "wider bounds"]
fn wide_hand_over() {
    let heal = Redlock { heals: true, ..HAND_OVER };
    let lose = Redlock { losses: [2, 2, 0], ..heal };
    wide("healing, handed over, two losses each, 2 ticks", lose, 7_530_463, &[]);
    let lose = Redlock { losses: [1, 0, 0], horizon: 4, ..heal };
    wide("healing, handed over, a loss before and after, 4 ticks", lose, 1_020_026, &[]);
    let again = Redlock { extensions: 2, horizon: 3, ..heal };
    wide("healing twice each, handed over, 3 ticks", again, 1_981_914, &[]);
    let both = Redlock { hand_overs: 2, extenders: 2, losses: [1, 1, 0], ..HAND_OVER };
    wide("two locks handed over, losses before and after, 2 ticks", both, 4_172_797, &[]);
    let restart = Redlock { crashes: 1, losses: [1, 0, 0], ..heal };
    wide("healing, handed over, losses, a restart, 2 ticks", restart, 2_692_646, &[]);
    let never = Redlock { losses: [1, 0, 0], reconnect: Reconnect::ReleaseTwice, ..heal };
    wide("healing, handed over, losses without barrier, 2 ticks", never, 3_227_589, &[NO_GHOST]);
    let three = Redlock { attempts: 3, ..HAND_OVER };
    wide("handed over, three attempts, 2 ticks", three, 1_423_149, &[]);
    let late = Redlock { mistake: Some(Mistake::GiverStillSends), ..heal };
    wide("a giver that still heals, 2 ticks", late, 1_132_012, &[NO_GHOST]);
}

/// The taker counts nothing that the giver would not. A restart it notices by itself.
#[test]
#[ignore = "wider bounds"]
fn wide_hand_over_with_doubts() {
    let step = HAND_OVER_AND_STEP;
    wide("handed over, two clock steps, 3 ticks", step, 2_167_174, &[]);
    let step = Redlock { heals: true, steps: 1, ..step };
    wide("healing, handed over, a clock step, 3 ticks", step, 2_367_919, &[]);
    let restart =
        Redlock { heals: true, ttl: [2, 3, 2], guard: 3, horizon: 3, crashes: 1, ..HAND_OVER };
    wide("healing, handed over, a restart, two lifetimes, 3 ticks", restart, 1_447_279, &[]);
    let mistake = Some(Mistake::TakerCountsUnanswered);
    wide("the same, counted at once", Redlock { mistake, ..restart }, 1_338_619, &[]);
}
