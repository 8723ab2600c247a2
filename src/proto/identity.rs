//! Who a server is: whether it may vote at all, and from when on (R32 to R35).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::command::{History, ServerInfo};
use super::connection::is_forbidden;
use super::node::State;
use super::{Engine, NodeSet, Outgoing, ReleaseWith, Reply};
use crate::Moment;
use crate::config::RestartGuard;
use crate::error::{NodeOutcome, ProtocolError, Quarantine, QuarantineCause, Unfit};

/// Notices that nobody has taken; what is too much is left out.
const NOTICES_MAX: usize = 64;
/// So many processes that left an address are remembered by name.
const DEPARTED_MAX: usize = 64;

/// What the operators of a node should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// It was refused.
    Unfit(Unfit),
    /// Its votes do not count for now.
    Quarantined(QuarantineCause),
    /// It does not say whether it is a master, and which: that is not checked.
    Unidentified,
    /// It does not tell its time: jumps of its wall clock go unnoticed.
    SecretClock,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Unfit(reason) => reason.fmt(f),
            Notice::Quarantined(cause) => write!(f, "quarantined: {cause}"),
            Notice::Unidentified => {
                f.write_str("INFO is forbidden: whether it is a master, and which, is not checked")
            }
            Notice::SecretClock => {
                f.write_str("TIME is forbidden: jumps of its wall clock go unnoticed")
            }
        }
    }
}

/// A process that this client was connected to, with the history of its data.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    run_id: Arc<str>,
    history: Option<History>,
    /// When this client first knew of this process with this history.
    first: Moment,
    /// When it last answered on a connection whose handshake was complete.
    pub(super) last: Moment,
}

impl Seen {
    pub(super) fn is(&self, run_id: &str) -> bool {
        *self.run_id == *run_id
    }
}

/// The processes that left a node's address to another one, for as long as a vote that they gave
/// there may count: they may turn up at another node's.
#[derive(Debug, Default)]
pub(super) struct Departed {
    known: VecDeque<(Arc<str>, Moment)>,
    /// Until then, any process may be one of them.
    unknown_until: Option<Moment>,
}

impl Departed {
    fn note(&mut self, now: Moment, run_id: Arc<str>, until: Moment) {
        self.known.retain(|(_, until)| !now.has_steadily_reached(*until));
        if self.known.len() >= DEPARTED_MAX {
            self.unknown_until = self.known.pop_front().map(|(_, until)| until);
        }
        self.known.push_back((run_id, until));
    }

    /// Until when the process must not vote at another address.
    fn until(&self, now: Moment, run_id: &str) -> Option<Moment> {
        let known = self.known.iter().rev().find(|(departed, _)| **departed == *run_id);
        let until = known.map(|(_, until)| *until).or(self.unknown_until);
        until.filter(|until| !now.has_steadily_reached(*until))
    }
}

