//! The process that ends the command before the lock is over, if muxlock does not: muxlock may be
//! killed, stopped, or kept from running.
//!
//! It starts the command, so it is an ancestor of everything that the command starts, and adopts
//! orphans. It reads words from a pipe that only muxlock writes to, and reports the state of the
//! command. It acts when its timer is due, or when muxlock has ended without having said that all
//! is done.

use std::env::ArgsOs;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, close, dup2_stdin, dup2_stdout, getpid, pipe2};

use muxlock::unstable_tool::explained;

use super::command::{Change, KILLED_MAX, LOOK_AGAIN, look};
use super::console::{self, say};
use super::family::{self, Family, adopt_orphans, reap_orphans};
use super::stub::{self, Environment, Mask, SELF, unstarted};
use super::timer::{Timer, since_boot};
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
/// How often killed processes are checked.
const KILLED_LOOK_AGAIN: Duration = Duration::from_millis(2);
/// How often orphans that have ended are reaped at most.
const REAP_AGAIN: Duration = Duration::from_millis(100);

/// To the guard: when the lock is over, in nanoseconds since the machine was started.
const DEADLINE: u8 = b'd';
/// The command may run, until this time since the start of the machine.
const OPEN: u8 = b'o';
/// muxlock has sent SIGTERM; when SIGKILL is due, in nanoseconds since the machine was started.
const ENDING: u8 = b'e';
/// All is done.
const DONE: u8 = b'x';

/// From the guard: the command's process.
const STARTED: u8 = b'p';
/// The signal that stopped the command.
const STOPPED: u8 = b's';
/// The command's exit status.
const ENDED: u8 = b'c';
/// Since then: whether descendants of it live.
const REST: u8 = b'r';

/// A report of the guard about the command.
pub enum Report {
    Stopped(Signal),
    Ended(u8),
    /// Whether descendants of the command live, which has ended itself.
    Rest(Rest),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    Alive,
    Gone,
}

/// The state of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Guards,
    /// It has ended the command.
    Acted,
    /// It has ended.
    Ended,
}

/// muxlock's side.
pub struct GuardProcess {
    child: Child,
    /// `None` once the guard has ended.
    words: Option<File>,
    reports: File,
    fate: Fate,
    /// The command's process is there, so the guard has something to guard.
    has_started: bool,
}

/// How the guard is to end the command.
pub struct Manner {
    pub kill_after: Duration,
    pub node_timeout: Duration,
    /// When the lock is over, since the start of the machine.
    pub deadline: Duration,
}

