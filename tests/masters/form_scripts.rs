//! What the scripts of shares and sets do on a real server when they run later than they were sent
//! (K3 to K7).

use std::time::Duration;

use muxlock::testing::{Master, Value};
use testbed::pause;

use crate::scripts::{
    FREE_ALL, FREE_AS, FREE_SHARED, KEEP_ALL, KEEP_AS, KEEP_SHARED, TAKE_ALL, TAKE_AS,
    TAKE_EXCLUSIVE, TAKE_SHARED,
};

const TOKEN: &str = "0123456789abcdef0123456789abcdef01234567";
const OTHER: &str = "fedcba98fedcba98fedcba98fedcba98fedcba98";
const LONG: i64 = 60_000;
const SHORT: i64 = 1_000;
const DONE: Value = Value::Integer(1);
const REFUSED: Value = Value::Integer(0);
const HEALED: Value = Value::Integer(2);

struct Scene {
    master: Master,
}

impl Scene {
    fn start() -> Scene {
        Scene { master: Master::start().unwrap_or_else(|error| panic!("{error}")) }
    }

    fn ask(&self, words: &[&str]) -> Value {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.master.query(&words).expect("the server answers")
    }

    /// For the key of a share; the last argument is what heals, or leaves a sign.
    fn share(&self, script: &str, token: &str, ttl: i64, last: &str) -> Value {
        self.ask(&["EVAL", script, "2", "k", "k:intent", token, &ttl.to_string(), last])
    }

    fn set(&self, script: &str, ttl: i64, last: &str) -> Value {
        self.ask(&["EVAL", script, "2", "a", "b", TOKEN, &ttl.to_string(), last])
    }

    fn lives_long(&self, key: &str) -> bool {
        self.master.pttl(key.as_bytes()).unwrap() > SHORT
    }

