//! The exact words for mistakes that users make, from real servers.

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use muxlock::node::NodeState;
use muxlock::settings::RestartGuard;
use muxlock::testing::{Master, Masters};
use muxlock::{Builder, LockErrorKind, Redlock};
use testbed::{PATIENT, Reticent, Sentinel, Stranger, TTL, all_ready, patient, soon, strangers};

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
    let master = Master::start_with(&["--requirepass", "sesame"]).unwrap();
    let closed = master.addr();
    let unauthenticated = "server error (not authenticated): ";
    let table = [
        (format!("redis://:secret@{closed}"), "WRONGPASS: the user or the password is wrong"),
        (format!("redis://:wrong@{closed}"), "WRONGPASS: the user or the password is wrong"),
        (format!("redis://admin:sesame@{closed}"), "WRONGPASS: the user or the password is wrong"),
        (format!("redis://{closed}"), "NOAUTH Authentication required."),
    ];
    for (url, text) in table {
        let outcome = refused(&url);
        assert_eq!(outcome, format!("{unauthenticated}{text}"), "{url}");
    }
}

#[test]
fn databases_and_names_that_do_not_exist_have_a_cause() {
    let master = Master::start().unwrap();
    let table = [
        (format!("{}/99", master.url()), "fewer databases than the address needs"),
        ("redis://name.invalid".to_owned(), "the spelling"),
        ("redis://[fe80::1%none]".to_owned(), "a network interface with the name behind the %?"),
    ];
    for (url, cause) in table {
        let said = refused(&url);
        // Without a network, there is no DNS server.
        let has_cause = said.contains(cause) || said.contains("no DNS server of this machine");
        assert!(has_cause, "{url}: {said}");
    }
}

#[test]
fn servers_that_are_no_independent_masters_are_named() {
    let cluster = Master::start_with(&["--cluster-enabled", "yes"]).unwrap();
    let no_master = "unusable (a Cluster node or a Sentinel; list independent masters only)";
    assert_eq!(refused(&cluster.url()), no_master);

    let sentinel = Sentinel::start("");
    let port = sentinel.port();
    assert_eq!(refused(&format!("redis://127.0.0.1:{port}")), no_master);

    let evicting = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    let evicting = Master::start_with(&evicting).unwrap();
    let text = "unusable (maxmemory-policy evicts locks; set noeviction)";
    assert_eq!(refused(&evicting.url()), text);

    let masters = Masters::start(2).unwrap();
    let port = masters[1].port().to_string();
    masters[0].query(&[b"REPLICAOF", b"127.0.0.1", port.as_bytes()]).unwrap();
    let text = "unusable (a replica; list independent masters only)";
    soon("it is a replica", || refused(&masters[0].url()) == text);
}

#[test]
fn what_is_no_redis_server_is_named_with_what_it_says_but_no_secret() {
    for Stranger { url, words, quoted } in strangers() {
        let said = refused(&url);
        assert!(said.ends_with(&format!("{words}{quoted}")), "{said}");
    }
}

#[test]
fn limits_that_were_too_short_are_named() {
    let masters = Masters::start(1).unwrap();
    let builder = Redlock::builder().nodes(masters.urls()).restart_guard(RestartGuard::Off);
    let short = Duration::from_millis(300);
    let redlock = all_ready(&builder.node_timeout(short).connect_timeout(short));
    masters[0].freeze().unwrap();
    let reply = redlock.try_lock("report", TTL).unwrap_err().to_string();
    assert!(reply.contains("timed out (reply): longer than node_timeout (300ms)"), "{reply}");
    let late = Redlock::builder().nodes(masters.urls()).connect_timeout(short).connect();
    let late = late.unwrap_err().to_string();
    assert!(late.contains("timed out (handshake): longer than connect_timeout (300ms)"), "{late}");
}

#[test]
fn resolver_that_panics_or_fails_is_quoted() {
    let said = |builder: Builder| {
        let builder = builder.node("redis://name").connect_timeout(PATIENT);
        let error = builder.connect().unwrap_err().to_string();
        error.split_once("host name does not resolve: ").expect(&error).1.to_owned()
    };
    let panics = said(Redlock::builder().resolver(|_, _| panic!("odd")));
    assert!(panics.starts_with("the resolver panicked"), "{panics}");
    let failed = said(Redlock::builder().resolver(|_, _| Err(io::Error::other("no \u{1b}zone"))));
    assert!(failed.starts_with("no zone"), "{failed}");
}

/// Why no Sentinel names the master: for each, with its address.
#[test]
fn slow_causes_at_a_sentinel_are_named() {
    let sentinels = Reticent::start();
    for (url, at, words) in sentinels.questions() {
        let said = refused(&url);
        let begins = format!("no Sentinel reported where the master is: {at}: ");
        assert!(said.starts_with(&begins) && said.contains(words), "{said}");
        assert!(!said.contains("hunter22"), "{said}");
    }
    // It accepts and is silent: the reason comes before the limit of the whole lookup.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let builder = Redlock::builder().node(format!("redis+sentinel://{at}/mymaster"));
    let said = builder.connect_timeout(Duration::from_secs(10)).connect().unwrap_err().to_string();
    assert!(said.contains(&format!(": {at}: timed out (answer): longer than 9s")), "{said}");
    let (_sentinels, url, words) = sentinels.without_server();
    let said = refused(&url);
    assert!(said.contains("refused") && said.ends_with(&words), "{said}");
}

#[test]
fn holder_in_this_client_and_lost_keys_are_named() {
    let masters = Masters::start(3).unwrap();
    let redlock = all_ready(&patient(masters.urls()).restart_guard(RestartGuard::Off));
    let mut lock = redlock.try_lock_for("report", TTL, PATIENT).unwrap();
    let mine = redlock.try_lock_for("report", TTL, Duration::from_millis(20)).unwrap_err();
    let text = "contended: another thread or call of this client holds the lock or is acquiring it";
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
    let text = "unusable (the same server as another node; list it once)";
    soon("it is noticed", || {
        let shown = twice.try_lock("other", TTL).unwrap_err().to_string();
        shown.contains(text)
    });
    assert!(twice.nodes().iter().any(|node| node.state != NodeState::Ready));

    let config = Redlock::builder().nodes(["redis://10.0.0.1"; 2]).build().unwrap_err();
    assert_eq!(config.to_string(), "10.0.0.1:6379 is listed twice: its vote would count twice");
}
