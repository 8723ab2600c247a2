//! The multiplexer: a driver for guests of a foreign event loop. It reads the clock, and works only
//! in the process that made it.

mod driver;
mod lookup;
mod reading;
mod records;
mod socket;
mod standalone;

use std::io;
use std::time::Duration;

use mio::event::Event;
use mio::{Registry, Token};

use crate::config::Config;
use crate::error::LockError;
use crate::keep_alive::KeepAlive;
use crate::moment::Moment;
use crate::proto::{Cancelled, Done, Lease, NodeStatus, OpId, Patience, Stats};
use crate::resource::Resource;
use crate::sys::clock::Clock;
use crate::sys::process::Home;
pub(crate) use driver::Driver;
pub(crate) use reading::UNREAD_MAX;
pub(crate) use records::Records;
pub use standalone::Standalone;

/// Locks inside a foreign event loop: any number of concurrent operations, and no call that blocks.
///
/// It is a guest in a [`mio::Poll`] (for other loops there is [`Standalone`]). It registers one
/// socket for each node, with the tokens from `first` to `first + nodes - 1`. It looks up a node's
/// host name before each connection, on a thread that ends with the lookup. In an event loop:
///
/// 1. start operations: [`try_lock`](Multiplexer::try_lock), [`extend`](Multiplexer::extend),
///    [`unlock`](Multiplexer::unlock); then [`flush`](Multiplexer::flush);
/// 2. take results: [`poll_done`](Multiplexer::poll_done) until it returns `None`;
/// 3. wait, for at most [`next_timeout`](Multiplexer::next_timeout);
/// 4. pass on the events, even if there are none: [`handle_events`](Multiplexer::handle_events). Or
///    pass each on with [`handle_event`](Multiplexer::handle_event), and then call
///    [`handle_timeout`](Multiplexer::handle_timeout). Continue with 2.
///
/// Every operation ends by itself. [`cancel`](Multiplexer::cancel) ends it when the caller no
/// longer needs it. An [`OpId`] of another multiplexer is unknown here: it finds and ends nothing.
///
/// In a process forked from the one that made it, a multiplexer sends, reads and reports nothing.
/// [`try_lock`](Multiplexer::try_lock) fails; other operations started there never end; results
/// that were ready before the fork belong to the parent; there is nothing to wait for. A [`Lease`]
/// passed in there is dropped: the parent has it.
///
/// Log records are written at the end of [`flush`](Multiplexer::flush) and of the calls that handle
/// events or timeouts, when no work is half done: a logger may panic.
///
/// A stale or foreign event does no harm. An event is only a reason to read the node's current
/// socket, where nothing is found that was not meant for it.
///
/// Bytes from a node that owes no answer end its connection. They are never taken for the answer to
/// the next command: the socket is read before a command is sent, unless it was read within the
/// last millisecond.
///
/// No call blocks or sleeps, and each does a bounded amount of work. It reads at most 16 times 33
/// KiB from each node. It handles 3,072 replies, 512 timeouts and 512 commands lost with a
/// connection, shared by the nodes, but at least 8 of each per node. A call of `handle_events`
/// handles up to twice as many replies: those announced and those left by the call before. It sends
/// 2,048 commands, each to all its nodes. If anything is left, `next_timeout` is zero, and the loop
/// can do its other work first.
///
/// ```no_run
/// use mio::{Events, Poll, Token};
/// use muxlock::{Done, Multiplexer, Redlock};
/// use std::time::Duration;
///
/// let config = Redlock::builder().node("redis://127.0.0.1").config()?;
/// let mut poll = Poll::new()?;
/// let mut events = Events::with_capacity(64);
/// let mut mux = Multiplexer::new(config, poll.registry(), Token(1000))?;
///
/// let op = mux.try_lock("invoice:42", Duration::from_secs(10))?;
/// mux.flush();
/// loop {
///     while let Some((id, done)) = mux.poll_done() {
///         if let (true, Done::Acquired(result)) = (id == op, done) {
///             println!("held until {:?}", result?.valid_until());
///             return Ok(());
///         }
///     }
///     poll.poll(&mut events, mux.next_timeout())?;
///     mux.handle_events(&events);
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Multiplexer {
    driver: Driver,
    /// In any other process, nothing of the driver may be touched (R24).
    home: Home,
}

