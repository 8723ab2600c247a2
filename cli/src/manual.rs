//! `muxlock completions` and `muxlock man`: the tool's description of itself, for shells and
//! packages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, Command, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::Cli;
use super::options::MASTERS;
use super::output;
use super::paint::capital;

/// Write shell completions to standard output
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Write one manual page, or all of them into a folder
#[derive(clap::Args)]
pub struct ManArgs {
    /// Folder for all pages, created if missing; man1 gets man5 beside it
    folder: Option<PathBuf>,
}

pub fn completions(args: &CompletionsArgs) -> io::Result<ExitCode> {
    let mut command = Cli::command();
    let mut text = Vec::new();
    generate(args.shell, &mut command, "muxlock", &mut text);
    let mut text = String::from_utf8(text).map_err(io::Error::other)?;
    // The generator completes no command behind a resource.
    let options = options_with_values(&command);
    match args.shell {
        // `run` needs Linux.
        _ if options.is_empty() => {}
        Shell::Bash => {
            let bash = include_str!("completions/command.bash");
            text += &bash.replace("OPTIONS", &options.join(" | "));
        }
        Shell::Fish => {
            let fish = include_str!("completions/command.fish");
            text += &fish.replace("OPTIONS", &options.join(" "));
        }
        // Its words begin behind the resource.
        Shell::Zsh => text = text.replace("'*::command ", "'*:::command "),
        _ => {}
    }
    output::write(text)?;
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
    let pages = pages()?;
    let Some(folder) = &args.folder else {
        let page = pages.iter().find(|page| page.file == "muxlock.1");
        output::write(page.map(|page| page.text.clone()).unwrap_or_default())?;
        return Ok(ExitCode::SUCCESS);
    };
    let failed = |error| io::Error::other(format!("{}: {error}", folder.display()));
    for Page { file, text } in pages {
        let is_beside = folder.ends_with("man1") && file.ends_with(".5");
        let folder = if is_beside { folder.with_file_name("man5") } else { folder.clone() };
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join(file), text))
            .map_err(failed)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A manual page.
struct Page {
    file: String,
    text: Vec<u8>,
}

/// The sections of commands that are written by hand, by the names of the commands.
const OWN_SECTIONS: [(&str, &str); 13] = [
    ("muxlock", include_str!("manual/muxlock.roff")),
    ("run", include_str!("manual/run.roff")),
    ("lock", include_str!("manual/lock.roff")),
    ("unlock", include_str!("manual/unlock.roff")),
    ("renew", include_str!("manual/renew.roff")),
    ("demo", include_str!("manual/demo.roff")),
    ("inspect", include_str!("manual/inspect.roff")),
    ("list", include_str!("manual/list.roff")),
    ("top", include_str!("manual/top.roff")),
    ("doctor", include_str!("manual/doctor.roff")),
    ("revoke", include_str!("manual/revoke.roff")),
    ("completions", include_str!("manual/completions.roff")),
    ("man", include_str!("manual/man.roff")),
];

fn pages() -> io::Result<Vec<Page>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let name = |command: &Command| command.get_display_name().unwrap_or("muxlock").to_owned();
    let commands: Vec<_> = [&command].into_iter().chain(command.get_subcommands()).collect();
    let names: Vec<_> = commands.iter().map(|command| name(command)).collect();
    let mut pages = Vec::new();
    for (command, name) in commands.into_iter().zip(&names) {
        let others = names.iter().filter(|other| *other != name);
        let mut see_also: Vec<_> = others.map(|other| (other.as_str(), 1)).collect();
        see_also.push((FILE, 5));
        let text = page(command, name, &see_also)?;
        pages.push(Page { file: format!("{name}.1"), text });
    }
    let mut text = Vec::new();
    title(&mut text, FILE, 5)?;
    text.write_all(include_bytes!("manual/muxlock.toml.roff"))?;
    text.write_all(include_bytes!("manual/durations.roff"))?;
    let see_also: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    references(&mut text, &see_also)?;
    pages.push(Page { file: format!("{FILE}.5"), text });
    Ok(pages)
}

const FILE: &str = "muxlock.toml";

/// The page of a command: what its help has, and its own sections.
fn page(command: &Command, name: &str, see_also: &[(&str, u8)]) -> io::Result<Vec<u8>> {
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let (about, exit_status) = about.split_once("\n\nExit ").unwrap_or((&about, ""));
    // The first paragraph is the name's.
    let description = about.split_once("\n\n").map_or(about, |(_, description)| description);
    let own = command.get_name();
    let has_masters = command.get_arguments().any(is_variable);
    let has_durations = command
        .get_arguments()
        .any(|arg| arg.get_value_names().is_some_and(|names| names.iter().any(|name| name == "D")));
    let man = Man::new(command.clone().long_about(description.to_owned()));
    let mut text = Vec::new();
    title(&mut text, name, 1)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    if has_durations {
        text.write_all(include_bytes!("manual/durations.roff"))?;
    }
    if !exit_status.is_empty() {
        text.write_all(b".SH EXIT STATUS\n")?;
        let exit_status = exit_status.trim_start_matches("status: ");
        Roff::new().text([roman(capital(exit_status))]).to_writer(&mut text)?;
    }
    if has_masters || command.has_subcommands() {
        text.write_all(include_bytes!("manual/files.roff"))?;
    }
    if has_masters {
        variables(command).to_writer(&mut text)?;
    }
    let own = OWN_SECTIONS.iter().find(|(name, _)| *name == own);
    text.write_all(own.map_or("", |(_, sections)| sections).as_bytes())?;
    references(&mut text, see_also)?;
    Ok(text)
}

fn title(text: &mut Vec<u8>, name: &str, section: u8) -> io::Result<()> {
    let line = include_str!("manual/title.roff").replace("NAME", &name.to_uppercase());
    let line = line.replace("SECTION", &section.to_string());
    text.write_all(line.replace("VERSION", env!("CARGO_PKG_VERSION")).as_bytes())
}

/// Whether a variable and the file can set it too.
fn is_variable(arg: &Arg) -> bool {
    arg.get_help_heading() == Some(MASTERS)
}

fn variables(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["ENVIRONMENT"]);
    for arg in command.get_arguments().filter(|arg| is_variable(arg)) {
        let name = format!("MUXLOCK_{}", arg.get_id().as_str().to_ascii_uppercase());
        roff.control("TP", []).text([bold(name)]);
        roff.text([bold(format!("--{}", arg.get_long().unwrap_or_default()))]);
    }
    roff
}

fn references(text: &mut Vec<u8>, pages: &[(&str, u8)]) -> io::Result<()> {
    let last = pages.len().saturating_sub(1);
    text.write_all(b".SH SEE ALSO\n")?;
    for (number, (page, section)) in pages.iter().enumerate() {
        let comma = if number == last { "" } else { "," };
        writeln!(text, ".BR {} ({section}){comma}", page.replace('-', r"\-"))?;
    }
    Ok(())
}
