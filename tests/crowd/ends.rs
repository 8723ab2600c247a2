//! How a wait ends, and how a hold does: whatever the reason, no place is left in the queue, or
//! one that costs nothing and is gone after the queue's lease.

use std::thread;
use std::time::Duration;

use muxlock::settings::Waiting;
use muxlock::testing::Masters;
use muxlock::{KeepAlive, LockErrorKind, LockGuard, Redlock, Standalone};
use testbed::{PATIENT, SOON, Stopwatch, TTL, all_ready, heavy, pause, soon, within};

use crate::contender::{KEY, Part};
use crate::foreign::try_take;
use crate::scene::scene;
use crate::servers::{ask, queue_holder, queue_of, queued, queued_anywhere, sets, start};
use muxlock::testing::Value;

/// How long a queue lives after the last client queued up, in milliseconds (W14).
const QUEUE_LEASE_MS: i64 = 20_000;
/// From a release to the grant of who waits, also behind a place that another has left.
const GRANT_MAX: Duration = Duration::from_millis(500);

fn client(masters: &Masters, waiting: Waiting) -> Redlock {
    all_ready(&Part::new(masters.urls(), waiting).builder())
}

/// A lock that is held, and clients to wait for it.
struct Held {
    masters: Masters,
    lock: LockGuard,
}

impl Held {
    fn start() -> Held {
        let masters = start(5);
        let lock = client(&masters, Waiting::Queue).try_lock(KEY, TTL).unwrap();
        Held { masters, lock }
    }

    fn waiter(&self) -> Redlock {
        client(&self.masters, Waiting::Queue)
    }

    fn soon_queued(&self, count: i64) {
        let is_so = || queued_anywhere(&self.masters) == count;
        soon(&format!("{count} stand in the queue"), is_so);
    }

    /// Gives the lock back to this one, which comes to wait behind so many.
    fn passes_to(self, waiter: &Redlock, behind: i64) -> (Masters, LockGuard) {
        let Held { masters, lock } = self;
        let got = thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.try_lock_for(KEY, TTL, PATIENT).unwrap());
            soon("it waits", || queued_anywhere(&masters) == behind + 1);
            // So that it is the queue that wakes it.
            pause(Duration::from_millis(20));
            let watch = Stopwatch::start();
            assert!(lock.unlock().unwrap().was_held());
            let got = waiting.join().expect("no panic");
            let took = watch.elapsed();
            println!("measured: from the release to the grant {took:?}");
            assert!(took < GRANT_MAX, "{took:?}");
            got
        });
        (masters, got)
    }
}

/// Nobody stands in the queue, and no key is left.
#[track_caller]
fn is_clean(masters: &Masters) {
    let is_empty = |master| muxlock::testing::Master::dbsize(master).unwrap() == 0;
    soon("no key is left", || masters.iter().all(is_empty));
}

#[test]
fn wait_that_is_cancelled_leaves_no_place() {
    let held = Held::start();
    let (first, second) = (held.waiter(), held.waiter());
    let cancelled = first.waiter();
    let for_thread = cancelled.clone();
    let waiting = thread::spawn(move || for_thread.redlock().try_lock_for(KEY, TTL, PATIENT));
    held.soon_queued(1);
    let behind = thread::spawn(move || second.try_lock_for(KEY, TTL, PATIENT));
    held.soon_queued(2);
    cancelled.cancel();
    let error = waiting.join().expect("no panic").unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Cancelled);
    held.soon_queued(1);
    // Who stood behind is the first now.
    let Held { masters, lock } = held;
    let watch = Stopwatch::start();
    assert!(lock.unlock().unwrap().was_held());
    let lock = behind.join().expect("no panic").unwrap();
    assert!(watch.elapsed() < GRANT_MAX, "{:?}", watch.elapsed());
    assert!(lock.unlock().unwrap().was_held());
    is_clean(&masters);
}

#[test]
fn wait_whose_patience_is_over_leaves_no_place() {
    const PATIENCE: Duration = Duration::from_millis(300);
    let held = Held::start();
    let waiter = held.waiter();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.try_lock_for(KEY, TTL, PATIENCE));
        held.soon_queued(1);
        let error = waiting.join().expect("no panic").unwrap_err();
        assert!(error.is_contended(), "{error}");
        held.soon_queued(0);
    });
    assert!(held.lock.unlock().unwrap().was_held());
    is_clean(&held.masters);
}

/// A lock that was got through the queue is given back by the drop of its guard.
#[test]
fn guard_that_is_dropped_leaves_no_place() {
    let held = Held::start();
    let waiter = held.waiter();
    let (masters, lock) = held.passes_to(&waiter, 0);
    drop(lock);
    is_clean(&masters);
}

