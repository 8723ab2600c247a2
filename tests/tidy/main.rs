//! Rules about the source that people would forget: which layer may import which, and hygiene.

#![allow(missing_docs)]

mod arrows;
mod identifiers;
mod limits;
mod messages;
mod pages;
mod prose;
mod shown;
mod source;
mod types;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every Rust file of the library, with its path below `src`; those that start servers for tests,
/// apart.
fn library() -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&root().join("src"), &mut files);
    files.retain(|(path, _)| !path.starts_with("testing/"));
    assert!(files.len() > 20, "the sources were found");
    files
}

/// Every Rust file of the command-line tool, with its path below `cli/src`.
fn tool() -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&root().join("cli/src"), &mut files);
    assert!(files.len() > 20, "the sources of the tool were found");
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
            let below = |folder| path.strip_prefix(root().join(folder)).ok();
            let name = ["src", "cli/src"].into_iter().find_map(below).unwrap_or(&path);
            let name = name.display().to_string();
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
    only_in("redis_protocol", &["resp/"]);
    only_in("mio::", &["mux/", "client/"]);
    only_in("socket2", &["mux/socket.rs"]);
    let of_the_system = ["sys/event_count.rs", "sys/clock.rs", "sys/name.rs", "sys/process.rs"];
    let of_sockets = ["client/poller.rs", "mux/stream.rs"];
    only_in("rustix", &[&of_the_system[..], &of_sockets].concat());
    only_in("rand::", &["sys/entropy.rs"]);
    only_in("slab::", &["proto/"]);
    only_in("rustls", &["config/tls.rs", "mux/tls.rs"]);
    for of_the_file in ["toml::", "humantime", "strsim"] {
        only_in(of_the_file, &["config/env.rs"]);
    }
}

#[test]
fn one_module_reads_the_clock_and_nothing_sleeps() {
    for needle in ["Instant::now", "SystemTime", "clock_gettime", ".elapsed()"] {
        only_in(needle, &["sys/clock.rs"]);
    }
    only_in("Clock.now", &["sys/clock.rs", "mux/", "client/"]);
    only_in("sleep(", &[]);
}

/// The owner of a driver tells it the time and asks about forks. The driver reads the clock in two
/// places, where an earlier moment would be wrong.
#[test]
fn driver_is_told_the_time_and_asks_about_no_fork() {
    only_in("is_here()", &["sys/process.rs", "mux/mod.rs", "mux/standalone.rs", "client/"]);
    let mut files = library();
    let apart = ["mux/mod.rs", "mux/blocking.rs"];
    files.retain(|(file, _)| layer_of(file) == "mux" && !apart.contains(&file.as_str()));
    let reads = files.iter().map(|(file, text)| {
        code(&without_tests(file, text)).filter(|line| line.contains("Clock.now")).count()
    });
    assert_eq!(reads.sum::<usize>(), 2);
}