impl Multiplexer {
    /// A multiplexer that uses the tokens of `registry` from `first` on, one for each node.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if `first` leaves no room for a token of each
    /// node. The operating system's error if the registry cannot be cloned.
    pub fn new(config: Config, registry: &Registry, first: Token) -> io::Result<Multiplexer> {
        Ok(Multiplexer { driver: Driver::new(config, registry, first)?, home: Home::here() })
    }

    /// The current moment on the safety clock, for comparison with a [`Lease`]'s validity.
    pub fn now(&self) -> Moment {
        Clock.now()
    }

    /// Starts one round of acquisition; it ends as [`Done::Acquired`].
    ///
    /// # Errors
    /// A wrong resource name or TTL, or too many operations in flight. Nothing was started: correct
    /// the arguments, or wait until some operations have ended.
    pub fn try_lock(
        &mut self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<OpId, LockError> {
        let resource = Resource::new(resource)?;
        self.check_home()?;
        self.driver.acquire(Clock.now(), resource, ttl, Patience::OneRound)
    }

    /// Starts rounds of acquisition that continue until `wait` has passed; it ends as
    /// [`Done::Acquired`].
    ///
    /// Acquisitions that wait here for the same resource get it in the order of their arrival, and
    /// only the first of them asks the nodes.
    ///
    /// # Errors
    /// As [`try_lock`](Multiplexer::try_lock).
    pub fn try_lock_for(
        &mut self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
    ) -> Result<OpId, LockError> {
        let resource = Resource::new(resource)?;
        self.check_home()?;
        let now = Clock.now();
        self.driver.acquire(now, resource, ttl, Patience::Until(now.after(wait)))
    }

    /// Starts an extension to `ttl` from now. It ends as [`Done::Extended`], which returns the
    /// lease, also if the TTL is wrong or the lease has expired and nothing was sent.
    pub fn extend(&mut self, lease: Lease, ttl: Duration) -> OpId {
        match self.home.is_here() {
            true => self.driver.extend(Clock.now(), lease, ttl),
            false => OpId::NONE,
        }
    }

    /// Starts a release; it ends as [`Done::Released`] when a quorum has confirmed it.
    pub fn unlock(&mut self, lease: Lease) -> OpId {
        match self.home.is_here() {
            true => self.driver.release(Clock.now(), lease),
            false => OpId::NONE,
        }
    }

    /// Keeps a lock alive: renews it, to its TTL each time, before each third of its validity ends.
    ///
    /// Each renewal is reported as [`Done::Renewed`], with the end of the new validity, and the
    /// lock is still kept. It ends as [`Done::Lost`], which returns the lease: while some of its
    /// validity is left if too few masters answer, or `how` allows no more. So stop the work, and
    /// release it. The lock is lost at once if it has expired, or if its TTL exceeds
    /// [`max_ttl`](crate::Builder::max_ttl).
    ///
    /// [`cancel`](Multiplexer::cancel) stops it and returns the lease, to be released or extended.
    /// [`kept`](Multiplexer::kept) shows the lease meanwhile. Call
    /// [`handle_events`](Multiplexer::handle_events) and [`poll_done`](Multiplexer::poll_done) when
    /// [`next_timeout`](Multiplexer::next_timeout) says so: nothing else renews the lock. If they
    /// are called too late, it is lost ([`LossCause::Late`](crate::LossCause::Late)). The callback
    /// of [`KeepAlive::on_loss`] is not called.
    ///
    /// ```no_run
    /// # use mio::{Poll, Token};
    /// # use muxlock::{Cancelled, Done, KeepAlive, Multiplexer, Redlock};
    /// # use std::time::Duration;
    /// # let config = Redlock::builder().node("redis://127.0.0.1").config()?;
    /// # let poll = Poll::new()?;
    /// # let mut mux = Multiplexer::new(config, poll.registry(), Token(0))?;
    /// # let lease: muxlock::Lease = unimplemented!();
    /// let kept = mux.keep_alive(lease, &KeepAlive::default());
    /// while let Some((id, done)) = mux.poll_done() {
    ///     match done {
    ///         Done::Renewed(valid_until) if id == kept => println!("until {valid_until:?}"),
    ///         Done::Lost(lease, loss) if id == kept => {
    ///             eprintln!("stop: {loss}");
    ///             mux.unlock(lease);
    ///         }
    ///         _ => {}
    ///     }
    /// }
    /// // The work is done.
    /// if let Cancelled::Extension(lease) = mux.cancel(kept) {
    ///     mux.unlock(lease);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep_alive(&mut self, lease: Lease, how: &KeepAlive) -> OpId {
        match self.home.is_here() {
            true => self.driver.keep(Clock.now(), lease, how),
            false => OpId::NONE,
        }
    }

