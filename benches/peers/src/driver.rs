//! Lets clients take turns on the same masters, so that whatever else the machine does hits all of
//! them alike.

use std::io::{self, ErrorKind};
use std::time::Duration;

use crate::child::Worker;
use crate::clock;
use crate::job::{Client, Job, Sample};
use crate::masters::Pool;
use crate::stats;

/// A client that takes so many times its turn is not given another one in the same repeat.
const SLOW: u32 = 3;

/// Masters compute a little even if nobody asks them anything. If pairs are this far apart or more,
/// that is taken off.
const RARE: Duration = Duration::from_millis(10);
/// How long masters are watched for what they compute by themselves.
const WATCHED: Duration = Duration::from_secs(1);

/// Who is measured.
#[derive(Debug, Clone)]
pub struct Player {
    /// What it is called in tables.
    pub label: String,
    pub job: Job,
}

/// What is measured together: the first one is what the others are compared with.
pub struct Plan {
    pub name: String,
    pub players: Vec<Player>,
    /// With fresh processes each time.
    pub repeats: usize,
    /// In each repeat.
    pub turns: usize,
    /// How many masters are frozen while it is measured.
    pub frozen: usize,
    /// How long a client may take beyond its turn before it is said to hang.
    pub bound: Duration,
}

/// What became of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Measured,
    /// It did not come back in time, and was killed.
    Hangs,
    /// More of its pairs failed than not.
    Fails,
}

/// What one client did.
#[derive(Debug, Clone)]
pub struct Entry {
    pub label: String,
    pub client: Client,
    pub verdict: Verdict,
    /// One for each turn that it took.
    pub samples: Vec<Option<Sample>>,
}

impl Entry {
    /// The median of a figure over all turns.
    pub fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        stats::median(self.samples.iter().flatten().map(figure))
    }

    /// The median of the ratios of a figure to another client's in the same turn.
    pub fn ratio(&self, to: &Entry, figure: impl Fn(&Sample) -> f64 + Copy) -> f64 {
        stats::median_ratio(&self.figures(figure), &to.figures(figure))
    }

    fn figures(&self, figure: impl Fn(&Sample) -> f64 + Copy) -> Vec<Option<f64>> {
        self.samples.iter().map(|sample| sample.as_ref().map(figure)).collect()
    }
}

/// What came out of a plan.
#[derive(Debug, Clone)]
pub struct Cell {
    pub name: String,
    pub entries: Vec<Entry>,
}

/// Measures what was planned.
pub fn play(plan: &Plan, pool: &Pool) -> io::Result<Cell> {
    eprint!("  {:24}", plan.name);
    let entry = |player: &Player| Entry {
        label: player.label.clone(),
        client: player.job.client,
        verdict: Verdict::Measured,
        samples: vec![None; plan.repeats * plan.turns],
    };
    let mut entries: Vec<Entry> = plan.players.iter().map(entry).collect();
    for repeat in 0..plan.repeats {
        play_once(plan, pool, repeat, &mut entries)?;
        eprint!(".");
    }
    eprintln!();
    entries.iter_mut().for_each(judge);
    Ok(Cell { name: plan.name.clone(), entries })
}

/// A client of which no turn succeeded has failed.
fn judge(entry: &mut Entry) {
    let is_failure = |sample: &Sample| sample.is_failure();
    if entry.verdict == Verdict::Measured && entry.samples.iter().flatten().all(is_failure) {
        entry.verdict = Verdict::Fails;
    }
}

fn play_once(plan: &Plan, pool: &Pool, repeat: usize, entries: &mut [Entry]) -> io::Result<()> {
    let mut masters = Watched { pool, idle: 0.0 };
    let mut seats = start(plan, repeat, entries)?;
    pool.freeze(plan.frozen)?;
    if plan.players.iter().any(|player| player.job.pause >= RARE) {
        masters.watch();
    }
    for turn in 0..plan.turns {
        take_turns(plan, repeat * plan.turns + turn, entries, &mut seats, &masters);
    }
    drop(seats);
    pool.thaw(plan.frozen)
}

/// The masters of a plan.
struct Watched<'a> {
    pool: &'a Pool,
    /// What part of a core they compute while nobody asks them anything.
    idle: f64,
}

impl Watched<'_> {
    /// Finds out what they compute while nobody asks them anything.
    fn watch(&mut self) {
        let (start, before) = (clock::now(), self.pool.computed());
        clock::pause(WATCHED);
        self.idle = (self.pool.computed() - before) / (clock::now() - start).as_nanos() as f64;
    }
}

/// A worker, and whose it is. It stays until the end, because its computing time is asked for.
struct Seat {
    worker: Worker,
    player: usize,
    sits_out: bool,
}

/// Starts a worker for each client that has not hung before.
fn start(plan: &Plan, repeat: usize, entries: &mut [Entry]) -> io::Result<Vec<Seat>> {
    let mut seats = Vec::new();
    for (player, Player { job, .. }) in plan.players.iter().enumerate() {
        if entries[player].verdict != Verdict::Hangs {
            let number = job.number + (repeat * plan.players.len() + player) as u32;
            let worker = Worker::start(&Job { number, ..job.clone() })?;
            seats.push(Seat { worker, player, sits_out: false });
        }
    }
    for Seat { worker, player, sits_out } in &mut seats {
        if let Err(error) = worker.wait_until_ready() {
            complain(&entries[*player], &error);
            *sits_out = true;
        }
    }
    Ok(seats)
}

fn take_turns(
    plan: &Plan,
    turn: usize,
    entries: &mut [Entry],
    seats: &mut [Seat],
    masters: &Watched<'_>,
) {
    let count = seats.len();
    // Nobody always comes after the same one.
    for place in (0..count).map(|place| (place + turn) % count) {
        let Seat { worker, player, sits_out } = &mut seats[place];
        if *sits_out {
            continue;
        }
        let entry = &mut entries[*player];
        let slice = plan.players[*player].job.slice;
        let (begun, computed) = (clock::now(), masters.pool.computed());
        match worker.measure(slice + plan.bound) {
            Ok(sample) => {
                let took = clock::now() - begun;
                let by_themselves = masters.idle * took.as_nanos() as f64;
                let server_cpu = (masters.pool.computed() - computed - by_themselves) / sample.done;
                entry.samples[turn] = Some(Sample { server_cpu, ..sample });
                *sits_out = took > slice * SLOW;
            }
            Err(error) => {
                if error.kind() == ErrorKind::TimedOut {
                    entry.verdict = Verdict::Hangs;
                }
                complain(entry, &error);
                *sits_out = true;
            }
        }
    }
}

fn complain(entry: &Entry, error: &io::Error) {
    match error.kind() {
        ErrorKind::TimedOut => eprint!(" [{} hangs] ", entry.label),
        _ => eprint!(" [{}: {error}] ", entry.label),
    }
}
