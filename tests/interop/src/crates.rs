//! The other Rust clients, in this process.

use std::time::Duration;

use redlock::RedLock;
use rslock::{LockError, LockManager};
use tokio::runtime::{Builder, Runtime};

use crate::{Failure, Peer};

/// Both wait for a random part of this between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(20);
const RETRY_DELAY_MS: u32 = 20;

/// How many attempts take about this long, with such a delay between them.
fn attempts_in(wait: Duration, delay: Duration) -> Result<u32, Failure> {
    Ok(u32::try_from(wait.as_micros() * 2 / delay.as_micros())?)
}

/// rslock.
pub struct Rslock {
    runtime: Runtime,
    manager: LockManager,
    retry_delay: Duration,
    held: Option<rslock::Lock>,
}

impl Rslock {
    /// A client of these masters.
    pub fn connect(urls: Vec<String>) -> Result<Rslock, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (manager, retry_delay) = (LockManager::new(urls), RETRY_DELAY);
        Ok(Rslock { runtime, manager, retry_delay, held: None })
    }

    /// The same with another delay between two attempts.
    pub fn with_retry_delay(self, retry_delay: Duration) -> Rslock {
        Rslock { retry_delay, ..self }
    }

    fn acquire(&mut self, key: &str, ttl: Duration, attempts: u32) -> Result<bool, Failure> {
        self.manager.set_retry(attempts, self.retry_delay);
        let lock = match self.runtime.block_on(self.manager.lock(key, ttl)) {
            Err(LockError::Unavailable) => return Ok(false),
            other => other?,
        };
        self.held = Some(lock);
        Ok(true)
    }

    fn held(&self) -> Result<&rslock::Lock, Failure> {
        self.held.as_ref().ok_or("there is no lock".into())
    }
}

impl Peer for Rslock {
    fn lock(&mut self, key: &str, ttl: Duration) -> Result<bool, Failure> {
        self.acquire(key, ttl, 1)
    }

    fn lock_for(&mut self, key: &str, ttl: Duration, wait: Duration) -> Result<bool, Failure> {
        self.acquire(key, ttl, attempts_in(wait, self.retry_delay)?)
    }

    fn extend(&mut self, ttl: Duration) -> Result<bool, Failure> {
        self.manager.set_retry(1, self.retry_delay);
        let extended = match self.runtime.block_on(self.manager.extend(self.held()?, ttl)) {
            Err(LockError::Unavailable) => return Ok(false),
            other => other?,
        };
        self.held = Some(extended);
        Ok(true)
    }

    fn unlock(&mut self) -> Result<(), Failure> {
        self.runtime.block_on(self.manager.unlock(self.held()?));
        Ok(())
    }
}

/// redlock. It has no extension.
pub struct Redlock {
    manager: RedLock,
    resource: Vec<u8>,
    value: Vec<u8>,
}

impl Redlock {
    /// A client of these masters.
    pub fn new(urls: Vec<String>) -> Redlock {
        Redlock { manager: RedLock::new(urls), resource: Vec::new(), value: Vec::new() }
    }

    fn acquire(&mut self, key: &str, ttl: Duration, attempts: u32) -> Result<bool, Failure> {
        self.manager.set_retry(attempts, RETRY_DELAY_MS);
        let ttl = usize::try_from(ttl.as_millis())?;
        let Some(lock) = self.manager.lock(key.as_bytes(), ttl)? else {
            return Ok(false);
        };
        (self.resource, self.value) = (lock.resource, lock.val);
        Ok(true)
    }
}

impl Peer for Redlock {
    fn lock(&mut self, key: &str, ttl: Duration) -> Result<bool, Failure> {
        self.acquire(key, ttl, 1)
    }

    fn lock_for(&mut self, key: &str, ttl: Duration, wait: Duration) -> Result<bool, Failure> {
        self.acquire(key, ttl, attempts_in(wait, RETRY_DELAY)?)
    }

    fn extend(&mut self, _ttl: Duration) -> Result<bool, Failure> {
        Err("redlock has no extension".into())
    }

    fn unlock(&mut self) -> Result<(), Failure> {
        // A lock borrows its manager, and so cannot be kept beside it.
        self.manager.unlock(&redlock::Lock {
            resource: self.resource.clone(),
            val: self.value.clone(),
            validity_time: 0,
            lock_manager: &self.manager,
        });
        Ok(())
    }
}
