//! `muxlock demo`: the life of a lock on real masters, some of which die. Every claim is checked.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use muxlock::node::NodeOutcome;
use muxlock::settings::RestartGuard;
use muxlock::testing::{Master, Masters};
use muxlock::{LockGuard, Redlock};

use super::authority::Authority;
use super::histogram::Latencies;
use super::output;
use super::page::{Cell, Page, Stop, expect};
use super::paint::{Style, capital, count, thousands, time, whole_seconds};
use super::stage::{
    Demo, NODE_TIMEOUT, PATIENCE, RESOURCE, SLEEPER, TTL, VICTIM, ask_again, name, names_are,
    release,
};
use super::stopwatch::{Stopwatch, pause, wait_until};

/// The longest time that counts as prompt on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(1);
/// How long the last releases may take to reach healthy masters.
const DRAIN_CAP: Duration = Duration::from_secs(1);
/// In the chapter on the restart guard: the TTL, which is also the guarded client's `max_ttl`. The
/// masters are started again before it ends.
const GUARDED_TTL: Duration = Duration::from_secs(3);
/// The guarded client waits for `max_ttl`, plus about 1.3 s; the rest is for a busy machine.
const GUARDED_WAIT: Duration = Duration::from_secs(15);
/// How long the holder works under the lock.
const WORK: Duration = Duration::from_millis(250);

const PAIRS: usize = 2_000;

/// Break real masters one by one and check the lock each time
///
/// It starts redis-servers on free ports and ends them in any case. The server
/// is the one on PATH, or the one that MUXLOCK_REDIS_SERVER names.
///
/// Exit status: 0 if all checks passed, 1 if a check failed, 2 if it could not
/// start or write.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, next_line_help = true)]
pub struct Args {
    /// Number of masters, from 3 to 9
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u8).range(3..=9))]
    masters: u8,

    /// Time limit of chapter 11, in seconds [default: no limit]
    #[arg(long, value_name = "S")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,

    /// Use TLS, with new certificates from openssl
    #[arg(long)]
    tls: bool,

    /// Print without colours
    #[arg(long)]
    no_color: bool,
}

/// Runs the demo. An error means that it could not start.
pub fn run(args: &Args) -> io::Result<ExitCode> {
    let authority = args.tls.then(Authority::new).transpose()?;
    let n = usize::from(args.masters);
    let masters = match &authority {
        Some(authority) => Masters::start_with_tls(n, &authority.files(), &[])?,
        None => Masters::start(n)?,
    };
    let url = |master: &Master| match &authority {
        Some(authority) => authority.url(master),
        None => master.url(),
    };
    let urls: Vec<String> = masters.iter().map(url).collect();
    let redlock = client(&urls, RestartGuard::Off)?;
    let mut demo = Demo { page: Page::new(args.no_color), redlock, masters, urls, authority };
    let shown = demo.show(args.seconds.map(Duration::from_secs));
    let shown = match shown {
        Err(Stop::Failed(error)) => demo.page.check("the demo continues", Err(error.to_string())),
        shown => shown,
    };
    if let Err(Stop::Unheard(error)) = shown.and_then(|()| demo.page.sum_up()) {
        output::is_read(Err(error))?;
    }
    match demo.page.has_failed() {
        false => Ok(ExitCode::SUCCESS),
        true => Ok(ExitCode::FAILURE),
    }
}

fn client(urls: &[String], guard: RestartGuard) -> io::Result<Redlock> {
    let builder = Redlock::builder().nodes(urls).node_timeout(NODE_TIMEOUT);
    let builder = match guard {
        RestartGuard::Off => builder,
        _ => builder.max_ttl(GUARDED_TTL),
    };
    builder.restart_guard(guard).connect().map_err(io::Error::other)
}

impl Demo {
    fn show(&mut self, limit: Option<Duration>) -> Result<(), Stop> {
        self.meet_the_masters()?;
        let Some(mut lock) = self.acquire()? else {
            return self.page.say("Without a lock, the demo ends here.");
        };
        let rival = client(&self.urls, RestartGuard::Off)?;
        self.contend(&rival, &lock)?;
        self.extend(&mut lock)?;
        self.unlock(lock, &rival)?;
        rival.shutdown(DRAIN_CAP);
        drop(rival);

        let healthy = self.lose_one()?;
        let sets_before = self.freeze_one(healthy)?;
        self.lose_the_quorum()?;
        self.recover(sets_before)?;
        self.forget()?;
        self.measure(limit)?;
        self.leave()
    }

