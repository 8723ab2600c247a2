//! A logger that panics or blocks: that is the affair of the thread that logs, and nothing is taken
//! for anything else afterwards. A process has one logger, so each test has a process of its own.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once, mpsc};
use std::thread;
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use muxlock::{KeepAlive, Redlock, Standalone};
use testbed::scripted::{HANDSHAKE, Scripted, refused_addr};
use testbed::{PATIENT, SOON, TTL, all_ready, alone, patient, pause, soon, timed, within};

/// After what the client does at once.
const LATER: Duration = Duration::from_millis(100);

thread_local! {
    static PANICS: Cell<bool> = const { Cell::new(false) };
    static RECORDS: Cell<u32> = const { Cell::new(0) };
}

/// How often it is still to panic for the thread that watches renewals, and then to block.
static KEEPER_PANICS: AtomicU32 = AtomicU32::new(0);
static KEEPER_BLOCKS: AtomicBool = AtomicBool::new(false);

/// The thread of this name is blocked in the logger until it is let go.
const BLOCKED: &str = "blocked";
static IS_BLOCKED: AtomicBool = AtomicBool::new(false);
static LET_GO: AtomicBool = AtomicBool::new(false);

/// The records of level `warn` and `info`.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        RECORDS.set(RECORDS.get() + u32::from(record.target() == "muxlock"));
        if record.level() <= Level::Info {
            TOLD.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
        }
        let less = |left: u32| left.checked_sub(1);
        // The thread that watches renewals itself never writes.
        let is_for_keeper =
            thread::current().name().is_some_and(|name| name.starts_with("muxlock-"));
        let panics = match is_for_keeper {
            true => KEEPER_PANICS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok(),
            false => PANICS.replace(false),
        };
        assert!(!panics, "on purpose: {}", record.args());
        let blocks = is_for_keeper && KEEPER_BLOCKS.load(Ordering::Relaxed);
        if blocks || thread::current().name() == Some(BLOCKED) {
            IS_BLOCKED.store(true, Ordering::SeqCst);
            while !LET_GO.load(Ordering::SeqCst) {
                pause(Duration::from_millis(1));
            }
        }
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
    alone("panic_while_sending_leaves_no_reply_to_be_taken_for_another", || {
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
        let _ = redlock.try_lock("first", TTL).unwrap().unlock().unwrap();
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
    });
}

/// A guest has nobody else to write its records, and a logger that panics finds nothing half done.
#[test]
fn guest_writes_its_records_itself() {
    alone("guest_writes_its_records_itself", || {
        install();
        let url = format!("redis://{}", refused_addr());
        let mut locks = Standalone::new(Redlock::builder().node(url).config().unwrap()).unwrap();
        let op = locks.mux_mut().try_lock("resource", TTL).unwrap();
        PANICS.set(true);
        let mut panicked = 0;
        let before = RECORDS.get();
        let done = loop {
            if let Some(done) = locks.mux_mut().poll_done() {
                break done;
            }
            let turn = AssertUnwindSafe(|| {
                locks.mux_mut().flush();
                locks.wait(LATER).unwrap();
            });
            panicked += u32::from(catch_unwind(turn).is_err());
        };
        assert!(done.0 == op && panicked == 1 && RECORDS.get() > before);
    });
}

/// The connections of two nodes end one after the other while only renewals go on. The logger panics,
/// and then blocks for good: the locks are renewed all the same.
#[test]
fn slow_logger_that_panics_and_blocks_delays_no_renewal() {
    alone("slow_logger_that_panics_and_blocks_delays_no_renewal", || {
        install();
        // One loses its connection after the lock, the other after a renewal.
        let resetting = |after| {
            Scripted::start(move |peer| {
                peer.serve_normally(Some(HANDSHAKE))?;
                match peer.index() {
                    0 => {
                        peer.serve_normally(Some(after))?;
                        peer.pause(LATER)?;
                        peer.reset()
                    }
                    _ => peer.serve_normally(None),
                }
            })
        };
        let servers = [resetting(1), resetting(2), Scripted::well_behaved()];
        let redlock = all_ready(&patient(servers.iter().map(Scripted::url)));
        let ttl = Duration::from_secs(3);
        let keep =
            |name| redlock.try_lock(name, ttl).unwrap().keep_alive(KeepAlive::default()).unwrap();
        KEEPER_PANICS.store(1, Ordering::Relaxed);
        KEEPER_BLOCKS.store(true, Ordering::Relaxed);
        let let_go = LetGo;
        let kept = keep("kept");
        within(3 * ttl, "it has panicked", || KEEPER_PANICS.load(Ordering::Relaxed) == 0);
        within(3 * ttl, "it blocks", || IS_BLOCKED.load(Ordering::SeqCst));
        within(ttl, "the lock is renewed all the same", || kept.renewals() >= 2);
        let other = keep("other");
        within(ttl, "so is another", || other.renewals() >= 1);
        assert!(!kept.is_lost());
        assert!(kept.unlock().unwrap().was_held() && other.unlock().unwrap().was_held());
        drop(let_go);
    });
}

