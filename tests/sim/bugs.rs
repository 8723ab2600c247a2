//! Plants known bugs, one after the other, in a copy of the source, and sees them found.
//!
//! A harness that has found none of these proves nothing by finding nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::bug::{all, copy, copy_workspace, write_if_other};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn folder() -> PathBuf {
    root().join("tests/sim/bugs")
}

/// Plants each bug whose name contains `filter`, and runs up to `seeds` seeds on it; says whether
/// all were found.
pub fn plant_all(filter: &str, seeds: u64) -> bool {
    let mut bugs = all(&folder());
    bugs.retain(|bug| bug.name.contains(filter));
    let place = root().join("target/sim-bugs");
    let tree = place.join("tree");
    copy_workspace(&root(), &tree);
    let mut missed = Vec::new();
    println!("{:<34} {:>8}  found by", "bug", "seeds");
    for bug in &bugs {
        write_if_other(&tree.join(&bug.path), &bug.planted(&root()));
        let found = hunt(&tree, &place.join("build"), seeds);
        copy(&root().join(&bug.path), &tree.join(&bug.path));
        match found {
            Ok((seeds, rule)) => println!("{:<34} {seeds:>8}  {rule}", bug.name),
            Err(problem) => {
                println!("{:<34} {:>8}  {problem}: {}", bug.name, "-", bug.about);
                missed.push(bug.name.as_str());
            }
        }
    }
    println!("\n{} of {} bugs found", bugs.len() - missed.len(), bugs.len());
    missed.is_empty()
}

/// Builds the tree and runs seeds until one fails: how many that took, and what failed.
fn hunt(tree: &Path, build: &Path, seeds: u64) -> Result<(u64, String), String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "test",
            "--offline",
            "--release",
            "-p",
            "muxlock",
            "--test",
            "sim",
            "--",
            "--ignored",
            "--nocapture",
        ])
        .args(["--exact", "hunt"])
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", build)
        .env("CARGO_INCREMENTAL", "1")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("MUXLOCK_SIM_SEEDS", seeds.to_string())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let caught = text.lines().find_map(|line| line.split_once("caught ").map(|(_, rest)| rest));
    match caught {
        Some(caught) => {
            let mut words = caught.split(' ');
            let seeds = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
            Ok((seeds, words.next().unwrap_or_default().into()))
        }
        None if text.contains("missed ") => Err("NOT FOUND".into()),
        None => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let error = errors.lines().find(|line| line.starts_with("error"));
            Err(format!("DOES NOT BUILD ({})", error.unwrap_or("no reason given")))
        }
    }
}

#[test]
fn every_bug_still_has_its_place_in_the_source() {
    let bugs = all(&folder());
    assert!(bugs.len() >= 20, "{} bugs", bugs.len());
    for bug in bugs {
        assert_ne!(bug.planted(&root()), "", "{}", bug.about);
    }
}
