//! Runs the command while the lock is held, and ends it when the lock is lost.

use std::io;
use std::process::Child;
use std::time::Duration;

use muxlock::{Cancelled, Done, KeepAlive, Lease, Loss, LossCause, Moment, OpId};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::command::{Change, GROUP_LOOK_AGAIN, Group, KILLED_MAX, look};
use super::guard::Guard;
use super::locks::Locks;
use super::terminal::{Terminal, block_output_stop};
use super::timer::since_boot;
use super::voice::say;
use super::{FAILED, LOST, Plan, TIMED_OUT, UNAVAILABLE, seconds, stub};

/// The shortest extension for `--at-least`.
const AT_LEAST_MIN: Duration = Duration::from_millis(10);

/// Runs the command. Returns the exit status; an error of kind `Other` has the whole text.
pub fn run(plan: &Plan<'_>) -> io::Result<u8> {
    let mut locks = Locks::new(plan)?;
    let lease = match locks.acquire()? {
        Ok(lease) => lease,
        Err(code) => return Ok(code),
    };
    // The earlier of two readings, so that the lock is over no later than said.
    let booted = since_boot()?;
    let now = locks.mux.now();
    let left = lease.remaining(now);
    if is_late(left, notice(plan)) {
        locks.mux.abandon(lease);
        locks.drain()?;
        say(&format!("unavailable: the quorum came too late, with {} left", seconds(left)));
        return Ok(UNAVAILABLE);
    }
    if plan.args.verbose {
        let votes = lease.granted_by().count();
        let (total, holder) = (plan.config.nodes(), lease.token().fingerprint());
        let granted = format!("granted {} on {votes} of {total} masters", locks.name);
        let number = lease.fencing_token();
        let number = number.map_or_else(String::new, |number| format!(", fencing token {number}"));
        say(&format!("{granted}: holder {holder}{number}, valid for {}", seconds(left)));
    }
    let started = match Started::new(&locks, &lease, booted + left) {
        Ok(started) => started,
        Err(error) => {
            locks.mux.abandon(lease);
            locks.drain()?;
            return Err(io::Error::other(format!("cannot start the command: {error}")));
        }
    };
    Run::new(locks, started, lease, now).supervise()
}

/// How long before its end the lock counts as lost.
fn notice(plan: &Plan<'_>) -> Duration {
    plan.kill_after + 2 * plan.config.node_timeout()
}

/// Whether a quorum came so late that the lock counts as lost at once.
fn is_late(left: Duration, notice: Duration) -> bool {
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
    guard: Option<Guard>,
    child: Child,
    group: Group,
    terminal: Option<Terminal>,
}

impl Started {
    /// The lock is over at `deadline`, since the start of the machine.
    fn new(locks: &Locks<'_>, lease: &Lease, deadline: Duration) -> io::Result<Started> {
        let plan = locks.plan;
        let mut guard = match plan.args.no_guard {
            true => None,
            false => Some(Guard::start(plan.kill_after, plan.config.node_timeout())?),
        };
        if let Some(guard) = &mut guard {
            guard.renewed(deadline);
        }
        let terminal = Terminal::of_stdin();
        let mask = block_output_stop()?;
        // What another muxlock has set, around this one, is not this lock's.
        let environment = [
            ("MUXLOCK_RESOURCE", Some(locks.name.clone())),
            ("MUXLOCK_HOLDER", Some(lease.token().fingerprint().to_string())),
            ("MUXLOCK_FENCING_TOKEN", lease.fencing_token().map(|number| number.to_string())),
        ];
        let (child, gate) = stub::start(&plan.program, &mask, &environment)?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        let group = Group(pid);
        if let Some(guard) = &mut guard {
            guard.group(pid);
            if !guard.is_there() {
                return Err(io::Error::other("the guard process has ended"));
            }
        }
        if let Some(terminal) = &terminal {
            terminal.give(pid);
        }
        // From here on the command runs, if the guard has not become active before. If the stub has
        // ended, that is seen soon.
        let _ = stub::open(gate, deadline.saturating_sub(notice(plan)));
        Ok(Started { guard, child, group, terminal })
    }
}

struct Run<'a> {
    locks: Locks<'a>,
    guard: Option<Guard>,
    child: Child,
    group: Group,
    terminal: Option<Terminal>,
    kept: OpId,
    /// The lock, once it is no longer kept.
    lease: Option<Lease>,
    granted_at: Moment,
    deadline: Moment,
    ending: Option<Ending>,
    is_lost: bool,
    is_timed_out: bool,
    /// The command's exit status.
    ended: Option<u8>,
}

