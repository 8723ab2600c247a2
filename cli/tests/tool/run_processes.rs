//! The processes that `muxlock run` starts besides the command, each on its own. Times of hours
//! take none: what is due is due at once, and what is not never comes.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use testbed::{Folder, PATIENT, skip, within};

use super::cli::{muxlock, start};
use super::run::{Running, first_line, signal, unhurried};

const HOUR: Duration = Duration::from_secs(3_600);
/// The guard has ended the command.
const ACTED: i32 = 1;
const FAILED: i32 = 125;

fn since_boot() -> Duration {
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    Duration::from_secs_f64(uptime.split(' ').next().unwrap().parse().unwrap())
}

/// A guard, and the command that it has started.
struct Guard(Running);

impl Guard {
    /// Its lock expires at `deadline`. The guard reads words from descriptor 3. Its reports stay
    /// unread.
    fn start(script: &str, [kill_after, node_timeout, deadline]: [Duration; 3]) -> Guard {
        let start = "exec 3<&0 4>/dev/null </dev/null; exec \"$0\" \"$@\"";
        let tool = env!("CARGO_BIN_EXE_muxlock");
        let nanos = [kill_after, node_timeout].map(|time| time.as_nanos().to_string());
        let mut guard = Command::new("sh");
        guard.args(["-c", start, tool, "__guard", &nanos[0], &nanos[1], "3", "4", "."]);
        guard.args(["sh", "-c", script]);
        let mut guard = Guard(Running::start(guard.stdin(Stdio::piped())));
        guard.tell(b'o', u64::MAX);
        assert_eq!(first_line(&mut guard.0.0), "ready");
        guard.tell(b'd', u64::try_from(deadline.as_nanos()).unwrap());
        guard
    }

    fn tell(&mut self, tag: u8, number: u64) {
        let word = [&[tag], &number.to_le_bytes()[..]].concat();
        self.0.0.stdin.as_mut().unwrap().write_all(&word).unwrap();
    }

    /// What it and the command have written, once both have ended.
    fn end(self) -> (i32, String, String) {
        self.0.end()
    }
}

/// The time to end the command, and that of one request, are left when the guard begins.
#[test]
fn guard_begins_in_time_to_end_the_command() {
    for (kill_after, node_timeout) in [(HOUR, Duration::ZERO), (Duration::ZERO, HOUR)] {
        let times = [kill_after, node_timeout, since_boot() + HOUR / 2];
        let guard = Guard::start("echo ready; exec sleep 60", times);
        let (code, out, err) = guard.end();
        assert_eq!((code, out.as_str()), (ACTED, ""), "SIGTERM was sent: {err}");
    }
}

#[test]
fn guard_does_not_wait_for_the_deadline_to_kill() {
    let times = [2 * HOUR, HOUR, since_boot() + HOUR];
    let guard = Guard::start("trap '' TERM; echo ready; exec sleep 60", times);
    let (code, _, err) = guard.end();
    assert_eq!(code, ACTED, "SIGKILL was sent a node_timeout before the deadline: {err}");
}

/// muxlock has sent SIGTERM before it was killed.
#[test]
fn guard_only_kills_a_command_that_is_ending() {
    let script = "trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done";
    let mut guard = Guard::start(script, [Duration::ZERO, Duration::ZERO, since_boot() + HOUR]);
    let soon_after = since_boot() + Duration::from_millis(200);
    guard.tell(b'e', u64::try_from(soon_after.as_nanos()).unwrap());
    drop(guard.0.0.stdin.take());
    let (code, out, err) = guard.end();
    assert_eq!((code, err.as_str()), (ACTED, ""), "SIGKILL was sent");
    assert_eq!(out, "", "no second SIGTERM");
}

/// muxlock was stopped, and goes on after its guard has begun.
#[test]
fn guard_that_has_begun_gives_no_more_time() {
    let script = "trap 'echo term' TERM; echo ready; i=0; \
                  while [ $i -lt 2000 ]; do sleep 0.01; i=$((i+1)); done; echo survived";
    let kill_after = Duration::from_millis(500);
    let deadline = since_boot() + kill_after + Duration::from_millis(200);
    let mut guard = Guard::start(script, [kill_after, Duration::ZERO, deadline]);
    assert_eq!(first_line(&mut guard.0.0), "term");
    guard.tell(b'e', u64::try_from((since_boot() + HOUR).as_nanos()).unwrap());
    let (code, out, err) = guard.end();
    assert_eq!((code, out.as_str()), (ACTED, ""), "{err}");
}

