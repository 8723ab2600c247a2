//! The demo, as somebody who types it sees it: real masters, real output, real exit codes.

use std::process::{Command, Output};

const CHAPTERS: [&str; 12] = [
    "The masters",
    "Acquire",
    "A second client wants it, too",
    "Extend",
    "Unlock",
    "A master dies",
    "Another one freezes",
    "No quorum",
    "The masters come back",
    "Masters forget the lock",
    "Acquire and release, 2,000 times",
    "Nothing is left",
];

fn muxlock(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muxlock"));
    command.args(args);
    command
}

fn run(command: &mut Command) -> (Output, String, String) {
    let output = command.output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("it writes UTF-8");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

fn assert_told_in_full(args: &[&str]) {
    let (output, out, err) = run(&mut muxlock(args));
    assert_eq!(output.status.code(), Some(0), "{args:?}\n{out}\n{err}");
    assert_eq!(err, "", "{args:?}");
    for (i, title) in CHAPTERS.iter().enumerate() {
        let heading = format!("{:>2}. {title}", i + 1);
        assert!(out.lines().any(|line| line == heading), "{heading}\n{out}");
    }
    let checks = out.lines().filter(|line| line.starts_with("   ok "));
    let last = format!("all {} checks passed", checks.count());
    assert_eq!(out.lines().last(), Some(last.as_str()), "{out}");
    assert!(!out.contains(['\x1b', '\r']), "{out:?}");
}

#[test]
fn demo_tells_every_chapter_and_every_check_passes() {
    assert_told_in_full(&["demo", "--seconds", "1", "--no-color"]);
}

#[test]
fn demo_needs_no_flag_to_stay_plain_in_a_pipe_and_manages_with_three_masters() {
    assert_told_in_full(&["demo", "--seconds", "1", "--masters", "3"]);
}

#[test]
fn demo_without_a_redis_server_says_so_and_exits_with_2() {
    let mut command = muxlock(&["demo"]);
    command.env("MUXLOCK_REDIS_SERVER", "/nonexistent");
    let (output, out, err) = run(&mut command);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert_eq!(out, "");
    let sentence = "muxlock: MUXLOCK_REDIS_SERVER names /nonexistent, which does not exist\n";
    assert_eq!(err, sentence);
}

#[test]
fn demo_refuses_a_number_out_of_bounds_and_names_the_bounds() {
    for (args, bounds) in [
        (["demo", "--masters", "2"], "2 is not in 3..=9"),
        (["demo", "--masters", "10"], "10 is not in 3..=9"),
        (["demo", "--seconds", "0"], "0 is not in 1..=3600"),
    ] {
        let (output, out, err) = run(&mut muxlock(&args));
        assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
        assert_eq!(out, "");
        assert!(err.contains(bounds), "{args:?}: {err}");
    }
}
