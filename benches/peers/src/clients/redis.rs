//! One master and the plain client, for scale: a lock without any quorum.

use redis::{Connection, Value};

use super::{Failure, Locks};
use crate::floor::token;
use crate::job::Job;
use crate::scripts::sent;

/// The first master alone.
pub struct Redis {
    connection: Connection,
    key: String,
    ttl: u64,
    release: String,
}

impl Redis {
    /// For what the job says.
    pub fn for_job(job: &Job) -> Result<Redis, Failure> {
        let url = job.urls().into_iter().next().ok_or("no masters")?;
        let connection = redis::Client::open(url)?.get_connection()?;
        Ok(Redis { connection, key: job.key(), ttl: job.ttl_ms(), release: sent("RELEASE") })
    }
}

impl Locks for Redis {
    type Held = [u8; 40];

    fn lock(&mut self) -> Option<[u8; 40]> {
        let token = token().ok()?;
        let reply = redis::cmd("SET")
            .arg(&self.key)
            .arg(&token[..])
            .arg("NX")
            .arg("PX")
            .arg(self.ttl)
            .query(&mut self.connection);
        (reply == Ok(Value::Okay)).then_some(token)
    }

    fn unlock(&mut self, held: [u8; 40]) -> bool {
        let reply = redis::cmd("EVAL")
            .arg(&self.release)
            .arg(1)
            .arg(&self.key)
            .arg(&held[..])
            .query(&mut self.connection);
        reply == Ok(Value::Int(1))
    }
}
