//! The library's scripts, as it sends them.

/// Each behind a line with its name and its length, with line ends in place of some blanks. A test
/// of the library keeps it up to date.
const SENT: &str = include_str!("../../../tests/scripts/sent.txt");

/// The text of a script.
pub fn sent(name: &str) -> String {
    let named = |section: &&str| section.strip_prefix(name).is_some_and(|it| it.starts_with(", "));
    let section = SENT.split("== ").find(named).expect("the library has this script");
    section.lines().skip(1).collect::<Vec<_>>().join(" ").trim_ascii_end().to_owned()
}
