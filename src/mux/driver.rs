//! The engine and the sockets of one group of masters. It is told the time, and counts no votes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use log::Level;
use mio::{Registry, Token};

use super::beside::Beside;
use super::failure::Failed;
use super::lookup::NodeSearch;
use super::records::Records;
use super::socket::{Socket, Stage, UNSENT_BYTES_MAX};
#[cfg(feature = "tls-no-provider")]
use super::tls::TlsFailure;
use crate::config::{Config, NodeConfig, Target};
use crate::moment::Moment;
#[cfg(feature = "tls-no-provider")]
use crate::outcome::Phase;
use crate::outcome::{NodeOutcome, printable};
use crate::proto::{Action, Cancelled, Done, Engine, Lease, NodeEvent, NodeSet, Notice, OpId};
use crate::resp;
use crate::sys::clock::Clock;
use crate::sys::entropy::SystemEntropy;
use crate::sys::name::of_process;

/// Commands are gathered into one write up to about this many bytes.
const BATCH_BYTES_MAX: usize = 64 * 1024;
/// Most commands sent in one turn, each to all its nodes.
const COMMANDS_PER_TURN_MAX: usize = 2_048;

/// An engine, and a socket for each of its nodes. It carries out the actions of the engine, and
/// passes replies to it.
///
/// The owner waits for events, reads the clock, and writes the log records that are collected here;
/// [`finish`](Driver::finish) writes the last ones. In a forked process the owner may only call
/// that (R24). Several drivers may share one poll: each ignores the events of others.
pub(crate) struct Driver {
    pub(super) engine: Engine,
    pub(super) config: Arc<Config>,
    pub(super) registry: Arc<Registry>,
    /// The token of the first node; those of the others follow.
    pub(super) first: Token,
    pub(super) nodes: Vec<Connection>,
    /// Whether some node's last turn ended before its socket was drained.
    pub(super) unread: bool,
    /// At this moment, every byte from nodes that owe no answer had been read.
    pub(super) looked_at: Moment,
    /// Announced replies may have waited in the sockets for a long time, if their commands were
    /// sent a while before then.
    pub(super) away_until: Option<Moment>,
    /// The bytes about to be sent; `recipients` are their nodes.
    batch: BytesMut,
    recipients: NodeSet,
    /// The owner writes them, and may add its own.
    pub(crate) records: Records,
}

const ONE_MASTER: &str = "one master: while it is down, no lock can be taken";

/// The driver's state of one node.
pub(super) struct Connection {
    pub(super) socket: Option<Socket>,
    pub(super) beside: Option<Beside>,
    /// With the TLS files of its last connection.
    pub(super) settings: NodeConfig,
    pub(super) search: NodeSearch,
    /// Whether the node is to be connected as soon as its name is resolved.
    pub(super) is_awaited: bool,
    /// The numeric address, or the last result of the lookup. Empty before that, and for a Unix
    /// socket.
    pub(super) addresses: Vec<SocketAddr>,
    /// The index of the current address, modulo their number.
    pub(super) address: usize,
    /// The Sentinel to ask next.
    pub(super) sentinel: usize,
    /// How many addresses failed since the engine asked for the connection.
    pub(super) tried: usize,
    /// Whether the last turn ended before the socket was drained.
    pub(super) unread: bool,
    /// Since when readable bytes that no caller waits for are deferred, if any.
    pub(super) deferred: Option<Moment>,
    /// When the socket was last read.
    pub(super) read_at: Moment,
}

impl Connection {
    fn new(settings: &NodeConfig) -> Connection {
        let addresses = match &settings.target {
            Target::Address(address) => vec![*address],
            Target::Name { .. } | Target::Sentinel(_) | Target::Unix(_) => Vec::new(),
        };
        Connection {
            socket: None,
            beside: None,
            settings: settings.clone(),
            search: NodeSearch::None,
            is_awaited: false,
            addresses,
            address: 0,
            sentinel: 0,
            tried: 0,
            unread: false,
            deferred: None,
            read_at: Moment::START,
        }
    }
}

