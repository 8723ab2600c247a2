//! `muxlock inspect`: the holder of a lock on each master, and the clients that wait for it.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use muxlock::inspection::{Inspection, NodeInspection};
use muxlock::limits::SLOTS_MAX;
use muxlock::node::NodeOutcome;
use muxlock::testing::Value as Reply;
use muxlock::unstable_tool::{ConfigExt, printable};
use muxlock::{Config, Fingerprint, Redlock, quorum};
use serde_json::{Value, json};

use super::holder::{Answers, Client, Holder, READERS_MAX, Tag};
use super::list::PERMIT;
use super::options::{Options, duration};
use super::output;
use super::paint::count;
use super::queue::{self, Entry, Queue};
use super::read_locks::{self, ReadLocks};
use super::stopwatch::pause;
use super::wire::{Failure, Wire, ask_each};

/// No holder has a quorum.
const NOT_HELD: u8 = 1;
/// Too few masters answered.
const UNKNOWN: u8 = 3;

pub const WATCH_DEFAULT: &str = "1s";
/// Clears a terminal, and begins at its top.
pub const CLEAR: &str = "\x1b[H\x1b[2J";
pub const WATCH_MIN: Duration = Duration::from_millis(100);

/// Show who holds a lock, and for how long, without taking it
///
/// It shows the beginning of the holder's token, which distinguishes holders but
/// is too short to release the lock. The answer can be outdated when you read
/// it. To be sure that the lock is free, take it.
///
/// It also shows the holder's host, process id, command, start and address, or the
/// text that the client has chosen instead. This needs +client|list. With
/// `muxlock run --as VALUE`, it shows the value. This needs +hget.
///
/// If clients wait in a queue, it shows the queue on each master: its length and
/// the first entries with their positions. An entry is the channel of a client. If
/// no client listens there, the client has ended, and the next release removes the
/// entry. This needs +llen +lrange +pubsub|numsub.
///
/// For a resource with read locks, it shows their number on each master and up to
/// ten readers. This needs +type +time +zcount +zrange +pttl.
///
/// Exit status: 0 if one holder or read locks have a quorum of masters, 1 if not,
/// 2 if it could not start or write, 3 if too few masters answered.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
pub struct Args {
    /// Name of the lock
    resource: String,

    /// Repeat after D: redraw a terminal, or print each change
    #[arg(long, value_name = "D", value_parser = duration)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = WATCH_DEFAULT)]
    watch: Option<Duration>,

    /// Print JSON, a line for each answer or change
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    options: Options,
}

/// Runs the command. An error means that it could not start.
pub fn run(args: &Args) -> io::Result<ExitCode> {
    let builder = args.options.builder()?;
    let config = builder.config().map_err(io::Error::other)?;
    let redlock = builder.build().map_err(io::Error::other)?;
    let Some(period) = args.watch else {
        let seen = args.look(&redlock, &config)?;
        output::write(args.show(&seen))?;
        return Ok(code(&seen));
    };
    watch(args, (&redlock, &config), period.max(WATCH_MIN))
}

/// Until it is interrupted, or the output is closed.
fn watch(
    args: &Args,
    (redlock, config): (&Redlock, &Config),
    period: Duration,
) -> io::Result<ExitCode> {
    let redraws = io::stdout().is_terminal() && !args.json;
    let mut before = String::new();
    loop {
        let seen = args.look(redlock, config)?;
        let state = args.state(&seen);
        let text = match redraws {
            true => format!("{CLEAR}{}", args.show(&seen)),
            false if state == before => String::new(),
            false if args.json => args.show(&seen),
            false => format!("{}{}\n", summary(&args.resource, &seen), seen.holder_as_tail()),
        };
        before = state;
        if !output::write(text)? {
            return Ok(code(&seen));
        }
        pause(period);
    }
}

