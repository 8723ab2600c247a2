//! A TCP server that a test scripts, for servers that misbehave.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How many connections are served at the same time; more are closed at once.
const MAX_CONNECTIONS: usize = 1024;
/// How much is read at once, in bytes.
const CHUNK: usize = 64 * 1024;
/// The longest command, in bytes.
const MAX_COMMAND: usize = 16 * 1024 * 1024;
/// The most arguments of a command.
const MAX_ARGUMENTS: usize = 1024 * 1024;
/// How long a reset waits for something to leave unread.
const RESET_CAP: Duration = Duration::from_secs(2);
/// How long the server's connection to itself may take, when it stops.
const WAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);
/// How long a script may go on after its server was stopped.
const SCRIPT_END_CAP: Duration = Duration::from_secs(10);
/// How long to wait before looking again whether a script goes on.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How many keys the store holds.
const MAX_KEYS: usize = 1024 * 1024;
/// How many ports [`refused_addr`] keeps from being reused.
const MAX_REFUSED: usize = 128;
/// How many connections [`never_accepting`] makes to fill a backlog.
const MAX_FILLERS: usize = 512;
/// How old a server says that it is when it starts: old enough to be trusted.
const AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// How many commands a client begins with, without a password, a database or a restart guard. With
/// the guard it also asks when others first saw the server.
pub const HANDSHAKE: usize = 9;
/// How long a connection to a full backlog is given before it counts as pending.
const FILLER_TIMEOUT: Duration = Duration::from_millis(150);

/// A server that runs a script for each connection.
///
/// Dropping it closes every connection and ends every thread; it panics then if a script has
/// panicked, so that a script may assert, or if a script goes on all the same.
#[derive(Debug)]
pub struct Scripted {
    addr: SocketAddr,
    shared: Arc<Shared>,
    // It returns how many scripts went on.
    acceptor: Option<JoinHandle<usize>>,
}

impl Scripted {
    /// Listens on a free loopback port, and runs `script` for each connection, on a thread of its
    /// own. The connection is closed when the script returns; its result is for the convenience of
    /// `?`, since a client that went away is no failure.
    ///
    /// # Panics
    ///
    /// Panics if there is no free port or no thread to be had.
    pub fn start(script: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static) -> Scripted {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("an address of the listener");
        let shared = Arc::new(Shared::new(addr.port()));
        let for_acceptor = Arc::clone(&shared);
        let acceptor = thread::Builder::new()
            .name("scripted".into())
            .spawn(move || accept(&listener, &Arc::new(script), &for_acceptor))
            .expect("a thread");
        Scripted { addr, shared, acceptor: Some(acceptor) }
    }

