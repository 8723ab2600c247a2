//! The demo, as somebody who types it sees it: real masters, real output, real exit codes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use testbed::Folder;

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

fn assert_told_in_full(demo: &mut Command) -> String {
    let (output, out, err) = run(demo);
    assert_eq!(output.status.code(), Some(0), "{demo:?}\n{out}\n{err}");
    assert_eq!(err, "", "{demo:?}");
    for (i, title) in CHAPTERS.iter().enumerate() {
        let heading = format!("{:>2}. {title}", i + 1);
        assert!(out.lines().any(|line| line == heading), "{heading}\n{out}");
    }
    let checks = out.lines().filter(|line| line.starts_with("   ok "));
    let last = format!("all {} checks passed", checks.count());
    assert_eq!(out.lines().last(), Some(last.as_str()), "{out}");
    assert!(!out.contains(['\x1b', '\r']), "{out:?}");
    out
}

#[test]
fn slow_demo_tells_every_chapter_and_every_check_passes() {
    assert_told_in_full(&mut muxlock(&["demo", "--seconds", "1", "--no-color"]));
}

#[test]
fn slow_demo_needs_no_flag_to_stay_plain_in_a_pipe_and_manages_with_three_masters() {
    assert_told_in_full(&mut muxlock(&["demo", "--seconds", "1", "--masters", "3"]));
}

/// With certificates of its own, also in a folder with an odd name, of which nothing remains.
#[cfg(feature = "tls")]
#[test]
fn slow_demo_over_tls_passes_every_check_and_leaves_no_certificates() {
    let folder = Folder::create("odd & 50 %, demo");
    let mut demo = muxlock(&["demo", "--tls", "--seconds", "1", "--masters", "3"]);
    demo.env("TMPDIR", &folder.0);
    // The installed server has it.
    let is_chosen = std::env::var_os(muxlock::testing::SERVER_VARIABLE).is_some();
    if is_chosen && run(&mut demo).2.contains("built without TLS") {
        let test = "demo_over_tls_passes_every_check_..";
        return testbed::skip(test, "this server was built without TLS");
    }
    let out = assert_told_in_full(&mut demo);
    assert_eq!(out.matches(" rediss://127.0.0.1:").count(), 3, "{out}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn demo_over_tls_says_what_is_missing() {
    // What makes certificates, and a server that says what those without TLS do.
    let folder = Folder::create("demo_over_tls_says");
    let path = folder.0.join("redis-server");
    let server = "#!/bin/sh\necho \">>> 'tls-port \\\"1\\\"'\"; exit 1\n";
    fs::write(&path, server).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let (no_openssl, no_tls) = match cfg!(feature = "tls") {
        true => ("openssl, which makes the certificates, and is not on PATH", "built without TLS"),
        false => ("a muxlock with TLS: build it with --features tls", "--features tls"),
    };
    for (name, value, words) in
        [("PATH", &folder.0, no_openssl), ("MUXLOCK_REDIS_SERVER", &path, no_tls)]
    {
        let (output, out, err) = run(muxlock(&["demo", "--tls"]).env(name, value));
        assert_eq!((output.status.code(), out.as_str()), (Some(2), ""), "{err}");
        assert!(err.starts_with("muxlock: ") && err.contains(words), "{err}");
    }
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
