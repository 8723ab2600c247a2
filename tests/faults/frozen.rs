//! Masters that do not answer for a while: stopped, paused, asleep; with connections that last and
//! connections that are lost meanwhile.

use std::time::Duration;

use muxlock::LockErrorKind;
use muxlock::node::{NodeOutcome, NodeState, Phase};
use muxlock::settings::Wait;

use crate::scene::{
    KEY, LONG, all_vote, calls, clean_again, hasty, node_soon, pttl, refused, start, start_one,
    start_with, tell, trusting, unavailable, works,
};
use crate::wire::{Cut, Detour, Wire, cut_at_the_first_set};
use muxlock::testing::Master;
use testbed::{SOON, ask, is_older_than, soon, timed, within};

const SILENT: NodeOutcome = NodeOutcome::TimedOut(Phase::Reply);

#[track_caller]
fn freeze(master: &Master) {
    master.freeze().unwrap_or_else(|error| panic!("{error}"));
}

#[track_caller]
fn thaw(master: &Master) {
    master.thaw().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn frozen_majority_thawed_keys_of_dead_attempts_are_gone_within_a_second() {
    const ATTEMPTS: u64 = 5;
    let masters = start(5);
    let redlock = all_vote(&hasty(masters.urls()));
    masters.iter().take(3).for_each(freeze);
    for _ in 0..ATTEMPTS {
        assert_eq!(unavailable(redlock.try_lock(KEY, LONG), 0), SILENT);
    }
    masters.iter().take(3).for_each(thaw);
    // Nobody calls the client: each release waits in the socket, behind its SET (R10).
    clean_again("SIGSTOP and SIGCONT", &masters, ATTEMPTS, || {});
    works(&redlock);
}

#[test]
fn frozen_master_thawed_runs_the_set_of_a_sender_that_is_gone() {
    // The control: without a release, what was sent to a stopped process lives for its whole TTL.
    let master = start_one(&[]);
    let mut wire = Wire::connect(&master.addr()).unwrap();
    assert_eq!(wire.ask(&["PING"]).unwrap(), "+PONG\r\n");
    freeze(&master);
    wire.send(&["SET", KEY, "ghost", "NX", "PX", "600000"]).unwrap();
    drop(wire);
    thaw(&master);
    soon("the ghost is there", || pttl(&master, KEY) > 0);
    println!("control: a ghost's key lives for another {} ms", pttl(&master, KEY));
    assert!(pttl(&master, KEY) > 590_000);
}

#[test]
fn frozen_master_cut_off_then_thawed_its_ghost_is_gone_within_a_second() {
    for cut in [Cut::AndClosed, Cut::AndHeldOpen] {
        let master = start_one(&[]);
        let way = cut_at_the_first_set(&master, cut);
        let redlock = all_vote(&hasty([way.url()]));
        freeze(&master);
        let outcome = unavailable(redlock.try_lock(KEY, LONG), 0);
        assert!(matches!(outcome, NodeOutcome::Disconnected(_)), "{outcome:?}");
        node_soon(&redlock, 0, "the client is coming back", |_| way.accepted() >= 2);
        thaw(&master);
        // The lost connection did not cancel its SET, which runs now; so the next one has to.
        clean_again(&format!("a connection cut {cut:?}, and SIGCONT"), [&master], 1, || {
            redlock.nodes();
        });
        assert_eq!(calls(&master, "set"), 1);
        node_soon(&redlock, 0, "nothing is owed", |node| node.pending_releases == 0);
        works(&redlock);
    }
}

#[test]
fn slow_frozen_master_given_up_then_thawed_its_ghosts_are_gone_within_a_second() {
    const ATTEMPTS: u64 = 3;
    let master = start_one(&[]);
    let redlock = all_vote(&hasty([master.url()]));
    freeze(&master);
    for _ in 0..ATTEMPTS {
        assert_eq!(unavailable(redlock.try_lock(KEY, LONG), 0), SILENT);
    }
    // A connection that owes replies is dropped after ten seconds of silence. What it carried
    // stays in the socket of the stopped process.
    let (took, ()) = timed(|| {
        within(Duration::from_secs(20), "the connection is given up", || {
            redlock.nodes();
            redlock.stats().disconnected > 0
        });
    });
    println!("measured: a silent connection was given up after {took:?}");
    thaw(&master);
    let in_use = || drop(redlock.nodes());
    clean_again("ten seconds of SIGSTOP", [&master], ATTEMPTS, in_use);
    node_soon(&redlock, 0, "nothing is owed", |node| node.pending_releases == 0);
    works(&redlock);
}

#[test]
fn late_set_of_a_lost_connection_never_runs_behind_its_release() {
    let master = start_one(&[]);
    let detour = Detour::start(&master);
    let redlock = all_vote(&hasty([detour.way.url()]));
    let outcome = unavailable(redlock.try_lock(KEY, LONG), 0);
    assert!(matches!(outcome, NodeOutcome::Disconnected(_)), "{outcome:?}");
    node_soon(&redlock, 0, "everything owed is released", |node| {
        node.state == NodeState::Ready && node.pending_releases + node.in_flight == 0
    });
    // CLIENT KILL has ended the connection that the SET comes in on (R12).
    assert!(!detour.arrive(), "it ran");
    assert_eq!((calls(&master, "set"), pttl(&master, KEY)), (0, -2));
    assert_eq!(redlock.stats().connections_killed, 1);
    works(&redlock);
}

#[test]
fn late_set_of_a_lost_connection_that_could_not_be_killed_stays() {
    // The control: the user may not CLIENT KILL, and the release is only repeated.
    let master = start_one(&[]);
    let rights = ["on", ">secret", "~*", "+@all", "-client"];
    tell(&master, &[["ACL", "SETUSER", "meek"].as_slice(), &rights].concat());
    let detour = Detour::start(&master);
    let redlock = all_vote(&hasty([format!("redis://meek:secret@{}", detour.way.addr())]));
    unavailable(redlock.try_lock(KEY, LONG), 0);
    node_soon(&redlock, 0, "everything owed is released", |node| {
        node.state == NodeState::Ready && node.pending_releases + node.in_flight == 0
    });
    assert!(detour.arrive(), "the control shows nothing");
    println!("control: a late SET lives for another {} ms", pttl(&master, KEY));
    assert!(pttl(&master, KEY) > 590_000);
    // It costs liveness only (R13): nobody can count it.
    assert!(refused(redlock.try_lock(KEY, LONG)).is_contended());
}

#[test]
fn slow_paused_majority_unpaused_keys_of_dead_attempts_are_gone_within_a_second() {
    let test = "slow_paused_majority_unpaused_keys_of_dead_attempts_are_gone_within_a_second";
    if is_older_than([6, 2, 6], test, "CLIENT PAUSE with a mode, that ends in time") {
        return;
    }
    const ATTEMPTS: u64 = 3;
    for mode in ["WRITE", "ALL"] {
        let masters = start(3);
        let redlock = all_vote(&hasty(masters.urls()));
        tell(&masters[0], &["CLIENT", "PAUSE", "60000", "WRITE"]);
        works(&redlock);
        tell(&masters[0], &["CLIENT", "UNPAUSE"]);
        soon("the pause is over", || calls(&masters[0], "set") == 1);

        // Nothing but time ends a pause of all commands.
        for master in masters.iter().take(2) {
            tell(master, &["CLIENT", "PAUSE", "1000", mode]);
        }
        for _ in 0..ATTEMPTS {
            assert_eq!(unavailable(redlock.try_lock(KEY, LONG), 0), SILENT);
        }
        for master in masters.iter().take(2) {
            match mode {
                "WRITE" => tell(master, &["CLIENT", "UNPAUSE"]),
                _ => drop(ask(master, &["PING"])),
            }
        }
        clean_again(&format!("CLIENT PAUSE {mode}"), &masters, 1 + ATTEMPTS, || {});
        works(&redlock);
    }
}

#[test]
fn sleeping_majority_awake_keys_of_dead_attempts_are_gone_within_a_second() {
    let test = "sleeping_majority_awake_keys_of_dead_attempts_are_gone_within_a_second";
    if is_older_than([7, 0, 0], test, "enable-debug-command") {
        return;
    }
    let masters = start_with(3, &["--enable-debug-command", "yes"]);
    let redlock = all_vote(&hasty(masters.urls()));
    let mut wires: Vec<_> = masters
        .iter()
        .take(2)
        .map(|master| {
            let mut wire = Wire::connect(&master.addr()).unwrap();
            assert_eq!(wire.ask(&["PING"]).unwrap(), "+PONG\r\n");
            wire.send(&["DEBUG", "SLEEP", "0.8"]).unwrap();
            wire
        })
        .collect();
    let (took, outcome) = timed(|| unavailable(redlock.try_lock(KEY, LONG), 0));
    assert_eq!(outcome, SILENT);
    assert!(took < SOON, "{took:?}");
    for wire in &mut wires {
        assert_eq!(wire.reply().unwrap(), b"+OK\r\n");
    }
    clean_again("DEBUG SLEEP", &masters, 1, || {});
    works(&redlock);
}

#[test]
fn frozen_minority_thawed_holder_releases_everywhere_within_a_second() {
    let masters = start(3);
    let redlock = all_vote(&trusting(masters.urls()));
    freeze(&masters[0]);
    let mut lock = redlock.try_lock(KEY, LONG).unwrap();
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [1, 2]);
    lock.extend(LONG).unwrap();
    let released = lock.unlock().unwrap();
    assert_eq!((released.confirmed, released.absent, released.unknown), (2, 0, 1));
    thaw(&masters[0]);
    clean_again("SIGSTOP of a minority", &masters, 1, || {});
}

