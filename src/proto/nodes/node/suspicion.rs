//! When a silent connection is doubted. A gateway may have forgotten it without a reset, while the
//! server is well.
//!
//! The caller then opens a second connection beside it. The server's answer there, while the first
//! one stays silent, shows that the first one is lost. A server that is slow or stopped answers
//! neither, so it costs one more connection, and the commands that it has read are not lost.

use std::time::Duration;

use super::SILENCE_MAX;
use crate::moment::Moment;

/// While the first address of a name has not answered, the next one is tried after this long (RFC
/// 8305),
const NEXT_AFTER_MAX: Duration = Duration::from_millis(250);
/// or after this share of the connect timeout, if that is shorter.
const NEXT_AFTER_SHARE: u32 = 4;
/// A connection that owes replies is doubted after a silence of this many node timeouts.
const TIMEOUTS: u32 = 4;
/// It is doubted no sooner than this, so that a busy machine does not open connections for nothing,
const AFTER_MIN: Duration = Duration::from_millis(100);
/// and after this at the latest, or after one node timeout if that is longer.
const AFTER_MAX: Duration = Duration::from_secs(1);
/// It is doubted after this share of the shortest time by which locks were extended, if that comes
/// sooner: the extension has to be sent again before the lock ends.
const TTL_SHARE: u32 = 8;

pub(crate) struct Suspicion {
    after: Duration,
    /// Before a silence of so many nanoseconds, nothing is due: neither a doubt nor the end of the
    /// connection.
    calm_nanos: u64,
    again_after: Duration,
    next_after: Duration,
    /// When the next address is tried, while the connection is being established.
    next_at: Option<Moment>,
    /// When the last second connection was requested.
    asked_at: Option<Moment>,
    /// When the silence was last looked at since then. If the node speaks and falls silent again,
    /// nothing is due sooner than it was before.
    looked_at: Moment,
}

impl Suspicion {
    pub(super) fn new(node_timeout: Duration, connect_timeout: Duration) -> Suspicion {
        let after_max = AFTER_MAX.max(node_timeout);
        let after = node_timeout.saturating_mul(TIMEOUTS).clamp(AFTER_MIN, after_max);
        Suspicion {
            after,
            calm_nanos: calm_nanos(after),
            again_after: connect_timeout.max(after),
            next_after: (connect_timeout / NEXT_AFTER_SHARE).min(NEXT_AFTER_MAX),
            next_at: None,
            asked_at: None,
            looked_at: Moment::START,
        }
    }

    /// A lock is extended by `ttl`. Returns after which silence the connection is doubted from now
    /// on.
    pub(super) fn hold(&mut self, ttl: Duration) -> Duration {
        self.after = self.after.min((ttl / TTL_SHARE).max(AFTER_MIN));
        self.calm_nanos = calm_nanos(self.after);
        self.after
    }

    /// An address is being connected to, which may have others beside it.
    pub(super) fn choose(&mut self, now: Moment) {
        self.next_at = Some(now.after(self.next_after));
    }

    /// When the next address is to be tried, while the connection is being established.
    pub(super) fn next_at(&self) -> Option<Moment> {
        self.next_at
    }

    /// A new connection is established, or begins.
    pub(super) fn reconnect(&mut self) {
        (self.asked_at, self.next_at) = (None, None);
    }

    /// When a second connection is to be opened, or the first one is lost, if the node stays
    /// silent, as since then.
    #[inline(always)]
    pub(super) fn first_due(&self, silent_since: Moment) -> Moment {
        match self.asked_at {
            None => silent_since.after_nanos(self.calm_nanos),
            Some(_) => self.due(silent_since).min(silent_since.after(SILENCE_MAX)),
        }
    }

    /// When to look whether a second connection is to be opened, if the node stays silent, as since
    /// then.
    #[cold]
    pub(super) fn due(&self, silent_since: Moment) -> Moment {
        match self.asked_in(silent_since) {
            Some(asked_at) => {
                asked_at.after(self.again_after).min(self.looked_at.after(self.after))
            }
            None => silent_since.after(self.after),
        }
    }

