//! The clients that hold locks and wait for them, in words.

use std::collections::BTreeSet;
use std::process::Stdio;

use muxlock::settings::RestartGuard;
use muxlock::testing::{Master, Masters, Value as Answer};
use serde_json::Value;
use testbed::{TTL, all_ready, patient, soon};

use super::cli::{client, muxlock, run, start, this_client};
use super::run::{Running, first_line, signal, unhurried};

/// A long time: the holders are ended by their tests.
const HOLDS: &[&str] = &["-c", "echo held; read x"];

/// A command that holds a lock of this kind, once it has it.
fn hold(list: &str, kind: &[&str]) -> Running {
    let args: Vec<&str> = [&["--ttl", "20s"], kind, HOLDS].concat();
    let mut holder = Running::start(unhurried(list, &args).stdin(Stdio::piped()));
    assert_eq!(first_line(&mut holder.0), "held", "{kind:?}");
    holder
}

fn inspect(list: &str, name: &str) -> (i32, String, String) {
    run(muxlock(&["inspect", name]).env("MUXLOCK_NODES", list).env("MUXLOCK_NODE_TIMEOUT", "20s"))
}

fn inspect_json(list: &str, name: &str) -> Value {
    let mut command = muxlock(&["inspect", "--json", name]);
    let (_, out, _) = run(command.env("MUXLOCK_NODES", list).env("MUXLOCK_NODE_TIMEOUT", "20s"));
    serde_json::from_str(&out).expect("it is JSON")
}

fn text(master: &Master, words: &[&[u8]]) -> String {
    match master.query(words).unwrap() {
        Answer::Bulk(text) => String::from_utf8_lossy(&text).into_owned(),
        other => panic!("{other:?}"),
    }
}

/// How often a server was asked for its clients.
fn lists(masters: &Masters) -> usize {
    let asked = |master| text(master, &[b"INFO", b"commandstats"]).contains("cmdstat_client|list:");
    masters.iter().filter(|master| asked(master)).count()
}

#[test]
fn inspect_names_the_client_of_each_kind_of_lock() {
    let (_masters, _redlock, list) = start();
    let kinds: [(&[&str], &[&str]); 6] = [
        (&["plain"], &["plain"]),
        (&["one", "--also", "two"], &["one", "two"]),
        (&["--exclusive", "written"], &["written"]),
        (&["--slots", "1", "permit"], &["permit{permit}:0"]),
        (&["--fenced", "fenced"], &["fenced"]),
        (&["--as", "host1 pid 77", "owned"], &["owned"]),
    ];
    for (kind, names) in kinds {
        let holder = hold(&list, kind);
        for name in names {
            let (code, out, err) = inspect(&list, name);
            let fingerprint = out.split_whitespace().nth(1).unwrap().to_owned();
            let value = if kind[0] == "--as" { "value \"host1 pid 77\", " } else { "" };
            let words = client(holder.id(), "sh");
            let line = format!("\n{fingerprint}: {value}{words}");
            assert!(code == 0 && err.is_empty() && out.contains(&line), "{kind:?}: {out}");
            assert!(out.contains(" UTC, from 127.0.0.1\n"), "{out}");

            let json = inspect_json(&list, name);
            assert_eq!(json["client"]["pid"], holder.id(), "{json}");
            assert_eq!(json["client"]["command"], "sh", "{json}");
            assert_eq!(json["nodes"][1]["client"], json["client"], "{json}");
            let started = json["client"]["started"].as_str().unwrap();
            assert!(started.starts_with("20") && started.ends_with('Z'), "{json}");
            let value = json["value"].as_str();
            assert_eq!(value, (kind[0] == "--as").then_some("host1 pid 77"), "{json}");
        }
    }
}

#[test]
fn inspect_names_readers_each_client_once() {
    let (masters, redlock, list) = start();
    let reader = hold(&list, &["--shared", "r"]);
    let own: Vec<_> = (0..20).map(|_| redlock.try_read("r", TTL).unwrap()).collect();
    assert_eq!(redlock.shutdown(TTL), 0);
    let (code, out, _) = inspect(&list, "r");
    assert!(code == 0 && out.contains("  21 read locks  "), "{out}");
    assert_eq!(out.matches(&format!("\nreader: {}", this_client())).count(), 1, "{out}");
    assert!(out.contains("\nand 11 more\n"), "{out}");
    drop(own);
    soon("the others are gone", || inspect(&list, "r").1.contains("  1 read lock  "));
    let (_, out, _) = inspect(&list, "r");
    let line = format!("\nreader: {}", client(reader.id(), "sh"));
    assert!(out.contains(&line) && out.matches("reader: ").count() == 1, "{out}");
    let json = inspect_json(&list, "r");
    assert_eq!(json["readers"][0]["pid"], reader.id(), "{json}");
    drop(masters);
}

