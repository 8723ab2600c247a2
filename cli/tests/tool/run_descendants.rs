//! `muxlock run` and all that a command starts: nothing of it lives beside the next holder.
//!
//! Each trial is drawn: a way to start descendants that leave the command's process group or are
//! deaf, what happens to the lock, and when. More trials than by default: `scripts/release run`.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Debug;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use muxlock::testing::Masters;
use testbed::{Folder, heavy, pause, within};

use super::cli::{muxlock, start};
use super::run::{children, guarded};

/// How many trials, if the environment does not say.
const TRIALS: u64 = 20;
/// As many at the same time.
const AT_ONCE: usize = 5;
const TTL: &str = "2s";
/// Signs of life, until somebody ends it or for about a minute.
const SIGNS: &str = "echo $$ >> $FOLDER/pids; i=0; while [ $i -lt 2000 ]; do \
    date +%s%N >> $FOLDER/signs; sleep 0.02; i=$((i + 1)); done";
/// How often a command is started until a descendant of it runs.
const ATTEMPTS_MAX: u32 = 5;
const SIGNS_MAX: Duration = Duration::from_secs(40);
/// How long after the next holder's start a survivor would show itself.
const SHOWS_AFTER: Duration = Duration::from_millis(300);

/// A way to start a descendant. `$SIGNS` is a script that gives signs of life.
#[derive(Debug, Clone, Copy)]
struct Way {
    name: &'static str,
    script: &'static str,
}

const WAYS: [Way; 12] = [
    Way { name: "timeout", script: "timeout 500 sh $SIGNS; true" },
    Way { name: "job", script: "bash -c 'set -m; sh $SIGNS & wait'; true" },
    Way { name: "job control", script: "bash -c 'set -m; sh $SIGNS; true'; true" },
    Way { name: "setsid", script: "setsid sh $SIGNS & wait" },
    Way { name: "setsid after which it ends", script: "setsid sh $SIGNS & sleep 0.2; exit 0" },
    Way {
        name: "start_new_session",
        script: "python3 -c 'import os, subprocess as s
s.Popen([\"sh\", os.environ[\"SIGNS\"]], start_new_session=True).wait()'",
    },
    Way {
        name: "interactive shell",
        script: "(echo sh $SIGNS; sleep 60) | script -qec 'bash --norc -i' /dev/null > /dev/null",
    },
    Way { name: "deaf to TERM", script: "trap '' TERM; sh $SIGNS; true" },
    Way {
        name: "child of a shell that ends at TERM",
        script: "(trap '' TERM; exec sh $SIGNS) & wait",
    },
    Way {
        name: "daemon",
        script: "(setsid sh -c 'trap \"\" TERM HUP; sh $SIGNS & exit 0' &); sleep 60",
    },
    Way { name: "nohup", script: "nohup setsid sh $SIGNS > /dev/null 2>&1 & wait" },
    Way { name: "pipe", script: "yes | timeout 500 sh $SIGNS | cat" },
];

#[derive(Debug, Clone, Copy)]
enum Event {
    /// SIGKILL of muxlock.
    Kill,
    /// SIGSTOP of muxlock.
    Stop,
    /// SIGKILL of the guard.
    KillGuard,
    /// SIGTERM to muxlock, and SIGKILL soon after.
    TermAndKill,
    Term,
    Revoke,
    /// Two of three masters say nothing.
    Freeze,
    MaxTime,
}

const EVENTS: [Event; 8] = [
    Event::Kill,
    Event::Stop,
    Event::KillGuard,
    Event::TermAndKill,
    Event::Term,
    Event::Revoke,
    Event::Freeze,
    Event::MaxTime,
];

/// Numbers that follow from a seed (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        let at = self.below(all.len().try_into().unwrap());
        all[usize::try_from(at).unwrap()]
    }
}

#[derive(Debug, Clone, Copy)]
struct Trial {
    number: u64,
    way: Way,
    event: Event,
    after: Duration,
}

