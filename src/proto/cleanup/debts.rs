//! The debts of one node (R12, R29).
//!
//! A SET or a healing extension that was not answered may have run, or may run later. As long as
//! its lock may be held, nothing is released: a release that was lost in turn could delete a copy
//! that counts. Such a debt is *dormant*: it kills the old connection but deletes nothing. When the
//! lock is given up, the debt wakes up: the release is sent after the end of each old connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::moment::Moment;
use crate::proto::doubt::{ConnectionId, ConnectionIds, Doubt};
use crate::proto::kind::{Claim, RoundKind};
use crate::proto::limits::OPERATIONS_MAX;
use crate::resource::{KeptBy, Key};
use crate::token::LockToken;
use crate::validity::Ttl;

/// Added to a TTL for the moment at which a key has certainly expired.
const SLACK: Duration = Duration::from_secs(1);
/// A release on a new connection is repeated after a round trip and this long.
pub(super) const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// A release that a node refused is repeated after this long.
const REFUSED_AFTER: Duration = Duration::from_millis(500);

/// A node with this many debts gets no new SET: otherwise a caller in a tight loop, on a master
/// that comes and goes, would add debts without limit. Unit tests reach it sooner.
const DEBTS_MAX: usize = if cfg!(test) { 64 } else { 8_192 };
/// Debts that are kept in any case: enough for all SETs that may be unanswered when the node
/// reaches `DEBTS_MAX`. Beyond this, keys are left to expire.
pub(super) const DEBTS_KEPT_MAX: usize = if cfg!(test) { 256 } else { 2 * OPERATIONS_MAX };
/// The most `CLIENT KILL` commands per connection that are unanswered or were refused. For further
/// old connections, the release is sent twice instead.
const KILLS_MAX: usize = 8;

/// A debt: the releases of one token that one node is still to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Debt {
    key: Key,
    ttl: Ttl,
    stage: DebtStage,
    /// When the next step of its stage is due, if the node is ready.
    due: Moment,
    /// When the key has certainly expired.
    expires: Moment,
    /// This client's own connections.
    pub(super) connections: ConnectionIds,
    /// Connections of a client that held the lock before; that client may still use them for other
    /// locks.
    pub(super) other_clients: ConnectionIds,
    /// Whether one SET is all that may still arrive. Then a key that is there shows that it has
    /// run.
    pub(super) is_one_set: bool,
    /// Until when the node's copy must not be counted; `Moment::END` if that is not known.
    pub(super) uncounted_until: Option<Moment>,
    /// The same, for extensions that do not heal: a healing extension checks the node itself.
    pub(super) unseen_until: Option<Moment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DebtStage {
    /// The lock may still be held: nothing is released. The client's own old connections are killed
    /// when the node is ready. At `due`, the debt is dropped.
    Dormant,
    /// The lock was given up: the release is to be sent.
    Awake,
    /// The release was sent, and must be sent once more: an old connection may not have ended
    /// before it.
    Again,
}

impl DebtStage {
    fn is_awake(self) -> bool {
        matches!(self, DebtStage::Awake | DebtStage::Again)
    }

    /// The stage that covers both.
    fn and(self, other: DebtStage) -> DebtStage {
        if self.is_awake() || other.is_awake() { DebtStage::Awake } else { DebtStage::Dormant }
    }
}

/// What the next step of a debt depends on.
pub(super) struct Here {
    pub(super) now: Moment,
    /// For how long copies of unknown age do not count.
    pub(super) doubted_for: Duration,
    /// When a command sent now has probably been answered.
    pub(super) answered_at: Moment,
    /// The process behind the current connection, or the last one.
    pub(super) process: Option<Arc<str>>,
    /// The `CLIENT ID` of that connection.
    pub(super) connection: Option<i64>,
}

impl Here {
    pub(super) fn connections(&self) -> ConnectionIds {
        match (&self.process, self.connection) {
            (Some(process), Some(connection)) => {
                let id = ConnectionId { process: Arc::clone(process), connection };
                ConnectionIds { known: vec![id], has_unknown: false }
            }
            _ => ConnectionIds { known: Vec::new(), has_unknown: true },
        }
    }
}

/// Old connections to kill, by `CLIENT ID`.
pub(crate) type Kills = Vec<i64>;

/// A release to be sent, after the kills of old connections.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) claim: Claim,
    /// When the key has certainly expired.
    pub(crate) expires: Moment,
    pub(crate) kills: Kills,
}

