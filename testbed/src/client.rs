//! Clients as tests make them, what their errors say, and which server they may be tried on.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::Command;

use muxlock::{Builder, LockError, NodeOutcome, NodeState, Redlock, RestartGuard};

use crate::{PATIENT, soon};

/// The environment variable that names a server which compares and deletes by itself: Redis from
/// 8.4 on, Valkey from 9 on.
pub const DELETING_SERVER_VARIABLE: &str = "MUXLOCK_TEST_SERVER";

/// A client of which every node is ready to vote and owes no answer, as to what is tried out after
/// the handshake: connecting itself waits for a quorum only.
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

/// Patient settings: whatever is slow, nothing times out within a test.
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

/// What each node said, in the order of configuration.
pub fn outcomes(error: &LockError) -> Vec<NodeOutcome> {
    error.nodes().iter().map(|report| report.outcome).collect()
}

/// How many nodes said this.
pub fn count(error: &LockError, outcome: NodeOutcome) -> usize {
    outcomes(error).into_iter().filter(|said| *said == outcome).count()
}

/// A server that compares and deletes by itself: the one that the environment names, or one on
/// PATH. `None`, said where nobody can miss it, if there is none.
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
        // Not by a macro, of which the harness would keep to itself what it prints.
        let text = format!(
            "SKIPPED {test}: no redis-server from 8.4 on and no valkey-server from 9 on is on \
             PATH, and {DELETING_SERVER_VARIABLE} names none\n"
        );
        std::io::stderr().write_all(text.as_bytes()).expect("somebody may read it");
    }
    server
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
