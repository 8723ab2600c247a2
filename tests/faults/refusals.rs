//! Masters that refuse: out of memory, unable to save, busy, full, impatient, locked; or that hold
//! what is not a lock.

use std::fs;
use std::path::Path;
use std::time::Duration;

use muxlock::error::{ConnectError, ServerErrorKind};
use muxlock::node::{NodeOutcome, NodeState, QuarantineCause, Unfit};
use muxlock::{Builder, LockErrorKind, Redlock};

use crate::scene::{
    First, HEALED_WITHIN, KEY, LONG, LOOK_AGE_MAX, MAX_TTL, all_vote, clean_again,
    clean_again_within, grow_old, guarded, node_soon, owns, pttl, quarantine_of, refused, sets_of,
    start, start_one, start_with, tell, trusting, unavailable, until_vote, urls, works,
};
use crate::wire::Wire;
use muxlock::testing::{Master, Masters, Value};
use testbed::{
    SOON, Stopwatch, ask, count, end_connection, info, is_older_than, outcomes, pause, soon, timed,
    within,
};

fn said(kind: ServerErrorKind) -> NodeOutcome {
    NodeOutcome::Server(kind)
}

// ---- Memory ----

#[test]
fn full_masters_that_evict_nothing_refuse_locks_and_release_them() {
    let masters = start(3);
    let redlock = all_vote(&trusting(masters.urls()));
    let mut lock = redlock.try_lock("before", LONG).unwrap();
    masters.iter().for_each(|master| soon("it has it", || owns(master, &lock, "before")));
    for master in masters.iter().take(2) {
        tell(master, &["CONFIG", "SET", "maxmemory", "1"]);
    }
    for _ in 0..3 {
        let outcome = unavailable(redlock.try_lock(KEY, LONG), 0);
        assert_eq!(outcome, said(ServerErrorKind::OutOfMemory));
    }
    lock.extend(LONG).unwrap();
    assert!(lock.unlock().unwrap().was_held());
    clean_again("a full memory", &masters, 1, || {});
    // A client that comes now learns of it by its attempts, not by the handshake.
    let late = all_vote(&trusting(masters.urls()));
    let outcome = unavailable(late.try_lock(KEY, LONG), 0);
    assert_eq!(outcome, said(ServerErrorKind::OutOfMemory));
    for master in masters.iter().take(2) {
        tell(master, &["CONFIG", "SET", "maxmemory", "0"]);
    }
    works(&redlock);
}

/// The client does nothing else meanwhile.
#[test]
fn refused_release_is_repeated_while_the_client_is_idle() {
    let masters = start(3);
    let redlock = all_vote(&trusting(masters.urls()));
    let lock = redlock.try_lock(KEY, LONG).unwrap();
    masters.iter().for_each(|master| soon("it has it", || owns(master, &lock, KEY)));
    for master in &masters {
        tell(master, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    }
    let error = lock.unlock().unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    for master in &masters {
        assert!(pttl(master, KEY) > 0, "the control: it was refused");
        tell(master, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
    }
    for master in &masters {
        soon("it is released", || pttl(master, KEY) < 0);
    }
}

/// Writes until the key is gone, which has most of its TTL left.
fn crowd_out(master: &Master, key: &str) {
    const FILLERS_MAX: usize = 4_096;
    let filler = "x".repeat(4_096);
    for i in 0..FILLERS_MAX {
        // Without a TTL: what may evict only keys that have one finds the lock.
        match ask(master, &["SET", &format!("filler:{i}"), &filler]) {
            Value::Status(_) | Value::Error(_) => {}
            other => panic!("{other:?}"),
        }
        // Unlike GET, it does not make the key look used.
        let left = pttl(master, key);
        if left == -2 {
            println!("control: a live lock was evicted after {i} other keys");
            return;
        }
        assert!(left > 500_000, "{left}");
    }
    panic!("the control shows nothing: the lock was not evicted");
}

#[test]
fn master_that_evicts_live_locks_is_unfit() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let mut master = start_one(&[]);
        let used: u64 = info(&master, "memory", "used_memory").parse().unwrap();
        let limit = (used + 512 * 1024).to_string();
        let builder = trusting([master.url()]);
        let (holder, second) = (all_vote(&builder), all_vote(&builder));
        let unfit = NodeOutcome::Unfit(Unfit::Evicts);

        // The control: it is looked at when it is connected to, and was fit then.
        let first = First::take(&holder, LONG);
        tell(&master, &["CONFIG", "SET", "maxmemory", &limit]);
        tell(&master, &["CONFIG", "SET", "maxmemory-policy", policy]);
        crowd_out(&master, KEY);
        tell(&master, &["CONFIG", "SET", "maxmemory", "0"]);
        first.is_joined_by(&second);
        tell(&master, &["CONFIG", "SET", "maxmemory", &limit]);

        match builder.connect() {
            Err(ConnectError::Unavailable(error)) => {
                assert_eq!(outcomes(&error), [unfit], "{error}");
                assert!(error.to_string().contains("noeviction"), "{error}");
            }
            other => panic!("{policy}: {other:?}"),
        }
        // Without a limit there is nothing to evict for.
        tell(&master, &["CONFIG", "SET", "maxmemory", "0"]);
        works(&all_vote(&builder));
        master.kill().unwrap();
    }
}

