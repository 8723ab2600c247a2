//! What the scripts and commands of waiting do on a real server, and that nothing of it stays.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;

use muxlock::testing::{Master, Masters, Value};
use testbed::{PATIENT, SOON, TTL, all_ready, is_older_than, patient, soon};

use crate::scripts::{HAND_ON, QUEUE_UP, STEP_OUT};

const KEY: &str = "k";
const QUEUE: &str = "k:muxlock:queue";
const LEASE_MS: i64 = 20_000;
const PLACES_MAX: i64 = 1_023;
/// One place in the reply of `queue_up.lua`; the rest is the key's PTTL and 2.
const PLACE: i64 = 1 << 40;
const ABSENT: i64 = -2;
const TOKEN: &str = "0123456789abcdef0123456789abcdef01234567";
const OTHER: &str = "fedcba98fedcba98fedcba98fedcba98fedcba98";
/// More entries without a listener than a call finds listeners.
const DEAD: usize = 300;

struct Scene {
    master: Master,
}

impl Scene {
    fn start() -> Scene {
        Scene { master: Master::start().unwrap_or_else(|error| panic!("{error}")) }
    }

    fn ask(&self, words: &[&str]) -> Value {
        ask(&self.master, words)
    }

    fn queue_up(&self, channel: &str) -> Value {
        let (lease, most) = (LEASE_MS.to_string(), PLACES_MAX.to_string());
        self.ask(&["EVAL", QUEUE_UP, "2", KEY, QUEUE, channel, &lease, &most])
    }

    fn hand_on(&self, channel: &str, token: &str, tell: &str) -> Value {
        self.ask(&["EVAL", HAND_ON, "2", KEY, QUEUE, channel, token, tell])
    }

    fn step_out(&self, channel: &str, front: &str) -> Value {
        let lease = LEASE_MS.to_string();
        self.ask(&["EVAL", STEP_OUT, "2", KEY, QUEUE, channel, front, &lease])
    }

    /// The first line of what a user is answered that has all rights but one.
    fn ask_without(&self, lack: &str, words: &[&str]) -> String {
        self.ask_as(&["&*", "+@all", lack], words)
    }

    /// The first line of what a user with these rights is answered.
    fn ask_as(&self, rights: &[&str], words: &[&str]) -> String {
        let user = ["ACL", "SETUSER", "app", "reset", "on", ">sesame", "~*"];
        assert_eq!(self.ask(&[&user, rights].concat()), Value::Status("OK".into()));
        let mut lines = self.connect();
        let mut line = String::new();
        for words in [&["AUTH", "app", "sesame"], words] {
            let mut bytes = format!("*{}\r\n", words.len());
            for word in words {
                bytes += &format!("${}\r\n{word}\r\n", word.len());
            }
            lines.get_mut().write_all(bytes.as_bytes()).unwrap();
            line.clear();
            lines.read_line(&mut line).unwrap();
        }
        line.trim_end().to_owned()
    }

    fn set_queue(&self, entries: &[&str]) {
        self.ask(&["DEL", QUEUE]);
        for entry in entries {
            self.ask(&["RPUSH", QUEUE, entry]);
        }
    }

    fn queue(&self) -> Vec<String> {
        match self.ask(&["LRANGE", QUEUE, "0", "-1"]) {
            Value::Array(entries) => entries.into_iter().map(text).collect(),
            other => panic!("{other:?} is no list"),
        }
    }

    fn pttl(&self, key: &str) -> i64 {
        match self.ask(&["PTTL", key]) {
            Value::Integer(left) => left,
            other => panic!("{other:?} is no time"),
        }
    }

    fn set_key(&self, token: &str) {
        self.ask(&["SET", KEY, token, "PX", "30000"]);
    }

    fn listen(&self, channel: &'static str) -> Wire<'_> {
        let mut wire = Wire { scene: self, channel, lines: self.connect() };
        wire.send(&["SUBSCRIBE", channel]);
        assert_eq!(wire.read(6).pop().as_deref(), Some(":1"));
        wire
    }

    fn connect(&self) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(self.master.addr()).unwrap();
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        BufReader::new(stream)
    }
}

