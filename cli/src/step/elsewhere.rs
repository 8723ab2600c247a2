//! `muxlock lock`, `unlock` and `renew`, where they are not there.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::ExitCode;

use super::run::FAILED;

/// Hold a lock across steps of a pipeline: on Linux only
#[derive(clap::Args)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _any: Vec<OsString>,
}

pub use Args as RenewArgs;
pub use Args as UnlockArgs;

pub fn own(_: &OsStr) -> Option<ExitCode> {
    None
}

pub fn lock(_: &Args) -> ExitCode {
    // Nothing else identifies the clock of a deadline for another process.
    let _ = writeln!(io::stderr(), "muxlock: lock, unlock and renew need the clocks of Linux");
    ExitCode::from(FAILED)
}

pub use lock as renew;
pub use lock as unlock;
