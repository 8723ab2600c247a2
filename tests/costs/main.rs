//! What an acquisition and its release cost that can be counted: allocations and system calls
//! exactly, and instructions within 3 %.
//!
//! A count does not depend on how busy the machine is, so a change that makes something dearer
//! fails here, however little it is. `scripts/costs` counts all of it, in a release build, and
//! shows a table; without optimisation, instructions are not counted. What cannot be counted for
//! want of a tool is said on the standard error, and is a failure if `MUXLOCK_SKIPS_FAIL` is set.
//!
//! **When a number changes on purpose**, copy the new one from the failure.

#![allow(missing_docs)]

mod allocations;
mod codec;
mod lockstep;
#[cfg(feature = "tls")]
mod tls;
mod tools;
mod work;

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use allocations::allocations;
use lockstep::{Lockstep, late_releases};
use muxlock::Redlock;
use muxlock::testing::{Master, Masters};
use testbed::{PATIENT, SOON, heavy, info, is_child, within};
use tools::{
    Calls, Feed, OneCpu, Tool, clock_reads, instructions, system_calls, system_calls_late,
};
use work::{CHILD_TEST, Guest, IN_FLIGHT, Job, Kind, Swapper, TTL, client, once, once_with};

/// The compiler and the processor of the instruction counts below: others make other instructions,
/// so that with them the counts are printed and not compared.
const COMPILER: &str = "rustc 1.95.0 (59807616e 2026-04-14), x86_64";

/// Instructions in user space, each time, as `scripts/costs` printed them (glibc 2.36, Callgrind
/// 3.19): those of the library, the C library and the few lines that call it. The kernel's are not
/// counted, and a clock read is as good as free there. Of a pair on five masters, some 100 are
/// glibc's care for the test harness's second thread.
const INSTRUCTIONS: [(Kind, On, u64); 15] = [
    (Kind::Engine, On::Memory, 6_799),
    (Kind::EngineLooking, On::Memory, 8_940),
    (Kind::EncodeSet, On::Memory, 495),
    (Kind::EncodeRelease, On::Memory, 280),
    (Kind::DecodeReplies, On::Memory, 366),
    (Kind::Pair, On::OneMaster, 7_700),
    (Kind::Pair, On::Masters, 10_780),
    (Kind::Extended, On::Masters, 19_220),
    (Kind::Swapped, On::Masters, 8_040),
    (Kind::Fenced, On::Masters, 12_000),
    (Kind::Looking, On::Guarded, 16_170),
    (Kind::First, On::Guarded, 430_000),
    (Kind::InLockstep, On::Servers, 10_500),
    (Kind::InFlight, On::Servers, 358_700),
    (Kind::ManyInFlight, On::Servers, 2_815_000),
];
/// How far an instruction count may be from its number.
const TOLERANCE_PERCENT: u64 = 3;

/// How often clocks are read, each time. A reply that the kernel delivers late is waited for, and
/// the clock is read after that wait: that may add two reads in a hundred.
const CLOCK_READS: [(Kind, On, u64); 3] = [
    (Kind::Pair, On::OneMaster, 8),
    (Kind::InLockstep, On::Servers, 12),
    (Kind::InFlight, On::Servers, 138),
];

/// Masters answer when they like: if a count is too far off, the median of so many runs decides.
const RUNS: usize = 5;
/// Pairs in which nothing may be allocated.
const PAIRS: usize = 2_000;
/// Pairs during which a master answers nothing: then whatever grows with what is unanswered grows
/// further than it does afterwards.
const FROZEN_PAIRS: usize = 256;
/// After so many pairs all answers are waited for, so that no master is further behind than when it
/// was frozen.
const SETTLED_AFTER: usize = 64;
/// A reply may come too late for its batch although it was sent: the kernel delivers it in its own
/// time. That only adds calls, so one run without is proof.
const TRIES: usize = 3;

/// Tokens of attempts that are started together come from the kernel together, at most so many.
const DRAWN_TOGETHER_MAX: usize = 12;

const NODES: usize = 5;
const RESTART_GUARD_OFF: &str = "?restart_guard=off";
const RESTART_GUARD_ON: &str = "?restart_guard=uptime";