#[test]
fn proto_has_no_sockets_clocks_randomness_or_bytes() {
    let forbidden = [
        "std::net",
        "std::thread",
        "io::Read",
        "io::Write",
        "bytes::",
        "Clock.now",
        "HashMap",
        "HashSet",
    ];
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

/// A node decides what concerns it alone, and leaves the rest to the engine. Its fields are
/// private: the compiler keeps others from writing them.
#[test]
fn nodes_and_rounds_know_nothing_of_the_engine() {
    let apart = [
        "proto/nodes/",
        "proto/cleanup/",
        "proto/operation.rs",
        "proto/kind.rs",
        "proto/voting/",
        "proto/wait/",
    ];
    let files = library();
    for part in apart {
        assert!(files.iter().any(|(path, _)| path.starts_with(part)), "there is no {part}");
    }
    for (path, text) in files.iter().filter(|(path, _)| apart.iter().any(|p| path.starts_with(p))) {
        let found = code(text).find(|line| line.contains("Engine"));
        assert_eq!(found, None, "{path} names the engine");
    }
}

/// A part of the engine says what is to be done, and sees no other part but the nodes.
#[test]
fn parts_of_the_engine_name_no_other_part() {
    let parts = [
        ("proto/wait/", ["proto::operation", "proto::voting", "super::operation", "Decision"]),
        ("proto/voting/", ["proto::operation", "proto::wait", "super::operation", "Order::"]),
        ("proto/cleanup/", ["proto::operation", "proto::wait", "proto::voting", "Decision"]),
    ];
    let files = library();
    for (part, foreign) in parts {
        for (path, text) in files.iter().filter(|(path, _)| path.starts_with(part)) {
            for name in foreign {
                let found = code(text).find(|line| line.contains(name));
                assert_eq!(found, None, "{path} names {name}");
            }
        }
    }
}

#[test]
fn bytes_and_sockets_decide_nothing_about_locks() {
    for (path, text) in library() {
        if path.starts_with("resp/") || path.starts_with("mux/") {
            for needle in ["Tally", "Verdict", "validity::", "quorum("] {
                let found = code(&text).find(|line| line.contains(needle));
                assert_eq!(found, None, "{path} has `{needle}`");
            }
        }
        if path.starts_with("resp/") {
            assert!(!text.contains("mio") && !text.contains("crate::mux"), "{path}");
        }
    }
}

/// The leaves: each may import those before it, and nothing else of the crate.
const LEAVES: [&str; 13] = [
    "moment",
    "times",
    "quorum",
    "token",
    "channel",
    "slots",
    "resource",
    "fencing",
    "outcome",
    "inspection",
    "validity",
    "lock_error",
    "keep_alive",
];

/// The layers on top of the leaves, from the bottom up. Each may import all leaves, and the layers
/// that are listed with it.
const LAYERS: [(&str, &[&str]); 8] = [
    ("sys", &[]),
    ("config", &[]),
    ("proto", &["config"]),
    // Of `proto`, only what can be sent and answered.
    ("resp", &["proto"]),
    ("mux", &["sys", "config", "proto", "resp"]),
    ("client", &["sys", "config", "proto", "mux"]),
    // Servers for tests: see `TESTING`.
    ("testing", &["resp"]),
    ("unstable_tool", &["config", "resp", "proto", "mux", "client", "testing"]),
];

/// What a leaf or layer may import; `None` if it is neither.
fn may_import(name: &str) -> Option<Vec<&'static str>> {
    if let Some(place) = LEAVES.iter().position(|leaf| *leaf == name) {
        return Some(LEAVES[..place].to_vec());
    }
    let (_, layers) = LAYERS.iter().find(|(layer, _)| *layer == name)?;
    Some([&LEAVES, *layers].concat())
}

/// Adds the paths that begin here, after `prefix`, and returns the text behind them. A group is
/// written out; what is called has parentheses.
fn expand<'a>(text: &'a str, prefix: &str, found: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand(rest, prefix, found);
            rest = &rest[rest.find([',', '}', ';']).unwrap_or(rest.len())..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
        }
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '*';
    let (name, rest) = text.split_at(text.find(|c| !is_name(c)).unwrap_or(text.len()));
    match rest.strip_prefix("::") {
        Some(more) if more.starts_with(|c| is_name(c) || c == '{') => {
            expand(more, &format!("{prefix}{name}::"), found)
        }
        _ => {
            let call = if rest.starts_with('(') { "()" } else { "" };
            found.extend((!name.is_empty()).then(|| format!("{prefix}{name}{call}")));
            rest
        }
    }
}

/// The paths of a source that begin with `crate::`, without it.
fn paths_from_crate(text: &str) -> Vec<String> {
    let code: Vec<_> = code(text).collect();
    let mut paths = Vec::new();
    for place in code.join("\n").split("crate::").skip(1) {
        expand(place, "", &mut paths);
    }
    paths
}

