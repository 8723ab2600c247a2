//! Fake masters: they answer like real ones, they do to locks what real ones do, and they fail on
//! order. Tests with a client have its default settings.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use muxlock::error::ServerErrorKind;
use muxlock::inspection::Owner;
use muxlock::limits::RESOURCES_MAX;
use muxlock::node::{NodeOutcome, QuarantineCause};
use muxlock::proto::{Reply, ServerInfo};
use muxlock::resp::ReplyReader;
use muxlock::settings::Heal;
use muxlock::testing::{FakeMaster, FakeMasters, Master, Value};
use muxlock::{Builder, KeepAlive, LockError, LockErrorKind, Loss, LossCause, Redlock};
use testbed::{PATIENT, TTL, all_ready, count, is_older_than, outcomes, soon, timed};

use crate::scripts::{
    ACQUIRE_FENCED, EXTEND, EXTEND_OR_SET, FREE_ALL, FREE_SHARED, KEEP_ALL, KEEP_SHARED, MARKER,
    RAISE, RELEASE, TAKE_ALL, TAKE_EXCLUSIVE, TAKE_SHARED, TAKE_SLOT,
};

/// Fakes answer word by word as a server from 7.0 on.
const WORDS: &str = "the words of errors that fakes use";

/// Random commands for a fake master and a real one.
const COMMANDS: usize = 3_000;
/// The random number of a marker.
const MARKER_ID: &str = "00000000000000ff";
/// How far numbers may be apart that tell a time in milliseconds.
const TOLERANCE_MS: i64 = 5_000;
/// How long an answer may take.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// Most connections of a fake master.
const CONNECTIONS_MAX: usize = 128;

fn fakes() -> (FakeMasters, Redlock) {
    let masters = FakeMasters::start(3).unwrap();
    let redlock = all_ready(&waits_for(&masters));
    (masters, redlock)
}

/// A client that a busy machine does not make give up.
fn waits_for(masters: &FakeMasters) -> Builder {
    Redlock::builder().nodes(masters.urls()).node_timeout(NODE_TIMEOUT)
}

fn words(text: &str) -> Vec<&[u8]> {
    text.split(' ').map(str::as_bytes).collect()
}

/// A connection that shows replies byte for byte.
struct Wire(BufReader<TcpStream>);

impl Wire {
    fn open(addr: &str) -> Wire {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Wire(BufReader::new(stream))
    }

    fn send(&mut self, args: &[&[u8]]) {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend(format!("${}\r\n", arg.len()).bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request).unwrap();
    }

    fn read(&mut self) -> Vec<u8> {
        let mut reply = Vec::new();
        self.0.read_until(b'\n', &mut reply).unwrap();
        let number = || std::str::from_utf8(&reply[1..]).unwrap().trim().parse().unwrap();
        match reply.first() {
            Some(b'$') if reply != b"$-1\r\n" => {
                let length: usize = number();
                let mut text = vec![0; length + 2];
                self.0.read_exact(&mut text).unwrap();
                reply.extend(text);
            }
            Some(b'*') => {
                let length: usize = number();
                (0..length).for_each(|_| reply.extend(self.read()));
            }
            _ => {}
        }
        reply
    }

    fn ask(&mut self, args: &[&[u8]]) -> Vec<u8> {
        self.send(args);
        self.read()
    }

    fn ask_text(&mut self, command: &str) -> String {
        String::from_utf8(self.ask(&words(command))).unwrap()
    }

