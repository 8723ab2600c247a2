//! The pages for users: their size, their links, and that rustdoc shows each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::prose::without_code_blocks;
use super::{files_in, text_of};

const LINES_MAX: usize = 200;
const README_WORDS_MAX: usize = 1_000;
const GUARANTEES_LINES_MAX: usize = 90;

/// Pages for those who change muxlock; the others are for its users.
pub const INSIDE: [&str; 2] = ["docs/rules.md", "docs/lost-commands.md"];
/// The page of the package with the tool.
pub const TOOLS: &str = "cli/README.md";
/// Pages outside `docs` that have links.
const OTHERS: [&str; 9] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "RELEASING.md",
    TOOLS,
    "tests/README.md",
    "tests/mutants.md",
];

/// The path of each page in `docs`, with its text.
pub fn guide() -> Vec<(String, String)> {
    let pages = files_in("docs", ".md");
    assert!(pages.len() > 20, "the pages were found");
    pages
}

/// The pages in `docs` for users.
pub fn user_pages() -> Vec<(String, String)> {
    let mut pages = guide();
    pages.retain(|(path, _)| !INSIDE.contains(&path.as_str()));
    pages
}

/// Anchors of rustdoc's own, so that it gives headings of that name another one.
const TAKEN_BY_RUSTDOC: [&str; 4] = ["settings", "search", "help", "modules"];

/// A link to a file of the repository.
struct Link {
    /// From the root of the repository.
    file: String,
    anchor: Option<String>,
}

/// The links of a page that lead to no other host.
fn links(path: &str, text: &str) -> Vec<Link> {
    let text = without_code_blocks(text);
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let inline = inline.map(|(target, _)| target.to_owned());
    let defined = text.lines().filter(|line| line.starts_with('['));
    let defined = defined.filter_map(|line| line.split_once("]: ")).map(|(_, it)| it.to_owned());
    let own = inline.chain(defined).filter(|target| !target.contains("://"));
    own.map(|target| resolve(path, &target)).collect()
}

fn resolve(page: &str, target: &str) -> Link {
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor.to_owned())),
        None => (target, None),
    };
    let mut resolved = PathBuf::from(page);
    if !file.is_empty() {
        resolved.pop();
        for part in Path::new(file).components() {
            match part {
                Component::ParentDir => _ = resolved.pop(),
                part => resolved.push(part),
            }
        }
    }
    Link { file: resolved.to_string_lossy().into_owned(), anchor }
}

/// The anchors of a page's headings, as GitHub and rustdoc make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let text = without_code_blocks(text);
    let headings = text.lines().filter_map(|line| {
        let heading = line.trim_start_matches('#');
        (heading.len() < line.len()).then(|| heading.strip_prefix(' ')).flatten()
    });
    headings.map(anchor).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|it| it.is_alphanumeric() || "-_ ".contains(*it));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

/// Whether a file of the repository is published with the package in this folder, which is empty or
/// ends with `/`.
fn is_packaged_in(folder: &str, path: &str) -> bool {
    let Some(path) = path.strip_prefix(folder) else {
        return false;
    };
    let manifest = text_of(&format!("{folder}Cargo.toml"));
    let (_, included) = manifest.split_once("include = [").expect("the package lists its files");
    let (included, _) = included.split_once(']').expect("the list ends");
    let mut starts = included.split('"').skip(1).step_by(2).map(|it| it.trim_start_matches('/'));
    let is_below = |start: &str| {
        path.strip_prefix(start).is_some_and(|it| it.is_empty() || it.starts_with('/'))
    };
    path == "Cargo.toml" || starts.any(is_below)
}

#[test]
fn links_lead_somewhere_also_in_the_package() {
    let mut pages: BTreeMap<_, _> = guide().into_iter().collect();
    pages.extend(OTHERS.map(|path| (path.to_owned(), text_of(path))));
    let mut broken = Vec::new();
    let mut count = 0;
    for (path, text) in &pages {
        for Link { file, anchor } in links(path, text) {
            count += 1;
            if !super::root().join(&file).exists() {
                broken.push(format!("{path}: there is no {file}"));
            }
            let is_apart = |folder| is_packaged_in(folder, path) && !is_packaged_in(folder, &file);
            if ["", "cli/"].into_iter().any(is_apart) {
                broken.push(format!("{path}: {file} is not in the package"));
            }
            let Some(anchor) = anchor else { continue };
            let known = pages.get(&file).map(|text| anchors(text)).unwrap_or_default();
            if !known.contains(&anchor) || TAKEN_BY_RUSTDOC.contains(&anchor.as_str()) {
                broken.push(format!("{path}: {file} has no heading #{anchor}"));
            }
        }
    }
    assert!(count > 50, "{count} links were found");
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

/// The folders whose files texts name from the root of the repository.
const FOLDERS: [&str; 11] = [
    "benches/",
    "build/",
    "cli/",
    "docs/",
    "examples/",
    "fuzz/",
    "packaging/",
    "scripts/",
    "src/",
    "testbed/",
    "tests/",
];
/// Paths that stand for others, or that a script makes.
const MADE: [&str; 3] = ["src/some/file.rs", "fuzz/artifacts", "fuzz/coverage"];

/// The files and folders that a text names from the root of the repository.
fn paths(text: &str) -> BTreeSet<&str> {
    let is_in_path = |it: char| it.is_ascii_alphanumeric() || "_./-".contains(it);
    let words = text.split(|it| !is_in_path(it)).map(|word| word.trim_end_matches(['.', '-', '/']));
    words.filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder))).collect()
}

