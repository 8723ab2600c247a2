//! Five masters, and muxlock as their client.

use std::sync::Arc;
use std::time::Duration;

use muxlock::node::{NodeOutcome, NodeState};
use muxlock::settings::RestartGuard;
use muxlock::testing::Masters;
use muxlock::{LockGuard, Redlock};

use crate::clock::becomes_true;
use crate::{Failure, ensure};

const MASTERS: usize = 5;
const QUORUM: usize = 3;
/// What every client calls the resource.
pub const NAME: &str = "invoice:42";
/// Far above what a master takes on a busy machine, so that a missing vote is no accident.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// The TTL of a lock that only shows that the masters are there.
const FIRST_TTL: Duration = Duration::from_secs(10);
/// How long commands may take that a client has sent and not waited for.
pub const LATE_MAX: Duration = Duration::from_secs(2);

/// A client of these masters, to which all of them are ready.
pub fn connect(urls: Vec<String>, key_prefix: &str) -> Result<Redlock, Failure> {
    let redlock = Redlock::builder()
        .nodes(urls)
        .key_prefix(key_prefix)
        .node_timeout(NODE_TIMEOUT)
        // These masters are young, and none of them is restarted.
        .restart_guard(RestartGuard::Off)
        .build()?;
    // A client does not wait for the last of them, which then misses the first lock.
    drop(redlock.try_lock(NAME, FIRST_TTL)?);
    let is_ready = || redlock.nodes().iter().all(|node| node.state == NodeState::Ready);
    ensure!(becomes_true(LATE_MAX, is_ready), "not all masters vote: {:?}", redlock.nodes());
    Ok(redlock)
}

/// The masters and muxlock.
pub struct Scene {
    /// The masters.
    pub masters: Arc<Masters>,
    /// muxlock.
    pub redlock: Redlock,
    key: String,
}

impl Scene {
    /// With keys that begin as those of the peer.
    pub fn start(key_prefix: &str) -> Result<Scene, Failure> {
        let masters = Masters::start(MASTERS)?;
        let redlock = connect(masters.urls(), key_prefix)?;
        let masters = Arc::new(masters);
        let scene = Scene { masters, redlock, key: format!("{key_prefix}{NAME}") };
        scene.expect_no_keys()?;
        Ok(scene)
    }

    /// What the lock's key holds on each master.
    pub fn values(&self) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let key = self.key.as_bytes();
        Ok(self.masters.iter().map(|master| master.value_of(key)).collect::<Result<_, _>>()?)
    }

    /// The lock's time to live on each master, in milliseconds.
    pub fn pttls(&self) -> Result<Vec<i64>, Failure> {
        let key = self.key.as_bytes();
        Ok(self.masters.iter().map(|master| master.pttl(key)).collect::<Result<_, _>>()?)
    }

    /// The one value that all masters have. Clients need not wait for the last of them.
    pub fn owner(&self) -> Result<Vec<u8>, Failure> {
        let mut owner = None;
        becomes_true(LATE_MAX, || {
            let values = self.values().unwrap_or_default();
            let is_same = values.windows(2).all(|pair| pair[0] == pair[1]);
            owner = values.into_iter().next().flatten().filter(|_| is_same);
            owner.is_some()
        });
        owner.ok_or("the masters do not have one value in the lock's key".into())
    }

    /// Checks that this lock of muxlock is valid, and that a quorum has it.
    pub fn expect_held(&self, lock: &LockGuard) -> Result<(), Failure> {
        ensure!(lock.is_valid(), "muxlock's lock is not valid");
        let token = Some(lock.token().as_bytes().to_vec());
        let holders = self.values()?.into_iter().filter(|value| *value == token).count();
        ensure!(holders >= QUORUM, "{holders} masters have the token of muxlock");
        Ok(())
    }

    /// Checks that muxlock is refused, since a quorum has the lock of another client.
    pub fn expect_refusal(&self, ttl: Duration) -> Result<(), Failure> {
        let Err(error) = self.redlock.try_lock(NAME, ttl) else {
            return Err("muxlock has the lock, too".into());
        };
        ensure!(error.is_contended(), "muxlock fails otherwise: {error}");
        let outcomes: Vec<_> = error.nodes().iter().map(|report| &report.outcome).collect();
        let held = outcomes.iter().filter(|outcome| ***outcome == NodeOutcome::Held).count();
        // A lock that was taken over need not have all masters: the others grant.
        let is_told = held >= QUORUM && !outcomes.iter().any(|outcome| outcome.is_failure());
        ensure!(is_told, "muxlock's reasons: {outcomes:?}");
        Ok(())
    }

    /// Checks that muxlock releases a lock that was held until now.
    pub fn release(&self, lock: LockGuard) -> Result<(), Failure> {
        let released = lock.unlock()?;
        ensure!(released.was_held(), "muxlock had lost the lock: {released:?}");
        Ok(())
    }

    /// Checks that no key is left on any master, long before one would expire.
    pub fn expect_no_keys(&self) -> Result<(), Failure> {
        let sizes = || self.masters.iter().map(|master| master.dbsize()).collect::<Vec<_>>();
        let is_clean = || sizes().iter().all(|size| matches!(size, Ok(0)));
        ensure!(becomes_true(LATE_MAX, is_clean), "keys are left on the masters: {:?}", sizes());
        Ok(())
    }
}
