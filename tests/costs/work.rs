//! What is counted: pairs and their kin, by a client of real or scripted masters or without any.
//!
//! A tool counts a whole process, so each kind of work can be done by a child that does nothing
//! else; it says where the counting begins and ends.

use std::io::{self, Read};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use mio::{Events, Poll, Token};
use muxlock::node::NodeState;
use muxlock::proto::{Done, Lease, OpId};
use muxlock::settings::RestartGuard;
use muxlock::{FencedRedlock, LockGuard, Multiplexer, Redlock, Resource};
use testbed::memory::Group;
use testbed::{all_ready, patient, pause, re_execute};

use crate::codec::{self, Encoded};

/// Where these are looked for in the file system, nothing is; a log of system calls shows it.
pub const BEGIN: &str = "/muxlock-costs/begin";
pub const END: &str = "/muxlock-costs/end";
/// Part of the name of the function in which instructions are counted.
pub const SECTION: &str = "counted_section";
pub const KEY: &str = "invoice:42";
/// The test that a child runs.
pub const CHILD_TEST: &str = "child";

/// No test runs as long.
pub const TTL: Duration = Duration::from_secs(10);
/// After so many, every buffer has grown, and every function has been looked up.
const WARM_UP: usize = 64;
/// So many masters, where none are connected to.
const NODES: usize = 5;
/// The engine looks at clocks and roles after this long.
const LOOK_AFTER: Duration = Duration::from_millis(10);

const KIND_VARIABLE: &str = "MUXLOCK_COSTS_KIND";
const URLS_VARIABLE: &str = "MUXLOCK_COSTS_URLS";

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `try_lock` and `unlock`.
    Pair,
    /// `try_lock_for` and `unlock`.
    PairFor,
    /// `try_lock`, `extend` and `unlock`.
    Extended,
    /// `try_lock`, and the guard is dropped.
    Dropped,
    /// From one of two locks to the other.
    Swapped,
    /// `try_lock` with a fencing token, and `unlock`.
    Fenced,
    /// `try_lock` and `unlock`, after so long that clocks and roles are looked at.
    Looking,
    /// The lock of a new client, which ends with it.
    First,
    /// Pairs of a multiplexer, one after the other, each answered before it looks.
    InLockstep,
    /// As many as [`IN_FLIGHT`] at once.
    InFlight,
    /// As many as [`MANY_IN_FLIGHT`] at once.
    ManyInFlight,
    /// The engine alone.
    Engine,
    /// The engine alone, with a look at every clock and role before each SET.
    EngineLooking,
    EncodeSet,
    EncodeRelease,
    /// The replies to a SET and to a release.
    DecodeReplies,
}

impl Kind {
    /// How often it is done beneath a tool.
    pub fn times(self) -> usize {
        match self {
            Kind::Looking | Kind::First => 100,
            Kind::InFlight => 50,
            Kind::ManyInFlight => 10,
            _ => 500,
        }
    }

    /// How many pairs of a multiplexer it has under way at once.
    pub fn at_once(self) -> usize {
        match self {
            Kind::InFlight => IN_FLIGHT,
            Kind::ManyInFlight => MANY_IN_FLIGHT,
            _ => 1,
        }
    }
}

/// How many pairs of a multiplexer are under way at once.
pub const IN_FLIGHT: usize = 64;
/// More than fit into what is allocated in advance.
const MANY_IN_FLIGHT: usize = 512;

const KINDS: [Kind; 16] = [
    Kind::Pair,
    Kind::PairFor,
    Kind::Extended,
    Kind::Dropped,
    Kind::Swapped,
    Kind::Fenced,
    Kind::Looking,
    Kind::First,
    Kind::InLockstep,
    Kind::InFlight,
    Kind::ManyInFlight,
    Kind::Engine,
    Kind::EngineLooking,
    Kind::EncodeSet,
    Kind::EncodeRelease,
    Kind::DecodeReplies,
];

/// What a child is to do.
#[derive(Debug, Clone)]
pub struct Job {
    pub kind: Kind,
    /// Where the masters are.
    pub urls: Vec<String>,
}