/// The child that is started next gets this end of a pipe, under this number.
fn pass_on(end: &OwnedFd) -> io::Result<String> {
    fcntl(end, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(end.as_raw_fd().to_string())
}

impl GuardProcess {
    /// Starts the guard, and the command in a process group of its own, which waits until
    /// [`open`](Self::open). Returns the command's process too.
    pub fn start(
        manner: &Manner,
        program: &[OsString],
        mask: &Mask,
        environment: &Environment<'_>,
    ) -> io::Result<(GuardProcess, Pid)> {
        let (read, words) = pipe2(OFlag::O_CLOEXEC)?;
        let (reports, write) = pipe2(OFlag::O_CLOEXEC)?;
        // A guard that is stopped must not hold up muxlock.
        for own in [&words, &reports] {
            fcntl(own, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let nanos = |time: Duration| time.as_nanos().to_string();
        let mut command = Command::new(SELF);
        command.arg0("muxlock").arg(NAME);
        command.args([manner.kill_after, manner.node_timeout].map(nanos));
        command.args([pass_on(&read)?, pass_on(&write)?, mask.to_string()]).args(program);
        command.process_group(0);
        stub::set(&mut command, environment);
        // The guard blocks all signals, from its first moment on.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let child = command.spawn();
        before.thread_set_mask()?;
        drop((read, write));
        let (words, reports) = (Some(File::from(words)), File::from(reports));
        let mut guard = GuardProcess {
            child: child.map_err(|error| unstarted(&error))?,
            words,
            reports,
            fate: Fate::Guards,
            has_started: false,
        };
        guard.renewed(manner.deadline);
        match guard.command(manner.deadline) {
            Ok(command) => {
                guard.has_started = true;
                Ok((guard, command))
            }
            Err(error) => {
                // It says why, and then ends.
                guard.wait();
                guard.lose();
                Err(error)
            }
        }
    }

    /// Waits for the command's process, until the lock is over.
    fn command(&mut self, deadline: Duration) -> io::Result<Pid> {
        // A signal may interrupt it.
        loop {
            let left = deadline.saturating_sub(since_boot()?);
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.reports.as_fd(), PollFlags::POLLIN)], left) {
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => break,
            }
        }
        match self.read() {
            Some((STARTED, number)) => {
                let number = i32::try_from(number).map_err(io::Error::other)?;
                Ok(Pid::from_raw(number))
            }
            _ => Err(io::Error::other("the guard process has ended")),
        }
    }

    /// The guard's process, which is the parent of the command.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    /// Readable when there is a report.
    pub fn fd(&self) -> RawFd {
        self.reports.as_raw_fd()
    }

    /// The lock is over at this time since the start of the machine.
    pub fn renewed(&mut self, deadline: Duration) {
        self.at(DEADLINE, deadline);
    }

    /// The command runs, unless this time since the start of the machine has come.
    pub fn open(&mut self, until: Duration) {
        self.at(OPEN, until);
    }

    /// The command has got SIGTERM, and gets SIGKILL at this time since the start of the machine.
    pub fn ending(&mut self, kill_at: Duration) {
        self.at(ENDING, kill_at);
    }

    fn at(&mut self, tag: u8, at: Duration) {
        self.write(tag, u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A guard that cannot be notified of a renewal must not act: it would end a command whose lock
    /// was renewed. So it is ended.
    fn write(&mut self, tag: u8, number: u64) {
        let Some(words) = &mut self.words else {
            return;
        };
        match words.write_all(&word(tag, number)) {
            Ok(()) => {}
            // It is about to end, and its exit status tells why.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.wait();
                self.lose();
            }
            Err(_) => self.lose(),
        }
    }

    /// Waits a little for the guard's end.
    fn wait(&mut self) {
        // Each iteration waits for a millisecond.
        for _ in 0..END_MS_MAX {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            super::super::stopwatch::pause(Duration::from_millis(1));
        }
    }

    fn read(&mut self) -> Option<(u8, u64)> {
        let mut word = [0; WORD_BYTES];
        (self.reports.read(&mut word).ok()? == WORD_BYTES).then(|| parse_word(word))
    }

    /// The next report. Reports from before the guard's end still arrive.
    pub fn report(&mut self) -> Option<Report> {
        let (tag, number) = self.read()?;
        match tag {
            STOPPED => {
                let signal = Signal::try_from(i32::try_from(number).ok()?).ok()?;
                Some(Report::Stopped(signal))
            }
            ENDED => Some(Report::Ended(u8::try_from(number).unwrap_or(u8::MAX))),
            REST if number == 0 => Some(Report::Rest(Rest::Gone)),
            _ => Some(Report::Rest(Rest::Alive)),
        }
    }

    /// Ends a guard that is of no use any more. The command becomes this process's child.
    pub fn lose(&mut self) {
        let code = self.kill();
        // Otherwise it has seen the command's end.
        if self.has_started && ![ACTED, IDLE].map(i32::from).map(Some).contains(&code) {
            say("the guard process has ended: if muxlock is killed, the command goes on");
        }
    }

    /// Returns its exit status, if it had ended by itself.
    fn kill(&mut self) -> Option<i32> {
        self.words = None;
        let _ = self.child.kill();
        let code = self.child.wait().ok().and_then(|status| status.code());
        self.fate = if code == Some(ACTED.into()) { Fate::Acted } else { Fate::Ended };
        code
    }

    /// Notices the guard's end.
    pub fn fate(&mut self) -> Fate {
        if self.words.is_some() && matches!(self.child.try_wait(), Ok(Some(_))) {
            self.lose();
        }
        self.fate
    }

    /// Ends the guard. The command and its remaining descendants become this process's children.
    pub fn end(mut self) -> Fate {
        self.write(DONE, 0);
        if self.words.is_some() {
            self.wait();
            // If it is stopped, it does nothing.
            self.kill();
        }
        self.fate
    }
}

fn word(tag: u8, number: u64) -> [u8; WORD_BYTES] {
    let mut word = [tag; WORD_BYTES];
    word[1..].copy_from_slice(&number.to_le_bytes());
    word
}

fn parse_word(word: [u8; WORD_BYTES]) -> (u8, u64) {
    let mut number = [0; 8];
    number.copy_from_slice(&word[1..]);
    (word[0], u64::from_le_bytes(number))
}

/// The guard's side.
struct Watch {
    kill_after: Duration,
    node_timeout: Duration,
    /// When the lock is over.
    deadline: Duration,
    reports: File,
    family: Family,
    /// Lets the command run.
    gate: Option<OwnedFd>,
    /// When SIGKILL is due, once SIGTERM was sent.
    kill_at: Option<Duration>,
    has_acted: bool,
    /// muxlock has ended and sends nothing more.
    is_alone: bool,
    /// The command's exit status.
    ended: Option<u8>,
    /// The report that is still to be sent, if the pipe was full.
    unsent: Option<[u8; WORD_BYTES]>,
    rest: Option<Rest>,
    /// When orphans were reaped last, and whether there may be others.
    reaped_at: Duration,
    may_reap: bool,
}

/// The event that ended the guard's wait.
enum Heard {
    Word(u8, Duration),
    /// muxlock has ended.
    Eof,
    /// The time is up, or a child has changed.
    Nothing,
}

/// The arguments that muxlock passes to the guard.
struct Arguments {
    kill_after: Duration,
    node_timeout: Duration,
    words: File,
    reports: File,
    mask: Mask,
    program: Vec<OsString>,
}

impl Arguments {
    fn new(mut args: ArgsOs) -> Option<io::Result<Arguments>> {
        let mut number = || args.next()?.to_str()?.parse::<u64>().ok();
        let [kill_after, node_timeout] = [number()?, number()?].map(Duration::from_nanos);
        let [words, reports] = [number()?, number()?].map(RawFd::try_from);
        let (words, reports) = (words.ok()?, reports.ok()?);
        let mask = Mask::parse(args.next()?.to_str()?);
        let open = || {
            let (words, reports) = (take_over(words, to_read())?, take_over(reports, to_write())?);
            let program = args.collect();
            Ok(Arguments { kill_after, node_timeout, words, reports, mask, program })
        };
        Some(open())
    }
}

fn to_read() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    options
}

