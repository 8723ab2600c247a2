//! The report, for people and for programs.

use std::time::Duration;

use muxlock::unstable_tool::{ConfigExt, MasterEndpoint, printable};
use muxlock::{Config, quorum};
use serde_json::{Value, json};

use super::ask::{Obstacle, Said};
use super::checks::VoteState;
use super::finding::{ADMINISTRATOR, Finding, Severity};
use super::group::Report;
use crate::in_force::InForce;
use crate::paint::{Paint, Style, age, count, time, wrap};

/// Fits a terminal of 80 columns.
const WIDTH: usize = 78;
const INDENT: &str = "    ";
/// The longest text of a server that is shown.
const WORD_CHARS_MAX: usize = 24;

/// The row of a master.
pub struct Row {
    pub address: String,
    version: String,
    role: &'static str,
    pub is_up: bool,
    pub uptime: Option<Duration>,
    /// In microseconds, with its doubt.
    pub clock: Option<(i64, i64)>,
    pub latency: Option<[Duration; 2]>,
    pub vote_state: VoteState,
}

impl Row {
    fn new(address: &str, said: &Result<Said, Obstacle>, vote_state: VoteState) -> Row {
        let mut row = Row {
            address: printable(address),
            version: "-".to_owned(),
            role: "-",
            is_up: said.is_ok(),
            uptime: None,
            clock: None,
            latency: None,
            vote_state,
        };
        let Ok(said) = said else { return row };
        let version = said.info("valkey_version").or(said.info("redis_version"));
        row.version = version.and_then(word).unwrap_or("-").to_owned();
        row.role = match said.info("role") {
            Some("master") => "master",
            Some("slave") => "replica",
            Some("sentinel") => "sentinel",
            _ => "-",
        };
        row.uptime = said.figure("uptime_in_seconds").map(Duration::from_secs);
        row.clock = said.times.offset().map(|offset| (offset.ahead, offset.doubt));
        let latencies = said.times.latencies();
        row.latency = (latencies.len() > 0).then(|| [latencies.median(), latencies.percentile(99)]);
        row
    }

    fn cells(&self) -> [String; 7] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let latency = |i: usize| or_dash(self.latency.map(|latency| time(latency[i])));
        [
            self.address.clone(),
            self.version.clone(),
            self.role.to_owned(),
            or_dash(self.uptime.map(age)),
            or_dash(self.clock.map(|(ahead, doubt)| offset(ahead, doubt))),
            format!("{} / {}", latency(0), latency(1)),
            vote_word(self.vote_state).to_owned(),
        ]
    }
}

fn vote_word(vote_state: VoteState) -> &'static str {
    match vote_state {
        VoteState::Votes => "votes",
        VoteState::Waits => "waits",
        VoteState::Fails => "no vote",
    }
}

/// No figure that the round trip makes doubtful.
fn offset(ahead: i64, doubt: i64) -> String {
    let ahead = if ahead.abs() <= doubt { 0 } else { ahead };
    match ahead {
        0 => "0 ms".to_owned(),
        _ => format!("{:+.1} ms", ahead as f64 / 1e3),
    }
}

/// A word that a server chose, if it looks like a version.
fn word(text: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    (!text.is_empty() && text.len() <= WORD_CHARS_MAX && text.bytes().all(is_plain)).then_some(text)
}

/// The worst of the findings, in a word.
fn verdict(findings: &[Finding]) -> &'static str {
    match findings.iter().map(|finding| finding.severity).min() {
        Some(Severity::Error) => "errors",
        Some(Severity::Warning) => "warnings",
        Some(Severity::Note) => "notes",
        None => "healthy",
    }
}

pub fn rows(config: &Config, answers: &[Result<Said, Obstacle>], report: &Report) -> Vec<Row> {
    let row = |(node, said)| Row::new(config.master(node).address, said, report.vote_states[node]);
    answers.iter().enumerate().map(row).collect()
}