    /// A server that never misbehaves.
    pub fn well_behaved() -> Scripted {
        Scripted::start(|peer| peer.serve_normally(None))
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// How many connections there have been so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// The keys that exist now beside the marker, and their values.
    pub fn store(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut store = self.shared.store();
        store.expire();
        let of_locks = store.keys.iter().filter(|(key, _)| !key.ends_with(b"muxlock:marker"));
        of_locks.map(|(key, entry)| (key.clone(), entry.value.clone())).collect()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.shared.stop();
        // Accepting can only be interrupted by a connection. If this one fails, the queue of the
        // listener is full, and accepting goes on anyway.
        let _ = TcpStream::connect_timeout(&self.addr, WAKE_TIMEOUT);
        let left = match self.acceptor.take().map(JoinHandle::join) {
            Some(Ok(left)) => left,
            // Its panic has been printed.
            Some(Err(_)) | None => 0,
        };
        let panicked = self.shared.panicked.load(Ordering::SeqCst);
        assert!(!panicked || thread::panicking(), "a script panicked; see above");
        // A thread cannot be ended from outside, and a test that hangs says nothing.
        assert!(left == 0 || thread::panicking(), "{left} scripts go on after their server");
    }
}

/// The state that the threads share.
#[derive(Debug)]
struct Shared {
    port: u16,
    run_id: String,
    started: Instant,
    accepted: AtomicUsize,
    panicked: AtomicBool,
    state: Mutex<State>,
    stopped: Condvar,
    store: Mutex<Store>,
}

#[derive(Debug, Default)]
struct State {
    stopping: bool,
    // Each open connection, to close it from outside.
    open: HashMap<usize, Arc<TcpStream>>,
    // The other sources that a script reads from.
    upstreams: Vec<TcpStream>,
}

impl Shared {
    fn new(port: u16) -> Shared {
        Shared {
            port,
            run_id: random_hex(),
            started: now(),
            accepted: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            state: Mutex::default(),
            stopped: Condvar::new(),
            store: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        for stream in state.open.values().map(Arc::as_ref).chain(&state.upstreams) {
            // It fails if the other end has closed it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.stopped.notify_all();
    }

    /// Whether the connection may go on: the server is not stopping, and has room.
    fn register(&self, id: usize, stream: &Arc<TcpStream>) -> bool {
        let mut state = self.lock();
        if state.stopping || state.open.len() >= MAX_CONNECTIONS {
            return false;
        }
        state.open.insert(id, Arc::clone(stream));
        true
    }

    fn forget(&self, id: usize) {
        self.lock().open.remove(&id);
    }

    /// Waits for `time`, or until the server stops; whether it was the former.
    fn pause(&self, time: Duration) -> bool {
        let (state, _) = self
            .stopped
            .wait_timeout_while(self.lock(), time, |state| !state.stopping)
            .unwrap_or_else(PoisonError::into_inner);
        !state.stopping
    }

    fn wait_for_stop(&self) {
        drop(
            self.stopped
                .wait_while(self.lock(), |state| !state.stopping)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

/// Runs scripts until the server stops; returns how many of them went on after that.
fn accept<F>(listener: &TcpListener, script: &Arc<F>, shared: &Arc<Shared>) -> usize
where
    F: Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static,
{
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    loop {
        let accepted = listener.accept();
        if shared.lock().stopping {
            break;
        }
        connections.retain(|connection| !connection.is_finished());
        let Ok((stream, _)) = accepted else {
            // The client may have gone, or descriptors have run out: the latter takes time.
            shared.pause(ACCEPT_PAUSE);
            continue;
        };
        let id = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let stream = Arc::new(stream);
        if !shared.register(id, &stream) {
            continue;
        }
        // Replies byte by byte are to arrive byte by byte. It fails if the client is gone.
        let _ = stream.set_nodelay(true);
        let mut peer = Peer::new(id, stream, Arc::clone(shared));
        let script = Arc::clone(script);
        let spawned = thread::Builder::new().name(format!("scripted-{id}")).spawn(move || {
            // How a connection fails is for the test to notice, at its other end.
            if catch_unwind(AssertUnwindSafe(|| script(&mut peer))).is_err() {
                peer.shared.panicked.store(true, Ordering::SeqCst);
            }
        });
        match spawned {
            Ok(connection) => connections.push(connection),
            Err(_) => shared.forget(id),
        }
    }
    let deadline = now() + SCRIPT_END_CAP;
    while connections.iter().any(|connection| !connection.is_finished()) && now() < deadline {
        pause(POLL_INTERVAL);
    }
    connections.iter().filter(|connection| !connection.is_finished()).count()
}

/// One connection of a script.
#[derive(Debug)]
pub struct Peer {
    id: usize,
    stream: Option<Arc<TcpStream>>,
    shared: Arc<Shared>,
    received: Vec<u8>,
    // The last byte of `received` is still in the queue of the operating system: it makes closing
    // the connection a reset.
    last_unread: bool,
}

impl Peer {
    fn new(id: usize, stream: Arc<TcpStream>, shared: Arc<Shared>) -> Peer {
        Peer { id, stream: Some(stream), shared, received: Vec::new(), last_unread: false }
    }

    /// The number of this connection: the first one is 0.
    pub fn index(&self) -> usize {
        self.id
    }

    /// Whether the server is being dropped: a script that loops should return then.
    pub fn stopping(&self) -> bool {
        self.shared.lock().stopping
    }

    /// Reads one command: an array of bulk strings. `None` at the end of the stream.
    pub fn read_command(&mut self) -> io::Result<Option<Vec<Vec<u8>>>> {
        loop {
            if let Some((command, length)) = parse_command(&self.received)? {
                self.received.drain(..length);
                return Ok(Some(command));
            }
            if self.received.len() >= MAX_COMMAND {
                return Err(malformed("the command is too long"));
            }
            if !self.receive()? {
                return match self.received.is_empty() {
                    true => Ok(None),
                    false => Err(ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    /// Waits for more bytes; `false` at the end of the stream.
    fn receive(&mut self) -> io::Result<bool> {
        self.take_last_unread()?;
        let mut stream = self.stream()?;
        let mut chunk = vec![0; CHUNK];
        let length = stream.peek(&mut chunk)?;
        if length == 0 {
            return Ok(false);
        }
        let last = chunk[length - 1];
        stream.read_exact(&mut chunk[..length - 1])?;
        self.received.extend_from_slice(&chunk[..length - 1]);
        self.received.push(last);
        self.last_unread = true;
        Ok(true)
    }

    fn take_last_unread(&mut self) -> io::Result<()> {
        if self.last_unread {
            self.last_unread = false;
            // It has been received, hence this does not wait.
            self.stream()?.read_exact(&mut [0])?;
        }
        Ok(())
    }

    fn stream(&self) -> io::Result<&TcpStream> {
        self.stream.as_deref().ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// Sends any bytes.
    pub fn reply(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream()?.write_all(bytes)
    }

    /// Sends these bytes one by one, with a gap after each.
    pub fn reply_slowly(&mut self, bytes: &[u8], gap: Duration) -> io::Result<()> {
        for byte in bytes {
            self.reply(&[*byte])?;
            self.pause(gap)?;
        }
        Ok(())
    }

    /// Waits; fails if the server is dropped meanwhile, so that `?` ends the script.
    pub fn pause(&self, time: Duration) -> io::Result<()> {
        if self.shared.pause(time) { Ok(()) } else { Err(ErrorKind::Interrupted.into()) }
    }

    /// Waits for a message from a test to its script; fails if the test will send nothing, or if
    /// the server is dropped meanwhile.
    pub fn wait_for<T>(&self, channel: &Mutex<Receiver<T>>) -> io::Result<T> {
        let channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match channel.recv_timeout(POLL_INTERVAL) {
                Ok(sent) => return Ok(sent),
                Err(RecvTimeoutError::Timeout) if !self.stopping() => {}
                Err(_) => return Err(ErrorKind::Interrupted.into()),
            }
        }
    }

    /// Has a connection of the script's own closed when the server is dropped, so that the script
    /// does not wait there for ever.
    pub fn upstream(&self, stream: &TcpStream) -> io::Result<()> {
        let stream = stream.try_clone()?;
        let mut state = self.shared.lock();
        if state.stopping {
            return Err(ErrorKind::Interrupted.into());
        }
        state.upstreams.push(stream);
        Ok(())
    }

    /// Closes the connection with a reset (RST).
    ///
    /// The standard library cannot set `SO_LINGER`, but closing a connection sends a reset if
    /// something received was not read. Hence one byte of the client is always left unread; before
    /// the client has sent anything, this waits for it, up to two seconds.
    pub fn reset(&mut self) -> io::Result<()> {
        if !self.last_unread {
            let stream = self.stream()?;
            stream.set_read_timeout(Some(RESET_CAP))?;
            if stream.peek(&mut [0])? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        // It closes when the last one drops it; not by a shutdown, which would not reset.
        self.shared.forget(self.id);
        self.stream = None;
        Ok(())
    }

    /// Ends the stream to the client (FIN); commands can still be read.
    pub fn half_close(&mut self) -> io::Result<()> {
        self.stream()?.shutdown(Shutdown::Write)
    }

    /// Keeps the connection open and silent until the server is dropped.
    pub fn hold(&mut self) -> io::Result<()> {
        self.shared.wait_for_stop();
        Ok(())
    }

    /// Answers the next `n` commands as Redis would, or all of them with `None`.
    ///
    /// With `None` it returns at the end of the stream; with a number it fails there, so that `?`
    /// ends the script.
    pub fn serve_normally(&mut self, n: Option<usize>) -> io::Result<()> {
        let mut served = 0;
        while n.is_none_or(|n| served < n) {
            let Some(command) = self.read_command()? else {
                return match n {
                    Some(_) => Err(ErrorKind::UnexpectedEof.into()),
                    None => Ok(()),
                };
            };
            let reply = self.normal_reply(&command);
            self.reply(&reply)?;
            served += 1;
        }
        Ok(())
    }

    /// Carries out this command like Redis, and returns the reply without sending it.
    ///
    /// It knows the commands that a lock needs. Any password is right, and all the databases are
    /// the same one; the connections of one server share their keys.
    pub fn normal_reply(&self, command: &[Vec<u8>]) -> Vec<u8> {
        let args: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let Some((name, args)) = args.split_first() else {
            return error("Protocol error: an empty command");
        };
        let name = upper(name);
        match (name.as_str(), args) {
            ("PING", []) => simple("PONG"),
            ("AUTH", [_] | [_, _]) => simple("OK"),
            ("HELLO", [b"3", ..]) => format!("%1\r\n$2\r\nid\r\n:{}\r\n", self.id).into_bytes(),
            ("PING", [text]) => bulk(text),
            ("SELECT", [index]) => match number(index) {
                Some(0..16) => simple("OK"),
                _ => error("DB index is out of range"),
            },
            ("CLIENT", [subcommand, rest @ ..]) => match (upper(subcommand).as_str(), rest) {
                ("SETNAME", [_]) | ("TRACKING", _) => simple("OK"),
                ("ID", []) => integer(self.id as i64),
                ("KILL", [id_name, _]) if upper(id_name) == "ID" => integer(0),
                (subcommand, _) => {
                    error(&format!("unknown subcommand '{subcommand}'. Try CLIENT HELP."))
                }
            },
            ("SET", [key, value, options @ ..]) => self.shared.store().set(key, value, options),
            ("GET", [key]) => match self.shared.store().get(key) {
                Some(entry) => bulk(&entry.value),
                None => NIL.to_vec(),
            },
            ("PTTL", [key]) => match self.shared.store().get(key) {
                Some(Entry { expires: Some(expires), .. }) => {
                    let left = expires.saturating_duration_since(now());
                    // Rounded, since the clock of Redis has whole milliseconds.
                    integer(i64::try_from((left.as_micros() + 500) / 1000).unwrap_or(i64::MAX))
                }
                Some(Entry { expires: None, .. }) => integer(-1),
                None => integer(-2),
            },
            ("DBSIZE", []) => {
                let mut store = self.shared.store();
                store.expire();
                integer(store.keys.len() as i64)
            }
            ("EVAL", [script, rest @ ..]) => self.shared.store().eval(script, rest),
            ("EVALSHA", [_, _, ..]) => {
                b"-NOSCRIPT No matching script. Please use EVAL.\r\n".to_vec()
            }
            ("INFO", _) => bulk(self.info().as_bytes()),
            ("TIME", []) => {
                let since = AGE + now().saturating_duration_since(self.shared.started);
                let (seconds, micros) = (since.as_secs(), since.subsec_micros());
                let parts = [seconds.to_string(), micros.to_string()];
                let parts = parts.map(|part| bulk(part.as_bytes()));
                [b"*2\r\n", parts.concat().as_slice()].concat()
            }
            (
                "PING" | "AUTH" | "SELECT" | "CLIENT" | "SET" | "GET" | "PTTL" | "DBSIZE" | "EVAL"
                | "EVALSHA" | "TIME",
                _,
            ) => error(&format!(
                "wrong number of arguments for '{}' command",
                name.to_ascii_lowercase()
            )),
            _ => error(&format!("unknown command '{name}', with args beginning with: ")),
        }
    }

    fn info(&self) -> String {
        let up = (AGE + now().saturating_duration_since(self.shared.started)).as_secs();
        format!(
            "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nprocess_id:1\r\n\
             run_id:{}\r\ntcp_port:{}\r\nuptime_in_seconds:{up}\r\n\r\n\
             # Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\r\n\
             # Persistence\r\nloading:0\r\naof_enabled:0\r\n\r\n\
             # Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n\
             # Cluster\r\ncluster_enabled:0\r\n",
            self.shared.run_id, self.shared.port
        )
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Without the byte that was left unread, closing is an ordinary end of the stream, unless
        // the client has sent more than the script has read. It fails if the client is gone.
        if self.stream.is_some() {
            let _ = self.take_last_unread();
        }
        self.shared.forget(self.id);
    }
}

/// The keys of a server.
#[derive(Debug, Default)]
struct Store {
    keys: HashMap<Vec<u8>, Entry>,
}

#[derive(Debug)]
struct Entry {
    value: Vec<u8>,
    expires: Option<Instant>,
}

impl Store {
    fn expire(&mut self) {
        let now = now();
        self.keys.retain(|_, entry| entry.expires.is_none_or(|expires| now < expires));
    }

    fn get(&mut self, key: &[u8]) -> Option<&Entry> {
        let entry = self.keys.get(key)?;
        if entry.expires.is_some_and(|expires| expires <= now()) {
            self.keys.remove(key);
            return None;
        }
        self.keys.get(key)
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[&[u8]]) -> Vec<u8> {
        let mut only_new = false;
        let mut lifetime = None;
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match upper(option).as_str() {
                "NX" => only_new = true,
                "PX" => match options.next().map(|ms| number(ms)) {
                    Some(Some(ms)) if ms > 0 => lifetime = Some(Duration::from_millis(ms as u64)),
                    Some(Some(_)) => return error("invalid expire time in 'set' command"),
                    Some(None) => return error("value is not an integer or out of range"),
                    None => return error("syntax error"),
                },
                _ => return error("syntax error"),
            }
        }
        if self.get(key).is_some() {
            if only_new {
                return NIL.to_vec();
            }
        } else if self.keys.len() >= MAX_KEYS {
            return b"-OOM command not allowed when used memory > 'maxmemory'.\r\n".to_vec();
        }
        let expires = lifetime.and_then(|lifetime| now().checked_add(lifetime));
        self.keys.insert(key.to_vec(), Entry { value: value.to_vec(), expires });
        simple("OK")
    }

    /// Compare and delete, or compare and extend: which of them is recognised by the command that
    /// the script calls. The arguments are the number 1, the key, the value, and the lifetime.
    fn eval(&mut self, script: &[u8], rest: &[&[u8]]) -> Vec<u8> {
        let script = upper(script);
        let (key, value, lifetime) = match rest {
            // The marker.
            [b"1", key, id] if script.contains("\"!\"") => {
                let marker = [b"!".as_slice(), id, b"1"].concat();
                self.set(key, &marker, &[b"NX"]);
                return self.get(key).map_or(NIL.to_vec(), |entry| bulk(&entry.value));
            }
            [b"1", key, value] if script.contains("DEL") => (*key, *value, None),
            [b"1", key, value, ms] if script.contains("PEXPIRE") => match number(ms) {
                Some(ms) => (*key, *value, Some(ms)),
                None => return error("value is not an integer or out of range script: script"),
            },
            // The trial of the commands that scripts call.
            [b"0", ..] if script.contains("UNPACK(") => return integer(0),
            _ => return error("this server does not know that script"),
        };
        if self.get(key).is_none_or(|entry| entry.value != value) {
            return integer(0);
        }
        match lifetime {
            Some(ms) if ms > 0 => {
                if let Some(entry) = self.keys.get_mut(key) {
                    entry.expires = now().checked_add(Duration::from_millis(ms as u64));
                }
            }
            // A lifetime of nothing deletes, as in Redis.
            _ => drop(self.keys.remove(key)),
        }
        integer(1)
    }
}

const NIL: &[u8] = b"$-1\r\n";

fn simple(text: &str) -> Vec<u8> {
    format!("+{text}\r\n").into_bytes()
}

fn error(text: &str) -> Vec<u8> {
    format!("-ERR {text}\r\n").into_bytes()
}

fn integer(number: i64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut reply = format!("${}\r\n", bytes.len()).into_bytes();
    reply.extend_from_slice(bytes);
    reply.extend_from_slice(b"\r\n");
    reply
}

fn upper(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).to_ascii_uppercase()
}

fn number(bytes: &[u8]) -> Option<i64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn malformed(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("this is no command: {why}"))
}

/// The command at the start of the bytes, and its length; `None` if there is more to come.
fn parse_command(bytes: &[u8]) -> io::Result<Option<(Vec<Vec<u8>>, usize)>> {
    let Some((count, mut at)) = parse_header(bytes, 0, b'*', MAX_ARGUMENTS)? else {
        return Ok(None);
    };
    let mut command = Vec::new();
    for _ in 0..count {
        let Some((length, start)) = parse_header(bytes, at, b'$', MAX_COMMAND)? else {
            return Ok(None);
        };
        let end = start + length;
        let Some(terminator) = bytes.get(end..end + 2) else {
            return Ok(None);
        };
        if terminator != b"\r\n" {
            return Err(malformed("an argument does not end where it should"));
        }
        command.push(bytes[start..end].to_vec());
        at = end + 2;
    }
    Ok(Some((command, at)))
}

/// The number of the header at this place, and the place after it.
fn parse_header(
    bytes: &[u8],
    at: usize,
    kind: u8,
    cap: usize,
) -> io::Result<Option<(usize, usize)>> {
    let bytes = &bytes[at..];
    match bytes.first() {
        None => return Ok(None),
        Some(first) if *first == kind => {}
        Some(_) => return Err(malformed("it is not an array of bulk strings")),
    }
    let Some(length) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    number(&bytes[1..length])
        .and_then(|number| usize::try_from(number).ok())
        .filter(|number| *number <= cap)
        .map(|number| Some((number, at + length + 2)))
        .ok_or_else(|| malformed("a length is none"))
}

/// Forty hexadecimal digits, others each time.
fn random_hex() -> String {
    let mut hex = String::new();
    for part in 0..3 {
        let _ = write!(hex, "{:016x}", RandomState::new().hash_one(part));
    }
    hex.truncate(40);
    hex
}

/// An address at which nothing listens, and at which nothing will begin to listen by chance.
///
/// A port that was free a moment ago may be given to another test. Hence this is the port of the
/// client's end of a connection, which is kept: the port is taken, but connecting to it is refused.
///
/// # Panics
///
/// Panics if there is no free port.
pub fn refused_addr() -> SocketAddr {
    refused_addr_at(Ipv4Addr::LOCALHOST)
}

/// The same on another loopback address.
///
/// # Panics
///
/// Panics if there is no free port.
pub fn refused_addr_at(ip: Ipv4Addr) -> SocketAddr {
    static KEPT: Mutex<Vec<(TcpStream, TcpStream)>> = Mutex::new(Vec::new());
    let listener = TcpListener::bind((ip, 0)).expect("a free port");
    let to = listener.local_addr().expect("an address of the listener");
    let client = TcpStream::connect(to).expect("a connection to the listener");
    let (server, _) = listener.accept().expect("the connection just made");
    let addr = client.local_addr().expect("an address of the client");
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() >= MAX_REFUSED {
        // The oldest one: its test is the most likely to be over.
        kept.remove(0);
    }
    kept.push((client, server));
    addr
}

/// A listener that accepts nothing, so that connecting to it hangs.
#[derive(Debug)]
pub struct NeverAccepting {
    addr: SocketAddr,
    full: bool,
    _listener: TcpListener,
    _fillers: Vec<TcpStream>,
}

impl NeverAccepting {
    /// Where connecting hangs.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Whether connecting really hangs: if not, the operating system's backlog is too long to be
    /// filled, and a connection is established but nothing ever answers.
    pub fn is_full(&self) -> bool {
        self.full
    }
}

/// A listener that accepts nothing and whose backlog is full.
///
/// The standard library asks for a backlog of 128, and has no way to ask for less; it is filled
/// with unused connections, until one of them hangs.
///
/// # Panics
///
/// Panics if there is no free port.
pub fn never_accepting() -> NeverAccepting {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let addr = listener.local_addr().expect("an address of the listener");
    let mut fillers = Vec::new();
    let mut full = false;
    while !full && fillers.len() < MAX_FILLERS {
        match TcpStream::connect_timeout(&addr, FILLER_TIMEOUT) {
            Ok(filler) => fillers.push(filler),
            Err(error) if error.kind() == ErrorKind::TimedOut => full = true,
            // Refused or out of descriptors: it does not hang, and more would not help.
            Err(_) => break,
        }
    }
    NeverAccepting { addr, full, _listener: listener, _fillers: fillers }
}

#[expect(clippy::disallowed_methods, reason = "the clock of a server, not of a lock")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a thread cannot be waited for with a limit")]
fn pause(time: Duration) {
    thread::sleep(time);
}
