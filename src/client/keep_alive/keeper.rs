//! The thread that renews all kept locks of a client. It exists while there are any, and for at
//! most a second after the last.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::KeepAliveErrorKind;
use super::kept::{Kept, Renewal};
use super::schedule::{Due, Key, Schedule};
use crate::client::{Redlock, errands};
use crate::keep_alive::LossCause;
use crate::moment::Moment;
use crate::proto::{OPERATIONS_MAX, Terms};
use crate::sys::clock::Clock;
use crate::sys::entropy::SystemEntropy;
use crate::token::Entropy;

/// The most locks that one client keeps alive: half of the operations, so that others have room.
const LOCKS_MAX: usize = OPERATIONS_MAX / 2;
/// Most renewals started before the masters' answers are read.
const RENEWALS_PER_TURN_MAX: usize = 1_024;
/// The longest sleep. It is short because a forward jump of the clock makes locks expire sooner
/// than planned.
const SLEEP_MAX: Duration = Duration::from_secs(1);

pub(super) type Errands = errands::Errands<(Key, Arc<Kept>)>;

pub(in crate::client) struct Keeper {
    state: Mutex<State>,
    /// Notified when the thread must wake up earlier.
    changed: Condvar,
    errands: Errands,
}

struct State {
    schedule: Schedule,
    locks: HashMap<Key, Arc<Kept>>,
    /// The client, while it has kept locks.
    redlock: Option<Redlock>,
    has_thread: bool,
    waiting: Waiting,
    jitter: SystemEntropy,
}

/// What the thread waits for, if it waits.
#[derive(Clone, Copy)]
enum Waiting {
    No,
    /// For `changed`.
    ForBell(Moment),
    /// For answers of the masters.
    ForMasters(Moment),
}

impl Keeper {
    pub(in crate::client) fn new() -> Keeper {
        Keeper {
            state: Mutex::new(State {
                schedule: Schedule::default(),
                locks: HashMap::new(),
                redlock: None,
                has_thread: false,
                waiting: Waiting::No,
                jitter: SystemEntropy::new(),
            }),
            changed: Condvar::new(),
            errands: Errands::new(),
        }
    }

    /// Keeps a lock alive from now on.
    pub(super) fn add(
        self: &Arc<Self>,
        now: Moment,
        kept: Arc<Kept>,
        terms: Terms,
        deadline: Moment,
    ) -> Result<Key, KeepAliveErrorKind> {
        let mut state = self.lock();
        if state.locks.len() >= LOCKS_MAX {
            return Err(KeepAliveErrorKind::TooMany);
        }
        if !state.has_thread {
            let keeper = Arc::clone(self);
            let thread = thread::Builder::new().name("muxlock-keeper".into());
            let started = thread.spawn(move || keeper.run());
            started.map_err(|error| KeepAliveErrorKind::Thread(error.kind()))?;
            state.has_thread = true;
        }
        let random = state.jitter.next_u64();
        let key = state.schedule.add(now, terms, deadline, random);
        let redlock = kept.redlock.clone();
        state.locks.insert(key, kept);
        state.redlock.get_or_insert_with(|| redlock.clone());
        let next = state.schedule.poll_timeout().expect("a lock was added");
        match state.waiting {
            Waiting::ForBell(until) if next < until => self.changed.notify_one(),
            Waiting::ForMasters(until) if next < until => {
                state.waiting = Waiting::No;
                drop(state);
                self.errands.call_back(&redlock);
            }
            Waiting::No | Waiting::ForBell(_) | Waiting::ForMasters(_) => {}
        }
        Ok(key)
    }

    /// Stops keeping a lock alive.
    pub(super) fn remove(&self, key: Key) {
        let mut state = self.lock();
        state.schedule.remove(key);
        let kept = state.locks.remove(&key);
        let redlock = state.redlock_if_idle();
        drop(state);
        // Dropped without the mutex: each may be the last reference.
        drop((kept, redlock));
    }

    pub(super) fn errands(&self) -> &Errands {
        &self.errands
    }

    fn run(&self) {
        let mut redlock = None;
        while !matches!(survive(|| self.turn(&mut redlock)), Some(Turn::Last)) {}
    }

