//! Whether the server's data is still what the handshake found: notices of flushes, and the marker
//! that tells which database was flushed.
//!
//! A server that tracks keys for a connection pushes a null invalidation when it flushes or
//! replaces the data of any database, in order with its answers. The marker is a key that only a
//! flush deletes. If it stands where it stood, with its value, another database was flushed.

use std::time::Duration;

use super::Guard;
use crate::moment::Moment;
use crate::proto::command::{Marker, Reply};

/// What is known after the server has told of a flush.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Inquiry {
    /// It has told of none, or nothing of ours was flushed.
    #[default]
    None,
    /// It is asked for the marker.
    Asked,
    /// It has told of another one since it was asked.
    AskedTooSoon,
}

/// What the marker shows after a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Another database was flushed.
    Unchanged,
    /// This one was flushed, or it cannot be told.
    Flushed,
    /// There was another flush since.
    Unknown,
}

/// The notices and the marker of one node.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// Whether the server tells this connection of flushes.
    is_told: bool,
    inquiry: Inquiry,
    /// What must still stand there after the flush that was told first.
    expected: Option<Marker>,
    /// What stood there when it was last read; `None` if it could not be read or written.
    marker: Option<Marker>,
    /// The same of the last connection before with a complete handshake.
    before: Option<Marker>,
    /// Whether the handshake is complete: one that is cut short has compared nothing.
    is_complete: bool,
    /// Whether a connection has ended since the last complete handshake while it was not known what
    /// was flushed.
    was_in_doubt: bool,
    /// For the marker that this connection writes.
    id: u64,
}

impl Flushes {
    /// A new connection, on which nothing was told yet.
    pub(super) fn reconnect(&mut self, id: u64) {
        let before = if self.is_complete { self.marker } else { self.before };
        let was_in_doubt = self.was_in_doubt || self.inquiry != Inquiry::None;
        *self = Flushes { before, was_in_doubt, id, ..Flushes::default() };
    }

    /// The server tells of flushes from here on.
    pub(crate) fn note_told(&mut self) {
        self.is_told = true;
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The answer to the question for the marker in the handshake.
    pub(crate) fn note_marker(&mut self, reply: &Reply) {
        self.marker = marker(reply);
    }

    /// The server has told of a flush. Returns whether it is to be asked for the marker.
    fn note_flush(&mut self) -> bool {
        let is_first = self.inquiry == Inquiry::None;
        if is_first {
            // A marker that this connection has yet to read may be younger than the flush.
            self.expected = self.marker.or(self.before);
        }
        self.inquiry = if is_first { Inquiry::Asked } else { Inquiry::AskedTooSoon };
        is_first
    }

    /// The marker after a flush.
    pub(crate) fn note_found(&mut self, reply: &Reply) -> Found {
        let found = marker(reply);
        let is_same = found.is_some() && found == self.expected;
        if !is_same {
            (self.marker, self.inquiry) = (found, Inquiry::None);
            return Found::Flushed;
        }
        match std::mem::take(&mut self.inquiry) {
            Inquiry::AskedTooSoon => {
                self.inquiry = Inquiry::Asked;
                Found::Unknown
            }
            Inquiry::None | Inquiry::Asked => Found::Unchanged,
        }
    }

    /// The handshake is complete, and what its marker shows is known.
    fn complete(&mut self) {
        (self.is_complete, self.was_in_doubt) = (true, false);
    }

    /// Whether the database of the same process was flushed while there was no connection.
    fn is_changed(&self) -> bool {
        self.before.map_or(self.was_in_doubt, |before| self.marker != Some(before))
    }

    /// For how long the marker has stood there at the server's time.
    fn age(&self, time: Option<Duration>) -> Duration {
        let written = self.marker.map(|marker| Duration::from_micros(marker.micros));
        time.zip(written).map_or(Duration::ZERO, |(time, written)| time.saturating_sub(written))
    }
}

fn marker(reply: &Reply) -> Option<Marker> {
    match reply {
        Reply::Marker(marker) => Some(*marker),
        _ => None,
    }
}

impl Guard {
    /// Whether the server tells this connection of flushes.
    pub(crate) fn is_told(&self) -> bool {
        self.flushes.is_told
    }

