//! `muxlock doctor`: problems of the masters, and how to fix them.

mod ask;
mod checks;
mod clients;
mod clocks;
mod finding;
mod group;
mod metrics;
mod page;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use muxlock::settings::RestartGuard;
use muxlock::unstable_tool::{ConfigExt, in_the_tool};
use muxlock::{Builder, Config, LockError};

use self::ask::Plan;
use self::clocks::RATE_OVER_MIN;
use self::finding::{Finding, Id, Severity};
use self::group::{Report, examine};
use super::in_force::InForce;
use super::options::{Options, duration};
use super::output;
use super::paint::whole_seconds;
use super::settings::Settings;
use super::stopwatch::{Stopwatch, pause, random, wall_micros};
use super::wire::ask_each;

/// There are errors.
const ERRORS: u8 = 1;
/// There are warnings and no errors. Other commands exit with 3 for too few answers.
const WARNINGS: u8 = 4;
/// The longest TTL of the lock that is tried.
const TTL_MAX: Duration = Duration::from_secs(10);
/// How long to wait for that lock, beside connecting.
const LOCK_WITHIN: Duration = Duration::from_secs(2);
/// From one look at the clients to the next: longer than a command connects to all masters.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The longest watch.
const WATCH_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How often the time that has passed is shown.
const SHOW_EVERY: Duration = Duration::from_secs(1);
/// Covers the longest line of it.
const PROGRESS_WIDTH: usize = 48;

/// Check the masters and show problems with their fixes
///
/// It first reads from all masters, then takes and releases a lock. Each finding
/// has an id that stays the same between versions. Many findings come with a
/// command that fixes them. No password is shown.
///
/// Exit status: 0 if there are no errors, 1 if there are, 2 if it could not
/// start or write, 4 if there are only warnings (with --strict).
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print metrics for the textfile collector of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,

    /// Exit with 4 for warnings, and with 1 if the restart guard is off
    #[arg(long)]
    strict: bool,

    /// How long to measure clock rates (30s or more)
    #[arg(long = "for", value_name = "D", value_parser = duration)]
    watch: Option<Duration>,

    /// Take no lock
    #[arg(long)]
    read_only: bool,

    /// User of the locks, if the addresses have another one (Redis 7.0)
    #[arg(long, value_name = "NAME")]
    lock_user: Option<String>,

    /// Hide findings with this id (repeatable)
    #[arg(long, value_name = "ID", hide_possible_values = true)]
    allow: Vec<Id>,

    #[command(flatten)]
    options: Options,
}

/// Runs the command. An error means that it could not start.
pub fn run(args: &Args) -> io::Result<ExitCode> {
    let Settings { builder, files, .. } = args.options.warned_settings()?;
    let watch = args.watch.unwrap_or_default();
    if args.watch.is_some() && !(RATE_OVER_MIN..=WATCH_MAX).contains(&watch) {
        return Err(io::Error::other(format!("--for is {watch:?}: it must be from 1s to 24h")));
    }
    let config = builder.config().map_err(io::Error::other)?;
    let resource = format!("muxlock:doctor:{:016x}", random());
    let key = [config.common().key_prefix, resource.as_bytes()].concat();
    let plan = Plan { watch, lock_user: args.lock_user.clone(), key };
    let nodes: Vec<usize> = (0..config.nodes()).collect();
    let mut answers = thread::scope(|scope| {
        let (_asked, is_over) = mpsc::channel();
        if io::stderr().is_terminal() && args.watch.is_some() {
            scope.spawn(move || show_progress(watch, &is_over));
        } else if args.watch.is_some() && !args.json && !args.prometheus {
            let watch = humantime::format_duration(watch);
            let _ = writeln!(io::stderr(), "muxlock: measures the clocks for {watch}");
        }
        ask_each(&nodes, |node| ask::ask(&config, node, &plan))
    });
    if clients::is_doubtful(&config, &answers) {
        pause(LOOK_AGAIN);
        let again = ask_each(&nodes, |node| ask::clients_again(&config, node));
        clients::settle(&mut answers, again);
    }
    let mut report = examine(&config, &answers, args.lock_user.as_deref());
    if args.read_only || !report.knows_a_name() {
        // Not tried, and it is said why.
    } else if report.can_lock() {
        report.findings.extend(try_lock(&config, &builder, &resource));
    } else {
        report.findings.extend(untried(&config, &report));
    }
    report.findings.retain(|finding| !args.allow.contains(&finding.id));
    for finding in report.findings.iter_mut().filter(|it| args.strict && it.id == Id::RestartGuard)
    {
        finding.severity = Severity::Error;
    }
    report.findings.sort_by_key(|it| (it.severity, it.masters.first().copied(), it.id));
    let in_force = InForce::new(&files, &config);
    let text = match (args.json, args.prometheus) {
        (true, _) => format!("{}\n", page::json(&config, &in_force, &answers, &report)),
        (_, true) => metrics::text(&config, &in_force, &answers, &report, wall_micros()),
        _ => format!("{in_force}\n\n{}", page::text(&config, &answers, &report)),
    };
    output::write(text)?;
    Ok(code(args, &report))
}

