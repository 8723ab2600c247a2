//! The public interface: what may cross threads, what is shown, and what is refused before
//! anything is sent.

use std::error::Error;
use std::io;
use std::time::Duration;

use muxlock::error::{
    ConfigError, ConnectError, HandOverError, InvalidFencingToken, KeepAliveError,
    KeepAliveErrorKind,
};
use muxlock::limits::{NODES_MAX, RESOURCE_BYTES_MAX};
use muxlock::node::NodeState;
use muxlock::proto::{Cancelled, Done, Lease, OpId};
use muxlock::settings::Retry;
use muxlock::{
    Builder, Config, ErrorKind, Fenced, FencedRedlock, KeepAlive, KeptLock, LockError,
    LockErrorKind, LockGuard, LockParts, Loss, Multiplexer, Redlock, Resource, Standalone, Stats,
    quorum,
};
use testbed::scripted::{Scripted, refused_addr};
use testbed::{TTL, patient};

const KEY: &str = "invoice:42";

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}
fn is_clone<T: Clone>() {}
fn is_static<T: 'static>() {}
fn is_error<T: Error + Send + Sync + 'static>() {}

#[test]
fn types_cross_threads() {
    is_clone::<Redlock>();
    is_send::<Redlock>();
    is_sync::<Redlock>();
    is_static::<Redlock>();
    is_send::<LockGuard>();
    is_sync::<LockGuard>();
    is_static::<LockGuard>();
    is_send::<KeptLock>();
    is_sync::<KeptLock>();
    is_static::<KeptLock>();
    is_clone::<KeepAlive>();
    is_send::<KeepAlive>();
    is_sync::<KeepAlive>();
    is_clone::<FencedRedlock>();
    is_send::<FencedRedlock>();
    is_sync::<FencedRedlock>();
    is_static::<FencedRedlock>();
    is_send::<(Fenced<LockGuard>, Fenced<KeptLock>, Fenced<LockParts>)>();
    is_sync::<(Fenced<LockGuard>, Fenced<KeptLock>, Fenced<LockParts>)>();
    is_error::<InvalidFencingToken>();
    is_send::<LockParts>();
    is_sync::<LockParts>();
    is_send::<Lease>();
    is_sync::<Lease>();
    is_send::<Multiplexer>();
    is_sync::<Multiplexer>();
    is_send::<Standalone>();
    is_sync::<Standalone>();
    is_send::<Done>();
    is_send::<Cancelled>();
    is_send::<Config>();
    is_sync::<Config>();
    is_clone::<Config>();
    is_clone::<Builder>();
    is_clone::<LockError>();
    is_error::<LockError>();
    is_error::<HandOverError>();
    is_error::<KeepAliveError>();
    is_error::<Loss>();
    is_error::<ConfigError>();
    is_error::<ConnectError>();
}

/// Each with something to say, and none with a secret in it.
#[test]
fn debug_is_never_empty_and_shows_no_secret() {
    let server = Scripted::well_behaved();
    let password = "sesame";
    let url = format!("redis://user:{password}@{}/1", server.addr());
    let builder = patient([url.clone()]);
    let config = builder.config().unwrap();
    let redlock = builder.connect().unwrap();
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    let token = String::from_utf8(lock.token().as_bytes().to_vec()).unwrap();
    let contended = redlock.try_lock(KEY, TTL).unwrap_err();
    let kept = lock.keep_alive(KeepAlive::default()).unwrap();
    let shown_kept = format!("{kept:?}");
    let lock = kept.stop();
    let duplicate = builder.clone().node(url).build().unwrap_err();
    let shown = [
        format!("{builder:?}"),
        format!("{config:?}"),
        format!("{redlock:?}"),
        shown_kept,
        format!("{:?}", KeepAlive::default()),
        format!("{lock:?}"),
        format!("{:?}", lock.token()),
        format!("{:?}", lock.resource()),
        format!("{:?} {contended}", contended),
        format!("{duplicate:?} {duplicate}"),
        format!("{:?}", redlock.nodes()),
        format!("{:?}", redlock.stats()),
        format!("{:#?}", lock.into_parts()),
    ];
    for text in shown {
        assert!(text.len() > 2, "{text}");
        assert!(!text.contains(password), "{text}");
        assert!(!text.contains(&token), "{text}");
    }
}

