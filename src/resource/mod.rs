//! What is locked: names, and the kind of lock.

mod checks;
mod kind;
mod name;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub(crate) use checks::{InvalidResource, LISTED_MAX, NAMES_BYTES_MAX, SLOTS_NAME_MAX};
pub use checks::{RESOURCE_BYTES_MAX, RESOURCES_MAX, SLOTS_MAX, VALUE_BYTES_MAX};
pub(crate) use kind::KINDS;
pub use kind::Trial;
pub(crate) use kind::{AskPolicy, KeptBy, Keys, KindRow, LockKind, QueueOf, Refusal, Sharing};
use name::Name;

/// The thing that is locked: the name of a resource, 1 to [`RESOURCE_BYTES_MAX`] arbitrary bytes.
/// Together with the key prefix, up to 63 bytes are stored without an allocation.
///
/// Other constructors are for other kinds of lock: [several resources](Resource::all), a [read
/// lock](Resource::shared), a [write lock](Resource::exclusive), a [permit](Resource::slot), or a
/// lock with an [owner value](Resource::with_value).
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
    /// Of a set, the first of its names.
    name: Name,
    /// `None` for a plain lock.
    kind: Option<Arc<LockKind>>,
}

impl Resource {
    fn plain(name: &[u8]) -> Resource {
        Resource { name: Name::new(0, name, &[]), kind: None }
    }

    /// The name's bytes; for several resources, the name that sorts first.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.name.bare()
    }

    /// The names of the resources, in the order of their bytes; usually one.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let (one, all) = match self.kind() {
            LockKind::Set(names) => (None, &names[..]),
            _ => (Some(self.as_bytes()), &[][..]),
        };
        one.into_iter().chain(all.iter().map(|name| &name[..]))
    }

    #[inline]
    pub(crate) fn kind(&self) -> &LockKind {
        self.kind.as_deref().unwrap_or(&LockKind::Plain)
    }

    /// The same name, with another kind of lock.
    fn with(&self, kind: LockKind) -> Resource {
        let kind = (kind != LockKind::Plain).then(|| Arc::new(kind));
        Resource { name: self.name.clone(), kind }
    }

    /// Whether it is a name and nothing else.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.kind.is_none()
    }

    /// What the locks of this kind have in common.
    pub(crate) fn row(&self) -> &'static KindRow {
        self.kind().row()
    }
}

/// The keys of a resource on the masters: each is the key prefix and a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Resource);

impl Key {
    /// The one place at which a prefix is put on.
    #[inline(always)]
    pub(crate) fn new(resource: Resource, prefix: &[u8]) -> Key {
        if prefix.is_empty() && resource.name.is_bare() {
            Key(resource)
        } else {
            Key::prefixed(&resource, prefix)
        }
    }

    #[inline(never)]
    fn prefixed(resource: &Resource, prefix: &[u8]) -> Key {
        let name = Name::new(prefix.len(), prefix, resource.as_bytes());
        Key(Resource { name, kind: resource.kind.clone() })
    }

    /// A plain lock's key that a master has named; `None` if no lock of a client with this prefix
    /// has such a key.
    pub(crate) fn of_bytes(key: &[u8], prefix: &[u8]) -> Option<Key> {
        let name = key.strip_prefix(prefix)?;
        let is_one = !name.is_empty() && name.len() <= RESOURCE_BYTES_MAX;
        is_one.then(|| Key(Resource { name: Name::new(prefix.len(), key, &[]), kind: None }))
    }

