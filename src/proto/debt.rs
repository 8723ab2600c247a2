//! What a lost connection may have left on a node (R12, R29).
//!
//! A SET or a healing extension that was not answered may have run, or may run later. As long as
//! its lock may be held, nothing is released: a release that was lost in its turn could delete a
//! copy that counts. Such a debt is *dormant*, and only has the old connection ended. When the lock
//! is given up, the debt wakes up: the release follows behind the end of each old connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::command::Reply;
use super::lease::Doubt;
use super::node::{DEBT_AGAIN_AFTER, DEBT_REFUSED_AFTER, Lost, Node, SLACK, State};
use super::round::{Claim, Kind};
use super::{Engine, Lease, NodeSet, OPERATIONS_MAX, Outgoing};
use crate::config::RestartGuard;
use crate::error::{NodeOutcome, ProtocolError, QuarantineCause};
use crate::token::LockToken;
use crate::validity::Ttl;
use crate::{Moment, Resource};

/// A node with this many debts is sent no new SET: a caller in a tight loop over a master that
/// comes and goes must not owe it more and more.
const DEBTS_MAX: usize = 8_192;
/// So many are kept in any case: those of all SETs that may be unanswered when the node gets that
/// far. Beyond it the keys end with their TTL.
const DEBTS_KEPT_MAX: usize = 2 * OPERATIONS_MAX;
/// The most connections that one debt names; the others are treated as unknown.
pub(crate) const CONNECTIONS_MAX: usize = 4;
/// The most ends of old connections that a node may have unanswered. What was sent on others is
/// released twice instead.
const KILLS_MAX: usize = 8;

/// A connection as its server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The `run_id` of the server's process, with which the connection ends.
    pub(crate) process: Arc<str>,
    /// The number that the server gave it.
    pub(crate) connection: i64,
}

/// The connections on which a command that may set the key may still arrive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origins {
    known: Vec<Origin>,
    /// Whether there is one that cannot be named, and so not be ended.
    has_unknown: bool,
}

impl Origins {
    pub(crate) fn insert_unknown(&mut self) {
        self.has_unknown = true;
    }

    pub(crate) fn insert(&mut self, origin: Origin) {
        if self.known.contains(&origin) {
            return;
        }
        match self.known.len() < CONNECTIONS_MAX {
            true => self.known.push(origin),
            false => self.insert_unknown(),
        }
    }

    fn extend(&mut self, others: Origins) {
        self.has_unknown |= others.has_unknown;
        others.known.into_iter().for_each(|origin| self.insert(origin));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty() && !self.has_unknown
    }

    pub(crate) fn has_unknown(&self) -> bool {
        self.has_unknown
    }

    pub(crate) fn known(&self) -> &[Origin] {
        &self.known
    }
}

/// What is owed for one token.
#[derive(Debug, Clone)]
struct Debt {
    key: Resource,
    ttl: Ttl,
    stage: Stage,
    /// When the next step of its stage is to be taken, if the node is ready.
    due: Moment,
    /// When the key is gone by itself.
    expires: Moment,
    origins: Origins,
    /// Until when the node's copy must not be counted.
    uncounted_until: Option<Moment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The lock may still be held: nothing is released. The old connections are ended when the node
    /// is ready; when it is due, the debt is forgotten.
    Dormant,
    /// The same, but the connections are another client's, who may use them for other locks: they
    /// are ended when the lock is given up.
    Adopted,
    /// The lock was given up: the release is to be sent.
    Awake,
    /// It was sent, and is to be sent once more: an old connection may not have ended before.
    Again,
}

impl Stage {
    fn is_awake(self) -> bool {
        matches!(self, Stage::Awake | Stage::Again)
    }

    /// The one that does what both ask for.
    fn and(self, other: Stage) -> Stage {
        match (self, other) {
            (Stage::Adopted, Stage::Adopted) => Stage::Adopted,
            (one, other) if one.is_awake() || other.is_awake() => Stage::Awake,
            _ => Stage::Dormant,
        }
    }
}