#[test]
fn quorum_is_more_than_half_of_all_that_are_listed() {
    let table = [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4), (63, 32), (64, 33)];
    for (nodes, expected) in table {
        assert_eq!(quorum(nodes), expected, "{nodes}");
    }
}

// ---- Bad settings ----

fn config_error(builder: &Builder) -> ConfigError {
    // Every way to use it refuses it, before anything is sent.
    let error = builder.config().unwrap_err();
    assert_eq!(builder.build().unwrap_err().to_string(), error.to_string());
    match builder.connect().unwrap_err() {
        ConnectError::Config(same) => assert_eq!(same.to_string(), error.to_string()),
        other => panic!("{other:?}"),
    }
    error
}

fn one() -> Builder {
    Redlock::builder().node("redis://127.0.0.1:1")
}

#[test]
fn number_of_nodes_out_of_bounds_is_refused() {
    let error = config_error(&Redlock::builder());
    assert!(matches!(error, ConfigError::NoNodes), "{error}");

    let urls = |n: usize| (1..=n).map(|port| format!("redis://127.0.0.1:{port}"));
    assert_eq!(Redlock::builder().nodes(urls(NODES_MAX)).config().unwrap().nodes(), NODES_MAX);
    let error = config_error(&Redlock::builder().nodes(urls(NODES_MAX + 1)));
    assert!(matches!(error, ConfigError::TooManyNodes { nodes: 65 }), "{error}");
    assert_eq!(error.to_string(), "65 nodes given: at most 64 are allowed");
}

#[test]
fn server_listed_twice_is_refused() {
    let table = [
        ("redis://127.0.0.1:7000", "redis://127.0.0.1:7000"),
        ("redis://127.0.0.1", "redis://127.0.0.1:6379/"),
        ("redis://localhost:7000", "redis://LOCALHOST:7000/1"),
        ("redis://127.0.0.1:7000/1", "redis://:sesame@127.0.0.1:7000/2"),
        ("redis://[::1]:7000", "redis://[0:0:0:0:0:0:0:1]:7000"),
        ("unix:///run/a.sock", "unix:///run/a.sock?db=2"),
    ];
    for (first, second) in table {
        let builder = Redlock::builder().nodes(["redis://127.0.0.1:1", first, second]);
        let error = config_error(&builder);
        assert!(matches!(error, ConfigError::Duplicate { .. }), "{first} {second}: {error}");
        let text = error.to_string();
        let why = ["are the same server: its vote", "is listed twice: its vote"];
        assert!(why.iter().any(|why| text.contains(why)), "R34: {text}");
        assert!(!text.contains("sesame"), "{text}");
    }
}

#[test]
fn address_that_cannot_be_used_is_refused_with_a_sentence() {
    // (address, what the sentence names)
    let table = [
        ("127.0.0.1:6379", "redis://host:port"),
        #[cfg(not(feature = "tls-no-provider"))]
        ("rediss://127.0.0.1", "rediss:// needs TLS"),
        #[cfg(feature = "tls-no-provider")]
        ("rediss://127.0.0.1?cert=1", "there is a cert without its key"),
        ("http://127.0.0.1", "\"http\""),
        ("redis://", "host is empty"),
        ("redis://127.0.0.1:65536", "from 1 to 65535"),
        ("redis://127.0.0.1:0", "the port is not a number"),
        ("redis://127.0.0.1/sixteen", "the database must be a number"),
        ("redis://127.0.0.1?timeout=1", "known are restart_guard"),
        ("unix://relative", "not absolute"),
        ("", "://"),
    ];
    for (address, named) in table {
        let error = config_error(&Redlock::builder().node(address));
        let ConfigError::Url { url, reason } = &error else {
            panic!("{address}: {error}");
        };
        assert!(url.is_empty() || address.starts_with("redis") || address.starts_with("unix"));
        assert!(reason.contains(named), "{address}: {reason}");
        assert!(error.to_string().contains(named), "{error}");
    }
    let error = config_error(&Redlock::builder().node("rediss://user:sesame@127.0.0.1:0"));
    assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
}

