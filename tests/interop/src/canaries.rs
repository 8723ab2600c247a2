//! Each case must find what it is there for: a sound client passes, one with a defect does not.

use std::sync::Arc;

use crate::cases::{self, Case};
use crate::contention::share;
use crate::plain::{Defect, Plain};
use crate::scene::Scene;
use crate::{Failure, ensure};

/// Checks that the case ends with this text, or passes if the text is empty.
fn expect(case: Case, defect: Defect, expected: &str) -> Result<(), Failure> {
    let scene = Scene::start("")?;
    let mut peer = Plain::new(Arc::clone(&scene.masters), defect);
    let found = case(&scene, &mut peer).err().map(|error| error.to_string()).unwrap_or_default();
    let is_expected = found.starts_with(expected) && found.is_empty() == expected.is_empty();
    ensure!(is_expected, "{defect:?}: {found:?} in place of {expected:?}");
    Ok(())
}

macro_rules! canaries {
    ($($case:ident: { $($defect:ident: $expected:expr),* $(,)? })*) => {
        $(
            #[test]
            fn $case() -> Result<(), Failure> {
                expect(cases::$case, Defect::None, "")?;
                $(expect(cases::$case, Defect::$defect, $expected)?;)*
                Ok(())
            }
        )*
    };
}

canaries! {
    muxlock_holds: {
        BelievesRefusals: "the peer has the lock, too",
        OtherKey: "the peer has the lock, too",
        Overwrites: "the peer has the lock, too",
    }
    peer_holds: {
        OtherKey: "the masters do not have one value",
        DeletesNothing: "keys are left on the masters",
    }
    each_follows_the_other: {
        BelievesRefusals: "the peer has the lock, too",
        DeletesNothing: "contended",
    }
    lock_of_the_peer_expires: {
        HalfTtl: "PTTL",
        NoTtl: "PTTL",
    }
    lock_of_muxlock_expires: {
        BelievesRefusals: "muxlock's lock is valid beside the peer's",
        Overwrites: "muxlock's lock is valid beside the peer's",
    }
    peer_extends: { ExtendsNothing: "PTTL" }
    muxlock_extends: { Overwrites: "the peer has the lock, too" }
    peer_releases_too_late: { DeletesAnything: "the peer has changed muxlock's lock" }
    peer_extends_too_late: {
        ExtendsAnything: "the peer extends a lock that muxlock holds",
        ExtendsNothing: "the peer extends a lock that muxlock holds",
    }
    muxlock_releases_too_late: { TakesValue: "muxlock has changed the peer's lock" }
    peer_is_known_by_its_value: {
        OtherKey: "the masters do not have one value",
        DeletesNothing: "the peer does not end the lock with its value",
    }
}

#[test]
fn contention() -> Result<(), Failure> {
    let scene = Scene::start("")?;
    let peer = |defect| Box::new(Plain::new(Arc::clone(&scene.masters), defect));
    share(&scene, vec![("sound", peer(Defect::None))])?;
    let shared = share(&scene, vec![("unsound", peer(Defect::BelievesRefusals))]);
    let found = shared.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(found.contains("hold the lock") || found.contains("updates were lost"), "{found:?}");
    Ok(())
}
