//! Many seeds on all cores, and a report.

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::shrink::shrink;
use crate::world::choices::Choices;
use crate::world::plan::Class;
use crate::world::rare::{Counts, Rare};
use crate::world::{self, Violation};

/// Seeds that a thread takes at a time.
const BLOCK: u64 = 32;
/// After so many violations, more of them say nothing new.
const VIOLATIONS_MAX: usize = 8;
/// From so many seeds on, every rare situation must have occurred.
const SEEDS_FOR_RARE: u64 = 20_000;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// No more runs are spent on making one failure smaller.
const SHRINKING_RUNS_MAX: usize = 4_000;
/// The end of a timeline is what shows the failure.
const TIMELINE_LINES_MAX: usize = 2_000;

/// What came out of a campaign.
pub struct Report {
    pub seeds: u64,
    pub events: u64,
    pub violations: Vec<(u64, Violation)>,
    pub rare: Counts,
    /// The digests of all runs, in whatever order they were done.
    pub digest: u64,
    pub time: Duration,
}

struct Block {
    seeds: u64,
    digest: u64,
    events: u64,
    violations: Vec<(u64, Violation)>,
    rare: Counts,
}

#[expect(clippy::disallowed_methods, reason = "a campaign says how long it took")]
fn now() -> Instant {
    Instant::now()
}

/// Runs the seeds from `first` on, each of its own class or all of one; `progress` is told how
/// many are done.
pub fn run(
    first: u64,
    count: u64,
    class: Option<Class>,
    violations_max: usize,
    mut progress: impl FnMut(u64, Duration),
) -> Report {
    let start = now();
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let mut report = Report {
        seeds: 0,
        events: 0,
        violations: Vec::new(),
        rare: Counts::new(),
        digest: 0,
        time: Duration::ZERO,
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let from = next.fetch_add(BLOCK, Ordering::Relaxed);
                    let to = (from + BLOCK).min(count);
                    if from >= to
                        || sender.send(run_block(first + from..first + to, class)).is_err()
                    {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut shown = start;
        for block in receiver {
            report.seeds += block.seeds;
            report.events += block.events;
            report.violations.extend(block.violations);
            report.rare.add(&block.rare);
            report.digest = report.digest.wrapping_add(block.digest);
            if report.violations.len() >= violations_max {
                stop.store(true, Ordering::Relaxed);
            }
            if now() - shown >= PROGRESS_INTERVAL {
                shown = now();
                progress(report.seeds, shown - start);
            }
        }
    });
    report.violations.sort_by_key(|(seed, _)| *seed);
    report.time = now() - start;
    report
}

fn run_block(seeds: std::ops::Range<u64>, class: Option<Class>) -> Block {
    let (mut violations, mut rare, mut events) = (Vec::new(), Counts::new(), 0);
    let mut digest = 0_u64;
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let outcome = world::run(Choices::from_seed(seed), class, false);
        rare.add(&outcome.rare);
        events += outcome.events;
        digest = digest.wrapping_add(outcome.digest.wrapping_mul(seed | 1));
        violations.extend(outcome.violation.map(|violation| (seed, violation)));
    }
    Block { seeds: count, digest, events, violations, rare }
}

/// Runs a campaign for people: progress, what was found, and how often what occurred. Returns
/// whether all is well.
pub fn run_and_tell(first: u64, count: u64, class: Option<Class>) -> bool {
    let report = run(first, count, class, VIOLATIONS_MAX, |done, time| {
        println!("{done} of {count} seeds, {:.0} seeds/s", rate(done, time));
    });
    for (seed, violation) in &report.violations {
        println!("seed {seed}: {}: {}", violation.rule, violation.text);
    }
    if let Some((seed, violation)) = report.violations.first() {
        explain(*seed, class, violation);
    }
    println!("\nrare situations");
    let mut missing = Vec::new();
    for rare in Rare::ALL {
        println!("{:>12}  {}", report.rare.of(*rare), rare.name());
        if report.rare.of(*rare) == 0 {
            missing.push(rare.name());
        }
    }
    println!(
        "\n{} seeds, {} violations, {:.1} s, {:.0} seeds/s, {} events per seed",
        report.seeds,
        report.violations.len(),
        report.time.as_secs_f64(),
        rate(report.seeds, report.time),
        report.events / report.seeds.max(1)
    );
    let is_large = class.is_none() && report.seeds >= SEEDS_FOR_RARE;
    if is_large && !missing.is_empty() {
        println!("never occurred: {}", missing.join("; "));
    }
    report.violations.is_empty() && (missing.is_empty() || !is_large)
}

fn rate(seeds: u64, time: Duration) -> f64 {
    seeds as f64 / time.as_secs_f64().max(1e-9)
}

/// Shrinks a failed run and tells its story.
pub fn explain(seed: u64, class: Option<Class>, violation: &Violation) {
    let again = world::run(Choices::from_seed(seed), class, false);
    let fails = |drawn: &[u32]| {
        let outcome = world::run(Choices::from_record(drawn.to_vec()), class, false);
        outcome.violation.is_some_and(|found| found.rule == violation.rule)
    };
    let length = again.drawn.len();
    // A smaller run may fail for another reason.
    let is_whole = env::var_os("MUXLOCK_SIM_WHOLE").is_some();
    let (runs, lines) =
        if is_whole { (0, usize::MAX) } else { (SHRINKING_RUNS_MAX, TIMELINE_LINES_MAX) };
    let shrunk = shrink(again.drawn, runs, fails);
    println!("\nseed {seed}: {} of {length} choices are enough", shrunk.len());
    let outcome = world::run(Choices::from_record(shrunk), class, true);
    let skipped = outcome.timeline.len().saturating_sub(lines);
    if skipped > 0 {
        println!("({skipped} lines before)");
    }
    for line in &outcome.timeline[skipped..] {
        println!("{line}");
    }
}