    /// The server has told of a flush: from now on its votes do not count, until it is known what
    /// was flushed. Returns whether it is to be asked; `None` if nobody minds.
    pub(crate) fn note_flush(&mut self) -> Option<bool> {
        self.is_distrusted().then(|| self.flushes.note_flush())
    }

    /// Whether it is not known yet what was flushed.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.flushes.inquiry != Inquiry::None
    }

    /// The same, or a connection has ended meanwhile, and no handshake has been complete since.
    pub(crate) fn may_be_flushed(&self) -> bool {
        self.is_in_doubt() || self.flushes.was_in_doubt
    }

    /// Until when the votes of a server do not count whose handshake is complete, if the marker
    /// shows a flush.
    pub(crate) fn flushed_until(&mut self, now: Moment, is_same_process: bool) -> Option<Moment> {
        let is_changed = is_same_process && self.flushes.is_changed() && self.is_distrusted();
        self.flushes.complete();
        let age = match (is_changed, self.config.notices_flushes()) {
            (true, _) => Duration::ZERO,
            (false, true) => self.flushes.age(self.sightings.time()),
            (false, false) => return None,
        };
        let left = self.config.quarantine.saturating_sub(age);
        (!left.is_zero()).then(|| now.after(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Marker = Marker { id: 1, micros: 7_000_000 };
    const OTHER: Marker = Marker { id: 2, micros: 9_000_000 };

    fn connected(marker: Option<Marker>) -> Flushes {
        let mut flushes = Flushes::default();
        flushes.note_told();
        flushes.note_marker(&marker.map_or(Reply::Nil, Reply::Marker));
        flushes.complete();
        flushes
    }

    #[test]
    fn only_a_marker_that_stands_shows_that_nothing_of_ours_was_flushed() {
        let table = [
            (Some(OURS), Reply::Marker(OURS), Found::Unchanged),
            (Some(OURS), Reply::Marker(OTHER), Found::Flushed),
            (Some(OURS), Reply::Nil, Found::Flushed),
            (None, Reply::Nil, Found::Flushed),
            (None, Reply::Marker(OURS), Found::Flushed),
        ];
        for (before, reply, expected) in table {
            let mut flushes = connected(before);
            assert!(flushes.note_flush(), "it is asked");
            assert_eq!(flushes.note_found(&reply), expected, "{before:?} {reply:?}");
            assert_eq!(flushes.inquiry, Inquiry::None);
        }
    }

    #[test]
    fn marker_that_was_asked_for_before_another_flush_shows_nothing() {
        let mut flushes = connected(Some(OURS));
        assert!(flushes.note_flush() && !flushes.note_flush() && !flushes.note_flush());
        assert_eq!(flushes.note_found(&Reply::Marker(OURS)), Found::Unknown);
        assert_eq!(flushes.note_found(&Reply::Marker(OURS)), Found::Unchanged);
    }

    #[test]
    fn marker_of_the_connection_before_is_compared_with_this_one() {
        for (now, is_changed) in [(Some(OURS), false), (Some(OTHER), true), (None, true)] {
            let mut flushes = connected(Some(OURS));
            flushes.reconnect(0);
            flushes.note_marker(&now.map_or(Reply::Nil, Reply::Marker));
            assert_eq!(flushes.is_changed(), is_changed, "{now:?}");
        }
        let mut flushes = connected(None);
        flushes.reconnect(0);
        flushes.note_marker(&Reply::Marker(OURS));
        assert!(!flushes.is_changed(), "nothing was known");
    }

    #[test]
    fn marker_is_as_old_as_the_servers_clock_says() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(connected(Some(OURS)).age(seconds(10)), Duration::from_secs(3));
        assert_eq!(connected(Some(OURS)).age(seconds(5)), Duration::ZERO, "it was set back");
        assert_eq!(connected(Some(OURS)).age(None), Duration::ZERO);
        assert_eq!(connected(None).age(seconds(10)), Duration::ZERO);
    }
}
