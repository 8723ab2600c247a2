//! The numbers of one client for Prometheus, through the crate `prometheus-client`. Copy this file
//! as it is.
//!
//! `docs/monitoring.md` has rules for alerts and queries on these names. No name and no label says
//! which resource is locked: there are too many.

use std::time::Duration;
use std::{fmt, thread};

use muxlock::node::{NodeState, NodeStatus};
use muxlock::{Histogram, Redlock};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// How long a scrape waits for masters that are not connected.
const PATIENCE: Duration = Duration::from_millis(600);
/// How often, and how many times, a scrape looks for those that are still connecting then.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
const LOOKS_MAX: usize = 10;

/// Reads the numbers at each scrape. Register it once for each client:
/// `registry.register_collector(Box::new(Locks(redlock.clone())))`.
#[derive(Debug)]
pub struct Locks(pub Redlock);

impl Collector for Locks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let nodes = connected(&self.0);
        let (stats, times) = (self.0.stats(), self.0.times());
        histogram(&mut encoder, "acquire_seconds", "From the call to the grant", &times.acquire)?;
        histogram(&mut encoder, "hold_seconds", "From the grant to the release", &times.hold)?;
        for (name, help, value) in [
            ("muxlock_waiting", "Acquisitions in flight", stats.waiting),
            ("muxlock_held", "Locks granted and not yet released", stats.held),
        ] {
            let gauge = ConstGauge::new(value as f64);
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        // The text has `_total` behind each name.
        for (name, help, value) in [
            ("muxlock_acquired", "Locks granted", stats.acquired),
            ("muxlock_contended", "Another holder has the lock", stats.contended),
            ("muxlock_unavailable", "Too few masters gave a vote", stats.unavailable),
            ("muxlock_lost", "Renewed locks that were lost", stats.lost),
            ("muxlock_extensions_failed", "Failed extensions", stats.extensions_failed),
        ] {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let is_up: fn(&NodeStatus) -> f64 = is_up;
        for (name, help, value) in [
            ("muxlock_node_up", "Connected, even in quarantine", is_up),
            ("muxlock_node_latency_seconds", "From command to reply", latency),
            ("muxlock_node_quarantined", "Its votes are ignored", is_quarantined),
            ("muxlock_node_pending_releases", "Releases still to be sent", pending_releases),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for node in &nodes {
                let labels = [("node", &*node.address)];
                ConstGauge::new(value(node)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// A client connects only during calls. Without this one, a process that has locked nothing for a
/// while would report masters that are down.
#[allow(clippy::disallowed_methods, reason = "nothing else waits for the last master")]
fn connected(redlock: &Redlock) -> Vec<NodeStatus> {
    // It returns as soon as a quorum is connected.
    let _ = redlock.ready(PATIENCE);
    let is_connecting =
        |node: &NodeStatus| matches!(node.state, NodeState::Connecting | NodeState::Handshaking);
    for _ in 1..LOOKS_MAX {
        if !redlock.nodes().iter().any(is_connecting) {
            break;
        }
        thread::sleep(LOOK_INTERVAL);
    }
    redlock.nodes()
}

fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    times: &Histogram,
) -> fmt::Result {
    // The encoder adds the counts up itself, and expects a last bucket for the rest.
    let mut below = 0;
    let all = [(f64::INFINITY, times.count())];
    let buckets = times.buckets().map(|(upper, count)| (upper.as_secs_f64(), count)).chain(all);
    let own = |(upper, count)| (upper, count - std::mem::replace(&mut below, count));
    let buckets: Vec<(f64, u64)> = buckets.map(own).collect();
    let name = format!("muxlock_{name}");
    let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Histogram)?;
    let sum = times.sum().as_secs_f64();
    metric.encode_histogram::<NoLabelSet>(sum, times.count(), &buckets, None)
}

fn is_up(node: &NodeStatus) -> f64 {
    f64::from(matches!(node.state, NodeState::Ready | NodeState::Quarantined))
}

fn latency(node: &NodeStatus) -> f64 {
    node.latency.unwrap_or_default().as_secs_f64()
}

fn is_quarantined(node: &NodeStatus) -> f64 {
    f64::from(node.quarantine.is_some())
}

fn pending_releases(node: &NodeStatus) -> f64 {
    node.pending_releases as f64
}