/// The same of those that begin with `super::`. A module inside the file counts as the file.
fn paths_from_super(file: &str, text: &str) -> Vec<String> {
    let modules = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let modules: Vec<_> = modules.split('/').collect();
    let code: Vec<_> = code(text).collect();
    let (mut paths, mut supers) = (Vec::new(), 0);
    for place in code.join("\n").split("super::").skip(1) {
        supers += 1;
        if !place.is_empty() {
            let depth = modules.len().saturating_sub(supers);
            let prefix: String = modules[..depth].iter().map(|name| format!("{name}::")).collect();
            expand(place, &prefix, &mut paths);
            supers = 0;
        }
    }
    paths
}

/// What tests stand in a file is left out: they may use any layer.
fn without_tests(file: &str, text: &str) -> String {
    if file.ends_with("/tests.rs") {
        return String::new();
    }
    let begins = |line: &str, next: &str| {
        let is_for_tests = line == "#[cfg(test)]" || line.starts_with("#[cfg(all(test, ");
        is_for_tests && next == "mod tests {"
    };
    let lines = text.lines().zip(text.lines().skip(1).chain([""]));
    let code = lines.take_while(|(line, next)| !begins(line, next));
    code.map(|(line, _)| format!("{line}\n")).collect()
}

/// The leaf or layer that a path or a file belongs to.
fn layer_of(path: &str) -> &str {
    path.split([':', '/', '.']).next().unwrap_or_default()
}

/// The paths by which a source names what its layer may not import.
fn forbidden_imports(file: &str, text: &str) -> Vec<String> {
    let layer = layer_of(file);
    let allowed = may_import(layer).unwrap_or_else(|| panic!("{file} belongs to no layer"));
    let code = without_tests(file, text);
    let mut paths = paths_from_crate(&code);
    paths.extend(paths_from_super(file, &code));
    paths.retain(|path| layer_of(path) != layer && !allowed.contains(&layer_of(path)));
    paths
}

/// The paths by which a source names what is in another file, through `lib.rs`.
fn imports_through_lib(text: &str) -> Vec<String> {
    let mut paths = paths_from_crate(text);
    paths.retain(|path| may_import(layer_of(path)).is_none());
    paths
}

/// Every source of the library that belongs to a layer. `fuzzing.rs` is a user of the crate, and
/// `guide.rs` has pages alone.
fn layered() -> impl Iterator<Item = (String, String)> {
    let apart = ["lib.rs", "fuzzing.rs", "guide.rs"];
    library().into_iter().filter(move |(file, _)| !apart.contains(&file.as_str()))
}

#[test]
fn each_layer_imports_only_what_is_listed() {
    for (file, text) in layered() {
        assert_eq!(forbidden_imports(&file, &text), [""; 0], "{file}");
    }
}

#[test]
fn no_layers_import_each_other_in_a_circle() {
    for (place, (layer, imports)) in LAYERS.iter().enumerate() {
        for import in *imports {
            let is_below = LAYERS[..place].iter().any(|(below, _)| below == import);
            assert!(is_below, "{import} is not below {layer}");
        }
    }
    let mut files: Vec<_> = layered().collect();
    collect(&root().join("src/testing"), &mut files);
    for name in LEAVES.iter().chain(LAYERS.iter().map(|(layer, _)| layer)) {
        assert!(files.iter().any(|(file, _)| layer_of(file) == *name), "there is no {name}");
    }
}

#[test]
fn nothing_inside_is_imported_through_lib() {
    for (file, text) in layered() {
        assert_eq!(imports_through_lib(&text), [""; 0], "{file}");
    }
}

#[test]
fn codec_knows_of_the_engine_only_what_is_sent_and_answered() {
    let commands = text_of("src/proto/command.rs");
    let is_defined = |name: &str| {
        let kinds = ["struct", "enum", "type", "trait", "const"];
        kinds.iter().any(|kind| commands.contains(&format!("pub {kind} {name}")))
    };
    for (file, text) in layered().filter(|(file, _)| layer_of(file) == "resp") {
        for path in paths_from_crate(&without_tests(&file, &text)) {
            let name = path.strip_prefix("proto::").and_then(|rest| rest.rsplit("::").next());
            assert!(name.is_none_or(is_defined), "{file} imports {path}");
        }
    }
}

