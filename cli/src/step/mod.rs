//! `muxlock lock`, `unlock` and `renew`: a lock that one step of a pipeline takes, and a later one
//! releases.

mod file;
mod renewer;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use muxlock::unstable_tool::{ConfigExt, explained, in_the_tool, parts, printable};
use muxlock::{Config, LockError, LockErrorKind, LockParts, Moment, Redlock, Released, quorum};

use super::options::{Options, duration};
use super::run::command::code_of;
use super::run::console::{self, say};
use super::run::locks::Locks;
use super::run::{self, FAILED, LOST, Plan, UNAVAILABLE, check_ttl, records, seconds, settings};
use super::settings::Settings;
use file::{Contents, Draft, Ended, OnRenewer, StepFile, open, parts_of};

/// The longest `--keep`: longer than pipelines run.
const KEEP_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How long answers are waited for that the result does not need.
const DRAIN_MAX: Duration = Duration::from_millis(100);
const EXPIRED: &str = "it had expired";
const RESTARTED: &str = "this machine was restarted since; the lock expires by itself";
const TOO_FEW: &str = "too few masters still had it";

/// Take a lock that a later step releases
///
/// FILE gets the lock as a secret text, with the permissions 600: the text is
/// enough to release the lock. `muxlock unlock FILE` does that, on the same
/// machine.
///
/// Without --keep, the lock expires after --ttl, even if the work goes on. With
/// --keep, a process in the background renews the lock until `muxlock unlock FILE`,
/// until FILE is removed, or until the time is over. It then releases the lock.
///
/// muxlock does not end the work if the lock is lost: `muxlock run` does.
///
/// With --fenced, standard output gets the line MUXLOCK_FENCING_TOKEN=NUMBER.
///
/// Exit status: 0 if the lock is held; 128+n if signal n ended muxlock while it
/// waited; 121 if another holder has the lock; 122 if too few masters answered; 125
/// if muxlock failed.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
#[command(override_usage = "muxlock lock [OPTIONS] RESOURCE --to FILE")]
pub struct Args {
    /// File to create for the lock
    #[arg(long, value_name = "FILE")]
    to: PathBuf,

    /// Renew the lock in the background for this time [default: not at all]
    #[arg(long, value_name = "D", value_parser = duration)]
    keep: Option<Duration>,

    #[command(flatten)]
    lock: run::LockArgs,

    #[command(flatten)]
    options: Options,
}

/// Release a lock that `muxlock lock` has taken
///
/// Exit status: 0 if the lock was held until its release; 120 if it was lost
/// before; 122 if too few masters confirmed the release; 125 if muxlock failed.
/// FILE is removed with 0 and 120, and with 122 after --keep.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
pub struct UnlockArgs {
    #[command(flatten)]
    of: FileArgs,
}

/// Extend a lock that `muxlock lock` has taken without --keep
///
/// Exit status: 0 if the lock is held; 120 if it was lost; 122 if too few masters
/// answered; 125 if muxlock failed.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
pub struct RenewArgs {
    /// How long the lock lasts from now [default: its TTL]
    #[arg(long, value_name = "D", value_parser = duration)]
    ttl: Option<Duration>,

    #[command(flatten)]
    of: FileArgs,
}

#[derive(clap::Args)]
struct FileArgs {
    /// File that `muxlock lock` has created
    file: PathBuf,

    /// Print failures only
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    options: Options,
}

/// Runs the process that renews a lock, if this program has started itself under its name.
pub fn own(name: &OsStr) -> Option<ExitCode> {
    (name == renewer::NAME).then(renewer::main)
}

pub fn lock(args: &Args) -> ExitCode {
    if args.lock.verbose {
        records::show();
    }
    end(args.take())
}

pub fn unlock(args: &UnlockArgs) -> ExitCode {
    end(args.of.unlock())
}

pub fn renew(args: &RenewArgs) -> ExitCode {
    end(args.renew())
}

fn end(code: Result<u8, String>) -> ExitCode {
    let code = code.unwrap_or_else(|why| {
        say(&why);
        FAILED
    });
    console::finish();
    ExitCode::from(code)
}

fn failed(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::Other => error.to_string(),
        _ => format!("muxlock failed: {}", explained(&error)),
    }
}

