//! What the scripts for fencing tokens do on a real server.

use muxlock::testing::{Master, Value};

use crate::scripts::{ACQUIRE_FENCED, RAISE};

const TOKEN: &str = "0123456789abcdef0123456789abcdef01234567";
const OTHER: &str = "fedcba98fedcba98fedcba98fedcba98fedcba98";
const COUNTERS: &str = "muxlock:fence";
const BUCKET: &str = "10308";
/// How far a counter may be from the server's clock, unless it must be greater than before.
const NEAR: i64 = 500_000;
const HOUR: i64 = 3_600_000_000;
/// What may pass between two commands of a test.
const SLACK: i64 = 60_000_000;

struct Scene {
    master: Master,
}

impl Scene {
    fn start(args: &[&str]) -> Scene {
        Scene { master: Master::start_with(args).unwrap_or_else(|error| panic!("{error}")) }
    }

    fn ask(&self, words: &[&str]) -> Value {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.master.query(&words).expect("the server answers")
    }

    fn acquire(&self, token: &str, proposal: i64) -> Value {
        let proposal = proposal.to_string();
        self.ask(&["EVAL", ACQUIRE_FENCED, "2", "k", COUNTERS, token, "60000", BUCKET, &proposal])
    }

    fn raise(&self, token: &str, number: i64) -> Value {
        self.ask(&["EVAL", RAISE, "2", "k", COUNTERS, token, BUCKET, &number.to_string()])
    }

    fn counter(&self) -> Value {
        self.ask(&["HGET", COUNTERS, BUCKET])
    }

    fn count(&self, value: &str) {
        self.ask(&["HSET", COUNTERS, BUCKET, value]);
    }

    fn is_free(&self) -> bool {
        self.ask(&["EXISTS", "k"]) == Value::Integer(0)
    }

    fn free(&self) {
        self.ask(&["DEL", "k"]);
    }

    /// The server's clock, in microseconds.
    fn now(&self) -> i64 {
        match self.ask(&["TIME"]) {
            Value::Array(parts) => number(&parts[0]) * 1_000_000 + number(&parts[1]),
            other => panic!("{other:?} is no time"),
        }
    }
}

fn number(value: &Value) -> i64 {
    match value {
        Value::Integer(number) => *number,
        Value::Bulk(text) => String::from_utf8_lossy(text).parse().expect("a number"),
        other => panic!("{other:?} is no number"),
    }
}

#[test]
fn counter_takes_the_proposal_or_more_and_stays_near_the_servers_clock() {
    let scene = Scene::start(&[]);
    let near = scene.now() + NEAR / 2;
    assert_eq!(scene.acquire(TOKEN, near), Value::Integer(1), "granted at the proposal");
    assert_eq!(number(&scene.counter()), near);
    assert_eq!(scene.acquire(OTHER, near + 1), Value::Nil, "refused");
    assert_eq!(number(&scene.counter()), near, "a refusal counts nothing");
    // No proposal, and old ones: the counter is more than before, and not far behind the clock.
    for proposal in [0, near - HOUR, near] {
        scene.free();
        let before = number(&scene.counter()).max(scene.now() - NEAR);
        let given = number(&scene.acquire(TOKEN, proposal));
        assert!(given > before - 1 && given <= before + SLACK, "{proposal}: {given} {before}");
        assert_eq!(number(&scene.counter()), given);
    }
    // A proposal that another lock has had is no number for this one.
    scene.free();
    let near = scene.now();
    scene.count(&near.to_string());
    assert_eq!(scene.acquire(TOKEN, near), Value::Integer(near + 1));
    // A proposal that is ahead is cut.
    scene.free();
    let now = scene.now();
    let given = number(&scene.acquire(TOKEN, now + HOUR));
    assert!((now + NEAR..=now + NEAR + SLACK).contains(&given), "{given}");
    // A counter that is ahead grows by one, and nothing sets it back.
    scene.free();
    scene.count(&(now + HOUR).to_string());
    assert_eq!(scene.acquire(TOKEN, now), Value::Integer(now + HOUR + 1));
    // A counter that is behind, as in a copy of yesterday, does not stay so.
    scene.free();
    scene.count("7");
    let given = number(&scene.acquire(TOKEN, 9));
    assert!(given >= now - NEAR, "{given}");
}

