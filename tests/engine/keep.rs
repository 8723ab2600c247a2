//! Locks that the engine keeps: renewals, losses, and what stops them (R22, R31). Virtual time,
//! scripted nodes.

use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::proto::{Cancelled, Done, Lease, NodeEvent, OpId, Patience, Reply};
use muxlock::settings::{Heal, RestartGuard};
use muxlock::{KeepAlive, Loss, LossCause, Moment};
use testbed::memory::{Acted, Scenario, TTL, server_error};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

struct Kept {
    scenario: Scenario,
    id: OpId,
}

fn how() -> KeepAlive {
    KeepAlive::default().notice(SECOND)
}

fn kept(how: &KeepAlive) -> Kept {
    kept_on(Scenario::ready(3), how)
}

fn kept_on(mut scenario: Scenario, how: &KeepAlive) -> Kept {
    scenario.acquire(TTL, Patience::OneRound);
    scenario.drain();
    scenario.replies([0, 1, 2], Reply::Ok);
    let lease = scenario.acquired().unwrap();
    let id = scenario.engine.keep(scenario.now, lease, how);
    Kept { scenario, id }
}

impl Kept {
    fn lease(&self) -> &Lease {
        self.scenario.engine.operations().kept(self.id).expect("it is kept")
    }

    /// Passes time until commands are sent or an operation ends, and returns the commands.
    fn wait(&mut self) -> Vec<Acted> {
        for _ in 0..10_000 {
            let acted = self.scenario.drain();
            if !acted.is_empty() || self.scenario.engine.operations().has_done() {
                return acted;
            }
            let due = self.scenario.next_timeout().expect("something is due");
            let wait = due.since(self.scenario.now);
            self.scenario.pass(wait);
        }
        panic!("nothing is sent");
    }

    fn renew(&mut self) -> Moment {
        assert_eq!(self.wait(), [Acted::Extend(vec![0, 1, 2], 1)]);
        let started = self.scenario.now;
        self.scenario.pass(MS);
        self.scenario.replies([0, 1, 2], Reply::Integer(1));
        match self.scenario.done() {
            Some(Done::Renewed(until)) => {
                assert_eq!(until, self.lease().valid_until());
                assert!(until.since(started) < TTL && until.since(started) > TTL - SECOND / 2);
            }
            other => panic!("it was renewed: {other:?}"),
        }
        started
    }

    fn lost(&mut self) -> (Lease, Loss) {
        let lost = match self.scenario.done() {
            Some(Done::Lost(lease, loss)) => (lease, *loss),
            other => panic!("it is lost: {other:?}"),
        };
        assert!(self.scenario.engine.operations().kept(self.id).is_none());
        assert_eq!(self.scenario.engine.operations().count(), 0);
        self.scenario.nothing_done();
        lost
    }
}

