//! Everything that the command has started, however it was started.
//!
//! A process group is not enough: shells with job control, `timeout`, `setsid` and daemons make
//! groups and sessions of their own. So one of this program's processes is a child subreaper: it
//! becomes the parent of every descendant that has lost its own. So all descendants stay below it,
//! and none is left once it has no child that lives.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getpid};

use super::command::reap;

/// How often one call kills: more processes may have been started while it looked.
const PASSES_MAX: usize = 16;
/// How many processes are named.
const NAMED_MAX: usize = 3;

/// This process becomes the parent of all its descendants that lose theirs.
pub fn adopt_orphans() -> nix::Result<()> {
    set_child_subreaper(true)
}

/// A process, as `/proc/PID/stat` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: Pid,
    name: String,
    is_alive: bool,
    parent: Pid,
    group: Pid,
    /// When it started: with the number, it names one process.
    started: u64,
}

impl Process {
    /// The number, name in parentheses, state, parent, group and more. The name may contain
    /// anything.
    fn parse(stat: &[u8]) -> Option<Process> {
        let text = String::from_utf8_lossy(stat);
        let (number, rest) = text.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let pid = |text: &str| text.parse().ok().map(Pid::from_raw);
        // Threads may outlive the first one, which is a zombie then.
        let threads: u32 = fields.get(17)?.parse().ok()?;
        Some(Process {
            pid: pid(number)?,
            name: name.escape_debug().collect(),
            is_alive: !matches!(*fields.first()?, "Z" | "X") || threads > 1,
            parent: pid(fields.get(1)?)?,
            group: pid(fields.get(2)?)?,
            started: fields.get(19)?.parse().ok()?,
        })
    }
}

/// All processes that can be seen. It is no snapshot: a process that starts during the scan may be
/// missing.
fn processes() -> io::Result<Vec<Process>> {
    // That of another process namespace has other numbers.
    if fs::read_link("/proc/self")? != Path::new(&getpid().to_string()) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let entries = fs::read_dir("/proc")?.flatten();
    let is_process =
        |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit();
    let stats = entries.filter(is_process).map(|it| fs::read(it.path().join("stat")));
    Ok(stats.flatten().filter_map(|stat| Process::parse(&stat)).collect())
}

/// The receivers of a signal.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Group(Pid),
    Process(Pid),
}

/// The descendants of a process.
#[derive(Clone)]
pub struct Family {
    /// The command, whose number is that of its first group. It is not reaped before the end.
    pub command: Pid,
    root: Pid,
    /// Children that the root had before.
    strangers: Vec<(Pid, u64)>,
}

/// Children of this process that are none of the command's: a shell may have started some, and
/// have become this program.
pub fn children() -> Vec<(Pid, u64)> {
    own_children().map(|it| (it.pid, it.started)).collect()
}

/// Most kernels list the children of a process; else all processes are looked at.
fn own_children() -> impl Iterator<Item = Process> {
    let listed = listed_children().or_else(|_| processes()).unwrap_or_default();
    listed.into_iter().filter(|it| it.parent == getpid())
}

fn listed_children() -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task")?.flatten() {
        let pids = fs::read_to_string(task.path().join("children"))?;
        found.extend(pids.split_ascii_whitespace().filter_map(process));
    }
    Ok(found)
}

