//! A peer in a process of its own, behind a line protocol. It is never waited for without a bound.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::clock::becomes_true;
use crate::{Failure, Peer};

/// How long an interpreter may take to start and connect.
const READY_MAX: Duration = Duration::from_secs(30);
/// How long an answer may take, besides the time that a command waits.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// How long the process may take to end when it is told to.
const END_MAX: Duration = Duration::from_secs(5);

/// The line with which a process says that it is connected.
pub const READY: &str = "ready";

/// The process; it is ended when this is dropped.
pub struct Program {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Program {
    /// Starts it and waits until it is connected to the masters.
    pub fn start(command: &mut Command) -> Result<Program, Failure> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{command:?}: {error}; run tests/interop/run"))?;
        let input = process.stdin.take().ok_or("the process has no input")?;
        let output = process.stdout.take().ok_or("the process has no output")?;
        let (sender, lines) = mpsc::channel();
        // It ends with the output of the process.
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        let program = Program { process, input, lines };
        loop {
            match program.lines.recv_timeout(READY_MAX) {
                Ok(line) if line == READY => return Ok(program),
                // A test that runs again begins with words of the harness.
                Ok(_) => {}
                Err(error) => return Err(format!("{command:?} is not ready: {error}").into()),
            }
        }
    }

    /// Takes the lock again and again for so long; returns how often it was held. While it is, a
    /// file of this name, which must not be there yet, stands for its holder.
    pub fn share(
        &mut self,
        key: &str,
        ttl: Duration,
        run: Duration,
        holder: &Path,
    ) -> Result<u64, Failure> {
        let [ttl, millis] = [ttl, run].map(|time| time.as_millis());
        let command = format!("share {key} {ttl} {millis} {}", holder.display());
        let answer = self.ask(&command, ANSWER_MAX + run)?;
        let count = answer.strip_prefix("held ").and_then(|count| count.parse().ok());
        count.ok_or_else(|| format!("{command:?} is answered with {answer:?}").into())
    }

    fn ask(&mut self, command: &str, answer_max: Duration) -> Result<String, Failure> {
        writeln!(self.input, "{command}")?;
        let answer = self.lines.recv_timeout(answer_max);
        answer.map_err(|error| format!("no answer to {command:?}: {error}").into())
    }

    /// A command that has one answer for yes and one for no.
    fn decide(
        &mut self,
        command: &str,
        [yes, no]: [&str; 2],
        wait: Duration,
    ) -> Result<bool, Failure> {
        match self.ask(command, ANSWER_MAX + wait)? {
            answer if answer == yes => Ok(true),
            answer if answer == no => Ok(false),
            answer => Err(format!("{command:?} is answered with {answer:?}").into()),
        }
    }
}

const ACQUIRED: [&str; 2] = ["granted", "refused"];
const EXTENDED: [&str; 2] = ["extended", "refused"];
const RELEASED: [&str; 2] = ["released", "lost"];

impl Peer for Program {
    fn lock(&mut self, key: &str, ttl: Duration) -> Result<bool, Failure> {
        self.decide(&format!("lock {key} {}", ttl.as_millis()), ACQUIRED, Duration::ZERO)
    }

    fn lock_for(&mut self, key: &str, ttl: Duration, wait: Duration) -> Result<bool, Failure> {
        let command = format!("wait {key} {} {}", ttl.as_millis(), wait.as_millis());
        self.decide(&command, ACQUIRED, wait)
    }

    fn extend(&mut self, ttl: Duration) -> Result<bool, Failure> {
        self.decide(&format!("extend {}", ttl.as_millis()), EXTENDED, Duration::ZERO)
    }

    fn unlock(&mut self) -> Result<(), Failure> {
        self.decide("unlock", RELEASED, Duration::ZERO).map(drop)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = writeln!(self.input, "quit");
        if !becomes_true(END_MAX, || !matches!(self.process.try_wait(), Ok(None))) {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
