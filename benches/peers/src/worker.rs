//! The child process that is one client: it connects, warms up, says that it is ready, and measures
//! one turn for each `go`.

use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::clients::floor::Anew;
use crate::clients::muxlock::{Fencing, First, Guest, Idle, Kinds, Muxlock, Swapping};
use crate::clients::redis::Redis;
use crate::clients::redlock::Redlock;
use crate::clients::rslock::{Rslock, Tasks};
use crate::clients::{Failure, Locks, Waits, handed_off};
use crate::flight::Flight;
use crate::floor::Floor;
use crate::floor::many::Many;
use crate::floor::threads::Member;
use crate::job::{Client, Job, Sample, Work};
use crate::{clock, flight, memory, stats};

/// What a worker says when it stands ready.
pub const READY: &str = "ready";
/// What it is told for each turn.
pub const GO: &str = "go";

/// How long a client is used before anything is measured, and at the least for one pair.
pub const WARM_UP: Duration = Duration::from_millis(100);
/// Pairs before those that are counted.
const UNCOUNTED_PAIRS: usize = 100;
/// How long a client that has got the lock holds it.
const HOLD: Duration = Duration::from_millis(1);
/// From so many operations at once on, memory is theirs.
const LARGE: usize = 4_096;
/// The most pairs of one turn whose times are kept.
const TIMES: usize = 1 << 21;

/// Does what the arguments say.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let job = Job::from_args(args).ok_or("these are no arguments of a worker")?;
    // A client that hangs must not outlive whoever measures it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match job.client {
        Client::Floor => floor(&job),
        Client::Muxlock => muxlock(&job),
        Client::Rslock => rslock(&job),
        Client::Redlock => redlock(&job),
        Client::Redis => one_by_one(&job, Redis::for_job(&job)?),
    }
}

fn floor(job: &Job) -> Result<(), Failure> {
    match job.work {
        Work::InFlight => in_flight(job, || Ok(Many::connect(&job.ports, job.size, job.ttl_ms())?)),
        Work::Threads => threads(job, Member::for_threads(job)?),
        Work::First => one_by_one(job, Anew::for_job(job)),
        _ => one_by_one(job, Floor::for_job(job)?),
    }
}

fn muxlock(job: &Job) -> Result<(), Failure> {
    match job.work {
        Work::InFlight => in_flight(job, || Guest::for_job(job)),
        Work::Threads => threads(job, Muxlock::for_threads(job)?),
        Work::Swap => {
            let mut swapping = Swapping::for_threads(job)?;
            match swapping.pop() {
                Some(one) if swapping.is_empty() => one_by_one(job, one),
                last => threads(job, swapping.into_iter().chain(last).collect()),
            }
        }
        Work::HandOff => {
            let rivals: Result<_, _> = (0..job.size).map(|_| Muxlock::for_job(job)).collect();
            hand_off(job, rivals?)
        }
        Work::Resources => one_by_one(job, Muxlock::over_resources(job)?),
        Work::Fenced => one_by_one(job, Fencing::for_job(job)?),
        Work::First => one_by_one(job, First::for_job(job)),
        Work::Idle => idle(job),
        Work::Share | Work::Permit | Work::Set => one_by_one(job, Kinds::for_job(job)?),
        Work::Pair
        | Work::Acquire
        | Work::Drop
        | Work::Count
        | Work::CountUnguarded
        | Work::Steady => one_by_one(job, Muxlock::for_job(job)?),
    }
}

fn rslock(job: &Job) -> Result<(), Failure> {
    let tasks = match job.work {
        Work::InFlight | Work::Threads => Tasks::in_flight(job)?,
        Work::HandOff => {
            let tasks = Tasks::rivals(job)?;
            tasks.hand_off(WARM_UP, HOLD);
            return turns(|| Ok(tasks.hand_off(job.slice, HOLD)));
        }
        _ => return one_by_one(job, Rslock::for_job(job)?),
    };
    tasks.measure(WARM_UP);
    turns(|| Ok(tasks.measure(job.slice)))
}

fn redlock(job: &Job) -> Result<(), Failure> {
    match job.work {
        Work::Threads => threads(job, Redlock::for_threads(job)?),
        Work::HandOff => {
            let rivals: Result<_, _> = (0..job.size).map(|_| Redlock::for_job(job)).collect();
            hand_off(job, rivals?)
        }
        _ => one_by_one(job, Redlock::for_job(job)?),
    }
}

