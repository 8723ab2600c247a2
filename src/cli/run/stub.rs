//! The process that becomes the command, once it may.

use std::env::ArgsOs;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{close, pipe2};

use super::FAILED;
use super::timer::since_boot;
use super::voice::{self, say};

pub const NAME: &str = "__exec";
/// This program, also if its file was replaced meanwhile.
pub const SELF: &str = "/proc/self/exe";

const BLOCKED: &str = "blocked";
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Starts the stub in a process group of its own. It runs `program` when [`open`] lets it, and ends
/// if the pipe that is returned is closed before. A variable without a value is removed.
pub fn start(
    program: &[std::ffi::OsString],
    mask: &SigSet,
    environment: &[(&str, Option<String>)],
) -> io::Result<(Child, OwnedFd)> {
    let (gate, opener) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&gate, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&gate.as_fd());
    let mut command = Command::new(SELF);
    command.arg0("muxlock").arg(NAME).arg(fd.to_string()).arg(kept_blocked(mask));
    command.args(program).process_group(0);
    for (name, value) in environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Ok((command.spawn()?, opener))
}

/// Lets the stub run its program, unless this time since the start of the machine has come.
pub fn open(gate: OwnedFd, until: Duration) -> io::Result<()> {
    let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
    File::from(gate).write_all(&until.to_le_bytes())
}

/// Whether the command is to get SIGTTOU blocked, as this program did.
fn kept_blocked(mask: &SigSet) -> &'static str {
    if mask.contains(Signal::SIGTTOU) { BLOCKED } else { "free" }
}

/// Waits until it may, and becomes the command. An error ends the process with `timeout(1)`'s
/// codes.
pub fn main(args: ArgsOs) -> ExitCode {
    let mut args = args.map(Some).chain([None]).map_while(|arg| arg);
    let number = |arg: Option<std::ffi::OsString>| arg?.to_str()?.parse::<RawFd>().ok();
    let Some(gate) = number(args.next()) else {
        return ExitCode::from(FAILED);
    };
    let is_blocked = args.next().is_some_and(|arg| arg == BLOCKED);
    let mut until = [0; 8];
    let opened = File::open(format!("/proc/self/fd/{gate}")).and_then(|mut copy| {
        // The command must not get it.
        close(gate)?;
        copy.read_exact(&mut until)?;
        Ok(since_boot()? < Duration::from_nanos(u64::from_le_bytes(until)))
    });
    if !matches!(opened, Ok(true)) {
        // muxlock has ended, or the lock is nearly over.
        return ExitCode::from(FAILED);
    }
    if !is_blocked {
        let mut ttou = SigSet::empty();
        ttou.add(Signal::SIGTTOU);
        let _ = ttou.thread_unblock();
    }
    let Some(program) = args.next() else {
        return ExitCode::from(FAILED);
    };
    let error = Command::new(&program).args(args).exec();
    say(&format!("cannot run {}: {error}", program.to_string_lossy()));
    voice::finish();
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::from(NOT_FOUND),
        _ => ExitCode::from(CANNOT_RUN),
    }
}
