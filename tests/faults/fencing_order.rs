//! The order of fencing tokens while masters forget, and while their clocks lie.

use std::env;
use std::time::Duration;

use muxlock::settings::RestartGuard;
use muxlock::testing::Value;
use muxlock::{Builder, LockErrorKind};
use testbed::{
    Clocks, PATIENT, Stopwatch, all_ready, ask, heavy, info, patient, ready, skip, within,
};

use crate::fencing_load::{Load, TTL, Taken, assert_in_order, disorder};
use crate::scene::{quarantine_of, start, until_vote};

/// How often each master is killed.
const ROUNDS_VARIABLE: &str = "MUXLOCK_FENCING_ROUNDS";
const CLIENTS: usize = 8;
const RESOURCES: usize = 3;
/// Longer than a second, so that the guard implies the order.
const MAX_TTL: Duration = Duration::from_secs(2);
const HOUR: i64 = 60 * 60;
const YEAR: i64 = 365 * 24 * HOUR;

fn guarded(urls: impl IntoIterator<Item = String>) -> Builder {
    let builder = patient(urls).restart_guard(RestartGuard::Uptime);
    builder.max_ttl(MAX_TTL).node_timeout(Duration::from_millis(100))
}

#[test]
fn slow_alone_numbers_are_unique_and_in_order_while_masters_forget() {
    let _alone = heavy();
    let rounds = env::var(ROUNDS_VARIABLE).map_or(1, |rounds| rounds.parse().expect("a number"));
    let mut masters = start(3);
    let load = Load::new(&guarded(masters.urls()), CLIENTS, RESOURCES);
    let watch = Stopwatch::start();
    let all = load.run(|| {
        for node in (0..rounds).flat_map(|_| 0..2) {
            masters[node].kill().unwrap();
            masters[node].restart().unwrap();
            let run_id = info(&masters[node], "server", "run_id");
            within(PATIENT, "it votes for all clients again", || {
                load.clients().iter().all(|client| {
                    let is_it = client.nodes()[node].run_id.as_deref() == Some(&run_id);
                    is_it && ready(client) == 3 && quarantine_of(client, node).is_none()
                })
            });
        }
    });
    let (_, raised) = load.counted();
    println!("{} fenced locks in {:?}, {raised} raises", all.len(), watch.elapsed());
    assert_in_order(&all);
}

/// What the guard and the clocks do for the order, nothing does instead: it breaks, and is seen.
#[test]
fn without_counters_and_clocks_the_order_breaks() {
    let test = "without_counters_and_clocks_the_order_breaks";
    let clocks = match Clocks::start(3) {
        Ok(clocks) => clocks,
        Err(reason) => return skip(test, reason),
    };
    let take = |watch| {
        let redlock = all_ready(&guarded(clocks.urls()).restart_guard(RestartGuard::Off));
        Taken::once(&redlock.fenced(), watch)
    };
    let watch = Stopwatch::start();
    let mut all = vec![take(watch), take(watch)];
    assert!(disorder(&all).is_none(), "{all:?}");
    for (node, master) in clocks.masters.iter().enumerate() {
        clocks.set(node, -10);
        ask(master, &["DEL", "muxlock:fence"]);
    }
    all.push(take(watch));
    assert!(disorder(&all).is_some(), "{all:?}");
}

/// T1 needs no clock. A minority of mad clocks costs keys too early or too late, never the order.
#[test]
fn slow_alone_clocks_that_jump_change_no_order() {
    let _alone = heavy();
    let clocks = match Clocks::start(5) {
        Ok(clocks) => clocks,
        Err(reason) => return skip("slow_alone_clocks_that_jump_change_no_order", reason),
    };
    let load = Load::new(&guarded(clocks.urls()).restart_guard(RestartGuard::Off), 4, RESOURCES);
    let all = load.run(|| {
        for (node, seconds) in [(0, HOUR), (1, -HOUR), (2, 75 * YEAR)] {
            load.goes_on("before the clock jumps", 50);
            clocks.set(node, seconds);
            load.goes_on("while the clock is wrong", 200);
            clocks.set(node, 0);
        }
        load.goes_on("when all clocks are right again", 200);
    });
    println!("{} locks, {:?} granted and raised", all.len(), load.counted());
    assert_in_order(&all);
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Bulk(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        Value::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// What the counters are not: started from the clock once in the life of a server, and counted on
/// from there. `KEYS` counter; no `ARGV`.
const RESEED_ONCE: &str = r#"
local run = redis.call("INFO", "server"):match("run_id:(%x+)")
if redis.call("HGET", KEYS[1], "run") ~= run then
    local t = redis.call("TIME")
    redis.call("HSET", KEYS[1], "run", run, "count", string.format("%.0f", t[1] * 1000000 + t[2]))
end
return redis.call("HINCRBY", KEYS[1], "count", 1)
"#;

/// Two masters lose their data and come back with clocks two seconds behind. An attempt while they
/// do not vote writes to their counters. The next lock has a greater number all the same (T2); a
/// counter that is started once has none.
#[test]
fn slow_attempt_in_quarantine_uses_no_reseed_up() {
    let mut clocks = match Clocks::start(3) {
        Ok(clocks) => clocks,
        Err(reason) => return skip("slow_attempt_in_quarantine_uses_no_reseed_up", reason),
    };
    let watch = Stopwatch::start();
    let client = all_ready(&guarded(clocks.urls()));
    let before = Taken::once(&client.fenced(), watch);
    let reseeded = |clocks: &Clocks| {
        let counts = clocks.masters[..2].iter().map(|master| {
            number(&ask(master, &["EVAL", RESEED_ONCE, "1", "control"])).expect("a number")
        });
        counts.max().expect("two masters")
    };
    let control_before = reseeded(&clocks);
    for node in 0..2 {
        clocks.masters[node].kill().unwrap();
        clocks.masters[node].restart().unwrap();
        clocks.set(node, -2);
    }
    reseeded(&clocks);
    let fresh = guarded(clocks.urls()).connect().unwrap();
    within(PATIENT, "two masters are in quarantine", || {
        let error = fresh.fenced().try_lock("account:0", TTL).err();
        error.is_some_and(|error| matches!(error.kind(), LockErrorKind::Unavailable))
            && (0..2).all(|node| quarantine_of(&fresh, node).is_some())
    });
    until_vote(&fresh, 3);
    let after = Taken::once(&fresh.fenced(), watch);
    let control_after = reseeded(&clocks);
    let apart = after.number.get() - before.number.get();
    println!(
        "the next number is {apart} greater; the control's {} smaller",
        control_before - control_after
    );
    assert!(disorder(&[before, after]).is_none());
    assert!(control_after < control_before, "the control shows the harm");
}
