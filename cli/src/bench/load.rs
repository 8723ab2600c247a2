//! Takes and releases locks, on threads or in an event loop, and counts.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use muxlock::mio::{Events, Poll, Token};
use muxlock::node::{NodeOutcome, NodeState, NodeStatus};
use muxlock::proto::{Done, Lease, OpId};
use muxlock::unstable_tool::{ConfigExt, explained_start};
use muxlock::{Config, LockError, LockErrorKind, Multiplexer, Redlock, Released};

use super::spread::Spread;
use crate::stopwatch::{Stopwatch, pause};

/// How long an acquisition may be repeated.
const WAIT: Duration = Duration::from_secs(1);
/// How long the last releases may take.
const DRAIN: Duration = Duration::from_secs(2);
/// How long an idle loop sleeps at most: an hour has an end.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// How much to do.
pub struct Load {
    /// The prefix of the resources' names.
    pub prefix: String,
    pub length: Duration,
    pub ttl: Duration,
    /// Pairs a second, of all threads together.
    pub rate: Option<u32>,
    pub at_once: usize,
}

/// The measurements.
#[derive(Debug)]
pub struct Tally {
    pub acquire: Spread,
    pub release: Spread,
    pub pair: Spread,
    /// The failures, and how often each occurred.
    pub failed: BTreeMap<String, u64>,
    /// How often each master was in the first quorum.
    pub first: Vec<u64>,
    /// How often each master timed out in an attempt that failed.
    pub timed_out: Vec<u64>,
    /// The round trip to each master.
    pub round_trips: Vec<Option<Duration>>,
}

impl Tally {
    fn new(nodes: usize) -> Tally {
        Tally {
            acquire: Spread::new(),
            release: Spread::new(),
            pair: Spread::new(),
            failed: BTreeMap::new(),
            first: vec![0; nodes],
            timed_out: vec![0; nodes],
            round_trips: vec![None; nodes],
        }
    }

    fn add_all(&mut self, other: &Tally) {
        self.acquire.add_all(&other.acquire);
        self.release.add_all(&other.release);
        self.pair.add_all(&other.pair);
        for (what, count) in &other.failed {
            *self.failed.entry(what.clone()).or_default() += count;
        }
        let sum = |mine: &mut [u64], theirs: &[u64]| {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        };
        sum(&mut self.first, &other.first);
        sum(&mut self.timed_out, &other.timed_out);
    }

    fn acquired(&mut self, took: Duration, by: impl Iterator<Item = usize>) {
        self.acquire.add(took);
        by.for_each(|node| self.first[node] += 1);
    }

    fn released(&mut self, times: [Duration; 3], released: Result<Released, LockError>) {
        let [begun, acquired, now] = times;
        match released {
            Ok(released) if released.was_held() => {
                self.release.add(now.saturating_sub(acquired));
                self.pair.add(now.saturating_sub(begun));
            }
            Ok(_) => self.fail("a lock was gone before its release"),
            Err(error) => self.refuse(&error),
        }
    }

    fn refuse(&mut self, error: &LockError) {
        for report in error.nodes() {
            if matches!(report.outcome, NodeOutcome::TimedOut(_)) {
                self.timed_out[report.node] += 1;
            }
        }
        let what = match error.kind() {
            LockErrorKind::Contended => "another holder has the lock",
            LockErrorKind::Unavailable | LockErrorKind::TimedOut => "too few masters answered",
            LockErrorKind::Expired => "the quorum came too late",
            _ => "an operation was refused",
        };
        self.fail(what);
    }

    fn fail(&mut self, what: &str) {
        *self.failed.entry(what.to_owned()).or_default() += 1;
    }

    fn measured(&mut self, nodes: impl Iterator<Item = NodeStatus>) {
        self.round_trips = nodes.map(|node| node.latency).collect();
    }
}

/// When pairs begin.
struct Pace<'a> {
    load: &'a Load,
    started: Stopwatch,
    begun: AtomicU64,
}

impl Pace<'_> {
    fn new(load: &Load) -> Pace<'_> {
        Pace { load, started: Stopwatch::start(), begun: AtomicU64::new(0) }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// When the next pair is due. It counts from then, even if it begins later. `None` at the end.
    fn next(&self) -> Option<Duration> {
        let due = match self.load.rate {
            Some(rate) => {
                let before = self.begun.fetch_add(1, Ordering::Relaxed);
                Duration::from_secs(1).mul_f64(before as f64 / f64::from(rate))
            }
            None => self.now(),
        };
        (due < self.load.length).then_some(due)
    }
}