impl Engine {
    /// Everything that the server was asked on this connection has been answered: may it vote?
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
        // What a lost connection may have left comes before anything new (R12).
        self.nodes[node].is_behind = true;
        self.settle_debts(now, node);
        // Behind all that was waited for.
        let offer = self.nodes[node].offer;
        if offer != ReleaseWith::Script {
            self.outgoing.push_back(Outgoing::Probe(node, offer));
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

    /// Another node that is the same process. Only those that are connected are looked at: a
    /// process may legally have moved here from an address that is dead (R34).
    fn duplicate_of(&self, node: usize) -> Option<usize> {
        let run_id = self.nodes[node].server.run_id.as_ref()?;
        (0..self.nodes.len()).find(|other| {
            let at = &self.nodes[*other];
            *other != node && at.state == State::Ready && at.server.run_id.as_ref() == Some(run_id)
        })
    }

    /// Compares the process with the one that was there before, and puts the node into quarantine
    /// if it may have forgotten a lock. Returns whether it is the same process.
    fn recognise(&mut self, now: Moment, node: usize) -> bool {
        let server = self.nodes[node].server.clone();
        let before = self.nodes[node].seen.take();
        let quarantine = self.config.quarantine;
        let left = before.as_ref().filter(|seen| server.run_id.as_ref() != Some(&seen.run_id));
        if let Some(seen) = left {
            self.departed.note(now, Arc::clone(&seen.run_id), now.after(quarantine));
        }
        // Without its name, each connection may be to another process than the one before.
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

    /// A process that was at another node's address before must not be counted for both in one
    /// round, nor for a lock that it was counted for there; and it brings its quarantine along. It
    /// need not be the last that was there.
    fn wait_for_moved(&mut self, now: Moment, node: usize, run_id: &str) {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != node);
        let known = others.filter(|(_, at)| at.seen.as_ref().is_some_and(|seen| seen.is(run_id)));
        let own = now.after(self.config.quarantine);
        let until = known
            .map(|(_, at)| at.quarantine.map_or(own, |(until, _)| until))
            .map(|until| if own.has_steadily_reached(until) { own } else { until })
            .chain(self.departed.until(now, run_id))
            .max_by_key(|until| until.steady_nanos());
        if let Some(until) = until {
            self.quarantine(node, QuarantineCause::Moved, until);
        }
    }

    /// For how long the process has certainly known its data, and what makes that short.
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
            // Its data has another history than when it was last seen, or was a replica's.
            return (QuarantineCause::Promoted, Duration::ZERO);
        }
        let age = match (config.durable, config.restart_guard) {
            (true, _) => Duration::MAX,
            (false, RestartGuard::OwnObservation) => Duration::ZERO,
            (false, RestartGuard::Uptime | RestartGuard::Off) => {
                let uptime = server.uptime.unwrap_or_default();
                // Its clock may have jumped; it was not there when its forerunner last answered.
                before.map_or(uptime, |seen| uptime.min(now.steadily_since(seen.last)))
            }
        };
        (QuarantineCause::Restarted, age)
    }

    /// The server was asked once more whether it is a master: it may have been told to follow
    /// another one since its handshake, and have been promoted again, without an end to our
    /// connection.
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
                // What is wrong for the moment keeps the SET from being granted, too.
                if !is_forbidden(kind) {
                    return;
                }
                NodeOutcome::Server(kind)
            }
            _ => NodeOutcome::Protocol(ProtocolError::Unexpected),
        };
        // Its next handshake will tell what has become of it.
        self.fail_node(now, node, outcome);
    }

    /// Does not count what the node says until then.
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
        self.suspects.insert(node);
    }

    pub(super) fn is_quarantined(&self, now: Moment, node: usize) -> bool {
        // A jump of this machine's wall clock is no reason to wait for less.
        let is_over = |until: Moment| now.has_steadily_reached(until);
        self.nodes[node].quarantine.is_some_and(|(until, _)| !is_over(until))
    }

    /// Why the node does not vote at `now`, and how much longer.
    pub(super) fn quarantine_of(&self, now: Moment, node: usize) -> Option<Quarantine> {
        let (until, cause) = self.nodes[node].quarantine?;
        let ready_in = until.steadily_since(now);
        (!ready_in.is_zero()).then(|| Quarantine::new(cause, ready_in))
    }

    pub(super) fn quarantined_of(&mut self, now: Moment, nodes: NodeSet) -> NodeSet {
        let mut quarantined = NodeSet::EMPTY;
        for node in nodes.and(self.suspects).iter() {
            match self.is_quarantined(now, node) {
                true => quarantined.insert(node),
                false => self.suspects.remove(node),
            }
        }
        quarantined
    }

    pub(super) fn notice(&mut self, node: usize, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back((node, notice));
        }
    }

    /// Whether there is something that the operators of a node should know.
    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// The next thing that the operators of a node should know, and which node.
    pub fn poll_notice(&mut self) -> Option<(usize, Notice)> {
        self.notices.pop_front()
    }

    /// Two nodes that are one server, if that was seen: the one that was connected first, and the
    /// other.
    pub fn duplicates(&self) -> Option<(usize, usize)> {
        let duplicate = |(node, at): (usize, &super::Node)| {
            let is_duplicate = at.last_failure == NodeOutcome::Unfit(Unfit::Duplicate);
            at.duplicate_of.filter(|_| is_duplicate).map(|first| (first, node))
        };
        self.nodes.iter().enumerate().find_map(duplicate)
    }
}
