//! Host names: each is looked up before each connection, off the caller's time, and one that does
//! not resolve costs its node's vote and nothing else.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mio::{Events, Poll, Token};
use muxlock::error::{ConfigError, ConnectError};
use muxlock::node::{NodeOutcome, NodeState, NodeStatus, Phase, QuarantineCause, Unfit};
use muxlock::settings::RestartGuard;
use muxlock::testing::{Master, Masters, Value};
use muxlock::{Builder, Multiplexer, Redlock, Standalone};
use testbed::scripted::{never_accepting, refused_addr, refused_addr_at};
use testbed::{
    PATIENT, SOON, Stopwatch, TTL, count, descriptors, is_child, outcomes, pause, re_execute,
    run_child, soon, status_figure, timed, waited, within,
};

const KEY: &str = "invoice:42";
/// A connect timeout for lookups that do not end.
const SHORT: Duration = Duration::from_millis(150);

/// What the resolver knows and has been asked. Clones share it.
#[derive(Clone, Default)]
struct Names(Arc<(Mutex<Known>, Condvar)>);

#[derive(Default)]
struct Known {
    addresses: HashMap<String, Vec<SocketAddr>>,
    /// How often each name was asked for.
    asked: HashMap<String, usize>,
    running: usize,
    running_most: usize,
    /// Nothing is answered.
    is_stuck: bool,
}

impl Names {
    /// `m0`, `m1` and so on.
    fn of(masters: &Masters) -> Names {
        let names = Names::default();
        for (i, master) in masters.iter().enumerate() {
            names.set(&format!("m{i}"), master);
        }
        names
    }

    fn set(&self, name: &str, master: &Master) {
        self.set_all(name, vec![address(master)]);
    }

