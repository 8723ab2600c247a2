//! Clients of another make: they know no queue, ask each master in turn, and ask again later.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use muxlock::testing::{Masters, Value};
use testbed::pause;

use crate::contender::now;
use crate::report::Turn;
use crate::scripts::RELEASE;

/// No test waits for it.
const TTL: Duration = Duration::from_secs(30);
/// For how long a poller that contends holds the lock.
const HOLD: Duration = Duration::from_millis(1);
/// The longest pause of a poller between two rounds, in microseconds; the shortest is a half.
const PAUSE_MICROS_MAX: u64 = 3_000;
/// What the processes of pollers count from.
const FIRST: usize = 1_000;

/// A lock of a poller.
pub struct Held<'a> {
    masters: &'a Masters,
    key: &'a str,
    token: String,
    pub granted: Duration,
}

/// One round; `None` if another has the lock.
#[track_caller]
pub fn try_take<'a>(masters: &'a Masters, key: &'a str) -> Option<Held<'a>> {
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    let token = format!("stranger-{}", ROUNDS.fetch_add(1, Ordering::Relaxed));
    let ttl = TTL.as_millis().to_string();
    let set = ["SET", key, &token, "NX", "PX", &ttl].map(str::as_bytes);
    let is_granted = |reply: std::io::Result<Value>| matches!(reply, Ok(Value::Status(_)));
    let votes = masters.iter().filter(|master| is_granted(master.query(&set))).count();
    let held = Held { masters, key, token, granted: now() };
    if votes > masters.len() / 2 {
        return Some(held);
    }
    held.give_back();
    None
}

impl Held<'_> {
    /// Returns the time right before.
    pub fn give_back(self) -> Duration {
        let at = now();
        for master in self.masters {
            let words = [b"EVAL", RELEASE.as_bytes(), b"1", self.key.as_bytes()];
            // A master that is frozen keeps its vote.
            let _ = master.query(&[words.as_slice(), &[self.token.as_bytes()]].concat());
        }
        at
    }
}

/// For as long as `meanwhile` takes, a poller contends for each key; returns their turns.
pub fn contend_for(masters: &Masters, keys: &[String], meanwhile: impl FnOnce()) -> Vec<Turn> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let contend = |number: usize| {
            let (key, is_over) = (keys[number].as_str(), &is_over);
            scope.spawn(move || contend(masters, FIRST + number, key, is_over))
        };
        let strangers: Vec<_> = (0..keys.len()).map(contend).collect();
        meanwhile();
        is_over.store(true, Ordering::SeqCst);
        strangers.into_iter().flat_map(|stranger| stranger.join().expect("no panic")).collect()
    })
}

fn contend(masters: &Masters, process: usize, key: &str, is_over: &AtomicBool) -> Vec<Turn> {
    let (mut turns, mut rounds) = (Vec::new(), process as u64);
    let mut began = now();
    while !is_over.load(Ordering::SeqCst) {
        if let Some(held) = try_take(masters, key) {
            let granted = held.granted;
            pause(HOLD);
            let ended = held.give_back();
            let key = key.to_owned();
            turns.push(Turn { process, thread: 0, key, began, granted, ended });
            began = now();
        }
        // Other times for each one and each round, and the same in every run.
        rounds += 1;
        let spread = rounds.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let micros = PAUSE_MICROS_MAX / 2 + spread % (PAUSE_MICROS_MAX / 2);
        pause(Duration::from_micros(micros));
    }
    turns
}
