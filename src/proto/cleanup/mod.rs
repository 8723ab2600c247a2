//! What lost commands may have left on the nodes, and when it is released (R12, R29).
//!
//! [`Cleanup`] owns the debts of all nodes. The engine tells it of a lost command, that a lock
//! is given up or that a node can be sent something again. It says what to send there, whether the
//! node's copy of a lock counts meanwhile, and what another engine must know of it.

mod debts;

use std::sync::Arc;
use std::time::Duration;

use crate::proto::index::RoundId;
use debts::{AGAIN_AFTER, Debt, Here};
pub(super) use debts::{Debts, Due, Kills};

use super::command::Reply;
use super::doubt::Doubt;
use super::kind::{Claim, Left, RoundKind};
use super::lease::Lease;
use super::nodes::{Effect, Identified, Node, Nodes, Process, State};
use crate::config::{Config, Heal};
use crate::moment::Moment;
use crate::outcome::QuarantineCause;
use crate::quorum::NodeSet;
use crate::resource::Key;
use crate::token::LockToken;
use crate::validity::Ttl;

/// What is owed to the nodes.
pub(crate) struct Cleanup {
    config: Arc<Config>,
    /// By node.
    debts: Vec<Debts>,
    /// The nodes that may have debts.
    nodes_with_debts: NodeSet,
    /// The nodes at which something may be due.
    scheduled: NodeSet,
}

impl Cleanup {
    pub(super) fn new(config: Arc<Config>) -> Cleanup {
        let debts = (0..config.nodes()).map(|_| Debts::default()).collect();
        Cleanup { config, debts, nodes_with_debts: NodeSet::EMPTY, scheduled: NodeSet::EMPTY }
    }

    fn here(&self, now: Moment, at: &Node) -> Here {
        let round_trip = at.pipeline.latency().unwrap_or_default();
        let (process, connection) = at.guard.connection();
        Here {
            now,
            doubted_for: self.config.quarantine,
            answered_at: now.after(round_trip).after(AGAIN_AFTER),
            process,
            connection,
        }
    }

    fn note_due(&mut self, nodes: &mut Nodes, node: usize) {
        let due = self.debts[node].due();
        nodes.note_due(due);
        match due.is_some() {
            true => self.scheduled.insert(node),
            false => self.scheduled.remove(node),
        }
    }
}

/// New debts.
impl Cleanup {
    /// A command was lost with its connection, or its answer makes no sense: it has left this.
    pub(super) fn add_lost(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        node: usize,
        (claim, expires, left): (&Claim, Option<Moment>, Left),
    ) {
        let debt = match left {
            Left::Nothing => return,
            Left::Key => self.debt_of_set(now, &nodes[node], claim, expires),
            Left::Release => Debt::of_release(now, claim, expires),
        };
        self.add(now, nodes, node, claim.token, debt);
    }

    /// A node refused a release temporarily.
    pub(super) fn add_refused(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        node: usize,
        (claim, expires): (&Claim, Option<Moment>),
    ) {
        if let Some(debt) = Debt::of_refused(now, claim, expires) {
            self.add(now, nodes, node, claim.token, debt);
        }
    }

    /// A lease arrives from another engine, with that engine's doubts.
    #[cold]
    pub(super) fn take_doubts(&mut self, now: Moment, nodes: &mut Nodes, lease: &Lease) {
        let count = nodes.len();
        for doubt in lease.doubts.iter().filter(|doubt| doubt.node < count) {
            let claim = Claim { ttl: lease.longest, ..lease.claim.clone() };
            // As long as a command may arrive, its copy may be new.
            let end =
                if doubt.connections.is_empty() { now.after(doubt.uncounted) } else { Moment::END };
            let mut debt = Debt::dormant(now, &claim, None);
            debt.other_clients = doubt.connections.clone();
            // Extensions set keys if they heal.
            debt.is_one_set = doubt.is_one_set && self.config.heal == Heal::Off;
            debt.uncounted_until = (!doubt.uncounted.is_zero()).then_some(end);
            self.add(now, nodes, doubt.node, claim.token, debt);
        }
    }

    fn add(&mut self, now: Moment, nodes: &mut Nodes, node: usize, token: LockToken, debt: Debt) {
        if token == LockToken::NONE {
            // Another make's lock with a caller's value: the next one has nothing else (K13).
            return;
        }
        self.nodes_with_debts.insert(node);
        if !self.debts[node].add_checked(now, token, debt) {
            // It is no longer known which copies do not count.
            nodes.quarantine_anew(now, node, QuarantineCause::Flushed);
        }
        self.note_due(nodes, node);
    }

