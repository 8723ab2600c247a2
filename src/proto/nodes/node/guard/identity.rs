//! Identity of a server: whether it may vote at all, and from when on (R32 to R35).

use std::sync::Arc;
use std::time::Duration;

use super::Guard;
use super::sighting::Sightings;
use crate::config::{NodeConfig, Notices, RestartGuard};
use crate::moment::Moment;
use crate::outcome::{CountedFrom, Quarantine, QuarantineCause, ServerCommand, Unfit};
use crate::proto::command::{History, ReleaseWith, Replication, ServerInfo};

/// A server tells its age in whole seconds; so much is left for clocks that differ.
const MOVED_SLACK: Duration = Duration::from_secs(1);

/// A server process that this client was connected to, with the history of its data.
#[derive(Debug)]
struct Seen {
    run_id: Arc<str>,
    history: Option<History>,
    /// When it last answered on a connection with a complete handshake.
    last: Moment,
}

/// Which process a connection has reached, compared with the one before.
pub(crate) enum Process {
    /// The server does not say.
    Unknown,
    Same,
    Other(Arc<str>),
}

/// What is found out about a server when its handshake is complete.
pub(crate) struct Identified {
    /// The process that has left this address.
    pub(crate) left: Option<Arc<str>>,
    pub(crate) process: Process,
    /// Whether it ran already when the process before it was last heard at this address. Asked once
    /// a node, for the operator.
    pub(crate) is_moved: bool,
    /// Why and until when its votes must not count, if it may have forgotten a lock.
    pub(crate) quarantine: Option<(QuarantineCause, Moment)>,
    /// Whether the server is to store that this client has seen it.
    pub(crate) is_news: bool,
    /// Until when its votes must not count, if its database was flushed.
    pub(crate) flushed_until: Option<Moment>,
}

/// The process at a node's address, on this connection and on earlier ones.
#[derive(Default)]
pub(crate) struct Identity {
    /// What the server reported about itself on this connection.
    pub(crate) server: ServerInfo,
    /// `CLIENT ID` of this connection, or of the last one.
    pub(crate) client_id: Option<i64>,
    pub(crate) runs_no_scripts: bool,
    /// A command that every lock needs, and that the server lacks or forbids.
    pub(crate) missing: Option<ServerCommand>,
    /// The node that is the same server.
    pub(crate) duplicate_of: Option<usize>,
    /// The server process of the last connection.
    seen: Option<Seen>,
    /// If Sentinels name the server: for how long it has been the master at a moment, if they know.
    elected: Option<Option<(Duration, Moment)>>,
    /// Until when the node's votes do not count, and why.
    quarantine: Option<(Moment, QuarantineCause)>,
    /// How many keys the server had evicted when it was last asked.
    evicted: Option<u64>,
    /// Whether it was reported that a running server was moved to this address.
    was_moved: bool,
}

impl Identity {
    /// A new connection is established: the server behind it is not known yet.
    pub(crate) fn reconnect(&mut self) {
        self.client_id = None;
        self.server = ServerInfo::default();
        self.runs_no_scripts = false;
        self.missing = None;
        self.duplicate_of = None;
    }

    /// The connection ends: records when the known process last answered. If the server did not
    /// report its run_id, it may have been that process.
    pub(crate) fn note_last_reply(&mut self, last_reply_at: Moment) {
        if let Some(seen) = &mut self.seen {
            if self.server.run_id.as_ref().is_none_or(|run_id| seen.run_id == *run_id) {
                seen.last = seen.last.max(last_reply_at);
            }
        }
    }

