//! Tests that run again as children, in processes of their own.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::{pause, within};

/// How long a child of [`re_execute`] may run: longer than any test takes.
const CHILD_CAP: Duration = Duration::from_secs(300);
/// In the environment of a child of [`re_execute`].
const CHILD_VARIABLE: &str = "MUXLOCK_TEST_CHILD";
/// What a child tells its parent begins with this; the test harness prints as well.
const CHILD_PREFIX: &str = "child: ";

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
