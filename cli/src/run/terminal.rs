//! The terminal, which only the process group in its foreground may use.

use std::env;
use std::io::{IsTerminal, Write, stderr, stdin};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The normal screen in place of the alternate one, without moving the cursor on the normal one;
/// the cursor is shown, and pasted text is not marked. The next line begins at the left.
const PLAIN: &str = "\x1b[?1047l\x1b[?25h\x1b[?2004l\r";

/// The terminal at standard input.
pub struct Terminal {
    /// As it was at the start.
    modes: Option<Termios>,
    /// Whether the command was seen to have changed that.
    was_changed: bool,
}

impl Terminal {
    /// `None` if standard input is no terminal, or not the one that controls this process.
    pub fn of_stdin() -> Option<Terminal> {
        let is_one = stdin().is_terminal() && tcgetpgrp(stdin()).is_ok();
        is_one.then(|| Terminal { modes: tcgetattr(stdin()).ok(), was_changed: false })
    }

    /// Whether the modes of the terminal are not as at the start.
    fn is_changed(&self) -> bool {
        self.modes.is_some() && tcgetattr(stdin()).ok() != self.modes
    }

    /// Looks whether a program uses the whole screen, or reads single keys.
    pub fn look(&mut self) {
        self.was_changed |= self.is_changed();
    }

    /// Makes the terminal as it was, if the command has changed it and this process is in the
    /// foreground. Returns whether the command had changed it.
    pub fn restore(&mut self) -> bool {
        self.look();
        if !self.was_changed || !self.is_ours() {
            return false;
        }
        if let Some(modes) = &self.modes {
            let _ = tcsetattr(stdin(), SetArg::TCSANOW, modes);
        }
        let is_dumb = env::var_os("TERM").is_none_or(|name| name == "dumb");
        if stderr().is_terminal() && !is_dumb {
            let _ = stderr().write_all(PLAIN.as_bytes());
        }
        true
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
