//! Background extensions, in short *errands*: one thread runs them for many locks at the same time.
//! Keeping locks alive needs nothing else of the event loop.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Redlock;
use super::crew::Limit;
use super::loop_work::{Order, Outcome, Watch};
use crate::error::LockError;
use crate::moment::Moment;
use crate::proto::Lease;

/// Identifies an errand of one client; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ErrandId(u64);

/// The extensions of one client that are in flight, each with a value of the caller. One thread
/// starts them and waits for them; any thread may take one back.
pub(super) struct Errands<T> {
    running: Mutex<HashMap<ErrandId, T>>,
    /// Errands that were started and are not sent yet. Locked while they are handed over, so that
    /// each is found either here or there. Meanwhile the thread waits for nothing and writes no
    /// record.
    unsent: Mutex<Vec<NewErrand>>,
    so_far: AtomicU64,
}

/// An extension to start.
pub(super) struct NewErrand {
    pub(super) id: ErrandId,
    pub(super) lease: Lease,
    pub(super) ttl: Duration,
}

/// An extension that has ended.
pub(super) struct EndedErrand {
    pub(super) id: ErrandId,
    pub(super) ended: Ended,
}

/// An extension that has ended, with the caller's value.
pub(super) struct Errand<T> {
    pub(super) of: T,
    pub(super) ended: Ended,
}

/// How an extension ended.
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large kind")]
pub(super) enum Ended {
    Done(Lease, Result<(), LockError>),
    /// The lock was no longer wanted, and was given up.
    GivenUp,
}

impl<T> Errands<T> {
    pub(super) fn new() -> Errands<T> {
        let (running, unsent) = (Mutex::new(HashMap::new()), Mutex::new(Vec::new()));
        Errands { running, unsent, so_far: AtomicU64::new(0) }
    }

    /// Starts an extension. It is sent together with all that are started before the next
    /// [`send`](Errands::send) or [`wait`](Errands::wait).
    pub(super) fn start(&self, lease: Lease, ttl: Duration, of: T) -> ErrandId {
        let id = ErrandId(self.so_far.fetch_add(1, Ordering::Relaxed));
        self.running().insert(id, of);
        self.unsent().push(NewErrand { id, lease, ttl });
        id
    }

    pub(super) fn send(&self, redlock: &Redlock) {
        let crew = &redlock.shared.crew;
        let mut unsent = self.unsent();
        if unsent.is_empty() {
            return;
        }
        crew.file(Order::Errands(mem::take(&mut unsent)));
        drop(unsent);
        crew.tend();
    }

    /// Takes the lease back from an extension. `None` if the extension has ended and another thread
    /// has its result, or if that is not known by `until`: the lease is then given up.
    pub(super) fn recall(&self, redlock: &Redlock, id: ErrandId, until: Moment) -> Option<Lease> {
        let lease = self.take_unsent(id).or_else(|| {
            match redlock.shared.crew.run(Order::Recall(id), Limit::At(until))? {
                Outcome::Recalled(_, lease) => lease.map(|lease| *lease),
                _ => unreachable!("a lease was asked for"),
            }
        })?;
        self.running().remove(&id);
        Some(lease)
    }

    /// Gives an unwanted lock up, unless its extension has ended and another thread has the result.
    /// Does not wait.
    pub(super) fn discard(&self, redlock: &Redlock, id: ErrandId) {
        match self.take_unsent(id) {
            Some(lease) => {
                self.running().remove(&id);
                redlock.shared.crew.leave(Order::Abandon(lease));
            }
            None => redlock.shared.crew.leave(Order::Recall(id)),
        }
    }

    fn take_unsent(&self, id: ErrandId) -> Option<Lease> {
        let mut unsent = self.unsent();
        let at = unsent.iter().position(|errand| errand.id == id)?;
        Some(unsent.swap_remove(at).lease)
    }

    /// Sends what was started, and works or sleeps until an extension has ended, at most until
    /// `until`. Returns the ended ones.
    pub(super) fn wait(&self, redlock: &Redlock, until: Moment) -> Vec<Errand<T>> {
        self.send(redlock);
        if self.is_empty() {
            return Vec::new();
        }
        let watch = Order::Watch(Watch::Errands(until));
        let ended = match redlock.shared.crew.run(watch, Limit::At(until)) {
            Some(Outcome::Errands(ended)) => ended,
            None => Vec::new(),
            _ => unreachable!("the errands were asked for"),
        };
        let mut running = self.running();
        let with_reason = |EndedErrand { id, ended }| {
            let of = running.remove(&id).expect("a recalled errand is not handed out");
            Errand { of, ended }
        };
        ended.into_iter().map(with_reason).collect()
    }