    /// The moment is due. Returns whether a second connection is to be opened.
    pub(super) fn look(&mut self, now: Moment, silent_since: Moment) -> bool {
        self.looked_at = now;
        let asked_at = self.asked_in(silent_since);
        let is_due = asked_at.is_none_or(|asked_at| now >= asked_at.after(self.again_after));
        if is_due {
            self.asked_at = Some(now);
        }
        is_due
    }

    /// Whether a second connection was requested in this silence: an answer on it speaks against
    /// the first one.
    pub(super) fn has_asked_in(&self, silent_since: Moment) -> bool {
        self.asked_in(silent_since).is_some()
    }

    fn asked_in(&self, silent_since: Moment) -> Option<Moment> {
        self.asked_at.filter(|asked_at| *asked_at > silent_since)
    }
}

fn calm_nanos(after: Duration) -> u64 {
    after.min(SILENCE_MAX).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const CONNECT: Duration = Duration::from_millis(500);

    #[test]
    fn doubt_comes_after_a_few_node_timeouts_within_its_limits() {
        let after = |node_timeout| Suspicion::new(node_timeout, CONNECT).after;
        assert_eq!(after(MS), AFTER_MIN);
        assert_eq!(after(50 * MS), 200 * MS);
        assert_eq!(after(900 * MS), AFTER_MAX);
        assert_eq!(after(3_000 * MS), 3_000 * MS);
    }

    #[test]
    fn doubt_comes_before_the_shortest_lock_ends() {
        let mut suspicion = Suspicion::new(1_000 * MS, CONNECT);
        assert_eq!(suspicion.hold(30_000 * MS), AFTER_MAX);
        assert_eq!(suspicion.hold(3_000 * MS), 375 * MS);
        assert_eq!(suspicion.hold(30_000 * MS), 375 * MS);
        assert_eq!(suspicion.hold(10 * MS), AFTER_MIN);
        let since = Moment::START.after(1_000 * MS);
        assert_eq!(suspicion.due(since), since.after(AFTER_MIN));
    }

    #[test]
    fn nothing_is_due_before_the_doubt_or_the_end_of_the_silence() {
        let since = Moment::START.after(1_000 * MS);
        for node_timeout in [MS, 50 * MS, 900 * MS, SILENCE_MAX, SILENCE_MAX + MS] {
            let mut suspicion = Suspicion::new(node_timeout, CONNECT);
            for asked_at in [None, Some(since), Some(since.after(MS)), Some(since.after(CONNECT))] {
                suspicion.asked_at = asked_at;
                suspicion.hold(3_000 * MS);
                let first = suspicion.due(since).min(since.after(SILENCE_MAX));
                assert_eq!(suspicion.first_due(since), first, "{node_timeout:?}, {asked_at:?}");
            }
        }
    }

    #[test]
    fn each_silence_is_doubted_anew_and_one_that_lasts_again() {
        let mut suspicion = Suspicion::new(50 * MS, CONNECT);
        let since = Moment::START.after(1_000 * MS);
        assert_eq!(suspicion.due(since), since.after(200 * MS));
        let asked = since.after(200 * MS);
        assert!(suspicion.look(asked, since));
        assert!(suspicion.has_asked_in(since));
        let looks = [200, 400, 500].map(|millis| asked.after(millis * MS));
        for look in looks {
            assert_eq!(suspicion.due(since), look);
            assert_eq!(suspicion.look(look, since), look == asked.after(CONNECT));
        }
        let spoke = looks[2].after(MS);
        assert!(!suspicion.has_asked_in(spoke), "it has spoken since");
        assert_eq!(suspicion.due(spoke), spoke.after(200 * MS));
    }

    /// Otherwise the caller would sleep on until what was due before.
    #[test]
    fn node_that_speaks_makes_nothing_due_sooner() {
        let mut suspicion = Suspicion::new(50 * MS, CONNECT);
        let since = Moment::START.after(1_000 * MS);
        for millis in (200..1_000).step_by(10) {
            let now = since.after(millis * MS);
            let due = suspicion.due(since);
            if now >= due {
                suspicion.look(now, since);
            }
            assert!(suspicion.due(now.after(MS)) >= suspicion.due(since), "{millis}");
        }
    }
}
