//! The names of operations.

/// Identifies an operation in flight. An engine ignores the ids of other engines and of past
/// operations; it does not use an id again within 2^32 operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// The number of the engine, unique in this process.
    pub(super) instance: u64,
}

impl OpId {
    /// An id that no engine uses.
    pub(crate) const NONE: OpId = OpId { slot: 0, generation: 0, instance: u64::MAX };

    /// Its index among the operations in flight of its engine, less than
    /// [`OPERATIONS_MAX`](super::OPERATIONS_MAX): for your own data in a `Vec`. The index is reused
    /// after the result was taken, or the operation was cancelled. If you take several results at
    /// once, look up the data of all before you start another operation.
    pub fn index(self) -> usize {
        self.slot as usize
    }

    /// Grows with each operation of an engine, until it starts again after 2^32 of them.
    pub(crate) fn number(self) -> u32 {
        self.generation
    }
}