/// The answers of the masters.
struct Seen {
    inspection: Inspection,
    /// The queue on each master that has answered.
    queues: Vec<Option<Result<Queue, Failure>>>,
    /// The read locks on each master that has some.
    read_locks: Vec<Option<ReadLocks>>,
    /// How many permits of the semaphore of this name a quorum has.
    permits: u64,
    /// The clients; nothing if the lock is free.
    answers: Option<Answers>,
}

impl Seen {
    /// How many masters have read locks, if they are a quorum.
    fn sharing(&self) -> Option<usize> {
        let has_some = |read_locks: &&ReadLocks| read_locks.count > 0;
        let count = self.read_locks.iter().flatten().filter(has_some).count();
        (count >= quorum(self.read_locks.len())).then_some(count)
    }

    /// The one with this fingerprint.
    fn holder(&self, print: Fingerprint) -> Option<Holder> {
        self.answers.as_ref()?.holder(0, print).filter(|_| print.as_bytes() != REVOKED)
    }

    fn holder_words(&self, print: Fingerprint) -> Option<String> {
        self.answers.as_ref()?.holder_words(0, print).filter(|_| print.as_bytes() != REVOKED)
    }

    /// The holder's client, behind the line for a change.
    fn holder_as_tail(&self) -> String {
        let words = self.inspection.holder().and_then(|holder| self.holder_words(holder));
        words.map_or_else(String::new, |words| format!("; client: {words}"))
    }

    /// A line for each holder and reader.
    fn clients_as_text(&self) -> String {
        let Some(answers) = &self.answers else { return String::new() };
        let mut prints = Vec::new();
        for holding in self.inspection.nodes().iter().filter_map(|node| node.holding) {
            if !prints.contains(&holding.holder()) {
                prints.push(holding.holder());
            }
        }
        let holder = |print| Some(format!("{print}: {}\n", self.holder_words(print)?));
        let mut text: String = prints.into_iter().filter_map(holder).collect();
        let readers = answers.readers(0);
        let reader = |tag: &_| Some(format!("reader: {}\n", answers.words(*tag)?));
        text.extend(readers.iter().filter_map(reader));
        let count = self.read_locks.iter().flatten().map(|it| it.count).max().unwrap_or(0);
        let more = count.saturating_sub(READERS_MAX as u64);
        if more > 0 && !readers.is_empty() {
            text.push_str(&format!("and {more} more\n"));
        }
        let unknown = answers.clients.obstacle();
        text.extend(unknown.map(|why| format!("clients are unknown: {why}\n")));
        text
    }
}

impl Args {
    fn look(&self, redlock: &Redlock, config: &Config) -> io::Result<Seen> {
        let inspection = redlock.inspect(&self.resource).map_err(io::Error::other)?;
        let common = config.common();
        let key = [common.key_prefix, self.resource.as_bytes()].concat();
        let within = common.connect_timeout.saturating_add(common.node_timeout);
        let nodes: Vec<usize> = (0..config.nodes()).collect();
        let queues = ask_each(&nodes, |node| {
            let outcome = inspection.nodes()[node].outcome;
            let has_said = matches!(outcome, NodeOutcome::Held | NodeOutcome::Absent);
            has_said.then(|| queue::ask(config, node, &key, within))
        });
        let read_locks = ask_each(&nodes, |node| {
            is_other_type(&inspection.nodes()[node])
                .then(|| read_locks::ask(config, node, &key, within).ok().flatten())?
        });
        let waits = |queue: &Option<Result<Queue, _>>| {
            queue.as_ref().is_some_and(|queue| queue.as_ref().is_ok_and(|it| it.length > 0))
        };
        let mut permits: Vec<u64> = ask_each(&nodes, |node| {
            queues[node].as_ref().and_then(|_| permits(config, node, &key, within).ok())
        })
        .into_iter()
        .map(Option::unwrap_or_default)
        .collect();
        permits.sort_unstable_by(|a, b| b.cmp(a));
        let permits = permits[nodes.len() / 2];
        let is_held = |node: &NodeInspection| node.outcome == NodeOutcome::Held;
        let is_used = inspection.nodes().iter().any(is_held) || queues.iter().any(waits);
        let answered: Vec<usize> =
            nodes.into_iter().filter(|node| queues[*node].is_some()).collect();
        let answers = is_used.then(|| Answers::ask(config, &answered, &[key], within));
        Ok(Seen { inspection, queues, read_locks, permits, answers })
    }

