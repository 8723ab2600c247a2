//! The clients that hold locks or wait for them, in words.
//!
//! A token ends with the tag of its client, and so does the name of its channel. `CLIENT LIST`
//! shows the same tag in the names of that client's connections, with its host, process, program
//! and start. Everything else of a token stays on the server.

use std::collections::BTreeMap;
use std::fmt;
#[cfg(target_os = "linux")]
use std::fs;
use std::net::IpAddr;
#[cfg(target_os = "linux")]
use std::process::id;
use std::time::{Duration, SystemTime};

#[cfg(target_os = "linux")]
use muxlock::LockToken;
use muxlock::testing::Value;
use muxlock::unstable_tool::{ConfigExt, printable};
use muxlock::{Config, Fingerprint};
use serde_json::{Value as Json, json};

use super::stopwatch::wall_micros;
use super::wire::{Failure, RefusalKind, Wire, ask_each};

/// The most read locks of a key that are looked at.
pub const READERS_MAX: usize = 10;
/// The most keys in one question.
pub const KEYS_MAX: usize = 100;
/// The most characters of an owner value that are shown.
const VALUE_CHARS_MAX: usize = 200;
/// The most characters of a part of a name: the most that any client of this library sends.
const PART_CHARS_MAX: usize = 100;
const TAG_DIGITS: usize = 8;
/// Begins the text of a process that renews a lock for another one, whose tag follows.
const RENEWS: &str = "renews=";
/// Most bytes of such a text, as of any other.
const TEXT_BYTES_MAX: usize = 100;
/// The tag is in no name.
const UNFOUND: &str = "no longer connected, or without a name";
const OTHER: &str = "another client library";

/// An owner value is shown, because it is for others to read. Any other value can be a token.
const LOOK: &str = include_str!("holder.lua");

/// The end of a token, which distinguishes clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag([u8; TAG_DIGITS]);

impl Tag {
    /// The end of a token's or a channel's digits.
    pub fn at_end_of(text: &[u8]) -> Option<Tag> {
        let tag = text.last_chunk()?;
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        tag.iter().all(is_digit).then_some(Tag(*tag))
    }
}

/// A client, as the name of its connections describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Client {
    pub host: Option<String>,
    pub pid: Option<u32>,
    /// The file name of its program, or of the command that it runs.
    pub command: Option<String>,
    /// The application's own text, instead of all of that.
    pub name: Option<String>,
    /// When the client was made.
    pub started: Option<SystemTime>,
    /// How old it is, which is the most that is known about the age of its lock; without a start,
    /// how old its connection is.
    pub age: Option<Duration>,
    /// Where it connects from, unless by a Unix socket.
    pub address: Option<IpAddr>,
    /// The mark over the settings that clients must have alike.
    pub mark: Option<String>,
}

/// In one line, such as `web-3 pid 4711 (report), started 2026-11-27 10:42:07 UTC, from 10.0.0.7`.
impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())?;
        if let Some(started) = self.started {
            let text = rfc3339(started).replace('T', " ").replace('Z', " UTC");
            write!(f, ", started {text}")?;
        }
        self.address.map_or(Ok(()), |address| write!(f, ", from {address}"))
    }
}

impl Client {
    /// In a few words, such as `web-3 pid 4711 (report)`.
    pub fn short(&self) -> String {
        let part = |part: &Option<String>| part.as_deref().map(printable);
        let pid = self.pid.map(|pid| format!("pid {pid}"));
        let command = part(&self.command).map(|command| format!("({command})"));
        let words: Vec<_> = [part(&self.name), part(&self.host), pid, command]
            .into_iter()
            .flatten()
            .filter(|word| !word.is_empty())
            .collect();
        match words.is_empty() {
            true => "a client without a description".to_owned(),
            false => words.join(" "),
        }
    }

