//! Servers that do what TLS allows and `redis-server` does not do.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use mio::{Events, Poll, Token};
use muxlock::error::ProtocolError;
use muxlock::node::{NodeOutcome, NodeState};
use muxlock::testing::Master;
use muxlock::{Multiplexer, Redlock};
use testbed::{Authority, all_ready, patient, soon, waited};

use crate::front::{Habit, front};
use crate::masters::locks_and_unlocks;

/// A client of a master behind a server with this habit.
fn behind(habit: Habit) -> (Authority, Master, muxlock::Builder) {
    let authority = Authority::new();
    let master = Master::start().unwrap_or_else(|error| panic!("{error}"));
    let plain = SocketAddr::from(([127, 0, 0, 1], master.port()));
    let addr = front(&authority.sign(&["127.0.0.1"]), plain, habit);
    let builder = patient([format!("rediss://{addr}?ca={}", authority.ca().display())]);
    (authority, master, builder)
}

#[test]
fn keys_that_change_all_the_time_are_followed() {
    let (_authority, _master, builder) = behind(Habit::NewKeys);
    let redlock = all_ready(&builder);
    locks_and_unlocks(&redlock);
    assert_eq!(redlock.nodes()[0].last_failure, None);
}

#[test]
fn replies_in_records_of_one_byte_are_put_together() {
    let (_authority, _master, builder) = behind(Habit::TinyRecords);
    let redlock = all_ready(&builder);
    locks_and_unlocks(&redlock);
    assert_eq!(redlock.nodes()[0].last_failure, None);
}

fn last_failure(redlock: &Redlock) -> Option<NodeOutcome> {
    redlock.nodes()[0].last_failure
}

/// The poll does not report that: the socket stays open.
#[test]
fn server_that_says_goodbye_is_left_at_once() {
    let (_authority, _master, builder) = behind(Habit::SaysGoodbye(1));
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(8);
    let config = builder.config().unwrap();
    let mut mux = Multiplexer::new(config, poll.registry(), Token(0)).unwrap();
    mux.connect();
    let ended = Some(NodeOutcome::Disconnected(ErrorKind::UnexpectedEof));
    soon("the client leaves it, without a command", || {
        let turn = Duration::from_millis(20);
        let timeout = mux.next_timeout().map_or(turn, |timeout| timeout.min(turn));
        waited(poll.poll(&mut events, Some(timeout)));
        mux.handle_events(&events);
        mux.nodes().next().unwrap().last_failure == ended
    });
}

/// R17: what came before the first command is the answer to none.
#[test]
fn reply_that_comes_with_the_handshake_ends_the_connection() {
    let (_authority, master, builder) = behind(Habit::SpeaksFirst);
    let redlock = builder.build().unwrap();
    let surplus = Some(NodeOutcome::Protocol(ProtocolError::Surplus));
    soon("it is refused", || {
        let _ = redlock.try_lock_for("any", testbed::TTL, Duration::from_millis(20));
        assert_ne!(redlock.nodes()[0].state, NodeState::Ready);
        last_failure(&redlock).is_some()
    });
    // It may have come with the greeting's first answers: then these are of the wrong kind.
    let unexpected = Some(NodeOutcome::Protocol(ProtocolError::Unexpected));
    assert!([surplus, unexpected].contains(&last_failure(&redlock)));
    assert_eq!(master.command_calls("set").unwrap(), 0);
}
