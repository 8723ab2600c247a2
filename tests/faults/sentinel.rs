//! One master with two replicas and three Sentinels, as one node: a failover loses locks, and what
//! it has lost is waited out.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::scene::{KEY, LONG, all_vote, owner};
use muxlock::error::ServerErrorKind;
use muxlock::node::{NodeOutcome, QuarantineCause};
use muxlock::settings::RestartGuard;
use muxlock::{Builder, Redlock};
use testbed::{
    FAILED_OVER, SOON, Sentinel, Site, Stopwatch, ask, info, outcomes, patient, ready,
    scripts_write_anyway, soon, within,
};

/// Longer than a failover takes, so that a lock is still valid when it is over.
const MAX_TTL: Duration = Duration::from_secs(10);
/// For a client that is to vote soon.
const BRIEF: Duration = Duration::from_secs(1);

/// A client that votes when its `max_ttl` is over.
fn votes(client: &Builder) -> Redlock {
    let client = client.connect().unwrap();
    within(MAX_TTL + FAILED_OVER, "it votes", || ready(&client) == 1);
    client
}

/// The settings of a client that waits out what a failover has lost.
fn guarded(site: &Site) -> Builder {
    patient([site.url()]).restart_guard(RestartGuard::Uptime).max_ttl(MAX_TTL)
}

/// A client that votes: the Sentinels have known the master for long enough.
fn voter(site: &Site) -> Redlock {
    votes(&guarded(site))
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    /// It comes back, and becomes a replica.
    Freeze,
    /// An operator asks for a failover.
    Order,
}

impl Fault {
    fn happen(self, site: &mut Site) {
        match self {
            Fault::Kill => site.servers[0].kill().unwrap(),
            Fault::Freeze => site.servers[0].freeze().unwrap(),
            Fault::Order => self.order(site),
        }
    }

    fn order(self, site: &Site) {
        let mut stream = TcpStream::connect(("127.0.0.1", site.sentinels[0].port())).unwrap();
        stream.write_all(b"SENTINEL FAILOVER mymaster\r\n").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+OK\r\n");
    }
}

/// A lock that the failover has lost: the promoted server did not get it in time.
fn lost_by(fault: Fault, site: &mut Site) {
    fault.happen(site);
    let promoted = site.promoted();
    ask(promoted, &["DEL", KEY]);
    assert_eq!(owner(promoted, KEY), None);
}

/// No second holder while the first is valid; afterwards the lock can be had again, also by a
/// client that has just started.
fn waited_out(fault: Fault) {
    let mut site = Site::start();
    let [first, second] = [(); 2].map(|()| voter(&site));
    let held = first.try_lock(KEY, MAX_TTL).unwrap();
    let watch = Stopwatch::start();
    lost_by(fault, &mut site);
    let failed_over = watch.elapsed();
    assert!(held.is_valid(), "the failover took too long for this test: {failed_over:?}");
    if matches!(fault, Fault::Freeze) {
        site.servers[0].thaw().unwrap();
    }
    let next = second.try_lock_for(KEY, MAX_TTL, FAILED_OVER).unwrap();
    assert!(!held.is_valid(), "{fault:?}: two holders");
    let without = watch.elapsed();
    println!("{fault:?}: failed over after {failed_over:.1?}, next lock after {without:.1?}");
    assert!(next.unlock().unwrap().was_held());
    // The Sentinels know for how long the new master has been one.
    let sooner = MAX_TTL / 2;
    let young = guarded(&site).connect().unwrap();
    within(sooner, "it votes soon", || young.nodes()[0].quarantine.is_none());
    assert!(young.try_lock(KEY, MAX_TTL).unwrap().unlock().unwrap().was_held());
    if !matches!(fault, Fault::Kill) {
        let old = &site.servers[0];
        within(FAILED_OVER, "it is a replica", || info(old, "replication", "role") == "slave");
        let lock = second.try_lock(KEY, MAX_TTL).unwrap();
        assert!(lock.unlock().unwrap().was_held());
    }
}

/// A Sentinel that is not there would be waited for in vain.
#[test]
fn slow_sentinel_does_not_start_on_a_port_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(Sentinel::start_on(taken.local_addr().unwrap().port(), "").is_none());
}

/// At the same time: they wait most of the time.
#[test]
fn slow_locks_that_a_failover_lost_are_waited_out() {
    thread::scope(|scope| {
        for fault in [Fault::Kill, Fault::Freeze, Fault::Order] {
            scope.spawn(move || waited_out(fault));
        }
    });
}

