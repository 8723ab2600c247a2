//! `muxlock run` under faults: the command is over before another client's begins.
//!
//! More repetitions than by default: `scripts/release run`.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use testbed::{Folder, PATIENT, heavy, pause, within};

use super::cli::start;
use super::run::{Running, children, first_line, guarded, signal, unhurried};

/// How many commands meet each fault, if the environment does not say.
const TIMES: usize = 6;
/// As many at the same time.
const AT_ONCE: usize = 6;
/// Long enough for a few renewals that a busy machine delays.
const TTL: &str = "5s";

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// SIGSTOP of muxlock.
    Stop,
    /// SIGKILL of muxlock.
    Kill,
    /// Two of three masters say nothing.
    Freeze,
}

/// Two commands for one lock. The first has started; it ignores SIGTERM, and so does what it has
/// started.
struct Pair {
    first: Running,
    second: Running,
    folder: Folder,
}

impl Pair {
    fn start(list: &str, name: &str, options: &[&str]) -> Pair {
        let folder = Folder::create(name);
        let [first, second, group] = ["first", "second", "group"].map(|file| folder.0.join(file));
        let signs = format!("while :; do date +%s%N >> {}; sleep 0.01; done", first.display());
        let script = format!("trap '' TERM; echo $$ > {}; sh -c '{signs}'", group.display());
        let own = ["--ttl", TTL, "--kill-after", "300ms", name, "-c", &script];
        let running = Running::start(&mut unhurried(list, &[options, &own].concat()));
        within(PATIENT, "the command runs", || first.exists());
        let script = format!("date +%s%N > {}", second.display());
        let waits = Running::start(&mut unhurried(list, &["-w", "60s", name, "-c", &script]));
        Pair { first: running, second: waits, folder }
    }

    fn last_number(&self, file: &str) -> i64 {
        let text = fs::read_to_string(self.folder.0.join(file)).unwrap();
        text.lines().last().and_then(|line| line.parse().ok()).expect("a number")
    }

    /// From the last sign of life of the first to the start of the second, in milliseconds; less
    /// than zero if they overlap.
    fn margin(&self) -> i64 {
        (self.last_number("second") - self.last_number("first")) / 1_000_000
    }

    /// Waits for the second command. Returns the exit status of the first, if it has one, and the
    /// margin.
    fn end(mut self, expected: Expected) -> (Option<i32>, i64) {
        assert!(self.second.0.wait().unwrap().success());
        match expected {
            // An overlap would show in the next signs.
            Expected::Apart => pause(Duration::from_millis(100)),
            Expected::Overlap => within(PATIENT, "they overlap", || self.margin() < 0),
        }
        let margin = self.margin();
        let _ = Command::new("kill").args(["-CONT", &self.first.id().to_string()]).status();
        let group = self.last_number("group");
        if margin < 0 {
            // Without a guard, nothing else does it, unless the command has ended by now.
            let kill = format!("kill -KILL -{group}");
            let _ = Command::new("sh").args(["-c", &kill]).status();
        }
        (self.first.0.wait().unwrap().code(), margin)
    }
}

#[derive(Clone, Copy)]
enum Expected {
    Apart,
    Overlap,
}

