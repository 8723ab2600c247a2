//! Locks over real `redis-server` processes on this machine, healthy and not.
//!
//! A case uses one lock name for all its pairs: on every connection the release is ahead of the
//! next SET, so that a client is never in its own way, and the masters hold one key. Only
//! `pair/drop`, which waits for no release, takes a fresh name each time.
//!
//! A mean says little on a machine that others use too, so each case also prints percentiles of
//! its single pairs. At the end, healthy and faulty masters take turns of a few milliseconds, and a
//! table compares their medians: run `cargo bench -p benches --bench masters ratios` for that
//! alone.

use std::any::Any;
use std::cell::LazyCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode};
use muxlock::node::NodeState;
use muxlock::{Builder, LockGuard, Redlock};

use muxlock::testing::{Master, Masters};
use testbed::proxy::DelayProxy;
use testbed::scripted::{Peer, Scripted, refused_addr};

const NODES: usize = 5;
const NODE_COUNTS: [usize; 5] = [1, 3, 5, 7, 9];
const ROUND_TRIPS_MS: [u64; NODES] = [1, 2, 3, 40, 400];
const TTL: Duration = Duration::from_secs(2);
/// Finer than the millisecond that a poll's own timeout has.
const SHORT_TIMEOUT: Duration = Duration::from_micros(300);
const FROZEN_MAJORITY: usize = 3;
/// Soon, a node that leaves everything unanswered is not asked any more.
const SHORT_MEASUREMENT: Duration = Duration::from_secs(1);
/// Above the longest round trip, so that a slow node is slow and not absent.
const FAR_TIMEOUT: Duration = Duration::from_secs(1);
/// The most pairs that it takes until every node that can be connected is.
const SETTLE_PAIRS_MAX: usize = 100_000;
/// The most pairs of a case whose times are kept.
const SAMPLES_MAX: usize = 2_000_000;

const WARM_UP: Duration = Duration::from_millis(500);
const MEASUREMENT: Duration = Duration::from_secs(4);
/// A client gives up a connection after ten seconds of silence, and then tries again and again:
/// both are part of what a frozen master costs.
const FROZEN_MEASUREMENT: Duration = Duration::from_secs(20);
const SAMPLE_SIZE: usize = 30;

/// Pairs of one case before it is the next one's turn.
const TURN_PAIRS: usize = 200;
/// How long the cases take turns.
const TURNS_TIME: Duration = Duration::from_secs(30);
const TURNS_MAX: usize = 10_000;
/// When the connection to a frozen master has been given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(11);

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let pool = Pool::new();
    bench_pairs(&mut criterion, &pool);
    bench_acquire(&mut criterion, &pool);
    bench_options(&mut criterion, &pool);
    criterion.final_summary();
    if is_ratios_wanted(std::env::args().skip(1)) {
        compare(&pool);
    }
}

fn bench_pairs(criterion: &mut Criterion, pool: &Pool) {
    let mut group = criterion.benchmark_group("pair");
    configure(&mut group);
    bench(&mut group, "healthy", || Case::healthy(pool, NODES));
    bench(&mut group, "one_refused", || Case::one_refused(pool));
    bench(&mut group, "one_killed", || Case::one_killed(pool));
    bench(&mut group, "one_silent", || Case::one_silent(pool));
    bench(&mut group, "drop", || Case::dropped(pool));
    for nodes in NODE_COUNTS {
        bench(&mut group, &format!("nodes_{nodes}"), || Case::healthy(pool, nodes));
    }
    group.measurement_time(FROZEN_MEASUREMENT);
    bench(&mut group, "one_frozen", || Case::frozen(pool, 1));
    bench(&mut group, "two_frozen", || Case::frozen(pool, 2));
    group.finish();
}

fn bench_acquire(criterion: &mut Criterion, pool: &Pool) {
    let mut group = criterion.benchmark_group("acquire");
    configure(&mut group);
    bench(&mut group, "healthy", || Case::acquire(pool));
    bench(&mut group, "rtt_1_2_3_40_400ms", || Case::far(pool));
    group.finish();
}

/// What a short timeout is worth.
fn bench_options(criterion: &mut Criterion, pool: &Pool) {
    let mut group = criterion.benchmark_group("options");
    configure(&mut group);
    group.warm_up_time(SHORT_MEASUREMENT / 10).measurement_time(SHORT_MEASUREMENT);
    bench(&mut group, "node_timeout_300us", || Case::majority_frozen(pool));
    group.finish();
}

