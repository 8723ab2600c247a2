//! `muxlock doctor` on real masters: each finding, and that it is gone when it is mended.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use muxlock::Redlock;
use muxlock::testing::{Master, Masters, Value as Reply};
use serde_json::Value;
use testbed::{
    Clocks, TTL, all_ready, documented_rights, is_older_than, patient, pause, soon, timed,
    with_login, within,
};

use crate::cli::{muxlock, run};

/// What a busy machine needs.
const SLOW: [&str; 6] =
    ["--node-timeout", "20s", "--connect-timeout", "10s", "--restart-guard", "off"];

/// The same for a command, which needs time to end within its TTL.
const IN_TIME: [&str; 4] = ["--node-timeout", "2s", "--restart-guard", "off"];

struct Seen {
    code: i32,
    json: Value,
}

/// Runs it, without the findings that every master of a test has, or may have.
#[track_caller]
fn doctor(urls: &[String], args: &[&str]) -> Seen {
    let usual = ["--allow", "restart-guard", "--allow", "settings-differ"];
    all_findings(urls, &[&usual[..], args].concat())
}

#[track_caller]
fn all_findings(urls: &[String], args: &[&str]) -> Seen {
    let mut command = muxlock(&["doctor", "--json", "--allow", "marker", "--allow", "version"]);
    let (code, out, err) = run(command.args(args).env("MUXLOCK_NODES", urls.join(" ")));
    let json = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{code} {out}{err}"));
    Seen { code, json }
}

#[track_caller]
fn usual(urls: &[String]) -> Seen {
    doctor(urls, &SLOW)
}

impl Seen {
    fn findings(&self) -> &[Value] {
        self.json["findings"].as_array().expect("a list")
    }

    /// The ids of all findings, sorted, with the number of the master's URL.
    fn found(&self, urls: &[String]) -> Vec<String> {
        let each = |finding: &Value| -> Vec<String> {
            let id = finding["id"].as_str().expect("an id");
            let masters = finding["masters"].as_array().expect("a list").iter();
            let at = |at: &str| urls.iter().position(|url| url.contains(at));
            let at = masters.filter_map(|master| at(master.as_str()?));
            let all: Vec<_> = at.map(|at| format!("{id} {at}")).collect();
            if all.is_empty() { vec![id.to_owned()] } else { all }
        };
        let mut found: Vec<_> = self.findings().iter().flat_map(each).collect();
        found.sort();
        found
    }

    #[track_caller]
    fn fix_of(&self, id: &str) -> String {
        let finding = self.findings().iter().find(|finding| finding["id"] == id);
        let fix = finding.and_then(|finding| finding["fix"].as_str());
        fix.unwrap_or_else(|| panic!("{id} has no fix: {}", self.json)).to_owned()
    }
}

/// As a user would.
#[track_caller]
fn paste(fix: &str, password: Option<&str>) {
    let mut shell = Command::new("sh");
    shell.args(["-ec", fix]).env_remove("REDISCLI_AUTH");
    if let Some(password) = password {
        shell.env("REDISCLI_AUTH", password);
    }
    let output = shell.output().expect("sh runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{fix}: {said}");
    assert!(said.lines().all(|line| line == "OK"), "{fix}: {said}");
}

/// `redis-cli` is what the fixes call.
fn can_paste() -> bool {
    let can = Command::new("redis-cli").arg("--version").output().is_ok();
    if !can {
        eprintln!("SKIPPED: redis-cli is not on PATH");
    }
    can
}

#[track_caller]
fn tell(master: &Master, words: &[&str]) {
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    let reply = master.query(&words).unwrap();
    assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
}

/// Each setting is a finding, which its fix mends.
#[test]
fn slow_settings_are_found_and_mended() {
    let missing = "answers to doctor with an output buffer of 1000 bytes";
    let lacks = is_older_than([7, 0, 0], "slow_settings_are_found_and_mended", missing);
    if lacks || !can_paste() {
        return;
    }
    let masters = Masters::start(3).unwrap();
    let urls = masters.urls();
    let healthy = usual(&urls);
    assert_eq!((healthy.code, healthy.found(&urls)), (0, vec![]), "{}", healthy.json);
    assert_eq!((&healthy.json["verdict"], &healthy.json["votes"]), (&"healthy".into(), &3.into()));
    let master = &masters[1];
    let table: [(&str, &str, &[[&str; 2]]); 6] = [
        ("evicts", "error", &[["maxmemory", "100mb"], ["maxmemory-policy", "allkeys-lru"]]),
        ("min-replicas", "error", &[["min-replicas-to-write", "1"]]),
        ("bgsave-stops-writes", "warning", &[["save", "3600 1"]]),
        ("timeout", "warning", &[["timeout", "300"]]),
        ("output-buffer", "warning", &[["client-output-buffer-limit", "normal 1000 0 0"]]),
        // No address of this machine: the server does not listen there.
        ("open", "warning", &[["bind", "127.0.0.1 -192.0.2.1"], ["protected-mode", "no"]]),
    ];
    for (id, severity, settings) in table {
        for [name, value] in settings {
            tell(master, &["CONFIG", "SET", name, value]);
        }
        let seen = usual(&urls);
        let found = seen.findings();
        assert_eq!(found.len(), 1, "{id}: {}", seen.json);
        assert_eq!((&found[0]["id"], &found[0]["severity"]), (&id.into(), &severity.into()));
        assert_eq!(found[0]["master"], master.addr(), "{id}");
        assert_eq!(seen.code, i32::from(severity == "error"), "{id}");
        paste(&seen.fix_of(id), None);
        let mended = usual(&urls);
        assert_eq!(mended.found(&urls), [""; 0], "{id}");
    }
    // A warning counts only if it is asked for.
    tell(master, &["CONFIG", "SET", "timeout", "300"]);
    let strict = [&SLOW[..], &["--strict"]].concat();
    assert_eq!((usual(&urls).code, doctor(&urls, &strict).code), (0, 4));
    let allowed = [&strict[..], &["--allow", "timeout"]].concat();
    assert_eq!(doctor(&urls, &allowed).code, 0);
}

#[test]
fn memory_and_clients_that_are_nearly_used_up_are_found() {
    let test = "memory_and_clients_that_are_nearly_used_up_are_found";
    if is_older_than([6, 2, 0], test, "maxclients in INFO") {
        return;
    }
    let masters = Masters::start_with(3, &["--maxclients", "20"]).unwrap();
    let urls = masters.urls();
    tell(&masters[0], &["SET", "big", &"x".repeat(60_000_000)]);
    tell(&masters[0], &["CONFIG", "SET", "maxmemory", "70mb"]);
    let crowd: Vec<_> = (0..16).map(|_| connect(&masters[2])).collect();
    let seen = usual(&urls);
    assert_eq!(seen.found(&urls), ["maxclients 2", "memory 0"], "{}", seen.json);
    paste(&seen.fix_of("maxclients"), None);
    tell(&masters[0], &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(usual(&urls).found(&urls), [""; 0]);
    tell(&masters[0], &["CONFIG", "SET", "maxmemory", "10mb"]);
    let full: Vec<_> = (0..20).map(|_| connect(&masters[1])).collect();
    let seen = usual(&urls);
    assert_eq!(seen.found(&urls), ["maxclients 1", "memory 0", "quorum"], "{}", seen.json);
    assert_eq!(seen.code, 1);
    drop((crowd, full));
}

fn connect(master: &Master) -> TcpStream {
    let mut stream = TcpStream::connect(master.addr()).unwrap();
    // It has accepted the connection when it answers.
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 1];
    stream.read_exact(&mut answer).unwrap();
    stream
}

