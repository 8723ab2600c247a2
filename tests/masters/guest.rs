//! The multiplexer as a guest in a foreign event loop, over real `redis-server` processes and over
//! scripted ones for what a real one will not do.

#[allow(dead_code)]
#[path = "../../examples/own_event_loop.rs"]
mod own_event_loop;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::{Events, Poll, Token};
use muxlock::node::{NodeState, NodeStatus};
use muxlock::proto::{Cancelled, Done, Lease, OpId};
use muxlock::settings::RestartGuard;
use muxlock::testing::{FakeMasters, Masters, Value};
use muxlock::{Builder, KeepAlive, LossCause, Multiplexer, Redlock, Standalone};
use own_event_loop::Server;
use testbed::scripted::{Peer, Scripted};
use testbed::{PATIENT, SOON, Stopwatch, TTL, heavy, patient, pause, soon, waited, within};

const KEY: &str = "invoice:42";
/// Short enough for several to pass, and long enough for a busy machine to renew in time.
const TTL_SHORT: Duration = Duration::from_secs(2);
const FIRST: Token = Token(1_000);
/// Over soon, and long enough for a machine to grant it before.
const TTL_BRIEF: Duration = Duration::from_millis(200);
/// The longest that a turn of the caller's loop may be ours; unoptimised code is slow. Without the
/// bounds of a turn, five thousand operations that end at once take more than twice this time.
const STALL_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 60 } else { 6 });
/// Longer than anything is waited for.
const LONG: Duration = Duration::from_secs(30);
/// How long a wait that nothing ends lasts.
const SHORT: Duration = Duration::from_millis(10);

#[track_caller]
fn start(n: usize) -> Masters {
    Masters::start(n).unwrap_or_else(|error| panic!("{error}"))
}

/// The caller's event loop.
struct Host {
    poll: Poll,
    events: Events,
    mux: Multiplexer,
    /// The longest call into the multiplexer, by the time that its thread was at work.
    longest: Duration,
}

impl Host {
    fn new(builder: &Builder) -> Host {
        let poll = Poll::new().unwrap();
        let mux = Multiplexer::new(builder.config().unwrap(), poll.registry(), FIRST).unwrap();
        Host { poll, events: Events::with_capacity(16), mux, longest: Duration::ZERO }
    }

    /// Polls, and passes on what that brought.
    fn turn(&mut self) {
        let limit = self.mux.next_timeout().map_or(SHORT, |next| next.min(SHORT));
        waited(self.poll.poll(&mut self.events, Some(limit)));
        let Host { mux, events, longest, .. } = self;
        let before = thread_time();
        mux.handle_events(&*events);
        *longest = (*longest).max(thread_time() - before);
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Multiplexer) -> bool) {
        let watch = Stopwatch::start();
        while !is_so(&self.mux) {
            assert!(watch.elapsed() < PATIENT, "{what}");
            self.turn();
        }
    }

    fn all_ready(&mut self) {
        self.mux.connect();
        self.until("every node is ready", |mux| {
            mux.nodes().all(|node| node.state == NodeState::Ready && node.in_flight == 0)
        });
    }

    /// Starts many at once.
    fn lock_many(&mut self) {
        for i in 0..MANY {
            self.mux.try_lock(format!("{KEY}:{i}"), TTL).unwrap();
        }
    }

    /// Turns until all masters but the first few have answered all.
    fn all_answered(&mut self, but: usize) {
        self.until("all is answered", |mux| mux.nodes().skip(but).all(|node| node.in_flight == 0));
    }

    /// Turns until the operation, the only one, has ended with a lock.
    #[track_caller]
    fn acquired(&mut self, op: OpId) -> Lease {
        match self.done(1).remove(&op) {
            Some(Done::Acquired(Ok(lease))) => lease,
            other => panic!("{other:?}"),
        }
    }

    /// Turns until `n` operations have ended.
    #[track_caller]
    fn done(&mut self, n: usize) -> BTreeMap<OpId, Done> {
        let watch = Stopwatch::start();
        let mut ended = BTreeMap::new();
        loop {
            loop {
                let before = thread_time();
                let done = self.mux.poll_done();
                self.longest = self.longest.max(thread_time() - before);
                let Some((id, done)) = done else { break };
                assert!(ended.insert(id, done).is_none(), "{id:?} ended twice");
            }
            if ended.len() >= n {
                return ended;
            }
            assert!(watch.elapsed() < PATIENT, "{} of {n} have ended", ended.len());
            self.turn();
        }
    }
}

