//! The queue of waiting clients, tried on every schedule within small bounds: can everybody who
//! wants the lock still get it, from every state that can be reached?
//!
//! Clients queue up at one node, the queue node, with the scripts of `src/scripts`, watch the key,
//! and hand the lock on. Nothing has a duration: what is on its way takes as long as it likes, in
//! order on each connection and in each direction, and any timer but the slow one may fire at any
//! time. The slow timer does not, but where a test says so: nobody may need it unless two clients
//! fail.
//!
//! Clients crash, stop for ever or give up, and pollers leave keys. Clients are alike, and states
//! that differ in their numbers alone are one. The search keeps every step and follows them back
//! from the ends (`search.rs`). A fault is no way out of a state. Nor is the expiry of a key,
//! unless there is no quorum without it: nobody should wait for a time to live because of a stray
//! vote.
//!
//! In what is checked, nothing that could be left out is relied on: a client does not go by the
//! time to live that PTTL tells, while it tries it ignores invalidations and letters, and after a
//! refusal any wait may be over at once. Where the rules leave something open, the model does this:
//! - Only the last answer to queueing up counts. While a wait after a refusal runs, the answer says
//!   the place, and the wait ends with a watch; if the wait ends first, the answer decides.
//! - An attempt ends the watch. `p` begins one unless every node of the last one would still tell.
//! - Which nodes are watched is decided with the refusal. A later one changes nothing.
//! - To look again at a place further behind is to queue up again.
//! - While an attempt runs, `g` changes the place alone.
//! - A late `g` at a client that has begun anew is one for its new acquisition.
//!
//! A queue node is never lost. That clients disagree on which it is, is tried.

mod clients;
mod nodes;
mod protocol;
mod search;
mod state;
mod wide;

use protocol::{Crowd, Fault, Mistake, SlowTimer};
use search::{Sight, search};
use state::State;

/// Four clients, one node, nothing happens to them.
const FOUR: Crowd = Crowd {
    nodes: 1,
    clients: 4,
    elsewhere: 0,
    foreign: 0,
    turns: 1,
    fault: Fault::Crash,
    faults: 0,
    strangers: 0,
    slow_timer: SlowTimer::Off,
    backlog: 2,
    mistake: None,
};
const PAUSE: Crowd = Crowd { fault: Fault::Pause, faults: 1, ..FOUR };
const CRASH: Crowd = Crowd { fault: Fault::Crash, faults: 1, ..FOUR };
const TWO_PAUSES: Crowd = Crowd { faults: 2, ..PAUSE };
/// Two clients, three nodes.
const NODES: Crowd = Crowd { nodes: 3, clients: 2, ..FOUR };
const STRANGER: Crowd = Crowd { strangers: 1, ..NODES };

const OVERTAKEN: Sight = ("a lock is held by who overtook", State::is_overtaken);
const SPLIT: Sight = ("a split vote", State::is_split);
const DEAD: Sight = ("a dead client in the queue", State::is_dead_in_queue);
const DOUBTED: Sight = ("an invalidation in vain", State::is_doubted);
const IN_VAIN: Sight = ("told to go in vain", State::is_told_in_vain);

/// Visits all that can be reached: one client at a time has the lock, no key and no position is
/// left of who is through, and the sights are seen. How many states, and how many of them are
/// stuck.
fn visits(name: &str, model: Crowd, sights: &[Sight]) -> (usize, usize) {
    let found = search(&model, sights);
    println!("{name}: {} states, {} stuck", found.states, found.stuck);
    assert_eq!(found.shared_after, None, "{name}: two holders");
    assert_eq!(found.left_after, None, "{name}: something is left");
    for ((sight, _), seen) in sights.iter().zip(found.seen) {
        assert!(seen, "{name}: never seen: {sight}");
    }
    if let Some(path) = found.stuck_after {
        println!("{name}: stuck after {path:?}");
    }
    (found.states, found.stuck)
}

fn holds(name: &str, model: Crowd, floor: usize, sights: &[Sight]) {
    let (states, stuck) = visits(name, model, sights);
    assert!(states >= floor, "{name}: only {states} states");
    assert_eq!(stuck, 0, "{name}");
}

