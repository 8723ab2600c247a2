//! Settings from environment variables. The command-line tool shares what they mean.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::builder::Builder;
use super::credentials::{Credentials, Login};
use super::error::ConfigError;
use super::{OF_SHELL, is_read_once, url};

/// Most bytes of a password file.
const FILE_BYTES_MAX: u64 = 64 * 1024;
const PREFIX: &str = "MUXLOCK_";
/// The settings that are about addresses.
const OF_ADDRESSES: [&str; 3] = ["nodes", "user", "password_file"];
/// Variables that are no settings: those of a command of `muxlock run`, and the server of tests.
const OTHERS: [&str; 4] = ["resource", "holder", "fencing_token", "redis_server"];

type Setter = fn(Builder, &str) -> Result<Builder, String>;

/// Each other setting, by its key: the name of its variable without the prefix.
const SETTERS: [(&str, Setter); 6] = [
    ("prefix", |builder, text| Ok(builder.key_prefix(clean(text)?))),
    ("max_ttl", |builder, text| Ok(builder.max_ttl(duration(text)?))),
    ("node_timeout", |builder, text| Ok(builder.node_timeout(duration(text)?))),
    ("connect_timeout", |builder, text| Ok(builder.connect_timeout(duration(text)?))),
    ("restart_guard", |builder, text| {
        let guard = url::parse_restart_guard(text);
        Ok(builder.restart_guard(guard.map_err(|_| "it must be uptime, own_observation or off")?))
    }),
    ("flush_marker", |builder, text| Ok(builder.flush_marker(clean(text)?))),
];

impl Builder {
    /// The settings of the environment variables `MUXLOCK_NODES`, `MUXLOCK_PASSWORD_FILE`,
    /// `MUXLOCK_PREFIX`, `MUXLOCK_MAX_TTL` and so on, which the command-line tool reads too. The
    /// page [settings](crate::guide::settings) lists all of them. An empty variable counts as
    /// unset. The password file is read again before each connection, and is for all addresses
    /// without a password; [`credentials`](Builder::credentials) replaces it. Feature `env`.
    ///
    /// On success, the builder has at least one master, and a setter replaces a setting of the
    /// environment. [`node`](Builder::node) and [`nodes`](Builder::nodes) add masters to those of
    /// the environment. The client logs a warning for each variable that begins with `MUXLOCK_` and
    /// is not known, and if others than the user and the groups of this process can read the
    /// password file.
    ///
    /// # Errors
    /// [`ConfigError::Env`] names the variable. Correct it there.
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
        let (builder, warnings) =
            from(env::vars_os()).map_err(|reason| ConfigError::Env { reason })?;
        for warning in warnings {
            log::warn!(target: "muxlock", "{warning}");
        }
        Ok(builder)
    }
}

/// Also returns the warnings.
fn from(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<(Builder, Vec<String>), String> {
    let variables = Variables::of(variables)?;
    let mut warnings: Vec<_> = variables.unknown().map(not_known).collect();
    let urls = variables.urls().unwrap_or_default();
    if urls.is_empty() {
        return Err("no masters: give MUXLOCK_NODES".to_owned());
    }
    let file = variables.setting("password_file").map(|it| (it.text.into(), it.origin));
    let builder = with_settings(urls, |key| Ok(variables.setting(key)))?;
    let builder = with_credentials(builder, variables.setting("user"), file, &mut warnings)?;
    Ok((builder, warnings))
}

/// The warning for a variable.
pub fn not_known(name: &str) -> String {
    format!("the variable {name} is not known, so it is ignored")
}

/// The keys of the settings that are not about addresses.
pub fn setting_keys() -> impl Iterator<Item = &'static str> {
    SETTERS.into_iter().map(|(key, _)| key)
}

/// The text of a setting. Not `Debug`: by mistake, it may be a password.
pub struct Setting {
    /// Its value.
    pub text: String,
    /// Where it is set, for errors.
    pub origin: String,
}

/// The variables that begin with `MUXLOCK_` and are not empty.
pub struct Variables(BTreeMap<String, String>);

impl Variables {
    /// An error names a variable that is not UTF-8.
    pub fn of(all: impl Iterator<Item = (OsString, OsString)>) -> Result<Variables, String> {
        let mut texts = BTreeMap::new();
        for (name, value) in all {
            let name = name.to_string_lossy().into_owned();
            if !name.starts_with(PREFIX) || value.is_empty() {
                continue;
            }
            let text = value.into_string().map_err(|_| format!("{name} is not UTF-8"))?;
            texts.insert(name, text);
        }
        Ok(Variables(texts))
    }

