//! `muxlock completions` and `muxlock man`: the tool's description of itself, for shells and
//! packages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::{Man, generate_to};

use super::Cli;

/// Write shell completions to standard output
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Write one manual page, or all of them into a folder
#[derive(clap::Args)]
pub struct ManArgs {
    /// Folder for all pages, created if it is missing
    folder: Option<PathBuf>,
}

pub fn completions(args: &CompletionsArgs) -> io::Result<ExitCode> {
    let mut command = Cli::command();
    let mut text = Vec::new();
    generate(args.shell, &mut command, "muxlock", &mut text);
    let mut text = String::from_utf8(text).map_err(io::Error::other)?;
    // The generator completes no command behind a resource.
    match args.shell {
        Shell::Bash => {
            let options = options_with_values(&command).join(" | ");
            text += &include_str!("completions/command.bash").replace("OPTIONS", &options);
        }
        Shell::Fish => {
            let options = options_with_values(&command).join(" ");
            text += &include_str!("completions/command.fish").replace("OPTIONS", &options);
        }
        // Its words begin behind the resource.
        Shell::Zsh => text = text.replace("'*::command ", "'*:::command "),
        _ => {}
    }
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The options of `run` after which the next word is a value.
fn options_with_values(command: &Command) -> Vec<String> {
    let run = command.find_subcommand("run").into_iter().flat_map(Command::get_arguments);
    let run = run.filter(|arg| arg.get_action().takes_values());
    let names = run.flat_map(|arg| {
        let short = arg.get_short().map(|name| format!("-{name}"));
        [short, arg.get_long().map(|name| format!("--{name}"))]
    });
    names.flatten().collect()
}

pub fn man(args: &ManArgs) -> io::Result<ExitCode> {
    match &args.folder {
        None => Man::new(Cli::command()).render(&mut io::stdout())?,
        Some(folder) => {
            let failed = |error| io::Error::other(format!("{}: {error}", folder.display()));
            fs::create_dir_all(folder).map_err(failed)?;
            generate_to(Cli::command(), folder).map_err(failed)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
