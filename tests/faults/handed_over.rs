//! Locks that are handed over while a master's answer to the giver is outstanding (R12): what the
//! giver owes must not delete what the taker counts, and what it has sent must not come to stay
//! after the taker's release.

use std::time::Duration;

use muxlock::node::{NodeOutcome, NodeState};
use muxlock::settings::RestartGuard;
use muxlock::{LockGuard, LockParts, Redlock};

use crate::gate::{Gate, Toward};
use crate::scene::{
    KEY, LASTING, LONG, SET, all_vote, compare_and_delete, ends_by_itself, first_in_time, in_time,
    node_soon, owner, owns, pttl, sets_of, start, stays_alone, two_hold, works,
};
use muxlock::testing::Masters;
use testbed::{outcomes, patient, soon};

/// When the giver loses the connection that its SET was sent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    BeforeHandOver,
    AfterHandOver,
}

const EITHER: [Lost; 2] = [Lost::BeforeHandOver, Lost::AfterHandOver];

/// Two clients of three masters, with a gate where something is to happen.
struct Scene {
    /// The longest one.
    ttl: Duration,
    giver: Redlock,
    taker: Redlock,
    third: Redlock,
    /// From the giver to master 2.
    givers_way: Gate,
    /// From the taker to master 0.
    takers_way: Gate,
    masters: Masters,
}

impl Scene {
    fn start(guard: RestartGuard) -> Scene {
        let masters = start(3);
        let (givers_way, takers_way) = (Gate::start(&masters[2]), Gate::start(&masters[0]));
        // Where the guard is on, a quarantine ends within the test.
        let ttl = if guard == RestartGuard::Off { LONG } else { LASTING };
        let client =
            |urls| all_vote(&patient::<Vec<String>>(urls).restart_guard(guard).max_ttl(ttl));
        let urls = masters.urls();
        let [first, second, third] = [0, 1, 2].map(|node: usize| urls[node].clone());
        let giver = client(vec![first, second.clone(), givers_way.url()]);
        let taker = client(vec![takers_way.url(), second, third]);
        let third = client(urls);
        Scene { ttl, giver, taker, third, givers_way, takers_way, masters }
    }

    /// Masters 0 and 1 say yes. Master 2 runs the SET; its answer is lost with the connection. The
    /// taker cannot reach master 0. `None` if the lock was over before the taker had it.
    fn hand_over(&self, lost: Lost, ttl: Duration) -> Option<LockGuard> {
        self.givers_way.hold(0, Toward::Client, b"");
        // The giver is coming back, and is not there before the test says so.
        self.givers_way.hold(1, Toward::Master, b"");
        let lock = in_time(self.giver.try_lock(KEY, ttl))?;
        assert_eq!(lock.granted_by().collect::<Vec<_>>(), [0, 1]);
        soon("master 2 has run it", || sets_of(&self.masters[2]) == 1);
        self.takers_way.shut();
        if lost == Lost::BeforeHandOver {
            self.lose();
        }
        let lock = in_time(self.taker.adopt(as_text(lock)))?;
        if lost == Lost::AfterHandOver {
            self.lose();
        }
        Some(lock)
    }

    fn lose(&self) {
        self.givers_way.cut(0);
        node_soon(&self.giver, 2, "it is coming back", |_| self.givers_way.accepted() == 2);
    }

    fn giver_comes_back(&self) {
        self.givers_way.arrive(1);
        node_soon(&self.giver, 2, "nothing is owed", |node| {
            node.state == NodeState::Ready && node.pending_releases + node.in_flight == 0
        });
    }
}

/// Through the text, as to another process.
fn as_text(lock: LockGuard) -> LockParts {
    let text = lock.into_parts().to_secret_text().unwrap_or_else(|error| panic!("{error}"));
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// The taker counts masters 1 and 2; what master 0 holds is the giver's, and ends with its TTL.
fn extended_without_master_0(lost: Lost, ttl: Duration) -> Option<(Scene, LockGuard)> {
    let scene = Scene::start(RestartGuard::Off);
    let mut lock = scene.hand_over(lost, ttl)?;
    if let Err(error) = lock.extend(LONG) {
        assert!(!lock.is_valid(), "{error}");
        return None;
    }
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [1, 2]);
    Some((scene, lock))
}

