//! Node addresses: `redis://`, `rediss://` and `unix://` URLs.

use std::fmt;
use std::path::PathBuf;

use super::credentials::Credentials;
use super::error::ConfigError;
use super::options::{Notices, RestartGuard};

const PORT_DEFAULT: u16 = 6379;
const SENTINEL_PORT_DEFAULT: u16 = 26379;
/// The most Sentinels of one address.
const SENTINELS_MAX: usize = 16;
const URL_BYTES_MAX: usize = 4096;
/// Longest part of an address that an error shows.
const SHOWN_CHARS_MAX: usize = 200;
/// Other clients' parameters for credentials.
const CREDENTIALS: [&str; 5] = ["user", "username", "password", "pass", "auth"];
/// Schemes of other programs. An error shows one of these, and no other: in the place of a scheme
/// that is not known there may be a password.
const FOREIGN_SCHEMES: [&str; 14] = [
    "http",
    "https",
    "tcp",
    "tls",
    "ssl",
    "file",
    "sentinel",
    "redis-sentinel",
    "rediss-sentinel",
    "redis-cluster",
    "redis+cluster",
    "redis+srv",
    "redis+tls",
    "redis+ssl",
];

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
    pub(crate) login: Option<Credentials>,
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
            true => Err("verify=no and ca exclude each other: leave out one".into()),
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
    pub(crate) notices: Notices,
    /// For the Sentinels.
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
}

/// The parameters of every address.
const COMMON: [&str; 2] = ["restart_guard", "notices"];
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
                _ if CREDENTIALS.contains(&name) => {
                    return Err(format!("the parameter {name:?} is not known; {WITH_PASSWORD}"));
                }
                // Its name is not shown: without a value, or before the padding of Base64, it is a
                // password.
                _ if !known.contains(&name) => {
                    let known = known.join(", ");
                    return Err(format!("a parameter is not known; known are {known}"));
                }
                "db" => parsed.db = parse_db(value)?,
                "sentinel_user" => parsed.sentinel_user = Some(decode(name, value)?),
                "sentinel_password" => parsed.sentinel_password = Some(decode(name, value)?),
                _ if FOR_TLS.contains(&name) => for_tls.push((name, decode(name, value)?)),
                "notices" => parsed.notices = parse_notices(value)?,
                _ => parsed.restart_guard = Some(parse_restart_guard(value)?),
            }
        }
        Ok((parsed, for_tls))
    }
}

#[cfg(feature = "tls-no-provider")]
fn parse_yes_or_no(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("{name} must be yes or no")),
    }
}

fn parse_notices(value: &str) -> Result<Notices, String> {
    match value {
        "yes" => Ok(Notices::Required),
        "no" => Ok(Notices::Forgone),
        _ => Err("notices must be yes or no".to_owned()),
    }
}

pub(super) fn parse_restart_guard(value: &str) -> Result<RestartGuard, String> {
    match value {
        "uptime" => Ok(RestartGuard::Uptime),
        "own_observation" => Ok(RestartGuard::OwnObservation),
        "off" => Ok(RestartGuard::Off),
        _ => Err("restart_guard must be uptime, own_observation or off".to_owned()),
    }
}

impl NodeUrl {
    pub(crate) fn parse(url: &str) -> Result<NodeUrl, ConfigError> {
        parse(url).map_err(|reason| ConfigError::Url { url: understood(url), reason })
    }
}

const LIST: &str = "more addresses follow in the same text; give each alone (--node, \
     Builder::node), or all of them to MUXLOCK_NODES or Builder::nodes_from";
/// Behind a separator, there is no scheme. The rest of the text may be a password, so it is not shown.
const WITHOUT_SCHEME: &str = "a comma, a semicolon or white space is in it; if another address \
     follows, write its scheme as well: redis://host1, redis://host2";
const KNOWN_SCHEMES: &str = "redis://, unix:// and redis+sentinel://";
const WITH_PASSWORD: &str =
    "write the password as redis://user:password@host or unix://user:password@/path";
const UNIX_FORM: &str = "unix:///path, or unix://user:password@/path";
const UNCLEAR: &str =
    "it is not clear where the password ends: write %40 for @, %2F for /, %3F for ? and %23 for #";

