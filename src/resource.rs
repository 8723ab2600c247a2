//! The name of a locked resource.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::token::{LockToken, TOKEN_BYTES};

/// The longest resource name, in bytes (R8).
pub const RESOURCE_BYTES_MAX: usize = 1024;

/// The longest key prefix, in bytes.
pub(crate) const KEY_PREFIX_BYTES_MAX: usize = 256;

/// Names up to this length are stored inline, so taking such a lock allocates nothing.
const INLINE_BYTES_MAX: usize = 63;

/// The most resources in one lock.
pub const RESOURCES_MAX: usize = 128;

/// The longest list of names that one lock is asked for with, with those that are named again.
pub(crate) const LISTED_MAX: usize = 8 * RESOURCES_MAX;

/// The longest names of the resources in one lock, in bytes, all together.
const SET_BYTES_MAX: usize = 64 << 10;

/// More than the names of one lock and their lengths need.
pub(crate) const NAMES_BYTES_MAX: usize = SET_BYTES_MAX + 2 * RESOURCES_MAX;

/// The most permits of a semaphore: which of them are free is told as a number that Lua holds
/// exactly.
pub const SLOTS_MAX: u32 = 50;

/// The longest value that a caller may lock a resource with, in bytes.
pub const VALUE_BYTES_MAX: usize = 512;

/// Any slot: the engine chooses one.
pub(crate) const SLOT_ANY: u32 = u8::MAX as u32;

/// More than `{`, a number of permits, `}:` and the number of one of them need.
const SLOT_BYTES_MAX: usize = 8;
pub(crate) const SLOTS_NAME_MAX: usize = RESOURCE_BYTES_MAX - SLOT_BYTES_MAX;

/// What is locked under a name. The number of a form stands in the place of a short name's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Form {
    /// One key, which has one holder.
    Plain,
    /// Several such keys at once. The names stand one after the other, each behind its length in
    /// two bytes.
    All,
    /// A share of one key.
    Shared,
    /// One key, which may be shared by others: a plain lock, once it is taken.
    Exclusive,
    /// One of several keys, whichever is free. Before the name stand two bytes: how many there are,
    /// and which one is asked for.
    Slot,
    /// One key with the caller's own value. Before the name stand its length in two bytes, and it.
    As,
    /// The same, of a holder who has it under a token, which stands before the name.
    TakeOver,
}

/// What is locked: the name of a resource, 1 to [`RESOURCE_BYTES_MAX`] bytes with any values.
/// Together with the key prefix, up to 63 bytes are stored without an allocation.
///
/// Other constructors make what other kinds of lock are taken of: [all](Resource::all) of several
/// resources, a [share](Resource::shared) of one, [all shares](Resource::exclusive) of one, one
/// [slot](Resource::slot) of several, or one with a [value](Resource::with_value) of the caller's.
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
    /// A name that does not fit into `bytes`, or that of a form that is not plain.
    long: Option<Arc<[u8]>>,
    /// Invariant: at most `INLINE_BYTES_MAX`. With `long`, the [`Form`].
    len: u8,
    bytes: [u8; INLINE_BYTES_MAX],
}

/// Why no lock can be taken of something.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InvalidResource {
    /// A name that is empty or longer than [`RESOURCE_BYTES_MAX`].
    Name { bytes: usize },
    /// No resource, or too many, or too long names.
    Set { resources: usize, bytes: usize },
    /// No slot, or more than [`SLOTS_MAX`].
    Slots { slots: u32 },
    /// A value that is empty or longer than [`VALUE_BYTES_MAX`].
    Value { bytes: usize },
}

impl InvalidResource {
    /// A list that is longer than [`LISTED_MAX`]; these names are its beginning.
    pub(crate) fn listed(names: &[Vec<u8>]) -> InvalidResource {
        let bytes = names.iter().map(Vec::len).sum();
        InvalidResource::Set { resources: LISTED_MAX + 1, bytes }
    }
}

impl Resource {
    /// Checks and stores a name. `Resource::new` is in `error.rs`, with the public error.
    pub(crate) fn checked(name: &[u8]) -> Result<Resource, InvalidResource> {
        if name.is_empty() || name.len() > RESOURCE_BYTES_MAX {
            return Err(InvalidResource::Name { bytes: name.len() });
        }
        Ok(Resource::from_parts(name, &[]))
    }

