//! A second connection to a node: beside one that is silent, to see whether the server answers
//! there, or beside one that is not established yet, to the next address of a name.

use std::io;

use super::socket::{Socket, Stage};
use super::stream::Received;
use crate::moment::Moment;

/// Any server answers this, even before it knows the user.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
/// How often the TLS handshake is continued in one turn.
#[cfg(feature = "tls-no-provider")]
const SHAKES_MAX: usize = 16;

/// The second connection of a node.
pub(super) struct Beside {
    pub(super) socket: Socket,
    /// The index of its address, modulo their number.
    pub(super) address: usize,
    is_asked: bool,
    opened_at: Moment,
}

impl Beside {
    /// One that has just been opened, to the address with this index.
    pub(super) fn new(socket: Socket, address: usize, opened_at: Moment) -> Beside {
        Beside { socket, address, is_asked: false, opened_at }
    }

    /// Whether its answer says something about a silence since then.
    pub(super) fn is_of(&self, silent_since: Option<Moment>) -> bool {
        silent_since.is_none_or(|since| self.opened_at > since)
    }

    /// Goes on. Returns whether the server has answered.
    pub(super) fn proceed(&mut self) -> io::Result<bool> {
        #[cfg_attr(not(feature = "tls-no-provider"), expect(unused_mut))]
        let mut stage = self.socket.finish_connecting()?;
        #[cfg(feature = "tls-no-provider")]
        for _ in 0..SHAKES_MAX {
            if !matches!(stage, Stage::ShakingUnread) {
                break;
            }
            stage = self.socket.finish_connecting()?;
        }
        if !matches!(stage, Stage::Connected) {
            return Ok(false);
        }
        if !self.is_asked {
            self.is_asked = true;
            self.socket.send(PING)?;
        }
        if self.socket.unsent() > 0 {
            self.socket.send_rest()?;
        }
        match self.socket.receive()? {
            Received::Nothing => Ok(false),
            Received::Ended => Err(io::ErrorKind::UnexpectedEof.into()),
            // A password or a permission might be missing. Any other error says that the server
            // serves no client now.
            Received::Some | Received::Last => {
                let said = self.socket.reader.pending();
                match said.starts_with(b"+") || said.starts_with(b"-NO") {
                    true => Ok(true),
                    false => Err(io::ErrorKind::ConnectionRefused.into()),
                }
            }
        }
    }
}
