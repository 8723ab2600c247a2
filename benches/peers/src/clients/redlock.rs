//! redlock, with its default settings.

use redlock::{Lock, RedLock};

use super::{Failure, Locks};
use crate::job::{Job, slot_key};

/// Its locks borrow the manager, of which a worker has as many as it has clients: they stay.
fn manager(job: &Job) -> &'static RedLock {
    Box::leak(Box::new(RedLock::new(job.urls())))
}

/// One resource.
pub struct Redlock {
    manager: &'static RedLock,
    key: String,
    ttl: usize,
}

impl Redlock {
    /// For what the job says.
    pub fn for_job(job: &Job) -> Result<Redlock, Failure> {
        Redlock::new(manager(job), job.key(), job)
    }

    /// The same manager for each of several threads, each with a resource of its own.
    pub fn for_threads(job: &Job) -> Result<Vec<Redlock>, Failure> {
        let manager = manager(job);
        (0..job.size).map(|slot| Redlock::new(manager, slot_key(slot), job)).collect()
    }

    fn new(manager: &'static RedLock, key: String, job: &Job) -> Result<Redlock, Failure> {
        Ok(Redlock { manager, key, ttl: job.ttl_ms().try_into()? })
    }
}

impl Locks for Redlock {
    type Held = Lock<'static>;

    fn lock(&mut self) -> Option<Lock<'static>> {
        self.manager.lock(self.key.as_bytes(), self.ttl).ok().flatten()
    }

    fn unlock(&mut self, held: Lock<'static>) -> bool {
        self.manager.unlock(&held);
        true
    }
}
