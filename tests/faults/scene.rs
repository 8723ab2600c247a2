//! What the fault tests share: masters, clients with and without their guard, and what must be so
//! once a fault has healed.

use std::time::Duration;

use muxlock::node::{NodeOutcome, NodeStatus, Quarantine};
use muxlock::settings::RestartGuard;
use muxlock::{Builder, LockError, LockGuard, Redlock};

use muxlock::testing::{Master, Masters, Value};
use testbed::{
    PATIENT, SOON, Stopwatch, ask, outcomes, patient, pause, ready, soon, timed, within,
};

use crate::scripts::RELEASE;

pub const KEY: &str = "invoice:42";
/// What dead attempts leave behind must be gone this soon after the fault has healed.
pub const HEALED_WITHIN: Duration = Duration::from_secs(1);
/// No test runs as long: a key that is gone was deleted.
pub const LONG: Duration = Duration::from_secs(600);
/// Where nodes do not answer, somebody has to wait for this.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// The longest TTL where the guard is on, so that quarantines end within a test.
pub const MAX_TTL: Duration = Duration::from_millis(1_500);
/// The TTL, its drift of 1 % and 2 ms, and a second for the server's truncated age.
pub const QUARANTINE: Duration = Duration::from_millis(1_500 + 17 + 1_000);

/// The longest TTL of locks that outlive a schedule where the guard is on.
pub const LASTING: Duration = Duration::from_secs(6);

/// A clock that was asked for within this time is not asked for again before a lock is taken.
pub const SAMPLE_AGE_MAX: Duration = Duration::from_millis(10);
/// A server that was looked at within this time is not looked at again before a lock is taken.
pub const LOOK_AGE_MAX: Duration = Duration::from_secs(1);

/// How the SET of a lock begins.
pub const SET: &[u8] = b"*6\r\n$3\r\nSET\r\n";
/// A TTL that a test waits for, and which no machine is too slow for.
const WAITED_TTL_MAX: Duration = Duration::from_secs(32);

#[track_caller]
pub fn start(n: usize) -> Masters {
    start_with(n, &[])
}

#[track_caller]
pub fn start_with(n: usize, args: &[&str]) -> Masters {
    Masters::start_with(n, args).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
pub fn start_one(args: &[&str]) -> Master {
    Master::start_with(args).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
pub fn tell(master: &Master, words: &[&str]) {
    assert_eq!(ask(master, words), Value::Status("OK".into()), "{words:?}");
}

pub fn owner(master: &Master, key: &str) -> Option<Vec<u8>> {
    master.value_of(key.as_bytes()).expect("the master answers")
}

pub fn owns(master: &Master, lock: &LockGuard, key: &str) -> bool {
    owner(master, key).as_deref() == Some(lock.token().as_bytes())
}

pub fn pttl(master: &Master, key: &str) -> i64 {
    master.pttl(key.as_bytes()).expect("the master answers")
}

pub fn calls(master: &Master, command: &str) -> u64 {
    master.command_calls(command).expect("the master answers")
}

/// How often a lock was set there. A client whose guard is on sets the marker where it is absent.
pub fn sets_of(master: &Master) -> u64 {
    let is_marked = ask(master, &["EXISTS", "muxlock:marker"]) == Value::Integer(1);
    calls(master, "set") - u64::from(is_marked)
}

/// Masters that were just started vote at once, and nothing that a test waits for expires.
pub fn trusting<I>(urls: I) -> Builder
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    patient(urls).restart_guard(RestartGuard::Off).max_ttl(LONG)
}

/// As [`trusting`], for nodes that do not answer.
pub fn hasty<I>(urls: I) -> Builder
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    trusting(urls).node_timeout(NODE_TIMEOUT).connect_timeout(Duration::from_secs(2))
}

/// The default guard, with quarantines that end within a test.
pub fn guarded<I>(urls: I) -> Builder
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    patient(urls).restart_guard(RestartGuard::Uptime).max_ttl(MAX_TTL)
}

