//! `muxlock list` and `muxlock top`: the locks that exist.

mod lock;
mod master;
mod show;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

pub use lock::PERMIT;
use lock::{Item, Lock, Which};
use master::{Cut, Limits};
use muxlock::error::ServerErrorKind;
use muxlock::node::NodeOutcome;
use muxlock::unstable_tool::{ConfigExt, printable};
use muxlock::{Config, Redlock, quorum};
use show::Row;

use super::holder::Answers;
use super::inspect::{CLEAR, WATCH_DEFAULT, WATCH_MIN, why_unsaid};
use super::options::{Options, duration};
use super::output;
use super::stopwatch::{Stopwatch, pause};
use super::wire::ask_each;

/// A limit was reached.
const TRUNCATED: u8 = 1;
/// Too few masters answered.
const UNKNOWN: u8 = 3;

/// The names that are read on each master.
const NAMES_MAX: usize = 100_000;
/// The bytes of these names.
const NAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The resource that each master is asked for first: the usual checks show which ones count.
const FIRST: &str = "muxlock";

/// Show which locks exist, their holders and how many clients wait
///
/// It lists the locks whose names begin with PREFIX and that a majority of masters
/// has. It only reads, by SCAN in small steps. A lock that is taken or released
/// during the scan might be missing.
///
/// HOLDER is the beginning of the token, as in inspect. LEFT is the time until the
/// lock is free unless it is renewed. ON is the number of masters that have the
/// key. WAITING is the number of clients in the queue. AGE is the time since the
/// holder's client started, so its lock is at most as old. CLIENT is its host,
/// process id and command, or the text that the client has chosen instead.
///
/// It needs the rights of inspect, and +scan +getrange.
///
/// Exit status: 0 if the list is complete, even if it is empty, 1 if a limit was
/// reached, 2 if it could not start or write, 3 if too few masters answered.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
pub struct Args {
    /// Repeat after D: redraw a terminal, or print each change
    #[arg(long, value_name = "D", value_parser = duration)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = WATCH_DEFAULT)]
    watch: Option<Duration>,

    /// Print JSON, a line for each answer or change
    #[arg(long)]
    json: bool,

    /// Most locks to show [default: 1000]
    #[arg(long, value_name = "N", default_value_t = 1000, hide_default_value = true)]
    limit: usize,

    #[command(flatten)]
    scope: Scope,
}

/// Show the locks with the most waiting clients, each second
///
/// It shows the table of list, sorted by waiting clients, then by name.
///
/// Exit status: that of list, once the output is closed.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
pub struct TopArgs {
    /// Print JSON, a line for each change
    #[arg(long)]
    json: bool,

    /// Most locks to show [default: 20]
    #[arg(long, value_name = "N", default_value_t = 20, hide_default_value = true)]
    limit: usize,

    #[command(flatten)]
    scope: Scope,
}

#[derive(clap::Args)]
struct Scope {
    /// Beginning of the names to list [default: all names]
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    beginning: String,

    /// Include keys below a majority, and values of other clients
    #[arg(long)]
    all: bool,

    /// Most keys to scan on each master [default: 10000000]
    #[arg(long, value_name = "N", default_value_t = 10_000_000, hide_default_value = true)]
    max_keys: u64,

    /// Time limit of the scan on each master [default: 10s]
    #[arg(long, value_name = "D", value_parser = duration)]
    #[arg(default_value = "10s", hide_default_value = true)]
    max_time: Duration,

    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    ByName,
    ByWaiting,
}

/// How the output repeats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The table is drawn again on a cleared terminal.
    Redraw,
    /// The table is written again, after an empty line.
    Repeat,
    /// A line for each lock that has changed.
    Changes,
    /// An object for each change.
    Json,
}