    fn set_all(&self, name: &str, addresses: Vec<SocketAddr>) {
        self.known().addresses.insert(name.to_owned(), addresses);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stick(&self) {
        self.known().is_stuck = true;
    }

    fn unstick(&self) {
        self.known().is_stuck = false;
        self.0.1.notify_all();
    }

    fn asked(&self, name: &str) -> usize {
        self.known().asked.get(name).copied().unwrap_or(0)
    }

    fn look_up(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        assert_eq!(port, 6379, "what stands behind the name");
        let mut known = self.known();
        *known.asked.entry(name.to_owned()).or_default() += 1;
        known.running += 1;
        known.running_most = known.running_most.max(known.running);
        while known.is_stuck {
            known = self.0.1.wait(known).unwrap_or_else(PoisonError::into_inner);
        }
        known.running -= 1;
        assert!(name != "panics", "as a resolver should not");
        known.addresses.get(name).cloned().ok_or_else(|| ErrorKind::NotFound.into())
    }
}

fn address(master: &Master) -> SocketAddr {
    master.addr().parse().unwrap()
}

#[track_caller]
fn start(n: usize) -> Masters {
    Masters::start(n).unwrap_or_else(|error| panic!("{error}"))
}

fn patient<const N: usize>(hosts: [&str; N], names: &Names) -> Builder {
    let names = names.clone();
    testbed::patient(hosts.map(|host| format!("redis://{host}")))
        .resolver(move |name, port| names.look_up(name, port))
}

/// For names that are not answered.
fn hasty<const N: usize>(hosts: [&str; N], names: &Names) -> Builder {
    patient(hosts, names).connect_timeout(SHORT)
}

fn is_ready(node: &NodeStatus) -> bool {
    node.state == NodeState::Ready
}

#[track_caller]
fn all_ready(redlock: &Redlock) {
    soon("every node is ready", || redlock.nodes().iter().all(is_ready));
}

#[track_caller]
fn locks(redlock: &Redlock) -> usize {
    let lock = redlock.try_lock(KEY, TTL).unwrap_or_else(|error| panic!("{error}"));
    let granted = lock.granted_by().count();
    assert!(lock.unlock().unwrap().was_held());
    granted
}

#[test]
fn name_that_does_not_resolve_costs_one_vote_and_is_tried_again() {
    let mut masters = start(3);
    let names = Names::of(&masters);
    names.known().addresses.remove("m2");
    let redlock = patient(["m0", "m1", "m2"], &names).connect().unwrap();
    assert_eq!(locks(&redlock), 2);
    soon("it says why", || redlock.nodes()[2].last_failure == Some(NodeOutcome::Unresolved));
    let before = names.asked("m2");
    soon("it is tried again", || !redlock.nodes().is_empty() && names.asked("m2") > before + 1);
    assert_eq!((names.asked("m0"), names.asked("m1")), (1, 1), "those are connected");

    names.set("m2", &masters[2]);
    all_ready(&redlock);
    masters[0].kill().unwrap();
    soon("the connection is lost", || !is_ready(&redlock.nodes()[0]));
    assert_eq!(locks(&redlock), 2, "its vote counts");
}

#[test]
fn majority_of_names_that_do_not_resolve_is_unavailable_for_that_reason() {
    let masters = start(1);
    let names = Names::of(&masters);
    names.set_all("empty", Vec::new());
    let builder = patient(["m0", "absent", "empty", "panics"], &names);
    let (took, error) = timed(|| builder.connect().unwrap_err());
    assert!(took < SOON, "{took:?}: there is nothing to wait for");
    let ConnectError::Unavailable(error) = error else { panic!("{error}") };
    assert!(count(&error, NodeOutcome::Unresolved) >= 2, "{error}");
    assert!(error.to_string().contains(":6379: host name does not resolve"), "{error}");

    let redlock = builder.build().unwrap();
    soon("each says why", || {
        let (took, error) = timed(|| redlock.try_lock(KEY, TTL).unwrap_err());
        assert!(error.is_unavailable() && took < SOON, "{took:?}: {error}");
        let unresolved = Some(NodeOutcome::Unresolved);
        redlock.nodes()[1..].iter().all(|node| node.last_failure == unresolved)
    });
}

/// An interface of this machine, which is the system's to look up even if names are not.
#[test]
fn address_with_a_zone_is_reached() {
    let probe = std::net::TcpListener::bind("[::1]:0");
    if probe.is_err() {
        eprintln!("SKIPPED: this machine has no IPv6");
        return;
    }
    let master = Master::start_with(&["--bind", "127.0.0.1", "::1"]).unwrap();
    for zone in ["%1", "%251"] {
        let builder = Redlock::builder().node(format!("redis://[::1{zone}]:{}", master.port()));
        let builder = builder.resolver(|_, _| Err(io::Error::other("unused")));
        let builder = builder.restart_guard(RestartGuard::Off).node_timeout(PATIENT);
        let redlock = builder.connect_timeout(PATIENT).connect().unwrap();
        assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
    }
}

#[test]
fn system_looks_names_up_unless_told_otherwise() {
    let masters = start(3);
    let url = |host: &str, i: usize| format!("redis://{host}:{}", masters[i].port());
    let urls = [url("localhost", 0), url("LOCALHOST", 1), url("127.0.0.1", 2)];
    let redlock = testbed::patient(urls).connect().unwrap();
    all_ready(&redlock);
    // it is no configuration error, and no caller waits for it.
    let urls = [url("127.0.0.1", 0), url("127.0.0.1", 1), "redis://no.such.host.invalid".into()];
    let redlock = testbed::patient(urls).connect().unwrap();
    assert_eq!(locks(&redlock), 2);
}

#[test]
fn lookup_that_never_ends_keeps_all_bounds_and_one_thread() {
    let masters = start(3);
    let names = Names::of(&masters);
    names.stick();
    let builder = hasty(["m0", "m1", "m2"], &names);
    let (took, error) = timed(|| builder.connect().unwrap_err());
    assert!((SHORT..SOON).contains(&took), "{took:?}");
    let ConnectError::Unavailable(error) = error else { panic!("{error}") };
    assert!(count(&error, NodeOutcome::TimedOut(Phase::Lookup)) >= 2, "{error}");
    assert!(error.to_string().contains("timed out (lookup)"), "{error}");
    assert_eq!(names.known().asked.values().sum::<usize>(), 3);

    let redlock = builder.build().unwrap();
    let (took, error) = timed(|| redlock.try_lock(KEY, TTL).unwrap_err());
    assert!(error.is_unavailable() && (SHORT..SOON).contains(&took), "{took:?}: {error}");
    assert!(count(&error, NodeOutcome::TimedOut(Phase::Lookup)) >= 2, "{error}");
    // Many tries later, each still has the one that the first has started.
    soon("they were tried again and again", || {
        let (took, error) = timed(|| redlock.try_lock_for(KEY, TTL, SHORT).unwrap_err());
        assert!(error.is_unavailable() && took < SOON, "{took:?}: {error}");
        redlock.stats().disconnected > 3 * 3
    });
    let known = names.known();
    assert_eq!((known.running, known.running_most), (6, 6), "three of each client");
    drop(known);

    // What was found at last is used by the next try.
    names.unstick();
    all_ready(&redlock);
    locks(&redlock);
    assert_eq!(names.known().asked.values().sum::<usize>(), 6);
}

#[test]
fn one_lookup_that_never_ends_delays_no_caller() {
    let masters = start(3);
    let names = Names::of(&masters);
    names.stick();
    let numbers = [masters[0].addr(), masters[1].addr()];
    let builder = patient([&numbers[0], &numbers[1], "m2"], &names);
    let (took, redlock) = timed(|| builder.connect().unwrap());
    assert_eq!(locks(&redlock), 2);
    assert!(took < SOON, "{took:?}");
    assert_eq!(redlock.nodes()[2].state, NodeState::Connecting);
    names.unstick();
    all_ready(&redlock);
}

/// The loop waits for as long as it is told to: only the end of a lookup can wake it.
#[test]
fn end_of_a_lookup_wakes_a_guests_poll() {
    let masters = start(3);
    let names = Names::of(&masters);
    names.stick();
    let config = patient(["m0", "m1", "m2"], &names).config().unwrap();
    let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(16));
    let mut guest = Multiplexer::new(config, poll.registry(), Token(1_000)).unwrap();
    guest.connect();
    soon("all are looked up", || names.known().running == 3);
    names.unstick();
    let watch = Stopwatch::start();
    while !guest.nodes().all(|node| is_ready(&node)) {
        waited(poll.poll(&mut events, guest.next_timeout()));
        for event in &events {
            assert!(guest.handle_event(event), "{event:?}");
        }
        guest.handle_timeout();
        assert!(watch.elapsed() < SOON && SOON < PATIENT, "something has timed out");
    }
}

