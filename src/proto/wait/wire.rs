//! Commands of waits, and their answers.
//!
//! An answer or a message is about one key: it goes to the local queue or to the visit of that key.

use super::ability::Learned;
use super::entry::QueueEntry;
use super::local_queue::Exclusion;
use super::{AfterRelease, Cx, ReleasePlan, WaitQueues};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, ProtocolError, ServerErrorKind};
use crate::proto::Action;
use crate::proto::command::{Command, Notify, Push, Reply, ServerError, Step, WaitMessage, Wakeup};
use crate::proto::nodes::{Nodes, is_forbidden};
use crate::proto::outgoing::Outgoing;
use crate::proto::request::{Request, WaitCommand};
use crate::proto::status::QueueObstacle;
use crate::quorum::NodeSet;
use crate::resource::Key;
use crate::token::LockToken;

/// The state of a node's connection.
impl WaitQueues {
    /// The handshake with a node is complete.
    pub(crate) fn node_ready(&mut self, cx: &mut Cx<'_>, node: usize) {
        if !self.local.entries.is_empty() {
            self.local.open_node(cx, node);
            self.open_visits(cx, node);
        }
    }

    /// The node's connection has ended, it did not answer in time, or one cannot wait there (W3).
    pub(crate) fn node_lost(&mut self, cx: &mut Cx<'_>, node: usize) {
        self.visits.lose_node(node);
        self.local.node_lost(cx, node);
    }

    /// The server has answered a question of W4. An error means that the connection must end.
    fn follow_ability(
        &mut self,
        cx: &mut Cx<'_>,
        node: usize,
        effect: Learned,
    ) -> Result<(), NodeOutcome> {
        match effect {
            Learned::MayWait => {
                self.local.open_node(cx, node);
                self.open_visits(cx, node);
                for number in
                    self.local.entries.numbers_where(|entry| entry.watch.planned.contains(node))
                {
                    self.local.entries.entry(number).watch.planned.remove(node);
                    self.local.watch_nodes(number, NodeSet::one(node));
                }
            }
            Learned::CannotWait(obstacle) => self.local.cannot_wait(cx, node, obstacle),
            Learned::CannotWaitNow => {
                let needs =
                    |entry: &QueueEntry| entry.seat.node == Some(node) || entry.watch.has(node);
                for number in self.local.entries.numbers_where(needs) {
                    self.local.exclude(cx, node, number, Exclusion::ForNow);
                }
            }
            Learned::Nothing => {}
            Learned::Unexpected => return Err(NodeOutcome::Protocol(ProtocolError::Unexpected)),
        }
        Ok(())
    }
}

/// Commands.
impl WaitQueues {
    /// Whether a command need not be sent: nothing waits any more under the number that it is for.
    pub(crate) fn is_wait_over(&self, command: WaitCommand) -> bool {
        match command {
            WaitCommand::QueueUp(number)
            | WaitCommand::Watch { entry: number, .. }
            | WaitCommand::TimeToLive { entry: number, .. } => {
                self.local.entries.get(number).is_none() && self.visits.key_of(number).is_none()
            }
            WaitCommand::Able(_) | WaitCommand::StepOut(..) => false,
        }
    }

    /// Hands out a command of a wait. The entry that it is for is still there.
    pub(crate) fn hand_out(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        node: usize,
        command: WaitCommand,
    ) -> Action<'_> {
        match command {
            WaitCommand::Watch { entry, watch } => {
                // Next to it on the wire: the permission is for one command.
                let next = WaitCommand::TimeToLive { entry, watch };
                nodes.outbox.push_front(Outgoing::Wait(node, next));
            }
            WaitCommand::StepOut(number, _) => self.local.entries.hand_out(number),
            WaitCommand::Able(_) | WaitCommand::QueueUp(_) | WaitCommand::TimeToLive { .. } => {}
        }
        let nodes = nodes.hand_out(now, NodeSet::one(node), Request::Wait(command));
        let channel = self.local.desk.channel.as_deref().expect("waits have a channel");
        let key_of = |number| {
            let key = self.local.entries.get(number).map(|entry| &entry.key);
            key.or_else(|| self.visits.key_of(number)).map_or(&[][..], Key::as_bytes)
        };
        let command = match command {
            WaitCommand::Able(ability) => ability.command(channel),
            WaitCommand::QueueUp(entry) => {
                Command::Wait(WaitMessage::QueueUp { key: key_of(entry), channel })
            }
            WaitCommand::Watch { .. } => Command::Wait(WaitMessage::Cache),
            WaitCommand::TimeToLive { entry, .. } => {
                Command::Wait(WaitMessage::TimeToLive { key: key_of(entry) })
            }
            WaitCommand::StepOut(_, to) => Command::Wait(WaitMessage::StepOut {
                key: self.local.entries.handed_out(),
                channel,
                to,
            }),
        };
        Action::Send { nodes, command }
    }

    /// The commands to this node that were not handed out will not be sent.
    pub(crate) fn forget_step_outs(&mut self, nodes: &Nodes, node: usize) {
        for outgoing in &nodes.outbox {
            match outgoing {
                Outgoing::Wait(at, WaitCommand::StepOut(number, _)) if *at == node => {
                    self.local.entries.withdraw(*number);
                }
                _ => {}
            }
        }
    }
}