/// A server that was fit when it was connected to, and no longer is.
fn made_a_cache_while_connected(client: impl Fn(Vec<String>) -> Builder) -> (Masters, Redlock) {
    let masters = start(3);
    let redlock = all_vote(&client(masters.urls()));
    works(&redlock);
    for master in &masters {
        tell(master, &["CONFIG", "SET", "maxmemory", "100mb"]);
        tell(master, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    }
    pause(LOOK_AGE_MAX);
    (masters, redlock)
}

#[test]
fn masters_that_may_evict_from_now_on_vote_no_more_for_a_connected_client() {
    let (masters, redlock) = made_a_cache_while_connected(guarded);
    let before = redlock.stats().quarantines;
    let error = refused(redlock.try_lock(KEY, MAX_TTL));
    let unfit = NodeOutcome::Unfit(Unfit::Evicts);
    assert!(count(&error, unfit) >= 2, "{error}");
    assert!(error.to_string().contains("noeviction"), "{error}");
    for master in &masters {
        tell(master, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    }
    until_vote(&redlock, 3);
    works(&redlock);
    assert_eq!(redlock.stats().quarantines, before, "nothing was evicted");
}

#[test]
fn masters_that_may_evict_from_now_on_vote_without_the_guard() {
    // The control: nobody looks at them.
    let (_masters, redlock) = made_a_cache_while_connected(trusting);
    works(&redlock);
}

// ---- Saving ----

/// Makes saves fail, also for root: a folder stands where the file would be put.
fn break_saves(master: &Master) {
    let Value::Array(dir) = ask(master, &["CONFIG", "GET", "dir"]) else {
        panic!("CONFIG GET is a list");
    };
    let Value::Bulk(dir) = &dir[1] else { panic!("a folder is a text") };
    let dir = String::from_utf8_lossy(dir).into_owned();
    fs::create_dir(Path::new(&dir).join("dump.rdb")).unwrap();
    tell(master, &["CONFIG", "SET", "save", "3600 1000000"]);
    assert!(matches!(ask(master, &["BGSAVE"]), Value::Status(_)));
    soon("the save has failed", || info(master, "persistence", "rdb_last_bgsave_status") == "err");
}

#[test]
fn masters_that_cannot_save_refuse_everything_and_are_cleaned_up_once_they_can() {
    let masters = start(3);
    let redlock = all_vote(&trusting(masters.urls()));
    let lock = redlock.try_lock("before", LONG).unwrap();
    masters.iter().for_each(|master| soon("it has it", || owns(master, &lock, "before")));
    masters.iter().take(2).for_each(break_saves);
    let misconfigured = said(ServerErrorKind::Misconfigured);
    for _ in 0..3 {
        assert_eq!(unavailable(redlock.try_lock(KEY, LONG), 0), misconfigured);
    }
    // Section F: it blocks the DEL inside the release, too.
    let error = lock.unlock().unwrap_err();
    assert_eq!(outcomes(&error)[..2], [misconfigured; 2], "{error}");
    assert!(pttl(&masters[0], "before") > 500_000);
    assert!(redlock.nodes()[0].pending_releases > 0);
    for master in masters.iter().take(2) {
        tell(master, &["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    }
    let in_use = || drop(redlock.nodes());
    clean_again("MISCONF", &masters, 1, in_use);
    works(&redlock);
}

// ---- Busy and full ----

#[test]
fn busy_master_refuses_everything_and_is_cleaned_up_once_it_is_not() {
    // The name that it has in all versions.
    let master = start_one(&["--lua-time-limit", "50"]);
    let redlock = all_vote(&trusting([master.url()]));
    let lock = redlock.try_lock("before", LONG).unwrap();
    grow_old(&guarded([master.url()]));
    let mut spinning = Wire::connect(&master.addr()).unwrap();
    assert_eq!(spinning.ask(&["PING"]).unwrap(), "+PONG\r\n");
    spinning.send(&["EVAL", "while true do end", "0"]).unwrap();
    let busy = said(ServerErrorKind::Busy);
    assert_eq!(unavailable(redlock.try_lock(KEY, LONG), 0), busy);
    let error = lock.unlock().unwrap_err();
    assert_eq!(outcomes(&error), [busy], "{error}");
    // A new client must not take BUSY for a server that will not say who it is.
    let late = guarded([master.url()]).build().unwrap();
    assert_eq!(unavailable(late.try_lock("late", MAX_TTL), 0), busy);
    node_soon(&late, 0, "it is told", |node| node.last_failure == Some(busy));

    let mut other = Wire::connect(&master.addr()).unwrap();
    assert_eq!(other.ask(&["SCRIPT", "KILL"]).unwrap(), "+OK\r\n");
    assert!(spinning.reply().unwrap().starts_with(b"-"), "it was killed");
    let in_use = || drop(redlock.nodes());
    clean_again("a spinning script", [&master], 1, in_use);
    works(&redlock);
    works(&late);
    assert_eq!(late.stats().quarantines, 0);
}

#[test]
fn full_master_takes_the_client_back_once_it_has_room() {
    let masters = start(3);
    let redlock = all_vote(&trusting(masters.urls()));
    let lock = redlock.try_lock(KEY, LONG).unwrap();
    masters.iter().for_each(|master| soon("it has it", || owns(master, &lock, KEY)));
    for master in masters.iter().take(2) {
        // The connection that is kept for queries is the one client.
        tell(master, &["CONFIG", "SET", "maxclients", "1"]);
        end_connection(master);
    }
    let full = said(ServerErrorKind::MaxClients);
    for node in 0..2 {
        node_soon(&redlock, node, "it is told", |node| node.last_failure == Some(full));
    }
    assert_eq!(unavailable(redlock.try_lock("other", LONG), 0), full);
    assert!(lock.unlock().unwrap_err().is_unavailable());
    for master in masters.iter().take(2) {
        tell(master, &["CONFIG", "SET", "maxclients", "100"]);
    }
    let in_use = || drop(redlock.nodes());
    clean_again("maxclients", &masters, 1, in_use);
    works(&redlock);
}

#[test]
fn slow_idle_connections_closed_by_the_masters_first_attempt_succeeds() {
    let masters = start_with(3, &["--timeout", "1"]);
    grow_old(&guarded(masters.urls()));
    let redlock = all_vote(&guarded(masters.urls()));
    let clients = |master: &Master| info(master, "clients", "connected_clients");
    for master in &masters {
        within(SOON + SOON, "idle clients are gone", || clients(master) == "1");
    }
    let lock = redlock.try_lock(KEY, MAX_TTL).unwrap_or_else(|error| panic!("{error}"));
    assert!(lock.unlock().unwrap().was_held());
    assert_eq!(redlock.stats().disconnected, 3);
    // They are the same processes: nothing was forgotten.
    soon("all are back", || redlock.nodes().iter().all(|node| node.state == NodeState::Ready));
    assert_eq!(redlock.stats().quarantines, 0);
}

// ---- Passwords and rights ----

/// After so many failures, nobody comes back sooner than half of this, or later than this.
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// At once, then after 10 to 20 ms, doubled each time up to [`BACK_OFF_MAX`]: with the shortest
/// delays, the eleventh connection comes after 2 s.
const CONNECTIONS_IN_TWO_SECONDS_MAX: u64 = 11;

/// A client that keeps trying for two seconds connects a few times only, and says why.
#[track_caller]
fn is_not_tried_in_a_hot_loop(redlock: &Redlock, master: &Master, why: NodeOutcome) {
    let received = || info(master, "stats", "total_connections_received").parse::<u64>().unwrap();
    let (before, watch, mut attempts) = (received(), Stopwatch::start(), 0);
    while watch.elapsed() < Duration::from_secs(2) {
        let outcome = unavailable(redlock.try_lock("other", LONG), 0);
        // The first attempt may find the old connection just gone.
        assert!(outcome == why || attempts == 0, "attempt {attempts}: {outcome:?}");
        attempts += 1;
        pause(Duration::from_millis(1));
    }
    let connections = received() - before;
    println!("measured: {why}: {connections} connections in 2 s, {attempts} attempts");
    assert!((2..=CONNECTIONS_IN_TWO_SECONDS_MAX).contains(&connections), "{connections}");
}

#[test]
fn slow_wrong_password_is_not_tried_in_a_hot_loop() {
    let master = start_one(&["--requirepass", "right"]);
    let redlock = trusting([format!("redis://:wrong@{}", master.addr())]).build().unwrap();
    let auth = said(ServerErrorKind::Auth);
    is_not_tried_in_a_hot_loop(&redlock, &master, auth);
}

#[test]
fn slow_password_changed_while_connected_is_not_tried_in_a_hot_loop_and_back_cleans_up() {
    let master = start_one(&["--requirepass", "right"]);
    let redlock = all_vote(&trusting([format!("redis://:right@{}", master.addr())]));
    let lock = redlock.try_lock(KEY, LONG).unwrap();
    tell(&master, &["CONFIG", "SET", "requirepass", "changed"]);
    end_connection(&master);
    let auth = said(ServerErrorKind::Auth);
    is_not_tried_in_a_hot_loop(&redlock, &master, auth);
    let error = lock.unlock().unwrap_err();
    assert_eq!(outcomes(&error), [auth], "{error}");
    assert!(!format!("{error:?} {redlock:?}").contains("right"), "{error:?}");
    tell(&master, &["CONFIG", "SET", "requirepass", "right"]);
    let in_use = || drop(redlock.nodes());
    let limit = HEALED_WITHIN + BACK_OFF_MAX;
    clean_again_within(limit, "a changed password", [&master], 1, in_use);
    works(&redlock);
}

/// A user with all rights but some, and the address for it.
pub fn user_without(master: &Master, rights: &[&str]) -> String {
    let user = ["ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all"];
    tell(master, &[&user, rights].concat());
    format!("redis://limited:secret@{}", master.addr())
}

#[test]
fn user_without_eval_is_refused_before_the_first_lock() {
    let master = start_one(&[]);
    let url = user_without(&master, &["-eval"]);
    let unfit = NodeOutcome::Unfit(Unfit::NoScripts);
    match guarded([url]).connect() {
        Err(ConnectError::Unavailable(error)) => assert_eq!(outcomes(&error), [unfit], "{error}"),
        other => panic!("{other:?}"),
    }
    // The control: such a user can take a lock, and never give it back.
    let mut wire = Wire::connect(&master.addr()).unwrap();
    assert_eq!(wire.ask(&["AUTH", "limited", "secret"]).unwrap(), "+OK\r\n");
    assert_eq!(wire.ask(&["SET", KEY, "mine", "NX", "PX", "600000"]).unwrap(), "+OK\r\n");
    let script = "return redis.call('DEL', KEYS[1])";
    let reply = wire.ask(&["EVAL", script, "1", KEY]).unwrap();
    assert!(reply.starts_with("-NOPERM"), "{reply}");
    println!("control: taken, and cannot be given back: {}", reply.trim_end());
    assert!(pttl(&master, KEY) > 590_000);
}

#[test]
fn slow_unfit_master_is_not_tried_in_a_hot_loop() {
    let master = start_one(&[]);
    let url = user_without(&master, &["-eval"]);
    let redlock = trusting([url]).build().unwrap();
    let unfit = NodeOutcome::Unfit(Unfit::NoScripts);
    is_not_tried_in_a_hot_loop(&redlock, &master, unfit);
}

#[test]
fn master_with_eval_renamed_is_refused_before_the_first_lock() {
    let masters = [start_one(&["--rename-command", "EVAL", ""]), start_one(&[]), start_one(&[])];
    let redlock = all_fit_vote(&masters);
    let unfit = NodeOutcome::Unfit(Unfit::NoScripts);
    node_soon(&redlock, 0, "it is found out", |node| node.last_failure == Some(unfit));
    let lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [1, 2]);
    drop(lock);
    assert_eq!(sets_of(&masters[0]), 0);
}

fn all_fit_vote(masters: &[Master]) -> Redlock {
    let redlock = guarded(urls(masters)).connect().unwrap_or_else(|error| panic!("{error}"));
    until_vote(&redlock, masters.len() - 1);
    redlock
}

#[test]
fn slow_user_without_info_votes_only_where_the_guard_is_off_or_waits() {
    let short = Duration::from_millis(300);
    let master = start_one(&[]);
    let url = user_without(&master, &["-info"]);
    // Nobody knows whether it was restarted: each connection may be to another process.
    let redlock = guarded([url.clone()]).max_ttl(short).connect().unwrap();
    for connection in 1..=2 {
        node_soon(&redlock, 0, "it is quarantined", |node| node.quarantine.is_some());
        let error = refused(redlock.try_lock(KEY, short));
        assert_eq!(outcomes(&error), [NodeOutcome::Quarantined], "{error}");
        assert!(error.to_string().contains("does not report its run_id"), "{error}");
        let cause = quarantine_of(&redlock, 0).map(|quarantine| quarantine.cause);
        assert_eq!(cause, Some(QuarantineCause::Unidentified));
        soon("it votes", || redlock.nodes()[0].state == NodeState::Ready);
        let mut lock = redlock.try_lock(KEY, short).unwrap();
        lock.extend(short).unwrap();
        drop(lock);
        assert_eq!(redlock.stats().connected, connection);
        end_connection(&master);
    }
    let trusted = all_vote(&trusting([url]));
    works(&trusted);
    assert_eq!(trusted.nodes()[0].server_version, None);
    assert!(trusted.nodes()[0].errors.of(ServerErrorKind::Permission) > 0);
}

/// What a user lacks who is to be told of no flush: Redis 6 knows no rights to subcommands.
pub fn without_notices(test: &str) -> &'static str {
    match is_older_than([7, 0, 0], test, "rights to subcommands") {
        true => "-client",
        false => "-client|tracking",
    }
}

#[test]
fn user_without_notices_is_refused_by_name_of_the_right_or_does_without_them() {
    let masters = start(3);
    let right = without_notices("the right to notices alone");
    let urls: Vec<_> = masters.iter().map(|at| user_without(at, &[right])).collect();
    let unfit = NodeOutcome::Unfit(Unfit::NoNotices);
    match guarded(urls.clone()).connect() {
        Err(ConnectError::Unavailable(error)) => {
            assert!(outcomes(&error).contains(&unfit), "{error}");
            let text = error.to_string();
            for words in ["CLIENT TRACKING", "+client|tracking", "+client)", "?notices=no"] {
                assert!(text.contains(words), "{words:?} is not in: {text}");
            }
        }
        other => panic!("{other:?}"),
    }
    assert!(masters.iter().all(|master| sets_of(master) == 0));
    let redlock = all_vote(&guarded(urls.iter().map(|url| format!("{url}?notices=no"))));
    works(&redlock);
    // Without the guard, nobody needs them.
    works(&all_vote(&trusting(urls)));
    // With the right that the words name, nothing is missing.
    masters.iter().for_each(|master| {
        let granted = right.replacen('-', "+", 1);
        tell(master, &["ACL", "SETUSER", "limited", &granted]);
    });
    works(&all_vote(&guarded(masters.iter().map(|at| user_without(at, &[])))));
}

#[test]
fn user_without_client_and_time_can_lock() {
    let masters = start(3);
    let user = |at| user_without(at, &["-client", "-time"]) + "?notices=no";
    let redlock = all_vote(&guarded(masters.iter().map(user)));
    let mut lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    lock.extend(MAX_TTL).unwrap();
    assert!(lock.unlock().unwrap().was_held());
    for node in redlock.nodes() {
        assert!(node.errors.of(ServerErrorKind::Permission) >= 2, "{node:?}");
        assert!(node.last_message.is_some(), "it is told");
    }
    // It cannot end its old connection; a release is repeated instead.
    masters[0].freeze().unwrap();
    let lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    masters[0].thaw().unwrap();
    end_connection(&masters[0]);
    drop(lock);
    node_soon(&redlock, 0, "nothing is owed", |node| {
        node.state == NodeState::Ready && node.pending_releases + node.in_flight == 0
    });
    assert_eq!(redlock.stats().connections_killed, 0);
    assert!(masters.iter().all(|master| pttl(master, KEY) == -2));
}

// ---- Keys that are not locks ----

#[test]
fn slow_foreign_key_of_any_type_is_held_and_never_deleted() {
    let writes: [&[&str]; 7] = [
        &["SET", KEY, "without a TTL"],
        &["SET", KEY, ""],
        &["HSET", KEY, "field", "value"],
        &["RPUSH", KEY, "value"],
        &["SADD", KEY, "value"],
        &["ZADD", KEY, "1", "value"],
        &["XADD", KEY, "1-1", "field", "value"],
    ];
    let masters = start(3);
    let redlock = all_vote(&guarded(masters.urls()));
    let dump = |master: &Master| ask(master, &["DUMP", KEY]);
    for write in writes {
        masters.iter().for_each(|master| drop(ask(master, write)));
        let before: Vec<_> = masters.iter().map(dump).collect();
        assert!(before.iter().all(|dump| matches!(dump, Value::Bulk(_))), "{write:?}");
        let error = refused(redlock.try_lock_for(KEY, MAX_TTL, SOON / 10));
        assert_eq!(error.kind(), LockErrorKind::Contended, "{write:?}: {error}");
        let known = [NodeOutcome::Held, NodeOutcome::Pending];
        assert!(outcomes(&error).iter().all(|said| known.contains(said)), "{write:?}: {error}");
        assert_eq!(redlock.shutdown(SOON), 0);
        assert_eq!(masters.iter().map(dump).collect::<Vec<_>>(), before, "{write:?}");
        masters.iter().for_each(|master| drop(ask(master, &["DEL", KEY])));
    }
    works(&redlock);
}

#[test]
fn foreign_key_put_in_place_of_a_lock_survives_its_holder() {
    let masters = start(3);
    let redlock = all_vote(&guarded(masters.urls()));
    let mut lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    masters.iter().for_each(|master| soon("it has it", || owns(master, &lock, KEY)));
    for master in &masters {
        assert_eq!(ask(master, &["DEL", KEY]), Value::Integer(1));
        assert_eq!(ask(master, &["RPUSH", KEY, "foreign"]), Value::Integer(1));
    }
    let error = lock.extend(MAX_TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Expired, "{error}");
    let (took, result) = timed(|| lock.unlock());
    assert!(!result.unwrap().was_held());
    assert!(took < SOON, "{took:?}");
    assert_eq!(redlock.shutdown(SOON), 0);
    for master in &masters {
        assert_eq!((pttl(master, KEY), ask(master, &["LLEN", KEY])), (-1, Value::Integer(1)));
    }
}
