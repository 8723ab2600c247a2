//! The question for a master's address, and a Sentinel's answer.

use std::time::Duration;

use bytes::BytesMut;

use super::limits::{LINE_BYTES_MAX, NUMBER_BYTES_MAX, TEXT_BYTES_MAX};
use super::line::{line, text_length};
use super::words::append;
use crate::outcome::ProtocolError;

/// The longest conversation with a Sentinel: its answer has about 40 fields, in one to two thousand
/// bytes.
pub(crate) const ANSWER_BYTES_MAX: usize = TEXT_BYTES_MAX;
/// Further fields are not looked at.
const FIELDS_MAX: usize = 256;
const FAILING_OVER: &[u8] = b"failover_in_progress";

/// What a Sentinel says about a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentinelMaster {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// For how long the Sentinel has known this server as the master. It begins again with each
    /// failover, and with each start of the Sentinel.
    pub(crate) master_for: Duration,
    /// Grows with each failover.
    pub(crate) epoch: u64,
    /// Whether this Sentinel leads a failover, and still names the old master.
    pub(crate) is_failing_over: bool,
    pub(crate) failover: Failover,
}

/// The answer of a Sentinel about a failover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failover {
    /// A master that has not answered for so long counts as down.
    pub down_after: Option<Duration>,
    /// How many Sentinels have to agree on that.
    pub quorum: Option<u64>,
    /// How many there are.
    pub sentinels: Option<u64>,
    /// How many replicas are given to a new master at a time.
    pub parallel_syncs: Option<u64>,
    /// How many replicas the Sentinel knows, also those that are down.
    pub replicas: Option<u64>,
    /// For how long more than half of the Sentinels have known the master, if they said so.
    pub master_for: Option<Duration>,
}

/// Why a Sentinel's answer is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoMaster {
    /// It answered with an error.
    Refused(SentinelRefusal),
    /// It is no Sentinel, or does not say what it should.
    Protocol,
}

/// The error of a Sentinel. What else it said may repeat what it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SentinelRefusal {
    NoPassword,
    WrongPassword,
    NeedlessPassword,
    UnknownMaster,
    /// It does not know the command.
    NoSentinel,
    Forbidden,
    Protected,
    MaxClients,
    Other,
}

impl SentinelRefusal {
    fn of(line: &[u8]) -> SentinelRefusal {
        let has = |words: &[u8]| line.windows(words.len()).any(|it| it.eq_ignore_ascii_case(words));
        match line.split(|byte| *byte == b' ').next() {
            Some(b"NOAUTH") => SentinelRefusal::NoPassword,
            Some(b"WRONGPASS") => SentinelRefusal::WrongPassword,
            Some(b"NOPERM") => SentinelRefusal::Forbidden,
            Some(b"DENIED") => SentinelRefusal::Protected,
            // Servers before 6.0 say the first and the third.
            _ if has(b"invalid password") => SentinelRefusal::WrongPassword,
            _ if has(b"without any password") || has(b"no password is set") => {
                SentinelRefusal::NeedlessPassword
            }
            _ if has(b"no such master") => SentinelRefusal::UnknownMaster,
            _ if has(b"unknown command") => SentinelRefusal::NoSentinel,
            _ if has(b"max number of clients") => SentinelRefusal::MaxClients,
            _ => SentinelRefusal::Other,
        }
    }
}

impl From<ProtocolError> for NoMaster {
    fn from(_: ProtocolError) -> NoMaster {
        NoMaster::Protocol
    }
}

/// The commands for a Sentinel.
pub(crate) fn ask(user: Option<&str>, password: Option<&str>, service: &str) -> BytesMut {
    let mut out = BytesMut::new();
    match (user, password) {
        (Some(user), Some(password)) => {
            append(&mut out, &[b"AUTH", user.as_bytes(), password.as_bytes()]);
        }
        (None, Some(password)) => append(&mut out, &[b"AUTH".as_slice(), password.as_bytes()]),
        (_, None) => {}
    }
    append(&mut out, &[b"SENTINEL".as_slice(), b"MASTER", service.as_bytes()]);
    out
}

