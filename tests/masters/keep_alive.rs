//! Locks that are renewed by the one thread of their client, over real masters.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use muxlock::error::KeepAliveErrorKind;
use muxlock::settings::RestartGuard;
use muxlock::testing::{Master, Masters};
use muxlock::{
    Builder, Error, ErrorKind, KeepAlive, KeptLock, LockErrorKind, Loss, LossCause, Redlock,
};
use testbed::{
    PATIENT, SOON, Stopwatch, TTL, all_ready, alone, heavy, patient, pause, report_to_parent, soon,
    status_figure, timed, within,
};

const KEY: &str = "report:7";
/// Renewals are seen within seconds, and a busy machine comes in time.
const SHORT: Duration = Duration::from_secs(3);
const NODE_TIMEOUT: Duration = Duration::from_millis(250);

/// As it is used: a master that is frozen does not answer for long.
fn usual(masters: &Masters) -> Builder {
    patient(masters.urls()).node_timeout(NODE_TIMEOUT).restart_guard(RestartGuard::Off)
}

fn start(n: usize) -> (Masters, Redlock) {
    let masters = Masters::start(n).unwrap_or_else(|error| panic!("{error}"));
    let redlock = all_ready(&usual(&masters));
    (masters, redlock)
}

#[track_caller]
fn keep(redlock: &Redlock, resource: &str, ttl: Duration, how: KeepAlive) -> KeptLock {
    redlock.try_lock(resource, ttl).unwrap().keep_alive(how).unwrap()
}

/// The losses that are told to a callback.
fn telling(how: KeepAlive) -> (KeepAlive, Receiver<Loss>) {
    let (sender, receiver) = mpsc::channel();
    (how.on_loss(move |loss| sender.send(loss.clone()).unwrap()), receiver)
}

#[track_caller]
fn keys(masters: &Masters, expected: u64) {
    for (i, master) in masters.iter().enumerate() {
        let keys = || master.dbsize().unwrap();
        within(SOON * 4, &format!("{expected} keys on master {i}"), || keys() == expected);
    }
}

/// The threads of this process that renew locks.
fn keepers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux has it");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "muxlock-keeper").count()
}

/// Renewals and releases, by script.
fn scripts(master: &Master) -> u64 {
    master.command_calls("eval").unwrap()
}

#[test]
fn slow_kept_lock_outlives_its_ttl_many_times_and_unlocks() {
    let (masters, redlock) = start(3);
    let kept = keep(&redlock, KEY, SHORT, KeepAlive::default());
    assert_eq!((kept.resource().as_bytes(), kept.ttl()), (KEY.as_bytes(), SHORT));
    let watch = Stopwatch::start();
    while watch.elapsed() < 2 * SHORT {
        assert!(kept.is_valid() && !kept.is_lost(), "{kept:?}");
        assert!(redlock.try_lock(KEY, SHORT).unwrap_err().is_contended());
        pause(Duration::from_millis(50));
    }
    assert!((6..=9).contains(&kept.renewals()), "{}", kept.renewals());
    assert!(kept.loss().is_none());
    let token = *kept.token();
    assert_eq!(masters[0].value_of(KEY.as_bytes()).unwrap().as_deref(), Some(token.as_bytes()));
    let released = kept.unlock().unwrap();
    assert!(released.was_held(), "{released:?}");
    keys(&masters, 0);
}

