//! A client of plain commands, sound or with one defect, for the canaries.

use std::sync::Arc;
use std::time::Duration;

use muxlock::testing::{Masters, Value};

use crate::clock::{becomes_true, now};
use crate::{Failure, Peer};

const QUORUM: usize = 3;

/// What the client does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// Nothing.
    None,
    /// It takes a refusal for a grant.
    BelievesRefusals,
    /// Its keys have another name than those of the others.
    OtherKey,
    /// It sets the key although there is one.
    Overwrites,
    /// Its keys live for half of the TTL.
    HalfTtl,
    /// Its keys never expire.
    NoTtl,
    /// It takes the value of the holder for its own.
    TakesValue,
    /// Its extension does nothing.
    ExtendsNothing,
    /// Its extension does not look at the value.
    ExtendsAnything,
    /// Its release does nothing.
    DeletesNothing,
    /// Its release does not look at the value.
    DeletesAnything,
}

/// The client.
pub struct Plain {
    masters: Arc<Masters>,
    defect: Defect,
    key: String,
    value: Vec<u8>,
    /// The last value of another holder.
    seen: Option<Vec<u8>>,
}

impl Plain {
    /// A client of these masters.
    pub fn new(masters: Arc<Masters>, defect: Defect) -> Plain {
        Plain { masters, defect, key: String::new(), value: Vec::new(), seen: None }
    }

    /// On how many masters the command returns something.
    fn count(&self, command: &[&[u8]]) -> Result<usize, Failure> {
        let mut count = 0;
        for master in self.masters.iter() {
            match master.query(command)? {
                Value::Nil | Value::Integer(0) => {}
                Value::Error(text) => return Err(text.into()),
                _ => count += 1,
            }
        }
        Ok(count)
    }

    /// Calls a script with the key, the value, and one more argument.
    fn call(&self, script: &str, argument: &str) -> Result<usize, Failure> {
        let (script, argument) = (script.as_bytes(), argument.as_bytes());
        self.count(&[b"EVAL", script, b"1", self.key.as_bytes(), &self.value, argument])
    }

    fn delete(&self) -> Result<usize, Failure> {
        self.call("return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])", "")
    }
}

impl Peer for Plain {
    fn lock(&mut self, key: &str, ttl: Duration) -> Result<bool, Failure> {
        self.key = if self.defect == Defect::OtherKey { format!("my:{key}") } else { key.into() };
        self.value = format!("{:?}", now()).into_bytes();
        let key = self.key.as_bytes();
        if self.defect == Defect::TakesValue {
            self.seen = self.masters[0].value_of(key)?.or(self.seen.take());
            self.value = self.seen.clone().unwrap_or_default();
        }
        let ttl = if self.defect == Defect::HalfTtl { ttl / 2 } else { ttl };
        let ttl = ttl.as_millis().to_string();
        let mut command = vec![b"SET", key, &self.value[..]];
        if self.defect != Defect::NoTtl {
            command.extend([b"PX", ttl.as_bytes()]);
        }
        if self.defect != Defect::Overwrites {
            command.push(b"NX");
        }
        if self.count(&command)? >= QUORUM || self.defect == Defect::BelievesRefusals {
            return Ok(true);
        }
        if self.defect != Defect::TakesValue {
            self.delete()?;
        }
        Ok(false)
    }

    fn lock_for(&mut self, key: &str, ttl: Duration, wait: Duration) -> Result<bool, Failure> {
        let mut is_granted = Ok(false);
        becomes_true(wait, || {
            is_granted = self.lock(key, ttl);
            !matches!(is_granted, Ok(false))
        });
        is_granted
    }

    fn extend(&mut self, ttl: Duration) -> Result<bool, Failure> {
        let script = match self.defect {
            Defect::ExtendsNothing => return Ok(true),
            Defect::ExtendsAnything => "return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])",
            _ => {
                "return redis.call('GET', KEYS[1]) == ARGV[1] \
                 and redis.call('PEXPIRE', KEYS[1], ARGV[2])"
            }
        };
        Ok(self.call(script, &ttl.as_millis().to_string())? >= QUORUM)
    }

    fn unlock(&mut self) -> Result<(), Failure> {
        match self.defect {
            Defect::DeletesNothing => {}
            Defect::DeletesAnything => drop(self.count(&[b"DEL", self.key.as_bytes()])?),
            _ => drop(self.delete()?),
        }
        Ok(())
    }
}
