//! Crowds in which nothing goes wrong: everybody gets the lock, about as often as everybody else,
//! and as soon as it is free.

use std::time::Duration;

use muxlock::settings::Waiting;
use testbed::{heavy, pause, soon};

use crate::contender::Part;
use crate::report::{Report, median};
use crate::scene::{Scene, scene};
use crate::servers::{queue_node, queued, queued_anywhere, sets, start};
use muxlock::testing::Masters;

/// How long a crowd contends.
const RUN: Duration = Duration::from_millis(1_200);
/// Where all wait in the queue, the one with the most grants has at most as many times those of
/// the one with the least.
const UNEVENNESS_MAX: f64 = 5.0;
/// No run is so short or so slow that a process in the queue gets fewer.
const GRANTS_MIN: usize = 5;
/// The longest wait of sixteen that hold for a millisecond each. Without the queue, some wait for
/// as long as the run takes.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// SETs on each master for a grant, among sixteen that hold for 20 ms. In the queue there is one,
/// and one of each contender that was refused at first.
const SETS_MAX: f64 = 2.0;
/// From a release to the grant of a client that waits in the queue, on a busy machine. If nothing
/// notified a client that has waited for 400 ms, it would look at its place 350 ms later.
const HAND_OVER_MAX: Duration = Duration::from_millis(200);

fn run(scene: Scene, parts: Vec<Part>) -> Report {
    run_for(RUN, scene, parts)
}

fn run_for(time: Duration, scene: Scene, parts: Vec<Part>) -> Report {
    let what = format!("{:?}", parts[0].waiting);
    let crowd = scene.crowd(parts);
    pause(time);
    crowd.end(&what)
}

#[track_caller]
fn is_even(report: &Report) {
    let grants = report.grants();
    assert!(grants.iter().all(|grants| *grants >= GRANTS_MIN), "{grants:?}");
    assert!(report.unevenness() <= UNEVENNESS_MAX, "{grants:?}");
    assert!(report.longest_wait() < WAIT_MAX, "{:?}", report.longest_wait());
}

/// Without the queue, who has just given the lock back takes it again while the others sleep.
#[track_caller]
fn keeps_some_waiting(control: &Report) {
    let wait = control.longest_wait();
    assert!(wait > WAIT_MAX, "the control shows nothing: nobody waited longer than {wait:?}");
}

/// The control comes first, so that it is seen whatever becomes of the other.
fn take_turns(scene: Scene, processes: usize, part: impl Fn(&Masters, Waiting) -> Part) -> Report {
    let _alone = heavy();
    let masters = start(5);
    let parts = |waiting| vec![part(&masters, waiting); processes];
    keeps_some_waiting(&run(scene, parts(Waiting::Retry)));
    let report = run(scene, parts(Waiting::Queue));
    is_even(&report);
    soon("nobody stands in the queue any more", || queued_anywhere(&masters) == 0);
    report
}

fn plain(masters: &Masters, waiting: Waiting) -> Part {
    Part::new(masters.urls(), waiting)
}

#[test]
fn slow_alone_four_processes_take_turns() {
    scene("slow_alone_four_processes_take_turns", |scene| drop(take_turns(scene, 4, plain)));
}

#[test]
fn slow_alone_core_sixteen_processes_take_turns() {
    scene("slow_alone_core_sixteen_processes_take_turns", |scene| {
        drop(take_turns(scene, 16, plain))
    });
}

/// A process whose threads always want the lock lets others in (W13).
#[test]
fn slow_alone_four_processes_of_four_threads_take_turns() {
    scene("slow_alone_four_processes_of_four_threads_take_turns", |scene| {
        let part = |masters: &Masters, waiting| Part { threads: 4, ..plain(masters, waiting) };
        let grants = take_turns(scene, 4, part).grants_of_threads();
        assert!(grants.iter().all(|grants| *grants > 0), "{grants:?}");
    });
}

/// Who waits is told, and does not look again after a delay that has grown with its wait.
#[test]
fn slow_alone_release_reaches_who_waits_in_another_process_at_once() {
    scene("slow_alone_release_reaches_who_waits_in_another_process_at_once", |scene| {
        let _alone = heavy();
        let masters = start(5);
        let millis = Duration::from_millis;
        let took = |waiting| {
            // On each key, one comes to wait in the middle of the other's hold.
            let part = plain(&masters, waiting);
            let (hold, pause, retry) = (millis(800), millis(400), Some(millis(400)));
            let part = Part { hold, pause, retry, threads: 4, keys: 4, ..part };
            let took = run_for(4 * RUN, scene, vec![part; 2]).hand_overs();
            let (usual, longest) = (median(&took), took.into_iter().max().unwrap());
            println!("measured: {waiting:?}: release to next grant {usual:?}, longest {longest:?}");
            (usual, longest)
        };
        let (_, control) = took(Waiting::Retry);
        assert!(control > HAND_OVER_MAX, "the control shows nothing: {control:?}");
        let (queued, _) = took(Waiting::Queue);
        assert!(queued <= HAND_OVER_MAX, "{queued:?}");
    });
}

/// Only what is granted is sent, but for the first SET of each contender. And the contender that
/// gives the lock back does not get it next: the others are still to be served.
#[test]
fn slow_alone_who_waits_in_the_queue_asks_no_master() {
    scene("slow_alone_who_waits_in_the_queue_asks_no_master", |scene| {
        let _alone = heavy();
        let masters = start(5);
        let contend = |waiting| {
            let before = sets(&masters);
            let part = Part { hold: Duration::from_millis(20), ..plain(&masters, waiting) };
            let report = run(scene, vec![part; 16]);
            let sent = (sets(&masters) - before) as f64 / masters.len() as f64;
            let each = sent / report.turns().len() as f64;
            println!("measured: {waiting:?}: {each:.2} SETs on each master for a grant");
            (each, report.grants())
        };
        let (control, grants) = contend(Waiting::Retry);
        assert!(control > SETS_MAX, "the control shows nothing: {control}");
        assert!(grants.contains(&0), "the control shows nothing: {grants:?}");
        let (queued, grants) = contend(Waiting::Queue);
        assert!(queued <= SETS_MAX, "{queued}");
        assert!(!grants.contains(&0), "{grants:?}");
    });
}

/// All find the same master without talking to each other (W2).
#[test]
fn queue_stands_at_the_master_with_the_greatest_score() {
    scene("queue_stands_at_the_master_with_the_greatest_score", |scene| {
        const PROCESSES: usize = 6;
        let masters = start(5);
        let queue_node = &masters[queue_node(&masters)];
        let crowd = scene.crowd(vec![plain(&masters, Waiting::Queue); PROCESSES]);
        soon("they stand in the queue", || queued(queue_node) > PROCESSES as i64 / 2);
        crowd.end("Queue");
    });
}

/// The control of all others: what is never to be seen is seen if it happens.
#[test]
fn processes_with_masters_of_their_own_hold_the_lock_at_the_same_time() {
    scene("processes_with_masters_of_their_own_hold_the_lock_at_the_same_time", |scene| {
        let masters = start(2);
        let part = |url| Part::new(vec![url], Waiting::Queue);
        let crowd = scene.crowd(masters.urls().into_iter().map(part));
        soon("both have it", || (0..2).all(|member| crowd.grants(member) > GRANTS_MIN));
        let two = crowd.end_unchecked("control").two_holders();
        assert!(two.is_some(), "the control shows nothing");
    });
}
