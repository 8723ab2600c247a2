//! Many readers and one writer, over real masters (K4 to K6).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use muxlock::Redlock;
use muxlock::testing::{Masters, Value};
use testbed::{Stopwatch, TTL, all_ready, heavy, patient, pause, soon};

use crate::scripts::{FREE_SHARED, TAKE_SHARED};

const KEY: &str = "catalogue";
const NODES: usize = 3;
const READERS: usize = 64;
const CLIENTS: usize = 4;
/// For how long a share is held; longer by a millisecond for each reader, so that they never all
/// end at once.
const HOLD: Duration = Duration::from_millis(50);
/// How long the writer waits: many times as long as any share is held.
const WAIT: Duration = Duration::from_secs(6);

#[track_caller]
fn start() -> Masters {
    Masters::start(NODES).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn nothing_is_left(masters: &Masters) {
    soon("no key is left", || masters.iter().all(|master| master.dbsize().unwrap() == 0));
}

/// What readers and writer count.
#[derive(Default)]
struct Counts {
    is_over: AtomicBool,
    shares: AtomicU64,
    reading: AtomicU64,
}

impl Counts {
    fn shares(&self) -> u64 {
        self.shares.load(Ordering::SeqCst)
    }

    fn hold(&self, reader: usize) {
        self.reading.fetch_add(1, Ordering::SeqCst);
        self.shares.fetch_add(1, Ordering::SeqCst);
        pause(HOLD + Duration::from_millis(reader as u64));
        self.reading.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Readers come and go while the writer does its part. `read` holds a share once, if it gets one.
fn beside_readers(read: impl Fn(usize, &Counts) + Sync, write: impl FnOnce(&Counts)) {
    let counts = &Counts::default();
    thread::scope(|scope| {
        let read = &read;
        for reader in 0..READERS {
            scope.spawn(move || {
                while !counts.is_over.load(Ordering::SeqCst) {
                    read(reader, counts);
                }
            });
        }
        // They end, whatever the writer finds.
        struct End<'a>(&'a Counts);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.is_over.store(true, Ordering::SeqCst);
            }
        }
        let _end = End(counts);
        soon("all readers have come and gone", || counts.shares() >= 2 * READERS as u64);
        write(counts);
    });
}

/// K6: readers that come and go keep no writer out.
#[test]
fn slow_alone_sixty_four_readers_let_a_waiting_writer_in() {
    let _turn = heavy();
    let masters = start();
    let clients: Vec<Redlock> = (0..CLIENTS).map(|_| all_ready(&patient(masters.urls()))).collect();
    let writer = all_ready(&patient(masters.urls()));
    let read = |reader: usize, counts: &Counts| {
        // It gives up in time for the end of the test.
        match clients[reader % CLIENTS].try_read_for(KEY, TTL, WAIT) {
            Ok(share) => {
                counts.hold(reader);
                assert!(share.unlock().unwrap().was_held());
            }
            Err(error) => assert!(error.is_contended() || error.is_timed_out(), "{error}"),
        }
    };
    beside_readers(read, |counts| {
        let (before, watch) = (counts.shares(), Stopwatch::start());
        let alone = writer.try_write_for(KEY, TTL, WAIT).unwrap();
        let meanwhile = counts.shares() - before;
        println!(
            "measured: {meanwhile} shares, and {:?}, until the writer has it",
            watch.elapsed()
        );
        assert_eq!(counts.reading.load(Ordering::SeqCst), 0, "readers beside the writer");
        pause(2 * HOLD);
        assert_eq!(counts.shares() - before, meanwhile, "a reader came in beside the writer");
        assert!(alone.unlock().unwrap().was_held());
        let after = counts.shares() + READERS as u64;
        soon("readers come in again", || counts.shares() >= after);
    });
    nothing_is_left(&masters);
}

/// The control: readers that look for the writer's sign at another key keep it out.
#[test]
fn slow_alone_control_readers_that_miss_the_sign_keep_a_writer_out() {
    let _turn = heavy();
    let masters = start();
    let writer = all_ready(&patient(masters.urls()));
    let read = |reader: usize, counts: &Counts| {
        let (token, ttl) = (format!("{reader:040}"), TTL.as_millis().to_string());
        let on_all = |script: &str| {
            let words = ["EVAL", script, "2", KEY, "another:intent", &token, &ttl, "0"];
            let words = words.map(str::as_bytes);
            let votes = masters.iter().map(|master| master.query(&words).unwrap());
            votes.filter(|vote| *vote == Value::Integer(1)).count()
        };
        if on_all(TAKE_SHARED) > NODES / 2 {
            counts.hold(reader);
        }
        on_all(FREE_SHARED);
    };
    beside_readers(read, |counts| {
        let before = counts.shares();
        let error = writer.try_write_for(KEY, TTL, WAIT).unwrap_err();
        println!("measured: {} shares, and the writer is refused", counts.shares() - before);
        assert!(error.is_contended(), "{error}");
    });
    nothing_is_left(&masters);
}

/// K5: shares of a process that was killed keep a writer out until they end, and no longer.
#[cfg(target_os = "linux")]
#[test]
fn slow_shares_of_a_killed_process_end() {
    use testbed::{Again, is_child, re_execute, report_to_parent};

    const NAME: &str = "slow_shares_of_a_killed_process_end";
    const URLS_VARIABLE: &str = "MUXLOCK_TEST_URLS";
    const SHORT: Duration = Duration::from_secs(3);
    if is_child(NAME) {
        let urls = std::env::var(URLS_VARIABLE).expect("the parent names the masters");
        let redlock = all_ready(&patient(urls.split(' ')));
        let _shares: Vec<_> = (0..READERS).map(|_| redlock.try_read(KEY, SHORT).unwrap()).collect();
        report_to_parent("they are held");
        loop {
            thread::park();
        }
    }
    let masters = start();
    let writer = all_ready(&patient(masters.urls()));
    let urls = masters.urls().join(" ");
    let mut readers = Again::start(re_execute(NAME).env(URLS_VARIABLE, urls));
    assert_eq!(readers.lines().next().as_deref(), Some("they are held"));
    readers.kill();
    assert!(writer.try_write(KEY, TTL).unwrap_err().is_contended(), "they are still held");
    let watch = Stopwatch::start();
    let mut pttls: Vec<_> = masters.iter().map(|it| it.pttl(KEY.as_bytes()).unwrap()).collect();
    pttls.sort_unstable();
    let left = Duration::from_millis(u64::try_from(pttls[NODES / 2]).expect("the key is there"));
    let alone = writer.try_write_for(KEY, TTL, left + WAIT).unwrap();
    println!("measured: the writer has it {:?} later, the shares had {left:?}", watch.elapsed());
    // A server's clock and ours may differ by the rounding of each.
    assert!(watch.elapsed() + Duration::from_millis(5) >= left, "beside shares that are held");
    assert!(alone.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}
