//! The sighting of a promoted server: what clients leave on the server itself, so that its
//! quarantine ends for those that connect later as well (R33).

use std::sync::Arc;
use std::time::Duration;

use crate::proto::command::{History, Reply, Sighting};

/// What the server holds under the sighting's key.
#[derive(Debug, Default)]
enum Stored {
    /// It was not asked, or did not say.
    #[default]
    Unknown,
    Nothing,
    Sighting(Box<Sighting>),
    /// A value that no client of this crate has written. It stays.
    Foreign,
}

/// What became of the sighting that this client sends.
#[derive(Debug, Default)]
enum Sent {
    #[default]
    Nothing,
    Unanswered(Box<Sighting>),
    Stored,
}

/// The sighting as far as one connection shows it.
#[derive(Debug, Default)]
pub(crate) struct Sightings {
    /// The time of the server, asked for after its role.
    time: Option<Duration>,
    stored: Stored,
    sent: Sent,
    /// Why the server did not tell or store the sighting.
    refusal: Option<Arc<str>>,
}

impl Sightings {
    /// A new connection: nothing is known of the server behind it.
    pub(crate) fn reconnect(&mut self) {
        *self = Sightings::default();
    }

    /// The server told its time in the handshake, after its role and its history.
    pub(crate) fn note_time(&mut self, time: Duration) {
        self.time = Some(time);
    }

    /// The time that the server told in the handshake.
    pub(crate) fn time(&self) -> Option<Duration> {
        self.time
    }

    /// The answer to the question for the sighting.
    pub(crate) fn note_stored(&mut self, reply: Reply) {
        self.stored = match reply {
            Reply::Nil => Stored::Nothing,
            Reply::Sighting(sighting) => Stored::Sighting(sighting),
            _ => {
                self.refusal = Some("it holds another value".into());
                Stored::Foreign
            }
        };
    }

    /// The server did not tell or store the sighting.
    pub(crate) fn note_refusal(&mut self, message: Arc<str>) {
        self.sent = Sent::Nothing;
        self.refusal = Some(message);
    }

    /// For how long the process has certainly been a master with this history. A sighting of
    /// another process or of another history says nothing: the server may have been a replica
    /// since then.
    pub(crate) fn age(&self, run_id: &str, history: History) -> Option<Duration> {
        let sighting = self.matching(run_id, history)?;
        // A clock that was set back since then: age zero.
        Some(self.time?.saturating_sub(sighting.time))
    }

    fn matching(&self, run_id: &str, history: History) -> Option<&Sighting> {
        match &self.stored {
            Stored::Sighting(sighting) => {
                let is_it = *sighting.run_id == *run_id && sighting.history == history;
                is_it.then_some(sighting)
            }
            Stored::Unknown | Stored::Nothing | Stored::Foreign => None,
        }
    }

    /// The client has seen this process as a master with this history, at the time that the server
    /// told. Returns whether the server is to store that: not if it has an earlier sighting.
    pub(crate) fn is_news(&mut self, run_id: &Arc<str>, history: History) -> bool {
        let Some(time) = self.time else {
            return false;
        };
        let may_store = match &self.stored {
            Stored::Unknown | Stored::Foreign => false,
            Stored::Nothing => true,
            // A time that is still to come is of a clock that was set back.
            Stored::Sighting(_) => {
                self.matching(run_id, history).is_none_or(|sighting| sighting.time > time)
            }
        };
        if may_store {
            let run_id = Arc::clone(run_id);
            self.sent = Sent::Unanswered(Box::new(Sighting { run_id, history, time }));
        }
        may_store
    }

    /// What the server is to store.
    pub(crate) fn to_store(&self) -> Option<&Sighting> {
        match &self.sent {
            Sent::Unanswered(sighting) => Some(sighting),
            Sent::Nothing | Sent::Stored => None,
        }
    }

    /// The server has stored the sighting.
    pub(crate) fn note_sent(&mut self) {
        self.sent = Sent::Stored;
    }

    /// Whether a client that connects later finds a sighting of this process and history, so that
    /// its quarantine is not longer than this client's.
    pub(crate) fn is_kept(&self, run_id: &str, history: History) -> bool {
        let is_later = |sighting: &Sighting| self.time.is_none_or(|time| sighting.time > time);
        let is_known = self.matching(run_id, history).is_some_and(|sighting| !is_later(sighting));
        is_known || matches!(self.sent, Sent::Stored)
    }

