//! Sources as a parser sees them, without their tests: names, uses and paths, also in macros.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, File, ImplItem, Item, ItemUse, Macro, Pat, PatTupleStruct, UseTree};

/// A path as it is written, such as `super::Engine`.
pub type Written = Vec<String>;

/// One file of the library or the tool, without its tests.
pub struct Source {
    /// Its path below `src` or `cli/src`.
    pub path: String,
    /// What the parser made of it.
    pub file: File,
    /// What each name that a `use` brings into scope stands for.
    pub names: BTreeMap<String, Written>,
    /// All paths with more than one segment, those of `use` included.
    pub paths: Vec<Written>,
    /// All its names, apart from those of `std` in a `use`.
    pub identifiers: BTreeSet<String>,
    /// How often it has a byte or a string of bytes.
    pub byte_literals: usize,
    /// How often it takes the number out of a `Reply::Integer`, or compares it with a constant.
    pub numbers_read: usize,
}

impl Source {
    /// Panics if the text is no Rust.
    pub fn parse(path: &str, text: &str) -> Source {
        let mut file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        file.items.retain(|item| !is_for_tests(attributes(item)));
        for item in &mut file.items {
            if let Item::Impl(block) = item {
                block.items.retain(|item| match item {
                    ImplItem::Fn(function) => !is_for_tests(&function.attrs),
                    _ => true,
                });
            }
        }
        let mut found = Found::default();
        found.visit_file(&file);
        Source {
            path: path.to_owned(),
            file,
            names: found.names,
            paths: found.paths,
            identifiers: found.identifiers,
            byte_literals: found.byte_literals,
            numbers_read: found.numbers_read,
        }
    }

    /// The first of its names that is in the set, or has a word of the set in it.
    pub fn name_of(&self, set: &[&str]) -> Option<&str> {
        let is_in_set = |name: &&str| {
            let words = words(name);
            set.iter().any(|it| name == it || words.iter().any(|word| word == it))
        };
        self.identifiers.iter().map(String::as_str).find(is_in_set)
    }

    /// The module that the file is, as a path from the crate: `proto/mod.rs` is `[proto]`.
    pub fn module(&self) -> Vec<&str> {
        let path = self.path.trim_end_matches(".rs");
        let path = path.strip_suffix("/mod").unwrap_or(path);
        if path == "lib" || path == "main" { Vec::new() } else { path.split('/').collect() }
    }
}

/// The sources of these files, given by path and text. A file that is all tests is left out.
pub fn sources(files: &[(String, String)]) -> Vec<Source> {
    let files = files.iter().filter(|(path, _)| !path.ends_with("/tests.rs"));
    files.map(|(path, text)| Source::parse(path, text)).collect()
}

