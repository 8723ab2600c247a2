//! What the nodes said when they refused what is not one plain key (K1, K8).

/// What the nodes said when they refused.
#[derive(Default)]
pub(crate) struct Forms {
    /// By the round's slot. An entry of an ended round is overwritten by the slot's next one.
    said: Vec<Vec<(usize, u64)>>,
}

impl Forms {
    pub(super) fn start(&mut self, round: usize) {
        if self.said.len() <= round {
            self.said.resize_with(round + 1, Vec::new);
        }
        self.said[round].clear();
    }

    /// A node has said why it refuses.
    pub(crate) fn note(&mut self, round: usize, node: usize, reason: u64) {
        self.said[round].push((node, reason));
    }

    /// Which of the resources most nodes have named.
    pub(super) fn named(&self, round: usize) -> Option<u64> {
        let said = &self.said[round];
        let times = |index: u64| said.iter().filter(|(_, other)| *other == index).count();
        said.iter().map(|(_, index)| *index).max_by_key(|index| times(*index))
    }

    /// The slots that most of those nodes that refused said to be free.
    pub(super) fn free(&self, round: usize, slots: u32) -> Vec<u32> {
        let said = &self.said[round];
        let is_free = |slot: &u32| {
            let times = said.iter().filter(|(_, free)| free >> slot & 1 == 1).count();
            2 * times > said.len()
        };
        (0..slots).filter(is_free).collect()
    }
}