    /// A line of `CLIENT LIST`, if it is of this library and has a tag.
    pub fn parse(line: &str) -> Option<(Tag, Client)> {
        let (_, rest) = field(line, "name=")?.strip_prefix("muxlock/")?.split_once(':')?;
        // The text of an application is the last part, and can contain colons.
        let (parts, name) = match rest.split_once(":name=") {
            Some((_, text)) if text.starts_with(RENEWS) => (text, None),
            Some((parts, name)) => (parts, Some(name)),
            None => (rest, None),
        };
        let part =
            |name| parts.split(':').find_map(|part| part.split_once('=').filter(|it| it.0 == name));
        let part = |name| part(name).map(|(_, text)| text);
        // Before the text of an application.
        let mark = rest.split(":name=").next().and_then(|parts| parts.split_once(":mark="));
        let mark = mark.and_then(|(_, mark)| mark.split(':').next());
        let tag = part("renews").or_else(|| part("tag")).filter(|tag| tag.len() == TAG_DIGITS)?;
        let text = |text: &str| text.chars().take(PART_CHARS_MAX).collect::<String>();
        let started = part("start").and_then(|start| start.parse().ok());
        let started = started.map(|it: u32| Duration::from_secs(it.into()));
        let now = Duration::from_micros(wall_micros().unsigned_abs());
        let age = started.and_then(|it| now.checked_sub(it));
        let connected = || Some(Duration::from_secs(field(line, "age=")?.parse().ok()?));
        let client = Client {
            host: part("host").map(text),
            pid: part("pid").and_then(|pid| pid.parse().ok()),
            command: part("cmd").map(text),
            name: name.map(text),
            started: started.and_then(|it| SystemTime::UNIX_EPOCH.checked_add(it)),
            age: age.or_else(connected),
            address: address(line),
            mark: mark.map(text),
        };
        Some((Tag::at_end_of(tag.as_bytes())?, client))
    }

    pub fn as_json(&self) -> Json {
        json!({
            "host": self.host,
            "pid": self.pid,
            "command": self.command,
            "name": self.name,
            "started": self.started.map(rfc3339),
            "address": self.address.map(|it| it.to_string()),
        })
    }
}

/// The text by which masters list this process as the holder of another one's lock. A colon ends a
/// part.
#[cfg(target_os = "linux")]
pub fn renewer_text(token: &LockToken, command: &str) -> Option<String> {
    let Tag(tag) = Tag::at_end_of(token.as_bytes())?;
    let (tag, pid) = (String::from_utf8_lossy(&tag).into_owned(), id());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let is_fit = |char: char| char.is_ascii_graphic() && char != ':';
    let host: String = host.trim_end().chars().filter(|char| is_fit(*char)).collect();
    let start = wall_micros() / 1_000_000;
    let text = format!("{RENEWS}{tag}:pid={pid}:cmd={command}:start={start}:host={host}");
    Some(text.chars().take(TEXT_BYTES_MAX).collect())
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// A field of a line of `CLIENT LIST`.
pub fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|field| field.strip_prefix(name))
}

/// Where a client in a line of `CLIENT LIST` connects from. On a Unix socket, it has no address.
fn address(line: &str) -> Option<IpAddr> {
    let (host, _) = field(line, "addr=")?.rsplit_once(':')?;
    host.trim_matches(['[', ']']).parse().ok()
}

/// The clients that are connected to some masters.
#[derive(Debug, Default)]
pub struct Clients {
    found: BTreeMap<Tag, Client>,
    /// How many masters have listed their clients.
    listed: usize,
    /// Why another one has not.
    obstacle: Option<String>,
}

impl Clients {
    /// The clients of a master that has listed them, by the whole text.
    pub fn of_list(list: &str) -> BTreeMap<Tag, Client> {
        // Of several connections, the oldest one.
        list.lines().rev().filter_map(Client::parse).collect()
    }

