//! The clients, each behind the same few verbs.

pub mod floor;
pub mod muxlock;
pub mod redis;
pub mod redlock;
pub mod rslock;

use std::error::Error;
use std::time::Duration;

use crate::job::Sample;

/// Whatever keeps a worker from its work.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A client that does one thing after the other.
pub trait Locks {
    /// A lock that is held.
    type Held;

    /// Takes its lock, in one attempt if the client can be told so.
    fn lock(&mut self) -> Option<Self::Held>;

    /// Releases it, and waits for that; whether it was released.
    fn unlock(&mut self, held: Self::Held) -> bool;

    /// Lets it go, without waiting if the client can.
    fn let_go(&mut self, held: Self::Held) {
        self.unlock(held);
    }

    /// Late replies that were not what they should be, so far.
    fn surprises(&self) -> u64 {
        0
    }
}

/// A client that can wait for somebody else to finish.
pub trait Waits: Locks {
    /// Takes its lock, in as many attempts as the client likes; gives up after `wait` if it can.
    fn lock_within(&mut self, wait: Duration) -> Option<Self::Held>;
}

/// What came out of a hand-off: how often each client got the lock, and how often it had two
/// holders.
pub fn handed_off(counts: &[u64], two_holders: u64, took: Duration) -> Sample {
    let done = counts.iter().sum::<u64>() as f64;
    Sample {
        done,
        failed: two_holders as f64,
        rate: done / took.as_secs_f64(),
        least: counts.iter().min().copied().unwrap_or(0) as f64,
        most: counts.iter().max().copied().unwrap_or(0) as f64,
        ..Sample::default()
    }
}
