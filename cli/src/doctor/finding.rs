//! A problem, and the command that fixes it.

use std::cmp::Ordering;

use clap::ValueEnum;
use muxlock::unstable_tool::{MasterEndpoint, MasterSettings, printable};

/// The kinds of findings. Their names are stable: scripts look for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Id {
    Unreachable,
    Auth,
    Tls,
    Quorum,
    Replica,
    Cluster,
    Sentinel,
    Loading,
    Duplicate,
    SeveralServers,
    SameHost,
    Replicas,
    Promoted,
    Evicts,
    Memory,
    Young,
    BgsaveStopsWrites,
    MinReplicas,
    Sentinels,
    RefusesWrites,
    ClockOffset,
    ClockRate,
    ClockFrozen,
    Permission,
    PermissionClient,
    PermissionDelete,
    PermissionKinds,
    PermissionWaiting,
    Waiting,
    Script,
    Latency,
    Timeout,
    OutputBuffer,
    Maxclients,
    Open,
    Even,
    Single,
    Version,
    ListsDiffer,
    SettingsDiffer,
    RestartGuard,
    Marker,
    Lock,
    NotChecked,
}

impl Id {
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("no value is skipped");
        value.get_name().to_owned()
    }
}

/// How bad it is. The worst is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Locks fail, or are unsafe.
    Error,
    /// They may be, later.
    Warning,
    Note,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub id: Id,
    pub severity: Severity,
    /// The masters that it is about; none if it is about all of them as a group.
    pub masters: Vec<usize>,
    pub why: String,
    /// Commands for a shell, one a line.
    pub fix: Option<String>,
}

impl Finding {
    pub fn new(severity: Severity, id: Id, why: impl Into<String>) -> Finding {
        Finding { id, severity, masters: Vec::new(), why: why.into(), fix: None }
    }

    pub fn of(self, master: usize) -> Finding {
        Finding { masters: vec![master], ..self }
    }

    pub fn mended_by(self, fix: String) -> Finding {
        Finding { fix: Some(fix), ..self }
    }
}

/// Findings whose numbers differ from one moment to the next.
const MOMENTARY: [Id; 4] = [Id::Young, Id::Promoted, Id::Marker, Id::Latency];

/// Findings that masters have alike are one.
pub fn merged(findings: Vec<Finding>) -> Vec<Finding> {
    let is_alike = |one: &Finding, other: &Finding| {
        let is_of_masters = !one.masters.is_empty() && !other.masters.is_empty();
        let is_one_kind = (one.id, one.severity) == (other.id, other.severity);
        let is_alike = match MOMENTARY.contains(&one.id) {
            true => shape(&one.why) == shape(&other.why),
            false => one.why == other.why,
        };
        is_of_masters && is_one_kind && is_alike
    };
    let mut groups: Vec<Vec<Finding>> = Vec::new();
    for finding in findings {
        match groups.iter_mut().find(|group| is_alike(&group[0], &finding)) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups.into_iter().map(one).collect()
}

/// A text without its numbers.
fn shape(text: &str) -> Vec<&str> {
    text.split(' ').map(|word| if number(word).is_some() { "0" } else { word }).collect()
}

fn number(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number: &f64| number.is_finite())
}

/// One finding for several with the same shape.
fn one(group: Vec<Finding>) -> Finding {
    let texts: Vec<Vec<&str>> = group.iter().map(|it| it.why.split(' ').collect()).collect();
    let column = |at: usize| range(texts.iter().map(|words| words[at]).collect());
    let why: Vec<_> = (0..texts[0].len()).map(column).collect();
    let fixes: Vec<_> = group.iter().filter_map(|it| it.fix.as_deref()).collect();
    let fix = (!fixes.is_empty()).then(|| fixes.join("\n"));
    let masters = group.iter().flat_map(|it| it.masters.iter().copied()).collect();
    Finding { id: group[0].id, severity: group[0].severity, masters, why: why.join(" "), fix }
}

/// A word that is the same everywhere, or numbers from the least to the greatest.
fn range(mut words: Vec<&str>) -> String {
    words.sort_by(|one, other| number(one).partial_cmp(&number(other)).unwrap_or(Ordering::Equal));
    match words[..] {
        [least, .., most] if least != most => format!("{least} to {most}"),
        _ => words[0].to_owned(),
    }
}

