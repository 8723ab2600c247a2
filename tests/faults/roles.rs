//! Servers that are not the independent masters that they are listed as: replicas, cluster nodes,
//! one server under two addresses.

use std::net::TcpListener;
use std::time::Duration;

use muxlock::error::{ConfigError, ConnectError};
use muxlock::node::{NodeOutcome, NodeState, QuarantineCause, Unfit};
use muxlock::{Builder, LockError, LockErrorKind, LockGuard, Redlock};

use crate::refusals::{user_without, without_notices};
use crate::scene::{
    First, KEY, LASTING, LONG, LOOK_AGE_MAX, MAX_TTL, QUARANTINE, all_vote, first_in_time,
    grow_old, guarded, node_soon, owner, owns, pttl, quarantine_of, refused, start_one, start_with,
    tell, trusting, unavailable, until_vote, works,
};
use muxlock::testing::{Master, Masters, Value};
use testbed::proxy::DelayProxy;
use testbed::scripted::refused_addr;
use testbed::{
    SOON, Stopwatch, TTL, ask, end_connection, info, is_older_than, outcomes, pause, skip, soon,
    within,
};

const REPLICA: NodeOutcome = NodeOutcome::Unfit(Unfit::Replica);
/// A replica is brought up to date at once.
pub const PROMPT: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

pub fn demote(replica: &Master, master: &Master) {
    tell(replica, &["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    within(SOON + SOON, "the replica is up to date", || {
        info(replica, "replication", "master_link_status") == "up"
    });
}

pub fn promote(replica: &Master) {
    tell(replica, &["REPLICAOF", "NO", "ONE"]);
}

/// A lock is on two masters of three. One of them becomes a replica of the third, which knows
/// nothing of the lock, and a master again.
fn one_of_two_copies_overwritten(
    client: impl Fn(Vec<String>) -> Builder,
    ttl: Duration,
) -> (Masters, First, Redlock) {
    let masters = start_with(3, &PROMPT);
    let nowhere = format!("redis://{}", refused_addr());
    let mut urls = masters.urls();
    let second = all_vote(&client(urls.clone()));
    urls[2] = nowhere;
    let holder = client(urls).connect().unwrap();
    let first = First::take(&holder, ttl);
    demote(&masters[1], &masters[2]);
    (masters, first, second)
}

#[test]
fn slow_demoted_master_votes_no_more_and_promoted_again_is_waited_for() {
    let (masters, first, second) = one_of_two_copies_overwritten(guarded, MAX_TTL);
    drop(second.try_lock("other", MAX_TTL).unwrap());
    node_soon(&second, 1, "it is found out", |node| node.last_failure == Some(REPLICA));
    for _ in 0..3 {
        let lock = second.try_lock("other", MAX_TTL).unwrap();
        assert_eq!(lock.granted_by().collect::<Vec<_>>(), [0, 2]);
    }

    promote(&masters[1]);
    node_soon(&second, 1, "it is back", |node| node.state == NodeState::Quarantined);
    let quarantine = quarantine_of(&second, 1).expect("it is quarantined");
    assert_eq!(quarantine.cause, QuarantineCause::Promoted);
    assert!(quarantine.ready_in <= QUARANTINE, "{quarantine:?}");
    drop(first.is_never_joined_by(&second));
    until_vote(&second, 3);
    // A client that has never seen it as a replica learns when others saw it first.
    let fresh = guarded(masters.urls()).connect().unwrap();
    node_soon(&fresh, 1, "it votes", |node| node.state == NodeState::Ready);
}

#[test]
fn demoted_master_promoted_again_without_the_guard_there_are_two_holders() {
    let (masters, first, second) = one_of_two_copies_overwritten(trusting, TTL);
    promote(&masters[1]);
    first.is_joined_by(&second);
}

