//! What is published works without this repository: both packages are unpacked elsewhere, and their
//! tests pass there. The library's pass with the oldest Rust that it promises as well.

#![allow(missing_docs)]

use std::path::Path;
use std::process::Command;

use testbed::Folder;

const CARGO: &str = env!("CARGO");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");
const RUST: &str = env!("CARGO_PKG_RUST_VERSION");

fn run(command: &mut Command, folder: &Path) {
    let target = Path::new(ROOT).join("target/package");
    let status = command.current_dir(folder).env("CARGO_TARGET_DIR", target).status();
    assert!(status.expect("it can be run").success(), "{command:?}");
}

fn is_here(toolchain: &str) -> bool {
    let rustc = Command::new("rustup").args(["run", toolchain, "rustc", "--version"]).output();
    rustc.is_ok_and(|output| output.status.success())
}

#[test]
#[ignore = "it builds both packages anew, for minutes"]
fn packages_pass_their_tests_elsewhere() {
    let root = Path::new(ROOT);
    let packages =
        ["package", "-p", "muxlock", "-p", "muxlock-cli", "--no-verify", "--allow-dirty"];
    run(Command::new(CARGO).args(packages), root);
    let elsewhere = Folder::create("package");
    for name in ["muxlock", "muxlock-cli"] {
        let package = root.join(format!("target/package/package/{name}-{VERSION}.crate"));
        run(Command::new("tar").arg("-xzf").arg(package), &elsewhere.0);
    }
    let library = elsewhere.0.join(format!("muxlock-{VERSION}"));
    let tool = elsewhere.0.join(format!("muxlock-cli-{VERSION}"));
    run(Command::new(CARGO).args(["test", "--quiet", "--all-features"]), &library);
    // The registry may not have this version of the library.
    let patch = format!("patch.crates-io.muxlock.path = {library:?}");
    run(Command::new(CARGO).args(["test", "--quiet", "--all-features", "--config", &patch]), &tool);
    if !is_here(RUST) {
        println!("SKIPPED: Rust {RUST} is not here (rustup toolchain install {RUST})");
        return;
    }
    run(Command::new("rustup").args(["run", RUST, "cargo", "test", "--quiet"]), &library);
}
