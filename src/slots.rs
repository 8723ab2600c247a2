//! A set of slots.

/// A set of slots of a semaphore: one bit for each, from the lowest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots(pub(crate) u64);

impl Slots {
    pub(crate) fn contains(self, slot: u32) -> bool {
        self.0 >> slot & 1 == 1
    }
}