    /// The setting with this key.
    pub fn setting(&self, key: &str) -> Option<Setting> {
        let origin = variable(key);
        let text = self.0.get(&origin)?.clone();
        Some(Setting { text, origin })
    }

    /// The addresses of `MUXLOCK_NODES`, if it is set.
    pub fn urls(&self) -> Option<Vec<String>> {
        let list = self.setting("nodes")?.text;
        Some(url::addresses(&list).map(str::to_owned).collect())
    }

    /// The names that neither have a meaning nor come from a service of Kubernetes whose name
    /// begins so.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        let keys = OF_ADDRESSES.into_iter().chain(OTHERS).chain(setting_keys());
        let known: Vec<_> = keys.map(variable).collect();
        let is_of_service = |name: &str| {
            name.contains("_SERVICE_") || name.contains("_PORT_") || name.ends_with("_PORT")
        };
        let names = self.0.keys().map(String::as_str);
        names.filter(move |name| !known.iter().any(|it| it == name) && !is_of_service(name))
    }
}

fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_ascii_uppercase())
}

/// A builder with these masters and all settings that are found. An error names the origin of a
/// setting, and contains no secret.
pub fn with_settings(
    urls: Vec<String>,
    find: impl Fn(&str) -> Result<Option<Setting>, String>,
) -> Result<Builder, String> {
    let mut builder = Builder::default().nodes(urls);
    for (key, setter) in SETTERS {
        if let Some(Setting { text, origin }) = find(key)? {
            let wrong = |why| format!("{origin} is {:?}: {why}", shown(&text));
            builder = setter(builder, &text).map_err(wrong)?;
        }
    }
    Ok(builder)
}

/// This builder, with these credentials for addresses that have none: a user, and the file with its
/// password and the file's origin. The file is read before each connection.
pub fn with_credentials(
    builder: Builder,
    user: Option<Setting>,
    file: Option<(PathBuf, String)>,
    warnings: &mut Vec<String>,
) -> Result<Builder, String> {
    let Some((path, origin)) = file else {
        return match user {
            Some(user) => {
                Err(format!("{} needs password_file or MUXLOCK_PASSWORD_FILE", user.origin))
            }
            None => Ok(builder),
        };
    };
    let password = password_in(&path, &origin)?;
    let has_login = |it: &String| url::NodeUrl::parse(it).is_ok_and(|it| it.login.is_some());
    if builder.nodes.iter().all(has_login) {
        let name = user.as_ref().map_or(&origin, |user| &user.origin);
        warnings.push(format!("{name} is ignored: each address has a password of its own"));
    }
    warn_if_open(&path, warnings);
    let user = user.map(|user| user.text).unwrap_or_default();
    let credentials = Credentials::new(password).user(user);
    // The service may change its folder.
    let path = std::path::absolute(&path).unwrap_or(path);
    let login = match is_read_once(&path) {
        true => Login::Fixed(credentials),
        false => Login::asked(credentials.user.clone(), move |_| {
            let password = password_in(&path, &path.to_string_lossy());
            Ok(Credentials { password: password.map_err(io::Error::other)?, ..credentials.clone() })
        }),
    };
    Ok(Builder { login, ..builder })
}

/// Part of a key. Files and templates add a line break or quotes, and clients without them have
/// other keys.
fn clean(text: &str) -> Result<&str, String> {
    let is_odd = |char: char| char.is_whitespace() || matches!(char, '"' | '\'');
    match text.starts_with(is_odd) || text.ends_with(is_odd) {
        true => Err("white space or a quote is at its start or end: leave it out".into()),
        false => Ok(text),
    }
}

/// A duration with a unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.chars().all(|char| char.is_ascii_digit()) {
        return Err(format!("it has no unit: write {text}s or {text}ms"));
    }
    humantime::parse_duration(text).map_err(|_| "it is not a time, such as 30s or 1h30m".into())
}

/// A value that might be an address by mistake is not shown.
pub fn shown(text: &str) -> &str {
    let marks = ["@", "://", "password", "passwd", "auth=", "pass="];
    let lower = text.to_ascii_lowercase();
    if marks.iter().any(|mark| lower.contains(mark)) { "***" } else { text }
}

