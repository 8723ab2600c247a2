//! Links between the pages of the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::{files_below, root};

/// The lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of a page's links to this repository.
fn links(text: &str) -> Vec<String> {
    let lines: Vec<_> = prose(text).collect();
    let text = lines.join("\n");
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let defined = lines.iter().filter(|line| line.starts_with('['));
    let defined = defined.filter_map(|line| line.split_once("]: ")).map(|(_, target)| target);
    inline.chain(defined).filter(|it| !it.contains("://")).map(str::to_owned).collect()
}

/// The anchors of a page's headings, as GitHub and rustdoc make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let headings = headings.filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
    let is_kept = |it: &char| it.is_alphanumeric() || "-_ ".contains(*it);
    let kept = headings.map(|heading| heading.chars().filter(is_kept).collect::<String>());
    kept.map(|heading| heading.trim().to_lowercase().replace(' ', "-")).collect()
}

/// The path from the root of the repository to a file that a page names from its own folder.
fn resolve(page: &str, file: &str) -> PathBuf {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            part => path.push(part),
        }
    }
    path
}

#[test]
fn every_link_leads_somewhere() {
    let pages: BTreeMap<_, _> = files_below("", ".md").into_iter().collect();
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in links(text) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let file = if file.is_empty() { PathBuf::from(page) } else { resolve(page, file) };
            let target = pages.get(&*file.to_string_lossy());
            let has_anchor = || target.is_some_and(|text| anchors(text).contains(anchor));
            if !root().join(&file).exists() || !anchor.is_empty() && !has_anchor() {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert_eq!(broken, [""; 0]);
}

#[test]
fn links_and_anchors_are_found() {
    let text = "See [a](b.md#c), [d](../e.rs)\n```\n[x](y.md)\n```\n[f]: g.md\n[h](https://i.k)\n";
    assert_eq!(links(text), ["b.md#c", "../e.rs", "g.md"]);
    let headings = "# One: two `three`\n```sh\n# no heading\n```\n## It's-a\n#no\n";
    assert_eq!(anchors(headings), ["one-two-three", "its-a"].map(str::to_owned).into());
    assert_eq!(resolve("docs/page.md", "../e/f.rs"), Path::new("e/f.rs"));
}