/// A way to a state from which nobody gets any further.
fn sticks(name: &str, model: Crowd) {
    let (_, stuck) = visits(name, model, &[]);
    assert!(stuck > 0, "{name}: nobody is stuck");
}

fn sticks_with(mistake: Mistake, model: Crowd) {
    sticks(&format!("{mistake:?}"), Crowd { mistake: Some(mistake), ..model });
}

// What holds.

#[test]
fn queue_of_four_goes_on() {
    holds("four clients", FOUR, 20_000, &[OVERTAKEN, DOUBTED, IN_VAIN]);
}

#[test]
fn queue_goes_on_without_who_is_paused_or_crashes() {
    holds("a pause", PAUSE, 100_000, &[OVERTAKEN, DEAD, IN_VAIN]);
    holds("a crash", CRASH, 150_000, &[OVERTAKEN, DEAD, IN_VAIN]);
}

#[test]
fn queue_goes_on_without_those_who_give_up() {
    let model = Crowd { fault: Fault::GiveUp, faults: 3, ..FOUR };
    holds("three give up", model, 80_000, &[OVERTAKEN]);
}

#[test]
fn queue_goes_on_where_clients_come_back() {
    let model = Crowd { clients: 3, turns: 2, ..FOUR };
    holds("three clients, twice each", model, 700_000, &[OVERTAKEN, DOUBTED, IN_VAIN]);
    let model = Crowd { clients: 2, turns: 3, ..FOUR };
    holds("two clients, three times each", model, 5_000, &[OVERTAKEN, IN_VAIN]);
}

#[test]
fn queue_beside_three_nodes_goes_on() {
    holds("three nodes", NODES, 8_000, &[SPLIT]);
    for (fault, floor) in [(Fault::Pause, 30_000), (Fault::Crash, 60_000), (Fault::GiveUp, 15_000)]
    {
        let model = Crowd { fault, faults: 1, ..NODES };
        holds(&format!("three nodes, {fault:?}"), model, floor, &[SPLIT]);
    }
}

/// Wherever it is, and also if it never expires while the others go on.
#[test]
fn stray_vote_stops_nobody() {
    holds("three nodes, a stray vote", STRANGER, 500_000, &[SPLIT, OVERTAKEN]);
}

/// The head and the next; nobody else watches (W10).
#[test]
fn two_pauses_need_the_slow_timer() {
    sticks("two pauses", TWO_PAUSES);
    let slow = Crowd { slow_timer: SlowTimer::On, ..TWO_PAUSES };
    holds("two pauses, slow timers", slow, 1_200_000, &[OVERTAKEN, DEAD]);
}

/// They are dropped only by a script, and who holds the lock without the queue runs none.
#[test]
fn two_crashes_need_the_slow_timer_too() {
    sticks("two crashes", Crowd { faults: 2, ..CRASH });
}

/// Some queue up elsewhere: there are two heads, and two that are next.
#[test]
fn two_queue_nodes_go_on() {
    let model = Crowd { elsewhere: 1, ..NODES };
    holds("two queue nodes", model, 15_000, &[SPLIT]);
    for (fault, floor) in [(Fault::Pause, 70_000), (Fault::Crash, 120_000), (Fault::GiveUp, 35_000)]
    {
        let model = Crowd { fault, faults: 1, ..model };
        holds(&format!("two queue nodes, {fault:?}"), model, floor, &[SPLIT]);
    }
    holds("two queue nodes, a stray vote", Crowd { strangers: 1, ..model }, 700_000, &[SPLIT]);
}

/// They neither queue up nor tell anybody.
#[test]
fn clients_that_know_no_queue_stop_nobody() {
    holds("one knows no queue", Crowd { foreign: 1, ..FOUR }, 25_000, &[OVERTAKEN]);
    holds("two know no queue", Crowd { foreign: 2, ..FOUR }, 7_000, &[DOUBTED]);
    holds("one knows no queue, a crash", Crowd { foreign: 1, ..CRASH }, 200_000, &[DEAD]);
    holds("one knows no queue, three nodes", Crowd { foreign: 1, ..NODES }, 12_000, &[SPLIT]);
}