/// What a `main` shows that returns the error: one line, then the nodes one a line; and nothing
/// twice, however the sources are shown.
#[test]
fn errors_are_shown_in_lines_and_once() {
    let refused = refused_addr();
    let url = format!("redis://{refused}");
    let error = Redlock::connect([&url]).unwrap_err();
    let summary = "unavailable: 1 of 1 nodes gave no vote";
    let node = format!("node 0 {refused}: disconnected (connection refused)");
    assert_eq!(error.to_string(), format!("{summary} ({node})"));
    assert_eq!(format!("{error:?}"), format!("{summary}\n  {node}"));
    assert!(error.source().is_none());

    let redlock = Redlock::builder().node(&url).build().unwrap();
    let error = redlock.try_lock("resource", TTL).unwrap_err();
    assert_eq!(format!("{error:?}"), format!("{summary}\n  {node}"));

    let error = config_error(&Redlock::builder());
    assert_eq!(format!("{error:?}"), "no node given: a lock needs at least one master");
    assert!(error.source().is_none());
}

/// A program that returns `io::Result` can use `?` on all of them.
#[test]
fn every_error_becomes_an_io_error() {
    let config = || config_error(&Redlock::builder());
    assert_eq!(io::Error::from(config()).kind(), io::ErrorKind::InvalidInput);
    let connect = ConnectError::Config(config());
    assert_eq!(io::Error::from(connect).kind(), io::ErrorKind::InvalidInput);
    let connect = Redlock::connect([format!("redis://{}", refused_addr())]).unwrap_err();
    assert_eq!(io::Error::from(connect).kind(), io::ErrorKind::NotConnected);
    assert_eq!(io::Error::from(HandOverError::NoClock).kind(), io::ErrorKind::Unsupported);
    let text = "nothing".parse::<LockParts>().unwrap_err();
    assert_eq!(io::Error::from(text).kind(), io::ErrorKind::InvalidData);
}

/// Data of an operation can be in a `Vec`.
#[test]
fn operations_in_flight_have_small_numbers_of_their_own() {
    let config = Redlock::builder().node(format!("redis://{}", refused_addr())).config().unwrap();
    let poll = mio::Poll::new().unwrap();
    let mut mux = Multiplexer::new(config, poll.registry(), mio::Token(0)).unwrap();
    let ops = [(); 3].map(|()| mux.try_lock("resource", TTL).unwrap());
    assert_eq!(ops.map(OpId::index), [0, 1, 2]);
    assert!(matches!(mux.cancel(ops[1]), Cancelled::Acquisition));
    let again = mux.try_lock("resource", TTL).unwrap();
    assert_eq!(again.index(), 1);
    assert_ne!(again, ops[1]);
}