/// For people.
pub fn text(config: &Config, answers: &[Result<Said, Obstacle>], report: &Report) -> String {
    let paint = Paint::new(false);
    let head = ["master", "version", "role", "up", "clock", "p50 / p99", ""].map(str::to_owned);
    let mut table = vec![head];
    table.extend(rows(config, answers, report).iter().map(Row::cells));
    let width = |i: usize| table.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..7).map(width).collect();
    let mut text = String::new();
    for (i, row) in table.iter().enumerate() {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let style = if i == 0 { Style::Faint } else { Style::Plain };
        text.push_str(&paint.style(style, line.trim_end()));
        text.push('\n');
    }
    for finding in &report.findings {
        text.push('\n');
        show(&mut text, paint, config, finding);
    }
    text.push('\n');
    let mut tail = Vec::new();
    if report.findings.iter().any(|finding| finding.fix.is_some()) {
        let by = format!(" --user {ADMINISTRATOR} ");
        if report.findings.iter().any(|it| it.fix.as_ref().is_some_and(|fix| fix.contains(&by))) {
            tail.push(
                "Set REDISCLI_AUTH to the password of admin before you run the commands; if your \
                 administrator has another name, write that.",
            );
        } else if (0..config.nodes()).any(|node| config.master(node).has_password) {
            tail.push("The commands contain no password: set REDISCLI_AUTH before you run them.");
        }
        let is_closed = |node| {
            matches!(
                config.master(node).endpoint,
                MasterEndpoint::Sentinel { has_password: true, .. }
            )
        };
        if (0..config.nodes()).any(is_closed) {
            tail.push("Set SENTINEL_AUTH to the password of the Sentinels.");
        }
        if report.findings.iter().any(|it| it.fix.as_ref().is_some_and(|fix| is_setting(fix))) {
            tail.push(
                "A restart undoes CONFIG SET and ACL SETUSER: write the changes into the server's \
                 configuration file.",
            );
        }
    }
    for line in wrap(&tail.join(" "), WIDTH) {
        text.push_str(&line);
        text.push('\n');
    }
    let of = |severity| report.findings.iter().filter(|it| it.severity == severity).count();
    let parts = [Severity::Error, Severity::Warning, Severity::Note]
        .map(|severity| (of(severity), severity.name()))
        .into_iter()
        .filter(|(found, _)| *found > 0)
        .map(|(found, name)| count(found, name));
    let parts = parts.collect::<Vec<_>>().join(", ");
    let found = if parts.is_empty() { "no findings".to_owned() } else { parts };
    let (votes, total) = (report.count(VoteState::Votes), config.nodes());
    text.push_str(&format!(
        "{found}; {votes} of {} can vote now, a lock needs {}\n",
        count(total, "master"),
        quorum(total)
    ));
    text
}

fn is_setting(fix: &str) -> bool {
    fix.contains(" CONFIG SET ") || fix.contains(" ACL SETUSER ")
}

fn show(text: &mut String, paint: Paint, config: &Config, finding: &Finding) {
    let style = match finding.severity {
        Severity::Error => Style::Bad,
        Severity::Warning => Style::Doubtful,
        Severity::Note => Style::Faint,
    };
    let masters = || finding.masters.iter().map(|node| config.master(*node).address);
    let subject = match finding.masters.len() {
        some if some > 0 && (some == 1 || some < config.nodes()) => {
            masters().collect::<Vec<_>>().join(", ")
        }
        _ => "all masters".to_owned(),
    };
    let subject = printable(&subject);
    let severity = paint.style(style, &format!("{:7}", finding.severity.name()));
    text.push_str(&format!("{severity}  {}  {subject}\n", finding.id.name()));
    for line in wrap(&printable(&finding.why), WIDTH - INDENT.len()) {
        text.push_str(&format!("{INDENT}{line}\n"));
    }
    // As they are: they are to be pasted.
    for line in finding.fix.iter().flat_map(|fix| fix.lines()) {
        text.push_str(&format!("{INDENT}  {}\n", paint.style(Style::Strong, line)));
    }
}

/// For programs.
pub fn json(
    config: &Config,
    in_force: &InForce,
    answers: &[Result<Said, Obstacle>],
    report: &Report,
) -> Value {
    let master = |row: &Row| {
        json!({
            "address": row.address,
            "version": (row.version != "-").then_some(&row.version),
            "role": (row.role != "-").then_some(row.role),
            "uptime_s": row.uptime.map(|uptime| uptime.as_secs()),
            "clock_ahead_us": row.clock.map(|(ahead, _)| ahead),
            "clock_doubt_us": row.clock.map(|(_, doubt)| doubt),
            "p50_us": row.latency.map(|[p50, _]| p50.as_micros() as u64),
            "p99_us": row.latency.map(|[_, p99]| p99.as_micros() as u64),
            "vote": vote_word(row.vote_state),
        })
    };
    let finding = |finding: &Finding| {
        let masters = finding.masters.iter().map(|node| config.master(*node).address);
        let masters: Vec<_> = masters.collect();
        json!({
            "id": finding.id.name(),
            "severity": finding.severity.name(),
            "master": masters.first().filter(|_| masters.len() == 1),
            "masters": masters,
            "why": finding.why,
            "fix": finding.fix,
        })
    };
    json!({
        "settings": in_force.as_json(),
        "masters": rows(config, answers, report).iter().map(master).collect::<Vec<_>>(),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "votes": report.count(VoteState::Votes),
        "quorum": quorum(config.nodes()),
        "verdict": verdict(&report.findings),
    })
}
