//! Masters restarted one after the other, and a lock that is to outlive them all (R29).

use std::time::Duration;

use muxlock::node::NodeState;
use muxlock::settings::Heal;
use muxlock::{LockError, LockErrorKind, LockGuard, Redlock};

use crate::gate::{Gate, Toward};
use crate::scene::{
    KEY, LASTING, MAX_TTL, QUARANTINE, SET, all_vote, clean_again, compare_and_delete,
    ends_by_itself, first_in_time, guarded, in_time, node_soon, owns, start, stays_alone, two_hold,
    until_vote, works,
};
use muxlock::testing::{Master, Masters};
use testbed::{SOON, ask, pause, soon, timed, within};

/// Between two extensions.
const PERIOD: Duration = Duration::from_millis(50);

fn healing(masters: &Masters, heal: Heal) -> Redlock {
    all_vote(&guarded(masters.urls()).heal(heal))
}

/// Restarts each master without its data, and the next one when the last one votes again, and
/// extends the lock meanwhile. If that fails, says how many masters had been restarted.
fn restart_in_turn(
    masters: &mut Masters,
    redlock: &Redlock,
    lock: &mut LockGuard,
) -> Result<(), (usize, LockError)> {
    for node in 0..masters.len() {
        masters[node].restart().unwrap_or_else(|error| panic!("{error}"));
        for (state, limit) in [(NodeState::Quarantined, SOON), (NodeState::Ready, QUARANTINE)] {
            let mut result = Ok(());
            within(limit + SOON, "it comes to vote again", || {
                result = lock.extend(MAX_TTL);
                pause(PERIOD);
                result.is_err() || redlock.nodes()[node].state == state
            });
            result.map_err(|error| (node + 1, error))?;
        }
    }
    Ok(())
}

fn are_empty(masters: &Masters) -> bool {
    masters.iter().all(|master| master.dbsize().expect("the master answers") == 0)
}

#[test]
fn slow_all_masters_restarted_empty_in_turn_the_lock_survives() {
    let mut masters = start(5);
    let redlock = healing(&masters, Heal::On);
    let second = healing(&masters, Heal::On);
    let mut lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    let (took, result) = timed(|| restart_in_turn(&mut masters, &redlock, &mut lock));
    result.unwrap_or_else(|(count, error)| panic!("lost after {count} restarts: {error}"));
    println!("measured: held through five restarts in {took:?}");

    assert!(lock.is_valid());
    lock.extend(MAX_TTL).unwrap();
    masters.iter().for_each(|master| soon("it has it again", || owns(master, &lock, KEY)));
    assert!(redlock.stats().healed >= 5);
    until_vote(&second, 5);
    assert!(second.try_lock(KEY, MAX_TTL).is_err_and(|error| error.is_contended()));
    assert!(lock.unlock().unwrap().was_held());
    soon("no key is left anywhere", || are_empty(&masters));
    works(&second);
}

#[test]
fn slow_all_masters_restarted_empty_in_turn_without_healing_the_lock_is_lost() {
    let mut masters = start(5);
    let redlock = healing(&masters, Heal::Off);
    let mut lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    let (count, error) = restart_in_turn(&mut masters, &redlock, &mut lock).unwrap_err();
    println!("control: lost after {count} restarts");
    assert_eq!(count, 3, "a majority has forgotten it: {error}");
    assert_ne!(error.kind(), LockErrorKind::Contended, "{error}");
    within(MAX_TTL + SOON, "it is over", || lock.extend(MAX_TTL).is_err() && !lock.is_valid());
}

/// A master that was down when the lock was taken, and is there when it is extended.
fn extended_with_one_more(heal: Heal) -> (Masters, Redlock, LockGuard) {
    let mut masters = start(3);
    let redlock = healing(&masters, heal);
    masters[2].kill().unwrap();
    let mut lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    masters[2].restart().unwrap();
    within(SOON, "it is back", || {
        lock.extend(MAX_TTL).unwrap();
        redlock.nodes()[2].state == NodeState::Quarantined
    });
    lock.extend(MAX_TTL).unwrap();
    (masters, redlock, lock)
}

#[test]
fn slow_master_that_was_down_has_the_lock_when_it_is_extended_and_is_released() {
    let (masters, _redlock, lock) = extended_with_one_more(Heal::On);
    soon("it has it", || owns(&masters[2], &lock, KEY));
    assert!(lock.unlock().unwrap().was_held());
    soon("no key is left anywhere", || are_empty(&masters));
}

