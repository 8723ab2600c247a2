//! What a lost connection may have left on a server, of a lock that is given up, is released there
//! before anything new is asked for (R12).

use super::World;
use super::clock::MILLI;
use super::forms::{Step, form};
use super::network::ServerEnd;
use super::rare::Rare;
use super::redis::{compared, is_queue};
use super::timeline::Short;
use muxlock::LockToken;
use muxlock::proto::NodeSet;

/// A SET whose answer was lost with its connection.
pub struct Owed {
    pub token: [u8; 40],
    /// When its key is gone, at the latest, if the server had it when the connection was lost; in
    /// true time.
    until: u64,
    /// The connection that a release was last handed out to.
    released_on: Option<usize>,
}

impl World {
    /// A client has closed its end: what it has asked for and not been told may be done or not.
    pub fn note_lost_commands(&mut self, id: usize) {
        let connection = &mut self.connections[id];
        let (client, slot, node) = (connection.client, connection.slot, connection.node);
        let is_gone = self.plan.routes[slot] != node;
        self.rare.hit_if(!connection.raises.is_empty(), Rare::RaiseLost);
        connection.raises.clear();
        for asked in std::mem::take(&mut connection.asked) {
            let Some(attempt) = self.checker.attempts.get_mut(&asked.token) else {
                continue;
            };
            attempt.note_lost(slot, id);
            if attempt.client != client {
                self.rare.hit(Rare::GiverLost);
                continue;
            }
            let Some(ttl_ms) = asked.set.filter(|_| !is_gone && !self.had_twins) else {
                continue;
            };
            let until = self.now + u64::from(ttl_ms) * MILLI;
            self.clients[client].owed[slot].push(Owed {
                token: asked.token,
                until,
                released_on: None,
            });
        }
    }

    /// The process that something was owed to is gone from this address, and what it was sent ends
    /// with its time to live.
    pub fn forget_owed(&mut self, slot: usize) {
        self.clients.iter_mut().for_each(|client| client.owed[slot].clear());
    }

    /// Releases of a token are handed out, in the order of the connections.
    pub fn note_released_sets(&mut self, client: usize, nodes: NodeSet, token: &LockToken) {
        let it = &mut self.clients[client];
        for slot in nodes.iter() {
            let its = it.owed[slot].iter_mut().filter(|owed| owed.token[..] == *token.as_bytes());
            its.for_each(|owed| owed.released_on = it.slots[slot].connection);
        }
    }

    /// A SET is handed out: on this connection, what is owed of locks that had been given up when
    /// it was asked for comes before.
    pub fn check_debts(&mut self, client: usize, nodes: NodeSet, token: &LockToken) {
        let now = self.now;
        let drawn = self.checker.attempts.get(token.as_bytes()).map_or(0, |attempt| attempt.drawn);
        for slot in nodes.iter() {
            let it = &mut self.clients[client];
            let connection = it.slots[slot].connection;
            it.owed[slot].retain(|owed| now < owed.until);
            let attempts = &self.checker.attempts;
            let is_given_up = |owed: &&Owed| {
                attempts.get(&owed.token).is_some_and(|attempt| attempt.was_given_up(drawn))
            };
            let unreleased = it.owed[slot].iter().filter(is_given_up);
            let owed = unreleased.map(|owed| (owed.token, owed.released_on));
            if let Some((token, _)) = { owed }.find(|(_, on)| *on != connection) {
                let text = format!("a SET comes before the release of {}", Short(&token));
                return self.fail("DEBT", || text);
            }
        }
    }

    /// A command of a client has come to the server that it was meant for.
    pub fn settle_debts(&mut self, id: usize, words: &[&[u8]]) {
        let connection = &self.connections[id];
        let (client, slot) = (connection.client, connection.slot);
        if connection.server_end != ServerEnd::Accepted || connection.closed_at <= self.now {
            // It comes from a connection that is lost itself.
            return;
        }
        if let Some(token) = released(words) {
            self.clients[client].owed[slot].retain(|owed| owed.token != *token);
        }
    }
}

/// The token that a release is about. An extension has a time to live, too.
pub fn released<'a>(words: &[&'a [u8]]) -> Option<&'a [u8]> {
    if let Some(form) = form(words) {
        return (form.step == Step::Free).then_some(form.token);
    }
    match words {
        [b"EVAL", _, b"2", _, queue, _, token, b"0" | b"1"] if is_queue(queue) => Some(token),
        [b"EVAL", _, _, _, _, _, ..] => None,
        _ => compared(words),
    }
}