#[test]
fn slow_masters_that_cannot_be_asked_are_found() {
    let mut masters = Masters::start(5).unwrap();
    let locked = Master::start_with(&["--requirepass", "sesame"]).unwrap();
    let mut urls = masters.urls();
    urls[4] = locked.url();
    masters[0].kill().unwrap();
    masters[1].freeze().unwrap();
    urls[2] = with_login(&urls[2], ":swordfish");
    let args = ["--restart-guard", "off", "--connect-timeout", "1s", "--node-timeout", "20s"];
    let seen = doctor(&urls, &args);
    let found = ["auth 2", "auth 4", "quorum", "unreachable 0", "unreachable 1"];
    let by_address: Vec<String> = masters.urls();
    let mut places = by_address.clone();
    places[4] = urls[4].clone();
    assert_eq!(seen.found(&places), found, "{}", seen.json);
    assert_eq!((seen.code, &seen.json["verdict"]), (1, &"errors".into()));
    let text = seen.json.to_string();
    assert!(text.contains("disconnected (connection refused)"), "{text}");
    assert!(text.contains("timed out (handshake): longer than connect_timeout (1s)"), "{text}");
    assert!(text.contains("leave out") && text.contains("its address has none"), "{text}");
    assert!(!text.contains("swordfish"));

    urls[4] = with_login(&urls[4], ":swordfish");
    let seen = doctor(&urls, &args);
    assert!(seen.json.to_string().contains("the user or the password is wrong"));
    assert!(!seen.json.to_string().contains("swordfish"));
    urls[4] = with_login(&locked.url(), ":sesame");
    urls[2] = by_address[2].clone();
    masters[0].restart().unwrap();
    masters[1].thaw().unwrap();
    assert_eq!(usual(&urls).found(&urls), [""; 0]);
}

#[test]
fn slow_servers_that_are_no_masters_of_their_own_are_found() {
    let masters = Masters::start(5).unwrap();
    let urls = masters.urls();
    let port = masters[0].port().to_string();
    tell(&masters[1], &["REPLICAOF", "127.0.0.1", &port]);
    within(TTL, "it is a replica", || {
        let info = masters[0].query(&[b"INFO", b"replication"]).unwrap();
        matches!(info, Reply::Bulk(text) if text.windows(12).any(|it| it == b"state=online"))
    });
    let cluster = Master::start_with(&["--cluster-enabled", "yes"]).unwrap();
    let mut all = urls.clone();
    all[2] = cluster.url();
    // The same server twice.
    all[3] = format!("redis://localhost:{}", masters[4].port());
    let seen = usual(&all);
    let found = ["cluster 2", "duplicate 4", "quorum", "replica 1", "replicas 0"];
    assert_eq!(seen.found(&all), found, "{}", seen.json);
    tell(&masters[1], &["REPLICAOF", "NO", "ONE"]);
    let guarded = ["--node-timeout", "20s", "--connect-timeout", "10s", "--max-ttl", "10ms"];
    soon("the replica is gone", || !usual(&urls).found(&urls).contains(&"replicas 0".into()));
    within(TTL, "they are old enough", || {
        !doctor(&urls, &guarded).found(&urls).contains(&"young 3".into())
    });
    let seen = doctor(&urls, &guarded);
    assert_eq!(seen.found(&urls), ["promoted 1"], "{}", seen.json);
    assert_eq!((seen.code, &seen.json["votes"]), (0, &4.into()));
}

#[test]
fn masters_that_were_just_started_are_told_once() {
    let masters = Masters::start(3).unwrap();
    let urls = masters.urls();
    let patient = ["--node-timeout", "20s", "--connect-timeout", "10s", "--max-ttl", "10m"];
    let seen = doctor(&urls, &patient);
    assert_eq!(seen.found(&urls), ["quorum", "young 0", "young 1", "young 2"], "{}", seen.json);
    assert_eq!((seen.code, &seen.json["verdict"]), (1, &"errors".into()));
    let why = seen.findings()[0]["why"].as_str().unwrap();
    assert!(why.contains("run commands with --wait-masters 608s"), "{why}");
    let one: Vec<String> = urls.iter().map(|url| format!("{url}?restart_guard=off")).collect();
    let mixed = [one[0].clone(), one[1].clone(), urls[2].clone()];
    let seen = doctor(&mixed, &patient);
    assert_eq!(seen.found(&urls), ["young 2"]);
    assert_eq!((&seen.json["verdict"], &seen.json["votes"]), (&"notes".into(), &2.into()));
    let own = [&patient[..], &["--restart-guard", "own_observation"]].concat();
    let seen = doctor(&urls, &own);
    assert!(seen.json.to_string().contains("with own_observation, a new client"), "{}", seen.json);
    assert_eq!(seen.code, 0, "that is what was asked for");
}

/// The first process that sees promoted masters waits, and no other. `doctor` says which it would
/// be, and what to do.
#[test]
fn slow_promoted_masters_are_an_error_until_a_client_has_seen_them_for_long() {
    let lacks = is_older_than([7, 0, 0], "promoted masters", "a backlog without replicas");
    if lacks || !can_paste() {
        return;
    }
    let masters = Masters::start_with(4, &["--repl-diskless-sync-delay", "0"]).unwrap();
    let urls = masters.urls()[..3].to_vec();
    let port = masters[3].port().to_string();
    for master in masters.iter().take(3) {
        tell(master, &["REPLICAOF", "127.0.0.1", &port]);
        within(TTL, "it is a replica", || {
            let Ok(Reply::Bulk(info)) = master.query(&[b"INFO", b"replication"]) else {
                panic!("INFO is text")
            };
            String::from_utf8_lossy(&info).contains("master_link_status:up")
        });
        tell(master, &["REPLICAOF", "NO", "ONE"]);
    }
    let short = ["--node-timeout", "20s", "--connect-timeout", "10s", "--max-ttl", "2s"];
    let job = || {
        let mut command = muxlock(&["run"]);
        let args = ["--max-ttl", "2s", "--ttl", "2s", "--node-timeout", "300ms"];
        run(command.args(args).args(["job", "--", "true"]).env("MUXLOCK_NODES", urls.join(" ")))
    };
    let all = ["promoted 0", "promoted 1", "promoted 2"];
    let with_quorum = [&all[..], &["quorum"]].concat();
    let seen = doctor(&urls, &short);
    assert_eq!(
        (seen.code, seen.found(&urls)),
        (1, with_quorum.iter().map(|it| it.to_string()).collect())
    );
    assert!(seen.json.to_string().contains("run commands with --wait-masters 4s"), "{}", seen.json);
    assert!(seen.json.to_string().contains("that may write the key muxlock:promoted"));
    let fix = seen.fix_of("promoted");
    assert!(fix.contains("CONFIG SET repl-backlog-ttl 1\nsleep 3\n"), "{fix}");
    let (code, _, err) = job();
    assert_eq!(code, 122, "{err}");
    assert!(err.contains("try again in ") && err.contains("--restart-guard off"), "{err}");
    assert!(!err.contains("RestartGuard::"), "{err}");
    let seen = doctor(&urls, &short);
    assert_eq!(seen.code, 1, "{}", seen.json);
    assert!(seen.json.to_string().contains("clients ignore it for another "), "{}", seen.json);
    within(TTL, "it is over", || job().0 == 0);
    // A master is no older than its uptime, in whole seconds. So until the next second, some may be
    // quarantined for the last milliseconds again and again: the job was slow enough for that.
    let notes = "notes".into();
    within(TTL, "all may vote", || doctor(&urls, &short).json["verdict"] == notes);
    for _ in 0..3 {
        let (code, _, err) = job();
        // A busy machine may be too slow for a lock.
        assert!(code == 0 || !err.contains("quarantined"), "a later process waits: {err}");
    }
    let seen = doctor(&urls, &short);
    assert_eq!((seen.code, &seen.json["verdict"]), (0, &notes), "{}", seen.json);
    assert_eq!(seen.found(&urls), all);
    // The other way that it ends, for all of them. A replica would keep it from that.
    paste(&fix, None);
    let seen = doctor(&urls, &short);
    assert_eq!(seen.found(&urls), [""; 0], "{}", seen.json);
}