    /// The lease of a lock that is kept alive, as of its last renewal; nothing in a forked process.
    pub fn kept(&self, id: OpId) -> Option<&Lease> {
        self.home.is_here().then(|| self.driver.engine().kept(id)).flatten()
    }

    /// Releases without a report.
    pub fn abandon(&mut self, lease: Lease) {
        if self.home.is_here() {
            self.driver.abandon(Clock.now(), lease);
        }
    }

    /// Stops using the lease here. Call it before the lease goes to another multiplexer, and when
    /// it is dropped without a release.
    ///
    /// From now on this multiplexer sends nothing for it. What only this multiplexer knows travels
    /// with the lease: masters that have not answered, where its command may still arrive, and
    /// masters in quarantine. The next multiplexer does not count these masters for as long as they
    /// may have forgotten a lock, at least `max_ttl`. If the command has not arrived when the next
    /// multiplexer gives the lock up, it ends this multiplexer's connection to that master. So let
    /// go after all masters have answered, if you can.
    ///
    /// Operations that wait here for the resource ask the masters from now on. Without this call
    /// they wait for its release, or for the end of its validity. Their commands leave with the
    /// next [`flush`](Multiplexer::flush).
    pub fn let_go(&mut self, lease: &mut Lease) {
        if self.home.is_here() {
            self.driver.let_go(Clock.now(), lease);
        }
    }

    /// Starts to connect to every node that is not connected yet.
    pub fn connect(&mut self) {
        if self.home.is_here() {
            self.driver.connect(Clock.now());
            self.driver.flush();
        }
    }

    /// Sends what was started. Operations started together leave in one write per node; commands
    /// beyond 2,048 leave in the next turn.
    ///
    /// Without this call nothing is lost: [`next_timeout`](Multiplexer::next_timeout) is then zero,
    /// and [`handle_timeout`](Multiplexer::handle_timeout) sends.
    pub fn flush(&mut self) {
        if self.home.is_here() {
            if self.driver.engine().has_actions() {
                // The operations may have been started long ago.
                self.driver.advance(Clock.now_coarse());
            }
            self.driver.flush();
            self.write_records();
        }
    }

    /// Writes the log records. A logger that panics leaves no work half done.
    fn write_records(&mut self) {
        if let Some(records) = self.driver.take_records() {
            records.write();
        }
    }

    /// Passes on a readiness event. Returns whether its token belongs to this multiplexer.
    pub fn handle_event(&mut self, event: &Event) -> bool {
        if !self.home.is_here() {
            return false;
        }
        self.driver.after_wait(Clock.now_coarse());
        let ours = self.driver.handle_event(event);
        self.flush();
        ours
    }