    /// The key on the masters: `prefix` and then the name.
    #[inline]
    pub(crate) fn prefixed(self, prefix: &[u8]) -> Resource {
        if prefix.is_empty() { self } else { self.behind(prefix) }
    }

    #[inline(never)]
    fn behind(&self, prefix: &[u8]) -> Resource {
        match self.is_plain() {
            true => Resource::from_parts(prefix, self.as_bytes()),
            false => self.renamed(|name| [prefix, name].concat()),
        }
    }

    /// A key that a master has named; `None` if no lock's key is like that.
    pub(crate) fn of_key(key: &[u8]) -> Option<Resource> {
        let is_one = !key.is_empty() && key.len() <= RESOURCE_BYTES_MAX + KEY_PREFIX_BYTES_MAX;
        is_one.then(|| Resource::from_parts(key, &[]))
    }

    /// The inverse of `prefixed`: the resource name of this key.
    pub(crate) fn without_prefix(&self, prefix: &[u8]) -> Resource {
        if prefix.is_empty() { self.clone() } else { self.after(prefix) }
    }

    #[inline(never)]
    fn after(&self, prefix: &[u8]) -> Resource {
        match self.is_plain() {
            true => Resource::from_parts(after(prefix, self.as_bytes()), &[]),
            false => self.renamed(|key| after(prefix, key).to_vec()),
        }
    }

    fn from_parts(head: &[u8], tail: &[u8]) -> Resource {
        let mut bytes = [0; INLINE_BYTES_MAX];
        let len = head.len() + tail.len();
        if len > INLINE_BYTES_MAX {
            let len = Form::Plain as u8;
            return Resource { long: Some([head, tail].concat().into()), len, bytes };
        }
        bytes[..head.len()].copy_from_slice(head);
        bytes[head.len()..len].copy_from_slice(tail);
        Resource { long: None, len: len as u8, bytes }
    }

    /// The name's bytes; of several resources, those of the first one in the order of their bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match self.long.is_none() {
            true => &self.bytes[..usize::from(self.len)],
            false => self.long_bytes(),
        }
    }

    #[inline(never)]
    fn long_bytes(&self) -> &[u8] {
        match &self.long {
            Some(bytes) if self.len == Form::Plain as u8 => bytes,
            _ => self.names().next().unwrap_or_default(),
        }
    }
}

/// Forms.
impl Resource {
    /// Without doubles, in the order of their bytes. One alone is a plain name.
    pub(crate) fn checked_all(mut names: Vec<Vec<u8>>) -> Result<Resource, InvalidResource> {
        names.sort_unstable();
        names.dedup();
        let (resources, bytes) = (names.len(), names.iter().map(Vec::len).sum());
        if resources == 0 || resources > RESOURCES_MAX || bytes > SET_BYTES_MAX {
            return Err(InvalidResource::Set { resources, bytes });
        }
        for name in &names {
            Resource::checked(name)?;
        }
        Ok(match &*names {
            [name] => Resource::from_parts(name, &[]),
            _ => Resource::formed(Form::All, &in_a_row(names.iter().map(Vec::as_slice))),
        })
    }

    /// `form` is [`Form::Shared`] or [`Form::Exclusive`].
    pub(crate) fn checked_of(form: Form, name: &[u8]) -> Result<Resource, InvalidResource> {
        Resource::checked(name).map(|_| Resource::formed(form, name))
    }

    pub(crate) fn checked_slot(name: &[u8], slots: u32) -> Result<Resource, InvalidResource> {
        if slots == 0 || slots > SLOTS_MAX {
            return Err(InvalidResource::Slots { slots });
        }
        if name.is_empty() || name.len() > SLOTS_NAME_MAX {
            return Err(InvalidResource::Name { bytes: name.len() });
        }
        let any = SLOT_ANY as u8;
        Ok(Resource::formed(Form::Slot, &[&[slots as u8, any], name].concat()))
    }

