//! Names, keys and kinds.

use std::cmp::Ordering;

use super::checks::SET_BYTES_MAX;
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
        let key = Key::new(resource.clone(), b"p:");
        assert_eq!(key.as_bytes(), [b"p:".as_slice(), &name].concat());
        assert_eq!((key.resource(), key.resource().as_bytes()), (&resource, &name[..]));
        assert_eq!(Key::of_bytes(key.as_bytes(), b"p:"), Some(key));
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
    keys_of(&plain_key(resource))
}

fn keys_of(key: &Key) -> Vec<String> {
    key.keys().into_iter().map(|key| String::from_utf8(key).unwrap()).collect()
}

fn plain_key(resource: &Resource) -> Key {
    Key::new(resource.clone(), b"")
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

fn kind(
    result: Result<Resource, crate::lock_error::LockError>,
) -> crate::lock_error::LockErrorKind {
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
    use crate::lock_error::LockErrorKind::{InvalidResource, InvalidSet};
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
fn prefix_is_put_before_each_name_once() {
    let prefixes = [&b""[..], b"p:", &[b'p'; 256]];
    let long = vec![b'x'; SLOTS_NAME_MAX];
    let others = [
        Resource::all([&long[..], b"y"]),
        Resource::shared(&long),
        Resource::exclusive(&long),
        Resource::slot(&long, SLOTS_MAX),
        Resource::with_value(&long, vec![b'v'; VALUE_BYTES_MAX]),
    ];
    for resource in forms().into_iter().chain(others.map(Result::unwrap)) {
        for prefix in prefixes {
            let key = Key::new(resource.clone(), prefix);
            let expected: Vec<Vec<u8>> = resource.names().map(<[u8]>::to_vec).collect();
            assert_eq!(named(key.resource()), expected, "{resource:?}");
            assert_eq!((key.kind(), key.resource()), (resource.kind(), &resource));
            // Another client may have another prefix, and the same one comes on once.
            for other in [&b"other:"[..], prefix, b""] {
                let again = Key::new(key.resource().clone(), other);
                assert_eq!(again.as_bytes(), [other, resource.as_bytes()].concat());
                assert_eq!((again.keys().len(), again.resource()), (key.keys().len(), &resource));
            }
            assert!(key.keys().iter().all(|key| key.starts_with(prefix)));
        }
    }
}

/// K8: a permit is the plain lock of its slot, whatever the prefix is.
#[test]
fn slot_is_a_plain_name_once_it_is_taken() {
    let slots = Resource::slot("a", 3).unwrap();
    assert_eq!(plain_key(&slots).slot(), Some((3, None)));
    for prefix in ["", "p:"] {
        let key = Key::new(slots.clone(), prefix.as_bytes());
        let expected = (0..3).map(|slot| format!("{prefix}a{{permit}}:{slot}"));
        assert_eq!(keys_of(&key), expected.collect::<Vec<_>>());
        for slot in 0..3 {
            let held = key.with_slot(Some(slot)).held();
            assert!(held.is_plain() && held.row().kept_by == KeptBy::PlainCommands);
            assert_eq!(held.as_bytes(), format!("{prefix}a{{permit}}:{slot}").as_bytes());
            let name = held.resource().clone();
            assert_eq!(name, Resource::new(format!("a{{permit}}:{slot}")).unwrap());
        }
    }
    for other in &forms()[..4] {
        let key = plain_key(other);
        assert_eq!((key.held(), key.slot()), (key, None));
    }
    // Clients with different numbers of permits share them. Names that look alike have none in common.
    let [three, four] = [3, 4].map(|slots| keys(&Resource::slot("a", slots).unwrap()));
    assert!(three == four[..3]);
    let nested = keys(&Resource::slot("a{permit}:0", 3).unwrap());
    assert!(three.iter().all(|key| !nested.contains(key)));
}

#[test]
fn bounds_of_slots_hold_on_both_sides() {
    use crate::lock_error::LockErrorKind::{InvalidResource, InvalidSlots};
    for slots in [0, SLOTS_MAX + 1, 256, u32::MAX] {
        assert_eq!(kind(Resource::slot("a", slots)), InvalidSlots { slots });
    }
    for slots in [1, SLOTS_MAX] {
        let name = vec![b'x'; SLOTS_NAME_MAX];
        let keys = plain_key(&Resource::slot(&name, slots).unwrap()).keys();
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
        let share = plain_key(&resource).shared().unwrap();
        assert_eq!(share.resource(), &shared);
        assert_eq!(share.keys(), [&b"a"[..], b"a:intent"]);
    }
}

#[test]
fn what_may_be_held_is_read_as_it_was_written() {
    let [plain, all, shared, exclusive, slot, own] = forms();
    let long = Resource::shared(vec![0; RESOURCE_BYTES_MAX]).unwrap();
    for resource in [plain, all, shared, exclusive, long, own] {
        let (form, bytes) = resource.to_raw();
        assert_eq!(Resource::of_raw(form, &bytes).unwrap(), resource);
    }
    let (form, bytes) = slot.to_raw();
    assert!(Resource::of_raw(form, &bytes).is_err(), "it is not held as that");
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
                    let is_plain = form == 0;
                    assert!(is_plain || Resource::of_raw(form, &bytes).unwrap() == resource);
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
    all.extend(["b", &"a".repeat(63), &"a".repeat(64)].map(|name| Resource::new(name).unwrap()));
    all.extend([["a", "b"], ["a", "c"]].map(|names| Resource::all(names).unwrap()));
    all.extend([2, 3, 4].map(|slots| Resource::slot("a", slots).unwrap()));
    let slots = plain_key(&forms()[4]);
    all.extend([0, 2].map(|slot| slots.with_slot(Some(slot)).resource().clone()));
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
