//! Node addresses: `redis://`, `rediss://` and `unix://` URLs.

use std::fmt;
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::options::RestartGuard;

const PORT_DEFAULT: u16 = 6379;
const SENTINEL_PORT_DEFAULT: u16 = 26379;
/// The most Sentinels of one address.
const SENTINELS_MAX: usize = 16;
const URL_BYTES_MAX: usize = 4096;
/// Longest part of an address that an error shows.
const SHOWN_CHARS_MAX: usize = 200;

/// Where a node listens.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
    Sentinel(Sentinels),
}

/// The Sentinels that know the address of one master. Not `Debug`: it may contain a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Sentinels {
    /// The host and port of each; at least one.
    pub(crate) hosts: Vec<(String, u16)>,
    /// The name that the Sentinels have for the master.
    pub(crate) service: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port } => write_host(f, host, *port),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Sentinel(Sentinels { hosts, service, .. }) => {
                for (i, (host, port)) in hosts.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { "," })?;
                    write_host(f, host, *port)?;
                }
                write!(f, "/{service}")
            }
        }
    }
}

fn write_host(f: &mut fmt::Formatter<'_>, host: &str, port: u16) -> fmt::Result {
    match host.contains(':') {
        true => write!(f, "[{host}]:{port}"),
        false => write!(f, "{host}:{port}"),
    }
}

/// A parsed address. Not `Debug`: it may contain a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct NodeUrl {
    pub(crate) endpoint: Endpoint,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) parameters: Parameters,
    /// Of an address with `rediss://`.
    #[cfg(feature = "tls-no-provider")]
    pub(crate) tls: Option<TlsUrl>,
}

/// The parameters for TLS. Files are named, and not read yet.
#[cfg(feature = "tls-no-provider")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsUrl {
    pub(crate) ca: Option<String>,
    /// The files with the client's certificate and its key.
    pub(crate) client: Option<(String, String)>,
    pub(crate) server_name: Option<String>,
    pub(crate) is_unverified: bool,
}

#[cfg(feature = "tls-no-provider")]
impl TlsUrl {
    fn new(parameters: ForTls<'_>) -> Result<TlsUrl, String> {
        let (mut tls, mut cert, mut key) = (TlsUrl::default(), None, None);
        for (name, value) in parameters {
            if value.is_empty() {
                return Err(format!("{name} is empty"));
            }
            match name {
                "ca" => tls.ca = Some(value),
                "cert" => cert = Some(value),
                "key" => key = Some(value),
                "server_name" => tls.server_name = Some(value),
                _ => tls.is_unverified = !parse_yes_or_no(name, &value)?,
            }
        }
        tls.client = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err("there is a cert without its key".to_owned()),
            (None, Some(_)) => return Err("there is a key without its cert".to_owned()),
        };
        match tls.is_unverified && tls.ca.is_some() {
            true => {
                Err("verify=no checks nothing, and ca says what to check; leave out one".into())
            }
            false => Ok(tls),
        }
    }
}

/// The parameters after the question mark, and the database, which may also be given in the path.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) db: u32,
    /// Overrides the client's setting.
    pub(crate) restart_guard: Option<RestartGuard>,
    /// Whether the operator declares that the node loses no confirmed write.
    pub(crate) durable: bool,
    /// For the Sentinels.
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
}

/// The parameters of every address.
const COMMON: [&str; 2] = ["restart_guard", "durable"];
/// The parameters of an address with `rediss://`.
const FOR_TLS: [&str; 5] = ["ca", "cert", "key", "server_name", "verify"];

/// Names and values of the parameters for TLS.
type ForTls<'a> = Vec<(&'a str, String)>;

