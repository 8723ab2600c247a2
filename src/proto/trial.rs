//! Which commands the masters have for each kind of lock, as far as they were seen to work.
//!
//! The handshake tries what every lock needs (R32). What another kind needs is tried by the first
//! lock of that kind on a connection, in the same script and before any of its own commands: a
//! script that ends in the middle would leave half of its work. The next one is sent without the
//! trial, and those after it by the hash of the script, which the server then keeps (K16).

use super::command::{SentAs, ServerError, Shape, Trial, TrialFirst};
use super::kind::Claim;
use super::kind::RoundKind::{self, Acquire, Extend, Heal, Inspect, Release};
use super::request::Request;
use crate::outcome::ServerErrorKind;
use crate::proto::index::RoundId;
use crate::quorum::NodeSet;
use crate::resource::{KINDS, Key};

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

/// What is known of a script that takes a lock, on a node's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It is sent behind a trial.
    Nothing,
    /// Its commands work. Its text is sent, which the server keeps.
    Works,
    /// The server keeps it, if it has not forgotten it. Its hash is sent.
    Kept,
}

impl Known {
    /// What the next reply answers, where a round's script is sent so.
    pub(super) fn request(self, round: RoundId, shape: Shape) -> Request {
        match self {
            Known::Nothing => Request::Trialled(round, shape),
            Known::Works => Request::Text(round, shape),
            Known::Kept => Request::Round(round, shape),
        }
    }

    /// How the script is sent. `key` is one that no client uses.
    pub(super) fn sent_as(self, key: &Key, trial: Trial) -> SentAs<'_> {
        match self {
            Known::Nothing => SentAs::Tried(TrialFirst { key, trial }),
            Known::Works => SentAs::Text,
            Known::Kept => SentAs::Hash,
        }
    }
}

/// The nodes on whose connections something is known.
#[derive(Default)]
pub(crate) struct Trials {
    /// By trial: all of its commands were seen to work.
    able: [NodeSet; Trial::ALL.len()],
    /// By the number of the kind: its script has run, and the server may run it by its hash.
    keeping: [NodeSet; KINDS],
    /// The user has no right to send a hash.
    only_text: NodeSet,
}

impl Trials {
    /// Splits off those of these nodes on which the same is known of the script of a claim.
    #[inline]
    pub(super) fn alike(&self, nodes: NodeSet, trial: Trial, claim: &Claim) -> (NodeSet, Known) {
        let able = nodes.and(self.able[trial as usize]);
        let keeping = able.and(self.keeping[usize::from(claim.key.row().number)]);
        let kept = keeping.without(self.only_text);
        match (kept.is_empty(), able.is_empty()) {
            (false, _) => (kept, Known::Kept),
            (true, false) => (able, Known::Works),
            (true, true) => (nodes, Known::Nothing),
        }
    }

    /// The script of such a round was sent by its text, and has run.
    pub(super) fn note(&mut self, node: usize, sent: Request, kind: RoundKind, claim: &Claim) {
        match (Trial::before(kind, claim), sent) {
            (Some(trial), Request::Trialled(..)) => self.able[trial as usize].insert(node),
            (Some(_), _) => self.keeping[usize::from(claim.key.row().number)].insert(node),
            (None, _) => {}
        }
    }

    /// Whether a server that answers this has not run the script of a claim because it was sent by
    /// its hash. Its text is sent from then on: until it keeps it, or for good if the user has
    /// no right to send a hash.
    #[cold]
    pub(super) fn lacks(&mut self, node: usize, error: &ServerError, claim: &Claim) -> bool {
        let names_it = || error.message.to_ascii_lowercase().contains("evalsha");
        match error.kind {
            ServerErrorKind::NoScript => {
                self.keeping[usize::from(claim.key.row().number)].remove(node)
            }
            ServerErrorKind::Permission | ServerErrorKind::UnknownCommand if names_it() => {
                self.only_text.insert(node);
            }
            _ => return false,
        }
        true
    }

    /// The connection has ended: the next one may be another server's, or another user's.
    pub(super) fn forget(&mut self, node: usize) {
        self.able.iter_mut().chain(&mut self.keeping).for_each(|nodes| nodes.remove(node));
        self.only_text.remove(node);
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
    use crate::resource::Resource;
    use crate::token::LockToken;
    use crate::validity::Ttl;

    #[test]
    fn kind_is_tried_once_on_each_connection() {
        let ttl = Ttl::new(std::time::Duration::from_secs(1)).unwrap();
        let token = LockToken::from_random([0; 20]);
        let claim = |key| Claim { key, token, ttl };
        let share = claim(Key::new(Resource::shared("r").unwrap(), b""));
        let plain = claim(Key::new(Resource::new("r").unwrap(), b""));
        let (all, sent) = (NodeSet::all(3), Request::Trialled(RoundId(0), Shape::Vote));
        let mut trials = Trials::default();
        trials.note(1, sent, RoundKind::Take, &share);
        trials.note(2, sent, RoundKind::AcquireFenced, &plain);
        trials.note(0, sent, RoundKind::Release, &share);
        let shares = |trials: &Trials| trials.alike(all, Trial::Shares, &share);
        let fenced = |trials: &Trials| trials.alike(all, Trial::Fenced, &plain);
        assert_eq!(shares(&trials), (NodeSet::one(1), Known::Works));
        assert_eq!(fenced(&trials), (NodeSet::one(2), Known::Works));
        assert_eq!(trials.alike(all, Trial::Several, &share), (all, Known::Nothing));
        trials.forget(1);
        assert_eq!(shares(&trials), (all, Known::Nothing));
        assert_eq!(fenced(&trials), (NodeSet::one(2), Known::Works));
    }
}