/// The debts of one node, by token: one key is owed once.
#[derive(Default)]
pub(crate) struct Debts {
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
    pub(crate) fn due(&self) -> Option<Moment> {
        self.due
    }

    /// How many releases are to follow.
    pub(crate) fn awake(&self) -> usize {
        self.awake
    }

    /// How many of these releases may still find a key at `now`.
    pub(crate) fn awake_at(&self, now: Moment) -> usize {
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
        if is_new && !debt.is_adopted() && self.by_token.len() >= DEBTS_KEPT_MAX {
            let is_over = |debt: &Debt| now.is_certainly_past(debt.expires);
            self.by_token.retain(|_, debt| debt.stage.is_awake() || !is_over(debt));
            self.note_all();
            if self.by_token.len() >= DEBTS_KEPT_MAX {
                return false;
            }
        }
        let Some(mut former) = self.take(token) else {
            self.put(token, debt);
            return true;
        };
        // A SET and its release may be lost together: the SET's key lives longer.
        former.expires = former.expires.max(debt.expires);
        let mut all = former.all();
        former.is_one_set = all.add((debt.all(), debt.is_one_set), former.is_one_set);
        former.connections.extend(debt.connections);
        former.other_clients.extend(debt.other_clients);
        former.uncounted_until = later(former.uncounted_until, debt.uncounted_until);
        former.unseen_until = later(former.unseen_until, debt.unseen_until);
        former.due = match (former.stage.is_awake(), debt.stage.is_awake()) {
            (true, true) => former.due.min(debt.due),
            (true, false) => former.due,
            (false, true) => debt.due,
            (false, false) => former.due.max(debt.due),
        };
        former.stage = former.stage.and(debt.stage);
        former.note_key(&debt.key);
        self.put(token, former);
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
    pub(super) fn connection_killed(&mut self, here: &Here, connection: i64) {
        self.ending.retain(|ending| *ending != connection);
        let is_here = |id: &ConnectionId| here.process.as_ref() == Some(&id.process);
        let has_ended = |id: &ConnectionId| is_here(id) && id.connection == connection;
        self.settle_ended(has_ended, here.now.after(here.doubted_for));
    }

    /// The server refused to end a connection. The next connection asks again.
    pub(super) fn kill_refused(&mut self, connection: i64) {
        self.ending.retain(|ending| *ending != connection);
        self.refused.push(connection);
    }

    /// Whether the kill of one of its connections is unanswered. If the debt were settled now and
    /// this connection were lost, that old connection would be forgotten.
    fn is_ending(&self, debt: &Debt) -> bool {
        debt.connections.known.iter().any(|id| self.ending.contains(&id.connection))
    }

    /// The node runs another process: the old connections ended with the old process, and whatever
    /// that process saved was saved before. So one release is enough.
    pub(super) fn other_processes_gone(
        &mut self,
        process: &str,
        countable_from: Moment,
        was_named: bool,
    ) {
        if was_named {
            self.by_token.values_mut().for_each(|debt| debt.connections.has_unknown = false);
        }
        self.settle_ended(|id| *id.process != *process, countable_from);
    }

    /// Removes connections that have ended, and debts with nothing left to do.
    fn settle_ended(&mut self, has_ended: impl Fn(&ConnectionId) -> bool, countable_from: Moment) {
        self.by_token.retain(|_, debt| {
            debt.connections.known.retain(|id| !has_ended(id));
            debt.other_clients.known.retain(|id| !has_ended(id));
            debt.is_open() || debt.is_kept(countable_from)
        });
        self.note_all();
    }

    /// The node has the key: if one SET is all that could still arrive, it has arrived.
    pub(super) fn observe(&mut self, token: LockToken, countable_from: Moment) {
        let Some(mut debt) = self.take(token) else {
            return;
        };
        // The waiting release was only needed in case the lock's own release came too early.
        let is_over = debt.is_one_set && debt.waits_for_release();
        if debt.is_one_set {
            (debt.connections, debt.other_clients) = Default::default();
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

    /// The lock is given up. If `is_to_follow`, its release is about to be sent on this connection.
    /// Returns the old connections to kill before that; `None` if there was no debt.
    pub(super) fn wake(
        &mut self,
        here: &Here,
        key: &Key,
        token: LockToken,
        is_to_follow: bool,
    ) -> Option<Kills> {
        let mut debt = self.take(token)?;
        debt.note_key(key);
        if is_to_follow && debt.other_clients.is_empty() {
            return Some(self.end_and_repeat(here, token, debt));
        }
        debt.stage = DebtStage::Awake;
        let is_to_wait = debt.waits_for_release() && debt.is_one_set;
        debt.due = if is_to_wait { here.answered_at } else { here.now };
        self.put(token, debt);
        Some(Kills::new())
    }

    /// A release is about to follow: returns the old connections to kill before it, and schedules a
    /// repetition if one of them may not have ended.
    fn end_and_repeat(&mut self, here: &Here, token: LockToken, mut debt: Debt) -> Kills {
        debt.connections.extend(std::mem::take(&mut debt.other_clients));
        let kills = self.kill_all(here, &debt.connections.known);
        // Commands on the current connection run before what follows on it.
        let own = here.connections();
        debt.connections.known.retain(|id| !own.known.contains(id));
        if !debt.connections.is_empty() {
            (debt.due, debt.stage) = (here.answered_at, DebtStage::Again);
            self.put(token, debt);
        }
        kills
    }

    /// The old connections to kill now. What the server has not read of them is discarded: a
    /// delayed SET cannot run after its release (R12).
    pub(super) fn kill_old_connections(&mut self, here: &Here) -> Kills {
        let mut old: Vec<ConnectionId> = Vec::new();
        for id in self.by_token.values().flat_map(|debt| &debt.connections.known) {
            if old.len() < KILLS_MAX && !old.contains(id) {
                old.push(id.clone());
            }
        }
        self.kill_all(here, &old)
    }

    /// Those of these connections that are to be killed, and were not asked for on this connection.
    fn kill_all(&mut self, here: &Here, old: &[ConnectionId]) -> Kills {
        let mut kills = Kills::new();
        for ConnectionId { process, connection } in old {
            let is_here = here.process.as_ref() == Some(process);
            let is_own = here.connection == Some(*connection);
            let is_asked = self.ending.contains(connection) || self.refused.contains(connection);
            let has_room = self.ending.len() + self.refused.len() < KILLS_MAX;
            if is_here && !is_own && !is_asked && has_room {
                self.ending.push(*connection);
                kills.push(*connection);
            }
        }
        kills
    }

    /// The lock was extended: its debt is kept as long.
    pub(super) fn keep(&mut self, now: Moment, token: LockToken, ttl: Ttl) {
        let expires = expiry(now, ttl);
        if let Some(debt) = self.by_token.get_mut(&token) {
            debt.expires = debt.expires.max(expires);
            if debt.stage == DebtStage::Dormant {
                debt.due = debt.due.max(expires);
            }
        }
    }

    /// Takes the next step of at most `share` debts that are due.
    pub(super) fn take_due(&mut self, here: &Here, share: usize) -> Vec<Due> {
        let due = self.by_token.iter().filter(|(_, debt)| debt.due <= here.now);
        let tokens: Vec<LockToken> = due.map(|(token, _)| *token).take(share).collect();
        let due = tokens.into_iter().filter_map(|token| self.settle(here, token)).collect();
        self.note_all();
        due
    }

    fn settle(&mut self, here: &Here, token: LockToken) -> Option<Due> {
        let (now, debt) = (here.now, self.take(token)?);
        let is_over = now.is_certainly_past(debt.expires);
        let (claim, expires) = (debt.claim(token), debt.expires);
        let kills = match debt.stage {
            DebtStage::Dormant => {
                // The lock may have been extended since: then its copy is in doubt for longer.
                let latest = debt.expires.after(here.doubted_for);
                let until = debt.doubtful_until();
                let until = until.map(|until| if until == Moment::END { latest } else { until });
                let until = until.filter(|until| !now.is_certainly_past(*until))?;
                // A jump of this machine's wall clock is no reason to wait for less.
                let due = now.after(until.steadily_since(now));
                self.put(token, Debt { due, ..debt });
                return None;
            }
            DebtStage::Again if is_over => return None,
            DebtStage::Again if self.is_ending(&debt) => {
                self.put(token, Debt { due: here.answered_at, ..debt });
                return None;
            }
            // The release is sent at least once, even after the expiry. A frozen server may run at
            // any time what it has not read, and a process that was paused learns too late when its
            // connection ended.
            DebtStage::Awake => self.end_and_repeat(here, token, debt),
            DebtStage::Again => Kills::new(),
        };
        Some(Due { claim, expires, kills })
    }

    /// Whether the node's copy of this lock must not be counted for a command of this kind.
    pub(crate) fn is_doubted(&self, now: Moment, token: LockToken, kind: RoundKind) -> bool {
        let debt = kind.is_extension().then(|| self.by_token.get(&token)).flatten();
        let Some(debt) = debt else { return false };
        let until = match kind.may_create() {
            true => debt.uncounted_until,
            false => debt.doubtful_until(),
        };
        until.is_some_and(|until| !now.is_certainly_past(until))
    }

    /// Adds what is known of a token's copy to what another engine is told.
    pub(super) fn add_doubt(&self, now: Moment, token: LockToken, doubt: &mut Doubt) {
        if let Some(debt) = self.by_token.get(&token) {
            doubt.is_one_set =
                doubt.connections.add((debt.all(), debt.is_one_set), doubt.is_one_set);
            let until = debt.doubtful_until().filter(|until| *until != Moment::END);
            doubt.uncounted = until.map(|until| until.steadily_since(now)).unwrap_or_default();
        }
    }

    /// Adds a debt. Returns whether it is still known which copies do not count.
    pub(super) fn add_checked(&mut self, now: Moment, token: LockToken, debt: Debt) -> bool {
        let is_in_doubt = debt.unseen_until.is_some();
        self.add(now, token, debt) || !is_in_doubt
    }

    pub(super) fn has_any(&self) -> bool {
        !self.by_token.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.awake >= DEBTS_MAX
    }

    /// Whether none is due that new commands have to wait for.
    pub(super) fn has_sent_all(&self, now: Moment) -> bool {
        self.due.is_none_or(|due| now < due)
    }
}

#[cfg(feature = "testing")]
impl Debts {
    /// A contradiction between its parts.
    pub(super) fn broken(&self) -> Option<&'static str> {
        let debts = || self.by_token.values();
        let is_early = |debt: &Debt| self.due.is_some_and(|due| due <= debt.due);
        let is_kept_too_long =
            |debt: &Debt| debt.stage == DebtStage::Dormant && debt.due < debt.expires;
        let rules = [
            (
                self.awake != debts().filter(|debt| debt.stage.is_awake()).count(),
                "awake debts are miscounted",
            ),
            (!debts().all(is_early), "a debt is due before the first one"),
            (debts().any(is_kept_too_long), "a debt is dropped before its key has expired"),
            (
                debts().any(|debt| debt.stage == DebtStage::Again && debt.connections.is_empty()),
                "a release is repeated for no connection",
            ),
            (
                self.by_token.contains_key(&LockToken::NONE),
                "the release of a lock without a token is owed",
            ),
            (self.ending.len() + self.refused.len() > KILLS_MAX, "too many connections are ended"),
        ];
        rules.iter().find(|(is_broken, _)| *is_broken).map(|(_, what)| *what)
    }
}

impl Debt {
    /// The lock of a command that may set the key may be held. `expires` is when the key has
    /// certainly expired, if that is known.
    pub(super) fn dormant(now: Moment, claim: &Claim, expires: Option<Moment>) -> Debt {
        // An unanswered SET may run as late as now, and so may one that precedes this release.
        let expires = expires.unwrap_or_else(|| expiry(now, claim.ttl));
        Debt {
            key: claim.key.undone(),
            ttl: claim.ttl,
            stage: DebtStage::Dormant,
            due: expires,
            expires,
            connections: ConnectionIds::default(),
            other_clients: ConnectionIds::default(),
            is_one_set: false,
            uncounted_until: None,
            unseen_until: None,
        }
    }

    /// A release could not be sent, or was lost with its connection.
    pub(super) fn of_release(now: Moment, claim: &Claim, expires: Option<Moment>) -> Debt {
        Debt { stage: DebtStage::Awake, due: now, ..Debt::dormant(now, claim, expires) }
    }

    /// A node refused a release temporarily: it is repeated until the key has expired.
    pub(super) fn of_refused(now: Moment, claim: &Claim, expires: Option<Moment>) -> Option<Debt> {
        let due = now.after(REFUSED_AFTER);
        let debt = Debt { due, ..Debt::of_release(now, claim, expires) };
        (!due.is_certainly_past(debt.expires)).then_some(debt)
    }

    /// The lock may have become a share since (K7): its release frees what was held alone, too.
    fn note_key(&mut self, key: &Key) {
        if key.row().kept_by == KeptBy::OwnScripts {
            self.key = key.clone();
        }
    }

    fn claim(&self, token: LockToken) -> Claim {
        Claim { key: self.key.clone(), token, ttl: self.ttl }
    }

    /// Until when the node's copy must not be counted for an extension that does not heal.
    fn doubtful_until(&self) -> Option<Moment> {
        later(self.uncounted_until, self.unseen_until)
    }

    /// All connections on which a command may still arrive.
    fn all(&self) -> ConnectionIds {
        let mut all = self.connections.clone();
        all.extend(self.other_clients.clone());
        all
    }

    /// Whether it tells of another engine's doubt.
    fn is_adopted(&self) -> bool {
        !self.other_clients.is_empty() || self.uncounted_until.is_some()
    }

    fn is_open(&self) -> bool {
        !self.connections.is_empty() || !self.other_clients.is_empty()
    }

    /// Whether the lock's own release comes first: if it finds the key, no connection of another
    /// client must be killed.
    fn waits_for_release(&self) -> bool {
        self.stage.is_awake() && !self.other_clients.is_empty()
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
            DebtStage::Dormant => self.uncounted_until.is_some() || self.unseen_until.is_some(),
            DebtStage::Awake => true,
            DebtStage::Again => false,
        }
    }
}

/// When a key that is set at `now` has certainly expired.
fn expiry(now: Moment, ttl: Ttl) -> Moment {
    now.after(ttl.as_duration()).after(SLACK)
}

fn later(one: Option<Moment>, other: Option<Moment>) -> Option<Moment> {
    one.into_iter().chain(other).max_by_key(|until| until.steady_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resource;

    /// What happens to the one debt, with the time in milliseconds.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        /// A SET was lost with this connection.
        Set(i64),
        /// A release was lost.
        Release,
        /// Another engine's lease arrives: a SET may arrive on this connection.
        Adopted(i64),
        /// The lock is given up, while its release can or cannot follow.
        Woken {
            follows: bool,
        },
        Due(u64),
        Killed(i64),
        KillRefused(i64),
        Reconnected,
        /// The node runs another process.
        Gone,
        Observed,
        Extended,
    }
    use Event::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn token() -> LockToken {
        LockToken::from_random([1; 20])
    }

    fn claim() -> Claim {
        let (key, ttl) = (Key::new(Resource::new("key").unwrap(), b""), Duration::from_secs(1));
        Claim { key, token: token(), ttl: Ttl::new(ttl).unwrap() }
    }

    fn here(now: Moment, connection: i64) -> Here {
        let (doubted_for, answered_at) = (Duration::from_secs(10), now.after(AGAIN_AFTER));
        let (process, connection) = (Some(Arc::from("process")), Some(connection));
        Here { now, doubted_for, answered_at, process, connection }
    }

    fn connections(connection: i64) -> ConnectionIds {
        here(at(0), connection).connections()
    }

    /// Runs the events on connection 9. Returns the stage of the debt that is left, when it is due
    /// in milliseconds, and what was sent: kills, and zeros for releases.
    fn run(events: &[Event]) -> (Option<(DebtStage, u64)>, Vec<i64>) {
        let (now, claim, here) = (at(0), claim(), |millis| here(at(millis), 9));
        let (mut debts, mut sent) = (Debts::default(), Vec::new());
        for event in events {
            match *event {
                Set(connection) => {
                    let (connections, is_one_set) = (connections(connection), true);
                    let debt = Debt { connections, is_one_set, ..Debt::dormant(now, &claim, None) };
                    assert!(debts.add(now, token(), debt));
                }
                Release => {
                    let debt = Debt::of_release(now, &claim, None);
                    assert!(debts.add(now, token(), debt));
                }
                Adopted(connection) => {
                    let (other_clients, is_one_set) = (connections(connection), true);
                    let debt =
                        Debt { other_clients, is_one_set, ..Debt::dormant(now, &claim, None) };
                    assert!(debts.add(now, token(), debt));
                }
                Woken { follows } => {
                    sent.extend(
                        debts.wake(&here(0), &claim.key, token(), follows).unwrap_or_default(),
                    );
                }
                Due(millis) => {
                    for due in debts.take_due(&here(millis), 10) {
                        assert_eq!(due.claim, claim);
                        sent.extend(due.kills.into_iter().chain([0]));
                    }
                }
                Killed(connection) => {
                    debts.connection_killed(&here(0), connection);
                }
                KillRefused(connection) => debts.kill_refused(connection),
                Reconnected => debts.reconnect(),
                Gone => debts.other_processes_gone("another", at(10_000), true),
                Observed => debts.observe(token(), at(10_000)),
                Extended => debts.keep(now, token(), Ttl::new(Duration::from_secs(9)).unwrap()),
            }
            let awake = debts.by_token.values().filter(|debt| debt.stage.is_awake()).count();
            assert_eq!(debts.awake(), awake, "{event:?}");
        }
        let left = debts.by_token.values().next();
        let left = left.map(|debt| (debt.stage, debt.due.as_nanos() / 1_000_000));
        (left, sent)
    }

    #[test]
    fn each_event_takes_a_debt_to_its_next_stage() {
        use DebtStage::{Again, Awake, Dormant};
        let (woken, kept) = (Woken { follows: false }, Woken { follows: true });
        let table: &[(&[Event], _, &[i64])] = &[
            // A lock that may be held: nothing is sent, whatever comes.
            (&[Set(1)], Some((Dormant, 2_000)), &[]),
            (&[Set(1), Due(1_999)], Some((Dormant, 2_000)), &[]),
            (&[Set(1), Due(2_000)], None, &[]),
            (&[Set(1), Extended], Some((Dormant, 10_000)), &[]),
            (&[Set(1), Extended, Set(2)], Some((Dormant, 10_000)), &[]),
            (&[Set(1), Gone], None, &[]),
            (&[Adopted(1), Gone], None, &[]),
            (&[Set(1), Killed(1)], None, &[]),
            (&[Set(1), Killed(2)], Some((Dormant, 2_000)), &[]),
            (&[Set(1), Observed], None, &[]),
            (&[Adopted(1), Due(1_999)], Some((Dormant, 2_000)), &[]),
            // It was given up where the node cannot take the release.
            (&[Set(1), woken], Some((Awake, 0)), &[]),
            (&[Set(1), Release], Some((Awake, 0)), &[]),
            (&[Release], Some((Awake, 0)), &[]),
            (&[Release, Due(0)], None, &[0]),
            (&[Release, Due(9_000)], None, &[0]),
            (&[Set(1), woken, Gone], Some((Awake, 0)), &[]),
            (&[Set(1), woken, Gone, Due(0)], None, &[0]),
            (&[Set(1), woken, Killed(1)], Some((Awake, 0)), &[]),
            // It was given up where the release follows: the old connection is killed before.
            (&[Set(1), kept], Some((Again, 100)), &[1]),
            (&[Set(9), kept], None, &[]),
            (&[Set(1), woken, Due(0)], Some((Again, 100)), &[1, 0]),
            (&[Set(9), woken, Due(0)], None, &[0]),
            // Then once more, unless that connection has ended.
            (&[Set(1), kept, Killed(1)], None, &[1]),
            (&[Set(1), kept, Gone], None, &[1]),
            (&[Set(1), kept, Observed], None, &[1]),
            (&[Set(1), kept, Due(100)], Some((Again, 200)), &[1]),
            (&[Set(1), kept, KillRefused(1), Due(100)], None, &[1, 0]),
            (&[Set(1), kept, Reconnected, Due(100)], None, &[1, 0]),
            (&[Set(1), kept, Due(2_001)], None, &[1]),
            // Connections of another client are killed only after the lock's own release.
            (&[Adopted(1), kept], Some((Awake, 100)), &[]),
            (&[Adopted(1), kept, Observed], None, &[]),
            (&[Adopted(1), kept, Due(100)], Some((Again, 200)), &[1, 0]),
            (&[Adopted(1), Set(2), kept], Some((Awake, 0)), &[]),
        ];
        for (events, left, sent) in table {
            assert_eq!(run(events), (*left, sent.to_vec()), "{events:?}");
        }
    }

    /// R29: what a connection without a name brings is not counted before its time and a quarantine
    /// are over: until then it may have been brought to a server that has lost its data.
    #[test]
    fn copy_of_an_unknown_connection_does_not_count_for_a_quarantine_more() {
        let (mut debts, doubted_for) = (Debts::default(), here(at(0), 9).doubted_for);
        let connections = ConnectionIds { has_unknown: true, ..Default::default() };
        let unseen_until = Some(Moment::END);
        let debt = Debt { connections, unseen_until, ..Debt::dormant(at(0), &claim(), None) };
        assert!(debts.add(at(0), token(), debt));
        let over = at(2_000).after(doubted_for);
        for (now, counts) in [(1_999, false), (2_000, false), (11_000, false), (12_500, true)] {
            assert!(debts.take_due(&here(at(now), 9), 10).is_empty());
            assert_eq!(!debts.is_doubted(at(now), token(), RoundKind::Extend), counts, "{now}");
            assert!(counts || debts.due() <= Some(over), "{now}");
        }
    }
}

#[cfg(test)]
mod bounds {
    use super::*;
    use crate::proto::doubt::CONNECTIONS_MAX;
    use crate::resource::Resource;