/// The user who can run a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The user of this connection.
    User,
    /// Everybody who connects without a password.
    Anyone,
    /// Neither of them, so it is [`ADMINISTRATOR`].
    Administrator,
}

/// The user with all rights, by the name that docs/masters.md gives it.
pub const ADMINISTRATOR: &str = "admin";

/// A line for a shell, without a password: `redis-cli` takes that from `REDISCLI_AUTH`.
pub fn redis_cli(master: &MasterSettings<'_>, by: By, words: &[&str]) -> String {
    let mut line = vec!["redis-cli".to_owned()];
    // The shell asks a Sentinel where the master is.
    if let Some(asked) = sentinel_cli(master, "--raw SENTINEL GET-MASTER-ADDR-BY-NAME") {
        line.push(format!("-h \"$({asked} | head -n 1)\" -p \"$({asked} | tail -n 1)\""));
    }
    let mut add = |option: &str, value: &str| line.extend([option.to_owned(), quoted(value)]);
    match &master.endpoint {
        MasterEndpoint::Tcp { host, port } => {
            add("-h", host);
            add("-p", &port.to_string());
        }
        MasterEndpoint::Unix(path) => add("-s", &path.to_string_lossy()),
        MasterEndpoint::Sentinel { .. } => {}
    }
    match (by, master.user) {
        (By::User, Some(user)) => add("--user", user),
        (By::Administrator, _) => add("--user", ADMINISTRATOR),
        (By::User, None) | (By::Anyone, _) => {}
    }
    line[0].push_str(&tls(master));
    line.extend(words.iter().map(|word| quoted(word)));
    line.join(" ")
}

/// The same for one of the master's Sentinels, if it has some: `words` and the name of the master.
pub fn sentinel_cli(master: &MasterSettings<'_>, words: &str) -> Option<String> {
    let MasterEndpoint::Sentinel { host, port, service, user, has_password } = &master.endpoint
    else {
        return None;
    };
    let (host, service) = (quoted(host), quoted(service));
    // A Sentinel has another password, or none.
    let auth = match has_password {
        true => "REDISCLI_AUTH=\"$SENTINEL_AUTH\"",
        false => "-u REDISCLI_AUTH",
    };
    let user = user.as_ref().map_or_else(String::new, |it| format!(" --user {}", quoted(it)));
    let cli = format!("env {auth} redis-cli{}{user}", tls(master));
    Some(format!("{cli} -h {host} -p {port} {words} {service}"))
}

/// The options without which `redis-cli` would send the password as it is.
fn tls(master: &MasterSettings<'_>) -> String {
    let Some(tls) = &master.tls else {
        return String::new();
    };
    let mut line = " --tls".to_owned();
    let files = [("--cacert", tls.ca), ("--cert", tls.cert), ("--key", tls.key)];
    for (option, value) in files.into_iter().chain([("--sni", tls.server_name)]) {
        if let Some(value) = value {
            line.push_str(&format!(" {option} {}", quoted(value)));
        }
    }
    if tls.is_unverified {
        line.push_str(" --insecure");
    }
    line
}