    /// Passes on all events of one wait and does what is due, like
    /// [`handle_event`](Multiplexer::handle_event) for each and then
    /// [`handle_timeout`](Multiplexer::handle_timeout). But it reads the clock once, and sends
    /// everything together. It ignores events with other tokens.
    pub fn handle_events<'a>(&mut self, events: impl IntoIterator<Item = &'a Event>) {
        if self.home.is_here() {
            let now = Clock.now_coarse();
            self.driver.after_wait(now);
            for event in events {
                self.driver.handle_event(event);
            }
            self.driver.handle_timeout(now);
            self.write_records();
        }
    }

    /// Does what is due: timeouts, retries, reconnects. Call it after each wait.
    pub fn handle_timeout(&mut self) {
        self.handle_events([]);
    }

    /// How long the event loop may wait; `None` means without limit.
    pub fn next_timeout(&self) -> Option<Duration> {
        if !self.home.is_here() {
            return None;
        }
        match self.driver.engine().has_done() {
            true => Some(Duration::ZERO),
            false => Some(self.driver.due()?.since(Clock.now_coarse())),
        }
    }

    /// Takes the next result.
    ///
    /// The clock is read for each acquired lock: a lock that is handed out was valid at that
    /// moment. A quorum that came too late is undone here. The commands for that leave with the
    /// next [`flush`](Multiplexer::flush) or turn, which is due immediately.
    #[inline]
    pub fn poll_done(&mut self) -> Option<(OpId, Done)> {
        // A lock that was granted before a fork is handed out once, to the parent (R24).
        match self.home.is_here() {
            true => self.driver.poll_done(|| Clock.now()),
            false => None,
        }
    }

    /// Ends an operation at once. [`poll_done`](Multiplexer::poll_done) no longer returns it, even
    /// if it had ended before.
    ///
    /// - An acquisition is undone: whatever it took, or may yet take, is released on every node
    ///   that it was meant for. From here on, no lock is held by it.
    /// - An extension returns its lease. The lock is held as before, until the lease's deadline:
    ///   the old one, or the new one if the extension had succeeded by now. Commands already sent
    ///   are not recalled, so the keys may live longer than that; a release deletes them anyway.
    /// - A lock that is kept alive is no longer renewed; its lease is returned as for an extension.
    /// - A release continues without a report: it cannot be taken back.
    ///
    /// For an operation that is not, or no longer, in flight here it returns
    /// [`Nothing`](Cancelled::Nothing) and does no harm. The same holds in a forked process.
    ///
    /// The resulting commands leave with the next [`flush`](Multiplexer::flush).
    pub fn cancel(&mut self, id: OpId) -> Cancelled {
        match self.home.is_here() {
            true => self.driver.cancel(Clock.now(), id),
            false => Cancelled::Nothing,
        }
    }

    /// What is known of each node; nothing in a forked process.
    pub fn nodes(&self) -> impl Iterator<Item = NodeStatus> + '_ {
        self.home.is_here().then(|| self.driver.engine().nodes()).into_iter().flatten()
    }

    /// The counters; all zero in a forked process.
    pub fn stats(&self) -> Stats {
        match self.home.is_here() {
            true => self.driver.engine().stats(),
            false => Stats::default(),
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        self.driver.engine().config()
    }

    fn check_home(&self) -> Result<(), LockError> {
        if self.home.is_here() { Ok(()) } else { Err(LockError::forked()) }
    }
}

impl Drop for Multiplexer {
    fn drop(&mut self) {
        if self.home.is_here() {
            self.driver.finish();
            self.write_records();
        } else {
            self.driver.leave_to_parent();
        }
    }
}

impl std::fmt::Debug for Multiplexer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Multiplexer").field("engine", self.driver.engine()).finish_non_exhaustive()
    }
}
