//! The settings that services and the command-line tool share: environment variables and one file.
//!
//! For each setting the first of these counts: the tool's flag, the variable, the file, the
//! default.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::builder::Builder;
use super::error::ConfigError;
use super::options::RestartGuard;
use super::url;

/// Most bytes of a configuration file, and of a password file.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// How similar a name must be to be meant, from 0 to 1.
const SIMILARITY_MIN: f64 = 0.7;
/// The keys of a file that are about addresses, and the table with defaults for `muxlock run`.
const KEYS: [&str; 4] = ["nodes", "user", "password_file", RUN];
const RUN: &str = "run";

type Setter = fn(Builder, &str) -> Result<Builder, String>;

/// Each other setting, by its key in the file.
const SETTERS: [(&str, Setter); 6] = [
    ("prefix", |builder, text| Ok(builder.key_prefix(text))),
    ("max_ttl", |builder, text| Ok(builder.max_ttl(duration(text)?))),
    ("node_timeout", |builder, text| Ok(builder.node_timeout(duration(text)?))),
    ("connect_timeout", |builder, text| Ok(builder.connect_timeout(duration(text)?))),
    ("restart_guard", |builder, text| Ok(builder.restart_guard(restart_guard(text)?))),
    ("flush_marker", |builder, text| Ok(builder.flush_marker(text))),
];

impl Builder {
    /// The settings that the command-line tool uses too: those of the environment variables
    /// `MUXLOCK_NODES`, `MUXLOCK_PASSWORD_FILE`, `MUXLOCK_PREFIX`, `MUXLOCK_MAX_TTL` and so on, and
    /// of a file. Feature `env`.
    ///
    /// The file is the first of these: the one that `MUXLOCK_CONFIG` names,
    /// `~/.config/muxlock/config.toml` and `/etc/muxlock.toml`. A variable takes precedence over
    /// the file. An empty variable counts as unset. The page [tool](crate::guide::tool) lists all
    /// variables and keys. Defaults for `muxlock run` in the file are ignored.
    ///
    /// On success, the builder has at least one master, and a setter replaces a setting of the
    /// environment. [`node`](Builder::node) and [`nodes`](Builder::nodes) add masters to those of
    /// the environment. If other users can read a file with a password, the client logs a warning.
    ///
    /// # Errors
    /// [`ConfigError::Env`] names the variable, or the file and its line. Correct it there.
    ///
    /// ```no_run
    /// use muxlock::Builder;
    /// use muxlock::settings::Waiting;
    ///
    /// // MUXLOCK_NODES="redis://10.0.0.1, redis://10.0.0.2, redis://10.0.0.3"
    /// let redlock = Builder::from_env()?.waiting(Waiting::Retry).build()?;
    /// # Ok::<(), muxlock::error::ConfigError>(())
    /// ```
    pub fn from_env() -> Result<Builder, ConfigError> {
        let settings = settings(&Flags::default(), env::vars_os());
        let settings = settings.map_err(|reason| ConfigError::Env { reason })?;
        for warning in settings.warnings {
            log::warn!(target: "muxlock", "{warning}");
        }
        Ok(settings.builder)
    }
}

/// The flags of the tool.
#[derive(Default)]
pub struct Flags<'a> {
    /// The addresses; `None` if there is no such flag.
    pub nodes: Option<&'a [String]>,
    /// The configuration file.
    pub config: Option<&'a Path>,
    /// The value of each other flag that was given, by the setting's key in the file.
    pub texts: BTreeMap<&'static str, String>,
}

/// What flags, variables and a file say.
pub struct Settings {
    /// With at least one node.
    pub builder: Builder,
    /// For the user.
    pub warnings: Vec<String>,
    /// Defaults for the flags of `muxlock run`.
    #[cfg_attr(not(feature = "unstable-tool"), allow(dead_code))]
    pub run: Vec<Setting>,
}

/// The text of a setting. Not `Debug`: by mistake, it may be a password.
pub struct Setting {
    /// Its key in the file.
    #[cfg_attr(not(feature = "unstable-tool"), allow(dead_code))]
    pub key: String,
    /// Its value. Numbers are as in the file.
    pub text: String,
    /// The flag or variable, or the file, the line and the key.
    pub origin: String,
}

