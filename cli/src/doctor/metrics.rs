//! The report in the text format of Prometheus, for the textfile collector of its node exporter.

use std::collections::BTreeMap;
use std::fmt::Write;

use muxlock::unstable_tool::printable;
use muxlock::{Config, quorum};

use super::ask::{Obstacle, Said};
use super::checks::VoteState;
use super::finding::{Finding, Severity};
use super::group::Report;
use super::page::{Row, rows};
use crate::in_force::InForce;

/// A label's name and value.
type Label<'a> = (&'static str, &'a str);

/// The text of metrics. Their names and labels are stable: alerts use them.
struct Metrics {
    text: String,
}

impl Metrics {
    /// Begins a metric. Without samples, it is left out.
    fn add<'a>(
        &mut self,
        name: &str,
        (kind, help): (&str, &str),
        samples: impl IntoIterator<Item = (Vec<Label<'a>>, f64)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let _ = writeln!(self.text, "# HELP muxlock_doctor_{name} {help}");
        let _ = writeln!(self.text, "# TYPE muxlock_doctor_{name} {kind}");
        for (labels, value) in samples {
            let labels =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
            let labels = labels.collect::<Vec<_>>().join(",");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let _ = writeln!(self.text, "muxlock_doctor_{name}{labels} {value}");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.add(name, ("gauge", help), [(Vec::new(), value)]);
    }

    /// A gauge with a sample for each server that has a value.
    fn each(&mut self, name: &str, help: &str, rows: &[Row], of: impl Fn(&Row) -> Option<f64>) {
        let sample = |row| {
            let row: &Row = row;
            Some((vec![("server", row.address.as_str())], of(row)?))
        };
        self.add(name, ("gauge", help), rows.iter().filter_map(sample));
    }
}

/// The value of a label.
fn escaped(value: &str) -> String {
    printable(value).replace('\\', r"\\").replace('"', "\\\"")
}

/// Complete even if no server answers. `now` is in microseconds since 1970.
pub fn text(
    config: &Config,
    in_force: &InForce,
    answers: &[Result<Said, Obstacle>],
    report: &Report,
    now: i64,
) -> String {
    let rows = rows(config, answers, report);
    let mut metrics = Metrics { text: String::new() };
    let seconds = now as f64 / 1e6;
    metrics.gauge("last_run_timestamp_seconds", "Time of this report.", seconds);
    let labels = in_force.labels();
    let labels = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let help = "Always 1; the labels are the settings in force.";
    metrics.add("settings", ("gauge", help), [(labels, 1.0)]);
    metrics.gauge("servers", "Number of servers in the configuration.", rows.len() as f64);
    let votes = report.count(VoteState::Votes) as f64;
    metrics.gauge("votes", "Number of servers whose vote counts for a new client.", votes);
    metrics.gauge("quorum", "Number of votes that a lock needs.", quorum(rows.len()) as f64);

    let count = |severity: Severity| {
        let found = report.findings.iter().filter(|it| it.severity == severity).count();
        (vec![("severity", severity.name())], found as f64)
    };
    let severities = [Severity::Error, Severity::Warning, Severity::Note];
    let help = "Number of findings by severity.";
    metrics.add("findings", ("gauge", help), severities.map(count));
    let mut findings = BTreeMap::new();
    for Finding { severity, id, masters, .. } in &report.findings {
        let servers = masters.iter().map(|node| rows[*node].address.as_str());
        let as_group = masters.is_empty().then_some("");
        for server in servers.chain(as_group) {
            *findings.entry((severity.name(), id.name(), server)).or_insert(0.0) += 1.0;
        }
    }
    let samples = findings.iter().map(|((severity, id, server), count)| {
        (vec![("id", id.as_str()), ("severity", *severity), ("server", *server)], *count)
    });
    let help = "Number of findings by id and server; empty if all servers are meant.";
    metrics.add("finding", ("gauge", help), samples);

    let is = |is_so: bool| Some(f64::from(u8::from(is_so)));
    metrics.each("up", "Whether the server answered.", &rows, |row| is(row.is_up));
    let votes = |row: &Row| is(row.vote_state == VoteState::Votes);
    metrics.each("can_vote", "Whether the vote of the server counts now.", &rows, votes);
    let uptime = |row: &Row| Some(row.uptime?.as_secs_f64());
    metrics.each("uptime_seconds", "Time since the start of the server.", &rows, uptime);
    let ahead = |row: &Row| Some(row.clock?.0 as f64 / 1e6);
    let help = "Time by which the clock of the server is ahead of this one.";
    metrics.each("clock_offset_seconds", help, &rows, ahead);
    let doubt = |row: &Row| Some(row.clock?.1 as f64 / 1e6);
    let help = "Largest error of the clock offset.";
    metrics.each("clock_offset_error_seconds", help, &rows, doubt);
    let latency = |i: usize| move |row: &Row| Some(row.latency?[i].as_secs_f64());
    let help = "Median of the times from a question to its answer.";
    metrics.each("round_trip_p50_seconds", help, &rows, latency(0));
    let help = "99th percentile of the times from a question to its answer.";
    metrics.each("round_trip_p99_seconds", help, &rows, latency(1));
    let dropped = rows.iter().zip(answers).filter_map(|(row, said)| {
        let keys = said.as_ref().ok()?.figure("evicted_keys")?;
        Some((vec![("server", row.address.as_str())], keys as f64))
    });
    let help = "Number of keys that the server has evicted since its start.";
    metrics.add("evicted_keys_total", ("counter", help), dropped);
    metrics.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut metrics = Metrics { text: String::new() };
        let samples = [(vec![("server", "a\"b\\c\nd"), ("id", "x")], 0.5), (vec![], 1e9)];
        metrics.add("up", ("gauge", "Help."), samples);
        metrics.add("none", ("gauge", "Help."), []);
        let lines: Vec<_> = metrics.text.lines().collect();
        assert_eq!(lines[0], "# HELP muxlock_doctor_up Help.");
        assert_eq!(lines[1], "# TYPE muxlock_doctor_up gauge");
        assert_eq!(lines[2], r#"muxlock_doctor_up{server="a\"b\\c\\nd",id="x"} 0.5"#);
        assert_eq!(lines[3], "muxlock_doctor_up 1000000000");
        assert_eq!(lines.len(), 4);
    }
}