/// A connection, line by line.
struct Wire<'a> {
    scene: &'a Scene,
    channel: &'static str,
    lines: BufReader<TcpStream>,
}

impl Wire<'_> {
    fn send(&mut self, words: &[&str]) {
        let line = format!("{}\r\n", words.join(" "));
        self.lines.get_mut().write_all(line.as_bytes()).unwrap();
    }

    fn read(&mut self, count: usize) -> Vec<String> {
        let line = |_| {
            let mut line = String::new();
            self.lines.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        (0..count).map(line).collect()
    }

    /// All that it was told until now.
    fn told(&mut self) -> Vec<String> {
        self.scene.ask(&["PUBLISH", self.channel, "end"]);
        let next = || self.read(7).pop().expect("a message has seven lines");
        std::iter::repeat_with(next).take_while(|told| told != "end").collect()
    }
}

fn ask(master: &Master, words: &[&str]) -> Value {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    master.query(&words).expect("the server answers")
}

fn text(value: Value) -> String {
    match value {
        Value::Bulk(bytes) => String::from_utf8(bytes).expect("it is text"),
        other => panic!("{other:?} is no text"),
    }
}

fn is_wrong_type(reply: &Value) -> bool {
    matches!(reply, Value::Error(text) if text.contains("WRONGTYPE"))
}

/// W5, W14: the place and the key's time, a place that is kept, and a queue that ends.
#[test]
fn queue_up_says_the_place_and_the_keys_time_and_lets_the_queue_live_on() {
    let scene = Scene::start();
    let _listening = ["a", "b"].map(|channel| scene.listen(channel));
    for (channel, place) in [("a", 0), ("b", 1), ("c", 2), ("b", 1), ("a", 0)] {
        let reply = scene.queue_up(channel);
        assert_eq!(reply, Value::Integer(place * PLACE + ABSENT + 2), "{channel}");
    }
    assert_eq!(scene.queue(), ["a", "b", "c"], "who asks again keeps the place");
    assert_eq!(scene.ask(&["EXISTS", KEY]), Value::Integer(0), "nothing is reserved");
    for channel in ["b", "d"] {
        scene.ask(&["PEXPIRE", QUEUE, "5000"]);
        scene.queue_up(channel);
        let left = scene.pttl(QUEUE);
        assert!((LEASE_MS / 2..=LEASE_MS).contains(&left), "{channel}: {left}");
    }
    scene.ask(&["SET", KEY, TOKEN]);
    assert_eq!(scene.queue_up("b"), Value::Integer(PLACE + 1), "a key without a TTL");
    scene.set_key(TOKEN);
    let Value::Integer(reply) = scene.queue_up("c") else { panic!("it is a number") };
    assert_eq!(reply / PLACE, 2);
    assert!((15_002..=30_002).contains(&(reply % PLACE)), "{reply}");
    // The longest time a key can have here does not reach the place.
    scene.ask(&["PEXPIRE", KEY, &(PLACE - 3).to_string()]);
    let Value::Integer(reply) = scene.queue_up("c") else { panic!("it is a number") };
    assert_eq!(reply / PLACE, 2, "{reply}");
}

/// W5, W14.
#[test]
fn full_queue_takes_no_more_and_says_so() {
    let scene = Scene::start();
    let _listening = ["e0", "e1"].map(|channel| scene.listen(channel));
    let entries: Vec<_> = (0..PLACES_MAX - 1).map(|entry| format!("e{entry}")).collect();
    let words = ["RPUSH", QUEUE].into_iter().chain(entries.iter().map(String::as_str));
    scene.ask(&words.collect::<Vec<_>>());
    let place = |channel| match scene.queue_up(channel) {
        Value::Integer(reply) => reply / PLACE,
        other => panic!("{other:?}"),
    };
    assert_eq!(place("last"), PLACES_MAX - 1);
    assert_eq!(place("more"), PLACES_MAX, "there is no such place");
    assert_eq!(place("last"), PLACES_MAX - 1, "a place that one has is told");
    assert_eq!(scene.ask(&["LLEN", QUEUE]), Value::Integer(PLACES_MAX));
    assert!(!scene.queue().contains(&"more".to_owned()));
    assert!(scene.pttl(QUEUE) > LEASE_MS / 2, "also one that is not in it keeps it alive");
}

