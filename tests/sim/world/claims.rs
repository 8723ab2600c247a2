//! What a client may say when it says that it holds a lock.

use muxlock::proto::Lease;

use super::World;
use super::check::{Heard, Held, quorum, validity};
use super::network::Trust;
use super::plan::Class;
use super::rare::Rare;
use super::redis::Key;
use super::timeline::{Millis, Short};
use super::work::{Kind, Known, Operation, token_of};

impl World {
    pub fn check_acquired(&mut self, client: usize, operation: &Operation, lease: &Lease) {
        let token = token_of(lease);
        let (told, needed) = (self.clients[client].told, quorum(self.plan.nodes));
        let deadline = lease.valid_until().as_nanos();
        let granted: Vec<usize> = lease.granted_by().collect();
        self.timeline.note(self.now, || {
            let until = Millis(self.clients[client].clock.when(deadline));
            format!("client {client} HOLDS {} by {granted:?} until {until}", Short(&token))
        });
        let Some(attempt) = self.checker.attempts.get_mut(&token) else {
            return self.fail("TOKEN-UNIQUE", || format!("nobody has drawn {}", Short(&token)));
        };
        attempt.is_decided = true;
        let is_stopped = attempt.by_value.is_named;
        self.digest.add(deadline);
        let uncountable = attempt.uncountable;
        let start = attempt.drawn;
        let latest = start + validity(attempt.ttl_ms);
        let heard: Vec<Heard> =
            attempt.heard.iter().filter(|it| !it.is_extension).copied().collect();
        if granted.len() < self.plan.nodes {
            self.rare.hit(Rare::EarlyReturn);
        }
        if told >= deadline {
            self.fail("HAND-OUT", || "a lock was handed out whose validity is over".into());
        }
        if deadline > latest || start < operation.started {
            self.fail("DEADLINE", || format!("{} is believed for too long", Short(&token)));
        }
        self.check_countable(&granted, uncountable);
        let nodes = self.check_votes(&token, &granted, &heard, needed);
        let is_fenced = matches!(operation.kind, Kind::Acquire { is_fenced: true, .. });
        self.check_fence(is_fenced, lease, &nodes);
        let (keys, is_shared) = self.keys_of(client, lease);
        self.count_form(client, lease);
        let held = Held { client, keys, is_shared, is_stopped, token, deadline, nodes };
        self.check_alone(&held);
        let keys = held.keys.clone();
        self.checker.held.push(held);
        keys.iter().for_each(|key| self.check_sound(key));
    }

    /// No node counts that was in quarantine when it was asked, whenever it answered.
    fn check_countable(&mut self, granted: &[usize], uncountable: u64) {
        if let Some(slot) = granted.iter().find(|slot| uncountable & (1 << **slot) != 0) {
            self.fail("GUARD", || format!("node {slot} counts, asked while in quarantine"));
        }
    }

    /// Whether each client that has had the lock guards it.
    fn is_guarded(&self, token: &[u8; 40]) -> bool {
        let attempt = self.checker.attempts.get(token);
        attempt.is_some_and(|it| it.owners().all(|client| self.plan.is_guarding(client)))
    }

    /// Whether each client that has had the lock knows that a node's copy may be too young.
    fn is_distrusted(&self, token: &[u8; 40]) -> bool {
        let attempt = self.checker.attempts.get(token);
        attempt.is_some_and(|it| it.owners().all(|client| self.plan.is_distrusting(client)))
    }

