//! What happens to the master with the queue: it is frozen or killed, has a stray vote, loses the
//! queue or forgets what it watches. Those who wait go on without it, or notice.

use std::time::Duration;

use muxlock::settings::Waiting;
use muxlock::testing::{Master, Masters};
use testbed::proxy::DelayProxy;
use testbed::{SOON, heavy, pause, soon};

use crate::contender::{KEY, Part, now};
use crate::foreign::contend_for;
use crate::report::Report;
use crate::scene::{Crowd, Scene, scene};
use crate::servers::{
    ask, info, queue_holder, queue_node, queue_of, queued, queued_anywhere, start, tell,
};

const PROCESSES: usize = 8;
const NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// In a crowd that holds for a millisecond each, the lock is free no longer, whatever is lost.
const GAP_MAX: Duration = Duration::from_millis(500);
/// Before and after the fault.
const CALM: Duration = Duration::from_millis(300);
/// Far longer than the lock may be free.
const FAULT: Duration = Duration::from_millis(1_200);
/// Where nobody is slow to notice, the one with the most grants has at most as many times those of
/// the one with the least.
const UNEVENNESS_MAX: f64 = 5.0;
/// A stray vote that no run outlives, in milliseconds.
const STRAY_TTL: &str = "30000";

fn crowd(scene: Scene, masters: &Masters) -> Crowd {
    let part = Part::new(masters.urls(), Waiting::Queue);
    scene.crowd(vec![Part { node_timeout: NODE_TIMEOUT, ..part }; PROCESSES])
}

#[track_caller]
fn goes_on(report: &Report, since: Duration) {
    let gap = report.longest_gap();
    assert!(gap < GAP_MAX, "nobody held the lock for {gap:?}");
    let grants = report.grants_since(since);
    assert!(grants.iter().all(|grants| *grants > 0), "since the fault: {grants:?}");
}

#[test]
fn slow_alone_queue_node_is_frozen_and_the_queue_goes_on_at_another() {
    scene("slow_alone_queue_node_is_frozen_and_the_queue_goes_on_at_another", |scene| {
        let _alone = heavy();
        let masters = start(5);
        let crowd = crowd(scene, &masters);
        pause(CALM);
        let queue_node = queue_holder(&masters, SOON);
        masters[queue_node].freeze().unwrap();
        let frozen = now();
        pause(FAULT);
        let is_elsewhere = (0..5).filter(|i| *i != queue_node).any(|i| queued(&masters[i]) > 0);
        masters[queue_node].thaw().unwrap();
        pause(CALM);
        crowd.each_gets_it();
        let report = crowd.end("Queue");
        goes_on(&report, frozen);
        assert!(is_elsewhere, "nobody queued up elsewhere");
    });
}

#[test]
fn slow_alone_core_queue_node_is_killed_and_the_queue_goes_on_at_another() {
    scene("slow_alone_core_queue_node_is_killed_and_the_queue_goes_on_at_another", |scene| {
        let _alone = heavy();
        let mut masters = start(5);
        let crowd = crowd(scene, &masters);
        pause(CALM);
        let queue_node = queue_holder(&masters, SOON);
        masters[queue_node].kill().unwrap();
        let killed = now();
        let is_elsewhere = || (0..5).filter(|i| *i != queue_node).any(|i| queued(&masters[i]) > 0);
        soon("they queue up elsewhere", is_elsewhere);
        pause(2 * CALM);
        crowd.each_gets_it();
        goes_on(&crowd.end("Queue"), killed);
    });
}

/// As a client leaves it that crashed with a single vote.
fn put_stray_vote(master: &Master) {
    tell(master, &["SET", KEY, "stray", "PX", STRAY_TTL]);
}

/// The first in the queue watches the key on another master, too.
#[test]
fn slow_alone_stray_vote_on_the_queue_node_before_the_run_costs_nobody_a_turn() {
    scene("slow_alone_stray_vote_on_the_queue_node_before_the_run_costs_nobody_a_turn", |scene| {
        let _alone = heavy();
        let masters = start(5);
        let queue_node = queue_node(&masters);
        put_stray_vote(&masters[queue_node]);
        let (begun, crowd) = (now(), crowd(scene, &masters));
        let is_there = || queued(&masters[queue_node]) >= PROCESSES as i64 / 2;
        soon("the vote was put where the queue is", is_there);
        pause(FAULT);
        crowd.each_gets_it();
        let report = crowd.end("Queue");
        goes_on(&report, begun);
        assert!(report.unevenness() <= UNEVENNESS_MAX, "{:?}", report.grants());
    });
}

