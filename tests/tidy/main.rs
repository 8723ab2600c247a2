//! Rules about the source that the compiler does not check.

#![allow(missing_docs)]

mod dependencies;
mod imports;
mod links;
mod rules;
mod source;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text_of(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The files below a folder whose names end like this: each with its path from there, and its text.
fn files_below(folder: &str, ending: &str) -> Vec<(String, String)> {
    let start = root().join(folder);
    let mut paths = Vec::new();
    collect(&start, ending, &mut paths);
    assert!(!paths.is_empty(), "there is no {folder}/*{ending}");
    paths.sort_unstable();
    let file = |path: &PathBuf| {
        let name = path.strip_prefix(&start).expect("it is below").display().to_string();
        (name, fs::read_to_string(path).expect("the file is text"))
    };
    paths.iter().map(file).collect()
}

fn collect(folder: &Path, ending: &str, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("the entry is readable").path();
        if !path.is_dir() {
            paths.extend(path.to_string_lossy().ends_with(ending).then_some(path.clone()));
        // A crate of its own has a folder for what it builds.
        } else if !path.ends_with("target") && !path.ends_with(".git") {
            collect(&path, ending, paths);
        }
    }
}

/// Every source of the library, by its path below `src`, without those that start servers for tests.
fn library() -> Vec<(String, String)> {
    let mut files = files_below("src", ".rs");
    files.retain(|(path, _)| !path.starts_with("testing/"));
    files
}

/// The lines that are code, without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

/// The lines of code in the library that have this, outside of the files that may have it.
fn found_outside(needle: &str, allowed: &[&str]) -> Vec<String> {
    let mut files = library();
    files.retain(|(path, _)| !allowed.iter().any(|start| path.starts_with(start)));
    let lines = files.iter().flat_map(|(path, text)| code(text).map(move |line| (path, line)));
    let found = lines.filter(|(_, line)| line.contains(needle));
    found.map(|(path, line)| format!("{path}: {}", line.trim())).collect()
}

#[test]
fn each_outside_crate_has_one_home() {
    let homes: [(&str, &[&str]); 8] = [
        ("redis_protocol", &["resp/"]),
        ("mio::", &["mux/", "client/"]),
        ("socket2", &["mux/socket.rs"]),
        ("rustix", &["sys/", "client/poller.rs", "mux/stream.rs", "config/env.rs"]),
        ("rand::", &["sys/entropy.rs"]),
        ("slab::", &["proto/"]),
        ("rustls", &["config/tls.rs", "mux/tls.rs"]),
        ("humantime", &["config/env.rs"]),
    ];
    for (outside, home) in homes {
        assert_eq!(found_outside(outside, home), [""; 0]);
    }
}

#[test]
fn one_module_reads_the_clock_and_nothing_sleeps() {
    for needle in ["Instant::now", "SystemTime", "clock_gettime", ".elapsed()"] {
        assert_eq!(found_outside(needle, &["sys/clock.rs"]), [""; 0]);
    }
    assert_eq!(found_outside("Clock.now", &["sys/clock.rs", "mux/", "client/"]), [""; 0]);
    assert_eq!(found_outside("sleep(", &[]), [""; 0]);
}

/// The owner of a driver tells it the time and asks about forks. The driver reads the clock in two
/// places, where an earlier moment would be wrong.
#[test]
fn driver_is_told_the_time_and_asks_about_no_fork() {
    let owners = ["sys/process.rs", "mux/mod.rs", "mux/standalone.rs", "client/"];
    assert_eq!(found_outside("is_here()", &owners), [""; 0]);
    let mut driver = library();
    driver.retain(|(path, _)| path.starts_with("mux/"));
    driver.retain(|(path, _)| !["mux/mod.rs", "mux/blocking.rs"].contains(&path.as_str()));
    let without_tests = driver.iter().filter_map(|(_, text)| text.split("\nmod tests {").next());
    let readings = without_tests.flat_map(code).filter(|line| line.contains("Clock.now"));
    assert_eq!(readings.count(), 2);
}

#[test]
fn proto_has_no_sockets_threads_or_random_order() {
    let forbidden =
        ["std::net", "std::thread", "io::Read", "io::Write", "bytes::", "HashMap", "HashSet"];
    // Its map has a hasher of its own, and nobody walks through it.
    let allowed = [("proto/wait/local_queue.rs", "HashMap")];
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
    for needle in ["Tally", "Verdict", "validity::", "quorum("] {
        let mut found = found_outside(needle, &[]);
        found.retain(|line| line.starts_with("resp/") || line.starts_with("mux/"));
        assert_eq!(found, [""; 0]);
    }
}

#[test]
fn one_module_has_unsafe_code_and_says_why() {
    assert!(text_of("Cargo.toml").contains("unsafe_code = \"deny\""));
    assert_eq!(found_outside("unsafe", &["sys/process.rs"]), [""; 0]);
    let process = text_of("src/sys/process.rs");
    assert_eq!(code(&process).filter(|line| line.contains("unsafe {")).count(), 1);
    assert!(process.contains("// SAFETY: "));
}
