//! The names that a file shows to users of the crate.

use syn::{Attribute, Item, UseTree, Visibility};

use super::source::Source;

/// The names of its public modules and of its `pub use`, without those that are hidden from the
/// documentation.
pub fn names(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for item in &source.file.items {
        match item {
            Item::Mod(it) if is_shown(&it.vis, &it.attrs) => found.push(it.ident.to_string()),
            Item::Use(it) if is_shown(&it.vis, &it.attrs) => of_use(&it.tree, &mut found),
            _ => {}
        }
    }
    found
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
    use super::names;

    #[test]
    fn hidden_and_private_names_are_not_shown() {
        let text = "mod a; pub(crate) mod b; pub use a::C; /// D.
            #[cfg(unix)] pub use b::{d::E as F, G};
            #[doc(hidden)] pub use b::H; #[doc(hidden)] pub mod i; use b::J;
            pub mod k { pub use super::a::L; } pub use b::*; #[cfg(test)] pub mod m {}";
        assert_eq!(names(&Source::parse("lib.rs", text)), ["C", "F", "G", "k", "*"]);
    }
}