    /// A command that may set the key was lost with this connection, or its answer makes no sense.
    fn debt_of_set(&self, now: Moment, at: &Node, claim: &Claim, expires: Option<Moment>) -> Debt {
        let mut debt = Debt::dormant(now, claim, expires);
        debt.connections = self.here(now, at).connections();
        debt.is_one_set = self.config.heal == Heal::Off;
        // It may run while the node is in quarantine, and this client would not notice.
        debt.unseen_until = at.guard.is_distrusted().then_some(Moment::END);
        debt
    }
}

#[cfg(feature = "testing")]
impl Cleanup {
    /// A broken invariant of the debts.
    pub(super) fn broken(&self) -> Option<&'static str> {
        let is_known = |(node, debts): &(usize, &Debts)| {
            !debts.has_any() || self.nodes_with_debts.contains(*node)
        };
        let is_lost = !self.debts.iter().enumerate().all(|debt| is_known(&debt));
        let broken = self.debts.iter().find_map(Debts::broken);
        broken.or(is_lost.then_some("a node owes, and is not known to"))
    }
}

/// Events of a lock.
impl Cleanup {
    /// The lock is given up, and its release is about to be sent to those of these nodes that can
    /// take it. What lost commands might have left there is also released.
    #[cold]
    pub(super) fn wake(
        &mut self,
        now: Moment,
        nodes: &mut Nodes,
        sent: NodeSet,
        (key, token): (&Key, LockToken),
    ) {
        for node in sent.and(self.nodes_with_debts).iter() {
            if !self.debts[node].has_any() {
                self.nodes_with_debts.remove(node);
            }
            let here = self.here(now, &nodes[node]);
            let is_to_follow = nodes[node].takes_what_follows();
            if let Some(kills) = self.debts[node].wake(&here, key, token, is_to_follow) {
                nodes.kill(node, kills);
                self.note_due(nodes, node);
            }
        }
    }

    /// The lock was extended: debts that wait for its end are kept as long.
    #[inline]
    pub(super) fn keep(&mut self, now: Moment, token: LockToken, ttl: Ttl) {
        for node in self.nodes_with_debts.iter() {
            self.debts[node].keep(now, token, ttl);
        }
    }

    /// The node reported that it has the key of this lock.
    pub(super) fn observe(&mut self, now: Moment, node: usize, token: LockToken) {
        self.debts[node].observe(token, now.after(self.config.quarantine));
    }
}

/// What has happened to a node.
impl Cleanup {
    /// A new connection: nothing was asked for on it yet.
    pub(super) fn reconnect(&mut self, node: usize) {
        self.debts[node].reconnect();
    }

    /// The node is ready, and this was found out about its server. Returns the old connections to
    /// kill.
    pub(super) fn node_ready(&mut self, now: Moment, at: &Node, found: &Identified) -> Kills {
        match &found.process {
            Process::Unknown => return Kills::new(),
            Process::Same => {}
            Process::Other(process) => {
                let until = now.after(self.config.quarantine);
                self.debts[at.index].other_processes_gone(process, until, found.left.is_some());
            }
        }
        // The last connection might not have been told its process.
        let here = self.here(now, at);
        self.debts[at.index].kill_old_connections(&here)
    }

    /// The reply to the `CLIENT KILL` of an old connection.
    pub(super) fn handle_killed(
        &mut self,
        now: Moment,
        at: &mut Node,
        connection: i64,
        reply: Reply,
    ) -> Effect {
        let here = self.here(now, at);
        let debts = &mut self.debts[at.index];
        match reply {
            // 0: the connection had already ended.
            Reply::Integer(_) => {
                debts.connection_killed(&here, connection);
                Effect::Killed
            }
            // The releases will be repeated instead.
            Reply::Error(error) => {
                debts.kill_refused(connection);
                at.keep_error(error);
                Effect::Nothing
            }
            _ => Effect::UNEXPECTED,
        }
    }

    /// Takes the next step of at most `share` debts that are due. Returns the releases to send.
    pub(super) fn take_due(&mut self, now: Moment, at: &Node, share: usize) -> Vec<Due> {
        let here = self.here(now, at);
        self.debts[at.index].take_due(&here, share)
    }

    /// All that was due was sent. Returns whether the commands that waited for it can follow.
    pub(super) fn finish(&mut self, now: Moment, nodes: &mut Nodes, node: usize) -> bool {
        self.note_due(nodes, node);
        let is_done = self.debts[node].has_sent_all(now) && nodes[node].link.take_settling();
        if is_done {
            nodes.note_open(node);
        }
        is_done
    }
}

/// The state of debts.
impl Cleanup {
    /// The debts of this node.
    #[inline]
    pub(super) fn debts_of(&self, node: usize) -> &Debts {
        &self.debts[node]
    }

