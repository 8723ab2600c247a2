//! Numbers for monitoring, every ten seconds, through the `metrics` crate.
//!
//! ```text
//! cargo run --example metrics -- redis://10.0.0.{1,2,3}
//! ```
//!
//! With `idle` before the addresses, it takes no lock: the numbers are those of an idle process.
//!
//! [`Sampler`] is what to copy. Install the exporter of your choice in place of [`Printer`], which
//! prints the last values when the program ends. `docs/monitoring.md` has rules for alerts on these
//! names. No name and no label says which resource is locked: there are too many.
//!
//! With the crate `prometheus-client`, take the collector of `examples/service` instead.
//!
//! With the exporter `metrics-exporter-prometheus`, a histogram has buckets only if it is told
//! them; otherwise it is a summary, and no query for `muxlock_acquire_seconds_bucket` finds it:
//!
//! ```text
//! let buckets = muxlock::Histogram::default().buckets();
//! let bounds: Vec<f64> = buckets.map(|(upper, _)| upper.as_secs_f64()).collect();
//! let all = Matcher::Prefix("muxlock_".to_owned());
//! PrometheusBuilder::new().set_buckets_for_metric(all, &bounds)?.install()?;
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, counter, gauge, histogram,
};
use muxlock::Redlock;
use muxlock::node::{NodeState, NodeStatus};

const PERIOD: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(10);
/// How long a sample waits for masters that are not connected.
const PATIENCE: Duration = Duration::from_millis(600);
/// How often, and how many times, it looks for those that are still connecting then.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
const LOOKS_MAX: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    let is_idle = urls.first().is_some_and(|word| word == "idle");
    urls.drain(..usize::from(is_idle));
    if urls.is_empty() {
        eprintln!("usage: metrics redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3");
        std::process::exit(2);
    }
    let printer = Printer::default();
    metrics::set_global_recorder(printer.clone())?;
    let redlock = Redlock::builder().nodes(urls).build()?;

    let (stop, stopped) = mpsc::channel::<()>();
    let mut sampler = Sampler::new(redlock.clone());
    let sampling = thread::spawn(move || {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(PERIOD) {
            sampler.sample();
        }
        // What happened since the last sample.
        sampler.sample();
    });

    if !is_idle {
        work(&redlock)?;
    }
    drop(stop);
    sampling.join().expect("it does not panic");
    printer.print();
    Ok(())
}

fn work(redlock: &Redlock) -> Result<(), muxlock::Error> {
    let lock = redlock.try_lock("report:daily", TTL)?;
    println!("{} waited {:?}, {} round", lock.fingerprint(), lock.waited(), lock.rounds());
    if let Err(error) = redlock.try_lock("report:daily", TTL) {
        println!("{error}");
    }
    if !lock.unlock()?.was_held() {
        println!("the lock may have been lost before");
    }
    Ok(())
}

/// Passes the numbers of one client on.
struct Sampler {
    redlock: Redlock,
    acquire: Passed,
    hold: Passed,
}

impl Sampler {
    fn new(redlock: Redlock) -> Sampler {
        Sampler {
            redlock,
            acquire: Passed::new("muxlock_acquire_seconds"),
            hold: Passed::new("muxlock_hold_seconds"),
        }
    }

    fn sample(&mut self) {
        let nodes = self.connected();
        let (stats, times) = (self.redlock.stats(), self.redlock.times());
        self.acquire.pass(&times.acquire);
        self.hold.pass(&times.hold);
        gauge!("muxlock_waiting").set(stats.waiting as f64);
        gauge!("muxlock_held").set(stats.held as f64);
        counter!("muxlock_acquired_total").absolute(stats.acquired);
        // Another holder has it, or too few masters give a vote: two different alarms.
        counter!("muxlock_contended_total").absolute(stats.contended);
        counter!("muxlock_unavailable_total").absolute(stats.unavailable);
        counter!("muxlock_lost_total").absolute(stats.lost);
        counter!("muxlock_extensions_failed_total").absolute(stats.extensions_failed);
        for node in nodes {
            let label = [("node", node.address.to_string())];
            let is_up = matches!(node.state, NodeState::Ready | NodeState::Quarantined);
            let latency = node.latency.unwrap_or_default();
            gauge!("muxlock_node_up", &label).set(f64::from(is_up));
            gauge!("muxlock_node_latency_seconds", &label).set(latency.as_secs_f64());
            let is_quarantined = node.quarantine.is_some();
            gauge!("muxlock_node_quarantined", &label).set(f64::from(is_quarantined));
            gauge!("muxlock_node_pending_releases", &label).set(node.pending_releases as f64);
        }
    }

