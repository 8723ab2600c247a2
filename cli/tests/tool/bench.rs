//! `muxlock bench` on real masters: that it counts, and leaves nothing.

use muxlock::testing::Masters;
use serde_json::Value;
use testbed::heavy;

use crate::cli::{muxlock, run};

const PATIENT: [&str; 6] =
    ["--node-timeout", "20s", "--connect-timeout", "10s", "--restart-guard", "off"];

fn bench(masters: &Masters, args: &[&str]) -> (i32, String, String) {
    let mut command = muxlock(&["bench", "--for", "300ms"]);
    run(command.args(PATIENT).args(args).env("MUXLOCK_NODES", masters.urls().join(",")))
}

#[test]
fn pairs_are_counted_on_threads_and_in_an_event_loop() {
    let _turn = heavy();
    let masters = Masters::start(3).unwrap();
    for how in
        [&["--threads", "3"][..], &["--in-flight", "20"], &["--in-flight", "2", "--rate", "50"]]
    {
        let sets = || masters.iter().map(|it| it.command_calls("set").unwrap()).sum::<u64>();
        let before = sets();
        let (code, out, err) = bench(&masters, &[how, &["--json", "--prefix", "app:"]].concat());
        assert_eq!(code, 0, "{out}{err}");
        assert!(err.contains(": keys app:muxlock:bench:"), "{err}");
        assert!(err.contains(&masters[2].addr()), "{err}");
        let json: Value = serde_json::from_str(&out).unwrap();
        let pairs = json["pairs"].as_u64().unwrap();
        assert!((2 * pairs..=3 * pairs).contains(&(sets() - before)), "{json}");
        if how.contains(&"--rate") {
            assert_eq!(pairs, 15, "as many as were due");
        }
        let figure = |what: &str, name: &str| json[what][name].as_f64().unwrap();
        for what in ["acquire", "release", "pair"] {
            assert!(figure(what, "p50_us") > 0.0, "{json}");
            assert!(figure(what, "p50_us") <= figure(what, "p99_9_us"), "{json}");
            assert!(figure(what, "p99_9_us") <= figure(what, "max_us"), "{json}");
        }
        let first = |node: usize| json["masters"][node]["first_quorum"].as_u64().unwrap();
        let all = (0..3).map(first).sum::<u64>();
        assert!((2 * pairs..=3 * pairs).contains(&all), "a quorum for each: {json}");
        assert!(json["masters"][1]["round_trip_us"].as_f64().unwrap() > 0.0);
        assert!(masters.iter().all(|master| master.dbsize().unwrap() == 0), "nothing is left");
    }
    let (code, out, _) = bench(&masters, &["--rate", "20"]);
    assert!(code == 0 && out.ends_with("\n6 pairs, 20 a second\n"), "{out}");
    assert!(out.contains(&format!("\n{}  ", masters[1].addr())), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let node = ["--node", "redis://127.0.0.1:1", "--connect-timeout", "1s"];
    let table: [(&[&str], &str); 8] = [
        (&["--for", "61m"], "--for is 3660s: it must be from 100ms to 1h"),
        (&["--ttl", "31s"], "--ttl is 31s: it must be from 4ms to 30s (max-ttl)"),
        (&["--ttl", "3ms"], "--ttl is 3ms: it must be from 4ms to 30s (max-ttl)"),
        (&["--threads", "0"], "0 is not in 1..=1024"),
        (&["--in-flight", "1025"], "1025 is not in 1..=1024"),
        (&["--threads", "2", "--in-flight", "2"], "cannot be used with"),
        (&["--rate", "0"], "0 is not in 1..=1000000"),
        (&[], "unavailable: 1 of 1 nodes gave no vote"),
    ];
    for (args, text) in table {
        let (code, out, err) = run(muxlock(&["bench"]).args(node).args(args));
        assert!((code, out.as_str()) == (2, "") && err.contains(text), "{err}");
    }
}

/// The keys of other names are forbidden.
#[test]
fn pairs_that_fail_are_counted() {
    let masters = Masters::start(3).unwrap();
    for master in masters.iter() {
        let words = ["ACL", "SETUSER", "default", "resetkeys", "~muxlock:probe"];
        master.query(&words.map(str::as_bytes)).unwrap();
    }
    for how in ["--threads", "--in-flight"] {
        let (code, out, err) = bench(&masters, &[how, "1", "--rate", "2"]);
        assert_eq!(code, 1, "{err}");
        let end = "\nfailed 1: too few masters answered\n0 pairs, 0 a second\n";
        assert!(out.ends_with(end), "{out}");
    }
}
