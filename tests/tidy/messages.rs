//! Each text that the library or the tool can print is on a page for those who meet it, and each
//! text of such a page can be printed.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Expr, ExprLit, Item, ItemImpl, ItemMod, Lit, LitStr, Macro, Pat};

use super::source::{Source, is_for_tests};
use super::{collect, library, root, text_of};

/// Where the source of the tool is.
const TOOL: &str = "cli/src";
/// Starts servers, for tests and for the tool's demo.
const TESTING: &str = "src/testing";

/// The pages with texts.
const PAGES: [&str; 6] = [
    "docs/errors.md",
    "docs/errors-of-settings.md",
    "docs/errors-of-servers.md",
    "docs/errors-of-the-tool.md",
    "docs/errors-of-steps.md",
    "docs/errors-of-doctor.md",
];

/// Texts that look like messages, and need no page.
struct Rule {
    /// Which texts these are, and why nobody looks for them.
    of: &'static str,
    is_it: fn(&Text) -> bool,
    /// How many there are today; none where the syntax decides. Lower it, and never raise it.
    limit: Option<usize>,
}

/// A text counts for the first rule that applies.
const NO_PAGE: [Rule; 6] = [
    Rule {
        of: "bugs: the text is for those who know the source",
        is_it: |it| it.place == Place::Bug,
        limit: None,
    },
    Rule {
        of: "debug formats: they show values, and say nothing of them",
        is_it: |it| it.place == Place::Debug,
        limit: None,
    },
    Rule {
        of: "parts of answers that are searched for, and not printed",
        is_it: |it| it.place == Place::Search,
        limit: Some(20),
    },
    Rule {
        of: "scripts and requests for servers",
        is_it: |it| {
            ["redis.call(", "redis.pcall(", "EVAL\r\n"].iter().any(|part| it.raw.contains(part))
        },
        limit: Some(3),
    },
    Rule {
        of: "commands for a shell: the doctor shows them below a finding, which has a page",
        is_it: |it| {
            it.place == Place::Shell
                || it.path.ends_with("doctor/finding.rs")
                || it.raw.contains("kill -")
        },
        limit: Some(11),
    },
    Rule {
        of: "the story of the demo: it explains itself, and what fails is shown right there",
        is_it: |it| ["demo.rs", "stage.rs"].contains(&it.path.as_str()),
        limit: Some(83),
    },
];

/// What a literal is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Display,
    Debug,
    Bug,
    Search,
    Shell,
    Other,
}

/// A string literal outside of tests, attributes and patterns.
#[derive(Debug)]
struct Text {
    path: String,
    raw: String,
    /// As a page has it.
    shown: String,
    place: Place,
}

impl Text {
    /// Whether a reader could take it for a message: several words, or a word that an error shows.
    fn is_message(&self) -> bool {
        let mut words = self.shown.split(|char: char| !char.is_alphabetic());
        let has_word = words.any(|word| word.chars().count() >= 4);
        has_word && (self.shown.contains(' ') || self.place == Place::Display)
    }
}

/// Macros and methods whose text is that of a panic.
const BUGS: [&str; 8] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "expect",
    "panic",
    "unreachable",
];
/// Tables, methods and a closure that look for texts in another one.
const SEARCHES: [&str; 8] = [
    "CODES",
    "HAS_NO_PASSWORD",
    "contains",
    "find",
    "has",
    "split_once",
    "starts_with",
    "strip_prefix",
];
/// Functions and variables for the commands that fix a finding.
const SHELL: [&str; 3] = ["config_set", "fix", "sentinel_cli"];

/// What a macro, function, method, variable or table with this name makes of its texts.
fn place_of(name: &str) -> Option<Place> {
    let places = [(&BUGS[..], Place::Bug), (&SEARCHES, Place::Search), (&SHELL, Place::Shell)];
    places.iter().find(|(names, _)| names.contains(&name)).map(|(_, place)| *place)
}

