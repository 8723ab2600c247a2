//! The questions to a master. They change nothing.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use muxlock::Config;
use muxlock::node::{NodeOutcome, NodeReport};
use muxlock::testing::Value;
use muxlock::unstable_tool::{CommonSettings, ConfigExt, Failover, RELEASE};

use super::clocks::{ADVANCES_WITHIN, Sample, Times};
use super::finding::By;
use crate::holder::{Client, Tag, field};
use crate::queue;
use crate::stopwatch::{Stopwatch, pause, wall_micros};
use crate::wire::{Failure, RefusalKind, Wire};

/// How long all questions to a master may take, beside the time that the user sets.
const QUESTIONS_WITHIN: Duration = Duration::from_secs(10);
/// How often, and for how long, a master is asked for its time.
const TIMES: usize = 64;
const TIMES_WITHIN: Duration = Duration::from_secs(3);
/// How often at the end of a watch.
const LATER_TIMES: usize = 16;
/// How often while it watches.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// No connection has this number.
const NO_CLIENT: &[u8] = b"9223372036854775807";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// For how many days to look whether a certificate is valid. Each look is a handshake; five tell
/// the day.
const CERTIFICATE_DAYS_MAX: u32 = 30;
/// More lines of INFO than any server has.
const INFO_LINES_MAX: usize = 10_000;
/// Servers do not say that it is the year 10,000.
const SECONDS_MAX: i64 = 253_402_300_799;
/// A channel like those that waiting clients listen to. This one has no listener.
const CHANNEL: &[u8] = b"muxlock:doctor";

const SETTINGS: [&str; 15] = [
    "maxmemory",
    "maxmemory-policy",
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "stop-writes-on-bgsave-error",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "repl-backlog-ttl",
    "timeout",
    "client-output-buffer-limit",
    "tracking-table-max-keys",
    "protected-mode",
    "bind",
];

/// Questions beside the usual ones.
pub struct Plan {
    /// For how long to watch the clocks.
    pub watch: Duration,
    /// The user of the locks, if it is another one.
    pub lock_user: Option<String>,
    /// An unused key.
    pub key: Vec<u8>,
}

/// Why a master cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// It is silent, or something else answers.
    Unreachable(Failure),
    /// The same, as a client reports it.
    Reported(NodeOutcome, String),
    /// It needs a password, and the address lacks one.
    NeedsPassword,
    /// It has no password, and answers its own machine only.
    Protected,
    /// It refused the user or the password.
    Auth(Failure),
    MaxClients,
    /// It did not answer all questions in time.
    Slow,
}

/// The commands that the user of the locks lacks the right for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The right, as an ACL names it.
    pub right: &'static str,
    pub failure: Failure,
}

/// An answer that can be missing, because of a missing right or an unknown command.
pub type Known<T> = Result<T, RefusalKind>;

/// A client, as a master lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub client: Client,
    /// The number of its database there.
    pub db: Option<u32>,
}

/// The clients of a master.
pub type Seens = BTreeMap<Tag, Seen>;

/// The flush marker of a master.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Marker {
    Missing,
    /// It is no marker.
    Strange,
    /// When it was written, in microseconds of the master's clock.
    WrittenAt(i64),
}

impl Marker {
    fn new(reply: Value) -> Marker {
        match reply {
            Value::Nil => Marker::Missing,
            reply => {
                let text = text(reply);
                // Behind a random number of 16 digits.
                let time = text.strip_prefix('!').and_then(|rest| rest.get(16..)?.parse().ok());
                time.map_or(Marker::Strange, Marker::WrittenAt)
            }
        }
    }
}

