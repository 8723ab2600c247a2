//! The settings of the tool: flags, variables and one file.
//!
//! For each setting the first of these counts: the flag, the variable, the file, the default.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use muxlock::Builder;
use muxlock::unstable_tool::{
    Setting, Variables, not_known, read_small, setting_keys, warn_if_open, with_credentials,
    with_settings,
};
pub use muxlock::unstable_tool::{duration, shown};
use toml::de::{DeTable, DeValue};

/// How similar a name must be to be meant, from 0 to 1.
const SIMILARITY_MIN: f64 = 0.7;
/// The keys of a file that are about addresses, and the table with defaults for `muxlock run`.
const KEYS: [&str; 4] = ["nodes", "user", "password_file", RUN];
const RUN: &str = "run";
const CONFIG: &str = "MUXLOCK_CONFIG";

/// The flags.
#[derive(Default)]
pub struct Flags<'a> {
    /// The addresses.
    pub nodes: &'a [String],
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
    /// The files that were read.
    pub files: Vec<PathBuf>,
    /// Defaults for the flags of `muxlock run`, by their keys.
    pub run: Vec<(String, Setting)>,
}

/// Reads the file and all settings. An error names its origin, and contains no secret.
pub fn settings(
    flags: &Flags<'_>,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Settings, String> {
    let variables = Variables::of(variables)?;
    let mut warnings: Vec<_> =
        variables.unknown().filter(|name| *name != CONFIG).map(unknown_variable).collect();
    let path = config_path(flags, &variables);
    let file = path.map(|path| File::read(path, &mut warnings)).transpose()?;
    let sources = Sources { flags, variables, file };
    let (urls, is_of_file) = sources.nodes(&mut warnings)?;
    let builder = with_settings(urls, |key| sources.setting(key))?;
    let found = |key| match is_of_file {
        true => sources.setting(key),
        false => Ok(sources.given(key)),
    };
    let password_file = found("password_file")?.map(|it| sources.path(it));
    let read = password_file.as_ref().map(|(path, _)| path.clone());
    let builder = with_credentials(builder, found("user")?, password_file, &mut warnings)?;
    let (file, run) = sources.file.map(|file| (file.path, file.run)).unzip();
    let files = file.into_iter().chain(read).collect();
    Ok(Settings { builder, warnings, files, run: run.unwrap_or_default() })
}

fn unknown_variable(name: &str) -> String {
    let keys = KEYS.into_iter().filter(|key| *key != RUN).chain(setting_keys());
    let names = keys.map(|key| format!("MUXLOCK_{}", key.to_ascii_uppercase()));
    let names: Vec<_> = names.chain([CONFIG.to_owned()]).collect();
    let known: Vec<_> = names.iter().map(String::as_str).collect();
    not_known(name) + &similar(name, &known)
}

/// The question whether the most similar of these names is meant; empty if none is similar.
pub fn similar(text: &str, names: &[&str]) -> String {
    let rated = names.iter().map(|name| (strsim::jaro(text, name), name));
    let most = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    let similar = most.filter(|(similarity, _)| *similarity > SIMILARITY_MIN);
    similar.map_or_else(String::new, |(_, name)| format!("; did you mean {name}?"))
}

/// The first file that is named, or that exists.
fn config_path(flags: &Flags<'_>, variables: &Variables) -> Option<PathBuf> {
    let variable = || variables.setting("config").map(|it| it.text.into());
    flags.config.map(Path::to_owned).or_else(variable).or_else(|| {
        let folder = |name| env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
        let home = || Some(folder("HOME")?.join(".config"));
        let own = folder("XDG_CONFIG_HOME").or_else(home);
        let own = own.map(|home| home.join("muxlock/config.toml"));
        let usual = [own, Some(PathBuf::from("/etc/muxlock.toml"))];
        usual.into_iter().flatten().find(|path| path.exists())
    })
}

/// Where values come from.
struct Sources<'a> {
    flags: &'a Flags<'a>,
    variables: Variables,
    file: Option<File>,
}

impl Sources<'_> {
    /// From the flag or the variable.
    fn given(&self, key: &str) -> Option<Setting> {
        let flag = self.flags.texts.get(key).map(|text| Setting {
            text: text.clone(),
            origin: format!("--{}", key.replace('_', "-")),
        });
        flag.or_else(|| self.variables.setting(key))
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

    /// The addresses, and whether they are the file's. Its user and password are only for those:
    /// other servers do not receive them.
    fn nodes(&self, warnings: &mut Vec<String>) -> Result<(Vec<String>, bool), String> {
        let flag = self.flags.nodes;
        if flag.iter().any(|url| has_password(url)) {
            let way = "use MUXLOCK_NODES or a file";
            warnings.push(format!("--node has a password, which ps shows to others: {way}"));
        }
        let mut is_of_file = false;
        let urls = match self.variables.urls() {
            _ if !flag.is_empty() => flag.to_vec(),
            Some(urls) => urls,
            None => {
                is_of_file = true;
                self.file.as_ref().map(File::urls).transpose()?.unwrap_or_default().to_vec()
            }
        };
        if urls.is_empty() {
            let ways = "--node, MUXLOCK_NODES or a file (/etc/muxlock.toml)";
            return Err(format!("no masters: give {ways}"));
        }
        Ok((urls, is_of_file))
    }

    /// The password file, and its origin. In the file, a relative path begins at its folder.
    fn path(&self, it: Setting) -> (PathBuf, String) {
        let is_in_file = self.given("password_file").is_none();
        let base = self.file.as_ref().filter(|_| is_in_file).and_then(|file| file.path.parent());
        (base.unwrap_or(Path::new("")).join(it.text), it.origin)
    }
}