/// One error to match: each says what the caller can do, with the text of the error that it was.
#[test]
fn every_error_becomes_the_one_error_of_the_crate() {
    let refused = [format!("redis://{}?restart_guard=off", refused_addr())];
    let redlock = Redlock::builder().nodes(refused.clone()).build().unwrap();
    let check = |error: muxlock::Error, kind: ErrorKind, io_kind: io::ErrorKind, text: &str| {
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
        assert!(format!("{error:?}").starts_with(text.split(" (").next().unwrap()), "{error:?}");
        assert!(error.source().is_none());
        assert_eq!(io::Error::from(error).kind(), io_kind);
    };
    let config = config_error(&Redlock::builder());
    let text = "no node given: a lock needs at least one master";
    check(config.into(), ErrorKind::InvalidInput, io::ErrorKind::InvalidInput, text);
    let error = Redlock::connect(refused).unwrap_err();
    let text = error.to_string();
    check(error.into(), ErrorKind::Unavailable, io::ErrorKind::NotConnected, &text);
    let error = redlock.try_lock("", TTL).unwrap_err();
    let text = "the resource name has 0 bytes: it must have 1 to 1024";
    check(error.into(), ErrorKind::InvalidInput, io::ErrorKind::InvalidInput, text);
    let error = "nothing".parse::<LockParts>().unwrap_err();
    let text = "cannot hand the lock over: the text does not begin with muxlock.";
    check(error.into(), ErrorKind::InvalidInput, io::ErrorKind::InvalidData, text);
    let waiter = redlock.waiter();
    waiter.cancel();
    let error = waiter.redlock().try_lock_for("report", TTL, TTL).unwrap_err();
    let text = "cancelled: the waiter acquires no more locks";
    check(error.into(), ErrorKind::Cancelled, io::ErrorKind::Other, text);
    let kind = KeepAliveErrorKind::TooMany;
    let text = "cannot keep the lock alive: this client keeps too many locks alive";
    check(muxlock::Error::KeepAlive(kind), ErrorKind::Other, io::ErrorKind::Other, text);
}

#[test]
fn list_of_addresses_is_taken_apart() {
    let list = " redis://10.0.0.1,redis://10.0.0.2 ; valkey://10.0.0.3\n";
    let config = Redlock::builder().nodes_from(list).config().unwrap();
    let shown = format!("{config:?}");
    for address in ["10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"] {
        assert!(shown.contains(address), "{shown}");
    }
    assert!(matches!(config_error(&Redlock::builder().nodes_from(" ,")), ConfigError::NoNodes));
}