/// The debts of one node, by token, so that one key is owed once.
#[derive(Default)]
pub(super) struct Debts {
    by_token: BTreeMap<LockToken, Debt>,
    /// None is due before.
    due: Option<Moment>,
    /// Old connections whose end was asked for and is not answered, or was refused.
    ending: Vec<i64>,
}

impl Debts {
    /// A moment that is not later than the first at which one is due.
    pub(super) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// How many releases are to follow.
    pub(super) fn awake(&self) -> usize {
        self.by_token.values().filter(|debt| debt.stage.is_awake()).count()
    }

    /// How many of them may still find a key at `now`.
    pub(super) fn awake_at(&self, now: Moment) -> usize {
        let is_over = |debt: &&Debt| now.has_steadily_reached(debt.expires);
        let awake = self.by_token.values().filter(|debt| debt.stage.is_awake());
        awake.filter(|debt| !is_over(debt)).count()
    }

    fn note_due(&mut self) {
        self.due = self.by_token.values().map(|debt| debt.due).min();
    }

    /// Adds a debt. Says whether there was room.
    fn add(&mut self, now: Moment, token: LockToken, debt: Debt) -> bool {
        if self.by_token.len() >= DEBTS_KEPT_MAX && !self.by_token.contains_key(&token) {
            self.by_token.retain(|_, debt| !now.has_steadily_reached(debt.due.max(debt.expires)));
            if self.by_token.len() >= DEBTS_KEPT_MAX {
                return false;
            }
        }
        let Some(owed) = self.by_token.get_mut(&token) else {
            self.insert(token, debt);
            return true;
        };
        // A SET and its release may be lost together: the SET's key lives longer.
        owed.expires = owed.expires.max(debt.expires);
        owed.origins.extend(debt.origins);
        owed.uncounted_until = later(owed.uncounted_until, debt.uncounted_until);
        owed.due = match (owed.stage.is_awake(), debt.stage.is_awake()) {
            (true, true) => owed.due.min(debt.due),
            (true, false) => owed.due,
            (false, true) => debt.due,
            (false, false) => owed.due.max(debt.due),
        };
        owed.stage = owed.stage.and(debt.stage);
        let due = owed.due;
        self.due = Some(self.due.map_or(due, |first| first.min(due)));
        true
    }

    fn insert(&mut self, token: LockToken, debt: Debt) {
        self.due = Some(self.due.map_or(debt.due, |due| due.min(debt.due)));
        self.by_token.insert(token, debt);
    }

    /// An old connection has ended: nothing that was sent on it runs any more.
    fn forget(&mut self, process: Option<&str>, connection: i64) {
        self.ending.retain(|ending| *ending != connection);
        self.settle_origins(|origin| {
            Some(&*origin.process) == process && origin.connection == connection
        });
    }

    /// The node is another process than before: the old connections have ended with the old one,
    /// and what that saved was saved before, so that one release is enough.
    pub(super) fn forget_other_processes(&mut self, process: &str) {
        let own = self.by_token.values_mut().filter(|debt| debt.stage != Stage::Adopted);
        own.for_each(|debt| debt.origins.has_unknown = false);
        self.settle_origins(|origin| *origin.process != *process);
    }

    /// Takes out the connections that have ended, and the debts that nothing is left of.
    fn settle_origins(&mut self, has_ended: impl Fn(&Origin) -> bool) {
        self.by_token.retain(|_, debt| {
            debt.origins.known.retain(|origin| !has_ended(origin));
            let is_settled = debt.origins.is_empty() && debt.stage != Stage::Awake;
            !is_settled || debt.uncounted_until.is_some()
        });
        self.note_due();
    }

    /// A new connection: nothing was asked for on it.
    pub(super) fn reconnect(&mut self) {
        self.ending.clear();
    }
}

fn later(one: Option<Moment>, other: Option<Moment>) -> Option<Moment> {
    one.into_iter().chain(other).max_by_key(|until| until.steady_nanos())
}

impl Node {
    /// The connection that there is, or that was there last.
    fn origins(&self) -> Origins {
        match (&self.server.run_id, self.client_id) {
            (Some(process), Some(connection)) => {
                let origin = Origin { process: Arc::clone(process), connection };
                Origins { known: vec![origin], has_unknown: false }
            }
            _ => Origins { known: Vec::new(), has_unknown: true },
        }
    }