/// A process, if there is one of this number.
fn process(pid: &str) -> Option<Process> {
    Process::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

impl Family {
    /// All descendants of `root`, which started the command, except those below `strangers`.
    pub fn new(command: Pid, root: Pid, strangers: Vec<(Pid, u64)>) -> Family {
        Family { command, root, strangers }
    }

    /// The descendants among these processes that live.
    fn living_among<'a>(&self, all: &'a [Process]) -> Vec<&'a Process> {
        let mut children: HashMap<Pid, Vec<&Process>> = HashMap::new();
        for process in all {
            children.entry(process.parent).or_default().push(process);
        }
        let mut found = Vec::new();
        let mut open = vec![self.root];
        // Removed, so that each is looked at once.
        while let Some(parent) = open.pop() {
            for child in children.remove(&parent).unwrap_or_default() {
                if !self.strangers.contains(&(child.pid, child.started)) {
                    open.push(child.pid);
                    found.extend(child.is_alive.then_some(child));
                }
            }
        }
        found
    }

    /// The descendants that live.
    pub fn living(&self) -> Vec<Process> {
        let all = processes().unwrap_or_default();
        self.living_among(&all).into_iter().cloned().collect()
    }

    /// Whether a descendant lives. If this process is the root, the kernel knows.
    pub fn is_alive(&self) -> bool {
        match self.root == getpid() {
            true if !has_living_child() => false,
            true if self.strangers.is_empty() => true,
            _ => !self.living().is_empty(),
        }
    }

    /// Whether the command's first process is a zombie.
    pub fn has_command_ended(&self) -> bool {
        process(&self.command.to_string()).is_some_and(|it| !it.is_alive)
    }

    /// Sends a signal to the command's first group, as a terminal does.
    pub fn signal_group(&self, signal: Signal) {
        // It may have ended meanwhile.
        let _ = killpg(self.command, signal);
    }

    /// The groups and processes to signal, so that exactly the living ones get the signal. The
    /// command's first group has it already.
    fn targets(&self, all: &[Process], living: &[&Process]) -> Vec<Target> {
        let pids: HashSet<Pid> = living.iter().map(|it| it.pid).collect();
        let shared: HashSet<Pid> = all
            .iter()
            .filter(|it| !pids.contains(&it.pid) && it.is_alive)
            .map(|it| it.group)
            .collect();
        let mut done = HashSet::from([self.command]);
        let target = |it: &&Process| match shared.contains(&it.group) {
            true if it.group == self.command => None,
            // Those in a group with others get it alone.
            true => Some(Target::Process(it.pid)),
            false => done.insert(it.group).then_some(Target::Group(it.group)),
        };
        living.iter().filter_map(target).collect()
    }

    /// Sends a signal to all descendants. Returns those that live.
    pub fn signal(&self, signal: Signal) -> Vec<Process> {
        // At once, so that nothing of the first group can start more meanwhile.
        self.signal_group(signal);
        let all = processes().unwrap_or_default();
        let living = self.living_among(&all);
        for target in self.targets(&all, &living) {
            let _ = match target {
                Target::Group(group) => killpg(group, signal),
                Target::Process(pid) => kill(pid, signal),
            };
        }
        living.into_iter().cloned().collect()
    }

    /// Asks all to end, including those that are stopped.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGCONT);
    }

    /// Sends SIGKILL until it finds nothing that is new.
    pub fn kill(&self) {
        let mut killed = HashSet::new();
        for _ in 0..PASSES_MAX {
            let before = killed.len();
            killed.extend(self.signal(Signal::SIGKILL).into_iter().map(|it| it.pid));
            if killed.len() == before {
                return;
            }
        }
    }

    /// Living descendants that this process lacks the permission to signal.
    pub fn beyond_reach(&self) -> Vec<Process> {
        let refused = |it: &Process| kill(it.pid, None) == Err(Errno::EPERM);
        self.living().into_iter().filter(refused).collect()
    }
}

/// Whether a child of this process lives. Unlike a walk, the answer is exact: without WEXITED, the
/// kernel says ECHILD if only zombies are left.
fn has_living_child() -> bool {
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT;
    waitid(Id::All, flags | WaitPidFlag::__WALL) != Err(Errno::ECHILD)
}

/// Reaps the ended children of this process, except these. An orphan becomes a child of this
/// process, so only this process can reap it.
pub fn reap_orphans(except: &[Pid]) {
    for orphan in own_children().filter(|it| !it.is_alive && !except.contains(&it.pid)) {
        reap(orphan.pid);
    }
}

