//! How long an acquisition keeps trying.

use std::time::Duration;

use crate::config::Wait;
use crate::moment::Moment;

/// How long an acquisition keeps trying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Exactly one round; for a slot, one for each that is tried, nine at most.
    OneRound,
    /// Rounds with random delays between them, until this moment.
    Until(Moment),
    /// The same, but a round without the votes of a quorum is the last one.
    WhileHeld(Moment),
}

impl Patience {
    /// For a caller that waits so long. No wait is one round.
    pub(crate) fn of_wait(now: Moment, wait: Wait) -> Patience {
        match (wait.limit, wait.is_for_holder) {
            (Duration::ZERO, _) => Patience::OneRound,
            (limit, false) => Patience::Until(now.after(limit)),
            (limit, true) => Patience::WhileHeld(now.after(limit)),
        }
    }

    /// When its last round must have ended; `None` if it makes one round only.
    #[inline]
    pub fn until(self) -> Option<Moment> {
        match self {
            Patience::OneRound => None,
            Patience::Until(until) | Patience::WhileHeld(until) => Some(until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_of_zero_is_one_round() {
        let (now, second) = (Moment::START, Duration::from_secs(1));
        let of = |wait: Wait| Patience::of_wait(now, wait);
        assert_eq!(of(Duration::ZERO.into()), Patience::OneRound);
        assert_eq!(of(Wait::for_holder(Duration::ZERO)), Patience::OneRound);
        assert_eq!(of(second.into()), Patience::Until(now.after(second)));
        assert_eq!(of(Wait::for_holder(second)), Patience::WhileHeld(now.after(second)));
        assert_eq!(of(Wait::forever()), Patience::Until(now.after(Duration::MAX)));
    }
}
