//! Whether a server may vote, and whether its votes count: who it is, what its clock shows, and who
//! has seen it promoted, and whether its data was flushed.

mod clock;
mod flush;
mod identity;
mod sighting;

use std::sync::Arc;

use clock::ServerClock;
use flush::Flushes;
pub(crate) use flush::Found;
use identity::Identity;
pub(crate) use identity::{Identified, Process};
use sighting::Sightings;

use super::{Effect, Node, is_forbidden};
use crate::config::{Config, NodeConfig, RestartGuard};
use crate::moment::Moment;
use crate::proto::command::Command;

/// What is known of the server behind a node's address.
pub(crate) struct Guard {
    config: Arc<Config>,
    index: usize,
    pub(super) identity: Identity,
    pub(super) clock: ServerClock,
    pub(super) sightings: Sightings,
    pub(super) flushes: Flushes,
    /// Whether the restart guard is on.
    is_guarded: bool,
}

impl Guard {
    pub(super) fn new(config: Arc<Config>, index: usize) -> Guard {
        Guard {
            is_guarded: config.nodes[index].restart_guard != RestartGuard::Off,
            config,
            index,
            identity: Identity::default(),
            clock: ServerClock::default(),
            sightings: Sightings::default(),
            flushes: Flushes::default(),
        }
    }

    pub(crate) fn settings(&self) -> &NodeConfig {
        &self.config.nodes[self.index]
    }

    /// Whether there may be times at which the node's votes do not count.
    pub(crate) fn is_distrusted(&self) -> bool {
        self.is_guarded || self.config.notices_flushes()
    }

    /// The name of its process, as all clients see it.
    pub(crate) fn name(&self) -> &[u8] {
        self.run_id().map_or(self.settings().address.as_bytes(), |run_id| run_id.as_bytes())
    }

    /// A new connection: nothing is known of the server behind it.
    pub(crate) fn reconnect(&mut self, now: Moment, random: u64) {
        self.identity.reconnect();
        self.clock.reconnect(now);
        self.sightings.reconnect();
        self.flushes.reconnect(random);
    }

    /// What the server is to store about its promotion.
    #[cold]
    pub(crate) fn sight_command(&self) -> Command<'_> {
        let sighting = self.sightings.to_store().expect("it is sent once");
        Command::Sight { key: self.config.sighting_key.as_bytes(), sighting }
    }
}
