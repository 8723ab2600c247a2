//! `muxlock run` at a terminal, which `script` of bsdutils makes.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use testbed::{SOON, within};

use super::cli::start;
use super::run::{Running, unhurried};

/// What a user types after which output.
type Typed<'a> = (&'a str, &'a [u8]);

/// Runs a shell at a terminal, in which `muxlock run` is `$m`, and types. Returns its exit status
/// and what the terminal shows.
fn at_terminal(list: &str, script: &str, typed: &[Typed<'_>]) -> (i32, String) {
    let tool = unhurried(list, &[]);
    // A test that runs in the background of a shell ignores SIGINT, and so would what it starts.
    let mut shell = Command::new("env");
    shell.args(["--default-signal=INT", "script"]);
    let script = format!("m='{} run'; {script}", env!("CARGO_BIN_EXE_muxlock"));
    shell.args(["-qefc", &script]);
    shell.arg("/dev/null").stdin(Stdio::piped()).env("SHELL", "/bin/sh").env("TERM", "dumb");
    tool.get_envs().for_each(|(name, value)| match value {
        Some(value) => drop(shell.env(name, value)),
        None => drop(shell.env_remove(name)),
    });
    let mut running = Running::start(&mut shell);
    let mut keys = running.0.stdin.take().unwrap();
    let mut out = running.0.stdout.take().unwrap();
    let mut shown = Vec::new();
    let mut bytes = [0; 1_024];
    for (after, text) in typed {
        // Up to the text that it waits for, or the end.
        while !String::from_utf8_lossy(&shown).contains(after) {
            let count = out.read(&mut bytes).unwrap();
            assert!(count > 0, "no {after}: {}", String::from_utf8_lossy(&shown));
            shown.extend_from_slice(&bytes[..count]);
        }
        keys.write_all(text).unwrap();
    }
    out.read_to_end(&mut shown).unwrap();
    let code = running.0.wait().unwrap().code().expect("it exits");
    (code, String::from_utf8_lossy(&shown).replace("\r\n", "\n"))
}

#[test]
fn command_reads_the_terminal_and_so_does_the_script_after_it() {
    let (_masters, _redlock, list) = start();
    let script = "$m r -c 'echo ready; read x; echo got:$x'; read y; echo after:$y";
    let (code, shown) = at_terminal(&list, script, &[("ready", b"one\n"), ("got:", b"two\n")]);
    assert!(code == 0 && shown.contains("got:one\n") && shown.contains("after:two\n"), "{shown}");
}

#[test]
fn slow_control_c_reaches_the_command_once() {
    let (_masters, redlock, list) = start();
    let script = "exec $m r -c 'trap \"n=x\\$n\" INT; echo ready; sleep 9; sleep 0.3; \
        echo got:$n; exit 7'";
    let (code, shown) = at_terminal(&list, script, &[("ready", b"\x03")]);
    assert!(code == 7 && shown.contains("got:x\n"), "{code} {shown}");
    assert!(redlock.try_lock("r", testbed::TTL).is_ok());
    // A command that ends at it.
    let (code, _) =
        at_terminal(&list, "exec $m s -c 'echo ready; exec sleep 60'", &[("ready", b"\x03")]);
    assert_eq!(code, 130);
}

#[test]
fn slow_control_c_ends_a_wait() {
    let (masters, redlock, list) = start();
    let _lock = redlock.try_lock("r", testbed::TTL).unwrap();
    let script = "exec $m -w 60s r true";
    let (code, shown) = at_terminal(&list, script, &[("waiting for r: 1 s", b"\x03")]);
    assert_eq!(code, 130, "{shown}");
    within(4 * SOON, "its key is gone", || masters.iter().all(|it| it.dbsize().unwrap() == 1));
}

#[test]
fn stopped_job_goes_on() {
    let (_masters, _redlock, list) = start();
    let script = "set -m; $m r -c 'echo ready; read x; echo got:$x'; echo job:$?; fg; echo end:$?";
    let typed: [Typed<'_>; 2] = [("ready", b"\x1a"), ("job:", b"word\n")];
    let (_, shown) = at_terminal(&list, script, &typed);
    assert!(
        shown.contains("muxlock: the command was stopped; its lock lasts for another "),
        "{shown}"
    );
    assert!(shown.contains("got:word\n") && shown.contains("end:0\n"), "{shown}");
}

/// A stopped job is not renewed, and must not go on after its lock.
#[test]
fn slow_job_that_is_stopped_for_too_long_is_ended() {
    let (_masters, redlock, list) = start();
    let script = "set -m; $m --ttl 1s r -c 'sleep 60 & echo ready; wait; echo never'; echo job:$?; \
        sleep 1.2; fg; echo end:$?";
    let (_, shown) = at_terminal(&list, script, &[("ready", b"\x1a")]);
    assert!(shown.contains("end:120\n") && !shown.contains("never\n"), "{shown}");
    assert!(redlock.try_lock("r", testbed::TTL).is_ok());
}

/// In the background, a command that reads stops with its job.
#[test]
fn slow_background_job_gets_the_terminal_in_the_foreground() {
    let (_masters, _redlock, list) = start();
    let script =
        "set -m; $m r -c 'echo ready; read x; echo got:$x' & sleep 1; jobs; fg; echo end:$?";
    let (_, shown) = at_terminal(&list, script, &[("ready", b""), ("Stopped", b"word\n")]);
    assert!(shown.contains("got:word\n") && shown.contains("end:0\n"), "{shown}");
}

/// What is said while a program has the whole screen is gone with it.
#[test]
fn slow_terminal_is_as_before_once_the_command_was_ended() {
    let (_masters, _redlock, list) = start();
    let whole_screen = "stty raw -echo; printf \"\\033[?1049h\"; trap \"\" TERM; sleep 60; true";
    let script = format!(
        "export TERM=xterm; before=$(stty -g); \
         $m --max-time 2s --kill-after 100ms r -c '{whole_screen}'; echo end:$?; \
         test \"$before\" = \"$(stty -g)\" && echo the same"
    );
    let (_, shown) = at_terminal(&list, &script, &[]);
    assert!(shown.contains("end:124\n") && shown.contains("the same\n"), "{shown}");
    let (_, after) = shown.split_once("\u{1b}[?1047l").expect("the normal screen is back");
    assert!(after.contains("muxlock: --max-time has passed\n"), "{shown}");
}