impl Args {
    fn take(&self) -> Result<u8, String> {
        let plan = Plan::new(&self.lock, &settings(&self.options)?)?;
        if let Some(keep) = self.keep.filter(|keep| *keep > KEEP_MAX) {
            let [keep, most] = [keep, KEEP_MAX].map(humantime::format_duration);
            return Err(format!("keep is {keep}: it can be {most} at most"));
        }
        let client = plan.builder.build().map_err(|error| error.to_string())?;
        // Before the lock is taken: perhaps no file can be created.
        let draft = Draft::new(&self.to, &client)?;
        let mut locks = Locks::new(&plan).map_err(failed)?;
        let mut lease = match locks.acquire().map_err(failed)? {
            Ok(lease) => lease,
            Err(code) => return Ok(code),
        };
        // A master that has answered counts for the next process.
        let drained = locks.drain();
        locks.mux.let_go(&mut lease);
        locks.mux.flush();
        let until = lease.valid_until();
        let parts = parts(lease);
        let code = drained.map_err(failed).and_then(|()| {
            let secret = parts.to_secret_text().map_err(|error| error.to_string())?;
            let step = draft.place(&Contents::new(&plan.config, &locks.name, secret))?;
            let code = self.hand_over(&step, &mut locks, &parts, until);
            if code != Ok(0) {
                // Without the lock, it would mislead.
                let _ = step.remove();
            }
            code
        });
        if code != Ok(0) {
            release(&client, parts);
        }
        code
    }

    /// Hands the lock over to the file, and to a renewer. The last thing that it does before it
    /// reports success is to read the clock.
    fn hand_over(
        &self,
        step: &StepFile,
        locks: &mut Locks<'_>,
        parts: &LockParts,
        until: Moment,
    ) -> Result<u8, String> {
        if let Some(number) = parts.fencing_token() {
            // Even a closed pipe is an error: without the number, the lock is of no use.
            let written = writeln!(io::stdout(), "MUXLOCK_FENCING_TOKEN={number}");
            written.map_err(|error| format!("standard output: {}", explained(&error)))?;
        }
        let left = until.since(locks.mux.now());
        let renewer = self.keep.map(|_| renewer::start(step, left)).transpose();
        let signal = locks.signals().first().copied();
        let mut renewer = match (renewer, signal) {
            // It has ended the wait for the renewer.
            (Err(_), Some(signal)) => return Ok(code_of(signal as i32)),
            (renewer, _) => renewer?,
        };
        let left = until.since(locks.mux.now());
        if signal.is_none() && !left.is_zero() {
            self.report(&locks.name, left);
            return Ok(0);
        }
        renewer.iter_mut().for_each(renewer::end);
        if let Some(signal) = signal {
            return Ok(code_of(signal as i32));
        }
        say(&format!("unavailable: the quorum came too late, with {} left", seconds(left)));
        Ok(UNAVAILABLE)
    }

    fn report(&self, name: &str, left: Duration) {
        if self.lock.quiet {
            return;
        }
        let (name, left) = (printable(name), seconds(left));
        let unlock = format!("muxlock unlock {}", self.to.display());
        match self.keep.map(humantime::format_duration) {
            Some(keep) => say(&format!("{name} is locked for up to {keep}; to unlock: {unlock}")),
            None => {
                say(&format!("{name} is locked for {left}; to unlock: {unlock}"));
                say(&format!(
                    "no process renews the lock: after {left} another client can have it, even if \
                     the work goes on (--keep 1h would renew it)"
                ));
            }
        }
    }
}

impl FileArgs {
    /// The settings, which have to be those of the lock.
    fn client(&self) -> Result<(Config, Redlock), String> {
        // Without the file, nobody needs to know of missing masters.
        open(&self.file)?;
        let Settings { builder, warnings, .. } = settings(&self.options)?;
        if !self.quiet {
            warnings.iter().for_each(|warning| say(warning));
        }
        let config = builder.config().map_err(|error| error.to_string())?;
        let client = builder.build().map_err(|error| error.to_string())?;
        Ok((config, client))
    }

    fn claim(&self, config: &Config, on_renewer: OnRenewer) -> Result<StepFile, String> {
        let round = config.common().connect_timeout.saturating_add(config.node_timeout());
        StepFile::claim(&self.file, on_renewer, round.saturating_mul(2))
    }