    #[track_caller]
    fn is_ended(&mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest, b"", "it is ended without a word"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

/// A fake master and a real one, each with a connection.
struct Pair {
    fake: Wire,
    real: Wire,
    _masters: (FakeMaster, Master),
}

impl Pair {
    fn start() -> Pair {
        let fake = FakeMaster::start().unwrap();
        Pair::of(fake, Master::start().unwrap_or_else(|error| panic!("{error}")))
    }

    fn of(fake: FakeMaster, real: Master) -> Pair {
        let wires = (Wire::open(&fake.addr()), Wire::open(&real.addr()));
        Pair { fake: wires.0, real: wires.1, _masters: (fake, real) }
    }

    /// Both answer the same, as far as muxlock can tell; returns what the fake answered.
    #[track_caller]
    fn ask(&mut self, args: &[&[u8]]) -> Vec<u8> {
        let (fake, real) = (self.fake.ask(args), self.real.ask(args));
        let text = |reply: &[u8]| reply.escape_ascii().to_string();
        let command: Vec<_> = args.iter().map(|arg| text(arg)).collect();
        assert!(is_same(&fake, &real), "{command:?}: {} {}", text(&fake), text(&real));
        fake
    }

    /// The same for a set of `a`, `b` and `c`, of which the reply may name the one that lives
    /// longest: at one of both, two may live as long to the millisecond.
    #[track_caller]
    fn ask_which(&mut self, args: &[&[u8]]) -> Vec<u8> {
        let (fake, real) = (self.fake.ask(args), self.real.ask(args));
        let named = |reply: &[u8]| match reply {
            [b':', digit @ b'2'..=b'4', b'\r', b'\n'] => {
                Some(["a", "b", "c"][usize::from(digit - b'2')])
            }
            _ => None,
        };
        if let (Some(one), Some(other)) = (named(&fake), named(&real)) {
            let is_close = |wire: &mut Wire| {
                let [one, other] = [one, other].map(|key| {
                    let pttl = wire.ask_text(&format!("PTTL {key}"));
                    pttl[1..].trim_end().parse::<i64>().unwrap()
                });
                (one - other).abs() <= 2
            };
            assert!(one == other || is_close(&mut self.fake) || is_close(&mut self.real));
        } else {
            assert!(is_same(&fake, &real), "{}: {}", fake.escape_ascii(), real.escape_ascii());
        }
        fake
    }

    #[track_caller]
    fn ask_text(&mut self, command: &str) {
        self.ask(&words(command));
    }
}

fn is_same(fake: &[u8], real: &[u8]) -> bool {
    let number = |reply: &[u8]| {
        let digits = reply.strip_prefix(b":")?;
        std::str::from_utf8(digits).ok()?.trim().parse::<i64>().ok()
    };
    match (number(fake), number(real)) {
        // A vote, or a time that passes.
        (Some(fake), Some(real)) if fake.abs().min(real.abs()) > 10 => {
            (fake - real).abs() < TOLERANCE_MS
        }
        _ => {
            // What a server adds about arguments, subcommands and scripts is its own matter, and so
            // is the time in a marker.
            let end = |reply: &[u8]| {
                let marks = [", with args", ". Try ", " script: ", MARKER_ID];
                let text = String::from_utf8_lossy(reply).into_owned();
                marks.iter().fold(text, |text, mark| {
                    text.split(mark).next().unwrap_or_default().trim_end().to_owned()
                })
            };
            end(fake) == end(real)
        }
    }
}

/// A sequence that is the same each time (xorshift).
struct Choices(u64);

impl Choices {
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a [u8] {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        from[(self.0 % from.len() as u64) as usize].as_bytes()
    }
}

#[test]
fn random_commands_have_the_replies_of_a_real_master() {
    let test = "random_commands_have_the_replies_of_a_real_master";
    if is_older_than([7, 0, 0], test, WORDS) {
        return;
    }
    const KEYS: [&str; 4] = ["a", "b", "locks:c", "marker"];
    const TOKENS: [&str; 3] = ["0123456789abcdef0123456789abcdef01234567", "x", ""];
    const TTLS: [&str; 4] = ["20000", "60000", "600000", "3000000"];
    const ODD_TTLS: [&str; 9] =
        ["0", "-1", "007", "+5", "nan", "", "20000", "9223372036854775807", "-9223372036854775808"];
    const KINDS: [&str; 17] = [
        "set",
        "set",
        "set nx px",
        "set nx px",
        "nx",
        "px",
        "release",
        "extend",
        "heal",
        "get",
        "pttl",
        "exists",
        "del",
        "select",
        "marker",
        "flush",
        "none",
    ];
    let (mut pair, mut choices) = (Pair::start(), Choices(42));
    for _ in 0..COMMANDS {
        let (key, token) = (choices.pick(&KEYS), choices.pick(&TOKENS));
        let (ttl, odd) = (choices.pick(&TTLS), choices.pick(&ODD_TTLS));
        let other = choices.pick(&KEYS);
        let args: Vec<&[u8]> = match choices.pick(&KINDS) {
            b"set" => vec![b"SET", key, token],
            b"set nx px" => vec![b"SET", key, token, b"NX", b"PX", ttl],
            b"nx" => vec![b"set", key, token, b"px", odd, b"nx"],
            b"px" => vec![b"SET", key, token, b"PX", odd],
            b"release" => vec![b"EVAL", RELEASE.as_bytes(), b"1", key, token],
            b"extend" => vec![b"EVAL", EXTEND.as_bytes(), b"1", key, token, ttl],
            b"heal" => vec![b"EVAL", EXTEND_OR_SET.as_bytes(), b"1", key, token, ttl],
            b"get" => vec![b"GET", key],
            b"pttl" => vec![b"PTTL", key],
            b"exists" => vec![b"EXISTS", key, other, key],
            b"del" => vec![b"DEL", key, other],
            b"select" => vec![b"SELECT", choices.pick(&["0", "0", "15"])],
            b"marker" => vec![b"EVAL", MARKER.as_bytes(), b"1", key, MARKER_ID.as_bytes()],
            b"flush" => vec![b"FLUSHALL"],
            _ => vec![b"DBSIZE"],
        };
        pair.ask(&args);
    }
}

/// K1 to K8: the same for the scripts of what is not one plain key, and for plain ones beside them.
#[test]
fn slow_scripts_of_every_form_have_the_replies_of_a_real_master() {
    let test = "slow_scripts_of_every_form_have_the_replies_of_a_real_master";
    if is_older_than([7, 0, 0], test, WORDS) {
        return;
    }
    const KEYS: [&str; 4] = ["a", "b", "c", "a:intent"];
    const TOKENS: [&str; 3] = [
        "0123456789abcdef0123456789abcdef01234567",
        "89abcdef0123456789abcdef0123456789abcdef",
        "",
    ];
    const TTLS: [&str; 4] = ["20000", "60000", "600000", "3000000"];
    const PLAIN: [&str; 8] = ["set", "stay", "free", "keep", "heal", "del", "", ""];
    let sets = [TAKE_ALL, KEEP_ALL, FREE_ALL];
    let shares = [TAKE_SHARED, KEEP_SHARED, FREE_SHARED];
    let (writer, slots) = (TAKE_EXCLUSIVE, TAKE_SLOT);
    let (mut pair, mut choices) = (Pair::start(), Choices(45));
    let mut votes = std::collections::BTreeSet::new();
    for _ in 0..COMMANDS {
        let (key, token, ttl) = (choices.pick(&KEYS), choices.pick(&TOKENS), choices.pick(&TTLS));
        let last = choices.pick(&["0", "1", "2"]);
        let one: Vec<&[u8]> = vec![choices.pick(&["a", "b"]), b"a:intent"];
        let all: Vec<&[u8]> = vec![b"a", b"b", b"c"];
        let number = |choices: &mut Choices| usize::from(choices.pick(&["0", "1", "2"])[0] - b'0');
        let (script, keys, last) = match choices.pick(&["set", "share", "share", "write", "slot"]) {
            b"set" => (sets[number(&mut choices)], all, last),
            b"share" => (shares[number(&mut choices)], one, last),
            // A sign stands for longer than any key, or none is left.
            b"write" => (writer, one, choices.pick(&["0", "7000000"])),
            _ => (slots, all, last),
        };
        let count = keys.len().to_string();
        let mut args: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), count.as_bytes()];
        args.extend(keys);
        args.extend([token, ttl, last]);
        let vote = if script == sets[0] { pair.ask_which(&args) } else { pair.ask(&args) };
        votes.insert((script, vote));
        let plain: Vec<&[u8]> = match choices.pick(&PLAIN) {
            b"set" => vec![b"SET", key, token, b"NX", b"PX", ttl],
            b"stay" => vec![b"SET", key, token, b"NX"],
            b"free" => vec![b"EVAL", RELEASE.as_bytes(), b"1", key, token],
            b"keep" => vec![b"EVAL", EXTEND.as_bytes(), b"1", key, token, ttl],
            b"heal" => vec![b"EVAL", EXTEND_OR_SET.as_bytes(), b"1", key, token, ttl],
            b"del" => vec![b"DEL", key],
            _ => vec![b"GET", key],
        };
        for args in [plain, vec![b"PTTL", key], vec![b"EXISTS", b"a", b"b", b"c"]] {
            pair.ask(&args);
        }
    }
    // Both have said each of these.
    let said =
        |script: &'static str, vote| votes.contains(&(script, format!(":{vote}\r\n").into_bytes()));
    for (script, expected) in [
        (sets[0], ["1", "2", "4"]),
        (sets[1], ["0", "1", "2"]),
        (sets[2], ["0", "1", "1"]),
        (shares[0], ["0", "1", "1"]),
        (shares[1], ["0", "1", "2"]),
        (shares[2], ["0", "1", "1"]),
        (writer, ["0", "1", "1"]),
        (slots, ["1", "2", "6"]),
    ] {
        for vote in expected {
            assert!(said(script, vote), "{vote} is never answered to {script}");
        }
    }
}

