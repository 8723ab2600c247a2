//! The same in wider bounds. How many states there are is asserted: who changes the model sees what
//! that does to them.

use super::protocol::{Crowd, Fault, SlowTimer};
use super::{CRASH, FOUR, NODES, STRANGER, visits};

/// Visits as many states as that, and nobody is stuck.
fn wide(name: &str, model: Crowd, count: usize) {
    assert_eq!(visits(name, model, &[]), (count, 0), "{name}");
}

#[test]
#[ignore = "wider bounds"]
fn wide_waiting_with_slow_timers() {
    let model = Crowd { faults: 2, slow_timer: SlowTimer::On, ..CRASH };
    wide("two crashes, slow timers", model, 2_851_853);
}

#[test]
#[ignore = "wider bounds"]
fn wide_waiting_where_clients_come_back() {
    let three = Crowd { clients: 3, turns: 2, faults: 1, ..FOUR };
    for (fault, count) in
        [(Fault::Pause, 2_920_210), (Fault::Crash, 3_950_591), (Fault::GiveUp, 1_630_705)]
    {
        let model = Crowd { fault, ..three };
        wide(&format!("three clients, twice each, {fault:?}"), model, count);
    }
    wide("three nodes, two clients, twice each", Crowd { turns: 2, ..NODES }, 1_714_843);
}

#[test]
#[ignore = "wider bounds"]
fn wide_waiting_with_a_stray_vote() {
    wide("three nodes, a stray vote, a crash", Crowd { faults: 1, ..STRANGER }, 2_569_762);
    let pause = Crowd { fault: Fault::Pause, faults: 1, ..STRANGER };
    wide("three nodes, a stray vote, a pause", pause, 1_565_020);
}

/// Each client waits until its requests have arrived before it does the next thing.
#[test]
#[ignore = "wider bounds"]
fn wide_waiting_of_three_beside_three_nodes() {
    wide("three nodes, three clients", Crowd { clients: 3, backlog: 0, ..NODES }, 20_479_473);
}
