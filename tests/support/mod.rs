//! What the integration tests share: bounds on real time, figures of this process, and children.

pub mod proxy;
pub mod scripted;

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use muxlock::{Builder, LockError, NodeOutcome, NodeState, Redlock, RestartGuard};

/// A time to live that no test waits for: what is gone earlier was deleted.
pub const TTL: Duration = Duration::from_secs(30);
/// A timeout that no test waits for: who returns earlier did not wait for it.
pub const PATIENT: Duration = Duration::from_secs(20);
/// What takes milliseconds may take this long on a busy machine.
pub const SOON: Duration = Duration::from_secs(5);

/// The environment variable that names a server which compares and deletes by itself: Redis from
/// 8.4 on, Valkey from 9 on.
pub const DELETING_SERVER_VARIABLE: &str = "MUXLOCK_TEST_SERVER";

/// How long a child of [`re_execute`] may run: longer than any test takes.
const CHILD_CAP: Duration = Duration::from_secs(300);
/// How long to wait before looking again.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// In the environment of a child of [`re_execute`].
const CHILD_VARIABLE: &str = "MUXLOCK_TEST_CHILD";
/// What a child tells its parent begins with this; the test harness prints as well.
const CHILD_PREFIX: &str = "child: ";

/// Time since it was started.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "measures the library from outside")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// The time since the start.
    #[expect(clippy::disallowed_methods, reason = "measures the library from outside")]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// The instant that is `after` after the start.
    pub fn instant_after(self, after: Duration) -> Instant {
        self.0 + after
    }
}

/// Runs something; returns how long it took beside what it returned.
pub fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let watch = Stopwatch::start();
    let result = run();
    (watch.elapsed(), result)
}

/// Waits for `time`.
#[expect(clippy::disallowed_methods, reason = "time itself is what is tested")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Looks until it is so; fails if it takes longer than [`SOON`].
#[track_caller]
pub fn soon(what: &str, is_so: impl FnMut() -> bool) {
    within(SOON, what, is_so);
}

/// Looks until it is so; fails if it takes longer than `limit`.
#[track_caller]
pub fn within(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let watch = Stopwatch::start();
    while !is_so() {
        assert!(watch.elapsed() < limit, "not within {limit:?}: {what}");
        pause(POLL_INTERVAL);
    }
}

/// A client of which every node is ready to vote and owes no answer, as to what is tried out after
/// the handshake: connecting itself waits for a quorum only.
#[track_caller]
pub fn all_ready(builder: &Builder) -> Redlock {
    let redlock = builder.connect().unwrap_or_else(|error| panic!("{error}"));
    soon("every node is ready", || {
        let nodes = redlock.nodes();
        nodes.iter().all(|node| node.state == NodeState::Ready && node.in_flight == 0)
    });
    redlock
}

/// How many nodes are ready to vote.
pub fn ready(redlock: &Redlock) -> usize {
    let nodes = redlock.nodes();
    nodes.iter().filter(|node| node.state == NodeState::Ready).count()
}

/// Patient settings: whatever is slow, nothing times out within a test.
///
/// The restart guard is off: with it, servers that a test has just started would not vote.
pub fn patient<I>(urls: I) -> Builder
where
    I: IntoIterator,
    I::Item: Into<String>,
{
    Redlock::builder()
        .nodes(urls)
        .node_timeout(PATIENT)
        .connect_timeout(PATIENT)
        .restart_guard(RestartGuard::Off)
}

/// What each node said, in the order of configuration.
pub fn outcomes(error: &LockError) -> Vec<NodeOutcome> {
    error.nodes().iter().map(|report| report.outcome).collect()
}

/// How many nodes said this.
pub fn count(error: &LockError, outcome: NodeOutcome) -> usize {
    outcomes(error).into_iter().filter(|said| *said == outcome).count()
}

/// The command that runs this test alone in a process of its own, as a child.
pub fn re_execute(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the path of this test"));
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD_VARIABLE, test)
        .stdin(Stdio::null());
    command
}

/// Whether this process is the child that runs this test. It is ended if it hangs: its parent reads
/// what it tells to the end.
pub fn is_child(test: &str) -> bool {
    let is_child = env::var(CHILD_VARIABLE).is_ok_and(|named| named == test);
    if is_child {
        std::thread::spawn(|| {
            pause(CHILD_CAP);
            eprintln!("the child has not ended within {CHILD_CAP:?}");
            std::process::abort();
        });
    }
    is_child
}