    fn show(&self, seen: &Seen) -> String {
        match self.json {
            true => format!("{}\n", as_json(&self.resource, seen)),
            false => as_text(&self.resource, seen).lines().map(|it| printable(it) + "\n").collect(),
        }
    }

    /// The parts that count as a change: neither the remaining time, nor parts that the line for a
    /// change leaves out.
    fn state(&self, seen: &Seen) -> String {
        let of = |(node, read_locks): (&NodeInspection, &Option<ReadLocks>)| match (
            node.holding,
            read_locks,
        ) {
            (Some(holding), _) => format!("{:?} {}", node.outcome, holding.holder()),
            (None, Some(read_locks)) => format!("{:?} {}", node.outcome, read_locks.count),
            (None, None) => format!("{:?}", node.outcome),
        };
        let nodes = seen
            .inspection
            .nodes()
            .iter()
            .zip(&seen.read_locks)
            .map(of)
            .collect::<Vec<_>>()
            .join(",");
        match self.json {
            true => format!("{nodes} {} {:?}", seen.permits, seen.queues),
            false => format!("{nodes} {}", seen.permits),
        }
    }
}

/// How many permits of a semaphore with this key a master has. This changes nothing.
fn permits(config: &Config, node: usize, key: &[u8], within: Duration) -> Result<u64, Failure> {
    let mut wire = Wire::connect(config, node, within)?;
    let permit = |i: u32| [key, PERMIT, i.to_string().as_bytes()].concat();
    let keys: Vec<Vec<u8>> = (0..SLOTS_MAX).map(permit).collect();
    let words: Vec<&[u8]> =
        [&b"EXISTS"[..]].into_iter().chain(keys.iter().map(|it| &it[..])).collect();
    match wire.ask(&words)? {
        Reply::Integer(count) => u64::try_from(count).map_err(|_| Failure::Strange),
        _ => Err(Failure::Strange),
    }
}

fn code(seen: &Seen) -> ExitCode {
    let inspection = &seen.inspection;
    let is_held = inspection.holder().is_some() || seen.sharing().is_some();
    match (is_held, inspection.is_answered()) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => ExitCode::from(NOT_HELD),
        (false, false) => ExitCode::from(UNKNOWN),
    }
}