fn configure(group: &mut BenchmarkGroup<'_, WallTime>) {
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(SAMPLE_SIZE)
        .warm_up_time(WARM_UP)
        .measurement_time(MEASUREMENT);
}

/// Measures a case, which is only set up if it is asked for.
fn bench(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, set_up: impl FnOnce() -> Case) {
    let mut samples = Samples::default();
    let mut set_up = Some(set_up);
    let mut case = None;
    group.bench_function(name, |bencher| {
        let case = case.get_or_insert_with(|| set_up.take().expect("only once")());
        bencher.iter_custom(|pairs| (0..pairs).map(|_| case.measure(&mut samples)).sum());
    });
    if samples.times.len() > 1 {
        println!("  single: {}", samples.summary());
    }
}

/// Masters that stay healthy: every case uses some of them.
struct Pool {
    first: LazyCell<Masters>,
    more: LazyCell<Masters>,
}

impl Pool {
    fn new() -> Pool {
        Pool {
            first: LazyCell::new(|| start(NODES)),
            more: LazyCell::new(|| start(NODE_COUNTS[NODE_COUNTS.len() - 1] - NODES)),
        }
    }

    fn urls(&self, nodes: usize) -> Vec<String> {
        let mut urls = self.first.urls();
        if nodes > urls.len() {
            urls.extend(self.more.urls());
        }
        urls.truncate(nodes);
        urls
    }
}

fn start(masters: usize) -> Masters {
    Masters::start(masters).expect("redis-server starts")
}

/// What is measured of a pair.
#[derive(Clone, Copy)]
enum Measured {
    Pair,
    /// The release is waited for, and not counted.
    Acquire,
    /// The guard is dropped: nobody waits for the release.
    Drop,
    /// It is not granted.
    Failure,
}

/// A client, and what it is measured with.
struct Case {
    name: &'static str,
    measured: Measured,
    redlock: Redlock,
    pairs: usize,
    /// What must not be dropped before the client: faulty masters and what stands before them.
    _kept: Option<Box<dyn Any>>,
}

/// With the restart guard on, as it is by default: masters that were started here are waited for
/// until they are old enough, a little longer than the longest TTL.
fn guarded() -> Builder {
    Redlock::builder().max_ttl(TTL)
}

impl Case {
    /// Connects to these nodes until as many as can be are ready.
    fn connect(name: &'static str, builder: &Builder, ready: usize) -> Case {
        let mut case = Case {
            name,
            measured: Measured::Pair,
            redlock: builder.connect().expect("a quorum of the masters"),
            pairs: 0,
            _kept: None,
        };
        for _ in 0..SETTLE_PAIRS_MAX {
            if case.ready() >= ready {
                return case;
            }
            case.measure(&mut Samples::default());
        }
        panic!("{name}: {} of {ready} nodes are ready", case.ready());
    }

    fn healthy(pool: &Pool, nodes: usize) -> Case {
        let builder = guarded().nodes(pool.urls(nodes));
        Case::connect("healthy", &builder, nodes)
    }

    fn acquire(pool: &Pool) -> Case {
        let mut case = Case::healthy(pool, NODES);
        case.measured = Measured::Acquire;
        case
    }

    fn dropped(pool: &Pool) -> Case {
        let mut case = Case::healthy(pool, NODES);
        case.measured = Measured::Drop;
        case
    }

    fn one_refused(pool: &Pool) -> Case {
        let builder =
            guarded().nodes(pool.urls(NODES - 1)).node(format!("redis://{}", refused_addr()));
        Case::connect("one_refused", &builder, NODES - 1)
    }

    /// Killed while connected; nothing listens on its port from then on.
    fn one_killed(pool: &Pool) -> Case {
        let mut master = Master::start().expect("redis-server starts");
        let builder = guarded().nodes(pool.urls(NODES - 1)).node(master.url());
        let case = Case::connect("one_killed", &builder, NODES);
        master.kill().expect("redis-server can be killed");
        case
    }

    /// It accepts every connection, and never answers.
    fn one_silent(pool: &Pool) -> Case {
        let server = Scripted::start(Peer::hold);
        let builder = guarded().nodes(pool.urls(NODES - 1)).node(server.url());
        let mut case = Case::connect("one_silent", &builder, NODES - 1);
        case._kept = Some(Box::new(server));
        case
    }