/// W7: the key goes if it is one's own; go to the first, next to the second, nothing to the third.
#[test]
fn hand_on_deletes_its_own_key_only_and_tells_the_first_two() {
    let scene = Scene::start();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|channel| scene.listen(channel));
    let states = [(Some(TOKEN), 1), (Some(OTHER), 0), (None, 0)];
    for (token, deleted) in states {
        for (before, after) in
            [(["me", "a", "b", "c"], ["a", "b", "c"]), (["a", "b", "me", "c"], ["a", "b", "c"])]
        {
            scene.ask(&["DEL", KEY]);
            token.into_iter().for_each(|token| scene.set_key(token));
            scene.set_queue(&before);
            scene.ask(&["PEXPIRE", QUEUE, "20000"]);
            assert_eq!(scene.hand_on("me", TOKEN, "1"), Value::Integer(deleted + 2 * 3));
            assert_eq!(scene.queue(), after);
            assert_eq!((a.told(), b.told()), (vec!["gk".into()], vec!["nk".into()]));
            assert!(c.told().is_empty());
            let left = scene.pttl(QUEUE);
            assert!((1..=LEASE_MS).contains(&left), "its end stays: {left}");
            let is_left = Value::Integer(i64::from(token == Some(OTHER)));
            assert_eq!(scene.ask(&["EXISTS", KEY]), is_left, "{token:?}");
        }
    }
    // It need not stand there, and there need be no queue.
    scene.set_queue(&["b"]);
    assert_eq!(scene.hand_on("me", TOKEN, "1"), Value::Integer(2));
    assert_eq!(b.told(), ["gk"], "the first, wherever it stood before");
    scene.set_queue(&["me"]);
    scene.set_key(TOKEN);
    assert_eq!(scene.hand_on("me", TOKEN, "1"), Value::Integer(1));
    assert_eq!(scene.hand_on("me", TOKEN, "1"), Value::Integer(0));
    assert_eq!(scene.ask(&["DBSIZE"]), Value::Integer(0), "an empty queue is no key");
}

/// W13: it counts and tells nobody.
#[test]
fn hand_on_to_nobody_counts_and_changes_the_key_alone() {
    let scene = Scene::start();
    let mut a = scene.listen("a");
    for (token, deleted) in [(TOKEN, 1), (OTHER, 0)] {
        scene.set_key(token);
        scene.set_queue(&["me", "a", "dead"]);
        assert_eq!(scene.hand_on("me", TOKEN, "0"), Value::Integer(deleted + 2 * 3));
        assert_eq!(scene.queue(), ["me", "a", "dead"]);
    }
    scene.set_queue(&[]);
    scene.set_key(TOKEN);
    assert_eq!(scene.hand_on("me", TOKEN, "0"), Value::Integer(1), "no queue");
    assert!(a.told().is_empty());
}

/// A process that has ended listens no longer: its entry is dropped, and the next is told.
#[test]
fn entries_without_a_listener_are_dropped_until_two_are_told() {
    let scene = Scene::start();
    let [mut a, mut b] = ["a", "b"].map(|channel| scene.listen(channel));
    scene.set_queue(&["me", "dead", "a", "gone", "b", "left"]);
    assert_eq!(scene.hand_on("me", TOKEN, "1"), Value::Integer(2 * 3));
    assert_eq!(scene.queue(), ["a", "b", "left"], "those behind are not asked");
    assert_eq!((a.told(), b.told()), (vec!["gk".into()], vec!["nk".into()]));
    scene.set_queue(&["me", "dead", "a", "gone"]);
    assert_eq!(scene.step_out("me", "0"), Value::Integer(0));
    assert_eq!((scene.queue(), a.told()), (vec!["a".into()], vec!["gk".into()]));
    // No limit but the queue's own, and no key is left of a queue of dead entries.
    let dead: Vec<_> = (0..DEAD).map(|entry| format!("dead{entry}")).collect();
    let mut dead: Vec<_> = dead.iter().map(String::as_str).collect();
    scene.set_queue(&dead);
    assert_eq!(scene.hand_on("me", TOKEN, "1"), Value::Integer(0));
    assert_eq!(scene.ask(&["EXISTS", QUEUE]), Value::Integer(0));
    dead.push("b");
    scene.set_queue(&dead);
    assert_eq!(scene.hand_on("me", TOKEN, "1"), Value::Integer(2));
    assert_eq!((scene.queue(), b.told()), (vec!["b".into()], vec!["gk".into()]));
    drop(b);
    soon("b is gone", || scene.ask(&["PUBLISH", "b", "end"]) == Value::Integer(0));
    assert_eq!(scene.hand_on("me", TOKEN, "1"), Value::Integer(0));
    assert_eq!(scene.ask(&["EXISTS", QUEUE]), Value::Integer(0));
}