    fn meet_the_masters(&mut self) -> Result<(), Stop> {
        let n = self.masters.len();
        self.page.title(&format!(
            "muxlock {}: one lock, {n} Redis masters, and what can go wrong",
            env!("CARGO_PKG_VERSION")
        ))?;
        self.page.chapter("The masters")?;
        self.page.say(format_args!(
            "Each is a redis-server of its own that knows nothing of the others. A client \
             that has the lock on {} of the {n} holds it, so {} may fail at any time.",
            self.quorum(),
            n - self.quorum()
        ))?;
        for (i, master) in self.masters.iter().enumerate() {
            let tls = master.tls_url().filter(|_| self.authority.is_some());
            self.page.row(&[
                Cell::left(9, name(i)),
                Cell::left(15, tls.unwrap_or_else(|| master.addr())),
                Cell::left(0, format!("pid {}", master.pid())).style(Style::Faint),
            ])?;
        }
        if self.authority.is_some() {
            self.page.say(
                "All of them speak TLS, with a certificate of an authority that was made for this \
                 run, and that the client trusts.",
            )?;
        }
        self.page.say(
            "They were started a moment ago. So the restart guard, which is on by default, is \
             switched off here (restart_guard=off); chapter 10 shows what it is for.",
        )?;
        self.check_connected()
    }

    fn acquire(&mut self) -> Result<Option<LockGuard>, Stop> {
        let n = self.masters.len();
        self.page.chapter("Acquire")?;
        self.page.say(format_args!(
            "All {n} masters are asked at once to set the key {RESOURCE} to a random value for \
             {}, unless it exists. Once {} have, it is decided: the call does not wait.",
            whole_seconds(TTL),
            self.quorum()
        ))?;
        let Some(lock) = self.acquire_and_show()? else {
            return Ok(None);
        };
        self.page.say(format_args!(
            "It is valid for another {}: the time to live, less what the call took, \
             less 1 % and 2 ms for clocks that disagree.",
            time(lock.remaining())
        ))?;
        let token = *lock.token();
        let holders = self.count_masters(|master| {
            let value = master.value_of(RESOURCE.as_bytes())?;
            Ok(value.as_deref() == Some(token.as_bytes()))
        })?;
        self.page.check(
            format_args!("asked directly, {holders} of {n} masters have the lock's value"),
            expect(holders >= self.quorum(), || format!("only {holders} have")),
        )?;
        Ok(Some(lock))
    }

    fn contend(&mut self, rival: &Redlock, lock: &LockGuard) -> Result<(), Stop> {
        self.page.chapter("A second client wants it, too")?;
        self.page.say(format_args!(
            "It asks the same masters, while the first client holds the lock. {} that refuse are \
             enough to make a quorum impossible; what the attempt may have left on the others is \
             being deleted when the call returns.",
            self.spare() + 1
        ))?;
        let watch = Stopwatch::start();
        let attempt = ask_again(|| rival.try_lock(RESOURCE, TTL));
        let took = watch.elapsed();
        let Err(error) = attempt else {
            let happened = "the second client was granted the lock as well";
            return self.page.check("one holder at most", Err(happened.to_owned()));
        };
        self.show_report(&error)?;
        let held =
            error.nodes().iter().filter(|report| report.outcome == NodeOutcome::Held).count();
        self.page.check(
            format_args!(
                "the client gets \"contended\", not \"unavailable\", after {}: {} said no",
                time(took),
                count(held, "master")
            ),
            expect(error.is_contended() && held > 0, || error.to_string()),
        )?;
        self.page.check(
            "the first client's lock is untouched",
            expect(lock.is_valid(), || "it is no longer valid".to_owned()),
        )
    }