/// Names a few processes: `17 (sleep), 18 (sh) and 3 more`.
pub fn list(processes: &[Process]) -> String {
    if processes.is_empty() {
        return "processes that /proc does not show".into();
    }
    let named = processes.iter().take(NAMED_MAX).map(|it| format!("{} ({})", it.pid, it.name));
    let named = named.collect::<Vec<_>>().join(", ");
    match processes.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, state: &str, parent: i32, group: i32, threads: u32) -> Process {
        let rest = "0 0 0 0 0 0 0 0 0 0 0 0 20 0";
        let stat =
            format!("{pid} (a) Z 1 2) {state} {parent} {group} {rest} {threads} 0 {pid}00 1");
        Process::parse(stat.as_bytes()).unwrap()
    }

    fn pids(living: &[&Process]) -> Vec<i32> {
        let mut pids: Vec<i32> = living.iter().map(|it| it.pid.as_raw()).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn name_of_a_process_may_contain_anything() {
        let it = process(7, "S", 3, 5, 1);
        assert_eq!((it.name.as_str(), it.parent.as_raw(), it.group.as_raw()), ("a) Z 1 2", 3, 5));
        assert_eq!(it.started, 700);
        assert_eq!(Process::parse(b""), None);
        assert_eq!(Process::parse(b"7 (sh) S 1"), None);
    }

    #[test]
    fn zombie_is_alive_if_it_has_threads() {
        assert!(!process(7, "Z", 1, 1, 1).is_alive && !process(7, "X", 1, 1, 0).is_alive);
        assert!(process(7, "Z", 1, 1, 2).is_alive && process(7, "T", 1, 1, 1).is_alive);
    }

    #[test]
    fn descendants_are_found_in_every_group_and_below_zombies() {
        let all = [
            process(2, "S", 1, 2, 1),
            process(10, "S", 2, 10, 1),
            process(11, "Z", 10, 10, 1),
            process(12, "S", 11, 12, 1),
            process(13, "T", 2, 2, 1),
            process(20, "S", 2, 20, 1),
            process(21, "S", 20, 20, 1),
            process(30, "S", 1, 10, 1),
        ];
        let of = |strangers| Family::new(Pid::from_raw(10), Pid::from_raw(2), strangers);
        assert_eq!(pids(&of(vec![]).living_among(&all)), [10, 12, 13, 20, 21]);
        let strangers = vec![(Pid::from_raw(20), 2_000)];
        assert_eq!(pids(&of(strangers).living_among(&all)), [10, 12, 13]);
        // Another process has got the number.
        let strangers = vec![(Pid::from_raw(20), 1)];
        assert_eq!(pids(&of(strangers).living_among(&all)), [10, 12, 13, 20, 21]);
    }

    #[test]
    fn signal_reaches_nobody_else_in_a_group() {
        let all = [
            process(1, "S", 0, 1, 1),
            process(2, "S", 1, 2, 1),
            process(10, "S", 2, 10, 1),
            // In a group of their own,
            process(11, "S", 10, 11, 1),
            process(12, "S", 11, 11, 1),
            // in that of a process which is none of the command's,
            process(13, "S", 10, 1, 1),
            // and in that of one which has ended.
            process(14, "S", 10, 30, 1),
            process(30, "Z", 1, 30, 1),
        ];
        let family = Family::new(Pid::from_raw(10), Pid::from_raw(2), vec![]);
        let living = family.living_among(&all);
        let mut targets = family.targets(&all, &living);
        targets.sort_by_key(|it| match it {
            Target::Group(pid) | Target::Process(pid) => *pid,
        });
        let [eleven, thirteen, thirty] = [11, 13, 30].map(Pid::from_raw);
        let expected = [Target::Group(eleven), Target::Process(thirteen), Target::Group(thirty)];
        assert_eq!(targets, expected);
    }

    #[test]
    fn a_few_processes_are_named() {
        let all: Vec<Process> = (1..=5).map(|pid| process(pid, "S", 1, 1, 1)).collect();
        assert_eq!(list(&all[..2]), "1 (a) Z 1 2), 2 (a) Z 1 2)");
        assert!(list(&all).ends_with("3 (a) Z 1 2) and 2 more"));
    }
}