    const NOW: Moment = Moment::from_nanos(1_000);
    const SOON: Moment = Moment::from_nanos(2_000);
    const LATER: Moment = Moment::from_nanos(3_000);

    fn id(connection: i64) -> ConnectionId {
        ConnectionId { process: "process".into(), connection }
    }

    fn connections(connections: std::ops::Range<i64>) -> ConnectionIds {
        ConnectionIds { known: connections.map(id).collect(), has_unknown: false }
    }

    fn token(number: usize) -> LockToken {
        let mut random = [0; 20];
        random[..8].copy_from_slice(&number.to_be_bytes());
        LockToken::from_random(random)
    }

    fn debt(stage: DebtStage, expires: Moment) -> Debt {
        let (key, ttl) = (
            Key::new(Resource::new("key").unwrap(), b""),
            Ttl::new(Duration::from_secs(1)).unwrap(),
        );
        let claim = Claim { key, token: token(0), ttl };
        Debt { stage, ..Debt::dormant(NOW, &claim, Some(expires)) }
    }

    /// A SET and an earlier release of the same lock may be lost in any order.
    #[test]
    fn key_has_expired_when_the_later_of_two_has() {
        for [one, other] in [[SOON, LATER], [LATER, SOON]] {
            let mut debts = Debts::default();
            assert!(debts.add(NOW, token(0), debt(DebtStage::Dormant, one)));
            assert!(debts.add(NOW, token(0), debt(DebtStage::Awake, other)));
            assert_eq!(debts.by_token[&token(0)].expires, LATER);
        }
    }

