//! Waits that another thread can end.

use std::sync::Arc;

use super::{Redlock, Shared};

/// Ends waits for locks from another thread. It comes from [`Redlock::waiter`].
///
/// Take locks, of any kind, from [`redlock`](Waiter::redlock). All clones of a waiter share one
/// signal: [`cancel`](Waiter::cancel) on any of them, from any thread, ends every wait of all of
/// them with [`Cancelled`](crate::LockErrorKind::Cancelled). The same holds for each handle that
/// was made from that client, such as [`fenced`](Redlock::fenced),
/// [`semaphore`](Redlock::semaphore) and [`reentrant`](Redlock::reentrant). After that, none of
/// them acquires another lock; take a new waiter from the client.
///
/// Locks that are held stay as they are, and their guards go on: they can be extended, renewed,
/// handed over and released. The work of [`with_lock`](Redlock::with_lock) is not interrupted: let
/// it check [`is_cancelled`](Waiter::is_cancelled).
///
/// ```no_run
/// use muxlock::{LockErrorKind, Redlock};
/// use std::time::Duration;
///
/// let redlock = Redlock::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let waiter = redlock.waiter();
/// let stop = waiter.clone();
/// // For example when the service shuts down.
/// std::thread::spawn(move || stop.cancel());
///
/// let (ttl, wait) = (Duration::from_secs(10), Duration::from_secs(3600));
/// match waiter.redlock().try_lock_all_for(["account:7", "account:9"], ttl, wait) {
///     Ok(lock) => println!("held for {:?}", lock.remaining()),
///     Err(error) if error.kind() == LockErrorKind::Cancelled => println!("stopped"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Waiter(Redlock);

impl Waiter {
    pub(super) fn new(shared: Arc<Shared>) -> Waiter {
        Waiter(Redlock { shared, cancel: Some(Arc::default()) })
    }

    /// The client, bound to this waiter: [`cancel`](Waiter::cancel) ends the waits of this handle
    /// and of its clones. Calls on the whole client, such as [`close`](Redlock::close) and
    /// [`shutdown`](Redlock::shutdown), are still about the whole client.
    pub fn redlock(&self) -> &Redlock {
        &self.0
    }

    /// Ends every wait of this waiter and its clones with
    /// [`Cancelled`](crate::LockErrorKind::Cancelled), including waits that start later. A lock
    /// that was granted, but not returned yet, is either released or returned.
    ///
    /// It waits for nothing. It takes no mutex and allocates nothing, so a signal handler may call
    /// it. The waits end as soon as a thread runs the event loop. In a forked process it ends only
    /// waits of that process.
    pub fn cancel(&self) {
        if let Redlock { shared, cancel: Some(cancel) } = &self.0 {
            shared.signals.cancel(cancel, shared.owner);
        }
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancel.as_ref().is_some_and(|cancel| cancel.is_cancelled())
    }
}
