//! Which commands the masters have for each kind of lock, as far as they were asked.
//!
//! The handshake asks for what every lock needs (R32). What another kind takes is asked for by the
//! first lock of that kind on a connection, before any of its commands is sent: a script that ends
//! in the middle would leave half of its work.

use super::command::{Reply, Trial};
use super::round::{Claim, Kind};
use super::{Engine, Outgoing};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, Phase, ProtocolError, ServerCommand};
use crate::quorum::NodeSet;
use crate::resource::Form;

impl Trial {
    /// The trial that comes before the command of such a round. `None` if the handshake was enough.
    #[inline]
    pub(super) fn before(kind: Kind, claim: &Claim) -> Option<Trial> {
        match kind {
            Kind::AcquireFenced => Some(Trial::Fenced),
            Kind::Take => Some(match claim.key.form() {
                Form::Plain => return None,
                Form::All => Trial::Several,
                Form::Slot => Trial::Permits,
                Form::Shared | Form::Exclusive => Trial::Shares,
                Form::As | Form::TakeOver => Trial::Owned,
            }),
            Kind::Acquire | Kind::Extend | Kind::Heal | Kind::Release | Kind::Inspect => None,
        }
    }
}

/// How far a trial has come on a node's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tried {
    Untried,
    Asked,
    /// The server has all of it.
    Has,
}

/// The trials of all nodes' connections.
pub(super) struct Trials {
    nodes: Vec<[Tried; Trial::ALL.len()]>,
    /// The nodes that have all of it, by trial.
    able: [NodeSet; Trial::ALL.len()],
    /// The nodes that have not answered a trial.
    asked: NodeSet,
}

impl Trials {
    pub(super) fn new(nodes: usize) -> Trials {
        Trials {
            nodes: vec![[Tried::Untried; Trial::ALL.len()]; nodes],
            able: [NodeSet::EMPTY; Trial::ALL.len()],
            asked: NodeSet::EMPTY,
        }
    }

    /// The nodes on which all commands of the trial were seen to work.
    #[inline]
    pub(super) fn able(&self, trial: Trial) -> NodeSet {
        self.able[trial as usize]
    }

    pub(super) fn of(&self, node: usize, trial: Trial) -> Tried {
        self.nodes[node][trial as usize]
    }

    pub(super) fn note(&mut self, node: usize, trial: Trial, tried: Tried) {
        self.nodes[node][trial as usize] = tried;
        match tried {
            Tried::Has => self.able[trial as usize].insert(node),
            Tried::Untried | Tried::Asked => self.able[trial as usize].remove(node),
        }
        match self.nodes[node].contains(&Tried::Asked) {
            true => self.asked.insert(node),
            false => self.asked.remove(node),
        }
    }

    /// The nodes whose answer commands may wait for.
    #[inline]
    pub(super) fn asked(&self) -> NodeSet {
        self.asked
    }

    /// The connection has ended: the next one may be another server's, or another user's.
    pub(super) fn forget(&mut self, node: usize) {
        Trial::ALL.into_iter().for_each(|trial| self.note(node, trial, Tried::Untried));
    }
}

/// Trials of the kinds, and the commands that wait for them.
impl Engine {
    /// Whether a round's command can be sent to all of these nodes, as far as trials go.
    #[inline]
    pub(super) fn is_tried(&self, nodes: NodeSet, round: usize) -> bool {
        let trial = Trial::before(self.rounds[round].kind, self.rounds.claim(round));
        trial.is_none_or(|trial| nodes.without(self.nodes.trials.able(trial)).is_empty())
    }

