//! Runs the command while the lock is held, and ends it when the lock is lost.

use std::io;
use std::time::Duration;

use muxlock::proto::{Cancelled, Done, Lease, OpId};
use muxlock::unstable_tool::{explained, in_the_tool, printable, reason};
use muxlock::{KeepAlive, Loss, LossCause, Moment};
use nix::sys::signal::Signal::{SIGCONT, SIGHUP, SIGTERM};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};

use super::command::{Change, KILLED_MAX, LOOK_AGAIN, code_of, look, reap};
use super::console::say;
use super::family::{self, Family, adopt_orphans, reap_orphans};
use super::guard::{Fate, GuardProcess, Manner, Report, Rest, beyond};
use super::locks::Locks;
use super::stub::Mask;
use super::terminal::{Terminal, block_output_stop};
use super::timer::since_boot;
use super::{Descendants, FAILED, Job, LOST, TIMED_OUT, UNAVAILABLE, seconds, stub};

/// How long a release that masters refuse is repeated, or for `--kill-after` if that is longer. A script
/// that keeps a server busy ends within seconds, or is killed.
const REPEATS_MAX: Duration = Duration::from_secs(10);
/// How long remaining processes of the command may take to end before they are reported.
const REST_REPORTED_AFTER: Duration = Duration::from_secs(1);
/// The shortest extension for `--at-least`.
const AT_LEAST_MIN: Duration = Duration::from_millis(10);

/// Runs the command. Returns the exit status; an error of kind `Other` has the whole text.
pub fn run(job: &Job<'_>) -> io::Result<u8> {
    let plan = &job.plan;
    let mut locks = Locks::new(plan)?;
    adopt_orphans()?;
    let lease = match locks.acquire()? {
        Ok(lease) => lease,
        Err(code) => return Ok(code),
    };
    // The earlier of two readings, so that the lock is over no later than said.
    let booted = since_boot()?;
    let now = locks.mux.now();
    let left = lease.remaining(now);
    if has_too_little_left(left, notice(job)) {
        locks.mux.abandon(lease);
        locks.drain()?;
        say(&format!("unavailable: the quorum came too late, with {} left", seconds(left)));
        return Ok(UNAVAILABLE);
    }
    if plan.args.verbose {
        let votes = lease.granted_by().count();
        let (total, holder) = (plan.config.nodes(), plan.args.holder(&lease));
        let granted = format!("granted {} on {votes} of {total} masters", printable(&locks.name));
        let number = lease.fencing_token();
        let number = number.map_or_else(String::new, |number| format!(", fencing token {number}"));
        say(&format!("{granted}: holder {holder}{number}, valid for {}", seconds(left)));
    }
    let started = match Started::new(&mut locks, job, &lease, booted + left) {
        Ok(started) => started,
        Err(error) => {
            locks.mux.abandon(lease);
            locks.drain()?;
            return Err(io::Error::other(format!(
                "cannot start the command: {}",
                explained(&error)
            )));
        }
    };
    Run::new(locks, job, started, lease, now).supervise()
}

/// How long before its end the lock counts as lost.
fn notice(job: &Job<'_>) -> Duration {
    job.kill_after + 2 * job.plan.config.node_timeout()
}

/// Whether a quorum came so late that the lock counts as lost at once.
fn has_too_little_left(left: Duration, notice: Duration) -> bool {
    left <= notice
}

/// How long the command may take to end, from SIGTERM to SIGKILL. `left` is that of a lost lock:
/// processes that get SIGKILL need time to end. Another lock is renewed meanwhile.
fn kill_in(kill_after: Duration, node_timeout: Duration, left: Option<Duration>) -> Duration {
    let most = left.map(|left| left.saturating_sub(node_timeout));
    most.map_or(kill_after, |most| most.min(kill_after))
}

/// The processes.
struct Started {
    guard: Option<GuardProcess>,
    /// The command's family if there is no guard above it.
    own: Family,
    terminal: Option<Terminal>,
}

