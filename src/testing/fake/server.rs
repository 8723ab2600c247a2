//! The threads of a fake master: one accepts connections, and each connection has one of its own.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::super::query::Value;
use super::clock::{Now, now};
use super::commands::{Data, Outcome, Session, is_of_locks};
use super::request::{Malformed, REQUEST_BYTES_MAX, append, first_request};

/// Most connections of a master. Another is refused as by a `redis-server`.
const CONNECTIONS_MAX: usize = 128;
/// How much is read at a time.
const READ_BYTES: usize = 16 * 1024;
/// An answer to several commands does not grow beyond this and one reply.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Most answers that wait to be due. When there are so many, no more commands are read.
const ANSWERS_MAX: usize = 64;
/// A connection's thread keeps its bytes on the heap.
const STACK_BYTES: usize = 256 * 1024;
/// How long to wait after a connection that could not be accepted, for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

// What is left of a command that is not complete, and what is read after it.
const _: () = assert!(READ_BYTES <= REQUEST_BYTES_MAX);

/// What the threads of a master and its owner share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Wakes the threads that wait until the master is thawed, or that delay an answer.
    changed: Condvar,
}

/// Commands are executed while its mutex is held: one after the other, as in a real master, and
/// never again once a connection is not listed.
#[derive(Debug)]
pub(super) struct State {
    pub(super) data: Data,
    /// The error that commands of locks are answered with.
    pub(super) refusal: Option<String>,
    pub(super) is_frozen: bool,
    pub(super) delay: Duration,
    pub(super) is_listening: bool,
    /// Invariant: at most [`CONNECTIONS_MAX`].
    connections: BTreeMap<u64, Arc<Peer>>,
    next_id: u64,
}

/// A connection.
#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    /// Held while something is written.
    writing: Mutex<()>,
    /// Whether it is told of flushes.
    is_tracking: AtomicBool,
}

/// What the connections that track keys are told of a flush.
const FLUSHED: &[u8] = b">2\r\n$10\r\ninvalidate\r\n_\r\n";

impl State {
    /// Appends the answer to a command.
    fn answer(&mut self, now: Now, session: &mut Session, args: &[&[u8]], out: &mut Vec<u8>) {
        if let Some(text) = self.refusal.as_ref().filter(|_| is_of_locks(args)) {
            return append(&Value::Error(text.clone()), out);
        }
        let value = match self.data.execute(now, session, args) {
            Outcome::Reply(value) => value,
            Outcome::Frame(frame) => return out.extend_from_slice(&frame),
            Outcome::Flushed => {
                self.tell_flush();
                Value::Status("OK".into())
            }
            Outcome::Kill(id) => Value::Integer(i64::from(self.end_connection(id))),
        };
        if let Some(peer) = self.connections.get(&session.id) {
            peer.is_tracking.store(session.is_tracking(), Ordering::Relaxed);
        }
        append(&value, out);
    }

    /// Tells the connections that track keys. One that reads nothing is ended, as a real master
    /// ends one whose buffer is full. An answer that is delayed is told later than it is true.
    pub(super) fn tell_flush(&mut self) {
        let is_tracking = |peer: &&Arc<Peer>| peer.is_tracking.load(Ordering::Relaxed);
        let tell = |peer: &Arc<Peer>| match peer.writing.try_lock() {
            Ok(_writing) => (&peer.stream).write_all(FLUSHED).is_ok(),
            Err(_) => false,
        };
        let tracking = self.connections.iter().filter(|(_, peer)| is_tracking(peer));
        let deaf: Vec<u64> = tracking.filter(|(_, peer)| !tell(peer)).map(|(id, _)| *id).collect();
        for id in deaf {
            self.end_connection(id);
        }
    }

    /// Whether there was such a connection. What it sent and was not executed never is.
    fn end_connection(&mut self, id: u64) -> bool {
        let Some(peer) = self.connections.remove(&id) else {
            return false;
        };
        // It fails if the peer has ended the connection.
        let _ = peer.stream.shutdown(Shutdown::Both);
        true
    }

    pub(super) fn end_connections(&mut self) {
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            self.end_connection(id);
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.len()
    }
}

/// The replies to commands that arrived together.
struct Answer {
    due: Instant,
    bytes: Vec<u8>,
}

/// The connection has ended.
struct Ended;

/// What has become of the bytes that a client sent.
enum Progress {
    /// All complete commands are executed.
    Done,
    /// There may be more.
    More,
    /// The next bytes are no command.
    Malformed,
    /// The connection was ended.
    Ended,
}