const SCHEMES: [&str; 13] = [
    "redis://",
    "rediss://",
    "valkey://",
    "valkeys://",
    "unix://",
    "redis+unix://",
    "valkey+unix://",
    "redis+socket://",
    "redis-socket://",
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
        _ if is_unix(scheme) => parse_unix(rest),
        "redis+sentinel" | "valkey+sentinel" => Ok(parse_sentinel(rest, &COMMON)?.0),
        #[cfg(feature = "tls-no-provider")]
        "rediss" | "valkeys" | "rediss+sentinel" | "valkeys+sentinel" => parse_tls(scheme, rest),
        #[cfg(not(feature = "tls-no-provider"))]
        "rediss" | "valkeys" | "rediss+sentinel" | "valkeys+sentinel" => Err(format!(
            "{scheme}:// needs TLS, and this program was built without it: it needs the feature \
             \"tls\" of muxlock"
        )),
        // Of a file whose quotes are part of the text, or of a list in JSON.
        _ if scheme.starts_with(['"', '\'', '[']) => {
            Err("a quote or a bracket is in front of it: leave it out, and at the end".to_owned())
        }
        _ => Err(match FOREIGN_SCHEMES.contains(&scheme) {
            true => format!("the scheme is {scheme:?}; known are {KNOWN_SCHEMES}"),
            false => format!("the scheme is not known; known are {KNOWN_SCHEMES}"),
        }),
    }
}

fn is_unix(scheme: &str) -> bool {
    matches!(scheme, "unix" | "redis+unix" | "valkey+unix" | "redis+socket" | "redis-socket")
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

/// The rest of an address after its scheme, in parts that are not decoded yet.
struct Parts<'a> {
    credentials: Option<&'a str>,
    /// Where the server is.
    endpoint: &'a str,
    query: Option<&'a str>,
    has_fragment: bool,
}

/// The last @ ends the credentials, so that a password may hold almost anything unencoded.
fn split<'a>(rest: &'a str, is_endpoint: fn(&str) -> bool) -> Result<Parts<'a>, String> {
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((credentials, rest)) => (Some(credentials), rest),
        None => (None, rest),
    };
    // Is that @ in the query of an address that has ended before? The text behind it is then no
    // host, and may be the rest of a password. A slash may just as well be the password's, unless a
    // host and a port are before it.
    let has_ended = |text: &str| {
        let mut ends = text.match_indices(['?', '#', '/']);
        ends.any(|(at, end)| {
            let (credentials, before) = text[..at].rsplit_once('@').unwrap_or(("", &text[..at]));
            let is_sure = end != "/" || !credentials.is_empty() && before.contains(':');
            is_sure && is_endpoint(before)
        })
    };
    if credentials.is_some_and(has_ended) {
        return Err(UNCLEAR.to_owned());
    }
    // The credentials of another address, or a password that looks like that.
    let is_followed = |(at, _)| {
        let (host, next) = credentials?[at + 1..].split_once(is_separator)?;
        (is_endpoint(host) && next.contains(':')).then_some(())
    };
    if credentials.unwrap_or_default().match_indices('@').find_map(is_followed).is_some() {
        return Err(format!("{WITHOUT_SCHEME}; in a password, write %40 for @"));
    }
    let (rest, fragment) = split_optional(rest, '#');
    let (endpoint, query) = split_optional(rest, '?');
    Ok(Parts { credentials, endpoint, query, has_fragment: fragment.is_some() })
}

