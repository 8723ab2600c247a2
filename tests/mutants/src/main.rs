//! Usage: mutants LIST TREE FATES TESTS
//! LIST is what `cargo mutants --list --json` says; TREE a copy of the source, which is changed in
//! place until it builds. FATES gets each change's number, its name, and what became of it:
//! `woven`, `unviable` or `apart`; TESTS the name of each test and its program. In these programs,
//! the change whose number is in `MUXLOCK_MUTANT` is in effect.
//!
//! One build of all changes costs far less than a build of each.

mod weave;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use serde_json::Value;
use weave::{Change, Genre, Woven};

/// The module that says which change is in effect.
const MODULE: &str = "\
//! Which change is in effect.
use std::sync::OnceLock;

static AT: OnceLock<u32> = OnceLock::new();

#[inline]
pub(crate) fn at() -> u32 {
    *AT.get_or_init(|| {
        std::env::var(\"MUXLOCK_MUTANT\").map_or(0, |id| id.parse().expect(\"it is a number\"))
    })
}
";
/// What scripts/mutants runs.
const TARGETS: [&str; 5] =
    ["--lib", "--test=engine", "--test=sim", "--test=servers", "--test=masters"];
/// Each build shows the errors of one pass of the compiler.
const BUILDS_MAX: usize = 40;
/// The errors that a value or operator of the wrong type or name leads to. Others may come from
/// how a change is woven.
const UNVIABLE: [&str; 14] = [
    "E0061", "E0107", "E0277", "E0308", "E0368", "E0369", "E0412", "E0423", "E0425", "E0432",
    "E0433", "E0599", "E0600", "E0614",
];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A file's text as it was, and its changes.
struct Source {
    text: String,
    changes: Vec<Change>,
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [list, tree, fates, tests] = &args[..] else {
        return Err("usage: mutants LIST TREE FATES TESTS".into());
    };
    let tree = Path::new(tree);
    let list: Value = serde_json::from_str(&fs::read_to_string(list)?)?;
    let list = list.as_array().ok_or("the list is none")?;

    fs::write(tree.join("src/mutant.rs"), MODULE)?;
    let root = tree.join("src/lib.rs");
    fs::write(&root, fs::read_to_string(&root)? + "\nmod mutant;\n")?;

    let mut sources = BTreeMap::new();
    let mut names = Vec::new();
    for (id, entry) in (1..).zip(list) {
        names.push(text(entry, "/name")?);
        let file = text(entry, "/file")?;
        if !sources.contains_key(file) {
            let text = fs::read_to_string(tree.join(file))?;
            sources.insert(file, Source { text, changes: Vec::new() });
        }
        let source = sources.get_mut(file).expect("it was inserted");
        source.changes.extend(change(id, entry, &source.text)?);
    }

    // What cannot be built that way, and whether the change itself is the cause.
    let mut dropped: BTreeMap<u32, bool> = BTreeMap::new();
    for _ in 0..BUILDS_MAX {
        let mut woven = BTreeMap::new();
        for (file, source) in &sources {
            let changes = source.changes.iter().filter(|change| !dropped.contains_key(&change.id));
            let of_file = weave::weave(&source.text, &changes.cloned().collect::<Vec<_>>())?;
            fs::write(tree.join(file), &of_file.text)?;
            woven.insert(*file, of_file);
        }
        let unparsed = woven.values().flat_map(|woven| &woven.unparsed);
        dropped.extend(unparsed.map(|id| (*id, true)));
        let errors = match build(tree)? {
            Built::Tests(programs) => {
                fs::write(tests, programs)?;
                return Ok(fs::write(fates, fates_of(&names, &woven, &dropped))?);
            }
            Built::Errors(errors) => errors,
        };
        eprintln!("mutants: {} errors; once more without what caused them", errors.len());
        for error in &errors {
            dropped.extend(blame(error, &woven)?);
        }
    }
    Err("it does not build".into())
}

fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str> {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.ok_or_else(|| format!("no {pointer} in {value}").into())
}

fn number(value: &Value, pointer: &str) -> Result<usize> {
    let number = value.pointer(pointer).and_then(Value::as_u64);
    Ok(number.ok_or_else(|| format!("no {pointer} in {value}"))?.try_into()?)
}

/// `None` if changes of this kind cannot be woven.
fn change(id: u32, entry: &Value, source: &str) -> Result<Option<Change>> {
    let genre = match text(entry, "/genre")? {
        "FnValue" => Genre::FnValue,
        "BinaryOperator" | "UnaryOperator" => Genre::Operator,
        "MatchArmGuard" => Genre::Guard,
        "MatchArm" => Genre::Arm,
        _ => return Ok(None),
    };
    let offset = |end: &str| -> Result<usize> {
        let line = number(entry, &format!("/span/{end}/line"))?;
        let column = number(entry, &format!("/span/{end}/column"))?;
        let before: usize = source.split_inclusive('\n').take(line - 1).map(str::len).sum();
        // Columns count characters.
        let columns = source[before..].chars().take(column - 1).map(char::len_utf8);
        Ok(before + columns.sum::<usize>())
    };
    Ok(Some(Change {
        id,
        range: offset("start")?..offset("end")?,
        replacement: text(entry, "/replacement")?.to_owned(),
        return_type: text(entry, "/function/return_type").unwrap_or_default().to_owned(),
        genre,
    }))
}

fn fates_of(
    names: &[&str],
    woven: &BTreeMap<&str, Woven>,
    dropped: &BTreeMap<u32, bool>,
) -> String {
    let woven = woven.values().flat_map(|woven| &woven.places).flat_map(|(ids, _)| ids);
    let woven: BTreeSet<u32> = woven.copied().collect();
    let fate = |(id, name): (u32, &&str)| {
        let fate = match dropped.get(&id) {
            Some(true) => "unviable",
            None if woven.contains(&id) => "woven",
            _ => "apart",
        };
        format!("{id}\t{name}\t{fate}\n")
    };
    (1..).zip(names).map(fate).collect()
}

enum Built {
    /// In each line a name and a program.
    Tests(String),
    Errors(Vec<Value>),
}

fn build(tree: &Path) -> Result<Built> {
    let output = Command::new(env::var("CARGO").as_deref().unwrap_or("cargo"))
        .args(["test", "--no-run", "--quiet", "--profile=mutants", "--message-format=json"])
        .args(TARGETS)
        .current_dir(tree)
        .stderr(Stdio::null())
        .output()?;
    let mut errors = Vec::new();
    let mut programs = String::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let mut message: Value = serde_json::from_str(line)?;
        if let Some(program) = message["executable"].as_str() {
            let kind = text(&message, "/target/kind/0")?;
            let name = if kind == "lib" { "lib" } else { text(&message, "/target/name")? };
            programs += &format!("{name}\t{program}\n");
        }
        let has_spans = message["message"]["spans"].as_array().is_some_and(|all| !all.is_empty());
        if message["message"]["level"] == "error" && has_spans {
            errors.push(message["message"].take());
        }
    }
    match (errors.is_empty(), output.status.success()) {
        (true, true) => Ok(Built::Tests(programs)),
        (true, false) => Err("cargo test --no-run failed without an error in the source".into()),
        (false, _) => Ok(Built::Errors(errors)),
    }
}

