//! rslock, with its default settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rslock::{Lock, LockManager};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::{Failure, Locks};
use crate::clock;
use crate::job::{Job, Sample, slot_key};

/// One thread, on which everything happens: the faster of the runtimes in every case, on two cores.
fn runtime() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Called from a synchronous program.
pub struct Rslock {
    runtime: Runtime,
    manager: LockManager,
    key: String,
    ttl: Duration,
}

impl Rslock {
    /// For what the job says.
    pub fn for_job(job: &Job) -> Result<Rslock, Failure> {
        Ok(Rslock {
            runtime: runtime()?,
            manager: LockManager::new(job.urls()),
            key: job.key(),
            ttl: job.ttl,
        })
    }
}

impl Locks for Rslock {
    type Held = Lock;

    fn lock(&mut self) -> Option<Lock> {
        self.runtime.block_on(self.manager.lock(self.key.as_str(), self.ttl)).ok()
    }

    fn unlock(&mut self, held: Lock) -> bool {
        self.runtime.block_on(self.manager.unlock(&held));
        true
    }
}

/// As many tasks as the job is large.
pub struct Tasks {
    runtime: Runtime,
    manager: LockManager,
    keys: Vec<String>,
    ttl: Duration,
}

impl Tasks {
    /// One manager for all.
    pub fn for_job(job: &Job) -> Result<Tasks, Failure> {
        Ok(Tasks {
            runtime: runtime()?,
            manager: LockManager::new(job.urls()),
            keys: (0..job.size).map(slot_key).collect(),
            ttl: job.ttl,
        })
    }

    /// Pairs for `slice`, as many at once as there are tasks.
    pub fn measure(&self, slice: Duration) -> Sample {
        let state = Arc::new(State::default());
        let (start, cpu) = (clock::now(), clock::cpu());
        let took = self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for key in self.keys.clone() {
                tasks.spawn(pairs(self.manager.clone(), key, self.ttl, Arc::clone(&state)));
            }
            tokio::time::sleep(slice).await;
            let took = clock::now() - start;
            state.done_in_time.store(state.done.load(Ordering::Relaxed), Ordering::Relaxed);
            state.is_over.store(true, Ordering::Relaxed);
            while tasks.join_next().await.is_some() {}
            took
        });
        let done = state.done.load(Ordering::Relaxed) as f64;
        Sample {
            done,
            failed: state.failed.load(Ordering::Relaxed) as f64,
            rate: state.done_in_time.load(Ordering::Relaxed) as f64 / took.as_secs_f64(),
            cpu: (clock::cpu() - cpu).as_nanos() as f64 / done.max(1.0),
            least: f64::NAN,
            most: f64::NAN,
            ..Sample::default()
        }
    }
}

#[derive(Default)]
struct State {
    is_over: AtomicBool,
    done: AtomicU64,
    done_in_time: AtomicU64,
    failed: AtomicU64,
}

async fn pairs(manager: LockManager, key: String, ttl: Duration, state: Arc<State>) {
    while !state.is_over.load(Ordering::Relaxed) {
        match manager.lock(key.as_str(), ttl).await {
            Ok(lock) => manager.unlock(&lock).await,
            Err(_) => _ = state.failed.fetch_add(1, Ordering::Relaxed),
        }
        state.done.fetch_add(1, Ordering::Relaxed);
    }
}