/// W10: who asks again and stands far back asks whether the first two are there, drops those that
/// are gone, and tells who is the first or the second by that. Those that have just come, and the
/// second, ask nobody.
#[test]
fn who_asks_again_drops_those_in_front_that_have_ended() {
    let scene = Scene::start();
    let mut first = scene.listen("a");
    let place = |channel| match scene.queue_up(channel) {
        Value::Integer(reply) => reply / PLACE,
        other => panic!("{other:?}"),
    };
    let mut second = scene.listen("b");
    scene.set_queue(&["dead", "gone", "a", "left", "b", "late"]);
    assert_eq!(place("me"), 6, "it has just come");
    assert_eq!(place("gone"), 1);
    assert_eq!(scene.queue(), ["dead", "gone", "a", "left", "b", "late", "me"]);
    assert_eq!(place("me"), 3);
    assert_eq!((first.told(), second.told()), (vec!["pk".into()], vec!["nk".into()]));
    assert_eq!(scene.queue(), ["a", "b", "late", "me"], "no more than two are asked");
    assert_eq!(place("me"), 3);
    assert_eq!((first.told(), second.told()), (vec!["ak".into()], vec!["ak".into()]));
    assert_eq!(scene.queue(), ["a", "b", "late", "me"]);
    // The first keeps its place, and who is the second by that is told.
    scene.set_queue(&["a", "gone", "b", "me"]);
    assert_eq!(place("me"), 2);
    assert_eq!((first.told(), second.told()), (vec!["ak".into()], vec!["nk".into()]));
    scene.set_queue(&["a", "gone", "left", "me"]);
    assert_eq!((place("me"), first.told()), (1, vec!["ak".into()]));
    assert_eq!(scene.queue(), ["a", "me"]);
    // Both move up if the one before them has ended, and none stood between them.
    scene.set_queue(&["dead", "a", "b", "me"]);
    assert_eq!(place("me"), 2);
    assert_eq!((first.told(), second.told()), (vec!["pk".into()], vec!["nk".into()]));
    assert_eq!(scene.queue(), ["a", "b", "me"]);
    // Who is the first by that is told, also by one that is the second by that.
    scene.set_queue(&["dead", "gone", "a", "me"]);
    assert_eq!((place("me"), first.told()), (1, vec!["pk".into()]));
    assert_eq!((place("me"), first.told()), (1, vec![]));
    assert_eq!(scene.queue(), ["a", "me"]);
    // The second watches, so that it need not know of the first.
    scene.set_queue(&["dead", "gone", "left", "me"]);
    assert_eq!(place("me"), 1);
    assert_eq!(scene.queue(), ["left", "me"]);
    assert!(first.told().is_empty());
    // Who may tell nobody changes nothing.
    if !is_older_than([6, 2, 0], "who_asks_again", "channels in ACL SETUSER") {
        scene.set_queue(&["dead", "gone", "me"]);
        let (lease, most) = (LEASE_MS.to_string(), PLACES_MAX.to_string());
        let words = ["EVAL", QUEUE_UP, "2", KEY, QUEUE, "me", &lease, &most];
        assert_eq!(scene.ask_without("-publish", &words), format!(":{}", 2 * PLACE));
        assert_eq!(scene.queue(), ["dead", "gone", "me"]);
    }
}

