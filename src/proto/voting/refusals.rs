//! What the nodes said when they refused what is not one plain key (K1, K8).

use crate::proto::command::Reason;
use crate::proto::index::RoundId;

/// What the nodes said when they refused.
#[derive(Default)]
pub(crate) struct Refusals {
    /// By the round's slot. An entry of an ended round is overwritten by the slot's next one.
    reasons: Vec<Vec<Reason>>,
    /// Whether a permit was asked for before, and no slot was refused since then: the next
    /// acquisition of one begins with a plain SET (K8).
    pub(super) is_slot_likely: bool,
}

impl Refusals {
    pub(super) fn start(&mut self, round: RoundId) {
        if self.reasons.len() <= round.0 {
            self.reasons.resize_with(round.0 + 1, Vec::new);
        }
        self.reasons[round.0].clear();
    }

    /// A node has said why it refuses.
    pub(crate) fn note(&mut self, round: RoundId, reason: Reason) {
        self.reasons[round.0].push(reason);
    }

    /// Which of the resources most nodes have named.
    pub(super) fn named(&self, round: RoundId) -> Option<usize> {
        let reasons = self.reasons[round.0].iter().filter_map(|reason| match reason {
            Reason::Held(index) => Some(*index),
            Reason::Free(_) => None,
        });
        reasons.clone().max_by_key(|index| reasons.clone().filter(|other| other == index).count())
    }

    /// The slots that most of those nodes that refused said to be free.
    pub(super) fn free(&self, round: RoundId, slots: u32) -> Vec<u32> {
        let reasons = &self.reasons[round.0];
        let is_free = |slot: &u32| {
            let is_free =
                |reason: &&Reason| matches!(reason, Reason::Free(free) if free.contains(*slot));
            2 * reasons.iter().filter(is_free).count() > reasons.len()
        };
        (0..slots).filter(is_free).collect()
    }
}