/// Lets commands meet a fault. Returns their exit status and margins.
fn margins(fault: Fault, options: &[&str], expected: Expected) -> Vec<(Option<i32>, i64)> {
    let times = env::var("MUXLOCK_GUARD_TIMES").map_or(TIMES, |times| times.parse().unwrap());
    let (masters, _redlock, list) = start();
    let mut found = Vec::new();
    while found.len() < times {
        let of = |i| {
            let (list, name) = (&list, format!("{fault:?}-{}-{}", options.len(), found.len() + i));
            move || Pair::start(list, &name, options)
        };
        let pairs: Vec<Pair> = thread::scope(|scope| {
            let all: Vec<_> = (0..AT_ONCE).map(|i| scope.spawn(of(i))).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        match fault {
            Fault::Stop => pairs.iter().for_each(|pair| signal("STOP", pair.first.id())),
            Fault::Kill => pairs.iter().for_each(|pair| signal("KILL", pair.first.id())),
            Fault::Freeze => masters.iter().take(2).for_each(|it| it.freeze().unwrap()),
        }
        if matches!(fault, Fault::Freeze) {
            // Until the locks of the first commands are over.
            pause(Duration::from_millis(5_500));
            masters.iter().take(2).for_each(|it| it.thaw().unwrap());
        }
        found.extend(pairs.into_iter().map(|pair| pair.end(expected)));
    }
    let all = || found.iter().map(|one| one.1);
    let (least, most) = (all().min().unwrap(), all().max().unwrap());
    let of = format!("{fault:?} {options:?}, {} times", found.len());
    println!("{of}: {least} to {most} ms from the last sign of life to the next start");
    found
}

/// The first command's whole group is over before the second begins.
fn never_overlap(fault: Fault, code: Option<i32>) {
    let _alone = heavy();
    let found = margins(fault, &[], Expected::Apart);
    assert!(found.iter().all(|one| one.0 == code && one.1 > 0), "{found:?}");
}

#[test]
fn slow_alone_command_of_a_stopped_muxlock_is_over_before_the_next_begins() {
    never_overlap(Fault::Stop, Some(120));
}

#[test]
fn slow_alone_core_command_of_a_killed_muxlock_is_over_before_the_next_begins() {
    never_overlap(Fault::Kill, None);
}

#[test]
fn slow_alone_command_whose_masters_freeze_is_over_before_the_next_begins() {
    never_overlap(Fault::Freeze, Some(120));
}

/// The control: these faults do overlap where nothing guards.
#[test]
fn slow_alone_without_the_guard_commands_overlap() {
    let _alone = heavy();
    for fault in [Fault::Stop, Fault::Kill] {
        let found = margins(fault, &["--no-guard"], Expected::Overlap);
        assert!(found.iter().all(|one| one.1 < 0), "{found:?}");
    }
}

/// Nothing else ends its command when the guard is killed, and the user is told so. muxlock still
/// does.
#[test]
fn slow_end_of_the_guard_is_told() {
    let (masters, _redlock, list) = start();
    let mut child = Running::start(&mut unhurried(
        &list,
        &["--ttl", TTL, "r", "-c", "echo ready; exec sleep 60"],
    ));
    assert_eq!(first_line(&mut child.0), "ready");
    signal("KILL", children(child.id())[0].parse().unwrap());
    masters.iter().take(2).for_each(|it| it.freeze().unwrap());
    let (code, _, err) = child.end();
    assert_eq!(code, 120, "{err}");
    let told = "muxlock: the guard process has ended: if muxlock is killed, the command goes on\n";
    assert_eq!(err.matches(told).count(), 1, "{err}");
    assert!(err.contains("muxlock: lost r with "), "{err}");
    masters.iter().take(2).for_each(|it| it.thaw().unwrap());
}

/// Whether a process has ended and is not reaped.
fn is_zombie(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().trim_start().starts_with('Z')
}

/// The guard has ended the command, and muxlock goes on while the lock is still valid.
#[test]
fn slow_act_of_the_guard_is_told_by_a_muxlock_that_goes_on() {
    let (_masters, _redlock, list) = start();
    let own = ["--ttl", "2s", "--kill-after", "300ms", "r", "-c", "echo $$; exec sleep 60"];
    let mut child = Running::start(&mut unhurried(&list, &own));
    let command = first_line(&mut child.0);
    let guard = children(child.id());
    signal("STOP", child.id());
    within(PATIENT, "the guard has ended the command", || {
        is_zombie(&command) && is_zombie(&guard[0])
    });
    signal("CONT", child.id());
    let (code, _, err) = child.end();
    assert!(code == 120 && err.contains("lost r: muxlock was too late to renew it"), "{err}");
}

/// It ended by itself, and too late.
#[test]
fn slow_lock_that_was_over_before_the_command_is_told() {
    let (masters, _redlock, list) = start();
    let own = ["--no-guard", "--ttl", "2s", "r", "-c", "echo $$; read x"];
    let mut child = Running::start(unhurried(&list, &own).stdin(Stdio::piped()));
    let command = first_line(&mut child.0);
    signal("STOP", child.id());
    within(PATIENT, "the lock is over", || masters.iter().all(|it| it.dbsize().unwrap() == 0));
    // A release would find nothing out.
    masters.iter().for_each(|it| it.freeze().unwrap());
    child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    within(PATIENT, "the command has ended", || is_zombie(&command));
    signal("CONT", child.id());
    let (code, _, err) = child.end();
    let words = "lost r: muxlock was too late to renew it; the command had ended with 0\n";
    assert!(code == 120 && err.ends_with(words), "{code} {err}");
}

/// muxlock is killed after it has sent SIGTERM: the guard only sends SIGKILL.
#[test]
fn slow_guard_knows_that_a_lost_lock_ends_its_command() {
    let (masters, _redlock, list) = start();
    let script = "trap 'echo term' TERM; echo ready; while :; do sleep 0.01; done";
    let own = ["--ttl", "2s", "--kill-after", "500ms", "r", "-c", script];
    let mut child = Running::start(&mut unhurried(&list, &own));
    assert_eq!(first_line(&mut child.0), "ready");
    masters.iter().for_each(|it| drop(it.query(&[b"DEL", b"r"]).unwrap()));
    assert_eq!(first_line(&mut child.0), "term");
    signal("KILL", child.id());
    // Up to the end of all processes.
    let (mut out, mut err) = (String::new(), String::new());
    child.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(out.is_empty() && !err.contains("muxlock has ended before its command"), "{out}{err}");
}

/// What a master has granted by then is released.
#[test]
fn signal_while_masters_are_asked_takes_back_what_they_granted() {
    let (masters, _redlock, list) = start();
    masters.iter().skip(1).for_each(|it| it.freeze().unwrap());
    let own = ["--ttl", "30s", "--node-timeout", "5s", "-w", "60s", "r", "true"];
    let child = Running::start(&mut guarded(&list, &own));
    within(PATIENT, "one master has granted it", || masters[0].dbsize().unwrap() == 1);
    signal("TERM", child.id());
    assert_eq!(child.end(), (143, String::new(), String::new()));
    assert_eq!(masters[0].dbsize().unwrap(), 0);
}

/// Leftovers of the first process are ended as well, even if muxlock is killed.
#[test]
fn slow_group_is_ended_after_its_first_process() {
    let (masters, _redlock, list) = start();
    for is_killed in [false, true] {
        let name = format!("group-{is_killed}");
        let folder = Folder::create(&name);
        let signs = folder.0.join("signs");
        let rest = format!(
            "trap \"\" TERM; while :; do date +%s%N >> {}; sleep 0.01; done",
            signs.display()
        );
        let script = format!("sh -c '{rest}' & sleep 60");
        let own =
            ["--ttl", TTL, "--max-time", "200ms", "--kill-after", "500ms", &name, "-c", &script];
        let mut child = Running::start(&mut unhurried(&list, &own));
        within(PATIENT, "SIGTERM was sent", || folder.0.join("signs").exists());
        if is_killed {
            pause(Duration::from_millis(400));
            signal("KILL", child.id());
        }
        let code = child.0.wait().unwrap().code();
        assert_eq!(code, (!is_killed).then_some(124));
        within(PATIENT, "the lock is over", || masters.iter().all(|it| it.dbsize().unwrap() == 0));
        let lines = || fs::read_to_string(&signs).unwrap().lines().count();
        let before = lines();
        pause(Duration::from_millis(200));
        assert_eq!(lines(), before, "nothing of the group lives");
    }
}

/// Unread words delay neither SIGKILL nor the guard.
#[test]
fn slow_full_pipe_delays_no_end() {
    let (masters, _redlock, list) = start();
    let folder = Folder::create("full_pipe");
    let signs = folder.0.join("signs");
    let fill = "dd if=/dev/zero bs=65536 count=64 >&2 2>/dev/null &";
    let script = format!(
        "trap '' TERM; {fill} while :; do date +%s%N >> {}; sleep 0.01; done",
        signs.display()
    );
    let own =
        ["-v", "--ttl", TTL, "--max-time", "1s", "--kill-after", "300ms", "full", "-c", &script];
    let mut child = Running::start(&mut unhurried(&list, &own));
    within(PATIENT, "the command runs", || signs.exists());
    within(PATIENT, "the lock is over", || masters.iter().all(|it| it.dbsize().unwrap() == 0));
    assert_eq!(child.0.wait().unwrap().code(), Some(124));
    let lines = || fs::read_to_string(&signs).unwrap().lines().count();
    let before = lines();
    pause(Duration::from_millis(200));
    assert_eq!(lines(), before, "nothing of the group lives");
}

/// A guard that was stopped hears of the renewals before it judges.
#[test]
fn slow_guard_that_was_stopped_ends_no_healthy_command() {
    let (_masters, _redlock, list) = start();
    let own = ["--ttl", "3s", "--kill-after", "100ms", "r", "-c", "echo ready; sleep 4.5; exit 7"];
    let mut child = Running::start(&mut unhurried(&list, &own));
    assert_eq!(first_line(&mut child.0), "ready");
    let guard = children(child.id())[0].parse().unwrap();
    signal("STOP", guard);
    // Longer than it would have let the command run without a renewal.
    pause(Duration::from_millis(3_100));
    signal("CONT", guard);
    assert_eq!(child.end(), (7, String::new(), String::new()));
}
