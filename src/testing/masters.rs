//! Real `redis-server` processes on free loopback ports.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::process::{
    Folder, LOG_FILE, OUTPUT_FILE, Ports, SOCKET_FILE, Server, Settings, TlsFiles, process_state,
    sentence,
};
use super::query::{
    Connection, Value, info_field, integer, is_closed, is_marker_key, text, unexpected,
};

/// How long a server may take from its start to its first answer.
const READY_CAP: Duration = Duration::from_secs(10);
/// How long a frozen process may take to show as frozen.
const FREEZE_CAP: Duration = Duration::from_secs(5);
/// How long a process that was asked to end may take.
const STOP_CAP: Duration = Duration::from_secs(5);
/// The interval at which this file polls for something that it waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How many ports to try before giving up: another process may take a port just before the server
/// does.
const MAX_PORTS_TRIED: usize = 5;
/// How long a query may take to connect, to be sent, and to be answered.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest answer to one "are you ready?": a foreign process on the port may never answer.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// How much of a server's output an error quotes.
const MAX_QUOTED_LOG: usize = 600;

/// A `redis-server` process on its own loopback port. This value owns it.
///
/// Dropping it kills the process and removes its folder.
#[derive(Debug)]
pub struct Master {
    settings: Settings,
    ports: Ports,
    pid: u32,
    connection: Mutex<Option<Connection>>,
    // Before the folder, since fields drop in this order and the server writes into its folder.
    server: Option<Server>,
    folder: Folder,
}

impl Master {
    /// Starts a server on a free port and waits until it answers.
    ///
    /// # Errors
    ///
    /// The same as [`Masters::start`].
    pub fn start() -> io::Result<Master> {
        Master::start_with(&[])
    }

    /// Starts a server with additional arguments, such as `["--requirepass", "secret"]`.
    ///
    /// With `--requirepass`, the methods of this type authenticate with that password.
    /// [`url`](Master::url) does not contain it: a client needs `redis://:secret@` and the address.
    ///
    /// # Errors
    ///
    /// The same as [`Masters::start`].
    pub fn start_with(extra_args: &[&str]) -> io::Result<Master> {
        Master::start_as(Settings::new(extra_args, false))
    }

    /// Starts a server with another executable, such as `valkey-server`.
    ///
    /// # Errors
    ///
    /// The same as [`Masters::start`].
    pub fn start_other(binary: &OsStr, extra_args: &[&str]) -> io::Result<Master> {
        Master::start_as(Settings { binary: binary.into(), ..Settings::new(extra_args, false) })
    }

    /// Starts a server with additional variables in its environment, such as `LD_PRELOAD`.
    ///
    /// # Errors
    ///
    /// The same as [`Masters::start`].
    pub fn start_in(environment: &[(&str, &OsStr)]) -> io::Result<Master> {
        let owned = |(name, value): &(&str, &OsStr)| ((*name).into(), (*value).to_owned());
        let environment = environment.iter().map(owned).collect();
        Master::start_as(Settings { environment, ..Settings::new(&[], false) })
    }

    /// Starts a server that also listens on a unix socket in its folder.
    ///
    /// # Errors
    ///
    /// The same as [`Masters::start`].
    pub fn start_with_socket() -> io::Result<Master> {
        Master::start_as(Settings::new(&[], true))
    }

    /// Starts a server that also listens on a [port with TLS](Master::tls_url), with additional
    /// arguments. It asks clients for no certificate, unless the arguments contain
    /// `--tls-auth-clients yes`.
    ///
    /// # Errors
    ///
    /// The same as [`Masters::start`]. A `redis-server` without TLS is an error as well.
    pub fn start_with_tls(files: &TlsFiles, extra_args: &[&str]) -> io::Result<Master> {
        let tls = Some(files.clone());
        Master::start_as(Settings { tls, ..Settings::new(extra_args, false) })
    }

    fn start_as(settings: Settings) -> io::Result<Master> {
        let ports = free_ports(&settings, 1)?;
        let mut master = Master::launch(settings, ports[0])?;
        master.settle()?;
        Ok(master)
    }

