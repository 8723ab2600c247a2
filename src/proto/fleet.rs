//! All nodes, and what is known of several at once.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::NodeSet;
use super::node::Node;
use crate::config::Config;
use crate::moment::Moment;

pub(super) struct Fleet {
    nodes: Vec<Node>,
    /// No node's clock or role is to be checked before this moment; `None` if that must be
    /// recomputed.
    next_check_at: Option<Moment>,
}

impl Deref for Fleet {
    type Target = [Node];

    #[inline(always)]
    fn deref(&self) -> &[Node] {
        &self.nodes
    }
}

impl DerefMut for Fleet {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }
}

impl Fleet {
    pub(super) fn new(config: &Arc<Config>) -> Fleet {
        let nodes = (0..config.nodes()).map(|node| Node::new(Arc::clone(config), node)).collect();
        Fleet { nodes, next_check_at: None }
    }

    /// Whether a node's clock or role may have to be checked before the next SET.
    #[inline]
    pub(super) fn may_be_unchecked(&self, now: Moment) -> bool {
        self.next_check_at.is_none_or(|due| now >= due)
    }

    /// Something has happened that may make a check due earlier.
    pub(super) fn check_anew(&mut self) {
        self.next_check_at = None;
    }

    /// The nodes to be asked for their time, and for their role, before these are sent a SET.
    pub(super) fn check(&mut self, now: Moment, nodes: NodeSet) -> (NodeSet, NodeSet) {
        let (mut clocks, mut roles) = (NodeSet::EMPTY, NodeSet::EMPTY);
        // If one is due, all nodes at once, so that these commands share one write with what
        // follows.
        let is_clock_due = nodes.iter().any(|node| self.nodes[node].is_clock_due(now));
        let is_role_due = nodes.iter().any(|node| self.nodes[node].is_role_due(now));
        for node in nodes.iter() {
            if is_clock_due && self.nodes[node].ask_time(now) {
                clocks.insert(node);
            }
            if is_role_due && self.nodes[node].ask_role(now) {
                roles.insert(node);
            }
        }
        let due = self.nodes.iter().filter_map(|node| node.check_due(now)).min();
        self.next_check_at = Some(due.unwrap_or(Moment::END));
        (clocks, roles)
    }
}