/// If muxlock has ended, or the lock is nearly over, the command does not begin.
#[test]
fn stub_runs_its_program_only_if_it_may() {
    let late = "muxlock: the command was not started: the lock nearly expired\n";
    for (gate, expected) in [
        (&u64::MAX.to_le_bytes()[..], (0, "ran\n", "")),
        (&1_u64.to_le_bytes(), (FAILED, "", late)),
        // Its guard says so.
        (&[], (FAILED, "", "")),
    ] {
        let mut stub = muxlock(&["__exec", "0", ".", "echo", "ran"]);
        let mut stub = Running::start(stub.stdin(Stdio::piped()));
        stub.0.stdin.take().unwrap().write_all(gate).unwrap();
        let (code, out, err) = stub.end();
        assert_eq!((code, out.as_str(), err.as_str()), expected);
    }
}

/// As `sudo` is: only root can end it, and the guard cannot either.
#[test]
fn slow_command_of_another_user_is_not_waited_for() {
    let is_root = fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t");
    if !is_root {
        return skip(
            "slow_command_of_another_user_is_not_waited_for",
            "only root makes such a command",
        );
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
    within(PATIENT, "muxlock does not wait for it", || child.0.try_wait().unwrap().is_some());
    let goes_on = fs::read(format!("/proc/{number}/comm")).is_ok_and(|name| name == b"sleep\n");
    signal("KILL", number.parse().unwrap());
    let (code, _, err) = child.end();
    let _ = fs::remove_dir_all(folder);
    assert!(goes_on, "{code}: {err}");
    let last = "muxlock: the command could not be killed and goes on; its lock expires\n";
    assert!(code == 120 && err.ends_with(last), "{code}: {err}");
}

/// As the first process of a container, it is the parent of what loses its own.
#[test]
fn slow_first_process_of_a_container_reaps() {
    let can = Command::new("unshare").args(["-p", "-f", "--mount-proc", "true"]).output();
    if !can.is_ok_and(|it| it.status.success()) {
        return skip("slow_first_process_of_a_container_reaps", "no process namespace may be made");
    }
    let (_masters, redlock, list) = start();
    let zombies = "cat /proc/[0-9]*/stat 2> /dev/null | grep -c ') Z '";
    let folder = Folder::create("first_process");
    let in_container = |options: &[&str]| {
        let file = folder.0.join(options.len().to_string());
        let script = format!(
            "for i in 1 2 3; do (sleep 0.1 & exec true); done; sleep 1.5; {zombies} > {}; exit 7",
            file.display()
        );
        let tool = unhurried(&list, &[options, &["r", "-c", &script]].concat());
        let mut container = Command::new("unshare");
        container.args(["-p", "-f", "--mount-proc"]).arg(tool.get_program()).args(tool.get_args());
        container.envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let status = container.status().unwrap();
        (status.code(), fs::read_to_string(file).unwrap())
    };
    assert_eq!(in_container(&[]), (Some(7), "0\n".into()));
    assert_eq!(in_container(&["--no-guard"]), (Some(7), "0\n".into()));
    assert!(redlock.try_lock("r", testbed::TTL).is_ok());
}

/// A shell that has started something and becomes muxlock keeps it.
#[test]
fn what_was_there_before_is_not_ended() {
    let (_masters, _redlock, list) = start();
    for options in [&["--max-time", "100ms"][..], &["--no-guard", "--max-time", "100ms"]] {
        let own =
            [options, &["--kill-after", "100ms", "r", "-c", "setsid sleep 60; true"]].concat();
        let tool = unhurried(&list, &own);
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 > /dev/null 2>&1 & echo $!; exec \"$0\" \"$@\""]);
        shell.arg(tool.get_program()).args(tool.get_args());
        shell.envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let (code, out, err) = Running::start(&mut shell).end();
        assert_eq!(code, 124, "{err}");
        signal("KILL", out.trim().parse().expect("it still runs"));
    }
}