impl Driver {
    /// A driver that uses the tokens of `registry` from `first` on, one for each node.
    pub(crate) fn new(mut config: Config, registry: &Registry, first: Token) -> io::Result<Driver> {
        if first.0.checked_add(config.nodes()).is_none() {
            let nodes = config.nodes();
            let reason = format!("{first:?} leaves no room for a token of each of {nodes} nodes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let entropy = SystemEntropy::new();
        let own = Some(config.client_name.to_string()).filter(|own| !own.is_empty());
        let own = own.unwrap_or_else(|| of_process(None));
        let name = concat!("muxlock/", env!("CARGO_PKG_VERSION"));
        let mark = &config.mark;
        config.client_name = format!("{name}:tag={:08x}:mark={mark}{own}", entropy.tag).into();
        let config = Arc::new(config);
        let engine = Engine::new(Arc::clone(&config), Box::new(entropy));
        let nodes = config.nodes.iter().map(Connection::new).collect();
        let mut records = Records::default();
        match config.nodes() {
            1 => records.note(Level::Warn, format_args!("{ONE_MASTER}")),
            even if even % 2 == 0 => {
                let spared = (even - 1) / 2;
                records.note(
                    Level::Warn,
                    format_args!(
                        "{even} masters tolerate no more failures than {}, which is {spared}: \
                         list an odd number",
                        even - 1
                    ),
                );
            }
            _ => {}
        }
        #[cfg(feature = "tls-no-provider")]
        note_unverified(&config, &mut records);
        Ok(Driver {
            engine,
            config,
            registry: Arc::new(registry.try_clone()?),
            first,
            nodes,
            unread: false,
            looked_at: Moment::START,
            away_until: None,
            batch: BytesMut::new(),
            recipients: NodeSet::EMPTY,
            records,
        })
    }

    /// Stops using the lease, which goes to another client.
    pub(crate) fn let_go(&mut self, now: Moment, lease: &mut Lease) {
        // Answers that have arrived by now resolve the doubt about their nodes.
        (0..self.nodes.len()).for_each(|node| self.read_node(node, false));
        self.engine.let_go(now, lease);
    }

    /// Cancels an operation that no caller waits for, and releases its keys.
    pub(crate) fn forsake(&mut self, now: Moment, id: OpId) {
        if let Cancelled::Extension(lease) = self.engine.cancel(now, id) {
            self.engine.abandon(now, lease);
        }
    }

    /// Takes the next result. `read_clock` is called here, after the last reply was handled, if the
    /// result depends on a validity (R2).
    #[inline]
    pub(crate) fn poll_done(
        &mut self,
        read_clock: impl FnOnce() -> Moment,
    ) -> Option<(OpId, Done)> {
        let now = match self.engine.operations().is_release_next()? {
            true => self.engine.last_now(),
            false => read_clock(),
        };
        self.engine.poll_done(now)
    }

    /// Takes all results. `read_clock` is called once at most, here, after the last reply was
    /// handled; each validity is compared with that reading (R2).
    pub(crate) fn take_all_done(
        &mut self,
        mut read_clock: impl FnMut() -> Moment,
        to: &mut Vec<(OpId, Done)>,
    ) {
        let mut read = None;
        // Each result was there before the call, or is that of an attempt that ended here.
        while let Some(is_release) = self.engine.operations().is_release_next() {
            let now = match is_release {
                true => self.engine.last_now(),
                false => *read.get_or_insert_with(&mut read_clock),
            };
            self.engine.pass_done(now, |id, done| to.push((id, done)));
        }
    }

    /// As [`poll_done`](Driver::poll_done), for one operation.
    #[inline]
    pub(crate) fn take_done(
        &mut self,
        read_clock: impl FnOnce() -> Moment,
        id: OpId,
    ) -> Option<Done> {
        if !self.engine.operations().has_done() {
            return None;
        }
        let now = match self.engine.operations().is_release(id) {
            true => self.engine.last_now(),
            false => read_clock(),
        };
        self.engine.take_done(now, id)
    }

    /// The engine, to be asked.
    #[inline]
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, for calls that concern no socket. The commands leave with the next
    /// [`flush`](Driver::flush).
    #[inline]
    pub(crate) fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Updates the time, after a wait.
    pub(crate) fn after_wait(&mut self, now: Moment) {
        self.engine.advance(now);
        self.engine.forget_randomness();
    }

    /// As [`after_absence`](Driver::after_absence), just after all sockets were polled.
    pub(crate) fn after_poll(&mut self, now: Moment, away_until: Option<Moment>) {
        self.after_absence(now, away_until);
        self.looked_at = self.engine.last_now();
    }

    /// As [`after_wait`](Driver::after_wait). `away_until`: until when no thread was waiting, if
    /// that was so long that the announced replies may have waited.
    pub(crate) fn after_absence(&mut self, now: Moment, away_until: Option<Moment>) {
        self.after_wait(now);
        self.away_until = away_until;
    }

    /// Handles due timers: timeouts, retries, reconnects. Call it after each wait, when the events
    /// have been handled, and then [`flush`](Driver::flush).
    #[inline]
    pub(crate) fn handle_timeout(&mut self, now: Moment) {
        #[cfg(not(unix))]
        (0..self.nodes.len()).for_each(|node| self.ask_lookup(node));
        if self.engine.advance(now) || self.unread {
            self.handle_due(now);
        }
    }

    #[inline(never)]
    fn handle_due(&mut self, now: Moment) {
        let is_due = self.engine.advance(now);
        self.unread = false;
        for node in 0..self.nodes.len() {
            let unread = std::mem::take(&mut self.nodes[node].unread);
            // If the process was paused, the replies might be there unread: a timeout counts only
            // after a look at the socket.
            let to_the_end = unread || self.engine.node(node).is_overdue(now);
            let owes = is_due && !self.engine.node(node).is_idle();
            if to_the_end || owes || self.nodes[node].deferred.is_some() {
                self.read_node(node, to_the_end);
            }
        }
        if is_due {
            let unread = (0..self.nodes.len()).filter(|node| self.nodes[*node].unread).collect();
            self.engine.handle_timeout_of_others(now, unread);
        }
    }

    /// When the next wait has to end, if there are no results to take before.
    pub(crate) fn due(&self) -> Option<Moment> {
        let due =
            if self.unread { Some(self.engine.last_now()) } else { self.engine.poll_timeout() };
        #[cfg(not(unix))]
        if self.nodes.iter().any(|connection| matches!(connection.search, NodeSearch::Running(_))) {
            let look = self.engine.last_now().after(super::lookup::LOOK_INTERVAL);
            return Some(due.map_or(look, |due| due.min(look)));
        }
        due
    }

    /// Sends the commands of started operations. It writes no log: if a logger panicked then, the
    /// outcome that the caller took before would be lost.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.engine.has_actions() || self.engine.nodes().has_notices() {
            self.read_idle();
            let unfinished = Unfinished { driver: self };
            unfinished.driver.carry_out();
            std::mem::forget(unfinished);
        }
        self.engine.forget_randomness();
    }