/// Reads the file and all settings. An error names its origin, and contains no secret.
pub fn settings(
    flags: &Flags<'_>,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Settings, String> {
    let mut warnings = Vec::new();
    let variables = texts_of(variables)?;
    let path = config_path(flags, &variables);
    let file = path.map(|path| File::read(path, &mut warnings)).transpose()?;
    let sources = Sources { flags, variables, file };
    let mut builder = Builder::default().nodes(sources.nodes(&mut warnings)?);
    for (key, setter) in SETTERS {
        if let Some(Setting { text, origin, .. }) = sources.setting(key)? {
            let wrong = |why| format!("{origin} is {:?}: {why}", shown(&text));
            builder = setter(builder, &text).map_err(wrong)?;
        }
    }
    let run = sources.file.map(|file| file.run).unwrap_or_default();
    Ok(Settings { builder, warnings, run })
}

/// A duration with a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.chars().all(|char| char.is_ascii_digit()) {
        return Err(format!("it has no unit: write {text}s or {text}ms"));
    }
    humantime::parse_duration(text).map_err(|_| "it is not a time, such as 30s or 1h30m".into())
}

fn restart_guard(text: &str) -> Result<RestartGuard, String> {
    url::parse_restart_guard(text).map_err(|_| {
        let meant = similar(text, &["uptime", "own_observation", "off"]);
        format!("it must be uptime, own_observation or off{meant}")
    })
}

/// The question whether the most similar of these names is meant; empty if none is similar.
pub fn similar(text: &str, names: &[&str]) -> String {
    let rated = names.iter().map(|name| (strsim::jaro(text, name), name));
    let most = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    let similar = most.filter(|(similarity, _)| *similarity > SIMILARITY_MIN);
    similar.map_or_else(String::new, |(_, name)| format!("; did you mean {name}?"))
}

/// A value that might be an address by mistake is not shown.
pub fn shown(text: &str) -> &str {
    let marks = ["@", "://", "password", "passwd", "auth=", "pass="];
    let lower = text.to_ascii_lowercase();
    if marks.iter().any(|mark| lower.contains(mark)) { "***" } else { text }
}

/// The variables that are set.
fn texts_of(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<BTreeMap<String, String>, String> {
    let mut texts = BTreeMap::new();
    for (name, value) in variables {
        let name = name.to_string_lossy().into_owned();
        match value.into_string() {
            // An empty variable counts as not set.
            Ok(text) if text.is_empty() => {}
            Ok(text) => drop(texts.insert(name, text)),
            Err(_) if name.starts_with("MUXLOCK_") => return Err(format!("{name} is not UTF-8")),
            Err(_) => {}
        }
    }
    Ok(texts)
}

/// The first file that is named, or that exists.
fn config_path(flags: &Flags<'_>, variables: &BTreeMap<String, String>) -> Option<PathBuf> {
    let variable = |name| variables.get(name).map(PathBuf::from);
    let named = flags.config.map(Path::to_owned).or_else(|| variable("MUXLOCK_CONFIG"));
    named.or_else(|| {
        let home = || Some(variable("HOME")?.join(".config"));
        let own = variable("XDG_CONFIG_HOME").or_else(home);
        let own = own.map(|home| home.join("muxlock/config.toml"));
        let usual = [own, Some(PathBuf::from("/etc/muxlock.toml"))];
        usual.into_iter().flatten().find(|path| path.exists())
    })
}

/// Where values come from.
struct Sources<'a> {
    flags: &'a Flags<'a>,
    variables: BTreeMap<String, String>,
    file: Option<File>,
}