impl Parameters {
    /// Also returns the parameters for TLS, decoded, if they are known.
    fn parse<'a>(
        query: Option<&'a str>,
        known: &[&str],
    ) -> Result<(Parameters, ForTls<'a>), String> {
        let (mut parsed, mut for_tls) = (Parameters::default(), Vec::new());
        for parameter in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = split_optional(parameter, '=');
            let value = value.unwrap_or_default();
            match name {
                "db" if !known.contains(&name) => {
                    return Err("write the database as the path: redis://host:port/db".to_owned());
                }
                _ if FOR_TLS.contains(&name) && !known.contains(&name) => {
                    return Err(format!("the parameter {name:?} is for rediss:// only"));
                }
                _ if !known.contains(&name) => {
                    // Without a value, it may be a password.
                    let name = if parameter.contains('=') { name } else { "" };
                    let known = known.join(", ");
                    return Err(format!("the parameter {name:?} is not known; known are {known}"));
                }
                "db" => parsed.db = parse_db(value)?,
                "durable" => parsed.durable = parse_yes_or_no(name, value)?,
                "sentinel_user" => parsed.sentinel_user = Some(decode(name, value)?),
                "sentinel_password" => parsed.sentinel_password = Some(decode(name, value)?),
                _ if FOR_TLS.contains(&name) => for_tls.push((name, decode(name, value)?)),
                _ => parsed.restart_guard = Some(parse_restart_guard(value)?),
            }
        }
        Ok((parsed, for_tls))
    }
}

fn parse_yes_or_no(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("{name} is {value:?}; it must be yes or no")),
    }
}

fn parse_restart_guard(value: &str) -> Result<RestartGuard, String> {
    match value {
        "uptime" => Ok(RestartGuard::Uptime),
        "own_observation" => Ok(RestartGuard::OwnObservation),
        "off" => Ok(RestartGuard::Off),
        _ => Err(format!("restart_guard is {value:?}; it must be uptime, own_observation or off")),
    }
}

impl NodeUrl {
    pub(crate) fn parse(url: &str) -> Result<NodeUrl, ConfigError> {
        parse(url).map_err(|reason| ConfigError::Url { url: redacted(url), reason })
    }
}

const LIST: &str = "more addresses follow in the same text; pass each alone, or the whole list to \
     Redlock::builder().nodes_from(..)";

const SCHEMES: [&str; 11] = [
    "redis://",
    "rediss://",
    "valkey://",
    "valkeys://",
    "unix://",
    "redis+unix://",
    "valkey+unix://",
    "redis+sentinel://",
    "valkey+sentinel://",
    "rediss+sentinel://",
    "valkeys+sentinel://",
];

fn is_separator(char: char) -> bool {
    matches!(char, ',' | ';') || char.is_whitespace()
}

/// The addresses of a list.
pub(super) fn addresses(list: &str) -> impl Iterator<Item = &str> {
    let mut rest = list;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(is_separator);
        let next = rest.char_indices().skip(1).find(|(at, _)| {
            let (before, from) = rest.split_at(*at);
            before.ends_with(is_separator) && SCHEMES.iter().any(|scheme| from.starts_with(scheme))
        });
        let (address, others) = rest.split_at(next.map_or(rest.len(), |(at, _)| at));
        rest = others;
        let address = address.trim_end_matches(is_separator);
        (!address.is_empty()).then_some(address)
    })
}

/// Whether it is several addresses. Otherwise all but the last would be taken for a password.
fn is_list(url: &str) -> bool {
    let is_address = |part: &str| SCHEMES.iter().any(|scheme| part.starts_with(scheme));
    url.split(is_separator).filter(|part| is_address(part)).count() > 1
}

