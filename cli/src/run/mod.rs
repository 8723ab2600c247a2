//! `muxlock run`: a command that runs only while a lock is held.
//!
//! Three processes: this one, which acquires and renews the lock; the [guard], which ends
//! the command before the lock expires, even if this process cannot; and the [stub], which
//! becomes the command.

pub mod command;
pub mod console;
mod defaults;
mod family;
mod guard;
pub mod locks;
mod progress;
pub mod records;
pub mod signals;
pub mod stub;
mod supervise;
mod terminal;
mod timer;

use std::env::{self, ArgsOs};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueHint;
use muxlock::error::ConfigError;
use muxlock::limits::SLOTS_MAX;
use muxlock::proto::Lease;
use muxlock::settings::Heal;
use muxlock::unstable_tool::{ConfigExt, explained};
use muxlock::{Builder, Config, Fingerprint, LockError, Resource};

use super::holder::fingerprint;
use super::in_force::InForce;
use super::options::{Options, Wait, duration, wait};
use super::settings::Settings;
use console::say;
use defaults::with_defaults;

/// Runs the helper process, if this program has started itself under one of these names.
pub fn own(name: &OsStr, args: ArgsOs) -> Option<ExitCode> {
    match name.to_str()? {
        guard::NAME => Some(guard::main(args)),
        stub::NAME => Some(stub::main(args)),
        _ => None,
    }
}

/// The lock was lost, and the command was ended.
pub const LOST: u8 = 120;
/// Another holder has the lock.
const CONTENDED: u8 = 121;
/// Too few masters answered.
pub const UNAVAILABLE: u8 = 122;
/// `--max-time` has passed. `timeout(1)` exits with the same code.
const TIMED_OUT: u8 = 124;
/// Nothing was run. `timeout(1)` exits with the same code.
pub const FAILED: u8 = 125;

/// How much of the TTL is there to end the command.
const PERCENT_TO_END: u32 = 45;
const KILL_AFTER_DEFAULT: Duration = Duration::from_secs(2);

/// How to treat processes that the command has started and that run on after its end.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Descendants {
    /// Hold the lock until they have ended
    Wait,
    /// End them, then release the lock
    End,
    /// Release the lock and leave them running
    Leave,
}

/// Run a command while a lock is held
///
/// The lock is renewed while the command runs, and released when it ends. If
/// the lock is lost, or muxlock is killed or stopped, the command and all its
/// descendants get SIGTERM, then SIGKILL, before another client can get the
/// lock. That includes processes in groups and sessions of their own (timeout,
/// setsid, jobs of an interactive shell, daemons).
///
/// Out of reach are processes of another user (sudo, su), processes that another
/// service starts on request (ssh, docker, kubectl, systemd-run, at, a running
/// tmux server), and all processes if muxlock and its guard process are killed
/// at once.
///
/// If a descendant runs on after the command has ended, muxlock holds the lock
/// until the descendant ends (--descendants). After one second it names such
/// processes. Signals to muxlock then reach all of them.
///
/// The lock's keys are restored on masters that have lost them, unless
/// --restart-guard is off. So deleting the keys does not stop the command. Use
/// `muxlock revoke RESOURCE` instead.
///
/// --wait covers both missing masters and a holder of the lock. With
/// --wait-masters, muxlock waits for masters only, such as restarted ones: if
/// another holder has the lock, it exits with 121 at once, or waits for as long as
/// --wait says. A wait `forever` ends with the lock or a signal. After one second,
/// and then each minute, muxlock prints the reason for the wait and the position
/// in the queue. With -q, only a wait `forever` prints this, if too few masters can
/// vote or the key has no TTL.
///
/// The command gets these variables:
///   MUXLOCK_RESOURCE       the lock's name: for several resources all names,
///                          separated by commas; for a permit the name of its
///                          slot, such as smtp{permit}:2
///   MUXLOCK_HOLDER         the first 8 characters of the lock's random token
///   MUXLOCK_FENCING_TOKEN  with --fenced: a number that is higher for each later
///                          holder
///
/// Commands with the same value of --as exclude each other, as any two holders do.
///
/// With --at-least, the resource stays locked for this time or for the rest of the
/// TTL, whichever is longer. If the command ends early, muxlock renews the lock
/// until the rest of that time fits into max-ttl. SIGTERM or SIGINT ends the
/// renewal: the lock then lasts for max-ttl.
///
/// With -q -E 0, a lock of another holder is reported only if its key never
/// expires.
///
/// The file can contain defaults for ttl, wait, kill_after, max_time, descendants
/// and conflict_exit_code, in a table [run].
///
/// Exit status: the command's own; 128+n if signal n ended it, or muxlock while
/// it waited; 120 if the lock was lost, even if muxlock found that only after
/// the command had ended; 121 if another holder has the lock; 122 if too few
/// masters answered; 124 if --max-time has passed; 125 if muxlock failed; 126 if
/// the command cannot be run; 127 if it was not found.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
#[command(override_usage = "muxlock run [OPTIONS] RESOURCE [--] COMMAND [ARG]...
       muxlock run [OPTIONS] RESOURCE -c STRING")]
