//! `muxlock run` on real masters: exit codes, words, signals, and what the command gets.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use muxlock::inspection::Owner;
use muxlock::testing::Master;
use testbed::scripted::refused_addr;
use testbed::{Folder, TTL, ask, pause, soon, timed, with_login};

use super::cli::{client, muxlock, run, start, this_client};

/// `muxlock run` on these masters.
pub fn guarded(list: &str, args: &[&str]) -> Command {
    let mut command = muxlock(&["run"]);
    command.args(args).env("MUXLOCK_NODES", list).env("MUXLOCK_RESTART_GUARD", "off");
    command
}

/// The same, where no master is slow on purpose: a busy machine may be.
pub fn unhurried(list: &str, args: &[&str]) -> Command {
    let mut command = guarded(list, args);
    command.env("MUXLOCK_NODE_TIMEOUT", "200ms").env("MUXLOCK_CONNECT_TIMEOUT", "20s");
    command
}

/// The first line that the command writes.
pub fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

pub fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    assert!(sent.unwrap().success(), "kill -{name} {pid}");
}

/// The processes that a process has started.
pub fn children(of: u32) -> Vec<String> {
    let all = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
    all.split_whitespace().map(ToOwned::to_owned).collect()
}

/// A piped standard output, and a process that is ended with the test.
pub struct Running(pub Child);

