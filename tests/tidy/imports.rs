//! Which layer and which part of the engine may import which.

use super::source::Written;
use super::tree::Tree;
use super::{code, files_below};

/// The leaves: each may import those before it, and nothing else of the crate.
const LEAVES: &str = "moment times quorum token channel slots resource fencing outcome inspection \
                      validity lock_error keep_alive";

/// The layers on top of the leaves, from the bottom up. Each may import all leaves, and the layers
/// that are listed with it, which are above it in this list.
const LAYERS: [(&str, &[&str]); 7] = [
    ("sys", &[]),
    ("config", &[]),
    ("proto", &["config"]),
    // Of `proto`, only what can be sent and answered.
    ("resp", &["proto"]),
    ("mux", &["sys", "config", "proto", "resp"]),
    ("client", &["sys", "config", "proto", "mux"]),
    ("unstable_tool", &["config", "resp", "proto", "mux", "client", "testing"]),
];

/// What of `testing` needs which part of the library: a fake master knows the scripts and their
/// limits, and errors for tests are the library's own.
const TESTING: [(&str, &[&str]); 4] = [
    ("testing/errors.rs", &["lock_error", "keep_alive", "outcome", "resource"]),
    ("testing/fake/forms.rs", &["resource", "resp", "token"]),
    ("testing/fake/keys.rs", &["resp", "token"]),
    ("testing/fake/request.rs", &["resource"]),
];

/// The parts of `proto`, by the beginnings of their paths. Each may use `proto/nodes/` and what is
/// in no part.
const PARTS: [&[&str]; 3] =
    [&["proto/wait/"], &["proto/voting/"], &["proto/cleanup/", "proto/doubt.rs"]];

/// What the layer of a file may import beside itself.
fn may_import(file: &str) -> Vec<&'static str> {
    let layer = file.split(['/', '.']).next().unwrap_or_default();
    if layer == "testing" {
        let row = TESTING.iter().find(|(path, _)| *path == file);
        return row.map_or(Vec::new(), |(_, allowed)| allowed.to_vec());
    }
    let leaves: Vec<_> = LEAVES.split(' ').collect();
    if let Some(place) = leaves.iter().position(|leaf| *leaf == layer) {
        return leaves[..place].to_vec();
    }
    let row = LAYERS.iter().find(|(it, _)| *it == layer);
    let (_, layers) = row.unwrap_or_else(|| panic!("{file} belongs to no layer"));
    [&leaves, *layers].concat()
}

/// The paths of a file to what its layer may not import.
fn forbidden(tree: &Tree, file: usize) -> Vec<String> {
    let source = &tree.sources[file];
    let own = source.module();
    let allowed = [may_import(&source.path), own[..1].to_vec()].concat();
    let is_forbidden =
        |path: &Written| path.first().is_some_and(|it| !allowed.contains(&it.as_str()));
    tree.paths(file).filter(is_forbidden).map(|path| path.join("::")).collect()
}

/// `fuzzing.rs` is a user of the crate, and `guide.rs` has pages alone.
#[test]
fn each_layer_imports_only_what_is_listed() {
    let tree = Tree::new(&files_below("src", ".rs"));
    for (file, source) in tree.sources.iter().enumerate() {
        if !["lib.rs", "fuzzing.rs", "guide.rs"].contains(&source.path.as_str()) {
            assert_eq!(forbidden(&tree, file), [""; 0], "{}", source.path);
        }
    }
}

#[test]
fn no_layers_import_each_other_in_a_circle() {
    for (place, (layer, imports)) in LAYERS.iter().enumerate() {
        let is_above = |import: &&&str| LAYERS[place..].iter().any(|(above, _)| above == *import);
        assert_eq!(imports.iter().find(is_above), None, "{layer}");
    }
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    for crate_ in ["src", "cli/src"] {
        assert_eq!(Tree::new(&files_below(crate_, ".rs")).in_circles(), [""; 0], "{crate_}");
    }
}

/// A part says what is to be done. It calls neither the engine, with its operations, nor another
/// part but the nodes, which call none.
#[test]
fn no_part_of_the_engine_calls_another() {
    let files = files_below("src", ".rs");
    let tree = Tree::new(&files);
    let part = |path: &str| PARTS.iter().position(|own| own.iter().any(|it| path.starts_with(it)));
    let is_apart = |path: &str| part(path).is_some() || path.starts_with("proto/nodes/");
    for (from, to) in tree.arrows().into_iter().filter(|(from, _)| is_apart(from)) {
        let is_allowed = part(to).is_none() && to != "proto/operation.rs" || part(from) == part(to);
        assert!(is_allowed, "{from} uses {to}");
    }
    for (path, text) in files.iter().filter(|(path, _)| is_apart(path)) {
        let engine = code(text).find(|line| line.contains("Engine"));
        assert_eq!(engine, None, "{path} names the engine");
    }
}

#[test]
fn codec_knows_of_the_engine_only_what_is_sent_and_answered() {
    for (from, to) in Tree::new(&files_below("src", ".rs")).arrows() {
        let is_about_engine = from.starts_with("resp/") && to.starts_with("proto/");
        assert!(!is_about_engine || to == "proto/command.rs", "{from} uses {to}");
    }
}

#[test]
fn proto_has_no_bytes_of_the_wire() {
    let tree = Tree::new(&files_below("src", ".rs"));
    for source in tree.sources.iter().filter(|source| source.path.starts_with("proto/")) {
        assert_eq!(source.byte_literals, 0, "{}: decode in resp", source.path);
    }
}

#[test]
fn forbidden_imports_are_found() {
    let found = |file: &str, text: &str| {
        let files = [(file, text), ("quorum.rs", ""), ("mux/mod.rs", ""), ("lib.rs", "")];
        let owned = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        forbidden(&Tree::new(&owned), 0).join(" ")
    };
    assert_eq!(found("lock_error.rs", "use crate::quorum::{self, NODES_MAX};"), "");
    assert_eq!(found("moment.rs", "use super::quorum::Quorum;"), "quorum::Quorum");
    let group = "use crate::{\n    mux::{Driver as D, records::Records},\n    token::Entropy,\n};";
    assert_eq!(found("proto/queue.rs", group), "mux::Driver mux::records::Records");
    let clock = "use super::super::super::super::sys::Clock;";
    assert_eq!(found("proto/nodes/node/link.rs", clock), "sys::Clock");
    assert_eq!(found("proto/nodes/node/link.rs", "use super::super::super::timer::between;"), "");
    let test = "#[cfg(test)]\nmod tests {\n    use crate::client::Redlock;\n}\n";
    assert_eq!(found("config/mod.rs", test), "");
    // What a layer imports through `lib.rs` could be of any layer.
    assert_eq!(found("client/mod.rs", "use crate::Moment;"), "Moment");
}