impl Trial {
    /// Every way comes up; event and moment are drawn.
    fn draw(number: u64, numbers: &mut Numbers) -> Trial {
        let way = WAYS[usize::try_from(number).unwrap() % WAYS.len()];
        let after = Duration::from_millis(numbers.below(1_200));
        Trial { number, way, event: numbers.one_of(&EVENTS), after }
    }
}

/// The files of a trial.
struct Files(Folder);

impl Files {
    fn create(name: &str) -> Files {
        let files = Files(Folder::create(name));
        fs::write(files.path("life"), SIGNS).unwrap();
        files
    }

    fn path(&self, name: &str) -> String {
        self.0.0.join(name).display().to_string()
    }

    fn numbers(&self, name: &str) -> Vec<i64> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Gives a command what the scripts need.
    fn give<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("FOLDER", &self.0.0).env("SIGNS", self.path("life"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
    }

    /// Waits until a descendant gives signs of life, or the command has ended.
    fn wait_for_signs(&self, of: &dyn Debug, command: &mut Ends) {
        within(SIGNS_MAX, &format!("a descendant runs: {of:?}"), || {
            !self.numbers("signs").is_empty() || command.0.try_wait().unwrap().is_some()
        });
    }

    /// Ends what still gives signs. Returns how many did.
    fn end_survivors(&self) -> usize {
        let marker = format!("FOLDER={}", self.0.0.display());
        let is_own = |pid: &i64| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|it| it == marker.as_bytes())
        };
        let left: Vec<i64> = self.numbers("pids").into_iter().filter(is_own).collect();
        for pid in &left {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
        left.len()
    }
}

/// Ends a process with the test, even if that fails.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the command of a trial, and waits until a descendant of it runs.
fn start_command(trial: &Trial, list: &str) -> (String, Files, Ends) {
    // Beneath load, a lock may be lost or the time over before that.
    for attempt in 0..ATTEMPTS_MAX {
        let name = format!("descendants-{}-{attempt}", trial.number);
        let files = Files::create(&name);
        let script = format!("echo $MUXLOCK_HOLDER > $FOLDER/holder; {}", trial.way.script);
        let max_time = format!("{}ms", (300 + trial.after.as_millis()) << attempt);
        let mut args = vec!["-q", "-w", "30s", "--ttl", TTL, "--kill-after", "300ms"];
        if matches!(trial.event, Event::MaxTime) {
            args.extend(["--max-time", &max_time]);
        }
        args.extend([&name, "-c", &script]);
        let mut first = Ends(files.give(&mut guarded(list, &args)).spawn().unwrap());
        files.wait_for_signs(trial, &mut first);
        if !files.numbers("signs").is_empty() {
            return (name, files, first);
        }
    }
    panic!("no descendant runs: {trial:?}");
}

/// Plays a trial. Returns the time from the last sign of life to the start of the next holder's
/// command, in milliseconds; less than zero if they overlap.
fn play(trial: &Trial, masters: &Masters, list: &str) -> i64 {
    let (name, files, first) = start_command(trial, list);
    let next = ["-q", "-w", "60s", &name, "-c", "date +%s%N > $FOLDER/next"];
    let mut next = Ends(files.give(&mut guarded(list, &next)).spawn().unwrap());
    pause(trial.after);

    let muxlock_id = first.0.id();
    // It may have ended already, as may what it has started.
    let send = |name: &str, pid: &str| {
        let _ =
            Command::new("kill").args([&format!("-{name}"), pid]).stderr(Stdio::null()).status();
    };
    let to_muxlock = |name: &str| send(name, &muxlock_id.to_string());
    let revoke = || {
        let holder = fs::read_to_string(files.path("holder")).unwrap();
        let mut revoke = muxlock(&["revoke", &name, "--holder", holder.trim()]);
        revoke.env("MUXLOCK_NODES", list).env("MUXLOCK_RESTART_GUARD", "off");
        let _ = revoke.stdout(Stdio::null()).stderr(Stdio::null()).status();
    };
    match trial.event {
        Event::Kill => to_muxlock("KILL"),
        Event::Stop => to_muxlock("STOP"),
        Event::KillGuard => {
            children(muxlock_id).iter().for_each(|guard| send("KILL", guard));
            pause(Duration::from_millis(50));
            revoke();
        }
        Event::TermAndKill => {
            to_muxlock("TERM");
            pause(Duration::from_millis(20));
            to_muxlock("KILL");
        }
        Event::Term => {
            to_muxlock("TERM");
            pause(Duration::from_millis(600));
            revoke();
        }
        Event::Revoke => revoke(),
        Event::Freeze => {
            masters.iter().take(2).for_each(|it| it.freeze().unwrap());
            pause(Duration::from_millis(2_500));
            masters.iter().take(2).for_each(|it| it.thaw().unwrap());
        }
        Event::MaxTime => {}
    }
    assert!(next.0.wait().unwrap().success(), "{trial:?}");
    // An overlap would show in the next signs.
    pause(SHOWS_AFTER);
    to_muxlock("CONT");
    let survivors = files.end_survivors();
    let (last, next) = (files.numbers("signs").pop().unwrap(), files.numbers("next")[0]);
    let margin = (next - last) / 1_000_000;
    assert_eq!(survivors > 0, margin < 0, "{trial:?}: {survivors} survivors, {margin} ms");
    margin
}