    /// What either of two debts for one token says of its copy holds for both.
    #[test]
    fn doubts_of_two_debts_are_added() {
        let plain = debt(DebtStage::Dormant, LATER);
        let uncounted = Debt { uncounted_until: Some(LATER), ..plain.clone() };
        let unseen = Debt { unseen_until: Some(LATER), ..plain.clone() };
        let other_clients = Debt { other_clients: connections(0..1), ..plain.clone() };
        for (doubt, counts_for_heal) in [(uncounted, false), (unseen, true)] {
            for pair in [[plain.clone(), doubt.clone()], [doubt, plain.clone()]] {
                let mut debts = Debts::default();
                pair.into_iter().for_each(|debt| assert!(debts.add(NOW, token(0), debt)));
                assert!(debts.is_doubted(SOON, token(0), RoundKind::Extend));
                assert_eq!(!debts.is_doubted(SOON, token(0), RoundKind::Heal), counts_for_heal);
            }
        }
        for pair in [[plain.clone(), other_clients.clone()], [other_clients, plain.clone()]] {
            let mut debts = Debts::default();
            pair.into_iter().for_each(|debt| assert!(debts.add(NOW, token(0), debt)));
            assert_eq!(debts.by_token[&token(0)].other_clients, connections(0..1));
        }
    }