    /// Makes the waiting thread return; if no thread waits, the next one.
    pub(super) fn call_back(&self, redlock: &Redlock) {
        redlock.shared.crew.leave(Order::CallBack);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running().is_empty()
    }

    fn running(&self) -> MutexGuard<'_, HashMap<ErrandId, T>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unsent(&self) -> MutexGuard<'_, Vec<NewErrand>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::config::RestartGuard;
    use crate::proto::Ttl;
    use crate::resource::Resource;
    use crate::sys::clock::Clock;
    use crate::token::LockToken;

    const LONG: Duration = Duration::from_secs(30);

    /// A client whose server never answers, with an extension in flight, and the server.
    fn unanswered() -> (Redlock, Errands<&'static str>, ErrandId, TcpListener) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", server.local_addr().unwrap());
        let builder = Redlock::builder().node(url).connect_timeout(LONG).node_timeout(LONG);
        let redlock = builder.restart_guard(RestartGuard::Off).build().unwrap();
        let resource = Resource::new("resource").unwrap();
        let token = LockToken::from_random([7; 20]);
        let lease = Lease::restored(resource, token, Ttl::new(LONG).unwrap(), Moment::END);
        let errands = Errands::new();
        let op = errands.start(lease, LONG, "errand");
        (redlock, errands, op, server)
    }

    /// Lets threads that are about to wait do so.
    fn settle() {
        let until = Clock.now().after(Duration::from_millis(100));
        while Clock.now() < until {
            thread::yield_now();
        }
    }

    fn is_called_back_at_once(redlock: &Redlock, errands: &Errands<&'static str>) {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| errands.wait(redlock, Clock.now().after(LONG)));
            settle();
            assert!(!waiting.is_finished());
            let called = Clock.now();
            errands.call_back(redlock);
            assert!(waiting.join().unwrap().is_empty());
            let took = Clock.now().since(called);
            assert!(took < LONG / 12, "{took:?}");
        });
    }

    #[test]
    fn wait_ends_when_it_is_called_back_whoever_polls() {
        let (redlock, errands, _op, _server) = unanswered();
        is_called_back_at_once(&redlock, &errands);
        thread::scope(|scope| {
            let other = scope.spawn(|| redlock.shutdown(LONG / 10));
            settle();
            is_called_back_at_once(&redlock, &errands);
            assert!(!other.is_finished());
        });
        // A call before the wait is not missed.
        errands.call_back(&redlock);
        assert!(errands.wait(&redlock, Moment::END).is_empty());
        assert!(!errands.is_empty());
    }

    #[test]
    fn recalled_errand_is_not_waited_for() {
        let (redlock, errands, op, _server) = unanswered();
        let start = Clock.now();
        assert!(errands.recall(&redlock, op, Moment::END).is_some());
        assert!(errands.recall(&redlock, op, Moment::END).is_none());
        assert!(errands.is_empty());
        assert!(errands.wait(&redlock, start.after(LONG)).is_empty());
        assert!(Clock.now().since(start) < LONG / 2);
    }

    /// The thread that recalled it may have panicked.
    #[test]
    fn recalled_errand_that_nobody_takes_comes_back() {
        let (redlock, errands, op, _server) = unanswered();
        errands.send(&redlock);
        redlock.shared.crew.leave(Order::Recall(op));
        let ended = errands.wait(&redlock, Clock.now().after(LONG));
        assert_eq!(ended.iter().map(|errand| errand.of).collect::<Vec<_>>(), ["errand"]);
        assert!(matches!(ended[0].ended, Ended::GivenUp) && errands.is_empty());
    }

    #[test]
    fn wait_ends_at_its_time() {
        let (redlock, errands, _op, _server) = unanswered();
        let start = Clock.now();
        let until = start.after(Duration::from_millis(30));
        assert!(errands.wait(&redlock, until).is_empty());
        assert!(Clock.now() >= until && Clock.now().since(start) < LONG / 2);
        // The elapsed time is enough for one poll.
        assert!(errands.wait(&redlock, start).is_empty());
    }
}
