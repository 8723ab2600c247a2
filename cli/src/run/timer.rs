//! A timer that counts the time in suspend too, as the locks' clock does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;

/// The longest wait: its owner looks at everything then.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The time since the machine was started.
pub fn since_boot() -> io::Result<Duration> {
    Ok(clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)?.into())
}

/// Its descriptor is readable when it is due.
pub struct Timer(TimerFd);

impl Timer {
    pub fn new() -> io::Result<Timer> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Timer(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?))
    }

    /// It is due once, after this time or [`WAIT_MAX`], and no longer at the time set before.
    pub fn set(&self, after: Duration) -> io::Result<()> {
        // Zero would mean never.
        let after = after.clamp(Duration::from_nanos(1), WAIT_MAX);
        let after = TimeSpec::from_duration(after);
        self.0.set(Expiration::OneShot(after), TimerSetTimeFlags::empty())?;
        Ok(())
    }

    pub fn fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