impl Started {
    /// The lock is over at `deadline`, since the start of the machine.
    fn new(
        locks: &mut Locks<'_>,
        job: &Job<'_>,
        lease: &Lease,
        deadline: Duration,
    ) -> io::Result<Started> {
        // Variables that an outer muxlock has set belong to another lock.
        let mut environment = vec![
            ("MUXLOCK_RESOURCE", Some(locks.name.clone())),
            ("MUXLOCK_HOLDER", Some(job.plan.args.holder(lease).to_string())),
            ("MUXLOCK_FENCING_TOKEN", lease.fencing_token().map(|number| number.to_string())),
        ];
        environment.extend(stub::service());
        let terminal = Terminal::of_stdin();
        let mask = Mask::new(block_output_stop()?);
        let until = deadline.saturating_sub(notice(job));
        let give = |command| terminal.iter().for_each(|it| it.give(command));
        let strangers = family::children();
        let root = getpid();
        if job.args.no_guard {
            let (child, gate) = stub::start(&job.program, &mask, &environment)?;
            let command = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
            give(command);
            // From here on the command runs. If the stub has ended, that is seen soon.
            let _ = stub::open(gate, until);
            let own = Family::new(command, root, strangers);
            return Ok(Started { guard: None, own, terminal });
        }
        let (kill_after, node_timeout) = (job.kill_after, job.plan.config.node_timeout());
        let manner = Manner { kill_after, node_timeout, deadline };
        let (mut guard, command) = GuardProcess::start(&manner, &job.program, &mask, &environment)?;
        locks.watch(guard.fd())?;
        give(command);
        // From here on the command runs, if the guard has not become active before.
        guard.open(until);
        let own = Family::new(command, root, strangers);
        Ok(Started { guard: Some(guard), own, terminal })
    }
}

struct Run<'a> {
    job: &'a Job<'a>,
    locks: Locks<'a>,
    /// The parent of the command, while it is there.
    guard: Option<GuardProcess>,
    own: Family,
    terminal: Option<Terminal>,
    renewal: OpId,
    /// The lock, once it is no longer renewed.
    lease: Option<Lease>,
    granted_at: Moment,
    deadline: Moment,
    ending: Option<Ending>,
    is_lost: bool,
    is_timed_out: bool,
    /// The command's exit status.
    ended: Option<u8>,
    /// Whether processes of the command run on after its end, by the last report of the guard.
    rest: Option<Rest>,
    /// When to report that.
    report_rest_at: Option<Moment>,
    /// Whether the last look found an end of the command that the guard had not reported.
    is_unreported: bool,
    /// Why the command was ended.
    reason: Option<String>,
}

/// The command and its descendants are to end.
struct Ending {
    kill_at: Moment,
    is_killed: bool,
}