    /// Whether any node has debts.
    #[inline]
    pub(super) fn has_debts(&self) -> bool {
        !self.nodes_with_debts.is_empty()
    }

    /// The nodes that may have debts.
    #[inline(always)]
    pub(super) fn nodes_with_debts(&self) -> NodeSet {
        self.nodes_with_debts
    }

    /// Those of these nodes that a command of this kind may be sent to. One with too many debts
    /// gets no new SET.
    #[inline(always)]
    pub(super) fn allowed(&self, nodes: NodeSet, kind: RoundKind) -> NodeSet {
        match self.has_debts() && kind.is_acquisition() {
            true => self.without_full(nodes),
            false => nodes,
        }
    }

    #[cold]
    fn without_full(&self, mut nodes: NodeSet) -> NodeSet {
        let full = self.nodes_with_debts.iter().filter(|node| self.debts[*node].is_full());
        full.for_each(|node| nodes.remove(node));
        nodes
    }

    /// When the first is due at a node that is ready.
    #[inline]
    pub(super) fn first_due(&self, nodes: &Nodes) -> Option<Moment> {
        let ready = self.scheduled.iter().filter(|node| nodes[*node].state() == State::Ready);
        ready.filter_map(|node| self.debts[node].due()).min()
    }

    /// What is known here of a lock's copy on this node, and an engine that adopts the lease cannot
    /// know. `may_set` says of a round whether its command may set the key.
    pub(super) fn doubt(
        &self,
        now: Moment,
        at: &Node,
        token: LockToken,
        may_set: impl Fn(RoundId) -> bool,
    ) -> Option<Doubt> {
        let is_open = at.pipeline.rounds().any(may_set);
        let connections =
            if is_open { self.here(now, at).connections() } else { Default::default() };
        let (is_one_set, uncounted) = (self.config.heal == Heal::Off, Duration::ZERO);
        let mut doubt = Doubt { node: at.index, connections, is_one_set, uncounted };
        self.debts[at.index].add_doubt(now, token, &mut doubt);
        // The copy may date from a time when this node was not trusted, and only this engine can
        // find that out.
        let is_open = !doubt.connections.is_empty() && at.guard.is_distrusted();
        if is_open || at.guard.may_be_flushed() {
            doubt.uncounted = doubt.uncounted.max(self.config.quarantine);
        }
        let quarantine = at.guard.quarantine_at(now).map(|quarantine| quarantine.ready_in);
        doubt.uncounted = doubt.uncounted.max(quarantine.unwrap_or_default());
        doubt.is_known().then_some(doubt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Builder;
    use crate::proto::command::Shape;
    use crate::proto::doubt::ConnectionIds;
    use crate::proto::request::Request;
    use crate::resource::Resource;

    const NOW: Moment = Moment::from_nanos(1_000_000_000);

    fn scene(builder: Builder) -> (Cleanup, Nodes) {
        let config = Arc::new(builder.config().unwrap());
        (Cleanup::new(Arc::clone(&config)), Nodes::new(config))
    }

    fn one_node() -> Builder {
        Builder::default().node("redis://127.0.0.1:1")
    }

    fn token(number: u32) -> LockToken {
        let mut random = [7; 20];
        random[..4].copy_from_slice(&number.to_be_bytes());
        LockToken::from_random(random)
    }

    fn claim(number: u32) -> Claim {
        let (key, ttl) = (Key::new(Resource::new("key").unwrap(), b""), Duration::from_secs(1));
        Claim { key, token: token(number), ttl: Ttl::new(ttl).unwrap() }
    }

    /// R29: with `flush_marker`, a flush counts without a guard, and a lost SET may come after it.
    #[test]
    fn lost_set_is_in_doubt_without_a_guard_if_there_is_a_flush_marker() {
        use crate::config::RestartGuard::{Off, Uptime};
        let marked = || one_node().flush_marker("marker");
        let table = [
            (one_node().restart_guard(Off), false),
            (one_node().restart_guard(Uptime), true),
            (marked().restart_guard(Off), true),
            (marked().restart_guard(Uptime), true),
        ];
        for (nth, (builder, is_doubted)) in table.into_iter().enumerate() {
            let (mut cleanup, mut nodes) = scene(builder);
            cleanup.add_lost(NOW, &mut nodes, 0, (&claim(0), None, Left::Key));
            assert_eq!(
                cleanup.debts_of(0).is_doubted(NOW, token(0), RoundKind::Extend),
                is_doubted,
                "{nth}"
            );
        }
    }

    #[test]
    fn lost_set_is_in_doubt_before_its_loss_is_handled() {
        let (cleanup, mut nodes) = scene(one_node());
        let doubt =
            |nodes: &Nodes| cleanup.doubt(NOW, &nodes[0], token(0), |round| round == RoundId(7));
        assert!(doubt(&nodes).is_none());
        nodes[0].pipeline.sent(Request::Round(RoundId(7), Shape::Vote), NOW);
        assert!(doubt(&nodes).is_some());
        nodes[0].pipeline.lose(Vec::new());
        assert!(doubt(&nodes).is_some_and(|doubt| !doubt.connections.is_empty()));
    }

    /// R29: a SET that was lost behind a flush may have run before the process was restarted, which
    /// keeps the key.
    #[test]
    fn copy_of_a_process_that_is_gone_does_not_count_for_a_quarantine() {
        use crate::config::RestartGuard::Off;
        let (mut cleanup, mut nodes) = scene(one_node().flush_marker("marker").restart_guard(Off));
        cleanup.add_lost(NOW, &mut nodes, 0, (&claim(0), None, Left::Key));
        let (left, process) = (Some("one".into()), Process::Other("two".into()));
        let (is_moved, quarantine, is_news) = (false, None, false);
        let found =
            Identified { left, process, is_moved, quarantine, is_news, flushed_until: None };
        cleanup.node_ready(NOW, &nodes[0], &found);
        let over = NOW.after(cleanup.config.quarantine);
        for (now, is_doubted) in [(NOW, true), (over, false)] {
            assert_eq!(
                cleanup.debts_of(0).is_doubted(now, token(0), RoundKind::Extend),
                is_doubted
            );
        }
    }

    /// R29: a node that owes too much forgets which copies are in doubt: none counts then.
    #[test]
    fn slow_node_with_a_doubt_that_finds_no_room_is_in_quarantine() {
        use crate::config::RestartGuard::{Off, Uptime};
        for (guard, is_doubted) in [(Off, false), (Uptime, true)] {
            let (mut cleanup, mut nodes) = scene(one_node().restart_guard(guard));
            for number in 0..debts::DEBTS_KEPT_MAX as u32 {
                cleanup.add_lost(NOW, &mut nodes, 0, (&claim(number), None, Left::Release));
            }
            cleanup.add_lost(NOW, &mut nodes, 0, (&claim(u32::MAX), None, Left::Release));
            assert!(!nodes[0].guard.is_quarantined(NOW));
            cleanup.add_lost(NOW, &mut nodes, 0, (&claim(u32::MAX), None, Left::Key));
            assert_eq!(nodes[0].guard.is_quarantined(NOW), is_doubted, "{guard:?}");
        }
    }

    /// A command that may still arrive may have had an earlier TTL.
    #[test]
    fn adopted_debt_lasts_as_long_as_the_longest_ttl() {
        let (mut cleanup, mut nodes) = scene(one_node());
        let connections = ConnectionIds { has_unknown: true, ..Default::default() };
        let doubt = Doubt { node: 0, connections, is_one_set: true, uncounted: Duration::ZERO };
        let Claim { key, token, ttl } = claim(0);
        let longest = Ttl::new(20 * ttl.as_duration()).unwrap();
        let lease = Lease::elsewhere(key.resource().clone(), token, ttl, NOW);
        let lease = lease.with_past(longest, NodeSet::EMPTY, vec![doubt]);
        cleanup.take_doubts(NOW, &mut nodes, &lease);
        assert!(cleanup.debts_of(0).due() >= Some(NOW.after(longest.as_duration())));
    }

    /// What a lease brings from another engine must not be forgotten, however much is owed: the
    /// node's copy does not count although no connection is named.
    #[test]
    fn slow_adopted_doubt_without_connections_is_kept_by_a_node_that_owes_the_most() {
        let (mut cleanup, mut nodes) = scene(one_node());
        for number in 0..debts::DEBTS_KEPT_MAX as u32 {
            cleanup.add_lost(NOW, &mut nodes, 0, (&claim(number), None, Left::Release));
        }
        assert!(cleanup.debts_of(0).is_full() && nodes[0].guard.quarantine_at(NOW).is_none());
        let uncounted = Duration::from_secs(30);
        let doubt = Doubt { node: 0, connections: Default::default(), is_one_set: true, uncounted };
        let adopted = claim(u32::MAX);
        let (resource, ttl) = (Resource::new("key").unwrap(), adopted.ttl);
        let lease = Lease::elsewhere(resource, adopted.token, ttl, NOW.after(ttl.as_duration()));
        let lease = lease.with_past(ttl, NodeSet::one(0), vec![doubt]);
        cleanup.take_doubts(NOW, &mut nodes, &lease);
        // Either it is kept, or the node is in quarantine.
        let is_doubted = cleanup.debts_of(0).is_doubted(NOW, adopted.token, RoundKind::Extend);
        assert!(is_doubted || nodes[0].guard.is_quarantined(NOW), "its copy counts");
    }
}