    fn here() -> Here {
        let (process, connection) = (Some("process".into()), Some(-1));
        let doubted_for = Duration::from_secs(10);
        Here { now: NOW, doubted_for, answered_at: SOON, process, connection }
    }

    /// Another process has connections of the same numbers.
    #[test]
    fn connection_that_was_killed_is_one_of_this_process() {
        let other = ConnectionId { process: "other".into(), connection: 1 };
        let other = ConnectionIds { known: vec![other], has_unknown: false };
        let mut debts = Debts::default();
        for (number, connections) in [(0, connections(1..2)), (1, other.clone())] {
            let debt = Debt { connections, ..debt(DebtStage::Dormant, LATER) };
            assert!(debts.add(NOW, token(number), debt));
        }
        debts.connection_killed(&here(), 1);
        assert!(!debts.by_token.contains_key(&token(0)));
        assert_eq!(debts.by_token[&token(1)].connections, other);
    }

    /// The others are followed by a second release.
    #[test]
    fn eight_connections_are_killed_at_most() {
        let mut debts = Debts::default();
        for number in 0..3 {
            let connections = connections(4 * number..4 * number + 4);
            let debt = Debt { connections, ..debt(DebtStage::Dormant, LATER) };
            assert!(debts.add(NOW, token(number as usize), debt));
        }
        let key = Key::new(Resource::new("key").unwrap(), b"");
        let wake = |number| debts.wake(&here(), &key, token(number), true).unwrap().len();
        assert_eq!([0, 1, 2].map(wake), [4, 4, 0]);
        assert_eq!(debts.awake(), 3);
    }