fn as_text(resource: &str, seen: &Seen) -> String {
    let inspection = &seen.inspection;
    let address = |node: &NodeInspection| node.address.chars().count();
    let width = inspection.nodes().iter().map(address).max().unwrap_or(0);
    let mut text = String::new();
    for (node, read_locks) in inspection.nodes().iter().zip(&seen.read_locks) {
        let (holder, left) = match (node.holding, read_locks) {
            (Some(holding), _) => {
                let left = holding.expires_in().map_or("no TTL".to_owned(), seconds);
                (holding.holder().to_string(), left)
            }
            (None, Some(read_locks)) => (read_locks.said(), seconds(read_locks.left)),
            (None, None) => (said(node), String::new()),
        };
        let line = format!("{:width$}  {holder:8}  {left}", node.address);
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push_str(&seen.clients_as_text());
    for (node, queue) in inspection.nodes().iter().zip(&seen.queues) {
        text.extend(queue.as_ref().map(|queue| queue_as_text(seen, &node.address, queue)));
    }
    text.push_str(&summary(resource, seen));
    text.push('\n');
    text
}

/// Nothing for a master without a queue.
fn queue_as_text(seen: &Seen, address: &str, queue: &Result<Queue, Failure>) -> String {
    let queue = match queue {
        Ok(queue) if queue.length == 0 => return String::new(),
        Ok(queue) => queue,
        Err(failure) => return format!("queue on {address}: unknown: {failure}\n"),
    };
    let mut text = format!("queue on {address}: {}\n", queue.length);
    for (position, entry) in queue.entries.iter().enumerate() {
        let channel = entry.channel.as_deref().unwrap_or("another client library");
        let listens = if entry.listens { "listening" } else { "not listening" };
        let client = seen.answers.as_ref().and_then(|it| it.clients.get(entry.tag()?));
        let client = client.map_or_else(String::new, |client| format!("  {client}"));
        text.push_str(&format!("  {position}  {channel}  {listens}{client}\n"));
    }
    if queue.more() > 0 {
        text.push_str(&format!("  and {} more\n", queue.more()));
    }
    text
}

/// The value of a key after a revocation, as far as it is shown.
pub const REVOKED: &[u8] = b"revoked:";
pub const TAKEN_WITH: &str = "muxlock revoke --now takes it";

/// Whether so many masters have a key that never expires that the rest is no quorum.
pub fn never_expires(inspection: &Inspection) -> bool {
    let nodes = inspection.nodes();
    let is_endless =
        |node: &&NodeInspection| node.holding.is_some_and(|it| it.expires_in().is_none());
    nodes.iter().filter(is_endless).count() > nodes.len() - quorum(nodes.len())
}

/// Whether a node's key has another type than that of one holder.
pub fn is_other_type(node: &NodeInspection) -> bool {
    node.outcome == NodeOutcome::Held && node.holding.is_none()
}

/// Why a node did not answer.
pub fn why_unsaid(node: &NodeInspection) -> String {
    match &node.message {
        Some(message) => format!("{}: {message}", node.outcome),
        None => node.outcome.to_string(),
    }
}

/// The answer of a node that has no value to show.
fn said(node: &NodeInspection) -> String {
    match node.outcome {
        NodeOutcome::Absent => "free".to_owned(),
        NodeOutcome::Held if node.holding.is_some() => "held".to_owned(),
        NodeOutcome::Held => "a value of another type".to_owned(),
        _ => why_unsaid(node),
    }
}

/// The holder, in one line.
fn summary(resource: &str, seen: &Seen) -> String {
    let resource = printable(resource);
    let inspection = &seen.inspection;
    let nodes = inspection.nodes();
    let total = nodes.len();
    let keys = nodes.iter().filter(|node| node.outcome == NodeOutcome::Held).count();
    if let Some(holder) = inspection.holder() {
        let has_it =
            |node: &&NodeInspection| node.holding.is_some_and(|holding| holding.holder() == holder);
        let count = nodes.iter().filter(has_it).count();
        if holder.as_bytes() == REVOKED {
            let free = inspection.free_in().map(|left| format!("; free in {}", seconds(left)));
            let free = free.unwrap_or_default();
            return format!("{resource} was revoked on {count} of {total}{free}");
        }
        let free = match inspection.free_in() {
            _ if never_expires(inspection) => {
                format!("it never expires: no TTL ({TAKEN_WITH})")
            }
            Some(left) => {
                format!("free for others in {} at the latest unless renewed", seconds(left))
            }
            None => "the time until it is free is unknown".to_owned(),
        };
        return format!("{resource} is held by {holder} on {count} of {total}; {free}");
    }
    if let Some(count) = seen.sharing() {
        return format!("{resource} has read locks on {count} of {total}");
    }
    if !inspection.is_answered() {
        let answered = keys + nodes.iter().filter(|it| it.outcome == NodeOutcome::Absent).count();
        return format!("unknown: only {answered} of {total} masters answered");
    }
    let is_other = |(node, read_locks): &(&NodeInspection, &Option<ReadLocks>)| {
        is_other_type(node) && read_locks.is_none()
    };
    let others = nodes.iter().zip(&seen.read_locks).filter(is_other).count();
    // Without one of them, a key never expires.
    let held = nodes.iter().filter(|node| node.outcome == NodeOutcome::Held);
    let left: Option<Vec<_>> = held.map(|node| node.holding?.expires_in()).collect();
    let left = left.map(|all| all.into_iter().max().unwrap_or_default());
    match (keys, inspection.free_in(), left) {
        (0, ..) if seen.permits > 0 => {
            let permits = count(seen.permits as usize, "permit");
            format!(
                "{resource} is free; as a semaphore it has {permits} taken: muxlock list {resource}"
            )
        }
        (0, ..) => format!("{resource} is free"),
        (_, Some(Duration::ZERO), Some(left)) => {
            format!("{resource} is free; leftovers on {keys} of {total}, gone in {}", seconds(left))
        }
        (_, Some(Duration::ZERO), None) => {
            format!("{resource} is free; leftovers on {keys} of {total}, one without a TTL")
        }
        _ if others >= quorum(total) => {
            format!("{resource} is no lock: its key has another type on {others} of {total}")
        }
        _ => format!("{resource} is split: {keys} of {total} have a key, and no holder a quorum"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn as_json(resource: &str, seen: &Seen) -> Value {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let inspection = &seen.inspection;
    let answers = seen.answers.as_ref();
    let client = |tag| answers.and_then(|it| it.clients.get(tag?)).map(Client::as_json);
    let holder = |print| client(seen.holder(print)?.tag);
    let value = |print| seen.holder(print)?.value;
    type Asked<'a> =
        ((&'a NodeInspection, &'a Option<Result<Queue, Failure>>), &'a Option<ReadLocks>);
    let node = |((node, queue), read_locks): Asked<'_>| {
        json!({
            "node": node.node,
            "address": &*node.address,
            "state": match node.outcome {
                NodeOutcome::Held => "held",
                NodeOutcome::Absent => "free",
                _ => "unknown",
            },
            "holder": node.holding.map(|holding| holding.holder().to_string()),
            "client": node.holding.and_then(|it| holder(it.holder())),
            "value": node.holding.and_then(|it| value(it.holder())),
            "expires_in_ms": match read_locks {
                Some(read_locks) => Some(read_locks.left),
                None => node.holding.and_then(|it| it.expires_in()),
            }
            .map(millis),
            "read_locks": read_locks.as_ref().map(|read_locks| read_locks.count),
            "said": read_locks.as_ref().map_or_else(|| said(node), ReadLocks::said),
            "queue": queue.as_ref().and_then(|queue| queue.as_ref().ok()).map(|queue| queue_as_json(queue, client)),
        })
    };
    json!({
        "resource": resource,
        "holder": inspection.holder().map(|holder| holder.to_string()),
        "client": inspection.holder().and_then(holder),
        "value": inspection.holder().and_then(value),
        "readers": answers.map_or_else(Vec::new, |it| it.readers(0).into_iter().map(client).collect()),
        "clients_unknown": answers.and_then(|it| it.clients.obstacle()),
        "free_in_ms": inspection.free_in().map(millis),
        "permits": seen.permits,
        "nodes": inspection.nodes().iter().zip(&seen.queues).zip(&seen.read_locks).map(node).collect::<Vec<_>>(),
    })
}

fn queue_as_json(queue: &Queue, client: impl Fn(Option<Tag>) -> Option<Value>) -> Value {
    let entry = |(position, entry): (usize, &Entry)| {
        let (channel, listens) = (&entry.channel, entry.listens);
        let client = client(entry.tag());
        json!({ "position": position, "channel": channel, "client": client, "listens": listens })
    };
    let entries: Vec<_> = queue.entries.iter().enumerate().map(entry).collect();
    json!({"length": queue.length, "entries": entries, "more": queue.more()})
}
