//! What must hold with every peer.

use std::time::{Duration, Instant};

use muxlock::inspection::Owner;
use muxlock::{LockError, LockGuard, Redlock};

use crate::clock::{becomes_true, now, pause, pause_until};
use crate::scene::{LATE_MAX, NAME, Scene};
use crate::{Failure, Peer, ensure};

/// A TTL that no case outlives.
pub const LONG: Duration = Duration::from_secs(25);
/// A TTL whose end a case waits for.
const SHORT: Duration = Duration::from_millis(1500);
/// How long is waited for the end of a short TTL.
const WAIT: Duration = Duration::from_secs(10);
/// What an extended lock is looked at after the end of its first TTL.
const AFTER: Duration = Duration::from_millis(700);
/// What the rounding of milliseconds on both sides may amount to.
const ROUNDING: Duration = Duration::from_millis(5);
/// What retries and a busy machine may add to a wait.
const LATE: Duration = Duration::from_secs(3);
/// Time for commands that nobody waits for.
const SETTLE: Duration = Duration::from_millis(200);

/// A case.
pub type Case = fn(&Scene, &mut dyn Peer) -> Result<(), Failure>;

/// A peer is refused while muxlock holds the lock, and its attempt leaves no trace.
pub fn muxlock_holds(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    let lock = scene.redlock.try_lock(NAME, LONG)?;
    ensure!(scene.owner()? == lock.token().as_bytes(), "the key has another value");
    ensure!(!peer.lock(NAME, LONG)?, "the peer has the lock, too");
    pause(SETTLE);
    ensure!(scene.owner()? == lock.token().as_bytes(), "the key has another value");
    scene.expect_held(&lock)?;
    scene.release(lock)?;
    scene.expect_no_keys()
}

/// muxlock is refused while a peer holds the lock, says why, and leaves no trace.
pub fn peer_holds(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    ensure!(peer.lock(NAME, LONG)?, "the peer does not get a free lock");
    let owner = scene.owner()?;
    scene.expect_refusal(LONG)?;
    pause(SETTLE);
    ensure!(scene.owner()? == owner, "the key has another value");
    peer.unlock()?;
    scene.expect_no_keys()
}

/// One attempt is enough after the other side has released.
pub fn each_follows_the_other(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    ensure!(peer.lock(NAME, LONG)?, "the peer does not get a free lock");
    scene.owner()?;
    peer.unlock()?;
    let lock = scene.redlock.try_lock(NAME, LONG)?;
    scene.expect_held(&lock)?;
    ensure!(!peer.lock(NAME, LONG)?, "the peer has the lock, too");
    scene.release(lock)?;
    ensure!(peer.lock(NAME, LONG)?, "the peer does not get what muxlock has released");
    scene.expect_refusal(LONG)?;
    peer.unlock()?;
    scene.expect_no_keys()
}

/// Checks that each key lives for `ttl` from some moment between `start` and now. Clients need not
/// wait for the last master.
fn expect_ttl(scene: &Scene, start: Instant, ttl: Duration) -> Result<(), Failure> {
    let most = i64::try_from(ttl.as_millis())?;
    let mut found = Vec::new();
    let is_found = becomes_true(LATE_MAX, || {
        let Ok(pttls) = scene.pttls() else { return false };
        found = pttls;
        let least = ttl.saturating_sub(now() - start + ROUNDING).as_millis();
        found.iter().all(|pttl| *pttl <= most && u128::try_from(*pttl).is_ok_and(|ms| ms >= least))
    });
    ensure!(is_found, "PTTL {found:?} does not fit {ttl:?}");
    Ok(())
}

/// Checks that a lock was waited for until the TTL of the one before had ended, and no longer.
fn expect_wait(start: Instant, ttl: Duration) -> Result<(), Failure> {
    let took = now() - start;
    ensure!(took + ROUNDING >= ttl, "the lock was taken over after {took:?}");
    ensure!(took < ttl + LATE, "the lock was free only after {took:?}");
    Ok(())
}

/// muxlock waits until a peer's lock has expired.
pub fn lock_of_the_peer_expires(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    let start = now();
    ensure!(peer.lock(NAME, SHORT)?, "the peer does not get a free lock");
    expect_ttl(scene, start, SHORT)?;
    scene.expect_refusal(LONG)?;
    let lock = scene.redlock.try_lock_for(NAME, LONG, WAIT)?;
    expect_wait(start, SHORT)?;
    scene.expect_held(&lock)?;
    scene.release(lock)?;
    scene.expect_no_keys()
}

