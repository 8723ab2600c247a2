//! The processes that `muxlock run` starts besides the command, each on its own. Times of hours
//! take none: what is due is due at once, and what is not never comes.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testbed::{skip, soon};

use super::cli::{muxlock, start};
use super::run::{Running, first_line, signal};

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

/// As `sudo` is: only root can end it, and the guard cannot either.
#[test]
fn command_of_another_user_is_not_waited_for() {
    let is_root = fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t");
    if !is_root {
        return skip("command_of_another_user_is_not_waited_for", "only root makes such a command");
    }
    // Where a program may have its owner's rights.
    let folder = std::env::temp_dir().join(format!("muxlock-other-user-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let rights = |name: &str, mode| {
        let path = folder.join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    fs::copy("/usr/bin/setpriv", folder.join("as-root")).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_muxlock"), folder.join("muxlock")).unwrap();
    rights("", 0o755);
    let (as_root, muxlock) = (rights("as-root", 0o4755), rights("muxlock", 0o755));
    let (masters, _redlock, list) = start();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups"]).arg(muxlock);
    command.args(["run", "--ttl", "2s", "--kill-after", "100ms", "r", "--"]).arg(as_root);
    command.args(["--ruid", "0", "sh", "-c", "echo $$; exec sleep 30"]);
    command.env("MUXLOCK_NODES", list).env("MUXLOCK_RESTART_GUARD", "off");
    let mut child = Running::start(&mut command);
    let number = first_line(&mut child.0);
    for master in masters.iter() {
        master.query(&[b"DEL", b"r"]).unwrap();
    }
    soon("muxlock does not wait for it", || child.0.try_wait().unwrap().is_some());
    let goes_on = fs::read(format!("/proc/{number}/comm")).is_ok_and(|name| name == b"sleep\n");
    signal("KILL", number.parse().unwrap());
    let (code, _, err) = child.end();
    let _ = fs::remove_dir_all(folder);
    assert!(goes_on, "{code}: {err}");
    let last = "muxlock: the command could not be killed and goes on; the lock ends by itself\n";
    assert!(code == 120 && err.ends_with(last), "{code}: {err}");
}