/// W10: whom the one that asks has no right to ask is believed to wait, and the others are asked.
#[test]
fn who_may_not_ask_some_asks_the_others() {
    let test = "who_may_not_ask_some_asks_the_others";
    if is_older_than([6, 2, 0], test, "channels in ACL SETUSER") {
        return;
    }
    let scene = Scene::start();
    let [mut a, mut b] = ["a", "b"].map(|channel| scene.listen(channel));
    let (lease, most) = (LEASE_MS.to_string(), PLACES_MAX.to_string());
    let words = ["EVAL", QUEUE_UP, "2", KEY, QUEUE, "me", &lease, &most];
    // The queue before and after, and what b is told. Nobody may tell a anything.
    let table: [(&[&str], &[&str], &str); 5] = [
        (&["a", "dead", "b", "me"], &["a", "b", "me"], "nk"),
        (&["dead", "a", "b", "me"], &["a", "b", "me"], "nk"),
        (&["a", "b", "dead", "me"], &["a", "b", "dead", "me"], "ak"),
        (&["dead", "b", "a", "me"], &["b", "a", "me"], "pk"),
        (&["dead", "a", "me"], &["a", "me"], ""),
    ];
    for (before, after, told) in table {
        scene.set_queue(before);
        let place = i64::try_from(after.len()).unwrap() - 1;
        let reply = scene.ask_as(&["resetchannels", "&b", "&dead", "+@all"], &words);
        assert_eq!(reply, format!(":{}", place * PLACE + ABSENT + 2), "{before:?}");
        assert_eq!(scene.queue(), after, "{before:?}");
        assert_eq!((a.told(), b.told().concat()), (vec![], told.into()), "{before:?}");
    }
}

/// W12: who was told passes it on, with what the key says; who stood behind changes nothing.
#[test]
fn step_out_passes_on_what_its_place_is_told() {
    let scene = Scene::start();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|channel| scene.listen(channel));
    // The queue before; and what a, b and c are told, if the key is there.
    let table: [(&[&str], [&str; 3]); 5] = [
        (&["me", "a", "b", "c"], ["pk", "nk", ""]),
        (&["a", "me", "b", "c"], ["", "nk", ""]),
        (&["a", "b", "me", "c"], ["", "", ""]),
        (&["a", "b", "c"], ["", "", ""]),
        (&["me"], ["", "", ""]),
    ];
    for (before, told) in table {
        for is_free in [false, true] {
            scene.ask(&["DEL", KEY]);
            if !is_free {
                scene.set_key(OTHER);
            }
            scene.set_queue(before);
            assert_eq!(scene.step_out("me", "0"), Value::Integer(0));
            let after: Vec<_> = before.iter().filter(|entry| **entry != "me").collect();
            assert_eq!(scene.queue().iter().collect::<Vec<_>>(), after, "{before:?}");
            let is_told = [a.told(), b.told(), c.told()].map(|told| told.concat());
            let told = told.map(|told| if is_free { told.replace('p', "g") } else { told.into() });
            assert_eq!(is_told, told, "{before:?} {is_free}");
            let is_there = scene.ask(&["EXISTS", KEY]) == Value::Integer(1);
            assert_eq!(is_there, !is_free, "the lock's key is as before");
        }
    }
}

/// W11: who overtook stands in front, the first that slept is out and told so, and the next knows.
#[test]
fn step_to_the_front_drops_the_first_and_tells_the_second() {
    let scene = Scene::start();
    let [mut a, mut b] = ["a", "b"].map(|channel| scene.listen(channel));
    let table: [(&[&str], &[&str], [&str; 2]); 7] = [
        (&["sleeps", "me", "a", "b"], &["me", "a", "b"], ["nk", ""]),
        (&["sleeps", "a", "me", "b"], &["me", "a", "b"], ["nk", ""]),
        (&["sleeps", "a", "b"], &["me", "a", "b"], ["nk", ""]),
        (&["me", "a", "b"], &["me", "a", "b"], ["nk", ""]),
        (&["sleeps", "me", "dead", "b"], &["me", "b"], ["", "nk"]),
        (&["a", "me", "b"], &["me", "b"], ["ok", "nk"]),
        (&[], &["me"], ["", ""]),
    ];
    scene.set_key(TOKEN);
    for (before, after, told) in table {
        scene.set_queue(before);
        assert_eq!(scene.step_out("me", "1"), Value::Integer(0));
        assert_eq!(scene.queue(), after, "{before:?}");
        assert_eq!([a.told(), b.told()].map(|told| told.concat()), told, "{before:?}");
    }
}

