//! The problems of one master, by its answers. One cause is one finding.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use muxlock::node::NodeOutcome;
use muxlock::settings::RestartGuard;
use muxlock::unstable_tool::{CommonSettings, DRIFT_DIVISOR, MasterEndpoint, MasterSettings};

use super::ask::{COUNTERS, Marker, Obstacle, Refused, Said};
use super::finding::Severity::{Error, Note, Warning};
use super::finding::{By, Finding, Id, redis_cli, sentinel_cli};
use crate::paint::time;
use crate::wire::{Failure, RefusalKind};

/// Servers before this one no longer receive security fixes.
const VERSION_MIN: (u32, u32) = (6, 2);
/// From which part of a limit on it is warned of.
const NEARLY_FULL_PERCENT: u64 = 80;
/// A certificate that expires earlier is an error.
const CERTIFICATE_DAYS_MIN: u32 = 7;
/// A smaller buffer for answers may be full while the client is paused.
const OUTPUT_BUFFER_MIN: u64 = 1024 * 1024;
/// Servers look at the lag of their replicas once a second.
const LAG_RESOLUTION: u64 = 1;
/// A right that releases need not have.
const DELETES: [&str; 2] = ["delex", "delifeq"];
/// Those that waiting in a queue takes beside the others.
const WAITS: [&str; 10] = [
    "client|caching",
    "subscribe",
    "publish",
    "exists",
    "llen",
    "lpos",
    "lindex",
    "lrem",
    "rpush",
    "lpush",
];
/// They would leave something behind, so they are asked for, but not tried.
const UNTRIED: [&str; 2] = ["rpush", "lpush"];
/// The commands that every lock needs.
const NEEDED: [&str; 7] = ["hello", "set", "get", "eval", "pttl", "pexpire", "del"];
/// Commands that clients can do without, less safely.
const IDENTIFIES: [&str; 2] = ["info", "time"];
/// The right to notices of flushes, and to those that waiting in a queue takes.
const TRACKING: &str = "client|tracking";
/// A command that clients can do without.
const KILL: &str = "client|kill";
const WITHOUT_KILL: &str = "after a lost connection, clients send a release twice";
const WITHOUT_MARKER: &str = "clients take each flush for one of their database";
/// The commands that other kinds of lock need as well.
const KINDS: [(&str, &[&str]); 4] = [
    ("several resources or permits", &["exists"]),
    (
        "read and write locks",
        &["pexpireat", "type", "zadd", "zrange", "zrem", "zremrangebyscore", "zscore"],
    ),
    ("locks with the caller's value", &["exists", "hget", "hset", "pexpireat"]),
    ("fencing tokens", &["hget", "hset", COUNTERS]),
];
const CHANNEL_RIGHTS: [&str; 2] = ["subscribe", "publish"];
const CHANNELS: &str = "&muxlock:*";
const WAITS_SLOWER: &str = "waiting clients retry there after random delays";
/// With fewer, a waiting client can miss a change of its key.
const TRACKED_KEYS_MIN: u64 = 1_000;
/// The default of servers.
const TRACKED_KEYS: &str = "1000000";
const BACKLOG_TTL: &str = "3600";

/// Whether the locks of a new client can count on a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoteState {
    Votes,
    /// It will, after a time.
    Waits,
    /// Not before something is mended.
    Fails,
}

/// A master, and the group that it is part of.
pub struct Subject<'a> {
    pub node: usize,
    pub master: MasterSettings<'a>,
    pub common: &'a CommonSettings<'a>,
    /// The user of the locks, if it is not that of this command.
    pub lock_user: Option<&'a str>,
}

/// The findings of a master, and their effect on its vote.
pub struct Checked {
    pub findings: Vec<Finding>,
    pub vote_state: VoteState,
    /// Whether the name that was tried is outside of the keys of the locks' user.
    pub is_foreign: bool,
}

struct Findings<'a> {
    subject: &'a Subject<'a>,
    /// Who can change settings, and who rights.
    sets: By,
    grants: By,
    all: Vec<Finding>,
    vote_state: VoteState,
    is_foreign: bool,
}

/// Checks the answers of one master.
pub fn check(subject: &Subject<'_>, said: &Result<Said, Obstacle>) -> Checked {
    let (sets, grants) =
        said.as_ref().map_or((By::User, By::User), |said| (said.sets, said.grants));
    let (all, vote_state) = (Vec::new(), VoteState::Votes);
    let mut findings = Findings { subject, sets, grants, all, vote_state, is_foreign: false };
    match said {
        Err(obstacle) => findings.obstacle(obstacle),
        // A server with the wrong role is not asked for the rest.
        Ok(said) => {
            if !findings.role(said) {
                findings.tls(said);
                findings.memory(said);
                findings.age(said);
                findings.marker(said);
                findings.persistence(said);
                findings.connections(said);
                findings.rights(said);
                findings.kinds(said);
                findings.waiting(said);
                findings.clock(said);
                findings.unknown(said);
            }
        }
    }
    let Findings { all, vote_state, is_foreign, .. } = findings;
    Checked { findings: all, vote_state, is_foreign }
}

