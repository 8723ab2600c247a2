//! The clients, each behind the same few verbs.

pub mod floor;
pub mod muxlock;
pub mod redis;
pub mod redlock;
pub mod rslock;

use std::error::Error;

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

    /// Late replies that were not what they should be, so far.
    fn surprises(&self) -> u64 {
        0
    }
}