impl Sources<'_> {
    /// From the flag or the variable.
    fn given(&self, key: &str) -> Option<Setting> {
        let flag = || (format!("--{}", key.replace('_', "-")), self.flags.texts.get(key));
        let name = format!("MUXLOCK_{}", key.to_ascii_uppercase());
        let variable = self.variables.get(&name);
        let (origin, text) = [flag(), (name, variable)].into_iter().find(|(_, it)| it.is_some())?;
        Some(Setting { key: key.to_owned(), text: text?.clone(), origin })
    }

    fn in_file(&self, key: &str) -> Result<Option<Setting>, String> {
        let Some(file) = &self.file else {
            return Ok(None);
        };
        file.entry(key)
            .map(|entry| match entry.value {
                Value::Number(_) => Err(format!("{} is not a text", file.origin(entry))),
                _ => file.setting(entry),
            })
            .transpose()
    }

    fn setting(&self, key: &str) -> Result<Option<Setting>, String> {
        let given = self.given(key);
        if given.is_some() { Ok(given) } else { self.in_file(key) }
    }

    /// The addresses, with credentials. User and password of the file are only for its addresses:
    /// other servers do not receive them.
    fn nodes(&self, warnings: &mut Vec<String>) -> Result<Vec<String>, String> {
        let flag = self.flags.nodes.unwrap_or_default();
        if flag.iter().any(|url| has_password(url)) {
            let way = "use MUXLOCK_NODES or a file";
            warnings.push(format!("--node has a password, which ps shows to others: {way}"));
        }
        let mut is_of_file = false;
        let urls = match self.variables.get("MUXLOCK_NODES") {
            _ if !flag.is_empty() => flag.to_vec(),
            Some(list) => url::addresses(list).map(str::to_owned).collect(),
            None => {
                is_of_file = true;
                self.file.as_ref().map(File::urls).transpose()?.unwrap_or_default().to_vec()
            }
        };
        if urls.is_empty() {
            let flag = if self.flags.nodes.is_some() { "--node, " } else { "" };
            let file = "a file (/etc/muxlock.toml)";
            return Err(format!("no masters: give {flag}MUXLOCK_NODES or {file}"));
        }
        let found = |key| match is_of_file {
            true => self.setting(key),
            false => Ok(self.given(key)),
        };
        let user = found("user")?;
        let Some(setting) = found("password_file")? else {
            return match user {
                Some(user) => {
                    Err(format!("{} needs password_file or MUXLOCK_PASSWORD_FILE", user.origin))
                }
                None => Ok(urls),
            };
        };
        let is_in_file = self.given("password_file").is_none();
        let base = self.file.as_ref().filter(|_| is_in_file).and_then(|file| file.path.parent());
        // In the file, a relative path begins at its folder.
        let path = base.unwrap_or(Path::new("")).join(&setting.text);
        let password = password(&path, &setting.origin)?;
        warn_if_open(&path, warnings);
        let user = user.map(|user| user.text).unwrap_or_default();
        let credentials = format!("{}:{}@", encoded(&user), encoded(&password));
        let with = |url: String| match url.split_once("://") {
            Some((scheme, rest)) if !rest.contains('@') => {
                format!("{scheme}://{credentials}{rest}")
            }
            _ => url,
        };
        Ok(urls.into_iter().map(with).collect())
    }
}

/// The password in a file. By mistake, the setting may be the password, so an error names only the
/// setting until it is known to be a path.
fn password(path: &Path, origin: &str) -> Result<String, String> {
    fs::metadata(path).map_err(|error| format!("{origin}: {error}"))?;
    let text = read(path)?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(format!("{origin}: the file is empty; it should have the password")),
        password => Ok(password.to_owned()),
    }
}

struct File {
    path: PathBuf,
    entries: Vec<Entry>,
    run: Vec<Setting>,
}

struct Entry {
    key: String,
    lineno: usize,
    value: Value,
}

enum Value {
    Text(String),
    Number(String),
    Texts(Vec<String>),
    Table(Vec<Entry>),
    Other,
}

/// What a table has, with the line of each key.
fn entries(text: &str, table: &DeTable<'_>) -> Vec<Entry> {
    let entries = table.iter().map(|(key, value)| Entry {
        key: key.get_ref().to_string(),
        lineno: lineno(text, key.span().start),
        value: match value.get_ref() {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) => Value::Number(number.to_string()),
            DeValue::Float(number) => Value::Number(number.to_string()),
            DeValue::Array(values) => {
                let texts = values.iter().map(|value| value.get_ref().as_str().map(str::to_owned));
                texts.collect::<Option<_>>().map_or(Value::Other, Value::Texts)
            }
            DeValue::Table(table) => Value::Table(entries(text, table)),
            DeValue::Boolean(_) | DeValue::Datetime(_) => Value::Other,
        },
    });
    entries.collect()
}