/// Whether only the simulator calls it, to find what is broken.
fn is_for_the_simulator(attributes: &[Attribute]) -> bool {
    let feature = |it: &Attribute| it.parse_args::<syn::MetaNameValue>().ok();
    let conditions = attributes.iter().filter(|it| it.path().is_ident("cfg")).filter_map(feature);
    conditions.map(|it| it.value).any(|value| {
        matches!(value, Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) if name.value() == "testing")
    })
}

struct Texts<'a> {
    path: &'a str,
    place: Place,
    found: Vec<Text>,
}

impl Texts<'_> {
    fn note(&mut self, literal: &LitStr) {
        let raw = literal.value();
        let shown = shown(&raw);
        self.found.push(Text { path: self.path.to_owned(), raw, shown, place: self.place });
    }

    fn within(&mut self, place: Option<Place>, visit: impl FnOnce(&mut Self)) {
        let before = self.place;
        self.place = place.unwrap_or(before);
        visit(self);
        self.place = before;
    }

    fn tokens(&mut self, tokens: TokenStream) {
        let mut is_attribute = false;
        for token in tokens {
            match &token {
                TokenTree::Group(group) if !is_attribute => self.tokens(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Lit::Str(literal) = Lit::new(literal.clone()) {
                        self.note(&literal);
                    }
                }
                TokenTree::Group(_) | TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
            is_attribute = matches!(&token, TokenTree::Punct(mark) if mark.as_char() == '#');
        }
    }
}

impl<'a> Visit<'a> for Texts<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        let place = match item {
            Item::Const(item) => place_of(&item.ident.to_string()),
            _ => None,
        };
        self.within(place, |it| visit::visit_item(it, item));
    }

    fn visit_item_mod(&mut self, module: &'a ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, block: &'a ItemImpl) {
        let name = block.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        let place = match name.map(|name| name.ident.to_string()).as_deref() {
            Some("Debug") => Some(Place::Debug),
            Some("Display") => Some(Place::Display),
            _ if is_for_the_simulator(&block.attrs) => Some(Place::Bug),
            _ => None,
        };
        self.within(place, |it| visit::visit_item_impl(it, block));
    }

    fn visit_local(&mut self, local: &'a syn::Local) {
        let place = match &local.pat {
            Pat::Ident(name) => place_of(&name.ident.to_string()),
            _ => None,
        };
        self.within(place, |it| visit::visit_local(it, local));
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        self.visit_expr(&call.receiver);
        let place = place_of(&call.method.to_string());
        self.within(place, |it| call.args.iter().for_each(|argument| it.visit_expr(argument)));
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        let place = match &*call.func {
            Expr::Path(function) => {
                function.path.get_ident().and_then(|it| place_of(&it.to_string()))
            }
            _ => None,
        };
        self.within(place, |it| visit::visit_expr_call(it, call));
    }

    fn visit_expr_binary(&mut self, binary: &'a syn::ExprBinary) {
        let is_comparison = matches!(binary.op, BinOp::Eq(_) | BinOp::Ne(_));
        let place = is_comparison.then_some(Place::Search);
        self.within(place, |it| visit::visit_expr_binary(it, binary));
    }

    fn visit_expr_lit(&mut self, literal: &'a ExprLit) {
        if let Lit::Str(literal) = &literal.lit {
            self.note(literal);
        }
    }

    fn visit_macro(&mut self, item: &'a Macro) {
        let name = item.path.segments.last().map(|name| name.ident.to_string());
        let place = name.and_then(|name| place_of(&name));
        self.within(place, |it| it.tokens(item.tokens.clone()));
    }

    fn visit_attribute(&mut self, _: &'a Attribute) {}

    fn visit_pat(&mut self, _: &'a Pat) {}
}

/// The texts of the library and the tool.
fn texts() -> Vec<Text> {
    let mut files = library();
    for folder in [TOOL, TESTING] {
        let mut more = Vec::new();
        collect(&root().join(folder), &mut more);
        assert!(more.len() > 10, "there is no {folder}");
        files.extend(more);
    }
    // A fake master answers as a server does.
    files.retain(|(path, _)| !path.contains("testing/fake/") && !path.ends_with("/tests.rs"));
    files.iter().flat_map(|(path, text)| texts_of(path, text)).collect()
}

fn texts_of(path: &str, text: &str) -> Vec<Text> {
    let source = Source::parse(path, text);
    let mut texts = Texts { path, place: Place::Other, found: Vec::new() };
    texts.visit_file(&source.file);
    texts.found
}

/// As a page has it: a placeholder is …, and white space is one space.
fn shown(raw: &str) -> String {
    let mut shown = String::new();
    let mut chars = raw.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '{' | '}' if chars.peek() == Some(&char) => {
                chars.next();
                shown.push(char);
            }
            '{' => {
                chars.by_ref().find(|char| *char == '}');
                if !shown.ends_with('…') {
                    shown.push('…');
                }
            }
            char => shown.push(char),
        }
    }
    words_of(&shown)
}

