//! The hand-over between the threads that share one client, with everything that can happen between
//! two of their steps: `src/client/leader_follower.rs` itself, with locks of shuttle and a toy
//! event loop.
//!
//! A thread that sleeps forever ends a run: shuttle notices that no thread can continue.

#![cfg(test)]

mod bounded;
mod bugs;
#[allow(dead_code, reason = "not all of it is explored")]
#[path = "../../../src/client/leader_follower.rs"]
mod leader_follower;
mod sync;
mod toy;

mod tests;