/// muxlock may be stopped, and the pipe full.
fn to_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    options
}

/// Opens a pipe that was passed on as a number, which the command must not get.
fn take_over(fd: RawFd, options: OpenOptions) -> io::Result<File> {
    let copy = options.open(format!("/proc/self/fd/{fd}"))?;
    close(fd)?;
    Ok(copy)
}

/// Guards until all is done, or the command has ended.
pub fn main(args: ArgsOs) -> ExitCode {
    // Only muxlock ends it: a service manager may signal all processes at once.
    let _ = SigSet::all().thread_block();
    let Some(arguments) = Arguments::new(args) else {
        return ExitCode::from(FAILED);
    };
    let code = match arguments.and_then(start) {
        Ok((words, mut watch)) => {
            let watched = watch.run(&words);
            if let Err(error) = &watched {
                say(&format!("the guard process has failed: {}", explained(error)));
                // In doubt, the command must not outlive the lock.
                watch.family.kill();
            }
            if watch.has_acted || watched.is_err() { ACTED } else { IDLE }
        }
        Err(error) => {
            say(&format!("the guard process cannot start the command: {}", explained(&error)));
            FAILED
        }
    };
    console::finish();
    ExitCode::from(code)
}

fn start(arguments: Arguments) -> io::Result<(File, Watch)> {
    let Arguments { kill_after, node_timeout, words, reports, mask, program } = arguments;
    adopt_orphans()?;
    let (child, gate) = stub::start(&program, &mask, &[])?;
    // These are the command's.
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    let command = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    let mut watch = Watch {
        kill_after,
        node_timeout,
        deadline: Duration::MAX,
        reports,
        family: Family::new(command, getpid(), Vec::new()),
        gate: Some(gate),
        kill_at: None,
        has_acted: false,
        is_alone: false,
        ended: None,
        unsent: None,
        rest: None,
        reaped_at: Duration::ZERO,
        may_reap: false,
    };
    watch.report(STARTED, u64::from(child.id()));
    Ok((words, watch))
}

