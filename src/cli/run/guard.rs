//! The process that ends the command before the lock is over, if muxlock does not: muxlock may be
//! killed, stopped, or kept from running.
//!
//! It reads words from its standard input, to which only muxlock writes. It acts when its timer is
//! due, or when muxlock has ended without having said that all is done.

use std::env::ArgsOs;
use std::io::{self, Stdin, Write, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::unistd::{Pid, pipe2, read};

use super::command::{GROUP_LOOK_AGAIN, Group};
use super::stub::SELF;
use super::timer::{Timer, since_boot};
use super::voice::{self, say};
use super::{FAILED, seconds};

pub const NAME: &str = "__guard";
/// A word: a tag, and a number.
const WORD_BYTES: usize = 9;
/// muxlock said that all is done.
const IDLE: u8 = 0;
/// The guard has ended the command.
const ACTED: u8 = 1;
/// How long muxlock waits for the guard's end.
const END_MS_MAX: u16 = 200;

/// When the lock is over, in nanoseconds since the machine was started.
const DEADLINE: u8 = b'd';
/// The command's process group.
const GROUP: u8 = b'g';
/// muxlock has sent SIGTERM; when SIGKILL is due, in nanoseconds since the machine was started.
const ENDING: u8 = b'e';
/// All is done.
const DONE: u8 = b'x';

/// muxlock's side.
pub struct Guard {
    child: Child,
    /// `None` once the guard has ended.
    words: Option<std::fs::File>,
}

impl Guard {
    /// Starts the guard.
    pub fn start(kill_after: Duration, node_timeout: Duration) -> io::Result<Guard> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        // A guard that is stopped must not hold up muxlock.
        fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let nanos = |time: Duration| time.as_nanos().to_string();
        let mut command = Command::new(SELF);
        command.arg0("muxlock").args([NAME, &nanos(kill_after), &nanos(node_timeout)]);
        command.stdin(Stdio::from(read)).stdout(Stdio::null()).process_group(0);
        // The guard blocks all signals, from its first moment on.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let child = command.spawn();
        before.thread_set_mask()?;
        Ok(Guard { child: child?, words: Some(OwnedFd::into(write)) })
    }

    /// The lock is over at this time since the start of the machine.
    pub fn renewed(&mut self, deadline: Duration) {
        self.at(DEADLINE, deadline);
    }

    /// The command has got SIGTERM, and gets SIGKILL at this time since the start of the machine.
    pub fn ending(&mut self, kill_at: Duration) {
        self.at(ENDING, kill_at);
    }

    /// Whether it can still be told something.
    pub fn is_there(&self) -> bool {
        self.words.is_some()
    }

    pub fn group(&mut self, group: Pid) {
        self.write(GROUP, u64::try_from(group.as_raw()).unwrap_or(0));
    }

    fn at(&mut self, tag: u8, at: Duration) {
        self.write(tag, u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A guard that cannot be told the truth must not act on what it knows: it would end a command
    /// whose lock was renewed. So it is as good as ended.
    fn write(&mut self, tag: u8, number: u64) {
        let Some(words) = &mut self.words else {
            return;
        };
        let mut word = [tag; WORD_BYTES];
        word[1..].copy_from_slice(&number.to_le_bytes());
        if words.write_all(&word).is_err() {
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.words = None;
        let _ = self.child.kill();
        let code = self.child.wait().ok().and_then(|status| status.code());
        // Otherwise it has seen the command's end.
        if ![ACTED, IDLE].map(i32::from).map(Some).contains(&code) {
            say("the guard process has ended: if muxlock is killed, the command goes on");
        }
    }

    /// Notices the guard's end. Returns whether it has ended the command.
    pub fn look(&mut self) -> bool {
        let Ok(Some(status)) = self.child.try_wait() else {
            return false;
        };
        if self.words.is_some() {
            self.lose();
        }
        status.code() == Some(i32::from(ACTED))
    }

    /// Ends the guard. Returns whether it has ended the command.
    pub fn end(mut self) -> bool {
        self.write(DONE, 0);
        // Each iteration waits for a millisecond.
        for _ in 0..END_MS_MAX {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.code() == Some(i32::from(ACTED));
            }
            super::super::stopwatch::pause(Duration::from_millis(1));
        }
        // It is stopped, so it does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
        false
    }
}

/// The guard's side.
struct Watch {
    kill_after: Duration,
    node_timeout: Duration,
    /// When the lock is over.
    deadline: Duration,
    group: Option<Group>,
    /// When SIGKILL is due, once SIGTERM was sent.
    kill_at: Option<Duration>,
    has_acted: bool,
}

/// What the guard has waited for.
enum Heard {
    Word(u8, Duration),
    /// muxlock has ended.
    Eof,
    /// The time is up.
    Nothing,
}

/// Guards until all is done, or the command has ended.
pub fn main(args: ArgsOs) -> ExitCode {
    // Only muxlock ends it: a service manager may signal all processes at once.
    let _ = SigSet::all().thread_block();
    let mut nanos = args.map(|arg| arg.to_str()?.parse().ok().map(Duration::from_nanos));
    let (Some(Some(kill_after)), Some(Some(node_timeout))) = (nanos.next(), nanos.next()) else {
        return ExitCode::from(FAILED);
    };
    let (deadline, group, kill_at) = (Duration::MAX, None, None);
    let mut watch = Watch { kill_after, node_timeout, deadline, group, kill_at, has_acted: false };
    let watched = watch.run();
    if let Err(error) = &watched {
        say(&format!("the guard process has failed: {error}"));
        // In doubt, the command must not outlive the lock.
        watch.group.into_iter().for_each(|group| group.signal(Signal::SIGKILL));
    }
    voice::finish();
    ExitCode::from(if watch.has_acted || watched.is_err() { ACTED } else { IDLE })
}

impl Watch {
    fn run(&mut self) -> io::Result<()> {
        let timer = Timer::new()?;
        let mut words = Some(stdin());
        // Each iteration hears a word, or waits until something is due.
        loop {
            let now = since_boot()?;
            let due = match self.kill_at {
                Some(kill_at) if now >= kill_at => {
                    return self.kill();
                }
                Some(_) if !self.is_alive() => return self.kill(),
                Some(kill_at) => kill_at.min(now + GROUP_LOOK_AGAIN),
                None => self.deadline.saturating_sub(self.kill_after + self.node_timeout),
            };
            timer.set(due.saturating_sub(now))?;
            // A word that has come counts before the time: this process may have been stopped.
            match hear(&timer, words.as_ref())? {
                Heard::Word(DEADLINE, at) => self.deadline = at,
                Heard::Word(GROUP, number) => {
                    self.group =
                        i32::try_from(number.as_nanos()).ok().map(Pid::from_raw).map(Group);
                }
                // Whatever it has begun itself is final.
                Heard::Word(ENDING, at) => self.kill_at = Some(self.kill_at.unwrap_or(at)),
                Heard::Word(..) => return Ok(()),
                Heard::Eof => {
                    words = None;
                    if self.kill_at.is_none() {
                        self.terminate(since_boot()?, "muxlock has ended before its command");
                    }
                }
                Heard::Nothing if self.kill_at.is_none() && since_boot()? >= due => {
                    self.terminate(since_boot()?, "muxlock has not renewed the lock");
                }
                Heard::Nothing => {}
            }
        }
    }

    fn is_alive(&self) -> bool {
        self.group.is_some_and(Group::is_alive)
    }

    fn terminate(&mut self, now: Duration, why: &str) {
        let kill_at = now + self.kill_after;
        let kill_at = kill_at.min(self.deadline.saturating_sub(self.node_timeout)).max(now);
        self.kill_at = Some(kill_at);
        if let Some(group) = self.group.filter(|_| self.is_alive()) {
            self.has_acted = true;
            group.terminate();
            let left = seconds(kill_at - now);
            say(&format!("{why}: the command gets SIGTERM now and SIGKILL in {left}"));
        }
    }

    /// Also if nothing seems to live: what forks without end is hard to see.
    fn kill(&mut self) -> io::Result<()> {
        self.has_acted |= self.is_alive();
        self.group.into_iter().for_each(|group| group.signal(Signal::SIGKILL));
        Ok(())
    }
}

/// Waits for a word, the end of muxlock, or the timer.
fn hear(timer: &Timer, words: Option<&Stdin>) -> io::Result<Heard> {
    let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds = vec![watched(timer.as_fd())];
    fds.extend(words.map(|words| watched(words.as_fd())));
    poll(&mut fds, PollTimeout::NONE)?;
    let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
    let Some(words) = words.filter(|_| fds.get(1).is_some_and(is_ready)) else {
        return Ok(Heard::Nothing);
    };
    let mut word = [0; WORD_BYTES];
    // Words are shorter than what a pipe takes at once, so none is cut.
    if read(words, &mut word)? < WORD_BYTES {
        return Ok(Heard::Eof);
    }
    let mut number = [0; 8];
    number.copy_from_slice(&word[1..]);
    Ok(Heard::Word(word[0], Duration::from_nanos(u64::from_le_bytes(number))))
}