/// Another process may give it back, which knows of no queue: it must not stand at its front.
#[test]
fn lock_that_is_handed_over_leaves_no_place() {
    let held = Held::start();
    let (waiter, other) = (held.waiter(), held.waiter());
    let (masters, lock) = held.passes_to(&waiter, 0);
    let parts = lock.into_parts();
    soon("nobody stands in the queue", || queued_anywhere(&masters) == 0);
    assert!(other.adopt(parts).unwrap().unlock().unwrap().was_held());
    is_clean(&masters);
}

/// A client that ends while it waits says nothing.
#[test]
fn client_that_is_dropped_while_it_waits_costs_nothing() {
    let held = Held::start();
    let config = Part::new(held.masters.urls(), Waiting::Queue).builder().config().unwrap();
    let mut gone = Standalone::new(config).unwrap();
    gone.mux_mut().try_lock_for(KEY, TTL, PATIENT).unwrap();
    within(SOON, "it stands in the queue", || {
        gone.wait(Duration::from_millis(1)).unwrap();
        queued_anywhere(&held.masters) == 1
    });
    drop(gone);
    is_passed(held);
}

/// What is left ends by itself, and is passed by who waits behind it.
fn is_passed(held: Held) {
    let queue_node = queue_holder(&held.masters, SOON);
    let left = ask(&held.masters[queue_node], &["PTTL", &queue_of(KEY)]);
    let Value::Integer(left) = left else { panic!("{left:?}") };
    assert!((1..=QUEUE_LEASE_MS).contains(&left), "{left}");
    let waiter = held.waiter();
    let (masters, lock) = held.passes_to(&waiter, 1);
    // On a busy machine, the two may have chosen different masters: then nobody takes it out.
    let is_elsewhere = (0..masters.len()).any(|i| i != queue_node && queued(&masters[i]) > 0);
    assert!(lock.unlock().unwrap().was_held());
    if !is_elsewhere {
        is_clean(&masters);
    }
}

/// Taking the place of the only other one ends the queue for a moment.
#[test]
fn queue_of_one_that_stepped_in_front_ends_by_itself() {
    let masters = start(1);
    let lock = try_take(&masters, KEY).expect("nobody has it");
    ask(&masters[0], &["RPUSH", &queue_of(KEY), "muxlock:gone"]);
    let waiter = client(&masters, Waiting::Queue);
    let got = thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.try_lock_for(KEY, TTL, PATIENT).unwrap());
        soon("it waits behind", || queued_anywhere(&masters) == 2);
        lock.give_back();
        waiting.join().expect("no panic")
    });
    soon("who is gone was dropped", || queued_anywhere(&masters) == 1);
    let left = ask(&masters[0], &["PTTL", &queue_of(KEY)]);
    assert!(matches!(left, Value::Integer(1..=QUEUE_LEASE_MS)), "{left:?}");
    assert!(got.unlock().unwrap().was_held());
    is_clean(&masters);
}

/// How long a poller's key lives may be more than there is room for beside the place.
#[test]
fn slow_key_that_lives_for_ages_is_waited_for_like_any_other() {
    let masters = start(1);
    ask(&masters[0], &["SET", KEY, "stranger", "PX", "9223370000000000000"]);
    for place in 0..2 {
        let waiter = client(&masters, Waiting::Queue);
        thread::scope(|scope| {
            const PATIENCE: Duration = Duration::from_secs(3);
            let waiting = scope.spawn(|| waiter.try_lock_for(KEY, TTL, PATIENCE).unwrap_err());
            soon("it waits", || queued_anywhere(&masters) == place + 1);
            let error = waiting.join().expect("no panic");
            assert_eq!(error.queue_position(), u32::try_from(place).ok());
            assert_eq!(waiter.stats().disconnected, 0);
        });
        ask(&masters[0], &["RPUSH", &queue_of(KEY), &format!("muxlock:gone{place}")]);
    }
}

#[test]
fn process_that_is_killed_while_it_waits_costs_nothing() {
    scene("process_that_is_killed_while_it_waits_costs_nothing", |scene| {
        let held = Held::start();
        let part = Part::new(held.masters.urls(), Waiting::Queue);
        let mut crowd = scene.crowd([part]);
        held.soon_queued(1);
        crowd.kill(0);
        is_passed(held);
    });
}

