//! The process of one `redis-server`: what it is started with, its folder, and its end.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use std::{env, fs, process};

/// The environment variable that names the `redis-server` to run instead of the one on PATH. If it
/// names a script, the script must `exec` the server, because the process that answers must have
/// the id of the process that was started.
pub const SERVER_VARIABLE: &str = "MUXLOCK_REDIS_SERVER";

/// A script that waits for the parent process to end. Each line of its input is the process id of
/// the current server, or empty. At the end of its input the parent has ended, for whatever reason:
/// the script kills that server and removes the folder. It survives Ctrl-C, since a server that was
/// frozen at that moment would otherwise remain forever.
const WATCHDOG: &str = r#"trap '' HUP INT TERM; pid=; while read -r line; do pid=$line; done
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null; [ ! -d "$1" ] || rm -rf "$1""#;

/// The environment variable that names a folder with `ca.pem`, `cert.pem` and `key.pem`. If it is
/// set, all masters also have a port with TLS, and their URLs use that port. A client trusts them
/// if `SSL_CERT_FILE` names `ca.pem`. So the same tests can also run over TLS.
pub const TLS_VARIABLE: &str = "MUXLOCK_TEST_TLS";

/// The files for a server with TLS, as PEM; see [`Master::start_with_tls`].
///
/// [`Master::start_with_tls`]: crate::testing::Master::start_with_tls
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The roots that it trusts, if it asks clients for a certificate.
    pub ca: PathBuf,
    /// Its certificate.
    pub cert: PathBuf,
    /// The key of its certificate.
    pub key: PathBuf,
}

impl TlsFiles {
    /// `ca.pem`, `cert.pem` and `key.pem` in this folder.
    pub fn in_folder(folder: &Path) -> TlsFiles {
        let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| folder.join(name));
        TlsFiles { ca, cert, key }
    }
}

pub(super) const LOG_FILE: &str = "redis.log";
pub(super) const OUTPUT_FILE: &str = "redis.out";
pub(super) const SOCKET_FILE: &str = "redis.sock";

/// The settings that stay the same from one start to the next.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) binary: OsString,
    pub(super) extra_args: Vec<String>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) password: Option<String>,
    pub(super) socket: bool,
    pub(super) tls: Option<TlsFiles>,
    /// Whether the URL is that of the port with TLS.
    pub(super) is_tls_shown: bool,
}

impl Settings {
    pub(super) fn new(extra_args: &[&str], socket: bool) -> Settings {
        let password = extra_args.iter().position(|arg| *arg == "--requirepass");
        let folder = env::var_os(TLS_VARIABLE).filter(|path| !path.is_empty());
        let tls = folder.map(|folder| TlsFiles::in_folder(Path::new(&folder)));
        Settings {
            binary: env::var_os(SERVER_VARIABLE)
                .filter(|path| !path.is_empty())
                .unwrap_or_else(|| "redis-server".into()),
            extra_args: extra_args.iter().map(|arg| (*arg).to_owned()).collect(),
            environment: Vec::new(),
            password: password
                .and_then(|at| extra_args.get(at + 1))
                .map(|password| (*password).to_owned()),
            socket,
            is_tls_shown: tls.is_some(),
            tls,
        }
    }
}

/// The ports of a server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) plain: u16,
    pub(super) tls: Option<u16>,
}

/// A process, and the input of the `sh` that ends it if this process cannot.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) child: Child,
    watchdog: Option<Arc<ChildStdin>>,
}

