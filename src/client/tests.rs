//! A client whose threads are delayed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::loop_work::Outcome;
use super::{LockGuard, Redlock};
use crate::config::RestartGuard;
use crate::keep_alive::KeepAlive;
use crate::lock_error::{LockError, LockErrorKind};
use crate::proto::status::NodeState;
use crate::sys::clock::Clock;
use crate::sys::process::OwnerProcess;
use testbed::scripted::Scripted;

const NODE_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_millis(100);
const TTL: Duration = Duration::from_secs(30);
/// On a busy machine, a limit is kept within this; the delayed threads are delayed for longer.
const GENEROUS: Duration = Duration::from_secs(5);

fn client(servers: &[Scripted]) -> Redlock {
    let builder = Redlock::builder().nodes(servers.iter().map(Scripted::url));
    let builder = builder.node_timeout(NODE_TIMEOUT).connect_timeout(CONNECT_TIMEOUT);
    let redlock = builder.restart_guard(RestartGuard::Off).connect().unwrap();
    soon("all are ready", || {
        let nodes = redlock.nodes();
        nodes.iter().all(|node| node.state == NodeState::Ready && node.in_flight == 0)
    });
    redlock
}

fn servers() -> [Scripted; 3] {
    [(); 3].map(|()| Scripted::well_behaved())
}

fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let start = Clock.now();
    let result = run();
    (Clock.now().since(start), result)
}

/// Repeats it until it succeeds, within a limit.
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Clock.now().after(GENEROUS);
    while !is_so() {
        assert!(Clock.now() < until, "not soon: {what}");
        thread::yield_now();
    }
}

/// The operations of all threads.
fn in_flight(redlock: &Redlock) -> usize {
    redlock.shared.threads.look_at(|work| work.counts().0)
}

/// No key is left, and none is still to be released.
fn is_clean(redlock: &Redlock, servers: &[Scripted]) {
    soon("all is answered", || redlock.shutdown(GENEROUS) == 0);
    soon("no key is left", || servers.iter().all(|server| server.store().is_empty()));
    for name in ["a", "b", "c", "d"] {
        let lock = redlock.try_lock(name, TTL).unwrap();
        assert_eq!(lock.resource().as_bytes(), name.as_bytes());
        let _ = lock.unlock().unwrap();
    }
}

/// The list of locks has those that are held, and does not grow with each lock that was.
#[test]
fn list_of_locks_forgets_each_that_is_given_up() {
    let servers = servers();
    let redlock = client(&servers);
    redlock.track_locks();
    let listed = || redlock.shared.held(|held| held.len()).unwrap();
    let lock = |name| redlock.try_lock(name, TTL).unwrap();
    let kept = |name| lock(name).keep_alive(KeepAlive::default()).unwrap();
    let ends: [(&str, &dyn Fn()); 8] = [
        ("dropped", &|| drop(lock("a"))),
        ("released", &|| _ = lock("a").unlock().unwrap()),
        ("handed over", &|| _ = lock("a").into_parts()),
        ("swapped", &|| drop(redlock.swap(lock("b"), "c", TTL).unwrap())),
        ("swapped for itself", &|| drop(redlock.swap(lock("d"), "d", TTL).unwrap())),
        ("renewed", &|| drop(kept("e"))),
        ("renewed and released", &|| _ = kept("f").unlock().unwrap()),
        ("no longer renewed", &|| {
            let lock = kept("g").stop();
            assert_eq!(listed(), 1);
            drop(lock);
        }),
    ];
    for (how, end) in ends {
        end();
        assert_eq!(listed(), 0, "{how}");
    }
    let held = [lock("h"), lock("i")];
    assert_eq!(listed(), 2);
    drop(held);
}

