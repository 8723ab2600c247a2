//! Locks for the tasks of a tokio program. One task waits for the descriptor of a [`Standalone`],
//! and all tasks share it in a mutex, because none of its calls blocks.
//!
//! Dropping a guard releases its lock. Dropping the future of `lock` gives up the place in the
//! queue. Dropping the future of `extend` keeps the lock, with the validity that it has.
//!
//! ```text
//! cargo run --manifest-path tests/loops/Cargo.toml --bin async_fd -- redis://10.0.0.{1,2,3}
//! ```
//!
//! It needs the features `macros`, `net`, `rt`, `sync` and `time` of tokio.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use muxlock::proto::{Cancelled, Done, Lease, OpId};
use muxlock::{Config, LockError, Multiplexer, Redlock, Standalone};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// A handle, to be cloned freely.
#[derive(Clone)]
pub struct Locks {
    shared: Arc<Mutex<Shared>>,
    /// There are new operations: the task must compute its timeout again.
    started: Arc<Notify>,
}

struct Shared {
    standalone: Standalone,
    in_flight: HashMap<OpId, oneshot::Sender<Done>>,
}

impl Locks {
    /// Spawns the task, which runs until it is aborted. If it fails, end the program.
    pub fn spawn(config: Config) -> io::Result<(Locks, JoinHandle<io::Result<()>>)> {
        let standalone = Standalone::new(config)?;
        let descriptor = standalone.as_fd().try_clone_to_owned()?;
        // From tokio 1.54 on, in favour of an unsafe function. An `OwnedFd` is all that it asks.
        #[allow(deprecated)]
        let descriptor = AsyncFd::new(descriptor)?;
        let shared = Shared { standalone, in_flight: HashMap::new() };
        let locks = Locks { shared: Arc::new(Mutex::new(shared)), started: Arc::default() };
        Ok((locks.clone(), tokio::spawn(locks.run(descriptor))))
    }

    async fn run(self, descriptor: AsyncFd<OwnedFd>) -> io::Result<()> {
        loop {
            let timeout = self.shared().turn()?;
            tokio::select! {
                // An event during the next turn makes it readable again.
                ready = descriptor.readable() => ready?.clear_ready(),
                () = self.started.notified() => {}
                () = sleep(timeout) => {}
            }
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no thread panics while it has the mutex")
    }

    /// Acquires a lock, within `wait`.
    pub async fn lock(
        &self,
        name: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Result<Guard, LockError> {
        let mut guard = Guard { locks: self.clone(), lease: None };
        let op = self.shared().mux().try_lock_for(name, ttl, wait)?;
        guard.finish(op).await?;
        Ok(guard)
    }

    /// The number of commands without an answer; wait until it is zero before the program ends.
    pub fn unanswered(&self) -> usize {
        self.shared().mux().unanswered()
    }
}

impl Shared {
    fn mux(&mut self) -> &mut Multiplexer {
        self.standalone.mux_mut()
    }

    /// Does all pending work. Returns how long the task may wait.
    fn turn(&mut self) -> io::Result<Duration> {
        self.standalone.turn()?;
        while let Some((op, done)) = self.mux().poll_done() {
            if let Some(sender) = self.in_flight.remove(&op) {
                let _ = sender.send(done);
            }
        }
        self.mux().flush();
        Ok(self.mux().next_timeout().unwrap_or(Duration::MAX))
    }
}

/// A lock. Dropping it releases the lock.
pub struct Guard {
    locks: Locks,
    lease: Option<Lease>,
}

impl Guard {
    /// How long the lock is still valid. Compare it before each step of the work.
    pub fn remaining(&self) -> Duration {
        let now = self.locks.shared().mux().now();
        self.lease.as_ref().map_or(Duration::ZERO, |lease| lease.remaining(now))
    }

    /// Makes the lock valid for `ttl` from now on. After an error it keeps its validity.
    pub async fn extend(&mut self, ttl: Duration) -> Result<(), LockError> {
        let lease = self.lease.take().expect("the guard has its lease between two operations");
        let op = self.locks.shared().mux().extend(lease, ttl);
        self.finish(op).await
    }

    async fn finish(&mut self, op: OpId) -> Result<(), LockError> {
        let (sender, done) = oneshot::channel();
        self.locks.shared().in_flight.insert(op, sender);
        self.locks.shared().mux().flush();
        self.locks.started.notify_one();
        let mut operation = Operation { guard: self, op, done };
        let done = (&mut operation.done).await.expect("its sender is in the map");
        operation.guard.take(done)
    }

    fn take(&mut self, done: Done) -> Result<(), LockError> {
        match done {
            Done::Acquired(result) => self.lease = Some(result?),
            Done::Extended(lease, result) => {
                self.lease = Some(lease);
                result?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut shared = self.locks.shared();
        if let Some(lease) = self.lease.take() {
            shared.mux().abandon(lease);
        }
        shared.mux().flush();
        self.locks.started.notify_one();
    }
}

/// An operation of a guard. Dropping it cancels the operation, and the guard has its lease again.
struct Operation<'a> {
    guard: &'a mut Guard,
    op: OpId,
    done: oneshot::Receiver<Done>,
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let mut shared = self.guard.locks.shared();
        shared.in_flight.remove(&self.op);
        let cancelled = shared.mux().cancel(self.op);
        drop(shared);
        if let Cancelled::Extension(lease) = cancelled {
            self.guard.lease = Some(lease);
        } else if let Ok(done) = self.done.try_recv() {
            // It ended before this future was polled again.
            let _ = self.guard.take(done);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        eprintln!("usage: async_fd redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3");
        std::process::exit(2);
    }
    let (locks, _task) = Locks::spawn(Redlock::builder().nodes(urls).config()?)?;
    let (ttl, wait) = (Duration::from_secs(10), Duration::from_secs(5));
    let mut lock = locks.lock("report:daily", ttl, wait).await?;
    if timeout(Duration::from_millis(100), locks.lock("report:daily", ttl, wait)).await.is_err() {
        println!("gave up the wait for a second lock");
    }
    lock.extend(ttl).await?;
    println!("held for another {:?}", lock.remaining());
    drop(lock);
    while locks.unanswered() > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}
