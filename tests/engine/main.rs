//! The engine on virtual time: no sockets, no clock, and nodes that answer what the test says.

#![allow(missing_docs)]

mod corpora;
mod counts;
mod doubts;
mod edges;
mod fence;
mod forms;
mod guard;
mod heal;
mod inspect;
mod keep;
mod leases;
mod local_queues;
mod questions;
mod schedules;
mod sighting;
mod spec;
mod states;
mod trials;
mod waiting;