    fn extend(&mut self, lock: &mut LockGuard) -> Result<(), Stop> {
        self.page.chapter("Extend")?;
        self.page.say(format_args!(
            "The holder works for {}, then asks for another {}.",
            time(WORK),
            whole_seconds(TTL)
        ))?;
        pause(WORK);
        let before = lock.remaining();
        let watch = Stopwatch::start();
        let extended = ask_again(|| lock.extend(TTL));
        let took = watch.elapsed();
        let after = lock.remaining();
        self.show_times(&[
            ("remaining before", before, ""),
            ("remaining after", after, ""),
            ("the call took", took, ""),
        ])?;
        let claim = "a quorum extended it, and more time remains than before";
        self.page.check(
            claim,
            match extended {
                Ok(()) => expect(after > before, || format!("{} remains", time(after))),
                Err(error) => Err(error.to_string()),
            },
        )
    }

    fn unlock(&mut self, lock: LockGuard, rival: &Redlock) -> Result<(), Stop> {
        self.page.chapter("Unlock")?;
        self.page.say(
            "Each master deletes the key, but only if it still has the lock's own value. The \
             call returns when a quorum has confirmed; the others get the command as well.",
        )?;
        let watch = Stopwatch::start();
        let released = lock.unlock();
        let took = watch.elapsed();
        if let Ok(released) = &released {
            self.show_released(released)?;
        }
        self.page.check(
            format_args!(
                "a quorum held the lock until this very moment; the call took {}",
                time(took)
            ),
            match released {
                Ok(released) => expect(released.was_held(), || format!("{released:?}")),
                Err(error) => Err(error.to_string()),
            },
        )?;
        let watch = Stopwatch::start();
        let attempt = rival.try_lock_for(RESOURCE, TTL, PATIENCE);
        let took = watch.elapsed();
        let granted = attempt.map_err(|error| error.to_string());
        self.page.check(
            format_args!("the second client is granted it now, after {}", time(took)),
            granted.and_then(release),
        )
    }

    fn lose_one(&mut self) -> Result<Duration, Stop> {
        self.page.chapter("A master dies")?;
        self.page.say("To compare with, some locks while every master is healthy:")?;
        let healthy = self.sample("with every master healthy")?;
        self.masters[VICTIM].kill()?;
        self.page.say(format_args!(
            "{} is killed. The client gets no notice; it finds out while it acquires.",
            capital(&name(VICTIM))
        ))?;
        let lock = self.acquire_and_show()?;
        self.release(lock)?;
        let now = self.sample("with that master dead")?;
        self.compare(healthy, ("one master dead", now))?;
        Ok(healthy)
    }

    /// Returns how many SETs the frozen master had executed by then.
    fn freeze_one(&mut self, healthy: Duration) -> Result<u64, Stop> {
        self.page.chapter("Another one freezes")?;
        if self.spare() < 2 {
            self.page.say(format_args!(
                "{} masters can spare only one, so {} is started again first.",
                self.masters.len(),
                name(VICTIM)
            ))?;
            self.masters[VICTIM].restart()?;
            self.check_connected()?;
        }
        let sets_before = self.masters[SLEEPER].command_calls("set")?;
        self.masters[SLEEPER].freeze()?;
        self.page.say(format_args!(
            "{} is stopped with SIGSTOP. That is worse than a crash: its connection stays, its \
             port still accepts, and it never answers.",
            capital(&name(SLEEPER))
        ))?;
        let lock = self.acquire_and_show()?;
        self.release(lock)?;
        let now = self.sample("with that master frozen")?;
        self.compare(healthy, ("one master frozen", now))?;
        Ok(sets_before)
    }

