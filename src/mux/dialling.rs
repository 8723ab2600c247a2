//! The connections of a node, to its addresses: the first one, and a second one beside it.

use std::io;

use super::beside::Beside;
use super::driver::{Connection, Driver};
use super::socket::Socket;
use crate::config::Target;
use crate::moment::Moment;
#[cfg(feature = "tls-no-provider")]
use crate::outcome::Phase;
use crate::proto::NodeEvent;

impl Connection {
    /// Whether it is still to be established, to one of several addresses.
    fn is_choosing(&self) -> bool {
        self.addresses.len() > 1 && self.socket.as_ref().is_some_and(|socket| !socket.is_open)
    }
}

impl Driver {
    /// Opens a second connection, unless there is one of this silence that may still answer.
    pub(super) fn open_beside(&mut self, node: usize, silent_since: Option<Moment>) {
        let connection = &mut self.nodes[node];
        if connection.is_choosing() {
            return self.open_next(node);
        }
        if connection.socket.as_ref().is_none_or(|socket| !socket.connected) {
            return;
        }
        let mut address = connection.address;
        if let Some(mut beside) = connection.beside.take() {
            // An answer that waits there is older than this silence.
            let is_waiting = matches!(beside.proceed(), Ok(false)) && beside.socket.connected;
            let is_kept = is_waiting && beside.is_of(silent_since);
            if is_kept && connection.addresses.len() <= 1 {
                connection.beside = Some(beside);
                return;
            }
            address = beside.address.wrapping_add(1);
        }
        self.nodes[node].beside = self.dial_beside(node, address);
    }

    /// Begins with the name's next address, while the present one has not answered yet. Of two that
    /// are silent already, the first is given up.
    fn open_next(&mut self, node: usize) {
        let connection = &mut self.nodes[node];
        if connection.tried + 1 >= connection.addresses.len() {
            return;
        }
        connection.tried += 1;
        if let Some(beside) = connection.beside.take() {
            connection.socket = Some(beside.socket);
            connection.address = beside.address;
        }
        let address = connection.address.wrapping_add(1);
        self.note_trying(node, address);
        self.nodes[node].beside = self.dial_beside(node, address);
    }

    fn dial_beside(&self, node: usize, address: usize) -> Option<Beside> {
        let socket = self.dial(node, address).ok()?;
        Some(Beside::new(socket, address, self.engine.last_now()))
    }

    /// Which addresses were tried is of interest for a name with several of them.
    pub(super) fn note_trying(&mut self, node: usize, address: usize) {
        let addresses = &self.nodes[node].addresses;
        if let (Target::Name { .. }, 2..) = (&self.config.nodes[node].target, addresses.len()) {
            let address = addresses[address % addresses.len()].to_string();
            self.notify_engine(node, NodeEvent::Trying(&address));
        }
    }

    /// Starts to connect to the address with this index, modulo their number.
    pub(super) fn dial(&self, node: usize, address: usize) -> io::Result<Socket> {
        let token = self.token(node);
        match &self.config.nodes[node].target {
            Target::Address(_) | Target::Name { .. } | Target::Sentinel(_) => {
                let addresses = &self.nodes[node].addresses;
                let address = addresses[address % addresses.len()];
                Socket::tcp(&self.registry, token, address, &self.nodes[node].settings)
            }
            Target::Unix(path) => Socket::unix(&self.registry, token, path),
        }
    }

    /// Of two connections that are being established, goes on with the first that has a peer.
    #[cold]
    pub(super) fn choose(&mut self, node: usize) {
        let connection = &mut self.nodes[node];
        let Some(socket) = &mut connection.socket else {
            return;
        };
        let Some(beside) = connection.beside.take_if(|_| !socket.connected) else {
            return;
        };
        // An error of the first one is found by the caller.
        if !socket.is_open && matches!(socket.has_peer(), Ok(false)) {
            match beside.socket.has_peer() {
                Err(_) => {}
                Ok(false) => connection.beside = Some(beside),
                Ok(true) => {
                    connection.address = beside.address;
                    connection.socket = Some(beside.socket);
                }
            }
        } else if !socket.is_open {
            connection.beside = Some(beside);
        }
    }

    /// The first connection failed: the second one takes its place, if there is one.
    pub(super) fn take_beside(&mut self, node: usize) -> bool {
        let connection = &mut self.nodes[node];
        let Some(beside) = connection.beside.take() else {
            return false;
        };
        connection.address = beside.address;
        connection.socket = Some(beside.socket);
        #[cfg(feature = "tls-no-provider")]
        self.notify_engine(node, NodeEvent::Connecting(Phase::Connect));
        true
    }

    /// Reads the second connection, after the first one was read.
    #[cold]
    pub(super) fn read_beside(&mut self, node: usize) {
        let connection = &mut self.nodes[node];
        let Some(beside) = &mut connection.beside else {
            return;
        };
        match beside.proceed() {
            Ok(false) => {}
            Err(_) => connection.beside = None,
            Ok(true) => {
                let address = beside.address;
                connection.beside = None;
                // Bytes on their way have arrived: the first one may have spoken first.
                self.receive(node, true);
                if self.engine.node(node).is_lost_if_another_answers() {
                    self.nodes[node].address = address;
                }
                let now = self.engine.last_now();
                self.engine.handle_node(now, node, NodeEvent::AnsweredBeside);
            }
        }
    }
}