struct File {
    path: PathBuf,
    entries: Vec<Entry>,
    run: Vec<(String, Setting)>,
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
        let text = read_small(&path)?;
        let table = DeTable::parse(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            format!("{}, line {}: {}", path.display(), lineno(&text, at), error.message())
        })?;
        let entries = entries(&text, table.get_ref());
        let mut file = File { path, entries, run: Vec::new() };
        let known: Vec<_> = KEYS.into_iter().chain(setting_keys()).collect();
        if let Some(entry) = file.entries.iter().find(|it| !known.contains(&it.key.as_str())) {
            return Err(unknown(&file.origin(entry), &entry.key, &known));
        }
        if file.urls()?.iter().any(|url| has_password(url)) {
            warn_if_open(&file.path, warnings);
        }
        file.run = match file.entry(RUN) {
            None => Vec::new(),
            Some(Entry { value: Value::Table(entries), .. }) => {
                let with_key = |it: &Entry| Ok((it.key.clone(), file.setting(it)?));
                entries.iter().map(with_key).collect::<Result<_, String>>()?
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
            Value::Text(text) | Value::Number(text) => Ok(Setting { text: text.clone(), origin }),
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

fn lineno(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

fn has_password(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    rest.rsplit_once('@').is_some_and(|(credentials, _)| credentials.contains(':'))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use muxlock::unstable_tool::{ConfigExt, Folder};

    use super::*;

    const FILE: &str = "nodes = [\"redis://a\", \"redis://u:p@b\"]\nuser = \"app\"\n\
                        password_file = \"secret\"\nprefix = \"file:\"\nmax_ttl = \"1m\"\n\
                        [run]\nttl = \"20s\"\nwait = 5\n";

    fn read(flags: &Flags<'_>, variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        settings(flags, variables)
    }

    /// A folder with the file and the password `s@sa me`.
    fn folder() -> (Folder, String) {
        let folder = Folder::create().unwrap();
        fs::write(folder.path().join("muxlock.toml"), FILE).unwrap();
        fs::write(folder.path().join("secret"), "s@sa me\n").unwrap();
        let file = folder.path().join("muxlock.toml").to_str().unwrap().to_owned();
        (folder, file)
    }

    #[test]
    fn flag_variable_and_file_count_in_this_order() {
        let (_folder, file) = folder();
        let variables =
            [("MUXLOCK_CONFIG", &*file), ("MUXLOCK_PREFIX", "variable:"), ("MUXLOCK_MAX_TTL", "")];
        let found = read(&Flags::default(), &variables).unwrap();
        let config = found.builder.config().unwrap();
        let login = |node| config.login(node).unwrap().unwrap();
        assert_eq!(login(0), (Some("app".to_owned()), "s@sa me".to_owned()));
        assert_eq!(login(1), (Some("u".to_owned()), "p".to_owned()));
        assert_eq!(config.common().key_prefix, b"variable:");
        assert_eq!(config.max_ttl(), Duration::from_secs(60), "an empty variable is not set");
        let run = found.run.iter().map(|(key, it)| (&**key, &*it.text, &*it.origin));
        let origins = [7, 8].map(|line| format!("{file}, line {line}: "));
        let [ttl, wait] = [origins[0].clone() + "ttl", origins[1].clone() + "wait"];
        assert_eq!(run.collect::<Vec<_>>(), [("ttl", "20s", &*ttl), ("wait", "5", &*wait)]);

        // The file's credentials are for its addresses alone.
        let nodes = ["redis://c".to_owned()];
        let texts = BTreeMap::from([("prefix", "flag:".to_owned())]);
        let flags = Flags { nodes: &nodes, config: None, texts };
        let config = read(&flags, &variables).unwrap().builder.config().unwrap();
        assert_eq!((config.common().key_prefix, config.nodes()), (&b"flag:"[..], 1));
        assert_eq!(config.login(0).unwrap(), None);
    }

    #[test]
    fn errors_name_the_variable_or_the_file_and_its_line() {
        let folder = Folder::create().unwrap();
        let file = folder.path().join("muxlock.toml").to_str().unwrap().to_owned();
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
                "is \"uptme\": it must be uptime, own_observation or off",
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
        let none = "no masters: give --node, MUXLOCK_NODES or a file (/etc/muxlock.toml)";
        assert_eq!(wrong("", &[]).unwrap(), none);
        assert_eq!(wrong("", &[("MUXLOCK_NODES", " , ")]).unwrap(), none);
        assert_eq!(wrong(nodes, &[]), None);
    }

    #[test]
    fn unknown_variables_are_named_and_not_shown() {
        let nodes = ("MUXLOCK_NODES", "redis://a");
        let config = ("MUXLOCK_CONFIG", "/dev/null");
        let odd = ("MUXLOCK_PASWORD_FILE", "sesame");
        let service = ("MUXLOCK_PORT_6379_TCP", "tcp://10.0.0.9:6379");
        let found = read(&Flags::default(), &[nodes, config, odd, service]).unwrap();
        let text = "the variable MUXLOCK_PASWORD_FILE is not known, so it is ignored; did you \
                    mean MUXLOCK_PASSWORD_FILE?";
        assert_eq!(found.warnings, [text]);
    }
}
