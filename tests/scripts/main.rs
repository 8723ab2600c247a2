//! The scripts: the texts that are sent, how long they are, and what the build refuses.

#![allow(missing_docs)]

#[path = "../../build/lua.rs"]
mod lua;

use std::fs;
use std::path::{Path, PathBuf};

use lua::{compose, needs};

/// The scripts, as they are sent.
#[allow(dead_code, reason = "a table has all of them")]
mod scripts {
    include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
}

/// Overwrites `sent.txt`, where this variable is set.
const UPDATE: &str = "MUXLOCK_UPDATE_SCRIPTS";

/// The most bytes of each script: what it was before it had comments. Lower them, and never raise
/// one: a script is sent each time that it runs.
const BYTES_MAX: [(&str, usize); 24] = [
    ("RELEASE", 88),
    ("EXTEND", 159),
    ("EXTEND_OR_SET", 257),
    ("ACQUIRE_FENCED", 546),
    ("RAISE", 303),
    ("INSPECT", 175),
    ("FREE_ALL", 138),
    ("FREE_SHARED", 323),
    ("FREE_AS", 785),
    ("LOOK_AS", 747),
    ("TAKE_ALL", 471),
    ("KEEP_ALL", 595),
    ("TAKE_SHARED", 578),
    ("KEEP_SHARED", 868),
    ("TAKE_EXCLUSIVE", 567),
    ("TAKE_SLOT", 387),
    ("TAKE_AS", 986),
    ("KEEP_AS", 1013),
    ("MARKER", 203),
    ("QUEUE_UP", 746),
    ("HAND_ON", 654),
    ("STEP_OUT", 698),
    ("TRIAL", 370),
    ("TRIAL_FIRST", 475),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Each piece, by its name, with its text.
fn pieces() -> Vec<(String, String)> {
    let files = fs::read_dir(root().join("src/scripts")).expect("the folder is there");
    let paths = files.map(|file| file.expect("the folder is readable").path());
    let named = |path: PathBuf| {
        let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("a piece is text"))
    };
    paths.map(named).collect()
}

/// A text in the list: with line ends in place of the blanks before some words.
fn section(name: &str, text: &str) -> String {
    let words = ["local", "if", "while", "return", "end", "else"];
    let broken = |text: String, word| text.replace(&format!(" {word}"), &format!("\n{word}"));
    let lines = words.into_iter().fold(text.to_owned(), broken);
    format!("== {name}, {} bytes\n{lines}\n", text.len())
}

#[test]
fn texts_are_those_of_the_list() {
    let sent = scripts::ALL.map(|(name, text)| section(name, text)).join("\n");
    let path = root().join("tests/scripts/sent.txt");
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, &sent).expect("the list can be written");
    }
    let listed = fs::read_to_string(&path).expect("the list is there");
    let new = sent.split("== ").find(|section| !listed.contains(*section));
    let advice = format!("if it is meant: {UPDATE}=1 cargo test --test scripts");
    assert!(
        sent == listed,
        "tests/scripts/sent.txt lacks {:?}; {advice}",
        new.unwrap_or("nothing")
    );
}