#[test]
fn text_of_an_application_is_shown_in_place_of_its_process() {
    let (masters, _redlock, list) = start();
    let client = |name: &str| {
        let builder = patient(masters.urls()).restart_guard(RestartGuard::Off);
        all_ready(&builder.client_name(name))
    };
    for (name, words) in [("orders/eu:1", "orders/eu:1"), ("", "a client without a description")] {
        let redlock = client(name);
        let lock = redlock.try_lock("r", TTL).unwrap();
        assert_eq!(redlock.shutdown(TTL), 0);
        let (_, out, _) = inspect(&list, "r");
        assert!(out.contains(&format!(": {words}, from 127.0.0.1\n")), "{out}");
        let pid = format!("pid {}", std::process::id());
        assert!(!out.contains(&pid), "{out}");
        assert!(lock.unlock().unwrap().was_held());
    }
}

#[test]
fn killed_holder_is_said_to_be_gone() {
    let (_masters, _redlock, list) = start();
    let holder = hold(&list, &["--no-guard", "r"]);
    let pid = holder.id();
    assert!(inspect(&list, "r").1.contains(&client(pid, "sh")));
    signal("KILL", pid);
    drop(holder);
    soon("its connections are closed", || {
        inspect(&list, "r").1.contains(": no longer connected, or without a name\n")
    });
    let (code, out, _) = inspect(&list, "r");
    assert!(code == 0 && !out.contains(&format!("pid {pid} ")), "{out}");
    assert!(inspect_json(&list, "r")["client"].is_null());
    let (code, _, err) = run(&mut unhurried(&list, &["r", "true"]));
    let words = " holds r on 3 of 3 masters: no longer connected, or without a name; free in ";
    assert!(code == 121 && err.contains(words), "{err}");
}

#[test]
fn values_of_other_libraries_lead_to_no_client_and_stay_secret() {
    let (masters, redlock, list) = start();
    let set = |value: &str| {
        for master in masters.iter() {
            master.query(&[b"SET", b"r", value.as_bytes(), b"PX", b"60000"]).unwrap();
        }
    };
    assert!(redlock.try_lock("other", TTL).is_ok());
    let long = "secret-token-of-another-library-1234567890";
    for value in ["short", long, &"Z".repeat(40)] {
        set(value);
        let (code, out, _) = inspect(&list, "r");
        assert!(code == 0 && out.contains(": another client library\n"), "{out}");
        // Of a long value, the fingerprint is shown.
        let secret = value.get(8..).unwrap_or(value);
        let json = inspect_json(&list, "r").to_string();
        assert!(!out.contains(secret) && !json.contains(secret), "{out}{json}");
    }
    // An older client of this library has a token, the end of which is in no name.
    set(&"0123456789abcdef".repeat(3)[..40]);
    let (_, out, _) = inspect(&list, "r");
    assert!(out.contains("01234567: no longer connected, or without a name\n"), "{out}");
}

#[test]
fn without_the_right_to_list_clients_the_rest_is_shown() {
    let (masters, _redlock, list) = start();
    let holder = hold(&list, &["r"]);
    let forbid = |master: &Master| {
        master.query(&[b"ACL", b"SETUSER", b"default", b"-client|list"]).unwrap();
    };
    masters.iter().take(2).for_each(forbid);
    let (_, out, _) = inspect(&list, "r");
    assert!(out.contains(&client(holder.id(), "sh")), "one master is enough: {out}");
    masters.iter().for_each(forbid);
    let (code, out, err) = inspect(&list, "r");
    let words = "\nclients are unknown: the user \"default\" lacks +client|list\n";
    assert!(code == 0 && err.is_empty() && out.contains(words), "{out}");
    assert_eq!((out.matches("lacks").count(), out.matches("pid").count()), (1, 0), "{out}");
    let (code, _, err) = run(&mut unhurried(&list, &["r", "true"]));
    assert!(code == 121 && err.contains(" holds r on 3 of 3 masters; free in "), "{err}");
    let fingerprint = out.split_whitespace().nth(1).unwrap();
    let mut revoke = muxlock(&["revoke", "r", "--holder", fingerprint]);
    let (code, out, _) = run(revoke.env("MUXLOCK_NODES", &list).env("MUXLOCK_NODE_TIMEOUT", "20s"));
    assert!(code == 0 && out.contains(words), "{out}");
}