pub const LOCKER: &str = "+select +client|tracking +client|kill +info +time +set +eval +get +del \
                          +pttl +pexpire";

/// A user with the rights of the documentation lacks nothing; of what is missing, all is named.
/// Without a prefix, the name that is tried may be none of the user's. Its locks work.
#[test]
fn name_outside_of_the_keys_is_no_fault_of_the_masters() {
    let masters = Masters::start(3).unwrap();
    for master in masters.iter() {
        let words = ["ACL", "SETUSER", "locker", "on", ">sesame", "~lock:*"];
        tell(master, &[&words[..], &LOCKER.split(' ').collect::<Vec<_>>()].concat());
    }
    let login = |url: String| with_login(&url, "locker:sesame");
    let urls: Vec<String> = masters.urls().into_iter().map(login).collect();
    let redlock = testbed::all_ready(&testbed::patient(urls.clone()));
    assert!(redlock.try_lock("lock:job", testbed::TTL).unwrap().unlock().unwrap().was_held());
    let seen = doctor(&urls, &SLOW);
    let text = seen.json.to_string();
    assert_eq!((seen.code, &seen.json["votes"]), (0, &3.into()), "{text}");
    assert!(text.contains("exclude the key") && text.contains("--prefix"), "{text}");
    assert!(!text.contains("~*\"") && !text.contains("~*'") && !text.contains("quorum "), "{text}");
    let errors = seen.findings().iter().filter(|it| it["severity"] == "error").count();
    assert_eq!(errors, 0, "{text}");
    let prefixed = doctor(&urls, &[&SLOW[..], &["--prefix", "lock:"]].concat());
    assert_eq!(prefixed.code, 0);
    assert!(!prefixed.json.to_string().contains("--prefix"), "{}", prefixed.json);
    let strict = doctor(&urls, &[&SLOW[..], &["--strict"]].concat());
    assert_eq!(strict.code, 4);
}

#[test]
fn rights_are_found_and_granted() {
    let lacks =
        is_older_than([7, 0, 0], "rights_are_found_and_granted", "-client|kill in ACL SETUSER");
    if lacks || !can_paste() {
        return;
    }
    let masters = Masters::start(3).unwrap();
    for master in masters.iter() {
        let words = ["ACL", "SETUSER", "locker", "on", ">sesame", "~app:*"];
        tell(master, &[&words[..], &LOCKER.split(' ').collect::<Vec<_>>()].concat());
    }
    let with = |user: &str| -> Vec<String> {
        let login = format!("{user}:sesame");
        masters.urls().iter().map(|url| with_login(url, &login)).collect()
    };
    let urls = with("locker");
    let places = masters.urls();
    // Newer servers have a right of their own for releases.
    let others = ["--allow", "permission-delete", "--allow", "permission-waiting"];
    let others = [&others[..], &["--allow", "permission-kinds"]].concat();
    let prefixed = [&SLOW[..], &["--prefix", "app:"], &others].concat();
    let seen = doctor(&urls, &prefixed);
    assert_eq!(seen.found(&places), ["not-checked 0", "not-checked 1", "not-checked 2"]);
    let text = seen.json.to_string();
    assert!(text.contains("config|get is forbidden") && seen.code == 0, "{text}");

    let rights = ["-set", "-get", "-eval", "-time", "-client|kill", "-info", "resetkeys"];
    tell(&masters[0], &[&["ACL", "SETUSER", "locker"][..], &rights].concat());
    let allowed = [&prefixed[..], &["--allow", "not-checked"]].concat();
    let seen = doctor(&urls, &allowed);
    assert_eq!(seen.found(&places), ["permission 0"], "{}", seen.json);
    let fix = seen.fix_of("permission");
    let expected = format!(
        "redis-cli -h 127.0.0.1 -p {} ACL SETUSER locker +set +get '~app:*' +eval +time +info \
         '+client|kill'",
        masters[0].port()
    );
    assert_eq!(fix, expected);
    assert_eq!((seen.code, &seen.json["votes"]), (1, &2.into()));
    paste(&fix, None);
    assert_eq!(doctor(&urls, &allowed).found(&places), [""; 0]);
    tell(&masters[1], &["ACL", "SETUSER", "locker", "-@all"]);
    let seen = doctor(&urls, &allowed);
    assert_eq!(seen.found(&places), ["permission 1"], "{}", seen.json);
    let fix = seen.fix_of("permission");
    // Without a guard, only waiting takes notices.
    let known = ["+select", "+client|tracking"];
    for right in LOCKER.split(' ').filter(|right| !known.contains(right)) {
        assert!(fix.contains(right), "{right}: {fix}");
    }
    paste(&fix, None);
    assert_eq!(doctor(&urls, &allowed).found(&places), [""; 0]);

    // An administrator asks for the user of the locks.
    let other = [&allowed[..], &["--lock-user", "locker"]].concat();
    assert_eq!(doctor(&places, &other).found(&places), [""; 0]);
    tell(&masters[2], &["ACL", "SETUSER", "locker", "-del"]);
    let seen = doctor(&places, &other);
    assert_eq!(seen.found(&places), ["permission 2"], "{}", seen.json);
    paste(&seen.fix_of("permission"), None);
    assert_eq!(doctor(&places, &other).found(&places), [""; 0]);
    let unknown = [&prefixed[..], &["--lock-user", "nobody"]].concat();
    let seen = doctor(&places, &unknown);
    assert!(seen.json.to_string().contains("there is no such user"), "{}", seen.json);
}