/// The changes that an error comes from, and whether they themselves are the cause.
fn blame(error: &Value, woven: &BTreeMap<&str, Woven>) -> Result<Vec<(u32, bool)>> {
    let spans = error["spans"].as_array().expect("there are spans");
    let is_of_change =
        text(error, "/code/code").is_ok_and(|code| UNVIABLE.binary_search(&code).is_ok());
    let (primary, secondary): (Vec<_>, Vec<_>) =
        spans.iter().partition(|span| span["is_primary"] == true);
    for (spans, is_cause) in [(&primary, is_of_change), (&secondary, false)] {
        for span in spans {
            let Some((woven, at)) = place(span, woven)? else { continue };
            let inside = woven.words.iter().filter(|(_, words)| contains(words, &at));
            let ids: Vec<_> = inside.map(|(id, _)| (*id, is_cause)).collect();
            if !ids.is_empty() {
                return Ok(ids);
            }
        }
    }
    // Something about how the changes are woven: all of the innermost place.
    for span in spans {
        let Some((woven, at)) = place(span, woven)? else { continue };
        let around = woven.places.iter().filter(|(_, range)| contains(range, &at));
        if let Some((ids, _)) = around.min_by_key(|(_, range)| range.len()) {
            return Ok(ids.iter().map(|id| (*id, false)).collect());
        }
    }
    Err(error["rendered"].as_str().unwrap_or("an error without words").into())
}

/// The file and bytes in which something is; that of a macro's words is where it is called.
fn place<'a>(
    mut span: &Value,
    woven: &'a BTreeMap<&str, Woven>,
) -> Result<Option<(&'a Woven, Range<usize>)>> {
    while let Some(expansion) = span["expansion"].as_object() {
        span = &expansion["span"];
    }
    let bytes = number(span, "/byte_start")?..number(span, "/byte_end")?;
    Ok(woven.get(text(span, "/file_name")?).map(|woven| (woven, bytes)))
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