fn parse(url: &str) -> Result<NodeUrl, String> {
    if url.len() > URL_BYTES_MAX {
        return Err(format!("it has {} bytes, more than {URL_BYTES_MAX}", url.len()));
    }
    if is_list(url) {
        return Err(LIST.to_owned());
    }
    if url.trim() != url {
        return Err("there is white space before or after it".to_owned());
    }
    let (scheme, rest) = url.split_once("://").ok_or_else(|| {
        "there is no \"://\" in it; write redis://host:port or unix:///path".to_owned()
    })?;
    match scheme {
        "redis" | "valkey" => Ok(parse_tcp(rest, &COMMON)?.0),
        "unix" | "redis+unix" | "valkey+unix" => parse_unix(rest),
        "redis+sentinel" | "valkey+sentinel" => Ok(parse_sentinel(rest, &COMMON)?.0),
        #[cfg(feature = "tls-no-provider")]
        "rediss" | "valkeys" | "rediss+sentinel" | "valkeys+sentinel" => parse_tls(scheme, rest),
        #[cfg(not(feature = "tls-no-provider"))]
        "rediss" | "valkeys" | "rediss+sentinel" | "valkeys+sentinel" => Err(format!(
            "{scheme}:// needs TLS, and this program was built without it: it needs the feature \
             \"tls\" of muxlock"
        )),
        _ => Err(format!(
            "the scheme is {scheme:?}; known are redis://, unix:// and redis+sentinel://"
        )),
    }
}

#[cfg(feature = "tls-no-provider")]
fn parse_tls(scheme: &str, rest: &str) -> Result<NodeUrl, String> {
    let known = [&COMMON[..], &FOR_TLS].concat();
    let (url, for_tls) = match scheme.ends_with("sentinel") {
        true => parse_sentinel(rest, &known)?,
        false => parse_tcp(rest, &known)?,
    };
    Ok(NodeUrl { tls: Some(TlsUrl::new(for_tls)?), ..url })
}

/// What is before the last @, which ends the credentials, so that a password may hold anything
/// unencoded; and what is behind it.
fn split_credentials(rest: &str) -> Result<(Option<&str>, &str), String> {
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((credentials, rest)) => (Some(credentials), rest),
        None => (None, rest),
    };
    match rest.contains('#') {
        true => Err("a fragment is not allowed (write %23)".to_owned()),
        false => Ok((credentials, rest)),
    }
}

/// Also returns the parameters for TLS.
fn parse_tcp<'a>(rest: &'a str, known: &[&str]) -> Result<(NodeUrl, ForTls<'a>), String> {
    let (credentials, rest) = split_credentials(rest)?;
    let (rest, query) = split_optional(rest, '?');
    let (mut parameters, for_tls) = Parameters::parse(query, known)?;
    let (authority, path) = split_optional(rest, '/');
    let (user, password) = credentials.map(parse_credentials).transpose()?.unwrap_or_default();
    let (host, port) = parse_authority(authority, PORT_DEFAULT)?;
    if let Some(db) = path.filter(|path| !path.is_empty()) {
        parameters.db = parse_db(db)?;
    }
    let url = NodeUrl {
        endpoint: Endpoint::Tcp { host, port },
        user,
        password,
        parameters,
        #[cfg(feature = "tls-no-provider")]
        tls: None,
    };
    Ok((url, for_tls))
}

/// Also returns the parameters for TLS.
fn parse_sentinel<'a>(rest: &'a str, known: &[&str]) -> Result<(NodeUrl, ForTls<'a>), String> {
    let (credentials, rest) = split_credentials(rest)?;
    let (rest, query) = split_optional(rest, '?');
    let known = [&["db", "sentinel_user", "sentinel_password"], known].concat();
    let (mut parameters, for_tls) = Parameters::parse(query, &known)?;
    let (authorities, service) = split_optional(rest, '/');
    let service = decode("name of the master", service.unwrap_or_default())?;
    if service.is_empty() || service.contains(|char: char| char.is_control() || char == '/') {
        let form = "redis+sentinel://host1,host2,host3/mymaster";
        return Err(format!("the name that the Sentinels have for the master is missing: {form}"));
    }
    let (user, password) = credentials.map(parse_credentials).transpose()?.unwrap_or_default();
    let parse = |authority| parse_authority(authority, SENTINEL_PORT_DEFAULT);
    let hosts = authorities.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
    if hosts.len() > SENTINELS_MAX {
        return Err(format!("there are {} Sentinels, more than {SENTINELS_MAX}", hosts.len()));
    }
    let sentinels = Sentinels {
        hosts,
        service,
        user: parameters.sentinel_user.take(),
        password: parameters.sentinel_password.take(),
    };
    if sentinels.user.is_some() && sentinels.password.is_none() {
        return Err("sentinel_user needs sentinel_password".to_owned());
    }
    let url = NodeUrl {
        endpoint: Endpoint::Sentinel(sentinels),
        user,
        password,
        parameters,
        #[cfg(feature = "tls-no-provider")]
        tls: None,
    };
    Ok((url, for_tls))
}

