//! How far the engine is cut into parts, and the library into files: figures that may only fall.

use super::arrows::Tree;
use super::source::{Source, sources};
use super::types::{self, Key};
use super::{code, collect, library, root, shown, tool, without_tests};

/// A figure of the source that may only fall.
struct Limit {
    /// What is counted.
    of: &'static str,
    count: fn(&Library) -> Count,
    /// What it is today.
    limit: usize,
    /// Where it is to fall to. Below that, it may rise again.
    goal: usize,
    /// What to do instead of raising the limit.
    advice: &'static str,
}

/// All limits. Lower them, and never raise one.
const LIMITS: [Limit; 20] = [
    Limit {
        of: "methods of Engine",
        count: |it| it.methods_of(ENGINE, |methods| methods.all),
        limit: 95,
        goal: 95,
        advice: "give the method to the part that owns the state, and let it return a value",
    },
    Limit {
        of: "public methods of Engine",
        count: |it| it.methods_of(ENGINE, |methods| methods.public),
        limit: 40,
        goal: 40,
        advice: "take one event as a value in place of an input for each, and return one view",
    },
    Limit {
        of: "methods of the largest other type of proto",
        count: |it| it.most_methods(|key| is_in_proto(&key.0) && !is_engine(key)),
        limit: 60,
        goal: 60,
        advice: "split the type: a part of its state, with what changes it, is a type of its own",
    },
    Limit {
        of: "methods of the largest type outside proto",
        count: |it| it.most_methods(|key| !is_in_proto(&key.0)),
        limit: 60,
        goal: 60,
        advice: "call what the method hands on to, or split the type",
    },
    Limit {
        of: "fields of Engine",
        count: |it| it.most_fields(is_engine),
        limit: 14,
        goal: 14,
        advice: "put the field into the part that uses it",
    },
    Limit {
        of: "fields of the largest other type of proto",
        count: |it| it.most_fields(|key| is_in_proto(&key.0) && !is_engine(key)),
        limit: 16,
        goal: 14,
        advice: "fields that change together are a type; those that exclude each other are an enum",
    },
    Limit {
        of: "bools of the type of proto that has most",
        count: |it| {
            let bools = types::bools(&it.library);
            Count::largest(bools.iter().filter(|it| is_in_proto(&it.0.0)).map(|it| (it.0, *it.1)))
        },
        limit: 4,
        goal: 2,
        advice: "bools that exclude each other are an enum; others belong to a state",
    },
    Limit {
        of: "files outside of waiting that name it",
        count: |it| it.files_that_name(&WAITING),
        limit: 10,
        goal: 10,
        advice: NAMED,
    },
    Limit {
        of: "files outside of the restart guard that name it",
        count: |it| it.files_that_name(&RESTART_GUARD),
        limit: 26,
        goal: 12,
        advice: NAMED,
    },
    Limit {
        of: "files outside of debts that name them",
        count: |it| it.files_that_name(&DEBTS),
        limit: 8,
        goal: 8,
        advice: NAMED,
    },
    Limit {
        of: "files that name the flush marker",
        count: |it| it.files_that_name(&FLUSH_MARKER),
        limit: 13,
        goal: 6,
        advice: NAMED,
    },
    Limit {
        of: "files of proto in circles",
        count: |it| it.files_in_circles(is_in_proto),
        limit: 0,
        goal: 0,
        advice: CIRCLES,
    },
    Limit {
        of: "files outside proto in circles",
        count: |it| it.files_in_circles(|path| !is_in_proto(path)),
        limit: 0,
        goal: 0,
        advice: CIRCLES,
    },
    Limit {
        of: "arrows between parts of proto",
        count: |it| Count::of(Tree::new(&it.library).arrows_between(&PARTS, &ARROWS)),
        limit: 0,
        goal: 0,
        advice: "no part calls another: return a value that the engine carries out",
    },
    Limit {
        of: "bytes of the wire in proto",
        count: |it| it.in_proto(|source| source.byte_literals),
        limit: 0,
        goal: 0,
        advice: "decode in resp, and give proto an enum",
    },
    Limit {
        of: "numbers of replies that proto reads",
        count: |it| it.in_proto(|source| source.numbers_read),
        // A connection's id and a fencing number are numbers.
        limit: 2,
        goal: 2,
        advice: "decode in resp/numbers.rs, and give proto what the number stands for",
    },
    Limit {
        of: "names of types that mean two things",
        count: |it| Count::of(types::shared_names(&it.library)),
        limit: 5,
        goal: 5,
        advice: "name the type after what sets it apart",
    },
    Limit {
        of: "names at the root of the crate",
        count: |it| {
            let root = it.library.iter().find(|source| source.path == "lib.rs");
            let mut names = shown::names(root.expect("the library has a root"));
            names.extend(it.library.iter().flat_map(shown::macros));
            Count::of(names)
        },
        limit: 43,
        goal: 43,
        advice: "show the name in one of the public modules",
    },
    Limit {
        of: "hundreds of lines of code, without testing, tests, the reader of the tool's file, and \
             what the tool alone uses",
        count: |it| Count {
            figure: it.lines_of_code.div_ceil(100),
            found: vec![it.lines_of_code.to_string()],
        },
        limit: 224,
        goal: 185,
        advice: "say it once: look for what is written twice, and for what has no user",
    },
    Limit {
        of: "tens of lines of code of the reader of the tool's file",
        count: |it| Count {
            figure: it.lines_of_reader.div_ceil(10),
            found: vec![it.lines_of_reader.to_string()],
        },
        limit: 40,
        goal: 40,
        advice: "leave it to the setters of the builder to check a value",
    },
];

