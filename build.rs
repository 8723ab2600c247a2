//! Writes the texts of the scripts, as they are sent, to `OUT_DIR`: to a file each, and to
//! `scripts.rs` as constants.

#[path = "build/lua.rs"]
mod lua;

use std::path::{Path, PathBuf};
use std::{env, fs};

const FOLDER: &str = "src/scripts";

/// Each script with its pieces.
const SCRIPTS: [(&str, &[&str]); 19] = [
    ("RELEASE", &["release"]),
    ("EXTEND", &["extend"]),
    ("EXTEND_OR_SET", &["extend_or_set"]),
    ("SET_MARKED", &["marker", "set_marked"]),
    ("EXTEND_OR_SET_MARKED", &["marker", "extend_or_set_marked"]),
    ("ACQUIRE_FENCED", &["acquire_fenced"]),
    ("ACQUIRE_FENCED_MARKED", &["marker", "acquire_fenced_marked"]),
    ("RAISE", &["raise"]),
    ("INSPECT", &["inspect"]),
    ("FREE_ALL", &["free_all"]),
    ("FREE_SHARED", &["free_shared"]),
    ("FREE_AS", &["form_time", "as", "free_as"]),
    ("GIVE_BACK", &["form_time", "as", "give_back"]),
    ("LOOK_AS", &["form_time", "as", "look_as"]),
    ("QUEUE_UP", &["queue_up"]),
    ("HAND_ON", &["hand_on"]),
    ("STEP_OUT", &["step_out"]),
    ("TRIAL", &["trial", "missing", "trial_ends"]),
    ("TRIAL_FIRST", &["trial_first", "missing", "trial_first_ends"]),
];

/// Each script of which there are two, with its pieces: in front of them is `form_time`, and if it
/// checks the flush marker `form_marker`. A constant has both, in this order.
const PAIRS: [(&str, &[&str]); 9] = [
    ("TAKE_ALL", &["take_all"]),
    ("KEEP_ALL", &["keep_all"]),
    ("TAKE_SHARED", &["take_shared"]),
    ("KEEP_SHARED", &["keep_shared"]),
    ("TAKE_EXCLUSIVE", &["take_exclusive"]),
    ("TAKE_SLOT", &["take_slot"]),
    ("TAKE_AS", &["as", "take_as", "as_ends"]),
    ("TAKE_OVER", &["as", "take_over", "as_ends"]),
    ("KEEP_AS", &["as", "keep_as", "as_ends"]),
];

fn main() {
    println!("cargo:rerun-if-changed={FOLDER}");
    println!("cargo:rerun-if-changed=build");
    let (mut constants, mut all, mut count) = (String::new(), String::new(), 0);
    let mut add = |name: &str, pieces: &[&str]| {
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
    for (name, pieces) in PAIRS {
        let plain = add(name, &[&["form_time"], pieces].concat());
        let marked = add(&format!("{name}_MARKED"), &[&["form_marker"], pieces].concat());
        constants += &format!("pub(crate) const {name}: [&str; 2] = [{plain}, {marked}];\n");
    }
    let all = format!("#[cfg(test)]\npub(crate) const ALL: [(&str, &str); {count}] = [\n{all}];\n");
    fs::write(out().join("scripts.rs"), constants + &all).expect("the folder is there");
}

fn out() -> PathBuf {
    env::var_os("OUT_DIR").expect("cargo says where to write").into()
}

fn composed(script: &str, pieces: &[&str]) -> String {
    let read = |piece: &&str| {
        let path = Path::new(FOLDER).join(format!("{piece}.lua"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let texts: Vec<String> = pieces.iter().map(read).collect();
    let pieces: Vec<_> = pieces.iter().copied().zip(texts.iter().map(String::as_str)).collect();
    lua::compose(&pieces).unwrap_or_else(|error| panic!("{script}: {error}"))
}