/// Answers and messages.
impl WaitQueues {
    /// The answer to a command of a wait. An error means that the connection must end.
    pub(crate) fn handle_reply(
        &mut self,
        cx: &mut Cx<'_>,
        node: usize,
        command: WaitCommand,
        reply: Reply,
    ) -> Result<(), NodeOutcome> {
        match (command, reply) {
            (WaitCommand::Able(asked), Reply::Error(error)) => {
                let effect = self.local.desk.able[node].handle_error(asked, &error);
                cx.nodes[node].keep_error(error);
                return self.follow_ability(cx, node, effect);
            }
            (WaitCommand::Able(asked), reply) => {
                let effect = self.local.desk.able[node].handle_reply(asked, &reply);
                return self.follow_ability(cx, node, effect);
            }
            (_, Reply::Error(error)) => return self.handle_error(cx, node, command, error),
            (WaitCommand::Watch { .. }, Reply::Ok) => {}
            (WaitCommand::StepOut(..), Reply::Integer(0)) => {}
            (WaitCommand::QueueUp(number), Reply::Position { position, expiry }) => {
                match self.local.entries.get(number).filter(|entry| entry.seat.node == Some(node)) {
                    Some(_) => self.local.handle_position(cx, node, number, (position, expiry)),
                    None => self.handle_visit_position(cx, number, position, expiry),
                }
            }
            (WaitCommand::TimeToLive { entry, watch }, Reply::Expiry(expiry)) => {
                self.local.handle_expiry(cx, node, (entry, watch), expiry);
            }
            _ => return Err(NodeOutcome::Protocol(ProtocolError::Unexpected)),
        }
        Ok(())
    }

    /// An error that lasts makes the connection useless for all waits; any other one, for the wait
    /// that it answers.
    fn handle_error(
        &mut self,
        cx: &mut Cx<'_>,
        node: usize,
        command: WaitCommand,
        error: ServerError,
    ) -> Result<(), NodeOutcome> {
        self.local.desk.stats.server_errors += 1;
        let kind = error.kind;
        cx.nodes[node].keep_error(error);
        let number = match command {
            WaitCommand::QueueUp(number) => Some(number),
            WaitCommand::Watch { entry, watch } | WaitCommand::TimeToLive { entry, watch } => {
                self.local.entries.get(entry).filter(|it| it.watch.number == watch).map(|_| entry)
            }
            WaitCommand::Able(_) | WaitCommand::StepOut(..) => None,
        };
        match (kind, command) {
            (ServerErrorKind::ReadOnly | ServerErrorKind::Auth, _) => {
                return Err(NodeOutcome::Server(kind));
            }
            (kind, WaitCommand::QueueUp(_) | WaitCommand::StepOut(..)) if is_forbidden(kind) => {
                self.local.cannot_wait(cx, node, QueueObstacle::Queue);
            }
            (kind, _) if is_forbidden(kind) => {
                self.local.cannot_wait(cx, node, QueueObstacle::Tracking)
            }
            (kind, command) => {
                let how = match (kind, command) {
                    (ServerErrorKind::WrongType, WaitCommand::QueueUp(_)) => Exclusion::ForGood,
                    _ => Exclusion::ForNow,
                };
                number.into_iter().for_each(|number| self.local.exclude(cx, node, number, how));
                number.into_iter().for_each(|number| self.visits.exclude(number, node));
            }
        }
        Ok(())
    }

    /// The server has sent something that is no reply. Returns whether it makes sense.
    pub(crate) fn pushed(&mut self, cx: &mut Cx<'_>, node: usize, push: Push<'_>) -> bool {
        match push {
            Push::Trial(channel) if self.local.desk.is_own_channel(channel) => {
                let effect = self.local.desk.able[node].hear_trial();
                self.follow_ability(cx, node, effect).is_ok()
            }
            Push::Notified { channel, what, key } if self.local.desk.is_own_channel(channel) => {
                self.notified(cx, node, what, key)
            }
            Push::Changed(key) => {
                self.local.handle_changed(cx, node, key);
                true
            }
            Push::Trial(_) | Push::Notified { .. } | Push::Subscribed(_) => false,
            Push::AllChanged | Push::Flushed | Push::Other => false,
        }
    }

    /// Something has happened to the position for this key (W6). Returns whether that makes sense.
    fn notified(&mut self, cx: &mut Cx<'_>, node: usize, wakeup: Wakeup, key: &[u8]) -> bool {
        let Some(key) = self.local.desk.config.key_of_bytes(key) else {
            return false;
        };
        let entry =
            self.local.queues.entry_of(&key).and_then(|it| self.local.entries.get(it).map(|_| it));
        match entry {
            Some(number) => self.local.wake_entry(cx, node, number, wakeup),
            None if self.notify_visit(cx, node, &key, wakeup) => {}
            // It is passed on to those behind.
            None if wakeup != Wakeup::Overtaken => {
                self.local.step_out(cx, node, key, Step::Out);
            }
            None => {}
        }
        true
    }
}

/// The release of a lock that was waited for.
impl WaitQueues {
    /// How to release a lock that is about to be given up (W7, W13). Chooses the client that asks
    /// next.
    pub(crate) fn plan(&mut self, cx: &mut Cx<'_>, key: &Key, token: LockToken) -> ReleasePlan {
        match self.visit_due(key) {
            None => self.local.plan_for(cx, key, token),
            visit => ReleasePlan { visit, ..ReleasePlan::USUAL },
        }
    }

    /// The lock was given up, and its release is queued to be sent, as planned. Returns what is
    /// left to do when those have started that come next.
    pub(crate) fn released(
        &mut self,
        cx: &mut Cx<'_>,
        key: &Key,
        token: LockToken,
        plan: ReleasePlan,
    ) -> AfterRelease {
        self.local.queues.note_given_up(cx, key, token);
        let goes_on = match plan.visit {
            Some(visit) => match self.let_in(cx, visit, key) {
                AfterRelease::Requeue => return AfterRelease::Requeue,
                AfterRelease::Nothing => true,
            },
            None => plan.notify == Notify::CountOnly || !self.local.queue_after_release(cx, key),
        };
        if goes_on {
            self.local.call_first(cx, key, token);
        }
        AfterRelease::Nothing
    }
}
