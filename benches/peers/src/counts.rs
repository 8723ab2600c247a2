//! What a pair costs that can be counted: instructions, system calls and allocations.
//!
//! Instructions and calls are those of two whole processes of different length, and their
//! difference is divided by the pairs that one has more than the other: so what is done once
//! cancels out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::child::run_beneath;
use crate::job::{Client, Job, Sample};

/// How long one process may take: beneath a tool, everything takes many times as long.
const RUN_MAX: Duration = Duration::from_secs(90);
/// How long a client waits for one master.
const PATIENCE: Duration = Duration::from_secs(10);

/// A tool that counts.
#[derive(Clone, Copy)]
enum Tool {
    Callgrind,
    Strace,
}

/// Counts for a job of counting; what cannot be counted is not a number.
pub fn count(job: &Job) -> io::Result<Sample> {
    let sample = run_beneath(&[], &run(job, lengths(job).1, 0), RUN_MAX)?;
    let instructions = Tool::Callgrind.counted(job, 1);
    Ok(Sample { instructions, calls: Tool::Strace.counted(job, 3), ..sample })
}

/// Instructions alone; not a number if they cannot be counted.
pub fn instructions(job: &Job) -> f64 {
    Tool::Callgrind.counted(job, 1)
}

/// So many pairs, with a key of their own. Beneath a tool, a pair may take long.
fn run(job: &Job, size: usize, place: u32) -> Job {
    Job { size, number: job.number + place, patience: PATIENCE, ..job.clone() }
}

/// Pairs of the short and of the long process: the slow ones do fewer.
fn lengths(job: &Job) -> (usize, usize) {
    match job.client {
        _ if job.pause >= Duration::from_millis(100) => (20, 80),
        _ if !job.pause.is_zero() => (100, 400),
        Client::Floor | Client::Muxlock | Client::Redis => (1_000, 3_000),
        Client::Rslock => (200, 600),
        Client::Redlock => (100, 300),
    }
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Callgrind => "valgrind",
            Tool::Strace => "strace",
        }
    }

    fn counted(self, job: &Job, place: u32) -> f64 {
        let complain = |error: &io::Error| eprintln!("    {}: {error}", self.name());
        self.per_pair(job, place).inspect_err(complain).unwrap_or(f64::NAN)
    }

    /// What one pair more adds to it.
    fn per_pair(self, job: &Job, place: u32) -> io::Result<f64> {
        let (short, long) = lengths(job);
        let few = self.total(&run(job, short, place))? as f64;
        let many = self.total(&run(job, long, place + 1))? as f64;
        Ok((many - few) / (long - short) as f64)
    }

    /// What a whole process does.
    fn total(self, job: &Job) -> io::Result<u64> {
        let report = Report::new(job);
        let file = report.0.to_string_lossy();
        let callgrind_out = format!("--callgrind-out-file={file}");
        let tool = match self {
            Tool::Callgrind => vec!["valgrind", "-q", "--tool=callgrind", &callgrind_out],
            Tool::Strace => vec!["strace", "-f", "-qq", "-c", "-o", &file],
        };
        run_beneath(&tool, job, RUN_MAX)?;
        let text = fs::read_to_string(&report.0)?;
        let total = match self {
            Tool::Callgrind => instructions_of(&text),
            Tool::Strace => calls(&text),
        };
        total.ok_or_else(|| io::Error::other(format!("{} reports no total", self.name())))
    }
}

/// A file that is removed in the end.
struct Report(PathBuf);

impl Report {
    fn new(job: &Job) -> Report {
        let name = format!("peers-{}-{}.count", std::process::id(), job.number);
        Report(Path::new(&std::env::temp_dir()).join(name))
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        // The tool may not have written it.
        let _ = fs::remove_file(&self.0);
    }
}

/// All instructions, from a file of callgrind.
fn instructions_of(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("summary: "))?.trim().parse().ok()
}

/// All calls, from the last line of a table of strace: per cent, seconds, µs/call, calls, errors,
/// and the word `total`.
fn calls(text: &str) -> Option<u64> {
    let line = text.lines().rev().find(|line| line.ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_found() {
        assert_eq!(instructions_of("events: Ir\nsummary: 123456\n\nfn=(1)\n"), Some(123_456));
        assert_eq!(instructions_of("events: Ir\n"), None);
        let table = "% time  seconds  usecs/call  calls  errors syscall\n\
            ------ ------ ------ ------ ------ ------\n \
            60.00 0.001 1 900 sendto\n\
            100.00    0.000866           5       165         4 total\n";
        assert_eq!(calls(table), Some(165));
        assert_eq!(calls("strace: nothing"), None);
    }
}