fn parse_unix(rest: &str) -> Result<NodeUrl, String> {
    let (path, query) = split_optional(rest, '?');
    let path = decode("path", path)?;
    if !Path::new(&path).is_absolute() {
        return Err("the socket's path is not absolute; write unix:///path".to_owned());
    }
    let (parameters, _) = Parameters::parse(query, &["db", "restart_guard", "durable"])?;
    Ok(NodeUrl {
        endpoint: Endpoint::Unix(path.into()),
        user: None,
        password: None,
        parameters,
        #[cfg(feature = "tls-no-provider")]
        tls: None,
    })
}

fn split_optional(text: &str, separator: char) -> (&str, Option<&str>) {
    match text.split_once(separator) {
        Some((head, tail)) => (head, Some(tail)),
        None => (text, None),
    }
}

fn parse_credentials(text: &str) -> Result<(Option<String>, Option<String>), String> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, password),
        None => {
            return Err(
                "there is a user but no password; write user:password@ or :password@".to_owned()
            );
        }
    };
    let user = decode("user", user)?;
    let password = decode("password", password)?;
    if password.is_empty() {
        return Err("the password is empty".to_owned());
    }
    Ok(((!user.is_empty()).then_some(user), Some(password)))
}

fn parse_authority(text: &str, port_default: u16) -> Result<(String, u16), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) =
                rest.split_once(']').ok_or("the bracket of the IPv6 address is not closed")?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| format!("[{host}] is not an IPv6 address"))?;
            match rest.strip_prefix(':') {
                Some(port) => (host.to_owned(), Some(port)),
                None if rest.is_empty() => (host.to_owned(), None),
                None => return Err(format!("{rest:?} follows the bracket, not a port")),
            }
        }
        None => {
            let (host, port) = split_optional(text, ':');
            if port.is_some_and(|port| port.contains(':')) {
                return Err("an IPv6 address must be in brackets".to_owned());
            }
            (decode("host", host)?, port)
        }
    };
    if host.is_empty() {
        return Err("the host is empty".to_owned());
    }
    if host.contains([',', ';']) {
        return Err(LIST.to_owned());
    }
    if host.contains(char::is_whitespace) {
        return Err("there is white space in the host".to_owned());
    }
    let port = match port {
        None => port_default,
        Some(port) => match number(port) {
            Some(port @ 1..=65_535) => port as u16,
            Some(port) => return Err(format!("the port is {port}; it must be 1 to 65535")),
            // The text may be a password whose host was forgotten, so the error does not show it.
            None => return Err("the port is not a number from 1 to 65535".to_owned()),
        },
    };
    Ok((host, port))
}

fn parse_db(text: &str) -> Result<u32, String> {
    number(text)
        .filter(|db| *db <= i32::MAX as u32)
        .ok_or_else(|| format!("the database is {text:?}; it must be a number like 0 or 15"))
}

/// Digits only: `str::parse` would accept a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn decode(part: &str, text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => {
                return Err(format!(
                    "the {part} has a % that two hexadecimal digits do not follow"
                ));
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| format!("the {part} is not UTF-8"))
}

