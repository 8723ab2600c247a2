//! The event loop: a multiplexer as its guest, signals, and a timer.

use std::io::{self, ErrorKind, IsTerminal, Write, stderr};
use std::os::fd::RawFd;
use std::time::Duration;

use muxlock::inspection::Inspection;
use muxlock::mio::unix::SourceFd;
use muxlock::mio::{Events, Interest, Poll, Token};
use muxlock::proto::{Cancelled, Done, Lease, OpId};
use muxlock::unstable_tool::{ConfigExt, in_the_tool, printable};
use muxlock::{Config, LockError, LockErrorKind, Moment, Multiplexer, quorum};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::super::inspect::{REVOKED, TAKEN_WITH, is_other_type, never_expires};
use super::super::read_locks;
use super::super::wire::{Failure, ask_each};
use super::command::code_of;
use super::console::say;
use super::family::reap_orphans;
use super::signals::Signals;
use super::timer::Timer;
use super::{Plan, UNAVAILABLE, seconds};

const SIGNALS: Token = Token(0);
const TIMER: Token = Token(1);
const GUARD: Token = Token(2);
const FIRST_NODE: Token = Token(3);
const EVENTS: usize = 64;
/// How often orphans are reaped at most.
const REAP_AGAIN: Duration = Duration::from_millis(100);
/// How often a wait for the lock is shown on a terminal.
const PROGRESS: Duration = Duration::from_secs(1);
/// How long releases are waited for that the result does not need.
const DRAIN_MAX: Duration = Duration::from_millis(100);
const CLEAR_LINE: &str = "\r\x1b[K";

pub struct Locks<'a> {
    pub plan: &'a Plan<'a>,
    // Dropped before the poll: its sockets are registered there.
    pub mux: Multiplexer,
    /// The lock's name in messages to the user.
    pub name: String,
    signals: Signals,
    timer: Timer,
    poll: Poll,
    events: Events,
    /// Children that are somebody's here, and are reaped there.
    cared_for: Vec<Pid>,
    /// When orphans were reaped last.
    reaped_at: Moment,
}

