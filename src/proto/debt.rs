//! What a lost connection may have left on a node (R12, R29).
//!
//! A SET or a healing extension that was not answered may have run, or may run later. As long as
//! its lock may be held, nothing is released: a release that was lost in turn could delete a copy
//! that counts. Such a debt is *dormant*: it kills the old connection but deletes nothing. When the
//! lock is given up, the debt wakes up: the release is sent after the end of each old connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::command::Reply;
use super::lease::Doubt;
use super::node::{DEBT_AGAIN_AFTER, DEBT_REFUSED_AFTER, Node, SLACK, State};
use super::round::{Claim, Kind, Left, Lost};
use super::{Engine, Lease, NodeSet, OPERATIONS_MAX, Outgoing};
use crate::config::{Heal, RestartGuard};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, ProtocolError, QuarantineCause};
use crate::resource::Resource;
use crate::token::LockToken;
use crate::validity::Ttl;

/// A node with this many debts gets no new SET: otherwise a caller in a tight loop, on a master
/// that comes and goes, would add debts without limit.
const DEBTS_MAX: usize = 8_192;
/// Debts that are kept in any case: enough for all SETs that may be unanswered when the node
/// reaches `DEBTS_MAX`. Beyond this, keys are left to expire.
const DEBTS_KEPT_MAX: usize = 2 * OPERATIONS_MAX;
/// The most connections that one debt names; the others are treated as unknown.
pub(crate) const CONNECTIONS_MAX: usize = 4;
/// The most `CLIENT KILL` commands per connection that are unanswered or were refused. For further
/// old connections, the release is sent twice instead.
const KILLS_MAX: usize = 8;

/// A connection as its server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The `run_id` of the server's process. The connection ends when the process does.
    pub(crate) process: Arc<str>,
    /// The connection's `CLIENT ID`.
    pub(crate) connection: i64,
}

