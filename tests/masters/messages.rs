//! The exact words for mistakes that users make, from real servers.

use std::time::Duration;

use muxlock::testing::{Master, Masters};
use muxlock::{LockErrorKind, NodeState, Redlock, RestartGuard};
use testbed::{PATIENT, Sentinel, TTL, all_ready, patient, soon};

/// What a lock on this one server fails with, up to the node.
#[track_caller]
fn refused(url: &str) -> String {
    let redlock = patient([url]).restart_guard(RestartGuard::Off).build().unwrap();
    let error = redlock.try_lock("report", TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    let report = text.strip_prefix("unavailable: 1 of 1 nodes gave no vote (node 0 ").expect(&text);
    let (_, outcome) = report.split_once(": ").expect(&text);
    outcome.strip_suffix(')').expect(&text).to_owned()
}

#[test]
fn wrong_passwords_are_named_and_not_shown() {
    let open = Master::start().unwrap();
    let closed = Master::start_with(&["--requirepass", "sesame"]).unwrap();
    let (open, closed) = (open.addr(), closed.addr());
    let unauthenticated = "server error (not authenticated): ";
    let table = [
        (format!("redis://:secret@{open}"), "the server has no password; leave it out"),
        (format!("redis://:secret@{closed}"), "WRONGPASS: the user or the password is wrong"),
        (format!("redis://admin:sesame@{closed}"), "WRONGPASS: the user or the password is wrong"),
        (format!("redis://{closed}"), "NOAUTH Authentication required."),
    ];
    for (url, text) in table {
        let outcome = refused(&url);
        assert_eq!(outcome, format!("{unauthenticated}{text}"), "{url}");
    }
}

#[test]
fn servers_that_are_no_independent_masters_are_named() {
    let cluster = Master::start_with(&["--cluster-enabled", "yes"]).unwrap();
    let no_master = "unfit (a Cluster node or a Sentinel; list independent masters only)";
    assert_eq!(refused(&cluster.url()), no_master);

    let sentinel = Sentinel::start("");
    let port = sentinel.port();
    let is_up = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    soon("the Sentinel accepts connections", is_up);
    assert_eq!(refused(&format!("redis://127.0.0.1:{port}")), no_master);

    let evicting = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    let evicting = Master::start_with(&evicting).unwrap();
    let text = "unfit (maxmemory-policy evicts locks; set noeviction)";
    assert_eq!(refused(&evicting.url()), text);

    let masters = Masters::start(2).unwrap();
    let port = masters[1].port().to_string();
    masters[0].query(&[b"REPLICAOF", b"127.0.0.1", port.as_bytes()]).unwrap();
    let text = "unfit (a replica; list independent masters only)";
    soon("it is a replica", || refused(&masters[0].url()) == text);
}

#[test]
fn holder_in_this_client_and_lost_keys_are_named() {
    let masters = Masters::start(3).unwrap();
    let redlock = all_ready(&patient(masters.urls()).restart_guard(RestartGuard::Off));
    let mut lock = redlock.try_lock_for("report", TTL, PATIENT).unwrap();
    let mine = redlock.try_lock_for("report", TTL, Duration::from_millis(20)).unwrap_err();
    let text = "contended: this client already holds the lock or is acquiring it";
    assert_eq!(mine.to_string(), text);
    assert_eq!(redlock.shutdown(PATIENT), 0);
    for master in masters.iter() {
        master.query(&[b"DEL", b"report"]).unwrap();
    }
    let error = lock.extend(TTL).unwrap_err().to_string();
    let counts =
        [2, 3].map(|n| format!("expired: {n} of 3 nodes no longer hold this lock's token ("));
    assert!(counts.iter().any(|count| error.starts_with(count)), "{error}");

    // The same server under two names, which only its answer can show.
    let port = masters[0].port();
    let urls = [format!("redis://127.0.0.1:{port}"), format!("redis://localhost:{port}")];
    let twice = patient(urls).restart_guard(RestartGuard::Off).build().unwrap();
    let text = "unfit (the same server as another node; list it once)";
    soon("it is noticed", || {
        let shown = twice.try_lock("other", TTL).unwrap_err().to_string();
        shown.contains(text)
    });
    assert!(twice.nodes().iter().any(|node| node.state != NodeState::Ready));

    let config = Redlock::builder().nodes(["redis://10.0.0.1"; 2]).build().unwrap_err();
    assert_eq!(config.to_string(), "10.0.0.1:6379 is listed twice: its vote would count twice");
}