#[test]
fn scripts_of_others_are_unknown_commands() {
    let master = FakeMaster::start().unwrap();
    for args in
        [vec![b"EVAL".as_slice(), b"return 1", b"0"], vec![b"EVAL", RELEASE.as_bytes(), b"0"]]
    {
        let Value::Error(text) = master.query(&args) else { panic!("{args:?}") };
        assert_eq!(text.contains("unknown command"), args[1] == b"return 1", "{text}");
    }
    assert!(matches!(master.query(&[b"MULTI"]), Value::Error(_)));
}

#[test]
fn password_is_asked_for_as_by_a_real_master() {
    if is_older_than([7, 0, 0], "password_is_asked_for_as_by_a_real_master", WORDS) {
        return;
    }
    let fake = FakeMaster::start_with_password("secret").unwrap();
    let real = Master::start_with(&["--requirepass", "secret"]).unwrap();
    let mut pair = Pair::of(fake, real);
    for command in [
        "PING",
        "SET a b",
        "CLIENT ID",
        "AUTH wrong",
        "AUTH other secret",
        "PING",
        "AUTH default secret",
        "AUTH wrong",
        "PING",
        "AUTH secret",
        "SET a b",
        "GET a",
    ] {
        pair.ask_text(command);
    }
}

#[test]
fn info_says_what_a_real_master_says_of_itself() {
    /// What the client reads of a section.
    fn read(bytes: &[u8]) -> ServerInfo {
        let mut reader = ReplyReader::new();
        reader.room()[..bytes.len()].copy_from_slice(bytes);
        reader.filled(bytes.len());
        match reader.next().unwrap().unwrap() {
            Reply::Info(info) => *info,
            Reply::Replication(replication) => ServerInfo { replication, ..ServerInfo::default() },
            Reply::Memory(memory_max, evicts_nothing) => {
                ServerInfo { memory_max, evicts_nothing, ..ServerInfo::default() }
            }
            Reply::Stats(evicted) => ServerInfo { evicted, ..ServerInfo::default() },
            other => panic!("{other:?}"),
        }
    }
    let mut pair = Pair::start();
    for section in ["server", "replication", "memory", "persistence", "stats"] {
        let args: [&[u8]; 2] = [b"INFO", section.as_bytes()];
        let (fake, real) = (read(&pair.fake.ask(&args)), read(&pair.real.ask(&args)));
        let is_there = |info: &ServerInfo| {
            [info.version.is_some(), info.run_id.is_some(), info.replication.history.is_some()]
        };
        assert_eq!(is_there(&fake), is_there(&real), "{section}");
        let length = |info: &ServerInfo| info.run_id.as_ref().map(|id| id.len());
        assert_eq!(length(&fake), length(&real));
        assert_eq!(fake.uptime.is_some(), section == "server");
        // What differs from one real master to the next.
        let common = |info: ServerInfo| {
            let mut replication = info.replication;
            replication.history = None;
            ServerInfo { version: None, run_id: None, uptime: None, replication, ..info }
        };
        assert_eq!(common(fake), common(real), "{section}");
    }
    assert_eq!(pair.ask(&[b"INFO", b"nosuch"]), b"$0\r\n\r\n");
    let all = pair.fake.ask_text("INFO");
    for section in ["# Server", "# Memory", "# Persistence", "# Stats", "# Replication"] {
        assert!(all.contains(section), "{all}");
    }
    let time = |wire: &mut Wire| {
        let reply = wire.ask_text("TIME");
        let seconds = reply.lines().nth(2).map(|line| line.parse::<i64>().unwrap());
        (reply.lines().count(), seconds.unwrap())
    };
    let (fake, real) = (time(&mut pair.fake), time(&mut pair.real));
    assert!(fake.0 == real.0 && (fake.1 - real.1).abs() <= 5, "{fake:?} {real:?}");
}

