//! Which file uses which, and the file in which a path ends.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, Written};

/// A name is imported from a file that imports it at most so often.
const HOPS_MAX: usize = 8;

/// All files of a crate, and where their paths lead.
pub struct Tree {
    pub sources: Vec<Source>,
    /// The files by their modules.
    modules: BTreeMap<Written, usize>,
}

impl Tree {
    /// The files are given by path and text.
    pub fn new(files: &[(String, String)]) -> Tree {
        let sources: Vec<_> = files.iter().map(|(path, text)| Source::parse(path, text)).collect();
        let modules = sources.iter().map(|it| it.module().into_iter().map(str::to_owned).collect());
        Tree { modules: modules.zip(0..).collect(), sources }
    }

    /// Each path of a file from the crate's root, but those that lead out of the crate.
    pub fn paths(&self, file: usize) -> impl Iterator<Item = Written> {
        self.sources[file].paths.iter().filter_map(move |path| self.absolute(file, path, 0))
    }

    /// The path from the crate's root. None if it leads out of the crate.
    fn absolute(&self, file: usize, path: &[String], hops: usize) -> Option<Written> {
        let own: Written = self.sources[file].module().into_iter().map(str::to_owned).collect();
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([&own, rest].concat()),
            "super" => {
                let up = path.iter().take_while(|name| *name == "super").count();
                Some([&own[..own.len().checked_sub(up)?], &path[up..]].concat())
            }
            _ if self.modules.contains_key(&[&own, &path[..1]].concat()) => {
                Some([&own, path].concat())
            }
            name => {
                let imported = self.sources[file].names.get(name).filter(|it| it[0] != name)?;
                let imported = [imported, rest].concat();
                if hops < HOPS_MAX { self.absolute(file, &imported, hops + 1) } else { None }
            }
        }
    }

    /// The file that defines what a path from the crate's root leads to.
    fn file_of(&self, path: &[String], hops: usize) -> usize {
        let known = (0..=path.len()).rev().find(|end| self.modules.contains_key(&path[..*end]));
        let known = known.expect("the crate has a root");
        let file = self.modules[&path[..known]];
        let imported = path.get(known).and_then(|name| self.sources[file].names.get(name));
        let further = imported.filter(|_| hops < HOPS_MAX).and_then(|imported| {
            let next = [imported, &path[known + 1..]].concat();
            self.absolute(file, &next, hops + 1)
        });
        further.map_or(file, |path| self.file_of(&path, hops + 1))
    }

    /// The files that a file uses: not itself, and not the faces of the folders that it is in.
    pub fn uses(&self, file: usize) -> BTreeSet<usize> {
        let own = self.sources[file].module();
        let used = self.paths(file).map(|path| self.file_of(&path, 0));
        used.filter(|used| !own.starts_with(&self.sources[*used].module())).collect()
    }

    /// Each pair of a file and one that it uses, as paths.
    pub fn arrows(&self) -> Vec<(&str, &str)> {
        let path = |file: usize| self.sources[file].path.as_str();
        let files = 0..self.sources.len();
        files
            .flat_map(|file| self.uses(file).into_iter().map(move |it| (path(file), path(it))))
            .collect()
    }

    /// The files that use each other, directly or through others.
    pub fn in_circles(&self) -> Vec<&str> {
        let uses: Vec<_> = (0..self.sources.len()).map(|file| self.uses(file)).collect();
        let in_circle = (0..uses.len()).filter(|file| {
            let (mut reached, mut next) = (BTreeSet::new(), uses[*file].clone());
            while let Some(other) = next.pop_first() {
                if reached.insert(other) {
                    next.extend(&uses[other]);
                }
            }
            reached.contains(file)
        });
        in_circle.map(|file| self.sources[file].path.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Tree;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().chain(&[("lib.rs", "pub use a::One;")]);
        let owned = files.map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Tree::new(&owned.collect::<Vec<_>>())
    }

    #[test]
    fn arrow_leads_to_the_file_that_defines_the_name() {
        let face =
            ("a/mod.rs", "mod one; mod two; pub use one::One; pub(crate) use two as second;");
        let (one, two) = (("a/one.rs", "pub struct One;"), ("a/two.rs", "pub fn two() {}"));
        let found = |text: &str| {
            let tree = tree(&[("b.rs", text), one, two, face]);
            let own = tree.arrows().into_iter().filter(|(from, _)| *from == "b.rs");
            own.map(|(_, to)| to).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found("use crate::a::One;"), "a/one.rs");
        assert_eq!(found("use crate::a::{one, two::*};"), "a/one.rs a/two.rs");
        assert_eq!(found("use crate::a::two::{self}; use crate::One as O;"), "a/one.rs a/two.rs");
        assert_eq!(found("use super::a::Other;"), "a/mod.rs");
        assert_eq!(found("use crate::a; fn f() { a::second::two() }"), "a/two.rs a/mod.rs");
        assert_eq!(found("fn f() { assert!(1 > 0, \"{}\", crate::a::two::two()) }"), "a/two.rs");
        assert_eq!(
            found("mod inner { use super::super::a::One; fn f(_: &super::B) {} }"),
            "a/one.rs"
        );
        assert_eq!(found("use std::fmt; use log::{debug, warn}; struct B(fmt::Result);"), "");
        assert_eq!(found("#[cfg(test)] mod tests { use crate::a::One; }"), "");
        assert_eq!(found("#[cfg(all(test, unix))] #[cfg(unix)] use crate::a::One;"), "");
        assert_eq!(found("#[cfg(not(test))] use crate::a::One; // crate::a::two"), "a/one.rs");
    }

    #[test]
    fn circle_is_found_through_other_files() {
        let chain = [("a.rs", "use crate::b::B;"), ("b.rs", "use super::c::C;"), ("c.rs", "")];
        assert_eq!(tree(&chain).in_circles(), [""; 0]);
        let user = ("d.rs", "use crate::a::A;");
        let circle = [chain[0], chain[1], ("c.rs", "fn f(_: crate::a::A) {}"), user];
        assert_eq!(tree(&circle).in_circles(), ["a.rs", "b.rs", "c.rs"]);
        let face = ("a/mod.rs", "mod one; use one::One; pub struct Face(One);");
        let part = ("a/one.rs", "use super::Face; pub struct One(Option<Box<Face>>);");
        assert_eq!(tree(&[face, part]).in_circles(), [""; 0]);
    }
}
