//! Real `redis-server` processes on free loopback ports, for the demo, the tests and the benches.
//!
//! Each master has its own temporary folder and keeps nothing on disk. Dropping a [`Master`] ends
//! its process and removes its folder. If this process is killed first, a small `sh` that waits
//! beside each folder does both.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::{Index, IndexMut};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs, process};

/// The environment variable that names the `redis-server` to run instead of the one on PATH. A
/// script must `exec` it: the process that answers has to be the one that was started.
pub const SERVER_VARIABLE: &str = "MUXLOCK_REDIS_SERVER";

/// How long a server may take from its start to its first answer.
const READY_CAP: Duration = Duration::from_secs(10);
/// How long a stopped process may take to show as stopped.
const FREEZE_CAP: Duration = Duration::from_secs(5);
/// The interval at which this file polls for something that it waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How many ports to try before giving up: another process may take a port just before the server
/// does.
const MAX_PORTS_TRIED: usize = 5;
/// How long a query may take to connect, to be sent, and to be answered.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest answer to one "are you ready?": a foreign process on the port may never answer.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest line of a reply: an error message, a number, a length.
const MAX_LINE: u64 = 64 * 1024;
/// The longest bulk string of a reply.
const MAX_BULK: usize = 64 * 1024 * 1024;
/// The longest array of a reply.
const MAX_ARRAY: usize = 1024 * 1024;
/// How deep the arrays of a reply may nest.
const MAX_DEPTH: usize = 8;
/// How much of a server's output an error quotes.
const MAX_QUOTED_LOG: usize = 600;

/// Waits beside a folder. Each line on its input is the process id of the server in it, or is empty
/// if no server runs. The end of its input means that the parent has ended, for whatever reason:
/// the rest of server and folder must be removed. It survives Ctrl-C, since a server that was
/// frozen at that moment would otherwise remain forever.
const WATCHDOG: &str = r#"trap '' HUP INT TERM; pid=; while read -r line; do pid=$line; done
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null; [ ! -d "$1" ] || rm -rf "$1""#;

/// A reply of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A short text such as `OK`.
    Status(String),
    /// The server refused the command.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Null: no such key, or a condition that did not hold.
    Nil,
    /// A list of replies.
    Array(Vec<Value>),
}

/// A running `redis-server` that belongs to this value.
#[derive(Debug)]
pub struct Master {
    settings: Settings,
    port: u16,
    pid: u32,
    connection: Mutex<Option<Connection>>,
    // Before the folder, since fields drop in this order and the server writes into its folder.
    server: Option<Server>,
    folder: Folder,
}

impl Master {
    /// Starts a server on a free port and waits until it answers.
    pub fn start() -> io::Result<Master> {
        Master::start_with(&[])
    }

    /// Starts a server with more arguments, such as `["--requirepass", "secret"]`.
    ///
    /// With `--requirepass`, the queries of this type authenticate themselves.
    pub fn start_with(extra_args: &[&str]) -> io::Result<Master> {
        Master::start_as(Settings::new(extra_args, false))
    }

    /// Starts a server with another executable.
    pub fn start_other(binary: &OsStr, extra_args: &[&str]) -> io::Result<Master> {
        Master::start_as(Settings { binary: binary.into(), ..Settings::new(extra_args, false) })
    }

    /// Starts a server with more variables in its environment, such as `LD_PRELOAD`.
    pub fn start_in(environment: &[(&str, &OsStr)]) -> io::Result<Master> {
        let owned = |(name, value): &(&str, &OsStr)| ((*name).into(), (*value).to_owned());
        let environment = environment.iter().map(owned).collect();
        Master::start_as(Settings { environment, ..Settings::new(&[], false) })
    }

    /// Starts a server that also listens on a unix socket in its folder.
    pub fn start_with_socket() -> io::Result<Master> {
        Master::start_as(Settings::new(&[], true))
    }

    fn start_as(settings: Settings) -> io::Result<Master> {
        let port = local_port(&free_port()?)?;
        let mut master = Master::launch(settings, port)?;
        master.settle()?;
        Ok(master)
    }

    /// Spawns the server without waiting for it.
    fn launch(settings: Settings, port: u16) -> io::Result<Master> {
        let folder = Folder::create()?;
        let server = Server::spawn(&settings, port, &folder)?;
        Ok(Master {
            settings,
            port,
            pid: server.child.id(),
            connection: Mutex::new(None),
            server: Some(server),
            folder,
        })
    }

