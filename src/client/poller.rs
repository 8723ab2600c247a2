//! Waiting for the sockets of the masters.

use std::time::Duration;

use mio::event::Event;
use mio::{Events, Poll, Registry};

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
    timeout: Option<Duration>,
    precision: Precision,
    /// Whether the events were fetched without waiting.
    has_polled_now: bool,
    /// Why the last wait failed.
    failure: Option<std::io::Error>,
}

impl Poller {
    pub(super) fn new() -> std::io::Result<Poller> {
        let poll = Poll::new()?;
        let timer = PollTimer::new(poll.registry());
        Ok(Poller {
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            timer,
            timeout: Some(Duration::ZERO),
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

    /// Sets the next wait: it takes at most `timeout`.
    pub(super) fn set_timeout(&mut self, timeout: Option<Duration>, precision: Precision) {
        (self.timeout, self.precision) = (timeout, precision);
    }

    #[inline]
    pub(super) fn wait(&mut self) {
        self.has_polled_now = false;
        if self.precision == Precision::Fine {
            self.timer.set(self.timeout);
        }
        self.poll(self.timeout);
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
    use mio::{Interest, Registry, Token};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use crate::quorum::NODES_MAX;

    /// Above the tokens of the nodes and of the waker; its event is ignored.
    const TOKEN: Token = Token(NODES_MAX + 1);
    /// A longer wait may end a millisecond after its limit: setting the timer is a system call.
    const WAIT_MAX: Duration = Duration::from_millis(10);

    /// Ends a wait before the poll's own timeout, which is rounded up to a millisecond. Without it,
    /// as when the process has no descriptor left, waits end up to a millisecond after their
    /// limits.
    pub(super) struct PollTimer(Option<OwnedFd>);

    impl PollTimer {
        pub(super) fn new(registry: &Registry) -> PollTimer {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let registered = |timer: &OwnedFd| {
                registry.register(&mut SourceFd(&timer.as_raw_fd()), TOKEN, Interest::READABLE)
            };
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags).ok();
            PollTimer(timer.filter(|timer| registered(timer).is_ok()))
        }

        pub(super) fn set(&self, timeout: Option<Duration>) {
            let (Some(timer), Some(timeout)) = (&self.0, timeout) else {
                return;
            };
            if timeout.is_zero() || timeout >= WAIT_MAX {
                return;
            }
            let it_value = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            // The timer is never read: each expiry is a new event.
            let once = Itimerspec { it_interval, it_value };
            let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
        }
    }
}

/// On other systems waits end on whole milliseconds.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
struct PollTimer;

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl PollTimer {
    fn new(_: &Registry) -> PollTimer {
        PollTimer
    }

    fn set(&self, _: Option<Duration>) {}
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
            poller.set_timeout(Some(timeout), Precision::Fine);
            poller.wait();
            // Only the timer may have an event.
            assert!(poller.events().count() <= 1);
            let waited = Clock.now_coarse().since(start);
            assert!(waited >= timeout.min(Duration::from_micros(200)) / 2, "{waited:?}");
        }
    }
}