impl Server {
    pub(super) fn spawn(settings: &Settings, ports: Ports, folder: &Folder) -> io::Result<Server> {
        let watchdog = folder.watchdog_input.clone();
        let folder = &folder.path;
        let output = fs::File::create(folder.join(OUTPUT_FILE))?;
        let mut command = Command::new(&settings.binary);
        command
            .args(["--port", &ports.plain.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "no", "--daemonize", "no", "--protected-mode", "no"])
            .args(["--databases", "16"])
            .arg("--dir")
            .arg(folder)
            .arg("--logfile")
            .arg(folder.join(LOG_FILE));
        if let (Some(files), Some(port)) = (&settings.tls, ports.tls) {
            command.args(["--tls-port", &port.to_string(), "--tls-auth-clients", "no"]);
            command.arg("--tls-ca-cert-file").arg(&files.ca);
            command.arg("--tls-cert-file").arg(&files.cert);
            command.arg("--tls-key-file").arg(&files.key);
        }
        if settings.socket {
            command.arg("--unixsocket").arg(folder.join(SOCKET_FILE));
        }
        let child = command
            .args(&settings.extra_args)
            .envs(settings.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(|error| spawn_failed(&error))?;
        let server = Server { child, watchdog };
        server.tell_watchdog(&server.child.id().to_string());
        Ok(server)
    }

    /// SIGKILL ends a stopped process as well: no need to continue it first.
    pub(super) fn end(&mut self) -> io::Result<()> {
        // Before the wait that frees the process id, so that the watchdog never kills another
        // process.
        self.tell_watchdog("");
        let killed = self.child.kill();
        self.child.wait()?;
        killed
    }

    fn tell_watchdog(&self, line: &str) {
        if let Some(mut input) = self.watchdog.as_deref() {
            // It fails only if the watchdog was killed; then nothing needs the id.
            let _ = input.write_all(format!("{line}\n").as_bytes());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A drop cannot report a failure; if this fails, the process has already ended.
        let _ = self.end();
    }
}

/// A temporary folder, removed with its contents, and the `sh` that removes it if this process
/// cannot.
#[derive(Debug)]
pub struct Folder {
    pub(super) path: PathBuf,
    watchdog: Option<Child>,
    watchdog_input: Option<Arc<ChildStdin>>,
}

impl Folder {
    /// Makes one.
    pub fn create() -> io::Result<Folder> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("muxlock-{}-{counter}-{}", process::id(), wall_nanos());
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).map_err(|error| {
            sentence(
                error.kind(),
                format!("the folder {} could not be created: {error}", path.display()),
            )
        })?;
        // Optional: without it, server and folder still end with their `Master`.
        let mut command = Command::new("sh");
        command
            .args(["-c", WATCHDOG, "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // Ctrl-C goes to a whole process group: so it does not reach the `sh` even before its trap
        // is set.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut watchdog = command.spawn().ok();
        let input = watchdog.as_mut().and_then(|watchdog| watchdog.stdin.take());
        Ok(Folder { path, watchdog, watchdog_input: input.map(Arc::new) })
    }

    /// Where it is.
    #[cfg(feature = "unstable-tool")]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Files left in a temporary folder do no harm.
        let _ = fs::remove_dir_all(&self.path);
        // The server, which shares the input, has ended. So dropping the input ends the watchdog
        // too.
        self.watchdog_input = None;
        if let Some(watchdog) = &mut self.watchdog {
            let _ = watchdog.wait();
        }
    }
}

fn spawn_failed(error: &io::Error) -> io::Error {
    let named = env::var_os(SERVER_VARIABLE).filter(|path| !path.is_empty());
    let message = match (error.kind(), named) {
        (ErrorKind::NotFound, Some(path)) => {
            format!("{SERVER_VARIABLE} names {}, which does not exist", path.to_string_lossy())
        }
        (ErrorKind::NotFound, None) => "redis-server is not installed or not on PATH: install \
             the package redis-server"
            .to_owned(),
        _ => format!("redis-server could not be started: {error}"),
    };
    sentence(error.kind(), message)
}

/// An error of this kind that says this.
pub(super) fn sentence(kind: ErrorKind, message: String) -> io::Error {
    io::Error::new(kind, message)
}

/// The state of a process as one letter, `T` if it is stopped; `None` if there is no such process.
pub(super) fn process_state(pid: u32) -> io::Result<Option<char>> {
    if cfg!(target_os = "linux") {
        return match fs::read_to_string(format!("/proc/{pid}/stat")) {
            // The name comes before the state, in parentheses, and may contain any character.
            Ok(stat) => Ok(stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
    }
    let output = Command::new("ps").args(["-o", "state=", "-p", &pid.to_string()]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().chars().next())
}

#[expect(clippy::disallowed_methods, reason = "makes the name of a folder unlikely to exist")]
fn wall_nanos() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}
