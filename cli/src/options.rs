//! The options of every command that talks to masters, and where their values come from.
//!
//! For each setting the first of these counts: the flag, the environment variable, the file, the
//! library's default.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use muxlock::settings::RestartGuard;
use muxlock::{Builder, Redlock};
use toml::{Table, Value};

/// Most bytes of a configuration file, and of a password file.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// The settings that a configuration file can contain.
const KEYS: [&str; 11] = [
    "nodes",
    "user",
    "password_file",
    "prefix",
    "max_ttl",
    "node_timeout",
    "connect_timeout",
    "drift_factor",
    "restart_guard",
    "flush_marker",
    "fencing_key",
];

#[derive(clap::Args, Default)]
#[command(next_help_heading = "Masters")]
pub struct Options {
    /// Address of a master, repeatable [env: MUXLOCK_NODES]
    #[arg(long = "node", value_name = "URL")]
    nodes: Vec<String>,

    /// File with masters and settings [env: MUXLOCK_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Prefix of every key [env: MUXLOCK_PREFIX]
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,

    /// Longest TTL that any client uses [env: MUXLOCK_MAX_TTL] [default: 30s]
    #[arg(long, value_name = "D", value_parser = duration)]
    max_ttl: Option<Duration>,

    /// Time limit for an answer [env: MUXLOCK_NODE_TIMEOUT] [default: 50ms]
    #[arg(long, value_name = "D", value_parser = duration)]
    node_timeout: Option<Duration>,

    /// Connection timeout [env: MUXLOCK_CONNECT_TIMEOUT] [default: 500ms]
    #[arg(long, value_name = "D", value_parser = duration)]
    connect_timeout: Option<Duration>,

    /// Allowed clock drift [env: MUXLOCK_DRIFT_FACTOR] [default: 0.01]
    #[arg(long, value_name = "F")]
    drift_factor: Option<f64>,

    /// Restart guard: uptime, own_observation or off [default: uptime]
    #[arg(long, value_name = "HOW", hide_possible_values = true)]
    restart_guard: Option<RestartGuardName>,

    /// Key used to detect FLUSHALL [env: MUXLOCK_FLUSH_MARKER]
    #[arg(long, value_name = "KEY")]
    flush_marker: Option<String>,

    /// Key of the fencing counters [env: MUXLOCK_FENCING_KEY]
    #[arg(long, value_name = "KEY")]
    fencing_key: Option<String>,
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

impl From<RestartGuardName> for RestartGuard {
    fn from(guard: RestartGuardName) -> RestartGuard {
        match guard {
            RestartGuardName::Uptime => RestartGuard::Uptime,
            RestartGuardName::OwnObservation => RestartGuard::OwnObservation,
            RestartGuardName::Off => RestartGuard::Off,
        }
    }
}

/// A duration with a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.chars().all(|char| char.is_ascii_digit()) {
        return Err(format!("it has no unit: write {text}s or {text}ms"));
    }
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

/// The settings, and the warnings about them.
pub struct Settings {
    pub builder: Builder,
    pub warnings: Vec<String>,
}

/// Where values come from that are not flags.
struct Sources<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    file: Option<File>,
}

struct File {
    path: PathBuf,
    table: Table,
}

impl Options {
    /// As the settings say. Warnings go to standard error.
    pub fn builder(&self) -> io::Result<Builder> {
        let settings = self.settings().map_err(io::Error::other)?;
        for warning in &settings.warnings {
            let _ = writeln!(io::stderr(), "muxlock: {warning}");
        }
        Ok(settings.builder)
    }

