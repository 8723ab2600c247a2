//! The command-line tool: its arguments and exit codes.

mod authority;
mod demo;
mod doctor;
mod histogram;
mod holder;
mod in_force;
mod inspect;
mod list;
mod manual;
mod options;
mod output;
mod page;
mod paint;
mod queue;
mod read_locks;
mod revoke;
#[cfg(target_os = "linux")]
mod run;
#[cfg(not(target_os = "linux"))]
#[path = "run/elsewhere.rs"]
mod run;
mod settings;
mod stage;
#[cfg(target_os = "linux")]
mod step;
#[cfg(not(target_os = "linux"))]
#[path = "step/elsewhere.rs"]
mod step;
mod stopwatch;
mod wire;

use std::env;
use std::io::{self, Write};
use std::process::{self, ExitCode};

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};
use muxlock::unstable_tool::{explained, printable};
use options::shown;

/// The same as clap's code for bad usage: nothing was done, or the result could not be written.
const NOT_STARTED: u8 = 2;

/// Commands that exit with [`run::FAILED`]: other codes mean something else there.
const HOLDERS: [&str; 4] = ["run", "lock", "unlock", "renew"];

/// Distributed locks over independent Redis masters, with the Redlock algorithm.
#[derive(Parser)]
#[command(name = "muxlock", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Lock(step::Args),
    Unlock(step::UnlockArgs),
    Renew(step::RenewArgs),
    Demo(demo::Args),
    Inspect(inspect::Args),
    List(list::Args),
    Top(list::TopArgs),
    Doctor(doctor::Args),
    Revoke(revoke::Args),
    Completions(manual::CompletionsArgs),
    Man(manual::ManArgs),
}

/// Parses the arguments and runs the command. Bad usage ends the process here.
fn main() -> ExitCode {
    let mut args = env::args_os();
    let name = args.nth(1);
    if let Some(code) =
        name.as_ref().and_then(|name| step::own(name).or_else(|| run::own(name, args)))
    {
        return code;
    }
    let Cli { command } = Cli::try_parse().map_err(without_addresses).unwrap_or_else(|error| {
        let printed = error.print().and_then(|()| io::stdout().flush());
        if !error.use_stderr() {
            match output::is_read(printed) {
                Ok(_) => process::exit(0),
                Err(error) => complain(&error),
            }
        }
        let is_holder = name.is_some_and(|name| HOLDERS.iter().any(|it| name == *it));
        // For these, any other code may be the command's.
        process::exit(i32::from(if is_holder { run::FAILED } else { NOT_STARTED }));
    });
    let result = match command {
        Command::Run(args) => Ok(run::run(&args)),
        Command::Lock(args) => Ok(step::lock(&args)),
        Command::Unlock(args) => Ok(step::unlock(&args)),
        Command::Renew(args) => Ok(step::renew(&args)),
        Command::Demo(args) => demo::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::List(args) => list::run(&args),
        Command::Top(args) => list::run_top(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Revoke(args) => revoke::run(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
    };
    result.unwrap_or_else(|error| {
        complain(&error);
        ExitCode::from(NOT_STARTED)
    })
}

fn complain(error: &io::Error) {
    // If this fails too, there is no way to report it.
    let text: Vec<String> = explained(error).lines().map(printable).collect();
    let _ = writeln!(io::stderr(), "muxlock: {}", text.join("\n"));
}

/// Arguments in the wrong place may be addresses, with their passwords.
fn without_addresses(mut error: clap::Error) -> clap::Error {
    let masked = |(kind, value): (ContextKind, &ContextValue)| match value {
        // The name of a flag.
        _ if kind == ContextKind::SuggestedArg => None,
        ContextValue::String(text) => {
            (shown(text) != text).then(|| (kind, ContextValue::String("***".to_owned())))
        }
        // Advice that repeats the argument.
        ContextValue::StyledStrs(texts) => {
            let is_odd = texts.iter().any(|text| shown(&text.to_string()) != text.to_string());
            is_odd.then(|| (kind, ContextValue::StyledStrs(Vec::new())))
        }
        _ => None,
    };
    let masked: Vec<_> = error.context().filter_map(masked).collect();
    for (kind, value) in masked {
        error.insert(kind, value);
    }
    error
}