impl Running {
    pub fn start(command: &mut Command) -> Running {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().expect("the binary runs"))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its exit status, and what else it has written.
    pub fn end(mut self) -> (i32, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.0.wait().unwrap().code().expect("it exits"), out, err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn exit_status_is_that_of_the_command_or_says_why_there_is_none() {
    let (_masters, redlock, list) = start();
    let code = |args: &[&str]| run(&mut unhurried(&list, args));
    let none = String::new;
    assert_eq!(code(&["r", "true"]), (0, none(), none()));
    assert_eq!(code(&["r", "--", "sh", "-c", "echo out; exit 3"]), (3, "out\n".into(), none()));
    assert_eq!(code(&["r", "-c", "kill -9 $$"]), (137, none(), none()));
    assert_eq!(code(&["r", "--shell", "/bin/echo", "-c", "word"]), (0, "-c word\n".into(), none()));

    let (status, _, err) = code(&["r", "/no/such"]);
    assert_eq!(status, 127);
    assert_eq!(err, "muxlock: cannot run /no/such: No such file or directory (os error 2)\n");
    let (status, _, err) = code(&["r", "/etc/passwd"]);
    assert_eq!(status, 126);
    assert_eq!(err, "muxlock: cannot run /etc/passwd: Permission denied (os error 13)\n");

    let lock = redlock.try_lock("r", TTL).unwrap();
    assert_eq!(redlock.shutdown(TTL), 0);
    let (status, _, err) = code(&["r", "true"]);
    let holder = lock.token().fingerprint();
    let words =
        format!("muxlock: contended: {holder} holds r on 3 of 3 masters: {}", this_client());
    assert!(status == 121 && err.starts_with(&words) && err.contains("; free in "), "{err}");
    assert!(
        err.ends_with(" s at the latest unless it is renewed (--wait 30s would wait)\n"),
        "{err}"
    );
    assert_eq!(code(&["-E", "0", "r", "true"]).0, 0);
    // What cron mails.
    assert_eq!(code(&["-q", "-E", "0", "r", "true"]), (0, none(), none()));
    assert!(code(&["-q", "-E", "7", "r", "true"]).2.starts_with("muxlock: contended: "));
    let (status, _, err) = code(&["-w", "500ms", "r", "true"]);
    assert!(status == 121 && err.ends_with("unless it is renewed\n"), "{err}");
    assert!(lock.unlock().unwrap().was_held());

    let (status, _, err) = code(&["--max-time", "100ms", "r", "sleep", "60"]);
    assert_eq!(status, 124);
    let words =
        "muxlock: --max-time has passed; the command gets SIGTERM now and SIGKILL in 2.0 s\n";
    assert_eq!(err, words);
    assert_eq!(code(&["r", "true"]).0, 0, "every lock was released");

    let list = [(); 3].map(|()| format!("redis://{}", refused_addr())).join(",");
    let (status, _, err) = run(&mut unhurried(&list, &["r", "true"]));
    assert_eq!(status, 122);
    assert!(
        err.starts_with("muxlock: unavailable: ") && err.contains("connection refused"),
        "{err}"
    );
    let (status, _, err) = run(&mut unhurried(&list, &["-q", "-E", "0", "r", "true"]));
    assert!(status == 122 && err.starts_with("muxlock: unavailable: "), "{err}");
}

#[test]
fn wrong_usage_is_told_from_the_codes_of_a_command() {
    let list = "redis://127.0.0.1:1";
    let table: [(&[&str], &str); 8] = [
        (
            &["--ttl", "1m", "r", "true"],
            "muxlock: ttl is 1m: it can be max-ttl at most, which is 30s; all ",
        ),
        (
            &["--kill-after", "9s", "r", "true"],
            "muxlock: kill-after is 9s: it can be 4s 400ms at most with a ttl of 10s; it needs \
             --ttl 20s 222ms\n",
        ),
        (
            &["--ttl", "200ms", "r", "true"],
            "muxlock: ttl is 200ms: it must be more than 222ms with ",
        ),
        (
            &["--ttl", "10", "r", "true"],
            "error: invalid value '10' for '--ttl <D>': it has no unit",
        ),
        (&["-E", "300", "r", "true"], "error: invalid value '300' for '--conflict-exit-code <N>'"),
        (&["-n", "-w", "1s", "r", "true"], "error: the argument '--nonblock' cannot be used with"),
        (&["r"], "error: the following required arguments were not provided:\n  <COMMAND>..."),
        (&["r", "-c", "true", "false"], "error: the argument '--command <STRING>' cannot be used"),
    ];
    for (args, words) in table {
        let (code, out, err) = run(&mut guarded(list, args));
        assert_eq!((code, out.as_str()), (125, ""), "{args:?}");
        assert!(err.starts_with(words), "{args:?}: {err}");
    }
    let most = format!("{}s", u64::MAX);
    let (code, _, err) = run(&mut guarded(list, &["--kill-after", &most, "r", "true"]));
    assert!(code == 125 && err.starts_with("muxlock: kill-after is "), "{err}");
    let long = "r".repeat(2_000);
    let (code, _, err) = run(&mut guarded(list, &[&long, "true"]));
    assert!(code == 125 && err.contains("the resource name has 2000 bytes"), "{err}");
    let (code, _, err) = run(muxlock(&["run", "r", "true"]).env("MUXLOCK_CONFIG", "/dev/null"));
    assert_eq!(code, 125);
    assert!(err.starts_with("muxlock: no masters: give --node, MUXLOCK_NODES or a file"), "{err}");
    let (code, out, _) = run(&mut muxlock(&["run", "--help"]));
    assert!(code == 0 && out.contains("Usage: muxlock run [OPTIONS] RESOURCE [--] COMMAND"));
}

#[test]
fn command_gets_the_input_and_the_names_but_not_the_token() {
    let (masters, redlock, list) = start();
    let script = "cat; echo $MUXLOCK_RESOURCE $MUXLOCK_HOLDER; tr '\\0' '\\n' < /proc/$$/environ;
        exec ls /proc/self/fd";
    let mut child = Running::start(unhurried(&list, &["r", "-c", script]).stdin(Stdio::piped()));
    soon("the lock is held", || masters[0].value_of(b"r").unwrap().is_some());
    let value = String::from_utf8(masters[0].value_of(b"r").unwrap().unwrap()).unwrap();
    child.0.stdin.take().unwrap().write_all(b"some input\n").unwrap();
    let (code, out, err) = child.end();
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with(&format!("some input\nr {}\n", &value[..8])), "{out}");
    assert!(out.contains("\nMUXLOCK_RESOURCE=r\n") && !out.contains(&value), "{out}");
    let (_, own, _) = run(Command::new("ls").arg("/proc/self/fd").stdin(Stdio::null()));
    assert!(out.ends_with(&format!("\n{own}")), "as without a lock: {own} {out}");
    assert!(redlock.try_lock("r", TTL).is_ok());
}

/// As systemd passes sockets on, and expects signs of life. Variables for another process stay.
#[test]
fn command_takes_the_sockets_of_the_service() {
    let (_masters, _redlock, list) = start();
    let command = "echo $((LISTEN_PID == $$)) $((WATCHDOG_PID == $$)) $LISTEN_PIDFDID; cat <&3";
    for (option, pid, expected) in [
        ("-q", "$$", "1 1\nsocket\n"),
        ("--no-guard", "$$", "1 1\nsocket\n"),
        ("-q", "1", "0 0 7\nsocket\n"),
    ] {
        let tool = unhurried(&list, &[option, "r", "-c", command]);
        let variables =
            format!("LISTEN_PID={pid} WATCHDOG_PID={pid} LISTEN_FDS=1 LISTEN_PIDFDID=7");
        let socket = "exec 3<<EOF\nsocket\nEOF";
        let script = format!("export {variables}; {socket}\nexec \"$0\" \"$@\"");
        let mut service = Command::new("sh");
        service.args(["-c", &script]).arg(tool.get_program()).args(tool.get_args());
        let set = tool.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let (code, out, err) = run(service.envs(set).stdin(Stdio::null()));
        assert_eq!((code, out.as_str()), (0, expected), "{option} {pid}: {err}");
    }
}

#[test]
fn command_of_a_fenced_lock_gets_its_number() {
    let (_masters, redlock, list) = start();
    let script = "echo ${MUXLOCK_FENCING_TOKEN-none}";
    let mut last = redlock.fenced().try_lock_for("r", TTL, TTL).unwrap().fencing_token();
    for wait in [&["-w", "20s"][..], &["-w", "0s"], &[]] {
        soon("the lock is free", || redlock.try_lock("r", TTL).is_ok_and(|it| it.unlock().is_ok()));
        let args = [wait, &["--fenced", "r", "-c", script]].concat();
        let (code, out, err) = run(&mut unhurried(&list, &args));
        assert_eq!((code, err.as_str()), (0, ""));
        let number = out.trim_end().parse().expect("a fencing token");
        assert!(number > last, "{number} after {last}");
        last = number;
    }
    let mut verbose = unhurried(&list, &["--fenced", "-v", "r", "-c", script]);
    let (code, out, err) = run(&mut verbose);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains(&format!(", fencing token {}, valid for ", out.trim_end())), "{err}");
    // The number of another lock is not the command's.
    let mut plain = unhurried(&list, &["r", "-c", script]);
    let (code, out, err) = run(plain.env("MUXLOCK_FENCING_TOKEN", "7"));
    assert_eq!((code, out.as_str(), err.as_str()), (0, "none\n", ""));
    let (code, _, err) = run(&mut unhurried(&list, &["--fenced", "muxlock:fence", "true"]));
    let text = "the fencing counters use this key: use another name for the resource";
    assert_eq!((code, err), (125, format!("muxlock: {text}\n")));
}

