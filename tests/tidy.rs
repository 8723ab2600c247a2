//! Rules about the source that people would forget: who may import whom, and hygiene.

#![allow(missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How many rules there are.
const RULES: u32 = 37;

/// Every Rust file of the library, with its path below `src`; the command-line tool apart.
fn library() -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&root().join("src"), &mut files);
    files.retain(|(path, _)| !path.starts_with("cli/") && !path.starts_with("bin/"));
    assert!(files.len() > 20, "the sources were found");
    files
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn collect(folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("the entry is readable").path();
        if path.is_dir() {
            // A crate below has a folder of its own for what it builds.
            if !path.ends_with("target") {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let below = path.strip_prefix(root().join("src")).unwrap_or(&path);
            let name = below.display().to_string();
            files.push((name, fs::read_to_string(&path).expect("the file is text")));
        }
    }
}

/// The lines that are code, without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

/// No file outside `allowed` has a line of code with `needle`.
fn only_in(needle: &str, allowed: &[&str]) {
    for (path, text) in library() {
        let is_allowed = allowed.iter().any(|prefix| path.starts_with(prefix));
        let found = code(&text).find(|line| line.contains(needle));
        if let (false, Some(line)) = (is_allowed, found) {
            panic!("{path} has `{needle}`, which only {allowed:?} may have: {}", line.trim());
        }
    }
}

#[test]
fn each_outside_crate_has_one_home() {
    only_in("redis_protocol", &["resp.rs"]);
    only_in("mio::", &["mux/", "client/"]);
    only_in("socket2", &["mux/socket.rs"]);
    only_in("rustix", &["clock.rs", "process.rs", "client/poller.rs"]);
    only_in("rand::", &["entropy.rs"]);
    only_in("slab::", &["proto/"]);
}

#[test]
fn one_module_reads_the_clock_and_nothing_sleeps() {
    for needle in ["Instant::now", "SystemTime", "clock_gettime", ".elapsed()"] {
        only_in(needle, &["clock.rs"]);
    }
    only_in("Clock.now", &["clock.rs", "mux/", "client/"]);
    only_in("sleep(", &[]);
}

#[test]
fn proto_has_no_sockets_clocks_randomness_or_bytes() {
    let forbidden = [
        "std::net",
        "std::thread",
        "io::Read",
        "io::Write",
        "bytes::",
        "crate::clock",
        "Clock.now",
        "crate::mux",
        "crate::client",
        "crate::resp",
        "crate::entropy",
        "HashMap",
        "HashSet",
    ];
    // Its map has a hasher of its own, and nobody walks through it.
    let allowed = [("proto/line.rs", "HashMap")];
    for (path, text) in library().iter().filter(|(path, _)| path.starts_with("proto/")) {
        for line in code(text) {
            let found = forbidden.iter().find(|needle| line.contains(**needle));
            let found = found.filter(|needle| !allowed.contains(&(path, needle)));
            assert_eq!(found, None, "{path}: {}", line.trim());
        }
    }
}

#[test]
fn bytes_and_sockets_decide_nothing_about_locks() {
    for (path, text) in library() {
        if path == "resp.rs" || path.starts_with("mux/") {
            for needle in ["Tally", "Verdict", "validity::", "quorum("] {
                let found = code(&text).find(|line| line.contains(needle));
                assert_eq!(found, None, "{path} has `{needle}`");
            }
        }
        if path == "resp.rs" {
            assert!(!text.contains("mio") && !text.contains("crate::mux"), "{path}");
        }
    }
}

#[test]
fn leaves_import_no_layers() {
    let leaves = ["quorum.rs", "validity.rs", "resource.rs", "token.rs", "moment.rs", "error.rs"];
    for (path, text) in library() {
        if leaves.contains(&path.as_str()) {
            for layer in ["crate::proto", "crate::mux", "crate::client", "crate::config"] {
                let found = code(&text).find(|line| line.contains(layer));
                assert_eq!(found, None, "{path} imports {layer}");
            }
        }
    }
}

#[test]
fn sources_are_clean() {
    let mut files = library();
    for folder in ["tests", "benches", "examples", "src/cli", "src/bin"] {
        collect(&root().join(folder), &mut files);
    }
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["dbg", "!("].concat()];
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            let place = format!("{path}:{}", number + 1);
            assert!(is_short(line), "{place} is too long");
            assert!(!line.contains('\t'), "{place} has a tab");
            for mark in &marks {
                assert!(!line.contains(mark.as_str()), "{place} has {mark}");
            }
        }
        assert!(text.starts_with("//!") || path == "lib.rs", "{path} has no module comment");
        assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{path} ends badly");
    }
}

#[test]
fn one_module_has_unsafe_code_and_says_why() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("there is a manifest");
    assert!(manifest.contains("unsafe_code = \"deny\""));
    only_in("unsafe", &["process.rs"]);
    let process = fs::read_to_string(root().join("src/process.rs")).expect("it exists");
    assert_eq!(code(&process).filter(|line| line.contains("unsafe {")).count(), 1);
    assert!(process.contains("// SAFETY: "));
}

#[test]
fn default_build_has_few_dependencies_and_no_runtime() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo writes text");
    let mut crates: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    crates.sort_unstable();
    crates.dedup();
    assert!(crates.contains(&"mio"), "the tree was read");
    assert!(crates.len() <= 22, "{} crates: {crates:?}", crates.len());
    for runtime in ["tokio", "async-std", "smol", "futures"] {
        assert!(!crates.contains(&runtime), "{runtime} is in the tree");
    }
}

/// The rules of a correct client are numbered; each is held by a test that names it.
#[test]
fn every_rule_has_a_test_that_names_it() {
    let mut files = Vec::new();
    collect(&root().join("tests"), &mut files);
    for (path, text) in library() {
        if let Some((_, tests)) = text.split_once("#[cfg(test)]\nmod tests {") {
            files.push((path, tests.to_owned()));
        }
    }
    files.retain(|(path, text)| !path.ends_with("tidy.rs") && text.contains("#[test]"));
    let is_named = |rule: &str| {
        files.iter().any(|(_, text)| {
            let word = |at: usize| {
                let around =
                    |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric());
                let bytes = text.as_bytes();
                around(at.checked_sub(1).map(|before| &bytes[before]))
                    && around(bytes.get(at + rule.len()))
            };
            text.match_indices(rule).any(|(at, _)| word(at))
        })
    };
    let missing: Vec<_> =
        (1..=RULES).map(|rule| format!("R{rule}")).filter(|rule| !is_named(rule)).collect();
    assert!(missing.is_empty(), "no test names {missing:?}");
    assert!(!is_named(&format!("R{}", RULES + 1)), "a rule too many is named");
}

/// A string in a test or a URL cannot always be broken.
fn is_short(line: &str) -> bool {
    line.chars().count() <= 100 || line.contains("http") || line.trim_start().starts_with('"')
}