#[test]
fn slow_what_a_lookup_finds_after_its_try_is_used_by_the_next() {
    let masters = start(1);
    let names = Names::of(&masters);
    names.stick();
    let config = hasty(["m0"], &names).connect_timeout(2 * SHORT).config().unwrap();
    let mut guest = Standalone::new(config).unwrap();
    guest.mux_mut().connect();
    let state = |guest: &Standalone| guest.mux().nodes().next().unwrap().state;
    // The delays have grown by then.
    soon("it is between two tries", || {
        guest.wait(SHORT).unwrap();
        guest.mux().stats().disconnected >= 5 && state(&guest) == NodeState::BackOff
    });
    let before = guest.mux().stats().disconnected;
    names.unstick();
    soon("it is connected", || {
        guest.wait(SHORT).unwrap();
        state(&guest) == NodeState::Ready
    });
    // Only a connection that failed since asks again.
    let failed = usize::try_from(guest.mux().stats().disconnected - before).unwrap();
    assert!(names.asked("m0") <= 1 + failed, "{} {failed}", names.asked("m0"));
}

/// A quarantine is to be seen, and then over.
const MAX_TTL: Duration = Duration::from_secs(2);

/// A client that has known its masters for longer than any quarantine, and then finds the first
/// one at another address, where a server is that is as old as the others. The second one is gone,
/// so that the vote of the first is needed. The watch was started before the old one's last answer.
fn with_another_server(guard: RestartGuard) -> (Masters, Names, Redlock, Stopwatch) {
    let mut masters = start(4);
    let names = Names::of(&masters);
    let builder = patient(["m0", "m1", "m2"], &names).max_ttl(MAX_TTL).restart_guard(guard);
    let redlock = builder.connect().unwrap();
    within(PATIENT, "all masters vote", || redlock.nodes().iter().all(is_ready));
    let first = redlock.nodes()[0].run_id.clone();
    assert_eq!(names.asked("m0"), 1);
    let watch = Stopwatch::start();
    drop(redlock.try_lock("other", MAX_TTL).unwrap());
    soon("all is answered", || redlock.nodes().iter().all(|node| node.in_flight == 0));

    names.set("m0", &masters[3]);
    masters[0].kill().unwrap();
    soon("it is connected again", || {
        let node = &redlock.nodes()[0];
        let is_other = node.run_id.is_some() && node.run_id != first;
        is_other && matches!(node.state, NodeState::Ready | NodeState::Quarantined)
    });
    masters[1].kill().unwrap();
    soon("the connection is lost", || redlock.nodes()[1].state == NodeState::BackOff);
    (masters, names, redlock, watch)
}

#[test]
fn slow_master_that_returns_at_another_address_is_a_new_server_to_the_guard() {
    let (_masters, _names, redlock, watch) = with_another_server(RestartGuard::Uptime);
    let mut told = None;
    within(PATIENT, "its vote counts", || match redlock.try_lock(KEY, MAX_TTL) {
        Ok(lock) => lock.unlock().unwrap().was_held(),
        Err(error) => {
            told = told.or(error.nodes()[0].quarantine);
            false
        }
    });
    // Whatever the machine's speed, no vote counts before.
    assert!(watch.elapsed() >= MAX_TTL, "{:?}", watch.elapsed());
    assert!(told.is_none_or(|told| told.cause == QuarantineCause::Restarted), "{told:?}");
}