/// Links are looked at above: these are paths in text, in code and in comments.
#[test]
fn files_that_texts_name_exist() {
    let mut texts = guide();
    texts.extend(OTHERS.map(|path| (path.to_owned(), text_of(path))));
    texts.extend(files_in("scripts", ""));
    texts.extend(files_in(".github/workflows", ".yml"));
    texts.extend(["Cargo.toml", "Containerfile"].map(|path| (path.to_owned(), text_of(path))));
    texts.extend([super::library(), super::tool()].concat());
    let mut count = 0;
    let mut gone = Vec::new();
    for (of, text) in &texts {
        for path in paths(text).into_iter().filter(|path| !MADE.contains(path)) {
            count += 1;
            // The tool names its own files from its folder.
            let exists = ["", "cli/"].iter().any(|at| super::root().join(at).join(path).exists());
            if !exists {
                gone.push(format!("{of}: there is no {path}"));
            }
        }
    }
    assert!(count > 100, "{count} paths were found");
    assert!(gone.is_empty(), "\n{}\n", gone.join("\n"));
}

#[test]
fn rustdoc_shows_every_page_and_the_contents_list_it() {
    let shown = text_of("src/guide.rs");
    let (_, shown) = shown.split_once("pages! {").expect("the pages are listed");
    let shown: BTreeSet<_> = shown.split_whitespace().filter(|it| *it != "}").collect();
    let contents = links("docs/README.md", &text_of("docs/README.md"));
    let contents: BTreeSet<_> = contents.into_iter().map(|link| link.file).collect();
    for (path, _) in guide() {
        if path == "docs/README.md" {
            continue;
        }
        let module = path.trim_start_matches("docs/").trim_end_matches(".md").replace('-', "_");
        assert!(shown.contains(module.as_str()), "src/guide.rs does not show {path}");
        assert!(contents.contains(&path), "docs/README.md does not list {path}");
    }
}

#[test]
fn pages_for_users_are_short() {
    for (path, text) in user_pages().into_iter().chain([(TOOLS.to_owned(), text_of(TOOLS))]) {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{path} has {lines} lines: split it by reader");
        assert!(text.lines().all(|it| it.chars().count() <= 120), "{path} has a line over 120");
    }
    let lines = text_of("docs/guarantees.md").lines().count();
    assert!(lines <= GUARANTEES_LINES_MAX, "the contract has {lines} lines");
    let words = text_of("README.md").split_whitespace().count();
    assert!(words <= README_WORDS_MAX, "README.md has {words} words");
}

#[test]
fn links_and_anchors_are_found() {
    let text =
        "See [a](b.md#c), [d](../e.rs)\n```rust\n[x](y.md)\n```\n[f]: g.md\n[h](https://i.k)\n";
    let found = links("docs/page.md", text);
    let found: Vec<_> = found.iter().map(|it| (it.file.as_str(), it.anchor.as_deref())).collect();
    assert_eq!(found, [("docs/b.md", Some("c")), ("e.rs", None), ("docs/g.md", None)]);
    let headings = "# One: two `three`\n```sh\n# no heading\n```\n## It's-a\n#no\n";
    assert_eq!(anchors(headings), ["one-two-three", "its-a"].map(str::to_owned).into());
    assert_eq!(resolve("docs/page.md", "#own").file, "docs/page.md");
    let text = "`src/a.rs`, see docs/b-c.md. Not xsrc/d.rs: src/e/*.rs\n";
    assert_eq!(paths(text), ["docs/b-c.md", "src/a.rs", "src/e"].into());
    let is_in_library = |path| is_packaged_in("", path);
    assert!(is_in_library("docs/x.md") && is_in_library("README.md"));
    assert!(!is_in_library("tests/README.md") && !is_in_library(TOOLS));
    assert!(is_packaged_in("cli/", TOOLS) && !is_packaged_in("cli/", "docs/tool.md"));
}