    /// Compares the process with the previous one, and finds out whether it may have forgotten a
    /// lock.
    pub(crate) fn identify(
        &mut self,
        now: Moment,
        config: &NodeConfig,
        quarantine: Duration,
        sightings: &Sightings,
    ) -> Identified {
        let before = self.seen.take();
        let server = &self.server;
        let has_left = |seen: &&Seen| server.run_id.as_ref() != Some(&seen.run_id);
        let left = before.as_ref().filter(has_left).map(|seen| Arc::clone(&seen.run_id));
        let quarantine = |(cause, age): (QuarantineCause, Duration)| {
            // Whatever the server says of itself, another one may have been the master meanwhile.
            let (cause, age) = match self.elected.map(|elected| elected_age(now, elected)) {
                Some(elected) if elected < age => (QuarantineCause::Promoted, elected),
                _ => (cause, age),
            };
            let rest = quarantine.saturating_sub(age);
            (!rest.is_zero()).then(|| (cause, now.after(rest)))
        };
        // Without a run_id, each connection may reach another process.
        let (Some(run_id), Some(_)) = (&server.run_id, server.replication.master) else {
            let quarantine = quarantine((QuarantineCause::Unidentified, Duration::ZERO));
            return Identified {
                left,
                process: Process::Unknown,
                is_moved: false,
                quarantine,
                is_news: false,
                flushed_until: None,
            };
        };
        let is_same_process = before.as_ref().is_some_and(|seen| seen.run_id == *run_id);
        let is_same_data = is_same_process
            && before
                .as_ref()
                .is_some_and(|seen| !server.replication.is_of_another_past(seen.history));
        let process = match is_same_process {
            true => Process::Same,
            false => Process::Other(Arc::clone(run_id)),
        };
        let quarantine = quarantine(match is_same_data {
            true => (QuarantineCause::Restarted, Duration::MAX),
            false => age(now, config, self, before.as_ref(), sightings),
        });
        // Sentinels name other servers, as they should.
        let is_older = |seen: &Seen| {
            let away = now.steadily_since(seen.last).saturating_add(MOVED_SLACK);
            self.elected.is_none() && server.uptime.is_some_and(|uptime| uptime > away)
        };
        let is_moved = !is_same_process && !self.was_moved && before.as_ref().is_some_and(is_older);
        let (run_id, history) = (Arc::clone(run_id), server.replication.history);
        self.was_moved |= is_moved;
        self.seen = Some(Seen { run_id, history, last: now });
        let (is_news, flushed_until) = (false, None);
        Identified { left, process, is_moved, quarantine, is_news, flushed_until }
    }

    /// The server's role was checked again. Since its handshake, it may have become a replica, and
    /// have been promoted again, without ending our connection.
    pub(crate) fn note_role(&mut self, reported: Replication) -> Option<Unfit> {
        let known = self.server.replication;
        match reported {
            reported if reported.master == Some(false) => Some(Unfit::Replica),
            reported if reported.is_of_another_past(known.history) => Some(Unfit::Changed),
            reported => {
                self.server.replication = reported;
                if let Some(seen) = &mut self.seen {
                    seen.history = reported.history;
                }
                None
            }
        }
    }
}

/// For how long the process has certainly known its data, and the cause of a quarantine if that is
/// too short.
fn age(
    now: Moment,
    config: &NodeConfig,
    identity: &Identity,
    before: Option<&Seen>,
    sightings: &Sightings,
) -> (QuarantineCause, Duration) {
    let server = &identity.server;
    let own_observation = config.restart_guard == RestartGuard::OwnObservation;
    let age = match own_observation {
        true => Duration::ZERO,
        false => {
            let uptime = server.uptime.unwrap_or_default();
            // The wall clock behind its uptime may have jumped. But the process started after its
            // predecessor last answered.
            before.map_or(uptime, |seen| uptime.min(now.steadily_since(seen.last)))
        }
    };
    if before.is_some_and(|seen| Some(&seen.run_id) == server.run_id.as_ref()) {
        // The history of its data has changed since it was last seen.
        return (QuarantineCause::Promoted, Duration::ZERO);
    }
    if server.replication.promoted == Some(true) {
        // When it was promoted, only Sentinels know; the caller asks them. Or another client saw
        // it as a master earlier than this one, which then has no earlier master to remember.
        let age = match (identity.elected, before, own_observation) {
            (Some(_), _, _) => age,
            (None, None, false) => first_seen(server, sightings),
            (None, _, _) => Duration::ZERO,
        };
        return (QuarantineCause::Promoted, age);
    }
    (QuarantineCause::Restarted, age)
}