    /// Spawns the server without waiting for it.
    fn launch(settings: Settings, ports: Ports) -> io::Result<Master> {
        let folder = Folder::create()?;
        let server = Server::spawn(&settings, ports, &folder)?;
        Ok(Master {
            settings,
            ports,
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
            self.ports = free_ports(&self.settings, 1)?[0];
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
        let server = Server::spawn(&self.settings, self.ports, &self.folder)?;
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
                        format!("another process answers on port {}", self.ports.plain),
                    ));
                }
                Err(error) => {
                    return Err(sentence(
                        ErrorKind::TimedOut,
                        format!(
                            "redis-server on port {} was not ready within {} s: {error}{}",
                            self.ports.plain,
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
        let mut connection = Connection::open(self.socket_addr(), password, PROBE_TIMEOUT)?;
        if connection.ask(&[b"PING"])? != Value::Status("PONG".into()) {
            return Err(io::Error::other("it does not answer PING with PONG"));
        }
        let info = text(connection.ask(&[b"INFO", b"server"])?)?;
        Ok(info_field(&info, "process_id").is_some_and(|pid| pid == self.pid.to_string()))
    }

    fn exited_early(&self) -> io::Error {
        // How it quotes the first setting that it does not know.
        if self.settings.tls.is_some() && self.quoted_log().contains(">>> 'tls-port ") {
            let binary = self.settings.binary.to_string_lossy();
            return sentence(ErrorKind::Unsupported, format!("{binary} was built without TLS"));
        }
        io::Error::other(format!(
            "redis-server ended before it answered on port {}{}",
            self.ports.plain,
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
        self.ports.plain
    }

    fn socket_addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.plain))
    }

    /// `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.ports.plain)
    }

    /// `redis://127.0.0.1:PORT`, without the password if there is one. If the environment sets
    /// [`TLS_VARIABLE`](crate::testing::TLS_VARIABLE), the same as [`tls_url`](Master::tls_url).
    pub fn url(&self) -> String {
        match self.tls_url().filter(|_| self.settings.is_tls_shown) {
            Some(url) => url,
            None => format!("redis://{}", self.addr()),
        }
    }

    /// The port with TLS, if it has one; a restart keeps it.
    pub fn tls_port(&self) -> Option<u16> {
        self.ports.tls
    }

    /// `rediss://127.0.0.1:PORT`, if it has a port with TLS.
    pub fn tls_url(&self) -> Option<String> {
        self.ports.tls.map(|port| format!("rediss://127.0.0.1:{port}"))
    }

    /// The unix socket, if this master was started with one.
    pub fn socket_path(&self) -> Option<PathBuf> {
        self.settings.socket.then(|| self.folder.path.join(SOCKET_FILE))
    }

    /// The process id of the server, or of its last process.
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

    /// Freezes the process (SIGSTOP); returns when it is frozen. The kernel still accepts
    /// connections on its port, but the server does not answer.
    ///
    /// # Errors
    ///
    /// Fails if the process is not running, or is not frozen within 5 s.
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
    ///
    /// # Errors
    ///
    /// Fails if the process is not running.
    pub fn thaw(&self) -> io::Result<()> {
        self.signal("CONT")
    }

    /// Asks the process to end (SIGTERM), frozen or not, waits for at most 5 s, then kills it. Its
    /// data is lost, unless the server was started with persistence. Does nothing if no process
    /// runs.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be waited for.
    pub fn stop(&mut self) -> io::Result<()> {
        self.forget_connection();
        // They fail if the process has ended. A frozen one notices the first with the second.
        let _ = self.signal("TERM");
        let _ = self.signal("CONT");
        let deadline = deadline(STOP_CAP);
        while self.is_running() && now() < deadline {
            pause(POLL_INTERVAL);
        }
        self.kill()
    }

    /// Kills the process immediately (SIGKILL), frozen or not. Its data is lost, unless the server
    /// was started with persistence. Does nothing if no process runs.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be waited for.
    pub fn kill(&mut self) -> io::Result<()> {
        self.forget_connection();
        match self.server.take() {
            Some(mut server) => server.end(),
            None => Ok(()),
        }
    }

    /// Starts the server again, on the same port and with the same arguments; kills it first if it
    /// is running. It has no data then, unless it was started with persistence.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be started, or does not answer within 10 s.
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

    /// Sends a command and returns the reply. The connection is kept for the next query.
    ///
    /// A reply such as `-ERR` is not an error here but a [`Value::Error`]. Like any other command,
    /// every query counts in [`Master::command_calls`].
    ///
    /// # Errors
    ///
    /// Fails if the server cannot be reached, does not answer within 2 s, or sends something that
    /// is not a RESP2 reply.
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
        let mut connection = Connection::open(self.socket_addr(), password, QUERY_TIMEOUT)
            .map_err(|error| self.query_failed(&error))?;
        let value = connection.ask(args).map_err(|error| self.query_failed(&error))?;
        *kept = Some(connection);
        Ok(value)
    }

    /// The time to live of a key in milliseconds: -2 if there is no such key, -1 if it never
    /// expires.
    ///
    /// # Errors
    ///
    /// The same as [`Master::query`]. A refusal by the server is an error as well.
    pub fn pttl(&self, key: &[u8]) -> io::Result<i64> {
        integer(self.query(&[b"PTTL", key])?)
    }

