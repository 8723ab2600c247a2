//! Words that identifiers of the library or the tool do not have, because the field has another
//! one.

use super::source::{Source, sources, words};
use super::{library, tool};

/// A word of identifiers.
struct Word {
    word: &'static str,
    /// The term to use instead.
    term: &'static str,
    /// How many identifiers may have it, each counted once a file. Lower it, and never raise it.
    limit: usize,
}

const fn gone(word: &'static str, term: &'static str) -> Word {
    Word { word, term, limit: 0 }
}

const fn few(word: &'static str, term: &'static str, limit: usize) -> Word {
    Word { word, term, limit }
}

const WORDS: [Word; 48] = [
    gone("stand", "(queue) entry"),
    gone("stands", "(queue) entries"),
    gone("gate", "queue node"),
    gone("gates", "queue nodes"),
    gone("crowded", "contended"),
    gone("stranger", "poller, or another client"),
    gone("strangers", "pollers, or other clients"),
    gone("stagger", "overtake delay"),
    gone("staggers", "overtake delays"),
    gone("rows", "consecutive grants"),
    gone("streak", "consecutive grants"),
    gone("bar", "exclude"),
    gone("barred", "excluded"),
    gone("heed", "relevant"),
    gone("heeded", "relevant"),
    gone("heeds", "is relevant"),
    gone("armed", "watched"),
    gone("letter", "wakeup"),
    gone("tells", "reports, or notifies"),
    gone("owe", "add a debt"),
    gone("owed", "debt"),
    gone("owes", "debt"),
    gone("indebted", "with debts"),
    gone("overdrawn", "full"),
    gone("origins", "connections"),
    gone("forms", "kinds of lock"),
    gone("formed", "of a kind"),
    gone("fleet", "nodes"),
    gone("twin", "duplicate"),
    gone("departed", "former processes"),
    gone("greet", "start the handshake"),
    gone("welcome", "admit"),
    gone("recognise", "identify"),
    gone("stamping", "agreement"),
    gone("fixed", "chosen"),
    gone("nobody", "none"),
    // How many threads of a client make one.
    gone("crowd", "contended"),
    // Lines of text.
    few("line", "local queue", 19),
    // Public, or a slot of a futex, or an argument of a URL.
    gone("place", "position, endpoint"),
    // A public counter.
    gone("told", "notified"),
    few("said", "reported", 4),
    // An argument of a command, the text of an error, bytes of a futex.
    few("words", "arguments, text", 18),
    // Handing over, and the name of a script.
    few("hand", "release plan", 12),
    // A row of the table of kinds of lock.
    few("row", "consecutive grants", 17),
    few("turn", "iteration, quota", 11),
    // What is no Redis server, and keys of another type.
    few("foreign", "other queues, other clients", 23),
    // A script and a public counter.
    few("raise", "confirm", 3),
    // Read late; and what is public.
    few("late", "timed out, overdue, expired", 13),
];

/// Words that the tool does not have either, nor the name of a file.
const GONE: [(&str, &str); 21] = [
    ("bell", "event count"),
    ("bells", "event counts"),
    ("crew", "leader and followers"),
    ("door", "access"),
    ("doors", "access"),
    ("evict", "revoke"),
    ("evicted", "revoked"),
    ("filed", "renewed"),
    ("ghost", "stale key"),
    ("greeted", "handshake"),
    ("greeting", "handshake"),
    ("greetings", "handshakes"),
    ("inbox", "loss events"),
    ("ink", "style"),
    ("keeper", "renewer"),
    ("latch", "pause"),
    ("mail", "loss event"),
    ("standing", "vote state"),
    ("stranger", "another client"),
    ("truth", "expectation, or claim"),
    ("voice", "console"),
];

/// The identifiers with this word, each with its file.
fn with(word: &str, sources: &[Source]) -> Vec<String> {
    let has_word = |name: &&String| words(name).iter().any(|it| it == word);
    let found = sources.iter().flat_map(|source| {
        let names = source.identifiers.iter().filter(has_word);
        names.map(|name| format!("{}: {name}", source.path))
    });
    found.collect()
}

#[test]
fn identifiers_have_the_words_of_the_field() {
    let sources = sources(&library());
    let mut complaints = Vec::new();
    for Word { word, term, limit } in &WORDS {
        let found = with(word, &sources);
        if found.len() > *limit {
            let found: String = found.iter().map(|name| format!("\n    {name}")).collect();
            complaints.push(format!("`{word}`: at most {limit}; say {term}:{found}"));
        } else if found.len() < *limit {
            complaints.push(format!("`{word}`: lower the limit to {}", found.len()));
        }
    }
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn words_that_are_gone_do_not_come_back() {
    let files = [library(), tool()].concat();
    let sources = sources(&files);
    let mut complaints = Vec::new();
    for (word, term) in GONE {
        let mut found = with(word, &sources);
        let names = files.iter().map(|(path, _)| path);
        found.extend(names.filter(|path| is_in_path(word, path)).cloned());
        complaints.extend(found.iter().map(|place| format!("{place}: say {term}")));
    }
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// Whether a file or one of its folders has this word in its name.
fn is_in_path(word: &str, path: &str) -> bool {
    path.split(['/', '.']).any(|part| words(part).iter().any(|it| it == word))
}

#[test]
fn words_are_listed_once() {
    for (at, (word, _)) in GONE.iter().enumerate() {
        assert!(!GONE[..at].iter().any(|(other, _)| other == word), "{word}");
    }
    for (at, Word { word, .. }) in WORDS.iter().enumerate() {
        assert!(!WORDS[..at].iter().any(|other| other.word == *word), "{word}");
    }
}

#[test]
fn word_is_found_in_each_file() {
    let source = |path| Source::parse(path, "fn gate_of(a: Gate) { gateway(); /* gate */ }");
    let found = with("gate", &[source("a.rs"), source("b.rs")]);
    assert_eq!(found, ["a.rs: Gate", "a.rs: gate_of", "b.rs: Gate", "b.rs: gate_of"]);
    assert!(is_in_path("gate", "gate/a.rs") && is_in_path("gate", "a/open_gate.rs"));
    assert!(!is_in_path("gate", "gateway/a.rs"));
}