/// Measures a turn for each line that comes in, until no more come.
fn turns(mut measure: impl FnMut() -> Result<Sample, Failure>) -> Result<(), Failure> {
    let mut out = io::stdout();
    writeln!(out, "{READY}")?;
    for line in io::stdin().lock().lines() {
        if line? == GO {
            writeln!(out, "{}", measure()?)?;
        }
    }
    Ok(())
}

fn one_by_one<C: Locks>(job: &Job, mut client: C) -> Result<(), Failure> {
    let part = match job.work {
        Work::Acquire | Work::First => Part::Acquire,
        Work::Drop => Part::Drop,
        Work::Count | Work::CountUnguarded => return count(job, &mut client),
        _ => Part::Pair,
    };
    let mut times = Vec::with_capacity(TIMES);
    let pace = match job.work {
        Work::Steady => Pace::Every(Duration::from_secs(1) / job.size as u32),
        _ => Pace::Pause(job.pause),
    };
    measure(&mut client, part, pace, WARM_UP, &mut times);
    turns(|| Ok(measure(&mut client, part, pace, job.slice, &mut times)))
}

/// How often the threads of a client that nobody uses wake up, and the memory that it has.
fn idle(job: &Job) -> Result<(), Failure> {
    let idle = Idle::for_job(job)?;
    turns(|| {
        let (start, before) = (clock::now(), memory::sleeps_of_others());
        clock::pause(job.slice);
        let woken = memory::sleeps_of_others() - before;
        let wakes = woken as f64 / (clock::now() - start).as_secs_f64();
        // A turn in which nothing was to be done has succeeded.
        let (p50, p99) = (f64::NAN, f64::NAN);
        Ok(Sample { done: 1.0, p50, p99, wakes, memory: idle.memory, ..Sample::default() })
    })
}

/// Many pairs at once; the memory is that of the whole client, divided by them, if they are so many
/// that its connections do not matter.
fn in_flight<F: Flight>(
    job: &Job,
    connect: impl FnOnce() -> Result<F, Failure>,
) -> Result<(), Failure> {
    let before = memory::resident();
    let mut flight = connect()?;
    flight::measure(&mut flight, WARM_UP)?;
    turns(|| {
        let sample = flight::measure(&mut flight, job.slice)?;
        let grown = memory::peak().saturating_sub(before) as f64;
        let is_large = job.size >= LARGE;
        let memory = if is_large { grown / job.size as f64 } else { f64::NAN };
        Ok(Sample { memory, ..sample })
    })
}

/// What is timed of a pair.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Pair,
    Acquire,
    Drop,
}

/// When the next pair begins.
#[derive(Clone, Copy)]
enum Pace {
    /// So long after the end of the last.
    Pause(Duration),
    /// So long after the beginning of the last; if that is over, it is timed from then.
    Every(Duration),
}

fn measure<C: Locks>(
    client: &mut C,
    part: Part,
    pace: Pace,
    slice: Duration,
    times: &mut Vec<u64>,
) -> Sample {
    times.clear();
    let mut failed = 0;
    let surprises = client.surprises();
    let (start, cpu) = (clock::now(), clock::cpu());
    let (mut begun, mut begun_for) = (start, start);
    let mut ended = start;
    while ended - start < slice && times.len() < TIMES {
        let held = client.lock();
        let locked = if part == Part::Acquire { Some(clock::now()) } else { None };
        let done = match (held, part) {
            (None, _) => false,
            (Some(held), Part::Pair | Part::Acquire) => client.unlock(held),
            (Some(held), Part::Drop) => {
                client.let_go(held);
                true
            }
        };
        ended = clock::now();
        failed += u64::from(!done);
        times.push((locked.unwrap_or(ended) - begun).as_nanos() as u64);
        let due = match pace {
            Pace::Pause(pause) => ended + pause,
            Pace::Every(period) => begun_for + period,
        };
        begun_for = due;
        begun = due;
        if due > ended {
            clock::pause(due - ended);
            ended = clock::now();
            begun = ended;
        }
    }
    failed += client.surprises() - surprises;
    let (took, cpu) = (ended - start, clock::cpu() - cpu);
    let done = times.len() as f64;
    times.sort_unstable();
    Sample {
        done,
        failed: failed as f64,
        p50: stats::percentile(times, 50),
        p99: stats::percentile(times, 99),
        p999: stats::permille(times, 999),
        longest: times.last().map_or(f64::NAN, |longest| *longest as f64),
        rate: done / took.as_secs_f64(),
        cpu: cpu.as_nanos() as f64 / done,
        memory: f64::NAN,
        wakes: f64::NAN,
        least: f64::NAN,
        most: f64::NAN,
        ..Sample::default()
    }
}

