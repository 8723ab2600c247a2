//! The clocks of a fake master.

use std::time::{Duration, Instant, SystemTime};

/// Both clocks of a master, read once for each batch of commands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) steady: Instant,
    /// Since 1970.
    pub(super) wall: Duration,
}

#[expect(clippy::disallowed_methods, reason = "a master has clocks of its own")]
pub(super) fn now() -> Now {
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Now { steady: Instant::now(), wall }
}