/// Ends, stops and losses at random moments.
#[test]
fn slow_alone_no_descendant_lives_beside_the_next_holder() {
    let _alone = heavy();
    let figure = |name, default| env::var(name).map_or(default, |text| text.parse().unwrap());
    let trials: u64 = figure("MUXLOCK_DESCENDANTS_TRIALS", TRIALS);
    let seed: u64 = figure("MUXLOCK_DESCENDANTS_SEED", 1);
    let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let trials: Vec<Trial> = (0..trials).map(|number| Trial::draw(number, &mut numbers)).collect();
    let found: Vec<(Trial, i64)> = thread::scope(|scope| {
        let worker = |first: usize| {
            let trials = &trials;
            scope.spawn(move || {
                let (masters, _redlock, list) = start();
                let own = trials.iter().skip(first).step_by(AT_ONCE);
                own.map(|trial| (*trial, play(trial, &masters, &list))).collect::<Vec<_>>()
            })
        };
        let all: Vec<_> = (0..AT_ONCE).map(worker).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut least = BTreeMap::new();
    for (trial, margin) in &found {
        let (count, least) = least.entry(format!("{:?}", trial.event)).or_insert((0, i64::MAX));
        (*count, *least) = (*count + 1, *margin.min(least));
    }
    let survivors: Vec<_> = found.iter().filter(|one| one.1 < 0).collect();
    println!("seed {seed}: {} trials, {} with survivors", found.len(), survivors.len());
    println!("trials of each event, and the least margin in ms: {least:?}");
    assert!(survivors.is_empty(), "{survivors:?}");
}

/// The control: most of these ways leave survivors where a process group is ended.
#[test]
fn slow_alone_end_of_a_process_group_leaves_descendants() {
    let _alone = heavy();
    let survives = |(number, way): (usize, &Way)| {
        let files = Files::create(&format!("descendants-control-{number}"));
        let mut command = Command::new("sh");
        command.args(["-c", way.script]).process_group(0);
        let mut command = Ends(files.give(&mut command).spawn().unwrap());
        files.wait_for_signs(way, &mut command);
        let group = format!("-{}", command.0.id());
        for name in ["-TERM", "-KILL"] {
            let kill = ["kill", name, &group].join(" ") + " 2> /dev/null";
            let _ = Command::new("sh").args(["-c", &kill]).status().unwrap();
            pause(Duration::from_millis(100));
        }
        command.0.wait().unwrap();
        pause(SHOWS_AFTER);
        (way.name, files.end_survivors())
    };
    let found: Vec<_> = WAYS.iter().enumerate().map(survives).collect();
    println!("survivors of the end of a group: {found:?}");
    assert!(found.iter().filter(|one| one.1 > 0).count() >= WAYS.len() / 2, "{found:?}");
}
