//! Choices of a client, each with its default.

use std::time::Duration;

/// The delay between the rounds of [`try_lock_for`](crate::Redlock::try_lock_for).
///
/// The delay after round `k` is random in `[d, 2d]`. `d` starts at `first`, doubles with every
/// round up to `most`, and is at least three times the last observed round trip to a quorum (R9).
/// So clients that collided are unlikely to collide again.
///
/// ```
/// use muxlock::Retry;
/// use std::time::Duration;
///
/// let patient = Retry::default().most(Duration::from_millis(250));
/// # let _ = patient;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    pub(super) first: Duration,
    pub(super) most: Duration,
}

impl Retry {
    /// The base of the first delay; 2 ms if not set.
    #[must_use]
    pub fn first(self, first: Duration) -> Retry {
        Retry { first, ..self }
    }

    /// The greatest base of a delay; 64 ms if not set.
    #[must_use]
    pub fn most(self, most: Duration) -> Retry {
        Retry { most, ..self }
    }

    /// The base `d` after `rounds` rounds failed.
    pub(crate) fn base(&self, rounds: u32, quorum_round_trip: Duration) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1u32.checked_shl(rounds.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.most).max(quorum_round_trip.saturating_mul(3))
    }
}

impl Default for Retry {
    fn default() -> Retry {
        Retry { first: Duration::from_millis(2), most: Duration::from_millis(64) }
    }
}

/// How the client treats a master that may have forgotten a lock that is still held.
///
/// A master that was restarted without its data would grant such a lock a second time. The guard
/// puts it into quarantine: its votes do not count until every lock it can have forgotten has
/// expired. That takes [`max_ttl`](crate::Builder::max_ttl), plus the clock drift on it, plus one
/// second because servers report their age in whole seconds. The algorithm calls this "delayed
/// restarts"; here the client does the waiting. The guard also covers a replica that was promoted,
/// a master whose wall clock was seen to jump forward, and a master whose
/// [`flush_marker`](crate::Builder::flush_marker) is gone.
///
/// The client still sends everything to a node in quarantine, so that its copies of keys block
/// other clients when it votes again. But none of its answers counts, not even for an extension:
/// another client that is about to win a lock may still count a vote from before the restart.
///
/// The guard protects a resource only if every client of it uses the guard, with a `max_ttl` that
/// no lock of any of them exceeds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestartGuard {
    /// The client relies on the age that the server reports (`uptime_in_seconds`), unless this
    /// client has seen the previous process more recently than that. The default.
    #[default]
    Uptime,
    /// Only this client's own observation counts: a master votes after this client has known its
    /// process for that long. No clock of a server is trusted. The cost is that wait after each
    /// start of this client.
    OwnObservation,
    /// No quarantine, whatever happened to a master. For development, where masters are started and
    /// used at once, and for masters that the operator knows to be safe.
    Off,
}

/// What an extension does on a master that does not have the lock.
///
/// A master that is restarted without its data forgets the locks it has granted, and extensions no
/// longer count there. Once a majority has been restarted, one after the other, no lock that was
/// held throughout can be extended, however often its holder renews it. Healing is for long-lived
/// locks on masters that are restarted in turn.
///
/// Healing requires the [`RestartGuard`] on every master. A copy that was set anew proves nothing
/// while another client may still count a vote from before the master forgot. So a healed copy
/// counts only after the master's quarantine. If so many masters restart within that time that no
/// quorum remembers the lock, it is lost, as without healing. Make sure that an extension runs
/// between the end of one master's quarantine and the restart of the next.
///
/// With a [`flush_marker`](crate::Builder::flush_marker), an extension checks it as a new lock
/// does. Of all processes that a lock is handed to, either all should heal or none.
///
/// With healing, deleting the keys no longer takes a kept-alive lock away from its holder, unless
/// another client takes the lock before the next extension.
///
/// ```
/// use muxlock::{Heal, Redlock};
///
/// let config = Redlock::builder()
///     .nodes(["redis://127.0.0.1:7000", "redis://127.0.0.1:7001", "redis://127.0.0.1:7002"])
///     .heal(Heal::On)
///     .config()?;
/// # drop(config);
/// # Ok::<(), muxlock::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Heal {
    /// The extension leaves such a master without the lock. The default.
    #[default]
    Off,
    /// The extension sets the lock there with the same token and the requested TTL, unless another
    /// token is there. So masters that could not be reached, or refused, when the lock was taken
    /// get it too.
    On,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_base_doubles_up_to_its_cap_and_respects_the_round_trip() {
        let retry = Retry::default();
        let millis = Duration::from_millis;
        for (rounds, expected) in
            [(1, 2), (2, 4), (5, 32), (6, 64), (7, 64), (40, 64), (u32::MAX, 64)]
        {
            assert_eq!(retry.base(rounds, Duration::ZERO), millis(expected), "{rounds}");
        }
        assert_eq!(retry.base(1, millis(100)), millis(300));
    }
}
