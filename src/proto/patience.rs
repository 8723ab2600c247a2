//! How long an acquisition keeps trying.

use std::time::Duration;

use crate::moment::Moment;

/// How long an acquisition keeps trying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Exactly one round; for a slot, one for each that is tried, eight at most.
    OneRound,
    /// Rounds with random delays between them, until this moment.
    Until(Moment),
}

impl Patience {
    /// For a caller that waits so long. No wait is one round.
    pub(crate) fn of_wait(now: Moment, wait: Duration) -> Patience {
        match wait {
            Duration::ZERO => Patience::OneRound,
            _ => Patience::Until(now.after(wait)),
        }
    }
}
