//! Each case with each peer.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::child::Program;
use crate::contention::share;
use crate::crates::{Redlock, Rslock};
use crate::scene::Scene;
use crate::{Failure, Peer};

/// What begins the keys of pottery.
const POTTERY_PREFIX: &str = "redlock:";

/// Where tests/interop/run installs what is not written in Rust.
fn installed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/interop")
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// node-redlock in a process of its own.
pub fn node(scene: &Scene, package: &str) -> Result<Program, Failure> {
    let mut command = Command::new("node");
    command.arg(program("redlock.mjs")).arg(installed().join("node")).arg(package);
    Program::start(command.args(scene.masters.urls()))
}

fn python(scene: &Scene, name: &str) -> Result<Box<dyn Peer>, Failure> {
    let mut command = Command::new(installed().join("python/bin/python"));
    // Nothing is written beside the sources.
    command.arg("-B").arg(program(name));
    Ok(Box::new(Program::start(command.args(scene.masters.urls()))?))
}

fn node_redlock_5(scene: &Scene) -> Result<Box<dyn Peer>, Failure> {
    Ok(Box::new(node(scene, "redlock")?))
}

fn node_redlock_4(scene: &Scene) -> Result<Box<dyn Peer>, Failure> {
    Ok(Box::new(node(scene, "redlock4")?))
}

fn redlock_py(scene: &Scene) -> Result<Box<dyn Peer>, Failure> {
    python(scene, "redlock_py.py")
}

fn pottery(scene: &Scene) -> Result<Box<dyn Peer>, Failure> {
    python(scene, "pottery_py.py")
}

fn redsync(scene: &Scene) -> Result<Box<dyn Peer>, Failure> {
    let mut command = Command::new(installed().join("go/redsync"));
    Ok(Box::new(Program::start(command.args(scene.masters.urls()))?))
}

fn rslock(scene: &Scene) -> Result<Box<dyn Peer>, Failure> {
    Ok(Box::new(Rslock::connect(scene.masters.urls())?))
}

fn redlock(scene: &Scene) -> Result<Box<dyn Peer>, Failure> {
    Ok(Box::new(Redlock::new(scene.masters.urls())))
}

/// Grants are part of the output, which tests/interop/run shows.
fn contend(scene: &Scene, peers: Vec<(&'static str, Box<dyn Peer>)>) -> Result<(), Failure> {
    let counts = share(scene, peers)?;
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("grants: {}", counts.join(", "));
    Ok(())
}

/// A module of tests: those that every peer has, and those that are listed.
macro_rules! with_peer {
    ($(#[$attribute:meta])* $peer:ident, $prefix:expr, [$($case:ident),*]) => {
        mod $peer {
            use crate::{Failure, cases, scene::Scene};

            with_peer! { @tests [$(#[$attribute])*] $peer, $prefix, [
                muxlock_holds, peer_holds, each_follows_the_other,
                lock_of_the_peer_expires, lock_of_muxlock_expires, muxlock_extends,
                peer_releases_too_late, muxlock_releases_too_late,
                other_kinds_exclude_the_peer, permits_exclude_the_peer,
                peer_is_known_by_its_value $(, $case)*
            ] }

            $(#[$attribute])*
            #[test]
            fn contention() -> Result<(), Failure> {
                let scene = Scene::start($prefix)?;
                let peer = super::$peer(&scene)?;
                super::contend(&scene, vec![(stringify!($peer), peer)])
            }
        }
    };
    (@tests $attributes:tt $peer:ident, $prefix:expr, [$($case:ident),*]) => {
        $(with_peer! { @test $attributes $peer, $prefix, $case })*
    };
    (@test [$(#[$attribute:meta])*] $peer:ident, $prefix:expr, $case:ident) => {
        $(#[$attribute])*
        #[test]
        fn $case() -> Result<(), Failure> {
            let scene = Scene::start($prefix)?;
            let mut peer = super::$peer(&scene)?;
            cases::$case(&scene, &mut *peer)
        }
    };
}

with_peer! { rslock, "", [peer_extends, peer_extends_too_late] }

// It has no extension.
with_peer! { redlock, "", [] }

with_peer! {
    #[cfg_attr(not(feature = "node"), ignore = "run tests/interop/run, which installs it")]
    node_redlock_5, "", [peer_extends, peer_extends_too_late, sets_exclude_each_other]
}

with_peer! {
    #[cfg_attr(not(feature = "node"), ignore = "run tests/interop/run, which installs it")]
    node_redlock_4, "", [peer_extends, peer_extends_too_late, sets_exclude_each_other]
}

with_peer! {
    // It has no extension.
    #[cfg_attr(not(feature = "python"), ignore = "run tests/interop/run, which installs it")]
    redlock_py, "", []
}

with_peer! {
    #[cfg_attr(not(feature = "python"), ignore = "run tests/interop/run, which installs it")]
    pottery, super::POTTERY_PREFIX, [peer_extends, peer_extends_too_late]
}

with_peer! {
    #[cfg_attr(not(feature = "go"), ignore = "run tests/interop/run, which builds it")]
    redsync, "", [peer_extends, peer_extends_too_late]
}

/// All peers whose keys have the plain name, as far as they are installed.
#[test]
fn contention_of_all() -> Result<(), Failure> {
    let scene = Scene::start("")?;
    let mut peers = vec![("rslock", rslock(&scene)?), ("redlock", redlock(&scene)?)];
    if cfg!(feature = "node") {
        peers.push(("node_redlock_5", node_redlock_5(&scene)?));
        peers.push(("node_redlock_4", node_redlock_4(&scene)?));
    }
    if cfg!(feature = "go") {
        peers.push(("redsync", redsync(&scene)?));
    }
    if cfg!(feature = "python") {
        peers.push(("redlock_py", redlock_py(&scene)?));
    }
    contend(&scene, peers)
}