    fn of(answers: Vec<Result<BTreeMap<Tag, Client>, String>>) -> Clients {
        let mut clients = Clients::default();
        for answer in answers {
            match answer {
                Ok(found) => {
                    clients.listed += 1;
                    found.into_iter().for_each(|(tag, client)| {
                        clients.found.entry(tag).or_insert(client);
                    });
                }
                Err(why) => clients.obstacle = clients.obstacle.or(Some(why)),
            }
        }
        clients
    }

    pub fn get(&self, tag: Tag) -> Option<&Client> {
        self.found.get(&tag)
    }

    /// The client in words; `None` if no master has listed its clients.
    pub fn words(&self, tag: Tag) -> Option<String> {
        self.words_by(tag, Client::to_string)
    }

    /// The same in a few words.
    pub fn short(&self, tag: Tag) -> Option<String> {
        self.words_by(tag, Client::short)
    }

    fn words_by(&self, tag: Tag, words: impl Fn(&Client) -> String) -> Option<String> {
        match self.get(tag) {
            Some(client) => Some(words(client)),
            None => (self.listed > 0).then(|| UNFOUND.to_owned()),
        }
    }

    /// Why no client can be named, if that is so.
    pub fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref().filter(|_| self.listed == 0)
    }
}

fn list(wire: &mut Wire) -> Result<BTreeMap<Tag, Client>, Failure> {
    match wire.ask(&[b"CLIENT", b"LIST"])? {
        Value::Bulk(text) => Ok(Clients::of_list(&String::from_utf8_lossy(&text))),
        _ => Err(Failure::Strange),
    }
}

fn obstacle(config: &Config, node: usize, failure: &Failure) -> String {
    let master = config.master(node);
    match failure.refusal() {
        Some(RefusalKind::Command) => {
            format!("the user {:?} lacks +client|list", master.user.unwrap_or("default"))
        }
        Some(RefusalKind::Unknown) => "the server does not know CLIENT LIST".to_owned(),
        _ => format!("{}: {failure}", master.address),
    }
}

/// The state of a lock's key on one master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// It has a holder, with this fingerprint.
    Held { print: Fingerprint, tag: Option<Tag>, value: Option<String> },
    /// It has read locks. At most [`READERS_MAX`] are listed; those of other libraries are `None`.
    Shared(Vec<Option<Tag>>),
    /// It is free, or has other data.
    Other,
}

/// Asks a master for the keys of locks, with their prefix, at most [`KEYS_MAX`] in one question.
/// This only reads, and of tokens the tags alone.
fn look(wire: &mut Wire, keys: &[Vec<u8>]) -> Result<Vec<Key>, Failure> {
    let mut found = Vec::with_capacity(keys.len());
    // Bounded by the keys, and by the time limit of the connection.
    for batch in keys.chunks(KEYS_MAX) {
        found.extend(look_at(wire, batch)?);
    }
    Ok(found)
}

fn look_at(wire: &mut Wire, keys: &[Vec<u8>]) -> Result<Vec<Key>, Failure> {
    let (count, readers) = (keys.len().to_string(), READERS_MAX.to_string());
    let mut words = vec![b"EVAL".as_slice(), LOOK.as_bytes(), count.as_bytes()];
    words.extend(keys.iter().map(Vec::as_slice));
    words.push(readers.as_bytes());
    let Value::Array(found) = wire.ask(&words)? else { return Err(Failure::Strange) };
    found.into_iter().take(keys.len()).map(Key::parse).collect()
}

impl Key {
    fn parse(found: Value) -> Result<Key, Failure> {
        let parts = match found {
            Value::Array(parts) => parts,
            Value::Integer(_) => return Ok(Key::Other),
            _ => return Err(Failure::Strange),
        };
        let bytes = |part| match part {
            Value::Bulk(bytes) => Ok(bytes),
            _ => Err(Failure::Strange),
        };
        let parts = parts.into_iter().take(1 + READERS_MAX).map(bytes);
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        match &parts[..] {
            [empty, tags @ ..] if empty.is_empty() => {
                Ok(Key::Shared(tags.iter().map(|tag| Tag::at_end_of(tag)).collect()))
            }
            [print, tag, value] => {
                let value = (!value.is_empty()).then(|| shown(&String::from_utf8_lossy(value)));
                let (print, tag) = (Fingerprint::new(print), Tag::at_end_of(tag));
                Ok(Key::Held { print, tag, value })
            }
            _ => Err(Failure::Strange),
        }
    }
}