    fn lose_the_quorum(&mut self) -> Result<(), Stop> {
        self.page.chapter("No quorum")?;
        let killed = self.kill_until_no_quorum()?;
        let left = self.healthy();
        self.page.say(format_args!(
            "{} killed as well, which leaves {} of {}. Nothing can be locked now, and the honest \
             answer is not \"another client has it\".",
            capital(&names_are(&killed)),
            left.len(),
            self.masters.len()
        ))?;
        let watch = Stopwatch::start();
        let attempt = self.redlock.try_lock(RESOURCE, TTL);
        let took = watch.elapsed();
        let claim = format!(
            "the client gets \"unavailable\" promptly, within {}: after {}",
            whole_seconds(PROMPTLY),
            time(took)
        );
        let Err(error) = attempt else {
            let happened = "the lock was granted without a quorum";
            return self.page.check(claim, Err(happened.to_owned()));
        };
        self.show_report(&error)?;
        self.page.say(format_args!(
            "A frozen master looks like a slow one, so it is given the whole node_timeout, which \
             is {} here, and not more.",
            time(NODE_TIMEOUT)
        ))?;
        self.page.check(
            claim,
            expect(error.is_unavailable() && took < PROMPTLY, || error.to_string()),
        )?;
        let clean = wait_until(DRAIN_CAP, || Ok(self.keys_on(&left)? == 0))?;
        self.page.check(
            "the attempt left no key behind on the masters that are up",
            expect(clean.is_some(), || "there still are some".to_owned()),
        )
    }

    fn recover(&mut self, sets_before: u64) -> Result<(), Stop> {
        self.page.chapter("The masters come back")?;
        self.thaw(sets_before)?;
        self.restart_the_dead()?;
        let lock = self.acquire_and_show()?;
        self.release(lock)
    }

    fn thaw(&mut self, sets_before: u64) -> Result<(), Stop> {
        let waiting = self.redlock.nodes()[SLEEPER].in_flight;
        let sleeper = &self.masters[SLEEPER];
        let watch = Stopwatch::start();
        sleeper.thaw()?;
        let (mut sets, mut pttl) = (0, 0);
        let gone = wait_until(DRAIN_CAP, || {
            // Only once every command is answered, so that no SET is still to come.
            let unanswered = self.redlock.nodes()[SLEEPER].in_flight;
            sets = sleeper.command_calls("set")?.saturating_sub(sets_before);
            pttl = sleeper.pttl(RESOURCE.as_bytes())?;
            Ok(unanswered == 0 && sets > 0 && pttl == -2)
        })?;
        let took = watch.elapsed();
        self.page.say(format_args!(
            "{} thaws and works off the {} that waited in its socket. Among them are {} for \
             locks that have ended by now, each with {} to live. But right behind each SET, on \
             the same connection, came its release.",
            capital(&name(SLEEPER)),
            count(waiting, "command"),
            count(sets as usize, "SET"),
            whole_seconds(TTL),
        ))?;
        self.page.check(
            format_args!(
                "within {} it no longer has any of those keys (PTTL {pttl}): after {}",
                whole_seconds(DRAIN_CAP),
                time(took)
            ),
            expect(gone.is_some(), || {
                format!("it executed {sets} SETs, and the PTTL of {RESOURCE} is {pttl}")
            }),
        )
    }

    fn restart_the_dead(&mut self) -> Result<(), Stop> {
        let mut restarted = Vec::new();
        for (i, master) in self.masters.iter_mut().enumerate() {
            if !master.is_running() {
                master.restart()?;
                restarted.push(i);
            }
        }
        self.page.say(format_args!(
            "{} started again, empty. The client connects again by itself while it is used.",
            capital(&names_are(&restarted))
        ))?;
        self.check_connected()
    }

    fn forget(&mut self) -> Result<(), Stop> {
        self.page.chapter("Masters forget the lock")?;
        let restarted: Vec<usize> = (0..self.quorum()).collect();
        self.page.say(format_args!(
            "The client holds the lock for {}. Meanwhile {} killed and started again, without \
             their data.",
            whole_seconds(GUARDED_TTL),
            names_are(&restarted)
        ))?;
        let held = ask_again(|| self.redlock.try_lock(RESOURCE, GUARDED_TTL));
        let held = match held {
            Ok(held) => held,
            Err(error) => {
                return self.page.check("a quorum grants the lock", Err(error.to_string()));
            }
        };
        for i in &restarted {
            self.masters[*i].kill()?;
            self.masters[*i].restart()?;
        }
        self.without_the_guard(&held)?;
        self.with_the_guard(&restarted, held)?;
        self.check_connected()
    }

