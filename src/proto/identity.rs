//! Identity of a server: whether it may vote at all, and from when on (R32 to R35).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::command::{History, ServerInfo};
use super::connection::is_forbidden;
use super::node::State;
use super::{Engine, NodeSet, Outgoing, ReleaseWith, Reply};
use crate::config::RestartGuard;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, ProtocolError, Quarantine, QuarantineCause, Unfit};

/// The most pending notices; further ones are dropped.
const NOTICES_MAX: usize = 64;
/// The most departed processes that are remembered by name.
const DEPARTED_MAX: usize = 64;

/// Something the operator of a node should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The node was refused.
    Unfit(Unfit),
    /// The node's votes do not count for now.
    Quarantined(QuarantineCause),
    /// The server does not report its role or its process, so the client cannot check either.
    Unidentified,
    /// The server does not report its time: jumps of its wall clock go unnoticed.
    SecretClock,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Unfit(reason) => reason.fmt(f),
            Notice::Quarantined(cause) => write!(f, "quarantined: {cause}"),
            Notice::Unidentified => {
                f.write_str("INFO is forbidden: its role and its process are not checked")
            }
            Notice::SecretClock => {
                f.write_str("TIME is forbidden: jumps of its wall clock go unnoticed")
            }
        }
    }
}

/// A server process that this client was connected to, with the history of its data.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    run_id: Arc<str>,
    history: Option<History>,
    /// When this client first saw this process with this history.
    first: Moment,
    /// When it last answered on a connection with a complete handshake.
    pub(super) last: Moment,
}

impl Seen {
    pub(super) fn is(&self, run_id: &str) -> bool {
        *self.run_id == *run_id
    }
}

/// Processes that have left a node's address. Each is kept while a vote that it gave there may
/// count, because it may reappear at another node's address.
#[derive(Debug, Default)]
pub(super) struct Departed {
    known: VecDeque<(Arc<str>, Moment)>,
    /// Until then, any process may be a departed one whose name was dropped.
    unknown_until: Option<Moment>,
}

impl Departed {
    fn note(&mut self, now: Moment, run_id: Arc<str>, until: Moment) {
        self.known.retain(|(_, until)| !now.is_certainly_past(*until));
        if self.known.len() >= DEPARTED_MAX {
            self.unknown_until = self.known.pop_front().map(|(_, until)| until);
        }
        self.known.push_back((run_id, until));
    }

    /// Until when the process must not vote at another address.
    fn until(&self, now: Moment, run_id: &str) -> Option<Moment> {
        let known = self.known.iter().rev().find(|(departed, _)| **departed == *run_id);
        let until = known.map(|(_, until)| *until).or(self.unknown_until);
        until.filter(|until| !now.is_certainly_past(*until))
    }
}

impl Engine {
    /// The handshake is complete: decides whether the server may vote.
    pub(super) fn finish_handshake(&mut self, now: Moment, node: usize) {
        if let Some(reason) = self.unfit(node) {
            self.notice(node, Notice::Unfit(reason));
            return self.fail_node(now, node, NodeOutcome::Unfit(reason));
        }
        self.stats.connected += 1;
        self.nodes[node].state = State::Ready;
        self.nodes[node].ready_at = now;
        let is_same_process = self.recognise(now, node);
        if is_same_process {
            self.end_old_connections(node);
        }
        // Debts of a lost connection are settled before any new command (R12).
        self.nodes[node].has_unsent_debts = true;
        self.settle_debts(now, node);
        // After the commands that waited.
        let native = self.nodes[node].server.native_release();
        if native != ReleaseWith::Script {
            self.outgoing.push_back(Outgoing::Probe(node, native));
        }
    }

    fn unfit(&mut self, node: usize) -> Option<Unfit> {
        self.nodes[node].duplicate_of = self.duplicate_of(node);
        let at = &self.nodes[node];
        let server = &at.server;
        let evicts =
            server.memory_max.is_some_and(|max| max > 0) && server.evicts_nothing == Some(false);
        if server.standalone == Some(false) {
            Some(Unfit::Cluster)
        } else if server.loading == Some(true) {
            Some(Unfit::Loading)
        } else if server.replication.master == Some(false) {
            Some(Unfit::Replica)
        } else if at.duplicate_of.is_some() {
            Some(Unfit::Duplicate)
        } else if evicts {
            Some(Unfit::Evicts)
        } else if at.runs_no_scripts {
            Some(Unfit::NoScripts)
        } else {
            None
        }
    }

