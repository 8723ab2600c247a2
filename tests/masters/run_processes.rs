//! The processes that `muxlock run` starts besides the command, each on its own. Times of hours
//! take none: what is due is due at once, and what is not never comes.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testbed::soon;

use super::cli::muxlock;
use super::run::{Running, first_line};

const HOUR: Duration = Duration::from_secs(3_600);
/// The guard has ended the command.
const ACTED: i32 = 1;
const FAILED: i32 = 125;

fn since_boot() -> Duration {
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    Duration::from_secs_f64(uptime.split(' ').next().unwrap().parse().unwrap())
}

/// A command in a process group of its own.
struct Group(Running);

impl Group {
    fn start(script: &str) -> Group {
        let mut command = Command::new("sh");
        let mut group = Running::start(command.args(["-c", script]).process_group(0));
        assert_eq!(first_line(&mut group.0), "ready");
        Group(group)
    }

    fn has_ended(&mut self) -> bool {
        self.0.0.try_wait().unwrap().is_some()
    }
}

/// A guard of this group, whose lock is over at `deadline`.
fn guard(group: &Group, kill_after: Duration, node_timeout: Duration, deadline: Duration) -> Child {
    let nanos = [kill_after, node_timeout].map(|time| time.as_nanos().to_string());
    let mut guard = muxlock(&["__guard", &nanos[0], &nanos[1]]);
    let mut guard = guard.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    tell(&mut guard, b'd', u64::try_from(deadline.as_nanos()).unwrap());
    tell(&mut guard, b'g', group.0.id().into());
    guard
}

fn tell(guard: &mut Child, tag: u8, number: u64) {
    let word = [&[tag], &number.to_le_bytes()[..]].concat();
    guard.stdin.as_mut().unwrap().write_all(&word).unwrap();
}

/// The time to end the command, and that of one request, are left when the guard begins.
#[test]
fn guard_begins_in_time_to_end_the_command() {
    for (kill_after, node_timeout) in [(HOUR, Duration::ZERO), (Duration::ZERO, HOUR)] {
        let mut group = Group::start("echo ready; exec sleep 60");
        let mut guard = guard(&group, kill_after, node_timeout, since_boot() + HOUR / 2);
        soon("SIGTERM was sent", || group.has_ended());
        assert_eq!(guard.wait().unwrap().code(), Some(ACTED));
    }
}

#[test]
fn guard_does_not_wait_for_the_deadline_to_kill() {
    let mut group = Group::start("trap '' TERM; echo ready; exec sleep 60");
    let mut guard = guard(&group, 2 * HOUR, HOUR, since_boot() + HOUR);
    soon("SIGKILL was sent a node_timeout before the deadline", || group.has_ended());
    assert_eq!(guard.wait().unwrap().code(), Some(ACTED));
}

/// muxlock has sent SIGTERM before it was killed.
#[test]
fn guard_only_kills_a_group_that_is_ending() {
    let mut group = Group::start("trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done");
    let mut guard = guard(&group, Duration::ZERO, Duration::ZERO, since_boot() + HOUR);
    let soon_after = since_boot() + Duration::from_millis(200);
    tell(&mut guard, b'e', u64::try_from(soon_after.as_nanos()).unwrap());
    drop(guard.stdin.take());
    soon("SIGKILL was sent", || group.has_ended());
    let output = guard.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(ACTED), &b""[..]));
    let mut out = String::new();
    group.0.0.stdout.as_mut().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(out, "", "no second SIGTERM");
}

/// If muxlock has ended, or the lock is nearly over, the command does not begin.
#[test]
fn stub_runs_its_program_only_if_it_may() {
    for (gate, expected) in [
        (&u64::MAX.to_le_bytes()[..], (0, "ran\n")),
        (&1_u64.to_le_bytes(), (FAILED, "")),
        (&[], (FAILED, "")),
    ] {
        let mut stub = muxlock(&["__exec", "0", "free", "echo", "ran"]);
        let mut stub = Running::start(stub.stdin(Stdio::piped()));
        stub.0.stdin.take().unwrap().write_all(gate).unwrap();
        let (code, out, err) = stub.end();
        assert_eq!((code, out.as_str(), err.as_str()), (expected.0, expected.1, ""));
    }
}