impl File {
    fn read(path: PathBuf, warnings: &mut Vec<String>) -> Result<File, String> {
        let text = read(&path)?;
        let table = DeTable::parse(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            format!("{}, line {}: {}", path.display(), lineno(&text, at), error.message())
        })?;
        let entries = entries(&text, table.get_ref());
        let mut file = File { path, entries, run: Vec::new() };
        let known: Vec<_> = KEYS.into_iter().chain(SETTERS.map(|(key, _)| key)).collect();
        if let Some(entry) = file.entries.iter().find(|it| !known.contains(&it.key.as_str())) {
            return Err(unknown(&file.origin(entry), &entry.key, &known));
        }
        if file.urls()?.iter().any(|url| has_password(url)) {
            warn_if_open(&file.path, warnings);
        }
        file.run = match file.entry(RUN) {
            None => Vec::new(),
            Some(Entry { value: Value::Table(entries), .. }) => {
                entries.iter().map(|entry| file.setting(entry)).collect::<Result<_, _>>()?
            }
            Some(entry) => return Err(format!("{} is not a table", file.origin(entry))),
        };
        Ok(file)
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The file, the line and the key, for errors.
    fn origin(&self, entry: &Entry) -> String {
        let key = if entry.key == "password_file" { &entry.key } else { shown(&entry.key) };
        format!("{}, line {}: {key}", self.path.display(), entry.lineno)
    }

    fn setting(&self, entry: &Entry) -> Result<Setting, String> {
        let origin = self.origin(entry);
        match &entry.value {
            Value::Text(text) | Value::Number(text) => {
                Ok(Setting { key: entry.key.clone(), text: text.clone(), origin })
            }
            Value::Texts(_) | Value::Table(_) | Value::Other => {
                Err(format!("{origin} is not a text"))
            }
        }
    }

    fn urls(&self) -> Result<&[String], String> {
        match self.entry("nodes") {
            None => Ok(&[]),
            Some(Entry { value: Value::Texts(urls), .. }) => Ok(urls),
            Some(entry) => Err(format!("{} is not a list of texts", self.origin(entry))),
        }
    }
}

/// The error for a key that a table cannot have.
pub fn unknown(origin: &str, key: &str, known: &[&str]) -> String {
    match similar(key, known).as_str() {
        "" => format!("{origin} is not known; known are {}", known.join(", ")),
        meant => format!("{origin} is not known{meant}"),
    }
}

#[cfg(unix)]
fn is_pipe(kind: fs::FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&kind)
}

#[cfg(not(unix))]
fn is_pipe(_: fs::FileType) -> bool {
    false
}

