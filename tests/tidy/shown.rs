//! The names that the root of the crate shows to its users.

use syn::{Attribute, Ident, Item, UseTree, Visibility};

use super::source::Source;

/// The names of its public items and of its `pub use`, without those that are hidden from the
/// documentation. An exported macro is at the root as well, wherever it stands.
pub fn names(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for item in &source.file.items {
        match item {
            Item::Use(it) if is_shown(&it.vis, &it.attrs) => of_use(&it.tree, &mut found),
            item => found.extend(defined(item).map(Ident::to_string)),
        }
    }
    found
}

/// The macros that a file exports.
pub fn macros(source: &Source) -> Vec<String> {
    let macros = source.file.items.iter().filter_map(|item| match item {
        Item::Macro(it) if it.attrs.iter().any(|it| it.path().is_ident("macro_export")) => {
            it.ident.as_ref()
        }
        _ => None,
    });
    macros.map(Ident::to_string).collect()
}

/// The name that an item defines and shows.
fn defined(item: &Item) -> Option<&Ident> {
    let (name, visibility, attributes) = match item {
        Item::Const(it) => (&it.ident, &it.vis, &it.attrs),
        Item::Enum(it) => (&it.ident, &it.vis, &it.attrs),
        Item::ExternCrate(it) => (&it.ident, &it.vis, &it.attrs),
        Item::Fn(it) => (&it.sig.ident, &it.vis, &it.attrs),
        Item::Mod(it) => (&it.ident, &it.vis, &it.attrs),
        Item::Static(it) => (&it.ident, &it.vis, &it.attrs),
        Item::Struct(it) => (&it.ident, &it.vis, &it.attrs),
        Item::Trait(it) => (&it.ident, &it.vis, &it.attrs),
        Item::Type(it) => (&it.ident, &it.vis, &it.attrs),
        Item::Union(it) => (&it.ident, &it.vis, &it.attrs),
        _ => return None,
    };
    is_shown(visibility, attributes).then_some(name)
}

fn is_shown(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    let is_hidden = |it: &Attribute| {
        let meta = it.path().is_ident("doc").then(|| it.parse_args::<syn::Path>().ok()).flatten();
        meta.is_some_and(|path| path.is_ident("hidden"))
    };
    matches!(visibility, Visibility::Public(_)) && !attributes.iter().any(is_hidden)
}

fn of_use(tree: &UseTree, found: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => of_use(&path.tree, found),
        UseTree::Group(group) => group.items.iter().for_each(|tree| of_use(tree, found)),
        UseTree::Name(name) => found.push(name.ident.to_string()),
        UseTree::Rename(name) => found.push(name.rename.to_string()),
        UseTree::Glob(_) => found.push("*".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::{macros, names};

    #[test]
    fn hidden_and_private_names_are_not_shown() {
        let text = "mod a; pub(crate) mod b; pub use a::C; /// D.
            #[cfg(unix)] pub use b::{d::E as F, G};
            #[doc(hidden)] pub use b::H; #[doc(hidden)] pub mod i; use b::J;
            pub mod k { pub use super::a::L; } pub use b::*; #[cfg(test)] pub mod m {}";
        assert_eq!(names(&Source::parse("lib.rs", text)), ["C", "F", "G", "k", "*"]);
    }

    #[test]
    fn items_of_each_sort_are_shown() {
        let text = "pub const A: u8 = 1; pub enum B {} pub fn c() {} pub static D: u8 = 1;
            pub struct E; pub trait F {} pub type G = E; const H: u8 = 1; fn i() {} struct J;
            #[doc(hidden)] pub struct K; #[macro_export] macro_rules! l { () => {} }
            macro_rules! m { () => {} }";
        let source = Source::parse("lib.rs", text);
        assert_eq!(names(&source), ["A", "B", "c", "D", "E", "F", "G"]);
        assert_eq!(macros(&source), ["l"]);
    }
}