/// Where a kind of work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    /// No servers.
    Memory,
    /// One master without restart guard: what the guard looks at depends on real time.
    OneMaster,
    /// Five of them.
    Masters,
    /// Five masters with restart guard.
    Guarded,
    /// Five scripted servers in lockstep, without restart guard.
    Servers,
}

fn start(nodes: usize) -> Masters {
    Masters::start(nodes).unwrap_or_else(|error| panic!("{error}"))
}

/// Masters that are old enough to vote at once where the guard is on.
fn start_old(nodes: usize) -> Masters {
    let masters = start(nodes);
    let is_old = |master: &Master| {
        let age: u64 = info(master, "server", "uptime_in_seconds").parse().expect("a number");
        age >= TTL.as_secs() + 2
    };
    within(TTL + PATIENT, "they are old enough", || masters.iter().all(is_old));
    masters
}

fn urls(masters: &Masters, parameters: &str) -> Vec<String> {
    masters.iter().map(|master| master.url() + parameters).collect()
}

/// Shows a line of the table, which `scripts/costs` prints when all is done.
fn row(what: &str, counted: impl Display, allowed: impl Display) {
    let line = format!("{what:<60} {counted:>12}   {allowed}");
    println!("{line}");
    if let Ok(table) = env::var("MUXLOCK_COSTS_TABLE") {
        let file = OpenOptions::new().append(true).create(true).open(table);
        writeln!(file.expect("the table can be written"), "{line}").expect("it is not full");
    }
}

/// How often something was counted each time.
fn each(kind: Kind, count: u64) -> String {
    format!("{:.3}", count as f64 / kind.times() as f64)
}

/// Whether a tool can be used; says so if not, also when the output of tests is not shown.
fn is_there(tool: Tool, what: &str) -> bool {
    let Some(trouble) = tool.trouble() else { return true };
    assert!(env::var_os("MUXLOCK_SKIPS_FAIL").is_none(), "not counted: {what}: {trouble}");
    // Nobody is left to tell if this fails.
    let _ = writeln!(io::stderr(), "\nSKIPPED: {what}: {trouble}");
    row(what, "not counted", trouble);
    false
}

/// What the other tests count when they need a process for it.
#[test]
#[ignore = "the other tests run it, in processes of their own"]
fn child() {
    if let (true, Some(job)) = (is_child(CHILD_TEST), Job::of_this_process()) {
        job.run();
    }
}

// ---- Allocations ----

/// Somebody who takes and releases locks.
trait Worker {
    fn work(&mut self);

    /// Waits until every command is answered.
    fn settle(&mut self);
}

impl Worker for (Redlock, Kind) {
    fn work(&mut self) {
        once(&self.0, self.1);
    }

    fn settle(&mut self) {
        assert_eq!(self.0.shutdown(PATIENT), 0, "every master answers");
    }
}

impl Worker for Swapper {
    fn work(&mut self) {
        self.swap();
    }

    fn settle(&mut self) {
        assert_eq!(self.redlock.shutdown(PATIENT), 0, "every master answers");
    }
}

impl Worker for Guest {
    fn work(&mut self) {
        self.pairs(|| {});
    }

    fn settle(&mut self) {
        self.wait_for_all();
    }
}

/// Freezes each master for a while, and then counts what is allocated.
#[track_caller]
fn allocates_nothing(what: &str, masters: &Masters, worker: &mut impl Worker, at_once: usize) {
    for silent in masters {
        silent.freeze().unwrap_or_else(|error| panic!("{error}"));
        (0..FROZEN_PAIRS / at_once).for_each(|_| worker.work());
        silent.thaw().unwrap_or_else(|error| panic!("{error}"));
        worker.settle();
    }
    let counted = allocations(|| {
        for pairs in (0..PAIRS).step_by(at_once) {
            worker.work();
            if pairs % SETTLED_AFTER == 0 {
                worker.settle();
            }
        }
    });
    row(&format!("allocations, {what}"), counted, "exactly 0");
    assert_eq!(counted, 0, "{what}: allocations in {PAIRS} times; see above for where");
}