    pub(crate) fn checked_as(name: &[u8], value: &[u8]) -> Result<Resource, InvalidResource> {
        if value.is_empty() || value.len() > VALUE_BYTES_MAX {
            return Err(InvalidResource::Value { bytes: value.len() });
        }
        Resource::checked(name).map(|_| Resource::of_value(name, value))
    }

    /// With no value, what is looked at to see which one it has.
    pub(crate) fn of_value(name: &[u8], value: &[u8]) -> Resource {
        Resource::formed(Form::As, &[&in_a_row([value].into_iter()), name].concat())
    }

    fn formed(form: Form, bytes: &[u8]) -> Resource {
        Resource { long: Some(bytes.into()), len: form as u8, bytes: [0; INLINE_BYTES_MAX] }
    }

    /// Whether it is a name and nothing else.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.long.is_none() || self.len == Form::Plain as u8
    }

    /// Whether scripts of its own keep and free it.
    pub(crate) fn is_scripted(&self) -> bool {
        matches!(self.form(), Form::All | Form::Shared | Form::As | Form::TakeOver)
    }

    /// Whether acquisitions of one engine that wait for it queue (K9).
    pub(crate) fn has_line(&self) -> bool {
        !matches!(self.form(), Form::Shared | Form::Slot)
    }

    pub(crate) fn form(&self) -> Form {
        match (&self.long, self.len) {
            (None, _) | (_, 0) => Form::Plain,
            (_, 1) => Form::All,
            (_, 2) => Form::Shared,
            (_, 3) => Form::Exclusive,
            (_, 4) => Form::Slot,
            (_, 5) => Form::As,
            _ => Form::TakeOver,
        }
    }

    /// How many bytes stand before the name.
    fn head(&self) -> usize {
        match (self.form(), self.value_of()) {
            (Form::Slot, _) => 2,
            (_, Some((value, token))) => 2 + value.len() + token.len(),
            _ => 0,
        }
    }

    /// The names of the resources, in the order of their bytes; most often one.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let (mut all, one) = match (self.form(), &self.long) {
            (Form::All, Some(bytes)) => (&bytes[..], None),
            (_, Some(bytes)) => (&[][..], Some(&bytes[self.head()..])),
            (_, None) => (&[][..], Some(self.as_bytes())),
        };
        let next = move || {
            let (length, rest) = all.split_first_chunk()?;
            let (name, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)));
            all = rest;
            Some(name)
        };
        one.into_iter().chain(std::iter::from_fn(next))
    }

    /// The same form of other names.
    fn renamed(&self, rename: impl Fn(&[u8]) -> Vec<u8>) -> Resource {
        let names: Vec<Vec<u8>> = self.names().map(rename).collect();
        match self.form() {
            Form::All => Resource::formed(Form::All, &in_a_row(names.iter().map(Vec::as_slice))),
            form => {
                let head = &self.long.as_deref().unwrap_or_default()[..self.head()];
                Resource::formed(form, &[head, &names[0]].concat())
            }
        }
    }

    /// The value that the caller has chosen, if it is locked with one; and the token beside which
    /// it must stand already, or nothing.
    pub(crate) fn value_of(&self) -> Option<(&[u8], &[u8])> {
        let token = match self.form() {
            Form::As => 0,
            Form::TakeOver => TOKEN_BYTES,
            _ => return None,
        };
        let (length, rest) = self.long.as_ref()?.split_first_chunk()?;
        let (value, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)));
        Some((value, &rest[..token]))
    }

    /// Of a slot: how many there are, and which one it is, from 0.
    pub(crate) fn slot_of(&self) -> Option<(u32, u32)> {
        let bytes = self.long.as_ref().filter(|_| self.form() == Form::Slot)?;
        Some((bytes[0].into(), bytes[1].into()))
    }

    /// Another slot of the same ones.
    pub(crate) fn with_slot(&self, slot: u32) -> Resource {
        let (slots, _) = self.slot_of().unwrap_or((1, 0));
        Resource::formed(Form::Slot, &[&[slots as u8, slot as u8], self.as_bytes()].concat())
    }

    /// What is held once this is taken: of slots, the plain lock of this one.
    pub(crate) fn taken(&self) -> Resource {
        match (self.form(), self.value_of()) {
            (Form::TakeOver, Some((value, _))) => Resource::of_value(self.as_bytes(), value),
            _ => self.left(),
        }
    }

    /// For an acquisition that takes a lock with a caller's value over from the attempt with this
    /// token; see [`Redlock::extend_as`](crate::Redlock::extend_as). Without such a value, it stays
    /// as it is.
    pub fn take_over(&self, token: &LockToken) -> Resource {
        let Some((value, _)) = self.value_of() else {
            return self.clone();
        };
        let head = in_a_row([value].into_iter());
        Resource::formed(Form::TakeOver, &[&head, token.as_bytes(), self.as_bytes()].concat())
    }

    /// What an attempt to take this may leave.
    pub(crate) fn left(&self) -> Resource {
        match self.slot_of() {
            Some((_, slot)) => {
                let key = self.slot_key(slot);
                Resource::from_parts(&key, &[])
            }
            None => self.clone(),
        }
    }

    /// A share of the same key.
    pub(crate) fn into_shared(self) -> Resource {
        Resource::formed(Form::Shared, self.as_bytes())
    }

    /// The same key, held alone in each way that there is.
    pub(crate) fn alone(&self) -> [Resource; 2] {
        let name = self.as_bytes();
        [Resource::from_parts(name, &[]), Resource::formed(Form::Exclusive, name)]
    }

    fn slot_key(&self, slot: u32) -> Vec<u8> {
        let slots = self.slot_of().map_or(1, |(slots, _)| slots);
        [self.as_bytes(), format!("{{{slots}}}:{slot}").as_bytes()].concat()
    }

    /// The keys that the scripts of its form need, in their order.
    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        match (self.form(), self.slot_of()) {
            (Form::Shared | Form::Exclusive, _) => {
                vec![self.as_bytes().to_vec(), [self.as_bytes(), INTENT].concat()]
            }
            (Form::As | Form::TakeOver, _) => {
                vec![self.as_bytes().to_vec(), [self.as_bytes(), COMPANION].concat()]
            }
            (_, Some((slots, _))) => (0..slots).map(|slot| self.slot_key(slot)).collect(),
            _ => self.names().map(<[u8]>::to_vec).collect(),
        }
    }

    /// As text for another process: the form's number, and what stands for the name.
    pub(crate) fn to_raw(&self) -> (u8, &[u8]) {
        (self.form() as u8, self.long.as_deref().unwrap_or(self.as_bytes()))
    }

    #[inline(never)]
    fn is_same(&self, other: &Resource) -> bool {
        self.to_raw() == other.to_raw()
    }

    /// The inverse of [`to_raw`](Resource::to_raw), of what may be held.
    pub(crate) fn of_raw(form: u8, bytes: &[u8]) -> Result<Resource, InvalidResource> {
        const ALL: u8 = Form::All as u8;
        const SHARED: u8 = Form::Shared as u8;
        const EXCLUSIVE: u8 = Form::Exclusive as u8;
        const AS: u8 = Form::As as u8;
        let torn = InvalidResource::Name { bytes: 0 };
        match form {
            ALL => {
                let names = Resource::formed(Form::All, bytes).checked_names();
                Resource::checked_all(names.ok_or(torn)?)
            }
            SHARED => Resource::checked_of(Form::Shared, bytes),
            EXCLUSIVE => Resource::checked_of(Form::Exclusive, bytes),
            AS => {
                let (length, rest) = bytes.split_first_chunk().ok_or(torn)?;
                let parts = rest.split_at_checked(u16::from_le_bytes(*length).into());
                let (value, name) = parts.ok_or(torn)?;
                Resource::checked_as(name, value)
            }
            _ => Err(InvalidResource::Name { bytes: bytes.len() }),
        }
    }

    /// The names of a set that may not be one.
    fn checked_names(&self) -> Option<Vec<Vec<u8>>> {
        let (mut rest, mut names) = (self.long.as_deref()?, Vec::new());
        while let Some((length, after)) = rest.split_first_chunk() {
            let (name, after) = after.split_at_checked(u16::from_le_bytes(*length).into())?;
            names.push(name.to_vec());
            rest = after;
        }
        rest.is_empty().then_some(names)
    }
}

