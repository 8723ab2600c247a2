//! Waiting for a lock that is held (W1 to W15), apart from all that decides about locks.
//!
//! [`WaitQueues`] owns the state of all waits: the local queue of each key, in which the
//! acquisitions of this engine wait, and that queue's entry in the queue on a master. The engine
//! reports each event to it: a round was refused, a lock was given up, a node was lost, a message
//! came. It leaves [`WaitOrder`]s for the engine: start a round, sleep until a moment, send a
//! command. It sees no round, no vote and no operation, so nothing that it does can make a lock
//! count.

mod ability;
mod choice;
mod consecutive_grants;
mod desk;
mod entry;
mod local_queue;
mod position;
mod push;
mod release_plan;
mod visit;
mod watch;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use desk::Desk;
use entry::QueueEntries;
use local_queue::Queues;
pub(super) use local_queue::{Departure, WaitingOp};
use visit::QueueVisits;

use super::command::Notify;
use super::nodes::Nodes;
use super::op_id::OpId;
use super::request::WaitCommand;
use crate::config::Config;
use crate::moment::Moment;
use crate::quorum::NodeSet;
use crate::resource::Key;
use crate::token::Entropy;

/// The fixed part of the overtake delay; the rest is round trips.
const OVERTAKE_DELAY_MIN: Duration = Duration::from_millis(2);
const OVERTAKE_ROUND_TRIPS: u32 = 4;
/// The second waiter checks the lock after at most this time.
const OVERTAKE_DELAY_MAX: Duration = Duration::from_millis(500);

/// The parts of the engine that a wait may use during one input.
pub(crate) struct Cx<'a> {
    pub(super) now: Moment,
    pub(super) nodes: &'a mut Nodes,
    pub(super) entropy: &'a mut dyn Entropy,
    /// The smoothed time of a round, if any is known.
    pub(super) rounds_take: Option<Duration>,
}

impl Cx<'_> {
    fn round_trip(&self) -> Duration {
        self.nodes.round_trip(self.rounds_take)
    }

    /// How long a notified first waiter has before the next one takes the lock: it seems to be
    /// asleep.
    fn overtake_delay(&self) -> Duration {
        (OVERTAKE_DELAY_MIN + self.round_trip().saturating_mul(OVERTAKE_ROUND_TRIPS))
            .min(OVERTAKE_DELAY_MAX)
    }
}

/// An order of a wait to the engine. Orders are carried out in turn, before the next input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitOrder {
    /// Start a round of this acquisition (W11): the one thing that a wait decides.
    Start(OpId),
    /// Call [`WaitQueues::due`] at this moment, unless a round starts before.
    SleepUntil(OpId, Moment),
    /// The same, if it would sleep for longer.
    WakeBy(OpId, Moment),
    Send(usize, WaitCommand),
    /// Call [`QueueVisits::lose_node`]: one cannot wait at this node.
    LeaveNode(usize),
}

/// How a lock that is given up is released at the queue nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReleasePlan {
    pub(super) nodes: NodeSet,
    pub(super) notify: Notify,
    /// The visit that asks for the lock before the local queue does.
    visit: Option<u32>,
}

impl ReleasePlan {
    /// The usual release on all nodes.
    pub(super) const USUAL: ReleasePlan =
        ReleasePlan { nodes: NodeSet::EMPTY, notify: Notify::CountOnly, visit: None };
}

/// The next step after a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterRelease {
    Nothing,
    /// Call [`WaitQueues::requeue`].
    Requeue,
}

/// Counters of waits, as in [`Stats`](super::Stats).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WaitStats {
    pub(super) queued: u64,
    pub(super) notifications_received: u64,
    pub(super) notifications_sent: u64,
    pub(super) skipped: u64,
    pub(super) spurious_wakeups: u64,
    pub(super) requeued: u64,
    pub(super) server_errors: u64,
}

/// The acquisitions that wait for the same resource as others of this engine, and their positions
/// in the queues on the masters.
pub(crate) struct LocalQueues {
    pub(super) desk: Desk,
    pub(super) queues: Queues,
    pub(super) entries: QueueEntries,
}

/// All waiting acquisitions, and their entries in the masters' queues.
pub(crate) struct WaitQueues {
    pub(super) local: LocalQueues,
    pub(super) visits: QueueVisits,
}

#[cfg(feature = "testing")]
impl LocalQueues {
    /// A broken invariant of an entry, with its key.
    pub(super) fn broken(&self) -> Option<String> {
        self.entries.iter().find_map(|(number, entry)| {
            let is_its = self.queues.entry_of(&entry.key) == Some(number);
            let what = entry.broken().or((!is_its).then_some("its queue has another entry"));
            what.map(|what| format!("{:?}: {what}", entry.key))
        })
    }
}