/// For how long a promoted server has certainly been the master that it is.
fn first_seen(server: &ServerInfo, sightings: &Sightings) -> Duration {
    let (Some(run_id), Some(history)) = (&server.run_id, server.replication.history) else {
        return Duration::ZERO;
    };
    let age = sightings.age(run_id, history).unwrap_or_default();
    // Whatever its clock did since then.
    age.min(server.uptime.unwrap_or_default())
}

fn elected_age(now: Moment, elected: Option<(Duration, Moment)>) -> Duration {
    elected.map_or(Duration::ZERO, |(age, at)| age.saturating_add(now.steadily_since(at)))
}

impl Guard {
    /// Sentinels say where the node is, and maybe for how long its server has been the master.
    pub(crate) fn elected(&mut self, master_for: Option<(Duration, Moment)>) {
        self.identity.elected = Some(master_for);
    }

    /// Whether the server has evicted keys since it was last asked.
    pub(crate) fn has_evicted(&mut self) -> bool {
        let evicted = self.identity.server.evicted;
        let before = std::mem::replace(&mut self.identity.evicted, evicted);
        // `CONFIG RESETSTAT` makes it count from zero again.
        let has_risen = |(now, before)| now > before || (now < before && now > 0);
        self.is_guarded && evicted.zip(before).is_some_and(has_risen)
    }

    /// The server's process, and the `CLIENT ID` of the present connection or of the last one.
    pub(crate) fn connection(&self) -> (Option<Arc<str>>, Option<i64>) {
        (self.identity.server.run_id.clone(), self.identity.client_id)
    }

    pub(crate) fn run_id(&self) -> Option<&Arc<str>> {
        self.identity.server.run_id.as_ref()
    }

    /// Whether the process of the last complete handshake was this one.
    pub(crate) fn has_seen(&self, run_id: &str) -> bool {
        self.identity.seen.as_ref().is_some_and(|seen| *seen.run_id == *run_id)
    }

    /// The native release command to try.
    pub(crate) fn native_release(&self) -> ReleaseWith {
        self.identity.server.native_release()
    }

    /// The node that is the same server, if one is.
    pub(crate) fn duplicate_of(&self) -> Option<usize> {
        self.identity.duplicate_of
    }

    pub(crate) fn set_duplicate(&mut self, of: Option<usize>) {
        self.identity.duplicate_of = of;
    }

    /// Why the server must not vote, if so.
    pub(crate) fn unfit(&self) -> Option<Unfit> {
        let server = &self.identity.server;
        let evicts =
            server.memory_max.is_some_and(|max| max > 0) && server.evicts_nothing == Some(false);
        if server.standalone == Some(false) {
            Some(Unfit::Cluster)
        } else if server.loading == Some(true) {
            Some(Unfit::Loading)
        } else if server.replication.master == Some(false) {
            Some(Unfit::Replica)
        } else if self.identity.duplicate_of.is_some() {
            Some(Unfit::Duplicate)
        } else if evicts {
            Some(Unfit::Evicts)
        } else if !self.is_told() && self.needs_notices() {
            Some(Unfit::NoNotices)
        } else if self.identity.runs_no_scripts {
            Some(Unfit::NoScripts)
        } else {
            self.identity.missing.map(Unfit::MissingCommand)
        }
    }

    /// Whether a quarantine may follow from the time that has passed since the server, or its data,
    /// is what it is.
    pub(crate) fn may_be_young(&self) -> bool {
        let server = &self.identity.server;
        let is_young = server.uptime.is_none_or(|uptime| uptime < self.config.quarantine);
        let is_promoted = server.replication.promoted == Some(true);
        self.is_distrusted() && (is_young || is_promoted || self.config.notices_flushes())
    }