/// The same with servers that were looked at so shortly before that they are not looked at again.
/// Redis ends no connection of a client for either. `None` if the machine was too slow.
fn demoted_and_promoted_between_two_looks(
    url: impl Fn(&Master) -> String,
) -> Option<(Masters, First, Redlock, Result<LockGuard, LockError>)> {
    let masters = start_with(3, &PROMPT);
    let client = |urls| guarded::<Vec<String>>(urls).max_ttl(LASTING);
    let second = all_vote(&client(masters.iter().map(url).collect()));
    let mut urls = masters.urls();
    urls[2] = format!("redis://{}", refused_addr());
    let holder = client(urls).connect().unwrap();
    until_vote(&holder, 2);
    let first = First::take(&holder, LASTING);
    pause(LOOK_AGE_MAX);
    drop(second.try_lock("other", MAX_TTL).unwrap());
    let watch = Stopwatch::start();
    demote(&masters[1], &masters[2]);
    promote(&masters[1]);
    let result = second.try_lock(KEY, MAX_TTL);
    println!("measured: demoted and promoted within {:?}", watch.elapsed());
    (watch.elapsed() < LOOK_AGE_MAX).then_some((masters, first, second, result))
}

#[test]
fn slow_core_demoted_master_promoted_again_between_two_looks_has_no_vote() {
    let (_masters, first, second, result) =
        first_in_time(|_| demoted_and_promoted_between_two_looks(Master::url));
    let error = refused(result);
    let said = outcomes(&error)[1];
    let known = [NodeOutcome::Quarantined, NodeOutcome::Unfit(Unfit::Changed)];
    assert!(known.contains(&said), "{error}");
    drop(first.is_never_joined_by(&second));
}

#[test]
fn demoted_master_promoted_again_between_two_looks_without_notices_there_are_two_holders() {
    let right = without_notices("the right to notices alone");
    let (_masters, first, _second, result) = first_in_time(|_| {
        demoted_and_promoted_between_two_looks(|master| {
            user_without(master, &[right]) + "?notices=no"
        })
    });
    let lock = result.unwrap_or_else(|error| panic!("the control shows nothing: {error}"));
    assert!(first.lock.is_valid() && lock.is_valid());
}

#[test]
fn master_demoted_to_a_writable_replica_between_two_calls_votes_no_more() {
    let masters = start_with(2, &PROMPT);
    tell(&masters[1], &["CONFIG", "SET", "replica-read-only", "no"]);
    let redlock = all_vote(&guarded(masters.urls().split_off(1)));
    works(&redlock);
    demote(&masters[1], &masters[0]);
    pause(LOOK_AGE_MAX);
    // No READONLY tells of it.
    assert_eq!(unavailable(redlock.try_lock(KEY, MAX_TTL), 0), REPLICA);
    node_soon(&redlock, 0, "it stays so", |node| node.last_failure == Some(REPLICA));
    assert_eq!(unavailable(redlock.try_lock(KEY, MAX_TTL), 0), REPLICA);
}

#[test]
fn master_that_gets_its_first_replica_goes_on_voting() {
    // Its data has a new name from then on, but is the same.
    let masters = start_with(2, &PROMPT);
    grow_old(&guarded(masters.urls().split_off(1)));
    let redlock = all_vote(&guarded(masters.urls().split_off(1)));
    let lock = redlock.try_lock(KEY, MAX_TTL).unwrap();
    let name = || info(&masters[1], "replication", "master_replid");
    let before = name();
    demote(&masters[0], &masters[1]);
    assert_ne!(name(), before);
    assert!(lock.unlock().unwrap().was_held());
    pause(LOOK_AGE_MAX);
    works(&redlock);
    end_connection(&masters[1]);
    node_soon(&redlock, 0, "it is back", |_| redlock.stats().connected == 2);
    works(&redlock);
    assert_eq!(redlock.stats().quarantines, 0);
}

