//! Tests that run again as children, in processes of their own.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::{pause, within};

/// How long a child of [`re_execute`] may run: longer than any test takes.
const CHILD_CAP: Duration = Duration::from_secs(300);
/// In the environment of a child of [`re_execute`].
pub(crate) const CHILD_VARIABLE: &str = "MUXLOCK_TEST_CHILD";
/// Lines from a child to its parent begin with this; the test harness prints as well.
const CHILD_PREFIX: &str = "child: ";

/// The command that runs this test alone in a process of its own, as a child.
///
/// # Panics
///
/// Panics if this binary has no test of that name, or several.
pub fn re_execute(test: &str) -> Command {
    let mut command = Command::new(this_binary());
    command
        .args(["--exact", &path_of(test), "--nocapture", "--test-threads=1"])
        .env(CHILD_VARIABLE, test)
        .stdin(Stdio::null());
    command
}

fn this_binary() -> PathBuf {
    env::current_exe().expect("the path of this test")
}

/// The name of a test with its modules. A name that the harness does not know would run nothing,
/// and pass.
fn path_of(test: &str) -> String {
    static LIST: OnceLock<String> = OnceLock::new();
    let list = LIST.get_or_init(|| {
        let output = Command::new(this_binary()).arg("--list").output().expect("it runs again");
        String::from_utf8(output.stdout).expect("names of tests are text")
    });
    let behind_modules = format!("::{test}");
    let paths = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let found: Vec<_> =
        paths.filter(|path| *path == test || path.ends_with(&behind_modules)).collect();
    match found[..] {
        [path] => path.to_owned(),
        _ => panic!("one test should be named {test}: {found:?}"),
    }
}

/// The command that runs a program of the folder `examples`; `cargo test` builds it.
#[macro_export]
macro_rules! example {
    ($name:expr) => {
        $crate::built_example(env!("OUT_DIR"), $name)
    };
}

/// An example of the package whose build script has this `OUT_DIR`.
///
/// # Panics
///
/// Panics if it was not built.
#[track_caller]
pub fn built_example(out_dir: &str, name: &str) -> Command {
    // It is `build/PACKAGE/out` in the folder of the profile.
    let folder = Path::new(out_dir).ancestors().nth(3).expect("it is in a folder of the profile");
    let path = folder.join("examples").join(name);
    assert!(path.exists(), "build the examples first: cargo build --examples");
    Command::new(path)
}

/// Runs `body`, which is that of this test, in a process of its own: it counts resources of the
/// process, or changes them. Its output is shown if it fails.
#[track_caller]
pub fn alone(test: &str, body: impl FnOnce()) {
    if is_child(test) {
        return body();
    }
    let output = re_execute(test).output().expect("this test runs again");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the child failed: {}; see above", output.status);
}

/// Whether this process is the child that runs this test. It is ended if it hangs: its parent reads
/// its lines to the parent.
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
pub fn report_to_parent(line: impl std::fmt::Display) {
    // The harness has begun a line.
    println!("\n{CHILD_PREFIX}{line}");
}

/// A child of [`re_execute`] or [`example`]: it ends with the test that started it, stopped or not.
#[derive(Debug)]
pub struct Again(Child);

impl Again {
    /// Starts it. Its lines are read with [`lines`](Again::lines).
    #[track_caller]
    pub fn start(command: &mut Command) -> Again {
        Again(command.stdout(Stdio::piped()).spawn().expect("the program is there"))
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its standard input, if that is piped and was not taken before.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.0.stdin.take()
    }

    /// Its lines to the parent, to the end of its output.
    pub fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let lines = self.output();
        lines.filter_map(|line| line.strip_prefix(CHILD_PREFIX).map(str::to_owned))
    }

    /// All its lines, to the end of its output.
    pub fn output(&mut self) -> impl Iterator<Item = String> + use<> {
        let output = self.0.stdout.take().expect("its output is piped, and read once");
        BufReader::new(output).lines().map_while(Result::ok)
    }

    /// Sends it a signal: `STOP`, `CONT` or `TERM`.
    #[track_caller]
    pub fn signal(&self, name: &str) {
        // The standard library sends no other signal than SIGKILL.
        let kill = ["-c", r#"kill -s "$1" "$2""#, "sh", name, &self.id().to_string()];
        assert!(Command::new("sh").args(kill).status().expect("sh runs").success());
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

/// Runs a child to its end; returns its lines to the parent.
#[track_caller]
pub fn run_child(command: &mut Command) -> Vec<String> {
    let mut child = Again::start(command);
    let lines = child.lines().collect();
    let status = child.status();
    assert!(status.success(), "the child failed: {status}; see above");
    lines
}
