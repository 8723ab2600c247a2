//! `muxlock run` while it waits: for the holder, for masters, and the lines that say so.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{ChildStderr, Stdio};
use std::time::Duration;

use muxlock::LockGuard;
use muxlock::testing::{Master, Masters};
use testbed::{Folder, TTL, ask, pause, soon, timed};

use super::cli::{client, muxlock, run, start, this_client};
use super::run::{Running, signal, unhurried};

/// A command that waits, and the lines that it writes meanwhile.
struct Waiting {
    running: Running,
    lines: BufReader<ChildStderr>,
}

impl Waiting {
    fn start(list: &str, args: &[&str]) -> Waiting {
        let mut running = Running::start(unhurried(list, args).stdin(Stdio::piped()));
        let lines = BufReader::new(running.0.stderr.take().unwrap());
        Waiting { running, lines }
    }

    /// The first line with these words.
    #[track_caller]
    fn line(&mut self, words: &str) -> String {
        let mut before = String::new();
        loop {
            let mut line = String::new();
            let length = self.lines.read_line(&mut line).unwrap();
            assert!(length > 0, "no line with {words:?}: {before}");
            if line.contains(words) {
                return line;
            }
            before.push_str(&line);
        }
    }

    /// Its exit status, its output, and the lines that were not read.
    fn end(mut self) -> (i32, String, String) {
        let (mut out, mut rest) = (String::new(), String::new());
        self.lines.read_to_string(&mut rest).unwrap();
        self.running.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (self.running.0.wait().unwrap().code().expect("it exits"), out, rest)
    }
}

fn free(lock: LockGuard) {
    assert!(lock.unlock().unwrap().was_held());
}

/// Changes a right on most masters.
fn change(masters: &Masters, right: &[u8]) {
    for master in masters.iter().take(2) {
        master.query(&[b"ACL", b"SETUSER", b"default", right]).unwrap();
    }
}

#[test]
fn slow_wait_without_end_names_the_holder_and_ends_with_the_lock_or_a_signal() {
    let (_masters, redlock, list) = start();
    let lock = redlock.try_lock("r", TTL).unwrap();
    let holder = lock.token().fingerprint();
    let mut waiting = Waiting::start(&list, &["--wait", "forever", "r", "echo", "done"]);
    let line = waiting.line("");
    let client = this_client();
    let words = format!("muxlock: waiting for r: {holder} holds r on 3 of 3 masters: {client}");
    assert!(line.starts_with(&words) && line.contains("; free in "), "{line}");
    free(lock);
    assert_eq!(waiting.end(), (0, "done\n".into(), String::new()));

    let lock = redlock.try_lock("r", TTL).unwrap();
    let mut waiting = Waiting::start(&list, &["-w", "forever", "r", "echo", "done"]);
    waiting.line("waiting for r: ");
    signal("TERM", waiting.running.id());
    assert_eq!(waiting.end(), (143, String::new(), String::new()));
    free(lock);
}

/// Only an operator can end it, who may do so at any time.
#[test]
fn slow_wait_without_end_says_that_masters_refuse_and_goes_on() {
    let (masters, redlock, list) = start();
    redlock.shutdown(TTL);
    change(&masters, b"-set");
    let mut waiting = Waiting::start(&list, &["--wait", "forever", "r", "echo", "done"]);
    let line = waiting.line("waiting for r: unavailable: 2 of 3 nodes gave no vote");
    assert!(
        line.contains("NOPERM this user has no permissions to run the 'set' command"),
        "{line}"
    );
    change(&masters, b"+set");
    assert_eq!(waiting.end(), (0, "done\n".into(), String::new()));

    masters.iter().for_each(|it| drop(ask(it, &["CONFIG", "SET", "requirepass", "right"])));
    let list = list.replace("redis://", "redis://:sesame@");
    let mut waiting = Waiting::start(&list, &["--wait", "forever", "r", "echo", "done"]);
    let line = waiting.line("waiting for r: 0 of 3 masters can vote, and a lock needs 2 (node 0 ");
    assert!(line.contains("not authenticated") && !line.contains("sesame"), "{line}");
    signal("INT", waiting.running.id());
    assert_eq!(waiting.end().0, 130);
}