/// Nothing is half done: the reply of a release is an error only if nothing was released.
#[test]
fn keys_of_another_type_are_errors_that_change_no_queue() {
    let scene = Scene::start();
    let mut a = scene.listen("a");
    scene.ask(&["SET", QUEUE, "text"]);
    scene.set_key(TOKEN);
    for reply in [scene.queue_up("a"), scene.step_out("a", "0"), scene.step_out("a", "1")] {
        assert!(is_wrong_type(&reply), "{reply:?}");
    }
    for tell in ["0", "1"] {
        scene.set_key(TOKEN);
        assert_eq!(scene.hand_on("me", TOKEN, tell), Value::Integer(-1), "the release alone");
        assert_eq!(scene.ask(&["EXISTS", KEY]), Value::Integer(0));
        let reply = scene.hand_on("me", TOKEN, tell);
        assert!(is_wrong_type(&reply), "there was nothing to release: {reply:?}");
    }
    assert_eq!(text(scene.ask(&["GET", QUEUE])), "text");
    assert_eq!(scene.pttl(QUEUE), -1, "it gets no end");

    // What is no lock of ours keeps nobody from being told: a share of others, or another make's.
    scene.set_queue(&["me", "a"]);
    scene.ask(&["RPUSH", KEY, "x"]);
    assert_eq!(scene.hand_on("me", TOKEN, "1"), Value::Integer(2));
    assert_eq!((scene.queue(), a.told()), (vec!["a".to_owned()], vec!["gk".to_owned()]));
    assert_eq!(scene.ask(&["LLEN", KEY]), Value::Integer(1));
    scene.set_queue(&["me", "a"]);
    // The others only look whether it is there.
    assert_eq!(scene.queue_up("a"), Value::Integer(PLACE + 1));
    assert_eq!(scene.step_out("me", "0"), Value::Integer(0));
    assert_eq!(a.told(), ["pk"]);
}

/// A user without one of the rights gets no place, and takes none away, without a word; and what it
/// releases is released.
#[test]
fn scripts_of_a_user_without_a_right_leave_nothing_half_done() {
    let test = "scripts_of_a_user_without_a_right_leave_nothing_half_done";
    if is_older_than([6, 2, 0], test, "channels in ACL SETUSER") {
        return;
    }
    let scene = Scene::start();
    let [mut a, mut sleeps] = ["a", "sleeps"].map(|channel| scene.listen(channel));
    let keeps = |before: &[&str], words: &[&str], lack: &str| {
        scene.set_queue(before);
        if !before.is_empty() {
            scene.ask(&["PEXPIRE", QUEUE, "5000"]);
        }
        let reply = scene.ask_without(lack, words);
        assert!(reply.starts_with('-'), "{lack}: {reply}");
        assert_eq!(scene.queue(), before, "{lack}");
    };
    let (lease, most) = (LEASE_MS.to_string(), PLACES_MAX.to_string());
    let queue_up = ["EVAL", QUEUE_UP, "2", KEY, QUEUE, "me", &lease, &most];
    for lack in ["-lpos", "-llen", "-rpush", "-pttl", "-pexpire"] {
        keeps(&[], &queue_up, lack);
        keeps(&["a"], &queue_up, lack);
    }
    let hand_on = |tell| ["EVAL", HAND_ON, "2", KEY, QUEUE, "me", TOKEN, tell];
    for lack in ["-lrem", "-lindex", "-publish", "resetchannels", "-llen"] {
        scene.set_key(TOKEN);
        scene.set_queue(&["me", "a"]);
        assert_eq!(scene.ask_without(lack, &hand_on("1")), ":-1", "{lack}");
        assert_eq!(scene.ask(&["EXISTS", KEY]), Value::Integer(0), "{lack}");
        let reply = scene.ask_without(lack, &hand_on("1"));
        assert!(reply.starts_with('-'), "{lack}: nothing was released: {reply}");
    }
    scene.set_key(TOKEN);
    assert_eq!(scene.ask_without("-llen", &hand_on("0")), ":-1");
    for lack in ["-get", "-del"] {
        scene.set_key(TOKEN);
        keeps(&["me", "a"], &hand_on("1"), lack);
        assert_eq!(scene.ask(&["EXISTS", KEY]), Value::Integer(1), "{lack}");
    }
    let _ = (a.told(), sleeps.told());
    let step_out = |to| ["EVAL", STEP_OUT, "2", KEY, QUEUE, "me", to, &lease];
    for lack in ["-lpos", "-exists", "-lrem"] {
        keeps(&["me", "a"], &step_out("0"), lack);
        keeps(&["sleeps", "me", "a"], &step_out("1"), lack);
    }
    for lack in ["-lindex", "-pexpire"] {
        keeps(&["sleeps", "me", "a"], &step_out("1"), lack);
        keeps(&[], &step_out("1"), lack);
    }
    // The first is not dropped without a word.
    assert_eq!((a.told().len(), sleeps.told().len()), (0, 0));
    keeps(&["sleeps", "a"], &step_out("1"), "-lpush");
    for (lack, before) in [("-publish", ["sleeps", "me"]), ("resetchannels", ["sleeps", "a"])] {
        scene.set_queue(&before);
        let reply = scene.ask_without(lack, &step_out("1"));
        assert!(reply.starts_with('-'), "{lack}: {reply}");
        assert_eq!(scene.queue()[..2], ["me", "sleeps"], "{lack}");
    }
}