#[test]
fn slow_master_that_was_down_has_no_lock_without_healing() {
    let (masters, _redlock, lock) = extended_with_one_more(Heal::Off);
    let is_asked = |master: &Master| master.command_calls("eval").expect("it answers") >= 2;
    // The first is the handshake's.
    soon("it was asked", || is_asked(&masters[2]));
    assert!(!owns(&masters[2], &lock, KEY));
    assert!(owns(&masters[0], &lock, KEY));
}

/// The extension waits in the frozen server's buffers, longer than its connection is kept.
#[test]
fn slow_frozen_master_that_would_set_the_key_after_its_release_is_cleaned_up() {
    let masters = start(3);
    let redlock = healing(&masters, Heal::On);
    let mut lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    soon("it has it", || owns(&masters[2], &lock, KEY));
    ask(&masters[2], &["DEL", KEY]);
    masters[2].freeze().unwrap();
    within(Duration::from_secs(15), "its connection is given up", || {
        lock.extend(MAX_TTL).unwrap();
        pause(PERIOD);
        redlock.nodes()[2].state != NodeState::Ready
    });
    lock.extend(MAX_TTL).unwrap();
    assert!(lock.unlock().unwrap().was_held());
    masters[2].thaw().unwrap();
    let in_use = || drop(redlock.nodes());
    // Sooner than the key would expire.
    clean_again("an extension of a frozen master", &masters, 0, in_use);
    soon("its old connection is ended", || {
        redlock.stats().connections_killed > 0 && redlock.nodes()[2].pending_releases == 0
    });
    assert!(are_empty(&masters));
}

/// How the end of an old connection begins.
const KILL: &[u8] = b"*4\r\n$6\r\nCLIENT\r\n$4\r\nKILL\r\n";

/// A lock that masters 1 and 2 extended; what master 0 holds ends with its TTL. What was sent to
/// master 2 on the connection before the last is still on its way.
struct Healed {
    second: Redlock,
    lock: LockGuard,
    ways: [Gate; 2],
    masters: Masters,
}

/// The SET to master 2 is lost with its connection, and what follows is lost with the next one. On
/// the third one, master 2 is healed. `None` if the lock was over before.
fn healed_on_the_third_connection(ttl: Duration) -> Option<Healed> {
    let masters = start(3);
    let ways = [&masters[0], &masters[2]].map(Gate::start);
    let [first, third] = [0, 1].map(|way: usize| ways[way].url());
    let urls = masters.urls();
    let client = |urls: Vec<String>| all_vote(&guarded(urls).max_ttl(LASTING).heal(Heal::On));
    let redlock = client(vec![first, urls[1].clone(), third]);
    let second = client(urls);

    let [_, way] = &ways;
    way.hold(0, Toward::Master, SET);
    way.hold(1, Toward::Master, KILL);
    let mut lock = in_time(redlock.try_lock(KEY, ttl))?;
    soon("the SET is on its way", || way.is_holding(0, SET));
    way.cut(0);
    node_soon(&redlock, 2, "so is what follows it", |_| way.is_holding(1, KILL));
    way.cut(1);
    node_soon(&redlock, 2, "the third one stands", |node| {
        let is_quiet =
            node.state == NodeState::Ready && node.pending_releases + node.in_flight == 0;
        is_quiet && way.accepted() == 3 && way.has_ended(0)
    });
    ways[0].shut();
    if let Err(error) = lock.extend(LASTING) {
        assert!(!lock.is_valid(), "{error}");
        return None;
    }
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(redlock.stats().healed, 1);
    Some(Healed { second, lock, ways, masters })
}

#[test]
fn slow_what_was_lost_with_a_second_connection_deletes_nothing_that_was_healed() {
    let healed = first_in_time(healed_on_the_third_connection);
    let Healed { second, lock, ways, masters } = healed;
    ways[1].arrive_to_the_end(1);
    ends_by_itself(&masters[0]);
    stays_alone(&lock, &second);
    assert!(owns(&masters[1], &lock, KEY) && owns(&masters[2], &lock, KEY));
    assert!(lock.unlock().unwrap().was_held());
    works(&second);
    soon("no key is left anywhere", || are_empty(&masters));
}

#[test]
fn slow_release_lost_with_a_second_connection_lets_a_second_holder_in() {
    // The control: what must not have been sent on it arrives, by hand.
    let Healed { second, lock, masters, .. } = first_in_time(healed_on_the_third_connection);
    assert!(compare_and_delete(&masters[2], &lock), "the control shows nothing");
    ends_by_itself(&masters[0]);
    two_hold(&lock, &second);
}