fn words_of(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The texts of a page: what is code where an item of a list, or a row of a table with the heading
/// `Text`, begins.
fn listed(page: &str) -> Vec<String> {
    let mut listed = Vec::new();
    let mut is_table_of_texts = false;
    for block in blocks(page) {
        is_table_of_texts = match block.strip_prefix('|').map(str::trim) {
            Some(row) if row.starts_with("Text |") => true,
            Some(row) if is_table_of_texts => {
                listed.extend(leading_code(row));
                true
            }
            _ => false,
        };
        listed.extend(block.strip_prefix("- ").into_iter().flat_map(leading_code));
    }
    listed
}

/// Paragraphs, items and rows, each on one line, and nothing where one ends or an example is.
fn blocks(page: &str) -> Vec<String> {
    let (mut blocks, mut is_fenced) = (vec![String::new()], false);
    for text in page.lines().map(str::trim) {
        let is_fence = text.starts_with("```");
        is_fenced ^= is_fence;
        let text = if is_fenced || is_fence { "" } else { text };
        let begins = ["- ", "|", "#"].iter().any(|it| text.starts_with(it)) || text.is_empty();
        match blocks.last_mut() {
            Some(last) if !begins && !last.is_empty() => *last = format!("{last} {text}"),
            _ => blocks.push(text.to_owned()),
        }
    }
    blocks
}

/// The code with which it begins: one text, or several with commas between them.
fn leading_code(text: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), text);
    loop {
        let ticks = rest.len() - rest.trim_start_matches('`').len();
        let (fence, after) = rest.split_at(ticks);
        let Some((code, after)) = after.split_once(fence).filter(|_| ticks > 0) else {
            return found;
        };
        found.push(words_of(&code.replace("\\|", "|")));
        rest = after.trim_start_matches([',', ' ']);
    }
}

/// The parts of a text between its placeholders.
fn parts(text: &str) -> Vec<&str> {
    text.split('…').collect()
}

/// Whether a page has it: word for word, with anything in the place of a placeholder.
fn has(page: &str, text: &str) -> bool {
    let is_letter = |char: Option<char>| char.is_some_and(char::is_alphanumeric);
    let (first, rest) =
        text.split_once('…').map_or((text, None), |(first, rest)| (first, Some(rest)));
    page.match_indices(first).any(|(at, _)| {
        let end = at + first.len();
        let before = page[..at].chars().next_back();
        let begins = !is_letter(first.chars().next()) || !is_letter(before);
        let ends = !is_letter(first.chars().next_back()) || !is_letter(page[end..].chars().next());
        begins
            && ends
            && rest.is_none_or(|rest| {
                let mut at = end;
                parts(rest).into_iter().all(|part| match page[at..].find(part) {
                    Some(found) => {
                        at += found + part.len();
                        true
                    }
                    None => false,
                })
            })
    })
}

