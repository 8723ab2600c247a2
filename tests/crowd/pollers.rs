//! Pollers: clients that know no queue wait for the same key, or hold it.

use std::time::Duration;

use muxlock::settings::Waiting;
use muxlock::testing::Masters;
use testbed::{heavy, pause, soon};

use crate::contender::{KEY, Part};
use crate::foreign::{Held, contend_for, try_take};
use crate::report::median;
use crate::scene::{Scene, scene};
use crate::servers::{ask, queue_of, queued_anywhere, start};

const RUN: Duration = Duration::from_millis(1_500);
const GAP_MAX: Duration = Duration::from_millis(500);
/// No run is so short or so slow that any of them gets fewer.
const GRANTS_MIN: usize = 5;
/// For how long pollers hold locks while others wait for them; longer by this each time.
const HOLD: Duration = Duration::from_millis(400);
const HOLD_STEP: Duration = Duration::from_millis(17);
/// Who has waited for so long looks again a second later.
const LONG_HOLD: Duration = Duration::from_secs(3);
/// How many locks they hold at a time.
const KEYS: usize = 4;
/// From a poller's release to the grant, on a busy machine. If nothing notified a client that has
/// waited for so long, it would look at its place at least 265 ms later.
const HAND_OVER_MAX: Duration = Duration::from_millis(200);
/// The least delay between two rounds of a client that does not queue.
const RETRY: Duration = Duration::from_millis(1_000);

#[track_caller]
fn soon_taken<'a>(masters: &'a Masters, key: &'a str) -> Held<'a> {
    let mut held = None;
    soon("a poller has it", || {
        held = try_take(masters, key);
        held.is_some()
    });
    held.expect("it was taken")
}

/// Pollers hold locks that others wait for, and give them back; returns the keys and when.
fn give_back(masters: &Masters, keys: &[String]) -> Vec<(String, Duration)> {
    const TIMES: u32 = 3;
    let mut given_back = Vec::new();
    for time in 0..TIMES {
        let held: Vec<_> = keys.iter().map(|key| (key, soon_taken(masters, key))).collect();
        pause(HOLD + HOLD_STEP * time);
        given_back.extend(held.into_iter().map(|(key, held)| (key.clone(), held.give_back())));
        // The clients that wait have it for a moment, before the pollers come again.
        pause(2 * RETRY);
    }
    given_back
}

fn hand_over(scene: Scene, masters: &Masters, waiting: Waiting) -> Duration {
    let part = Part::new(masters.urls(), waiting);
    // They let the pollers in between.
    let pause = Duration::from_millis(20);
    let retry = Some(RETRY);
    let crowd = scene.crowd([Part { pause, retry, threads: KEYS, keys: KEYS, ..part }]);
    let keys: Vec<_> = (0..KEYS).map(Part::key).collect();
    let given_back = give_back(masters, &keys);
    let report = crowd.end(&format!("{waiting:?}"));
    let first_after = |(key, at): &(String, Duration)| {
        let mut turns = report.turns().iter().filter(|turn| turn.key == *key);
        turns.find(|turn| turn.granted >= *at).expect("it was granted").granted - *at
    };
    let took = median(&given_back.iter().map(first_after).collect::<Vec<_>>());
    println!("measured: {waiting:?}: from a stranger's release to the grant {took:?}");
    took
}

#[test]
fn slow_alone_release_of_a_poller_reaches_who_waits_at_once() {
    scene("slow_alone_release_of_a_poller_reaches_who_waits_at_once", |scene| {
        let _alone = heavy();
        let masters = start(5);
        let control = hand_over(scene, &masters, Waiting::Retry);
        assert!(control > HAND_OVER_MAX, "the control shows nothing: {control:?}");
        let queued = hand_over(scene, &masters, Waiting::Queue);
        assert!(queued <= HAND_OVER_MAX, "{queued:?}");
    });
}

/// Two clients that have ended stand in front of the queue, where the others look for themselves.
#[test]
fn slow_alone_places_of_clients_that_have_ended_hide_no_pollers_release() {
    scene("slow_alone_places_of_clients_that_have_ended_hide_no_pollers_release", |scene| {
        let _alone = heavy();
        let masters = start(5);
        let held = soon_taken(&masters, KEY);
        for master in &masters {
            ask(master, &["RPUSH", &queue_of(KEY), "muxlock:ended", "muxlock:killed"]);
        }
        let crowd = scene.crowd(vec![Part::new(masters.urls(), Waiting::Queue); 2]);
        pause(LONG_HOLD);
        let given_back = held.give_back();
        pause(GAP_MAX);
        let report = crowd.end("Queue");
        let mut turns = report.turns().iter().filter(|turn| turn.granted >= given_back);
        let took = turns.next().expect("somebody got it").granted - given_back;
        println!("measured: from a stranger's release to the grant {took:?}");
        assert!(took < GAP_MAX, "{took:?}");
    });
}

#[test]
fn slow_alone_poller_that_barges_in_gets_some_and_leaves_some() {
    scene("slow_alone_poller_that_barges_in_gets_some_and_leaves_some", |scene| {
        let _alone = heavy();
        let masters = start(5);
        let crowd = scene.crowd(vec![Part::new(masters.urls(), Waiting::Queue); 4]);
        let turns = contend_for(&masters, &[KEY.to_owned()], || pause(RUN));
        let strangers = turns.len();
        let report = crowd.end_with("Queue", |report| report.join(turns));
        println!("measured: the stranger got it {strangers} times");
        let grants = report.grants();
        assert!(grants.iter().all(|grants| *grants >= GRANTS_MIN), "{grants:?}");
        assert!(strangers >= GRANTS_MIN, "{strangers}");
        let gap = report.longest_gap();
        assert!(gap < GAP_MAX, "nobody held the lock for {gap:?}");
        soon("nobody stands in the queue any more", || queued_anywhere(&masters) == 0);
    });
}