/// The holder keeps its lock, and a client that waits gets it.
#[test]
fn changed_password_file_is_read_by_commands_that_run_and_wait() {
    let masters = Masters::start(3).unwrap();
    let folder = Folder::create("rotated");
    let file = folder.0.join("password");
    let write = |text: &str| {
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let each = |words: &[&str]| masters.iter().for_each(|it| drop(ask(it, words)));
    each(&["ACL", "SETUSER", "locker", "on", ">zqxone", "~*", "&*", "+@all"]);
    write("zqxwrong\n");
    let login = ["--user", "locker", "--password-file", file.to_str().unwrap()];
    let list: Vec<_> = masters.iter().map(|it| it.url()).collect();
    let start = |args: &[&str]| Waiting::start(&list.join(" "), &[&login, args].concat());

    let mut holder = start(&["--wait", "forever", "--ttl", "3s", "r", "--", "cat"]);
    let line = holder.line("waiting for r: 0 of 3 masters can vote");
    assert!(line.contains("WRONGPASS") && !line.contains("zqx"), "{line}");
    fs::remove_file(&file).unwrap();
    // The line that it writes each minute has the reason; a new command has it at once.
    let (code, _, err) = start(&["r", "true"]).end();
    assert!(code == 125 && err.contains("No such file"), "{err}");
    write("zqxone\n");
    let is_held = || masters.iter().filter(|it| it.pttl(b"r").unwrap() > 0).count() >= 2;
    soon("it holds the lock", is_held);

    let mut waiting = start(&["--wait", "forever", "r", "echo", "done"]);
    waiting.line("waiting for r: ");
    each(&["ACL", "SETUSER", "locker", ">zqxtwo"]);
    write("zqxtwo\n");
    each(&["ACL", "SETUSER", "locker", "<zqxone"]);
    each(&["CLIENT", "KILL", "USER", "locker"]);
    // Longer than its TTL.
    pause(Duration::from_secs(4));
    assert!(is_held(), "it is renewed");
    drop(holder.running.0.stdin.take());
    assert_eq!(holder.end(), (0, String::new(), String::new()));
    assert_eq!(waiting.end(), (0, "done\n".into(), String::new()));
}

#[test]
fn slow_quiet_wait_writes_nothing() {
    let (masters, redlock, list) = start();
    let lock = redlock.try_lock("r", TTL).unwrap();
    let code = |args: &[&str]| run(&mut unhurried(&list, args));
    let none = || (0, String::new(), String::new());
    // At once, after a wait, and after one for masters.
    assert_eq!(code(&["-q", "-E", "0", "r", "true"]), none());
    assert_eq!(code(&["-q", "-E", "0", "-w", "1500ms", "r", "true"]), none());
    assert_eq!(code(&["-q", "-E", "0", "--wait-masters", "20s", "r", "true"]), none());
    let both = ["-q", "-E", "0", "--wait-masters", "20s", "-w", "1500ms", "r", "true"];
    assert_eq!(code(&both), none());
    let slot = Waiting::start(&list, &["--slots", "1", "s", "sleep", "60"]);
    soon("the permit is held", || masters.iter().all(|it| it.dbsize().unwrap() == 2));
    assert_eq!(code(&["-q", "-E", "0", "--slots", "1", "-w", "1500ms", "s", "true"]), none());
    signal("TERM", slot.running.id());
    slot.end();

    let (status, _, err) = code(&["-q", "-w", "1500ms", "r", "true"]);
    assert!(status == 121 && err.starts_with("muxlock: contended: "), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    let (_, _, err) = code(&["-w", "1500ms", "r", "true"]);
    assert!(err.starts_with("muxlock: waiting for r: ") && err.lines().count() == 2, "{err}");
    free(lock);
}

/// One master, because clients that find different ones slow wait in different queues.
#[test]
fn slow_position_in_the_queue_is_told_when_it_changes() {
    let master = Master::start().unwrap();
    let list = master.url();
    let holder = Waiting::start(&list, &["r", "sleep", "600"]);
    soon("the lock is held", || master.dbsize().unwrap() == 1);
    let wait = ["-v", "-w", "5m", "--ttl", "30s", "--node-timeout", "5s", "r", "true"];
    let mut first = Waiting::start(&list, &wait);
    first.line("muxlock: waiting for r: first in the queue\n");
    let mut second = Waiting::start(&list, &wait);
    second.line("muxlock: waiting for r: 1 ahead in the queue\n");
    let holds = format!(" holds r on 1 of 1 masters: {}", client(holder.running.id(), "sleep"));
    let begun = second.line(&holds);
    assert!(begun.ends_with("; 1 ahead in the queue\n"), "{begun}");
    signal("TERM", first.running.id());
    assert_eq!(first.end().0, 143);
    second.line("muxlock: waiting for r: first in the queue\n");
    signal("TERM", holder.running.id());
    assert_eq!(holder.end().0, 143);
    assert_eq!(second.end().0, 0);
}

#[test]
fn slow_wait_of_other_kinds_names_the_lock_in_the_way() {
    let (masters, redlock, list) = start();
    let read = redlock.try_read("r", TTL).unwrap();
    let mut writer = Waiting::start(&list, &["-w", "60s", "--exclusive", "r", "true"]);
    writer.line("waiting for r: r has read locks on 3 of 3 masters");
    drop(read);
    assert_eq!(writer.end().0, 0);
    let lock = redlock.try_lock("b", TTL).unwrap();
    let mut both = Waiting::start(&list, &["-w", "60s", "--also", "b", "a", "true"]);
    both.line(&format!("waiting for a,b: {} holds b on 3 of 3", lock.token().fingerprint()));
    free(lock);
    assert_eq!(both.end().0, 0);
    let slot = Waiting::start(&list, &["--slots", "1", "s", "sleep", "60"]);
    soon("the permit is held", || masters.iter().all(|it| it.dbsize().unwrap() == 1));
    let mut next = Waiting::start(&list, &["-w", "60s", "--slots", "1", "s", "true"]);
    next.line("waiting for s: none of the 1 permits of s was granted");
    signal("TERM", slot.running.id());
    slot.end();
    assert_eq!(next.end().0, 0);
}

/// Two of three masters, until they are started again.
fn without_quorum() -> (Masters, String) {
    let mut masters = Masters::start(3).unwrap();
    let list = masters.urls().join(",");
    masters[1].kill().unwrap();
    masters[2].kill().unwrap();
    (masters, list)
}

#[test]
fn slow_masters_are_waited_for() {
    let (mut masters, list) = without_quorum();
    let down = "waiting for r: 1 of 3 masters can vote, and a lock needs 2 (node 1 ";
    for more in [&["--wait-masters", "60s"][..], &["--wait-masters", "forever", "--nonblock"]] {
        let mut waiting = Waiting::start(&list, &[more, &["r", "echo", "done"]].concat());
        let line = waiting.line(down);
        assert!(line.contains("disconnected (connection refused)"), "{line}");
        masters[2].restart().unwrap();
        assert_eq!(waiting.end(), (0, "done\n".into(), String::new()));
        masters[2].kill().unwrap();
    }
    for (name, code) in [("TERM", 143), ("INT", 130)] {
        let mut waiting = Waiting::start(&list, &["--wait-masters", "60s", "r", "echo", "done"]);
        waiting.line(down);
        signal(name, waiting.running.id());
        assert_eq!(waiting.end(), (code, String::new(), String::new()));
    }
    for more in [&["-E", "0"][..], &["--wait", "60s"]] {
        let args = [&["-q", "--wait-masters", "1200ms"][..], more, &["r", "true"]].concat();
        let (took, (code, _, err)) = timed(|| run(&mut unhurried(&list, &args)));
        assert!(code == 122 && err.starts_with("muxlock: unavailable: "), "{code} {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(took > Duration::from_millis(1_200) && took < Duration::from_secs(40), "{took:?}");
    }
    assert_eq!(masters[0].dbsize().unwrap(), 0);
}

#[test]
fn slow_holder_is_not_waited_for_with_the_masters() {
    let (_masters, redlock, list) = start();
    let lock = redlock.try_lock("r", TTL).unwrap();
    for more in [&[][..], &["--nonblock"], &["--wait", "300ms"]] {
        let args = [&["--wait-masters", "10m"][..], more, &["r", "true"]].concat();
        let (code, _, err) = run(&mut unhurried(&list, &args));
        assert!(code == 121 && err.contains("muxlock: contended: "), "{code} {err}");
    }
    let args = ["--wait-masters", "1ms", "--wait", "60s", "r", "echo", "done"];
    let mut waiting = Waiting::start(&list, &args);
    waiting.line("waiting for r: ");
    free(lock);
    assert_eq!(waiting.end(), (0, "done\n".into(), String::new()));
}

/// Clients that wait for the same masters try at the same moment, and each might get some votes.
#[test]
fn slow_attempt_that_nobody_won_is_repeated_with_the_masters() {
    let (masters, _redlock, list) = start();
    for (i, value) in ["0123456789abcdef01234567", "ab0123456789abcdef012345"].iter().enumerate() {
        masters[i].query(&[b"SET", b"r", value.as_bytes(), b"PX", b"60000"]).unwrap();
    }
    let code = |args: &[&str]| run(&mut unhurried(&list, args)).0;
    assert_eq!(code(&["r", "true"]), 121);
    masters.iter().for_each(|it| drop(it.query(&[b"PEXPIRE", b"r", b"2000"]).unwrap()));
    assert_eq!(code(&["--wait-masters", "60s", "r", "true"]), 0);
}

#[test]
fn slow_quarantine_is_waited_for() {
    let (_masters, redlock, list) = start();
    redlock.shutdown(TTL);
    let observing = |args: &[&str]| {
        let mut command = unhurried(&list, args);
        command.env("MUXLOCK_RESTART_GUARD", "own_observation").env("MUXLOCK_MAX_TTL", "3s");
        run(command.args(["--ttl", "3s", "r", "true"]))
    };
    let (code, _, err) = observing(&[]);
    assert_eq!(code, 122, "{err}");
    assert!(err.contains(", so run with --wait-masters ") && !err.contains("would wait"), "{err}");
    let mut command = unhurried(&list, &["r", "true"]);
    command.env("MUXLOCK_RESTART_GUARD", "uptime").env("MUXLOCK_MAX_TTL", "10m");
    let (code, _, err) = run(&mut command);
    assert_eq!(code, 122, "{err}");
    assert!(err.contains(" (--wait-masters 60") && err.ends_with("s would wait)\n"), "{err}");
    let (code, _, err) = observing(&["--wait-masters", "60s"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("waiting for r: 0 of 3 masters can vote, and a lock needs 2 ("), "{err}");
}

#[test]
fn waits_are_times_or_forever() {
    let code = |wait: &str| {
        let (code, _, err) = run(&mut muxlock(&["run", "--wait-masters", wait, "r", "true"]));
        assert_eq!(code, 125, "{err}");
        err
    };
    for endless in ["inf", "infinity", "Forever", ""] {
        let err = code(endless);
        assert!(err.contains("it is neither a time, such as 10m, nor forever"), "{err}");
    }
    assert!(code("10").contains("it has no unit: write 10s or 10ms"));
    let (_, help, _) = run(&mut muxlock(&["run", "--help"]));
    for name in ["MUXLOCK_RESOURCE", "MUXLOCK_HOLDER", "MUXLOCK_FENCING_TOKEN"] {
        assert!(help.contains(name), "{name}");
    }
}
