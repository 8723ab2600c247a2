//! The name of a locked resource.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The longest resource name, in bytes (R8).
pub const RESOURCE_BYTES_MAX: usize = 1024;

/// The longest key prefix, in bytes.
pub(crate) const KEY_PREFIX_BYTES_MAX: usize = 256;

/// Names up to this length are stored inline, so taking such a lock allocates nothing.
const INLINE_BYTES_MAX: usize = 63;

/// The name of a resource: 1 to [`RESOURCE_BYTES_MAX`] bytes with any values. Together with the key
/// prefix, up to 63 bytes are stored without an allocation.
///
/// ```
/// use muxlock::Resource;
///
/// let resource = Resource::new("invoice:42")?;
/// assert_eq!(resource.as_bytes(), b"invoice:42");
/// assert!(Resource::new("").is_err());
/// # Ok::<(), muxlock::LockError>(())
/// ```
#[derive(Clone)]
pub struct Resource {
    /// A name that does not fit into `bytes`.
    long: Option<Arc<[u8]>>,
    /// Invariant: at most `INLINE_BYTES_MAX`.
    len: u8,
    bytes: [u8; INLINE_BYTES_MAX],
}

/// A name that is empty or longer than [`RESOURCE_BYTES_MAX`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct InvalidResource {
    /// Its length.
    pub(crate) bytes: usize,
}

impl Resource {
    /// Checks and stores a name. `Resource::new` is in `error.rs`, with the public error.
    pub(crate) fn checked(name: &[u8]) -> Result<Resource, InvalidResource> {
        if name.is_empty() || name.len() > RESOURCE_BYTES_MAX {
            return Err(InvalidResource { bytes: name.len() });
        }
        Ok(Resource::from_parts(name, &[]))
    }

    /// The key on the masters: `prefix` and then the name.
    #[inline]
    pub(crate) fn prefixed(self, prefix: &[u8]) -> Resource {
        if prefix.is_empty() { self } else { Resource::from_parts(prefix, self.as_bytes()) }
    }

    /// A key that a master has named; `None` if no lock's key is like that.
    pub(crate) fn of_key(key: &[u8]) -> Option<Resource> {
        let is_one = !key.is_empty() && key.len() <= RESOURCE_BYTES_MAX + KEY_PREFIX_BYTES_MAX;
        is_one.then(|| Resource::from_parts(key, &[]))
    }

    /// The inverse of `prefixed`: the resource name of this key.
    pub(crate) fn without_prefix(&self, prefix: &[u8]) -> Resource {
        if prefix.is_empty() {
            return self.clone();
        }
        let name = self.as_bytes().strip_prefix(prefix);
        Resource::from_parts(name.expect("every key begins with the prefix"), &[])
    }

    fn from_parts(head: &[u8], tail: &[u8]) -> Resource {
        let mut bytes = [0; INLINE_BYTES_MAX];
        let len = head.len() + tail.len();
        if len > INLINE_BYTES_MAX {
            return Resource { long: Some([head, tail].concat().into()), len: 0, bytes };
        }
        bytes[..head.len()].copy_from_slice(head);
        bytes[head.len()..len].copy_from_slice(tail);
        Resource { long: None, len: len as u8, bytes }
    }

    /// The name's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.long {
            None => &self.bytes[..usize::from(self.len)],
            Some(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Resource {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Resource {
    fn eq(&self, other: &Resource) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Resource {}

impl PartialOrd for Resource {
    fn partial_cmp(&self, other: &Resource) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// By their bytes.
impl Ord for Resource {
    fn cmp(&self, other: &Resource) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Resource {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.as_bytes().hash(hasher);
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().escape_ascii().fmt(f)
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource(\"{self}\")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_bounds_hold_on_both_sides() {
        for (len, valid) in [(0, false), (1, true), (1024, true), (1025, false)] {
            assert_eq!(Resource::new(vec![b'x'; len]).is_ok(), valid, "{len}");
        }
    }

    #[test]
    fn every_length_and_any_byte_survives() {
        for len in [1, 61, 62, 63, 64, 1024] {
            let name: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let resource = Resource::new(&name).unwrap();
            assert_eq!(resource.as_bytes(), name);
            let key = resource.clone().prefixed(b"p:");
            assert_eq!(key.as_bytes(), [b"p:".as_slice(), &name].concat());
            assert_eq!(key.without_prefix(b"p:"), resource);
            assert_eq!(resource.clone().prefixed(b""), resource);
            assert_eq!(resource.without_prefix(b""), resource);
        }
    }

    #[test]
    fn order_is_that_of_the_bytes() {
        let [short, long] = [[1_u8; 63].as_slice(), [1; 64].as_slice()].map(Resource::new);
        let (short, long) = (short.unwrap(), long.unwrap());
        assert!(short < long && long < Resource::new([2]).unwrap());
    }

    #[test]
    fn it_prints_readably() {
        let resource = Resource::new(b"a\xff").unwrap();
        assert_eq!(resource.to_string(), "a\\xff");
        assert_eq!(format!("{resource:?}"), "Resource(\"a\\xff\")");
    }
}