/// A word for a POSIX shell, which a terminal can show.
pub fn quoted(word: &str) -> String {
    if word.chars().any(char::is_control) {
        let escaped = |char: char| match char {
            '\\' => r"\\".to_owned(),
            '\'' => r"\0047".to_owned(),
            char if char.is_ascii_control() => format!(r"\0{:03o}", u32::from(char)),
            char => printable(char.encode_utf8(&mut [0; 4])),
        };
        let escaped: String = word.chars().map(escaped).collect();
        return format!("\"$(printf %b '{escaped}')\"");
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:@%+-".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use muxlock::Redlock;
    use muxlock::unstable_tool::ConfigExt;
    #[cfg(feature = "tls")]
    use muxlock::unstable_tool::TlsSettings;

    use super::*;

    fn line(url: &str, by: By, words: &[&str]) -> String {
        let config = Redlock::builder().node(url).config().unwrap();
        redis_cli(&config.master(0), by, words)
    }

    #[test]
    fn commands_can_be_pasted_and_have_no_password() {
        let set = ["CONFIG", "SET", "save", ""];
        assert_eq!(
            line("redis://10.0.0.1", By::User, &set),
            "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET save ''"
        );
        let url = "redis://app:sesame@[2001:db8::1]:7000/3";
        assert_eq!(
            line(url, By::User, &["ACL", "SETUSER", "app", "~a:*"]),
            "redis-cli -h 2001:db8::1 -p 7000 --user app ACL SETUSER app '~a:*'"
        );
        let at = "redis-cli -h 2001:db8::1 -p 7000";
        assert_eq!(line(url, By::Administrator, &["PING"]), format!("{at} --user admin PING"));
        assert_eq!(line(url, By::Anyone, &["PING"]), format!("{at} PING"));
        assert_eq!(line("unix:///run/a%20b", By::User, &["PING"]), "redis-cli -s '/run/a b' PING");
        let ask = "env -u REDISCLI_AUTH redis-cli -h s1 -p 26379 --raw \
                   SENTINEL GET-MASTER-ADDR-BY-NAME a";
        let endpoint = format!("-h \"$({ask} | head -n 1)\" -p \"$({ask} | tail -n 1)\"");
        let expected = format!("redis-cli {endpoint} --user app PING");
        let url = "redis+sentinel://app:sesame@s1,s2/a";
        assert_eq!(line(url, By::User, &["PING"]), expected);
        let own = line(&format!("{url}?sentinel_user=s&sentinel_password=x"), By::User, &["PING"]);
        let ask = ask.replace("-u REDISCLI_AUTH", "REDISCLI_AUTH=\"$SENTINEL_AUTH\"");
        let ask = ask.replace("redis-cli ", "redis-cli --user s ");
        assert!(own.contains(&format!("-h \"$({ask} | head -n 1)\"")), "{own}");
        assert_eq!(quoted("it's $(x)"), r"'it'\''s $(x)'");
        let control = quoted("a\u{1b}[31m'\\\tb $x");
        assert_eq!(control, r#""$(printf %b 'a\0033[31m\0047\\\0011b $x')""#);
        let mut shell = std::process::Command::new("sh");
        let said = shell.args(["-c", &format!("printf %s {control}")]).output().unwrap().stdout;
        assert_eq!(said, b"a\x1b[31m'\\\tb $x");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn passwords_go_over_tls_alone() {
        assert_eq!(
            line("rediss://app:sesame@h?verify=no", By::User, &["PING"]),
            "redis-cli --tls --insecure -h h -p 6379 --user app PING"
        );
        let config = Redlock::builder().node("rediss://h?verify=no&server_name=n").config();
        let (config, common) = (config.unwrap(), TlsSettings::default());
        let files = TlsSettings { ca: Some("a b"), cert: Some("c"), key: Some("k"), ..common };
        let master = MasterSettings { tls: Some(files), ..config.master(0) };
        assert_eq!(tls(&master), " --tls --cacert 'a b' --cert c --key k");
        assert_eq!(tls(&config.master(0)), " --tls --sni n --insecure");
        let url = "rediss+sentinel://app:sesame@s1/a?verify=no&server_name=n";
        let both = line(url, By::User, &["PING"]).matches("redis-cli --tls --sni n").count();
        assert_eq!(both, 3, "the Sentinel's, too");
    }

    #[test]
    fn findings_that_masters_have_alike_are_one() {
        let finding = |why: &str, node| {
            let finding = Finding::new(Severity::Note, Id::Young, why).of(node);
            finding.mended_by(format!("fix {node}"))
        };
        let group = Finding::new(Severity::Note, Id::Young, "for 9 s");
        let all = [("for 9 s", 0), ("for 12 s", 1), ("for long s", 2), ("for 10 s", 3)];
        let all = all.map(|(why, node)| finding(why, node)).into_iter().chain([group.clone()]);
        let merged = merged(all.collect());
        let alike = Finding { masters: vec![0, 1, 3], ..finding("for 9 to 12 s", 0) };
        let alike = alike.mended_by("fix 0\nfix 1\nfix 3".into());
        assert_eq!(merged, [alike, finding("for long s", 2), group]);
    }

    #[test]
    fn names_are_in_kebab_case() {
        assert_eq!(Id::BgsaveStopsWrites.name(), "bgsave-stops-writes");
        assert_eq!(Id::Maxclients.name(), "maxclients");
    }

    #[test]
    fn every_id_is_documented() {
        let Some(root) = super::super::repository() else {
            return;
        };
        let page = std::fs::read_to_string(root.join("docs/errors-of-doctor.md")).unwrap();
        for id in Id::value_variants() {
            assert!(page.contains(&format!("`{}`", id.name())), "{}", id.name());
        }
    }
}
