//! Waiting for the sockets of the masters.

use std::time::Duration;

use mio::event::Event;
use mio::{Events, Poll, Registry};

use crate::moment::Moment;

/// More than one event for each of the most nodes; further events come in the next turn.
const EVENTS_PER_TURN: usize = 128;

/// How exact the end of a wait must be. `Fine` may cost a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Precision {
    Millisecond,
    Fine,
}

/// A poll, and the settings of its next wait.
pub(super) struct Poller {
    poll: Poll,
    events: Events,
    timer: PollTimer,
    /// When the next wait begins, about, and when it ends at the latest.
    now: Moment,
    due: Option<Moment>,
    precision: Precision,
    /// Whether the events were fetched without waiting.
    has_polled_now: bool,
    /// Why the last wait failed.
    failure: Option<std::io::Error>,
}

impl Poller {
    pub(super) fn new() -> std::io::Result<Poller> {
        Ok(Poller {
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS_PER_TURN),
            timer: PollTimer::new(),
            now: Moment::from_nanos(0),
            due: Some(Moment::from_nanos(0)),
            precision: Precision::Millisecond,
            has_polled_now: false,
            failure: None,
        })
    }

    pub(super) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Whether the events were fetched without waiting.
    pub(super) fn has_polled_now(&self) -> bool {
        self.has_polled_now
    }

    /// The events of the last wait.
    pub(super) fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    /// Why waiting failed, if it did since the last call of this.
    #[inline]
    pub(super) fn take_failure(&mut self) -> Option<std::io::Error> {
        if self.failure.is_none() { None } else { self.failure.take() }
    }

    /// Sets the next wait, which begins now: it ends at `due`.
    pub(super) fn set_timeout(&mut self, now: Moment, due: Option<Moment>, precision: Precision) {
        (self.now, self.due, self.precision) = (now, due, precision);
    }

    #[inline]
    pub(super) fn wait(&mut self) {
        self.has_polled_now = false;
        if let Some(due) = self.due {
            self.timer.set(&self.poll, self.now, due, self.precision);
        }
        self.poll(self.due.map(|due| due.since(self.now)));
    }

    /// Fetches events without waiting.
    pub(super) fn poll_now(&mut self) {
        self.has_polled_now = true;
        self.poll(Some(Duration::ZERO));
    }

    #[inline]
    fn poll(&mut self, timeout: Option<Duration>) {
        if let Err(error) = self.poll.poll(&mut self.events, timeout) {
            self.poll_failed(error);
        }
    }

    #[cold]
    fn poll_failed(&mut self, error: std::io::Error) {
        self.events.clear();
        if error.kind() != std::io::ErrorKind::Interrupted {
            self.failure = Some(error);
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
use timer::PollTimer;

/// Linux has timers with file descriptors, so a wait can end between two whole milliseconds.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod timer {
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::Duration;

    use mio::unix::SourceFd;
    use mio::{Interest, Poll, Token};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use super::Precision;
    use crate::moment::Moment;
    use crate::quorum::NODES_MAX;

    /// Above the tokens of the nodes and of the waker; its event is ignored.
    const TOKEN: Token = Token(NODES_MAX + 1);
    /// A longer wait may end a millisecond after its limit: setting the timer is a system call.
    const WAIT_MAX: Duration = Duration::from_millis(10);

    /// Ends a wait before the poll's own timeout, which is rounded up to a millisecond. Without it,
    /// as when the process has no descriptor left, waits end up to a millisecond after their
    /// limits.
    pub(super) struct PollTimer {
        /// Made for the first wait that needs it: many clients never do.
        pub(super) timer: Option<Option<OwnedFd>>,
        /// When it was last set to go off.
        pub(super) goes_off: Moment,
    }

    impl PollTimer {
        pub(super) fn new() -> PollTimer {
            PollTimer { timer: None, goes_off: Moment::from_nanos(0) }
        }

        /// Ends the wait that begins now at `due`, or before: a timer that goes off earlier is left
        /// alone, because most waits end before it does. Before a long wait it is cleared, because
        /// it would wake the thread for nothing.
        pub(super) fn set(&mut self, poll: &Poll, now: Moment, due: Moment, precision: Precision) {
            let timeout = due.since(now);
            let is_set = now < self.goes_off && self.goes_off <= due;
            let is_short = precision == Precision::Fine && timeout < WAIT_MAX;
            if is_set == is_short || timeout.is_zero() {
                return;
            }
            // With zero it is cleared.
            let nanos = if is_short { timeout.subsec_nanos() } else { 0 };
            self.goes_off = now.after_nanos(nanos.into());
            let it_value = Timespec { tv_sec: 0, tv_nsec: nanos.into() };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            // The timer is never read: each expiry is a new event.
            let once = Itimerspec { it_interval, it_value };
            if let Some(timer) = self.timer.get_or_insert_with(|| registered(poll)) {
                let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
            }
        }
    }

    fn registered(poll: &Poll) -> Option<OwnedFd> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok()?;
        let fd = timer.as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), TOKEN, Interest::READABLE).ok()?;
        Some(timer)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
struct PollTimer;

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl PollTimer {
    fn new() -> PollTimer {
        PollTimer
    }

    fn set(&mut self, _: &Poll, _: Moment, _: Moment, _: Precision) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock::Clock;

    #[test]
    fn a_wait_ends_by_itself() {
        for timeout in [0, 1, 200, 2_000, 11_000].map(Duration::from_micros) {
            let mut poller = Poller::new().unwrap();
            let start = Clock.now_coarse();
            poller.set_timeout(start, Some(start.after(timeout)), Precision::Fine);
            poller.wait();
            // Only the timer may have an event.
            assert!(poller.events().count() <= 1);
            let waited = Clock.now_coarse().since(start);
            assert!(waited >= timeout.min(Duration::from_micros(200)) / 2, "{waited:?}");
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn timer_that_goes_off_earlier_is_left_alone_but_before_long_waits() {
        let poll = Poll::new().unwrap();
        let mut timer = PollTimer::new();
        let now = Moment::from_nanos(1_000);
        let after = |millis| now.after(Duration::from_millis(millis));
        // When the wait begins and ends, and when the timer goes off then, or was cleared.
        let table = [
            (now, 5, Precision::Fine, 5),
            (now, 9, Precision::Fine, 5),
            (now, 2, Precision::Fine, 2),
            (now, 10, Precision::Fine, 0),
            (after(2), 9, Precision::Fine, 9),
            (after(3), 9, Precision::Millisecond, 3),
        ];
        for (now, due, precision, goes_off) in table {
            timer.set(&poll, now, after(due), precision);
            assert_eq!(timer.goes_off, after(goes_off), "{due}");
            let made = timer.timer.as_ref().unwrap().as_ref().unwrap();
            let left = rustix::time::timerfd_gettime(made).unwrap().it_value;
            let most = after(goes_off).since(now);
            assert!(left.tv_sec == 0 && left.tv_nsec as u128 <= most.as_nanos(), "{left:?}");
        }
    }
}