/// R31: over three TTLs, with one of five masters frozen, and none lost; with few commands, and
/// little memory.
#[test]
fn slow_alone_ten_thousand_locks_are_kept_alive_by_one_thread_with_a_master_frozen() {
    let _turn = heavy();
    const LOCKS: usize = 10_000;
    // All are renewed within a third of it, on a busy machine as well.
    const TTL: Duration = Duration::from_secs(8);
    const PATIENCE: Duration = Duration::from_secs(1);
    alone(
        "slow_alone_ten_thousand_locks_are_kept_alive_by_one_thread_with_a_master_frozen",
        || {
            let masters = Masters::start(5).unwrap();
            let redlock = all_ready(&usual(&masters).node_timeout(PATIENCE));
            masters[4].freeze().unwrap();
            let (how, losses) = telling(KeepAlive::default());
            let memory = status_figure("VmRSS");
            let (took, kept) = timed(|| {
                let keep = |i| keep(&redlock, &format!("job:{i}"), TTL, how.clone());
                (0..LOCKS).map(keep).collect::<Vec<_>>()
            });
            report_to_parent(format!("{LOCKS} locks taken in {took:?}"));
            let before: Vec<_> = (0..4).map(|i| scripts(&masters[i])).collect();
            let watch = Stopwatch::start();
            pause(3 * TTL);
            let watched = watch.elapsed();
            let after: Vec<_> = (0..4).map(|i| scripts(&masters[i])).collect();
            let memory = status_figure("VmRSS") - memory;
            assert_eq!(keepers(), 1);
            assert_eq!(losses.try_recv().ok().map(|loss| loss.to_string()), None);
            assert!(kept.iter().all(|kept| kept.is_valid() && !kept.is_lost()));
            assert!(kept.iter().all(|kept| kept.renewals() >= 3));

            // D(ttl) = ceil(ttl / 100) + 2 ms (R23).
            let period = (TTL - TTL / 100 - Duration::from_millis(2)) / 3;
            let periods = watched.as_secs_f64() / period.as_secs_f64();
            for (before, after) in before.into_iter().zip(after) {
                let commands = (after - before) as f64 / LOCKS as f64 / periods;
                report_to_parent(format!("{commands:.3} commands per lock, node and period"));
                assert!(commands <= 1.2, "{commands}");
            }
            let each = memory * 1024 / LOCKS as u64;
            report_to_parent(format!("{each} bytes of resident memory per lock"));
            assert!(each <= 8_192, "{each} bytes per lock");

            drop(kept);
            masters[4].thaw().unwrap();
            redlock.shutdown(SOON);
            keys(&masters, 0);
            within(SOON * 4, "the thread has ended", || keepers() == 0);
        },
    );
}

/// R31: a majority is frozen and then killed; each holder is told before his lock ends.
#[test]
fn slow_alone_holders_of_a_thousand_locks_are_told_of_a_lost_majority_before_the_deadline() {
    let _turn = heavy();
    const LOCKS: usize = 1_000;
    // A busy machine may pause the process, but not for so long as the notice.
    const TTL: Duration = Duration::from_secs(12);
    const NOTICE: Duration = Duration::from_millis(1_500);
    let mut masters = Masters::start(5).unwrap();
    let redlock = all_ready(&usual(&masters).node_timeout(NOTICE));
    let (how, losses) = telling(KeepAlive::default());
    let kept: Vec<_> =
        (0..LOCKS).map(|i| keep(&redlock, &format!("job:{i}"), TTL, how.clone())).collect();
    within(TTL, "all are renewed", || kept.iter().all(|kept| kept.renewals() > 0));
    masters[0].freeze().unwrap();
    masters[1].freeze().unwrap();
    masters[2].kill().unwrap();
    let mut leads = Vec::new();
    while leads.len() < LOCKS {
        let loss = losses.recv_timeout(2 * TTL).expect("every holder is told");
        assert_eq!(loss.cause, LossCause::Unavailable, "{loss}");
        assert!(loss.error.as_ref().is_none_or(muxlock::LockError::is_unavailable), "{loss}");
        leads.push(loss.remaining);
    }
    leads.sort_unstable();
    let (least, most) = (leads[0], leads[LOCKS - 1]);
    println!("told between {least:?} and {most:?} before the deadline");
    assert!(!least.is_zero());
    // A sixteenth of the validity is less than the timeout of a node.
    assert!(most <= NOTICE.max(TTL / 16), "{most:?}");
    assert!(kept.iter().all(KeptLock::is_lost));
    assert!(losses.try_recv().is_err(), "each is told once");
    drop(kept);
}