    /// To be called before this is dropped. It sends as much as the sockets accept, and does not
    /// wait. In a forked process it forgets the sockets: deregistering one there would deregister
    /// it for the parent, which shares the poll.
    pub(crate) fn finish(&mut self, is_owner_process: bool) {
        if !is_owner_process {
            return self.nodes.drain(..).for_each(std::mem::forget);
        }
        // An action can fail a node, which adds actions. Each node fails at most once, since it is
        // not connected again.
        while self.engine.has_actions() {
            self.flush();
        }
        std::mem::take(&mut self.records).write();
    }

    /// Ends every connection: some commands noted as sent may not have been.
    fn start_over(&mut self) {
        let now = self.engine.last_now();
        self.engine.forget_randomness();
        self.batch.clear();
        self.recipients = NodeSet::EMPTY;
        for node in 0..self.nodes.len() {
            if let Some(socket) = self.nodes[node].socket.take() {
                socket.abort();
                let outcome = NodeOutcome::Disconnected(io::ErrorKind::Other);
                self.engine.handle_node(now, node, NodeEvent::Disconnected(outcome));
            }
            self.nodes[node].beside = None;
        }
    }

    /// Passes an event of a node to the engine, at the time that it knows.
    pub(super) fn notify_engine(&mut self, node: usize, event: NodeEvent<'_>) {
        let now = self.engine.last_now();
        self.engine.handle_node(now, node, event);
    }

    fn carry_out(&mut self) {
        // Nodes are connected to one by one, after everything else: the handshake of each leaves
        // before the next.
        let mut unopened = NodeSet::EMPTY;
        // The rest leaves in the next turn, which is due immediately.
        for _ in 0..COMMANDS_PER_TURN_MAX {
            match self.engine.poll_action() {
                None => {
                    self.send_batch();
                    let Some(node) = unopened.iter().next() else { break };
                    unopened.remove(node);
                    self.open(node);
                }
                Some(Action::Connect { node }) => unopened.insert(node),
                Some(Action::ConnectBeside { node, silent_since }) => {
                    self.open_beside(node, silent_since);
                }
                Some(Action::Close { node }) => {
                    unopened.remove(node);
                    self.send_batch();
                    self.close(node);
                }
                Some(Action::Send { nodes, command }) => {
                    let start = self.batch.len();
                    resp::encode(&command, &mut self.batch);
                    if start > 0 && (nodes != self.recipients || start >= BATCH_BYTES_MAX) {
                        self.send_bytes(start);
                        self.batch.advance(start);
                    }
                    self.recipients = nodes;
                }
            }
        }
        self.send_batch();
        unopened.iter().for_each(|node| self.open(node));
        while let Some((node, notice)) = self.engine.poll_notice() {
            let address = &self.config.nodes[node].address;
            let level = if notice.is_good() { Level::Info } else { Level::Warn };
            let words = match notice {
                Notice::Silent(outcome) => self.engine.node(node).words(outcome),
                _ => None,
            };
            let words = words.map_or_else(String::new, |words| format!(": {words}"));
            self.records.note(level, format_args!("{address}: {notice}{words}"));
        }
    }

    /// Consecutive commands to the same nodes leave in one write per node.
    fn send_batch(&mut self) {
        self.send_bytes(self.batch.len());
        self.batch.clear();
    }

    /// Sends the first `count` bytes of the batch.
    fn send_bytes(&mut self, count: usize) {
        for node in std::mem::take(&mut self.recipients).iter() {
            self.send(node, count);
        }
    }

    #[inline(always)]
    fn send(&mut self, node: usize, count: usize) {
        // A missing socket has failed; the engine has not yet asked to close it.
        let Some(socket) = &mut self.nodes[node].socket else {
            return;
        };
        match socket.send(&self.batch[..count]) {
            Ok(()) if socket.unsent() <= UNSENT_BYTES_MAX => {}
            Ok(()) => self.notify_engine(node, NodeEvent::Blocked),
            Err(error) => self.send_failed(node, &error),
        }
    }

