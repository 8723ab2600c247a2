//! The process that renews a lock between two steps.
//!
//! Its standard input is the [file](super::file), with the flock(2) that `muxlock lock` has taken.
//! It releases the lock and ends if the file is removed, if another command asks for that with a
//! line in the file, or if it gets a signal. It has no terminal, session or pipe of the step that
//! started it.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args as _, FromArgMatches};
use muxlock::unstable_tool::{explained, in_the_tool, reason};
use muxlock::{KeepAlive, KeptLock, Loss, LossCause, Redlock};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::{close, dup2_stdin, dup2_stdout, pipe2, setsid};
use signal_hook::flag;

use super::super::holder::renewer_text;
use super::super::run::signals::not_ignored;
use super::super::run::stub::{SELF, unstarted};
use super::super::run::{FAILED, settings};
use super::file::{Ended, StepFile, line_of, parts_of};
use super::{Args, DRAIN_MAX, released};

pub const NAME: &str = "__renew";
/// By which masters list it.
const CLIENT_COMMAND: &str = "muxlock-lock";
const READY: &str = "ready";
/// How often it looks at its file.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Starts the renewer, which takes the file over. It has `left` to adopt the lock.
pub fn start(step: &StepFile, left: Duration) -> Result<Child, String> {
    let (reports, report) = pipe2(OFlag::O_CLOEXEC).map_err(|error| failed(&error.into()))?;
    let file = step.file.try_clone().map_err(|error| failed(&error))?;
    let mut command = Command::new(SELF);
    command.arg0("muxlock").arg(NAME).args(env::args_os().skip(2));
    command.stdin(Stdio::from(file)).stdout(Stdio::from(report)).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| failed(&unstarted(&error)))?;
    // The end of the pipe that the renewer has is the only one then.
    drop(command);
    let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let mut line = String::new();
    let is_there = poll(&mut [PollFd::new(reports.as_fd(), PollFlags::POLLIN)], left);
    if is_there.is_ok_and(|ready| ready > 0) {
        let _ = BufReader::new(File::from(reports)).read_line(&mut line);
    }
    match line.trim_end() {
        READY => return Ok(child),
        "" => line = failed(&io::ErrorKind::TimedOut.into()),
        _ => {}
    }
    end(&mut child);
    Err(line.trim_end().to_owned())
}

/// Ends a renewer, so that its lock can be released here.
pub fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn failed(error: &io::Error) -> String {
    format!("cannot start the process that renews the lock: {}", explained(error))
}

/// The renewer's side.
struct Renewer {
    file: File,
    /// The bytes of the file. Another command adds to them.
    length: u64,
    client: Redlock,
    lock: KeptLock,
    has_signal: Arc<AtomicBool>,
}

/// Renews the lock until it is to end.
pub fn main() -> ExitCode {
    let renewer = match detach().and_then(Renewer::new) {
        Ok(renewer) => renewer,
        Err(why) => {
            let _ = writeln!(io::stdout(), "{why}");
            return ExitCode::from(FAILED);
        }
    };
    renewer.keep();
    ExitCode::SUCCESS
}

/// Leaves everything behind that belongs to the step, except for the file and the pipe.
fn detach() -> Result<File, String> {
    let taken = || {
        let numbers = fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok());
        let numbers: Vec<RawFd> =
            numbers.filter_map(|it| it.file_name().to_str()?.parse().ok()).collect();
        // A pipe of the step would stay open for as long as the lock is renewed.
        numbers.into_iter().filter(|number| *number > 2).for_each(|number| {
            let _ = close(number);
        });
        setsid()?;
        let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        dup2_stdin(null()?)?;
        Ok(file)
    };
    taken().map_err(|error| failed(&error))
}

fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

impl Renewer {
    fn new(file: File) -> Result<Renewer, String> {
        let command = Args::augment_args(clap::Command::new("muxlock"));
        let args = env::args_os().skip(1);
        let args = command.try_get_matches_from(args).and_then(|it| Args::from_arg_matches(&it));
        let args = args.map_err(|error| error.to_string())?;
        let step = StepFile { file, path: args.to.clone() };
        let builder = settings(&args.options)?.builder;
        let config = builder.config().map_err(|error| error.to_string())?;
        let contents = step.contents_for(&config)?;
        let parts = parts_of(&contents.secret, &args.to)?;
        // The client whose tag the token has is about to end.
        let name = renewer_text(parts.token(), CLIENT_COMMAND).unwrap_or_default();
        let client = builder.client_name(name).build().map_err(|error| error.to_string())?;
        let guard = client.adopt(parts).map_err(|error| in_the_tool(&error).to_string())?;
        let how = KeepAlive::default().renewals_max(u32::MAX);
        let how = how.lifetime_max(args.keep.unwrap_or_default());
        let lock = guard.keep_alive(how).map_err(|error| error.to_string())?;
        let has_signal = Arc::new(AtomicBool::new(false));
        let ready = || {
            for signal in not_ignored([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])? {
                flag::register(signal as i32, Arc::clone(&has_signal))?;
            }
            env::set_current_dir("/")?;
            let line = format!("renewer={}\n", id());
            let length = step.file.metadata()?.len() + line.len() as u64;
            (&step.file).write_all(line.as_bytes())?;
            // If nothing reads it, the command that started this was ended.
            writeln!(io::stdout(), "{READY}")?;
            dup2_stdout(null()?)?;
            Ok(length)
        };
        match ready() {
            Ok(length) => Ok(Renewer { file: step.file, length, client, lock, has_signal }),
            Err(error) => {
                drop(lock);
                client.shutdown(DRAIN_MAX);
                Err(failed(&error))
            }
        }
    }

    fn keep(mut self) {
        // Connects at once, so that masters list this process as the holder.
        let _ = self.client.ready(LOOK_AGAIN);
        // Each iteration waits.
        let why = loop {
            match self.lock.wait_for_loss(LOOK_AGAIN) {
                Some(loss) => break Some(why_lost(&loss)),
                None if self.is_asked() => break None,
                None if self.has_signal.load(Ordering::SeqCst) => {
                    break Some("a signal ended the process that renewed it".into());
                }
                None => {}
            }
        };
        let ended = released(self.lock.unlock());
        self.client.shutdown(DRAIN_MAX);
        let ended = match why {
            Some(why) => Ended::Lost(why),
            None => ended,
        };
        // If the file was removed, no command reads it.
        let _ = self.file.write_all(line_of(&ended).as_bytes());
    }

    /// Whether the file was removed, or another command has asked for the lock.
    fn is_asked(&self) -> bool {
        let metadata = self.file.metadata();
        !metadata.is_ok_and(|it| it.nlink() > 0 && it.len() == self.length)
    }
}

fn why_lost(loss: &Loss) -> String {
    if loss.cause == LossCause::LifetimeMax {
        return "--keep has passed, and it was released".into();
    }
    let error = loss.error.as_ref();
    let error = error.map_or_else(String::new, |error| format!(" ({})", in_the_tool(error)));
    format!("{}{error}", reason(loss))
}
