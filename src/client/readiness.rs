//! Whether a quorum can vote, and if not, until when it is worth waiting for one.

use std::time::Duration;

use crate::moment::Moment;

/// The shortest time between two looks at masters in quarantine.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// One master, as far as it matters here.
#[derive(Clone, Copy)]
pub(super) struct Voter {
    /// It is connected, and owes no answer for too long.
    pub(super) votes: bool,
    /// For how long its votes will not count.
    pub(super) counts_in: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadyVerdict {
    Ready,
    /// It is worth waiting: look again after the next event, and at this moment.
    NotYet(Moment),
    /// The wait is over.
    TimedOut,
    /// The quarantine of too many masters outlasts the wait.
    Never,
}

/// Judges the masters at `now`, for a caller that waits until `until`.
pub(super) fn judge(now: Moment, until: Moment, quorum: usize, voters: &[Voter]) -> ReadyVerdict {
    let voting = voters.iter().filter(|voter| voter.votes).count();
    if voting >= quorum {
        return ReadyVerdict::Ready;
    }
    let left = until.since(now);
    let outlasts =
        |voter: &&Voter| !voter.votes && voter.counts_in.is_some_and(|counts_in| counts_in > left);
    if voters.len() - voters.iter().filter(outlasts).count() < quorum {
        return ReadyVerdict::Never;
    }
    if left.is_zero() {
        return ReadyVerdict::TimedOut;
    }
    let ends = voters.iter().filter_map(|voter| voter.counts_in);
    ReadyVerdict::NotYet(
        ends.map(|ends_in| now.after(ends_in.max(LOOK_AGAIN))).fold(until, Moment::min),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    const VOTES: Voter = Voter { votes: true, counts_in: None };
    const AWAY: Voter = Voter { votes: false, counts_in: None };

    fn quarantined(millis: u64) -> Voter {
        let counts_in = Some(Duration::from_millis(millis));
        Voter { votes: false, counts_in }
    }

    #[test]
    fn quorum_that_can_vote_is_enough() {
        let now = Moment::START.after(SECOND);
        let until = now.after(SECOND);
        let table = [
            (vec![VOTES, VOTES, AWAY], ReadyVerdict::Ready),
            (vec![VOTES, VOTES, quarantined(9_000)], ReadyVerdict::Ready),
            (vec![VOTES, AWAY, AWAY], ReadyVerdict::NotYet(until)),
            (vec![AWAY, AWAY, AWAY], ReadyVerdict::NotYet(until)),
            (
                vec![VOTES, quarantined(300), quarantined(9_000)],
                ReadyVerdict::NotYet(now.after(Duration::from_millis(300))),
            ),
            (
                vec![VOTES, quarantined(0), quarantined(300)],
                ReadyVerdict::NotYet(now.after(LOOK_AGAIN)),
            ),
            (vec![VOTES, quarantined(1_001), quarantined(9_000)], ReadyVerdict::Never),
            (vec![AWAY, quarantined(9_000), AWAY], ReadyVerdict::NotYet(until)),
        ];
        for (at, (voters, expected)) in table.into_iter().enumerate() {
            assert_eq!(judge(now, until, 2, &voters), expected, "row {at}");
        }
        assert_eq!(judge(until, until, 2, &[VOTES, AWAY, AWAY]), ReadyVerdict::TimedOut);
        assert_eq!(judge(until, until, 2, &[VOTES, VOTES, AWAY]), ReadyVerdict::Ready);
    }
}