/// The order to renew a lock comes when all of them have been released.
#[test]
fn lock_that_is_released_with_all_others_is_not_renewed() {
    let servers = servers();
    let redlock = client(&servers);
    let lock = redlock.try_lock("a", TTL).unwrap();
    let owners = Arc::strong_count(&redlock.shared);
    let let_go = redlock.shared.threads.hold_loop();
    thread::scope(|scope| {
        let renewing = scope.spawn(|| lock.keep_alive(KeepAlive::default()));
        soon("it was checked", || Arc::strong_count(&redlock.shared) > owners + 1);
        redlock.shared.signals.is_released.store(true, Ordering::Release);
        let_go();
        let error = renewing.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("expired"), "{error}");
    });
    soon("no renewal goes on", || in_flight(&redlock) == 0);
    soon("it is released", || servers.iter().all(|server| server.store().is_empty()));
}

/// R2: the lock was granted in time, and expired before its thread woke.
#[test]
fn lock_that_its_thread_overslept_is_not_held_and_released() {
    let servers = servers();
    let redlock = client(&servers);
    let token = {
        let (_, lease) = redlock.try_lock("a", TTL).unwrap().apart();
        let token = *lease.token();
        let expired = lease.valid_at_most_until(Clock.now());
        let error = redlock.acquired(Some(Outcome::ExpiredBeforeWake(expired))).unwrap_err();
        assert!(error.is_expired());
        token
    };
    let has_it = |server: &Scripted| server.store().values().any(|value| value == token.as_bytes());
    soon("it is released", || {
        redlock.nodes();
        !servers.iter().any(has_it)
    });
}

/// No thread waits beyond its limit when another thread has the loop and gets no processor. Nothing
/// is left behind.
#[test]
fn slow_limits_are_kept_when_another_thread_is_held_up_with_the_loop() {
    let servers = servers();
    let redlock = client(&servers);
    let lock = |name, ttl| redlock.try_lock(name, ttl).unwrap();
    let (released, dropped) = (lock("released", TTL), lock("dropped", TTL));
    let mut extended = lock("extended", 20 * WAIT);

    let let_go = redlock.shared.threads.hold_loop();
    let bound = |what: &str, took: Duration, limit: Duration| {
        assert!(took >= limit && took < limit + GENEROUS, "{what}: {took:?}");
    };
    let start = Clock.now();
    let left = extended.remaining();
    let result = extended.extend(TTL);
    bound("extend", Clock.now().since(start), left);
    assert!(result.unwrap_err().is_expired());
    assert!(!extended.is_valid() && extended.remaining().is_zero());
    let (took, result) = timed(|| redlock.try_lock_for("a", TTL, WAIT));
    bound("try_lock_for", took, WAIT);
    let error = result.unwrap_err();
    assert!(error.is_unavailable() && error.nodes().is_empty(), "{error}");
    assert!(error.to_string().contains("delayed"), "{error}");
    let (took, result) = timed(|| redlock.try_lock("b", TTL));
    bound("try_lock", took, CONNECT_TIMEOUT + NODE_TIMEOUT);
    assert!(result.unwrap_err().is_unavailable());
    let (took, ()) = timed(|| drop(dropped));
    assert!(took < GENEROUS, "{took:?}");
    let (took, result) = timed(|| released.unlock());
    bound("unlock", took, CONNECT_TIMEOUT + NODE_TIMEOUT);
    assert!(result.unwrap_err().is_unavailable());
    let (took, unanswered) = timed(|| redlock.shutdown(WAIT));
    bound("shutdown", took, WAIT);
    assert_eq!(unanswered, 1);
    let (took, result) = timed(|| redlock.wait_until_connected());
    bound("connect", took, CONNECT_TIMEOUT);
    assert!(result.is_err());
    let_go();
    drop(extended);
    is_clean(&redlock, &servers);
}