    /// Whether the debts are so many that no new SET is to be sent.
    pub(super) fn owes_too_much(&self) -> bool {
        self.debts.by_token.len() >= DEBTS_MAX
    }
}

impl Engine {
    /// A command that may set the key was lost with its connection; its lock may be held.
    pub(super) fn owe_set(&mut self, now: Moment, node: usize, round: usize) {
        let origins = self.nodes[node].origins();
        // The look at the flush marker was lost, too.
        let is_uncounted = self.config.flush_marker.is_some();
        let uncounted_until = is_uncounted.then(|| now.after(self.config.quarantine));
        let debt = Debt { origins, uncounted_until, ..self.debt(now, round, Stage::Dormant) };
        self.add_debt(now, node, self.claims[round].token, debt);
    }

    /// The node granted, and its flush marker was not seen: the copy may be younger than a flush.
    pub(super) fn owe_marker(&mut self, now: Moment, node: usize, round: usize) {
        let uncounted_until = Some(now.after(self.config.quarantine));
        let debt = Debt { uncounted_until, ..self.debt(now, round, Stage::Dormant) };
        self.add_debt(now, node, self.claims[round].token, debt);
    }

    /// A release could not be sent, or was lost with its connection.
    pub(super) fn owe_release(&mut self, now: Moment, node: usize, round: usize) {
        let debt = self.debt(now, round, Stage::Awake);
        self.add_debt(now, node, self.claims[round].token, debt);
    }

    /// A node refused a release for the moment: it is tried again until the key is gone by itself.
    pub(super) fn owe_refused(&mut self, now: Moment, node: usize, round: usize) {
        let debt = self.debt(now, round, Stage::Awake);
        let due = now.after(DEBT_REFUSED_AFTER);
        if !due.has_steadily_reached(debt.expires) {
            self.add_debt(now, node, self.claims[round].token, Debt { due, ..debt });
        }
    }

    fn debt(&self, now: Moment, round: usize, stage: Stage) -> Debt {
        let (key, ttl) = (self.claims[round].key.clone(), self.claims[round].ttl);
        // An unanswered SET may have run as late as now, and so may one before this release.
        let latest = || now.after(ttl.as_duration()).after(SLACK);
        let expires = self.rounds[round].expires.unwrap_or_else(latest);
        let due = if stage.is_awake() { now } else { expires };
        let origins = Origins::default();
        Debt { key, ttl, stage, due, expires, origins, uncounted_until: None }
    }

    fn add_debt(&mut self, now: Moment, node: usize, token: LockToken, debt: Debt) {
        let until = debt.uncounted_until;
        let debt = Debt { due: later(Some(debt.due), until).unwrap_or(debt.due), ..debt };
        self.indebted.insert(node);
        if !self.nodes[node].debts.add(now, token, debt) {
            if let Some(until) = until {
                // Which copies do not count is not known any more.
                self.quarantine(node, QuarantineCause::Flushed, until);
            }
        }
        self.note_debts(node);
    }

    pub(super) fn note_debts(&mut self, node: usize) {
        if let Some(due) = self.nodes[node].debts.due() {
            self.note_due(due);
        }
    }

    /// The lock is given up, and its release is about to be sent to those of these nodes that can
    /// take it: what may be left there is to be released, too.
    #[cold]
    pub(super) fn wake_debts(&mut self, now: Moment, nodes: NodeSet, token: LockToken) {
        for node in nodes.and(self.indebted).iter() {
            let at = &mut self.nodes[node];
            if at.debts.by_token.is_empty() {
                self.indebted.remove(node);
            }
            let Some(mut debt) = at.debts.by_token.remove(&token) else {
                continue;
            };
            if at.state == State::Ready && !at.is_behind {
                self.end_and_repeat(now, node, token, debt);
            } else {
                (debt.stage, debt.due) = (Stage::Awake, now);
                at.debts.insert(token, debt);
            }
            self.note_debts(node);
        }
    }

