//! Inspection: finds the holder of a resource, without taking it. It waits for every node, not for
//! a quorum.

use super::Engine;
use super::kind::{Claim, Lost, RoundKind};
use super::limits::OPERATIONS_MAX;
use super::nodes::State;
use super::op_id::OpId;
use super::operation::{Progress, Task};
use crate::inspection::{FoundKey, Inspection, NodeInspection};
use crate::lock_error::{LockError, LockErrorKind};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, NodeReport, Unfit};
use crate::proto::index::RoundId;
use crate::quorum::NodeSet;
use crate::resource::Resource;
use crate::token::LockToken;
use crate::validity::Ttl;

impl Engine {
    /// Starts to ask all nodes for the holder of the resource. It ends as
    /// [`Done::Inspected`](super::Done::Inspected), when every node has answered or failed.
    ///
    /// # Errors
    /// [`LockErrorKind::Overloaded`]: nothing was sent.
    pub fn inspect(&mut self, now: Moment, resource: Resource) -> Result<OpId, LockError> {
        let now = self.clamp(now);
        if self.operations.count() >= OPERATIONS_MAX {
            return Err(LockError::new(LockErrorKind::Overloaded, 0, Vec::new()));
        }
        let task = Task::Inspect { found: vec![None; self.nodes.len()] };
        let op = self.operations.start(task, Progress::Waiting);
        let key = self.config.key_of(resource);
        // The command has neither token nor TTL.
        let (token, ttl) = (LockToken::NONE, Ttl::LONGEST);
        let round = self.rounds.start(now, RoundKind::Inspect, Claim { key, token, ttl }, Some(op));
        self.operations[op].progress = Progress::Voting(round);
        // Nothing else limits the wait for a node whose socket accepts no more.
        let longest = self.config.connect_timeout + self.config.node_timeout;
        self.operations.set_timer(op, now.after(longest));
        self.send_to_all(now, round);
        Ok(self.operations.id_of(op))
    }

    /// The handshake has shown that the server has no vote. If it lacks a command of every lock, or
    /// tells of no flush, it still reports a lock's holder: waiting clients ask it, and no lock counts
    /// on it.
    #[cold]
    pub(super) fn refuse(&mut self, now: Moment, node: usize, reason: Unfit) {
        let outcome = NodeOutcome::Unfit(reason);
        let is_asked = |round: RoundId| self.rounds[round].kind.is_inspection();
        let at = &self.nodes[node];
        let may_be_asked = matches!(reason, Unfit::MissingCommand(_) | Unfit::NoNotices);
        if !(may_be_asked
            && at.pipeline.waits_for_any(is_asked)
            && self.cleanup.debts_of(node).awake() == 0)
        {
            return self.fail_node(now, node, outcome);
        }
        self.nodes[node].link.limit(now, outcome);
        let waiting = self.nodes[node].pipeline.take_waiting().into_iter();
        let (asked, others): (Vec<RoundId>, Vec<RoundId>) =
            waiting.partition(|round| self.rounds[*round].kind.is_inspection());
        for round in asked {
            self.send(NodeSet::one(node), round);
            self.rounds.dereference(round);
        }
        for round in others {
            let left = self.rounds.left(round, Lost::Unsent);
            self.cleanup.add_lost(now, &mut self.nodes, node, left);
            self.vote(now, round, node, outcome);
            self.rounds.dereference(round);
        }
    }

    /// Something needs more than answers of a server that lacked a command. The connection ends,
    /// and the next one asks again what the server has.
    pub(super) fn end_limited(&mut self, now: Moment, node: usize) {
        let is_limited = self.nodes[node].state() == State::Limited;
        if is_limited
            && self.nodes[node].pipeline.in_flight() == 0
            && !self.nodes.is_to_be_sent(node)
        {
            self.fail_node(now, node, self.nodes[node].link.last_failure());
        }
    }
}

/// What the nodes have said, with the reports of their round.
#[cold]
pub(super) fn inspection(reports: Vec<NodeReport>, found: &[Option<FoundKey>]) -> Inspection {
    let nodes = reports.into_iter().zip(found).map(|(report, key)| NodeInspection {
        node: report.node,
        address: report.address,
        outcome: report.outcome,
        message: report.message,
        holding: match key {
            Some(FoundKey::Holding(holding)) => Some(*holding),
            _ => None,
        },
        owned: match key {
            Some(FoundKey::Owned(owned)) => Some(owned.clone()),
            _ => None,
        },
    });
    Inspection::new(nodes.collect())
}
