//! The terminal, which only the process group in its foreground may use.

use std::io::{IsTerminal, stdin};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal at standard input.
pub struct Terminal(());

impl Terminal {
    /// `None` if standard input is no terminal, or not the one that controls this process.
    pub fn of_stdin() -> Option<Terminal> {
        (stdin().is_terminal() && tcgetpgrp(stdin()).is_ok()).then_some(Terminal(()))
    }

    /// Whether this process's group is in the foreground.
    pub fn is_ours(&self) -> bool {
        tcgetpgrp(stdin()) == Ok(getpgrp())
    }

    /// Gives the foreground to a group, if this process has it.
    pub fn give(&self, group: Pid) {
        if self.is_ours() {
            // Without it, the command is stopped when it reads, which is handled.
            let _ = tcsetpgrp(stdin(), group);
        }
    }

    /// Takes it back, if the group has it.
    pub fn take_back(&self, group: Pid) {
        if tcgetpgrp(stdin()) == Ok(group) {
            let _ = tcsetpgrp(stdin(), getpgrp());
        }
    }
}

/// In the background, this process may write to the terminal and change its foreground without
/// being stopped. Returns the mask from before, which the command gets.
pub fn block_output_stop() -> nix::Result<SigSet> {
    let mut ttou = SigSet::empty();
    ttou.add(Signal::SIGTTOU);
    let before = SigSet::thread_get_mask()?;
    ttou.thread_block()?;
    Ok(before)
}