/// R31, R26: renewals fail, and go on when the masters are back.
#[test]
fn slow_majority_that_comes_back_in_time_costs_nothing() {
    const TTL: Duration = Duration::from_secs(6);
    let (masters, redlock) = start(3);
    let kept = keep(&redlock, KEY, TTL, KeepAlive::default());
    (0..2).for_each(|i| masters[i].freeze().unwrap());
    within(TTL, "a renewal has failed", || redlock.stats().extensions_failed > 0);
    assert!(!kept.is_lost() && kept.renewals() == 0);
    (0..2).for_each(|i| masters[i].thaw().unwrap());
    within(TTL, "a renewal has succeeded", || kept.renewals() > 0);
    assert!(kept.remaining() > TTL / 2);
    assert!(kept.unlock().unwrap().was_held());
    keys(&masters, 0);
}

#[test]
fn lock_that_is_gone_from_a_quorum_is_lost_at_once() {
    let (masters, redlock) = start(3);
    let (how, losses) = telling(KeepAlive::default());
    let kept = keep(&redlock, KEY, SHORT, how);
    (0..2).for_each(|i| masters[i].flush().unwrap());
    let loss = losses.recv_timeout(SHORT).unwrap();
    assert_eq!((loss.cause, loss.remaining), (LossCause::Gone, Duration::ZERO), "{loss}");
    assert!(loss.error.is_some_and(|error| error.is_expired()));
    assert!(kept.is_lost() && !kept.is_valid() && kept.remaining().is_zero());
    assert_eq!(kept.loss().unwrap().cause, LossCause::Gone);
    // Somebody else has it already.
    let _other = redlock.try_lock_for(KEY, TTL, SOON);
    let guard = kept.stop();
    assert!(!guard.is_valid(), "R22");
    assert!(!guard.unlock().unwrap().was_held());
}

#[test]
fn slow_caps_are_told_with_validity_left() {
    let (masters, redlock) = start(3);
    let (often, often_told) = telling(KeepAlive::default().renewals_max(2));
    let (long, long_told) = telling(KeepAlive::default().lifetime_max(SHORT));
    let often = keep(&redlock, "often", SHORT, often);
    let long = keep(&redlock, "long", SHORT, long);
    let told = [(often_told, LossCause::RenewalsMax), (long_told, LossCause::LifetimeMax)];
    for (losses, cause) in told {
        let loss = losses.recv_timeout(3 * SHORT).unwrap();
        assert_eq!(loss.cause, cause, "{loss}");
        assert!(loss.remaining > SHORT / 3, "{loss}");
        assert!(loss.error.is_none());
    }
    assert_eq!(often.renewals(), 2);
    assert!(often.is_lost() && long.is_lost());
    // A lock that is lost is released as any other.
    drop(often);
    drop(long);
    keys(&masters, 0);
}

#[test]
fn slow_notice_can_be_asked_for() {
    let (masters, redlock) = start(3);
    let (how, losses) = telling(KeepAlive::default().notice(SHORT / 3));
    let kept = keep(&redlock, KEY, SHORT, how);
    masters.iter().for_each(|master| master.freeze().unwrap());
    let loss = losses.recv_timeout(2 * SHORT).unwrap();
    assert_eq!(loss.cause, LossCause::Unavailable, "{loss}");
    assert!(loss.remaining <= SHORT / 3 && loss.remaining > SHORT / 10, "{loss}");
    assert!(kept.is_lost() && kept.is_valid());
    masters.iter().for_each(|master| master.thaw().unwrap());
    drop(kept);
    redlock.shutdown(SOON);
    keys(&masters, 0);
}

/// The lock is as it was, and in the error.
#[test]
#[allow(unsafe_code)]
fn thread_that_cannot_be_started_gives_the_lock_back() {
    alone("thread_that_cannot_be_started_gives_the_lock_back", || {
        let (masters, redlock) = start(3);
        let lock = redlock.try_lock(KEY, TTL).unwrap();
        let limit = |bytes: u64| {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: it reads a value that is there.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        };
        // Not enough for a stack.
        limit((status_figure("VmSize") + 512) * 1024);
        let error = lock.keep_alive(KeepAlive::default()).unwrap_err();
        limit(libc::RLIM_INFINITY);
        assert!(matches!(error.kind(), KeepAliveErrorKind::Thread(_)), "{error}");
        let lock = error.into_guard();
        assert!(lock.is_valid());
        let kept = lock.keep_alive(KeepAlive::default()).unwrap();
        assert!(kept.unlock().unwrap().was_held());
        keys(&masters, 0);
    });
}

