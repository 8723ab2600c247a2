//! The event loop: sockets, readiness and the clock. It counts no votes.

mod lookup;
mod records;
mod socket;
mod standalone;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use log::Level;
use mio::event::Event;
use mio::{Registry, Token};

use crate::config::{Config, Target};
use crate::error::LockError;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, ProtocolError};
use crate::proto::{
    Action, Cancelled, Done, Engine, Lease, NodeSet, NodeStatus, OpId, Patience, Stats,
};
use crate::resource::Resource;
use crate::resp;
use crate::sys::clock::Clock;
use crate::sys::entropy::SystemEntropy;
use crate::sys::process::Home;
use lookup::Search;
pub(crate) use records::Records;
use socket::{Received, Socket, UNSENT_BYTES_MAX};
pub use standalone::Standalone;

/// Commands are gathered into one write up to about this many bytes.
const BATCH_BYTES_MAX: usize = 64 * 1024;
/// Reads from one node per turn; the rest follows in the next turn, so that no node starves others.
/// The engine's share bounds the number of replies besides.
const READS_PER_TURN_MAX: usize = 16;
/// Before a command goes to a node that owes no answer, its socket is read if the last read is
/// older than this. Bytes that arrived before a command cannot be its answer (R17).
pub(crate) const UNREAD_MAX: Duration = Duration::from_millis(1);
/// Most commands sent in one turn, each to all its nodes.
const COMMANDS_PER_TURN_MAX: usize = 2_048;

/// Locks inside a foreign event loop: any number of concurrent operations, and no call that blocks.
///
/// It is a guest in a [`mio::Poll`] (for other loops there is [`Standalone`]). It registers one
/// socket for each node, with the tokens from `first` to `first + nodes - 1`. It looks up a node's
/// host name before each connection, on a thread that ends with the lookup. In an event loop:
///
/// 1. start operations: [`try_lock`](Multiplexer::try_lock), [`extend`](Multiplexer::extend),
///    [`unlock`](Multiplexer::unlock); then [`flush`](Multiplexer::flush);
/// 2. take results: [`poll_done`](Multiplexer::poll_done) until it returns `None`;
/// 3. wait, for at most [`next_timeout`](Multiplexer::next_timeout);
/// 4. pass on the events, even if there are none: [`handle_events`](Multiplexer::handle_events). Or
///    pass each on with [`handle_event`](Multiplexer::handle_event), and then call
///    [`handle_timeout`](Multiplexer::handle_timeout). Continue with 2.
///
/// Every operation ends by itself. [`cancel`](Multiplexer::cancel) ends it when the caller no
/// longer needs it. An [`OpId`] of another multiplexer is unknown here: it finds and ends nothing.
///
/// In a process forked from the one that made it, a multiplexer sends, reads and reports nothing.
/// [`try_lock`](Multiplexer::try_lock) fails; other operations started there never end; results
/// that were ready before the fork belong to the parent; there is nothing to wait for. A [`Lease`]
/// passed in there is dropped: the parent has it.
///
/// Log records are written at the end of [`flush`](Multiplexer::flush) and of the calls that handle
/// events or timeouts, when no work is half done: a logger may panic.
///
/// A stale or foreign event does no harm. An event is only a reason to read the node's current
/// socket, where nothing is found that was not meant for it.
///
/// Bytes from a node that owes no answer end its connection. They are never taken for the answer to
/// the next command: the socket is read before a command is sent, unless it was read within the
/// last millisecond.
///
/// No call blocks or sleeps, and each does a bounded amount of work. It reads at most 16 times 33
/// KiB from each node. It handles 3,072 replies, 512 timeouts and 512 commands lost with a
/// connection, shared by the nodes, but at least 8 of each per node. A call of `handle_events`
/// handles up to twice as many replies: those announced and those left by the call before. It sends
/// 2,048 commands, each to all its nodes. If anything is left, `next_timeout` is zero, and the loop
/// can do its other work first.
///
/// ```no_run
/// use mio::{Events, Poll, Token};
/// use muxlock::{Done, Multiplexer, Redlock};
/// use std::time::Duration;
///
/// let config = Redlock::builder().node("redis://127.0.0.1").config()?;
/// let mut poll = Poll::new()?;
/// let mut events = Events::with_capacity(64);
/// let mut mux = Multiplexer::new(config, poll.registry(), Token(1000))?;
///
/// let op = mux.try_lock("invoice:42", Duration::from_secs(10))?;
/// mux.flush();
/// loop {
///     while let Some((id, done)) = mux.poll_done() {
///         if let (true, Done::Acquired(result)) = (id == op, done) {
///             println!("held until {:?}", result?.valid_until());
///             return Ok(());
///         }
///     }
///     poll.poll(&mut events, mux.next_timeout())?;
///     mux.handle_events(&events);
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Multiplexer {
    engine: Engine,
    config: Arc<Config>,
    registry: Registry,
    first: Token,
    nodes: Vec<Connection>,
    /// Whether some node's last turn ended before its socket was drained.
    unread: bool,
    /// At this moment, every byte from nodes that owe no answer had been read.
    looked_at: Moment,
    /// Whether announced replies may have waited in the sockets for a long time.
    was_away: bool,
    /// The bytes about to be sent; `recipients` are their nodes.
    batch: BytesMut,
    recipients: NodeSet,
    records: Records,
    home: Home,
}

