//! The command-line tool: its arguments and exit codes.

mod demo;
mod histogram;
mod inspect;
mod manual;
mod options;
mod page;
mod paint;
mod stage;
mod stopwatch;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The same as clap's code for bad usage: nothing was done.
const NOT_STARTED: u8 = 2;

/// Distributed locks over independent Redis masters, with the Redlock algorithm.
#[derive(Parser)]
#[command(name = "muxlock", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Inspect(inspect::Args),
    Completions(manual::CompletionsArgs),
    Man(manual::ManArgs),
}

/// Parses the arguments and runs the command. Bad usage ends the process here, with code 2.
pub fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let result = match command {
        Command::Demo(args) => demo::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
    };
    result.unwrap_or_else(|error| {
        // If this fails too, there is no way to report it.
        let _ = writeln!(io::stderr(), "muxlock: {error}");
        ExitCode::from(NOT_STARTED)
    })
}
