//! The tools that count, and children that run beneath them.

use std::collections::BTreeMap;
use std::fs;
use std::process::{ChildStdin, Command, Stdio};

use crate::work::{BEGIN, END, Job, SECTION};
use testbed::Folder;

/// How often each system call was made.
pub type Calls = BTreeMap<String, u64>;

/// What is done with the input of a child.
pub type Feed<'a> = &'a mut dyn FnMut(ChildStdin);

/// A tool that counts, or that makes others count alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    Strace,
    Valgrind,
    Taskset,
}

impl Tool {
    /// Why it cannot be used here, if so.
    pub fn trouble(self) -> Option<String> {
        // A tool that is there may still not be allowed to trace.
        let (name, trial): (&str, &[&str]) = match self {
            Tool::Strace => ("strace", &["-f", "-qq", "-o", "/dev/null", "true"]),
            Tool::Valgrind => ("valgrind", &["-q", "--tool=none", "true"]),
            Tool::Taskset => ("taskset", &["-p", "1"]),
        };
        match Command::new(name).args(trial).stdin(Stdio::null()).output() {
            Err(error) => Some(format!("{name} cannot be run: {error}")),
            Ok(output) if !output.status.success() => {
                let said = String::from_utf8_lossy(&output.stderr);
                Some(format!("{name} does not work here: {}", said.trim()))
            }
            Ok(_) => None,
        }
    }
}

/// The system calls of the counted part of a job. Its input is given to `feed`.
pub fn system_calls(job: &Job, feed: Feed<'_>) -> Calls {
    traced(&[], job, feed)
}

/// The same, where each wait begins so late that all masters have answered by then.
pub fn system_calls_late(job: &Job) -> Calls {
    traced(&["-e", "inject=epoll_wait:delay_enter=4000"], job, &mut drop)
}

fn traced(options: &[&str], job: &Job, feed: Feed<'_>) -> Calls {
    let folder = Folder::create("strace");
    let log = folder.0.join("log");
    let file = log.display().to_string();
    // All threads, with times, and of strings no more than needed: paths are always whole.
    let strace = ["strace", "-f", "-qq", "-ttt", "-s", "1", "-o", &file];
    run(&[&strace, options].concat(), job, feed);
    calls(&fs::read_to_string(&log).expect("strace writes text"))
}

/// The instructions in user space of the counted part of a job, each time it is done.
pub fn instructions(job: &Job, feed: Feed<'_>) -> u64 {
    let folder = Folder::create("callgrind");
    let out = folder.0.join("out");
    let toggle = format!("--toggle-collect=*{SECTION}*");
    let file = format!("--callgrind-out-file={}", out.display());
    run(&["valgrind", "-q", "--tool=callgrind", &toggle, &file], job, feed);
    let text = fs::read_to_string(&out).expect("callgrind writes text");
    let all = total(&text).expect("callgrind writes a total");
    assert!(all > 0, "callgrind knows the counted part by its name");
    let times = job.kind.times() as u64;
    (all + times / 2) / times
}

/// How often the counted part of a job reads a clock. Valgrind hides from a program that clocks
/// can be read without a system call.
pub fn clock_reads(job: &Job, feed: Feed<'_>) -> u64 {
    let folder = Folder::create("clocks");
    let log = folder.0.join("log");
    let file = format!("--log-file={}", log.display());
    run(&["valgrind", "--tool=none", "--trace-syscalls=yes", &file], job, feed);
    let text = fs::read(&log).expect("valgrind writes its log");
    let text = String::from_utf8_lossy(&text);
    counted(&text).filter(|line| line.contains("sys_clock_gettime")).count() as u64
}

/// While it lasts, this thread and all that it starts share one processor.
///
/// Then masters answer while the client waits, and at no other time: how many replies it finds when
/// it looks hardly depends on what else the machine does.
pub struct OneCpu {
    before: String,
}

impl OneCpu {
    /// Takes one of those that the thread has.
    pub fn take() -> OneCpu {
        let status = fs::read_to_string("/proc/thread-self/status").expect("Linux has it");
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let before = line.expect("Linux says so").trim().to_owned();
        let first = before.split([',', '-']).next().expect("there is one");
        set_cpus(first);
        OneCpu { before }
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        set_cpus(&self.before);
    }
}

