//! Choices of a client, each with its default.

use std::time::Duration;

/// The delay between the rounds of [`try_lock_for`](crate::Redlock::try_lock_for).
///
/// The delay after round `k` is random in `[d, 2d]`. `d` starts at `first` and doubles with every
/// round up to `most`. It is at least three times the smoothed time to a quorum of answers (for a
/// waiting writer: at least that time), even if that is more than `most`. So clients that collided
/// are unlikely to collide again.
///
/// ```
/// use muxlock::settings::Retry;
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
    /// The base of the first delay; 2 ms if not set. From 1 µs to one minute.
    #[must_use]
    pub fn first(self, first: Duration) -> Retry {
        Retry { first, ..self }
    }

    /// The base at which the doubling ends; 64 ms if not set. From `first` to one minute.
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

    /// The base where nothing but a sign holds others off meanwhile (K6).
    pub(crate) fn base_behind_sign(&self, rounds: u32, quorum_round_trip: Duration) -> Duration {
        self.base(rounds, quorum_round_trip / 3)
    }
}

impl Default for Retry {
    fn default() -> Retry {
        Retry { first: Duration::from_millis(2), most: Duration::from_millis(64) }
    }
}

/// How a client waits for a lock that others hold.
///
/// The setting is for waiting between clients. Acquisitions of the same [`Redlock`](crate::Redlock)
/// or [`Multiplexer`](crate::Multiplexer) that wait for the same resource always get it in the
/// order of their arrival.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// In a queue on one of the masters. A client that releases the lock notifies the next one, so
    /// waiting clients send no lock attempts. If no server supports it, or the user lacks the
    /// permissions, the client falls back to [`Retry`](Waiting::Retry). It reports this once in the
    /// log and in [`NodeStatus::queue`](crate::node::NodeStatus::queue). The default.
    #[default]
    Queue,
    /// Rounds with random delays between them; see [`Retry`](crate::settings::Retry).
    Retry,
}

/// How long an acquisition waits for its lock. Each call with `_for` in its name takes one, and a
/// [`Duration`] is [`Wait::from`] it.
///
/// - **From a [`Duration`]**: at most so long, for another holder as well as for a quorum of
///   masters: after a round that fails with [`Unavailable`](crate::LockErrorKind::Unavailable), the
///   call tries again.
/// - [`for_holder`](Wait::for_holder): at most so long, and only for another holder. The first
///   round without the votes of a quorum ends the call with
///   [`Unavailable`](crate::LockErrorKind::Unavailable). So requests with a deadline do not pile up
///   while no lock can be granted.
/// - [`forever`](Wait::forever): without a limit, as `flock` waits.
///
/// No wait is longer than until [`Redlock::close`](crate::Redlock::close), or
/// [`Waiter::cancel`](crate::Waiter::cancel). A limit of zero is one attempt, as in
/// [`try_lock`](crate::Redlock::try_lock).
///
/// # When `for_holder` notices an outage
/// One attempt without a quorum ends the call, even if an answer was only late: with one of three
/// masters down, a single answer that takes longer than
/// [`node_timeout`](crate::Builder::node_timeout) is enough. Set a longer one, or call again while
/// your time lasts. That attempt is the first one, or one that follows later:
///
/// - Masters that are not connected yet are connected to in the first round, which takes at most
///   [`connect_timeout`](crate::Builder::connect_timeout) +
///   [`node_timeout`](crate::Builder::node_timeout). Masters in quarantine have no votes:
///   [`ready_in`](crate::LockError::ready_in) returns how long to wait.
/// - A call that waits in the queue sends no attempts. It makes one at its next timer if fewer
///   masters than a quorum are connected. Its timers are 50 ms to 4.2 s apart, and it wakes at once
///   if it loses the master on which it queues.
/// - Calls behind another thread of the client end together with the attempt of the first one.
///   While a thread of the client holds the lock, no attempt is made: the calls wait until it
///   releases the lock, or its validity ends.
///
/// ```no_run
/// use muxlock::Redlock;
/// use muxlock::settings::Wait;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let redlock = Redlock::connect(["redis://10.0.0.1"])?;
/// let (ttl, deadline) = (Duration::from_secs(10), Duration::from_millis(250));
/// match redlock.try_lock_for("invoice:42", ttl, Wait::for_holder(deadline)) {
///     Ok(lock) => drop(lock),
///     Err(error) if error.is_contended() => println!("409: {error}"),
///     Err(error) => println!("503: {error}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    pub(crate) limit: Duration,
    pub(crate) is_for_holder: bool,
}

