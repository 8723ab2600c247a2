//! A worker as its parent sees it. It is never waited for without a bound.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock;
use crate::job::{Job, Sample};
use crate::worker::{GO, READY};

/// How long a worker may take until it stands ready: masters may still be young.
const READY_MAX: Duration = Duration::from_secs(30);
/// How long a worker may take to end when it is done.
const END_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A worker; it is killed when this is dropped.
pub struct Worker {
    process: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    hangs: bool,
}

impl Worker {
    /// Starts a worker.
    pub fn start(job: &Job) -> io::Result<Worker> {
        Worker::spawn(command(job)?)
    }

    /// Starts any program that stands ready like a worker.
    pub fn spawn(mut command: Command) -> io::Result<Worker> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = process.stdin.take();
        let output = process.stdout.take().ok_or(ErrorKind::BrokenPipe)?;
        let (sender, lines) = mpsc::channel();
        // It ends with the worker's output.
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        Ok(Worker { process, input, lines, hangs: false })
    }

    /// Waits until it is connected and warm.
    pub fn wait_until_ready(&mut self) -> io::Result<()> {
        match self.lines.recv_timeout(READY_MAX) {
            Ok(line) if line == READY => Ok(()),
            Ok(line) => Err(io::Error::other(line)),
            Err(error) => Err(gone(error)),
        }
    }

    /// Sends its process a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or(ErrorKind::NotFound)?, signal)?)
    }

    /// Sends it a line.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input.as_mut().ok_or(ErrorKind::BrokenPipe)?, "{line}")
    }

    /// The next line that it says; `TimedOut` if that takes longer than `bound`.
    pub fn hear(&mut self, bound: Duration) -> io::Result<String> {
        self.lines.recv_timeout(bound).map_err(gone).inspect_err(|_| self.hangs = true)
    }

    /// Lets it end, without waiting for that.
    pub fn dismiss(&mut self) {
        self.input = None;
    }

    /// Lets it measure one turn; `TimedOut` if that takes longer than `bound`.
    pub fn measure(&mut self, bound: Duration) -> io::Result<Sample> {
        self.tell(GO)?;
        let line = self.hear(bound)?;
        line.parse().map_err(|()| io::Error::other(line))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The end of its input tells it that it is done.
        self.input = None;
        let bound = if self.hangs { Duration::ZERO } else { END_MAX };
        // It is gone already if this fails.
        let _ = end(&mut self.process, bound);
    }
}

fn gone(error: RecvTimeoutError) -> io::Error {
    match error {
        RecvTimeoutError::Timeout => ErrorKind::TimedOut.into(),
        RecvTimeoutError::Disconnected => ErrorKind::BrokenPipe.into(),
    }
}

/// This program as a worker.
fn command(job: &Job) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("worker").args(job.to_args());
    Ok(command)
}

/// Runs a worker that needs no telling, beneath another program if that is not empty; what it
/// measured. It is killed if it takes longer than `bound`.
pub fn run_beneath(tool: &[&str], job: &Job, bound: Duration) -> io::Result<Sample> {
    let worker = command(job)?;
    let mut command = match tool {
        [] => worker,
        [program, options @ ..] => {
            let mut command = Command::new(program);
            command.args(options).arg(worker.get_program()).args(worker.get_args());
            command
        }
    };
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = quiet.spawn()?;
    if !end(&mut process, bound)? {
        return Err(ErrorKind::TimedOut.into());
    }
    // One line fits into the pipe.
    let output = process.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let sample = text.lines().find_map(|line| line.parse().ok());
    sample.ok_or_else(|| io::Error::other("some pairs failed"))
}

/// Waits for a process, and kills it if it takes too long; whether it ended by itself.
fn end(process: &mut Child, bound: Duration) -> io::Result<bool> {
    let give_up_at = clock::now() + bound;
    while process.try_wait()?.is_none() {
        if clock::now() > give_up_at {
            process.kill()?;
            process.wait()?;
            return Ok(false);
        }
        clock::pause(POLL_INTERVAL);
    }
    Ok(true)
}
