//! Compares a server's wall clock with ours: a jump forward lets keys expire too early.
//!
//! It cannot see a jump shorter than the round trip of the check, nor one shorter than the drift
//! that the clocks may have accumulated since the check before. It sees a jump after a check only
//! at the next one.

use std::time::Duration;

use super::{Effect, Guard, Node, is_forbidden};
use crate::moment::Moment;
use crate::proto::command::Reply;
use crate::proto::notices::Notice;
use crate::proto::request::Question;
use crate::validity::drift_over;

/// A SET is preceded by a check of the server's clock if the last check is older than this.
const SAMPLE_AGE_NANOS_MAX: u64 = 10_000_000;
/// And by a look at what its handshake has judged if the last look is older than this.
const LOOK_AGE_NANOS_MAX: u64 = 1_000_000_000;
/// The clock is also checked before a SET if the server refused one within this time. A client that
/// waits for a lock must not profit from a jump that frees it.
const WAITING_NANOS_MAX: u64 = 1_000_000_000;
/// Proposals of fencing tokens need the time no more often.
const TIME_AGE_MAX: Duration = Duration::from_secs(10);
/// A smaller jump cannot be distinguished from rounding and delays.
const JUMP_MIN: Duration = Duration::from_millis(5);

/// The state of a server's clock as seen by this client.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServerClock {
    /// When the clock was last asked for, on any connection.
    asked_at: Option<Moment>,
    /// When the server was last looked at.
    looked_at: Option<Moment>,
    /// Whether the server refuses `TIME` on this connection.
    is_secret: bool,
    /// When the server last refused a SET.
    refused_at: Option<Moment>,
    /// The upper bound on how far it is ahead of our clock, in nanoseconds, and when that was
    /// measured.
    ahead: Option<(i128, Moment)>,
}

impl ServerClock {
    /// A new connection: its handshake asks for the time, and for all that a look does.
    pub(crate) fn reconnect(&mut self, now: Moment) {
        self.is_secret = false;
        self.ask(now);
        self.looked_at = Some(now);
    }

    /// No check of the clock is due before this moment, if the server tells its time; while a
    /// client waits for a lock, one is due at once.
    fn due(&self, now: Moment) -> Option<Moment> {
        let is_recent = |refused_at| now.nanos_since(refused_at) < WAITING_NANOS_MAX;
        let asked_at = self.asked_at.filter(|_| !self.refused_at.is_some_and(is_recent));
        (!self.is_secret).then(|| fresh_until(asked_at, SAMPLE_AGE_NANOS_MAX))
    }

    fn ask(&mut self, now: Moment) {
        self.asked_at = Some(now);
    }

    /// Compares what the server reported between `sent_at` and `now` with its earlier report.
    /// Returns whether its clock jumped forward.
    #[inline(always)]
    fn has_jumped(&mut self, sent_at: Moment, now: Moment, seen: Duration) -> bool {
        let seen = seen.as_nanos() as i128;
        // Jumps of this machine's own clock are excluded: they must not hide one of the server's.
        let least = seen - i128::from(now.steady_nanos());
        let most = seen - i128::from(sent_at.steady_nanos());
        // The reading may be as old as the request, so drift counts from there.
        let Some((before, at)) = self.ahead else {
            self.ahead = Some((most, sent_at));
            return false;
        };
        let drift = |until: Moment| drift_over(until.steadily_since(at)).as_nanos() as i128;
        // Nearly always, the drift need not be known.
        let beyond = least - before - JUMP_MIN.as_nanos() as i128;
        let has_jumped = beyond > 0 && beyond > drift(now);
        // Keeps the tighter bound, so that many small jumps add up to one that shows.
        let is_tighter = !has_jumped && most > before;
        let most = if is_tighter { most.min(before + drift(sent_at)) } else { most };
        self.ahead = Some((most, sent_at));
        has_jumped
    }
}

/// What was asked for then is fresh until this moment.
fn fresh_until(asked_at: Option<Moment>, age_nanos_max: u64) -> Moment {
    asked_at.map_or(Moment::START, |at| at.after_nanos(age_nanos_max))
}