    /// Three of five are frozen: every attempt fails when they are given up.
    fn majority_frozen(pool: &Pool) -> Case {
        let masters = start(FROZEN_MAJORITY);
        let builder = guarded()
            .nodes(pool.urls(NODES - FROZEN_MAJORITY))
            .nodes(masters.urls())
            .node_timeout(SHORT_TIMEOUT);
        let mut case = Case::connect("majority_frozen", &builder, NODES);
        for master in &masters {
            master.freeze().expect("redis-server can be stopped");
        }
        case.measured = Measured::Failure;
        case._kept = Some(Box::new(masters));
        case
    }

    /// Stopped while connected; its kernel still takes bytes and accepts connections.
    fn frozen(pool: &Pool, frozen: usize) -> Case {
        let masters = start(frozen);
        let builder = guarded().nodes(pool.urls(NODES - frozen)).nodes(masters.urls());
        let name = if frozen == 1 { "one_frozen" } else { "two_frozen" };
        let mut case = Case::connect(name, &builder, NODES);
        for master in &masters {
            master.freeze().expect("redis-server can be stopped");
        }
        case._kept = Some(Box::new(masters));
        case
    }

    /// Masters at different distances.
    fn far(pool: &Pool) -> Case {
        let proxies: Vec<DelayProxy> = pool
            .first
            .iter()
            .zip(ROUND_TRIPS_MS)
            .map(|(master, round_trip)| {
                let upstream = SocketAddr::from((Ipv4Addr::LOCALHOST, master.port()));
                DelayProxy::start(upstream, Duration::from_millis(round_trip)).expect("a free port")
            })
            .collect();
        let builder = guarded()
            .nodes(proxies.iter().map(DelayProxy::url))
            .node_timeout(FAR_TIMEOUT)
            .connect_timeout(FAR_TIMEOUT);
        let mut case = Case::connect("far", &builder, NODES);
        case.measured = Measured::Acquire;
        case._kept = Some(Box::new(proxies));
        case
    }

    fn ready(&self) -> usize {
        let nodes = self.redlock.nodes();
        let ready = |state: NodeState| state == NodeState::Ready;
        nodes.iter().filter(|node| ready(node.state)).count()
    }

    /// Takes a lock and releases it, and returns how long the part took that is measured.
    fn measure(&mut self, samples: &mut Samples) -> Duration {
        self.pairs += 1;
        let (took, done) = match self.measured {
            Measured::Pair => timed(|| self.lock(self.name).and_then(LockGuard::unlock).is_ok()),
            Measured::Acquire => {
                let (took, guard) = timed(|| self.lock(self.name));
                (took, guard.and_then(LockGuard::unlock).is_ok())
            }
            Measured::Failure => timed(|| self.lock(self.name).is_err()),
            Measured::Drop => {
                let fresh = format!("drop:{}", self.pairs);
                timed(|| self.lock(&fresh).map(drop).is_ok())
            }
        };
        samples.add(took, done);
        took
    }

    fn lock(&self, name: &str) -> Result<LockGuard, muxlock::LockError> {
        self.redlock.try_lock(name, TTL)
    }
}

/// Times of single pairs.
#[derive(Default)]
struct Samples {
    times: Vec<Duration>,
    /// Pairs of which one half failed. They count as they are: it is a client's time all the same.
    failed: usize,
}

impl Samples {
    fn add(&mut self, took: Duration, done: bool) {
        self.failed += usize::from(!done);
        if self.times.len() < SAMPLES_MAX {
            self.times.push(took);
        }
    }

    fn append(&mut self, other: &Samples) {
        self.failed += other.failed;
        let room = SAMPLES_MAX.saturating_sub(self.times.len());
        self.times.extend(other.times.iter().take(room));
    }

    /// In microseconds.
    fn percentiles(&self, percents: [f64; 3]) -> [f64; 3] {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        percents.map(|percent| {
            let last = sorted.len().saturating_sub(1);
            let at = (last as f64 * percent / 100.0).round() as usize;
            sorted.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
        })
    }

    fn median(&self) -> f64 {
        self.percentiles([50.0; 3])[0]
    }

    fn summary(&self) -> String {
        let [p50, p99, max] = self.percentiles([50.0, 99.0, 100.0]);
        let (pairs, failed) = (self.times.len(), self.failed);
        format!(
            "p50 {p50:.1} µs, p99 {p99:.1} µs, max {max:.0} µs ({pairs} pairs, {failed} failed)"
        )
    }
}

/// A case that takes its turns, and how its medians relate to those of the healthy one.
struct Compared {
    case: Case,
    turn: Samples,
    all: Samples,
    early: Vec<f64>,
    late: Vec<f64>,
}