    #[cold]
    fn send_failed(&mut self, node: usize, error: &io::Error) {
        // Read again: bytes that were written to this node before may have arrived as late as now,
        // and no debt for it may end too early.
        self.fail(Clock.now(), node, Failed::disconnected(error));
    }

    fn open(&mut self, node: usize) {
        self.nodes[node].tried = 0;
        match &self.config.nodes[node].target {
            Target::Name { .. } | Target::Sentinel(_) => self.look_up(node),
            _ if self.config.nodes[node].is_asked_for() => self.look_up(node),
            Target::Address(_) | Target::Unix(_) => self.try_address(node),
        }
    }

    /// Starts to connect to the node's current address, or to the next one that does not fail at
    /// once.
    pub(super) fn try_address(&mut self, node: usize) {
        if let Target::Sentinel(_) = &self.config.nodes[node].target {
            let connection = &self.nodes[node];
            let address = connection.addresses[connection.address % connection.addresses.len()];
            self.notify_engine(node, NodeEvent::Located(&address.to_string()));
        }
        self.note_trying(node, self.nodes[node].address);
        match self.dial(node, self.nodes[node].address) {
            Ok(socket) => {
                self.nodes[node].socket = Some(socket);
                // On this machine it has its peer at once: what may lie there is read (R17), and
                // the server finds the handshake when it accepts.
                self.read_slowly(node, false);
            }
            Err(error) => self.connect_failed(self.engine.last_now(), node, &error),
        }
    }

    /// The other addresses of a name are tried before the node fails. All of them together have one
    /// connect timeout.
    fn connect_failed(&mut self, now: Moment, node: usize, error: &io::Error) {
        if self.take_beside(node) {
            return;
        }
        let connection = &mut self.nodes[node];
        connection.tried += 1;
        connection.address = connection.address.wrapping_add(1);
        if connection.tried < connection.addresses.len() {
            connection.socket = None;
            #[cfg(feature = "tls-no-provider")]
            self.engine.handle_node(now, node, NodeEvent::Connecting(Phase::Connect));
            // The recursion is as deep as the name has addresses, which is capped.
            self.try_address(node);
        } else {
            self.fail(now, node, Failed::disconnected(error));
        }
    }

    /// Finishes connecting, and sends the bytes that were kept. Returns whether there may be
    /// something to read.
    #[cold]
    pub(super) fn finish_connect(&mut self, now: Moment, node: usize) -> bool {
        if self.nodes[node].beside.is_some() {
            self.choose(node);
        }
        let Some(socket) = &mut self.nodes[node].socket else { return false };
        if !socket.connected {
            #[cfg(feature = "tls-no-provider")]
            let was_open = socket.is_open;
            match socket.finish_connecting() {
                Ok(Stage::Connected) => self.engine.handle_node(now, node, NodeEvent::Connected),
                Ok(Stage::Connecting) => return false,
                #[cfg(feature = "tls-no-provider")]
                Ok(stage @ (Stage::Shaking | Stage::ShakingUnread)) => {
                    // Once: a peer that sends a byte now and then gets no more time for it.
                    if !was_open {
                        self.engine.handle_node(now, node, NodeEvent::Connecting(Phase::Tls));
                    }
                    if matches!(stage, Stage::ShakingUnread) {
                        self.leave_unread(node);
                    }
                    return false;
                }
                Err(error) => {
                    self.connect_failed(now, node, &error);
                    return false;
                }
            }
        }
        if socket.unsent() > 0 {
            if let Err(error) = socket.send_rest() {
                self.fail(now, node, Failed::disconnected(&error));
                return false;
            }
            if socket.unsent() == 0 {
                self.engine.handle_node(now, node, NodeEvent::Writable);
            }
        }
        true
    }

    fn close(&mut self, node: usize) {
        let connection = &mut self.nodes[node];
        (connection.unread, connection.deferred) = (false, None);
        connection.is_awaited = false;
        connection.beside = None;
        if let Some(socket) = connection.socket.take() {
            if !socket.connected || self.engine.node(node).ended_unheard() {
                // This address did not answer: the next try uses the name's next address.
                connection.address = connection.address.wrapping_add(1);
            }
            socket.abort();
            let address = &self.config.nodes[node].address;
            self.records.note(Level::Debug, format_args!("{address}: closed"));
        }
    }

    pub(super) fn fail(&mut self, now: Moment, node: usize, failed: impl Into<Failed>) {
        // Dropped at once, so that nothing more is written to it. The engine asks to close it
        // later.
        let failed = match self.nodes[node].socket.take() {
            Some(socket) => end(socket, failed.into()),
            None => failed.into(),
        };
        let Failed { outcome, words } = failed;
        let address = &self.config.nodes[node].address;
        match words {
            Some(words) => {
                self.engine.handle_node(now, node, NodeEvent::Failed(outcome, &words));
                let words = printable(&words);
                self.records.note(Level::Debug, format_args!("{address}: {outcome}: {words}"));
            }
            None => {
                self.engine.handle_node(now, node, NodeEvent::Disconnected(outcome));
                self.records.note(Level::Debug, format_args!("{address}: {outcome}"));
            }
        }
    }
}

