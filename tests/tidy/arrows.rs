//! Which file uses which: arrows between files, the circles that they make, and the file in which
//! a path ends.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, Written};

/// A name is imported from a file that imports it at most so often.
const HOPS_MAX: usize = 8;

/// All files, and where their paths lead.
pub struct Tree<'a> {
    sources: &'a [Source],
    /// The files by their modules.
    modules: BTreeMap<Vec<&'a str>, usize>,
}

impl<'a> Tree<'a> {
    pub fn new(sources: &'a [Source]) -> Tree<'a> {
        let modules = sources.iter().enumerate();
        Tree { sources, modules: modules.map(|(file, it)| (it.module(), file)).collect() }
    }

    /// The file that defines what a path in `file` leads to, and its name there: none for a module.
    /// None if it is not of the crate.
    pub fn target(&self, file: usize, path: &[String]) -> Option<(usize, Option<String>)> {
        self.follow(file, path, 0)
    }

    /// The same for a name alone. A name that no `use` brings is the file's own.
    pub fn target_of_name(&self, file: usize, name: &str) -> (usize, String) {
        match self.sources[file].names.get(name).and_then(|path| self.target(file, path)) {
            Some((file, found)) => (file, found.unwrap_or_else(|| name.to_owned())),
            None => (file, name.to_owned()),
        }
    }

    fn follow(&self, file: usize, path: &[String], hops: usize) -> Option<(usize, Option<String>)> {
        let absolute = self.absolute(file, path, hops)?;
        let segments: Vec<&str> = absolute.iter().map(String::as_str).collect();
        let known = (0..=segments.len()).rev().find(|end| {
            self.modules.contains_key(&segments[..*end]) // The crate's root has no segments.
        })?;
        let module = self.modules[&segments[..known]];
        let Some(name) = segments.get(known) else { return Some((module, None)) };
        let source = &self.sources[module];
        if hops < HOPS_MAX {
            if let Some(next) = source.names.get(*name) {
                let next = [next, &absolute[known + 1..]].concat();
                if let Some(found) = self.follow(module, &next, hops + 1) {
                    return Some(found);
                }
            }
        }
        Some((module, Some((*name).to_owned())))
    }

    /// The path from the crate's root. None if it leads out of the crate.
    fn absolute(&self, file: usize, path: &[String], hops: usize) -> Option<Written> {
        let own = self.sources[file].module();
        let owned = |module: &[&str]| module.iter().map(|name| (*name).to_owned()).collect();
        let (first, rest) = path.split_first()?;
        let mut start: Written = match first.as_str() {
            "crate" => Written::new(),
            "self" => owned(&own),
            "super" => {
                let up = path.iter().take_while(|name| *name == "super").count();
                let base: Written = owned(&own[..own.len().checked_sub(up)?]);
                return Some([&base, &path[up..]].concat());
            }
            name if self.modules.contains_key(&[&own[..], &[name]].concat()) => {
                let mut start: Written = owned(&own);
                start.push(name.to_owned());
                start
            }
            name => {
                let brought = self.sources[file].names.get(name).filter(|it| it[0] != name)?;
                if hops >= HOPS_MAX {
                    return None;
                }
                self.absolute(file, brought, hops + 1)?
            }
        };
        start.extend(rest.iter().cloned());
        Some(start)
    }

    /// The files that a file uses: not itself, and not the faces of the folders that it is in.
    fn uses(&self, file: usize) -> BTreeSet<usize> {
        let source = &self.sources[file];
        let own = source.module();
        let paths = source.paths.iter().filter_map(|path| self.target(file, path));
        let targets = paths.map(|(target, _)| target);
        targets.filter(|target| !own.starts_with(&self.sources[*target].module())).collect()
    }

    /// Each file with the files that it uses.
    pub fn arrows(&self) -> Vec<BTreeSet<usize>> {
        (0..self.sources.len()).map(|file| self.uses(file)).collect()
    }

    /// Files that use each other, directly or through others: each circle with its files.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let arrows = self.arrows();
        let reached: Vec<_> = (0..arrows.len()).map(|file| reached(&arrows, file)).collect();
        let mut circles = BTreeSet::new();
        for file in 0..arrows.len() {
            let together = reached[file].iter().filter(|other| reached[**other].contains(&file));
            let circle: Vec<_> = together.map(|file| self.sources[*file].path.clone()).collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    /// Which files use files of another part: `FILE uses FILE`. A part is a name with the
    /// beginnings of its paths; a file belongs to the part with the longest one. An arrow from a
    /// part to one of `allowed` is left out.
    pub fn arrows_between(
        &self,
        parts: &[(&str, &[&str])],
        allowed: &[(&str, &str)],
    ) -> Vec<String> {
        let part = |file: usize| {
            let path = &self.sources[file].path;
            let own =
                parts.iter().flat_map(|(name, paths)| paths.iter().map(move |it| (*name, it)));
            let own = own.filter(|(_, start)| path.starts_with(**start));
            own.max_by_key(|(_, start)| start.len()).map(|(name, _)| name)
        };
        let mut found = Vec::new();
        for (file, targets) in self.arrows().into_iter().enumerate() {
            let Some(from) = part(file) else { continue };
            for target in targets {
                let is_free = |to: &str| to == from || allowed.contains(&(from, to));
                if part(target).is_some_and(|to| !is_free(to)) {
                    found.push(format!(
                        "{} uses {}",
                        self.sources[file].path, self.sources[target].path
                    ));
                }
            }
        }
        found
    }
}

/// The files that one reaches along the arrows.
fn reached(arrows: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<usize> = arrows[from].iter().copied().collect();
    while let Some(file) = next.pop() {
        if reached.insert(file) {
            next.extend(arrows[file].iter().copied());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::super::source::{Source, sources};
    use super::Tree;

    fn parsed(files: &[(&str, &str)]) -> Vec<Source> {
        let owned = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        sources(&owned.collect::<Vec<_>>())
    }

    /// Each file with those that it uses, in the order of the files.
    fn arrows(files: &[(&str, &str)]) -> String {
        let sources = parsed(files);
        let arrows = Tree::new(&sources).arrows().into_iter().enumerate();
        let lines = arrows.filter(|(_, targets)| !targets.is_empty()).map(|(file, targets)| {
            let targets: Vec<_> = targets.iter().map(|file| sources[*file].path.as_str()).collect();
            format!("{} -> {}", sources[file].path, targets.join(" "))
        });
        lines.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn arrow_leads_to_the_file_that_defines_the_name() {
        let face =
            ("a/mod.rs", "mod one; mod two; pub use one::One; pub(crate) use two as second;");
        let (one, two) = (("a/one.rs", "pub struct One;"), ("a/two.rs", "pub fn two() {}"));
        let found = |text: &str| {
            let all = arrows(&[("b.rs", text), one, two, face, ("lib.rs", "pub use a::One;")]);
            let own = all.split(", ").find(|line| line.starts_with("b.rs"));
            own.and_then(|line| line.split("-> ").nth(1)).unwrap_or_default().to_owned()
        };
        assert_eq!(found("use crate::a::One;"), "a/one.rs");
        assert_eq!(found("use crate::a::{one, two::*};"), "a/one.rs a/two.rs");
        assert_eq!(found("use crate::One as O;"), "a/one.rs");
        assert_eq!(found("use super::a::Other;"), "a/mod.rs");
        assert_eq!(found("use crate::a; fn f() { a::second::two() }"), "a/two.rs a/mod.rs");
        assert_eq!(found("fn f() { assert!(1 > 0, \"{}\", crate::a::two::two()) }"), "a/two.rs");
        assert_eq!(
            found("mod inner { use super::super::a::One; fn f(_: &super::B) {} }"),
            "a/one.rs"
        );
        assert_eq!(found("use std::fmt; use log::{debug, warn}; struct B(fmt::Result);"), "");
        assert_eq!(found("#[cfg(test)] mod tests { use crate::a::One; }"), "");
        assert_eq!(found("#[cfg(test)] use crate::a::One;"), "");
    }

    #[test]
    fn files_may_use_their_own_folders() {
        let face = ("a/mod.rs", "mod one; use one::One; pub struct Face(One);");
        let files = [face, ("a/one.rs", "use super::Face; pub struct One(Option<Box<Face>>);")];
        assert_eq!(arrows(&files), "a/mod.rs -> a/one.rs");
        assert_eq!(Tree::new(&parsed(&files)).circles(), [[""; 0]; 0]);
    }

    #[test]
    fn circle_is_found_through_other_files() {
        let chain = [("a.rs", "use crate::b::B;"), ("b.rs", "use super::c::C;"), ("c.rs", "")];
        assert_eq!(Tree::new(&parsed(&chain)).circles(), [[""; 0]; 0]);
        let circle =
            [chain[0], chain[1], ("c.rs", "fn f(_: crate::a::A) {}"), ("d.rs", "use crate::a::A;")];
        assert_eq!(Tree::new(&parsed(&circle)).circles(), [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn parts_use_others_only_where_they_may() {
        let parts: [(&str, &[&str]); 2] =
            [("wait", &["p/wait/", "p/n/waits.rs"]), ("nodes", &["p/n/"])];
        let files = [
            ("p/wait/mod.rs", "use crate::p::n::Node; use crate::p::leaf::Leaf;"),
            ("p/n/mod.rs", "pub mod waits; pub struct Node(waits::Waits);"),
            ("p/n/waits.rs", "pub struct Waits;"),
            ("p/leaf.rs", "use super::wait::Queues;"),
        ];
        let sources = parsed(&files);
        let found = Tree::new(&sources).arrows_between(&parts, &[("wait", "nodes")]);
        assert_eq!(found, ["p/n/mod.rs uses p/n/waits.rs"]);
        let found = Tree::new(&sources).arrows_between(&parts, &[]);
        assert_eq!(found, ["p/wait/mod.rs uses p/n/mod.rs", "p/n/mod.rs uses p/n/waits.rs"]);
    }
}