/// The text of a small file.
fn read(path: &Path) -> Result<String, String> {
    let name = path.to_string_lossy();
    // It looks like an address, which might contain a password.
    let name = if name.contains("://") { "***" } else { &*name };
    let failed = |error: io::Error| format!("{name}: {error}");
    // Opening a pipe waits for a writer, which those of a shell have.
    let of_shell = ["/dev/fd", "/proc/self/fd", "/dev/stdin"];
    let is_of_shell = of_shell.iter().any(|folder| path.starts_with(folder));
    let kind = fs::metadata(path).map_err(failed)?.file_type();
    if kind.is_dir() || is_pipe(kind) && !is_of_shell {
        return Err(format!("{name}: it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{name}: it has more than {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| format!("{name}: it is not UTF-8"))
}

fn lineno(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

fn has_password(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    rest.rsplit_once('@').is_some_and(|(credentials, _)| credentials.contains(':'))
}

fn warn_if_open(path: &Path, warnings: &mut Vec<String>) {
    if is_open(path) {
        let shown = path.display();
        warnings.push(format!("{shown} has a password, and others may read it: chmod 600"));
    }
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

#[cfg(test)]
mod tests {
    use testbed::Folder;

    use super::*;

    const FILE: &str = "nodes = [\"redis://a\", \"redis://u:p@b\"]\nuser = \"app\"\n\
                        password_file = \"secret\"\nprefix = \"file:\"\nmax_ttl = \"1m\"\n\
                        [run]\nttl = \"20s\"\nwait = 5\n";

    fn read(flags: &Flags<'_>, variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        settings(flags, variables)
    }

    /// A folder with the file and the password `s@sa me`, which only this user can read.
    fn folder(test: &str) -> (Folder, String) {
        let folder = Folder::create(test);
        fs::write(folder.0.join("muxlock.toml"), FILE).unwrap();
        fs::write(folder.0.join("secret"), "s@sa me\n").unwrap();
        let file = folder.0.join("muxlock.toml").to_str().unwrap().to_owned();
        (folder, file)
    }

    #[test]
    fn flag_variable_and_file_count_in_this_order() {
        let (_folder, file) = folder("env-order");
        let variables = [
            ("MUXLOCK_CONFIG", &*file),
            ("MUXLOCK_PREFIX", "variable:"),
            ("MUXLOCK_MAX_TTL", ""),
            ("MUXLOCK_NODE_TIMEOUT", "1m 5ms"),
        ];
        let found = read(&Flags::default(), &variables).unwrap();
        let builder = &found.builder;
        assert_eq!(builder.nodes, ["redis://app:s%40sa%20me@a", "redis://u:p@b"]);
        assert_eq!(builder.key_prefix, b"variable:");
        assert_eq!(builder.max_ttl, Duration::from_secs(60), "an empty variable is not set");
        assert_eq!(builder.node_timeout, Duration::from_millis(60_005));
        let run: Vec<_> = found.run.iter().map(|it| (&*it.key, &*it.text, &*it.origin)).collect();
        let origins = [7, 8].map(|line| format!("{file}, line {line}: "));
        let [ttl, wait] = [origins[0].clone() + "ttl", origins[1].clone() + "wait"];
        assert_eq!(run, [("ttl", "20s", &*ttl), ("wait", "5", &*wait)]);

        let nodes = ["unix:///s".to_owned()];
        let texts = BTreeMap::from([("prefix", "flag:".to_owned())]);
        let flags = Flags { nodes: Some(&nodes), config: None, texts };
        let builder = read(&flags, &variables).unwrap().builder;
        assert_eq!((&*builder.key_prefix, builder.nodes), (&b"flag:"[..], nodes.to_vec()));
    }

    /// By a flag or a variable, the password is for every address; in the file, for those there.
    #[test]
    fn password_file_serves_addresses_without_credentials() {
        let (folder, file) = folder("env-password");
        let secret = folder.0.join("secret").to_str().unwrap().to_owned();
        let nodes = |more: &[(&str, &str)]| {
            let list = "redis://a, redis+sentinel://b,c/m redis://:q@d";
            let variables = [&[("MUXLOCK_NODES", list), ("MUXLOCK_CONFIG", &*file)], more].concat();
            read(&Flags::default(), &variables).map(|found| found.builder.nodes)
        };
        let plain = ["redis://a", "redis+sentinel://b,c/m", "redis://:q@d"];
        assert_eq!(nodes(&[]).unwrap(), plain);
        let password = ("MUXLOCK_PASSWORD_FILE", &*secret);
        let with = ["redis://:s%40sa%20me@a", "redis+sentinel://:s%40sa%20me@b,c/m", plain[2]];
        assert_eq!(nodes(&[password]).unwrap(), with);
        let user = ("MUXLOCK_USER", "u:r");
        assert_eq!(nodes(&[password, user]).unwrap()[0], "redis://u%3Ar:s%40sa%20me@a");
        let text = "MUXLOCK_USER needs password_file or MUXLOCK_PASSWORD_FILE";
        assert_eq!(nodes(&[user]).unwrap_err(), text);
        let wrong = nodes(&[("MUXLOCK_PASSWORD_FILE", "sesame")]).unwrap_err();
        assert!(
            wrong.starts_with("MUXLOCK_PASSWORD_FILE: ") && !wrong.contains("sesame"),
            "{wrong}"
        );
        let flag = Flags {
            nodes: Some(&[]),
            texts: BTreeMap::from([("password_file", secret.clone())]),
            ..Flags::default()
        };
        let found = read(&flag, &[("MUXLOCK_CONFIG", &file)]).unwrap().builder.nodes;
        assert_eq!(found[0], "redis://app:s%40sa%20me@a");
    }

    #[test]
    fn errors_name_the_variable_or_the_file_and_its_line() {
        let folder = Folder::create("env-errors");
        let file = folder.0.join("muxlock.toml").to_str().unwrap().to_owned();
        let wrong = |text: &str, variables: &[(&str, &str)]| {
            fs::write(&file, text).unwrap();
            let variables = [&[("MUXLOCK_CONFIG", &*file)], variables].concat();
            read(&Flags::default(), &variables).err().map(|text| text.replace(&file, "FILE"))
        };
        let nodes = "nodes = ['redis://a']\n";
        let with = |line: &str| wrong(&format!("{nodes}# max_ttl\n{line}\n"), &[]).unwrap();
        for (line, text) in [
            ("max_ttl = \"30\"", "is \"30\": it has no unit: write 30s or 30ms"),
            ("max_ttl = 30", "is not a text"),
            ("max_tll = \"1s\"", "is not known; did you mean max_ttl?"),
            (
                "restart_guard = \"uptme\"",
                "is \"uptme\": it must be uptime, own_observation or off; did you mean uptime?",
            ),
            ("user = \"u\"", "needs password_file or MUXLOCK_PASSWORD_FILE"),
            ("run = 1", "is not a table"),
        ] {
            let key = line.split_once(' ').unwrap().0;
            let found = with(line);
            let origin = format!("FILE, line 3: {key}");
            assert!(found.starts_with(&origin) && found.ends_with(text), "{found}");
        }
        assert!(with("zzz = 1").starts_with("FILE, line 3: zzz is not known; known are nodes, "));
        assert_eq!(with("[run]\nttl = [1]"), "FILE, line 4: ttl is not a text");
        assert_eq!(
            wrong("nodes = \"a\"", &[]).unwrap(),
            "FILE, line 1: nodes is not a list of texts"
        );
        let none = "no masters: give MUXLOCK_NODES or a file (/etc/muxlock.toml)";
        assert_eq!(wrong("", &[]).unwrap(), none);
        assert_eq!(wrong("", &[("MUXLOCK_NODES", " , ")]).unwrap(), none);
        let variable = wrong(nodes, &[("MUXLOCK_RESTART_GUARD", "redis://:sesame@h")]).unwrap();
        assert!(variable.starts_with("MUXLOCK_RESTART_GUARD is \"***\": it must"), "{variable}");
        assert_eq!(wrong(nodes, &[]), None);
    }

    /// Without an end, or without a writer, the client would never start.
    #[test]
    #[cfg(unix)]
    fn only_small_files_of_text_are_read() {
        let folder = Folder::create("env-files");
        let path = |name: &str| folder.0.join(name);
        fs::create_dir(path("folder")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(path("pipe")).status();
        assert!(pipe.unwrap().success());
        let mut long = "é".repeat(FILE_BYTES_MAX as usize / 2);
        fs::write(path("longest"), &long).unwrap();
        long.insert(0, 'x');
        fs::write(path("longer"), &long).unwrap();
        fs::write(path("bytes"), [0xff]).unwrap();
        let error = |name: &str| super::read(&path(name)).map(|text| text.len());
        assert_eq!(error("longest"), Ok(FILE_BYTES_MAX as usize));
        for (name, text) in [
            ("folder", "it is not a regular file"),
            ("pipe", "it is not a regular file"),
            ("longer", "it has more than 65536 bytes"),
            ("bytes", "it is not UTF-8"),
        ] {
            let expected = format!("{}: {text}", path(name).display());
            assert_eq!(error(name), Err(expected));
        }
        let read = |variable: &str| {
            let pipe = path("pipe").into_os_string();
            let variables = [("MUXLOCK_NODES".into(), "redis://a".into()), (variable.into(), pipe)];
            settings(&Flags::default(), variables.into_iter()).err()
        };
        let mut command = std::process::Command::new("echo");
        let mut writer = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let pipe = writer.stdout.take().unwrap();
        let of_shell = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pipe));
        assert_eq!(super::read(Path::new(&of_shell)).as_deref(), Ok("\n"));
        assert!(writer.wait().unwrap().success());
        for variable in ["MUXLOCK_CONFIG", "MUXLOCK_PASSWORD_FILE"] {
            assert!(read(variable).unwrap().ends_with("it is not a regular file"), "{variable}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn variable_with_other_bytes_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let odd = || OsString::from_vec(vec![0xff]);
        let of = |name: &str| {
            let nodes = ("MUXLOCK_NODES".into(), "redis://a".into());
            settings(&Flags::default(), [nodes, (name.into(), odd())].into_iter()).err()
        };
        assert_eq!(of("MUXLOCK_PREFIX").as_deref(), Some("MUXLOCK_PREFIX is not UTF-8"));
        assert_eq!(of("OTHER"), None);
    }

    #[test]
    #[cfg(unix)]
    fn file_with_a_password_that_others_can_read_is_warned_of() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, file) = folder("env-open");
        let secret = folder.0.join("secret");
        let warnings = |mode| {
            fs::set_permissions(&secret, fs::Permissions::from_mode(mode)).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            read(&Flags::default(), &[("MUXLOCK_CONFIG", &*file)]).unwrap().warnings
        };
        assert_eq!(warnings(0o600), [""; 0]);
        let text = "has a password, and others may read it: chmod 600";
        let [file, secret] = [&file, secret.to_str().unwrap()].map(|it| format!("{it} {text}"));
        assert_eq!(warnings(0o644), [file, secret]);
    }
}
