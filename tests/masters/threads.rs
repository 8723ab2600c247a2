//! Many threads on one client, over real masters.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use muxlock::settings::RestartGuard;
use muxlock::testing::Masters;
use muxlock::{LockErrorKind, Redlock};
use testbed::{Stopwatch, TTL, all_ready, heavy, is_child, patient, re_execute, run_child, soon};

const THREADS: usize = 64;
const NODES: usize = 5;
/// Longer than any test takes.
const WAIT: Duration = Duration::from_secs(60);

fn start() -> (Masters, Redlock) {
    let masters = Masters::start(NODES).unwrap_or_else(|error| panic!("{error}"));
    let redlock = all_ready(&patient(masters.urls()).restart_guard(RestartGuard::Off));
    (masters, redlock)
}

/// What the masters were asked for by clients: SETs and releases.
fn commands(masters: &Masters) -> u64 {
    let calls = |command| masters.iter().map(|m| m.command_calls(command).unwrap()).sum::<u64>();
    calls("set") + calls("eval")
}

/// Runs the same on each of many threads, until the time is over; how often each did it.
fn on_all(time: Duration, run: impl Fn(usize) + Sync) -> Vec<u64> {
    let is_over = AtomicBool::new(false);
    let together = Barrier::new(THREADS + 1);
    let (is_over, together, run) = (&is_over, &together, &run);
    thread::scope(|scope| {
        let work = |thread| {
            move || {
                together.wait();
                let mut times = 0;
                while !is_over.load(Ordering::Relaxed) {
                    run(thread);
                    times += 1;
                }
                times
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|i| scope.spawn(work(i))).collect();
        together.wait();
        let watch = Stopwatch::start();
        while watch.elapsed() < time {
            testbed::pause(Duration::from_millis(10));
        }
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// R9: one asks for all who wait, and they get the lock in the order in which they came.
#[test]
fn slow_alone_threads_that_want_one_resource_get_it_in_turn() {
    let _turn = heavy();
    let (masters, redlock) = start();
    let before = commands(&masters);
    let (drawn, holder) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let waiting = Mutex::new(std::collections::BTreeSet::new());
    let overtaken = Mutex::new(0);
    let times = on_all(Duration::from_secs(10), |thread| {
        let ticket = {
            let mut waiting = waiting.lock().unwrap();
            let ticket = drawn.fetch_add(1, Ordering::Relaxed);
            waiting.insert(ticket);
            ticket
        };
        let lock = redlock.try_lock_for("resource", TTL, WAIT).unwrap();
        assert_eq!(holder.swap(thread as u64, Ordering::SeqCst), u64::MAX, "one at a time");
        {
            let mut waiting = waiting.lock().unwrap();
            waiting.remove(&ticket);
            let mut most = overtaken.lock().unwrap();
            *most = waiting.range(..ticket).count().max(*most);
        }
        assert_eq!(holder.swap(u64::MAX, Ordering::SeqCst), thread as u64);
        assert!(lock.unlock().unwrap().was_held());
    });
    let sent = commands(&masters) - before;
    let hands: u64 = times.iter().sum();
    let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    let each = sent as f64 / (hands as f64 * NODES as f64);
    let overtaken = *overtaken.lock().unwrap();
    println!("{hands} hand-offs, {least} to {most} a thread, {each:.3} commands each and node");
    println!("at most {overtaken} with an earlier ticket still waited");
    assert!(*most as f64 <= 1.3 * *least as f64, "{times:?}");
    assert!(each <= 3.0, "{each}");
    // Between its ticket and the line, a thread may be interrupted.
    assert!(overtaken <= THREADS / 4, "{overtaken}");
}

/// Waits end at any moment, also of the thread that runs the loop for the others.
#[test]
fn slow_alone_cancelled_waits_leave_no_second_holder_and_no_key() {
    let _turn = heavy();
    let (masters, redlock) = start();
    let waiters: Vec<_> = (0..THREADS).map(|_| Mutex::new(redlock.waiter())).collect();
    let (holder, next) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
    let counts = [(); 2].map(|()| AtomicU64::new(0));
    on_all(Duration::from_secs(3), |thread| {
        let waiter = waiters[thread].lock().unwrap().clone();
        // One in four cancels another one, which then takes a new waiter.
        let call = next.fetch_add(1, Ordering::Relaxed) as usize;
        if call % 4 == 0 {
            waiters[call / 4 * 7 % THREADS].lock().unwrap().cancel();
        }
        match waiter.redlock().try_lock_for("resource", TTL, WAIT) {
            Ok(lock) => {
                assert_eq!(holder.swap(thread as u64, Ordering::SeqCst), u64::MAX);
                assert_eq!(holder.swap(u64::MAX, Ordering::SeqCst), thread as u64);
                assert!(lock.unlock().unwrap().was_held());
                counts[0].fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                assert_eq!(error.kind(), LockErrorKind::Cancelled, "{error}");
                counts[1].fetch_add(1, Ordering::Relaxed);
                *waiters[thread].lock().unwrap() = redlock.waiter();
            }
        }
    });
    let [acquired, cancelled] = counts.map(AtomicU64::into_inner);
    println!("{acquired} acquired, {cancelled} cancelled");
    assert!(acquired > 0 && cancelled > 0);
    assert_eq!(redlock.shutdown(WAIT), 0);
    assert!(masters.iter().all(|master| master.dbsize().unwrap() == 0));
}

/// With resources of their own, what many want at once leaves together.
#[test]
fn slow_alone_threads_share_the_masters_attention() {
    let _turn = heavy();
    let (masters, redlock) = start();
    let reads = || {
        let stat = |name| masters[0].stat(name).unwrap();
        (stat("total_reads_processed"), stat("total_commands_processed"))
    };
    let before = reads();
    let times = on_all(Duration::from_secs(2), |thread| {
        let lock = redlock.try_lock(format!("resource:{thread}"), TTL).unwrap();
        assert!(lock.unlock().unwrap().was_held());
    });
    let after = reads();
    let commands = (after.1 - before.1) as f64 / (after.0 - before.0) as f64;
    println!("{} pairs, {commands:.1} commands a read", times.iter().sum::<u64>());
    assert!(times.iter().all(|times| *times > 0), "{times:?}");
    assert!(commands > 4.0, "{commands}");
}

/// It counts the threads of the process, so it has one of its own.
#[test]
fn slow_alone_client_has_no_thread_of_its_own() {
    let _turn = heavy();
    const NAME: &str = "slow_alone_client_has_no_thread_of_its_own";
    if !is_child(NAME) {
        run_child(&mut re_execute(NAME));
        return;
    }
    let threads = || fs::read_dir("/proc/self/task").expect("Linux has it").count();
    let (_masters, redlock) = start();
    let before = threads();
    on_all(Duration::from_millis(300), |thread| {
        let lock = redlock.try_lock(format!("resource:{thread}"), TTL).unwrap();
        drop(lock);
        assert!(threads() <= before + THREADS);
    });
    soon("the threads of the test are gone", || threads() == before);
}