/// What a key's name ends with on which a client waits for readers to end.
const INTENT: &[u8] = b":intent";

/// What the name of the key ends with that stands beside one with a caller's value: a hash with the
/// token (K11).
const COMPANION: &[u8] = b":as";

fn after<'a>(prefix: &[u8], key: &'a [u8]) -> &'a [u8] {
    key.strip_prefix(prefix).expect("every key begins with the prefix")
}

fn in_a_row<'a>(names: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let with_length = |name: &'a [u8]| [&(name.len() as u16).to_le_bytes(), name].concat();
    names.flat_map(with_length).collect()
}

impl PartialEq for Resource {
    #[inline]
    fn eq(&self, other: &Resource) -> bool {
        match self.long.is_none() && other.long.is_none() {
            true => self.as_bytes() == other.as_bytes(),
            false => self.is_same(other),
        }
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
        self.as_bytes().cmp(other.as_bytes()).then_with(|| self.to_raw().cmp(&other.to_raw()))
    }
}

impl Hash for Resource {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        match self.is_plain() {
            true => self.as_bytes().hash(hasher),
            // All of them: sets with the same first name are not the same.
            false => self.to_raw().hash(hasher),
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
        match self.form() {
            Form::Plain => write!(f, "Resource(\"{self}\")"),
            form => write!(f, "Resource({form:?} \"{self}\")"),
        }
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

