//! One contender: what it is told to do, what it tells of it, and the process that does it.

use std::env;
use std::fmt;
use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use muxlock::settings::{RestartGuard, Retry, Waiting};
use muxlock::{Builder, LockErrorKind, LockGuard, Redlock, Waiter};
use testbed::{PATIENT, SOON, TTL, all_ready, pause, report_to_parent};

pub const KEY: &str = "invoice:42";
/// How the parent passes a part to its child.
pub const PART_VARIABLE: &str = "MUXLOCK_TEST_PART";
/// No test needs more of a contender.
const THREADS_MAX: usize = 64;
/// A machine that is busy is not a master that is lost.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);

/// What a contender does again and again: it waits for the lock, holds it, and gives it back.
#[derive(Debug, Clone)]
pub struct Part {
    pub urls: Vec<String>,
    pub waiting: Waiting,
    pub node_timeout: Duration,
    pub ttl: Duration,
    pub hold: Duration,
    /// Between a release and the next wait.
    pub pause: Duration,
    /// The least delay before a refused round is repeated; the usual one if not set.
    pub retry: Option<Duration>,
    pub threads: usize,
    /// The threads are spread over so many keys.
    pub keys: usize,
    /// The lock of this number is never given back.
    pub keeps: Option<usize>,
}

impl Part {
    pub fn new(urls: Vec<String>, waiting: Waiting) -> Part {
        Part {
            urls,
            waiting,
            node_timeout: NODE_TIMEOUT,
            ttl: TTL,
            hold: Duration::from_millis(1),
            pause: Duration::ZERO,
            retry: None,
            threads: 1,
            keys: 1,
            keeps: None,
        }
    }

    /// The key of this number.
    pub fn key(number: usize) -> String {
        if number == 0 { KEY.to_owned() } else { format!("{KEY}:{number}") }
    }

    pub fn builder(&self) -> Builder {
        let retry = self.retry.map_or(Retry::default(), |at| Retry::default().first(at).most(at));
        // The masters of a test were just started.
        Redlock::builder()
            .nodes(&self.urls)
            .retry(retry)
            .waiting(self.waiting)
            .node_timeout(self.node_timeout)
            .connect_timeout(SOON)
            .restart_guard(RestartGuard::Off)
    }

    fn parse(text: &str) -> Part {
        let mut words = text.split(' ');
        let mut word = || words.next().expect("the parent says all of it");
        let waiting = if word() == "queue" { Waiting::Queue } else { Waiting::Retry };
        let mut number = || word().parse::<u64>().expect("the parent writes numbers");
        let mut micros = || Duration::from_micros(number());
        let [node_timeout, ttl, hold, pause] = [micros(), micros(), micros(), micros()];
        let retry = Some(micros()).filter(|retry| !retry.is_zero());
        let mut count = || usize::try_from(number()).expect("no count is as large");
        let [threads, keys, keeps] = [count(), count(), count()];
        let keeps = keeps.checked_sub(1);
        let urls = words.map(str::to_owned).collect();
        Part { urls, waiting, node_timeout, ttl, hold, pause, retry, threads, keys, keeps }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.waiting == Waiting::Queue { "queue" } else { "retry" })?;
        let retry = self.retry.unwrap_or_default();
        for time in [self.node_timeout, self.ttl, self.hold, self.pause, retry] {
            write!(f, " {}", time.as_micros())?;
        }
        let keeps = self.keeps.map_or(0, |number| number + 1);
        write!(f, " {} {} {keeps} {}", self.threads, self.keys, self.urls.join(" "))
    }
}

/// A time that all processes of this machine read alike, since it was started.
pub fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("it was started in the past");
    let nanos = u32::try_from(time.tv_nsec).expect("less than a second");
    Duration::new(seconds, nanos)
}