/// Threads that find the loop free while the polling thread is delayed can send, but receive
/// nothing.
#[test]
fn slow_limits_are_kept_when_another_thread_is_held_up_while_it_polls() {
    let servers = servers();
    let redlock = client(&servers);
    let released = redlock.try_lock("released", TTL).unwrap();
    let let_go = redlock.shared.threads.hold_poller();
    let (took, result) = timed(|| redlock.try_lock_for("a", TTL, WAIT));
    assert!(took < WAIT + GENEROUS, "{took:?}");
    // It may have polled at the end, and been granted the lock.
    assert!(result.is_ok_and(|lock| lock.is_valid()) || took >= WAIT);
    let (took, _) = timed(|| released.unlock());
    assert!(took < CONNECT_TIMEOUT + NODE_TIMEOUT + GENEROUS, "{took:?}");
    let (took, _) = timed(|| redlock.shutdown(WAIT));
    assert!(took < WAIT + GENEROUS, "{took:?}");
    let_go();
    is_clean(&redlock, &servers);
}

/// The order was with the delayed thread already; its outcome is given up.
#[test]
fn order_that_is_taken_back_after_it_was_begun_is_given_up() {
    let servers = servers();
    let redlock = client(&servers);
    let let_go = redlock.shared.threads.hold_poller();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| redlock.try_lock_for("a", TTL, 5 * WAIT));
        soon("it is sent", || servers.iter().all(|server| !server.store().is_empty()));
        let let_loop_go = redlock.shared.threads.hold_loop();
        let (took, result) = timed(|| waiting.join().unwrap());
        assert!(took < 5 * WAIT + GENEROUS, "{took:?}");
        assert!(result.unwrap_err().is_unavailable());
        let_loop_go();
    });
    let_go();
    is_clean(&redlock, &servers);
}

/// R31: the loss is reported before the validity ends, though no thread can renew.
#[test]
fn slow_loss_is_reported_in_time_when_another_thread_is_held_up_with_the_loop() {
    let servers = servers();
    let redlock = client(&servers);
    let (sender, losses) = mpsc::channel();
    let ttl = Duration::from_secs(3);
    let how = KeepAlive::default().notice(ttl / 3);
    let how = how.on_loss(move |loss| sender.send(loss.remaining).unwrap());
    let keep = |name| redlock.try_lock(name, ttl).unwrap().keep_alive(how.clone()).unwrap();
    let [lost, unlocked, stopped] = ["lost", "unlocked", "stopped"].map(keep);
    let let_go = redlock.shared.threads.hold_loop();
    for _ in 0..3 {
        assert!(!losses.recv_timeout(3 * ttl).expect("the loss is reported").is_zero());
    }
    assert!(lost.is_lost());
    let limit = CONNECT_TIMEOUT + NODE_TIMEOUT + GENEROUS;
    let (took, result) = timed(|| unlocked.unlock());
    assert!(took < limit && result.unwrap_err().is_unavailable(), "{took:?}");
    let (took, guard) = timed(|| stopped.stop());
    assert!(took < limit && !guard.is_valid(), "{took:?}");
    let (took, ()) = timed(|| drop(lost));
    assert!(took < GENEROUS, "{took:?}");
    let_go();
    drop(guard);
    is_clean(&redlock, &servers);
}

/// Another client holds the resource for as long as the test runs.
fn held_by_another(servers: &[Scripted], resource: &str) -> LockGuard {
    client(servers).try_lock(resource, TTL).unwrap()
}

/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(25);

fn kind<T>(result: Result<T, LockError>) -> Option<LockErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn cancelled_waiter_ends_its_waits_and_no_others() {
    let servers = servers();
    let redlock = client(&servers);
    let held = held_by_another(&servers, "held");
    let (waiter, other) = (redlock.waiter(), redlock.waiter());
    thread::scope(|scope| {
        // One of them runs the loop, the others sleep; some wait for their turn in the queue.
        let wait = |waiter: &super::Waiter, resource: &'static str| {
            let waiter = waiter.clone();
            scope.spawn(move || kind(waiter.redlock().try_lock_for(resource, TTL, LONG)))
        };
        let mine: Vec<_> = (0..4).map(|_| wait(&waiter, "held")).collect();
        let others: Vec<_> = (0..2).map(|_| wait(&other, "held")).collect();
        soon("all wait", || redlock.nodes().len() == 3 && in_flight(&redlock) == 6);
        waiter.cancel();
        for waiting in mine {
            assert_eq!(waiting.join().unwrap(), Some(LockErrorKind::Cancelled));
        }
        assert!(others.iter().all(|waiting| !waiting.is_finished()) && !other.is_cancelled());
        assert_eq!(
            kind(waiter.redlock().try_lock_for("free", TTL, LONG)),
            Some(LockErrorKind::Cancelled)
        );
        assert_eq!(kind(redlock.waiter().redlock().try_lock_for("free", TTL, LONG)), None);
        assert!(held.unlock().unwrap().was_held());
        for waiting in others {
            assert_eq!(waiting.join().unwrap(), None);
        }
    });
    assert_eq!(redlock.shared.threads.look_at(|work| work.counts()), (0, 0, 0));
    is_clean(&redlock, &servers);
    redlock.close();
    let both = waiter.redlock().try_lock_for("free", TTL, LONG);
    assert_eq!(kind(both), Some(LockErrorKind::Closed), "nobody else gets a lock either");
}