/// The time that this thread was at work, in the kernel too.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[track_caller]
fn acquired(done: Done) -> Lease {
    match done {
        Done::Acquired(Ok(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

fn is_empty(masters: &Masters) -> bool {
    masters.iter().all(|master| master.dbsize().expect("the master answers") == 0)
}

/// R1: what starts together has one start.
#[test]
fn burst_has_one_start_which_flush_ends() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()));
    host.all_ready();
    let mut starts = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let before = host.mux.now();
        host.mux.try_lock(name, TTL).unwrap();
        starts.push((before, host.mux.now()));
        pause(SHORT);
        if name == "b" {
            host.mux.flush();
            pause(SHORT);
        }
    }
    host.mux.flush();
    let (watch, mut results) = (Stopwatch::start(), Vec::new());
    while results.len() < 4 {
        assert!(watch.elapsed() < PATIENT);
        host.turn();
        host.mux.take_all_done(&mut results);
    }
    results.sort_by_key(|(id, _)| *id);
    let leases: Vec<_> = results.drain(..).map(|(_, done)| acquired(done)).collect();
    let until = |name: &str| {
        let is_it = |lease: &&Lease| lease.resource().as_bytes() == name.as_bytes();
        leases.iter().find(is_it).unwrap().valid_until()
    };
    assert_eq!((until("a"), until("c")), (until("b"), until("d")), "the first one's start");
    let validity = until("a").since(starts[0].1);
    assert!(until("c") >= starts[2].0.after(validity), "after the flush another burst begins");
    for (name, (start, _)) in ["a", "b", "c", "d"].into_iter().zip(starts) {
        assert!(until(name) <= start.after(TTL), "never later than its own start");
    }
    for lease in leases {
        host.mux.unlock(lease);
    }
    // Without a flush, the next turn sends them.
    while results.len() < 4 {
        host.turn();
        host.mux.take_all_done(&mut results);
    }
    let was_held = |(_, done): &(OpId, Done)| match done {
        Done::Released(result) => result.as_ref().is_ok_and(|released| released.was_held()),
        _ => false,
    };
    assert!(results.iter().all(was_held));
}

/// R10: what a refused attempt has set is released in one write with what the caller starts when it
/// takes the result; at the latest in the next turn, even if the result is never taken.
#[test]
fn refused_attempt_is_undone_with_what_is_started_next() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()).restart_guard(RestartGuard::Off));
    host.all_ready();
    for master in 0..2 {
        masters[master].query(&[b"SET", KEY.as_bytes(), b"somebody else"]).unwrap();
    }
    let is_set = || masters[2].query(&[b"EXISTS", KEY.as_bytes()]).unwrap() == Value::Integer(1);
    let next: [fn(&mut Multiplexer); 3] = [
        |mux| {
            assert!(mux.poll_done().is_some());
            mux.flush();
        },
        |mux| {
            assert!(mux.poll_done().is_some());
            assert_eq!(mux.next_timeout(), Some(Duration::ZERO));
            mux.handle_timeout();
        },
        Multiplexer::handle_timeout,
    ];
    for next in next {
        host.mux.try_lock(KEY, TTL).unwrap();
        host.mux.flush();
        host.until("two masters have refused it", |mux| {
            mux.nodes().take(2).all(|node| node.in_flight == 0)
        });
        assert_eq!(host.mux.next_timeout(), Some(Duration::ZERO));
        // The second time, the master has looked at all its sockets since.
        soon("the third one has set it", is_set);
        assert!(is_set(), "nothing was sent");
        next(&mut host.mux);
        soon("it is released", || !is_set());
        host.all_answered(0);
        let _ = host.mux.poll_done();
    }
}

/// R14: the turn that brings the first result sends it.
#[test]
fn release_that_was_started_before_a_turn_is_sent_by_it() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()));
    host.all_ready();
    let op = host.mux.try_lock(KEY, TTL).unwrap();
    host.mux.flush();
    let lease = host.acquired(op);
    host.mux.try_lock("another", TTL).unwrap();
    host.mux.flush();
    let exists = |name: &str| {
        let said = masters.iter().map(|it| it.query(&[b"EXISTS", name.as_bytes()]).unwrap());
        said.filter(|said| *said == Value::Integer(1)).count()
    };
    soon("all masters have granted it", || exists("another") == 3);
    host.mux.unlock(lease);
    host.turn();
    assert_eq!(host.mux.next_timeout(), Some(Duration::ZERO), "it has brought a result");
    soon("the lock is released", || exists(KEY) == 0);
}

