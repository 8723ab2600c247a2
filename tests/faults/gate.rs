//! A gate between a client and a master: bytes are held back on their way, and arrive when the test
//! says so, also when the client has lost the connection in the meantime.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use muxlock::testing::Master;
use testbed::soon;

/// How much is read at once, in bytes.
const CHUNK: usize = 16 * 1024;
/// More than a client and a master say to each other in a test, in bytes.
const FLOW_BYTES_MAX: usize = 1024 * 1024;
/// How many connections a gate serves.
const CONNECTIONS_MAX: usize = 64;
/// How long a write, or the gate's connection to itself, may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Toward {
    Master,
    Client,
}

/// The gate; dropping it closes every connection and ends every thread. The first connection that
/// it serves is number 0.
pub struct Gate {
    addr: SocketAddr,
    state: Arc<Mutex<State>>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    is_stopping: bool,
    is_shut: bool,
    connections: Vec<Connection>,
    flows: BTreeMap<(usize, Toward), Flow>,
}

#[derive(Clone)]
struct Connection {
    client: Arc<TcpStream>,
    master: Arc<TcpStream>,
}

/// What goes one way on one connection.
#[derive(Default)]
struct Flow {
    /// From the beginning.
    bytes: Vec<u8>,
    passed: usize,
    /// What begins with this is held back, and all that follows.
    held_from: Option<Vec<u8>>,
    is_over: bool,
}

impl Flow {
    fn held(&self) -> &[u8] {
        &self.bytes[self.passed..]
    }

    fn pass(&mut self, to: &TcpStream) {
        let length = self.held().len();
        let open = match &self.held_from {
            None => length,
            Some(from) => {
                let begins = |at: &usize| {
                    let rest = &self.held()[*at..];
                    rest.starts_with(from) || from.starts_with(rest)
                };
                (0..length).find(begins).unwrap_or(length)
            }
        };
        let mut to = to;
        // How a connection fails is for its two ends to notice.
        let _ = to.write_all(&self.held()[..open]);
        self.passed += open;
        if self.is_over && self.held_from.is_none() {
            close(to, Shutdown::Write);
        }
    }
}

impl Gate {
    #[track_caller]
    pub fn start(master: &Master) -> Gate {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("an address of the listener");
        let state = Arc::new(Mutex::new(State::default()));
        let (master, for_acceptor) = (master.addr(), Arc::clone(&state));
        let acceptor = thread::spawn(move || accept(&listener, &master, &for_acceptor));
        Gate { addr, state, acceptor: Some(acceptor) }
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// How many connections there have been so far.
    pub fn accepted(&self) -> usize {
        lock(&self.state).connections.len()
    }

    /// Holds back what goes this way on a connection, which there need not be yet: the next time
    /// that the bytes begin with `from`, those, and all that follows. With nothing, all is held
    /// back from now on.
    pub fn hold(&self, connection: usize, toward: Toward, from: &[u8]) {
        let mut state = lock(&self.state);
        state.flows.entry((connection, toward)).or_default().held_from = Some(from.to_vec());
    }

    /// Whether something that begins like this is held back on its way to the master.
    pub fn is_holding(&self, connection: usize, from: &[u8]) -> bool {
        let state = lock(&self.state);
        let flow = state.flows.get(&(connection, Toward::Master));
        flow.is_some_and(|flow| flow.held().starts_with(from))
    }

    /// The client loses the connection. What is held back stays on its way.
    pub fn cut(&self, connection: usize) {
        close(&lock(&self.state).connections[connection].client, Shutdown::Both);
    }

    /// What is held back arrives at the master now; what follows is passed on.
    pub fn arrive(&self, connection: usize) {
        let mut state = lock(&self.state);
        let master = Arc::clone(&state.connections[connection].master);
        let flow = state.flows.entry((connection, Toward::Master)).or_default();
        flow.held_from = None;
        flow.pass(&master);
    }

    /// What is held back of a lost connection arrives at the master, and its end behind it. Returns
    /// when the master has run what it runs of it.
    #[track_caller]
    pub fn arrive_to_the_end(&self, connection: usize) {
        self.arrive(connection);
        soon("the master has read it to the end", || self.has_ended(connection));
    }

    /// Whether the master has ended the connection.
    pub fn has_ended(&self, connection: usize) -> bool {
        let state = lock(&self.state);
        state.flows.get(&(connection, Toward::Client)).is_some_and(|flow| flow.is_over)
    }

    /// Loses all connections with what is on its way, and refuses new ones.
    pub fn shut(&self) {
        let mut state = lock(&self.state);
        state.is_shut = true;
        state.close_all();
    }

    pub fn open(&self) {
        lock(&self.state).is_shut = false;
    }

    /// How often clients have sent this, on all connections.
    pub fn times_sent(&self, bytes: &[u8]) -> usize {
        let state = lock(&self.state);
        let to_master = state.flows.iter().filter(|((_, toward), _)| *toward == Toward::Master);
        let is_it = |window: &&[u8]| *window == bytes;
        to_master.map(|(_, flow)| flow.bytes.windows(bytes.len()).filter(is_it).count()).sum()
    }
}

impl State {
    fn close_all(&self) {
        for connection in &self.connections {
            close(&connection.client, Shutdown::Both);
            close(&connection.master, Shutdown::Both);
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.state);
            state.is_stopping = true;
            state.close_all();
        }
        // Accepting can only be interrupted by a connection. If this one fails, the queue of the
        // listener is full, and accepting goes on anyway.
        let _ = TcpStream::connect_timeout(&self.addr, WRITE_TIMEOUT);
        if let Some(acceptor) = self.acceptor.take() {
            // A panic has been printed by its thread.
            let _ = acceptor.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn close(stream: &TcpStream, how: Shutdown) {
    // It fails if the other end has closed it already.
    let _ = stream.shutdown(how);
}

fn accept(listener: &TcpListener, master: &str, state: &Mutex<State>) {
    thread::scope(|scope| {
        loop {
            let accepted = listener.accept();
            if lock(state).is_stopping {
                return;
            }
            let connected =
                accepted.and_then(|(client, _)| Ok((client, TcpStream::connect(master)?)));
            let Ok((client, master)) = connected else {
                continue;
            };
            for stream in [&client, &master] {
                // They fail if the other end is gone.
                let _ = stream.set_nodelay(true);
                let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
            }
            let connection = Connection { client: Arc::new(client), master: Arc::new(master) };
            let mut shared = lock(state);
            let number = shared.connections.len();
            if shared.is_stopping || shared.is_shut || number >= CONNECTIONS_MAX {
                continue;
            }
            shared.connections.push(connection.clone());
            let Connection { client, master } = connection;
            let (to_client, to_master) = (Arc::clone(&client), Arc::clone(&master));
            scope.spawn(move || carry(state, (number, Toward::Master), &client, &to_master));
            scope.spawn(move || carry(state, (number, Toward::Client), &master, &to_client));
        }
    });
}

fn carry(state: &Mutex<State>, which: (usize, Toward), mut from: &TcpStream, to: &TcpStream) {
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = match from.read(&mut chunk) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // A reset is passed on as an end.
            Err(_) => 0,
        };
        let mut state = lock(state);
        let flow = state.flows.entry(which).or_default();
        flow.bytes.extend_from_slice(&chunk[..length]);
        assert!(flow.bytes.len() <= FLOW_BYTES_MAX, "a client that says too much");
        flow.is_over = length == 0;
        flow.pass(to);
        if flow.is_over {
            return;
        }
    }
}
