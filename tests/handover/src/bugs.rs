//! Plants known bugs, one after the other, in a copy of `leader_follower.rs`, and checks that they
//! are found.

use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::bug::{all, copy, copy_workspace, write_if_other};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folder() -> PathBuf {
    root().join("tests/handover/bugs")
}

/// Which test fails on the copy, if one does.
fn hunt(tree: &Path, build: &Path) -> Option<String> {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--locked", "-p", "handover", "tests::"])
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", build)
        .output()
        .expect("cargo can be run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running "), "{}", String::from_utf8_lossy(&output.stderr));
    let failed = text.lines().find(|line| line.starts_with("test ") && line.ends_with("FAILED"));
    failed.map(|line| line.split(' ').nth(1).unwrap_or_default().to_owned())
}

#[test]
fn every_bug_has_its_place_in_the_source() {
    let bugs = all(&folder());
    assert!(bugs.len() >= 10, "{} bugs", bugs.len());
    for bug in bugs {
        assert_ne!(bug.planted(&root()), "", "{}", bug.about);
    }
}

#[test]
#[ignore = "scripts/simulate --thread-bugs runs it"]
fn planted_bugs_are_found() {
    let place = root().join("target/handover-bugs");
    let tree = place.join("tree");
    copy_workspace(&root(), &tree);
    assert_eq!(hunt(&tree, &place.join("build")), None, "without a bug");
    let wanted = std::env::var("MUXLOCK_HANDOVER_BUG").unwrap_or_default();
    let mut missed = Vec::new();
    for bug in all(&folder()).into_iter().filter(|bug| bug.name.contains(&wanted)) {
        write_if_other(&tree.join(&bug.path), &bug.planted(&root()));
        let found = hunt(&tree, &place.join("build"));
        copy(&root().join(&bug.path), &tree.join(&bug.path));
        println!("{:<34} {}", bug.name, found.as_deref().unwrap_or("NOT FOUND"));
        if found.is_none() {
            missed.push(bug.name);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
