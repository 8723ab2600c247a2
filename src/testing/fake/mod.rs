//! Masters in the process of the test, which answer what muxlock asks, and fail on order.

mod clock;
mod commands;
mod forms;
mod info;
mod keys;
mod request;
mod server;

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::clock::now;
use self::commands::{Data, Outcome, Session};
use self::server::Shared;
use super::masters::pause;
use super::query::Value;

/// The value of a key that [`FakeMaster::hold`] sets. No client draws it as its token.
const OTHER_HOLDER: &[u8; 40] = b"ffffffffffffffffffffffffffffffffffffffff";
/// How long the thread that accepts connections may take to be woken.
const WAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a port is tried again that another process has taken for the moment, and the interval.
const BIND_ATTEMPTS_MAX: u32 = 1_000;
const BIND_INTERVAL: Duration = Duration::from_millis(2);

/// A server in this process, on its own loopback port, that acts as a master for muxlock. Dropping
/// it ends it.
///
/// It needs no `redis-server`, and starts and fails within a millisecond. It reports a long uptime,
/// so that it votes at once: the [restart guard](crate::settings::RestartGuard) can stay on.
///
/// It knows the commands by which muxlock takes, extends and releases locks, and `GET`, `DEL`,
/// `EXISTS`, `PTTL`, `DBSIZE` and `FLUSHALL`; it runs muxlock's own scripts for that and no others.
/// It has no `SUBSCRIBE`, so clients cannot wait in a queue there: they retry after random delays
/// ([`Waiting`](crate::settings::Waiting)). It accepts up to 128 connections, and closes a
/// connection that sends invalid commands.
///
/// The effect of a method applies to every command that arrives after the call.
pub struct FakeMaster {
    shared: Arc<Shared>,
    addr: SocketAddr,
    /// `None` while it is stopped.
    acceptor: Option<JoinHandle<()>>,
}

impl FakeMaster {
    /// Starts a server on a free port.
    ///
    /// # Errors
    ///
    /// Fails if there is no free port, or no thread can be started.
    pub fn start() -> io::Result<FakeMaster> {
        FakeMaster::start_as(None)
    }

    /// Starts a server that requires this password of the user `default`.
    ///
    /// [`url`](FakeMaster::url) does not contain it: a client needs `redis://:secret@` and the
    /// address.
    ///
    /// # Errors
    ///
    /// The same as [`FakeMaster::start`].
    pub fn start_with_password(password: &str) -> io::Result<FakeMaster> {
        FakeMaster::start_as(Some(password.to_owned()))
    }