/// A client that starts right after the failover learns from the Sentinels that the master is new.
#[test]
fn slow_client_that_starts_after_a_failover_waits_too() {
    let mut site = Site::start();
    let first = all_vote(&guarded(&site).restart_guard(RestartGuard::Off));
    let held = first.try_lock(KEY, MAX_TTL).unwrap();
    lost_by(Fault::Kill, &mut site);
    let young = guarded(&site).connect().unwrap();
    let quarantine = young.nodes()[0].quarantine.expect("it was a replica");
    assert_eq!(quarantine.cause, QuarantineCause::Promoted);
    assert!(young.try_lock(KEY, MAX_TTL).is_err() && held.is_valid());
    // Processes that come later wait for the rest only, and at last not at all.
    let process = || guarded(&site).connect().unwrap().try_lock(KEY, MAX_TTL).map(drop);
    within(MAX_TTL + FAILED_OVER, "a later process gets it", || process().is_ok());
    assert!(!held.is_valid());
    process().expect("so does the next one");
}

/// The control: without the guard, there are two holders.
#[test]
fn slow_without_the_guard_a_failover_makes_two_holders() {
    let mut site = Site::start();
    let off = guarded(&site).restart_guard(RestartGuard::Off).max_ttl(LONG);
    let [first, second] = [(); 2].map(|()| all_vote(&off));
    let held = first.try_lock(KEY, LONG).unwrap();
    lost_by(Fault::Kill, &mut site);
    let _other = second.try_lock_for(KEY, LONG, FAILED_OVER).unwrap();
    assert!(held.is_valid(), "two holders");
}

/// A master that is cut off from its replicas neither grants nor extends, so that its locks are
/// over when those of the promoted one begin to count.
#[test]
fn slow_master_without_replicas_neither_grants_nor_extends() {
    let site = Site::start();
    let off = guarded(&site).restart_guard(RestartGuard::Off);
    let client = all_vote(&off.max_ttl(LONG));
    let mut held = client.try_lock("held", LONG).unwrap();
    site.servers[1..].iter().for_each(|replica| replica.freeze().unwrap());
    let no_replicas = [NodeOutcome::Server(ServerErrorKind::NoReplicas)];
    let refused = |client: &Redlock| match client.try_lock(KEY, LONG) {
        Ok(lock) => drop(lock),
        Err(error) => assert_eq!(outcomes(&error), no_replicas),
    };
    soon("it grants nothing", || {
        refused(&client);
        client.try_lock(KEY, LONG).is_err()
    });
    let test = "slow_master_without_replicas_neither_grants_nor_extends";
    if scripts_write_anyway(&site.servers[0], test) {
        return;
    }
    let error = held.extend(LONG).unwrap_err();
    assert_eq!(outcomes(&error), no_replicas);
    site.servers[1..].iter().for_each(|replica| replica.thaw().unwrap());
    soon("it grants again", || client.try_lock(KEY, LONG).is_ok());
}

/// A client whose connection lasts follows the Sentinels all the same.
#[test]
fn slow_connected_client_follows_a_failover() {
    let site = Site::start();
    let client = votes(&guarded(&site).max_ttl(BRIEF));
    let run_id = client.nodes()[0].run_id.clone();
    // The old master goes on, and no Sentinel can tell it that it is no longer the master.
    ask(&site.servers[0], &["ACL", "SETUSER", "default", "-slaveof", "-replicaof", "-client|kill"]);
    Fault::Order.order(&site);
    site.promoted();
    soon("it has followed", || {
        let node = &client.nodes()[0];
        node.run_id.is_some() && node.run_id != run_id
    });
}

/// Sentinels that are down, or know nothing, cost nothing while another answers.
#[test]
fn slow_one_sentinel_that_answers_is_enough() {
    let mut site = Site::start();
    let _ = site.sentinels[0].process.kill();
    let freeze = format!("kill -STOP {}", site.sentinels[1].process.id());
    assert!(Command::new("sh").args(["-c", &freeze]).status().unwrap().success());
    // A Sentinel has a third of this.
    let settings = guarded(&site).max_ttl(BRIEF).connect_timeout(SOON);
    let client = settings.connect().unwrap();
    within(FAILED_OVER, "it votes", || client.try_lock(KEY, BRIEF).is_ok());
    let _ = site.sentinels[2].process.kill();
    let _ = site.sentinels[2].process.wait();
    assert!(client.try_lock(KEY, BRIEF).is_ok(), "it stays connected");
    let none = settings.connect().unwrap_err().to_string();
    assert!(none.contains("no Sentinel reported where the master is"), "{none}");
}
