//! The codec by itself: no sockets.

use std::hint::black_box;

use bytes::BytesMut;
use muxlock::node::ReleaseWith;
use muxlock::proto::Command;
use muxlock::resp::{ReplyReader, encode};
use testbed::memory::Group;

use crate::work::KEY;

/// More than what is encoded at once.
const ENCODED_BYTES_MAX: usize = 4096;

/// What is to be encoded.
#[derive(Clone, Copy)]
pub enum Encoded {
    Set,
    Release,
}

/// Encodes one command again and again, into the same buffer.
pub fn encoding(what: Encoded) -> impl FnMut() {
    let (token, ttl) = Group::new(1).token_and_ttl();
    let mut out = BytesMut::with_capacity(ENCODED_BYTES_MAX);
    move || {
        let (token, key) = (&token, KEY.as_bytes());
        let command = match what {
            Encoded::Set => Command::Acquire { key, token, ttl },
            Encoded::Release => Command::Release { key, token, with: ReleaseWith::Script },
        };
        out.clear();
        encode(black_box(&command), &mut out);
        black_box(&out);
    }
}

/// Reads what one master says to a SET and to a release, as they come: one by one.
pub fn decoding() -> impl FnMut() {
    let mut reader = ReplyReader::new();
    move || {
        for bytes in [b"+OK\r\n".as_slice(), b":1\r\n"] {
            let bytes = black_box(bytes);
            reader.room()[..bytes.len()].copy_from_slice(bytes);
            reader.filled(bytes.len());
            while let Some(reply) = reader.next().expect("well-formed replies") {
                black_box(reply);
            }
        }
    }
}
