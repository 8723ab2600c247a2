//! Plants known bugs, one after the other, in a copy of the source, and sees them found.
//!
//! A harness that has found none of these proves nothing by finding nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a copy of the crate needs to build this test.
const PARTS: [&str; 7] =
    ["Cargo.toml", "Cargo.lock", "README.md", "src", "benches", "examples", "tests/sim"];

/// A bug: a piece of text, and what is put in its place.
struct Bug {
    name: String,
    /// What it is, and which rule it breaks.
    about: String,
    path: String,
    old: String,
    new: String,
}

impl Bug {
    /// Reads a file of this form:
    ///
    /// ```text
    /// # What the bug is, and which rule it breaks
    /// src/some/file.rs
    /// --- old
    /// text that occurs once
    /// --- new
    /// what is put in its place
    /// ```
    fn parse(name: &str, text: &str) -> Bug {
        let wrong = |what: &str| -> ! { panic!("{name}.bug: {what}") };
        let Some((head, rest)) = text.split_once("--- old\n") else { wrong("no `--- old`") };
        let Some((old, new)) = rest.split_once("--- new\n") else { wrong("no `--- new`") };
        let mut head = head.lines();
        let about = head.next().and_then(|line| line.strip_prefix("# "));
        let (Some(about), Some(path), None) = (about, head.next(), head.next()) else {
            wrong("it begins with one comment line and a path");
        };
        let text = |part: &str| part.trim_end_matches('\n').to_owned();
        Bug {
            name: name.into(),
            about: about.into(),
            path: path.into(),
            old: text(old),
            new: text(new),
        }
    }

    /// The file with the bug in it.
    fn planted(&self, root: &Path) -> String {
        let source = fs::read_to_string(root.join(&self.path))
            .unwrap_or_else(|error| panic!("{}.bug: {}: {error}", self.name, self.path));
        let count = source.matches(&self.old).count();
        assert_eq!(
            count, 1,
            "{}.bug: the old text occurs {count} times in {}",
            self.name, self.path
        );
        source.replacen(&self.old, &self.new, 1)
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn all() -> Vec<Bug> {
    let folder = root().join("tests/sim/bugs");
    let mut bugs = Vec::new();
    for entry in fs::read_dir(folder).expect("the bugs are there") {
        let path = entry.expect("the folder is readable").path();
        let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a bug is text");
        bugs.push(Bug::parse(&name, &text));
    }
    bugs.sort_by(|a, b| a.name.cmp(&b.name));
    bugs
}

/// Plants each bug whose name contains `filter`, and runs up to `seeds` seeds on it; says whether
/// all were found.
pub fn plant_all(filter: &str, seeds: u64) -> bool {
    let mut bugs = all();
    bugs.retain(|bug| bug.name.contains(filter));
    let place = root().join("target/sim-bugs");
    let tree = place.join("tree");
    for part in PARTS {
        copy(&root().join(part), &tree.join(part));
    }
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
        .args(["test", "--offline", "--release", "--test", "sim", "--", "--ignored", "--nocapture"])
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

/// Copies a file or a folder, without touching what is the same already: builds look at times.
fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        for entry in fs::read_dir(from).expect("the folder is readable") {
            let entry = entry.expect("the folder is readable");
            // A crate below has a folder of its own for what it builds.
            if entry.file_name() != "target" {
                copy(&entry.path(), &to.join(entry.file_name()));
            }
        }
    } else {
        write_if_other(to, &fs::read_to_string(from).expect("the sources are text"));
    }
}

fn write_if_other(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return;
    }
    fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a new folder");
    fs::write(path, text).expect("a new file");
}

#[test]
fn every_bug_still_has_its_place_in_the_source() {
    let bugs = all();
    assert!(bugs.len() >= 20, "{} bugs", bugs.len());
    for bug in bugs {
        assert_ne!(bug.planted(&root()), "", "{}", bug.about);
    }
}
