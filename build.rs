//! Writes the texts of the scripts, as they are sent, to `OUT_DIR`: to a file each, and to
//! `scripts.rs` as constants. Writes the pages of the guide there as well.

#[path = "build/guide.rs"]
mod guide;
#[path = "build/lua.rs"]
mod lua;

use std::path::{Path, PathBuf};
use std::{env, fs};

const FOLDER: &str = "src/scripts";

/// Each script with its pieces.
const SCRIPTS: [(&str, &str); 24] = [
    ("RELEASE", "release"),
    ("EXTEND", "extend"),
    ("EXTEND_OR_SET", "extend_or_set answer"),
    ("ACQUIRE_FENCED", "fence_places fence_counter time acquire_fenced answer"),
    ("RAISE", "raise fence_counter raise_ends"),
    ("INSPECT", "inspect"),
    ("FREE_ALL", "free_all answer"),
    ("FREE_SHARED", "free_shared"),
    ("FREE_AS", "as free_as answer"),
    ("LOOK_AS", "as look_as"),
    ("TAKE_ALL", "take_all answer"),
    ("KEEP_ALL", "keep_all answer"),
    ("TAKE_SHARED", "time now take_shared answer"),
    ("KEEP_SHARED", "time now keep_shared answer"),
    ("TAKE_EXCLUSIVE", "take_exclusive answer"),
    ("TAKE_SLOT", "take_slot answer"),
    ("TAKE_AS", "as as_now take_as as_ends answer"),
    ("KEEP_AS", "as as_now keep_as as_ends answer"),
    ("MARKER", "time marker"),
    ("QUEUE_UP", "queue_up"),
    ("HAND_ON", "hand_on"),
    ("STEP_OUT", "step_out"),
    ("TRIAL", "trial missing trial_ends"),
    ("TRIAL_FIRST", "trial_first missing trial_first_ends"),
];

pub(crate) fn main() {
    guide::write(&out());
    println!("cargo:rerun-if-changed={FOLDER}");
    println!("cargo:rerun-if-changed=build");
    // Some unit tests need the crate `testbed`, which a package does not have.
    println!("cargo:rustc-check-cfg=cfg(repository)");
    if Path::new("testbed").exists() {
        println!("cargo:rustc-cfg=repository");
    }
    let (mut constants, mut all, mut count) = (String::new(), String::new(), 0);
    let (mut hashes, mut hash_count) = (String::new(), 0);
    let mut add = |name: &str, pieces: &str| {
        let file = format!("{name}.lua");
        fs::write(out().join(&file), composed(name, pieces)).expect("the folder is there");
        let included = format!("include_str!({file:?})");
        all += &format!("    ({name:?}, {included}),\n");
        count += 1;
        included
    };
    for (name, pieces) in SCRIPTS {
        constants += &format!("pub(crate) const {name}: &str = {};\n", add(name, pieces));
        if name.starts_with("TAKE") {
            let hash = sha1_smol::Sha1::from(composed(name, pieces)).digest().to_string();
            hashes += &format!("    ({name}, {hash:?}),\n");
            hash_count += 1;
        }
    }
    let all = format!("#[cfg(test)]\npub(crate) const ALL: [(&str, &str); {count}] = [\n{all}];\n");
    let hashes =
        format!("pub(crate) static HASHES: [(&str, &str); {hash_count}] = [\n{hashes}];\n");
    fs::write(out().join("scripts.rs"), constants + &hashes + &all).expect("the folder is there");
}

fn out() -> PathBuf {
    env::var_os("OUT_DIR").expect("cargo says where to write").into()
}

fn composed(script: &str, pieces: &str) -> String {
    let read = |piece| {
        let path = Path::new(FOLDER).join(format!("{piece}.lua"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let texts: Vec<String> = pieces.split(' ').map(read).collect();
    let pieces: Vec<_> = pieces.split(' ').zip(texts.iter().map(String::as_str)).collect();
    lua::compose(&pieces).unwrap_or_else(|error| panic!("{script}: {error}"))
}