/// R14: it is judged when it is started, whenever it is sent. The keys outlive the validity.
#[test]
fn release_that_is_started_after_the_validity_proves_nothing() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()));
    host.all_ready();
    let flush = |host: &mut Host| host.mux.flush();
    let connect = |host: &mut Host| host.mux.connect();
    let turn = |host: &mut Host| host.turn();
    let senders: [fn(&mut Host); 3] = [flush, connect, turn];
    for send in senders {
        for is_late in [false, true] {
            let op = host.mux.try_lock(KEY, TTL_SHORT).unwrap();
            host.mux.flush();
            let lease = host.acquired(op);
            let until = lease.valid_until();
            if is_late {
                soon("its validity is over", || host.mux.now() >= until);
            }
            let op = host.mux.unlock(lease);
            send(&mut host);
            match host.done(1).remove(&op) {
                Some(Done::Released(Ok(released))) => assert_eq!(released.was_held(), !is_late),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Each burst has its own start, also where a turn sends it.
#[test]
fn lock_is_held_until_the_release_of_its_burst() {
    const PAUSE: Duration = Duration::from_millis(50);
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()));
    host.all_ready();
    let flush = |host: &mut Host| host.mux.flush();
    let turn = |host: &mut Host| host.turn();
    let senders: [fn(&mut Host); 3] = [flush, turn, flush];
    let ops = ["a", "b", "c"].map(|name| host.mux.try_lock(name, TTL).unwrap());
    host.mux.flush();
    let mut done = host.done(3);
    let (granted, mut held) = (host.mux.now(), Duration::ZERO);
    for (op, send) in ops.into_iter().zip(senders) {
        pause(PAUSE);
        held += host.mux.now().since(granted);
        host.mux.unlock(acquired(done.remove(&op).unwrap()));
        send(&mut host);
    }
    assert!(host.mux.times().hold.sum() >= held);
    // Nor does an acquisition start with the turn before.
    let first = host.mux.try_lock("d", TTL).unwrap();
    let started = host.mux.now();
    host.turn();
    pause(PAUSE);
    let before = host.mux.now();
    let second = host.mux.try_lock("e", TTL).unwrap();
    host.mux.flush();
    // Two locks and three releases.
    let mut done = host.done(5);
    let mut until = |op: OpId| acquired(done.remove(&op).unwrap()).valid_until();
    assert!(until(second) >= before.after(until(first).since(started)));
}

/// What a caller waits for shows how fast the masters are; what is read late shows nothing.
#[test]
fn slow_answers_that_are_waited_for_have_a_time() {
    let masters = FakeMasters::start(3).unwrap();
    let mut host = Host::new(&patient(masters.urls()));
    host.all_ready();
    let has_time = |status: NodeStatus| status.last_outcome.is_some_and(|(_, time)| time.is_some());
    let mut names = (0..).map(|i| format!("{KEY}:{i}"));
    let mut ask = |host: &mut Host| {
        host.mux.try_lock(names.next().unwrap(), TTL).unwrap();
        host.mux.flush();
    };
    // They come in the first wait, or in the third.
    for delay in [Duration::ZERO, 5 * SHORT / 2] {
        masters.iter().for_each(|master| master.answer_after(Duration::ZERO));
        // The second time, there is a result that was not taken.
        for _ in 0..2 {
            ask(&mut host);
            pause(2 * SHORT);
            host.all_answered(0);
            assert!(!host.mux.nodes().any(has_time));
        }
        masters.iter().for_each(|master| master.answer_after(delay));
        let timed = (0..20).filter(|_| {
            pause(SHORT);
            ask(&mut host);
            host.done(1);
            host.all_answered(0);
            host.mux.nodes().all(has_time)
        });
        // A busy machine may hold some of them up.
        assert!(timed.count() >= 5);
    }
}

/// R11, R14: the time that counts is that of the flush.
#[test]
fn set_that_is_flushed_after_its_validity_is_not_sent() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()));
    host.all_ready();
    for has_release in [false, true] {
        let held = host.mux.try_lock("held", TTL).unwrap();
        host.mux.flush();
        let lease = host.acquired(held);
        host.all_answered(0);
        let sets = || masters.iter().map(|master| master.command_calls("set").unwrap());
        let sent: Vec<u64> = sets().collect();
        let op = host.mux.try_lock(KEY, SHORT).unwrap();
        match has_release {
            true => _ = host.mux.unlock(lease),
            false => host.mux.abandon(lease),
        }
        pause(SHORT);
        host.mux.flush();
        match host.done(1 + usize::from(has_release)).remove(&op) {
            Some(Done::Acquired(Err(_))) => {}
            other => panic!("{other:?}"),
        }
        host.all_answered(0);
        assert!(sets().eq(sent));
    }
}

/// R2: the clock is read when the result is taken, not when the answers came.
#[test]
fn lock_that_is_taken_after_its_validity_has_expired() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()));
    host.all_ready();
    let one_by_one = |mux: &mut Multiplexer| mux.poll_done().unwrap().1;
    let all_at_once = |mux: &mut Multiplexer| {
        let mut results = Vec::new();
        mux.take_all_done(&mut results);
        results.pop().unwrap().1
    };
    for take in [one_by_one, all_at_once] {
        host.mux.try_lock(KEY, TTL_BRIEF).unwrap();
        host.mux.flush();
        host.all_answered(0);
        pause(TTL_BRIEF);
        match take(&mut host.mux) {
            Done::Acquired(Err(error)) => assert!(error.is_expired(), "{error}"),
            other => panic!("{other:?}"),
        }
        host.mux.flush();
        host.all_answered(0);
        assert!(is_empty(&masters));
    }
}