/// A user with the rights of the documentation for waiting lacks nothing, and what a user without
/// them is granted is enough.
#[test]
fn slow_rights_to_wait_are_found_and_granted() {
    let test = "slow_rights_to_wait_are_found_and_granted";
    if is_older_than([7, 0, 0], test, "-client|tracking in ACL SETUSER") || !can_paste() {
        return;
    }
    let rights = documented_rights("locker", "# Waiting");
    let waiter: Vec<_> = rights.iter().map(String::as_str).collect();
    let masters = Masters::start(2).unwrap();
    let words = ["ACL", "SETUSER", "locker", "reset", "on", ">sesame", "~app:*"];
    let locker = [&words[..], &LOCKER.split(' ').collect::<Vec<_>>()].concat();
    for master in masters.iter() {
        tell(master, &[&locker[..], &waiter].concat());
        tell(master, &["ACL", "SETUSER", "locker", "&muxlock:*"]);
    }
    let urls: Vec<_> =
        masters.urls().iter().map(|url| url.replace("//", "//locker:sesame@")).collect();
    let places = masters.urls();
    let own = ["--prefix", "app:", "--allow", "permission-delete", "--allow", "not-checked"];
    let own = [&own[..], &["--allow", "permission-kinds"]].concat();
    let own = [&SLOW[..], &own, &["--allow", "even"]].concat();
    let other = [&own[..], &["--lock-user", "locker"]].concat();
    let is_silent = || {
        assert_eq!(doctor(&urls, &own).found(&places), [""; 0]);
        assert_eq!(doctor(&places, &other).found(&places), [""; 0]);
    };
    is_silent();
    // A plain user of locks, whom both ways find.
    for (asks, args) in [(&urls, &own), (&places, &other)] {
        tell(&masters[0], &locker);
        let seen = doctor(asks, args);
        assert_eq!(seen.found(&places), ["permission-waiting 0"], "{}", seen.json);
        let (fix, text) = (seen.fix_of("permission-waiting"), seen.json.to_string());
        assert!(waiter.iter().all(|right| fix.contains(right)), "{fix}");
        assert!(text.contains("retry there after random delays") && seen.code == 0, "{text}");
        paste(&fix, None);
        is_silent();
    }
    // Only what is missing.
    let mut prefix = format!("redis-cli -h 127.0.0.1 -p {} ACL SETUSER locker", masters[0].port());
    for (lack, grant) in [
        (&["resetchannels"][..], "'&muxlock:*'"),
        (&["-subscribe"], "+subscribe"),
        (&["-client|caching", "-exists"], "'+client|caching' +exists"),
        (&["-lpos"], "+lpos +rpush +lpush"),
        (&["resetkeys", "~app:*:doctor:????????????????", "~app:muxlock:marker"], "'~app:*'"),
    ] {
        tell(&masters[0], &[&["ACL", "SETUSER", "locker"], lack].concat());
        let seen = doctor(&urls, &own);
        assert_eq!(seen.found(&places), ["permission-waiting 0"], "{lack:?}: {}", seen.json);
        let fix = seen.fix_of("permission-waiting");
        assert_eq!(fix, format!("{prefix} {grant}"));
        paste(&fix, None);
        is_silent();
    }
    tell(&masters[0], &["ACL", "SETUSER", "locker", "-rpush"]);
    let fix = doctor(&places, &other).fix_of("permission-waiting");
    assert_eq!(fix, format!("{prefix} +rpush"));
    // The administrator sees the table of the tracked keys.
    tell(&masters[1], &["CONFIG", "SET", "tracking-table-max-keys", "999"]);
    let seen = doctor(&places, &own);
    assert_eq!(seen.found(&places), ["waiting 1"], "{}", seen.json);
    prefix = prefix.replace(&masters[0].port().to_string(), &masters[1].port().to_string());
    let set = "CONFIG SET tracking-table-max-keys 1000000";
    assert_eq!(seen.fix_of("waiting"), prefix.replace("ACL SETUSER locker", set));
    paste(&seen.fix_of("waiting"), None);
    assert_eq!(doctor(&places, &own).found(&places), [""; 0]);
}

#[test]
fn what_refuses_locks_for_other_reasons_is_found() {
    let masters = Masters::start(2).unwrap();
    let odd = Master::start_with(&["--rename-command", "EVAL", ""]).unwrap();
    let urls = [masters.urls(), vec![odd.url()]].concat();
    let seen = usual(&urls);
    assert_eq!(seen.found(&urls), ["script 2"], "{}", seen.json);
    let odd = Master::start_with(&["--rename-command", "SET", ""]).unwrap();
    let urls = [masters.urls(), vec![odd.url()]].concat();
    assert_eq!(usual(&urls).found(&urls), ["script 2"]);
    let two = masters.urls();
    assert_eq!(usual(&two).found(&two), ["even"]);
    assert_eq!(usual(&two[..1]).found(&two), ["single"]);
    // Locks of others are in the way of none of the questions.
    let slow = ["--node-timeout", "100us", "--connect-timeout", "10s", "--restart-guard", "off"];
    let found = doctor(&two[..1], &[&slow[..], &["--read-only"]].concat()).found(&two);
    assert!(found.contains(&"single".into()) && !found.contains(&"lock".into()), "{found:?}");
    for master in masters.iter() {
        assert_eq!(master.dbsize().unwrap(), 0, "nothing is left");
    }
}

/// Some managed services block CLIENT.
#[test]
fn locks_work_without_client_commands_where_nobody_waits_for_notices() {
    let masters = Masters::start_with(3, &["--rename-command", "CLIENT", ""]).unwrap();
    let places = masters.urls();
    let deaf = |urls: &[String]| -> Vec<String> {
        urls.iter().map(|url| format!("{url}?notices=no")).collect()
    };
    let allowed = ["--allow", "waiting", "--allow", "not-checked", "--allow", "permission-delete"];
    let allowed = [&allowed[..], &["--allow", "permission-waiting", "--allow", "young"]].concat();
    let guarded = [&["--max-ttl", "1s"], &allowed[..]].concat();
    let seen = doctor(&places, &guarded);
    let found = ["quorum", "script 0", "script 1", "script 2"];
    assert_eq!(seen.found(&places), found, "{}", seen.json);
    let why = "it does not know CLIENT TRACKING, so clients would notice no flush and refuse it: \
               remove its rename-command, or add ?notices=no to its address";
    assert!(seen.findings().iter().any(|finding| finding["why"] == why), "{}", seen.json);

    let allowed = [&SLOW[..], &allowed].concat();
    let seen = doctor(&deaf(&places), &allowed);
    // It has taken a lock.
    let found = ["permission-client 0", "permission-client 1", "permission-client 2"];
    assert_eq!(seen.found(&places), found, "{}", seen.json);
    assert_eq!((seen.code, &seen.json["verdict"]), (0, &"notes".into()));
    let why = "it does not know CLIENT: after a lost connection, clients send a release twice";
    assert!(seen.findings().iter().all(|finding| finding["why"] == why), "{}", seen.json);

    let lacks = is_older_than(
        [7, 0, 0],
        "locks_work_without_client_commands_where_nobody_waits_for_notices",
        "-client|kill in ACL SETUSER",
    );
    if lacks || !can_paste() {
        return;
    }
    let masters = Masters::start(3).unwrap();
    let places = masters.urls();
    let guarded = [&guarded[..], &["--allow", "quorum"]].concat();
    for (right, id, args, text) in [
        (
            "client|kill",
            "permission-client",
            &allowed,
            ": after a lost connection, clients send a release twice",
        ),
        ("client|tracking", "permission", &guarded, ""),
    ] {
        tell(&masters[1], &["ACL", "SETUSER", "default", &format!("-{right}")]);
        let seen = doctor(&places, args);
        assert_eq!(seen.found(&places), [format!("{id} 1")], "{}", seen.json);
        let why = format!("the user \"default\" lacks +{right}{text}");
        assert_eq!(seen.findings()[0]["why"], why);
        paste(&seen.fix_of(id), None);
        let mended = doctor(&places, args);
        assert_eq!(mended.found(&places), [""; 0], "{}", mended.json);
    }
}