    /// Waits for a launched server, on other ports if another process has taken its port.
    fn settle(&mut self) -> io::Result<()> {
        for _ in 1..MAX_PORTS_TRIED {
            if self.wait_until_ready(deadline(READY_CAP))? {
                return Ok(());
            }
            self.port = local_port(&free_port()?)?;
            self.respawn()?;
        }
        if self.wait_until_ready(deadline(READY_CAP))? {
            return Ok(());
        }
        Err(self.exited_early())
    }

    fn respawn(&mut self) -> io::Result<()> {
        self.forget_connection();
        self.server = None;
        let server = Server::spawn(&self.settings, self.port, &self.folder)?;
        self.pid = server.child.id();
        self.server = Some(server);
        Ok(())
    }

    /// Whether the server answers; `false` if it ended before it did.
    fn wait_until_ready(&mut self, deadline: Instant) -> io::Result<bool> {
        loop {
            if !self.is_running() {
                return Ok(false);
            }
            match self.probe() {
                Ok(true) => return Ok(true),
                Ok(false) | Err(_) if now() < deadline => pause(POLL_INTERVAL),
                Ok(_) => {
                    return Err(sentence(
                        ErrorKind::AddrInUse,
                        format!("another process answers on port {}", self.port),
                    ));
                }
                Err(error) => {
                    return Err(sentence(
                        ErrorKind::TimedOut,
                        format!(
                            "redis-server on port {} was not ready within {} s: {error}{}",
                            self.port,
                            READY_CAP.as_secs(),
                            self.quoted_log()
                        ),
                    ));
                }
            }
        }
    }

    /// Whether the process that answers on the port is the child, and ready.
    fn probe(&self) -> io::Result<bool> {
        let password = self.settings.password.as_deref();
        let mut connection = Connection::open(self.port, password, PROBE_TIMEOUT)?;
        if connection.ask(&[b"PING"])? != Value::Status("PONG".into()) {
            return Err(io::Error::other("it does not answer PING with PONG"));
        }
        let info = text(connection.ask(&[b"INFO", b"server"])?)?;
        Ok(info_field(&info, "process_id").is_some_and(|pid| pid == self.pid.to_string()))
    }

    fn exited_early(&self) -> io::Error {
        io::Error::other(format!(
            "redis-server ended before it answered on port {}{}",
            self.port,
            self.quoted_log()
        ))
    }

    /// The end of the server's output, for an error message.
    fn quoted_log(&self) -> String {
        let mut quoted = String::new();
        for name in [OUTPUT_FILE, LOG_FILE] {
            // Without a file there is nothing to quote.
            let bytes = fs::read(self.folder.path.join(name)).unwrap_or_default();
            let tail = &bytes[bytes.len().saturating_sub(MAX_QUOTED_LOG)..];
            let tail = String::from_utf8_lossy(tail);
            if !tail.trim().is_empty() {
                quoted.push_str("\nit wrote:\n");
                quoted.push_str(tail.trim());
            }
        }
        quoted
    }

    /// The TCP port; a restart keeps it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `redis://127.0.0.1:PORT`, without the password if there is one.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// The unix socket, if this master was started with one.
    pub fn socket_path(&self) -> Option<PathBuf> {
        self.settings.socket.then(|| self.folder.path.join(SOCKET_FILE))
    }

    /// The id of the server's process, or of its last process if it has ended.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the server's process exists, frozen or not.
    pub fn is_running(&mut self) -> bool {
        let running = match &mut self.server {
            Some(server) => matches!(server.child.try_wait(), Ok(None)),
            None => false,
        };
        if !running {
            // The watchdog must drop the id, which may soon belong to another process.
            self.server = None;
        }
        running
    }

    /// Stops the process (SIGSTOP); returns when it is stopped. Its port still accepts connections.
    pub fn freeze(&self) -> io::Result<()> {
        self.signal("STOP")?;
        let deadline = deadline(FREEZE_CAP);
        loop {
            match process_state(self.pid)? {
                Some('T' | 't') => return Ok(()),
                Some('Z' | 'X') | None => return Err(self.not_running()),
                Some(_) if now() < deadline => pause(POLL_INTERVAL),
                Some(state) => {
                    return Err(sentence(
                        ErrorKind::TimedOut,
                        format!("process {} did not stop; its state is {state}", self.pid),
                    ));
                }
            }
        }
    }

