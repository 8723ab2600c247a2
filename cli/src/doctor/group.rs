//! Problems of the masters as a group.

use std::collections::BTreeMap;
use std::time::Duration;

use muxlock::settings::RestartGuard;
use muxlock::unstable_tool::{ConfigExt, MasterEndpoint};
use muxlock::{Config, quorum};

use super::ask::{Obstacle, Said};
use super::checks::{Checked, Subject, VoteState, check, is_loopback};
use super::clients::{lists, settings};
use super::clocks::agreed;
use super::finding::Severity::{Error, Note, Warning};
use super::finding::{Finding, Id, merged};

/// Clocks may differ by this much, in microseconds.
const OFFSET_MAX: i64 = 250_000;
/// A clock that is this far off is slewed for hours: 10 s take chrony three hours at the rate that
/// docs/masters.md names.
const SLEWED_MAX: i64 = 10_000_000;
/// The time that a client may need before it first sees a master.
const CONNECTING: Duration = Duration::from_millis(500);

/// Everything that was found.
pub struct Report {
    pub findings: Vec<Finding>,
    /// Of each master, in order.
    pub vote_states: Vec<VoteState>,
    /// The masters on which the name that was tried is outside of the keys of the locks' user.
    foreign: Vec<usize>,
}

impl Report {
    pub fn count(&self, vote_state: VoteState) -> usize {
        self.vote_states.iter().filter(|it| **it == vote_state).count()
    }

    fn quorum(&self) -> usize {
        quorum(self.vote_states.len())
    }

    pub fn can_lock(&self) -> bool {
        self.count(VoteState::Votes) >= self.quorum()
    }