/// A socket's file that is missing is named as that.
#[cfg(unix)]
#[test]
fn missing_socket_file_is_called_so() {
    let error = Redlock::connect(["unix:///nowhere/redis.sock"]).unwrap_err();
    let expected = "unavailable: 1 of 1 nodes gave no vote (node 0 unix:/nowhere/redis.sock: \
        disconnected (there is no such socket file))";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn name_that_does_not_resolve_is_no_error_of_the_configuration() {
    assert!(Redlock::builder().node("redis://no.such.host.invalid:7000").build().is_ok());
}

#[test]
fn time_out_of_bounds_is_refused_by_name() {
    let tiny = Duration::from_nanos(1);
    let table = [
        ("node_timeout", one().node_timeout(Duration::ZERO)),
        ("node_timeout", one().node_timeout(tiny)),
        ("node_timeout", one().node_timeout(Duration::MAX)),
        ("connect_timeout", one().connect_timeout(Duration::ZERO)),
        ("connect_timeout", one().connect_timeout(Duration::MAX)),
        ("retry.first", one().retry(Retry::default().first(Duration::ZERO))),
        ("retry.first", one().retry(Retry::default().first(Duration::MAX))),
        ("retry.most", one().retry(Retry::default().most(Duration::ZERO))),
        ("retry.most", one().retry(Retry::default().most(Duration::MAX))),
        ("max_ttl", one().max_ttl(Duration::ZERO)),
        ("max_ttl", one().max_ttl(Duration::from_millis(3))),
        ("max_ttl", one().max_ttl(Duration::MAX)),
    ];
    for (expected, builder) in table {
        let error = config_error(&builder);
        let ConfigError::Time { setting, value, min, max } = &error else {
            panic!("{expected}: {error}");
        };
        assert_eq!(*setting, expected);
        assert!(value < min || value > max, "{error}");
        let text = error.to_string();
        assert!(text.starts_with(expected) && text.contains(&format!("{value:?}")), "{text}");
    }
}

#[test]
fn key_prefix_beyond_its_bound_is_refused() {
    assert!(one().key_prefix(vec![0; 256]).config().is_ok());
    let error = config_error(&one().key_prefix(vec![0; 257]));
    assert!(matches!(error, ConfigError::KeyPrefix { bytes: 257, max: 256 }), "{error}");
}

// ---- Bad arguments ----

#[test]
fn time_to_live_out_of_bounds_is_refused_before_anything_is_sent() {
    let server = Scripted::well_behaved();
    let max_ttl = Duration::from_secs(10);
    let redlock = patient([server.url()]).max_ttl(max_ttl).build().unwrap();
    let min = Duration::from_millis(4);
    let refused = [
        Duration::ZERO,
        Duration::from_nanos(1),
        // The drift of up to 100 ms is 1 ms and 2 ms more (R23): nothing would be left.
        Duration::from_millis(3),
        max_ttl + Duration::from_nanos(1),
        max_ttl + Duration::from_millis(1),
        Duration::from_millis(1 << 32),
        Duration::MAX,
    ];
    let expected = |ttl| LockErrorKind::InvalidTtl { ttl, min, max: max_ttl };
    for ttl in refused {
        for error in [
            redlock.try_lock(KEY, ttl).unwrap_err(),
            redlock.try_lock_for(KEY, ttl, max_ttl).unwrap_err(),
        ] {
            assert_eq!(error.kind(), expected(ttl), "R7");
            assert!(error.to_string().contains(&format!("{ttl:?}")), "{error}");
            assert!(error.nodes().is_empty());
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
        }
    }
    assert_eq!(server.accepted(), 0, "nothing was sent");

    let mut lock = redlock.try_lock(KEY, max_ttl).unwrap();
    for ttl in refused {
        let error = lock.extend(ttl).unwrap_err();
        assert_eq!(error.kind(), expected(ttl), "R28");
        assert!(lock.is_valid());
        assert_eq!(lock.ttl(), max_ttl);
    }
    lock.extend(max_ttl).unwrap();
    assert!(lock.unlock().unwrap().was_held());
    // The shortest one that is allowed is asked for, whatever comes of it.
    match redlock.try_lock(KEY, min) {
        Ok(lock) => assert_eq!(lock.ttl(), min),
        Err(error) => assert!(error.is_expired(), "{error}"),
    }
}

#[test]
fn resource_name_out_of_bounds_is_refused_before_anything_is_sent() {
    let server = Scripted::well_behaved();
    let redlock = patient([server.url()]).build().unwrap();
    for bytes in [0, RESOURCE_BYTES_MAX + 1, 1 << 20] {
        let error = redlock.try_lock(vec![b'x'; bytes], TTL).unwrap_err();
        assert_eq!(error.kind(), LockErrorKind::InvalidResource { bytes }, "R8");
        assert!(error.to_string().contains(&format!("has {bytes} bytes")), "{error}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
        assert!(Resource::new(vec![b'x'; bytes]).is_err());
    }
    assert_eq!(server.accepted(), 0, "nothing was sent");
    for bytes in [1, RESOURCE_BYTES_MAX] {
        assert!(redlock.try_lock(vec![b'x'; bytes], TTL).is_ok());
    }
}

#[test]
fn building_sends_nothing_and_needs_no_server() {
    let server = Scripted::well_behaved();
    let redlock = patient([server.url()]).build().unwrap();
    assert_eq!(redlock.quorum(), 1);
    assert_eq!(redlock.nodes()[0].state, NodeState::Idle);
    assert_eq!(redlock.stats(), Stats::default());
    assert_eq!(redlock.shutdown(TTL), 0);
    assert_eq!(server.accepted(), 0);
}

#[test]
fn clones_are_one_client() {
    let server = Scripted::well_behaved();
    let redlock = patient([server.url()]).connect().unwrap();
    let clone = redlock.clone();
    drop(redlock.try_lock(KEY, TTL).unwrap());
    drop(clone.try_lock(KEY, TTL).unwrap());
    assert_eq!(server.accepted(), 1);
    assert_eq!(redlock.stats(), clone.stats());
    assert_eq!(clone.stats().acquired, 2);
}
