//! Plain English, counted: habits that make a sentence hard to read, and words of our own where
//! users have others. Limits that may only fall.

use super::pages::{TOOLS, user_pages};
use super::{library, text_of, tool};

const NEGATIONS: [&str; 10] =
    ["not", "no", "never", "nothing", "none", "neither", "nor", "cannot", "without", "nobody"];

/// Words and phrases that are no English, or ours alone, each with a better one.
const TERMS: [(&str, &str); 29] = [
    ("also if", "even if"),
    (", too", "including, or also"),
    ("may not", "might not, or must not"),
    ("anew", "again"),
    ("meanwhile", "until then"),
    ("for ever", "forever"),
    ("other makes", "other Redlock clients"),
    ("stranger", "another client"),
    ("strangers", "other Redlock clients, or clients that poll"),
    ("gate", "queue node"),
    ("gates", "queue nodes"),
    ("stands in the queue", "is in the queue"),
    ("debt", "pending release"),
    ("debts", "pending releases"),
    ("in doubt", "unconfirmed"),
    ("lock is over", "lock has expired"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("unfit", "unusable"),
    ("told", "notified"),
    ("guest", "embedded in an event loop"),
    ("handed on", "notified"),
    ("hands on", "notifies"),
    ("crowd", "waiting clients"),
    ("stagger", "overtake delay"),
    ("latch", "pause"),
    ("ghost", "stale key"),
    ("twin", "duplicate"),
];

/// For each 1,000 words of a page for users.
const USERS: Limits = Limits { negations: 12, what: 0, terms: 0 };

/// Another text need not have less than this.
const GOAL: Limits = Limits { negations: 12, what: 1, terms: 0 };

/// Other texts, with what they have today. Lower the limits, and never raise one.
const OTHERS: [Other; 8] = [
    ("ARCHITECTURE.md", || text_of("ARCHITECTURE.md"), Limits { negations: 22, what: 1, terms: 0 }),
    ("CONTRIBUTING.md", || text_of("CONTRIBUTING.md"), Limits { negations: 12, what: 1, terms: 0 }),
    ("tests/README.md", || text_of("tests/README.md"), Limits { negations: 12, what: 1, terms: 0 }),
    ("docs/rules.md", || text_of("docs/rules.md"), Limits { negations: 24, what: 2, terms: 8 }),
    (
        "docs/lost-commands.md",
        || text_of("docs/lost-commands.md"),
        Limits { negations: 18, what: 1, terms: 2 },
    ),
    ("help of the tool", || documentation(&tool()), Limits { negations: 22, what: 1, terms: 12 }),
    ("rustdoc", || documentation(&public()), Limits { negations: 28, what: 2, terms: 3 }),
    (
        "rustdoc of inner parts",
        || documentation(&inner()),
        Limits { negations: 24, what: 6, terms: 63 },
    ),
];

/// A text by its name, how to read it, and its limits.
type Other = (&'static str, fn() -> String, Limits);

/// The most that a text may have: negations and bare "what" for each 1,000 words, rounded up.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Limits {
    negations: usize,
    what: usize,
    terms: usize,
}

/// How many places a complaint names.
const SHOWN_MAX: usize = 20;

/// The habits of a text, with the places of those that can be found by reading one line.
struct Habits {
    figures: Limits,
    what: Vec<String>,
    terms: Vec<String>,
}

/// The text between code blocks.
pub fn without_code_blocks(text: &str) -> String {
    let parts = text.split("```").step_by(2);
    parts.collect::<Vec<_>>().join("\n")
}

/// The text without code: blocks, spans and targets of links.
fn prose(text: &str) -> String {
    let text = without_code_blocks(text);
    let mut spans = text.split('`');
    let mut prose = spans.next().unwrap_or_default().to_owned();
    while let (Some(_), Some(after)) = (spans.next(), spans.next()) {
        prose += "X";
        prose += after;
    }
    let mut parts = prose.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "]" + part.split_once(')').map_or(part, |(_, it)| it))
}

/// Each word of a text in small letters, with where it begins.
fn words(text: &str) -> Vec<(usize, String)> {
    let is_in_word = |it: char| it.is_ascii_alphabetic() || it == '\'' || it == '’';
    let mut words: Vec<(usize, String)> = Vec::new();
    let mut end = usize::MAX;
    for (at, letter) in text.char_indices().filter(|(_, it)| is_in_word(*it)) {
        let small = letter.to_ascii_lowercase();
        match words.last_mut() {
            Some((_, word)) if at == end => word.push(small),
            _ => words.push((at, small.to_string())),
        }
        end = at + letter.len_utf8();
    }
    words
}