    #[test]
    fn connections_beyond_the_most_are_unknown_ones() {
        let most = CONNECTIONS_MAX as i64;
        let mut all = connections(0..most);
        all.insert(id(0));
        assert!(all == connections(0..most), "it is there already");
        all.insert(id(most));
        assert!(all.known.len() == CONNECTIONS_MAX && all.has_unknown);
        let mut one = connections(0..1);
        one.extend(all);
        assert!(one.known.len() == CONNECTIONS_MAX && one.has_unknown);
        one.extend(connections(0..1));
        assert!(one.has_unknown, "it stays so");
    }

    /// R29: two SETs may be on their way if two connections may each bring one.
    #[test]
    fn one_set_is_all_that_may_arrive_if_both_say_so_of_the_same_connections() {
        let (none, some, other) = (connections(0..0), connections(0..1), connections(1..2));
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
    fn slow_debts_beyond_the_most_are_not_kept_unless_others_are_over() {
        let mut debts = Debts::default();
        // Each tenth lock was given up: its release has to follow, whatever the time.
        let (awake, dormant) = (debt(DebtStage::Awake, SOON), debt(DebtStage::Dormant, SOON));
        let one = |number| if number % 10 == 0 { awake.clone() } else { dormant.clone() };
        debts.by_token = (0..DEBTS_KEPT_MAX).map(|number| (token(number), one(number))).collect();
        debts.note_all();
        assert!(!debts.add(NOW, token(DEBTS_KEPT_MAX), debt(DebtStage::Awake, LATER)));
        assert!(debts.add(NOW, token(0), debt(DebtStage::Awake, LATER)), "it is no other debt");
        let adopted = Debt { other_clients: connections(0..1), ..debt(DebtStage::Dormant, SOON) };
        assert!(debts.add(NOW, token(DEBTS_KEPT_MAX), adopted));
        assert_eq!(debts.by_token.len(), DEBTS_KEPT_MAX + 1);
        let awake = debts.awake();
        assert_eq!(awake, DEBTS_KEPT_MAX.div_ceil(10));
        assert!(debts.add(LATER, token(DEBTS_KEPT_MAX + 1), debt(DebtStage::Dormant, LATER)));
        assert_eq!((debts.by_token.len(), debts.awake()), (awake + 1, awake));
    }

    #[cfg(feature = "testing")]
    #[test]
    fn debts_whose_parts_do_not_agree_are_found() {
        let at = |millis: u64| Moment::from_nanos(millis * 1_000_000);
        let claim = Claim {
            key: Key::new(Resource::new("key").unwrap(), b""),
            token: LockToken::from_random([1; 20]),
            ttl: Ttl::new(Duration::from_secs(1)).unwrap(),
        };
        let owing = |debt: Debt| {
            let mut debts = Debts::default();
            debts.add_checked(at(1), claim.token, debt);
            debts
        };
        assert_eq!(owing(Debt::of_release(at(1), &claim, None)).broken(), None);
        let changed = |change: fn(&mut Debts)| {
            let mut debts = owing(Debt::dormant(at(1), &claim, None));
            assert_eq!(debts.broken(), None);
            change(&mut debts);
            debts.broken()
        };
        assert_eq!(changed(|debts| debts.awake = 1), Some("awake debts are miscounted"));
        assert_eq!(changed(|debts| debts.due = None), Some("a debt is due before the first one"));
        let mut early = owing(Debt::dormant(at(1), &claim, None));
        early.due = Some(at(0));
        early.by_token.values_mut().for_each(|debt| debt.due = at(0));
        assert_eq!(early.broken(), Some("a debt is dropped before its key has expired"));
        let endless = changed(|debts| debts.ending = vec![0; KILLS_MAX + 1]);
        assert_eq!(endless, Some("too many connections are ended"));
        let mut again = owing(Debt::of_release(at(1), &claim, None));
        again.by_token.values_mut().for_each(|debt| debt.stage = DebtStage::Again);
        assert_eq!(again.broken(), Some("a release is repeated for no connection"));
    }
}
