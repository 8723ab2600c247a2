//! The library over real servers that compare and delete by themselves: Redis from 8.4 on, Valkey
//! from 9 on. Without one, named by `MUXLOCK_TEST_SERVER` or on PATH, every test is skipped.

use std::time::Duration;

use muxlock::Redlock;
use muxlock::error::ServerErrorKind;
use muxlock::node::{NodeOutcome, ReleaseWith};
use muxlock::settings::RestartGuard;
use muxlock::testing::{Master, Value};
use testbed::{SOON, TTL, all_ready, deleting_server, outcomes, patient, soon};

const KEY: &str = "invoice:42";
/// The rights that a lock needs, the script included.
const RIGHTS: &str = "on nopass ~* +select +client +info +time +set +eval +get +del +pexpire +pttl";

/// So many masters of the make that the test is about; `None` if there is none to be had.
fn start(test: &str, count: usize) -> Option<Vec<Master>> {
    let server = deleting_server(test)?;
    let start = || Master::start_other(&server, &[]).unwrap_or_else(|error| panic!("{error}"));
    Some((0..count).map(|_| start()).collect())
}

fn urls(masters: &[Master]) -> impl Iterator<Item = String> {
    masters.iter().map(Master::url)
}

fn ask(master: &Master, words: &[&str]) -> Value {
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    master.query(&words).expect("the master answers")
}

#[track_caller]
fn tell(master: &Master, words: &[&str]) {
    assert_eq!(ask(master, words), Value::Status("OK".into()), "{words:?}");
}

fn calls(master: &Master, command: &str) -> u64 {
    master.command_calls(command).expect("the master answers")
}

fn way(redlock: &Redlock) -> ReleaseWith {
    redlock.nodes()[0].release_with
}

/// What this make has.
fn own_command(redlock: &Redlock) -> &'static str {
    match way(redlock) {
        ReleaseWith::Delex => "delex",
        ReleaseWith::Delifeq => "delifeq",
        other => panic!("it compares and deletes by itself, and yet: {other:?}"),
    }
}

/// R19: it deletes the key, and the script is run no more than in the handshake.
#[test]
fn lock_is_deleted_by_the_servers_own_command() {
    let Some(masters) = start("lock_is_deleted_by_the_servers_own_command", 3) else { return };
    let redlock = all_ready(&patient(urls(&masters)));
    let command = own_command(&redlock);
    for round in 0..20 {
        let mut lock = redlock.try_lock(KEY, TTL).unwrap();
        if round == 7 {
            lock.extend(TTL).unwrap();
        }
        let released = lock.unlock().unwrap();
        assert!(released.was_held() && released.confirmed >= 2, "{released:?}");
    }
    for master in &masters {
        soon("the key is gone", || master.pttl(KEY.as_bytes()).unwrap() == -2);
        // One was the trial after the handshake.
        assert_eq!(calls(master, command), 21);
        assert_eq!(calls(master, "eval"), 2, "the handshake's, and the extension");
    }
}

/// R10: it deletes what holds the token, and nothing else.
#[test]
fn anothers_lock_is_not_deleted() {
    let Some(masters) = start("anothers_lock_is_not_deleted", 3) else { return };
    let redlock = all_ready(&patient(urls(&masters)));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    tell(&masters[0], &["SET", KEY, "stranger", "PX", "60000"]);
    assert_eq!(ask(&masters[1], &["DEL", KEY]), Value::Integer(1));
    assert_eq!(ask(&masters[1], &["HSET", KEY, "field", "value"]), Value::Integer(1));
    let released = lock.unlock().unwrap();
    assert!(released.confirmed <= 1 && released.absent >= 1, "{released:?}");
    soon("all have answered", || redlock.nodes().iter().all(|node| node.in_flight == 0));
    let stranger = masters[0].value_of(KEY.as_bytes()).unwrap();
    assert_eq!(stranger.as_deref(), Some(b"stranger".as_slice()));
    assert_eq!(ask(&masters[1], &["HLEN", KEY]), Value::Integer(1));
    assert_eq!(masters[2].pttl(KEY.as_bytes()).unwrap(), -2);
    // A key of another type is none of ours: nothing is owed.
    assert!(redlock.nodes().iter().all(|node| node.pending_releases == 0));

    let error = redlock.try_lock(KEY, TTL).unwrap_err();
    assert!(error.is_contended(), "{error}");
    soon("the loser leaves nothing", || masters[2].pttl(KEY.as_bytes()).unwrap() == -2);
}

/// R19: the command may not be run; the script may.
#[test]
fn user_who_may_not_run_it_releases_with_the_script() {
    let Some(masters) = start("user_who_may_not_run_it_releases_with_the_script", 1) else {
        return;
    };
    for rights in ["+command", ""] {
        let mut words = vec!["ACL", "SETUSER", "locker", "reset"];
        words.extend(RIGHTS.split(' ').chain((!rights.is_empty()).then_some(rights)));
        tell(&masters[0], &words);
        let url = format!("redis://locker:any@{}", masters[0].addr());
        let redlock = all_ready(&patient([url]));
        assert_eq!(way(&redlock), ReleaseWith::Script);
        assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
        assert_eq!(masters[0].pttl(KEY.as_bytes()).unwrap(), -2);
    }
}

/// R12, R19: the command is forbidden when it is in use already; what it refused is released with
/// the script.
#[test]
fn command_that_is_forbidden_meanwhile_is_followed_by_the_script() {
    let Some(masters) = start("command_that_is_forbidden_meanwhile", 1) else { return };
    let redlock = all_ready(&patient(urls(&masters)));
    let command = own_command(&redlock);
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    tell(&masters[0], &["ACL", "SETUSER", "default", &format!("-{command}")]);
    let error = lock.unlock().unwrap_err();
    assert_eq!(outcomes(&error), [NodeOutcome::Server(ServerErrorKind::Permission)], "{error}");
    assert_eq!(way(&redlock), ReleaseWith::Script);
    soon("the key is deleted", || {
        redlock.nodes();
        masters[0].pttl(KEY.as_bytes()).unwrap() == -2
    });
    soon("nothing is owed any more", || redlock.nodes()[0].pending_releases == 0);
    assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
}

/// One release goes to servers of two kinds.
#[test]
fn servers_of_different_makes_share_a_lock() {
    let Some(mut masters) = start("servers_of_different_makes_share_a_lock", 2) else { return };
    masters.push(Master::start().unwrap_or_else(|error| panic!("{error}")));
    let redlock = all_ready(&patient(urls(&masters)));
    for _ in 0..10 {
        let lock = redlock.try_lock_for(KEY, TTL, SOON).unwrap();
        assert!(lock.unlock().unwrap().was_held());
    }
    for master in &masters {
        soon("the key is gone", || master.pttl(KEY.as_bytes()).unwrap() == -2);
    }
    let command = own_command(&redlock);
    assert!(masters[..2].iter().all(|master| calls(master, command) == 11));
}

/// A restarted server is another one: it is asked anew what it has.
#[test]
fn restarted_server_is_tried_out_again() {
    let Some(mut masters) = start("restarted_server_is_tried_out_again", 1) else { return };
    let builder = Redlock::builder().nodes(urls(&masters)).restart_guard(RestartGuard::Off);
    let redlock = all_ready(&builder.node_timeout(Duration::from_secs(1)));
    let before = way(&redlock);
    masters[0].restart().unwrap();
    drop(redlock.try_lock_for(KEY, TTL, SOON).unwrap());
    soon("it is tried out", || way(&redlock) == before);
    assert!(redlock.try_lock_for(KEY, TTL, SOON).unwrap().unlock().unwrap().was_held());
}