    fn unlock(&self) -> Result<u8, String> {
        let (config, client) = self.client()?;
        let step = self.claim(&config, OnRenewer::End)?;
        let contents = step.contents_for(&config)?;
        let is_of_earlier_boot = contents.is_of_earlier_boot();
        let Contents { ended, secret, resource, renewer, .. } = contents;
        let is_final = ended.is_some() || is_of_earlier_boot;
        let ended = match ended {
            Some(ended) => ended,
            None if is_of_earlier_boot => Ended::Lost(RESTARTED.into()),
            None => release(&client, parts_of(&secret, &self.file)?),
        };
        if let (false, Some(renewer), Ended::Lost(_)) = (is_final, renewer, &ended) {
            say(&format!("process {renewer}, which renewed the lock, was killed"));
        }
        match ended {
            Ended::Held => {
                step.remove()?;
                if !self.quiet {
                    say(&format!("{resource} is unlocked"));
                }
                Ok(0)
            }
            Ended::Lost(why) => {
                step.remove()?;
                say(&format!("lost {resource}: {why}"));
                Ok(LOST)
            }
            Ended::Unconfirmed(why) => {
                if is_final {
                    step.remove()?;
                }
                say(&format!("the release is not confirmed: {why}"));
                Ok(UNAVAILABLE)
            }
        }
    }
}

impl RenewArgs {
    fn renew(&self) -> Result<u8, String> {
        let (config, client) = self.of.client()?;
        if let Some(ttl) = self.ttl {
            check_ttl("ttl", ttl, config.max_ttl())?;
        }
        let step = self.of.claim(&config, OnRenewer::Refuse)?;
        let mut contents = step.contents_for(&config)?;
        let name = contents.resource.clone();
        let lost = |why: &str| {
            say(&format!("lost {name}: {why}"));
            Ok(LOST)
        };
        match &contents.ended {
            None if contents.is_of_earlier_boot() => return lost(RESTARTED),
            None => {}
            Some(Ended::Held) => return lost("it was released"),
            Some(Ended::Lost(why) | Ended::Unconfirmed(why)) => return lost(why),
        }
        let Ok(mut guard) = client.adopt(parts_of(&contents.secret, &self.of.file)?) else {
            return lost(EXPIRED);
        };
        let extended = guard.extend(self.ttl.unwrap_or(guard.ttl()));
        client.shutdown(DRAIN_MAX);
        if extended.as_ref().is_err_and(LockError::is_expired) {
            drop(guard);
            client.shutdown(DRAIN_MAX);
            return lost(TOO_FEW);
        }
        // Even if it was not extended: masters that have not answered are to be doubted.
        let parts = guard.into_parts();
        contents.secret = parts.to_secret_text().map_err(|error| error.to_string())?;
        Draft::beside(&self.of.file)?.replace(&contents)?;
        let Ok(guard) = client.adopt(parts) else {
            return lost(EXPIRED);
        };
        let left = seconds(guard.remaining());
        let _held = guard.into_parts();
        match extended {
            Ok(()) => {
                if !self.of.quiet {
                    say(&format!("{name} is locked for another {left}"));
                }
                Ok(0)
            }
            Err(error) => {
                let why = in_the_tool(&error).to_string();
                say(&format!("{name} was not extended, and is locked for another {left}: {why}"));
                Ok(match error.kind() {
                    LockErrorKind::Unavailable | LockErrorKind::TimedOut => UNAVAILABLE,
                    _ => FAILED,
                })
            }
        }
    }
}

/// Releases a lock, and waits a little for masters whose answers are not needed.
fn release(client: &Redlock, parts: LockParts) -> Ended {
    let ended = match client.adopt(parts) {
        Ok(guard) => released(guard.unlock()),
        Err(_) => Ended::Lost(EXPIRED.into()),
    };
    client.shutdown(DRAIN_MAX);
    ended
}

/// The result of a release. It counts as held only if a quorum has confirmed that.
fn released(result: Result<Released, LockError>) -> Ended {
    match result {
        Ok(it) if it.was_held() => Ended::Held,
        Ok(it) => {
            let most = it.confirmed + it.unknown;
            let needed = quorum(most + it.absent);
            match (it.confirmed >= needed, most >= needed) {
                (true, _) => Ended::Lost(EXPIRED.into()),
                (false, false) => Ended::Lost(TOO_FEW.into()),
                (false, true) => Ended::Unconfirmed("too few masters have answered".into()),
            }
        }
        Err(error) => Ended::Unconfirmed(in_the_tool(&error).to_string()),
    }
}