impl Watch {
    fn run(&mut self, words: &File) -> io::Result<()> {
        let timer = Timer::new()?;
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        let children = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let mut words = Some(words);
        // Each iteration hears a word, or waits until something is due.
        loop {
            let now = since_boot()?;
            let due = match self.kill_at {
                Some(kill_at) if now >= kill_at => {
                    return self.kill();
                }
                Some(_) if !self.family.is_alive() => return self.kill(),
                Some(kill_at) => kill_at.min(now + LOOK_AGAIN),
                None => self.deadline.saturating_sub(self.kill_after + self.node_timeout),
            };
            let look_at = self.look(now)?;
            timer.set(due.min(look_at).saturating_sub(now))?;
            // A word that has come counts before the time: this process may have been stopped.
            match self.hear(&timer, &children, words)? {
                Heard::Word(DEADLINE, at) => self.deadline = at,
                Heard::Word(OPEN, until) => {
                    // If the stub has ended, that is seen soon.
                    let _ = self.gate.take().map(|gate| stub::open(gate, until));
                }
                // An ending that it has begun itself is final.
                Heard::Word(ENDING, at) => self.kill_at = Some(self.kill_at.unwrap_or(at)),
                Heard::Word(..) => return Ok(()),
                Heard::Eof => {
                    (words, self.gate, self.is_alone) = (None, None, true);
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

    /// Looks at the command and its orphans, and reports. Returns when to look again at the latest.
    fn look(&mut self, now: Duration) -> io::Result<Duration> {
        if let Some(word) = self.unsent.take() {
            self.send(word);
        }
        // As many times as the command has changed.
        while self.ended.is_none() {
            match look(self.family.command)? {
                Change::None => break,
                Change::Stopped(signal) => {
                    self.report(STOPPED, u64::try_from(signal as i32).unwrap_or(0));
                }
                Change::Ended(code) => {
                    self.ended = Some(code);
                    self.report(ENDED, code.into());
                }
            }
        }
        let mut again = Duration::MAX;
        if self.ended.is_some() && self.unsent.is_none() {
            let rest = if self.family.is_alive() { Rest::Alive } else { Rest::Gone };
            if self.rest.replace(rest) != Some(rest) {
                self.report(REST, (rest == Rest::Alive).into());
            }
        }
        if self.unsent.is_some() {
            again = now + LOOK_AGAIN;
        }
        if self.may_reap {
            let reap_at = self.reaped_at + REAP_AGAIN;
            if now >= reap_at {
                (self.reaped_at, self.may_reap) = (now, false);
                reap_orphans(&[self.family.command]);
            } else {
                again = again.min(reap_at);
            }
        }
        Ok(again)
    }

    /// Waits for a word, the end of muxlock, the timer, or a child.
    fn hear(
        &mut self,
        timer: &Timer,
        children: &SignalFd,
        words: Option<&File>,
    ) -> io::Result<Heard> {
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![watched(timer.as_fd()), watched(children.as_fd())];
        fds.extend(words.map(|words| watched(words.as_fd())));
        poll(&mut fds, PollTimeout::NONE)?;
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        if fds.get(1).is_some_and(is_ready) {
            // Several ends are one signal.
            children.read_signal()?;
            self.may_reap = true;
        }
        let Some(mut words) = words.filter(|_| fds.get(2).is_some_and(is_ready)) else {
            return Ok(Heard::Nothing);
        };
        let mut word = [0; WORD_BYTES];
        // A pipe takes a whole word at once, so none is cut.
        if words.read(&mut word)? < WORD_BYTES {
            return Ok(Heard::Eof);
        }
        let (tag, number) = parse_word(word);
        Ok(Heard::Word(tag, Duration::from_nanos(number)))
    }

    fn report(&mut self, tag: u8, number: u64) {
        self.send(word(tag, number));
    }

    /// muxlock may be stopped or have ended. Only the end of the command must not get lost.
    fn send(&mut self, word: [u8; WORD_BYTES]) {
        let is_full = |error: io::Error| error.kind() == ErrorKind::WouldBlock;
        if self.reports.write_all(&word).is_err_and(is_full) {
            self.unsent = Some(word);
        }
    }

    fn terminate(&mut self, now: Duration, why: &str) {
        let kill_at = now + self.kill_after;
        let kill_at = kill_at.min(self.deadline.saturating_sub(self.node_timeout)).max(now);
        self.kill_at = Some(kill_at);
        if self.family.is_alive() {
            self.has_acted = true;
            self.family.terminate();
            let left = seconds(kill_at - now);
            say(&format!("{why}: the command gets SIGTERM now and SIGKILL in {left}"));
        }
    }

    /// Until nothing lives, or cannot be killed.
    fn kill(&mut self) -> io::Result<()> {
        let until = since_boot()? + KILLED_MAX;
        while self.family.is_alive() {
            self.has_acted = true;
            self.family.kill();
            reap_orphans(&[self.family.command]);
            if since_boot()? >= until {
                if let Some(words) = beyond(&self.family).filter(|_| self.is_alone) {
                    say(&words);
                }
                break;
            }
            super::super::stopwatch::pause(KILLED_LOOK_AGAIN);
        }
        // muxlock may go on.
        self.look(since_boot()?)?;
        Ok(())
    }
}

/// A text about the processes that cannot be ended, if any are left.
pub fn beyond(family: &Family) -> Option<String> {
    let refused = family.beyond_reach();
    let (left, why) = match refused.is_empty() {
        true => (family.living(), ""),
        false => (refused, ": no permission"),
    };
    // They may have ended while this process looked for them.
    family.is_alive().then(|| format!("cannot end {}{why}", family::list(&left)))
}