    /// Another node with the same process. Only ready nodes are considered: a process may legally
    /// have moved here from an address that is dead (R34).
    fn duplicate_of(&self, node: usize) -> Option<usize> {
        let run_id = self.nodes[node].server.run_id.as_ref()?;
        (0..self.nodes.len()).find(|other| {
            let at = &self.nodes[*other];
            *other != node && at.state == State::Ready && at.server.run_id.as_ref() == Some(run_id)
        })
    }

    /// Compares the process with the previous one at this node, and quarantines the node if it may
    /// have forgotten a lock. Returns whether it is the same process.
    fn recognise(&mut self, now: Moment, node: usize) -> bool {
        let server = self.nodes[node].server.clone();
        let before = self.nodes[node].seen.take();
        let quarantine = self.config.quarantine;
        let left = before.as_ref().filter(|seen| server.run_id.as_ref() != Some(&seen.run_id));
        if let Some(seen) = left {
            self.departed.note(now, Arc::clone(&seen.run_id), now.after(quarantine));
        }
        // Without a run_id, each connection may reach another process.
        let (Some(run_id), Some(_)) = (server.run_id.clone(), server.replication.master) else {
            self.notice(node, Notice::Unidentified);
            if !self.config.nodes[node].durable {
                self.quarantine(node, QuarantineCause::Unidentified, now.after(quarantine));
            }
            return false;
        };
        let is_same_process = before.as_ref().is_some_and(|seen| seen.run_id == run_id);
        let is_same_data = is_same_process
            && before
                .as_ref()
                .is_some_and(|seen| !server.replication.is_of_another_past(seen.history));
        let first = match &before {
            Some(seen) if is_same_data => seen.first,
            _ => now,
        };
        if !is_same_process {
            let countable_from = now.after(quarantine);
            self.nodes[node].debts.forget_other_processes(&run_id, countable_from);
            self.wait_for_moved(now, node, &run_id);
        }
        if !is_same_data {
            let (cause, age) = self.age(now, node, &server, before.as_ref(), is_same_process);
            let left = quarantine.saturating_sub(age);
            if !left.is_zero() {
                self.quarantine(node, cause, now.after(left));
            }
        }
        let history = server.replication.history;
        self.nodes[node].seen = Some(Seen { run_id, history, first, last: now });
        is_same_process
    }