/// Runs `list`. An error means that it could not start.
pub fn run(args: &Args) -> io::Result<ExitCode> {
    let lister = args.scope.lister(args.limit, Order::ByName)?;
    let Some(period) = args.watch else {
        let seen = lister.look()?;
        let text = match args.json {
            true => format!("{}\n", show::as_json(&seen)),
            false => show::table(&seen.rows()),
        };
        output::write(text)?;
        if !args.json {
            seen.say(&[]);
        }
        return Ok(seen.code());
    };
    let beginning = &args.scope.beginning;
    if duration(WATCH_DEFAULT) == Ok(period) && duration(beginning).is_ok() {
        let why = format!("{beginning} is the PREFIX here: write --watch={beginning}");
        return Err(io::Error::other(why));
    }
    let form = match (args.json, io::stdout().is_terminal()) {
        (true, _) => Form::Json,
        (false, true) => Form::Redraw,
        (false, false) => Form::Changes,
    };
    lister.watch(period.max(WATCH_MIN), form)
}

/// Runs `top`. An error means that it could not start.
pub fn run_top(args: &TopArgs) -> io::Result<ExitCode> {
    let lister = args.scope.lister(args.limit, Order::ByWaiting)?;
    let form = match (args.json, io::stdout().is_terminal()) {
        (true, _) => Form::Json,
        (false, true) => Form::Redraw,
        (false, false) => Form::Repeat,
    };
    lister.watch(duration(WATCH_DEFAULT).map_err(io::Error::other)?, form)
}

impl Scope {
    fn lister(&self, limit: usize, order: Order) -> io::Result<Lister<'_>> {
        let builder = self.options.builder()?;
        let config = builder.config().map_err(io::Error::other)?;
        let redlock = builder.build().map_err(io::Error::other)?;
        Ok(Lister { scope: self, limit, order, config, redlock })
    }
}

struct Lister<'a> {
    scope: &'a Scope,
    limit: usize,
    order: Order,
    config: Config,
    redlock: Redlock,
}

/// The locks, and which masters answered.
pub struct Seen {
    items: Vec<Item>,
    /// The same before the limit.
    count: usize,
    /// Each address, and why the answer of its master is missing.
    nodes: Vec<(String, Option<String>)>,
    /// How many others might be held.
    perhaps: usize,
    is_truncated: bool,
    /// Why no master lists its clients, if that is so.
    clients_unknown: Option<String>,
    /// Sentences about each gap.
    notes: Vec<String>,
}