/// A pool of threads with a deadline fails with the masters, and not at its deadline. The control:
/// a duration waits for masters as well.
#[test]
fn slow_frozen_majority_fails_waits_for_a_holder_at_once() {
    const THREADS: usize = 16;
    /// No request waits for so long; a loaded machine gets a good part of it.
    const DEADLINE: Duration = Duration::from_secs(60);
    const CONTROL: Duration = Duration::from_secs(2);
    let masters = start(3);
    let redlock = all_vote(&hasty(masters.urls()));
    masters.iter().take(2).for_each(freeze);
    let waits = |wait: Wait| {
        let wait = || redlock.try_lock_for(KEY, LONG, wait).unwrap_err();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(wait)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().kind()).collect::<Vec<_>>()
        })
    };
    let (took, kinds) = timed(|| waits(Wait::for_holder(DEADLINE)));
    println!("{THREADS} waits for a holder without a quorum: {took:?}");
    assert_eq!(kinds, [LockErrorKind::Unavailable; THREADS]);
    assert!(took < DEADLINE / 4, "{took:?}");
    let (took, kinds) = timed(|| waits(CONTROL.into()));
    println!("control: a wait of {CONTROL:?} took {took:?}");
    // It does not wait for a round for which its time does not last. Nobody holds the lock.
    assert!(took >= CONTROL / 2, "{took:?}");
    assert!(!kinds.contains(&LockErrorKind::Contended), "{kinds:?}");
    masters.iter().take(2).for_each(thaw);
    works(&redlock);
}