/// An owner value, in printable characters.
fn shown(value: &str) -> String {
    let text: String = value.chars().take(VALUE_CHARS_MAX).collect();
    let more = if text.len() < value.len() { ".." } else { "" };
    format!("{}{more}", printable(&text))
}

/// The answers of masters about some keys, and the clients that are connected to these masters.
pub struct Answers {
    /// For each master, a state for each key; empty if it failed to answer.
    nodes: Vec<Vec<Key>>,
    pub clients: Clients,
}

impl Answers {
    /// Asks masters at the same time, each for the keys, if there are any, and for its clients on
    /// one connection.
    pub fn ask(config: &Config, nodes: &[usize], keys: &[Vec<u8>], within: Duration) -> Answers {
        let (nodes, clients) = ask_each(nodes, |node| {
            let mut wire = match Wire::connect(config, node, within) {
                Ok(wire) => wire,
                Err(failure) => return (Vec::new(), Err(obstacle(config, node, &failure))),
            };
            let found = look(&mut wire, keys).unwrap_or_default();
            (found, list(&mut wire).map_err(|failure| obstacle(config, node, &failure)))
        })
        .into_iter()
        .unzip();
        Answers { nodes, clients: Clients::of(clients) }
    }

    /// The holder of a key that has this fingerprint, as most masters see it: its tag, and the
    /// owner value. If the lock has changed hands since the fingerprint was read, there is none.
    pub fn holder(&self, key: usize, print: Fingerprint) -> Option<Holder> {
        let found = self.nodes.iter().filter_map(|keys| match keys.get(key)? {
            Key::Held { print: it, tag, value } if *it == print => Some((*tag, value.clone())),
            _ => None,
        });
        most(found).map(|(tag, value)| Holder { tag, value })
    }

    /// The same in words: the owner value and the client, as far as they are known.
    pub fn holder_words(&self, key: usize, print: Fingerprint) -> Option<String> {
        let Holder { tag, value } = self.holder(key, print)?;
        let value = value.map(|value| format!("value \"{value}\""));
        let words: Vec<_> = [value, self.words(tag)].into_iter().flatten().collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// The fingerprint that so many masters have for a key.
    #[cfg(target_os = "linux")]
    pub fn print(&self, key: usize, quorum: usize) -> Option<Fingerprint> {
        let of = |keys: &Vec<Key>| match keys.get(key)? {
            Key::Held { print, .. } => Some(print.as_bytes().to_vec()),
            _ => None,
        };
        let bytes = most(self.nodes.iter().filter_map(of))?;
        let count = self.nodes.iter().filter_map(of).filter(|it| *it == bytes).count();
        (count >= quorum).then(|| Fingerprint::new(&bytes))
    }

    /// The clients that have read locks of a key, in words, each once. `None` stands for those of
    /// other libraries.
    pub fn readers(&self, key: usize) -> Vec<Option<Tag>> {
        let mut readers = Vec::new();
        for keys in &self.nodes {
            if let Some(Key::Shared(tags)) = keys.get(key) {
                readers.extend(tags.iter().copied());
            }
        }
        readers.sort_unstable();
        readers.dedup();
        readers.truncate(READERS_MAX);
        readers
    }

    /// A client in words; `None` if no master has listed its clients.
    pub fn words(&self, tag: Option<Tag>) -> Option<String> {
        tag.map_or_else(|| Some(OTHER.to_owned()), |tag| self.clients.words(tag))
    }

    /// The same in a few words.
    pub fn short(&self, tag: Option<Tag>) -> Option<String> {
        tag.map_or_else(|| Some(OTHER.to_owned()), |tag| self.clients.short(tag))
    }
}

/// The value that comes most often.
fn most<T: Ord>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut counts = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_insert(0) += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(value, _)| value)
}

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// `None` for another client library.
    pub tag: Option<Tag>,
    /// The owner value, if it has one.
    pub value: Option<String>,
}