const NAMED: &str = "ask the part for a decision, so that the file does not know how it was made";
const CIRCLES: &str = "put what both files need into a third one that needs neither";

/// Reads the settings that the tool and services share: feature `env`.
const READER: &str = "config/env.rs";

const ENGINE: (&str, &str) = ("proto/mod.rs", "Engine");

/// A subject, by the beginnings of the paths of its own files, and by its names: words of
/// identifiers, or whole ones. A new name of the subject belongs here.
struct Subject {
    own: &'static [&'static str],
    names: &'static [&'static str],
}

const WAITING: Subject = Subject {
    own: &["proto/wait/", "proto/status.rs", "resp/wait.rs"],
    names: &[
        "QueueEntry",
        "QueueEntries",
        "queue_node",
        "queue_nodes",
        "visit",
        "visits",
        "ability",
        "queues",
        "QueueSupport",
        "WaitCommand",
        "WaitMessage",
        "Notify",
        "Told",
        "ReleasePlan",
        "QueueUp",
        "CannotQueue",
    ],
};

const RESTART_GUARD: Subject = Subject {
    own: &["proto/nodes/node/guard/", "proto/nodes/node/suspicion.rs", "resp/sighting.rs"],
    names: &[
        "restart",
        "identity",
        "quarantine",
        "quarantines",
        "quarantined",
        "departed",
        "sighting",
        "sightings",
        "suspicion",
        "suspect",
        "uptime",
        "history",
    ],
};

const DEBTS: Subject = Subject {
    own: &["proto/cleanup/", "proto/doubt.rs"],
    names: &["debt", "debts", "doubt", "doubts"],
};

const FLUSH_MARKER: Subject = Subject { own: &[], names: &["marker", "Flushed"] };

/// The parts of `proto`, by the beginnings of their paths. What is in none is the engine, or
/// a message that all may use.
const PARTS: [(&str, &[&str]); 4] = [
    ("wait", &["proto/wait/"]),
    ("voting", &["proto/voting/"]),
    ("nodes", &["proto/nodes/"]),
    ("cleanup", DEBTS.own),
];

/// Which part may use which other one.
const ARROWS: [(&str, &str); 3] = [("wait", "nodes"), ("voting", "nodes"), ("cleanup", "nodes")];

/// The sources, each parsed once.
struct Library {
    /// Without those that start servers for tests.
    library: Vec<Source>,
    all: Vec<Source>,
    /// The command-line tool, which is a crate of its own.
    tool: Vec<Source>,
    lines_of_code: usize,
    /// Of the reader of the tool's file.
    lines_of_reader: usize,
}

/// A figure, and what made it.
struct Count {
    figure: usize,
    found: Vec<String>,
}

impl Count {
    fn of(found: Vec<String>) -> Count {
        Count { figure: found.len(), found }
    }

    /// The largest, with its name.
    fn largest<'a>(sizes: impl Iterator<Item = (&'a Key, usize)>) -> Count {
        let largest = sizes.max_by_key(|(_, size)| *size);
        let ((path, name), figure) = largest.expect("there is a type");
        Count { figure, found: vec![format!("{name} of {path}")] }
    }
}

impl Library {
    fn read() -> Library {
        let files = library();
        let mut all = Vec::new();
        collect(&root().join("src"), &mut all);
        // The tool alone uses unstable_tool.rs.
        let counted = files.iter().filter(|(path, _)| path != "unstable_tool.rs");
        let (reader, counted): (Vec<_>, Vec<_>) = counted.partition(|(path, _)| path == READER);
        let lines = |files: Vec<&(String, String)>| {
            files.iter().map(|(path, text)| lines_of_code(path, text)).sum()
        };
        Library {
            library: sources(&files),
            all: sources(&all),
            tool: sources(&tool()),
            lines_of_code: lines(counted),
            lines_of_reader: lines(reader),
        }
    }

    fn methods_of(&self, of: (&str, &str), count: fn(types::Methods) -> usize) -> Count {
        let methods = types::methods(&self.library);
        let found = methods.get(&(of.0.to_owned(), of.1.to_owned()));
        Count { figure: found.copied().map_or(0, count), found: Vec::new() }
    }

    fn most_methods(&self, is_meant: fn(&Key) -> bool) -> Count {
        let methods = types::methods(&self.library);
        let sizes = methods.iter().filter(|(key, _)| is_meant(key));
        Count::largest(sizes.map(|(key, methods)| (key, methods.all)))
    }