    /// The key's bytes; for several resources, those of the first one.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.name.with_prefix()
    }

    /// The resource of the key.
    #[inline]
    pub fn resource(&self) -> &Resource {
        &self.0
    }

    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.0.is_plain()
    }

    #[inline]
    pub(crate) fn kind(&self) -> &LockKind {
        self.0.kind()
    }

    pub(crate) fn row(&self) -> &'static KindRow {
        self.0.row()
    }

    /// The same key, with another kind of lock.
    fn with(&self, kind: LockKind) -> Key {
        Key(self.0.with(kind))
    }

    /// The keys that its scripts are given, in their order.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        let prefix = self.0.name.prefix();
        match (self.row().keys, self.slot()) {
            (Keys::Names, _) => self.0.names().map(|name| [prefix, name].concat()).collect(),
            (Keys::And(tail), _) => {
                vec![self.as_bytes().to_vec(), [self.as_bytes(), tail].concat()]
            }
            (Keys::Slots, slots) => {
                let slots = 0..slots.map_or(0, |(slots, _)| slots);
                slots.map(|slot| [self.as_bytes(), &Key::slot_tail(slot)].concat()).collect()
            }
        }
    }

    /// The plain lock's key that is this one of [`keys`](Key::keys).
    pub(crate) fn plain_at(&self, index: usize) -> Option<Key> {
        let (prefix, keys) = (self.0.name.prefix(), self.keys());
        Key::of_bytes(keys.get(index)?, prefix)
    }

    /// The plain locks' keys in whose queues it may wait (K9).
    pub(crate) fn to_queue_for(&self) -> Vec<Key> {
        let prefix = self.0.name.prefix();
        let mut keys = self.keys();
        if let Keys::And(_) = self.row().keys {
            keys.truncate(1);
        }
        keys.iter().filter_map(|key| Key::of_bytes(key, prefix)).collect()
    }

    /// The value that the caller has chosen, if it is locked with one.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        match self.kind() {
            LockKind::Value(value) => Some(value),
            _ => None,
        }
    }

    /// Of a slot: how many there are, and which one it is, from 0, unless any will do.
    pub(crate) fn slot(&self) -> Option<(u32, Option<u32>)> {
        match self.kind() {
            LockKind::Slot { of, slot } => Some(((*of).into(), slot.map(u32::from))),
            _ => None,
        }
    }

    /// Another slot of the same ones.
    pub(crate) fn with_slot(&self, slot: Option<u32>) -> Key {
        let of = self.slot().map_or(1, |(slots, _)| slots);
        self.with(LockKind::Slot { of: of as u8, slot: slot.map(|slot| slot as u8) })
    }

    fn slot_tail(slot: u32) -> Vec<u8> {
        format!("{{permit}}:{slot}").into_bytes()
    }

    /// What is held once this is taken.
    #[inline]
    pub(crate) fn held(&self) -> Key {
        if self.is_plain() { self.clone() } else { self.undone() }
    }

    /// What an attempt to take this may leave.
    #[inline(never)]
    pub(crate) fn undone(&self) -> Key {
        match self.slot() {
            Some((_, Some(slot))) => {
                let prefix = self.0.name.prefix().len();
                let name = Name::new(prefix, self.as_bytes(), &Key::slot_tail(slot));
                Key(Resource { name, kind: None })
            }
            _ => self.clone(),
        }
    }

    /// A share of the same key, if its kind of lock can be shared.
    pub(crate) fn shared(&self) -> Option<Key> {
        let can_be = self.row().sharing == Sharing::CanBeShared;
        can_be.then(|| self.with(LockKind::Shared))
    }

    /// The plain lock's key of its name, or of the first one.
    pub(crate) fn of_first_name(&self) -> Key {
        self.with(LockKind::Plain)
    }

    /// The same key, held alone in each way that there is.
    pub(crate) fn alone(&self) -> [Key; 2] {
        [LockKind::Plain, LockKind::Exclusive].map(|kind| self.with(kind))
    }
}

/// By the bytes of the names, with or without the key prefix.
impl PartialEq for Resource {
    #[inline]
    fn eq(&self, other: &Resource) -> bool {
        self.as_bytes() == other.as_bytes() && self.kind == other.kind
    }
}

impl Eq for Resource {}

impl PartialOrd for Resource {
    fn partial_cmp(&self, other: &Resource) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Resource {
    fn cmp(&self, other: &Resource) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes()).then_with(|| self.kind.cmp(&other.kind))
    }
}

impl Hash for Resource {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.as_bytes().hash(hasher);
        if !self.is_plain() {
            // All of it: sets with the same first name are not the same.
            self.kind.hash(hasher);
        }
    }
}

/// The names, with a comma between them.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.names().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            name.escape_ascii().fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_plain() {
            true => write!(f, "Resource(\"{self}\")"),
            false => write!(f, "Resource({} \"{self}\")", self.row().name),
        }
    }
}