/// Unless the user wants something else. In cron, with `-q`, nothing else would show it.
#[test]
fn slow_what_the_command_has_started_keeps_the_lock() {
    let (_masters, redlock, list) = start();
    let script = "setsid sleep 60 > /dev/null 2>&1 & echo $!; exit 3";
    let mut child = Running::start(&mut unhurried(&list, &["-q", "-E", "0", "r", "-c", script]));
    let left = first_line(&mut child.0);
    let mut err = BufReader::new(child.0.stderr.take().unwrap());
    let mut told = String::new();
    err.read_line(&mut told).unwrap();
    let expected = format!(
        "muxlock: the command has ended with 3, but it has started {left} (sleep): r stays locked \
         until they have ended (--descendants leave would release it)\n"
    );
    assert_eq!(told, expected);
    assert!(redlock.try_lock("r", TTL).is_err());
    // Once the command has ended, all that it has started gets it.
    signal("TERM", child.id());
    assert_eq!(child.0.wait().unwrap().code(), Some(3));
    assert!(redlock.try_lock("r", TTL).is_ok());

    let script = "setsid sleep 0.1 & exit 3";
    assert_eq!(run(&mut unhurried(&list, &["r", "-c", script])), (3, String::new(), String::new()));

    let script = "setsid sleep 60 > /dev/null 2>&1 & echo $!; exit 3";
    let end = ["--descendants", "end", "--kill-after", "100ms", "r", "-c", script];
    let (code, out, err) = run(&mut unhurried(&list, &end));
    assert_eq!((code, err.as_str()), (3, ""));
    assert!(!Path::new(&format!("/proc/{}", out.trim())).exists());
    assert!(redlock.try_lock("r", TTL).is_ok());

    let leave = ["--descendants", "leave", "r", "-c", script];
    let (code, out, err) = run(&mut unhurried(&list, &leave));
    assert_eq!((code, err.as_str()), (3, ""));
    assert!(redlock.try_lock("r", TTL).is_ok());
    signal("KILL", out.trim().parse().expect("it still runs"));
}

/// Longer than a lock may be: by renewing.
#[test]
fn slow_resource_stays_locked_for_longer_than_max_ttl() {
    let (masters, redlock, list) = start();
    let is_locked = || masters.iter().filter(|it| it.dbsize().unwrap() > 0).count() > 1;
    let own = ["--max-ttl", "1s", "--ttl", "1s", "--at-least", "2500ms", "r", "--", "true"];
    let (took, result) = timed(|| run(&mut unhurried(&list, &own)));
    assert_eq!(result, (0, String::new(), String::new()));
    assert!(took >= Duration::from_millis(1_400), "it stays until max-ttl is left: {took:?}");
    assert!(is_locked());
    soon("it is over", || !is_locked());

    let own =
        ["--max-ttl", "1s", "--ttl", "1s", "--at-least", "1m", "r", "-c", "echo ready; exit 3"];
    let mut child = Running::start(&mut unhurried(&list, &own));
    assert_eq!(first_line(&mut child.0), "ready");
    // Longer than one validity.
    pause(Duration::from_millis(1_300));
    assert!(is_locked());
    signal("TERM", child.id());
    let (code, _, err) = child.end();
    assert_eq!(code, 143, "{err}");
    assert!(err.starts_with("muxlock: r stays locked for 1.0 s instead of 5"), "{err}");
    soon("it is over", || !is_locked());

    // It is lost after the command's end.
    let mut child = Running::start(&mut unhurried(&list, &own));
    assert_eq!(first_line(&mut child.0), "ready");
    pause(Duration::from_millis(300));
    masters.iter().for_each(|it| drop(it.query(&[b"DEL", b"r"]).unwrap()));
    let (code, _, err) = child.end();
    assert!(code == 120 && err.ends_with("; the command had ended with 3\n"), "{code} {err}");
    assert!(redlock.try_lock("r", TTL).is_ok());
}