/// Renewals change the key, which wakes who watches it; after the first, it looks before it asks.
#[test]
fn slow_lock_that_is_kept_alive_is_asked_for_once_per_renewal_at_most() {
    const KEPT_TTL: Duration = Duration::from_millis(1_500);
    const WAIT: Duration = Duration::from_millis(2_500);
    let refused_per_master = |waiting| {
        let masters = start(5);
        let (holder, waiter) = (client(&masters, waiting), client(&masters, waiting));
        let lock = holder.try_lock(KEY, KEPT_TTL).unwrap();
        let kept = lock.keep_alive(KeepAlive::default()).unwrap();
        let before = sets(&masters);
        let error = waiter.try_lock_for(KEY, TTL, WAIT).unwrap_err();
        assert!(error.is_contended() && kept.is_valid(), "{error}");
        let refused = (sets(&masters) - before) as f64 / masters.len() as f64;
        let renewals = kept.renewals();
        println!("measured: {waiting:?}: {refused:.1} rounds refused, {renewals} renewals");
        assert!(kept.unlock().unwrap().was_held());
        is_clean(&masters);
        // Before the first renewal there are those of who comes to wait.
        (refused, f64::from(renewals + 3))
    };
    let (control, most) = refused_per_master(Waiting::Retry);
    assert!(control > most, "the control shows nothing: {control}");
    let (refused, most) = refused_per_master(Waiting::Queue);
    assert!(refused <= most, "{refused}");
}

/// One event loop holds many locks, another one waits for all of them.
#[test]
fn slow_alone_many_locks_that_are_given_back_at_once_are_all_granted() {
    const KEYS: usize = 1_000;
    const HOLD: Duration = Duration::from_millis(1_000);
    /// SETs on each master for each key: one is refused, one is granted; one more of those that
    /// watch, and of a busy machine.
    const SETS_MAX: f64 = 3.0;
    let sets_per_key = |waiting| {
        let masters = start(5);
        let mut holder = Many::start(&masters, waiting);
        holder.ask_for(KEYS);
        holder.until_granted(KEYS);
        let before = sets(&masters);
        let mut waiter = Many::start(&masters, waiting);
        waiter.ask_for(KEYS);
        let watch = Stopwatch::start();
        while watch.elapsed() < HOLD {
            waiter.turn();
        }
        assert_eq!(waiter.granted.len(), 0);
        holder.give_all_back();
        let watch = Stopwatch::start();
        within(PATIENT, "all are granted", || {
            holder.turn();
            waiter.turn();
            waiter.granted.len() == KEYS
        });
        let took = watch.elapsed();
        let each = (sets(&masters) - before) as f64 / (masters.len() * KEYS) as f64;
        println!("measured: {waiting:?}: {KEYS} granted within {took:?}, {each:.2} SETs for each");
        waiter.give_all_back();
        within(PATIENT, "all is said", || {
            waiter.turn();
            holder.turn();
            waiter.locks.mux().unanswered() + holder.locks.mux().unanswered() == 0
        });
        is_clean(&masters);
        each
    };
    let _alone = heavy();
    let control = sets_per_key(Waiting::Retry);
    assert!(control > SETS_MAX, "the control shows nothing: {control}");
    let each = sets_per_key(Waiting::Queue);
    assert!(each <= SETS_MAX, "{each}");
}

/// An event loop with many locks.
struct Many {
    locks: Standalone,
    granted: Vec<muxlock::proto::Lease>,
}

impl Many {
    fn start(masters: &Masters, waiting: Waiting) -> Many {
        let config = Part::new(masters.urls(), waiting).builder().config().unwrap();
        let mut locks = Standalone::new(config).unwrap();
        locks.mux_mut().connect();
        let mut many = Many { locks, granted: Vec::new() };
        within(PATIENT, "every node is ready", || {
            many.turn();
            many.locks.mux().nodes().all(|node| node.state == muxlock::node::NodeState::Ready)
        });
        many
    }

    fn ask_for(&mut self, keys: usize) {
        for key in (1..=keys).map(Part::key) {
            self.locks.mux_mut().try_lock_for(key, TTL, PATIENT).unwrap();
        }
        self.locks.mux_mut().flush();
    }

    fn until_granted(&mut self, count: usize) {
        within(PATIENT, "they are granted", || {
            self.turn();
            self.granted.len() == count
        });
    }

    fn give_all_back(&mut self) {
        for lease in self.granted.drain(..) {
            self.locks.mux_mut().abandon(lease);
        }
        self.locks.mux_mut().flush();
    }

    fn turn(&mut self) {
        self.locks.wait(Duration::from_millis(1)).unwrap();
        while let Some((_, done)) = self.locks.mux_mut().poll_done() {
            let muxlock::proto::Done::Acquired(result) = done else { panic!("{done:?}") };
            self.granted.push(result.unwrap());
        }
        self.locks.mux_mut().flush();
    }
}