/// The answer to [`ask`]; `None` if it is not complete.
pub(crate) fn answer(mut bytes: &[u8]) -> Result<Option<SentinelMaster>, NoMaster> {
    // The answer to AUTH, if there is one.
    if let Some(b'+') = bytes.first() {
        match line(bytes, LINE_BYTES_MAX)? {
            Some(status) => bytes = &bytes[status.len() + 3..],
            None => return Ok(None),
        }
    }
    match bytes.first() {
        None => return Ok(None),
        Some(b'*') => {}
        Some(b'-') => {
            let text = line(bytes, LINE_BYTES_MAX)?;
            return text.map_or(Ok(None), |text| Err(NoMaster::Refused(SentinelRefusal::of(text))));
        }
        Some(_) => return Err(NoMaster::Protocol),
    }
    let Some(count) = line(bytes, NUMBER_BYTES_MAX)? else {
        return Ok(None);
    };
    let rest = &bytes[count.len() + 3..];
    let count = parsed::<usize>(count).ok_or(NoMaster::Protocol)?;
    if count > FIELDS_MAX {
        return Err(NoMaster::Protocol);
    }
    let Some(words) = words(rest, count)? else {
        return Ok(None);
    };
    let of = |name: &[u8]| words.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
    let figure = |name| of(name).and_then(parsed);
    let master = || {
        let host = std::str::from_utf8(of(b"ip")?).ok()?;
        let is_host = !host.is_empty() && !host.contains(char::is_whitespace);
        let is_master = of(b"role-reported")? == b"master";
        let millis = parsed(of(b"role-reported-time")?)?;
        Some(SentinelMaster {
            host: is_host.then(|| host.to_owned())?,
            port: parsed(of(b"port")?).filter(|port| *port > 0)?,
            // It still names a server that it has seen as a replica, or has not seen.
            master_for: if is_master { Duration::from_millis(millis) } else { Duration::ZERO },
            epoch: parsed(of(b"config-epoch")?)?,
            is_failing_over: of(b"flags")?.split(|byte| *byte == b',').any(|it| it == FAILING_OVER),
            failover: Failover {
                down_after: figure(b"down-after-milliseconds").map(Duration::from_millis),
                quorum: figure(b"quorum"),
                sentinels: figure(b"num-other-sentinels").map(|others| others.saturating_add(1)),
                parallel_syncs: figure(b"parallel-syncs"),
                replicas: figure(b"num-slaves"),
                master_for: None,
            },
        })
    };
    master().map(Some).ok_or(NoMaster::Protocol)
}

/// So many bulk strings; `None` if they are not complete.
fn words(mut rest: &[u8], count: usize) -> Result<Option<Vec<&[u8]>>, NoMaster> {
    let mut words = Vec::new();
    for _ in 0..count {
        match rest.first() {
            None => return Ok(None),
            Some(b'$') => {}
            Some(_) => return Err(NoMaster::Protocol),
        }
        let (Some(header), Some(length)) =
            (line(rest, NUMBER_BYTES_MAX)?, text_length(rest, TEXT_BYTES_MAX)?)
        else {
            return Ok(None);
        };
        words.push(&rest[header.len() + 3..length - 2]);
        rest = &rest[length..];
    }
    Ok(Some(words))
}