    /// A release is about to follow: ends the old connections before it, and repeats it if one of
    /// them may not have ended.
    fn end_and_repeat(&mut self, now: Moment, node: usize, token: LockToken, mut debt: Debt) {
        debt.origins.known.iter().for_each(|origin| self.end_connection(node, origin));
        let at = &mut self.nodes[node];
        // What was sent on the connection that stands comes before what follows.
        let own = at.origins();
        debt.origins.known.retain(|origin| !own.known.contains(origin));
        if !debt.origins.is_empty() {
            let round_trip = Duration::from_nanos(at.latency_nanos.unwrap_or(0));
            debt.due = now.after(round_trip).after(DEBT_AGAIN_AFTER);
            debt.stage = Stage::Again;
            at.debts.insert(token, debt);
        }
    }

    /// The lock lives on: so do the debts that wait for its end.
    #[cold]
    pub(super) fn keep_debts(&mut self, now: Moment, token: LockToken, ttl: Ttl) {
        let expires = now.after(ttl.as_duration()).after(SLACK);
        for node in self.indebted.iter() {
            let debts = &mut self.nodes[node].debts;
            if let Some(debt) = debts.by_token.get_mut(&token) {
                debt.expires = debt.expires.max(expires);
                if !debt.stage.is_awake() {
                    debt.due = debt.due.max(expires);
                }
            }
        }
    }

    /// The nodes with so many debts that they are sent no new SET.
    #[cold]
    pub(super) fn overdrawn(&self) -> NodeSet {
        let mut overdrawn = NodeSet::EMPTY;
        let nodes = self.indebted.iter().filter(|node| self.nodes[*node].owes_too_much());
        nodes.for_each(|node| overdrawn.insert(node));
        overdrawn
    }

    /// Whether the node's copy of this round's lock must not be counted.
    pub(super) fn is_doubted(&self, now: Moment, node: usize, round: usize) -> bool {
        self.indebted.contains(node)
            && self.rounds[round].kind.is_extension()
            && self.nodes[node]
                .debts
                .by_token
                .get(&self.claims[round].token)
                .and_then(|debt| debt.uncounted_until)
                .is_some_and(|until| !now.has_steadily_reached(until))
    }

    /// The old connections die with what the server has not read of them: a SET that is still on
    /// its way cannot run after its release (R12).
    pub(super) fn end_old_connections(&mut self, node: usize) {
        let debts = self.nodes[node].debts.by_token.values();
        let own = debts.filter(|debt| debt.stage != Stage::Adopted);
        let mut old: Vec<Origin> = Vec::new();
        for origin in own.flat_map(|debt| &debt.origins.known) {
            if old.len() < KILLS_MAX && !old.contains(origin) {
                old.push(origin.clone());
            }
        }
        old.iter().for_each(|origin| self.end_connection(node, origin));
    }

    fn end_connection(&mut self, node: usize, origin: &Origin) {
        let at = &mut self.nodes[node];
        let is_here = at.server.run_id.as_ref() == Some(&origin.process);
        let is_own = at.client_id == Some(origin.connection);
        let ending = &mut at.debts.ending;
        if !is_here || is_own || ending.contains(&origin.connection) || ending.len() >= KILLS_MAX {
            return;
        }
        ending.push(origin.connection);
        self.outgoing.push_back(Outgoing::Kill(node, origin.connection));
    }

    pub(super) fn handle_killed(&mut self, now: Moment, node: usize, ended: i64, reply: Reply) {
        match reply {
            // 0: it was gone already.
            Reply::Integer(_) => {
                self.stats.connections_killed += 1;
                let Node { server, debts, .. } = &mut self.nodes[node];
                debts.forget(server.run_id.as_deref(), ended);
            }
            // The releases are repeated after a while.
            Reply::Error(error) => self.keep_error(node, error),
            _ => self.fail_node(now, node, NodeOutcome::Protocol(ProtocolError::Unexpected)),
        }
    }