    /// Quarantines a process that was at another node's address before. It must not be counted for
    /// both nodes in one round, nor for a lock that it was counted for there; and its quarantine
    /// continues. It need not be the last process at that address.
    fn wait_for_moved(&mut self, now: Moment, node: usize, run_id: &str) {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != node);
        let known = others.filter(|(_, at)| at.seen.as_ref().is_some_and(|seen| seen.is(run_id)));
        let own = now.after(self.config.quarantine);
        let until = known
            .map(|(_, at)| at.quarantine.map_or(own, |(until, _)| until))
            .map(|until| if own.is_certainly_past(until) { own } else { until })
            .chain(self.departed.until(now, run_id))
            .max_by_key(|until| until.steady_nanos());
        if let Some(until) = until {
            self.quarantine(node, QuarantineCause::Moved, until);
        }
    }

    /// For how long the process has certainly known its data, and the cause of a quarantine if that
    /// is too short.
    fn age(
        &self,
        now: Moment,
        node: usize,
        server: &ServerInfo,
        before: Option<&Seen>,
        is_same_process: bool,
    ) -> (QuarantineCause, Duration) {
        let config = &self.config.nodes[node];
        if is_same_process || server.replication.promoted == Some(true) {
            // The history of its data has changed since it was last seen, or it was a replica.
            return (QuarantineCause::Promoted, Duration::ZERO);
        }
        let age = match (config.durable, config.restart_guard) {
            (true, _) => Duration::MAX,
            (false, RestartGuard::OwnObservation) => Duration::ZERO,
            (false, RestartGuard::Uptime | RestartGuard::Off) => {
                let uptime = server.uptime.unwrap_or_default();
                // The wall clock behind its uptime may have jumped. But the process started after
                // its predecessor last answered.
                before.map_or(uptime, |seen| uptime.min(now.steadily_since(seen.last)))
            }
        };
        (QuarantineCause::Restarted, age)
    }

    /// The reply to a repeated check of the role. Since its handshake, the server may have become a
    /// replica, and have been promoted again, without ending our connection.
    pub(super) fn handle_role(&mut self, now: Moment, node: usize, reply: Reply) {
        let known = self.nodes[node].server.replication;
        let said = match reply {
            Reply::Info(info) => Reply::Replication(info.replication),
            said => said,
        };
        let outcome = match said {
            Reply::Replication(said) if said.master == Some(false) => {
                NodeOutcome::Unfit(Unfit::Replica)
            }
            Reply::Replication(said) if said.is_of_another_past(known.history) => {
                NodeOutcome::Unfit(Unfit::Changed)
            }
            Reply::Replication(said) => {
                self.nodes[node].server.replication = said;
                if let Some(seen) = &mut self.nodes[node].seen {
                    seen.history = said.history;
                }
                return;
            }
            Reply::Error(error) => {
                let kind = error.kind;
                self.keep_error(node, error);
                // A temporary error keeps the SET from being granted, too.
                if !is_forbidden(kind) {
                    return;
                }
                NodeOutcome::Server(kind)
            }
            _ => NodeOutcome::Protocol(ProtocolError::Unexpected),
        };
        // Its next handshake will show its new state.
        self.fail_node(now, node, outcome);
    }

    /// Stops counting the node's votes until then.
    pub(super) fn quarantine(&mut self, node: usize, cause: QuarantineCause, until: Moment) {
        let guard = self.config.nodes[node].restart_guard;
        let before = self.nodes[node].quarantine;
        if guard == RestartGuard::Off
            || before.is_some_and(|(at, _)| until.steady_nanos() <= at.steady_nanos())
        {
            return;
        }
        self.notice(node, Notice::Quarantined(cause));
        self.stats.quarantines += 1;
        self.nodes[node].quarantine = Some((until, cause));
        self.maybe_quarantined.insert(node);
    }

    pub(super) fn is_quarantined(&self, now: Moment, node: usize) -> bool {
        // A jump of this machine's wall clock must not shorten the quarantine.
        let is_over = |until: Moment| now.is_certainly_past(until);
        self.nodes[node].quarantine.is_some_and(|(until, _)| !is_over(until))
    }

    /// Why the node's votes do not count at `now`, and for how much longer.
    pub(super) fn quarantine_of(&self, now: Moment, node: usize) -> Option<Quarantine> {
        let (until, cause) = self.nodes[node].quarantine?;
        let ready_in = until.steadily_since(now);
        (!ready_in.is_zero()).then(|| Quarantine::new(cause, ready_in))
    }

    pub(super) fn quarantined_of(&mut self, now: Moment, nodes: NodeSet) -> NodeSet {
        let mut quarantined = NodeSet::EMPTY;
        for node in nodes.and(self.maybe_quarantined).iter() {
            match self.is_quarantined(now, node) {
                true => quarantined.insert(node),
                false => self.maybe_quarantined.remove(node),
            }
        }
        quarantined
    }

    pub(super) fn notice(&mut self, node: usize, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back((node, notice));
        }
    }

    /// Whether there are notices for the operator of a node.
    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// The next notice for the operator of a node, with the node's index.
    pub fn poll_notice(&mut self) -> Option<(usize, Notice)> {
        self.notices.pop_front()
    }

    /// Two nodes that are the same server, if there are any: the one that was connected first, and
    /// the other one.
    pub fn duplicates(&self) -> Option<(usize, usize)> {
        let duplicate = |(node, at): (usize, &super::Node)| {
            let is_duplicate = at.last_failure == NodeOutcome::Unfit(Unfit::Duplicate);
            at.duplicate_of.filter(|_| is_duplicate).map(|first| (first, node))
        };
        self.nodes.iter().enumerate().find_map(duplicate)
    }
}