/// The place is told while it waits, and is that of the line for all that wait here.
#[test]
fn place_in_the_queue_is_that_of_a_wait_alone() {
    let masters = start(3);
    let builder = patient(masters.urls());
    let mut hosts = [Host::new(&builder), Host::new(&builder), Host::new(&builder)];
    hosts.iter_mut().for_each(Host::all_ready);
    let [holder, first, second] = &mut hosts;
    let held = holder.mux.try_lock(KEY, TTL).unwrap();
    assert_eq!(holder.mux.queue_position(held), None);
    let lease = holder.acquired(held);
    let one = first.mux.try_lock_for(KEY, TTL, LONG).unwrap();
    assert_eq!(first.mux.queue_position(one), None, "nothing was told yet");
    first.until("it has a place", |mux| mux.queue_position(one) == Some(0));
    let two = second.mux.try_lock_for(KEY, TTL, LONG).unwrap();
    let three = second.mux.try_lock_for(KEY, TTL, LONG).unwrap();
    let once = second.mux.try_lock(KEY, TTL).unwrap();
    second.until("it has a place", |mux| mux.queue_position(two) == Some(1));
    assert_eq!(second.mux.queue_position(three), Some(1), "the place is that of their line");
    assert_eq!(second.mux.queue_position(once), None, "one round waits in no queue");
    assert!(second.done(1).contains_key(&once));
    // The lock goes to the first, which extends it: that is no wait.
    holder.mux.abandon(lease);
    holder.mux.flush();
    let lease = first.acquired(one);
    assert_eq!(first.mux.queue_position(one), None, "it has ended");
    let extension = first.mux.extend(lease, TTL);
    assert_eq!(first.mux.queue_position(extension), None);
    let Some(Done::Extended(lease, Ok(()))) = first.done(1).remove(&extension) else { panic!() };
    // The holder stands in front of those that wait.
    assert_eq!(second.mux.queue_position(two), Some(1));
    assert!(matches!(second.mux.cancel(two), Cancelled::Acquisition));
    assert_eq!(
        (second.mux.queue_position(two), second.mux.queue_position(three)),
        (None, Some(1)),
        "it inherits"
    );
    first.mux.abandon(lease);
    first.mux.flush();
    let lease = second.acquired(three);
    second.mux.abandon(lease);
    second.mux.flush();
    second.all_answered(0);
}

// ---- Cancellation ----

/// Cancelled at every stage, on masters of which one is frozen and lets its SETs run later (R12).
#[test]
fn cancelled_acquisitions_leave_no_key_on_any_master() {
    let masters = start(5);
    let mut host = Host::new(&patient(masters.urls()));
    host.all_ready();
    masters[4].freeze().unwrap();
    for round in 0..20 {
        let ops: Vec<_> = (0..20)
            .map(|i| host.mux.try_lock(format!("{KEY}:{round}:{i}"), TTL).unwrap())
            .collect();
        for (i, op) in ops.into_iter().enumerate() {
            if i == 5 {
                host.mux.flush();
            }
            if i >= 10 {
                host.turn();
            }
            let cancelled = host.mux.cancel(op);
            assert!(matches!(cancelled, Cancelled::Acquisition), "{cancelled:?}");
            assert!(matches!(host.mux.cancel(op), Cancelled::Nothing));
        }
    }
    assert!(host.mux.poll_done().is_none());
    masters[4].thaw().unwrap();
    host.mux.flush();
    host.until("all is answered", |mux| mux.nodes().all(|node| node.in_flight == 0));
    assert!(is_empty(&masters));
    assert_eq!((host.mux.stats().cancelled, host.mux.stats().disconnected), (400, 0));
}

#[test]
fn cancelled_extension_leaves_a_lock_that_can_be_released() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()));
    let op = host.mux.try_lock(KEY, TTL).unwrap();
    let lease = host.acquired(op);
    let op = host.mux.extend(lease, 2 * TTL);
    host.mux.flush();
    let lease = match host.mux.cancel(op) {
        Cancelled::Extension(lease) => lease,
        other => panic!("{other:?}"),
    };
    assert!(lease.is_valid_at(host.mux.now()));
    let op = host.mux.unlock(lease);
    match host.done(1).remove(&op) {
        Some(Done::Released(Ok(released))) => assert!(released.was_held()),
        other => panic!("{other:?}"),
    }
    host.until("all is answered", |mux| mux.nodes().all(|node| node.in_flight == 0));
    assert!(is_empty(&masters));
}

/// R31: kept without a thread, until two of three masters are frozen; the holder learns of it in
/// time. A control that is not kept ends with its TTL.
#[test]
fn slow_kept_lock_outlives_its_ttl_and_is_lost_before_it_ends() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()).node_timeout(TTL_SHORT / 8));
    host.all_ready();
    let [op, control] = ["kept", "control"].map(|name| host.mux.try_lock(name, TTL_SHORT).unwrap());
    let mut ended = host.done(2);
    let control = acquired(ended.remove(&control).unwrap());
    let lease = acquired(ended.remove(&op).unwrap());
    let id = host.mux.keep_alive(lease, &KeepAlive::default());
    let mut until = host.mux.kept(id).unwrap().valid_until();
    for _ in 0..9 {
        match host.done(1).remove(&id) {
            Some(Done::Renewed(later)) => {
                assert!(later > until && host.mux.kept(id).unwrap().valid_until() == later);
                until = later;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!control.is_valid_at(host.mux.now()), "nine thirds of the validity have passed");
    assert_eq!(masters[2].dbsize().unwrap(), 1);

    masters[0].freeze().unwrap();
    masters[1].freeze().unwrap();
    let (lease, loss) = loop {
        match host.done(1).remove(&id) {
            Some(Done::Renewed(later)) => until = later,
            Some(Done::Lost(lease, loss)) => break (lease, loss),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((loss.cause, lease.valid_until()), (LossCause::Unavailable, until));
    assert!(!loss.remaining.is_zero() && host.mux.kept(id).is_none());
    masters[0].thaw().unwrap();
    masters[1].thaw().unwrap();
    host.mux.abandon(lease);
    host.mux.abandon(control);
    host.until("all is answered", |mux| mux.nodes().all(|node| node.in_flight == 0));
    soon("no key is left", || is_empty(&masters));
}

#[test]
fn cancelled_release_deletes_all_the_same() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()));
    let op = host.mux.try_lock(KEY, TTL).unwrap();
    let lease = host.acquired(op);
    let op = host.mux.unlock(lease);
    assert!(matches!(host.mux.cancel(op), Cancelled::Release));
    host.mux.flush();
    host.until("all is answered", |mux| mux.nodes().all(|node| node.in_flight == 0));
    assert!(host.mux.poll_done().is_none());
    assert!(is_empty(&masters));
}