#[test]
fn lock_is_looked_up_only_where_the_holder_is_printed() {
    let (masters, redlock, list) = start();
    let _holder = hold(&list, &["r"]);
    let lock = redlock.try_lock("mine", TTL).unwrap();
    assert!(redlock.try_lock("r", TTL).unwrap_err().is_contended());
    let silent = ["-q", "-E", "0", "r", "true"];
    assert_eq!(run(&mut unhurried(&list, &silent)), (0, String::new(), String::new()));
    assert_eq!(run(&mut unhurried(&list, &["free", "true"])).0, 0);
    assert_eq!(inspect(&list, "free").0, 1);
    assert!(lock.unlock().unwrap().was_held());
    assert_eq!(lists(&masters), 0);
    assert_eq!(run(&mut unhurried(&list, &["r", "true"])).0, 121);
    assert_eq!(lists(&masters), 3);
}

#[test]
fn names_have_no_arguments_and_output_has_no_token() {
    let (masters, _redlock, list) = start();
    let args = ["r", "env", "A=sesame", "sh", "-c", "echo held; read x"];
    let mut holder = Running::start(unhurried(&list, &args).stdin(Stdio::piped()));
    assert_eq!(first_line(&mut holder.0), "held");
    let names = text(&masters[0], &[b"CLIENT", b"LIST"]);
    assert!(names.contains(&format!(":pid={}:", holder.id())) && !names.contains("sesame"));
    assert!(names.contains(":cmd=env:start="), "{names}");
    let token = text(&masters[0], &[b"GET", b"r"]);
    assert_eq!(token.len(), 40);
    let (_, out, _) = inspect(&list, "r");
    let (_, _, err) = run(&mut unhurried(&list, &["r", "true"]));
    let json = inspect_json(&list, "r").to_string();
    for said in [out, err, json] {
        assert!(said.contains(&token[..8]) && !said.contains("sesame"), "{said}");
        for part in [&token[8..24], &token[16..32]] {
            assert!(!said.contains(part), "{said}");
        }
    }
}

#[test]
fn clients_of_two_processes_have_two_tags() {
    let (masters, _redlock, list) = start();
    let _holders = [hold(&list, &["one"]), hold(&list, &["two"])];
    let tags: BTreeSet<_> = ["one", "two"]
        .map(|name| text(&masters[0], &[b"GET", name.as_bytes()])[32..].to_owned())
        .into();
    assert_eq!(tags.len(), 2, "{tags:?}");
}

/// The same fingerprint everywhere, also that of a value that is too short to be shown itself.
#[test]
fn holder_of_the_command_is_the_one_that_inspect_shows() {
    let (_masters, _redlock, list) = start();
    for value in ["web-1", &"v".repeat(23), &"w".repeat(24)] {
        let args = ["-v", "--as", value, "r", "-c", "echo $MUXLOCK_HOLDER; read x"];
        let mut holder = Running::start(unhurried(&list, &args).stdin(Stdio::piped()));
        let shown = first_line(&mut holder.0);
        let (_, out, _) = inspect(&list, "r");
        assert!(out.contains(&format!("\n{shown}: value \"{value}\", ")), "{shown}: {out}");
        drop(holder.0.stdin.take());
        let (code, _, err) = holder.end();
        assert!(code != 120 && err.contains(&format!(": holder {shown}, valid for ")), "{err}");
    }
}

#[test]
fn revoke_names_the_client_that_loses_its_lock() {
    let (_masters, _redlock, list) = start();
    let holder = hold(&list, &["r"]);
    let fingerprint = inspect(&list, "r").1.split_whitespace().nth(1).unwrap().to_owned();
    let mut revoke = muxlock(&["revoke", "r", "--holder", &fingerprint]);
    let (code, out, _) = run(revoke.env("MUXLOCK_NODES", &list).env("MUXLOCK_NODE_TIMEOUT", "20s"));
    let line = format!("\n{fingerprint}: {}", client(holder.id(), "sh"));
    assert!(code == 0 && out.contains(&line), "{out}");
    let (_, out, _) = inspect(&list, "r");
    assert!(out.contains("\nr was revoked on 3 of 3") && !out.contains("pid "), "{out}");
}

/// The token stays the same, and with it the tag.
#[test]
fn lock_that_was_handed_over_leads_to_the_client_that_took_it() {
    let (masters, redlock, list) = start();
    let receiver = patient(masters.urls()).restart_guard(RestartGuard::Off);
    let receiver = all_ready(&receiver.client_name("receiver"));
    let lock = redlock.try_lock("r", TTL).unwrap();
    assert_eq!(redlock.shutdown(TTL), 0);
    let lock = receiver.adopt(lock.into_parts()).unwrap();
    let (_, out, _) = inspect(&list, "r");
    assert!(out.contains(&this_client()) && !out.contains("receiver"), "{out}");
    drop(redlock);
    soon("its connections are closed", || inspect(&list, "r").1.contains("no longer connected"));
    assert!(lock.unlock().unwrap().was_held());
}
