//! What may be locked, and how it is written for another process.

use super::Resource;
use super::kind::{LockKind, SET, VALUE};

/// The longest resource name, in bytes.
pub const RESOURCE_BYTES_MAX: usize = 1024;

/// The most resources in one lock.
pub const RESOURCES_MAX: usize = 128;

/// The longest list of names that one lock is asked for with, with those that are named again.
pub(crate) const LISTED_MAX: usize = 8 * RESOURCES_MAX;

/// The longest names of the resources in one lock, in bytes, all together.
pub(super) const SET_BYTES_MAX: usize = 64 << 10;

/// More than the names of one lock and their lengths need.
pub(crate) const NAMES_BYTES_MAX: usize = SET_BYTES_MAX + 2 * RESOURCES_MAX;

/// The most permits of a semaphore. Scripts report the free permits as one number, which Lua holds
/// exactly up to this size.
pub const SLOTS_MAX: u32 = 50;

/// The longest owner value, in bytes.
pub const VALUE_BYTES_MAX: usize = 512;

/// `{permit}:` and the number of a permit.
const SLOT_BYTES_MAX: usize = 11;
pub(crate) const SLOTS_NAME_MAX: usize = RESOURCE_BYTES_MAX - SLOT_BYTES_MAX;

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

fn check(name: &[u8], max: usize) -> Result<(), InvalidResource> {
    match (1..=max).contains(&name.len()) {
        true => Ok(()),
        false => Err(InvalidResource::Name { bytes: name.len() }),
    }
}

/// `Resource::new` and its like are in `error.rs`, with the public error.
impl Resource {
    pub(crate) fn checked(name: &[u8]) -> Result<Resource, InvalidResource> {
        check(name, RESOURCE_BYTES_MAX)?;
        Ok(Resource::plain(name))
    }

    /// `kind` is one without conditions of its own.
    pub(crate) fn checked_of(name: &[u8], kind: LockKind) -> Result<Resource, InvalidResource> {
        Ok(Resource::checked(name)?.with(kind))
    }

    /// Without doubles, in the order of their bytes. One alone is a plain name.
    pub(crate) fn checked_all(mut names: Vec<Vec<u8>>) -> Result<Resource, InvalidResource> {
        names.sort_unstable();
        names.dedup();
        let (resources, bytes) = (names.len(), names.iter().map(Vec::len).sum());
        if resources == 0 || resources > RESOURCES_MAX || bytes > SET_BYTES_MAX {
            return Err(InvalidResource::Set { resources, bytes });
        }
        for name in &names {
            check(name, RESOURCE_BYTES_MAX)?;
        }
        let first = names[0].clone();
        let kind = match resources {
            1 => LockKind::Plain,
            _ => LockKind::Set(names),
        };
        Ok(Resource::plain(&first).with(kind))
    }

    pub(crate) fn checked_slot(name: &[u8], slots: u32) -> Result<Resource, InvalidResource> {
        if slots == 0 || slots > SLOTS_MAX {
            return Err(InvalidResource::Slots { slots });
        }
        check(name, SLOTS_NAME_MAX)?;
        Ok(Resource::plain(name).with(LockKind::Slot { of: slots as u8, slot: None }))
    }

    pub(crate) fn checked_as(name: &[u8], value: &[u8]) -> Result<Resource, InvalidResource> {
        if value.is_empty() || value.len() > VALUE_BYTES_MAX {
            return Err(InvalidResource::Value { bytes: value.len() });
        }
        Resource::checked_of(name, LockKind::Value(value.to_vec()))
    }

    /// The same name, to be looked at to see which value it has.
    pub(crate) fn to_look_at(&self) -> Resource {
        self.with(LockKind::Value(Vec::new()))
    }

    /// As text for another process: the kind's number, and its names. A caller's value, and each
    /// name of several, stands behind its length in two bytes.
    pub(crate) fn to_raw(&self) -> (u8, Vec<u8>) {
        let name = self.as_bytes();
        let bytes = match self.kind() {
            LockKind::Set(names) => names.iter().flat_map(|name| with_length(name)).collect(),
            LockKind::Value(value) => [&*with_length(value), name].concat(),
            _ => name.to_vec(),
        };
        (self.row().number, bytes)
    }

    /// The inverse of [`to_raw`](Resource::to_raw).
    pub(crate) fn of_raw(number: u8, bytes: &[u8]) -> Result<Resource, InvalidResource> {
        let torn = InvalidResource::Name { bytes: 0 };
        match number {
            _ if number == SET.number => Resource::checked_all(names_in(bytes).ok_or(torn)?),
            _ if number == VALUE.number => {
                let (value, name) = split_first(bytes).ok_or(torn)?;
                Resource::checked_as(name, value)
            }
            _ => Resource::checked_of(bytes, LockKind::of_number(number).ok_or(torn)?),
        }
    }
}

fn with_length(part: &[u8]) -> Vec<u8> {
    [&(part.len() as u16).to_le_bytes(), part].concat()
}

/// The part that stands behind its length at the beginning, and the rest.
fn split_first(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_le_bytes(*length).into())
}

/// Such parts alone.
fn names_in(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    while !bytes.is_empty() {
        let (name, rest) = split_first(bytes)?;
        names.push(name.to_vec());
        bytes = rest;
    }
    Some(names)
}