impl Lister<'_> {
    fn look(&self) -> io::Result<Seen> {
        let (clock, config) = (Stopwatch::start(), &self.config);
        let inspection = self.redlock.inspect(FIRST).map_err(io::Error::other)?;
        let mut nodes: Vec<(String, Option<String>)> = Vec::new();
        for node in inspection.nodes() {
            // Others are no masters of their own, or the same server as another.
            let is_asked = matches!(
                node.outcome,
                // The user may lack this one key.
                NodeOutcome::Held
                    | NodeOutcome::Absent
                    | NodeOutcome::Server(ServerErrorKind::Permission)
            );
            nodes.push((node.address.to_string(), (!is_asked).then(|| why_unsaid(node))));
        }
        let common = config.common();
        let prefix = [common.key_prefix, self.scope.beginning.as_bytes()].concat();
        let limits = Limits {
            keys: self.scope.max_keys,
            time: self.scope.max_time,
            names: NAMES_MAX,
            bytes: NAME_BYTES_MAX,
        };

        let asked = answering(&nodes);
        let scans = ask_each(&asked, |node| master::scan(config, node, &prefix, &limits));
        let (mut keys, mut cuts) = (BTreeSet::new(), Vec::new());
        for (node, scan) in asked.into_iter().zip(scans) {
            match scan {
                Ok(scan) => {
                    keys.extend(scan.keys);
                    cuts.extend(scan.cut.map(|cut| (node, cut)));
                }
                Err(why) => nodes[node].1 = Some(why),
            }
        }
        let own = [Some(common.sighting_key), common.flush_marker];
        let is_own = |key: &Vec<u8>| own.contains(&Some(key.as_slice()));
        let keys: Vec<Vec<u8>> = keys.into_iter().filter(|key| !is_own(key)).collect();

        // All masters are asked for each name of any, at about the same time.
        let (asked, names) =
            (answering(&nodes), keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let looks = ask_each(&asked, |node| master::look(config, node, &names, &limits, clock));
        let mut answers = vec![None; nodes.len()];
        for (node, look) in asked.into_iter().zip(looks) {
            match look {
                Ok(look) => answers[node] = Some(look),
                Err(why) => nodes[node].1 = Some(why),
            }
        }
        let which = if self.scope.all { Which::All } else { Which::Held };
        let prefix_bytes = common.key_prefix.len();
        let found = lock::locks(&keys, prefix_bytes, &answers, clock.elapsed(), which);
        let mut seen = Seen {
            items: lock::items(found.locks, self.scope.beginning.as_bytes()),
            count: 0,
            nodes,
            perhaps: found.perhaps,
            is_truncated: false,
            clients_unknown: None,
            notes: Vec::new(),
        };
        if seen.answered() < seen.quorum() {
            seen.items.clear();
        }
        self.cut(&mut seen, &cuts, found.unknown);
        self.name_clients(&mut seen);
        Ok(seen)
    }

    /// Asks each master once for its clients, and for the tags of locks whose values have none.
    fn name_clients(&self, seen: &mut Seen) {
        let answered = answering(&seen.nodes);
        let locks = seen.items.iter_mut().flat_map(Item::locks_mut).filter(|it| it.has_client());
        let locks: Vec<&mut Lock> = locks.collect();
        if locks.is_empty() {
            return;
        }
        let common = self.config.common();
        let key = |lock: &&mut Lock| [common.key_prefix, &lock.name].concat();
        let keys: Vec<_> = locks.iter().filter(|it| it.is_untagged()).map(key).collect();
        let within = common.connect_timeout.saturating_add(common.node_timeout);
        let answers = Answers::ask(&self.config, &answered, &keys, within);
        let mut number = 0;
        for lock in locks {
            lock.name_clients(&answers, number);
            number += usize::from(lock.is_untagged());
        }
        seen.clients_unknown = answers.clients.obstacle().map(str::to_owned);
        let unknown = seen.clients_unknown.iter().map(|why| format!("clients are unknown: {why}"));
        seen.notes.extend(unknown);
    }

    /// Sorts, applies the limit, and notes each gap.
    fn cut(&self, seen: &mut Seen, cuts: &[(usize, Cut)], unknown: usize) {
        if self.order == Order::ByWaiting {
            // Otherwise they stay in the order of their names.
            seen.items.sort_by_key(|item| Reverse(item.waiting()));
        }
        for (address, why) in &seen.nodes {
            seen.notes.extend(why.as_ref().map(|why| format!("{address}: {why}")));
        }
        if seen.answered() < seen.quorum() {
            let (answered, total) = (seen.answered(), seen.nodes.len());
            seen.notes.push(format!("unknown: only {answered} of {total} masters answered"));
            return;
        }
        seen.count = seen.items.len();
        seen.items.truncate(self.limit);
        let Scope { max_keys, max_time, all, .. } = self.scope;
        let cuts: Vec<_> = cuts.iter().filter(|(node, _)| seen.nodes[*node].1.is_none()).collect();
        // A lock has a key on one of a quorum that was scanned to its end.
        let is_missing = seen.answered() - cuts.len() < seen.quorum() || *all && !cuts.is_empty();
        if is_missing {
            for (node, cut) in &cuts {
                let cut = match cut {
                    Cut::Keys => format!("--max-keys {max_keys}"),
                    Cut::Time => format!("--max-time {max_time:?}"),
                    Cut::Names => format!("{NAMES_MAX} names: give a longer PREFIX"),
                };
                let address = &seen.nodes[*node].0;
                seen.notes.push(format!("incomplete: {address} was scanned up to {cut}"));
            }
        }
        if unknown > 0 {
            seen.notes.push(format!("incomplete: {unknown} keys were not read within --max-time"));
        }
        if seen.count > self.limit {
            let (count, limit) = (seen.count, self.limit);
            seen.notes.push(format!("incomplete: {limit} of {count} are shown (--limit {limit})"));
        }
        seen.is_truncated = is_missing || unknown > 0 || seen.count > self.limit;
        if seen.perhaps > 0 && !all {
            let perhaps = seen.perhaps;
            seen.notes.push(format!("{perhaps} more might be held, on the other masters (--all)"));
        }
    }

    /// Until it is interrupted, or the output is closed.
    fn watch(&self, period: Duration, form: Form) -> io::Result<ExitCode> {
        let (mut before, mut said): (Vec<Row>, Vec<String>) = (Vec::new(), Vec::new());
        let (mut json_before, mut is_first) = (String::new(), true);
        loop {
            let seen = self.look()?;
            let rows = seen.rows();
            let text = match form {
                Form::Redraw => format!("{CLEAR}{}{}", show::table(&rows), seen.said()),
                Form::Repeat if is_first => show::table(&rows),
                Form::Repeat => format!("\n{}", show::table(&rows)),
                // Without an answer, nothing is known to have changed.
                Form::Changes if seen.answered() < seen.quorum() => String::new(),
                Form::Changes if is_first => show::table(&rows),
                Form::Changes => changes(&before, &rows),
                Form::Json => {
                    let state: Vec<Row> = rows.iter().map(Row::state).collect();
                    let state = format!("{state:?} {:?} {:?}", seen.nodes, seen.notes);
                    let is_same = state == json_before;
                    json_before = state;
                    if is_same { String::new() } else { format!("{}\n", show::as_json(&seen)) }
                }
            };
            if !output::write(text)? {
                return Ok(seen.code());
            }
            if matches!(form, Form::Repeat | Form::Changes) {
                said = seen.say(&said);
            }
            if seen.answered() >= seen.quorum() {
                before = rows;
                is_first = false;
            }
            pause(period);
        }
    }
}