/// A peer waits until muxlock's lock has expired. By then muxlock knows that it has.
pub fn lock_of_muxlock_expires(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    let start = now();
    let lock = scene.redlock.try_lock(NAME, SHORT)?;
    expect_ttl(scene, start, SHORT)?;
    ensure!(peer.lock_for(NAME, LONG, WAIT)?, "the peer does not get an expired lock");
    ensure!(!lock.is_valid(), "muxlock's lock is valid beside the peer's");
    expect_wait(start, SHORT)?;
    ensure!(!lock.unlock()?.was_held(), "muxlock reports its lock as held");
    peer.unlock()?;
    scene.expect_no_keys()
}

/// A lock that a peer has extended keeps muxlock out after its first TTL.
pub fn peer_extends(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    let start = now();
    ensure!(peer.lock(NAME, SHORT)?, "the peer does not get a free lock");
    let owner = scene.owner()?;
    let extended = now();
    ensure!(peer.extend(LONG)?, "the peer cannot extend its lock");
    expect_ttl(scene, extended, LONG)?;
    pause_until(start + SHORT + AFTER);
    scene.expect_refusal(LONG)?;
    ensure!(scene.owner()? == owner, "the key has another value");
    peer.unlock()?;
    let lock = scene.redlock.try_lock(NAME, LONG)?;
    scene.release(lock)?;
    scene.expect_no_keys()
}

/// A lock that muxlock has extended keeps a peer out after its first TTL.
pub fn muxlock_extends(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    let start = now();
    let mut lock = scene.redlock.try_lock(NAME, SHORT)?;
    scene.owner()?;
    let extended = now();
    lock.extend(LONG)?;
    expect_ttl(scene, extended, LONG)?;
    pause_until(start + SHORT + AFTER);
    ensure!(!peer.lock(NAME, LONG)?, "the peer has the lock, too");
    scene.expect_held(&lock)?;
    scene.release(lock)?;
    ensure!(peer.lock(NAME, LONG)?, "the peer does not get what muxlock has released");
    peer.unlock()?;
    scene.expect_no_keys()
}

/// A peer that releases too late deletes nothing of muxlock's lock.
pub fn peer_releases_too_late(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    ensure!(peer.lock(NAME, SHORT)?, "the peer does not get a free lock");
    let before = scene.owner()?;
    let lock = scene.redlock.try_lock_for(NAME, LONG, WAIT)?;
    pause(SETTLE);
    let values = scene.values()?;
    ensure!(!values.contains(&Some(before)), "a key has outlived its TTL");
    peer.unlock()?;
    pause(SETTLE);
    ensure!(scene.values()? == values, "the peer has changed muxlock's lock");
    scene.expect_held(&lock)?;
    scene.release(lock)?;
    scene.expect_no_keys()
}

/// A peer that extends too late is refused, and changes nothing of muxlock's lock.
pub fn peer_extends_too_late(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    ensure!(peer.lock(NAME, SHORT)?, "the peer does not get a free lock");
    let lock = scene.redlock.try_lock_for(NAME, LONG, WAIT)?;
    pause(SETTLE);
    let values = scene.values()?;
    ensure!(!peer.extend(LONG)?, "the peer extends a lock that muxlock holds");
    pause(SETTLE);
    ensure!(scene.values()? == values, "the peer has changed muxlock's lock");
    scene.release(lock)?;
    scene.expect_no_keys()
}

/// muxlock, extending and releasing too late, changes nothing of a peer's lock.
pub fn muxlock_releases_too_late(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    let mut lock = scene.redlock.try_lock(NAME, SHORT)?;
    scene.owner()?;
    ensure!(peer.lock_for(NAME, LONG, WAIT)?, "the peer does not get an expired lock");
    pause(SETTLE);
    let values = scene.values()?;
    let extended = lock.extend(LONG);
    ensure!(extended.is_err_and(|error| error.is_expired()), "muxlock extends an expired lock");
    ensure!(!lock.unlock()?.was_held(), "muxlock reports its lock as held");
    pause(SETTLE);
    ensure!(scene.values()? == values, "muxlock has changed the peer's lock");
    scene.expect_refusal(LONG)?;
    peer.unlock()?;
    scene.expect_no_keys()
}

