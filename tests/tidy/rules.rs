//! The rules of `docs/rules.md`: each has tests that exist, and no other rule is cited.

use std::collections::BTreeSet;

use super::{files_below, text_of};

/// The rules by names such as `R7` and `F3`, each with its text.
fn rules() -> Vec<(String, String)> {
    let page = text_of("docs/rules.md");
    let rule = |text: &str| {
        let (name, _) = text.split_once('.').expect("a rule begins with its name");
        (name.to_owned(), text.to_owned())
    };
    let rules: Vec<_> = page.split("\n- **").skip(1).map(rule).collect();
    assert!(rules.len() > 20, "{} rules were found", rules.len());
    rules
}

/// All sources of tests but these.
fn tests() -> Vec<(String, String)> {
    let mut files = ["tests", "cli/tests", "testbed"].map(|it| files_below(it, ".rs")).concat();
    files.retain(|(path, _)| !path.starts_with("tidy/"));
    files
}

/// The rules that a text cites, by words such as `R7`.
fn cited(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_rule = |word: &&str| {
        let digits = word.strip_prefix(['R', 'F', 'W', 'K']).unwrap_or_default();
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        (1..=2).contains(&digits.len()) && is_number && !digits.starts_with('0')
    };
    words.filter(is_rule).map(str::to_owned).collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The number of a rule that went is not used again.
#[test]
fn rules_are_in_order_and_defined_once() {
    for kind in ["R", "F", "W", "K"] {
        let names = rules().into_iter().map(|(name, _)| name);
        let numbers = names.filter_map(|name| name.strip_prefix(kind)?.parse().ok());
        let numbers: Vec<u32> = numbers.collect();
        assert!(numbers.len() >= 10 && numbers.is_sorted_by(|a, b| a < b), "{kind}: {numbers:?}");
    }
}

#[test]
fn slow_every_rule_that_is_cited_is_defined() {
    let defined: BTreeSet<String> = rules().into_iter().map(|(name, _)| name).collect();
    let sources = ["src", "cli/src"].map(|folder| files_below(folder, ".rs")).concat();
    let pages = ["docs", "tests"].map(|folder| files_below(folder, ".md")).concat();
    let bugs = files_below("tests", ".bug");
    let design = vec![("ARCHITECTURE.md".to_owned(), text_of("ARCHITECTURE.md"))];
    for (path, text) in [sources, tests(), bugs, pages, design].concat() {
        let cited = cited(&text);
        let unknown: Vec<_> = cited.difference(&defined).collect();
        assert!(unknown.is_empty(), "{path}: docs/rules.md does not define {unknown:?}");
    }
}

#[test]
fn every_rule_has_a_test_that_cites_it() {
    let mut texts: Vec<String> = tests().into_iter().map(|(_, text)| text).collect();
    texts.retain(|text| text.contains("#[test]"));
    let in_files = |text: &str| Some(text.split_once("#[cfg(test)]\nmod tests {")?.1.to_owned());
    texts.extend(files_below("src", ".rs").iter().filter_map(|(_, text)| in_files(text)));
    let cited: BTreeSet<String> = texts.iter().flat_map(|text| cited(text)).collect();
    let names = rules().into_iter().map(|(name, _)| name);
    let missing: Vec<_> = names.filter(|name| !cited.contains(name)).collect();
    assert!(missing.is_empty(), "no test cites {missing:?}");
}

#[test]
fn every_test_that_holds_a_rule_exists() {
    for (name, text) in rules() {
        let paths = quoted(&text).filter_map(|quote| quote.split_once("::"));
        let tests: Vec<_> = paths.filter(|(path, _)| path.ends_with(".rs")).collect();
        assert!(!tests.is_empty(), "docs/rules.md names no test for {name}");
        for (path, test) in tests {
            let source = text_of(path);
            // Its attributes stand right before it.
            let before = source.split_once(&format!("fn {test}(")).map(|(before, _)| before);
            let attributes = before.and_then(|before| before.rsplit("\n\n").next());
            let is_test = attributes.is_some_and(|lines| lines.contains("#[test]"));
            assert!(is_test, "{name}: there is no test {path}::{test}");
        }
    }
}

#[test]
fn every_check_of_the_simulator_that_holds_a_rule_exists() {
    let world = files_below("tests/sim/world", ".rs");
    let mut count = 0;
    for (rule, text) in rules() {
        let names = text.split("simulator ").skip(1).filter_map(|rest| rest.split('.').next());
        for name in names.flat_map(quoted) {
            let needle = format!("\"{name}\"");
            let is_known = world.iter().any(|(_, source)| source.contains(&needle));
            assert!(is_known, "{rule}: the simulator has no check {name}");
            count += 1;
        }
    }
    assert!(count > 0, "checks of the simulator were found");
}