/// Shows on a terminal how much of the watch has passed, until it is over.
fn show_progress(watch: Duration, is_over: &Receiver<()>) {
    let (started, mut err) = (Stopwatch::start(), io::stderr());
    let mut show = |text: &str| {
        let _ = write!(err, "\r{text:PROGRESS_WIDTH$}\r").and_then(|()| err.flush());
    };
    loop {
        let passed = started.elapsed().min(watch);
        let [passed, watch] = [passed, watch].map(whole_seconds);
        show(&format!("measures the clocks: {passed} of {watch}"));
        if is_over.recv_timeout(SHOW_EVERY) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    show("");
}

fn code(args: &Args, report: &Report) -> ExitCode {
    match report.findings.iter().map(|finding| finding.severity).min() {
        Some(Severity::Error) => ExitCode::from(ERRORS),
        Some(Severity::Warning) if args.strict => ExitCode::from(WARNINGS),
        _ => ExitCode::SUCCESS,
    }
}

/// Takes and releases a lock, as any client does.
fn try_lock(config: &Config, builder: &Builder, resource: &str) -> Option<Finding> {
    let common = config.common();
    let failed = |error: LockError| match error.ready_in() {
        // It can, later.
        Some(wait) => {
            let seconds = wait.as_secs_f64().ceil();
            let why = format!("no lock was taken: masters are ignored for another {seconds} s");
            Finding::new(Severity::Note, Id::NotChecked, why)
        }
        None => Finding::new(
            Severity::Error,
            Id::Lock,
            format!("a lock failed: {}", in_the_tool(&error)),
        ),
    };
    let redlock = match builder.build() {
        Ok(redlock) => redlock,
        Err(error) => return Some(Finding::new(Severity::Error, Id::Lock, error.to_string())),
    };
    let wait = common.connect_timeout.saturating_add(LOCK_WITHIN);
    let lock = match redlock.try_lock_for(resource, common.max_ttl.min(TTL_MAX), wait) {
        Ok(lock) => lock,
        Err(error) => return Some(failed(error)),
    };
    let released = lock.unlock();
    redlock.shutdown(LOCK_WITHIN);
    match released {
        Ok(released) if released.was_held() => None,
        Ok(_) => {
            let why = "a lock was gone before its release";
            Some(Finding::new(Severity::Error, Id::Lock, why))
        }
        Err(error) => Some(failed(error)),
    }
}

/// Why the trial lock was left out, if other findings are silent about it.
fn untried(config: &Config, report: &Report) -> Option<Finding> {
    let says_so = |finding: &Finding| match finding.id {
        Id::Quorum | Id::Young | Id::Promoted | Id::Permission => true,
        Id::Marker => config.common().flush_marker.is_some(),
        _ => false,
    };
    if report.findings.iter().any(says_so) {
        return None;
    }
    let is_strict = |node| config.master(node).restart_guard == RestartGuard::OwnObservation;
    let why = match (0..config.nodes()).any(is_strict) {
        true => "no lock was taken: with own_observation, a new client has to wait first",
        false => "no lock was taken: too few masters can vote",
    };
    Some(Finding::new(Severity::Note, Id::NotChecked, why))
}

/// Where the repository is, for tests; a package has only its own files.
#[cfg(test)]
fn repository() -> Option<std::path::PathBuf> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    root.join("testbed").exists().then(|| root.to_owned())
}