/// Two guests in one loop: what is the one's is nothing to the other.
#[test]
fn operation_of_another_multiplexer_is_left_alone() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()));
    let mut other = Host::new(&patient(masters.urls()));
    let (op, same_slot) =
        (host.mux.try_lock("one", TTL).unwrap(), other.mux.try_lock("other", TTL).unwrap());
    assert_ne!(op, same_slot);
    assert!(matches!(host.mux.cancel(same_slot), Cancelled::Nothing));
    let lease = host.acquired(op);
    host.mux.abandon(lease);
    let lease = other.acquired(same_slot);
    other.mux.abandon(lease);
}

/// One waits for a lock that another multiplexer releases.
#[test]
fn lease_that_goes_to_another_multiplexer_is_asked_for() {
    let masters = start(3);
    let mut host = Host::new(&patient(masters.urls()));
    let mut other = Host::new(&patient(masters.urls()));
    let op = host.mux.try_lock_for(KEY, LONG, PATIENT).unwrap();
    let mut lease = host.acquired(op);
    let waits = host.mux.try_lock_for(KEY, TTL, PATIENT).unwrap();
    host.turn();
    assert_eq!(host.mux.stats().rounds, 1, "nobody asks for what is held here");
    host.mux.let_go(&mut lease);
    host.until("it is asked for", |mux| mux.stats().rounds > 1);
    other.mux.abandon(lease);
    other.all_ready();
    let lease = host.acquired(waits);
    host.mux.abandon(lease);
}

// ---- Another loop than mio's ----

/// The outer loop knows one descriptor and one timeout. No wait of the client's is shorter than
/// the test's patience, so what is not announced by the descriptor is not found.
#[cfg(unix)]
#[test]
fn standalone_is_driven_by_its_descriptor_and_its_timeout_alone() {
    use mio::Interest;
    use mio::unix::SourceFd;
    use std::os::fd::{AsFd, AsRawFd};

    let masters = start(5);
    let config = patient(masters.urls()).config().unwrap();
    let mut locks = Standalone::new(config).unwrap();
    assert_eq!(locks.as_fd().as_raw_fd(), locks.as_raw_fd());
    let mut outer = Poll::new().unwrap();
    let mut events = Events::with_capacity(4);
    let fd = locks.as_raw_fd();
    outer.registry().register(&mut SourceFd(&fd), Token(7), Interest::READABLE).unwrap();
    let watch = Stopwatch::start();
    let mut turns = 0;
    let mut run = |locks: &mut Standalone| loop {
        if let Some((_, done)) = locks.mux_mut().poll_done() {
            return done;
        }
        assert!(watch.elapsed() < SOON, "something was not announced");
        waited(outer.poll(&mut events, locks.mux().next_timeout()));
        locks.turn().unwrap();
        turns += 1;
    };
    for _ in 0..100 {
        locks.mux_mut().try_lock(KEY, TTL).unwrap();
        locks.mux_mut().flush();
        let lease = acquired(run(&mut locks));
        locks.mux_mut().unlock(lease);
        match run(&mut locks) {
            Done::Released(released) => assert!(released.unwrap().was_held()),
            other => panic!("{other:?}"),
        }
    }
    // It is readable when there is something, and not all the time.
    assert!(turns < 3_000, "{turns} turns");
}

#[test]
fn standalone_without_a_loop_waits_by_itself() {
    let masters = start(3);
    let mut locks = Standalone::new(patient(masters.urls()).config().unwrap()).unwrap();
    locks.wait(Duration::ZERO).unwrap();
    let op = locks.mux_mut().try_lock(KEY, TTL).unwrap();
    let watch = Stopwatch::start();
    let lease = loop {
        assert!(watch.elapsed() < SOON, "it does not end");
        match locks.mux_mut().poll_done() {
            Some((id, done)) => {
                assert_eq!(id, op);
                // Who has not taken all results is not left waiting for more.
                break acquired(done);
            }
            None => locks.wait(PATIENT).unwrap(),
        }
    };
    locks.mux_mut().abandon(lease);
    locks.mux_mut().flush();
    soon("no key is left", || is_empty(&masters));
}

// ---- Stale events and floods ----