impl<'a> Parts<'a> {
    fn of_tcp(rest: &'a str) -> Result<Parts<'a>, String> {
        split(rest, |text| parse_authority(split_optional(text, '/').0, PORT_DEFAULT).is_ok())
    }

    fn of_sentinel(rest: &'a str) -> Result<Parts<'a>, String> {
        split(rest, |text| parse_sentinels(split_optional(text, '/').0).is_ok())
    }

    fn of_unix(rest: &'a str) -> Result<Parts<'a>, String> {
        // Other clients take the password out of `unix:///:password@/path`.
        if rest.starts_with('/') && rest.contains('@') {
            return Err(format!("write %40 for an @ in the path; the form is {UNIX_FORM}"));
        }
        split(rest, |text| text.starts_with('/'))
    }

    fn without_fragment(self) -> Result<Parts<'a>, String> {
        match self.has_fragment {
            true => Err("a fragment is not allowed (write %23)".to_owned()),
            false => Ok(self),
        }
    }

    /// The address, without its TLS settings.
    fn url(&self, endpoint: Endpoint, parameters: Parameters) -> Result<NodeUrl, String> {
        Ok(NodeUrl {
            endpoint,
            login: self.credentials.map(parse_credentials).transpose()?,
            parameters,
            #[cfg(feature = "tls-no-provider")]
            tls: None,
        })
    }
}

/// Also returns the parameters for TLS.
fn parse_tcp<'a>(rest: &'a str, known: &[&str]) -> Result<(NodeUrl, ForTls<'a>), String> {
    let parts = Parts::of_tcp(rest)?.without_fragment()?;
    if parts.endpoint.contains(is_separator) {
        return Err(WITHOUT_SCHEME.to_owned());
    }
    let parsed = Parameters::parse(parts.query, known);
    let is_list = parsed.is_err() && parts.query.is_some_and(|query| query.contains(is_separator));
    let (mut parameters, for_tls) = if is_list { Err(WITHOUT_SCHEME.to_owned())? } else { parsed? };
    let (authority, path) = split_optional(parts.endpoint, '/');
    let (host, port) = parse_authority(authority, PORT_DEFAULT)?;
    if let Some(db) = path.filter(|path| !path.is_empty()) {
        parameters.db = parse_db(db)?;
    }
    Ok((parts.url(Endpoint::Tcp { host, port }, parameters)?, for_tls))
}

fn parse_sentinels(authorities: &str) -> Result<Vec<(String, u16)>, String> {
    let parse = |authority| parse_authority(authority, SENTINEL_PORT_DEFAULT);
    authorities.split(',').map(parse).collect()
}

fn parse_service(text: &str) -> Result<String, String> {
    let service = decode("name of the master", text)?;
    if service.is_empty() || service.contains(|char: char| char.is_control() || char == '/') {
        let form = "redis+sentinel://host1,host2,host3/mymaster";
        return Err(format!("the name that the Sentinels have for the master is missing: {form}"));
    }
    Ok(service)
}

fn sentinels_at(endpoint: &str) -> Result<Sentinels, String> {
    let (authorities, service) = split_optional(endpoint, '/');
    let service = parse_service(service.unwrap_or_default())?;
    let hosts = parse_sentinels(authorities)?;
    Ok(Sentinels { hosts, service, user: None, password: None })
}

/// Also returns the parameters for TLS.
fn parse_sentinel<'a>(rest: &'a str, known: &[&str]) -> Result<(NodeUrl, ForTls<'a>), String> {
    let parts = Parts::of_sentinel(rest)?.without_fragment()?;
    let known = [&["db", "sentinel_user", "sentinel_password"], known].concat();
    let (mut parameters, for_tls) = Parameters::parse(parts.query, &known)?;
    let mut sentinels = sentinels_at(parts.endpoint)?;
    let count = sentinels.hosts.len();
    if count > SENTINELS_MAX {
        return Err(format!("there are {count} Sentinels, more than {SENTINELS_MAX}"));
    }
    sentinels.user = parameters.sentinel_user.take();
    sentinels.password = parameters.sentinel_password.take();
    if sentinels.user.is_some() && sentinels.password.is_none() {
        return Err("sentinel_user needs sentinel_password".to_owned());
    }
    Ok((parts.url(Endpoint::Sentinel(sentinels), parameters)?, for_tls))
}

fn parse_unix(rest: &str) -> Result<NodeUrl, String> {
    let parts = Parts::of_unix(rest)?.without_fragment()?;
    let path = parse_path(parts.endpoint)?;
    let (parameters, _) = Parameters::parse(parts.query, &[&["db"], &COMMON[..]].concat())?;
    parts.url(Endpoint::Unix(path), parameters)
}

/// A path is shown in errors and log records. So a character that may separate a password from it
/// in an address of another client must be encoded.
fn parse_path(text: &str) -> Result<PathBuf, String> {
    if !text.starts_with('/') {
        return Err(format!("the socket's path is not absolute; the form is {UNIX_FORM}"));
    }
    let is_odd = |char: char| ":,;&=".contains(char) || char.is_whitespace() || char.is_control();
    if text.contains(is_odd) {
        let is_list = |(at, _)| text[at..].trim_start_matches(is_separator).starts_with('/');
        if text.match_indices(is_separator).any(is_list) {
            return Err(WITHOUT_SCHEME.to_owned());
        }
        let as_hex = "write %3A for : in the path, and likewise , ; & = and white space";
        return Err(format!("{as_hex}; the form is {UNIX_FORM}"));
    }
    let path = decode("path", text)?;
    match path.contains(char::is_control) {
        true => Err("there is a control character in the path".to_owned()),
        false => Ok(path.into()),
    }
}