/// Digits only: `str::parse` would accept a sign.
fn parsed<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(digits).ok()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pairs: &[(&str, &str)]) -> Vec<u8> {
        let word = |word: &str| format!("${}\r\n{word}\r\n", word.len());
        let pairs: Vec<_> =
            pairs.iter().flat_map(|(name, value)| [word(name), word(value)]).collect();
        format!("*{}\r\n{}", pairs.len(), pairs.concat()).into_bytes()
    }

    const USUAL: [(&str, &str); 9] = [
        ("name", "mymaster"),
        ("ip", "10.0.0.1"),
        ("port", "6379"),
        ("flags", "master"),
        ("role-reported", "master"),
        ("role-reported-time", "4200"),
        ("config-epoch", "7"),
        ("down-after-milliseconds", "300"),
        ("num-slaves", "3"),
    ];

    fn with(name: &str, value: &str) -> Vec<u8> {
        let mut pairs = USUAL;
        pairs.iter_mut().filter(|pair| pair.0 == name).for_each(|pair| pair.1 = value);
        text(&pairs.map(|pair| pair))
    }

    #[test]
    fn answer_names_the_master_and_since_when() {
        let expected = SentinelMaster {
            host: "10.0.0.1".to_owned(),
            port: 6379,
            master_for: Duration::from_millis(4_200),
            epoch: 7,
            is_failing_over: false,
            failover: Failover {
                down_after: Some(Duration::from_millis(300)),
                replicas: Some(3),
                ..Failover::default()
            },
        };
        let usual = text(&USUAL);
        assert_eq!(answer(&usual), Ok(Some(expected.clone())));
        let after_auth = [b"+OK\r\n", &usual[..]].concat();
        assert_eq!(answer(&after_auth), Ok(Some(expected)));
        for at in 0..after_auth.len() {
            assert_eq!(answer(&after_auth[..at]), Ok(None), "{at}");
        }
        let leader = answer(&with("flags", "master,failover_in_progress,promoted")).unwrap();
        assert!(leader.unwrap().is_failing_over);
        let replica = answer(&with("role-reported", "slave")).unwrap().unwrap();
        assert_eq!(replica.master_for, Duration::ZERO);
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let refused = |refusal| Err(NoMaster::Refused(refusal));
        let table: [(&[u8], SentinelRefusal); 11] = [
            (b"-ERR No such master with that name\r\n", SentinelRefusal::UnknownMaster),
            (b"+OK\r\n-NOAUTH Authentication required.\r\n", SentinelRefusal::NoPassword),
            (b"-NOAUTH\r\n", SentinelRefusal::NoPassword),
            (
                b"-WRONGPASS invalid username-password pair\r\n-NOAUTH\r\n",
                SentinelRefusal::WrongPassword,
            ),
            (b"-ERR invalid password\r\n", SentinelRefusal::WrongPassword),
            (
                b"-ERR AUTH <password> called without any password\r\n",
                SentinelRefusal::NeedlessPassword,
            ),
            (
                b"-ERR Client sent AUTH, but no password is set\r\n",
                SentinelRefusal::NeedlessPassword,
            ),
            (b"-ERR unknown command 'SENTINEL'\r\n", SentinelRefusal::NoSentinel),
            (b"-NOPERM this user has no permissions\r\n", SentinelRefusal::Forbidden),
            (b"-DENIED Redis is running in protected mode\r\n", SentinelRefusal::Protected),
            (b"-ERR odd\r\n", SentinelRefusal::Other),
        ];
        for (bytes, refusal) in table {
            assert_eq!(answer(bytes), refused(refusal));
        }
        assert_eq!(
            answer(b"-ERR max number of clients reached\r\n"),
            refused(SentinelRefusal::MaxClients)
        );
        assert_eq!(answer(b"-ERR No such"), Ok(None), "it may be an error of any kind");
        let strange: [&[u8]; 9] = [
            b"HTTP/1.1 200 OK\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*9999\r\n$1\r\n",
            b"*2\r\n:1\r\n",
            b"*1\r\n*1\r\n",
            b"*2\r\n$99999\r\n",
            b"$2\r\nab\r\n",
            b":1\r\n",
        ];
        for bytes in strange {
            assert_eq!(answer(bytes), Err(NoMaster::Protocol), "{bytes:?}");
        }
        for (name, value) in
            [("port", "0"), ("port", "70000"), ("port", "+1"), ("ip", ""), ("ip", "a b")]
        {
            assert_eq!(answer(&with(name, value)), Err(NoMaster::Protocol), "{name} {value}");
        }
        for (name, _) in &USUAL[1..7] {
            let without: Vec<_> = USUAL.into_iter().filter(|pair| pair.0 != *name).collect();
            assert_eq!(answer(&text(&without)), Err(NoMaster::Protocol), "{name}");
        }
    }
}
