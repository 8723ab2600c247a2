//! Which commands the masters have for each kind of lock, as far as they were seen to work.
//!
//! The handshake tries what every lock needs (R32). What another kind needs is tried by the first
//! lock of that kind on a connection, in the same script and before any of its own commands: a
//! script that ends in the middle would leave half of its work.

use super::command::Trial;
use super::kind::Claim;
use super::kind::RoundKind::{self, Acquire, Extend, Heal, Inspect, Release};
use crate::quorum::NodeSet;

impl Trial {
    /// The trial that the command of such a round needs. `None` if the handshake was enough.
    #[inline]
    pub(super) fn before(kind: RoundKind, claim: &Claim) -> Option<Trial> {
        match kind {
            RoundKind::AcquireFenced => Some(Trial::Fenced),
            RoundKind::Take => claim.key.row().trial,
            Acquire | Extend | Heal | Release | Inspect => None,
        }
    }
}

/// The nodes on whose connections a trial has succeeded, by trial.
#[derive(Default)]
pub(crate) struct Trials {
    able: [NodeSet; Trial::ALL.len()],
}

impl Trials {
    /// The nodes on which all commands of the trial were seen to work.
    #[inline]
    pub(super) fn able(&self, trial: Trial) -> NodeSet {
        self.able[trial as usize]
    }

    /// The trial in front of such a round's command has succeeded.
    pub(super) fn note(&mut self, node: usize, kind: RoundKind, claim: &Claim) {
        if let Some(trial) = Trial::before(kind, claim) {
            self.able[trial as usize].insert(node);
        }
    }

    /// The connection has ended: the next one may be another server's, or another user's.
    pub(super) fn forget(&mut self, node: usize) {
        self.able.iter_mut().for_each(|able| able.remove(node));
    }
}

#[cfg(feature = "testing")]
impl super::Engine {
    /// Counts all trials of a node's connection as passed, for tests of what comes after them.
    #[doc(hidden)]
    pub fn assume_tried(&mut self, node: usize) {
        self.nodes.trials.able.iter_mut().for_each(|able| able.insert(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Key, Resource};
    use crate::token::LockToken;
    use crate::validity::Ttl;

    #[test]
    fn kind_is_tried_once_on_each_connection() {
        let ttl = Ttl::new(std::time::Duration::from_secs(1)).unwrap();
        let token = LockToken::from_random([0; 20]);
        let claim = |key| Claim { key, token, ttl };
        let share = claim(Key::new(Resource::shared("r").unwrap(), b""));
        let plain = claim(Key::new(Resource::new("r").unwrap(), b""));
        let mut trials = Trials::default();
        trials.note(1, RoundKind::Take, &share);
        trials.note(2, RoundKind::AcquireFenced, &plain);
        trials.note(0, RoundKind::Release, &share);
        assert_eq!(trials.able(Trial::Shares), NodeSet::one(1));
        assert_eq!(trials.able(Trial::Fenced), NodeSet::one(2));
        assert_eq!(trials.able(Trial::Several), NodeSet::EMPTY);
        trials.forget(1);
        assert_eq!(trials.able(Trial::Shares), NodeSet::EMPTY);
        assert_eq!(trials.able(Trial::Fenced), NodeSet::one(2));
    }
}