    /// Whether a server that tells of no flush must not vote.
    fn needs_notices(&self) -> bool {
        self.is_guarded && self.settings().notices == Notices::Required
    }

    /// Whether an answer that is read now does not count.
    pub(crate) fn is_quarantined(&self, now: Moment) -> bool {
        self.is_in_doubt() || self.is_sent_in_vain(now)
    }

    /// Whether the answer to what is sent now does not count. While it is only in doubt what was
    /// flushed, the answer follows that about the marker.
    pub(crate) fn is_sent_in_vain(&self, now: Moment) -> bool {
        // A jump of this machine's wall clock must not shorten the quarantine.
        let is_over = |until: Moment| now.is_certainly_past(until);
        self.identity.quarantine.is_some_and(|(until, _)| !is_over(until))
    }

    pub(crate) fn quarantined_until(&self) -> Option<Moment> {
        self.identity.quarantine.map(|(until, _)| until)
    }

    /// Whether this client asks the server when clients first saw it as a master, and tells it.
    pub(crate) fn asks_for_sighting(&self) -> bool {
        let is_trusting = self.settings().restart_guard == RestartGuard::Uptime;
        is_trusting && self.identity.elected.is_none()
    }

    pub(crate) fn counted_from(&self, cause: QuarantineCause) -> CountedFrom {
        let server = &self.identity.server;
        let trusts_itself = self.settings().restart_guard == RestartGuard::OwnObservation;
        let is_shared = match cause {
            QuarantineCause::Unidentified => false,
            QuarantineCause::Promoted => {
                let is_kept = match (&server.run_id, server.replication.history) {
                    (Some(run_id), Some(history)) => self.sightings.is_kept(run_id, history),
                    _ => false,
                };
                is_kept || matches!(self.identity.elected, Some(Some(_)))
            }
            QuarantineCause::Restarted => true,
            // A client that connects later knows nothing of it, or reads the marker.
            QuarantineCause::ClockStepped
            | QuarantineCause::Flushed
            | QuarantineCause::Evicted
            | QuarantineCause::Moved => return CountedFrom::Event,
        };
        match is_shared && !trusts_itself {
            true => CountedFrom::Event,
            false => CountedFrom::FirstContact { lasts: self.config.quarantine },
        }
    }

    /// What keeps a sighting from later clients, if the quarantine counts from one.
    pub(crate) fn sighting_refusal(&self) -> Option<Arc<str>> {
        let (_, cause) = self.identity.quarantine?;
        let is_due = cause == QuarantineCause::Promoted && self.asks_for_sighting();
        let refusal = self.sightings.refusal()?;
        is_due.then(|| Arc::clone(refusal))
    }

    /// Why the node's votes do not count at `now`, and for how much longer.
    pub(crate) fn quarantine_at(&self, now: Moment) -> Option<Quarantine> {
        let (until, cause) = match (self.identity.quarantine, self.is_in_doubt()) {
            (Some(known), _) if !now.is_certainly_past(known.0) => known,
            // It says soon what was flushed.
            (_, true) => (now.after(self.config.node_timeout), QuarantineCause::Flushed),
            (known, false) => known?,
        };
        let ready_in = until.steadily_since(now);
        (!ready_in.is_zero()).then(|| Quarantine::new(cause, ready_in, self.counted_from(cause)))
    }

    /// Stops counting the node's votes until then, if it is guarded. Returns whether they counted
    /// sooner before.
    pub(crate) fn quarantine(&mut self, cause: QuarantineCause, until: Moment) -> bool {
        let is_longer = |(before, _): (Moment, _)| until.steady_nanos() > before.steady_nanos();
        let is_due = self.is_guarded || cause == QuarantineCause::Flushed;
        let is_news = is_due && self.identity.quarantine.is_none_or(is_longer);
        if is_news {
            self.identity.quarantine = Some((until, cause));
        }
        is_news
    }
}