impl<'a> Run<'a> {
    fn new(
        mut locks: Locks<'a>,
        job: &'a Job<'a>,
        started: Started,
        lease: Lease,
        now: Moment,
    ) -> Run<'a> {
        let deadline = lease.valid_until();
        let how = KeepAlive::default().notice(notice(job));
        // The command says how long it takes, unless --max-time does.
        let how = how.renewals_max(u32::MAX).lifetime_max(Duration::MAX);
        let renewal = locks.mux.keep_alive(lease, &how);
        let Started { guard, own, terminal } = started;
        locks.never_reap(own.command);
        guard.iter().for_each(|guard| locks.never_reap(guard.pid()));
        Run {
            job,
            locks,
            guard,
            own,
            terminal,
            renewal,
            lease: None,
            granted_at: now,
            deadline,
            ending: None,
            is_lost: false,
            is_timed_out: false,
            ended: None,
            rest: None,
            report_rest_at: None,
            is_unreported: false,
            reason: None,
        }
    }

    fn supervise(mut self) -> io::Result<u8> {
        let watched = self.watch();
        if watched.is_err() {
            // Without its supervisor, it must not go on.
            self.family().kill();
        }
        self.take_terminal_back();
        let is_gone = self.ending.is_none() || self.ended.is_some() && !self.has_rest();
        self.guard.take().map(GuardProcess::end);
        // The descendants of the guard are descendants of this process now.
        let left = if is_gone { None } else { beyond(&self.own) };
        // Only now can its number become another group's. A process that cannot be killed is not
        // waited for.
        reap(self.own.command);
        reap_orphans(&[]);
        watched?;
        let (terminal, reason) = (self.terminal.take(), self.reason.take());
        let code = self.let_go(left);
        if let (Some(mut terminal), Some(reason)) = (terminal, reason) {
            // A full-screen program erases earlier messages when it ends.
            if terminal.restore() {
                say(&reason);
            }
        }
        code
    }

    /// Until the command has ended, and with it, if they are to end or are waited for, all its
    /// descendants.
    fn watch(&mut self) -> io::Result<()> {
        loop {
            self.look()?;
            if self.is_over() && self.end_guard() {
                return Ok(());
            }
            match self.locks.done(self.renewal) {
                Some(Done::Renewed(deadline)) => self.renewed(deadline)?,
                Some(Done::Lost(lease, loss)) => self.lost(lease, &loss)?,
                _ => {}
            }
            // A stopped command would get a request to end only once it goes on.
            let woken = |it| [Some(it), matches!(it, SIGTERM | SIGHUP).then_some(SIGCONT)];
            for signal in self.locks.signals().into_iter().flat_map(woken).flatten() {
                match self.ended {
                    // Processes that the command has left in groups of their own get it too.
                    Some(_) => drop(self.family().signal(signal)),
                    None => self.own.signal_group(signal),
                }
            }
            let until = self.act()?;
            self.locks.turn(until)?;
        }
    }

    /// All that the command has started: below the guard, or else below this process.
    fn family(&self) -> Family {
        match &self.guard {
            Some(guard) => Family::new(self.own.command, guard.pid(), Vec::new()),
            None => self.own.clone(),
        }
    }

    /// Looks at the command, and at the guard.
    fn look(&mut self) -> io::Result<()> {
        // Bounded by the capacity of the pipe.
        while let Some(report) = self.guard.as_mut().and_then(GuardProcess::report) {
            match report {
                Report::Stopped(signal) => self.stopped(signal),
                Report::Ended(code) => self.ended(code),
                Report::Rest(rest) => self.rest = Some(rest),
            }
        }
        match self.guard.as_mut().map(GuardProcess::fate) {
            None => {}
            Some(Fate::Guards) => return Ok(()),
            Some(fate) => {
                // The command is this process's child now.
                self.guard = None;
                if fate == Fate::Acted {
                    self.note_guard_acted();
                }
            }
        }
        if self.ended.is_none() {
            match look(self.own.command)? {
                Change::None => {}
                Change::Ended(code) => self.ended(code),
                Change::Stopped(signal) => self.stopped(signal),
            }
        }
        Ok(())
    }

    fn ended(&mut self, code: u8) {
        self.ended = Some(code);
        self.take_terminal_back();
        self.report_rest_at = Some(self.locks.mux.now().after(REST_REPORTED_AFTER));
    }

    /// Whether anything of the command may still run, which has ended itself.
    fn has_rest(&self) -> bool {
        match &self.guard {
            Some(_) => self.rest != Some(Rest::Gone),
            None => self.own.is_alive(),
        }
    }

    /// Ends the guard, if that is of no more use. Returns whether it has not ended the command.
    fn end_guard(&mut self) -> bool {
        let is_done = self.ending.is_none();
        if is_done && self.guard.take().is_some_and(|guard| guard.end() == Fate::Acted) {
            self.note_guard_acted();
            return false;
        }
        true
    }

    fn renewed(&mut self, deadline: Moment) -> io::Result<()> {
        self.deadline = deadline;
        let booted = since_boot()?;
        let left = deadline.since(self.locks.mux.now());
        if let Some(guard) = &mut self.guard {
            guard.renewed(booted + left);
            // A guard that is stopped reports nothing. Without it, this process sees the end.
            let was_unreported = self.is_unreported;
            self.is_unreported = self.ended.is_none() && self.own.has_command_ended();
            if was_unreported && self.is_unreported {
                guard.lose();
            }
        }
        Ok(())
    }

    fn lost(&mut self, lease: Lease, loss: &Loss) -> io::Result<()> {
        self.lease = Some(lease);
        self.is_lost = true;
        let left = self.deadline.since(self.locks.mux.now());
        let error = loss
            .error
            .as_ref()
            .map_or_else(String::new, |error| format!(" ({})", in_the_tool(error)));
        let lost = match loss.cause {
            LossCause::Gone => format!("lost {}", loss.resource),
            _ => format!("lost {} with {} left", loss.resource, seconds(left)),
        };
        let then = self.end()?;
        self.report(format!("{lost}: {}{error}", reason(loss)), &then);
        Ok(())
    }

    /// The guard has ended the command: this process was stopped, or too late.
    fn note_guard_acted(&mut self) {
        self.guard = None;
        if !self.is_lost {
            self.is_lost = true;
            let resource = printable(&self.locks.name);
            self.report(format!("lost {resource}: muxlock was too late to renew it"), "");
        }
        self.end_in(self.kill_in());
    }

    /// Says why the command is ended.
    fn report(&mut self, reason: String, then: &str) {
        say(&format!("{reason}{then}"));
        self.reason = Some(reason);
    }

    /// Asks all to end. Returns the text of it for the user.
    fn end(&mut self) -> io::Result<String> {
        self.terminal.iter_mut().for_each(Terminal::look);
        let booted = since_boot()?;
        let kill_in = self.kill_in();
        if let (true, Some(guard)) = (self.is_lost, &mut self.guard) {
            guard.ending(booted + kill_in);
        }
        if self.end_in(kill_in) {
            self.family().terminate();
        }
        Ok(format!("; the command gets SIGTERM now and SIGKILL in {}", seconds(kill_in)))
    }

    /// How long the command may take to end.
    fn kill_in(&self) -> Duration {
        let left = self.is_lost.then(|| self.deadline.since(self.locks.mux.now()));
        kill_in(self.job.kill_after, self.job.plan.config.node_timeout(), left)
    }

    /// Returns whether it was not ending before.
    fn end_in(&mut self, kill_in: Duration) -> bool {
        let kill_at = self.locks.mux.now().after(kill_in);
        let is_first = self.ending.is_none();
        let ending = self.ending.get_or_insert(Ending { kill_at, is_killed: false });
        ending.kill_at = ending.kill_at.min(kill_at);
        is_first
    }

    /// The command was stopped at a terminal: so is this process, as one job.
    fn stopped(&mut self, signal: Signal) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        terminal.take_back(self.own.command);
        let wants_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if self.ending.is_none() && !(wants_terminal && terminal.is_ours()) {
            if !self.locks.plan.args.quiet {
                let left = seconds(self.deadline.since(self.locks.mux.now()));
                let then = "and muxlock kills it before that unless you continue it";
                say(&format!("the command was stopped; its lock lasts for another {left}, {then}"));
            }
            // The shell notices, and continues this process with `fg` or `bg`.
            let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
        }
        terminal.give(self.own.command);
        self.own.signal_group(Signal::SIGCONT);
    }

    fn take_terminal_back(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.own.command);
        }
    }

    /// Whether the command has ended, and with it all processes that have to end, or whether they
    /// cannot be killed.
    fn is_over(&self) -> bool {
        let leaves = self.job.args.descendants == Descendants::Leave;
        let Some(ending) = &self.ending else {
            return self.ended.is_some() && (leaves || !self.has_rest());
        };
        let now = self.locks.mux.now();
        let is_overdue = ending.is_killed && now >= ending.kill_at.after(KILLED_MAX);
        is_overdue || self.ended.is_some() && !self.has_rest()
    }

    /// The command has ended, and processes that it has started run on: the lock is held for it,
    /// unless it is to end.
    fn rest(&mut self, now: Moment) -> io::Result<Option<Moment>> {
        let (Some(code), None) = (self.ended, &self.ending) else {
            return Ok(None);
        };
        if self.job.args.descendants == Descendants::End {
            self.end()?;
            return Ok(None);
        }
        // With --quiet too: the lock may stay for ever, and later runs are skipped.
        let Some(at) = self.report_rest_at else {
            return Ok(None);
        };
        if now < at {
            return Ok(Some(at));
        }
        self.report_rest_at = None;
        let left = self.family().living();
        if !left.is_empty() {
            let (left, name) = (family::list(&left), &self.locks.name);
            let what = format!("the command has ended with {code}, but it has started {left}");
            let hint = "(--descendants leave would release it)";
            say(&format!("{what}: {name} stays locked until they have ended {hint}"));
        }
        Ok(None)
    }

    /// Handles due timers, and returns when the next one is due.
    fn act(&mut self) -> io::Result<Option<Moment>> {
        let now = self.locks.mux.now();
        let mut until = None;
        if let (false, Some(max_time)) = (self.is_timed_out, self.job.args.max_time) {
            let ends_at = self.granted_at.after(max_time);
            if now >= ends_at {
                self.is_timed_out = true;
                let then = self.end()?;
                self.report("--max-time has passed".into(), &then);
            } else {
                until = Some(ends_at);
            }
        }
        let earliest = |one: Option<Moment>, other: Option<Moment>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        until = earliest(until, self.rest(now)?);
        if let Some(ending) = &mut self.ending {
            let is_due = now >= ending.kill_at;
            ending.is_killed |= is_due;
            let next = match is_due || self.ended.is_some() {
                true => now.after(LOOK_AGAIN),
                false => ending.kill_at,
            };
            until = earliest(until, Some(next));
            if is_due {
                self.family().kill();
            }
        }
        Ok(until)
    }

    /// If `--at-least` is longer than a lock may be, renews it until the rest is not. Returns the
    /// signal that has ended this before.
    fn hold_on(&mut self) -> io::Result<Option<Signal>> {
        let Some(at_least) = self.job.args.at_least else {
            return Ok(None);
        };
        let until =
            self.granted_at.after(at_least.saturating_sub(self.locks.plan.config.max_ttl()));
        loop {
            let now = self.locks.mux.now();
            if now >= until {
                return Ok(None);
            }
            match self.locks.done(self.renewal) {
                Some(Done::Renewed(deadline)) => self.deadline = deadline,
                Some(Done::Lost(lease, loss)) => {
                    (self.lease, self.is_lost) = (Some(lease), true);
                    let code = self.ended.unwrap_or(FAILED);
                    let (name, cause) = (&loss.resource, &loss.cause);
                    say(&format!("lost {name}: {cause}; the command had ended with {code}"));
                    return Ok(None);
                }
                _ => {}
            }
            let ends = |it: &Signal| !matches!(it, Signal::SIGUSR1 | Signal::SIGUSR2);
            if let Some(signal) = self.locks.signals().into_iter().find(ends) {
                return Ok(Some(signal));
            }
            self.locks.turn(Some(until))?;
        }
    }

    /// Releases the lock. Returns the exit status.
    fn let_go(mut self, left: Option<String>) -> io::Result<u8> {
        let signal = match (&left, self.is_lost) {
            (None, false) => self.hold_on()?,
            _ => None,
        };
        let code = if self.is_timed_out { TIMED_OUT } else { self.ended.unwrap_or(FAILED) };
        let locks = &mut self.locks;
        let args = locks.plan.args;
        let name = printable(&locks.name);
        let lease = self.lease.take().or_else(|| match locks.mux.cancel(self.renewal) {
            Cancelled::Extension(lease) => Some(lease),
            _ => None,
        });
        let mut lease =
            lease.ok_or_else(|| io::Error::other("a bug of muxlock: the lock is missing"))?;
        if let Some(left) = left {
            say(&left);
            say("the command could not be killed and goes on; its lock expires");
            locks.mux.let_go(&mut lease);
            return Ok(if self.is_lost { LOST } else { code });
        }
        if self.is_lost {
            locks.mux.abandon(lease);
            locks.drain()?;
            return Ok(LOST);
        }
        let lost = |why: &str| {
            say(&format!("lost {name}: {why}; the command had ended with {code}"));
            Ok(LOST)
        };
        let now = locks.mux.now();
        if !lease.is_valid_at(now) {
            locks.mux.abandon(lease);
            locks.drain()?;
            return lost("muxlock was too late to renew it");
        }
        let held = now.since(self.granted_at);
        match self.job.args.at_least.and_then(|at_least| at_least.checked_sub(held)) {
            // It never shortens the lock, and finds out whether it was held.
            Some(missing) => {
                let kept = missing.clamp(AT_LEAST_MIN, locks.plan.config.max_ttl());
                let left = kept.max(lease.remaining(now));
                let op = locks.mux.extend(lease, kept);
                let extended = locks.finish(op)?;
                locks.drain()?;
                let Done::Extended(mut lease, result) = extended else {
                    return Err(io::Error::other("a bug of muxlock: the lock is missing"));
                };
                locks.mux.let_go(&mut lease);
                match result {
                    Ok(()) if kept < missing && !args.quiet => {
                        let (kept, missing) = (seconds(kept), seconds(missing));
                        say(&format!("{name} stays locked for {kept} instead of {missing}"));
                    }
                    Ok(()) if args.verbose => {
                        say(&format!("{name} stays locked for another {}", seconds(left)));
                    }
                    Ok(()) => {}
                    Err(error) if error.is_expired() => {
                        return lost("too few masters still had it");
                    }
                    Err(error) => {
                        say(&format!(
                            "{name} might not stay locked for --at-least: {}",
                            in_the_tool(&error)
                        ));
                    }
                }
            }
            None => {
                let op = locks.mux.unlock(lease);
                let released = locks.finish(op)?;
                locks.drain()?;
                match released {
                    Done::Released(Ok(it)) if it.was_held() => {}
                    Done::Released(Ok(it))
                        if it.confirmed + it.unknown < locks.plan.config.quorum() =>
                    {
                        return lost("too few masters still had it");
                    }
                    Done::Released(Err(error)) => {
                        locks.drain_for(self.job.kill_after.max(REPEATS_MAX))?;
                        if locks.mux.unanswered() > 0 && !args.quiet {
                            say(&format!("the release is not confirmed: {}", in_the_tool(&error)));
                        }
                    }
                    _ => {}
                }
                if args.verbose {
                    say(&format!("released {name} after {}", seconds(held)));
                }
            }
        }
        Ok(signal.map_or(code, |signal| code_of(signal as i32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn lock_is_refused_if_the_command_would_be_ended_at_once() {
        let notice = 300 * MS;
        assert!(has_too_little_left(Duration::ZERO, notice) && has_too_little_left(notice, notice));
        assert!(!has_too_little_left(notice + MS, notice));
    }

    /// A killed process has a node_timeout to end, before another client can get the lock.
    #[test]
    fn lost_lock_bounds_the_time_to_kill() {
        let of = |left| kill_in(200 * MS, 50 * MS, left);
        assert_eq!(of(None), 200 * MS);
        assert_eq!(of(Some(900 * MS)), 200 * MS);
        assert_eq!(of(Some(250 * MS)), 200 * MS);
        assert_eq!(of(Some(249 * MS)), 199 * MS);
        assert_eq!(of(Some(30 * MS)), Duration::ZERO);
    }
}
