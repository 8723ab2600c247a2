//! The model of Redis against a real one: random commands, and the same replies, byte for byte.
//!
//! Nothing here waits for a key to expire. Times to live are long, and compared with a tolerance.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::scripts::{
    ACQUIRE_FENCED, EXTEND, EXTEND_OR_SET, FREE_ALL, FREE_AS, FREE_SHARED, KEEP_ALL, KEEP_AS,
    KEEP_SHARED, LOOK_AS, MARKER, RAISE, RELEASE, TAKE_ALL, TAKE_AS, TAKE_EXCLUSIVE, TAKE_SHARED,
    TAKE_SLOT,
};
use crate::world::choices::Choices;
use crate::world::redis::{Data, Redis, Session};
use crate::world::server::{Refusal, Server};
use crate::world::wire;

use muxlock::testing::{Master, Value};

const SCRIPTS: u64 = 80;
const COMMANDS_PER_SCRIPT: usize = 60;
/// What may pass between a command here and the same command there.
const TOLERANCE_MS: i64 = 5_000;
/// Smaller numbers are no times in microseconds.
const TIMES_MIN: i64 = 1_000_000_000_000_000;
const REPLY_BYTES_MAX: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a server is asked whether it is busy yet.
const ASKED_MAX: usize = 100_000;

const KEYS: [&str; 4] = ["a", "b", "locks:c", "marker"];
const VALUES: [&str; 3] = ["0123456789abcdef0123456789abcdef01234567", "x", ""];
/// Of locks with a value: two, and what stands for none.
const TOKENS: [&str; 3] = [
    VALUES[0],
    "89abcdef0123456789abcdef0123456789abcdef",
    "0000000000000000000000000000000000000000",
];
/// Far enough apart that the tolerance decides nothing.
const TTLS: [&str; 12] = [
    "20000",
    "60000",
    "600000",
    "3000000",
    "0",
    "-1",
    "-60000",
    "007",
    "+5",
    "9223372036854775807",
    "-9223372036854775808",
    "nan",
];

/// The hash of the counters, and a field of it.
const FENCE: &str = "muxlock:fence";
const BUCKET: &str = "10308";
/// What a counter may have, right or wrong.
const COUNTERS: [&str; 9] = [
    "0",
    "7",
    "1700000000000000",
    "8999999999999998",
    "9000000000000000",
    "9007199254740993",
    "-1",
    "x",
    "nan",
];

/// A connection to the real server.
struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Wire {
    fn open(master: &Master) -> Wire {
        let stream = TcpStream::connect(master.addr()).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a valid timeout");
        stream.set_nodelay(true).expect("a socket takes it");
        Wire { stream, unread: Vec::new() }
    }

    fn ask(&mut self, command: &[u8]) -> Vec<u8> {
        self.stream.write_all(command).expect("the server takes commands");
        self.read()
    }

    fn read(&mut self) -> Vec<u8> {
        loop {
            if let Some(length) = reply_length(&self.unread) {
                return self.unread.drain(..length).collect();
            }
            let mut room = [0; 4096];
            let count = self.stream.read(&mut room).expect("the server answers");
            assert!(count > 0, "the server has closed the connection");
            self.unread.extend_from_slice(&room[..count]);
            assert!(self.unread.len() < REPLY_BYTES_MAX, "the reply does not end");
        }
    }
}

fn reply_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).ok()?.parse::<i64>().ok();
    match bytes[0] {
        b'$' => match usize::try_from(number()?) {
            Ok(length) => (bytes.len() >= end + length + 2).then_some(end + length + 2),
            Err(_) => Some(end),
        },
        b'*' => {
            let count = usize::try_from(number()?).unwrap_or(0);
            (0..count).try_fold(end, |at, _| Some(at + reply_length(bytes.get(at..)?)?))
        }
        _ => Some(end),
    }
}

/// A real server and a model, and two connections to each.
struct Pair {
    master: Master,
    model: Redis,
    wires: Vec<(Wire, Session)>,
    wall: u64,
}

impl Pair {
    fn start(args: &[&str]) -> Pair {
        let master = Master::start_with(args).unwrap_or_else(|error| panic!("{error}"));
        let server = Server::new("0".repeat(40), "0".repeat(40), 0);
        let mut pair =
            Pair { master, model: Redis::new(server, Data::new()), wires: Vec::new(), wall: 0 };
        pair.reset();
        pair
    }