/// A number of pairs and nothing else, for tools that count what a whole process does. It answers
/// before it ends, so that these pairs are the only difference between two lengths.
fn count<C: Locks>(job: &Job, client: &mut C) -> Result<(), Failure> {
    let pair = |client: &mut C| client.lock().is_some_and(|held| client.unlock(held));
    let before = (0..UNCOUNTED_PAIRS).filter(|_| pair(client)).count();
    let mut done = 0;
    let paused = |client: &mut C| {
        if !job.pause.is_zero() {
            clock::pause(job.pause);
        }
        pair(client)
    };
    let allocations =
        memory::allocations(|| done = (0..job.size).filter(|_| paused(client)).count());
    if before < UNCOUNTED_PAIRS || done < job.size {
        return Err(format!("{done} of {} pairs succeeded", job.size).into());
    }
    let per_pair = allocations as f64 / job.size as f64;
    println!("{}", Sample { done: done as f64, allocations: per_pair, ..Sample::default() });
    Ok(())
}

/// Gives each client a thread of its own, and does something else meanwhile; what each counted.
fn on_threads<C: Send>(
    clients: &mut [C],
    work: impl Fn(&mut C) -> u64 + Sync,
    meanwhile: impl FnOnce(),
) -> Vec<u64> {
    let work = &work;
    thread::scope(|scope| {
        let spawn = |client| scope.spawn(move || work(client));
        let threads: Vec<_> = clients.iter_mut().map(spawn).collect();
        meanwhile();
        // A client that panics must not look like one that is fast.
        let count = |thread: thread::ScopedJoinHandle<'_, u64>| thread.join().expect("no panic");
        threads.into_iter().map(count).collect()
    })
}

/// Pairs on several threads.
fn threads<C: Locks + Send>(job: &Job, mut clients: Vec<C>) -> Result<(), Failure> {
    let mut run = |slice: Duration| {
        let is_over = AtomicBool::new(false);
        let failed = AtomicU64::new(0);
        let (start, cpu) = (clock::now(), clock::cpu());
        let pairs = |client: &mut C| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let done = client.lock().is_some_and(|held| client.unlock(held));
                failed.fetch_add(u64::from(!done), Ordering::Relaxed);
                count += 1;
            }
            count
        };
        let counts = on_threads(&mut clients, pairs, || {
            clock::pause(slice);
            is_over.store(true, Ordering::Relaxed);
        });
        let done = counts.iter().sum::<u64>() as f64;
        Sample {
            done,
            failed: failed.into_inner() as f64,
            p50: f64::NAN,
            rate: done / (clock::now() - start).as_secs_f64(),
            cpu: (clock::cpu() - cpu).as_nanos() as f64 / done.max(1.0),
            least: counts.iter().min().copied().unwrap_or(0) as f64,
            most: counts.iter().max().copied().unwrap_or(0) as f64,
            ..Sample::default()
        }
    };
    run(WARM_UP);
    turns(|| Ok(run(job.slice)))
}

/// One lock that several clients want.
fn hand_off<C: Waits + Send>(job: &Job, mut clients: Vec<C>) -> Result<(), Failure> {
    let mut run = |slice: Duration| {
        let is_held = AtomicBool::new(false);
        let two_holders = AtomicU64::new(0);
        let start = clock::now();
        let end = start + slice;
        let hold_in_turn = |client: &mut C| {
            let mut count = 0;
            loop {
                let left = end.saturating_duration_since(clock::now());
                if left.is_zero() {
                    return count;
                }
                let Some(held) = client.lock_within(left) else {
                    continue;
                };
                if is_held.swap(true, Ordering::SeqCst) {
                    two_holders.fetch_add(1, Ordering::Relaxed);
                }
                clock::pause(HOLD);
                is_held.store(false, Ordering::SeqCst);
                client.unlock(held);
                count += 1;
            }
        };
        let counts = on_threads(&mut clients, hold_in_turn, || {});
        handed_off(&counts, two_holders.into_inner(), clock::now() - start)
    };
    run(WARM_UP);
    turns(|| Ok(run(job.slice)))
}
