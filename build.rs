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
const SCRIPTS: [(&str, &str); 18] = [
    ("RELEASE", "release"),
    ("EXTEND", "extend"),
    ("EXTEND_OR_SET", "extend_or_set answer"),
    ("SET_MARKED", "time now marker_last marker set answer_marked"),
    ("EXTEND_OR_SET_MARKED", "time now marker_last marker extend_or_set answer_marked"),
    ("ACQUIRE_FENCED", "fence_places fence_counter time acquire_fenced answer"),
    (
        "ACQUIRE_FENCED_MARKED",
        "time now marker_last marker fence_places_marked fence_counter acquire_fenced \
         fence_marked answer_marked",
    ),
    ("RAISE", "raise fence_counter raise_ends"),
    ("INSPECT", "inspect"),
    ("FREE_ALL", "free_all answer"),
    ("FREE_SHARED", "free_shared"),
    ("FREE_AS", "first as free_as answer"),
    ("LOOK_AS", "first as look_as"),
    ("QUEUE_UP", "queue_up"),
    ("HAND_ON", "hand_on"),
    ("STEP_OUT", "step_out"),
    ("TRIAL", "trial missing trial_ends"),
    ("TRIAL_FIRST", "trial_first missing trial_first_ends"),
];

/// Each script of which there are two, without and with a check of the flush marker: the pieces
/// before `answer` or `answer_marked`.
const PAIRS: [(&str, [&str; 2]); 8] = [
    ("TAKE_ALL", ["first", "take_all"]),
    ("KEEP_ALL", ["first", "keep_all"]),
    ("TAKE_SHARED", ["first time now", "take_shared"]),
    ("KEEP_SHARED", ["first time now", "keep_shared"]),
    ("TAKE_EXCLUSIVE", ["first", "take_exclusive"]),
    ("TAKE_SLOT", ["first", "take_slot"]),
    ("TAKE_AS", ["first", "as as_now take_as as_ends"]),
    ("KEEP_AS", ["first", "as as_now keep_as as_ends"]),
];
/// What the one with a check has in place of the first pieces.
const MARKED: &str = "time now marker_first marker";

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
    }
    let (mut hashes, mut hash_count) = (String::new(), 0);
    for (name, [first, pieces]) in PAIRS {
        let both = [format!("{first} {pieces} answer"), format!("{MARKED} {pieces} answer_marked")];
        if name.starts_with("TAKE") {
            for (index, pieces) in both.iter().enumerate() {
                let hash = sha1_smol::Sha1::from(composed(name, pieces)).digest().to_string();
                hashes += &format!("    ({name}[{index}], {hash:?}),\n");
                hash_count += 1;
            }
        }
        let [plain, marked] = both;
        let plain = add(name, &plain);
        let marked = add(&format!("{name}_MARKED"), &marked);
        constants += &format!("pub(crate) const {name}: [&str; 2] = [{plain}, {marked}];\n");
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
