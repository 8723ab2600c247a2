//! Processes that want the same lock, as many as is asked for, all from the same moment on.

pub mod contender;
mod figures;

use std::io;
use std::process::Command;
use std::time::Duration;

use crate::child::Worker;
use crate::clock;
use crate::driver::{Cell, Entry, Verdict};
use crate::job::{Client, Job, Sample};
use crate::masters::Pool;
use contender::{QUEUE, REDLOCK, RETRY, RSLOCK, TOLD, Task};
use figures::{Record, Share, Spent, Stop};
use rustix::process::Signal;

/// Between the last word to a contender and the common beginning.
const HEAD_START: Duration = Duration::from_millis(50);
/// How long contenders may take, beyond their turn, until they have told everything.
const REPORT_MAX: Duration = Duration::from_secs(30);

/// How many are stopped in turn.
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
    pause: Duration,
}

/// Crowds that are compared.
struct Case {
    name: String,
    /// The least and the most, in microseconds.
    hold: (u64, u64),
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
    Crowd { label, client, way, processes, pause: Duration::ZERO }
}

/// The first of each case is what the others are compared with.
fn ours(processes: usize) -> Vec<Crowd> {
    vec![
        crowd("muxlock, retry", Client::Muxlock, RETRY, processes),
        crowd("muxlock, queue", Client::Muxlock, QUEUE, processes),
    ]
}

fn case(name: String, hold: (u64, u64), crowds: Vec<Crowd>) -> Case {
    Case { name, hold, crowds, stops: Stops::None }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for processes in [2, 16, 64, 256] {
        for hold_ms in [0, 1] {
            let mut crowds = vec![crowd("floor, ring", Client::Floor, TOLD, processes)];
            crowds.extend(ours(processes));
            if hold_ms == 1 && processes <= 64 {
                crowds.push(crowd("rslock", Client::Rslock, RSLOCK, processes));
                crowds.push(crowd("redlock", Client::Redlock, REDLOCK, processes));
            }
            let hold_us = (hold_ms * 1_000, hold_ms * 1_000);
            cases.push(case(format!("{processes}, {hold_ms} ms"), hold_us, crowds));
        }
    }
    for (name, hold_us) in [("20 ms", (20_000, 20_000)), ("5 to 25 ms", (5_000, 25_000))] {
        let mut crowds = vec![crowd("floor, told", Client::Floor, TOLD, 2)];
        crowds.extend(ours(2));
        crowds.iter_mut().for_each(|crowd| crowd.pause = Duration::from_millis(5));
        let alone = crowd("muxlock, alone", Client::Muxlock, QUEUE, 1);
        crowds.push(Crowd { pause: Duration::from_millis(20), ..alone });
        cases.push(case(format!("pause, {name}"), hold_us, crowds));
    }
    cases
}

/// Lets crowds take turns, which are as the job says.
pub fn ask(pool: &Pool, job: &Job, repeats: usize) -> io::Result<Vec<Cell>> {
    play(cases(), pool, job, repeats)
}

/// Lets crowds take turns of which the processes are stopped in turn.
pub fn ask_stopped(pool: &Pool, job: &Job, repeats: usize) -> io::Result<Vec<Cell>> {
    let case = |hold_ms: u64| {
        let (name, hold) = (format!("{STOPPED_OF}, {hold_ms} ms"), hold_ms * 1_000);
        Case { stops: Stops::EachInTurn, ..case(name, (hold, hold), ours(STOPPED_OF)) }
    };
    play([0, 1].map(case).into(), pool, job, repeats)
}

fn play(cases: Vec<Case>, pool: &Pool, job: &Job, repeats: usize) -> io::Result<Vec<Cell>> {
    let mut number = job.number;
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
        for repeat in 0..repeats {
            for place in 0..case.crowds.len() {
                let place = (place + repeat) % case.crowds.len();
                number += 1;
                let crowd = &case.crowds[place];
                match measure(pool, &case, crowd, &Job { number, ..job.clone() }) {
                    Ok(sample) => entries[place].samples[repeat] = Some(sample),
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
        cells.push(Cell { name: case.name, entries });
    }
    Ok(cells)
}

fn measure(pool: &Pool, case: &Case, crowd: &Crowd, job: &Job) -> io::Result<Sample> {
    let mut workers = Vec::new();
    for place in 0..crowd.processes {
        let way = match crowd.way {
            TOLD => format!("{TOLD}{place}/{}", crowd.processes),
            way => way.to_owned(),
        };
        let job = Job { client: crowd.client, pause: crowd.pause, ..job.clone() };
        let task = Task { way, hold: case.hold, job };
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("contender").args(task.to_args());
        workers.push(Worker::spawn(command)?);
    }
    workers.iter_mut().try_for_each(Worker::wait_until_ready)?;
    let (sets, cpu) = pool.spent()?;
    let start = clock::monotonic() + HEAD_START.as_nanos() as u64;
    let end = start + job.slice.as_nanos() as u64;
    workers.iter_mut().try_for_each(|worker| worker.tell(&format!("{start} {end}")))?;
    let stops = match case.stops {
        Stops::None => Vec::new(),
        Stops::EachInTurn => stop_in_turn(&workers, start, end)?,
    };
    let mut spent = Spent::default();
    let mut shares = Vec::new();
    for worker in &mut workers {
        shares.push(report(worker, job.slice + REPORT_MAX, &mut spent)?);
    }
    let (sets_after, cpu_after) = pool.spent()?;
    (spent.sets, spent.server_cpu) = (sets_after - sets, cpu_after - cpu);
    workers.iter_mut().for_each(Worker::dismiss);
    let sample = figures::sample(&shares, spent, start, end);
    Ok(match case.stops {
        Stops::None => sample,
        Stops::EachInTurn => figures::stopped(&shares, &stops, sample),
    })
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

/// What a contender wrote down.
fn report(worker: &mut Worker, bound: Duration, spent: &mut Spent) -> io::Result<Share> {
    let mut share = Share::default();
    loop {
        let line = worker.hear(bound)?;
        let strange = || io::Error::other(format!("a contender says {line:?}"));
        match line.split_once(' ') {
            None if line == "end" => return Ok(share),
            Some(("cpu", nanos)) => {
                spent.client_cpu += nanos.parse::<f64>().map_err(|_| strange())?;
            }
            Some(("vain", nanos)) => share.in_vain.push(nanos.parse().map_err(|_| strange())?),
            _ => share.records.push(Record::parse(&line).ok_or_else(strange)?),
        }
    }
}
