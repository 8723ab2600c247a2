//! `muxlock run`, where it is not there.

use std::env::ArgsOs;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::ExitCode;

pub const FAILED: u8 = 125;

/// Run a command while a lock is held: on Linux only
#[derive(clap::Args)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _any: Vec<OsString>,
}

pub fn own(_: &OsStr, _: ArgsOs) -> Option<ExitCode> {
    None
}

pub fn run(_: &Args) -> ExitCode {
    // Nothing else ends the command before the lock is over.
    let _ = writeln!(io::stderr(), "muxlock: run needs the processes and timers of Linux");
    ExitCode::from(FAILED)
}