/// A batch of events may tell of a connection that ended, after another one took its token.
#[test]
fn event_of_an_old_connection_does_nothing_to_the_new_one() {
    let hangs_up = Scripted::start(|peer: &mut Peer| {
        while let Some(command) = peer.read_command()? {
            if peer.index() == 0 && command[0] == b"SET" {
                return Ok(());
            }
            let reply = peer.normal_reply(&command);
            peer.reply(&reply)?;
        }
        Ok(())
    });
    let good = [Scripted::well_behaved(), Scripted::well_behaved()];
    let mut host = Host::new(&patient([hangs_up.url(), good[0].url(), good[1].url()]));
    host.all_ready();
    let op = host.mux.try_lock(KEY, TTL).unwrap();
    host.mux.flush();
    // The batch that tells of the end is kept, and told again and again.
    let mut stale = Events::with_capacity(16);
    let watch = Stopwatch::start();
    let is_end = |stale: &Events| stale.iter().any(|event| event.is_read_closed());
    while !is_end(&stale) {
        assert!(watch.elapsed() < SOON, "the server hangs up");
        waited(host.poll.poll(&mut stale, Some(SHORT)));
        host.mux.handle_events(&stale);
    }
    let mut seen = Vec::new();
    let watch = Stopwatch::start();
    while seen.last() != Some(&NodeState::Ready) {
        assert!(watch.elapsed() < SOON, "it connects again");
        stale.iter().for_each(|event| assert!(host.mux.handle_event(event)));
        host.turn();
        stale.iter().for_each(|event| assert!(host.mux.handle_event(event)));
        let state = host.mux.nodes().next().unwrap().state;
        if seen.last() != Some(&state) {
            seen.push(state);
        }
    }
    let lease = host.acquired(op);
    let op = host.mux.unlock(lease);
    host.mux.handle_events(&stale);
    assert!(matches!(host.done(1).remove(&op), Some(Done::Released(Ok(_)))));
    let op = host.mux.try_lock("another", TTL).unwrap();
    host.mux.flush();
    host.mux.handle_events(&stale);
    let lease = host.acquired(op);
    host.mux.abandon(lease);
    host.until("all is answered", |mux| mux.nodes().all(|node| node.in_flight == 0));
    host.mux.handle_events(&stale);
    let stats = host.mux.stats();
    assert_eq!((stats.connected, stats.disconnected), (4, 1), "{seen:?}");
}

// ---- The example's server ----

const CLIENTS: usize = 200;
const REQUESTS_EACH: usize = 50;

/// The example's server, in a thread of its own that counts how long each turn was the
/// multiplexer's.
struct Served {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Served {
    fn start(masters: &Masters, clock: fn() -> Duration) -> Served {
        let config = Redlock::builder().nodes(masters.urls()).restart_guard(RestartGuard::Off);
        let config = config.config().unwrap();
        let mut server =
            Server::bind((Ipv4Addr::LOCALHOST, 0).into(), config, clock).expect("a free port");
        let address = server.listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut turns = Vec::new();
            while !told.load(Ordering::SeqCst) {
                turns.push(server.turn().expect("the loop goes on"));
            }
            turns
        });
        Served { address, stop, thread }
    }

    fn connect(&self) -> Asker {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        Asker(BufReader::new(stream))
    }

    /// The number behind this word of the statistics.
    fn figure(&self, name: &str) -> u64 {
        let mut asker = self.connect();
        asker.send("stats\n");
        let answer = asker.answer();
        let mut words = answer.split_whitespace().skip_while(|word| *word != name);
        words.nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
    }

    /// What each turn took of the multiplexer, the shortest first.
    fn stop(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        let mut turns = self.thread.join().expect("the server does not panic");
        turns.sort_unstable();
        turns
    }
}

struct Asker(BufReader<TcpStream>);

impl Asker {
    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).expect("the server reads");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("no request hangs");
        assert!(line.ends_with('\n'), "the server hung up: {line:?}");
        line
    }
}

fn wall_time() -> Duration {
    static START: LazyLock<Stopwatch> = LazyLock::new(Stopwatch::start);
    START.elapsed()
}