#[test]
fn writable_replica_is_refused() {
    let masters = start_with(2, &PROMPT);
    let replica = start_one(&["--replica-read-only", "no"]);
    demote(&replica, &masters[0]);

    // The control: it grants what its master knows nothing of.
    let set = ["SET", "control", "token", "NX", "PX", "600000"];
    assert_eq!(ask(&replica, &set), Value::Status("OK".into()));
    assert_eq!((owner(&masters[0], "control"), pttl(&masters[0], "control")), (None, -2));
    println!("control: a writable replica said OK to SET");

    let urls = [masters[0].url(), masters[1].url(), replica.url()];
    let redlock = trusting(urls).connect().unwrap();
    node_soon(&redlock, 2, "it is found out", |node| node.last_failure == Some(REPLICA));
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [0, 1]);
    drop(lock);
    match trusting([replica.url()]).connect() {
        Err(ConnectError::Unavailable(error)) => assert_eq!(outcomes(&error), [REPLICA], "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn slow_cluster_node_is_refused() {
    if is_older_than([7, 0, 0], "slow_cluster_node_is_refused", "cluster-port and ADDSLOTSRANGE") {
        return;
    }
    // A free port may be taken before the node has it.
    let node = (0..5).find_map(|_| {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let args = ["--cluster-enabled", "yes", "--cluster-port", &port.to_string()];
        Master::start_with(&args).ok()
    });
    let node = node.expect("a node that keeps its ports");
    let is_refused = || match trusting([node.url()]).connect() {
        Err(ConnectError::Unavailable(error)) => {
            assert_eq!(outcomes(&error), [NodeOutcome::Unfit(Unfit::Cluster)], "{error}");
        }
        other => panic!("{other:?}"),
    };
    // On its own it serves nothing, and says so to everything; with all the slots it serves all.
    is_refused();
    tell(&node, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let state = || ask(&node, &["CLUSTER", "INFO"]);
    let is_up = |state: Value| matches!(state, Value::Bulk(text) if text.starts_with(UP));
    within(SOON + SOON, "the cluster is up", || is_up(state()));
    is_refused();
    // The control: it would grant.
    let set = ["SET", KEY, "token", "NX", "PX", "60000"];
    assert_eq!(ask(&node, &set), Value::Status("OK".into()));
}

const UP: &[u8] = b"cluster_state:ok";

// ---- One server under two addresses ----

/// The two addresses that the configuration error names, in alphabetical order.
#[track_caller]
fn duplicates(builder: &Builder) -> [String; 2] {
    match builder.connect() {
        Err(ConnectError::Config(error)) => {
            let text = error.to_string();
            let ConfigError::Duplicate { first, second } = error else { panic!("{error}") };
            assert!(text.contains(&first) && text.contains(&second), "{text}");
            let mut named = [first, second];
            named.sort_unstable();
            named
        }
        other => panic!("{other:?}"),
    }
}

/// A master, and the address of its socket.
fn start_with_socket() -> (Master, String) {
    let master = Master::start_with_socket().unwrap_or_else(|error| panic!("{error}"));
    let socket = master.socket_path().expect("it was started with one");
    let url = format!("unix://{}", socket.display());
    (master, url)
}

#[test]
fn one_server_by_tcp_and_by_socket_is_a_configuration_error() {
    // Lists of two: both are needed, so both are waited for.
    let (master, by_socket) = start_with_socket();
    let named = duplicates(&trusting([master.url(), by_socket.clone()]));
    let socket = by_socket.trim_start_matches("unix://");
    assert!(named[0] == master.addr() && named[1].ends_with(socket), "{named:?}");
}

#[test]
fn one_server_by_two_ways_is_a_configuration_error() {
    let master = start_one(&[]);
    let way = DelayProxy::start(master.addr().parse().unwrap(), Duration::ZERO).unwrap();
    let mut expected = [master.addr(), way.addr().to_string()];
    expected.sort_unstable();
    assert_eq!(duplicates(&trusting([master.url(), way.url()])), expected);
}

#[test]
fn one_server_by_a_name_and_an_address_is_a_configuration_error() {
    // By their addresses, as soon as the name is known to have that one.
    let master = start_one(&[]);
    let alias = format!("redis://localhost:{}", master.port());
    let named = duplicates(&trusting([master.url(), alias]));
    assert_eq!(named, [master.addr(), format!("localhost:{}", master.port())]);
}

#[test]
fn one_server_by_ipv4_and_ipv6_is_a_configuration_error() {
    if let Err(error) = TcpListener::bind("[::1]:0") {
        return skip("one_server_by_ipv4_and_ipv6_is_a_configuration_error", error);
    }
    let master = start_one(&["--bind", "127.0.0.1", "::1"]);
    let by_ipv6 = format!("[::1]:{}", master.port());
    let named = duplicates(&trusting([master.url(), format!("redis://{by_ipv6}")]));
    assert_eq!(named, [master.addr(), by_ipv6]);
}

#[test]
fn one_server_twice_in_a_lazy_client_has_one_vote() {
    let (master, by_socket) = start_with_socket();
    let mut other = start_one(&[]);
    let redlock = trusting([master.url(), by_socket, other.url()]).build().unwrap();
    let unfit = NodeOutcome::Unfit(Unfit::Duplicate);
    soon("it is found out", || {
        drop(redlock.try_lock("warm-up", TTL));
        redlock.nodes().iter().any(|node| node.last_failure == Some(unfit))
    });
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    assert_eq!(lock.granted_by().count(), 2);
    assert!(lock.granted_by().any(|node| node == 2), "the other server is needed");
    drop(lock);

    other.kill().unwrap();
    let error = refused(redlock.try_lock(KEY, TTL));
    assert_eq!(error.kind(), LockErrorKind::Unavailable, "{error}");
    let report = error.nodes().iter().find(|report| report.outcome == unfit);
    let report = report.unwrap_or_else(|| panic!("it says why: {error}"));
    let twin = &error.nodes()[1 - report.node];
    assert_eq!(report.message.as_ref(), Some(&twin.address), "it names the other address");
}

/// A server that a holder lists twice, and a second server that it lists once. The lock is
/// extended while the second one is frozen, until its copy there has expired. Another client lists
/// both, and a third one.
struct Twins {
    twin: Master,
    single: Master,
    third: Master,
    /// Another way to the twin.
    way: DelayProxy,
}

impl Twins {
    const TTL: Duration = Duration::from_millis(1_500);

    fn start() -> Twins {
        let (twin, single, third) = (start_one(&[]), start_one(&[]), start_one(&[]));
        let way = DelayProxy::start(twin.addr().parse().unwrap(), Duration::ZERO).unwrap();
        Twins { twin, single, third, way }
    }

    /// Whether the extension succeeds.
    fn extended(&self, first: &mut First) -> bool {
        soon("both have it", || {
            owns(&self.twin, &first.lock, KEY) && owns(&self.single, &first.lock, KEY)
        });
        self.single.freeze().unwrap();
        let extended = first.lock.extend(LONG).is_ok();
        let over = Self::TTL + Duration::from_millis(50);
        within(over + SOON, "the copy is over", || first.lived() > over);
        self.single.thaw().unwrap();
        extended
    }

    fn second(&self) -> Redlock {
        all_vote(&trusting([self.twin.url(), self.single.url(), self.third.url()]))
    }
}

#[test]
fn slow_server_listed_twice_extends_nothing_alone() {
    let twins = Twins::start();
    let urls = [twins.twin.url(), twins.way.url(), twins.single.url()];
    // It is lazy, since it would be refused otherwise.
    let holder = trusting(urls).node_timeout(Duration::from_millis(100)).build().unwrap();
    let mut first = First::take(&holder, Twins::TTL);
    let second = twins.second();
    assert!(!twins.extended(&mut first), "one server's vote counted twice");
    drop(first.is_never_joined_by(&second));
}

#[test]
fn slow_server_listed_twice_that_may_not_be_recognised_there_are_two_holders() {
    // The control: a user that may not ask who the server is.
    let twins = Twins::start();
    for master in [&twins.twin, &twins.single] {
        tell(master, &["ACL", "SETUSER", "blind", "on", ">secret", "~*", "+@all", "-info"]);
    }
    let blind = |url: String| url.replacen("://", "://blind:secret@", 1);
    let urls = [twins.twin.url(), twins.way.url(), twins.single.url()];
    let holder = all_vote(&trusting(urls.map(blind)).node_timeout(Duration::from_millis(100)));
    let mut first = First::take(&holder, Twins::TTL);
    assert!(twins.extended(&mut first), "the control shows nothing");
    first.is_joined_by(&twins.second());
}
