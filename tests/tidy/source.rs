//! A source as its tokens show it, without its tests: the paths in it, also in macros, and the names
//! that it imports.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A path as it is written, such as `super::Engine`.
pub type Written = Vec<String>;

pub struct Source {
    /// Its path below `src`.
    pub path: String,
    /// The path that each name of a `use` stands for.
    pub names: BTreeMap<String, Written>,
    /// All paths with more than one segment.
    pub paths: Vec<Written>,
    /// How many literals are a byte or a string of bytes.
    pub byte_literals: usize,
}

impl Source {
    /// Panics if the text is no Rust.
    pub fn parse(path: &str, text: &str) -> Source {
        let tokens = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
        let (names, paths) = (BTreeMap::new(), Vec::new());
        let mut source = Source { path: path.to_owned(), names, paths, byte_literals: 0 };
        // A file of tests alone.
        if !path.ends_with("/tests.rs") {
            source.read(tokens, 0);
        }
        source
    }

    /// The module that the file is, as a path from the crate: `proto/mod.rs` is `[proto]`.
    pub fn module(&self) -> Vec<&str> {
        let path = self.path.trim_end_matches(".rs");
        let path = path.strip_suffix("/mod").unwrap_or(path);
        if path == "lib" || path == "main" { Vec::new() } else { path.split('/').collect() }
    }

    /// Reads what is inside of so many modules of the file.
    fn read(&mut self, tokens: TokenStream, depth: usize) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = &tokens[..];
        while let Some((first, after)) = rest.split_first() {
            let from_here = rest;
            rest = after;
            match first {
                TokenTree::Punct(mark) if mark.as_char() == '#' => rest = after_attribute(after),
                TokenTree::Ident(name) if name == "use" => {
                    let end = after.iter().position(|token| is_mark(token, ';'));
                    let (imported, after) = after.split_at(end.unwrap_or(0));
                    self.import(imported, &[], depth);
                    rest = after;
                }
                TokenTree::Ident(_) => {
                    let (path, after) = path(from_here);
                    let is_module = path == ["mod"] && is_block(after.get(1));
                    if let (true, [_, TokenTree::Group(inside), ..]) = (is_module, after) {
                        self.read(inside.stream(), depth + 1);
                        rest = &after[2..];
                    } else {
                        self.add(path, depth);
                        rest = after;
                    }
                }
                TokenTree::Group(group) => self.read(group.stream(), depth),
                TokenTree::Literal(literal) => {
                    self.byte_literals += usize::from(literal.to_string().starts_with('b'));
                }
                TokenTree::Punct(_) => (),
            }
        }
    }

    /// Reads the trees of a `use`, each behind the path `before`.
    fn import(&mut self, trees: &[TokenTree], before: &[String], depth: usize) {
        for tree in trees.split(|token| is_mark(token, ',')) {
            let mut path = before.to_vec();
            let mut name = None;
            for token in tree {
                match token {
                    TokenTree::Group(group) => {
                        let group: Vec<_> = group.stream().into_iter().collect();
                        self.import(&group, &path, depth);
                        path.clear();
                    }
                    TokenTree::Ident(it) if it == "self" && !path.is_empty() => (),
                    TokenTree::Ident(it) if it == "as" => name = Some(String::new()),
                    TokenTree::Ident(it) if name.is_some() => name = Some(it.to_string()),
                    TokenTree::Ident(it) => path.push(it.to_string()),
                    _ => (),
                }
            }
            if let Some(last) = path.last() {
                self.names.insert(name.unwrap_or_else(|| last.clone()), outward(&path, depth));
                self.add(path, depth);
            }
        }
    }

    fn add(&mut self, path: Written, depth: usize) {
        if path.len() > 1 {
            self.paths.push(outward(&path, depth));
        }
    }
}

/// A module inside a file counts as the file: its first `super` is the file itself.
fn outward(path: &[String], depth: usize) -> Written {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let inside = supers.min(depth);
    let outer = path[inside..].to_vec();
    if inside > 0 && inside == supers { [vec!["self".to_owned()], outer].concat() } else { outer }
}

/// The path that begins here, and what follows it.
fn path(tokens: &[TokenTree]) -> (Written, &[TokenTree]) {
    let mut path = Written::new();
    let mut rest = tokens;
    while let [TokenTree::Ident(name), after @ ..] = rest {
        path.push(name.to_string());
        rest = after;
        match after {
            [one, two, next @ ..] if is_mark(one, ':') && is_mark(two, ':') => {
                if !matches!(next, [TokenTree::Ident(_), ..]) {
                    break;
                }
                rest = next;
            }
            _ => break,
        }
    }
    (path, rest)
}

/// What follows an attribute: if the attribute is for tests, what follows its item.
fn after_attribute(tokens: &[TokenTree]) -> &[TokenTree] {
    let Some(place) = tokens.iter().position(|token| matches!(token, TokenTree::Group(_))) else {
        return tokens;
    };
    let text = tokens[place].to_string().replace(' ', "");
    let rest = &tokens[place + 1..];
    if !text.starts_with("[cfg(test)") && !text.starts_with("[cfg(all(test,") {
        return rest;
    }
    let end = rest.iter().position(|token| is_mark(token, ';') || is_block(Some(token)));
    &rest[end.map_or(rest.len(), |end| end + 1)..]
}

fn is_mark(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(it) if it.as_char() == mark)
}

fn is_block(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(it)) if it.delimiter() == Delimiter::Brace)
}
