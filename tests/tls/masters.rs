//! Locks over TLS, on real masters.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use mio::{Events, Poll, Token};
use muxlock::node::{NodeOutcome, NodeState, Phase};
use muxlock::proto::Done;
use muxlock::settings::Tls;
use muxlock::testing::{Master, TlsFiles};
use muxlock::{KeepAlive, Multiplexer, Redlock};
use testbed::{
    Authority, PATIENT, SOON, TTL, all_ready, end_connection, outcomes, patient, soon,
    start_with_tls, timed, tls_addr, waited,
};

use crate::front::Tap;

pub const KEY: &str = "invoice:42";
/// A connect timeout that is waited for.
const SHORT: Duration = Duration::from_millis(300);

pub fn start_three(files: &TlsFiles) -> Vec<Master> {
    (0..3).map(|_| start_with_tls(files, &[])).collect()
}

#[track_caller]
pub fn locks_and_unlocks(redlock: &Redlock) {
    for _ in 0..10 {
        let mut lock = redlock.try_lock(KEY, TTL).unwrap_or_else(|error| panic!("{error}"));
        lock.extend(TTL).unwrap();
        assert!(lock.unlock().unwrap().was_held());
    }
}

#[test]
fn slow_locks_are_taken_extended_kept_and_released() {
    let authority = Authority::new();
    let masters = start_three(&authority.sign(&["127.0.0.1"]));
    let urls = masters.iter().map(|master| authority.trusting(master));
    let redlock = all_ready(&patient(urls));
    locks_and_unlocks(&redlock);
    let lock = redlock.try_lock(KEY, Duration::from_secs(3)).unwrap();
    let kept = lock.keep_alive(KeepAlive::default()).unwrap_or_else(|error| panic!("{error}"));
    soon("it is renewed twice", || kept.renewals() >= 2);
    assert!(kept.unlock().unwrap().was_held());
    for master in &masters {
        soon("the key is gone", || master.pttl(KEY.as_bytes()).unwrap() == -2);
    }
}

#[test]
fn server_is_verified_by_name_and_by_both_kinds_of_address() {
    let authority = Authority::new();
    let files = authority.sign(&["127.0.0.1", "::1", "localhost", "lock-3.test"]);
    let masters: Vec<_> =
        (0..4).map(|_| start_with_tls(&files, &["--bind", "127.0.0.1", "::1"])).collect();
    let ca = authority.ca();
    let hosts = ["127.0.0.1", "[::1]", "localhost", "lock-3.test"];
    let urls = hosts.iter().zip(&masters).map(|(host, master)| {
        format!("rediss://{host}:{}?ca={}", tls_addr(master).port(), ca.display())
    });
    let loopback = |_: &str, port: u16| Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]);
    let redlock = all_ready(&patient(urls).resolver(loopback));
    locks_and_unlocks(&redlock);

    // The certificate has the name, and not this address.
    let named = start_with_tls(&authority.sign(&["redis-1"]), &[]);
    let url = format!("{}&server_name=redis-1", authority.trusting(&named));
    locks_and_unlocks(&all_ready(&patient([url])));
}

#[test]
fn both_versions_and_a_password_work() {
    let authority = Authority::new();
    let files = authority.sign(&["127.0.0.1"]);
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let master =
            start_with_tls(&files, &["--tls-protocols", protocol, "--requirepass", "sesame"]);
        let url = authority.trusting(&master).replace("://", "://:sesame@");
        locks_and_unlocks(&all_ready(&patient([url])));
    }
}

#[test]
fn client_shows_its_certificate() {
    let authority = Authority::new();
    let files = authority.sign(&["127.0.0.1"]);
    let me = authority.sign(&["me"]);
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let strict = ["--tls-auth-clients", "yes", "--tls-protocols", protocol];
        let master = start_with_tls(&files, &strict);
        let url = authority.trusting(&master);
        let parameters = format!("&cert={}&key={}", me.cert.display(), me.key.display());
        locks_and_unlocks(&all_ready(&patient([url + &parameters])));
        let read = |path| std::fs::read(path).unwrap();
        let tls = Tls::new().ca_pem(read(&me.ca)).client_cert_pem(read(&me.cert), read(&me.key));
        locks_and_unlocks(&all_ready(&patient([master.tls_url().unwrap()]).tls(tls)));
    }
}

