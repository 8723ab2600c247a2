//! R24: a forked process touches nothing of its parent's, and nothing of it hangs.

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use muxlock::node::NodeState;
use muxlock::proto::{Cancelled, Done, OpId};
use muxlock::testing::Masters;
use muxlock::{LockErrorKind, LockParts, Redlock, Standalone, Stats};
use testbed::{
    PATIENT, SOON, Stopwatch, TTL, all_ready, is_child, patient, re_execute, run_child, soon, timed,
};

const URLS_VARIABLE: &str = "MUXLOCK_TEST_URLS";
/// No call of a forked process waits for anything.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Runs this test's `body` in a process of its own, in which no other test's threads are.
fn alone(test: &str, body: fn(&Redlock, &[String])) {
    if is_child(test) {
        let urls = std::env::var(URLS_VARIABLE).expect("the parent names the masters");
        let urls: Vec<String> = urls.split(' ').map(str::to_owned).collect();
        let redlock = all_ready(&patient(urls.clone()));
        body(&redlock, &urls);
        ended(&redlock);
        return;
    }
    let masters = Masters::start(3).expect("redis-server starts");
    run_child(re_execute(test).env(URLS_VARIABLE, masters.urls().join(" ")));
    soon("no key is left", || masters.iter().all(|master| master.dbsize().unwrap() == 0));
}

/// Waits until the masters have read the releases: a process that ends takes with it what a slow
/// master has not read.
fn ended(redlock: &Redlock) {
    assert_eq!(redlock.shutdown(TTL), 0, "every release was answered");
}

/// Runs `child` in a forked process, and fails if it fails.
fn in_a_fork(child: impl FnOnce()) {
    joined(forked(child));
}

