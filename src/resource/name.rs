//! The bytes of a name, with the key prefix before them once it is on.

use std::sync::Arc;

/// Keys up to this length are stored inline, so taking such a lock allocates nothing.
const INLINE_BYTES_MAX: usize = 63;

/// A name, or the key on the masters: then the first `prefix` bytes are the key prefix.
#[derive(Clone)]
pub(super) enum Name {
    Short {
        /// Invariant: at most `INLINE_BYTES_MAX`.
        len: u8,
        prefix: u16,
        bytes: [u8; INLINE_BYTES_MAX],
    },
    Long {
        prefix: u16,
        bytes: Arc<[u8]>,
    },
}

impl Name {
    /// The two parts one behind the other, of which so many bytes are the key prefix.
    pub(super) fn new(prefix: usize, head: &[u8], tail: &[u8]) -> Name {
        let (len, prefix) = (head.len() + tail.len(), prefix as u16);
        if len > INLINE_BYTES_MAX {
            return Name::Long { prefix, bytes: [head, tail].concat().into() };
        }
        let mut bytes = [0; INLINE_BYTES_MAX];
        bytes[..head.len()].copy_from_slice(head);
        bytes[head.len()..len].copy_from_slice(tail);
        Name::Short { len: len as u8, prefix, bytes }
    }

    /// The key on the masters.
    #[inline]
    pub(super) fn with_prefix(&self) -> &[u8] {
        match self {
            Name::Short { len, bytes, .. } => &bytes[..usize::from(*len)],
            Name::Long { bytes, .. } => bytes,
        }
    }

    #[inline]
    pub(super) fn prefix_bytes(&self) -> usize {
        match self {
            Name::Short { prefix, .. } | Name::Long { prefix, .. } => usize::from(*prefix),
        }
    }

    #[inline]
    pub(super) fn is_bare(&self) -> bool {
        self.prefix_bytes() == 0
    }

    pub(super) fn prefix(&self) -> &[u8] {
        &self.with_prefix()[..self.prefix_bytes()]
    }

    /// The name alone.
    #[inline]
    pub(super) fn bare(&self) -> &[u8] {
        &self.with_prefix()[self.prefix_bytes()..]
    }
}
