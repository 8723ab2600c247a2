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

/// The names of structs, enums, traits and aliases that several files define, with their files.
/// What is inside of a module, a function or an `impl` is not counted.
pub fn shared_names(sources: &[Source]) -> Vec<String> {
    let mut found = BTreeMap::<String, Vec<&str>>::new();
    for source in sources {
        for item in &source.file.items {
            let name = match item {
                Item::Struct(it) => &it.ident,
                Item::Enum(it) => &it.ident,
                Item::Trait(it) => &it.ident,
                Item::Type(it) => &it.ident,
                _ => continue,
            };
            let files = found.entry(name.to_string()).or_default();
            if files.last() != Some(&&*source.path) {
                files.push(&source.path);
            }
        }
    }
    let shared = found.into_iter().filter(|(_, files)| files.len() > 1);
    shared.map(|(name, files)| format!("{name} of {}", files.join(", "))).collect()
}

/// The fields of each struct that keeps one to itself: one whose fields are all public is a value.
pub fn fields(sources: &[Source]) -> BTreeMap<Key, usize> {
    fields_where(sources, |_| true)
}

/// Those that are bools.
pub fn bools(sources: &[Source]) -> BTreeMap<Key, usize> {
    fields_where(sources, |field| matches!(&field.ty, Type::Path(it) if it.path.is_ident("bool")))
}

fn fields_where(sources: &[Source], is_meant: fn(&syn::Field) -> bool) -> BTreeMap<Key, usize> {
    let mut found = BTreeMap::new();
    for source in sources {
        for item in &source.file.items {
            let Item::Struct(item) = item else { continue };
            let Fields::Named(fields) = &item.fields else { continue };
            let is_private = |field: &syn::Field| !matches!(field.vis, Visibility::Public(_));
            if fields.named.iter().any(is_private) {
                let count = fields.named.iter().filter(|field| is_meant(field)).count();
                found.insert((source.path.clone(), item.ident.to_string()), count);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::source::{Source, sources};
    use super::{Key, Methods, bools, fields, methods, shared_names};

    fn parsed(files: &[(&str, &str)]) -> Vec<Source> {
        let owned = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        sources(&owned.collect::<Vec<_>>())
    }

    #[test]
    fn names_of_several_files_are_found() {
        let one = ("a.rs", "struct State; enum Step {} #[cfg(unix)] type Bell = u8;");
        let two = ("b.rs", "trait State {} #[cfg(not(unix))] struct Bell; fn f() { enum Step {} }");
        assert_eq!(
            shared_names(&parsed(&[one, two])),
            ["Bell of a.rs, b.rs", "State of a.rs, b.rs"]
        );
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
        let text = "pub struct State { a: u8, pub b: u8, c: bool } pub struct Value { pub a: bool }
            struct Unit; struct Pair(u8, u8);";
        let sources = parsed(&[("a.rs", text)]);
        let of_state = |found: BTreeMap<Key, usize>| {
            let found: Vec<_> = found.into_iter().collect();
            assert_eq!((found.len(), &found[0].0.1[..]), (1, "State"));
            found[0].1
        };
        assert_eq!((of_state(fields(&sources)), of_state(bools(&sources))), (3, 1));
    }
}
