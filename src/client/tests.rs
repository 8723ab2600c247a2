//! A client whose threads are late, or delayed.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Redlock;
use super::loop_work::Outcome;
use crate::config::RestartGuard;
use crate::keep_alive::KeepAlive;
use crate::proto::NodeState;
use crate::sys::clock::Clock;
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

/// R2: the lock was granted in time, and its thread woke too late.
#[test]
fn lock_that_its_thread_overslept_is_not_held_and_released() {
    let servers = servers();
    let redlock = client(&servers);
    let token = {
        let (_, lease) = redlock.try_lock("a", TTL).unwrap().apart();
        let token = *lease.token();
        let late = lease.valid_at_most_until(Clock.now());
        let error = redlock.acquired(Some(Outcome::ExpiredBeforeWake(late))).unwrap_err();
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
fn limits_are_kept_when_another_thread_is_held_up_with_the_loop() {
    let servers = servers();
    let redlock = client(&servers);
    let lock = |name, ttl| redlock.try_lock(name, ttl).unwrap();
    let (released, dropped) = (lock("released", TTL), lock("dropped", TTL));
    let mut extended = lock("extended", 20 * WAIT);

    let let_go = redlock.shared.crew.hold_desk();
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
    let (took, result) = timed(|| redlock.wait_until_ready());
    bound("connect", took, CONNECT_TIMEOUT);
    assert!(result.is_err());
    let_go();
    drop(extended);
    is_clean(&redlock, &servers);
}

/// Threads that find the loop free while the polling thread is delayed can send, but receive
/// nothing.
#[test]
fn limits_are_kept_when_another_thread_is_held_up_while_it_polls() {
    let servers = servers();
    let redlock = client(&servers);
    let released = redlock.try_lock("released", TTL).unwrap();
    let let_go = redlock.shared.crew.hold_poller();
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
    let let_go = redlock.shared.crew.hold_poller();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| redlock.try_lock_for("a", TTL, 5 * WAIT));
        soon("it is sent", || servers.iter().all(|server| !server.store().is_empty()));
        let let_desk_go = redlock.shared.crew.hold_desk();
        let (took, result) = timed(|| waiting.join().unwrap());
        assert!(took < 5 * WAIT + GENEROUS, "{took:?}");
        assert!(result.unwrap_err().is_unavailable());
        let_desk_go();
    });
    let_go();
    is_clean(&redlock, &servers);
}

/// R31: the loss is reported before the validity ends, though no thread can renew.
#[test]
fn loss_is_told_in_time_when_another_thread_is_held_up_with_the_loop() {
    let servers = servers();
    let redlock = client(&servers);
    let (sender, losses) = mpsc::channel();
    let ttl = Duration::from_secs(3);
    let how = KeepAlive::default().notice(ttl / 3);
    let how = how.on_loss(move |loss| sender.send(loss.remaining).unwrap());
    let keep = |name| redlock.try_lock(name, ttl).unwrap().keep_alive(how.clone()).unwrap();
    let [lost, unlocked, stopped] = ["lost", "unlocked", "stopped"].map(keep);
    let let_go = redlock.shared.crew.hold_desk();
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