#[test]
fn number_is_raised_only_for_who_holds_the_key_and_never_lowered() {
    let scene = Scene::start(&[]);
    let near = scene.now();
    assert_eq!(scene.raise(TOKEN, near), Value::Integer(0), "nobody holds it");
    assert_eq!(scene.acquire(TOKEN, near), Value::Integer(1));
    assert_eq!(scene.raise(OTHER, near + 5), Value::Integer(0), "somebody else holds it");
    assert_eq!(number(&scene.counter()), near);
    assert_eq!(scene.raise(TOKEN, near + 5), Value::Integer(1));
    assert_eq!(number(&scene.counter()), near + 5);
    assert_eq!(scene.raise(TOKEN, near), Value::Integer(1));
    assert_eq!(number(&scene.counter()), near + 5);
    scene.ask(&["DEL", COUNTERS]);
    assert_eq!(scene.raise(TOKEN, near), Value::Integer(1), "a lost counter is set");
    assert_eq!(number(&scene.counter()), near);
    assert_eq!(number(&scene.ask(&["PTTL", COUNTERS])), -1, "it has no end (F3)");
}

/// A bad counter shows before anything is set.
#[test]
fn bad_counter_is_an_error_and_leaves_no_key() {
    let scene = Scene::start(&[]);
    let near = scene.now();
    let bad = ["x", "-1", "nan", "inf", "", "9000000000000000", "9007199254740993"];
    let is_named =
        |reply: &Value| matches!(reply, Value::Error(text) if text.contains("bad fencing counter"));
    for value in bad {
        scene.count(value);
        let reply = scene.acquire(TOKEN, near);
        assert!(is_named(&reply), "{value}: {reply:?}");
        assert!(scene.is_free(), "{value}");
        scene.ask(&["SET", "k", TOKEN]);
        let reply = scene.raise(TOKEN, near);
        assert!(is_named(&reply), "{value}: {reply:?}");
        scene.free();
    }
    scene.ask(&["SET", COUNTERS, "text"]);
    let reply = scene.acquire(TOKEN, near);
    assert!(matches!(&reply, Value::Error(text) if text.contains("WRONGTYPE")), "{reply:?}");
    assert!(scene.is_free());
}

/// The server says no before the key is set, but for a user who may not write the counter.
#[test]
fn server_that_refuses_leaves_no_key() {
    let scene = Scene::start(&[]);
    let near = scene.now();
    let states: [(&[&str], &[&str]); 3] = [
        (&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"]),
        (&["ACL", "SETUSER", "default", "-hget"], &["ACL", "SETUSER", "default", "+hget"]),
        (&["ACL", "SETUSER", "default", "-time"], &["ACL", "SETUSER", "default", "+time"]),
    ];
    for (enter, leave) in states {
        scene.ask(enter);
        let reply = scene.acquire(TOKEN, near);
        assert!(matches!(reply, Value::Error(_)), "{enter:?}: {reply:?}");
        scene.ask(leave);
        assert!(scene.is_free(), "{enter:?}");
    }
    scene.ask(&["ACL", "SETUSER", "default", "resetkeys", "~k"]);
    assert!(matches!(scene.acquire(TOKEN, near), Value::Error(_)));
    assert!(scene.is_free());
    scene.ask(&["ACL", "SETUSER", "default", "allkeys", "-hset"]);
    assert!(matches!(scene.acquire(TOKEN, near), Value::Error(_)));
    assert!(!scene.is_free(), "its release follows");
}