#[test]
fn no_script_has_become_longer() {
    assert_eq!(scripts::ALL.map(|it| it.0), BYTES_MAX.map(|it| it.0));
    for ((name, text), (_, most)) in scripts::ALL.into_iter().zip(BYTES_MAX) {
        assert!(text.len() <= most, "{name}: {} bytes, at most {most}", text.len());
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_')
}

#[test]
fn each_piece_says_what_it_is() {
    let build = fs::read_to_string(root().join("build.rs")).expect("it is there");
    for (name, text) in pieces() {
        assert!(words(&build).any(|word| word == name), "{name} is in no script");
        assert!(text.starts_with("-- "), "{name} begins with what it does");
        assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{name} ends badly");
        let short = |line: &str| line.chars().count() <= 100 && !line.contains('\t');
        assert!(text.lines().all(short), "{name} has a line that is too long, or a tab");
        for need in needs(&text) {
            let mut code = text.lines().filter(|line| !line.trim().starts_with("--"));
            let is_used = code.any(|line| words(line).any(|word| word == need));
            assert!(is_used, "{name} does not use `{need}`");
        }
    }
}

#[test]
fn what_only_people_need_is_left_out() {
    let table = [
        ("-- A.\n\nreturn 1 -- one\n", "return 1"),
        ("local held = KEYS[1]\nreturn held", "local a=KEYS[1]return a"),
        ("local one, two = 1, 2\nreturn one - -two", "local a,b=1,2 return a- -b"),
        // A name of one letter stays, and no other one becomes it.
        ("local a, b = 1, 2\nlocal other = 3\nreturn other", "local a,b=1,2 local c=3 return c"),
        // Fields, globals and texts are what they are.
        (
            "local time = redis.call(\"TIME\")\nreturn time.time, 'time -- \\'x'",
            "local a=redis.call(\"TIME\")return a.time,'time -- \\'x'",
        ),
        ("return 1 .. \"x\" .. \"y\"", "return 1 ..\"x\"..\"y\""),
        // A backslash that is escaped escapes no quote.
        ("return '\\\\' .. \"x\"", "return'\\\\'..\"x\""),
        ("return not (1 == 2) or nil", "return not(1==2)or nil"),
        // The same name in two blocks is the same letter.
        (
            "if 1 then local x1 = 1 end\nif 1 then local x1 = 2 end",
            "if 1 then local a=1 end if 1 then local a=2 end",
        ),
        (
            "local i1 = 0\nwhile i1 < 2 do\n  i1 = i1 + 1\nend\nreturn #KEYS",
            "local a=0 while a<2 do a=a+1 end return#KEYS",
        ),
        (
            "if 1 then\n  return 1\nelseif 2 then\n  return 2\nelse\n  return {3, 4}\nend",
            "if 1 then return 1 elseif 2 then return 2 else return{3,4}end",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(compose(&[("piece", text)]).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn pieces_use_what_they_list() {
    let pieces = [
        ("one", "local time, other = 1, 2"),
        ("two", "-- Needs: time.\nlocal now = time"),
        ("three", "-- Needs: now, other.\nreturn now + other"),
    ];
    let text = "local a,b=1,2 local c=a return c+b";
    assert_eq!(compose(&pieces).as_deref(), Ok(text));
    let refused = |pieces: &[(&str, &str)]| compose(pieces).expect_err("it is refused");
    let [one, two, three] = pieces;
    assert_eq!(
        refused(&[two, three]),
        "two.lua:1: it needs `time`, which nothing before it declares"
    );
    assert_eq!(
        refused(&[one, three]),
        "three.lua:1: it needs `now`, which nothing before it declares"
    );
    assert_eq!(
        refused(&[one, ("two", "\nreturn time")]),
        "two.lua:2: `time` is missing in `-- Needs:`"
    );
    assert_eq!(
        refused(&[one, ("two", "local time = 3")]),
        "two.lua:1: `time` has another meaning already"
    );
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    let table = [
        ("return other", "`other` is declared nowhere"),
        ("other = 1", "`other` is declared nowhere"),
        ("local held = held", "`held` is declared nowhere"),
        ("if 1 then local held = 1 end\nreturn held", "`held` is declared nowhere"),
        ("local held = 1\nlocal held = 2", "`held` has another meaning already"),
        ("local held = 1\nif 1 then local held = 2 end", "`held` has another meaning already"),
        ("local held, held = 1, 2", "`held` has another meaning already"),
        ("local type = 1", "`type` has another meaning already"),
        ("local KEYS = 1", "`KEYS` has another meaning already"),
        ("for i = 1, 2 do end", "`for` is not known here"),
        ("goto other", "`goto` is not known here"),
        ("local function f() end", "`function` is not known here"),
        ("repeat until 1", "`repeat` is not known here"),
        ("--[[ long ]]", "a long bracket, or `...`, is not known here"),
        ("return [[long]]", "a long bracket, or `...`, is not known here"),
        ("return [==[long]==]", "a long bracket, or `...`, is not known here"),
        ("return ...", "a long bracket, or `...`, is not known here"),
        ("return 1.5", "a number that is not whole and in decimal is not known here"),
        ("return 0x1f", "a number that is not whole and in decimal is not known here"),
        ("return 1or 2", "a number that is not whole and in decimal is not known here"),
        ("return \"open", "a text that does not end in its line is not known here"),
        ("return \"open\\\"", "a text that does not end in its line is not known here"),
        ("return KEYS:len()", "`:` is not known here"),
        ("local held = 1\nreturn {held = 2}", "a field by its name is not known here"),
        ("return 1\nend", "`end` ends no block"),
        ("redis.call(\"TIME\")\n(redis.call)(\"TIME\")", "`(` would belong to the line before"),
    ];
    for (text, expected) in table {
        // The mistake is in the last line.
        let line = text.lines().count() + 1;
        let error = compose(&[("piece", &format!("\n{text}"))]).expect_err(text);
        assert_eq!(error, format!("piece.lua:{line}: {expected}"), "{text}");
    }
    let error = compose(&[("piece", "if 1 then return 2")]).expect_err("it has no end");
    assert_eq!(error, "piece has a block without an end");
    let many: String = (0..60).map(|i| format!("local name{i} = 1\n")).collect();
    let error = compose(&[("piece", &many)]).expect_err("they are too many");
    assert_eq!(error, "there are more names than letters");
}