#[test]
fn master_that_returns_at_another_address_votes_at_once_without_the_guard() {
    let (_masters, names, redlock, _) = with_another_server(RestartGuard::Off);
    let lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    assert!(lock.granted_by().any(|node| node == 0));
    assert!(names.asked("m0") >= 2);
}

#[test]
fn numbers_and_paths_are_never_looked_up() {
    let master = Master::start_with_socket().unwrap();
    let other = Master::start().unwrap();
    let socket = format!("unix://{}", master.socket_path().unwrap().display());
    let urls = [socket, other.url(), "redis://[::1]:1".to_owned()];
    let builder = testbed::patient(urls);
    let redlock = builder.resolver(|name, _| panic!("{name} was looked up")).connect().unwrap();
    assert_eq!(locks(&redlock), 2);
    assert!(matches!(redlock.nodes()[2].last_failure, Some(NodeOutcome::Disconnected(_))));
}

#[test]
fn addresses_of_a_name_are_tried_in_turn() {
    let masters = start(1);
    let refused = refused_addr();
    let names = Names::default();
    names.set_all("m0", vec![refused, address(&masters[0])]);
    let redlock = patient(["m0"], &names).connect().unwrap();
    assert_eq!((locks(&redlock), names.asked("m0")), (1, 1));

    // Nobody answers at the first: it is the other one's turn, wherever that stands then.
    let silent = never_accepting();
    for turns in [0, 1] {
        let found = [silent.addr(), address(&masters[0])];
        let asked = AtomicUsize::new(0);
        let builder = testbed::patient(["redis://m0"]).connect_timeout(SHORT);
        let builder = builder.resolver(move |_, _| {
            let mut found = found.to_vec();
            found.rotate_left(turns * asked.fetch_add(1, Ordering::Relaxed) % 2);
            Ok(found)
        });
        let redlock = builder.build().unwrap();
        soon("it is found", || redlock.try_lock_for(KEY, TTL, SHORT).is_ok());
    }
}

/// The first address accepts nothing and sends nothing: the second begins in the meantime.
#[test]
fn silent_address_takes_no_longer_than_its_share() {
    let silent = never_accepting();
    let master = Master::start_with(&["--bind", "127.0.0.1", "127.0.0.2"]).unwrap();
    let there = SocketAddr::from(([127, 0, 0, 2], master.port()));
    let names = Names::default();
    names.set_all("m0", vec![silent.addr(), there]);
    let redlock = patient(["m0"], &names).build().unwrap();
    // The connect timeout is longer than any test.
    let (took, result) = timed(|| redlock.try_lock(KEY, TTL));
    assert!(result.is_ok() && took < SOON, "{took:?}");
    assert_eq!(names.asked("m0"), 1);
}

#[test]
fn addresses_that_were_tried_are_named() {
    let silent = never_accepting();
    let refused = refused_addr_at(Ipv4Addr::new(127, 0, 0, 2));
    let names = Names::default();
    names.set_all("m0", vec![silent.addr(), refused]);
    let redlock = hasty(["m0"], &names).build().unwrap();
    let both = [
        format!("tried {}, {refused}", silent.addr()),
        format!("tried {refused}, {}", silent.addr()),
    ];
    soon("both are named", || {
        let error = redlock.try_lock(KEY, TTL).unwrap_err().to_string();
        both.iter().any(|both| error.contains(both))
    });
    names.set_all("m1", vec![refused]);
    let error = patient(["m1"], &names).build().unwrap().try_lock(KEY, TTL).unwrap_err();
    assert!(!error.to_string().contains("tried"), "it has one: {error}");
}

/// A user that may not ask who the server is.
fn blind(master: &Master, host: &str) -> String {
    let words = ["ACL", "SETUSER", "blind", "on", ">secret", "~*", "+@all", "-info"];
    let told = master.query(&words.map(str::as_bytes)).unwrap();
    assert_eq!(told, Value::Status("OK".into()));
    format!("blind:secret@{host}")
}