fn split_optional(text: &str, separator: char) -> (&str, Option<&str>) {
    match text.split_once(separator) {
        Some((head, tail)) => (head, Some(tail)),
        None => (text, None),
    }
}

fn parse_credentials(text: &str) -> Result<Credentials, String> {
    let (user, password) = text
        .split_once(':')
        .ok_or("there is a user but no password; write user:password@ or :password@")?;
    let user = decode("user", user)?;
    let password = decode("password", password)?;
    if password.is_empty() {
        return Err("the password is empty".to_owned());
    }
    Ok(Credentials { user: (!user.is_empty()).then_some(user), password })
}

fn parse_authority(text: &str, port_default: u16) -> Result<(String, u16), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) =
                rest.split_once(']').ok_or("the bracket of the IPv6 address is not closed")?;
            let host = parse_ipv6(host)?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err("the text after the bracket is not a port".to_owned()),
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
    if host.contains(is_separator) {
        return Err(WITHOUT_SCHEME.to_owned());
    }
    // With others, it is more likely the rest of a password.
    let is_usual = |char: char| char.is_alphanumeric() || "-_.:".contains(char);
    if !text.starts_with('[') && !host.chars().all(is_usual) {
        return Err("the host has a character that host names do not have".to_owned());
    }
    let port = match port {
        None => port_default,
        // The text may be a password whose host was forgotten, so the error does not show it.
        Some(port) => match number(port) {
            Some(port @ 1..=65_535) => port as u16,
            _ => return Err("the port is not a number from 1 to 65535".to_owned()),
        },
    };
    Ok((host, port))
}

/// An IPv6 address, perhaps with the zone of this machine that it is in, such as `fe80::1%eth0`. In
/// a URL, the percent sign may be encoded (RFC 6874).
fn parse_ipv6(text: &str) -> Result<String, String> {
    let (number, zone) = split_optional(text, '%');
    let is_number = number.parse::<std::net::Ipv6Addr>().is_ok();
    is_number.then_some(()).ok_or("the text in the brackets is not an IPv6 address")?;
    let Some(zone) = zone else { return Ok(number.to_owned()) };
    let zone = zone.strip_prefix("25").filter(|zone| !zone.is_empty()).unwrap_or(zone);
    let is_usual = |char: char| char.is_ascii_alphanumeric() || "-_.:@".contains(char);
    match !zone.is_empty() && zone.chars().all(is_usual) {
        true => Ok(format!("{number}%{zone}")),
        false => Err("the zone behind the % is not a network interface, such as eth0".to_owned()),
    }
}

fn parse_db(text: &str) -> Result<u32, String> {
    number(text)
        .filter(|db| *db <= i32::MAX as u32)
        .ok_or_else(|| "the database must be a number like 0 or 15".to_owned())
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
                    "the {part} has a % that two hexadecimal digits do not follow; write %25 for %"
                ));
            }
        }
    }
    let refused = |_| format!("the {part} is not UTF-8 when it is decoded; write %25 for %");
    String::from_utf8(bytes).map_err(refused)
}

/// The parts of an address that an error may show: its scheme, and where the server is if that was
/// understood. The rest may be a credential.
fn understood(url: &str) -> String {
    let first = addresses(url).next().unwrap_or_default();
    let known = SCHEMES.iter().find_map(|scheme| Some((scheme, first.strip_prefix(scheme)?)));
    let Some((scheme, rest)) = known else {
        return String::new();
    };
    let shown = format!("{scheme}{}", endpoint(scheme, rest).unwrap_or_else(|_| "..".to_owned()));
    shown.chars().take(SHOWN_CHARS_MAX).collect()
}