    fn named(resource: &Resource) -> Vec<&[u8]> {
        resource.names().collect()
    }

    fn keys(resource: &Resource) -> Vec<String> {
        resource.keys().into_iter().map(|key| String::from_utf8(key).unwrap()).collect()
    }

    /// One of each form.
    fn forms() -> [Resource; 6] {
        [
            Resource::new("a"),
            Resource::all(["b", "a"]),
            Resource::shared("a"),
            Resource::exclusive("a"),
            Resource::slot("a", 3),
            Resource::with_value("a", "v"),
        ]
        .map(Result::unwrap)
    }

    fn hash(resource: &Resource) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        resource.hash(&mut hasher);
        hasher.finish()
    }

    fn kind(result: Result<Resource, crate::error::LockError>) -> crate::error::LockErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn set_has_each_name_once_in_the_order_of_their_bytes() {
        let set = Resource::all(["b", "a", "b", "aa", "a"]).unwrap();
        assert_eq!(named(&set), [&b"a"[..], b"aa", b"b"]);
        assert_eq!((set.as_bytes(), keys(&set)), (&b"a"[..], named_keys(["a", "aa", "b"])));
        assert_eq!(set, Resource::all(["aa", "b", "a"]).unwrap());
        // A name of one set is not the end of another.
        assert_ne!(Resource::all(["a", "bc"]).unwrap(), Resource::all(["ab", "c"]).unwrap());
        for one in [vec!["a"], vec!["a"; 128], vec!["a"; LISTED_MAX]] {
            assert_eq!(Resource::all(one).unwrap(), Resource::new("a").unwrap());
        }
    }

    fn named_keys<const N: usize>(keys: [&str; N]) -> Vec<String> {
        keys.map(str::to_owned).to_vec()
    }

    /// K1: never a part of what was asked for.
    #[test]
    fn list_that_is_too_long_is_refused_and_not_cut() {
        use crate::error::LockErrorKind::{InvalidResource, InvalidSet};
        let most: Vec<String> = (0..RESOURCES_MAX).map(|i| i.to_string()).collect();
        assert_eq!(Resource::all(&most).unwrap().names().count(), RESOURCES_MAX);
        let bytes = most.iter().map(String::len).sum::<usize>() + 1;
        let more = most.iter().map(String::as_str).chain(["x"]);
        assert_eq!(kind(Resource::all(more)), InvalidSet { resources: RESOURCES_MAX + 1, bytes });
        let doubles = vec!["a"; LISTED_MAX].into_iter().chain(["b"]);
        let refused = InvalidSet { resources: LISTED_MAX + 1, bytes: LISTED_MAX };
        assert_eq!(kind(Resource::all(doubles)), refused);
        assert_eq!(kind(Resource::all(std::iter::repeat("a"))), refused);
        let none: [&str; 0] = [];
        assert_eq!(kind(Resource::all(none)), InvalidSet { resources: 0, bytes: 0 });
        assert_eq!(kind(Resource::all(["a", ""])), InvalidResource { bytes: 0 });
        let longest: Vec<String> = (0..64).map(|i| format!("{i:01024}")).collect();
        assert_eq!(named(&Resource::all(&longest).unwrap()).len(), 64);
        let longer = longest.iter().map(String::as_str).chain(["x"]);
        let bytes = SET_BYTES_MAX + 1;
        assert_eq!(kind(Resource::all(longer)), InvalidSet { resources: 65, bytes });
    }