#[test]
fn name_at_another_nodes_address_has_no_vote_of_its_own() {
    let mut masters = start(2);
    let names = Names::of(&masters);
    names.set("alias", &masters[0]);
    let number = masters[0].addr();
    for twin in ["m0", &number] {
        let hosts = [twin, "alias"].map(|host| blind(&masters[0], host));
        let other = blind(&masters[1], "m1");
        let redlock = patient([&hosts[0], &hosts[1], &other], &names).build().unwrap();
        let unfit = Some(NodeOutcome::Unfit(Unfit::Duplicate));
        soon("it is found out", || {
            drop(redlock.try_lock(KEY, TTL));
            redlock.nodes().iter().any(|node| node.last_failure == unfit)
        });
        assert_eq!(locks(&redlock), 2);
        masters[1].kill().unwrap();
        let error = redlock.try_lock(KEY, TTL).unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        let refused = error.nodes().iter().find(|node| Some(node.outcome) == unfit).unwrap();
        let twin = &error.nodes()[1 - refused.node];
        assert_eq!(refused.message.as_ref(), Some(&twin.address), "it names the other one");
        masters[1].restart().unwrap();
    }
}

#[test]
fn one_name_or_number_twice_is_a_configuration_error() {
    for twins in [["m0", "M0:6379"], ["127.0.0.1", "127.0.0.1:6379/1"], ["[::1]", "[0::1]"]] {
        let error = patient(twins, &Names::default()).config().unwrap_err();
        assert!(matches!(error, ConfigError::Duplicate { .. }), "{error}");
    }
    let others = patient(["m0", "m0:7000", "m1", "127.0.0.1", "[::1]"], &Names::default());
    assert!(others.config().is_ok());
}

/// By itself, in a process whose threads and descriptors are its own.
#[cfg(target_os = "linux")]
#[test]
fn lookup_leaves_neither_thread_nor_descriptor() {
    const TEST: &str = "lookup_leaves_neither_thread_nor_descriptor";
    if !is_child(TEST) {
        run_child(&mut re_execute(TEST));
        return;
    }
    let masters = start(3);
    let names = Names::of(&masters);
    let numbers: Vec<_> = masters.iter().map(Master::addr).collect();
    let by_number = patient([&numbers[0], &numbers[1], &numbers[2]], &names).connect().unwrap();
    all_ready(&by_number);
    let connected = descriptors();
    drop(by_number);
    let (threads, closed) = (status_figure("Threads"), descriptors());

    let by_name = patient(["m0", "m1", "m2"], &names).connect().unwrap();
    all_ready(&by_name);
    soon("the threads are gone", || status_figure("Threads") == threads);
    assert_eq!(descriptors(), connected);
    drop(by_name);
    // What a lookup leaves that outlives its client.
    names.stick();
    assert!(hasty(["m0", "m1", "m2"], &names).connect().is_err());
    assert_eq!(status_figure("Threads"), threads + 3);
    names.unstick();
    soon("the threads are gone", || status_figure("Threads") == threads);
    assert_eq!(descriptors(), closed);
}

/// By itself, in a process that has used up its descriptors.
#[cfg(unix)]
#[test]
fn lookup_that_cannot_be_started_is_an_outcome() {
    const TEST: &str = "lookup_that_cannot_be_started_is_an_outcome";
    if !is_child(TEST) {
        let plain = re_execute(TEST);
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""]).arg(plain.get_program());
        limited.args(plain.get_args());
        limited.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        run_child(&mut limited);
        return;
    }
    let masters = start(3);
    let redlock = patient(["m0", "m1", "m2"], &Names::of(&masters)).build().unwrap();
    let mut hogs = Vec::new();
    while let Ok(hog) = File::open("/dev/null") {
        hogs.push(hog);
    }
    let error = redlock.try_lock(KEY, TTL).unwrap_err();
    let failed = |outcome: &&NodeOutcome| **outcome == NodeOutcome::AtLimit;
    assert!(error.is_unavailable(), "{error}");
    let words = "Too many open files (os error 24): raise the limit of open files (ulimit -n)";
    assert!(error.to_string().contains(words), "{error}");
    assert!(outcomes(&error).iter().filter(failed).count() >= 2, "{error}");
    drop(hogs);
    all_ready(&redlock);
}

#[test]
fn nothing_is_looked_up_before_it_is_needed_and_no_secret_is_shown() {
    let names = Names::default();
    let builder = patient(["user:sesame@m0", "user:sesame@m1"], &names);
    let redlock = builder.build().unwrap();
    pause(Duration::from_millis(20));
    assert_eq!(names.known().asked.len(), 0);
    let error = redlock.try_lock(KEY, TTL).unwrap_err();
    let config = builder.config().unwrap();
    let shown = format!("{builder:?} {config:?} {redlock:?} {error} {error:?}");
    assert!(!shown.contains("sesame"), "{shown}");
}
