//! `muxlock completions` and `muxlock man`: the tool's description of itself, for shells and
//! packages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;
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
    let mut text = Vec::new();
    generate(args.shell, &mut Cli::command(), "muxlock", &mut text);
    io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
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