/// The connections on which a command that may set the key may still arrive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origins {
    known: Vec<Origin>,
    /// Whether there is a connection that cannot be identified, and so cannot be killed.
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

    /// Adds other connections. Each of the two sets comes with a flag: all it may bring is one SET.
    /// Returns the flag for the union.
    pub(super) fn add(&mut self, (others, is_one_set): (Origins, bool), was_one_set: bool) -> bool {
        let is_one_set = match (self.is_empty(), others.is_empty()) {
            (true, _) => is_one_set,
            (_, true) => was_one_set,
            // The same connections, reported twice.
            _ => *self == others && is_one_set && was_one_set,
        };
        self.extend(others);
        is_one_set
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

/// A debt: what is owed for one token on one node.
#[derive(Debug, Clone)]
struct Debt {
    key: Resource,
    ttl: Ttl,
    stage: Stage,
    /// When the next step of its stage is due, if the node is ready.
    due: Moment,
    /// When the key has certainly expired.
    expires: Moment,
    /// This client's own connections.
    origins: Origins,
    /// Connections of a client that held the lock before; that client may still use them for other
    /// locks.
    foreign: Origins,
    /// Whether one SET is all that may still arrive. Then a key that is there shows that it has
    /// run.
    is_one_set: bool,
    /// Until when the node's copy must not be counted; `Moment::END` if that is not known.
    uncounted_until: Option<Moment>,
    /// The same, for extensions that do not heal: a healing extension checks the node itself.
    unseen_until: Option<Moment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The lock may still be held: nothing is released. The client's own old connections are killed
    /// when the node is ready. At `due`, the debt is dropped.
    Dormant,
    /// The lock was given up: the release is to be sent.
    Awake,
    /// The release was sent, and must be sent once more: an old connection may not have ended
    /// before it.
    Again,
}

impl Stage {
    fn is_awake(self) -> bool {
        matches!(self, Stage::Awake | Stage::Again)
    }

    /// The stage that covers both.
    fn and(self, other: Stage) -> Stage {
        if self.is_awake() || other.is_awake() { Stage::Awake } else { Stage::Dormant }
    }
}

/// The debts of one node, by token: one key is owed once.
#[derive(Default)]
pub(super) struct Debts {
    by_token: BTreeMap<LockToken, Debt>,
    /// No debt is due before this moment.
    due: Option<Moment>,
    /// How many debts are awake: their releases are to follow.
    awake: usize,
    /// Old connections with an unanswered `CLIENT KILL`.
    ending: Vec<i64>,
    /// Old connections whose `CLIENT KILL` was refused.
    refused: Vec<i64>,
}

impl Debts {
    /// A lower bound on the first due moment.
    pub(super) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// How many releases are to follow.
    pub(super) fn awake(&self) -> usize {
        self.awake
    }

    /// How many of these releases may still find a key at `now`.
    pub(super) fn awake_at(&self, now: Moment) -> usize {
        let is_over = |debt: &&Debt| now.is_certainly_past(debt.expires);
        let awake = self.by_token.values().filter(|debt| debt.stage.is_awake());
        awake.filter(|debt| !is_over(debt)).count()
    }

    /// Recomputes the totals after a change of many debts.
    fn note_all(&mut self) {
        self.due = self.by_token.values().map(|debt| debt.due).min();
        self.awake = self.by_token.values().filter(|debt| debt.stage.is_awake()).count();
    }

    /// Adds a debt. Returns whether there was room.
    fn add(&mut self, now: Moment, token: LockToken, debt: Debt) -> bool {
        let is_new = !self.by_token.contains_key(&token);
        // Adopted debts are not limited: there are as many as the caller has leases.
        if is_new && debt.foreign.is_empty() && self.by_token.len() >= DEBTS_KEPT_MAX {
            let is_over = |debt: &Debt| now.is_certainly_past(debt.expires);
            self.by_token.retain(|_, debt| debt.stage.is_awake() || !is_over(debt));
            self.note_all();
            if self.by_token.len() >= DEBTS_KEPT_MAX {
                return false;
            }
        }
        let Some(mut owed) = self.take(token) else {
            self.put(token, debt);
            return true;
        };
        // A SET and its release may be lost together: the SET's key lives longer.
        owed.expires = owed.expires.max(debt.expires);
        let mut all = owed.all();
        owed.is_one_set = all.add((debt.all(), debt.is_one_set), owed.is_one_set);
        owed.origins.extend(debt.origins);
        owed.foreign.extend(debt.foreign);
        owed.uncounted_until = later(owed.uncounted_until, debt.uncounted_until);
        owed.unseen_until = later(owed.unseen_until, debt.unseen_until);
        owed.due = match (owed.stage.is_awake(), debt.stage.is_awake()) {
            (true, true) => owed.due.min(debt.due),
            (true, false) => owed.due,
            (false, true) => debt.due,
            (false, false) => owed.due.max(debt.due),
        };
        owed.stage = owed.stage.and(debt.stage);
        self.put(token, owed);
        true
    }

    fn put(&mut self, token: LockToken, debt: Debt) {
        self.due = Some(self.due.map_or(debt.due, |due| due.min(debt.due)));
        self.awake += usize::from(debt.stage.is_awake());
        self.by_token.insert(token, debt);
    }

    fn take(&mut self, token: LockToken) -> Option<Debt> {
        let debt = self.by_token.remove(&token)?;
        self.awake -= usize::from(debt.stage.is_awake());
        Some(debt)
    }

    /// An old connection has ended: nothing that was sent on it runs any longer.
    fn forget(&mut self, process: Option<&str>, connection: i64, countable_from: Moment) {
        self.ending.retain(|ending| *ending != connection);
        let has_ended =
            |origin: &Origin| Some(&*origin.process) == process && origin.connection == connection;
        self.settle_origins(has_ended, countable_from);
    }

    /// The server refused to end a connection. The next connection asks again.
    fn note_refused(&mut self, connection: i64) {
        self.ending.retain(|ending| *ending != connection);
        self.refused.push(connection);
    }

    /// Whether the kill of one of its connections is unanswered. If the debt were settled now and
    /// this connection were lost, that old connection would be forgotten.
    fn is_ending(&self, debt: &Debt) -> bool {
        debt.origins.known.iter().any(|origin| self.ending.contains(&origin.connection))
    }

    /// The node runs another process: the old connections ended with the old process, and whatever
    /// that process saved was saved before. So one release is enough.
    pub(super) fn forget_other_processes(&mut self, process: &str, countable_from: Moment) {
        self.by_token.values_mut().for_each(|debt| debt.origins.has_unknown = false);
        self.settle_origins(|origin| *origin.process != *process, countable_from);
    }

    /// Removes connections that have ended, and debts with nothing left to do.
    fn settle_origins(&mut self, has_ended: impl Fn(&Origin) -> bool, countable_from: Moment) {
        self.by_token.retain(|_, debt| {
            debt.origins.known.retain(|origin| !has_ended(origin));
            debt.foreign.known.retain(|origin| !has_ended(origin));
            debt.is_open() || debt.is_kept(countable_from)
        });
        self.note_all();
    }

    /// The node has the key: if one SET is all that could still arrive, it has arrived.
    fn observe(&mut self, token: LockToken, countable_from: Moment) {
        let Some(mut debt) = self.take(token) else {
            return;
        };
        // The waiting release was only needed in case the lock's own release came too early.
        let is_over = debt.is_one_set && debt.waits_for_release();
        if debt.is_one_set {
            (debt.origins, debt.foreign) = (Origins::default(), Origins::default());
        }
        if debt.is_open() || !is_over && debt.is_kept(countable_from) {
            self.put(token, debt);
        }
    }

    /// A new connection: nothing was asked for on it yet.
    pub(super) fn reconnect(&mut self) {
        self.ending.clear();
        self.refused.clear();
    }
}

impl Debt {
    /// All connections on which a command may still arrive.
    fn all(&self) -> Origins {
        let mut all = self.origins.clone();
        all.extend(self.foreign.clone());
        all
    }

    fn is_open(&self) -> bool {
        !self.origins.is_empty() || !self.foreign.is_empty()
    }

    /// Whether the lock's own release comes first: if it finds the key, no connection of another
    /// client must be killed.
    fn waits_for_release(&self) -> bool {
        self.stage.is_awake() && !self.foreign.is_empty()
    }

    /// No command can arrive from now on. Returns whether the debt must be kept anyway: its release
    /// was not sent, or its copy must not be counted yet.
    fn is_kept(&mut self, countable_from: Moment) -> bool {
        for until in [&mut self.uncounted_until, &mut self.unseen_until] {
            if *until == Some(Moment::END) {
                *until = Some(countable_from);
            }
        }
        match self.stage {
            Stage::Dormant => self.uncounted_until.is_some() || self.unseen_until.is_some(),
            Stage::Awake => true,
            Stage::Again => false,
        }
    }
}

fn later(one: Option<Moment>, other: Option<Moment>) -> Option<Moment> {
    one.into_iter().chain(other).max_by_key(|until| until.steady_nanos())
}

impl Node {
    /// When a command sent at `now` has probably been answered.
    fn after_a_while(&self, now: Moment) -> Moment {
        let round_trip = Duration::from_nanos(self.latency_nanos.unwrap_or(0));
        now.after(round_trip).after(DEBT_AGAIN_AFTER)
    }

    /// The current connection, or the last one.
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
        self.debts.awake >= DEBTS_MAX
    }
}