/// The answers of a master.
#[derive(Debug, Clone)]
pub struct Said {
    /// The fields of `INFO`.
    pub info: Known<BTreeMap<String, String>>,
    /// The settings of the server.
    pub settings: Known<BTreeMap<String, String>>,
    /// This library's clients.
    pub clients: Known<Seens>,
    pub times: Times,
    /// Whether it answers without a password.
    pub is_open: bool,
    /// Its flush marker, if clients have one.
    pub marker: Option<Known<Marker>>,
    /// The record of its promotion that clients have stored.
    pub sighting: Option<String>,
    /// The answer of its Sentinels about a failover, if it has some.
    pub failover: Option<Failover>,
    /// For how many further days its certificate is valid, if for few.
    pub certificate_days: Option<u32>,
    /// The `run_id` at each address of its name, if it has several.
    pub servers: Vec<(SocketAddr, String)>,
    /// The commands that the user of this tool has no right for, or that the server does not know.
    pub refused: Vec<Refused>,
    /// The commands that the user of the locks has no right for, if that is another user.
    pub refused_other: Option<Known<Vec<Refused>>>,
    /// Who may change settings of the server, and rights.
    pub sets: By,
    pub grants: By,
}

impl Said {
    pub fn info(&self, name: &str) -> Option<&str> {
        self.info.as_ref().ok()?.get(name).map(String::as_str)
    }

    pub fn figure(&self, name: &str) -> Option<u64> {
        self.info(name)?.parse().ok()
    }

    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref().ok()?.get(name).map(String::as_str)
    }
}

/// Asks a master everything.
pub fn ask(config: &Config, node: usize, plan: &Plan) -> Result<Said, Obstacle> {
    ask_all(config, node, plan).map_err(|obstacle| match obstacle {
        // The locks' client has the words for it, of which there is one version.
        Obstacle::Unreachable(failure) => match config.unreachable(node) {
            Some(NodeReport { outcome, message, .. }) => {
                let more = message.map_or_else(String::new, |message| format!(": {message}"));
                Obstacle::Reported(outcome, format!("{outcome}{more}"))
            }
            None => Obstacle::Unreachable(failure),
        },
        obstacle => obstacle,
    })
}

fn ask_all(config: &Config, node: usize, plan: &Plan) -> Result<Said, Obstacle> {
    let access = access_without_password(config, node)?;
    if access == Access::Closed && !config.master(node).has_password {
        return Err(Obstacle::NeedsPassword);
    }
    let is_open = access == Access::Open;
    let mut wire = Wire::connect(config, node, QUESTIONS_WITHIN.saturating_add(plan.watch))
        .map_err(|failure| match failure.refusal() {
            Some(RefusalKind::MaxClients) => Obstacle::MaxClients,
            Some(RefusalKind::Auth | RefusalKind::NoPassword) => Obstacle::Auth(failure),
            _ => Obstacle::Unreachable(failure),
        })?;
    let common = config.common();
    let [sets, grants] = [SETS, GRANTS].map(|words| by(&mut wire, config, node, is_open, words));
    let mut said = questions(&mut wire, plan, &common, is_open);
    if let Ok(said) = &mut said {
        let sighting = known(wire.ask(&[b"GET", common.sighting_key]));
        said.sighting = sighting.ok().and_then(Result::ok).map(text);
    }
    if let Ok(said) = &mut said {
        said.refused.extend(refused_apart(config, node));
    }
    let failover = config.failover(node, QUESTIONS_WITHIN).and_then(Result::ok);
    let certificate_days = certificate_days(config, node);
    let servers = servers(config, node);
    let apart = |said| Said { failover, certificate_days, servers, sets, grants, ..said };
    said.map(apart).map_err(|failure| match failure {
        Failure::Lost(ErrorKind::TimedOut) => Obstacle::Slow,
        failure => Obstacle::Unreachable(failure),
    })
}

/// Commands that servers refuse because of their arguments, after they have looked at the rights.
const SETS: &[&[u8]] = &[b"CONFIG", b"SET", b"muxlock-doctor", b"0"];
const GRANTS: &[&[u8]] = &[b"ACL", b"SETUSER", b"muxlock-doctor", b"muxlock-doctor"];

/// Who may run such a command: this user, everybody who connects, or somebody else.
fn by(wire: &mut Wire, config: &Config, node: usize, is_open: bool, words: &[&[u8]]) -> By {
    let may = |answer: Result<Value, Failure>| {
        answer.err().and_then(|failure| failure.refusal()) != Some(RefusalKind::Command)
    };
    if may(wire.ask(words)) {
        return By::User;
    }
    let open = || Wire::open(config, node, config.common().connect_timeout).ok();
    match open().filter(|_| is_open).is_some_and(|mut wire| may(wire.ask(words))) {
        true => By::Anyone,
        false => By::Administrator,
    }
}

