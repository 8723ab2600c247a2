//! Who holds a resource, asked of real masters and of fake ones.

use std::time::Duration;

use muxlock::node::NodeOutcome;
use muxlock::settings::RestartGuard;
use muxlock::testing::{FakeMasters, Masters, Value};
use muxlock::{LockErrorKind, Redlock};
use testbed::{TTL, all_ready, documented_rights, patient, soon, timed, with_login};

const PREFIX: &str = "locks:";
const NODE_TIMEOUT: Duration = Duration::from_millis(400);

fn client(urls: Vec<String>) -> Redlock {
    let builder = patient(urls).restart_guard(RestartGuard::Off).node_timeout(NODE_TIMEOUT);
    all_ready(&builder.key_prefix(PREFIX))
}

/// Runs a command on each master.
type Run<'a> = &'a dyn Fn(usize, &[&[u8]]) -> Value;

/// What real masters and fake ones answer alike.
fn holders_are_told(redlock: &Redlock, run: Run<'_>) {
    let free = redlock.inspect("report").unwrap();
    assert!(free.holder().is_none() && free.free_in() == Some(Duration::ZERO));
    assert!(free.to_string().starts_with("free (node 0 127.0.0.1:"), "{free}");

    let lock = redlock.try_lock("report", TTL).unwrap();
    assert_eq!(redlock.shutdown(TTL), 0, "all three have it");
    let held = redlock.inspect("report").unwrap();
    assert_eq!(held.holder(), Some(lock.token().fingerprint()));
    let free_in = held.free_in().unwrap();
    assert!(free_in <= TTL && free_in > TTL / 2, "{free_in:?}");
    assert!(held.nodes().iter().all(|node| node.holding.is_some()), "{held}");
    let (token, shown) = (lock.token().as_bytes(), format!("{held} {held:?}"));
    let secret = std::str::from_utf8(&token[8..]).unwrap();
    assert!(!shown.contains(secret) && !shown.contains(&secret[..8]), "{shown}");
    assert!(lock.unlock().unwrap().was_held(), "nothing was changed");

    // Values of other clients: at most a third of them is shown.
    for node in 0..3 {
        run(node, &[b"SET", b"locks:other", b"0123456789abcdef01234567"]);
        run(node, &[b"SET", b"locks:short", b"ab", b"PX", b"20000"]);
    }
    let other = redlock.inspect("other").unwrap();
    assert_eq!(other.holder().unwrap().as_bytes(), b"01234567");
    assert!(other.free_in().is_none(), "it never expires");
    assert!(other.to_string().contains("held by 01234567, without a TTL"), "{other}");
    let short = redlock.inspect("short").unwrap().holder().unwrap();
    assert!(short.as_bytes().len() == 8 && short.as_bytes() != b"ab", "{short}");
    for node in 0..3 {
        let value = format!("worker-{node}");
        run(node, &[b"SET", b"locks:workers", value.as_bytes(), b"PX", b"20000"]);
    }
    assert!(redlock.inspect("workers").unwrap().holder().is_none(), "each is another");
    assert_eq!(
        run(0, &[b"GET", b"locks:other"]),
        Value::Bulk(b"0123456789abcdef01234567".to_vec())
    );

    // Left behind on a minority.
    run(2, &[b"SET", b"locks:left", b"0123456789abcdef01234567", b"PX", b"20000"]);
    let left = redlock.inspect("left").unwrap();
    assert!(left.holder().is_none() && left.free_in() == Some(Duration::ZERO));
    let text = "no holder has a quorum; 1 of 3 nodes have a key (";
    assert!(left.to_string().starts_with(text), "{left}");

    let error = redlock.inspect("").unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::InvalidResource { bytes: 0 });
    redlock.close();
    assert!(redlock.inspect("other").is_ok(), "it takes no lock");
}

#[test]
fn real_masters_tell_who_holds_a_lock() {
    let masters = Masters::start(3).unwrap();
    let redlock = client(masters.urls());
    holders_are_told(&redlock, &|node, args| masters[node].query(args).unwrap());

    masters[0].query(&[b"LPUSH", b"locks:list", b"x"]).unwrap();
    masters[1].freeze().unwrap();
    let (took, list) = timed(|| redlock.inspect("list").unwrap());
    assert!(took >= NODE_TIMEOUT, "it waits for each: {took:?}");
    let outcomes: Vec<_> = list.nodes().iter().map(|node| node.outcome).collect();
    assert_eq!((outcomes[0], outcomes[2]), (NodeOutcome::Held, NodeOutcome::Absent));
    assert!(outcomes[1].is_failure() && list.free_in().is_none(), "{list}");
    assert!(list.to_string().contains("the key has a value of another type"), "{list}");
    masters[1].thaw().unwrap();
}

#[test]
fn fake_masters_tell_who_holds_a_lock() {
    let masters = FakeMasters::start(3).unwrap();
    let redlock = client(masters.urls());
    holders_are_told(&redlock, &|node, args| masters[node].query(args));
}

/// The user of docs/masters.md that may only look is told who holds a lock, denied nothing that
/// it needs, and refused every lock, with the command's name.
#[test]
fn user_that_may_only_look_is_told_who_holds_a_lock() {
    let rights = documented_rights("viewer", "Two users for people");
    let masters = Masters::start(3).unwrap();
    for master in masters.iter() {
        let words = ["ACL", "SETUSER", "looker", "on", ">sesame", "~locks:*"];
        let words = words.into_iter().chain(rights.iter().map(String::as_str)).map(str::as_bytes);
        master.query(&words.collect::<Vec<_>>()).unwrap();
    }
    let locks = client(masters.urls());
    let lock = locks.try_lock("report", TTL).unwrap();
    assert_eq!(locks.shutdown(TTL), 0, "all three have it");
    let login = |url: String| with_login(&url, "looker:sesame");
    let urls: Vec<String> = masters.urls().into_iter().map(login).collect();

    let builder = patient(urls.clone()).restart_guard(RestartGuard::Off);
    let looker = builder.node_timeout(NODE_TIMEOUT).key_prefix(PREFIX).build().unwrap();
    for _ in 0..3 {
        let held = looker.inspect("report").unwrap();
        assert_eq!(held.holder(), Some(lock.token().fingerprint()), "{held}");
        assert!(held.nodes().iter().all(|node| node.holding.is_some()), "{held}");
    }
    let error = looker.try_lock("other", TTL).unwrap_err().to_string();
    assert!(error.contains("DEL is renamed or forbidden"), "{error}");
    // The refused lock has ended the connections: the next ones come after the back-off.
    let is_told = || looker.inspect("report").unwrap().holder() == Some(lock.token().fingerprint());
    soon("the holder is told", is_told);
    assert_eq!(masters[0].dbsize().unwrap(), 1, "nothing of the refused lock");
}