    /// Lets a frozen process continue (SIGCONT).
    pub fn thaw(&self) -> io::Result<()> {
        self.signal("CONT")
    }

    /// Kills the process at once (SIGKILL), frozen or not; its data is gone, unless the arguments
    /// make it keep a file.
    pub fn kill(&mut self) -> io::Result<()> {
        self.forget_connection();
        match self.server.take() {
            Some(mut server) => server.end(),
            None => Ok(()),
        }
    }

    /// Starts the server again, on the same port and with the same arguments; kills it first if it
    /// is running. It is empty, unless the arguments make it keep a file.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill()?;
        let deadline = deadline(READY_CAP);
        loop {
            self.respawn()?;
            if self.wait_until_ready(deadline)? {
                return Ok(());
            }
            // Another process may hold the port for a moment, for example with an outgoing
            // connection.
            if now() >= deadline {
                return Err(self.exited_early());
            }
            pause(POLL_INTERVAL);
        }
    }

    /// Sends the server a query over a connection that is kept for the next one.
    ///
    /// A reply such as `-ERR` is not an error here but a [`Value::Error`]. Like any other command,
    /// every query counts in [`Master::command_calls`].
    pub fn query(&self, args: &[&[u8]]) -> io::Result<Value> {
        let mut kept = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut connection) = kept.take() {
            match connection.ask(args) {
                Ok(value) => {
                    *kept = Some(connection);
                    return Ok(value);
                }
                // The server had closed the kept connection earlier; that is no failure of this
                // query.
                Err(error) if is_closed(&error) => {}
                Err(error) => return Err(self.query_failed(&error)),
            }
        }
        let password = self.settings.password.as_deref();
        let mut connection = Connection::open(self.port, password, QUERY_TIMEOUT)
            .map_err(|error| self.query_failed(&error))?;
        let value = connection.ask(args).map_err(|error| self.query_failed(&error))?;
        *kept = Some(connection);
        Ok(value)
    }

    /// The time to live of a key in milliseconds: -2 if there is no such key, -1 if it never
    /// expires.
    pub fn pttl(&self, key: &[u8]) -> io::Result<i64> {
        integer(self.query(&[b"PTTL", key])?)
    }

    /// The value of a key.
    pub fn value_of(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        match self.query(&[b"GET", key])? {
            Value::Bulk(bytes) => Ok(Some(bytes)),
            Value::Nil => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// How many keys there are.
    pub fn dbsize(&self) -> io::Result<u64> {
        let size = integer(self.query(&[b"DBSIZE"])?)?;
        u64::try_from(size).map_err(|_| unexpected(&Value::Integer(size)))
    }

    /// Removes every key.
    pub fn flush(&self) -> io::Result<()> {
        match self.query(&[b"FLUSHALL"])? {
            Value::Status(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// How often a command was called since the server started, by any client. A subcommand is
    /// named as in `client|setname`.
    pub fn command_calls(&self, cmd: &str) -> io::Result<u64> {
        let info = text(self.query(&[b"INFO", b"commandstats"])?)?;
        let field = format!("cmdstat_{}", cmd.to_ascii_lowercase());
        let Some(stats) = info_field(&info, &field) else {
            return Ok(0);
        };
        stats
            .split(',')
            .find_map(|stat| stat.strip_prefix("calls="))
            .and_then(|calls| calls.parse().ok())
            .ok_or_else(|| io::Error::other(format!("{field} has no number of calls: {stats}")))
    }

    /// A figure of `INFO stats`.
    pub fn stat(&self, name: &str) -> io::Result<u64> {
        let info = text(self.query(&[b"INFO", b"stats"])?)?;
        let figure = info_field(&info, name).and_then(|figure| figure.parse().ok());
        figure.ok_or_else(|| io::Error::other(format!("INFO stats has no figure {name}")))
    }

    fn forget_connection(&mut self) {
        *self.connection.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The standard library sends no signals; the `kill` of the shell does.
    fn signal(&self, name: &str) -> io::Result<()> {
        // The id of a process that was reaped may belong to another one by now.
        if self.server.is_none() {
            return Err(self.not_running());
        }
        let status = Command::new("sh")
            .args(["-c", r#"kill -s "$1" "$2""#, "sh", name, &self.pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|error| sentence(error.kind(), format!("sh could not be run: {error}")))?;
        if status.success() { Ok(()) } else { Err(self.not_running()) }
    }

    fn not_running(&self) -> io::Error {
        sentence(
            ErrorKind::NotConnected,
            format!("the redis-server of port {} is not running", self.port),
        )
    }

    fn query_failed(&self, error: &io::Error) -> io::Error {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => sentence(
                ErrorKind::TimedOut,
                format!(
                    "the redis-server of port {} did not answer within {} s",
                    self.port,
                    QUERY_TIMEOUT.as_secs()
                ),
            ),
            kind => sentence(
                kind,
                format!("the redis-server of port {} could not be asked: {error}", self.port),
            ),
        }
    }
}

/// Several masters.
#[derive(Debug)]
pub struct Masters {
    all: Vec<Master>,
}

impl Masters {
    /// Starts `n` masters at the same time and waits for all of them.
    pub fn start(n: usize) -> io::Result<Masters> {
        Masters::start_with(n, &[])
    }

    /// Starts `n` masters with more arguments, the same for each.
    pub fn start_with(n: usize, extra_args: &[&str]) -> io::Result<Masters> {
        // All ports are held until all are chosen, so that they differ.
        let held = (0..n).map(|_| free_port()).collect::<io::Result<Vec<_>>>()?;
        let ports = held.iter().map(local_port).collect::<io::Result<Vec<_>>>()?;
        drop(held);
        let launch = |port| Master::launch(Settings::new(extra_args, false), port);
        let mut all = ports.into_iter().map(launch).collect::<io::Result<Vec<_>>>()?;
        for master in &mut all {
            master.settle()?;
        }
        Ok(Masters { all })
    }

    /// The URL of each master, in order.
    pub fn urls(&self) -> Vec<String> {
        self.all.iter().map(Master::url).collect()
    }

    /// The number of masters, running or not.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no masters.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Each master, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Master> {
        self.all.iter()
    }

    /// Each master, in order, for killing or restarting it.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Master> {
        self.all.iter_mut()
    }
}

impl Index<usize> for Masters {
    type Output = Master;

    fn index(&self, index: usize) -> &Master {
        &self.all[index]
    }
}

impl IndexMut<usize> for Masters {
    fn index_mut(&mut self, index: usize) -> &mut Master {
        &mut self.all[index]
    }
}

impl<'a> IntoIterator for &'a Masters {
    type Item = &'a Master;
    type IntoIter = std::slice::Iter<'a, Master>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Masters {
    type Item = &'a mut Master;
    type IntoIter = std::slice::IterMut<'a, Master>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

const LOG_FILE: &str = "redis.log";
const OUTPUT_FILE: &str = "redis.out";
const SOCKET_FILE: &str = "redis.sock";

/// The settings that stay the same from one start to the next.
#[derive(Debug)]
struct Settings {
    binary: OsString,
    extra_args: Vec<String>,
    environment: Vec<(OsString, OsString)>,
    password: Option<String>,
    socket: bool,
}

impl Settings {
    fn new(extra_args: &[&str], socket: bool) -> Settings {
        let password = extra_args.iter().position(|arg| *arg == "--requirepass");
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
        }
    }
}

/// A process, and the input of the `sh` that ends it if this process cannot.
#[derive(Debug)]
struct Server {
    child: Child,
    watchdog: Option<Arc<ChildStdin>>,
}

impl Server {
    fn spawn(settings: &Settings, port: u16, folder: &Folder) -> io::Result<Server> {
        let watchdog = folder.watchdog_input.clone();
        let folder = &folder.path;
        let output = fs::File::create(folder.join(OUTPUT_FILE))?;
        let mut command = Command::new(&settings.binary);
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "no", "--daemonize", "no", "--protected-mode", "no"])
            .args(["--databases", "16"])
            .arg("--dir")
            .arg(folder)
            .arg("--logfile")
            .arg(folder.join(LOG_FILE));
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
    fn end(&mut self) -> io::Result<()> {
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
struct Folder {
    path: PathBuf,
    watchdog: Option<Child>,
    watchdog_input: Option<Arc<ChildStdin>>,
}

impl Folder {
    fn create() -> io::Result<Folder> {
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

/// A blocking client, just enough for queries.
#[derive(Debug)]
struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    fn open(port: u16, password: Option<&str>, timeout: Duration) -> io::Result<Connection> {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream: BufReader::new(stream) };
        if let Some(password) = password {
            match connection.ask(&[b"AUTH", password.as_bytes()])? {
                Value::Status(_) => {}
                other => return Err(unexpected(&other)),
            }
        }
        Ok(connection)
    }

    fn ask(&mut self, args: &[&[u8]]) -> io::Result<Value> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        self.read_value(MAX_DEPTH)
    }

    fn read_value(&mut self, depth: usize) -> io::Result<Value> {
        let line = self.read_line()?;
        let rest = line.get(1..).unwrap_or_default();
        match line.as_bytes().first() {
            Some(b'+') => Ok(Value::Status(rest.to_owned())),
            Some(b'-') => Ok(Value::Error(rest.to_owned())),
            Some(b':') => rest.parse().map(Value::Integer).map_err(|_| malformed(&line)),
            Some(b'$') => {
                let Some(length) = length(rest, MAX_BULK).ok_or_else(|| malformed(&line))? else {
                    return Ok(Value::Nil);
                };
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(Value::Bulk(bytes))
            }
            Some(b'*') if depth > 0 => {
                let Some(length) = length(rest, MAX_ARRAY).ok_or_else(|| malformed(&line))? else {
                    return Ok(Value::Nil);
                };
                (0..length)
                    .map(|_| self.read_value(depth - 1))
                    .collect::<io::Result<_>>()
                    .map(Value::Array)
            }
            _ => Err(malformed(&line)),
        }
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.stream).take(MAX_LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&line);
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(malformed(&line)),
        }
    }
}

/// The length in a header; the inner `None` stands for a null bulk string or array.
fn length(text: &str, cap: usize) -> Option<Option<usize>> {
    match text.parse::<i64>() {
        Ok(-1) => Some(None),
        Ok(length) => usize::try_from(length).ok().filter(|length| *length <= cap).map(Some),
        Err(_) => None,
    }
}

/// One line of an `INFO` reply.
fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn integer(value: Value) -> io::Result<i64> {
    match value {
        Value::Integer(number) => Ok(number),
        other => Err(unexpected(&other)),
    }
}

fn text(value: Value) -> io::Result<String> {
    match value {
        Value::Bulk(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(value: &Value) -> io::Error {
    match value {
        Value::Error(message) => io::Error::other(format!("redis-server refused: {message}")),
        other => io::Error::other(format!("redis-server gave an unexpected reply: {other:?}")),
    }
}

fn malformed(line: &str) -> io::Error {
    sentence(ErrorKind::InvalidData, format!("this is no reply of a redis-server: {line:?}"))
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
    )
}

fn spawn_failed(error: &io::Error) -> io::Error {
    let named = env::var_os(SERVER_VARIABLE).filter(|path| !path.is_empty());
    let message = match (error.kind(), named) {
        (ErrorKind::NotFound, Some(path)) => {
            format!("{SERVER_VARIABLE} names {}, which does not exist", path.to_string_lossy())
        }
        (ErrorKind::NotFound, None) => "redis-server is not installed or not on PATH; run \
             scripts/bootstrap or install the package redis-server"
            .to_owned(),
        _ => format!("redis-server could not be started: {error}"),
    };
    sentence(error.kind(), message)
}

fn sentence(kind: ErrorKind, message: String) -> io::Error {
    io::Error::new(kind, message)
}

/// The state of a process as one letter, `T` if it is stopped; `None` if there is no such process.
fn process_state(pid: u32) -> io::Result<Option<char>> {
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

/// Holds a free port; dropping the listener frees it again.
fn free_port() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(|error| sentence(error.kind(), format!("there is no free port: {error}")))
}

fn local_port(listener: &TcpListener) -> io::Result<u16> {
    Ok(listener.local_addr()?.port())
}

fn deadline(cap: Duration) -> Instant {
    now() + cap
}

#[expect(clippy::disallowed_methods, reason = "waits for other processes, not for locks")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "makes the name of a folder unlikely to exist")]
fn wall_nanos() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

#[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
fn pause(interval: Duration) {
    std::thread::sleep(interval);
}