#[test]
fn locks_are_taken_by_one_and_released() {
    let (masters, redlock) = fakes();
    let other = waits_for(&masters).connect().unwrap();
    let lock = redlock.try_lock("invoice:42", TTL).unwrap();
    let error = other.try_lock("invoice:42", TTL).unwrap_err();
    assert!(error.is_contended() && count(&error, NodeOutcome::Held) >= 2, "{error}");
    assert!(masters.iter().any(|master| master.pttl(b"invoice:42") > 0));
    assert!(lock.unlock().unwrap().was_held());
    drop(other.try_lock("invoice:42", TTL).unwrap());
    assert_eq!((other.shutdown(PATIENT), redlock.shutdown(PATIENT)), (0, 0));
    assert!(masters.iter().all(|master| master.dbsize() == 0));
}

#[test]
fn foreign_holder_counts_where_a_quorum_says_so() {
    let (masters, redlock) = fakes();
    masters[1].hold("a", TTL);
    drop(redlock.try_lock("a", TTL).unwrap());
    masters.hold("b", TTL);
    let error = redlock.try_lock("b", TTL).unwrap_err();
    assert!(error.is_contended(), "{error}");
    let mut lock = redlock.try_lock("c", TTL).unwrap();
    masters.hold("c", TTL);
    let error = lock.extend(TTL).unwrap_err();
    assert!(error.is_expired(), "{error}");
}

#[test]
fn key_is_gone_when_its_time_is_over() {
    let master = FakeMaster::start().unwrap();
    let mut wire = Wire::open(&master.addr());
    assert_eq!(wire.ask_text("SET k v NX PX 30"), "+OK\r\n");
    assert_eq!(wire.ask_text("SET k v NX PX 30"), "$-1\r\n");
    soon("it has expired", || master.value_of(b"k").is_none());
    assert_eq!((master.pttl(b"k"), master.dbsize()), (-2, 0));
    assert_eq!(wire.ask_text("SET k v NX PX 30000"), "+OK\r\n");
    assert_eq!(wire.ask_text("EXISTS k"), ":1\r\n");
}

/// Whoever asks first, and however: masters that do not answer are the cause, with their answers.
#[test]
fn slow_loss_to_silent_masters_names_them_as_the_cause() {
    let masters = FakeMasters::start(3).unwrap();
    let redlock = all_ready(&waits_for(&masters).node_timeout(Duration::from_millis(200)));
    let notice = Duration::from_millis(1_600);
    let ttl = Duration::from_millis(2_500);
    let lock = redlock.try_lock("report", ttl).unwrap();
    let kept = lock.keep_alive(KeepAlive::default().notice(notice)).unwrap();
    masters.iter().take(2).for_each(FakeMaster::freeze);
    let watch = kept.watch();
    let watchdog = std::thread::spawn(move || watch.wait_for_loss(PATIENT));
    let loss = kept.wait_for_loss(PATIENT).expect("no quorum answers");
    assert!(kept.is_valid() && !loss.remaining.is_zero(), "there is time left to stop");
    for loss in [loss, watchdog.join().unwrap().unwrap(), kept.loss().unwrap()] {
        assert_eq!(loss.cause, LossCause::Unavailable, "{loss}");
        let error = loss.error.expect("it says what the masters answered");
        assert_eq!(error.nodes().len(), 3, "{error}");
    }
    masters.iter().for_each(FakeMaster::thaw);
}

