//! The shares of a lock, as a master has them: a sorted set, with a share's end as its score.

use std::time::Duration;

use muxlock::Config;
use muxlock::testing::Value;

use super::wire::{Failure, Wire};

/// The shares on one master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// How many are not over, by the master's clock.
    pub count: u64,
    /// When the last of them is over.
    pub left: Duration,
}

/// Asks a master for the shares of a lock's key. `None` if the key is something else. This changes
/// nothing.
pub fn ask(
    config: &Config,
    node: usize,
    key: &[u8],
    within: Duration,
) -> Result<Option<Shares>, Failure> {
    let mut wire = Wire::greet(config, node, within)?;
    if wire.ask(&[b"TYPE", key])? != Value::Status("zset".into()) {
        return Ok(None);
    }
    let Value::Array(time) = wire.ask(&[b"TIME"])? else {
        return Err(Failure::Strange);
    };
    let [Value::Bulk(seconds), Value::Bulk(micros)] = &time[..] else {
        return Err(Failure::Strange);
    };
    let (seconds, micros) = (number(seconds)?, number(micros)?);
    let now = format!("({}", seconds.saturating_mul(1_000).saturating_add(micros / 1_000));
    let Value::Integer(count) = wire.ask(&[b"ZCOUNT", key, now.as_bytes(), b"+inf"])? else {
        return Err(Failure::Strange);
    };
    let Value::Integer(left) = wire.ask(&[b"PTTL", key])? else {
        return Err(Failure::Strange);
    };
    // Without an end, it is not of locks.
    let shares = u64::try_from(left).ok().zip(u64::try_from(count).ok());
    Ok(shares.map(|(left, count)| Shares { count, left: Duration::from_millis(left) }))
}

/// Asks a master whether a key never expires. This changes nothing.
#[cfg(target_os = "linux")]
pub fn never_expires(
    config: &Config,
    node: usize,
    key: &[u8],
    within: Duration,
) -> Result<bool, Failure> {
    let mut wire = Wire::greet(config, node, within)?;
    Ok(wire.ask(&[b"PTTL", key])? == Value::Integer(-1))
}

fn number(digits: &[u8]) -> Result<u64, Failure> {
    let digits = std::str::from_utf8(digits).map_err(|_| Failure::Strange)?;
    digits.parse().map_err(|_| Failure::Strange)
}

impl Shares {
    /// In words.
    pub fn said(&self) -> String {
        match self.count {
            1 => "shared by 1 reader".to_owned(),
            count => format!("shared by {count} readers"),
        }
    }
}
