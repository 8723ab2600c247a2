//! The sighting that the first client leaves on a promoted server, so that the quarantine ends for
//! those that come later (R33). `max_ttl` is 30 s.

use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::node::{CountedFrom, NodeOutcome, Quarantine, QuarantineCause};
use muxlock::proto::{Fencing, NodeEvent, Patience, Replication, Reply, ServerError, Sighting};
use muxlock::settings::RestartGuard;
use testbed::memory::{CONNECT_TIMEOUT, Scenario, server_error};

const SECOND: Duration = Duration::from_secs(1);
const QUARANTINE: Duration = Duration::from_millis(30_000 + 300 + 2 + 1_000);
const ANEW: CountedFrom = CountedFrom::FirstContact { lasts: QUARANTINE };

/// A server that was promoted, and clients that come to it one after the other.
struct Site {
    scenario: Scenario,
}

impl Site {
    fn new() -> Site {
        let mut scenario = Scenario::guarded(1);
        promote(&mut scenario, 1);
        Site { scenario }
    }

    /// The process of the last client has ended; this is the next one, later.
    fn next(&mut self, later: Duration) -> &mut Scenario {
        let mut next = Scenario::guarded(1);
        next.now = self.scenario.now.after(later);
        next.servers.clone_from(&self.scenario.servers);
        next.sightings.clone_from(&self.scenario.sightings);
        self.scenario = next;
        &mut self.scenario
    }

    fn connected(&mut self, later: Duration) -> Option<Quarantine> {
        self.next(later);
        connect(&mut self.scenario)
    }
}

fn promote(scenario: &mut Scenario, history: u128) {
    scenario.servers[0].replication =
        Replication { master: Some(true), history: Some(history.into()), promoted: Some(true) };
}

fn connect(scenario: &mut Scenario) -> Option<Quarantine> {
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.connect(0);
    scenario.drain();
    quarantine(scenario)
}

fn reconnect(scenario: &mut Scenario) -> Option<Quarantine> {
    let reset = NodeOutcome::Disconnected(std::io::ErrorKind::ConnectionReset);
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Disconnected(reset));
    scenario.pass(CONNECT_TIMEOUT + SECOND);
    connect(scenario)
}

fn quarantine(scenario: &Scenario) -> Option<Quarantine> {
    scenario.engine.statuses().next().unwrap().quarantine
}

fn promoted(quarantine: Option<Quarantine>) -> Option<(Duration, CountedFrom)> {
    quarantine.map(|it| {
        assert_eq!(it.cause, QuarantineCause::Promoted);
        (it.ready_in, it.counted_from)
    })
}

#[test]
fn later_clients_wait_for_the_rest_of_the_first_ones_quarantine() {
    let mut site = Site::new();
    let first = site.connected(Duration::ZERO);
    assert_eq!(promoted(first), Some((QUARANTINE, CountedFrom::Event)));
    let second = site.connected(10 * SECOND);
    assert_eq!(promoted(second), Some((QUARANTINE - 10 * SECOND, CountedFrom::Event)));
    let third = site.connected(QUARANTINE - 10 * SECOND - Duration::from_micros(1));
    assert_eq!(promoted(third), Some((Duration::from_micros(1), CountedFrom::Event)));
    assert_eq!(site.connected(Duration::from_micros(1)), None);
    assert_eq!(site.connected(1_000 * SECOND), None);
}

#[test]
fn server_that_was_never_promoted_is_sent_no_sighting() {
    let mut site = Site::new();
    site.scenario.servers[0].replication.promoted = Some(false);
    site.scenario.servers[0].uptime = Some(SECOND);
    assert_eq!(site.connected(SECOND).map(|it| it.cause), Some(QuarantineCause::Restarted));
    assert_eq!(site.scenario.sightings, [None]);
}

#[test]
fn sighting_of_another_process_or_history_is_replaced_and_counts_for_nothing() {
    for change in [
        |scenario: &mut Scenario| scenario.servers[0].run_id = Some("another".into()),
        |scenario: &mut Scenario| promote(scenario, 2),
    ] {
        let mut site = Site::new();
        site.connected(Duration::ZERO);
        let before = site.scenario.sightings[0].clone();
        change(&mut site.scenario);
        let next = site.connected(1_000 * SECOND);
        assert_eq!(promoted(next), Some((QUARANTINE, CountedFrom::Event)));
        assert_ne!(site.scenario.sightings[0], before);
        assert_eq!(site.connected(QUARANTINE), None);
    }
}

#[test]
fn age_is_no_greater_than_the_uptime_and_not_negative() {
    let mut site = Site::new();
    site.connected(Duration::ZERO);
    // Its clock was behind when it stored that, and was set forward.
    site.scenario.servers[0].uptime = Some(20 * SECOND);
    let next = site.connected(1_000 * SECOND);
    assert_eq!(promoted(next), Some((QUARANTINE - 20 * SECOND, CountedFrom::Event)));
    // Its clock is set back: that a client saw it in the time to come is of no use to anyone.
    let mut site = Site::new();
    site.connected(5_000 * SECOND);
    let now = site.scenario.now;
    site.next(Duration::ZERO).ahead[0] -= 5_000 * SECOND;
    let ahead = site.scenario.ahead.clone();
    assert_eq!(promoted(connect(&mut site.scenario)), Some((QUARANTINE, CountedFrom::Event)));
    site.next(QUARANTINE).ahead = ahead;
    assert!(site.scenario.now.since(now) == QUARANTINE);
    assert_eq!(connect(&mut site.scenario), None);
}