    fn start_as(password: Option<String>) -> io::Result<FakeMaster> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::new(Data::new(now(), addr.port(), password)));
        let mut master = FakeMaster { shared, addr, acceptor: None };
        master.listen(listener)?;
        Ok(master)
    }

    fn listen(&mut self, listener: TcpListener) -> io::Result<()> {
        self.shared.change(|state| state.is_listening = true);
        let shared = Arc::clone(&self.shared);
        let name = format!("fake master {}", self.port());
        let accept = move || shared.accept_all(&listener);
        let started = thread::Builder::new().name(name).spawn(accept);
        let started = started.inspect_err(|_| self.shared.lock().is_listening = false);
        self.acceptor = Some(started?);
        Ok(())
    }

    /// The TCP port; it stays the same when the master is stopped and started again.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        self.addr.to_string()
    }

    /// `redis://127.0.0.1:PORT`, without the password if there is one.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Makes it answer each command that takes, extends or releases a lock with this error, such as
    /// `MISCONF Errors writing to the AOF file`, until [`obey`](FakeMaster::obey). (A real server
    /// that is out of memory, `OOM`, refuses only to take locks; it extends and releases them.)
    ///
    /// A client tries such a command when it connects, so a client that connects in this state gets
    /// no vote.
    pub fn refuse(&self, error: &str) {
        self.shared.change(|state| state.refusal = Some(error.to_owned()));
    }

    /// Ends the effect of [`refuse`](FakeMaster::refuse).
    pub fn obey(&self) {
        self.shared.change(|state| state.refusal = None);
    }

    /// Stops executing and answering until [`thaw`](FakeMaster::thaw). Connections stay, and new
    /// ones can be made.
    pub fn freeze(&self) {
        self.shared.change(|state| state.is_frozen = true);
    }

    /// Executes and answers the commands that have arrived since [`freeze`](FakeMaster::freeze),
    /// and all later ones.
    pub fn thaw(&self) {
        self.shared.change(|state| state.is_frozen = false);
    }

    /// Sends each answer this long after its command has arrived and been executed, as over a slow
    /// network. With zero, it sends them at once, as it does at the start.
    pub fn answer_after(&self, delay: Duration) {
        self.shared.change(|state| state.delay = delay);
    }

    /// Acts like a restart without data: it deletes all keys, ends all connections and reports a
    /// new process that has just started. So a client with the restart guard ignores its votes for
    /// some time; see [`LockError::ready_in`](crate::LockError::ready_in).
    pub fn forget(&self) {
        self.shared.change(|state| {
            state.end_connections();
            state.data.restart(now());
        });
    }

    /// Ends all connections and refuses new ones, until
    /// [`start_again`](FakeMaster::start_again). A frozen master is thawed.
    pub fn stop(&mut self) {
        let Some(acceptor) = self.acceptor.take() else {
            return;
        };
        self.shared.change(|state| {
            (state.is_listening, state.is_frozen) = (false, false);
            state.end_connections();
        });
        // If even this fails, the next connection wakes that thread, and is refused.
        if TcpStream::connect_timeout(&self.addr, WAKE_TIMEOUT).is_ok() {
            // It panics for no reason that is not a bug of its own, which a test has seen then.
            let _ = acceptor.join();
        }
    }

    /// Accepts connections again, on the same port, as after a failure of the network: it is the
    /// same process and has its data, and its votes count at once. For a restart, also call
    /// [`forget`](FakeMaster::forget). Does nothing if the master was not stopped.
    ///
    /// # Errors
    ///
    /// Fails if another process has taken the port and keeps it for 2 s, or if no thread can be
    /// started.
    pub fn start_again(&mut self) -> io::Result<()> {
        if self.acceptor.is_some() {
            return Ok(());
        }
        let mut attempts = 1;
        let listener = loop {
            match TcpListener::bind(self.addr) {
                Err(error)
                    if error.kind() == ErrorKind::AddrInUse && attempts < BIND_ATTEMPTS_MAX =>
                {
                    attempts += 1;
                    pause(BIND_INTERVAL);
                }
                bound => break bound?,
            }
        };
        self.listen(listener)
    }

    /// Gives a key to another holder for this long, even if it is held: locks of that name are
    /// contended, and a held lock is lost. A client with a
    /// [`key_prefix`](crate::Builder::key_prefix) uses keys that begin with it.
    pub fn hold(&self, key: impl AsRef<[u8]>, ttl: Duration) {
        self.shared.lock().data.first().put(now(), key.as_ref(), OTHER_HOLDER, ttl);
    }

    /// Executes a command and returns the reply, in any state of the master: it needs no connection
    /// and no password, and no fault applies. Databases cannot be selected; keys are those of the
    /// first one.
    pub fn query(&self, args: &[&[u8]]) -> Value {
        if args.is_empty() {
            return Value::Error("ERR there is no command".into());
        }
        let mut session = Session::new(0);
        session.is_authenticated = true;
        let mut state = self.shared.lock();
        match state.data.execute(now(), &mut session, args) {
            Outcome::Reply(value) => value,
            Outcome::Flushed => {
                state.tell_flush();
                Value::Status("OK".into())
            }
            Outcome::Frame(_) | Outcome::Kill(_) => {
                Value::Error("ERR this needs a connection".into())
            }
        }
    }

    /// The time to live of a key in milliseconds: -2 if there is no such key, -1 if it never
    /// expires.
    pub fn pttl(&self, key: &[u8]) -> i64 {
        match self.query(&[b"PTTL", key]) {
            Value::Integer(millis) => millis,
            other => unreachable!("PTTL is answered with a number, not with {other:?}"),
        }
    }

    /// The value of a key; `None` if there is no such key.
    pub fn value_of(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.query(&[b"GET", key]) {
            Value::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The number of keys in the first database. It leaves out `muxlock:marker`, a key without a
    /// TTL that clients use to notice a flush.
    pub fn dbsize(&self) -> u64 {
        self.shared.lock().data.first().count_without_marker(now()) as u64
    }

    /// Removes every key, and notifies the clients: the restart guard ignores its votes.
    pub fn flush(&self) {
        self.query(&[b"FLUSHALL"]);
    }
}

impl Drop for FakeMaster {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for FakeMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut state = self.shared.lock();
        let keys = state.data.first().count(now());
        f.debug_struct("FakeMaster")
            .field("addr", &self.addr)
            .field("is_listening", &state.is_listening)
            .field("is_frozen", &state.is_frozen)
            .field("refuses", &state.refusal)
            .field("answers_after", &state.delay)
            .field("connections", &state.connections())
            .field("keys", &keys)
            .finish()
    }
}

/// Several fake masters that were started together.
///
/// `masters[0]` is the first one. Dropping the value ends all of them.
#[derive(Debug)]
pub struct FakeMasters {
    all: Vec<FakeMaster>,
}

impl FakeMasters {
    /// Starts `n` fake masters.
    ///
    /// # Errors
    ///
    /// The same as [`FakeMaster::start`].
    pub fn start(n: usize) -> io::Result<FakeMasters> {
        let all = (0..n).map(|_| FakeMaster::start()).collect::<io::Result<_>>()?;
        Ok(FakeMasters { all })
    }

    /// Gives a key to another holder on each of them; see [`FakeMaster::hold`].
    pub fn hold(&self, key: impl AsRef<[u8]>, ttl: Duration) {
        self.all.iter().for_each(|master| master.hold(&key, ttl));
    }
}

list_of_masters!(FakeMasters, FakeMaster);
