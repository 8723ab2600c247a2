//! Clients as tests make them, the texts of their errors, and the servers that they may be tried
//! on.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{self, Write};
use std::process::Command;
use std::sync::OnceLock;

use muxlock::node::{NodeOutcome, NodeState};
use muxlock::settings::RestartGuard;
use muxlock::testing::{Master, Value};
use muxlock::{Builder, LockError, Redlock};

use crate::{PATIENT, soon};

/// The environment variable that names a server which compares and deletes by itself: Redis from
/// 8.4 on, Valkey from 9 on.
pub const DELETING_SERVER_VARIABLE: &str = "MUXLOCK_TEST_SERVER";

/// A client of which every node is ready to vote and owes no answer to a trial after the handshake:
/// connecting itself waits for a quorum only.
#[track_caller]
pub fn all_ready(builder: &Builder) -> Redlock {
    let redlock = builder.connect().unwrap_or_else(|error| panic!("{error}"));
    soon("every node is ready", || {
        let nodes = redlock.nodes();
        nodes.iter().all(|node| node.state == NodeState::Ready && node.in_flight == 0)
    });
    redlock
}

/// How many nodes are ready to vote.
pub fn ready(redlock: &Redlock) -> usize {
    let nodes = redlock.nodes();
    nodes.iter().filter(|node| node.state == NodeState::Ready).count()
}

/// Ends the one connection that a master has, beside the one of its queries. Others may still be
/// about to end.
///
/// # Panics
///
/// Panics if it has another number of connections for long.
#[track_caller]
pub fn end_connection(master: &Master) {
    soon("one client is connected", || {
        let Ok(Value::Bulk(clients)) = master.query(&[b"INFO", b"clients"]) else {
            return false;
        };
        String::from_utf8_lossy(&clients).lines().any(|line| line == "connected_clients:2")
    });
    let killed = master.query(&[b"CLIENT", b"KILL", b"TYPE", b"normal"]);
    assert_eq!(killed.unwrap(), Value::Integer(1));
}

#[track_caller]
pub fn ask(master: &Master, words: &[&str]) -> Value {
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    master.query(&words).unwrap_or_else(|error| panic!("{error}"))
}

/// One line of what a master says of itself.
#[track_caller]
pub fn info(master: &Master, section: &str, field: &str) -> String {
    let Value::Bulk(text) = ask(master, &["INFO", section]) else {
        panic!("INFO is a text");
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{section} has {field}")).to_owned()
}

/// Patient settings: nothing times out within a test, even on a slow machine.
///
/// The restart guard is off: with it, servers that a test has just started would not vote.
pub fn patient<I>(urls: I) -> Builder
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    Redlock::builder()
        .nodes(urls)
        .node_timeout(PATIENT)
        .connect_timeout(PATIENT)
        .restart_guard(RestartGuard::Off)
}

/// The outcome of each node, in the order of configuration.
pub fn outcomes(error: &LockError) -> Vec<NodeOutcome> {
    error.nodes().iter().map(|report| report.outcome).collect()
}

/// How many nodes said this.
pub fn count(error: &LockError, outcome: NodeOutcome) -> usize {
    outcomes(error).into_iter().filter(|said| *said == outcome).count()
}

/// A server that compares and deletes by itself: the one that the environment names, or one on
/// PATH. `None`, with a note that is always shown, if there is none.
///
/// # Panics
///
/// Panics if the one that the environment names is not such a server.
pub fn deleting_server(test: &str) -> Option<OsString> {
    let named = env::var_os(DELETING_SERVER_VARIABLE).filter(|path| !path.is_empty());
    if let Some(path) = named {
        let is_it = deletes_by_itself(&path);
        assert!(is_it, "{DELETING_SERVER_VARIABLE} names {path:?}: not Redis 8.4 or Valkey 9");
        return Some(path);
    }
    let found = ["redis-server", "valkey-server"].map(OsString::from).into_iter();
    let server = found.into_iter().find(|name| deletes_by_itself(name));
    if server.is_none() {
        skip(
            test,
            format_args!(
                "no redis-server from 8.4 on and no valkey-server from 9 on is on PATH, and \
                 {DELETING_SERVER_VARIABLE} names none"
            ),
        );
    }
    server
}

/// A note about a missing feature of the machine or the server. It is seen even if the test's
/// output is not.
pub fn skip(test: &str, reason: impl Display) {
    // Not by a macro, whose output the harness would capture.
    let text = format!("\nSKIPPED: {test}: {reason}\n");
    // It fails if nothing reads it.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Whether a master lets scripts write in spite of `min-replicas-to-write`, as Redis up to 6.2.6
/// and KeyDB do. Then the test is skipped.
///
/// # Panics
///
/// Panics if the master does not answer.
pub fn scripts_write_anyway(master: &Master, test: &str) -> bool {
    let delete = [b"EVAL".as_slice(), b"return redis.call('DEL', 'no such key')", b"0"];
    let reply = master.query(&delete).unwrap_or_else(|error| panic!("{error}"));
    let is_so = reply == Value::Integer(0);
    if is_so {
        skip(test, "this server lets scripts write in spite of min-replicas-to-write");
    }
    is_so
}

/// Whether the servers that tests start are older than this version of Redis, or compatible only
/// with an older one. Then the test is skipped: it needs the feature that `missing` names.
///
/// # Panics
///
/// Panics if there is no server to be had.
pub fn is_older_than(version: [u32; 3], test: &str, missing: &str) -> bool {
    static VERSION: OnceLock<[u32; 3]> = OnceLock::new();
    let ask = || Master::start().and_then(|master| master.version());
    let has = *VERSION.get_or_init(|| ask().unwrap_or_else(|error| panic!("{error}")));
    let is_older = has < version;
    if is_older {
        let [major, minor, patch] = has;
        skip(test, format_args!("{missing}: not in version {major}.{minor}.{patch} of the server"));
    }
    is_older
}

/// Whether this is a server that says so by its make and version.
fn deletes_by_itself(binary: &OsStr) -> bool {
    let Ok(output) = Command::new(binary).arg("--version").output() else {
        return false;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let least = if said.starts_with("Valkey") { (9, 0) } else { (8, 4) };
    let version = said.split_once(" v=").map_or("", |(_, version)| version);
    let mut numbers = version.split(['.', ' ']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= least
}

/// The address of a master with this user and password, `user:password`, with or without TLS.
///
/// # Panics
///
/// Panics if it is no address.
pub fn with_login(url: &str, login: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("an address begins with its scheme");
    format!("{scheme}://{login}@{rest}")
}