    /// Whether a lock can be tried, as far as the keys of the locks' user are known.
    pub fn knows_a_name(&self) -> bool {
        self.foreign.is_empty()
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

/// Checks the answers of all masters.
pub fn examine(
    config: &Config,
    answers: &[Result<Said, Obstacle>],
    lock_user: Option<&str>,
) -> Report {
    let common = config.common();
    let mut report = Report { findings: Vec::new(), vote_states: Vec::new(), foreign: Vec::new() };
    for (node, said) in answers.iter().enumerate() {
        let subject = Subject { node, master: config.master(node), common: &common, lock_user };
        let Checked { findings, vote_state, is_foreign } = check(&subject, said);
        report.foreign.extend(is_foreign.then_some(node));
        report.findings.extend(findings);
        report.vote_states.push(vote_state);
    }
    foreign_name(config, &mut report);
    several_servers(config, answers, &mut report);
    same_servers(config, answers, &mut report);
    same_hosts(config, &mut report);
    marker(config, &mut report);
    clock_offsets(config, answers, &mut report);
    report.findings.extend(lists(config, answers));
    report.findings.extend(settings(config, answers));
    votes(config, &mut report);
    report.findings = merged(report.findings);
    report
}

/// Without a prefix, nothing says which keys the locks have: no fault of the masters, and no reason
/// to give the user more rights.
fn foreign_name(config: &Config, report: &mut Report) {
    if report.foreign.is_empty() {
        return;
    }
    let masters: Vec<_> =
        report.foreign.iter().map(|node| config.master(*node).address.to_string()).collect();
    let why = format!(
        "no lock was tried: on {}, the permissions of the locks' user exclude the key that this \
         command uses: give the prefix of your locks (--prefix)",
        masters.join(", ")
    );
    report.add(Finding::new(Warning, Id::NotChecked, why));
}

/// Clients that reach different servers by one name count the same vote twice.
fn several_servers(config: &Config, answers: &[Result<Said, Obstacle>], report: &mut Report) {
    for (node, said) in answers.iter().enumerate() {
        let Some(servers) = said.as_ref().ok().map(|said| &said.servers) else {
            continue;
        };
        let Some((first, run_id)) = servers.first() else {
            continue;
        };
        let Some((other, _)) = servers.iter().find(|(_, other)| other != run_id) else {
            continue;
        };
        let name = config.master(node).address;
        let why = format!(
            "{name} leads to different servers, at {first} and at {other}: two clients can hold \
             the same lock; give each server its own name, and list each name once"
        );
        report.add(Finding::new(Error, Id::SeveralServers, why).of(node));
        report.vote_states[node] = VoteState::Fails;
    }
}

/// A server's vote must not count twice.
fn same_servers(config: &Config, answers: &[Result<Said, Obstacle>], report: &mut Report) {
    let mut first = BTreeMap::new();
    for (node, said) in answers.iter().enumerate() {
        let run_id = said.as_ref().ok().and_then(|said| said.info("run_id"));
        let Some(run_id) = run_id.filter(|run_id| !run_id.is_empty()) else {
            continue;
        };
        let before = *first.entry(run_id).or_insert(node);
        if before != node {
            let other = config.master(before).address;
            let why = format!("it is the same server as {other}: list it once");
            report.add(Finding::new(Error, Id::Duplicate, why).of(node));
            report.vote_states[node] = VoteState::Fails;
        }
    }
}

/// Masters of one machine fail together. Those of a developer's own machine are meant to.
fn same_hosts(config: &Config, report: &mut Report) {
    let host = |node| match config.master(node).endpoint {
        MasterEndpoint::Tcp { host, .. } => Some(host),
        MasterEndpoint::Unix(_) | MasterEndpoint::Sentinel { .. } => None,
    };
    let hosts: Vec<_> = (0..config.nodes()).map(host).collect();
    if hosts.iter().all(|host| host.as_deref().is_none_or(is_loopback)) {
        return;
    }
    for (node, host) in hosts.iter().enumerate().filter(|(_, host)| host.is_some()) {
        if let Some(before) = hosts[..node].iter().position(|before| before == host) {
            let other = config.master(before).address;
            let why = format!("it is on the same machine as {other}, and fails with it");
            report.add(Finding::new(Warning, Id::SameHost, why).of(node));
        }
    }
}

fn marker(config: &Config, report: &mut Report) {
    if config.common().flush_marker.is_none() {
        let why = "there is no flush marker (--flush-marker): clients that connect after a flush do \
                   not notice it";
        report.add(Finding::new(Note, Id::Marker, why));
    }
}

fn clock_offsets(config: &Config, answers: &[Result<Said, Obstacle>], report: &mut Report) {
    let offsets: Vec<_> = answers
        .iter()
        .enumerate()
        .filter_map(|(node, said)| Some((node, said.as_ref().ok()?.times.offset()?)))
        .collect();
    let all: Vec<_> = offsets.iter().map(|(_, offset)| *offset).collect();
    let time = agreed(&all);
    let doubt = all.iter().map(|offset| offset.doubt).max().unwrap_or(0);
    let seconds = |micros: i64| micros as f64 / 1e6;
    if time.abs() - doubt > OFFSET_MAX {
        let how = match time.abs() > SLEWED_MAX {
            false => "slew it (chronyc tracking)",
            true => "set it while no client of the locks runs here (chronyc makestep)",
        };
        let why = format!(
            "the clock of this machine differs by {:.3} s from those of most masters: {how}",
            seconds(-time)
        );
        report.add(Finding::new(Warning, Id::ClockOffset, why));
    }
    let what = if offsets.len() > 2 { "the others" } else { "this machine's" };
    for (node, offset) in offsets {
        let apart = offset.ahead.saturating_sub(time);
        if apart.abs() - offset.doubt > OFFSET_MAX {
            let how = match apart.abs() > SLEWED_MAX {
                false => "slew it there (chronyc tracking), never step it".to_owned(),
                true => {
                    // From the start on, clients ignore it.
                    let quarantine = config.common().quarantine.as_secs_f64().ceil();
                    format!(
                        "stop Redis there, step the clock (chronyc makestep), start Redis, and \
                         wait for {quarantine} s before the next master; to slew it would take hours"
                    )
                }
            };
            let why = format!("its clock differs by {:+.3} s from {what}: {how}", seconds(apart));
            report.add(Finding::new(Warning, Id::ClockOffset, why).of(node));
        }
    }
}

fn votes(config: &Config, report: &mut Report) {
    let total = report.vote_states.len();
    if total == 1 {
        let why = "there is one master: without it, there are no locks";
        report.add(Finding::new(Note, Id::Single, why));
    } else if total % 2 == 0 {
        let why = format!("{total} masters tolerate no more failures than {}", total - 1);
        report.add(Finding::new(Note, Id::Even, why));
    }
    let (quorum, possible) = (report.quorum(), total - report.count(VoteState::Fails));
    if possible < quorum {
        let why = format!("{possible} of {total} masters can vote, and a lock needs {quorum}");
        report.add(Finding::new(Error, Id::Quorum, why));
    } else if !report.can_lock() {
        let is_of_one_that_waits =
            |it: &&mut Finding| it.id == Id::Young || it.id == Id::Marker && !it.masters.is_empty();
        for finding in report.findings.iter_mut().filter(is_of_one_that_waits) {
            finding.severity = Warning;
            finding.why.push_str(", and until then the others are no quorum");
        }
        // With own_observation, that is intended.
        let is_strict = |node| config.master(node).restart_guard == RestartGuard::OwnObservation;
        let waits = report.vote_states.iter().enumerate();
        let strict =
            waits.filter(|(node, it)| **it == VoteState::Waits && is_strict(*node)).count();
        let votes = report.count(VoteState::Votes);
        if votes + strict < quorum {
            let seconds = config.common().quarantine.saturating_add(CONNECTING).as_secs_f64();
            let why = format!(
                "{votes} of {total} masters can vote now for a client that starts, and a lock \
                 needs {quorum}: run commands with --wait-masters {}s, or fix the other findings",
                seconds.ceil()
            );
            report.add(Finding::new(Error, Id::Quorum, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use muxlock::Redlock;
    use muxlock::unstable_tool::Failover;

    use super::*;
    use crate::doctor::ask::Refused;
    use crate::doctor::clocks::{Sample, Times};
    use crate::wire::{Failure, RefusalKind};

    const HEALTHY: &str = "redis_version:7.0.15\nrole:master\nredis_mode:standalone\n\
                           uptime_in_seconds:86400\nloading:0\nsecond_repl_offset:-1\n\
                           maxmemory:0\nmaxmemory_policy:noeviction\nused_memory:1000\n\
                           connected_slaves:0\nconnected_clients:1\nmaxclients:10000\n";

    /// The answers of a master, by the fields of `INFO` that it has beside the usual ones.
    fn said(run_id: usize, info: &str) -> Said {
        let info = format!("{HEALTHY}run_id:{run_id}\n{info}");
        let info = info.lines().filter_map(|line| line.split_once(':'));
        Said {
            info: Ok(info.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()),
            settings: Ok(BTreeMap::new()),
            clients: Ok(BTreeMap::new()),
            ..Said::nothing(false)
        }
    }

    /// The master's clock, that many milliseconds after this machine's, now and ten seconds later.
    fn with_clock(said: Said, ahead_ms: [i64; 2]) -> Said {
        let sample = |i: usize| {
            let since_first = Duration::from_secs(10 * i as u64);
            let here = 1_700_000_000_000_000 + i64::try_from(since_first.as_micros()).unwrap();
            let master = here + 1_000 * ahead_ms[i];
            Sample { round_trip: Duration::from_millis(2), master, here, since_first }
        };
        Said { times: Times { first: vec![sample(0)], later: vec![sample(1)] }, ..said }
    }

    fn config(urls: &[&str]) -> Config {
        Redlock::builder().nodes(urls.iter().copied()).config().unwrap()
    }

    /// The findings as `severity id master`, without the note on the marker.
    fn found(config: &Config, answers: &[Result<Said, Obstacle>]) -> Vec<String> {
        let report = examine(config, answers, None);
        let each = |it: &Finding| {
            let name = format!("{} {}", it.severity.name(), it.id.name());
            let at: Vec<_> = it.masters.iter().map(|node| format!("{name} {node}")).collect();
            if at.is_empty() { vec![name] } else { at }
        };
        let is_other = |it: &&Finding| it.id != Id::Marker;
        report.findings.iter().filter(is_other).flat_map(each).collect()
    }

    #[test]
    fn addresses_of_one_name_lead_to_one_server() {
        let at = |host: u8, run_id: &str| {
            (std::net::SocketAddr::from(([10, 0, 0, host], 6379)), run_id.to_owned())
        };
        let with = |servers| last(Said { servers, ..said(2, "") });
        assert!(with(vec![at(1, "2"), at(2, "2")]).is_empty());
        let two = vec![at(1, "2"), at(2, "2"), at(3, "other")];
        assert_eq!(with(two), ["error several-servers 2"]);
    }

    const THREE: [&str; 3] = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];

    /// Three masters, of which the last says this.
    fn last(said_last: Said) -> Vec<String> {
        found(&config(&THREE), &[Ok(said(0, "")), Ok(said(1, "")), Ok(said_last)])
    }

    #[test]
    fn one_cause_is_one_finding() {
        let table = [
            ("", ""),
            ("role:slave\nsecond_repl_offset:7", "error replica 2"),
            ("redis_mode:cluster", "error cluster 2"),
            ("server_mode:cluster", "error cluster 2"),
            ("redis_mode:sentinel\nrole:sentinel", "error sentinel 2"),
            ("loading:1\nmaxmemory:9\nmaxmemory_policy:allkeys-lru", "error loading 2"),
            ("async_loading:1", "error loading 2"),
            ("connected_slaves:1", "warning replicas 2"),
            ("second_repl_offset:7\nuptime_in_seconds:1", "warning promoted 2"),
            ("maxmemory:9000\nmaxmemory_policy:volatile-ttl", "error evicts 2"),
            ("maxmemory_policy:volatile-ttl", ""),
            ("maxmemory:1250", ""),
            ("maxmemory:1249", "warning memory 2"),
            ("maxmemory:1000", "error memory 2"),
            ("uptime_in_seconds:31", "note young 2"),
            ("uptime_in_seconds:32", ""),
            ("connected_clients:8000", ""),
            ("connected_clients:8001", "warning maxclients 2"),
            ("redis_version:6.0.16", "warning version 2"),
            ("redis_version:6.2.0", ""),
            ("redis_version:10.0.1", ""),
            ("run_id:0", "error duplicate 2"),
        ];
        for (info, expected) in table {
            let expected = [expected].map(str::to_owned).into_iter().filter(|it| !it.is_empty());
            assert_eq!(last(said(2, info)), expected.collect::<Vec<_>>(), "{info}");
        }
    }

    /// A site with Sentinels, whose master says this.
    fn site(info: &str, settings: &[(&str, &str)], failover: Failover) -> Vec<String> {
        let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let failover = Some(Failover { down_after: Some(Duration::from_secs(5)), ..failover });
        let said = Said { settings: Ok(settings.collect()), failover, ..said(0, info) };
        let mut found = found(&config(&["redis+sentinel://10.0.0.1/m"]), &[Ok(said)]);
        found.retain(|it| it != "note single");
        found
    }

    #[test]
    fn sites_with_sentinels_stop_to_write_when_they_are_cut_off() {
        let old = Some(Duration::from_secs(3_600));
        let known = |replicas| Failover {
            replicas: Some(replicas),
            master_for: old,
            ..Failover::default()
        };
        let set =
            |to_write, lag| [("min-replicas-to-write", to_write), ("min-replicas-max-lag", lag)];
        let bad = ["error min-replicas 0"];
        let table = [
            (2, "1", "4", 0),
            (2, "0", "4", 1),
            (2, "1", "5", 1),
            (2, "1", "0", 1),
            // Half of four servers, and of five.
            (3, "1", "4", 1),
            (3, "2", "4", 0),
            (4, "1", "4", 1),
            (4, "2", "4", 0),
        ];
        for (replicas, to_write, lag, findings) in table {
            let info = format!("connected_slaves:{replicas}");
            let settings = set(to_write, lag);
            assert_eq!(site(&info, &settings, known(0)), bad[..findings], "{info} {settings:?}");
            // Servers that are down count as well.
            let few = site("connected_slaves:1", &settings, known(replicas));
            assert_eq!(few, bad[..findings], "{info} {settings:?}");
        }
        let many = site("connected_slaves:18446744073709551615", &set("1", "4"), known(0));
        assert_eq!(many, bad);
    }

    #[test]
    fn master_that_was_promoted_a_short_time_ago_does_not_vote_yet() {
        let fine = [("min-replicas-to-write", "1"), ("min-replicas-max-lag", "4")];
        let since = |age| Failover { master_for: age, replicas: Some(2), ..Failover::default() };
        let table = [(Some(3_600), true), (Some(20), false), (None, false)];
        for (age, votes) in table {
            let found = site("", &fine, since(age.map(Duration::from_secs)));
            assert_eq!(found.is_empty(), votes, "{age:?}: {found:?}");
            assert!(votes || found == ["warning young 0", "error quorum"], "{age:?}: {found:?}");
        }
    }

    #[test]
    fn replica_that_sentinels_name_needs_a_failover() {
        let config = config(&["redis+sentinel://10.0.0.1/m"]);
        let failover = Some(Failover::default());
        let answers = [Ok(Said { failover, ..said(0, "role:slave") })];
        let report = examine(&config, &answers, None);
        let finding = report.findings.iter().find(|it| it.id == Id::Replica).unwrap();
        let fix = "env -u REDISCLI_AUTH redis-cli -h 10.0.0.1 -p 26379 SENTINEL FAILOVER m";
        assert_eq!(finding.fix.as_deref(), Some(fix));
        assert!(!finding.why.contains("list"), "{}", finding.why);
    }

    #[test]
    fn settings_of_a_server_are_checked() {
        let table = [
            ("save=", ""),
            ("save=60 1;stop-writes-on-bgsave-error=no", ""),
            ("save=60 1;stop-writes-on-bgsave-error=yes", "warning bgsave-stops-writes 2"),
            ("min-replicas-to-write=0", ""),
            ("min-replicas-to-write=1", "error min-replicas 2"),
            ("timeout=0", ""),
            ("timeout=1", "warning timeout 2"),
            ("client-output-buffer-limit=normal 0 0 0 slave 9 9 9", ""),
            ("client-output-buffer-limit=slave 9 9 9 normal 1048576 0 0", ""),
            ("client-output-buffer-limit=normal 0 1048575 60", "warning output-buffer 2"),
        ];
        for (settings, expected) in table {
            let pairs = settings.split(';').filter_map(|pair| pair.split_once('='));
            let settings = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let found = last(Said { settings: Ok(settings), ..said(2, "") });
            assert_eq!(found.concat(), expected);
        }
        let refused = |right, kind| Refused { right, failure: Failure::refused_by_kind(kind) };
        let table = [
            (refused("set", RefusalKind::Other), "error refuses-writes 2"),
            (refused("eval", RefusalKind::Other), "error script 2"),
            (refused("eval", RefusalKind::Unknown), "error script 2"),
            (refused("time", RefusalKind::Command), "error permission 2"),
            (refused("info", RefusalKind::Unknown), "error script 2"),
            (refused("hello", RefusalKind::Unknown), "error script 2"),
            (refused("client|tracking", RefusalKind::Unknown), "error script 2"),
            (refused("client|tracking", RefusalKind::Command), "error permission 2"),
            (refused("client|kill", RefusalKind::Unknown), "note permission-client 2"),
            (refused("client|kill", RefusalKind::Command), "note permission-client 2"),
            (refused("marker", RefusalKind::Key), "note permission-client 2"),
            (refused("delex", RefusalKind::Command), "note permission-delete 2"),
            (refused("delex", RefusalKind::Unknown), ""),
            (refused("client|kill", RefusalKind::Other), ""),
            (refused("lpos", RefusalKind::Command), "note permission-waiting 2"),
            (refused("publish", RefusalKind::Key), "note permission-waiting 2"),
            (refused("lpos", RefusalKind::Unknown), "note waiting 2"),
            (refused("client|caching", RefusalKind::Other), ""),
        ];
        for (refused, expected) in table {
            let found = last(Said { refused: vec![refused.clone()], ..said(2, "") });
            assert_eq!(found.concat(), expected, "{refused:?}");
        }
        // A failed snapshot is the reason for its refusals.
        let settings = [("save", "60 1"), ("stop-writes-on-bgsave-error", "yes")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let refused = vec![refused("set", RefusalKind::Other)];
        let failed = Said {
            settings: Ok(settings.into()),
            refused,
            ..said(2, "rdb_last_bgsave_status:err")
        };
        assert_eq!(last(failed), ["error bgsave-stops-writes 2"]);
    }

    #[test]
    fn marker_that_cannot_be_read_is_told_if_the_locks_user_is_another() {
        let marker = Some(Err(RefusalKind::Key));
        let why = |refused_other| {
            let answers = [Ok(Said { marker, refused_other, ..said(0, "") })];
            let report = examine(&config(&THREE[..1]), &answers, Some("locker"));
            report.findings.into_iter().map(|it| it.why).collect::<Vec<_>>().join("\n")
        };
        assert!(why(Some(Ok(Vec::new()))).contains("its flush marker (get is refused)"));
        // If it is this user, its missing right is another finding.
        assert!(!why(None).contains("its flush marker"));
    }

    #[test]
    fn clocks_are_compared_with_most_of_them() {
        let clocks = |ahead: &[[i64; 2]], urls: &[&str]| {
            let said = |(i, ahead): (usize, &[i64; 2])| Ok(with_clock(said(i, ""), *ahead));
            found(&config(urls), &ahead.iter().enumerate().map(said).collect::<Vec<_>>())
        };
        assert_eq!(clocks(&[[0, 0], [251, 251], [-251, -251]], &THREE), [""; 0]);
        let found = clocks(&[[0, 0], [252, 252], [0, 0]], &THREE);
        assert_eq!(found, ["warning clock-offset 1"]);
        let found = clocks(&[[900, 900], [900, 900], [900, 900]], &THREE);
        assert_eq!(found, ["warning clock-offset"], "this machine is wrong");
        let found = clocks(&[[0, 0], [300, 300]], &THREE[..2]);
        assert_eq!(found, ["warning clock-offset 1", "note even"]);
        // An hour is not slewed: that would take weeks.
        for (ahead, words) in [(9_000, "never step it"), (3_600_000, "stop Redis there, step")] {
            let said = [[0, 0], [ahead, ahead], [0, 0]];
            let said = said
                .iter()
                .enumerate()
                .map(|(i, it)| Ok(with_clock(super::tests::said(i, ""), *it)));
            let report = examine(&config(&THREE), &said.collect::<Vec<_>>(), None);
            let found = report.findings.iter().find(|it| it.id == Id::ClockOffset).unwrap();
            assert!(found.why.contains(words), "{}", found.why);
        }
        // 0.5 % in ten seconds are 50 ms, and the round trips leave a doubt of 2 ms.
        assert_eq!(clocks(&[[0, 0], [0, 52], [0, -52]], &THREE), [""; 0]);
        let found = clocks(&[[0, 0], [0, 53], [0, -53]], &THREE);
        assert_eq!(found, ["error clock-rate 1", "error clock-rate 2"]);
        let frozen = clocks(&[[0, 0], [0, -10_000], [0, 0]], &THREE);
        assert_eq!(frozen, ["error clock-frozen 1"]);
    }

    #[test]
    fn late_answers_are_compared_with_the_timeout() {
        let slow = |micros: &[u64]| {
            let sample = |micros: &u64| Sample {
                round_trip: Duration::from_micros(*micros),
                master: 1,
                here: 0,
                since_first: Duration::ZERO,
            };
            let first = micros.iter().map(sample).collect();
            last(Said { times: Times { first, later: Vec::new() }, ..said(2, "") }).concat()
        };
        assert_eq!(slow(&[25_000; 3]), "");
        assert_eq!(slow(&[10, 10, 25_001]), "warning latency 2");
        assert_eq!(slow(&[10, 50_001, 50_001]), "error latency 2");
    }

    #[test]
    fn votes_are_counted() {
        let young = || Ok(said(2, "uptime_in_seconds:2"));
        let down = || Err(Obstacle::Unreachable(Failure::Strange));
        let well = |i| Ok(said(i, ""));
        let three = config(&THREE);
        let report = |answers: &[_]| {
            let report = examine(&three, answers, None);
            (found(&three, answers), report.count(VoteState::Votes), report.can_lock())
        };
        let table = [
            (vec![well(0), well(1), young()], vec!["note young 2"], 2),
            (
                vec![well(0), down(), young()],
                vec!["error unreachable 1", "warning young 2", "error quorum"],
                1,
            ),
            (
                vec![down(), down(), well(2)],
                vec!["error unreachable 0", "error unreachable 1", "error quorum"],
                1,
            ),
        ];
        for (answers, findings, votes) in table {
            let (found, count, can_lock) = report(&answers);
            assert_eq!((found, count), (findings.iter().map(|it| it.to_string()).collect(), votes));
            assert_eq!(can_lock, votes >= 2);
        }
    }

    #[test]
    fn masters_of_one_machine_are_told_unless_all_are_here() {
        let said = || vec![Ok(said(0, "")), Ok(said(1, "")), Ok(said(2, ""))];
        let local = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://localhost:3"];
        assert_eq!(found(&config(&local), &said()), [""; 0]);
        let mixed = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://10.0.0.1"];
        assert_eq!(found(&config(&mixed), &said()), ["warning same-host 1"]);
    }

    #[test]
    fn open_masters_are_judged_by_the_addresses_that_reach_them() {
        let is_open = |url: &str, settings: &[(&str, &str)]| {
            let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            let said = Said { is_open: true, settings: Ok(settings.collect()), ..said(0, "") };
            let found = found(&config(&[url]), &[Ok(said)]);
            found.contains(&"warning open 0".to_owned())
        };
        let (off, on) = (("protected-mode", "no"), ("protected-mode", "yes"));
        assert!(is_open("redis://10.0.0.1", &[on, ("bind", "10.0.0.1")]));
        assert!(!is_open("redis://127.0.0.1", &[on, ("bind", "")]));
        assert!(!is_open("redis://127.0.0.1", &[off, ("bind", "127.0.0.1 -::1")]));
        assert!(is_open("redis://127.0.0.1", &[off, ("bind", "")]));
        assert!(is_open("redis://[::1]", &[off, ("bind", "* -::*")]));
        assert!(!is_open("unix:///run/redis.sock", &[off, ("bind", "*")]));
    }
}