/// W4, W6, W8: what a connection is told, in the order and the form that the reader expects.
#[test]
fn watched_key_is_told_of_once_and_refusals_are_not() {
    let scene = Scene::start();
    let mut wire = Wire { scene: &scene, channel: "me", lines: scene.connect() };
    wire.send(&["HELLO", "3"]);
    wire.send(&["CLIENT", "TRACKING", "ON", "OPTIN"]);
    wire.send(&["SUBSCRIBE", "me"]);
    while wire.read(1) != ["+OK"] {}
    assert_eq!(wire.read(6), [">3", "$9", "subscribe", "$2", "me", ":1"]);
    let watch = |wire: &mut Wire<'_>| {
        wire.send(&["CLIENT", "CACHING", "YES"]);
        wire.send(&["PTTL", KEY]);
        wire.read(2)
    };
    let changed = [">2", "$10", "invalidate", "*1", "$1", "k"];
    let message = [">3", "$7", "message", "$2", "me", "$2"];
    assert_eq!(watch(&mut wire), ["+OK", ":-2"]);
    scene.set_key(OTHER);
    assert_eq!(wire.read(6), changed, "a key that was absent is set");

    let changes: [&[&str]; 4] =
        [&["DEL", KEY], &["PEXPIRE", KEY, "20000"], &["SET", KEY, "x"], &["PEXPIRE", KEY, "-1"]];
    for change in changes {
        scene.set_key(OTHER);
        assert!(watch(&mut wire)[1].as_str() > ":10000", "{change:?}");
        // A refused SET, and a release of another token, are no change.
        scene.ask(&["SET", KEY, TOKEN, "NX", "PX", "1000"]);
        scene.hand_on("nobody", TOKEN, "1");
        scene.ask(&["PUBLISH", "me", "-k"]);
        assert_eq!(wire.read(7), [&message[..], &["-k"]].concat());
        scene.ask(change);
        assert_eq!(wire.read(6), changed, "{change:?}");
    }
    // What it changes itself; it is told behind the answer.
    scene.set_key(OTHER);
    watch(&mut wire);
    wire.send(&["DEL", KEY]);
    assert_eq!(
        (wire.read(1), wire.read(6)),
        (vec![":1".to_owned()], changed.map(str::to_owned).to_vec())
    );
    // The key's end.
    scene.ask(&["SET", KEY, OTHER, "PX", "50"]);
    watch(&mut wire);
    assert_eq!(wire.read(6), changed);
    // A release that hands on tells of the key first.
    scene.set_key(TOKEN);
    watch(&mut wire);
    scene.set_queue(&["me"]);
    assert_eq!(scene.hand_on("other", TOKEN, "1"), Value::Integer(3));
    assert_eq!(wire.read(6), changed);
    assert_eq!(wire.read(7), [&message[..], &["gk"]].concat());
    // All keys.
    watch(&mut wire);
    scene.ask(&["FLUSHALL"]);
    assert_eq!(wire.read(4), [">2", "$10", "invalidate", "_"]);
}