    /// Takes the next step of what is owed and due, or of some of it. When that is all, what has
    /// waited for it follows.
    #[cold]
    pub(super) fn settle_debts(&mut self, now: Moment, node: usize) {
        let due = self.nodes[node].debts.by_token.iter().filter(|(_, debt)| debt.due <= now);
        let tokens: Vec<LockToken> = due.map(|(token, _)| *token).take(self.share).collect();
        for token in tokens {
            self.settle_debt(now, node, token);
        }
        self.nodes[node].debts.note_due();
        self.note_debts(node);
        let is_all = self.nodes[node].debts.due().is_none_or(|due| now < due);
        if is_all && std::mem::take(&mut self.nodes[node].is_behind) {
            self.note_open(node);
            self.flush_queue(now, node);
        }
    }

    fn settle_debt(&mut self, now: Moment, node: usize, token: LockToken) {
        let Some(debt) = self.nodes[node].debts.by_token.remove(&token) else {
            return;
        };
        let is_over = now.has_steadily_reached(debt.expires);
        match debt.stage {
            Stage::Dormant | Stage::Adopted => return,
            Stage::Again if is_over => return,
            // Whatever its expiry, it is said once: a frozen server may run at any time what it has
            // not read, and a process that was paused knows too late when its connection ended.
            Stage::Awake | Stage::Again => {}
        }
        let claim = Claim { key: debt.key.clone(), token, ttl: debt.ttl };
        let round = self.start_round(now, Kind::Release, claim, None);
        self.rounds[round].expires = Some(debt.expires);
        if debt.stage == Stage::Awake {
            self.end_and_repeat(now, node, token, debt);
        }
        self.send(NodeSet::one(node), round);
    }

    /// What this engine knows of the nodes, and another one that takes up the lease cannot.
    pub(super) fn doubts(&self, now: Moment, token: LockToken) -> Vec<Doubt> {
        (0..self.nodes.len()).filter_map(|node| self.doubt(now, node, token)).collect()
    }

    fn doubt(&self, now: Moment, node: usize, token: LockToken) -> Option<Doubt> {
        let at = &self.nodes[node];
        let mut doubt = Doubt { node, origins: Origins::default(), uncounted: Duration::ZERO };
        let rounds = at.in_flight.iter().filter_map(|sent| sent.request.round());
        let may_have_run = |lost: &Lost| !matches!(lost, Lost::Unsent);
        let lost = at.lost.iter().filter(|(_, lost)| may_have_run(lost)).map(|(round, _)| *round);
        let is_its = |round: &usize| self.claims[*round].token == token;
        let may_create = |round: usize| self.rounds[round].kind.may_create();
        if rounds.chain(lost).filter(is_its).any(may_create) {
            doubt.origins = at.origins();
        }
        let debt = at.debts.by_token.get(&token);
        if let Some(debt) = debt {
            doubt.origins.extend(debt.origins.clone());
        }
        // The copy may be of a time when this node was not to be trusted, and only this engine can
        // find out.
        let is_guarded = self.config.nodes[node].restart_guard != RestartGuard::Off;
        if !doubt.origins.is_empty() && is_guarded {
            doubt.uncounted = self.config.quarantine;
        }
        if let Some(debt) = debt {
            let until = debt.uncounted_until.map(|until| until.steadily_since(now));
            doubt.uncounted = doubt.uncounted.max(until.unwrap_or_default());
        }
        let quarantine = self.quarantine_of(now, node).map(|quarantine| quarantine.ready_in);
        doubt.uncounted = doubt.uncounted.max(quarantine.unwrap_or_default());
        (!doubt.origins.is_empty() || !doubt.uncounted.is_zero()).then_some(doubt)
    }

    /// A lease comes from elsewhere, with what is known there.
    #[cold]
    pub(super) fn take_doubts(&mut self, now: Moment, lease: &mut Lease) {
        for doubt in std::mem::take(&mut lease.doubts).into_vec() {
            let Doubt { node, origins, uncounted } = doubt;
            if node >= self.nodes.len() {
                continue;
            }
            let key = lease.resource.clone().prefixed(&self.config.key_prefix);
            let expires = now.after(lease.longest.as_duration()).after(SLACK);
            let uncounted_until = (!uncounted.is_zero()).then(|| now.after(uncounted));
            let (ttl, stage) = (lease.longest, Stage::Adopted);
            let debt = Debt { key, ttl, stage, due: expires, expires, origins, uncounted_until };
            self.add_debt(now, node, lease.token, debt);
        }
    }
}