#[test]
fn slow_callback_that_panics_spares_the_thread_and_other_locks() {
    // So many that some are told in one turn of the thread.
    const LOST: usize = 300;
    let (_masters, redlock) = start(3);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let how = KeepAlive::default().renewals_max(0).on_loss(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        // As a panic does, without a word.
        resume_unwind(Box::new("the holder is at his wits' end"));
    });
    let other = keep(&redlock, "other", SHORT, KeepAlive::default());
    let lost: Vec<_> =
        (0..LOST).map(|i| keep(&redlock, &format!("job:{i}"), SHORT, how.clone())).collect();
    within(SHORT, "all are told", || calls.load(Ordering::Relaxed) == LOST);
    let renewals = other.renewals();
    within(SHORT, "the other is renewed", || other.renewals() > renewals + 1);
    assert!(other.unlock().unwrap().was_held());
    drop(lost);
}

/// One callback does not return; the others' locks are renewed, and further losses are told in time.
#[test]
fn callback_that_does_not_return_delays_no_renewal_and_no_callback() {
    let (_masters, redlock) = start(3);
    let calm = keep(&redlock, "calm", SHORT, KeepAlive::default());
    let ((to_begin, begun), (to_end, end)) = (mpsc::channel(), mpsc::channel::<()>());
    let end = Mutex::new(end);
    let slow = KeepAlive::default().renewals_max(0).on_loss(move |_| {
        to_begin.send(()).unwrap();
        let _ = end.lock().unwrap().recv();
    });
    let slow = keep(&redlock, "slow", SHORT, slow);
    begun.recv_timeout(3 * SHORT).expect("the loss is told");
    let (how, losses) = telling(KeepAlive::default().renewals_max(0));
    let third = keep(&redlock, "third", SHORT, how);
    let loss = losses.recv_timeout(3 * SHORT).expect("the loss is told");
    assert!(!loss.remaining.is_zero(), "it is told in time");
    let renewals = calm.renewals();
    within(SHORT, "the other is renewed", || calm.renewals() > renewals + 1);
    drop(to_end);
    drop((slow, third));
    assert!(calm.unlock().unwrap().was_held());
}

/// It may give up the lock that it is told of, and keep another.
#[test]
fn slow_callback_may_use_the_client() {
    let (masters, redlock) = start(3);
    let slot = Arc::new(Mutex::new(None));
    let (held, again) = (Arc::clone(&slot), redlock.clone());
    let how = KeepAlive::default().renewals_max(0).on_loss(move |_| {
        let lost: KeptLock = held.lock().unwrap().take().unwrap();
        let _ = lost.unlock().unwrap();
        *held.lock().unwrap() = Some(keep(&again, "another", SHORT, KeepAlive::default()));
    });
    *slot.lock().unwrap() = Some(keep(&redlock, KEY, SHORT, how));
    let renewals = || slot.lock().unwrap().as_ref().map_or(0, KeptLock::renewals);
    within(3 * SHORT, "the other is renewed", || renewals() > 1);
    drop(slot.lock().unwrap().take());
    keys(&masters, 0);
}

/// R30: whatever the renewals are at, release wins.
#[test]
fn slow_alone_locks_that_are_given_up_while_they_are_renewed_leave_no_key_and_no_renewal() {
    let _turn = heavy();
    let (masters, redlock) = start(3);
    // So short that some renewal is nearly always under way.
    let ttl = Duration::from_millis(60);
    let watch = Stopwatch::start();
    let mut rounds = 0;
    while watch.elapsed() < Duration::from_secs(3) {
        thread::scope(|scope| {
            for thread in 0..3 {
                let redlock = &redlock;
                scope.spawn(move || {
                    for i in 0..20 {
                        let resource = format!("job:{thread}:{i}");
                        let Ok(lock) = redlock.try_lock(&resource, ttl) else { continue };
                        let Ok(kept) = lock.keep_alive(KeepAlive::default()) else { continue };
                        pause(Duration::from_millis(15 + i % 7));
                        match i % 4 {
                            0 => drop(kept),
                            1 => drop(kept.unlock().unwrap()),
                            2 => drop(kept.stop()),
                            _ => drop(kept.stop().unlock().unwrap()),
                        }
                    }
                });
            }
        });
        rounds += 1;
    }
    redlock.shutdown(SOON);
    let extended = redlock.stats().extended;
    assert!(extended > rounds, "{extended} renewals in {rounds} rounds");
    keys(&masters, 0);
    let before: Vec<_> = masters.iter().map(scripts).collect();
    pause(3 * ttl);
    assert_eq!(before, masters.iter().map(scripts).collect::<Vec<_>>(), "no renewal follows");
}

