//! `muxlock list` and `muxlock top`: which locks are listed, and which keys are none.

use std::io::{BufRead, BufReader};
use std::process::{Stdio, id};
use std::thread;

use muxlock::testing::{Master, Masters, Value as Answer};
use muxlock::{LockGuard, Redlock};
use serde_json::{Value, json};
use testbed::{Site, TTL, all_ready, ask, documented_rights, patient, soon, with_login};

use crate::cli::{muxlock, run, start, this_client, unhurried};
use crate::run as runs;
use crate::run::{Running, first_line, signal};

/// A value like that of a lock.
const TOKEN: &str = "0123456789abcdef0123456789abcdef01234567";
const OTHER: &str = "ab0123456789abcdef0123456789abcdef012345";
const SECOND: &str = "60000";
const UNFOUND: &str = "no longer connected, or without a name";

fn list(urls: &str, args: &[&str]) -> (i32, String, String) {
    run(unhurried(urls, &["list"]).args(args))
}

#[track_caller]
fn list_json(urls: &str, args: &[&str]) -> Value {
    let (_, out, err) = list(urls, &[&["--json"], args].concat());
    assert_eq!((out.lines().count(), err.as_str()), (1, ""), "{out}");
    serde_json::from_str(&out).expect("it is JSON")
}

/// The lines of the table, cut into cells.
fn rows(out: &str) -> Vec<Vec<&str>> {
    out.lines()
        .map(|line| line.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect())
        .collect()
}

/// An owner value, and how the table shows it.
const VALUE: &str = "worker-7 of a row";
const SHOWN_VALUE: &str = "value \"worker-7 of a row\", ";

/// How the table shows a client of this test.
fn this_short() -> String {
    this_client().split(", started").next().unwrap().to_owned()
}

/// The names of the locks.
fn names(json: &Value) -> Vec<&str> {
    json["locks"].as_array().unwrap().iter().map(|it| it["resource"].as_str().unwrap()).collect()
}

#[track_caller]
fn lock_named<'a>(json: &'a Value, name: &str) -> &'a Value {
    let locks = json["locks"].as_array().unwrap();
    locks.iter().find(|it| it["resource"] == name).unwrap_or_else(|| panic!("{name}: {json}"))
}

fn set(masters: &[&Master], key: &[u8], value: &[u8]) {
    for master in masters {
        master.query(&[b"SET", key, value, b"PX", SECOND.as_bytes()]).unwrap();
    }
}

fn all(masters: &Masters) -> Vec<&Master> {
    masters.iter().collect()
}

fn token(lock: &LockGuard) -> &str {
    std::str::from_utf8(lock.token().as_bytes()).unwrap()
}

/// Waits until every master has all keys.
fn settle(redlock: &Redlock) {
    assert_eq!(redlock.shutdown(TTL), 0);
}

