//! The command's first process.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// How often processes are looked at that are to end.
pub const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long processes that got SIGKILL may take to end.
pub const KILLED_MAX: Duration = Duration::from_secs(1);

/// The state of the command's first process.
pub enum Change {
    None,
    Stopped(Signal),
    /// It has ended, with this exit status, and is not reaped.
    Ended(u8),
}

/// Looks at the command, a child of this process, without reaping it: until then, no other group
/// can get its number.
pub fn look(pid: Pid) -> io::Result<Change> {
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED;
    Ok(match waitid(Id::Pid(pid), flags | WaitPidFlag::WNOWAIT) {
        Ok(WaitStatus::Exited(_, code)) => Change::Ended(u8::try_from(code).unwrap_or(u8::MAX)),
        Ok(WaitStatus::Signaled(_, signal, _)) => Change::Ended(code_of(signal as i32)),
        Ok(WaitStatus::Stopped(_, signal)) => {
            // So that it is reported once.
            waitid(Id::Pid(pid), WaitPidFlag::WNOHANG | WaitPidFlag::WSTOPPED)?;
            Change::Stopped(signal)
        }
        Ok(_) => Change::None,
        // A real-time signal has ended it, for which there is no name.
        Err(Errno::EINVAL) => Change::Ended(code_of(0)),
        Err(error) => return Err(error.into()),
    })
}

/// Reaps a child of this process if it has ended.
pub fn reap(pid: Pid) {
    // Another process might have reaped it.
    let _ = waitid(Id::Pid(pid), WaitPidFlag::WNOHANG | WaitPidFlag::WEXITED);
}

/// The exit status that shells give a process that a signal ended.
pub fn code_of(signal: i32) -> u8 {
    128 + u8::try_from(signal).unwrap_or(0)
}