/// R30: a renewal that frozen masters do not answer is not waited for.
#[test]
fn slow_giving_up_during_a_renewal_waits_for_no_answer_to_it() {
    const TTL: Duration = Duration::from_secs(9);
    let masters = Masters::start(3).unwrap();
    let redlock = all_ready(&patient(masters.urls()));
    let kept: Vec<_> =
        (0..3).map(|i| keep(&redlock, &format!("job:{i}"), TTL, KeepAlive::default())).collect();
    masters.iter().for_each(|master| master.freeze().unwrap());
    // With a timeout that nobody waits for, each renewal is under way until the deadline.
    within(TTL, "all are being renewed", || redlock.nodes().iter().all(|node| node.in_flight >= 3));
    let mut kept = kept.into_iter();
    let (took, guard) = timed(|| kept.next().unwrap().stop());
    assert!(took < SOON && guard.is_valid(), "{took:?}");
    let (took, ()) = timed(|| drop(kept.next()));
    assert!(took < SOON, "{took:?}");
    let unlocked = thread::spawn(move || kept.next().unwrap().unlock());
    masters.iter().for_each(|master| master.thaw().unwrap());
    assert!(unlocked.join().unwrap().unwrap().was_held());
    assert!(guard.unlock().unwrap().was_held());
    keys(&masters, 0);
}

#[test]
fn slow_stopped_lock_is_renewed_no_more_and_ends() {
    let (masters, redlock) = start(3);
    let kept = keep(&redlock, KEY, SHORT, KeepAlive::default());
    within(SHORT, "it is renewed", || kept.renewals() > 0);
    let guard = kept.stop();
    assert!(guard.is_valid());
    let renewed = scripts(&masters[0]);
    within(2 * SHORT, "it is over", || !guard.is_valid());
    assert_eq!(scripts(&masters[0]), renewed);
    keys(&masters, 0);
    // Kept alive again, it is refused, and given back.
    let error = guard.keep_alive(KeepAlive::default()).unwrap_err();
    assert_eq!(error.kind(), KeepAliveErrorKind::Lock(LockErrorKind::Expired));
    assert!(error.to_string().contains("expired") && !format!("{error:?}").is_empty());
    assert!(!error.into_guard().is_valid());
}

#[test]
fn stopped_lock_can_be_extended_and_kept_again() {
    let (_masters, redlock) = start(3);
    let mut kept = keep(&redlock, KEY, SHORT, KeepAlive::default());
    for _ in 0..20 {
        let mut guard = kept.stop();
        guard.extend(SHORT).unwrap();
        kept = guard.keep_alive(KeepAlive::default()).unwrap();
    }
    within(SHORT, "it is renewed", || kept.renewals() > 0);
    assert!(kept.unlock().unwrap().was_held());
}

#[test]
fn slow_thread_begins_with_the_first_kept_lock_and_ends_after_the_last() {
    alone("slow_thread_begins_with_the_first_kept_lock_and_ends_after_the_last", || {
        let (masters, redlock) = start(3);
        let other = all_ready(&usual(&masters));
        assert_eq!(keepers(), 0);
        for round in 0..3 {
            let first = keep(&redlock, "first", TTL, KeepAlive::default());
            let second = keep(&redlock.clone(), "second", TTL, KeepAlive::default());
            // It names itself.
            soon("one thread for both", || keepers() == 1);
            let third = keep(&other, "third", TTL, KeepAlive::default());
            soon("one more for another client", || keepers() == 2);
            drop((first, third));
            soon("one thread", || keepers() == 1);
            assert!(second.unlock().unwrap().was_held(), "{round}");
            soon("no thread", || keepers() == 0);
        }
        // Begun and ended many times, and never more than one.
        for i in 0..500 {
            let kept = keep(&redlock, KEY, TTL, KeepAlive::default());
            assert!(keepers() <= 1);
            match i % 2 {
                0 => drop(kept.unlock().unwrap()),
                _ => drop(kept.stop().unlock().unwrap()),
            }
        }
        let kept = keep(&redlock, KEY, TTL, KeepAlive::default());
        drop(redlock);
        assert!(kept.unlock().unwrap().was_held());
        soon("no thread", || keepers() == 0);
        keys(&masters, 0);
    });
}

