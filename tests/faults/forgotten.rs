//! A gateway in front of the masters forgets its connections without a reset. New ones work.

use std::time::Duration;

use muxlock::testing::Masters;
use testbed::{soon, within};

use crate::gate::{Gate, Toward};
use crate::scene::{KEY, all_vote, hasty, start, tell};

/// Shorter than a silent connection is kept.
const TTL: Duration = Duration::from_secs(4);

fn gates(masters: &Masters) -> Vec<Gate> {
    masters.iter().map(Gate::start).collect()
}

fn forget(gates: &[Gate]) {
    for gate in gates {
        for connection in 0..gate.accepted() {
            for toward in [Toward::Master, Toward::Client] {
                gate.hold(connection, toward, b"");
            }
        }
    }
}

#[test]
fn forgotten_connections_are_replaced_before_a_lock_on_them_ends() {
    let masters = start(3);
    let gates = gates(&masters);
    let redlock = all_vote(&hasty(gates.iter().map(Gate::url)));
    let mut lock = redlock.try_lock(KEY, TTL).unwrap();
    forget(&gates);
    within(TTL / 2, "the lock is extended on new connections", || lock.extend(TTL).is_ok());
    assert!(lock.remaining() > Duration::ZERO);
    assert!(lock.unlock().unwrap().was_held());
    assert!(gates.iter().filter(|gate| gate.accepted() >= 2).count() >= 2);
}

#[test]
fn forgotten_connections_delay_the_next_lock_by_a_few_node_timeouts() {
    let masters = start(3);
    let gates = gates(&masters);
    let redlock = all_vote(&hasty(gates.iter().map(Gate::url)));
    forget(&gates);
    within(Duration::from_secs(3), "a lock is acquired", || redlock.try_lock(KEY, TTL).is_ok());
}

/// The control: servers that are stopped answer nowhere, and keep their connections.
#[test]
fn silent_connections_of_stopped_masters_are_kept() {
    let masters = start(3);
    let redlock = all_vote(&hasty(masters.urls()));
    masters.iter().for_each(|master| master.freeze().unwrap());
    for _ in 0..8 {
        assert!(redlock.try_lock(KEY, TTL).is_err());
    }
    let before = redlock.stats().disconnected;
    masters.iter().for_each(|master| master.thaw().unwrap());
    soon("a lock is acquired", || redlock.try_lock(KEY, TTL).is_ok());
    assert_eq!(redlock.stats().disconnected, before);
    assert_eq!(before, 0);
}

/// An answer that refuses every new connection says nothing against the old one.
#[test]
fn silent_connections_are_kept_while_their_masters_refuse_others() {
    let masters = start(3);
    let gates = gates(&masters);
    let redlock = all_vote(&hasty(gates.iter().map(Gate::url)));
    let before = redlock.stats();
    masters.iter().for_each(|master| tell(master, &["CONFIG", "SET", "maxclients", "1"]));
    forget(&gates);
    for _ in 0..8 {
        assert!(redlock.try_lock(KEY, TTL).is_err());
    }
    let asked = gates.iter().filter(|gate| gate.accepted() >= 2).count();
    assert!(asked >= 2, "second connections were tried");
    assert_eq!(redlock.stats().disconnected, before.disconnected);
}

/// R5: what was asked in an earlier silence says nothing about this one. The second connection is
/// replaced, although it may still answer.
#[test]
fn second_connection_of_an_earlier_silence_is_replaced() {
    const PING: &[u8] = b"*1\r\n$4\r\nPING";
    let masters = start(1);
    let gate = Gate::start(&masters[0]);
    let redlock = all_vote(&hasty([gate.url()]));
    let before = redlock.stats().disconnected;
    let fall_silent = |asked| {
        gate.hold(asked, Toward::Master, PING);
        gate.hold(0, Toward::Master, b"");
        soon("the silence is doubted", || {
            assert!(redlock.try_lock(KEY, TTL).is_err());
            gate.is_holding(asked, PING)
        });
    };
    fall_silent(1);
    gate.arrive(0);
    soon("it has spoken", || redlock.nodes()[0].in_flight == 0);
    fall_silent(2);
    assert_eq!(redlock.stats().disconnected, before);
    gate.arrive(2);
    soon("the silent connection is lost", || redlock.try_lock(KEY, TTL).is_ok());
    assert_eq!(redlock.stats().disconnected, before + 1);
}