    /// The control: without the guard, the failure happens.
    fn without_the_guard(&mut self, held: &LockGuard) -> Result<(), Stop> {
        let rival = client(&self.urls, RestartGuard::Off)?;
        let second = ask_again(|| rival.try_lock(RESOURCE, GUARDED_TTL));
        let both = held.is_valid();
        self.page.check(
            "without the restart guard, a second client is granted the lock: two holders",
            second.map_err(|error| error.to_string()).and_then(|second| {
                expect(both && second.is_valid(), || "the first lock is over".to_owned())?;
                release(second)
            }),
        )?;
        rival.shutdown(DRAIN_CAP);
        Ok(())
    }

    fn with_the_guard(&mut self, restarted: &[usize], held: LockGuard) -> Result<(), Stop> {
        let guarded = client(&self.urls, RestartGuard::default())?;
        let watch = Stopwatch::start();
        match guarded.try_lock(RESOURCE, GUARDED_TTL) {
            Ok(_) => {
                let happened = "a quorum of masters that have forgotten the lock granted it";
                return self.page.check("the guarded client waits", Err(happened.to_owned()));
            }
            Err(error) => {
                self.show_report(&error)?;
                let ready_in = error.ready_in().map(time).unwrap_or_default();
                self.page.check(
                    format_args!(
                        "with it, {} in quarantine, and the client has to wait for {ready_in}",
                        names_are(restarted)
                    ),
                    expect(error.ready_in().is_some(), || error.to_string()),
                )?;
            }
        }
        let attempt = guarded.try_lock_for(RESOURCE, GUARDED_TTL, GUARDED_WAIT);
        let (took, is_over) = (watch.elapsed(), !held.is_valid());
        drop(held);
        self.page.check(
            format_args!(
                "it is granted the lock after {}, when the first one has ended: one holder",
                time(took)
            ),
            attempt.map_err(|error| error.to_string()).and_then(|lock| {
                expect(is_over, || "the first lock is still valid".to_owned())?;
                release(lock)
            }),
        )?;
        guarded.shutdown(DRAIN_CAP);
        Ok(())
    }

    fn measure(&mut self, limit: Option<Duration>) -> Result<(), Stop> {
        self.page.chapter(&format!("Acquire and release, {} times", thousands(PAIRS as u128)))?;
        self.page.say("One pair after the other, from one thread, with all masters healthy.")?;
        let rounds_before = self.redlock.stats().rounds;
        let watch = Stopwatch::start();
        let pairs = self.run_pairs(PAIRS, limit)?;
        let took = watch.elapsed();
        let rounds = self.redlock.stats().rounds - rounds_before;
        let done = pairs.whole.len();
        if done > 0 {
            self.show_spread(&Latencies::new(pairs.whole))?;
        }
        if rounds > done as u64 && pairs.failure.is_none() {
            self.page.say(format_args!(
                "{} of votes had to be repeated, because masters missed the node_timeout.",
                count(rounds as usize - done, "round")
            ))?;
        }
        let is_cut_short = done < PAIRS && pairs.failure.is_none();
        self.page.check(
            format_args!(
                "{} in {}{}, {} a second: each granted and released by a quorum",
                count(done, "pair"),
                time(took),
                if is_cut_short { " (time was up)" } else { "" },
                thousands((done as f64 / took.as_secs_f64()) as u128),
            ),
            pairs.failure.map_or(Ok(()), Err),
        )
    }

    fn leave(&mut self) -> Result<(), Stop> {
        self.page.chapter("Nothing is left")?;
        let unanswered = self.redlock.shutdown(DRAIN_CAP);
        self.page.check(
            "every command that was sent has been answered",
            expect(unanswered == 0, || format!("{} have not", count(unanswered, "command"))),
        )?;
        let all: Vec<usize> = (0..self.masters.len()).collect();
        let clean = wait_until(DRAIN_CAP, || Ok(self.keys_on(&all)? == 0))?;
        let left = self.keys_on(&all)?;
        self.page.check(
            format_args!("DBSIZE is 0 on all {} masters", all.len()),
            expect(clean.is_some(), || format!("{} left", count(left as usize, "key"))),
        )
    }
}