#[test]
#[cfg_attr(debug_assertions, ignore = "scripts/costs runs it")]
fn slow_alone_warm_client_allocates_nothing() {
    let _alone = heavy();
    let masters = start_old(NODES);
    for (guard, parameters) in [("guard off", RESTART_GUARD_OFF), ("guard on", RESTART_GUARD_ON)] {
        for kind in [Kind::Pair, Kind::PairFor, Kind::Extended, Kind::Dropped, Kind::Fenced] {
            let mut worker = (client(&urls(&masters, parameters)), kind);
            allocates_nothing(&format!("{kind:?}, {guard}"), &masters, &mut worker, 1);
            // A slow master may miss the last release of a client that ends.
            assert_eq!(worker.0.shutdown(SOON), 0, "all is answered");
        }
        let mut swapper = Swapper::connect(&urls(&masters, parameters));
        allocates_nothing(&format!("Swapped, {guard}"), &masters, &mut swapper, 1);
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "scripts/costs runs it")]
fn slow_alone_warm_multiplexer_allocates_nothing() {
    let _alone = heavy();
    let masters = start_old(NODES);
    for at_once in [1, IN_FLIGHT] {
        let mut guest = Guest::connect(&urls(&masters, RESTART_GUARD_ON), at_once);
        let what = format!("Multiplexer, {at_once} at once");
        allocates_nothing(&what, &masters, &mut guest, at_once);
    }
}

/// More than share the client afterwards.
const THREADS_AT_FIRST: usize = 8;
const IN_VAIN: Duration = Duration::from_millis(500);

/// All of them wait at once for a lock that is taken.
fn wait_in_vain_together(redlock: &Redlock) {
    let all = Barrier::new(THREADS_AT_FIRST);
    let _taken = redlock.try_lock("taken", TTL).expect("the lock is free");
    thread::scope(|scope| {
        for _ in 0..THREADS_AT_FIRST {
            scope.spawn(|| {
                all.wait();
                redlock.try_lock_for("taken", TTL, IN_VAIN).expect_err("it is taken");
            });
        }
    });
}

/// They take turns at waiting for the masters, and wake each other.
#[test]
#[cfg_attr(debug_assertions, ignore = "scripts/costs runs it")]
fn slow_alone_threads_that_share_a_warm_client_allocate_nothing() {
    let _alone = heavy();
    let masters = start_old(NODES);
    let mut worker = (client(&urls(&masters, RESTART_GUARD_ON)), Kind::Pair);
    allocates_nothing("Pair, before it is shared", &masters, &mut worker, 1);
    let redlock = &worker.0;
    wait_in_vain_together(redlock);
    let count = |key: &'static str| {
        let pairs = move || {
            for pairs in 0..PAIRS {
                once_with(redlock, Kind::Pair, key);
                if pairs % SETTLED_AFTER == 0 {
                    redlock.shutdown(PATIENT);
                    redlock.stats();
                }
            }
        };
        pairs();
        allocations(pairs)
    };
    let counted: u64 = thread::scope(|scope| {
        let threads = ["invoice:1", "invoice:2"].map(|key| scope.spawn(move || count(key)));
        threads.map(|thread| thread.join().expect("it is given its locks")).into_iter().sum()
    });
    row("allocations, Pair, shared by 2 threads", counted, "exactly 0");
    assert_eq!(counted, 0, "allocations of two threads; see above for where");
}

#[test]
fn allocation_that_is_made_is_counted() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
    assert_eq!(allocations(|| ()), 0);
}

// ---- System calls ----

/// Per time that a job is done.
type Expected<'a> = [(&'a str, u64)];

fn many(kind: Kind, expected: &Expected<'_>) -> Calls {
    let times = kind.times() as u64;
    expected.iter().map(|(name, each)| ((*name).to_owned(), each * times)).collect()
}

fn show(what: &str, kind: Kind, calls: &Calls, expected: &Expected<'_>) {
    for (name, count) in calls {
        let each = each(kind, *count);
        let allowed = expected.iter().find(|(expected, _)| expected == name);
        let allowed = allowed.map_or("none".into(), |(_, each)| format!("exactly {each}"));
        row(&format!("calls, {what}: {name}"), each, allowed);
    }
}

