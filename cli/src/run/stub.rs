//! The process that becomes the command, once it may.

use std::env::{self, ArgsOs};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{self, Child, Command, ExitCode};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{close, pipe2};

use muxlock::unstable_tool::{explained, explained_start, printable};

use super::FAILED;
use super::console::{self, say};
use super::timer::since_boot;

pub const NAME: &str = "__exec";
/// This program, even if its file has been replaced.
pub const SELF: &str = "/proc/self/exe";

/// As it is, with the file that it is about.
pub fn about(path: &str, error: &io::Error) -> io::Error {
    let hint = if error.kind() == io::ErrorKind::NotFound { " (is /proc mounted?)" } else { "" };
    io::Error::other(format!("cannot use {path}: {}{hint}", explained(error)))
}

/// The error of a process of this program that could not be started.
pub fn unstarted(error: &io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => about(SELF, error),
        _ => io::Error::other(explained_start(error)),
    }
}

const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Variables for the command; one without a value is removed.
pub type Environment<'a> = [(&'a str, Option<String>)];

/// The signals that the command gets blocked, as numbers with dots between them.
pub struct Mask(SigSet);

impl Mask {
    pub fn new(blocked: SigSet) -> Mask {
        Mask(blocked)
    }

    pub fn parse(text: &str) -> Mask {
        let numbers = text.split('.').filter_map(|number| number.parse::<i32>().ok());
        Mask(numbers.filter_map(|number| Signal::try_from(number).ok()).collect())
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> =
            self.0.iter().map(|signal| (signal as i32).to_string()).collect();
        write!(f, ".{}", numbers.join("."))
    }
}

/// Variables of a service manager that name the process which they are for: sockets that it passes
/// on, and signs of life that it expects.
const OF_PROCESS: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];
/// No process has this id: it stands for the id of the command, until that is known.
const COMMAND_PID: &str = "0";

/// Names the command in the variables that name this process.
pub fn service() -> Vec<(&'static str, Option<String>)> {
    let own = process::id().to_string();
    let is_own = |name: &&str| env::var(name).is_ok_and(|it| it == own);
    let named = OF_PROCESS.into_iter().filter(is_own);
    let mut variables: Vec<_> = named.map(|name| (name, Some(COMMAND_PID.to_owned()))).collect();
    if !variables.is_empty() {
        // It names this process in another way.
        variables.push(("LISTEN_PIDFDID", None));
    }
    variables
}

pub fn set(command: &mut Command, environment: &Environment<'_>) {
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

/// Starts the stub in a process group of its own. It runs `program` when [`open`] lets it, and ends
/// if the pipe that is returned is closed before.
pub fn start(
    program: &[OsString],
    mask: &Mask,
    environment: &Environment<'_>,
) -> io::Result<(Child, OwnedFd)> {
    let (gate, opener) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&gate, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&gate.as_fd());
    let mut command = Command::new(SELF);
    command.arg0("muxlock").arg(NAME).arg(fd.to_string()).arg(mask.to_string());
    command.args(program).process_group(0);
    set(&mut command, environment);
    Ok((command.spawn().map_err(|error| unstarted(&error))?, opener))
}

/// Lets the stub run its program, unless this time since the start of the machine has come.
pub fn open(gate: OwnedFd, until: Duration) -> io::Result<()> {
    let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
    File::from(gate).write_all(&until.to_le_bytes())
}

fn fail(why: &str) -> ExitCode {
    say(why);
    console::finish();
    ExitCode::from(FAILED)
}

/// Waits until it may, and becomes the command. An error ends the process with `timeout(1)`'s
/// codes.
pub fn main(args: ArgsOs) -> ExitCode {
    let mut args = args.map(Some).chain([None]).map_while(|arg| arg);
    let number = |arg: Option<OsString>| arg?.to_str()?.parse::<RawFd>().ok();
    let Some(gate) = number(args.next()) else {
        return ExitCode::from(FAILED);
    };
    let mask = args.next().and_then(|mask| Some(Mask::parse(mask.to_str()?)));
    let mut until = [0; 8];
    let opened = File::open(format!("/proc/self/fd/{gate}")).and_then(|mut copy| {
        // The command must not get it.
        close(gate)?;
        copy.read_exact(&mut until)?;
        Ok(since_boot()? < Duration::from_nanos(u64::from_le_bytes(until)))
    });
    match &opened {
        Ok(true) => {}
        // muxlock has ended, and its guard says so.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return ExitCode::from(FAILED);
        }
        Ok(false) => return fail("the command was not started: the lock nearly expired"),
        Err(error) => return fail(&format!("cannot start the command: {}", explained(error))),
    }
    let (Some(mask), Some(program)) = (mask, args.next()) else {
        return ExitCode::from(FAILED);
    };
    let _ = mask.0.thread_set_mask();
    let mut command = Command::new(&program);
    for name in OF_PROCESS {
        if env::var(name).is_ok_and(|it| it == COMMAND_PID) {
            command.env(name, process::id().to_string());
        }
    }
    let error = command.args(args).exec();
    say(&format!("cannot run {}: {}", printable(&program.to_string_lossy()), explained(&error)));
    console::finish();
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::from(NOT_FOUND),
        _ => ExitCode::from(CANNOT_RUN),
    }
}