/// Servers count what changes their data.
#[test]
fn looking_changes_nothing() {
    let masters = Masters::start(3).unwrap();
    let changes = || {
        let info = |master: &Master| match master.query(&[b"INFO", b"persistence"]).unwrap() {
            Reply::Bulk(text) => String::from_utf8(text).unwrap(),
            other => panic!("{other:?}"),
        };
        let line = |info: String| {
            let mut lines = info.lines().map(str::to_owned);
            lines.find(|line| line.starts_with("rdb_changes_since_last_save:")).unwrap()
        };
        masters.iter().map(info).map(line).collect::<Vec<_>>()
    };
    let before = changes();
    let read_only = [&SLOW[..], &["--read-only"]].concat();
    assert_eq!(doctor(&masters.urls(), &read_only).code, 0);
    assert_eq!(changes(), before);
    assert_eq!(usual(&masters.urls()).code, 0);
    assert!(changes() != before, "the control: a lock is a change");
}

/// A client that connects ignores a server whose marker is absent or young.
#[test]
fn wait_that_the_marker_causes_is_found() {
    let masters = Masters::start(3).unwrap();
    let urls = masters.urls();
    let doctor = |args: &[&str]| {
        let mut command = muxlock(&["doctor", "--json", "--allow", "version"]);
        command.args(["--allow", "restart-guard", "--allow", "settings-differ"]);
        let (code, out, _) =
            run(command.args(SLOW).args(args).env("MUXLOCK_NODES", urls.join(",")));
        Seen { code, json: serde_json::from_str(&out).unwrap() }
    };
    let common = ["--flush-marker", "mark", "--max-ttl", "10m"];
    let marked = |args: &[&str]| doctor(&[&common[..], args].concat());
    let takes_a_lock = || {
        let builder = patient(urls.clone()).max_ttl(Duration::from_secs(600));
        let redlock = builder.flush_marker("mark").build().unwrap();
        let lock = redlock.try_lock("r", TTL);
        // On all masters.
        assert_eq!(redlock.shutdown(TTL), 0);
        lock.is_ok()
    };
    let count = |seen: &Seen, text: &str| {
        seen.findings().iter().filter(|it| it["why"].as_str().unwrap().contains(text)).count()
    };
    let seen = doctor(&[]);
    assert_eq!((seen.code, seen.found(&urls)), (0, vec!["marker".into()]), "{}", seen.json);

    // At its first use, no client has started the wait.
    let missing = "its flush marker is missing: clients that connect ignore it for 608 s from when \
                   the first of them connects, so connect one now";
    let young = "its flush marker was set a short time ago, so it might have lost locks: clients \
                 that connect ignore it for another 60";
    for text in [missing, young] {
        for args in [&[][..], &["--read-only"]] {
            let seen = marked(args);
            let found = ["marker 0", "marker 1", "marker 2", "quorum"];
            assert_eq!(seen.found(&urls), found, "{}", seen.json);
            assert_eq!((seen.code, &seen.json["votes"]), (1, &0.into()));
            let rows = seen.json["masters"].as_array().unwrap();
            assert!(rows.iter().all(|row| row["vote"] == "waits"), "{}", seen.json);
            // The masters have it alike.
            assert_eq!(count(&seen, text), 1, "{}", seen.json);
            assert_eq!(count(&seen, ", and until then the others are no quorum"), 1);
            assert_eq!(count(&seen, "run commands with --wait-masters 608s"), 1, "{}", seen.json);
            let is_set = masters.iter().all(|master| master.dbsize().unwrap() == 1);
            assert_eq!(is_set, text == young, "it is not set by looking");
        }
        assert!(!takes_a_lock(), "it sets the marker, and waits");
    }

    // The wait has ended on two of them. The other one was flushed.
    for master in masters.iter() {
        tell(master, &["SET", "mark", "!00000000000000ff1700000000000000"]);
    }
    let seen = marked(&[]);
    assert_eq!((seen.code, seen.found(&urls)), (0, vec![]), "{}", seen.json);
    let found = |args: &[&str], text: &str| {
        let seen = marked(args);
        assert_eq!((seen.code, seen.found(&urls)), (0, vec!["marker 1".into()]), "{}", seen.json);
        assert_eq!((&seen.json["verdict"], &seen.json["votes"]), (&"notes".into(), &2.into()));
        assert_eq!(count(&seen, text), 1, "{}", seen.json);
    };
    tell(&masters[1], &["FLUSHALL"]);
    found(&["--read-only"], missing);
    assert!(takes_a_lock(), "two of three vote");
    found(&["--read-only"], young);
    // Clients leave such values alone, and wait each time.
    for value in ["soon", "!", "!00000000000000ffsoon"] {
        tell(&masters[1], &["SET", "mark", value]);
        found(
            &["--read-only"],
            "its flush marker holds no valid value: each client ignores it for ",
        );
    }
}

#[test]
fn clients_with_another_list_are_found() {
    let masters = Masters::start(3).unwrap();
    let urls = masters.urls();
    let some: Redlock = all_ready(&patient(urls[..2].to_vec()));
    let seen = usual(&urls);
    assert_eq!(seen.found(&urls), ["lists-differ"], "{}", seen.json);
    let why = seen.findings()[0]["why"].as_str().unwrap();
    assert!(why.contains("127.0.0.1 ") && why.contains(&masters[2].addr()), "{why}");
    drop(some);
    let all = all_ready(&patient(urls.clone()));
    assert_eq!(usual(&urls).found(&urls), [""; 0]);
    drop(all);
}

/// In production, nobody would hear of it again.
#[test]
fn restart_guard_that_is_off_is_found() {
    let masters = Masters::start(3).unwrap();
    let urls = masters.urls();
    let seen = all_findings(&urls, &SLOW);
    assert_eq!(seen.found(&urls), ["restart-guard 0", "restart-guard 1", "restart-guard 2"]);
    assert_eq!((seen.code, seen.findings().len()), (0, 1), "{}", seen.json);
    assert_eq!(seen.json["settings"]["restart_guard"], "off");
    assert_eq!(seen.findings()[0]["severity"], "warning");
    let strict = all_findings(&urls, &[&SLOW[..], &["--strict"]].concat());
    assert_eq!((strict.code, &strict.findings()[0]["severity"]), (1, &"error".into()));
    let mut command = muxlock(&["run", "-v"]);
    command.args(IN_TIME).args(["r", "true"]).env("MUXLOCK_NODES", urls.join(" "));
    let (code, _, err) = run(&mut command);
    assert!(code == 0 && err.contains("muxlock: restart_guard is off: after a restart"), "{err}");
}