fn set_cpus(cpus: &str) {
    let thread = fs::read_link("/proc/thread-self").expect("Linux has it");
    let id = thread.file_name().expect("its last part is the thread's id");
    let output = Command::new("taskset").args(["-p", "-c", cpus]).arg(id).output();
    assert!(output.is_ok_and(|output| output.status.success()), "taskset sets processors {cpus}");
}

fn run(tool: &[&str], job: &Job, feed: Feed<'_>) {
    let inner = job.command();
    let (name, args) = tool.split_first().expect("a tool has a name");
    let mut command = Command::new(name);
    command.args(args).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
    feed(child.stdin.take().expect("its input is piped"));
    let output = child.wait_with_output().expect("a child can be waited for");
    assert!(
        output.status.success(),
        "{:?} beneath {name}: {}\n{}\n{}",
        job.kind,
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The lines between the marks.
fn counted(log: &str) -> impl Iterator<Item = &str> {
    let is_before = |line: &&str| !line.contains(BEGIN);
    log.lines().skip_while(is_before).skip(1).take_while(|line| !line.contains(END))
}

/// A client that has not waited for its sockets for a millisecond looks at them before it sends. It
/// reads its clock some time before and after the calls that are seen here, more so while it is
/// traced.
const LOOK_AFTER: f64 = 0.0005;

/// The calls between the marks, each where it begins: one that is interrupted by another thread's
/// has two lines. Looks at the sockets after [`LOOK_AFTER`] that find nothing are not among them:
/// how often a process that is traced is as slow as that depends on the machine.
fn calls(log: &str) -> Calls {
    let mut calls = Calls::new();
    let mut waited = None;
    assert!(log.contains(BEGIN) && log.contains(END), "the counted part was logged");
    for line in counted(log) {
        // The thread, the time, and the call.
        let rest = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let (at, call) = rest.split_once(' ').unwrap_or_default();
        let at: f64 = at.parse().expect("strace was asked for times");
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = call.split(|c| !is_name(c)).next().unwrap_or_default();
        if name.is_empty() {
            continue;
        }
        let is_look = match name {
            "epoll_wait" => call.ends_with(", 0) = 0"),
            "recvfrom" => call.contains("EAGAIN"),
            _ => false,
        };
        if !is_look || waited.is_some_and(|waited| at - waited <= LOOK_AFTER) {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
        if name == "epoll_wait" && !is_look {
            waited = Some(at);
        }
    }
    calls
}

/// All instructions, from a file of callgrind.
fn total(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}

#[test]
fn calls_between_the_marks_are_found() {
    let log = format!(
        "71 1.000000 read(0, \"\", 1) = 0\n\
         71 1.000010 statx(AT_FDCWD, \"{BEGIN}\", 0) = -1 ENOENT\n\
         71 1.000020 sendto(7, \"*\"..., 91, MSG_NOSIGNAL, NULL, 0) = 91\n\
         71 1.000030 epoll_wait(3, <unfinished ...>\n\
         72  1.000040 futex(0x1, FUTEX_WAKE, 1) = 0\n\
         71 1.000050 <... epoll_wait resumed>[], 128, 20) = 0\n\
         71 1.000060 --- SIGCHLD ---\n\
         71 1.000070 recvfrom(8, \"+\"..., 5, 0, NULL, NULL) = 5\n\
         71 1.000080 epoll_wait(3, [], 128, 0) = 0\n\
         71 1.000090 recvfrom(8, 0xa, 5, 0, NULL, NULL) = -1 EAGAIN (..)\n\
         71 1.002000 epoll_wait(3, [], 128, 0) = 0\n\
         71 1.002010 recvfrom(8, 0xa, 5, 0, NULL, NULL) = -1 EAGAIN (..)\n\
         71 1.002020 sendto(8, \"*\"..., 91, MSG_NOSIGNAL, NULL, 0) = 91\n\
         71 1.004000 epoll_wait(3, [], 128, 20) = 0\n\
         71 1.004005 epoll_wait(3, [..], 128, 0) = 1\n\
         71 1.004010 statx(AT_FDCWD, \"{END}\", 0) = -1 ENOENT\n\
         71 1.004020 write(1, \"\", 1) = 1\n"
    );
    let expected = [("epoll_wait", 4), ("futex", 1), ("recvfrom", 2), ("sendto", 2)];
    assert_eq!(calls(&log), expected.map(|(name, count)| (name.to_owned(), count)).into());
    assert_eq!(total("events: Ir\ntotals: 123456\n"), Some(123_456));
    assert_eq!(total("events: Ir\n"), None);
}