#[test]
fn slow_locks_are_kept_alive_until_they_are_lost() {
    let (masters, redlock) = fakes();
    let keep = |name: &str| {
        let lock = redlock.try_lock(name, Duration::from_secs(3)).unwrap();
        lock.keep_alive(KeepAlive::default()).unwrap()
    };
    let (kept, lost) = (keep("kept"), keep("lost"));
    masters.hold("lost", TTL);
    soon("it is lost", || lost.is_lost());
    let loss = lost.loss().unwrap();
    let like = Loss::for_test(LossCause::Gone);
    assert_eq!((loss.cause, loss.remaining), (like.cause, like.remaining));
    let kinds = [loss, like].map(|loss| loss.error.map(|error| error.kind()));
    assert_eq!(kinds[0], kinds[1]);
    soon("the other is renewed", || kept.renewals() >= 2);
    assert!(kept.unlock().unwrap().was_held());
}

#[test]
fn stopped_masters_refuse_connections_and_come_back_with_their_data() {
    let (mut masters, redlock) = fakes();
    masters[0].query(&[b"SET", b"k", b"v"]);
    for master in masters.iter_mut().take(2) {
        master.stop();
        master.stop();
        let refused = TcpStream::connect(master.addr()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
    let error = redlock.try_lock("a", TTL).unwrap_err();
    assert!(error.is_unavailable() && error.ready_in().is_none(), "{error}");
    for master in &mut masters {
        master.start_again().unwrap();
    }
    let lock = redlock.try_lock_for("a", TTL, PATIENT).unwrap();
    assert!(lock.unlock().unwrap().was_held());
    assert_eq!(masters[0].value_of(b"k").as_deref(), Some(b"v".as_slice()));
    masters[0].freeze();
    masters[0].stop();
    masters[0].start_again().unwrap();
    masters[0].start_again().unwrap();
    assert_eq!(Wire::open(&masters[0].addr()).ask_text("GET k"), "$1\r\nv\r\n");
}

#[test]
fn frozen_master_answers_when_it_is_thawed() {
    let master = FakeMaster::start().unwrap();
    let mut wire = Wire::open(&master.addr());
    assert_eq!(wire.ask_text("SET before v"), "+OK\r\n");
    master.freeze();
    wire.send(&words("SET meanwhile v"));
    let mut new = Wire::open(&master.addr());
    new.send(&words("PING"));
    let short = Some(Duration::from_millis(20));
    for wire in [&wire, &new] {
        wire.0.get_ref().set_read_timeout(short).unwrap();
        let error = wire.0.get_ref().read(&mut [0]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
        wire.0.get_ref().set_read_timeout(Some(PATIENT)).unwrap();
    }
    assert_eq!((master.value_of(b"meanwhile"), master.dbsize()), (None, 1));
    master.thaw();
    assert_eq!((wire.read(), new.read()), (b"+OK\r\n".to_vec(), b"+PONG\r\n".to_vec()));
    assert_eq!(master.dbsize(), 2);
    // Frozen again: it can be stopped all the same.
    master.freeze();
    wire.send(&words("SET lost v"));
    let (time, ()) = timed(|| drop(master));
    assert!(time < testbed::SOON, "{time:?}");
    wire.is_ended();
}

#[test]
fn slow_without_answers_a_lock_is_waited_for_in_vain() {
    let (masters, redlock) = fakes();
    masters[2].freeze();
    drop(redlock.try_lock("a", TTL).unwrap());
    masters[1].freeze();
    let error = redlock.try_lock_for("a", TTL, Duration::from_millis(10)).unwrap_err();
    assert!(error.is_timed_out(), "{error}");
    let error = redlock.try_lock("a", TTL).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    masters.iter().for_each(FakeMaster::thaw);
    drop(redlock.try_lock_for("a", TTL, PATIENT).unwrap());
}

#[test]
fn refused_commands_are_no_votes() {
    let (masters, redlock) = fakes();
    for master in masters.iter().take(2) {
        master.refuse("OOM command\r\nnot allowed");
    }
    let error = redlock.try_lock("a", TTL).unwrap_err();
    let refused = NodeOutcome::Server(ServerErrorKind::OutOfMemory);
    assert!(error.is_unavailable() && count(&error, refused) == 2, "{error}");
    assert!(error.to_string().contains("OOM command  not allowed"), "{error}");
    let mut wire = Wire::open(&masters[0].addr());
    assert_eq!(wire.ask_text("SET a b"), "-OOM command  not allowed\r\n");
    assert_eq!(wire.ask_text("GET a"), "$-1\r\n");
    let error = Redlock::connect(masters.urls()).unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");
    masters.iter().for_each(FakeMaster::obey);
    drop(redlock.try_lock_for("a", TTL, PATIENT).unwrap());
}

#[test]
fn master_that_forgets_is_in_quarantine() {
    let (masters, redlock) = fakes();
    let mut wire = Wire::open(&masters[0].addr());
    let before = wire.ask_text("INFO replication");
    let mut lock = redlock.try_lock("a", TTL).unwrap();
    // Held on the third as well, or its late copy could be taken for the one that is lost.
    soon("all have it", || masters.iter().all(|master| master.dbsize() == 1));
    masters[0].forget();
    masters[1].forget();
    assert_eq!((masters[0].dbsize(), masters[2].dbsize()), (0, 1));
    wire.is_ended();
    assert_ne!(Wire::open(&masters[0].addr()).ask_text("INFO replication"), before);
    let mut error = LockError::for_test(LockErrorKind::Unavailable);
    soon("it is known", || {
        error = redlock.try_lock("b", TTL).unwrap_err();
        count(&error, NodeOutcome::Quarantined) == 2
    });
    // So it is for a client that did not know the process before.
    let newcomer = waits_for(&masters).connect().unwrap();
    let new = newcomer.try_lock("b", TTL).unwrap_err();
    assert!(new.ready_in().is_some(), "{new}");
    let like = LockError::quarantined_for_test(error.ready_in().unwrap());
    assert_eq!(error.kind(), like.kind());
    for error in [&error, &like] {
        assert_eq!(count(error, NodeOutcome::Quarantined), 2, "{error}");
        let cause = error.nodes()[1].quarantine.unwrap().cause;
        assert_eq!(cause, QuarantineCause::Restarted);
    }
    assert!(like.ready_in().unwrap() > Duration::from_secs(20), "{like}");
    assert!(lock.extend(TTL).is_err());
}

#[test]
fn late_answers_are_late_and_complete() {
    let delay = Duration::from_millis(30);
    let masters = FakeMasters::start(3).unwrap();
    let redlock = all_ready(&Redlock::builder().nodes(masters.urls()).node_timeout(PATIENT));
    masters.iter().for_each(|master| master.answer_after(delay));
    let (time, lock) = timed(|| redlock.try_lock("a", TTL).unwrap());
    assert!(time >= delay, "{time:?}");
    drop(lock);
    let error = redlock.try_lock("b", Duration::from_millis(20)).unwrap_err();
    assert!(error.is_expired(), "{error}");
    masters.iter().for_each(|master| master.answer_after(Duration::from_secs(600)));
    let mut wire = Wire::open(&masters[0].addr());
    wire.send(&words("SET k v"));
    soon("it is executed at once", || masters[0].value_of(b"k").is_some());
    // Whoever waits for that answer does not keep the master from ending.
    drop(masters);
    wire.is_ended();
}

#[test]
fn marked_and_healing_clients_are_served() {
    let masters = FakeMasters::start(3).unwrap();
    let builder = waits_for(&masters).flush_marker("marker").heal(Heal::On);
    let error = builder.build().unwrap().try_lock("a", TTL).unwrap_err();
    assert!(error.is_unavailable() && error.ready_in().is_some(), "{error}");
    // The marker is older than this client.
    for master in &masters {
        let set = master.query(&[b"SET", b"marker", b"!00000000000000000"]);
        assert_eq!(set, Value::Status("OK".into()));
    }
    let redlock = all_ready(&builder);
    let mut lock = redlock.try_lock("b", TTL).unwrap();
    soon("all have it", || masters.iter().all(|master| master.pttl(b"b") > 0));
    assert_eq!(masters[0].query(&[b"DEL", b"b"]), Value::Integer(1));
    lock.extend(TTL).unwrap();
    soon("it is healed", || masters[0].pttl(b"b") > 0);
}

/// Every kind of lock can be tried out, with healing, too.
#[test]
fn every_form_is_served() {
    let masters = FakeMasters::start(3).unwrap();
    let redlock = all_ready(&waits_for(&masters).heal(Heal::On));
    let set = redlock.try_lock_all(["a", "b"], TTL).unwrap();
    assert!(redlock.try_lock("b", TTL).unwrap_err().is_contended());
    let one = redlock.try_read("r", TTL).unwrap();
    let two = redlock.try_read("r", TTL).unwrap();
    assert!(redlock.try_write("r", TTL).unwrap_err().is_contended());
    let share = redlock.try_write("w", TTL).unwrap().downgrade(TTL).unwrap();
    let reader = redlock.try_read("w", TTL).unwrap();
    let semaphore = redlock.semaphore("s", 2).unwrap();
    let permit = || semaphore.try_acquire_for(TTL, PATIENT).unwrap();
    let permits = [permit(), permit()];
    assert!(semaphore.try_acquire(TTL).unwrap_err().is_contended());
    let many: Vec<String> = (0..RESOURCES_MAX).map(|i| format!("many:{i}")).collect();
    let many = redlock.try_lock_all(&many, TTL).unwrap();
    let own = redlock.try_lock_as("o", "mine", TTL).unwrap();
    assert_eq!(redlock.owner("o").unwrap(), Owner::Value(b"mine"[..].into()));
    for lock in [set, one, two, share, reader, many, own].into_iter().chain(permits) {
        let mut lock = lock;
        lock.extend(TTL).unwrap();
        assert!(lock.unlock().unwrap().was_held());
    }
    drop(redlock.try_lock_as("o", "mine", TTL).unwrap().into_parts());
    assert!(redlock.release_as("o", "mine").unwrap().confirmed >= 2);
    let reader = redlock.try_read("r", TTL).unwrap();
    masters.hold("r", TTL);
    assert!(redlock.try_read("r", TTL).unwrap_err().is_contended());
    assert!(!reader.unlock().unwrap().was_held());
    masters.iter().for_each(FakeMaster::flush);
    soon("nothing is left", || masters.iter().all(|it| it.dbsize() == 0));
}

/// Also with masters of which one is ahead.
#[test]
fn fenced_locks_have_growing_numbers() {
    let (masters, redlock) = fakes();
    let number = || {
        let lock = redlock.fenced().try_lock_for("invoice:42", TTL, TTL).unwrap();
        let number = lock.fencing_token();
        assert!(lock.unlock().unwrap().was_held());
        number
    };
    let grow = |from| {
        (0..20).fold(from, |last, _| {
            let next = number();
            assert!(next > last, "{next} after {last}");
            next
        })
    };
    let last = grow(number());
    assert_eq!(redlock.stats().tokens_confirmed, 0);
    // The lock of another client, with numbers that this one does not expect.
    let ahead = (last.get() + 5_000_000).to_string();
    for (master, number) in masters.iter().zip(["1", &ahead, "2"]) {
        assert_eq!(master.query(&[b"SET", b"k", b"t"]), Value::Status("OK".into()));
        let raise = [b"EVAL".as_slice(), RAISE.as_bytes(), b"2", b"k", b"muxlock:fence", b"t"];
        let raise = [raise.as_slice(), &[b"10308", number.as_bytes()]].concat();
        assert_eq!(master.query(&raise), Value::Integer(1));
    }
    grow(last);
    soon("the counters are one key", || masters.iter().all(|it| it.dbsize() == 2));
}

/// What the scripts for fencing tokens say that does not tell the time.
#[test]
fn fencing_scripts_have_the_replies_of_a_real_master() {
    let mut pair = Pair::start();
    let future = "8999999999999990";
    let eval = |script: &'static str, words: [&'static str; 7]| {
        [[b"EVAL".as_slice(), script.as_bytes()].as_slice(), &words.map(str::as_bytes)].concat()
    };
    let acquire =
        |key, proposal| eval(ACQUIRE_FENCED, ["2", key, "c", "t", "60000", "7", proposal]);
    let raise = |token: &'static str, number: &'static str| {
        let words = ["2", "k", "c", token, "7", number].map(str::as_bytes);
        [[b"EVAL".as_slice(), RAISE.as_bytes()].as_slice(), &words].concat()
    };
    pair.ask(&raise("t", future));
    pair.ask_text("EXISTS c");
    pair.ask_text("SET k t");
    pair.ask(&raise("x", future));
    pair.ask(&raise("t", future));
    for command in ["EXISTS c k", "PTTL c", "DBSIZE"] {
        pair.ask_text(command);
    }
    assert_eq!(pair.ask(&acquire("k", "5")), b"$-1\r\n", "it is held");
    assert_eq!(pair.ask(&acquire("a", "5")), b":8999999999999991\r\n");
    assert_eq!(pair.ask(&acquire("b", "8999999999999995")), b":8999999999999992\r\n");
    pair.ask(&raise("t", "7"));
    assert_eq!(pair.ask(&acquire("d", "0")), b":8999999999999993\r\n", "nothing lowers it");
    for command in ["DEL c", "SET c text", "DEL a"] {
        pair.ask_text(command);
    }
    assert!(pair.fake.ask(&acquire("a", "0")).starts_with(b"-WRONGTYPE "));
    // Before Redis 7.0 it follows the name of the script.
    let said = pair.real.ask(&acquire("a", "0"));
    assert!(said.starts_with(b"-") && said.windows(10).any(|it| it == b"WRONGTYPE "), "{said:?}");
    pair.ask_text("EXISTS a");
}

#[test]
fn password_and_database_are_those_of_the_url() {
    let master = FakeMaster::start_with_password("secret").unwrap();
    let url = |rest: &str| format!("redis://{rest}");
    let error = Redlock::connect([master.url()]).unwrap_err();
    assert!(error.to_string().contains("not authenticated"), "{error}");
    let (first, third) = (url(&format!(":secret@{}", master.addr())), master.addr() + "/3");
    let first = Redlock::connect([first]).unwrap();
    let third = Redlock::connect([url(&format!("default:secret@{third}"))]).unwrap();
    let locks = [&first, &third].map(|redlock| redlock.try_lock("a", TTL).unwrap());
    assert_eq!(master.dbsize(), 1);
    assert_eq!(master.query(&[b"DEL", b"a"]), Value::Integer(1));
    let released = locks.map(|lock| lock.unlock().unwrap().was_held());
    assert_eq!(released, [false, true], "they are in two databases");
}

#[test]
fn connection_ends_another() {
    let master = FakeMaster::start().unwrap();
    let [mut one, mut other] = [(); 2].map(|()| Wire::open(&master.addr()));
    let id = one.ask_text("CLIENT ID").trim_start_matches(':').trim().to_owned();
    let kill = format!("CLIENT KILL ID {id}");
    assert_eq!(one.ask_text(&kill), ":0\r\n", "not itself");
    assert_eq!((other.ask_text(&kill), other.ask_text(&kill)), (":1\r\n".into(), ":0\r\n".into()));
    one.is_ended();
    assert!(matches!(master.query(&words(&kill)), Value::Error(_)));
    assert!(matches!(master.query(&[]), Value::Error(_)));
}

#[test]
fn what_is_no_command_ends_its_connection_only() {
    let master = FakeMaster::start().unwrap();
    let mut good = Wire::open(&master.addr());
    let long = [b"*1\r\n$65530\r\n".as_slice(), &[b'x'; 65_540]].concat();
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"*999\r\n", b"*1\r\n$9999999\r\n", &long] {
        let mut bad = Wire::open(&master.addr());
        // It may be ended before all is sent.
        let _ = bad.0.get_mut().write_all(bytes);
        bad.is_ended();
    }
    // What comes before it is answered.
    let mut bad = Wire::open(&master.addr());
    bad.0.get_mut().write_all(b"*1\r\n$4\r\nPING\r\nnonsense").unwrap();
    assert_eq!(bad.read(), b"+PONG\r\n");
    bad.is_ended();
    assert_eq!(good.ask_text("PING"), "+PONG\r\n");
}

#[test]
fn many_answers_to_one_write_are_complete() {
    let master = FakeMaster::start().unwrap();
    let mut wire = Wire::open(&master.addr());
    let (value, times) = ([b'v'; 10_000], 500);
    assert_eq!(wire.ask(&[b"SET", b"k", &value]), b"+OK\r\n");
    wire.0.get_mut().write_all(&b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".repeat(times)).unwrap();
    for _ in 0..times {
        assert_eq!(wire.read().len(), b"$10000\r\n\r\n".len() + value.len());
    }
}

#[test]
fn connections_are_counted() {
    let master = FakeMaster::start().unwrap();
    let mut wires: Vec<_> = (0..CONNECTIONS_MAX).map(|_| Wire::open(&master.addr())).collect();
    for wire in &mut wires {
        assert_eq!(wire.ask_text("PING"), "+PONG\r\n");
    }
    let refused = Wire::open(&master.addr()).read();
    assert_eq!(refused, b"-ERR max number of clients reached\r\n");
    wires.pop();
    soon("there is room again", || {
        let mut wire = Wire::open(&master.addr());
        let mut byte = [0];
        wire.send(&words("PING"));
        matches!(wire.0.read(&mut byte), Ok(1) if byte == *b"+")
    });
    let shown = format!("{master:?}");
    assert!(shown.contains(&master.addr()) && shown.contains("is_frozen: false"), "{shown}");
}

#[test]
fn errors_for_tests_are_like_those_of_an_operation() {
    let (mut masters, redlock) = fakes();
    masters.hold("held", TTL);
    let contended = redlock.try_lock("held", TTL).unwrap_err();
    let mut lock = redlock.try_lock("gone", TTL).unwrap();
    masters.hold("gone", TTL);
    let expired = lock.extend(TTL).unwrap_err();
    masters.iter().for_each(FakeMaster::freeze);
    let timed_out = redlock.try_lock_for("a", TTL, Duration::from_millis(10)).unwrap_err();
    masters.iter_mut().for_each(FakeMaster::stop);
    let unavailable = redlock.try_lock("a", TTL).unwrap_err();
    let none = redlock.try_lock("", TTL).unwrap_err();
    let too_long = redlock.try_lock("a", Duration::from_secs(3_600)).unwrap_err();
    let begin = |error: &LockError| error.to_string().split(':').next().unwrap().to_owned();
    for real in [contended, expired, timed_out, unavailable, none, too_long] {
        let ours = LockError::for_test(real.kind());
        assert_eq!(ours.kind(), real.kind());
        assert_eq!(begin(&ours), begin(&real));
        assert_eq!(ours.nodes().len(), real.nodes().len(), "{real}");
        // The first round is enough for either.
        assert_eq!(ours.attempts(), real.attempts().min(1), "{real}");
        assert_eq!(ours.ready_in(), real.ready_in());
        for node in ours.nodes() {
            assert_eq!(node.latency.is_some(), node.outcome != NodeOutcome::Pending);
        }
    }
    let waited = LockError::for_test(LockErrorKind::TimedOut);
    assert_eq!(count(&waited, NodeOutcome::Granted), 1, "no quorum");
    let held = LockError::for_test(LockErrorKind::Contended);
    assert_eq!(outcomes(&held)[..2], [NodeOutcome::Held; 2]);
    assert!(held.to_string().contains("held on 2 of 3 nodes"), "{held}");
}

#[test]
fn losses_for_tests_have_what_their_cause_brings() {
    for (cause, is_left, kind) in [
        (LossCause::Unavailable, true, Some(LockErrorKind::Unavailable)),
        (LossCause::Gone, false, Some(LockErrorKind::Expired)),
        (LossCause::Late, false, None),
        (LossCause::RenewalsMax, true, None),
        (LossCause::LifetimeMax, true, None),
        (LossCause::Forked, false, None),
    ] {
        let loss = Loss::for_test(cause);
        assert_eq!((loss.cause, !loss.remaining.is_zero()), (cause, is_left));
        assert_eq!(loss.error.map(|error| error.kind()), kind, "{cause}");
    }
    let refused = Loss::for_test(LossCause::Refused).error.unwrap();
    assert!(matches!(refused.kind(), LockErrorKind::InvalidTtl { ttl, max, .. } if ttl > max));
}