fn habits(text: &str) -> Habits {
    let prose = prose(text);
    let words = words(&prose);
    let is_negation =
        |word: &str| NEGATIONS.contains(&word) || word.ends_with("n't") || word.ends_with("n’t");
    let is_what = |it: &&(usize, String)| it.1 == "what" && !is_asked(&prose[it.0..]);
    let count = words.iter().filter(|(_, word)| is_negation(word)).count();
    let what: Vec<_> = words.iter().filter(is_what).map(|it| excerpt(&prose, it.0)).collect();
    let terms: Vec<_> = TERMS.iter().flat_map(|(term, it)| found(&prose, term, it)).collect();
    let per_thousand = |count: usize| (1_000 * count).div_ceil(words.len().max(1));
    let figures = Limits {
        negations: per_thousand(count),
        what: per_thousand(what.len()),
        terms: terms.len(),
    };
    Habits { figures, what, terms }
}

/// Whether the sentence that goes on like this is a question.
fn is_asked(rest: &str) -> bool {
    let end = rest.find("\n\n").unwrap_or(rest.len());
    rest[..end].find(['.', '?', '!', '|', ':']).is_some_and(|at| rest[at..].starts_with('?'))
}

/// Where a term stands as whole words.
fn found(prose: &str, term: &str, better: &str) -> Vec<String> {
    let small = prose.to_ascii_lowercase().replace('\n', " ");
    let is_letter = |it: Option<char>| it.is_some_and(char::is_alphanumeric);
    let places = small.match_indices(term).filter(|(at, _)| {
        let before = small[..*at].chars().next_back();
        (term.starts_with(',') || !is_letter(before))
            && !is_letter(small[at + term.len()..].chars().next())
    });
    places.map(|(at, _)| format!("{}: write {better}", excerpt(prose, at))).collect()
}

fn excerpt(text: &str, at: usize) -> String {
    let rest: String = text[at..].chars().take(40).collect();
    format!("\"{}\"", rest.replace('\n', " "))
}

/// The sources whose items are public, for the most part.
fn public() -> Vec<(String, String)> {
    let mut files = library();
    files.retain(|(path, _)| !INNER.iter().any(|folder| path.starts_with(folder)));
    files
}

fn inner() -> Vec<(String, String)> {
    let mut files = library();
    files.retain(|(path, _)| INNER.iter().any(|folder| path.starts_with(folder)));
    files
}

const INNER: [&str; 4] = ["proto/", "resp/", "mux/", "sys/"];

/// All comments that are documentation.
fn documentation(files: &[(String, String)]) -> String {
    assert!(!files.is_empty(), "there are sources");
    let comments = files.iter().flat_map(|(_, text)| text.lines()).filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
    });
    comments.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
}

/// What is wrong with a text.
fn complaints(of: &str, text: &str, limits: Limits) -> Vec<String> {
    let Habits { figures, what, terms } = habits(text);
    let mut complaints = Vec::new();
    if figures.negations > limits.negations {
        let Limits { negations, .. } = figures;
        complaints.push(format!("{of}: {negations} negations: say what happens instead"));
    }
    if figures.what > limits.what {
        complaints.push(format!("{of}: name the thing in place of {}", what.join(", ")));
    }
    if terms.len() > limits.terms {
        let some = &terms[..terms.len().min(SHOWN_MAX)];
        complaints.push(format!("{of}: {} terms, such as {}", terms.len(), some.join(", ")));
    }
    complaints
}

/// The limits that a text with these figures has from now on.
fn lowered(figures: Limits) -> Limits {
    Limits {
        negations: figures.negations.max(GOAL.negations),
        what: figures.what.max(GOAL.what),
        terms: figures.terms,
    }
}

#[test]
fn pages_for_users_are_plain_english() {
    let mut pages = user_pages();
    for path in ["README.md", "SECURITY.md", "CHANGELOG.md", TOOLS] {
        pages.push((path.to_owned(), text_of(path)));
    }
    let complaints: Vec<_> =
        pages.iter().flat_map(|(path, text)| complaints(path, text, USERS)).collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn habits_of_other_texts_only_fall() {
    let mut complaints = Vec::new();
    for (of, text, limits) in OTHERS {
        let text = text();
        complaints.extend(self::complaints(of, &text, limits));
        let lowered = lowered(habits(&text).figures);
        if lowered != limits && complaints.is_empty() {
            complaints.push(format!("{of}: lower the limits to {lowered:?}"));
        }
    }
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn habits_are_counted() {
    let figures = |text: &str| habits(text).figures;
    let text = "It does not see what is lost. What is it? `not` is code.\n```\nno, never\n```\n";
    assert_eq!(figures(text), Limits { negations: 77, what: 77, terms: 0 });
    assert_eq!(figures("Cannot, isn't, without: 4 of words").negations, 600);
    assert_eq!(figures("The gate of a stranger, too.\nInvestigate; strange").terms, 3);
    assert_eq!(figures("See [it](no.md#gate) anew").terms, 1);
    let strict = Limits { negations: 12, what: 0, terms: 0 };
    let complaints = complaints("page", "Take what is left, too. ".repeat(9).as_str(), strict);
    assert_eq!(complaints.len(), 2);
    assert!(
        complaints[1].starts_with("page: 9 terms, such as \", too. Take what is"),
        "{complaints:?}"
    );
}
