//! A logger that panics, on whatever thread: that is the affair of that thread alone.
//!
//! A process has one logger, so each test has a process of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use muxlock::settings::RestartGuard;
use testbed::scripted::{HANDSHAKE, Scripted};
use testbed::{SOON, TTL, all_ready, alone, patient, pause, within};

/// Threads with this name wait in the logger until they are let go, and panic then.
const HELD: &str = "held";
/// How many others panic.
static OTHERS: AtomicU32 = AtomicU32::new(0);
static IS_HELD: AtomicBool = AtomicBool::new(false);
static LET_GO: AtomicBool = AtomicBool::new(false);

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if !record.target().starts_with("muxlock") {
            return;
        }
        let less = |left: u32| left.checked_sub(1);
        let name = thread::current().name().unwrap_or_default().to_owned();
        let from =
            |left: &AtomicU32| left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        let panics = match name.as_str() {
            HELD => {
                IS_HELD.store(true, Ordering::SeqCst);
                while !LET_GO.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                true
            }
            "other" => from(&OTHERS),
            "extends" => true,
            _ => false,
        };
        assert!(!panics, "on purpose: {}", record.args());
    }

    fn flush(&self) {}
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| log::set_logger(&Logger).expect("there is no other logger"));
    log::set_max_level(LevelFilter::Trace);
}

/// Ends its first connection when it is told to, and takes no other.
fn mortal(dies: &Arc<AtomicBool>) -> Scripted {
    let dies = Arc::clone(dies);
    Scripted::start(move |peer| {
        if peer.index() > 0 {
            return Ok(());
        }
        peer.serve_normally(Some(HANDSHAKE))?;
        while !dies.load(Ordering::SeqCst) {
            peer.pause(Duration::from_millis(5))?;
        }
        peer.reset()
    })
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<Result<T, ()>> {
    let run = move || catch_unwind(AssertUnwindSafe(run)).map_err(drop);
    thread::Builder::new().name(name.into()).spawn(run).unwrap()
}

#[test]
fn slow_lock_of_a_thread_that_panicked_is_handed_to_nobody_else() {
    alone("slow_lock_of_a_thread_that_panicked_is_handed_to_nobody_else", || {
        install();
        let dies = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
        let servers = [
            mortal(&dies[0]),
            mortal(&dies[1]),
            Scripted::well_behaved(),
            Scripted::well_behaved(),
            Scripted::well_behaved(),
        ];
        let redlock = all_ready(&patient(servers.iter().map(Scripted::url)));
        drop(redlock.try_lock("first", TTL).unwrap());
        dies[0].store(true, Ordering::SeqCst);
        pause(Duration::from_millis(1_200));

        // What comes now is found, and told to the logger, by the thread that looks first.
        let lock = |thread: &str, name: &'static str| {
            let redlock = redlock.clone();
            spawn(thread, move || redlock.try_lock(name, TTL))
        };
        let held = lock(HELD, "a");
        within(TTL, "it is in the logger", || IS_HELD.load(Ordering::SeqCst));
        dies[1].store(true, Ordering::SeqCst);
        // The server looks each 5 ms; the others would be done before.
        pause(Duration::from_millis(100));
        OTHERS.store(1, Ordering::SeqCst);
        let others = [lock("other", "b"), lock("other", "c")];
        pause(Duration::from_millis(300));
        LET_GO.store(true, Ordering::SeqCst);
        assert!(held.join().unwrap().is_err(), "it was to panic");
        let others = others.map(|other| other.join().unwrap());
        assert_eq!(
            others.iter().filter(|other| other.is_err()).count(),
            1,
            "one more was to panic"
        );

        let mut wrong = Vec::new();
        for round in 0..20 {
            let threads: Vec<_> = (0..6)
                .map(|i| {
                    let (redlock, name) = (redlock.clone(), format!("later:{round}:{i}"));
                    spawn("later", move || (name.clone(), redlock.try_lock(&name, TTL)))
                })
                .collect();
            for thread in threads {
                match thread.join().unwrap() {
                    Ok((name, Ok(guard))) if guard.resource().as_bytes() == name.as_bytes() => {}
                    Ok((name, other)) => {
                        wrong.push(format!("asked for {name}, was given {other:?}"))
                    }
                    Err(()) => wrong.push("panicked".into()),
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

/// It was on its way to the masters, and is given up.
#[test]
fn slow_lock_whose_extension_panics_is_over() {
    alone("slow_lock_whose_extension_panics_is_over", || {
        install();
        let dies = Arc::new(AtomicBool::new(false));
        let servers = [mortal(&dies), Scripted::well_behaved(), Scripted::well_behaved()];
        let redlock = all_ready(&patient(servers.iter().map(Scripted::url)));
        let mut lock = redlock.try_lock("extended", TTL).unwrap();
        dies.store(true, Ordering::SeqCst);
        pause(Duration::from_millis(1_200));
        let extend = spawn("extends", move || {
            let result = catch_unwind(AssertUnwindSafe(|| lock.extend(TTL)));
            (result.is_err(), lock)
        });
        let (has_panicked, lock) = extend.join().unwrap().unwrap();
        assert!(has_panicked && !lock.is_valid() && lock.remaining().is_zero());
        assert_eq!(lock.resource().as_bytes(), b"extended");
    });
}

/// Every node is in quarantine, and says so as soon as it is connected.
#[test]
fn results_of_others_are_not_lost_when_the_log_panics() {
    alone("results_of_others_are_not_lost_when_the_log_panics", || {
        install();
        for _ in 0..5 {
            let servers: Vec<_> = (0..5).map(|_| Scripted::well_behaved()).collect();
            let builder = patient(servers.iter().map(Scripted::url));
            let builder = builder.restart_guard(RestartGuard::Uptime);
            let redlock = builder.max_ttl(Duration::from_secs(200_000)).build().unwrap();
            OTHERS.store(3, Ordering::SeqCst);
            let lock = |i: usize| {
                let redlock = redlock.clone();
                spawn("other", move || redlock.try_lock(format!("{i}"), TTL).map(drop))
            };
            let threads: Vec<_> = (0..6).map(lock).collect();
            let is_over = || threads.iter().all(JoinHandle::is_finished);
            within(SOON, "each thread has its result, or has panicked", is_over);
            OTHERS.store(0, Ordering::SeqCst);
        }
    });
}