#[test]
fn forbidden_imports_are_found() {
    const CLOCK: &str = "sys::clock::Clock";
    let found = |file: &str, text: &str| forbidden_imports(file, text).join(" ");
    assert_eq!(found("lock_error.rs", "use crate::quorum::{self, NODES_MAX};"), "");
    assert_eq!(found("quorum.rs", "use crate::lock_error::LockError;"), "lock_error::LockError");
    assert_eq!(found("quorum.rs", "use super::lock_error::LockError;"), "lock_error::LockError");
    let group = "use crate::{\n    mux::{Driver as D, records::Records},\n    token::Entropy,\n};";
    assert_eq!(found("proto/queue.rs", group), "mux::Driver mux::records::Records");
    assert_eq!(found("proto/queue.rs", "let now = crate::sys::clock::Clock.now();"), CLOCK);
    assert_eq!(
        found("proto/nodes/node/link.rs", "use super::super::super::super::sys::clock::Clock;"),
        CLOCK
    );
    assert_eq!(found("proto/nodes/node/link.rs", "use super::super::super::timer::between;"), "");
    assert_eq!(found("config/mod.rs", "use crate::client::Redlock;"), "client::Redlock");
    let test = "#[cfg(test)]\nmod tests {\n    use crate::client::Redlock;\n}\n";
    assert_eq!(found("config/mod.rs", test), "");
    assert_eq!(found("config/mod.rs", "// use crate::client::Redlock;"), "");

    let text = "use crate::{Moment, resp};\nfn f() -> usize { crate::quorum(crate::quorum::MAX) }";
    assert_eq!(imports_through_lib(text), ["Moment", "quorum()"]);
}

/// What of `testing` needs which part of the library: a fake master knows the scripts and their
/// limits, and errors for tests are the library's own.
const TESTING: [(&str, &[&str]); 4] = [
    ("testing/errors.rs", &["lock_error", "keep_alive", "outcome", "resource"]),
    ("testing/fake/forms.rs", &["resource", "resp", "token"]),
    ("testing/fake/keys.rs", &["resp", "token"]),
    ("testing/fake/request.rs", &["resource"]),
];

/// What starts servers for tests needs nothing else of the library, and no crate.
#[test]
fn feature_testing_stands_alone() {
    let mut files = Vec::new();
    collect(&root().join("src/testing"), &mut files);
    assert!(files.len() >= 12, "the sources were found");
    for (path, text) in files {
        let allowed = TESTING.iter().find(|(file, _)| *file == path).map_or(&[][..], |it| it.1);
        let mut imports = paths_from_crate(&text);
        imports.retain(|import| !allowed.contains(&layer_of(import)));
        assert_eq!(imports, [""; 0], "{path} imports from the library");
        for outside in ["bytes::", "log::", "mio::", "rand::", "redis_protocol", "socket2"] {
            let found = code(&text).find(|line| line.contains(outside));
            assert_eq!(found, None, "{path} uses a crate");
        }
    }
    let manifest = text_of("Cargo.toml");
    assert!(manifest.contains("\ntesting = []\n"), "the feature brings a dependency");
}

/// What tests share is in the crate `testbed`. Four include what is tested itself: two examples,
/// the hand-over between threads, and what composes scripts.
#[test]
fn tests_and_benches_include_no_file_of_another() {
    let mut files = Vec::new();
    for folder in ["tests", "cli/tests", "testbed", "benches"] {
        collect(&root().join(folder), &mut files);
    }
    let allowed = [
        "tests/masters/guest.rs",
        "tests/handover/src/lib.rs",
        "tests/loops/loops.rs",
        "tests/scripts/main.rs",
    ];
    for (path, text) in files {
        let is_allowed = allowed.iter().any(|allowed| path.ends_with(allowed));
        let includes = text.lines().any(|line| line.starts_with("#[path"));
        assert!(!includes || is_allowed, "{path} includes another file");
    }
}

#[test]
fn sources_are_clean() {
    let mut files = [library(), tool()].concat();
    let others = ["tests", "cli/tests", "testbed", "benches", "examples", "build", "src/testing"];
    for folder in others {
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
        assert!(
            text.starts_with("//!") || ["lib.rs", "guide.rs"].contains(&path.as_str()),
            "{path} has no module comment"
        );
        assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{path} ends badly");
    }
}