fn endpoint(scheme: &str, rest: &str) -> Result<String, String> {
    let scheme = scheme.trim_end_matches("://");
    if is_unix(scheme) {
        return Ok(parse_path(Parts::of_unix(rest)?.endpoint)?.display().to_string());
    }
    if scheme.ends_with("sentinel") {
        let sentinels = sentinels_at(Parts::of_sentinel(rest)?.endpoint)?;
        return Ok(Endpoint::Sentinel(sentinels).to_string());
    }
    let authority = split_optional(Parts::of_tcp(rest)?.endpoint, '/').0;
    let (host, port) = parse_authority(authority, PORT_DEFAULT)?;
    Ok(Endpoint::Tcp { host, port }.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> NodeUrl {
        let endpoint = Endpoint::Tcp { host: host.to_owned(), port };
        NodeUrl {
            endpoint,
            login: None,
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
            login: Some(Credentials { user: user.map(str::to_owned), password: password.into() }),
            parameters: Parameters { db, ..Parameters::default() },
            ..tcp("h", 6379)
        };
        let unix = |path: &str, db| NodeUrl {
            endpoint: Endpoint::Unix(path.into()),
            parameters: Parameters { db, ..Parameters::default() },
            ..tcp("h", 6379)
        };
        let locked = |user: Option<&str>, password: &str, db| NodeUrl {
            endpoint: Endpoint::Unix("/s".into()),
            ..with(user, password, db)
        };
        let guarded = |guard| NodeUrl {
            parameters: Parameters { restart_guard: Some(guard), ..Parameters::default() },
            ..tcp("h", 6379)
        };
        let table = [
            ("redis://h", tcp("h", 6379)),
            ("redis://h:7000/", tcp("h", 7000)),
            ("redis://[::1]", tcp("::1", 6379)),
            ("redis://[::1]:7000", tcp("::1", 7000)),
            ("redis://[fe80::1%lo]:7000", tcp("fe80::1%lo", 7000)),
            ("redis://[fe80::1%25lo]", tcp("fe80::1%lo", 6379)),
            ("redis://[fe80::1%25]", tcp("fe80::1%25", 6379)),
            ("redis://:p@h", with(None, "p", 0)),
            ("redis://u:p@h/3", with(Some("u"), "p", 3)),
            ("redis://u:p%40%3a%2F@h", with(Some("u"), "p@:/", 0)),
            ("redis://u:p@ss/word@h", with(Some("u"), "p@ss/word", 0)),
            ("redis://u:p:q@h", with(Some("u"), "p:q", 0)),
            ("valkey://h:7000", tcp("h", 7000)),
            ("unix:///run/redis.sock", unix("/run/redis.sock", 0)),
            ("redis+unix:///run/redis.sock", unix("/run/redis.sock", 0)),
            ("redis+socket:///run/redis.sock", unix("/run/redis.sock", 0)),
            ("unix:///run/a%20b?db=2", unix("/run/a b", 2)),
            ("unix:///run/redis%406379.sock", unix("/run/redis@6379.sock", 0)),
            ("unix://:p@/s", locked(None, "p", 0)),
            ("unix://u:p@/s?db=3", locked(Some("u"), "p", 3)),
            ("redis+unix://u:p@ss/w@/s", locked(Some("u"), "p@ss/w", 0)),
            ("redis-socket://:a?b#%25@/s", locked(None, "a?b#%", 0)),
            ("redis://:a?b#c@h", with(None, "a?b#c", 0)),
            ("redis://h?restart_guard=off", guarded(RestartGuard::Off)),
            ("redis://h/?restart_guard=own_observation", guarded(RestartGuard::OwnObservation)),
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
            &sentinel_user=a&sentinel_password=b%26";
        let Ok(NodeUrl { endpoint, login, parameters, .. }) = NodeUrl::parse(long) else {
            panic!("it is accepted");
        };
        assert_eq!(endpoint.to_string(), "s1:26380,[::1]:26379,s3:26379/my master");
        let Endpoint::Sentinel(sentinels) = endpoint else {
            panic!("they are Sentinels");
        };
        assert_eq!(sentinels.user.as_deref(), Some("a"));
        assert_eq!(sentinels.password.as_deref(), Some("b&"));
        assert!(login == Some(Credentials::new("p").user("u")));
        assert_eq!(parameters.db, 2);
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
            ("redis://h:0", "the port is not a number"),
            ("redis://h:65536", "the port is not a number"),
            ("redis://h:+1", "the port is not a number"),
            ("redis://h:", "the port is not a number"),
            ("redis://::1", "must be in brackets"),
            ("redis://[::1", "not closed"),
            ("redis://[h]", "not an IPv6 address"),
            ("redis://h!", "a character that host names do not have"),
            ("redis://[::1]7000", "not a port"),
            ("redis://h/x", "the database must be a number"),
            ("redis://h/1/2", "the database must be a number"),
            ("redis://h/-1", "the database must be a number"),
            ("redis://h?x=1", "a parameter is not known; known are restart_guard"),
            ("redis://h?db=1", "write the database as the path: redis://host:port/db"),
            (" redis://h", "there is white space before or after it"),
            ("redis://h\n", "there is white space before or after it"),
            ("redis://h g", "if another address follows, write its scheme as well: redis://host1"),
            ("redis://h,g", "if another address follows"),
            ("redis://h, g", "if another address follows"),
            ("redis://h;g", "if another address follows"),
            ("redis://h:1,g:2", "if another address follows"),
            ("redis://[::1],[::2]", "if another address follows"),
            ("redis://h/0,g/0", "if another address follows"),
            ("redis://h?verify=yes,g", "if another address follows"),
            ("redis://u:p@h,u:p@g", "in a password, write %40 for @"),
            ("redis://:p@h/1, :p@g/1", "in a password, write %40 for @"),
            ("redis://u:p@h:1 g:2", "if another address follows"),
            ("unix:///h, /g", "if another address follows"),
            ("redis://[fe80::1%]", "the zone behind the % is not a network interface"),
            ("redis://[fe80::1%a!b]", "the zone behind the % is not a network interface"),
            ("redis://[h%lo]", "not an IPv6 address"),
            (
                "redis://h, redis://g",
                "cannot use the address redis://h:6379: more addresses follow in the same text; \
                 give each alone (--node, Builder::node), or all of them to MUXLOCK_NODES or \
                 Builder::nodes_from",
            ),
            ("redis://h redis://g", "more addresses follow"),
            #[cfg(not(feature = "tls-no-provider"))]
            ("valkeys://h", "valkeys:// needs TLS"),
            ("redis://h?notices=off", "notices must be yes or no"),
            ("redis://h?restart_guard=on", "must be uptime, own_observation or off"),
            ("redis://h?restart_guard", "restart_guard must be"),
            ("redis://h?", "cannot use the address redis://h:6379: a parameter is not known"),
            (
                "redis://h?auth=1",
                "the parameter \"auth\" is not known; write the password as redis://",
            ),
            ("redis://h#x", "a fragment is not allowed (write %23)"),
            ("redis://u@h", "there is a user but no password; write user:password@ or :password@"),
            ("redis://u:@h", "the password is empty"),
            (
                "redis://u:%zz@h",
                "the password has a % that two hexadecimal digits do not follow; write %25",
            ),
            ("redis://u:%ff@h", "the password is not UTF-8 when it is decoded; write %25 for %"),
            ("redis://:p@h?db=a@g", "it is not clear where the password ends"),
            ("redis://u@h:6379#a@g", "it is not clear where the password ends"),
            ("unix://run/redis.sock", "not absolute"),
            ("unix://:p/redis.sock", "unix://user:password@/path"),
            ("unix://p@/redis.sock", "there is a user but no password"),
            ("unix:///:p@/redis.sock", "write %40 for an @ in the path; the form is unix://"),
            ("unix://:p@/s?db=a@/g", "it is not clear where the password ends"),
            ("unix:///a:b", "write %3A for : in the path"),
            ("unix:///a%0ab", "there is a control character in the path"),
            ("unix:///s?database=1", "cannot use the address unix:///s: a parameter is not known"),
            ("sesame://h", "the scheme is not known"),
            ("\"redis://h", "a quote or a bracket is in front of it"),
            ("['redis://h'", "a quote or a bracket is in front of it"),
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
        let url =
            "rediss://u:p@h:7000/1?ca=/a%26b&cert=/c&key=/k&server_name=name&restart_guard=off";
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
            ("rediss://h?verify=off", "verify must be yes or no"),
            ("rediss://h?verify=no&ca=/c", "verify=no and ca exclude each other"),
            ("rediss://h?name=n", "known are restart_guard, notices, ca, cert, key, server_name"),
        ];
        for (url, expected) in table {
            let error = error(url);
            assert!(error.contains(expected), "{url}: {error}");
        }
    }

    /// A text that does not begin like an address may be the rest of a password.
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
}
