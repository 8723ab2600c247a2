//! A first-in, first-out queue.

/// A queue in one contiguous buffer. Taken items are removed when all were taken, as after nearly
/// every turn, or when they are at least as many as the rest. A ring buffer would compute its
/// position at every step, and there are three steps for each command to each node.
#[derive(Debug)]
pub(crate) struct Fifo<T> {
    items: Vec<T>,
    /// How many items at the front were taken. Invariant: fewer than `items.len()`, or zero.
    taken: usize,
}

/// Up to this many taken items stay in the buffer, whatever is left.
const TAKEN_MAX: usize = 64;

impl<T: Copy> Fifo<T> {
    /// A queue with room for this many items at once.
    pub(super) fn with_room(count: usize) -> Fifo<T> {
        Fifo { items: Vec::with_capacity(2 * count.max(TAKEN_MAX)), taken: 0 }
    }

    #[inline]
    pub(super) fn push(&mut self, item: T) {
        self.items.push(item);
    }

    #[inline]
    pub(super) fn first(&self) -> Option<T> {
        self.get(0)
    }

    /// The item with `index` others before it.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<T> {
        self.items.get(self.taken + index).copied()
    }

    #[inline]
    pub(super) fn take_first(&mut self) -> Option<T> {
        let first = self.first()?;
        self.drop_first();
        Some(first)
    }

    /// The queue must not be empty.
    #[inline(always)]
    pub(super) fn drop_first(&mut self) {
        self.taken += 1;
        debug_assert!(self.taken <= self.items.len(), "there was one");
        if self.taken == self.items.len() {
            self.items.clear();
            self.taken = 0;
        } else if self.taken >= TAKEN_MAX && self.taken >= self.len() {
            self.clear_away();
        }
    }

    #[cold]
    fn clear_away(&mut self) {
        self.items.drain(..self.taken);
        self.taken = 0;
    }

    /// Takes all items, oldest first.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        self.clear_away();
        std::mem::take(&mut self.items)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.items.len() - self.taken
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = T> {
        self.items[self.taken..].iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_whatever_is_cleared_away_meanwhile() {
        for left_over in [0, 1, TAKEN_MAX, 3 * TAKEN_MAX] {
            let mut fifo = Fifo::with_room(1);
            (0..left_over).for_each(|item| fifo.push(item));
            for item in 0..10 * TAKEN_MAX {
                fifo.push(left_over + item);
                assert_eq!(fifo.len(), left_over + 1);
                assert_eq!(fifo.get(left_over), Some(left_over + item));
                assert_eq!(fifo.get(left_over + 1), None);
                assert_eq!(fifo.first(), Some(item));
                assert_eq!(fifo.take_first(), Some(item));
                assert_eq!(fifo.is_empty(), left_over == 0);
            }
            let left: Vec<_> = (10 * TAKEN_MAX..10 * TAKEN_MAX + left_over).collect();
            assert!(fifo.iter().eq(left.iter().copied()));
            assert_eq!(fifo.take_all(), left);
            assert_eq!((fifo.take_first(), fifo.len()), (None, 0));
        }
    }

    #[test]
    fn taking_all_takes_what_was_not_taken() {
        let mut fifo = Fifo::with_room(1);
        (0..5).for_each(|item| fifo.push(item));
        fifo.drop_first();
        assert_eq!((fifo.len(), fifo.is_empty()), (4, false));
        assert_eq!(fifo.take_all(), [1, 2, 3, 4]);
        assert_eq!((fifo.len(), fifo.is_empty(), fifo.first()), (0, true, None));
        fifo.push(7);
        assert_eq!((fifo.len(), fifo.take_first()), (1, Some(7)));
    }
}
