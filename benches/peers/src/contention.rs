//! Processes that want the same lock, as many as is asked for, all from the same moment on.

pub mod contender;
mod figures;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::child::Worker;
use crate::clock;
use crate::driver::{Cell, Entry, Verdict};
use crate::job::{Client, Sample};
use crate::masters::Pool;
use crate::noise::{Counters, Noise};
use crate::stats;
use contender::{QUEUE, RETRY, RSLOCK, SPIN, TOLD, Task};
use figures::{Record, Share, Spent, Stop};
use rustix::process::Signal;

/// Between the last word to a contender and the common beginning.
const HEAD_START: Duration = Duration::from_millis(50);
/// How long contenders may take, beyond their turn, until they have told everything.
const REPORT_MAX: Duration = Duration::from_secs(30);

/// The way of node-redlock, which is a program of its own.
const NODE: &str = "node";

fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where scripts/interop installs it.
fn installed() -> PathBuf {
    sources().join("../../target/interop/node")
}

/// Who is compared with whom.
pub const IN_QUEUE: &str = "muxlock, queue";
pub const RETRYING: &str = "muxlock, retry";
pub const TOLD_FLOOR: &str = "floor, told";
pub const RING_FLOOR: &str = "floor, ring";

/// Of processes that are stopped in turn: how long the lock is held, and their number.
pub const STOPPED: [(&str, u64); 2] = [("16, 0 ms", 0), ("16, 1 ms", 1_000)];
const STOPPED_OF: usize = 16;
/// For as long as one is stopped while the others take many turns; and between two stops.
const STOP: Duration = Duration::from_millis(100);
const NO_STOP: Duration = Duration::from_millis(50);

/// Some processes that wait in one way.
struct Crowd {
    label: &'static str,
    client: Client,
    way: &'static str,
    processes: usize,
    threads: usize,
    pause_us: u64,
}

/// Crowds that are compared.
struct Case {
    name: String,
    hold_us: (u64, u64),
    crowds: Vec<Crowd>,
    /// Whether its processes are stopped in turn.
    stops: Stops,
}

#[derive(Clone, Copy, PartialEq)]
enum Stops {
    None,
    EachInTurn,
}

fn crowd(label: &'static str, client: Client, way: &'static str, processes: usize) -> Crowd {
    Crowd { label, client, way, processes, threads: 1, pause_us: 0 }
}

/// The first of each case is what the others are compared with.
fn ours(processes: usize) -> Vec<Crowd> {
    vec![
        crowd(RETRYING, Client::Muxlock, RETRY, processes),
        crowd(IN_QUEUE, Client::Muxlock, QUEUE, processes),
    ]
}

fn case(name: String, hold_us: (u64, u64), crowds: Vec<Crowd>) -> Case {
    Case { name, hold_us, crowds, stops: Stops::None }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for processes in [2, 16, 64, 256] {
        // What is held for long is bound by that, in whatever way it is waited for.
        let holds: &[u64] = if processes == 16 { &[0, 1, 10] } else { &[0, 1] };
        for hold_ms in holds.iter().copied() {
            let mut crowds = ours(processes);
            if hold_ms <= 1 {
                crowds.insert(0, crowd(RING_FLOOR, Client::Floor, TOLD, processes));
            }
            if hold_ms == 1 && processes <= 64 {
                crowds.push(crowd("rslock", Client::Rslock, RSLOCK, processes));
            }
            if hold_ms == 1 && processes <= 16 && installed().join("node_modules").exists() {
                crowds.push(crowd("node-redlock", Client::Redlock, NODE, processes));
            }
            if processes == 2 {
                crowds.push(crowd("floor, spinning", Client::Floor, SPIN, processes));
            }
            if (processes, hold_ms) == (16, 1) {
                let threads = crowd("queue, 16 threads", Client::Muxlock, QUEUE, 1);
                crowds.push(Crowd { threads: 16, ..threads });
            }
            let hold_us = (hold_ms * 1_000, hold_ms * 1_000);
            cases.push(case(format!("{processes}, {hold_ms} ms"), hold_us, crowds));
        }
    }
    let crowds = ours(4).into_iter().map(|crowd| Crowd { threads: 8, ..crowd }).collect();
    cases.push(case("4 × 8, 1 ms".to_owned(), (1_000, 1_000), crowds));
    for (name, hold_us) in [("20 ms", (20_000, 20_000)), ("5 to 25 ms", (5_000, 25_000))] {
        let mut crowds = vec![crowd(TOLD_FLOOR, Client::Floor, TOLD, 2)];
        crowds.extend(ours(2));
        crowds.iter_mut().for_each(|crowd| crowd.pause_us = 5_000);
        let alone = crowd("muxlock, alone", Client::Muxlock, QUEUE, 1);
        crowds.push(Crowd { pause_us: 20_000, ..alone });
        cases.push(case(format!("pause, {name}"), hold_us, crowds));
    }
    cases
}

