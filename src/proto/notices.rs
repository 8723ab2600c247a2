//! What the operator of a node should hear: once when the node stops voting, and once when it votes
//! again.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::status::QueueObstacle;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, QuarantineCause};

/// The most pending notices; further ones are dropped.
const NOTICES_MAX: usize = 64;
/// A node that stops voting again within this time is not reported again.
const INTERVAL: Duration = Duration::from_secs(10);

/// A message for the operator of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The node does not vote, for this reason. The next notice comes when it votes again.
    Silent(NodeOutcome),
    /// The node's votes do not count now. The next notice comes when they count again.
    Quarantined(QuarantineCause),
    /// The node votes again.
    Votes,
    /// The server does not report its role or its process, so the client cannot check either.
    Unidentified,
    /// The server does not report its time: jumps of its wall clock go unnoticed.
    SecretClock,
    /// Another server answers at this address, and it already ran when the previous one last
    /// answered: it was moved here while running, or the name leads to several servers.
    Moved,
    /// Clients cannot wait in a queue on this node, for this reason. They use another queue node,
    /// or retry after random delays if there is none.
    CannotQueue(QueueObstacle),
}

impl Notice {
    /// Whether it is good news.
    pub(crate) fn is_good(self) -> bool {
        self == Notice::Votes
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Silent(reason) => write!(f, "does not vote: {reason}"),
            Notice::Quarantined(cause) => write!(f, "does not vote: quarantined: {cause}"),
            Notice::Votes => f.write_str("votes again"),
            Notice::Unidentified => {
                f.write_str("INFO is forbidden: its role and its process are not checked")
            }
            Notice::Moved => f.write_str(
                "another server answers here, which already ran at the last contact: two clients \
                 might hold one lock; let the name lead to one server, and start the replacement \
                 of a master empty, after the old one has ended",
            ),
            Notice::CannotQueue(obstacle) => write!(f, "clients cannot queue on it: {obstacle}"),
            Notice::SecretClock => {
                f.write_str("TIME is forbidden: jumps of its wall clock go unnoticed")
            }
        }
    }
}

/// The notices that were not taken yet, and what was reported of each node.
pub(crate) struct Notices {
    pending: VecDeque<(usize, Notice)>,
    nodes: Vec<Reported>,
}

/// What was reported of a node.
#[derive(Clone, Default)]
struct Reported {
    is_silent: bool,
    /// When it was last reported to be silent.
    silent_at: Option<Moment>,
}

impl Notices {
    pub(super) fn new(nodes: usize) -> Notices {
        Notices { pending: VecDeque::new(), nodes: vec![Reported::default(); nodes] }
    }

    pub(super) fn note(&mut self, node: usize, notice: Notice) {
        if self.pending.len() < NOTICES_MAX {
            self.pending.push_back((node, notice));
        }
    }

    /// The node stops voting, or still does not vote.
    pub(super) fn stops(&mut self, now: Moment, node: usize, notice: Notice) {
        let reported = &mut self.nodes[node];
        let is_recent = reported.silent_at.is_some_and(|at| now.since(at) < INTERVAL);
        // A quarantine begins once; what keeps a node silent otherwise is said again.
        let is_repeated = !matches!(notice, Notice::Quarantined(_));
        let is_known = reported.is_silent || is_recent && is_repeated;
        if !is_known {
            *reported = Reported { is_silent: true, silent_at: Some(now) };
            self.note(node, notice);
        }
    }

    /// The node votes.
    pub(super) fn votes(&mut self, node: usize) {
        if std::mem::take(&mut self.nodes[node].is_silent) {
            self.note(node, Notice::Votes);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<(usize, Notice)> {
        self.pending.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Notice = Notice::Silent(NodeOutcome::NotConnected);

    fn taken(notices: &mut Notices) -> Vec<(usize, Notice)> {
        std::iter::from_fn(|| notices.take()).collect()
    }

    #[test]
    fn node_is_reported_once_until_it_votes_again() {
        let mut notices = Notices::new(2);
        let start = Moment::from_nanos(1);
        notices.votes(0);
        assert_eq!(taken(&mut notices), [], "nothing else was said of it");
        (0..9).for_each(|_| notices.stops(start, 0, SILENT));
        notices.stops(start, 1, SILENT);
        assert_eq!(taken(&mut notices), [(0, SILENT), (1, SILENT)]);
        (0..9).for_each(|_| notices.votes(0));
        assert_eq!(taken(&mut notices), [(0, Notice::Votes)]);
    }

    /// A node that comes and goes is reported from time to time, and so is one that stays away.
    #[test]
    fn node_that_comes_and_goes_is_reported_from_time_to_time() {
        let mut notices = Notices::new(1);
        let mut reported = 0;
        for second in 0..100 {
            let now = Moment::from_nanos(0).after(Duration::from_secs(second));
            notices.stops(now, 0, SILENT);
            reported += taken(&mut notices).len();
            notices.votes(0);
            taken(&mut notices);
        }
        assert_eq!(reported, 10);
        let now = Moment::from_nanos(0).after(Duration::from_secs(99));
        notices.stops(now, 0, SILENT);
        assert_eq!(taken(&mut notices), []);
        notices.stops(now.after(INTERVAL), 0, SILENT);
        assert_eq!(taken(&mut notices), [(0, SILENT)]);
    }

    /// A quarantine is not said again, so it is said at once.
    #[test]
    fn quarantine_is_reported_soon_after_another_silence() {
        let mut notices = Notices::new(1);
        let start = Moment::from_nanos(1);
        notices.stops(start, 0, SILENT);
        notices.votes(0);
        taken(&mut notices);
        notices.stops(start, 0, SILENT);
        assert_eq!(taken(&mut notices), []);
        let quarantined = Notice::Quarantined(QuarantineCause::Restarted);
        notices.stops(start, 0, quarantined);
        notices.stops(start, 0, quarantined);
        assert_eq!(taken(&mut notices), [(0, quarantined)]);
    }

    #[test]
    fn pending_notices_are_bounded() {
        let mut notices = Notices::new(1);
        (0..2 * NOTICES_MAX).for_each(|_| notices.note(0, Notice::SecretClock));
        assert!(!notices.is_empty());
        assert_eq!(taken(&mut notices).len(), NOTICES_MAX);
        assert!(notices.is_empty());
    }
}