    /// Starts renewals and reports losses that are due, and waits. Holds a reference to the client
    /// while an errand is in flight.
    fn turn(&self, redlock: &mut Option<Redlock>) -> Turn {
        let mut state = self.lock();
        let (renewals, losses) = state.take_due();
        let own = state.redlock.clone();
        let idle = state.redlock_if_idle();
        drop(state);
        drop(idle);
        if own.is_some() {
            *redlock = own;
        }
        losses.iter().for_each(|(kept, cause)| kept.lose(*cause));
        if let Some(redlock) = redlock {
            // Losses are reported even if this panics.
            survive(|| self.renew(redlock, renewals));
        }
        losses.iter().for_each(|(kept, _)| kept.tell());
        drop(losses);
        if self.errands.is_empty() {
            *redlock = None;
            return self.idle();
        }
        let client = redlock.as_ref().expect("it is kept while an errand is under way");
        let mut state = self.lock();
        let until = state.wake_at(Clock.now());
        state.waiting = Waiting::ForMasters(until);
        drop(state);
        let ended = self.errands.wait(client, until);
        self.hand_back(client, ended);
        Turn::More
    }

    fn renew(&self, redlock: &Redlock, renewals: Vec<(Key, Arc<Kept>)>) {
        if renewals.is_empty() {
            return;
        }
        for (key, kept) in renewals {
            kept.renew(&self.errands, key);
        }
        self.errands.send(redlock);
    }

    fn hand_back(&self, redlock: &Redlock, ended: Vec<errands::Errand<(Key, Arc<Kept>)>>) {
        let hand_back = |errand: errands::Errand<(Key, Arc<Kept>)>| {
            let (key, kept) = (errand.of.0, Arc::clone(&errand.of.1));
            let renewal = kept.hand_back(errand);
            (key, renewal)
        };
        let ended: Vec<_> = ended.into_iter().map(hand_back).collect();
        let now = Clock.now();
        let mut state = self.lock();
        state.waiting = Waiting::No;
        let (mut lost, mut unwanted) = (Vec::new(), Vec::new());
        for (key, renewal) in ended {
            let random = state.jitter.next_u64();
            match renewal {
                Renewal::Succeeded(deadline) => {
                    state.schedule.handle_renewed(now, key, deadline, random);
                }
                Renewal::Failed => state.schedule.handle_failed(now, key, random),
                Renewal::Lost => {
                    state.schedule.remove(key);
                    lost.extend(state.locks.remove(&key));
                }
                Renewal::Over => {}
                Renewal::Unwanted(lease) => unwanted.push(lease),
            }
        }
        drop(state);
        lost.iter().for_each(|kept| kept.tell());
        for lease in unwanted {
            // The other leases are released even if this panics.
            survive(|| redlock.abandon(lease));
        }
    }

    /// Sleeps until something is due, or ends the thread if no lock is left.
    fn idle(&self) -> Turn {
        let mut state = self.lock();
        let now = Clock.now();
        let until = state.wake_at(now);
        state.waiting = Waiting::ForBell(until);
        let waited = self.changed.wait_timeout(state, until.since(now));
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.waiting = Waiting::No;
        if state.locks.is_empty() {
            state.has_thread = false;
            return Turn::Last;
        }
        Turn::More
    }

    #[cfg(test)]
    pub(super) fn hold(&self) -> impl Sized {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs code in which a logger may panic. The locks are still valid then, so the thread continues.
fn survive<T>(run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run)).ok()
}

enum Turn {
    More,
    Last,
}

impl State {
    #[expect(clippy::type_complexity, reason = "two lists, taken apart at once")]
    fn take_due(&mut self) -> (Vec<(Key, Arc<Kept>)>, Vec<(Arc<Kept>, LossCause)>) {
        let now = Clock.now();
        let (mut renewals, mut losses) = (Vec::new(), Vec::new());
        while renewals.len() < RENEWALS_PER_TURN_MAX {
            match self.schedule.poll_due(now) {
                Some(Due::Renew(key)) => renewals.push((key, Arc::clone(&self.locks[&key]))),
                Some(Due::Lost(key, cause)) => {
                    losses.extend(self.locks.remove(&key).map(|kept| (kept, cause)));
                }
                None => break,
            }
        }
        (renewals, losses)
    }

    fn redlock_if_idle(&mut self) -> Option<Redlock> {
        self.redlock.take_if(|_| self.locks.is_empty())
    }

    fn wake_at(&self, now: Moment) -> Moment {
        let latest = now.after(SLEEP_MAX);
        self.schedule.poll_timeout().map_or(latest, |next| next.min(latest))
    }
}
