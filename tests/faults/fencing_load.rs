//! Clients that take and release fenced locks while something happens, and what their numbers say.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use muxlock::{Builder, FencedRedlock, FencingToken, Redlock};
use testbed::{PATIENT, Stopwatch, all_ready, pause, within};

pub const TTL: Duration = Duration::from_millis(500);
const WAIT: Duration = Duration::from_millis(20);
/// A client that never rests would have the processor to itself.
const REST: Duration = Duration::from_millis(1);

/// A lock that was granted.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    pub resource: usize,
    pub number: FencingToken,
    pub began: Duration,
    pub returned: Duration,
}

impl Taken {
    /// Takes a lock and releases it.
    pub fn once(fenced: &FencedRedlock, watch: Stopwatch) -> Taken {
        let began = watch.elapsed();
        let lock = fenced.try_lock_for(name(0), TTL, PATIENT).unwrap();
        let (number, returned) = (lock.fencing_token(), watch.elapsed());
        assert!(lock.unlock().unwrap().was_held());
        Taken { resource: 0, number, began, returned }
    }
}

fn name(resource: usize) -> String {
    format!("account:{resource}")
}

/// Some clients, and how many resources they want.
pub struct Load {
    clients: Vec<Redlock>,
    resources: usize,
    taken: AtomicUsize,
}

impl Load {
    pub fn new(builder: &Builder, clients: usize, resources: usize) -> Load {
        let clients = (0..clients).map(|_| all_ready(builder)).collect();
        Load { clients, resources, taken: AtomicUsize::new(0) }
    }

    pub fn clients(&self) -> &[Redlock] {
        &self.clients
    }

    /// How many locks were granted, and how many nodes were told to raise a counter.
    pub fn counted(&self) -> (u64, u64) {
        let stats = self.clients.iter().map(Redlock::stats);
        stats
            .fold((0, 0), |(fenced, raised), it| (fenced + it.fenced, raised + it.tokens_confirmed))
    }

    /// Waits until so many more locks were granted.
    pub fn goes_on(&self, what: &str, locks: usize) {
        let before = self.taken.load(Ordering::Relaxed);
        within(PATIENT, what, || self.taken.load(Ordering::Relaxed) >= before + locks);
    }

    /// All clients take and release locks, until `meanwhile` is over.
    pub fn run(&self, meanwhile: impl FnOnce()) -> Vec<Taken> {
        let (watch, is_over) = (Stopwatch::start(), Over::default());
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.clients.len())
                .map(|client| {
                    scope.spawn({
                        let is_over = &is_over;
                        move || self.take_all(client, watch, is_over)
                    })
                })
                .collect();
            {
                // Also if it panics, so that the threads end.
                let _ends = is_over.at_the_end();
                meanwhile();
            }
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn take_all(&self, client: usize, watch: Stopwatch, is_over: &Over) -> Vec<Taken> {
        let fenced = self.clients[client].fenced();
        let mut all = Vec::new();
        // Their ways through the resources differ, so that they meet now and then.
        let steps = (0..).map(|turn: usize| (client + turn * (2 * client + 1)) % self.resources);
        for resource in steps.take_while(|_| !is_over.0.load(Ordering::Relaxed)) {
            let began = watch.elapsed();
            if let Ok(lock) = fenced.try_lock_for(name(resource), TTL, WAIT) {
                let (number, returned) = (lock.fencing_token(), watch.elapsed());
                all.push(Taken { resource, number, began, returned });
                self.taken.fetch_add(1, Ordering::Relaxed);
                drop(lock);
            }
            pause(REST);
        }
        all
    }
}

#[derive(Default)]
struct Over(AtomicBool);

impl Over {
    fn at_the_end(&self) -> impl Drop + use<'_> {
        struct Ends<'a>(&'a AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        Ends(&self.0)
    }
}

/// The first pair whose order is wrong: the second began after the first had returned, and has no
/// greater number; or both have the same.
pub fn disorder(all: &[Taken]) -> Option<(Taken, Taken)> {
    let resources = all.iter().map(|taken| taken.resource + 1).max().unwrap_or(0);
    (0..resources).find_map(|resource| {
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

/// Fails if numbers do not have the order of the locks.
#[track_caller]
pub fn assert_in_order(all: &[Taken]) {
    assert!(all.len() > 100, "there is something to compare: {}", all.len());
    assert_eq!(disorder(all).map(|pair| format!("{pair:?}")), None);
}