/// A reconnection is a new handshake, and a shorter one.
#[test]
fn killed_connection_resumes_its_session() {
    let authority = Authority::new();
    let files = authority.sign(&["127.0.0.1"]);
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let master = start_with_tls(&files, &["--tls-protocols", protocol]);
        let tap = Tap::start(tls_addr(&master), usize::MAX);
        let url = format!("rediss://{}?ca={}", tap.addr(), authority.ca().display());
        let redlock = all_ready(&patient([url]));
        locks_and_unlocks(&redlock);
        end_connection(&master);
        soon("it is connected again", || {
            let _ = redlock.try_lock(KEY, TTL);
            redlock.nodes()[0].state == NodeState::Ready && tap.connections() == 2
        });
        locks_and_unlocks(&redlock);
        // The certificate alone has more bytes than the difference.
        let firsts = tap.first_flights();
        assert!(firsts[0] > firsts[1] + 300, "{protocol}: bytes of the servers' first: {firsts:?}");
    }
}

/// R32: a broken file fails the connections that follow, and no other.
#[test]
fn replaced_certificate_is_shown_with_the_next_connection() {
    let authority = Authority::new();
    let master = start_with_tls(&authority.sign(&["127.0.0.1"]), &["--tls-auth-clients", "yes"]);
    let (old, new) = (authority.sign(&["old"]), authority.sign(&["new"]));
    let (cert, key) = (authority.file("me.pem"), authority.file("me-key.pem"));
    let replace = |files: &TlsFiles| {
        fs::copy(&files.cert, &cert).unwrap();
        fs::copy(&files.key, &key).unwrap();
    };
    replace(&old);
    let files = format!("&cert={}&key={}", cert.display(), key.display());
    let tap = Tap::start(tls_addr(&master), usize::MAX);
    let url = format!("rediss://{}?ca={}{files}", tap.addr(), authority.ca().display());
    let redlock = all_ready(&patient([url]));
    locks_and_unlocks(&redlock);

    fs::write(&cert, "-----BEGIN CERTIFICATE-----\nzqx\n").unwrap();
    locks_and_unlocks(&redlock);
    end_connection(&master);
    let why = format!("TLS failed (other): cert={} is damaged", cert.display());
    soon("it is said why", || {
        let error = redlock.try_lock(KEY, TTL).err().map(|it| it.to_string());
        error.is_some_and(|text| text.contains(&why) && !text.contains("zqx"))
    });
    fs::remove_file(&cert).unwrap();
    let why = format!("cert={} cannot be read: No such file", cert.display());
    soon("it is said why", || {
        redlock.try_lock(KEY, TTL).is_err_and(|error| error.to_string().contains(&why))
    });
    replace(&new);
    soon("it is connected again", || {
        redlock.try_lock(KEY, TTL).is_ok_and(|lock| lock.unlock().is_ok())
    });
    locks_and_unlocks(&redlock);
    // Nothing of the session of the old certificate was resumed: the server showed its own again.
    let firsts = tap.first_flights();
    assert!(firsts[1].abs_diff(firsts[0]) < 300, "bytes of the servers' first: {firsts:?}");
}

#[test]
fn restarted_master_is_verified_again() {
    let authority = Authority::new();
    let mut masters = start_three(&authority.sign(&["127.0.0.1"]));
    let redlock = all_ready(&patient(masters.iter().map(|it| authority.trusting(it))));
    locks_and_unlocks(&redlock);
    for master in &mut masters {
        master.restart().unwrap();
    }
    soon("all are connected again", || {
        let _ = redlock.try_lock(KEY, TTL);
        redlock.nodes().iter().all(|node| node.state == NodeState::Ready)
    });
    let lock = redlock.try_lock_for(KEY, TTL, SOON).unwrap();
    assert!(lock.unlock().unwrap().was_held());
}

#[test]
fn master_that_freezes_in_the_handshake_costs_one_vote() {
    let authority = Authority::new();
    let masters = start_three(&authority.sign(&["127.0.0.1"]));
    masters[1].freeze().unwrap();
    let urls = masters.iter().map(|master| authority.trusting(master));
    let redlock = patient(urls).connect_timeout(SHORT).build().unwrap();
    let (time, lock) = timed(|| redlock.try_lock(KEY, TTL).unwrap());
    assert!(time < PATIENT, "{time:?}");
    soon("its handshake is given up", || {
        let _ = redlock.try_lock("another", TTL);
        redlock.nodes()[1].last_failure == Some(NodeOutcome::TimedOut(Phase::Tls))
    });
    assert!(lock.unlock().unwrap().was_held());
    masters[1].thaw().unwrap();
    soon("it votes", || {
        let _ = redlock.try_lock("another", TTL);
        redlock.nodes()[1].state == NodeState::Ready
    });
}

/// Records of which each byte arrives alone.
#[test]
fn bytes_that_arrive_one_by_one_are_put_together() {
    let authority = Authority::new();
    let files = authority.sign(&["127.0.0.1"]);
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let master = start_with_tls(&files, &["--tls-protocols", protocol]);
        let tap = Tap::start(tls_addr(&master), 1);
        let url = format!("rediss://{}?ca={}", tap.addr(), authority.ca().display());
        let redlock = all_ready(&patient([url]));
        locks_and_unlocks(&redlock);
        assert_eq!(tap.connections(), 1, "no connection was given up");
    }
}

