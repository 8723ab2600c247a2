//! The event loop: a multiplexer as its guest, signals, and a timer.

use std::env;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::time::Duration;

use muxlock::inspection::Inspection;
use muxlock::mio::unix::SourceFd;
use muxlock::mio::{Events, Interest, Poll, Token};
use muxlock::proto::{Cancelled, Done, Lease, OpId};
use muxlock::unstable_tool::{ConfigExt, in_the_tool, printable};
use muxlock::{Config, Fingerprint, LockError, LockErrorKind, Moment, Multiplexer, quorum};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::super::holder::{Answers, KEYS_MAX, listed};
use super::super::inspect::{REVOKED, TAKEN_WITH, is_other_type, never_expires};
use super::super::options::Wait;
use super::super::read_locks;
use super::super::stopwatch::random;
use super::super::wire::{Failure, ask_each};
use super::command::code_of;
use super::console::say;
use super::family::reap_orphans;
use super::progress::{Progress, Step, none_granted};
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
/// The shortest delay between two attempts while masters cannot vote; as much is random.
const RETRY_MIN: Duration = Duration::from_millis(500);
/// The longest one.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How often to try again at most because no client got a quorum.
const SPLITS_MAX: u32 = 10;
/// How long releases are waited for that the result does not need.
const DRAIN_MAX: Duration = Duration::from_millis(100);
/// The most clients that a refusal names.
const CLIENTS_SHOWN_MAX: usize = 3;

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
        let plan = self.plan;
        let mut progress = Progress::start(plan, self.mux.now(), holder_of);
        let attempt = self.attempts(&mut progress);
        drop(progress);
        match attempt? {
            Ok(lease) => {
                if plan.args.slots.is_some() {
                    let slot = lease.resource().as_bytes();
                    self.name = String::from_utf8_lossy(slot).into_owned();
                }
                Ok(Ok(lease))
            }
            Err(Missed::Failed(error)) => self.not_acquired(&error).map(Err),
            Err(Missed::Ended(signal)) => Ok(Err(code_of(signal as i32))),
        }
    }

    /// First waits for masters, without a place in the queue, and then for the holder.
    fn attempts(&mut self, progress: &mut Progress<'_>) -> io::Result<Result<Lease, Missed>> {
        let args = self.plan.args;
        let Some(wait) = args.wait_masters else {
            return self.attempt(args.wait, progress);
        };
        let until = self.mux.now().after(wait.longest());
        let mut splits = 0;
        // Bounded by the time that the user sets, and by the shortest delay.
        loop {
            let error = match self.attempt(None, progress)? {
                Err(Missed::Failed(error)) => error,
                other => return Ok(other),
            };
            let again = match error.kind() {
                LockErrorKind::Contended if args.wait.is_some() => {
                    return self.attempt(args.wait, progress);
                }
                // Many clients that wait for the same masters try at the same moment.
                LockErrorKind::Contended => {
                    splits += 1;
                    progress.look_again();
                    splits <= SPLITS_MAX && self.is_split(&error)?
                }
                LockErrorKind::Unavailable | LockErrorKind::TimedOut | LockErrorKind::Expired => {
                    true
                }
                _ => false,
            };
            let now = self.mux.now();
            if !again || now >= until {
                return Ok(Err(Missed::Failed(error)));
            }
            let delay = error.ready_in().unwrap_or_default().clamp(RETRY_MIN, RETRY_MAX);
            let spread = RETRY_MIN.mul_f64(random() as f64 / u64::MAX as f64);
            let retry_at = now.after(delay.saturating_add(spread)).min(until);
            if let Some(signal) = self.pause(retry_at, &error, progress)? {
                return Ok(Err(Missed::Ended(signal)));
            }
        }
    }

    /// Tries to acquire the lock, until the wait has ended.
    fn attempt(
        &mut self,
        wait: Option<Wait>,
        progress: &mut Progress<'_>,
    ) -> io::Result<Result<Lease, Missed>> {
        let (args, resource) = (self.plan.args, &self.plan.resource);
        let (ttl, wait) = (args.ttl, wait.map(Wait::longest).unwrap_or_default());
        let op = match args.fenced {
            false => self.mux.try_lock_of(resource.clone(), ttl, wait),
            true => self.mux.try_lock_fenced_for(resource.as_bytes(), ttl, wait),
        };
        let op = op.map_err(io::Error::other)?;
        self.mux.flush();
        loop {
            if let Some(signal) = self.signals().first() {
                // A grant is released.
                let _: Cancelled = self.mux.cancel(op);
                self.drain()?;
                return Ok(Err(Missed::Ended(*signal)));
            }
            match self.news(Some(op), progress) {
                Some(Done::Acquired(Ok(lease))) => return Ok(Ok(lease)),
                Some(Done::Acquired(Err(error))) => return Ok(Err(Missed::Failed(error))),
                _ => {}
            }
            let act_at = progress.act(&mut self.mux, &self.name, Step::Acquiring(op));
            self.turn(act_at)?;
        }
    }

    /// Waits until then, after an attempt. Returns the signal that has ended it before.
    fn pause(
        &mut self,
        until: Moment,
        error: &LockError,
        progress: &mut Progress<'_>,
    ) -> io::Result<Option<Signal>> {
        while self.mux.now() < until {
            if let Some(signal) = self.signals().first() {
                self.drain()?;
                return Ok(Some(*signal));
            }
            self.news(None, progress);
            let act_at = progress.act(&mut self.mux, &self.name, Step::Pausing(error));
            self.turn(act_at.into_iter().chain([until]).min())?;
        }
        Ok(None)
    }

    /// The result of an operation, if it has one. Others are for the user.
    fn news(&mut self, op: Option<OpId>, progress: &mut Progress<'_>) -> Option<Done> {
        let mut last = None;
        // Bounded by the operations that were started.
        while let Some((id, done)) = self.mux.poll_done() {
            match done {
                done if Some(id) == op => last = Some(done),
                Done::Inspected(inspection) => progress.inspected(id, inspection),
                _ => {}
            }
        }
        last
    }

    /// Whether no holder has a quorum.
    fn is_split(&mut self, error: &LockError) -> io::Result<bool> {
        Ok(self.plan.args.slots.is_none() && self.holder(error)?.is_none())
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
        self.drain_for(DRAIN_MAX)
    }

    /// Sends pending commands, and repeats refused releases, for at most `limit`.
    pub fn drain_for(&mut self, limit: Duration) -> io::Result<()> {
        self.mux.flush();
        let until = self.mux.now().after(limit);
        while self.mux.unanswered() > 0 && self.mux.now() < until {
            self.turn(Some(until))?;
        }
        Ok(())
    }

    /// Asks for the holders that are in the way of this lock, and whether their locks expire.
    fn holder(&mut self, error: &LockError) -> io::Result<Option<Refusing>> {
        let held = error.held_resource().unwrap_or(&self.plan.resource).as_bytes();
        let op = self.mux.inspect(held).map_err(io::Error::other)?;
        let Done::Inspected(inspection) = self.finish(op)? else { return Ok(None) };
        Ok(Refusing::of(&self.plan.config, held, &inspection))
    }

    /// The permits, none of which is free.
    fn permits(&self, slots: u32) -> Refusing {
        let config = &self.plan.config;
        let slot = |i| key_of(config, format!("{}{{permit}}:{i}", self.name).as_bytes());
        Refusing {
            said: none_granted(slots, &printable(&self.name)),
            end: String::new(),
            is_endless: false,
            keys: (0..slots).take(KEYS_MAX).map(slot).collect(),
            named: Named::Holders,
        }
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
                let refusing = match args.slots {
                    Some(slots) => Some(self.permits(slots)),
                    None => self.holder(error)?,
                };
                let is_endless = refusing.as_ref().is_some_and(|it| it.is_endless);
                if is_no_news && !is_endless {
                    return Ok(0);
                }
                let why = match refusing {
                    Some(refusing) => format!("contended: {}", refusing.words(&self.plan.config)),
                    None => in_the_tool(error).to_string(),
                };
                let hint = match args.wait {
                    None if !is_endless => " (--wait 30s would wait)",
                    _ => "",
                };
                say(&format!("{why}{hint}"));
                Ok(args.conflict_exit_code)
            }
            LockErrorKind::Unavailable | LockErrorKind::TimedOut | LockErrorKind::Expired => {
                let mut why = in_the_tool(error).to_string();
                let is_hinted = why.contains("--wait-masters");
                if let (None, None, false, Some(wait)) =
                    (args.wait, args.wait_masters, is_hinted, error.ready_in())
                {
                    let seconds = wait.as_secs_f64().ceil() + 1.0;
                    why += &format!(" (--wait-masters {seconds}s would wait)");
                }
                say(&why);
                Ok(UNAVAILABLE)
            }
            _ => Err(io::Error::other(in_the_tool(error).to_string())),
        }
    }
}

