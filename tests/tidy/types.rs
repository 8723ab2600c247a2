//! How large types are: their methods, in all files, and their fields.

use std::collections::BTreeMap;

use syn::{Fields, ImplItem, Item, Type, Visibility};

use super::arrows::Tree;
use super::source::Source;

/// A type, by the file that defines it and its name.
pub type Key = (String, String);

/// How many methods a type has.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Methods {
    pub all: usize,
    pub public: usize,
}

/// The methods of each type: those of traits are left out.
pub fn methods(sources: &[Source]) -> BTreeMap<Key, Methods> {
    let tree = Tree::new(sources);
    let mut found = BTreeMap::<Key, Methods>::new();
    for (file, source) in sources.iter().enumerate() {
        for item in &source.file.items {
            let Item::Impl(block) = item else { continue };
            let (None, Type::Path(path)) = (&block.trait_, &*block.self_ty) else { continue };
            let path: Vec<_> = path.path.segments.iter().map(|it| it.ident.to_string()).collect();
            let (file, name) = match &path[..] {
                [name] => tree.target_of_name(file, name),
                _ => match tree.target(file, &path) {
                    Some((file, Some(name))) => (file, name),
                    _ => continue,
                },
            };
            let methods = found.entry((sources[file].path.clone(), name)).or_default();
            for item in &block.items {
                let ImplItem::Fn(function) = item else { continue };
                methods.all += 1;
                methods.public += usize::from(matches!(function.vis, Visibility::Public(_)));
            }
        }
    }
    found
}

/// The fields of each struct that keeps one to itself: one whose fields are all public is a value.
pub fn fields(sources: &[Source]) -> BTreeMap<Key, usize> {
    let mut found = BTreeMap::new();
    for source in sources {
        for item in &source.file.items {
            let Item::Struct(item) = item else { continue };
            let Fields::Named(fields) = &item.fields else { continue };
            let is_private = |field: &syn::Field| !matches!(field.vis, Visibility::Public(_));
            if fields.named.iter().any(is_private) {
                found.insert((source.path.clone(), item.ident.to_string()), fields.named.len());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::source::{Source, sources};
    use super::{Methods, fields, methods};

    fn parsed(files: &[(&str, &str)]) -> Vec<Source> {
        let owned = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        sources(&owned.collect::<Vec<_>>())
    }

    #[test]
    fn methods_of_a_type_are_counted_over_all_files() {
        let engine = "mod one; mod two; pub use two::Engine as Machine;
            pub struct Engine; impl Engine { pub fn new() {} fn a(&self) {} const B: u8 = 1; }
            #[cfg(test)] impl Engine { fn for_test(&self) {} }
            impl Drop for Engine { fn drop(&mut self) {} }";
        let one = "use super::Engine; impl Engine { pub(super) fn c(&self) {} }
            impl super::Engine { #[cfg(test)] fn d(&self) {} fn e(&self) {} }";
        let two = "pub struct Engine<T>(T); impl<T> Engine<T> { pub fn f(&self) {} }";
        let three = "use crate::p::Machine; impl Machine { fn g(&self) {} }";
        let files = [("p/mod.rs", engine), ("p/one.rs", one), ("p/two.rs", two), ("q.rs", three)];
        let found = methods(&parsed(&files));
        let of = |file: &str| found[&(file.to_owned(), "Engine".to_owned())];
        assert_eq!(of("p/mod.rs"), Methods { all: 4, public: 1 });
        assert_eq!(of("p/two.rs"), Methods { all: 2, public: 1 });
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn fields_are_counted_where_one_is_private() {
        let text = "pub struct State { a: u8, pub b: u8 } pub struct Value { pub a: u8 }
            struct Unit; struct Pair(u8, u8);";
        let found = fields(&parsed(&[("a.rs", text)]));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(("a.rs".into(), "State".into()), 2)]);
    }
}
