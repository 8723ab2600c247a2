//! The meaning of the numbers that scripts and servers answer with.

use std::time::Duration;

use crate::outcome::ServerCommand;
use crate::proto::{Expiry, Reason, Reply, Shape};
use crate::slots::Slots;

/// `queue_up.lua` answers with the position times 2 to this power, and the key's `PTTL` plus two.
const POSITION_SHIFT: u32 = 40;
const PTTL_OFFSET: i64 = 2;
/// Scripts that take other kinds of lock say from this number on why they do not.
const REASON_FIRST: i64 = 2;

/// The reply, with an integer as its meaning. An integer without a meaning stays one.
#[inline]
pub fn meaning(reply: Reply, shape: impl FnOnce() -> Shape) -> Reply {
    let Reply::Integer(number) = reply else { return reply };
    known(number, shape()).unwrap_or(reply)
}

fn known(number: i64, shape: Shape) -> Option<Reply> {
    let unsigned = number.unsigned_abs();
    Some(match (shape, number) {
        (Shape::VoteOfSet, REASON_FIRST..) => {
            Reply::Refused(Reason::Held(usize::try_from(number - REASON_FIRST).ok()?))
        }
        (Shape::VoteOfSlot, REASON_FIRST..) => {
            Reply::Refused(Reason::Free(Slots((number - REASON_FIRST).unsigned_abs())))
        }
        (Shape::Position, 0..) => Reply::Position {
            position: u32::try_from(number >> POSITION_SHIFT).ok()?,
            expiry: expiry((number & ((1 << POSITION_SHIFT) - 1)) - PTTL_OFFSET)?,
        },
        (Shape::Expiry, _) => Reply::Expiry(expiry(number)?),
        // The key was deleted, and the queue could not be looked at.
        (Shape::ReleasedAtQueue, -1) => Reply::ReleasedAtQueue { released: true, waiting: None },
        (Shape::ReleasedAtQueue, 0..) => {
            Reply::ReleasedAtQueue { released: unsigned & 1 == 1, waiting: Some(unsigned >> 1) }
        }
        (Shape::Missing, _) => Reply::Missing(ServerCommand::numbered(number)?),
        _ => return None,
    })
}

/// The meaning of an answer to `PTTL`.
fn expiry(number: i64) -> Option<Expiry> {
    Some(match number {
        -2 => Expiry::Absent,
        -1 => Expiry::Never,
        left => Expiry::In(Duration::from_millis(u64::try_from(left).ok()?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_for_what_was_asked() {
        let held = |index| Some(Reply::Refused(Reason::Held(index)));
        let free = |bits| Some(Reply::Refused(Reason::Free(Slots(bits))));
        let position = |position, expiry| Some(Reply::Position { position, expiry });
        let released_at_queue =
            |released, waiting| Some(Reply::ReleasedAtQueue { released, waiting });
        let after = |millis| Expiry::In(Duration::from_millis(millis));
        let (last, most) = ((1 << POSITION_SHIFT) - 3, i64::MAX as u64);
        let table = [
            (Shape::Number, 0, None),
            (Shape::Number, -1, None),
            (Shape::Vote, 0, None),
            (Shape::Vote, 2, None),
            (Shape::VoteOfSet, 1, None),
            (Shape::VoteOfSet, 2, held(0)),
            (Shape::VoteOfSet, i64::MAX, held(i64::MAX as usize - 2)),
            (Shape::VoteOfSlot, 1, None),
            (Shape::VoteOfSlot, 2, free(0)),
            (Shape::VoteOfSlot, 7, free(5)),
            (Shape::Position, -1, None),
            (Shape::Position, 0, position(0, Expiry::Absent)),
            (Shape::Position, 1, position(0, Expiry::Never)),
            (Shape::Position, 2, position(0, after(0))),
            (Shape::Position, (1_023 << 40) + 10_002, position(1_023, after(10_000))),
            (Shape::Position, i64::MAX, position((1 << 23) - 1, after(last))),
            (Shape::Expiry, -3, None),
            (Shape::Expiry, -2, Some(Reply::Expiry(Expiry::Absent))),
            (Shape::Expiry, -1, Some(Reply::Expiry(Expiry::Never))),
            (Shape::Expiry, i64::MAX, Some(Reply::Expiry(after(most)))),
            (Shape::ReleasedAtQueue, -2, None),
            (Shape::ReleasedAtQueue, -1, released_at_queue(true, None)),
            (Shape::ReleasedAtQueue, 0, released_at_queue(false, Some(0))),
            (Shape::ReleasedAtQueue, 5, released_at_queue(true, Some(2))),
            (Shape::ReleasedAtQueue, i64::MAX, released_at_queue(true, Some(most >> 1))),
            (Shape::Missing, -1, None),
            (Shape::Missing, 0, None),
            (Shape::Missing, 1, ServerCommand::numbered(1).map(Reply::Missing)),
            (Shape::Missing, i64::MAX, None),
        ];
        for (shape, number, expected) in table {
            let reply = Reply::Integer(number);
            let expected = expected.unwrap_or_else(|| reply.clone());
            assert_eq!(meaning(reply, || shape), expected, "{shape:?} {number}");
        }
        assert_eq!(meaning(Reply::Nil, || Shape::Position), Reply::Nil);
    }

    #[test]
    fn slots_are_free_by_their_bits() {
        let free = Slots(1 << 49 | 0b101);
        let found: Vec<u32> = (0..50).filter(|slot| free.contains(*slot)).collect();
        assert_eq!(found, [0, 2, 49]);
    }
}
