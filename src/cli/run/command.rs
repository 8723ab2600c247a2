//! The command: its process, and the group of all that it starts.

use std::fs;
use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// How often a group is looked at that is to end: nothing reports its end.
pub const GROUP_LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long processes that got SIGKILL may take to end.
pub const KILLED_MAX: Duration = Duration::from_secs(1);

/// What has become of the command's first process.
pub enum Change {
    None,
    Stopped(Signal),
    /// It has ended, with this exit status, and is not reaped.
    Ended(u8),
}

/// Looks at the command without reaping it: until then, no other group can get its number.
pub fn look(pid: Pid) -> io::Result<Change> {
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED;
    Ok(match waitid(Id::Pid(pid), flags | WaitPidFlag::WNOWAIT)? {
        WaitStatus::Exited(_, code) => Change::Ended(u8::try_from(code).unwrap_or(u8::MAX)),
        WaitStatus::Signaled(_, signal, _) => Change::Ended(code_of(signal as i32)),
        WaitStatus::Stopped(_, signal) => {
            // So that it is reported once.
            waitid(Id::Pid(pid), WaitPidFlag::WNOHANG | WaitPidFlag::WSTOPPED)?;
            Change::Stopped(signal)
        }
        _ => Change::None,
    })
}

/// The exit status that shells give a process that a signal ended.
pub fn code_of(signal: i32) -> u8 {
    128 + u8::try_from(signal).unwrap_or(0)
}

/// The process group of the command.
#[derive(Clone, Copy)]
pub struct Group(pub Pid);

impl Group {
    pub fn signal(self, signal: Signal) {
        // It may have ended meanwhile.
        let _ = killpg(self.0, signal);
    }

    /// Asks it to end, also if it is stopped.
    pub fn terminate(self) {
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGCONT);
    }

    /// Whether nothing of it runs. What forks without end is hard to see, so what seems to be over
    /// is killed before that is believed.
    pub fn is_over(self) -> bool {
        !self.is_alive() && {
            self.signal(Signal::SIGKILL);
            !self.is_alive()
        }
    }

    /// Whether it has a process that runs. The first one remains as a zombie, with which signals
    /// still reach the group.
    pub fn is_alive(self) -> bool {
        if killpg(self.0, None) == Err(Errno::ESRCH) {
            return false;
        }
        let Ok(processes) = fs::read_dir("/proc") else {
            return true;
        };
        let group = self.0.to_string();
        processes.flatten().any(|process| {
            let is_process = process.file_name().as_encoded_bytes()[0].is_ascii_digit();
            let stat = || fs::read(process.path().join("stat")).unwrap_or_default();
            is_process && is_alive_in(&group, &stat())
        })
    }
}

/// Whether a process of this group lives, by `/proc/PID/stat`: number, name in parentheses, state,
/// parent, group. The name may contain anything.
fn is_alive_in(group: &str, stat: &[u8]) -> bool {
    let after_name = stat.iter().rposition(|byte| *byte == b')').map_or(stat.len(), |at| at + 1);
    let rest = String::from_utf8_lossy(&stat[after_name..]);
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next();
    fields.nth(1) == Some(group) && !matches!(state, Some("Z" | "X"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_alive_in_its_own_group_unless_it_is_a_zombie() {
        assert!(is_alive_in("17", b"18 (sh) S 1 17 17 0 -1"));
        assert!(is_alive_in("17", b"18 (a) Z 1 2) R 1 17 17 0 -1"));
        assert!(!is_alive_in("17", b"18 (sh) Z 1 17 17 0 -1"));
        assert!(!is_alive_in("1", b"18 (sh) S 1 17 17 0 -1"));
        assert!(!is_alive_in("17", b"") && !is_alive_in("17", b"18 (sh) S 17"));
    }
}