/// Ends a connection that has failed. Returns why: TLS knows better than its socket.
fn end(socket: Socket, failed: Failed) -> Failed {
    #[cfg(feature = "tls-no-provider")]
    if let Some(TlsFailure { kind, message }) = socket.tls_failure() {
        return Failed::with(NodeOutcome::Tls(*kind), message.clone());
    }
    socket.abort();
    failed
}

/// Anyone in the network can read and change the bytes between such a node and the client.
#[cfg(feature = "tls-no-provider")]
fn note_unverified(config: &Config, records: &mut Records) {
    for node in config.nodes.iter() {
        if node.tls.as_ref().is_some_and(|tls| tls.url.is_unverified) {
            let address = &node.address;
            let text = "verify=no: the client trusts any server that answers there";
            records.note(Level::Warn, format_args!("{address}: {text}"));
        }
    }
}

/// Guards the execution of actions. A panic there, which takes a bug of ours, leaves commands noted
/// as sent that were not. Every later reply would then be taken for the answer to the one before
/// (R17).
struct Unfinished<'a> {
    driver: &'a mut Driver,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.driver.start_over();
    }
}

#[cfg(all(test, repository))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use mio::{Events, Poll};

    use super::*;
    use crate::config::Builder;
    use crate::fencing::Fencing;
    use crate::outcome::ProtocolError;
    use crate::proto::Patience;
    use crate::resource::Resource;
    use crate::token::Entropy;
    use testbed::scripted::{Scripted, refused_addr};

    const TTL: Duration = Duration::from_secs(10);

    /// `HELLO`, tracking, five empty sections, time, and probe.
    const HANDSHAKE_REPLIES: &[u8] =
        b"%0\r\n+OK\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n\
        *2\r\n$1\r\n1\r\n$1\r\n1\r\n:0\r\n";

    /// A server that completes the handshake and grants one lock, and an address without a server.
    fn one_alive_one_dead() -> (SocketAddr, SocketAddr, JoinHandle<()>) {
        let alive = TcpListener::bind("127.0.0.1:0").unwrap();
        let dead = refused_addr();
        let address = alive.local_addr().unwrap();
        let serve = move || {
            let (mut client, _) = alive.accept().unwrap();
            for answer in [HANDSHAKE_REPLIES, b"+OK\r\n"] {
                assert!(client.read(&mut [0; 4_096]).unwrap() > 0);
                client.write_all(answer).unwrap();
            }
        };
        (address, dead, std::thread::spawn(serve))
    }

    fn acquire(driver: &mut Driver) {
        let resource = Resource::new("name").unwrap();
        driver
            .engine
            .acquire(Clock.now(), resource, TTL, Patience::OneRound, Fencing::Off)
            .unwrap();
    }

    /// Waits for the next event, and handles it.
    fn turn(driver: &mut Driver, poll: &mut Poll, events: &mut Events) {
        let timeout = driver.due().map(|due| due.since(Clock.now()));
        poll.poll(events, timeout).unwrap();
        let now = Clock.now();
        driver.after_wait(now);
        events.iter().for_each(|event| assert!(driver.handle_event(event)));
        driver.handle_timeout(now);
        driver.flush();
    }

    /// R2: one reading after the last reply, with which each validity is compared.
    #[test]
    fn results_that_are_taken_together_are_judged_each_by_one_reading() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            for answer in [HANDSHAKE_REPLIES, b"+OK\r\n+OK\r\n+OK\r\n"] {
                assert!(client.read(&mut [0; 4_096]).unwrap() > 0);
                client.write_all(answer).unwrap();
            }
            client
        });
        let config = Builder::default().node(format!("redis://{address}?restart_guard=off"));
        let mut poll = Poll::new().unwrap();
        let mut events = Events::with_capacity(8);
        let config = config.config().unwrap();
        let mut driver = Driver::new(config, poll.registry(), Token(7)).unwrap();
        let (start, mut done) = (Clock.now(), Vec::new());
        driver.take_all_done(|| unreachable!("nothing has ended"), &mut done);
        let ops = [TTL, TTL / 10, TTL].map(|ttl| {
            let resource = Resource::new("name").unwrap();
            driver.engine.acquire(start, resource, ttl, Patience::OneRound, Fencing::Off).unwrap()
        });
        while driver.engine.operations().done().count() < ops.len() {
            turn(&mut driver, &mut poll, &mut events);
        }
        let mut readings = 0;
        let read = || {
            readings += 1;
            start.after(TTL / 2)
        };
        driver.take_all_done(read, &mut done);
        assert_eq!(readings, 1);
        assert!(done.iter().map(|(op, _)| *op).eq(ops));
        let is_held = |(_, done): &(OpId, Done)| matches!(done, Done::Acquired(Ok(_)));
        assert_eq!(done.iter().map(is_held).collect::<Vec<_>>(), [true, false, true]);
        assert!(!driver.engine.operations().has_done());
        let _client = server.join().unwrap();
    }

    /// A driver with one node, and its server after it has answered with these.
    fn connected(answers: &'static [&'static [u8]]) -> (Driver, Poll, JoinHandle<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            for answer in answers {
                assert!(client.read(&mut [0; 4_096]).unwrap() > 0);
                client.write_all(answer).unwrap();
            }
            client
        });
        let builder = Builder::default().node(format!("redis://{address}?restart_guard=off"));
        let (config, poll) = (builder.config().unwrap(), Poll::new().unwrap());
        let mut driver = Driver::new(config, poll.registry(), Token(7)).unwrap();
        acquire(&mut driver);
        driver.flush();
        (driver, poll, server)
    }

    /// R17: bytes that were left unread when the node owed nothing precede the next command.
    #[test]
    fn bytes_that_were_left_unread_are_looked_at_before_a_command() {
        let (mut driver, mut poll, server) = connected(&[HANDSHAKE_REPLIES, b"+OK\r\n"]);
        let mut events = Events::with_capacity(8);
        while !driver.engine.operations().has_done() {
            turn(&mut driver, &mut poll, &mut events);
        }
        let mut server = server.join().unwrap();
        server.write_all(b"+OK\r\n").unwrap();
        poll.poll(&mut events, None).unwrap();
        // As if it had been read a moment ago, except for announced bytes.
        let now = Clock.now();
        driver.engine.advance(now);
        (driver.looked_at, driver.nodes[0].read_at) = (now, now);
        driver.leave_unread(0);
        assert!(driver.engine.node(0).is_open() && driver.engine.node(0).is_idle());
        acquire(&mut driver);
        driver.flush();
        assert!(!driver.engine.node(0).is_open(), "a stray reply is taken for a vote");
    }

    /// R17: what a server has said before the handshake leaves answers none of it.
    #[test]
    fn reply_that_comes_with_the_connection_is_surplus() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let builder = Builder::default().node(format!("redis://{address}"));
        let (config, poll) = (builder.config().unwrap(), Poll::new().unwrap());
        let mut driver = Driver::new(config, poll.registry(), Token(7)).unwrap();
        driver.engine.connect(Clock.now());
        assert!(matches!(driver.engine.poll_action(), Some(Action::Connect { node: 0 })));
        driver.nodes[0].socket = Some(driver.dial(0, 0).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"+OK\r\n").unwrap();
        driver.read_slowly(0, false);
        let surplus = NodeOutcome::Protocol(ProtocolError::Surplus);
        assert_eq!(driver.engine.statuses().next().unwrap().last_failure, Some(surplus));
    }

    /// A server's time is compared with a reading that is not older than it.
    #[test]
    fn clock_is_read_again_before_a_servers_time_is_looked_at() {
        let (mut driver, mut poll, server) = connected(&[HANDSHAKE_REPLIES, b"+OK\r\n"]);
        let mut events = Events::with_capacity(8);
        let mut was_asked = false;
        while !driver.engine.operations().has_done() {
            poll.poll(&mut events, driver.due().map(|due| due.since(Clock.now()))).unwrap();
            let now = Clock.now();
            driver.after_wait(now);
            let owed = driver.engine.statuses().next().unwrap().in_flight;
            if owed > 0 && !was_asked {
                // The turn is a long one.
                let busy = Duration::from_millis(50);
                while Clock.now().since(now) < busy {}
                events.iter().for_each(|event| assert!(driver.handle_event(event)));
                assert!(driver.engine.last_now().since(now) >= busy / 2);
                was_asked = true;
            } else {
                events.iter().for_each(|event| assert!(driver.handle_event(event)));
            }
            driver.handle_timeout(driver.engine.last_now());
            driver.flush();
        }
        assert!(was_asked);
        drop(server.join().unwrap());
    }

    /// The same, behind a grant that is taken in the same turn.
    #[test]
    fn clock_is_read_again_before_a_time_that_stands_behind_a_grant() {
        let server = Scripted::start(|peer| {
            let (mut sets, mut held) = (0, Vec::new());
            while let Some(command) = peer.read_command()? {
                sets += u32::from(command[0] == b"SET");
                match sets == 1 {
                    true => held.extend_from_slice(b"$-1\r\n"),
                    false => held.extend(peer.normal_reply(&command)),
                }
                if sets == 0 || sets > 2 {
                    peer.reply(&std::mem::take(&mut held))?;
                }
            }
            Ok(())
        });
        let config = Builder::default().node(server.url()).config().unwrap();
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(8));
        let mut driver = Driver::new(config, poll.registry(), Token(7)).unwrap();
        driver.engine.connect(Clock.now());
        driver.flush();
        while !driver.engine.node(0).is_idle() {
            turn(&mut driver, &mut poll, &mut events);
        }
        acquire(&mut driver);
        acquire(&mut driver);
        driver.flush();
        let in_flight = |driver: &Driver| driver.engine.statuses().next().unwrap().in_flight;
        // If the last check was long ago, they have one of their own.
        while in_flight(&driver) > 2 {
            turn(&mut driver, &mut poll, &mut events);
        }
        testbed::pause(Duration::from_millis(20));
        acquire(&mut driver);
        driver.flush();
        assert_eq!(in_flight(&driver), 4, "one is a check");
        poll.poll(&mut events, None).unwrap();
        let now = Clock.now();
        driver.after_wait(now);
        // The turn is a long one.
        let busy = Duration::from_millis(50);
        testbed::pause(busy);
        events.iter().for_each(|event| assert!(driver.handle_event(event)));
        assert!(driver.engine.node(0).is_idle());
        assert!(driver.engine.last_now().since(now) >= busy / 2);
    }

    /// Whether tokens may be left that were drawn in advance.
    #[derive(Default, Clone)]
    struct Draws(Arc<AtomicBool>);

    impl Entropy for Draws {
        fn token(&mut self, _: Moment) -> Option<[u8; 20]> {
            self.0.store(true, Ordering::Relaxed);
            Some([7; 20])
        }

        fn forget(&mut self) {
            self.0.store(false, Ordering::Relaxed);
        }

        fn next_u64(&mut self) -> u64 {
            7
        }
    }

    /// R6: no token drawn in advance is left at the end of a turn, or at the beginning of one.
    #[test]
    fn tokens_are_forgotten_when_they_are_sent_and_when_something_was_waited_for() {
        let poll = Poll::new().unwrap();
        let config = Builder::default().node("redis://127.0.0.1").config().unwrap();
        let mut driver = Driver::new(config, poll.registry(), Token(7)).unwrap();
        let draws = Draws::default();
        driver.engine = Engine::new(Arc::clone(&driver.config), Box::new(draws.clone()));
        let ends: [fn(&mut Driver); 5] = [
            |driver| driver.after_wait(Clock.now()),
            |driver| driver.after_poll(Clock.now(), None),
            |driver| {
                driver.handle_timeout(Clock.now());
                driver.flush();
            },
            Driver::flush,
            Driver::start_over,
        ];
        for (nth, end) in ends.into_iter().enumerate() {
            acquire(&mut driver);
            assert!(draws.0.load(Ordering::Relaxed), "{nth}");
            end(&mut driver);
            assert!(!draws.0.load(Ordering::Relaxed), "{nth}");
        }
    }

    /// R17: an answer may be read together with the next one; an unrequested reply must not.
    #[test]
    fn what_nobody_has_asked_for_is_read_at_once_also_if_nobody_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let config = Builder::default().node(format!("redis://{address}?restart_guard=off"));
        let mut poll = Poll::new().unwrap();
        let mut events = Events::with_capacity(8);
        let config = config.config().unwrap();
        let mut driver = Driver::new(config, poll.registry(), Token(7)).unwrap();
        let (go, may_grant) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            assert!(client.read(&mut [0; 4_096]).unwrap() > 0);
            client.write_all(HANDSHAKE_REPLIES).unwrap();
            may_grant.recv().unwrap();
            client.write_all(b"+OK\r\n").unwrap();
            client
        });
        driver.engine.connect(Clock.now());
        let mut turns = 0..1_000;
        while !driver.engine.node(0).is_idle() {
            assert!(turns.next().is_some(), "the handshake ends");
            turn(&mut driver, &mut poll, &mut events);
        }
        go.send(()).unwrap();
        let _client = server.join().unwrap();
        poll.poll(&mut events, None).unwrap();
        events.iter().for_each(|event| driver.defer(event));
        let surplus = NodeOutcome::Protocol(ProtocolError::Surplus);
        assert_eq!(driver.engine.statuses().next().unwrap().last_failure, Some(surplus));
    }

    /// A driver whose only node has completed the handshake, and the
    /// server's end of the connection.
    fn greeted() -> (Driver, Poll, Events, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let config = Builder::default().node(format!("redis://{address}?restart_guard=off"));
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(8));
        let config = config.config().unwrap();
        let mut driver = Driver::new(config, poll.registry(), Token(7)).unwrap();
        driver.engine.connect(Clock.now());
        driver.flush();
        let (mut server, _) = listener.accept().unwrap();
        while !driver.nodes[0].socket.as_ref().is_some_and(|socket| socket.connected) {
            turn(&mut driver, &mut poll, &mut events);
        }
        assert!(server.read(&mut [0; 4_096]).unwrap() > 0);
        server.write_all(HANDSHAKE_REPLIES).unwrap();
        while !driver.engine.node(0).is_idle() {
            turn(&mut driver, &mut poll, &mut events);
        }
        (driver, poll, events, server)
    }

    const PUSH: &[u8] = b">2\r\n$10\r\ninvalidate\r\n_\r\n";

    /// Sends a SET, which the server reads.
    fn send_set(driver: &mut Driver, server: &mut TcpStream) {
        acquire(driver);
        driver.flush();
        assert!(server.read(&mut [0; 4_096]).unwrap() > 0);
    }

    /// Takes turns until the acquisition is done, which must be soon. Returns whether it succeeded.
    fn is_acquired(driver: &mut Driver, poll: &mut Poll, events: &mut Events) -> bool {
        for _ in 0..1_000 {
            if let Some((_, Done::Acquired(result))) = driver.poll_done(|| Clock.now()) {
                return result.is_ok();
            }
            turn(driver, poll, events);
        }
        panic!("the acquisition ends");
    }

    #[test]
    fn half_a_push_on_an_idle_connection_is_neither_surplus_nor_late_and_its_rest_is_taken() {
        for cut in 1..PUSH.len() {
            let (mut driver, mut poll, mut events, mut server) = greeted();
            let (head, tail) = PUSH.split_at(cut);
            let due = driver.due();
            server.write_all(head).unwrap();
            let pending = |driver: &Driver| {
                driver.nodes[0].socket.as_ref().map(|socket| socket.reader.pending().to_vec())
            };
            while pending(&driver) != Some(head.to_vec()) {
                assert_eq!(driver.engine.statuses().next().unwrap().last_failure, None);
                turn(&mut driver, &mut poll, &mut events);
            }
            assert!(
                driver.engine.node(0).is_idle() && driver.due() == due,
                "nothing waits for the rest"
            );
            send_set(&mut driver, &mut server);
            server.write_all(&[tail, b"+OK\r\n"].concat()).unwrap();
            assert!(is_acquired(&mut driver, &mut poll, &mut events));
            assert_eq!(pending(&driver), Some(vec![]));
            assert_eq!(driver.engine.statuses().next().unwrap().last_failure, None);
        }
    }

    #[test]
    fn half_a_push_before_an_answer_that_never_comes_hangs_no_call() {
        let (mut driver, mut poll, mut events, mut server) = greeted();
        server.write_all(&PUSH[..9]).unwrap();
        send_set(&mut driver, &mut server);
        assert!(!is_acquired(&mut driver, &mut poll, &mut events));
        let later = Clock.now().after(Duration::from_secs(60));
        driver.after_wait(later);
        driver.handle_timeout(later);
        driver.flush();
        assert!(driver.engine.statuses().next().unwrap().last_failure.is_some(), "it stays silent");
    }

    /// A deferred push is read with the answer behind it.
    #[test]
    fn deferred_push_is_no_answer_and_is_read_with_the_one_behind_it() {
        let (mut driver, mut poll, mut events, mut server) = greeted();
        send_set(&mut driver, &mut server);
        server.write_all(PUSH).unwrap();
        poll.poll(&mut events, None).unwrap();
        events.iter().for_each(|event| driver.defer(event));
        assert!(driver.nodes[0].deferred.is_some() && !driver.engine.node(0).is_idle());
        server.write_all(b"+OK\r\n").unwrap();
        assert!(is_acquired(&mut driver, &mut poll, &mut events));
        assert_eq!(driver.engine.statuses().next().unwrap().last_failure, None);
    }

    /// One node's answers may always be the last ones.
    #[test]
    fn what_was_deferred_is_read_with_what_arrives_ten_milliseconds_later() {
        let (mut driver, mut poll, mut events, mut server) = greeted();
        send_set(&mut driver, &mut server);
        let first = Clock.now();
        for (millis, is_deferred) in [(0, true), (10, true), (11, false), (12, true)] {
            driver.after_wait(first.after(Duration::from_millis(millis)));
            server.write_all(PUSH).unwrap();
            poll.poll(&mut events, None).unwrap();
            events.iter().for_each(|event| driver.defer(event));
            assert_eq!(driver.nodes[0].deferred.is_some(), is_deferred, "after {millis} ms");
        }
    }

    #[test]
    fn tokens_that_would_exceed_their_range_are_refused_by_value() {
        let poll = Poll::new().unwrap();
        let urls = ["redis://127.0.0.1:7000", "redis://127.0.0.1:7001", "redis://127.0.0.1:7002"];
        let new = |first| {
            let config = Builder::default().nodes(urls).config().unwrap();
            Driver::new(config, poll.registry(), Token(first)).map(|driver| driver.nodes.len())
        };
        for first in [usize::MAX, usize::MAX - 1, usize::MAX - 2] {
            let error = new(first).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(&first.to_string()), "{error}");
        }
        assert_eq!(new(usize::MAX - 3).unwrap(), 3);
    }

    #[test]
    fn refused_address_of_a_name_is_followed_by_its_next_within_the_same_attempt() {
        let (alive, dead, server) = one_alive_one_dead();
        let builder = Builder::default().node("redis://name?restart_guard=off");
        let config = builder.resolver(move |_, _| Ok(vec![dead, alive])).config().unwrap();
        let mut poll = Poll::new().unwrap();
        let mut events = Events::with_capacity(8);
        let mut driver = Driver::new(config, poll.registry(), Token(7)).unwrap();
        acquire(&mut driver);
        let done = loop {
            if let Some((_, done)) = driver.poll_done(|| Clock.now()) {
                break done;
            }
            turn(&mut driver, &mut poll, &mut events);
        };
        assert!(matches!(done, Done::Acquired(Ok(_))), "{done:?}");
        server.join().unwrap();
    }
}