/// So many requests over so many connections, and a master that is killed and comes back on the
/// way. Returns what each turn took.
fn under_load(clock: fn() -> Duration) -> Vec<Duration> {
    let mut masters = start(5);
    let served = Served::start(&masters, clock);
    let answered = AtomicUsize::new(0);
    let (mut held, mut refused) = (0, 0);
    thread::scope(|scope| {
        let ask = |client: usize| {
            let mut asker = served.connect();
            let answered = &answered;
            scope.spawn(move || {
                let mut held = 0;
                for pair in 0..REQUESTS_EACH / 2 {
                    // Two at once, and of some one half comes later; every tenth is everybody's.
                    let shared = if pair % 5 == 0 { "shared".into() } else { format!("{client}b") };
                    asker.send(&format!("{client}a\n{}", &shared[..1]));
                    asker.send(&format!("{}\n", &shared[1..]));
                    for _ in 0..2 {
                        held += usize::from(asker.answer().starts_with("held"));
                        answered.fetch_add(1, Ordering::SeqCst);
                    }
                }
                // Each was answered once: the next answer is the next question's.
                asker.send("\n");
                let last = asker.answer();
                assert!(last.starts_with("the resource name"), "{last}");
                held
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(ask).collect();
        let total = CLIENTS * REQUESTS_EACH;
        within(PATIENT, "a third", || answered.load(Ordering::SeqCst) > total / 3);
        masters[0].kill().unwrap();
        within(PATIENT, "two thirds", || answered.load(Ordering::SeqCst) > 2 * total / 3);
        masters[0].restart().unwrap();
        for client in clients {
            let granted = client.join().expect("every request is answered once");
            held += granted;
            refused += REQUESTS_EACH - granted;
        }
    });
    assert_eq!(answered.load(Ordering::SeqCst), CLIENTS * REQUESTS_EACH);
    // What is everybody's is not everybody's at once; all else is free.
    assert!(refused <= CLIENTS * REQUESTS_EACH / 10, "{refused} refused");
    soon("no key is left", || is_empty(&masters));
    println!("{held} held, {refused} refused");
    served.stop()
}

fn told(what: &str, turns: &[Duration]) -> Duration {
    let part = |part: f64| turns[((turns.len() - 1) as f64 * part) as usize];
    let (p50, p99, p999, longest) = (part(0.5), part(0.99), part(0.999), part(1.0));
    println!(
        "{what}: {} turns, p50 {p50:?}, p99 {p99:?}, p99.9 {p999:?}, longest {longest:?}",
        turns.len()
    );
    longest
}

#[test]
fn slow_alone_ten_thousand_requests_and_a_dead_master_do_not_stall_the_loop() {
    let _turn = heavy();
    let by_wall = told("by the clock", &under_load(wall_time));
    assert!(by_wall < SOON, "{by_wall:?}");
    // Without the time in which others had the processor, or the host had it.
    let longest = (0..3).map(|_| told("at work", &under_load(thread_time))).min().unwrap();
    assert!(longest < STALL_MAX, "{longest:?}");
}

#[test]
fn client_that_hangs_up_cancels_its_request() {
    let masters = start(3);
    for master in &masters {
        master.query(&[b"SET", KEY.as_bytes(), b"stranger"]).unwrap();
    }
    let served = Served::start(&masters, wall_time);
    let mut asker = served.connect();
    asker.send(&format!("free\n{KEY}\n{KEY}"));
    assert!(asker.answer().starts_with("held"));
    soon("it waits", || served.figure("waiting") == 1);
    drop(asker);
    soon("it is cancelled", || served.figure("cancelled") == 1);
    // It said no line end: that was no request.
    for master in &masters {
        master.query(&[b"DEL", KEY.as_bytes()]).unwrap();
    }
    let mut asker = served.connect();
    asker.send(&format!("{KEY}\n"));
    assert!(asker.answer().starts_with("held"), "nobody holds what nobody waits for");
    assert_eq!(served.figure("acquired"), 2);
    soon("no key is left", || is_empty(&masters));
    served.stop();
}

#[test]
fn client_that_reads_nothing_or_says_no_end_costs_nobody_else_anything() {
    let masters = start(1);
    let served = Served::start(&masters, wall_time);
    let mut endless = served.connect();
    endless.send(&"x".repeat(5_000));
    let mut line = String::new();
    // It was hung up on, with or without what it had sent being read.
    assert!(!matches!(endless.0.read_line(&mut line), Ok(1..)), "{line}");
    let deaf = served.connect();
    deaf.0.get_ref().set_nonblocking(true).unwrap();
    let flood = "\n".repeat(1 << 16);
    // Until the server, which is not read from, does not read any more.
    let watch = Stopwatch::start();
    let mut sent = 0;
    while let Ok(count) = deaf.0.get_ref().write(flood.as_bytes()) {
        sent += count;
        assert!(watch.elapsed() < PATIENT && sent < 1 << 30, "{sent} bytes were taken");
    }
    let mut asker = served.connect();
    asker.send("fr");
    asker.send("ee\nstats\n");
    assert!(asker.answer().starts_with("held"));
    assert!(asker.answer().starts_with("waiting 0"));
    served.stop();
}

// ---- How long a call takes ----

const MANY: usize = 5_000;

/// Thousands of operations under way, and masters that answer all at once, die, or come back.
#[test]
fn slow_alone_no_call_takes_long_with_thousands_of_operations_under_way() {
    let _turn = heavy();
    for (frozen, kind) in [(1, "lock"), (3, "lock"), (1, "extend"), (3, "extend"), (3, "unlock")] {
        let what = format!("{kind}, {frozen} of 5 die");
        let mut masters = start(5);
        let mut host = Host::new(&patient(masters.urls()));
        host.all_ready();
        let mut leases = Vec::new();
        if kind != "lock" {
            host.lock_many();
            let ended = host.done(MANY).into_values();
            leases.extend(ended.map(|done| match done {
                Done::Acquired(Ok(lease)) => lease,
                other => panic!("{other:?}"),
            }));
            host.all_answered(0);
        }
        let prepared = std::mem::take(&mut host.longest);

        masters.iter().take(frozen).for_each(|master| master.freeze().unwrap());
        match kind {
            "lock" => host.lock_many(),
            "extend" => leases.into_iter().for_each(|lease| _ = host.mux.extend(lease, TTL)),
            _ => leases.into_iter().for_each(|lease| _ = host.mux.unlock(lease)),
        }
        host.turn();
        host.all_answered(frozen);
        let answered = std::mem::take(&mut host.longest);
        masters.iter_mut().take(frozen).for_each(|master| master.kill().unwrap());
        let ended = host.done(MANY);
        let won = ended.values().filter(|done| is_won(done)).count();
        assert_eq!(won, if frozen < 3 { MANY } else { 0 }, "{what}");
        let died = std::mem::take(&mut host.longest);
        masters.iter_mut().take(frozen).for_each(|master| master.restart().unwrap());
        host.until("they are back", |mux| mux.nodes().all(|at| at.state == NodeState::Ready));
        host.all_answered(0);
        let back = std::mem::take(&mut host.longest);
        println!("{what}: {prepared:?}, answers {answered:?}, dead {died:?}, back {back:?}");
        let longest = prepared.max(answered).max(died).max(back);
        assert!(longest < STALL_MAX, "{what}: {longest:?}");
    }
}

fn is_won(done: &Done) -> bool {
    matches!(done, Done::Acquired(Ok(_)) | Done::Extended(_, Ok(())) | Done::Released(Ok(_)))
}

/// One call reads so much of a server that says more than it was asked for, and no more: the next
/// call is due at once, and the others are served meanwhile.
#[test]
fn flood_of_one_master_is_read_in_parts_and_others_are_served() {
    let _turn = heavy();
    let go = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&go);
    let flooding = Scripted::start(move |peer: &mut Peer| {
        // What is to be said is held back until the sign.
        let mut flood = Vec::new();
        while let Some(command) = peer.read_command()? {
            match command[0].as_slice() {
                b"SET" => flood.extend(format!("-ERR {}\r\n", "x".repeat(33)).into_bytes()),
                b"EVAL" if !flood.is_empty() => flood.extend(b":0\r\n"),
                b"ECHO" => {}
                _ => {
                    let reply = peer.normal_reply(&command);
                    peer.reply(&reply)?;
                }
            }
            if flood.len() > MANY * 40 {
                while !told.load(Ordering::SeqCst) {
                    peer.pause(SHORT)?;
                }
                peer.reply(&std::mem::take(&mut flood))?;
            }
        }
        Ok(())
    });
    let good = [Scripted::well_behaved(), Scripted::well_behaved()];
    let mut host = Host::new(&patient([flooding.url(), good[0].url(), good[1].url()]));
    host.all_ready();
    for i in 0..=MANY {
        host.mux.try_lock(format!("{KEY}:{i}"), TTL).unwrap();
    }
    let leases = host.done(MANY + 1);
    assert!(leases.values().all(is_won));
    assert_eq!(host.mux.stats().server_errors, 0);
    go.store(true, Ordering::SeqCst);
    // Nothing tells from outside when the system's buffers are full.
    pause(20 * SHORT);
    let (mut most, mut due_at_once, mut served) = (0, 0, 0);
    let mut op = None;
    let watch = Stopwatch::start();
    while host.mux.stats().server_errors <= MANY as u64 {
        assert!(watch.elapsed() < PATIENT, "the flood ends");
        let before = host.mux.stats().server_errors;
        host.turn();
        most = most.max(host.mux.stats().server_errors - before);
        let ended = host.mux.poll_done().map(|(id, done)| {
            assert_eq!(Some(id), op);
            served += u32::from(is_won(&done));
        });
        due_at_once += u32::from(host.mux.next_timeout() == Some(Duration::ZERO));
        if op.is_none() || ended.is_some() {
            op = Some(host.mux.try_lock(format!("meanwhile:{served}"), TTL).unwrap());
            host.mux.flush();
        }
    }
    println!("at most {most} replies in a call, {due_at_once} calls left some, {served} served");
    // For an event and for what an earlier call has left: a third of 3,072 each.
    assert!(most <= 2 * 3_072 / 3, "{most}");
    assert!(due_at_once > 0 && served > 0, "{due_at_once} {served}");
}

/// What was answered in time counts, however late the loop comes to read it, and in however many
/// parts.
#[test]
fn slow_answers_that_were_there_in_time_count_after_a_pause() {
    // The second pause is too short for a connection to be doubted.
    for (locks, node_timeout, pauses) in [(1_000, 400, 4), (8, 40, 2)] {
        let servers: Vec<_> = (0..5).map(|_| Scripted::well_behaved()).collect();
        let node_timeout = Duration::from_millis(node_timeout);
        let config = patient(servers.iter().map(Scripted::url)).node_timeout(node_timeout);
        let mut mux =
            Standalone::new(config.restart_guard(RestartGuard::Off).config().unwrap()).unwrap();
        mux.mux_mut().connect();
        while mux.mux().nodes().any(|node| node.state != NodeState::Ready) {
            mux.wait(SOON).unwrap();
        }
        for i in 0..locks {
            mux.mux_mut().try_lock(format!("job:{i}"), TTL).unwrap();
        }
        // More than all of them need.
        (0..2).for_each(|_| mux.mux_mut().flush());
        pause(pauses * node_timeout);
        // A wait that a signal ends announces no socket.
        mux.mux_mut().handle_timeout();
        for _ in 0..locks {
            let (_, done) = loop {
                match mux.mux_mut().poll_done() {
                    Some(done) => break done,
                    None => mux.wait(SOON).unwrap(),
                };
            };
            assert!(matches!(done, Done::Acquired(Ok(_))), "{done:?}");
        }
    }
}