/// A lock with a shorter TTL than all others has its turn in time.
#[test]
fn slow_latecomer_with_a_short_ttl_is_renewed_in_time() {
    let (masters, redlock) = start(3);
    let long = keep(&redlock, "long", TTL, KeepAlive::default());
    let short = keep(&redlock, "short", SHORT / 2, KeepAlive::default());
    within(2 * SHORT, "it is renewed", || short.renewals() >= 3);
    assert!(short.unlock().unwrap().was_held());
    assert!(long.unlock().unwrap().was_held());
    keys(&masters, 0);
}

/// R24: the child has no thread, is told so, and releases nothing of its parent's.
#[test]
#[allow(unsafe_code)]
fn slow_forked_child_keeps_nothing_alive() {
    alone("slow_forked_child_keeps_nothing_alive", || {
        let (masters, redlock) = start(3);
        let kept = keep(&redlock, KEY, SHORT, KeepAlive::default());
        let mut slot = Some((kept, keep(&redlock, "dropped", SHORT, KeepAlive::default())));
        // They keep the thread busy, so that it is in the middle of something.
        let busy = |i| keep(&redlock, &format!("busy:{i}"), SHORT / 6, KeepAlive::default());
        let busy: Vec<_> = (0..200).map(busy).collect();
        for round in 0..100 {
            pause(Duration::from_millis(5));
            // SAFETY: the child takes no lock of another thread's, which is what is tested, and
            // ends without unwinding further.
            let id = unsafe { libc::fork() };
            if id == 0 {
                // SAFETY: it only has the child killed, if it hangs.
                unsafe { libc::alarm(20) };
                let child = AssertUnwindSafe(|| {
                    let (kept, dropped) = slot.take().unwrap();
                    assert!(kept.is_lost() && !kept.is_valid() && kept.remaining().is_zero());
                    assert_eq!(kept.loss().unwrap().cause, LossCause::Forked);
                    assert_eq!(kept.renewals(), 0);
                    assert!(!format!("{kept:?}").is_empty());
                    drop(dropped);
                    assert_eq!(keepers(), 0);
                    match round % 2 {
                        0 => {
                            let error = kept.unlock().unwrap_err();
                            assert_eq!(error.kind(), LockErrorKind::Forked);
                        }
                        _ => {
                            let guard = kept.stop();
                            assert!(!guard.is_valid());
                            let error = guard.keep_alive(KeepAlive::default()).unwrap_err();
                            let forked = KeepAliveErrorKind::Lock(LockErrorKind::Forked);
                            assert_eq!(error.kind(), forked);
                        }
                    }
                    assert_eq!(keepers(), 0);
                });
                let result = catch_unwind(child);
                // SAFETY: it does not return, and runs nothing of the parent's on its way.
                unsafe { libc::_exit(i32::from(result.is_err())) };
            }
            let mut status = 0;
            // SAFETY: the child is ours, and the status is written to a place that is there.
            let waited = unsafe { libc::waitpid(id, &raw mut status, 0) };
            assert_eq!((waited, status), (id, 0), "the child panicked; see above");
        }
        drop(busy);
        let (kept, dropped) = slot.take().unwrap();
        let renewals = kept.renewals();
        within(SHORT, "the parent renews", || kept.renewals() > renewals);
        assert!(kept.unlock().unwrap().was_held() && dropped.unlock().unwrap().was_held());
        assert_eq!(redlock.stats().disconnected, 0);
        keys(&masters, 0);
    });
}