struct Connection {
    socket: Option<Socket>,
    search: Search,
    /// Whether the node is to be connected as soon as its name is resolved.
    is_awaited: bool,
    /// The numeric address, or the last result of the lookup. Empty before that, and for a Unix
    /// socket.
    addresses: Vec<SocketAddr>,
    /// The index of the current address, modulo their number.
    address: usize,
    /// How many addresses failed since the engine asked for the connection.
    tried: usize,
    /// Whether the last turn ended before the socket was drained.
    unread: bool,
    /// Since when readable bytes that no caller waits for are deferred, if any.
    deferred: Option<Moment>,
    /// When the socket was last read.
    read_at: Moment,
}

impl Connection {
    fn new(target: &Target) -> Connection {
        let addresses = match target {
            Target::Address(address) => vec![*address],
            Target::Name { .. } | Target::Unix(_) => Vec::new(),
        };
        Connection {
            socket: None,
            search: Search::None,
            is_awaited: false,
            addresses,
            address: 0,
            tried: 0,
            unread: false,
            deferred: None,
            read_at: Moment::START,
        }
    }
}

impl Multiplexer {
    /// A multiplexer that uses the tokens of `registry` from `first` on, one for each node.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if `first` leaves no room for a token of each
    /// node. The operating system's error if the registry cannot be cloned.
    pub fn new(config: Config, registry: &Registry, first: Token) -> io::Result<Multiplexer> {
        if first.0.checked_add(config.nodes()).is_none() {
            let nodes = config.nodes();
            let reason = format!("{first:?} leaves no room for a token of each of {nodes} nodes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let config = Arc::new(config);
        let engine = Engine::new(Arc::clone(&config), Box::new(SystemEntropy::new()));
        let nodes = config.nodes.iter().map(|node| Connection::new(&node.target)).collect();
        Ok(Multiplexer {
            engine,
            config,
            registry: registry.try_clone()?,
            first,
            nodes,
            unread: false,
            looked_at: Moment::START,
            was_away: false,
            batch: BytesMut::new(),
            recipients: NodeSet::EMPTY,
            records: Records::default(),
            home: Home::here(),
        })
    }

    /// The current moment on the safety clock, for comparison with a [`Lease`]'s validity.
    pub fn now(&self) -> Moment {
        Clock.now()
    }

    /// Starts one round of acquisition; it ends as [`Done::Acquired`].
    ///
    /// # Errors
    /// A wrong resource name or TTL, or too many operations in flight. Nothing was started: correct
    /// the arguments, or wait until some operations have ended.
    pub fn try_lock(
        &mut self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<OpId, LockError> {
        let resource = Resource::new(resource)?;
        self.check_home()?;
        self.try_lock_until(Clock.now(), resource, ttl, Patience::OneRound)
    }

    /// Starts rounds of acquisition that continue until `wait` has passed; it ends as
    /// [`Done::Acquired`].
    ///
    /// Acquisitions that wait here for the same resource get it in the order of their arrival, and
    /// only the first of them asks the nodes.
    ///
    /// # Errors
    /// As [`try_lock`](Multiplexer::try_lock).
    pub fn try_lock_for(
        &mut self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
    ) -> Result<OpId, LockError> {
        let resource = Resource::new(resource)?;
        self.check_home()?;
        let now = Clock.now();
        self.try_lock_until(now, resource, ttl, Patience::Until(now.after(wait)))
    }

    /// Starts an extension to `ttl` from now. It ends as [`Done::Extended`], which returns the
    /// lease, also if the TTL is wrong or the lease has expired and nothing was sent.
    pub fn extend(&mut self, lease: Lease, ttl: Duration) -> OpId {
        match self.home.is_here() {
            true => self.extend_at(Clock.now(), lease, ttl),
            false => OpId::NONE,
        }
    }

    /// Starts a release; it ends as [`Done::Released`] when a quorum has confirmed it.
    pub fn unlock(&mut self, lease: Lease) -> OpId {
        match self.home.is_here() {
            true => self.unlock_at(Clock.now(), lease),
            false => OpId::NONE,
        }
    }

    /// Releases without a report.
    pub fn abandon(&mut self, lease: Lease) {
        if self.home.is_here() {
            self.abandon_at(Clock.now(), lease);
        }
    }

    /// Stops using the lease here. Call it before the lease goes to another multiplexer, and when
    /// it is dropped without a release.
    ///
    /// From now on this multiplexer sends nothing for it. What only this multiplexer knows travels
    /// with the lease: masters that have not answered, where its command may still arrive, and
    /// masters in quarantine. The next multiplexer does not count these masters for as long as they
    /// may have forgotten a lock, at least `max_ttl`. If the command has not arrived when the next
    /// multiplexer gives the lock up, it ends this multiplexer's connection to that master. So let
    /// go after all masters have answered, if you can.
    ///
    /// Operations that wait here for the resource ask the masters from now on. Without this call
    /// they wait for its release, or for the end of its validity. Their commands leave with the
    /// next [`flush`](Multiplexer::flush).
    pub fn let_go(&mut self, lease: &mut Lease) {
        if self.home.is_here() {
            self.let_go_at(Clock.now(), lease);
        }
    }

    /// Starts to connect to every node that is not connected yet.
    pub fn connect(&mut self) {
        if self.home.is_here() {
            self.engine.connect(Clock.now());
            self.flush_at_home();
        }
    }

    /// Sends what was started. Operations started together leave in one write per node; commands
    /// beyond 2,048 leave in the next turn.
    ///
    /// Without this call nothing is lost: [`next_timeout`](Multiplexer::next_timeout) is then zero,
    /// and [`handle_timeout`](Multiplexer::handle_timeout) sends.
    pub fn flush(&mut self) {
        if self.home.is_here() {
            if self.engine.has_actions() {
                // The operations may have been started long ago.
                self.engine.advance(Clock.now_coarse());
            }
            self.flush_at_home();
            self.write_records();
        }
    }

    /// Writes the log records. A logger that panics leaves no work half done.
    fn write_records(&mut self) {
        if let Some(records) = self.records.take() {
            records.write();
        }
    }

    /// The records to be written; the caller must write them.
    #[inline]
    pub(crate) fn take_records(&mut self) -> Option<Records> {
        self.records.take()
    }

    #[inline]
    pub(crate) fn has_records(&self) -> bool {
        !self.records.is_empty()
    }

    /// A record for the log, to be written with the others.
    pub(crate) fn note(&mut self, level: Level, text: std::fmt::Arguments<'_>) {
        self.records.note(level, text);
    }

    /// As [`flush`](Multiplexer::flush), but only in the process that made it, and without writing
    /// the log.
    #[inline]
    pub(crate) fn flush_at_home(&mut self) {
        if self.engine.has_actions() || self.engine.has_notices() {
            self.read_idle();
            let unfinished = Unfinished { mux: self };
            unfinished.mux.carry_out();
            std::mem::forget(unfinished);
        }
        self.engine.forget_randomness();
    }

    /// Reads the sockets of nodes that owe no answer, so that unrequested bytes are found before
    /// they could be taken for the answer to the next command. Nodes that owe answers are skipped:
    /// their bytes are answers first.
    #[inline]
    fn read_idle(&mut self) {
        let now = self.engine.last_now();
        if self.unread || now.since(self.looked_at) > UNREAD_MAX {
            self.read_all_idle(now);
        }
    }

    #[inline(never)]
    fn read_all_idle(&mut self, now: Moment) {
        let mut looked_at = now;
        for node in 0..self.nodes.len() {
            if !self.engine.is_idle(node) {
                continue;
            }
            let connection = &self.nodes[node];
            match connection.unread || now.since(connection.read_at) > UNREAD_MAX {
                true => self.read_node(node, false),
                false => looked_at = looked_at.min(connection.read_at),
            }
        }
        self.looked_at = looked_at;
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
                self.engine.handle_disconnected(now, node, outcome);
            }
        }
    }

    fn carry_out(&mut self) {
        // The rest leaves in the next turn, which is due immediately.
        for _ in 0..COMMANDS_PER_TURN_MAX {
            if !self.engine.has_actions() {
                break;
            }
            match self.engine.poll_action() {
                None => break,
                Some(Action::Connect { node }) => {
                    self.send_batch();
                    self.open(node);
                }
                Some(Action::Close { node }) => {
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
        while let Some((node, notice)) = self.engine.poll_notice() {
            let address = &self.config.nodes[node].address;
            self.records.note(Level::Warn, format_args!("{address}: {notice}"));
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

    /// Passes on a readiness event. Returns whether its token belongs to this multiplexer.
    pub fn handle_event(&mut self, event: &Event) -> bool {
        if !self.home.is_here() {
            return false;
        }
        self.advance(Clock.now_coarse());
        let ours = self.handle_event_now(event);
        self.flush();
        ours
    }

    /// Passes on all events of one wait and does what is due, like
    /// [`handle_event`](Multiplexer::handle_event) for each and then
    /// [`handle_timeout`](Multiplexer::handle_timeout). But it reads the clock once, and sends
    /// everything together. It ignores events with other tokens.
    pub fn handle_events<'a>(&mut self, events: impl IntoIterator<Item = &'a Event>) {
        if self.home.is_here() {
            let now = Clock.now_coarse();
            self.advance(now);
            for event in events {
                self.handle_event_now(event);
            }
            self.handle_timeout_at(now);
            self.write_records();
        }
    }

    /// Updates the time, after a wait.
    pub(crate) fn advance(&mut self, now: Moment) {
        self.engine.advance(now);
        self.engine.forget_randomness();
    }

    /// As [`advance`](Multiplexer::advance), just after all sockets were polled. `was_away`: no
    /// thread was waiting, so the announced replies may have waited for a long time.
    pub(crate) fn advance_after_look(&mut self, now: Moment, was_away: bool) {
        self.advance(now);
        self.looked_at = self.engine.last_now();
        self.was_away = was_away;
    }

    /// As [`handle_event`](Multiplexer::handle_event), for one of several events after a single
    /// [`advance`](Multiplexer::advance). The caller flushes. Only in the process that made it.
    pub(crate) fn handle_event_now(&mut self, event: &Event) -> bool {
        let Some(node) = event.token().0.checked_sub(self.first.0) else {
            return false;
        };
        if node >= self.nodes.len() {
            return false;
        }
        self.read_node(node, event.is_read_closed() || event.is_error());
        true
    }

    /// As [`handle_event_now`](Multiplexer::handle_event_now), when no caller waits for anything.
    /// An answer that is too late to matter is read with the next one, which will be announced. At
    /// the latest it is read before the node fails for its silence. Bytes that are no answer are
    /// read at once.
    pub(crate) fn defer(&mut self, event: &Event) {
        // Other systems announce nothing again before all was read.
        let is_announced_again = cfg!(any(target_os = "linux", target_os = "android"));
        let node = event.token().0.wrapping_sub(self.first.0);
        let is_over = event.is_read_closed() || event.is_error();
        let can_wait = is_announced_again
            && !is_over
            && self.engine.is_open(node)
            && !self.engine.is_idle(node);
        match self.nodes.get_mut(node) {
            Some(Connection { socket: Some(socket), deferred, .. })
                if can_wait && socket.is_flowing() =>
            {
                deferred.get_or_insert(self.engine.last_now());
            }
            _ => {
                self.handle_event_now(event);
            }
        }
    }

    /// Reads the deferred bytes.
    pub(crate) fn catch_up(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].deferred.is_some() {
                self.read_node(node, false);
            }
        }
    }

    /// Does what is due: timeouts, retries, reconnects. Call it after each wait.
    pub fn handle_timeout(&mut self) {
        if self.home.is_here() {
            let now = Clock.now_coarse();
            self.advance(now);
            self.handle_timeout_at(now);
            self.write_records();
        }
    }

    /// Only in the process that made it; see [`flush_at_home`](Multiplexer::flush_at_home).
    pub(crate) fn handle_timeout_at(&mut self, now: Moment) {
        #[cfg(not(unix))]
        (0..self.nodes.len()).for_each(|node| self.ask_lookup(node));
        let is_due = self.engine.is_due(now);
        if std::mem::take(&mut self.unread) || is_due {
            for node in 0..self.nodes.len() {
                let connection = &mut self.nodes[node];
                let unread = std::mem::take(&mut connection.unread);
                let deferred = connection.deferred.is_some();
                // The caller may not have polled for a long time, and the replies may be there.
                if unread || self.engine.is_overdue(now, node) {
                    self.read_node(node, true);
                } else if deferred {
                    self.read_node(node, false);
                }
            }
        }
        if is_due {
            let mut unread = NodeSet::EMPTY;
            let nodes = self.nodes.iter().enumerate().filter(|(_, connection)| connection.unread);
            nodes.for_each(|(node, _)| unread.insert(node));
            self.engine.handle_timeout_of_others(now, unread);
        }
        self.flush_at_home();
    }

    /// How long the event loop may wait; `None` means without limit.
    pub fn next_timeout(&self) -> Option<Duration> {
        if !self.home.is_here() {
            return None;
        }
        match self.engine.has_done() {
            true => Some(Duration::ZERO),
            false => Some(self.due()?.since(Clock.now_coarse())),
        }
    }

    /// When [`next_timeout`](Multiplexer::next_timeout) ends, for a caller that checks for results
    /// itself.
    pub(crate) fn due(&self) -> Option<Moment> {
        let due =
            if self.unread { Some(self.engine.last_now()) } else { self.engine.poll_timeout() };
        #[cfg(not(unix))]
        if self.nodes.iter().any(|connection| matches!(connection.search, Search::Running(_))) {
            let look = self.engine.last_now().after(lookup::LOOK_INTERVAL);
            return Some(due.map_or(look, |due| due.min(look)));
        }
        due
    }

    /// Takes the next result.
    ///
    /// The clock is read for each acquired lock: a lock that is handed out was valid at that
    /// moment. A quorum that came too late is undone here. The commands for that leave with the
    /// next [`flush`](Multiplexer::flush) or turn, which is due immediately.
    #[inline]
    pub fn poll_done(&mut self) -> Option<(OpId, Done)> {
        // A lock that was granted before a fork is handed out once, to the parent (R24).
        if !self.home.is_here() {
            return None;
        }
        let now = match self.engine.is_release_next()? {
            true => self.engine.last_now(),
            false => Clock.now(),
        };
        self.engine.poll_done(now)
    }

    /// As [`poll_done`](Multiplexer::poll_done), for one operation. It sends nothing: if a logger
    /// panicked then, the result would be lost.
    #[inline]
    pub(crate) fn take_done(&mut self, id: OpId) -> Option<Done> {
        if !self.engine.has_done() {
            return None;
        }
        let now = self.now_for(id);
        self.engine.take_done(now, id)
    }

    /// Ends an operation at once. [`poll_done`](Multiplexer::poll_done) no longer returns it, even
    /// if it had ended before.
    ///
    /// - An acquisition is undone: whatever it took, or may yet take, is released on every node
    ///   that it was meant for. From here on, no lock is held by it.
    /// - An extension returns its lease. The lock is held as before, until the lease's deadline:
    ///   the old one, or the new one if the extension had succeeded by now. Commands already sent
    ///   are not recalled, so the keys may live longer than that; a release deletes them anyway.
    /// - A release continues without a report: it cannot be taken back.
    ///
    /// For an operation that is not, or no longer, in flight here it returns
    /// [`Nothing`](Cancelled::Nothing) and does no harm. The same holds in a forked process.
    ///
    /// The resulting commands leave with the next [`flush`](Multiplexer::flush).
    pub fn cancel(&mut self, id: OpId) -> Cancelled {
        match self.home.is_here() {
            true => self.engine.cancel(Clock.now(), id),
            false => Cancelled::Nothing,
        }
    }

    /// Cancels an operation that no caller waits for, and releases what it holds. The commands
    /// leave with the next flush: this may be called while a thread panics, and sending may report
    /// failures to a logger.
    pub(crate) fn forsake(&mut self, id: OpId) {
        if let Cancelled::Extension(lease) = self.cancel(id) {
            self.abandon(lease);
        }
    }

    /// The time at which to take the result. The end of a release does not depend on a validity.
    fn now_for(&self, id: OpId) -> Moment {
        match self.engine.is_release(id) {
            true => self.engine.last_now(),
            false => Clock.now(),
        }
    }

    /// What is known of each node; nothing in a forked process.
    pub fn nodes(&self) -> impl Iterator<Item = NodeStatus> + '_ {
        self.home.is_here().then(|| self.engine.nodes()).into_iter().flatten()
    }

    /// The counters; all zero in a forked process.
    pub fn stats(&self) -> Stats {
        match self.home.is_here() {
            true => self.engine.stats(),
            false => Stats::default(),
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn extend_at(&mut self, now: Moment, lease: Lease, ttl: Duration) -> OpId {
        self.engine.extend(now, lease, ttl)
    }

    pub(crate) fn abandon_at(&mut self, now: Moment, lease: Lease) {
        self.engine.abandon(now, lease);
    }

    pub(crate) fn let_go_at(&mut self, now: Moment, lease: &mut Lease) {
        // Answers that have arrived by now resolve the doubt about their nodes.
        (0..self.nodes.len()).for_each(|node| self.read_node(node, false));
        self.engine.let_go(now, lease);
    }

    pub(crate) fn connect_at(&mut self, now: Moment) {
        self.engine.connect(now);
    }

    pub(crate) fn unlock_at(&mut self, now: Moment, lease: Lease) -> OpId {
        self.engine.release(now, lease)
    }

    /// For this process only.
    pub(crate) fn try_lock_until(
        &mut self,
        now: Moment,
        resource: Resource,
        ttl: Duration,
        patience: Patience,
    ) -> Result<OpId, LockError> {
        self.engine.acquire(now, resource, ttl, patience)
    }

    fn check_home(&self) -> Result<(), LockError> {
        if self.home.is_here() { Ok(()) } else { Err(LockError::forked()) }
    }

    /// The process that made this: in any other process, nothing of it may be touched (R24).
    pub(crate) fn home(&self) -> Home {
        self.home
    }

    fn open(&mut self, node: usize) {
        self.nodes[node].tried = 0;
        let config = Arc::clone(&self.config);
        match &config.nodes[node].target {
            Target::Name { host, port } => self.look_up(node, host, *port),
            Target::Address(_) | Target::Unix(_) => self.try_address(node),
        }
    }

    /// Starts to connect to the node's current address, or to the next one that does not fail at
    /// once.
    fn try_address(&mut self, node: usize) {
        let token = Token(self.first.0 + node);
        let connection = &mut self.nodes[node];
        let opened = match &self.config.nodes[node].target {
            Target::Address(_) | Target::Name { .. } => {
                let addresses = &connection.addresses;
                let address = addresses[connection.address % addresses.len()];
                Socket::tcp(&self.registry, token, address)
            }
            Target::Unix(path) => Socket::unix(&self.registry, token, path),
        };
        match opened {
            Ok(socket) => connection.socket = Some(socket),
            Err(error) => self.connect_failed(Clock.now(), node, &error),
        }
    }

    /// The other addresses of a name are tried before the node fails. All of them together have one
    /// connect timeout.
    fn connect_failed(&mut self, now: Moment, node: usize, error: &io::Error) {
        let connection = &mut self.nodes[node];
        connection.socket = None;
        connection.tried += 1;
        connection.address = connection.address.wrapping_add(1);
        if connection.tried < connection.addresses.len() {
            // The recursion is as deep as the name has addresses, which is capped.
            self.try_address(node);
        } else {
            self.fail(now, node, disconnected(error));
        }
    }

    fn close(&mut self, node: usize) {
        let connection = &mut self.nodes[node];
        (connection.unread, connection.deferred) = (false, None);
        connection.is_awaited = false;
        if let Some(socket) = connection.socket.take() {
            if !socket.connected {
                // This address did not answer: the next try uses the name's next address.
                connection.address = connection.address.wrapping_add(1);
            }
            socket.abort();
            let address = &self.config.nodes[node].address;
            self.records.note(Level::Debug, format_args!("{address}: closed"));
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
            Ok(()) => self.engine.handle_blocked(node),
            Err(error) => self.send_failed(node, &error),
        }
    }

    #[cold]
    fn send_failed(&mut self, node: usize, error: &io::Error) {
        self.fail(Clock.now(), node, disconnected(error));
    }

    fn fail(&mut self, now: Moment, node: usize, outcome: NodeOutcome) {
        // Dropped at once, so that nothing more is written to it. The engine asks to close it
        // later.
        if let Some(socket) = self.nodes[node].socket.take() {
            socket.abort();
        }
        self.engine.handle_disconnected(now, node, outcome);
        let address = &self.config.nodes[node].address;
        self.records.note(Level::Debug, format_args!("{address}: {outcome}"));
    }

    /// Does what a node's socket is ready for. `to_the_end`: the poll may not announce the bytes
    /// again, so a short read is not the end.
    fn read_node(&mut self, node: usize, to_the_end: bool) {
        let connection = &mut self.nodes[node];
        let deferred = connection.deferred.take();
        let is_late = self.was_away || deferred.is_some();
        if is_late {
            self.engine.reading_late(node, deferred);
        }
        connection.read_at = self.engine.last_now();
        match &mut connection.socket {
            // The fast path: the socket has exactly the awaited replies.
            Some(socket) if socket.is_flowing() && !to_the_end && !connection.unread => {
                let mut replies_left = self.engine.replies_per_turn();
                let received = socket.receive();
                let is_usual =
                    matches!(received, Ok(Received::Last)) && !self.engine.is_telling_time(node);
                if is_usual {
                    let next = || socket.reader.next_grant();
                    replies_left = self.engine.handle_grants(node, replies_left, next);
                }
                if !is_usual || replies_left == 0 || !socket.reader.is_empty() {
                    self.drain(node, received, false, replies_left);
                }
            }
            Some(_) => self.read_slowly(node, to_the_end),
            None => self.ask_lookup(node),
        }
        if is_late {
            self.engine.reading_in_time(node);
        }
    }

    #[inline(never)]
    fn read_slowly(&mut self, node: usize, to_the_end: bool) {
        let is_flowing =
            |connection: &Connection| connection.socket.as_ref().is_some_and(Socket::is_flowing);
        if is_flowing(&self.nodes[node]) || self.finish_connect(self.engine.last_now(), node) {
            self.receive(node, to_the_end);
        }
    }

    /// Finishes connecting, and sends what was kept. Returns whether there may be something to
    /// read.
    #[cold]
    fn finish_connect(&mut self, now: Moment, node: usize) -> bool {
        let Some(socket) = &mut self.nodes[node].socket else {
            return false;
        };
        if !socket.connected {
            match socket.finish_connecting() {
                Ok(true) => self.engine.handle_connected(now, node),
                Ok(false) => return false,
                Err(error) => {
                    self.connect_failed(now, node, &error);
                    return false;
                }
            }
        }
        if socket.unsent() > 0 {
            if let Err(error) = socket.send_rest() {
                self.fail(now, node, disconnected(&error));
                return false;
            }
            if socket.unsent() == 0 {
                self.engine.handle_writable(now, node);
            }
        }
        true
    }

    fn receive(&mut self, node: usize, to_the_end: bool) {
        let mut replies_left = self.engine.replies_per_turn();
        if to_the_end || self.nodes[node].unread {
            replies_left = self.read_buffered(self.engine.last_now(), node, replies_left);
            if replies_left == 0 {
                return;
            }
        }
        if let Some(socket) = &mut self.nodes[node].socket {
            let received = socket.receive();
            self.drain(node, received, to_the_end, replies_left);
        }
    }

    /// Handles what was received, then reads and handles the rest.
    #[inline(never)]
    fn drain(
        &mut self,
        node: usize,
        received: io::Result<Received>,
        to_the_end: bool,
        replies_left: usize,
    ) {
        let Some(socket) = &mut self.nodes[node].socket else {
            return;
        };
        match drain(&mut self.engine, socket, node, received, to_the_end, replies_left) {
            // A part of a reply that was not requested.
            Ok(Drained::Enough) if self.engine.is_idle(node) && !socket.reader.is_empty() => {
                let outcome = NodeOutcome::Protocol(ProtocolError::Surplus);
                self.fail(self.engine.last_now(), node, outcome);
            }
            Ok(Drained::Enough) => {}
            Ok(Drained::NotYet) => self.leave_unread(node),
            Err(outcome) => self.fail(self.engine.last_now(), node, outcome),
        }
    }

    /// Handles replies left by an earlier turn, at most `replies_max`. Returns how many more may be
    /// handled; zero if the turn is over for this node.
    #[cold]
    fn read_buffered(&mut self, now: Moment, node: usize, replies_max: usize) -> usize {
        let Multiplexer { engine, nodes, .. } = self;
        let Some(socket) = &mut nodes[node].socket else {
            return 0;
        };
        for left in (1..=replies_max).rev() {
            match socket.reader.next() {
                Ok(Some(reply)) => engine.handle_reply(now, node, reply),
                Ok(None) => return left,
                Err(error) => {
                    self.fail(now, node, NodeOutcome::Protocol(error));
                    return 0;
                }
            }
        }
        self.leave_unread(node);
        0
    }

    /// The announced sockets of the nodes were not read.
    pub(crate) fn leave_all_unread(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.leave_unread(node));
    }

    #[cold]
    fn leave_unread(&mut self, node: usize) {
        self.nodes[node].unread = true;
        self.unread = true;
    }
}

/// Whether everything that is to be read in this turn was read.
enum Drained {
    Enough,
    NotYet,
}

/// Handles what was read, then reads and handles the rest. An error ends the connection.
#[inline(always)]
fn drain(
    engine: &mut Engine,
    socket: &mut Socket,
    node: usize,
    mut next: io::Result<Received>,
    to_the_end: bool,
    mut replies_left: usize,
) -> Result<Drained, NodeOutcome> {
    for reads_left in (0..READS_PER_TURN_MAX).rev() {
        let received = match next {
            Ok(Received::Nothing) => return Ok(Drained::Enough),
            Ok(Received::Ended) => {
                return Err(NodeOutcome::Disconnected(io::ErrorKind::UnexpectedEof));
            }
            Ok(received) => received,
            Err(error) => return Err(disconnected(&error)),
        };
        // The clock is read again: otherwise a time that the server sent after our last reading
        // would look like a server clock that runs ahead.
        if engine.is_telling_time(node) {
            engine.advance(Clock.now_coarse());
        }
        loop {
            replies_left = engine.handle_grants(node, replies_left, || socket.reader.next_grant());
            if replies_left == 0 {
                return Ok(Drained::NotYet);
            }
            if socket.reader.is_empty() {
                break;
            }
            match socket.reader.next().map_err(NodeOutcome::Protocol)? {
                Some(reply) => engine.handle_reply(engine.last_now(), node, reply),
                None => break,
            }
            replies_left -= 1;
        }
        if received == Received::Last && !to_the_end {
            return Ok(Drained::Enough);
        }
        if reads_left == 0 {
            break;
        }
        next = socket.receive();
    }
    Ok(Drained::NotYet)
}

/// Guards the execution of actions. A panic there, which takes a bug of ours, leaves commands noted
/// as sent that were not. Every later reply would then be taken for the answer to the one before
/// (R17).
struct Unfinished<'a> {
    mux: &'a mut Multiplexer,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.mux.start_over();
    }
}

fn disconnected(error: &io::Error) -> NodeOutcome {
    NodeOutcome::Disconnected(error.kind())
}

impl Drop for Multiplexer {
    fn drop(&mut self) {
        if self.home.is_here() {
            // Unsent commands leave if the sockets accept them; the drop does not wait. An action
            // can fail a node, which adds actions. Each node fails at most once, since it is not
            // connected again.
            while self.engine.has_actions() {
                self.flush_at_home();
            }
            self.write_records();
        } else {
            // Deregistering a socket here would deregister it for the parent, which shares the
            // poll.
            self.nodes.drain(..).for_each(std::mem::forget);
        }
    }
}

impl std::fmt::Debug for Multiplexer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Multiplexer").field("engine", &self.engine).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;