#[test]
fn slow_core_giver_that_comes_back_deletes_nothing_that_the_taker_counts() {
    for lost in EITHER {
        let (scene, lock) = first_in_time(|ttl| extended_without_master_0(lost, ttl));
        scene.giver_comes_back();
        ends_by_itself(&scene.masters[0]);
        stays_alone(&lock, &scene.third);
        assert!(owns(&scene.masters[2], &lock, KEY));
        let sent = scene.givers_way.times_sent(lock.token().as_bytes());
        assert_eq!(sent, 1, "the SET, and nothing after it");
        assert!(lock.unlock().unwrap().was_held());
        works(&scene.third);
    }
}

#[test]
fn slow_core_giver_that_comes_back_and_releases_lets_a_second_holder_in() {
    // The control: the release that the giver must not send, sent by hand.
    let (scene, lock) = first_in_time(|ttl| extended_without_master_0(Lost::BeforeHandOver, ttl));
    scene.giver_comes_back();
    assert!(compare_and_delete(&scene.masters[2], &lock), "the control shows nothing");
    ends_by_itself(&scene.masters[0]);
    two_hold(&lock, &scene.third);
}

#[test]
fn taker_does_not_count_a_master_whose_answer_the_giver_never_had() {
    for lost in EITHER {
        let scene = Scene::start(RestartGuard::Uptime);
        let mut lock = scene.hand_over(lost, scene.ttl).expect("its validity is long");
        let error = lock.extend(scene.ttl).expect_err("master 2 must not be counted");
        assert!(error.is_unavailable(), "{error}");
        assert_eq!(outcomes(&error)[2], NodeOutcome::Quarantined);
        scene.giver_comes_back();
        scene.takers_way.open();
        node_soon(&scene.taker, 0, "it is reached again", |node| node.state == NodeState::Ready);
        lock.extend(scene.ttl).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(lock.granted_by().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(scene.givers_way.times_sent(lock.token().as_bytes()), 1);
        assert!(lock.unlock().unwrap().was_held());
        works(&scene.third);
    }
}

/// The giver's SET is on its way to master 2 when the lock is handed over, and stays so.
fn handed_over_with_a_set_under_way(guard: RestartGuard, lost: Option<Lost>) -> (Scene, LockParts) {
    let scene = Scene::start(guard);
    scene.givers_way.hold(0, Toward::Master, SET);
    scene.givers_way.hold(1, Toward::Master, b"");
    let lock = scene.giver.try_lock(KEY, scene.ttl).unwrap_or_else(|error| panic!("{error}"));
    soon("it is on its way", || scene.givers_way.is_holding(0, SET));
    if lost == Some(Lost::BeforeHandOver) {
        scene.lose();
    }
    let parts = as_text(lock);
    if lost == Some(Lost::AfterHandOver) {
        scene.lose();
    }
    (scene, parts)
}

#[test]
fn late_set_of_the_giver_is_not_left_behind_by_the_takers_release() {
    for guard in [RestartGuard::Off, RestartGuard::Uptime] {
        for lost in [None, Some(Lost::BeforeHandOver), Some(Lost::AfterHandOver)] {
            let (scene, parts) = handed_over_with_a_set_under_way(guard, lost);
            let lock = scene.taker.adopt(parts).unwrap_or_else(|error| panic!("{error}"));
            assert!(lock.unlock().unwrap().was_held());
            node_soon(&scene.taker, 2, "nothing is owed", |node| {
                node.pending_releases + node.in_flight == 0
            });
            scene.givers_way.arrive(0);
            let ghost = &scene.masters[2];
            soon("it ran, or never will", || sets_of(ghost) > 0 || scene.givers_way.has_ended(0));
            assert_eq!(pttl(ghost, KEY), -2, "a ghost's key is left, for so many milliseconds");
            assert_eq!(sets_of(ghost), 0);
            // The taker ended its connection: it makes another.
            node_soon(&scene.giver, 2, "it is coming back", |_| scene.givers_way.accepted() == 2);
            scene.giver_comes_back();
            works(&scene.giver);
        }
    }
}

#[test]
fn late_set_of_the_giver_is_left_behind_by_a_release_alone() {
    // The control: all that is done is to release, on every master.
    let (scene, parts) = handed_over_with_a_set_under_way(RestartGuard::Off, None);
    let lock = scene.taker.adopt(parts).unwrap_or_else(|error| panic!("{error}"));
    let deleted = scene.masters.iter().filter(|master| compare_and_delete(master, &lock));
    assert_eq!(deleted.count(), 2);
    scene.givers_way.arrive(0);
    let ghost = &scene.masters[2];
    soon("it ran", || owner(ghost, KEY).is_some());
    println!("control: a late SET lives for another {} ms", pttl(ghost, KEY));
    assert!(pttl(ghost, KEY) > 590_000);
}
