//! What the nodes said when they refused what is not one plain key (K1, K8).

use crate::proto::command::Reason;

/// What the nodes said when they refused.
#[derive(Default)]
pub(crate) struct Forms {
    /// By the round's slot. An entry of an ended round is overwritten by the slot's next one.
    said: Vec<Vec<Reason>>,
}

impl Forms {
    pub(super) fn start(&mut self, round: usize) {
        if self.said.len() <= round {
            self.said.resize_with(round + 1, Vec::new);
        }
        self.said[round].clear();
    }

    /// A node has said why it refuses.
    pub(crate) fn note(&mut self, round: usize, reason: Reason) {
        self.said[round].push(reason);
    }

    /// Which of the resources most nodes have named.
    pub(super) fn named(&self, round: usize) -> Option<usize> {
        let said = self.said[round].iter().filter_map(|reason| match reason {
            Reason::Held(index) => Some(*index),
            Reason::Free(_) => None,
        });
        said.clone().max_by_key(|index| said.clone().filter(|other| other == index).count())
    }

    /// The slots that most of those nodes that refused said to be free.
    pub(super) fn free(&self, round: usize, slots: u32) -> Vec<u32> {
        let said = &self.said[round];
        let is_free = |slot: &u32| {
            let says =
                |reason: &&Reason| matches!(reason, Reason::Free(free) if free.contains(*slot));
            2 * said.iter().filter(says).count() > said.len()
        };
        (0..slots).filter(is_free).collect()
    }
}