/// The end of an attempt without a lock.
enum Missed {
    Failed(LockError),
    Ended(Signal),
}

/// The holder that is in the way, in words, and whether its lock never expires; `None` if no holder
/// has a quorum. It may ask the masters for more.
fn holder_of(config: &Config, held: &[u8], inspection: &Inspection) -> Option<(String, bool)> {
    let refusing = Refusing::of(config, held, inspection)?;
    Some((refusing.words(config), refusing.is_endless))
}

fn key_of(config: &Config, resource: &[u8]) -> Vec<u8> {
    [config.common().key_prefix, resource].concat()
}

/// The locks that are in the way.
struct Refusing {
    said: String,
    /// When they end.
    end: String,
    is_endless: bool,
    keys: Vec<Vec<u8>>,
    named: Named,
}

/// The clients that a refusal names.
enum Named {
    NoClient,
    Holder(Fingerprint),
    /// Those of all keys.
    Holders,
    Readers,
}

impl Refusing {
    /// `None` if no holder has a quorum.
    fn of(config: &Config, held: &[u8], inspection: &Inspection) -> Option<Refusing> {
        let others = others(config, held, inspection);
        let named = match inspection.holder() {
            Some(print) if print.as_bytes() == REVOKED => Named::NoClient,
            Some(print) => Named::Holder(print),
            None => Named::Readers,
        };
        let holder = holder(&printable(&String::from_utf8_lossy(held)), inspection, &others);
        holder.map(|(said, end, is_endless)| Refusing {
            said,
            end,
            is_endless,
            keys: vec![key_of(config, held)],
            named,
        })
    }

