//! The examples in `examples/loops`, as programs and as a part of a program.

#[allow(dead_code, missing_docs)]
#[path = "../../examples/loops/async_fd.rs"]
mod async_fd;

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::process::{Command, Output};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use async_fd::{Guard, Locks};
use muxlock::testing::Masters;
use muxlock::{KeepAlive, LockErrorKind, LossCause};
use testbed::{PATIENT, TTL, patient, soon};
use tokio::io::unix::AsyncFd;
use tokio::task::{LocalSet, yield_now};

const KEY: &str = "report:daily";
/// Long enough for a renewal.
const SHORT: Duration = Duration::from_secs(2);
const PAIRS: usize = 1_000;
const TASKS: usize = 200;

fn run(program: &str, args: &[String]) -> (Output, String, String) {
    let output = Command::new(program).args(args).output().expect("the example is built");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

fn urls(masters: &Masters) -> Vec<String> {
    masters.urls().into_iter().map(|url| url + "?restart_guard=off").collect()
}

/// Runs the body with an adapter for three masters, on which no key is left at the end.
fn with_locks<F: Future<Output = ()>>(body: impl FnOnce(Locks, Rc<Masters>) -> F) {
    let masters = Rc::new(Masters::start(3).unwrap());
    let builder = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let builder = builder.expect("there is a runtime");
    LocalSet::new().block_on(&builder, async {
        let config = patient(masters.urls()).config().unwrap();
        let (locks, _task) = Locks::spawn(config).unwrap();
        body(locks.clone(), Rc::clone(&masters)).await;
        while locks.unanswered() > 0 {
            yield_now().await;
        }
    });
    let are_free = || masters.iter().all(|master| master.dbsize().unwrap() == 0);
    soon("no key is left", are_free);
}

async fn lock(locks: &Locks) -> Guard {
    locks.lock(KEY, TTL, PATIENT).await.unwrap()
}

/// Polls a future once: it is started, and waits.
fn starts(future: Pin<&mut impl Future>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn each_says_how_to_run_it() {
    for (name, program) in
        [("async_fd", env!("CARGO_BIN_EXE_async_fd")), ("calloop", env!("CARGO_BIN_EXE_calloop"))]
    {
        let (output, out, err) = run(program, &[]);
        assert_eq!(output.status.code(), Some(2), "{name}: {out}{err}");
        assert!(err.starts_with(&format!("usage: {name} redis://")), "{err}");
    }
}

#[test]
fn async_fd_gives_up_one_wait_and_extends_its_lock() {
    let masters = Masters::start(3).unwrap();
    let (output, out, err) = run(env!("CARGO_BIN_EXE_async_fd"), &urls(&masters));
    assert!(output.status.success(), "{out}{err}");
    let held = out.strip_prefix("gave up the wait for a second lock\nheld for another ");
    assert!(held.is_some_and(|it| it.starts_with("9.")), "{out}");
    assert!(masters.iter().all(|master| master.dbsize().unwrap() == 0));
}

#[test]
fn calloop_serves_a_timer_beside_the_lock() {
    let masters = Masters::start(3).unwrap();
    let (output, out, err) = run(env!("CARGO_BIN_EXE_calloop"), &urls(&masters));
    assert!(output.status.success(), "{out}{err}");
    assert_eq!(out, "held to the end: true\nthe timer ticked: true\n");
}

#[test]
fn thousand_pairs_are_granted() {
    with_locks(|locks, _| async move {
        for _ in 0..PAIRS {
            assert!(!lock(&locks).await.remaining().is_zero());
        }
    });
}

#[test]
fn tasks_exclude_each_other() {
    with_locks(|locks, _| async move {
        let (holders, grants) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let task = || {
            let (locks, holders, grants) = (locks.clone(), holders.clone(), grants.clone());
            tokio::task::spawn_local(async move {
                let guard = lock(&locks).await;
                assert_eq!(holders.replace(1), 0, "two tasks have the lock");
                yield_now().await;
                assert!(!guard.remaining().is_zero());
                holders.set(0);
                grants.set(grants.get() + 1);
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(|_| task()).collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(grants.get(), TASKS);
    });
}

/// As in `docs/async-code.md`.
#[test]
fn lost_lock_ends_the_work() {
    with_locks(|_, masters| async move {
        let client = patient(masters.urls()).connect().unwrap();
        let lock = client.try_lock(KEY, SHORT).unwrap();
        let lock = lock.keep_alive(KeepAlive::default()).unwrap();
        #[allow(deprecated)]
        let lost = AsyncFd::new(lock.loss_fd().unwrap()).unwrap();
        for master in masters.iter() {
            master.query(&[b"DEL", KEY.as_bytes()]).unwrap();
        }
        tokio::select! {
            () = std::future::pending() => {}
            ready = lost.readable() => drop(ready.unwrap()),
        }
        assert_eq!(lock.loss().unwrap().cause, LossCause::Gone);
    });
}

/// If it kept its place, it would get the lock, and keep it until its TTL ends.
#[test]
fn dropped_future_leaves_the_queue() {
    with_locks(|locks, masters| async move {
        let other = patient(masters.urls()).connect().unwrap();
        let held = other.try_lock(KEY, TTL).unwrap();
        {
            let mut waiting = pin!(locks.lock(KEY, TTL, PATIENT));
            starts(waiting.as_mut());
            while locks.unanswered() > 0 {
                yield_now().await;
            }
            starts(waiting.as_mut());
        }
        assert!(held.unlock().unwrap().was_held());
        assert!(!lock(&locks).await.remaining().is_zero());
    });
}

/// The lock is there, and its future has not been polled since.
#[test]
fn future_that_is_dropped_with_its_lock_releases_it() {
    with_locks(|locks, masters| async move {
        drop(lock(&locks).await);
        {
            let mut waiting = pin!(locks.lock(KEY, TTL, PATIENT));
            starts(waiting.as_mut());
            while locks.unanswered() > 0 {
                yield_now().await;
            }
            assert!(masters.iter().any(|master| master.pttl(KEY.as_bytes()).unwrap() > 0));
        }
        drop(lock(&locks).await);
    });
}

#[test]
fn extension_outlasts_its_dropped_future() {
    with_locks(|locks, masters| async move {
        let mut guard = locks.lock(KEY, TTL / 2, PATIENT).await.unwrap();
        masters.iter().for_each(|master| master.freeze().unwrap());
        starts(pin!(guard.extend(TTL)));
        let remaining = guard.remaining();
        assert!(remaining > Duration::ZERO && remaining < TTL / 2, "{remaining:?}");
        masters.iter().for_each(|master| master.thaw().unwrap());
        guard.extend(TTL).await.unwrap();
        assert!(guard.remaining() > TTL / 2);
        let refused = locks.lock(KEY, TTL, Duration::ZERO).await.err().unwrap();
        assert_eq!(refused.kind(), LockErrorKind::Contended);
    });
}