#[test]
fn signals_reach_everything_that_the_command_has_started() {
    let (_masters, redlock, list) = start();
    let script = "sh -c \"trap 'echo grandchild; exit' TERM; echo ready; sleep 60 & wait\" & wait";
    let mut child = Running::start(&mut unhurried(&list, &["r", "-c", script]));
    assert_eq!(first_line(&mut child.0), "ready");
    signal("TERM", child.id());
    let (code, out, err) = child.end();
    assert_eq!((code, out.as_str()), (143, "grandchild\n"));
    // On a busy machine, not all of it has ended after a second.
    assert!(err.is_empty() || err.contains(": r stays locked until they have ended ("), "{err}");
    assert!(redlock.try_lock("r", TTL).is_ok());

    // The user wants no SIGHUP: neither does the command.
    let mut nohup = unhurried(&list, &["r", "-c", "echo ready; sleep 0.3; echo end"]);
    let own: Vec<_> = nohup.get_args().map(ToOwned::to_owned).collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(nohup.get_program()).args(own);
    nohup.get_envs().for_each(|(name, value)| match value {
        Some(value) => drop(shell.env(name, value)),
        None => drop(shell.env_remove(name)),
    });
    nohup.stdin(Stdio::null());
    let mut child = Running::start(&mut shell);
    assert_eq!(first_line(&mut child.0), "ready");
    signal("HUP", child.id());
    assert_eq!(child.end().1, "end\n");
}

/// Otherwise the lock would stay until somebody continues the command.
#[test]
fn stopped_command_is_woken_to_end() {
    let (_masters, _redlock, list) = start();
    for (name, code) in [("TERM", 7), ("HUP", 8)] {
        let traps = "trap 'exit 7' TERM; trap 'exit 8' HUP";
        let script = format!("{traps}; echo $$; while :; do sleep 0.02; done");
        let mut child = Running::start(&mut unhurried(&list, &["r", "-c", &script]));
        let pid = first_line(&mut child.0);
        signal("STOP", pid.parse().unwrap());
        let stat = format!("/proc/{pid}/stat");
        soon("it is stopped", || fs::read_to_string(&stat).unwrap().contains(" T "));
        signal(name, child.id());
        assert_eq!(child.end().0, code);
    }
}

/// A service manager may signal all processes: the guard stays.
#[test]
fn signal_to_all_processes_ends_the_command_only() {
    let (_masters, redlock, list) = start();
    // The second SIGTERM, which muxlock passes on, may come while a trap runs, and a shell would run
    // it once more.
    let trap = "trap 'trap \"\" TERM; echo end; exit 5' TERM";
    let script = format!("{trap}; echo ready; while :; do sleep 0.1; done");
    let mut child = Running::start(&mut unhurried(&list, &["r", "-c", &script]));
    assert_eq!(first_line(&mut child.0), "ready");
    let guard = children(child.id());
    let command = children(guard[0].parse().unwrap());
    assert_eq!((guard.len(), command.len()), (1, 1), "the guard and the command");
    let all = format!("kill -TERM {} {} {}", child.id(), guard[0], command[0]);
    // One of them may have ended at the signal of another.
    let _ = Command::new("sh").args(["-c", &all]).status().unwrap();
    let (code, out, err) = child.end();
    assert_eq!((code, out.as_str()), (5, "end\n"));
    assert!(!err.contains("guard"), "{err}");
    assert!(redlock.try_lock("r", TTL).is_ok());
}

