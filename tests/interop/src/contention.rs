//! Clients that want the same lock all the time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::{now, pause};
use crate::scene::{NAME, Scene};
use crate::{Failure, Peer, ensure};

/// How long new attempts begin.
const RUN: Duration = Duration::from_secs(3);
/// Longer than the whole run: no holder can lose its lock, however slow the machine is.
const TTL: Duration = Duration::from_secs(25);
/// How long a client tries before it is asked again.
const WAIT: Duration = Duration::from_millis(500);
/// How long a client holds the lock.
const HOLD: Duration = Duration::from_millis(1);
/// A pause after each release, as long as most retries wait: otherwise they never find it free.
const PAUSE: Duration = Duration::from_millis(20);
const NOBODY: usize = 0;

/// What the lock protects. Each field is atomic, but an update of both is not.
#[derive(Default)]
struct Protected {
    holder: AtomicUsize,
    updates: AtomicU64,
}

impl Protected {
    fn update(&self, me: usize) -> Result<(), Failure> {
        let before = self.holder.swap(me, Ordering::SeqCst);
        ensure!(before == NOBODY, "two hold the lock: {before} and {me}");
        let updates = self.updates.load(Ordering::SeqCst);
        pause(HOLD);
        self.updates.store(updates + 1, Ordering::SeqCst);
        let after = self.holder.swap(NOBODY, Ordering::SeqCst);
        ensure!(after == me, "two hold the lock: {me} and {after}");
        Ok(())
    }
}

/// How often muxlock, and each peer, held the lock.
pub fn share(
    scene: &Scene,
    peers: Vec<(&'static str, Box<dyn Peer>)>,
) -> Result<Vec<(&'static str, u64)>, Failure> {
    let protected = &Protected::default();
    let until = now() + RUN;
    let counts = thread::scope(|scope| {
        let mut threads = vec![("muxlock", scope.spawn(move || muxlock(scene, protected, until)))];
        for (index, (name, mut peer)) in peers.into_iter().enumerate() {
            let work = move || follow(&mut *peer, protected, index + 2, until);
            threads.push((name, scope.spawn(work)));
        }
        let join = |thread: thread::ScopedJoinHandle<'_, Result<u64, Failure>>| {
            thread.join().unwrap_or_else(|_| Err("a thread has panicked".into()))
        };
        let counts = threads.into_iter().map(|(name, thread)| Ok((name, join(thread)?)));
        counts.collect::<Result<Vec<_>, Failure>>()
    })?;
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    let updates = protected.updates.load(Ordering::SeqCst);
    ensure!(updates == total, "{} of {total} updates were lost", total - updates);
    for (name, count) in &counts {
        ensure!(*count > 0, "{name} never had the lock: {counts:?}");
    }
    scene.expect_no_keys()?;
    Ok(counts)
}

fn muxlock(scene: &Scene, protected: &Protected, until: Instant) -> Result<u64, Failure> {
    let mut count = 0;
    while now() < until {
        match scene.redlock.try_lock_for(NAME, TTL, WAIT) {
            Ok(lock) => {
                protected.update(1)?;
                scene.release(lock)?;
                count += 1;
            }
            Err(error) if error.is_contended() || error.is_timed_out() => {}
            Err(error) => return Err(error.into()),
        }
        pause(PAUSE);
    }
    Ok(count)
}

fn follow(
    peer: &mut dyn Peer,
    protected: &Protected,
    me: usize,
    until: Instant,
) -> Result<u64, Failure> {
    let mut count = 0;
    while now() < until {
        if peer.lock_for(NAME, TTL, WAIT)? {
            protected.update(me)?;
            peer.unlock()?;
            count += 1;
        }
        pause(PAUSE);
    }
    Ok(count)
}
