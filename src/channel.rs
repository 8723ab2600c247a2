//! The name on which an engine is notified, and by which the queues on the masters list it.

use crate::token::hex;

/// Random hexadecimal digits in the name of a channel.
const CHANNEL_RANDOM_BYTES: usize = 10;
const CHANNEL_HEAD: &[u8; 8] = b"muxlock:";

/// The channel on which an engine is notified that its turn has come. It is also the name of the
/// engine in the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel([u8; CHANNEL_HEAD.len() + 2 * CHANNEL_RANDOM_BYTES]);

impl Channel {
    /// The channel of an engine that drew this number.
    pub(crate) fn new(random: [u8; CHANNEL_RANDOM_BYTES]) -> Channel {
        let mut name = [0; CHANNEL_HEAD.len() + 2 * CHANNEL_RANDOM_BYTES];
        name[..CHANNEL_HEAD.len()].copy_from_slice(CHANNEL_HEAD);
        for (pair, byte) in name[CHANNEL_HEAD.len()..].chunks_exact_mut(2).zip(random) {
            pair.copy_from_slice(&hex(byte));
        }
        Channel(name)
    }

    /// Its name on the servers.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