/// The clients of a master, asked once more.
pub fn clients_again(config: &Config, node: usize) -> Option<Seens> {
    let mut wire = Wire::connect(config, node, config.common().connect_timeout).ok()?;
    wire.ask(&[b"CLIENT", b"LIST"]).ok().map(|reply| clients(&text(reply)))
}

/// The server at each address of the master's name, if it has several. An address without an answer
/// is left out.
fn servers(config: &Config, node: usize) -> Vec<(SocketAddr, String)> {
    let within = config.common().connect_timeout;
    let addresses = config.look_up(node, within);
    if addresses.len() < 2 {
        return Vec::new();
    }
    let run_id = |address: SocketAddr| {
        let mut wire = Wire::connect_at(config, node, address, within).ok()?;
        let info = wire.ask(&[b"INFO", b"server"]).ok()?;
        Some((address, fields(&text(info)).remove("run_id")?))
    };
    addresses.into_iter().filter_map(run_id).collect()
}

/// For how many whole days a client would go on to trust the certificate; `None` if for longer than
/// is looked at, or if there is none to look at.
fn certificate_days(config: &Config, node: usize) -> Option<u32> {
    let trusts = |days: u32| {
        let trusts = config.trusts_later(node, DAY * days, config.common().connect_timeout);
        trusts.and_then(Result::ok)
    };
    let (mut valid, mut over) = (0, CERTIFICATE_DAYS_MAX);
    if trusts(over)? {
        return None;
    }
    while over - valid > 1 {
        let days = valid.midpoint(over);
        if trusts(days)? { valid = days } else { over = days }
    }
    Some(valid)
}

/// How a master treats a client without a password.
#[derive(PartialEq, Eq)]
enum Access {
    Open,
    Closed,
    /// It allows little, or is loading.
    Other,
}

/// Asks without a password. This connection has the limit of the locks' own.
fn access_without_password(config: &Config, node: usize) -> Result<Access, Obstacle> {
    let opened = Wire::open(config, node, config.common().connect_timeout);
    match opened.and_then(|mut wire| wire.ask(&[b"PING"])) {
        Ok(Value::Status(_)) => Ok(Access::Open),
        Ok(_) => Err(Obstacle::Unreachable(Failure::Strange)),
        Err(failure) => match failure.refusal() {
            None => Err(Obstacle::Unreachable(failure)),
            Some(RefusalKind::MaxClients) => Err(Obstacle::MaxClients),
            Some(RefusalKind::Protected) => Err(Obstacle::Protected),
            Some(RefusalKind::Auth) => Ok(Access::Closed),
            Some(_) => Ok(Access::Other),
        },
    }
}

fn questions(
    wire: &mut Wire,
    plan: &Plan,
    common: &CommonSettings<'_>,
    is_open: bool,
) -> Result<Said, Failure> {
    let info = known(wire.ask(&[b"INFO"]))?.map(|reply| fields(&text(reply)));
    let mode = info.as_ref().ok().and_then(|info| info.get("redis_mode"));
    if mode.is_some_and(|mode| mode == "sentinel") {
        return Ok(Said { info, ..Said::nothing(is_open) });
    }
    let settings = settings(wire)?;
    let queue = queue::key_of(&plan.key);
    let mut trials = trials(&plan.key, common.marker_key);
    trials.extend(kind_trials(&plan.key));
    trials.extend(waiting_trials(&queue));
    let refused = refused(&trials, |words| wire.ask(words).map(drop))?;
    let refused_other = match &plan.lock_user {
        Some(user) => {
            trials.extend(apart_trials());
            trials.extend([
                ("rpush", vec![b"RPUSH", queue.as_slice(), b"x"]),
                ("lpush", vec![b"LPUSH", &queue, b"x"]),
            ]);
            Some(refused_other(wire, user, &trials)?)
        }
        None => None,
    };
    let clients = known(wire.ask(&[b"CLIENT", b"LIST"]))?.map(|reply| clients(&text(reply)));
    let marker = match common.flush_marker {
        Some(key) => Some(known(wire.ask(&[b"GET", key]))?.map(Marker::new)),
        None => None,
    };
    let times = times(wire, plan.watch)?;
    let nothing = Said::nothing(is_open);
    Ok(Said { info, settings, clients, times, marker, refused, refused_other, ..nothing })
}

