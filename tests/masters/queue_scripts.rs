//! Whom the scripts of the queues notify on a real server, and whom they drop (W5 to W7, W12, W14).

use std::io::{Read, Write};
use std::net::TcpStream;

use muxlock::testing::{Master, Value};

use crate::scripts::{HAND_ON, QUEUE_UP, STEP_OUT, TAKE_EXCLUSIVE};

const LEASE: &str = "20000";
const LETTERS: [&str; 5] = ["ak", "gk", "nk", "ok", "pk"];

/// A server with a queue. Of the engines `a` to `e`, those that are named listen.
struct Scene {
    master: Master,
    listeners: Vec<(char, TcpStream)>,
}

impl Scene {
    fn start(queue: &str, listeners: &str, is_held: bool) -> Scene {
        let master = Master::start().unwrap_or_else(|error| panic!("{error}"));
        let listen = |name: char| {
            let mut stream = TcpStream::connect(master.addr()).unwrap();
            stream.write_all(format!("SUBSCRIBE {name}\r\n").as_bytes()).unwrap();
            read_until(&mut stream, ":1\r\n");
            (name, stream)
        };
        let listeners = listeners.chars().map(listen).collect();
        let scene = Scene { master, listeners };
        for name in queue.chars() {
            scene.ask(&["RPUSH", "q", &name.to_string()]);
        }
        scene.ask(&["PEXPIRE", "q", "1000"]);
        if is_held {
            scene.ask(&["SET", "k", "token", "PX", "60000"]);
        }
        scene
    }

    fn ask(&self, words: &[&str]) -> Value {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.master.query(&words).expect("the server answers")
    }