impl<'a> Locks<'a> {
    pub fn new(plan: &'a Plan<'a>) -> io::Result<Locks<'a>> {
        let poll = Poll::new()?;
        let registry = poll.registry();
        let signals = Signals::new()?;
        registry.register(&mut SourceFd(&signals.fd()), SIGNALS, Interest::READABLE)?;
        let timer = Timer::new()?;
        registry.register(&mut SourceFd(&timer.fd()), TIMER, Interest::READABLE)?;
        let mux = Multiplexer::new(plan.config.clone(), registry, FIRST_NODE)?;
        let events = Events::with_capacity(EVENTS);
        let name = plan.name.clone();
        let (cared_for, reaped_at) = (Vec::new(), mux.now());
        Ok(Locks { plan, mux, name, signals, timer, poll, events, cared_for, reaped_at })
    }

    /// Wakes up for this descriptor too.
    pub fn watch(&self, fd: RawFd) -> io::Result<()> {
        self.poll.registry().register(&mut SourceFd(&fd), GUARD, Interest::READABLE)
    }

    /// This child is reaped elsewhere.
    pub fn never_reap(&mut self, child: Pid) {
        self.cared_for.push(child);
    }

    /// As the first process of a container, this one becomes the parent of all orphans there.
    /// Returns when to do it at the latest.
    fn reap(&mut self) -> Option<Moment> {
        let now = self.mux.now();
        if !self.signals.has_lost_child() {
            return None;
        }
        let reap_at = self.reaped_at.after(REAP_AGAIN);
        if now < reap_at {
            return Some(reap_at);
        }
        self.reaped_at = now;
        self.signals.forget_lost_child();
        reap_orphans(&self.cared_for);
        None
    }

    /// Waits until something has happened, at most until then, and handles it.
    pub fn turn(&mut self, until: Option<Moment>) -> io::Result<()> {
        let own = [until, self.reap()].into_iter().flatten().min();
        let own = own.map_or(Duration::MAX, |until| until.since(self.mux.now()));
        let left = self.mux.next_timeout().map_or(own, |next| next.min(own));
        self.timer.set(left)?;
        let at_once = left.is_zero().then_some(Duration::ZERO);
        match self.poll.poll(&mut self.events, at_once) {
            Err(error) if error.kind() == ErrorKind::Interrupted => self.events.clear(),
            other => other?,
        }
        self.mux.handle_events(&self.events);
        Ok(())
    }

    /// The signals that came, for the command.
    pub fn signals(&mut self) -> Vec<Signal> {
        self.signals.take()
    }

    /// Acquires the lock, or returns the exit status.
    pub fn acquire(&mut self) -> io::Result<Result<Lease, u8>> {
        let args = self.plan.args;
        let (resource, ttl, wait) = (&self.plan.resource, args.ttl, args.wait.unwrap_or_default());
        let op = match args.fenced {
            false => self.mux.try_lock_of(resource.clone(), ttl, wait),
            true => self.mux.try_lock_fenced_for(resource.as_bytes(), ttl, wait),
        };
        let op = op.map_err(io::Error::other)?;
        self.mux.flush();
        let mut progress = Progress::start(self.plan, self.mux.now());
        let result = loop {
            if let Some(signal) = self.signals().first() {
                break Err(code_of(*signal as i32));
            }
            match self.done(op) {
                Some(Done::Acquired(Ok(lease))) => {
                    if args.slots.is_some() {
                        let slot = lease.resource().as_bytes();
                        self.name = String::from_utf8_lossy(slot).into_owned();
                    }
                    break Ok(lease);
                }
                Some(Done::Acquired(Err(error))) => {
                    drop(progress);
                    return self.not_acquired(&error).map(Err);
                }
                _ => {}
            }
            let show_at = progress.show(&self.name, self.mux.now());
            self.turn(show_at)?;
        };
        drop(progress);
        if result.is_err() {
            // A grant is released.
            let _: Cancelled = self.mux.cancel(op);
            self.drain()?;
        }
        Ok(result)
    }

    /// The last result of an operation that has one.
    pub fn done(&mut self, op: OpId) -> Option<Done> {
        let mut last = None;
        // Bounded by the operations that were started.
        while let Some((id, done)) = self.mux.poll_done() {
            if id == op {
                last = Some(done);
            }
        }
        last
    }

    /// Waits for the result of an operation that ends by itself.
    pub fn finish(&mut self, op: OpId) -> io::Result<Done> {
        self.mux.flush();
        loop {
            if let Some(done) = self.done(op) {
                return Ok(done);
            }
            self.turn(None)?;
        }
    }

    /// Sends pending commands, and waits a little for the masters.
    pub fn drain(&mut self) -> io::Result<()> {
        self.mux.flush();
        let until = self.mux.now().after(DRAIN_MAX);
        while self.mux.unanswered() > 0 && self.mux.now() < until {
            self.turn(Some(until))?;
        }
        Ok(())
    }

    /// Asks for the holders that are in the way of this lock, and whether their locks expire.
    fn holder(&mut self, error: &LockError) -> io::Result<Option<(String, bool)>> {
        let held = error.held_resource().unwrap_or(&self.plan.resource).as_bytes();
        let op = self.mux.inspect(held).map_err(io::Error::other)?;
        let Done::Inspected(inspection) = self.finish(op)? else { return Ok(None) };
        let others = others(&self.plan.config, held, &inspection);
        Ok(holder(&printable(&String::from_utf8_lossy(held)), &inspection, &others))
    }

    /// Says why there is no lock, and returns the exit status.
    fn not_acquired(&mut self, error: &LockError) -> io::Result<u8> {
        let args = self.plan.args;
        // With success asked for, a lock that ends is no news: cron would send a mail.
        let is_no_news = args.quiet && args.conflict_exit_code == 0;
        self.drain()?;
        match error.kind() {
            LockErrorKind::Contended if is_no_news && args.slots.is_some() => Ok(0),
            LockErrorKind::Contended => {
                let holder = match args.slots {
                    Some(slots) => {
                        let name = printable(&self.name);
                        let text = format!("none of the {slots} permits of {name} was granted");
                        Some((text, false))
                    }
                    None => self.holder(error)?,
                };
                let (why, is_endless) = match holder {
                    Some((holder, is_endless)) => (format!("contended: {holder}"), is_endless),
                    None => (in_the_tool(error).to_string(), false),
                };
                if is_no_news && !is_endless {
                    return Ok(0);
                }
                let hint = match args.wait {
                    None if !is_endless => " (--wait 30s would wait)",
                    _ => "",
                };
                say(&format!("{why}{hint}"));
                Ok(args.conflict_exit_code)
            }
            LockErrorKind::Unavailable | LockErrorKind::TimedOut | LockErrorKind::Expired => {
                say(&in_the_tool(error).to_string());
                Ok(UNAVAILABLE)
            }
            _ => Err(io::Error::other(in_the_tool(error).to_string())),
        }
    }
}