    use mio::{Events, Poll};

    use super::*;
    use crate::config::Builder;
    use crate::token::Entropy;

    /// Name, id, four empty sections, time, two missing commands, and probe.
    const GREETING: &[u8] = b"+OK\r\n:1\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n\
        *2\r\n$1\r\n1\r\n$1\r\n1\r\n:0\r\n";

    /// A server that completes the handshake and grants one lock, and an address without a server.
    fn one_alive_one_dead() -> (SocketAddr, SocketAddr, JoinHandle<()>) {
        let alive = TcpListener::bind("127.0.0.1:0").unwrap();
        let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = alive.local_addr().unwrap();
        let serve = move || {
            let (mut client, _) = alive.accept().unwrap();
            for answer in [GREETING, b"+OK\r\n"] {
                assert!(client.read(&mut [0; 4_096]).unwrap() > 0);
                client.write_all(answer).unwrap();
            }
        };
        (address, dead, std::thread::spawn(serve))
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
        let mut mux = Multiplexer::new(config, poll.registry(), Token(7)).unwrap();
        let draws = Draws::default();
        mux.engine = Engine::new(Arc::clone(&mux.config), Box::new(draws.clone()));
        let ends: [fn(&mut Multiplexer); 5] = [
            |mux| mux.advance(mux.now()),
            Multiplexer::flush,
            Multiplexer::start_over,
            |mux| mux.handle_events([]),
            Multiplexer::handle_timeout,
        ];
        for (nth, end) in ends.into_iter().enumerate() {
            mux.try_lock("name", Duration::from_secs(10)).unwrap();
            assert!(draws.0.load(Ordering::Relaxed), "{nth}");
            end(&mut mux);
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
        let mut mux =
            Multiplexer::new(config.config().unwrap(), poll.registry(), Token(7)).unwrap();
        let (go, told) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            assert!(client.read(&mut [0; 4_096]).unwrap() > 0);
            client.write_all(GREETING).unwrap();
            told.recv().unwrap();
            client.write_all(b"+OK\r\n").unwrap();
            client
        });
        mux.connect();
        let mut turns = 0..1_000;
        while !mux.engine.is_idle(0) {
            assert!(turns.next().is_some(), "the handshake ends");
            poll.poll(&mut events, mux.next_timeout()).unwrap();
            mux.handle_events(&events);
            mux.flush();
        }
        go.send(()).unwrap();
        let _client = server.join().unwrap();
        poll.poll(&mut events, None).unwrap();
        events.iter().for_each(|event| mux.defer(event));
        let surplus = NodeOutcome::Protocol(ProtocolError::Surplus);
        assert_eq!(mux.nodes().next().unwrap().last_failure, Some(surplus));
    }

    #[test]
    fn tokens_that_would_exceed_their_range_are_refused_by_value() {
        let poll = Poll::new().unwrap();
        let urls = ["redis://127.0.0.1:7000", "redis://127.0.0.1:7001", "redis://127.0.0.1:7002"];
        let new = |first| {
            let config = Builder::default().nodes(urls).config().unwrap();
            Multiplexer::new(config, poll.registry(), Token(first)).map(|mux| mux.nodes().count())
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
        let mut mux = Multiplexer::new(config, poll.registry(), Token(7)).unwrap();
        mux.try_lock("name", Duration::from_secs(10)).unwrap();
        let done = loop {
            mux.flush();
            if let Some((_, done)) = mux.poll_done() {
                break done;
            }
            poll.poll(&mut events, mux.next_timeout()).unwrap();
            events.iter().for_each(|event| assert!(mux.handle_event(event)));
            mux.handle_timeout();
        };
        assert!(matches!(done, Done::Acquired(Ok(_))), "{done:?}");
        server.join().unwrap();
    }
}