/// This client has the lock, so nothing else is due in its loop.
#[test]
fn cancelled_wait_ends_at_once_though_nothing_else_wakes_the_loop() {
    let servers = servers();
    let redlock = client(&servers);
    let own = redlock.try_lock_for("own", TTL, LONG).unwrap();
    for count in [1, 4] {
        let waiter = redlock.waiter();
        thread::scope(|scope| {
            let wait = || kind(waiter.redlock().try_lock_for("own", TTL, LONG));
            let waiting: Vec<_> = (0..count).map(|_| scope.spawn(wait)).collect();
            soon("all wait", || in_flight(&redlock) == count);
            let start = Clock.now();
            waiter.cancel();
            for waiting in waiting {
                assert_eq!(waiting.join().unwrap(), Some(LockErrorKind::Cancelled));
            }
            let took = Clock.now().since(start);
            assert!(took < GENEROUS, "{took:?}");
        });
        assert_eq!(redlock.shared.threads.look_at(|work| work.counts()), (0, 0, 0));
    }
    assert!(own.unlock().unwrap().was_held());
    is_clean(&redlock, &servers);
}

/// None of a queue is called to ask in place of one before it that ends with it.
#[test]
fn end_of_a_whole_queue_asks_no_master() {
    let servers = servers();
    let (redlock, closed) = (client(&servers), client(&servers));
    let held = held_by_another(&servers, "held");
    let waiter = redlock.waiter();
    let other = closed.waiter();
    let ends: [(&Redlock, &super::Waiter, &dyn Fn()); 2] =
        [(&redlock, &waiter, &|| waiter.cancel()), (&closed, &other, &|| closed.close())];
    for (redlock, waiter, end) in ends {
        thread::scope(|scope| {
            let wait = || waiter.redlock().try_lock_for("held", TTL, LONG).map(drop);
            let waiting: Vec<_> = (0..64).map(|_| scope.spawn(wait)).collect();
            soon("all wait", || in_flight(redlock) == 64);
            let before = redlock.stats().rounds;
            end();
            for waiting in waiting {
                assert!(waiting.join().unwrap().is_err());
            }
            // The first one may have begun another round just before.
            let asked = redlock.stats().rounds - before;
            assert!(asked <= 4, "{asked}");
        });
        assert_eq!(redlock.shared.threads.look_at(|work| work.counts()), (0, 0, 0));
    }
    drop(held);
}

/// A thread that takes its order back leaves nothing of its waiter.
#[test]
fn cancelled_order_that_is_taken_back_leaves_nothing() {
    let servers = servers();
    let redlock = client(&servers);
    let held = held_by_another(&servers, "held");
    let waiter = redlock.waiter();
    let let_go = redlock.shared.threads.hold_poller();
    thread::scope(|scope| {
        let wait = || kind(waiter.redlock().try_lock_for("held", TTL, 5 * WAIT));
        let waiting = scope.spawn(wait);
        soon("it is begun", || in_flight(&redlock) == 1);
        let let_loop_go = redlock.shared.threads.hold_loop();
        assert!(waiting.join().unwrap().is_some(), "it was delayed");
        let_loop_go();
    });
    waiter.cancel();
    let_go();
    soon("nothing is left", || redlock.shared.threads.look_at(|work| work.counts()) == (0, 0, 0));
    drop(held);
}