#[test]
fn each_kind_is_listed_with_its_holder_and_nothing_secret() {
    let (_masters, redlock, urls) = start();
    let (code, out, err) = list(&urls, &[]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", "muxlock: no locks\n"));

    let plain = redlock.try_lock("deploy", TTL).unwrap();
    let both = redlock.try_lock_all(["b", "a"], TTL).unwrap();
    let readers = [(); 2].map(|()| redlock.try_read("ledger", TTL).unwrap());
    let writer = redlock.try_write("write", TTL).unwrap();
    let smtp = redlock.semaphore("smtp", 5).unwrap();
    let permits = [(); 3].map(|()| smtp.try_acquire(TTL).unwrap());
    let owned = redlock.try_lock_as("invoice:42", VALUE, TTL).unwrap();
    let fenced = redlock.fenced().try_lock("fenced", TTL).unwrap();
    settle(&redlock);

    let (code, out, err) = list(&urls, &[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let holder = |lock: &LockGuard| lock.token().fingerprint().to_string();
    let client = this_short();
    let row = |name: &str, kind: &str, holder: &str| {
        let rows = rows(&out);
        let row = rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{name}: {out}"));
        let left: f64 = row[3].strip_suffix(" s").expect(&out).parse().unwrap();
        assert!((row[1], row[2]) == (kind, holder) && (1.0..=30.0).contains(&left), "{row:?}");
        assert!(row.get(6).is_none_or(|age| age.ends_with(" s")), "{row:?}");
        let shown = row.get(7).map(|it| it.strip_prefix(SHOWN_VALUE).unwrap_or(it));
        assert!(shown.is_none_or(|it| it == client), "{row:?}");
        assert_eq!(kind == "owner", shown != row.get(7).copied(), "{row:?}");
        row[4..row.len().min(6)].join(" ")
    };
    let headings = ["RESOURCE", "KIND", "HOLDER", "LEFT", "ON", "WAITING", "AGE", "CLIENT"];
    assert_eq!(rows(&out)[0], headings);
    assert_eq!(out.matches(&client).count(), 10, "all but the semaphore: {out}");
    assert_eq!(row("deploy", "lock", &holder(&plain)), "3/3 0");
    assert_eq!(row("a", "lock", &holder(&both)), "3/3 0");
    assert_eq!(row("b", "lock", &holder(&both)), "3/3 0");
    assert_eq!(row("write", "lock", &holder(&writer)), "3/3 0");
    assert_eq!(row("ledger", "read", "2 readers"), "3/3 0");
    assert_eq!(row("smtp", "semaphore", "3 taken"), "0");
    for permit in &permits {
        let name = std::str::from_utf8(permit.resource().as_bytes()).unwrap();
        assert_eq!(row(name, "permit", &holder(permit)), "3/3 0");
    }
    row("fenced", "lock", &fenced.token().fingerprint().to_string());
    // The value has less than 24 bytes, so its fingerprint is of a hash.
    let digest = rows(&out).iter().find(|row| row[0] == "invoice:42").unwrap()[2].to_owned();
    assert_eq!(row("invoice:42", "owner", &digest), "3/3 0");
    assert_eq!(out.lines().count(), 1 + 8 + 3, "{out}");
    let start = out.find("CLIENT").unwrap();
    let is_aligned = |line: &str| line[..start].ends_with("  ") && line.ends_with(&client);
    let count = out.lines().filter(|line| line.len() > start && is_aligned(line)).count();
    assert_eq!(count, 10, "columns are aligned: {out}");

    let json = list_json(&urls, &[]);
    let sorted = ["a", "b", "deploy", "fenced", "invoice:42", "ledger", "smtp", "write"];
    assert_eq!(names(&json), sorted);
    let semaphore = lock_named(&json, "smtp");
    assert_eq!(semaphore["taken"], json!(3));
    assert_eq!(semaphore["permits"].as_array().unwrap().len(), 3);
    let mut deploy = lock_named(&json, "deploy").clone();
    assert!(deploy["free_in_ms"].as_u64().is_some_and(|ms| (1..=30_000).contains(&ms)), "{deploy}");
    deploy["free_in_ms"] = json!(1);
    let shown = deploy["client"].take();
    assert_eq!((&shown["pid"], &shown["address"]), (&json!(id()), &json!("127.0.0.1")), "{shown}");
    assert!(shown["started"].is_string() && shown["host"].is_string(), "{shown}");
    assert!(deploy["age_s"].take().is_u64(), "{shown}");
    let (_, inspected, _) = run(&mut unhurried(&urls, &["inspect", "--json", "deploy"]));
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(shown, inspected["client"]);
    let invoice = lock_named(&json, "invoice:42");
    assert_eq!((&invoice["client"], &invoice["value"]), (&shown, &json!(VALUE)));
    assert_eq!(semaphore["permits"][0]["client"], shown);
    let ledger = lock_named(&json, "ledger");
    assert_eq!((&ledger["client"], &ledger["reader_clients"]), (&Value::Null, &json!([shown])));
    let expected = json!({
        "resource": "deploy", "resource_hex": null, "kind": "lock", "state": "held",
        "holder": holder(&plain), "client": null, "value": null, "readers": null, "reader_clients": null,
        "free_in_ms": 1, "age_s": null, "on": 3, "waiting": 0,
    });
    assert_eq!(deploy, expected);
    let whole = json!([3, 3, 2, false, 0, []]);
    let parts = ["masters", "answered", "quorum", "truncated", "perhaps_held", "notes"];
    assert_eq!(json!(parts.map(|part| &json[part])), whole);
    assert_eq!(json["clients_unknown"], Value::Null);
    assert_eq!(json["nodes"].as_array().unwrap().len(), 3);

    // All that is beside the locks in the database is none, even with --all.
    assert_eq!(names(&list_json(&urls, &["--all"])), sorted);
    let shown = format!("{out}{json}");
    for lock in [&plain, &both, &writer, &owned].into_iter().chain(&permits).chain(&readers) {
        assert!(!shown.contains(&token(lock)[8..]), "{shown}");
        assert!(!shown.contains(&token(lock)[32..]), "{shown}");
    }

    // A part of the name of a permit: the others are not known.
    let name = std::str::from_utf8(permits[0].resource().as_bytes()).unwrap();
    let json = list_json(&urls, &[name]);
    assert_eq!((names(&json), &json["locks"][0]["kind"]), (vec![name], &json!("permit")));
    assert_eq!(names(&list_json(&urls, &["smtp"])), ["smtp"]);
}

#[test]
fn slow_waiting_clients_are_counted_and_come_first_in_top() {
    let (masters, redlock, urls) = start();
    let locks = ["a", "deploy"].map(|name| redlock.try_lock(name, TTL).unwrap());
    settle(&redlock);
    let queue = "deploy:muxlock:queue";
    let length = |master: &Master| match ask(master, &["LLEN", queue]) {
        Answer::Integer(length) => length,
        other => panic!("{other:?}"),
    };
    let waiters = [(); 2].map(|()| all_ready(&patient(masters.urls())));
    thread::scope(|scope| {
        for waiter in &waiters {
            scope.spawn(|| drop(waiter.try_lock_for("deploy", TTL, TTL)));
        }
        soon("both wait", || masters.iter().any(|master| length(master) == 2));
        let json = list_json(&urls, &[]);
        assert_eq!(names(&json), ["a", "deploy"]);
        let waiting = ["a", "deploy"].map(|name| lock_named(&json, name)["waiting"].as_u64());
        assert_eq!(waiting, [Some(0), Some(2)]);

        let mut top = unhurried(&urls, &["top"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(top.stdout.take().unwrap()).lines().map(Result::unwrap);
        // The second time, after an empty line.
        let seen: Vec<String> = lines.take(7).collect();
        let first = |line: &String| line.split(' ').next().unwrap().to_owned();
        let expected = ["RESOURCE", "deploy", "a", "", "RESOURCE", "deploy", "a"];
        assert_eq!(seen.iter().map(first).collect::<Vec<_>>(), expected);
        let has = |line: &str, waiting| {
            line.contains(&format!("  3/3  {waiting}  ")) && line.ends_with(&this_short())
        };
        assert!(has(&seen[1], 2) && has(&seen[2], 0), "{seen:?}");
        soon("it ends when its output is closed", || top.try_wait().unwrap().is_some());

        let mut top = unhurried(&urls, &["top", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(top.stdout.take().unwrap()).lines().map(Result::unwrap);
        let json: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        assert_eq!(names(&json), ["deploy", "a"]);
        assert_eq!(json["locks"][0]["client"]["pid"], id(), "{json}");
        top.kill().unwrap();
        top.wait().unwrap();
        locks.into_iter().for_each(drop);
    });
}

/// Keys below a majority, of several holders, and other data.
#[test]
fn keys_that_are_no_held_lock_are_listed_only_on_request() {
    let (masters, _redlock, urls) = start();
    let all = all(&masters);
    set(&all, b"held", TOKEN.as_bytes());
    set(&all[..2], b"on-two", TOKEN.as_bytes());
    set(&all[..1], b"left", TOKEN.as_bytes());
    set(&all[..1], b"split", TOKEN.as_bytes());
    set(&all[1..], b"split", OTHER.as_bytes());
    set(&all[2..], b"split", b"a third holder of some other kind");
    set(&all, b"theirs", b"a-secret-of-their-own");
    set(&all, b"revoked", b"revoked:0123456789abcdef");
    set(&all, b"waits:intent", b"");
    for master in &all {
        ask(master, &["SET", "endless", TOKEN]);
        ask(master, &["SET", "cache", "some text"]);
        ask(master, &["HSET", "muxlock:fence", "1", "7"]);
        ask(master, &["SADD", "set", "1"]);
        ask(master, &["RPUSH", "jobs", "1"]);
        // A rate limiter, and read locks that are over.
        ask(master, &["ZADD", "limiter", "1", "x"]);
        ask(master, &["PEXPIRE", "limiter", SECOND]);
        ask(master, &["ZADD", "scores", "9e15", "x"]);
    }
    let (code, out, err) = list(&urls, &[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let cells: Vec<_> = rows(&out).into_iter().map(|row| row[..3].join(" ")).collect();
    assert_eq!(
        cells,
        [
            "RESOURCE KIND HOLDER",
            "endless lock 01234567",
            "held lock 01234567",
            "on-two lock 01234567",
            "revoked lock revoked",
        ]
    );
    assert!(rows(&out)[1][3..] == ["no TTL", "3/3", "0", UNFOUND], "{out}");
    assert!(rows(&out)[3][4..] == ["2/3", "0", UNFOUND], "{out}");
    assert_eq!(rows(&out)[4].len(), 6, "no client: {out}");

    let (_, out, _) = list(&urls, &["--all"]);
    let found = rows(&out);
    let row = |name: &str| found.iter().find(|row| row[0] == name).unwrap().clone();
    assert_eq!(found.len(), 1 + 7, "{out}");
    assert_eq!(row("left")[1..3], ["lock", "01234567 (leftover)"]);
    assert_eq!((row("left")[4], row("split")[2], row("split")[4]), ("1/3", "split", "3/3"));
    assert_eq!((row("left")[6], row("split").len()), (UNFOUND, 6), "{out}");
    assert_eq!((row("theirs")[1], row("theirs").len()), ("other", 6));
    assert!(!out.contains("secret") && !out.contains("third"), "{out}");
    let json = list_json(&urls, &["--all"]);
    let state = |name: &str| lock_named(&json, name)["state"].as_str().unwrap().to_owned();
    assert_eq!(
        ["left", "split", "held", "revoked"].map(state),
        ["leftover", "split", "held", "revoked"]
    );
    assert_eq!(lock_named(&json, "split")["holder"], Value::Null);
}

#[test]
fn names_can_have_any_bytes() {
    let (masters, _redlock, urls) = start();
    let all = all(&masters);
    let names: [&[u8]; 5] =
        [b"a*b[c]?\\1", b"aXbc?\\1", b"a*bcX\\1", b"\xff\x00'", "\u{1b}[2J\u{202e}".as_bytes()];
    for name in names {
        set(&all, name, TOKEN.as_bytes());
    }
    assert_eq!(self::names(&list_json(&urls, &["a*b[c]?\\"])), ["a*b[c]?\\1"]);
    assert_eq!(self::names(&list_json(&urls, &["*"])), [""; 0]);
    assert_eq!(self::names(&list_json(&urls, &["a*"])), ["a*b[c]?\\1", "a*bcX\\1"]);
    let json = list_json(&urls, &[]);
    assert_eq!(json["locks"].as_array().unwrap().len(), 5);
    let binary = json["locks"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&binary["resource"], &binary["resource_hex"]),
        (&json!("\\xff\\x00\\'"), &json!("ff0027"))
    );
    assert_eq!(lock_named(&json, "\u{1b}[2J\u{202e}")["resource_hex"], Value::Null);
    let (_, out, _) = list(&urls, &[]);
    assert!(out.contains("\\u{1b}[2J\\u{202e}  ") && !out.contains('\u{1b}'), "{out}");
    assert_eq!(out.lines().last().unwrap().split_whitespace().next(), Some("\\xff\\x00\\'"));
}

#[test]
fn names_are_shown_without_the_key_prefix() {
    let (masters, _redlock, urls) = start();
    for key in ["app:deploy", "app:report", "deploy", "apx:deploy", "app:"] {
        set(&all(&masters), key.as_bytes(), TOKEN.as_bytes());
    }
    assert_eq!(names(&list_json(&urls, &["--prefix", "app:"])), ["deploy", "report"]);
    assert_eq!(names(&list_json(&urls, &["--prefix", "app:", "dep"])), ["deploy"]);
    assert_eq!(names(&list_json(&urls, &["app:d"])), ["app:deploy"]);
}

#[test]
fn slow_masters_are_found_by_their_sentinels() {
    let site = Site::start();
    ask(&site.servers[0], &["SET", "deploy", TOKEN, "PX", SECOND]);
    assert_eq!(names(&list_json(&site.url(), &[])), ["deploy"]);
}

#[test]
fn limits_are_named_and_have_an_exit_status() {
    let (masters, _redlock, urls) = start();
    for master in masters.iter() {
        let script = "for i=1,5000 do redis.call('SET','other:'..i,'1') end return 1";
        ask(master, &["EVAL", script, "0"]);
    }
    for name in ["a", "b", "c"] {
        set(&all(&masters), name.as_bytes(), TOKEN.as_bytes());
    }
    let (code, out, err) = list(&urls, &["--limit", "2"]);
    let text = "muxlock: incomplete: 2 of 3 are shown (--limit 2)\n";
    assert_eq!((code, out.lines().count(), err.as_str()), (1, 3, text));
    let json = list_json(&urls, &["--limit", "2"]);
    assert_eq!((names(&json), &json["truncated"]), (vec!["a", "b"], &json!(true)));
    assert_eq!(json["notes"], json!(["incomplete: 2 of 3 are shown (--limit 2)"]));

    let limits = [["--max-keys", "1000"], ["--max-time", "0ms"]];
    for (limit, shown) in limits.iter().zip(["--max-keys 1000", "--max-time 0ns"]) {
        let (code, _, err) = list(&urls, limit);
        assert_eq!(code, 1, "{err}");
        for master in masters.iter() {
            let text =
                format!("muxlock: incomplete: {} was scanned up to {shown}\n", master.addr());
            assert!(err.contains(&text), "{err}");
        }
    }
    let json = list_json(&urls, &["--max-keys", "1000"]);
    assert_eq!(json["truncated"], true);
    let (code, _, err) = list(&urls, &[]);
    assert_eq!((code, err.as_str()), (0, ""), "the control");
}

#[test]
fn slow_answers_of_a_majority_are_enough_and_of_fewer_are_not() {
    let (mut masters, _redlock, urls) = start();
    set(&all(&masters), b"deploy", TOKEN.as_bytes());
    set(&all(&masters)[..1], b"doubtful", TOKEN.as_bytes());
    let (code, _, err) = list(&urls, &[]);
    assert_eq!((code, err.as_str()), (0, ""), "all answer, so it is a leftover");
    masters[2].freeze().unwrap();
    let list =
        |urls: &str, args: &[&str]| list(urls, &[&["--connect-timeout", "3s"], args].concat());
    let (code, out, err) = list(&urls, &[]);
    assert!(code == 0 && out.lines().count() == 2 && out.contains("  2/3  0  "), "{out}{err}");
    let frozen = format!("muxlock: {}: ", masters[2].addr());
    assert!(err.contains(&frozen), "{err}");
    assert!(err.contains("muxlock: 1 more might be held, on the other masters (--all)\n"), "{err}");
    let json = list_json(&urls, &["--all", "--connect-timeout", "3s"]);
    assert_eq!((&json["answered"], &json["perhaps_held"]), (&json!(2), &json!(1)));
    assert!(json["nodes"][2]["answered"] == false && json["nodes"][2]["why"].is_string(), "{json}");
    assert_eq!(names(&json), ["deploy", "doubtful"]);

    masters[1].kill().unwrap();
    let (code, out, err) = list(&urls, &[]);
    assert_eq!((code, out.as_str()), (3, ""), "{err}");
    assert!(err.ends_with("muxlock: unknown: only 1 of 3 masters answered\n"), "{err}");
    let (code, out, _) = list(&urls, &["--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, names(&json), &json["answered"]), (3, vec![], &json!(1)));
}

/// The server's error does not always name it.
#[test]
fn missing_right_is_named_and_the_documented_ones_are_enough() {
    let masters = Masters::start(3).unwrap();
    let redlock = all_ready(&patient(masters.urls()).key_prefix("app:"));
    let _lock = redlock.try_lock("deploy", TTL).unwrap();
    let _reader = redlock.try_read("ledger", TTL).unwrap();
    settle(&redlock);
    set(&all(&masters), b"beside", TOKEN.as_bytes());
    let documented = documented_rights("viewer", "Two users for people");
    let user = |without: &[&str], keys: &str| {
        for master in masters.iter() {
            let words = ["ACL", "SETUSER", "looker", "reset", "on", ">sesame", keys];
            let words: Vec<&str> = words
                .into_iter()
                .chain(documented.iter().map(String::as_str))
                .chain(without.iter().copied())
                .collect();
            assert_eq!(ask(master, &words), Answer::Status("OK".into()));
        }
    };
    let login = |url: String| with_login(&url, "looker:sesame");
    let urls = masters.urls().into_iter().map(login).collect::<Vec<_>>().join(",");
    user(&[], "~app:*");
    let app = ["--prefix", "app:", "--restart-guard", "off"];
    let (code, out, err) = list(&urls, &app);
    assert_eq!((code, out.lines().count(), err.as_str()), (0, 3, ""), "{out}");
    assert_eq!(out.matches(&this_short()).count(), 2, "{out}");
    let mut top = unhurried(&urls, &["top", "--json"]);
    let mut top = top.args(app).stdout(Stdio::piped()).spawn().unwrap();
    let json: Value = serde_json::from_str(&first_line(&mut top)).unwrap();
    assert_eq!((names(&json), top.kill().is_ok()), (vec!["deploy", "ledger"], true));
    top.wait().unwrap();
    assert_eq!(lock_named(&json, "deploy")["client"]["pid"], id(), "{json}");
    user(&["-client|list"], "~app:*");
    let (code, out, err) = list(&urls, &app);
    assert_eq!((code, out.lines().count()), (0, 3), "{out}");
    assert_eq!(err, "muxlock: clients are unknown: the user \"looker\" lacks +client|list\n");
    assert!(!out.contains("CLIENT") && out.contains("  3/3  0\n"), "{out}");
    let json = list_json(&urls, &app);
    assert_eq!(json["clients_unknown"], "the user \"looker\" lacks +client|list");
    assert_eq!(
        json["notes"],
        json!(["clients are unknown: the user \"looker\" lacks +client|list"])
    );
    assert_eq!(lock_named(&json, "deploy")["client"], Value::Null);
    for command in ["scan", "getrange", "type", "pttl", "zcount", "time"] {
        user(&[&format!("-{command}")], "~app:*");
        let (code, out, err) = list(&urls, &app);
        assert_eq!((code, out.as_str()), (3, ""), "{command}: {err}");
        let text = format!(": the user \"looker\" lacks +{command}\n");
        assert!(err.matches(&text).count() == 3 && !err.contains("sesame"), "{command}: {err}");
    }
    user(&[], "~app:*");
    let (code, out, err) = list(&urls, &["app:", "--restart-guard", "off"]);
    assert_eq!((code, out.lines().count(), err.as_str()), (0, 3, ""), "{out}");
    let (code, _, err) = list(&urls, &["--restart-guard", "off"]);
    assert!(code == 3 && err.matches(": the user \"looker\" lacks ~*\n").count() == 3, "{err}");

    let hidden = Master::start_with(&["--rename-command", "SCAN", "HIDDEN"]).unwrap();
    let (code, _, err) = list(&hidden.url(), &["--restart-guard", "off"]);
    assert!(code == 3 && err.contains(": the server does not know scan\n"), "{err}");
}

#[test]
fn watching_writes_a_line_for_each_change_and_ends_with_its_output() {
    let (_masters, redlock, urls) = start();
    let mut command = unhurried(&urls, &["list", "--watch=100ms", "dep"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(notes.next().unwrap(), "muxlock: no locks");
    let lock = redlock.try_lock("deploy", TTL).unwrap();
    let line = lines.find(|line| line.contains("  3/3  0  ")).unwrap();
    let holder = lock.token().fingerprint().to_string();
    assert!(line.starts_with(&format!("deploy  lock  {holder}  ")), "{line}");
    assert!(line.ends_with(&this_short()), "{line}");
    assert!(lock.unlock().unwrap().was_held());
    assert!(lines.any(|line| line == "deploy is no longer listed"));
    drop(lines);
    drop(redlock.try_lock("deploy", TTL).unwrap());
    let _keep = redlock.try_lock_for("deploy", TTL, TTL).unwrap();
    soon("it ends", || child.try_wait().unwrap().is_some());

    let mut command = unhurried(&urls, &["list", "--watch=100ms", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let json: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert_eq!(names(&json), ["deploy"]);
    let _more = redlock.try_lock("more", TTL).unwrap();
    let line = lines.find(|line| line.contains("\"more\"")).unwrap();
    assert_eq!(names(&serde_json::from_str(&line).unwrap()), ["deploy", "more"]);
    drop(lines);
    let _another = redlock.try_lock("another", TTL).unwrap();
    soon("it ends", || child.try_wait().unwrap().is_some());
}

#[test]
fn slow_masters_without_an_answer_are_no_change_of_the_locks() {
    let (masters, _redlock, urls) = start();
    set(&all(&masters), b"deploy", TOKEN.as_bytes());
    let mut command = unhurried(&urls, &["list", "--watch=100ms", "--connect-timeout", "1s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("deploy ")));
    masters[0].freeze().unwrap();
    masters[1].freeze().unwrap();
    let unknown = "muxlock: unknown: only 1 of 3 masters answered";
    assert!(notes.any(|note| note == unknown));
    masters[0].thaw().unwrap();
    masters[1].thaw().unwrap();
    set(&all(&masters), b"next", TOKEN.as_bytes());
    // A line before it can only be of a master that was slower than the others.
    let line = lines.find(|line| !line.starts_with("deploy  lock  ")).unwrap();
    assert!(line.starts_with("next  lock  "), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// One question for all of them, whatever their number, and none without a lock.
#[test]
fn each_master_is_asked_once_for_all_clients() {
    let (masters, redlock, urls) = start();
    let calls = |master: &Master| match ask(master, &["INFO", "commandstats"]) {
        Answer::Bulk(text) => {
            let text = String::from_utf8(text).unwrap();
            let (_, calls) = text.split_once("cmdstat_client|list:calls=")?;
            Some(calls.split(',').next().unwrap().to_owned())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(list(&urls, &[]).0, 0);
    assert!(masters.iter().all(|master| calls(master).is_none()));
    // More than one question has keys.
    let name = |number: u32| format!("owned:{number:03}");
    let mut held: Vec<_> =
        (0..120).map(|i| redlock.try_lock_as(name(i), "value", TTL).unwrap()).collect();
    held.extend((0..3).map(|i| redlock.try_lock(format!("plain:{i}"), TTL).unwrap()));
    settle(&redlock);
    let json = list_json(&urls, &[]);
    let locks = json["locks"].as_array().unwrap();
    assert!(locks.len() == 123 && locks.iter().all(|it| it["client"]["pid"] == id()), "{json}");
    for master in masters.iter() {
        assert_eq!(calls(master).as_deref(), Some("1"));
    }
}

#[test]
fn readers_and_commands_are_named_and_killed_holders_are_not() {
    let (_masters, redlock, urls) = start();
    let hold = |kind: &[&str]| {
        let args = [&["--ttl", "20s", "--no-guard"], kind, &["-c", "echo held; read x"]].concat();
        let mut holder = Running::start(runs::unhurried(&urls, &args).stdin(Stdio::piped()));
        assert_eq!(first_line(&mut holder.0), "held", "{kind:?}");
        holder
    };
    let client = |row: &str| {
        let (_, out, _) = list(&urls, &[row]);
        rows(&out)[1].last().unwrap().to_string()
    };
    let (one, plain) = (hold(&["--shared", "r"]), hold(&["plain"]));
    let own = this_short();
    let short = |pid: u32| crate::cli::client(pid, "sh").replace(", started ", "");
    assert_eq!(client("r"), short(one.id()));
    assert_eq!(client("plain"), short(plain.id()));
    let _two = redlock.try_read("r", TTL).unwrap();
    let _three = redlock.try_read("r", TTL).unwrap();
    settle(&redlock);
    let ends = [short(one.id()), own].map(|client| format!("{client} and 1 more"));
    assert!(ends.contains(&client("r")), "{}", client("r"));
    let json = list_json(&urls, &["r"]);
    assert_eq!(json["locks"][0]["reader_clients"].as_array().unwrap().len(), 2, "{json}");
    signal("KILL", plain.id());
    soon("its connections are closed", || client("plain") == UNFOUND);
}

/// A name of 40 hexadecimal digits in capitals, and one that no client can have.
#[test]
fn only_names_that_a_lock_can_have_are_listed() {
    let (masters, _redlock, urls) = start();
    set(&all(&masters), &[b'x'; 1024], TOKEN.to_uppercase().as_bytes());
    set(&all(&masters), &[b'x'; 1025], TOKEN.as_bytes());
    let json = list_json(&urls, &[]);
    assert_eq!(names(&json), ["x".repeat(1024)]);
    let (code, _, err) =
        run(&mut muxlock(&["list", "--node", "redis://127.0.0.1:1", "--limit", "x"]));
    assert!(code == 2 && err.contains("--limit"), "{err}");
}

/// Its value needs `=`.
#[test]
fn period_in_place_of_the_prefix_is_refused() {
    let master = Master::start().unwrap();
    let (code, out, err) = list(&master.url(), &["--watch", "1s"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(err, "muxlock: 1s is the PREFIX here: write --watch=1s\n");
}