    /// The settings of the command line, the environment and the file.
    pub fn settings(&self) -> Result<Settings, String> {
        let odd = env::vars_os().find(|(name, value)| {
            name.to_string_lossy().starts_with("MUXLOCK_") && value.to_str().is_none()
        });
        if let Some((name, _)) = odd {
            return Err(format!("{} is not UTF-8", name.to_string_lossy()));
        }
        // An empty variable counts as not set.
        self.settings_from(&|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn settings_from(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let mut warnings = Vec::new();
        let path = self.config_path(variable);
        let file = path.map(|path| File::read(path, &mut warnings)).transpose()?;
        let sources = Sources { variable, file };
        let mut builder = self.with_nodes(Redlock::builder(), &sources, &mut warnings)?;
        if let Some(prefix) = sources.text("prefix", &self.prefix)? {
            builder = builder.key_prefix(prefix);
        }
        if let Some(max_ttl) = sources.duration("max_ttl", self.max_ttl)? {
            builder = builder.max_ttl(max_ttl);
        }
        if let Some(node_timeout) = sources.duration("node_timeout", self.node_timeout)? {
            builder = builder.node_timeout(node_timeout);
        }
        if let Some(timeout) = sources.duration("connect_timeout", self.connect_timeout)? {
            builder = builder.connect_timeout(timeout);
        }
        if let Some(factor) = sources.factor(self.drift_factor)? {
            builder = builder.drift_factor(factor);
        }
        if let Some(guard) = sources.guard(self.restart_guard)? {
            builder = builder.restart_guard(guard.into());
        }
        if let Some(marker) = sources.text("flush_marker", &self.flush_marker)? {
            builder = builder.flush_marker(marker);
        }
        if let Some(key) = sources.text("fencing_key", &self.fencing_key)? {
            builder = builder.fencing_key(key);
        }
        Ok(Settings { builder, warnings })
    }

    /// The first file that is named, or that exists.
    fn config_path(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
        let named = self.config.clone().or_else(|| variable("MUXLOCK_CONFIG").map(PathBuf::from));
        named.or_else(|| {
            let home = variable("XDG_CONFIG_HOME").map(PathBuf::from);
            let home = home.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")));
            let own = home.map(|home| home.join("muxlock/config.toml"));
            let usual = [own, Some(PathBuf::from("/etc/muxlock.toml"))];
            usual.into_iter().flatten().find(|path| path.exists())
        })
    }

    fn with_nodes(
        &self,
        builder: Builder,
        sources: &Sources<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Builder, String> {
        if !self.nodes.is_empty() {
            if self.nodes.iter().any(|url| has_password(url)) {
                let way = "use MUXLOCK_NODES or a file";
                warnings.push(format!("--node has a password, which ps shows to others: {way}"));
            }
            return Ok(builder.nodes(self.nodes.iter().map(String::as_str)));
        }
        if let Some(list) = (sources.variable)("MUXLOCK_NODES") {
            return Ok(builder.nodes_from(&list));
        }
        let nodes = sources.file.as_ref().map(File::nodes).transpose()?.unwrap_or_default();
        if nodes.is_empty() {
            let file = "a file (/etc/muxlock.toml)";
            return Err(format!("no masters: give --node, MUXLOCK_NODES or {file}"));
        }
        Ok(builder.nodes(nodes))
    }
}

impl Sources<'_> {
    /// The variable's text, with its name for errors.
    fn variable(&self, setting: &str) -> Option<(String, String)> {
        let name = format!("MUXLOCK_{}", setting.to_ascii_uppercase());
        let value = (self.variable)(&name)?;
        Some((name, value))
    }

    fn in_file(&self, setting: &str) -> Option<(&File, &Value)> {
        let file = self.file.as_ref()?;
        Some((file, file.table.get(setting)?))
    }

    /// The text of a setting, from the variable or the file.
    fn text(&self, setting: &str, flag: &Option<String>) -> Result<Option<String>, String> {
        if let Some(flag) = flag {
            return Ok(Some(flag.clone()));
        }
        if let Some((_, value)) = self.variable(setting) {
            return Ok(Some(value));
        }
        self.in_file(setting).map(|(file, value)| file.text(setting, value)).transpose()
    }

    /// The text of a setting, and the variable or file that it comes from.
    fn named(&self, setting: &str) -> Result<Option<(String, String)>, String> {
        if let Some(variable) = self.variable(setting) {
            return Ok(Some(variable));
        }
        let in_file = |(file, value): (&File, &Value)| {
            Ok((file.setting_name(setting), file.text(setting, value)?))
        };
        self.in_file(setting).map(in_file).transpose()
    }

    fn duration(&self, setting: &str, flag: Option<Duration>) -> Result<Option<Duration>, String> {
        if flag.is_some() {
            return Ok(flag);
        }
        let Some((name, text)) = self.named(setting)? else {
            return Ok(None);
        };
        duration(&text).map(Some).map_err(|why| format!("{name} is {:?}: {why}", shown(&text)))
    }

    fn factor(&self, flag: Option<f64>) -> Result<Option<f64>, String> {
        if flag.is_some() {
            return Ok(flag);
        }
        if self.variable("drift_factor").is_none() {
            match self.in_file("drift_factor") {
                Some((_, Value::Float(factor))) => return Ok(Some(*factor)),
                Some((_, Value::Integer(factor))) => return Ok(Some(*factor as f64)),
                _ => {}
            }
        }
        let Some((name, text)) = self.named("drift_factor")? else {
            return Ok(None);
        };
        let why = || format!("{name} is {:?}: it is not a number", shown(&text));
        let factor = text.parse().map_err(|_| why())?;
        Ok(Some(factor))
    }

    fn guard(&self, flag: Option<RestartGuardName>) -> Result<Option<RestartGuardName>, String> {
        if flag.is_some() {
            return Ok(flag);
        }
        let Some((name, text)) = self.named("restart_guard")? else {
            return Ok(None);
        };
        let guard = RestartGuardName::from_str(&text, false);
        let known = "uptime, own_observation or off";
        guard.map(Some).map_err(|_| format!("{name} is {:?}: it must be {known}", shown(&text)))
    }
}

impl File {
    fn read(path: PathBuf, warnings: &mut Vec<String>) -> Result<File, String> {
        let shown = path.display();
        let text = read(&path)?;
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| line_at(&text, span.start));
            format!("{shown}, line {line}: {}", error.message())
        })?;
        if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let line = line_of(&text, key);
            let known = KEYS.join(", ");
            let key = self::shown(key);
            return Err(format!("{shown}, line {line}: {key} is not known; known are {known}"));
        }
        let file = File { path, table };
        let mut warn = |path: &Path| {
            if is_open(path) {
                let shown = path.display();
                warnings.push(format!("{shown} has a password, and others may read it: chmod 600"));
            }
        };
        if file.urls()?.iter().any(|url| has_password(url)) {
            warn(&file.path);
        }
        if let Some(path) = file.table.get("password_file").and_then(Value::as_str) {
            warn(&file.path.parent().unwrap_or(Path::new("")).join(path));
        }
        Ok(file)
    }

    fn text(&self, setting: &str, value: &Value) -> Result<String, String> {
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| format!("{}: {setting} is not a text", self.path.display()))
    }

    fn setting_name(&self, setting: &str) -> String {
        format!("{}: {setting}", self.path.display())
    }

    fn urls(&self) -> Result<Vec<&str>, String> {
        let Some(nodes) = self.table.get("nodes") else {
            return Ok(Vec::new());
        };
        let urls = nodes.as_array().and_then(|all| all.iter().map(Value::as_str).collect());
        urls.ok_or_else(|| format!("{} is not a list of texts", self.setting_name("nodes")))
    }

    /// The masters. Those without credentials get the user and the password of the file.
    fn nodes(&self) -> Result<Vec<String>, String> {
        let text = |setting| {
            let value = self.table.get(setting);
            value.map(|value| self.text(setting, value)).transpose()
        };
        let user = text("user")?.unwrap_or_default();
        let Some(path) = text("password_file")? else {
            if !user.is_empty() {
                return Err(format!("{}: user needs password_file", self.path.display()));
            }
            return Ok(self.urls()?.into_iter().map(str::to_owned).collect());
        };
        // A relative path begins at the folder of this file.
        let path = self.path.parent().unwrap_or(Path::new("")).join(path);
        // By mistake, the setting may be the password.
        let setting = self.setting_name("password_file");
        let password = match fs::metadata(&path) {
            Ok(_) => read(&path)?,
            Err(error) => return Err(format!("{setting}: {error}")),
        };
        let password = password.trim_end_matches(['\r', '\n']);
        if password.is_empty() {
            return Err(format!("{setting}: the file is empty; it should have the password"));
        }
        let credentials = format!("{}:{}@", encoded(&user), encoded(password));
        let with = |url: &str| match url.split_once("://") {
            Some((scheme, rest)) if !rest.contains('@') => {
                format!("{scheme}://{credentials}{rest}")
            }
            _ => url.to_owned(),
        };
        Ok(self.urls()?.into_iter().map(with).collect())
    }
}

/// The text of a small file.
fn read(path: &Path) -> Result<String, String> {
    let name = path.to_string_lossy();
    // It looks like an address, which might contain a password.
    let name = if name.contains("://") { "***" } else { &*name };
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let mut text = String::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{name}: it has more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(text)
}

fn line_at(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// Where a key stands that the file has.
fn line_of(text: &str, key: &str) -> usize {
    let has_it = |line: &str| line.trim_start_matches(['[', ' ', '\t', '"']).starts_with(key);
    1 + text.lines().position(has_it).unwrap_or(0)
}

/// A value that might be an address by mistake is not shown.
pub fn shown(text: &str) -> &str {
    let marks = ["@", "://", "password", "passwd", "auth=", "pass="];
    let lower = text.to_ascii_lowercase();
    if marks.iter().any(|mark| lower.contains(mark)) { "***" } else { text }
}

fn has_password(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    rest.rsplit_once('@').is_some_and(|(credentials, _)| credentials.contains(':'))
}

/// Whether other users may read it.
#[cfg(unix)]
fn is_open(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open(_: &Path) -> bool {
    false
}

/// Percent-encoded for the credentials of a URL.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
