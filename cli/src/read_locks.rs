//! The read locks of a resource on one master: a sorted set, in which the score is the expiry time.

use std::time::Duration;

use muxlock::Config;
use muxlock::testing::Value;

use super::wire::{Failure, Wire};

/// The reply of `PTTL` for a key that never expires. Without a key, it is less.
#[cfg(target_os = "linux")]
pub const NO_TTL: i64 = -1;

/// The read locks on one master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadLocks {
    /// How many have not expired, by the clock of the master.
    pub count: u64,
    /// When the last of them expires.
    pub left: Duration,
}

/// Asks a master for the read locks of a key. `None` if the key is something else. This changes
/// nothing.
pub fn ask(
    config: &Config,
    node: usize,
    key: &[u8],
    within: Duration,
) -> Result<Option<ReadLocks>, Failure> {
    let mut wire = Wire::connect(config, node, within)?;
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
    let read_locks = u64::try_from(left).ok().zip(u64::try_from(count).ok());
    Ok(read_locks.map(|(left, count)| ReadLocks { count, left: Duration::from_millis(left) }))
}

/// Asks a master for the time to live of a key of another type than that of a holder, as `PTTL`
/// returns it. `None` if the key no longer has such a type. This changes nothing.
#[cfg(target_os = "linux")]
pub fn ask_other(
    config: &Config,
    node: usize,
    key: &[u8],
    within: Duration,
) -> Result<Option<i64>, Failure> {
    let mut wire = Wire::connect(config, node, within)?;
    let kind = wire.ask(&[b"TYPE", key])?;
    let Value::Integer(left) = wire.ask(&[b"PTTL", key])? else {
        return Err(Failure::Strange);
    };
    let is_lock = ["none", "string"].into_iter().any(|it| kind == Value::Status(it.into()));
    Ok((!is_lock && left >= NO_TTL).then_some(left))
}

fn number(digits: &[u8]) -> Result<u64, Failure> {
    let digits = std::str::from_utf8(digits).map_err(|_| Failure::Strange)?;
    digits.parse().map_err(|_| Failure::Strange)
}

impl ReadLocks {
    /// In words.
    pub fn said(&self) -> String {
        match self.count {
            1 => "1 read lock".to_owned(),
            count => format!("{count} read locks"),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use muxlock::Redlock;
    use muxlock::testing::Master;

    #[test]
    fn key_that_has_become_free_or_a_lock_is_of_no_other_type() {
        let master = Master::start().unwrap();
        let config = Redlock::builder().nodes([master.url()]).config().unwrap();
        let seen = || ask_other(&config, 0, b"r", Duration::from_secs(20)).ok().unwrap();
        assert_eq!(seen(), None);
        master.query(&[b"SET", b"r", b"holder"]).unwrap();
        assert_eq!(seen(), None);
        master.query(&[b"DEL", b"r"]).unwrap();
        master.query(&[b"HSET", b"r", b"a", b"b"]).unwrap();
        assert_eq!(seen(), Some(NO_TTL));
        master.query(&[b"PEXPIRE", b"r", b"60000"]).unwrap();
        assert!(seen().is_some_and(|left| left > 0));
    }
}