impl Engine {
    /// A command was lost with its connection, or its answer makes no sense.
    pub(super) fn owe(&mut self, now: Moment, node: usize, round: usize, lost: Lost) {
        match self.rounds[round].kind.left(lost) {
            Left::Nothing => {}
            Left::Key => self.owe_set(now, node, round),
            Left::Release => self.owe_release(now, node, round),
        }
    }

    /// The lock of a command that may set the key may be held.
    fn owe_set(&mut self, now: Moment, node: usize, round: usize) {
        let origins = self.nodes[node].origins();
        // The key may also have been set by an extension.
        let is_one_set = self.config.heal == Heal::Off;
        // It may run while the node is in quarantine, and this client would not notice.
        let unseen_until = self.is_distrusted(node).then_some(Moment::END);
        let debt = self.debt(now, round, Stage::Dormant);
        let debt = Debt { origins, is_one_set, unseen_until, ..debt };
        self.add_debt(now, node, self.claims[round].token, debt);
    }

    /// Whether there may be times at which the node's votes do not count.
    fn is_distrusted(&self, node: usize) -> bool {
        let is_guarded = self.config.nodes[node].restart_guard != RestartGuard::Off;
        is_guarded || self.config.flush_marker.is_some()
    }

    /// A release could not be sent, or was lost with its connection.
    pub(super) fn owe_release(&mut self, now: Moment, node: usize, round: usize) {
        let debt = self.debt(now, round, Stage::Awake);
        self.add_debt(now, node, self.claims[round].token, debt);
    }