    /// The value of a key; `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// The same as [`Master::query`]. A refusal by the server is an error as well.
    pub fn value_of(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        match self.query(&[b"GET", key])? {
            Value::Bulk(bytes) => Ok(Some(bytes)),
            Value::Nil => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// The number of keys in the first database. It leaves out `muxlock:marker`, a key without a
    /// TTL that clients use to notice a flush.
    ///
    /// # Errors
    ///
    /// The same as [`Master::query`]. A refusal by the server is an error as well.
    pub fn dbsize(&self) -> io::Result<u64> {
        let is_marker = |key: &Value| matches!(key, Value::Bulk(key) if is_marker_key(key));
        match self.query(&[b"KEYS", b"*"])? {
            Value::Array(keys) => Ok(keys.iter().filter(|key| !is_marker(key)).count() as u64),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes every key.
    ///
    /// # Errors
    ///
    /// The same as [`Master::query`]. A refusal by the server is an error as well.
    pub fn flush(&self) -> io::Result<()> {
        match self.query(&[b"FLUSHALL"])? {
            Value::Status(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// How often any client called a command since the server started. A subcommand is named as in
    /// `client|tracking`.
    ///
    /// # Errors
    ///
    /// The same as [`Master::query`]. A refusal by the server is an error as well.
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

    /// The Redis version that the server claims compatibility with, such as `[7, 0, 15]`, for tests
    /// that need a newer server. Every Valkey reports 7.2.4.
    ///
    /// ```no_run
    /// use muxlock::testing::Master;
    ///
    /// let master = Master::start()?;
    /// if master.version()? < [7, 0, 0] {
    ///     eprintln!("SKIPPED: this server has no CLUSTER ADDSLOTSRANGE");
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The same as [`Master::query`]. A refusal by the server, or an answer without a version, is
    /// an error as well.
    pub fn version(&self) -> io::Result<[u32; 3]> {
        let info = text(self.query(&[b"INFO", b"server"])?)?;
        let named = info_field(&info, "redis_version").unwrap_or_default();
        let mut numbers = named.split('.').map(|number| number.parse().ok());
        let mut number = || numbers.next().flatten();
        match (number(), number(), number()) {
            (Some(major), Some(minor), Some(patch)) => Ok([major, minor, patch]),
            _ => Err(io::Error::other(format!("{named:?} is no version of Redis"))),
        }
    }

    /// A figure of `INFO stats`, such as `total_commands_processed`.
    ///
    /// # Errors
    ///
    /// The same as [`Master::query`]. A refusal by the server is an error as well.
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
            format!("the redis-server of port {} is not running", self.ports.plain),
        )
    }

    fn query_failed(&self, error: &io::Error) -> io::Error {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => sentence(
                ErrorKind::TimedOut,
                format!(
                    "the redis-server of port {} did not answer within {} s",
                    self.ports.plain,
                    QUERY_TIMEOUT.as_secs()
                ),
            ),
            kind => sentence(
                kind,
                format!(
                    "the redis-server of port {} could not be asked: {error}",
                    self.ports.plain
                ),
            ),
        }
    }
}

/// Several masters that were started together.
///
/// `masters[0]` is the first one. Dropping the value kills all processes and removes their folders.
#[derive(Debug)]
pub struct Masters {
    all: Vec<Master>,
}

impl Masters {
    /// Starts `n` masters at the same time and waits until all of them answer.
    ///
    /// # Errors
    ///
    /// Fails if there is no `redis-server`, if no free port or temporary folder is available, or if
    /// a server ends before it answers or does not answer within 10 s. It kills the servers that it
    /// had already started.
    pub fn start(n: usize) -> io::Result<Masters> {
        Masters::start_with(n, &[])
    }

    /// Starts `n` masters with additional arguments, the same for each; see [`Master::start_with`].
    ///
    /// # Errors
    ///
    /// The same as [`Masters::start`].
    pub fn start_with(n: usize, extra_args: &[&str]) -> io::Result<Masters> {
        Masters::start_as(n, || Settings::new(extra_args, false))
    }

    /// Starts `n` masters with a port with TLS each, and additional arguments; see
    /// [`Master::start_with_tls`].
    ///
    /// # Errors
    ///
    /// The same as [`Master::start_with_tls`].
    pub fn start_with_tls(n: usize, files: &TlsFiles, args: &[&str]) -> io::Result<Masters> {
        let tls = || Some(files.clone());
        Masters::start_as(n, || Settings { tls: tls(), ..Settings::new(args, false) })
    }

    fn start_as(n: usize, settings: impl Fn() -> Settings) -> io::Result<Masters> {
        let ports = free_ports(&settings(), n)?;
        let launch = |ports| Master::launch(settings(), ports);
        let mut all = ports.into_iter().map(launch).collect::<io::Result<Vec<_>>>()?;
        for master in &mut all {
            master.settle()?;
        }
        Ok(Masters { all })
    }
}

list_of_masters!(Masters, Master);

/// Holds a free port; dropping the listener frees it again.
fn free_port() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .map_err(|error| sentence(error.kind(), format!("there is no free port: {error}")))
}

/// The ports of so many servers. All are held until all are chosen, so that they differ.
fn free_ports(settings: &Settings, n: usize) -> io::Result<Vec<Ports>> {
    let hold = |_| {
        let tls = settings.tls.is_some().then(free_port).transpose()?;
        Ok((free_port()?, tls))
    };
    let held = (0..n).map(hold).collect::<io::Result<Vec<_>>>()?;
    let ports = |(plain, tls): &(TcpListener, Option<TcpListener>)| {
        let tls = tls.as_ref().map(local_port).transpose()?;
        Ok(Ports { plain: local_port(plain)?, tls })
    };
    held.iter().map(ports).collect()
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

#[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
pub(super) fn pause(interval: Duration) {
    std::thread::sleep(interval);
}