/// Each thread takes one lock at a time, with one client.
pub fn on_threads(redlock: &Redlock, nodes: usize, load: &Load) -> io::Result<Tally> {
    let pace = Pace::new(load);
    let one = &|i: usize| {
        let (resource, mut tally) = (format!("{}:{i}", load.prefix), Tally::new(nodes));
        while let Some(due) = pace.next() {
            pause(due.saturating_sub(pace.now()));
            match redlock.try_lock_for(&resource, load.ttl, WAIT) {
                Ok(lock) => {
                    let acquired = pace.now();
                    tally.acquired(acquired.saturating_sub(due), lock.granted_by());
                    let released = lock.unlock();
                    tally.released([due, acquired, pace.now()], released);
                }
                Err(error) => tally.refuse(&error),
            }
        }
        tally
    };
    let mut all = Tally::new(nodes);
    let started = thread::scope(|scope| {
        let start = |i| thread::Builder::new().spawn_scoped(scope, move || one(i));
        let threads: io::Result<Vec<_>> = (0..load.at_once).map(start).collect();
        for thread in threads? {
            all.add_all(&thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        Ok(())
    });
    started.map_err(|error: io::Error| io::Error::other(explained_start(&error)))?;
    redlock.shutdown(DRAIN);
    all.measured(redlock.nodes().into_iter());
    Ok(all)
}

/// One thread runs an event loop, in which many are under way.
pub fn in_flight(config: Config, load: &Load) -> io::Result<Tally> {
    let nodes = config.nodes();
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(nodes.max(16));
    let within = config.common().connect_timeout;
    let mut mux = Multiplexer::new(config, poll.registry(), Token(0))?;
    // Connecting is not measured.
    mux.connect();
    let is_waiting = |mux: &Multiplexer| mux.nodes().any(|node| node.state != NodeState::Ready);
    turn_while(is_waiting, &mut mux, &mut poll, &mut events, within)?;
    let pace = Pace::new(load);
    let mut turn = Turn {
        mux,
        tally: Tally::new(nodes),
        free: (0..load.at_once).collect(),
        under_way: HashMap::new(),
        next: pace.next(),
    };
    loop {
        turn.begin(&pace)?;
        turn.mux.flush();
        if turn.under_way.is_empty() && turn.next.is_none() {
            break;
        }
        let due = turn.next.filter(|_| !turn.free.is_empty());
        let due = due.map_or(SLEEP_MAX, |due| due.saturating_sub(pace.now()).min(SLEEP_MAX));
        let timeout = turn.mux.next_timeout().map_or(due, |timeout| timeout.min(due));
        wait(&mut poll, &mut events, timeout)?;
        turn.mux.handle_events(&events);
        turn.end(&pace);
    }
    // The answers of the masters that no quorum needed.
    let is_owed = |mux: &Multiplexer| mux.unanswered() > 0;
    turn_while(is_owed, &mut turn.mux, &mut poll, &mut events, DRAIN)?;
    let Turn { mux, mut tally, .. } = turn;
    tally.measured(mux.nodes());
    Ok(tally)
}

/// A pair that is under way.
struct Pair {
    slot: usize,
    begun: Duration,
    acquired: Duration,
}

struct Turn {
    mux: Multiplexer,
    tally: Tally,
    /// The numbers of the resources that are not in use.
    free: Vec<usize>,
    under_way: HashMap<OpId, Pair>,
    /// When the next pair begins.
    next: Option<Duration>,
}

impl Turn {
    fn begin(&mut self, pace: &Pace<'_>) -> io::Result<()> {
        let is_due = |due: &Duration| *due <= pace.now();
        while let (Some(begun), Some(slot)) = (self.next.filter(is_due), self.free.last().copied())
        {
            self.free.pop();
            let resource = format!("{}:{slot}", pace.load.prefix);
            let op = self.mux.try_lock_for(resource, pace.load.ttl, WAIT);
            let op = op.map_err(io::Error::other)?;
            self.under_way.insert(op, Pair { slot, begun, acquired: Duration::ZERO });
            self.next = pace.next();
        }
        Ok(())
    }

    fn end(&mut self, pace: &Pace<'_>) {
        while let Some((op, done)) = self.mux.poll_done() {
            let Some(pair) = self.under_way.remove(&op) else { continue };
            match done {
                Done::Acquired(Ok(lease)) => self.release(pair, lease, pace.now()),
                Done::Acquired(Err(error)) => {
                    self.tally.refuse(&error);
                    self.free.push(pair.slot);
                }
                Done::Released(released) => {
                    let times = [pair.begun, pair.acquired, pace.now()];
                    self.tally.released(times, released);
                    self.free.push(pair.slot);
                }
                // Nothing else is started.
                _ => {}
            }
        }
    }

    fn release(&mut self, pair: Pair, lease: Lease, now: Duration) {
        self.tally.acquired(now.saturating_sub(pair.begun), lease.granted_by());
        let op = self.mux.unlock(lease);
        self.under_way.insert(op, Pair { acquired: now, ..pair });
    }
}

/// Runs the loop until the condition holds or the time has passed.
fn turn_while(
    is_so: impl Fn(&Multiplexer) -> bool,
    mux: &mut Multiplexer,
    poll: &mut Poll,
    events: &mut Events,
    within: Duration,
) -> io::Result<()> {
    let started = Stopwatch::start();
    while is_so(mux) && started.elapsed() < within {
        let left = within.saturating_sub(started.elapsed()).min(SLEEP_MAX);
        wait(poll, events, mux.next_timeout().map_or(left, |timeout| timeout.min(left)))?;
        mux.handle_events(&*events);
    }
    Ok(())
}

fn wait(poll: &mut Poll, events: &mut Events, timeout: Duration) -> io::Result<()> {
    match poll.poll(events, Some(timeout)) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        other => other,
    }
}