impl Job {
    /// The command that does it in a process of its own.
    pub fn command(&self) -> Command {
        let mut command = re_execute(CHILD_TEST);
        command
            .arg("--ignored")
            // Whether anything is allocated is counted elsewhere: here, glibc's allocator takes
            // enough of the system at once not to ask again.
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_TOP_PAD_", "16777216")
            .env(KIND_VARIABLE, format!("{:?}", self.kind))
            .env(URLS_VARIABLE, self.urls.join(" "));
        command
    }

    /// What this process is to do, if it is a child.
    pub fn of_this_process() -> Option<Job> {
        let name = env::var(KIND_VARIABLE).ok()?;
        let kind = KINDS.into_iter().find(|kind| format!("{kind:?}") == name)?;
        let urls = env::var(URLS_VARIABLE).ok()?;
        Some(Job { kind, urls: urls.split_whitespace().map(str::to_owned).collect() })
    }

    /// Does it, and says where the counting begins and ends.
    pub fn run(&self) {
        match self.kind {
            Kind::Pair | Kind::PairFor | Kind::Extended | Kind::Dropped => {
                let redlock = client(&self.urls);
                self.count(|| once(&redlock, self.kind));
            }
            Kind::Swapped => {
                let mut swapper = Swapper::connect(&self.urls);
                self.count(|| swapper.swap());
            }
            Kind::Fenced => {
                let fenced = client(&self.urls).fenced();
                self.count(|| once_fenced(&fenced, KEY));
            }
            Kind::Looking => {
                let redlock = client(&self.urls);
                self.count(|| {
                    pause(LOOK_AFTER);
                    once(&redlock, self.kind);
                });
            }
            Kind::First => {
                let builder =
                    patient(self.urls.clone()).restart_guard(RestartGuard::Uptime).max_ttl(TTL);
                self.count(|| {
                    let redlock = builder.build().expect("settings within their bounds");
                    once(&redlock, self.kind);
                });
            }
            Kind::InLockstep | Kind::InFlight | Kind::ManyInFlight => {
                let mut guest = Guest::connect(&self.urls, self.kind.at_once());
                self.count(|| guest.pairs(barrier));
            }
            Kind::Engine => {
                let (mut group, resource) = (Group::new(NODES), resource());
                self.count(|| group.pair(&resource));
            }
            Kind::EngineLooking => {
                let (mut group, resource) = (Group::new(NODES), resource());
                self.count(|| {
                    group.idle(LOOK_AFTER);
                    group.pair(&resource);
                });
            }
            Kind::EncodeSet => self.count(codec::encoding(Encoded::Set)),
            Kind::EncodeRelease => self.count(codec::encoding(Encoded::Release)),
            Kind::DecodeReplies => self.count(codec::decoding()),
        }
    }

    fn count(&self, mut run: impl FnMut()) {
        for _ in 0..WARM_UP {
            run();
        }
        mark(BEGIN);
        counted_section(self.kind.times(), &mut run);
        mark(END);
    }
}

/// Callgrind knows it by its name.
#[inline(never)]
fn counted_section(times: usize, run: &mut impl FnMut()) {
    for _ in 0..times {
        run();
    }
}

fn mark(path: &str) {
    // It is not there: looking for it is what the log of system calls shows.
    let _ = fs::metadata(path);
}

/// Waits until all servers have answered.
fn barrier() {
    let mut byte = [0];
    io::stdin().read_exact(&mut byte).expect("the parent says when they have");
}

fn resource() -> Resource {
    Resource::new(KEY).expect("a short name")
}

/// A client of these masters; whether it guards against restarts, their URLs say.
pub fn client(urls: &[String]) -> Redlock {
    all_ready(&patient(urls.to_vec()).restart_guard(RestartGuard::Uptime).max_ttl(TTL))
}

/// Does this kind of work once.
pub fn once(redlock: &Redlock, kind: Kind) {
    once_with(redlock, kind, KEY);
}

/// As [`once`], with a name of one's own.
pub fn once_with(redlock: &Redlock, kind: Kind, key: &str) {
    if kind == Kind::Fenced {
        return once_fenced(&redlock.fenced(), key);
    }
    let mut lock = match kind {
        Kind::PairFor => redlock.try_lock_for(key, TTL, TTL),
        _ => redlock.try_lock(key, TTL),
    }
    .expect("the lock is free");
    if kind == Kind::Extended {
        lock.extend(TTL).expect("the lock is ours");
    }
    if kind == Kind::Dropped {
        return drop(lock);
    }
    let released = lock.unlock().expect("a quorum answers");
    assert!(released.was_held());
}