impl Said {
    pub fn nothing(is_open: bool) -> Said {
        Said {
            info: Err(RefusalKind::Unknown),
            settings: Err(RefusalKind::Unknown),
            clients: Err(RefusalKind::Unknown),
            times: Times::default(),
            is_open,
            marker: None,
            sighting: None,
            failover: None,
            certificate_days: None,
            servers: Vec::new(),
            refused: Vec::new(),
            refused_other: None,
            sets: By::User,
            grants: By::User,
        }
    }
}

/// A refusal is an answer; a lost connection is none.
fn known<T>(answer: Result<T, Failure>) -> Result<Known<T>, Failure> {
    match answer {
        Ok(reply) => Ok(Ok(reply)),
        Err(failure) => failure.refusal().map(Err).ok_or(failure),
    }
}

fn text(reply: Value) -> String {
    match reply {
        Value::Bulk(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::Status(text) => text,
        _ => String::new(),
    }
}

fn fields(info: &str) -> BTreeMap<String, String> {
    let fields = info.lines().take(INFO_LINES_MAX).filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
}

/// One after the other: servers before 7.0 know no list.
fn settings(wire: &mut Wire) -> Result<Known<BTreeMap<String, String>>, Failure> {
    let mut settings = BTreeMap::new();
    for name in SETTINGS {
        match known(wire.ask(&[b"CONFIG", b"GET", name.as_bytes()]))? {
            Err(kind) => return Ok(Err(kind)),
            Ok(Value::Array(pair)) => {
                if let Some(value) = pair.into_iter().nth(1) {
                    settings.insert(name.to_owned(), text(value));
                }
            }
            Ok(_) => {}
        }
    }
    Ok(Ok(settings))
}

/// The right to the key of the fencing counters.
pub const COUNTERS: &str = "~muxlock:fence";

/// A right, and a command that shows whether the user has it.
type Trial<'a> = (&'static str, Vec<&'a [u8]>);

/// The commands of the locks, on an unused key.
fn trials<'a>(key: &'a [u8], marker: &'a [u8]) -> Vec<Trial<'a>> {
    vec![
        ("set", vec![b"SET", key, b"x", b"XX", b"PX", b"1"]),
        ("get", vec![b"GET", key]),
        ("pttl", vec![b"PTTL", key]),
        ("pexpire", vec![b"PEXPIRE", key, b"1"]),
        ("del", vec![b"DEL", key]),
        ("eval", vec![b"EVAL", RELEASE.as_bytes(), b"1", key, b"x"]),
        ("time", vec![b"TIME"]),
        ("info", vec![b"INFO", b"server"]),
        ("client|tracking", vec![b"CLIENT", b"TRACKING", b"OFF"]),
        ("client|kill", vec![b"CLIENT", b"KILL", b"ID", NO_CLIENT]),
        ("delex", vec![b"DELEX", key, b"IFEQ", b"x"]),
        ("delifeq", vec![b"DELIFEQ", key, b"x"]),
        ("marker", vec![b"EVAL", b"return 0", b"1", marker]),
    ]
}

/// The commands that other kinds of lock need as well. Those that would leave something behind have
/// arguments that are refused after the server has looked at the user's rights.
fn kind_trials(key: &[u8]) -> Vec<Trial<'_>> {
    vec![
        ("hget", vec![b"HGET", key, b"f"]),
        ("hset", vec![b"HSET", key, b"f", b"v", b"f"]),
        // By a command that every lock needs.
        (COUNTERS, vec![b"EVAL", b"return 0", b"1", b"muxlock:fence"]),
        ("pexpireat", vec![b"PEXPIREAT", key, b"1"]),
        ("type", vec![b"TYPE", key]),
        ("zadd", vec![b"ZADD", key, b"f", b"v"]),
        ("zrange", vec![b"ZRANGE", key, b"0", b"0"]),
        ("zrem", vec![b"ZREM", key, b"v"]),
        ("zremrangebyscore", vec![b"ZREMRANGEBYSCORE", key, b"1", b"0"]),
        ("zscore", vec![b"ZSCORE", key, b"v"]),
    ]
}