/// For how long clients have seen this very process as the master that it is.
fn first_seen(said: &Said) -> Option<Duration> {
    let mut parts = said.sighting.as_deref()?.strip_prefix('@')?.splitn(3, ':');
    let (history, micros, run_id) = (parts.next()?, parts.next()?, parts.next()?);
    let is_it = said.info("run_id") == Some(run_id)
        && said.info("master_replid").and_then(|id| id.get(..32)) == Some(history);
    let now = said.times.first.last().filter(|_| is_it)?.master;
    let age = now.saturating_sub(micros.parse().ok()?);
    Some(Duration::from_micros(u64::try_from(age).unwrap_or(0)))
}

impl Findings<'_> {
    fn add(&mut self, finding: Finding) {
        self.all.push(finding.of(self.subject.node));
    }

    /// It costs the master its vote.
    fn fail(&mut self, finding: Finding) {
        self.vote_state = VoteState::Fails;
        self.add(finding);
    }

    fn wait(&mut self) {
        if self.vote_state == VoteState::Votes {
            self.vote_state = VoteState::Waits;
        }
    }

    /// A line that sets settings of the server.
    fn config_set(&self, settings: &[(&str, &str)]) -> String {
        let line = |(name, value): &(&str, &str)| {
            redis_cli(&self.subject.master, self.sets, &["CONFIG", "SET", name, value])
        };
        settings.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn obstacle(&mut self, obstacle: &Obstacle) {
        let timeout = time(self.subject.common.connect_timeout);
        let (id, why) = match obstacle {
            Obstacle::Unreachable(Failure::Lost(ErrorKind::TimedOut)) => {
                let hint = match self.subject.master.tls {
                    Some(_) => "; does this port speak TLS?",
                    None => "",
                };
                let why = format!("it did not answer within {timeout} of connecting{hint}");
                (Id::Unreachable, why)
            }
            Obstacle::Unreachable(
                failure @ Failure::Lost(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
            ) if self.subject.master.tls.is_none() => {
                (Id::Unreachable, format!("{failure}: write rediss:// if this port speaks TLS"))
            }
            Obstacle::Reported(NodeOutcome::Tls(_), why) => (Id::Tls, why.clone()),
            Obstacle::Reported(_, why) => (Id::Unreachable, why.clone()),
            Obstacle::Unreachable(failure @ Failure::Tls(_)) => (Id::Tls, failure.to_string()),
            Obstacle::Unreachable(failure) => (Id::Unreachable, failure.to_string()),
            Obstacle::Slow => {
                (Id::Unreachable, "it did not answer all questions in time".to_owned())
            }
            Obstacle::NeedsPassword => {
                (Id::Auth, "it needs a password, and its address has none".to_owned())
            }
            Obstacle::Auth(failure) => match failure.refusal() {
                Some(RefusalKind::NoPassword) => {
                    (Id::Auth, "it has no password: leave out the one of its address".to_owned())
                }
                _ => (Id::Auth, "the user or the password is wrong".to_owned()),
            },
            Obstacle::Protected => {
                let why = "it is in protected mode, and answers its own machine only: give it a \
                           password";
                (Id::Auth, why.to_owned())
            }
            Obstacle::MaxClients => {
                let why = "it accepts no more clients: raise maxclients, or end some";
                (Id::Maxclients, why.to_owned())
            }
        };
        self.fail(Finding::new(Error, id, why));
    }

    /// Whether it is a replica or a node of a cluster.
    fn role(&mut self, said: &Said) -> bool {
        let mode = said.info("server_mode").or(said.info("redis_mode"));
        let is_loading = ["loading", "async_loading"]
            .iter()
            .any(|name| said.info(name).is_some_and(|value| value != "0"));
        let (id, why) = if mode == Some("sentinel") {
            (Id::Sentinel, "it is a Sentinel: list independent masters")
        } else if mode == Some("cluster") {
            (Id::Cluster, "it is a node of a cluster: list independent masters")
        } else if said.info("role").is_some_and(|role| role != "master") {
            if let Some(fix) = sentinel_cli(&self.subject.master, "SENTINEL FAILOVER") {
                let why = "it is a replica, but the Sentinels name it as the master: wait for \
                           their failover, or start one";
                self.fail(Finding::new(Error, Id::Replica, why).mended_by(fix));
                return true;
            }
            (Id::Replica, "it is a replica: list independent masters only")
        } else if is_loading {
            (Id::Loading, "it is loading its data: wait")
        } else {
            return false;
        };
        self.fail(Finding::new(Error, id, why));
        true
    }

    fn tls(&mut self, said: &Said) {
        if self.subject.master.tls.as_ref().is_some_and(|tls| tls.is_unverified) {
            let why = "its address says verify=no, so another server in between can pretend to be \
                       it: write ca= with the root of its certificate";
            self.add(Finding::new(Error, Id::Tls, why));
        }
        let Some(days) = said.certificate_days else {
            return;
        };
        let severity = if days < CERTIFICATE_DAYS_MIN { Error } else { Warning };
        let left = match days {
            0 => "in less than a day".to_owned(),
            1 => "in 1 day".to_owned(),
            _ => format!("in {days} days"),
        };
        let why = format!("its certificate expires {left}: renew it");
        self.add(Finding::new(severity, Id::Tls, why));
    }

    fn memory(&mut self, said: &Said) {
        let max = said.figure("maxmemory").unwrap_or(0);
        let policy = said.info("maxmemory_policy").unwrap_or("noeviction");
        if max > 0 && policy != "noeviction" {
            let why = "its maxmemory-policy can delete locks that are held";
            let fix = self.config_set(&[("maxmemory-policy", "noeviction")]);
            self.fail(Finding::new(Error, Id::Evicts, why).mended_by(fix));
        }
        let used = said.figure("used_memory").unwrap_or(0);
        if max > 0 && is_nearly_full(used, max) {
            let why = format!(
                "{} of its maxmemory is used: a full server refuses locks",
                percent(used, max)
            );
            if used >= max && policy == "noeviction" {
                self.fail(Finding::new(Error, Id::Memory, why));
            } else {
                self.add(Finding::new(Warning, Id::Memory, why));
            }
        }
    }

    /// For how long its data is known.
    fn age(&mut self, said: &Said) {
        let (master, common) = (&self.subject.master, self.subject.common);
        let is_guarded = master.restart_guard != RestartGuard::Off;
        let was_replica = said.info("second_repl_offset").is_some_and(|offset| offset != "-1");
        if was_replica && !self.has_sentinels() {
            self.promoted(said);
        }
        let has_replicas = said.figure("connected_slaves").is_some_and(|replicas| replicas > 0);
        if has_replicas && !self.has_sentinels() {
            let why = "it has replicas: a failover to one of them loses locks";
            self.add(Finding::new(Warning, Id::Replicas, why));
        }
        if !is_guarded {
            let why = "its restart guard is off: after a restart, it can grant a lock that is still \
                       held, so two clients hold it; leave restart_guard out of the settings";
            self.add(Finding::new(Warning, Id::RestartGuard, why));
            return;
        }
        let uptime = said.figure("uptime_in_seconds").map(Duration::from_secs);
        // Even so, another server may have been the master before.
        let elected = said.failover.map(|failover| failover.master_for.unwrap_or_default());
        let age = uptime.into_iter().chain(elected).min();
        let left = age.map(|age| common.quarantine.saturating_sub(age));
        // A client that has just started trusts nothing.
        let is_unknown = master.restart_guard == RestartGuard::OwnObservation || said.info.is_err();
        if is_unknown {
            self.wait();
        } else if was_replica && !self.has_sentinels() {
            // See above.
        } else if let Some(left) = left.filter(|left| !left.is_zero()) {
            self.wait();
            let what = if elected == age { "promoted" } else { "started" };
            let why = format!(
                "it was {what} a short time ago and might have lost locks: clients ignore it for \
                 another {} s",
                left.as_secs_f64().ceil()
            );
            self.add(Finding::new(Note, Id::Young, why));
        }
    }

    /// Whether a client that connects ignores it because of its flush marker, even without a restart
    /// guard.
    fn marker(&mut self, said: &Said) {
        let Some(Ok(marker)) = said.marker else {
            return;
        };
        let quarantine = self.subject.common.quarantine;
        let seconds = |time: Duration| time.as_secs_f64().ceil();
        let why = match marker {
            Marker::Missing => format!(
                "its flush marker is missing: clients that connect ignore it for {} s from when the \
                 first of them connects, so connect one now",
                seconds(quarantine)
            ),
            Marker::Strange => format!(
                "its flush marker holds no valid value: each client ignores it for {} s from when it \
                 connects, so delete the key",
                seconds(quarantine)
            ),
            Marker::WrittenAt(micros) => {
                // Without its clock, another finding says so.
                let Some(now) = said.times.last().map(|sample| sample.master) else {
                    return;
                };
                let age = u64::try_from(now.saturating_sub(micros)).unwrap_or(0);
                let left = quarantine.saturating_sub(Duration::from_micros(age));
                if left.is_zero() {
                    return;
                }
                format!(
                    "its flush marker was set a short time ago, so it might have lost locks: \
                     clients that connect ignore it for another {} s",
                    seconds(left)
                )
            }
        };
        self.wait();
        self.add(Finding::new(Note, Id::Marker, why));
    }

    /// It does not say when it was promoted. The first client that saw it has stored that, if it
    /// could.
    fn promoted(&mut self, said: &Said) {
        let what = "it was promoted, or started from the RDB file of a master that had a replica";
        let quarantine = self.subject.common.quarantine;
        let seconds = |time: Duration| time.as_secs_f64().ceil();
        match self.subject.master.restart_guard {
            RestartGuard::Uptime => {}
            _ => {
                let why = format!("{what}: a failover loses locks");
                return self.add(Finding::new(Warning, Id::Promoted, why));
            }
        }
        let uptime = Duration::from_secs(said.figure("uptime_in_seconds").unwrap_or(0));
        let left = first_seen(said).map(|age| quarantine.saturating_sub(age.min(uptime)));
        let finding = match left {
            Some(Duration::ZERO) => {
                let why = format!("{what}; clients have seen it for long enough, and trust it");
                return self.add(Finding::new(Note, Id::Promoted, why));
            }
            Some(left) => {
                let left = seconds(left);
                let why =
                    format!("{what}, and might lack locks: clients ignore it for another {left} s");
                Finding::new(Warning, Id::Promoted, why)
            }
            None => self.unseen(said, what),
        };
        self.wait();
        self.add(finding);
    }

    /// No client has stored when it first saw the promoted master.
    fn unseen(&self, said: &Said, what: &str) -> Finding {
        let seconds = self.subject.common.quarantine.as_secs_f64().ceil();
        let key = self.subject.common.sighting_key.escape_ascii();
        let why = format!(
            "{what}, and might lack locks: clients ignore it for {seconds} s from when the first \
             client that may write the key {key} takes a lock"
        );
        let has_backlog = said.info("repl_backlog_active") == Some("1");
        if !has_backlog || said.info("connected_slaves") != Some("0") {
            return Finding::new(Warning, Id::Promoted, why);
        }
        let why = format!(
            "{why}; if it happened more than {seconds} s ago, let the server forget its past now"
        );
        let before = said.setting("repl-backlog-ttl").unwrap_or(BACKLOG_TTL);
        let set = |value| self.config_set(&[("repl-backlog-ttl", value)]);
        let fix = format!("{}\nsleep 3\n{}", set("1"), set(before));
        Finding::new(Warning, Id::Promoted, why).mended_by(fix)
    }

    fn persistence(&mut self, said: &Said) {
        let is = |name: &str, value: &str| said.setting(name) == Some(value);
        let saves = said.setting("save").is_some_and(|save| !save.is_empty());
        if saves && is("stop-writes-on-bgsave-error", "yes") {
            let fix = self.config_set(&[("stop-writes-on-bgsave-error", "no")]);
            let failed = said.info("rdb_last_bgsave_status").is_some_and(|status| status != "ok");
            let id = Id::BgsaveStopsWrites;
            if failed {
                let why = "a snapshot failed, so it refuses locks";
                self.fail(Finding::new(Error, id, why).mended_by(fix));
            } else {
                let why = "it refuses locks as soon as a snapshot fails";
                self.add(Finding::new(Warning, id, why).mended_by(fix));
            }
        }
        let replicas = said.setting("min-replicas-to-write").and_then(|it| it.parse().ok());
        if self.has_sentinels() {
            self.failover(said, replicas);
        } else if let Some(replicas @ 1_u64..) = replicas {
            let why = format!("it refuses locks while it has fewer replicas than {replicas}");
            let fix = self.config_set(&[("min-replicas-to-write", "0")]);
            let finding = Finding::new(Error, Id::MinReplicas, why).mended_by(fix);
            match said.figure("min_slaves_good_slaves").is_some_and(|good| good >= replicas) {
                true => self.add(finding),
                false => self.fail(finding),
            }
        }
    }

    fn has_sentinels(&self) -> bool {
        matches!(self.subject.master.endpoint, MasterEndpoint::Sentinel { .. })
    }

    /// Whether a master that is cut off stops to write before another one is promoted.
    fn failover(&mut self, said: &Said, to_write: Option<u64>) {
        let Some(to_write) = to_write else {
            return;
        };
        // With it, those that can write are more than half of the servers.
        // Replicas that are down come back, and with them a majority.
        let connected = said.figure("connected_slaves").unwrap_or(0);
        let known = said.failover.and_then(|failover| failover.replicas).unwrap_or(0);
        let servers = connected.max(known).saturating_add(1);
        let needed = (servers / 2).max(1);
        if to_write < needed {
            let why = format!(
                "cut off from its replicas, it would grant locks beside the promoted one: \
                 min-replicas-to-write is {to_write}, and half of {servers} servers are {needed}"
            );
            let fix = self.config_set(&[("min-replicas-to-write", &needed.to_string())]);
            self.add(Finding::new(Error, Id::MinReplicas, why).mended_by(fix));
        }
        let lag = said.setting("min-replicas-max-lag").and_then(|lag| lag.parse::<u64>().ok());
        let down_after = said.failover.and_then(|failover| failover.down_after);
        if let (Some(lag), Some(down_after)) = (lag, down_after) {
            let most = down_after.as_secs().saturating_sub(LAG_RESOLUTION);
            if lag == 0 || lag > most {
                let shown = humantime::format_duration(down_after);
                let why = format!(
                    "it can write for longer than the {shown} after which the Sentinels promote \
                     another: min-replicas-max-lag is {lag}"
                );
                let finding = Finding::new(Error, Id::MinReplicas, why);
                self.add(match most {
                    0 => finding,
                    most => {
                        let most = most.to_string();
                        finding.mended_by(self.config_set(&[("min-replicas-max-lag", &most)]))
                    }
                });
            }
        }
        self.parallel_syncs(said, servers - 1);
        let sentinels = said.failover.and_then(|failover| failover.sentinels);
        if let Some(sentinels) = sentinels.filter(|sentinels| *sentinels != servers) {
            let why = format!(
                "there are {sentinels} Sentinels for {servers} servers: run one beside each server, \
                 and none elsewhere; otherwise a split network can have two masters"
            );
            self.add(Finding::new(Warning, Id::Sentinels, why));
        }
    }

    /// Whether the old master loses all its replicas at once.
    fn parallel_syncs(&mut self, said: &Said, replicas: u64) {
        let Some(at_once) = said.failover.and_then(|failover| failover.parallel_syncs) else {
            return;
        };
        if at_once < replicas {
            let why = format!(
                "in a failover by command, the old master keeps writing while its {replicas} \
                 replicas leave it: parallel-syncs is {at_once} (SENTINEL SET on each Sentinel)"
            );
            self.add(Finding::new(Warning, Id::Sentinels, why));
        }
    }

    fn connections(&mut self, said: &Said) {
        let figure = |name: &str| said.setting(name).and_then(|value| value.parse::<u64>().ok());
        if let Some(seconds @ 1..) = figure("timeout") {
            let why = format!("it closes a connection that was idle for {seconds} s");
            let fix = self.config_set(&[("timeout", "0")]);
            self.add(Finding::new(Warning, Id::Timeout, why).mended_by(fix));
        }
        let limits = said.setting("client-output-buffer-limit").and_then(normal_limits);
        if limits.is_some_and(|limits| limits.into_iter().any(is_small)) {
            let why = "its client-output-buffer-limit closes connections with few unread answers";
            let fix = self.config_set(&[("client-output-buffer-limit", "normal 0 0 0")]);
            self.add(Finding::new(Warning, Id::OutputBuffer, why).mended_by(fix));
        }
        if let (Some(clients), Some(max)) =
            (said.figure("connected_clients"), said.figure("maxclients"))
        {
            if is_nearly_full(clients, max) {
                let why = format!("{} of its maxclients are connected", percent(clients, max));
                let fix = self.config_set(&[("maxclients", &max.saturating_mul(2).to_string())]);
                self.add(Finding::new(Warning, Id::Maxclients, why).mended_by(fix));
            }
        }
        if said.is_open {
            self.open(said);
        }
        if said.info("redis_version").and_then(version).is_some_and(|it| it < VERSION_MIN) {
            let why = "it is older than 6.2, and no longer receives security fixes: upgrade it";
            self.add(Finding::new(Warning, Id::Version, why));
        }
    }

    /// It answers without a password.
    fn open(&mut self, said: &Said) {
        let MasterEndpoint::Tcp { host, .. } = &self.subject.master.endpoint else {
            return;
        };
        if !is_loopback(host) {
            let why = "every program that reaches it can take and delete locks: give it a password";
            return self.add(Finding::new(Warning, Id::Open, why));
        }
        // It was asked from its own machine, which protected mode allows.
        let is_bound = said.setting("bind").is_some_and(|bind| {
            !bind.is_empty() && bind.split(' ').all(|it| is_loopback(it.trim_start_matches('-')))
        });
        if said.setting("protected-mode") == Some("no") && !is_bound {
            let why = "other machines reach it without a password: protected-mode is off";
            let fix = self.config_set(&[("protected-mode", "yes")]);
            self.add(Finding::new(Warning, Id::Open, why).mended_by(fix));
        }
    }

    fn rights(&mut self, said: &Said) {
        let refused = match &said.refused_other {
            Some(Ok(refused)) => refused,
            Some(Err(_)) => return,
            None => &said.refused,
        };
        let is = |kinds: &[RefusalKind], it: &&Refused| {
            it.failure.refusal().is_some_and(|kind| kinds.contains(&kind))
        };
        let forbidden = [RefusalKind::Command, RefusalKind::Key];
        let is_lock = |it: &&Refused| !self.is_for_waiting(it.right) && !is_of_kind(it.right);
        let missing: Vec<_> =
            refused.iter().filter(is_lock).filter(|it| is(&forbidden, it)).collect();
        let (foreign, missing): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|it| self.is_foreign(it));
        let (deletes, missing): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|it| DELETES.contains(&it.right));
        let is_marked = self.subject.common.flush_marker.is_some();
        let is_useful = |it: &&Refused| it.right == KILL || it.right == "marker" && !is_marked;
        let user = self.subject.lock_user.or(self.subject.master.user).unwrap_or("default");
        if !missing.iter().all(is_useful) {
            let (rights, fix) = self.grant(user, &missing);
            let why = format!("the user {user:?} lacks {rights}");
            let needs = |right: &str| {
                NEEDED.contains(&right)
                    || right == TRACKING
                    || is_marked && ["time", "marker"].contains(&right)
            };
            let has_no_vote = missing.iter().any(|it| needs(it.right));
            let finding = Finding::new(Error, Id::Permission, why).mended_by(fix);
            match has_no_vote {
                true => self.fail(finding),
                false => self.add(finding),
            }
        } else {
            for (is_kill, effect) in [(true, WITHOUT_KILL), (false, WITHOUT_MARKER)] {
                let of = missing.iter().filter(|it| (it.right == KILL) == is_kill);
                let of: Vec<_> = of.copied().collect();
                if !of.is_empty() {
                    let (rights, fix) = self.grant(user, &of);
                    let why = format!("the user {user:?} lacks {rights}: {effect}");
                    self.add(Finding::new(Note, Id::PermissionClient, why).mended_by(fix));
                }
            }
            if !deletes.is_empty() {
                let (rights, fix) = self.grant(user, &deletes);
                let why =
                    format!("the user {user:?} lacks {rights}: a release then costs a script");
                self.add(Finding::new(Note, Id::PermissionDelete, why).mended_by(fix));
            }
        }
        // It says nothing of the locks, whose names may be others.
        self.is_foreign = !foreign.is_empty();
        self.refusals(said);
    }

    /// Whether only waiting in a queue takes it.
    fn is_for_waiting(&self, right: &str) -> bool {
        WAITS.contains(&right) || right == TRACKING && !self.subject.master.needs_notices
    }

    /// Whether only a key is refused that no lock has: without a prefix, nothing says which keys
    /// the locks have.
    fn is_foreign(&self, refused: &Refused) -> bool {
        let is_key = refused.failure.refusal() == Some(RefusalKind::Key);
        is_key && refused.right != "marker" && self.subject.common.key_prefix.is_empty()
    }

    /// Whether there can be locks of other kinds.
    fn kinds(&mut self, said: &Said) {
        let unknown = RefusalKind::Unknown;
        let lacking = |refused: &[Refused], kind: RefusalKind| {
            let is_it = |it: &&Refused| match it.failure.refusal() {
                // Other keys depend on the name that was tried.
                Some(RefusalKind::Key) => it.right == COUNTERS && kind == RefusalKind::Command,
                refusal => it.right != COUNTERS && refusal == Some(kind),
            };
            let refused = refused.iter().filter(is_it);
            let rights: Vec<_> = refused.map(|it| it.right).filter(|it| is_of_kind(it)).collect();
            let of = |(_, needs): &&(&str, &[&str])| needs.iter().any(|it| rights.contains(it));
            let kinds: Vec<_> = KINDS.iter().filter(of).map(|(kind, _)| *kind).collect();
            (!rights.is_empty()).then(|| (rights, kinds.join(", ")))
        };
        if let Some((rights, kinds)) = lacking(&said.refused, unknown) {
            let why = format!("it does not know {}: no {kinds}", names(&rights));
            self.add(Finding::new(Note, Id::PermissionKinds, why));
        }
        let refused = match &said.refused_other {
            Some(Ok(refused)) => refused,
            Some(Err(_)) => return,
            None => &said.refused,
        };
        if let Some((rights, kinds)) = lacking(refused, RefusalKind::Command) {
            let user = self.subject.lock_user.or(self.subject.master.user).unwrap_or("default");
            let granted = |right: &&str| match *right {
                COUNTERS => COUNTERS.to_owned(),
                right => format!("+{right}"),
            };
            let rights: Vec<_> = rights.iter().map(granted).collect();
            let words = ["ACL", "SETUSER", user].into_iter();
            let words: Vec<_> = words.chain(rights.iter().map(String::as_str)).collect();
            let fix = redis_cli(&self.subject.master, self.grants, &words);
            let why = format!("the user {user:?} lacks {}: no {kinds}", rights.join(" "));
            self.add(Finding::new(Note, Id::PermissionKinds, why).mended_by(fix));
        }
    }

    /// Whether clients can wait in a queue there. Locks do not need it.
    fn waiting(&mut self, said: &Said) {
        let limit = said.setting("tracking-table-max-keys").and_then(|limit| limit.parse().ok());
        if limit.is_some_and(|limit: u64| (1..TRACKED_KEYS_MIN).contains(&limit)) {
            let why = "tracking-table-max-keys is small: waiting clients can miss a notification";
            let fix = self.config_set(&[("tracking-table-max-keys", TRACKED_KEYS)]);
            self.add(Finding::new(Note, Id::Waiting, why).mended_by(fix));
        }
        let is_unknown = |it: &&Refused| match it.failure.refusal() {
            Some(RefusalKind::Unknown) => self.is_for_waiting(it.right),
            _ => false,
        };
        if let Some(Refused { right, .. }) = said.refused.iter().find(is_unknown) {
            let why = format!("it does not know {right}: {WAITS_SLOWER}");
            return self.add(Finding::new(Note, Id::Waiting, why));
        }
        match &said.refused_other {
            Some(Ok(refused)) => self.waiting_rights(refused, &[]),
            Some(Err(_)) => {}
            None => self.waiting_rights(&said.refused, &UNTRIED),
        }
    }

    /// The rights to wait that are missing. A user who lacks one for lists is assumed to lack the
    /// untried ones.
    fn waiting_rights(&mut self, refused: &[Refused], untried: &[&'static str]) {
        let of = |kind: RefusalKind| {
            let is_it = move |it: &&Refused| it.failure.refusal() == Some(kind);
            refused.iter().filter(is_it).map(|it| it.right)
        };
        let waits = |right: &&str| self.is_for_waiting(right);
        let mut commands: Vec<_> = of(RefusalKind::Command).filter(waits).collect();
        if commands.iter().any(|right| right.starts_with('l')) {
            commands.extend(untried);
        }
        let mut rights: Vec<_> = commands.iter().map(|right| format!("+{right}")).collect();
        let (channels, keys): (Vec<_>, Vec<_>) = of(RefusalKind::Key)
            .filter(|right| ![COUNTERS, "marker"].contains(right))
            .partition(|right| CHANNEL_RIGHTS.contains(right));
        if !channels.is_empty() {
            rights.push(CHANNELS.to_owned());
        }
        // If the locks lack their keys too, another finding says so.
        if !keys.is_empty() && keys.iter().all(waits) {
            rights.push(match self.subject.common.key_prefix {
                // Only the queues' keys are known to be refused.
                b"" => "~*:muxlock:queue".to_owned(),
                prefix => format!("~{}*", pattern(prefix)),
            });
        }
        if rights.is_empty() {
            return;
        }
        let user = self.subject.lock_user.or(self.subject.master.user).unwrap_or("default");
        let grant = |rights: &[String]| {
            let words = ["ACL", "SETUSER", user].into_iter();
            let words: Vec<_> = words.chain(rights.iter().map(String::as_str)).collect();
            redis_cli(&self.subject.master, self.grants, &words)
        };
        let mut fix = grant(&rights);
        if CHANNEL_RIGHTS.iter().all(|right| commands.contains(right)) {
            // Which channels the user may use shows only if it may use a command for them. For a
            // user of all channels, the line is refused and changes nothing.
            fix = format!("{fix}\n{}", grant(&[CHANNELS.to_owned()]));
        }
        let why = format!("the user {user:?} lacks {}: {WAITS_SLOWER}", rights.join(" "));
        self.add(Finding::new(Note, Id::PermissionWaiting, why).mended_by(fix));
    }

    /// The rights that are missing, and the command that grants them.
    fn grant(&self, user: &str, missing: &[&Refused]) -> (String, String) {
        let mut rights = Vec::new();
        let mut add = |right: String| {
            if !rights.contains(&right) {
                rights.push(right);
            }
        };
        for Refused { right, failure } in missing {
            match failure.refusal() {
                Some(RefusalKind::Key) if *right == "marker" => {
                    let common = self.subject.common;
                    add(match common.marker_key.starts_with(common.key_prefix) {
                        true if !common.key_prefix.is_empty() => {
                            format!("~{}*", pattern(common.key_prefix))
                        }
                        _ => format!("~{}", pattern(common.marker_key)),
                    });
                }
                Some(RefusalKind::Key) => {
                    add(format!("~{}*", pattern(self.subject.common.key_prefix)));
                }
                _ if *right == "marker" => {}
                _ => add(format!("+{right}")),
            }
        }
        let words: Vec<&str> =
            ["ACL", "SETUSER", user].into_iter().chain(rights.iter().map(String::as_str)).collect();
        (rights.join(" "), redis_cli(&self.subject.master, self.grants, &words))
    }

    /// The features for which no right is missing.
    fn refusals(&mut self, said: &Said) {
        let of = |right: &str, kinds: &[RefusalKind]| {
            let found = said.refused.iter().find(|it| it.right == right)?;
            let is_one = found.failure.refusal().is_some_and(|kind| kinds.contains(&kind));
            is_one.then_some(&found.failure)
        };
        if self.vote_state == VoteState::Fails {
            // A finding that exists already explains it.
        } else if let Some(failure) = of("set", &[RefusalKind::Other]) {
            let why = format!("SET failed: {failure}");
            self.fail(Finding::new(Error, Id::RefusesWrites, why));
        } else if let Some(failure) = of("eval", &[RefusalKind::Other]) {
            let why = format!("the script of a release failed: {failure}");
            self.fail(Finding::new(Error, Id::Script, why));
        }
        let is_marked = self.subject.common.flush_marker.is_some();
        let is_unknown = |it: &&Refused| it.failure.refusal() == Some(RefusalKind::Unknown);
        let unknown: Vec<_> = said.refused.iter().filter(is_unknown).collect();
        let (needed, useful): (Vec<_>, Vec<_>) = unknown
            .iter()
            .map(|it| it.right)
            .filter(|right| NEEDED.contains(right) || IDENTIFIES.contains(right))
            .partition(|right| NEEDED.contains(right) || is_marked && *right == "time");
        if !needed.is_empty() {
            let why = format!(
                "it does not know {}, which every lock needs: remove its rename-command",
                names(&needed)
            );
            self.fail(Finding::new(Error, Id::Script, why));
        }
        if !useful.is_empty() {
            let why = format!(
                "it does not know {}, which clients need to identify it: remove its rename-command",
                names(&useful)
            );
            self.add(Finding::new(Error, Id::Script, why));
        }
        let is_unknown = |right: &str| unknown.iter().any(|it| it.right == right);
        if self.subject.master.needs_notices && is_unknown(TRACKING) {
            let why = "it does not know CLIENT TRACKING, so clients would notice no flush and refuse \
                       it: remove its rename-command, or add ?notices=no to its address";
            self.fail(Finding::new(Error, Id::Script, why));
        } else if is_unknown(KILL) {
            let why = format!("it does not know CLIENT: {WITHOUT_KILL}");
            self.add(Finding::new(Note, Id::PermissionClient, why));
        }
    }

    fn clock(&mut self, said: &Said) {
        let common = self.subject.common;
        if said.times.is_frozen() {
            let why = "its clock stands still, so no lock expires: restart or upgrade it";
            self.add(Finding::new(Error, Id::ClockFrozen, why));
        } else if let Some(rate) = said.times.rate() {
            let allowed = 1.0 / f64::from(DRIFT_DIVISOR);
            if rate.gain.abs() - rate.doubt > allowed / 2.0 {
                let why = format!(
                    "its clock gains {:+.2} % on this machine's, and locks allow for 1 %: slew \
                     slower (chrony: maxslewrate 1000)",
                    rate.gain * 100.0
                );
                self.add(Finding::new(Error, Id::ClockRate, why));
            }
        }
        let latencies = said.times.latencies();
        let (p50, p99) = (latencies.median(), latencies.percentile(99));
        let (shown, limit) = (time(common.node_timeout), common.node_timeout);
        if p50 > limit {
            let why =
                format!("half of its answers take over {}: node_timeout is {shown}", time(p50));
            self.fail(Finding::new(Error, Id::Latency, why));
        } else if p99 > limit / 2 {
            let why = format!("some answers take {}: node_timeout is {shown}", time(p99));
            self.add(Finding::new(Warning, Id::Latency, why));
        }
    }

    /// The questions that failed. The commands that locks need are another finding.
    fn unknown(&mut self, said: &Said) {
        let lacks = |kind: RefusalKind, right: &str| match kind {
            RefusalKind::Command => format!("{right} is forbidden"),
            RefusalKind::Unknown => format!("the server does not know {right}"),
            _ => format!("{right} is refused"),
        };
        let mut missing = Vec::new();
        if let Err(kind) = said.settings {
            missing.push(format!("its settings ({})", lacks(kind, "config|get")));
        }
        if let Some(Err(kind)) = said.marker.filter(|_| said.refused_other.is_some()) {
            missing.push(format!("its flush marker ({})", lacks(kind, "get")));
        }
        if let Err(kind) = said.clients {
            missing.push(format!("its clients ({})", lacks(kind, "client|list")));
        }
        if let Some(Err(kind)) = said.refused_other {
            let why = match kind {
                RefusalKind::Other => "there is no such user".to_owned(),
                kind => lacks(kind, "acl|dryrun"),
            };
            missing.push(format!("the rights of the locks' user ({why})"));
        }
        let is_own = said.refused_other.is_none();
        if let (false, Err(kind)) = (is_own, &said.info) {
            missing.push(format!("its state ({})", lacks(*kind, "info")));
        }
        if !is_own && said.times.first.is_empty() {
            missing.push("its clock (time is forbidden)".to_owned());
        }
        if !missing.is_empty() {
            let why = format!("not checked: {}", missing.join(", "));
            self.add(Finding::new(Note, Id::NotChecked, why));
        }
    }
}

