//! The engine by itself: every node answers in memory, so that what is measured is the counting of
//! votes and nothing else. `K` operations in flight are one iteration: read their throughput.
//!
//! The engine is driven as the event loop drives it: timeouts first, then commands, replies and
//! results, and the next deadline is asked for before each wait.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use muxlock::Resource;
use testbed::memory::{Group, Key};

const NODES: [usize; 6] = [1, 3, 5, 9, 33, 64];
const IN_FLIGHT: [usize; 3] = [1, 64, 4096];

fn resource(number: usize) -> Resource {
    Resource::new(format!("invoice:{number}")).expect("a short name")
}

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine");
    let invoice = resource(42);
    for nodes in NODES {
        let mut masters = Group::new(nodes);
        group.bench_function(BenchmarkId::new("pair", nodes), |bencher| {
            bencher.iter(|| masters.pair(&invoice));
        });
    }
    let mut masters = Group::with_key(5, Key::Held);
    group.bench_function("contended/5", |bencher| {
        bencher.iter(|| masters.contended(&invoice));
    });
    let mut masters = Group::with_one_silent(5);
    group.bench_function("one_silent/5", |bencher| {
        bencher.iter(|| masters.pair(&invoice));
    });
    group.finish();
}

fn in_flight(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine");
    for operations in IN_FLIGHT {
        let resources: Vec<Resource> = (0..operations).map(resource).collect();
        let mut leases = Vec::with_capacity(operations);
        let mut masters = Group::new(5);
        group.throughput(Throughput::Elements(operations as u64));
        group.bench_function(BenchmarkId::new("in_flight", operations), |bencher| {
            bencher.iter(|| masters.pairs_at_once(&resources, &mut leases));
        });
    }
    group.finish();
}

criterion_group!(benches, pairs, in_flight);
criterion_main!(benches);