/// The texts from which a printed one can be made, without those that have no word.
fn printable(texts: &[Text]) -> Vec<&str> {
    let has_word = |it: &&str| it.split(|it: char| !it.is_alphabetic()).any(|it| it.len() >= 2);
    let texts: BTreeSet<_> = texts.iter().map(|text| text.shown.trim_matches(['…', ' '])).collect();
    texts.into_iter().filter(has_word).collect()
}

/// Whether it can be printed: as a text of the source, with others in the place of placeholders and
/// behind it. What has no letter is a value, or between two texts.
fn can_be_printed(text: &str, source: &[&str]) -> bool {
    let text = text.trim_matches([' ', '…']);
    let Some(first) = text.chars().next() else {
        return true;
    };
    let begins = |it: &&str| fills(text, &it.split('…').collect::<Vec<_>>(), source);
    source.iter().any(begins)
        || !first.is_alphabetic() && can_be_printed(&text[first.len_utf8()..], source)
}

/// Whether the text begins with these parts, and what is between and behind them can be printed.
fn fills(text: &str, parts: &[&str], source: &[&str]) -> bool {
    let Some(rest) = text.strip_prefix(parts[0]) else {
        return false;
    };
    let is_letter = |it: Option<char>| it.is_some_and(char::is_alphabetic);
    if is_letter(parts[0].chars().next_back()) && is_letter(rest.chars().next()) {
        return false;
    }
    let Some(next) = parts.get(1) else {
        return can_be_printed(rest, source);
    };
    match next.is_empty() {
        true => can_be_printed(rest, source),
        false => rest.match_indices(next).any(|(at, _)| {
            can_be_printed(&rest[..at], source) && fills(&rest[at..], &parts[1..], source)
        }),
    }
}

/// The messages of the source that none of the listed texts has.
fn missing<'a>(texts: &'a [Text], listed: &[String]) -> Vec<&'a str> {
    let is_missing = |text: &&Text| {
        let needs_page = text.is_message() && !NO_PAGE.iter().any(|rule| (rule.is_it)(text));
        needs_page && !listed.iter().any(|it| has(it, &text.shown))
    };
    texts.iter().filter(is_missing).map(|text| text.shown.as_str()).collect()
}

/// The listed texts that nothing prints.
fn stale<'a>(listed: &'a [String], texts: &[Text]) -> Vec<&'a str> {
    let source = printable(texts);
    let listed = listed.iter().map(String::as_str);
    listed.filter(|text| !can_be_printed(text, &source)).collect()
}

fn listed_on(pages: &[&str]) -> Vec<String> {
    pages.iter().flat_map(|page| listed(&text_of(page))).collect()
}

#[test]
fn each_text_that_can_be_printed_is_on_a_page() {
    let texts = texts();
    assert!(texts.len() > 1_000, "the texts were found");
    let missing = missing(&texts, &listed_on(&PAGES));
    let advice = "add them, with cause and action, to one of";
    assert!(missing.is_empty(), "{advice} {PAGES:?}:\n{}", missing.join("\n"));
}

#[test]
fn each_text_of_a_page_can_be_printed() {
    let texts = texts();
    for page in PAGES {
        let listed = listed_on(&[page]);
        assert!(listed.len() > 20, "{page} has texts");
        let stale = stale(&listed, &texts);
        assert!(stale.is_empty(), "nothing prints what {page} has:\n{}", stale.join("\n"));
    }
}

#[test]
fn texts_without_a_page_only_get_fewer() {
    let texts = texts();
    let rule = |text: &Text| NO_PAGE.iter().position(|rule| (rule.is_it)(text));
    let rules: Vec<_> = texts.iter().filter(|it| it.is_message()).filter_map(rule).collect();
    for (place, Rule { of, limit, .. }) in NO_PAGE.iter().enumerate() {
        let Some(limit) = limit else {
            continue;
        };
        let found = rules.iter().filter(|it| **it == place).count();
        assert!(found <= *limit, "{of}: {found}, but at most {limit}: put the text on a page");
        assert!(found == *limit, "{of}: lower the limit to {found} in tests/tidy/messages.rs");
    }
}