/// It knows of an earlier master at this address, which may have voted until it was seen last.
#[test]
fn client_that_saw_the_change_waits_in_full_whatever_another_one_stored() {
    for is_new_process in [true, false] {
        let mut scenario = Scenario::guarded(1);
        assert_eq!(connect(&mut scenario), None);
        promote(&mut scenario, 7);
        if is_new_process {
            scenario.servers[0].run_id = Some("another".into());
        }
        scenario.sightings[0] = Some(Sighting {
            run_id: scenario.servers[0].run_id.clone().unwrap(),
            history: 7.into(),
            time: scenario.ahead[0],
        });
        let before = scenario.sightings.clone();
        scenario.pass(100 * SECOND);
        assert_eq!(promoted(reconnect(&mut scenario)), Some((QUARANTINE, CountedFrom::Event)));
        assert_eq!(scenario.sightings, before, "the earlier one stays");
    }
}

#[test]
fn sentinels_and_own_observation_neither_ask_nor_tell() {
    let sentinels = |scenario: &mut Scenario| {
        scenario.engine.handle_node(scenario.now, 0, NodeEvent::Elected { master_for: None })
    };
    let mut site = Site::new();
    site.connected(Duration::ZERO);
    sentinels(site.next(1_000 * SECOND));
    assert_eq!(promoted(connect(&mut site.scenario)), Some((QUARANTINE, ANEW)));
    let now = site.scenario.now;
    site.next(SECOND).engine.handle_node(
        now,
        0,
        NodeEvent::Elected { master_for: Some((5 * SECOND, now.after(SECOND))) },
    );
    let rest = QUARANTINE - 5 * SECOND;
    assert_eq!(promoted(connect(&mut site.scenario)), Some((rest, CountedFrom::Event)));
    let mut own = Scenario::with(1, |builder| builder.restart_guard(RestartGuard::OwnObservation));
    promote(&mut own, 1);
    assert_eq!(promoted(connect(&mut own)), Some((QUARANTINE, ANEW)));
    assert_eq!(own.sightings, [None]);
    assert_eq!(promoted(reconnect(&mut own)).unwrap().1, ANEW);
}

/// What the server does not tell or store keeps no client from its locks: it waits in full.
#[test]
fn refused_sighting_makes_each_client_wait_and_is_named() {
    let mut site = Site::new();
    let why = server_error(ServerErrorKind::OutOfMemory);
    site.next(SECOND).sight_answer = why;
    assert_eq!(promoted(connect(&mut site.scenario)), Some((QUARANTINE, ANEW)));
    site.scenario.try_lock();
    site.scenario.drain_looked();
    site.scenario.reply(0, Reply::Ok);
    let error = site.scenario.acquired().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("the key muxlock:promoted: ERR in the scenario"), "{text}");
    assert!(text.contains("each new client waits for 31.3s"), "{text}");
    assert!(text.contains("try_lock_for does, for 32s"), "{text}");
    assert_eq!(promoted(site.connected(100 * SECOND)), Some((QUARANTINE, CountedFrom::Event)));
    assert_eq!(site.connected(QUARANTINE), None);
}

/// The answer to the question, in the place of that step's.
fn connect_told(scenario: &mut Scenario, reply: Reply) -> Option<Quarantine> {
    const STEPS_BEFORE_SIGHTING: usize = 8;
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    for _ in 0..STEPS_BEFORE_SIGHTING {
        scenario.greet_once(0);
    }
    scenario.greet_with(0, reply);
    scenario.start_handshake(0);
    scenario.drain();
    quarantine(scenario)
}

#[test]
fn key_that_cannot_be_read_or_is_anothers_is_left_alone() {
    let denied = ServerError {
        kind: ServerErrorKind::Permission,
        message: "NOPERM this user has no permissions to access one of the keys".into(),
    };
    let foreign = || Reply::Info(Box::default());
    let replies = [
        Reply::Error(denied),
        server_error(ServerErrorKind::WrongType),
        server_error(ServerErrorKind::Busy),
        foreign(),
    ];
    for reply in replies {
        let mut site = Site::new();
        let scenario = site.next(SECOND);
        assert_eq!(promoted(connect_told(scenario, reply)), Some((QUARANTINE, ANEW)));
        assert_eq!(scenario.sightings, [None], "nothing is stored");
    }
    // It is of no use to a server that was never promoted, and no obstacle.
    let mut scenario = Scenario::guarded(1);
    assert_eq!(connect_told(&mut scenario, foreign()), None);
}

#[test]
fn time_that_is_refused_gives_no_sighting() {
    let mut site = Site::new();
    let scenario = site.next(SECOND);
    scenario.engine.connect(scenario.now);
    scenario.drain();
    scenario.engine.handle_node(scenario.now, 0, NodeEvent::Connected);
    scenario.drain();
    for _ in 0..7 {
        scenario.greet_once(0);
    }
    scenario.greet_with(0, server_error(ServerErrorKind::Permission));
    scenario.start_handshake(0);
    scenario.drain();
    assert_eq!(promoted(quarantine(scenario)), Some((QUARANTINE, ANEW)));
    assert_eq!(scenario.sightings, [None]);
}

/// R33: no resource has the key, nor that of a marker, whatever the prefixes of clients are.
#[test]
fn key_of_the_sighting_is_no_resource() {
    let mut scenario = Scenario::guarded(1).all_ready();
    let now = scenario.now;
    let names =
        ["muxlock:promoted", "locks:muxlock:promoted", "muxlock:marker", "locks:muxlock:marker"];
    for name in names {
        let tried = scenario.engine.acquire(
            now,
            muxlock::Resource::new(name).unwrap(),
            10 * SECOND,
            Patience::OneRound,
            Fencing::Off,
        );
        let kind = tried.unwrap_err().kind();
        assert_eq!(kind, muxlock::LockErrorKind::ReservedResource, "{name}");
    }
}