/// The address for an error text, without anything that may be a credential.
fn redacted(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    // Of a list, only the first part is certain to be an address.
    let rest = match is_list(url) {
        true => rest.split(is_separator).next().unwrap_or_default(),
        false => rest,
    };
    let shown = match (rest.rsplit_once('@'), rest.split_once(':')) {
        (Some((_, host)), _) => format!("{scheme}***@{host}"),
        // Without a host, the text in the port's place may be a password.
        (None, Some((host, tail))) if !scheme.ends_with("unix://") && !has_port(rest, tail) => {
            format!("{scheme}{host}:***")
        }
        (None, _) => format!("{scheme}{rest}"),
    };
    // Other clients accept a password as a query parameter.
    let shown = match shown.split_once('?') {
        Some((address, query)) => {
            let named = |parameter: &str| match parameter.split_once('=') {
                Some((name, _)) => format!("{name}=***"),
                None => "***".to_owned(),
            };
            let query: Vec<_> = query.split('&').map(named).collect();
            format!("{address}?{}", query.join("&"))
        }
        None => shown,
    };
    shown.chars().take(SHOWN_CHARS_MAX).collect()
}

fn has_port(rest: &str, tail: &str) -> bool {
    let port = tail.split(['/', '?', '#']).next().unwrap_or_default();
    rest.starts_with('[') || number(port).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> NodeUrl {
        let endpoint = Endpoint::Tcp { host: host.to_owned(), port };
        NodeUrl {
            endpoint,
            user: None,
            password: None,
            parameters: Parameters::default(),
            #[cfg(feature = "tls-no-provider")]
            tls: None,
        }
    }

    fn error(url: &str) -> String {
        match NodeUrl::parse(url) {
            Ok(_) => panic!("{url} was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn accepted_forms() {
        let with = |user: Option<&str>, password: &str, db| NodeUrl {
            user: user.map(str::to_owned),
            password: Some(password.to_owned()),
            parameters: Parameters { db, ..Parameters::default() },
            ..tcp("h", 6379)
        };
        let unix = |path: &str, db| NodeUrl {
            endpoint: Endpoint::Unix(path.into()),
            parameters: Parameters { db, ..Parameters::default() },
            ..tcp("h", 6379)
        };
        let guarded = |guard, durable| NodeUrl {
            parameters: Parameters { restart_guard: guard, durable, ..Parameters::default() },
            ..tcp("h", 6379)
        };
        let table = [
            ("redis://h", tcp("h", 6379)),
            ("redis://h:7000/", tcp("h", 7000)),
            ("redis://[::1]", tcp("::1", 6379)),
            ("redis://[::1]:7000", tcp("::1", 7000)),
            ("redis://:p@h", with(None, "p", 0)),
            ("redis://u:p@h/3", with(Some("u"), "p", 3)),
            ("redis://u:p%40%3a%2F@h", with(Some("u"), "p@:/", 0)),
            ("redis://u:p@ss/word@h", with(Some("u"), "p@ss/word", 0)),
            ("redis://u:p:q@h", with(Some("u"), "p:q", 0)),
            ("valkey://h:7000", tcp("h", 7000)),
            ("unix:///run/redis.sock", unix("/run/redis.sock", 0)),
            ("redis+unix:///run/redis.sock", unix("/run/redis.sock", 0)),
            ("unix:///run/a%20b?db=2", unix("/run/a b", 2)),
            ("redis://h?restart_guard=off", guarded(Some(RestartGuard::Off), false)),
            ("redis://h/?durable=yes", guarded(None, true)),
            (
                "redis://h?durable=no&restart_guard=own_observation",
                guarded(Some(RestartGuard::OwnObservation), false),
            ),
        ];
        for (url, expected) in table {
            match NodeUrl::parse(url) {
                Ok(parsed) => assert!(parsed == expected, "{url}"),
                Err(error) => panic!("{url}: {error}"),
            }
        }
    }

    #[test]
    fn sentinels_of_one_master_are_one_address() {
        let long = "redis+sentinel://u:p@s1:26380,[::1],s3/my%20master?db=2\
            &sentinel_user=a&sentinel_password=b%26&durable=yes";
        let Ok(NodeUrl { endpoint, user, password, parameters, .. }) = NodeUrl::parse(long) else {
            panic!("it is accepted");
        };
        assert_eq!(endpoint.to_string(), "s1:26380,[::1]:26379,s3:26379/my master");
        let Endpoint::Sentinel(sentinels) = endpoint else {
            panic!("they are Sentinels");
        };
        assert_eq!(sentinels.user.as_deref(), Some("a"));
        assert_eq!(sentinels.password.as_deref(), Some("b&"));
        assert_eq!((user.as_deref(), password.as_deref()), (Some("u"), Some("p")));
        assert_eq!((parameters.db, parameters.durable), (2, true));
        let table = [
            (
                "redis+sentinel://s1,s2",
                "the name that the Sentinels have for the master is missing",
            ),
            ("redis+sentinel://s1/", "the name that the Sentinels have"),
            ("redis+sentinel://s1/a/0", "the name that the Sentinels have"),
            ("redis+sentinel://s1,,s2/m", "the host is empty"),
            ("redis+sentinel://s1,s2:x/m", "the port is not a number"),
            ("redis+sentinel://s1/m?sentinel_user=a", "sentinel_user needs sentinel_password"),
        ];
        for (url, expected) in table {
            assert!(error(url).contains(expected), "{url}: {}", error(url));
        }
        let many = format!("redis+sentinel://{}/m", vec!["s"; 17].join(","));
        assert!(error(&many).contains("there are 17 Sentinels, more than 16"));
        let secret = error("redis+sentinel://u:geheim@s1/m?sentinel_password=geheim&x=1");
        assert!(!secret.contains("geheim"), "{secret}");
        let list = "redis+sentinel://s1,s2/a,redis+sentinel://s3/b;redis://h";
        let all: Vec<_> = addresses(list).collect();
        assert_eq!(all, ["redis+sentinel://s1,s2/a", "redis+sentinel://s3/b", "redis://h"]);
    }

    #[test]
    fn refused_forms_say_why() {
        let table = [
            ("localhost:6379", "no \"://\""),
            ("http://h", "the scheme is \"http\""),
            #[cfg(not(feature = "tls-no-provider"))]
            ("rediss://h", "it needs the feature \"tls\" of muxlock"),
            ("redis://h?ca=/ca.pem", "the parameter \"ca\" is for rediss:// only"),
            ("unix:///s?verify=no", "the parameter \"verify\" is for rediss:// only"),
            ("redis://", "host is empty"),
            ("redis://h:0", "the port is 0"),
            ("redis://h:65536", "the port is 65536"),
            ("redis://h:+1", "the port is not a number"),
            ("redis://h:", "the port is not a number"),
            ("redis://::1", "must be in brackets"),
            ("redis://[::1", "not closed"),
            ("redis://[h]", "not an IPv6 address"),
            ("redis://[::1]7000", "not a port"),
            ("redis://h/x", "the database is \"x\""),
            ("redis://h/1/2", "the database is \"1/2\""),
            ("redis://h/-1", "the database is \"-1\""),
            ("redis://h?x=1", "the parameter \"x\" is not known"),
            ("redis://h?db=1", "write the database as the path: redis://host:port/db"),
            (" redis://h", "there is white space before or after it"),
            ("redis://h\n", "there is white space before or after it"),
            ("redis://h g", "there is white space in the host"),
            (
                "redis://h,g",
                "more addresses follow in the same text; pass each alone, or the whole list to \
                 Redlock::builder().nodes_from(..)",
            ),
            ("redis://h, redis://g", "cannot use the address redis://h: more addresses follow"),
            ("redis://h redis://g", "more addresses follow"),
            #[cfg(not(feature = "tls-no-provider"))]
            ("valkeys://h", "valkeys:// needs TLS"),
            ("redis://h?restart_guard=on", "must be uptime, own_observation or off"),
            ("redis://h?restart_guard", "restart_guard is \"\""),
            ("redis://h?durable=1", "must be yes or no"),
            ("redis://h?", "the parameter \"\" is not known"),
            ("redis://h?odd=1", "the parameter \"odd\" is not known"),
            ("redis://h#x", "a fragment is not allowed (write %23)"),
            ("redis://u@h", "there is a user but no password; write user:password@ or :password@"),
            ("redis://u:@h", "the password is empty"),
            ("redis://u:%zz@h", "the password has a %"),
            ("redis://u:%ff@h", "the password is not UTF-8"),
            ("unix://run/redis.sock", "not absolute"),
            ("unix:///s?database=1", "the parameter \"database\""),
        ];
        for (url, expected) in table {
            let error = error(url);
            assert!(error.contains(expected), "{url}: {error}");
        }
    }

    #[cfg(feature = "tls-no-provider")]
    #[test]
    fn parameters_for_tls_are_parsed_and_fit_together() {
        let parsed = |url| match NodeUrl::parse(url) {
            Ok(url) => url.tls.expect("it has TLS"),
            Err(error) => panic!("{url}: {error}"),
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(parsed("rediss://h"), TlsUrl::default());
        assert_eq!(parsed("valkeys://h?verify=yes"), TlsUrl::default());
        let url = "rediss://u:p@h:7000/1?ca=/a%26b&cert=/c&key=/k&server_name=name&durable=yes";
        let client = Some(("/c".to_owned(), "/k".to_owned()));
        let (ca, server_name) = (text("/a&b"), text("name"));
        assert_eq!(parsed(url), TlsUrl { ca, client, server_name, is_unverified: false });
        assert!(parsed("rediss://h?verify=no&server_name=n").is_unverified);
        let table = [
            ("rediss://h?ca=", "ca is empty"),
            ("rediss://h?ca", "ca is empty"),
            ("rediss://h?ca=%zz", "the ca has a %"),
            ("rediss://h?cert=/c", "there is a cert without its key"),
            ("rediss://h?key=/c", "there is a key without its cert"),
            ("rediss://h?verify=off", "verify is \"off\"; it must be yes or no"),
            ("rediss://h?verify=no&ca=/c", "verify=no checks nothing"),
            ("rediss://h?name=n", "known are restart_guard, durable, ca, cert, key, server_name"),
        ];
        for (url, expected) in table {
            let error = error(url);
            assert!(error.contains(expected), "{url}: {error}");
        }
    }

    /// What does not begin like an address may be the rest of a password.
    #[test]
    fn list_is_cut_only_before_an_address() {
        let table: [(&str, &[&str]); 6] = [
            ("", &[]),
            (" ,; ", &[]),
            ("redis://a", &["redis://a"]),
            (" redis://a,valkey://b ;\nunix:///c\t", &["redis://a", "valkey://b", "unix:///c"]),
            ("redis://u:p,se;sa me@a, redis://b", &["redis://u:p,se;sa me@a", "redis://b"]),
            ("a, redis://b,c", &["a", "redis://b,c"]),
        ];
        for (list, expected) in table {
            assert_eq!(addresses(list).collect::<Vec<_>>(), expected, "{list:?}");
        }
    }

    #[test]
    fn no_error_shows_a_password() {
        for url in [
            "redis://u:sesame@h:0",
            "redis://:sesame@h/x",
            "u:sesame@h",
            "http://sesame@h",
            "redis://u:pass?sesame@h:0",
            "redis://u:pass#sesame@h:0",
            "redis://u:sesame",
            "redis://h?sesame",
            "redis://u:sesame@h:0,redis://g",
            "redis://u:se,sesame@h redis://:sesame@g",
            "redis://:sesame",
            "redis://u:sesame/",
            "redis://h?password=sesame",
            "unix:///run/redis.sock?password=sesame",
        ] {
            let error = error(url);
            assert!(!error.contains("sesame"), "{error}");
        }
    }
}