impl Shared {
    pub(super) fn new(data: Data) -> Shared {
        let state = State {
            data,
            refusal: None,
            is_frozen: false,
            delay: Duration::ZERO,
            is_listening: false,
            connections: BTreeMap::new(),
            next_id: 1,
        };
        Shared { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the threads that wait for that.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Accepts connections until the master is to stop listening. One more connection wakes it for
    /// that.
    pub(super) fn accept_all(self: &Arc<Shared>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            // Of a frozen process, too, the operating system accepts connections.
            let state = self
                .changed
                .wait_while(self.lock(), |state| state.is_frozen && state.is_listening)
                .unwrap_or_else(PoisonError::into_inner);
            if !state.is_listening {
                return;
            }
            match accepted {
                Ok((stream, _)) => self.admit(state, stream),
                Err(_) => drop(self.changed.wait_timeout(state, ACCEPT_PAUSE)),
            }
        }
    }

    fn admit(self: &Arc<Shared>, mut state: MutexGuard<'_, State>, mut stream: TcpStream) {
        if state.connections() >= CONNECTIONS_MAX {
            // A new connection has room for a line; if not, it ends all the same.
            let _ = stream.write_all(b"-ERR max number of clients reached\r\n");
            return;
        }
        let (writing, is_tracking) = (Mutex::new(()), AtomicBool::new(false));
        let (id, peer) = (state.next_id, Arc::new(Peer { stream, writing, is_tracking }));
        state.next_id += 1;
        state.connections.insert(id, Arc::clone(&peer));
        drop(state);
        let shared = Arc::clone(self);
        let serve = move || {
            shared.serve(id, &peer);
            shared.lock().end_connection(id);
        };
        let name = format!("fake master {id}");
        if thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(serve).is_err() {
            self.lock().end_connection(id);
        }
    }

    fn serve(&self, id: u64, peer: &Peer) {
        let mut stream = &peer.stream;
        // Without it, answers may be late, and right.
        let _ = stream.set_nodelay(true);
        let (mut session, mut answers) = (Session::new(id), VecDeque::new());
        let (mut input, mut room) = (Vec::new(), vec![0; READ_BYTES]);
        loop {
            // While answers wait, commands are still read.
            let Ok(wait) = self.write_due(id, peer, &mut answers) else {
                return;
            };
            if stream.set_read_timeout(wait).is_err() {
                return;
            }
            match stream.read(&mut room) {
                Ok(0) => return,
                Ok(count) => input.extend_from_slice(&room[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => {}
                    _ => return,
                },
            }
            loop {
                let progress = self.execute(&mut session, &mut input, &mut answers);
                match progress {
                    Progress::Done => break,
                    Progress::More => {}
                    Progress::Malformed | Progress::Ended => {
                        // What came before is answered.
                        while let Some(answer) = answers.pop_front() {
                            if self.write(id, peer, &answer).is_err() {
                                return;
                            }
                        }
                        return;
                    }
                }
                if self.write_due(id, peer, &mut answers).is_err() {
                    return;
                }
            }
        }
    }

    /// Writes what is due, and what is too much to wait. Returns how long to wait for the next.
    fn write_due(
        &self,
        id: u64,
        peer: &Peer,
        answers: &mut VecDeque<Answer>,
    ) -> Result<Option<Duration>, Ended> {
        while let Some(answer) = answers.front() {
            let wait = answer.due.saturating_duration_since(now().steady);
            if !wait.is_zero() && answers.len() < ANSWERS_MAX {
                return Ok(Some(wait));
            }
            self.write(id, peer, answer)?;
            answers.pop_front();
        }
        Ok(None)
    }

    fn write(&self, id: u64, peer: &Peer, answer: &Answer) -> Result<(), Ended> {
        self.wait_until_due(id, answer.due)?;
        let _writing = peer.writing.lock().unwrap_or_else(PoisonError::into_inner);
        (&peer.stream).write_all(&answer.bytes).map_err(|_| Ended)
    }

    /// Executes the commands at the beginning of `input`, as soon as the master is not frozen.
    fn execute(
        &self,
        session: &mut Session,
        input: &mut Vec<u8>,
        answers: &mut VecDeque<Answer>,
    ) -> Progress {
        let is_held_up =
            |state: &mut State| state.is_frozen && state.connections.contains_key(&session.id);
        let mut state = self
            .changed
            .wait_while(self.lock(), is_held_up)
            .unwrap_or_else(PoisonError::into_inner);
        if !state.connections.contains_key(&session.id) {
            return Progress::Ended;
        }
        let now = now();
        let (mut at, mut bytes) = (0, Vec::new());
        let progress = loop {
            match first_request(&input[at..]) {
                Ok(Some(_)) if bytes.len() >= ANSWER_BYTES_MAX => break Progress::More,
                Ok(Some((args, length))) => {
                    state.answer(now, session, &args, &mut bytes);
                    at += length;
                }
                Ok(None) => break Progress::Done,
                Err(Malformed) => break Progress::Malformed,
            }
        };
        input.drain(..at);
        if !bytes.is_empty() {
            let due = now.steady.checked_add(state.delay).unwrap_or(now.steady);
            answers.push_back(Answer { due, bytes });
        }
        progress
    }

    /// Waits until an answer is due and the master is not frozen.
    fn wait_until_due(&self, id: u64, due: Instant) -> Result<(), Ended> {
        let mut state = self.lock();
        while state.connections.contains_key(&id) {
            let wait = due.saturating_duration_since(now().steady);
            state = if state.is_frozen {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else if wait.is_zero() {
                return Ok(());
            } else {
                let waited = self.changed.wait_timeout(state, wait);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
        }
        Err(Ended)
    }
}