pub fn urls<'a>(masters: impl IntoIterator<Item = &'a Master>) -> Vec<String> {
    masters.into_iter().map(Master::url).collect()
}

/// Waits until each new client with these settings trusts the age of the masters.
#[track_caller]
pub fn grow_old(builder: &Builder) {
    drop(all_vote(builder));
    // They tell their age in whole seconds.
    pause(Duration::from_secs(1));
}

/// A client all of whose nodes vote and owe no answer. A server that compares and deletes by itself
/// is tried out right after the handshake: what is frozen before that owes two answers.
#[track_caller]
pub fn all_vote(builder: &Builder) -> Redlock {
    let redlock = builder.connect().unwrap_or_else(|error| panic!("{error}"));
    until_vote(&redlock, redlock.nodes().len());
    soon("nothing is unanswered", || redlock.nodes().iter().all(|node| node.in_flight == 0));
    redlock
}

/// Waits until so many nodes vote; quarantines end by themselves.
#[track_caller]
pub fn until_vote(redlock: &Redlock, nodes: usize) {
    within(LASTING + QUARANTINE + SOON, "they vote", || ready(redlock) == nodes);
}

/// Calls the client until this is so of a node.
#[track_caller]
pub fn node_soon(redlock: &Redlock, node: usize, what: &str, is_so: impl Fn(&NodeStatus) -> bool) {
    soon(what, || is_so(&redlock.nodes()[node]));
}

pub fn quarantine_of(redlock: &Redlock, node: usize) -> Option<Quarantine> {
    redlock.nodes()[node].quarantine
}

#[track_caller]
pub fn refused(result: Result<LockGuard, LockError>) -> LockError {
    match result {
        Ok(lock) => panic!("granted: {lock:?}"),
        Err(error) => error,
    }
}

/// The outcome of one node in an attempt that must fail for want of votes.
#[track_caller]
pub fn unavailable(result: Result<LockGuard, LockError>, node: usize) -> NodeOutcome {
    let error = refused(result);
    assert!(error.is_unavailable(), "{error}");
    outcomes(&error)[node]
}

/// Takes and gives back: everything works again.
#[track_caller]
pub fn works(redlock: &Redlock) {
    let lock = redlock.try_lock_for(KEY, MAX_TTL, SOON).unwrap_or_else(|error| panic!("{error}"));
    assert!(lock.unlock().unwrap_or_else(|error| panic!("{error}")).was_held());
}

/// A lock and its clock, to compare another one's start with its end.
pub struct First {
    pub lock: LockGuard,
    watch: Stopwatch,
    /// On the watch; not later than the lock's own deadline.
    deadline: Duration,
}

impl First {
    pub fn take(redlock: &Redlock, ttl: Duration) -> First {
        let lock = redlock.try_lock_for(KEY, ttl, SOON).unwrap_or_else(|error| panic!("{error}"));
        let watch = Stopwatch::start();
        let deadline = watch.elapsed() + lock.remaining();
        First { lock, watch, deadline }
    }

    /// For how long it has been held, at least.
    pub fn lived(&self) -> Duration {
        self.watch.elapsed()
    }

    /// The second client's lock, whenever it gets it, is not a second one.
    #[track_caller]
    pub fn is_never_joined_by(&self, second: &Redlock) -> LockGuard {
        self.is_never_joined(|| {
            let got = second.try_lock_for(KEY, MAX_TTL, PATIENT);
            got.unwrap_or_else(|error| panic!("{error}"))
        })
    }

    /// As [`is_never_joined_by`](First::is_never_joined_by), however the lock is got.
    #[track_caller]
    pub fn is_never_joined(&self, get: impl FnOnce() -> LockGuard) -> LockGuard {
        let lock = get();
        let (first_is_valid, at) = (self.lock.is_valid(), self.watch.elapsed());
        assert!(!first_is_valid, "two holders at the same time");
        assert!(at >= self.deadline, "{at:?} is before {:?}", self.deadline);
        println!("measured: the second holder came {:?} after the first", at - self.deadline);
        lock
    }