fn once_fenced(fenced: &FencedRedlock, key: &str) {
    let lock = fenced.try_lock(key, TTL).expect("the lock is free");
    assert!(lock.unlock().expect("a quorum answers").was_held());
}

/// A client that always holds one of two locks.
pub struct Swapper {
    pub redlock: Redlock,
    held: Option<LockGuard>,
    times: usize,
}

impl Swapper {
    pub fn connect(urls: &[String]) -> Swapper {
        let redlock = client(urls);
        let held = Some(redlock.try_lock("page:0", TTL).expect("the lock is free"));
        Swapper { redlock, held, times: 0 }
    }

    pub fn swap(&mut self) {
        self.times += 1;
        let next = ["page:0", "page:1"][self.times % 2];
        let held = self.held.take().expect("there is always one");
        self.held = Some(self.redlock.swap(held, next, TTL).expect("the lock is free"));
    }
}

/// A multiplexer in an event loop of its own.
pub struct Guest {
    poll: Poll,
    events: Events,
    mux: Multiplexer,
    names: Vec<String>,
    leases: Vec<Lease>,
    results: Vec<(OpId, Done)>,
}

impl Guest {
    /// With every node connected, for so many pairs at once.
    pub fn connect(urls: &[String], at_once: usize) -> Guest {
        let builder = patient(urls.to_vec()).restart_guard(RestartGuard::Uptime).max_ttl(TTL);
        let config = builder.config().expect("settings within their bounds");
        let poll = Poll::new().expect("the system has one");
        let mux = Multiplexer::new(config, poll.registry(), Token(0)).expect("a registry");
        let mut guest = Guest {
            poll,
            events: Events::with_capacity(2 * NODES),
            mux,
            names: (0..at_once).map(|number| format!("invoice:{number}")).collect(),
            leases: Vec::with_capacity(at_once),
            results: Vec::with_capacity(at_once),
        };
        guest.mux.connect();
        while !guest.mux.nodes().all(|node| node.state == NodeState::Ready) {
            guest.turn();
        }
        guest
    }

    /// Takes all locks at once, and then releases them; `wait` comes before each look at what the
    /// masters say.
    pub fn pairs(&mut self, mut wait: impl FnMut()) {
        for name in &self.names {
            self.mux.try_lock(name, TTL).expect("room for one more operation");
        }
        self.mux.flush();
        wait();
        while self.leases.len() < self.names.len() {
            self.turn();
            let leases = &mut self.leases;
            take(&mut self.mux, self.names.len(), &mut self.results, |done| match done {
                Done::Acquired(Ok(lease)) => leases.push(lease),
                other => unreachable!("a quorum granted the lock: {other:?}"),
            });
        }
        for lease in self.leases.drain(..) {
            self.mux.unlock(lease);
        }
        self.mux.flush();
        wait();
        let mut released = 0;
        while released < self.names.len() {
            self.turn();
            take(&mut self.mux, self.names.len(), &mut self.results, |done| {
                match done {
                    Done::Released(Ok(report)) => assert!(report.was_held()),
                    other => unreachable!("a quorum confirmed the release: {other:?}"),
                }
                released += 1;
            });
        }
    }

    /// Waits until every command is answered.
    pub fn wait_for_all(&mut self) {
        while self.mux.nodes().any(|node| node.in_flight > 0) {
            self.turn();
        }
    }

    fn turn(&mut self) {
        let timeout = self.mux.next_timeout();
        self.poll.poll(&mut self.events, timeout).expect("the system can wait");
        self.mux.handle_events(&self.events);
    }
}

/// Takes the results as a guest does it that has one lock at a time, or many.
fn take(
    mux: &mut Multiplexer,
    at_once: usize,
    results: &mut Vec<(OpId, Done)>,
    mut each: impl FnMut(Done),
) {
    if at_once == 1 {
        while let Some((_, done)) = mux.poll_done() {
            each(done);
        }
        return;
    }
    mux.take_all_done(results);
    results.drain(..).for_each(|(_, done)| each(done));
}
