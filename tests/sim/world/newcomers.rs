//! Processes that come later: a promoted server makes the first of them wait, and no other (R33).

use muxlock::node::{NodeState, Quarantine, QuarantineCause};
use muxlock::settings::RestartGuard;

use super::World;
use super::clock::{MILLI, SECOND};
use super::plan::Class;
use super::rare::Rare;

/// Servers report their uptime in whole seconds, and late.
const UPTIME_ROUNDED: u64 = 2 * SECOND;
/// Longer than a run takes after its last promotion.
const BACK_MAX: u64 = 1_000 * SECOND;

/// Whether clients keep there when they first saw a promoted server.
pub fn is_sighting(key: &[u8]) -> bool {
    key.ends_with(b"muxlock:promoted")
}

impl World {
    /// When all is well: one process sees each server, another one comes before its quarantine is
    /// over, and the third, when it is over, need not wait.
    pub fn check_newcomers(&mut self) {
        let is_odd = self.plan.class != Class::Promoted || self.plan.has_sentinels;
        if is_odd || self.plan.guard != RestartGuard::Uptime {
            return;
        }
        // Those that do not guard are the first ones.
        let client = self.clients.len() - 1;
        let whole = self.plan.quarantine() / 100 * 102;
        let most = (self.plan.max_ttl + SECOND) / 10 * 9;
        for node in 0..self.nodes.len() {
            // What was stored is of a time to come then.
            if self.choices.chance(300) {
                let length = self.choices.magnitude(MILLI, BACK_MAX);
                self.nodes[node].clock.step(self.now, -(length as i64));
            }
        }
        let mut connected_at = self.now;
        for wait in [0, most, whole - most] {
            self.now += wait;
            connected_at = self.now;
            self.restart_client(client);
            let now = self.client_now(client);
            self.clients[client].engine.connect(now);
            self.wake_client(client, self.now);
            while self.violation.is_none() && self.step() {}
        }
        let mut failure = None;
        for (slot, status) in self.clients[client].engine.statuses().enumerate() {
            let quarantine = status.quarantine.filter(|_| status.state == NodeState::Quarantined);
            let server = &self.nodes[self.plan.routes[slot]].redis.server;
            let is_promoted = server.second_offset != -1 && status.state == NodeState::Ready;
            self.rare.hit_if(is_promoted, Rare::SightingCounted);
            // A server whose clock was set back said that it was younger than it was.
            let wall = self.nodes[self.plan.routes[slot]].wall(connected_at);
            let is_young = wall < server.started * SECOND + self.plan.quarantine() + UPTIME_ROUNDED;
            let is_promoted_yet = |it: Quarantine| it.cause == QuarantineCause::Promoted;
            if !is_young && quarantine.is_some_and(is_promoted_yet) {
                failure = Some((slot, quarantine));
            }
        }
        if let Some((slot, quarantine)) = failure {
            self.fail("SIGHTING", || format!("node {slot} makes another wait: {quarantine:?}"));
        }
    }
}