#[test]
fn signal_while_it_waits_ends_the_wait_and_leaves_no_key() {
    let (masters, redlock, list) = start();
    let lock = redlock.try_lock("r", TTL).unwrap();
    for (name, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let waiting = unhurried(&list, &["-q", "-w", "60s", "r", "echo", "never"]);
        // Signals that are ignored where the test runs (nohup) would be ignored by it as well.
        let mut heeding = Command::new("env");
        heeding.arg("--default-signal=INT,HUP").arg(waiting.get_program());
        heeding
            .args(waiting.get_args())
            .envs(waiting.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let asked = || masters.iter().map(|it| it.command_calls("set").unwrap()).sum::<u64>();
        let before = asked();
        let child = Running::start(&mut heeding);
        soon("it asks", || asked() > before);
        signal(name, child.id());
        let (took, (status, out, err)) = timed(|| child.end());
        assert_eq!((status, out.as_str(), err.as_str()), (code, "", ""));
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    assert!(lock.unlock().unwrap().was_held());
    assert_eq!(redlock.shutdown(TTL), 0);
    assert_eq!(masters.iter().map(|it| it.dbsize().unwrap()).sum::<u64>(), 0);
}

#[test]
fn lock_lasts_for_at_least() {
    let (masters, redlock, list) = start();
    let args = ["--ttl", "2s", "--at-least", "6s", "r", "true"];
    let (took, (code, ..)) = timed(|| run(&mut unhurried(&list, &args)));
    assert_eq!(code, 0);
    let left = masters.iter().map(|it| it.pttl(b"r").unwrap()).min().unwrap();
    let least = 5_900 - i64::try_from(took.as_millis()).unwrap();
    assert!(left > least && left <= 6_000, "{left} of {least}");
    assert!(redlock.try_lock("r", TTL).unwrap_err().is_contended());
    // The rest of a longer TTL stays.
    let args = ["-v", "--ttl", "30s", "--at-least", "3s", "t", "true"];
    let (took, (code, _, err)) = timed(|| run(&mut unhurried(&list, &args)));
    assert_eq!(code, 0, "{err}");
    let left = masters.iter().map(|it| it.pttl(b"t").unwrap()).min().unwrap();
    let least = 29_900 - i64::try_from(took.as_millis()).unwrap();
    assert!(left > least && left <= 30_000, "{left} of {least}");
    let (_, told) = err.split_once("muxlock: t stays locked for another ").expect("it is told");
    let told: f64 = told.trim_end().trim_end_matches(" s").parse().expect("seconds");
    assert!(told > 10.0, "{err}");
    let (_, help, _) = run(&mut muxlock(&["run", "--help"]));
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("for this time or for the rest of the TTL, whichever is longer"),
        "{help}"
    );
    // A command that takes longer leaves nothing.
    let args = ["--at-least", "50ms", "s", "sleep", "0.1"];
    assert_eq!(run(&mut unhurried(&list, &args)).0, 0);
    assert!(redlock.try_lock("s", TTL).is_ok());
}

/// As 20 machines with the same cron table.
#[test]
fn of_many_at_once_one_runs() {
    let (_masters, _redlock, list) = start();
    let folder = Folder::create("of_many_at_once");
    let path = folder.0.join("runs");
    let script = format!("echo run >> {}", path.display());
    let args = ["-E", "0", "--at-least", "20s", "cron", "-c", &script];
    let all: Vec<_> = (0..20).map(|_| Running::start(&mut unhurried(&list, &args))).collect();
    for child in all {
        let (code, _, err) = child.end();
        assert!(code == 0 || code == 122, "{code} {err}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), "run\n");
}

#[test]
fn lock_that_is_revoked_ends_the_command() {
    let (masters, _redlock, list) = start();
    let script = "trap 'echo term; exit' TERM; echo ready; while :; do sleep 0.1; done";
    let args = ["--ttl", "3s", "r", "-c", script];
    let mut child = Running::start(&mut unhurried(&list, &args));
    assert_eq!(first_line(&mut child.0), "ready");
    for master in masters.iter() {
        master
            .query(&[b"SET", b"r", b"revoked:by-an-operator-of-the-site", b"PX", b"20000"])
            .unwrap();
    }
    let (code, out, err) = child.end();
    assert_eq!((code, out.as_str()), (120, "term\n"));
    assert!(
        err.contains("muxlock: lost r: too few masters still hold this lock's token ("),
        "{err}"
    );
    assert!(!err.contains("guard"), "{err}");
    assert!(err.contains("; the command gets SIGTERM now and SIGKILL in "), "{err}");
}

/// All masters have answered, so they were not late.
#[test]
fn slow_loss_by_refusals_is_no_loss_by_silence() {
    let (masters, _redlock, list) = start();
    let mut child = unhurried(&list, &["--ttl", "3s", "r", "-c", "echo ready; sleep 60"]);
    let mut child = Running::start(&mut child);
    assert_eq!(first_line(&mut child.0), "ready");
    for master in masters.iter() {
        master.query(&[b"ACL", b"SETUSER", b"default", b"-eval"]).unwrap();
    }
    let (code, _, err) = child.end();
    assert_eq!(code, 120, "{err}");
    // Two are enough to decide it.
    assert!(err.contains(" of 3 masters answered with an error ("), "{err}");
    assert!(!err.contains("in time"), "{err}");
}

/// Waiting would be in vain, so it is not advised, and even a quiet command says so.
#[test]
fn command_that_wants_the_lock_it_runs_under_is_told() {
    let (_masters, _redlock, list) = start();
    for quiet in [&[][..], &["-q", "-E", "0"]] {
        let inner = [&["r", env!("CARGO_BIN_EXE_muxlock"), "run"], quiet, &["r", "true"]].concat();
        let (code, _, err) = run(&mut unhurried(&list, &inner));
        let words = "; this command runs under it (MUXLOCK_HOLDER), so it stays held until this \
                     command ends\n";
        assert_eq!(code, if quiet.is_empty() { 121 } else { 0 }, "{err}");
        assert!(err.contains(" holds r on 3 of 3 masters: ") && err.ends_with(words), "{err}");
    }
}

/// Waiting for a key without an end is in vain, and a revocation is no holder.
#[test]
fn key_that_never_expires_and_one_that_was_revoked_are_told() {
    let (masters, _redlock, list) = start();
    let set = |words: &[&[u8]]| masters.iter().for_each(|it| drop(it.query(words).unwrap()));
    let inspect = |name| run(muxlock(&["inspect", name]).env("MUXLOCK_NODES", &list)).1;
    set(&[b"SET", b"old", b"worker-3"]);
    let words = "it never expires: no TTL (muxlock revoke --now takes it)\n";
    let (code, _, err) = run(&mut unhurried(&list, &["old", "true"]));
    assert!(code == 121 && err.ends_with(words), "{err}");
    let seen = inspect("old");
    assert!(seen.ends_with(words), "{seen}");
    // The others are a quorum that becomes free.
    masters[0].query(&[b"PEXPIRE", b"old", b"20000"]).unwrap();
    assert!(inspect("old").ends_with(words));
    masters[1].query(&[b"PEXPIRE", b"old", b"20000"]).unwrap();
    assert!(inspect("old").contains("; free for others in "));
    let (_, _, err) = run(&mut unhurried(&list, &["old", "true"]));
    assert!(err.ends_with("(--wait 30s would wait)\n"), "{err}");

    set(&[b"SET", b"taken", b"revoked:0123456789abcdef", b"PX", b"20000"]);
    let (_, _, err) = run(&mut unhurried(&list, &["taken", "true"]));
    assert!(err.starts_with("muxlock: contended: taken was revoked; free in "), "{err}");
    let seen = inspect("taken");
    assert!(seen.contains("\ntaken was revoked on 3 of 3; free in "), "{seen}");

    set(&[b"HSET", b"map", b"a", b"b"]);
    let seen = inspect("map");
    assert!(seen.ends_with("\nmap is no lock: its key has another type on 3 of 3\n"), "{seen}");
    // A job that would never run again is said even where a holder is no news.
    let words =
        "map is no lock: its key has another type on 3 of 3 masters; it never expires: no TTL\n";
    for quiet in [&["map", "true"][..], &["-q", "-E", "0", "map", "true"]] {
        let (code, _, err) = run(&mut unhurried(&list, quiet));
        assert!(code == if quiet.len() == 2 { 121 } else { 0 }, "{err}");
        assert_eq!(err, format!("muxlock: contended: {words}"));
    }
    let (_, out, _) = run(muxlock(&["revoke", "map", "--holder", "a"]).env("MUXLOCK_NODES", &list));
    assert!(out.contains("it has read locks, or is no lock\na does not hold map\n"), "{out}");
    set(&[b"PEXPIRE", b"map", b"20000"]);
    let (_, _, err) = run(&mut unhurried(&list, &["map", "true"]));
    assert!(err.ends_with("another type on 3 of 3 masters (--wait 30s would wait)\n"), "{err}");
    // As with a holder, a quorum that becomes free is enough.
    for (master, is_endless) in [(0, false), (1, true)] {
        masters[master].query(&[b"PERSIST", b"map"]).unwrap();
        let (_, _, err) = run(&mut guarded(&list, &["map", "true"]));
        assert_eq!(err == format!("muxlock: contended: {words}"), is_endless, "{err}");
    }
    set(&[b"PEXPIRE", b"map", b"20000"]);
    let ends = ["-q", "-E", "0", "map", "true"];
    assert_eq!(run(&mut unhurried(&list, &ends)), (0, String::new(), String::new()));
    set(&[b"SET", b"old", b"worker-3"]);
    let (code, _, err) = run(&mut unhurried(&list, &["-q", "-E", "0", "old", "true"]));
    assert!(code == 0 && err.contains("it never expires: no TTL"), "{err}");
}

#[test]
fn names_cannot_control_a_terminal() {
    let (masters, _redlock, list) = start();
    let name = "ev\u{1b}[31mil\nx\u{202e}";
    let shown = "ev\\u{1b}[31mil\\nx\\u{202e}";
    let said = |command: &mut Command, lines: usize| {
        let (_, out, err) = run(command);
        let text = format!("{out}{err}");
        assert!(text.contains(shown) || text.contains(r"ev\x1b[31mil\nx"), "{text}");
        let is_harmless = |char: char| char == '\n' || !char.is_control() && char != '\u{202e}';
        assert!(text.chars().all(is_harmless), "{text:?}");
        assert!(text.lines().count() <= lines, "{text}");
    };
    let tool = |args: &[&str]| {
        let mut tool = muxlock(args);
        tool.env("MUXLOCK_NODES", &list);
        tool
    };
    said(&mut unhurried(&list, &["-v", name, "true"]), 4);
    said(&mut unhurried(&list, &["--slots", "1", "-v", name, "true"]), 4);
    said(&mut tool(&["inspect", name]), 4);
    for master in masters.iter() {
        master.query(&[b"SET", name.as_bytes(), b"\x1b[0mother", b"PX", b"60000"]).unwrap();
    }
    said(&mut unhurried(&list, &[name, "true"]), 1);
    said(&mut tool(&["inspect", name]), 5);
    said(&mut tool(&["revoke", name, "--holder", "a"]), 4);
    said(&mut tool(&["revoke", name, "--holder", "\\x1b[0mothe"]), 5);
    said(&mut unhurried(&list, &["other", &format!("/no/{name}")]), 1);
}

/// Whatever happens to the lock afterwards.
#[test]
fn lock_that_was_taken_is_told_with_at_least_too() {
    let (masters, _redlock, list) = start();
    for at_least in ["1s", "25s"] {
        let own = ["--ttl", "20s", "--at-least", at_least, "r", "-c", "echo ready; read x"];
        let mut child = Running::start(unhurried(&list, &own).stdin(Stdio::piped()));
        assert_eq!(first_line(&mut child.0), "ready");
        masters.iter().for_each(|master| drop(master.query(&[b"DEL", b"r"]).unwrap()));
        child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        let (code, _, err) = child.end();
        let words = "muxlock: lost r: too few masters still had it; the command had ended with 0\n";
        assert_eq!((code, err.as_str()), (120, words));
    }
}

/// The work was done without protection: its success does not count.
#[test]
fn lock_that_was_taken_before_the_end_is_told() {
    let (masters, _redlock, list) = start();
    let mut child = unhurried(&list, &["--ttl", "20s", "r", "-c", "echo ready; read x"]);
    let mut child = Running::start(child.stdin(Stdio::piped()));
    assert_eq!(first_line(&mut child.0), "ready");
    for master in masters.iter() {
        master.query(&[b"DEL", b"r"]).unwrap();
    }
    child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let (code, _, err) = child.end();
    let words = "muxlock: lost r: too few masters still had it; the command had ended with 0\n";
    assert_eq!((code, err.as_str()), (120, words));
}

#[test]
fn verbose_tells_of_the_lock_and_quiet_does_not_warn() {
    let (_masters, _redlock, list) = start();
    let (code, _, err) = run(&mut unhurried(&list, &["-v", "r", "true"]));
    assert_eq!(code, 0);
    assert!(err.contains("muxlock: granted r on ") && err.contains("muxlock: released r"), "{err}");
    let url = with_login(list.split(',').next().unwrap(), ":secret");
    let warned = run(&mut unhurried(&list, &["--node", &url, "r", "true"])).2;
    assert!(warned.contains("--node has a password"), "{warned}");
    let quiet = run(&mut unhurried(&list, &["-q", "--node", &url, "r", "true"])).2;
    assert!(!quiet.contains("--node has a password"), "{quiet}");
}

/// K1: all of several resources, each a plain lock, and the name of the one that was held.
#[test]
fn command_runs_with_several_resources() {
    let (_masters, redlock, list) = start();
    let args = ["-v", "--also", "s", "--also", "t", "r", "-c", "echo $MUXLOCK_RESOURCE; read x"];
    let mut child = Running::start(unhurried(&list, &args).stdin(Stdio::piped()));
    assert_eq!(first_line(&mut child.0), "r,s,t");
    for name in ["r", "s", "t"] {
        assert!(redlock.try_lock(name, TTL).unwrap_err().is_contended(), "{name}");
    }
    child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let (code, _, err) = child.end();
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("granted r,s,t on ") && err.contains("released r,s,t after"), "{err}");

    let lock = redlock.try_lock("t", TTL).unwrap();
    assert_eq!(redlock.shutdown(TTL), 0);
    let (code, _, err) = run(&mut unhurried(&list, &["--also", "t", "r", "true"]));
    let words = format!("muxlock: contended: {} holds t on 3", lock.token().fingerprint());
    assert!(code == 121 && err.starts_with(&words), "{err}");
    assert!(lock.unlock().unwrap().was_held());
    let args = ["-w", "20s", "--at-least", "5s", "--also", "t", "r", "true"];
    assert_eq!(run(&mut unhurried(&list, &args)).0, 0);
    assert!(redlock.try_lock("t", TTL).is_err(), "kept for --at-least");
}

/// K4, K6: shares beside each other, and none beside who takes all of them.
#[test]
fn slow_command_shares_its_resource() {
    let (masters, redlock, list) = start();
    let script = "echo $MUXLOCK_RESOURCE; read x";
    let hold = |how: &str| {
        let mut args = vec!["--ttl", "3s", "r", "-c", script];
        args.insert(0, how);
        let mut child = Running::start(unhurried(&list, &args).stdin(Stdio::piped()));
        assert_eq!(first_line(&mut child.0), "r");
        child
    };
    let let_go = |mut child: Running| {
        child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(child.end(), (0, String::new(), String::new()));
    };
    // It is renewed.
    let longer_than_its_ttl = ["--ttl", "2s", "--shared", "r", "sleep", "4"];
    let none = String::new;
    assert_eq!(run(&mut unhurried(&list, &longer_than_its_ttl)), (0, none(), none()));
    let [one, two] = [hold("--shared"), hold("--shared")];
    assert!(redlock.try_lock("r", TTL).unwrap_err().is_contended());
    let (code, _, err) = run(&mut unhurried(&list, &["--exclusive", "r", "true"]));
    let words = "contended: r has read locks on 3 of 3 masters: ";
    assert!(code == 121 && err.contains(words) && err.contains(" (--wait 30s would"), "{err}");
    for child in [&one, &two] {
        assert!(err.contains(&client(child.0.id(), "sh")), "{err}");
    }

    let mut waits = unhurried(&list, &["-w", "60s", "--exclusive", "r", "true"]);
    let waits = Running::start(&mut waits);
    soon("the sign is there", || masters[0].value_of(b"r:intent").unwrap().is_some());
    assert_eq!(run(&mut unhurried(&list, &["--shared", "r", "true"])).0, 121, "it stands back");
    [one, two].into_iter().for_each(let_go);
    assert_eq!(waits.end(), (0, String::new(), String::new()));

    let alone = hold("--exclusive");
    assert_eq!(run(&mut unhurried(&list, &["--shared", "r", "true"])).0, 121);
    let_go(alone);
    let shared = ["--shared", "--max-time", "100ms", "r", "sleep", "60"];
    assert_eq!(run(&mut unhurried(&list, &shared)).0, 124);
    soon("nothing is left", || masters.iter().all(|it| it.dbsize().unwrap() == 0));
}

/// The servers refuse the release as the command ends, and accept it a little later.
#[test]
fn refused_release_is_repeated_before_the_end() {
    let (masters, _redlock, list) = start();
    let set = |value| {
        for master in &masters {
            ask(master, &["CONFIG", "SET", "min-replicas-to-write", value]);
        }
    };
    let mut child = Running::start(
        unhurried(&list, &["--ttl", "30s", "r", "-c", "echo; read x"]).stdin(Stdio::piped()),
    );
    first_line(&mut child.0);
    let errors = |master: &Master| master.stat("total_error_replies").unwrap();
    let before: Vec<u64> = masters.iter().map(errors).collect();
    set("1");
    child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let refused = || masters.iter().zip(&before).all(|(it, before)| errors(it) > *before);
    soon("they have refused it", refused);
    set("0");
    assert_eq!(child.end(), (0, String::new(), String::new()));
    assert!(masters.iter().all(|it| it.dbsize().unwrap() == 0));
}

/// K8: so many at a time, each with the name of its permit, whatever number a rollout gives to others.
#[test]
fn command_takes_one_of_several_permits() {
    let (masters, _redlock, list) = start();
    let args = ["--slots", "2", "smtp", "-c", "echo $MUXLOCK_RESOURCE; read x"];
    let hold = || Running::start(unhurried(&list, &args).stdin(Stdio::piped()));
    let [mut one, mut two] = [hold(), hold()];
    let mut names = [&mut one, &mut two].map(|child| first_line(&mut child.0));
    names.sort();
    assert_eq!(names, ["smtp{permit}:0", "smtp{permit}:1"]);
    let (code, _, err) = run(&mut unhurried(&list, &args));
    let words = "muxlock: contended: none of the 2 permits of smtp was granted: ";
    assert!(code == 121 && err.starts_with(words) && err.contains(" (--wait 30s would"), "{err}");
    for child in [&one, &two] {
        assert!(err.contains(&client(child.0.id(), "sh")), "{err}");
    }
    assert_eq!(run(&mut unhurried(&list, &["--slots", "1", "smtp", "true"])).0, 121);
    let (code, out, _) = run(&mut super::cli::unhurried(&list, &["inspect", "smtp"]));
    assert!(
        code == 1 && out.contains("smtp is free; as a semaphore it has 2 permits taken"),
        "{out}"
    );
    for mut child in [one, two] {
        child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(child.end(), (0, String::new(), String::new()));
    }
    let verbose = ["-v", "-w", "20s", "--slots", "2", "smtp", "true"];
    let (code, _, err) = run(&mut unhurried(&list, &verbose));
    assert!(code == 0 && err.contains("muxlock: granted smtp{permit}:"), "{err}");
    assert!(err.contains("muxlock: released smtp{permit}:"), "{err}");
    soon("nothing is left", || masters.iter().all(|it| it.dbsize().unwrap() == 0));
}

/// K11, K15: others see it, it is renewed, and the same value does not get the lock again.
#[test]
fn slow_command_runs_with_a_value_that_others_recognise() {
    let (masters, redlock, list) = start();
    let args = ["--ttl", "2s", "--as", "web-1", "r", "-c", "echo $MUXLOCK_RESOURCE; read x"];
    let mut one = Running::start(unhurried(&list, &args).stdin(Stdio::piped()));
    assert_eq!(first_line(&mut one.0), "r");
    pause(Duration::from_secs(4));
    assert_eq!(redlock.owner("r").unwrap(), Owner::Value(b"web-1"[..].into()));
    let (code, _, err) = run(&mut unhurried(&list, &args));
    let words =
        format!(" holds r on 3 of 3 masters: value \"web-1\", {}", client(one.0.id(), "sh"));
    assert!(code == 121 && err.contains(&words), "{err}");
    one.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(one.end(), (0, String::new(), String::new()));
    soon("nothing is left", || masters.iter().all(|it| it.dbsize().unwrap() == 0));
    let (code, _, err) = run(&mut unhurried(&list, &["--as", "", "r", "true"]));
    assert!(code == 125 && err.contains("the value has 0 bytes"), "{err}");
}

#[test]
fn kinds_of_lock_exclude_each_other() {
    let list = "redis://127.0.0.1:1";
    let kinds: [&[&str]; 6] = [
        &["--also", "s"],
        &["--shared"],
        &["--exclusive"],
        &["--slots", "3"],
        &["--as", "v"],
        &["--fenced"],
    ];
    for (i, one) in kinds.iter().enumerate() {
        for two in &kinds[i + 1..] {
            let args = [one, *two, &["r", "true"]].concat();
            let (code, _, err) = run(&mut unhurried(list, &args));
            assert_eq!(code, 125, "{args:?}");
            assert!(err.contains("cannot be used with") && err.contains(two[0]), "{err}");
        }
    }
    for slots in ["0", "51", "many"] {
        let (code, _, err) = run(&mut unhurried(list, &["--slots", slots, "r", "true"]));
        let words = format!("error: invalid value '{slots}' for '--slots <N>'");
        assert!(code == 125 && err.starts_with(&words), "{err}");
    }
    let long = "r".repeat(1_014);
    let (code, _, err) = run(&mut unhurried(list, &["--slots", "3", &long, "true"]));
    assert!(
        code == 125 && err.contains("the semaphore's name has 1014 bytes: it must have 1 to 1013"),
        "{err}"
    );
    let many: Vec<String> = (0..128).map(|i| format!("--also=s{i}")).collect();
    let mut args: Vec<&str> = many.iter().map(String::as_str).collect();
    args.extend(["r", "true"]);
    let (code, _, err) = run(&mut unhurried(list, &args));
    assert!(code == 125 && err.contains("129 resources"), "{err}");
}