    /// Lets a round's command wait where its commands were not tried. Those nodes that are to be
    /// asked now are returned.
    #[cold]
    pub(super) fn try_first(&mut self, nodes: NodeSet, round: usize) -> Option<(NodeSet, Trial)> {
        let trial = Trial::before(self.rounds[round].kind, self.rounds.claim(round))?;
        let able = nodes.and(self.nodes.trials.able(trial));
        if !able.is_empty() {
            self.nodes.push_first(Outgoing::Round(able, round));
        }
        let mut untried = NodeSet::EMPTY;
        // It would come behind that release.
        let is_released = self.is_release_queued(round);
        for node in nodes.without(able).iter() {
            match self.nodes.trials.of(node, trial) {
                _ if is_released => {
                    self.refuse_waiting(node, round, NodeOutcome::TimedOut(Phase::Reply));
                }
                tried => {
                    if tried != Tried::Asked {
                        self.nodes.trials.note(node, trial, Tried::Asked);
                        untried.insert(node);
                    }
                    self.rounds[round].waited = true;
                    self.nodes[node].wait(round);
                }
            }
        }
        (!untried.is_empty()).then_some((untried, trial))
    }

    /// Counts all trials of a node's connection as passed, for tests of what comes after them.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn assume_tried(&mut self, node: usize) {
        let trials = &mut self.nodes.trials;
        Trial::ALL.into_iter().for_each(|trial| trials.note(node, trial, Tried::Has));
    }

    /// Whether a release of the round's token stands in the line behind it.
    fn is_release_queued(&self, round: usize) -> bool {
        let token = self.rounds.claim(round).token;
        self.nodes.outgoing().iter().any(|outgoing| match outgoing {
            Outgoing::Round(_, other) | Outgoing::HandOn(_, other, _) => {
                self.rounds[*other].kind.is_release() && self.rounds.claim(*other).token == token
            }
            _ => false,
        })
    }

    /// A command that was not sent gives no vote, and leaves nothing to release (R11).
    fn refuse_waiting(&mut self, node: usize, round: usize, outcome: NodeOutcome) {
        self.rounds[round].sent.remove(node);
        self.vote(self.last_now, round, node, outcome);
        self.rounds.dereference(round);
    }

    /// The answer to a trial: the commands that wait for it are sent, or fail.
    #[cold]
    pub(super) fn handle_tried(&mut self, now: Moment, node: usize, trial: Trial, reply: Reply) {
        let (tried, failure) = match reply {
            Reply::Integer(0) => (Tried::Has, None),
            // The next lock asks again: the right may be granted meanwhile.
            Reply::Integer(number) => match ServerCommand::numbered(number) {
                Some(command) => (Tried::Untried, Some(NodeOutcome::MissingCommand(command))),
                None => {
                    let outcome = NodeOutcome::Protocol(ProtocolError::Unexpected);
                    return self.fail_node(now, node, outcome);
                }
            },
            // It says nothing of the commands, and would be the answer to what waits.
            Reply::Error(error) => {
                let kind = error.kind;
                self.stats.server_errors += 1;
                self.nodes[node].keep_error(error);
                (Tried::Untried, Some(NodeOutcome::Server(kind)))
            }
            _ => {
                let outcome = NodeOutcome::Protocol(ProtocolError::Unexpected);
                return self.fail_node(now, node, outcome);
            }
        };
        self.nodes.trials.note(node, trial, tried);
        self.end_trial(now, node, trial, failure);
    }

    /// A trial was not answered in time. The next command asks again.
    #[cold]
    pub(super) fn give_up_trial(&mut self, now: Moment, node: usize, trial: Trial) {
        if self.nodes.trials.of(node, trial) == Tried::Asked {
            self.nodes.trials.note(node, trial, Tried::Untried);
        }
        self.end_trial(now, node, trial, Some(NodeOutcome::TimedOut(Phase::Reply)));
    }

    /// The commands that wait for a trial fail, or are sent.
    fn end_trial(&mut self, now: Moment, node: usize, trial: Trial, failure: Option<NodeOutcome>) {
        if failure.is_none() && self.nodes.open().contains(node) {
            return self.flush_queue(now, node);
        }
        for round in self.nodes[node].take_waiting() {
            let before = Trial::before(self.rounds[round].kind, self.rounds.claim(round));
            match failure {
                Some(outcome) if before == Some(trial) => self.refuse_waiting(node, round, outcome),
                _ => self.nodes[node].wait(round),
            }
        }
    }
}