fn is_of_kind(right: &str) -> bool {
    KINDS.iter().any(|(_, rights)| rights.contains(&right))
}

/// Rights as the commands that they are for, each once.
fn names(rights: &[&str]) -> String {
    let mut names: Vec<_> = rights
        .iter()
        .map(|right| right.split('|').next().unwrap_or_default().to_ascii_uppercase())
        .collect();
    names.dedup();
    names.join(", ")
}

/// Escaped for an ACL.
fn pattern(key: &[u8]) -> String {
    let escape = |char: char| match char {
        '*' | '?' | '[' | ']' | '\\' => format!("\\{char}"),
        _ => char.to_string(),
    };
    String::from_utf8_lossy(key).chars().map(escape).collect()
}

fn is_nearly_full(used: u64, max: u64) -> bool {
    used.saturating_mul(100) > max.saturating_mul(NEARLY_FULL_PERCENT)
}

fn percent(used: u64, max: u64) -> String {
    format!("{} %", used.saturating_mul(100) / max.max(1))
}

/// The hard and the soft limit of usual clients.
fn normal_limits(setting: &str) -> Option<[u64; 2]> {
    let mut words = setting.split(' ').skip_while(|word| *word != "normal").skip(1);
    Some([words.next()?.parse().ok()?, words.next()?.parse().ok()?])
}

fn is_small(limit: u64) -> bool {
    (1..OUTPUT_BUFFER_MIN).contains(&limit)
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