/// The password in a file. By mistake, the setting may be the password, so an error names only the
/// setting until it is known to be a path.
fn password_in(path: &Path, origin: &str) -> Result<String, String> {
    let unread = |error| format!("{origin} names a file that cannot be read: {error}");
    fs::metadata(path).map_err(unread)?;
    let text = read(path)?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(format!("{origin}: the file is empty; it should have the password")),
        password => Ok(password.to_owned()),
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
pub fn read(path: &Path) -> Result<String, String> {
    let name = path.to_string_lossy();
    // It looks like an address, which might contain a password.
    let name = if name.contains("://") { "***" } else { &*name };
    let failed = |error: io::Error| format!("{name}: {error}");
    // Opening a pipe waits for a writer, which those of a shell have.
    let is_of_shell = OF_SHELL.iter().any(|folder| path.starts_with(folder));
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

/// Warns if others than the file's owner and the groups of this process can read the file.
pub fn warn_if_open(path: &Path, warnings: &mut Vec<String>) {
    if let Some(mend) = is_open_by(path) {
        let shown = path.display();
        warnings.push(format!("{shown} has a password, and others may read it: {mend}"));
    }
}

/// The mend, if it is needed. It keeps the right of a service that reads the file by its group.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn is_open_by(path: &Path) -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::metadata(path).ok()?;
    let is_ours = || {
        let groups = rustix::process::getgroups().unwrap_or_default();
        groups.into_iter().chain([rustix::process::getegid()]).any(|it| it.as_raw() == meta.gid())
    };
    match meta.mode() & 0o044 {
        0 => None,
        0o040 if is_ours() => None,
        0o004 | 0o044 if is_ours() => Some("chmod o-rwx"),
        _ => Some("chmod go-rwx"),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn is_open_by(_: &Path) -> Option<&'static str> {
    None
}

#[cfg(all(test, repository))]
mod tests {
    use testbed::Folder;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<(Builder, Vec<String>), String> {
        from(variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn variables_are_settings_and_unknown_ones_are_named() {
        let nodes = ("MUXLOCK_NODES", "redis://a redis://b");
        let (builder, warnings) = read(&[
            nodes,
            ("MUXLOCK_PREFIX", "app:"),
            ("MUXLOCK_MAX_TTL", ""),
            ("MUXLOCK_NODE_TIMEOUT", "1m 5ms"),
            ("MUXLOCK_HOLDER", "of muxlock run"),
            ("MUXLOCK_PORT", "tcp://10.0.0.9:80"),
            ("MUXLOCK_PORT_80_TCP_ADDR", "10.0.0.9"),
            ("MUXLOCK_SERVICE_PORT_HTTP", "80"),
            ("MUXLOCK_EU_SERVICE_HOST", "10.0.0.9"),
            ("MUXLOCK_PREFX", "sesame"),
            ("OTHER", ""),
        ])
        .unwrap();
        assert_eq!(builder.nodes, ["redis://a", "redis://b"]);
        assert_eq!(builder.key_prefix, b"app:");
        assert_eq!(builder.max_ttl, Duration::from_secs(30), "an empty variable is not set");
        assert_eq!(builder.node_timeout, Duration::from_millis(60_005));
        let text = "the variable MUXLOCK_PREFX is not known, so it is ignored";
        assert_eq!(warnings, [text]);

        let wrong = |name, value| read(&[nodes, (name, value)]).err().unwrap();
        for list in ["", " , "] {
            let error = read(&[("MUXLOCK_NODES", list)]).err().unwrap();
            assert_eq!(error, "no masters: give MUXLOCK_NODES");
        }
        let text = "MUXLOCK_MAX_TTL is \"30\": it has no unit: write 30s or 30ms";
        assert_eq!(wrong("MUXLOCK_MAX_TTL", "30"), text);
        let text = "MUXLOCK_PREFIX is \"app:\\n\": white space or a quote is at its start or end";
        assert!(wrong("MUXLOCK_PREFIX", "app:\n").starts_with(text));
        for odd in ["\"m\"", "'m'", " m"] {
            let text = "white space or a quote is at its start or end: leave it out";
            assert!(wrong("MUXLOCK_FLUSH_MARKER", odd).ends_with(text));
        }
        let text = "MUXLOCK_USER needs password_file or MUXLOCK_PASSWORD_FILE";
        assert_eq!(wrong("MUXLOCK_USER", "u"), text);
        let text = "MUXLOCK_RESTART_GUARD is \"***\": it must be uptime";
        assert!(wrong("MUXLOCK_RESTART_GUARD", "redis://:sesame@h").starts_with(text));
    }

    #[test]
    fn password_file_serves_addresses_without_credentials() {
        let folder = Folder::create("env-password");
        let secret = folder.0.join("secret");
        fs::write(&secret, "s@sa me\n").unwrap();
        let list = "redis://a, redis+sentinel://b,c/m redis://:q@d";
        let with = |file: &str, user: &str| {
            let file = ("MUXLOCK_PASSWORD_FILE", file);
            let read = read(&[("MUXLOCK_NODES", list), file, ("MUXLOCK_USER", user)]);
            read.map(|(builder, _)| builder.config().unwrap().nodes)
        };
        let asked = |user: &str| {
            let nodes = with(secret.to_str().unwrap(), user).unwrap();
            nodes.into_iter().map(|it| it.login.ask("it").unwrap().unwrap()).collect::<Vec<_>>()
        };
        let [own, other] = ["s@sa me", "q"].map(Credentials::new);
        assert!(asked("") == [own.clone(), own.clone(), other.clone()]);
        assert!(asked("u:r") == [own.clone().user("u:r"), own.user("u:r"), other]);
        let warned = |list: &str| {
            let file = ("MUXLOCK_PASSWORD_FILE", secret.to_str().unwrap());
            read(&[("MUXLOCK_NODES", list), file, ("MUXLOCK_USER", "u")]).unwrap().1
        };
        let text = "MUXLOCK_USER is ignored: each address has a password of its own";
        let all = [warned("redis://:q@d redis://v:q@e"), warned(list)].map(|it| it.concat());
        assert!(all[0].starts_with(text) && !all[1].contains(text), "{all:?}");
        let wrong = with("sesame", "").err().unwrap();
        let begins = "MUXLOCK_PASSWORD_FILE names a file that cannot be read: No such file";
        assert!(wrong.starts_with(begins) && !wrong.contains("sesame"), "{wrong}");
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
        let mut command = std::process::Command::new("echo");
        let mut writer = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let pipe = writer.stdout.take().unwrap();
        let of_shell = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pipe));
        assert_eq!(super::read(Path::new(&of_shell)).as_deref(), Ok("\n"));
        assert!(writer.wait().unwrap().success());
        let pipe = path("pipe");
        let variables =
            [("MUXLOCK_NODES", "redis://a".as_ref()), ("MUXLOCK_PASSWORD_FILE", &*pipe)];
        let variables = variables.map(|(name, value): (_, &Path)| (name.into(), value.into()));
        let error = from(variables.into_iter()).err().unwrap();
        assert!(error.ends_with("it is not a regular file"), "{error}");
    }

    #[test]
    #[cfg(unix)]
    fn variable_with_other_bytes_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let odd = || OsString::from_vec(vec![0xff]);
        let of = |name: &str| {
            let nodes = ("MUXLOCK_NODES".into(), "redis://a".into());
            from([nodes, (name.into(), odd())].into_iter()).err()
        };
        assert_eq!(of("MUXLOCK_PREFIX").as_deref(), Some("MUXLOCK_PREFIX is not UTF-8"));
        assert_eq!(of("OTHER"), None);
    }

    /// The group of this process is none of the others: a file of root and of a service's group is
    /// as it should be.
    #[test]
    #[cfg(target_os = "linux")]
    fn password_file_that_others_can_read_is_warned_of() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let folder = Folder::create("env-open");
        let secret = folder.0.join("secret");
        fs::write(&secret, "sesame").unwrap();
        let shown = secret.to_str().unwrap();
        let warnings = |mode| {
            fs::set_permissions(&secret, fs::Permissions::from_mode(mode)).unwrap();
            read(&[("MUXLOCK_NODES", "redis://a"), ("MUXLOCK_PASSWORD_FILE", shown)]).unwrap().1
        };
        let text =
            |mend: &str| [format!("{shown} has a password, and others may read it: {mend}")].into();
        let table = [(0o600, None), (0o640, None), (0o644, Some("chmod o-rwx"))];
        for (mode, mend) in table {
            assert_eq!(warnings(mode), mend.map_or_else(Vec::new, text), "{mode:o}");
        }
        // Only root can give it to a group that it is not in.
        if chown(&secret, None, Some(54_321)).is_ok() {
            assert_eq!(warnings(0o640), text("chmod go-rwx"));
        }
    }
}