    fn number(&self, words: &[&str]) -> i64 {
        match self.ask(words) {
            Value::Integer(number) => number,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    /// The place of this engine, by the script.
    fn queue_up(&self, name: &str) -> i64 {
        self.number(&["EVAL", QUEUE_UP, "2", "k", "q", name, LEASE, "1023"]) >> 40
    }

    fn step_out(&self, name: &str, to: &str) {
        let words = ["EVAL", STEP_OUT, "2", "k", "q", name, to, LEASE];
        assert_eq!(self.number(&words), 0);
    }

    fn queue(&self) -> String {
        match self.ask(&["LRANGE", "q", "0", "-1"]) {
            Value::Array(names) => names
                .iter()
                .map(|name| match name {
                    Value::Bulk(name) => String::from_utf8_lossy(name).into_owned(),
                    other => panic!("{other:?}"),
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    /// What each has been told, as in `b:g c:n`.
    fn told(&mut self) -> String {
        let mut told = Vec::new();
        for (name, stream) in &mut self.listeners {
            let words = [b"PUBLISH".as_slice(), &[*name as u8], b"end"];
            self.master.query(&words).expect("the server answers");
            let text = read_until(stream, "$3\r\nend\r\n");
            let letters = text.split("\r\n").filter(|line| LETTERS.contains(line));
            told.extend(letters.map(|line| format!("{name}:{}", &line[..1])));
        }
        told.join(" ")
    }

    fn is_leased(&self) -> bool {
        self.number(&["PTTL", "q"]) > 10_000
    }
}

fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the server goes on");
        text.push(byte[0]);
    }
    String::from_utf8(text).expect("a text")
}

/// W5, W14: whoever asks for its place again asks the first two as well, drops those that do not
/// listen, and notifies those that come to the front.
#[test]
fn queue_up_drops_the_deaf_and_notifies_those_behind() {
    let table = [
        ("ab", "abc", "c", 2, "abc", ""),
        ("abc", "abc", "c", 2, "abc", "a:a b:a"),
        ("abc", "bc", "c", 1, "bc", "b:p"),
        ("ab", "b", "b", 1, "ab", ""),
        ("abcd", "acd", "d", 2, "acd", "a:a c:n"),
        ("abcd", "bcd", "d", 2, "bcd", "b:p c:n"),
        ("abcd", "cd", "d", 1, "cd", "c:p"),
    ];
    for (queue, listeners, name, place, after, told) in table {
        let mut scene = Scene::start(queue, listeners, true);
        assert_eq!(scene.queue_up(name), place, "{queue} {listeners}");
        assert_eq!(scene.queue(), after, "{queue} {listeners}");
        assert_eq!(scene.told(), told, "{queue} {listeners}");
        assert!(scene.is_leased(), "{queue} {listeners}");
    }
}

/// W12: whoever leaves one of the first two places notifies those that come next and listen.
#[test]
fn step_out_notifies_those_that_come_next_and_listen() {
    let table = [
        ("abc", "abc", "a", "bc", "b:g c:n"),
        ("abcd", "acd", "a", "cd", "c:g d:n"),
        ("abcd", "abd", "a", "bd", "b:g d:n"),
        ("abc", "abc", "b", "ac", "c:n"),
        ("abcd", "abd", "b", "ad", "d:n"),
        ("abcd", "abcd", "c", "abd", ""),
        ("bc", "bc", "a", "bc", ""),
    ];
    for (queue, listeners, name, after, told) in table {
        for is_held in [false, true] {
            let mut scene = Scene::start(queue, listeners, is_held);
            scene.step_out(name, "0");
            assert_eq!(scene.queue(), after, "{queue} {listeners} {name}");
            let told = if is_held { told.replace(":g", ":p") } else { told.to_owned() };
            assert_eq!(scene.told(), told, "{queue} {listeners} {name}, held: {is_held}");
        }
    }
}

/// W11: whoever overtakes takes the front, and the engine that slept there is out.
#[test]
fn step_to_the_front_puts_out_the_one_that_slept() {
    let table = [
        ("abc", "abc", "b", "bc", "a:o c:n"),
        ("abc", "abc", "d", "dbc", "a:o b:n"),
        ("ab", "ab", "a", "ab", "b:n"),
        ("", "", "a", "a", ""),
    ];
    for (queue, listeners, name, after, told) in table {
        let mut scene = Scene::start(queue, listeners, true);
        scene.step_out(name, "1");
        assert_eq!(scene.queue(), after, "{queue} {name}");
        assert_eq!(scene.told(), told, "{queue} {name}");
        assert!(scene.is_leased(), "{queue} {name}");
    }
}

/// W7: a lock that is handed on is free, and those that come next and listen are notified.
#[test]
fn hand_on_notifies_those_that_come_next_and_listen() {
    let table = [
        ("abc", "bc", "bc", "b:g c:n"),
        ("abcd", "cd", "cd", "c:g d:n"),
        ("abcd", "bd", "bd", "b:g d:n"),
        ("bcd", "bcd", "bcd", "b:g c:n"),
        ("a", "", "", ""),
    ];
    for (queue, listeners, after, told) in table {
        let mut scene = Scene::start(queue, listeners, true);
        let words = ["EVAL", HAND_ON, "2", "k", "q", "a", "token", "1"];
        let left = i64::try_from(after.len()).expect("few");
        assert_eq!(scene.number(&words), 1 + 2 * left, "{queue} {listeners}");
        assert_eq!(scene.number(&["EXISTS", "k"]), 0);
        assert_eq!(scene.queue(), after, "{queue} {listeners}");
        assert_eq!(scene.told(), told, "{queue} {listeners}");
    }
}

/// K6: the sign of a waiting writer ends when it has the lock. A value of another client stays.
#[test]
fn sign_ends_with_the_wait_of_its_writer() {
    let scene = Scene::start("", "", false);
    for (sign, is_left) in [("", 0), ("another client's", 1)] {
        scene.ask(&["SET", "k:intent", sign, "PX", "60000"]);
        let words = ["EVAL", TAKE_EXCLUSIVE, "2", "k", "k:intent", "token", "60000", "500"];
        assert_eq!(scene.number(&words), 1);
        assert_eq!(scene.number(&["EXISTS", "k:intent"]), is_left, "{sign}");
        scene.ask(&["DEL", "k"]);
    }
}