/// The masters are single servers, and no key's name is changed for a cluster's sake: the queue's
/// key need not have the slot of the lock's key. It does where the resource has a hash tag.
#[test]
fn queue_key_is_the_locks_key_and_a_tail() {
    let masters = Masters::start(3).unwrap();
    let builder = patient(masters.urls()).key_prefix("app:");
    for resource in ["plain", "{tag}"] {
        let holder = all_ready(&builder);
        let lock = holder.try_lock(resource, TTL).unwrap();
        let waiter = all_ready(&builder);
        let queue = format!("app:{resource}:muxlock:queue");
        thread::scope(|scope| {
            scope.spawn(|| waiter.try_lock_for(resource, TTL, PATIENT).unwrap().unlock().unwrap());
            let length = |master| ask(master, &["LLEN", &queue]) == Value::Integer(1);
            soon("it waits", || masters.iter().filter(|it| length(it)).count() == 1);
            assert!(lock.unlock().unwrap().was_held());
        });
    }
}

/// Entries that look like channels, and nothing that a lock consists of.
#[test]
fn slow_nothing_is_left_when_all_have_come_and_gone() {
    let masters = Masters::start(3).unwrap();
    let all = |words: &[&str]| -> Vec<Value> { masters.iter().map(|it| ask(it, words)).collect() };
    let builder = patient(masters.urls());
    let holder = all_ready(&builder);
    let lock = holder.try_lock(KEY, TTL).unwrap();
    let waiters = [all_ready(&builder), all_ready(&builder), all_ready(&builder)];
    let quitter = all_ready(&builder);
    let mut found = Vec::new();
    thread::scope(|scope| {
        for waiter in &waiters {
            scope.spawn(|| waiter.try_lock_for(KEY, TTL, PATIENT).unwrap().unlock().unwrap());
        }
        soon("three wait", || {
            let queues = all(&["LRANGE", QUEUE, "0", "-1"]).into_iter();
            found = queues.filter(|queue| *queue != Value::Array(Vec::new())).collect();
            matches!(&found[..], [Value::Array(entries)] if entries.len() == 3)
        });
        let error = quitter.try_lock_for(KEY, TTL, SOON / 5).unwrap_err();
        assert!(
            error.is_contended() && error.queue_position() == Some(3),
            "{error} {:?}",
            error.queue_position()
        );
        soon("it has left", || {
            all(&["LLEN", QUEUE]).contains(&Value::Integer(3))
                && !all(&["LLEN", QUEUE]).contains(&Value::Integer(4))
        });
        let Some(Value::Array(entries)) = found.pop() else { panic!("it was found") };
        for entry in entries.into_iter().map(text) {
            let id = entry.strip_prefix("muxlock:").expect("it is a channel");
            assert!(id.len() == 20 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
            let heard = all(&["PUBSUB", "NUMSUB", &entry]);
            let listens = [Value::Bulk(entry.into_bytes()), Value::Integer(1)];
            assert!(heard.contains(&Value::Array(listens.into())), "{heard:?}");
        }
        assert!(lock.unlock().unwrap().was_held());
    });
    for client in waiters.iter().chain([&holder, &quitter]) {
        assert_eq!(client.shutdown(SOON), 0);
    }
    let none = vec![Value::Integer(0); 3];
    soon("no key is left", || all(&["DBSIZE"]) == none);
    drop((waiters, holder, quitter));
    let is_empty = |words: &[&str]| all(words) == vec![Value::Array(Vec::new()); 3];
    soon("no channel is left", || is_empty(&["PUBSUB", "CHANNELS"]));
    soon("no client is left", || {
        let lists = all(&["CLIENT", "LIST"]).into_iter().map(text);
        lists.into_iter().all(|list| !list.contains("name=muxlock"))
    });
}
