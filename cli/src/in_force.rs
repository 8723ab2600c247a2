//! The settings in force, in one line that can be compared between hosts.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use muxlock::Config;
use muxlock::settings::RestartGuard;
use muxlock::unstable_tool::{ConfigExt, printable};
use serde_json::{Value as Json, json};

/// No credentials are part of it.
pub struct InForce {
    /// The files that were read.
    files: Vec<String>,
    prefix: String,
    databases: BTreeSet<u32>,
    max_ttl: String,
    guards: BTreeSet<&'static str>,
    mark: String,
}

impl InForce {
    pub fn new(files: &[PathBuf], config: &Config) -> InForce {
        let (masters, common) =
            ((0..config.nodes()).map(|node| config.master(node)), config.common());
        let guard = |guard| match guard {
            RestartGuard::Uptime => "uptime",
            RestartGuard::OwnObservation => "own_observation",
            _ => "off",
        };
        InForce {
            files: files.iter().map(|file| printable(&file.to_string_lossy())).collect(),
            prefix: printable(&String::from_utf8_lossy(common.key_prefix)),
            databases: masters.clone().map(|master| master.db).collect(),
            max_ttl: humantime::format_duration(common.max_ttl).to_string(),
            guards: masters.map(|master| guard(master.restart_guard)).collect(),
            mark: common.mark.to_owned(),
        }
    }

    pub fn as_json(&self) -> Json {
        json!({
            "files": self.files,
            "prefix": self.prefix,
            "databases": self.databases,
            "max_ttl": self.max_ttl,
            "restart_guard": self.guard(),
            "mark": self.mark,
        })
    }

    /// Names and values.
    pub fn labels(&self) -> [(&'static str, String); 6] {
        [
            ("files", self.files.join(", ")),
            ("prefix", self.prefix.clone()),
            ("databases", self.database()),
            ("max_ttl", self.max_ttl.clone()),
            ("restart_guard", self.guard()),
            ("mark", self.mark.clone()),
        ]
    }

    fn database(&self) -> String {
        self.databases.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    }

    fn guard(&self) -> String {
        self.guards.iter().copied().collect::<Vec<_>>().join(", ")
    }

    /// A warning if the restart guard is off.
    pub fn without_guard(&self) -> Option<&'static str> {
        self.guards.contains("off").then_some(
            "restart_guard is off: after a restart of masters, two clients can hold one lock",
        )
    }
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = if self.files.is_empty() { "no file".into() } else { self.files.join(", ") };
        let InForce { prefix, max_ttl, mark, .. } = self;
        let (databases, guards) = (self.database(), self.guard());
        write!(
            f,
            "settings: {files}, prefix \"{prefix}\", database {databases}, max_ttl {max_ttl}, \
             restart_guard {guards}, mark {mark}"
        )
    }
}