/// Three files were three holders, and nobody saw it.
#[test]
fn settings_in_force_are_shown_and_compared_with_those_of_clients() {
    let masters = Masters::start(3).unwrap();
    let urls = masters.urls();
    let folder = testbed::Folder::create("doctor-settings");
    let file = folder.0.join("muxlock.toml");
    std::fs::write(
        &file,
        format!("nodes = {urls:?}\nprefix = \"app:\"\nrestart_guard = \"off\"\n"),
    )
    .unwrap();
    let with = |args: &[&str]| {
        let mut command = muxlock(args);
        command.args(["--config", file.to_str().unwrap()]).args(&SLOW[..4]);
        run(&mut command)
    };
    let args = ["doctor", "--read-only"];
    let (_, text, _) = with(&args);
    let line = text.lines().next().unwrap();
    let begins = format!(
        "settings: {}, prefix \"app:\", database 0, max_ttl 30s, \
                          restart_guard off, mark ",
        file.display()
    );
    assert!(line.starts_with(&begins), "{text}");
    let mut command = muxlock(&["run", "-v", "--config", file.to_str().unwrap(), "r", "true"]);
    let (_, _, err) = run(&mut command);
    assert!(err.starts_with(&format!("muxlock: {line}\n")), "{err}");

    let builder = || patient(urls.clone()).key_prefix("app:");
    let _equal = all_ready(&builder().client_name("equal"));
    let _prefix = all_ready(&builder().key_prefix("other:").client_name("prefix"));
    let times = builder().max_ttl(Duration::from_secs(40)).flush_marker("mark");
    for master in masters.iter() {
        tell(master, &["SET", "mark", "!00000000000000ff1700000000000000"]);
    }
    let _times = all_ready(&times.client_name("times"));
    let database = patient(urls.iter().map(|url| format!("{url}/1"))).key_prefix("app:");
    let _database = all_ready(&database);
    let _list = all_ready(&patient(urls[..2].to_vec()).key_prefix("app:").client_name("list"));
    let (_, json, _) = with(&[&args[..], &["--json"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    let mark = json["settings"]["mark"].as_str().unwrap();
    assert!(line.ends_with(mark) && mark.len() == 10, "{line} {mark}");
    let findings = json["findings"].as_array().unwrap().iter();
    let whys = findings.filter(|it| it["id"] == "settings-differ");
    let whys: BTreeSet<_> = whys.map(|it| it["why"].as_str().unwrap()).collect();
    let of = |differing: &str, client: &str| {
        let text = format!("({differing}): {client}");
        assert!(whys.iter().any(|why| why.contains(&text)), "{text}: {whys:?}");
    };
    of("prefix", "prefix, from 127.0.0.1; two clients");
    of("max_ttl; restart_guard or flush_marker", "times, from");
    of("addresses", "list, from");
    assert!(whys.iter().any(|why| why.contains(&format!(" pid {} (", std::process::id()))));
    of("database", "");
    assert_eq!(whys.len(), 4, "{whys:?}");
}

/// The fixes run as they are printed, where only an administrator may change rights.
#[test]
fn rights_for_fencing_are_found_and_granted_by_the_administrator() {
    let test = "rights_for_fencing_are_found_and_granted_by_the_administrator";
    if is_older_than([7, 0, 0], test, "-client|tracking in ACL SETUSER") || !can_paste() {
        return;
    }
    let masters = Masters::start(3).unwrap();
    let locker = ["ACL", "SETUSER", "locker", "on", ">sesame", "~app:*"];
    let locker = [&locker[..], &LOCKER.split(' ').collect::<Vec<_>>()].concat();
    for master in masters.iter() {
        tell(master, &["ACL", "SETUSER", "admin", "on", ">secret", "~*", "&*", "+@all"]);
        tell(master, &locker);
        tell(master, &["ACL", "SETUSER", "default", "off"]);
    }
    let login = |user: &str| -> Vec<String> {
        masters.urls().iter().map(|url| with_login(url, user)).collect()
    };
    let (urls, places) = (login("locker:sesame"), masters.urls());
    let allowed = ["--prefix", "app:", "--allow", "not-checked", "--allow", "permission-waiting"];
    let allowed = [&SLOW[..], &allowed, &["--allow", "permission-delete"]].concat();
    let by_other = [&allowed[..], &["--lock-user", "locker"]].concat();
    let seen = doctor(&login("admin:secret"), &by_other);
    let fencing = "no several resources or permits, read and write locks, locks with the caller's \
                   value, fencing tokens";
    let text = seen.json.to_string();
    assert!(text.contains("~muxlock:fence") && text.contains(fencing), "{text}");
    let seen = doctor(&urls, &allowed);
    let found: Vec<_> = (0..3).map(|i| format!("permission-kinds {i}")).collect();
    assert_eq!((seen.found(&places), seen.findings().len()), (found, 1), "{}", seen.json);
    let fix = seen.fix_of("permission-kinds");
    assert!(fix.contains(" --user admin ACL SETUSER locker ") && fix.lines().count() == 3, "{fix}");
    let fenced = || {
        let mut command = muxlock(&["run", "--fenced", "--prefix", "app:"]);
        command.args(IN_TIME).args(["f", "true"]).env("MUXLOCK_NODES", urls.join(" "));
        run(&mut command).0
    };
    assert_eq!(fenced(), 122);
    paste(&fix, Some("secret"));
    assert_eq!(doctor(&urls, &allowed).found(&places), [""; 0]);
    assert_eq!(fenced(), 0);
}

/// A clock that is wrong, and one that is put wrong while it is watched.
#[test]
fn slow_clocks_that_differ_are_found() {
    let clocks = match Clocks::start(3) {
        Ok(clocks) => clocks,
        Err(reason) => return eprintln!("SKIPPED: {reason}"),
    };
    let urls = clocks.urls();
    clocks.set(1, 1);
    let seen = usual(&urls);
    assert_eq!(seen.found(&urls), ["clock-offset 1"], "{}", seen.json);
    assert!(seen.findings()[0]["why"].as_str().unwrap().contains(" by +1.0"), "{}", seen.json);
    clocks.set(1, 0);
    let watch = [&SLOW[..], &["--for", "3s", "--read-only"]].concat();
    let asked = || clocks.masters[2].command_calls("time").unwrap();
    let before = asked();
    let seen = std::thread::scope(|scope| {
        let seen = scope.spawn(|| doctor(&urls, &watch));
        // Once to see whether it may, and then as often as at the beginning of each run.
        soon("it watches", || asked() > before + 65);
        clocks.set(2, 1);
        seen.join().unwrap()
    });
    assert_eq!(seen.found(&urls), ["clock-rate 2"], "{}", seen.json);
    assert_eq!(seen.code, 1);
}

/// It repeats what it is sent, as an error or as the beginning of an answer that never ends.
fn strange(answer: fn(&[u8]) -> Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut sent = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut sent) {
                    let answer = answer(&sent[..length]);
                    // A byte now and then, so that no read is late.
                    let mut bytes = answer.chunks(answer.len().div_ceil(8).max(1));
                    while bytes.next().is_some_and(|some| stream.write_all(some).is_ok()) {
                        pause(Duration::from_millis(50));
                    }
                }
            });
        }
    });
    address
}

