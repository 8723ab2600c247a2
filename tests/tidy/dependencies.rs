//! What the library is built from, by `Cargo.lock`: on all systems.

use std::collections::{BTreeMap, BTreeSet};

use super::text_of;

/// A package of the lock file: its name, with its version if there are several.
type Package = String;

/// Each package of the lock file, with those that it depends on.
fn locked() -> BTreeMap<Package, Vec<Package>> {
    let lock = text_of("Cargo.lock");
    let value = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
        line.expect("a package has a name and a version").trim_matches('"').to_owned()
    };
    let packages = lock.split("[[package]]\n").skip(1).flat_map(|text| {
        let (name, version) = (value(text, "name"), value(text, "version"));
        let list = text.split_once("dependencies = [").map_or("", |(_, list)| list);
        let needed =
            list.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\","));
        let needed: Vec<_> = needed.map(str::to_owned).collect();
        // Others name its version only if there are several.
        [(format!("{name} {version}"), needed.clone()), (name, needed)]
    });
    packages.collect()
}

/// The names of the crates that the library needs to run, itself excluded. Its build script and tests need more.
fn crates(is_meant: fn(&str) -> bool) -> BTreeSet<String> {
    let manifest = text_of("Cargo.toml");
    let sections = manifest.split("\n[").filter(|section| {
        section.starts_with("dependencies]")
            || section.starts_with("target.") && section.contains("dependencies]")
    });
    let lines = sections.flat_map(|section| section.lines().skip(1)).filter(|line| is_meant(line));
    let direct: BTreeSet<_> =
        lines.filter_map(|line| line.split_once(" = ")).map(|it| it.0).collect();
    let locked = locked();
    let name = |package: &Package| package.split(' ').next().unwrap_or_default().to_owned();
    let mut next = locked["muxlock"].clone();
    next.retain(|package| direct.contains(name(package).as_str()));
    assert_eq!(next.len(), direct.len(), "Cargo.lock has each of {direct:?}");
    let mut found = BTreeSet::new();
    while let Some(package) = next.pop() {
        next.extend(locked[&package].iter().filter(|it| !found.contains(*it)).cloned());
        found.insert(package);
    }
    found.iter().map(name).collect()
}

#[test]
fn default_build_has_few_dependencies_and_no_runtime() {
    let crates = crates(|line| !line.contains("optional = true"));
    assert!(crates.len() <= 26, "{} crates: {crates:?}", crates.len());
    for absent in ["tokio", "async-std", "smol", "futures", "humantime", "strsim", "toml"] {
        assert!(!crates.contains(absent), "{absent} is in a build without features");
    }
    assert!(text_of("Cargo.toml").contains("\ndefault = []\n"), "a feature is on by default");
}

/// The tool is a package of its own, so that the library has none of its dependencies, with any
/// feature. It uses the library without what is for tests.
#[test]
fn library_and_tool_are_apart() {
    let crates = crates(|_| true);
    for of_tool in ["clap", "nix", "serde_json", "signal-hook"] {
        assert!(!crates.contains(of_tool), "the library depends on {of_tool}");
    }
    assert!(
        !text_of("cli/Cargo.toml").contains("unstable-resp"),
        "the tool uses what is for tests"
    );
}
