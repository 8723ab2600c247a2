//! Masters at different distances: hand-overs take round trips, and nobody is left out.

use std::time::Duration;

use muxlock::settings::Waiting;
use testbed::proxy::DelayProxy;
use testbed::{SOON, heavy, pause, soon};

use crate::contender::Part;
use crate::scene::scene;
use crate::servers::{queue_holder, queue_node_order, queued_anywhere, start};

/// The round trips to the masters in milliseconds, in queue node order: those that are to have the
/// queue by their score are too far away.
const ROUND_TRIPS_MS: [u64; 5] = [40, 25, 15, 10, 5];
/// At most twice the smallest round trip and a millisecond (W2). A busy machine adds to both.
const NEAR_MS: u64 = 15;
const RUN: Duration = Duration::from_millis(3_000);
const GRANTS_MIN: usize = 5;
const UNEVENNESS_MAX: f64 = 5.0;
/// A hand-over takes 25 to 40 ms.
const GAP_MAX: Duration = Duration::from_millis(500);

#[test]
fn slow_alone_masters_at_different_distances_hand_over_evenly() {
    scene("slow_alone_masters_at_different_distances_hand_over_evenly", |scene| {
        let _alone = heavy();
        let masters = start(ROUND_TRIPS_MS.len());
        let order = queue_node_order(&masters);
        let round_trip_ms = |master| {
            let place = order.iter().position(|at| *at == master);
            ROUND_TRIPS_MS[place.expect("each has a place")]
        };
        let way = |master: usize| {
            let addr = masters[master].addr().parse().expect("an address");
            let round_trip = Duration::from_millis(round_trip_ms(master));
            DelayProxy::start(addr, round_trip).expect("a free port")
        };
        let ways: Vec<_> = (0..masters.len()).map(way).collect();
        let part = Part::new(ways.iter().map(DelayProxy::url).collect(), Waiting::Queue);
        let crowd = scene.crowd(vec![part; 4]);
        // At first, no client knows how far away they are.
        pause(RUN);
        let holder = queue_holder(&masters, SOON);
        let report = crowd.end("Queue");
        let grants = report.grants();
        assert!(grants.iter().all(|grants| *grants >= GRANTS_MIN), "{grants:?}");
        assert!(report.unevenness() <= UNEVENNESS_MAX, "{grants:?}");
        let gap = report.longest_gap();
        assert!(gap < GAP_MAX, "nobody held the lock for {gap:?}");
        let away = round_trip_ms(holder);
        assert!(away <= NEAR_MS, "the queue is {away} ms away");
        soon("nobody stands in the queue any more", || queued_anywhere(&masters) == 0);
    });
}