    #[test]
    fn prefix_is_put_before_each_name_and_taken_off_again() {
        let prefixes = [&b""[..], b"p:", &[b'p'; KEY_PREFIX_BYTES_MAX]];
        let long = vec![b'x'; SLOTS_NAME_MAX];
        let others = [
            Resource::all([&long[..], b"y"]),
            Resource::shared(&long),
            Resource::exclusive(&long),
            Resource::slot(&long, SLOTS_MAX),
            Resource::with_value(&long, vec![b'v'; VALUE_BYTES_MAX]),
            Resource::with_value("a", "v").map(|own| own.take_over(&LockToken::NOBODY)),
        ];
        for resource in forms().into_iter().chain(others.map(Result::unwrap)) {
            for prefix in prefixes {
                let key = resource.clone().prefixed(prefix);
                let expected: Vec<Vec<u8>> =
                    resource.names().map(|name| [prefix, name].concat()).collect();
                assert_eq!(named(&key), expected, "{resource:?}");
                assert_eq!((key.form(), key.slot_of()), (resource.form(), resource.slot_of()));
                assert_eq!(key.without_prefix(prefix), resource);
                assert!(key.keys().iter().all(|key| key.starts_with(prefix)));
            }
        }
    }

    /// K8: a permit is the plain lock of its slot, whatever the prefix is.
    #[test]
    fn slot_is_a_plain_name_once_it_is_taken() {
        let slots = Resource::slot("a", 3).unwrap();
        assert_eq!(slots.slot_of(), Some((3, SLOT_ANY)));
        for prefix in ["", "p:"] {
            let key = slots.clone().prefixed(prefix.as_bytes());
            let expected = (0..3).map(|slot| format!("{prefix}a{{3}}:{slot}"));
            assert_eq!(keys(&key), expected.collect::<Vec<_>>());
            for slot in 0..3 {
                let taken = key.with_slot(slot).taken();
                assert!(taken.is_plain() && !taken.is_scripted());
                let name = taken.without_prefix(prefix.as_bytes());
                assert_eq!(name, Resource::new(format!("a{{3}}:{slot}")).unwrap());
            }
        }
        for other in &forms()[..4] {
            assert_eq!((other.taken(), other.slot_of()), (other.clone(), None));
        }
        // Two numbers of permits have no key in common, nor have names that look alike.
        let [three, four] = [3, 4].map(|slots| keys(&Resource::slot("a", slots).unwrap()));
        assert!(three.iter().all(|key| !four.contains(key)));
        let nested = keys(&Resource::slot("a{3}:0", 3).unwrap());
        assert!(three.iter().all(|key| !nested.contains(key)));
    }

    #[test]
    fn bounds_of_slots_hold_on_both_sides() {
        use crate::error::LockErrorKind::{InvalidResource, InvalidSlots};
        for slots in [0, SLOTS_MAX + 1, 256, u32::MAX] {
            assert_eq!(kind(Resource::slot("a", slots)), InvalidSlots { slots });
        }
        for slots in [1, SLOTS_MAX] {
            let name = vec![b'x'; SLOTS_NAME_MAX];
            let keys = Resource::slot(&name, slots).unwrap().keys();
            assert!(keys.iter().all(|key| key.len() <= RESOURCE_BYTES_MAX));
            for bytes in [0, name.len() + 1] {
                let refused = Resource::slot(vec![b'x'; bytes], slots);
                assert_eq!(kind(refused), InvalidResource { bytes });
            }
        }
        for bytes in [0, RESOURCE_BYTES_MAX + 1] {
            let name = vec![b'x'; bytes];
            assert_eq!(kind(Resource::shared(&name)), InvalidResource { bytes });
            assert_eq!(kind(Resource::exclusive(&name)), InvalidResource { bytes });
        }
    }

