//! What nodes do, and what befalls them.

use crate::protocol::{Clocks, Command, Connection, Mistake, Order, Reconnect, Redlock, Restart};
use crate::state::{Extend, NO_OWNER, Node, Pending, Phase, Set, State};

impl Redlock {
    pub fn execute(
        &self,
        state: &mut State,
        n: usize,
        a: usize,
        connection: Connection,
        command: Command,
    ) {
        let (now, phase) = (state.now, state.attempts[a].phase);
        let node = &mut state.nodes[n];
        match command {
            Command::Set => self.execute_set(node, a, now, connection, phase),
            Command::Extend => self.execute_extension(node, a, now, connection),
            Command::Release => self.execute_release(node, a, connection),
        }
    }

    fn execute_set(
        &self,
        node: &mut Node,
        a: usize,
        now: u8,
        connection: Connection,
        phase: Phase,
    ) {
        let is_free = node.owner == NO_OWNER;
        if is_free {
            node.take_key(self.token(a), now + self.ttl[a]);
        }
        let is_quarantined = self.is_quarantined(node, a, now);
        let stepped = node.stepped;
        let link = &mut node.links[a];
        let is_unanswered = connection != Connection::Current;
        if now < stepped && !(is_unanswered && self.makes(Mistake::TakerCountsUnanswered)) {
            // The answer says so, or it did not come.
            link.doubt = stepped;
        }
        let outcome = match phase {
            _ if is_unanswered || !is_free => Set::Done,
            Phase::Held => Set::Straggler,
            _ if is_quarantined => Set::Uncounted,
            _ => Set::Granted,
        };
        match connection {
            Connection::Current => link.set = outcome,
            Connection::Old => link.old.set = false,
            Connection::Forgotten => link.forgotten.set = false,
        }
    }

    fn execute_extension(&self, node: &mut Node, a: usize, now: u8, connection: Connection) {
        let is_owner = node.owner == self.token(a);
        let is_free = node.owner == NO_OWNER || self.makes(Mistake::HealingOverAnother);
        let is_there = is_owner || (self.heals && is_free);
        if is_there {
            let shortens = self.makes(Mistake::ShorteningExtension);
            let at_least = if shortens { 0 } else { node.expiry };
            node.take_key(self.token(a), at_least.max(now + self.extension_ttl));
        }
        let is_quarantined =
            self.is_quarantined(node, a, now) && !self.makes(Mistake::QuarantinedExtension);
        let stepped = node.stepped;
        let link = &mut node.links[a];
        match connection {
            Connection::Old => link.old.extends -= 1,
            Connection::Forgotten => link.forgotten.extends -= 1,
            Connection::Current => {
                // Only a lock that is believed to be held too long is released meanwhile.
                let is_releasing = link.releases > 0 && self.makes(Mistake::ReleaseWhileHeld);
                let counts = is_there && !is_quarantined && !is_releasing;
                link.extend = if counts { Extend::Granted } else { Extend::Done };
                if now < stepped && !link.is_blind {
                    link.doubt = stepped;
                }
            }
        }
    }

    /// What ends old connections goes in front of the release, on the same connection.
    fn execute_release(&self, node: &mut Node, a: usize, connection: Connection) {
        let is_owner = node.owner == self.token(a) || self.makes(Mistake::ReleaseOfAnyKey);
        if is_owner {
            node.drop_key();
        }
        let link = &mut node.links[a];
        match connection {
            Connection::Old => link.old.releases -= 1,
            Connection::Forgotten => link.forgotten.releases -= 1,
            Connection::Current => {
                link.releases -= 1;
                if self.reconnect == Reconnect::Barrier && self.order != Order::Unordered {
                    let outlives = self.makes(Mistake::HealingOutlivesConnection);
                    let extends = if outlives { link.old.extends } else { 0 };
                    link.old = Pending { extends, ..Pending::NOTHING };
                }
            }
        }
    }

    /// Whether the attempt's client knows not to count what the node says. Who it is and since when
    /// it runs, a node says on each new connection; what its clock says, with each command.
    fn is_quarantined(&self, node: &Node, a: usize, now: u8) -> bool {
        let link = &node.links[a];
        let asks = !self.makes(Mistake::UnnoticedRestart) || a > 0;
        let is_restarted = now < node.restarted && asks;
        let is_stepped = now < node.stepped && !link.is_blind;
        is_restarted || is_stepped || now < link.doubt
    }

    /// All connections end with the process.
    pub fn crash(&self, state: &mut State, n: usize) {
        state.crashes += 1;
        let node = &mut state.nodes[n];
        node.drop_key();
        node.restarted = state.now + self.guard;
        for link in &mut node.links {
            (link.old, link.forgotten) = (Pending::NOTHING, Pending::NOTHING);
            if self.restart == Restart::KillsCommands {
                link.end_connection();
            }
        }
    }

    pub fn step_clock(&self, state: &mut State, n: usize) {
        state.steps += 1;
        let node = &mut state.nodes[n];
        node.expiry -= 1;
        if self.clocks == Clocks::Watched {
            node.stepped = state.now + self.guard;
            node.links.iter_mut().for_each(|link| link.is_blind = false);
        }
    }
}