/// Counts the calls of each try, and fails if none has exactly these.
#[track_caller]
fn makes_exactly(
    place: &str,
    kind: Kind,
    expected: &Expected<'_>,
    mut count: impl FnMut() -> Calls,
) {
    let what = &format!("{kind:?} on {place}");
    let wanted = many(kind, expected);
    let mut seen = Vec::new();
    while seen.len() < TRIES && seen.last() != Some(&wanted) {
        seen.push(count());
    }
    let best = seen.last().expect("there was a try");
    show(what, kind, best, expected);
    assert_eq!(*best, wanted, "{what}, {} times; all tries: {seen:?}", kind.times());
}

/// One master is waited for each time: there is nothing else to do meanwhile.
#[test]
#[cfg_attr(debug_assertions, ignore = "scripts/costs runs it: it takes long beneath a tool")]
fn one_master_each_operation_sends_waits_and_receives_once() {
    let _alone = heavy();
    if !is_there(Tool::Strace, "system calls with one master") {
        return;
    }
    let masters = start(1);
    // A swap is one round: the release is in the write of the SET, and its answer in that read.
    let kinds = [
        (Kind::Pair, 2),
        (Kind::PairFor, 2),
        (Kind::Extended, 3),
        (Kind::Swapped, 1),
        (Kind::Fenced, 2),
    ];
    for (kind, rounds) in kinds {
        let job = Job { kind, urls: urls(&masters, RESTART_GUARD_OFF) };
        let expected =
            [("sendto", rounds), ("epoll_wait", rounds), ("recvfrom", rounds), ("getrandom", 1)];
        makes_exactly("1 master", kind, &expected, || system_calls(&job, &mut drop));
    }
    // The release that nobody waits for is read along with the next reply.
    let server = late_releases();
    let job = Job { kind: Kind::Dropped, urls: vec![server.url()] };
    let expected = [("sendto", 2), ("epoll_wait", 1), ("recvfrom", 1), ("getrandom", 1)];
    makes_exactly("1 server", Kind::Dropped, &expected, || system_calls(&job, &mut drop));
}

/// All five have answered before the client looks. The restart guard is on, and what it asks
/// leaves with the SETs.
#[test]
#[cfg_attr(debug_assertions, ignore = "scripts/costs runs it: it takes long beneath a tool")]
fn five_servers_in_lockstep_each_is_written_and_read_once_for_a_batch() {
    let _alone = heavy();
    if !is_there(Tool::Strace, "system calls with five servers") {
        return;
    }
    for (kind, at_once) in [(Kind::InLockstep, 1), (Kind::InFlight, IN_FLIGHT)] {
        let expected = [
            ("sendto", 10),
            ("recvfrom", 10),
            ("epoll_wait", 2),
            // The barrier.
            ("read", 2),
        ];
        makes_exactly("5 servers", kind, &expected, || {
            let servers = Lockstep::start(NODES, at_once);
            let job = Job { kind, urls: servers.urls() };
            let mut calls = system_calls(&job, &mut |barrier| servers.open(barrier));
            let drawn = calls.remove("getrandom").unwrap_or_default();
            // What takes longer than a millisecond, as beneath strace, is drawn in several goes.
            let least = at_once.div_ceil(DRAWN_TOGETHER_MAX) as u64;
            let most = least.max(at_once as u64 / 2);
            let allowed = format!("{least} to {most}");
            row(&format!("calls, {kind:?} on 5 servers: getrandom"), each(kind, drawn), allowed);
            let times = kind.times() as u64;
            let bounds = least * times..=most * times;
            assert!(bounds.contains(&drawn), "{drawn} times, not {bounds:?}");
            calls
        });
    }
}

