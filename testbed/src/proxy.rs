//! A TCP proxy that makes a loopback server look far away.
//!
//! Arriving bytes are noted with their time and passed on half a round trip later, in each
//! direction for itself: a delay does not hold up later bytes, as on a long cable.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How many connections are served at the same time; more are closed at once.
const MAX_CONNECTIONS: usize = 512;
/// How much is read at once, in bytes.
const CHUNK: usize = 16 * 1024;
/// How many chunks are on their way in one direction; then reading waits, as on a full cable.
const MAX_QUEUED_CHUNKS: usize = 1024;
/// How long to wait after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);
/// How long the upstream may take to accept; dropping the proxy may take as long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The proxy; dropping it closes every connection and ends every thread.
#[derive(Debug)]
pub struct DelayProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl DelayProxy {
    /// Listens on a free loopback port, and passes on to `upstream` with half of `round_trip` of
    /// delay in each direction.
    ///
    /// Only sent bytes are delayed: a client sees its connection established at once, and sees it
    /// closed at once if the upstream refuses.
    pub fn start(upstream: SocketAddr, round_trip: Duration) -> io::Result<DelayProxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let for_acceptor = Arc::clone(&shared);
        let acceptor = thread::Builder::new()
            .name("proxy".into())
            .spawn(move || accept(&listener, upstream, round_trip / 2, &for_acceptor))?;
        Ok(DelayProxy { addr, shared, acceptor: Some(acceptor) })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.shared.stop();
        // Accepting can only be interrupted by a connection. If this one fails, the queue of the
        // listener is full, and accepting goes on anyway.
        let _ = TcpStream::connect_timeout(&self.addr, CONNECT_TIMEOUT);
        if let Some(acceptor) = self.acceptor.take() {
            // A panic has been printed by its thread.
            let _ = acceptor.join();
        }
    }
}

/// The state that the threads share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    stopped: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopping: bool,
    // Both ends of each connection, to close them from outside.
    open: HashMap<u64, Vec<Arc<TcpStream>>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        for stream in state.open.values().flatten() {
            close(stream);
        }
        self.stopped.notify_all();
    }

    /// Whether the connection may go on: the proxy is not stopping, and has room.
    fn register(&self, id: u64, stream: &Arc<TcpStream>) -> bool {
        let mut state = self.lock();
        let is_new = !state.open.contains_key(&id);
        if state.stopping || (is_new && state.open.len() >= MAX_CONNECTIONS) {
            return false;
        }
        state.open.entry(id).or_default().push(Arc::clone(stream));
        true
    }

    fn forget(&self, id: u64) {
        self.lock().open.remove(&id);
    }

    /// Returns at the moment `due`, or earlier, with `false`, if the proxy stops.
    fn wait_until(&self, due: Instant) -> bool {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return false;
            }
            let left = due.saturating_duration_since(now());
            if left.is_zero() {
                return true;
            }
            (state, _) =
                self.stopped.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn accept(listener: &TcpListener, upstream: SocketAddr, delay: Duration, shared: &Arc<Shared>) {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    for id in 0.. {
        let accepted = listener.accept();
        if shared.lock().stopping {
            break;
        }
        connections.retain(|connection| !connection.is_finished());
        let Ok((client, _)) = accepted else {
            // The client may have gone, or descriptors have run out: the latter takes time.
            shared.wait_until(now() + ACCEPT_PAUSE);
            continue;
        };
        let client = Arc::new(client);
        if !shared.register(id, &client) {
            continue;
        }
        let for_connection = Arc::clone(shared);
        let spawned = thread::Builder::new().name(format!("proxy-{id}")).spawn(move || {
            // How a connection fails is for its two ends to notice.
            let _ = serve(id, &client, upstream, delay, &for_connection);
            for_connection.forget(id);
        });
        match spawned {
            Ok(connection) => connections.push(connection),
            Err(_) => shared.forget(id),
        }
    }
    for connection in connections {
        // A panic has been printed by its thread.
        let _ = connection.join();
    }
}

fn serve(
    id: u64,
    client: &Arc<TcpStream>,
    upstream: SocketAddr,
    delay: Duration,
    shared: &Shared,
) -> io::Result<()> {
    let server = Arc::new(TcpStream::connect_timeout(&upstream, CONNECT_TIMEOUT)?);
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    if !shared.register(id, &server) {
        return Ok(());
    }
    thread::scope(|scope| {
        for (from, to) in [(client, &server), (&server, client)] {
            let (queue, queued) = mpsc::sync_channel(MAX_QUEUED_CHUNKS);
            scope.spawn(move || receive(from, &queue, delay));
            scope.spawn(move || {
                if send(&queued, to, shared).is_err() {
                    // Nothing more can be passed on; this also ends the thread that receives.
                    close(from);
                    close(to);
                }
            });
        }
    });
    Ok(())
}

/// A piece of the stream, and when to pass it on; an empty one is the end of the stream.
type Chunk = (Instant, Vec<u8>);

fn receive(mut from: &TcpStream, queue: &SyncSender<Chunk>, delay: Duration) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = match from.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // A reset is passed on as an end.
            Err(_) => 0,
        };
        let chunk = (now() + delay, buffer[..length].to_vec());
        if queue.send(chunk).is_err() || length == 0 {
            return;
        }
    }
}

fn send(queued: &Receiver<Chunk>, mut to: &TcpStream, shared: &Shared) -> io::Result<()> {
    while let Ok((due, bytes)) = queued.recv() {
        if !shared.wait_until(due) {
            return Err(ErrorKind::Interrupted.into());
        }
        if bytes.is_empty() {
            return to.shutdown(Shutdown::Write);
        }
        to.write_all(&bytes)?;
    }
    Ok(())
}

fn close(stream: &TcpStream) {
    // It fails if the other end has closed it already.
    let _ = stream.shutdown(Shutdown::Both);
}

#[expect(clippy::disallowed_methods, reason = "measures a network, not a lock")]
fn now() -> Instant {
    Instant::now()
}