impl Compared {
    fn new(case: Case) -> Compared {
        Compared {
            case,
            turn: Samples::default(),
            all: Samples::default(),
            early: Vec::new(),
            late: Vec::new(),
        }
    }

    fn take_turn(&mut self) {
        self.turn = Samples::default();
        for _ in 0..TURN_PAIRS {
            self.case.measure(&mut self.turn);
        }
        self.all.append(&self.turn);
    }
}

/// Lets all cases take turns, and prints how the faulty ones relate to the healthy one.
fn compare(pool: &Pool) {
    let mut cases = [
        Compared::new(Case::healthy(pool, NODES)),
        Compared::new(Case::one_refused(pool)),
        Compared::new(Case::one_killed(pool)),
        Compared::new(Case::one_silent(pool)),
        Compared::new(Case::frozen(pool, 1)),
        Compared::new(Case::frozen(pool, 2)),
    ];
    let started = now();
    for turn in 0..TURNS_MAX {
        let age = now().duration_since(started);
        if age >= TURNS_TIME {
            break;
        }
        take_turns(&mut cases, turn, age);
    }
    print_table(&cases);
}

fn take_turns(cases: &mut [Compared], turn: usize, age: Duration) {
    // Nobody always comes after the same one.
    for place in 0..cases.len() {
        cases[(turn + place) % cases.len()].take_turn();
    }
    let healthy = cases[0].turn.median();
    for compared in cases {
        let ratio = compared.turn.median() / healthy;
        match age < GIVEN_UP_AFTER {
            true => compared.early.push(ratio),
            false => compared.late.push(ratio),
        }
    }
}

fn print_table(cases: &[Compared]) {
    let turns = cases[0].early.len() + cases[0].late.len();
    println!("ratios in one run: {turns} turns of {TURN_PAIRS} pairs for each case");
    println!("(the median of each turn's p50 over the healthy p50 of the same turn; early: in the");
    println!(
        "first {GIVEN_UP_AFTER:?}, while the connection to a frozen master is kept; times in µs)"
    );
    println!(
        "{:12} {:>6} {:>6} {:>6} {:>9} {:>9} {:>9} {:>8} {:>7}",
        "case", "ratio", "early", "late", "p50", "p99", "max", "pairs", "failed"
    );
    for compared in cases {
        let [p50, p99, max] = compared.all.percentiles([50.0, 99.0, 100.0]);
        let all: Vec<f64> = [compared.early.as_slice(), &compared.late].concat();
        println!(
            "{:12} {:6.2} {:6.2} {:6.2} {p50:9.1} {p99:9.1} {max:9.1} {:8} {:7}",
            compared.case.name,
            median(&all),
            median(&compared.early),
            median(&compared.late),
            compared.all.times.len(),
            compared.all.failed,
        );
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Options of Criterion that are followed by a value, which is no filter.
const VALUE_OPTIONS: [&str; 18] = [
    "-b",
    "-c",
    "-s",
    "--baseline",
    "--baseline-lenient",
    "--color",
    "--colour",
    "--confidence-level",
    "--format",
    "--measurement-time",
    "--noise-threshold",
    "--nresamples",
    "--output-format",
    "--plotting-backend",
    "--sample-size",
    "--save-baseline",
    "--significance-level",
    "--warm-up-time",
];
/// Options with which nothing is measured, or something else.
const OTHER_MODES: [&str; 4] = ["--test", "--list", "--load-baseline", "--profile-time"];

/// Whether the arguments ask for measurements, and no filter leaves the table out.
fn is_ratios_wanted(mut args: impl Iterator<Item = String>) -> bool {
    let (mut measures, mut filtered, mut named) = (false, false, false);
    while let Some(arg) = args.next() {
        if OTHER_MODES.contains(&arg.as_str()) {
            return false;
        } else if VALUE_OPTIONS.contains(&arg.as_str()) {
            args.next();
        } else if arg == "--bench" {
            // `cargo test --benches` does not say so.
            measures = true;
        } else if !arg.starts_with('-') {
            filtered = true;
            named |= "ratios".contains(&arg);
        }
    }
    measures && (named || !filtered)
}

fn timed<T>(measured: impl FnOnce() -> T) -> (Duration, T) {
    let start = now();
    let result = measured();
    (now().duration_since(start), result)
}

#[expect(clippy::disallowed_methods, reason = "measures how long a lock takes")]
fn now() -> Instant {
    Instant::now()
}