#[test]
fn slow_alone_stray_vote_on_the_queue_node_during_the_run_costs_nobody_a_turn() {
    scene("slow_alone_stray_vote_on_the_queue_node_during_the_run_costs_nobody_a_turn", |scene| {
        let _alone = heavy();
        let masters = start(5);
        let crowd = crowd(scene, &masters);
        pause(CALM);
        let queue_node = queue_holder(&masters, SOON);
        put_stray_vote(&masters[queue_node]);
        let put = now();
        pause(FAULT);
        crowd.each_gets_it();
        let report = crowd.end("Queue");
        goes_on(&report, put);
        assert!(report.unevenness() <= UNEVENNESS_MAX, "{:?}", report.grants());
    });
}

/// Does this to the queue node again and again; each time, all who wait have to queue up anew.
fn again_and_again(scene: Scene, harm: impl Fn(&Master)) {
    const TIMES: u32 = 8;
    let _alone = heavy();
    let masters = start(5);
    let crowd = crowd(scene, &masters);
    pause(CALM);
    let queue_node = queue_holder(&masters, SOON);
    for _ in 0..TIMES {
        pause(FAULT / TIMES);
        harm(&masters[queue_node]);
    }
    let last = now();
    pause(CALM);
    crowd.each_gets_it();
    goes_on(&crowd.end("Queue"), last);
    soon("nobody stands in the queue any more", || queued_anywhere(&masters) == 0);
}

#[test]
fn slow_alone_queue_node_is_flushed_and_those_who_wait_notice() {
    scene("slow_alone_queue_node_is_flushed_and_those_who_wait_notice", |scene| {
        again_and_again(scene, |queue_node| queue_node.flush().unwrap());
    });
}

#[test]
fn slow_alone_queue_is_deleted_and_those_who_wait_notice() {
    scene("slow_alone_queue_is_deleted_and_those_who_wait_notice", |scene| {
        again_and_again(scene, |queue_node| drop(ask(queue_node, &["DEL", &queue_of(KEY)])));
    });
}

/// For these members, the master where the others queue up is too far away. There are two queues,
/// whose heads compete.
fn queue_up_at_two(scene: Scene, far: &[usize], processes: usize, threads: usize) {
    const FAR: Duration = Duration::from_millis(20);
    let _alone = heavy();
    let masters = start(5);
    let queue_node = queue_node(&masters);
    let addr = masters[queue_node].addr().parse().expect("an address");
    let way = DelayProxy::start(addr, FAR).expect("a free port");
    let part = |member| {
        let mut urls = masters.urls();
        if far.contains(&member) {
            urls[queue_node] = way.url();
        }
        Part { threads, ..Part::new(urls, Waiting::Queue) }
    };
    let crowd = scene.crowd((0..processes).map(part));
    let is_there = |master: &&Master| queued(master) > 0;
    soon("there are two queues", || masters.iter().filter(is_there).count() == 2);
    pause(FAULT);
    crowd.each_gets_it();
    goes_on(&crowd.end("Queue"), Duration::ZERO);
}

#[test]
fn slow_alone_clients_that_queue_up_at_different_masters_all_get_the_lock() {
    scene("slow_alone_clients_that_queue_up_at_different_masters_all_get_the_lock", |scene| {
        queue_up_at_two(scene, &[0, 1, 2, 3], 8, 1);
    });
}

/// One alone in its queue, whose threads always want the lock, and three in the other one.
#[test]
fn slow_alone_threads_that_queue_up_at_different_masters_all_get_the_lock() {
    scene("slow_alone_threads_that_queue_up_at_different_masters_all_get_the_lock", |scene| {
        queue_up_at_two(scene, &[0], 4, 4);
    });
}

/// Since Redis 7.0, keys that do not fit into the table are dropped without a word.
#[test]
fn slow_alone_masters_that_forget_what_is_watched_are_watched_again() {
    scene("slow_alone_masters_that_forget_what_is_watched_are_watched_again", |scene| {
        const KEYS: usize = 4;
        let _alone = heavy();
        let masters = start(5);
        for master in &masters {
            tell(master, &["CONFIG", "SET", "tracking-table-max-keys", "1"]);
        }
        let part = Part::new(masters.urls(), Waiting::Queue);
        let crowd = scene.crowd(vec![Part { threads: KEYS, keys: KEYS, ..part }; 4]);
        let is_tracking = |master| info(master, "clients", "tracking_clients") != "0";
        soon("they watch keys", || masters.iter().any(is_tracking));
        // Nobody is told when a poller gives a lock back.
        let keys: Vec<_> = (0..KEYS).map(Part::key).collect();
        let turns = contend_for(&masters, &keys, || pause(FAULT));
        assert!(turns.len() >= KEYS, "the strangers got {turns:?}");
        let report = crowd.end_with("Queue", |report| report.join(turns));
        let gap = report.longest_gap();
        assert!(gap < GAP_MAX, "nobody held a lock for {gap:?}");
        let grants = report.grants_of_threads();
        assert!(grants.iter().all(|grants| *grants > 0), "{grants:?}");
    });
}