/// R31: it is renewed before each third of its validity ends, for as long as it is kept.
#[test]
fn lock_is_renewed_until_it_is_stopped() {
    let mut kept = kept(&how());
    let mut started = kept.scenario.now;
    for _ in 0..50 {
        let renewed = kept.renew();
        let period = renewed.since(started);
        assert!(period >= TTL / 8 && period <= TTL / 3, "{period:?}");
        started = renewed;
    }
    assert_eq!(kept.scenario.engine.stats().extended, 50);
    let until = kept.lease().valid_until();
    let Cancelled::Extension(lease) = kept.scenario.engine.cancel(kept.scenario.now, kept.id)
    else {
        panic!("a lease is returned");
    };
    assert_eq!(lease.valid_until(), until);
    assert!(kept.scenario.engine.operations().kept(kept.id).is_none());
    kept.scenario.pass(TTL);
    assert_eq!(kept.scenario.drain(), []);
    kept.scenario.engine.abandon(kept.scenario.now, lease);
    assert_eq!(kept.scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
}

#[test]
fn renewal_without_a_quorum_is_repeated_until_no_round_fits() {
    let mut kept = kept(&how());
    let until = kept.lease().valid_until();
    let mut tries = 0;
    while !kept.scenario.engine.operations().has_done() {
        let acted = kept.wait();
        if acted.contains(&Acted::Extend(vec![0, 1, 2], 1)) {
            tries += 1;
            // One of three: the others are silent until the node timeout.
            kept.scenario.reply(0, Reply::Integer(1));
            kept.scenario.pass(Duration::from_millis(50));
            kept.scenario.replies([1, 2], Reply::Integer(1)); // too late for the votes
            assert!(kept.scenario.done().is_none(), "another try follows");
        }
    }
    assert!(tries >= 5, "{tries}");
    let (lease, loss) = kept.lost();
    assert_eq!(loss.cause, LossCause::Unavailable);
    assert!(loss.error.is_some_and(|error| error.is_unavailable()));
    // The holder has the notice to stop in.
    assert_eq!(lease.valid_until(), until);
    assert_eq!(loss.remaining, SECOND);
    assert_eq!(lease.remaining(kept.scenario.now), SECOND);
}

/// A renewal in flight does not delay the report, and its late answers change nothing (R22).
#[test]
fn silent_masters_cost_the_lock_before_it_ends() {
    let scenario = Scenario::with(3, |builder| builder.node_timeout(60 * SECOND)).all_ready();
    let mut kept = kept_on(scenario, &how());
    assert_eq!(kept.wait(), [Acted::Extend(vec![0, 1, 2], 1)]);
    let until = kept.lease().valid_until();
    assert_eq!(kept.wait(), []);
    assert_eq!(until.since(kept.scenario.now), SECOND);
    let (lease, loss) = kept.lost();
    assert_eq!((loss.cause, loss.remaining), (LossCause::Unavailable, SECOND));
    kept.scenario.replies([0, 1, 2], Reply::Integer(1));
    kept.scenario.nothing_done();
    assert_eq!(lease.valid_until(), until);
}

#[test]
fn lock_that_a_quorum_no_longer_holds_is_over() {
    let mut kept = kept(&how());
    kept.wait();
    kept.scenario.reply(0, Reply::Integer(1));
    kept.scenario.replies([1, 2], Reply::Integer(0));
    let (lease, loss) = kept.lost();
    assert_eq!((loss.cause, loss.remaining), (LossCause::Gone, Duration::ZERO));
    assert!(!lease.is_valid_at(kept.scenario.now));
    assert!(loss.error.is_some_and(|error| error.is_expired()));
}

/// R22: the quorum is there in time, but the caller asks for the result too late.
#[test]
fn renewal_that_is_taken_after_the_old_validity_does_not_count() {
    for is_cancelled in [false, true] {
        let mut kept = kept(&how());
        kept.wait();
        let until = kept.lease().valid_until();
        kept.scenario.replies([0, 1, 2], Reply::Integer(1));
        assert!(kept.scenario.engine.operations().has_done());
        kept.scenario.now = until;
        let lease = match is_cancelled {
            true => match kept.scenario.engine.cancel(until, kept.id) {
                Cancelled::Extension(lease) => lease,
                other => panic!("{other:?}"),
            },
            false => {
                let (lease, loss) = kept.lost();
                assert_eq!((loss.cause, loss.remaining), (LossCause::Late, Duration::ZERO));
                lease
            }
        };
        assert_eq!(lease.valid_until(), until);
        assert!(!lease.is_valid_at(until));
        assert_eq!(kept.scenario.engine.stats().extended, 0);
    }
}

/// The renewal had succeeded when it was stopped: the new validity holds.
#[test]
fn stopped_after_a_quorum_it_has_the_new_validity() {
    let mut kept = kept(&how());
    kept.wait();
    let until = kept.lease().valid_until();
    kept.scenario.replies([0, 1, 2], Reply::Integer(1));
    let cancelled = kept.scenario.engine.cancel(kept.scenario.now, kept.id);
    let Cancelled::Extension(lease) = cancelled else { panic!("{cancelled:?}") };
    assert!(lease.valid_until() > until);
    assert_eq!(kept.scenario.engine.stats().extended, 1);
    kept.scenario.nothing_done();
}

/// Stopped during a renewal: it no longer counts, and the release follows it.
#[test]
fn stopped_during_a_renewal_it_has_the_old_validity() {
    let mut kept = kept(&how());
    kept.wait();
    let until = kept.lease().valid_until();
    let cancelled = kept.scenario.engine.cancel(kept.scenario.now, kept.id);
    let Cancelled::Extension(lease) = cancelled else { panic!("{cancelled:?}") };
    assert_eq!(lease.valid_until(), until);
    kept.scenario.engine.abandon(kept.scenario.now, lease);
    assert_eq!(kept.scenario.drain(), [Acted::Release(vec![0, 1, 2], 1)]);
    kept.scenario.replies([0, 1, 2], Reply::Integer(1));
    kept.scenario.nothing_done();
    assert_eq!(kept.scenario.engine.operations().count(), 0);
}

#[test]
fn nobody_looks_until_the_validity_is_over() {
    let mut kept = kept(&how());
    kept.scenario.pass(TTL);
    assert_eq!(kept.scenario.drain(), [], "nothing is sent for what is over");
    let (lease, loss) = kept.lost();
    assert_eq!((loss.cause, loss.remaining), (LossCause::Late, Duration::ZERO));
    assert!(loss.error.is_none() && !lease.is_valid_at(kept.scenario.now));
}

#[test]
fn caps_end_it_when_the_next_renewal_would_start() {
    let mut kept = kept(&how().renewals_max(2));
    kept.renew();
    let last = kept.renew();
    assert_eq!(kept.wait(), []);
    let (lease, loss) = kept.lost();
    assert_eq!(loss.cause, LossCause::RenewalsMax);
    assert!(kept.scenario.now.since(last) <= TTL / 3);
    assert!(lease.is_valid_at(kept.scenario.now) && loss.remaining > TTL / 2);

    let mut kept = self::kept(&how().lifetime_max(TTL));
    let start = kept.scenario.now;
    while kept.wait() == [Acted::Extend(vec![0, 1, 2], 1)] {
        assert!(kept.scenario.now.since(start) < TTL);
        kept.scenario.replies([0, 1, 2], Reply::Integer(1));
        assert!(matches!(kept.scenario.done(), Some(Done::Renewed(_))));
    }
    assert_eq!(kept.lost().1.cause, LossCause::LifetimeMax);
    assert!(kept.scenario.now.since(start) >= TTL);
}

/// What cannot be kept comes back, and nothing is sent.
#[test]
fn lock_that_cannot_be_renewed_is_returned_at_once() {
    let mut giver = Scenario::ready(1);
    giver.acquire(TTL, Patience::OneRound);
    giver.drain();
    giver.reply(0, Reply::Ok);
    let mut lease = giver.acquired().unwrap();
    giver.engine.let_go(giver.now, &mut lease);
    let mut scenario = Scenario::with(1, |builder| builder.max_ttl(TTL / 2)).all_ready();
    let id = scenario.engine.keep(scenario.now, lease, &how());
    let mut kept = Kept { scenario, id };
    let (lease, loss) = kept.lost();
    assert_eq!(loss.cause, LossCause::Refused);
    assert!(loss.error.is_some() && lease.is_valid_at(kept.scenario.now));
    assert_eq!(kept.scenario.drain(), []);

    kept.scenario.now = lease.valid_until();
    kept.id = kept.scenario.engine.keep(kept.scenario.now, lease, &how());
    assert_eq!(kept.lost().1.cause, LossCause::Refused);
}

#[test]
fn expired_lock_is_not_kept() {
    let mut kept = kept(&how());
    let Cancelled::Extension(lease) = kept.scenario.engine.cancel(kept.scenario.now, kept.id)
    else {
        panic!("a lease is returned");
    };
    kept.scenario.now = lease.valid_until();
    kept.id = kept.scenario.engine.keep(kept.scenario.now, lease, &how());
    assert_eq!(kept.lost().1.cause, LossCause::Late);
    assert_eq!(kept.scenario.drain(), []);
}

/// A quorum answers while others are away; they get the renewals when they are back.
#[test]
fn master_that_was_away_gets_the_next_renewals() {
    let scenario =
        Scenario::with(3, |builder| builder.restart_guard(RestartGuard::Uptime).heal(Heal::On));
    let mut kept = kept_on(scenario.all_ready(), &how());
    let reset = muxlock::node::NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    kept.scenario.engine.handle_node(kept.scenario.now, 2, NodeEvent::Disconnected(reset));
    let mut is_back = false;
    for _ in 0..20 {
        let acted = kept.wait();
        for act in &acted {
            match act {
                Acted::Connect(2) => {
                    kept.scenario.connect(2);
                }
                Acted::Heal(nodes, 1) => {
                    is_back |= nodes.contains(&2);
                    kept.scenario.replies(nodes.clone(), Reply::Integer(1));
                    assert!(matches!(kept.scenario.done(), Some(Done::Renewed(_))));
                }
                Acted::Time(_) | Acted::Role(_) => _ = kept.scenario.looked(vec![act.clone()]),
                _ => {}
            }
        }
    }
    assert!(is_back);
}

/// An acquisition of the same engine asks no master while the lock is renewed.
#[test]
fn acquisition_waits_as_long_as_the_lock_is_renewed() {
    let mut scenario = Scenario::ready(3);
    let patience = Patience::Until(scenario.now.after(1_000 * SECOND));
    scenario.acquire(TTL, patience);
    scenario.drain();
    scenario.replies([0, 1, 2], Reply::Ok);
    let lease = scenario.acquired().unwrap();
    scenario.acquire(TTL, patience);
    let id = scenario.engine.keep(scenario.now, lease, &how());
    let mut kept = Kept { scenario, id };
    for _ in 0..10 {
        kept.renew();
    }
    let Cancelled::Extension(lease) = kept.scenario.engine.cancel(kept.scenario.now, kept.id)
    else {
        panic!("a lease is returned");
    };
    kept.scenario.engine.abandon(kept.scenario.now, lease);
    let acted = [Acted::Release(vec![0, 1, 2], 1), Acted::Set(vec![0, 1, 2], 2)];
    assert_eq!(kept.scenario.drain(), acted);
}

/// With a notice of zero, too.
#[test]
fn silent_masters_are_the_cause_without_a_notice_too() {
    let scenario = Scenario::with(3, |builder| builder.node_timeout(60 * SECOND)).all_ready();
    let mut kept = kept_on(scenario, &how().notice(Duration::ZERO));
    assert_eq!(kept.wait(), [Acted::Extend(vec![0, 1, 2], 1)]);
    assert_eq!(kept.wait(), []);
    let (_, loss) = kept.lost();
    assert_eq!(loss.cause, LossCause::Unavailable);
}

/// Its answers so far are reported, and it counts as failed.
#[test]
fn renewal_that_the_notice_ends_is_reported() {
    let scenario = Scenario::with(3, |builder| builder.node_timeout(60 * SECOND)).all_ready();
    let mut kept = kept_on(scenario, &how());
    assert_eq!(kept.wait(), [Acted::Extend(vec![0, 1, 2], 1)]);
    kept.scenario.reply(0, Reply::Integer(1));
    assert_eq!(kept.wait(), []);
    let before = kept.scenario.engine.stats().extensions_failed;
    let (_, loss) = kept.lost();
    assert_eq!(loss.cause, LossCause::Unavailable);
    assert_eq!(before + 1, kept.scenario.engine.stats().extensions_failed);
    assert!(loss.error.is_some(), "no word about the masters");
}

/// A quorum has said that the key is gone; it is stopped before that is taken.
#[test]
fn stopped_after_a_quorum_lost_it_it_is_over() {
    let mut kept = kept(&how());
    kept.wait();
    kept.scenario.reply(0, Reply::Integer(1));
    kept.scenario.replies([1, 2], Reply::Integer(0));
    assert!(kept.scenario.engine.operations().has_done());
    let cancelled = kept.scenario.engine.cancel(kept.scenario.now, kept.id);
    let Cancelled::Extension(lease) = cancelled else { panic!("{cancelled:?}") };
    assert!(!lease.is_valid_at(kept.scenario.now), "{:?}", lease.remaining(kept.scenario.now));
}

/// What a loss is caused by, when the event loop was delayed until after the deadline: the delay,
/// not the renewal that had failed before.
#[test]
fn loop_that_is_delayed_beyond_the_deadline_is_the_cause() {
    let mut kept = kept(&how());
    assert_eq!(kept.wait(), [Acted::Extend(vec![0, 1, 2], 1)]);
    kept.scenario.replies([0, 1, 2], server_error(ServerErrorKind::Busy));
    kept.scenario.nothing_done();
    kept.scenario.pass(TTL);
    let (_, loss) = kept.lost();
    assert_eq!(loss.cause, LossCause::Late);
    assert!(loss.error.is_some_and(|error| error.is_unavailable()));
    assert_eq!(kept.scenario.engine.stats().extensions_failed, 1);
}

/// Between the notice and the deadline: nothing was tried, so the masters are not the cause.
#[test]
fn loop_that_is_delayed_into_the_notice_is_the_cause_too() {
    let mut kept = kept(&how());
    let left = SECOND / 2;
    let deadline = kept.lease().valid_until();
    kept.scenario.pass(deadline.since(kept.scenario.now) - left);
    let (lease, loss) = kept.lost();
    assert_eq!((loss.cause, loss.remaining), (LossCause::Late, left));
    assert!(lease.is_valid_at(kept.scenario.now) && loss.error.is_none());
}

/// A renewal fails when the time for another is over: the holder hears of it at once.
#[test]
fn renewal_that_fails_in_the_notice_is_the_last() {
    for early in [Duration::ZERO, MS] {
        let mut kept = kept_on(Scenario::ready(3), &how());
        assert_eq!(kept.wait(), [Acted::Extend(vec![0, 1, 2], 1)]);
        let deadline = kept.lease().valid_until();
        let wait = deadline.since(kept.scenario.now) - SECOND - early;
        kept.scenario.now = kept.scenario.now.after(wait);
        kept.scenario.replies([0, 1, 2], server_error(ServerErrorKind::Busy));
        match early {
            Duration::ZERO => {
                let (_, loss) = kept.lost();
                assert_eq!((loss.cause, loss.remaining), (LossCause::Unavailable, SECOND));
            }
            _ => kept.scenario.nothing_done(),
        }
        assert_eq!(kept.scenario.engine.stats().extensions_failed, 1);
    }
}

/// A quorum renewed it, and nobody asked before the old validity was over.
#[test]
fn renewal_that_is_taken_late_is_told_with_its_masters() {
    let mut kept = kept(&how());
    assert_eq!(kept.wait(), [Acted::Extend(vec![0, 1, 2], 1)]);
    kept.scenario.replies([0, 1, 2], Reply::Integer(1));
    kept.scenario.now = kept.lease().valid_until();
    let (_, loss) = kept.lost();
    assert_eq!(loss.cause, LossCause::Late);
    let error = loss.error.expect("a renewal was under way");
    assert!(error.is_expired() && error.nodes().len() == 3, "{error}");
    assert_eq!(kept.scenario.engine.stats().extensions_failed, 1);
}