    fn most_fields(&self, is_meant: fn(&Key) -> bool) -> Count {
        let fields = types::fields(&self.library);
        Count::largest(fields.iter().filter(|(key, _)| is_meant(key)).map(|(key, it)| (key, *it)))
    }

    fn files_that_name(&self, subject: &Subject) -> Count {
        // The reader of the tool's file has the name of each setting.
        let own = subject.own.iter().chain([&READER]);
        let is_own = |path: &str| own.clone().any(|own| path.starts_with(own));
        let others = self.library.iter().filter(|source| !is_own(&source.path));
        let naming = others.filter_map(|source| {
            Some(format!("{} has {}", source.path, source.name_of(subject.names)?))
        });
        Count::of(naming.collect())
    }

    fn files_in_circles(&self, is_meant: fn(&str) -> bool) -> Count {
        let mut circles = Tree::new(&self.all).circles();
        circles.extend(Tree::new(&self.tool).circles());
        // One that leaves proto is none of proto alone.
        let is_all = |circle: &Vec<String>| circle.iter().all(|path| is_in_proto(path));
        circles.retain(|circle| is_meant("proto/") == is_all(circle));
        let figure = circles.iter().map(Vec::len).sum();
        Count { figure, found: circles.iter().map(|circle| circle.join(" ")).collect() }
    }

    fn in_proto(&self, count: fn(&Source) -> usize) -> Count {
        let own = self.library.iter().filter(|it| is_in_proto(&it.path) && count(it) > 0);
        let found = own.clone().map(|source| format!("{}: {}", source.path, count(source)));
        Count { figure: own.map(count).sum(), found: found.collect() }
    }
}

fn is_in_proto(path: &str) -> bool {
    path.starts_with("proto/")
}

fn is_engine(key: &Key) -> bool {
    (key.0.as_str(), key.1.as_str()) == ENGINE
}

fn lines_of_code(path: &str, text: &str) -> usize {
    code(&without_tests(path, text)).filter(|line| !line.trim().is_empty()).count()
}

/// What is wrong with a figure, and what to do.
fn complaint(limit: &Limit, count: &Count) -> Option<String> {
    let Limit { of, limit: most, goal, advice, .. } = limit;
    let figure = count.figure;
    if figure > *most {
        let found: String = count.found.iter().map(|line| format!("\n    {line}")).collect();
        return Some(format!("{of}: {figure}, but at most {most} (goal {goal}): {advice}{found}"));
    }
    let is_behind = figure < *most && most > goal;
    is_behind.then(|| {
        let lower = figure.max(*goal);
        format!("{of}: only {figure}: lower the limit to {lower} in tests/tidy/limits.rs")
    })
}

#[test]
fn figures_of_the_source_only_fall() {
    let library = Library::read();
    let complaints = LIMITS.iter().filter_map(|limit| complaint(limit, &(limit.count)(&library)));
    let complaints: Vec<_> = complaints.collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn goals_are_not_beyond_the_limits() {
    for limit in &LIMITS {
        assert!(limit.goal <= limit.limit, "{}: the limit is below the goal", limit.of);
    }
}

#[test]
fn files_of_subjects_and_parts_exist() {
    let files = library();
    let subjects = [WAITING, RESTART_GUARD, DEBTS, FLUSH_MARKER];
    let own = subjects.iter().flat_map(|subject| subject.own);
    for start in own.chain(PARTS.iter().flat_map(|(_, paths)| *paths)) {
        assert!(files.iter().any(|(path, _)| path.starts_with(start)), "there is no {start}");
    }
}

#[test]
fn figure_fails_above_its_limit_and_below_it() {
    let of = |limit: usize, goal: usize, figure: usize| {
        let limit = Limit { of: "doors", count: |_| unreachable!(), limit, goal, advice: "wall" };
        complaint(&limit, &Count { figure, found: vec!["front".to_owned()] })
    };
    assert_eq!(of(5, 2, 5), None);
    assert_eq!(of(5, 2, 6).unwrap(), "doors: 6, but at most 5 (goal 2): wall\n    front");
    let lower = |to: usize| Some(format!("lower the limit to {to} in tests/tidy/limits.rs"));
    let advice = |text: Option<String>| text?.splitn(3, ": ").nth(2).map(str::to_owned);
    assert_eq!(advice(of(5, 2, 4)), lower(4));
    assert_eq!(advice(of(5, 2, 1)), lower(2));
    assert_eq!(of(2, 2, 1), None);
}

#[test]
fn lines_of_code_are_without_comments_and_tests() {
    let text = "//! A.\n\nuse b::C;\n\n/// D.\nfn d() {\n    // E.\n    f();\n}\n\n#[cfg(test)]\n\
                mod tests {\n    fn g() {}\n}\n";
    assert_eq!(lines_of_code("a.rs", text), 4);
    assert_eq!(lines_of_code("a/tests.rs", text), 0);
    let on_linux = text.replace("cfg(test)", "cfg(all(test, target_os = \"linux\"))");
    assert_eq!(lines_of_code("a.rs", &on_linux), 4);
}
