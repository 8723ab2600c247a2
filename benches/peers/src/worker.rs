//! The child process that is one client: it connects, warms up, says that it is ready, and measures
//! one turn for each `go`.

use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::clients::floor::Anew;
use crate::clients::muxlock::{Fencing, First, Guest, Muxlock, Swapping};
use crate::clients::redis::Redis;
use crate::clients::redlock::Redlock;
use crate::clients::rslock::{Rslock, Tasks};
use crate::clients::{Failure, Locks};
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
        Work::Fenced => one_by_one(job, Fencing::for_job(job)?),
        Work::First => one_by_one(job, First::for_job(job)),
        _ => one_by_one(job, Muxlock::for_job(job)?),
    }
}

fn rslock(job: &Job) -> Result<(), Failure> {
    if !matches!(job.work, Work::InFlight | Work::Threads) {
        return one_by_one(job, Rslock::for_job(job)?);
    }
    let tasks = Tasks::for_job(job)?;
    tasks.measure(WARM_UP);
    turns(|| Ok(tasks.measure(job.slice)))
}

fn redlock(job: &Job) -> Result<(), Failure> {
    match job.work {
        Work::Threads => threads(job, Redlock::for_threads(job)?),
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
        Work::Count | Work::CountUnguarded => return count(job, &mut client),
        _ => Part::Pair,
    };
    let mut times = Vec::with_capacity(TIMES);
    measure(&mut client, part, job.pause, WARM_UP, &mut times);
    turns(|| Ok(measure(&mut client, part, job.pause, job.slice, &mut times)))
}

fn in_flight<F: Flight>(
    job: &Job,
    connect: impl FnOnce() -> Result<F, Failure>,
) -> Result<(), Failure> {
    let mut flight = connect()?;
    flight::measure(&mut flight, WARM_UP)?;
    turns(|| Ok(flight::measure(&mut flight, job.slice)?))
}

/// What is timed of a pair.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Pair,
    Acquire,
}

fn measure<C: Locks>(
    client: &mut C,
    part: Part,
    pause: Duration,
    slice: Duration,
    times: &mut Vec<u64>,
) -> Sample {
    times.clear();
    let mut failed = 0;
    let surprises = client.surprises();
    let (start, cpu) = (clock::now(), clock::cpu());
    let (mut begun, mut ended) = (start, start);
    while ended - start < slice && times.len() < TIMES {
        let held = client.lock();
        let locked = if part == Part::Acquire { Some(clock::now()) } else { None };
        let done = held.is_some_and(|held| client.unlock(held));
        ended = clock::now();
        failed += u64::from(!done);
        times.push((locked.unwrap_or(ended) - begun).as_nanos() as u64);
        if !pause.is_zero() {
            clock::pause(pause);
            ended = clock::now();
        }
        begun = ended;
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
        rate: done / took.as_secs_f64(),
        cpu: cpu.as_nanos() as f64 / done,
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
        let pairs = &pairs;
        let counts: Vec<u64> = thread::scope(|scope| {
            let spawn = |client| scope.spawn(move || pairs(client));
            let threads: Vec<_> = clients.iter_mut().map(spawn).collect();
            clock::pause(slice);
            is_over.store(true, Ordering::Relaxed);
            // A client that panics must not look like one that is fast.
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
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
