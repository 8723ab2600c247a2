//! The options of every command that talks to masters.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::time::Duration;

use clap::{ValueEnum, ValueHint};
use muxlock::Builder;

use super::settings::{Flags, Settings, settings};
pub use super::settings::{duration, shown};

/// The heading of these options in the help.
pub const MASTERS: &str = "Masters";

#[derive(clap::Args, Default)]
#[command(next_help_heading = MASTERS)]
#[command(after_help = "D is a duration with a unit, such as 250ms, 10s or 1m30s.")]
pub struct Options {
    /// Address of a master, repeatable [env: MUXLOCK_NODES]
    #[arg(long = "node", value_name = "URL")]
    nodes: Vec<String>,

    /// File with masters and settings [env: MUXLOCK_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Default user in addresses [env: MUXLOCK_USER]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// File with the default password [env: MUXLOCK_PASSWORD_FILE]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    password_file: Option<String>,

    /// Prefix of every key [env: MUXLOCK_PREFIX]
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,

    /// Longest TTL that any client uses [env: MUXLOCK_MAX_TTL] [default: 30s]
    #[arg(long, value_name = "D", value_parser = duration_text)]
    max_ttl: Option<String>,

    /// Time limit for an answer [env: MUXLOCK_NODE_TIMEOUT] [default: 50ms]
    #[arg(long, value_name = "D", value_parser = duration_text)]
    node_timeout: Option<String>,

    /// Connection timeout [env: MUXLOCK_CONNECT_TIMEOUT] [default: 500ms]
    #[arg(long, value_name = "D", value_parser = duration_text)]
    connect_timeout: Option<String>,

    /// Restart guard: uptime, own_observation or off [default: uptime]
    #[arg(long, value_name = "HOW", hide_possible_values = true)]
    restart_guard: Option<RestartGuardName>,

    /// Key that shows an earlier FLUSHALL [env: MUXLOCK_FLUSH_MARKER]
    #[arg(long, value_name = "KEY")]
    flush_marker: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum RestartGuardName {
    /// Those whose uptime is short
    Uptime,
    /// All, from when this client first sees them
    OwnObservation,
    /// None: for development
    Off,
}

fn duration_text(text: &str) -> Result<String, String> {
    duration(text).map(|_| text.to_owned())
}

/// How long to wait.
#[cfg(target_os = "linux")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    For(Duration),
    Forever,
}

#[cfg(target_os = "linux")]
impl Wait {
    /// As a duration, which no clock outlasts if it is without end.
    pub fn longest(self) -> Duration {
        match self {
            Wait::For(duration) => duration,
            Wait::Forever => Duration::MAX,
        }
    }
}

/// A duration with a unit, or `forever`.
#[cfg(target_os = "linux")]
pub fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        _ if text.starts_with(|first: char| first.is_ascii_digit()) => {
            duration(text).map(Wait::For)
        }
        _ => Err("it is neither a time, such as 10m, nor forever".to_owned()),
    }
}

impl Options {
    /// As the settings say. Warnings go to standard error.
    pub fn builder(&self) -> io::Result<Builder> {
        self.warned_settings().map(|settings| settings.builder)
    }

    /// All settings. Warnings go to standard error.
    pub fn warned_settings(&self) -> io::Result<Settings> {
        let settings = self.settings().map_err(io::Error::other)?;
        for warning in &settings.warnings {
            let _ = writeln!(io::stderr(), "muxlock: {warning}");
        }
        Ok(settings)
    }

    /// The settings of the command line, the environment and the file.
    pub fn settings(&self) -> Result<Settings, String> {
        let guard = self.restart_guard.and_then(|guard| guard.to_possible_value());
        let guard = guard.map(|guard| guard.get_name().to_owned());
        let texts = [
            ("user", &self.user),
            ("password_file", &self.password_file),
            ("prefix", &self.prefix),
            ("max_ttl", &self.max_ttl),
            ("node_timeout", &self.node_timeout),
            ("connect_timeout", &self.connect_timeout),
            ("restart_guard", &guard),
            ("flush_marker", &self.flush_marker),
        ];
        let given = |(key, text): (_, &Option<String>)| Some((key, text.clone()?));
        let texts: BTreeMap<_, _> = texts.into_iter().filter_map(given).collect();
        let flags = Flags { nodes: &self.nodes, config: self.config.as_deref(), texts };
        settings(&flags, env::vars_os())
    }
}
