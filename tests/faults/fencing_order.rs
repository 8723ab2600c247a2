//! The order of fencing tokens while masters are killed and come back without their data.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use muxlock::{Builder, FencedRedlock, FencingToken, Redlock, RestartGuard};
use testbed::{Clocks, PATIENT, Stopwatch, all_ready, heavy, patient, pause, ready, skip, within};

use crate::scene::{ask, info, quarantine_of, start};

/// How often each master is killed.
const ROUNDS_VARIABLE: &str = "MUXLOCK_FENCING_ROUNDS";
const CLIENTS: usize = 8;
const RESOURCES: [&str; 3] = ["account:1", "account:2", "account:3"];
const TTL: Duration = Duration::from_millis(500);
const WAIT: Duration = Duration::from_millis(20);
/// Longer than a second, so that the guard implies the order.
const MAX_TTL: Duration = Duration::from_secs(2);
/// A client that never rests would have the processor to itself.
const REST: Duration = Duration::from_millis(1);

/// A lock that was granted.
#[derive(Debug, Clone, Copy)]
struct Taken {
    resource: usize,
    number: FencingToken,
    began: Duration,
    returned: Duration,
}

fn guarded(urls: impl IntoIterator<Item = String>) -> Builder {
    let builder = patient(urls).restart_guard(RestartGuard::Uptime);
    builder.max_ttl(MAX_TTL).node_timeout(Duration::from_millis(100))
}

/// Takes and releases locks until the flag is set.
fn take_all(
    fenced: &FencedRedlock,
    watch: Stopwatch,
    first: usize,
    is_over: &AtomicBool,
) -> Vec<Taken> {
    let mut all = Vec::new();
    for turn in first.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let resource = turn % RESOURCES.len();
        let began = watch.elapsed();
        if let Ok(lock) = fenced.try_lock_for(RESOURCES[resource], TTL, WAIT) {
            let (number, returned) = (lock.fencing_token(), watch.elapsed());
            all.push(Taken { resource, number, began, returned });
            drop(lock);
        }
        pause(REST);
    }
    all
}

/// The first pair whose order is wrong: the second began after the first had returned, and has no
/// greater number; or both have the same.
fn disorder(all: &[Taken]) -> Option<(Taken, Taken)> {
    (0..RESOURCES.len()).find_map(|resource| {
        let mut here: Vec<Taken> =
            all.iter().copied().filter(|taken| taken.resource == resource).collect();
        here.sort_by_key(|taken| taken.number);
        let same = here.windows(2).find(|pair| pair[0].number == pair[1].number);
        // With growing numbers, none may have returned before one with a smaller number began.
        let mut latest_begun: Option<Taken> = None;
        let reversed = here.iter().find_map(|taken| {
            let before = latest_begun.filter(|before| before.began > taken.returned);
            latest_begun = latest_begun.filter(|it| it.began > taken.began).or(Some(*taken));
            before.map(|before| (*taken, before))
        });
        same.map(|pair| (pair[0], pair[1])).or(reversed)
    })
}

#[test]
fn numbers_are_unique_and_in_order_while_masters_forget() {
    let _alone = heavy();
    let rounds = env::var(ROUNDS_VARIABLE).map_or(1, |rounds| rounds.parse().expect("a number"));
    let mut masters = start(3);
    let clients: Vec<_> = (0..CLIENTS).map(|_| all_ready(&guarded(masters.urls()))).collect();
    let (watch, is_over) = (Stopwatch::start(), AtomicBool::new(false));
    let all: Vec<Taken> = thread::scope(|scope| {
        let take = |(first, client): (usize, &Redlock)| {
            let (fenced, is_over) = (client.fenced(), &is_over);
            scope.spawn(move || take_all(&fenced, watch, first, is_over))
        };
        let threads: Vec<_> = clients.iter().enumerate().map(take).collect();
        for node in (0..rounds).flat_map(|_| 0..2) {
            masters[node].kill().unwrap();
            masters[node].restart().unwrap();
            let run_id = info(&masters[node], "server", "run_id");
            let votes_for = |client: &Redlock| {
                let is_it = client.nodes()[node].run_id.as_deref() == Some(&run_id);
                is_it && ready(client) == 3 && quarantine_of(client, node).is_none()
            };
            let votes = || clients.iter().all(votes_for);
            within(PATIENT, "it votes for all clients again", votes);
        }
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let raised: u64 = clients.iter().map(|client| client.stats().raised).sum();
    println!("{} fenced locks in {:?}, {raised} raises", all.len(), watch.elapsed());
    assert!(all.len() > 100, "there is something to compare: {}", all.len());
    assert_eq!(disorder(&all).map(|pair| format!("{pair:?}")), None);
}

/// What the guard and the clocks do for the order, nothing does instead: it breaks, and is seen.
#[test]
fn without_counters_and_clocks_the_order_breaks() {
    let test = "without_counters_and_clocks_the_order_breaks";
    let clocks = match Clocks::start(3) {
        Ok(clocks) => clocks,
        Err(reason) => return skip(test, reason),
    };
    let take = |watch: Stopwatch| {
        let redlock = all_ready(&guarded(clocks.urls()).restart_guard(RestartGuard::Off));
        let began = watch.elapsed();
        let lock = redlock.fenced().try_lock_for(RESOURCES[0], TTL, PATIENT).unwrap();
        let (number, returned) = (lock.fencing_token(), watch.elapsed());
        assert!(lock.unlock().unwrap().was_held());
        Taken { resource: 0, number, began, returned }
    };
    let watch = Stopwatch::start();
    let mut all = vec![take(watch), take(watch)];
    assert!(disorder(&all).is_none(), "{all:?}");
    for (node, master) in clocks.masters.iter().enumerate() {
        clocks.set(node, -10);
        ask(master, &["DEL", "muxlock:fence"]);
    }
    all.push(take(watch));
    assert!(disorder(&all).is_some(), "{all:?}");
}
