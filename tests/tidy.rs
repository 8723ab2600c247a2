//! Rules about the source that people would forget: who may import whom, and hygiene.

#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every Rust file of the library, with its path below `src`; the command-line tool, and what
/// starts servers for tests, apart.
fn library() -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&root().join("src"), &mut files);
    let apart = ["cli/", "bin/", "testing/"];
    files.retain(|(path, _)| !apart.iter().any(|folder| path.starts_with(folder)));
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
    let allowed = [("proto/queue.rs", "HashMap")];
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

/// What starts servers for tests needs nothing of the library, and no crate.
#[test]
fn feature_testing_stands_alone() {
    let mut files = Vec::new();
    collect(&root().join("src/testing"), &mut files);
    assert!(files.len() >= 4, "the sources were found");
    for (path, text) in files {
        let found = code(&text).find(|line| line.contains("crate::"));
        assert_eq!(found, None, "{path} imports from the library");
    }
    let manifest = text_of("Cargo.toml");
    assert!(manifest.contains("\ntesting = []\n"), "the feature brings a dependency");
}

/// What tests share is in the crate `testbed`. Two include what is tested itself: an example, and
/// the hand-over between threads.
#[test]
fn tests_and_benches_include_no_file_of_another() {
    let mut files = Vec::new();
    for folder in ["tests", "testbed", "benches"] {
        collect(&root().join(folder), &mut files);
    }
    let allowed = ["tests/masters/guest.rs", "tests/handover/src/lib.rs"];
    for (path, text) in files {
        let is_allowed = allowed.iter().any(|allowed| path.ends_with(allowed));
        let includes = text.lines().any(|line| line.starts_with("#[path"));
        assert!(!includes || is_allowed, "{path} includes another file");
    }
}

#[test]
fn sources_are_clean() {
    let mut files = library();
    for folder in ["tests", "testbed", "benches", "examples", "src/cli", "src/bin", "src/testing"] {
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

fn text_of(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The files right in a folder whose names end like this, with their texts.
fn files_in(folder: &str, ending: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join(folder)).expect("the folder is readable");
    let names = entries.map(|entry| entry.expect("the entry is readable").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    let paths = names.filter(|name| name.ends_with(ending)).map(|name| format!("{folder}/{name}"));
    paths.map(|path| (path.clone(), text_of(&path))).collect()
}

/// All source files of the tests but this one.
fn tests() -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&root().join("tests"), &mut files);
    collect(&root().join("testbed"), &mut files);
    files.retain(|(path, _)| !path.ends_with("tidy.rs"));
    files
}

/// The rules that `docs/rules.md` defines, by number, each with its text.
fn rules() -> Vec<(u32, String)> {
    let page = text_of("docs/rules.md");
    let rule = |text: &str| {
        let (number, _) = text.split_once('.').expect("a rule begins with its number");
        (number.parse().expect("the number of a rule"), text.to_owned())
    };
    let rules: Vec<_> = page.split("\n- **R").skip(1).map(rule).collect();
    assert!(rules.len() >= 37, "{} rules were found", rules.len());
    rules
}

/// The rules that a text cites, by words such as `R7`.
fn cited(text: &str) -> BTreeSet<u32> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let digits = words.filter_map(|word| word.strip_prefix('R'));
    let numbers = digits.filter(|digits| digits.len() <= 2 && !digits.starts_with('0'));
    numbers.filter_map(|digits| digits.parse().ok()).collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn rules_are_numbered_without_a_gap_and_defined_once() {
    let numbers: Vec<u32> = rules().into_iter().map(|(number, _)| number).collect();
    let expected: Vec<u32> = (1..).take(numbers.len()).collect();
    assert_eq!(numbers, expected, "docs/rules.md");
}

#[test]
fn every_rule_that_is_cited_is_defined() {
    let defined: BTreeSet<u32> = rules().into_iter().map(|(number, _)| number).collect();
    let bugs = files_in("tests/sim/bugs", ".bug");
    let pages = [files_in(".", ".md"), files_in("docs", ".md"), files_in("tests", ".md")];
    for (path, text) in library().into_iter().chain(tests()).chain(bugs).chain(pages.concat()) {
        let unknown: Vec<_> = cited(&text).difference(&defined).copied().collect();
        assert!(unknown.is_empty(), "{path}: docs/rules.md does not define {unknown:?}");
    }
}

#[test]
fn every_rule_has_a_test_that_cites_it() {
    let mut texts: Vec<String> = tests().into_iter().map(|(_, text)| text).collect();
    texts.retain(|text| text.contains("#[test]"));
    let in_files = |text: &str| Some(text.split_once("#[cfg(test)]\nmod tests {")?.1.to_owned());
    texts.extend(library().iter().filter_map(|(_, text)| in_files(text)));
    let cited: BTreeSet<u32> = texts.iter().flat_map(|text| cited(text)).collect();
    let numbers = rules().into_iter().map(|(number, _)| number);
    let missing: Vec<_> = numbers.filter(|number| !cited.contains(number)).collect();
    assert!(missing.is_empty(), "no test cites {missing:?}");
}

#[test]
fn every_test_that_holds_a_rule_exists() {
    for (number, text) in rules() {
        let paths = quoted(&text).filter_map(|quote| quote.split_once("::"));
        let tests: Vec<_> = paths.filter(|(path, _)| path.ends_with(".rs")).collect();
        assert!(!tests.is_empty(), "docs/rules.md names no test for R{number}");
        for (path, test) in tests {
            let source = text_of(path);
            // Its attributes stand right before it.
            let before = source.split_once(&format!("fn {test}(")).map(|(before, _)| before);
            let attributes = before.and_then(|before| before.rsplit("\n\n").next());
            let is_test = attributes.is_some_and(|lines| lines.contains("#[test]"));
            assert!(is_test, "R{number}: there is no test {path}::{test}");
        }
    }
}

#[test]
fn every_rule_of_the_simulator_that_holds_a_rule_exists() {
    let mut world = Vec::new();
    collect(&root().join("tests/sim/world"), &mut world);
    let mut count = 0;
    for (number, text) in rules() {
        let names = text.split("simulator ").skip(1).filter_map(|rest| rest.split('.').next());
        for name in names.flat_map(quoted) {
            let needle = format!("\"{name}\"");
            let is_known = world.iter().any(|(_, source)| source.contains(&needle));
            assert!(is_known, "R{number}: the simulator has no rule {name}");
            count += 1;
        }
    }
    assert!(count > 0, "rules of the simulator were found");
}

/// A string in a test or a URL cannot always be broken.
fn is_short(line: &str) -> bool {
    line.chars().count() <= 100 || line.contains("http") || line.trim_start().starts_with('"')
}
