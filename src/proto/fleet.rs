//! All nodes, and what is known of several at once.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::NodeSet;
use super::node::{Node, Notice, Process, State};
use crate::config::Config;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, QuarantineCause, Unfit};

/// The most departed processes that are remembered by name.
const DEPARTED_MAX: usize = 64;

/// Processes that have left a node's address. Each is kept while a vote that it gave there may
/// count, because it may reappear at another node's address.
#[derive(Default)]
struct Departed {
    known: VecDeque<(Arc<str>, Moment)>,
    /// Until then, any process may be a departed one whose name was dropped.
    unknown_until: Option<Moment>,
}

impl Departed {
    fn note(&mut self, now: Moment, run_id: Arc<str>, until: Moment) {
        self.known.retain(|(_, until)| !now.is_certainly_past(*until));
        if self.known.len() >= DEPARTED_MAX {
            self.unknown_until = self.known.pop_front().map(|(_, until)| until);
        }
        self.known.push_back((run_id, until));
    }

    /// Until when the process must not vote at another address.
    fn until(&self, now: Moment, run_id: &str) -> Option<Moment> {
        let known = self.known.iter().rev().find(|(departed, _)| **departed == *run_id);
        let until = known.map(|(_, until)| *until).or(self.unknown_until);
        until.filter(|until| !now.is_certainly_past(*until))
    }
}

pub(super) struct Fleet {
    nodes: Vec<Node>,
    /// No node's clock or role is to be checked before this moment; `None` if that must be
    /// recomputed.
    next_check_at: Option<Moment>,
    departed: Departed,
    /// How long a server must be watched before its votes count.
    quarantine: Duration,
}

/// What follows when a node becomes ready.
pub(super) struct Welcome {
    /// Old connections to kill.
    pub(super) kills: Vec<i64>,
    pub(super) notice: Option<Notice>,
    /// Why and until when its votes do not count.
    pub(super) quarantines: [Option<(QuarantineCause, Moment)>; 2],
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
        Fleet {
            nodes,
            next_check_at: None,
            departed: Departed::default(),
            quarantine: config.quarantine,
        }
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

    /// The handshake is complete: decides whether the server may vote.
    pub(super) fn welcome(&mut self, now: Moment, node: usize) -> Result<Welcome, Unfit> {
        let twin = self.twin(node);
        self.nodes[node].set_duplicate(twin);
        if let Some(reason) = self.nodes[node].unfit() {
            return Err(reason);
        }
        let recognised = self.nodes[node].become_ready(now);
        if let Some(left) = recognised.left {
            self.departed.note(now, left, now.after(self.quarantine));
        }
        let mut welcome =
            Welcome { kills: Vec::new(), notice: None, quarantines: [None, recognised.quarantine] };
        match recognised.process {
            Process::Unknown => welcome.notice = Some(Notice::Unidentified),
            Process::Same => welcome.kills = self.nodes[node].kill_old_connections(),
            Process::Other(run_id) => {
                let until = self.moved_until(now, node, &run_id);
                welcome.quarantines[0] = until.map(|until| (QuarantineCause::Moved, until));
            }
        }
        Ok(welcome)
    }

    /// Another node with the same process. Only ready nodes are considered: a process may legally
    /// have moved here from an address that is dead (R34).
    fn twin(&self, node: usize) -> Option<usize> {
        let run_id = self.nodes[node].run_id()?;
        (0..self.nodes.len()).find(|other| {
            let at = &self.nodes[*other];
            *other != node && at.state() == State::Ready && at.run_id() == Some(run_id)
        })
    }

    /// Until when a process that was at another node's address before must not vote at this one. It
    /// must not be counted for both nodes in one round, nor for a lock that it was counted for
    /// there; and its quarantine continues. It need not be the last process at that address.
    fn moved_until(&self, now: Moment, node: usize, run_id: &str) -> Option<Moment> {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != node);
        let own = now.after(self.quarantine);
        others
            .filter(|(_, at)| at.has_seen(run_id))
            .map(|(_, at)| at.quarantined_until().unwrap_or(own))
            .map(|until| if own.is_certainly_past(until) { own } else { until })
            .chain(self.departed.until(now, run_id))
            .max_by_key(|until| until.steady_nanos())
    }

    /// Two nodes that are the same server, if any: the one that was connected first, and the other
    /// one.
    pub(super) fn duplicates(&self) -> Option<(usize, usize)> {
        let duplicate = |(node, at): (usize, &Node)| {
            let is_duplicate = at.last_failure() == NodeOutcome::Unfit(Unfit::Duplicate);
            at.duplicate_of().filter(|_| is_duplicate).map(|first| (first, node))
        };
        self.nodes.iter().enumerate().find_map(duplicate)
    }
}
