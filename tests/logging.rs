//! A logger that panics in the middle of what the library does: nothing is taken for anything else
//! afterwards.

#[allow(dead_code)]
mod support;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use muxlock::KeepAlive;
use support::scripted::{HANDSHAKE, Scripted};
use support::{PATIENT, TTL, all_ready, patient, pause, timed, within};

/// After what the client does at once.
const LATER: Duration = Duration::from_millis(100);

thread_local! {
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

/// How often it is still to panic on the thread that keeps locks alive.
static KEEPER_PANICS: AtomicU32 = AtomicU32::new(0);

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let less = |left: u32| left.checked_sub(1);
        let is_keeper = std::thread::current().name() == Some("muxlock-keeper");
        let panics = match is_keeper {
            true => KEEPER_PANICS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok(),
            false => PANICS.replace(false),
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

/// R17: the first node's connection turns out to be lost while a command is being sent to all, and
/// telling the log of it panics: the others were noted to have been sent what they were not.
#[test]
fn panic_while_sending_leaves_no_reply_to_be_taken_for_another() {
    install();
    let resetting = Scripted::start(|peer| {
        peer.serve_normally(Some(HANDSHAKE))?;
        match peer.index() {
            0 => {
                peer.pause(LATER)?;
                peer.reset()
            }
            _ => peer.serve_normally(None),
        }
    });
    let others = [Scripted::well_behaved(), Scripted::well_behaved()];
    let urls: Vec<String> =
        [&resetting, &others[0], &others[1]].into_iter().map(Scripted::url).collect();
    let redlock = all_ready(&patient(&urls));
    // The connection is reset when nobody looks.
    redlock.try_lock("first", TTL).unwrap().unlock().unwrap();
    pause(LATER * 2);

    PANICS.set(true);
    let mut panicked = 0;
    for i in 0..20 {
        let name = format!("second:{i}");
        let lock = AssertUnwindSafe(|| redlock.try_lock(&name, TTL));
        let (took, attempt) = timed(|| catch_unwind(lock));
        assert!(took < PATIENT / 2, "nobody waits for what was not sent: {took:?}");
        match attempt {
            Err(_) => panicked += 1,
            Ok(lock) => drop(lock),
        }
    }
    assert_eq!(panicked, 1, "the log is told of a connection that is lost");

    let holder = all_ready(&patient(&urls));
    let held = holder.try_lock("held", TTL).unwrap();
    for i in 0..20 {
        assert!(redlock.try_lock("held", TTL).unwrap_err().is_contended());
        within(PATIENT / 2, "the next lock is granted", || {
            redlock.try_lock(format!("third:{i}"), TTL).is_ok_and(|lock| lock.unlock().is_ok())
        });
    }
    assert!(held.unlock().unwrap().was_held());
}

/// The connections of all nodes end one after the other, and telling the log of it panics on the
/// thread that renews: it goes on, and no lock is lost.
#[test]
fn panic_while_renewing_spares_the_thread_and_its_locks() {
    install();
    let resetting = || {
        Scripted::start(|peer| {
            peer.serve_normally(Some(HANDSHAKE))?;
            match peer.index() {
                0 => {
                    peer.serve_normally(Some(1))?;
                    peer.pause(LATER)?;
                    peer.reset()
                }
                _ => peer.serve_normally(None),
            }
        })
    };
    let servers = [resetting(), resetting(), Scripted::well_behaved()];
    let redlock = all_ready(&patient(servers.iter().map(Scripted::url)));
    let ttl = Duration::from_secs(3);
    let keep =
        |name| redlock.try_lock(name, ttl).unwrap().keep_alive(KeepAlive::default()).unwrap();
    KEEPER_PANICS.store(2, Ordering::Relaxed);
    let kept = keep("kept");
    within(ttl, "it has panicked", || KEEPER_PANICS.load(Ordering::Relaxed) < 2);
    within(ttl, "the lock is renewed all the same", || kept.renewals() >= 2);
    let other = keep("other");
    within(ttl, "so is another", || other.renewals() >= 1);
    assert!(!kept.is_lost());
    assert!(kept.unlock().unwrap().was_held() && other.unlock().unwrap().was_held());
}
