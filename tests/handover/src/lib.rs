//! The hand-over between the threads that share one client, with all that may come between two
//! steps of theirs: `src/client/leader_follower.rs` itself, on locks of shuttle, with a toy in the place of
//! the event loop.
//!
//! A thread that sleeps for ever ends a run: shuttle sees that nobody can go on.

#![cfg(test)]

mod bounded;
mod bugs;
#[allow(dead_code, reason = "not all of it is explored")]
#[path = "../../../src/client/leader_follower.rs"]
mod leader_follower;
mod sync;
mod toy;

mod tests;