/// The commands that waiting in a queue needs as well. RPUSH and LPUSH would leave something
/// behind.
fn waiting_trials(queue: &[u8]) -> Vec<Trial<'_>> {
    vec![
        ("client|caching", vec![b"CLIENT", b"CACHING", b"YES"]),
        ("publish", vec![b"PUBLISH", CHANNEL, b"t"]),
        ("exists", vec![b"EXISTS", queue]),
        ("llen", vec![b"LLEN", queue]),
        ("lpos", vec![b"LPOS", queue, b"x"]),
        ("lindex", vec![b"LINDEX", queue, b"0"]),
        ("lrem", vec![b"LREM", queue, b"1", b"x"]),
    ]
}

/// Commands that change the connection, which then answers no other question.
fn apart_trials() -> [Trial<'static>; 2] {
    [("hello", vec![b"HELLO", b"3"]), ("subscribe", vec![b"SUBSCRIBE", CHANNEL])]
}

/// Each on a connection of its own. Any reply but a refusal will do.
fn refused_apart(config: &Config, node: usize) -> Vec<Refused> {
    let refused = |(right, words): Trial<'static>| {
        let mut wire = Wire::connect(config, node, config.common().connect_timeout).ok()?;
        let failure = wire.ask(&words).err().filter(|failure| failure.refusal().is_some())?;
        Some(Refused { right, failure })
    };
    apart_trials().into_iter().filter_map(refused).collect()
}