    /// With the clients that hold them, if the masters name these in time.
    fn words(&self, config: &Config) -> String {
        let common = config.common();
        let within = common.connect_timeout.saturating_add(common.node_timeout);
        let nodes: Vec<usize> = (0..config.nodes()).collect();
        let answers = || Answers::ask(config, &nodes, &self.keys, within);
        let words: Vec<String> = match self.named {
            Named::NoClient => Vec::new(),
            Named::Holder(print) => answers().holder_words(0, print).into_iter().collect(),
            Named::Holders => {
                let (answers, quorum) = (answers(), quorum(nodes.len()));
                let words = |key| answers.holder_words(key, answers.print(key, quorum)?);
                (0..self.keys.len()).filter_map(words).collect()
            }
            Named::Readers => {
                let answers = answers();
                let readers = answers.readers(0).into_iter();
                readers.filter_map(|tag| answers.words(tag)).collect()
            }
        };
        let clients = match words.is_empty() {
            true => String::new(),
            false => format!(": {}", listed(&words, CLIENTS_SHOWN_MAX)),
        };
        format!("{}{clients}{}", self.said, self.end)
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

/// The holder and the end of its lock, in words, and whether that never comes; `None` if no holder
/// has a quorum.
fn holder(
    resource: &str,
    inspection: &Inspection,
    others: &[Other],
) -> Option<(String, String, bool)> {
    let nodes = inspection.nodes();
    let Some(holder) = inspection.holder() else {
        let total = nodes.len();
        let count = |is_it: fn(&Other) -> bool| others.iter().filter(|it| is_it(it)).count();
        let shared = count(|it| matches!(it, Other::ReadLocks));
        let foreign = count(|it| matches!(it, Other::Foreign | Other::Endless));
        let endless = count(|it| matches!(it, Other::Endless));
        let any = nodes.iter().filter(|node| is_other_type(node)).count();
        if shared >= quorum(total) {
            let text = format!("{resource} has read locks on {shared} of {total} masters");
            return Some((text, String::new(), false));
        }
        if foreign >= quorum(total) {
            let is_endless = endless > total - quorum(total);
            let end = if is_endless { "; it never expires: no TTL" } else { "" };
            let text = format!(
                "{resource} is no lock: its key has another type on {foreign} of {total} \
                 masters"
            );
            return Some((text, end.to_owned(), is_endless));
        }
        let text = format!("{resource} has read locks, or is no lock, on {any} of {total} masters");
        return (any >= quorum(total)).then_some((text, String::new(), false));
    };
    let has_it = nodes.iter().filter(|it| it.holding.is_some_and(|it| it.holder() == holder));
    let (count, total) = (has_it.count(), nodes.len());
    let left = inspection.free_in().map(seconds);
    if holder.as_bytes() == REVOKED {
        let free = left.map_or_else(String::new, |left| format!("; free in {left}"));
        return Some((format!("{resource} was revoked"), free, false));
    }
    let text = format!("{holder} holds {resource} on {count} of {total} masters");
    // The command of another `muxlock run`: while it waits, that lock stays.
    if env::var("MUXLOCK_HOLDER").is_ok_and(|it| it == holder.to_string()) {
        let end = "; this command runs under it (MUXLOCK_HOLDER), so it stays held \
                   until this command ends";
        return Some((text, end.to_owned(), true));
    }
    if never_expires(inspection) {
        return Some((text, format!("; it never expires: no TTL ({TAKEN_WITH})"), true));
    }
    let free = left.map_or_else(String::new, |left| {
        format!("; free in {left} at the latest unless it is renewed")
    });
    Some((text, free, false))
}
