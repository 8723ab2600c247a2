//! muxlock and other Redlock clients on the same five masters.
//!
//! Each case of `cases.rs` runs with each peer. `tests/interop/run` installs the peers that are not
//! written in Rust; without it, their tests are ignored.

#![cfg(test)]

use std::error::Error;
use std::time::Duration;

mod canaries;
mod cases;
mod child;
mod clock;
mod contention;
mod crates;
mod peers;
mod plain;
mod scene;
mod shares;

/// Why a case failed.
type Failure = Box<dyn Error + Send + Sync>;

/// What a client that holds at most one lock at a time can do. A refusal is `false`; whatever else
/// goes wrong is an error.
trait Peer: Send {
    /// Tries once.
    fn lock(&mut self, key: &str, ttl: Duration) -> Result<bool, Failure>;

    /// Tries for about `wait`, with the client's own retries.
    fn lock_for(&mut self, key: &str, ttl: Duration, wait: Duration) -> Result<bool, Failure>;

    /// Extends the last lock.
    fn extend(&mut self, ttl: Duration) -> Result<bool, Failure>;

    /// Releases the last lock, whether it has expired or not. Not every client says which.
    fn unlock(&mut self) -> Result<(), Failure>;
}

/// Returns an error with this text from the function around it if the condition is false.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+).into());
        }
    };
}
use ensure;