    /// An empty server, and new connections.
    fn reset(&mut self) {
        self.tell(&["FLUSHALL"]);
        self.model.data.clear();
        self.reconnect();
    }

    fn reconnect(&mut self) {
        self.wires.clear();
        (0..2).for_each(|_| self.open());
        let time = self.master.query(&[b"TIME"]).expect("the server answers");
        self.wall = match &time {
            Value::Array(parts) => part(&parts[0]) * 1_000_000_000 + part(&parts[1]) * 1_000,
            other => panic!("{other:?} is no time"),
        };
    }

    fn open(&mut self) {
        let mut wire = Wire::open(&self.master);
        // Nobody is told who has not shown the password.
        let id = number(&wire.ask(&encoded(&["CLIENT", "ID"]))).unwrap_or(0) as u64;
        let session = Session { id, ..Session::default() };
        self.wires.push((wire, session));
    }

    fn tell(&self, words: &[&str]) {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let reply = self.master.query(&words).expect("the server answers");
        assert_eq!(reply, Value::Status("OK".into()));
    }

    /// Sends the same command to both, and compares what they say. Returns what the model says.
    #[track_caller]
    fn compare(&mut self, at: usize, command: &[&str]) -> Vec<u8> {
        let bytes = encoded(command);
        let real = self.wires[at].0.ask(&bytes);
        if command == ["CLIENT", "ID"] {
            self.wires[at].1.id = number(&real).unwrap_or(0) as u64;
        }
        self.model.open = self.wires.iter().map(|(_, session)| session.id).collect();
        let mut words = Vec::new();
        assert_eq!(wire::command(&bytes, &mut words), Some(bytes.len()));
        let cut: Vec<&[u8]> = words.iter().map(|word| &bytes[word.clone()]).collect();
        let mut ours = Vec::new();
        self.model
            .execute(&mut self.wires[at].1, &cut, self.wall)
            .write(&mut ours, wire::Protocol::Resp2);
        let is_same = match command[0].to_ascii_uppercase().as_str() {
            "INFO" => is_same_info(&ours, &real),
            "TIME" => digits_out(&ours) == digits_out(&real),
            // Which of two lives longer may be decided by less than the tolerance.
            "EVAL" if command[1] == MARKER => digits_out(&ours) == digits_out(&real),
            "EVAL" if command[1] == TAKE_ALL => {
                is_close(&ours, &real) || number(&ours) >= Some(2) && number(&real) >= Some(2)
            }
            "EVAL" if command[1] == ACQUIRE_FENCED => {
                // A counter's value may be a time. The server's clock goes on: only one of them may
                // be able to take the proposal.
                let last = command.last().and_then(|last| last.parse().ok());
                is_near(&ours, &real) || is_near(&taken(&ours, last), &taken(&real, last))
            }
            "HGET" => is_close_text(&ours, &real),
            // A score is a time, in milliseconds.
            "ZSCORE" => is_close_score(&ours, &real),
            "PTTL" | "EVAL" => is_close(&ours, &real) || without_hash(&ours) == without_hash(&real),
            _ => ours == real,
        };
        let (said, real) = (ours.escape_ascii(), real.escape_ascii());
        assert!(is_same, "{command:?}\n the model says {said}\n   Redis says {real}");
        if self.model.killed.is_some() {
            self.reconnect();
        }
        ours
    }
}

fn part(value: &Value) -> u64 {
    match value {
        Value::Bulk(digits) => {
            std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).expect("a number")
        }
        other => panic!("{other:?} is no part of a time"),
    }
}

fn encoded(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}

fn number(reply: &[u8]) -> Option<i64> {
    std::str::from_utf8(reply).ok()?.strip_prefix(':')?.trim_end().parse().ok()
}

/// Whether both are numbers, and not far apart.
fn is_close(ours: &[u8], real: &[u8]) -> bool {
    match (number(ours), number(real)) {
        // What is small means something else.
        (Some(ours), Some(real)) if ours.abs().min(real.abs()) <= 2 => ours == real,
        (Some(ours), Some(real)) => (ours - real).abs() <= TOLERANCE_MS,
        _ => false,
    }
}

/// The same for times in microseconds. A number that is one more than another is another.
fn is_near(ours: &[u8], real: &[u8]) -> bool {
    match (number(ours), number(real)) {
        (Some(ours), Some(real)) if ours.max(real) >= TIMES_MIN => {
            (ours - real).abs() <= TOLERANCE_MS * 1_000
        }
        (Some(_), Some(_)) => is_close(ours, real),
        _ => without_hash(ours) == without_hash(real),
    }
}

