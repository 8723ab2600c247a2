//! Masters that may have forgotten a lock for two reasons, and a client whose wall clock is set
//! forward between them: what counts is which of the two lasts longer, and no clock's word (R33).
//!
//! GUARD: no node votes before the longer one is over.

use muxlock::node::NodeState;
use muxlock::settings::RestartGuard;

use super::World;
use super::clock::{MILLI, SECOND};
use super::plan::Class;
use super::rare::Rare;

/// How often this is played, in runs where it can be.
const PLAYS: u32 = 300;
/// Below it, rounds take too much of the time to live.
const TTL_MIN: u64 = SECOND;
/// Longer than what a client knows of a node's clock and role stays fresh.
const STALE: u64 = 20 * MILLI;

impl World {
    /// All nodes are flushed, and then their clocks are set forward, so that a marker's word ends
    /// sooner than the quarantine for the clock. Between the two the client's clock leaps.
    pub fn leap_in_quarantine(&mut self) {
        let is_odd = self.plan.class != Class::Stepped || self.plan.guard == RestartGuard::Off;
        let is_short = self.plan.max_ttl < TTL_MIN;
        if is_odd || is_short || !self.plan.has_marker || !self.choices.chance(PLAYS) {
            return;
        }
        // Those that do not guard are the first ones.
        let client = self.clients.len() - 1;
        let whole = self.plan.quarantine();
        let votes = |it: muxlock::node::NodeStatus| it.state == NodeState::Ready;
        if !self.clients[client].engine.statuses().all(votes) {
            return;
        }
        self.rare.hit(Rare::LeapInQuarantine);
        (0..self.nodes.len()).for_each(|node| self.wipe(node));
        self.ask_once(client);
        self.now += STALE;
        let half = self.plan.max_ttl / 2;
        for node in 0..self.nodes.len() {
            self.nodes[node].step_forward(self.now, whole - half, 2 * self.plan.max_ttl);
        }
        let stepped_at = self.now;
        self.timeline.note(self.now, || "all clocks are set forward".into());
        self.ask_once(client);
        self.now += STALE;
        self.leap(client, whole);
        self.ask_once(client);
        self.now = self.now.max(stepped_at + half / 2 * 3);
        self.ask_once(client);
    }

    /// The client tries to get the lock, and gives it back.
    fn ask_once(&mut self, client: usize) {
        if self.violation.is_some() {
            return;
        }
        self.acquire(client, 0, self.plan.max_ttl, None);
        self.wake_client(client, self.now);
        while self.violation.is_none() && self.step() {}
    }
}