/// Lets the thread in the logger go, also if the test fails.
struct LetGo;

impl Drop for LetGo {
    fn drop(&mut self) {
        LET_GO.store(true, Ordering::SeqCst);
    }
}

/// Some master is down, and each try to connect to it is told to the log.
#[test]
fn slow_logger_that_blocks_a_thread_blocks_no_other() {
    alone("slow_logger_that_blocks_a_thread_blocks_no_other", || {
        install();
        let is_silent = Arc::new(AtomicBool::new(false));
        let server = || {
            let is_silent = Arc::clone(&is_silent);
            Scripted::start(move |peer| {
                while !is_silent.load(Ordering::SeqCst) {
                    peer.serve_normally(Some(1))?;
                }
                peer.pause(TTL)
            })
        };
        let servers = [server(), server()];
        let down = format!("redis://{}", refused_addr());
        let urls: Vec<String> = servers.iter().map(Scripted::url).chain([down]).collect();
        let redlock = patient(&urls).node_timeout(SOON).connect().unwrap();
        let ttl = Duration::from_secs(6);
        let (sender, losses) = mpsc::channel();
        let how = KeepAlive::default().on_loss(move |loss| sender.send(loss.remaining).unwrap());
        let kept = redlock.try_lock("kept", ttl).unwrap().keep_alive(how).unwrap();

        let blocked = thread::Builder::new().name(BLOCKED.into());
        let again_and_again = {
            let redlock = redlock.clone();
            move || {
                while !IS_BLOCKED.load(Ordering::SeqCst) {
                    drop(redlock.try_lock("blocked", TTL));
                }
            }
        };
        let blocked = blocked.spawn(again_and_again).unwrap();
        let let_go = LetGo;
        soon("it is in the logger", || IS_BLOCKED.load(Ordering::SeqCst));

        let other = {
            let redlock = redlock.clone();
            thread::spawn(move || timed(|| redlock.try_lock_for("other", TTL, SOON / 2)))
        };
        within(SOON, "another thread returns", || other.is_finished());
        let (took, result) = other.join().unwrap();
        assert!(took < SOON && result.unwrap().unlock().unwrap().was_held(), "{took:?}");
        let renewals = kept.renewals();
        within(ttl, "the lock is renewed", || kept.renewals() > renewals);
        is_silent.store(true, Ordering::SeqCst);
        let remaining = losses.recv_timeout(3 * ttl).expect("the loss is told");
        assert!(!remaining.is_zero(), "it is told in time");
        assert!(!blocked.is_finished());
        drop(let_go);
        blocked.join().unwrap();
    });
}

/// One `warn` with address and reason when a master stops voting, one `info` when it votes again.
#[test]
fn operator_is_told_when_a_master_stops_and_when_it_votes_again() {
    alone("operator_is_told_when_a_master_stops_and_when_it_votes_again", || {
        install();
        let refusing = Scripted::start(|peer| {
            // As long as it is refused, it is asked again.
            match peer.index() {
                0..3 => {
                    while peer.read_command()?.is_some() {
                        peer.reply(b"-NOAUTH Authentication required.\r\n")?;
                    }
                    Ok(())
                }
                _ => peer.serve_normally(None),
            }
        });
        let good = [Scripted::well_behaved(), Scripted::well_behaved()];
        let urls: Vec<String> =
            [&refusing, &good[0], &good[1]].into_iter().map(Scripted::url).collect();
        let redlock = patient(&urls).build().unwrap();
        soon("all vote", || {
            drop(redlock.try_lock("resource", TTL));
            redlock.nodes().iter().all(|node| node.state == muxlock::node::NodeState::Ready)
        });
        let address = urls[0].strip_prefix("redis://").unwrap();
        let told = TOLD.lock().unwrap().clone();
        let expected = [
            format!(
                "WARN {address}: does not vote: server error (not authenticated): \
                 NOAUTH Authentication required."
            ),
            format!("INFO {address}: votes again"),
        ];
        assert_eq!(told, expected);
    });
}

/// A number of masters that buys less than it could is named once.
#[test]
fn number_of_masters_is_told_what_it_costs() {
    alone("number_of_masters_is_told_what_it_costs", || {
        install();
        let servers = [(); 4].map(|()| Scripted::well_behaved());
        for count in 1..=4 {
            let redlock = patient(servers[..count].iter().map(Scripted::url)).build().unwrap();
            (0..3).for_each(|_| drop(redlock.try_lock("resource", TTL)));
        }
        let expected = [
            "WARN one master: while it is down, no lock can be taken",
            "WARN 2 masters tolerate no more failures than 1, which is 0: list an odd number",
            "WARN 4 masters tolerate no more failures than 3, which is 1: list an odd number",
        ];
        assert_eq!(*TOLD.lock().unwrap(), expected);
    });
}
