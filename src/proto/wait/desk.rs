//! State that all waits share: the nodes that can be waited at, the channel of this engine, and its
//! orders.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ability::Waitable;
use super::choice::Choice;
use super::local_queue::WaitingOp;
use super::{Cx, ReleasePlan, WaitOrder, WaitStats};
use crate::channel::Channel;
use crate::config::{Config, Waiting};
use crate::moment::Moment;
use crate::proto::command::{Command, Notify, WaitMessage};
use crate::proto::kind::Claim;
use crate::proto::nodes::Nodes;
use crate::proto::notices::Notice;
use crate::proto::request::WaitCommand;
use crate::proto::status::{QueueObstacle, QueueSupport};
use crate::quorum::NodeSet;

/// State that all waits share.
pub(crate) struct Desk {
    pub(super) config: Arc<Config>,
    /// Whether one can wait at each node.
    pub(super) able: Vec<Waitable>,
    /// Drawn when it is first needed.
    pub(super) channel: Option<Box<Channel>>,
    pub(super) orders: VecDeque<WaitOrder>,
    pub(crate) stats: WaitStats,
}

impl Desk {
    pub(super) fn new(config: Arc<Config>) -> Desk {
        Desk {
            able: (0..config.nodes()).map(|_| Waitable::default()).collect(),
            config,
            channel: None,
            orders: VecDeque::new(),
            stats: WaitStats::default(),
        }
    }

    /// Whether there is something to do.
    #[inline]
    pub(crate) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Takes all orders. Carrying one out may leave others, which come before the rest of these.
    pub(crate) fn take_orders(&mut self) -> VecDeque<WaitOrder> {
        std::mem::take(&mut self.orders)
    }

    /// Gives the room of orders back that were carried out.
    pub(crate) fn reuse(&mut self, carried_out: VecDeque<WaitOrder>) {
        if self.orders.capacity() == 0 {
            self.orders = carried_out;
        }
    }

    pub(super) fn send(&mut self, node: usize, command: WaitCommand) {
        self.orders.push_back(WaitOrder::Send(node, command));
    }

    pub(super) fn sleep_until(&mut self, who: WaitingOp, at: Moment) {
        self.orders.push_back(WaitOrder::SleepUntil(who.id, at.min(who.give_up_at)));
    }

    /// The queue nodes of a plan that can take its script now. The others get the usual release: an
    /// overloaded node would notify the next client much too late.
    pub(crate) fn nodes_for(&self, nodes: &Nodes, plan: ReleasePlan, ready: NodeSet) -> NodeSet {
        let choice = Choice { nodes, able: &self.able };
        plan.nodes.and(ready).iter().filter(|node| choice.may_release_at(*node)).collect()
    }

    /// The node has a new connection, of which nothing is known.
    pub(crate) fn connected(&mut self, node: usize) {
        self.able[node].reconnect();
    }

    /// Whether one can wait at this node.
    pub(crate) fn at(&self, node: usize) -> QueueSupport {
        self.able[node].state()
    }

    pub(super) fn choice<'a>(&'a self, cx: &'a Cx<'_>) -> Choice<'a> {
        Choice { nodes: cx.nodes, able: &self.able }
    }

    /// The command of a release at a queue node.
    pub(crate) fn release_command<'a>(&'a self, claim: &'a Claim, notify: Notify) -> Command<'a> {
        let channel = self.channel.as_deref().expect("a queue node is chosen with a channel");
        let (key, token) = (claim.key.as_bytes(), &claim.token);
        Command::Wait(WaitMessage::ReleaseAtQueue { key, channel, token, notify })
    }

    /// Draws the engine's channel if it has none. Returns whether it has one.
    pub(crate) fn has_channel(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.channel.is_none() {
            let random = cx.entropy.token(cx.now);
            // Its last digits name the client, like those of its tokens.
            let half = random.and_then(|random| random.last_chunk().copied());
            self.channel = half.map(|half| Box::new(Channel::new(half)));
        }
        self.channel.is_some()
    }

    /// The connection is of no use for waiting.
    pub(super) fn set_unable(&mut self, cx: &mut Cx<'_>, node: usize, obstacle: QueueObstacle) {
        if self.able[node].set_unable(obstacle) && self.able[node].is_inability_news() {
            cx.nodes.notices.note(node, Notice::CannotQueue(obstacle));
        }
    }

    /// Whether this is the name of the engine's own channel.
    pub(crate) fn is_own_channel(&self, name: &[u8]) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.as_bytes() == name)
    }

    /// Whether acquisitions also queue on the masters.
    pub(super) fn is_on(&self) -> bool {
        self.config.waiting == Waiting::Queue
    }

    /// The nodes whose absent keys may mean that the lock is free. If those that refused the last
    /// round deny a quorum, it is not free before one of them has lost its key.
    pub(crate) fn relevant_nodes(&self, cx: &Cx<'_>, refused: NodeSet) -> NodeSet {
        let may_wait = refused.iter().filter(|node| self.choice(cx).may_wait_at(*node));
        let watched = may_wait.collect::<NodeSet>();
        match cx.nodes.len() - watched.len() < self.config.quorum() {
            true => watched,
            false => NodeSet::all(cx.nodes.len()),
        }
    }
}