/// Checks of the server's clock, if the restart guard is on.
impl Node {
    /// The reply to a check of the clock. Does nothing if it is not as usual: the next one, and not
    /// late.
    #[inline(always)]
    pub(crate) fn handle_told(&mut self, now: Moment, seen: Duration) -> Option<Effect> {
        let sent_at = self.pipeline.take_check(now)?;
        Some(self.handle_time(now, sent_at, Reply::Time(seen)))
    }

    /// The reply to a `TIME` that was sent at `sent_at`.
    #[inline(always)]
    pub(crate) fn handle_time(&mut self, now: Moment, sent_at: Moment, reply: Reply) -> Effect {
        match reply {
            Reply::Time(seen) => match self.guard.clock.has_jumped(sent_at, now, seen) {
                true => Effect::ClockJumped,
                false => Effect::Nothing,
            },
            Reply::Error(error) => {
                let is_forbidden = is_forbidden(error.kind);
                self.keep_error(error);
                // After a temporary error, the time is asked for again before the next SET.
                self.guard.clock.asked_at = None;
                let is_news =
                    is_forbidden && !std::mem::replace(&mut self.guard.clock.is_secret, true);
                // The node votes all the same.
                Effect::TimeRefused(is_news.then_some(Notice::SecretClock))
            }
            _ => Effect::UNEXPECTED,
        }
    }
}

impl Guard {
    /// Whether the server reports its role. A role that it does not report is not asked for again.
    pub(crate) fn reports_role(&self) -> bool {
        self.identity.server.replication.master.is_some()
    }

    /// No check of this kind is due before this moment, if one ever is.
    pub(crate) fn check_due(&self, now: Moment, question: Question) -> Option<Moment> {
        match question {
            _ if !self.is_guarded => None,
            Question::Look(_) => {
                self.reports_role().then(|| fresh_until(self.clock.looked_at, LOOK_AGE_NANOS_MAX))
            }
            _ => self.clock.due(now),
        }
    }

    /// Notes that the server is asked this. Returns whether it is to be asked.
    pub(crate) fn check(&mut self, now: Moment, question: Question) -> bool {
        let is_asked = self.check_due(now, question).is_some();
        match question {
            _ if !is_asked => {}
            Question::Look(_) => self.clock.looked_at = Some(now),
            _ => self.clock.ask(now),
        }
        is_asked
    }

    /// Same as [`check`](|node| node.guard.check()) of its time, where the guard does not ask, and
    /// was not asked for long (F6).
    pub(crate) fn ask_time_rarely(&mut self, now: Moment) -> bool {
        let is_known = |asked_at| now.since(asked_at) < TIME_AGE_MAX;
        let is_asked =
            !self.is_guarded && !self.clock.is_secret && !self.clock.asked_at.is_some_and(is_known);
        if is_asked {
            self.clock.ask(now);
        }
        is_asked
    }

    /// When to look again whether to ask so.
    pub(crate) fn look_due(&self, now: Moment) -> Moment {
        let asked_at = self.clock.asked_at.filter(|_| !self.is_guarded && !self.clock.is_secret);
        asked_at.unwrap_or(now).after(TIME_AGE_MAX)
    }

    /// By how much the server's clock is ahead of ours without its jumps, in nanoseconds, as far as
    /// that is known.
    pub(crate) fn ahead(&self) -> Option<i64> {
        self.clock.ahead.map(|(most, _)| i64::try_from(most).unwrap_or(i64::MAX))
    }