    /// A node refused a release temporarily: it is repeated until the key has expired.
    pub(super) fn owe_refused(&mut self, now: Moment, node: usize, round: usize) {
        let debt = self.debt(now, round, Stage::Awake);
        let due = now.after(DEBT_REFUSED_AFTER);
        if !due.is_certainly_past(debt.expires) {
            self.add_debt(now, node, self.claims[round].token, Debt { due, ..debt });
        }
    }

    fn debt(&self, now: Moment, round: usize, stage: Stage) -> Debt {
        let (key, ttl) = (self.claims[round].key.clone(), self.claims[round].ttl);
        // An unanswered SET may run as late as now, and so may one that precedes this release.
        let latest = || now.after(ttl.as_duration()).after(SLACK);
        let expires = self.rounds[round].expires.unwrap_or_else(latest);
        let due = if stage.is_awake() { now } else { expires };
        Debt {
            key,
            ttl,
            stage,
            due,
            expires,
            origins: Origins::default(),
            foreign: Origins::default(),
            is_one_set: false,
            uncounted_until: None,
            unseen_until: None,
        }
    }

    fn add_debt(&mut self, now: Moment, node: usize, token: LockToken, debt: Debt) {
        let is_in_doubt = debt.unseen_until.is_some();
        self.indebted.insert(node);
        if !self.nodes[node].debts.add(now, token, debt) && is_in_doubt {
            // It is no longer known which copies do not count.
            let until = now.after(self.config.quarantine);
            self.quarantine(node, QuarantineCause::Flushed, until);
        }
        self.note_debts(node);
    }

    pub(super) fn note_debts(&mut self, node: usize) {
        if let Some(due) = self.nodes[node].debts.due() {
            self.note_due(due);
        }
    }

    /// The lock is given up, and its release is about to be sent to those of these nodes that can
    /// take it. What lost commands may have left there is released, too.
    #[cold]
    pub(super) fn wake_debts(&mut self, now: Moment, nodes: NodeSet, token: LockToken) {
        for node in nodes.and(self.indebted).iter() {
            let at = &mut self.nodes[node];
            if at.debts.by_token.is_empty() {
                self.indebted.remove(node);
            }
            let Some(mut debt) = at.debts.take(token) else {
                continue;
            };
            if at.state == State::Ready && !at.has_unsent_debts && debt.foreign.is_empty() {
                self.end_and_repeat(now, node, token, debt);
            } else {
                debt.stage = Stage::Awake;
                let is_to_wait = debt.waits_for_release() && debt.is_one_set;
                debt.due = if is_to_wait { at.after_a_while(now) } else { now };
                at.debts.put(token, debt);
            }
            self.note_debts(node);
        }
    }

    /// A release is about to follow: kills the old connections before it, and schedules a
    /// repetition if one of them may not have ended.
    fn end_and_repeat(&mut self, now: Moment, node: usize, token: LockToken, mut debt: Debt) {
        debt.origins.extend(std::mem::take(&mut debt.foreign));
        debt.origins.known.iter().for_each(|origin| self.end_connection(node, origin));
        let at = &mut self.nodes[node];
        // Commands on the current connection run before what follows on it.
        let own = at.origins();
        debt.origins.known.retain(|origin| !own.known.contains(origin));
        if !debt.origins.is_empty() {
            debt.due = at.after_a_while(now);
            debt.stage = Stage::Again;
            at.debts.put(token, debt);
        }
    }