impl WaitQueues {
    /// Nothing waits. The seed keeps attackers from choosing names that collide.
    pub(super) fn new(config: Arc<Config>, seed: u64) -> WaitQueues {
        let (desk, queues) = (Desk::new(config), Queues::new(seed));
        let local = LocalQueues { desk, queues, entries: QueueEntries::default() };
        WaitQueues { local, visits: QueueVisits::default() }
    }

    /// A round of the acquisition has failed, and another may follow: it waits from now on.
    pub(super) fn pause(&mut self, key: &Key, who: WaitingOp, attempts: u32) {
        self.local.queues.pause(key, who.id, attempts);
        if !key.is_plain() {
            self.visits.note_waiting(who, attempts);
        }
    }

    /// A round of the acquisition begins, or it has a result: it waits no longer.
    pub(super) fn stop(&mut self, key: &Key, id: OpId) {
        self.local.queues.stop(key, id);
        if !key.is_plain() {
            self.visits.note_awake(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Builder;
    use crate::resource::{Key, Resource};
    use crate::token::{LockToken, Sevens};

    const NOW: Moment = Moment::from_nanos(1_000_000_000);

    /// What waits, and nodes that are not connected.
    struct Scene {
        waits: WaitQueues,
        nodes: Nodes,
        key: Key,
    }

    impl Scene {
        fn new() -> Scene {
            let urls = (1..=3).map(|port| format!("redis://127.0.0.1:{port}"));
            let config = Arc::new(Builder::default().nodes(urls).config().unwrap());
            let waits = WaitQueues::new(Arc::clone(&config), 7);
            Scene {
                waits,
                nodes: Nodes::new(config),
                key: Key::new(Resource::new("r").unwrap(), b""),
            }
        }

        fn with<T>(&mut self, act: impl FnOnce(&mut WaitQueues, &mut Cx<'_>, &Key) -> T) -> T {
            let nodes = &mut self.nodes;
            let mut cx = Cx { now: NOW, nodes, entropy: &mut Sevens, rounds_take: None };
            act(&mut self.waits, &mut cx, &self.key)
        }

        fn orders(&mut self) -> Vec<WaitOrder> {
            self.waits.local.desk.take_orders().into()
        }
    }

    fn waiter(slot: u32) -> WaitingOp {
        let id = OpId { slot, generation: 1, instance: 1 };
        WaitingOp { id, give_up_at: NOW.after(Duration::from_secs(1)) }
    }

    #[test]
    fn first_may_start_and_the_next_one_sleeps_as_long_as_it_has_patience() {
        let mut scene = Scene::new();
        let (first, next) = (waiter(0), waiter(1));
        assert!(scene.with(|waits, cx, key| waits.local.join(cx, key, first)));
        assert_eq!(scene.orders(), []);
        assert!(!scene.with(|waits, cx, key| waits.local.join(cx, key, next)));
        assert_eq!(scene.orders(), [WaitOrder::SleepUntil(next.id, next.give_up_at)]);
        scene.with(|waits, cx, key| waits.local.leave(cx, key, first.id, Departure::default()));
        assert_eq!(scene.orders(), [WaitOrder::Start(next.id)]);
    }

    #[test]
    fn next_one_starts_when_the_lock_is_given_up_and_once() {
        let mut scene = Scene::new();
        let (first, next, token) = (waiter(0), waiter(1), LockToken::from_random([1; 20]));
        let until = NOW.after(Duration::from_millis(100));
        for who in [first, next] {
            scene.with(|waits, cx, key| waits.local.join(cx, key, who));
        }
        scene.orders();
        let left = Departure { got: Some((token, until)), ..Departure::default() };
        scene.with(|waits, cx, key| waits.local.leave(cx, key, first.id, left));
        assert_eq!(scene.orders(), [WaitOrder::SleepUntil(next.id, until)]);
        for expected in [&[WaitOrder::Start(next.id)][..], &[]] {
            scene.with(|waits, cx, key| waits.released(cx, key, token, ReleasePlan::USUAL));
            assert_eq!(scene.orders(), expected);
        }
    }

    #[test]
    fn one_that_has_ended_is_passed_over() {
        let mut scene = Scene::new();
        let [first, gone, next] = [0, 1, 2].map(waiter);
        for who in [first, gone, next] {
            scene.with(|waits, cx, key| waits.local.join(cx, key, who));
        }
        scene.with(|waits, cx, key| waits.local.leave(cx, key, gone.id, Departure::default()));
        scene.orders();
        scene.with(|waits, cx, key| waits.local.leave(cx, key, first.id, Departure::default()));
        assert_eq!(scene.orders(), [WaitOrder::Start(next.id)]);
    }

    /// W1: there is no queue where no node can be waited at.
    #[test]
    fn refused_without_a_node_to_wait_at_it_does_not_queue() {
        let mut scene = Scene::new();
        let refused = (NodeSet::all(3), false);
        scene.with(|waits, cx, key| waits.local.join(cx, key, waiter(0)));
        assert!(!scene.with(|waits, cx, key| waits.local.refused(cx, key, waiter(0), refused)));
        assert_eq!(scene.orders(), []);
    }
}