/// A kind of lock of muxlock's.
type Take = fn(&Redlock) -> Result<LockGuard, LockError>;

/// Those that have the resource [`NAME`].
const KINDS: [(&str, Take); 5] = [
    ("a lock of two resources", |redlock| redlock.try_lock_all([NAME, "another"], LONG)),
    ("a share", |redlock| redlock.try_read(NAME, LONG)),
    ("all shares", |redlock| redlock.try_write(NAME, LONG)),
    ("a lock with a value", |redlock| redlock.try_lock_as(NAME, "mine", LONG)),
    ("what was all shares", |redlock| redlock.try_write(NAME, LONG)?.downgrade(LONG)),
];

/// Each kind of lock keeps a peer out, and a peer keeps it out, without a trace.
pub fn other_kinds_exclude_the_peer(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    for (kind, take) in KINDS {
        let lock = take(&scene.redlock)?;
        // Those whose cleanup fails at a key of another type may say so.
        ensure!(!matches!(peer.lock(NAME, LONG), Ok(true)), "the peer has the lock beside {kind}");
        pause(SETTLE);
        ensure!(lock.is_valid(), "{kind} is not valid");
        scene.release(lock)?;
        scene.expect_no_keys()?;
        ensure!(peer.lock(NAME, LONG)?, "the peer does not get what {kind} has released");
        let owner = scene.owner()?;
        let refused = take(&scene.redlock).err();
        let is_contended = refused.as_ref().is_some_and(LockError::is_contended);
        ensure!(is_contended, "{kind} beside the peer's lock: {refused:?}");
        pause(SETTLE);
        ensure!(scene.owner()? == owner, "the key has another value");
        peer.unlock()?;
        scene.expect_no_keys()?;
    }
    Ok(())
}

/// Who has the same value is no holder, and ends the lock of the other: in both directions.
pub fn peer_is_known_by_its_value(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    ensure!(peer.lock(NAME, LONG)?, "the peer does not get a free lock");
    let value = scene.owner()?;
    let owner = scene.redlock.owner(NAME)?;
    ensure!(owner == Owner::Value(value.clone().into()), "muxlock sees another owner");
    let refused = scene.redlock.try_lock_as(NAME, &value, LONG).err();
    ensure!(refused.is_some_and(|error| error.is_contended()), "muxlock has the lock, too");
    ensure!(scene.owner()? == value, "the key has another value");
    let released = scene.redlock.release_as(NAME, &value)?;
    ensure!(released.confirmed >= 3, "muxlock does not end the lock with the peer's value");
    scene.expect_no_keys()?;

    let lock = scene.redlock.try_lock_as(NAME, &value, LONG)?;
    pause(SETTLE);
    peer.unlock()?;
    ensure!(!lock.unlock()?.was_held(), "the peer does not end the lock with its value");
    scene.expect_no_keys()
}

/// A permit is a plain lock to a peer.
pub fn permits_exclude_the_peer(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    let semaphore = scene.redlock.semaphore("some", 1)?;
    let permit = semaphore.try_acquire(LONG)?;
    ensure!(!peer.lock("some{permit}:0", LONG)?, "the peer has the permit, too");
    scene.release(permit)?;
    ensure!(peer.lock("some{permit}:0", LONG)?, "the peer does not get a free permit");
    let refused = semaphore.try_acquire(LONG).err();
    ensure!(refused.is_some_and(|error| error.is_contended()), "muxlock has the permit, too");
    peer.unlock()?;
    scene.expect_no_keys()
}

/// A lock of several resources of the peer's, and one of muxlock's, that have one in common.
pub fn sets_exclude_each_other(scene: &Scene, peer: &mut dyn Peer) -> Result<(), Failure> {
    const THEIRS: &str = "invoice:42,theirs";
    let ours = || scene.redlock.try_lock_all([NAME, "ours"], LONG);
    let set = ours()?;
    ensure!(!peer.lock(THEIRS, LONG)?, "the peer has the set, too");
    scene.release(set)?;
    scene.expect_no_keys()?;
    ensure!(peer.lock(THEIRS, LONG)?, "the peer does not get a free set");
    let refused = ours().err().ok_or("muxlock has the set, too")?;
    let held = refused.held_resource().map(|held| held.as_bytes().to_vec());
    ensure!(held.as_deref() == Some(NAME.as_bytes()), "muxlock says: {refused}");
    peer.unlock()?;
    scene.expect_no_keys()
}
