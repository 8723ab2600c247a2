//! The driver's reading: which sockets, when, and how much in one turn.

use std::io;
use std::time::Duration;

use mio::event::Event;

use super::driver::{Connection, Driver};
use super::failure::Failed;
use super::socket::Socket;
use super::stream::Received;
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, ProtocolError};
use crate::proto::{Engine, Node, NodeEvent};
use crate::resp::{self, ReplyReader};
use crate::sys::clock::Clock;

/// Reads from one node per turn; the rest follows in the next turn, so that no node starves others.
/// The engine's share bounds the number of replies besides.
const READS_PER_TURN_MAX: usize = 16;
/// Before a command goes to a node that owes no answer, its socket is read if the last read is
/// older than this. Bytes that arrived before a command cannot be its answer (R17).
pub(crate) const UNREAD_MAX: Duration = Duration::from_millis(1);
/// What was deferred for longer than this is read when more arrives.
const DEFERRED_MAX: Duration = Duration::from_millis(10);

impl Driver {
    /// Handles a readiness event, after [`after_wait`](Driver::after_wait); the caller flushes when
    /// all are handled. Returns whether its token belongs to this driver.
    pub(crate) fn handle_event(&mut self, event: &Event) -> bool {
        let node = event.token().0.checked_sub(self.first.0);
        let Some(node) = node.filter(|node| *node < self.nodes.len()) else {
            return false;
        };
        self.read_node(node, event.is_read_closed() || event.is_error());
        true
    }

    /// As [`handle_event`](Driver::handle_event), when no caller waits for anything. An answer that
    /// is too late to matter is read with the next one, which will be announced. At the latest it
    /// is read before the node fails for its silence, or with what arrives 10 ms later: the answers
    /// of one node may always be the last ones. So is a push: it wakes no caller. If it gives
    /// the turn to this client, the next one in the queue looks for itself. Bytes from a node that
    /// owes no answer are read at once.
    pub(crate) fn defer(&mut self, event: &Event) {
        // Other systems announce nothing again before all was read.
        let is_announced_again = cfg!(any(target_os = "linux", target_os = "android"));
        let node = event.token().0.wrapping_sub(self.first.0);
        let is_over = event.is_read_closed() || event.is_error();
        let is_awaited = |node: &Node| node.is_open() && !node.is_idle();
        let can_wait =
            is_announced_again && !is_over && self.engine.nodes().get(node).is_some_and(is_awaited);
        let now = self.engine.last_now();
        let is_recent = |since| now.since(since) <= DEFERRED_MAX;
        match self.nodes.get_mut(node) {
            Some(Connection { socket: Some(socket), deferred, .. })
                if can_wait && socket.is_flowing() && deferred.is_none_or(is_recent) =>
            {
                deferred.get_or_insert(now);
            }
            _ => {
                self.handle_event(event);
            }
        }
    }

    /// Reads the sockets of nodes that owe no answer, so that unrequested bytes are found before
    /// they could be taken for the answer to the next command. Nodes that owe answers are skipped:
    /// their bytes are answers first.
    #[inline]
    pub(super) fn read_idle(&mut self) {
        let now = self.engine.last_now();
        if self.unread || now.since(self.looked_at) > UNREAD_MAX {
            self.read_all_idle(now);
        }
    }