/// The findings of the doctor are looked up by their ids.
#[test]
fn each_id_of_the_doctor_is_on_its_page() {
    let source = Source::parse("finding.rs", &text_of(&format!("{TOOL}/doctor/finding.rs")));
    let ids = source.file.items.iter().find_map(|item| match item {
        Item::Enum(item) if item.ident == "Id" => Some(&item.variants),
        _ => None,
    });
    let page = text_of("docs/errors-of-doctor.md");
    let ids = ids.expect("there are ids");
    assert!(ids.len() >= 40, "the ids were found");
    let name = |id: &syn::Variant| {
        let mut name = String::new();
        for letter in id.ident.to_string().chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    };
    let mut ids: Vec<_> = ids.iter().map(name).collect();
    ids.sort_unstable();
    let mut listed = ids_on(&page);
    listed.sort_unstable();
    assert_eq!(listed, ids, "docs/errors-of-doctor.md lists each id once, and no other");
}

/// The ids in the sentences that list them, one below each heading.
fn ids_on(page: &str) -> Vec<String> {
    let lists = page.split("\n\n").filter(|it| it.starts_with("The ids `"));
    lists.flat_map(|list| list.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn ids_of_a_page_are_found() {
    let page = "# A\n\nThe ids `a`,\n`b-c`.\n\n- The ids `d`\n\n`e`\n\nThe ids `f`.\n";
    assert_eq!(ids_on(page), ["a", "b-c", "f"]);
}

const SOURCE: &str = r#"
    //! No message here.
    const MODE: &str = "a mode of its own";
    fn f(name: &str) -> Result<(), String> {
        match name {
            "not a message" => Err(format!("the {name} is {:?}: write {{}}", 1)),
            _ if name.contains("searched for") => Err("it \
                goes on".into()),
            _ => panic!("a bug of ours"),
        }
    }
    impl fmt::Display for Kind {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("granted") }
    }
    #[cfg(test)]
    mod tests { const TEXT: &str = "only in tests"; }
"#;

#[test]
fn texts_of_a_source_and_of_a_page_are_found() {
    let texts = texts_of("a.rs", SOURCE);
    let shown: Vec<_> = texts.iter().map(|text| text.shown.as_str()).collect();
    let found = ["a mode of its own", "the … is …: write {}", "searched for", "it goes on"];
    assert_eq!(shown, [&found[..], &["a bug of ours", "granted"]].concat());
    let page = "# A\n\n`prose`\n\n- `one`, `two\n  words` `three`: `four`\n- plain `five`\n\n\
                | Text | Cause |\n|---|---|\n| `a \\| b` | `six` |\n\n| Code | Text |\n|---|---|\n\
                | `seven` | `eight` |\n\n```text\n- `nine`\n```\n- `` a `ten` ``\n";
    assert_eq!(listed(page), ["one", "two words", "three", "a | b", "a `ten`"]);
}

#[test]
fn text_that_was_changed_on_one_side_is_found() {
    let texts = texts_of("a.rs", SOURCE);
    let listed = |page: &str| listed(page);
    let whole = listed("- `the … is …: write {}`, `granted`\n- `a mode of its own: it goes on`");
    assert_eq!((missing(&texts, &whole), stale(&whole, &texts)), (vec![], vec![]));
    let other = listed("- `the … is …: read {}`\n- `a mode of its own (granted): it goes off`");
    assert_eq!(missing(&texts, &other), ["the … is …: write {}", "it goes on"]);
    assert_eq!(stale(&other, &texts), other);
    // A value in the place of a placeholder is a text of the source as well.
    let filled = listed("- `the granted is 5: write {}`\n- `the holder is 5: write {}`");
    assert_eq!(stale(&filled, &texts), ["the holder is 5: write {}"]);
}
