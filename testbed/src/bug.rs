//! Bugs to plant: pieces of source, and their replacements.

use std::fs;
use std::path::Path;

/// A bug: a piece of text, and its replacement.
pub struct Bug {
    pub name: String,
    /// Its description, and the rule that it breaks.
    pub about: String,
    pub path: String,
    old: String,
    new: String,
}

impl Bug {
    /// Reads a file of this form:
    ///
    /// ```text
    /// # A description of the bug, and the rule that it breaks
    /// src/some/file.rs
    /// --- old
    /// text that occurs once
    /// --- new
    /// its replacement
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
    pub fn planted(&self, root: &Path) -> String {
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

/// What a copy of the workspace needs to build its tests.
const PARTS: [&str; 12] = [
    "Cargo.toml",
    "Cargo.lock",
    "README.md",
    "build.rs",
    "build",
    "docs",
    "src",
    "benches",
    "examples",
    "tests",
    "testbed",
    "cli",
];

/// Copies what the tests of the workspace are built from, as [`copy`] does.
pub fn copy_workspace(from: &Path, to: &Path) {
    for part in PARTS {
        copy(&from.join(part), &to.join(part));
    }
}

/// All of a folder, by name.
pub fn all(folder: &Path) -> Vec<Bug> {
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

/// Copies a file or a folder, without touching equal files: builds compare times. Files of an
/// earlier copy that `from` lacks are removed.
pub fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        remove_others(from, to);
        for entry in fs::read_dir(from).expect("the folder is readable") {
            let entry = entry.expect("the folder is readable");
            // A crate below has its own folder for build results.
            if entry.file_name() != "target" {
                copy(&entry.path(), &to.join(entry.file_name()));
            }
        }
    } else {
        write_if_other(to, &fs::read_to_string(from).expect("the sources are text"));
    }
}

fn remove_others(from: &Path, to: &Path) {
    let Ok(there) = fs::read_dir(to) else {
        return;
    };
    for entry in there {
        let entry = entry.expect("the folder is readable");
        let (name, path) = (entry.file_name(), entry.path());
        let is_kept = from.join(&name).is_dir() == path.is_dir() && from.join(&name).exists();
        if name == "target" || is_kept {
            continue;
        }
        match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        }
        .expect("what a copy has left can be removed");
    }
}

pub fn write_if_other(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return;
    }
    fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a new folder");
    fs::write(path, text).expect("a new file");
}
