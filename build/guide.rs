//! Writes the pages of `docs` to `OUT_DIR` for rustdoc, which has other addresses for them.

use std::path::Path;
use std::{env, fs};

const FOLDER: &str = "docs";

/// Writes each page to the folder `guide`, under the name of its module.
pub(crate) fn write(out: &Path) {
    println!("cargo:rerun-if-changed={FOLDER}");
    let out = out.join("guide");
    fs::create_dir_all(&out).expect("cargo's folder can be written to");
    let version = env::var("CARGO_PKG_VERSION").expect("cargo tells the version");
    for entry in fs::read_dir(FOLDER).expect("the pages are there") {
        let path = entry.expect("the folder is readable").path();
        if path.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a page is text");
        let name = path.file_stem().expect("a page has a name").to_string_lossy();
        let file = out.join(module(&name)).with_extension("md");
        fs::write(file, for_rustdoc(&text, &version)).expect("cargo's folder can be written to");
    }
}

/// The module of a page: `which-lock` is `which_lock`.
fn module(page: &str) -> String {
    page.replace('-', "_").to_lowercase()
}

/// The text with links that rustdoc can follow: pages are modules, and other files of the package
/// are shown by docs.rs.
fn for_rustdoc(text: &str, version: &str) -> String {
    let mut parts = text.split("](");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (target, rest) = part.split_once(')').unwrap_or((part, ""));
        result += &format!("]({}){rest}", target_for_rustdoc(target, version));
    }
    result
}

fn target_for_rustdoc(target: &str, version: &str) -> String {
    if let Some(path) = target.strip_prefix("../") {
        return format!("https://docs.rs/crate/muxlock/{version}/source/{path}");
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let anchor = if anchor.is_empty() { String::new() } else { format!("#{anchor}") };
    match file.strip_suffix(".md") {
        Some("README") => format!("crate::guide{anchor}"),
        Some(page) if !page.contains(':') => format!("crate::guide::{}{anchor}", module(page)),
        _ => target.to_owned(),
    }
}