    /// The server refused a SET: a client waits for a lock there.
    pub(crate) fn set_refused(&mut self, now: Moment) {
        self.clock.refused_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn jumped(clock: &mut ServerClock, sent: u64, now: u64, seen: u64) -> bool {
        clock.has_jumped(at(sent), at(now), Duration::from_millis(seen))
    }

    #[test]
    fn only_a_jump_forward_beyond_drift_and_round_trip_counts() {
        let mut clock = ServerClock::default();
        assert!(!jumped(&mut clock, 1_000, 1_002, 500_001));
        assert!(!jumped(&mut clock, 2_000, 2_002, 501_001), "steady");
        assert!(!jumped(&mut clock, 3_000, 3_002, 502_016), "10 ms of drift and 5 ms of noise");
        assert!(!jumped(&mut clock, 4_000, 4_500, 503_300), "a slow answer says little");
        assert!(!jumped(&mut clock, 5_000, 5_002, 400_000), "a jump back is for others to fear");
        assert!(jumped(&mut clock, 6_000, 6_002, 401_030), "and forward again");
        assert!(!jumped(&mut clock, 7_000, 7_002, 402_030), "once");
    }

    #[test]
    fn a_jump_counts_from_the_first_nanosecond_beyond_what_may_be_noise() {
        for (beyond, expected) in [(0, false), (1, true)] {
            let mut clock = ServerClock::default();
            assert!(!jumped(&mut clock, 1_000, 1_000, 500_000));
            // A second later: 10 ms of drift and 5 ms of noise.
            let seen = Duration::from_millis(501_015) + Duration::from_nanos(beyond);
            assert_eq!(clock.has_jumped(at(2_000), at(2_000), seen), expected);
        }
    }

    #[test]
    fn a_steady_clock_is_never_suspected() {
        let mut clock = ServerClock::default();
        let jumps = (0..100).filter(|i| jumped(&mut clock, 1_000 * i, 1_000 * i, 1_000 * i + 7));
        assert_eq!(jumps.count(), 0);
    }

    /// Half of the drift is tolerated for as long as it lasts.
    #[test]
    fn clock_that_drifts_is_never_suspected() {
        let mut clock = ServerClock::default();
        let jumps = (0..100).filter(|i| jumped(&mut clock, 1_000 * i, 1_000 * i, 1_005 * i));
        assert_eq!(jumps.count(), 0);
    }

    /// Twice the drift is too much: what is tolerated at one look is not tolerated again.
    #[test]
    fn clock_that_drifts_too_much_is_suspected_after_a_while() {
        let mut clock = ServerClock::default();
        let jumps = (0..20).filter(|i| jumped(&mut clock, 100 * i, 100 * i, 102 * i));
        assert!(jumps.count() > 0);
    }

    #[test]
    fn checks_are_due_from_when_the_last_is_no_longer_fresh_or_while_one_waits() {
        let mut clock = ServerClock::default();
        assert_eq!(clock.due(at(0)), Some(at(0)));
        clock.reconnect(at(1_000));
        assert_eq!(clock.due(at(1_000)), Some(at(1_010)));
        // After a refused SET, a check of the clock is due at any time for a second.
        clock.refused_at = Some(at(500));
        for (now, waits) in [(1_000, true), (1_499, true), (1_500, false)] {
            clock.ask(at(now));
            let due = if waits { at(0) } else { at(now + 10) };
            assert_eq!(clock.due(at(now)), Some(due), "{now}");
        }
        clock.is_secret = true;
        assert_eq!(clock.due(at(9_000)), None, "a refused time is not asked for again");
        clock.refused_at = Some(at(9_000));
        assert_eq!(clock.due(at(9_000)), None);
        clock.reconnect(at(9_000));
        assert_eq!(clock.due(at(9_000)), Some(at(0)), "another connection may allow it");
    }

    #[test]
    fn an_answer_that_is_read_late_makes_no_jump() {
        let mut clock = ServerClock::default();
        // It is faster by 5 per mille than the tolerance has room for in the time that is left.
        assert!(!jumped(&mut clock, 1_000, 2_800, 500_000));
        assert!(!jumped(&mut clock, 3_000, 3_000, 502_020));
    }

    #[test]
    fn many_small_jumps_add_up() {
        let mut clock = ServerClock::default();
        let jumps = (0..100).filter(|i| jumped(&mut clock, 10 * i, 10 * i, 10 * i + 4 * i));
        assert!(jumps.count() > 0);
        // Whatever the date is.
        let mut clock = ServerClock::default();
        let seen = |i| 500_000 + 10 * i + 4 * i;
        let jumps = (0..100).filter(|i| jumped(&mut clock, 10 * i, 10 * i, seen(*i)));
        assert!(jumps.count() > 0);
    }
}