/// What a counter has after this reply to a proposal.
fn taken(reply: &[u8], proposal: Option<i64>) -> Vec<u8> {
    match (number(reply), proposal) {
        (Some(1), Some(proposal)) => format!(":{proposal}\r\n").into_bytes(),
        _ => reply.to_vec(),
    }
}

/// The same for a number as text.
fn is_close_text(ours: &[u8], real: &[u8]) -> bool {
    let number = |reply: &[u8]| {
        let text = std::str::from_utf8(reply).ok()?.split("\r\n").nth(1)?.parse::<i64>().ok();
        text.map(|number| format!(":{number}\r\n").into_bytes())
    };
    match (number(ours), number(real)) {
        (Some(ours), Some(real)) => is_near(&ours, &real),
        _ => ours == real,
    }
}

/// The same for a score, with the tolerance.
fn is_close_score(ours: &[u8], real: &[u8]) -> bool {
    let number =
        |reply: &[u8]| std::str::from_utf8(reply).ok()?.split("\r\n").nth(1)?.parse::<i64>().ok();
    match (number(ours), number(real)) {
        (Some(ours), Some(real)) => (ours - real).abs() <= TOLERANCE_MS,
        _ => ours == real,
    }
}

/// A server adds a script's hash to its errors.
fn without_hash(reply: &[u8]) -> String {
    let text = String::from_utf8_lossy(reply).into_owned();
    text.split(" script: ").next().unwrap_or_default().trim_end().to_owned()
}

fn digits_out(reply: &[u8]) -> String {
    String::from_utf8_lossy(reply).chars().filter(|char| !char.is_ascii_digit()).collect()
}

/// Every field of the model is there in the same section, with a value of the same kind; those
/// that say something about the state have the same value.
fn is_same_info(ours: &[u8], real: &[u8]) -> bool {
    const EXACT: [&str; 8] = [
        "redis_mode",
        "maxmemory",
        "maxmemory_policy",
        "loading",
        "async_loading",
        "role",
        "connected_slaves",
        "second_repl_offset",
    ];
    let kind = |value: &str| match value {
        value if value.len() == 40 => "a random name",
        value if value.parse::<f64>().is_ok() => "a number",
        _ => "a word",
    };
    let fields = |reply: &[u8]| {
        let text = String::from_utf8_lossy(reply).into_owned();
        let mut section = String::new();
        let mut fields = Vec::new();
        for line in text.lines() {
            match line.split_once(':') {
                Some((name, value)) => {
                    fields.push((section.clone(), name.to_owned(), value.to_owned()));
                }
                None => section = line.to_owned(),
            }
        }
        fields
    };
    let real = fields(real);
    fields(ours).iter().all(|(section, name, value)| {
        let there = real.iter().find(|(other, field, _)| other == section && field == name);
        there.is_some_and(|(_, _, other)| match EXACT.contains(&name.as_str()) {
            true => other == value,
            false => kind(other) == kind(value),
        })
    })
}

