//! What the library is built from.

use std::collections::BTreeSet;
use std::process::Command;

use super::{root, text_of};

/// The names of the crates that the library needs to run on this system, itself excluded. Its build
/// script and tests need more.
fn crates(features: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--package", "muxlock", "--edges", "normal"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(features)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo writes text");
    let names = text.lines().filter_map(|line| line.split(' ').next());
    let found: BTreeSet<_> = names.filter(|name| *name != "muxlock").map(str::to_owned).collect();
    assert!(found.contains("mio"), "the tree was read: {found:?}");
    found
}

#[test]
fn default_build_has_few_dependencies_and_no_runtime() {
    let crates = crates(&[]);
    assert!(crates.len() <= 21, "{} crates: {crates:?}", crates.len());
    for absent in ["tokio", "async-std", "smol", "futures", "humantime", "strsim", "toml"] {
        assert!(!crates.contains(absent), "{absent} is in a build without features");
    }
    assert!(text_of("Cargo.toml").contains("\ndefault = []\n"), "a feature is on by default");
}

/// The tool is a package of its own, so that the library has none of its dependencies, with any
/// feature. It uses the library without what is for tests.
#[test]
fn library_and_tool_are_apart() {
    let crates = crates(&["--all-features"]);
    for of_tool in ["clap", "nix", "serde_json", "signal-hook", "strsim", "toml"] {
        assert!(!crates.contains(of_tool), "the library depends on {of_tool}");
    }
    assert!(
        !text_of("cli/Cargo.toml").contains("unstable-resp"),
        "the tool uses what is for tests"
    );
}
