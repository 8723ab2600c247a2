//! Sizes that several parts share.

/// Initial capacity: a client with fewer open rounds than this allocates nothing. Rounds that a
/// slow node has not answered count as open.
pub(super) const ROUNDS_USUAL: usize = 256;
/// The most operations in flight at the same time.
pub const OPERATIONS_MAX: usize = 131_072;