    /// A client connects only during calls. Without this one, a process that has locked nothing for
    /// a while would report masters that are down.
    #[allow(clippy::disallowed_methods, reason = "nothing else waits for the last master")]
    fn connected(&self) -> Vec<NodeStatus> {
        // It returns as soon as a quorum is connected.
        let _ = self.redlock.ready(PATIENCE);
        let is_connecting = |node: &NodeStatus| {
            matches!(node.state, NodeState::Connecting | NodeState::Handshaking)
        };
        for _ in 1..LOOKS_MAX {
            if !self.redlock.nodes().iter().any(is_connecting) {
                break;
            }
            thread::sleep(LOOK_INTERVAL);
        }
        self.redlock.nodes()
    }
}

/// What of a histogram was passed on. The `metrics` crate takes single durations: each counts as
/// the upper bound of its bucket.
struct Passed {
    name: &'static str,
    counts: Vec<u64>,
}

impl Passed {
    fn new(name: &'static str) -> Passed {
        Passed { name, counts: vec![0; muxlock::Histogram::BUCKETS] }
    }

    fn pass(&mut self, times: &muxlock::Histogram) {
        let mut below = 0;
        for ((upper, cumulative), passed) in times.buckets().zip(&mut self.counts) {
            let count = cumulative - below;
            below = cumulative;
            let new = (count - *passed) as usize;
            *passed = count;
            histogram!(self.name).record_many(upper.as_secs_f64(), new);
        }
    }
}

/// Stands for an exporter: keeps the last value of each metric.
#[derive(Clone, Default)]
struct Printer {
    values: Arc<Mutex<BTreeMap<String, f64>>>,
}

impl Printer {
    fn print(&self) {
        for (name, value) in &*self.values.lock().expect("nothing panics while it has it") {
            println!("{name} {value}");
        }
    }

    fn metric(&self, key: &Key) -> Arc<Metric> {
        let labels = key.labels().map(|label| format!("{}=\"{}\"", label.key(), label.value()));
        let labels: Vec<String> = labels.collect();
        let name = match labels.as_slice() {
            [] => key.name().to_owned(),
            labels => format!("{}{{{}}}", key.name(), labels.join(",")),
        };
        Arc::new(Metric { name, printer: self.clone() })
    }
}

struct Metric {
    name: String,
    printer: Printer,
}

impl Metric {
    fn change(&self, change: impl FnOnce(f64) -> f64) {
        let mut values = self.printer.values.lock().expect("nothing panics while it has it");
        let value = values.entry(self.name.clone()).or_default();
        *value = change(*value);
    }
}

impl CounterFn for Metric {
    fn increment(&self, by: u64) {
        self.change(|value| value + by as f64);
    }

    fn absolute(&self, total: u64) {
        self.change(|value| value.max(total as f64));
    }
}

impl GaugeFn for Metric {
    fn increment(&self, by: f64) {
        self.change(|value| value + by);
    }

    fn decrement(&self, by: f64) {
        self.change(|value| value - by);
    }

    fn set(&self, new: f64) {
        self.change(|_| new);
    }
}

/// Shows how many durations there are; an exporter keeps them in buckets.
impl HistogramFn for Metric {
    fn record(&self, duration: f64) {
        self.record_many(duration, 1);
    }

    fn record_many(&self, _: f64, count: usize) {
        self.change(|value| value + count as f64);
    }
}

impl Recorder for Printer {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.metric(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.metric(key))
    }
}
