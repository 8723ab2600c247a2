//! Contenders that are stopped or killed: those that remain do not wait for them.

use std::time::Duration;

use muxlock::settings::Waiting;
use testbed::{heavy, pause, soon};

use crate::contender::Part;
use crate::report::Report;
use crate::scene::{Crowd, scene};
use crate::servers::start;

/// With nobody stopped, the lock is free for about a millisecond.
const GAP_MAX: Duration = Duration::from_millis(500);
/// For as long as one is stopped while the others take several turns each.
const STOP: Duration = Duration::from_millis(60);
/// Far longer than the lock may be free.
const LONG_STOP: Duration = Duration::from_millis(1_500);
/// A contender that is stopped or killed may hold the lock, which nobody gets before that is over.
const SHORT_TTL: Duration = Duration::from_millis(300);

fn part(urls: Vec<String>) -> Part {
    Part { ttl: SHORT_TTL, ..Part::new(urls, Waiting::Queue) }
}

#[track_caller]
fn goes_on(report: &Report, gap_max: Duration) {
    let gap = report.longest_gap();
    assert!(gap < gap_max, "nobody held the lock for {gap:?}");
}

/// Stops some, for so long, in the middle of a wait.
fn stop_for(crowd: &Crowd, members: &[usize], time: Duration) {
    members.iter().for_each(|member| crowd.stop(*member));
    pause(time);
    members.iter().for_each(|member| crowd.go_on(*member));
}

/// Each comes to the head of the queue while it is stopped; the next one passes it.
#[test]
fn slow_alone_core_sixteen_processes_are_stopped_in_turn_and_nobody_waits_for_them() {
    scene(
        "slow_alone_core_sixteen_processes_are_stopped_in_turn_and_nobody_waits_for_them",
        |scene| {
            const PROCESSES: usize = 16;
            let _alone = heavy();
            let masters = start(5);
            let crowd = scene.crowd(vec![part(masters.urls()); PROCESSES]);
            let mut passed = 0;
            for member in 0..PROCESSES {
                let before = crowd.all_grants();
                stop_for(&crowd, &[member], STOP);
                passed += usize::from(crowd.all_grants() > before);
            }
            let report = crowd.end("Queue");
            goes_on(&report, GAP_MAX);
            let grants = report.grants();
            assert!(grants.iter().all(|grants| *grants > 0), "{grants:?}");
            // All but those that were stopped while they held it.
            assert!(passed > PROCESSES / 2, "the others went on in {passed} of {PROCESSES} cases");
        },
    );
}

/// The head and the next one are stopped at the same time: what wakes the others is their timer.
#[test]
fn slow_alone_half_of_a_crowd_is_stopped_for_long_and_the_others_go_on() {
    scene("slow_alone_half_of_a_crowd_is_stopped_for_long_and_the_others_go_on", |scene| {
        const PROCESSES: usize = 8;
        const STOPPED: [usize; 4] = [0, 1, 2, 3];
        let _alone = heavy();
        let masters = start(5);
        let crowd = scene.crowd(vec![part(masters.urls()); PROCESSES]);
        pause(STOP);
        stop_for(&crowd, &STOPPED, LONG_STOP);
        let before: Vec<_> = STOPPED.iter().map(|member| crowd.grants(*member)).collect();
        soon("those that were stopped get it again", || {
            STOPPED.iter().all(|member| crowd.grants(*member) > before[*member])
        });
        let report = crowd.end("Queue");
        // One of them may have held it.
        goes_on(&report, GAP_MAX + SHORT_TTL);
        let grants = report.grants();
        assert!(grants.iter().all(|grants| *grants > 0), "{grants:?}");
    });
}

/// Their connections end, and what they leave in the queue costs nothing.
#[test]
fn slow_alone_core_waiters_are_killed_and_nobody_waits_for_them() {
    scene("slow_alone_core_waiters_are_killed_and_nobody_waits_for_them", |scene| {
        const PROCESSES: usize = 12;
        const KILLED: usize = 5;
        let _alone = heavy();
        let masters = start(5);
        let mut crowd = scene.crowd(vec![part(masters.urls()); PROCESSES]);
        for member in 0..KILLED {
            pause(STOP);
            crowd.kill(member);
        }
        pause(SHORT_TTL + STOP);
        let before: Vec<_> = (KILLED..PROCESSES).map(|member| crowd.grants(member)).collect();
        soon("each one that is left gets it", || {
            before.iter().zip(KILLED..).all(|(before, member)| crowd.grants(member) > *before)
        });
        let report = crowd.end("Queue");
        // Whom the signal reaches while it holds it, holds it until it expires.
        goes_on(&report, GAP_MAX + SHORT_TTL);
    });
}

/// The lock is free when it expires, and the first in the queue notices then.
#[test]
fn slow_alone_holders_are_killed_and_the_next_gets_the_lock_when_it_expires() {
    scene("slow_alone_holders_are_killed_and_the_next_gets_the_lock_when_it_expires", |scene| {
        const PROCESSES: usize = 8;
        const KILLED: usize = 3;
        let _alone = heavy();
        let masters = start(5);
        let part = |member: usize| {
            let keeps = (member < KILLED).then_some(3);
            Part { keeps, ..part(masters.urls()) }
        };
        let mut crowd = scene.crowd((0..PROCESSES).map(part));
        for member in 0..KILLED {
            soon("it keeps the lock", || crowd.grants(member) == 4);
            crowd.kill(member);
        }
        let before: Vec<_> = (KILLED..PROCESSES).map(|member| crowd.grants(member)).collect();
        soon("each one that is left gets it", || {
            before.iter().zip(KILLED..).all(|(before, member)| crowd.grants(member) > *before)
        });
        let report = crowd.end("Queue");
        // A lock that is kept counts until it expires.
        goes_on(&report, GAP_MAX);
        let kept = report.turns().iter().filter(|turn| turn.process < KILLED).count();
        assert_eq!(kept, 4 * KILLED);
    });
}
