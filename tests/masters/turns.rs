//! A lock that is free is soon somebody's: whoever waits, and whatever kind of lock was released
//! (W8, W12, K9).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use muxlock::testing::{Masters, Value};
use muxlock::{LockError, LockGuard, Redlock};
use testbed::proxy::DelayProxy;
use testbed::{PATIENT, Stopwatch, TTL, all_ready, heavy, patient, pause};

/// From a client to the masters and back.
const FAR: Duration = Duration::from_millis(200);

fn masters() -> Masters {
    Masters::start(3).unwrap_or_else(|error| panic!("{error}"))
}

/// A client that is so far away from all masters.
fn far(masters: &Masters, round_trip: Duration) -> (Vec<DelayProxy>, Redlock) {
    let way = |addr: String| {
        DelayProxy::start(addr.parse().expect("an address"), round_trip).expect("a free port")
    };
    let ways: Vec<_> = masters.iter().map(|master| way(master.addr())).collect();
    let redlock = all_ready(&patient(ways.iter().map(DelayProxy::url)));
    (ways, redlock)
}

/// W12: the first of a line is told to go, and its patience ends while its round is under way. The
/// next one goes on at once: it does not wait for a slow look.
#[test]
fn slow_alone_who_inherits_a_place_goes_on_with_what_was_told() {
    let _alone = heavy();
    let masters = masters();
    let near = all_ready(&patient(masters.urls()));
    let (_ways, redlock) = far(&masters, FAR);
    let mut took = Vec::new();
    for _ in 0..3 {
        let held = near.try_lock_for("heir", TTL, PATIENT).unwrap();
        let waited = Stopwatch::start();
        // It is told 100 ms after the release, and its round takes 200 ms.
        let release_at = Duration::from_millis(1_500);
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                let ends = release_at + FAR + FAR / 8;
                redlock.try_lock_for("heir", TTL, ends).map(drop)
            });
            pause(Duration::from_millis(50));
            let second = scope.spawn(|| {
                let lock = redlock.try_lock_for("heir", TTL, PATIENT).unwrap();
                (waited.elapsed(), lock)
            });
            pause(release_at.saturating_sub(waited.elapsed()));
            let released = waited.elapsed();
            assert!(held.unlock().unwrap().was_held());
            let is_missed = first.join().unwrap().is_err();
            let (got, _lock) = second.join().unwrap();
            if is_missed {
                took.push(got.saturating_sub(released));
            }
        });
    }
    println!("an heir has the lock so long after its release: {took:?}");
    assert!(took.iter().all(|took| *took < 4 * FAR), "{took:?}");
}