/// The masters that have answered all questions.
fn answering(nodes: &[(String, Option<String>)]) -> Vec<usize> {
    (0..nodes.len()).filter(|node| nodes[*node].1.is_none()).collect()
}

/// The lines that differ, and a line for each lock that is gone.
fn changes(before: &[Row], after: &[Row]) -> String {
    let known: BTreeSet<Row> = before.iter().map(Row::state).collect();
    let names: BTreeSet<&str> = after.iter().map(Row::name).collect();
    let gone = before.iter().map(Row::name).filter(|name| !names.contains(name));
    let gone = gone.map(|name| format!("{name} is no longer listed\n"));
    gone.chain(after.iter().filter(|row| !known.contains(&row.state())).map(Row::line)).collect()
}

impl Seen {
    pub fn answered(&self) -> usize {
        answering(&self.nodes).len()
    }

    pub fn quorum(&self) -> usize {
        quorum(self.nodes.len())
    }

    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    pub fn clients_unknown(&self) -> Option<&str> {
        self.clients_unknown.as_deref()
    }

    fn rows(&self) -> Vec<Row> {
        show::rows(&self.items, self.nodes.len())
    }

    fn code(&self) -> ExitCode {
        if self.answered() < self.quorum() {
            return ExitCode::from(UNKNOWN);
        }
        ExitCode::from(if self.is_truncated { TRUNCATED } else { 0 })
    }

    /// The notes, after the sentence for an empty list.
    fn sentences(&self) -> Vec<String> {
        let is_known = self.answered() >= self.quorum() && !self.is_truncated;
        let is_empty = self.items.is_empty() && is_known;
        let none = is_empty.then(|| "no locks".to_owned());
        none.into_iter().chain(self.notes.iter().map(|note| printable(note))).collect()
    }

    fn said(&self) -> String {
        self.sentences().iter().map(|sentence| format!("{sentence}\n")).collect()
    }

    /// Writes the new ones of its sentences to standard error, and returns all.
    fn say(&self, before: &[String]) -> Vec<String> {
        let sentences = self.sentences();
        for sentence in sentences.iter().filter(|it| !before.contains(it)) {
            let _ = writeln!(io::stderr(), "muxlock: {sentence}");
        }
        sentences
    }
}