/// What a contender tells its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Its client is connected; it waits for the sign to begin.
    Ready,
    /// A thread that has waited since `began` has the lock, until `until` at the latest.
    Granted {
        thread: usize,
        began: Duration,
        at: Duration,
        until: Duration,
    },
    /// The thread is about to give it back.
    Released {
        thread: usize,
        at: Duration,
    },
    /// The thread was told to end while it waited.
    GaveUp {
        began: Duration,
        at: Duration,
    },
    Failed(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = Duration::as_nanos;
        match self {
            Event::Ready => f.write_str("ready"),
            Event::Granted { thread, began, at, until } => {
                write!(f, "granted {thread} {} {} {}", nanos(began), nanos(at), nanos(until))
            }
            Event::Released { thread, at } => write!(f, "released {thread} {}", nanos(at)),
            Event::GaveUp { began, at } => write!(f, "gave-up {} {}", nanos(began), nanos(at)),
            Event::Failed(why) => write!(f, "failed {why}"),
        }
    }
}

impl Event {
    /// What a line says; `None` if it is cut off, as the last one of a contender that was killed.
    pub fn parse(line: &str) -> Option<Event> {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        if name == "failed" {
            return Some(Event::Failed(rest.to_owned()));
        }
        let numbers: Option<Vec<u64>> =
            rest.split_whitespace().map(|word| word.parse().ok()).collect();
        let numbers = numbers?;
        let time = |i: usize| Some(Duration::from_nanos(*numbers.get(i)?));
        let thread = || usize::try_from(*numbers.first()?).ok();
        Some(match name {
            "ready" => Event::Ready,
            "granted" => {
                Event::Granted { thread: thread()?, began: time(1)?, at: time(2)?, until: time(3)? }
            }
            "released" => Event::Released { thread: thread()?, at: time(1)? },
            "gave-up" => Event::GaveUp { began: time(0)?, at: time(1)? },
            _ => return None,
        })
    }
}

/// The process of a contender: a line of its input is the sign to begin, the end of its input the
/// sign to end.
pub fn contend() {
    let part = env::var(PART_VARIABLE).expect("the parent gives a part");
    let part = Part::parse(&part);
    assert!(part.threads <= THREADS_MAX);
    let redlock = all_ready(&part.builder());
    report_to_parent(Event::Ready);
    io::stdin().read_line(&mut String::new()).expect("the parent gives a sign");
    let waiter = redlock.waiter();
    let for_end = waiter.clone();
    thread::spawn(move || {
        // It is over, whether the parent has ended it or has died.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        for_end.cancel();
    });
    thread::scope(|scope| {
        for thread in 0..part.threads {
            let (part, waiter) = (&part, &waiter);
            scope.spawn(move || take_turns(thread, part, waiter));
        }
    });
    redlock.shutdown(SOON);
}

fn take_turns(thread: usize, part: &Part, waiter: &Waiter) {
    let key = Part::key(thread % part.keys);
    let mut grants = 0;
    while !waiter.is_cancelled() {
        let began = now();
        match waiter.redlock().try_lock_for(&key, part.ttl, PATIENT) {
            Ok(lock) => {
                hold(thread, began, part, lock, part.keeps == Some(grants));
                grants += 1;
            }
            Err(error) if error.kind() == LockErrorKind::Cancelled => {
                return report_to_parent(Event::GaveUp { began, at: now() });
            }
            Err(error) => report_to_parent(Event::Failed(error.to_string())),
        }
        if part.pause > Duration::ZERO {
            pause(part.pause);
        }
    }
}

fn hold(thread: usize, began: Duration, part: &Part, lock: LockGuard, is_kept: bool) {
    let at = now();
    let until = at + lock.remaining();
    report_to_parent(Event::Granted { thread, began, at, until });
    if is_kept {
        // Until the parent kills this process.
        loop {
            thread::park();
        }
    }
    if part.hold > Duration::ZERO {
        pause(part.hold);
    }
    report_to_parent(Event::Released { thread, at: now() });
    // A holder that was stopped may have lost it.
    let _ = lock.unlock();
}