#[test]
fn lost_tracking_needs_the_slow_timer() {
    let model = Crowd { clients: 3, fault: Fault::Untrack, faults: 1, ..FOUR };
    sticks("lost tracking", model);
    let slow = Crowd { slow_timer: SlowTimer::On, ..model };
    holds("lost tracking, slow timers", slow, 6_000, &[OVERTAKEN]);
}

/// It costs time: a head may sleep, and the next goes in its place.
#[test]
fn what_the_guard_of_the_head_makes_up_for() {
    let give_up = Crowd { fault: Fault::GiveUp, ..PAUSE };
    for (mistake, model) in [
        (Mistake::GoOnlyIfDeleted, STRANGER),
        (Mistake::GoOnlyIfDeleted, PAUSE),
        (Mistake::DeadKept, CRASH),
        (Mistake::BehindWhoSlept, PAUSE),
        (Mistake::PositionLeftBehind, give_up),
        (Mistake::SilentStepOut, give_up),
        (Mistake::GoSwallowed, give_up),
    ] {
        let found = search(&Crowd { mistake: Some(mistake), ..model }, &[]);
        println!("{mistake:?}: {} states, {} stuck", found.states, found.stuck);
        assert!(found.states >= 60_000, "{mistake:?}: only {} states", found.states);
        assert_eq!(found.stuck_after, None, "{mistake:?}");
        // Nobody takes a position away that its client has left behind.
        let is_left = mistake == Mistake::PositionLeftBehind;
        assert_eq!(found.left_after.is_some(), is_left, "{mistake:?}: {:?}", found.left_after);
    }
}

// What must not be left out.

/// W8: the key may be gone before the watch begins.
#[test]
fn without_a_look_at_the_answer_of_pttl_the_head_sleeps() {
    sticks_with(Mistake::PttlUnread, Crowd { clients: 2, ..FOUR });
    sticks_with(Mistake::PttlUnread, NODES);
}

/// W11.
#[test]
fn without_a_watch_after_a_refusal_the_head_sleeps() {
    sticks_with(Mistake::NoWatchAfterRefusal, FOUR);
    sticks_with(Mistake::NoWatchAfterRefusal, NODES);
}

/// W5. The answer's place is needed. What it says of the key is not, as long as the watch asks
/// again; further behind it saves who queues up behind two that are dead, but not who did before.
#[test]
fn without_a_look_at_the_answer_of_queueing_up_everybody_sleeps() {
    sticks_with(Mistake::PositionUnread, Crowd { clients: 2, ..FOUR });
    let mistake = Some(Mistake::KeyUnreadInQueue);
    holds("key unread in the queue", Crowd { mistake, ..CRASH }, 40_000, &[OVERTAKEN, DEAD]);
    holds("key unread, three nodes", Crowd { mistake, ..NODES }, 6_000, &[SPLIT]);
}

/// W8: the head may be paused.
#[test]
fn next_that_ignores_an_invalidation_sleeps() {
    sticks_with(Mistake::InvalidationIgnoredNext, PAUSE);
    let mistake = Some(Mistake::InvalidationIgnoredNext);
    holds("invalidation ignored, no fault", Crowd { mistake, ..FOUR }, 20_000, &[OVERTAKEN]);
}

/// W6: who is notified may be paused, and nobody else knows that it is next.
#[test]
fn next_that_is_not_told_sleeps() {
    sticks_with(Mistake::NextUntold, PAUSE);
    let mistake = Some(Mistake::NextUntold);
    holds("next untold, three clients", Crowd { mistake, clients: 3, ..PAUSE }, 2_000, &[DEAD]);
}

/// W9: the node that is watched may be the one whose key stays.
#[test]
fn who_watches_one_node_is_stopped_by_a_stray_vote() {
    sticks_with(Mistake::OneWatched, STRANGER);
    let mistake = Some(Mistake::OneWatched);
    holds("one node watched, no stray vote", Crowd { mistake, ..NODES }, 6_000, &[SPLIT]);
}

/// A position is a hint, and never a vote.
#[test]
fn who_takes_a_letter_for_the_lock_shares_it() {
    let mistake = Some(Mistake::GoIsGrant);
    let found = search(&Crowd { mistake, ..FOUR }, &[]);
    println!("a letter is the lock: {} states, {:?}", found.states, found.shared_after);
    assert!(found.shared_after.is_some(), "nobody shares the lock");
}