    /// Why later clients will find none, as far as the server said so.
    pub(crate) fn refusal(&self) -> Option<&Arc<str>> {
        self.refusal.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn history(number: u128) -> History {
        History::from(number)
    }

    fn sighting(run_id: &str, number: u128, seconds: u32) -> Reply {
        let (run_id, history) = (run_id.into(), history(number));
        Reply::Sighting(Box::new(Sighting { run_id, history, time: seconds * SECOND }))
    }

    /// A handshake at 100 s by the server's clock that found this.
    fn answered(stored: Reply) -> Sightings {
        let mut sightings = Sightings::default();
        sightings.note_time(100 * SECOND);
        sightings.note_stored(stored);
        sightings
    }

    #[test]
    fn age_counts_from_a_sighting_of_this_very_process_and_history() {
        let table = [
            (sighting("a", 1, 70), Some(30)),
            (sighting("a", 1, 100), Some(0)),
            // The clock was set back.
            (sighting("a", 1, 101), Some(0)),
            (sighting("a", 1, u32::MAX), Some(0)),
            (sighting("b", 1, 70), None),
            (sighting("a", 2, 70), None),
            (Reply::Nil, None),
            (Reply::Info(Box::default()), None),
        ];
        for (stored, age) in table {
            let shown = format!("{stored:?}");
            let expected = age.map(|seconds| seconds * SECOND);
            assert_eq!(answered(stored).age("a", history(1)), expected, "{shown}");
        }
    }

    #[test]
    fn without_the_servers_time_nothing_is_known_and_nothing_stored() {
        let mut sightings = Sightings::default();
        sightings.note_stored(sighting("a", 1, 70));
        assert_eq!(sightings.age("a", history(1)), None);
        sightings.note_stored(Reply::Nil);
        assert!(!sightings.is_news(&"a".into(), history(1)));
        assert_eq!(sightings.to_store(), None);
    }

    #[test]
    fn sighting_is_stored_unless_one_is_there_or_the_key_is_anothers() {
        let table = [
            (Reply::Nil, true),
            (sighting("b", 1, 70), true),
            (sighting("a", 2, 70), true),
            (sighting("a", 1, 70), false),
            (sighting("a", 1, 100), false),
            // It would keep later clients waiting until its clock comes there.
            (sighting("a", 1, 101), true),
            (Reply::Info(Box::default()), false),
        ];
        for (stored, is_stored) in table {
            let shown = format!("{stored:?}");
            let mut sightings = answered(stored);
            assert_eq!(sightings.is_news(&"a".into(), history(1)), is_stored, "{shown}");
            let own = Sighting { run_id: "a".into(), history: history(1), time: 100 * SECOND };
            assert_eq!(sightings.to_store(), is_stored.then_some(&own), "{shown}");
        }
        let mut unknown = Sightings::default();
        unknown.note_time(100 * SECOND);
        unknown.note_refusal("NOPERM".into());
        assert!(!unknown.is_news(&"a".into(), history(1)), "nobody knows what it would replace");
    }

    #[test]
    fn later_clients_find_a_sighting_that_was_there_or_that_is_confirmed() {
        assert!(answered(sighting("a", 1, 70)).is_kept("a", history(1)));
        assert!(!answered(sighting("a", 1, 170)).is_kept("a", history(1)), "of a time to come");
        assert!(!answered(sighting("b", 1, 70)).is_kept("a", history(1)));
        let mut sightings = answered(Reply::Nil);
        assert!(sightings.is_news(&"a".into(), history(1)));
        assert!(!sightings.is_kept("a", history(1)), "it is under way");
        sightings.note_sent();
        assert!(sightings.is_kept("a", history(1)));
        assert_eq!(sightings.to_store(), None, "once");
        let mut refused = answered(Reply::Nil);
        assert!(refused.is_news(&"a".into(), history(1)));
        refused.note_refusal("READONLY".into());
        assert!(!refused.is_kept("a", history(1)));
        assert_eq!(
            (refused.to_store(), refused.refusal().map(|it| &**it)),
            (None, Some("READONLY"))
        );
        refused.reconnect();
        assert_eq!(refused.refusal(), None);
    }
}