/// How a lock of each kind is taken and given up again.
type Kind = (&'static str, fn(&Redlock, &str) -> LockGuard);

const KINDS: [Kind; 6] = [
    ("set", |redlock, name| redlock.try_lock_all([name, &format!("{name}:other")], TTL).unwrap()),
    ("read", |redlock, name| redlock.try_read(name, TTL).unwrap()),
    ("write", |redlock, name| redlock.try_write(name, TTL).unwrap()),
    ("downgraded", |redlock, name| redlock.try_write(name, TTL).unwrap().downgrade(TTL).unwrap()),
    ("own", |redlock, name| redlock.try_lock_as(name, "mine", TTL).unwrap()),
    ("plain", |redlock, name| redlock.try_lock(name, TTL).unwrap()),
];

/// W8: who waits for a plain lock is told of each release, also of another kind, and also of its
/// own client's: there is no look for seconds that would show that the lock is free.
#[test]
fn slow_alone_release_of_any_kind_wakes_who_waits_in_the_same_client() {
    let _alone = heavy();
    let masters = masters();
    let redlock = all_ready(&patient(masters.urls()));
    // Then no look is due for about a second.
    let held_for = Duration::from_millis(2_200);
    let took: Vec<_> = thread::scope(|scope| {
        let wait = |(name, take): Kind| {
            let redlock = &redlock;
            scope.spawn(move || {
                let held = take(redlock, name);
                let waiting = thread::scope(|scope| {
                    let waiting = scope.spawn(|| {
                        let lock = redlock.try_lock_for(name, TTL, PATIENT).unwrap();
                        (Stopwatch::start(), lock)
                    });
                    pause(held_for);
                    assert!(held.unlock().unwrap().was_held());
                    let released = Stopwatch::start();
                    let (got, _lock) = waiting.join().unwrap();
                    released.elapsed().saturating_sub(got.elapsed())
                });
                (name, waiting)
            })
        };
        let waiting: Vec<_> = KINDS.into_iter().map(wait).collect();
        waiting.into_iter().map(|waiting| waiting.join().unwrap()).collect()
    });
    println!("a plain lock is taken so long after the release of another kind: {took:?}");
    assert!(took.iter().all(|(_, took)| *took < Duration::from_millis(700)), "{took:?}");
}

/// What is held needs no memory: masters that have none extend it, keep it and release it,
/// whatever its kind.
#[test]
fn masters_without_memory_extend_and_release_what_is_held() {
    let masters = masters();
    let memory = |bytes: &str| {
        for master in masters.iter() {
            for (name, value) in [("maxmemory-policy", "noeviction"), ("maxmemory", bytes)] {
                let words = ["CONFIG", "SET", name, value].map(str::as_bytes);
                assert_eq!(master.query(&words).unwrap(), Value::Status("OK".into()));
            }
        }
    };
    let permit: Kind =
        ("permit", |redlock, name| redlock.semaphore(name, 2).unwrap().try_acquire(TTL).unwrap());
    let redlock = all_ready(&patient(masters.urls()).max_ttl(4 * TTL));
    let take = |(name, take): Kind| (name, take(&redlock, name));
    let mut held: Vec<_> = KINDS.into_iter().chain([permit]).map(take).collect();
    let written = redlock.try_write("to be shared", TTL).unwrap();
    memory("1");
    let refused = |(name, lock): &mut (&'static str, LockGuard)| {
        let is_longer = lock.extend(2 * TTL).is_ok() && lock.remaining() > TTL;
        (!is_longer).then_some(*name)
    };
    let refused: Vec<_> = held.iter_mut().filter_map(refused).collect();
    println!("masters without memory do not extend: {refused:?}");
    assert!(refused.is_empty(), "{refused:?}");
    held.push(("shared", written.downgrade(2 * TTL).unwrap()));
    assert!(redlock.try_lock("new", TTL).is_err(), "there is no memory");
    for (name, lock) in held {
        assert!(lock.unlock().unwrap().was_held(), "{name}");
    }
}

/// K6: a writer gets in beside readers that come and go, however far away it is. Its sign lives
/// until it asks again.
#[test]
fn slow_alone_writer_gets_in_beside_readers() {
    let _alone = heavy();
    let mut missed = Vec::new();
    for (readers, away) in [(6, 250), (64, 0), (64, 250)] {
        let (hold, away) = (Duration::from_millis(200), Duration::from_millis(away));
        let took = beside_readers(readers, hold, away);
        let within = 4 * away + hold;
        let said = format!("{away:?} away, beside {readers}: in after {took:?} of {within:?}");
        println!("{said}");
        // Twice as long, and what starting so many threads takes a machine that others use.
        missed.extend((took > 2 * within + Duration::from_secs(1)).then_some(said));
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// How long a writer waits.
fn beside_readers(readers: u32, hold: Duration, away: Duration) -> Duration {
    let masters = masters();
    let (_ways, writer) = far(&masters, away);
    let (is_over, reading) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..readers {
            let (masters, is_over, reading) = (&masters, &is_over, &reading);
            scope.spawn(move || {
                let reader = all_ready(&patient(masters.urls()));
                pause(hold * number / readers);
                reading.fetch_add(1, Ordering::Relaxed);
                while !is_over.load(Ordering::Relaxed) {
                    let lock = reader.try_read_for("page", TTL, hold);
                    lock.map_or_else(|_| (), |_held| pause(hold));
                }
            });
        }
        while reading.load(Ordering::Relaxed) < readers as usize {
            pause(hold / 8);
        }
        pause(2 * hold);
        let waited = Stopwatch::start();
        let lock = writer.try_write_for("page", TTL, PATIENT);
        is_over.store(true, Ordering::Relaxed);
        lock.map(|_held| waited.elapsed()).unwrap()
    })
}

/// K8, K9: clients that take permits in turn get as many as each other.
#[test]
fn slow_alone_permits_are_shared_evenly() {
    let _alone = heavy();
    let mut missed = Vec::new();
    for (clients, slots) in [(8, 2), (64, 4), (64, 16)] {
        let got = permits(clients, slots);
        let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
        let said = format!("{clients} clients, {slots} permits: {least} to {most}");
        println!("{said}: {got:?}");
        missed.extend((*least == 0 || *most > 3 * least).then_some(said));
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// How many permits each client got.
fn permits(clients: usize, slots: u32) -> Vec<usize> {
    const HOLD: Duration = Duration::from_millis(2);
    let masters = masters();
    let (is_over, ready) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|_| {
                scope.spawn(|| {
                    let redlock = all_ready(&patient(masters.urls()));
                    let permits = redlock.semaphore("pool", slots).unwrap();
                    ready.fetch_add(1, Ordering::Relaxed);
                    while ready.load(Ordering::Relaxed) < clients {
                        pause(HOLD);
                    }
                    let mut got = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let _held = permits.try_acquire_for(TTL, PATIENT).unwrap();
                        got += 1;
                        pause(HOLD);
                    }
                    got
                })
            })
            .collect();
        while ready.load(Ordering::Relaxed) < clients.len() {
            pause(HOLD);
        }
        pause(time());
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// For how long shares are counted: two seconds, or as many as `MUXLOCK_TURNS_SECONDS` says.
fn time() -> Duration {
    let seconds = std::env::var("MUXLOCK_TURNS_SECONDS").ok();
    Duration::from_secs(seconds.map_or(2, |seconds| seconds.parse().expect("a number of seconds")))
}

/// How a lock of each other kind is taken by one who waits for it.
type Wait = (&'static str, fn(&Redlock) -> Result<LockGuard, LockError>);

const WAITS: [Wait; 5] = [
    ("write", |redlock| redlock.try_write_for("page", TTL, PATIENT)),
    ("read", |redlock| redlock.try_read_for("page", TTL, PATIENT)),
    ("set", |redlock| redlock.try_lock_all_for(["page", "other page"], TTL, PATIENT)),
    ("own", |redlock| redlock.try_lock_as_for("page", "mine", TTL, PATIENT)),
    ("plain", |redlock| redlock.try_lock_for("page", TTL, PATIENT)),
];

/// K9: clients that take plain locks in turn leave one with another kind of lock its share.
#[test]
fn slow_alone_other_kinds_get_their_share_beside_plain_locks() {
    let _alone = heavy();
    let mut missed = Vec::new();
    for plain in [2, 6] {
        for (name, wait) in WAITS {
            let shares = beside(plain, wait, First::Plain);
            let (got, longest) = shares[0];
            let said = format!("{name} beside {plain}: {got} of {}, {longest} turns", sum(&shares));
            println!("{said}");
            let is_missed = 3 * got < sum(&shares) / (plain + 1) || longest > TURNS_MAX;
            missed.extend(is_missed.then_some(said));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// K9: threads that take plain locks in turn leave another kind of the same client its share.
#[test]
fn slow_alone_other_kinds_get_their_share_beside_plain_locks_of_the_same_client() {
    let _alone = heavy();
    let mut missed = Vec::new();
    for (name, wait) in WAITS {
        let (got, others, longest) = beside_threads(4, wait);
        let even = (got + others) / 5;
        let said = format!("{name} beside 4 threads: {got} of {}, {longest} turns", got + others);
        println!("{said}");
        missed.extend((3 * got < even || longest > TURNS_MAX).then_some(said));
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// K9: a client with another kind of lock that asks again without a pause, and had no refused
/// round, leaves those with plain locks their share.
#[test]
fn slow_alone_plain_locks_get_their_share_beside_other_kinds() {
    let _alone = heavy();
    let mut missed = Vec::new();
    for plain in [1, 3] {
        for (name, wait) in WAITS {
            let shares = beside(plain, wait, First::Other);
            let least = shares.iter().map(|(got, _)| *got).min().unwrap();
            let longest = shares.iter().map(|(_, longest)| *longest).max().unwrap();
            let said = format!("{plain} beside {name}: least {least}, {longest} turns, {shares:?}");
            println!("{said}");
            let is_missed = 3 * least < sum(&shares) / (plain + 1) || longest > TURNS_MAX;
            missed.extend(is_missed.then_some(said));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// The most locks that others get while one waits: far fewer than the thousands of a client that is
/// passed over, and more than the 30 of a machine that runs each thread in time.
const TURNS_MAX: usize = 100;

/// Who has the lock to itself before the others come.
#[derive(PartialEq, Eq)]
enum First {
    Plain,
    Other,
}

fn sum(shares: &[(usize, usize)]) -> usize {
    shares.iter().map(|(got, _)| got).sum()
}

/// How many locks each client got within two seconds, the one with the other kind first; and how
/// many others got at most while it waited.
fn beside(
    plain: usize,
    wait: fn(&Redlock) -> Result<LockGuard, LockError>,
    first: First,
) -> Vec<(usize, usize)> {
    const HOLD: Duration = Duration::from_millis(2);
    let masters = masters();
    let (taken, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let met: Vec<_> = (0..=plain).map(|_| AtomicBool::new(false)).collect();
    thread::scope(|scope| {
        let clients = (0..=plain).map(|client| {
            let is_first = (client == 0) == (first == First::Other);
            let (masters, taken, is_over, met) = (&masters, &taken, &is_over, &met);
            scope.spawn(move || {
                let wait = if client == 0 { wait } else { WAITS[WAITS.len() - 1].1 };
                let redlock = all_ready(&patient(masters.urls()));
                // The first ones have met by then.
                while !is_first && taken.load(Ordering::Relaxed) < 10 * plain.max(2) {
                    pause(HOLD);
                }
                let (mut got, mut longest) = (0, 0);
                while !is_over.load(Ordering::Relaxed) {
                    let all_met = met.iter().all(|met| met.load(Ordering::Relaxed));
                    let passed = taken.load(Ordering::Relaxed);
                    if !is_first {
                        met[client].store(true, Ordering::Relaxed);
                    }
                    let held = wait(&redlock);
                    met[client].store(true, Ordering::Relaxed);
                    // Of a wait at whose end the others were not there, nothing is known.
                    if all_met || !is_first {
                        longest = longest.max(taken.load(Ordering::Relaxed) - passed);
                        got += usize::from(held.is_ok());
                    }
                    taken.fetch_add(usize::from(held.is_ok()), Ordering::Relaxed);
                    pause(HOLD);
                }
                (got, longest)
            })
        });
        let clients: Vec<_> = clients.collect();
        while !met.iter().all(|met| met.load(Ordering::Relaxed)) {
            pause(HOLD);
        }
        pause(time());
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// How many locks it got within two seconds, and the threads of the same client with plain locks;
/// and how many of theirs passed at most while it waited.
fn beside_threads(
    plain: usize,
    wait: fn(&Redlock) -> Result<LockGuard, LockError>,
) -> (usize, usize, usize) {
    const HOLD: Duration = Duration::from_millis(2);
    let masters = masters();
    let (taken, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let redlock = all_ready(&patient(masters.urls()));
    thread::scope(|scope| {
        for _ in 0..plain {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _held = redlock.try_lock_for("page", TTL, PATIENT).unwrap();
                    taken.fetch_add(1, Ordering::Relaxed);
                    pause(HOLD);
                }
            });
        }
        // They have met.
        while taken.load(Ordering::Relaxed) < 10 * plain {
            pause(HOLD);
        }
        let (before, began) = (taken.load(Ordering::Relaxed), Stopwatch::start());
        let (mut got, mut longest) = (0, 0);
        while began.elapsed() < time() {
            let passed = taken.load(Ordering::Relaxed);
            let held = wait(&redlock);
            longest = longest.max(taken.load(Ordering::Relaxed) - passed);
            got += usize::from(held.is_ok());
            pause(HOLD);
        }
        is_over.store(true, Ordering::Relaxed);
        (got, taken.load(Ordering::Relaxed) - before, longest)
    })
}