impl Wait {
    /// At most so long, and only while another holder has the lock.
    pub const fn for_holder(limit: Duration) -> Wait {
        Wait { limit, is_for_holder: true }
    }

    /// Without a limit, for another holder as well as for a quorum of masters.
    pub const fn forever() -> Wait {
        Wait { limit: Duration::MAX, is_for_holder: false }
    }
}

/// At most so long, for another holder as well as for a quorum of masters.
impl From<Duration> for Wait {
    fn from(limit: Duration) -> Wait {
        Wait { limit, is_for_holder: false }
    }
}

/// How the client treats a master that might have forgotten a lock that is still held.
///
/// A master that was restarted without its data would grant such a lock a second time. The guard
/// puts it into quarantine: its votes do not count until every lock that it might have forgotten
/// has expired. That takes [`max_ttl`](crate::Builder::max_ttl), plus the clock drift on it, plus
/// one second because servers report their age in whole seconds. By default, the age that the
/// server reports is subtracted. The algorithm calls this "delayed restarts"; here the client waits
/// instead of the operator. The guard also covers a promoted replica, a master whose wall clock
/// jumped forward, and a master that evicted keys, was flushed or got the data of another one.
///
/// Masters notify connected clients of a flush (`CLIENT TRACKING`). A master that refuses this is
/// unfit, unless its address has `?notices=no`. A client that connects after a flush notices it
/// only with [`flush_marker`](crate::Builder::flush_marker).
///
/// The client still sends every command to a node in quarantine, so that the keys on it block other
/// clients once it votes again. It ignores the answers, even to extensions, because another client
/// might still count a vote that the node gave before the restart.
///
/// The guard protects a resource only if every client of it uses the guard, and no lock's TTL
/// exceeds the `max_ttl` of any client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestartGuard {
    /// The client trusts the age that the server reports (`uptime_in_seconds`). If the previous
    /// process answered this client after the reported start, the client counts from that answer.
    /// The default.
    #[default]
    Uptime,
    /// A master votes only after this client has seen its process for the whole quarantine. The
    /// client trusts no reported age, so it waits that long after each of its own starts.
    OwnObservation,
    /// No quarantine, except after a flush if [`flush_marker`](crate::Builder::flush_marker) is set.
    /// For development, where masters are used right after their start, and for masters
    /// that the operator knows to be safe.
    Off,
}

/// Whether a server votes that does not tell of flushes. An address sets it: `?notices=no`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Notices {
    /// It does not, if the restart guard is on.
    #[default]
    Required,
    /// It does. A flush, and what a master lost that was a replica between two looks, is not seen.
    Forgone,
}

/// Whether an extension recreates the key on a master that does not have it.
///
/// A master that restarts without its data loses the locks that it has granted, so extensions fail
/// there. If a majority of the masters restarts, one after the other, a long-held lock can no
/// longer be extended, even with frequent renewals. Healing keeps such locks.
///
/// Healing requires the [`RestartGuard`] on every master. A recreated key must not count while
/// another client might still count a vote from before the loss of data. So it counts only after
/// the master's quarantine. If a majority restarts within that time, the lock is lost, as without
/// healing. Make sure that an extension runs between the end of one master's quarantine and the
/// restart of the next.
///
/// Processes that pass a lock to each other should use the same setting.
///
/// With healing, deleting the keys does not revoke a renewed lock: the next extension sets them
/// again, unless another client takes the lock first.
///
/// ```
/// use muxlock::Redlock;
/// use muxlock::settings::Heal;
///
/// let config = Redlock::builder()
///     .nodes(["redis://127.0.0.1:7000", "redis://127.0.0.1:7001", "redis://127.0.0.1:7002"])
///     .heal(Heal::On)
///     .config()?;
/// # drop(config);
/// # Ok::<(), muxlock::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Heal {
    /// The extension leaves a missing key missing. The default.
    #[default]
    Off,
    /// The extension sets the key there with the same token and the requested TTL, unless the key
    /// holds another token. So masters that were unreachable when the lock was taken, or refused
    /// it, get the key as well.
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
