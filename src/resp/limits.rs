//! How long a reply and its parts may be.

/// The longest line of a reply: error messages are the longest lines that are expected.
pub const LINE_BYTES_MAX: usize = 4 * 1024;
/// The longest bulk string. The requested sections of `INFO` have one to two thousand bytes, plus
/// one line for each replica.
pub const TEXT_BYTES_MAX: usize = 16 * 1024;
/// The longest reply.
pub const REPLY_BYTES_MAX: usize = TEXT_BYTES_MAX + NUMBER_BYTES_MAX + 2;
/// Most bytes of an integer or a length, including its prefix and line end.
pub(super) const NUMBER_BYTES_MAX: usize = 24;