    /// No copy counts for an extension that may be younger than what its node forgot: because
    /// another client did not count the node when it had the lock, or because no client has heard
    /// when the copy was set (R12, section 3).
    fn check_undoubted(&mut self, token: &[u8; 40], granted: &[usize], heard: &[Heard]) {
        let Some(attempt) = self.checker.attempts.get(token) else {
            return;
        };
        if attempt.by_value.is_named {
            // Its holder has stopped, and its engine may have released it by its value.
            return;
        }
        let is_barred = |slot: &&usize| attempt.is_barred(**slot, self.now);
        let node_of = |heard: &Heard| self.connections[heard.connection].node;
        let is_set_known = |node: usize| {
            let mut said = attempt.heard.iter().filter(|it| !it.is_extension || it.is_healed);
            said.any(|heard| node_of(heard) == node)
        };
        let is_young = |slot: &&usize| {
            let node = heard.iter().find(|heard| heard.slot == **slot).map(node_of);
            let since = node.filter(|node| !is_set_known(*node)).and_then(|it| attempt.set_at(it));
            // Who heals looks at the node before each extension. A doubt names an address, and not
            // the process that has come to another one meanwhile, or that is listed under two.
            let routes = &self.plan.routes;
            let is_twin = |node| routes.iter().filter(|route| **route == node).count() > 1;
            let is_elsewhere = self.has_swapped || node.is_some_and(is_twin);
            let is_trusted = self.plan.heals || is_elsewhere || !self.is_distrusted(token);
            !is_trusted && since.is_some_and(|at| self.now < at + self.plan.max_ttl / 100 * 98)
        };
        if let Some(slot) = granted.iter().find(is_barred) {
            self.fail("DOUBT", || format!("node {slot} counts; another client knew better"));
        } else if let Some(slot) = granted.iter().find(is_young) {
            self.fail("DOUBT", || format!("node {slot} counts a copy of an age nobody knows"));
        }
    }

    /// Every vote that was counted was given, by a server that knows all locks (invariant 4).
    /// Returns the nodes that gave them.
    fn check_votes(
        &mut self,
        token: &[u8; 40],
        granted: &[usize],
        heard: &[Heard],
        needed: usize,
    ) -> Vec<usize> {
        if granted.len() < needed {
            self.fail("NO-FALSE-VOTE", || format!("{granted:?} are fewer than {needed}"));
        }
        let is_guarding = self.is_guarded(token);
        let mut nodes = Vec::new();
        for slot in granted {
            let mut said = heard.iter().filter(|heard| heard.slot == *slot).peekable();
            match said.peek() {
                Some(first) => {
                    let connection = &self.connections[first.connection];
                    if self.nodes[connection.node].was_forgetful {
                        self.rare.hit(Rare::QuarantineEnded);
                    }
                    nodes.push(connection.node);
                }
                None => self
                    .fail("NO-FALSE-VOTE", || format!("node {slot} was counted and said no yes")),
            }
            let said: Vec<&Heard> = said.collect();
            let least = |trust: fn(&Heard) -> Trust| said.iter().map(|it| trust(it)).min();
            let (memory, role) = (least(|it| it.memory), least(|it| it.role));
            if role == Some(Trust::No) {
                self.fail("GUARD", || format!("node {slot} was counted and is a replica"));
            }
            if is_guarding && memory == Some(Trust::No) {
                self.fail("GUARD", || format!("node {slot} was counted and had forgotten a lock"));
            }
            let has_jumped = !said.is_empty() && said.iter().all(|heard| heard.is_after_jump);
            if is_guarding && has_jumped {
                self.fail("GUARD", || format!("node {slot} was counted and its clock has jumped"));
            }
            if memory.max(role) > Some(Trust::Full) {
                self.rare.hit_if(self.mutex_promised, Rare::BlindGrant);
                self.mutex_promised = false;
            }
        }
        let connected = nodes.len();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() < connected && self.mutex_promised {
            self.fail("NO-FALSE-VOTE", || format!("{granted:?} have one node twice"));
        }
        nodes
    }

    /// Nobody else believes to hold the key now (invariant 1).
    fn check_alone(&mut self, held: &Held) {
        if !self.mutex_promised {
            return;
        }
        let is_valid = |held: &Held| {
            !held.is_stopped && !self.clients[held.client].is_over(self.now, held.deadline)
        };
        let other = self.checker.held.iter().find(|other| {
            let is_same = other.keys.iter().any(|key| held.keys.contains(key));
            let may_both = other.is_shared && held.is_shared;
            is_same && !may_both && other.token != held.token && is_valid(other)
        });
        if let (Some(other), true) = (other, is_valid(held)) {
            let text = format!(
                "client {} holds {} and client {} holds {}",
                other.client,
                Short(&other.token),
                held.client,
                Short(&held.token)
            );
            self.fail("MUTUAL-EXCLUSION", || text);
        }
    }