/// A waiter that sleeps in the queue learns of it at one of its timers.
#[test]
fn majority_that_dies_during_a_wait_ends_waits_for_a_holder() {
    const WAIT: Duration = Duration::from_secs(60);
    let mut masters = start(3);
    let [holder, waiting, control] = [(); 3].map(|()| all_vote(&hasty(masters.urls())));
    let lock = holder.try_lock(KEY, LONG).unwrap();
    let waiter = control.waiter();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| waiter.redlock().try_lock_for(KEY, LONG, WAIT));
        let others = [(); 3].map(|()| {
            scope.spawn(|| timed(|| waiting.try_lock_for(KEY, LONG, Wait::for_holder(WAIT))))
        });
        soon("both clients queue", || waiting.stats().queued + control.stats().queued == 2);
        masters.iter_mut().take(2).for_each(|master| master.kill().unwrap());
        let (killed, ends) = timed(|| others.map(|other| other.join().unwrap()));
        println!("waits for a holder ended {killed:?} after the masters");
        for (took, result) in ends {
            assert_eq!(result.unwrap_err().kind(), LockErrorKind::Unavailable);
            assert!(took < WAIT / 2, "{took:?}");
        }
        assert!(!patient.is_finished(), "control: a duration waits on");
        waiter.cancel();
        assert_eq!(patient.join().unwrap().unwrap_err().kind(), LockErrorKind::Cancelled);
    });
    drop(lock);
}

/// No master says that the lock is held, so no request does, however many there are at a time.
#[test]
fn slow_waits_behind_others_of_the_client_name_the_masters_that_are_gone() {
    const THREADS: u32 = 16;
    const REQUESTS: u32 = 20;
    const WAIT: Duration = Duration::from_millis(50);
    let masters = start(3);
    let redlock = all_vote(&hasty(masters.urls()));
    masters.iter().take(2).for_each(freeze);
    let request = |at: u32| {
        let wait = if at % 2 == 0 { WAIT.into() } else { Wait::for_holder(WAIT) };
        redlock.try_lock_for(KEY, LONG, wait).unwrap_err()
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for at in 0..REQUESTS {
                    let error = request(thread + at);
                    assert!(!error.is_contended(), "{error}");
                }
            });
        }
    });
    masters.iter().take(2).for_each(thaw);
}