/// Runs `child` in a forked process, to be [`joined`].
#[allow(unsafe_code)]
fn forked(child: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child allocates and opens sockets, which glibc makes safe after a fork; it takes
    // no lock of another thread's, which is what is tested; and it ends without unwinding further.
    let id = unsafe { libc::fork() };
    if id == 0 {
        let result = catch_unwind(AssertUnwindSafe(child));
        // SAFETY: it does not return, and runs nothing of the parent's on its way.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    assert!(id > 0, "this process can be forked");
    id
}

/// Waits for a forked process, and fails if it has failed.
#[allow(unsafe_code)]
fn joined(id: libc::pid_t) {
    let mut status = 0;
    // SAFETY: the child is ours, and the status is written to a place that is there.
    let waited = unsafe { libc::waitpid(id, &raw mut status, 0) };
    assert_eq!((waited, status), (id, 0), "the child panicked; see above");
}

#[test]
fn forked_child_is_refused_and_what_it_drops_stays_held_by_the_parent() {
    alone("forked_child_is_refused_and_what_it_drops_stays_held_by_the_parent", |redlock, urls| {
        let lock = redlock.try_lock("held", TTL).unwrap();
        let tag = lock.token().as_bytes()[32..].to_vec();
        let mut slot = Some(lock);
        let mut swapped = Some(redlock.try_lock("swapped", TTL).unwrap());
        in_a_fork(|| {
            let mut lock = slot.take().unwrap();
            assert!(!lock.is_valid() && lock.remaining().is_zero());
            let refused = redlock.try_lock("other", TTL).unwrap_err();
            assert_eq!(refused.kind(), LockErrorKind::Forked);
            let refused = redlock.swap(swapped.take().unwrap(), "other", TTL).unwrap_err();
            assert_eq!(refused.kind(), LockErrorKind::Forked);
            assert_eq!(lock.extend(TTL).unwrap_err().kind(), LockErrorKind::Forked);
            assert_eq!(redlock.ready(TTL).unwrap_err().kind(), LockErrorKind::Forked);
            assert!(redlock.nodes().is_empty());
            assert_eq!(redlock.stats(), muxlock::Stats::default());
            assert_eq!(redlock.times(), muxlock::Times::default());
            assert_eq!(redlock.shutdown(TTL), 0);
            redlock.track_locks();
            assert_eq!(redlock.release_all(TTL), 0);
            assert!(!redlock.is_closed() && !format!("{redlock:?}").is_empty());
            drop(lock);
            drop(redlock.clone());

            // A client of the child's own works, and contends with the parent.
            let own = all_ready(&patient(urls.iter().cloned()));
            assert!(own.try_lock("held", TTL).unwrap_err().is_contended());
            let lock = own.try_lock("own", TTL).unwrap();
            // R6: the tag of the parent's client is not that of the child's.
            assert_ne!(lock.token().as_bytes()[32..], tag);
            assert!(lock.unlock().unwrap().was_held());
            // A process that was forked from this one is refused in turn.
            in_a_fork(|| {
                let refused = own.try_lock("other", TTL).unwrap_err();
                assert_eq!(refused.kind(), LockErrorKind::Forked);
            });
            ended(&own);
        });
        let mut lock = slot.take().unwrap();
        assert!(lock.is_valid());
        lock.extend(TTL).unwrap();
        for _ in 0..100 {
            let _ = redlock.try_lock("other", TTL).unwrap().unlock().unwrap();
        }
        assert!(lock.unlock().unwrap().was_held());
        assert!(swapped.unwrap().unlock().unwrap().was_held());
        assert_eq!(redlock.stats().disconnected, 0, "the connections are as they were");
    });
}

#[test]
fn forked_child_that_drops_the_client_leaves_the_parents_poll_alone() {
    alone("forked_child_that_drops_the_client_leaves_the_parents_poll_alone", |_, urls| {
        let own = all_ready(&patient(urls.iter().cloned()));
        let mut slot = Some(own);
        in_a_fork(|| drop(slot.take()));
        // It was the last handle: in the child everything was dropped. Here the sockets are still
        // registered, or no reply would ever be noticed.
        let own = slot.take().unwrap();
        let (took, lock) = timed(|| own.try_lock("held", TTL).unwrap());
        assert!(took < AT_ONCE, "{took:?}");
        assert!(lock.unlock().unwrap().was_held());
        ended(&own);
    });
}

#[test]
fn forked_child_does_not_wait_for_a_thread_that_it_does_not_have() {
    alone("forked_child_does_not_wait_for_a_thread_that_it_does_not_have", |redlock, _| {
        let stop = AtomicBool::new(false);
        let mut slot = Some(redlock.try_lock("held", TTL).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(redlock.try_lock("busy", TTL));
                }
            });
            for _ in 0..50 {
                in_a_fork(|| {
                    let (took, refused) = timed(|| redlock.try_lock("other", TTL).unwrap_err());
                    assert_eq!(refused.kind(), LockErrorKind::Forked);
                    assert!(redlock.nodes().is_empty());
                    drop(slot.take());
                    assert!(took < AT_ONCE, "{took:?}");
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(redlock.stats().disconnected, 0);
        drop(slot);
    });
}

#[test]
fn forked_child_is_told_nothing_by_a_guest() {
    alone("forked_child_is_told_nothing_by_a_guest", |_, urls| {
        let mut guest = Standalone::new(patient(urls.iter().cloned()).config().unwrap()).unwrap();
        guest.mux_mut().connect();
        turn_until(&mut guest, |guest| {
            guest.mux().nodes().all(|node| node.state == NodeState::Ready)
        });
        let lease = match start_and_end(&mut guest, "held") {
            (op, Some((ended, Done::Acquired(Ok(lease))))) if ended == op => lease,
            other => panic!("{other:?}"),
        };
        let more =
            ["extended", "released", "abandoned", "let go"].map(|name| {
                match start_and_end(&mut guest, name).1 {
                    Some((_, Done::Acquired(Ok(lease)))) => lease,
                    other => panic!("{other:?}"),
                }
            });
        // It has ended, and nobody has taken it.
        let untaken = start_and_answer(&mut guest, "untaken");
        let (mut slot, mut leases) = (Some(guest), Some(more));
        in_a_fork(|| {
            let mut guest = slot.take().unwrap();
            assert!(guest.mux_mut().poll_done().is_none(), "the parent has that lock");
            assert!(matches!(guest.mux_mut().cancel(untaken), Cancelled::Nothing));
            let [extended, released, abandoned, mut let_go] = leases.take().unwrap();
            for op in [guest.mux_mut().extend(extended, TTL), guest.mux_mut().unlock(released)] {
                assert!(matches!(guest.mux_mut().cancel(op), Cancelled::Nothing));
            }
            guest.mux_mut().abandon(abandoned);
            guest.mux_mut().let_go(&mut let_go);
            let refused = [
                guest.mux_mut().try_lock("other", TTL),
                guest.mux_mut().try_lock_for("other", TTL, TTL),
            ];
            for refused in refused {
                assert_eq!(refused.unwrap_err().kind(), LockErrorKind::Forked);
            }
            guest.mux_mut().connect();
            guest.mux_mut().flush();
            guest.mux_mut().handle_timeout();
            assert!(guest.turn().is_err() && guest.wait(AT_ONCE).is_err());
            assert!(guest.mux_mut().poll_done().is_none());
            assert_eq!(guest.mux().next_timeout(), None, "there is nothing to wake up for");
            assert_eq!(guest.mux().nodes().count(), 0);
            assert_eq!(guest.mux().stats(), Stats::default());
            assert_eq!(guest.mux().times(), muxlock::Times::default());
            drop(guest);
        });
        let mut guest = slot.take().unwrap();
        let untaken = match guest.mux_mut().poll_done() {
            Some((op, Done::Acquired(Ok(lease)))) if op == untaken => lease,
            other => panic!("{other:?}"),
        };
        for lease in leases.take().unwrap().into_iter().chain([lease, untaken]) {
            let op = guest.mux_mut().unlock(lease);
            guest.mux_mut().flush();
            turn_until(&mut guest, |guest| guest.mux().nodes().all(|node| node.in_flight == 0));
            match guest.mux_mut().poll_done() {
                Some((ended, Done::Released(Ok(released)))) if ended == op => {
                    assert_eq!(released.confirmed, 3, "it is as the parent left it");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(guest.mux().stats().disconnected, 0);
    });
}

/// Starts an acquisition, and turns until every master has answered.
fn start_and_answer(guest: &mut Standalone, resource: &str) -> OpId {
    let op = guest.mux_mut().try_lock(resource, TTL).unwrap();
    guest.mux_mut().flush();
    turn_until(guest, |guest| guest.mux().nodes().all(|node| node.in_flight == 0));
    op
}

fn start_and_end(guest: &mut Standalone, resource: &str) -> (OpId, Option<(OpId, Done)>) {
    (start_and_answer(guest, resource), guest.mux_mut().poll_done())
}

fn turn_until(guest: &mut Standalone, is_so: impl Fn(&Standalone) -> bool) {
    soon("the masters have answered", || {
        guest.turn().unwrap();
        is_so(guest)
    });
}

#[test]
fn parts_that_a_forked_child_takes_from_its_parents_guard_are_no_lock() {
    alone("parts_that_a_forked_child_takes_from_its_parents_guard_are_no_lock", |redlock, urls| {
        let mut slot = Some(redlock.try_lock("held", TTL).unwrap());
        let given = redlock.try_lock("given", TTL).unwrap();
        // The parent has given it up before: that is for the child to take.
        let mut given = Some(given.into_parts());
        in_a_fork(|| {
            let own = all_ready(&patient(urls.iter().cloned()));
            let parts = slot.take().unwrap().into_parts();
            let text = parts.to_secret_text().unwrap();
            let read: LockParts = text.parse().unwrap();
            for parts in [parts, read] {
                assert!(own.adopt(parts).unwrap_err().is_expired());
            }
            own.shutdown(TTL);
            assert!(own.adopt(given.take().unwrap()).unwrap().unlock().unwrap().was_held());
            ended(&own);
        });
        let lock = slot.take().unwrap();
        assert!(lock.is_valid());
        let released = lock.unlock().unwrap();
        assert!(released.was_held() && released.absent == 0, "{released:?}");
        drop(given);
    });
}

/// The child has all that the lookup needs to end: it neither ends it nor takes its end away.
#[test]
fn forked_child_leaves_its_parents_lookups_alone() {
    alone("forked_child_leaves_its_parents_lookups_alone", |_, urls| {
        let address: SocketAddr = urls[0].trim_start_matches("redis://").parse().unwrap();
        let (answer, answers) = mpsc::channel();
        let answers = Mutex::new(answers);
        let resolver = move |_: &str, _| {
            answers.lock().unwrap().recv().expect("the test answers");
            Ok(vec![address])
        };
        let builder = patient(["redis://name"]).resolver(resolver);
        let mut slot = Some(Standalone::new(builder.config().unwrap()).unwrap());
        let guest = slot.as_mut().unwrap();
        guest.mux_mut().connect();
        guest.turn().unwrap();
        in_a_fork(|| drop(slot.take()));

        // The other child has it open until its parent has seen it end, or has failed.
        let (parents, childs) = UnixStream::pair().unwrap();
        let mut parents = Some(parents);
        let id = forked(|| {
            drop(parents.take());
            assert_eq!((&childs).read(&mut [0]).unwrap(), 0);
        });
        answer.send(()).unwrap();
        let guest = slot.as_mut().unwrap();
        // Nothing but the lookup's end can end the wait so soon.
        let watch = Stopwatch::start();
        while !guest.mux().nodes().all(|node| node.state == NodeState::Ready) {
            guest.wait(PATIENT).unwrap();
            assert!(watch.elapsed() < SOON, "{watch:?}");
        }
        drop(parents);
        joined(id);
    });
}