/// Lets crowds take turns.
pub fn ask(pool: &Pool, ttl: Duration, repeats: usize, turn: Duration) -> io::Result<Vec<Cell>> {
    if !installed().join("node_modules").exists() {
        eprintln!("  node-redlock is missing, and left out: scripts/interop installs it");
    }
    play(cases(), 90_000_000, pool, ttl, repeats, turn)
}

/// Lets crowds take turns of which the processes are stopped in turn.
pub fn ask_stopped(
    pool: &Pool,
    ttl: Duration,
    repeats: usize,
    turn: Duration,
) -> io::Result<Vec<Cell>> {
    let cases = STOPPED.map(|(name, hold_us)| Case {
        stops: Stops::EachInTurn,
        ..case(name.to_owned(), (hold_us, hold_us), ours(STOPPED_OF))
    });
    play(cases.into(), 95_000_000, pool, ttl, repeats, turn)
}

fn play(
    cases: Vec<Case>,
    mut key: u32,
    pool: &Pool,
    ttl: Duration,
    repeats: usize,
    turn: Duration,
) -> io::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for case in cases {
        eprint!("  {:24}", case.name);
        let entry = |crowd: &Crowd| Entry {
            label: crowd.label.to_owned(),
            client: crowd.client,
            verdict: Verdict::Measured,
            samples: vec![None; repeats],
        };
        let mut entries: Vec<Entry> = case.crowds.iter().map(entry).collect();
        let mut noises = Vec::new();
        for repeat in 0..repeats {
            for place in 0..case.crowds.len() {
                let place = (place + repeat) % case.crowds.len();
                key += 1;
                let crowd = &case.crowds[place];
                match measure(pool, &case, crowd, key, ttl, turn) {
                    Ok((sample, noise)) => {
                        entries[place].samples[repeat] = Some(sample);
                        noises.push(noise);
                    }
                    Err(error) => eprint!(" [{}: {error}] ", crowd.label),
                }
            }
            eprint!(".");
        }
        eprintln!();
        for entry in &mut entries {
            if entry.samples.iter().flatten().next().is_none() {
                entry.verdict = Verdict::Fails;
            }
        }
        let noise = Noise {
            stolen: stats::median(noises.iter().map(|noise| noise.stolen)),
            others: stats::median(noises.iter().map(|noise| noise.others)),
        };
        cells.push(Cell { name: case.name, entries, noise });
    }
    Ok(cells)
}