#[test]
fn closed_client_ends_all_waits_and_keeps_what_is_held() {
    let servers = servers();
    let redlock = client(&servers);
    let held = held_by_another(&servers, "held");
    let mut mine = redlock.try_lock("mine", TTL).unwrap();
    let kept = redlock.try_lock("kept", TTL).unwrap().keep_alive(KeepAlive::default()).unwrap();
    let before = redlock.stats().rounds;
    thread::scope(|scope| {
        let wait = |resource: &'static str| {
            let redlock = redlock.clone();
            scope.spawn(move || kind(redlock.try_lock_for(resource, TTL, LONG)))
        };
        let waiting: Vec<_> = (0..16).map(|i| wait(["held", "mine"][i % 2])).collect();
        soon("all wait", || in_flight(&redlock) == 16 + 1);
        assert!(!redlock.is_closed());
        redlock.close();
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), Some(LockErrorKind::Closed));
        }
    });
    let asked = redlock.stats().rounds - before;
    assert!(redlock.is_closed());
    let error = redlock.try_lock("free", TTL).unwrap_err();
    assert_eq!((error.kind(), error.attempts()), (LockErrorKind::Closed, 0));
    assert_eq!(error.to_string(), "closed: this client acquires no more locks");
    assert_eq!(kind(redlock.clone().try_lock_for("free", TTL, LONG)), Some(LockErrorKind::Closed));
    assert_eq!(redlock.stats().rounds - before, asked, "nothing was sent");
    mine.extend(TTL).unwrap();
    assert!(mine.unlock().unwrap().was_held() && !kept.is_lost());
    assert!(kept.unlock().unwrap().was_held());
    soon("all is answered", || redlock.shutdown(GENEROUS) == 0);
    drop(held);
    soon("no key is left", || servers.iter().all(|server| server.store().is_empty()));
}

/// R24: the loop of the parent is not woken, and waits of the parent do not end.
#[test]
fn forked_process_closes_nothing_of_its_parent() {
    let builder = Redlock::builder().node("redis://127.0.0.1:1");
    let mut redlock = builder.restart_guard(RestartGuard::Off).build().unwrap();
    Arc::get_mut(&mut redlock.shared).unwrap().owner = OwnerProcess::Id(0);
    let waiter = redlock.waiter();
    redlock.close();
    waiter.cancel();
    assert!(!redlock.is_closed() && waiter.is_cancelled());
    assert!(!redlock.shared.signals.take_raised());
}

/// R31: the thread that reports losses looks in time, though it already waits for another lock.
#[test]
fn slow_loss_of_a_short_lock_is_reported_in_time_after_a_long_one() {
    let servers = servers();
    let redlock = client(&servers);
    let how = KeepAlive::default();
    let long = redlock.try_lock("long", TTL).unwrap().keep_alive(how.clone()).unwrap();
    let (sender, losses) = mpsc::channel();
    // On a busy machine, the loss may be reported two thirds of it later, and is in time.
    let short = Duration::from_secs(3);
    let how = how.notice(2 * short / 3);
    let how = how.on_loss(move |loss| sender.send(loss.remaining).unwrap());
    let short = redlock.try_lock("short", short).unwrap().keep_alive(how).unwrap();
    // The renewer's thread takes its outcome and waits again, long before the notice.
    let until = Clock.now().after(WAIT);
    while Clock.now() < until {
        thread::yield_now();
    }
    let let_go = redlock.shared.threads.hold_loop();
    let left = losses.recv_timeout(GENEROUS).expect("the loss is reported");
    assert!(!left.is_zero(), "reported when the lock had ended");
    assert!(short.is_lost() && !long.is_lost());
    let_go();
    drop((long, short));
    is_clean(&redlock, &servers);
}
