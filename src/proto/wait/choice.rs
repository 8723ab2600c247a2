//! The order in which clients choose the node in whose queue they wait (W2).
//!
//! All clients of a resource have to agree without talking to each other. So each node has a score
//! for each key, from the name of its process alone (rendezvous hashing: Thaler and Ravishankar,
//! "A Name-Based Mapping Scheme for Rendezvous", 1996). If one node is left out, the others keep
//! their order.

use std::time::Duration;

use super::ability::Waitable;
use crate::moment::Moment;
use crate::outcome::NodeOutcome;
use crate::proto::nodes::{Nodes, State};
use crate::proto::status::{QueueObstacle, QueueSupport};
use crate::resource::Key;

/// A queue node's shortest round trip may exceed twice that of the nearest node by this (W2).
const NEAR_SLACK: Duration = Duration::from_millis(1);
/// The nodes as places to wait at.
#[derive(Clone, Copy)]
pub(crate) struct Choice<'a> {
    pub(super) nodes: &'a Nodes,
    /// Whether one can wait at each of them.
    pub(super) able: &'a [Waitable],
}

impl Choice<'_> {
    /// All nodes in the order in which clients prefer them as the queue node of this key (W2).
    pub(super) fn queue_node_order(self, key: &Key) -> Vec<usize> {
        let mut nodes: Vec<usize> = (0..self.nodes.len()).collect();
        nodes.sort_by_cached_key(|node| {
            std::cmp::Reverse(score(self.nodes[*node].guard.name(), key.as_bytes()))
        });
        nodes
    }

    /// Whether a wait may use the node: it answers in time, and nothing is known that speaks
    /// against it.
    pub(super) fn may_wait_at(self, node: usize) -> bool {
        let at = &self.nodes[node];
        self.nodes.open().contains(node)
            && !at.pipeline.has_timed_out()
            && !matches!(self.able[node].state(), QueueSupport::Unavailable(_))
    }

    /// Whether a lock may be released there by the script that counts and notifies waiters. It
    /// takes less than a position in the queue.
    pub(super) fn may_release_at(self, node: usize) -> bool {
        let takes_no_script =
            self.able[node].state() == QueueSupport::Unavailable(QueueObstacle::Queue);
        may_pass_on(self.nodes, node) && !takes_no_script
    }

    /// The first of these nodes in the order of queue nodes.
    pub(super) fn first_among(
        &self,
        key: &Key,
        is_candidate: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let score_of = |node: &usize| score(self.nodes[*node].guard.name(), key.as_bytes());
        (0..self.nodes.len()).filter(|node| is_candidate(*node)).rev().max_by_key(score_of)
    }

    /// The node that others most likely see as the queue node. A candidate here need not be one for
    /// another engine, and the other way round.
    pub(super) fn likeliest(self, now: Moment, key: &Key) -> Option<usize> {
        let candidate = self.first_among(key, |node| self.is_candidate(now, node));
        candidate.or_else(|| self.first_among(key, |node| self.may_wait_at(node)))
    }

    /// Where to look for others after so many looks: at each of these nodes in turn, from the
    /// likeliest queue node on.
    pub(super) fn rotated(
        &self,
        now: Moment,
        key: &Key,
        looks: usize,
        may_be: impl Fn(usize) -> bool + Clone,
    ) -> Option<usize> {
        // An engine that can wait nowhere counts all the same.
        let likeliest = self.likeliest(now, key).or_else(|| self.first_among(key, &may_be))?;
        let ring = (likeliest..self.nodes.len()).chain(0..likeliest).filter(|node| may_be(*node));
        let count = ring.clone().count();
        ring.clone().nth(looks.checked_rem(count)?)
    }

    /// Whether the node is being connected, and nothing is known that speaks against it.
    pub(super) fn is_awaited(self, node: usize) -> bool {
        let at = &self.nodes[node];
        let is_first = at.link.last_failure() == NodeOutcome::NotConnected;
        is_first && matches!(at.state(), State::Connecting { .. } | State::Handshaking { .. })
    }

    /// Whether the node is a candidate for a queue node (W2).
    pub(super) fn is_candidate(self, now: Moment, node: usize) -> bool {
        let is_near = self.nodes[node].pipeline.least_latency().is_none_or(|least| {
            // The usual time of a node is never less than its shortest, and counts plain grants.
            let usual_of = |node: usize| self.nodes[node].pipeline.latency();
            let least = usual_of(node).map_or(least, |usual| usual.min(least));
            let nearest = self.nodes.open().iter().filter_map(usual_of).min().unwrap_or(least);
            least <= nearest.saturating_mul(2).saturating_add(NEAR_SLACK)
        });
        self.may_wait_at(node) && self.nodes.is_trusted(now, node) && is_near
    }
}

/// Whether the node would soon read a command, so that it may notify the next client.
pub(super) fn may_pass_on(nodes: &Nodes, node: usize) -> bool {
    let at = &nodes[node];
    nodes.open().contains(node) && !at.pipeline.has_timed_out() && at.pipeline.has_room_to_notify()
}

/// The node with the greatest score is the queue node.
fn score(name: &[u8], key: &[u8]) -> u64 {
    mixed(name.iter().chain(&[0]).chain(key).fold(FNV_OFFSET, |hash, byte| {
        // FNV-1a, 64 bits (RFC 9923).
        (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME)
    }))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// The finaliser of MurmurHash3: the upper bits of FNV depend too little on the last bytes.
fn mixed(mut hash: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash ^= hash >> 33;
        hash = hash.wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W2. Other versions of this crate must compute the same.
    #[test]
    fn scores_are_those_of_the_rule() {
        let table = [
            ("invoice:42", 0x991f_20b2_acff_7cf3, 0x9609_12ef_6803_9a8c),
            ("k", 0x1ff2_e0a1_35d4_bcfc, 0xc6c4_ed14_332b_a373),
        ];
        for (key, first, second) in table {
            let scores = [b'a', b'b'].map(|name| score(&[name; 40], key.as_bytes()));
            assert_eq!(scores, [first, second], "{key}");
        }
    }

    #[test]
    fn each_node_is_the_queue_node_of_its_share_of_keys() {
        let names = [b'a', b'b', b'c'].map(|name| [name; 40]);
        let mut queue_nodes = [0; 3];
        for key in 0..3_000 {
            let key = format!("invoice:{key}");
            let best = (0..3).max_by_key(|node| score(&names[*node], key.as_bytes()));
            queue_nodes[best.unwrap()] += 1;
        }
        assert!(queue_nodes.iter().all(|keys| (900..1_100).contains(keys)), "{queue_nodes:?}");
    }
}