#[test]
fn slow_strange_servers_are_told_without_what_they_say() {
    let [errors, lines, endless] = [
        strange(|_| b"-sesame is what I was sent\r\n".to_vec()),
        strange(|_| b"sesame\r\n".to_vec()),
        strange(|_| b"$1000000\r\nsesame".to_vec()),
    ];
    let urls: Vec<String> =
        [errors, lines, endless].iter().map(|at| format!("redis://:sesame@{at}")).collect();
    let seen = doctor(&urls, &["--connect-timeout", "2s"]);
    let text = seen.json.to_string();
    assert!(!text.contains("sesame"), "{text}");
    let found = ["quorum", "unreachable 0", "unreachable 1", "unreachable 2"];
    let places: Vec<_> = [errors, lines, endless].iter().map(|at| at.to_string()).collect();
    assert_eq!(seen.found(&places), found, "{text}");
    assert!(text.contains("server error (other): ***"), "{text}");
    assert!(text.contains("this is not a Redis server: it answered with"), "{text}");
    assert!(text.contains("protocol error (reply too large)"), "{text}");
}

#[test]
fn slow_clocks_are_watched_for_as_long_as_asked() {
    let masters = Masters::start(3).unwrap();
    let urls = masters.urls();
    let (took, seen) = timed(|| doctor(&urls, &[&SLOW[..], &["--for", "1s"]].concat()));
    assert_eq!((seen.code, seen.found(&urls)), (0, vec![]), "{}", seen.json);
    assert!(took >= Duration::from_secs(1));
    assert!(seen.json["masters"][0]["clock_doubt_us"].as_u64().is_some(), "{}", seen.json);

    // Only people are told how long it takes.
    let list = urls.join(" ");
    for (format, words) in [("--json", ""), ("--strict", "muxlock: measures the clocks for 1s\n")] {
        let mut command = muxlock(&["doctor", format, "--for", "1s"]);
        let (_, out, err) = run(command.args(SLOW).env("MUXLOCK_NODES", &list));
        assert!(err == words && !out.contains("measures"), "{format}: {out}{err}");
    }
    let script = format!("{} doctor --for 2s {}", env!("CARGO_BIN_EXE_muxlock"), SLOW.join(" "));
    let mut terminal = Command::new("script");
    terminal.args(["-qefc", &script, "/dev/null"]).stdin(Stdio::null()).env("SHELL", "/bin/sh");
    let (_, out, _) = run(terminal.env("MUXLOCK_NODES", &list));
    let line = "\rmeasures the clocks: 1 s of 2 s ";
    assert!(out.contains(line) && out.contains(" can vote now, "), "{out:?}");
}

/// The text has all that the JSON has.
#[test]
fn page_shows_the_findings_and_fits_a_terminal() {
    let test = "page_shows_the_findings_and_fits_a_terminal";
    // It has another line for each.
    if is_older_than([6, 2, 0], test, "a version without a warning") {
        return;
    }
    let mut masters = Masters::start(3).unwrap();
    tell(&masters[0], &["CONFIG", "SET", "timeout", "300"]);
    masters[1].kill().unwrap();
    let mut command = muxlock(&["doctor", "--allow", "restart-guard"]);
    let (code, out, err) = run(command.args(SLOW).env("MUXLOCK_NODES", masters.urls().join(",")));
    assert_eq!((code, err.as_str()), (1, ""), "{out}");
    let at = |i: usize| masters[i].addr();
    assert!(out.contains(&format!(
        "\nerror    unreachable  {}\n    disconnected (connection refused)\n",
        at(1)
    )));
    assert!(out.contains(&format!("\nwarning  timeout  {}\n", at(0))), "{out}");
    assert!(out.contains(&format!(" -p {} CONFIG SET timeout 0\n", masters[0].port())), "{out}");
    let last = out.lines().last().unwrap();
    let expected = "1 error, 1 warning, 1 note; 2 of 3 masters can vote now, a lock needs 2";
    assert_eq!(last, expected);
    // The settings are one line, to be compared.
    assert!(out.lines().skip(1).all(|line| line.chars().count() <= 80), "{out}");
    let node = ["--node", "redis://127.0.0.1:1"];
    for (args, text) in [
        (&["--for", "10ms"][..], "--for is 10ms: it must be from 1s to 24h"),
        (&["--for", "10"], "it has no unit"),
        (&["--allow", "evict"], "evicts"),
    ] {
        let (code, _, err) = run(muxlock(&["doctor"]).args(node).args(args));
        assert!(code == 2 && err.contains(text), "{err}");
    }
}

/// The samples of a text in the format of Prometheus: name and labels, and the value. Each metric
/// has its help, its type and its samples at one place, and each sample is there once.
#[track_caller]
fn samples(text: &str) -> BTreeMap<String, f64> {
    let (mut samples, mut seen, mut current) = (BTreeMap::new(), BTreeSet::new(), String::new());
    assert!(text.ends_with('\n'), "{text}");
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("a help has words");
            assert!(seen.insert(name.to_owned()) && words.ends_with('.'), "{line}");
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            assert_eq!(lines.next(), Some(&*format!("# TYPE {name} {kind}")));
            assert!(lines.peek().is_some_and(|next| next.starts_with(name)), "{line}");
            current = name.to_owned();
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
        let rest = series.strip_prefix(&current).unwrap_or_else(|| panic!("{line}: {current}"));
        if !rest.is_empty() {
            let inner = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            let mut rest = inner.unwrap_or_else(|| panic!("{line}"));
            while !rest.is_empty() {
                let (label, value) = rest.split_once("=\"").expect("a label has a value");
                let settings = ["files", "prefix", "databases", "max_ttl", "restart_guard", "mark"];
                let known = [&["id", "server", "severity"][..], &settings].concat();
                assert!(known.contains(&label), "{line}");
                let end = value.find('"').expect("it ends");
                assert!(!value[..end].contains('\\'), "{line}");
                rest = value[end + 1..].trim_start_matches(',');
            }
        }
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(samples.insert(series.to_owned(), value).is_none(), "{line}");
    }
    samples
}

