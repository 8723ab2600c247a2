//! The reader of replies and pushes, and arbitrary bytes.

use muxlock::error::ProtocolError;
use muxlock::proto::Reply;
use muxlock::resp::{REPLY_BYTES_MAX, ReplyReader};

#[derive(Debug, PartialEq)]
enum Item {
    Reply(Reply),
    Push(String),
}

/// Any bytes, cut anywhere: the reader never panics and never keeps more than a reply. It gives the
/// same replies and pushes, and the same verdict, as for the bytes in one piece. The first byte
/// says where the bytes are cut: once, or again and again.
pub fn reply(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else {
        return;
    };
    let step = usize::from(first);
    let whole = read([bytes]);
    let (head, tail) = bytes.split_at(bytes.len() * step / 256);
    assert_eq!(whole, read([head, tail]), "the cut makes a difference");
    assert_eq!(whole, read(bytes.chunks(step.max(1))), "the cuts make a difference");
}

fn read<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Item>, Option<ProtocolError>) {
    let (mut reader, mut items) = (ReplyReader::new(), Vec::new());
    for mut rest in parts {
        while !rest.is_empty() {
            let room = reader.room();
            assert!(!room.is_empty(), "a reader that returned None has room");
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            reader.filled(count);
            rest = &rest[count..];
            loop {
                let next = match reader.is_at_push() {
                    true => reader.next_push().map(|it| it.map(|it| Item::Push(format!("{it:?}")))),
                    false => reader.next().map(|it| it.map(Item::Reply)),
                };
                match next {
                    Ok(Some(item)) => items.push(item),
                    Ok(None) => break,
                    Err(error) => return (items, Some(error)),
                }
            }
            assert!(reader.pending().len() < REPLY_BYTES_MAX, "more is kept than a reply");
        }
    }
    (items, None)
}