    /// The lock was extended: debts that wait for its end are kept as long.
    #[cold]
    pub(super) fn keep_debts(&mut self, now: Moment, token: LockToken, ttl: Ttl) {
        let expires = now.after(ttl.as_duration()).after(SLACK);
        for node in self.indebted.iter() {
            let debts = &mut self.nodes[node].debts;
            if let Some(debt) = debts.by_token.get_mut(&token) {
                debt.expires = debt.expires.max(expires);
                if debt.stage == Stage::Dormant {
                    debt.due = debt.due.max(expires);
                }
            }
        }
    }

    /// The nodes with so many debts that they get no new SET.
    #[cold]
    pub(super) fn overdrawn(&self) -> NodeSet {
        let mut overdrawn = NodeSet::EMPTY;
        let nodes = self.indebted.iter().filter(|node| self.nodes[*node].owes_too_much());
        nodes.for_each(|node| overdrawn.insert(node));
        overdrawn
    }

    /// Whether the node's copy of this round's lock must not be counted.
    pub(super) fn is_doubted(&self, now: Moment, node: usize, round: usize) -> bool {
        let kind = self.rounds[round].kind;
        if !self.indebted.contains(node) || !kind.is_extension() {
            return false;
        }
        let debts = &self.nodes[node].debts.by_token;
        let Some(debt) = debts.get(&self.claims[round].token) else {
            return false;
        };
        let unseen_until = debt.unseen_until.filter(|_| !kind.may_create());
        later(debt.uncounted_until, unseen_until).is_some_and(|until| !now.is_certainly_past(until))
    }

    /// The node reported that it has the key of this round's lock.
    #[cold]
    pub(super) fn observe_key(&mut self, now: Moment, node: usize, round: usize) {
        let countable_from = now.after(self.config.quarantine);
        self.nodes[node].debts.observe(self.claims[round].token, countable_from);
    }