#[test]
fn one_module_has_unsafe_code_and_says_why() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("there is a manifest");
    assert!(manifest.contains("unsafe_code = \"deny\""));
    only_in("unsafe", &["sys/process.rs"]);
    let process = fs::read_to_string(root().join("src/sys/process.rs")).expect("it exists");
    assert_eq!(code(&process).filter(|line| line.contains("unsafe {")).count(), 1);
    assert!(process.contains("// SAFETY: "));
}

/// The crates that the library is built from, itself included.
fn crates(args: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--package", "muxlock", "--prefix", "none"])
        .args(args)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo writes text");
    let names = text.lines().filter_map(|line| line.split(' ').next());
    let mut crates: Vec<_> = names.map(str::to_owned).collect();
    crates.sort_unstable();
    crates.dedup();
    assert!(crates.iter().any(|it| it == "mio"), "the tree was read");
    crates
}

/// The tool is a package of its own, so that the library has none of its dependencies, with any
/// feature. Only the reader of its file needs a parser. The tool uses the library as a crate,
/// without what is for tests.
#[test]
fn library_and_tool_are_apart() {
    let crates = crates(&["--edges", "normal,build", "--all-features", "--target", "all"]);
    for of_tool in ["clap", "nix", "serde_json", "serde_core", "signal-hook"] {
        assert!(!crates.iter().any(|it| it == of_tool), "the library depends on {of_tool}");
    }
    let others = "testing,tls,unstable-resp,unstable-tool";
    let crates = self::crates(&["--edges", "normal,build", "--features", others]);
    for of_the_file in ["humantime", "strsim", "toml"] {
        assert!(!crates.iter().any(|it| it == of_the_file), "only env needs {of_the_file}");
    }
    assert!(text_of("Cargo.toml").contains("\ndefault = []\n"), "a feature is on by default");
    let manifest = text_of("cli/Cargo.toml");
    assert!(!manifest.contains("unstable-resp"), "the tool uses what is for tests");
    for (path, text) in tool() {
        let mut includes = code(&text).filter(|line| line.contains("#[path = \"../"));
        assert_eq!(includes.next(), None, "{path} includes a file of the library");
    }
}