/// From the child to its parent.
pub fn tell_parent(line: impl std::fmt::Display) {
    // The harness has begun a line.
    println!("\n{CHILD_PREFIX}{line}");
}

/// A child of [`re_execute`]: it ends with the test that started it, stopped or not.
#[derive(Debug)]
pub struct Again(Child);

impl Again {
    /// Starts it. What it tells is read with [`told`](Again::told).
    #[track_caller]
    pub fn start(command: &mut Command) -> Again {
        Again(command.stdout(Stdio::piped()).spawn().expect("this test runs again"))
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its standard input, if that is piped and was not taken before.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.0.stdin.take()
    }

    /// What it tells, line by line, to the end of its output.
    pub fn told(&mut self) -> impl Iterator<Item = String> + use<> {
        let output = self.0.stdout.take().expect("its output is piped, and read once");
        BufReader::new(output)
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix(CHILD_PREFIX).map(str::to_owned))
    }

    /// Ends it now (SIGKILL).
    pub fn kill(&mut self) {
        self.0.kill().expect("a child can be killed");
    }

    /// Waits for its end.
    #[track_caller]
    pub fn status(&mut self) -> ExitStatus {
        let mut status = None;
        within(CHILD_CAP, "the child ends", || {
            status = self.0.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        status.expect("it has ended")
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        // It fails if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a child to its end; returns what it told.
#[track_caller]
pub fn run_child(command: &mut Command) -> Vec<String> {
    let mut child = Again::start(command);
    let told = child.told().collect();
    let status = child.status();
    assert!(status.success(), "the child failed: {status}; see above");
    told
}

/// A server that compares and deletes by itself: the one that the environment names, or one on
/// PATH. `None`, said where nobody can miss it, if there is none.
///
/// # Panics
///
/// Panics if the one that the environment names is not such a server.
pub fn deleting_server(test: &str) -> Option<OsString> {
    let named = env::var_os(DELETING_SERVER_VARIABLE).filter(|path| !path.is_empty());
    if let Some(path) = named {
        let is_it = deletes_by_itself(&path);
        assert!(is_it, "{DELETING_SERVER_VARIABLE} names {path:?}: not Redis 8.4 or Valkey 9");
        return Some(path);
    }
    let found = ["redis-server", "valkey-server"].map(OsString::from).into_iter();
    let server = found.into_iter().find(|name| deletes_by_itself(name));
    if server.is_none() {
        // Not by a macro, of which the harness would keep to itself what it prints.
        let text = format!(
            "SKIPPED {test}: no redis-server from 8.4 on and no valkey-server from 9 on is on \
             PATH, and {DELETING_SERVER_VARIABLE} names none\n"
        );
        std::io::stderr().write_all(text.as_bytes()).expect("somebody may read it");
    }
    server
}

/// Whether this is a server that says so by its make and version.
fn deletes_by_itself(binary: &OsStr) -> bool {
    let Ok(output) = Command::new(binary).arg("--version").output() else {
        return false;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let least = if said.starts_with("Valkey") { (9, 0) } else { (8, 4) };
    let version = said.split_once(" v=").map_or("", |(_, version)| version);
    let mut numbers = version.split(['.', ' ']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= least
}

/// A number from `/proc/self/status`: `Threads`, or a size in KiB such as `VmHWM`.
#[cfg(target_os = "linux")]
pub fn status_figure(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let figure = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let digits = figure.and_then(|figure| figure.split_whitespace().next());
    digits.and_then(|digits| digits.parse().ok()).expect("a known name and a number")
}

/// How many descriptors this process has open, the one to count them with included.
#[cfg(target_os = "linux")]
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("Linux has it").count()
}

/// A folder that is removed in the end.
#[derive(Debug)]
pub struct Folder(pub std::path::PathBuf);

impl Folder {
    /// Makes a folder for `test`, in memory if the system has such a place.
    pub fn create(test: &str) -> Folder {
        let name = format!("muxlock-{}-{test}", std::process::id());
        let places = ["/dev/shm".into(), env::temp_dir()];
        let made = places.map(|place: std::path::PathBuf| place.join(&name));
        let path = made.into_iter().find(|path| fs::create_dir(path).is_ok());
        Folder(path.expect("a folder for temporary files"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left in a temporary folder does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