    #[inline(never)]
    fn read_all_idle(&mut self, now: Moment) {
        let mut looked_at = now;
        for node in 0..self.nodes.len() {
            if !self.engine.node(node).is_idle() {
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

    /// Handles the readiness of a node's socket. `to_the_end`: the poll may not announce the bytes
    /// again, so a short read is not the end.
    pub(super) fn read_node(&mut self, node: usize, to_the_end: bool) {
        let (now, connection) = (self.engine.last_now(), &mut self.nodes[node]);
        let deferred = connection.deferred.take();
        let mut is_read_late = self.away_until.is_some() || deferred.is_some();
        if is_read_late {
            let awaited = self.engine.node(node).awaited_since();
            is_read_late = deferred.is_some()
                || self.away_until > awaited.map(|sent_at| sent_at.after(UNREAD_MAX));
        }
        if is_read_late {
            self.engine.handle_node(now, node, NodeEvent::ReadingLate { since: deferred });
        }
        connection.read_at = now;
        match &mut connection.socket {
            // The fast path: the socket has exactly the awaited replies.
            Some(socket) if socket.is_flowing() && !to_the_end && !connection.unread => {
                let mut replies_left = self.engine.replies_per_iteration();
                let received = socket.receive();
                let is_usual = matches!(received, Ok(Received::Last));
                if is_usual {
                    pass_checked(&mut self.engine, &mut socket.reader, node);
                    let mut grants = socket.reader.grants();
                    replies_left = self.engine.handle_grants(node, replies_left, || grants.next());
                }
                if !is_usual || replies_left == 0 || !socket.reader.is_empty() {
                    self.drain(node, received, false, replies_left);
                }
            }
            Some(_) => self.read_slowly(node, to_the_end),
            None => self.ask_lookup(node),
        }
        if is_read_late {
            self.notify_engine(node, NodeEvent::ReadingInTime);
        }
    }

    #[inline(never)]
    pub(super) fn read_slowly(&mut self, node: usize, to_the_end: bool) {
        let is_flowing = self.nodes[node].socket.as_ref().is_some_and(Socket::is_flowing);
        if is_flowing || self.finish_connect(self.engine.last_now(), node) {
            self.receive(node, to_the_end);
        }
    }

    pub(super) fn receive(&mut self, node: usize, to_the_end: bool) {
        let (is_unread, most) = (self.nodes[node].unread, self.engine.replies_per_iteration());
        let Some(socket) = &mut self.nodes[node].socket else {
            return;
        };
        // The rest of an earlier turn comes first.
        let received = match to_the_end || is_unread {
            true => Ok(Received::Some),
            false => socket.receive(),
        };
        self.drain(node, received, to_the_end, most);
    }

    /// Handles the received bytes, then reads and handles the rest.
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
            Ok(true)
                if self.engine.node(node).is_idle()
                    && !socket.reader.is_empty()
                    && !socket.reader.is_at_push() =>
            {
                let outcome = NodeOutcome::Protocol(ProtocolError::Surplus);
                self.fail(self.engine.last_now(), node, outcome);
            }
            // The announced event may have been the end of a watch for failovers, or an answer on a
            // second connection.
            Ok(true) => {
                self.ask_lookup(node);
                self.read_beside(node);
            }
            Ok(false) => self.leave_unread(node),
            Err(failed) => self.fail(self.engine.last_now(), node, failed),
        }
    }

    /// What was deferred is read by the next [`handle_timeout`](Driver::handle_timeout).
    pub(crate) fn read_deferred(&mut self) {
        self.unread = true;
    }

    /// The announced sockets of the nodes were not read.
    pub(crate) fn leave_all_unread(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.leave_unread(node));
    }

    #[cold]
    pub(super) fn leave_unread(&mut self, node: usize) {
        self.nodes[node].unread = true;
        self.unread = true;
    }
}

/// Handles the bytes that were read, then reads and handles the rest. Returns whether everything
/// was read that is to be read in this turn. An error ends the connection.
#[inline(always)]
fn drain(
    engine: &mut Engine,
    socket: &mut Socket,
    node: usize,
    mut next: io::Result<Received>,
    to_the_end: bool,
    mut replies_left: usize,
) -> Result<bool, Failed> {
    for reads_left in (0..READS_PER_TURN_MAX).rev() {
        let received = match next {
            Ok(Received::Nothing) => return Ok(true),
            Ok(Received::Ended) => {
                return Err(NodeOutcome::Disconnected(io::ErrorKind::UnexpectedEof).into());
            }
            Ok(received) => received,
            Err(error) => return Err(Failed::disconnected(&error)),
        };
        if engine.node(node).is_unheard() {
            if let Some(said) = resp::foreign(socket.reader.pending()) {
                engine.handle_node(engine.last_now(), node, NodeEvent::Foreign(said));
            }
        }
        loop {
            {
                let mut grants = socket.reader.grants();
                replies_left = engine.handle_grants(node, replies_left, || grants.next());
            }
            if replies_left == 0 {
                return Ok(false);
            }
            pass_checked(engine, &mut socket.reader, node);
            if socket.reader.is_empty() || !pass_next(engine, &mut socket.reader, node)? {
                break;
            }
            replies_left -= 1;
        }
        if received == Received::Last && !to_the_end {
            return Ok(true);
        }
        if reads_left == 0 {
            break;
        }
        next = socket.receive();
    }
    Ok(false)
}

/// Passes the answer to a check of the clock to the engine, if it comes next and is as usual. Ours
/// is read again: otherwise a time that the server sent after our last reading would look like a
/// server clock that runs ahead.
#[inline]
fn pass_checked(engine: &mut Engine, reader: &mut ReplyReader, node: usize) {
    if engine.node(node).is_telling_time() {
        engine.advance(Clock.now_coarse());
        if let Some(time) = reader.time() {
            engine.handle_node(engine.last_now(), node, NodeEvent::Told(time));
        }
    }
}

/// Passes the next reply or push to the engine. Returns whether one was complete.
#[inline(never)]
fn pass_next(
    engine: &mut Engine,
    reader: &mut ReplyReader,
    node: usize,
) -> Result<bool, ProtocolError> {
    let now = engine.last_now();
    if reader.is_at_push() {
        return Ok(reader.next_push()?.map(|push| engine.handle_push(now, node, push)).is_some());
    }
    let Some(reply) = reader.next()? else { return Ok(false) };
    engine.handle_reply(now, node, resp::meaning(reply, || engine.node(node).awaits()));
    Ok(true)
}
