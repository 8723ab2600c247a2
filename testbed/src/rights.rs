//! The rights that the page about users of servers gives.

/// The rights, such as `+get`, that the page gives to a user by the first command below a line that
/// has this text.
///
/// # Panics
/// If the page has no such line or no such command.
pub fn documented_rights(user: &str, text: &str) -> Vec<String> {
    let page = include_str!("../../docs/masters.md");
    let at = page.find(text).unwrap_or_else(|| panic!("the page has no \"{text}\""));
    let command = format!("ACL SETUSER {user} ");
    let (_, rights) = page[at..].split_once(&command).expect("a command follows");
    // The command ends at the first line that does not end with a backslash.
    let mut rest = rights.lines();
    let mut words = Vec::new();
    loop {
        let line = rest.next().expect("the command ends");
        words.extend(line.trim_end_matches('\\').split_whitespace());
        if !line.ends_with('\\') {
            break;
        }
    }
    let words = words.into_iter().map(|word| word.trim_matches('\''));
    words.filter(|word| word.starts_with('+')).map(str::to_owned).collect()
}