/// The command's group is to end.
struct Ending {
    kill_at: Moment,
    is_killed: bool,
}

impl<'a> Run<'a> {
    fn new(mut locks: Locks<'a>, started: Started, lease: Lease, now: Moment) -> Run<'a> {
        let deadline = lease.valid_until();
        let how = KeepAlive::default().notice(notice(locks.plan));
        // The command says how long it takes, unless --max-time does.
        let how = how.renewals_max(u32::MAX).lifetime_max(Duration::MAX);
        let kept = locks.mux.keep_alive(lease, &how);
        let Started { guard, child, group, terminal } = started;
        Run {
            locks,
            guard,
            child,
            group,
            terminal,
            kept,
            lease: None,
            granted_at: now,
            deadline,
            ending: None,
            is_lost: false,
            is_timed_out: false,
            ended: None,
        }
    }

    fn supervise(mut self) -> io::Result<u8> {
        let watched = self.watch();
        if watched.is_err() {
            // Without its supervisor, it must not go on.
            self.group.signal(Signal::SIGKILL);
        }
        self.take_terminal_back();
        let is_gone = self.ending.is_none() || !self.group.is_alive();
        self.guard.take().map(Guard::end);
        // Only now may its number become another group's. What cannot be killed is not waited for.
        let reaped = match (self.ended, &watched) {
            (None, Ok(())) => Ok(None),
            _ => self.child.wait().map(Some),
        };
        watched?;
        reaped?;
        self.let_go(is_gone)
    }

    /// Until the command has ended, and its group, if it is to end.
    fn watch(&mut self) -> io::Result<()> {
        loop {
            if self.ended.is_none() {
                self.look()?;
            }
            if self.is_over() {
                return Ok(());
            }
            match self.locks.done(self.kept) {
                Some(Done::Renewed(deadline)) => self.renewed(deadline)?,
                Some(Done::Lost(lease, loss)) => self.lost(lease, &loss)?,
                _ => {}
            }
            for signal in self.locks.signals() {
                self.group.signal(signal);
            }
            if self.guard.as_mut().is_some_and(Guard::look) {
                self.guarded();
            }
            let until = self.act()?;
            self.locks.turn(until)?;
        }
    }

    fn renewed(&mut self, deadline: Moment) -> io::Result<()> {
        self.deadline = deadline;
        let booted = since_boot()?;
        let left = deadline.since(self.locks.mux.now());
        if let Some(guard) = &mut self.guard {
            guard.renewed(booted + left);
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
            .map_or_else(String::new, |error| format!(" ({})", error.in_the_tool()));
        let lost = match loss.cause {
            LossCause::Gone => format!("lost {}", loss.resource),
            _ => format!("lost {} with {} left", loss.resource, seconds(left)),
        };
        let then = self.end()?;
        say(&format!("{lost}: {}{error}{then}", loss.cause));
        Ok(())
    }

    /// The guard has ended the command: this process was stopped, or too late.
    fn guarded(&mut self) {
        self.guard = None;
        if !self.is_lost {
            self.is_lost = true;
            let resource = &self.locks.name;
            say(&format!("lost {resource}: muxlock was too late to renew it"));
        }
        self.end_in(self.kill_in());
    }

    /// Asks the group to end. Returns what the user is told of it.
    fn end(&mut self) -> io::Result<String> {
        let booted = since_boot()?;
        let kill_in = self.kill_in();
        if let (true, Some(guard)) = (self.is_lost, &mut self.guard) {
            guard.ending(booted + kill_in);
        }
        if self.end_in(kill_in) {
            self.group.terminate();
        }
        Ok(format!("; the command gets SIGTERM now and SIGKILL in {}", seconds(kill_in)))
    }

    /// How long the command may take to end.
    fn kill_in(&self) -> Duration {
        let Locks { plan, mux, .. } = &self.locks;
        let left = self.is_lost.then(|| self.deadline.since(mux.now()));
        kill_in(plan.kill_after, plan.config.node_timeout(), left)
    }

    /// Returns whether it was not ending before.
    fn end_in(&mut self, kill_in: Duration) -> bool {
        let kill_at = self.locks.mux.now().after(kill_in);
        let is_first = self.ending.is_none();
        let ending = self.ending.get_or_insert(Ending { kill_at, is_killed: false });
        ending.kill_at = ending.kill_at.min(kill_at);
        is_first
    }

    fn look(&mut self) -> io::Result<()> {
        match look(self.group.0)? {
            Change::None => {}
            Change::Ended(code) => {
                self.ended = Some(code);
                self.take_terminal_back();
                // Otherwise it goes on until all of the group has ended.
                let is_done = self.ending.is_none();
                if is_done && self.guard.take().is_some_and(Guard::end) {
                    self.guarded();
                }
            }
            Change::Stopped(signal) => self.stopped(signal),
        }
        Ok(())
    }

    /// The command was stopped at a terminal: so is this process, as one job.
    fn stopped(&mut self, signal: Signal) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        terminal.take_back(self.group.0);
        let wants_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if self.ending.is_none() && !(wants_terminal && terminal.is_ours()) {
            if !self.locks.plan.args.quiet {
                let left = seconds(self.deadline.since(self.locks.mux.now()));
                let then = "and it is killed before that unless it goes on";
                say(&format!("the command was stopped; its lock lasts for another {left}, {then}"));
            }
            // The shell notices, and continues this process with `fg` or `bg`.
            let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
        }
        terminal.give(self.group.0);
        self.group.signal(Signal::SIGCONT);
    }

    fn take_terminal_back(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.group.0);
        }
    }

    /// Whether the command has ended, and if its group is to end, that too, or it cannot be killed.
    fn is_over(&self) -> bool {
        let Some(ending) = &self.ending else {
            return self.ended.is_some();
        };
        let now = self.locks.mux.now();
        let is_too_late = ending.is_killed && now >= ending.kill_at.after(KILLED_MAX);
        is_too_late || self.ended.is_some() && self.group.is_over()
    }

    /// Does what is due, and returns when the next is.
    fn act(&mut self) -> io::Result<Option<Moment>> {
        let now = self.locks.mux.now();
        let mut until = None;
        if let (false, Some(max_time)) = (self.is_timed_out, self.locks.plan.args.max_time) {
            let ends_at = self.granted_at.after(max_time);
            if now >= ends_at {
                self.is_timed_out = true;
                let then = self.end()?;
                say(&format!("--max-time is over{then}"));
            } else {
                until = Some(ends_at);
            }
        }
        if let Some(ending) = &mut self.ending {
            if now >= ending.kill_at && !ending.is_killed {
                ending.is_killed = true;
                self.group.signal(Signal::SIGKILL);
            }
            let next = match ending.is_killed || self.ended.is_some() {
                true => now.after(GROUP_LOOK_AGAIN),
                false => ending.kill_at,
            };
            until = Some(until.map_or(next, |until| until.min(next)));
        }
        Ok(until)
    }

    /// Releases the lock. Returns the exit status.
    fn let_go(mut self, is_gone: bool) -> io::Result<u8> {
        let code = if self.is_timed_out { TIMED_OUT } else { self.ended.unwrap_or(FAILED) };
        let locks = &mut self.locks;
        let args = locks.plan.args;
        let name = locks.name.clone();
        let lease = self.lease.take().or_else(|| match locks.mux.cancel(self.kept) {
            Cancelled::Extension(lease) => Some(lease),
            _ => None,
        });
        let mut lease = lease.ok_or_else(|| io::Error::other("the lock is not there"))?;
        if !is_gone {
            say("the command could not be killed and goes on; the lock ends by itself");
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
        match args.at_least.and_then(|at_least| at_least.checked_sub(held)) {
            // It never shortens the lock, and finds out whether it was held.
            Some(missing) => {
                let op = locks.mux.extend(lease, missing.max(AT_LEAST_MIN));
                let extended = locks.finish(op)?;
                locks.drain()?;
                let Done::Extended(mut lease, result) = extended else {
                    return Err(io::Error::other("the lock is not there"));
                };
                locks.mux.let_go(&mut lease);
                match result {
                    Ok(()) => {}
                    Err(error) if error.is_expired() => {
                        return lost("too few masters still had it");
                    }
                    Err(error) => {
                        say(&format!(
                            "{name} may not be locked for --at-least: {}",
                            error.in_the_tool()
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
                    Done::Released(Err(error)) if !args.quiet => {
                        say(&format!("the release is not confirmed: {}", error.in_the_tool()));
                    }
                    _ => {}
                }
            }
        }
        if args.verbose {
            say(&format!("let go of {name} after {}", seconds(held)));
        }
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn quorum_is_late_if_the_command_would_be_ended_at_once() {
        let notice = 300 * MS;
        assert!(is_late(Duration::ZERO, notice) && is_late(notice, notice));
        assert!(!is_late(notice + MS, notice));
    }

    /// What is killed has a node_timeout to end, before another client may get the lock.
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