/// Any command of a lock client, right or wrong.
fn any_command(choices: &mut Choices, ids: &[u64]) -> Vec<String> {
    let (key, value, ttl) = (choices.pick(&KEYS), choices.pick(&VALUES), choices.pick(&TTLS));
    let any_id = choices.pick(&[ids[0], ids[1], 0, 999_999]).to_string();
    let words: &[&str] = match choices.below(36) {
        0..=4 => &["SET", key, value, "NX", "PX", ttl],
        5 => &["set", key, value, "xx", "ex", ttl],
        6 => &["SET", key, value],
        7 => &["SET", key, value, "PX"],
        8 => &["SET", key, value, "NX", "XX"],
        9 => &["GET", key],
        10 => &["DEL", key, "a"],
        11 => &["PEXPIRE", key, ttl],
        12 | 13 => &["PTTL", key],
        14 => &["EXISTS", key, "a", "a"],
        15 => &["TIME"],
        16 => &["INFO", "server"],
        17 => &["INFO", "replication"],
        18 => &["INFO", "memory", "persistence"],
        19 => &["CLIENT", "ID"],
        20 => &["CLIENT", "SETNAME", choices.pick(&["muxlock/0.1.0", "a b"])],
        21 => &["SELECT", choices.pick(&["0", "3", "16", "-1", "x"])],
        22 => &["AUTH", "secret"],
        23 => &["HSET", key, choices.pick(&["field", "other"]), value],
        31 => &["HGET", key, choices.pick(&["field", "other"])],
        32 => &["HSET", FENCE, BUCKET, choices.pick(&COUNTERS)],
        33 => &["HGET", choices.pick(&[FENCE, key]), BUCKET],
        34 => &["HSET", key, "odd"],
        35 => &["HSET", "counters", "1", "2", "3"],
        24 => &["CLIENT", "KILL", "ID", &any_id],
        25 => &["GET"],
        26 => &["NOPE", key],
        // It has none of them.
        27 | 28 => &["DELEX", key, "IFEQ", value],
        29 => &["DELIFEQ", key, value],
        _ => &["CLIENT", "NOPE"],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn any_script(choices: &mut Choices, pair_now: u64) -> Vec<String> {
    let (key, value) = (choices.pick(&KEYS[..3]), choices.pick(&VALUES));
    let ttl = choices.pick(&TTLS[..7]);
    // About now: of the same time as the server's, half a second off, or far away.
    let near = pair_now.saturating_add_signed(choices.pick(&[0, 499_000, -499_000]));
    let proposal = match choices.below(4) {
        0 => 0,
        1 => pair_now - 86_400_000_000,
        2 => pair_now + 86_400_000_000,
        _ => near,
    };
    let proposal = proposal.to_string();
    let words: &[&str] = match choices.below(18) {
        12 | 13 => &["EVAL", ACQUIRE_FENCED, "2", key, FENCE, value, ttl, BUCKET, &proposal],
        14 => &["EVAL", MARKER, "1", "marker", "0123456789abcdef"],
        15 | 16 => &["EVAL", RAISE, "2", key, FENCE, value, BUCKET, &proposal],
        17 => &["EVAL", RAISE, "2", key, key, value, BUCKET, &proposal],
        0..=2 => &["EVAL", RELEASE, "1", key, value],
        3..=5 => &["EVAL", EXTEND, "1", key, value, ttl],
        6..=10 => &["EVAL", EXTEND_OR_SET, "1", key, value, ttl],
        _ => &["EVAL", RELEASE, choices.pick(&["x", "-1", "3"]), key, value],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A step of a lock that is not one plain key, or something that stands in its way.
fn any_form(choices: &mut Choices) -> Vec<String> {
    let [key, other] = [choices.pick(&KEYS[..3]), choices.pick(&KEYS[..3])];
    let intent = format!("{key}:intent");
    let token = choices.pick(&VALUES[..2]);
    let ttl = choices.pick(&TTLS[..4]);
    let extra = choices.pick(&["0", "1"]);
    let (form, keys): (&str, Vec<&str>) = match choices.below(14) {
        0..=2 => (TAKE_ALL, vec![key, other]),
        3 => (KEEP_ALL, vec![key, other]),
        4 | 5 => (TAKE_SHARED, vec![key, &intent]),
        6 | 7 => (KEEP_SHARED, vec![key, &intent]),
        8 => (TAKE_EXCLUSIVE, vec![key, &intent]),
        9 => (TAKE_SLOT, vec![key, other]),
        10 | 11 => {
            let script = if choices.chance(500) { FREE_ALL } else { FREE_SHARED };
            let words = ["EVAL", script, "2", key, other, token, ttl, "0"];
            return words.map(str::to_owned).to_vec();
        }
        n => {
            let set = choices.pick(&["20000", "60000"]);
            let words: &[&str] = match (n, choices.below(7)) {
                (12, 0) => &["ZADD", key, "5", token],
                (12, 1) => &["HSET", key, "field", token],
                (12, 2) => &["SET", &intent, "", "PX", set],
                (12, 3) => &["SET", &intent, token, "NX", "PX", set],
                (12, 4) => &["ZREM", key, token],
                (12, 5) => &["ZREMRANGEBYSCORE", key, "-inf", "7"],
                (12, _) => &["PEXPIREAT", key, choices.pick(&["5", "9999999999999"])],
                (_, 0) => &["DEL", key],
                (_, 1) => &["ZSCORE", key, token],
                (_, 2) => &["TYPE", key],
                (_, 3) => &["PTTL", key],
                (_, 4) => &["ZCARD", key],
                (_, 5) => &["GET", &intent],
                _ => &["GET", key],
            };
            return words.iter().map(|word| (*word).to_owned()).collect();
        }
    };
    let count = keys.len().to_string();
    let mut words = vec!["EVAL", form, &count];
    words.extend(keys);
    // An intent of one millisecond would be over on one of the two.
    let is_intent = form == TAKE_EXCLUSIVE && extra == "1";
    words.extend([token, ttl, if is_intent { "60000" } else { extra }]);
    words.into_iter().map(str::to_owned).collect()
}

/// A step of a lock with the caller's value, or something that another client does to its keys.
fn any_own(choices: &mut Choices, step: u64) -> Vec<String> {
    let key = choices.pick(&KEYS[..2]);
    let beside = format!("{key}:as");
    let [token, from] = [choices.pick(&TOKENS[..2]), choices.pick(&TOKENS)];
    let value = choices.pick(&["mine", "mine", "theirs"]);
    // No command gives an end that is near that of another one.
    let end = (20_000 + 20_000 * step).to_string();
    let scripts = [TAKE_AS, TAKE_AS, KEEP_AS, KEEP_AS, FREE_AS, LOOK_AS];
    let script = match choices.below(11) {
        n @ 0..6 => scripts[n as usize],
        n => {
            let words: &[&str] = match (n, choices.below(6)) {
                (6, 0) => &["SET", key, value, "NX", "PX", &end],
                (6, 1) => &["SET", key, value, "PX", &end],
                (6, 2) => &["SET", key, value],
                (6, 3) => &["PEXPIRE", key, &end],
                (6, 4) => &["HSET", key, "muxlock", token],
                (6, _) => &["DEL", key],
                (7, 0) => &["HSET", &beside, "muxlock", from],
                (7, 1) => &["HSET", &beside, "muxlock", "x"],
                (7, 2) => &["HSET", &beside, "field", token],
                (7, 3) => &["SET", &beside, token],
                (7, 4) => &["PEXPIRE", &beside, &end],
                (7, _) => &["ZADD", &beside, "5", token],
                (8 | 9, 0..3) => &["DEL", key, &beside],
                (8, _) => &["GET", key],
                (9, _) => &["HGET", &beside, "muxlock"],
                (_, n) => &["PTTL", if n % 2 == 0 { key } else { &beside }],
            };
            return words.iter().map(|word| (*word).to_owned()).collect();
        }
    };
    let mut words = vec!["EVAL", script, "2"];
    words.extend([key, &beside, token, &end, choices.pick(&["0", "1"])]);
    words.push(value);
    words.into_iter().map(str::to_owned).collect()
}

fn run(pair: &mut Pair, seed: u64, commands: usize) {
    let mut choices = Choices::from_seed(seed);
    for _ in 0..commands {
        let at = choices.below(2) as usize;
        let ids = [pair.wires[0].1.id, pair.wires[1].1.id];
        let words = match choices.below(3) {
            0 => any_script(&mut choices, pair.wall / 1_000),
            _ => any_command(&mut choices, &ids),
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // What the marker holds is a time.
        if words != ["GET", "marker"] {
            pair.compare(at, &words);
        }
    }
}

#[test]
fn model_answers_as_a_real_server_does() {
    let mut pair = Pair::start(&[]);
    for seed in 0..SCRIPTS {
        pair.reset();
        run(&mut pair, seed, COMMANDS_PER_SCRIPT);
    }
}

#[test]
fn slow_model_runs_every_form_as_a_real_server_does() {
    let mut pair = Pair::start(&[]);
    for seed in 0..SCRIPTS {
        pair.reset();
        let mut choices = Choices::from_seed(seed);
        for _ in 0..2 * COMMANDS_PER_SCRIPT {
            let words = any_form(&mut choices);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            pair.compare(0, &words);
        }
    }
}

/// K11 to K15: also what another client does to the keys between the steps.
#[test]
fn slow_model_runs_scripts_for_own_values_as_a_real_server_does() {
    let mut pair = Pair::start(&[]);
    let mut said = BTreeSet::new();
    for seed in 0..SCRIPTS {
        pair.reset();
        let mut choices = Choices::from_seed(seed);
        for step in 0..2 * COMMANDS_PER_SCRIPT as u64 {
            let words = any_own(&mut choices, step);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let reply = pair.compare(0, &words);
            said.insert((words[1].to_owned(), String::from_utf8_lossy(&reply).into_owned()));
        }
    }
    // Both have given each of these answers.
    let votes: [(_, &[&str]); 4] = [
        (TAKE_AS, &[":0", ":1"]),
        (KEEP_AS, &[":0", ":1", ":2"]),
        (FREE_AS, &[":0", ":1"]),
        (LOOK_AS, &[":0", "$45\r\n=0123", "$45\r\n=0000", "-WRONGTYPE"]),
    ];
    for (script, replies) in votes {
        for reply in replies {
            let is_it = |(known, said): &(_, String)| known == script && said.starts_with(reply);
            assert!(said.iter().any(is_it), "{reply} is never said to {script}");
        }
    }
}

#[test]
fn model_refuses_as_a_real_server_does() {
    let mut pair = Pair::start(&["--maxmemory-policy", "noeviction"]);
    let states: [(&[&str], &[&str], Refusal); 2] = [
        (
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
            Refusal::Replicas,
        ),
        (
            &["ACL", "SETUSER", "default", "-set"],
            &["ACL", "SETUSER", "default", "+set"],
            Refusal::Permission,
        ),
    ];
    for (seed, (enter, leave, refusal)) in states.into_iter().enumerate() {
        pair.reset();
        run(&mut pair, seed as u64, 30);
        pair.tell(enter);
        pair.model.server.refusals = vec![refusal];
        run(&mut pair, 100 + seed as u64, COMMANDS_PER_SCRIPT);
        pair.tell(leave);
        pair.model.server.refusals.clear();
    }
    pair.reset();
    run(&mut pair, 7, 30);
    pair.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    (pair.model.server.refusals, pair.model.server.max_memory) = (vec![Refusal::Memory], 1);
    run(&mut pair, 8, COMMANDS_PER_SCRIPT);
    pair.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    (pair.model.server.refusals, pair.model.server.max_memory) = (Vec::new(), 0);
    pair.reset();
    run(&mut pair, 9, 30);
    // Nobody listens there: it stays a replica with the data that it has.
    pair.tell(&["REPLICAOF", "127.0.0.1", "1"]);
    pair.model.server.is_replica = true;
    run(&mut pair, 10, COMMANDS_PER_SCRIPT);
}

#[test]
fn model_asks_for_a_password_as_a_real_server_does() {
    let mut pair = Pair::start(&["--requirepass", "secret"]);
    pair.model.server.password = Some("secret".into());
    for seed in 0..3 {
        pair.reset();
        run(&mut pair, 200 + seed, 30);
        pair.compare(0, &["AUTH", "default", "wrong"]);
        pair.compare(0, &["AUTH", "default", "secret"]);
        pair.compare(0, &["GET", "a"]);
    }
}

#[test]
fn model_of_a_cluster_answers_as_a_real_one_does() {
    let mut pair = Pair::start(&["--cluster-enabled", "yes"]);
    pair.model.server.refusals = vec![Refusal::Cluster];
    for key in KEYS {
        pair.compare(0, &["SET", key, "x", "NX", "PX", "20000"]);
        pair.compare(0, &["GET", key]);
        pair.compare(0, &["EVAL", RELEASE, "1", key, "x"]);
    }
    pair.compare(0, &["INFO", "server"]);
}

#[test]
fn model_is_busy_as_a_real_server_is() {
    let mut pair = Pair::start(&["--lua-time-limit", "1"]);
    let mut looping = Wire::open(&pair.master);
    let forever = encoded(&["EVAL", "while true do end", "0"]);
    looping.stream.write_all(&forever).expect("the server takes commands");
    let is_busy = |_: &usize| pair.wires[0].0.ask(&encoded(&["PTTL", "a"])).starts_with(b"-BUSY");
    assert!((0..ASKED_MAX).find(is_busy).is_some(), "the script does not make it busy");
    pair.model.server.refusals = vec![Refusal::Busy];
    for command in [&["SET", "a", "x", "NX", "PX", "20000"][..], &["GET", "a"], &["TIME"]] {
        pair.compare(0, command);
    }
    pair.compare(0, &["EVAL", RELEASE, "1", "a", "x"]);
    pair.compare(0, &["CLIENT", "ID"]);
    pair.compare(0, &["INFO", "server"]);
    pair.compare(0, &["AUTH", "secret"]);
    let reply = pair.wires[0].0.ask(&encoded(&["SCRIPT", "KILL"]));
    assert_eq!(reply, b"+OK\r\n");
}