#[test]
fn metrics_are_complete_while_masters_are_down() {
    let mut masters = Masters::start_with(3, &["--requirepass", "sesame"]).unwrap();
    let addresses: Vec<_> = masters.iter().map(|master| master.addr().to_string()).collect();
    let urls: Vec<_> = addresses.iter().map(|it| format!("redis://:sesame@{it}")).collect();
    let metrics = |args: &[&str]| {
        let mut command = muxlock(&["doctor", "--prometheus", "--allow", "version"]);
        command.args(["--allow", "restart-guard"]);
        command.args(SLOW).args(args).env("MUXLOCK_NODES", urls.join(","));
        let (code, out, err) = run(&mut command);
        assert!(err.is_empty() && !out.contains("sesame"), "{out}{err}");
        (code, samples(&out))
    };
    let of = |name: &str, i: usize| format!("muxlock_doctor_{name}{{server=\"{}\"}}", addresses[i]);
    let plain = |name: &str| format!("muxlock_doctor_{name}");
    let findings = |severity: &str| format!("muxlock_doctor_findings{{severity=\"{severity}\"}}");

    let time = || match masters[0].query(&[b"TIME"]).unwrap() {
        Reply::Array(parts) => match &parts[0] {
            Reply::Bulk(seconds) => String::from_utf8_lossy(seconds).parse::<f64>().unwrap(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let before = time();
    let (code, all) = metrics(&["--allow", "marker"]);
    let at = all[&plain("last_run_timestamp_seconds")];
    assert!(before - 1.0 <= at && at <= time() + 1.0, "{before} {at}");
    assert_eq!(code, 0, "{all:?}");
    assert_eq!([all[&plain("servers")], all[&plain("votes")], all[&plain("quorum")]], [3., 3., 2.]);
    for i in 0..3 {
        assert_eq!([all[&of("up", i)], all[&of("can_vote", i)]], [1., 1.]);
        assert!(all[&of("clock_offset_seconds", i)].abs() < 1., "{all:?}");
        assert!(
            all[&of("clock_offset_error_seconds", i)] >= 0. && all[&of("uptime_seconds", i)] >= 0.
        );
        assert_eq!(all[&of("evicted_keys_total", i)], 0.);
        for name in ["round_trip_p50_seconds", "round_trip_p99_seconds"] {
            assert!(all[&of(name, i)] > 0. && all[&of(name, i)] < 10., "{all:?}");
        }
    }
    assert!(!all.keys().any(|name| name.starts_with("muxlock_doctor_finding{")), "{all:?}");
    let settings = all.keys().find(|name| name.starts_with("muxlock_doctor_settings{")).unwrap();
    let labels =
        "files=\"\",prefix=\"\",databases=\"0\",max_ttl=\"30s\",restart_guard=\"off\",mark=";
    assert!(settings.contains(labels), "{settings}");
    let written = all;

    tell(&masters[0], &["CONFIG", "SET", "timeout", "300"]);
    masters[1].kill().unwrap();
    let (code, all) = metrics(&[]);
    assert_eq!((code, all[&plain("votes")]), (1, 2.), "{all:?}");
    assert_eq!([all[&of("up", 0)], all[&of("up", 1)], all[&of("can_vote", 1)]], [1., 0., 0.]);
    assert!(!all.contains_key(&of("uptime_seconds", 1)), "{all:?}");
    assert_eq!(["error", "warning", "note"].map(|it| all[&findings(it)]), [1., 1., 1.]);
    for (id, severity, server) in [
        ("unreachable", "error", addresses[1].as_str()),
        ("timeout", "warning", &addresses[0]),
        ("marker", "note", ""),
    ] {
        let labels = format!("id=\"{id}\",severity=\"{severity}\",server=\"{server}\"");
        assert_eq!(all[&format!("muxlock_doctor_finding{{{labels}}}")], 1., "{all:?}");
    }

    // The alerts and the dashboard have no other names.
    let texts = [
        include_str!("../../../packaging/alerts.yml"),
        include_str!("../../../packaging/dashboard.json"),
    ];
    serde_json::from_str::<Value>(texts[1]).expect("the dashboard is JSON");
    let words = texts.iter().flat_map(|it| it.split(|it: char| !it.is_alphanumeric() && it != '_'));
    let names: BTreeSet<_> = words.filter(|word| word.starts_with("muxlock_doctor_")).collect();
    assert!(names.len() > 6, "{names:?}");
    for name in names {
        let is_it = |sample: &&String| sample.split('{').next() == Some(name);
        assert!(written.keys().chain(all.keys()).any(|sample| is_it(&sample)), "{name}");
    }

    masters[0].kill().unwrap();
    masters[2].kill().unwrap();
    let (code, all) = metrics(&[]);
    // The three that are down are one finding.
    assert_eq!((code, all[&plain("votes")], all[&findings("error")]), (1, 0., 2.), "{all:?}");
    assert!((0..3).all(|i| all[&of("up", i)] == 0.), "{all:?}");

    // Nothing that replaces the metrics of before.
    let mut command = muxlock(&["doctor", "--prometheus"]);
    let (code, out, _) = run(command.env("MUXLOCK_NODES", "redis://h:x"));
    assert_eq!((code, out.as_str()), (2, ""));
}

/// Eleven defects of five masters, and nothing else; then what the fixes say.
#[test]
fn eleven_defects_are_found_and_the_fixes_mend_them() {
    let test = "eleven_defects_are_found_and_the_fixes_mend_them";
    if is_older_than([7, 0, 0], test, "-client|kill in ACL SETUSER") || !can_paste() {
        return;
    }
    let masters = Masters::start_with(5, &["--requirepass", "se same"]).unwrap();
    let login = |user: &str| format!("{user}:se%20same");
    let mut urls: Vec<String> =
        masters.urls().iter().map(|url| with_login(url, &login(""))).collect();
    let set = |i: usize, settings: &[[&str; 2]]| {
        for [name, value] in settings {
            tell(&masters[i], &["CONFIG", "SET", name, value]);
        }
    };
    set(0, &[["maxmemory", "100mb"], ["maxmemory-policy", "volatile-lru"], ["save", "60 1"]]);
    set(1, &[["min-replicas-to-write", "2"], ["timeout", "60"]]);
    set(2, &[["client-output-buffer-limit", "normal 0 4096 5"]]);
    tell(&masters[3], &["ACL", "SETUSER", "default", "nopass"]);
    set(3, &[["bind", "127.0.0.1 -192.0.2.1"], ["protected-mode", "no"], ["maxclients", "20"]]);
    urls[3] = urls[3].replace(&login(""), &login("default"));
    let _crowd: Vec<_> = (0..16).map(|_| connect(&masters[3])).collect();
    let app = ["ACL", "SETUSER", "app", "on", ">se same", "&*", "+@all"];
    tell(&masters[1], &[&app[..], &["~other:*"]].concat());
    tell(&masters[4], &[&app[..], &["~*", "-client|kill", "-time"]].concat());
    for i in [1, 4] {
        urls[i] = urls[i].replace(&login(""), &login("app"));
    }
    set(4, &[["client-output-buffer-limit", "normal 100 0 0"]]);
    let places = masters.urls();
    let prefixed = [&SLOW[..], &["--prefix", "app:"]].concat();
    let seen = doctor(&urls, &prefixed);
    let expected = [
        "bgsave-stops-writes 0",
        "evicts 0",
        "maxclients 3",
        "min-replicas 1",
        "open 3",
        "output-buffer 2",
        "output-buffer 4",
        "permission 1",
        "permission 4",
        "permission-kinds 1",
        "timeout 1",
    ];
    assert_eq!(seen.found(&places), expected, "{}", seen.json);
    assert_eq!((seen.code, &seen.json["votes"]), (1, &3.into()));
    let fixes: BTreeSet<&str> =
        seen.findings().iter().filter_map(|it| it["fix"].as_str()).collect();
    // The two masters with a small buffer are one finding.
    assert_eq!(fixes.len(), 10);
    for fix in fixes {
        assert!(!fix.contains("same"), "{fix}");
        paste(fix, Some("se same"));
    }
    let mended = doctor(&urls, &prefixed);
    assert_eq!((mended.code, mended.found(&places)), (0, vec![]), "{}", mended.json);
}