/// A new client connects, and sends each master its handshake, the SET and the release. How often
/// it waits is up to the masters.
#[test]
#[cfg_attr(debug_assertions, ignore = "scripts/costs runs it: it takes long beneath a tool")]
fn first_lock_of_a_new_client_makes_these_calls() {
    let _alone = heavy();
    if !is_there(Tool::Strace, "system calls of a new client") {
        return;
    }
    let masters = start_old(NODES);
    let job = Job { kind: Kind::First, urls: urls(&masters, RESTART_GUARD_ON) };
    let expected = [
        ("close", 8),
        ("connect", 5),
        ("epoll_create1", 1),
        ("epoll_ctl", 11),
        ("eventfd2", 1),
        ("fcntl", 1),
        ("getpeername", 5),
        ("getpid", 1),
        ("getrandom", 2),
        ("setsockopt", 25),
        ("socket", 5),
        // The name of the host.
        ("uname", 1),
    ];
    makes_exactly("5 masters", Kind::First, &expected, || {
        let mut calls = system_calls(&job, &mut drop);
        for (name, most) in [("sendto", 15), ("recvfrom", 25), ("epoll_wait", 15)] {
            let count = calls.remove(name).unwrap_or_default();
            let allowed = format!("at most {most}");
            row(&format!("calls, First on 5 masters: {name}"), each(Kind::First, count), allowed);
            assert!(count <= most * Kind::First.times() as u64, "{count} calls of {name}");
        }
        calls
    });
}

/// Real masters answer when they like, so how often the client waits is up to them.
///
/// On a machine that stands still for half a second, a client reads the masters' time so late that
/// they cut the fencing tokens that it proposes: it then sends more, to raise their counters.
#[test]
#[cfg_attr(debug_assertions, ignore = "scripts/costs runs it: it takes long beneath a tool")]
fn five_masters_no_call_but_to_send_wait_and_receive() {
    let _alone = heavy();
    if !is_there(Tool::Strace, "system calls with five masters") {
        return;
    }
    let kinds = [Kind::Pair, Kind::Fenced].into_iter();
    let guards = [("guard off", RESTART_GUARD_OFF), ("guard on", RESTART_GUARD_ON)];
    for (kind, (guard, parameters)) in kinds.flat_map(|kind| guards.map(|guard| (kind, guard))) {
        // Counters of fencing tokens that a process before has left may be ahead of its clock.
        let masters = start_old(NODES);
        let job = Job { kind, urls: urls(&masters, parameters) };
        let place = format!("5 masters, {guard}");
        let what = format!("{kind:?} on {place}");
        makes_exactly(&place, kind, &[("sendto", 10), ("getrandom", 1)], || {
            let mut calls = system_calls(&job, &mut drop);
            let received = calls.remove("recvfrom").unwrap_or_default();
            let waited = calls.remove("epoll_wait").unwrap_or_default();
            row(&format!("calls, {what}: recvfrom"), each(kind, received), "at most 10");
            row(&format!("calls, {what}: epoll_wait"), each(kind, waited), "at most recvfrom");
            // What was on its way at the first mark is read behind it, and so is what answers a
            // call that was one too many.
            let sent = calls.get("sendto").copied().unwrap_or_default();
            let most = sent + NODES as u64;
            assert!(received <= most, "{what}: {received} reads, which should be {most} at most");
            assert!(waited <= received, "{what}: {waited} waits for {received} replies");
            calls
        });
    }
}

/// The answers of two of them are never among the first three. They are read all the same: until
/// then these two are sent the script in another form, so a check cannot leave with it.
#[test]
#[cfg_attr(debug_assertions, ignore = "scripts/costs runs it: it takes long beneath a tool")]
fn masters_that_are_always_last_are_written_to_once_as_well() {
    let _alone = heavy();
    if !is_there(Tool::Strace, "system calls with masters that are always last") {
        return;
    }
    let masters = start_old(NODES);
    let job = Job { kind: Kind::Fenced, urls: urls(&masters, RESTART_GUARD_ON) };
    makes_exactly("5 late masters", Kind::Fenced, &[("sendto", 10), ("getrandom", 1)], || {
        let mut calls = system_calls_late(&job);
        for name in ["recvfrom", "epoll_wait"] {
            let count = calls.remove(name).unwrap_or_default();
            row(
                &format!("calls, Fenced on 5 late masters: {name}"),
                each(Kind::Fenced, count),
                "-",
            );
        }
        calls
    });
}

// ---- Clocks and instructions ----