/// A few holders in one line.
#[cfg(target_os = "linux")]
pub fn listed(words: &[String], shown_max: usize) -> String {
    let more = words.len().saturating_sub(shown_max);
    let shown = words[..words.len() - more].join("; ");
    if more == 0 { shown } else { format!("{shown}; and {more} more") }
}

/// The fingerprint that `inspect` shows for an owner value.
#[cfg(target_os = "linux")]
pub fn fingerprint(value: &[u8]) -> Fingerprint {
    match value.len() {
        0..24 => Fingerprint::new(sha1(value).as_bytes()),
        _ => Fingerprint::new(value),
    }
}

/// SHA-1 as servers write it, of a text that is shorter than a block.
#[cfg(target_os = "linux")]
fn sha1(text: &[u8]) -> String {
    let mut block = [0u8; 64];
    block[..text.len()].copy_from_slice(text);
    block[text.len()] = 0x80;
    block[56..].copy_from_slice(&(8 * text.len() as u64).to_be_bytes());
    let mut words = [0u32; 80];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    for i in 16..80 {
        words[i] = (words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16]).rotate_left(1);
    }
    let start = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    let [mut a, mut b, mut c, mut d, mut e] = start;
    for (i, word) in words.into_iter().enumerate() {
        let (mixed, constant) = match i {
            0..20 => (b & c | !b & d, 0x5a82_7999),
            20..40 => (b ^ c ^ d, 0x6ed9_eba1),
            40..60 => (b & c | b & d | c & d, 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6_u32),
        };
        let next = [mixed, e, constant, word].into_iter().fold(a.rotate_left(5), u32::wrapping_add);
        (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
    }
    let end = start.into_iter().zip([a, b, c, d, e]).map(|(it, more)| it.wrapping_add(more));
    end.map(|word| format!("{word:08x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "muxlock/0.1.0:tag=1a2b3c4d:pid=4711:host=web-3:cmd=report:start=1764230000";

    #[test]
    fn tag_is_the_end_of_a_token() {
        let tag = |text: &[u8]| Tag::at_end_of(text).map(|tag| tag.0);
        assert_eq!(tag(b"000102030405060708090a0b0c0d0e0f1a2b3c4d"), Some(*b"1a2b3c4d"));
        assert_eq!(tag(b"muxlock:w:1a2b3c4d"), Some(*b"1a2b3c4d"));
        assert_eq!(tag(b"1a2b3c4D"), None);
        assert_eq!(tag(b"a2b3c4d"), None);
    }

    fn parsed(name: &str, address: &str) -> Option<Client> {
        let line =
            format!("id=3 addr={address} laddr=x fd=8 name={name} age=2 db=0 cmd=get user=u");
        Client::parse(&line).map(|(_, client)| client)
    }

    #[test]
    fn client_is_what_its_name_says() {
        let client = parsed(NAME, "10.0.0.7:5000").unwrap();
        let words = "web-3 pid 4711 (report), started 2025-11-27 07:53:20 UTC, from 10.0.0.7";
        assert_eq!(client.to_string(), words);
        let json = client.as_json();
        assert_eq!((&json["pid"], &json["host"]), (&4711.into(), &"web-3".into()));
        assert_eq!(json["started"], "2025-11-27T07:53:20Z");
        let table = [
            ("muxlock/9:tag=1a2b3c4d:name=a:pid=1:name=b", "a:pid=1:name=b"),
            ("muxlock/9:tag=1a2b3c4d", "a client without a description"),
            ("muxlock/9:tag=1a2b3c4d:pid=x:start=y:more=1:host=h", "h"),
            ("muxlock/9:tag=00000000:name=renews=1a2b3c4d:pid=7:cmd=c:host=h", "h pid 7 (c)"),
            ("muxlock/9:tag=1a2b3c4d:pid=-1:start=99999999999:host=:cmd=c", "(c)"),
        ];
        for (name, words) in table {
            assert_eq!(parsed(name, "/run/s:0").unwrap().to_string(), words, "{name}");
        }
        for name in [
            "",
            "muxlock/0.1.0",
            "muxlock/9:tag=1a2b3c4",
            "muxlock/9:tag=1a2b3c4g",
            "muxlock/9:tag=1a2b3c4d:name=renews=1a2b3c4",
            "x:tag=1a2b3c4d",
        ] {
            assert_eq!(parsed(name, "10.0.0.7:1"), None, "{name}");
        }
        let long =
            parsed(&format!("{NAME}:name={}", "n".repeat(9_000)), "[2001:db8::1]:9").unwrap();
        let text = long.to_string();
        assert!(text.len() < 300 && text.ends_with(", from 2001:db8::1"), "{text}");
    }

    #[test]
    fn oldest_connection_of_a_client_counts() {
        let list =
            format!("id=1 addr=10.0.0.1:1 name={NAME}\nid=2 addr=10.0.0.2:1 name={NAME}\nodd\n");
        let clients = Clients::of_list(&list);
        let found: Vec<_> = clients.values().map(|it| it.address.unwrap().to_string()).collect();
        assert_eq!(found, ["10.0.0.1"]);
    }

    #[test]
    fn client_without_an_answer_of_any_master_is_not_called_gone() {
        let tag = Tag::at_end_of(b"1a2b3c4d").unwrap();
        let none = Clients::of(vec![Err("why".to_owned()), Err("more".to_owned())]);
        assert_eq!((none.words(tag), none.obstacle()), (None, Some("why")));
        let one = Clients::of(vec![Err("why".to_owned()), Ok(BTreeMap::new())]);
        assert_eq!((one.words(tag).as_deref(), one.obstacle()), (Some(UNFOUND), None));
    }

    /// Between two questions, a lock may have changed hands.
    #[test]
    fn holder_has_the_fingerprint_that_is_asked_for_and_most_masters() {
        let held = |print: &str, tag: &str| {
            let (print, tag) = (Fingerprint::new(print.as_bytes()), Tag::at_end_of(tag.as_bytes()));
            vec![Key::Held { print, tag, value: None }]
        };
        let nodes = vec![
            held("aaaaaaaa", "11111111"),
            held("bbbbbbbb", "22222222"),
            held("aaaaaaaa", "33333333"),
            held("aaaaaaaa", "33333333"),
            Vec::new(),
        ];
        let answers = Answers { nodes, clients: Clients::default() };
        let holder = |print: &str| answers.holder(0, Fingerprint::new(print.as_bytes()));
        let tag = |print| holder(print).and_then(|it| it.tag);
        assert_eq!(tag("aaaaaaaa"), Tag::at_end_of(b"33333333"));
        assert_eq!(tag("bbbbbbbb"), Tag::at_end_of(b"22222222"));
        assert_eq!(holder("cccccccc"), None);
    }

    #[test]
    fn owner_value_is_bounded_and_cannot_control_a_terminal() {
        assert_eq!(shown("host1 pid 77"), "host1 pid 77");
        assert_eq!(shown("a\x1b[0m\n"), "a\\u{1b}[0m\\n");
        assert_eq!(shown(&"v".repeat(201)), format!("{}..", "v".repeat(200)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn fingerprint_of_a_value_is_that_of_the_servers() {
        assert_eq!(sha1(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(sha1(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(fingerprint(&[b'v'; 23]).to_string().len(), 8);
        assert_eq!(fingerprint(&[b'v'; 24]).to_string(), "vvvvvvvv");
    }
}