pub struct Args {
    /// The command and its arguments
    #[arg(index = 2, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    #[arg(required_unless_present = "shell_command", conflicts_with = "shell_command")]
    command: Vec<OsString>,

    /// Run STRING with a shell instead of COMMAND
    #[arg(short = 'c', long = "command", value_name = "STRING")]
    #[arg(value_hint = ValueHint::CommandString)]
    shell_command: Option<OsString>,

    /// The shell for -c
    #[arg(long, value_name = "PATH", default_value = "/bin/sh", requires = "shell_command")]
    shell: PathBuf,

    #[command(flatten)]
    lock: LockArgs,

    /// Time from SIGTERM to SIGKILL [default: 2s, less for a short TTL]
    #[arg(long, value_name = "D", value_parser = duration)]
    kill_after: Option<Duration>,

    /// End the command after this time
    #[arg(long, value_name = "D", value_parser = duration)]
    max_time: Option<Duration>,

    /// Shortest time to keep the resource locked
    #[arg(long, value_name = "D", value_parser = duration)]
    at_least: Option<Duration>,

    /// Processes that outlive the command: wait, end or leave
    ///
    /// `wait` holds the lock until they have ended. `end` ends them and then
    /// releases the lock. `leave` releases the lock and leaves them running.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Descendants::Wait)]
    #[arg(hide_possible_values = true, verbatim_doc_comment)]
    descendants: Descendants,

    /// Do not start the guard process
    #[arg(long)]
    no_guard: bool,

    #[command(flatten)]
    options: Options,
}

/// How to take a lock.
#[derive(clap::Args)]
pub struct LockArgs {
    /// Name of the lock
    #[arg(index = 1)]
    resource: String,

    /// How long the lock outlives its last renewal
    #[arg(long, value_name = "D", value_parser = duration, default_value = "10s")]
    ttl: Duration,

    /// How long to wait for the lock, or `forever` [default: not at all]
    #[arg(short, long, value_name = "D", value_parser = wait)]
    wait: Option<Wait>,

    /// How long to wait for masters only: if the lock is held, exit at once
    #[arg(long, value_name = "D", value_parser = wait)]
    wait_masters: Option<Wait>,

    /// Exit at once if the lock is held (the default)
    #[arg(short, long, conflicts_with = "wait")]
    nonblock: bool,

    /// Take a lock with a fencing token (MUXLOCK_FENCING_TOKEN)
    #[arg(long)]
    fenced: bool,

    /// Another resource to lock: all of them or none (repeatable)
    #[arg(long, value_name = "RESOURCE")]
    #[arg(conflicts_with_all = ["shared", "exclusive", "slots", "fenced"])]
    also: Vec<String>,

    /// Take a read lock; other commands with --shared can hold it too
    #[arg(long, conflicts_with_all = ["exclusive", "slots", "fenced"])]
    shared: bool,

    /// Take the write lock; block new readers while waiting
    #[arg(long, conflicts_with_all = ["slots", "fenced"])]
    exclusive: bool,

    /// Take one of N permits; all commands must use the same N
    #[arg(long, value_name = "N", conflicts_with = "fenced")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOTS_MAX)))]
    slots: Option<u32>,

    /// Value to store in the key, for others to read
    #[arg(long = "as", value_name = "VALUE")]
    #[arg(conflicts_with_all = ["also", "shared", "exclusive", "slots", "fenced"])]
    own: Option<String>,

    /// Exit status if another holder has the lock
    #[arg(short = 'E', long, value_name = "N", default_value_t = CONTENDED)]
    conflict_exit_code: u8,

    /// Print failures only
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Print the settings in force and each step of the lock
    #[arg(short, long)]
    pub verbose: bool,
}

/// How to take a lock, checked.
pub struct Plan<'a> {
    args: &'a LockArgs,
    pub builder: Builder,
    pub config: Config,
    resource: Resource,
    /// The user's name for it.
    name: String,
}

/// How to run a command under a lock, checked.
struct Job<'a> {
    plan: Plan<'a>,
    args: &'a Args,
    kill_after: Duration,
    program: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    if args.lock.verbose {
        records::show();
    }
    let code = settings(&args.options).and_then(|settings| {
        let words: Vec<_> = env::args_os().skip(1).collect();
        let args = with_defaults(&words, &settings.run)?;
        let job = Job::new(&args, &settings)?;
        supervise::run(&job).map_err(|error| match error.kind() {
            io::ErrorKind::Other => error.to_string(),
            _ => format!("muxlock failed: {}", explained(&error)),
        })
    });
    let code = code.unwrap_or_else(|why| {
        say(&why);
        FAILED
    });
    console::finish();
    ExitCode::from(code)
}

pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

impl LockArgs {
    fn names(&self) -> impl Iterator<Item = &str> {
        [&self.resource].into_iter().chain(&self.also).map(String::as_str)
    }

    /// The fingerprint of the holder, as `inspect` shows it.
    fn holder(&self, lease: &Lease) -> Fingerprint {
        let own = self.own.as_ref().map(|value| fingerprint(value.as_bytes()));
        own.unwrap_or_else(|| lease.token().fingerprint())
    }

    /// The resources to lock.
    fn lock(&self) -> Result<Resource, LockError> {
        match (self.slots, &self.own) {
            (Some(slots), _) => Resource::slot(&self.resource, slots),
            (_, Some(value)) => Resource::with_value(&self.resource, value),
            _ if self.shared => Resource::shared(&self.resource),
            _ if self.exclusive => Resource::exclusive(&self.resource),
            _ => Resource::all(self.names()),
        }
    }
}

impl<'a> Plan<'a> {
    pub fn new(args: &'a LockArgs, settings: &Settings) -> Result<Plan<'a>, String> {
        if !args.quiet {
            settings.warnings.iter().for_each(|warning| say(warning));
        }
        let builder = settings.builder.clone();
        let config = builder.config().map_err(|error| error.to_string())?;
        if args.verbose {
            let in_force = InForce::new(&settings.files, &config);
            say(&in_force.to_string());
            in_force.without_guard().into_iter().for_each(say);
        }
        check_ttl("ttl", args.ttl, config.max_ttl())?;
        let resource = args.lock().map_err(|error| error.to_string())?;
        let name = args.names().collect::<Vec<_>>().join(",");
        Ok(Plan { args, builder, config, resource, name })
    }
}

impl<'a> Job<'a> {
    fn new(args: &'a Args, settings: &Settings) -> Result<Job<'a>, String> {
        let mut plan = Plan::new(&args.lock, settings)?;
        let kill_after = kill_after(args, plan.config.node_timeout())?;
        let program = match &args.shell_command {
            Some(text) => vec![args.shell.clone().into(), "-c".into(), text.clone()],
            None => args.command.clone(),
        };
        // In the list of clients, the arguments could be secrets.
        plan.config = plan.config.on_behalf_of(&program[0]);
        Ok(Job { plan, args, kill_after, program })
    }
}

/// The settings of a holder. A long command outlives restarts of masters, one after the other.
pub fn settings(options: &Options) -> Result<Settings, String> {
    let settings = options.settings()?;
    let healing = settings.builder.clone().heal(Heal::On);
    match healing.config() {
        Err(ConfigError::HealUnguarded { .. }) => Ok(settings),
        _ => Ok(Settings { builder: healing, ..settings }),
    }
}

pub fn check_ttl(name: &str, given: Duration, max_ttl: Duration) -> Result<(), String> {
    if given <= max_ttl {
        return Ok(());
    }
    let [given, most] = [given, max_ttl].map(humantime::format_duration);
    let all = "all clients must have the same";
    Err(format!(
        "{name} is {given}: it can be max-ttl at most, which is {most}; {all} (--max-ttl {given})"
    ))
}

/// The time from SIGTERM to SIGKILL. Both must fit into the time that is left after a renewal has
/// failed: less than half of the validity, which is a little shorter than the TTL.
fn kill_after(args: &Args, node_timeout: Duration) -> Result<Duration, String> {
    let most = args.lock.ttl / 100 * PERCENT_TO_END;
    let most = most.checked_sub(2 * node_timeout).filter(|most| !most.is_zero());
    let shown = humantime::format_duration;
    let needed = |kill_after: Duration| {
        let needed = kill_after.saturating_add(2 * node_timeout).saturating_mul(100);
        Duration::from_millis((needed / PERCENT_TO_END).as_millis().try_into().unwrap_or(u64::MAX))
    };
    let Some(most) = most else {
        let (given, least) = (shown(args.lock.ttl), shown(needed(Duration::ZERO)));
        return Err(format!("ttl is {given}: it must be more than {least} with this node-timeout"));
    };
    match args.kill_after {
        None => Ok(KILL_AFTER_DEFAULT.min(most)),
        Some(given) if given <= most => Ok(given),
        Some(given) => {
            let (ttl, needed) = (shown(args.lock.ttl), shown(needed(given)));
            let (given, most) = (shown(given), shown(most));
            let bound = format!("it can be {most} at most with a ttl of {ttl}");
            Err(format!("kill-after is {given}: {bound}; it needs --ttl {needed}"))
        }
    }
}