fn refused(
    trials: &[Trial<'_>],
    mut run: impl FnMut(&[&[u8]]) -> Result<(), Failure>,
) -> Result<Vec<Refused>, Failure> {
    let mut refused = Vec::new();
    for (right, words) in trials {
        match run(words) {
            Ok(()) => {}
            Err(failure) if failure.refusal().is_some() => {
                refused.push(Refused { right, failure });
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(refused)
}

/// The commands that another user lacks the right for. The server answers this without running
/// them.
fn refused_other(
    wire: &mut Wire,
    user: &str,
    trials: &[Trial<'_>],
) -> Result<Known<Vec<Refused>>, Failure> {
    let dry_run = |words: &[&[u8]], wire: &mut Wire| {
        let words = [&[b"ACL".as_slice(), b"DRYRUN", user.as_bytes()], words].concat();
        wire.ask(&words)
    };
    // Whether the question is known, and the user.
    if let Err(kind) = known(dry_run(&[b"PING"], wire))? {
        return Ok(Err(kind));
    }
    let answer = |words: &[&[u8]]| match dry_run(words, wire) {
        Ok(Value::Status(_)) => Ok(()),
        Ok(refusal) => Err(Failure::refused_by(&text(refusal))),
        // The server does not know the command.
        Err(failure) => Err(failure),
    };
    refused(trials, answer).map(Ok)
}

/// This library's clients in a `CLIENT LIST`.
pub fn clients(list: &str) -> Seens {
    // Of several connections, the oldest one.
    let seen = |line: &str| {
        let (tag, client) = Client::parse(line)?;
        let db = field(line, "db=").and_then(|db| db.trim_end().parse().ok());
        Some((tag, Seen { client, db }))
    };
    list.lines().rev().filter_map(seen).collect()
}

fn times(wire: &mut Wire, watch: Duration) -> Result<Times, Failure> {
    let started = Stopwatch::start();
    let mut times = Times::default();
    for _ in 0..TIMES {
        match sample(wire, started)? {
            Some(sample) => times.first.push(sample),
            // It is forbidden, or says nothing that is a time.
            None => return Ok(times),
        }
        if started.elapsed() >= TIMES_WITHIN {
            break;
        }
    }
    // Now and then, since some servers close idle connections.
    while watch.saturating_sub(started.elapsed()) > LOOK_EVERY {
        pause(LOOK_EVERY);
        sample(wire, started)?;
    }
    pause(watch.saturating_sub(started.elapsed()).max(ADVANCES_WITHIN));
    let count = if watch.is_zero() { 1 } else { LATER_TIMES };
    for _ in 0..count {
        times.later.extend(sample(wire, started)?);
    }
    Ok(times)
}

fn sample(wire: &mut Wire, started: Stopwatch) -> Result<Option<Sample>, Failure> {
    let asked = Stopwatch::start();
    let (before, since_first) = (wall_micros(), started.elapsed());
    let reply = known(wire.ask(&[b"TIME"]))?;
    let round_trip = asked.elapsed();
    let half = i64::try_from(round_trip.as_micros() / 2).unwrap_or(i64::MAX);
    let Ok(Value::Array(parts)) = reply else { return Ok(None) };
    let master = clock(parts);
    let here = before.saturating_add(half);
    Ok(master.map(|master| Sample { round_trip, master, here, since_first }))
}

/// Seconds and microseconds, as microseconds.
fn clock(parts: Vec<Value>) -> Option<i64> {
    let parts: Option<Vec<i64>> = parts.into_iter().map(|part| text(part).parse().ok()).collect();
    match parts?[..] {
        [seconds @ 0..=SECONDS_MAX, micros @ 0..1_000_000] => Some(seconds * 1_000_000 + micros),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Each is asked for, so that a missing one can be named.
    #[test]
    fn every_command_of_every_script_is_tried() {
        let mut tried: Vec<&str> = trials(b"k", b"m").iter().map(|(right, _)| *right).collect();
        tried.extend(kind_trials(b"k").iter().map(|(right, _)| *right));
        tried.extend(waiting_trials(b"k").iter().map(|(right, _)| *right));
        tried.extend(["rpush", "lpush"]);
        let Some(root) = super::super::repository() else {
            return;
        };
        for script in fs::read_dir(root.join("src/scripts")).unwrap() {
            let script = fs::read_to_string(script.unwrap().path()).unwrap();
            for call in script.split("call(\"").skip(1) {
                let name = call.split('"').next().unwrap().to_ascii_lowercase();
                assert!(tried.contains(&&*name), "a script calls {name}");
            }
        }
    }

    #[test]
    fn clients_of_this_library_are_found_by_their_name() {
        let list = "id=3 addr=10.0.0.1:5000 name=muxlock/0.1.0 db=0\r\n\
                    id=4 addr=10.0.0.2:5000 name= db=0\n\
                    id=5 addr=10.0.0.1:6000 name=muxlock/9:tag=1a2b3c4d:mark=0a1b:host=web-3 db=0\n\
                    id=6 addr=/run/redis.sock:0 name=muxlock/9:tag=2a2b3c4d:name=a:mark=b db=3\r\n\
                    id=7 addr=[2001:db8::1]:5000 name=muxlock/9:tag=1a2b3c4d:host=other db=0\n\
                    strange\n";
        let parts = |seen: Seen| {
            let Seen { client, db } = seen;
            (client.address.map(|it| it.to_string()), client.host, client.name, client.mark, db)
        };
        let found: Vec<_> = clients(list).into_values().map(parts).collect();
        let text = |text: &str| Some(text.to_owned());
        let first = (text("10.0.0.1"), text("web-3"), None, text("0a1b"), Some(0));
        assert_eq!(found, [first, (None, None, text("a:mark=b"), None, Some(3))]);
    }

    #[test]
    fn clock_is_a_time_of_four_digit_years() {
        let clock = |parts: &[&str]| {
            clock(parts.iter().map(|part| Value::Bulk(part.as_bytes().to_vec())).collect())
        };
        assert_eq!(clock(&["1700000000", "999999"]), Some(1_700_000_000_999_999));
        let wrong: [&[&str]; 6] =
            [&[], &["1"], &["1", "1000000"], &["-1", "0"], &["253402300800", "0"], &["a", "0"]];
        for parts in wrong {
            assert_eq!(clock(parts), None, "{parts:?}");
        }
    }

    #[test]
    fn fields_of_info_are_its_lines() {
        let fields = fields("# Server\r\nredis_version:7.0.15\r\nrole:master\r\n\r\n");
        assert_eq!(fields["redis_version"], "7.0.15");
        assert_eq!(fields.len(), 2);
    }
}