    /// Kills the old connections. What the server has not read of them is discarded: a delayed SET
    /// cannot run after its release (R12).
    pub(super) fn end_old_connections(&mut self, node: usize) {
        let debts = self.nodes[node].debts.by_token.values();
        let mut old: Vec<Origin> = Vec::new();
        for origin in debts.flat_map(|debt| &debt.origins.known) {
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
        let Debts { ending, refused, .. } = &mut at.debts;
        let is_asked = ending.iter().chain(&*refused).any(|asked| *asked == origin.connection);
        if !is_here || is_own || is_asked || ending.len() + refused.len() >= KILLS_MAX {
            return;
        }
        ending.push(origin.connection);
        self.outgoing.push_back(Outgoing::Kill(node, origin.connection));
    }

    pub(super) fn handle_killed(&mut self, now: Moment, node: usize, ended: i64, reply: Reply) {
        match reply {
            // 0: the connection had already ended.
            Reply::Integer(_) => {
                self.stats.connections_killed += 1;
                let countable_from = now.after(self.config.quarantine);
                let Node { server, debts, .. } = &mut self.nodes[node];
                debts.forget(server.run_id.as_deref(), ended, countable_from);
            }
            // The releases will be repeated instead.
            Reply::Error(error) => {
                self.nodes[node].debts.note_refused(ended);
                self.keep_error(node, error);
            }
            _ => self.fail_node(now, node, NodeOutcome::Protocol(ProtocolError::Unexpected)),
        }
    }

    /// Takes the next step of some of the debts that are due. When none is due, the commands that
    /// waited for them follow.
    #[cold]
    pub(super) fn settle_debts(&mut self, now: Moment, node: usize) {
        let due = self.nodes[node].debts.by_token.iter().filter(|(_, debt)| debt.due <= now);
        let tokens: Vec<LockToken> = due.map(|(token, _)| *token).take(self.share).collect();
        for token in tokens {
            self.settle_debt(now, node, token);
        }
        self.nodes[node].debts.note_all();
        self.note_debts(node);
        let is_all = self.nodes[node].debts.due().is_none_or(|due| now < due);
        if is_all && std::mem::take(&mut self.nodes[node].has_unsent_debts) {
            self.note_open(node);
            self.flush_queue(now, node);
        }
    }

    fn settle_debt(&mut self, now: Moment, node: usize, token: LockToken) {
        let Some(debt) = self.nodes[node].debts.take(token) else {
            return;
        };
        let is_over = now.is_certainly_past(debt.expires);
        match debt.stage {
            Stage::Dormant => {
                // The lock may have been extended since: then its copy is in doubt for longer.
                let latest = debt.expires.after(self.config.quarantine);
                let until = later(debt.uncounted_until, debt.unseen_until);
                let until = until.map(|until| if until == Moment::END { latest } else { until });
                if let Some(until) = until.filter(|until| !now.is_certainly_past(*until)) {
                    // A jump of this machine's wall clock is no reason to wait for less.
                    let due = now.after(until.steadily_since(now));
                    self.nodes[node].debts.put(token, Debt { due, ..debt });
                }
                return;
            }
            Stage::Again if is_over => return,
            Stage::Again if self.nodes[node].debts.is_ending(&debt) => {
                let due = self.nodes[node].after_a_while(now);
                return self.nodes[node].debts.put(token, Debt { due, ..debt });
            }
            // The release is sent at least once, even after the expiry. A frozen server may run at
            // any time what it has not read, and a process that was paused learns too late when its
            // connection ended.
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

    /// What this engine knows of the nodes, which an engine that adopts the lease cannot know.
    pub(super) fn doubts(&self, now: Moment, token: LockToken) -> Vec<Doubt> {
        (0..self.nodes.len()).filter_map(|node| self.doubt(now, node, token)).collect()
    }

    fn doubt(&self, now: Moment, node: usize, token: LockToken) -> Option<Doubt> {
        let at = &self.nodes[node];
        let rounds = at.in_flight.iter().filter_map(|sent| sent.request.round());
        let may_have_run = |lost: &Lost| matches!(lost, Lost::Sent);
        let lost = at.lost.iter().filter(|(_, lost)| may_have_run(lost)).map(|(round, _)| *round);
        let is_its = |round: &usize| self.claims[*round].token == token;
        let kind = |round: usize| self.rounds[round].kind;
        let is_open = rounds.chain(lost).filter(is_its).map(kind).any(Kind::may_create);
        let mut origins = if is_open { at.origins() } else { Origins::default() };
        let mut is_one_set = self.config.heal == Heal::Off;
        let mut uncounted = Duration::ZERO;
        if let Some(debt) = at.debts.by_token.get(&token) {
            is_one_set = origins.add((debt.all(), debt.is_one_set), is_one_set);
            let until = later(debt.uncounted_until, debt.unseen_until);
            let until = until.filter(|until| *until != Moment::END);
            uncounted = until.map(|until| until.steadily_since(now)).unwrap_or_default();
        }
        // The copy may date from a time when this node was not trusted, and only this engine can
        // find that out.
        if !origins.is_empty() && self.is_distrusted(node) {
            uncounted = uncounted.max(self.config.quarantine);
        }
        let quarantine = self.quarantine_of(now, node).map(|quarantine| quarantine.ready_in);
        uncounted = uncounted.max(quarantine.unwrap_or_default());
        let doubt = Doubt { node, origins, is_one_set, uncounted };
        doubt.says_anything().then_some(doubt)
    }

    /// A lease arrives from another engine, with that engine's doubts.
    #[cold]
    pub(super) fn take_doubts(&mut self, now: Moment, lease: &Lease) {
        let nodes = self.nodes.len();
        for doubt in lease.doubts.iter().filter(|doubt| doubt.node < nodes) {
            let key = lease.resource.clone().prefixed(&self.config.key_prefix);
            let expires = now.after(lease.longest.as_duration()).after(SLACK);
            // As long as a command may arrive, its copy may be new.
            let until =
                if doubt.origins.is_empty() { now.after(doubt.uncounted) } else { Moment::END };
            let debt = Debt {
                key,
                ttl: lease.longest,
                stage: Stage::Dormant,
                due: expires,
                expires,
                origins: Origins::default(),
                foreign: doubt.origins.clone(),
                is_one_set: doubt.is_one_set && self.config.heal == Heal::Off,
                uncounted_until: (!doubt.uncounted.is_zero()).then_some(until),
                unseen_until: None,
            };
            self.add_debt(now, doubt.node, lease.token, debt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::from_nanos(1_000);
    const SOON: Moment = Moment::from_nanos(2_000);
    const LATER: Moment = Moment::from_nanos(3_000);

    fn origin(connection: i64) -> Origin {
        Origin { process: "process".into(), connection }
    }

    fn origins(connections: std::ops::Range<i64>) -> Origins {
        Origins { known: connections.map(origin).collect(), has_unknown: false }
    }

    fn token(number: usize) -> LockToken {
        let mut random = [0; 20];
        random[..8].copy_from_slice(&number.to_be_bytes());
        LockToken::from_random(random)
    }

    fn debt(stage: Stage, expires: Moment) -> Debt {
        Debt {
            key: Resource::new("key").unwrap(),
            ttl: Ttl::new(Duration::from_secs(1)).unwrap(),
            stage,
            due: expires,
            expires,
            origins: Origins::default(),
            foreign: Origins::default(),
            is_one_set: false,
            uncounted_until: None,
            unseen_until: None,
        }
    }

    #[test]
    fn connections_beyond_the_most_are_unknown_ones() {
        let most = CONNECTIONS_MAX as i64;
        let mut all = origins(0..most);
        all.insert(origin(0));
        assert!(all == origins(0..most), "it is there already");
        all.insert(origin(most));
        assert!(all.known().len() == CONNECTIONS_MAX && all.has_unknown());
        let mut one = origins(0..1);
        one.extend(all);
        assert!(one.known().len() == CONNECTIONS_MAX && one.has_unknown());
        one.extend(origins(0..1));
        assert!(one.has_unknown(), "it stays so");
    }

    /// R29: two SETs may be on their way if two connections may each bring one.
    #[test]
    fn one_set_is_all_that_may_arrive_if_both_say_so_of_the_same_connections() {
        let (none, some, other) = (origins(0..0), origins(0..1), origins(1..2));
        for is_one_set in [false, true] {
            let (yes, no) = (is_one_set, !is_one_set);
            assert_eq!(none.clone().add((some.clone(), yes), no), yes);
            assert_eq!(some.clone().add((none.clone(), no), yes), yes);
            assert!(!some.clone().add((some.clone(), yes), no));
            assert_eq!(some.clone().add((some.clone(), yes), yes), yes);
            assert!(!some.clone().add((other.clone(), yes), yes));
        }
    }

    #[test]
    fn debts_beyond_the_most_are_not_kept_unless_others_are_over() {
        let mut debts = Debts::default();
        // Each tenth lock was given up: its release has to follow, whatever the time.
        let (awake, dormant) = (debt(Stage::Awake, SOON), debt(Stage::Dormant, SOON));
        let one = |number| if number % 10 == 0 { awake.clone() } else { dormant.clone() };
        debts.by_token = (0..DEBTS_KEPT_MAX).map(|number| (token(number), one(number))).collect();
        debts.note_all();
        assert!(!debts.add(NOW, token(DEBTS_KEPT_MAX), debt(Stage::Awake, LATER)));
        assert!(debts.add(NOW, token(0), debt(Stage::Awake, LATER)), "it is no other debt");
        let adopted = Debt { foreign: origins(0..1), ..debt(Stage::Dormant, SOON) };
        assert!(debts.add(NOW, token(DEBTS_KEPT_MAX), adopted));
        assert_eq!(debts.by_token.len(), DEBTS_KEPT_MAX + 1);
        let awake = debts.awake();
        assert_eq!(awake, DEBTS_KEPT_MAX.div_ceil(10));
        assert!(debts.add(LATER, token(DEBTS_KEPT_MAX + 1), debt(Stage::Dormant, LATER)));
        assert_eq!((debts.by_token.len(), debts.awake()), (awake + 1, awake));
    }
}