    /// A quorum of nodes has the key for as long as somebody believes in it (invariant 3).
    pub fn check_sound(&mut self, key: &Key) {
        if self.plan.class != Class::Durable {
            return;
        }
        for held in self.checker.held.iter().filter(|held| held.keys.contains(key)) {
            let client = &self.clients[held.client];
            if held.is_stopped || client.is_over(self.now, held.deadline) {
                continue;
            }
            let deadline = client.clock.when(held.deadline);
            let nodes = self.nodes.iter();
            let until = nodes.filter_map(|node| node.held_until(key, &held.token));
            let count = until.filter(|until| *until >= deadline).count();
            if count < quorum(self.plan.nodes) {
                let token = Short(&held.token);
                let text = format!("{token} is believed in and only {count} nodes hold it so long");
                return self.fail("DEADLINE-SOUND", || text);
            }
        }
    }

    pub fn check_extended(
        &mut self,
        client: usize,
        operation: &Operation,
        known: &Known,
        is_extended: bool,
    ) {
        // A renewal of the engine started at some time since the last one.
        let (token, deadline, ttl_ms, started) = match operation.kind {
            Kind::Extend { token, deadline, ttl_ms, .. } => {
                (token, deadline, ttl_ms, operation.started)
            }
            Kind::Keep { token, deadline, ttl_ms, .. } => {
                (token, deadline, ttl_ms, self.clients[client].told)
            }
            _ => return self.fail("TERMINATION", || "an operation changed its kind".into()),
        };
        let now_until = known.until;
        self.digest.add(now_until);
        let heard = self.checker.attempts.get(&token).map_or(&[][..], |attempt| &attempt.heard);
        let since = operation.started_true;
        let is_own = |heard: &&Heard| {
            let is_of_client = self.connections[heard.connection].client == client;
            is_of_client && heard.is_extension && heard.at >= since
        };
        let heard: Vec<Heard> = heard.iter().filter(is_own).copied().collect();
        if !is_extended {
            if now_until != deadline {
                self.fail("EXTEND-KEPT", || "a failed extension changed the deadline".into());
            }
            if !heard.is_empty() {
                self.rare.hit(Rare::ExtensionMinority);
            }
            return;
        }
        self.timeline.note(self.now, || {
            let until = Millis(self.clients[client].clock.when(now_until));
            format!("client {client} HOLDS {} on, until {until}", Short(&token))
        });
        if self.clients[client].told >= deadline {
            self.fail("LATCH", || "a lock was extended after its validity was over".into());
        }
        let latest = (started + validity(ttl_ms)).max(deadline);
        if now_until > latest || now_until < deadline {
            self.fail("EXTEND-DEADLINE", || format!("{} has a wrong deadline", Short(&token)));
        }
        let granted = known.granted.clone();
        let uncountable = self.checker.attempts.get(&token).map_or(0, |it| it.uncountable);
        self.check_countable(&granted, uncountable);
        self.check_undoubted(&token, &granted, &heard);
        let is_counted = |heard: &&Heard| heard.is_healed && granted.contains(&heard.slot);
        let healed: Vec<usize> = heard.iter().filter(is_counted).map(|heard| heard.slot).collect();
        self.rare.hit_if(!healed.is_empty(), Rare::HealCounted);
        self.rare.hit_if(!healed.is_empty() && self.is_fenced(&token), Rare::FencedHealed);
        if let Some(attempt) = self.checker.attempts.get(&token) {
            let is_after_two = healed.iter().any(|slot| attempt.losses(*slot) >= 2);
            self.rare.hit_if(is_after_two, Rare::HealAfterTwoLosses);
            let situations = attempt.situations();
            situations.iter().for_each(|(is_it, rare)| self.rare.hit_if(*is_it, *rare));
        }
        let nodes = self.check_votes(&token, &granted, &heard, quorum(self.plan.nodes));
        self.check_not_ended(&token, &granted, &heard);
        let Some(at) = self.checker.held.iter().position(|held| held.token == token) else {
            return self.fail("LATCH", || "a lock that was over came back".into());
        };
        let mut held = self.checker.held.swap_remove(at);
        (held.deadline, held.nodes) = (now_until, nodes);
        self.check_alone(&held);
        let keys = held.keys.clone();
        self.checker.held.push(held);
        keys.iter().for_each(|key| self.check_sound(key));
    }
}