/// The type of a master's key that is no lock.
enum Other {
    ReadLocks,
    /// No lock, for some time.
    Foreign,
    /// No lock, without a TTL.
    Endless,
    /// The master has none, no longer has it, or did not name its type.
    Unknown,
}

/// The types of keys that are no locks.
fn others(config: &Config, resource: &[u8], inspection: &Inspection) -> Vec<Other> {
    let common = config.common();
    let key = [common.key_prefix, resource].concat();
    let within = common.connect_timeout.saturating_add(common.node_timeout);
    let nodes: Vec<usize> = (0..config.nodes()).collect();
    let ask = |node| {
        Ok::<_, Failure>(match read_locks::ask(config, node, &key, within)? {
            Some(_) => Other::ReadLocks,
            None => match read_locks::ask_other(config, node, &key, within)? {
                Some(read_locks::NO_TTL) => Other::Endless,
                Some(_) => Other::Foreign,
                None => Other::Unknown,
            },
        })
    };
    ask_each(&nodes, |node| match is_other_type(&inspection.nodes()[node]) {
        true => ask(node).unwrap_or(Other::Unknown),
        false => Other::Unknown,
    })
}

/// The holder, in words, and whether its lock never expires; `None` if no holder has a quorum.
fn holder(resource: &str, inspection: &Inspection, others: &[Other]) -> Option<(String, bool)> {
    let nodes = inspection.nodes();
    let Some(holder) = inspection.holder() else {
        let total = nodes.len();
        let count = |is_it: fn(&Other) -> bool| others.iter().filter(|it| is_it(it)).count();
        let shared = count(|it| matches!(it, Other::ReadLocks));
        let foreign = count(|it| matches!(it, Other::Foreign | Other::Endless));
        let endless = count(|it| matches!(it, Other::Endless));
        let any = nodes.iter().filter(|node| is_other_type(node)).count();
        if shared >= quorum(total) {
            return Some((
                format!("{resource} has read locks on {shared} of {total} masters"),
                false,
            ));
        }
        if foreign >= quorum(total) {
            let is_endless = endless > total - quorum(total);
            let end = if is_endless { "; it never expires: no TTL" } else { "" };
            let text = format!(
                "{resource} is no lock: its key has another type on {foreign} of {total} \
                 masters{end}"
            );
            return Some((text, is_endless));
        }
        let text = format!("{resource} has read locks, or is no lock, on {any} of {total} masters");
        return (any >= quorum(total)).then_some((text, false));
    };
    let has_it = nodes.iter().filter(|it| it.holding.is_some_and(|it| it.holder() == holder));
    let (count, total) = (has_it.count(), nodes.len());
    let left = inspection.free_in().map(seconds);
    if holder.as_bytes() == REVOKED {
        let free = left.map_or_else(String::new, |left| format!("; free in {left}"));
        return Some((format!("{resource} was revoked{free}"), false));
    }
    let text = format!("{holder} holds {resource} on {count} of {total} masters");
    if never_expires(inspection) {
        let text = format!("{text}; it never expires: no TTL ({TAKEN_WITH})");
        return Some((text, true));
    }
    let free = left.map_or_else(String::new, |left| {
        format!("; free in {left} at the latest unless it is renewed")
    });
    Some((format!("{text}{free}"), false))
}

/// One line on a terminal that shows how long the tool has waited. It disappears when dropped.
struct Progress {
    start: Moment,
    /// `None` where it is not shown.
    show_at: Option<Moment>,
    is_shown: bool,
}

impl Progress {
    fn start(plan: &Plan<'_>, now: Moment) -> Progress {
        let is_wanted = !plan.args.quiet && stderr().is_terminal();
        let show_at = is_wanted.then(|| now.after(PROGRESS));
        Progress { start: now, show_at, is_shown: false }
    }

    /// Shows it if that is due. Returns when it is due next.
    fn show(&mut self, resource: &str, now: Moment) -> Option<Moment> {
        if self.show_at? <= now {
            let waited = now.since(self.start).as_secs();
            let resource = printable(resource);
            let _ = write!(stderr(), "{CLEAR_LINE}waiting for {resource}: {waited} s");
            (self.show_at, self.is_shown) = (Some(now.after(PROGRESS)), true);
        }
        self.show_at
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(stderr(), "{CLEAR_LINE}");
        }
    }
}