/// `NodeId`, `node_id` and `NODE_ID` are the words `node` and `id`.
pub fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for letter in name.chars() {
        if letter == '_' || letter.is_ascii_uppercase() && was_small {
            words.push(String::new());
        }
        was_small = !letter.is_ascii_uppercase();
        if let (Some(word), true) = (words.last_mut(), letter != '_') {
            word.push(letter.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// `cfg(test)`, alone or with other conditions.
pub fn is_for_tests(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.filter_map(|attribute| attribute.parse_args::<syn::Meta>().ok()).any(needs_test)
}

fn needs_test(condition: syn::Meta) -> bool {
    match condition {
        syn::Meta::Path(name) => name.is_ident("test"),
        syn::Meta::List(all) if all.path.is_ident("all") => {
            let parser = Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
            let conditions = all.parse_args_with(parser);
            conditions.is_ok_and(|conditions| conditions.into_iter().any(needs_test))
        }
        _ => false,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether the pattern has a variable or a constant.
fn has_name(pattern: &Pat) -> bool {
    match pattern {
        Pat::Ident(_) | Pat::Path(_) => true,
        Pat::Or(any) => any.cases.iter().any(has_name),
        Pat::Paren(inner) => has_name(&inner.pat),
        Pat::Reference(inner) => has_name(&inner.pat),
        Pat::Range(range) => {
            let ends = [&range.start, &range.end];
            ends.into_iter().flatten().any(|end| matches!(**end, syn::Expr::Path(_)))
        }
        _ => false,
    }
}

#[derive(Default)]
struct Found {
    names: BTreeMap<String, Written>,
    paths: Vec<Written>,
    identifiers: BTreeSet<String>,
    byte_literals: usize,
    numbers_read: usize,
    /// How many modules inside the file are around the present place.
    depth: usize,
}

impl Found {
    /// A module inside a file counts as the file: its first `super` is the file itself.
    fn path(&mut self, mut path: Written) {
        for _ in 0..self.depth {
            if path.first().is_some_and(|first| first == "super") {
                path[0] = "self".to_owned();
                if path.get(1).is_some_and(|second| second == "super") {
                    path.remove(0);
                }
            }
        }
        if path.len() > 1 {
            self.paths.push(path);
        }
    }

    fn tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, before)),
            UseTree::Glob(_) => self.path([before, &["*".to_owned()]].concat()),
            UseTree::Name(name) if name.ident == "self" => {
                let name = before.last().cloned().unwrap_or_default();
                self.names.insert(name, before.to_owned());
                self.path(before.to_owned());
            }
            UseTree::Name(name) => {
                self.names.insert(name.ident.to_string(), with(&name.ident));
                self.path(with(&name.ident));
            }
            UseTree::Rename(name) => {
                self.names.insert(name.rename.to_string(), with(&name.ident));
                self.path(with(&name.ident));
            }
        }
    }

    /// What is in a macro is not parsed: paths there are names with `::` between them.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Written::new();
        let mut colons = 0;
        let mut is_integer = false;
        for token in tokens {
            if let (TokenTree::Group(group), true) = (&token, is_integer) {
                let is_name = |it: &TokenTree| matches!(it, TokenTree::Ident(name) if name != "_");
                self.numbers_read += usize::from(group.stream().into_iter().any(|it| is_name(&it)));
            }
            is_integer = matches!(&token, TokenTree::Ident(name) if name == "Integer");
            match token {
                TokenTree::Ident(name) => {
                    self.identifiers.insert(name.to_string());
                    if colons < 2 {
                        self.path(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    self.byte_literals += usize::from(literal.to_string().starts_with('b'));
                    colons = 0;
                }
                TokenTree::Punct(_) => colons = 0,
            }
        }
        self.path(path);
    }
}

impl<'a> Visit<'a> for Found {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            self.depth += usize::from(module.content.is_some());
            visit::visit_item_mod(self, module);
            self.depth -= usize::from(module.content.is_some());
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let is_std = matches!(&item.tree, UseTree::Path(path) if path.ident == "std");
        if !is_std {
            self.tree(&item.tree, &[]);
            visit::visit_item_use(self, item);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_pat_tuple_struct(&mut self, pattern: &'a PatTupleStruct) {
        if pattern.path.segments.last().is_some_and(|last| last.ident == "Integer") {
            self.numbers_read += usize::from(pattern.elems.iter().any(has_name));
        }
        visit::visit_pat_tuple_struct(self, pattern);
    }

    fn visit_macro(&mut self, item: &'a Macro) {
        self.tokens(item.tokens.clone());
        visit::visit_macro(self, item);
    }

    fn visit_attribute(&mut self, _: &'a Attribute) {}

    fn visit_ident(&mut self, name: &'a proc_macro2::Ident) {
        self.identifiers.insert(name.to_string());
    }

    fn visit_lit_byte(&mut self, _: &'a syn::LitByte) {
        self.byte_literals += 1;
    }

    fn visit_lit_byte_str(&mut self, _: &'a syn::LitByteStr) {
        self.byte_literals += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, words};

    #[test]
    fn names_are_found_by_their_words() {
        assert_eq!(words("QueueUp"), ["queue", "up"]);
        assert_eq!(words("MAX_OF_QUEUE"), ["max", "of", "queue"]);
        let names = |text: &str| {
            let source = Source::parse("a.rs", text);
            source.name_of(&["debt", "Hand"]).map(str::to_owned)
        };
        assert_eq!(names("fn debt_of_set() {}").as_deref(), Some("debt_of_set"));
        assert_eq!(names("use super::Hand;").as_deref(), Some("Hand"));
        assert_eq!(names("fn f() { println!(\"{}\", x.debt()) }").as_deref(), Some("debt"));
        assert_eq!(names("use std::debt; // a debt\nfn hand_over() -> &str { \"debt\" }"), None);
        assert_eq!(names("#[cfg(test)] mod tests { fn debt() {} }"), None);
        assert_eq!(names("#[cfg(all(test, unix))] mod tests { fn debt() {} }"), None);
        assert_eq!(names("#[cfg(not(test))] fn debt() {}").as_deref(), Some("debt"));
    }

    #[test]
    fn literals_of_bytes_are_counted_in_macros_as_well() {
        let text = "/// b'x'
            fn f(a: u8) -> bool { matches!(a, b'g' | b'p') || a == b'n' || g(b\"OK\", \"OK\", 'b') }
            #[cfg(test)] mod tests { const A: u8 = b'a'; }";
        assert_eq!(Source::parse("a.rs", text).byte_literals, 4);
    }

    #[test]
    fn numbers_that_are_taken_out_of_replies_are_counted() {
        let count = |pattern: &str| {
            let text = format!(
                "fn f(a: &Reply) -> bool {{ match a {{ {pattern} => true, _ => false }} }}
                fn g(a: &Reply) -> bool {{ matches!(a, {pattern}) }}"
            );
            Source::parse("a.rs", &text).numbers_read
        };
        for pattern in ["Integer(a)", "Reply::Integer(a @ 2..)", "Some(Reply::Integer(-1 | A))"] {
            assert_eq!(count(pattern), 2, "{pattern}");
        }
        assert_eq!(count("Reply::Integer(A..)"), 2);
        for pattern in ["Reply::Integer(0 | 1)", "Reply::Integer(_)", "Reply::Integer(1..)"] {
            assert_eq!(count(pattern), 0, "{pattern}");
        }
    }
}