/// More replies come than one turn handles, and the poll announces them once.
#[test]
fn slow_many_replies_at_once_are_all_handled() {
    const LOCKS: usize = 4_000;
    let authority = Authority::new();
    let masters = start_three(&authority.sign(&["127.0.0.1"]));
    let urls = masters.iter().map(|master| authority.trusting(master));
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(16);
    let mux = Multiplexer::new(patient(urls).config().unwrap(), poll.registry(), Token(0));
    let mut mux = mux.unwrap();
    let mut turn = |mux: &mut Multiplexer| {
        waited(poll.poll(&mut events, mux.next_timeout()));
        mux.handle_events(&events);
    };
    mux.connect();
    while !mux.nodes().all(|node| node.state == NodeState::Ready && node.in_flight == 0) {
        turn(&mut mux);
    }
    for _ in 0..3 {
        for at in 0..LOCKS {
            mux.try_lock(format!("invoice:{at}"), TTL).unwrap();
        }
        // All answers are there before one is read.
        masters.iter().for_each(|master| master.freeze().unwrap());
        mux.flush();
        masters.iter().for_each(|master| master.thaw().unwrap());
        testbed::pause(Duration::from_millis(300));
        let mut leases = Vec::new();
        while leases.len() < LOCKS {
            turn(&mut mux);
            while let Some((_, done)) = mux.poll_done() {
                match done {
                    Done::Acquired(lease) => leases.push(lease.unwrap()),
                    other => panic!("{other:?}"),
                }
            }
        }
        for lease in leases {
            mux.unlock(lease);
        }
        let mut released = 0;
        while released < LOCKS {
            turn(&mut mux);
            while let Some((_, done)) = mux.poll_done() {
                assert!(matches!(done, Done::Released(Ok(_))), "{done:?}");
                released += 1;
            }
        }
    }
    assert_eq!(mux.nodes().filter(|node| node.last_failure.is_some()).count(), 0);
}

/// What a frozen master does not read is kept, encrypted, and sent later.
#[test]
fn commands_that_the_socket_does_not_accept_are_sent_later() {
    const LOCKS: usize = 20_000;
    let authority = Authority::new();
    let master = start_with_tls(&authority.sign(&["127.0.0.1"]), &[]);
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(16);
    let config = patient([authority.trusting(&master)]).config().unwrap();
    let mut mux = Multiplexer::new(config, poll.registry(), Token(0)).unwrap();
    mux.connect();
    while !mux.nodes().all(|node| node.state == NodeState::Ready && node.in_flight == 0) {
        waited(poll.poll(&mut events, mux.next_timeout()));
        mux.handle_events(&events);
    }
    master.freeze().unwrap();
    let name = "n".repeat(900);
    for at in 0..LOCKS {
        mux.try_lock(format!("{name}{at}"), TTL).unwrap();
        if at % 1_000 == 0 {
            mux.flush();
        }
    }
    mux.flush();
    master.thaw().unwrap();
    let mut granted = 0;
    while granted < LOCKS {
        waited(poll.poll(&mut events, mux.next_timeout()));
        mux.handle_events(&events);
        while let Some((_, done)) = mux.poll_done() {
            assert!(matches!(done, Done::Acquired(Ok(_))), "{granted}: {done:?}");
            granted += 1;
        }
    }
    assert_eq!(master.dbsize().unwrap() as usize, LOCKS);
    assert_eq!(mux.nodes().next().unwrap().last_failure, None);
}

#[test]
fn hints_are_given_when_the_port_speaks_the_other_protocol() {
    let authority = Authority::new();
    let master = start_with_tls(&authority.sign(&["127.0.0.1"]), &[]);
    let said = |url: &str| {
        let redlock = patient([url]).connect_timeout(SHORT).build().unwrap();
        let error = redlock.try_lock(KEY, TTL).unwrap_err();
        (outcomes(&error)[0], error.to_string())
    };
    let wrong = format!("rediss://{}?ca={}", master.addr(), authority.ca().display());
    let (outcome, text) = said(&wrong);
    assert_eq!(outcome, NodeOutcome::TimedOut(Phase::Tls));
    assert!(text.contains("timed out (TLS handshake; does this port speak TLS?)"), "{text}");

    let (outcome, text) = said(&format!("redis://{}", tls_addr(&master)));
    assert!(matches!(outcome, NodeOutcome::Disconnected(_)), "{text}");
    assert!(text.contains("write rediss:// if this port speaks TLS"), "{text}");
}