fn measure(
    pool: &Pool,
    case: &Case,
    crowd: &Crowd,
    key: u32,
    ttl: Duration,
    turn: Duration,
) -> io::Result<(Sample, Noise)> {
    let mut workers = Vec::new();
    for place in 0..crowd.processes {
        let way = match crowd.way {
            TOLD => format!("{TOLD}{place}/{}", crowd.processes),
            way => way.to_owned(),
        };
        let task = Task {
            way,
            threads: crowd.threads,
            ports: pool.ports(),
            key,
            ttl_ms: ttl.as_millis() as u64,
            hold_us: case.hold_us,
            pause_us: crowd.pause_us,
        };
        let mut command = if crowd.way == NODE {
            let mut node = Command::new("node");
            node.arg(sources().join("src/contention/contender.mjs")).arg(installed());
            node
        } else {
            let mut contender = Command::new(std::env::current_exe()?);
            contender.arg("contender");
            contender
        };
        command.args(task.to_args());
        workers.push(Worker::spawn(command)?);
    }
    workers.iter_mut().try_for_each(Worker::wait_until_ready)?;
    let mut pids = pool.pids();
    pids.push(std::process::id());
    pids.extend(workers.iter().map(Worker::pid));
    let (before, (sets, cpu)) = (Counters::read(&pids), pool.spent()?);
    let start = clock::monotonic() + HEAD_START.as_nanos() as u64;
    let end = start + turn.as_nanos() as u64;
    workers.iter_mut().try_for_each(|worker| worker.tell(&format!("{start} {end}")))?;
    let stops = match case.stops {
        Stops::None => Vec::new(),
        Stops::EachInTurn => stop_in_turn(&workers, start, end)?,
    };
    let mut spent = Spent::default();
    let mut shares = Vec::new();
    for worker in &mut workers {
        shares.push(report(worker, turn + REPORT_MAX, &mut spent)?);
    }
    let noise = before.until(Counters::read(&pids));
    let (sets_after, cpu_after) = pool.spent()?;
    (spent.sets, spent.server_cpu) = (sets_after - sets, cpu_after - cpu);
    workers.iter_mut().for_each(Worker::dismiss);
    let shares = by_contender(shares);
    let sample = figures::sample(&shares, spent, start, end);
    let sample = match case.stops {
        Stops::None => sample,
        Stops::EachInTurn => figures::stopped(&shares, &stops, sample),
    };
    Ok((sample, noise))
}

/// Stops one after the other and lets it go on; when each was stopped.
fn stop_in_turn(workers: &[Worker], start: u64, end: u64) -> io::Result<Vec<Stop>> {
    let last = end - (STOP + NO_STOP).as_nanos() as u64;
    let mut stops = Vec::new();
    clock::pause(Duration::from_nanos(start.saturating_sub(clock::monotonic())) + NO_STOP);
    for worker in workers.iter().cycle() {
        if clock::monotonic() > last {
            break;
        }
        worker.signal(Signal::STOP)?;
        let from = clock::monotonic();
        clock::pause(STOP);
        stops.push(Stop { from, until: clock::monotonic() });
        worker.signal(Signal::CONT)?;
        clock::pause(NO_STOP);
    }
    Ok(stops)
}

/// What each thread of a contender wrote down.
fn report(worker: &mut Worker, bound: Duration, spent: &mut Spent) -> io::Result<Vec<Share>> {
    let mut threads: Vec<Share> = Vec::new();
    loop {
        let line = worker.hear(bound)?;
        let strange = || io::Error::other(format!("a contender says {line:?}"));
        match line.split_once(' ') {
            None if line == "end" => return Ok(threads),
            None if line == "thread" => threads.push(Share::default()),
            Some(("cpu", nanos)) => {
                spent.client_cpu += nanos.parse::<f64>().map_err(|_| strange())?;
            }
            Some(("vain", nanos)) => {
                let wait = nanos.parse().map_err(|_| strange())?;
                threads.last_mut().ok_or_else(strange)?.in_vain.push(wait);
            }
            _ => {
                let record = Record::parse(&line).ok_or_else(strange)?;
                threads.last_mut().ok_or_else(strange)?.records.push(record);
            }
        }
    }
}

/// One share for each process, or for each thread if there is one process.
fn by_contender(mut shares: Vec<Vec<Share>>) -> Vec<Share> {
    if shares.len() == 1 {
        return shares.remove(0);
    }
    let join = |threads: Vec<Share>| {
        let mut all = Share::default();
        for thread in threads {
            all.records.extend(thread.records);
            all.in_vain.extend(thread.in_vain);
        }
        all
    };
    shares.into_iter().map(join).collect()
}