/// Others go on with their operations while the thread waits for its own.
#[test]
fn slow_calls_of_other_threads_mix_with_renewals() {
    let (masters, redlock) = start(3);
    let ttl = Duration::from_secs(2);
    let kept: Vec<_> =
        (0..200).map(|i| keep(&redlock, &format!("kept:{i}"), ttl, KeepAlive::default())).collect();
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        for thread in 0..4 {
            let redlock = &redlock;
            scope.spawn(move || {
                while watch.elapsed() < 2 * ttl {
                    let lock = redlock.try_lock(format!("other:{thread}"), TTL).unwrap();
                    assert!(lock.unlock().unwrap().was_held());
                }
            });
        }
    });
    let lost = kept.iter().filter(|kept| kept.is_lost()).count();
    assert_eq!(lost, 0);
    for kept in kept {
        assert!(kept.unlock().unwrap().was_held());
    }
    keys(&masters, 0);
}

type Failure = Box<dyn std::error::Error>;

/// An application's own error: it needs one conversion.
#[derive(Debug)]
struct Refused(ErrorKind);

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused(error.kind())
    }
}

/// The work runs while the lock is held and renewed, and not at the same time anywhere else.
#[test]
fn slow_work_with_a_lock_is_renewed_and_its_lock_is_released() {
    let (masters, redlock) = start(3);
    let other = all_ready(&patient(masters.urls()));
    let ttl = Duration::from_secs(2);
    let done = redlock.with_lock(KEY, ttl, PATIENT, |held| -> Result<u32, Failure> {
        within(PATIENT, "it is renewed", || held.renewals() >= 3);
        held.check()?;
        assert!(other.try_lock(KEY, TTL).unwrap_err().is_contended());
        Ok(7)
    });
    assert_eq!(done.unwrap(), 7);
    drop(other.try_lock_for(KEY, TTL, PATIENT).unwrap());

    // The work's own error comes back, and the lock is released.
    let failed =
        redlock.with_lock(KEY, TTL, PATIENT, |_| -> Result<(), Failure> { Err("no".into()) });
    assert_eq!(failed.unwrap_err().to_string(), "no");
    drop(other.try_lock_for(KEY, TTL, PATIENT).unwrap());

    // Somebody else has it: the work is not called.
    let lock = other.try_lock(KEY, TTL).unwrap();
    let wait = Duration::from_secs(1);
    let refused = redlock.with_lock(KEY, TTL, wait, |_| -> Result<(), Refused> { unreachable!() });
    assert_eq!(refused.unwrap_err().0, ErrorKind::Contended);
    drop(lock);
}

/// The masters are gone while the work runs: that it succeeds says nothing.
#[test]
fn slow_work_whose_lock_is_lost_has_failed() {
    let (masters, redlock) = start(3);
    let ttl = Duration::from_secs(2);
    let mut was_checked = false;
    let done = redlock.with_lock(KEY, ttl, PATIENT, |held| -> Result<(), Failure> {
        masters.iter().for_each(|master| master.freeze().unwrap());
        within(PATIENT, "the loss is noticed", || held.check().is_err());
        was_checked = true;
        Ok(())
    });
    let Error::Lost(loss) = *done.unwrap_err().downcast::<Error>().unwrap() else {
        panic!("it was acquired");
    };
    assert!(was_checked && loss.resource.as_bytes() == KEY.as_bytes(), "{loss}");
    assert_ne!(std::io::Error::from(loss).kind(), std::io::ErrorKind::Other);
}

/// The keys were deleted while the work ran, which no renewal has noticed yet.
#[test]
fn work_whose_lock_is_not_there_at_the_end_has_failed() {
    let (masters, redlock) = start(3);
    let done = redlock.with_lock(KEY, TTL, PATIENT, |_| -> Result<(), Failure> {
        masters.iter().for_each(|master| {
            master.query(&[b"DEL", KEY.as_bytes()]).unwrap();
        });
        Ok(())
    });
    let Error::Lost(loss) = *done.unwrap_err().downcast::<Error>().unwrap() else {
        panic!("it was acquired");
    };
    let text = format!("lost \"{KEY}\", 0ns left: too few masters still hold this lock's token");
    assert_eq!(loss.to_string(), text);
}
