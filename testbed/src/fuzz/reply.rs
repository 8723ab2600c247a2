//! The reader of replies, and arbitrary bytes.

use muxlock::ProtocolError;
use muxlock::proto::Reply;
use muxlock::resp::{REPLY_BYTES_MAX, ReplyReader};

/// Any bytes, cut anywhere: the reader never panics and never keeps more than a reply. It gives the
/// same replies and the same verdict as for the bytes in one piece.
pub fn reply(data: &[u8]) {
    let Some((&step, bytes)) = data.split_first() else {
        return;
    };
    let whole = read(bytes, usize::MAX);
    let split = read(bytes, usize::from(step).max(1));
    assert_eq!(whole, split, "the cut makes a difference");
}

fn read(bytes: &[u8], step: usize) -> (Vec<Reply>, Option<ProtocolError>) {
    let mut reader = ReplyReader::new();
    let mut replies = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let room = reader.room();
        assert!(!room.is_empty(), "a reader that returned None has room");
        let count = room.len().min(step).min(rest.len());
        room[..count].copy_from_slice(&rest[..count]);
        reader.filled(count);
        rest = &rest[count..];
        loop {
            match reader.next() {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(error) => return (replies, Some(error)),
            }
        }
        assert!(reader.pending().len() <= REPLY_BYTES_MAX, "more is kept than a reply");
    }
    (replies, None)
}
