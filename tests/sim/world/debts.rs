//! What a lost connection may have left on a server is released there before anything new is asked
//! for (R12).

use super::World;
use super::clock::MILLI;
use super::network::ServerEnd;
use super::redis::compared;
use super::timeline::Short;

/// A SET whose answer was lost with its connection.
pub struct Owed {
    token: [u8; 40],
    /// When its key is gone, at the latest, if the server had it when the connection was lost; in
    /// true time.
    until: u64,
}

impl World {
    /// A client has closed its end: what it has asked for and not been told may be done or not.
    pub fn note_lost_sets(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        let (client, slot, node) = (connection.client, connection.slot, connection.node);
        let is_gone = self.plan.routes[slot] != node;
        for (_, token, ttl_ms) in std::mem::take(&mut connection.sets) {
            if is_gone || self.had_twins {
                continue;
            }
            let until = self.now + u64::from(ttl_ms) * MILLI;
            self.clients[client].owed[slot].push(Owed { token, until });
        }
    }

    /// The process that something was owed to is gone from this address, and what it was sent ends
    /// with its time to live.
    pub fn forget_owed(&mut self, slot: usize) {
        self.clients.iter_mut().for_each(|client| client.owed[slot].clear());
    }

    /// A command of a client has come to the server that it was meant for.
    pub fn check_debts(&mut self, id: usize, words: &[&[u8]]) {
        let connection = &self.connections[id];
        let (client, slot) = (connection.client, connection.slot);
        if connection.server_end != ServerEnd::Accepted || connection.closed_at <= self.now {
            // It comes from a connection that is lost itself.
            return;
        }
        let owed = &mut self.clients[client].owed[slot];
        match (compared(words), words) {
            (Some(token), _) => owed.retain(|owed| owed.token != *token),
            (None, [b"SET", ..]) => {
                owed.retain(|owed| self.now < owed.until);
                if let Some(owed) = owed.first() {
                    let text = format!("a SET comes before the release of {}", Short(&owed.token));
                    self.fail("DEBT", || text);
                }
            }
            _ => {}
        }
    }
}