    /// Whether the share of this token ends later than a short one would.
    fn is_long(&self, token: &str) -> bool {
        let now = match self.ask(&["TIME"]) {
            Value::Array(parts) => match &parts[0] {
                Value::Bulk(seconds) => std::str::from_utf8(seconds).unwrap().parse::<f64>(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        match self.ask(&["ZSCORE", "k", token]) {
            Value::Bulk(score) => {
                let score: f64 = std::str::from_utf8(&score).unwrap().parse().unwrap();
                score > now.unwrap() * 1_000.0 + 2.0 * SHORT as f64
            }
            other => panic!("it has no share: {other:?}"),
        }
    }
}

/// K1, K4 to K6: what a read lock, a write lock and a set make of a key, whatever it holds. What
/// refuses is left as it is, and each grant has the end that it should have.
#[test]
fn slow_every_state_of_a_key_has_its_votes() {
    const FAR: &str = "9999999999999";
    let text = ["SET", "k", OTHER, "PX", "90000"];
    let share = |token| vec![vec!["ZADD", "k", FAR, token], vec!["PEXPIREAT", "k", FAR]];
    type State = (&'static str, Vec<Vec<&'static str>>, [i64; 3]);
    let states: [State; 11] = [
        ("absent", vec![], [1, 1, 1]),
        ("a lock", vec![text.to_vec()], [0, 0, 2]),
        ("a lock for ever", vec![text[..3].to_vec()], [0, 0, 2]),
        ("this lock", vec![vec!["SET", "k", TOKEN, "PX", "90000"]], [0, 0, 2]),
        ("a hash", vec![vec!["HSET", "k", "f", "v"]], [0, 0, 2]),
        (
            "a list with an end",
            vec![vec!["RPUSH", "k", "v"], vec!["PEXPIRE", "k", "9000"]],
            [0, 0, 2],
        ),
        ("a sorted set", vec![vec!["ZADD", "k", FAR, OTHER]], [0, 0, 2]),
        ("a sorted set of the past", vec![vec!["ZADD", "k", "5", OTHER]], [0, 0, 2]),
        ("a read lock", share(OTHER), [1, 0, 2]),
        ("this read lock", share(TOKEN), [0, 0, 2]),
        (
            "old read locks",
            vec![vec!["ZADD", "k", "5", OTHER], vec!["PEXPIREAT", "k", FAR]],
            [1, 1, 2],
        ),
    ];
    let scene = Scene::start();
    let scripts = [TAKE_SHARED, TAKE_EXCLUSIVE, TAKE_ALL];
    for (state, commands, votes) in &states {
        for (index, (script, vote)) in scripts.iter().zip(votes).enumerate() {
            scene.ask(&["FLUSHALL"]);
            for command in commands {
                scene.ask(command);
            }
            let (before, beside) = (scene.ask(&["DUMP", "k"]), scene.ask(&["PTTL", "k"]));
            let keys = ["k", if index == 2 { "l" } else { "k:intent" }];
            let words = ["EVAL", script, "2", keys[0], keys[1], TOKEN, "60000", "0"];
            let what = format!("{state}, script {index}");
            assert_eq!(scene.ask(&words), Value::Integer(*vote), "{what}");
            let left = scene.master.pttl(b"k").unwrap();
            match (vote, index) {
                (1, 0) if *state == "a read lock" => assert!(left > LONG, "{what}"),
                (1, 0) => assert!(left > LONG / 2 && left <= LONG, "{what}: {left}"),
                (1, _) => {
                    assert!(left > LONG / 2 && left <= LONG, "{what}: {left}");
                    let value = Value::Bulk(TOKEN.into());
                    assert_eq!(scene.ask(&["GET", "k"]), value, "{what}");
                }
                _ => assert_eq!(scene.ask(&["DUMP", "k"]), before, "{what}, {beside:?}"),
            }
            if (*vote, index) == (1, 0) {
                let count = if *state == "a read lock" { 2 } else { 1 };
                assert_eq!(scene.ask(&["ZCARD", "k"]), Value::Integer(count), "{what}");
            }
            let taken = i64::from((*vote, index) == (1, 2));
            assert_eq!(scene.ask(&["EXISTS", "l", "k:intent"]), Value::Integer(taken), "{what}");
        }
    }
    // K5: a share that ends soon keeps a writer out as well, at any time within a second.
    for _ in 0..10 {
        scene.ask(&["DEL", "k"]);
        assert_eq!(scene.share(TAKE_SHARED, OTHER, 3 * SHORT, "0"), DONE);
        assert_eq!(scene.share(TAKE_EXCLUSIVE, TOKEN, LONG, "0"), REFUSED);
        pause(Duration::from_millis(100));
    }
    // K6: the sign alone keeps a reader out, and only while it is one.
    for (sign, vote) in [("", REFUSED), (OTHER, DONE)] {
        scene.ask(&["FLUSHALL"]);
        scene.ask(&["SET", "k:intent", sign]);
        assert_eq!(scene.share(TAKE_SHARED, TOKEN, LONG, "0"), vote);
        assert_eq!(scene.ask(&["EXISTS", "k"]), vote);
    }
    // K2: of those that are held, the one that lives longest; the others stay free.
    for (held, vote) in [(&["b"][..], 3), (&["a", "b"], 3), (&["a"], 2)] {
        scene.ask(&["FLUSHALL"]);
        for name in held {
            let ttl = if *name == "a" { "1000000" } else { "2000000" };
            scene.ask(&["SET", name, OTHER, "PX", ttl]);
        }
        assert_eq!(scene.set(TAKE_ALL, LONG, "0"), Value::Integer(vote), "{held:?}");
        assert_eq!(scene.ask(&["DBSIZE"]), Value::Integer(held.len() as i64));
    }
}

/// R29: an extension has healed the share, and a node has said so for its whole time. What took it
/// arrives only now.
#[test]
fn late_share_shortens_no_healed_one() {
    let scene = Scene::start();
    assert_eq!(scene.share(KEEP_SHARED, TOKEN, LONG, "1"), HEALED);
    assert_eq!(scene.share(TAKE_SHARED, TOKEN, SHORT, "0"), REFUSED);
    assert!(scene.is_long(TOKEN) && scene.lives_long("k"));
    assert_eq!(scene.share(TAKE_SHARED, OTHER, SHORT, "0"), DONE, "another reader");
    assert!(!scene.is_long(OTHER) && scene.is_long(TOKEN) && scene.lives_long("k"));
}

/// K7: whatever was sent before the downgrade, and after it for less time.
#[test]
fn late_commands_shorten_no_share_of_a_downgraded_lock() {
    let scene = Scene::start();
    assert_eq!(scene.share(TAKE_EXCLUSIVE, TOKEN, LONG, "0"), DONE);
    assert_eq!(scene.share(KEEP_SHARED, TOKEN, SHORT, "0"), DONE);
    assert!(scene.is_long(TOKEN) && scene.lives_long("k"), "as long as the lock was");
    for (script, last) in [(KEEP_SHARED, "0"), (KEEP_SHARED, "1")] {
        assert_eq!(scene.share(script, TOKEN, SHORT, last), DONE);
    }
    for script in [TAKE_EXCLUSIVE, TAKE_SHARED] {
        assert_eq!(scene.share(script, TOKEN, SHORT, "0"), REFUSED);
    }
    assert!(scene.is_long(TOKEN) && scene.lives_long("k"));
    assert_eq!(scene.share(FREE_SHARED, TOKEN, SHORT, "0"), DONE);
    // From then on, nothing but what heals sets anything.
    assert_eq!(scene.share(KEEP_SHARED, TOKEN, LONG, "0"), REFUSED);
    assert_eq!(scene.ask(&["DBSIZE"]), REFUSED);
}

/// K7: what took the lock alone arrives after its release had begun, and after the downgrade.
#[test]
fn release_of_a_share_frees_what_was_set_late() {
    let scene = Scene::start();
    assert_eq!(scene.ask(&["SET", "k", TOKEN, "NX", "PX", "60000"]), Value::Status("OK".into()));
    assert_eq!(scene.share(FREE_SHARED, OTHER, LONG, "0"), REFUSED);
    assert_eq!(scene.share(FREE_SHARED, TOKEN, LONG, "0"), DONE);
    assert_eq!(scene.ask(&["DBSIZE"]), REFUSED);
}

/// K3: neither what takes a set nor what extends it shortens a key.
#[test]
fn late_commands_shorten_no_key_of_a_set() {
    let scene = Scene::start();
    assert_eq!(scene.set(KEEP_ALL, LONG, "1"), HEALED);
    // Which of the two lives longer may depend on a millisecond.
    assert!(matches!(scene.set(TAKE_ALL, SHORT, "0"), Value::Integer(2 | 3)));
    assert_eq!(scene.set(KEEP_ALL, SHORT, "0"), DONE);
    assert_eq!(scene.set(KEEP_ALL, SHORT, "1"), DONE);
    assert!(scene.lives_long("a") && scene.lives_long("b"));
    // A part that is gone is not set again by what does not heal, and nothing else is.
    scene.ask(&["DEL", "b"]);
    assert_eq!(scene.set(KEEP_ALL, 2 * LONG, "0"), REFUSED);
    assert!(scene.master.pttl(b"a").unwrap() <= LONG);
    assert_eq!(scene.ask(&["EXISTS", "b"]), REFUSED);
    scene.ask(&["SET", "b", OTHER]);
    assert_eq!(scene.set(KEEP_ALL, 2 * LONG, "1"), REFUSED, "another's");
    assert!(scene.master.pttl(b"a").unwrap() <= LONG);
}

/// K3, R29: a part that is another's outweighs one that is absent, in any order.
#[test]
fn set_is_not_healed_beside_anothers_key() {
    let scene = Scene::start();
    for (anothers, absent) in [("a", "b"), ("b", "a")] {
        scene.ask(&["SET", anothers, OTHER]);
        assert_eq!(scene.set(KEEP_ALL, LONG, "1"), REFUSED, "{anothers} is another's");
        assert_eq!(scene.ask(&["EXISTS", absent]), REFUSED, "{absent}");
        scene.ask(&["DEL", anothers]);
    }
}

/// K4: the key lives on with another reader. A share in it that has ended is as good as absent.
#[test]
fn share_that_has_ended_is_not_kept_beside_another() {
    let scene = Scene::start();
    for token in [TOKEN, OTHER] {
        assert_eq!(scene.share(TAKE_SHARED, token, LONG, "0"), DONE);
    }
    scene.ask(&["ZADD", "k", "1", TOKEN]);
    assert_eq!(scene.share(KEEP_SHARED, TOKEN, LONG, "0"), REFUSED);
    assert!(!scene.is_long(TOKEN) && scene.is_long(OTHER));
    assert_eq!(scene.share(KEEP_SHARED, TOKEN, LONG, "1"), HEALED);
    assert!(scene.is_long(TOKEN));
}

const VALUE: &str = "desk 4";

impl Scene {
    /// The server refuses all that needs memory from now on.
    fn fill_up(&self) {
        self.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        match self.ask(&["SET", "more", "of it"]) {
            Value::Error(text) if text.starts_with("OOM") => {}
            other => panic!("there is memory: {other:?}"),
        }
    }

    /// For a lock with a value.
    fn own(&self, script: &str, token: &str) -> Value {
        let ttl = LONG.to_string();
        self.ask(&["EVAL", script, "2", "k", "k:as", token, &ttl, "0", VALUE])
    }

    /// Both keys end soon, at the same moment.
    fn shorten(&self, keys: [&str; 2]) {
        let script = "local t=redis.call('TIME') local at=t[1]*1000+ARGV[1] \
            for i=1,2 do redis.call('PEXPIREAT',KEYS[i],string.format('%.0f',at)) end";
        self.ask(&["EVAL", script, "2", keys[0], keys[1], &SHORT.to_string()]);
    }
}

/// K3: a share is kept, also one that a lock becomes, and given up.
#[test]
fn full_master_keeps_and_frees_shares() {
    let scene = Scene::start();
    assert_eq!(scene.share(TAKE_SHARED, TOKEN, SHORT, "0"), DONE);
    assert_eq!(scene.share(TAKE_SHARED, OTHER, SHORT, "0"), DONE);
    scene.fill_up();
    assert_eq!(scene.share(KEEP_SHARED, TOKEN, LONG, "0"), DONE);
    assert!(scene.is_long(TOKEN) && scene.lives_long("k"));
    assert_eq!(scene.share(KEEP_SHARED, OTHER, LONG, "1"), DONE, "it may heal, too");
    assert_eq!(scene.share(FREE_SHARED, TOKEN, LONG, "0"), DONE);
    assert_eq!(scene.share(FREE_SHARED, OTHER, LONG, "0"), DONE);
    assert_eq!(scene.ask(&["DBSIZE"]), REFUSED);
    let refused = scene.share(TAKE_SHARED, TOKEN, LONG, "0");
    assert!(matches!(&refused, Value::Error(error) if error.contains("OOM")), "{refused:?}");
    assert_eq!(scene.ask(&["DBSIZE"]), REFUSED, "a new one needs memory");
    let scene = Scene::start();
    assert_eq!(scene.share(TAKE_EXCLUSIVE, TOKEN, SHORT, "0"), DONE);
    scene.fill_up();
    assert_eq!(scene.share(KEEP_SHARED, TOKEN, LONG, "0"), DONE, "it becomes a share");
    assert!(scene.is_long(TOKEN) && scene.lives_long("k"));
    assert_eq!(scene.share(FREE_SHARED, TOKEN, LONG, "0"), DONE);
    assert_eq!(scene.ask(&["DBSIZE"]), REFUSED);
}

/// K3: the same of a set.
#[test]
fn full_master_keeps_and_frees_sets() {
    for heals in ["0", "1"] {
        let scene = Scene::start();
        assert_eq!(scene.set(TAKE_ALL, SHORT, "0"), DONE);
        scene.fill_up();
        assert_eq!(scene.set(KEEP_ALL, LONG, heals), DONE);
        assert!(scene.lives_long("a") && scene.lives_long("b"));
        assert_eq!(scene.set(FREE_ALL, LONG, "0"), DONE);
        assert_eq!(scene.ask(&["DBSIZE"]), REFUSED);
    }
}

/// K3: the same of a lock with a value.
#[test]
fn full_master_keeps_and_frees_what_has_a_value() {
    let scene = Scene::start();
    assert_eq!(scene.own(TAKE_AS, TOKEN), DONE);
    scene.fill_up();
    assert_eq!(scene.own(KEEP_AS, OTHER), REFUSED);
    scene.shorten(["k", "k:as"]);
    assert_eq!(scene.own(KEEP_AS, TOKEN), DONE);
    assert!(scene.lives_long("k") && scene.lives_long("k:as"));
    assert_eq!(scene.own(FREE_AS, TOKEN), DONE);
    assert_eq!(scene.ask(&["DBSIZE"]), REFUSED);
}