/// Does this kind of work where it is to be done, as often as wanted, and counts each time.
fn count_on(on: On, kind: Kind, runs: usize, tool: fn(&Job, Feed<'_>) -> u64) -> Vec<u64> {
    let (nodes, parameters) = match on {
        On::Memory => (0, ""),
        On::OneMaster => (1, RESTART_GUARD_OFF),
        On::Masters => (NODES, RESTART_GUARD_OFF),
        On::Guarded => (NODES, RESTART_GUARD_ON),
        On::Servers => {
            let run = |_| {
                let servers = Lockstep::start(NODES, kind.at_once());
                let urls = servers.urls().into_iter().map(|url| url + RESTART_GUARD_OFF);
                let job = Job { kind, urls: urls.collect() };
                tool(&job, &mut |barrier| servers.open(barrier))
            };
            return (0..runs).map(run).collect();
        }
    };
    let masters = if on == On::Guarded { start_old(nodes) } else { start(nodes) };
    let job = Job { kind, urls: urls(&masters, parameters) };
    (0..runs).map(|_| tool(&job, &mut drop)).collect()
}

#[test]
#[cfg_attr(debug_assertions, ignore = "scripts/costs runs it: it takes long beneath a tool")]
fn clocks_are_read_as_often_as_noted() {
    let _alone = heavy();
    if !is_there(Tool::Valgrind, "clock reads") {
        return;
    }
    let mut changed = String::new();
    for (kind, on, noted) in CLOCK_READS {
        let wanted = noted * kind.times() as u64;
        let is_as_noted = |counted| (wanted..=wanted + wanted / 50).contains(&counted);
        let mut counted = 0;
        for _ in 0..TRIES {
            counted = count_on(on, kind, 1, clock_reads)[0];
            if is_as_noted(counted) {
                break;
            }
        }
        let what = format!("clock reads, {kind:?} on {on:?}");
        row(&what, each(kind, counted), format!("{noted}, or 2 % more"));
        if !is_as_noted(counted) {
            let each = counted as f64 / kind.times() as f64;
            changed += &format!("    (Kind::{kind:?}, On::{on:?}, {each}),\n");
        }
    }
    assert!(
        changed.is_empty(),
        "clocks are read more or less often. If that is meant, these are the new lines of \
         CLOCK_READS:\n{changed}"
    );
}

/// Whether this compiler's instructions can be compared with the numbers; says so if not.
fn is_compiler_of_numbers() -> bool {
    let name = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = Command::new(name).arg("--version").output().expect("there is a compiler");
    let version = String::from_utf8_lossy(&output.stdout);
    let this = format!("{}, {}", version.trim(), env::consts::ARCH);
    if this != COMPILER {
        // Nobody is left to tell if this fails.
        let _ = writeln!(
            io::stderr(),
            "\nNOT COMPARED: instruction counts: this is {this}, the numbers are of {COMPILER}"
        );
    }
    this == COMPILER
}

#[test]
#[cfg_attr(debug_assertions, ignore = "without optimisation the numbers say nothing")]
fn instructions_are_as_many_as_noted() {
    let _alone = heavy();
    if !is_there(Tool::Valgrind, "instructions") || !is_there(Tool::Taskset, "instructions") {
        return;
    }
    let is_compared = is_compiler_of_numbers();
    let _one = OneCpu::take();
    let mut changed = String::new();
    for (kind, on, noted) in INSTRUCTIONS {
        let is_near = |counted: u64| counted.abs_diff(noted) * 100 <= noted * TOLERANCE_PERCENT;
        let mut counted = count_on(on, kind, 1, instructions);
        if is_compared && !is_near(counted[0]) {
            counted.extend(count_on(on, kind, RUNS - 1, instructions));
        }
        counted.sort_unstable();
        let counted = counted[counted.len() / 2];
        let allowed = match is_compared {
            true => format!("{noted} within {TOLERANCE_PERCENT} %"),
            false => format!("not compared with {noted}: another compiler"),
        };
        row(&format!("instructions, {kind:?} on {on:?}"), counted, allowed);
        if is_compared && !is_near(counted) {
            changed += &format!("    (Kind::{kind:?}, On::{on:?}, {counted}),\n");
        }
    }
    assert!(
        changed.is_empty(),
        "instruction counts have changed by more than {TOLERANCE_PERCENT} %. If that is meant, \
         these are the new lines of INSTRUCTIONS:\n{changed}"
    );
}
