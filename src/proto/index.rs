//! The places of rounds and of operations in their tables, each a type, so that none is taken for
//! another, or for a node's.

/// The place of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RoundId(pub(super) usize);

/// The place of an operation. Callers know it by its [`OpId`](super::OpId).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpIndex(pub(super) usize);
