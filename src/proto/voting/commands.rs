//! The commands of rounds: what waits for a connection, what is withdrawn, and what lost ones
//! leave.

use super::Voting;
use crate::moment::Moment;
use crate::proto::index::RoundId;
use crate::proto::kind::{Claim, Left, Lost};
use crate::proto::nodes::Nodes;
use crate::proto::outgoing::Outgoing;
use crate::token::LockToken;

impl Voting {
    /// The round's command waits until the node can take it.
    #[inline]
    pub(crate) fn wait(&mut self, nodes: &mut Nodes, round: RoundId, node: usize) {
        self.note_waiting(round, node);
        nodes[node].pipeline.wait(round);
    }

    /// Withdraws unsent commands that would set or extend the key. Returns whether the SET was
    /// among them: then there is nothing to release (R11).
    pub(crate) fn retract(
        &mut self,
        nodes: &mut Nodes,
        node: usize,
        token: LockToken,
        was_granted: bool,
    ) -> bool {
        let mut was_set = false;
        // Each iteration takes one of them out of the queue.
        loop {
            let is_it = |round: &RoundId| {
                self[*round].kind.is_about_holding() && self.claim(*round).token == token
            };
            let Some(round) = nodes[node].pipeline.retract(is_it) else {
                return was_set;
            };
            was_set |= self[round].kind.is_acquisition();
            self.dereference(round);
            if was_set && !was_granted {
                return true;
            }
        }
    }

    /// Withdraws the commands of a token that were not handed out yet.
    pub(crate) fn take_back_unsent(&mut self, nodes: &mut Nodes, token: LockToken) {
        for node in 0..nodes.len() {
            self.retract(nodes, node, token, true);
        }
        for outgoing in &nodes.outbox {
            if let Outgoing::Round(_, round) = outgoing {
                self[*round].is_abandoned |= self.claim(*round).token == token;
            }
        }
    }

    /// Whether a command of this round may set the key with this token.
    pub(crate) fn may_set(&self, round: RoundId, token: LockToken) -> bool {
        self.claim(round).token == token && self[round].kind.may_create()
    }

    /// What a command of the round leaves that was lost in this way: for which lock, and when its
    /// key has certainly expired, if that is known.
    pub(crate) fn left(&self, round: RoundId, lost: Lost) -> (&Claim, Option<Moment>, Left) {
        let it = &self[round];
        (self.claim(round), it.expires, it.kind.left(lost))
    }
}