    /// The control: the second client is let in, and there are two.
    #[track_caller]
    pub fn is_joined_by(&self, second: &Redlock) {
        let got = second.try_lock_for(KEY, MAX_TTL, SOON);
        let lock = got.unwrap_or_else(|error| panic!("the control shows nothing: {error}"));
        // It was valid when the second one was already held.
        assert!(self.lock.is_valid(), "the control was too slow to show anything");
        assert!(lock.is_valid());
        println!("control: two holders, the first for another {:?}", self.lock.remaining());
    }
}

/// A schedule that has to be through before a TTL is over, which the test waits for afterwards. It
/// returns `None` if the machine was too slow, and is tried again with a longer one.
#[track_caller]
pub fn first_in_time<T>(schedule: impl Fn(Duration) -> Option<T>) -> T {
    let mut ttl = Duration::from_secs(1);
    loop {
        if let Some(done) = schedule(ttl) {
            return done;
        }
        ttl *= 2;
        assert!(ttl <= WAITED_TTL_MAX, "this machine is too slow for {ttl:?}");
    }
}

/// For a schedule that is to be [`first_in_time`].
#[track_caller]
pub fn in_time<T>(result: Result<T, LockError>) -> Option<T> {
    match result {
        Err(error) if error.is_expired() => None,
        result => Some(result.unwrap_or_else(|error| panic!("{error}"))),
    }
}

/// Waits until a copy of the lock has ended by itself, after a schedule that was [`first_in_time`].
#[track_caller]
pub fn ends_by_itself(master: &Master) {
    within(WAITED_TTL_MAX + SOON, "its TTL is over", || owner(master, KEY).is_none());
}

/// Deletes a lock's key as a release does, and says whether it was there.
#[track_caller]
pub fn compare_and_delete(master: &Master, lock: &LockGuard) -> bool {
    let (script, key) = (RELEASE.as_bytes(), KEY.as_bytes());
    let answer = master.query(&[b"EVAL", script, b"1", key, lock.token().as_bytes()]);
    answer.unwrap_or_else(|error| panic!("{error}")) == Value::Integer(1)
}

/// Another client asks for the lock, and is refused.
#[track_caller]
pub fn stays_alone(lock: &LockGuard, second: &Redlock) {
    if let Err(error) = second.try_lock(KEY, MAX_TTL) {
        return assert!(error.is_contended() && lock.is_valid(), "{error}");
    }
    panic!("two holders at the same time, the first for another {:?}", lock.remaining());
}

/// The control: another client asks for the lock, and is let in.
#[track_caller]
pub fn two_hold(lock: &LockGuard, second: &Redlock) {
    let got = second.try_lock(KEY, MAX_TTL);
    let other = got.unwrap_or_else(|error| panic!("the control shows nothing: {error}"));
    assert!(lock.is_valid() && other.is_valid());
    println!("control: two holders, the first for another {:?}", lock.remaining());
}

/// The time, from now on, until each of these masters has run `sets` SETs and holds no key any
/// more. Those SETs are of dead attempts, with a TTL of ten minutes.
#[track_caller]
pub fn clean_again<'a>(
    fault: &str,
    masters: impl IntoIterator<Item = &'a Master> + Clone,
    sets: u64,
    meanwhile: impl FnMut(),
) {
    clean_again_within(HEALED_WITHIN, fault, masters, sets, meanwhile);
}

/// As [`clean_again`], where somebody has to come back first, who is not in a hurry.
#[track_caller]
pub fn clean_again_within<'a>(
    limit: Duration,
    fault: &str,
    masters: impl IntoIterator<Item = &'a Master> + Clone,
    sets: u64,
    mut meanwhile: impl FnMut(),
) {
    let is_clean = |master: &Master| {
        sets_of(master) >= sets && master.dbsize().expect("the master answers") == 0
    };
    let (took, ()) = timed(|| {
        within(limit + SOON, "every key of a dead attempt is gone", || {
            meanwhile();
            masters.clone().into_iter().all(is_clean)
        });
    });
    println!("measured: after {fault}, clean again in {took:?}");
    assert!(took < limit, "after {fault}: {took:?}");
}