#[test]
fn default_build_has_few_dependencies_and_no_runtime() {
    let crates = crates(&["--edges", "normal"]);
    assert!(crates.len() <= 22, "{} crates: {crates:?}", crates.len());
    for runtime in ["tokio", "async-std", "smol", "futures"] {
        assert!(!crates.iter().any(|it| it == runtime), "{runtime} is in the tree");
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
    for folder in ["tests", "cli/tests", "testbed"] {
        collect(&root().join(folder), &mut files);
    }
    files.retain(|(path, _)| !path.contains("/tests/tidy/"));
    files
}

/// The rules that `docs/rules.md` defines, by names such as `R7` and `F3`, each with its text.
fn rules() -> Vec<(String, String)> {
    let page = text_of("docs/rules.md");
    let rule = |text: &str| {
        let (name, _) = text.split_once('.').expect("a rule begins with its name");
        (name.to_owned(), text.to_owned())
    };
    let rules: Vec<_> = page.split("\n- **").skip(1).map(rule).collect();
    let of = |kind: &str| rules.iter().filter(|(name, _)| name.starts_with(kind)).count();
    let is_whole = of("R") >= 37 && of("F") >= 23 && of("W") >= 15 && of("K") >= 10;
    assert!(is_whole, "{} rules were found", rules.len());
    rules
}

/// The rules that a text cites, by words such as `R7`.
fn cited(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_rule = |word: &&str| {
        let digits = word.strip_prefix(['R', 'F', 'W', 'K']).unwrap_or_default();
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        (1..=2).contains(&digits.len()) && is_number && !digits.starts_with('0')
    };
    words.filter(is_rule).map(str::to_owned).collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// R2: a machine that slept is seen by its wall clock alone, which a coarse reading does not read.
#[test]
fn releases_are_judged_by_both_clocks() {
    let library = library();
    let lines = library.iter().flat_map(|(path, text)| {
        let calls = text.lines().filter(|line| line.contains(".judge(|"));
        calls.map(move |line| (path, line.trim()))
    });
    let calls: Vec<_> = lines.collect();
    assert!(calls.len() >= 2, "{calls:?}");
    for (path, line) in calls {
        assert!(line.contains(".judge(|| Clock.now())"), "{path}: {line}");
    }
}

#[test]
fn rules_are_numbered_without_a_gap_and_defined_once() {
    for kind in ["R", "F", "W", "K"] {
        let names = rules().into_iter().map(|(name, _)| name);
        let names: Vec<String> = names.filter(|name| name.starts_with(kind)).collect();
        let expected: Vec<_> = (1..=names.len()).map(|number| format!("{kind}{number}")).collect();
        assert_eq!(names, expected, "docs/rules.md");
    }
}

#[test]
fn every_rule_that_is_cited_is_defined() {
    let defined: BTreeSet<String> = rules().into_iter().map(|(name, _)| name).collect();
    let bugs = files_in("tests/sim/bugs", ".bug");
    let pages = [files_in(".", ".md"), files_in("docs", ".md"), files_in("tests", ".md")];
    let sources = [library(), tool(), tests(), bugs, pages.concat()];
    for (path, text) in sources.concat() {
        let cited = cited(&text);
        let unknown: Vec<_> = cited.difference(&defined).collect();
        assert!(unknown.is_empty(), "{path}: docs/rules.md does not define {unknown:?}");
    }
}

#[test]
fn every_rule_has_a_test_that_cites_it() {
    let mut texts: Vec<String> = tests().into_iter().map(|(_, text)| text).collect();
    texts.retain(|text| text.contains("#[test]"));
    let in_files = |text: &str| Some(text.split_once("#[cfg(test)]\nmod tests {")?.1.to_owned());
    texts.extend(library().iter().filter_map(|(_, text)| in_files(text)));
    let cited: BTreeSet<String> = texts.iter().flat_map(|text| cited(text)).collect();
    let names = rules().into_iter().map(|(name, _)| name);
    let missing: Vec<_> = names.filter(|name| !cited.contains(name)).collect();
    assert!(missing.is_empty(), "no test cites {missing:?}");
}

#[test]
fn every_test_that_holds_a_rule_exists() {
    for (name, text) in rules() {
        let paths = quoted(&text).filter_map(|quote| quote.split_once("::"));
        let tests: Vec<_> = paths.filter(|(path, _)| path.ends_with(".rs")).collect();
        assert!(!tests.is_empty(), "docs/rules.md names no test for {name}");
        for (path, test) in tests {
            let source = text_of(path);
            // Its attributes stand right before it.
            let before = source.split_once(&format!("fn {test}(")).map(|(before, _)| before);
            let attributes = before.and_then(|before| before.rsplit("\n\n").next());
            let is_test = attributes.is_some_and(|lines| lines.contains("#[test]"));
            assert!(is_test, "{name}: there is no test {path}::{test}");
        }
    }
}

#[test]
fn every_rule_of_the_simulator_that_holds_a_rule_exists() {
    let mut world = Vec::new();
    collect(&root().join("tests/sim/world"), &mut world);
    let mut count = 0;
    for (rule, text) in rules() {
        let names = text.split("simulator ").skip(1).filter_map(|rest| rest.split('.').next());
        for name in names.flat_map(quoted) {
            let needle = format!("\"{name}\"");
            let is_known = world.iter().any(|(_, source)| source.contains(&needle));
            assert!(is_known, "{rule}: the simulator has no rule {name}");
            count += 1;
        }
    }
    assert!(count > 0, "rules of the simulator were found");
}

/// A string in a test or a URL cannot always be broken.
fn is_short(line: &str) -> bool {
    line.chars().count() <= 100 || line.contains("http") || line.trim_start().starts_with('"')
}