    #[test]
    fn share_is_one_of_the_same_key() {
        let [plain, _, shared, exclusive, ..] = forms();
        for resource in [plain, exclusive, shared.clone()] {
            assert_eq!(resource.clone().into_shared(), shared);
            assert_eq!(resource.into_shared().keys(), [&b"a"[..], b"a:intent"]);
        }
    }

    #[test]
    fn what_may_be_held_is_read_as_it_was_written() {
        let [_, all, shared, exclusive, slot, own] = forms();
        let long = Resource::shared(vec![0; RESOURCE_BYTES_MAX]).unwrap();
        let from = own.take_over(&LockToken::NOBODY);
        assert_eq!(from.taken(), own);
        for resource in [all, shared, exclusive, long, own] {
            let (form, bytes) = resource.to_raw();
            assert_eq!(Resource::of_raw(form, bytes).unwrap(), resource);
        }
        for resource in [slot, from] {
            let (form, bytes) = resource.to_raw();
            assert!(Resource::of_raw(form, bytes).is_err(), "it is not held as that");
        }
        assert!(Resource::of_raw(Form::Plain as u8, b"a").is_err());
    }

    /// Whatever the bytes are, they are refused or make a resource that is written alike.
    #[test]
    fn torn_bytes_are_refused_or_read_and_never_panic() {
        let (whole, mut read) = (forms()[1].to_raw().1.to_vec(), 0);
        for at in 0..=whole.len() {
            assert_eq!(Resource::of_raw(1, &whole[..at]).is_ok(), at == 3 || at == whole.len());
            for byte in 0..=255 {
                let mut changed = whole.clone();
                changed.insert(at, byte);
                for torn in [&changed[..], &changed[at..]] {
                    for form in 0..=255 {
                        let Ok(resource) = Resource::of_raw(form, torn) else { continue };
                        let (form, bytes) = resource.to_raw();
                        let is_plain = form == Form::Plain as u8;
                        assert!(is_plain || Resource::of_raw(form, bytes).unwrap() == resource);
                        assert!(resource.names().all(|name| !name.is_empty()));
                        read += 1;
                    }
                }
            }
        }
        assert!(read > 0, "some are read");
    }

    #[test]
    fn equality_order_and_hash_agree() {
        let mut all: Vec<Resource> = forms().into();
        all.extend(
            ["b", &"a".repeat(63), &"a".repeat(64)].map(|name| Resource::new(name).unwrap()),
        );
        all.extend([["a", "b"], ["a", "c"]].map(|names| Resource::all(names).unwrap()));
        all.extend([2, 3, 4].map(|slots| Resource::slot("a", slots).unwrap()));
        all.extend([0, 2].map(|slot| forms()[4].with_slot(slot)));
        for one in &all {
            for other in &all {
                let is_equal = one == other;
                assert_eq!(is_equal, one.cmp(other) == Ordering::Equal, "{one:?} {other:?}");
                assert_eq!(one.cmp(other), other.cmp(one).reverse());
                // Of so few, none collide by chance.
                assert_eq!(is_equal, hash(one) == hash(other), "{one:?} {other:?}");
            }
        }
        all.sort();
        assert!(all.is_sorted() && all.first() == Some(&forms()[0]), "a plain one before others");
    }

    #[test]
    fn forms_print_readably() {
        let printed = forms().map(|resource| format!("{resource:?} {resource}"));
        let expected = [
            "Resource(\"a\") a",
            "Resource(All \"a,b\") a,b",
            "Resource(Shared \"a\") a",
            "Resource(Exclusive \"a\") a",
            "Resource(Slot \"a\") a",
            "Resource(As \"a\") a",
        ];
        assert_eq!(printed, expected);
    }

    #[test]
    fn it_prints_readably() {
        let resource = Resource::new(b"a\xff").unwrap();
        assert_eq!(resource.to_string(), "a\\xff");
        assert_eq!(format!("{resource:?}"), "Resource(\"a\\xff\")");
    }
}
